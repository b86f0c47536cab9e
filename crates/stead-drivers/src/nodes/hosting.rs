//! `node.hosting`: whether a node can make machines.

use stead_model::NodeName;
use stead_model::node::NodeStatus;
use stead_model::site::host::DriverKind;
use stead_runner::operation::{OpContext, OpError, Outcome};

use super::{NodeView, NodesSurroundings};

impl NodeView<'_> {
    /// Returns what makes machines in the node: what its entry says, else the kind that made it.
    pub(super) fn hosts_with(&self) -> DriverKind {
        let hosting = self.written.hosting.as_ref().map(|hosting| &hosting.value);
        let made_by = self.known.driver.unwrap_or(DriverKind::Sandbox);
        stead_engine::nodes::host_below(made_by, hosting).driver()
    }
}

impl NodesSurroundings {
    /// Asks a node whether it can make machines: `stead doctor --driver D` there.
    pub(super) async fn check_hosting(&self, _: &OpContext, name: &NodeName) -> Result<Outcome, OpError> {
        let node = self.node(name.as_str())?;
        let driver = node.hosts_with();
        if driver != DriverKind::None {
            let line = self.hosting_line(name).await?;
            let said =
                self.ask(&line, Some(name), &["doctor", "--driver", driver.word()], Vec::new()).await?;
            if said.code != Some(0) {
                let why =
                    format!("{name} cannot make machines with `{}`: {}", driver.word(), said.complaint());
                return Err(OpError::operation(why));
            }
        }
        self.update(name, false, |entry| (entry.status, entry.error) = (NodeStatus::Completed, None)).await?;
        Ok(Outcome::default())
    }
}

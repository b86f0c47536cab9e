//! `node.hosting`: whether a node can make machines.

use stead_model::NodeName;
use stead_model::node::NodeStatus;
use stead_model::site::host::DriverKind;
use stead_runner::operation::{OpContext, OpError, Outcome};

use super::NodesSurroundings;

impl NodesSurroundings {
    /// Asks a node whether it can make machines: `stead doctor --driver D` there.
    pub(super) async fn check_hosting(&self, _: &OpContext, name: &NodeName) -> Result<Outcome, OpError> {
        let node = self.node(name.as_str())?;
        let written = node.written.hosting.as_ref().and_then(|hosting| hosting.value.driver);
        let driver = written.or(node.known.driver).unwrap_or(DriverKind::Sandbox);
        let has_children = !node.node.children.is_empty();
        if has_children && driver != DriverKind::None {
            let transport = self.connect(name).await?;
            let said = self.on_node(&*transport, &["doctor", "--driver", driver.word()], Vec::new()).await?;
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

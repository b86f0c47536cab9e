//! `node.hosting`: whether a node can make machines.

use stead_model::NodeName;
use stead_model::node::NodeStatus;
use stead_model::site::host::DriverKind;
use stead_runner::operation::{OpContext, OpError, Outcome};

use super::reach::Said;
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
                    format!("{name} cannot make machines with `{}`: {}", driver.word(), findings(&said));
                return Err(OpError::operation(why));
            }
        }
        self.update(name, false, |entry| (entry.status, entry.error) = (NodeStatus::Completed, None)).await?;
        Ok(Outcome::default())
    }
}

/// Returns what `doctor` found missing, with what to do about it; where it found nothing, what it complained of.
fn findings(said: &Said) -> String {
    let text = String::from_utf8_lossy(&said.stdout);
    let mut is_finding = false;
    let found: Vec<&str> = text
        .lines()
        .filter(|line| {
            // What belongs to a check is indented below it.
            if !line.starts_with(' ') {
                is_finding = line.starts_with("[FAIL]");
            }
            is_finding
        })
        .map(str::trim)
        .collect();
    let found = if found.is_empty() { said.complaint() } else { found.join("\n") };
    if found.is_empty() { "its `stead doctor` fails and does not say why".to_owned() } else { found }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said() {
        let said = |stdout: &str, stderr: &str| {
            findings(&Said { code: Some(1), stdout: stdout.into(), stderr: stderr.into() })
        };
        let doctor = "[PASS] ip: /sbin/ip\n[FAIL] kvm: there is no /dev/kvm\n       fix: use another machine\n\
                      [SKIP] x: y\n       fix: z\n[FAIL] root: this is not root\n";
        assert_eq!(
            said(doctor, "stead: 2 checks failed\n"),
            "[FAIL] kvm: there is no /dev/kvm\nfix: use another machine\n[FAIL] root: this is not root"
        );
        assert_eq!(said("", "stead: no such option\n"), "stead: no such option");
        assert!(said("[PASS] ip: /sbin/ip\n", "").contains("does not say why"));
    }
}

//! What targets may say: hosts that exist, and each ad hoc host in one way only.

use stead_model::plan::TaskIndex;
use stead_model::{Diagnostic, HostName, TransportSpec};

use super::Checker;
use crate::target::{AdHoc, TargetExpr};

/// Where a target says how its host is reached.
pub(super) struct Defined {
    transport: TransportSpec,
    task: TaskIndex,
    path: String,
}

impl Checker<'_> {
    /// Checks the target `text` of a task, the one at `position` of its list.
    pub(super) fn target(&mut self, index: TaskIndex, position: usize, text: &str) {
        let path = format!("target.{position}");
        match TargetExpr::parse(text) {
            Err(error) => self.error(index, &path, error.code(), error.to_string(), ""),
            Ok(target) => match target.ad_hoc() {
                Some(host) => self.ad_hoc_host(index, path, text, host),
                None => self.hosts_of(index, &path, text, &target),
            },
        }
    }

    /// Refuses hosts that do not exist, and says which labels and globs match none.
    fn hosts_of(&mut self, index: TaskIndex, path: &str, text: &str, target: &TargetExpr) {
        let Some(hosts) = self.catalogue.hosts() else { return };
        // Looking at all hosts once per text is enough, however many tasks share it.
        if self.good_targets.contains(text) {
            return;
        }
        let unknown = target.unknown_hosts(hosts);
        let unmatched = target.unmatched(hosts);
        if unknown.is_empty() && unmatched.is_empty() {
            self.good_targets.insert(text.into());
        }
        for error in unknown {
            self.error(index, path, error.code(), error.to_string(), "");
        }
        for unmatched in unmatched {
            let message = format!("`{unmatched}` matches no host of the inventory");
            let help = "check its spelling, or the inventory that is read";
            self.warning(index, path, "reach/no-match", message, help);
        }
    }

    fn ad_hoc_host(&mut self, index: TaskIndex, path: String, text: &str, host: &AdHoc) {
        let AdHoc { name, transport } = host;
        if transport.has_literal_secret() {
            let message = format!("the secret in `{transport}` would be recorded with the plan");
            let help = "write `password=env:NAME`, or put the host into an inventory";
            self.error(index, &path, "reach/secret-in-spec", message, help);
        }
        // The name of a host that is known already means that host.
        let known = self.catalogue.hosts().and_then(|hosts| hosts.transport(name.as_str()));
        if known.is_some_and(|known| text != name.as_str() && known != transport) {
            let message = format!("the inventory reaches `{name}` in another way than `{transport}`");
            let help = "use the inventory's name for it, or write `user@host`";
            self.error(index, &path, "reach/duplicate-host", message, help);
        }
        match self.ad_hoc.get(name) {
            Some(other) if other.transport != *transport => {
                let (place, first) = ((self.locate)(index, &path), (self.locate)(other.task, &other.path));
                let message = format!("the host `{name}` has two different definitions");
                let problem = Diagnostic::error("reach/duplicate-host", place, message)
                    .related(first, "the other one")
                    .help("write it the same everywhere, or put it into an inventory under a name");
                self.push(index, &path, problem);
            }
            Some(_) => {}
            None => {
                let defined = Defined { transport: transport.clone(), task: index, path };
                self.ad_hoc.insert(HostName::clone(name), defined);
            }
        }
    }
}

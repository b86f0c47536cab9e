//! The inventory: which hosts there are, how they are reached and what they are called by.
//!
//! Two formats are read: inventories (`hosts:`) and agent registries (`agents:`); a file says by its keys which it
//! is.

use std::collections::BTreeMap;

use crate::diagnostic::{Diagnostic, Diagnostics, Place, Source};
use crate::id::HostName;
use crate::transport::{Become, SecretSource, TransportSpec};

mod agents;
mod keys;
mod read;
#[cfg(test)]
mod tests;

pub(crate) use agents::agent;
pub use keys::{DEFAULTS_KEYS, HOST_KEYS, INVENTORY_KEYS, PASSWORD_KEYS};
pub(crate) use read::host_name;

/// The hosts there are, besides `local`, which always is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// By name.
    pub hosts: BTreeMap<HostName, Host>,
}

/// One host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// How it is reached.
    pub transport: TransportSpec,
    /// What targets select by, `source` included.
    pub labels: BTreeMap<String, String>,
    /// Key `become`: who operations and commands run as, unless the transport says it; see [`Host::account`].
    pub become_user: Option<Become>,
    /// Key `become_password`, unless the transport says it; see [`Host::account_password`].
    pub become_password: Option<SecretSource>,
    /// Where the executor keeps its files, instead of the places it looks for itself.
    pub workdir: Option<String>,
    /// Whether the executor is brought to it.
    pub executor: ExecutorMode,
    /// Operations act below this path; none: the whole machine.
    pub root: Option<String>,
    /// Attempts at once; none: the plan's `per_target`.
    pub parallel: Option<u32>,
    /// What it is for.
    pub description: Option<String>,
}

/// Whether the executor is brought to a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExecutorMode {
    /// If something other than commands is to be done there.
    #[default]
    Auto,
    /// For commands too.
    Always,
    /// Not at all: commands only.
    Never,
}

impl ExecutorMode {
    /// Every mode with its word.
    pub const WORDS: [(&'static str, Self); 3] =
        [("auto", Self::Auto), ("always", Self::Always), ("never", Self::Never)];
}

/// Label that says where a host was read.
pub const SOURCE_LABEL: &str = "source";

impl Host {
    /// Returns the machine Stead itself runs on, as it is without any inventory.
    pub fn local() -> Self {
        Self::default()
    }

    /// Returns a host that is only known by how it is reached.
    pub fn reached_by(transport: TransportSpec) -> Self {
        Self { transport, ..Self::default() }
    }

    /// Returns who operations and commands run as: what the transport says, else the key `become`.
    pub fn account(&self) -> Option<&Become> {
        let given = match &self.transport {
            TransportSpec::Ssh(ssh) => ssh.become_user.as_ref(),
            TransportSpec::Local => None,
        };
        given.or(self.become_user.as_ref())
    }

    /// Returns the key, if there is one, that only an executor on the host heeds: another account, or another root.
    ///
    /// For this machine that is the driver itself, unless another account is wanted.
    pub fn needs_executor(&self) -> Option<&'static str> {
        match self.transport {
            _ if self.account().is_some() => Some("become"),
            TransportSpec::Ssh(_) if self.root.is_some() => Some("root"),
            TransportSpec::Ssh(_) | TransportSpec::Local => None,
        }
    }

    /// Returns where the password for [`Host::account`] comes from: as the transport says, else the key.
    pub fn account_password(&self) -> Option<&SecretSource> {
        let given = match &self.transport {
            TransportSpec::Ssh(ssh) => ssh.become_password.as_ref(),
            TransportSpec::Local => None,
        };
        given.or(self.become_password.as_ref())
    }

    /// Whether both say the same, wherever each was read: what Stead itself says of where is no part of it.
    pub fn is_same(&self, other: &Self) -> bool {
        let labels = |host: &Self| {
            let own = host.labels.iter().filter(|(key, _)| !keys::AUTOMATIC_LABELS.contains(&key.as_str()));
            own.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        Self { labels: labels(self), ..self.clone() } == Self { labels: labels(other), ..other.clone() }
    }
}

impl Inventory {
    /// Returns the host called `name`; `local` always is there.
    pub fn get(&self, name: &str) -> Option<Host> {
        match self.hosts.get(name) {
            Some(host) => Some(host.clone()),
            None => (name == "local").then(Host::local),
        }
    }

    /// Returns the inventory that `sources` hold together, or every problem in them.
    pub fn read(sources: &[Source]) -> Result<Self, Diagnostics> {
        Self::read_placed(sources).map(|(inventory, _)| inventory)
    }

    /// As [`Self::read`], with where each host is written.
    pub fn read_placed(sources: &[Source]) -> Result<(Self, BTreeMap<HostName, Place>), Diagnostics> {
        let mut diagnostics = Diagnostics::default();
        let mut found: BTreeMap<HostName, (Host, Place)> = BTreeMap::new();
        for source in sources {
            for (name, host, place) in read::read_one(source, &mut diagnostics) {
                match found.get(&name) {
                    Some((other, first)) if !other.is_same(&host) => diagnostics.push(
                        Diagnostic::error(
                            "reach/duplicate-host",
                            place,
                            format!("the host `{name}` has two different definitions"),
                        )
                        .related(first.clone(), "the other one")
                        .help("rename one of them, or leave one out"),
                    ),
                    Some(_) => {}
                    None => {
                        found.insert(name, (host, place));
                    }
                }
            }
        }
        if diagnostics.has_errors() {
            return Err(diagnostics.sorted());
        }
        let places = found.iter().map(|(name, (_, place))| (name.clone(), place.clone())).collect();
        Ok((Self { hosts: found.into_iter().map(|(name, (host, _))| (name, host)).collect() }, places))
    }
}

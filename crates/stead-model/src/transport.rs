//! How a host is reached, as a value: what a user writes in an inventory, a target or a flag.
//!
//! The text form and its masked canonical form are here; connecting is `stead-drivers`' work. Secrets given in the
//! text itself are kept out of `Debug` and `Display`.

use std::fmt;
use std::time::Duration;

/// How a host is reached.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum TransportSpec {
    /// It is the machine Stead itself runs on, under its own account.
    #[default]
    Local,
    /// Through SSH.
    Ssh(Box<SshSpec>),
}

/// A host behind SSH, as written: what is `None` comes from ssh_config or the defaults.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SshSpec {
    /// Who logs in.
    pub user: Option<String>,
    /// Name or address; an IPv6 address without brackets.
    pub host: String,
    /// Where it listens.
    pub port: Option<u16>,
    /// The password, from the text before `@` or the option `password`.
    pub password: Option<SecretSource>,
    /// This identity file only, besides the agent's keys.
    pub key: Option<String>,
    /// Opens `key`.
    pub passphrase: Option<SecretSource>,
    /// Instead of the user's and the system's known_hosts.
    pub known_hosts: Option<String>,
    /// Exactly this host key; no file is asked.
    pub host_key: Option<String>,
    /// Whether the agent is asked; default true.
    pub agent: Option<bool>,
    /// What happens with a host key nobody knows.
    pub host_keys: Option<HostKeys>,
    /// No host key is checked at all.
    pub insecure: bool,
    /// Hosts to go through, first hop first.
    pub jump: Vec<Jump>,
    /// For TCP, key exchange and login together, over all hops.
    pub connect_timeout: Option<Duration>,
    /// Time between probes; three without an answer and the connection is lost.
    pub keepalive: Option<Duration>,
    /// Who the executor and commands run as.
    pub become_user: Option<Become>,
    /// What `sudo` or `doas` asks for.
    pub become_password: Option<SecretSource>,
    /// The target's system, if it need not be probed.
    pub os: Option<TargetOs>,
    /// Instead of the user's and the system's ssh_config; `none` reads neither.
    pub ssh_config: Option<String>,
}

/// One host on the way to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jump {
    /// Who logs in there.
    pub user: Option<String>,
    /// Name or address.
    pub host: String,
    /// Where it listens.
    pub port: Option<u16>,
}

/// What happens with the key of a host nobody knows. A changed key is refused either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKeys {
    /// It is refused.
    Strict,
    /// It is recorded, and this is said.
    AcceptNew,
}

/// Changing to another account on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Become {
    /// The program that does it.
    pub method: BecomeMethod,
    /// The account; none: root.
    pub user: Option<String>,
}

/// Programs that change the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BecomeMethod {
    /// `sudo`.
    Sudo,
    /// `doas`.
    Doas,
}

/// Systems a target may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetOs {
    /// Linux.
    Linux,
    /// macOS.
    Darwin,
}

/// Where a secret comes from.
#[derive(Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// An environment variable of the driver.
    Env(String),
    /// A file on the driver.
    File(String),
    /// The text itself: it works, with a warning.
    Literal(String),
}

impl fmt::Debug for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(f, "env:{name}"),
            Self::File(path) => write!(f, "file:{path}"),
            Self::Literal(_) => f.write_str("***"),
        }
    }
}

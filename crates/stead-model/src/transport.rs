//! How a host is reached, as a value: what a user writes in an inventory, a target or a flag.
//!
//! The text form and its masked canonical form are here; connecting is `stead-drivers`' work. Secrets given in the
//! text itself are kept out of `Debug`, `Display` and errors.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

mod display;
mod error;
mod options;
mod parse;
#[cfg(test)]
mod tests;

pub use error::{TransportFault, TransportSpecError};
pub use options::OPTIONS;
pub(crate) use options::is_host_key;
pub use parse::secret_ranges;

/// Time for TCP, key exchange and login together, if nobody says otherwise.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Time between probes, if nobody says otherwise.
pub const DEFAULT_KEEPALIVE: Duration = Duration::from_secs(15);

/// Where SSH listens, if nobody says otherwise.
pub const DEFAULT_PORT: u16 = 22;

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
    /// The key it must show, where this program knows it; no text names it.
    pub host_key: Option<String>,
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

impl TransportSpec {
    /// Returns the transport `text` is, or what in it is wrong and where.
    pub fn parse(text: &str) -> Result<Self, TransportSpecError> {
        parse::parse(text)
    }

    /// Returns what a user should know about it on every run: stable code and sentence.
    pub fn warnings(&self) -> Vec<(&'static str, String)> {
        let Self::Ssh(ssh) = self else { return Vec::new() };
        let mut warnings = Vec::new();
        let secrets = [
            ("password", &ssh.password),
            ("passphrase", &ssh.passphrase),
            ("become_password", &ssh.become_password),
        ];
        for (option, source) in secrets {
            if let Some(SecretSource::Literal(_)) = source {
                let text = format!(
                    "the {} of `{self}` stands in the transport; write `{option}=env:NAME` or `{option}=file:PATH`",
                    option.replace('_', " ")
                );
                warnings.push(("reach/secret-in-spec", text));
            }
        }
        if ssh.insecure {
            let text = format!(
                "the host key of `{}` is not checked; leave out `insecure=true`, or pin the key with `host_key=`",
                self.address()
            );
            warnings.push(("reach/insecure", text));
        }
        warnings
    }

    /// Returns the canonical form without scheme, password and options: the name of an ad hoc host.
    pub fn address(&self) -> String {
        match self {
            Self::Local => "local".to_owned(),
            Self::Ssh(ssh) => display::address(ssh.user.as_deref(), &ssh.host, ssh.port),
        }
    }

    /// Whether a secret stands in it, rather than where one is found.
    pub fn has_literal_secret(&self) -> bool {
        match self {
            Self::Local => false,
            Self::Ssh(ssh) => [&ssh.password, &ssh.passphrase, &ssh.become_password]
                .into_iter()
                .any(|source| matches!(source, Some(SecretSource::Literal(_)))),
        }
    }
}

impl FromStr for TransportSpec {
    type Err = TransportSpecError;
    fn from_str(text: &str) -> Result<Self, TransportSpecError> {
        Self::parse(text)
    }
}

impl Become {
    /// Returns what `sudo`, `doas` or `sudo:USER` says.
    pub fn parse(text: &str) -> Option<Self> {
        let (method, user) = match text.split_once(':') {
            Some((method, user)) => (method, Some(user)),
            None => (text, None),
        };
        let method = match method {
            "sudo" => BecomeMethod::Sudo,
            "doas" => BecomeMethod::Doas,
            _ => return None,
        };
        let is_account = |user: &str| {
            !user.is_empty()
                && !user.starts_with('-')
                && user.chars().all(|c| !c.is_whitespace() && !c.is_control() && c != ':')
        };
        if user.is_some_and(|user| !is_account(user)) {
            return None;
        }
        Some(Self { method, user: user.filter(|user| *user != "root").map(str::to_owned) })
    }
}

impl fmt::Display for Become {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.method {
            BecomeMethod::Sudo => "sudo",
            BecomeMethod::Doas => "doas",
        })?;
        match &self.user {
            Some(user) => write!(f, ":{user}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Jump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        f.write_str(&display::address(None, &self.host, self.port))
    }
}

impl SecretSource {
    /// Returns where `text` says the secret is: `env:NAME`, `file:PATH`, else the text itself.
    pub fn parse(text: &str) -> Self {
        match text.split_once(':') {
            Some(("env", name)) => Self::Env(name.to_owned()),
            Some(("file", path)) => Self::File(path.to_owned()),
            _ => Self::Literal(text.to_owned()),
        }
    }
}

/// The masked form: a literal secret is `***`.
impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

//! What makes the running system take notice of files that have changed.

use serde::{Deserialize, Serialize};
use stead_runner::operation::{OpContext, OpError};

use crate::command::blocking::{self, Program, Said};
use crate::disk::Disk;
use crate::{access, certificate};

/// A step after files were written. Each is safe to repeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Settle {
    /// The SSH daemon's configuration is checked and, if so said, read again; sessions stay.
    Sshd { reload: bool },
    /// The first of these services that is running is restarted.
    Restart(Vec<String>),
    /// The bundle of trusted certificates is made anew. Also under a root prefix, by its own program.
    Certificates,
    /// `resolvconf` makes `/etc/resolv.conf` anew.
    Resolvconf,
    /// Netplan brings the network to what its files say.
    Netplan,
    /// Ifupdown takes an interface down and up, where it has to ask for an address.
    Ifup(String),
    /// Everything is put back unless it is confirmed within so many seconds.
    Watch { seconds: u64 },
}

impl Settle {
    /// Returns within how many seconds the change has to be confirmed, if it has to be.
    pub(crate) fn watched(&self) -> Option<u64> {
        match self {
            Self::Watch { seconds } => Some(*seconds),
            Self::Sshd { .. }
            | Self::Restart(_)
            | Self::Certificates
            | Self::Resolvconf
            | Self::Netplan
            | Self::Ifup(_) => None,
        }
    }

    /// Does what has to be done before files are written.
    pub(crate) fn prepare(&self) -> Result<(), OpError> {
        match self {
            Self::Sshd { .. } => access::daemon::prepare(),
            Self::Restart(_)
            | Self::Certificates
            | Self::Resolvconf
            | Self::Netplan
            | Self::Ifup(_)
            | Self::Watch { .. } => Ok(()),
        }
    }

    /// Does it, and returns what the user should know.
    pub(crate) fn run(&self, cx: &OpContext, disk: &Disk) -> Result<Option<String>, OpError> {
        match self {
            Self::Sshd { reload: true } => access::daemon::reload(cx),
            Self::Restart(names) => restart(cx, names),
            Self::Certificates => certificate::rebuild(cx, disk),
            Self::Resolvconf => checked(cx, "resolvconf", &["-u"]).map(|_| None),
            Self::Netplan => checked(cx, "netplan", &["apply"]).map(|_| None),
            Self::Ifup(name) => {
                // It may not have been up.
                run(cx, "ifdown", &["--force", name])?;
                checked(cx, "ifup", &["--force", name]).map(|_| None)
            }
            Self::Sshd { reload: false } | Self::Watch { .. } => Ok(None),
        }
    }
}

/// Runs a program to its end.
pub(crate) fn run(cx: &OpContext, name: &str, args: &[&str]) -> Result<Said, OpError> {
    let program = Program {
        name: name.to_owned(),
        args: args.iter().map(Into::into).collect(),
        cwd: "/".into(),
        // What programs say is read here: in the one language they all have.
        env: std::collections::BTreeMap::from([("LC_ALL".to_owned(), "C".to_owned())]),
    };
    blocking::run(cx, program)
}

/// Runs a program that has to succeed.
pub(crate) fn checked(cx: &OpContext, name: &str, args: &[&str]) -> Result<Said, OpError> {
    let said = run(cx, name, args)?;
    if said.is_ok() {
        return Ok(said);
    }
    Err(OpError::operation(format!("`{name} {}`: {}", args.join(" "), said.describe())))
}

/// Whether systemd is this machine's init.
pub(crate) fn has_systemd() -> bool {
    std::path::Path::new("/run/systemd/system").is_dir()
}

fn restart(cx: &OpContext, names: &[String]) -> Result<Option<String>, OpError> {
    if !has_systemd() {
        let names = names.join(" or ");
        return Ok(Some(format!("{names} was not restarted: systemd does not run here")));
    }
    for name in names {
        if run(cx, "systemctl", &["is-active", "--quiet", name])?.is_ok() {
            checked(cx, "systemctl", &["restart", name])?;
            return Ok(None);
        }
    }
    Ok(None)
}

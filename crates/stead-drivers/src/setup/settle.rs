//! What makes the running system take notice of files that have changed.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};
use stead_runner::operation::{OpContext, OpError};

use crate::command::blocking::{self, Program, Said};
use crate::disk::Disk;
use crate::{access, certificate};

/// Where it is noted what is still to be done on the running system.
const DUE: &str = "/run/stead/settle";

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

    /// Returns what it is called where it is noted that it is still to be done; nothing where that is of no use: a network
    /// change that is cut off is undone, and what only watches does nothing.
    fn note(&self) -> Option<String> {
        match self {
            Self::Sshd { reload: true } => Some("sshd".to_owned()),
            Self::Restart(names) => Some(format!("restart-{}", names.join("-"))),
            Self::Certificates => Some("certificates".to_owned()),
            Self::Resolvconf => Some("resolvconf".to_owned()),
            Self::Sshd { reload: false } | Self::Netplan | Self::Ifup(_) | Self::Watch { .. } => None,
        }
    }

    /// Whether files were changed for it and it was not done: a run was cut off in between, or it failed.
    pub(crate) fn is_due(&self, cx: &OpContext) -> bool {
        let Some(note) = self.note().filter(|_| cx.root.is_none()) else { return false };
        Path::new(DUE).join(&note).exists() && cx.predicted.get(&resource(&note)).is_none()
    }

    /// Records that a dry run would have done it.
    pub(crate) fn predict(&self, cx: &OpContext) {
        if let Some(note) = self.note() {
            cx.predicted.set(resource(&note), true.into());
        }
    }

    /// Notes that it is to be done, before files are changed. The note goes with the next start, which does it too.
    pub(crate) fn begin(&self, cx: &OpContext) -> Result<(), OpError> {
        let Some(note) = self.note().filter(|_| cx.root.is_none()) else { return Ok(()) };
        let made = DirBuilder::new().recursive(true).mode(0o700).create(DUE);
        made.and_then(|()| std::fs::write(Path::new(DUE).join(note), ""))
            .map_err(|error| OpError::io(format_args!("cannot note in `{DUE}` what is to be done"), &error))
    }

    /// Takes the note back.
    pub(crate) fn end(&self, cx: &OpContext) {
        if let Some(note) = self.note().filter(|_| cx.root.is_none()) {
            // One that stays has it done once more.
            std::fs::remove_file(Path::new(DUE).join(note)).unwrap_or(());
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

fn resource(note: &str) -> String {
    format!("settle:{note}")
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
    Path::new("/run/systemd/system").is_dir()
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

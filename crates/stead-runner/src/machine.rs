//! The edge where machines come to be: one trait for every kind of driver.
//!
//! A driver makes, starts, stops, removes and finds machines that carry the mark of their owner, and touches no
//! other. Every call may be repeated, dropped at any await and made at once for different machines; calls for one
//! machine wait for each other. Waiting for an address, retries and order are the runner's.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stead_model::ErrorClass;
use stead_model::machine::{
    Boot, Machine, MachineExit, MachineId, MachineKind, MachineSpec, Owner, OwnerScope, ShapeChange,
};

use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use crate::transport::Reader;

/// As much of a console's end is kept while it is read, this long nothing may come, and so long it may take.
const CONSOLE_TAIL: usize = 64 << 10;
const CONSOLE_SILENCE: Duration = Duration::from_millis(300);
const CONSOLE_PATIENCE: Duration = Duration::from_secs(3);

/// Makes and keeps machines of one kind.
#[async_trait::async_trait]
pub trait MachineDriver: Send + Sync {
    /// Returns what it can do and what it needs for that.
    fn capabilities(&self) -> Capabilities;

    /// Refuses what no machine could boot here, as far as that is known without making one.
    fn check_boot(&self, _boot: Option<&Boot>) -> Result<(), MachineError> {
        Ok(())
    }

    /// Returns why machines that boot these, and those that are to have these numbers, could not be made, as far as whoever
    /// makes them can be asked. Changes nothing.
    async fn missing(&self, _boots: &[Boot], _numbers: &[(Owner, u32)]) -> Vec<MachineError> {
        Vec::new()
    }

    /// Returns what users should know of how their machines are run here, once a machine was started.
    fn remark(&self) -> Option<String> {
        None
    }

    /// Makes the machine unless it is there; a new one is stopped, one that is there is left as it is.
    async fn ensure_created(&self, spec: &MachineSpec) -> Result<Ensured, MachineError>;

    /// Starts it and returns when its process lives.
    async fn start(&self, id: &MachineId) -> Result<Changed, MachineError>;

    /// Is told where the SSH daemon inside a machine listens now, which its spec may change: from here on
    /// [`SshDoor`](stead_model::machine::SshDoor) leads there. Drivers that see it for themselves need not be told.
    async fn ssh_moved(&self, _id: &MachineId, _port: u16) -> Result<Changed, MachineError> {
        Ok(Changed::No)
    }

    /// Asks it to stop, and forces it once `grace` is over.
    async fn stop(&self, id: &MachineId, grace: Duration) -> Result<Stopped, MachineError>;

    /// Removes it and everything of it, running or not.
    async fn destroy(&self, id: &MachineId) -> Result<Changed, MachineError>;

    /// Returns the machine; none if there is none of ours.
    async fn inspect(&self, id: &MachineId) -> Result<Option<Machine>, MachineError>;

    /// Returns the machines of `scope`, by scope and name.
    async fn list(&self, scope: &OwnerScope) -> Result<Vec<Machine>, MachineError>;

    /// Returns what it writes to its console, from byte `from` until it ends.
    async fn console(&self, id: &MachineId, from: u64) -> Result<ConsoleStream, MachineError>;

    /// Returns the last lines that it left for who cannot log in: those of its console, and what else its driver keeps of
    /// it. None if there are none, or they cannot be read soon. Changes nothing.
    async fn last_words(&self, id: &MachineId) -> Vec<String> {
        match self.capabilities().console {
            true => last_of_console(self.console(id, 0).await).await,
            false => Vec::new(),
        }
    }

    /// Waits until it does not run and returns how its run ended.
    async fn wait(&self, id: &MachineId) -> Result<MachineExit, MachineError>;
}

/// What a driver can do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// The machines it makes.
    pub kinds: Vec<MachineKind>,
    /// Its machines can have machines of their own.
    pub hosts: bool,
    /// They have a console.
    pub console: bool,
    /// They read a cloud-init seed.
    pub seed: bool,
    /// They boot a kernel without a boot loader.
    pub kernel_boot: bool,
    /// Their disk is as large as asked for.
    pub disk_resize: bool,
    /// They are plugged into networks.
    pub networks: bool,
    /// What this machine has to have.
    pub needs: Vec<Need>,
}

/// Something a driver needs of the machine it runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// This program.
    Program(String),
    /// One of these programs.
    AnyProgram(Vec<String>),
    /// The account root.
    Root,
    /// Mounts and networks of its own, which root in a container often may not have.
    Namespaces,
    /// What an ordinary account needs to be root of namespaces of its own, and to have a network there.
    UserNamespaces,
    /// What lets the processor run guests: `/dev/kvm`.
    Kvm(PathBuf),
}

/// A machine that is there, and whether that is new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ensured {
    /// The machine.
    pub machine: Machine,
    /// It was made, or finished.
    pub changed: bool,
}

/// Whether a call changed something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// It did.
    Yes,
    /// Everything was so already.
    No,
}

/// How a machine was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// It had been running.
    pub changed: bool,
    /// It did not go by itself.
    pub forced: bool,
}

/// What a machine writes to its console, as it comes.
pub struct ConsoleStream {
    /// The place of the first byte: later than asked for if what was before is gone.
    pub start: u64,
    /// The bytes. Dropping it stops the reading.
    pub bytes: Reader,
}

/// Returns the last lines of a console, as far as it is written: nothing that comes later is waited for.
async fn last_of_console(console: Result<ConsoleStream, MachineError>) -> Vec<String> {
    let Ok(mut console) = console else { return Vec::new() };
    let (mut kept, mut piece) = (Vec::new(), vec![0; CONSOLE_TAIL]);
    let reading = async {
        while let Ok(Ok(read)) = timeout(CONSOLE_SILENCE, console.bytes.read(&mut piece)).await {
            kept.extend_from_slice(&piece[..read]);
            if kept.len() > 2 * CONSOLE_TAIL {
                kept.drain(..kept.len() - CONSOLE_TAIL);
            }
            if read == 0 {
                break;
            }
        }
    };
    timeout(CONSOLE_PATIENCE, reading).await.ok();
    let text = String::from_utf8_lossy(&kept);
    stead_model::tail::last_words(&text).into_iter().map(str::to_owned).collect()
}

impl fmt::Debug for ConsoleStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsoleStream").field("start", &self.start).finish_non_exhaustive()
    }
}

/// Why a driver did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MachineError {
    /// There is no such machine, or it is only half made.
    #[error("there is no machine {0}")]
    NotFound(MachineId),
    /// Something of this name is there and is not ours.
    #[error("{what} is there and does not carry the mark of {owner}; it is left alone")]
    Foreign {
        /// What is there.
        what: String,
        /// Whose it would have to be.
        owner: String,
    },
    /// The machine is another than the one asked for.
    #[error("{machine} cannot be changed: {}", list(.changes))]
    Conflict {
        /// The machine.
        machine: String,
        /// What differs.
        changes: Vec<ShapeChange>,
    },
    /// The driver cannot do this.
    #[error("{0}")]
    Unsupported(String),
    /// What was asked for makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// What makes the machines does not answer.
    #[error("{0}")]
    Unavailable(String),
    /// It took too long.
    #[error("{0}")]
    Timeout(String),
    /// It did not work.
    #[error("{what}{}", tail(.last_lines))]
    Failed {
        /// What was being done, and what went wrong.
        what: String,
        /// The last lines of the console or log, at most [`LAST_LINES`](stead_model::tail::LAST_LINES).
        last_lines: Vec<String>,
    },
}

fn list(changes: &[ShapeChange]) -> String {
    changes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn tail(lines: &[String]) -> String {
    if lines.is_empty() { String::new() } else { format!("; its last lines:\n{}", lines.join("\n")) }
}

impl MachineError {
    /// Returns the error of something that did not work and left no log.
    pub fn failed(what: impl Into<String>) -> Self {
        Self::Failed { what: what.into(), last_lines: Vec::new() }
    }

    /// Returns the class a task fails with.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::NotFound(_)
            | Self::Foreign { .. }
            | Self::Conflict { .. }
            | Self::Unsupported(_)
            | Self::Invalid(_) => ErrorClass::Permanent,
            Self::Unavailable(_) => ErrorClass::Unreachable,
            Self::Timeout(_) => ErrorClass::Timeout,
            Self::Failed { .. } => ErrorClass::Operation,
        }
    }
}

/// The file beside a sandbox's root directory that says what it is and what it has.
pub const SANDBOX_FILE: &str = "sandbox.json";

/// Returns the directory of the sandbox whose root directory this is; none if it is any other root.
///
/// The file lies outside the root, where nothing that acts below the root can touch it.
pub fn sandbox_of(root: &Path) -> Option<PathBuf> {
    let directory = root.parent()?;
    directory.join(SANDBOX_FILE).is_file().then(|| directory.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_class_that_says_what_may_help() {
        let failed = MachineError::Failed { what: "boot".to_owned(), last_lines: vec!["panic".to_owned()] };
        assert_eq!(
            (failed.class(), failed.to_string()),
            (ErrorClass::Operation, "boot; its last lines:\npanic".into())
        );
        assert_eq!(MachineError::Unavailable("x".to_owned()).class(), ErrorClass::Unreachable);
        assert_eq!(MachineError::Timeout("x".to_owned()).class(), ErrorClass::Timeout);
        for permanent in [
            MachineError::NotFound(MachineId::new("x")),
            MachineError::Foreign { what: "x".to_owned(), owner: "y".to_owned() },
            MachineError::Conflict { machine: "x".to_owned(), changes: Vec::new() },
            MachineError::Unsupported("x".to_owned()),
            MachineError::Invalid("x".to_owned()),
        ] {
            assert_eq!(permanent.class(), ErrorClass::Permanent, "{permanent}");
        }
    }
}

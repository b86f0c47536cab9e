//! The edge to a machine: starting programs there and moving files, whatever lies between.
//!
//! A [`Connect`] opens a [`Transport`]; drivers implement both. A transport runs argv byte for byte, streams output as
//! it comes and kills what it started when it is dropped. It neither retries nor knows what an operation is.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use stead_model::ErrorClass;
use stead_model::plan::Digest;
use stead_model::transport::TransportSpec;
use tokio::io::{AsyncRead, AsyncWrite};

/// Opens connections.
#[async_trait::async_trait]
pub trait Connect: Send + Sync {
    /// Returns a connection to the host of `spec`. Dropping the future gives up.
    async fn connect(&self, spec: &TransportSpec) -> Result<Arc<dyn Transport>, TransportError>;
}

/// A connection to one machine. Calls may be made at once; each has its own channel.
#[async_trait::async_trait]
pub trait Transport: Send + Sync {
    /// Returns what it was opened with.
    fn spec(&self) -> &TransportSpec;

    /// Starts a program in a process group of its own. Argv, environment and input reach it byte for byte.
    async fn exec(&self, command: Command) -> Result<Running, TransportError>;

    /// Writes a file on the machine, whole or not at all. The same content again writes nothing.
    async fn put(&self, from: Source, to: &Path, meta: FileMeta) -> Result<Digest, TransportError>;

    /// Reads a file of the machine into `to`, whole or not at all.
    async fn get(&self, from: &Path, to: &Path) -> Result<Digest, TransportError>;

    /// Carries connections from one side to the other until the result is dropped.
    async fn forward(&self, what: Forward) -> Result<Forwarded, TransportError>;
}

/// A program to start.
#[derive(Clone, Default)]
pub struct Command {
    /// The program and its arguments; no NUL.
    pub argv: Vec<OsString>,
    /// Added to the account's environment. Values are not shown by `Debug`.
    pub env: BTreeMap<OsString, OsString>,
    /// Where it starts; none: the account's home.
    pub cwd: Option<PathBuf>,
    /// What it reads.
    pub stdin: Stdin,
    /// Whether it gets `env` alone.
    pub clear_env: bool,
    /// Whether its process group ends with the connection, whatever ended that, and how long it has between being
    /// asked to and being killed; none: it may outlive a driver that is killed.
    pub tied: Option<Duration>,
}

impl Command {
    /// Returns a command without input.
    pub fn new(argv: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self { argv: argv.into_iter().map(Into::into).collect(), ..Self::default() }
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.env.keys().collect();
        f.debug_struct("Command").field("argv", &self.argv).field("env", &names).finish_non_exhaustive()
    }
}

/// What a program reads.
#[derive(Clone, Default)]
pub enum Stdin {
    /// Nothing.
    #[default]
    Empty,
    /// These bytes.
    Bytes(Vec<u8>),
    /// What is written to [`Running::stdin`].
    Piped,
}

/// Bytes from a program.
pub type Reader = Pin<Box<dyn AsyncRead + Send>>;
/// Bytes to a program.
pub type Writer = Pin<Box<dyn AsyncWrite + Send>>;

/// A started program. Dropping it kills its process group.
pub struct Running {
    /// Its input, if it was asked for.
    pub stdin: Option<Writer>,
    /// Its output, as it comes.
    pub stdout: Reader,
    /// Its errors, as they come.
    pub stderr: Reader,
    /// Signals it and waits for its end.
    pub process: Box<dyn Process>,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Running")
    }
}

/// The hold on a started program. Dropping it kills its process group.
#[async_trait::async_trait]
pub trait Process: Send {
    /// Sends a signal to its process group.
    async fn signal(&mut self, signal: Signal) -> Result<(), TransportError>;

    /// Waits for its end. Cancel safe.
    async fn wait(&mut self) -> Result<Exit, TransportError>;
}

/// Signals that a program is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGKILL.
    Kill,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// With this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// Content to be written.
#[derive(Clone, Debug)]
pub enum Source {
    /// These bytes.
    Bytes(Arc<[u8]>),
    /// A file of the driver.
    File(PathBuf),
}

/// What a written file has besides its content.
#[derive(Clone, Debug, Default)]
pub struct FileMeta {
    /// Permission bits; none: kept, 0644 for a new file.
    pub mode: Option<u32>,
    /// User and group, by name or number; none: kept.
    pub owner: Option<String>,
    /// As `owner`.
    pub group: Option<String>,
}

/// What is carried.
#[derive(Clone, Debug)]
pub enum Forward {
    /// Connections to `listen` here go to `to` there.
    Local {
        /// Where this side listens.
        listen: Endpoint,
        /// What the other side connects to.
        to: Endpoint,
    },
    /// Connections to `listen` there come to `to` here.
    Remote {
        /// Where the other side listens.
        listen: Endpoint,
        /// What this side connects to.
        to: Endpoint,
    },
}

/// An end of a forward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Host and port; port 0 takes a free one.
    Tcp(String, u16),
    /// A socket file.
    Unix(PathBuf),
}

/// A forward that is on until this is dropped.
pub struct Forwarded {
    /// Where it listens, with the port it took.
    pub listen: Endpoint,
    /// Ends it.
    pub guard: Box<dyn Send + Sync>,
}

impl fmt::Debug for Forwarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forwarded").field("listen", &self.listen).finish_non_exhaustive()
    }
}

/// Why a machine could not be reached or used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TransportError {
    /// What kind.
    pub kind: TransportErrorKind,
    /// What was being done, what went wrong and what to do, in one sentence or a few.
    pub message: String,
}

/// Kinds of transport errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportErrorKind {
    /// The name has no address.
    NameNotFound,
    /// Nothing listens there, or no way leads there.
    Refused,
    /// It took longer than `connect_timeout`.
    TimedOut,
    /// The host key is unknown, changed or revoked.
    HostKey,
    /// No way to log in worked.
    Login,
    /// The connection ended under a call.
    Lost,
    /// What was asked for cannot be.
    Invalid,
    /// The other side refused or failed.
    Failed,
}

impl TransportError {
    /// Returns an error of `kind`.
    pub fn new(kind: TransportErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Returns the class a task fails with.
    pub fn class(&self) -> ErrorClass {
        use TransportErrorKind as Kind;
        match self.kind {
            Kind::NameNotFound
            | Kind::Refused
            | Kind::TimedOut
            | Kind::HostKey
            | Kind::Login
            | Kind::Lost => ErrorClass::Unreachable,
            Kind::Invalid => ErrorClass::Invalid,
            Kind::Failed => ErrorClass::Operation,
        }
    }

    /// Whether trying again later may help.
    pub fn may_pass(&self) -> bool {
        use TransportErrorKind as Kind;
        match self.kind {
            Kind::NameNotFound | Kind::Refused | Kind::TimedOut | Kind::Lost => true,
            Kind::HostKey | Kind::Login | Kind::Invalid | Kind::Failed => false,
        }
    }
}

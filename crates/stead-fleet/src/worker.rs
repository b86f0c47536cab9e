//! A worker: keeps the machines of one computer as they are assigned.
//!
//! ```text
//!                     ┌── assignment (long poll) ──┐
//!   api::Master ◀─────┤                            ├──▶ agent ── look ──▶ observe: records, processes, drivers
//!                     └── report (heartbeat) ◀─────┘      │                    │
//!                                                         │        engine::fleet::reconcile
//!                                                         ▼                    │
//!                   fetch, root ◀── steps ── start, stop, replace, clean ◀─────┘
//! ```
//!
//! | file of `STATE/fleet` | what |
//! |---|---|
//! | `worker.lock` | one agent per state directory |
//! | `worker.session` | counts the agent's lives |
//! | `worker.lease` | until when singletons may run, in this boot |
//! | `assignment.json` | what was applied last |
//! | `instances/ID.ORD/record.json` | our mark, written before every act |
//! | `roots/HASH/` | the artifacts of a spec and what keeps them |
//! | `blobs/sha256/HEX`, `volumes/ID.ORD/NAME`, `machines/` | bits, data, machines |
//!
//! The agent may die at any moment: machines go on, and the next agent finds them by record, process and driver.

use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use stead_drivers::machine::StepWatch;
use stead_model::WorkerName;
use stead_model::fleet::services::WorkerFile;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::api::Master;
use crate::events::Events;
use crate::metrics::door;

mod act;
mod agent;
mod clock;
mod drivers;
mod facts;
mod fetch;
mod figures;
mod files;
mod logbook;
mod machine;
mod observe;
mod ready;
mod report;

/// What an agent is told.
#[derive(Clone)]
pub struct Settings {
    /// The state directory; the worker's files are in `fleet/` of it.
    pub state_dir: PathBuf,
    /// What `worker.yaml` says.
    pub file: WorkerFile,
    /// This program: it supervises sandboxes and keeps containers.
    pub program: PathBuf,
    /// Where programs are looked for.
    pub search_path: Option<OsString>,
    /// Where events are written, begun once the state directory is this agent's; none: nowhere.
    pub events: Option<Arc<Events>>,
    /// Told of every step of an act, before the next one begins.
    pub watch: StepWatch,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("state_dir", &self.state_dir).finish_non_exhaustive()
    }
}

impl Settings {
    /// Returns the settings of a worker that `file` describes.
    pub fn new(state_dir: impl Into<PathBuf>, file: WorkerFile, program: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            file,
            program: program.into(),
            search_path: None,
            events: None,
            watch: Arc::new(|_| {}),
        }
    }

    /// Begins to write events: nobody else does, now that the state directory is locked.
    fn begin_events(&self) -> Result<(), WorkerError> {
        let Some(events) = &self.events else { return Ok(()) };
        let path = events.directory();
        events.begin().map_err(|source| WorkerError::Files { path: path.to_owned(), source })
    }

    /// Returns what the worker is called: as its file says, else as the machine is called.
    ///
    /// # Errors
    /// If the machine's name is none of a worker.
    pub fn name(&self) -> Result<WorkerName, WorkerError> {
        if let Some(name) = &self.file.name {
            return Ok(name.clone());
        }
        let full = rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase();
        let short = full.split('.').next().unwrap_or_default();
        WorkerName::parse(short).map_err(|error| WorkerError::Name(error.to_string()))
    }
}

/// Why an agent does not run, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// Another agent has the state directory.
    #[error("locked: another worker agent uses {0}")]
    Locked(PathBuf),
    /// A file cannot be read or written.
    #[error("cannot use {}", path.display())]
    Files {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Nothing says what the worker is called.
    #[error("this machine's name is no name of a worker: {0}; set `name` in worker.yaml")]
    Name(String),
    /// The state directory is that of another worker, whose machines would be lost sight of.
    #[error(
        "{} is that of the worker {known}, not of {name}: call it {known}, or use another state directory",
        directory.display()
    )]
    Renamed {
        /// Which directory.
        directory: PathBuf,
        /// Whose it is.
        known: String,
        /// Who wants it.
        name: WorkerName,
    },
    /// Its figures cannot be shown where `worker.yaml` says.
    #[error("failed to listen at {address} (`observe` of worker.yaml)")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A driver cannot be what `worker.yaml` says.
    #[error("drivers: {0}")]
    Driver(String),
    /// Another agent with this worker's identity is there; this one changes nothing more.
    #[error("replaced: another agent took over this worker's identity")]
    Replaced,
}

/// Keeps this machine's instances as `master` assigns them, until `shutdown`: that leaves them running.
///
/// Needs a state directory of its own, a master that answers for this worker's name (the wire's client with the worker's
/// certificate, or any other [`Master`]), and a runtime with time and IO. An unreachable master is no error: what was
/// assigned last goes on.
///
/// # Errors
/// If the state directory is locked or cannot be used, or if another agent took over.
pub async fn run(
    settings: Settings,
    master: Arc<dyn Master>,
    shutdown: CancellationToken,
) -> Result<(), WorkerError> {
    let (address, events) = (settings.file.observe, settings.events.clone());
    let agent = agent::Agent::begin(settings, master)?;
    let listener = door::open(address, events.as_ref()).await;
    let listener = listener.map_err(|source| WorkerError::Listen { address, source })?;
    let figures = agent.figures();
    let mut visitors = JoinSet::new();
    visitors.spawn(door::serve(listener, Arc::new(move || figures.to_text())));
    agent.run(shutdown).await
}

/// Stops all instances of this worker, gracefully first; their records stay, so that the next agent starts them again if
/// they are still assigned.
///
/// # Errors
/// If an agent runs, or if something cannot be stopped: everything else is stopped all the same.
pub async fn stop_all(settings: Settings) -> Result<(), WorkerError> {
    act::stop_all(settings).await
}

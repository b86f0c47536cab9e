//! The edge to a place where roles run: this machine or another one, by the same calls.
//!
//! ```text
//!   driver ── Arc<dyn Agent> ─┬─ local:  a `stead supervise` child per role
//!                             └─ remote: an executor session ── the same child there
//! ```
//!
//! An agent starts roles, moves files and answers questions about its place. It decides nothing: what is started
//! when, and what its end means, is the run's business.

mod looks;

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use stead_model::plan::Digest;
use stead_model::report::Warning;
use stead_model::role::{
    ArtifactQuestion, FileStat, Found, Leftovers, Probe, ProbeAnswer, Program, ProgramQuestion, Readiness,
    RoleEvent, RoleOrder, RunWork, SiteAnswer, SiteAsk, StopReason,
};
use tokio::sync::{mpsc, watch};

use crate::operation::OpError;
use crate::transport::Source;

use looks::DriverLooks;
pub use looks::{look_before_start, taken, taken_fallback};

/// What is known of an agent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentAbout {
    /// Its system, such as `linux`.
    pub os: String,
    /// Its processor, such as `x86_64`.
    pub arch: String,
    /// The machine's own name.
    pub host: String,
    /// How long a question takes there and back.
    pub latency_ms: f64,
    /// Its clock less the driver's.
    pub clock_offset_ms: f64,
    /// Whether `stead` had to be brought there for this run.
    pub uploaded: bool,
    /// What a person should know of the connection.
    pub warnings: Vec<Warning>,
}

/// How it stands with the connection to an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// It is there; for this machine always.
    Up,
    /// It was lost and is sought until the lease ends; roles go on.
    Lost(String),
    /// It was not found within the lease: the roles there are stopped by themselves and their events have ended.
    Gone(String),
}

/// A place where roles run. Calls may be made at once.
///
/// Paths on the agent are text and absolute. A call that needs a connection fails with class `unreachable` once the
/// link is [`Link::Gone`]; before that it waits for it to come back.
#[async_trait::async_trait]
pub trait Agent: Send + Sync + fmt::Debug {
    /// Returns what is known of it.
    fn about(&self) -> &AgentAbout;

    /// Returns the hash of the `stead` that supervises there, as 64 hex digits.
    async fn stead_sha256(&self) -> Result<String, OpError>;

    /// Returns the state of the connection, to be watched.
    fn link(&self) -> watch::Receiver<Link>;

    /// Asks something of the place; the calls below do so by name.
    async fn ask_site(&self, ask: SiteAsk) -> Result<SiteAnswer, OpError>;

    /// Makes a fresh workdir for a role: `<agent workdir>/run-<run>-<tag>/<role>`; returns where.
    ///
    /// The first one of a run also removes what lost drivers left there for longer than a day.
    async fn make_workdir(&self, work: &RunWork, role: &str) -> Result<String, OpError> {
        let ask = SiteAsk::MakeWorkdir { work: work.clone(), role: role.to_owned() };
        let answer = self.ask_site(ask).await?;
        let SiteAnswer::Path { path } = answer else { return Err(out_of_turn(&answer)) };
        Ok(path)
    }

    /// Makes a directory that a manifest names, with its parents, unless it is there.
    async fn ensure_directory(&self, path: &str) -> Result<(), OpError> {
        self.ask_site(SiteAsk::EnsureDirectory { path: path.to_owned() }).await.map(drop)
    }

    /// Lets the run's workdirs stay for good: they are not taken for what a lost driver left.
    async fn keep_work(&self, work: &RunWork) -> Result<(), OpError> {
        self.ask_site(SiteAsk::KeepWork { work: work.clone() }).await.map(drop)
    }

    /// Removes everything the run has there: workdirs it made and logs that were spooled.
    async fn remove_work(&self, work: &RunWork) -> Result<(), OpError> {
        self.ask_site(SiteAsk::RemoveWork { work: work.clone() }).await.map(drop)
    }

    /// Writes a file, parents included, whole or not at all; its hash is taken on the agent. No mode: 0644.
    async fn put(&self, from: Source, to: &str, mode: Option<u32>) -> Result<Digest, OpError>;

    /// Reads a file into `to` on the driver, whole or not at all.
    async fn fetch(&self, from: &str, to: &Path) -> Result<Digest, OpError>;

    /// Returns the program a role would start; an error names program and `PATH`.
    async fn find_program(&self, question: &ProgramQuestion) -> Result<Program, OpError> {
        let answer = self.ask_site(SiteAsk::Program(question.clone())).await?;
        let SiteAnswer::Program(program) = answer else { return Err(out_of_turn(&answer)) };
        Ok(program)
    }

    /// Whether an address is one of the agent's.
    async fn has_address(&self, address: IpAddr) -> Result<bool, OpError> {
        let answer = self.ask_site(SiteAsk::HasAddress { address }).await?;
        let SiteAnswer::Is { yes } = answer else { return Err(out_of_turn(&answer)) };
        Ok(yes)
    }

    /// Returns what is at a path, links followed; with its hash if it is a file and `hash` says so.
    async fn stat(&self, path: &str, hash: bool) -> Result<Option<FileStat>, OpError> {
        let answer = self.ask_site(SiteAsk::Stat { path: path.to_owned(), hash }).await?;
        let SiteAnswer::Stat { found } = answer else { return Err(out_of_turn(&answer)) };
        Ok(found)
    }

    /// Looks once.
    async fn probe(&self, probe: &Probe) -> Result<ProbeAnswer, OpError>;

    /// Starts a role. Its output goes to `stdout.log` and `stderr.log` in `logs`, a directory of the driver that is
    /// there; both files are made (0600) at once and grow while it runs.
    async fn start(&self, order: RoleOrder, work: &RunWork, logs: &Path) -> Result<RunningRole, OpError>;

    /// Returns what fits the globs, sorted by path. Links are not followed.
    async fn artifacts(&self, question: &ArtifactQuestion) -> Result<Vec<Found>, OpError> {
        let answer = self.ask_site(SiteAsk::Artifacts(question.clone())).await?;
        let SiteAnswer::Artifacts { found } = answer else { return Err(out_of_turn(&answer)) };
        Ok(found)
    }

    /// Returns what a driver that was lost left, for `resume`.
    async fn leftovers(&self, work: &RunWork) -> Result<Leftovers, OpError> {
        let answer = self.ask_site(SiteAsk::Leftovers { work: work.clone() }).await?;
        let SiteAnswer::Leftovers(left) = answer else { return Err(out_of_turn(&answer)) };
        Ok(left)
    }

    /// Ends the connection. Roles that still run are stopped. Call it once, last.
    async fn close(&self);
}

/// Tells an agent's role to stop.
pub trait StopRole: Send + Sync + fmt::Debug {
    /// Asks it to stop by its stop rule; with `kill` at once. A role that has ended needs nothing. Never waits.
    fn stop(&self, reason: StopReason, kill: bool);
}

/// A started role. Dropping it does not stop it.
#[derive(Debug)]
pub struct RunningRole {
    events: mpsc::UnboundedReceiver<RoleEvent>,
    /// Tells it to stop. May be cloned and used from anywhere.
    pub stop: Arc<dyn StopRole>,
    from_driver: Option<DriverLooks>,
    /// What is wrong on this side.
    warnings: Option<mpsc::UnboundedReceiver<RoleEvent>>,
}

impl RunningRole {
    /// Returns the role that `events` tell of and `stop` stops.
    pub fn new(events: mpsc::UnboundedReceiver<RoleEvent>, stop: Arc<dyn StopRole>) -> Self {
        Self { events, stop, from_driver: None, warnings: None }
    }

    /// Returns the role with its readiness looked at from `driver`, the agent of this machine, where `ready` says so.
    pub fn looked_at_from(mut self, driver: Arc<dyn Agent>, ready: &Readiness, workdir: &str) -> Self {
        self.from_driver = DriverLooks::new(driver, ready, workdir);
        self
    }

    /// Returns what its supervisor tells next, in order and each once; nothing after the last event
    /// ([`RoleEvent::is_last`]). If there is nothing without one, the role is lost: with its connection, or because its
    /// supervisor was killed (then every process of it has been ended). Cancel safe.
    pub async fn next_event(&mut self) -> Option<RoleEvent> {
        loop {
            let event = tokio::select! {
                biased;
                event = warning(&mut self.warnings) => event,
                event = self.events.recv() => event?,
                event = look(&mut self.from_driver) => event,
            };
            if self.from_driver.as_mut().is_none_or(|looks| looks.lets_through(&event)) {
                return Some(event);
            }
        }
    }

    /// Returns the role with warnings of this side told as well.
    pub(crate) fn with_warnings(self, warnings: mpsc::UnboundedReceiver<RoleEvent>) -> Self {
        Self { warnings: Some(warnings), ..self }
    }
}

/// Returns the error of an answer that does not fit its question.
fn out_of_turn(answer: &SiteAnswer) -> OpError {
    OpError::operation(format!("an answer out of turn: {answer:?}"))
}

async fn warning(warnings: &mut Option<mpsc::UnboundedReceiver<RoleEvent>>) -> RoleEvent {
    if let Some(receiver) = warnings {
        if let Some(warning) = receiver.recv().await {
            return warning;
        }
        *warnings = None;
    }
    std::future::pending().await
}

async fn look(looks: &mut Option<DriverLooks>) -> RoleEvent {
    match looks {
        Some(looks) => looks.next_event().await,
        None => std::future::pending().await,
    }
}

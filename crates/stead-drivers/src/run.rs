//! The phases of `stead run`: what the tasks of its plan do.
//!
//! A plan of a run names roles; what phases share is handed over in memory, per run, as [`RunSurroundings`]. Without it
//! the operations refuse to act: they are no operations of plan files.
//!
//! ```text
//!  init, stage ──▶ agents, workdirs ┐
//!  R_start ──▶ Agent::start ──▶ watcher of the role ──▶ RunState ◀── waits of R_ready, R_done, until
//!                                       │                   ▲
//!                                       └── events ──▶ journal   link watchers: agent lost, agent back
//!  R_stop, collect, bundle, analyze, diff: after every outcome
//! ```

mod agents;
mod bundle;
mod collect;
mod compare;
mod ending;
mod phase;
mod places;
mod recall;
mod record;
mod stage;
mod start;
mod state;
mod stop;
mod waits;
mod watch;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use stead_bundle::KnownHashes;
use stead_model::bundle::{RoleMeta, RunMeta};
use stead_model::plan::Plan;
use stead_model::role::{RunWork, WorkTag};
use stead_model::run_plan::{RoleKind, RolePlan, RunPlan};
use stead_model::tail::last_lines;
use stead_model::time::Timestamp;
use stead_model::{ErrorClass, HostName, RunId};
use stead_runner::agent::Agent;
use stead_runner::operation::{OpContext, OpError, Registry};
use stead_runner::{Announcer, Canceller};
use tokio::sync::{OnceCell, watch as channel};
use tokio::task::JoinSet;

pub use agents::{AgentOpener, AgentWish, Opening};
pub use ending::{RunStopper, StopWish};
pub use record::{RunEnding, complete_meta};

use crate::together::all_of;
use state::RunState;

/// As much of a log is looked at for its last lines.
const LONGEST_TAIL: u64 = 64 << 10;

/// What the phases of one run share. `Debug` shows no values.
pub struct RunSurroundings {
    plan: Arc<Plan>,
    run: Arc<RunPlan>,
    opener: AgentOpener,
    secrets: BTreeMap<String, String>,
    announcer: Announcer,
    known: KnownHashes,
    state: RunState,
    /// The instance of the same role that starts before one of a task.
    earlier: BTreeMap<String, String>,
    agents: Mutex<BTreeMap<HostName, Arc<dyn Agent>>>,
    /// The agent of this machine, if looks from the driver need one that roles do not.
    driver: OnceCell<Arc<dyn Agent>>,
    /// What was found out about agents, for the record.
    facts: Mutex<BTreeMap<HostName, record::AgentFacts>>,
    /// Whether roles are to be killed instead of asked.
    kill: channel::Sender<bool>,
    /// Watchers of roles and connections, and starts under way.
    work: Mutex<JoinSet<()>>,
    /// Whether an earlier driver was lost and only what it left is gathered.
    afterwards: bool,
    began: Instant,
}

impl fmt::Debug for RunSurroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunSurroundings").field("roles", &self.run.start_order).finish_non_exhaustive()
    }
}

/// What a run is made of, besides its plan. `Debug` shows no values.
pub struct RunParts {
    /// Opens agents.
    pub opener: AgentOpener,
    /// The values of the plan's secrets.
    pub secrets: BTreeMap<String, String>,
    /// Adds events to the run.
    pub announcer: Announcer,
    /// Hashes that sealing need not compute again.
    pub known: KnownHashes,
    /// Whether an earlier driver of the run was lost: then nothing is started, and what it left is gathered.
    pub afterwards: bool,
}

impl fmt::Debug for RunParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.secrets.keys().collect();
        let parts = &mut f.debug_struct("RunParts");
        parts.field("secrets", &names).field("afterwards", &self.afterwards).finish_non_exhaustive()
    }
}

impl RunSurroundings {
    /// Returns the surroundings of a run of `plan`.
    ///
    /// # Errors
    /// If it is no plan of a run.
    pub fn new(plan: Arc<Plan>, parts: RunParts) -> Result<Arc<Self>, OpError> {
        let run = plan.run.clone().ok_or_else(|| OpError::permanent("the plan names no roles"))?;
        let RunParts { opener, secrets, announcer, known, afterwards } = parts;
        Ok(Arc::new(Self {
            plan,
            earlier: earlier_instances(&run),
            run,
            opener,
            secrets,
            announcer,
            known,
            state: RunState::default(),
            agents: Mutex::default(),
            driver: OnceCell::new(),
            facts: Mutex::default(),
            kill: channel::Sender::new(false),
            work: Mutex::default(),
            afterwards,
            began: Instant::now(),
        }))
    }

    /// Returns what stops the run.
    pub fn stopper(self: &Arc<Self>, canceller: Canceller) -> RunStopper {
        RunStopper::new(Arc::clone(self), canceller)
    }

    /// Returns what is known of the run's end.
    pub fn ending(&self) -> RunEnding {
        self.state.look(|state| RunEnding {
            ended_by: state.ended_by,
            failed_role: state.failure.as_ref().map(|failure| failure.role.clone()),
        })
    }

    /// Returns what the bundle says of every role.
    pub fn role_metas(&self) -> BTreeMap<String, RoleMeta> {
        self.state.look(|state| {
            let of = |(name, role): (&str, &RolePlan)| {
                (name.to_owned(), record::role_meta(name, role, state.roles.get(name)))
            };
            self.run.in_start_order().map(of).collect()
        })
    }

    /// Ends every connection; roles that still run are stopped. Nothing happens to those that ended already.
    pub async fn close(&self) {
        let agents = std::mem::take(&mut *self.agents.lock().unwrap_or_else(PoisonError::into_inner));
        let closing = agents.into_values().map(|agent| async move { agent.close().await });
        all_of(closing).await;
    }

    /// Ends every connection and everything that watched roles. Call it last.
    pub async fn end(&self) {
        self.close().await;
        self.work.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
    }

    fn role(&self, name: &str) -> Result<&RolePlan, OpError> {
        let role = self.run.roles.get(name);
        role.ok_or_else(|| OpError::invalid(format!("the run has no role `{name}`")))
    }

    fn agent(&self, id: &HostName) -> Option<Arc<dyn Agent>> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    fn agent_of(&self, role: &RolePlan) -> Result<Arc<dyn Agent>, OpError> {
        let agent = self.agent(&role.agent_id);
        agent.ok_or_else(|| OpError::operation(format!("agent `{}` is not connected", role.agent_id)))
    }

    /// Has `work` done whatever becomes of the phase that began it; it ends with the run at the latest.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.work.lock().unwrap_or_else(PoisonError::into_inner).spawn(work);
    }
}

/// Returns for each instance of a task the one of its role that starts before it.
fn earlier_instances(run: &RunPlan) -> BTreeMap<String, String> {
    let tasks = run.in_start_order().filter(|(_, role)| role.kind == RoleKind::Task);
    let mut instances: Vec<(&str, u32, &str)> =
        tasks.map(|(name, role)| (role.role.as_str(), role.index, name)).collect();
    instances.sort_unstable();
    let pairs = instances.windows(2).filter(|pair| pair[0].0 == pair[1].0);
    pairs.map(|pair| (pair[1].2.to_owned(), pair[0].2.to_owned())).collect()
}

/// Adds the operations of phases; they act with `surroundings`.
pub fn add_to(registry: &mut Registry, surroundings: &Arc<RunSurroundings>) {
    phase::add_to(registry, surroundings);
}

/// Where a run is recorded, and as what.
#[derive(Clone, Debug)]
struct Here {
    run_id: RunId,
    bundle: PathBuf,
}

impl Here {
    /// Returns where the phase of `cx` is recorded.
    fn of(cx: &OpContext) -> Result<Self, OpError> {
        let (Some(run_id), Some(bundle)) = (&cx.run_id, &cx.bundle) else {
            return Err(OpError::permanent("a run of roles is always recorded"));
        };
        let bundle =
            std::path::absolute(bundle).map_err(|error| OpError::io("finding the bundle", &error))?;
        Ok(Self { run_id: run_id.clone(), bundle })
    }

    /// Returns the directory of `role`.
    fn role(&self, role: &str) -> PathBuf {
        self.bundle.join("roles").join(role)
    }

    /// Returns what is recorded of the run so far.
    fn meta(&self) -> Result<RunMeta, OpError> {
        stead_bundle::load_meta(&self.bundle)
            .map_err(|error| OpError::operation(format!("cannot read the run's metadata: {error}")))
    }

    /// Returns when the run began.
    fn started_at(&self) -> Result<Timestamp, OpError> {
        self.meta().map(|meta| meta.started_at)
    }

    /// Returns the last lines that a role wrote to its standard error.
    fn last_stderr(&self, role: &str) -> Vec<String> {
        let path = self.role(role).join("stderr.log");
        let Ok(mut file) = File::open(path) else { return Vec::new() };
        // Lines may be long; what does not fit is no line to read.
        let from = file.metadata().map_or(0, |found| found.len().saturating_sub(LONGEST_TAIL));
        let mut tail = Vec::new();
        let read =
            file.seek(SeekFrom::Start(from)).and_then(|_| file.take(LONGEST_TAIL).read_to_end(&mut tail));
        if read.is_err() {
            return Vec::new();
        }
        let text = String::from_utf8_lossy(&tail);
        last_lines(&text).into_iter().map(str::to_owned).collect()
    }

    /// Returns what the run is called on its agents: the same for a later driver of the run.
    fn work(&self) -> Result<RunWork, OpError> {
        let meta = self.meta()?;
        let told = format!("{} {} {}", meta.driver_host, meta.started_at, meta.plan_hash);
        let [a, b, c, d, ..] = stead_model::plan::Digest::of(told.as_bytes()).0;
        Ok(RunWork { run: self.run_id.clone(), tag: WorkTag::new([a, b, c, d]) })
    }
}

/// Makes a directory of the bundle.
fn make_directory(path: &Path) -> Result<(), OpError> {
    stead_bundle::make_directory(path)
        .map_err(|error| OpError::io(format_args!("making {}", path.display()), &error.source))
}

/// Fails with all problems in one, if there are any.
fn in_one(problems: Vec<OpError>) -> Result<(), OpError> {
    let Some(first) = problems.first() else { return Ok(()) };
    let lost = problems.iter().any(|problem| problem.class == ErrorClass::Unreachable);
    let class = if lost { ErrorClass::Unreachable } else { first.class };
    let messages: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
    Err(OpError::new(class, messages.join("; ")))
}

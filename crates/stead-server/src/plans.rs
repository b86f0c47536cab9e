//! Submitted plans: their runs, and the triggers that start more of them.
//!
//! ```text
//!  POST /v1/plans ──▶ plans/RUN on the disk ──▶ stead plan keep (one process per run) ──▶ STATE/runs/RUN
//!  triggers ────────▶        │                            ▲
//!                            └── one loop starts, watches ┘
//! ```
//! A run is a process of its own: it goes on without the server, and a server that starts takes it up again. One that was
//! killed is started again and resumes. What the loop does is written down before it counts: a trigger that fired has its
//! run on the disk, and no other run ever has its id.

mod agents;
mod armed;
mod fire;
mod hook;
mod kept;
mod ledger;
mod work;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use stead_engine::compile::{Catalogue, CompiledPlan, Explicit};
use stead_model::diagnostic::Place;
use stead_model::node::wire::{WireCode, WireError};
use stead_model::plan::{Digest, Plan, PlanRun, PlanRunState, PlanSubmission, TaskIndex};
use stead_model::time::Timestamp;
use stead_model::{Diagnostics, PlanName, RunId};
use stead_runner::clock;
use stead_runner::journal::Lines;
use tokio::sync::{Notify, Semaphore, watch};

use agents::Agents;
use armed::Armed;
pub(crate) use fire::Fired;
pub(crate) use hook::{is_signed as hook_is_signed, payload_of};
pub use kept::{PlanEnd, PlanHead, TakenPlan};
use ledger::Ledger;

use crate::place::ServerPlace;

/// Runs that have not ended.
const MOST_UNFINISHED: usize = 1_000;
/// How often a journal is looked at that somebody waits for.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// The most bytes of events in one answer; one event may be longer.
const MOST_EVENTS: usize = 1 << 20;
/// The most characters of why a run did not go well in a list of runs: of so many runs, one answer has room for all.
const MOST_OF_ERROR: usize = 500;
/// How many places in journals are remembered for who asks for more.
const MOST_PLACES: usize = 1_000;
/// Before the id of a trigger that nobody can ask for again: the server made it up.
const ONCE: &str = "once:";

/// Submitted plans.
pub(crate) struct Plans {
    runs_below: PathBuf,
    armed_below: PathBuf,
    directory: PathBuf,
    place: ServerPlace,
    program: PathBuf,
    environment: Arc<BTreeMap<String, String>>,
    catalogue: Arc<Catalogue>,
    inner: Mutex<Inner>,
    ledgers: Mutex<Ledgers>,
    /// One submission or trigger at a time is put on the disk.
    submitting: tokio::sync::Mutex<()>,
    /// Room for bodies that nobody answers for yet.
    unproven: Semaphore,
    /// Where in its journal the event of a run ends that somebody was told last.
    places: Mutex<HashMap<(RunId, u64), u64>>,
    wake: Notify,
    newly_armed: Notify,
    /// What on the disk cannot be used.
    problems: Vec<String>,
}

#[derive(Default)]
struct Inner {
    runs: BTreeMap<RunId, Run>,
    /// Idempotency keys.
    keys: HashMap<String, (RunId, Digest)>,
    /// Ids of triggers that fired.
    fired: HashMap<String, RunId>,
    /// Those without a run, or whose run is not kept any more.
    spent: HashSet<String>,
    armed: BTreeMap<PlanName, Armed>,
}

/// What is remembered when its run is not.
struct Ledgers {
    /// Ids of triggers.
    spent: Ledger,
    /// Idempotency keys, each with the plan's hash and the run.
    keys: Ledger,
}

struct Run {
    /// Without what may be large.
    head: PlanHead,
    end: Option<PlanEnd>,
    /// A process of this server works on it.
    is_own: bool,
    /// That process was told to stop.
    is_told: bool,
    /// How often its process was killed.
    killed: u32,
    /// How often in a row it could not be worked on, and until when it is left alone for that.
    troubles: u32,
    rests_until: Option<Instant>,
    /// Why it could not be worked on.
    trouble: Option<String>,
}

impl Run {
    const fn new(head: PlanHead, end: Option<PlanEnd>) -> Self {
        Self {
            head,
            end,
            is_own: false,
            is_told: false,
            killed: 0,
            troubles: 0,
            rests_until: None,
            trouble: None,
        }
    }

    fn is_unfinished_of(&self, plan: &PlanName) -> bool {
        self.end.is_none() && self.head.plan == *plan
    }
}

/// Why a plan is not taken.
pub(crate) enum NotTaken {
    /// It is invalid.
    Invalid(Diagnostics),
    /// Anything else.
    Refused(WireError),
}

impl From<WireError> for NotTaken {
    fn from(error: WireError) -> Self {
        Self::Refused(error)
    }
}

/// What is there of a run's events.
pub(crate) enum Events {
    /// Lines; none if there are none more.
    Lines(Vec<u8>),
    /// The server stops: who asked should ask the next one.
    Stopping,
}

/// Checks a compiled plan: one that was tampered with is no plan.
fn check(plan: Plan, catalogue: &Catalogue) -> Result<CompiledPlan, Diagnostics> {
    let idempotent = plan.indexed().map(|(index, task)| (index, task.settings.idempotent)).collect();
    let whole = |_: TaskIndex, path: &str| Place::Named(path.to_owned());
    stead_engine::compile::check(
        plan,
        &Explicit { idempotent, ..Explicit::default() },
        catalogue,
        &whole,
        Diagnostics::default(),
    )
}

/// Returns what of the environment is text.
fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

fn unkept(_: io::Error) -> WireError {
    WireError::new(WireCode::E500, "it cannot be kept: look at the disk of the server")
}

fn cut_off(_: tokio::task::JoinError) -> WireError {
    WireError::new(WireCode::E500, "it was cut off")
}

impl Plans {
    /// Opens the plans of a server.
    pub(crate) fn open(place: &ServerPlace, port: u16, program: PathBuf) -> io::Result<Self> {
        let directory = place.plans(port);
        let (runs_below, armed_below) = (directory.join("runs"), directory.join("armed"));
        for below in [&runs_below, &armed_below] {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(below)?;
        }
        let (spent, spent_ids) = Ledger::open(&directory.join("spent"))?;
        let (keys, known_keys) = Ledger::open(&directory.join("keys"))?;
        let (armed, mut problems) = Armed::all(&armed_below)?;
        let mut inner = Inner { armed, spent: spent_ids.into_iter().collect(), ..Inner::default() };
        inner.keys.extend(known_keys.iter().filter_map(|line| known_key(line)));
        for (head, end) in kept::all(&runs_below, &mut problems)? {
            inner.take_in(Run::new(head, end));
        }
        problems.extend(place.plans_of_others(port));
        Ok(Self {
            runs_below,
            armed_below,
            directory,
            place: place.clone(),
            program,
            environment: Arc::new(environment()),
            catalogue: Arc::new(Catalogue::new(stead_drivers::Drivers::standard().descriptors())),
            inner: Mutex::new(inner),
            ledgers: Mutex::new(Ledgers { spent, keys }),
            submitting: tokio::sync::Mutex::new(()),
            unproven: hook::unproven(),
            places: Mutex::default(),
            wake: Notify::new(),
            newly_armed: Notify::new(),
            problems,
        })
    }

    /// Returns what on the disk cannot be used.
    pub(crate) fn problems(&self) -> &[String] {
        &self.problems
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn home(&self, run: &RunId) -> PathBuf {
        self.runs_below.join(run.as_str())
    }

    fn bundle(&self, run: &RunId) -> PathBuf {
        stead_bundle::runs_directory(&self.place.state).join(run.as_str())
    }

    /// Takes a submitted plan: its run is on the disk when this returns. A plan with triggers is kept by its name.
    pub(crate) async fn submit(&self, submission: PlanSubmission, by: &str) -> Result<RunId, NotTaken> {
        if let Some(run) = self.run_of_key(&submission)? {
            return Ok(run);
        }
        let asking = submission.plan.asking_tasks();
        if !asking.is_empty() && !submission.yes {
            let names: Vec<&str> = asking.iter().map(|name| name.as_str()).collect();
            let message = format!("nobody is there to be asked: {}; submit with `yes`", names.join(", "));
            return Err(WireError::new(WireCode::E400, message).into());
        }
        let needs_source = submission.plan.triggers.iter().any(|trigger| !trigger.vars.is_empty());
        if needs_source && submission.source.is_none() {
            let message = "variables of triggers need the plan's source";
            return Err(WireError::new(WireCode::E400, message).into());
        }
        let (plan, catalogue) = (submission.plan.clone(), Arc::clone(&self.catalogue));
        let checking = tokio::task::spawn_blocking(move || check(plan, &catalogue));
        let compiled = checking.await.map_err(cut_off)?.map_err(NotTaken::Invalid)?;
        if compiled.hash != submission.plan_hash {
            let message = format!("the plan's hash is {}, not {}", compiled.hash, submission.plan_hash);
            return Err(WireError::new(WireCode::E400, message).into());
        }
        let _one_at_a_time = self.submitting.lock().await;
        // It may have come twice at once.
        if let Some(run) = self.run_of_key(&submission)? {
            return Ok(run);
        }
        self.check_hooks(&submission.plan)?;
        self.check_room()?;
        let now = clock::now();
        let head = PlanHead {
            run_id: clock::new_run_id(now),
            plan: submission.plan.name.clone(),
            plan_hash: submission.plan_hash,
            by: by.to_owned(),
            created_at: now,
            trigger: None,
            key: Some(submission.idempotency_key.clone()),
            waits: false,
            yes: submission.yes,
            vars: submission.vars.clone(),
        };
        let run = head.run_id.clone();
        // First: with the run the key is taken, and who asks again with it is told that all is done.
        self.arm(submission.clone(), by, now).map_err(unkept)?;
        self.begin(head, &submission.plan, submission.source.as_deref())?;
        self.wake.notify_one();
        self.newly_armed.notify_one();
        Ok(run)
    }

    /// Returns the run that was submitted with the key of a submission, if there is one.
    fn run_of_key(&self, submission: &PlanSubmission) -> Result<Option<RunId>, WireError> {
        match self.lock().keys.get(&submission.idempotency_key) {
            None => Ok(None),
            Some((run, hash)) if *hash == submission.plan_hash => Ok(Some(run.clone())),
            Some((run, _)) => {
                let message = format!("this key is that of run {run}, of another plan");
                Err(WireError::new(WireCode::E401, message))
            }
        }
    }

    /// Refuses a plan with a hook that is another's: only one of them could have its requests.
    fn check_hooks(&self, plan: &Plan) -> Result<(), WireError> {
        let inner = self.lock();
        let others = || inner.armed.values().filter(|armed| *armed.name() != plan.name);
        let taken =
            armed::hooks(plan).find_map(|path| Some((path, others().find(|it| it.hook(path).is_some())?)));
        let Some((path, other)) = taken else { return Ok(()) };
        let message = format!("the hook `{path}` is that of the plan `{}`", other.name());
        Err(WireError::new(WireCode::E401, message))
    }

    fn check_room(&self) -> Result<(), WireError> {
        let unfinished = self.lock().runs.values().filter(|run| run.end.is_none()).count();
        if unfinished >= MOST_UNFINISHED {
            return Err(WireError::new(WireCode::E105, "too many runs have not ended"));
        }
        Ok(())
    }

    /// Puts a run on the disk and remembers it.
    fn begin(&self, head: PlanHead, plan: &Plan, source: Option<&str>) -> Result<(), WireError> {
        self.check_room()?;
        kept::create(&self.runs_below, &head, plan, source).map_err(unkept)?;
        self.lock().take_in(Run::new(head.into_light(), None));
        Ok(())
    }

    /// Keeps a plan for its triggers, or lets go of one that has none any more.
    fn arm(&self, submission: PlanSubmission, by: &str, now: Timestamp) -> io::Result<()> {
        let name = submission.plan.name.clone();
        if submission.plan.triggers.is_empty() {
            if self.lock().armed.contains_key(&name) {
                kept::remove(&self.armed_below.join(name.as_str()))?;
                self.lock().armed.remove(&name);
            }
            return Ok(());
        }
        let armed = Armed::new(submission, by, now, self.lock().armed.get(&name));
        armed.save(&self.armed_below)?;
        self.lock().armed.insert(name, armed);
        Ok(())
    }

    /// Returns all runs, oldest first, without their reports and what their triggers brought.
    pub(crate) fn runs(&self) -> Vec<PlanRun> {
        let cut = |mut error: String| {
            if let Some((end, _)) = error.char_indices().nth(MOST_OF_ERROR) {
                error.truncate(end);
                error.push('…');
            }
            error
        };
        let inner = self.lock();
        let runs = inner.runs.values().map(|run| self.described(run));
        runs.map(|run| PlanRun { error: run.error.map(cut), ..run }).collect()
    }

    fn described(&self, run: &Run) -> PlanRun {
        let head = run.head.clone();
        // One of whom that cannot be found out is not said to wait.
        let is_running = || run.is_own || !matches!(kept::holder(&self.home(&head.run_id)), Ok(None));
        let state = match &run.end {
            Some(_) => PlanRunState::Finished,
            None if is_running() => PlanRunState::Running,
            None => PlanRunState::Queued,
        };
        let end = run.end.as_ref();
        PlanRun {
            state,
            exit_code: end.map(|end| end.exit_code),
            error: end.map_or_else(|| run.trouble.clone(), |end| end.error.clone()),
            report: None,
            run_id: head.run_id,
            plan: head.plan,
            plan_hash: head.plan_hash,
            by: head.by,
            created_at: head.created_at,
            trigger: head.trigger,
        }
    }

    /// Returns a run, with what its trigger brought, and with its report if it has ended.
    pub(crate) fn run(&self, id: &RunId) -> Result<PlanRun, WireError> {
        let mut run = self.known(id, |run| self.described(run))?;
        let home = self.home(id);
        if run.trigger.is_some()
            && let Ok(head) = kept::head(&home)
        {
            run.trigger = head.trigger;
        }
        if run.state == PlanRunState::Finished {
            run.report = kept::report(&home, &self.bundle(id));
        }
        Ok(run)
    }

    fn known<T>(&self, id: &RunId, look: impl FnOnce(&mut Run) -> T) -> Result<T, WireError> {
        let mut inner = self.lock();
        let run = inner.runs.get_mut(id).map(look);
        run.ok_or_else(|| WireError::new(WireCode::E200, format!("there is no run {id} of a submitted plan")))
    }

    /// Stops a run as a first signal does; one that waits never begins. It is stopped also if this server, or who works on the
    /// run, is killed right after this returns.
    pub(crate) async fn cancel(&self, id: &RunId) -> Result<(), WireError> {
        let (has_ended, is_told) = self.known(id, |run| (run.end.is_some(), run.is_told))?;
        if has_ended {
            return Err(WireError::new(WireCode::E401, format!("run {id} has ended")));
        }
        let (home, bundle) = (self.home(id), self.bundle(id));
        let cancelling = tokio::task::spawn_blocking(move || kept::cancel(&home, &bundle, is_told));
        let end = cancelling.await.map_err(cut_off)?.map_err(unkept)?;
        self.known(id, |run| {
            run.is_told = true;
            run.rests_until = None;
            run.end = run.end.take().or(end);
        })?;
        self.wake.notify_one();
        Ok(())
    }

    /// Returns events of a run after the number `after`, a line each; waits for one, unless the run has ended.
    pub(crate) async fn events(
        &self,
        id: &RunId,
        after: u64,
        wait: Duration,
        mut stopping: watch::Receiver<bool>,
    ) -> Result<Events, WireError> {
        let deadline = tokio::time::Instant::now() + wait;
        let offset = self.places().get(&(id.clone(), after)).copied().unwrap_or_default();
        let mut journal = Lines::new(self.bundle(id).join(stead_bundle::EVENTS), after, offset);
        loop {
            // Asked first: what was written until then is read.
            let has_ended = self.known(id, |run| run.end.is_some())?;
            let reading = tokio::task::spawn_blocking(move || (journal.next(MOST_EVENTS), journal));
            let (read, place) = reading.await.map_err(cut_off)?;
            journal = place;
            // Before it begins there is none.
            let lines = read.unwrap_or_default();
            if !lines.is_empty() {
                let (last, offset) = journal.place();
                let mut places = self.places();
                if places.len() >= MOST_PLACES {
                    places.clear();
                }
                places.remove(&(id.clone(), after));
                places.insert((id.clone(), last), offset);
            }
            if !lines.is_empty() || has_ended || tokio::time::Instant::now() >= deadline {
                return Ok(Events::Lines(lines));
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_AGAIN) => {}
                _ = stopping.wait_for(|stopping| *stopping) => return Ok(Events::Stopping),
            }
        }
    }

    fn places(&self) -> MutexGuard<'_, HashMap<(RunId, u64), u64>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn take_in(&mut self, run: Run) {
        let id = run.head.run_id.clone();
        if let Some(key) = &run.head.key {
            self.keys.insert(key.clone(), (id.clone(), run.head.plan_hash));
        }
        if let Some(trigger) = run.head.trigger_id() {
            self.fired.insert(trigger.to_owned(), id.clone());
            // Also if there was no time left to write it down.
            let mut parts = trigger.splitn(4, ':').skip(1);
            if let (Some(_), Some(name)) = (parts.next(), parts.next())
                && let Some(armed) = self.armed.get_mut(&run.head.plan)
            {
                armed.mark_started(name, run.head.created_at);
            }
        }
        self.runs.insert(id, run);
    }

    /// Forgets a run, but neither its key nor the id of its trigger.
    fn let_go(&mut self, head: &PlanHead) {
        self.runs.remove(&head.run_id);
        if let Some(id) = head.trigger_id() {
            self.fired.remove(id);
        }
    }
}

/// Returns a line of the ledger of keys.
fn key_line(key: &str, hash: Digest, run: &RunId) -> String {
    format!("{key} {hash} {run}")
}

/// Returns the key, and what it stands for, that a line of the ledger is.
fn known_key(line: &str) -> Option<(String, (RunId, Digest))> {
    let mut parts = line.split(' ');
    let (key, hash, run) = (parts.next()?, parts.next()?, parts.next()?);
    Some((key.to_owned(), (RunId::parse(run).ok()?, Digest::parse(hash)?)))
}

//! Running plans: what the library's users and the command line call.

mod directory;
mod started;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use stead_bundle::{ArchiveFormat, Holder, KnownHashes, SigningKey};
use stead_engine::expr::{Names, RunScope};
use stead_engine::run::{Now, Run, RunOptions, Turn};
use stead_engine::target::TargetExpr;
use stead_model::bundle::{PlanMeta, RunMeta};
use stead_model::event::{Event, EventKind, Mode, RunKind};
use stead_model::inventory::Inventory;
use stead_model::plan::{Plan, TaskIndex, Undo};
use stead_model::report::{ErrorRow, Report, Warning};
use stead_model::steps::StepsMeta;
use stead_model::time::Timestamp;
use stead_model::{Effect, ErrorClass, ExitCode, HostName, RunId, RunStatus, TaskName};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::announce::Announcer;
use crate::author::CheckedPlan;
use crate::cancel::Canceller;
use crate::clock;
use crate::dispatcher::{Answer, CHANNEL, Dispatcher, Durability};
use crate::executor::facts::Facts;
use crate::executor::{Executor, HostTable, OpenStreams};
use crate::hosts::InventoryHosts;
use crate::journal::Journal;
use crate::lock::{self, HostLockError, HostLocks, Lockable, RunLocks};
use crate::observe::Observer;
use crate::operation::{Registry, UndoStore, base_places};
use crate::record::{CompleteMeta, Recording, Taken, chain};
use crate::redact::Secret;
use crate::remote::{Binaries, HostPool, PoolSettings, Reach};
use crate::secrets::{self, Secrets};
use crate::warner::Warner;

pub(crate) use started::Started;

/// Where a plan came from, for its run's metadata.
#[derive(Clone, Debug, Default)]
pub struct Provenance {
    /// Its metadata.
    pub meta: PlanMeta,
    /// What a run of kind `steps` adds to it.
    pub steps: Option<Box<StepsMeta>>,
    /// The files it was made of, by their name in the bundle (`plan.yaml`).
    pub sources: Vec<(String, Vec<u8>)>,
}

/// Adds what a front door knows to a report before it is written.
pub(crate) type Complete = Box<dyn FnOnce(&mut Report) + Send>;

/// Makes the files a plan was made of that name the run.
type SourcesOf = Box<dyn Fn(&RunId) -> Vec<(String, Vec<u8>)> + Send>;

/// A directory that runs are recorded right below.
struct BundleDir {
    path: PathBuf,
    taken: Taken,
}

/// Walks plans.
pub struct Runner {
    pub(crate) registry: Registry,
    pub(crate) state_dir: Option<PathBuf>,
    pub(crate) lock_dir: Option<PathBuf>,
    pub(crate) observers: Vec<Box<dyn Observer>>,
    pub(crate) canceller: Canceller,
    pub(crate) answer: Option<Answer>,
    pub(crate) inventory: Inventory,
    pub(crate) limit: Vec<TargetExpr>,
    pub(crate) environment: Option<BTreeMap<String, String>>,
    pub(crate) durability: Durability,
    pub(crate) wait_lock: Option<Duration>,
    pub(crate) parents: Arc<[RunId]>,
    pub(crate) provenance: Provenance,
    pub(crate) undo_base: Option<PathBuf>,
    pub(crate) kind: RunKind,
    pub(crate) run_id: Option<RunId>,
    pub(crate) parallel: Option<u32>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) not_selected: BTreeSet<TaskIndex>,
    pub(crate) warnings: Vec<Warning>,
    /// What an earlier segment of a resumed run found out about hosts.
    pub(crate) journaled_facts: Vec<(HostName, serde_json::Value)>,
    pub(crate) reach: Option<Reach>,
    pub(crate) warner: Warner,
    /// Further secrets to mask, in every form.
    masked: Vec<Secret>,
    /// A state directory and the name that is locked there instead of hosts.
    named_lock: Option<(PathBuf, String)>,
    pub(crate) complete: Option<Complete>,
    pub(crate) complete_meta: Option<CompleteMeta>,
    bundle_dir: Option<BundleDir>,
    sources_of: Option<SourcesOf>,
    known_hashes: KnownHashes,
    signing: Option<SigningKey>,
    archive: Option<ArchiveFormat>,
    announcer: Announcer,
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner").field("state_dir", &self.state_dir).finish_non_exhaustive()
    }
}

impl Runner {
    /// Returns a runner that knows the operations of `registry`. It records nothing and takes no lock.
    pub fn new(registry: Registry) -> Self {
        Self {
            registry,
            state_dir: None,
            lock_dir: None,
            observers: Vec::new(),
            canceller: Canceller::new(),
            answer: None,
            inventory: Inventory::default(),
            limit: Vec::new(),
            environment: None,
            durability: Durability::default(),
            wait_lock: None,
            parents: Arc::default(),
            provenance: Provenance::default(),
            undo_base: None,
            kind: RunKind::Plan,
            run_id: None,
            parallel: None,
            timeout: None,
            not_selected: BTreeSet::new(),
            warnings: Vec::new(),
            journaled_facts: Vec::new(),
            reach: None,
            warner: Warner::default(),
            masked: Vec::new(),
            named_lock: None,
            complete: None,
            complete_meta: None,
            bundle_dir: None,
            sources_of: None,
            known_hashes: KnownHashes::default(),
            signing: None,
            archive: None,
            announcer: Announcer::default(),
        }
    }

    /// Returns what adds events to the run while it goes on.
    pub fn announcer(&self) -> Announcer {
        self.announcer.clone()
    }

    /// Returns the hashes that need not be computed again when the run is sealed.
    pub fn known_hashes(&self) -> KnownHashes {
        self.known_hashes.clone()
    }

    /// Returns what adds warnings to the run, also while it goes on.
    pub fn warner(&self) -> Warner {
        self.warner.clone()
    }

    /// Sets the way to other machines. Without it only operations on this one can be carried out.
    pub fn reach(mut self, reach: Reach) -> Self {
        self.reach = Some(reach);
        self
    }

    /// Records runs in the state directory `dir` and locks their targets there.
    pub fn record_in(mut self, dir: impl Into<PathBuf>) -> Self {
        self.state_dir = Some(dir.into());
        self
    }

    /// Records runs right below `dir` and locks nothing. `taken` says what happens if the run's id is taken.
    pub fn record_below(mut self, dir: impl Into<PathBuf>, taken: Taken) -> Self {
        self.bundle_dir = Some(BundleDir { path: dir.into(), taken });
        self
    }

    /// Adds files to the bundle's sources that name the run, whose id is known only when its directory is made.
    pub fn sources_of(mut self, sources: impl Fn(&RunId) -> Vec<(String, Vec<u8>)> + Send + 'static) -> Self {
        self.sources_of = Some(Box::new(sources));
        self
    }

    /// Signs the bundle when it is sealed.
    pub fn sign(mut self, key: SigningKey) -> Self {
        self.signing = Some(key);
        self
    }

    /// Replaces the bundle's directory by an archive when everything is done and the archive has verified.
    pub fn archive(mut self, format: ArchiveFormat) -> Self {
        self.archive = Some(format);
        self
    }

    /// Locks targets in the state directory `dir`, also if nothing is recorded.
    pub fn lock_in(mut self, dir: impl Into<PathBuf>) -> Self {
        self.lock_dir = Some(dir.into());
        self
    }

    /// Locks `name` in the state directory `dir`, whether or not the run is recorded there, instead of hosts.
    pub fn lock_named(mut self, dir: impl Into<PathBuf>, name: impl Into<String>) -> Self {
        self.named_lock = Some((dir.into(), name.into()));
        self
    }

    /// Masks further secrets, as they are and in base64, in everything the run records and shows.
    pub fn mask(mut self, secrets: impl IntoIterator<Item = String>) -> Self {
        self.masked.extend(secrets.into_iter().flat_map(|secret| secrets::forms_of(&secret)));
        self
    }

    /// Adds what a front door knows to the report, before it is written and returned.
    pub fn complete_report(mut self, complete: impl FnOnce(&mut Report) + Send + 'static) -> Self {
        self.complete = Some(Box::new(complete));
        self
    }

    /// Adds what a front door knows to `run_meta.json` when the run has ended.
    pub fn complete_meta(mut self, complete: impl FnOnce(&Report, &mut RunMeta) + Send + 'static) -> Self {
        self.complete_meta = Some(Box::new(complete));
        self
    }

    /// Adds a reader of the run's events, called in event order.
    pub fn observe(mut self, observer: impl Observer + 'static) -> Self {
        self.observers.push(Box::new(observer));
        self
    }

    /// Returns what stops the run.
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }

    /// Sets who answers the questions of tasks with `confirm`. Without it such a plan is refused.
    pub fn answer(
        mut self,
        answer: impl Fn(&stead_model::TaskName, &str) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.answer = Some(Arc::new(answer));
        self
    }

    /// Sets the hosts there are, besides `local`.
    pub fn inventory(mut self, inventory: Inventory) -> Self {
        self.inventory = inventory;
        self
    }

    /// Cuts every target down to these hosts.
    pub fn limit(mut self, limit: Vec<TargetExpr>) -> Self {
        self.limit = limit;
        self
    }

    /// Sets the environment that secrets are read from, instead of the process's own.
    pub fn environment(mut self, environment: BTreeMap<String, String>) -> Self {
        self.environment = Some(environment);
        self
    }

    /// Sets when results must be on the disk.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Waits so long for targets that other runs hold.
    pub fn wait_lock(mut self, wait: Duration) -> Self {
        self.wait_lock = Some(wait);
        self
    }

    /// Sets the runs that this one was started by, nearest first (`STEAD_RUN_ID`, then `STEAD_PARENT_RUNS`): their locks do
    /// not block it.
    pub fn parent_runs(mut self, runs: impl Into<Arc<[RunId]>>) -> Self {
        self.parents = runs.into();
        self
    }

    /// Sets where the plan came from.
    pub fn provenance(mut self, provenance: Provenance) -> Self {
        self.provenance = provenance;
        self
    }

    /// Sets the base directory below which copies for `undo: auto` are kept, instead of this machine's own.
    pub fn keep_undo_in(mut self, base: impl Into<PathBuf>) -> Self {
        self.undo_base = Some(base.into());
        self
    }

    fn undo_places(&self) -> Arc<[PathBuf]> {
        match &self.undo_base {
            Some(base) => Arc::from([base.clone()]),
            None => base_places(rustix::process::geteuid().as_raw(), &self.environment_in_use()).into(),
        }
    }

    /// Returns the environment that was set, or the process's own.
    fn environment_in_use(&self) -> Cow<'_, BTreeMap<String, String>> {
        match &self.environment {
            Some(environment) => Cow::Borrowed(environment),
            None => {
                let pairs = std::env::vars_os();
                let pairs = pairs
                    .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
                Cow::Owned(pairs.collect())
            }
        }
    }

    /// Sets which front door the run came through.
    pub fn kind(mut self, kind: RunKind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets the run's id instead of making one.
    pub fn run_id(mut self, run_id: RunId) -> Self {
        self.run_id = Some(run_id);
        self
    }

    /// Sets how many attempts run at once, over the plan's own limit.
    pub fn parallel(mut self, parallel: u32) -> Self {
        self.parallel = Some(parallel);
        self
    }

    /// Sets the limit of the main part, over the plan's own.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Leaves tasks out: they are `skipped`, cause `not_selected`.
    pub fn leave_out(mut self, tasks: BTreeSet<TaskIndex>) -> Self {
        self.not_selected = tasks;
        self
    }

    /// Adds a warning to the run's report.
    pub fn warn(mut self, code: impl Into<String>, text: impl Into<String>) -> Self {
        self.warnings.push(Warning::new(code, text));
        self
    }

    /// Adds a warning about a role of the run.
    pub fn warn_of(mut self, code: impl Into<String>, text: impl Into<String>, role: Option<String>) -> Self {
        self.warnings.push(Warning { role, ..Warning::new(code, text) });
        self
    }

    /// Sets the operations there are, for those that need to know the runner first.
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = registry;
        self
    }

    /// Runs a plan. The report always has a row for every task. Dropping the future kills children at once.
    pub async fn run(self, plan: impl Into<CheckedPlan>) -> Report {
        let plan = plan.into();
        let now = clock::now();
        match self.start(&plan, now, Mode::Run).await {
            Ok(run) => run.drive().await,
            Err((refusal, this)) => this.refused(&plan, Mode::Run, refusal),
        }
    }

    /// Predicts what a run would do. Writes nothing and takes no lock.
    pub async fn dry_run(mut self, plan: impl Into<CheckedPlan>) -> Report {
        let plan = plan.into();
        (self.state_dir, self.bundle_dir) = (None, None);
        let now = clock::now();
        match self.start(&plan, now, Mode::DryRun).await {
            Ok(run) => run.drive().await,
            Err((refusal, this)) => this.refused(&plan, Mode::DryRun, refusal),
        }
    }

    /// Starts a run that was asked for at `asked_at`. Its id, its metadata and its first event all say this time, so
    /// that ids sort as runs start even if many start at once and wait for each other's disk or locks.
    async fn start(
        self,
        plan: &CheckedPlan,
        asked_at: Timestamp,
        mode: Mode,
    ) -> Result<Started, (Refusal, Box<Self>)> {
        let run_id = self.run_id.clone().unwrap_or_else(|| clock::new_run_id(asked_at));
        let asks = |task: &stead_model::Task| task.settings.confirm.is_some();
        if mode == Mode::Run && self.answer.is_none() && self.selected(plan.plan()).any(asks) {
            let asking = self.selected(plan.plan()).filter_map(|task| {
                let text = task.settings.confirm.as_deref()?;
                Some(format!("{} ({text})", task.name))
            });
            let asking: Vec<String> = asking.collect();
            let refusal = Refusal {
                exit_code: ExitCode::Confirmation,
                class: None,
                message: format!(
                    "confirmation is needed and there is no terminal to ask on: {}; run it on a terminal, or answer all with --yes",
                    asking.join(", ")
                ),
            };
            return Err((refusal, Box::new(self)));
        }
        let secrets = match self.read_secrets(plan) {
            Ok(secrets) => secrets,
            Err(refusal) => return Err((refusal, Box::new(self))),
        };
        let locks = match self.lock_hosts(plan, &run_id, mode, &[]).await {
            Ok(locks) => locks,
            Err(refusal) => return Err((refusal, Box::new(self))),
        };
        let recording = match self.create_directory(plan, &run_id, asked_at) {
            Ok(recording) => recording,
            Err(refusal) => return Err((refusal, Box::new(self))),
        };
        let run_id = match &recording {
            Some(recording) => recording.directory.run_id().clone(),
            None => run_id,
        };
        let journal = match &recording {
            Some(recording) => Journal::create(&recording.directory.events_path()),
            None => Ok(Journal::without_file(self.observers.iter().any(|observer| observer.wants_lines()))),
        };
        let journal = match journal {
            Ok(journal) => journal,
            Err(error) => {
                let refusal = Refusal {
                    exit_code: ExitCode::Failed,
                    class: Some(ErrorClass::Journal),
                    message: chain(&error),
                };
                return Err((refusal, Box::new(self)));
            }
        };
        let hosts = Arc::new(InventoryHosts::new(self.inventory.clone(), self.limit.clone(), plan.plan()));
        let warnings = hosts.warnings(self.selected(plan.plan()), &run_id);
        let run_id = (recording.is_some() || self.run_id.is_some() || mode == Mode::Run).then_some(run_id);
        let options = self.run_options(run_id, mode);
        let mut run = Run::new(&plan.compiled, hosts.clone(), options);
        self.warnings.iter().cloned().chain(warnings).for_each(|warning| run.say_at_start(warning));
        let mut turn = Turn::default();
        run.begin(Now { wall: asked_at, ..Now::default() }, &mut turn);
        Ok(self.assemble(plan, run, turn, hosts, secrets, recording, journal, locks, mode))
    }

    pub(crate) fn run_options(&self, run_id: Option<RunId>, mode: Mode) -> RunOptions {
        RunOptions {
            run_id,
            kind: self.kind,
            mode,
            parallel: self.parallel,
            timeout: self.timeout,
            not_selected: self.not_selected.clone(),
            trigger: self.provenance.meta.trigger.clone(),
            ..RunOptions::new(mode)
        }
    }

    pub(crate) fn base_dir(&self, plan: &CheckedPlan) -> PathBuf {
        plan.base_dir.clone().or_else(|| std::env::current_dir().ok()).unwrap_or_else(|| PathBuf::from("/"))
    }

    pub(crate) fn read_secrets(&self, plan: &CheckedPlan) -> Result<Secrets, Refusal> {
        let (environment, base_dir) = (self.environment_in_use().into_owned(), self.base_dir(plan));
        // One that cannot be read is said when its host is reached.
        let passwords = self.inventory.hosts.values().filter_map(|host| host.account_password());
        let passwords =
            passwords.filter_map(|source| secrets::read_source(source, &environment, &base_dir).ok());
        let masked = self.masked.iter().filter_map(|secret| secret.expose_text().map(str::to_owned));
        let passwords: BTreeSet<String> = passwords.chain(masked).collect();
        secrets::read(plan.plan(), &environment, &base_dir, passwords).map_err(|problems| Refusal {
            exit_code: ExitCode::Invalid,
            class: Some(ErrorClass::Invalid),
            message: problems.iter().map(|problem| problem.message.clone()).collect::<Vec<_>>().join("; "),
        })
    }

    /// Locks what was named, else every host that a selected task may write to, and those it was sent to by the run's `journaled` events:
    /// a resumed task keeps its hosts, whatever its target means by now.
    pub(crate) async fn lock_hosts(
        &self,
        plan: &CheckedPlan,
        run_id: &RunId,
        mode: Mode,
        journaled: &[Event],
    ) -> Result<Option<HostLocks>, Refusal> {
        if mode == Mode::DryRun {
            return Ok(None);
        }
        let state_dir = self.state_dir.as_ref().or(self.lock_dir.as_ref()).filter(|_| plan.plan().lock);
        let (directory, wanted): (_, BTreeSet<Lockable>) = match (&self.named_lock, state_dir) {
            (Some((directory, name)), _) => (directory, BTreeSet::from([Lockable::Target(name.clone())])),
            (None, Some(directory)) => {
                let hosts = self.hosts_written_to(plan.plan(), run_id, journaled);
                (directory, hosts.iter().map(Into::into).collect())
            }
            (None, None) => return Ok(None),
        };
        let holder = Holder::this_process(run_id.clone(), clock::now());
        let mut locks = HostLocks::new(directory, holder, Arc::clone(&self.parents));
        let taken = match self.wait_lock {
            Some(wait) => {
                let mut wish = self.canceller.subscribe();
                tokio::select! {
                    // What is free is taken: a run that is cancelled already may have begun, and has a `finally`.
                    biased;
                    taken = locks.take_within(&wanted, wait) => taken,
                    _ = wish.wait_for(|wish| *wish != crate::cancel::Wish::GoOn) => {
                        return Err(Refusal {
                            exit_code: ExitCode::Cancelled,
                            class: None,
                            message: "stopped by a signal while waiting for a lock".to_owned(),
                        });
                    }
                }
            }
            None => locks.take(&wanted),
        };
        taken.map_err(|error| Refusal {
            exit_code: match error {
                HostLockError::Held { .. } => ExitCode::Locked,
                HostLockError::File { .. } | HostLockError::Directory(_) => ExitCode::Failed,
            },
            class: Some(error.class()),
            message: chain(&error),
        })?;
        Ok(Some(locks))
    }

    fn hosts_written_to(&self, plan: &Plan, run_id: &RunId, journaled: &[Event]) -> BTreeSet<HostName> {
        let directory = InventoryHosts::new(self.inventory.clone(), self.limit.clone(), plan);
        let writes = |task: &stead_model::Task| {
            task.action.parts().iter().any(|part| {
                let entry = self.registry.get(part.op.operation.as_str());
                entry.is_some_and(|entry| entry.descriptor().effect_of(&part.op) != Effect::Read)
            })
        };
        let mut hosts = self.hosts_of(plan, run_id, &directory, &writes);
        let mut sent_to: BTreeMap<&TaskName, &[HostName]> = BTreeMap::new();
        for event in journaled {
            if let EventKind::TaskStarted { task, hosts, .. } = &event.kind {
                sent_to.insert(task, hosts);
            }
        }
        if !sent_to.is_empty() {
            let sent_to =
                self.selected(plan).filter(|task| writes(task)).filter_map(|task| sent_to.get(&task.name));
            hosts.extend(sent_to.copied().flatten().cloned());
        }
        hosts
    }

    /// Returns the hosts for which the plan has operations that need the executor.
    fn hosts_with_executor(
        &self,
        plan: &Plan,
        run_id: &RunId,
        directory: &InventoryHosts,
    ) -> BTreeSet<HostName> {
        let needs =
            |operation: &str| self.registry.get(operation).is_some_and(|entry| entry.as_bare().is_none());
        let uses = |task: &stead_model::Task| {
            let undo = match &task.settings.undo {
                Some(Undo::Op(op)) => needs(op.operation.as_str()),
                Some(Undo::Auto | Undo::Function) | None => false,
            };
            undo || task.action.parts().iter().any(|part| needs(part.op.operation.as_str()))
        };
        self.hosts_of(plan, run_id, directory, &uses)
    }

    fn hosts_of(
        &self,
        plan: &Plan,
        run_id: &RunId,
        directory: &InventoryHosts,
        picks: &dyn Fn(&stead_model::Task) -> bool,
    ) -> BTreeSet<HostName> {
        use stead_engine::run::Hosts as _;
        let mut hosts = BTreeSet::new();
        let mut seen: BTreeSet<&[String]> = BTreeSet::new();
        for task in self.selected(plan).filter(|task| picks(task)) {
            let target = task.settings.target.as_slice();
            // `_any` depends on the task; everything else on the target alone.
            if seen.insert(target) || target.iter().any(|text| text.contains("_any")) {
                let seed = format!("{run_id}/{}", task.name);
                // A target that does not resolve fails its task, not the run.
                hosts.extend(directory.resolve(target, &seed).unwrap_or_default());
            }
        }
        hosts
    }

    pub(crate) fn selected<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = &'a stead_model::Task> {
        plan.indexed().filter(|(index, _)| !self.not_selected.contains(index)).map(|(_, task)| task)
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the one place where everything a run needs comes together"
    )]
    pub(crate) fn assemble(
        self,
        plan: &CheckedPlan,
        run: Run,
        turn: Turn,
        hosts: Arc<InventoryHosts>,
        secrets: Secrets,
        recording: Option<Arc<Recording>>,
        journal: Journal,
        locks: Option<HostLocks>,
        mode: Mode,
    ) -> Started {
        let (sender, messages) = mpsc::channel(CHANNEL);
        let known_hosts = self.inventory.hosts.keys().cloned().chain([HostName::local()]).collect();
        let facts = Facts::new(known_hosts, &self.journaled_facts);
        let names = Names::new(
            Arc::clone(run.results()),
            RunScope {
                id: recording
                    .as_ref()
                    .map(|recording| recording.directory.run_id().clone())
                    .or_else(|| self.run_id.clone()),
                plan: plan.plan().name.clone(),
                started_at: run.started_at(),
                segment: run.segment(),
                dry_run: mode == Mode::DryRun,
            },
            self.provenance.meta.trigger.as_ref(),
        )
        .with_facts(Arc::clone(facts.known()));
        self.warner.connect(&sender);
        self.announcer.connect(&sender);
        let session_run = run.run_id().cloned().unwrap_or_else(|| clock::new_run_id(clock::now()));
        let executor_hosts = match &self.reach {
            Some(_) => self.hosts_with_executor(plan.plan(), &session_run, &hosts),
            None => BTreeSet::new(),
        };
        let table: Arc<dyn HostTable> = hosts;
        let wait_for_more = self.wait_lock.map(lock::wait_holding);
        let locks = locks.map(|locks| Arc::new(RunLocks::new(locks, wait_for_more)));
        let pool = self.reach.clone().map(|reach| {
            let locked = mode == Mode::Run && plan.plan().lock;
            HostPool::new(PoolSettings {
                binaries: Binaries::new(reach.executable.clone(), reach.binaries.clone()),
                reach,
                run: session_run,
                lock: locked.then(|| wait_for_more.unwrap_or_default()),
                parent: self.parents.first().cloned(),
                environment: self.environment_in_use().into_owned(),
                base_dir: self.base_dir(plan),
                messages: sender.clone(),
            })
        });
        let executor = Arc::new(Executor {
            base_dir: self.base_dir(plan),
            plan: Arc::clone(&plan.compiled.plan),
            plan_number: plan.number,
            functions: Arc::clone(&plan.functions),
            names: Arc::new(names),
            results: Arc::clone(run.results()),
            facts,
            hosts: table,
            secrets: Arc::new(secrets.values),
            redactor: Arc::new(secrets.redactor),
            hidden_env: secrets.hidden_env.into(),
            parents: Arc::clone(&self.parents),
            mode,
            predicted: Mutex::default(),
            run_id: run.run_id().cloned(),
            grace: plan.plan().grace,
            wants_output: self.observers.iter().any(|observer| observer.wants_output()),
            open_streams: OpenStreams::default(),
            recording: recording.clone(),
            undo: match (&recording, run.run_id()) {
                (Some(_), Some(run_id)) => UndoStore::new(self.undo_places(), run_id.clone()),
                (Some(_) | None, _) => UndoStore::default(),
            },
            registry: self.registry,
            locks: locks.as_ref().map(Arc::downgrade),
            messages: sender,
            pool,
            executor_hosts,
        });
        let dispatcher = Dispatcher {
            run,
            turn,
            journal,
            durability: self.durability,
            observers: self.observers,
            executor,
            messages,
            wish: self.canceller.subscribe(),
            answer: self.answer.unwrap_or_else(|| Arc::new(|_, _| false)),
            began: Instant::now(),
            work: JoinSet::new(),
            attempts: BTreeMap::new(),
            undos: BTreeMap::new(),
            obeyed: None,
            recording_failures: Vec::new(),
            journal_lost: false,
            waiting_for_journal: Vec::new(),
            time: None,
        };
        Started {
            dispatcher,
            recording,
            complete: self.complete,
            complete_meta: self.complete_meta,
            signing: self.signing,
            archive: self.archive,
            _canceller: self.canceller,
            _locks: locks,
        }
    }

    /// Returns the report of a run that could not start: every task `not_run`, plus the error.
    pub(crate) fn refused(self, plan: &CheckedPlan, mode: Mode, refusal: Refusal) -> Report {
        let hosts = Arc::new(InventoryHosts::new(Inventory::default(), Vec::new(), plan.plan()));
        let run = Run::new(&plan.compiled, hosts, RunOptions::new(mode));
        let mut report = run.report();
        report.status =
            if refusal.exit_code == ExitCode::Cancelled { RunStatus::Cancelled } else { RunStatus::Failed };
        report.exit_code = refusal.exit_code;
        report.started_at = clock::now();
        report.finished_at = report.started_at;
        report.errors.push(ErrorRow {
            task: None,
            host: None,
            class: refusal.class,
            message: refusal.message,
        });
        report.warnings = self.warnings;
        if let Some(complete) = self.complete {
            complete(&mut report);
        }
        report
    }
}

/// Why a run could not start.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) exit_code: ExitCode,
    pub(crate) class: Option<ErrorClass>,
    pub(crate) message: String,
}

/// Returns the directory of runs in a state directory.
pub(crate) fn path_of(state_dir: &Path, run_id: &RunId) -> PathBuf {
    stead_bundle::runs_directory(state_dir).join(run_id.as_str())
}

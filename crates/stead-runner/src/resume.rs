//! Taking a recorded run up again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stead_bundle::{LoadError, LockError, OpenError, RecordError, RunDirectory, load_meta, load_plan};
use stead_engine::run::{Now, ReplayError, ResumeChoice, ResumeRefusal, Run, Turn};
use stead_engine::target::TargetExpr;
use stead_model::bundle::RunMeta;
use stead_model::event::{Event, EventKind, Mode, RunKind};
use stead_model::plan::{Digest, Plan};
use stead_model::report::{Report, Warning};
use stead_model::{ExitCode, HostName, RunId, TaskName};

use crate::author::CheckedPlan;
use crate::clock;
use crate::hosts::InventoryHosts;
use crate::journal::{self, Journal, JournalError, ReadError};
use crate::process_scan;
use crate::record::Recording;
use crate::runner::{Runner, path_of};

/// What a person decided about a resume.
#[derive(Clone, Debug, Default)]
pub struct ResumeOptions {
    /// Interrupted tasks to run again.
    pub rerun: Vec<TaskName>,
    /// Interrupted tasks to count as done.
    pub assume_done: Vec<TaskName>,
    /// Go on with a plan that is not the recorded one.
    pub force: bool,
}

/// Why a run is not taken up again.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// The runner has no state directory.
    #[error("resuming needs a state directory; call record_in")]
    NotRecording,
    /// A live process owns the run.
    #[error("the run is in progress{}", holder.as_ref().map_or_else(String::new, |holder| format!(" (pid {}, since {})", holder.pid, holder.since)))]
    InProgress {
        /// Who has it.
        holder: Option<stead_bundle::Holder>,
    },
    /// The bundle cannot be read.
    #[error("cannot read the run")]
    Load(#[source] LoadError),
    /// The bundle cannot be written.
    #[error("cannot record the run")]
    Record(#[source] RecordError),
    /// The journal is damaged.
    #[error("cannot use the journal")]
    Journal(#[source] ReadError),
    /// The journal cannot be written.
    #[error("cannot write the journal")]
    JournalWrite(#[source] JournalError),
    /// The journal's damaged tail cannot be cut off.
    #[error("cannot cut off the journal's damaged tail")]
    Repair(#[source] std::io::Error),
    /// The journal does not fit the plan.
    #[error("the journal does not fit the plan")]
    Replay(#[source] ReplayError),
    /// `plan.json` is not the one the journal was made with.
    #[error("plan.json does not match the recorded plan hash {expected}")]
    PlanTampered {
        /// The recorded hash.
        expected: Digest,
    },
    /// The plan is not the recorded one.
    #[error("the plan is not the recorded one: {}", describe_changes(changes))]
    PlanChanged {
        /// What differs.
        changes: PlanChanges,
    },
    /// A run of roles that is sealed has come to its end.
    #[error("{} is sealed already: there is nothing left to do", path.display())]
    Sealed {
        /// Its bundle.
        path: PathBuf,
    },
    /// The engine refuses.
    #[error(transparent)]
    Refused(ResumeRefusal),
    /// A secret is missing, or a target is locked.
    #[error("{message}")]
    CannotStart {
        /// What the process exits with.
        exit_code: ExitCode,
        /// Why.
        message: String,
    },
}

impl ResumeError {
    /// Returns what the process exits with.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::InProgress { .. } => ExitCode::Locked,
            Self::Load(LoadError::PlanChanged { .. })
            | Self::Journal(ReadError::Damaged { .. } | ReadError::Gap { .. } | ReadError::Unknown { .. })
            | Self::Replay(_)
            | Self::PlanTampered { .. }
            | Self::PlanChanged { .. } => ExitCode::Verification,
            Self::NotRecording
            | Self::Sealed { .. }
            | Self::Refused(ResumeRefusal::NotInterrupted { .. }) => ExitCode::Usage,
            Self::Load(_) | Self::Refused(ResumeRefusal::RolledBack) => ExitCode::Invalid,
            Self::Refused(ResumeRefusal::AlreadyDone) => ExitCode::Success,
            Self::Record(_)
            | Self::Repair(_)
            | Self::JournalWrite(_)
            | Self::Journal(ReadError::Read { .. }) => ExitCode::Failed,
            Self::CannotStart { exit_code, .. } => *exit_code,
        }
    }
}

/// Which tasks differ between a recorded plan and another one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanChanges {
    /// Only in the new plan.
    pub added: Vec<TaskName>,
    /// Only in the recorded plan.
    pub removed: Vec<TaskName>,
    /// In both, and not the same.
    pub changed: Vec<TaskName>,
}

fn describe_changes(changes: &PlanChanges) -> String {
    let list = |what: &str, names: &[TaskName]| {
        let names: Vec<&str> = names.iter().map(TaskName::as_str).collect();
        (!names.is_empty()).then(|| format!("{what} {}", names.join(", ")))
    };
    let parts: Vec<String> =
        [list("added", &changes.added), list("removed", &changes.removed), list("changed", &changes.changed)]
            .into_iter()
            .flatten()
            .collect();
    if parts.is_empty() { "its settings changed".to_owned() } else { parts.join("; ") }
}

/// Returns which tasks differ between a recorded plan and another one.
pub fn plan_changes(recorded: &Plan, new: &Plan) -> PlanChanges {
    let hashes = |plan: &Plan| -> BTreeMap<TaskName, Digest> {
        plan.tasks.iter().map(|task| (task.name.clone(), task.hash)).collect()
    };
    let (old, now) = (hashes(recorded), hashes(new));
    PlanChanges {
        added: now.keys().filter(|name| !old.contains_key(*name)).cloned().collect(),
        removed: old.keys().filter(|name| !now.contains_key(*name)).cloned().collect(),
        changed: now
            .iter()
            .filter(|(name, hash)| old.get(*name).is_some_and(|was| was != *hash))
            .map(|(name, _)| name.clone())
            .collect(),
    }
}

/// A recorded run as it was found.
struct Found {
    path: PathBuf,
    meta: RunMeta,
    events: Vec<Event>,
    next_seq: u64,
    good_len: u64,
    dropped_bytes: u64,
    recorded: Plan,
}

impl Runner {
    /// Takes the recorded run `run_id` up again with its plan.
    pub async fn resume(self, run_id: &RunId, plan: impl Into<CheckedPlan>) -> Result<Report, ResumeError> {
        let path = path_of(self.state_dir.as_deref().ok_or(ResumeError::NotRecording)?, run_id);
        self.resume_at(&path, plan, ResumeOptions::default()).await
    }

    /// Takes the run recorded in the directory `path` up again.
    ///
    /// A run that has succeeded is not touched; its report is returned.
    pub async fn resume_at(
        mut self,
        path: &Path,
        plan: impl Into<CheckedPlan>,
        options: ResumeOptions,
    ) -> Result<Report, ResumeError> {
        let plan = plan.into();
        let found = find(path)?;
        let changes = plan_changes(&found.recorded, plan.plan());
        let is_other = plan.compiled.hash != found.meta.plan_hash;
        if is_other && !options.force {
            return Err(ResumeError::PlanChanged { changes });
        }
        self.kind = found.meta.kind;
        self.journaled_facts = found.events.iter().filter_map(|event| facts_in(&event.kind)).collect();
        self.run_id = Some(found.meta.run_id.clone());
        self.limit = self.limit_of(&found)?;
        let (mut run, hosts) = self.replayed(&found, &plan)?;
        let is_run = found.meta.kind == RunKind::Run;
        if is_run && stead_bundle::is_sealed(&found.path) {
            return Err(ResumeError::Sealed { path: found.path });
        }
        if run.ended().is_some_and(|(_, code)| code == ExitCode::Success) && !is_other && !is_run {
            let mut report = run.report();
            report.bundle = Some(found.path.display().to_string());
            if let Some(complete) = self.complete.take() {
                complete(&mut report);
            }
            return Ok(report);
        }

        let interrupted = run.interrupted_attempts();
        let segment = run.segment() + u32::from(!found.events.is_empty());
        let choice = ResumeChoice {
            rerun: options.rerun,
            assume_done: options.assume_done,
            dropped_bytes: found.dropped_bytes,
            forced: is_other.then(|| {
                let changed: BTreeSet<TaskName> = changes.added.into_iter().chain(changes.changed).collect();
                (plan.compiled.hash, changed)
            }),
        };
        if !found.events.is_empty() {
            run.check_resume(&choice).map_err(ResumeError::Refused)?;
        }

        let refused = |refusal: crate::runner::Refusal| ResumeError::CannotStart {
            exit_code: refusal.exit_code,
            message: refusal.message,
        };
        let secrets = self.read_secrets(&plan).map_err(refused)?;
        let run_id = found.meta.run_id.clone();
        let locks = self.lock_hosts(&plan, &run_id, Mode::Run, &found.events).await.map_err(refused)?;
        let (directory, meta) = RunDirectory::reopen(&found.path, clock::now()).map_err(cannot_open)?;
        let left = process_scan::end(&run_id, &found.path, &interrupted, plan.plan().grace).await;
        if is_other {
            let sources: Vec<(&str, &[u8])> = self
                .provenance
                .sources
                .iter()
                .map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
                .collect();
            directory.replace_plan(&plan.plan().to_json(), &sources).map_err(ResumeError::Record)?;
        }
        let events_path = directory.events_path();
        if found.dropped_bytes > 0 {
            journal::repair(&events_path, found.good_len).map_err(ResumeError::Repair)?;
        }
        let mut recording = Recording::reopened(directory, meta, &found.events).knowing(self.known_hashes());
        let steps = self.provenance.steps.clone();
        recording.begin_segment(segment, plan.compiled.hash, steps).map_err(ResumeError::Record)?;
        // A driver that died right after it made the directory has left no journal.
        let journal = match events_path.exists() {
            true => Journal::reopen(&events_path, found.next_seq),
            false => Journal::create(&events_path),
        };
        let journal = journal.map_err(ResumeError::JournalWrite)?;

        let reached = hosts.warnings(self.selected(plan.plan()), &found.meta.run_id);
        let said = self.warnings.iter().cloned().chain(reached);
        for warning in said.chain(what_was_found(found.dropped_bytes, &left)) {
            run.say_at_start(warning);
        }
        let mut turn = Turn::default();
        let now = Now { wall: clock::now(), ..Now::default() };
        match (found.events.is_empty(), is_run) {
            (true, true) => run.begin_after_loss(found.dropped_bytes, now, &mut turn),
            (true, false) => run.begin(now, &mut turn),
            (false, _) => run.resume(choice, now, &mut turn).map_err(ResumeError::Refused)?,
        }
        for event in &found.events {
            self.observers.iter_mut().for_each(|observer| observer.on_recorded(event));
        }
        let recording = Some(Arc::new(recording));
        Ok(self
            .assemble(&plan, run, turn, hosts, secrets, recording, journal, locks, Mode::Run)
            .drive()
            .await)
    }
}

impl Runner {
    /// Completes the bundle of a run that came to its end when nobody was left to say so: its report, its metadata, its seal.
    /// Nothing runs. None if the run has not come to its end.
    pub fn complete_at(&self, path: &Path, plan: &CheckedPlan) -> Result<Option<Report>, ResumeError> {
        let found = find(path)?;
        let (run, _) = self.replayed(&found, plan)?;
        if run.ended().is_none() {
            return Ok(None);
        }
        let mut report = run.report();
        report.bundle = Some(found.path.display().to_string());
        if stead_bundle::is_sealed(&found.path) {
            return Ok(Some(report));
        }
        let (directory, meta) = RunDirectory::reopen(&found.path, clock::now()).map_err(cannot_open)?;
        if found.dropped_bytes > 0 {
            journal::repair(&directory.events_path(), found.good_len).map_err(ResumeError::Repair)?;
        }
        let recording = Recording::reopened(directory, meta, &found.events).knowing(self.known_hashes());
        for failure in recording.finish(&report, None) {
            let text = format!("the recording is incomplete: {failure}");
            report.warnings.push(Warning::new("record/incomplete", text));
        }
        Ok(Some(report))
    }

    /// Returns the run as its journal leaves it.
    fn replayed(&self, found: &Found, plan: &CheckedPlan) -> Result<(Run, Arc<InventoryHosts>), ResumeError> {
        let limit = self.limit_of(found)?;
        let hosts = Arc::new(InventoryHosts::new(self.inventory.clone(), limit, plan.plan()));
        let options = self.run_options(Some(found.meta.run_id.clone()), Mode::Run);
        let mut run = Run::new(&plan.compiled, hosts.clone(), options);
        run.replay(&found.events).map_err(ResumeError::Replay)?;
        Ok((run, hosts))
    }

    /// Returns what targets are cut down to: what is given now, else what the run began with.
    fn limit_of(&self, found: &Found) -> Result<Vec<TargetExpr>, ResumeError> {
        if !self.limit.is_empty() {
            return Ok(self.limit.clone());
        }
        let recorded = found.meta.plan.limit.iter().map(|text| TargetExpr::parse(text));
        recorded.collect::<Result<_, _>>().map_err(|error| ResumeError::CannotStart {
            exit_code: ExitCode::Verification,
            message: format!("the recorded limit cannot be read: {error}"),
        })
    }
}

fn cannot_open(error: OpenError) -> ResumeError {
    match error {
        OpenError::Lock(LockError::Held { holder, .. }) => ResumeError::InProgress { holder },
        OpenError::Lock(LockError::File(error)) | OpenError::Record(error) => ResumeError::Record(error),
        OpenError::Load(error) => ResumeError::Load(error),
    }
}

/// Returns what a person must know of the state a run was found in.
fn what_was_found(dropped_bytes: u64, left: &process_scan::Ended) -> Vec<Warning> {
    let warning = |code: &str, text: String| Warning::new(code, text);
    let name = |process: &process_scan::LeftProcess| {
        format!("{} (pid {}) of task `{}`", process.name, process.pid, process.task)
    };
    let mut found = Vec::new();
    if dropped_bytes > 0 {
        let text = format!("the journal's last line was damaged: {dropped_bytes} bytes were cut off");
        found.push(warning("record/journal-cut", text));
    }
    found.extend(left.ended.iter().map(|process| {
        warning("run/process-ended", format!("ended a process that the dead run left: {}", name(process)))
    }));
    found.extend(left.remaining.iter().map(|process| {
        warning("run/process-left", format!("could not end a process of the dead run: {}", name(process)))
    }));
    found
}

/// Reads a recorded run without changing it.
fn find(path: &Path) -> Result<Found, ResumeError> {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let meta = load_meta(&path).map_err(ResumeError::Load)?;
    if let Some(holder) =
        stead_bundle::holder_of(&path.join(stead_bundle::LOCK)).map_err(ResumeError::Record)?
    {
        return Err(ResumeError::InProgress { holder });
    }
    let bytes = load_plan(&path, &meta).map_err(ResumeError::Load)?;
    let expected = meta.plan_hash;
    let recorded: Plan =
        serde_json::from_slice(&bytes).map_err(|_| ResumeError::PlanTampered { expected })?;
    let events_path = path.join(stead_bundle::EVENTS);
    let mut read = if events_path.exists() {
        journal::read(&events_path).map_err(ResumeError::Journal)?
    } else {
        journal::JournalRead { events: Vec::new(), next_seq: 1, good_len: 0, dropped_bytes: 0 }
    };
    let journaled = read.events.iter().filter_map(|event| hash_in(&event.kind)).next_back();
    if journaled.is_some_and(|hash| hash != expected) {
        return Err(ResumeError::PlanTampered { expected: journaled.unwrap_or(expected) });
    }
    for event in &mut read.events {
        load_filed_data(&path, event);
    }
    Ok(Found {
        path,
        meta,
        events: read.events,
        next_seq: read.next_seq,
        good_len: read.good_len,
        dropped_bytes: read.dropped_bytes,
        recorded,
    })
}

/// Returns the plan hash an event records.
fn hash_in(kind: &EventKind) -> Option<Digest> {
    if let EventKind::RunStarted(started) = kind {
        return Some(started.plan_hash);
    }
    if let EventKind::RunResumed(resumed) = kind {
        return resumed.plan_hash;
    }
    None
}

/// Returns the facts an event records.
fn facts_in(kind: &EventKind) -> Option<(HostName, serde_json::Value)> {
    if let EventKind::FactsGathered { host, facts } = kind {
        return Some((host.clone(), (**facts).clone()));
    }
    None
}

/// Puts data that has a file of its own back into its event; without the file it is not known.
fn load_filed_data(bundle: &Path, event: &mut Event) {
    if let Some((file, data)) = event.kind.filed_data()
        && Path::new(file).components().all(|part| matches!(part, std::path::Component::Normal(_)))
    {
        *data = std::fs::read(bundle.join(file)).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    }
}

//! A run's directory while it goes on: metadata at the start, report and seal at the end.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use stead_bundle::{CreateError, KnownHashes, NewRun, RecordError, RunDirectory};
use stead_model::bundle::{EndedBy, PlanMeta, RunMeta, Versions};
use stead_model::event::{EventKind, RunKind};
use stead_model::plan::{Digest, Plan};
use stead_model::report::Report;
use stead_model::steps::StepsMeta;
use stead_model::time::Timestamp;
use stead_model::{Event, RunId, RunStatus, Status};

/// The commit this program was built from, if that was known.
pub const GIT_COMMIT: Option<&str> = option_env!("STEAD_GIT_COMMIT");

/// The directory of a run that goes on.
#[derive(Debug)]
pub(crate) struct Recording {
    pub(crate) directory: RunDirectory,
    meta: RunMeta,
    /// Hashes that need not be computed again when the bundle is sealed.
    known: KnownHashes,
    /// For a run that goes on: how much of each log the journal points to, and none for logs that were written to since.
    announced: Option<Mutex<BTreeMap<String, Option<u64>>>>,
}

/// Adds what a front door knows to the metadata of a run that ended.
pub(crate) type CompleteMeta = Box<dyn FnOnce(&Report, &mut RunMeta) + Send>;

/// What happens if the id of a new run is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The run is refused.
    Refuse,
    /// What has the id is renamed to `<run_id>.old-N`.
    MoveAway,
    /// `-2`, `-3` and so on are appended.
    CountOn,
}

/// Where a run's directory is made.
pub(crate) enum Place<'a> {
    /// In a state directory.
    State(&'a Path),
    /// Right below a directory.
    Below(&'a Path),
}

/// What a run's directory is made of.
pub(crate) struct Beginning<'a> {
    pub(crate) run_id: RunId,
    pub(crate) kind: RunKind,
    pub(crate) started_at: Timestamp,
    pub(crate) plan_hash: Digest,
    pub(crate) plan: &'a Plan,
    pub(crate) sources: &'a [(&'a str, &'a [u8])],
    pub(crate) meta: PlanMeta,
    pub(crate) steps: Option<Box<StepsMeta>>,
}

impl Recording {
    pub(crate) fn create(place: &Place<'_>, beginning: Beginning<'_>) -> Result<Self, CreateError> {
        let meta = RunMeta {
            schema: 1,
            kind: beginning.kind,
            run_id: beginning.run_id,
            status: RunStatus::Running,
            exit_code: None,
            started_at: beginning.started_at,
            finished_at: None,
            duration_seconds: 0.0,
            ended_by: None,
            driver_host: driver_host(),
            plan_hash: beginning.plan_hash,
            seed: None,
            phases_completed: Vec::new(),
            phases: Vec::new(),
            failed_phase: None,
            error: None,
            warnings: Vec::new(),
            plan: beginning.meta,
            steps: beginning.steps,
            extra: BTreeMap::new(),
        };
        let new = NewRun {
            meta: &meta,
            versions: &versions(),
            plan: &|mut out| beginning.plan.write_json(&mut out),
            sources: beginning.sources,
        };
        let directory = match place {
            Place::State(state) => RunDirectory::create(state, &new)?,
            Place::Below(runs) => RunDirectory::create_below(runs, &new)?,
        };
        Ok(Self { directory, meta, known: KnownHashes::default(), announced: None })
    }

    /// Returns the recording of a run that goes on after `events`.
    pub(crate) fn reopened(directory: RunDirectory, meta: RunMeta, events: &[Event]) -> Self {
        let mut announced = BTreeMap::new();
        for event in events {
            if let EventKind::Log { file, offset, len, .. } = &event.kind {
                announced.insert(file.clone(), Some(offset + len));
            }
        }
        Self { directory, meta, known: KnownHashes::default(), announced: Some(Mutex::new(announced)) }
    }

    /// Returns how much of a log the journal of the run that goes on here points to, the first time it is asked for this
    /// log: whoever wrote to it since has announced it.
    pub(crate) fn announced_before(&self, file: &str) -> Option<u64> {
        let mut announced = self.announced.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        match announced.get_mut(file) {
            Some(end) => end.take(),
            None => {
                announced.insert(file.to_owned(), None);
                Some(0)
            }
        }
    }

    /// Returns this recording with hashes that need not be computed again.
    pub(crate) fn knowing(self, known: KnownHashes) -> Self {
        Self { known, ..self }
    }

    /// Says in the metadata that another process works on the run, with what it was given anew.
    pub(crate) fn begin_segment(
        &mut self,
        segment: u32,
        plan_hash: Digest,
        steps: Option<Box<StepsMeta>>,
    ) -> Result<(), RecordError> {
        self.meta.steps = steps.or_else(|| self.meta.steps.take());
        self.meta.status = RunStatus::Running;
        self.meta.exit_code = None;
        self.meta.finished_at = None;
        self.meta.ended_by = None;
        self.meta.plan.segments = segment;
        self.meta.plan_hash = plan_hash;
        self.directory.update_meta(&self.meta)
    }

    /// Writes report and metadata and seals the bundle: the last act of a run. Returns what went wrong.
    pub(crate) fn finish(&self, report: &Report, complete: Option<CompleteMeta>) -> Vec<String> {
        let mut meta = self.meta.clone();
        meta.status = report.status;
        meta.exit_code = Some(report.exit_code);
        meta.finished_at = Some(report.finished_at);
        meta.duration_seconds = std::time::Duration::from_millis(report.duration_ms).as_secs_f64();
        meta.ended_by = Some(match report.status {
            RunStatus::Running | RunStatus::Success => EndedBy::Tasks,
            RunStatus::Failed => EndedBy::Failure,
            RunStatus::Timeout => EndedBy::Timeout,
            RunStatus::Cancelled => EndedBy::Signal,
        });
        let done = |status: Status| matches!(status, Status::Changed | Status::Unchanged);
        meta.phases_completed =
            report.tasks.iter().filter(|task| done(task.status)).map(|task| task.name.to_string()).collect();
        meta.error = report.errors.first().map(|error| error.message.clone());
        meta.warnings.clone_from(&report.warnings);
        meta.plan.segments = report.segments;
        if let Some(complete) = complete {
            complete(report, &mut meta);
        }
        let written = self.directory.write_report(report).and_then(|()| self.directory.update_meta(&meta));
        let sealed = self.directory.seal(&self.known);
        written
            .err()
            .map(|error| chain(&error))
            .into_iter()
            .chain(sealed.err().map(|error| chain(&error)))
            .collect()
    }
}

/// Returns an error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

fn driver_host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns what makes bundles: this program.
pub fn versions() -> Versions {
    Versions {
        stead_version: env!("CARGO_PKG_VERSION").to_owned(),
        git_commit: GIT_COMMIT.map(str::to_owned),
        rust_version: env!("STEAD_RUST_VERSION").to_owned(),
        driver_os: std::env::consts::OS.to_owned(),
        driver_arch: std::env::consts::ARCH.to_owned(),
        roles: BTreeMap::new(),
    }
}

//! Where a commit is on its way, and why it does not go on.

use std::path::Path;

use stead_engine::fleet::watch::FailureClass;
use stead_model::Diagnostics;
use stead_model::diagnostic::Severity;
use stead_model::fleet::state::Outcome;

use super::git::GitError;
use crate::api::{CallError, PipelineFailure};
use crate::job::JobError;

/// Where a commit is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// Its head was seen.
    Observed,
    /// Its ancestry and signatures are good.
    Verified,
    /// Its VMs are known.
    Evaluated,
    /// Their images are there.
    Built,
    /// They are in the cache.
    Cached,
    /// They were read back from it.
    CacheVerified,
    /// The master has it.
    Submitted,
}

impl Stage {
    /// Returns its word.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Observed => "observed",
            Self::Verified => "verified",
            Self::Evaluated => "evaluated",
            Self::Built => "built",
            Self::Cached => "cached",
            Self::CacheVerified => "cache-verified",
            Self::Submitted => "submitted",
        }
    }
}

/// The word of a group that failed.
pub(super) const FAILED: &str = "failed";
/// The word of a group that a newer commit has overtaken.
pub(super) const SUPERSEDED: &str = "superseded";

/// What kind of failure it is, for the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Something on the way.
    Work,
    /// Specs or `fleet.yaml` are invalid.
    Invalid,
    /// The master is away.
    Away,
    /// The master does not take it.
    Refused(Outcome),
}

/// Why a group does not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// What it did not reach.
    pub(super) stage: Stage,
    /// Whether trying again helps.
    pub(super) class: FailureClass,
    /// What kind it is.
    pub(super) cause: Cause,
    /// Which VM.
    pub(super) vm: Option<String>,
    /// What went wrong.
    pub(super) error: String,
}

impl Failure {
    /// Returns a failure that a new commit alone can mend.
    pub(super) fn permanent(stage: Stage, error: impl Into<String>) -> Self {
        let (class, cause) = (FailureClass::Permanent, Cause::Work);
        Self { stage, class, cause, vm: None, error: error.into() }
    }

    /// Returns a failure of something that is away.
    pub(super) fn transient(stage: Stage, error: impl Into<String>) -> Self {
        Self { class: FailureClass::Transient, ..Self::permanent(stage, error) }
    }

    /// Returns a failure for want of memory or time.
    pub(super) fn resource(stage: Stage, error: impl Into<String>) -> Self {
        Self { class: FailureClass::Resource, ..Self::permanent(stage, error) }
    }

    /// Returns the failure that everything wrong with what somebody wrote is.
    pub(super) fn invalid(stage: Stage, problems: &Diagnostics) -> Self {
        let errors = problems.iter().filter(|problem| problem.severity == Severity::Error);
        let lines: Vec<String> = errors
            .map(|problem| {
                let path =
                    if problem.path.is_empty() { String::new() } else { format!("{}: ", problem.path) };
                format!("{}: {path}{} ({})", problem.place, problem.message, problem.code)
            })
            .collect();
        let vm = problems.iter().find_map(|problem| named_vm(&problem.message)).map(str::to_owned);
        Self { cause: Cause::Invalid, vm, ..Self::permanent(stage, lines.join("\n")) }
    }

    /// Returns the failure that a question to the clone without an answer is.
    pub(super) fn git(stage: Stage, error: &GitError) -> Self {
        match error {
            GitError::Job(JobError::TooMuch { .. }) => Self::permanent(stage, error.to_string()),
            GitError::Job(_) => Self::transient(stage, error.to_string()),
            GitError::Refused { .. } => Self::permanent(stage, error.to_string()),
        }
    }

    /// Returns the failure that a call without an answer is. What a master refuses it may take later: no commit mends it.
    pub(super) fn call(error: &CallError) -> Self {
        let is_away = match error {
            CallError::Away(_) | CallError::NotLeader { .. } => true,
            CallError::Refused { code, .. } => code == "store-unavailable",
        };
        let cause = if is_away { Cause::Away } else { Cause::Work };
        Self { cause, ..Self::transient(Stage::Submitted, error.to_string()) }
    }

    /// Returns what is shown of it.
    pub(super) fn report(&self, log: &Path) -> PipelineFailure {
        PipelineFailure {
            stage: self.stage.word().to_owned(),
            class: self.class,
            vm: self.vm.clone(),
            error: self.error.clone(),
            log: log.exists().then(|| log.display().to_string()),
        }
    }
}

/// Returns the VM that a problem begins with.
fn named_vm(message: &str) -> Option<&str> {
    message.strip_prefix("VM `")?.split_once('`').map(|(name, _)| name)
}

//! Where a commit is on its way, and why it does not go on.

use std::path::Path;

use stead_engine::fleet::watch::FailureClass;
use stead_model::diagnostic::Severity;
use stead_model::fleet::state::Outcome;
use stead_model::{Diagnostic, Diagnostics};

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
    /// Whether it is about `fleet.yaml`, which is a group of its own.
    pub(super) is_of_fleet_file: bool,
    /// Of what somebody wrote: everything that is wrong, one by one.
    pub(super) problems: Diagnostics,
}

impl Failure {
    /// Returns a failure that a new commit alone can mend.
    pub(super) fn permanent(stage: Stage, error: impl Into<String>) -> Self {
        let (class, cause) = (FailureClass::Permanent, Cause::Work);
        let (error, problems) = (error.into(), Diagnostics::default());
        Self { stage, class, cause, vm: None, error, is_of_fleet_file: false, problems }
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
                let related = problem.related.iter().map(|(place, label)| format!("; {label}: {place}"));
                let related: String = related.collect();
                let help =
                    if problem.help.is_empty() { String::new() } else { format!("; {}", problem.help) };
                let Diagnostic { place, message, code, .. } = problem;
                format!("{place}: {path}{message} ({code}){related}{help}")
            })
            .collect();
        let vm = problems.iter().find_map(|problem| named_vm(&problem.message)).map(str::to_owned);
        let problems = problems.clone();
        Self { cause: Cause::Invalid, vm, problems, ..Self::permanent(stage, lines.join("\n")) }
    }

    /// Returns the failure that a question to the clone without an answer is.
    pub(super) fn git(stage: Stage, error: &GitError) -> Self {
        match error {
            GitError::Job(JobError::TooMuch { .. }) => Self::permanent(stage, error.to_string()),
            GitError::Job(_) => Self::transient(stage, error.to_string()),
            GitError::Refused { .. } => Self::permanent(stage, error.to_string()),
        }
    }

    /// Returns the failure that a call without an answer is. What a master refuses it may take later, but for what is too
    /// large, or of somebody who may not: that would be refused for ever.
    pub(super) fn call(error: &CallError) -> Self {
        let is_away = match error {
            CallError::Away(_) | CallError::NotLeader { .. } => true,
            CallError::Refused { code, .. } if matches!(code.as_str(), "forbidden" | "too-large") => {
                return Self::permanent(Stage::Submitted, error.to_string());
            }
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

#[cfg(test)]
mod tests {
    use stead_model::diagnostic::Place;

    use super::*;

    /// Section 3: what to do, and the other place, are told with what is wrong; and everything is there one by one.
    #[test]
    fn what_is_wrong_comes_with_its_help_and_its_other_place() {
        let place = |name: &str| Place::Named(name.to_owned());
        let problem = Diagnostic::error("fleet/duplicate-id", place("b.yaml"), "`web` is there twice")
            .help("rename one")
            .related(place("a.yaml"), "it is also here");
        let plain = Diagnostic::error("fleet/bad-type", place("c.yaml"), "no").path("vms");
        let failure = Failure::invalid(Stage::Evaluated, &Diagnostics(vec![problem, plain]));
        assert_eq!(
            failure.error,
            "b.yaml: `web` is there twice (fleet/duplicate-id); it is also here: a.yaml; rename one\nc.yaml: vms: no (fleet/bad-type)"
        );
        assert_eq!(failure.problems.0.len(), 2);
    }

    #[test]
    fn what_a_master_never_takes_is_not_tried_without_end() {
        let refused = |code: &str| CallError::Refused { code: code.to_owned(), message: "no".to_owned() };
        for code in ["forbidden", "too-large"] {
            assert_eq!(Failure::call(&refused(code)).class, FailureClass::Permanent, "{code}");
        }
        for error in [refused("store-unavailable"), refused("rebuilding"), CallError::Away(String::new())] {
            assert_eq!(Failure::call(&error).class, FailureClass::Transient, "{error:?}");
        }
    }
}

//! How tasks, hosts and runs end.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::exit_code::ExitCode;

macro_rules! words {
    ($name:ident { $($variant:ident => $text:literal),+ $(,)? }) => {
        impl $name {
            /// Every value, in the order reports count them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the word used in files and output.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

/// How a task, or one host's part of it, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It ran, succeeded, and something is different now.
    Changed,
    /// It ran, succeeded, and everything was already as wanted.
    Unchanged,
    /// It was decided not to run; the [`Cause`] says why.
    Skipped,
    /// Attempts used up, or an error that is not retried.
    Failed,
    /// It had started and was stopped.
    Cancelled,
    /// It never started because the run stopped first.
    NotRun,
    /// A dry run cannot know.
    Unknown,
}

words!(Status {
    Changed => "changed",
    Unchanged => "unchanged",
    Skipped => "skipped",
    Failed => "failed",
    Cancelled => "cancelled",
    NotRun => "not_run",
    Unknown => "unknown",
});

/// Why a task was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A `when` or `when_host` was false.
    Guard,
    /// `only_if_changed` found nothing changed.
    Unchanged,
    /// The trigger rule, or a target without hosts.
    Rule,
    /// No host supports the operation.
    Unsupported,
    /// A person said no.
    Declined,
    /// `--only` or `--limit` left it out.
    NotSelected,
    /// Something upstream is broken.
    Dependency,
}

words!(Cause {
    Guard => "guard",
    Unchanged => "unchanged",
    Rule => "rule",
    Unsupported => "unsupported",
    Declined => "declined",
    NotSelected => "not_selected",
    Dependency => "dependency",
});

/// What a finished task means to those that depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It ran and succeeded.
    Ran,
    /// It was rightly left out.
    Passed,
    /// It, or something upstream of it, went wrong.
    Broken,
    /// Dry run only: it would run or pass, which of them is not known.
    Unknown,
}

impl Status {
    /// Returns what this end, with its cause if it is a skip, means to dependents.
    pub fn class(self, cause: Option<Cause>) -> Class {
        match (self, cause) {
            (Self::Changed | Self::Unchanged, _) => Class::Ran,
            (Self::Skipped, Some(Cause::Dependency)) => Class::Broken,
            (Self::Skipped, _) => Class::Passed,
            (Self::Failed | Self::Cancelled | Self::NotRun, _) => Class::Broken,
            (Self::Unknown, _) => Class::Unknown,
        }
    }
}

/// What kind of error a failure is; the runner retries by it, never by text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorClass {
    /// A command's exit code or signal.
    Exit,
    /// An operation could not do its work.
    Operation,
    /// The host cannot be reached.
    Unreachable,
    /// An attempt took too long.
    Timeout,
    /// The task panicked.
    Panic,
    /// An error that trying again cannot mend.
    Permanent,
    /// Parameters, template or target are wrong.
    Invalid,
    /// A guard erred or gave something that is no boolean.
    Guard,
    /// The driver died in a non-idempotent attempt.
    Interrupted,
    /// Another run holds the target.
    Locked,
    /// The journal could not be written.
    Journal,
    /// A step found something that is not as it should be.
    Check,
}

words!(ErrorClass {
    Exit => "exit",
    Operation => "operation",
    Unreachable => "unreachable",
    Timeout => "timeout",
    Panic => "panic",
    Permanent => "permanent",
    Invalid => "invalid",
    Guard => "guard",
    Interrupted => "interrupted",
    Locked => "locked",
    Journal => "journal",
    Check => "check",
});

impl ErrorClass {
    /// Whether `retry` covers this class when its `on` list is not given.
    pub const fn is_retried_by_default(self) -> bool {
        matches!(self, Self::Exit | Self::Operation | Self::Unreachable | Self::Timeout)
    }

    /// Whether a `retry.on` list may name this class at all.
    pub const fn may_be_retried(self) -> bool {
        self.is_retried_by_default() || matches!(self, Self::Panic | Self::Check)
    }
}

/// How a run stands, or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Not ended yet.
    Running,
    /// No task failed.
    Success,
    /// A task failed, or the run could not start.
    Failed,
    /// The plan's timeout passed.
    Timeout,
    /// A signal or the API stopped it.
    Cancelled,
}

words!(RunStatus {
    Running => "running",
    Success => "success",
    Failed => "failed",
    Timeout => "timeout",
    Cancelled => "cancelled",
});

impl RunStatus {
    /// Returns the exit code of a run that ended so, its failures being of `classes`.
    pub fn exit_code(self, classes: impl IntoIterator<Item = Option<ErrorClass>>) -> ExitCode {
        match self {
            Self::Running | Self::Success => ExitCode::Success,
            Self::Timeout => ExitCode::TimedOut,
            Self::Cancelled => ExitCode::Cancelled,
            Self::Failed => {
                let mut classes = classes.into_iter();
                let Some(first) = classes.next() else { return ExitCode::Failed };
                match first {
                    _ if classes.any(|other| other != first) => ExitCode::Failed,
                    Some(ErrorClass::Unreachable) => ExitCode::Unreachable,
                    Some(ErrorClass::Timeout) => ExitCode::TimedOut,
                    Some(ErrorClass::Locked) => ExitCode::Locked,
                    Some(ErrorClass::Check) => ExitCode::Verification,
                    _ => ExitCode::Failed,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_of_a_failed_run_follow_its_failures() {
        let code =
            |classes: &[ErrorClass]| RunStatus::Failed.exit_code(classes.iter().copied().map(Some)).code();
        assert_eq!(code(&[]), 1);
        assert_eq!(code(&[ErrorClass::Exit]), 1);
        assert_eq!(code(&[ErrorClass::Unreachable, ErrorClass::Unreachable]), 7);
        assert_eq!(code(&[ErrorClass::Timeout]), 8);
        assert_eq!(code(&[ErrorClass::Locked]), 5);
        assert_eq!(code(&[ErrorClass::Check, ErrorClass::Check]), 4);
        assert_eq!(code(&[ErrorClass::Check, ErrorClass::Exit]), 1);
        assert_eq!(code(&[ErrorClass::Timeout, ErrorClass::Unreachable]), 1);
    }

    #[test]
    fn words_match_serde() {
        for status in Status::ALL {
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
        }
        for class in ErrorClass::ALL {
            assert_eq!(serde_json::to_value(class).unwrap(), class.as_str());
        }
        for cause in Cause::ALL {
            assert_eq!(serde_json::to_value(cause).unwrap(), cause.as_str());
        }
    }
}

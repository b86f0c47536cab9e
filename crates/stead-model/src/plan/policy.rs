//! The small choices a plan makes: what failure does, how often to retry, how much at once.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::duration::as_millis;
use crate::status::ErrorClass;

/// What a task's failure does to the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// Nothing new starts, running tasks are cancelled.
    #[default]
    StopAll,
    /// Dependents are skipped, the rest goes on.
    Continue,
}

/// What happens to changes of a failed run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// They stay.
    #[default]
    Keep,
    /// They are undone.
    Rollback,
}

/// How much may run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Attempts at once over all hosts, 1 to 10,000.
    pub parallel: u32,
    /// Attempts at once per host; not given: 8, and for `local` logical CPUs + 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_target: Option<u32>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { parallel: 64, per_target: None }
    }
}

/// What to do if a target matches no host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnEmpty {
    /// The task fails, class `invalid`.
    #[default]
    Fail,
    /// The task is skipped, cause `rule`.
    Skip,
}

/// When a task runs, by the ends of its direct dependencies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TriggerRule {
    /// No dependency broken.
    #[default]
    AllOk,
    /// Every dependency ran.
    AllRan,
    /// At least one ran.
    AnyOk,
    /// Always.
    AllDone,
    /// At least one broken.
    AnyFailed,
    /// Every dependency broken.
    AllFailed,
}

impl TriggerRule {
    /// Whether the rule says nothing without dependencies.
    pub const fn needs_dependencies(self) -> bool {
        matches!(self, Self::AnyOk | Self::AnyFailed | Self::AllFailed)
    }

    /// Returns the word used in files and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AllOk => "all_ok",
            Self::AllRan => "all_ran",
            Self::AnyOk => "any_ok",
            Self::AllDone => "all_done",
            Self::AnyFailed => "any_failed",
            Self::AllFailed => "all_failed",
        }
    }
}

/// Whether a task wants something changed before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnlyIfChanged {
    /// It does not care.
    #[default]
    No,
    /// At least one direct dependency changed.
    Any,
    /// Every direct dependency changed.
    All,
}

/// What resume does with a non-idempotent attempt that has no result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interrupted {
    /// The row fails and a person decides.
    #[default]
    Fail,
    /// It runs again.
    Retry,
}

/// How many hosts of a task may fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostFailure {
    /// One failed host fails the task.
    #[default]
    Any,
    /// Only when every non-skipped host failed.
    All,
    /// When more than this percentage (0 to 99) of the non-skipped hosts failed.
    Percent(u8),
}

impl HostFailure {
    /// Whether `failed` hosts out of `counted` (hosts less skipped ones) are too many.
    pub fn is_violated(self, failed: usize, counted: usize) -> bool {
        match self {
            Self::Any => failed > 0,
            Self::All => failed > 0 && failed == counted,
            Self::Percent(limit) => failed * 100 > usize::from(limit) * counted,
        }
    }
}

/// A number of hosts: a count or a share of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Size {
    /// So many.
    Count(u32),
    /// So many of a hundred, rounded up.
    Percent(u32),
}

impl Size {
    /// Returns how many of `all` hosts this is, at least one.
    pub fn of(self, all: usize) -> usize {
        match self {
            Self::Count(count) => (count as usize).max(1),
            Self::Percent(percent) => (all * percent as usize).div_ceil(100).max(1),
        }
    }
}

/// A name held while a task, or its attempt on one host, runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Mutex {
    /// The name.
    pub name: String,
    /// For how long and where it is held.
    pub scope: MutexScope,
}

/// For how long and where a mutex is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MutexScope {
    /// For the whole task, in the whole run.
    #[default]
    Run,
    /// For one attempt, on its host.
    Host,
}

/// How often, when and for which errors a task is tried again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Retry {
    /// How often it is tried again: `times + 1` attempts.
    pub times: u32,
    /// How long to wait.
    pub backoff: Backoff,
    /// For which classes; empty: the default ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on: Vec<ErrorClass>,
}

impl Default for Retry {
    fn default() -> Self {
        Self { times: 0, backoff: Backoff::NONE, on: Vec::new() }
    }
}

impl Retry {
    /// Returns a policy of `times` retries without delay.
    pub fn times(times: u32) -> Self {
        Self { times, ..Self::default() }
    }

    /// Returns this policy with delays from `initial`, doubling up to `max`.
    pub fn backoff(mut self, initial: Duration, max: Duration) -> Self {
        self.backoff = Backoff { initial, max, factor: 2.0, jitter: Jitter::None };
        self
    }

    /// Returns this policy with jitter.
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.backoff.jitter = jitter;
        self
    }

    /// Returns this policy for exactly these error classes.
    pub fn on(mut self, classes: impl IntoIterator<Item = ErrorClass>) -> Self {
        self.on = classes.into_iter().collect();
        self
    }

    /// Whether an error of `class` is tried again at all.
    pub fn covers(&self, class: ErrorClass) -> bool {
        if self.on.is_empty() {
            class.is_retried_by_default()
        } else {
            class.may_be_retried() && self.on.contains(&class)
        }
    }
}

/// How long to wait before the next attempt: `min(initial * factor^(k-1), max)` after failed attempt k.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Backoff {
    /// After the first failed attempt.
    #[serde(with = "as_millis")]
    pub initial: Duration,
    /// Never more than this.
    #[serde(with = "as_millis")]
    pub max: Duration,
    /// By how much it grows.
    pub factor: f64,
    /// Whether the delay is spread.
    pub jitter: Jitter,
}

impl Backoff {
    /// Again at once.
    pub const NONE: Self =
        Self { initial: Duration::ZERO, max: Duration::ZERO, factor: 2.0, jitter: Jitter::None };
    /// One second, doubling up to thirty.
    pub const EXPONENTIAL: Self = Self {
        initial: Duration::from_secs(1),
        max: Duration::from_secs(30),
        factor: 2.0,
        jitter: Jitter::None,
    };
}

/// Whether a delay is spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Jitter {
    /// Exactly the delay.
    #[default]
    None,
    /// Anywhere from zero to the delay; the same for the same run, task, host and attempt.
    Full,
}

impl fmt::Display for TriggerRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_failure_counts_only_hosts_that_were_not_skipped() {
        assert!(HostFailure::Any.is_violated(1, 4));
        assert!(!HostFailure::All.is_violated(3, 4));
        assert!(HostFailure::All.is_violated(4, 4));
        assert!(!HostFailure::All.is_violated(0, 0));
        assert!(!HostFailure::Percent(50).is_violated(2, 4));
        assert!(HostFailure::Percent(50).is_violated(3, 4));
        assert!(HostFailure::Percent(0).is_violated(1, 100));
    }

    #[test]
    fn sizes_round_up_and_are_at_least_one() {
        assert_eq!(Size::Percent(25).of(10), 3);
        assert_eq!(Size::Percent(1).of(10), 1);
        assert_eq!(Size::Count(0).of(10), 1);
    }

    #[test]
    fn retry_covers_default_classes_or_exactly_those_named() {
        assert!(Retry::times(1).covers(ErrorClass::Exit));
        assert!(!Retry::times(1).covers(ErrorClass::Panic));
        assert!(Retry::times(1).on([ErrorClass::Panic]).covers(ErrorClass::Panic));
        assert!(!Retry::times(1).on([ErrorClass::Panic]).covers(ErrorClass::Exit));
        assert!(!Retry::times(1).on([ErrorClass::Permanent]).covers(ErrorClass::Permanent));
    }
}

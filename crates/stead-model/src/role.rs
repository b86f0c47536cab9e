//! Roles as their supervisors know them: what to start, when it counts as ready, how it is stopped, what became of it.
//!
//! A [`RoleOrder`] goes from a driver to an agent, [`RoleEvent`]s come back. What a manifest says of roles is read
//! elsewhere; here are the values that travel.

mod readiness;
mod site;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::RunId;
use crate::executor::ByteText;
use crate::run_plan::RoleKind;
use crate::time::Timestamp;

pub use readiness::{
    Address, Fallback, LogStream, Probe, ProbeAnswer, ProbeFrom, Readiness, ReadyDefaults, ReadyMethod,
    ReadyProblem, StatusRange,
};
pub use site::{
    ArtifactQuestion, FileStat, Found, FoundKind, LeftRole, Leftovers, Program, ProgramQuestion, RunWork,
    SiteAnswer, SiteAsk, WorkTag,
};

/// How long what a role left behind may take to end when it is asked to.
pub const LEFT_PROCESSES_GRACE_MS: u64 = 1_000;

/// What a supervisor needs to start and judge one role. `Debug` shows no values of its environment.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct RoleOrder {
    /// The run.
    pub run: RunId,
    /// The role instance.
    pub role: String,
    /// When it has ended: a task with its first process, a service with its last.
    #[serde(default)]
    pub kind: RoleKind,
    /// What it is started with; the first item as it was written.
    pub argv: Vec<String>,
    /// The program that is started, as [`Program::path`] has it.
    pub program: String,
    /// Added to the agent's environment, complete: with `STEAD_RUN_ID`, `STEAD_ROLE`, `STEAD_SEED`, `STEAD_WORKDIR`.
    pub env: BTreeMap<String, String>,
    /// Variables of the agent's environment it does not get.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden_env: Vec<String>,
    /// Where it starts; absolute.
    pub workdir: String,
    /// Values that become `***` in its output.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// When it counts as ready; none: nobody asks (a task).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Readiness>,
    /// How it is stopped.
    pub stop: StopRule,
}

impl fmt::Debug for RoleOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.env.keys().collect();
        f.debug_struct("RoleOrder")
            .field("run", &self.run)
            .field("role", &self.role)
            .field("argv", &self.argv)
            .field("env", &names)
            .field("workdir", &self.workdir)
            .finish_non_exhaustive()
    }
}

/// How a role is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRule {
    /// What every process of it is sent.
    pub signal: StopSignal,
    /// How long it may take before it is killed.
    pub grace_seconds: u32,
}

impl StopRule {
    /// The longest grace period.
    pub const LONGEST_GRACE: u32 = 600;
}

impl Default for StopRule {
    fn default() -> Self {
        Self { signal: StopSignal::Term, grace_seconds: 10 }
    }
}

/// Signals that may ask a role to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum StopSignal {
    /// SIGTERM.
    Term,
    /// SIGINT.
    Int,
    /// SIGHUP.
    Hup,
    /// SIGQUIT.
    Quit,
    /// SIGUSR1.
    Usr1,
    /// SIGUSR2.
    Usr2,
}

impl StopSignal {
    /// Every one, in the order they are listed to people.
    pub const ALL: [Self; 6] = [Self::Term, Self::Int, Self::Hup, Self::Quit, Self::Usr1, Self::Usr2];

    /// Returns its name without `SIG`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Term => "TERM",
            Self::Int => "INT",
            Self::Hup => "HUP",
            Self::Quit => "QUIT",
            Self::Usr1 => "USR1",
            Self::Usr2 => "USR2",
        }
    }
}

impl fmt::Display for StopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that is no [`StopSignal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a stop signal is TERM, INT, HUP, QUIT, USR1 or USR2")]
pub struct UnknownStopSignal;

impl FromStr for StopSignal {
    type Err = UnknownStopSignal;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|signal| signal.as_str() == text).ok_or(UnknownStopSignal)
    }
}

/// Why a role is stopped, for its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// Nobody needs it any more.
    Done,
    /// Its `duration_seconds` are over.
    Duration,
    /// It, or the run, took too long.
    Timeout,
    /// The run failed.
    Failure,
    /// The run was asked to stop.
    Cancelled,
    /// Its driver was lost.
    DriverLost,
}

impl StopReason {
    /// Returns the word used in records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Duration => "duration",
            Self::Timeout => "timeout",
            Self::Failure => "failure",
            Self::Cancelled => "cancelled",
            Self::DriverLost => "driver_lost",
        }
    }
}

/// What a supervisor tells of its role, in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ev", rename_all = "snake_case")]
pub enum RoleEvent {
    /// It runs.
    Started {
        /// Its process.
        pid: u32,
        /// When, by the agent's clock.
        at: Timestamp,
    },
    /// It was not started; nothing follows.
    NotStarted {
        /// Why.
        reason: String,
    },
    /// It counts as ready.
    Ready {
        /// Which method answered, as `role_meta.ready.by` has it.
        by: String,
        /// How long after its start.
        after_ms: u64,
        /// What it said of itself: `roles.R.ready.KEY`.
        values: Map<String, Value>,
    },
    /// It was not ready in time and still runs, or it ended before it was ready.
    NotReady {
        /// What was waited for and what was last seen, or how it ended.
        reason: String,
        /// The end of its standard error so far, masked.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        last_stderr: Vec<String>,
    },
    /// Something a person should know.
    Warning {
        /// Its stable code.
        code: String,
        /// One sentence.
        text: String,
    },
    /// Its logs hold this much now; at most ten a second.
    Logged {
        /// Bytes of `stdout.log`.
        stdout_bytes: u64,
        /// Bytes of `stderr.log`.
        stderr_bytes: u64,
    },
    /// It was asked to stop.
    Stopping {
        /// How.
        signal: String,
        /// Why.
        reason: StopReason,
    },
    /// It has ended, and no process of it is left; nothing follows.
    Exited(RoleExit),
}

impl RoleEvent {
    /// Whether no event follows this one.
    pub const fn is_last(&self) -> bool {
        match self {
            Self::Exited(_) | Self::NotStarted { .. } => true,
            Self::Started { .. }
            | Self::Ready { .. }
            | Self::NotReady { .. }
            | Self::Warning { .. }
            | Self::Logged { .. }
            | Self::Stopping { .. } => false,
        }
    }
}

/// How a role ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleExit {
    /// Its exit code; none if a signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended it, without `SIG`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// When, by the agent's clock.
    pub at: Timestamp,
    /// Whether it had to be killed because it did not stop in time.
    #[serde(default)]
    pub killed: bool,
    /// How many processes it left that had to be ended.
    #[serde(default)]
    pub left_processes: u32,
    /// How long it ran.
    pub duration_ms: u64,
    /// The most memory one of its processes had at once.
    pub max_rss_bytes: u64,
    /// Processor time of all its processes.
    pub cpu_ms: u64,
    /// Bytes of `stdout.log`.
    pub stdout_bytes: u64,
    /// Bytes of `stderr.log`.
    pub stderr_bytes: u64,
    /// The end of its standard error, masked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_stderr: Vec<String>,
}

impl RoleExit {
    /// Returns when it was started, by the agent's clock.
    pub fn started_at(&self) -> Timestamp {
        let micros = i64::try_from(self.duration_ms.saturating_mul(1_000)).unwrap_or(i64::MAX);
        Timestamp::from_micros(self.at.as_micros().saturating_sub(micros))
    }

    /// Returns how it ended in words: `exit code 3`, `signal KILL`.
    pub fn in_words(&self) -> String {
        match (self.exit_code, &self.signal) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "an unknown end".to_owned(),
        }
    }
}

const SIGNALS: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

/// Returns the name a signal has in records; its number where it has none.
pub fn signal_name(number: i32) -> String {
    let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    index.and_then(|index| SIGNALS.get(index)).map_or_else(|| number.to_string(), |name| (*name).to_owned())
}

/// Returns the number of the signal that [`signal_name`] calls so.
pub fn signal_number(name: &str) -> Option<i32> {
    let index = SIGNALS.iter().position(|known| *known == name);
    index.and_then(|index| i32::try_from(index + 1).ok()).or_else(|| name.parse().ok())
}

/// A plain program in a role's place: what it leaves running is its result and stays. `Debug` shows no values of its
/// environment.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlainCommand {
    /// The program and its arguments; the order's are not used.
    pub argv: Vec<ByteText>,
    /// Added to the agent's environment; the order's is not used.
    pub env: BTreeMap<String, ByteText>,
    /// Whether it gets `env` alone.
    #[serde(default)]
    pub clear_env: bool,
    /// The pipe it reads; none: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
}

impl fmt::Debug for PlainCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.env.keys().collect();
        f.debug_struct("PlainCommand").field("argv", &self.argv).field("env", &names).finish_non_exhaustive()
    }
}

/// What a supervisor is told over its control pipe. Its end means: stop the role.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "m", rename_all = "snake_case")]
pub enum SupervisorRequest {
    /// The first message: what to start.
    Start {
        /// It.
        order: Box<RoleOrder>,
        /// The directory of `stdout.log` and `stderr.log`.
        logs: String,
        /// Where its end is noted, for those who come when nobody heard of it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
        /// A plain program instead of a role.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        plain: Option<PlainCommand>,
    },
    /// Stop it; again, with `kill`, is allowed.
    Stop {
        /// Why.
        reason: StopReason,
        /// At once, without asking.
        #[serde(default)]
        kill: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_their_names() {
        assert_eq!([9, 15, 1, 31, 34, 0].map(signal_name), ["KILL", "TERM", "HUP", "SYS", "34", "0"]);
        assert_eq!(["KILL", "34", "x"].map(signal_number), [Some(9), Some(34), None]);
        for signal in StopSignal::ALL {
            assert_eq!(signal.as_str().parse(), Ok(signal));
        }
        assert_eq!("KILL".parse::<StopSignal>(), Err(UnknownStopSignal));
    }

    #[test]
    fn an_order_shows_no_values() {
        let order = RoleOrder {
            run: RunId::parse("r").unwrap(),
            role: "server".to_owned(),
            kind: RoleKind::Service,
            argv: vec!["server".to_owned()],
            program: "/bin/server".to_owned(),
            env: BTreeMap::from([("TOKEN".to_owned(), "hush".to_owned())]),
            hidden_env: Vec::new(),
            workdir: "/w".to_owned(),
            secrets: vec!["hush".to_owned()],
            ready: None,
            stop: StopRule::default(),
        };
        assert!(!format!("{order:?}").contains("hush"));
        let text = serde_json::to_string(&order).unwrap();
        assert_eq!(serde_json::from_str::<RoleOrder>(&text).unwrap(), order);
    }

    #[test]
    fn events_travel_as_json() {
        let event = RoleEvent::Exited(RoleExit { exit_code: Some(3), ..RoleExit::default() });
        let text = serde_json::to_string(&event).unwrap();
        assert!(text.starts_with(r#"{"ev":"exited","exit_code":3"#), "{text}");
        assert_eq!(serde_json::from_str::<RoleEvent>(&text).unwrap(), event);
        assert!(event.is_last());
    }
}

//! Commands that agents run.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use super::{WireCode, WireError, parse_body};
use crate::id::{MessageId, NodeName};
use crate::time::Timestamp;

/// The most that is kept of each stream of a job.
pub const STREAM_BYTES: usize = 1024 * 1024;

/// The most that a job is given to read.
pub const INPUT_BYTES: usize = 16 * 1024 * 1024;

/// The most arguments of a job, and the most bytes of them.
const MOST_ARGUMENTS: usize = 4096;
const MOST_ARGUMENT_BYTES: usize = 128 * 1024;

/// The longest lifetime and timeout of a job: 10 years.
const LONGEST_SECONDS: u64 = 10 * 366 * 24 * 3600;

/// What an operator asks for: `POST /v1/jobs`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// Where.
    pub node: NodeName,
    /// What.
    pub argv: Vec<String>,
    /// How long it may wait for its agent, in seconds.
    #[serde(default = "an_hour", deserialize_with = "seconds")]
    pub ttl: u64,
    /// How long it may run, in seconds.
    #[serde(default, deserialize_with = "some_seconds", skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u64>,
    /// Whether it may run again if nobody knows whether it ran.
    #[serde(default)]
    pub idempotent: bool,
    /// Whether whole lines of what it writes can be read while it runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub live: bool,
    /// Who asks again with the same key asks for the same job: there is one, however often an answer was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What it reads from standard input. It may be secret: no journal, list or log has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<JobInput>,
}

/// What a job reads from standard input. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobInput(String);

impl JobInput {
    /// Returns `text` as the input of a job.
    pub const fn new(text: String) -> Self {
        Self(text)
    }

    /// Returns the text, for who gives it to the job.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for JobInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "*** ({} bytes)", self.0.len())
    }
}

fn an_hour() -> u64 {
    3600
}

/// Reads a number of seconds, or a text such as `1h`.
fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let written = serde_json::Value::deserialize(deserializer)?;
    let read = match &written {
        serde_json::Value::Number(number) => number.as_u64(),
        serde_json::Value::String(text) => {
            crate::site::settings::parse_lifetime(text).ok().as_ref().map(Duration::as_secs)
        }
        serde_json::Value::Null
        | serde_json::Value::Bool(_)
        | serde_json::Value::Array(_)
        | serde_json::Value::Object(_) => None,
    };
    read.filter(|seconds| (1..=LONGEST_SECONDS).contains(seconds))
        .ok_or_else(|| serde::de::Error::custom("a time in seconds, or a text such as `1h`"))
}

fn some_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    struct Seconds(#[serde(deserialize_with = "seconds")] u64);
    Ok(Option::<Seconds>::deserialize(deserializer)?.map(|seconds| seconds.0))
}

impl JobRequest {
    /// Returns what a body asks for.
    pub fn parse(body: &[u8]) -> Result<Self, WireError> {
        let request: Self = parse_body(body)?;
        let refuse = |why: &str| Err(WireError::new(WireCode::E400, why));
        if request.argv.first().is_none_or(String::is_empty) {
            return refuse("`argv` names no program");
        }
        if request.argv.iter().any(|argument| argument.contains('\0')) {
            return refuse("an argument holds a NUL");
        }
        let bytes: usize = request.argv.iter().map(String::len).sum();
        if request.argv.len() > MOST_ARGUMENTS || bytes > MOST_ARGUMENT_BYTES {
            return refuse("a job has at most 4096 arguments of together 128 KiB; write a script");
        }
        if request.key.as_deref().is_some_and(|key| !is_key(key)) {
            return refuse("a key has at most 128 letters, digits, `.`, `_` and `-`");
        }
        if request.input.as_ref().is_some_and(|input| input.0.len() > INPUT_BYTES) {
            return refuse("a job reads at most 16 MiB");
        }
        Ok(request)
    }
}

fn is_key(text: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=128).contains(&text.len()) && text.bytes().all(is_good)
}

/// What a job does.
///
/// ```text
/// queued ─▶ delivered ─▶ running ─▶ succeeded | failed | cancelled
///    │          └───────────┴─────▶ lost (nobody knows whether it ran)
///    ├─▶ expired (its agent did not come in time)
///    └─▶ cancelled
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// Waits for its agent.
    Queued,
    /// An agent has taken it.
    Delivered,
    /// Its agent has started it.
    Running,
    /// It ended with 0.
    Succeeded,
    /// It ended with something else, or could not be started.
    Failed,
    /// An operator ended it.
    Cancelled,
    /// No agent came in time.
    Expired,
    /// Its agent ended in between: nobody knows whether it ran.
    Lost,
}

impl JobState {
    /// Returns the word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Delivered => "delivered",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Lost => "lost",
        }
    }

    /// Whether nothing follows.
    pub const fn is_final(self) -> bool {
        match self {
            Self::Queued | Self::Delivered | Self::Running => false,
            Self::Succeeded | Self::Failed | Self::Cancelled | Self::Expired | Self::Lost => true,
        }
    }
}

/// A job as operators see it. `I`: what it is called, which has more parts where it is seen from a level above.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job<I = MessageId> {
    /// What it is called.
    pub id: I,
    /// Where.
    pub node: NodeName,
    /// What.
    pub argv: Vec<String>,
    /// How far it is.
    pub state: JobState,
    /// Who asked for it.
    pub by: String,
    /// When.
    pub created_at: Timestamp,
    /// When its agent started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// What it ended with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rc: Option<i32>,
    /// What it wrote; empty in lists.
    pub stdout: String,
    /// What it complained about; empty in lists.
    pub stderr: String,
    /// Whether one of the streams was cut.
    pub truncated: bool,
    /// Why it did not end well, if it is not for its own exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl<I> Job<I> {
    /// Returns the same job under another name.
    pub fn named<J>(self, name: impl FnOnce(I) -> J) -> Job<J> {
        Job {
            id: name(self.id),
            node: self.node,
            argv: self.argv,
            state: self.state,
            by: self.by,
            created_at: self.created_at,
            started_at: self.started_at,
            finished_at: self.finished_at,
            rc: self.rc,
            stdout: self.stdout,
            stderr: self.stderr,
            truncated: self.truncated,
            error: self.error,
        }
    }
}

/// The payload of a signal of the kind `job`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "lowercase")]
pub enum JobOrder {
    /// Run it. The id of the signal is that of the job.
    Run {
        /// Which job.
        job: MessageId,
        /// What to run.
        argv: Vec<String>,
        /// For how long at most, in seconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout: Option<u64>,
        /// Whether it may run again if the agent does not know whether it ran.
        idempotent: bool,
        /// Whether whole lines of what it writes are reported while it runs.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        live: bool,
        /// Whether it reads something: `GET …/jobs/ID/input`.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        input: bool,
    },
    /// End it, if it runs; report it as cancelled.
    Cancel {
        /// Which job.
        job: MessageId,
    },
}

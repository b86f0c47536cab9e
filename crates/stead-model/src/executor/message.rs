//! The messages, as the protocol's table has them.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::plan::Op;
use crate::report::Warning;
use crate::role::{
    FileStat, Probe, ProbeAnswer, RoleEvent, RoleExit, RoleOrder, RunWork, SiteAnswer, SiteAsk, StopReason,
    signal_number,
};
use crate::status::ErrorClass;
use crate::{OperationName, RunId};

use super::bytes::ByteText;
use super::frame::{Frame, FrameError, FrameKind};

/// Appends a message of `id` as a frame.
///
/// # Errors
/// If it is too long; then nothing is appended.
pub fn write<T: Serialize>(out: &mut Vec<u8>, id: u32, message: &T) -> Result<(), FrameError> {
    // Maps have text keys and nothing here fails to serialise.
    let body = serde_json::to_vec(message).unwrap_or_default();
    Frame::write(out, FrameKind::Json, id, &body)
}

/// What a driver sends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "m", rename_all = "snake_case")]
pub enum Request {
    /// The first message of a connection.
    Hello(Hello),
    /// Carry out an operation.
    Op(Box<OpRequest>),
    /// Content that was asked for with `want` follows, from `offset` on.
    Blob {
        /// Its hash.
        sha256: String,
        /// Its whole size.
        #[serde(default)]
        size: u64,
        /// Where the bytes that follow begin.
        #[serde(default)]
        offset: u64,
        /// Why there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// A file that was offered with `keep` is kept, or is not.
    Done {
        /// The hash of what was kept.
        sha256: String,
        /// Whether it was not there before.
        #[serde(default)]
        changed: bool,
        /// Where it is on the driver.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<String>,
        /// Why it is not kept.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// Run a program.
    Exec(Box<ExecRequest>),
    /// Input of the program of this id follows.
    Stdin {
        /// Whether this is all, and nothing follows.
        #[serde(default)]
        end: bool,
    },
    /// Write a file; its content is asked for with `want` if it is not there.
    Put {
        /// Where; absolute. Parents are made.
        path: String,
        /// Permission bits; none: 0644.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mode: Option<u32>,
        /// Its hash.
        sha256: String,
        /// Its size.
        size: u64,
    },
    /// Send a file; it is offered with `keep`.
    Get {
        /// Which; absolute. Links are not followed.
        path: String,
    },
    /// Tell what is at a path.
    Stat {
        /// Which; absolute.
        path: String,
        /// Whether its content is to be hashed.
        #[serde(default)]
        hash: bool,
    },
    /// Start a role under a supervisor.
    Role(Box<RoleRequest>),
    /// Stop the role of this id.
    Stop {
        /// Why.
        reason: StopReason,
        /// At once.
        #[serde(default)]
        kill: bool,
    },
    /// Look once.
    Probe(Probe),
    /// Ask something of the place where roles run.
    Site(SiteAsk),
    /// Gather facts.
    Facts {
        /// These only; empty: all.
        #[serde(default)]
        only: Vec<String>,
    },
    /// Take the target's lock for `run`.
    Lock {
        /// The run.
        run: RunId,
        /// How long to wait for it.
        #[serde(default)]
        wait_ms: u64,
        /// Where the driver runs, for those who find it held.
        #[serde(default)]
        driver: String,
        /// Who runs it.
        #[serde(default)]
        user: String,
        /// Since when, as text.
        #[serde(default)]
        since: String,
        /// The run that started this one: its lock is no obstacle.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<RunId>,
    },
    /// Stop the work of this id.
    Cancel {
        /// `TERM` asks and kills after the grace period, `KILL` kills.
        signal: String,
        /// The grace period.
        #[serde(default)]
        grace_ms: u64,
    },
    /// The result of `id` has arrived and can be forgotten.
    Ack {
        /// Whose result.
        id: u32,
    },
    /// The driver lives.
    Beat {
        /// How much output has arrived since it last said so.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        received: Vec<Received>,
    },
    /// The run is over.
    Bye,
}

/// The driver introduces itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// Protocol versions it speaks.
    pub protocol: Vec<u32>,
    /// Its version.
    pub version: String,
    /// The run.
    pub run: RunId,
    /// How long the session lives without hearing from the driver.
    pub lease_ms: u64,
    /// Operations act below this directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// Whether the driver knows nothing of an earlier connection: what still runs from then is ended first.
    #[serde(default)]
    pub fresh: bool,
    /// Which host of the run this is: several may be one machine.
    #[serde(default)]
    pub host: String,
    /// How much output has arrived, per id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub received: Vec<Received>,
    /// Where roles work, if it was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
}

/// How much of an id's output has arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    /// Whose.
    pub id: u32,
    /// Bytes of standard output.
    #[serde(default)]
    pub stdout: u64,
    /// Bytes of standard error.
    #[serde(default)]
    pub stderr: u64,
    /// Bytes of a file on its way to the driver.
    #[serde(default)]
    pub file: u64,
    /// Events of a role.
    #[serde(default)]
    pub events: u64,
}

/// A role to start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoleRequest {
    /// What.
    pub order: RoleOrder,
    /// Whose.
    pub work: RunWork,
}

/// A program to run. `Debug` shows no values of its environment.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// The program and its arguments.
    pub argv: Vec<ByteText>,
    /// Added to the account's environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, ByteText>,
    /// Where it starts; none: the account's home.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Whether input follows; else it reads nothing.
    #[serde(default)]
    pub stdin: bool,
    /// Whether it gets `env` alone.
    #[serde(default)]
    pub clear_env: bool,
    /// Whether a terminal is wanted; there is none to be had.
    #[serde(default)]
    pub tty: bool,
}

impl fmt::Debug for ExecRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.env.keys().collect();
        f.debug_struct("ExecRequest").field("argv", &self.argv).field("env", &names).finish_non_exhaustive()
    }
}

/// An operation to carry out.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct OpRequest {
    /// Which one.
    pub operation: OperationName,
    /// Its parameters, rendered.
    pub params: Map<String, Value>,
    /// Only predict.
    #[serde(default)]
    pub check: bool,
    /// Whether a diff is wanted.
    #[serde(default)]
    pub diff: bool,
    /// Values that must not be shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// What programs that are started for it are told: run, task, host and attempt.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// It is stopped after this long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How long what it started may take to end when asked to.
    #[serde(default)]
    pub grace_ms: u64,
    /// Whether the operation that undoes it is wanted.
    #[serde(default)]
    pub undo: bool,
    /// Variables programs do not inherit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden_env: Vec<String>,
    /// What is at the driver's paths it names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sources: BTreeMap<String, Result<SourceTree, String>>,
    /// Names its templates may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<Map<String, Value>>,
    /// The values of its expressions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub answers: BTreeMap<String, Answer>,
    /// The boot that has ended, when this is the second half of a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarted: Option<String>,
}

/// Names only: values may be secret.
impl fmt::Debug for OpRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let params: Vec<_> = self.params.keys().collect();
        f.debug_struct("OpRequest")
            .field("operation", &self.operation)
            .field("params", &params)
            .field("check", &self.check)
            .finish_non_exhaustive()
    }
}

/// The value of an expression, or why it has none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It.
    Value(Value),
    /// There is none.
    Error(Expressed),
}

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expressed {
    /// What is wrong.
    pub message: String,
    /// Dry run: it hangs on what has yet to be found.
    #[serde(default)]
    pub not_known: bool,
}

/// What is at a path of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceTree {
    /// The path itself (`""`) first, then all below it, by name.
    pub entries: Vec<SourceEntry>,
}

/// One path of a [`SourceTree`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceEntry {
    /// Relative to the source.
    pub path: ByteText,
    /// What it is.
    pub kind: EntryKind,
    /// Permission bits.
    pub mode: u32,
    /// Bytes of a file.
    #[serde(default)]
    pub size: u64,
    /// Hash of a file.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sha256: String,
    /// Text of a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<ByteText>,
}

/// What a path of a source is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
}

/// What an executor sends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "m", rename_all = "snake_case")]
pub enum Reply {
    /// The answer to `hello`.
    Hello(Welcome),
    /// Output of this id follows.
    Out {
        /// Which.
        stream: Pipe,
        /// Where in the stream the bytes begin.
        offset: u64,
    },
    /// How an operation went.
    Result(Box<OpResult>),
    /// The content of this hash is needed, from `offset` on.
    Want {
        /// Which.
        sha256: String,
        /// What is there already.
        #[serde(default)]
        offset: u64,
    },
    /// A file for the driver follows as output of the stream `file`.
    Keep(Keep),
    /// The program of this id runs.
    Started {
        /// Its process.
        pid: u32,
    },
    /// What was asked is done.
    Done {
        /// The hash of the file it is about.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        sha256: String,
        /// Whether something is different.
        #[serde(default)]
        changed: bool,
        /// What `stat` found.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        found: Option<FileStat>,
    },
    /// A role's event of this number; counted from 1, each once.
    Role {
        /// Which.
        number: u64,
        /// It.
        event: RoleEvent,
    },
    /// The answer to `probe`.
    Probe(ProbeAnswer),
    /// The answer to `site`.
    Site(SiteAnswer),
    /// The answer to `lock`.
    Lock {
        /// Whether the run has it.
        granted: bool,
        /// Who has it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        holder: Option<Holder>,
    },
    /// The session lives.
    Beat,
    /// What was asked cannot be done; on id 0 the session itself is at an end.
    Error {
        /// Why.
        message: String,
        /// What a task fails with.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        class: Option<ErrorClass>,
    },
}

/// The executor introduces itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The protocol that is spoken.
    pub protocol: u32,
    /// Its version.
    pub version: String,
    /// The hash of the program.
    pub sha256: String,
    /// Its system.
    pub os: String,
    /// Its processor.
    pub arch: String,
    /// Its account.
    pub uid: u32,
    /// The session's process.
    pub pid: u32,
    /// When the machine started.
    pub boot_id: String,
    /// The ids it knows from before.
    #[serde(default)]
    pub resumed: Vec<u32>,
    /// The machine's own name.
    #[serde(default)]
    pub host: String,
    /// The time there: microseconds since the Unix epoch.
    #[serde(default)]
    pub time_micros: i64,
}

/// A stream of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pipe {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A file on its way to the driver.
    File,
}

/// A file for the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keep {
    /// Its size.
    pub size: u64,
    /// Its hash.
    pub sha256: String,
}

/// Who holds a target's lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The run.
    pub run: RunId,
    /// Where its driver runs.
    pub driver: String,
    /// Who runs it.
    pub user: String,
    /// Since when.
    pub since: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "run {} of {} on {}, since {}", self.run, self.user, self.driver, self.since)
    }
}

/// In which way an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpStatus {
    /// Something is different now, or would be.
    Changed,
    /// Nothing is.
    Unchanged,
    /// It failed.
    Failed,
    /// The target cannot do it.
    Skipped,
    /// Dry run: it cannot be known.
    Unknown,
    /// It was asked to stop and did.
    Cancelled,
}

/// How an operation went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpResult {
    /// In short.
    pub status: OpStatus,
    /// Whether something is different.
    #[serde(default)]
    pub changed: bool,
    /// Its data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// What differed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<Value>,
    /// The operation that restores what was before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Op>,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What kind of error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<ErrorClass>,
    /// Whether it came to no result that `failed_when` could judge.
    #[serde(default)]
    pub refused: bool,
    /// Whether the error itself says that something is different.
    #[serde(default)]
    pub error_changed: bool,
    /// Said with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A command's exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// How long a program of `exec` ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The most memory one of its processes had at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rss_bytes: Option<u64>,
    /// Processor time of all its processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// Nothing ran, because `creates` or `unless` said so.
    #[serde(default)]
    pub passed_over: bool,
    /// What a person should know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
    /// Dry run: whether it is only assumed that something would change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub assumed: bool,
    /// The machine is about to restart: the operation goes on when it is back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
}

impl OpResult {
    /// Returns how a program of `exec` ended.
    pub fn exited(exit: &RoleExit, warnings: Vec<Warning>) -> Self {
        Self {
            status: OpStatus::Changed,
            changed: true,
            data: None,
            diff: None,
            before: None,
            error: None,
            class: None,
            refused: false,
            error_changed: false,
            reason: None,
            exit_code: exit.exit_code,
            signal: exit.signal.as_deref().and_then(signal_number),
            duration_ms: Some(exit.duration_ms),
            max_rss_bytes: Some(exit.max_rss_bytes),
            cpu_ms: Some(exit.cpu_ms),
            passed_over: false,
            warnings,
            assumed: false,
            restart: None,
        }
    }
}

/// A restart of the machine, to be waited for by the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restart {
    /// The boot that ends; another means that the machine is back.
    pub boot_id: String,
    /// How long that may take.
    pub timeout_ms: u64,
}

/// Why a body is no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownMessage {
    /// It is not JSON, or has no `m`.
    #[error("a message that is no JSON object with `m`")]
    NotAMessage,
    /// Nobody knows this message.
    #[error("unknown message `{0}`")]
    Unknown(String),
    /// Its members are wrong.
    #[error("a bad `{m}` message: {problem}")]
    Bad {
        /// Which message.
        m: String,
        /// What is wrong.
        problem: String,
    },
}

#[derive(Deserialize)]
struct Tag {
    m: String,
}

fn read<T: serde::de::DeserializeOwned>(body: &[u8], known: &[&str]) -> Result<T, UnknownMessage> {
    let problem = match serde_json::from_slice(body) {
        Ok(message) => return Ok(message),
        Err(error) => error.to_string(),
    };
    let Tag { m } = serde_json::from_slice(body).map_err(|_| UnknownMessage::NotAMessage)?;
    if known.contains(&m.as_str()) {
        return Err(UnknownMessage::Bad { m, problem });
    }
    Err(UnknownMessage::Unknown(m.chars().take(64).collect()))
}

impl Request {
    const KNOWN: [&'static str; 19] = [
        "hello", "op", "blob", "done", "exec", "stdin", "put", "get", "stat", "role", "stop", "probe",
        "site", "facts", "lock", "cancel", "ack", "beat", "bye",
    ];

    /// Returns the message a JSON body holds.
    pub fn read(body: &[u8]) -> Result<Self, UnknownMessage> {
        read(body, &Self::KNOWN)
    }
}

impl Reply {
    const KNOWN: [&'static str; 13] = [
        "hello", "out", "result", "want", "keep", "started", "done", "role", "probe", "site", "lock", "beat",
        "error",
    ];

    /// Returns the message a JSON body holds.
    pub fn read(body: &[u8]) -> Result<Self, UnknownMessage> {
        read(body, &Self::KNOWN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_beat_is_as_short_as_the_contract_has_it() {
        let beat = Request::Beat { received: Vec::new() };
        assert_eq!(serde_json::to_string(&beat).unwrap(), r#"{"m":"beat"}"#);
        assert_eq!(Request::read(br#"{"m":"beat","mood":"good"}"#), Ok(beat));
        assert_eq!(serde_json::to_string(&Reply::Beat).unwrap(), r#"{"m":"beat"}"#);
    }

    /// Case 10.
    #[test]
    fn unknown_and_bad_messages_say_which() {
        assert_eq!(Request::read(b"{"), Err(UnknownMessage::NotAMessage));
        assert_eq!(Request::read(br#"{"n":1}"#), Err(UnknownMessage::NotAMessage));
        assert_eq!(Request::read(br#"{"m":"dance"}"#), Err(UnknownMessage::Unknown("dance".to_owned())));
        let bad = Request::read(br#"{"m":"ack"}"#).unwrap_err().to_string();
        assert!(bad.contains("`ack`") && bad.contains("id"), "{bad}");
    }

    #[test]
    fn an_operation_shows_no_values() {
        let body = br#"{"m":"op","operation":"file.present","params":{"content":"hush"},"secrets":["hush"]}"#;
        let Request::Op(op) = Request::read(body).unwrap() else { panic!("an op") };
        assert!(!format!("{op:?}").contains("hush"));
    }

    proptest! {
        /// Case 10.
        #[test]
        fn random_bodies_never_panic(bytes: Vec<u8>) {
            prop_assert!(Request::read(&bytes).is_err() || !bytes.is_empty());
            prop_assert!(Reply::read(&bytes).is_err() || !bytes.is_empty());
        }
    }
}

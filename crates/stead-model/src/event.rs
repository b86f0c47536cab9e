//! The event log: what a run did, one event per line. Nothing else remembers it.
//!
//! Resume, report, terminal, JSON output and bundle readers all read these events; live run and
//! replay feed them through the same transition functions of `stead-engine`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::exit_code::ExitCode;
use crate::id::{HostName, NodeName, PlanName, RunId, TaskName};
use crate::node::NodeChange;
use crate::plan::{Digest, Op, Section};
use crate::status::{Cause, ErrorClass, RunStatus, Status};
use crate::time::Timestamp;

mod line;
mod role;

pub use line::{LineError, decode, decode_as, encode};
pub use role::{
    AgentBack, AgentConnected, AgentLost, Artifact, RoleExited, RoleReady, RoleStarted, RoleStop,
};

/// One line of the event log.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// From 1, in steps of 1, over all segments of the run.
    pub seq: u64,
    /// When it was written.
    pub t: Timestamp,
    /// What happened.
    pub kind: EventKind,
}

fn is_false(value: &bool) -> bool {
    !*value
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What happened. Field order is the order in the file; empty fields are left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ev", rename_all = "snake_case")]
pub enum EventKind {
    /// The run began.
    RunStarted(Box<RunStarted>),
    /// A later process took the run up again.
    RunResumed(Box<RunResumed>),
    /// A section of the run began.
    SectionStarted {
        /// Which.
        section: Section,
    },
    /// Facts of a host were gathered.
    FactsGathered {
        /// Of which host.
        host: HostName,
        /// The facts.
        facts: Box<Value>,
    },
    /// Rule and guards passed; the task is queued.
    TaskReady {
        /// Which task.
        task: TaskName,
    },
    /// The task took its first slot; its hosts are fixed from here on.
    TaskStarted {
        /// Which task.
        task: TaskName,
        /// Its hosts, in order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        hosts: Vec<HostName>,
        /// Batch sizes, canary first.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        batches: Vec<u32>,
    },
    /// An attempt began on a host (functional tasks: only from attempt 2).
    AttemptStarted {
        /// Which task.
        task: TaskName,
        /// On which host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<HostName>,
        /// From 1.
        attempt: u32,
        /// Which batch, from 1; 0 without batches.
        #[serde(default, skip_serializing_if = "is_zero")]
        batch: u32,
    },
    /// An attempt failed and another will be made.
    AttemptFailed {
        /// Which task.
        task: TaskName,
        /// On which host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<HostName>,
        /// From 1.
        attempt: u32,
        /// What kind of error.
        class: ErrorClass,
        /// The error.
        error: String,
        /// Delay until the next attempt.
        retry_in_ms: u64,
        /// Whether the attempt changed something all the same.
        #[serde(default, skip_serializing_if = "is_false")]
        changed: bool,
        /// The host of `_any` that takes its place, if it could not be reached.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        instead: Option<HostName>,
    },
    /// Output went to a log file.
    Log {
        /// Which task.
        task: TaskName,
        /// On which host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<HostName>,
        /// Of which attempt.
        attempt: u32,
        /// `stdout` or `stderr`.
        stream: Stream,
        /// The file, relative to the bundle.
        file: String,
        /// Where in the file.
        offset: u64,
        /// How much.
        len: u64,
    },
    /// A part of a sequence ended on a host.
    PartFinished {
        /// Which task.
        task: TaskName,
        /// On which host.
        host: HostName,
        /// Which part.
        part: TaskName,
        /// How it ended.
        status: Status,
        /// Whether it changed something.
        changed: bool,
        /// The error.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        /// How to undo it, if the task's undo is `auto`. What holds a secret is withheld.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        inverse: Option<Box<Op>>,
    },
    /// A host's part of a task is decided.
    HostResult {
        /// Which task.
        task: TaskName,
        /// On which host.
        host: HostName,
        /// The last attempt made; 0 if none was.
        #[serde(default, skip_serializing_if = "is_zero")]
        attempt: u32,
        /// How it ended.
        #[serde(flatten)]
        result: Box<RowResult>,
    },
    /// A started task is decided.
    TaskFinished {
        /// Which task.
        task: TaskName,
        /// How it ended.
        #[serde(flatten)]
        result: Box<TaskResult>,
    },
    /// It was decided not to run the task.
    TaskSkipped {
        /// Which task.
        task: TaskName,
        /// Why.
        cause: Cause,
        /// Why, in words.
        reason: String,
    },
    /// The run stopped before the task started.
    TaskNotRun {
        /// Which task.
        task: TaskName,
        /// Why.
        reason: String,
    },
    /// A person answered a task's question.
    Confirmed {
        /// Which task.
        task: TaskName,
        /// Yes or no.
        answer: bool,
    },
    /// A task's undo began.
    UndoStarted {
        /// Which task.
        task: TaskName,
        /// On which hosts.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        hosts: Vec<HostName>,
    },
    /// A task's undo ended.
    UndoFinished {
        /// Which task.
        task: TaskName,
        /// How.
        status: Status,
        /// The error.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// Something a person should know.
    Warning {
        /// Its stable code.
        code: String,
        /// One sentence.
        text: String,
        /// The role of a run that it is about.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        role: Option<String>,
    },
    /// The driver is connected to an agent.
    AgentConnected(Box<AgentConnected>),
    /// The connection to an agent was lost.
    AgentLost(Box<AgentLost>),
    /// The connection to an agent is there again.
    AgentBack(Box<AgentBack>),
    /// A role's process was started.
    RoleStarted(Box<RoleStarted>),
    /// A service is ready.
    RoleReady(Box<RoleReady>),
    /// A role is being stopped.
    RoleStop(Box<RoleStop>),
    /// A role ended.
    RoleExited(Box<RoleExited>),
    /// A file that a role left is in the bundle.
    Artifact(Box<Artifact>),
    /// Something became of a node.
    Node(Box<NodeChange>),
    /// A run below this one wrote an event.
    Delegated {
        /// The task that has it done.
        task: TaskName,
        /// The hosting nodes down to the one whose run wrote it, outermost first; none: another machine of this level.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        origin: Vec<NodeName>,
        /// The event, as it stands in that run's journal.
        event: Box<Value>,
    },
    /// Nothing new starts from here; running attempts are asked to stop.
    CancelRequested {
        /// Why.
        why: CancelReason,
        /// The task that failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<TaskName>,
    },
    /// The run ended.
    RunFinished(Box<RunFinished>),
}

/// See [`EventKind::RunStarted`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunStarted {
    /// The run's id.
    pub run_id: RunId,
    /// Which front door.
    pub kind: RunKind,
    /// The plan's name.
    pub plan: PlanName,
    /// The plan's hash.
    pub plan_hash: Digest,
    /// Version of this format: 1.
    pub schema: u32,
    /// The program that wrote it.
    pub stead_version: String,
    /// `run` or `dry_run`.
    pub mode: Mode,
    /// How many tasks.
    pub tasks: u32,
    /// What started the run, if not a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<Value>,
}

/// See [`EventKind::RunResumed`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunResumed {
    /// Which segment begins, from 2.
    pub segment: u32,
    /// Bytes of a damaged tail that were cut off.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped_bytes: u64,
    /// Tasks that start over; rows of theirs that ran are kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reset: Vec<TaskName>,
    /// Attempts that had begun and have no result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interrupted: Vec<InterruptedAttempt>,
    /// Interrupted rows a person declared done: they become `changed`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assumed_done: Vec<TaskName>,
    /// Interrupted rows a person wants run again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rerun: Vec<TaskName>,
    /// Tasks of another plan that goes on: nothing of what was recorded under their names counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaced: Vec<TaskName>,
    /// Whether another plan than the recorded one goes on.
    #[serde(default, skip_serializing_if = "is_false")]
    pub forced: bool,
    /// Hash of the plan that goes on, if forced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_hash: Option<Digest>,
}

/// An attempt that had begun when the driver died.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterruptedAttempt {
    /// Which task.
    pub task: TaskName,
    /// On which host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostName>,
}

/// How one host's part of a task ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowResult {
    /// How it ended.
    pub status: Status,
    /// Whether something is different now.
    pub changed: bool,
    /// What kind of error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<ErrorClass>,
    /// The error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Why it did not run, or why nothing had to be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A command's exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// What it found or made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// Where `data` lies if it is too long for the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_file: Option<String>,
    /// What changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<Value>,
    /// How sure a dry run is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prediction: Option<Prediction>,
    /// How to undo it, if the task's undo is `auto`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inverse: Vec<Op>,
    /// The same with its secrets, if it holds one: known to this process alone.
    #[serde(skip)]
    pub unrecorded_inverse: Vec<Op>,
    /// How long, over all attempts.
    pub duration_ms: u64,
    /// Whether the host could not be reached before the operation began: then another may take its place.
    #[serde(skip)]
    pub not_started: bool,
    /// Whether trying again cannot help, whatever the class allows: a refused login, a wrong host key.
    #[serde(skip)]
    pub in_vain: bool,
}

impl RowResult {
    /// Returns a result of `status` with everything else empty.
    pub fn new(status: Status) -> Self {
        Self {
            status,
            changed: status == Status::Changed,
            class: None,
            error: None,
            reason: None,
            exit_code: None,
            data: None,
            data_file: None,
            diff: None,
            prediction: None,
            inverse: Vec::new(),
            unrecorded_inverse: Vec::new(),
            duration_ms: 0,
            not_started: false,
            in_vain: false,
        }
    }
}

/// How sure a dry run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prediction {
    /// The run right after does this.
    Exact,
    /// A `changed_when` decides only when it runs.
    Assumed,
}

/// How a started task ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskResult {
    /// How it ended.
    pub status: Status,
    /// Whether something is different now.
    pub changed: bool,
    /// Whether hosts failed and the policy tolerated it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub partial: bool,
    /// The most attempts any host took.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempts: u32,
    /// What kind of error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<ErrorClass>,
    /// The error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Why it was skipped, if all its hosts were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// Why, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A functional task's value. Tasks with hosts keep their data in the rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// Where `data` lies if it is too long for the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_file: Option<String>,
    /// How sure a dry run is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prediction: Option<Prediction>,
    /// How long, from its first slot to its end.
    pub duration_ms: u64,
}

impl TaskResult {
    /// Returns a result of `status` with everything else empty.
    pub fn new(status: Status) -> Self {
        Self {
            status,
            changed: status == Status::Changed,
            partial: false,
            attempts: 0,
            class: None,
            error: None,
            cause: None,
            reason: None,
            data: None,
            data_file: None,
            prediction: None,
            duration_ms: 0,
        }
    }
}

/// See [`EventKind::RunFinished`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFinished {
    /// How the run ended.
    pub status: RunStatus,
    /// What the process exits with.
    pub exit_code: ExitCode,
    /// How many tasks ended how.
    pub counts: Counts,
    /// How long this segment took.
    pub duration_ms: u64,
    /// Why the run as a whole failed, if no task did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// How many tasks ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// All.
    pub tasks: u32,
    /// [`Status::Changed`].
    pub changed: u32,
    /// [`Status::Unchanged`].
    pub unchanged: u32,
    /// [`Status::Skipped`].
    pub skipped: u32,
    /// [`Status::Failed`].
    pub failed: u32,
    /// [`Status::Cancelled`].
    pub cancelled: u32,
    /// [`Status::NotRun`].
    pub not_run: u32,
    /// [`Status::Unknown`]; dry runs only.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unknown: u32,
}

impl Counts {
    /// Counts one more task that ended as `status`.
    pub fn add(&mut self, status: Status) {
        self.tasks += 1;
        *self.slot(status) += 1;
    }

    fn slot(&mut self, status: Status) -> &mut u32 {
        match status {
            Status::Changed => &mut self.changed,
            Status::Unchanged => &mut self.unchanged,
            Status::Skipped => &mut self.skipped,
            Status::Failed => &mut self.failed,
            Status::Cancelled => &mut self.cancelled,
            Status::NotRun => &mut self.not_run,
            Status::Unknown => &mut self.unknown,
        }
    }

    /// Returns how many tasks ended as `status`.
    pub fn of(mut self, status: Status) -> u32 {
        *self.slot(status)
    }
}

/// Which front door a run came through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunKind {
    /// `stead run manifest`.
    Run,
    /// `stead plan run`.
    Plan,
    /// `stead steps run`.
    Steps,
    /// `stead create`, `destroy`, `config`.
    Nodes,
    /// `stead fleet`.
    Fleet,
    /// `stead test`.
    Test,
}

/// Whether a run acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// It acts.
    Run,
    /// It predicts.
    DryRun,
}

/// Which output of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    /// Returns the word used in files and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Why a run stops early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelReason {
    /// A task failed under `stop_all`.
    Failure,
    /// A signal.
    Signal,
    /// The plan's timeout.
    Timeout,
    /// The program that runs the plan asked.
    Api,
}

impl EventKind {
    /// Returns the file that holds the event's data, and the data, of an event that can have both.
    pub fn filed_data(&mut self) -> Option<(&str, &mut Option<Value>)> {
        let (file, data) = if let Self::HostResult { result, .. } = self {
            (result.data_file.as_deref(), &mut result.data)
        } else if let Self::TaskFinished { result, .. } = self {
            (result.data_file.as_deref(), &mut result.data)
        } else {
            return None;
        };
        file.map(|file| (file, data))
    }

    /// Whether the event's data lies in a file of its own.
    pub fn has_data_file(&self) -> bool {
        let file = if let Self::HostResult { result, .. } = self {
            &result.data_file
        } else if let Self::TaskFinished { result, .. } = self {
            &result.data_file
        } else {
            return false;
        };
        file.is_some()
    }

    /// Returns the task an event is about, if it is about one.
    pub fn task(&self) -> Option<&TaskName> {
        match self {
            Self::TaskReady { task }
            | Self::TaskStarted { task, .. }
            | Self::AttemptStarted { task, .. }
            | Self::AttemptFailed { task, .. }
            | Self::Log { task, .. }
            | Self::PartFinished { task, .. }
            | Self::HostResult { task, .. }
            | Self::TaskFinished { task, .. }
            | Self::TaskSkipped { task, .. }
            | Self::TaskNotRun { task, .. }
            | Self::Confirmed { task, .. }
            | Self::UndoStarted { task, .. }
            | Self::UndoFinished { task, .. }
            | Self::Delegated { task, .. } => Some(task),
            Self::CancelRequested { task, .. } => task.as_ref(),
            Self::RunStarted(_)
            | Self::RunResumed(_)
            | Self::SectionStarted { .. }
            | Self::FactsGathered { .. }
            | Self::Warning { .. }
            | Self::AgentConnected(_)
            | Self::AgentLost(_)
            | Self::AgentBack(_)
            | Self::RoleStarted(_)
            | Self::RoleReady(_)
            | Self::RoleStop(_)
            | Self::RoleExited(_)
            | Self::Artifact(_)
            | Self::Node(_)
            | Self::RunFinished(_) => None,
        }
    }
}

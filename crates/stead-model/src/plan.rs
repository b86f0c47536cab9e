//! The compiled plan: what every front door makes and the runner walks.
//!
//! A [`Plan`] is plain data with all defaults filled in. Its canonical JSON form ([`Plan::to_json`])
//! is `plan.json`; the SHA-256 of those bytes is the plan's hash. Tasks share their [`Settings`]
//! behind an `Arc`, so that a plan of a million tasks stays small.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::catalogue::StepMode;
use crate::duration::{as_millis, as_optional_millis};
use crate::id::{OperationName, PlanName, TaskName};
use crate::run_plan::RunPlan;
use crate::status::ErrorClass;

mod canonical;
mod param;
mod policy;
mod submission;

pub use canonical::TaskWriter;
pub use param::Param;
pub use policy::{
    Backoff, HostFailure, Interrupted, Jitter, Limits, Mutex, MutexScope, OnEmpty, OnError, OnFailure,
    OnlyIfChanged, Retry, Size, TriggerRule,
};
pub use submission::{PlanRun, PlanRunState, PlanSubmission, SUBMISSION_BYTES, SubmittedRun, is_key};

/// The position of a task in [`Plan::tasks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskIndex(pub u32);

impl TaskIndex {
    /// Returns the index as a `usize`, for slices.
    pub const fn get(self) -> usize {
        self.0 as usize
    }
}

/// A DAG of tasks with everything filled in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The plan's name.
    pub name: PlanName,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// What it was made from, where tasks alone do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Values of all variables, overrides applied.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub vars: BTreeMap<String, Value>,
    /// Values of the declared environment variables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Where secrets come from; never their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, SecretRef>,
    /// What happens to changes of a failed run.
    pub on_failure: OnFailure,
    /// How much may run at once.
    pub limits: Limits,
    /// Limit of the main part.
    #[serde(default, with = "as_optional_millis", skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// Limit of the `finally` part.
    #[serde(with = "as_millis")]
    pub finally_timeout: Duration,
    /// How long a cancelled attempt may take before it is killed.
    #[serde(with = "as_millis")]
    pub grace: Duration,
    /// Whether the run locks its targets.
    pub lock: bool,
    /// What starts runs of this plan on a server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub triggers: Vec<Trigger>,
    /// Normal tasks in written order, then the `finally` tasks.
    pub tasks: Vec<Task>,
    /// What a run of roles adds.
    #[serde(flatten)]
    pub run: Option<Arc<RunPlan>>,
}

impl Plan {
    /// Returns an empty plan with every default.
    pub fn new(name: PlanName) -> Self {
        Self {
            name,
            description: None,
            origin: None,
            vars: BTreeMap::new(),
            env: BTreeMap::new(),
            secrets: BTreeMap::new(),
            on_failure: OnFailure::default(),
            limits: Limits::default(),
            timeout: None,
            finally_timeout: Duration::from_secs(300),
            grace: Duration::from_secs(10),
            lock: true,
            triggers: Vec::new(),
            tasks: Vec::new(),
            run: None,
        }
    }

    /// Returns the task at `index`.
    ///
    /// # Panics
    /// If `index` is not of this plan.
    pub fn task(&self, index: TaskIndex) -> &Task {
        &self.tasks[index.get()]
    }

    /// Returns every task with its index, in plan order.
    pub fn indexed(&self) -> impl DoubleEndedIterator<Item = (TaskIndex, &Task)> {
        self.tasks
            .iter()
            .enumerate()
            .map(|(i, task)| (TaskIndex(u32::try_from(i).expect("at most 1,000,000 tasks")), task))
    }

    /// Returns the canonical JSON of the plan: compact, sorted keys, no positions.
    pub fn to_json(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write_json(&mut bytes).expect("a plan is always JSON, and memory takes all of it");
        bytes
    }

    /// Writes the canonical JSON of the plan, task by task.
    pub fn write_json(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        canonical::write(self, out)
    }

    /// Returns the hash of the plan's canonical JSON.
    pub fn digest(&self) -> Digest {
        let mut hasher = canonical::Hasher::default();
        self.write_json(&mut hasher).expect("a plan is always JSON, and a hash takes all of it");
        hasher.finish()
    }

    /// Gives every task its hash and returns the plan's, as [`Task::digest`] and [`Plan::digest`] would.
    pub fn seal(&mut self) -> Digest {
        canonical::seal(self).expect("a plan is always JSON, and a hash takes all of it")
    }

    /// Returns this plan without its tasks.
    fn head(&self) -> Self {
        Self {
            name: self.name.clone(),
            description: self.description.clone(),
            origin: self.origin.clone(),
            vars: self.vars.clone(),
            env: self.env.clone(),
            secrets: self.secrets.clone(),
            on_failure: self.on_failure,
            limits: self.limits,
            timeout: self.timeout,
            finally_timeout: self.finally_timeout,
            grace: self.grace,
            lock: self.lock,
            triggers: self.triggers.clone(),
            tasks: Vec::new(),
            run: self.run.clone(),
        }
    }
}

/// What a plan was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A catalogue of steps.
    Steps {
        /// Its name.
        catalogue: PlanName,
        /// What the steps do.
        mode: StepMode,
        /// What they act on.
        target: String,
    },
}

/// Which part of the run a task belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Section {
    /// The tasks.
    #[default]
    Main,
    /// The undoing of changed tasks.
    Rollback,
    /// The `finally` tasks.
    Finally,
}

impl Section {
    /// Whether this is the main section; used to leave the default out of files.
    pub fn is_main(&self) -> bool {
        *self == Self::Main
    }

    /// Returns the word used in files and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::Rollback => "rollback",
            Self::Finally => "finally",
        }
    }
}

/// A unit of work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Its name, unique in the plan.
    pub name: TaskName,
    /// `main` or `finally`.
    #[serde(default, skip_serializing_if = "Section::is_main")]
    pub section: Section,
    /// What must be finished before, in written order, without repeats.
    #[serde(default, skip_serializing_if = "<[TaskName]>::is_empty")]
    pub depends_on: Box<[TaskName]>,
    /// What it does.
    pub action: Action,
    /// How it does it.
    pub settings: Arc<Settings>,
    /// Its element, if `for_each` made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<Box<Item>>,
    /// SHA-256 of the task without this field.
    pub hash: Digest,
}

impl Task {
    /// Returns the hash of the task's canonical JSON without its own `hash`. Many tasks: use one [`TaskWriter`].
    pub fn digest(&self) -> Digest {
        TaskWriter::default().digest(self)
    }
}

/// What a task does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// One operation.
    Op(Arc<Part>),
    /// Several operations per host, in order.
    Sequence(Arc<[Part]>),
    /// A closure of the program that built the plan.
    Function(Function),
}

impl Action {
    /// Returns the operations of a declarative task, none for a functional one.
    pub fn parts(&self) -> &[Part] {
        match self {
            Self::Op(part) => std::slice::from_ref(part),
            Self::Sequence(parts) => parts,
            Self::Function(_) => &[],
        }
    }

    /// Returns the function, if the task is functional.
    pub fn function(&self) -> Option<&Function> {
        match self {
            Self::Function(function) => Some(function),
            Self::Op(_) | Self::Sequence(_) => None,
        }
    }
}

/// What is known of a closure as data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// The author's `.version("…")`; a different one makes a different task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Box<str>>,
}

/// One operation of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Its name, in a sequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<TaskName>,
    /// What is done.
    pub op: Op,
    /// Judged per host before the part; false leaves it out there (in a sequence).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when_host: Vec<Guard>,
    /// Decides `changed` from the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_when: Option<Expression>,
    /// Decides failure from the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_when: Option<Expression>,
}

/// An operation with its parameters: plain data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Op {
    /// Which operation.
    pub operation: OperationName,
    /// Its parameters; templates are rendered when it runs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, Param>,
}

/// The one parameter of an operation whose own are withheld.
const WITHHELD: &str = "withheld";

/// The one parameter of an operation that stands where there is no inverse.
const IRREVERSIBLE: &str = "irreversible";

impl Op {
    /// Returns what is recorded of an operation that holds a secret: that there was one. It cannot be carried out.
    pub fn withheld(&self) -> Self {
        let params = BTreeMap::from([(WITHHELD.to_owned(), Param::Value(true.into()))]);
        Self { operation: self.operation.clone(), params }
    }

    /// Whether its parameters were not recorded; see [`Self::withheld`].
    pub fn is_withheld(&self) -> bool {
        self.params.len() == 1 && self.params.contains_key(WITHHELD)
    }

    /// Returns what is recorded in place of an inverse if `operation` changed something and nothing can bring back what
    /// was there: an undo that finds it has failed. It cannot be carried out.
    pub fn irreversible(operation: OperationName) -> Self {
        let params = BTreeMap::from([(IRREVERSIBLE.to_owned(), Param::Value(true.into()))]);
        Self { operation, params }
    }

    /// Whether it stands where there is no inverse; see [`Self::irreversible`].
    pub fn is_irreversible(&self) -> bool {
        self.params.len() == 1 && self.params.contains_key(IRREVERSIBLE)
    }
}

/// A minijinja expression, without braces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Expression(pub Arc<str>);

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A condition on a task or host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Guard {
    /// An expression that must give a boolean.
    Expr {
        /// The expression.
        expr: Expression,
        /// Said instead of `guard is false: <expression>`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A closure of the program that built the plan, by its number among the plan's guard closures.
    Function {
        /// Said when it is false.
        label: String,
        /// Its number.
        number: u32,
    },
    /// True if all are.
    All(Vec<Guard>),
    /// True if one is.
    Any(Vec<Guard>),
    /// True if it is not.
    Not(Box<Guard>),
}

/// The element of a `for_each` a task was made for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// The map's key, or the index in the list.
    pub key: String,
    /// The value.
    pub value: Value,
}

/// How a task is undone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Undo {
    /// By the operation's own inverse.
    Auto,
    /// By this operation.
    Op(Op),
    /// By a closure of the program that built the plan.
    Function,
}

/// Everything about a task but its name, edges and action. Shared between tasks that agree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// What the task is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Target expressions; the hosts are their union. Empty for functional tasks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub target: Vec<String>,
    /// What to do if no host matches.
    pub on_empty: OnEmpty,
    /// When it runs, by the ends of its dependencies.
    pub trigger_rule: TriggerRule,
    /// Whether it wants something changed before it.
    pub only_if_changed: OnlyIfChanged,
    /// All must be true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<Guard>,
    /// Judged per host; all must be true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when_host: Vec<Guard>,
    /// Asked before it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm: Option<String>,
    /// Whether an interrupted attempt may simply be made again.
    pub idempotent: bool,
    /// What its failure does to the run.
    pub on_error: OnError,
    /// How often and when it is tried again.
    pub retry: Retry,
    /// Limit of one attempt on one host.
    #[serde(default, with = "as_optional_millis", skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// How it is undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<Undo>,
    /// What resume does with a non-idempotent attempt that has no result.
    pub interrupted: Interrupted,
    /// How many hosts may fail.
    pub host_failure: HostFailure,
    /// Sizes of the batches, the last repeating; empty: all at once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub batch: Vec<Size>,
    /// Between batches.
    #[serde(with = "as_millis")]
    pub batch_pause: Duration,
    /// Hosts that go first, alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Size>,
    /// After the canary.
    #[serde(with = "as_millis")]
    pub canary_pause: Duration,
    /// Names held while it runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mutex: Vec<Mutex>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            description: None,
            target: Vec::new(),
            on_empty: OnEmpty::default(),
            trigger_rule: TriggerRule::default(),
            only_if_changed: OnlyIfChanged::default(),
            when: Vec::new(),
            when_host: Vec::new(),
            confirm: None,
            idempotent: false,
            on_error: OnError::default(),
            retry: Retry::default(),
            timeout: None,
            undo: None,
            interrupted: Interrupted::default(),
            host_failure: HostFailure::default(),
            batch: Vec::new(),
            batch_pause: Duration::ZERO,
            canary: None,
            canary_pause: Duration::ZERO,
            mutex: Vec::new(),
        }
    }
}

impl Settings {
    /// Whether a failure of `class` may be tried again after `attempt` (from 1) counted attempts.
    pub fn retries(&self, class: ErrorClass, attempt: u32) -> bool {
        self.retry.covers(class) && attempt <= self.retry.times
    }
}

/// Where a secret's value is read from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecretRef {
    /// An environment variable.
    Env(String),
    /// A file; its final newline is cut.
    File(String),
}

/// What starts a run on a server, and how runs of it share time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trigger {
    /// What starts it.
    #[serde(flatten)]
    pub on: TriggerKind,
    /// What happens when the last run still goes on.
    pub overlap: Overlap,
    /// Shortest time between two starts.
    #[serde(default, with = "as_optional_millis", skip_serializing_if = "Option::is_none")]
    pub min_interval: Option<Duration>,
    /// Variables of the run; templates over `trigger`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub vars: BTreeMap<String, Value>,
}

/// What starts a run on a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TriggerKind {
    /// An agent that matches the target expression came online.
    AgentOnline {
        /// The target expression.
        r#match: String,
    },
    /// A time.
    Schedule {
        /// Five fields.
        cron: String,
        /// IANA time zone.
        tz: String,
        /// What is made up for after the server was down.
        catch_up: CatchUp,
    },
    /// A request.
    Webhook {
        /// The path.
        path: String,
        /// The name of the plan's secret that signs it.
        secret: String,
    },
}

/// What a schedule makes up for after the server was down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CatchUp {
    /// Nothing.
    #[default]
    None,
    /// One run, however many were missed.
    One,
}

/// What happens when a trigger fires while its last run goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// It waits.
    #[default]
    Queue,
    /// It is dropped.
    Skip,
    /// Both run.
    Parallel,
}

/// A SHA-256 digest, written as 64 lower-case hex digits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Returns the digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        use sha2::Digest as _;
        Self(sha2::Sha256::digest(bytes).into())
    }

    /// Returns the digest that 64 lower-case hex digits name.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        if bytes.len() != 64 || !bytes.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        let mut digest = [0; 32];
        for (out, pair) in digest.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *out = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(digest))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digits = self.0.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let mut text = [0; 64];
        text.iter_mut().zip(digits).for_each(|(place, digit)| *place = DIGITS[usize::from(digit)]);
        // In one piece: a plan has a digest for every task.
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("not 64 lower-case hex digits"))
    }
}

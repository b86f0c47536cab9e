//! The edge where work is done: what an operation is, what it is given and what it gives back.
//!
//! Two shapes, one registry. An [`Operation`] brings its target to a described state: it observes,
//! compares and applies the difference, so `changed` is exact and a dry run is the same code without
//! the last step. An [`Action`] does something (a command, a request, a wait) and says how it went.
//! Neither retries, decides order, or prints: the runner does the first two, readers of events the last.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};
use stead_model::event::{Mode, Stream};
use stead_model::executor::Restart;
use stead_model::report::Warning;
use stead_model::{Descriptor, ErrorClass, HostName, Op, RunId, TaskName};
use tokio::sync::{Notify, watch};

use crate::files::{DriverFiles, Needs};
use crate::transport::Transport;

/// Brings a target to a described state. Runs on a blocking thread.
pub trait Operation: Send + Sync {
    /// Returns what it declares of itself.
    fn descriptor(&self) -> &'static Descriptor;

    /// Returns the state of the target that matters for `params`. Reads only.
    fn observe(&self, cx: &OpContext, params: &Params) -> Result<Observed, OpError>;

    /// Returns what would have to change; empty means nothing. Pure.
    fn diff(&self, params: &Params, seen: &Observed) -> Diff;

    /// Returns the result where nothing has to change: what a plan reads of it is there, whoever brought it about.
    fn unchanged(&self, _cx: &OpContext, _params: &Params, _seen: &Observed) -> Option<Value> {
        None
    }

    /// Refuses what this account may not do. Asked before a difference is applied, and before it is predicted.
    fn permit(&self, _cx: &OpContext, _params: &Params, _seen: &Observed) -> Result<(), OpError> {
        Ok(())
    }

    /// Makes the difference go away. Called only with a difference that is not empty.
    fn apply(&self, cx: &OpContext, params: &Params, diff: &Diff) -> Result<Applied, OpError>;

    /// Records in a dry run what `apply` would leave, so that later observations see it.
    fn predict(&self, cx: &OpContext, params: &Params, diff: &Diff);

    /// Returns the operation that restores `before`, if there is one.
    fn inverse(&self, params: &Params, before: &Observed) -> Option<Op>;

    /// Returns what it needs of the driver, where the target is another machine.
    fn needs(&self, params: &Params) -> Needs {
        Needs::of(self.descriptor(), params)
    }
}

/// Does something and says how it went.
#[async_trait::async_trait]
pub trait Action: Send + Sync {
    /// Returns what it declares of itself.
    fn descriptor(&self) -> &'static Descriptor;

    /// Returns what `run` would do now, without doing it.
    async fn check(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError>;

    /// Returns why it is not done to the machine that runs the plan, under whatever account; none: it is.
    fn refused_here(&self) -> Option<&'static str> {
        None
    }

    /// Does it. Ends soon after `cx.cancel` asks it to; dropping the future kills what it started.
    async fn run(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError>;

    /// Returns what it needs of the driver, where the target is another machine.
    fn needs(&self, params: &Params) -> Needs {
        Needs::of(self.descriptor(), params)
    }

    /// Returns this action as one that can do without the executor, if it can.
    fn as_bare(&self) -> Option<&dyn BareAction> {
        None
    }
}

/// An action that needs nothing on the target but what a connection offers.
#[async_trait::async_trait]
pub trait BareAction: Send + Sync {
    /// Does it over `transport`, or in a dry run returns what it would do.
    async fn act_over(
        &self,
        transport: &dyn Transport,
        cx: &OpContext,
        params: &Params,
        mode: Mode,
    ) -> Result<Outcome, OpError>;
}

/// An operation of either shape.
#[derive(Clone)]
pub enum Entry {
    /// Brings a target to a described state.
    State(Arc<dyn Operation>),
    /// Does something.
    Action(Arc<dyn Action>),
}

impl Entry {
    /// Returns what it declares of itself.
    pub fn descriptor(&self) -> &'static Descriptor {
        match self {
            Self::State(operation) => operation.descriptor(),
            Self::Action(action) => action.descriptor(),
        }
    }

    /// Returns the action that can do without the executor, if this is one.
    pub fn as_bare(&self) -> Option<&dyn BareAction> {
        match self {
            Self::State(_) => None,
            Self::Action(action) => action.as_bare(),
        }
    }

    /// Returns what it needs of the driver, where the target is another machine.
    pub fn needs(&self, params: &Params) -> Needs {
        match self {
            Self::State(operation) => operation.needs(params),
            Self::Action(action) => action.needs(params),
        }
    }
}

/// Every operation there is, by name.
#[derive(Clone, Default)]
pub struct Registry(BTreeMap<&'static str, Entry>);

impl Registry {
    /// Returns a registry without operations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an operation that brings a target to a described state.
    ///
    /// # Panics
    /// If the name is taken.
    pub fn add_operation(&mut self, operation: impl Operation + 'static) {
        self.add(Entry::State(Arc::new(operation)));
    }

    /// Adds an operation that does something.
    ///
    /// # Panics
    /// If the name is taken.
    pub fn add_action(&mut self, action: impl Action + 'static) {
        self.add(Entry::Action(Arc::new(action)));
    }

    fn add(&mut self, entry: Entry) {
        let name = entry.descriptor().name;
        let before = self.0.insert(name, entry);
        assert!(before.is_none(), "two operations are called {name}");
    }

    /// Returns the operation called `name`.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.0.get(name)
    }

    /// Returns every descriptor, by name.
    pub fn descriptors(&self) -> impl Iterator<Item = &'static Descriptor> {
        self.0.values().map(Entry::descriptor)
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

/// What an operation needs to know of the run it is part of.
#[derive(Clone, Debug)]
pub struct OpContext {
    /// The run, if it has an id.
    pub run_id: Option<RunId>,
    /// The runs that this one was started by, nearest first.
    pub parents: Arc<[RunId]>,
    /// Where the run is recorded, if it is: with the id it tells its processes from those of every other run.
    pub bundle: Option<PathBuf>,
    /// The task.
    pub task: TaskName,
    /// The host.
    pub host: HostName,
    /// From 1.
    pub attempt: u32,
    /// Directory that relative paths such as `cwd` start from.
    pub base_dir: PathBuf,
    /// Where copies go that `undo: auto` needs of what is too large for the journal.
    pub undo: UndoStore,
    /// Files of the driver: what `source` parameters name, and where fetched files go.
    pub files: Arc<dyn DriverFiles>,
    /// Operations act below this directory; none: the whole machine.
    pub root: Option<PathBuf>,
    /// Environment variables that commands do not inherit: those that hold secrets.
    pub hidden_env: Arc<[String]>,
    /// How long a cancelled command may take before it is killed.
    pub grace: Duration,
    /// When its time is up; none: it may take as long as it takes.
    pub deadline: Option<tokio::time::Instant>,
    /// The boot that has ended, where the machine has restarted for this operation and it goes on.
    pub restarted: Option<String>,
    /// What this dry run has predicted so far on this host.
    pub predicted: Predicted,
    /// Where output goes.
    pub output: Output,
    /// Says when to stop.
    pub cancel: Cancel,
    /// Renders templates and expressions with the names the task knows.
    pub scope: Arc<dyn Render>,
}

/// Where a run keeps copies of what `undo: auto` may have to bring back, and whether it wants them.
#[derive(Clone, Debug, Default)]
pub struct UndoStore {
    /// Base directories, best first.
    places: Arc<[PathBuf]>,
    run: Option<RunId>,
    wanted: bool,
}

impl UndoStore {
    /// Returns the store of `run` in the first of `places` (base directories of this machine) that can be used.
    pub fn new(places: Arc<[PathBuf]>, run: RunId) -> Self {
        Self { places, run: Some(run), wanted: false }
    }

    /// Returns this store with another base directory before the others.
    pub fn first_below(mut self, base: PathBuf) -> Self {
        self.places = std::iter::once(base).chain(self.places.iter().cloned()).collect();
        self
    }

    /// Returns this store for an operation whose inverse is, or is not, wanted.
    pub fn wanted(mut self, wanted: bool) -> Self {
        self.wanted = wanted;
        self
    }

    /// Whether what is replaced has to be kept, and can be.
    pub fn is_wanted(&self) -> bool {
        self.wanted && self.run.is_some() && !self.places.is_empty()
    }

    /// Returns the run's directory in each place, best first: `BASE/undo/RUN`.
    pub fn directories(&self) -> impl Iterator<Item = PathBuf> {
        let run = self.run.as_ref().map(|run| run.as_str()).into_iter();
        run.flat_map(|run| self.places.iter().map(move |base| base.join("undo").join(run)))
    }
}

/// Returns where this machine keeps Stead's own files: for root `/var/lib/stead`, for others the first that can be used.
pub fn base_places(uid: u32, environment: &BTreeMap<String, String>) -> Vec<PathBuf> {
    if uid == 0 {
        return vec![PathBuf::from("/var/lib/stead")];
    }
    let given = |name: &str| environment.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = given("XDG_CACHE_HOME").map(|cache| cache.join("stead"));
    let home = given("HOME").map(|home| home.join(".cache/stead"));
    cache.into_iter().chain(home).chain([PathBuf::from(format!("/tmp/stead-{uid}"))]).collect()
}

impl OpContext {
    /// Returns the variables that programs started for this attempt get: by them they know their run, and the run
    /// finds what it left behind.
    pub fn marks(&self) -> BTreeMap<String, String> {
        let mut marks = BTreeMap::from([
            ("STEAD_TASK".to_owned(), self.task.to_string()),
            ("STEAD_HOST".to_owned(), self.host.to_string()),
            ("STEAD_ATTEMPT".to_owned(), self.attempt.to_string()),
        ]);
        if let Some(run_id) = &self.run_id {
            marks.insert("STEAD_RUN_ID".to_owned(), run_id.to_string());
            if !self.parents.is_empty() {
                let parents: Vec<&str> = self.parents.iter().map(RunId::as_str).collect();
                marks.insert("STEAD_PARENT_RUNS".to_owned(), parents.join(","));
            }
        }
        if let Some(bundle) = self.bundle.as_ref().and_then(|path| path.to_str()) {
            marks.insert("STEAD_BUNDLE".to_owned(), bundle.to_owned());
        }
        marks
    }
}

/// Renders templates and expressions with the names a task knows (`vars`, `host`, `fact`, `run`, …).
pub trait Render: Send + Sync + fmt::Debug {
    /// Returns the text of `template`, with `vars` over the plan's own, or what is wrong with it, with its line.
    fn render(&self, template: &str, vars: &Map<String, Value>) -> Result<String, OpError>;

    /// Returns the value of `expression`, or what is wrong with it.
    fn evaluate(&self, expression: &str) -> Result<Value, OpError>;
}

/// Rendered parameters. `Debug` shows names only: values may be secret.
#[derive(Clone, Default, PartialEq)]
pub struct Params(Map<String, Value>);

impl Params {
    /// Returns parameters that the operation's schema has accepted.
    pub fn new(values: Map<String, Value>) -> Self {
        Self(values)
    }

    /// Returns the value of `name`; null counts as not given.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// Returns the text of `name`.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(Value::as_str)
    }

    /// Returns the text of `name`, which the schema requires.
    pub fn required(&self, name: &str) -> Result<&str, OpError> {
        self.text(name)
            .ok_or_else(|| OpError::new(ErrorClass::Invalid, format!("parameter `{name}` is missing")))
    }

    /// Returns whether `name` is true; `default` if it is not given.
    pub fn flag(&self, name: &str, default: bool) -> bool {
        self.get(name).and_then(Value::as_bool).unwrap_or(default)
    }

    /// Returns the whole number of `name`.
    pub fn int(&self, name: &str) -> Option<i64> {
        self.get(name).and_then(Value::as_i64)
    }

    /// Returns the duration of `name`; `default` if it is not given.
    pub fn duration(&self, name: &str, default: Duration) -> Duration {
        self.text(name).and_then(|text| stead_model::duration::parse(text).ok()).unwrap_or(default)
    }

    /// Returns the texts of `name`: a list's, or the one text.
    pub fn texts(&self, name: &str) -> Vec<String> {
        match self.get(name) {
            Some(Value::Array(items)) => items.iter().map(to_text).collect(),
            Some(value) => vec![to_text(value)],
            None => Vec::new(),
        }
    }

    /// Returns the map of `name` as texts, numbers and booleans in their usual form.
    pub fn text_map(&self, name: &str) -> BTreeMap<String, String> {
        let items = self.get(name).and_then(Value::as_object);
        items.into_iter().flatten().map(|(key, value)| (key.clone(), to_text(value))).collect()
    }

    /// Whether one of the texts in it holds `text`.
    pub fn holds(&self, text: &str) -> bool {
        let mut open: Vec<&Value> = self.0.values().collect();
        while let Some(value) = open.pop() {
            match value {
                Value::String(found) if found.contains(text) => return true,
                Value::Array(items) => open.extend(items),
                Value::Object(fields) => {
                    if fields.keys().any(|key| key.contains(text)) {
                        return true;
                    }
                    open.extend(fields.values());
                }
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        false
    }

    /// Returns all values by name, taken out.
    pub fn into_map(self) -> Map<String, Value> {
        self.0
    }

    /// Returns all values by name.
    pub fn as_map(&self) -> &Map<String, Value> {
        &self.0
    }
}

fn to_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
            other.to_string()
        }
    }
}

impl fmt::Debug for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

/// The state of a target that matters to an operation, as data. `Debug` shows its kind only: content may be secret.
#[derive(Clone, Default, PartialEq)]
pub struct Observed(pub Value);

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.0 {
            Value::Null => "nothing",
            Value::Bool(_) | Value::Number(_) | Value::String(_) => "a value",
            Value::Array(_) => "a list",
            Value::Object(_) => "a map",
        };
        f.debug_tuple("Observed").field(&format_args!("{kind}")).finish()
    }
}

/// What differs between desired and observed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Diff {
    /// The fields that differ: name, before, after. Secret values are already `***`.
    pub fields: Vec<FieldDiff>,
    /// A unified diff, for text.
    pub text: Option<String>,
}

impl Diff {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Returns `{before, after, text}` as reports show it.
    pub fn to_json(&self) -> Value {
        let side = |pick: fn(&FieldDiff) -> &Value| -> Value {
            self.fields
                .iter()
                .map(|field| (field.name.clone(), pick(field).clone()))
                .collect::<Map<_, _>>()
                .into()
        };
        let mut diff = Map::new();
        diff.insert("before".to_owned(), side(|field| &field.before));
        diff.insert("after".to_owned(), side(|field| &field.after));
        if let Some(text) = &self.text {
            diff.insert("text".to_owned(), text.as_str().into());
        }
        Value::Object(diff)
    }
}

/// One field that differs.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldDiff {
    /// Its name.
    pub name: String,
    /// What was observed; null: absent.
    pub before: Value,
    /// What is desired; null: absent.
    pub after: Value,
}

/// What `apply` reports beyond having succeeded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Applied {
    /// The operation's result data.
    pub data: Option<Value>,
    /// Said to the user, such as that a hard-linked file was written in place.
    pub notes: Vec<String>,
}

/// How an action went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Whether something may be different now.
    pub changed: bool,
    /// The failure, if it was one; `failed_when` may overrule it.
    pub failure: Option<OpError>,
    /// Why nothing had to be done, such as `creates` found its file.
    pub reason: Option<String>,
    /// A command's exit code.
    pub exit_code: Option<i32>,
    /// The signal that ended a command.
    pub signal: Option<i32>,
    /// Whether it ended because it was asked to. Then how it ended says nothing about its work.
    pub stopped: bool,
    /// The operation's result data.
    pub data: Option<Value>,
    /// What a person should know all the same.
    pub warnings: Vec<Warning>,
    /// Dry run: whether it is only assumed that something would change.
    pub assumed: bool,
    /// The machine is about to restart: the operation is run once more when it is back.
    pub restart: Option<Restart>,
}

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct OpError {
    /// What kind of error; decides whether it is tried again.
    pub class: ErrorClass,
    /// What went wrong, in one sentence.
    pub message: String,
    /// The host cannot do this at all: the row is skipped, not failed.
    pub unsupported: bool,
    /// Dry run: it hangs on what an earlier task has yet to find. The row is unknown, not failed.
    pub not_known: bool,
    /// Whether something may be different already.
    pub changed: bool,
    /// Whether the host was lost before the operation began there.
    pub not_started: bool,
    /// Whether trying again cannot help, whatever the class allows: a refused login, a wrong host key.
    pub in_vain: bool,
}

impl OpError {
    /// Returns an error of `class`.
    pub fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        Self {
            class,
            message: message.into(),
            unsupported: false,
            not_known: false,
            changed: false,
            not_started: false,
            in_vain: false,
        }
    }

    /// Returns an error of class `operation`.
    pub fn operation(message: impl Into<String>) -> Self {
        Self::new(ErrorClass::Operation, message)
    }

    /// Returns an error that trying again cannot mend.
    pub fn permanent(message: impl Into<String>) -> Self {
        Self::new(ErrorClass::Permanent, message)
    }

    /// Returns an error in the parameters.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorClass::Invalid, message)
    }

    /// Returns the statement that this host cannot do it, naming what is needed.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self { unsupported: true, ..Self::permanent(message) }
    }

    /// Returns this error with where it happened before its message.
    pub fn within(self, place: impl fmt::Display) -> Self {
        Self { message: format!("{place}: {}", self.message), ..self }
    }

    /// Returns an error of class `operation` from an IO error, saying what was being done.
    pub fn io(doing: impl fmt::Display, error: &std::io::Error) -> Self {
        Self::operation(format!("{doing}: {error}"))
    }
}

/// What a dry run has predicted on one host, by resource (such as `file:/etc/motd`). `Debug` shows resources only:
/// content may be secret.
#[derive(Clone, Default)]
pub struct Predicted(Arc<Mutex<BTreeMap<String, Value>>>);

impl fmt::Debug for Predicted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_list().entries(all.keys()).finish()
    }
}

impl Predicted {
    /// Returns what was predicted of `resource`.
    pub fn get(&self, resource: &str) -> Option<Value> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(resource).cloned()
    }

    /// Remembers what `resource` would be.
    pub fn set(&self, resource: impl Into<String>, state: Value) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(resource.into(), state);
    }

    /// Returns every resource whose name starts with `prefix`, with its predicted state.
    pub fn starting_with(&self, prefix: &str) -> Vec<(String, Value)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let from = all.range::<str, _>((std::ops::Bound::Included(prefix), std::ops::Bound::Unbounded));
        from.take_while(|(name, _)| name.starts_with(prefix))
            .map(|(name, state)| (name.clone(), state.clone()))
            .collect()
    }
}

/// Where an attempt's output goes: masked, logged and announced as it comes.
#[derive(Clone)]
pub struct Output(Arc<Sink>);

/// What takes the pieces of an output.
type Sink = dyn Fn(Stream, &[u8]) + Send + Sync;

impl Output {
    /// Returns an output that gives every piece to `sink`.
    pub fn new(sink: impl Fn(Stream, &[u8]) + Send + Sync + 'static) -> Self {
        Self(Arc::new(sink))
    }

    /// Returns an output that drops everything.
    pub fn none() -> Self {
        Self::new(|_, _| {})
    }

    /// Takes some bytes of a stream, as they came.
    pub fn write(&self, stream: Stream, bytes: &[u8]) {
        (self.0)(stream, bytes);
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Output")
    }
}

/// How urgently an attempt should stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Not at all.
    #[default]
    No,
    /// Ask, and kill after the grace period.
    Ask,
    /// Kill.
    Kill,
}

/// Says when an attempt should stop. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cancel(Told);

/// Who says it.
#[derive(Clone, Debug)]
enum Told {
    Nobody,
    Signal(Arc<Signal>),
    Channel(watch::Receiver<Stop>),
}

/// A word, and who waits for it. Every attempt has one, so it is small: a watch channel costs several times as much to
/// make and to drop.
#[derive(Debug, Default)]
struct Signal {
    stop: AtomicU8,
    waiting: Notify,
}

impl Signal {
    fn now(&self) -> Stop {
        match self.stop.load(Ordering::SeqCst) {
            0 => Stop::No,
            1 => Stop::Ask,
            _ => Stop::Kill,
        }
    }

    async fn at_least(&self, stop: Stop) {
        loop {
            let mut told = std::pin::pin!(self.waiting.notified());
            // Waits before it looks: what is said in between is not missed.
            told.as_mut().enable();
            if self.now() >= stop {
                return;
            }
            told.await;
        }
    }
}

/// Drives a [`Cancel`].
#[derive(Debug)]
pub struct Stopper(Arc<Signal>);

impl Stopper {
    /// Stops, at least as urgently as `stop`: an urgent stop is never taken back.
    pub fn stop(&self, stop: Stop) {
        let level = match stop {
            Stop::No => 0,
            Stop::Ask => 1,
            Stop::Kill => 2,
        };
        self.0.stop.fetch_max(level, Ordering::SeqCst);
        self.0.waiting.notify_waiters();
    }

    /// Returns how urgent it is now.
    pub fn now(&self) -> Stop {
        self.0.now()
    }
}

impl Cancel {
    /// Returns a cancel, and what drives it.
    pub fn signal() -> (Stopper, Self) {
        let signal = Arc::new(Signal::default());
        (Stopper(Arc::clone(&signal)), Self(Told::Signal(signal)))
    }

    /// Returns a cancel that the sender of `receiver` drives.
    pub fn new(receiver: watch::Receiver<Stop>) -> Self {
        Self(Told::Channel(receiver))
    }

    /// Returns a cancel that never comes.
    pub fn never() -> Self {
        Self(Told::Nobody)
    }

    /// Returns how urgent it is now.
    pub fn now(&self) -> Stop {
        match &self.0 {
            Told::Nobody => Stop::No,
            Told::Signal(signal) => signal.now(),
            Told::Channel(receiver) => *receiver.borrow(),
        }
    }

    /// Resolves when stopping is at least as urgent as `stop`; never, if that cannot come any more. Cancel safe.
    pub async fn at_least(&self, stop: Stop) {
        match &self.0 {
            Told::Nobody => std::future::pending().await,
            Told::Signal(signal) => signal.at_least(stop).await,
            Told::Channel(receiver) => {
                let mut receiver = receiver.clone();
                if receiver.wait_for(|now| *now >= stop).await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stop_reaches_who_waits_and_is_not_taken_back() {
        let (stopper, cancel) = Cancel::signal();
        assert_eq!((cancel.now(), Cancel::never().now()), (Stop::No, Stop::No));
        let waiting = {
            let cancel = cancel.clone();
            async move {
                cancel.at_least(Stop::Ask).await;
                let asked = cancel.now();
                cancel.at_least(Stop::Kill).await;
                (asked, cancel.now())
            }
        };
        let driving = async {
            tokio::task::yield_now().await;
            stopper.stop(Stop::Ask);
            tokio::task::yield_now().await;
            stopper.stop(Stop::Kill);
        };
        let (seen, ()) = tokio::join!(waiting, driving);
        assert_eq!(seen, (Stop::Ask, Stop::Kill));
        stopper.stop(Stop::Ask);
        assert_eq!((stopper.now(), cancel.now()), (Stop::Kill, Stop::Kill));
        // What has been said already is heard at once.
        cancel.at_least(Stop::Ask).await;
    }

    #[tokio::test]
    async fn a_stop_that_cannot_come_any_more_is_waited_for_in_vain() {
        let (stopper, cancel) = Cancel::signal();
        drop(stopper);
        for cancel in [cancel, Cancel::never(), Cancel::new(watch::channel(Stop::No).1)] {
            let mut waiting = std::pin::pin!(cancel.at_least(Stop::Ask));
            let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(waiting.as_mut().poll(cx))).await;
            assert!(polled.is_pending());
        }
    }
}

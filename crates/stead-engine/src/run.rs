//! The run state machine: inputs in, events and commands out.
//!
//! [`Run`] owns every decision of a run and knows no clock, file or thread. The dispatcher of
//! `stead-runner` feeds it [`Input`]s with the current time; each turn it writes the events that come
//! out to the journal and then carries out the commands. `Run::apply` takes an event into the state;
//! a live turn and a replay of the journal both go through it, so they cannot disagree.
//!
//! ```text
//!   attempt ended, verdict, tick, cancel ──▶ Run::handle ──▶ events   ──▶ journal, observers
//!                                                        └─▶ commands ──▶ executor
//! ```

mod apply;
mod begin;
mod delay;
mod dispatch;
mod finished;
mod queue;
mod report;
mod resume;
mod row;
mod rule;
mod section;
mod settle;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use stead_model::event::{
    CancelReason, Counts, Event, EventKind, Mode, RowResult, RunFinished, RunKind, RunStarted,
};
use stead_model::plan::{Op, Plan, Section, Settings, TaskIndex};
use stead_model::report::Warning;
use stead_model::time::Timestamp;
use stead_model::{HostName, RunId, RunStatus, TaskName};

use crate::compile::CompiledPlan;
use crate::expr::{Results, Verdict};
use crate::graph::Graph;
use crate::task_state::TaskState;

pub use apply::ReplayError;
pub use delay::delay;
pub use resume::{ResumeChoice, ResumeRefusal};
pub use row::Row;
pub use rule::{Ruling, judge_only_if_changed, judge_rule};

use finished::Finished;
use queue::Queue;
use row::Live;

/// The time of a turn, on both clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    /// For events.
    pub wall: Timestamp,
    /// For durations and timers: since the process's run began.
    pub mono: Duration,
}

/// What a run needs to know of hosts.
pub trait Hosts: Send + Sync {
    /// Returns the hosts of a target in stable order; `seed` decides `_any`.
    fn resolve(&self, target: &[String], seed: &str) -> Result<Vec<HostName>, Unresolved>;

    /// Returns the host that takes the place of `host`, which `_any` of the target chose and nobody reaches; none if
    /// all others are taken, or if it was not `_any` that chose it.
    fn instead_of(
        &self,
        _target: &[String],
        _host: &HostName,
        _is_taken: &dyn Fn(&HostName) -> bool,
    ) -> Option<HostName> {
        None
    }

    /// Returns how many attempts may run on `host` at once; `per_target` is the plan's own limit.
    fn slots(&self, host: &HostName, per_target: Option<u32>) -> u32;
}

/// Why a target gives no hosts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unresolved {
    /// It is wrong.
    #[error("{0}")]
    Wrong(String),
    /// The run was limited to other hosts.
    #[error("left out by --limit")]
    LeftOut,
}

/// What a run is told before it begins.
#[derive(Clone)]
pub struct RunOptions {
    /// Its id, if it is recorded.
    pub run_id: Option<RunId>,
    /// Which front door.
    pub kind: RunKind,
    /// Whether it acts.
    pub mode: Mode,
    /// The program's version.
    pub stead_version: String,
    /// Attempts at once, over the plan's own limit.
    pub parallel: Option<u32>,
    /// Limit of the main part, over the plan's own.
    pub timeout: Option<Duration>,
    /// Tasks left out by `--only`.
    pub not_selected: BTreeSet<TaskIndex>,
    /// What started the run, if not a person.
    pub trigger: Option<Value>,
}

impl RunOptions {
    /// Returns the options of an ordinary run of a plan.
    pub fn new(mode: Mode) -> Self {
        Self {
            run_id: None,
            kind: RunKind::Plan,
            mode,
            stead_version: env!("CARGO_PKG_VERSION").to_owned(),
            parallel: None,
            timeout: None,
            not_selected: BTreeSet::new(),
            trigger: None,
        }
    }
}

/// What the world tells the run.
#[derive(Debug)]
pub enum Input {
    /// Guards of a task were judged.
    Judged {
        /// Which task.
        task: TaskIndex,
        /// What they say.
        verdict: Verdict,
    },
    /// A person answered a task's question.
    Answered {
        /// Which task.
        task: TaskIndex,
        /// Yes or no.
        yes: bool,
    },
    /// A part of a sequence ended.
    PartEnded {
        /// Which task.
        task: TaskIndex,
        /// Which row.
        row: u32,
        /// How.
        part: Box<PartEnd>,
    },
    /// An attempt ended.
    AttemptEnded {
        /// Which task.
        task: TaskIndex,
        /// Which row.
        row: u32,
        /// How; `data` of a functional task is its value.
        result: Box<RowResult>,
    },
    /// A task's undo ended.
    UndoEnded {
        /// Which task.
        task: TaskIndex,
        /// What went wrong.
        error: Option<String>,
    },
    /// Stop the run, `finally` excepted.
    Cancel(CancelReason),
    /// Stop everything at once, `finally` too.
    Kill,
    /// The journal cannot be written: stop everything at once and fail.
    JournalLost(String),
    /// Time passed.
    Tick,
}

/// How a part of a sequence ended.
#[derive(Clone, Debug)]
pub struct PartEnd {
    /// Which part.
    pub name: TaskName,
    /// How.
    pub status: stead_model::Status,
    /// Whether something is different now.
    pub changed: bool,
    /// The error.
    pub error: Option<String>,
    /// How to undo it, if the task's undo is `auto`.
    pub inverse: Option<Box<Op>>,
}

/// What the run wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Judge the task's guards off the dispatcher and answer with [`Input::Judged`].
    Judge(TaskIndex),
    /// Ask the task's question and answer with [`Input::Answered`].
    Ask(TaskIndex),
    /// Make an attempt and answer with [`Input::AttemptEnded`].
    Start(Attempt),
    /// Ask an attempt to stop; it still answers.
    Stop {
        /// Which task.
        task: TaskIndex,
        /// Which row.
        row: u32,
    },
    /// Undo a task on some hosts and answer with [`Input::UndoEnded`].
    Undo {
        /// Which task.
        task: TaskIndex,
        /// The hosts that changed, with the inverse of each; one without host for a functional task.
        rows: Vec<(Option<HostName>, Vec<Op>)>,
    },
    /// Kill every attempt and undo; they still answer.
    KillAll,
    /// The run is over.
    Finish,
}

/// An attempt to make.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// Which task.
    pub task: TaskIndex,
    /// Which row.
    pub row: u32,
    /// Which host; none for a functional task.
    pub host: Option<HostName>,
    /// From 1.
    pub attempt: u32,
    /// How many parts of a sequence need not run again.
    pub from_part: usize,
}

/// Events and commands of one turn, in order. Events are written before commands are carried out.
#[derive(Debug, Default)]
pub struct Turn {
    /// What happened.
    pub events: Vec<Event>,
    /// What to do.
    pub commands: Vec<Command>,
}

impl Turn {
    /// Forgets both, keeping their memory.
    pub fn clear(&mut self) {
        self.events.clear();
        self.commands.clear();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Retry { task: TaskIndex, row: u32 },
    NextBatch { task: TaskIndex },
    PlanTimeout,
    FinallyTimeout,
}

/// Why nothing new starts in the current section.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Halt {
    why: CancelReason,
    task: Option<TaskName>,
}

/// The state of a run.
pub struct Run {
    plan: Arc<Plan>,
    graph: Arc<Graph>,
    hash: stead_model::plan::Digest,
    hosts: Arc<dyn Hosts>,
    options: RunOptions,
    results: Arc<Results>,

    seq: u64,
    started: Option<Box<RunStarted>>,
    started_at: Timestamp,
    finished_at: Timestamp,
    finished: Option<Box<RunFinished>>,
    /// How long the segments before this one took; all of them once the run has ended.
    earlier_ms: u64,
    segment_started_at: Timestamp,
    segments: u32,
    warnings: Vec<Warning>,
    /// Said as soon as the segment has begun, before anything else happens in it.
    to_say: Vec<Warning>,
    lost_journal: Option<String>,

    status: RunStatus,
    /// The task whose failure made the run fail.
    first_failure: Option<TaskIndex>,
    section: Option<Section>,
    rolled_back: bool,
    halt: Option<Halt>,
    killed: bool,

    states: Vec<TaskState>,
    decided: Vec<Option<Finished>>,
    /// How many dependencies of each task are not decided, or wait for one that is not.
    waiting_on: Vec<u32>,
    /// How many tasks of main and of finally are not decided.
    undecided: [u32; 2],
    live: BTreeMap<TaskIndex, Live>,
    /// Rows of tasks that start over after a resume.
    kept: BTreeMap<TaskIndex, Vec<Row>>,
    /// Attempt numbers used up by rows of earlier segments that were dropped: logs are named by them.
    attempt_base: BTreeMap<TaskIndex, u32>,
    confirmed: BTreeMap<TaskIndex, bool>,
    assumed_done: BTreeSet<TaskIndex>,

    queue: Queue,
    ready_counter: u64,
    /// Guards being judged and questions being asked.
    asking: BTreeSet<TaskIndex>,
    /// Guards and questions that wait because only one thing happens at a time.
    to_ask: VecDeque<TaskIndex>,
    running: u32,
    serial: bool,

    timers: BinaryHeap<Reverse<(Duration, u64, Timer)>>,
    timer_counter: u64,

    undo_waiting: Vec<u32>,
    undo_ready: BTreeSet<Reverse<TaskIndex>>,
    undoing: BTreeSet<TaskIndex>,
    undo_left: u32,
}

impl Run {
    /// Returns the run of `compiled` before anything happened.
    pub fn new(compiled: &CompiledPlan, hosts: Arc<dyn Hosts>, options: RunOptions) -> Self {
        let plan = Arc::clone(&compiled.plan);
        let graph = Arc::clone(&compiled.graph);
        let count = plan.tasks.len();
        let parallel = options.parallel.unwrap_or(plan.limits.parallel).max(1);
        let finally = plan.tasks.iter().filter(|task| task.section == Section::Finally).count();
        let in_section = |count: usize| u32::try_from(count).expect("at most 1,000,000 tasks");
        Self {
            results: Arc::new(Results::new(Arc::clone(&graph), Arc::clone(&plan))),
            hash: compiled.hash,
            hosts,
            seq: 0,
            started: None,
            started_at: Timestamp::default(),
            finished_at: Timestamp::default(),
            finished: None,
            earlier_ms: 0,
            segment_started_at: Timestamp::default(),
            segments: 1,
            warnings: Vec::new(),
            to_say: Vec::new(),
            lost_journal: None,
            status: RunStatus::Success,
            first_failure: None,
            section: None,
            rolled_back: false,
            halt: None,
            killed: false,
            states: vec![TaskState::Waiting; count],
            decided: vec![None; count],
            waiting_on: plan
                .indexed()
                .map(|(index, _)| u32::try_from(graph.dependencies(index).len()).unwrap_or(u32::MAX))
                .collect(),
            undecided: [in_section(count - finally), in_section(finally)],
            live: BTreeMap::new(),
            kept: BTreeMap::new(),
            attempt_base: BTreeMap::new(),
            confirmed: BTreeMap::new(),
            assumed_done: BTreeSet::new(),
            queue: Queue::new(parallel),
            ready_counter: 0,
            asking: BTreeSet::new(),
            to_ask: VecDeque::new(),
            running: 0,
            serial: parallel == 1,
            timers: BinaryHeap::new(),
            timer_counter: 0,
            undo_waiting: Vec::new(),
            undo_ready: BTreeSet::new(),
            undoing: BTreeSet::new(),
            undo_left: 0,
            plan,
            graph,
            options,
        }
    }

    /// Takes in what the world says and returns events and commands in `turn`.
    pub fn handle(&mut self, input: Input, now: Now, turn: &mut Turn) {
        if self.finished.is_some() {
            return;
        }
        match input {
            Input::Judged { task, verdict } => self.judged(task, verdict, now, turn),
            Input::Answered { task, yes } => self.answered(task, yes, now, turn),
            Input::PartEnded { task, row, part } => self.part_ended(task, row, *part, now, turn),
            Input::AttemptEnded { task, row, result } => self.attempt_ended(task, row, *result, now, turn),
            Input::UndoEnded { task, error } => self.undo_ended(task, error, now, turn),
            Input::Cancel(why) => self.cancel(why, None, now, turn),
            Input::Kill => self.kill(now, turn),
            Input::JournalLost(error) => {
                self.lost_journal = Some(error);
                self.status = RunStatus::Failed;
                self.kill(now, turn);
            }
            Input::Tick => {}
        }
        self.fire_timers(now, turn);
        self.proceed(now, turn);
    }

    /// Returns when the run next wants a [`Input::Tick`], on the monotonic clock.
    pub fn deadline(&self) -> Option<Duration> {
        self.timers.peek().map(|Reverse((at, ..))| *at)
    }

    /// Has a warning said right after the event that begins the next segment.
    pub fn say_at_start(&mut self, warning: Warning) {
        self.to_say.push(warning);
    }

    fn say(&mut self, now: Now, turn: &mut Turn) {
        for Warning { code, text, role } in std::mem::take(&mut self.to_say) {
            self.emit(None, None, EventKind::Warning { code, text, role }, now, turn);
        }
    }

    /// Adds an event that decides nothing: a log pointer, a warning, facts.
    pub fn note(&mut self, kind: EventKind, now: Now, turn: &mut Turn) {
        let task = kind.task().and_then(|name| self.graph.index_of(name.as_str()));
        self.emit(task, None, kind, now, turn);
    }

    /// Whether the run has ended.
    pub fn is_finished(&self) -> bool {
        self.finished.is_some()
    }

    /// Returns how the run stands: `running` until it has ended.
    pub fn status(&self) -> RunStatus {
        if self.finished.is_some() { self.status } else { RunStatus::Running }
    }

    /// Returns how the run would end if nothing more went wrong; what `finally` sees as `run.status`.
    pub fn status_so_far(&self) -> RunStatus {
        self.status
    }

    /// Returns the plan.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Returns the graph.
    pub fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// Returns the results of decided tasks, as guards and templates see them.
    pub fn results(&self) -> &Arc<Results> {
        &self.results
    }

    /// Returns the state of every task, in plan order.
    pub fn states(&self) -> &[TaskState] {
        &self.states
    }

    /// Returns the run's id, if it has one.
    pub fn run_id(&self) -> Option<&RunId> {
        self.options.run_id.as_ref()
    }

    /// Returns which segment this is, from 1.
    pub fn segment(&self) -> u32 {
        self.segments
    }

    /// Returns when the first segment began.
    pub fn started_at(&self) -> Timestamp {
        self.started_at
    }

    /// Returns the settings of a task.
    fn settings(&self, task: TaskIndex) -> &Arc<Settings> {
        &self.plan.task(task).settings
    }

    fn name(&self, task: TaskIndex) -> TaskName {
        self.plan.task(task).name.clone()
    }

    fn is_dry(&self) -> bool {
        self.options.mode == Mode::DryRun
    }

    fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for decision in self.states.iter().filter_map(TaskState::decision) {
            counts.add(decision.status);
        }
        counts
    }

    /// Makes an event, takes it into the state, and hands it out.
    fn emit(
        &mut self,
        task: Option<TaskIndex>,
        row: Option<u32>,
        kind: EventKind,
        now: Now,
        turn: &mut Turn,
    ) {
        let event = Event { seq: self.seq + 1, t: now.wall, kind };
        self.apply(task, row, &event).expect("the engine makes only events that its own state allows");
        turn.events.push(event);
    }

    fn set_timer(&mut self, at: Duration, timer: Timer) {
        self.timer_counter += 1;
        self.timers.push(Reverse((at, self.timer_counter, timer)));
    }

    fn fire_timers(&mut self, now: Now, turn: &mut Turn) {
        while let Some(Reverse((at, _, timer))) = self.timers.peek().copied() {
            if at > now.mono {
                break;
            }
            self.timers.pop();
            match timer {
                Timer::Retry { task, row } => self.retry_due(task, row),
                Timer::NextBatch { task } => self.next_batch_due(task, now, turn),
                Timer::PlanTimeout => {
                    if self.section == Some(Section::Main) {
                        self.cancel(CancelReason::Timeout, None, now, turn);
                    }
                }
                Timer::FinallyTimeout => {
                    if self.section == Some(Section::Finally) {
                        self.halt_section(CancelReason::Timeout, None, now, turn);
                    }
                }
            }
        }
    }
}

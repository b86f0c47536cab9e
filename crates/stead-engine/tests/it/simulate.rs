//! A world for the engine: answers its commands in any order, without a clock, a process or a file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use stead_engine::compile::{Catalogue, CompiledPlan, Explicit, check};
use stead_engine::expr::Verdict;
use stead_engine::run::{Attempt, Command, Hosts, Input, Now, Run, RunOptions, Turn};
use stead_model::diagnostic::Place;
use stead_model::event::{CancelReason, Event, EventKind, Mode, RowResult};
use stead_model::operation::{Descriptor, Effect, RootSupport};
use stead_model::plan::{Action, Digest, Function, Op, Part, Plan, Section, Settings, Task, TaskIndex};
use stead_model::report::Report;
use stead_model::time::Timestamp;
use stead_model::{ErrorClass, HostName, OperationName, PlanName, Status, TaskName};

/// Returns a functional task.
pub(crate) fn task(name: &str, after: &[&str], settings: Settings) -> Task {
    Task {
        name: TaskName::parse(name).unwrap(),
        section: Section::Main,
        depends_on: after.iter().map(|name| TaskName::parse(name).unwrap()).collect(),
        action: Action::Function(Function::default()),
        settings: Arc::new(settings),
        item: None,
        hash: Digest::default(),
    }
}

/// Returns a task with an operation on hosts `h0` … `hN`.
pub(crate) fn on_hosts(name: &str, after: &[&str], hosts: usize, mut settings: Settings) -> Task {
    settings.target = (0..hosts).map(|i| format!("h{i}")).collect();
    let op = Op { operation: OperationName::parse("assert").unwrap(), params: BTreeMap::new() };
    let part = Part { name: None, op, when_host: Vec::new(), changed_when: None, failed_when: None };
    Task { action: Action::Op(Arc::new(part)), ..task(name, after, settings) }
}

/// Returns a checked plan.
pub(crate) fn compile(change: impl FnOnce(&mut Plan), tasks: Vec<Task>) -> CompiledPlan {
    let mut plan = Plan::new(PlanName::parse("simulated").unwrap());
    let idempotent = (0..).map(TaskIndex).zip(tasks.iter().map(|task| task.settings.idempotent)).collect();
    plan.tasks = tasks;
    change(&mut plan);
    let locate = |task: TaskIndex, path: &str| Place::Named(format!("task {} {path}", task.0));
    let explicit = Explicit { idempotent, ..Explicit::default() };
    check(plan, &explicit, &Catalogue::new([&NOTHING]), &locate, Default::default()).unwrap()
}

/// An operation of the simulated world.
static NOTHING: Descriptor = Descriptor {
    name: "assert",
    summary: "Nothing.",
    effect: Effect::Read,
    idempotent: true,
    check: true,
    undo: false,
    platforms: &[],
    root: RootSupport::Full,
    needs_root: false,
    params: &[],
    exclusive: &[],
    one_of: &[],
    result: &[],
};

struct AllHosts;

impl Hosts for AllHosts {
    fn resolve(&self, target: &[String], _: &str) -> Result<Vec<HostName>, stead_engine::run::Unresolved> {
        Ok(target.iter().map(|name| HostName::parse(name).unwrap()).collect())
    }
    fn slots(&self, _: &HostName, per_target: Option<u32>) -> u32 {
        per_target.unwrap_or(2)
    }
}

/// How attempts end: by task name, host and how often that row has been tried.
pub(crate) type Outcomes<'a> = &'a dyn Fn(&str, Option<&str>, u32) -> Status;

/// A run in a world that answers as told.
pub(crate) struct World<'a> {
    pub(crate) run: Run,
    pub(crate) events: Vec<Event>,
    pending: Vec<Command>,
    stopping: BTreeSet<(TaskIndex, u32)>,
    outcomes: Outcomes<'a>,
    clock: u64,
    tries: BTreeMap<(TaskIndex, u32), u32>,
    pub(crate) most_at_once: usize,
}

impl<'a> World<'a> {
    pub(crate) fn new(plan: &CompiledPlan, outcomes: Outcomes<'a>) -> Self {
        Self {
            run: Run::new(plan, Arc::new(AllHosts), RunOptions::new(Mode::Run)),
            events: Vec::new(),
            pending: Vec::new(),
            stopping: BTreeSet::new(),
            outcomes,
            clock: 0,
            tries: BTreeMap::new(),
            most_at_once: 0,
        }
    }

    pub(crate) fn now(&mut self) -> Now {
        self.clock += 1;
        let micros = i64::try_from(self.clock).unwrap() * 1_000;
        Now { wall: Timestamp::from_micros(micros), mono: Duration::from_millis(self.clock) }
    }

    pub(crate) fn begin(&mut self) {
        let (now, mut turn) = (self.now(), Turn::default());
        self.run.begin(now, &mut turn);
        self.take(turn);
    }

    pub(crate) fn resume(&mut self, choice: stead_engine::run::ResumeChoice) {
        let (now, mut turn) = (self.now(), Turn::default());
        self.run.resume(choice, now, &mut turn).unwrap();
        self.take(turn);
    }

    pub(crate) fn input(&mut self, input: Input) {
        let (now, mut turn) = (self.now(), Turn::default());
        self.run.handle(input, now, &mut turn);
        self.take(turn);
    }

    fn take(&mut self, turn: Turn) {
        self.events.extend(turn.events);
        for command in turn.commands {
            match command {
                Command::Stop { task, row } => {
                    self.stopping.insert((task, row));
                }
                Command::KillAll => {
                    let starts = self.pending.iter().filter_map(|command| match command {
                        Command::Start(start) => Some((start.task, start.row)),
                        _ => None,
                    });
                    self.stopping.extend(starts);
                }
                Command::Finish => {}
                Command::Judge(_) | Command::Ask(_) | Command::Start(_) | Command::Undo { .. } => {
                    self.pending.push(command)
                }
            }
        }
        let starts = self.pending.iter().filter(|command| matches!(command, Command::Start(_))).count();
        self.most_at_once = self.most_at_once.max(starts);
    }

    /// Answers one pending command, the `choice`-th of those there are, or lets time pass. False at the end.
    pub(crate) fn step(&mut self, choice: usize) -> bool {
        if self.run.is_finished() {
            return false;
        }
        if self.pending.is_empty() {
            let Some(at) = self.run.deadline() else {
                panic!(
                    "a run that is not over waits for nothing; its last event is {:?}",
                    self.events.last()
                );
            };
            self.clock = self.clock.max(u64::try_from(at.as_millis()).unwrap());
            self.input(Input::Tick);
            return true;
        }
        let command = self.pending.swap_remove(choice % self.pending.len());
        match command {
            Command::Judge(task) => self.input(Input::Judged { task, verdict: Verdict::Pass }),
            Command::Ask(task) => self.input(Input::Answered { task, yes: true }),
            Command::Start(attempt) => self.end_attempt(attempt),
            Command::Undo { task, .. } => self.input(Input::UndoEnded { task, error: None }),
            Command::Stop { .. } | Command::KillAll | Command::Finish => unreachable!("never pending"),
        }
        true
    }

    fn end_attempt(&mut self, attempt: Attempt) {
        let Attempt { task, row, host, .. } = attempt;
        let tries = self.tries.entry((task, row)).or_default();
        *tries += 1;
        let name = self.run.plan().task(task).name.clone();
        let mut status = (self.outcomes)(name.as_str(), host.as_ref().map(HostName::as_str), *tries);
        if self.stopping.remove(&(task, row)) {
            status = Status::Cancelled;
        }
        let mut result = RowResult::new(status);
        if status == Status::Failed {
            (result.class, result.error) = (Some(ErrorClass::Operation), Some("no".to_owned()));
        }
        self.input(Input::AttemptEnded { task, row, result: Box::new(result) });
    }

    /// Answers everything, choosing by `choices` (repeated), and returns the report.
    pub(crate) fn finish(&mut self, choices: &[usize]) -> Report {
        let mut at = 0;
        while self.step(choices.get(at % choices.len().max(1)).copied().unwrap_or(0)) {
            at += 1;
            assert!(at < 1_000_000, "the run does not end");
        }
        self.run.report()
    }

    pub(crate) fn cancel(&mut self, why: CancelReason) {
        self.input(Input::Cancel(why));
    }
}

/// Runs a plan to its end.
pub(crate) fn simulate(
    plan: &CompiledPlan,
    outcomes: Outcomes<'_>,
    choices: &[usize],
) -> (Report, Vec<Event>) {
    let mut world = World::new(plan, outcomes);
    world.begin();
    let report = world.finish(choices);
    (report, world.events)
}

/// Checks the ordering rules of section 11 over one journal.
pub(crate) fn assert_ordered(plan: &CompiledPlan, events: &[Event]) {
    let mut last_of: BTreeMap<&str, usize> = BTreeMap::new();
    let mut started: BTreeMap<&str, usize> = BTreeMap::new();
    let mut ends: BTreeMap<&str, u32> = BTreeMap::new();
    for (i, event) in events.iter().enumerate() {
        assert_eq!(event.seq, i as u64 + 1, "numbers go up by one");
        assert_eq!(i == 0, matches!(event.kind, EventKind::RunStarted(_)));
        if i > 0 && matches!(events[i - 1].kind, EventKind::RunFinished(_)) {
            assert!(matches!(event.kind, EventKind::RunResumed(_)), "only a resume follows the end");
        }
        if matches!(event.kind, EventKind::RunResumed(_)) {
            ends.clear();
        }
        let Some(task) = event.kind.task() else { continue };
        let index = plan.graph.index_of(task.as_str()).unwrap();
        match &event.kind {
            EventKind::TaskStarted { .. } => {
                started.insert(task.as_str(), i);
                for dependency in plan.graph.dependencies(index) {
                    let name = plan.plan.task(*dependency).name.as_str();
                    assert!(last_of.get(name).is_some_and(|last| *last < i), "{task} starts after {name}");
                }
            }
            EventKind::AttemptStarted { .. } | EventKind::HostResult { .. } => {
                assert!(started.contains_key(task.as_str()), "{task} has started");
            }
            EventKind::TaskFinished { .. } | EventKind::TaskSkipped { .. } | EventKind::TaskNotRun { .. } => {
                *ends.entry(task.as_str()).or_default() += 1;
                assert_eq!(ends[task.as_str()], 1, "{task} is decided once per segment");
            }
            _ => {}
        }
        last_of.insert(task.as_str(), i);
    }
}

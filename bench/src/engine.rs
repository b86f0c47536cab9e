//! The pure engine alone: a plan walked to its end by answering every command at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use stead_engine::compile::{Catalogue, CompiledPlan, Explicit, check};
use stead_engine::run::{Command, Hosts, Input, Now, Run, RunOptions, Turn};
use stead_model::diagnostic::Place;
use stead_model::event::{Mode, RowResult};
use stead_model::plan::{Action, Digest, Function, Plan, Section, Settings, Task, TaskIndex};
use stead_model::time::Timestamp;
use stead_model::{HostName, PlanName, Status, TaskName};

use crate::Effort;
use crate::sample::{Case, Walker, time_both};
use crate::shape::{Shape, task_name};
use crate::table::{Table, rate};

/// A functional task becomes ready, starts and ends.
const TRANSITIONS_PER_TASK: f64 = 3.0;

/// The lines about the engine.
pub(crate) fn measure(effort: Effort, table: &mut Table) {
    for shape in Shape::ALL {
        let tasks = 100_000;
        let sample = Case { walker: Walker::Engine, shape, tasks }.median(effort.samples());
        let transitions = TRANSITIONS_PER_TASK / sample.cpu_per_task(tasks);
        let what = format!("engine alone, 100,000 tasks, {}", shape.name());
        table.at_least(&what, rate(transitions, "transitions"), transitions, rate(1e6, "transitions"), 1e6);
    }
}

/// Walks a plan of closures, answering each start with `unchanged`, and returns how long that took.
pub(crate) fn walk(shape: Shape, tasks: usize) -> (Duration, Duration) {
    let plan = compile(shape, tasks);
    time_both(|| {
        let mut run = Run::new(&plan, Arc::new(NoHosts), RunOptions::new(Mode::Run));
        let mut turn = Turn::default();
        let mut started = VecDeque::new();
        let mut clock = 0;
        run.begin(at(clock), &mut turn);
        while !run.is_finished() {
            for command in turn.commands.drain(..) {
                if let Command::Start(attempt) = command {
                    started.push_back((attempt.task, attempt.row));
                }
            }
            turn.clear();
            let Some((task, row)) = started.pop_front() else { panic!("the run waits for nothing") };
            let result = Box::new(RowResult::new(Status::Unchanged));
            clock += 1;
            run.handle(Input::AttemptEnded { task, row, result }, at(clock), &mut turn);
        }
        assert_eq!(run.states().len(), tasks);
    })
}

fn at(micros: i64) -> Now {
    Now { wall: Timestamp::from_micros(micros), mono: Duration::from_micros(micros.unsigned_abs()) }
}

fn compile(shape: Shape, tasks: usize) -> CompiledPlan {
    let mut plan = Plan::new(PlanName::parse("bench").expect("a word"));
    let names: Vec<TaskName> =
        (0..tasks).map(|task| TaskName::parse(&task_name(task)).expect("a word")).collect();
    let settings = Arc::new(Settings::default());
    plan.tasks = shape
        .edges(tasks)
        .into_iter()
        .zip(&names)
        .map(|(before, name)| Task {
            name: name.clone(),
            section: Section::Main,
            depends_on: before.into_iter().map(|task| names[task].clone()).collect(),
            action: Action::Function(Function::default()),
            settings: Arc::clone(&settings),
            item: None,
            hash: Digest::default(),
        })
        .collect();
    let locate = |task: TaskIndex, _: &str| Place::Named(format!("task {}", task.0));
    check(plan, &Explicit::default(), &Catalogue::default(), &locate, Default::default())
        .expect("the plan is right")
}

/// Functional tasks have no hosts.
struct NoHosts;

impl Hosts for NoHosts {
    fn resolve(&self, _: &[String], _: &str) -> Result<Vec<HostName>, stead_engine::run::Unresolved> {
        Ok(Vec::new())
    }

    fn slots(&self, _: &HostName, _: Option<u32>) -> u32 {
        1
    }
}

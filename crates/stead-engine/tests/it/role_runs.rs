//! Runs of roles: the first cause decides, roles are no tasks, and a lost driver's run is finished, not run again.

use std::sync::Arc;
use std::time::Duration;

use stead_engine::compile::CompiledPlan;
use stead_engine::run::{Command, Hosts, Input, Now, ResumeChoice, Run, RunOptions, Turn, Unresolved};
use stead_model::event::{CancelReason, Event, EventKind, Mode, RowResult, RunKind, Stream};
use stead_model::plan::{OnError, Section, Settings, TaskIndex, TriggerRule};
use stead_model::time::Timestamp;
use stead_model::{ErrorClass, ExitCode, HostName, RunStatus, Status, TaskName};

use super::simulate::{compile, task};

struct Nowhere;

impl Hosts for Nowhere {
    fn resolve(&self, _: &[String], _: &str) -> Result<Vec<HostName>, Unresolved> {
        Ok(Vec::new())
    }
    fn slots(&self, _: &HostName, _: Option<u32>) -> u32 {
        8
    }
}

/// Phases as a run has them: two that need each other, one that runs whatever happens.
fn phases() -> CompiledPlan {
    let settings =
        Settings { trigger_rule: TriggerRule::AllDone, on_error: OnError::Continue, ..Settings::default() };
    let mut last = task("collect", &[], settings);
    last.section = Section::Finally;
    compile(
        |plan| plan.timeout = Some(Duration::from_secs(1)),
        vec![task("start", &[], Settings::default()), task("done", &["start"], Settings::default()), last],
    )
}

struct Driven {
    run: Run,
    events: Vec<Event>,
    started: Vec<TaskIndex>,
    millis: u64,
}

impl Driven {
    fn new(plan: &CompiledPlan) -> Self {
        let options = RunOptions { kind: RunKind::Run, ..RunOptions::new(Mode::Run) };
        let run = Run::new(plan, Arc::new(Nowhere), options);
        Self { run, events: Vec::new(), started: Vec::new(), millis: 0 }
    }

    fn now(&self) -> Now {
        let micros = i64::try_from(self.millis).unwrap() * 1_000;
        Now { wall: Timestamp::from_micros(micros), mono: Duration::from_millis(self.millis) }
    }

    fn take(&mut self, turn: Turn) {
        self.events.extend(turn.events);
        for command in turn.commands {
            if let Command::Start(attempt) = command {
                self.started.push(attempt.task);
            }
        }
    }

    fn begin(plan: &CompiledPlan) -> Self {
        let mut this = Self::new(plan);
        let mut turn = Turn::default();
        this.run.begin(this.now(), &mut turn);
        this.take(turn);
        this
    }

    fn handle(&mut self, input: Input) {
        let mut turn = Turn::default();
        self.run.handle(input, self.now(), &mut turn);
        self.take(turn);
    }

    fn end(&mut self, task: u32, status: Status, class: Option<ErrorClass>) {
        let result = RowResult { class, ..RowResult::new(status) };
        self.handle(Input::AttemptEnded { task: TaskIndex(task), row: 0, result: Box::new(result) });
    }
}

#[test]
fn the_class_of_the_first_failure_decides_status_and_exit_code() {
    let plan = phases();
    for (class, status, code) in [
        (ErrorClass::Exit, RunStatus::Failed, ExitCode::Failed),
        (ErrorClass::Unreachable, RunStatus::Failed, ExitCode::Unreachable),
        (ErrorClass::Timeout, RunStatus::Timeout, ExitCode::TimedOut),
        (ErrorClass::Check, RunStatus::Failed, ExitCode::Verification),
    ] {
        let mut run = Driven::begin(&plan);
        run.end(0, Status::Failed, Some(class));
        // What goes wrong later changes nothing.
        run.handle(Input::Cancel(CancelReason::Signal));
        run.end(2, Status::Failed, Some(ErrorClass::Operation));
        assert_eq!(run.run.ended(), Some((status, code)), "{class}");
    }
}

#[test]
fn a_signal_cancels_a_run_that_went_well_so_far_also_at_its_end() {
    let plan = phases();
    let mut run = Driven::begin(&plan);
    run.end(0, Status::Changed, None);
    run.end(1, Status::Changed, None);
    run.handle(Input::Cancel(CancelReason::Signal));
    run.end(2, Status::Failed, Some(ErrorClass::Check));
    assert_eq!(run.run.ended(), Some((RunStatus::Cancelled, ExitCode::Cancelled)));
}

#[test]
fn a_timeout_after_a_failure_is_still_the_failure() {
    let plan = phases();
    let mut run = Driven::begin(&plan);
    run.end(0, Status::Changed, None);
    run.end(1, Status::Failed, Some(ErrorClass::Exit));
    run.millis = 5_000;
    run.handle(Input::Tick);
    run.end(2, Status::Changed, None);
    assert_eq!(run.run.ended(), Some((RunStatus::Failed, ExitCode::Failed)));
}

/// Output of a role names the role, which is no task, and may be called as one.
#[test]
fn output_of_roles_changes_no_task_and_is_replayed() {
    let plan = phases();
    let mut run = Driven::begin(&plan);
    for role in ["server", "done"] {
        let log = EventKind::Log {
            task: TaskName::parse(role).unwrap(),
            host: None,
            attempt: 1,
            stream: Stream::Stdout,
            file: format!("roles/{role}/stdout.log"),
            offset: 0,
            len: 1,
        };
        let mut turn = Turn::default();
        run.run.note(log, run.now(), &mut turn);
        run.take(turn);
    }
    let mut again = Driven::new(&plan);
    again.run.replay(&run.events).unwrap();
    assert_eq!(again.run.states(), run.run.states());
}

#[test]
fn a_run_whose_driver_was_lost_is_finished_and_has_failed() {
    let plan = phases();
    // Lost in the main part, and lost when only what follows was left.
    for ended in [0, 1, 2] {
        let mut run = Driven::begin(&plan);
        (0..ended).for_each(|task| run.end(task, Status::Changed, None));
        let mut later = Driven::new(&plan);
        later.run.replay(&run.events).unwrap();
        let mut turn = Turn::default();
        later.run.resume(ResumeChoice::default(), later.now(), &mut turn).unwrap();
        later.take(turn);
        assert_eq!(later.started, [TaskIndex(2)], "nothing but what follows every outcome");
        later.end(2, Status::Changed, None);
        assert_eq!(later.run.ended(), Some((RunStatus::Failed, ExitCode::Failed)));
        let report = later.run.report();
        if ended < 2 {
            let row = &report.tasks[ended as usize];
            assert_eq!((row.status, row.error.as_deref()), (Status::Failed, Some("the driver was lost")));
        }
        let mut whole = run.events.clone();
        whole.extend(later.events.clone());
        let mut again = Driven::new(&plan);
        again.run.replay(&whole).unwrap();
        assert_eq!(again.run.ended(), later.run.ended());
    }
}

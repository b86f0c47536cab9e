//! Runs a runner to its end: observers, questions and signals connected, nothing decided.
//!
//! ```text
//!  signals thread ── counts ──▶ Canceller ──▶ Runner ── events ──▶ renderers
//!                        └────▶ Asker (gives up) ◀── questions ──┘
//! ```

use std::fs::File;
use std::future::Future;
use std::sync::{Mutex, PoisonError};

use stead_model::event::Stream;
use stead_model::{Event, HostName, Report, Task, TaskName};
use stead_runner::{Canceller, CheckedPlan, Observer, Runner};
use tokio::runtime::Builder;
use tokio::sync::watch;

use crate::commands::plan::present::Shown;
use crate::confirm::{self, Answers, Asker, Question};
use crate::failure::{Failure, FailureKind};
use crate::settings::Settings;
use crate::signals::{self, Signals};

pub(crate) use crate::confirm::Person;

impl Person {
    /// Returns who can answer questions: a terminal that shows them, and that can be read.
    pub(crate) fn find(yes: bool, settings: &Settings) -> Self {
        let can_ask =
            || settings.terminals.stderr && File::options().read(true).write(true).open("/dev/tty").is_ok();
        match yes {
            true => Self::SaidYes,
            false if can_ask() => Self::AtTerminal,
            false => Self::Absent,
        }
    }
}

/// Returns what tasks ask before they run.
pub(crate) fn questions<'a>(tasks: impl Iterator<Item = &'a Task>) -> Vec<Question> {
    let asked = tasks.filter_map(|task| Some((task, task.settings.confirm.as_ref()?)));
    asked.map(|(task, text)| Question { task: task.name.clone(), text: text.clone() }).collect()
}

/// Calls `act` with the runner, connected to renderers, questions and signals, and returns what it gives.
pub(crate) fn drive<T, F: Future<Output = T>>(
    runner: Runner,
    shown: Shown,
    questions: &[Question],
    person: Person,
    act: impl FnOnce(Runner) -> F,
) -> Result<T, Failure> {
    drive_hearing(listen()?, runner, shown, questions, person, act)
}

/// As [`drive`], with signals that are listened to since before there was a runner.
pub(crate) fn drive_hearing<T, F: Future<Output = T>>(
    counts: watch::Receiver<Signals>,
    runner: Runner,
    shown: Shown,
    questions: &[Question],
    person: Person,
    act: impl FnOnce(Runner) -> F,
) -> Result<T, Failure> {
    drive_on(Builder::new_multi_thread(), counts, runner, shown, questions, person, act)
}

/// Listens to signals from now on.
pub(crate) fn listen() -> Result<watch::Receiver<Signals>, Failure> {
    signals::listen().map_err(|error| Failure::caused_by(FailureKind::Work, error))
}

/// Returns the report of a predicted run of steps or of an intent, on one thread: it looks at a few files of this machine
/// and waits for nothing, so handing its attempts to other threads takes longer than making them.
pub(crate) fn predict(runner: Runner, shown: Shown, plan: CheckedPlan) -> Result<Report, Failure> {
    let act = move |runner: Runner| async move { runner.dry_run(plan).await };
    drive_on(Builder::new_current_thread(), listen()?, runner, shown, &[], Person::SaidYes, act)
}

fn drive_on<T, F: Future<Output = T>>(
    mut threads: Builder,
    counts: watch::Receiver<Signals>,
    mut runner: Runner,
    shown: Shown,
    questions: &[Question],
    person: Person,
    act: impl FnOnce(Runner) -> F,
) -> Result<T, Failure> {
    let internal = |error: std::io::Error| Failure::caused_by(FailureKind::Work, error);
    match confirm::decide(questions, person) {
        Answers::AllYes => runner = runner.answer(|_, _| true),
        Answers::Asked => {
            let asker = Mutex::new(Asker::open(shown.pauser.clone()).map_err(internal)?);
            let counts = counts.clone();
            runner = runner.answer(move |task, text| ask(&asker, &counts, task, text));
        }
        // The runner refuses a plan nobody can answer for, with a complete report that lists the questions.
        Answers::Missing => {}
    }
    for renderer in shown.renderers {
        runner = runner.observe(Boxed(renderer));
    }
    let runtime = threads.enable_all().build().map_err(internal)?;
    let canceller = runner.canceller();
    let ended = runtime.block_on(async {
        tokio::select! {
            ended = act(runner) => ended,
            never = forward(counts, canceller) => match never {},
        }
    });
    // A question that is still being asked must not hold the process: its thread is left behind.
    runtime.shutdown_background();
    Ok(ended)
}

/// One question stands at a time; a cancelled run takes it back, and that is no.
fn ask(asker: &Mutex<Asker>, counts: &watch::Receiver<Signals>, task: &TaskName, text: &str) -> bool {
    let question = Question { task: task.clone(), text: text.to_owned() };
    let mut asker = asker.lock().unwrap_or_else(PoisonError::into_inner);
    let answer = asker.ask(&question, &|| counts.borrow().count > 0);
    // A terminal that went away cannot say yes.
    answer.is_ok_and(|answer| answer == Some(true))
}

/// Tells the run of every signal.
pub(crate) async fn forward(
    mut counts: watch::Receiver<Signals>,
    canceller: Canceller,
) -> std::convert::Infallible {
    while counts.changed().await.is_ok() {
        canceller.signal(counts.borrow_and_update().count);
    }
    std::future::pending().await
}

/// A renderer of any kind, as the runner takes observers.
pub(crate) struct Boxed(pub(crate) Box<dyn Observer>);

impl Observer for Boxed {
    fn on_recorded(&mut self, event: &Event) {
        self.0.on_recorded(event);
    }

    fn on_event(&mut self, event: &Event) {
        self.0.on_event(event);
    }

    fn on_output(&mut self, task: &TaskName, host: Option<&HostName>, stream: Stream, bytes: &[u8]) {
        self.0.on_output(task, host, stream, bytes);
    }

    fn on_lines(&mut self, lines: &[u8]) {
        self.0.on_lines(lines);
    }

    fn wants_output(&self) -> bool {
        self.0.wants_output()
    }

    fn wants_lines(&self) -> bool {
        self.0.wants_lines()
    }
}

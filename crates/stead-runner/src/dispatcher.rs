//! The one owner of a run's state: takes what happened, has the engine decide, records, then acts.
//!
//! ```text
//!   executor ──messages──▶ ┌────────────┐ ── events ──▶ journal, then observers
//!   cancel   ─────────────▶│ dispatcher │
//!   timer    ─────────────▶└────────────┘ ── commands ─▶ executor (each attempt a task of its own)
//! ```

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use stead_engine::run::{Attempt, Command, Input, Now, Run, Turn};
use stead_model::event::{Event, EventKind, RowResult};
use stead_model::plan::{Section, TaskIndex};
use stead_model::report::Warning;
use stead_model::{RunStatus, Status, TaskName};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::cancel::Wish;
use crate::clock;
use crate::executor::{CatchPanic, Executor, Message, failed_by_panic};
use crate::journal::Journal;
use crate::observe::Observer;
use crate::operation::{Cancel, Stop, Stopper};

/// Answers a task's question: yes or no. Called on a thread of its own.
pub type Answer = Arc<dyn Fn(&TaskName, &str) -> bool + Send + Sync>;

/// How many messages are taken in one turn at most, so that a flood cannot delay the journal.
const MESSAGES_PER_TURN: usize = 256;

/// When results must be on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// A killed process loses nothing.
    #[default]
    Process,
    /// A power cut loses no result of a non-idempotent attempt either.
    Power,
}

pub(crate) struct Dispatcher {
    pub(crate) run: Run,
    pub(crate) turn: Turn,
    pub(crate) journal: Journal,
    pub(crate) durability: Durability,
    pub(crate) observers: Vec<Box<dyn Observer>>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) messages: mpsc::Receiver<Message>,
    pub(crate) wish: watch::Receiver<Wish>,
    pub(crate) answer: Answer,
    pub(crate) began: Instant,
    pub(crate) work: JoinSet<()>,
    pub(crate) attempts: BTreeMap<(TaskIndex, u32), Underway>,
    pub(crate) undos: BTreeMap<TaskIndex, Stopper>,
    pub(crate) obeyed: Option<Wish>,
    pub(crate) recording_failures: Vec<String>,
    pub(crate) journal_lost: bool,
    /// Whoever waits for the turn to be recorded.
    pub(crate) waiting_for_journal: Vec<oneshot::Sender<()>>,
    /// The time of this turn: asked once, since what ends together ends at the same time.
    pub(crate) time: Option<Now>,
}

/// An attempt that goes on. Dropped before its end it is cut off, as when the run's future is dropped.
pub(crate) struct Underway {
    stop: Stopper,
    work: JoinHandle<()>,
    ended: bool,
}

impl Drop for Underway {
    fn drop(&mut self) {
        // One that has told its end has nothing left to cut off, and cutting it off would wake it once more.
        if !self.ended {
            self.work.abort();
        }
    }
}

impl Dispatcher {
    fn now(&mut self) -> Now {
        let began = self.began;
        *self.time.get_or_insert_with(|| Now { wall: clock::now(), mono: began.elapsed() })
    }

    /// Walks the run to its end. The first turn is there already.
    pub(crate) async fn drive(&mut self) {
        self.commit();
        // One wait for all turns: there are many turns and seldom a wish.
        let mut wished = std::pin::pin!(next_wish(self.wish.clone()));
        while !self.run.is_finished() {
            let due = self.run.deadline().map(|at| self.began + at);
            self.time = None;
            tokio::select! {
                biased;
                next = &mut wished, if self.obeyed != Some(Wish::Kill) => match next {
                    Some(next) => {
                        wished.set(next_wish(next));
                        self.obey();
                    }
                    // The sender lives as long as the runner; without one nobody can wish anything.
                    None => self.obeyed = Some(Wish::Kill),
                },
                Some(message) = self.messages.recv() => self.take(message),
                () = until(due) => self.handle(Input::Tick),
            }
            self.take_waiting();
            if !self.attempts.is_empty() {
                // Attempts that end at the same time share a turn, and so one write of the journal.
                tokio::task::yield_now().await;
                self.time = None;
                self.take_waiting();
            }
            while self.work.try_join_next().is_some() {}
            self.commit();
        }
        // Attempts have all ended. A guard or a question nobody waits for any more is left behind.
        self.work.abort_all();
        self.work.detach_all();
    }

    /// Takes the messages that are there.
    fn take_waiting(&mut self) {
        for _ in 0..MESSAGES_PER_TURN {
            let Ok(message) = self.messages.try_recv() else { break };
            self.take(message);
        }
    }

    /// Obeys a wish that was there before the run began.
    pub(crate) fn obey(&mut self) {
        let wish = *self.wish.borrow_and_update();
        if self.obeyed == Some(wish) {
            return;
        }
        match wish {
            Wish::GoOn => return,
            Wish::Stop(why) => self.handle(Input::Cancel(why)),
            Wish::Kill => self.handle(Input::Kill),
        }
        self.obeyed = Some(wish);
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Input(input) => {
                if let Input::AttemptEnded { task, row, .. } = &input
                    && let Some(mut underway) = self.attempts.remove(&(*task, *row))
                {
                    underway.ended = true;
                }
                if let Input::UndoEnded { task, .. } = &input {
                    self.undos.remove(task);
                }
                self.handle(input);
            }
            Message::Log(..) if self.run.is_finished() => {}
            Message::Log(kind, bytes) => {
                if let (EventKind::Log { task, host, stream, .. }, Some(bytes)) = (&kind, bytes) {
                    let (task, host, stream) = (task.clone(), host.clone(), *stream);
                    self.tell(|observer| {
                        if observer.wants_output() {
                            observer.on_output(&task, host.as_ref(), stream, &bytes);
                        }
                    });
                }
                let now = self.now();
                self.run.note(kind, now, &mut self.turn);
            }
            // A guard that nobody waits for any more may still speak; the run has had its last word.
            Message::Facts { .. } | Message::Note(_) | Message::Warning(_) if self.run.is_finished() => {}
            Message::Note(mut kind) => {
                self.executor.mask_note(&mut kind);
                let now = self.now();
                self.run.note(kind, now, &mut self.turn);
            }
            Message::Facts { host, facts, journaled } => {
                let now = self.now();
                self.run.note(EventKind::FactsGathered { host, facts }, now, &mut self.turn);
                self.waiting_for_journal.push(journaled);
            }
            Message::Warning(Warning { code, text, role }) => {
                let now = self.now();
                self.run.note(EventKind::Warning { code, text, role }, now, &mut self.turn);
            }
            Message::RecordingFailed(error) => self.recording_failed(error),
        }
    }

    fn handle(&mut self, input: Input) {
        let now = self.now();
        self.run.handle(input, now, &mut self.turn);
    }

    fn recording_failed(&mut self, error: String) {
        if !self.recording_failures.contains(&error) {
            self.warn("record/incomplete", format!("the recording is incomplete: {error}"));
            self.recording_failures.push(error);
        }
    }

    /// Adds a warning to the run.
    pub(crate) fn warn(&mut self, code: &str, text: String) {
        let now = self.now();
        self.run.note(EventKind::Warning { code: code.to_owned(), text, role: None }, now, &mut self.turn);
    }

    /// Records the turn's events, then tells observers, then carries out its commands.
    fn commit(&mut self) {
        // Recording may itself add events (a lost journal): until nothing is left.
        while !self.turn.events.is_empty() || !self.turn.commands.is_empty() {
            let mut turn = std::mem::take(&mut self.turn);
            if let Err(error) = self.record(&turn) {
                self.lose_journal(&error, &mut turn);
            }
            let events = std::mem::take(&mut turn.events);
            self.tell(|observer| events.iter().for_each(|event| observer.on_event(event)));
            for command in turn.commands.drain(..) {
                self.carry_out(command);
            }
        }
        for waiting in self.waiting_for_journal.drain(..) {
            if !self.journal_lost {
                // Who does not wait any more has been stopped.
                waiting.send(()).unwrap_or(());
            }
        }
    }

    fn record(&mut self, turn: &Turn) -> Result<(), String> {
        if self.journal_lost || turn.events.is_empty() {
            return Ok(());
        }
        let stripped: Vec<Event>;
        let events = if turn.events.iter().any(|event| event.kind.has_data_file()) {
            stripped = turn.events.iter().cloned().map(without_filed_data).collect();
            &stripped
        } else {
            &turn.events
        };
        let appended = self.journal.append(events).map_err(|error| crate::record::chain(&error))?;
        let wants_lines = self.observers.iter().any(|observer| observer.wants_lines());
        if wants_lines {
            let lines = appended.lines.to_vec();
            self.tell(|observer| {
                if observer.wants_lines() {
                    observer.on_lines(&lines);
                }
            });
        }
        if self.durability == Durability::Power && self.needs_power_sync(turn) {
            self.journal.sync_now().map_err(|error| crate::record::chain(&error))?;
        }
        Ok(())
    }

    fn needs_power_sync(&self, turn: &Turn) -> bool {
        let idempotent = |task: TaskIndex| self.run.plan().task(task).settings.idempotent;
        let starts = turn
            .commands
            .iter()
            .any(|command| matches!(command, Command::Start(start) if !idempotent(start.task)));
        let ends = turn.events.iter().any(|event| {
            let ended = matches!(event.kind, EventKind::HostResult { .. } | EventKind::TaskFinished { .. });
            let task = event.kind.task().and_then(|name| self.run.graph().index_of(name.as_str()));
            ended && task.is_some_and(|task| !idempotent(task))
        });
        starts || ends
    }

    /// The journal cannot be written: nothing that is not in it may happen, and the run ends as failed.
    fn lose_journal(&mut self, error: &str, turn: &mut Turn) {
        self.journal_lost = true;
        let unstarted: Vec<Attempt> = turn
            .commands
            .drain(..)
            .filter_map(|command| match command {
                Command::Start(attempt) => Some(attempt),
                Command::Judge(_)
                | Command::Ask(_)
                | Command::Stop { .. }
                | Command::Undo { .. }
                | Command::KillAll
                | Command::Finish => None,
            })
            .collect();
        self.handle(Input::JournalLost(error.to_owned()));
        for Attempt { task, row, .. } in unstarted {
            self.handle(Input::AttemptEnded {
                task,
                row,
                result: Box::new(RowResult::new(Status::Cancelled)),
            });
        }
    }

    /// Calls every observer; one that panics is dropped.
    fn tell(&mut self, mut call: impl FnMut(&mut dyn Observer)) {
        let before = self.observers.len();
        self.observers.retain_mut(|observer| {
            std::panic::catch_unwind(AssertUnwindSafe(|| call(&mut **observer))).is_ok()
        });
        for _ in self.observers.len()..before {
            self.warn("run/observer-panicked", "an observer panicked and was dropped".to_owned());
        }
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Judge(task) => {
                let (executor, status) = (Arc::clone(&self.executor), self.final_status(task));
                self.work.spawn_blocking(move || {
                    let verdict = executor.judge_with_facts(task, status);
                    executor.send_blocking(Message::Input(Input::Judged { task, verdict }));
                });
            }
            Command::Ask(task) => {
                let (executor, answer) = (Arc::clone(&self.executor), Arc::clone(&self.answer));
                self.work.spawn_blocking(move || {
                    let plan = Arc::clone(&executor.plan);
                    let task_of_plan = plan.task(task);
                    let text = task_of_plan.settings.confirm.as_deref().unwrap_or_default();
                    let yes = answer(&task_of_plan.name, text);
                    executor.send_blocking(Message::Input(Input::Answered { task, yes }));
                });
            }
            Command::Start(attempt) => self.start(attempt),
            Command::Stop { task, row } => {
                if let Some(attempt) = self.attempts.get(&(task, row)) {
                    attempt.stop.stop(Stop::Ask);
                }
            }
            Command::Undo { task, rows } => {
                let executor = Arc::clone(&self.executor);
                let (stop, cancel) = Cancel::signal();
                self.undos.insert(task, stop);
                self.work.spawn(async move {
                    let error = Arc::clone(&executor).undo(task, rows, cancel).await;
                    executor.send(Message::Input(Input::UndoEnded { task, error })).await;
                });
            }
            Command::KillAll => {
                let attempts = self.attempts.values().map(|attempt| &attempt.stop);
                for stop in attempts.chain(self.undos.values()) {
                    stop.stop(Stop::Kill);
                }
            }
            Command::Finish => {}
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "not detached: `Underway` owns it and aborts it when dropped"
    )]
    fn start(&mut self, attempt: Attempt) {
        let executor = Arc::clone(&self.executor);
        let status = self.final_status(attempt.task);
        let (stop, cancel) = Cancel::signal();
        let (task, row) = (attempt.task, attempt.row);
        // Kept small, since it is moved several times on its way to a thread: what takes room is in boxes of its own,
        // made only if it is needed.
        let work = tokio::spawn(async move {
            let result = {
                let work = std::pin::pin!(executor.attempt(&attempt, cancel, status));
                CatchPanic(work).await.unwrap_or_else(|message| Box::new(failed_by_panic(message)))
            };
            if let Some(wait) = executor.tell(Message::Input(Input::AttemptEnded { task, row, result })) {
                wait.await;
            }
        });
        self.attempts.insert((task, row), Underway { stop, work, ended: false });
    }

    /// Returns how the run has ended so far, for tasks of `finally`.
    fn final_status(&self, task: TaskIndex) -> Option<RunStatus> {
        let is_final = self.run.plan().task(task).section == Section::Finally;
        is_final.then(|| self.run.status_so_far())
    }
}

/// Returns the receiver when it has something new; nothing if nobody can wish any more. Cancel safe.
async fn next_wish(mut wish: watch::Receiver<Wish>) -> Option<watch::Receiver<Wish>> {
    wish.changed().await.ok().map(|()| wish)
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

/// Returns the event as the journal holds it: data that has a file of its own is only there.
fn without_filed_data(mut event: Event) -> Event {
    if let Some((_, data)) = event.kind.filed_data() {
        *data = None;
    }
    event
}

/// Messages that may wait for the dispatcher: enough for a busy turn, few enough to push back on output floods.
pub(crate) const CHANNEL: usize = 1024;

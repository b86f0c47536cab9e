//! The order of sections: main, rollback, finally, end.

use std::cmp::Reverse;

use stead_model::event::{EventKind, RunFinished, RunKind, TaskResult};
use stead_model::plan::{OnFailure, Section, TaskIndex};
use stead_model::{ErrorClass, ExitCode, RunStatus, Status};

use crate::task_state::TaskState;

use super::apply::section_slot;
use super::{Command, Now, Run, Timer, Turn};

impl Run {
    /// Starts what may start, and goes on to the next section when this one is settled.
    pub(super) fn proceed(&mut self, now: Now, turn: &mut Turn) {
        while self.finished.is_none() {
            self.dispatch(now, turn);
            let settled = match self.section {
                None => return,
                Some(Section::Rollback) => {
                    self.dispatch_undos(now, turn);
                    self.undoing.is_empty() && (self.undo_left == 0 || self.killed)
                }
                Some(section) => self.is_settled(section),
            };
            if !settled {
                return;
            }
            self.next_section(now, turn);
        }
    }

    fn is_settled(&self, section: Section) -> bool {
        self.live.is_empty() && (self.halt.is_some() || self.undecided[section_slot(section)] == 0)
    }

    fn next_section(&mut self, now: Now, turn: &mut Turn) {
        match self.section {
            Some(Section::Main) => {
                self.leave_out(Section::Main, now, turn);
                if self.wants_rollback() {
                    self.begin_rollback(now, turn);
                } else {
                    self.begin_finally(now, turn);
                }
            }
            Some(Section::Rollback) => self.begin_finally(now, turn),
            Some(Section::Finally) | None => {
                self.leave_out(Section::Finally, now, turn);
                self.end(now, turn);
            }
        }
    }

    /// Decides every task of a section that did not start as `not_run`. Those that were interrupted fail, so that a person
    /// hears of all of them at once.
    fn leave_out(&mut self, section: Section, now: Now, turn: &mut Turn) {
        if self.undecided[section_slot(section)] == 0 {
            return;
        }
        let reason = self.halt_reason();
        for i in 0..self.plan.tasks.len() {
            let task = TaskIndex(u32::try_from(i).expect("at most 1,000,000 tasks"));
            if self.plan.task(task).section == section && self.states[i].decision().is_none() {
                let kind = match self.awaited_decision(task) {
                    Some(error) => {
                        let (class, error) = (Some(ErrorClass::Interrupted), Some(error));
                        let result = TaskResult { class, error, ..TaskResult::new(Status::Failed) };
                        EventKind::TaskFinished { task: self.name(task), result: Box::new(result) }
                    }
                    None => EventKind::TaskNotRun { task: self.name(task), reason: reason.clone() },
                };
                self.emit(Some(task), None, kind, now, turn);
            }
        }
    }

    fn wants_rollback(&self) -> bool {
        self.plan.on_failure == OnFailure::Rollback
            && matches!(self.status, RunStatus::Failed | RunStatus::Timeout)
            && !self.killed
            && !self.is_dry()
            && self.changed_tasks().next().is_some()
    }

    fn changed_tasks(&self) -> impl Iterator<Item = TaskIndex> {
        let main =
            self.plan.indexed().filter(|(_, task)| task.section == Section::Main).map(|(index, _)| index);
        main.filter(|index| self.states[index.get()].decision().is_some_and(|decision| decision.changed))
    }

    fn begin_rollback(&mut self, now: Now, turn: &mut Turn) {
        self.emit(None, None, EventKind::SectionStarted { section: Section::Rollback }, now, turn);
        self.prepare_undos();
    }

    /// Works out which undos are left and in which order: a task's undo waits for those of its dependents.
    pub(super) fn prepare_undos(&mut self) {
        let count = self.plan.tasks.len();
        self.undo_waiting = vec![0; count];
        self.undo_left = 0;
        for (index, task) in self.plan.indexed() {
            if task.section == Section::Main {
                self.undo_left += 1;
                self.undo_waiting[index.get()] =
                    u32::try_from(self.graph.dependents(index).len()).unwrap_or(u32::MAX);
            }
        }
        let leaves = self
            .plan
            .indexed()
            .filter(|(index, task)| task.section == Section::Main && self.undo_waiting[index.get()] == 0);
        self.undo_ready = leaves.map(|(index, _)| Reverse(index)).collect();
    }

    fn dispatch_undos(&mut self, now: Now, turn: &mut Turn) {
        while !self.killed
            && self.queue.has_slot()
            && let Some(Reverse(task)) = self.undo_ready.pop_first()
        {
            if self.needs_undo(task) {
                self.start_undo(task, now, turn);
            } else {
                self.undo_settled(task);
            }
        }
    }

    fn needs_undo(&self, task: TaskIndex) -> bool {
        let changed = matches!(self.states[task.get()], TaskState::Done(decision) if decision.changed);
        changed && self.settings(task).undo.is_some()
    }

    fn start_undo(&mut self, task: TaskIndex, now: Now, turn: &mut Turn) {
        let finished = self.decided[task.get()].as_ref().expect("a changed task is decided");
        let rows: Vec<_> = finished
            .rows()
            .iter()
            .filter(|row| row.changed || row.host.is_none())
            .map(|row| (row.host.clone(), row.inverse.clone()))
            .collect();
        let hosts = rows.iter().filter_map(|(host, _)| host.clone()).collect();
        self.emit(Some(task), None, EventKind::UndoStarted { task: self.name(task), hosts }, now, turn);
        self.queue.take_slot();
        self.undoing.insert(task);
        turn.commands.push(Command::Undo { task, rows });
    }

    pub(super) fn undo_ended(&mut self, task: TaskIndex, error: Option<String>, now: Now, turn: &mut Turn) {
        if !self.undoing.remove(&task) {
            return;
        }
        self.queue.give_slot();
        let status = if error.is_some() { Status::Failed } else { Status::Changed };
        self.emit(
            Some(task),
            None,
            EventKind::UndoFinished { task: self.name(task), status, error },
            now,
            turn,
        );
        self.undo_settled(task);
    }

    fn undo_settled(&mut self, task: TaskIndex) {
        self.undo_left -= 1;
        for dependency in self.graph.dependencies(task) {
            self.undo_waiting[dependency.get()] -= 1;
            if self.undo_waiting[dependency.get()] == 0 {
                self.undo_ready.insert(Reverse(*dependency));
            }
        }
    }

    pub(super) fn begin_finally(&mut self, now: Now, turn: &mut Turn) {
        if self.undecided[section_slot(Section::Finally)] == 0 {
            return self.end(now, turn);
        }
        let halt = self.halt.clone();
        self.emit(None, None, EventKind::SectionStarted { section: Section::Finally }, now, turn);
        if self.killed {
            self.halt = halt;
            return;
        }
        self.set_timer(now.mono + self.plan.finally_timeout, Timer::FinallyTimeout);
        self.consider_section(Section::Finally, now, turn);
    }

    fn end(&mut self, now: Now, turn: &mut Turn) {
        let failed_finally = self.plan.indexed().any(|(index, task)| {
            task.section == Section::Finally
                && self.states[index.get()]
                    .decision()
                    .is_some_and(|end| matches!(end.status, Status::Failed | Status::Cancelled))
        });
        if failed_finally && self.status == RunStatus::Success {
            self.status = RunStatus::Failed;
        }
        let finished = RunFinished {
            status: self.status,
            exit_code: self.exit_code(),
            counts: self.counts(),
            duration_ms: u64::try_from(now.mono.as_millis()).unwrap_or(u64::MAX),
            error: self
                .lost_journal
                .as_ref()
                .map(|error| format!("the journal could not be written: {error}")),
        };
        self.emit(None, None, EventKind::RunFinished(Box::new(finished)), now, turn);
        turn.commands.push(Command::Finish);
    }

    /// Returns what the process exits with, by the run's status and its failed rows.
    fn exit_code(&self) -> ExitCode {
        if self.is_dry() {
            let failed = self.decided.iter().flatten().any(|finished| finished.status() == Status::Failed);
            return if failed { ExitCode::Failed } else { ExitCode::Success };
        }
        if self.options.kind == RunKind::Run {
            // Of a run of roles the first cause decides.
            let cause = self.first_failure.and_then(|task| self.decided[task.get()].as_ref());
            return self.status.exit_code(cause.map(|finished| finished.end.row.class));
        }
        let failed_rows =
            self.decided.iter().flatten().filter(|finished| finished.status() == Status::Failed).flat_map(
                |finished| {
                    let rows: Vec<_> = finished
                        .rows_on_hosts()
                        .iter()
                        .filter_map(|row| row.result.as_deref())
                        .filter(|result| result.status == Status::Failed)
                        .map(|result| result.class)
                        .collect();
                    if rows.is_empty() { vec![finished.end.row.class] } else { rows }
                },
            );
        let code = self.status.exit_code(failed_rows.collect::<Vec<_>>());
        // A step's timeout is a failure like any other.
        let is_step = self.options.kind == RunKind::Steps;
        if is_step && code == ExitCode::TimedOut { ExitCode::Failed } else { code }
    }
}

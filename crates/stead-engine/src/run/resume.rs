//! Taking a run up again after its process died, or after it ended badly.

use std::collections::BTreeSet;

use stead_model::event::{EventKind, InterruptedAttempt, RunKind, RunResumed, TaskResult};
use stead_model::plan::{Digest, Section, TaskIndex};
use stead_model::status::Class;
use stead_model::{ErrorClass, RunStatus, Status, TaskName};

use crate::task_state::{RowState, TaskState};

use super::{Now, Run, Timer, Turn};

/// What is said of phases that a lost driver did not come to.
const DRIVER_LOST: &str = "the driver was lost";

/// What a person decided about a resume.
#[derive(Clone, Debug, Default)]
pub struct ResumeChoice {
    /// Interrupted tasks to run again.
    pub rerun: Vec<TaskName>,
    /// Interrupted tasks to count as done.
    pub assume_done: Vec<TaskName>,
    /// Bytes of a damaged tail that were cut off.
    pub dropped_bytes: u64,
    /// The hash of another plan that goes on, and its tasks that are not the recorded ones.
    pub forced: Option<(Digest, BTreeSet<TaskName>)>,
}

/// Why a run is not taken up again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResumeRefusal {
    /// There is nothing left to do.
    #[error("the run has already succeeded")]
    AlreadyDone,
    /// Its changes were undone.
    #[error("the run was rolled back and cannot be resumed; start it again")]
    RolledBack,
    /// A named task has no interrupted attempt.
    #[error("task `{task}` has no interrupted attempt")]
    NotInterrupted {
        /// The name.
        task: TaskName,
        /// Those that have.
        candidates: Vec<TaskName>,
    },
}

impl Run {
    /// Returns whether the replayed run can be taken up again, before anything is done about it.
    pub fn check_resume(&self, choice: &ResumeChoice) -> Result<(), ResumeRefusal> {
        let was_finished = self.finished.is_some();
        if was_finished && self.status == RunStatus::Success && choice.forced.is_none() {
            return Err(ResumeRefusal::AlreadyDone);
        }
        if was_finished && self.rolled_back {
            return Err(ResumeRefusal::RolledBack);
        }
        let candidates = self.interrupted_tasks();
        for task in choice.rerun.iter().chain(&choice.assume_done) {
            if !candidates.contains(task) {
                let candidates = candidates.iter().cloned().collect();
                return Err(ResumeRefusal::NotInterrupted { task: task.clone(), candidates });
            }
        }
        Ok(())
    }

    /// Begins the next segment of a replayed run.
    pub fn resume(&mut self, choice: ResumeChoice, now: Now, turn: &mut Turn) -> Result<(), ResumeRefusal> {
        self.check_resume(&choice)?;
        if self.options.kind == RunKind::Run {
            self.finish_after_loss(choice.dropped_bytes, now, turn);
            return Ok(());
        }
        let was_finished = self.finished.is_some();
        // A run that died in rollback or finally goes on there; its main part is decided.
        let section = if was_finished { Section::Main } else { self.section.unwrap_or(Section::Main) };
        let (forced, changed) = match choice.forced {
            Some((hash, changed)) => (Some(hash), changed),
            None => (None, BTreeSet::new()),
        };
        let section = if forced.is_some() { Section::Main } else { section };
        let resumed = RunResumed {
            segment: self.segments + 1,
            dropped_bytes: choice.dropped_bytes,
            reset: self.tasks_to_reset(section, &changed, was_finished),
            interrupted: self.interrupted_attempts(),
            replaced: changed.iter().cloned().collect(),
            assumed_done: choice.assume_done,
            rerun: choice.rerun,
            forced: forced.is_some(),
            plan_hash: forced,
        };
        self.emit(None, None, EventKind::RunResumed(Box::new(resumed)), now, turn);
        self.say(now, turn);
        match section {
            Section::Main => self.begin_main(now, turn),
            Section::Rollback => {
                self.emit(None, None, EventKind::SectionStarted { section }, now, turn);
                self.prepare_undos();
            }
            Section::Finally => {
                self.emit(None, None, EventKind::SectionStarted { section }, now, turn);
                self.set_timer(now.mono + self.plan.finally_timeout, Timer::FinallyTimeout);
                self.consider_section(Section::Finally, now, turn);
            }
        }
        self.proceed(now, turn);
        Ok(())
    }

    /// Finishes a run of roles whose driver was lost: nothing of its main part runs again, `finally` goes on.
    fn finish_after_loss(&mut self, dropped_bytes: u64, now: Now, turn: &mut Turn) {
        let under_way: BTreeSet<TaskIndex> = self.live.keys().copied().collect();
        let resumed = RunResumed {
            segment: self.segments + 1,
            dropped_bytes,
            interrupted: self.interrupted_attempts(),
            ..RunResumed::default()
        };
        self.emit(None, None, EventKind::RunResumed(Box::new(resumed)), now, turn);
        self.say(now, turn);
        let open = self.plan.indexed().filter(|(index, task)| {
            task.section == Section::Main && self.states[index.get()].decision().is_none()
        });
        let open: Vec<TaskIndex> = open.map(|(index, _)| index).collect();
        for index in open {
            let task = self.name(index);
            let kind = if under_way.contains(&index) {
                let result = TaskResult {
                    class: Some(ErrorClass::Interrupted),
                    error: Some(DRIVER_LOST.to_owned()),
                    ..TaskResult::new(Status::Failed)
                };
                EventKind::TaskFinished { task, result: Box::new(result) }
            } else {
                EventKind::TaskNotRun { task, reason: DRIVER_LOST.to_owned() }
            };
            self.emit(Some(index), None, kind, now, turn);
        }
        self.begin_finally(now, turn);
        self.proceed(now, turn);
    }

    /// Returns decided tasks that start over, in plan order.
    fn tasks_to_reset(
        &self,
        section: Section,
        changed: &BTreeSet<TaskName>,
        was_finished: bool,
    ) -> Vec<TaskName> {
        let starts_over = |index: TaskIndex| {
            let task = self.plan.task(index);
            let Some(end) = self.states[index.get()].decision() else { return false };
            if changed.contains(&task.name) {
                return true;
            }
            match task.section {
                Section::Finally => was_finished || section == Section::Main,
                Section::Main | Section::Rollback => section == Section::Main && end.class() == Class::Broken,
            }
        };
        self.plan
            .indexed()
            .filter(|(index, _)| starts_over(*index))
            .map(|(_, task)| task.name.clone())
            .collect()
    }

    /// Returns attempts that had begun and have no result, in plan order.
    pub fn interrupted_attempts(&self) -> Vec<InterruptedAttempt> {
        let attempts = self.live.iter().flat_map(|(task, live)| {
            let running = live.rows.iter().filter(|row| row.state == RowState::Running);
            running.map(|row| InterruptedAttempt { task: self.name(*task), host: row.host.clone() })
        });
        attempts.collect()
    }

    /// Returns tasks with a row that a person must decide about, in plan order.
    fn interrupted_tasks(&self) -> BTreeSet<TaskName> {
        use stead_model::plan::Interrupted;
        let undecided = |index: TaskIndex| {
            let settings = self.settings(index);
            let runs_again = settings.idempotent || settings.interrupted == Interrupted::Retry;
            let in_flight = self.live.get(&index).is_some_and(|live| {
                live.rows.iter().any(|row| row.interrupted || row.state == RowState::Running && !runs_again)
            });
            let kept = self.kept.get(&index).is_some_and(|rows| rows.iter().any(|row| row.interrupted));
            let decided = self.decided[index.get()]
                .as_ref()
                .is_some_and(|done| done.rows().iter().any(|row| row.interrupted));
            in_flight || kept || decided
        };
        self.plan
            .indexed()
            .filter(|(index, _)| undecided(*index))
            .map(|(_, task)| task.name.clone())
            .collect()
    }

    /// Returns whether a task's undo had begun and not ended.
    pub fn is_undoing(&self, task: TaskIndex) -> bool {
        matches!(self.states[task.get()], TaskState::Undoing(_))
    }
}

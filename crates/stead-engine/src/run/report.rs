//! The report of a run, from its state.

use std::time::Duration;

use stead_model::event::Mode;
use stead_model::plan::{Section, TaskIndex};
use stead_model::report::{ErrorRow, HostRow, Report, Rollback, TaskRow, summarize};
use stead_model::{ExitCode, RunStatus, Status};

use crate::task_state::TaskState;

use super::{Row, Run};

impl Run {
    /// Returns the report of the run as it stands; every task has a row.
    pub fn report(&self) -> Report {
        let counts = self.counts_of_all();
        let duration_ms = self.earlier_ms;
        let status = self.status();
        let (mode, run_id) = match &self.started {
            Some(started) => (started.mode, self.options.run_id.clone()),
            None => (Mode::Run, self.options.run_id.clone()),
        };
        let tasks: Vec<TaskRow> = self.plan.indexed().map(|(index, _)| self.task_row(index)).collect();
        Report {
            schema: 1,
            run_id,
            bundle: None,
            plan: self.plan.name.clone(),
            plan_hash: self.hash,
            mode,
            status,
            exit_code: self.finished.as_ref().map_or(ExitCode::Failed, |finished| finished.exit_code),
            started_at: self.started_at,
            finished_at: self.finished_at,
            duration_ms,
            segments: self.segments,
            summary: summarize(counts, mode, duration_ms),
            counts,
            errors: self.errors(&tasks),
            tasks,
            warnings: self.warnings.clone(),
            rollback: self.rollback(),
            steps: None,
        }
    }

    /// Counts every task; those that are not decided as `not_run`.
    fn counts_of_all(&self) -> stead_model::event::Counts {
        let mut counts = stead_model::event::Counts::default();
        for state in &self.states {
            counts.add(state.decision().map_or(Status::NotRun, |decision| decision.status));
        }
        counts
    }

    fn task_row(&self, index: TaskIndex) -> TaskRow {
        let task = self.plan.task(index);
        let mut row = TaskRow::not_run(task.name.clone(), task.section);
        if let TaskState::Undone(_, status) = self.states[index.get()] {
            row.undo = Some(status);
        }
        let Some(finished) = &self.decided[index.get()] else { return row };
        let end = &finished.end.row;
        row.status = end.status;
        row.changed = end.changed;
        row.partial = finished.partial;
        row.cause = end.cause;
        row.reason = end.reason.as_deref().map(str::to_owned);
        row.class = end.class;
        row.error = end.error.as_deref().map(str::to_owned);
        row.attempts = end.attempts;
        row.started_at = finished.started_at;
        row.duration = Duration::from_millis(end.duration_ms);
        row.prediction = finished.prediction;
        row.hosts = finished.rows_on_hosts().iter().filter_map(host_row).collect();
        row.data = match row.hosts.as_slice() {
            [] => end.data.clone(),
            [host] => host.data.clone(),
            _ => None,
        };
        row
    }

    fn errors(&self, tasks: &[TaskRow]) -> Vec<ErrorRow> {
        let mut errors = Vec::new();
        for task in tasks {
            let before = errors.len();
            for host in task.hosts.iter().filter(|host| host.status == Status::Failed) {
                errors.push(ErrorRow {
                    task: Some(task.name.clone()),
                    host: Some(host.host.clone()),
                    class: host.class,
                    message: host.error.clone().unwrap_or_default(),
                });
            }
            if task.status == Status::Failed && errors.len() == before {
                errors.push(ErrorRow {
                    task: Some(task.name.clone()),
                    host: None,
                    class: task.class,
                    message: task.error.clone().unwrap_or_default(),
                });
            }
        }
        if let Some(error) = self.finished.as_ref().and_then(|finished| finished.error.clone()) {
            errors.push(ErrorRow {
                task: None,
                host: None,
                class: self.lost_journal.is_some().then_some(stead_model::ErrorClass::Journal),
                message: error,
            });
        }
        errors
    }

    fn rollback(&self) -> Option<Rollback> {
        if !self.rolled_back {
            return None;
        }
        let mut rollback = Rollback::default();
        for (index, task) in self.plan.indexed().filter(|(_, task)| task.section == Section::Main) {
            match self.states[index.get()] {
                TaskState::Undone(_, Status::Failed) => rollback.failed.push(task.name.clone()),
                TaskState::Undone(..) => rollback.done.push(task.name.clone()),
                TaskState::Done(decision) if decision.changed => rollback.missing.push(task.name.clone()),
                TaskState::Undoing(_) => rollback.failed.push(task.name.clone()),
                TaskState::Waiting | TaskState::Ready | TaskState::Running | TaskState::Done(_) => {}
            }
        }
        Some(rollback)
    }

    /// Returns whether the run ended, and how, for readers that need no report.
    pub fn ended(&self) -> Option<(RunStatus, ExitCode)> {
        self.finished.as_ref().map(|finished| (finished.status, finished.exit_code))
    }
}

fn host_row(row: &Row) -> Option<HostRow> {
    let host = row.host.clone()?;
    let result = row.result.as_deref()?;
    Some(HostRow {
        host,
        status: result.status,
        changed: result.changed,
        attempts: row.attempts(),
        class: result.class,
        error: result.error.clone(),
        reason: result.reason.clone(),
        exit_code: result.exit_code,
        data: result.data.clone(),
        diff: result.diff.clone(),
        duration_ms: result.duration_ms,
        parts: row.parts.clone(),
    })
}

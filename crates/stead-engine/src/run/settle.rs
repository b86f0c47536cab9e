//! What follows when an attempt, a row or a task ends, and how a run is stopped.

use stead_model::event::{CancelReason, EventKind, RowResult, TaskResult};
use stead_model::plan::{OnError, Op, Section, TaskIndex};
use stead_model::{ErrorClass, HostName, Status, TaskName};

use crate::task_state::RowState;

use super::row::{conclude, is_violated};
use super::{Command, Now, PartEnd, Run, Timer, Turn};

impl Run {
    pub(super) fn part_ended(&mut self, task: TaskIndex, row: u32, part: PartEnd, now: Now, turn: &mut Turn) {
        let Some(host) = self.live.get(&task).and_then(|live| live.rows[row as usize].host.clone()) else {
            return;
        };
        let kind = EventKind::PartFinished {
            task: self.name(task),
            host,
            part: part.name,
            status: part.status,
            changed: part.changed,
            error: part.error,
            inverse: part.inverse,
        };
        self.emit(Some(task), Some(row), kind, now, turn);
    }

    pub(super) fn attempt_ended(
        &mut self,
        task: TaskIndex,
        row: u32,
        mut result: RowResult,
        now: Now,
        turn: &mut Turn,
    ) {
        let Some(live) = self.live.get_mut(&task) else { return };
        let state = &mut live.rows[row as usize];
        if state.state != RowState::Running {
            return;
        }
        let held = std::mem::take(&mut state.held);
        self.queue.give(&held);
        self.queue.give_slot();
        self.running -= 1;

        let (attempt, counted) = (state.attempt, state.attempts());
        let (host, changed_before) = (state.host.clone(), state.changed);
        let began = state.started.unwrap_or(now.mono);
        let settings = self.settings(task).clone();
        if let Some(next) = self.host_instead(task, row, &result) {
            return self.pass_over(task, row, result, next, now, turn);
        }
        if result.status == Status::Failed
            && self.halt.is_none()
            && !self.is_dry()
            && !result.in_vain
            && settings.retries(result.class.unwrap_or(ErrorClass::Operation), counted)
        {
            let name = self.name(task);
            let wait = self.retry_delay(task, row);
            let kind = EventKind::AttemptFailed {
                task: name.clone(),
                host,
                attempt,
                class: result.class.unwrap_or(ErrorClass::Operation),
                error: result.error.unwrap_or_default(),
                retry_in_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
                changed: result.changed,
                instead: None,
            };
            self.emit(Some(task), Some(row), kind, now, turn);
            self.set_timer(now.mono + wait, Timer::Retry { task, row });
            return;
        }
        result.duration_ms = u64::try_from(now.mono.saturating_sub(began).as_millis()).unwrap_or(u64::MAX);
        result.changed |= changed_before;
        if result.status == Status::Unchanged && changed_before {
            result.status = Status::Changed;
        }
        if host.is_some() {
            return self.row_decided(task, row, result, now, turn);
        }
        let mut ended = TaskResult::new(result.status);
        ended.changed = result.changed;
        ended.attempts = counted;
        (ended.class, ended.error, ended.reason) = (result.class, result.error, result.reason);
        (ended.data, ended.data_file, ended.prediction) = (result.data, result.data_file, result.prediction);
        self.finish(task, ended, now, turn);
    }

    /// Returns the host of `_any` that takes a row over from one that was never reached.
    fn host_instead(&self, task: TaskIndex, row: u32, result: &RowResult) -> Option<HostName> {
        let unreachable = result.status == Status::Failed && result.class == Some(ErrorClass::Unreachable);
        let live = self.live.get(&task)?;
        let state = &live.rows[row as usize];
        // What has begun somewhere is not begun again elsewhere.
        let untouched = result.not_started && !state.changed && state.parts.is_empty();
        if !unreachable || !untouched || self.halt.is_some() || self.is_dry() {
            return None;
        }
        let is_taken = |host: &HostName| {
            state.passed_over.contains(host) || live.rows.iter().any(|row| row.host.as_ref() == Some(host))
        };
        self.hosts.instead_of(&self.settings(task).target, state.host.as_ref()?, &is_taken)
    }

    /// Goes on with another host, at once and without using up a retry.
    fn pass_over(
        &mut self,
        task: TaskIndex,
        row: u32,
        result: RowResult,
        next: HostName,
        now: Now,
        turn: &mut Turn,
    ) {
        let state = &self.live[&task].rows[row as usize];
        let (host, attempt) = (state.host.clone(), state.attempt);
        let error = result.error.unwrap_or_default();
        let from = host.as_ref().map(ToString::to_string).unwrap_or_default();
        let text = format!("{}: {from} cannot be reached, {next} takes its place: {error}", self.name(task));
        let kind = EventKind::AttemptFailed {
            task: self.name(task),
            host,
            attempt,
            class: ErrorClass::Unreachable,
            error,
            retry_in_ms: 0,
            changed: false,
            instead: Some(next),
        };
        self.emit(Some(task), Some(row), kind, now, turn);
        let warning = EventKind::Warning { code: "reach/passed-over".to_owned(), text, role: None };
        self.emit(None, None, warning, now, turn);
        self.set_timer(now.mono, Timer::Retry { task, row });
    }

    /// Records how a host's part ended, and goes on with the task.
    pub(super) fn row_decided(
        &mut self,
        task: TaskIndex,
        row: u32,
        result: RowResult,
        now: Now,
        turn: &mut Turn,
    ) {
        self.record_row(task, row, result, now, turn);
        let live = &self.live[&task];
        if live.rows.iter().all(|row| row.state == RowState::Done) {
            self.conclude(task, now, turn);
        } else if live.open == 0 && self.halt.is_none() {
            self.batch_ended(task, now, turn);
        }
    }

    fn record_row(&mut self, task: TaskIndex, row: u32, mut result: RowResult, now: Now, turn: &mut Turn) {
        let live = self.live.get_mut(&task).expect("a row's task is live");
        let state = &live.rows[row as usize];
        let host = state.host.clone().expect("only rows with a host are decided one by one");
        let attempt = if result.status == Status::Skipped { 0 } else { state.attempt };
        // What earlier attempts and parts did is undone too, after what came later. What was withheld of parts is in the
        // result as far as this process knows it; what a process before it knew is lost.
        let withheld = |ops: &[Op]| ops.iter().filter(|op| op.is_withheld()).count();
        let mut lost = withheld(&state.inverse).saturating_sub(withheld(&result.inverse));
        let earlier = state.inverse.iter().filter(|op| {
            let is_lost = lost > 0;
            lost -= usize::from(is_lost && op.is_withheld());
            is_lost || !op.is_withheld()
        });
        let earlier: Vec<Op> = earlier.cloned().collect();
        if !result.unrecorded_inverse.is_empty() {
            result.unrecorded_inverse.splice(0..0, earlier.iter().cloned());
        }
        result.inverse.splice(0..0, earlier);
        if row < live.batch_end(live.batch.max(1) - 1) {
            live.open -= 1;
        }
        let kind = EventKind::HostResult { task: self.name(task), host, attempt, result: Box::new(result) };
        self.emit(Some(task), Some(row), kind, now, turn);
    }

    /// All hosts of a batch are done: the next one, a pause before it, or the end.
    pub(super) fn batch_ended(&mut self, task: TaskIndex, now: Now, turn: &mut Turn) {
        let settings = self.settings(task).clone();
        // A loop: after a resume, batches whose rows are all kept end as soon as they begin.
        loop {
            let live = self.live.get_mut(&task).expect("a batch's task is live");
            let failed = |row: &&super::Row| row.status() == Some(Status::Failed);
            let was_canary = live.has_canary && live.batch == 1;
            if live.batch == live.batch_count() {
                return self.conclude(task, now, turn);
            }
            if is_violated(&settings, live) {
                let failed = live.rows.iter().filter(failed).filter_map(|row| row.host.as_ref());
                let names: Vec<&str> = failed.map(|host| host.as_str()).collect();
                let what = if live.canary_failed() { "canary" } else { "host" };
                let reason = format!("{what} failed: {}", names.join(", "));
                for row in pending_rows(live) {
                    let result = RowResult { reason: Some(reason.clone()), ..RowResult::new(Status::NotRun) };
                    self.record_row(task, row, result, now, turn);
                }
                return self.conclude(task, now, turn);
            }
            let pause = if was_canary { settings.canary_pause } else { settings.batch_pause };
            if !pause.is_zero() {
                live.pausing = true;
                return self.set_timer(now.mono + pause, Timer::NextBatch { task });
            }
            if self.open_batch(task, now) > 0 {
                return;
            }
        }
    }

    fn conclude(&mut self, task: TaskIndex, now: Now, turn: &mut Turn) {
        let live = &self.live[&task];
        let result = conclude(self.settings(task), live);
        self.finish(task, result, now, turn);
    }

    /// Records how a task ended, and lets its end take effect.
    pub(super) fn finish(&mut self, task: TaskIndex, mut result: TaskResult, now: Now, turn: &mut Turn) {
        if let Some(live) = self.live.get_mut(&task) {
            result.duration_ms =
                u64::try_from(now.mono.saturating_sub(live.started).as_millis()).unwrap_or(u64::MAX);
            let held = std::mem::take(&mut live.held);
            self.queue.give(&held);
        }
        let failed = result.status == Status::Failed;
        let kind = EventKind::TaskFinished { task: self.name(task), result: Box::new(result) };
        self.emit(Some(task), None, kind, now, turn);
        let stops = self.settings(task).on_error == OnError::StopAll
            && self.plan.task(task).section == Section::Main
            && !self.is_dry();
        if failed && stops && self.halt.is_none() {
            self.cancel(CancelReason::Failure, Some(self.name(task)), now, turn);
        } else {
            self.consider_dependents(task, now, turn);
        }
    }

    /// Stops the main part; `finally` still runs. Later sections are not stopped, only their status changes.
    pub(super) fn cancel(&mut self, why: CancelReason, task: Option<TaskName>, now: Now, turn: &mut Turn) {
        match self.section {
            Some(Section::Main) | None => self.halt_section(why, task, now, turn),
            Some(Section::Rollback | Section::Finally) => {
                let halted = self.halt.clone();
                self.emit(None, None, EventKind::CancelRequested { why, task }, now, turn);
                self.halt = halted;
            }
        }
    }

    /// Lets nothing new start in the current section and asks what runs to stop.
    pub(super) fn halt_section(
        &mut self,
        why: CancelReason,
        task: Option<TaskName>,
        now: Now,
        turn: &mut Turn,
    ) {
        self.emit(None, None, EventKind::CancelRequested { why, task }, now, turn);
        self.asking.clear();
        self.to_ask.clear();
        self.queue.clear();
        let reason = self.halt_reason();
        let live: Vec<TaskIndex> = self.live.keys().copied().collect();
        for task in live {
            self.stop_task(task, &reason, now, turn);
        }
    }

    /// Asks the attempts of a task to stop; rows that wait are decided at once.
    fn stop_task(&mut self, task: TaskIndex, reason: &str, now: Now, turn: &mut Turn) {
        let rows = self.live[&task].rows.len();
        for row in 0..u32::try_from(rows).unwrap_or(u32::MAX) {
            let Some(live) = self.live.get(&task) else { return };
            let state = &live.rows[row as usize];
            let result = match state.state {
                RowState::Done => continue,
                RowState::Running => {
                    turn.commands.push(Command::Stop { task, row });
                    continue;
                }
                RowState::Backoff => {
                    RowResult { error: Some(reason.to_owned()), ..RowResult::new(Status::Cancelled) }
                }
                RowState::Pending if state.interrupted => {
                    if let Some(host) = state.host.clone() {
                        self.settle_interrupted(task, row, &host, now, turn);
                    }
                    continue;
                }
                RowState::Pending => {
                    RowResult { reason: Some(reason.to_owned()), ..RowResult::new(Status::NotRun) }
                }
            };
            if state.host.is_some() {
                self.row_decided(task, row, result, now, turn);
            } else {
                let attempts = state.attempts();
                let ended = TaskResult {
                    attempts,
                    error: result.error.or(result.reason),
                    ..TaskResult::new(Status::Cancelled)
                };
                self.finish(task, ended, now, turn);
            }
        }
    }

    /// Stops everything at once, `finally` too.
    pub(super) fn kill(&mut self, now: Now, turn: &mut Turn) {
        if self.killed {
            return;
        }
        self.killed = true;
        if self.halt.is_none() {
            // Without a task it is what the run itself failed at.
            let lost = self.lost_journal.is_some();
            let why = if lost { CancelReason::Failure } else { CancelReason::Signal };
            self.halt_section(why, None, now, turn);
        }
        turn.commands.push(Command::KillAll);
    }

    /// Returns why nothing new starts, in words.
    pub(super) fn halt_reason(&self) -> String {
        if let Some(error) = &self.lost_journal {
            return format!("stopped: the journal could not be written ({error})");
        }
        match &self.halt {
            Some(super::Halt { why: CancelReason::Failure, task: Some(task) }) => {
                format!("stopped: task `{task}` failed")
            }
            Some(super::Halt { why: CancelReason::Timeout, .. }) => "stopped: out of time".to_owned(),
            Some(super::Halt { why: CancelReason::Api, .. }) => "stopped by the caller".to_owned(),
            Some(super::Halt { why: CancelReason::Signal | CancelReason::Failure, .. }) | None => {
                "stopped by a signal".to_owned()
            }
        }
    }
}

fn pending_rows(live: &super::row::Live) -> Vec<u32> {
    live.rows.iter().zip(0..).filter(|(row, _)| row.state == RowState::Pending).map(|(_, i)| i).collect()
}

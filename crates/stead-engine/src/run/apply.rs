//! Taking events into the state: the same for a live turn and for a replay.

use std::sync::Arc;

use stead_model::event::{Event, EventKind, RunKind, TaskResult};
use stead_model::plan::{Section, TaskIndex};
use stead_model::report::Warning;
use stead_model::time::Timestamp;
use stead_model::{RunStatus, Status, TaskName};

use crate::task_state::{IllegalTransition, RowState, TaskState};

use super::Run;
use super::finished::Finished;
use super::row::{Live, Row};

/// Why a journal cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// It does not begin with `run_started`.
    #[error("the journal does not begin with run_started")]
    NoStart,
    /// An event cannot follow those before it.
    #[error(transparent)]
    Illegal(#[from] IllegalTransition),
    /// An event names a task the plan does not have.
    #[error("event {seq} is about task `{task}`, which the plan does not have")]
    UnknownTask {
        /// The event.
        seq: u64,
        /// The name.
        task: TaskName,
    },
}

impl Run {
    /// Takes the events of a journal into a run before anything happened.
    ///
    /// Events before a forced resume may name tasks that the plan no longer has; they are passed over.
    pub fn replay(&mut self, events: &[Event]) -> Result<(), ReplayError> {
        let forced = events
            .iter()
            .rposition(|event| matches!(&event.kind, EventKind::RunResumed(resumed) if resumed.forced))
            .unwrap_or(0);
        for (i, event) in events.iter().enumerate() {
            if (i == 0) != matches!(event.kind, EventKind::RunStarted(_)) {
                return Err(ReplayError::NoStart);
            }
            let task = event.kind.task();
            let index = task.and_then(|name| self.graph.index_of(name.as_str()));
            if let (Some(name), None) = (task, index)
                && !matches!(event.kind, EventKind::CancelRequested { .. })
                && !self.is_of_role(&event.kind)
            {
                if i < forced {
                    self.seq = event.seq;
                    continue;
                }
                return Err(ReplayError::UnknownTask { seq: event.seq, task: name.clone() });
            }
            self.apply(index, None, event)?;
        }
        Ok(())
    }

    /// Takes one event into the state. `row` saves looking the row up.
    pub(super) fn apply(
        &mut self,
        task: Option<TaskIndex>,
        row: Option<u32>,
        event: &Event,
    ) -> Result<(), IllegalTransition> {
        self.seq = event.seq;
        let before = std::mem::replace(&mut self.finished_at, event.t);
        match &event.kind {
            EventKind::RunStarted(started) => {
                (self.started_at, self.segment_started_at) = (event.t, event.t);
                self.started = Some(started.clone());
            }
            EventKind::RunResumed(_) => self.apply_resumed(event, before)?,
            EventKind::SectionStarted { section } => {
                self.section = Some(*section);
                self.halt = None;
                self.rolled_back |= *section == Section::Rollback;
            }
            EventKind::Warning { code, text, role } => {
                let (code, text, role) = (code.clone(), text.clone(), role.clone());
                self.warnings.push(Warning { code, text, role });
            }
            EventKind::CancelRequested { why, task } => {
                use stead_model::event::CancelReason as Why;
                self.status = match (why, self.status) {
                    (Why::Signal | Why::Api, RunStatus::Success) => RunStatus::Cancelled,
                    // Of a run of roles the first cause decides.
                    (Why::Timeout, RunStatus::Failed) if self.options.kind == RunKind::Run => {
                        RunStatus::Failed
                    }
                    (Why::Timeout, _) if self.section == Some(Section::Main) => RunStatus::Timeout,
                    (Why::Timeout, RunStatus::Success) => RunStatus::Failed,
                    (Why::Signal | Why::Api | Why::Failure | Why::Timeout, now) => now,
                };
                if self.halt.is_none() {
                    self.halt = Some(super::Halt { why: *why, task: task.clone() });
                }
            }
            EventKind::RunFinished(finished) => {
                self.status = finished.status;
                self.earlier_ms += finished.duration_ms;
                self.finished = Some(finished.clone());
            }
            EventKind::FactsGathered { .. }
            | EventKind::AgentConnected(_)
            | EventKind::AgentLost(_)
            | EventKind::AgentBack(_)
            | EventKind::RoleStarted(_)
            | EventKind::RoleReady(_)
            | EventKind::RoleStop(_)
            | EventKind::RoleExited(_)
            | EventKind::Artifact(_)
            | EventKind::Node(_)
            | EventKind::Delegated { .. } => {}
            kind @ EventKind::Log { .. } if self.is_of_role(kind) => {}
            EventKind::TaskReady { .. }
            | EventKind::TaskStarted { .. }
            | EventKind::AttemptStarted { .. }
            | EventKind::AttemptFailed { .. }
            | EventKind::Log { .. }
            | EventKind::PartFinished { .. }
            | EventKind::HostResult { .. }
            | EventKind::TaskFinished { .. }
            | EventKind::TaskSkipped { .. }
            | EventKind::TaskNotRun { .. }
            | EventKind::Confirmed { .. }
            | EventKind::UndoStarted { .. }
            | EventKind::UndoFinished { .. } => {
                let Some(task) = task else { return Err(IllegalTransition::new(&"no such task", event)) };
                self.apply_to_task(task, row, event)?;
            }
        }
        Ok(())
    }

    /// Whether an event names a role of a run where others name a task.
    fn is_of_role(&self, kind: &EventKind) -> bool {
        self.options.kind == RunKind::Run && matches!(kind, EventKind::Log { .. })
    }

    fn apply_to_task(
        &mut self,
        task: TaskIndex,
        row: Option<u32>,
        event: &Event,
    ) -> Result<(), IllegalTransition> {
        let state = self.states[task.get()].after(event)?;
        match &event.kind {
            EventKind::TaskStarted { hosts, batches, .. } => {
                let used = self.attempt_base.get(&task).copied().unwrap_or(0);
                let rows = self.kept.remove(&task).filter(|rows| !rows.is_empty()).unwrap_or_else(|| {
                    if hosts.is_empty() {
                        return vec![Row::after_attempts(None, used)];
                    }
                    hosts.iter().map(|host| Row::after_attempts(Some(host.clone()), used)).collect()
                });
                let mut rows = rows;
                // The first attempt of a functional task has no event of its own.
                for row in
                    rows.iter_mut().filter(|row| row.host.is_none() && row.attempt == 0 && !row.interrupted)
                {
                    (row.state, row.attempt) = (RowState::Running, 1);
                }
                let mut live = Live::new(rows, batches, event.t);
                live.has_canary = self.plan.task(task).settings.canary.is_some();
                self.live.insert(task, live);
            }
            EventKind::AttemptStarted { host, .. }
            | EventKind::AttemptFailed { host, .. }
            | EventKind::Log { host, .. } => {
                let is_log = matches!(event.kind, EventKind::Log { .. });
                if let (false, Some(live)) = (is_log, self.live.get_mut(&task)) {
                    let number = row.or_else(|| live.row_of(host.as_ref()));
                    let row = number.and_then(|row| live.rows.get_mut(row as usize));
                    row.ok_or_else(|| IllegalTransition::new(&"no such host", event))?.apply(event)?;
                    if let (Some(row), EventKind::AttemptFailed { instead: Some(next), .. }) =
                        (number, &event.kind)
                    {
                        live.moved(row, host.as_ref(), next);
                    }
                }
            }
            EventKind::PartFinished { host, .. } | EventKind::HostResult { host, .. } => {
                if let Some(live) = self.live.get_mut(&task) {
                    let row = row.or_else(|| live.row_of(Some(host)));
                    let row = row.and_then(|row| live.rows.get_mut(row as usize));
                    row.ok_or_else(|| IllegalTransition::new(&"no such host", event))?.apply(event)?;
                }
            }
            EventKind::TaskFinished { result, .. } => {
                let live = self.live.remove(&task);
                let started_at = live.as_ref().map(|live| live.started_at);
                let mut rows = live.map(|live| live.rows).unwrap_or_default();
                for row in rows.iter_mut().filter(|row| row.host.is_none() && row.state != RowState::Done) {
                    row.apply(event)?;
                }
                if let Some(open) = rows.iter().find(|row| row.state != RowState::Done) {
                    return Err(IllegalTransition::new(&open.state, event));
                }
                self.decide(task, Finished::new(started_at, (**result).clone(), rows, self.is_dry()));
            }
            EventKind::TaskSkipped { cause, reason, .. } => {
                let mut result = TaskResult::new(Status::Skipped);
                (result.cause, result.reason) = (Some(*cause), Some(reason.clone()));
                self.decide(task, Finished::new(None, result, Vec::new(), self.is_dry()));
            }
            EventKind::TaskNotRun { reason, .. } => {
                let mut result = TaskResult::new(Status::NotRun);
                result.reason = Some(reason.clone());
                self.decide(task, Finished::new(None, result, Vec::new(), self.is_dry()));
            }
            EventKind::Confirmed { answer, .. } => {
                self.confirmed.insert(task, *answer);
            }
            EventKind::UndoStarted { .. }
            | EventKind::UndoFinished { .. }
            | EventKind::TaskReady { .. }
            | EventKind::RunStarted(_)
            | EventKind::RunResumed(_)
            | EventKind::SectionStarted { .. }
            | EventKind::FactsGathered { .. }
            | EventKind::Warning { .. }
            | EventKind::AgentConnected(_)
            | EventKind::AgentLost(_)
            | EventKind::AgentBack(_)
            | EventKind::RoleStarted(_)
            | EventKind::RoleReady(_)
            | EventKind::RoleStop(_)
            | EventKind::RoleExited(_)
            | EventKind::Artifact(_)
            | EventKind::Node(_)
            | EventKind::Delegated { .. }
            | EventKind::CancelRequested { .. }
            | EventKind::RunFinished(_) => {}
        }
        self.states[task.get()] = state;
        Ok(())
    }

    /// Records a decided task.
    fn decide(&mut self, task: TaskIndex, finished: Finished) {
        let section = self.plan.task(task).section;
        self.undecided[section_slot(section)] -= 1;
        if finished.status() == Status::Failed && self.status == RunStatus::Success {
            self.first_failure = Some(task);
            let out_of_time = self.options.kind == RunKind::Run
                && finished.end.row.class == Some(stead_model::ErrorClass::Timeout);
            self.status = if out_of_time { RunStatus::Timeout } else { RunStatus::Failed };
        }
        self.results.set(task, Arc::clone(&finished.end));
        self.decided[task.get()] = Some(finished);
        self.release(task);
    }

    /// Whether a task is decided and so is everything before it, however far back: a resume may keep a task and start
    /// one before it over.
    fn is_done_with(&self, task: TaskIndex) -> bool {
        self.decided[task.get()].is_some() && self.waiting_on[task.get()] == 0
    }

    /// Tells the dependents of a task that was just decided, and through kept ones those behind them.
    fn release(&mut self, task: TaskIndex) {
        let graph = Arc::clone(&self.graph);
        let mut open = if self.is_done_with(task) { vec![task] } else { Vec::new() };
        while let Some(task) = open.pop() {
            for dependent in graph.dependents(task) {
                self.waiting_on[dependent.get()] -= 1;
                if self.is_done_with(*dependent) {
                    open.push(*dependent);
                }
            }
        }
    }

    /// Has everything behind a task that is about to start over wait for it.
    fn hold_back(&mut self, task: TaskIndex) {
        let graph = Arc::clone(&self.graph);
        let mut open = if self.is_done_with(task) { vec![task] } else { Vec::new() };
        while let Some(task) = open.pop() {
            for dependent in graph.dependents(task) {
                if self.is_done_with(*dependent) {
                    open.push(*dependent);
                }
                self.waiting_on[dependent.get()] += 1;
            }
        }
    }

    /// Takes a resume into the state: what is listed or not decided starts over.
    fn apply_resumed(&mut self, event: &Event, died_at: Timestamp) -> Result<(), IllegalTransition> {
        let EventKind::RunResumed(resumed) = &event.kind else { return Ok(()) };
        let goes_on = self.finished.is_none()
            && !resumed.forced
            && self.section.is_some_and(|section| section != Section::Main);
        if self.finished.is_none() {
            // A dead segment left no duration; what its events span is the best there is.
            self.earlier_ms += died_at.millis_since(self.segment_started_at);
        }
        self.segments = resumed.segment;
        self.segment_started_at = event.t;
        self.finished = None;
        self.halt = None;
        self.killed = false;
        for name in &resumed.reset {
            if let Some(task) = self.graph.index_of(name.as_str()) {
                self.reopen(task, event)?;
            }
        }
        let open: Vec<TaskIndex> = self
            .plan
            .indexed()
            .map(|(index, _)| index)
            .filter(|index| {
                self.decided[index.get()].is_none()
                    || matches!(self.states[index.get()], TaskState::Undoing(_))
            })
            .collect();
        for task in open {
            self.states[task.get()] = self.states[task.get()].after(event)?;
            if let Some(live) = self.live.remove(&task) {
                let mut rows = live.rows;
                self.restart_rows(task, &mut rows, event)?;
                self.kept.insert(task, rows);
            }
        }
        // What is assumed done is so once it is written down: until then it stays something to ask about.
        for name in &resumed.rerun {
            if let Some(task) = self.graph.index_of(name.as_str()) {
                for row in self.kept.entry(task).or_default() {
                    row.interrupted = false;
                }
            }
        }
        self.assumed_done =
            resumed.assumed_done.iter().filter_map(|name| self.graph.index_of(name.as_str())).collect();
        // A run that died in rollback or finally goes on there and keeps the status its main part gave it.
        if self.options.kind == RunKind::Run {
            // Whatever its roles did, a run whose driver was lost has failed.
            (self.status, self.first_failure) = (RunStatus::Failed, None);
        } else if !goes_on {
            self.status = self.status_of_decided();
        }
        // Results are append-only; a fresh store holds exactly what is still decided.
        self.results = Arc::new(crate::expr::Results::new(Arc::clone(&self.graph), Arc::clone(&self.plan)));
        for (index, _) in self.plan.indexed() {
            if let Some(finished) = &self.decided[index.get()] {
                self.results.set(index, Arc::clone(&finished.end));
            }
        }
        Ok(())
    }

    /// Makes a decided task undecided again, keeping rows that ran or passed.
    fn reopen(&mut self, task: TaskIndex, event: &Event) -> Result<(), IllegalTransition> {
        self.states[task.get()] = self.states[task.get()].after(event)?;
        self.hold_back(task);
        let Some(finished) = self.decided[task.get()].take() else { return Ok(()) };
        let section = self.plan.task(task).section;
        self.undecided[section_slot(section)] += 1;
        let replaced = matches!(&event.kind, EventKind::RunResumed(resumed) if resumed.replaced.contains(&self.plan.task(task).name));
        let mut rows = finished.rows().into_owned();
        if rows.is_empty() {
            // It was not started again since it was interrupted: what was known of it then holds.
            rows = self.kept.remove(&task).unwrap_or_default();
        }
        let used = rows.iter().map(|row| row.attempt).max().unwrap_or(0);
        let base = self.attempt_base.entry(task).or_default();
        *base = used.max(*base);
        if section == Section::Finally || replaced {
            self.kept.remove(&task);
            return Ok(());
        }
        for row in &mut rows {
            let broken = row.status().is_none_or(|status| {
                matches!(status, Status::Failed | Status::Cancelled | Status::NotRun | Status::Unknown)
            });
            if broken {
                let done = row.parts_done();
                row.parts.truncate(done);
                *row = Row {
                    interrupted: row.interrupted,
                    changed: row.changed,
                    inverse: std::mem::take(&mut row.inverse),
                    parts: std::mem::take(&mut row.parts),
                    ..Row::after_attempts(row.host.clone(), row.attempt)
                };
            }
        }
        // A functional task's value is not in its row: it starts over as a whole.
        self.kept.insert(task, rows);
        Ok(())
    }

    /// Prepares rows of a task that was under way: decided ones stay, an attempt without result is marked.
    fn restart_rows(
        &self,
        task: TaskIndex,
        rows: &mut [Row],
        event: &Event,
    ) -> Result<(), IllegalTransition> {
        let settings = self.settings(task);
        // What follows every outcome of a run of roles can be done again.
        let runs_again = settings.idempotent
            || settings.interrupted == stead_model::plan::Interrupted::Retry
            || self.options.kind == RunKind::Run;
        for row in rows.iter_mut().filter(|row| row.state != RowState::Done) {
            row.interrupted |= row.state == RowState::Running && !runs_again;
            row.apply(event)?;
        }
        Ok(())
    }

    /// Returns the run's status as far as decided tasks make it.
    fn status_of_decided(&self) -> RunStatus {
        let failed = self.decided.iter().flatten().any(|finished| finished.status() == Status::Failed);
        if failed { RunStatus::Failed } else { RunStatus::Success }
    }

    /// Returns when the last event was written.
    pub fn last_event_at(&self) -> Timestamp {
        self.finished_at
    }
}

/// Returns the place of a section in per-section counters.
pub(super) fn section_slot(section: Section) -> usize {
    usize::from(section == Section::Finally)
}

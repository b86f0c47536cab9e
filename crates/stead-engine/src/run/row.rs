//! One host's part of a started task, and how a task's rows decide it.

use std::collections::HashMap;
use std::time::Duration;

use stead_model::event::{EventKind, Prediction, RowResult, TaskResult};
use stead_model::plan::{Op, Settings};
use stead_model::report::PartRow;
use stead_model::time::Timestamp;
use stead_model::{Cause, ErrorClass, Event, HostName, Status};

use crate::task_state::{IllegalTransition, RowState};

use super::queue::Resource;

/// One host's part of a task; a functional task has one without a host.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Which host.
    pub host: Option<HostName>,
    /// Where it stands.
    pub state: RowState,
    /// The last attempt, from 1; 0 before the first.
    pub attempt: u32,
    /// Attempts that were interrupted and do not use up a retry.
    pub uncounted: u32,
    /// Whether an attempt changed something so far.
    pub changed: bool,
    /// Whether a non-idempotent attempt was interrupted and nobody has said yet what to do about it.
    pub interrupted: bool,
    /// The parts of a sequence that ended, in order.
    pub parts: Vec<PartRow>,
    /// How to undo what the parts changed, in order.
    pub inverse: Vec<Op>,
    /// How it ended.
    pub result: Option<Box<RowResult>>,
    /// Hosts of `_any` that could not be reached, and whose place `host` has taken.
    pub(super) passed_over: Vec<HostName>,
    /// Whether the delay before its next attempt is over.
    pub(super) due: bool,
    /// When the first attempt of this segment began.
    pub(super) started: Option<Duration>,
    /// Host slot and mutexes it holds.
    pub(super) held: Vec<Resource>,
}

impl Row {
    pub(super) fn new(host: Option<HostName>) -> Self {
        Self { host, ..Self::default() }
    }

    /// Returns a row that has not begun, of a task whose attempts up to number `used` are history.
    pub(super) fn after_attempts(host: Option<HostName>, used: u32) -> Self {
        Self { attempt: used, uncounted: used, ..Self::new(host) }
    }

    /// Returns how many attempts count; a skipped row has made none.
    pub fn attempts(&self) -> u32 {
        if self.status() == Some(Status::Skipped) {
            return 0;
        }
        self.attempt.saturating_sub(self.uncounted)
    }

    /// Returns how many parts of a sequence need not run again.
    pub fn parts_done(&self) -> usize {
        self.parts.iter().take_while(|part| part.status != Status::Failed).count()
    }

    /// Takes in an event about this row.
    pub(super) fn apply(&mut self, event: &Event) -> Result<(), IllegalTransition> {
        let before = self.state;
        self.state = self.state.after(event)?;
        if let EventKind::RunResumed(_) = event.kind {
            if before == RowState::Running {
                self.uncounted += 1;
            }
            self.started = None;
            self.held.clear();
            return Ok(());
        }
        if let EventKind::AttemptStarted { attempt, .. } = &event.kind {
            self.attempt = *attempt;
            self.interrupted = false;
            self.due = false;
            let done = self.parts_done();
            self.parts.truncate(done);
        }
        if let EventKind::AttemptFailed { changed, instead, .. } = &event.kind {
            self.changed |= changed;
            if let Some(next) = instead {
                // Nothing was done there, so that it uses up no retry.
                self.uncounted += 1;
                self.passed_over.extend(self.host.replace(next.clone()));
            }
        }
        if let EventKind::PartFinished { part, status, changed, error, inverse, .. } = &event.kind {
            self.changed |= changed;
            self.parts.push(PartRow {
                name: part.clone(),
                status: *status,
                changed: *changed,
                error: error.clone(),
            });
            self.inverse.extend(inverse.as_deref().cloned());
        }
        if let EventKind::HostResult { attempt, result, .. } = &event.kind {
            self.attempt = self.attempt.max(*attempt);
            self.changed |= result.changed;
            // What did not run again is as interrupted as it was.
            self.interrupted = result.class == Some(ErrorClass::Interrupted)
                || self.interrupted && result.status == Status::NotRun;
            for inverse in [&result.inverse, &result.unrecorded_inverse] {
                if !inverse.is_empty() {
                    self.inverse.clone_from(inverse);
                }
            }
            self.result = Some(result.clone());
        }
        if let EventKind::TaskFinished { result, .. } = &event.kind {
            self.interrupted = result.class == Some(ErrorClass::Interrupted);
        }
        Ok(())
    }

    /// Returns how it ended, if it is decided.
    pub fn status(&self) -> Option<Status> {
        self.result.as_ref().map(|result| result.status)
    }
}

/// A task that has started and is not decided.
#[derive(Clone, Debug)]
pub(super) struct Live {
    /// When the task became ready; its rows are served by it. Only a live run needs it.
    pub(super) order: u64,
    pub(super) rows: Vec<Row>,
    /// Row numbers by host, where there are many.
    by_host: Option<HashMap<HostName, u32>>,
    /// One past the last row of each batch, canary first; empty if all go at once, as in most tasks.
    batch_ends: Vec<u32>,
    /// How many batches have begun.
    pub(super) batch: usize,
    /// Rows of the batches begun that are not decided.
    pub(super) open: u32,
    pub(super) has_canary: bool,
    /// Whether it waits between two batches.
    pub(super) pausing: bool,
    pub(super) started_at: Timestamp,
    pub(super) started: Duration,
    /// Run-wide mutexes it holds.
    pub(super) held: Vec<Resource>,
}

/// From how many rows on a table finds a host's row.
const TABLE_FROM: usize = 16;

impl Live {
    pub(super) fn new(rows: Vec<Row>, batches: &[u32], started_at: Timestamp) -> Self {
        let numbered = || rows.iter().zip(0..).filter_map(|(row, i)| Some((row.host.clone()?, i)));
        let by_host = (rows.len() >= TABLE_FROM).then(|| numbered().collect());
        let mut end = 0;
        let batch_ends: Vec<u32> = batches
            .iter()
            .map(|size| {
                end += size;
                end
            })
            .collect();
        Self {
            order: 0,
            rows,
            by_host,
            batch_ends,
            batch: 0,
            open: 0,
            has_canary: false,
            pausing: false,
            started_at,
            started: Duration::ZERO,
            held: Vec::new(),
        }
    }

    /// Returns the number of the row of `host`.
    pub(super) fn row_of(&self, host: Option<&HostName>) -> Option<u32> {
        match (host, &self.by_host) {
            (Some(host), Some(by_host)) => by_host.get(host).copied(),
            (Some(_) | None, _) => {
                self.rows.iter().zip(0..).find(|(row, _)| row.host.as_ref() == host).map(|(_, i)| i)
            }
        }
    }

    /// Has the table know that `row` is on another host now.
    pub(super) fn moved(&mut self, row: u32, from: Option<&HostName>, to: &HostName) {
        if let Some(by_host) = &mut self.by_host {
            from.map(|host| by_host.remove(host));
            by_host.insert(to.clone(), row);
        }
    }

    /// Returns how many batches there are.
    pub(super) fn batch_count(&self) -> usize {
        self.batch_ends.len().max(1)
    }

    /// Returns one past the last row of `batch`.
    pub(super) fn batch_end(&self, batch: usize) -> u32 {
        let all = || u32::try_from(self.rows.len()).expect("fewer hosts than 4 billion");
        self.batch_ends.get(batch).copied().unwrap_or_else(all)
    }

    /// Whether one of the first hosts, which go alone, failed.
    pub(super) fn canary_failed(&self) -> bool {
        let canaries = &self.rows[..self.batch_end(0) as usize];
        self.has_canary && canaries.iter().any(|row| row.status() == Some(Status::Failed))
    }

    /// Returns the number of the batch a row is in, from 1; 0 if the task has no batches.
    pub(super) fn batch_of(&self, row: u32) -> u32 {
        if self.batch_ends.len() < 2 {
            return 0;
        }
        u32::try_from(self.batch_ends.partition_point(|end| *end <= row) + 1).unwrap_or(u32::MAX)
    }
}

/// Returns batch sizes over `hosts` hosts, canary first; empty if all go at once.
pub(super) fn batches(settings: &Settings, hosts: usize) -> Vec<u32> {
    let mut sizes = Vec::new();
    let mut left = hosts;
    let mut take = |size: usize, left: &mut usize| {
        let size = size.min(*left);
        *left -= size;
        sizes.push(u32::try_from(size).unwrap_or(u32::MAX));
    };
    if let Some(canary) = settings.canary {
        take(canary.of(hosts), &mut left);
    }
    let mut next = settings.batch.iter();
    let mut last = None;
    while left > 0 {
        last = next.next().or(last);
        match last {
            Some(size) => take(size.of(hosts), &mut left),
            None => take(left, &mut left),
        }
    }
    if sizes.len() > 1 { sizes } else { Vec::new() }
}

/// Returns whether the failures so far are more than the task allows.
pub(super) fn is_violated(settings: &Settings, live: &Live) -> bool {
    let count = |status: Status| live.rows.iter().filter(|row| row.status() == Some(status)).count();
    let counted = live.rows.len() - count(Status::Skipped);
    live.canary_failed() || settings.host_failure.is_violated(count(Status::Failed), counted)
}

/// Returns how a task with hosts ended, from its decided rows.
pub(super) fn conclude(settings: &Settings, live: &Live) -> TaskResult {
    let results = || live.rows.iter().filter_map(|row| row.result.as_deref());
    let any = |status: Status| results().any(|result| result.status == status);
    let violated = is_violated(settings, live);
    let status = if violated {
        Status::Failed
    } else if any(Status::Cancelled) || any(Status::NotRun) {
        Status::Cancelled
    } else if results().all(|result| result.status == Status::Skipped) {
        Status::Skipped
    } else if any(Status::Unknown) {
        Status::Unknown
    } else if any(Status::Changed) {
        Status::Changed
    } else {
        Status::Unchanged
    };
    let mut task = TaskResult::new(status);
    task.changed = live.rows.iter().any(|row| row.changed);
    task.partial = !violated && any(Status::Failed);
    task.attempts = live.rows.iter().map(Row::attempts).max().unwrap_or(0);
    if any(Status::Failed) {
        task.error = Some(name_failures(live));
        task.class = results().find(|result| result.status == Status::Failed).and_then(|result| result.class);
    } else if status == Status::Cancelled {
        task.error = results().find_map(|result| result.error.clone());
    }
    if status == Status::Skipped {
        // Rows are skipped for one of two causes only; `unsupported` marks itself by its class.
        let unsupported = results().any(|result| result.class == Some(ErrorClass::Permanent));
        task.cause = Some(if unsupported { Cause::Unsupported } else { Cause::Guard });
    }
    let mut reasons: Vec<&str> = results().filter_map(|result| result.reason.as_deref()).collect();
    reasons.dedup();
    if (status == Status::Skipped || live.rows.len() == 1) && !reasons.is_empty() {
        task.reason = Some(reasons.join("; "));
    }
    let predictions = || results().filter_map(|result| result.prediction);
    task.prediction = if predictions().any(|p| p == Prediction::Assumed) {
        Some(Prediction::Assumed)
    } else {
        predictions().next()
    };
    task
}

fn name_failures(live: &Live) -> String {
    let failed = |row: &&Row| row.status() == Some(Status::Failed);
    let message = |row: &Row| row.result.as_ref().and_then(|result| result.error.clone()).unwrap_or_default();
    match live.rows.as_slice() {
        [row] => message(row),
        rows => {
            let named: Vec<String> = rows
                .iter()
                .filter(failed)
                .map(|row| format!("{}: {}", row.host.as_ref().map_or("", HostName::as_str), message(row)))
                .collect();
            named.join("; ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stead_model::plan::Size;

    #[test]
    fn batches_round_up_and_the_last_size_repeats() {
        let sizes = |batch: Vec<Size>, canary: Option<Size>, hosts: usize| {
            batches(&Settings { batch, canary, ..Settings::default() }, hosts)
        };
        assert_eq!(sizes(vec![Size::Count(1), Size::Percent(25)], None, 10), [1, 3, 3, 3]);
        assert_eq!(sizes(vec![Size::Percent(25)], Some(Size::Count(1)), 9), [1, 3, 3, 2]);
        assert_eq!(sizes(vec![], Some(Size::Count(1)), 3), [1, 2]);
        assert_eq!(sizes(vec![], None, 3), Vec::<u32>::new());
        assert_eq!(sizes(vec![Size::Count(5)], None, 3), Vec::<u32>::new());
    }
}

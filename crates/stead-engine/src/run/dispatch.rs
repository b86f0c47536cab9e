//! What starts next: slots, mutexes, batches and attempts.

use stead_model::event::{EventKind, RowResult, TaskResult};
use stead_model::plan::{MutexScope, OnEmpty, TaskIndex};
use stead_model::status::Cause;
use stead_model::{ErrorClass, Status};

use crate::task_state::{RowState, TaskState};

use super::queue::{Resource, Unit};
use super::row::{Live, batches};
use super::{Attempt, Command, Now, Run, Turn, Unresolved};

impl Run {
    /// Starts whatever may start.
    pub(super) fn dispatch(&mut self, now: Now, turn: &mut Turn) {
        loop {
            if self.halt.is_some() || self.killed {
                return;
            }
            if self.serial && self.is_busy() {
                return;
            }
            if self.serial
                && let Some(task) = self.to_ask.pop_front()
            {
                self.ask_now(task, turn);
                continue;
            }
            if !self.queue.has_slot() {
                return;
            }
            let Some((unit, woken_for)) = self.queue.pop() else { return };
            match self.states[unit.task.get()] {
                TaskState::Ready => self.start_task(unit, woken_for, now, turn),
                TaskState::Running => self.start_row(unit, woken_for, now, turn),
                TaskState::Waiting | TaskState::Done(_) | TaskState::Undoing(_) | TaskState::Undone(..) => {
                    self.queue.pass_on(woken_for);
                }
            }
        }
    }

    /// With one slot in all, one thing happens at a time, so that two runs give the same events: a guard
    /// being judged, a question, a delay before a retry and a pause between batches hold the slot too.
    fn is_busy(&self) -> bool {
        let waits = |live: &Live| {
            live.pausing || live.rows.iter().any(|row| row.state == RowState::Backoff && !row.due)
        };
        self.running > 0 || !self.asking.is_empty() || self.live.values().any(waits)
    }

    fn start_task(&mut self, unit: Unit, woken_for: Option<Resource>, now: Now, turn: &mut Turn) {
        let task = unit.task;
        let settings = self.settings(task).clone();
        let mutexes: Vec<Resource> = settings
            .mutex
            .iter()
            .filter(|mutex| mutex.scope == MutexScope::Run)
            .map(|mutex| self.queue.mutex(&mutex.name, None))
            .collect();
        if let Some(missing) = self.queue.lacking(&mutexes) {
            return self.queue.park(unit, missing, woken_for);
        }
        let functional = self.plan.task(task).action.function().is_some();
        let kept = self.kept.get(&task).filter(|rows| !rows.is_empty());
        let hosts = match kept {
            Some(rows) => rows.iter().filter_map(|row| row.host.clone()).collect(),
            None if functional => Vec::new(),
            None => {
                let seed = format!("{}/{}", self.run_seed(), self.plan.task(task).name);
                match self.hosts.resolve(&settings.target, &seed) {
                    Ok(hosts) => hosts,
                    Err(Unresolved::LeftOut) => {
                        self.queue.pass_on(woken_for);
                        self.skip(task, Cause::NotSelected, Unresolved::LeftOut.to_string(), now, turn);
                        return self.consider_dependents(task, now, turn);
                    }
                    Err(Unresolved::Wrong(error)) => {
                        self.queue.pass_on(woken_for);
                        return self.fail_unstarted(task, error, now, turn);
                    }
                }
            }
        };
        if hosts.is_empty() && !functional {
            self.queue.pass_on(woken_for);
            if settings.on_empty == OnEmpty::Skip {
                self.skip(task, Cause::Rule, "no host matched".to_owned(), now, turn);
                return self.consider_dependents(task, now, turn);
            }
            let error = format!("no host matches target `{}`", settings.target.join(", "));
            return self.fail_unstarted(task, error, now, turn);
        }
        // Wait for the first host's slot before starting, so that `task_started` means work has begun.
        if let Some(first) = hosts.first()
            && kept_is_open(self.kept.get(&task))
        {
            let wanted = self.wanted_by(task, first);
            if let Some(missing) = self.queue.lacking(&wanted) {
                return self.queue.park(unit, missing, woken_for);
            }
        }
        self.queue.take(&mutexes);
        let sizes = batches(&settings, hosts.len());
        let kind = EventKind::TaskStarted { task: self.name(task), hosts, batches: sizes };
        self.emit(Some(task), None, kind, now, turn);
        let live = self.live.get_mut(&task).expect("a started task is live");
        live.started = now.mono;
        live.order = unit.order;
        live.held = mutexes;
        self.queue.pass_on(woken_for);
        if functional {
            self.start_function(task, now, turn);
        } else {
            self.begin_batch(task, now, turn);
        }
    }

    fn fail_unstarted(&mut self, task: TaskIndex, error: String, now: Now, turn: &mut Turn) {
        let mut result = TaskResult::new(Status::Failed);
        (result.class, result.error) = (Some(ErrorClass::Invalid), Some(error));
        self.finish(task, result, now, turn);
    }

    fn run_seed(&self) -> &str {
        self.started.as_ref().map_or("", |started| started.run_id.as_str())
    }

    /// Returns what an attempt of `task` on `host` holds: a slot of the host and mutexes there.
    fn wanted_by(&mut self, task: TaskIndex, host: &stead_model::HostName) -> Vec<Resource> {
        let settings = self.plan.task(task).settings.clone();
        let (directory, per_target) = (self.hosts.clone(), self.plan.limits.per_target);
        let mut wanted = vec![self.queue.host(host, || directory.slots(host, per_target))];
        for mutex in settings.mutex.iter().filter(|mutex| mutex.scope == MutexScope::Host) {
            wanted.push(self.queue.mutex(&mutex.name, Some(host)));
        }
        wanted
    }

    /// A functional task takes one global slot; its first attempt has no event of its own.
    fn start_function(&mut self, task: TaskIndex, now: Now, turn: &mut Turn) {
        let assumed = self.assumed_done.contains(&task);
        let live = self.live.get_mut(&task).expect("a started task is live");
        live.batch = 1;
        live.open = 1;
        let row = &mut live.rows[0];
        row.started = Some(now.mono);
        if row.interrupted || assumed {
            let mut result = TaskResult::new(if assumed { Status::Changed } else { Status::Failed });
            if assumed {
                result.reason = Some("assumed done".to_owned());
            } else {
                (result.class, result.error) =
                    (Some(ErrorClass::Interrupted), Some(self.interrupted_message(task, None)));
            }
            return self.finish(task, result, now, turn);
        }
        if row.state == RowState::Backoff {
            return self.wait_anew(task, 0, now);
        }
        if row.state == RowState::Pending {
            // Taken up again after a resume: this attempt has an event.
            let attempt = row.attempt + 1;
            let kind = EventKind::AttemptStarted { task: self.name(task), host: None, attempt, batch: 0 };
            self.emit(Some(task), Some(0), kind, now, turn);
        }
        self.launch(task, 0, turn);
    }

    /// Puts the rows of the next batch into the queue and returns how many there are; rows kept from an
    /// earlier segment are already decided.
    pub(super) fn open_batch(&mut self, task: TaskIndex, now: Now) -> u32 {
        let live = self.live.get_mut(&task).expect("a started task is live");
        let from = if live.batch == 0 { 0 } else { live.batch_end(live.batch - 1) };
        let to = live.batch_end(live.batch);
        live.batch += 1;
        live.pausing = false;
        live.open = 0;
        let mut delayed = Vec::new();
        for row in from..to {
            match live.rows[row as usize].state {
                RowState::Done => continue,
                RowState::Pending => self.queue.push(Unit { order: live.order, row, task }),
                RowState::Backoff | RowState::Running => delayed.push(row),
            }
            live.open += 1;
        }
        let open = live.open;
        for row in delayed {
            self.wait_anew(task, row, now);
        }
        open
    }

    fn begin_batch(&mut self, task: TaskIndex, now: Now, turn: &mut Turn) {
        if self.open_batch(task, now) == 0 {
            self.batch_ended(task, now, turn);
        }
    }

    /// After a resume the delay before a row's next attempt begins anew.
    fn wait_anew(&mut self, task: TaskIndex, row: u32, now: Now) {
        let wait = self.retry_delay(task, row);
        self.set_timer(now.mono + wait, super::Timer::Retry { task, row });
    }

    /// Returns the delay after the attempt of a row that just failed.
    pub(super) fn retry_delay(&self, task: TaskIndex, row: u32) -> std::time::Duration {
        let state = &self.live[&task].rows[row as usize];
        let host = state.host.as_ref().map_or("", |host| host.as_str());
        let seed = [self.run_seed(), self.plan.task(task).name.as_str(), host];
        super::delay(&self.settings(task).retry.backoff, state.attempts(), &seed)
    }

    fn start_row(&mut self, unit: Unit, woken_for: Option<Resource>, now: Now, turn: &mut Turn) {
        let task = unit.task;
        let Some(row) = self.live.get(&task).and_then(|live| live.rows.get(unit.row as usize)) else {
            return self.queue.pass_on(woken_for);
        };
        if !matches!(row.state, RowState::Pending | RowState::Backoff) {
            return self.queue.pass_on(woken_for);
        }
        let host = row.host.clone();
        if let Some(host) = &host {
            if self.assumed_done.contains(&task) && row.attempt > 0 || row.interrupted {
                self.queue.pass_on(woken_for);
                return self.settle_interrupted(task, unit.row, host, now, turn);
            }
            let wanted = self.wanted_by(task, host);
            if let Some(missing) = self.queue.lacking(&wanted) {
                return self.queue.park(unit, missing, woken_for);
            }
            self.queue.take(&wanted);
            let live = self.live.get_mut(&task).expect("a row's task is live");
            live.rows[unit.row as usize].held = wanted;
        }
        let live = self.live.get_mut(&task).expect("a row's task is live");
        let batch = live.batch_of(unit.row);
        let row = &mut live.rows[unit.row as usize];
        row.started.get_or_insert(now.mono);
        let attempt = row.attempt + 1;
        let kind = EventKind::AttemptStarted { task: self.name(task), host, attempt, batch };
        self.emit(Some(task), Some(unit.row), kind, now, turn);
        self.queue.pass_on(woken_for);
        self.launch(task, unit.row, turn);
    }

    /// A row whose attempt was interrupted fails, or counts as done if a person said so.
    pub(super) fn settle_interrupted(
        &mut self,
        task: TaskIndex,
        row: u32,
        host: &stead_model::HostName,
        now: Now,
        turn: &mut Turn,
    ) {
        let result = if self.assumed_done.contains(&task) {
            RowResult { reason: Some("assumed done".to_owned()), ..RowResult::new(Status::Changed) }
        } else {
            RowResult {
                class: Some(ErrorClass::Interrupted),
                error: Some(self.interrupted_message(task, Some(host))),
                ..RowResult::new(Status::Failed)
            }
        };
        self.row_decided(task, row, result, now, turn);
    }

    /// Returns why a task that did not start again is not only left out: a person has to decide about it.
    pub(super) fn awaited_decision(&self, task: TaskIndex) -> Option<String> {
        let row = self.kept.get(&task)?.iter().find(|row| row.interrupted)?;
        (!self.assumed_done.contains(&task)).then(|| self.interrupted_message(task, row.host.as_ref()))
    }

    fn interrupted_message(&self, task: TaskIndex, host: Option<&stead_model::HostName>) -> String {
        let name = &self.plan.task(task).name;
        let place = host.map(|host| format!(" on {host}")).unwrap_or_default();
        format!(
            "task `{name}`{place} was interrupted and may have done part of its work; \
             resume with `--rerun {name}` to run it again or `--assume-done {name}` to count it as done"
        )
    }

    fn launch(&mut self, task: TaskIndex, row: u32, turn: &mut Turn) {
        self.queue.take_slot();
        self.running += 1;
        let state = &self.live[&task].rows[row as usize];
        turn.commands.push(Command::Start(Attempt {
            task,
            row,
            host: state.host.clone(),
            attempt: state.attempt,
            from_part: state.parts_done(),
        }));
    }

    pub(super) fn retry_due(&mut self, task: TaskIndex, row: u32) {
        if let Some(live) = self.live.get_mut(&task)
            && live.rows[row as usize].state == RowState::Backoff
        {
            live.rows[row as usize].due = true;
            self.queue.push(Unit { order: live.order, row, task });
        }
    }

    pub(super) fn next_batch_due(&mut self, task: TaskIndex, now: Now, turn: &mut Turn) {
        if self.live.get(&task).is_some_and(|live| live.pausing) {
            self.begin_batch(task, now, turn);
        }
    }
}

fn kept_is_open(kept: Option<&Vec<super::Row>>) -> bool {
    kept.is_none_or(|rows| rows.is_empty())
}

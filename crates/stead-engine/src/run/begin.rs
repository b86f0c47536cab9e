//! Whether tasks run: beginning a segment, trigger rules, guards and questions.

use std::collections::BTreeSet;

use stead_model::event::{EventKind, RunStarted, TaskResult};
use stead_model::plan::{Section, TaskIndex};
use stead_model::status::Cause;
use stead_model::{ErrorClass, Status};

use crate::expr::Verdict;
use crate::task_state::{Decision, TaskState};

use super::rule::{Ruling, judge_only_if_changed, judge_rule};
use super::{Command, Now, Run, Timer, Turn};

impl Run {
    /// Begins the first segment.
    pub fn begin(&mut self, now: Now, turn: &mut Turn) {
        self.say_started(now, turn);
        self.say(now, turn);
        self.begin_main(now, turn);
        self.proceed(now, turn);
    }

    /// Tells that the run begins.
    pub(super) fn say_started(&mut self, now: Now, turn: &mut Turn) {
        let started = RunStarted {
            run_id: self.options.run_id.clone().unwrap_or_else(unrecorded),
            kind: self.options.kind,
            plan: self.plan.name.clone(),
            plan_hash: self.hash,
            schema: 1,
            stead_version: self.options.stead_version.clone(),
            mode: self.options.mode,
            tasks: u32::try_from(self.plan.tasks.len()).unwrap_or(u32::MAX),
            trigger: self.options.trigger.clone(),
        };
        self.emit(None, None, EventKind::RunStarted(Box::new(started)), now, turn);
    }

    /// Begins the main section of a segment: leaves out what was not selected and looks at every root.
    pub(super) fn begin_main(&mut self, now: Now, turn: &mut Turn) {
        self.emit(None, None, EventKind::SectionStarted { section: Section::Main }, now, turn);
        if let Some(timeout) = self.options.timeout.or(self.plan.timeout) {
            self.set_timer(now.mono + timeout, Timer::PlanTimeout);
        }
        for task in self.options.not_selected.clone() {
            if self.states[task.get()] == TaskState::Waiting {
                self.skip(task, Cause::NotSelected, "not selected".to_owned(), now, turn);
            }
        }
        self.consider_section(Section::Main, now, turn);
    }

    /// Looks at every undecided task of a section whose dependencies are all decided.
    pub(super) fn consider_section(&mut self, section: Section, now: Now, turn: &mut Turn) {
        for i in 0..self.plan.tasks.len() {
            let task = TaskIndex(u32::try_from(i).expect("at most 1,000,000 tasks"));
            if self.plan.task(task).section == section
                && self.waiting_on[i] == 0
                && self.states[i] == TaskState::Waiting
            {
                self.consider(task, now, turn);
            }
        }
    }

    /// Looks at a task whose dependencies are all decided: trigger rule, then guards, then the question.
    pub(super) fn consider(&mut self, task: TaskIndex, now: Now, turn: &mut Turn) {
        let mut next = Some(task);
        let mut pending = Vec::new();
        // A skipped task may decide its dependents in turn: a loop, because a chain may be 10,000 deep.
        while let Some(task) = next {
            if self.states[task.get()] == TaskState::Waiting && self.halt.is_none() {
                self.consider_one(task, now, turn);
                if self.states[task.get()].decision().is_some() {
                    pending.extend(self.released_by(task).into_iter().rev());
                }
            }
            next = pending.pop();
        }
    }

    /// Returns the undecided tasks that wait for nothing any more: dependents of a decided task, and of those behind it
    /// that a resume kept.
    fn released_by(&self, task: TaskIndex) -> Vec<TaskIndex> {
        let mut released = Vec::new();
        let (mut open, mut seen) = (vec![task], BTreeSet::new());
        while let Some(task) = open.pop() {
            for dependent in self.graph.dependents(task) {
                if self.waiting_on[dependent.get()] > 0 || !seen.insert(*dependent) {
                    continue;
                }
                match self.decided[dependent.get()] {
                    None => released.push(*dependent),
                    Some(_) => open.push(*dependent),
                }
            }
        }
        released
    }

    /// Looks at the dependents of a task that was just decided.
    pub(super) fn consider_dependents(&mut self, task: TaskIndex, now: Now, turn: &mut Turn) {
        for dependent in self.released_by(task) {
            self.consider(dependent, now, turn);
        }
    }

    fn consider_one(&mut self, task: TaskIndex, now: Now, turn: &mut Turn) {
        let settings = self.settings(task).clone();
        let mut dependencies = self.graph.dependencies(task).to_vec();
        // Reasons name dependencies in plan order, however the file lists them.
        dependencies.sort_unstable();
        let ends = dependencies.iter().map(|dependency| {
            let end = self.states[dependency.get()]
                .decision()
                .expect("a task is considered after its dependencies");
            (self.plan.task(*dependency).name.as_str(), end)
        });
        match judge_rule(settings.trigger_rule, ends.clone()) {
            Ruling::Run => {}
            Ruling::Skip(cause, reason) => return self.skip(task, cause, reason, now, turn),
            Ruling::Unknown => return self.unknown(task, now, turn),
        }
        // Guards are judged elsewhere, `only_if_changed` with them: all their reasons are told.
        if !settings.when.is_empty() {
            return self.ask(task, turn);
        }
        match judge_only_if_changed(settings.only_if_changed, ends.map(|(_, end)| end)) {
            // Nobody is asked about a task that would not run anyway.
            None if self.has_question(task) => self.ask(task, turn),
            None => self.make_ready(task, now, turn),
            Some(Ruling::Skip(cause, reason)) => self.skip(task, cause, reason, now, turn),
            Some(Ruling::Unknown | Ruling::Run) => self.unknown(task, now, turn),
        }
    }

    /// Whether a person must be asked: not in a dry run, and not again after a resume.
    fn has_question(&self, task: TaskIndex) -> bool {
        self.settings(task).confirm.is_some() && !self.is_dry() && self.confirmed.get(&task) != Some(&true)
    }

    /// Has a task's guards judged, or its question asked, now or when nothing else happens.
    fn ask(&mut self, task: TaskIndex, turn: &mut Turn) {
        if self.serial {
            self.to_ask.push_back(task);
        } else {
            self.ask_now(task, turn);
        }
    }

    pub(super) fn ask_now(&mut self, task: TaskIndex, turn: &mut Turn) {
        self.asking.insert(task);
        if self.settings(task).when.is_empty() {
            self.ask_person(task, turn);
        } else {
            turn.commands.push(Command::Judge(task));
        }
    }

    fn ask_person(&mut self, task: TaskIndex, turn: &mut Turn) {
        turn.commands.push(Command::Ask(task));
    }

    pub(super) fn judged(&mut self, task: TaskIndex, verdict: Verdict, now: Now, turn: &mut Turn) {
        if !self.asking.remove(&task) || self.halt.is_some() {
            return;
        }
        match verdict {
            Verdict::Pass => {
                if self.has_question(task) {
                    self.asking.insert(task);
                    self.ask_person(task, turn);
                } else {
                    self.make_ready(task, now, turn);
                }
            }
            Verdict::Fail { cause, reason } => {
                self.skip(task, cause, reason, now, turn);
                self.consider_dependents(task, now, turn);
            }
            Verdict::Error(error) => {
                let mut result = TaskResult::new(Status::Failed);
                (result.class, result.error) = (Some(ErrorClass::Guard), Some(error));
                self.finish(task, result, now, turn);
            }
            Verdict::Unknown => {
                self.unknown(task, now, turn);
                self.consider_dependents(task, now, turn);
            }
        }
    }

    pub(super) fn answered(&mut self, task: TaskIndex, yes: bool, now: Now, turn: &mut Turn) {
        if !self.asking.remove(&task) || self.halt.is_some() {
            return;
        }
        self.emit(Some(task), None, EventKind::Confirmed { task: self.name(task), answer: yes }, now, turn);
        if yes {
            self.make_ready(task, now, turn);
        } else {
            self.skip(task, Cause::Declined, "declined".to_owned(), now, turn);
            self.consider_dependents(task, now, turn);
        }
    }

    fn make_ready(&mut self, task: TaskIndex, now: Now, turn: &mut Turn) {
        self.emit(Some(task), None, EventKind::TaskReady { task: self.name(task) }, now, turn);
        self.ready_counter += 1;
        self.queue.push(super::queue::Unit { order: self.ready_counter, row: 0, task });
    }

    pub(super) fn skip(&mut self, task: TaskIndex, cause: Cause, reason: String, now: Now, turn: &mut Turn) {
        self.emit(
            Some(task),
            None,
            EventKind::TaskSkipped { task: self.name(task), cause, reason },
            now,
            turn,
        );
    }

    /// Dry run: it cannot be known whether the task runs.
    fn unknown(&mut self, task: TaskIndex, now: Now, turn: &mut Turn) {
        let mut result = TaskResult::new(Status::Unknown);
        result.reason = Some("depends on what a task before it will find".to_owned());
        let kind = EventKind::TaskFinished { task: self.name(task), result: Box::new(result) };
        self.emit(Some(task), None, kind, now, turn);
    }

    /// Returns the ends of a task's direct dependencies, in plan order.
    pub fn dependency_ends(&self, task: TaskIndex) -> Vec<(TaskIndex, Decision)> {
        let ends = self.graph.dependencies(task).iter();
        ends.filter_map(|dependency| Some((*dependency, self.states[dependency.get()].decision()?))).collect()
    }
}

/// Returns the id of a run that is not recorded.
fn unrecorded() -> stead_model::RunId {
    stead_model::RunId::parse("unrecorded").expect("a word is a run id")
}

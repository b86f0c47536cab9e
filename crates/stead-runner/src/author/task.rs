//! A task under construction: every setting once, in any order.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use stead_model::plan::{
    self, Action, HostFailure, Interrupted, Mutex, MutexScope, OnEmpty, OnlyIfChanged, Part, Retry, Section,
    Settings, Size, TaskIndex, TriggerRule, Undo,
};
use stead_model::{Diagnostic, Diagnostics, TaskName};

use crate::context::TaskContext;
use crate::function::{Closures, Done, Failure, erase};

use super::{After, Guard, OnError, Op, PlanBuilder, Task, foreign, place, twice};

/// A task as collected so far.
pub(super) struct Draft {
    pub(super) name: TaskName,
    pub(super) section: Section,
    at: &'static Location<'static>,
    op: Option<Op>,
    closures: Closures,
    version: Option<Box<str>>,
    after: Vec<(u32, TaskIndex, &'static Location<'static>)>,
    /// None as long as nothing differs from the defaults, as in most tasks of a large plan.
    settings: Option<Box<Settings>>,
    on_error: Option<plan::OnError>,
    idempotent: Option<bool>,
    undo: Option<UndoBy>,
    set: BTreeMap<&'static str, &'static Location<'static>>,
}

enum UndoBy {
    Auto,
    Op(Op),
    Function,
}

impl Draft {
    pub(super) fn new(
        name: TaskName,
        section: Section,
        at: &'static Location<'static>,
        op: Option<Op>,
        closures: Closures,
    ) -> Self {
        Self {
            name,
            section,
            at,
            op,
            closures,
            version: None,
            after: Vec::new(),
            settings: None,
            on_error: None,
            idempotent: None,
            undo: None,
            set: BTreeMap::new(),
        }
    }

    fn settings(&mut self) -> &mut Settings {
        let acts = self.op.is_some();
        self.settings.get_or_insert_with(|| Box::new(default_settings(acts)))
    }

    /// Returns the task as data, its explicit `idempotent`, its closures and its call site.
    pub(super) fn into_task(
        self,
        names: &[TaskName],
        plan: u32,
        on_error: plan::OnError,
        shared: &mut Vec<Arc<Settings>>,
        diagnostics: &mut Diagnostics,
    ) -> (plan::Task, Option<bool>, Closures, &'static Location<'static>) {
        let mut depends_on: Vec<TaskName> = Vec::with_capacity(self.after.len());
        for (of, index, at) in self.after {
            match names.get(index.get()) {
                Some(name) if of == plan => {
                    if !depends_on.contains(name) {
                        depends_on.push(name.clone());
                    }
                }
                Some(_) | None => diagnostics.push(foreign(at)),
            }
        }
        let mut settings =
            self.settings.map_or_else(|| default_settings(self.op.is_some()), |settings| *settings);
        let inherited = if self.section == Section::Finally { plan::OnError::Continue } else { on_error };
        settings.on_error = self.on_error.unwrap_or(inherited);
        let mut to_part = |op: Op| -> Option<Part> {
            op.into_part()
                .map_err(|error| {
                    diagnostics.push(Diagnostic::error("plan/unknown-operation", place(self.at), error))
                })
                .ok()
        };
        settings.undo = match self.undo {
            None => None,
            Some(UndoBy::Auto) => Some(Undo::Auto),
            Some(UndoBy::Function) => Some(Undo::Function),
            Some(UndoBy::Op(op)) => to_part(op).map(|part| Undo::Op(part.op)),
        };
        let action = match self.op.map(&mut to_part) {
            Some(Some(part)) => Action::Op(Arc::new(part)),
            Some(None) | None => Action::Function(plan::Function { version: self.version }),
        };
        // Most tasks of a large plan agree with the one before.
        let settings = match shared.last() {
            Some(last) if **last == settings => Arc::clone(last),
            Some(_) | None => {
                let settings = Arc::new(settings);
                *shared = vec![Arc::clone(&settings)];
                settings
            }
        };
        let task = plan::Task {
            name: self.name,
            section: self.section,
            depends_on: depends_on.into(),
            action,
            settings,
            item: None,
            hash: plan::Digest::default(),
        };
        (task, self.idempotent, self.closures, self.at)
    }
}

/// Returns the settings of a task that says nothing: one that acts on hosts does so on this machine.
fn default_settings(acts: bool) -> Settings {
    let target = if acts { vec!["local".to_owned()] } else { Vec::new() };
    Settings { target, ..Settings::default() }
}

/// Sets up one task. Every setting can be made once; the order of calls never matters.
pub struct TaskBuilder<'a, T> {
    builder: &'a mut PlanBuilder,
    index: TaskIndex,
    value: PhantomData<fn() -> T>,
}

impl<T> std::fmt::Debug for TaskBuilder<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TaskBuilder({})", self.builder.drafts[self.index.get()].name)
    }
}

impl<'a, T> TaskBuilder<'a, T> {
    pub(super) fn new(builder: &'a mut PlanBuilder, index: TaskIndex) -> Self {
        Self { builder, index, value: PhantomData }
    }

    /// Returns the handle of the task.
    pub fn handle(self) -> Task<T> {
        Task { plan: self.builder.number, index: self.index, value: PhantomData }
    }

    fn draft(&mut self) -> &mut Draft {
        &mut self.builder.drafts[self.index.get()]
    }

    #[track_caller]
    fn set(mut self, what: &'static str, change: impl FnOnce(&mut Draft)) -> Self {
        let here = Location::caller();
        let draft = self.draft();
        let before = draft.set.insert(what, here);
        let whose = format!("task `{}`", draft.name);
        change(draft);
        if let Some(before) = before {
            self.builder.problems.push(twice(&whose, what, before, here));
        }
        self
    }

    /// Sets the target expression: which hosts it acts on.
    #[track_caller]
    pub fn on(self, target: &str) -> Self {
        let target = vec![target.to_owned()];
        self.set("on", |draft| draft.settings().target = target)
    }

    /// Adds tasks that must be finished before: a handle, an array or a tuple of handles.
    #[track_caller]
    pub fn after(mut self, tasks: impl After) -> Self {
        let here = Location::caller();
        let edges = tasks.into_edges().into_iter().map(|(plan, index)| (plan, index, here));
        self.draft().after.extend(edges);
        self
    }

    /// Sets how often and when it is tried again.
    #[track_caller]
    pub fn retry(self, retry: Retry) -> Self {
        self.set("retry", |draft| draft.settings().retry = retry)
    }

    /// Sets what its failure does. `OnError::Retry(n)` counts as `.retry(…)`.
    #[track_caller]
    pub fn on_error(self, on_error: OnError) -> Self {
        match on_error {
            OnError::StopAll => self.set("on_error", |draft| draft.on_error = Some(plan::OnError::StopAll)),
            OnError::Continue => self.set("on_error", |draft| draft.on_error = Some(plan::OnError::Continue)),
            OnError::Retry(times) => self.set("retry", |draft| draft.settings().retry = Retry::times(times)),
        }
    }

    /// Sets the limit of one attempt on one host.
    #[track_caller]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.set("timeout", |draft| draft.settings().timeout = Some(timeout))
    }

    /// Adds a name that is held for the whole task; tasks that share one never overlap.
    pub fn mutex(mut self, name: &str) -> Self {
        self.draft().settings().mutex.push(Mutex { name: name.to_owned(), scope: MutexScope::Run });
        self
    }

    /// Adds a name that is held per host while an attempt runs there.
    pub fn mutex_per_host(mut self, name: &str) -> Self {
        self.draft().settings().mutex.push(Mutex { name: name.to_owned(), scope: MutexScope::Host });
        self
    }

    /// Runs it only if at least one direct dependency changed something.
    #[track_caller]
    pub fn only_if_changed(self) -> Self {
        self.set("only_if_changed", |draft| draft.settings().only_if_changed = OnlyIfChanged::Any)
    }

    /// Runs it only if every direct dependency changed something.
    #[track_caller]
    pub fn only_if_all_changed(self) -> Self {
        self.set("only_if_changed", |draft| draft.settings().only_if_changed = OnlyIfChanged::All)
    }

    /// Adds a condition; all must be true.
    pub fn when(mut self, guard: Guard) -> Self {
        let here = self.draft().at;
        let PlanBuilder { number, drafts, guards, problems, .. } = &mut *self.builder;
        let mut name = |(plan, index): (u32, TaskIndex)| match drafts.get(index.get()) {
            Some(draft) if plan == *number => draft.name.to_string(),
            Some(_) | None => {
                problems.push(foreign(here));
                String::new()
            }
        };
        let guard = guard.into_model(guards, &mut name);
        self.draft().settings().when.push(guard);
        self
    }

    /// Sets when it runs, by the ends of its dependencies.
    #[track_caller]
    pub fn trigger_rule(self, rule: TriggerRule) -> Self {
        self.set("trigger_rule", |draft| draft.settings().trigger_rule = rule)
    }

    /// Sets a question that is asked before it runs.
    #[track_caller]
    pub fn confirm(self, question: &str) -> Self {
        let question = question.to_owned();
        self.set("confirm", |draft| draft.settings().confirm = Some(question))
    }

    /// Says that an interrupted attempt may simply be made again.
    #[track_caller]
    pub fn idempotent(self) -> Self {
        self.set("idempotent", |draft| draft.idempotent = Some(true))
    }

    /// Sets what resume does with a non-idempotent attempt that has no result.
    #[track_caller]
    pub fn interrupted(self, interrupted: Interrupted) -> Self {
        self.set("interrupted", |draft| draft.settings().interrupted = interrupted)
    }

    /// Sets the operation that undoes it.
    #[track_caller]
    pub fn undo(self, op: Op) -> Self {
        self.set("undo", |draft| draft.undo = Some(UndoBy::Op(op)))
    }

    /// Undoes it by its operation's own inverse.
    #[track_caller]
    pub fn undo_auto(self) -> Self {
        self.set("undo", |draft| draft.undo = Some(UndoBy::Auto))
    }

    /// Sets the closure that undoes it.
    #[track_caller]
    pub fn undo_func<F, R>(self, closure: F) -> Self
    where
        F: Fn(TaskContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let undo = erase(move |cx| {
            let future = closure(cx);
            async move { future.await.map(Done::changed) }
        });
        self.set("undo", |draft| {
            draft.undo = Some(UndoBy::Function);
            draft.closures.undo = Some(undo);
        })
    }

    /// Sets the closure that predicts a functional task in a dry run.
    #[track_caller]
    pub fn check<F, R>(self, closure: F) -> Self
    where
        T: Serialize,
        F: Fn(TaskContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Done<T>, Failure>> + Send + 'static,
    {
        self.set("check", |draft| draft.closures.check = Some(erase(closure)))
    }

    /// Sets the version of a functional task's closure; a different one makes a different task for resume.
    #[track_caller]
    pub fn version(self, version: &str) -> Self {
        let version = version.into();
        self.set("version", |draft| draft.version = Some(version))
    }

    /// Sets what the task is for.
    #[track_caller]
    pub fn description(self, description: &str) -> Self {
        let description = description.to_owned();
        self.set("description", |draft| draft.settings().description = Some(description))
    }

    /// Sets what to do if no host matches its target.
    #[track_caller]
    pub fn on_empty(self, on_empty: OnEmpty) -> Self {
        self.set("on_empty", |draft| draft.settings().on_empty = on_empty)
    }

    /// Sets how many hosts may fail.
    #[track_caller]
    pub fn host_failure(self, policy: HostFailure) -> Self {
        self.set("host_failure", |draft| draft.settings().host_failure = policy)
    }

    /// Sets the sizes of batches of hosts, the last repeating, and the pause between them.
    #[track_caller]
    pub fn batch(self, sizes: impl IntoIterator<Item = Size>, pause: Duration) -> Self {
        let sizes = sizes.into_iter().collect();
        self.set("batch", |draft| {
            draft.settings().batch = sizes;
            draft.settings().batch_pause = pause;
        })
    }

    /// Sets how many hosts go first, alone, and the pause after them.
    #[track_caller]
    pub fn canary(self, size: Size, pause: Duration) -> Self {
        self.set("canary", |draft| {
            draft.settings().canary = Some(size);
            draft.settings().canary_pause = pause;
        })
    }
}

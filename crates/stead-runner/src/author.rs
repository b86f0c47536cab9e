//! Building plans from Rust.
//!
//! [`Plan::builder`] collects tasks; [`PlanBuilder::build`] checks them as a whole with the same checks
//! a YAML plan gets and returns a [`CheckedPlan`] or every problem at once, each with its call site.

mod op;
mod settings;
mod task;

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::panic::Location;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use stead_engine::compile::{Catalogue, CompiledPlan, Explicit, check};
use stead_model::diagnostic::Place;
use stead_model::plan::{self, Limits, OnFailure, PlanSubmission, SecretRef, Section, TaskIndex};
use stead_model::{Diagnostic, Diagnostics, PlanName, TaskName};

use crate::context::{ResultOf, TaskContext};
use crate::function::{Closures, Done, Failure, Functions, GuardFunction, erase};
use crate::operation::Registry;

pub use op::Op;
pub use settings::{After, Guard, OnError};
pub use task::TaskBuilder;

use task::Draft;

/// Entry to building plans.
#[derive(Clone, Copy, Debug)]
pub struct Plan;

impl Plan {
    /// Returns an empty plan called `name`.
    #[track_caller]
    pub fn builder(name: &str) -> PlanBuilder {
        PlanBuilder::new(name, Location::caller())
    }
}

/// A handle to a task of a plan whose value is a `T`.
pub struct Task<T> {
    pub(crate) plan: u32,
    pub(crate) index: TaskIndex,
    value: PhantomData<fn() -> T>,
}

impl<T> Clone for Task<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Task<T> {}

impl<T> std::fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Task({})", self.index.0)
    }
}

impl<T> Task<T> {
    /// Returns the task's result on one of its hosts.
    pub fn host(self, name: impl Into<String>) -> ResultOf<T> {
        ResultOf { host: Some(name.into()), ..self.into() }
    }
}

/// A plan that has passed every check, with its closures.
#[derive(Clone)]
pub struct CheckedPlan {
    pub(crate) compiled: CompiledPlan,
    pub(crate) functions: Arc<Functions>,
    pub(crate) number: u32,
    pub(crate) base_dir: Option<PathBuf>,
}

impl std::fmt::Debug for CheckedPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CheckedPlan({}, {} tasks)", self.compiled.plan.name, self.compiled.plan.tasks.len())
    }
}

impl CheckedPlan {
    /// Returns the plan as data.
    pub fn plan(&self) -> &plan::Plan {
        &self.compiled.plan
    }

    /// Returns the plan as the engine walks it.
    pub fn compiled(&self) -> &CompiledPlan {
        &self.compiled
    }

    /// Returns this plan as it is submitted to a server, with a key of its own.
    ///
    /// # Errors
    /// If tasks are closures of this program: all of them are named.
    pub fn to_submission(&self) -> Result<PlanSubmission, NotSubmittable> {
        let tasks = self.plan().functional_tasks();
        if !tasks.is_empty() {
            return Err(NotSubmittable { tasks });
        }
        Ok(PlanSubmission {
            plan: self.plan().clone(),
            plan_hash: self.compiled.hash,
            source: None,
            vars: BTreeMap::new(),
            idempotency_key: crate::clock::new_run_id(crate::clock::now()).to_string(),
            yes: false,
        })
    }

    /// Returns this plan with the directory that its relative paths start from.
    pub fn with_base_dir(mut self, base_dir: impl Into<PathBuf>) -> Self {
        self.base_dir = Some(base_dir.into());
        self
    }
}

/// Why a plan cannot be submitted: only this program has its closures.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("functional tasks cannot be submitted: {}", .tasks.iter().map(|task| task.as_str()).collect::<Vec<_>>().join(", "))]
pub struct NotSubmittable {
    /// The tasks.
    pub tasks: Vec<TaskName>,
}

impl From<CompiledPlan> for CheckedPlan {
    fn from(compiled: CompiledPlan) -> Self {
        Self { compiled, functions: Arc::default(), number: next_plan_number(), base_dir: None }
    }
}

/// Every plan of a process has a number, so that a handle of another one is noticed.
fn next_plan_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Collects the tasks of a plan.
pub struct PlanBuilder {
    number: u32,
    name: String,
    at: &'static Location<'static>,
    plan: plan::Plan,
    on_error: plan::OnError,
    drafts: Vec<Draft>,
    guards: Vec<GuardFunction>,
    settings: BTreeMap<&'static str, &'static Location<'static>>,
    problems: Diagnostics,
    catalogue: Option<Catalogue>,
}

impl std::fmt::Debug for PlanBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PlanBuilder({}, {} tasks)", self.name, self.drafts.len())
    }
}

impl PlanBuilder {
    fn new(name: &str, at: &'static Location<'static>) -> Self {
        let mut problems = Diagnostics::default();
        let plan_name = PlanName::parse(name).unwrap_or_else(|error| {
            problems.push(Diagnostic::error("plan/bad-value", place(at), error.to_string()));
            PlanName::parse("invalid").expect("a word is a plan name")
        });
        Self {
            number: next_plan_number(),
            name: name.to_owned(),
            at,
            plan: plan::Plan::new(plan_name),
            on_error: plan::OnError::default(),
            drafts: Vec::new(),
            guards: Vec::new(),
            settings: BTreeMap::new(),
            problems,
            catalogue: None,
        }
    }

    /// Sets the operations there are; without this only functional tasks can be built.
    pub fn operations(&mut self, registry: &Registry) -> &mut Self {
        self.catalogue = Some(Catalogue::new(registry.descriptors()));
        self
    }

    #[track_caller]
    fn set(&mut self, what: &'static str, change: impl FnOnce(&mut Self)) -> &mut Self {
        let here = Location::caller();
        if let Some(before) = self.settings.insert(what, here) {
            self.problems.push(twice(&format!("plan `{}`", self.name), what, before, here));
        }
        change(self);
        self
    }

    /// Sets what a failure does to the run, for tasks that do not say so themselves.
    #[track_caller]
    pub fn on_error(&mut self, on_error: OnError) -> &mut Self {
        let here = Location::caller();
        self.set("on_error", |this| match on_error {
            OnError::StopAll => this.on_error = plan::OnError::StopAll,
            OnError::Continue => this.on_error = plan::OnError::Continue,
            OnError::Retry(_) => this.problems.push(
                Diagnostic::error("plan/bad-value", place(here), "a plan cannot retry as a whole")
                    .help("set `.retry(…)` on tasks"),
            ),
        })
    }

    /// Sets what happens to changes of a failed run.
    #[track_caller]
    pub fn on_failure(&mut self, on_failure: OnFailure) -> &mut Self {
        self.set("on_failure", |this| this.plan.on_failure = on_failure)
    }

    /// Sets how much may run at once.
    #[track_caller]
    pub fn limits(&mut self, limits: Limits) -> &mut Self {
        self.set("limits", |this| this.plan.limits = limits)
    }

    /// Sets the limit of the main part.
    #[track_caller]
    pub fn timeout(&mut self, timeout: Duration) -> &mut Self {
        self.set("timeout", |this| this.plan.timeout = Some(timeout))
    }

    /// Sets the limit of the `finally` part.
    #[track_caller]
    pub fn finally_timeout(&mut self, timeout: Duration) -> &mut Self {
        self.set("finally_timeout", |this| this.plan.finally_timeout = timeout)
    }

    /// Sets how long a cancelled attempt may take before it is killed.
    #[track_caller]
    pub fn grace(&mut self, grace: Duration) -> &mut Self {
        self.set("grace", |this| this.plan.grace = grace)
    }

    /// Sets whether the run locks its targets.
    #[track_caller]
    pub fn lock(&mut self, lock: bool) -> &mut Self {
        self.set("lock", |this| this.plan.lock = lock)
    }

    /// Sets what the plan is for.
    #[track_caller]
    pub fn description(&mut self, description: &str) -> &mut Self {
        let description = description.to_owned();
        self.set("description", |this| this.plan.description = Some(description))
    }

    /// Adds a variable.
    pub fn var(&mut self, name: &str, value: impl Into<Value>) -> &mut Self {
        self.plan.vars.insert(name.to_owned(), value.into());
        self
    }

    /// Adds a secret, read from an environment variable or a file when the run starts.
    pub fn secret(&mut self, name: &str, from: SecretRef) -> &mut Self {
        self.plan.secrets.insert(name.to_owned(), from);
        self
    }

    /// Adds a task that carries out an operation; it acts on `local` unless `.on(…)` says otherwise.
    #[track_caller]
    pub fn op(&mut self, name: &str, op: Op) -> TaskBuilder<'_, Value> {
        let here = Location::caller();
        self.add(name, Section::Main, here, Some(op), Closures::default())
    }

    /// Adds a functional task.
    #[track_caller]
    pub fn func<T, F, R>(&mut self, name: &str, closure: F) -> TaskBuilder<'_, T>
    where
        T: Serialize,
        F: Fn(TaskContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Done<T>, Failure>> + Send + 'static,
    {
        let here = Location::caller();
        self.add(
            name,
            Section::Main,
            here,
            None,
            Closures { run: Some(erase(closure)), ..Closures::default() },
        )
    }

    /// Adds an operation that is carried out when everything else is finished.
    #[track_caller]
    pub fn finally_op(&mut self, name: &str, op: Op) -> TaskBuilder<'_, Value> {
        let here = Location::caller();
        self.add(name, Section::Finally, here, Some(op), Closures::default())
    }

    /// Adds a functional task that runs when everything else is finished.
    #[track_caller]
    pub fn finally_func<T, F, R>(&mut self, name: &str, closure: F) -> TaskBuilder<'_, T>
    where
        T: Serialize,
        F: Fn(TaskContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Done<T>, Failure>> + Send + 'static,
    {
        let here = Location::caller();
        self.add(
            name,
            Section::Finally,
            here,
            None,
            Closures { run: Some(erase(closure)), ..Closures::default() },
        )
    }

    fn add<T>(
        &mut self,
        name: &str,
        section: Section,
        at: &'static Location<'static>,
        op: Option<Op>,
        closures: Closures,
    ) -> TaskBuilder<'_, T> {
        let index = TaskIndex(u32::try_from(self.drafts.len()).expect("at most 1,000,000 tasks"));
        let name = TaskName::parse(name).unwrap_or_else(|error| {
            self.problems.push(Diagnostic::error("plan/bad-value", place(at), error.to_string()));
            TaskName::parse(&format!("invalid-{}", index.0)).expect("a word is a task name")
        });
        self.drafts.push(Draft::new(name, section, at, op, closures));
        TaskBuilder::new(self, index)
    }

    /// Reopens a task to set more of it.
    ///
    /// # Panics
    /// Never: a handle of another plan is a problem that `build` reports.
    #[track_caller]
    pub fn edit<T>(&mut self, task: Task<T>) -> TaskBuilder<'_, T> {
        let here = Location::caller();
        if task.plan != self.number || task.index.get() >= self.drafts.len() {
            self.problems.push(foreign(here));
            // Changes go to a task that is thrown away with the failed build.
            return self.add("foreign", Section::Main, here, None, Closures::default());
        }
        TaskBuilder::new(self, task.index)
    }

    /// Checks the plan and returns it, or every problem at once.
    pub fn build(self) -> Result<CheckedPlan, Diagnostics> {
        let Self { number, at, mut plan, on_error, drafts, guards, problems, catalogue, .. } = self;
        let mut diagnostics = problems;
        // Normal tasks come first in a plan; a stable sort keeps handles of plans that define them in this order.
        let order: Vec<usize> = {
            let main = (0..drafts.len()).filter(|i| drafts[*i].section == Section::Main);
            let finally = (0..drafts.len()).filter(|i| drafts[*i].section == Section::Finally);
            main.chain(finally).collect()
        };
        let names: Vec<TaskName> = drafts.iter().map(|draft| draft.name.clone()).collect();
        let ordered = order.iter().enumerate().all(|(new, old)| new == *old);
        if !ordered {
            diagnostics.push(
                Diagnostic::error(
                    "plan/bad-value",
                    place(at),
                    "a `finally` task was added before a normal one",
                )
                .help("add every normal task before the first `finally` task"),
            );
        }
        let mut places = Vec::with_capacity(drafts.len());
        let mut explicit = Explicit::default();
        let mut closures = Vec::new();
        let mut shared: Vec<Arc<plan::Settings>> = Vec::new();
        for draft in drafts {
            let (task, idempotent, of_task, at) =
                draft.into_task(&names, number, on_error, &mut shared, &mut diagnostics);
            let index = TaskIndex(u32::try_from(plan.tasks.len()).expect("at most 1,000,000 tasks"));
            explicit.idempotent.extend(idempotent.map(|idempotent| (index, idempotent)));
            if of_task.run.is_some() && closures.len() < plan.tasks.len() {
                closures.resize_with(plan.tasks.len(), Closures::default);
            }
            if of_task.run.is_some() || of_task.undo.is_some() || !closures.is_empty() {
                closures.resize_with(plan.tasks.len(), Closures::default);
                closures.push(of_task);
            }
            plan.tasks.push(task);
            places.push(at);
        }
        let locate = |task: TaskIndex, _: &str| place(places.get(task.get()).copied().unwrap_or(at));
        let catalogue = catalogue.unwrap_or_default();
        let compiled = check(plan, &explicit, &catalogue, &locate, diagnostics)?;
        Ok(CheckedPlan {
            compiled,
            functions: Arc::new(Functions { tasks: closures, guards }),
            number,
            base_dir: None,
        })
    }
}

pub(crate) fn place(at: &'static Location<'static>) -> Place {
    Place::Call { file: at.file(), line: at.line(), column: at.column() }
}

fn foreign(at: &'static Location<'static>) -> Diagnostic {
    Diagnostic::error("plan/unknown-dependency", place(at), "the handle is of another plan")
        .help("use handles returned by this plan's own builder")
}

fn twice(
    whose: &str,
    what: &str,
    before: &'static Location<'static>,
    again: &'static Location<'static>,
) -> Diagnostic {
    Diagnostic::error(
        "plan/bad-value",
        place(again),
        format!("{whose} has its `{what}` set twice, first at {before}"),
    )
    .help("keep one of the two calls")
    .related(place(before), "first set here")
}

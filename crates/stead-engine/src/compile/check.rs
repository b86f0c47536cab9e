//! Finds every problem of a plan at once, fills the last defaults, and hashes it.
//!
//! Shared by all front doors: what they parse or build differs, what a plan may say does not.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value;
use stead_model::diagnostic::{Place, suggest};
use stead_model::plan::{Action, Expression, Param, Part, Section, Settings, TaskIndex, Undo};
use stead_model::{Diagnostic, Diagnostics, Effect, HostName, Plan, Task};

use super::{Catalogue, CompiledPlan};
use crate::expr::{ExprError, References};
use crate::graph::Graph;

mod defaults;
mod intern;
mod names;
mod operations;
mod order;
mod settings;
mod targets;
#[cfg(test)]
mod tests;
mod triggers;

/// The index `locate` is asked with for what belongs to no task: limits, triggers.
pub const WHOLE_PLAN: TaskIndex = TaskIndex(u32::MAX);

/// The key by which results say whether something changed.
const CHANGED_WHEN: &str = "changed_when";

/// What an author wrote where the plan itself cannot show the difference to a default.
#[derive(Clone, Debug, Default)]
pub struct Explicit {
    /// What tasks say of `idempotent`; where they say nothing their operations decide.
    pub idempotent: BTreeMap<TaskIndex, bool>,
    /// Parameters of parts under a condition whose templates could be rendered already, as they are written.
    pub guarded: BTreeMap<TaskIndex, Vec<Guarded>>,
}

/// A parameter that is a template, of a part that a condition may leave out.
#[derive(Clone, Debug)]
pub struct Guarded {
    /// Which part of the task.
    pub part: usize,
    /// The parameter's name.
    pub param: String,
    /// What it says before it is rendered.
    pub written: Param,
}

/// Returns the compiled plan, or every problem, those in `diagnostics` included.
///
/// `locate` gives the place of a dotted path in a task, such as `params.args.2`, `when.0.any.1`, `sequence.1.op` or
/// `depends_on.0` (or, for [`WHOLE_PLAN`], in the plan); a path it does not know has the place of what encloses it.
pub fn check(
    mut plan: Plan,
    explicit: &Explicit,
    catalogue: &Catalogue,
    locate: &dyn Fn(TaskIndex, &str) -> Place,
    diagnostics: Diagnostics,
) -> Result<CompiledPlan, Diagnostics> {
    let mut interner = intern::Interner::default();
    for (i, task) in plan.tasks.iter_mut().enumerate() {
        let index = TaskIndex(u32::try_from(i).expect("a plan has at most 1,000,000 tasks"));
        lift_conditions(task, catalogue);
        if let Some(guarded) = explicit.guarded.get(&index) {
            operations::judge_when_it_runs(task, guarded, catalogue);
        }
        fill_defaults(index, task, explicit, catalogue);
        task.settings = interner.intern(&task.settings);
    }
    drop(interner);
    let built = Graph::build(&plan.tasks);
    let mut checker = Checker {
        plan: &plan,
        graph: built.as_ref().ok(),
        catalogue,
        locate,
        said: diagnostics.iter().map(said).collect(),
        diagnostics,
        references: HashMap::new(),
        clean: HashSet::new(),
        names_without_graph: BTreeSet::new(),
        suggestions: 0,
        good_targets: HashSet::new(),
        ad_hoc: BTreeMap::new(),
    };
    if let Err(problems) = &built {
        checker.names_without_graph =
            plan.tasks.iter().flat_map(|task| [task.name.as_str(), task.name.base()]).collect();
        checker.graph_problems(problems);
    }
    checker.whole_plan();
    for (index, task) in plan.indexed() {
        checker.task(index, task);
    }
    checker.rules_that_never_fire();
    let diagnostics = checker.diagnostics;
    match built {
        Ok(graph) if !diagnostics.has_errors() => {
            defaults::leave_out(&mut plan, catalogue);
            let hash = plan.seal();
            let warnings = diagnostics.sorted().0;
            Ok(CompiledPlan { plan: Arc::new(plan), graph: Arc::new(graph), hash, warnings })
        }
        Ok(_) | Err(_) => Err(diagnostics.sorted()),
    }
}

/// Makes the `changed_when` among the parameters of an operation that lists it the one of its part: every front door has
/// parameters, and only plans have keys beside them.
fn lift_conditions(task: &mut Task, catalogue: &Catalogue) {
    let is_listed = |part: &Part| {
        let descriptor = catalogue.get(part.op.operation.as_str());
        part.op.params.contains_key(CHANGED_WHEN)
            && descriptor.is_some_and(|descriptor| descriptor.param(CHANGED_WHEN).is_some())
    };
    match &mut task.action {
        Action::Op(part) if is_listed(part) => lift_condition(Arc::make_mut(part)),
        Action::Sequence(parts) if parts.iter().any(is_listed) => {
            Arc::make_mut(parts).iter_mut().filter(|part| is_listed(part)).for_each(lift_condition);
        }
        Action::Op(_) | Action::Sequence(_) | Action::Function(_) => {}
    }
}

/// Leaves it where it is if it is no expression, or the part has another: both are refused there.
fn lift_condition(part: &mut Part) {
    let expression = match part.op.params.get(CHANGED_WHEN).and_then(Param::as_value) {
        Some(Value::String(text)) => text.as_str().into(),
        Some(Value::Bool(known)) => known.to_string().into(),
        Some(Value::Null | Value::Number(_) | Value::Array(_) | Value::Object(_)) | None => return,
    };
    if part.changed_when.is_none() {
        part.changed_when = Some(Expression(expression));
        part.op.params.remove(CHANGED_WHEN);
    }
}

/// Fills in what depends on the operations: `idempotent`, and the target.
fn fill_defaults(index: TaskIndex, task: &mut Task, explicit: &Explicit, catalogue: &Catalogue) {
    let idempotent = explicit.idempotent.get(&index).copied().unwrap_or_else(|| {
        let parts = task.action.parts();
        !parts.is_empty() && parts.iter().all(|part| is_idempotent(part, catalogue))
    });
    let no_target = task.settings.target.is_empty() && task.action.function().is_none();
    if idempotent != task.settings.idempotent || no_target {
        let settings = Arc::make_mut(&mut task.settings);
        settings.idempotent = idempotent;
        if no_target {
            settings.target = vec!["local".to_owned()];
        }
    }
}

fn is_idempotent(part: &Part, catalogue: &Catalogue) -> bool {
    let Some(descriptor) = catalogue.get(part.op.operation.as_str()) else { return false };
    match descriptor.effect_of(&part.op) {
        Effect::Command => {
            descriptor.idempotent
                || part.op.params.contains_key("creates")
                || part.op.params.contains_key("unless")
        }
        Effect::Read => true,
        Effect::Write => descriptor.idempotent,
    }
}

struct Checker<'a> {
    plan: &'a Plan,
    /// None if the tasks form no DAG.
    graph: Option<&'a Graph>,
    catalogue: &'a Catalogue,
    locate: &'a dyn Fn(TaskIndex, &str) -> Place,
    diagnostics: Diagnostics,
    /// What was said already: instances of a `for_each` share their text and so their problems.
    said: HashSet<(&'static str, String, String)>,
    /// What expressions and templates use, by text: many tasks share theirs.
    references: HashMap<(Kind, Box<str>), Rc<Found>>,
    /// Settings without problems, by address; the plan keeps them alive.
    clean: HashSet<*const Settings>,
    /// Task names, with and without key, filled only when there is no graph to ask.
    names_without_graph: BTreeSet<&'a str>,
    /// How many task names were suggested.
    suggestions: usize,
    /// Targets whose hosts exist and match.
    good_targets: HashSet<Box<str>>,
    /// Hosts that targets themselves say how to reach.
    ad_hoc: BTreeMap<HostName, targets::Defined>,
}

/// What a text uses, or why it cannot be read.
type Found = Result<References, ExprError>;

/// How a text is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Expression,
    Template,
}

/// Expressions remembered; a bound for plans in which all differ.
const REMEMBERED: usize = 10_000;

/// Task names suggested at most: finding one looks at all names.
const SUGGESTIONS: usize = 100;

fn said(diagnostic: &Diagnostic) -> (&'static str, String, String) {
    (diagnostic.code, diagnostic.place.to_string(), diagnostic.message.clone())
}

impl<'a> Checker<'a> {
    /// Adds a problem, unless the same was said of the same place.
    fn push(&mut self, index: TaskIndex, path: &str, diagnostic: Diagnostic) {
        if !self.said.insert(said(&diagnostic)) {
            return;
        }
        let diagnostic = if !diagnostic.path.is_empty() {
            diagnostic
        } else if index == WHOLE_PLAN {
            diagnostic.path(path)
        } else {
            let task = self.plan.task(index);
            let section = if task.section == Section::Finally { "finally" } else { "tasks" };
            diagnostic.path(format!("{section}.{}.{path}", task.name.base()))
        };
        self.diagnostics.push(diagnostic);
    }

    fn error(
        &mut self,
        index: TaskIndex,
        path: &str,
        code: &'static str,
        message: String,
        help: impl Into<String>,
    ) {
        let place = (self.locate)(index, path);
        self.push(index, path, Diagnostic::error(code, place, message).help(help));
    }

    fn warning(
        &mut self,
        index: TaskIndex,
        path: &str,
        code: &'static str,
        message: String,
        help: impl Into<String>,
    ) {
        let place = (self.locate)(index, path);
        self.push(index, path, Diagnostic::warning(code, place, message).help(help));
    }

    /// Returns advice on the task name `name` that no task but `own` may have.
    fn suggest_task(&mut self, own: TaskIndex, name: &str) -> String {
        self.suggestions += 1;
        if self.suggestions > SUGGESTIONS {
            return String::new();
        }
        let mut seen = HashSet::new();
        let others =
            self.plan.indexed().filter(|(index, _)| *index != own).map(|(_, task)| task.name.as_str());
        let others = others.filter(|other| seen.insert(*other));
        suggest(name, others)
    }

    fn task(&mut self, index: TaskIndex, task: &'a Task) {
        self.dependencies(index, task);
        let settings = Arc::as_ptr(&task.settings);
        if !self.clean.contains(&settings) {
            let before = self.diagnostics.0.len();
            self.settings(index, task);
            if self.diagnostics.0.len() == before {
                self.clean.insert(settings);
            }
        }
        self.guards(index, task);
        self.action(index, task);
        self.undo(index, task);
    }

    fn undo(&mut self, index: TaskIndex, task: &'a Task) {
        match &task.settings.undo {
            None | Some(Undo::Function) => {}
            Some(Undo::Auto) => {
                if task.action.function().is_some() {
                    let message = format!(
                        "`undo: auto` of `{}`: a function has no inverse of its own",
                        task.name.base()
                    );
                    self.error(index, "undo", "plan/bad-value", message, "give the function that undoes it");
                }
                for part in task.action.parts() {
                    let operation = part.op.operation.as_str();
                    if self.catalogue.get(operation).is_some_and(|descriptor| !descriptor.undo) {
                        let message =
                            format!("`undo: auto`: operation `{operation}` has no inverse of its own");
                        self.error(
                            index,
                            "undo",
                            "plan/bad-value",
                            message,
                            "write the action that undoes it",
                        );
                    }
                }
            }
            Some(Undo::Op(op)) => self.operation(index, task, op, "undo"),
        }
    }
}

//! From a catalogue of steps to a [`Plan`]: which steps run, in which order, with which arguments.
//!
//! [`select`] decides which steps of a list run; [`compile`] makes one task of each. Both are pure: values and facts
//! about files come in as data, and equal inputs give equal bytes. What keeps a plan from running, but not from being
//! read, is kept with it as [`StepsPlan::problems`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::json;
use stead_model::catalogue::{At, Catalogue, Granted, Order, Step, StepAction};
use stead_model::diagnostic::Place;
use stead_model::layer::Text;
use stead_model::plan::{
    Action, Digest, Limits, OnError, Op, Origin, Param, Part, Plan, Retry, Section, Settings, Task, TaskIndex,
};
use stead_model::{Diagnostic, Diagnostics, ErrorClass, OperationName, StepId, StepMode, TaskName};

use super::{CompiledPlan, Explicit, check};
use crate::values::{Expanded, Values};

mod files;
mod select;
#[cfg(test)]
mod tests;
mod text;

pub use files::StepFile;
pub use select::{LeftOut, Request, Selected, select, tokens};

/// The operation of a step that runs a script.
pub const SCRIPT_RUN: &str = "script.run";
/// The operation of a step that hands inputs over.
pub const INPUTS_SYNC: &str = "inputs.sync";

/// What a plan is made from, besides the selected steps.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// The effective configuration.
    pub values: &'a Values,
    /// What is known of each script, by its path.
    pub files: &'a BTreeMap<&'a str, StepFile>,
    /// What the run acts on.
    pub target: &'a str,
    /// The operations there are.
    pub operations: &'a super::Catalogue,
}

/// A plan of steps.
#[derive(Clone, Debug)]
pub struct StepsPlan {
    /// The plan: one task per step.
    pub compiled: CompiledPlan,
    /// The steps in order.
    pub steps: Vec<SelectedStep>,
    /// The steps of the list that are not in the plan, in listed order.
    pub left_out: Vec<LeftOut>,
    /// What the steps do.
    pub mode: StepMode,
    /// What they act on.
    pub target: String,
    /// What keeps the plan from running.
    pub problems: Diagnostics,
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectedStep {
    /// Its id, and the name of its task.
    pub id: StepId,
    /// The number it goes by.
    pub number: Option<u64>,
    /// The last part of its path.
    pub basename: String,
    /// The path it goes by, relative to the root.
    pub path: String,
    /// Its arguments, expanded; stars where they hold a secret, which is among the plan's problems.
    pub args: Vec<String>,
    /// The heading it stands under.
    pub phase: Option<String>,
    /// Whether it destroys.
    pub destructive: bool,
    /// Where it runs, expanded; none: the root.
    pub cwd: Option<String>,
}

impl StepsPlan {
    /// Returns the ids of its steps.
    pub fn ids(&self) -> BTreeSet<StepId> {
        self.steps.iter().map(|step| step.id.clone()).collect()
    }

    /// Whether a person must confirm it: it deletes, or a step of it destroys.
    pub fn needs_confirmation(&self) -> bool {
        self.mode == StepMode::Delete || self.steps.iter().any(|step| step.destructive)
    }
}

/// Returns the plan of `selected`, or why there is none.
pub fn compile(selected: &Selected<'_>, around: &Surroundings<'_>) -> Result<StepsPlan, Diagnostics> {
    let catalogue = selected.catalogue;
    let mode = selected.mode;
    let mut problems = Diagnostics::default();
    let steps: Vec<SelectedStep> = selected
        .steps
        .iter()
        .map(|(group, step)| SelectedStep {
            id: step.id.clone(),
            number: step.number,
            basename: step.basename().to_owned(),
            path: step.path().to_owned(),
            args: args(step, mode, around.values, &mut problems),
            phase: group.phase.clone(),
            destructive: step.destructive.contains(&mode),
            cwd: cwd(step, around.values, &mut problems),
        })
        .collect();
    for (_, step) in &selected.steps {
        problems.0.extend(files::problem(step, around.files));
    }
    let mut plan = Plan::new(catalogue.name.clone());
    plan.description = catalogue.doc.clone();
    plan.origin =
        Some(Origin::Steps { catalogue: catalogue.name.clone(), mode, target: around.target.to_owned() });
    // All steps run on one host, so its limit is the catalogue's, not one by the number of CPUs.
    plan.limits = Limits { parallel: catalogue.parallel, per_target: Some(catalogue.parallel) };
    let mut explicit = Explicit::default();
    let mut shared = Arc::new(Settings::default());
    let dependencies = dependencies(selected);
    for (at, (((_, step), made), depends_on)) in
        selected.steps.iter().zip(&steps).zip(dependencies).enumerate()
    {
        let index = u32::try_from(at).expect("a file of at most 64 MiB has fewer steps");
        explicit.idempotent.insert(TaskIndex(index), step.idempotent);
        let settings = settings(step);
        if *shared != settings {
            shared = Arc::new(settings);
        }
        plan.tasks.push(Task {
            name: TaskName::from(&step.id),
            section: Section::Main,
            depends_on,
            action: Action::Op(Arc::new(part(step, made, mode))),
            settings: Arc::clone(&shared),
            item: None,
            hash: Digest::default(),
        });
    }
    let places: Vec<&Place> = selected.steps.iter().map(|(_, step)| &step.place).collect();
    let whole = Place::Named(catalogue.source.name.to_string());
    let locate = |task: TaskIndex, _: &str| places.get(task.get()).map_or(&whole, |place| *place).clone();
    let compiled = check(plan, &explicit, around.operations, &locate, Diagnostics::default())?;
    let left_out = selected.left_out.clone();
    Ok(StepsPlan { compiled, steps, left_out, mode, target: around.target.to_owned(), problems })
}

/// Returns the arguments of a step, stars in place of those that hold a secret.
fn args(step: &Step, mode: StepMode, values: &Values, problems: &mut Diagnostics) -> Vec<String> {
    let mut expanded = Vec::new();
    for text in step.args.get(mode) {
        let outcome = values.expand(text);
        expanded.push(public(step, ("args", "an argument"), text, outcome, problems));
    }
    expanded
}

fn cwd(step: &Step, values: &Values, problems: &mut Diagnostics) -> Option<String> {
    let text = step.cwd.as_ref()?;
    let expanded = public(step, ("cwd", "the `cwd`"), text, values.expand_path(text), problems);
    if !stays_inside(&expanded) {
        let message = format!("the `cwd` of `{}`, `{expanded}`, does not stay inside the root", step.id);
        let problem = Diagnostic::error("steps/catalogue", text.place.clone(), message)
            .path(format!("steps.{}.cwd", step.id));
        problems.push(problem.help("write a path relative to the root of the catalogue, or an absolute one"));
    }
    Some(expanded)
}

/// Whether a path is absolute or, by its text, never above where it starts.
fn stays_inside(path: &str) -> bool {
    let mut depth = 0_usize;
    path.starts_with('/')
        || path.split('/').all(|part| match part {
            "" | "." => true,
            ".." => depth.checked_sub(1).map(|up| depth = up).is_some(),
            _ => {
                depth += 1;
                true
            }
        })
}

/// Returns what `text` became, which everyone may see: a secret in it is a problem. It is the value of a key of the step,
/// which also has a name in words.
fn public(
    step: &Step,
    (key, what): (&str, &str),
    text: &At<Text>,
    outcome: Result<Expanded, Box<Diagnostic>>,
    problems: &mut Diagnostics,
) -> String {
    let path = format!("steps.{}.{key}", step.id);
    match outcome {
        Ok(expanded) if expanded.secret => {
            let message = format!("{what} of `{}` holds a secret", step.id);
            problems.push(
                Diagnostic::error("steps/catalogue", text.place.clone(), message).path(path).help(
                    "everyone on the machine can see it there: grant the variable with `secrets` instead",
                ),
            );
            crate::values::STARS.to_owned()
        }
        Ok(expanded) => expanded.text,
        Err(problem) => {
            problems.push(problem.path(path));
            String::new()
        }
    }
}

/// Returns for each selected step what it waits for.
fn dependencies(selected: &Selected<'_>) -> Vec<Box<[TaskName]>> {
    let name = |at: usize| TaskName::from(&selected.steps[at].1.id);
    match selected.catalogue.order.get(selected.mode) {
        Order::Listed => {
            (0..selected.steps.len()).map(|at| at.checked_sub(1).map(name).into_iter().collect()).collect()
        }
        Order::Needs => {
            selected.needed().into_iter().map(|needed| needed.into_iter().map(name).collect()).collect()
        }
    }
}

fn part(step: &Step, made: &SelectedStep, mode: StepMode) -> Part {
    let mut params: BTreeMap<String, Param> = BTreeMap::new();
    let mut give = |name: &str, value: serde_json::Value| {
        params.insert(name.to_owned(), Param::Value(value));
    };
    give("mode", json!(mode));
    let operation = match &step.action {
        StepAction::Run(path) => {
            give("path", json!(path.value));
            give("args", json!(made.args));
            if let Some(cwd) = &step.cwd {
                give("cwd", json!(cwd.value.written()));
            }
            give("env", json!(step.env.keys().collect::<Vec<_>>()));
            give("secrets", json!(granted(&step.secrets)));
            SCRIPT_RUN
        }
        StepAction::Inputs { inputs, .. } => {
            give("inputs", json!(inputs.value));
            INPUTS_SYNC
        }
    };
    let operation = OperationName::parse(operation).expect("both are names of operations");
    Part {
        name: None,
        op: Op { operation, params },
        when_host: Vec::new(),
        changed_when: None,
        failed_when: None,
    }
}

fn granted(secrets: &Granted) -> BTreeSet<&str> {
    match secrets {
        Granted::All => BTreeSet::from(["*"]),
        Granted::Names(names) => names.iter().map(|name| name.value.as_str()).collect(),
    }
}

fn settings(step: &Step) -> Settings {
    Settings {
        description: step.doc.clone(),
        target: vec!["local".to_owned()],
        on_error: OnError::StopAll,
        retry: retry(&step.retry),
        timeout: step.timeout,
        idempotent: step.idempotent,
        ..Settings::default()
    }
}

/// Returns the policy of a step: a failed check is tried again like what is by default or by `on`.
fn retry(given: &Retry) -> Retry {
    if given.times == 0 {
        return Retry::default();
    }
    let mut on = given.on.clone();
    if on.is_empty() {
        on = ErrorClass::ALL.iter().copied().filter(|class| class.is_retried_by_default()).collect();
    }
    on.push(ErrorClass::Check);
    on.sort_unstable();
    on.dedup();
    Retry { on, ..given.clone() }
}

/// Returns the plan of every step of a list with nothing but the catalogue's defaults: what golden files hold.
pub fn golden_lines(catalogue: &Catalogue, mode: StepMode, values: &Values) -> Vec<String> {
    catalogue
        .listed(mode)
        .filter(|(_, step)| step.gate.as_ref().is_none_or(|gate| values.judge(gate).holds))
        .map(|(_, step)| {
            let args = args(step, mode, values, &mut Diagnostics::default());
            text::line(step.basename(), &args, mode)
        })
        .collect()
}

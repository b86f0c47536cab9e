//! From an intent and its parameters to the values it sets, and to one plan: edit, commit, then steps.

mod combination;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use stead_model::catalogue::{self, Edit, EditValue, Intent, ScalarKind};
use stead_model::diagnostic::{Place, suggest};
use stead_model::intent::FileEdit;
use stead_model::layer::{Piece, Text};
use stead_model::plan::{Action, Digest, Op, Param, Part, Plan, Section, Settings, Task, TaskIndex};
use stead_model::yaml::edit::{Spot, Wanted};
use stead_model::{Diagnostic, Diagnostics, OperationName, PlanName, TaskName};

use super::{Catalogue, CompiledPlan, Explicit, check};

pub use combination::{Current, current, is_allowed, possible_values};

/// The task that edits. No step is called so: their names have no dots.
pub const EDIT: &str = "intent.edit";
/// The task that commits.
pub const COMMIT: &str = "intent.commit";

/// Values of all parameters of an intent.
pub type Choice = BTreeMap<String, String>;

/// Returns which of the catalogues has the intent `name`, and the intent.
///
/// # Errors
/// `intent/unknown` with the nearest or all names.
pub fn find<'c>(
    catalogues: &[&'c catalogue::Catalogue],
    name: &str,
) -> Result<(usize, &'c Intent), Diagnostics> {
    let mut with_it = catalogues.iter().enumerate();
    with_it.find_map(|(index, catalogue)| Some((index, catalogue.intents.get(name)?))).ok_or_else(|| {
        let message = format!("there is no intent `{name}`");
        let known = catalogues.iter().flat_map(|catalogue| catalogue.intents.keys());
        let place = Place::Named(name.to_owned());
        let known: Vec<&str> = known.map(String::as_str).collect();
        let candidates = known.iter().map(|known| (*known).to_owned()).collect();
        let problem = Diagnostic::error("intent/unknown", place, message).candidates(candidates);
        Diagnostics(vec![problem.help(suggest(name, known))])
    })
}

/// Returns every intent that several of the catalogues have: a name means one.
pub fn repeated(catalogues: &[&catalogue::Catalogue]) -> Diagnostics {
    let mut seen: BTreeMap<&str, &Place> = BTreeMap::new();
    let mut problems = Diagnostics::default();
    for (name, intent) in catalogues.iter().flat_map(|catalogue| &catalogue.intents) {
        match seen.get(name.as_str()) {
            Some(first) => problems.push(
                Diagnostic::error(
                    "steps/catalogue",
                    intent.place.clone(),
                    format!("two catalogues have an intent `{name}`"),
                )
                .related((*first).clone(), "first here")
                .help("give one of them another name"),
            ),
            None => drop(seen.insert(name, &intent.place)),
        }
    }
    problems
}

/// Returns the values of all parameters, given `KEY=VALUE` as typed, or every problem: `intent/param`.
pub fn choose(name: &str, intent: &Intent, given: &[String]) -> Result<Choice, Diagnostics> {
    let mut problems = Diagnostics::default();
    let mut choice = Choice::new();
    let mut bad = |place: &str, message: String, help: String, candidates: Vec<String>| {
        let problem = Diagnostic::error("intent/param", Place::Named(place.to_owned()), message);
        problems.push(problem.help(help).candidates(candidates));
    };
    for typed in given {
        let Some((key, value)) = typed.split_once('=') else {
            bad(typed, format!("`{typed}` is not KEY=VALUE"), usage(name, intent), Vec::new());
            continue;
        };
        let Some(param) = intent.params.get(key) else {
            let keys: Vec<String> = intent.params.keys().cloned().collect();
            let help = suggest(key, keys.iter().map(String::as_str));
            bad(typed, format!("`{name}` has no parameter `{key}`"), help, keys);
            continue;
        };
        if !param.allowed.iter().any(|allowed| allowed == value) {
            let help = format!("allowed: {}", param.allowed.join(", "));
            bad(typed, format!("`{value}` is not a value of `{key}`"), help, param.allowed.clone());
        }
        if choice.insert(key.to_owned(), value.to_owned()).is_some() {
            bad(typed, format!("`{key}` is given twice"), "give it once".to_owned(), Vec::new());
        }
    }
    for (key, param) in intent.params.iter().filter(|(key, _)| !given.iter().any(|typed| is_of(typed, key))) {
        match &param.default {
            Some(default) => drop(choice.insert(key.clone(), default.clone())),
            None => {
                let help = format!("give {key}=VALUE; allowed: {}", param.allowed.join(", "));
                bad(name, format!("`{key}` is missing"), help, param.allowed.clone());
            }
        }
    }
    if problems.has_errors() { Err(problems) } else { Ok(choice) }
}

fn is_of(typed: &str, key: &str) -> bool {
    typed.split_once('=').is_some_and(|(given, _)| given == key)
}

/// Returns how the intent is typed.
pub fn usage(name: &str, intent: &Intent) -> String {
    let params = intent.params.iter().map(|(key, param)| format!(" {key}={}", param.allowed.join("|")));
    format!("stead intent {name}{}", params.collect::<String>())
}

/// Returns what is set by this choice, or every value that is not of its type.
pub fn edits(intent: &Intent, choice: &Choice) -> Result<Vec<FileEdit>, Diagnostics> {
    let mut problems = Diagnostics::default();
    let mut edits = Vec::with_capacity(intent.edits.len());
    for edit in &intent.edits {
        match wanted(edit, choice) {
            Ok(value) => {
                let (Spot { select, path }, must_exist) = (edit.spot(), edit.must_exist);
                edits.push(FileEdit { file: edit.file.value.clone(), select, path, value, must_exist });
            }
            Err(problem) => problems.push(*problem),
        }
    }
    if problems.has_errors() { Err(problems) } else { Ok(edits) }
}

/// Returns what an edit writes by this choice.
fn wanted(edit: &Edit, choice: &Choice) -> Result<Wanted, Box<Diagnostic>> {
    let text = match &edit.value {
        EditValue::Template(text) => expand(&text.value, choice),
        EditValue::By { param, values } => {
            choice.get(&param.value).and_then(|value| values.get(value)).cloned().unwrap_or_default()
        }
    };
    typed(edit.kind, &text).ok_or_else(|| {
        let kind = match edit.kind {
            ScalarKind::String => "a text",
            ScalarKind::Int => "a whole number",
            ScalarKind::Bool => "`true` or `false`",
        };
        let message = format!("`{text}` is not {kind}");
        let problem = Diagnostic::error("steps/catalogue", edit.place.clone(), message);
        Box::new(problem.help("change the value, or `type`"))
    })
}

fn typed(kind: ScalarKind, text: &str) -> Option<Wanted> {
    match kind {
        ScalarKind::String => Some(Wanted::Text(text.to_owned())),
        // Only what is written back as it was read: `007` means other things to other readers.
        ScalarKind::Int => {
            text.parse().ok().filter(|number: &i64| number.to_string() == text).map(Wanted::Int)
        }
        ScalarKind::Bool => text.parse().ok().map(Wanted::Bool),
    }
}

fn expand(text: &Text, choice: &Choice) -> String {
    let piece = |piece: &Piece| match piece {
        Piece::Literal(text) => text.clone(),
        Piece::Reference { name, default, .. } => {
            let value = choice.get(name).filter(|value| !value.is_empty());
            value.cloned().or_else(|| default.as_ref().map(|text| expand(text, choice))).unwrap_or_default()
        }
    };
    text.0.iter().map(piece).collect()
}

/// What an intent's run does.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The intent's name.
    pub name: &'a str,
    /// Its parameters.
    pub choice: &'a Choice,
    /// What it sets.
    pub edits: &'a [FileEdit],
    /// Whether it commits.
    pub commit: bool,
    /// The steps that follow.
    pub then: Option<&'a CompiledPlan>,
}

impl Asked<'_> {
    /// Returns the message of the commit: `intent NAME K=V …`.
    pub fn message(&self) -> String {
        let params = self.choice.iter().map(|(key, value)| format!(" {key}={value}"));
        format!("intent {}{}", self.name, params.collect::<String>())
    }
}

/// Returns the plan that edits, commits if asked to, and then runs the steps; with steps it is called as theirs.
pub fn compile(asked: Asked<'_>, operations: &Catalogue) -> Result<CompiledPlan, Diagnostics> {
    let place = || Place::Named(format!("intent {}", asked.name));
    let invalid = |error: stead_model::id::InvalidId| {
        Diagnostics(vec![Diagnostic::error("intent/unknown", place(), error.to_string())])
    };
    let mut plan = match asked.then {
        Some(then) => Plan { tasks: Vec::new(), ..(*then.plan).clone() },
        // The switch of the files has a lock of its own.
        None => Plan { lock: false, ..Plan::new(PlanName::parse(asked.name).map_err(invalid)?) },
    };
    let edit = [
        ("intent", asked.name.into()),
        ("edits", serde_json::to_value(asked.edits).unwrap_or_default()),
        ("commit", asked.commit.into()),
    ];
    plan.tasks.push(task(EDIT, edit.into(), None).map_err(invalid)?);
    if asked.commit {
        let message = vec![("message", json!(asked.message()))];
        plan.tasks.push(task(COMMIT, message, Some(EDIT)).map_err(invalid)?);
    }
    let mut explicit = Explicit::default();
    let before = TaskName::parse(if asked.commit { COMMIT } else { EDIT }).map_err(invalid)?;
    for then in asked.then.iter().flat_map(|then| &then.plan.tasks) {
        let mut task = then.clone();
        if task.depends_on.is_empty() {
            task.depends_on = Box::new([before.clone()]);
        }
        let index = TaskIndex(u32::try_from(plan.tasks.len()).unwrap_or(u32::MAX));
        explicit.idempotent.insert(index, task.settings.idempotent);
        plan.tasks.push(task);
    }
    let locate = |_, _: &str| place();
    check(plan, &explicit, operations, &locate, Diagnostics::default())
}

/// Returns a task of the operation that it is called after.
fn task(
    operation: &str,
    params: Vec<(&str, Value)>,
    after: Option<&str>,
) -> Result<Task, stead_model::id::InvalidId> {
    let params = params.into_iter().map(|(name, value)| (name.to_owned(), Param::Value(value)));
    let op = Op { operation: OperationName::parse(operation)?, params: params.collect() };
    let part = Part { name: None, op, when_host: Vec::new(), changed_when: None, failed_when: None };
    Ok(Task {
        name: TaskName::parse(operation)?,
        section: Section::Main,
        depends_on: after.map(TaskName::parse).transpose()?.into_iter().collect(),
        action: Action::Op(Arc::new(part)),
        settings: Arc::new(Settings::default()),
        item: None,
        hash: Digest::default(),
    })
}

#[cfg(test)]
mod tests;

//! From a YAML plan file to a [`Plan`]: variables resolved, `for_each` expanded, defaults filled in.
//!
//! Templates that only use `vars`, `env` and `item` are rendered here; those that need a run stay
//! templates. A faulty task still becomes a task as far as possible, so that the checks that follow
//! (`compile::check`) see the whole plan and every problem is told at once. What operations, graph
//! and expressions mean is judged there, not here.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde_json::Value;
use stead_model::TaskName;
use stead_model::diagnostic::{Diagnostics, Place, Source};
use stead_model::plan::{
    Action, Function, Item, Mutex, OnError, Op, Param, Part, Plan, Section, Settings, Task, TaskIndex, Undo,
};
use stead_model::plan_file::{
    ActionForm, CommandForm, MAX_TASKS, MutexForm, OpForm, PartForm, PlanFile, TaskForm, UndoForm,
};
use stead_model::yaml::{Codes, Node, NodeId};

use super::{Catalogue, CompiledPlan, Explicit, Guarded, Inputs, check};

mod places;
#[cfg(test)]
mod tests;
mod texts;

pub use places::Places;
use texts::Texts;

/// A plan that has not been checked, and what the checks need to know about its file.
#[derive(Debug)]
pub struct Draft {
    /// The plan; hashes of tasks are not filled in.
    pub plan: Plan,
    /// What the file says where the plan cannot show the difference to a default.
    pub explicit: Explicit,
    /// Where everything is in the file.
    pub places: Places,
}

/// Returns the checked plan that the YAML in `source` makes with `inputs`, or every problem of every stage at once,
/// sorted by place.
pub fn plan_file(
    source: &Source,
    inputs: &Inputs,
    catalogue: &Catalogue,
) -> Result<CompiledPlan, Diagnostics> {
    let mut diagnostics = Diagnostics::default();
    let Some(file) = PlanFile::read(source, &mut diagnostics) else { return Err(diagnostics.sorted()) };
    let Draft { plan, explicit, places } = compile(&file, inputs, &mut diagnostics);
    // Instances of a `for_each` and aliases share their text and so their problems.
    let mut said = HashSet::new();
    diagnostics
        .0
        .retain(|problem| said.insert((problem.code, problem.place.to_string(), problem.message.clone())));
    let mut outcome = check(plan, &explicit, catalogue, &|task, path| places.locate(task, path), diagnostics);
    let problems = match &mut outcome {
        Ok(compiled) => &mut compiled.warnings,
        Err(diagnostics) => &mut diagnostics.0,
    };
    // The checks know tasks by name; in a file a path leads through the document.
    for problem in problems {
        if let Place::Text { source: place, span } = &problem.place
            && place.name == source.name
        {
            problem.path = file.tree().path_at(*span);
        }
    }
    outcome
}

/// Returns the plan that `file` makes with `inputs`, every problem added to `diagnostics`.
pub fn compile(file: &PlanFile, inputs: &Inputs, diagnostics: &mut Diagnostics) -> Draft {
    compile_at_most(MAX_TASKS, file, inputs, diagnostics)
}

fn compile_at_most(limit: usize, file: &PlanFile, inputs: &Inputs, diagnostics: &mut Diagnostics) -> Draft {
    let mut plan = Plan::new(file.name.clone());
    let resolved = super::vars::resolve(file.into(), inputs, diagnostics);
    let mut texts = Texts::new(file, &resolved, diagnostics);
    plan.description = file.description.clone();
    plan.secrets = file.secrets.clone();
    plan.on_failure = file.on_failure;
    plan.limits = file.limits;
    plan.timeout = file.timeout;
    plan.finally_timeout = file.finally_timeout;
    plan.grace = file.grace;
    plan.lock = file.lock;
    plan.triggers = file.triggers.clone();
    let mut draft = Draft { plan, explicit: Explicit::default(), places: Places::new(file) };
    let mut compiler = Compiler {
        file,
        limit,
        draft: &mut draft,
        empty: HashSet::new(),
        recent: Vec::new(),
        depends_on: Vec::new(),
    };
    for index in 0..file.task_count() {
        if !compiler.task(index, &mut texts) {
            break;
        }
    }
    compiler.link();
    // What has no value is still declared: its uses are not to be called undeclared as well.
    draft.plan.vars = resolved.vars;
    draft.plan.vars.extend(resolved.broken_vars.into_iter().map(|name| (name, Value::Null)));
    draft.plan.env = resolved.env;
    draft.plan.env.extend(resolved.broken_env.into_iter().map(|name| (name, String::new())));
    draft
}

/// How many different settings are remembered to be shared: neighbours tend to agree.
const RECENT_SETTINGS: usize = 16;

struct Compiler<'f, 'p> {
    file: &'f PlanFile,
    limit: usize,
    draft: &'p mut Draft,
    /// Names of `for_each` tasks without elements.
    empty: HashSet<String>,
    recent: Vec<Arc<Settings>>,
    /// For each task its dependencies with their places, until they are linked.
    depends_on: Vec<Box<[(TaskName, NodeId)]>>,
}

impl Compiler<'_, '_> {
    /// Adds written task `index`; returns whether there is room for more.
    fn task(&mut self, index: usize, texts: &mut Texts<'_, '_>) -> bool {
        let Some(form) = self.file.task(index, texts.diagnostics) else { return true };
        let name = form.name.clone().unwrap_or_else(|| stand_in(&form));
        let Some(for_each) = form.for_each else {
            self.add(&form, name, None, texts);
            return true;
        };
        let Some(items) = texts.items(for_each) else {
            // The element is not known: one task stands for all, so that what depends on it is not called unknown.
            self.add(&form, name, Some(unknown_item()), texts);
            return true;
        };
        if items.is_empty() {
            self.empty.insert(name.as_str().to_owned());
        }
        if self.draft.plan.tasks.len() + items.len() > self.limit {
            let message = format!("with this the plan has more than {} tasks", self.limit);
            texts.diagnostics.push(for_each.bad(message).help("make fewer elements, or several plans"));
            return false;
        }
        let before = self.draft.plan.tasks.len();
        let is_empty = items.is_empty();
        for (item, place) in items {
            match name.instance(&item.key) {
                Ok(instance) => self.add(&form, instance, Some(item), texts),
                Err(_) => {
                    let message = format!("`{}` cannot be the key of a task", item.key);
                    texts.diagnostics.push(place.bad(message).help(TaskName::RULE));
                }
            }
        }
        if !is_empty && self.draft.plan.tasks.len() == before {
            self.add(&form, name, Some(unknown_item()), texts);
        }
        true
    }

    fn add(&mut self, form: &TaskForm<'_>, name: TaskName, item: Option<Item>, texts: &mut Texts<'_, '_>) {
        texts.enter(item.as_ref());
        let action = match &form.action {
            Some(ActionForm::Op(form)) => Action::Op(Arc::new(part(form, texts))),
            Some(ActionForm::Sequence(parts)) => Action::Sequence(
                parts.iter().enumerate().map(|(number, form)| named_part(number, form, texts)).collect(),
            ),
            // It has been reported; a function is what no check of operations looks at.
            None => Action::Function(Function::default()),
        };
        let index = u32::try_from(self.draft.plan.tasks.len()).expect("at most 1,000,000 tasks");
        let guarded = guarded(form, &action);
        if !guarded.is_empty() {
            self.draft.explicit.guarded.insert(TaskIndex(index), guarded);
        }
        let settings = self.settings(form, texts);
        let dependencies: Vec<(TaskName, NodeId)> =
            form.depends_on.iter().filter_map(|node| Some((texts.task_name(*node)?, node.id()))).collect();
        self.depends_on.push(dependencies.into());
        self.draft.places.add(form.node.id());
        if let Some(idempotent) = form.idempotent {
            self.draft.explicit.idempotent.insert(TaskIndex(index), idempotent);
        }
        self.draft.plan.tasks.push(Task {
            name,
            section: form.section,
            depends_on: Box::default(),
            action,
            settings,
            item: item.map(Box::new),
            hash: stead_model::plan::Digest::default(),
        });
    }

    fn settings(&mut self, form: &TaskForm<'_>, texts: &mut Texts<'_, '_>) -> Arc<Settings> {
        let tree = self.file.tree();
        let defaults = &self.file.defaults;
        let target = match (&form.target, &defaults.target) {
            (Some(nodes), _) => texts.targets(nodes.iter().copied()),
            (None, Some(ids)) => texts.targets(ids.iter().map(|id| tree.node(*id))),
            (None, None) => vec!["local".to_owned()],
        };
        let mutex = match (&form.mutex, &defaults.mutex) {
            (Some(forms), _) => forms.iter().filter_map(|form| mutex(form, texts)).collect(),
            (None, Some(forms)) => {
                forms.iter().filter_map(|form| mutex(&form.clone().map(|id| tree.node(id)), texts)).collect()
            }
            (None, None) => Vec::new(),
        };
        let inherited = match form.section {
            Section::Finally => OnError::Continue,
            Section::Main | Section::Rollback => self.file.on_error,
        };
        let mut settings = Settings {
            description: form.description.and_then(|node| texts.text(node)),
            target,
            on_empty: form.on_empty.unwrap_or_default(),
            trigger_rule: form.trigger_rule.unwrap_or_default(),
            only_if_changed: form.only_if_changed.unwrap_or_default(),
            when: form.when.clone(),
            when_host: form.when_host.clone(),
            confirm: form.confirm.and_then(|node| texts.text(node)),
            idempotent: form.idempotent.unwrap_or_default(),
            on_error: form.on_error.unwrap_or(inherited),
            retry: form.retry.clone().or_else(|| defaults.retry.clone()).unwrap_or_default(),
            timeout: form.timeout.or(defaults.timeout),
            undo: form.undo.as_ref().map(|undo| match undo {
                UndoForm::Auto => Undo::Auto,
                UndoForm::Op(form) => Undo::Op(op(form, texts)),
            }),
            interrupted: form.interrupted.unwrap_or_default(),
            host_failure: form.host_failure.or(defaults.host_failure).unwrap_or_default(),
            batch: form.batch.clone().or_else(|| defaults.batch.clone()).unwrap_or_default(),
            batch_pause: form.batch_pause.unwrap_or_default(),
            canary: form.canary,
            canary_pause: form.canary_pause.unwrap_or_default(),
            mutex,
        };
        if form.action.is_none() {
            // A function stands in for it, and functions have no hosts.
            settings.target.clear();
            settings.when_host.clear();
            settings.undo = None;
        }
        if let Some(same) = self.recent.iter().find(|recent| ***recent == settings) {
            return Arc::clone(same);
        }
        let settings = Arc::new(settings);
        if self.recent.len() == RECENT_SETTINGS {
            self.recent.remove(0);
        }
        self.recent.push(Arc::clone(&settings));
        settings
    }

    /// Writes the dependencies into the tasks: without repeats, and without those on a `for_each` task that
    /// has no elements, which is known only now that all tasks are.
    fn link(&mut self) {
        for (index, dependencies) in std::mem::take(&mut self.depends_on).into_iter().enumerate() {
            let mut seen: HashSet<&str> = HashSet::new();
            let kept: Vec<&(TaskName, NodeId)> = dependencies
                .iter()
                .filter(|(name, _)| !self.empty.contains(name.as_str()) && seen.insert(name.as_str()))
                .collect();
            self.draft.places.dependencies(index, kept.iter().map(|(_, place)| *place));
            self.draft.plan.tasks[index].depends_on =
                kept.into_iter().map(|(name, _)| name.clone()).collect();
        }
    }
}

/// Returns the parameters of a task's parts that were rendered although a condition may leave the part out.
fn guarded(form: &TaskForm<'_>, action: &Action) -> Vec<Guarded> {
    let forms: Vec<&PartForm<'_>> = match &form.action {
        Some(ActionForm::Op(part)) => vec![part],
        Some(ActionForm::Sequence(parts)) => parts.iter().collect(),
        None => Vec::new(),
    };
    let whole = !form.when.is_empty() || !form.when_host.is_empty();
    let mut found = Vec::new();
    for (number, (form, part)) in forms.into_iter().zip(action.parts()).enumerate() {
        let params = form.op.params.filter(|_| whole || !form.when_host.is_empty());
        for (key, value) in params.and_then(Node::as_map).into_iter().flatten() {
            let param = key.as_text().unwrap_or_default();
            let is_known = part.op.params.get(param).is_some_and(|param| param.as_value().is_some());
            if let Some(written) = Texts::unrendered(value).filter(|_| is_known) {
                found.push(Guarded { part: number, param: param.to_owned(), written });
            }
        }
    }
    found
}

/// Returns what stands for an element that is not known.
fn unknown_item() -> Item {
    Item { key: "0".to_owned(), value: Value::Null }
}

/// Returns a name for a task that has none, so that the rest of it can be checked.
fn stand_in(form: &TaskForm<'_>) -> TaskName {
    let span = form.node.span();
    TaskName::parse(&format!("unnamed-{}-{}", span.line, span.column))
        .expect("words and digits are a task name")
}

fn mutex(form: &MutexForm<Node<'_>>, texts: &mut Texts<'_, '_>) -> Option<Mutex> {
    Some(Mutex { name: texts.text(form.name)?, scope: form.scope })
}

/// Returns a part of a sequence; one whose name is missing, which has been reported, gets one.
fn named_part(number: usize, form: &PartForm<'_>, texts: &mut Texts<'_, '_>) -> Part {
    let mut part = part(form, texts);
    part.name = part.name.or_else(|| TaskName::parse(&format!("unnamed-{number}")).ok());
    part
}

fn part(form: &PartForm<'_>, texts: &mut Texts<'_, '_>) -> Part {
    Part {
        name: form.name.clone(),
        op: op(&form.op, texts),
        when_host: form.when_host.clone(),
        changed_when: form.changed_when.clone(),
        failed_when: form.failed_when.clone(),
    }
}

fn op(form: &OpForm<'_>, texts: &mut Texts<'_, '_>) -> Op {
    let mut params: BTreeMap<String, Param> = BTreeMap::new();
    let is_shell = form.operation.as_str() == "command.shell";
    for (key, value) in form.params.and_then(Node::as_map).into_iter().flatten() {
        let name = key.as_text().unwrap_or_default();
        let param = if is_shell && name == "script" { texts.script(value) } else { texts.param(value) };
        params.insert(name.to_owned(), param);
    }
    match &form.command {
        None => {}
        Some(CommandForm::Shell(script)) => {
            params.insert("script".to_owned(), texts.script(*script));
        }
        Some(CommandForm::Exec(words)) => {
            let mut words = words.iter().map(|word| texts.word(*word));
            if let Some(command) = words.next() {
                params.insert("command".to_owned(), command);
            }
            let args: Vec<Param> = words.collect();
            if !args.is_empty() {
                params.insert("args".to_owned(), texts::list(args));
            }
        }
    }
    Op { operation: form.operation.clone(), params }
}

/// Diagnostic code of values this module refuses.
const BAD_VALUE: &str = Codes::PLAN.bad_value;

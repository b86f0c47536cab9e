//! Texts of a task that may hold templates: rendered now if they can be, kept or refused if not.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use stead_model::TaskName;
use stead_model::diagnostic::{Diagnostic, Diagnostics, suggest};
use stead_model::plan::{Item, Param};
use stead_model::plan_file::{BAD_EXPRESSION, PlanFile, UNDECLARED};
use stead_model::yaml::{self, Node};

use super::super::vars::{Resolved, render_value};
use super::BAD_VALUE;
use crate::expr::{self, References, Scope};

/// What `compile::check` says of the same in a template that is not rendered here.
const UNQUOTED: &str =
    "a value in the script is not quoted: a shell may read it as several words or as a command";

/// Diagnostic code: a secret where others can see it.
const SECRET_IN_ARGV: &str = "plan/secret-in-argv";

/// What everything rendered at compile time may hold together, in bytes.
const RENDER_BUDGET: usize = 256 * 1024 * 1024;

/// Renders texts of tasks with variables, environment and the element of `for_each`.
pub(super) struct Texts<'r, 'd> {
    pub(super) diagnostics: &'d mut Diagnostics,
    resolved: &'r Resolved,
    var_names: BTreeSet<&'r str>,
    scope: Scope,
    /// The scope with the element of the task at hand.
    here: Scope,
    has_item: bool,
    budget: usize,
}

/// What can be done with a template now.
enum Readiness {
    Ready(References),
    /// It needs a run.
    Later(References),
    /// It uses a name whose value is missing, which has been reported.
    Broken,
}

impl<'r, 'd> Texts<'r, 'd> {
    pub(super) fn new(file: &'r PlanFile, resolved: &'r Resolved, diagnostics: &'d mut Diagnostics) -> Self {
        let scope = Scope::before_run(&resolved.vars, &resolved.env);
        let var_names = file.vars.iter().map(|var| var.name.as_str()).collect();
        Self {
            diagnostics,
            resolved,
            var_names,
            here: scope.clone(),
            scope,
            has_item: false,
            budget: RENDER_BUDGET,
        }
    }

    /// Goes to the next task, with its element if it has one.
    pub(super) fn enter(&mut self, item: Option<&Item>) {
        self.has_item = item.is_some();
        self.here = match item {
            Some(item) => self.scope.clone().with_item(&item.key, &item.value),
            None => self.scope.clone(),
        };
    }

    fn readiness(&self, text: &str) -> Result<Readiness, expr::ExprError> {
        let found = expr::template_references(text)?;
        let broken_vars = found.vars.iter().any(|var| self.resolved.broken_vars.contains(var))
            || found.dynamic.contains("vars") && !self.resolved.broken_vars.is_empty();
        let broken_env = found.env.iter().any(|env| self.resolved.broken_env.contains(env));
        if broken_vars || broken_env {
            return Ok(Readiness::Broken);
        }
        let is_known = |name: &str| matches!(name, "vars" | "env") || name == "item" && self.has_item;
        let ready = found.names.iter().all(|name| is_known(name))
            && !found.asks_dependencies
            && found.tasks_in_functions.is_empty()
            && found.unknown.is_empty();
        Ok(if ready { Readiness::Ready(found) } else { Readiness::Later(found) })
    }

    fn is_declared(&self, found: &References) -> bool {
        found.vars.iter().all(|var| self.resolved.vars.contains_key(var))
            && found.env.iter().all(|env| self.resolved.env.contains_key(env))
    }

    fn render(&mut self, node: Node<'_>, text: &str) -> Option<Value> {
        match expr::render(text, &self.here) {
            Ok(value) => {
                let size = size(&value);
                if size > self.budget {
                    if self.budget > 0 {
                        let message = format!("the plan's templates give more than {RENDER_BUDGET} bytes");
                        self.diagnostics.push(node.bad(message));
                    }
                    self.budget = 0;
                    return None;
                }
                self.budget -= size;
                Some(value)
            }
            Err(error) => {
                self.diagnostics.push(node.error(BAD_EXPRESSION, error.to_string()));
                None
            }
        }
    }

    /// Returns a parameter. A template that cannot be rendered stays one: `compile::check` judges it.
    pub(super) fn param(&mut self, node: Node<'_>) -> Param {
        match node.value() {
            yaml::Value::Text(text) if expr::is_template(text) => self.template(node, text),
            yaml::Value::List(items) => {
                let items: Vec<Param> = items.map(|item| self.param(item)).collect();
                list(items)
            }
            yaml::Value::Map(entries) => {
                let items: BTreeMap<String, Param> = entries
                    .map(|(key, value)| (key.as_text().unwrap_or_default().to_owned(), self.param(value)))
                    .collect();
                map(items)
            }
            yaml::Value::Null | yaml::Value::Bool(_) | yaml::Value::Number(_) | yaml::Value::Text(_) => {
                Param::Value(node.to_json())
            }
        }
    }

    /// Returns a parameter as it is written, if there is a template in it.
    pub(super) fn unrendered(node: Node<'_>) -> Option<Param> {
        fn written(node: Node<'_>) -> Param {
            match node.value() {
                yaml::Value::Text(text) if expr::is_template(text) => Param::Template(text.to_owned()),
                yaml::Value::List(items) => list(items.map(written).collect()),
                yaml::Value::Map(entries) => {
                    let name = |key: Node<'_>| key.as_text().unwrap_or_default().to_owned();
                    map(entries.map(|(key, value)| (name(key), written(value))).collect())
                }
                yaml::Value::Null | yaml::Value::Bool(_) | yaml::Value::Number(_) | yaml::Value::Text(_) => {
                    Param::Value(node.to_json())
                }
            }
        }
        Some(written(node)).filter(|param| param.as_value().is_none())
    }

    fn template(&mut self, node: Node<'_>, text: &str) -> Param {
        let kept = || Param::Template(text.to_owned());
        match self.readiness(text) {
            Ok(Readiness::Ready(found)) if self.is_declared(&found) => {
                self.render(node, text).map_or_else(kept, Param::Value)
            }
            Ok(Readiness::Ready(_) | Readiness::Later(_) | Readiness::Broken) | Err(_) => kept(),
        }
    }

    /// Returns a word of a command: numbers and booleans are the text they are written as.
    pub(super) fn word(&mut self, node: Node<'_>) -> Param {
        match node.value() {
            yaml::Value::Bool(_) | yaml::Value::Number(_) => Param::Value(node.raw().into()),
            yaml::Value::Null | yaml::Value::Text(_) | yaml::Value::List(_) | yaml::Value::Map(_) => {
                // What a template gives must be a word too.
                match self.param(node) {
                    Param::Value(Value::Number(number)) => Param::Value(number.to_string().into()),
                    Param::Value(Value::Bool(value)) => Param::Value(value.to_string().into()),
                    other @ (Param::Value(_) | Param::Template(_) | Param::List(_) | Param::Map(_)) => other,
                }
            }
        }
    }

    /// Returns a script for a shell. A value that is put in without `quote` gets a warning here, because what
    /// is rendered now is no template any more when the plan is checked.
    pub(super) fn script(&mut self, node: Node<'_>) -> Param {
        let param = self.param(node);
        if let (Param::Value(_), Some(text)) = (&param, node.as_text())
            && expr::is_template(text)
            && let Ok(found) = expr::template_references(text)
            && !found.unquoted.is_empty()
        {
            self.diagnostics.push(unquoted(node));
        }
        param
    }

    /// Returns a text that must be known now, such as a description.
    pub(super) fn text(&mut self, node: Node<'_>) -> Option<String> {
        let text = node.as_text()?;
        if !expr::is_template(text) {
            return Some(text.to_owned());
        }
        match self.readiness(text) {
            Ok(Readiness::Ready(found)) => {
                self.check_declared(node, &found)?;
                let value = self.render(node, text)?;
                self.scalar_text(node, value)
            }
            Ok(Readiness::Later(found)) => {
                self.report_later(node, &found);
                None
            }
            Ok(Readiness::Broken) => None,
            Err(error) => {
                self.diagnostics.push(node.error(BAD_EXPRESSION, error.to_string()));
                None
            }
        }
    }

    fn scalar_text(&mut self, node: Node<'_>, value: Value) -> Option<String> {
        match value {
            Value::String(text) => Some(text),
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(value) => Some(value.to_string()),
            Value::Null | Value::Array(_) | Value::Object(_) => {
                let found = stead_model::operation::describe(&value);
                self.diagnostics.push(node.bad(format!("expected a text, the template gives {found}")));
                None
            }
        }
    }

    fn report_later(&mut self, node: Node<'_>, found: &References) {
        if let Some(unknown) = found.unknown.first() {
            self.diagnostics
                .push(node.error(BAD_EXPRESSION, unknown.message.clone()).help(unknown.help.clone()));
            return;
        }
        if found.uses("secrets") {
            let problem = node.error(SECRET_IN_ARGV, "a secret may not be used here: it would be visible");
            self.diagnostics.push(problem.help(
                "give it to the operation in a parameter that may hold secrets, such as `env` or `stdin`",
            ));
            return;
        }
        let names: Vec<&str> =
            found.names.iter().map(String::as_str).filter(|name| !matches!(*name, "vars" | "env")).collect();
        let message = match names.first() {
            Some(name) => format!("`{name}` is not known when the plan is compiled"),
            None => "this is not known when the plan is compiled".to_owned(),
        };
        let item = if self.has_item { ", `item`" } else { "" };
        self.diagnostics.push(
            node.error(BAD_EXPRESSION, message).help(format!("here only `vars`, `env`{item} can be used")),
        );
    }

    fn check_declared(&mut self, node: Node<'_>, found: &References) -> Option<()> {
        if let Some(var) = found.vars.iter().find(|var| !self.resolved.vars.contains_key(*var)) {
            let help = suggest(var, self.var_names.iter().copied());
            self.diagnostics.push(node.error(UNDECLARED, format!("`vars.{var}` is not declared")).help(help));
            return None;
        }
        if let Some(env) = found.env.iter().find(|env| !self.resolved.env.contains_key(*env)) {
            let problem = node.error(UNDECLARED, format!("`env.{env}` is not declared"));
            self.diagnostics.push(problem.help(format!("add `{env}` to `env`")));
            return None;
        }
        Some(())
    }

    /// Returns target expressions. A template that gives a list is a union.
    pub(super) fn targets<'t>(&mut self, nodes: impl Iterator<Item = Node<'t>>) -> Vec<String> {
        let mut targets = Vec::new();
        for node in nodes {
            let Some(text) = node.as_text() else { continue };
            if !expr::is_template(text) {
                targets.push(text.to_owned());
                continue;
            }
            match self.readiness(text) {
                Ok(Readiness::Ready(found)) => {
                    let value = self.check_declared(node, &found).and_then(|()| self.render(node, text));
                    match value {
                        Some(Value::Array(items)) => {
                            targets.extend(items.into_iter().filter_map(|item| self.scalar_text(node, item)));
                        }
                        Some(value) => targets.extend(self.scalar_text(node, value)),
                        None => {}
                    }
                }
                Ok(Readiness::Later(_) | Readiness::Broken) | Err(_) => targets.extend(self.text(node)),
            }
        }
        targets
    }

    /// Returns the name of a task that is depended on.
    pub(super) fn task_name(&mut self, node: Node<'_>) -> Option<TaskName> {
        let text = self.text(node)?;
        match TaskName::parse(&text) {
            Ok(name) => Some(name),
            Err(error) => {
                self.diagnostics.push(node.bad(error.to_string()));
                None
            }
        }
    }

    /// Returns the elements of a `for_each` with the place to show for each; nothing if they cannot be known,
    /// which has been reported.
    pub(super) fn items<'t>(&mut self, node: Node<'t>) -> Option<Vec<(Item, Node<'t>)>> {
        self.enter(None);
        if let Some(text) = node.as_text() {
            let value = self.for_each_value(node, text)?;
            let items: Vec<Item> = match value {
                Value::Array(items) => {
                    let items = items.into_iter().enumerate();
                    items.map(|(index, value)| Item { key: index.to_string(), value }).collect()
                }
                Value::Object(items) => items.into_iter().map(|(key, value)| Item { key, value }).collect(),
                other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => {
                    let found = stead_model::operation::describe(&other);
                    self.diagnostics
                        .push(node.bad(format!("expected a list or a map, the template gives {found}")));
                    return None;
                }
            };
            return Some(items.into_iter().map(|item| (item, node)).collect());
        }
        let written: Vec<(String, Node<'t>, Node<'t>)> = match node.value() {
            yaml::Value::List(items) => {
                items.enumerate().map(|(index, item)| (index.to_string(), item, item)).collect()
            }
            yaml::Value::Map(entries) => entries
                .map(|(key, value)| (key.as_text().unwrap_or_default().to_owned(), key, value))
                .collect(),
            yaml::Value::Null | yaml::Value::Bool(_) | yaml::Value::Number(_) | yaml::Value::Text(_) => {
                return None;
            }
        };
        let mut items = Vec::with_capacity(written.len());
        for (key, place, node) in written {
            let value = self.known_value(node)?;
            items.push((Item { key, value }, place));
        }
        Some(items)
    }

    fn for_each_value(&mut self, node: Node<'_>, text: &str) -> Option<Value> {
        match self.readiness(text) {
            Ok(Readiness::Ready(found)) => {
                self.check_declared(node, &found)?;
                self.render(node, text)
            }
            Ok(Readiness::Later(found)) => {
                self.report_later(node, &found);
                None
            }
            Ok(Readiness::Broken) => None,
            Err(error) => {
                self.diagnostics.push(node.error(BAD_EXPRESSION, error.to_string()));
                None
            }
        }
    }

    /// Returns a written value with its templates rendered, which must be possible now.
    fn known_value(&mut self, node: Node<'_>) -> Option<Value> {
        match self.param(node) {
            Param::Value(value) => Some(value),
            Param::Template(_) | Param::List(_) | Param::Map(_) => {
                let before = self.diagnostics.0.len();
                let outcome = render_value(&node.to_json(), &self.here);
                let is_reported =
                    !self.resolved.broken_vars.is_empty() || !self.resolved.broken_env.is_empty();
                if !is_reported
                    && self.diagnostics.0.len() == before
                    && let Err(error) = outcome
                {
                    let problem = Diagnostic::error(
                        BAD_VALUE,
                        node.place(),
                        format!("the element is not known: {error}"),
                    );
                    self.diagnostics
                        .push(problem.path(node.path()).help("`for_each` may use `vars` and `env`"));
                }
                None
            }
        }
    }
}

/// Returns the warning about a value that a shell may read as more than one word.
pub(super) fn unquoted(node: Node<'_>) -> Diagnostic {
    Diagnostic::warning("plan/unquoted-shell", node.place(), UNQUOTED)
        .path(node.path())
        .help("write `{{ … | quote }}`")
}

/// Returns a list parameter: plain if all elements are.
pub(super) fn list(items: Vec<Param>) -> Param {
    if items.iter().any(|item| item.as_value().is_none()) {
        return Param::List(items);
    }
    Param::Value(items.into_iter().filter_map(into_value).collect())
}

fn map(items: BTreeMap<String, Param>) -> Param {
    if items.values().any(|item| item.as_value().is_none()) {
        return Param::Map(items);
    }
    Param::Value(items.into_iter().filter_map(|(key, item)| Some((key, into_value(item)?))).collect())
}

fn into_value(param: Param) -> Option<Value> {
    match param {
        Param::Value(value) => Some(value),
        Param::Template(_) | Param::List(_) | Param::Map(_) => None,
    }
}

/// Returns about how many bytes a value takes.
fn size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => 8 + text.len(),
        Value::Array(items) => 8 + items.iter().map(size).sum::<usize>(),
        Value::Object(items) => 8 + items.iter().map(|(key, item)| key.len() + size(item)).sum::<usize>(),
    }
}

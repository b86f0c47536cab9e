//! The values of a plan's variables: defaults, then files, then flags; then variables that use variables.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use stead_model::diagnostic::{Diagnostic, Diagnostics, Place, Source, suggest};
use stead_model::operation::describe;
use stead_model::plan_file::{Declared, PlanFile, UNDECLARED};
use stead_model::yaml::{self, Codes, Tree};

use crate::expr::{self, Scope};

/// Diagnostic code: a variable or environment variable that must be given is not.
const MISSING_VAR: &str = "plan/missing-var";
const BAD_VALUE: &str = Codes::PLAN.bad_value;
const CYCLE: &str = "plan/cycle";

/// What a run is given besides the plan file.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// The files of `--vars-file`, in order: later ones win.
    pub vars_files: Vec<Source>,
    /// The `--var` flags, in order: later ones win, and they win over files.
    pub vars: Vec<VarFlag>,
    /// The environment; only declared names are read.
    pub env: BTreeMap<String, String>,
}

/// One `--var` flag.
#[derive(Clone, Debug, PartialEq)]
pub struct VarFlag {
    /// The variable.
    pub name: String,
    /// What it is given.
    pub value: VarValue,
}

/// What a `--var` flag gives.
#[derive(Clone, Debug, PartialEq)]
pub enum VarValue {
    /// `k=v`: a text, parsed to the type of the default.
    Text(String),
    /// `k:=JSON`.
    Json(Value),
}

/// Why a `--var` argument cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidVar {
    /// Neither `k=v` nor `k:=JSON`.
    #[error("`{0}` is neither NAME=VALUE nor NAME:=JSON")]
    Form(String),
    /// The part after `:=` is not JSON.
    #[error("the value of `{0}` is not JSON: {1}")]
    Json(String, String),
}

impl VarFlag {
    /// Returns the flag that `text` is: `k=v` or `k:=JSON`.
    pub fn parse(text: &str) -> Result<Self, InvalidVar> {
        let (name, value) = text.split_once('=').ok_or_else(|| InvalidVar::Form(text.to_owned()))?;
        let (name, value) = match name.strip_suffix(':') {
            Some(name) => {
                let json = serde_json::from_str(value)
                    .map_err(|error| InvalidVar::Json(name.to_owned(), error.to_string()))?;
                (name, VarValue::Json(json))
            }
            None => (name, VarValue::Text(value.to_owned())),
        };
        if name.is_empty() {
            return Err(InvalidVar::Form(text.to_owned()));
        }
        Ok(Self { name: name.to_owned(), value })
    }

    fn place(&self) -> Place {
        Place::Named(format!("{FLAG_PLACE}{}", self.name))
    }
}

/// How the place of a problem with a flag begins.
const FLAG_PLACE: &str = "--var ";

/// Whether a problem is one of a flag, not of a file: the command line was wrong.
pub fn is_usage(diagnostic: &Diagnostic) -> bool {
    matches!(&diagnostic.place, Place::Named(name) if name.starts_with(FLAG_PLACE))
}

/// Values of variables and environment, and the names whose values could not be found.
#[derive(Debug, Default)]
pub(super) struct Resolved {
    pub(super) vars: BTreeMap<String, Value>,
    pub(super) env: BTreeMap<String, String>,
    /// Variables without a usable value; that has been reported.
    pub(super) broken_vars: BTreeSet<String>,
    /// Environment variables that are not set; that has been reported.
    pub(super) broken_env: BTreeSet<String>,
}

/// A variable before templates in it are rendered.
struct Raw {
    value: Value,
    place: Place,
    /// Given by a flag: braces in it are text.
    literal: bool,
    given: bool,
}

/// What a file declares.
#[derive(Clone, Copy, Debug)]
pub(super) struct Declarations<'f> {
    pub(super) tree: &'f Tree,
    pub(super) vars: &'f [Declared],
    pub(super) env: &'f [Declared],
}

impl<'f> From<&'f PlanFile> for Declarations<'f> {
    fn from(file: &'f PlanFile) -> Self {
        Self { tree: file.tree(), vars: &file.vars, env: &file.env }
    }
}

/// Returns the values of everything the file declares.
pub(super) fn resolve(
    declarations: Declarations<'_>,
    inputs: &Inputs,
    diagnostics: &mut Diagnostics,
) -> Resolved {
    let Declarations { tree, vars, env } = declarations;
    let mut resolved = Resolved::default();
    for declared in env {
        match inputs.env.get(&declared.name) {
            Some(value) => {
                resolved.env.insert(declared.name.clone(), value.clone());
            }
            None => {
                let message = format!("the environment variable `{}` is not set", declared.name);
                let node = tree.node(declared.value);
                diagnostics.push(node.error(MISSING_VAR, message).help("set it, or take it out of `env`"));
                resolved.broken_env.insert(declared.name.clone());
            }
        }
    }
    let mut raw: BTreeMap<&str, Raw> = BTreeMap::new();
    for declared in vars {
        let node = tree.node(declared.value);
        raw.insert(
            &declared.name,
            Raw { value: node.to_json(), place: node.place(), literal: false, given: false },
        );
    }
    let defaults: BTreeMap<&str, Value> = raw.iter().map(|(name, raw)| (*name, raw.value.clone())).collect();
    for source in &inputs.vars_files {
        from_file(source, &defaults, &mut raw, diagnostics);
    }
    for flag in &inputs.vars {
        from_flag(flag, &defaults, &mut raw, diagnostics);
    }
    for (name, raw) in &raw {
        if raw.value.is_null() && !raw.given {
            let problem = Diagnostic::error(
                MISSING_VAR,
                raw.place.clone(),
                format!("the variable `{name}` must be given"),
            );
            diagnostics.push(problem.path(format!("vars.{name}")).help(format!("add `--var {name}=…`")));
            resolved.broken_vars.insert((*name).to_owned());
        }
    }
    evaluate(&raw, &mut resolved, diagnostics);
    resolved
}

fn undeclared(place: Place, name: &str, defaults: &BTreeMap<&str, Value>) -> Diagnostic {
    Diagnostic::error(UNDECLARED, place, format!("there is no variable `{name}`"))
        .help(suggest(name, defaults.keys().copied()))
}

fn from_file<'f>(
    source: &Source,
    defaults: &BTreeMap<&'f str, Value>,
    raw: &mut BTreeMap<&'f str, Raw>,
    diagnostics: &mut Diagnostics,
) {
    let Some(tree) = yaml::read(source, Codes::PLAN, diagnostics) else { return };
    let Some(entries) = tree.root().as_map() else {
        let root = tree.root();
        diagnostics.push(root.bad(format!("expected a map of variables, found {}", root.describe())));
        return;
    };
    for (key, value) in entries {
        let name = key.as_text().unwrap_or_default();
        let Some((name, default)) = defaults.get_key_value(name) else {
            diagnostics.push(undeclared(key.place(), name, defaults));
            continue;
        };
        let json = value.to_json();
        if let Some(wanted) = wanted_kind(default)
            && wanted != kind(&json)
            && !is_template(&json)
        {
            let message = format!("the variable `{name}` is {wanted}, found {}", value.describe());
            diagnostics
                .push(Diagnostic::error(BAD_VALUE, value.place(), message).path(format!("vars.{name}")));
            continue;
        }
        raw.insert(name, Raw { value: json, place: value.place(), literal: false, given: true });
    }
}

fn from_flag<'f>(
    flag: &VarFlag,
    defaults: &BTreeMap<&'f str, Value>,
    raw: &mut BTreeMap<&'f str, Raw>,
    diagnostics: &mut Diagnostics,
) {
    let Some((name, default)) = defaults.get_key_value(flag.name.as_str()) else {
        diagnostics.push(undeclared(flag.place(), &flag.name, defaults));
        return;
    };
    let wanted = wanted_kind(default);
    let value = match &flag.value {
        VarValue::Json(value) => value.clone(),
        VarValue::Text(text) => from_text(text, default),
    };
    if let Some(wanted) = wanted
        && wanted != kind(&value)
    {
        let message = format!("the variable `{name}` is {wanted}, found {}", describe(&value));
        let help = if matches!(default, Value::Array(_) | Value::Object(_)) {
            format!("write it as JSON: --var '{name}:=…'")
        } else {
            String::new()
        };
        diagnostics.push(Diagnostic::error(BAD_VALUE, flag.place(), message).help(help));
        return;
    }
    raw.insert(name, Raw { value, place: flag.place(), literal: true, given: true });
}

/// Returns `text` as a value of the default's type, or as text if it is none.
fn from_text(text: &str, default: &Value) -> Value {
    let parsed = match default {
        Value::String(default) if !is_one_output(default) => None,
        Value::Null => None,
        Value::String(_) | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            serde_json::from_str(text).ok()
        }
    };
    parsed.unwrap_or_else(|| Value::String(text.to_owned()))
}

/// Whether a text is nothing but `{{ … }}`, so that any type may come out of it.
fn is_one_output(text: &str) -> bool {
    text.starts_with("{{") && text.ends_with("}}")
}

fn is_template(value: &Value) -> bool {
    value.as_str().is_some_and(expr::is_template)
}

/// Returns the type an override must have; any if the default is null or computed.
fn wanted_kind(default: &Value) -> Option<&'static str> {
    match default {
        Value::Null => None,
        Value::String(text) if is_one_output(text) => None,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
            Some(kind(default))
        }
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}

/// Renders variables that use others, each after those it uses. Nothing recurses over their number.
fn evaluate(raw: &BTreeMap<&str, Raw>, resolved: &mut Resolved, diagnostics: &mut Diagnostics) {
    let mut uses: BTreeMap<&str, Uses> = BTreeMap::new();
    for (name, var) in raw {
        let mut found = Uses::default();
        if !var.literal {
            found.collect(&var.value);
        }
        if found.is_template {
            if let Some(problem) = found.problem(name, var, raw, resolved) {
                diagnostics.push(problem.path(format!("vars.{name}")));
                resolved.broken_vars.insert((*name).to_owned());
                found.vars.clear();
            }
            uses.insert(name, found);
        } else if !resolved.broken_vars.contains(*name) {
            resolved.vars.insert((*name).to_owned(), var.value.clone());
        }
    }
    for name in order(&uses, raw, resolved, diagnostics) {
        let Some(used) = uses.get(name) else { continue };
        let broken = used.vars.iter().any(|var| resolved.broken_vars.contains(var))
            || used.env.iter().any(|env| resolved.broken_env.contains(env));
        if broken || resolved.broken_vars.contains(name) {
            resolved.broken_vars.insert(name.to_owned());
            continue;
        }
        // Only what it uses goes into the scope: many variables do not make each of them dear.
        let vars =
            used.vars.iter().filter_map(|var| Some((var.clone(), resolved.vars.get(var)?.clone()))).collect();
        let scope = Scope::before_run(&vars, &resolved.env);
        let var = &raw[name];
        match render_value(&var.value, &scope) {
            Ok(value) => {
                resolved.vars.insert(name.to_owned(), value);
            }
            Err(error) => {
                let message = format!("the variable `{name}` has no value: {error}");
                diagnostics.push(
                    Diagnostic::error("plan/bad-expression", var.place.clone(), message)
                        .path(format!("vars.{name}")),
                );
                resolved.broken_vars.insert(name.to_owned());
            }
        }
    }
}

/// Returns `value` with every template in it rendered. It recurses as deep as a file may nest.
pub(super) fn render_value(value: &Value, scope: &Scope) -> Result<Value, expr::ExprError> {
    Ok(match value {
        Value::String(text) if expr::is_template(text) => expr::render(text, scope)?,
        Value::Array(items) => {
            Value::Array(items.iter().map(|item| render_value(item, scope)).collect::<Result<_, _>>()?)
        }
        Value::Object(items) => Value::Object(
            items
                .iter()
                .map(|(key, item)| Ok((key.clone(), render_value(item, scope)?)))
                .collect::<Result<_, expr::ExprError>>()?,
        ),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    })
}

/// What the templates inside one variable use.
#[derive(Default)]
struct Uses {
    is_template: bool,
    vars: BTreeSet<String>,
    env: BTreeSet<String>,
    others: BTreeSet<String>,
    computed: bool,
    error: Option<String>,
}

impl Uses {
    fn collect(&mut self, value: &Value) {
        match value {
            Value::String(text) if expr::is_template(text) => {
                self.is_template = true;
                match expr::template_references(text) {
                    Ok(found) => {
                        self.computed |= found.dynamic.contains("vars") || found.dynamic.contains("env");
                        self.others.extend(
                            found
                                .names
                                .iter()
                                .filter(|name| !matches!(name.as_str(), "vars" | "env"))
                                .cloned(),
                        );
                        if let Some(unknown) = found.unknown.first() {
                            self.error.get_or_insert_with(|| unknown.message.clone());
                        }
                        self.vars.extend(found.vars);
                        self.env.extend(found.env);
                    }
                    Err(error) => self.error = Some(error.to_string()),
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.collect(item)),
            Value::Object(items) => items.values().for_each(|item| self.collect(item)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn problem(
        &self,
        name: &str,
        var: &Raw,
        raw: &BTreeMap<&str, Raw>,
        resolved: &Resolved,
    ) -> Option<Diagnostic> {
        let place = var.place.clone();
        let bad = |message: String| Some(Diagnostic::error("plan/bad-expression", place.clone(), message));
        if let Some(error) = &self.error {
            return bad(format!("the variable `{name}` has no value: {error}"));
        }
        if self.others.contains("secrets") {
            let problem = Diagnostic::error(
                "plan/secret-in-argv",
                place,
                "a variable cannot hold a secret: it would be visible",
            );
            return Some(problem.help("use `secrets.…` in the parameter that needs it"));
        }
        if let Some(other) = self.others.first() {
            return bad(format!("`{other}` is not known yet: variables may use `vars` and `env`"));
        }
        if self.computed {
            return bad("which variable is used must be written out, as in `vars.name`".to_owned());
        }
        if let Some(unknown) = self.vars.iter().find(|used| !raw.contains_key(used.as_str())) {
            return Some(
                Diagnostic::error(UNDECLARED, place, format!("`vars.{unknown}` is not declared"))
                    .help(suggest(unknown, raw.keys().copied())),
            );
        }
        let is_declared = |env: &str| resolved.env.contains_key(env) || resolved.broken_env.contains(env);
        let unknown = self.env.iter().find(|used| !is_declared(used))?;
        Some(
            Diagnostic::error(UNDECLARED, place, format!("`env.{unknown}` is not declared"))
                .help(format!("add `{unknown}` to `env`")),
        )
    }
}

/// Returns the variables with templates, each after those it uses. Cycles are reported and broken.
fn order<'f>(
    uses: &BTreeMap<&'f str, Uses>,
    raw: &BTreeMap<&'f str, Raw>,
    resolved: &mut Resolved,
    diagnostics: &mut Diagnostics,
) -> Vec<&'f str> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        Open,
        Done,
    }
    let mut marks: BTreeMap<&str, Mark> = BTreeMap::new();
    let mut ordered = Vec::with_capacity(uses.len());
    for root in uses.keys() {
        if marks.contains_key(root) {
            continue;
        }
        marks.insert(root, Mark::Open);
        let mut stack = vec![(*root, uses[root].vars.iter())];
        while let Some((name, pending)) = stack.last_mut() {
            let Some(next) = pending.next() else {
                marks.insert(name, Mark::Done);
                ordered.push(*name);
                stack.pop();
                continue;
            };
            let Some((next, used)) = uses.get_key_value(next.as_str()) else { continue };
            match marks.get(next) {
                None => {
                    marks.insert(next, Mark::Open);
                    stack.push((next, used.vars.iter()));
                }
                Some(Mark::Done) => {}
                Some(Mark::Open) => {
                    let mut path: Vec<&str> =
                        stack.iter().map(|(name, _)| *name).skip_while(|name| name != next).collect();
                    let place = raw[next].place.clone();
                    resolved.broken_vars.extend(path.iter().map(|name| (*name).to_owned()));
                    path.push(next);
                    diagnostics.push(
                        Diagnostic::error(
                            CYCLE,
                            place,
                            format!("variables use each other: {}", path.join(" -> ")),
                        )
                        .path(format!("vars.{next}"))
                        .help("write the value of one of them out"),
                    );
                }
            }
        }
    }
    ordered
}

#[cfg(test)]
mod tests;

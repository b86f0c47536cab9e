//! Whether tasks use operations as their descriptors say.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value};
use stead_model::diagnostic::suggest;
use stead_model::operation::{ParamKind, ParamSpec};
use stead_model::plan::{Action, Op, Param, Part, TaskIndex};
use stead_model::{Descriptor, Task};

use super::names::Spot;
use super::{CHANGED_WHEN, Catalogue, Checker, Guarded};

impl<'a> Checker<'a> {
    pub(super) fn action(&mut self, index: TaskIndex, task: &'a Task) {
        match &task.action {
            Action::Function(_) => {}
            Action::Op(part) => {
                self.operation(index, task, &part.op, "");
                self.outcome(index, task, part, "");
            }
            Action::Sequence(parts) => {
                if parts.is_empty() {
                    let message = format!("the sequence of `{}` is empty", task.name.base());
                    self.error(index, "sequence", "plan/bad-value", message, "give at least one part");
                }
                let mut names = BTreeSet::new();
                for (i, part) in parts.iter().enumerate() {
                    let path = format!("sequence.{i}");
                    match &part.name {
                        None => {
                            let message = format!("part {} of `{}` has no name", i + 1, task.name.base());
                            self.error(index, &path, "plan/bad-value", message, "add `name`");
                        }
                        Some(name) if !names.insert(name) => {
                            let message = format!("two parts of `{}` are called `{name}`", task.name.base());
                            self.error(
                                index,
                                &format!("{path}.name"),
                                "plan/bad-value",
                                message,
                                "rename one",
                            );
                        }
                        Some(_) => {}
                    }
                    self.operation(index, task, &part.op, &path);
                    self.outcome(index, task, part, &path);
                }
            }
        }
    }

    /// Checks one operation; `base` is the path of what holds it, empty for the task itself.
    pub(super) fn operation(&mut self, index: TaskIndex, task: &'a Task, op: &'a Op, base: &str) {
        let name = op.operation.as_str();
        let Some(descriptor) = self.catalogue.get(name) else {
            let help = suggest(name, self.catalogue.names());
            let message = format!("there is no operation `{name}`");
            self.error(index, &join(base, "op"), "plan/unknown-operation", message, help);
            // Its parameters cannot be judged, what they say can.
            for (param, value) in &op.params {
                let path = join(base, &format!("params.{param}"));
                value.each_template(&path, &mut |path, text| {
                    self.template(index, task, path, text, Spot::Parameter { secret: true, shell: false });
                });
            }
            return;
        };
        for (param, value) in &op.params {
            // Made only where it is told: most parameters are right, and there are many.
            let path = || join(base, &format!("params.{param}"));
            let Some(spec) = descriptor.param(param) else {
                let help = match param.as_str() {
                    CHANGED_WHEN | "failed_when" => {
                        format!("`{param}` is a key of the task, beside `params`")
                    }
                    _ => suggest(param, descriptor.params.iter().map(|spec| spec.name)),
                };
                let message = format!("operation `{name}` has no parameter `{param}`");
                self.error(index, &path(), "plan/bad-param", message, help);
                continue;
            };
            if param == CHANGED_WHEN {
                let message = format!("the `{param}` of `{name}` is no expression, or there are two of it");
                let help = "say it once, among the parameters or beside them, and without `{{ }}`";
                self.error(index, &path(), "plan/bad-param", message, help);
                continue;
            }
            self.parameter(index, descriptor, spec, value, &path);
            let shell = name == "command.shell" && param == "script";
            if value.as_value().is_none() {
                value.each_template(&path(), &mut |path, text| {
                    self.template(index, task, path, text, Spot::Parameter { secret: spec.secret, shell });
                });
            }
        }
        self.missing_parameters(index, descriptor, &op.params, base);
    }

    fn parameter(
        &mut self,
        index: TaskIndex,
        descriptor: &Descriptor,
        spec: &ParamSpec,
        value: &Param,
        path: &dyn Fn() -> String,
    ) {
        let (operation, param) = (descriptor.name, spec.name);
        if is_command_line(descriptor, param)
            && value.as_value().and_then(Value::as_str).is_some_and(is_blank)
        {
            let message = format!("the `{param}` of `{operation}` is empty");
            self.error(index, &path(), "plan/empty-command", message, "say what is to run");
            return;
        }
        for (inner, problem) in problems(spec, value) {
            let message = format!("parameter `{param}` of `{operation}`: {problem}");
            self.error(index, &format!("{}{inner}", path()), "plan/bad-param", message, spec.doc);
        }
    }

    fn missing_parameters(
        &mut self,
        index: TaskIndex,
        descriptor: &Descriptor,
        given: &BTreeMap<String, Param>,
        base: &str,
    ) {
        let operation = descriptor.name;
        let is_given =
            |param: &str| given.get(param).is_some_and(|value| value.as_value() != Some(&Value::Null));
        let path = join(base, "params");
        for spec in descriptor.params.iter().filter(|spec| spec.required && !given.contains_key(spec.name)) {
            let (code, message) = if is_command_line(descriptor, spec.name) {
                ("plan/empty-command", format!("`{operation}` has no `{}`", spec.name))
            } else {
                ("plan/bad-param", format!("parameter `{}` of `{operation}` is missing", spec.name))
            };
            self.error(index, &path, code, message, spec.doc);
        }
        for group in descriptor.exclusive {
            let both: Vec<&str> = group.iter().copied().filter(|param| is_given(param)).collect();
            if both.len() > 1 {
                let message =
                    format!("parameters {} of `{operation}` exclude each other", listed(&both, "and"));
                self.error(index, &path, "plan/bad-param", message, "keep one of them");
            }
        }
        for group in descriptor.one_of {
            if !group.iter().any(|param| is_given(param)) {
                let message = format!("`{operation}` needs {}", listed(group, "or"));
                self.error(index, &path, "plan/bad-param", message, "give one of them");
            }
        }
        let value_of = |param: &str| {
            let value = given.get(param).filter(|_| is_given(param))?;
            Some(value.as_value().unwrap_or(&Value::Null))
        };
        for (names, needed) in descriptor.needs() {
            // Said already.
            let is_told = descriptor
                .one_of
                .iter()
                .any(|group| group.contains(&names[0]) && !group.iter().any(|param| is_given(param)));
            if is_told || names.iter().any(|param| is_given(param)) || !needed.holds(value_of) {
                continue;
            }
            let message = format!("`{operation}` needs {} {}", listed(&names, "or"), needed.describe());
            let help = descriptor.param(names[0]).map_or("", |spec| spec.doc);
            self.error(index, &path, "plan/bad-param", message, help);
        }
    }
}

/// Puts templates back that give what their operations refuse, where a condition may leave the part out: whether it is
/// ever given is known when the condition is. It is judged when it is rendered again.
pub(super) fn judge_when_it_runs(task: &mut Task, guarded: &[Guarded], catalogue: &Catalogue) {
    let is_refused = |part: &Part, guarded: &Guarded| {
        let descriptor = catalogue.get(part.op.operation.as_str());
        let spec = descriptor.and_then(|descriptor| descriptor.param(&guarded.param));
        let value = part.op.params.get(&guarded.param);
        spec.zip(value).is_some_and(|(spec, value)| !problems(spec, value).is_empty())
    };
    for guarded in guarded {
        let part = match &mut task.action {
            Action::Op(part) => Arc::make_mut(part),
            Action::Sequence(parts) => match Arc::make_mut(parts).get_mut(guarded.part) {
                Some(part) => part,
                None => continue,
            },
            Action::Function(_) => continue,
        };
        if is_refused(part, guarded) {
            part.op.params.insert(guarded.param.clone(), guarded.written.clone());
        }
    }
}

/// Returns what is wrong with a parameter, each problem with the path inside.
fn problems(spec: &ParamSpec, value: &Param) -> Vec<(String, String)> {
    let mut problems = refuse(spec.kind, value);
    // What a judge says of a value of another kind would mean nothing; templates are judged when they are rendered.
    if let (true, Some(judge), Some(value)) = (problems.is_empty(), spec.judge, value.as_value())
        && let Some(problem) = judge(value)
    {
        let bare = problem.strip_prefix(&format!("`{}`", spec.name));
        let bare = bare.and_then(|rest| rest.strip_prefix(", ").or_else(|| rest.strip_prefix(": ")));
        problems.push((String::new(), bare.unwrap_or(&problem).to_owned()));
    }
    problems
}

/// Whether `param` is what a command runs.
fn is_command_line(descriptor: &Descriptor, param: &str) -> bool {
    descriptor.name.starts_with("command.") && matches!(param, "command" | "script")
}

fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

pub(super) fn join(base: &str, path: &str) -> String {
    if base.is_empty() { path.to_owned() } else { format!("{base}.{path}") }
}

fn listed(names: &[&str], word: &str) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match &quoted[..] {
        [] => String::new(),
        [one] => one.clone(),
        [others @ .., last] => format!("{} {word} {last}", others.join(", ")),
    }
}

/// Returns why `value` does not fit, each problem with the path inside. Templates fit until they are rendered.
fn refuse(kind: ParamKind, value: &Param) -> Vec<(String, String)> {
    match value {
        Param::Template(_) => Vec::new(),
        Param::Value(value) => {
            whole(kind, value).map(|problem| (String::new(), problem)).into_iter().collect()
        }
        Param::List(items) => {
            let takes_lists = matches!(
                kind,
                ParamKind::TextList
                    | ParamKind::NonEmptyTextList
                    | ParamKind::IntList(..)
                    | ParamKind::TextOrList
                    | ParamKind::Lines
                    | ParamKind::Addresses
                    | ParamKind::Any
            );
            if !takes_lists {
                return whole(kind, &Value::Array(Vec::new()))
                    .map(|problem| (String::new(), problem))
                    .into_iter()
                    .collect();
            }
            let judge = |item: &Param| kind.refuse(&Value::Array(vec![stand_in(item)?]));
            let refused =
                items.iter().enumerate().filter_map(|(i, item)| Some((format!(".{i}"), judge(item)?)));
            refused.collect()
        }
        Param::Map(items) => {
            if !matches!(kind, ParamKind::TextMap | ParamKind::Map | ParamKind::Any) {
                return whole(kind, &Value::Object(Map::new()))
                    .map(|problem| (String::new(), problem))
                    .into_iter()
                    .collect();
            }
            let judge = |key: &str, item: &Param| {
                kind.refuse(&Value::Object(Map::from_iter([(key.to_owned(), stand_in(item)?)])))
            };
            let refused = items.iter().filter_map(|(key, item)| Some((format!(".{key}"), judge(key, item)?)));
            refused.collect()
        }
    }
}

fn whole(kind: ParamKind, value: &Value) -> Option<String> {
    kind.refuse(value).or_else(|| match (kind, value) {
        (ParamKind::Regex, Value::String(text)) => regex::Regex::new(text).err().map(|error| {
            // The last line says what is wrong; those before draw it.
            let text = error.to_string();
            format!("not a regular expression: {}", text.lines().last().unwrap_or_default().trim())
        }),
        _ => None,
    })
}

/// Returns a value to judge an element of a list or map by; nothing for a template.
fn stand_in(item: &Param) -> Option<Value> {
    match item {
        Param::Template(_) => None,
        Param::Value(value) => Some(value.clone()),
        Param::List(_) => Some(Value::Array(Vec::new())),
        Param::Map(_) => Some(Value::Object(Map::new())),
    }
}

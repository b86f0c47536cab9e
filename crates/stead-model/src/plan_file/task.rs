//! One task as it is written.

use std::time::Duration;

use super::keys::{
    INTERRUPTED, MUTEX_KEYS, MUTEX_SCOPE, ON_EMPTY, PART_KEYS, TASK_KEYS, TRIGGER_RULE, UNDO_KEYS,
};
use super::policy::{self, ErrorForm};
use super::{EMPTY_COMMAND, UNKNOWN_OPERATION};
use crate::id::{OperationName, TaskName};
use crate::plan::{
    Expression, Guard, HostFailure, Interrupted, MutexScope, OnEmpty, OnError, OnlyIfChanged, Retry, Section,
    Size, TriggerRule,
};
use crate::yaml::{Fields, Node, Walk};

/// One task as it is written. What is not written, or not usable, is `None`.
#[derive(Clone, Debug)]
pub struct TaskForm<'t> {
    /// The task's map.
    pub node: Node<'t>,
    /// `tasks` or `finally`.
    pub section: Section,
    /// Its name.
    pub name: Option<TaskName>,
    /// What it is for; may hold templates.
    pub description: Option<Node<'t>>,
    /// A list, a map or a template.
    pub for_each: Option<Node<'t>>,
    /// Names of tasks; may hold templates.
    pub depends_on: Vec<Node<'t>>,
    /// What it does; `None` only if that is faulty, which has been reported.
    pub action: Option<ActionForm<'t>>,
    /// Target expressions; may hold templates.
    pub target: Option<Vec<Node<'t>>>,
    /// What to do if no host matches.
    pub on_empty: Option<OnEmpty>,
    /// When it runs.
    pub trigger_rule: Option<TriggerRule>,
    /// Whether it wants something changed before it.
    pub only_if_changed: Option<OnlyIfChanged>,
    /// All must be true.
    pub when: Vec<Guard>,
    /// Judged per host.
    pub when_host: Vec<Guard>,
    /// Asked before it runs; may hold templates.
    pub confirm: Option<Node<'t>>,
    /// Whether it may simply be run again.
    pub idempotent: Option<bool>,
    /// What its failure does to the run.
    pub on_error: Option<OnError>,
    /// How often it is tried again, the short form `on_error: {retry: n}` included.
    pub retry: Option<Retry>,
    /// Limit of one attempt on one host.
    pub timeout: Option<Duration>,
    /// How it is undone.
    pub undo: Option<UndoForm<'t>>,
    /// What resume does with an attempt that was cut off.
    pub interrupted: Option<Interrupted>,
    /// How many hosts may fail.
    pub host_failure: Option<HostFailure>,
    /// Sizes of the batches.
    pub batch: Option<Vec<Size>>,
    /// Between batches.
    pub batch_pause: Option<Duration>,
    /// Hosts that go first.
    pub canary: Option<Size>,
    /// After the canary.
    pub canary_pause: Option<Duration>,
    /// Names held while it runs.
    pub mutex: Option<Vec<MutexForm<Node<'t>>>>,
}

/// What a task does.
#[derive(Clone, Debug)]
pub enum ActionForm<'t> {
    /// One operation.
    Op(PartForm<'t>),
    /// Several.
    Sequence(Vec<PartForm<'t>>),
}

/// One operation of a task.
#[derive(Clone, Debug)]
pub struct PartForm<'t> {
    /// Its name, in a sequence.
    pub name: Option<TaskName>,
    /// What is done.
    pub op: OpForm<'t>,
    /// Judged per host, in a sequence.
    pub when_host: Vec<Guard>,
    /// Decides `changed`.
    pub changed_when: Option<Expression>,
    /// Decides failure.
    pub failed_when: Option<Expression>,
}

/// An operation with its parameters; texts may hold templates.
#[derive(Clone, Debug)]
pub struct OpForm<'t> {
    /// Which operation.
    pub operation: OperationName,
    /// The short form, if it was used.
    pub command: Option<CommandForm<'t>>,
    /// The `params` map.
    pub params: Option<Node<'t>>,
}

/// A command in its short form.
#[derive(Clone, Debug)]
pub enum CommandForm<'t> {
    /// `exec`: the program and its arguments, at least one.
    Exec(Vec<Node<'t>>),
    /// `shell`: the script.
    Shell(Node<'t>),
}

/// How a task is undone.
#[derive(Clone, Debug)]
pub enum UndoForm<'t> {
    /// By the operation's own inverse.
    Auto,
    /// By this operation.
    Op(OpForm<'t>),
}

/// A mutex; its name may hold templates.
#[derive(Clone, Debug)]
pub struct MutexForm<N> {
    /// Its name.
    pub name: N,
    /// For how long and where it is held.
    pub scope: MutexScope,
}

impl<N> MutexForm<N> {
    /// Returns it with its name changed by `change`.
    pub fn map<M>(self, change: impl FnOnce(N) -> M) -> MutexForm<M> {
        MutexForm { name: change(self.name), scope: self.scope }
    }
}

impl<'t> TaskForm<'t> {
    pub(super) fn read(node: Node<'t>, section: Section, walk: &mut Walk<'_>) -> Option<Self> {
        let fields = walk.map(node, &TASK_KEYS)?;
        let get = |key: &str| fields.get(key);
        let (on_error, retry) = failure(walk, fields, section);
        let duration = |walk: &mut Walk<'_>, key: &str| get(key).and_then(|node| walk.duration(node));
        Some(Self {
            node,
            section,
            name: get("name").and_then(|node| task_name(walk, node)),
            description: get("description").filter(|node| walk.text(*node).is_some()),
            for_each: get("for_each").filter(|node| for_each(walk, *node)),
            depends_on: get("depends_on").map(|node| texts(walk, node, "task name")).unwrap_or_default(),
            action: action(walk, fields),
            target: get("target").map(|node| texts(walk, node, "target")),
            on_empty: get("on_empty").and_then(|node| walk.choice(node, ON_EMPTY)),
            trigger_rule: get("trigger_rule").and_then(|node| walk.choice(node, TRIGGER_RULE)),
            only_if_changed: get("only_if_changed").and_then(|node| policy::only_if_changed(walk, node)),
            when: get("when").map(|node| policy::guards(walk, node)).unwrap_or_default(),
            when_host: get("when_host").map(|node| policy::guards(walk, node)).unwrap_or_default(),
            confirm: get("confirm").filter(|node| walk.full_text(*node).is_some()),
            idempotent: get("idempotent").and_then(|node| walk.boolean(node)),
            on_error,
            retry,
            timeout: duration(walk, "timeout"),
            undo: get("undo").and_then(|node| undo(walk, node)),
            interrupted: get("interrupted").and_then(|node| walk.choice(node, INTERRUPTED)),
            host_failure: get("host_failure").and_then(|node| policy::host_failure(walk, node)),
            batch: get("batch").map(|node| policy::sizes(walk, node)),
            batch_pause: duration(walk, "batch_pause"),
            canary: get("canary").and_then(|node| policy::size(walk, node)),
            canary_pause: duration(walk, "canary_pause"),
            mutex: get("mutex").map(|node| mutexes(walk, node)),
        })
    }
}

/// Reads a written task name: a word; `name[key]` is what `for_each` makes.
fn task_name(walk: &mut Walk<'_>, node: Node<'_>) -> Option<TaskName> {
    let name: TaskName = walk.id(node)?;
    if name.as_str().contains('[') {
        let problem = node.bad(format!("`{name}` is not a task name: {}", TaskName::RULE));
        walk.report(problem.help("names with `[key]` are made by `for_each`"));
        return None;
    }
    Some(name)
}

fn for_each(walk: &mut Walk<'_>, node: Node<'_>) -> bool {
    if node.as_list().is_some() || node.as_map().is_some() {
        return true;
    }
    if node.as_text().is_some_and(|text| text.contains("{{")) {
        return true;
    }
    let problem = node.bad(format!("expected a list, a map or a template, found {}", node.describe()));
    walk.report(problem.help("such as `for_each: [a, b]` or `for_each: \"{{ vars.items }}\"`"));
    false
}

/// Reads one text or a list of texts, none of them empty.
pub(super) fn texts<'t>(walk: &mut Walk<'_>, node: Node<'t>, what: &str) -> Vec<Node<'t>> {
    if node.as_map().is_some() {
        walk.report(node.bad(format!("expected a {what} or a list of them, found a map")));
        return Vec::new();
    }
    let nodes = walk.one_or_many(node);
    nodes.into_iter().filter(|node| walk.full_text(*node).is_some()).collect()
}

fn failure(walk: &mut Walk<'_>, fields: Fields<'_>, section: Section) -> (Option<OnError>, Option<Retry>) {
    let written = fields.get("retry");
    let retry = written.and_then(|node| policy::retry(walk, node));
    let Some(node) = fields.get("on_error") else { return (None, retry) };
    match policy::on_error(walk, node) {
        None => (None, retry),
        Some(ErrorForm::Word(OnError::StopAll)) if section == Section::Finally => {
            let problem = node.bad("`finally` tasks always run to the end: `stop_all` is not possible there");
            walk.report(problem.help("leave it out; it is `continue` in `finally`"));
            (None, retry)
        }
        Some(ErrorForm::Word(word)) => (Some(word), retry),
        Some(ErrorForm::Retry(times)) => match written {
            None => (None, Some(Retry::times(times))),
            Some(other) => {
                let problem = node.bad("`on_error: {retry: n}` is short for `retry`, which is given as well");
                walk.report(problem.related(other.place(), "`retry` here").help("keep `retry`"));
                (None, retry)
            }
        },
    }
}

fn action<'t>(walk: &mut Walk<'_>, fields: Fields<'t>) -> Option<ActionForm<'t>> {
    let Some(sequence) = fields.get("sequence") else {
        return Some(ActionForm::Op(PartForm {
            name: None,
            op: op(walk, fields, "a task", &["op", "exec", "shell", "sequence"])?,
            when_host: Vec::new(),
            changed_when: fields.get("changed_when").and_then(|node| policy::expression(walk, node)),
            failed_when: fields.get("failed_when").and_then(|node| policy::expression(walk, node)),
        }));
    };
    for key in ["op", "exec", "shell", "params", "changed_when", "failed_when"] {
        if let Some(name) = fields.node().key(key) {
            let problem = name.bad(format!("a task with `sequence` cannot have `{key}`"));
            walk.report(
                problem.related(sequence.place(), "the sequence").help("put it in a part of the sequence"),
            );
        }
    }
    let items = walk.list(sequence, "parts")?;
    if items.len() == 0 {
        walk.report(sequence.bad("a sequence needs at least one part"));
        return None;
    }
    let count = items.len();
    let parts: Vec<PartForm<'t>> = items.filter_map(|node| part(walk, node)).collect();
    // A faulty part would shift the numbers of those after it, and with them their places.
    (parts.len() == count).then_some(ActionForm::Sequence(parts))
}

fn part<'t>(walk: &mut Walk<'_>, node: Node<'t>) -> Option<PartForm<'t>> {
    let fields = walk.map(node, &PART_KEYS)?;
    let name = fields.get("name").and_then(|node| task_name(walk, node));
    let when_host = fields.get("when_host").map(|node| policy::guards(walk, node)).unwrap_or_default();
    let changed_when = fields.get("changed_when").and_then(|node| policy::expression(walk, node));
    let failed_when = fields.get("failed_when").and_then(|node| policy::expression(walk, node));
    let op = op(walk, fields, "a part", &["op", "exec", "shell"])?;
    Some(PartForm { name, op, when_host, changed_when, failed_when })
}

fn undo<'t>(walk: &mut Walk<'_>, node: Node<'t>) -> Option<UndoForm<'t>> {
    if node.as_text() == Some("auto") {
        return Some(UndoForm::Auto);
    }
    if node.as_map().is_none() {
        let problem = node.bad(format!("expected `auto` or an action, found {}", node.describe()));
        walk.report(problem.help("such as `undo: auto` or `undo: {exec: [rm, /tmp/x]}`"));
        return None;
    }
    let fields = walk.map(node, &UNDO_KEYS)?;
    op(walk, fields, "an undo", &["op", "exec", "shell"]).map(UndoForm::Op)
}

/// Reads the one operation of a map that has `op`, `exec` or `shell`.
fn op<'t>(walk: &mut Walk<'_>, fields: Fields<'t>, what: &str, forms: &[&str]) -> Option<OpForm<'t>> {
    let given: Vec<&str> = forms.iter().copied().filter(|key| fields.get(key).is_some()).collect();
    let [form] = given[..] else {
        let list = forms.iter().map(|form| format!("`{form}`")).collect::<Vec<_>>().join(", ");
        let written = given.iter().filter_map(|key| fields.node().key(key));
        let problem = match written.max_by_key(|key| key.span().start) {
            None => fields.get("name").unwrap_or(fields.node()).bad(format!("{what} needs one of {list}")),
            Some(key) => key.bad(format!("{what} has exactly one of {list}, not {}", given.join(" and "))),
        };
        walk.report(problem);
        return None;
    };
    let params = fields.get("params").filter(|node| {
        if node.as_map().is_none() {
            walk.report(node.bad(format!("expected a map of parameters, found {}", node.describe())));
        }
        node.as_map().is_some()
    });
    let value = fields.get(form)?;
    let (operation, command) = match form {
        "exec" => ("command.exec", Some(exec(walk, value)?)),
        "shell" => {
            walk.text(value)?;
            ("command.shell", Some(CommandForm::Shell(value)))
        }
        _ => (walk.full_text(value)?, None),
    };
    let taken: &[&str] = match &command {
        Some(CommandForm::Exec(_)) => &["command", "args"],
        Some(CommandForm::Shell(_)) => &["script"],
        None => &[],
    };
    for name in taken {
        if let Some(key) = params.and_then(|params| params.key(name)) {
            walk.report(key.bad(format!("`{form}` already gives `{name}`")).related(value.place(), "here"));
        }
    }
    match OperationName::parse(operation) {
        Ok(operation) => Some(OpForm { operation, command, params }),
        Err(error) => {
            walk.report(value.error(UNKNOWN_OPERATION, error.to_string()));
            None
        }
    }
}

fn exec<'t>(walk: &mut Walk<'_>, node: Node<'t>) -> Option<CommandForm<'t>> {
    let Some(items) = node.as_list() else {
        let problem =
            node.bad(format!("expected a list, the program and its arguments, found {}", node.describe()));
        walk.report(problem.help("write `exec: [program, argument]`, or use `shell` for a command line"));
        return None;
    };
    if items.len() == 0 {
        walk.report(
            node.error(EMPTY_COMMAND, "the command is empty").help("write `exec: [program, argument]`"),
        );
        return None;
    }
    let count = items.len();
    let words: Vec<Node<'t>> = items.filter(|node| walk.text_of_scalar(*node).is_some()).collect();
    (words.len() == count).then_some(CommandForm::Exec(words))
}

/// Reads one mutex or a list of them.
pub(super) fn mutexes<'t>(walk: &mut Walk<'_>, node: Node<'t>) -> Vec<MutexForm<Node<'t>>> {
    walk.one_or_many(node).into_iter().filter_map(|node| mutex(walk, node)).collect()
}

fn mutex<'t>(walk: &mut Walk<'_>, node: Node<'t>) -> Option<MutexForm<Node<'t>>> {
    if node.as_map().is_none() {
        walk.full_text(node)?;
        return Some(MutexForm { name: node, scope: MutexScope::Run });
    }
    let fields = walk.map(node, &MUTEX_KEYS)?;
    let scope = fields.get("scope").and_then(|node| walk.choice(node, MUTEX_SCOPE)).unwrap_or_default();
    let name = fields.get("name")?;
    walk.full_text(name)?;
    Some(MutexForm { name, scope })
}

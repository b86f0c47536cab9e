//! The YAML plan file: its keys, their values and rules, before any template is rendered.
//!
//! [`PlanFile::read`] checks the top level; [`PlanFile::task`] reads one task at a time, so that a file
//! of a million tasks is never held twice. Texts that may hold templates stay [`Node`]s of the tree,
//! which know their places. What needs names of other tasks, operations or expressions to be judged is
//! left to `stead-engine`'s `compile`.

pub mod keys;
mod policy;
mod task;
#[cfg(test)]
pub(crate) mod tests;
mod trigger;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::diagnostic::{Diagnostics, Place, Source};
use crate::id::PlanName;
use crate::plan::{HostFailure, Limits, OnError, OnFailure, Retry, SecretRef, Section, Size, Trigger};
use crate::yaml::{self, Codes, Fields, Node, NodeId, Tree, Walk};

use keys::{DEFAULTS_KEYS, LIMITS_KEYS, MAX_PARALLEL, ON_ERROR, ON_FAILURE, PLAN_KEYS, SECRET_KEYS};
pub(crate) use policy::retry;
pub use task::{ActionForm, CommandForm, MutexForm, OpForm, PartForm, TaskForm, UndoForm};

/// The most tasks a plan may have, those made by `for_each` counted.
pub const MAX_TASKS: usize = 1_000_000;

/// Diagnostic code: an expression that is none, or written with braces.
pub const BAD_EXPRESSION: &str = "plan/bad-expression";
/// Diagnostic code: a name that is used but not declared.
pub const UNDECLARED: &str = "plan/undeclared";
/// Diagnostic code: a command without a program, or an empty script.
pub const EMPTY_COMMAND: &str = "plan/empty-command";
/// Diagnostic code: an operation there is not.
pub const UNKNOWN_OPERATION: &str = "plan/unknown-operation";

/// A plan file whose top level has been read.
#[derive(Clone, Debug)]
pub struct PlanFile {
    tree: Arc<Tree>,
    /// The plan's name; `unnamed` if the file's is not usable.
    pub name: PlanName,
    /// What it is for.
    pub description: Option<String>,
    /// Declared variables in written order.
    pub vars: Vec<Declared>,
    /// Declared environment variables in written order.
    pub env: Vec<Declared>,
    /// Where secrets come from.
    pub secrets: BTreeMap<String, SecretRef>,
    /// Settings of tasks that do not set them themselves.
    pub defaults: Defaults,
    /// What a failed task does to the run.
    pub on_error: OnError,
    /// What happens to changes of a failed run.
    pub on_failure: OnFailure,
    /// How much may run at once.
    pub limits: Limits,
    /// Limit of the main part.
    pub timeout: Option<Duration>,
    /// Limit of the `finally` part.
    pub finally_timeout: Duration,
    /// How long a cancelled attempt may take before it is killed.
    pub grace: Duration,
    /// Whether the run locks its targets.
    pub lock: bool,
    /// What starts runs of this plan on a server.
    pub triggers: Vec<Trigger>,
    /// Where each of them is.
    pub trigger_places: Vec<NodeId>,
    tasks: Vec<NodeId>,
    finally: Vec<NodeId>,
}

/// A name the plan declares.
#[derive(Clone, Debug)]
pub struct Declared {
    /// The name.
    pub name: String,
    /// Its value (of a variable), or the name itself.
    pub value: NodeId,
}

/// The `defaults` block.
#[derive(Clone, Debug, Default)]
pub struct Defaults {
    /// Its place, if it is there.
    pub node: Option<NodeId>,
    /// Target expressions, as written; may hold templates.
    pub target: Option<Vec<NodeId>>,
    /// Limit of one attempt on one host.
    pub timeout: Option<Duration>,
    /// How often a failed attempt is tried again.
    pub retry: Option<Retry>,
    /// How many hosts may fail.
    pub host_failure: Option<HostFailure>,
    /// Sizes of the batches.
    pub batch: Option<Vec<Size>>,
    /// Names held while a task runs.
    pub mutex: Option<Vec<MutexForm<NodeId>>>,
}

impl PlanFile {
    /// Returns the plan file `source` holds, problems of its top level added to `diagnostics`; nothing
    /// if it is not YAML or no map.
    pub fn read(source: &Source, diagnostics: &mut Diagnostics) -> Option<Self> {
        let tree = Arc::new(yaml::read(source, Codes::PLAN, diagnostics)?);
        let mut walk = Walk::new(diagnostics);
        let fields = walk.map(tree.root(), &PLAN_KEYS)?;
        if let Some(node) = fields.get("api_version") {
            api_version(&mut walk, node);
        }
        let name = fields.get("name").and_then(|node| walk.id(node));
        let secrets = secrets(&mut walk, fields);
        let vars = vars(&mut walk, fields);
        let (triggers, trigger_places) = trigger::triggers(&mut walk, fields);
        let duration = |walk: &mut Walk<'_>, key: &str| fields.get(key).and_then(|node| walk.duration(node));
        let file = Self {
            name: name.unwrap_or_else(|| PlanName::parse("unnamed").expect("a word is a plan name")),
            description: fields.get("description").and_then(|node| walk.text(node)).map(str::to_owned),
            vars,
            env: env(&mut walk, fields),
            secrets,
            defaults: defaults(&mut walk, fields),
            on_error: fields.get("on_error").and_then(|node| walk.choice(node, ON_ERROR)).unwrap_or_default(),
            on_failure: fields
                .get("on_failure")
                .and_then(|node| walk.choice(node, ON_FAILURE))
                .unwrap_or_default(),
            limits: limits(&mut walk, fields),
            timeout: duration(&mut walk, "timeout"),
            finally_timeout: duration(&mut walk, "finally_timeout").unwrap_or(Duration::from_secs(300)),
            grace: duration(&mut walk, "grace").unwrap_or(Duration::from_secs(10)),
            lock: fields.get("lock").and_then(|node| walk.boolean(node)).unwrap_or(true),
            triggers,
            trigger_places,
            tasks: task_nodes(&mut walk, fields, "tasks"),
            finally: task_nodes(&mut walk, fields, "finally"),
            tree: Arc::clone(&tree),
        };
        let count = file.task_count();
        if count > MAX_TASKS {
            let node = fields.get("tasks").unwrap_or(fields.node());
            walk.report(node.bad(format!("the plan has {count} tasks; at most {MAX_TASKS} are allowed")));
            return None;
        }
        Some(file)
    }

    /// Returns the tree the file was read into.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// Returns the number of written tasks, `finally` included.
    pub fn task_count(&self) -> usize {
        self.tasks.len() + self.finally.len()
    }

    /// Returns written task `index` (those of `finally` last), its problems added to `diagnostics`.
    /// Nothing if it is no map, or there are not so many.
    pub fn task(&self, index: usize, diagnostics: &mut Diagnostics) -> Option<TaskForm<'_>> {
        let (section, id) = match self.tasks.get(index) {
            Some(id) => (Section::Main, *id),
            None => (Section::Finally, *self.finally.get(index - self.tasks.len())?),
        };
        TaskForm::read(self.tree.node(id), section, &mut Walk::new(diagnostics))
    }

    /// Returns where the file as a whole is.
    pub fn place(&self) -> Place {
        self.tree.root().key("name").unwrap_or(self.tree.root()).place()
    }
}

/// Reports an `api_version` that is not `v1`.
pub(crate) fn api_version(walk: &mut Walk<'_>, node: Node<'_>) {
    if node.as_text() != Some("v1") {
        walk.report(
            node.bad(format!("expected `v1`, found {}", node.describe())).help("write `api_version: v1`"),
        );
    }
}

fn task_nodes(walk: &mut Walk<'_>, fields: Fields<'_>, key: &str) -> Vec<NodeId> {
    let Some(node) = fields.get(key) else { return Vec::new() };
    walk.list(node, "tasks").map(|items| items.map(Node::id).collect()).unwrap_or_default()
}

pub(crate) fn vars(walk: &mut Walk<'_>, fields: Fields<'_>) -> Vec<Declared> {
    let Some(node) = fields.get("vars") else { return Vec::new() };
    let Some(entries) = node.as_map() else {
        walk.report(node.bad(format!("expected a map of variables, found {}", node.describe())));
        return Vec::new();
    };
    let mut declared = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        let name = key.as_text().unwrap_or_default();
        if !keys::is_var_name(name) {
            walk.report(key.bad(format!("`{name}` cannot name a variable")).help(VAR_RULE));
        }
        declared.push(Declared { name: name.to_owned(), value: value.id() });
    }
    declared
}

const VAR_RULE: &str = "a letter or `_`, then letters, digits, `_`, `.` or `-`, at most 128 in all";

pub(crate) fn env(walk: &mut Walk<'_>, fields: Fields<'_>) -> Vec<Declared> {
    let Some(items) = fields.get("env").and_then(|node| walk.list(node, "names")) else { return Vec::new() };
    let mut declared = Vec::with_capacity(items.len());
    for node in items {
        let Some(name) = walk.text(node) else { continue };
        if keys::is_env_name(name) {
            declared.push(Declared { name: name.to_owned(), value: node.id() });
        } else {
            let problem = node.bad(format!("`{name}` cannot name an environment variable"));
            walk.report(
                problem.help("letters, digits and `_`, not beginning with a digit; only the name, no value"),
            );
        }
    }
    declared
}

pub(crate) fn secrets(walk: &mut Walk<'_>, fields: Fields<'_>) -> BTreeMap<String, SecretRef> {
    let mut secrets = BTreeMap::new();
    let Some(node) = fields.get("secrets") else { return secrets };
    let Some(entries) = node.as_map() else {
        walk.report(node.bad(format!("expected a map of secrets, found {}", node.describe())));
        return secrets;
    };
    for (key, value) in entries {
        let name = key.as_text().unwrap_or_default();
        if !keys::is_var_name(name) {
            walk.report(key.bad(format!("`{name}` cannot name a secret")).help(VAR_RULE));
        }
        if value.as_text().is_some() {
            // The text may be the secret itself: it is not repeated in the message.
            let problem = value.bad("a secret is never written in the plan");
            walk.report(problem.help("say where it comes from: `{env: NAME}` or `{file: PATH}`"));
            continue;
        }
        let Some(secret) = walk.map(value, &SECRET_KEYS) else { continue };
        let reference = match (secret.get("env"), secret.get("file")) {
            (Some(env), None) => walk.text(env).and_then(|name| {
                if keys::is_env_name(name) {
                    return Some(SecretRef::Env(name.to_owned()));
                }
                walk.report(env.bad("this cannot name an environment variable"));
                None
            }),
            (None, Some(file)) => walk.full_text(file).map(|path| SecretRef::File(path.to_owned())),
            (Some(_), Some(_)) => {
                walk.report(value.bad("a secret comes from `env` or from `file`, not both"));
                None
            }
            (None, None) => {
                walk.report(value.bad("a secret needs `env` or `file`"));
                None
            }
        };
        // A faulty one is still declared, so that its uses are not called undeclared.
        secrets.insert(name.to_owned(), reference.unwrap_or_else(|| SecretRef::Env("UNKNOWN".to_owned())));
    }
    secrets
}

fn limits(walk: &mut Walk<'_>, fields: Fields<'_>) -> Limits {
    let mut limits = Limits::default();
    let Some(given) = fields.get("limits").and_then(|node| walk.map(node, &LIMITS_KEYS)) else {
        return limits;
    };
    let mut number = |key: &str| {
        let number = given.get(key).and_then(|node| walk.integer(node, 1..=MAX_PARALLEL))?;
        u32::try_from(number).ok()
    };
    if let Some(parallel) = number("parallel") {
        limits.parallel = parallel;
    }
    limits.per_target = number("per_target");
    limits
}

fn defaults(walk: &mut Walk<'_>, fields: Fields<'_>) -> Defaults {
    let Some(node) = fields.get("defaults") else { return Defaults::default() };
    let Some(given) = walk.map(node, &DEFAULTS_KEYS) else { return Defaults::default() };
    Defaults {
        node: Some(node.id()),
        target: given
            .get("target")
            .map(|node| task::texts(walk, node, "target").into_iter().map(Node::id).collect()),
        timeout: given.get("timeout").and_then(|node| walk.duration(node)),
        retry: given.get("retry").and_then(|node| policy::retry(walk, node)),
        host_failure: given.get("host_failure").and_then(|node| policy::host_failure(walk, node)),
        batch: given.get("batch").map(|node| policy::sizes(walk, node)),
        mutex: given
            .get("mutex")
            .map(|node| task::mutexes(walk, node).into_iter().map(|mutex| mutex.map(Node::id)).collect()),
    }
}

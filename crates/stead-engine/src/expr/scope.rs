//! What the names in an expression mean for one task, on one host, at one moment.
//!
//! Making a [`Scope`] costs nothing that grows with the plan: results are looked up when an expression reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, OnceLock};

use minijinja::value::{Enumerator, Object, ObjectExt, Value as Inner};
use minijinja::{Error, ErrorKind};
use serde_json::{Map, Value, json};
use stead_model::plan::{Section, TaskIndex};
use stead_model::time::Timestamp;
use stead_model::{HostName, PlanName, RunId, RunStatus, Status, TaskName};

use super::bounds::to_inner;
use super::facts::{FactsObject, HostFacts, Wanted};
use super::functions::{TASK_FUNCTIONS, TaskFunction};
use super::results::{Finished, Results, Row};

/// What `run` holds.
#[derive(Clone, Debug)]
pub struct RunScope {
    /// The run's id, if it has one.
    pub id: Option<RunId>,
    /// The plan's name.
    pub plan: PlanName,
    /// When the run started.
    pub started_at: Timestamp,
    /// Which part of the run this is, from 1; each resume adds one.
    pub segment: u32,
    /// Whether this is a dry run.
    pub dry_run: bool,
}

/// What `host` holds.
#[derive(Clone, Debug)]
pub struct HostScope {
    /// The host's name.
    pub name: HostName,
    /// Its place among the task's hosts, from 0.
    pub index: usize,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

impl HostScope {
    fn to_inner(&self) -> Inner {
        let Self { name, index, labels } = self;
        to_inner(json!({"name": name, "index": index, "labels": labels}))
    }
}

/// What `result` holds in `changed_when` and `failed_when`.
#[derive(Clone, Debug, Default)]
pub struct ResultScope {
    /// A command's exit code.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// What it wrote.
    pub stdout: String,
    /// What it wrote of errors.
    pub stderr: String,
    /// Whether the operation says it changed something.
    pub changed: bool,
    /// Its data.
    pub data: Option<Value>,
}

/// What is the same for all tasks of a run.
pub struct Names {
    vars: Inner,
    env: Inner,
    run: Option<RunScope>,
    trigger: Option<Inner>,
    results: Option<Arc<Results>>,
    facts: Option<Arc<HostFacts>>,
}

impl Names {
    /// Returns the names of a run of the plan of `results`; `trigger` is what started it.
    pub fn new(results: Arc<Results>, run: RunScope, trigger: Option<&Value>) -> Self {
        let plan = results.plan();
        Self {
            vars: to_inner(&plan.vars),
            env: to_inner(&plan.env),
            run: Some(run),
            trigger: trigger.map(to_inner),
            results: Some(results),
            facts: None,
        }
    }

    /// Returns names for a text that is rendered before there is a run: variables and environment alone.
    pub fn before_run(vars: &BTreeMap<String, Value>, env: &BTreeMap<String, String>) -> Self {
        Self {
            vars: to_inner(vars),
            env: to_inner(env),
            run: None,
            trigger: None,
            results: None,
            facts: None,
        }
    }

    /// Returns these names with what started the run.
    pub fn with_trigger(mut self, trigger: &Value) -> Self {
        self.trigger = Some(to_inner(trigger));
        self
    }

    /// Returns these names with the facts of the run's hosts.
    pub fn with_facts(mut self, facts: Arc<HostFacts>) -> Self {
        self.facts = Some(facts);
        self
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Names")
    }
}

/// What the names in an expression mean. Cheap to clone; `Debug` shows no values.
#[derive(Clone)]
pub struct Scope {
    names: Arc<Names>,
    task: Option<TaskIndex>,
    run_status: Option<RunStatus>,
    secrets: Option<Inner>,
    host: Option<Arc<HostScope>>,
    host_name: Option<HostName>,
    result: Option<Inner>,
    wanted: Wanted,
    item: Option<Inner>,
    vars: Option<Inner>,
    /// Names that came as data and are all there is, besides `vars`.
    given: Option<Arc<BTreeMap<String, Inner>>>,
}

impl Scope {
    /// Returns the scope of `task`, whose item it knows, or of no task.
    pub fn new(names: Arc<Names>, task: Option<TaskIndex>) -> Self {
        let item = names.results.as_ref().zip(task).and_then(|(results, task)| {
            let item = results.plan().task(task).item.as_deref()?;
            Some(to_inner(json!({"key": item.key, "value": item.value})))
        });
        Self {
            names,
            task,
            run_status: None,
            secrets: None,
            host: None,
            host_name: None,
            result: None,
            wanted: Wanted::default(),
            item,
            vars: None,
            given: None,
        }
    }

    /// Returns as data the names a file template may use: what it needs where it is rendered on another machine.
    ///
    /// Those are `vars`, `env`, `run`, `trigger`, `host`, `item` and `fact`; results of tasks stay here.
    pub fn to_names(&self) -> Map<String, Value> {
        let (root, _) = self.root();
        let names = ["vars", "env", "run", "trigger", "host", "item", "fact"].into_iter();
        // Reading facts that nobody has would ask for them.
        let knows_facts = self.names.facts.as_ref().zip(self.host_name.as_ref());
        let knows_facts = knows_facts.is_some_and(|(facts, host)| facts.knows(host));
        let known = names.filter(|name| *name != "fact" || knows_facts).filter_map(|name| {
            let value = root.get_attr(name).ok().filter(|value| !value.is_undefined())?;
            Some((name.to_owned(), super::bounds::to_json(&value).ok()?))
        });
        known.collect()
    }

    /// Returns a scope of names that came as data.
    pub fn of_names(names: Map<String, Value>) -> Self {
        let mut scope = Self::before_run(&BTreeMap::new(), &BTreeMap::new());
        let mut given: BTreeMap<String, Inner> =
            names.into_iter().map(|(name, value)| (name, to_inner(value))).collect();
        scope.vars = given.remove("vars");
        scope.given = Some(Arc::new(given));
        scope
    }

    /// Returns a scope of variables and environment alone.
    pub fn before_run(vars: &BTreeMap<String, Value>, env: &BTreeMap<String, String>) -> Self {
        Self::new(Arc::new(Names::before_run(vars, env)), None)
    }

    /// Returns this scope with the values of secrets; guards never have them.
    pub fn with_secrets(mut self, secrets: &BTreeMap<String, String>) -> Self {
        self.secrets = Some(to_inner(secrets));
        self
    }

    /// Returns this scope with how the run stands, for `finally`.
    pub fn with_run_status(mut self, status: RunStatus) -> Self {
        self.run_status = Some(status);
        self
    }

    /// Returns this scope on one host.
    pub fn on_host(mut self, host: &HostScope) -> Self {
        self.host_name = Some(host.name.clone());
        self.host = Some(Arc::new(host.clone()));
        self
    }

    /// Returns this scope with what the operation just gave.
    pub fn with_result(mut self, result: &ResultScope) -> Self {
        let ResultScope { exit_code, signal, stdout, stderr, changed, data } = result;
        self.result = Some(to_inner(json!({
            "exit_code": exit_code, "signal": signal, "stdout": stdout, "stderr": stderr,
            "changed": changed, "data": data,
        })));
        self
    }

    /// Takes the hosts whose facts were read through this scope, or a clone of it, before anybody had gathered them.
    ///
    /// What was evaluated has no value then; once they are gathered, evaluate it again.
    pub fn take_wanted(&self) -> BTreeSet<HostName> {
        self.wanted.take()
    }

    /// Returns the hosts that [`take_wanted`](Self::take_wanted) would take.
    pub(super) fn wanted(&self) -> Vec<HostName> {
        self.wanted.peek()
    }

    fn facts(&self) -> Option<FactsObject> {
        let facts = Arc::clone(self.names.facts.as_ref()?);
        Some(FactsObject { facts, wanted: self.wanted.clone() })
    }

    /// Returns this scope with the element of a `for_each`, before there is a task for it.
    pub fn with_item(mut self, key: &str, value: &Value) -> Self {
        self.item = Some(to_inner(json!({"key": key, "value": value})));
        self
    }

    /// Returns this scope with `vars` over those it has.
    pub fn with_vars(mut self, vars: &Map<String, Value>) -> Self {
        let below = self.vars.take().unwrap_or_else(|| self.names.vars.clone());
        let mut merged: BTreeMap<String, Inner> = BTreeMap::new();
        for key in below.try_iter().into_iter().flatten() {
            if let (Some(name), Ok(value)) = (key.as_str(), below.get_item(&key)) {
                merged.insert(name.to_owned(), value);
            }
        }
        merged.extend(vars.iter().map(|(name, value)| (name.clone(), to_inner(value))));
        self.vars = Some(Inner::from_object(merged));
        self
    }

    /// Returns this scope as minijinja's context, and where it will say that it met a result that is not known.
    pub(super) fn root(&self) -> (Inner, Arc<OnceLock<TaskName>>) {
        let touched = Arc::new(OnceLock::new());
        (Inner::from_object(Root { scope: self.clone(), touched: Arc::clone(&touched) }), touched)
    }

    /// Returns what this scope may read of other tasks.
    pub(super) fn view(&self, touched: Arc<OnceLock<TaskName>>) -> Option<View> {
        Some(View { results: Arc::clone(self.names.results.as_ref()?), task: self.task?, touched })
    }

    fn run(&self) -> Option<Inner> {
        let RunScope { id, plan, started_at, segment, dry_run } = self.names.run.as_ref()?;
        let mut run = json!({
            "id": id, "plan": plan, "started_at": started_at, "segment": segment, "dry_run": dry_run,
        });
        if let Some(status) = self.run_status {
            run["status"] = status.as_str().into();
        }
        Some(to_inner(run))
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope(task {:?}, host {:?})", self.task, self.host_name)
    }
}

/// Every name a scope may have at the top level, functions aside.
pub(super) const NAMES: &[&str] =
    &["vars", "secrets", "env", "results", "facts", "fact", "run", "trigger", "host", "item", "result"];

#[derive(Debug)]
struct Root {
    scope: Scope,
    touched: Arc<OnceLock<TaskName>>,
}

impl Object for Root {
    fn get_value(self: &Arc<Self>, key: &Inner) -> Option<Inner> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Inner> {
        let scope = &self.scope;
        if let Some(given) = scope.given.as_ref().filter(|_| key != "vars") {
            return given.get(key).cloned();
        }
        match key {
            "vars" => Some(scope.vars.as_ref().unwrap_or(&scope.names.vars).clone()),
            "env" => Some(scope.names.env.clone()),
            "secrets" => scope.secrets.clone(),
            "results" => Some(Inner::from_object(Upstream(scope.view(Arc::clone(&self.touched))?))),
            "facts" => Some(Inner::from_object(scope.facts()?)),
            "fact" => Some(scope.facts()?.of(scope.host_name.as_ref()?)),
            "run" => scope.run(),
            "trigger" => scope.names.trigger.clone(),
            "host" => scope.host.as_deref().map(HostScope::to_inner),
            "item" => scope.item.clone(),
            "result" => scope.result.clone(),
            _ => {
                let (_, function) = TASK_FUNCTIONS.iter().find(|(name, _)| *name == key)?;
                Some(Inner::from_object(TaskFunction {
                    function: *function,
                    view: scope.view(Arc::clone(&self.touched))?,
                }))
            }
        }
    }
}

/// What one task may read of others.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) results: Arc<Results>,
    task: TaskIndex,
    touched: Arc<OnceLock<TaskName>>,
}

impl View {
    /// Whether the task may read the result of `other`: it is upstream, or this is `finally` and `other` is not.
    pub(super) fn may_read(&self, other: TaskIndex) -> bool {
        let plan = self.results.plan();
        let after_main =
            plan.task(self.task).section == Section::Finally && plan.task(other).section == Section::Main;
        after_main || self.results.graph().is_upstream(self.task, other)
    }

    /// Returns the task's direct dependencies.
    pub(super) fn direct(&self) -> &[TaskIndex] {
        self.results.graph().dependencies(self.task)
    }

    /// Notes that what was read of `task` is not known.
    pub(super) fn touch(&self, task: TaskIndex) {
        // Only the first is named; a second adds nothing.
        self.touched.get_or_init(|| self.results.graph().name(task).clone());
    }

    pub(super) fn not_upstream(&self, name: &str) -> Error {
        let own = self.results.graph().name(self.task);
        Error::new(
            ErrorKind::InvalidOperation,
            format!("task `{name}` is not upstream of `{own}`: add it to `depends_on`"),
        )
    }

    fn readable(&self) -> Vec<TaskIndex> {
        let graph = self.results.graph();
        let plan = self.results.plan();
        let mut readable = graph.upstream(self.task);
        if plan.task(self.task).section == Section::Finally {
            readable.extend(
                plan.indexed().filter(|(_, task)| task.section == Section::Main).map(|(index, _)| index),
            );
            readable.sort_unstable();
        }
        readable
    }
}

/// `results`: upstream tasks by name.
#[derive(Debug)]
struct Upstream(View);

impl Object for Upstream {
    fn get_value(self: &Arc<Self>, key: &Inner) -> Option<Inner> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Inner> {
        let task = self.0.results.graph().index_of(key)?;
        if !self.0.may_read(task) {
            return Some(self.0.not_upstream(key).into());
        }
        let finished = self.0.results.get(task)?;
        Some(Inner::from_object(RowObject { view: self.0.clone(), task, finished, host: None }))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let graph = self.0.results.graph();
        let names = self.0.readable().into_iter().filter(|task| self.0.results.peek(*task).is_some());
        Enumerator::Values(names.map(|task| Inner::from(graph.name(task).as_str())).collect())
    }
}

/// `results.x`, or one of its hosts.
#[derive(Debug)]
struct RowObject {
    view: View,
    task: TaskIndex,
    finished: Arc<Finished>,
    host: Option<usize>,
}

impl RowObject {
    fn row(&self) -> &Row {
        match self.host {
            Some(host) => &self.finished.hosts[host].1,
            None => &self.finished.row,
        }
    }

    fn data(&self) -> Option<Inner> {
        let row = self.row();
        let hosts = &self.finished.hosts;
        if self.host.is_none() && hosts.len() > 1 {
            return None;
        }
        // With one host the task's data is that host's.
        let row = if self.host.is_none() && row.data.is_none() {
            hosts.first().map_or(row, |(_, only)| only)
        } else {
            row
        };
        if row.data_unknown || self.row().data_unknown {
            self.view.touch(self.task);
            return Some(not_known(self.view.results.graph().name(self.task)));
        }
        row.data.as_ref().map(to_inner)
    }
}

impl Object for RowObject {
    fn get_value(self: &Arc<Self>, key: &Inner) -> Option<Inner> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Inner> {
        if !FIELDS.contains(&key) {
            return None;
        }
        let row = self.row();
        if row.status == Status::Unknown && (key != "hosts" || self.finished.hosts.is_empty()) {
            self.view.touch(self.task);
            return Some(not_known(self.view.results.graph().name(self.task)));
        }
        match key {
            "status" => Some(row.status.as_str().into()),
            "changed" => Some(row.changed.into()),
            "cause" => Some(Inner::from(row.cause.map(|cause| cause.as_str()))),
            "reason" => Some(Inner::from(row.reason.as_deref())),
            "error" => Some(Inner::from(row.error.as_deref())),
            "class" => Some(Inner::from(row.class.map(|class| class.as_str()))),
            "attempts" => Some(row.attempts.into()),
            "duration_ms" => Some(row.duration_ms.into()),
            "data" => self.data(),
            "hosts" if self.host.is_none() => {
                let (view, task, finished) = (self.view.clone(), self.task, Arc::clone(&self.finished));
                Some(Inner::from_object(Hosts { view, task, finished }))
            }
            _ => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let there = |key: &&str| match *key {
            "data" => self.row().data_unknown || self.row().data.is_some(),
            "hosts" => self.host.is_none(),
            _ => true,
        };
        Enumerator::Values(FIELDS.iter().copied().filter(there).map(Inner::from).collect())
    }
}

const FIELDS: &[&str] =
    &["status", "changed", "cause", "reason", "error", "class", "attempts", "duration_ms", "data", "hosts"];

/// `results.x.hosts`: the rows by host, in target order.
#[derive(Debug)]
struct Hosts {
    view: View,
    task: TaskIndex,
    finished: Arc<Finished>,
}

impl Object for Hosts {
    fn get_value(self: &Arc<Self>, key: &Inner) -> Option<Inner> {
        let name = key.as_str()?;
        let host = self.finished.hosts.iter().position(|(host, _)| host.as_str() == name)?;
        let (view, finished) = (self.view.clone(), Arc::clone(&self.finished));
        Some(Inner::from_object(RowObject { view, task: self.task, finished, host: Some(host) }))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_enumerator(|this| {
            Box::new(this.finished.hosts.iter().map(|(host, _)| Inner::from(host.as_str())))
        })
    }
}

fn not_known(task: &TaskName) -> Inner {
    Error::new(ErrorKind::InvalidOperation, format!("the result of task `{task}` is not known")).into()
}

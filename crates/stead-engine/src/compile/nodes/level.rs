//! The plan of one level: the rows of a run of nodes as ordinary tasks.
//!
//! ```text
//!  rows:   quay.create ─▶ quay.config ─▶ quay.hosting ─▶ crane.create ─▶ crane.config     (all levels)
//!  tasks:  quay.create ─▶ quay.config ─▶ quay.hosting ─▶ quay.children.create             (this level)
//! ```
//! A run acts on its own level. What is done to the nodes in a hosting node is one task here, however deep they are;
//! that node's own run has the tasks of the level below.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use stead_model::diagnostic::Place;
use stead_model::node::operations::{self as op, delegated, serving};
use stead_model::plan::{
    Action, Digest, Expression, Guard, Limits, OnError, OnFailure, Op, Param, Part, Plan, Section, Settings,
    Task, TaskIndex, TriggerRule, Undo,
};
use stead_model::site::Manifest;
use stead_model::site::host::Timeouts;
use stead_model::site::manifest::OnNodeError;
use stead_model::{Diagnostics, NodeName, OperationName, PlanName, TaskName};

use super::{NodeAction, NodeTask, NodesPlan, NodesVerb, Phase};
use crate::compile::{Catalogue, CompiledPlan, Explicit, check};
use crate::nodes::Forest;

/// The task that waits until everything was made.
const CREATED: &str = "created";
/// The task that has a server answer.
const SERVER: &str = "server";
/// The task that lets go of the server.
const RELEASE: &str = "server.release";

/// How much longer, in seconds, a task may take than its waits: they say better what was waited for.
const SLACK: u64 = 10;

/// What removing may take together. Each removal has a limit of its own.
const FINALLY_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// What a level does.
#[derive(Clone, Copy)]
pub struct Level<'a> {
    /// What is done.
    pub verb: NodesVerb,
    /// The manifest's name.
    pub name: &'a str,
    /// What a failed node does to the run.
    pub on_error: OnNodeError,
    /// Whether `test` removes what it could not make.
    pub cleanup_on_failure: bool,
    /// Nodes at once.
    pub parallel: u32,
    /// Seconds added to every wait.
    pub timeout_buffer: u32,
    /// How long each part may take, by root.
    pub timeouts: &'a dyn Fn(&NodeName) -> Timeouts,
    /// Roots that need a server: then there is one before they are made.
    pub served: &'a BTreeSet<NodeName>,
    /// Whether a server may have to go when nodes have gone.
    pub releases: bool,
    /// Nodes of this level that the manifest does not have and that are removed all the same.
    pub orphans: &'a [NodeName],
    /// The machine that makes the tree of a root, where it is not this one: it runs what is to be done with it.
    pub hosts: &'a BTreeMap<NodeName, String>,
    /// Other machines that look for nodes which the manifest does not have, and remove them.
    pub swept: &'a BTreeSet<String>,
    /// How long they may take, in seconds, by name.
    pub swept_timeouts: &'a dyn Fn(&str) -> Timeouts,
    /// Nodes of this level that are asked to remove nodes in them which the manifest does not have.
    pub swept_nodes: &'a BTreeSet<NodeName>,
}

/// No other machines.
static NO_HOSTS: BTreeMap<NodeName, String> = BTreeMap::new();
static NO_NAMES: BTreeSet<String> = BTreeSet::new();
static NO_NODES: BTreeSet<NodeName> = BTreeSet::new();

impl<'a> Level<'a> {
    /// Returns the level of `manifest` with what it says of itself.
    pub fn new(
        verb: NodesVerb,
        manifest: &'a Manifest,
        timeouts: &'a dyn Fn(&NodeName) -> Timeouts,
        served: &'a BTreeSet<NodeName>,
    ) -> Self {
        let settings = manifest.settings;
        Self {
            verb,
            name: manifest.name.as_ref().map_or("nodes", |name| name.as_str()),
            on_error: settings.on_error,
            cleanup_on_failure: settings.cleanup_on_failure,
            parallel: settings.parallel,
            timeout_buffer: settings.timeout_buffer,
            timeouts,
            served,
            releases: !served.is_empty(),
            orphans: &[],
            hosts: &NO_HOSTS,
            swept: &NO_NAMES,
            swept_timeouts: &|_| Timeouts::default(),
            swept_nodes: &NO_NODES,
        }
    }
}

/// Returns the plan of this level, or what is wrong with it.
pub fn to_plan(level: &Level<'_>, forest: &Forest, rows: &NodesPlan) -> Result<CompiledPlan, Diagnostics> {
    let mut making = Making { level, forest, rows, drafts: Vec::new() };
    making.level_tasks();
    making.sweep();
    making.add_milestone();
    making.remove_orphans();
    making.add_server();
    let parallel = level.parallel.clamp(1, 10_000);
    let word = level.verb.word();
    let name = PlanName::parse(&format!("{word}-{}", level.name));
    let mut plan = Plan::new(name.or_else(|_| PlanName::parse(word)).expect("a verb is a plan name"));
    plan.limits = Limits { parallel, per_target: Some(parallel) };
    plan.finally_timeout = FINALLY_TIMEOUT;
    // The level is locked by its own name, not by the machine it acts from.
    plan.lock = false;
    plan.on_failure = match (level.verb, level.on_error) {
        (NodesVerb::Create, OnNodeError::Rollback) => OnFailure::Rollback,
        (NodesVerb::Create, OnNodeError::Stop | OnNodeError::Continue)
        | (NodesVerb::Destroy | NodesVerb::Test | NodesVerb::Verify, _) => OnFailure::Keep,
    };
    plan.tasks = making.into_tasks();
    let catalogue = Catalogue::new(&op::OPERATIONS);
    let whole = |_: TaskIndex, _: &str| Place::Named(level.name.to_owned());
    check(plan, &Explicit::default(), &catalogue, &whole, Diagnostics::default())
}

/// A task before it has its settings.
struct Draft {
    name: String,
    operation: &'static str,
    params: BTreeMap<String, Param>,
    phase: Phase,
    seconds: u32,
    before: BTreeSet<usize>,
    undo: Option<Op>,
}

/// A task of this level: of one row, or of all that is done alike below a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    Row(usize),
    Below(usize, Phase),
    /// On another machine, by a root that is made there.
    Elsewhere(usize, Phase),
}

struct Making<'a> {
    level: &'a Level<'a>,
    forest: &'a Forest,
    rows: &'a NodesPlan,
    drafts: Vec<Draft>,
}

impl Making<'_> {
    /// Makes a task of every row of this level, and one of all rows below a root that are of one phase.
    fn level_tasks(&mut self) {
        let trees = self.forest.trees();
        let mut places: BTreeMap<Holder, usize> = BTreeMap::new();
        let hosts = self
            .forest
            .roots()
            .filter_map(|root| Some((self.level.hosts.get(&self.forest.nodes[root].name)?, root)));
        // The first root of a host is the last to be taken in.
        let firsts: BTreeMap<&String, usize> = hosts.collect::<Vec<_>>().into_iter().rev().collect();
        let mut place_of_row = Vec::with_capacity(self.rows.tasks.len());
        for (row, task) in self.rows.tasks.iter().enumerate() {
            let holder = match (self.elsewhere(task, &trees, &firsts), task.node, task.at) {
                (Some(root), _, _) => Holder::Elsewhere(root, group(task.phase)),
                (None, Some(node), Some(_)) => Holder::Below(trees[node], group(task.phase)),
                (None, Some(_) | None, _) => Holder::Row(row),
            };
            let place = *places.entry(holder).or_insert_with(|| {
                self.drafts.push(match holder {
                    Holder::Row(row) => self.own(row, task, &trees),
                    Holder::Below(root, phase) => self.below(root, phase),
                    Holder::Elsewhere(root, phase) => {
                        let root = &self.forest.nodes[root].name;
                        let limits = (self.level.timeouts)(root);
                        self.on_host(&self.level.hosts[root], phase, limits.delegate)
                    }
                });
                self.drafts.len() - 1
            });
            place_of_row.push(place);
            let before = task.depends_on.iter().map(|before| place_of_row[*before]);
            self.drafts[place].before.extend(before.filter(|before| *before != place));
        }
    }

    /// Returns the first root that is made where the node of a row is, if that is another machine. A row about nodes of two
    /// machines is this one's.
    fn elsewhere(
        &self,
        task: &NodeTask,
        trees: &[usize],
        firsts: &BTreeMap<&String, usize>,
    ) -> Option<usize> {
        let host_of = |node: usize| self.level.hosts.get(&self.forest.nodes[trees[node]].name);
        let host = host_of(task.node?)?;
        if task.peer.is_some_and(|peer| host_of(peer) != Some(host)) {
            return None;
        }
        firsts.get(host).copied()
    }

    /// Has others remove what nobody describes any more.
    fn sweep(&mut self) {
        let on_host =
            |host: &String| self.on_host(host, Phase::Destroy, (self.level.swept_timeouts)(host).delegate);
        let hosts = self.level.swept.iter().map(on_host);
        let roots = self.level.swept_nodes.iter().filter_map(|node| self.forest.named(node.as_str()));
        let below = roots.map(|range| self.below(range.start, Phase::Destroy));
        for draft in hosts.chain(below).collect::<Vec<_>>() {
            if self.drafts.iter().all(|known| known.name != draft.name) {
                self.drafts.push(draft);
            }
        }
    }

    fn own(&self, row: usize, task: &NodeTask, trees: &[usize]) -> Draft {
        let node = task.node.map(|node| &self.forest.nodes[node].name);
        let root = task.node.map(|node| &self.forest.nodes[trees[node]].name);
        let limits = root.map(|root| (self.level.timeouts)(root)).unwrap_or_default();
        let buffer = self.level.timeout_buffer;
        let (operation, seconds) = match task.action {
            NodeAction::Make => (op::NODE_MAKE, limits.create + limits.address + 2 * buffer),
            NodeAction::Apply => (op::NODE_PUSH, limits.ssh + limits.config + 2 * buffer),
            NodeAction::Await => (op::NODE_AWAIT, limits.ssh + limits.config + 2 * buffer),
            NodeAction::Signal => (op::NODE_SIGNAL, limits.ssh + limits.config + 2 * buffer),
            NodeAction::CheckHosting => (op::NODE_HOSTING, limits.ssh + buffer),
            NodeAction::Link => (op::NODE_LINK, 2 * (limits.ssh + buffer)),
            NodeAction::Verify => (op::NODE_VERIFY, limits.ssh + limits.config + buffer),
            NodeAction::Verified => (op::NODE_MILESTONE, buffer),
            NodeAction::Remove => (op::NODE_REMOVE, limits.destroy + buffer),
            NodeAction::Terminate => (op::NODE_REMOVE, 2 * limits.destroy + buffer),
        };
        let mut params = BTreeMap::new();
        if let Some(node) = node {
            params.insert("node".to_owned(), Param::from(node.as_str()));
        }
        if let Some(peer) = task.peer {
            params.insert("peer".to_owned(), Param::from(self.forest.nodes[peer].name.as_str()));
        }
        if task.action == NodeAction::Terminate {
            params.insert("terminate".to_owned(), Param::from(true));
        }
        let undo = node.filter(|_| task.action == NodeAction::Make).map(|node| {
            operation_of(
                op::NODE_REMOVE,
                [("node", Param::from(node.as_str())), ("made_here", Param::from(true))],
            )
        });
        let name = self.rows.name(self.forest, row);
        // Two names of the longest kind and a word between them are longer than a task's name may be.
        let name = if TaskName::parse(&name).is_ok() { name } else { format!("link.{row}") };
        Draft { name, operation, params, phase: task.phase, seconds, before: BTreeSet::new(), undo }
    }

    fn below(&self, root: usize, phase: Phase) -> Draft {
        let root = &self.forest.nodes[root].name;
        let limits = (self.level.timeouts)(root);
        let name = format!("{root}.children.{}", verb_of(phase));
        self.delegated(name, ("node", root.as_str()), phase, limits.delegate)
    }

    /// Returns the task of all that is done alike on another machine. No node has such a name.
    fn on_host(&self, host: &str, phase: Phase, limit: u32) -> Draft {
        self.delegated(format!("host_{host}.{}", verb_of(phase)), ("host", host), phase, limit)
    }

    fn delegated(&self, name: String, whom: (&'static str, &str), phase: Phase, limit: u32) -> Draft {
        let verb = verb_of(phase);
        let delegate = |verb: &str| {
            operation_of(op::NODE_DELEGATE, [(whom.0, Param::from(whom.1)), ("verb", Param::from(verb))])
        };
        let Op { params, .. } = delegate(verb);
        Draft {
            name,
            operation: op::NODE_DELEGATE,
            params,
            phase,
            seconds: limit + self.level.timeout_buffer,
            before: BTreeSet::new(),
            undo: (verb == delegated::CREATE).then(|| delegate(delegated::ROLLBACK)),
        }
    }

    fn add(&mut self, name: &str, operation: &'static str, phase: Phase, before: BTreeSet<usize>) -> usize {
        let (name, params, seconds) = (name.to_owned(), BTreeMap::new(), self.level.timeout_buffer);
        self.drafts.push(Draft { name, operation, params, phase, seconds, before, undo: None });
        self.drafts.len() - 1
    }

    /// Has `test` look at nodes only once all of them are there.
    fn add_milestone(&mut self) {
        if self.level.verb != NodesVerb::Test {
            return;
        }
        let of = |drafts: &[Draft], is: fn(Phase) -> bool| -> Vec<usize> {
            drafts.iter().enumerate().filter(|(_, draft)| is(draft.phase)).map(|(place, _)| place).collect()
        };
        let made = of(&self.drafts, |phase| phase < Phase::Verify);
        let looks = of(&self.drafts, |phase| phase == Phase::Verify);
        let created = self.add(CREATED, op::NODE_MILESTONE, Phase::Run, made.into_iter().collect());
        for look in looks {
            self.drafts[look].before.insert(created);
        }
    }

    fn remove_orphans(&mut self) {
        for orphan in self.level.orphans {
            let place =
                self.add(&format!("{orphan}.destroy"), op::NODE_REMOVE, Phase::Destroy, BTreeSet::new());
            let draft = &mut self.drafts[place];
            draft.params.insert("node".to_owned(), Param::from(orphan.as_str()));
            draft.seconds += (self.level.timeouts)(orphan).destroy;
        }
    }

    /// Has a server answer before nodes that need one are made, and go when they have gone.
    fn add_server(&mut self) {
        let of = |drafts: &[Draft], operation: &str| -> Vec<usize> {
            let found = drafts.iter().enumerate().filter(|(_, draft)| draft.operation == operation);
            found.map(|(place, _)| place).collect()
        };
        let makes = of(&self.drafts, op::NODE_MAKE);
        if !makes.is_empty() && !self.level.served.is_empty() {
            let server = self.add(SERVER, op::NODE_SERVER, Phase::Create, BTreeSet::new());
            let draft = &mut self.drafts[server];
            draft.params.insert("act".to_owned(), Param::from(serving::ENSURE));
            for make in makes {
                let node = self.drafts[make].params.get("node").and_then(Param::as_value);
                if node.and_then(Value::as_str).is_some_and(|node| self.level.served.contains(node)) {
                    self.drafts[make].before.insert(server);
                }
            }
        }
        let removals: BTreeSet<usize> = of(&self.drafts, op::NODE_REMOVE).into_iter().collect();
        if !removals.is_empty() && self.level.releases {
            let release = self.add(RELEASE, op::NODE_SERVER, Phase::Destroy, removals);
            let draft = &mut self.drafts[release];
            draft.params.insert("act".to_owned(), Param::from(serving::RELEASE));
        }
    }

    fn into_tasks(self) -> Vec<Task> {
        let names: Vec<TaskName> = self.drafts.iter().map(|draft| task_name(&draft.name)).collect();
        let is_finally = |draft: &Draft| self.level.verb == NodesVerb::Test && draft.phase == Phase::Destroy;
        let finally: Vec<bool> = self.drafts.iter().map(is_finally).collect();
        let mut tasks: Vec<Task> = Vec::with_capacity(names.len());
        for (place, draft) in self.drafts.into_iter().enumerate() {
            // What follows every outcome waits for nothing of the part before it: that is over.
            let before = draft.before.iter().filter(|before| finally[**before] == finally[place]);
            let depends_on: Vec<TaskName> = before.map(|before| names[*before].clone()).collect();
            let settings = settings(self.level, &draft);
            let operation = OperationName::parse(draft.operation).expect("operations of nodes have names");
            let part = Part {
                name: None,
                op: Op { operation, params: draft.params },
                when_host: Vec::new(),
                changed_when: None,
                failed_when: None,
            };
            tasks.push(Task {
                name: names[place].clone(),
                section: if finally[place] { Section::Finally } else { Section::Main },
                depends_on: depends_on.into(),
                action: Action::Op(Arc::new(part)),
                settings: Arc::new(settings),
                item: None,
                hash: Digest::default(),
            });
        }
        tasks.sort_by_key(|task| task.section);
        tasks
    }
}

/// Returns what who is delegated to does in a phase.
fn verb_of(phase: Phase) -> &'static str {
    match phase {
        Phase::Create | Phase::Config | Phase::Run => delegated::CREATE,
        Phase::Verify => delegated::VERIFY,
        Phase::Destroy => delegated::DESTROY,
    }
}

/// Returns the phase under whose name a row below this level is done.
fn group(phase: Phase) -> Phase {
    match phase {
        Phase::Create | Phase::Config | Phase::Run => Phase::Create,
        Phase::Verify => Phase::Verify,
        Phase::Destroy => Phase::Destroy,
    }
}

fn settings(level: &Level<'_>, draft: &Draft) -> Settings {
    // Everything is tried when nodes go, and when they are looked at.
    let goes_on = match draft.phase {
        Phase::Destroy | Phase::Verify => true,
        Phase::Create | Phase::Config | Phase::Run => level.on_error == OnNodeError::Continue,
    };
    let undo = match (level.verb, level.on_error) {
        (NodesVerb::Create, OnNodeError::Rollback) => draft.undo.clone().map(Undo::Op),
        (NodesVerb::Create, OnNodeError::Stop | OnNodeError::Continue)
        | (NodesVerb::Destroy | NodesVerb::Test | NodesVerb::Verify, _) => None,
    };
    let keeps = level.verb == NodesVerb::Test && draft.phase == Phase::Destroy && !level.cleanup_on_failure;
    let when = keeps.then(|| Guard::Expr {
        expr: Expression(format!("results.{CREATED}.status == 'unchanged'").into()),
        reason: Some("nodes could not be created, and `cleanup_on_failure` is false".to_owned()),
    });
    Settings {
        target: vec!["local".to_owned()],
        trigger_rule: match draft.phase {
            Phase::Destroy => TriggerRule::AllDone,
            Phase::Create | Phase::Config | Phase::Run | Phase::Verify => TriggerRule::AllOk,
        },
        on_error: if goes_on { OnError::Continue } else { OnError::StopAll },
        timeout: Some(Duration::from_secs(u64::from(draft.seconds) + SLACK)),
        when: when.into_iter().collect(),
        undo,
        idempotent: true,
        ..Settings::default()
    }
}

fn task_name(text: &str) -> TaskName {
    TaskName::parse(text).expect("nodes are named by at most 63 letters, digits and dashes")
}

fn operation_of<const N: usize>(name: &str, params: [(&str, Param); N]) -> Op {
    let operation = OperationName::parse(name).expect("operations of nodes have names");
    Op { operation, params: params.into_iter().map(|(key, value)| (key.to_owned(), value)).collect() }
}

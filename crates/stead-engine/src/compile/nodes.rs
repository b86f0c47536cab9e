//! From a checked manifest to what creating, testing or destroying it does, in order: the rows of a dry run.
//!
//! Pure: nothing is looked up and nothing is touched. Every row names the tasks it waits for, which all stand before
//! it. A run acts on its own level; what is below is at the hosting node that runs it, named by its path.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use stead_model::NodeName;
use stead_model::site::Manifest;
use stead_model::site::manifest::Mode;

use crate::nodes::{Checked, Forest, Selection};

mod level;
#[cfg(test)]
mod tests;

pub use level::{Level, to_plan};

/// What is done with the nodes of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodesVerb {
    /// They are made and become their specs.
    Create,
    /// They are removed.
    Destroy,
    /// They are made, looked at, and removed.
    Test,
    /// They are looked at: a part of a test that a level above does.
    Verify,
}

impl NodesVerb {
    /// Returns the verb's word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Destroy => "destroy",
            Self::Test => "test",
            Self::Verify => "verify",
        }
    }
}

/// A part of a node's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// It comes to exist.
    Create,
    /// It becomes its spec.
    Config,
    /// It does its work: links.
    Run,
    /// It is looked at.
    Verify,
    /// It goes.
    Destroy,
}

impl Phase {
    /// Returns the phase's word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Config => "config",
            Self::Run => "run",
            Self::Verify => "verify",
            Self::Destroy => "destroy",
        }
    }
}

/// What one row does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeAction {
    /// The parent's driver makes the machine.
    Make,
    /// The driver applies the spec over SSH.
    Apply,
    /// The node fetches its spec, and its report is waited for.
    Await,
    /// The node is told to fetch its spec, and its report is waited for.
    Signal,
    /// The node is asked whether it can make machines.
    CheckHosting,
    /// Two peers are told of each other.
    Link,
    /// The node is compared with what it should be.
    Verify,
    /// All nodes have been looked at.
    Verified,
    /// The machine is removed.
    Remove,
    /// The node stops itself, then the machine is removed.
    Terminate,
}

impl NodeAction {
    /// Returns the action's word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Make => "make",
            Self::Apply => "apply",
            Self::Await => "await",
            Self::Signal => "signal",
            Self::CheckHosting => "check-hosting",
            Self::Link => "link",
            Self::Verify => "verify",
            Self::Verified => "verified",
            Self::Remove => "remove",
            Self::Terminate => "terminate",
        }
    }
}

/// One row of a plan of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeTask {
    /// Its node; none for what is about all of them.
    pub node: Option<usize>,
    /// The other node of a link.
    pub peer: Option<usize>,
    /// Part of whose life.
    pub phase: Phase,
    /// By whom it is done.
    pub mode: Mode,
    /// What it does.
    pub action: NodeAction,
    /// The hosting node whose run does it; none: this run.
    pub at: Option<usize>,
    /// Rows that come before, by their place in the plan.
    pub depends_on: Vec<usize>,
}

/// What is done, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodesPlan {
    /// The rows.
    pub tasks: Vec<NodeTask>,
}

/// Returns what `verb` does with the selected nodes of a manifest without problems. `is_ready` tells whether a node that
/// is not selected became its spec before: then peers of it are linked with it.
pub fn plan_nodes(
    verb: NodesVerb,
    manifest: &Manifest,
    forest: &Forest,
    checked: &Checked,
    selection: &Selection,
    is_ready: &dyn Fn(usize) -> bool,
) -> NodesPlan {
    let mut planning = Planning {
        manifest,
        forest,
        checked,
        selected: &selection.selected,
        is_ready,
        tasks: Vec::new(),
        ready: vec![None; forest.nodes.len()],
    };
    match verb {
        NodesVerb::Create => planning.create(),
        NodesVerb::Destroy => planning.destroy(None),
        NodesVerb::Verify => drop(planning.verify()),
        NodesVerb::Test => {
            planning.create();
            let verified = planning.verify();
            planning.destroy(Some(verified));
        }
    }
    NodesPlan { tasks: planning.tasks }
}

struct Planning<'a> {
    manifest: &'a Manifest,
    forest: &'a Forest,
    checked: &'a Checked,
    selected: &'a [bool],
    is_ready: &'a dyn Fn(usize) -> bool,
    tasks: Vec<NodeTask>,
    /// For every selected node the row after which it is platform ready.
    ready: Vec<Option<usize>>,
}

impl Planning<'_> {
    fn add(
        &mut self,
        node: usize,
        phase: Phase,
        mode: Mode,
        action: NodeAction,
        depends_on: Vec<usize>,
    ) -> usize {
        let at = self.forest.nodes[node].parent;
        self.tasks.push(NodeTask { node: Some(node), peer: None, phase, mode, action, at, depends_on });
        self.tasks.len() - 1
    }

    fn create(&mut self) {
        for &index in self.forest.order() {
            if !self.selected[index] {
                continue;
            }
            let node = &self.forest.nodes[index];
            let before = node.parent.iter().chain(&node.depends_on).filter_map(|other| self.ready[*other]);
            let mut waits_for: Vec<usize> = before.collect();
            waits_for.sort_unstable();
            let known = &self.checked.nodes[index];
            let (mode, is_hosting) = (known.modes.config, known.is_hosting);
            let has_spec = self.manifest.nodes[node.written].spec.is_some();
            let mut last = self.add(index, Phase::Create, Mode::Push, NodeAction::Make, waits_for);
            if has_spec {
                let action = match mode {
                    Mode::Push => NodeAction::Apply,
                    Mode::Pull => NodeAction::Await,
                    Mode::Hybrid => NodeAction::Signal,
                };
                last = self.add(index, Phase::Config, mode, action, vec![last]);
            }
            if is_hosting {
                last = self.add(index, Phase::Config, mode, NodeAction::CheckHosting, vec![last]);
            }
            self.ready[index] = Some(last);
        }
        self.link();
    }

    /// Tells peers of each other: the lowest run that holds both does it.
    fn link(&mut self) {
        let links: Vec<(usize, usize)> = self.forest.links().collect();
        for (a, b) in links {
            let rows = [a, b].map(|node| self.ready[node]);
            let is_ready = |node: usize| self.ready[node].is_some() || (self.is_ready)(node);
            if rows == [None, None] || !is_ready(a) || !is_ready(b) {
                continue;
            }
            let mode = self.checked.nodes[a].modes.run;
            let mut depends_on: Vec<usize> = rows.into_iter().flatten().collect();
            depends_on.sort_unstable();
            let row = self.add(a, Phase::Run, mode, NodeAction::Link, depends_on);
            self.tasks[row].peer = Some(b);
            self.tasks[row].at = common_parent(self.forest, a, b);
        }
    }

    /// Looks at every node, and returns the row after which all have been.
    fn verify(&mut self) -> usize {
        let mut linked: Vec<Vec<usize>> = vec![Vec::new(); self.forest.nodes.len()];
        for (row, task) in self.tasks.iter().enumerate().filter(|(_, task)| task.action == NodeAction::Link) {
            task.node.iter().chain(&task.peer).for_each(|node| linked[*node].push(row));
        }
        let mut looks = Vec::new();
        for &index in self.forest.order() {
            if !self.selected[index] {
                continue;
            }
            let mut depends_on: Vec<usize> = self.ready[index].into_iter().collect();
            depends_on.append(&mut linked[index]);
            let mode = self.checked.nodes[index].modes.run;
            looks.push(self.add(index, Phase::Verify, mode, NodeAction::Verify, depends_on));
        }
        self.tasks.push(NodeTask {
            node: None,
            peer: None,
            phase: Phase::Verify,
            mode: Mode::Push,
            action: NodeAction::Verified,
            at: None,
            depends_on: looks,
        });
        self.tasks.len() - 1
    }

    /// Removes the nodes, exactly in the reverse order.
    fn destroy(&mut self, after: Option<usize>) {
        let mut gone: Vec<Option<usize>> = vec![None; self.forest.nodes.len()];
        let mut dependents: Vec<Vec<usize>> = vec![Vec::new(); self.forest.nodes.len()];
        for (index, node) in self.forest.nodes.iter().enumerate() {
            node.depends_on.iter().for_each(|other| dependents[*other].push(index));
        }
        for &index in self.forest.order().iter().rev() {
            if !self.selected[index] {
                continue;
            }
            let node = &self.forest.nodes[index];
            let before = node.children.iter().chain(&dependents[index]).filter_map(|other| gone[*other]);
            let mut waits_for: Vec<usize> = before.collect();
            if waits_for.is_empty() {
                waits_for.extend(after);
            }
            waits_for.sort_unstable();
            let mode = self.checked.nodes[index].modes.destroy;
            let action = match mode {
                Mode::Pull => NodeAction::Terminate,
                Mode::Push | Mode::Hybrid => NodeAction::Remove,
            };
            gone[index] = Some(self.add(index, Phase::Destroy, mode, action, waits_for));
        }
    }
}

/// Returns the hosting node whose run holds both nodes; none: the first run.
fn common_parent(forest: &Forest, a: usize, b: usize) -> Option<usize> {
    let (mut a, mut b) = (forest.nodes[a].parent, forest.nodes[b].parent);
    while a != b {
        let depth = |node: Option<usize>| node.map_or(0, |index| forest.nodes[index].depth + 1);
        if depth(a) >= depth(b) {
            a = a.and_then(|index| forest.nodes[index].parent);
        } else {
            b = b.and_then(|index| forest.nodes[index].parent);
        }
    }
    a
}

impl NodesPlan {
    /// Returns the name of a row's task.
    pub fn name(&self, forest: &Forest, row: usize) -> String {
        let task = &self.tasks[row];
        let Some(node) = task.node else { return task.action.word().to_owned() };
        let name = &forest.nodes[node].name;
        match (task.action, task.peer) {
            (NodeAction::Link, Some(peer)) => format!("{name}.link.{}", forest.nodes[peer].name),
            (NodeAction::CheckHosting, _) => format!("{name}.hosting"),
            (_, _) => format!("{name}.{}", task.phase.word()),
        }
    }

    /// Returns the rows of the document of a dry run: `plan` of section 11.
    ///
    /// `hosts` names the machine that makes the trees of a root, where it is not this one.
    pub fn to_json(&self, forest: &Forest, hosts: &BTreeMap<NodeName, String>) -> Value {
        let trees = forest.trees();
        let at = |task: &NodeTask| {
            let root = task.node.and_then(|node| hosts.get(&forest.nodes[trees[node]].name));
            let path = at_path(forest, task.at);
            match (root, task.at) {
                (Some(host), Some(_)) => format!("{host}/{path}"),
                (Some(host), None) => host.clone(),
                (None, _) => path,
            }
        };
        let row = |index: usize| {
            let task = &self.tasks[index];
            let depends_on: Vec<String> = task.depends_on.iter().map(|row| self.name(forest, *row)).collect();
            json!({
                "task": self.name(forest, index), "node": task.node.map(|node| &forest.nodes[node].name),
                "phase": task.phase.word(), "mode": task.mode.word(), "action": task.action.word(),
                "at": at(task), "depends_on": depends_on,
            })
        };
        (0..self.tasks.len()).map(row).collect()
    }
}

/// Returns `local`, or the names of the hosting nodes down to the one that acts.
pub fn at_path(forest: &Forest, at: Option<usize>) -> String {
    let mut names = Vec::new();
    let mut above = at;
    while let Some(index) = above {
        names.push(forest.nodes[index].name.as_str());
        above = forest.nodes[index].parent;
    }
    if names.is_empty() {
        return "local".to_owned();
    }
    names.reverse();
    names.join("/")
}

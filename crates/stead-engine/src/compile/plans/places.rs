//! Where the parts of a compiled task are in the file.

use std::collections::BTreeMap;
use std::sync::Arc;

use stead_model::diagnostic::Place;
use stead_model::plan::TaskIndex;
use stead_model::plan_file::PlanFile;
use stead_model::yaml::{Node, NodeId, Tree, Value};

/// Where the parts of a compiled task are in the file. A few bytes per task.
#[derive(Clone, Debug)]
pub struct Places {
    tree: Arc<Tree>,
    defaults: Option<NodeId>,
    triggers: Vec<NodeId>,
    tasks: Vec<NodeId>,
    /// Places of dependencies, where they are not simply the written ones in order.
    dependencies: BTreeMap<usize, Box<[NodeId]>>,
}

impl Places {
    pub(super) fn new(file: &PlanFile) -> Self {
        Self {
            tree: Arc::clone(file.tree()),
            defaults: file.defaults.node,
            triggers: file.trigger_places.clone(),
            tasks: Vec::new(),
            dependencies: BTreeMap::new(),
        }
    }

    pub(super) fn add(&mut self, task: NodeId) {
        self.tasks.push(task);
    }

    /// Notes where the dependencies of task `index` are written.
    pub(super) fn dependencies(&mut self, index: usize, places: impl Iterator<Item = NodeId>) {
        let places: Box<[NodeId]> = places.collect();
        let written = self.tree.node(self.tasks[index]).get("depends_on");
        let as_written = match written.map(|node| (node, node.as_list())) {
            None => places.is_empty(),
            Some((_, Some(items))) => items.map(Node::id).eq(places.iter().copied()),
            Some((node, None)) => places[..] == [node.id()],
        };
        if !as_written {
            self.dependencies.insert(index, places);
        }
    }

    /// Returns the place of `path` in `task`: `name`, `depends_on.0`, `when.1`, `params.args.2`,
    /// `sequence.1.params.script`, `timeout`. What is not written is shown where it comes from: in
    /// `defaults`, or at the nearest thing above it that is written.
    pub fn locate(&self, task: TaskIndex, path: &str) -> Place {
        let Some(id) = self.tasks.get(task.get()) else {
            return self.locate_in_plan(path);
        };
        let task_node = self.tree.node(*id);
        if let Some(places) = self.dependencies.get(&task.get())
            && let Some(place) = path
                .strip_prefix("depends_on.")
                .and_then(|index| index.split('.').next()?.parse::<usize>().ok())
                .and_then(|index| places.get(index))
        {
            return self.tree.node(*place).place();
        }
        if let Some(found) = descend(task_node, path) {
            return found.place();
        }
        let default = self.defaults.and_then(|id| descend(self.tree.node(id), path));
        let action = || ["op", "exec", "shell", "sequence"].into_iter().find_map(|key| task_node.get(key));
        let found =
            default.or_else(|| if path == "op" || path.starts_with("params") { action() } else { None });
        found.or_else(|| task_node.get("name")).unwrap_or(task_node).place()
    }
}

impl Places {
    /// Returns the place of `path` outside of tasks: `limits.parallel`, `triggers.1.schedule.cron`.
    fn locate_in_plan(&self, path: &str) -> Place {
        let root = self.tree.root();
        if let Some((index, rest)) = path.strip_prefix("triggers.").map(step)
            && let Some(id) = index.parse().ok().and_then(|index: usize| self.triggers.get(index))
        {
            let trigger = self.tree.node(*id);
            return descend(trigger, rest).unwrap_or(trigger).place();
        }
        descend(root, path).or_else(|| root.get("name")).unwrap_or(root).place()
    }
}

/// Returns the deepest node on `path`; nothing if not even its first step is there.
fn descend<'t>(start: Node<'t>, path: &str) -> Option<Node<'t>> {
    let mut node = start;
    let mut rest = path;
    let mut moved = false;
    while !rest.is_empty() {
        let next = match node.value() {
            Value::Map(_) => command_word(node, rest).or_else(|| member(node, rest)),
            Value::List(mut items) => {
                let (index, tail) = step(rest);
                index.parse().ok().and_then(|index| items.nth(index)).map(|item| (item, tail))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) => None,
        };
        // One value may stand for a list of one.
        let next = next.or_else(|| match step(rest) {
            ("0", tail) if moved && node.as_list().is_none() => Some((node, tail)),
            (_, _) => None,
        });
        let Some((child, tail)) = next else { break };
        (node, rest, moved) = (child, tail, true);
    }
    moved.then_some(node)
}

fn step(path: &str) -> (&str, &str) {
    path.split_once('.').unwrap_or((path, ""))
}

/// Returns the value of the longest key that `rest` begins with: keys may hold dots.
fn member<'t, 'r>(node: Node<'t>, rest: &'r str) -> Option<(Node<'t>, &'r str)> {
    let fits = |key: &str| {
        let tail = rest.strip_prefix(key)?;
        if tail.is_empty() { Some(tail) } else { tail.strip_prefix('.') }
    };
    node.as_map()?
        .filter_map(|(key, value)| {
            let key = key.as_text()?;
            fits(key).map(|tail| (key.len(), value, tail))
        })
        .max_by_key(|(len, _, _)| *len)
        .map(|(_, value, tail)| (value, tail))
}

/// Returns where a parameter of `command.*` is in the short forms `exec` and `shell`.
fn command_word<'t, 'r>(node: Node<'t>, rest: &'r str) -> Option<(Node<'t>, &'r str)> {
    let name = rest.strip_prefix("params.")?;
    let (name, tail) = step(name);
    match name {
        "script" => node.get("shell").map(|script| (script, tail)),
        "command" => node
            .get("exec")
            .map(|exec| (exec.as_list().and_then(|mut items| items.next()).unwrap_or(exec), tail)),
        "args" => {
            let exec = node.get("exec")?;
            let (index, after) = step(tail);
            let word = index.parse::<usize>().ok().and_then(|index| exec.as_list()?.nth(index + 1));
            Some(word.map_or((exec, ""), |word| (word, after)))
        }
        _ => None,
    }
}

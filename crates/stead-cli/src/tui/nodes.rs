//! The Nodes view's state: nodes of the site as `stead status` sees them, as a tree by host and manifest.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use stead_model::node::wire::NodeStatus;
use stead_model::time::Timestamp;

use super::filter::Filter;
use super::key::Key;
use super::pace::Pace;
use super::scroll::Scroll;
use super::trouble::Trouble;
use crate::commands::nodes::report::NodePlace;
use crate::render::one_line;

/// How long after an answer nodes are looked at again; looking asks every machine.
const BETWEEN_LOOKS_MILLIS: u64 = 3_000;

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// Which.
    pub(crate) place: NodePlace,
    /// The node it is made in.
    parent: Option<String>,
    /// Where it stands.
    pub(crate) status: String,
    /// What its machine does.
    pub(crate) machine: String,
    /// Whether its agent is there.
    pub(crate) agent: String,
    /// By whom it is configured.
    pub(crate) mode: String,
    /// Whether it is what it should be.
    pub(crate) converged: bool,
    /// Why it is not, as `stead explain` knows it.
    pub(crate) code: Option<String>,
    /// Why it is not.
    pub(crate) why: Option<String>,
    /// Where it is reached.
    pub(crate) address: Option<String>,
    /// What else is known of it, by name.
    pub(crate) known: Vec<(&'static str, String)>,
}

/// What else is told of a node, and what it is called there.
const KNOWN: [(&str, &str); 9] = [
    ("agent seen", "last_seen"),
    ("spec", "spec"),
    ("spec digest", "spec_digest"),
    ("state digest", "state_digest"),
    ("type", "type"),
    ("driver", "driver"),
    ("machine id", "machine_id"),
    ("made at", "created_at"),
    ("host key", "host_key"),
];

impl Node {
    /// Returns the node of a row of what `stead status` tells.
    fn of(row: &Value) -> Self {
        let text = |key: &str| row.get(key).and_then(Value::as_str).map(one_line);
        let word = |key: &str| text(key).unwrap_or_else(|| "-".to_owned());
        let port = row.get("ssh_port").and_then(Value::as_u64);
        let address = text("ip").map(|ip| match port {
            Some(port) if ip.contains(':') => format!("[{ip}]:{port}"),
            Some(port) => format!("{ip}:{port}"),
            None => ip,
        });
        let known = KNOWN.into_iter().filter_map(|(name, key)| Some((name, text(key)?)));
        Self {
            place: NodePlace { host: word("on"), manifest: word("manifest"), node: word("name") },
            parent: text("parent"),
            status: word("status"),
            machine: word("machine"),
            agent: word("agent"),
            mode: word("mode"),
            converged: row.get("converged").and_then(Value::as_bool).unwrap_or(false),
            code: text("code"),
            why: text("why"),
            address,
            known: known.collect(),
        }
    }

    /// Returns the word for whether it is what it should be.
    pub(crate) fn word(&self) -> &'static str {
        if self.converged { "converged" } else { "not converged" }
    }
}

/// What `stead status` tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The nodes with their depth, in the order of the tree.
    pub(crate) nodes: Vec<(usize, Node)>,
    /// What cannot be read.
    pub(crate) problems: Vec<String>,
    /// The manifests of the site.
    pub(crate) manifests: Vec<String>,
}

impl Seen {
    /// Returns what a document tells.
    pub(crate) fn of(document: &Value) -> Self {
        let list = |key: &str| document.get(key).and_then(Value::as_array).into_iter().flatten();
        let texts = |key: &str| list(key).filter_map(Value::as_str).map(one_line).collect();
        let mut pairs: BTreeMap<(String, String), Vec<Node>> = BTreeMap::new();
        for node in list("nodes").map(Node::of) {
            pairs.entry((node.place.host.clone(), node.place.manifest.clone())).or_default().push(node);
        }
        let nodes = pairs.into_values().flat_map(as_tree).collect();
        Self { nodes, problems: texts("problems"), manifests: texts("manifests") }
    }
}

/// Returns the nodes of a pair, each behind the one it is made in, with its depth. One whose parent is not known is a root.
fn as_tree(nodes: Vec<Node>) -> Vec<(usize, Node)> {
    let names: BTreeSet<String> = nodes.iter().map(|node| node.place.node.clone()).collect();
    let mut children: BTreeMap<Option<String>, Vec<Node>> = BTreeMap::new();
    for node in nodes {
        let parent = node.parent.clone().filter(|parent| names.contains(parent));
        children.entry(parent).or_default().push(node);
    }
    let mut tree = Vec::new();
    // Nodes that are their own ancestors are told all the same.
    while let Some(first) = children.keys().next().cloned() {
        let begin = children.remove(&first).unwrap_or_default();
        let mut open: Vec<(usize, Node)> = begin.into_iter().rev().map(|node| (0, node)).collect();
        while let Some((depth, node)) = open.pop() {
            let below = children.remove(&Some(node.place.node.clone())).unwrap_or_default();
            open.extend(below.into_iter().rev().map(|below| (depth + 1, below)));
            tree.push((depth, node));
        }
    }
    tree
}

/// The Nodes view.
#[derive(Debug)]
pub(crate) struct Nodes {
    /// What was seen last.
    pub(crate) seen: Option<Seen>,
    /// Why nothing newer was seen.
    pub(crate) trouble: Option<Trouble>,
    /// When nodes are looked at.
    pub(crate) pace: Pace,
    /// What narrows the list.
    pub(crate) filter: Filter,
    at: usize,
    /// The node that is open.
    pub(crate) open: Option<Opened>,
}

/// A node that is looked at.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Which.
    pub(crate) place: NodePlace,
    /// What its agent told the server; none while that is asked for.
    pub(crate) told: Option<Result<Option<Box<NodeStatus>>, Trouble>>,
    /// Which part is on the screen.
    pub(crate) scroll: Scroll,
}

impl Default for Nodes {
    fn default() -> Self {
        Self {
            seen: None,
            trouble: None,
            pace: Pace::every(BETWEEN_LOOKS_MILLIS),
            filter: Filter::default(),
            at: 0,
            open: None,
        }
    }
}

impl Nodes {
    /// Returns the nodes that fit the filter, with their depth.
    pub(crate) fn shown(&self) -> Vec<(usize, &Node)> {
        let words = self.filter.words();
        let nodes = self.seen.iter().flat_map(|seen| &seen.nodes);
        let fits = |node: &Node| {
            let place = &node.place;
            words.fit([
                place.host.as_str(),
                place.manifest.as_str(),
                place.node.as_str(),
                node.status.as_str(),
                node.machine.as_str(),
                node.mode.as_str(),
                node.word(),
                node.code.as_deref().unwrap_or_default(),
                node.why.as_deref().unwrap_or_default(),
            ])
        };
        nodes.filter(|(_, node)| fits(node)).map(|(depth, node)| (*depth, node)).collect()
    }

    /// Returns which of the nodes that are shown is at the cursor.
    pub(crate) fn at(&self) -> usize {
        self.at.min(self.shown().len().saturating_sub(1))
    }

    /// Takes what was seen; the cursor stays at its node.
    pub(crate) fn take(&mut self, seen: Result<Seen, Trouble>, now: Timestamp) {
        self.pace.answer(now);
        let chosen = self.shown().get(self.at()).map(|(_, node)| node.place.clone());
        match seen {
            Ok(seen) => (self.seen, self.trouble) = (Some(seen), None),
            Err(trouble) => self.trouble = Some(trouble),
        }
        if let Some(at) = self.shown().iter().position(|(_, node)| Some(&node.place) == chosen.as_ref()) {
            self.at = at;
        }
    }

    /// Takes what the agent of a node told; one that is not looked at any more is forgotten.
    pub(crate) fn take_told(&mut self, place: &NodePlace, told: Result<Option<Box<NodeStatus>>, Trouble>) {
        if let Some(open) = self.open.as_mut().filter(|open| open.place == *place) {
            open.told = Some(told);
        }
    }

    /// Returns the node that is open, if it is still there.
    pub(crate) fn opened(&self) -> Option<&Node> {
        let place = &self.open.as_ref()?.place;
        self.seen.as_ref()?.nodes.iter().map(|(_, node)| node).find(|node| node.place == *place)
    }

    /// Opens the node at the cursor and returns which that is.
    pub(crate) fn open(&mut self) -> Option<NodePlace> {
        let place = self.shown().get(self.at()).map(|(_, node)| node.place.clone())?;
        self.open = Some(Opened { place: place.clone(), told: None, scroll: Scroll::default() });
        Some(place)
    }

    /// Takes a key that moves the cursor of the list by `page` rows at most.
    pub(crate) fn step(&mut self, key: Key, page: usize) {
        self.at = super::scroll::moved(self.at(), self.shown().len(), key, page);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, parent: Option<&str>, on: &str) -> Value {
        json!({"name": name, "parent": parent, "on": on, "manifest": "m", "status": "completed",
            "machine": "running", "mode": "push", "agent": "none", "converged": true,
            "ip": "fd00::7", "ssh_port": 22})
    }

    fn drawn(seen: &Seen) -> Vec<String> {
        let line = |(depth, node): &(usize, Node)| {
            format!("{}{}@{}", " ".repeat(*depth), node.place.node, node.place.host)
        };
        seen.nodes.iter().map(line).collect()
    }

    #[test]
    fn nodes_stand_below_the_node_they_are_made_in() {
        let rows = [
            node("leaf", Some("edge"), "a"),
            node("root", None, "a"),
            node("edge", Some("root"), "a"),
            node("other", Some("gone"), "a"),
            node("root", None, "b"),
        ];
        let seen = Seen::of(&json!({"nodes": rows, "problems": ["one"], "manifests": ["m"]}));
        assert_eq!(drawn(&seen), ["root@a", " edge@a", "  leaf@a", "other@a", "root@b"]);
        assert_eq!(seen.nodes[0].1.address.as_deref(), Some("[fd00::7]:22"));
        // Whatever a file says, nothing is lost and nothing goes on for ever.
        let circle = [node("x", Some("y"), "a"), node("y", Some("x"), "a")];
        assert_eq!(Seen::of(&json!({"nodes": circle})).nodes.len(), 2);
        assert_eq!(Seen::of(&json!({})), Seen::default());
    }

    #[test]
    fn the_cursor_stays_at_its_node_and_trouble_does_not_hide_what_was_seen() {
        let seen = |names: &[&str]| {
            let rows: Vec<Value> = names.iter().map(|name| node(name, None, "a")).collect();
            Seen::of(&json!({"nodes": rows}))
        };
        let now = Timestamp::from_micros(0);
        let mut nodes = Nodes::default();
        nodes.take(Ok(seen(&["b", "c"])), now);
        nodes.step(Key::Down, 5);
        nodes.take(Ok(seen(&["a", "b", "c"])), now);
        assert_eq!(nodes.at(), 2);
        nodes.take(Err(Trouble { lines: vec!["no".to_owned()], hints: Vec::new() }), now);
        assert_eq!((nodes.shown().len(), nodes.trouble.is_some()), (3, true));
        nodes.take(Ok(seen(&["a"])), now);
        assert_eq!((nodes.at(), nodes.trouble.is_some()), (0, false));
    }
}

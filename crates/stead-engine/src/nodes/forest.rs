//! The nodes of a manifest as they hang together: `count` expanded, names resolved, levels and order known.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::ops::Range;

use stead_model::NodeName;
use stead_model::site::manifest::ManifestNode;
use stead_model::site::{Located, Manifest};

use super::problems::Problems;

/// The most nodes a manifest may stand for.
const MOST_NODES: usize = 100_000;

/// The most links between nodes. A full mesh of a thousand has half of them.
const MOST_LINKS: usize = 1_000_000;

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForestNode {
    /// Its name.
    pub name: NodeName,
    /// Which of the manifest's nodes it was written as.
    pub written: usize,
    /// The node it is made in.
    pub parent: Option<usize>,
    /// The nodes made in it, in file order.
    pub children: Vec<usize>,
    /// How many nodes it is in: 0 for roots.
    pub depth: usize,
    /// Nodes it is linked with, sorted, whichever side said so.
    pub peers: Vec<usize>,
    /// Nodes beside it that come first.
    pub depends_on: Vec<usize>,
}

/// The nodes of a manifest, in file order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forest {
    /// The nodes.
    pub nodes: Vec<ForestNode>,
    groups: HashMap<String, Range<usize>>,
    // Invariant: every node once, parents before children, dependencies before dependents.
    order: Vec<usize>,
}

impl Forest {
    /// Returns the nodes in the order they are made: level by level, file order among equals.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// Returns the nodes that `name` means: one, or all that an entry with `count` stands for.
    pub fn named(&self, name: &str) -> Option<Range<usize>> {
        self.groups.get(name).cloned()
    }

    /// Returns the nodes that are in no other.
    pub fn roots(&self) -> impl Iterator<Item = usize> {
        self.nodes.iter().enumerate().filter(|(_, node)| node.parent.is_none()).map(|(index, _)| index)
    }

    /// Returns the root of every node's tree.
    pub fn trees(&self) -> Vec<usize> {
        let mut roots = vec![0; self.nodes.len()];
        for &index in &self.order {
            roots[index] = self.nodes[index].parent.map_or(index, |parent| roots[parent]);
        }
        roots
    }

    /// Returns for every node whether it is in `node`, at any depth.
    pub fn below(&self, node: usize) -> Vec<bool> {
        let mut below = vec![false; self.nodes.len()];
        for &index in &self.order {
            below[index] = self.nodes[index].parent.is_some_and(|parent| parent == node || below[parent]);
        }
        below
    }

    /// Returns the links, each once, the first in the file first.
    pub fn links(&self) -> impl Iterator<Item = (usize, usize)> {
        let both = self.nodes.iter().enumerate();
        both.flat_map(|(index, node)| node.peers.iter().map(move |peer| (index, *peer)))
            .filter(|(a, b)| a < b)
    }

    /// Returns the forest of `manifest`, its problems told; nothing if there is no order.
    pub(super) fn build(manifest: &Manifest, problems: &mut Problems<'_>) -> Option<Self> {
        let mut forest = Self::default();
        if !forest.expand(manifest, problems) {
            return None;
        }
        forest.set_parents(manifest, problems);
        forest.set_links(manifest, problems);
        forest.set_dependencies(manifest, problems);
        forest.set_order(manifest, problems).then_some(forest)
    }

    /// Makes the nodes. Whether all of them fit.
    fn expand(&mut self, manifest: &Manifest, problems: &mut Problems<'_>) -> bool {
        for (written, node) in manifest.nodes.iter().enumerate() {
            let first = self.nodes.len();
            let count = node.count.map_or(1, |count| usize::try_from(count).unwrap_or(usize::MAX));
            if first.saturating_add(count) > MOST_NODES {
                let message = format!("the manifest stands for more than {MOST_NODES} nodes");
                problems.push(problems.error("node/out-of-range", node, "count", node.name.span, message));
                return false;
            }
            for i in 1..=count {
                let name = match node.count {
                    None => Ok(node.name.value.clone()),
                    Some(_) => NodeName::parse(&format!("{}-{i}", node.name.value)),
                };
                match name {
                    Ok(name) => self.add(name, written, manifest, problems),
                    Err(error) => {
                        problems.push(problems.error(
                            "node/bad-name",
                            node,
                            "name",
                            node.name.span,
                            error.to_string(),
                        ));
                        break;
                    }
                }
            }
            if node.count.is_some() {
                let name = node.name.value.as_str();
                if self.groups.contains_key(name) {
                    problems.push(duplicate(problems, node, name));
                } else {
                    self.groups.insert(name.to_owned(), first..self.nodes.len());
                }
            }
        }
        true
    }

    fn add(&mut self, name: NodeName, written: usize, manifest: &Manifest, problems: &mut Problems<'_>) {
        let index = self.nodes.len();
        if let Some(other) = self.groups.get(name.as_str()) {
            let first = self.nodes.get(other.start).and_then(|node| manifest.nodes.get(node.written));
            let mut problem = duplicate(problems, &manifest.nodes[written], name.as_str());
            if let Some(first) = first {
                problem = problem.related(problems.place(first.name.span), "the other one");
            }
            problems.push(problem);
            return;
        }
        self.groups.insert(name.as_str().to_owned(), index..index + 1);
        self.nodes.push(ForestNode {
            name,
            written,
            parent: None,
            children: Vec::new(),
            depth: 0,
            peers: Vec::new(),
            depends_on: Vec::new(),
        });
    }

    fn set_parents(&mut self, manifest: &Manifest, problems: &mut Problems<'_>) {
        let mut parents = vec![None; manifest.nodes.len()];
        let counted: BTreeSet<&str> = manifest
            .nodes
            .iter()
            .filter(|node| node.count.is_some())
            .map(|node| node.name.value.as_str())
            .collect();
        for (written, node) in manifest.nodes.iter().enumerate() {
            let Some(parent) = &node.parent else { continue };
            let Some(found) = self.groups.get(&parent.value) else {
                let message = format!(
                    "`{}` is to be made in `{}`, which does not exist",
                    node.name.value, parent.value
                );
                let problem = problems.error("node/unknown-parent", node, "parent", parent.span, message);
                problems.push_unknown(
                    problem,
                    "the manifest",
                    &parent.value,
                    self.nodes.iter().map(|node| node.name.as_str()),
                );
                continue;
            };
            if counted.contains(parent.value.as_str()) {
                let message = format!("`{}` stands for several nodes and cannot be a parent", parent.value);
                let problem = problems.error("node/unknown-parent", node, "parent", parent.span, message);
                problems.push(problem.help(format!("name one of them: {}-1", parent.value)));
                continue;
            }
            parents[written] = Some(found.start);
        }
        for index in 0..self.nodes.len() {
            let parent = parents[self.nodes[index].written];
            if let Some(above) = parent.and_then(|parent| self.nodes.get_mut(parent)) {
                above.children.push(index);
                self.nodes[index].parent = parent;
            }
        }
    }

    /// Returns the nodes that a reference means, or tells that there are none.
    fn referred(
        &self,
        reference: &Located<String>,
        node: &ManifestNode,
        (code, path): (&'static str, String),
        problems: &mut Problems<'_>,
    ) -> Option<Range<usize>> {
        let found = self.groups.get(&reference.value);
        if found.is_none() {
            let message = format!("`{}` names `{}`, which does not exist", node.name.value, reference.value);
            let problem = problems.error(code, node, &path, reference.span, message);
            problems.push_unknown(
                problem,
                "the manifest",
                &reference.value,
                self.nodes.iter().map(|node| node.name.as_str()),
            );
        }
        found.cloned()
    }

    /// Returns the nodes that an entry of the manifest stands for.
    fn made_of(&self, written: usize) -> Range<usize> {
        let start = self.nodes.partition_point(|node| node.written < written);
        start..self.nodes.partition_point(|node| node.written <= written)
    }

    fn set_links(&mut self, manifest: &Manifest, problems: &mut Problems<'_>) {
        let mut links: BTreeSet<(usize, usize)> = BTreeSet::new();
        for (written, node) in manifest.nodes.iter().enumerate() {
            for (i, peer) in node.peers.iter().enumerate() {
                let path = ("node/unknown-peer", format!("peers[{i}]"));
                let Some(found) = self.referred(peer, node, path, problems) else { continue };
                let own = self.made_of(written);
                if own == found && own.len() == 1 && node.count.is_none() {
                    let message = format!("`{}` is linked with itself", node.name.value);
                    problems.push(problems.error(
                        "node/conflict",
                        node,
                        &format!("peers[{i}]"),
                        peer.span,
                        message,
                    ));
                    continue;
                }
                if links.len().saturating_add(own.len().saturating_mul(found.len())) > 2 * MOST_LINKS {
                    let message = format!("the manifest has more than {MOST_LINKS} links");
                    problems.push(problems.error(
                        "node/out-of-range",
                        node,
                        &format!("peers[{i}]"),
                        peer.span,
                        message,
                    ));
                    return;
                }
                for a in own {
                    links.extend(found.clone().filter(|b| *b != a).map(|b| (a.min(b), a.max(b))));
                }
            }
        }
        for (a, b) in links {
            self.nodes[a].peers.push(b);
            self.nodes[b].peers.push(a);
        }
        self.nodes.iter_mut().for_each(|node| node.peers.sort_unstable());
    }

    fn set_dependencies(&mut self, manifest: &Manifest, problems: &mut Problems<'_>) {
        let mut total = 0;
        for (written, node) in manifest.nodes.iter().enumerate() {
            for (i, wanted) in node.depends_on.iter().enumerate() {
                let path = format!("depends_on[{i}]");
                let found = self.referred(wanted, node, ("node/unknown-dependency", path.clone()), problems);
                let Some(found) = found else { continue };
                let own = self.made_of(written);
                if own.is_empty() {
                    // Its name is taken, which has been told.
                    continue;
                }
                if own.start < found.end && found.start < own.end {
                    let name = &node.name.value;
                    let message = format!("nodes wait for each other: {name} -> {name}");
                    problems.push(problems.error("node/cycle", node, &path, wanted.span, message));
                    continue;
                }
                let is_beside = |other: &usize| {
                    self.nodes.get(*other).map(|node| node.parent)
                        == self.nodes.get(own.start).map(|node| node.parent)
                };
                if !found.clone().all(|other| is_beside(&other)) {
                    let message =
                        format!("`{}` and `{}` are not made in the same node", node.name.value, wanted.value);
                    let problem = problems.error("node/conflict", node, &path, wanted.span, message);
                    problems.push(problem.help(
                        "`depends_on` is for nodes of one parent; a child waits for its parent anyway",
                    ));
                    continue;
                }
                total += own.len() * found.len();
                if total > MOST_LINKS {
                    let message = format!("the manifest has more than {MOST_LINKS} dependencies");
                    problems.push(problems.error("node/out-of-range", node, &path, wanted.span, message));
                    return;
                }
                for index in own {
                    self.nodes[index].depends_on.extend(found.clone());
                }
            }
        }
        for node in &mut self.nodes {
            node.depends_on.sort_unstable();
            node.depends_on.dedup();
        }
    }

    /// Finds levels and order. Whether there are any: not if nodes are in each other or wait for each other.
    fn set_order(&mut self, manifest: &Manifest, problems: &mut Problems<'_>) -> bool {
        let mut level: Vec<usize> = self.roots().collect();
        let mut depth = 0;
        while !level.is_empty() {
            for &index in &level {
                self.nodes[index].depth = depth;
            }
            self.sort_level(&level);
            let mut next: Vec<usize> =
                level.iter().flat_map(|index| self.nodes[*index].children.iter().copied()).collect();
            next.sort_unstable();
            level = next;
            depth += 1;
        }
        if self.order.len() == self.nodes.len() {
            return true;
        }
        let mut ordered = vec![false; self.nodes.len()];
        self.order.iter().for_each(|index| ordered[*index] = true);
        for cycle in cycles(self, &ordered, &|node| node.parent) {
            let mut around = cycle;
            // From the parent to what is made in it.
            around.reverse();
            self.tell_cycle(&around, "nodes are made in each other", "parent", manifest, problems);
        }
        // Also those of nodes that are made in each other, which have no level.
        let all: Vec<usize> = (0..self.nodes.len()).collect();
        let mut started = vec![false; self.nodes.len()];
        self.sorted(&all).into_iter().for_each(|index| started[index] = true);
        let first_waiting =
            |node: &ForestNode| node.depends_on.iter().copied().find(|other| !started[*other]);
        for mut cycle in cycles(self, &started, &first_waiting) {
            cycle.reverse();
            self.tell_cycle(&cycle, "nodes wait for each other", "depends_on", manifest, problems);
        }
        false
    }

    /// Adds the nodes of one level to the order: file order, but what others wait for first.
    fn sort_level(&mut self, level: &[usize]) {
        if level.iter().all(|index| self.nodes[*index].depends_on.is_empty()) {
            self.order.extend(level);
        } else {
            let sorted = self.sorted(level);
            self.order.extend(sorted);
        }
    }

    /// Returns `level` without those that wait for each other: file order, but what others wait for first.
    fn sorted(&self, level: &[usize]) -> Vec<usize> {
        let mut sorted = Vec::with_capacity(level.len());
        let mut left: HashMap<usize, usize> = HashMap::new();
        let mut dependents: HashMap<usize, Vec<usize>> = HashMap::new();
        let mut ready = BinaryHeap::new();
        for &index in level {
            let wanted = &self.nodes[index].depends_on;
            left.insert(index, wanted.len());
            wanted.iter().for_each(|other| dependents.entry(*other).or_default().push(index));
            if wanted.is_empty() {
                ready.push(Reverse(index));
            }
        }
        while let Some(Reverse(index)) = ready.pop() {
            sorted.push(index);
            for dependent in dependents.get(&index).into_iter().flatten() {
                if let Some(left) = left.get_mut(dependent) {
                    *left -= 1;
                    if *left == 0 {
                        ready.push(Reverse(*dependent));
                    }
                }
            }
        }
        sorted
    }

    fn tell_cycle(
        &self,
        cycle: &[usize],
        what: &str,
        path: &str,
        manifest: &Manifest,
        problems: &mut Problems<'_>,
    ) {
        let Some(&first) = cycle.iter().min() else { return };
        let start = cycle.iter().position(|index| *index == first).unwrap_or(0);
        let around = cycle.iter().cycle().skip(start).take(cycle.len() + 1);
        let names: Vec<&str> = around.map(|index| self.nodes[*index].name.as_str()).collect();
        let node = &manifest.nodes[self.nodes[first].written];
        let span = match path {
            "parent" => node.parent.as_ref().map(|parent| parent.span),
            _ => node.depends_on.first().map(|wanted| wanted.span),
        };
        let message = format!("{what}: {}", names.join(" -> "));
        problems.push(problems.error("node/cycle", node, path, span.unwrap_or(node.name.span), message));
    }
}

fn duplicate(problems: &Problems<'_>, node: &ManifestNode, name: &str) -> stead_model::Diagnostic {
    let message = format!("the node `{name}` is there twice");
    problems.error("node/duplicate-name", node, "name", node.name.span, message)
}

/// Returns the cycles that following `next` over the nodes without order leads into, each once.
fn cycles(forest: &Forest, ordered: &[bool], next: &dyn Fn(&ForestNode) -> Option<usize>) -> Vec<Vec<usize>> {
    const UNSEEN: usize = usize::MAX;
    let mut seen_in = vec![UNSEEN; forest.nodes.len()];
    let mut found = Vec::new();
    for start in (0..forest.nodes.len()).filter(|index| !ordered[*index]) {
        let mut path = Vec::new();
        let mut at = Some(start);
        while let Some(index) = at {
            if seen_in[index] != UNSEEN {
                if seen_in[index] == start {
                    let from = path.iter().position(|visited| *visited == index).unwrap_or(0);
                    found.push(path.split_off(from));
                }
                break;
            }
            seen_in[index] = start;
            path.push(index);
            at = next(&forest.nodes[index]).filter(|other| !ordered[*other]);
        }
    }
    found
}

//! Patterns: what a manifest says it builds, against what its nodes are.

use std::collections::BTreeMap;

use stead_model::site::Manifest;
use stead_model::site::manifest::Pattern;

use super::Forest;

/// How many nodes a message names.
const NAMED: usize = 8;

/// Returns the rule of `pattern` that the forest breaks, with the nodes that break it; nothing if it holds.
pub fn violation(pattern: Pattern, forest: &Forest, manifest: &Manifest) -> Option<String> {
    match pattern {
        Pattern::Flat => flat(forest),
        Pattern::Tiered => tiered(forest),
        Pattern::HubSpoke => hub_spoke(forest, manifest),
        Pattern::Mesh => mesh(forest),
        Pattern::Federated => federated(forest),
    }
}

/// Returns the pattern that fits, or nothing if none does.
pub fn infer(forest: &Forest, manifest: &Manifest) -> Option<Pattern> {
    if forest.links().next().is_none() {
        let is_flat = forest.nodes.iter().all(|node| node.parent.is_none());
        return Some(if is_flat { Pattern::Flat } else { Pattern::Tiered });
    }
    [Pattern::Mesh, Pattern::Tiered, Pattern::Federated]
        .into_iter()
        .find(|pattern| violation(*pattern, forest, manifest).is_none())
}

fn names(forest: &Forest, nodes: impl IntoIterator<Item = usize>) -> String {
    let mut nodes = nodes.into_iter();
    let mut text: Vec<&str> =
        nodes.by_ref().take(NAMED).map(|index| forest.nodes[index].name.as_str()).collect();
    if nodes.next().is_some() {
        text.push("…");
    }
    text.join(", ")
}

fn link(forest: &Forest, (a, b): (usize, usize)) -> String {
    format!("{} and {}", forest.nodes[a].name, forest.nodes[b].name)
}

fn no_peers(forest: &Forest, pattern: &str) -> Option<String> {
    forest.links().next().map(|found| format!("{pattern} has no peers, but {} are", link(forest, found)))
}

fn flat(forest: &Forest) -> Option<String> {
    if let Some(broken) = no_peers(forest, "flat") {
        return Some(broken);
    }
    let mut deep =
        forest.nodes.iter().enumerate().filter(|(_, node)| node.depth > 1).map(|(index, _)| index).peekable();
    if deep.peek().is_some() {
        return Some(format!(
            "flat has at most one level below its root, but these are deeper: {}",
            names(forest, deep)
        ));
    }
    let has_children = forest.nodes.iter().any(|node| node.parent.is_some());
    let roots: Vec<usize> = forest.roots().collect();
    (has_children && roots.len() > 1).then(|| {
        format!(
            "flat is roots alone or one root with its children, but there are several roots: {}",
            names(forest, roots)
        )
    })
}

fn tiered(forest: &Forest) -> Option<String> {
    if forest.nodes.iter().all(|node| node.parent.is_none()) {
        return Some(format!(
            "tiered has a node in another, but all are roots: {}",
            names(forest, forest.roots())
        ));
    }
    let parent = |index: usize| forest.nodes[index].parent;
    let strange = forest.links().find(|(a, b)| parent(*a).is_none() || parent(*a) != parent(*b));
    strange.map(|found| {
        format!("tiered has peers only between children of one parent, unlike {}", link(forest, found))
    })
}

fn hub_spoke(forest: &Forest, manifest: &Manifest) -> Option<String> {
    if let Some(broken) = no_peers(forest, "hub-spoke") {
        return Some(broken);
    }
    let roots: Vec<usize> = forest.roots().collect();
    if let [hub] = roots[..] {
        let node = &forest.nodes[hub];
        return node
            .children
            .is_empty()
            .then(|| format!("the hub of hub-spoke has a child, but {} has none", node.name));
    }
    let mut at: BTreeMap<&str, usize> = BTreeMap::new();
    for &root in &roots {
        let Some(host) = &manifest.nodes[forest.nodes[root].written].host else {
            return Some(format!(
                "hub-spoke has one root, or each root on a host of its own, but {} names no `host`",
                forest.nodes[root].name
            ));
        };
        if let Some(other) = at.insert(&host.value, root) {
            return Some(format!(
                "in hub-spoke each root is on a host of its own, but {} are both on `{}`",
                link(forest, (other, root)),
                host.value
            ));
        }
    }
    None
}

fn several_roots(forest: &Forest, pattern: &str) -> Option<String> {
    let roots: Vec<usize> = forest.roots().collect();
    (roots.len() < 2)
        .then(|| format!("{pattern} has at least two roots, but there is one: {}", names(forest, roots)))
}

fn mesh(forest: &Forest) -> Option<String> {
    if let Some(broken) = several_roots(forest, "mesh") {
        return Some(broken);
    }
    let is_root = |index: usize| forest.nodes[index].parent.is_none();
    if let Some(found) = forest.links().find(|(a, b)| !is_root(*a) || !is_root(*b)) {
        return Some(format!("mesh has peers only between roots, unlike {}", link(forest, found)));
    }
    let mut alone = forest.roots().filter(|root| forest.nodes[*root].peers.is_empty()).peekable();
    if alone.peek().is_some() {
        return Some(format!("in mesh every root has a peer, but these have none: {}", names(forest, alone)));
    }
    let mut reached = vec![false; forest.nodes.len()];
    let mut stack: Vec<usize> = forest.roots().take(1).collect();
    while let Some(index) = stack.pop() {
        if !std::mem::replace(&mut reached[index], true) {
            stack.extend(&forest.nodes[index].peers);
        }
    }
    let mut apart = forest.roots().filter(|root| !reached[*root]).peekable();
    apart.peek().is_some().then(|| {
        format!("the peers of mesh are all connected, but these are apart: {}", names(forest, apart))
    })
}

fn federated(forest: &Forest) -> Option<String> {
    if let Some(broken) = several_roots(forest, "federated") {
        return Some(broken);
    }
    let tree = forest.trees();
    let is_linked = forest.links().any(|(a, b)| tree[a] != tree[b]);
    (!is_linked).then(|| {
        format!(
            "federated has peers in different trees, but none of these are linked: {}",
            names(forest, forest.roots())
        )
    })
}

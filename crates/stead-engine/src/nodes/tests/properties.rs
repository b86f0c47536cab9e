//! Order, patterns, modes and selection over random forests.

use proptest::prelude::*;
use stead_model::site::manifest::{Mode, NodeExecution, Pattern};

use super::*;

/// A random forest as a manifest: parents come from earlier or later in the file, links and dependencies at random.
pub(super) fn forests() -> impl Strategy<Value = String> {
    let node =
        (any::<prop::sample::Index>(), 0..4u8, prop::collection::vec(any::<prop::sample::Index>(), 0..3));
    (prop::collection::vec(node, 1..24), any::<u64>()).prop_map(|(nodes, shuffle)| {
        let count = nodes.len();
        // A place in the file for every node.
        let mut places: Vec<usize> = (0..count).collect();
        places.sort_by_key(|i| (*i as u64 + 1).wrapping_mul(shuffle | 1) % 1009);
        let mut lines = vec![String::new(); count];
        for (i, (parent, kind, peers)) in nodes.iter().enumerate() {
            let mut line = format!("  - {{name: n{i}, type: vm");
            if i > 0 && *kind > 0 {
                line.push_str(&format!(", parent: n{}", parent.index(i)));
            }
            let peers: std::collections::BTreeSet<usize> =
                peers.iter().map(|peer| peer.index(count)).filter(|peer| *peer != i).collect();
            if *kind == 3 && !peers.is_empty() {
                let peers: Vec<String> = peers.iter().map(|peer| format!("n{peer}")).collect();
                line.push_str(&format!(", peers: [{}]", peers.join(", ")));
            }
            lines[places[i]] = format!("{line}}}\n");
        }
        format!("nodes:\n{}", lines.concat())
    })
}

fn forest_of(text: &str) -> (Entry<Manifest>, Forest) {
    let entry = manifest(text);
    let forest = check_manifest(&Site::default(), &entry, ForHost::default()).forest;
    (entry, forest.expect("parents are earlier numbers, so there is no cycle"))
}

fn any_mode() -> impl Strategy<Value = Option<Mode>> {
    prop::option::of(prop::sample::select(vec![Mode::Push, Mode::Pull, Mode::Hybrid]))
}

proptest! {
    /// Parents come before children, levels before deeper ones, the file's order holds among equals.
    #[test]
    fn the_order_is_breadth_first_in_file_order(text in forests()) {
        let (_, forest) = forest_of(&text);
        let mut seen = vec![false; forest.nodes.len()];
        for pair in forest.order().windows(2) {
            let key = |index: usize| (forest.nodes[index].depth, index);
            prop_assert!(key(pair[0]) < key(pair[1]));
        }
        for &index in forest.order() {
            let node = &forest.nodes[index];
            prop_assert!(!std::mem::replace(&mut seen[index], true));
            if let Some(parent) = node.parent {
                prop_assert!(seen[parent]);
                prop_assert_eq!(node.depth, forest.nodes[parent].depth + 1);
            }
        }
        prop_assert!(seen.into_iter().all(|seen| seen));
        for (a, b) in forest.links() {
            prop_assert!(forest.nodes[a].peers.contains(&b) && forest.nodes[b].peers.contains(&a));
        }
    }

    /// What is inferred holds, and nothing is inferred only where none of those that may be holds.
    #[test]
    fn the_inferred_pattern_holds(text in forests()) {
        let (entry, forest) = forest_of(&text);
        match infer(&forest, &entry.value) {
            Some(pattern) => prop_assert_eq!(violation(pattern, &forest, &entry.value), None),
            None => for pattern in [Pattern::Mesh, Pattern::Tiered, Pattern::Federated, Pattern::Flat] {
                prop_assert!(violation(pattern, &forest, &entry.value).is_some());
            },
        }
    }

    /// What is selected to be made has its parents, what is selected to be removed has its children.
    #[test]
    fn selections_are_closed(text in forests(), depth in prop::option::of(1..6usize), only in prop::collection::vec(0..24usize, 0..4)) {
        let (_, forest) = forest_of(&text);
        let only: Vec<String> = only.into_iter().filter(|i| *i < forest.nodes.len()).map(|i| format!("n{i}")).collect();
        let choice = Choice { depth, only };
        let made = match select(&forest, &choice, Verb::Make, &|_| false) {
            Ok(made) => made,
            // Only what is named can be cut off, and then all of it is.
            Err(SelectError::Deeper { depth, .. }) => {
                let is_cut = |name: &String| {
                    forest.nodes.iter().any(|node| node.name.as_str() == name && node.depth >= depth)
                };
                prop_assert!(!choice.only.is_empty() && choice.only.iter().all(is_cut));
                return Ok(());
            }
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        };
        let removed = select(&forest, &choice, Verb::Remove, &|_| false).unwrap();
        for (index, node) in forest.nodes.iter().enumerate() {
            if let Some(parent) = node.parent {
                prop_assert!(!made.selected[index] || made.selected[parent]);
                prop_assert!(!removed.selected[parent] || removed.selected[index]);
            }
            if let Some(depth) = depth {
                prop_assert!(!made.selected[index] || node.depth < depth);
            }
        }
        let asked = select(&forest, &choice, Verb::Make, &|_| true).unwrap();
        prop_assert!(asked.added.is_empty());
        prop_assert!(asked.selected.iter().zip(&made.selected).all(|(asked, made)| !asked || *made));
    }

    /// The flag decides over everything; without it the node's own words do, and never its parent's.
    #[test]
    fn modes_follow_the_rule(flag in any_mode(), default in any_mode(), mode in any_mode(), config in any_mode(), run in any_mode(), destroy in any_mode()) {
        let manifest = Manifest { default_mode: default.unwrap_or_default(), ..Manifest::default() };
        let found = modes(flag, &manifest, &NodeExecution { mode, config, run, destroy });
        prop_assert_eq!(found.config, flag.or(config).or(mode).or(default).unwrap_or(Mode::Push));
        prop_assert_eq!(found.run, run.unwrap_or(found.config));
        prop_assert_eq!(found.destroy, destroy.unwrap_or(Mode::Push));
    }

    /// Whatever is written: an answer, never a panic.
    #[test]
    fn any_manifest_is_answered(text in "nodes: \\[(\\{name: ([ab]|a-1|b{62})(, type: vm)?(, parent: ([abc]|a-1|b{62}))?(, peers: \\[[abc](, ([abc]|b{62}))?\\])?(, depends_on: \\[([abc]|a-1|b{62})\\])?(, count: [0-3])?\\}, ){1,5}\\]\n") {
        drop(check(&text));
    }
}

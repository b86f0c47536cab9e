//! Links that leave a subtree: whoever holds both ends makes them, and they stay. On sandboxes.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use serde_json::Value;

use super::delegating::{SERVED, Tree};

/// Two linked trees and a root without a spec; nodes in the trees pull.
const TREES: &str = "  - {name: a, type: vm, peers: [c], execution: {mode: push}}
  - {name: a1, type: vm, spec: base, parent: a, peers: [a2, b1]}
  - {name: a2, type: vm, spec: base, parent: a}
  - {name: b, type: vm, execution: {mode: push}}
  - {name: b1, type: vm, spec: base, parent: b}
  - {name: c, type: vm, execution: {mode: push}}
pattern: federated
execution: {default_mode: pull}
";

/// Returns the names of the peers that a node knows.
fn peers(tree: &Tree, path: &[&str]) -> Vec<String> {
    let text = fs::read_to_string(tree.root(path).join("etc/stead/peers.json")).unwrap_or_default();
    let peers: Vec<Value> = serde_json::from_str(&text).unwrap_or_default();
    peers.iter().map(|peer| peer["name"].as_str().unwrap().to_owned()).collect()
}

/// Returns the checks that a run left of a node, by name, with their statuses.
fn checks(tree: &Tree, run: &str, node: &str) -> Vec<(String, String)> {
    let task = format!("{node}.verify");
    let mut found = Vec::new();
    for event in tree.lab.events(run) {
        let event = if event["ev"] == "delegated" { &event["event"] } else { &event };
        let checks = event["data"]["checks"].as_array().filter(|_| event["task"] == task.as_str());
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        found.extend(
            checks.into_iter().flatten().map(|check| (text(&check["check"]), text(&check["status"]))),
        );
    }
    found
}

/// Section 6 and ST-9: links between trees are made on both ends, stay, and are looked at from both ends.
#[test]
fn links_between_trees_are_made_kept_and_verified() {
    let tree = Tree::with(TREES, &[("site.yaml", SERVED)]);
    tree.run("create", &[]).exits(0);
    assert_eq!(peers(&tree, &["b", "b1"]), ["a1"]);
    assert_eq!(peers(&tree, &["a", "a1"]), ["a2", "b1"]);

    let file = tree.root(&["a", "a1"]).join("etc/stead/peers.json");
    let before = fs::metadata(&file).unwrap().ino();
    let again = tree.run("create", &[]).exits(0).document();
    let report = tree.lab.report(again["run"].as_str().unwrap());
    let links = report["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|task| task["name"].as_str().unwrap().contains(".link."));
    for link in links {
        assert_eq!(link["status"], "unchanged", "{link}");
    }
    assert_eq!(fs::metadata(&file).unwrap().ino(), before, "nobody wrote it anew");

    let verified = tree.run("verify", &[]).exits(0).document();
    let run = verified["run"].as_str().unwrap();
    let passed = |check: &str| (check.to_owned(), "passed".to_owned());
    for (node, links) in
        [("a1", &["link.a2", "link.b1"][..]), ("b1", &["link.a1"]), ("c", &["link.a"]), ("a", &["link.c"])]
    {
        let found = checks(&tree, run, node);
        assert!(links.iter().all(|link| found.contains(&passed(link))), "{node}: {found:?}");
    }

    fs::write(tree.root(&["b", "b1"]).join("etc/stead/peers.json"), "[]\n").unwrap();
    let broken = tree.run("verify", &[]).exits(1).document();
    let found = checks(&tree, broken["run"].as_str().unwrap(), "b1");
    assert!(found.contains(&("link.a1".to_owned(), "failed".to_owned())), "{found:?}");
}

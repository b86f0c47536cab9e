//! Links: whoever holds both ends makes them, and they stay, also where they leave a subtree. On sandboxes.

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
pub(crate) fn checks(tree: &Tree, run: &str, node: &str) -> Vec<(String, String)> {
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

/// Two peers at one level, or one of them with something in the way.
const PEERS: &str =
    "  - {name: a, type: vm, spec: base, peers: [b]}\n  - {name: b, type: vm, spec: base}\npattern: mesh\n";

/// Section 6: a node is linked with a peer that was made before, and both are told.
#[test]
fn peers_that_are_made_one_by_one_are_linked() {
    for mode in ["push", "pull"] {
        let tree = Tree::with(PEERS, &[("site.yaml", SERVED)]);
        tree.run("create", &["--mode", mode, "--only", "a"]).exits(0);
        assert_eq!(peers(&tree, &["a"]), Vec::<String>::new());
        let dry = tree.run("create", &["--mode", mode, "--only", "b", "--dry-run"]).exits(0);
        assert!(dry.stdout.contains("a.link.b"), "{}", dry.stdout);
        tree.run("create", &["--mode", mode, "--only", "b"]).exits(0);
        assert_eq!((peers(&tree, &["a"]), peers(&tree, &["b"])), (vec!["b".into()], vec!["a".into()]));
        tree.run("verify", &["--mode", mode]).exits(0);
    }
}

/// Section 6: a node that cannot keep its peers says so, and who told it fails.
#[test]
fn a_link_that_an_agent_cannot_write_fails() {
    let alone = PEERS.replace(", peers: [b]", "").replace("pattern: mesh\n", "");
    let tree = Tree::with(&alone, &[("site.yaml", SERVED)]);
    tree.run("create", &["--mode", "pull"]).exits(0);
    let file = tree.root(&["a"]).join("etc/stead/peers.json");
    fs::create_dir(&file).unwrap();
    tree.lab.write("site-config/manifests/m.yaml", super::manifest(PEERS));
    let told = tree.run("create", &["--mode", "pull"]).exits(1);
    assert!(told.stdout.contains("peers are not written"), "{}", told.stdout);
    fs::remove_dir(&file).unwrap();
    tree.run("create", &["--mode", "pull"]).exits(0);
    assert_eq!(peers(&tree, &["a"]), ["b"]);
}

/// Section 6: an agent that hears of its peers and never reports it, as those of older versions do, is not waited for
/// without end, and what is said leads on. Its first report, that of its spec, gets through, and no other does.
#[test]
fn an_agent_that_reports_no_link_is_told_of_with_what_to_do() {
    let host = "driver: sandbox\ntimeouts: {ssh: 3}\nfaults: [{node: a, phase: report, times: 1}, {node: a, phase: report, error: silent}]\n";
    let nodes = format!("{PEERS}settings: {{timeout_buffer: 0}}\n");
    let tree = Tree::with(&nodes, &[("site.yaml", SERVED), ("hosts/local.yaml", host)]);
    let told = tree.run("create", &["--mode", "pull"]).exits(8).document();
    let message = told["error"]["message"].as_str().unwrap();
    assert!(message.contains("did not report within 3s that it knows its peers"), "{told}");
    assert!(message.contains("although it is connected; one of an older version reports no links"), "{told}");
    assert_eq!(peers(&tree, &["a"]), ["b"], "it has done as it was told");
    // What is said helps: who takes the agent away tells the node itself.
    tree.run("create", &["--mode", "push"]).exits(0);
}

/// ST-9 for nodes that pull: all links of a mesh are there as soon as they are looked at.
#[test]
fn a_mesh_that_pulls_is_linked_when_it_is_verified() {
    let nodes = "  - {name: a, type: vm, spec: base, peers: [b]}\n  - {name: b, type: vm, spec: base, peers: [c]}\n  - {name: c, type: vm, spec: base}\npattern: mesh\nexecution: {default_mode: pull}\n";
    let tree = Tree::with(nodes, &[("site.yaml", SERVED)]);
    let tested = tree.run("test", &[]).exits(0).document();
    let run = tested["run"].as_str().unwrap();
    for (node, links) in [("a", &["link.b"][..]), ("b", &["link.a", "link.c"]), ("c", &["link.b"])] {
        let found = checks(&tree, run, node);
        let is_linked = |link: &&str| found.contains(&((*link).to_owned(), "passed".to_owned()));
        assert!(links.iter().all(is_linked), "{node}: {found:?}");
    }
}

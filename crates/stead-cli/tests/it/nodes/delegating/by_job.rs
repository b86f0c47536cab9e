//! Subtrees of nodes that pull: everything goes through agents, nothing over SSH.

use super::super::links;
use super::*;

/// Two levels that pull, and whose hosting node is told what to do by its agent.
const PULLED: &str = "  - {name: quay, type: vm, spec: base}\n  - {name: crane, type: vm, spec: base, parent: quay, count: 2}\nexecution: {default_mode: pull}\nsettings: {delegation: job, verify_ssh: false}\n";

/// Returns what all machines of a place said, those in others too.
fn consoles(directory: &Path) -> String {
    let mut text = String::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
            } else if entry.file_name() == "console.log" {
                text += &fs::read_to_string(entry.path()).unwrap_or_default();
            }
        }
    }
    text
}

/// Whether nobody ever connected to the SSH server of any machine of the tree.
#[track_caller]
pub(super) fn assert_unconnected(tree: &Tree, machines: usize) {
    let said = consoles(&tree.lab.path("state/machines"));
    assert_eq!(said.matches("takes logins on").count(), machines, "{said}");
    for word in ["login of", "a connection ended", "refused"] {
        assert!(!said.contains(word), "{said}");
    }
}

/// Case 33: a tree that pulls needs no SSH, from its first node to its last; the run above has all events.
#[test]
fn a_tree_that_pulls_needs_no_ssh() {
    let tree = Tree::with(PULLED, &[("site.yaml", SERVED)]);
    let made = tree.run("create", &[]).exits(0).document();
    assert_eq!(statuses(&made), all("completed", &["quay", "crane-1", "crane-2"]));
    assert_unconnected(&tree, 3);
    let events = tree.lab.events(made["run"].as_str().unwrap());
    assert_whole(&delegated(&events, "quay.children.create", &["quay"]));
    assert_eq!(tree.state()["nodes"]["crane-1"]["parent"], "quay");

    // What went down is read where it is needed, and kept nowhere else.
    let (top, node) =
        (SigningKey::parse(&"ab".repeat(32)).unwrap(), stead_model::NodeName::parse("quay").unwrap());
    let derived = top.derive(&SiteKey::parse("m").unwrap(), &node).to_hex();
    let secrets = tree.root(&["quay"]).join("var/lib/stead/delegated/site/m/secrets.yaml");
    assert!(fs::read_to_string(secrets).unwrap().contains(&derived));
    assert!(!holds(&tree.lab.path("state/server"), derived.as_bytes()), "a key is left with the server");
    let agent = tree.root(&["quay"]).join("var/lib/stead/agent");
    assert!(!holds(&agent, derived.as_bytes()), "a key is left with the agent");
    let jobs = tree.lab.run(["job", "list", "--json"]).exits(0);
    assert!(jobs.stdout.contains("errand") && !jobs.stdout.contains(&derived), "{}", jobs.stdout);

    tree.lab.run(["drift", "-M", "m", "-H", "local", "--json"]).exits(0);
    let gone = tree.run("destroy", &[]).exits(0).document();
    assert_eq!(statuses(&gone), all("destroyed", &["crane-2", "crane-1", "quay"]));
    let events = tree.lab.events(gone["run"].as_str().unwrap());
    assert_whole(&delegated(&events, "quay.children.destroy", &["quay"]));
    assert!(tree.state().is_null());
    assert_eq!(fs::read_dir(tree.lab.path("state/machines")).map_or(0, |left| left.count()), 0);
}

/// A test of such a tree looks at every level without SSH, too.
#[test]
fn a_test_needs_no_ssh() {
    let tree = Tree::with(PULLED, &[("site.yaml", SERVED)]);
    let tested = tree.run("test", &[]).exits(0).document();
    assert_eq!(statuses(&tested), all("destroyed", &["quay", "crane-1", "crane-2"]));
    let events = tree.lab.events(tested["run"].as_str().unwrap());
    assert_whole(&delegated(&events, "quay.children.verify", &["quay"]));
}

/// Section 13: who is not logged into is looked at by its agent; without one every check says that it was not made.
#[test]
fn what_is_wrong_is_found_without_ssh() {
    let nodes = "  - {name: a, type: vm, spec: base, peers: [b]}\n  - {name: b, type: vm, spec: base}\nexecution: {default_mode: pull}\nsettings: {verify_ssh: false}\n";
    let tree = Tree::with(nodes, &[("site.yaml", SERVED)]);
    tree.run("create", &[]).exits(0);
    let checks = |code: i32, more: &[&str]| -> Vec<String> {
        let verified = tree.run("verify", more).exits(code).document();
        let found = links::checks(&tree, verified["run"].as_str().unwrap(), "a").into_iter();
        found.map(|(check, status)| format!("{check} {status}")).collect()
    };
    let inner =
        ["hostname", "marker", "identity", "packages", "users", "services", "security", "network", "link.b"];
    let all = |status: &str| -> Vec<String> {
        let outer = ["address passed", "ssh skipped"].map(str::to_owned);
        outer.into_iter().chain(inner.map(|check| format!("{check} {status}"))).collect()
    };
    assert_eq!(checks(0, &[]), all("passed"));
    let root = tree.root(&["a"]);
    fs::write(root.join("etc/hostname"), "bad\n").unwrap();
    fs::remove_file(root.join("etc/stead/peers.json")).unwrap();
    let found = checks(1, &[]);
    for wrong in ["hostname failed", "identity failed", "link.b failed", "marker passed"] {
        assert!(found.contains(&wrong.to_owned()), "{wrong}: {found:?}");
    }
    assert_unconnected(&tree, 2);
    tree.run("create", &["--mode", "push"]).exits(0);
    assert_eq!(checks(0, &["--mode", "push"]), all("skipped"));
}

/// Section 12: what pulls is asked by jobs at every level, and drift is found where it is.
#[test]
fn drift_of_what_pulls_is_found_by_jobs() {
    let tree = Tree::with(PULLED, &[("site.yaml", SERVED)]);
    tree.run("create", &[]).exits(0);
    let bad = |path: &[&str]| fs::write(tree.root(path).join("etc/hostname"), "bad\n").unwrap();
    bad(&["quay"]);
    bad(&["quay", "crane-2"]);
    let found = tree.lab.run(["drift", "-M", "m", "-H", "local", "--json"]).exits(4).document();
    let row = |name: &str, path: &str| format!("{name} {path}");
    let rows = found["drift"].as_array().unwrap().iter();
    let rows: Vec<String> =
        rows.map(|it| row(it["node"].as_str().unwrap(), it["path"].as_str().unwrap())).collect();
    let expected = ["crane-2", "quay"].map(|name| ["domain", "hostname"].map(|path| row(name, path)));
    assert_eq!(rows, expected.concat(), "{found}");
    assert_eq!(found["unreachable"], json!([]));
    assert_unconnected(&tree, 3);
    tree.lab.run(["server", "stop"]).exits(0);
    let found = tree.lab.run(["drift", "-M", "m", "-H", "local", "--json"]).exits(7).document();
    assert_eq!(found["unreachable"], json!(["crane-1", "crane-2", "quay"]));
    assert!(tree.lab.run(["server", "status"]).code == 1, "asking starts no server");
}

/// Case 32 for jobs: who reads is killed, and so is the agent; nothing is missed, nothing comes twice.
#[test]
fn an_agent_that_ends_loses_no_event() {
    let nodes = PULLED.replacen("spec: base}\n", "spec: base, hosting: {boot_delay_ms: 8000}}\n", 1);
    let tree = Tree::with(&nodes, &[("site.yaml", SERVED)]);
    let child = tree.start("create");
    wait_for("somebody who listens", || !tree.processes(&["errand", "follow"]).is_empty());
    for listener in tree.processes(&["errand", "follow"]) {
        kill_process(listener, Signal::KILL).ok();
    }
    wait_for("somebody who listens", || !tree.processes(&["errand", "follow"]).is_empty());
    for agent in tree.processes(&["agent", "run"]) {
        kill_process(agent, Signal::KILL).ok();
    }
    let ended: Ended = child.wait_with_output().unwrap().into();
    let made = ended.exits(0).document();
    assert_eq!(statuses(&made), all("completed", &["quay", "crane-1", "crane-2"]));
    let events = tree.lab.events(made["run"].as_str().unwrap());
    assert_whole(&delegated(&events, "quay.children.create", &["quay"]));
    assert_unconnected(&tree, 3);
}

/// Cancel travels down through the agent.
#[test]
fn an_interrupt_travels_down_as_a_job() {
    let nodes = PULLED.replacen("spec: base}\n", "spec: base, hosting: {boot_delay_ms: 20000}}\n", 1);
    let tree = Tree::with(&nodes, &[("site.yaml", SERVED)]);
    let child = tree.start("create");
    wait_for("the run below", || !tree.processes(&["errand", "follow"]).is_empty());
    let runs = tree.root(&["quay"]).join("var/lib/stead/runs");
    wait_for("its journal", || has_started(&runs));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ended: Ended = child.wait_with_output().unwrap().into();
    let made = ended.exits(130).document();
    assert_whole(&delegated(
        &tree.lab.events(made["run"].as_str().unwrap()),
        "quay.children.create",
        &["quay"],
    ));
    assert_unconnected(&tree, 1);
}

/// A hosting node that is pushed has no agent to be told by.
#[test]
fn a_pushed_hosting_node_is_refused() {
    let tree = Tree::with(PULLED, &[("site.yaml", SERVED)]);
    tree.run("create", &["--mode", "push"]).exits(3).says("node/conflict");
}

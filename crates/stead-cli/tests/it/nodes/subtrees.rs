//! Subtrees that somebody dies in, that are only partly meant, or of which something is lost. On sandboxes.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use super::delegating::{Tree, all, has_started, statuses, wait_for};
use super::world::World;
use super::{manifest, write};

const QUAY: &str = "  - {name: quay, type: vm}\n  - {name: crane, type: vm, parent: quay}\n  - {name: hook, type: vm, parent: quay}\n";

/// Returns how many machines there are in a state directory.
fn machines(state: &Path) -> usize {
    fs::read_dir(state.join("machines")).map_or(0, |entries| entries.count())
}

/// Returns a row of a document.
fn row<'a>(document: &'a Value, name: &str) -> &'a Value {
    let rows = document["nodes"].as_array().unwrap_or_else(|| panic!("{document}"));
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{document}"))
}

/// Returns code and message of everything that a document tells.
fn told(document: &Value) -> Vec<String> {
    let rows = document["diagnostics"].as_array().unwrap();
    rows.iter().map(|row| format!("{} {}", row["code"], row["message"])).collect()
}

/// Starts a create, and kills its driver once the run in `quay` has started a task.
fn kill_driver_while_it_makes(tree: &Tree) {
    let mut child = tree.start("create");
    wait_for("quay", || tree.state()["nodes"]["quay"]["machine_id"].is_string());
    let runs = tree.root(&["quay"]).join("var/lib/stead/runs");
    wait_for("the run below", || has_started(&runs));
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Section 10: a rollback leaves older nodes, also those in a node that it only looked at, and whose clock is ahead.
#[test]
fn a_rollback_leaves_an_older_subtree() {
    let tree = Tree::new(QUAY);
    tree.run("create", &[]).exits(0);
    let record = tree.root(&["quay", "crane"]).with_file_name("machine.json");
    let mut ahead: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    ahead["created_at"] = "2199-01-01T00:00:00Z".into();
    fs::write(&record, ahead.to_string()).unwrap();
    let before = tree.state()["nodes"].clone();
    let more = "  - {name: winch, type: vm, parent: quay}\n  - {name: bad, type: vm}\n";
    write(&tree.lab, "manifests/m.yaml", &manifest(&format!("{QUAY}{more}")));
    let fault = "driver: sandbox\nfaults: [{node: bad, phase: create, delay_ms: 8000, error: no room}]\n";
    write(&tree.lab, "hosts/local.yaml", fault);
    let failed = tree.run("create", &["--on-error", "rollback"]).exits(1).document();
    for name in ["quay", "crane", "hook"] {
        assert_eq!(tree.state()["nodes"][name]["machine_id"], before[name]["machine_id"], "{failed}");
    }
    assert_ne!(row(&failed, "crane")["status"], "destroyed", "{failed}");
    assert_ne!(row(&failed, "hook")["status"], "destroyed", "{failed}");
    assert!(tree.state()["nodes"]["winch"]["machine_id"].is_null(), "this run made it: {failed}");
    write(&tree.lab, "hosts/local.yaml", "driver: sandbox\n");
}

/// Section 10: what is in a node that stays is there until it is removed, whatever is known of that node.
#[test]
fn a_host_that_stays_keeps_its_nodes() {
    let tree = Tree::new(QUAY);
    tree.run("create", &[]).exits(0);
    let below = tree.root(&["quay"]).join("var/lib/stead");
    assert_eq!(machines(&below), 2);
    kill_process(tree.pid(&["quay"]), Signal::KILL).unwrap();
    let refused = tree.run("destroy", &["--only", "crane"]).exits(7).document();
    assert!(row(&refused, "crane")["error"].as_str().unwrap().contains("quay"), "{refused}");
    for name in ["crane", "hook"] {
        assert!(tree.state()["nodes"][name]["machine_id"].is_string(), "{refused}");
    }

    tree.run("create", &[]).exits(0);
    fs::remove_file(tree.lab.path("state/nodes/local/m/state.json")).unwrap();
    let gone = tree.run("destroy", &["--only", "crane"]).exits(0).document();
    assert_eq!(row(&gone, "crane")["status"], "destroyed");
    assert_eq!(machines(&below), 1, "hook stays: {gone}");
    let made = tree.run("create", &[]).exits(0).document();
    assert_eq!((machines(&below), row(&made, "hook")["changed"].as_bool()), (2, Some(false)), "{made}");
}

/// Case 38 and section 10: a driver that was killed leaves a run below; create goes on after it, destroy ends it.
#[test]
fn the_run_below_a_killed_driver_is_waited_for_or_stopped() {
    let nodes = |delay: u32| {
        format!(
            "  - {{name: quay, type: vm, hosting: {{boot_delay_ms: {delay}}}}}\n  - {{name: crane, type: vm, parent: quay}}\n"
        )
    };
    let tree = Tree::new(&nodes(8_000));
    kill_driver_while_it_makes(&tree);
    let made = tree.run("create", &[]).exits(0).document();
    assert_eq!(statuses(&made), all("completed", &["quay", "crane"]));
    assert!(told(&made).iter().any(|told| told.contains("node/busy")), "{made}");
    assert_eq!(machines(&tree.root(&["quay"]).join("var/lib/stead")), 1, "no duplicates");
    tree.run("destroy", &[]).exits(0);

    write(&tree.lab, "manifests/m.yaml", &manifest(&nodes(150_000)));
    kill_driver_while_it_makes(&tree);
    let began = Instant::now();
    let gone = tree.run("destroy", &[]).exits(0).document();
    assert_eq!(statuses(&gone), all("destroyed", &["crane", "quay"]));
    assert!(began.elapsed().as_secs() < 120, "it is not waited for: {:?}", began.elapsed());
    assert_eq!(machines(&tree.lab.path("state")), 0);
}

/// Section 10: two levels go from state and labels alone, whichever file is broken, and the driver's key too.
#[test]
fn two_levels_go_without_their_files() {
    for (broken, keeps_state) in [
        ("manifests/m.yaml", true),
        ("manifests/m.yaml", false),
        ("secrets.yaml", false),
        ("../state/ssh/id_ed25519", true),
    ] {
        let tree = Tree::new(
            "  - {name: quay, type: vm, spec: base}\n  - {name: crane, type: vm, spec: base, parent: quay}\n",
        );
        tree.run("create", &[]).exits(0);
        let leaf = tree.pid(&["quay", "crane"]);
        write(&tree.lab, broken, "{{ nonsense\n");
        if !keeps_state {
            fs::remove_file(tree.lab.path("state/nodes/local/m/state.json")).unwrap();
        }
        let gone = tree.run("destroy", &[]).exits(0).document();
        assert_eq!(row(&gone, "quay")["status"], "destroyed", "{broken}: {gone}");
        assert_eq!(machines(&tree.lab.path("state")), 0, "{broken}");
        wait_for("the end of crane", || rustix::process::test_kill_process(leaf).is_err());
        assert!(tree.state().is_null(), "{broken}");
    }
}

/// Section 11: a test asks who makes machines, not only what is remembered, before it removes what was there.
#[test]
fn a_test_leaves_what_was_there_before() {
    let world = World::new();
    world.nodes("- {name: a, type: vm}\n");
    assert_eq!(world.create(&[]).code, 0);
    let machines = world.machine_ids();
    fs::remove_file(world.state_path()).unwrap();
    world.run(&["test", "-M", "m", "-H", "local", "--json"]).exits(6);
    assert_eq!(world.machine_ids(), machines);
    assert_eq!(world.destroy(&[]).code, 0);

    // What could not be made is not there.
    world.host("local", "driver: sandbox\nfaults: [{node: a, phase: create, error: no room}]\n");
    assert_eq!(world.create(&[]).code, 1);
    fs::remove_dir_all(world.kill_machines()).unwrap();
    assert!(world.state().contains("\"failed\""), "it is remembered: {}", world.state());
    world.host("local", "driver: sandbox\n");
    world.run(&["test", "-M", "m", "-H", "local", "--json"]).exits(0);
    assert_eq!(world.left(), Vec::<String>::new());
}

/// Case 26, two levels: a node below that failed says so although it is removed; its siblings are none the worse.
#[test]
fn a_failed_node_below_is_told_apart_from_the_others() {
    let nodes = "  - {name: quay, type: vm, hosting: {faults: [{node: crane, phase: create, error: no room}]}}\n  - {name: crane, type: vm, parent: quay}\n  - {name: hook, type: vm, parent: quay}\nsettings: {on_error: continue}\n";
    let tree = Tree::new(nodes);
    let tested = tree.run("test", &[]).exits(1).document();
    assert_eq!(row(&tested, "crane")["status"], "failed", "{tested}");
    assert!(row(&tested, "crane")["error"].as_str().unwrap().contains("no room"), "{tested}");
    assert_eq!(row(&tested, "hook")["status"], "destroyed", "{tested}");
    let report = fs::read_to_string(tested["report"].as_str().unwrap()).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    let created = |name: &str| row(&report, name)["phases"][0].clone();
    assert_eq!(
        (&created("hook")["status"], &created("hook")["message"]),
        (&"passed".into(), &"".into()),
        "{report}"
    );
    assert_eq!(created("crane")["status"], "failed", "{report}");
    assert!(created("crane")["message"].as_str().unwrap().contains("no room"), "{report}");

    let undone = tree.run("create", &["--on-error", "rollback"]).exits(1).document();
    assert_eq!(row(&undone, "crane")["status"], "failed", "{undone}");
    assert!(row(&undone, "crane")["error"].as_str().unwrap().contains("no room"), "{undone}");
    assert!(tree.state().is_null() && machines(&tree.lab.path("state")) == 0);
}

/// Case 28, two levels: nodes below that the manifest has not any more are told, as is what their run warns of.
#[test]
fn warnings_below_are_told_above() {
    let tree = Tree::new(QUAY);
    tree.run("create", &[]).exits(0);
    kill_process(tree.pid(&["quay", "crane"]), Signal::KILL).unwrap();
    fs::remove_dir_all(tree.root(&["quay", "crane"]).parent().unwrap()).unwrap();
    let kept = QUAY.lines().filter(|line| !line.contains("hook")).map(|line| format!("{line}\n"));
    write(&tree.lab, "manifests/m.yaml", &manifest(&kept.collect::<String>()));
    let made = tree.run("create", &[]).exits(0).document();
    let orphans = |document: &Value| {
        told(document).into_iter().filter(|told| told.contains("node/orphan")).collect::<Vec<_>>()
    };
    assert!(told(&made).iter().any(|told| told.contains("node/gone") && told.contains("crane")), "{made}");
    assert!(orphans(&made).len() == 1 && orphans(&made)[0].contains("hook"), "{made}");

    write(&tree.lab, "manifests/m.yaml", &manifest("  - {name: quay, type: vm}\n"));
    let made = tree.run("create", &[]).exits(0).document();
    assert_eq!(orphans(&made).len(), 2, "nobody below was asked: {made}");
}

/// Section 1: what is of the type `pve` is a hosting node, also before it has children.
#[test]
fn a_hosting_node_without_children_is_checked() {
    let world = World::new();
    world.nodes("- {name: good, type: pve}\n- {name: bad, type: pve, hosting: {driver: cloud-hypervisor}}\nsettings: {on_error: continue}\n");
    let ended = world.create(&["--skip-preflight"]).exits(1);
    assert_eq!(world.statuses(&ended), [("good", "completed"), ("bad", "failed")]);
    let said = "cannot make machines with `cloud-hypervisor`: [FAIL] ";
    assert!(ended.stdout.contains(said), "what its doctor found: {}", ended.stdout);
}

/// Section 10, two levels: so can one that is in a node.
#[test]
fn an_orphan_in_a_node_goes_alone() {
    let tree = Tree::new(QUAY);
    tree.run("create", &[]).exits(0);
    let below = tree.root(&["quay"]).join("var/lib/stead");
    let quay = QUAY.lines().next().unwrap();
    let both = QUAY.lines().filter(|line| !line.contains("hook")).map(|line| format!("{line}\n"));
    write(&tree.lab, "manifests/m.yaml", &manifest(&both.collect::<String>()));
    let gone = tree.run("destroy", &["--only", "hook"]).exits(0).document();
    assert_eq!(row(&gone, "hook")["status"], "destroyed", "{gone}");
    assert_eq!((machines(&below), row(&gone, "crane")["status"].as_str()), (1, Some("skipped")), "{gone}");
    assert!(tree.state()["nodes"]["hook"].is_null() && tree.state()["nodes"]["crane"].is_object());
    // Nobody describes any node in it.
    write(&tree.lab, "manifests/m.yaml", &manifest(&format!("{quay}\n")));
    let gone = tree.run("destroy", &["--only", "crane"]).exits(0).document();
    assert_eq!(row(&gone, "crane")["status"], "destroyed", "{gone}");
    assert_eq!(machines(&below), 0);
    assert_eq!(machines(&tree.lab.path("state")), 1, "quay stays");
}

/// Section 11: everything that goes is told, before and after, also what is in nodes that nobody describes any more.
#[test]
fn what_goes_with_a_node_is_listed() {
    let tree = Tree::new(QUAY);
    tree.run("create", &[]).exits(0);
    let left = QUAY.lines().next().unwrap();
    for (text, more) in
        [("{{ nonsense\n".to_owned(), &[][..]), (manifest(&format!("{left}\n")), &["--only", "quay"][..])]
    {
        write(&tree.lab, "manifests/m.yaml", &text);
        let planned = tree.run("destroy", &[&["--dry-run"], more].concat()).exits(0).document();
        assert_eq!(statuses(&planned), all("pending", &["hook", "crane", "quay"]), "{planned}");
        let rows: Vec<String> = planned["plan"].as_array().unwrap().iter().map(row_of_plan).collect();
        assert_eq!(
            rows,
            [
                "hook.destroy at quay after []",
                "crane.destroy at quay after []",
                r#"quay.destroy at local after ["crane.destroy","hook.destroy"]"#
            ]
        );
        let words = ["destroy", "-M", "m", "-H", "local"];
        let asked = tree.lab.run(words.into_iter().chain(more.iter().copied())).exits(6).stderr;
        assert!(asked.contains("remove 3 nodes of m on local?"), "{asked}");
    }
    write(&tree.lab, "manifests/m.yaml", "{{ nonsense\n");
    let gone = tree.run("destroy", &[]).exits(0).document();
    assert_eq!(statuses(&gone), all("destroyed", &["hook", "crane", "quay"]), "{gone}");
    assert_eq!(row(&gone, "hook")["parent"], "quay", "{gone}");
}

/// Returns task, place and what comes before of a row of a plan.
fn row_of_plan(row: &Value) -> String {
    let text = |key: &str| row[key].as_str().unwrap_or_default();
    format!("{} at {} after {}", text("task"), text("at"), row["depends_on"])
}

/// Case 38: what a driver heard before it was killed is what the next one reports.
#[test]
fn a_killed_driver_forgets_nothing_it_heard() {
    let tree = Tree::new(
        "  - {name: quay, type: vm, hosting: {faults: [{node: bad, phase: create, error: no room}, {node: slow, phase: create, delay_ms: 4000}]}}\n  - {name: bad, type: vm, parent: quay}\n  - {name: good, type: vm, parent: quay}\n  - {name: slow, type: vm, parent: quay}\nsettings: {on_error: continue}\n",
    );
    let mut driver = tree.lab.stead(["create", "-M", "m", "-H", "local", "--run-id", "r1"]);
    let mut driver = driver.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for("two ends", || {
        let nodes = &tree.state()["nodes"];
        nodes["bad"]["status"] == "failed" && nodes["good"]["status"] == "completed"
    });
    driver.kill().unwrap();
    driver.wait().unwrap();
    // What is in the journal may not have come to the file.
    let path = tree.lab.path("state/nodes/local/m/state.json");
    let mut state = tree.state();
    state["nodes"].as_object_mut().unwrap().remove("good");
    fs::write(&path, state.to_string()).unwrap();
    let made = tree.lab.run(["resume", "r1", "--json"]).exits(1).document();
    assert_eq!(row(&made, "bad")["status"], "failed", "{made}");
    assert!(row(&made, "bad")["error"].as_str().unwrap().contains("no room"), "{made}");
    for name in ["good", "slow"] {
        assert_eq!(row(&made, name)["status"], "completed", "{made}");
        assert_eq!(row(&made, name)["changed"], true, "{made}");
    }
    assert!(tree.state()["nodes"]["good"]["machine_id"].is_string());
}

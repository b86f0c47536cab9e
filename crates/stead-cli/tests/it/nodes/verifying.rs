//! `stead test`, `drift` and `exec` over nodes.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::{Value, json};

use super::KEY;
use super::world::World;
use crate::cases_17_32::lab::{Running, wait_until};

/// Returns the root of a node.
fn root(world: &World, node: &str) -> PathBuf {
    let state: Value = serde_json::from_str(&world.state()).unwrap();
    let id = state["nodes"][node]["machine_id"].as_str().unwrap().to_owned();
    world.state_dir().join("machines").join(id).join("root")
}

fn test(world: &World, more: &[&str]) -> crate::cases_17_32::lab::Ended {
    world.run(&[&["test", "-M", "m", "-H", "local", "--json"], more].concat())
}

/// Returns name and status of the phases of a report.
fn phases(report: &Value) -> Vec<String> {
    let rows = report["phases"].as_array().unwrap().iter();
    rows.map(|row| format!("{} {}", row["name"].as_str().unwrap(), row["status"].as_str().unwrap())).collect()
}

/// Returns the report that a document names, and its path.
fn report(document: &Value) -> (Value, PathBuf) {
    let path = PathBuf::from(document["report"].as_str().unwrap_or_else(|| panic!("{document:#}")));
    (serde_json::from_slice(&fs::read(&path).unwrap()).unwrap(), path)
}

/// Case 26: a good test makes, verifies and removes, and says so in two files, which are in the bundle too.
#[test]
fn a_good_test_leaves_a_report_and_nothing_else() {
    let world = World::new();
    world.nodes("- {name: a, type: vm, spec: base, peers: [b]}\n- {name: b, type: vm, spec: base}\n");
    let document = test(&world, &[]).exits(0).document();
    let (found, path) = report(&document);
    assert_eq!(phases(&found), ["create passed", "verify passed", "destroy passed"]);
    assert_eq!(
        (found["scenario"].as_str(), found["success"].as_bool(), found["mode"].as_str()),
        (Some("manifest-test-m"), Some(true), Some("push"))
    );
    assert_eq!(found["run"], document["run"]);
    for node in found["nodes"].as_array().unwrap() {
        let checks = node["checks"].as_array().unwrap();
        let names: Vec<&str> = checks.iter().map(|check| check["check"].as_str().unwrap()).collect();
        let peer = if node["name"] == "a" { "link.b" } else { "link.a" };
        let all =
            ["address", "ssh", "hostname", "marker", "identity", "packages", "users", "services", "security"];
        assert_eq!(names[..9], all, "{node:#}");
        assert_eq!(names[9..], ["network", peer], "{node:#}");
        assert!(checks.iter().all(|check| check["status"] == "passed"), "{node:#}");
    }
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(name.ends_with(".manifest.m.passed.json"), "{name}");
    let markdown = fs::read_to_string(path.with_extension("md")).unwrap();
    assert!(
        markdown.contains("- Status: passed") && markdown.contains("| a | passed | passed | passed |"),
        "{markdown}"
    );
    let bundle = PathBuf::from(document["bundle"].as_str().unwrap());
    assert_eq!(fs::read(bundle.join(name)).unwrap(), fs::read(&path).unwrap());
    assert_eq!(world.run(&["bundle", "verify", bundle.to_str().unwrap()]).code, 0);
    assert_eq!(world.left(), Vec::<String>::new());
}

/// Case 26: create fails: verify is skipped, and destroy runs if the manifest wants to clean up.
#[test]
fn a_failed_create_is_cleaned_up_if_that_is_wanted() {
    for (cleanup, destroy, is_left) in [(true, "destroy passed", false), (false, "destroy skipped", true)] {
        let world = World::new();
        world.host("local", "driver: sandbox\nfaults: [{node: a, phase: config, error: no luck}]\n");
        world.manifest(&format!(
            "settings: {{cleanup_on_failure: {cleanup}}}\nnodes:\n- {{name: a, type: vm, spec: base}}\n"
        ));
        let document = test(&world, &[]).exits(1).document();
        let (found, path) = report(&document);
        assert_eq!(phases(&found), ["create failed", "verify skipped", destroy], "{found:#}");
        assert!(found["phases"][0]["message"].as_str().unwrap().contains("no luck"), "{found:#}");
        assert!(path.to_str().unwrap().ends_with(".failed.json"));
        let markdown = fs::read_to_string(path.with_extension("md")).unwrap();
        assert!(markdown.contains("## Failures") && markdown.contains("no luck"), "{markdown}");
        assert_eq!(!world.left().is_empty(), is_left);
    }
}

/// Case 26: verify fails: destroy still runs.
#[test]
fn a_failed_verify_is_destroyed_all_the_same() {
    let world = World::new();
    world.write(
        "site.yaml",
        "server: {port: 0}\ndefaults: {domain: lab.example, packages: [ca-certificates]}\n",
    );
    world.host(
        "local",
        "driver: sandbox\ntimeouts: {ssh: 1}\nfaults: [{node: a, phase: ssh, error: no door}]\n",
    );
    world.manifest(
        "execution: {default_mode: pull}\nsettings: {timeout_buffer: 1}\nnodes:\n- {name: a, type: vm, spec: base}\n",
    );
    let directory = world.state_dir().join("elsewhere");
    let document = test(&world, &["--report-dir", directory.to_str().unwrap()]).exits(1).document();
    let (found, path) = report(&document);
    assert_eq!(path.parent(), Some(directory.as_path()));
    assert_eq!(phases(&found), ["create passed", "verify failed", "destroy passed"], "{found:#}");
    let checks = found["nodes"][0]["checks"].as_array().unwrap();
    assert!(checks.iter().any(|check| check["check"] == "ssh" && check["status"] == "failed"), "{checks:#?}");
    assert_eq!(world.left(), Vec::<String>::new());
}

/// Section 13: a test that somebody goes on with writes its report where it was told to.
#[test]
fn a_test_that_goes_on_keeps_where_its_report_goes() {
    let world = World::new();
    world.host("local", "driver: sandbox\nboot_delay_ms: 300\n");
    world.manifest("settings: {parallel: 2}\nnodes:\n- {name: n, type: vm, count: 8}\n");
    let words = ["test", "-M", "m", "-H", "local", "--run-id", "r1", "--report-dir", "own-reports"];
    let mut command = world.command(&words);
    let run = Running::of(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    wait_until("some machines", || world.machine_ids().len() >= 2);
    run.kill_hard();
    let resumed = world.run(&["resume", "r1", "--json"]).exits(0).document();
    let (found, path) = report(&resumed);
    assert_eq!(path.parent(), Some(world.path("own-reports").as_path()), "{resumed}");
    assert_eq!(phases(&found), ["create passed", "verify passed", "destroy passed"], "{found:#}");
    assert_eq!(world.left(), Vec::<String>::new());
}

/// Section 13: a place for reports that is none is told before anything is made; where reports usually go is in nobody's
/// way, and the run has its own.
#[test]
fn a_report_that_cannot_be_written_is_told_first_or_kept_with_the_run() {
    let world = World::new();
    world.nodes("- {name: a, type: vm}\n");
    let file = world.path("file");
    fs::write(&file, "").unwrap();
    let refused = test(&world, &["--report-dir", file.to_str().unwrap()]).exits(3).document();
    assert!(refused["error"]["message"].as_str().unwrap().contains(file.to_str().unwrap()), "{refused}");
    assert!(!world.state_dir().exists(), "no trace");
    fs::create_dir_all(world.state_dir()).unwrap();
    fs::write(world.state_dir().join("reports"), "").unwrap();
    let tested = test(&world, &[]).exits(0).document();
    assert!(tested["report"].is_null() && tested["diagnostics"][0]["code"] == "node/report", "{tested}");
    let kept = fs::read_dir(tested["bundle"].as_str().unwrap()).unwrap().flatten();
    let mut kept: Vec<String> = kept.map(|entry| entry.file_name().into_string().unwrap()).collect();
    kept.retain(|name| name.contains(".manifest.m.passed."));
    assert_eq!(kept.len(), 2, "{kept:?}");
}

/// Case 14: a spec that gives a user no keys does not lock push out.
#[test]
fn push_works_after_a_spec_took_all_keys() {
    let world = World::new();
    world.write(
        "specs/bare.yaml",
        "schema_version: 1\naccess: {posture: local, users: [{name: stead, ssh_keys: []}]}\n",
    );
    world.nodes("- {name: a, type: vm, spec: bare}\n");
    world.create(&[]).exits(0);
    assert_eq!(fs::read_to_string(root(&world, "a").join("home/stead/.ssh/authorized_keys")).unwrap(), "");
    let again = world.create(&[]).exits(0).document();
    assert_eq!(again["nodes"][0]["changed"], false, "{again:#}");
}

/// Case 36: a key that was changed by hand is drift, with its path; who cannot be asked is said.
#[test]
fn drift_is_found_where_it_is() {
    let world = World::new();
    world.manifest("settings: {timeout_buffer: 1}\nnodes:\n- {name: a, type: vm, spec: base}\n- {name: b, type: vm, spec: base}\n");
    world.create(&[]).exits(0);
    let drift = |more: &[&str]| world.run(&[&["drift", "-M", "m", "-H", "local", "--json"], more].concat());
    let none = drift(&[]).exits(0).document();
    assert_eq!((&none["drift"], &none["unreachable"]), (&json!([]), &json!([])));
    fs::write(root(&world, "a").join("home/ops/.ssh/authorized_keys"), "ssh-ed25519 AAAA other\n").unwrap();
    let found = drift(&[]).exits(4).document();
    assert_eq!(
        found["drift"],
        json!([{"node": "a", "path": "users.ops.keys", "expected": [KEY], "observed": ["ssh-ed25519 AAAA other"]}])
    );
    assert_eq!(
        world.run(&["drift", "--json"]).exits(4).document()["drift"],
        found["drift"],
        "all pairs are meant"
    );
    drift(&["--only", "b"]).exits(0);
    world.create(&[]).exits(0);
    drift(&[]).exits(0);
    world.kill_machines();
    // From here on nobody is waited for long.
    world.host("local", "driver: sandbox\ntimeouts: {ssh: 1}\n");
    let unreached = drift(&["--only", "a"]).exits(7).document();
    assert_eq!(unreached["unreachable"], json!(["a"]));
}

/// Case 35: a command on all nodes, and one that ends with 3.
#[test]
fn commands_run_on_nodes() {
    let world = World::new();
    world.nodes("- {name: a, type: vm}\n- {name: b, type: vm}\n");
    world.create(&[]).exits(0);
    let exec = |targets: &[&str], command: &[&str]| {
        world.run(&[&["exec", "-M", "m", "-H", "local", "--json"], targets, &["--"], command].concat())
    };
    let all = exec(&["all"], &["hostname"]).exits(0).document();
    let said = |document: &Value| -> Vec<String> {
        let rows = document["results"].as_array().unwrap().iter();
        rows.map(|row| format!("{} {} {}", row["target"].as_str().unwrap(), row["rc"], row["stdout"]))
            .collect()
    };
    assert_eq!(said(&all), ["a 0 \"a\\n\"", "b 0 \"b\\n\""]);
    let one = exec(&["all"], &["sh", "-c", "[ \"$STEAD_NODE\" = a ] || exit 3"]).exits(1).document();
    assert_eq!(
        (one["success"].as_bool(), said(&one)),
        (Some(false), vec!["a 0 \"\"".to_owned(), "b 3 \"\"".to_owned()])
    );
    assert_eq!(said(&exec(&["b*"], &["hostname"]).exits(0).document()), ["b 0 \"b\\n\""]);
    exec(&["nosuch"], &["true"]).exits(3);
}

/// Case 35: over three levels, through the nodes above.
#[test]
fn commands_run_three_levels_down() {
    let world = World::new();
    world.nodes(
        "- {name: a, type: vm, spec: base}\n- {name: b, type: vm, spec: base, parent: a}\n- {name: c, type: vm, spec: base, parent: b}\n",
    );
    world.create(&[]).exits(0);
    let all =
        world.run(&["exec", "-M", "m", "-H", "local", "--json", "all", "--", "hostname"]).exits(0).document();
    let rows = all["results"].as_array().unwrap().iter();
    let said: Vec<&str> = rows.map(|row| row["stdout"].as_str().unwrap()).collect();
    assert_eq!(said, ["a\n", "b\n", "c\n"]);
    let drift = world.run(&["drift", "-M", "m", "-H", "local", "--json"]).exits(0).document();
    assert_eq!(drift["unreachable"], json!([]));
}

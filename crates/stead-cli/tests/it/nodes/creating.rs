//! `stead create`, `destroy` and `status` over sandboxes.

use serde_json::{Value, json};

use super::world::World;
use super::{manifest, site};

/// Case 1: a manifest of each pattern that has one level is made, is what it should be, and goes.
#[test]
fn flat_mesh_and_hubs_are_made_and_go() {
    for (pattern, nodes) in [
        ("flat", "- {name: a, type: vm}\n- {name: b, type: ct}\n"),
        ("mesh", "- {name: a, type: vm, spec: base, peers: [b]}\n- {name: b, type: vm, spec: base}\n"),
    ] {
        let world = World::new();
        world.manifest(&format!("pattern: {pattern}\nnodes:\n{nodes}"));
        let made = world.create(&[]);
        assert_eq!(made.code, 0, "{pattern}: {}", made.stderr);
        assert_eq!(world.statuses(&made), [("a", "completed"), ("b", "completed")], "{pattern}");
        let status = world.run(&["status", "-M", "m", "-H", "local", "--json"]);
        assert_eq!((status.code, &status.document()["success"]), (0, &json!(true)), "{pattern}");
        assert_eq!(world.destroy(&[]).code, 0, "{pattern}");
        assert_eq!(world.left(), Vec::<String>::new(), "{pattern}");
    }
}

/// ST-8 and section 10: a second create changes nothing, byte for byte; a second destroy has nothing to do.
#[test]
fn what_is_as_it_should_be_is_not_touched() {
    let world = World::new();
    world.nodes("- {name: edge, type: vm, spec: base, preset: vm-small}\n");
    let first = world.create(&[]).document();
    assert_eq!((&first["success"], &first["nodes"][0]["changed"]), (&json!(true), &json!(true)), "{first}");
    let (state, machines) = (world.state(), world.machine_ids());
    let second = world.create(&[]).document();
    assert_eq!(
        (&second["success"], &second["nodes"][0]["changed"]),
        (&json!(true), &json!(false)),
        "{second}"
    );
    assert_eq!(world.state(), state, "the state file is byte-identical");
    assert_eq!(world.machine_ids(), machines);
    assert_eq!(second["nodes"][0]["state_digest"], first["nodes"][0]["state_digest"]);
    std::fs::remove_file(world.state_path()).unwrap();
    let adopted = world.create(&[]).document();
    assert_eq!(adopted["success"], true, "{adopted}");
    assert_eq!(world.machine_ids(), machines, "adopted by its label");
    for _ in 0..2 {
        let gone = world.destroy(&[]);
        assert_eq!((gone.code, gone.document()["nodes"][0]["status"].clone()), (0, json!("destroyed")));
    }
    assert_eq!(world.left(), Vec::<String>::new());
}

/// Case 9: standard output is one JSON document, whatever happens.
#[test]
fn there_is_one_document_whatever_happens() {
    let world = World::new();
    world.nodes("- {name: edge, type: zebra}\n");
    let bad = world.create(&[]);
    assert_eq!(bad.code, 3);
    assert_eq!(bad.document()["error"]["code"], "node/bad-enum");
    assert!(bad.document()["diagnostics"].as_array().is_some_and(|list| list[0]["line"].is_u64()));
    world.nodes("- {name: edge, type: vm}\n");
    let unknown = world.run(&["create", "-M", "m", "-H", "nowhere", "--json"]);
    assert_eq!((unknown.code, unknown.document()["error"]["code"].clone()), (3, json!("node/unknown-fk")));
    let missing = world.run(&["create", "-M", "other", "-H", "local", "--json"]);
    assert_eq!((missing.code, missing.document()["success"].clone()), (3, json!(false)));
    assert!(!world.state_dir().exists(), "no trace");
    world.write("secrets.yaml", "{}\n");
    world.write("specs/plain.yaml", "schema_version: 1\naccess: {posture: local}\n");
    world.nodes("- {name: edge, type: vm, spec: plain, execution: {mode: pull}}\n");
    let unready = world.create(&[]);
    assert_eq!((unready.code, unready.document()["error"]["code"].clone()), (1, json!("node/preflight")));
    assert!(!world.state_dir().exists(), "no trace");
    let asked = world.run(&["destroy", "-M", "m", "-H", "local", "--json"]);
    assert_eq!((asked.code, asked.document()["error"]["code"].clone()), (6, json!("node/confirmation")));
}

/// Section 7: a server that could not have its port would be found in the middle of a run.
#[test]
fn a_held_port_is_found_first() {
    let world = World::new();
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port();
    world.write("site.yaml", &format!("server: {{port: {port}, bind: 127.0.0.1}}\n"));
    world.nodes("- {name: edge, type: vm, spec: base, execution: {mode: pull}}\n");
    let refused = world.create(&[]);
    assert_eq!((refused.code, refused.document()["error"]["code"].clone()), (1, json!("node/preflight")));
    assert!(refused.stdout.contains(&format!("port {port}")), "{}", refused.stdout);
    assert!(world.machine_ids().is_empty());
}

/// Section 10: who is in the middle of its making when another fails is `failed`, and says that it was cancelled.
#[test]
fn who_is_cut_off_by_the_failure_of_another_says_so() {
    let world = World::new();
    let faults = "[{node: a, phase: config, error: no}, {node: b, phase: config, delay_ms: 600000}]";
    world.host("local", &format!("driver: sandbox\nfaults: {faults}\n"));
    world.nodes("- {name: a, type: vm, spec: base}\n- {name: b, type: vm, spec: base}\n");
    let ended = world.create(&[]).exits(1);
    assert_eq!(world.statuses(&ended), [("a", "failed"), ("b", "failed")]);
    assert_eq!(ended.document()["nodes"][1]["error"], "cancelled", "{}", ended.stdout);
    let state: serde_json::Value = serde_json::from_str(&world.state()).unwrap();
    assert_eq!(
        (&state["nodes"]["b"]["status"], &state["nodes"]["b"]["error"]),
        (&json!("failed"), &json!("cancelled"))
    );
}

/// Case 10 and 12: rows of a dry run; nothing is written, started or contacted.
#[test]
fn a_dry_run_shows_order_and_modes_and_touches_nothing() {
    let world = World::new();
    world.manifest(
        "execution: {default_mode: pull}\nnodes:
- {name: top, type: pve, spec: base, execution: {mode: push}}
- {name: middle, type: vm, spec: base, parent: top}
- {name: leaf, type: vm, spec: base, parent: middle, execution: {phases: {config: hybrid}}}\n",
    );
    let shown = world.create(&["--dry-run"]).document();
    let rows: Vec<(&str, &str, &str)> = shown["plan"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            (row["task"].as_str().unwrap(), row["mode"].as_str().unwrap(), row["at"].as_str().unwrap())
        })
        .collect();
    assert_eq!(
        rows.iter().filter(|row| row.0.ends_with(".config")).copied().collect::<Vec<_>>(),
        [
            ("top.config", "push", "local"),
            ("middle.config", "pull", "top"),
            ("leaf.config", "hybrid", "top/middle")
        ]
    );
    let all_push = world.create(&["--dry-run", "--mode", "push"]).document();
    assert!(all_push["nodes"].as_array().unwrap().iter().all(|node| node["mode"] == "push"));
    let gone = world.run(&["destroy", "-M", "m", "-H", "local", "--json", "--dry-run"]).document();
    let order: Vec<&str> =
        gone["plan"].as_array().unwrap().iter().filter_map(|row| row["node"].as_str()).collect();
    assert_eq!(order, ["leaf", "middle", "top"]);
    assert!(!world.state_dir().exists(), "a dry run leaves no trace");
}

/// Case 11: `--depth` and `--only` choose; the rest is skipped.
#[test]
fn a_choice_leaves_the_rest_alone() {
    let world = World::new();
    world.nodes("- {name: a, type: vm}\n- {name: b, type: vm}\n- {name: c, type: vm}\n");
    let made = world.create(&["--only", "b"]);
    assert_eq!(world.statuses(&made), [("a", "skipped"), ("b", "completed"), ("c", "skipped")]);
    assert_eq!(world.machine_ids().len(), 1);
    let none = world.create(&["--only", "zz"]);
    assert_eq!(none.code, 3);
    assert_eq!(world.create(&["--depth", "0"]).code, 2);
}

/// Case 25: the middle of three peers fails in create, under each policy.
#[test]
fn a_failed_node_does_to_others_what_was_asked_for() {
    for (on_error, expected, left) in [
        ("stop", [("a", "completed"), ("b", "failed"), ("c", "pending")], 2),
        ("continue", [("a", "completed"), ("b", "failed"), ("c", "completed")], 3),
        ("rollback", [("a", "destroyed"), ("b", "failed"), ("c", "pending")], 0),
    ] {
        let world = World::new();
        world.host("local", "driver: sandbox\nfaults: [{node: b, phase: create, error: no disk}]\n");
        world.manifest(
            "settings: {parallel: 1}\nnodes:\n- {name: a, type: vm}\n- {name: b, type: vm}\n- {name: c, type: vm}\n",
        );
        let made = world.create(&["--on-error", on_error]);
        assert_eq!(made.code, 1, "{on_error}");
        assert_eq!(world.statuses(&made), expected, "{on_error}: {}", made.stdout);
        assert!(
            made.document()["nodes"][1]["error"].as_str().unwrap().contains("no disk"),
            "{}",
            made.stdout
        );
        assert_eq!(world.left().len(), left, "{on_error}");
    }
}

/// Sections 2 and 3: as many nodes at once as the host says, unless the manifest says another number than 0.
#[test]
fn so_many_nodes_are_worked_on_at_once_as_the_host_or_the_manifest_says() {
    let faults = "faults: [{node: a, phase: create, error: no}, {node: b, phase: create, delay_ms: 600000}]";
    for (host, manifest, expected) in [
        // Alone `b` has not begun when `a` fails; at once it is cut off.
        ("parallel: 1", "", "pending"),
        ("parallel: 1", "settings: {parallel: 0}\n", "pending"),
        ("parallel: 1", "settings: {parallel: 2}\n", "failed"),
        ("parallel: 2", "settings: {parallel: 1}\n", "pending"),
        ("parallel: 2", "", "failed"),
    ] {
        let world = World::new();
        // What fails takes a moment, so that the other has begun if it may.
        let faults = faults.replace("error: no", "delay_ms: 300, error: no");
        world.host("local", &format!("driver: sandbox\n{host}\n{faults}\n"));
        world.manifest(&format!("{manifest}nodes:\n- {{name: a, type: vm}}\n- {{name: b, type: vm}}\n"));
        let ended = world.create(&[]).exits(1);
        assert_eq!(world.statuses(&ended), [("a", "failed"), ("b", expected)], "{host} {manifest}");
    }
}

/// Section 10: dependents of a failed node are skipped, naming it.
#[test]
fn dependents_of_a_failed_node_are_skipped() {
    let world = World::new();
    world.host("local", "driver: sandbox\nfaults: [{node: a, phase: create, error: no disk}]\n");
    world.nodes("- {name: a, type: vm}\n- {name: b, type: vm, depends_on: [a]}\n");
    let made = world.create(&["--on-error", "continue"]);
    assert_eq!(world.statuses(&made), [("a", "failed"), ("b", "skipped")]);
    assert!(made.document()["nodes"][1]["error"].as_str().unwrap().contains("a."), "{}", made.stdout);
}

/// Case 28: a foreign machine is left alone, a node dropped from the manifest too, and a grown preset is refused.
#[test]
fn what_cannot_be_changed_fails_naming_the_field() {
    let world = World::new();
    world.nodes("- {name: a, type: vm, preset: vm-small}\n- {name: b, type: vm}\n");
    assert_eq!(world.create(&[]).code, 0);
    world.write("presets/vm-small.yaml", "{cores: 4, memory: 2048, disk: 10}\n");
    world.nodes("- {name: a, type: vm, preset: vm-small}\n");
    let made = world.create(&[]);
    assert_eq!(made.code, 1);
    let document = made.document();
    let error = document["nodes"][0]["error"].as_str().unwrap();
    assert!(error.contains("cores is 2, not 4"), "{error}");
    let codes: Vec<&str> =
        document["diagnostics"].as_array().unwrap().iter().filter_map(|row| row["code"].as_str()).collect();
    assert!(codes.contains(&"node/orphan"), "{codes:?}");
    assert_eq!(world.machine_ids().len(), 2, "both are left alone");
    world.write("presets/vm-small.yaml", "{cores: 2, memory: 2048, disk: 10}\n");
    world.nodes("- {name: a, type: pve, preset: vm-small}\n");
    let changed = world.create(&[]).document();
    assert!(changed["nodes"][0]["error"].as_str().unwrap().contains("type is vm, not pve"), "{changed}");
    let gone = world.destroy(&[]);
    assert_eq!((gone.code, world.left()), (0, Vec::new()), "orphans go too");
}

/// Section 10: each field that a machine cannot change, alone; the machine and what is remembered stay as they are.
#[test]
fn every_field_that_cannot_be_changed_is_named() {
    let world = World::new();
    world.write("presets/large.yaml", "{cores: 2, memory: 4096, disk: 10}\n");
    world.write("hosts/other.yaml", "driver: sandbox\n");
    let nodes = |vm: &str, ct: &str| {
        world.nodes(&format!("- {{name: a, type: vm, {vm}}}\n- {{name: b, type: ct, {ct}}}\n"));
    };
    let (vm, ct) = ("preset: vm-small, disk: 20, image: debian-12", "template: plain");
    nodes(vm, ct);
    world.create(&[]).exits(0);
    let (state, machines) = (world.state(), world.machine_ids());
    let other = |from: &str, to: &str| vm.replace(from, to);
    for (row, changed_vm, changed_ct, said) in [
        (0, other("vm-small", "large"), ct, "memory is 2048, not 4096"),
        // What the node says counts more than its preset: 20 there, 10 here.
        (0, other(", disk: 20", ""), ct, "disk is 20, not 10"),
        (0, other("disk: 20", "disk: 19"), ct, "disk is 20, not 19"),
        (
            0,
            other("disk: 20", "disk: 21"),
            ct,
            "disk is 20, not 21; write back what it was made with, or destroy it first",
        ),
        (0, other("debian-12", "debian-13"), ct, "image is \"debian-12\", not \"debian-13\""),
        (0, format!("{vm}, host: other"), ct, "host is local, not other"),
        (1, vm.to_owned(), "template: fancy", "template is \"plain\", not \"fancy\""),
        (1, vm.to_owned(), "template: plain, parent: a", "parent is none, not a"),
    ] {
        nodes(&changed_vm, changed_ct);
        let refused = world.create(&["--on-error", "continue"]).exits(1).document();
        let node = &refused["nodes"][row];
        assert_eq!(node["status"], "failed", "{said}: {refused}");
        assert!(node["error"].as_str().unwrap().contains(said), "{said}: {refused}");
        assert_eq!(world.machine_ids(), machines, "{said}");
        nodes(vm, ct);
        let again = world.create(&[]).exits(0).document();
        assert!(
            again["nodes"].as_array().unwrap().iter().all(|node| node["changed"] == false),
            "{said}: {again}"
        );
        let (before, now): (Value, Value) =
            (serde_json::from_str(&state).unwrap(), serde_json::from_str(&world.state()).unwrap());
        assert_eq!(before["nodes"], now["nodes"], "{said}");
    }
    // What cannot be made there can go all the same, from where it is.
    nodes(vm, "template: plain, parent: a");
    let gone = world.destroy(&[]).exits(0);
    assert_eq!(
        (world.statuses(&gone), world.left()),
        (vec![("b", "destroyed"), ("a", "destroyed")], Vec::new())
    );
}

/// Section 10: type, number and size that changed together are named together.
#[test]
fn all_that_cannot_be_changed_is_named_at_once() {
    let world = World::new();
    world.write("presets/large.yaml", "{cores: 4, memory: 4096, disk: 10}\n");
    world.nodes("- {name: a, type: vm, preset: vm-small, vmid: 100}\n");
    world.create(&[]).exits(0);
    let machines = world.machine_ids();
    world.nodes("- {name: a, type: ct, preset: large, vmid: 101}\n");
    let refused = world.create(&[]).exits(1).document();
    let error = refused["nodes"][0]["error"].as_str().unwrap();
    for said in
        ["type is vm, not ct", "vmid is 100, not 101", "cores is 2, not 4", "memory is 2048, not 4096"]
    {
        assert!(error.contains(said), "{said}: {error}");
    }
    assert_eq!(world.machine_ids(), machines);
    world.nodes("- {name: a, type: vm, preset: vm-small, vmid: 100}\n");
    let again = world.create(&[]).exits(0).document();
    assert_eq!(again["nodes"][0]["changed"], false, "{again}");
}

/// Case 28: something that is not ours lies where the machine would: an error, and it stays as it is.
#[test]
fn a_foreign_machine_is_left_alone() {
    let world = World::new();
    world.nodes("- {name: a, type: vm, spec: base}\n");
    world.create(&[]).exits(0);
    let id = world.machine_ids().remove(0);
    world.destroy(&[]).exits(0);
    let directory = world.state_dir().join("machines").join(&id);
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("theirs"), "do not touch").unwrap();
    let refused = world.create(&[]).exits(1).document();
    let error = refused["nodes"][0]["error"].as_str().unwrap();
    assert!(error.contains(&id), "{error}");
    world.destroy(&[]);
    let left: Vec<_> =
        std::fs::read_dir(&directory).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["theirs"]);
    assert_eq!(std::fs::read_to_string(directory.join("theirs")).unwrap(), "do not touch");
}

/// Section 10: a machine that is gone is made again; a stopped one is started.
#[test]
fn what_is_gone_or_stopped_comes_back() {
    let world = World::new();
    world.nodes("- {name: a, type: vm, spec: base}\n");
    assert_eq!(world.create(&[]).code, 0);
    world.kill_machines();
    let started = world.create(&[]);
    assert_eq!(started.code, 0, "{}", started.stdout);
    std::fs::remove_dir_all(world.kill_machines()).unwrap();
    let again = world.create(&[]).document();
    assert_eq!(again["success"], true, "{again}");
    assert!(again["diagnostics"].to_string().contains("node/gone"), "{again}");
}

/// ST-6: nothing of a peer waits for another; they start at once, and one that fails under `continue` leaves the others.
#[test]
fn peers_start_at_once() {
    let world = World::new();
    world.host("local", "driver: sandbox\nboot_delay_ms: 1000\n");
    let peers = "pattern: mesh\nnodes:\n- {name: a, type: vm, peers: [a], count: 3}\n";
    world.manifest(peers);
    let planned = world.create(&["--dry-run"]).document();
    for row in planned["plan"].as_array().unwrap().iter().filter(|row| row["phase"] != "run") {
        let waits = row["depends_on"].as_array().unwrap();
        let own = format!("{}.", row["node"].as_str().unwrap());
        assert!(waits.iter().all(|task| task.as_str().unwrap().starts_with(&own)), "{row}");
    }
    let made = world.create(&[]).exits(0).document();
    let events = world.events(made["run"].as_str().unwrap());
    let places = |ev: &str| {
        let is = |event: &&Value| {
            event["ev"] == ev && event["task"].as_str().is_some_and(|task| task.ends_with(".create"))
        };
        events.iter().filter(is).map(|event| event["seq"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let (starts, ends) = (places("task_started"), places("task_finished"));
    assert_eq!((starts.len(), ends.len()), (3, 3));
    assert!(starts.iter().max() < ends.iter().min(), "all start before one has booted: {starts:?} {ends:?}");
    assert_eq!(world.destroy(&[]).code, 0);
    world.host("local", "driver: sandbox\nfaults: [{node: a-2, phase: create, error: no room}]\n");
    world.manifest(&format!("settings: {{on_error: continue}}\n{peers}"));
    let failed = world.create(&[]).exits(1);
    assert_eq!(world.statuses(&failed), [("a-1", "completed"), ("a-2", "failed"), ("a-3", "completed")]);
}

/// Case 34: the address that nodes are told.
#[test]
fn the_self_address_is_checked() {
    let world = World::new();
    world.nodes("- {name: a, type: vm}\n");
    for bad in ["", "0.0.0.0", "::"] {
        assert_eq!(world.create(&["--dry-run", "--self-addr", bad]).code, 2, "{bad}");
        assert_eq!(world.destroy(&["--dry-run", "--self-addr", bad]).code, 2, "{bad}");
    }
    // Sandboxes are reached at the loopback where they are here, and nowhere else.
    assert_eq!(world.create(&["--dry-run", "--self-addr", "127.0.0.1"]).code, 0);
    world.host("far", "driver: sandbox\nip: 192.0.2.50\n");
    let far = ["create", "-M", "m", "-H", "far", "--json", "--dry-run", "--self-addr"];
    let told = world.run(&[&far[..], &["127.0.0.1"]].concat()).exits(2).document();
    assert!(told["error"]["message"].as_str().unwrap().contains("127.0.0.1, which other"), "{told}");
    world.run(&[&far[..], &["192.0.2.7"]].concat()).exits(0);
    world.nodes("- {name: a, type: vm}\n- {name: b, type: vm, host: far}\n");
    assert_eq!(world.create(&["--dry-run", "--self-addr", "127.0.0.1"]).code, 0, "b is told by its machine");
    world.nodes("- {name: a, type: vm}\n");
    world.write("hosts/far.yaml", "driver: sandbox\n");
    let mut lab = World::new();
    lab.set("STEAD_SELF_ADDR", "0.0.0.0");
    lab.nodes("- {name: a, type: vm}\n");
    assert_eq!(lab.create(&["--dry-run"]).code, 2);
    assert_eq!(lab.create(&["--dry-run", "--self-addr", "192.0.2.7"]).code, 0, "the flag comes first");
    let mut older = World::new();
    older.nodes("- {name: a, type: vm}\n");
    older.set("HOMESTAK_SELF_ADDR", "0.0.0.0");
    let told = older.create(&["--dry-run"]).exits(2).document();
    let message = told["error"]["message"].as_str().unwrap();
    assert!(message.contains("HOMESTAK_SELF_ADDR is 0.0.0.0") && message.contains("give one"), "{told}");
    older.set("STEAD_SELF_ADDR", "192.0.2.7");
    assert_eq!(older.create(&["--dry-run"]).code, 0, "ours comes first");
    world.write("site.yaml", "defaults: {server_url: 'https://192.0.2.9:44443'}\n");
    let ignored = world.create(&["--dry-run", "--self-addr", "192.0.2.7"]).document();
    assert!(ignored["diagnostics"].to_string().contains("is ignored"), "{ignored}");
}

/// Cases 2 and 5: what `validate` answers with 1 is 3 for what would act, and leaves no trace.
#[test]
fn a_manifest_with_problems_is_refused_without_a_trace() {
    let world = World::new();
    for nodes in [
        "- {name: a, type: vm, parent: b}\n- {name: b, type: vm, parent: a}\n",
        "- {name: a, type: vm, parent: a}\n",
        "- {name: a, type: vm, depends_on: [b]}\n- {name: b, type: vm, depends_on: [a]}\n",
    ] {
        world.nodes(nodes);
        let refused = world.create(&[]);
        assert_eq!(refused.code, 3);
        assert!(refused.document()["diagnostics"].to_string().contains("node/cycle"), "{}", refused.stdout);
    }
    for text in
        ["schema_version: 1\nname: m\n", "name: m\n", "schema_version: 2\nname: m\nnodes: []\n", "[]\n"]
    {
        world.write("manifests/m.yaml", text);
        assert_eq!(world.create(&[]).code, 3, "{text}");
    }
    assert!(!world.state_dir().exists());
}

/// Case 27: one manifest on two hosts has two states.
#[test]
fn one_manifest_on_two_hosts_has_two_states() {
    let world = World::new();
    world.host("other", "driver: sandbox\n");
    world.nodes("- {name: a, type: vm}\n");
    assert_eq!(world.create(&[]).code, 0);
    let other = world.run(&["create", "-M", "m", "-H", "other", "--json"]);
    assert_eq!(other.code, 0, "{}", other.stdout);
    assert_eq!(world.machine_ids().len(), 2);
    let gone = world.run(&["destroy", "-M", "m", "-H", "other", "--json", "--yes"]);
    assert_eq!((gone.code, world.machine_ids().len()), (0, 1));
    let _: Value = gone.document();
}

/// Section 10: a state directory that cannot be used is named, and is no lock of another run.
#[test]
fn a_state_directory_that_cannot_be_used_is_named() {
    let lab = site(&[("manifests/m.yaml", &manifest("- {name: a, type: vm}\n"))]);
    lab.write("state/locks", "no directory");
    let ended = lab.run(["create", "-M", "m", "-H", "local"]).exits(1);
    let (code, place) = ("error[failed/journal]: ", lab.path("state/locks").display().to_string());
    assert!(ended.stderr.contains(code) && ended.stderr.contains(&place), "{}", ended.stderr);
    assert!(!lab.path("state/machines").exists());
}

/// ST-8 for nodes that fetch: a second create changes nothing, and what is remembered stays byte for byte. A comment in
/// the manifest is no change of it.
#[test]
fn a_second_create_of_what_fetches_changes_nothing() {
    for mode in ["pull", "hybrid"] {
        let world = World::new();
        world.write("site.yaml", "server: {port: 0, bind: 127.0.0.1}\n");
        let nodes = "- {name: a, type: vm, spec: base, peers: [b]}\n- {name: b, type: vm, spec: base}\n";
        world.nodes(nodes);
        world.create(&["--mode", mode]).exits(0);
        let (before, machines) = (world.state(), world.machine_ids());
        world.nodes(&format!("# as before\n{nodes}"));
        let again = world.create(&["--mode", mode]).exits(0).document();
        let rows = again["nodes"].as_array().unwrap();
        assert!(rows.iter().all(|row| row["changed"] == false), "{mode}: {again}");
        assert_eq!((world.state(), world.machine_ids()), (before, machines), "{mode}");
    }
}

/// Section 2: enabling a service that is not there fails the node, disabling one is fine.
#[test]
fn only_a_service_that_is_there_can_be_enabled() {
    let world = World::new();
    world.host("local", "driver: sandbox\nservices: [cron]\n");
    world.nodes("- {name: a, type: vm, spec: base}\n");
    let with = |services: &str| {
        world.write("specs/base.yaml", &super::BASE.replace("{disable: [rpcbind]}", services));
        world.create(&[])
    };
    let failed = with("{enable: [nosuch]}").exits(1).document();
    assert_eq!(failed["nodes"][0]["status"], "failed");
    assert!(failed["nodes"][0]["error"].as_str().unwrap().contains("nosuch"), "{failed}");
    with("{enable: [cron], disable: [nosuch]}").exits(0);
}

/// Section 2: the hash of root's password is set at create.
#[test]
fn the_password_of_root_is_set_at_create() {
    let world = World::new();
    world.write("secrets.yaml", "passwords: {vm_root: \"$6$salt$hash\"}\n");
    world.nodes("- {name: a, type: vm}\n");
    world.create(&[]).exits(0);
    let machine = world.state_dir().join("machines").join(&world.machine_ids()[0]);
    let shadow = std::fs::read_to_string(machine.join("root/etc/shadow")).unwrap();
    assert!(shadow.starts_with("root:$6$salt$hash:"), "{shadow}");
}

//! System tests over sandboxes: the same spec by push, pull and hybrid.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use super::world::World;

const PORT: &str =
    "server: {port: 0, bind: 127.0.0.1}\ndefaults: {domain: lab.example, packages: [ca-certificates]}\n";

fn made(world: &World, mode: &str) -> Value {
    world.write("site.yaml", PORT);
    world.nodes(&format!("- {{name: edge, type: vm, spec: base, execution: {{mode: {mode}}}}}\n"));
    let made = world.create(&[]);
    assert_eq!(made.code, 0, "{mode}: {} {}", made.stdout, made.stderr);
    made.document()["nodes"][0].clone()
}

/// Returns what the only machine's console says: every connection is noted there.
fn console(world: &World) -> String {
    let id = world.machine_ids().into_iter().next().unwrap();
    std::fs::read_to_string(world.state_dir().join("machines").join(id).join("console.log")).unwrap()
}

/// ST-1 and ST-2: one digest, whoever does it; push needs no server, pull no SSH; destroy leaves nothing.
#[test]
fn push_pull_and_hybrid_of_one_spec_give_one_digest() {
    let push = World::new();
    let pushed = made(&push, "push");
    assert!(!push.state_dir().join("server").exists(), "push starts no server");
    assert_eq!(console(&push).matches("login of").count(), 1, "one connection: {}", console(&push));
    let pull = World::new();
    let pulled = made(&pull, "pull");
    assert_eq!(console(&pull).matches("login of").count(), 0, "no SSH: {}", console(&pull));
    let hybrid = World::new();
    let signalled = made(&hybrid, "hybrid");
    for other in [&pulled, &signalled] {
        assert_eq!(other["state_digest"], pushed["state_digest"], "{other}");
        assert_eq!(other["spec_digest"], pushed["spec_digest"]);
        assert_eq!(other["status"], json!("completed"));
    }
    let machine = pull.state_dir().join("machines").join(&pull.machine_ids()[0]);
    let bootstrap = std::fs::metadata(machine.join("root/etc/stead/bootstrap.json")).unwrap();
    assert_eq!(bootstrap.permissions().mode() & 0o777, 0o600);
    let state: Value = serde_json::from_str(&pull.state()).unwrap();
    assert!(state["nodes"]["edge"]["jti"].is_string(), "{state}");
    let again = pull.create(&[]).document();
    assert_eq!((&again["success"], &again["nodes"][0]["changed"]), (&json!(true), &json!(false)), "{again}");
    for world in [&pull, &hybrid] {
        let gone = world.destroy(&[]);
        assert_eq!(gone.code, 0, "{}", gone.stdout);
        assert_eq!(world.left(), Vec::<String>::new());
        let server = world.run(&["server", "status", "--json", "--site", "site-config"]);
        assert_eq!(server.document()["running"], json!(false), "the server went with the last node");
    }
}

/// Case 37: the agent comes with `--mode pull` and goes with push; the digests are the same.
#[test]
fn a_node_changes_its_mode() {
    let world = World::new();
    let pushed = made(&world, "push");
    let pulled = world.create(&["--mode", "pull"]).document();
    assert_eq!(pulled["success"], json!(true), "{pulled}");
    assert_eq!(pulled["nodes"][0]["state_digest"], pushed["state_digest"]);
    let pushed_again = world.create(&["--mode", "push"]).document();
    assert_eq!(pushed_again["success"], json!(true), "{pushed_again}");
    assert_eq!(pushed_again["nodes"][0]["state_digest"], pushed["state_digest"]);
    let machine = world.state_dir().join("machines").join(&world.machine_ids()[0]);
    assert!(!machine.join("root/etc/stead/bootstrap.json").exists(), "the agent is gone");
}

/// ST-9: links are written on both ends.
#[test]
fn peers_know_each_other() {
    let world = World::new();
    world.manifest(
        "pattern: mesh\nnodes:\n- {name: a, type: vm, peers: [b]}\n- {name: b, type: vm, peers: [c]}\n- {name: c, type: vm}\n",
    );
    let made = world.create(&[]);
    assert_eq!(made.code, 0, "{} {}", made.stdout, made.stderr);
    let known = world.machine_ids().into_iter().map(|id| {
        let root = world.state_dir().join("machines").join(id).join("root");
        let name = std::fs::read_to_string(root.join("etc/hostname")).unwrap().trim().to_owned();
        let peers = std::fs::read_to_string(root.join("etc/stead/peers.json")).unwrap();
        let peers: Vec<Value> = serde_json::from_str(&peers).unwrap();
        let names = peers.iter().map(|peer| peer["name"].as_str().unwrap().to_owned());
        (name, names.collect::<Vec<_>>().join(" "))
    });
    let known: std::collections::BTreeMap<String, String> = known.collect();
    let expected = [("a", "b"), ("b", "a c"), ("c", "b")].map(|(a, b)| (a.to_owned(), b.to_owned()));
    assert_eq!(known, std::collections::BTreeMap::from(expected));
    assert_eq!(world.destroy(&[]).code, 0);
    assert_eq!(world.left(), Vec::<String>::new());
}

/// ST-7: `create` refuses with 3 what `validate` finds invalid with 1.
#[test]
fn invalid_files_are_refused_by_both() {
    let world = World::new();
    for nodes in ["- {name: a, type: zebra}\n", "- {name: a, type: vm, spec: nothing}\n"] {
        world.nodes(nodes);
        assert_eq!(world.run(&["validate", "-M", "m", "--json"]).code, 1);
        assert_eq!(world.create(&[]).code, 3);
    }
    world.nodes("- {name: a, type: vm, spec: base}\n");
    assert_eq!(world.run(&["validate", "-M", "m", "--json"]).code, 0);
}

//! System tests over sandboxes: the same spec by push, pull and hybrid; every pattern.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use stead_drivers::config::ConfigFiles;
use stead_testkit::sshd::{KeyKind, make_key};

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

/// Returns what the level's server noted, a line each.
fn requests(world: &World) -> Vec<Value> {
    let files = fs::read_dir(world.state_dir().join("server")).unwrap().flatten().map(|entry| entry.path());
    let is_log = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with("server-") && name.ends_with(".log")
    };
    let text: String = files.filter(is_log).map(|path| fs::read_to_string(path).unwrap()).collect();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Whether OpenSSH's own client is let in as `user` with the key in this file.
fn enters(world: &World, user: &str, key: &str) -> bool {
    let state: Value = serde_json::from_str(&world.state()).unwrap();
    let (node, known) = (&state["nodes"]["edge"], world.path("known_hosts"));
    let (host, port) = (node["ip"].as_str().unwrap(), node["ssh_port"].as_u64().unwrap());
    fs::write(&known, format!("[{host}]:{port} {}\n", node["host_key"].as_str().unwrap())).unwrap();
    let mut ssh = Command::new("ssh");
    ssh.args(["-F", "none", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none"]);
    ssh.args(["-o", "StrictHostKeyChecking=yes", "-o", "LogLevel=ERROR", "-p", &port.to_string()]);
    ssh.arg("-o").arg(format!("UserKnownHostsFile={}", known.display())).arg("-i").arg(world.path(key));
    ssh.args(["-l", user, host, "true"]).stdin(Stdio::null());
    ssh.output().unwrap().status.success()
}

/// ST-1: what a node becomes is what its token says; it fetches it by itself, and only keys of its spec open it.
#[test]
fn a_node_that_pulls_becomes_what_its_token_says() {
    let world = World::new();
    for key in ["bob", "eve"] {
        make_key(&world.path(key), KeyKind::Ed25519);
    }
    let bob = fs::read_to_string(world.path("bob.pub")).unwrap();
    let secrets = format!("ssh_keys:\n  bob: {}\nauth: {{signing_key: '{}'}}\n", bob.trim(), "ab".repeat(32));
    world.write("secrets.yaml", &secrets);
    // Called as the node, and not what it becomes.
    world.write("specs/edge.yaml", "schema_version: 1\nplatform: {packages: [wrong]}\n");
    let made = made(&world, "pull");
    assert_eq!(console(&world).matches("login of").count(), 0, "no SSH before verify: {}", console(&world));
    let machine = world.state_dir().join("machines").join(&world.machine_ids()[0]);
    let (root, bootstrap) = (machine.join("root"), machine.join("root/etc/stead/bootstrap.json"));
    assert_eq!(fs::metadata(&bootstrap).unwrap().permissions().mode() & 0o777, 0o600);
    let mode = |path: &str| fs::metadata(root.join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("etc/stead/keys"), mode("etc/stead/keys/stead")), (0o755, 0o644), "as sshd reads them");
    let files = ConfigFiles::below(&root);
    let spec = files.spec().unwrap();
    assert_eq!((spec.spec.as_str(), json!(spec.digest())), ("base", made["spec_digest"].clone()));
    let packages = serde_json::to_value(files.state().unwrap()).unwrap()["packages"].clone();
    assert_eq!(packages, json!({"ca-certificates": true, "curl": true, "htop": true}));
    let state: Value = serde_json::from_str(&world.state()).unwrap();
    let requests = requests(&world);
    let fetch = requests.iter().find(|line| line["route"] == "spec" && line["status"] == 200);
    let fetch = fetch.unwrap_or_else(|| panic!("{requests:?}"));
    assert_eq!((&fetch["node"], &fetch["spec"]), (&json!("edge"), &json!("base")));
    assert_eq!(fetch["jti"], state["nodes"]["edge"]["jti"]);
    let reported = requests.iter().any(|line| line["route"] == "report" && line["status"] == 202);
    assert!(reported, "create returned on the report: {requests:?}");
    let token = serde_json::from_slice::<Value>(&fs::read(&bootstrap).unwrap()).unwrap()["token"].clone();
    assert!(requests.iter().all(|line| !line.to_string().contains(token.as_str().unwrap())));

    assert!(enters(&world, "ops", "bob"), "a key of the spec");
    assert!(!enters(&world, "ops", "eve") && !enters(&world, "stead", "bob"));
    let before = console(&world).matches("login of stead").count();
    assert_eq!(world.run(&["verify", "-M", "m", "-H", "local", "--json"]).code, 0);
    assert!(console(&world).matches("login of stead").count() > before, "verify looks over SSH");
    assert_eq!(world.destroy(&[]).code, 0);
    assert_eq!(world.left(), Vec::<String>::new());
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

/// Case 37: a node that is to stop itself says that it did; everything of it is reclaimed all the same.
#[test]
fn a_node_stops_itself_and_is_reclaimed() {
    let world = World::new();
    world.write("site.yaml", PORT);
    world.nodes("- {name: edge, type: vm, spec: base, execution: {mode: pull, phases: {destroy: pull}}}\n");
    world.create(&[]).exits(0);
    let gone = world.destroy(&[]).exits(0).document();
    assert_eq!(gone["nodes"][0]["status"], "destroyed");
    assert!(!gone.to_string().contains("node/no-answer"), "{gone}");
    let reports = requests(&world).into_iter().filter(|line| line["route"] == "report").count();
    assert_eq!(reports, 2, "that it is configured, and that it stopped");
    let journals = fs::read_dir(world.state_dir().join("server")).unwrap().flatten();
    let journals = journals.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    assert!(journals.into_iter().any(|text| text.contains("\"kind\":\"terminated\"")));
    assert_eq!(world.left(), Vec::<String>::new());
    let keyring = fs::read_to_string(world.path("site-config/keyring.yaml")).unwrap();
    assert!(keyring.contains("\"node\":\"edge\""), "its tokens are revoked: {keyring}");
    let server = world.run(&["server", "status", "--json", "--site", "site-config"]);
    assert_eq!(server.document()["running"], json!(false));
}

/// Case 1 and ST-9: a manifest of each pattern that has two levels is made, tested, is what it should be, and goes.
#[test]
fn trees_hubs_and_linked_trees_are_made_and_go() {
    let tree = |name: &str, parent: &str| format!("- {{name: {name}, type: vm, spec: base{parent}}}\n");
    let below = |parent: &str| format!(", parent: {parent}");
    let hub = [tree("hub", ""), tree("s-1", &below("hub")), tree("s-2", &below("hub"))].concat();
    let tiered = [tree("top", ""), tree("mid", &below("top")), tree("low", &below("mid"))].concat();
    let linked = [
        tree("east", ", peers: [west]"),
        tree("west", ""),
        tree("e-1", ", parent: east, peers: [w-1]"),
        tree("w-1", &below("west")),
    ];
    for (pattern, nodes, levels) in [
        ("hub-spoke", &hub, [0, 1, 1].as_slice()),
        ("tiered", &tiered, &[0, 1, 2]),
        ("federated", &linked.concat(), &[0, 0, 1, 1]),
    ] {
        let world = World::new();
        world.manifest(&format!("pattern: {pattern}\nnodes:\n{nodes}"));
        let valid = world.run(&["validate", "-M", "m", "-H", "local", "--json"]).exits(0).document();
        assert_eq!(valid["pattern"], pattern);
        let rows = valid["nodes"].as_array().unwrap();
        let depths: Vec<u64> = rows.iter().map(|row| row["depth"].as_u64().unwrap()).collect();
        assert_eq!(depths, levels, "{pattern}");
        assert!(rows.iter().all(|row| row["mode"] == "push"), "{pattern}");
        let made = world.create(&[]).exits(0).document();
        let status = world.run(&["status", "-M", "m", "-H", "local", "--json"]).exits(0).document();
        let machines: Vec<&Value> =
            status["nodes"].as_array().unwrap().iter().map(|row| &row["machine"]).collect();
        assert_eq!(machines, vec!["running"; levels.len()], "{pattern}: {made}");
        // Links are looked at from both ends.
        world.run(&["verify", "-M", "m", "-H", "local", "--json"]).exits(0);
        if pattern == "federated" {
            assert_eq!(peers_below(&world), ["e-1: w-1", "east: west", "w-1: e-1", "west: east"]);
        }
        world.destroy(&[]).exits(0);
        assert_eq!(world.left(), Vec::<String>::new(), "{pattern}");
    }
}

/// Returns what every node, however deep, knows of its peers, sorted.
fn peers_below(world: &World) -> Vec<String> {
    let mut open = vec![world.state_dir().join("machines")];
    let mut found = Vec::new();
    while let Some(machines) = open.pop() {
        for machine in fs::read_dir(machines).into_iter().flatten().flatten() {
            let root = machine.path().join("root");
            let Ok(name) = fs::read_to_string(root.join("etc/hostname")) else { continue };
            let peers = fs::read(root.join("etc/stead/peers.json")).unwrap_or_else(|_| b"[]".to_vec());
            let peers: Vec<Value> = serde_json::from_slice(&peers).unwrap();
            let names: Vec<&str> = peers.iter().map(|peer| peer["name"].as_str().unwrap()).collect();
            found.push(format!("{}: {}", name.trim(), names.join(" ")));
            open.push(root.join("var/lib/stead/machines"));
        }
    }
    found.sort_unstable();
    found
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
    assert_eq!(peers_below(&world), ["a: b", "b: a c", "c: b"]);
    assert_eq!(world.destroy(&[]).code, 0);
    assert_eq!(world.left(), Vec::<String>::new());
}

/// ST-7: `create` refuses with 3 what `validate` finds invalid with 1.
#[test]
fn invalid_files_are_refused_by_both() {
    let world = World::new();
    for (nodes, code, candidate) in [
        ("- {name: a, type: zebra}\n", "node/bad-enum", "vm"),
        ("- {name: a, type: vm, spec: bases}\n", "node/unknown-fk", "base"),
    ] {
        world.nodes(nodes);
        let told = world.run(&["validate", "-M", "m", "--json"]).exits(1).document();
        let refused = world.create(&[]).exits(3).document();
        for problem in [&told["errors"][0], &refused["diagnostics"][0]] {
            assert_eq!((&problem["code"], &problem["line"]), (&json!(code), &json!(4)), "{problem}");
            assert!(problem["candidates"].as_array().unwrap().contains(&json!(candidate)), "{problem}");
        }
    }
    world.nodes("- {name: a, type: vm, spec: base}\n");
    assert_eq!(world.run(&["validate", "-M", "m", "--json"]).code, 0);
}

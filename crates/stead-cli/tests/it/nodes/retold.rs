//! Agents that come, go and are told anew, and the tokens they leave behind.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use super::pulled::wait_for;
use super::tls::Door;
use super::world::World;
use crate::cases_17_32::lab::{Ended, Running};

const SITE: &str =
    "server: {port: 0, bind: 127.0.0.1}\ndefaults: {domain: lab.example, packages: [ca-certificates]}\n";
const EDGE: &str = "- {name: edge, type: vm, spec: base}\n";

fn world(nodes: &str) -> World {
    let world = World::new();
    world.write("site.yaml", SITE);
    world.nodes(nodes);
    world
}

/// Returns the root of the machine of `node`, which is found by the name it has.
fn root(world: &World, node: &str) -> PathBuf {
    let machines = world.state_dir().join("machines");
    let roots = world.machine_ids().into_iter().map(|id| machines.join(id).join("root"));
    let is_its =
        |root: &PathBuf| fs::read_to_string(root.join("etc/hostname")).is_ok_and(|name| name.trim() == node);
    roots.into_iter().find(is_its).unwrap()
}

fn bootstrap(world: &World, node: &str) -> Option<Value> {
    let text = fs::read(root(world, node).join("etc/stead/bootstrap.json")).ok()?;
    serde_json::from_slice(&text).ok()
}

fn token(world: &World, node: &str) -> String {
    bootstrap(world, node).unwrap()["token"].as_str().unwrap().to_owned()
}

fn verify(world: &World, token: &str) -> Ended {
    world.run(&["token", "verify", token])
}

fn entry(world: &World, node: &str) -> Value {
    let state: Value = serde_json::from_str(&world.state()).unwrap();
    state["nodes"][node].clone()
}

fn server_runs(world: &World) -> bool {
    world.run(&["server", "status", "--json"]).document()["running"] == true
}

#[track_caller]
fn good(ended: Ended) -> Value {
    assert_eq!(ended.code, 0, "{} {}", ended.stdout, ended.stderr);
    ended.document()
}

/// Section 5: a newer program is brought below the root of the node, packed and checked, and nowhere else.
#[test]
fn another_program_is_brought_below_the_nodes_root() {
    let world = world("- {name: edge, type: vm, spec: base, count: 2}\n");
    good(world.create(&[]));
    let known = world.command(&["create", "-M", "m", "-H", "local", "--json"]);
    let newer = world.state_dir().join("newer");
    fs::copy(known.get_program(), &newer).unwrap();
    // What follows the program in its file is not looked at.
    let mut file = fs::OpenOptions::new().append(true).open(&newer).unwrap();
    std::io::Write::write_all(&mut file, b"newer").unwrap();
    drop(file);
    let mut command = Command::new(&newer);
    command.args(known.get_args()).env_clear().current_dir(known.get_current_dir().unwrap());
    command.envs(known.get_envs().filter_map(|(name, value)| Some((name, value?))));
    good(command.output().unwrap().into());
    let hash = stead_bundle::hash_file(&newer, &mut vec![0; 1 << 16]).unwrap().to_string();
    for node in ["edge-1", "edge-2"] {
        assert!(root(&world, node).join("var/lib/stead/bin").join(&hash).join("stead").is_file(), "{node}");
    }
    for outside in [format!("/tmp/.stead-{hash}"), format!("/var/lib/stead/bin/{hash}")] {
        assert!(!PathBuf::from(&outside).exists(), "{outside}");
    }
}

/// Section 8: who was given a token that is not good any more is given another one by the next create.
#[test]
fn a_revoked_token_is_replaced() {
    let world = world(EDGE);
    good(world.create(&["--mode", "pull"]));
    let before = token(&world, "edge");
    assert_eq!(verify(&world, &before).code, 0);
    assert_eq!(world.run(&["token", "revoke", "--node", "edge"]).code, 0);
    let again = good(world.create(&["--mode", "pull"]));
    assert!(again["diagnostics"].to_string().contains("node/new-token"), "{again}");
    assert_eq!(verify(&world, &token(&world, "edge")).code, 0);
    assert_eq!(verify(&world, &before).code, 4);
    let third = good(world.create(&["--mode", "pull"]));
    assert_eq!(third["nodes"][0]["changed"], false, "{third}");
}

/// Section 5: a node whose agent cannot ask any more, for whatever reason, is told anew over SSH.
#[test]
fn a_silent_agent_is_told_anew() {
    let world = world(EDGE);
    good(world.create(&["--mode", "pull"]));
    let secrets =
        format!("ssh_keys:\n  ann@desk: {}\nauth:\n  signing_key: '{}'\n", super::KEY, "cd".repeat(32));
    world.write("secrets.yaml", &secrets);
    good(world.create(&["--mode", "pull"]));
    assert_eq!(verify(&world, &token(&world, "edge")).code, 0);
}

/// Section 5: what was reported before an agent was told anew does not end the wait.
#[test]
fn a_report_from_before_does_not_decide() {
    let world = world(EDGE);
    world.host("local", "driver: sandbox\npackages: [ca-certificates, curl, htop]\n");
    let unknown = super::BASE.replace("htop", "no-such-package");
    world.write("specs/base.yaml", &unknown);
    assert_eq!(world.create(&["--mode", "pull"]).code, 1);
    world.write("specs/base.yaml", super::BASE);
    good(world.create(&["--mode", "push"]));
    let pulled = good(world.create(&["--mode", "pull"]));
    assert_eq!(pulled["nodes"][0]["mode"], "pull", "{pulled}");
}

/// Sections 8 and 10: tokens end with the agent they were given to, whatever is remembered of it.
#[test]
fn tokens_end_with_their_agent() {
    let world = world(EDGE);
    good(world.create(&["--mode", "pull"]));
    let pulled = token(&world, "edge");
    good(world.create(&["--mode", "hybrid"]));
    let signalled = token(&world, "edge");
    assert_eq!((verify(&world, &pulled).code, verify(&world, &signalled).code), (4, 0));
    fs::remove_file(world.state_path()).unwrap();
    let pushed = good(world.create(&["--mode", "push"]));
    assert!(pushed["diagnostics"].to_string().contains("node/adopted"), "{pushed}");
    assert_eq!(bootstrap(&world, "edge"), None, "the agent of an adopted machine goes too");
    assert_eq!(verify(&world, &signalled).code, 4);
    good(world.create(&["--mode", "pull"]));
    let last = token(&world, "edge");
    fs::remove_file(world.state_path()).unwrap();
    assert_eq!(world.destroy(&[]).code, 0);
    assert_eq!(verify(&world, &last).code, 4, "nobody remembers it, and it is worthless");
    assert!(!server_runs(&world), "the server that a run started goes, whatever is remembered");
}

/// Section 10: a node that has no spec any more is configured by nobody, and needs no server.
#[test]
fn a_node_without_a_spec_has_no_agent() {
    let world = world(EDGE);
    good(world.create(&["--mode", "pull"]));
    let told = token(&world, "edge");
    world.nodes("- {name: edge, type: vm}\n");
    good(world.create(&["--mode", "pull"]));
    let entry = entry(&world, "edge");
    assert_eq!(
        (&entry["spec"], &entry["spec_digest"], &entry["jti"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    assert_eq!((bootstrap(&world, "edge"), verify(&world, &told).code), (None, 4));
    assert_eq!(world.run(&["status", "-M", "m", "-H", "local"]).code, 0);
    assert_eq!(world.destroy(&[]).code, 0);
    assert!(!server_runs(&world));
    let plain = World::new();
    plain.write("site.yaml", SITE);
    plain.nodes("- {name: edge, type: vm, execution: {mode: pull}}\n");
    good(plain.create(&[]));
    assert!(!plain.state_dir().join("server").exists(), "nobody asks it");
}

/// Section 3: a node may be configured by push and run what its agent fetches.
#[test]
fn a_node_that_only_runs_by_pull_has_an_agent() {
    let phases = "execution: {phases: {config: push, run: pull, destroy: pull}}";
    let world = world(&format!(
        "- {{name: a, type: vm, spec: base, peers: [b], {phases}}}\n- {{name: b, type: vm, spec: base, {phases}}}\n"
    ));
    good(world.create(&[]));
    for (node, peer) in [("a", "b"), ("b", "a")] {
        let file = root(&world, node).join("etc/stead/peers.json");
        wait_for("the link", || fs::read_to_string(&file).is_ok_and(|text| text.contains(peer)));
        assert_eq!(bootstrap(&world, node).unwrap()["mode"], "pull");
    }
    let again = good(world.create(&[]));
    assert!(again["nodes"].as_array().unwrap().iter().all(|node| node["changed"] == false), "{again}");
    let job = good(world.run(&["job", "submit", "--node", "a", "--wait", "--json", "--", "hostname"]));
    assert_eq!((&job["state"], &job["stdout"]), (&json!("succeeded"), &json!("a\n")));
    let told = token(&world, "a");
    assert_eq!(world.destroy(&[]).code, 0);
    assert_eq!(verify(&world, &told).code, 4);
    assert!(!server_runs(&world), "it went with the last agent");
}

/// Section 5: push starts no server, also where a node is to stop itself.
#[test]
fn a_pushed_node_that_stops_itself_needs_no_server() {
    let world = world("- {name: edge, type: vm, spec: base, execution: {phases: {destroy: pull}}}\n");
    good(world.create(&[]));
    let gone = world.destroy(&[]);
    assert_eq!((gone.code, world.left()), (0, Vec::new()), "{}", gone.stdout);
    assert!(!world.state_dir().join("server").exists());
}

/// Section 10: what cannot be applied is said, and a number cannot be changed.
#[test]
fn numbers_and_addresses_are_not_dropped_silently() {
    let world = world("- {name: edge, type: vm, vmid: 120, ip: 10.1.2.3/24}\n");
    let made = good(world.create(&[]));
    let told = made["diagnostics"].to_string();
    assert!(told.contains("node/unapplied-key") && told.contains("cannot apply ip, vmid"), "{told}");
    assert_eq!(made["nodes"][0]["vm_id"], json!(120));
    world.nodes("- {name: edge, type: vm, vmid: 777}\n");
    let refused = world.create(&[]);
    assert_eq!(refused.code, 1);
    let error = refused.document()["nodes"][0]["error"].to_string();
    assert!(error.contains("vmid is 120, not 777"), "{error}");
}

/// Section 10: a number that comes later is a change too, and everything that cannot be changed is named at once.
#[test]
fn a_machine_made_without_a_number_gets_none() {
    let world = world("- {name: edge, type: vm}\n");
    good(world.create(&[]));
    world.nodes("- {name: edge, type: ct, vmid: 777}\n");
    let refused = world.create(&[]);
    assert_eq!(refused.code, 1);
    let document = refused.document();
    let error = document["nodes"][0]["error"].to_string();
    assert!(error.contains("type is vm, not ct, vmid is none, not 777; write back"), "{error}");
    let help = document["error"]["help"].as_str().unwrap();
    assert!(help.contains("do what the message says"), "{help}");
}

/// Section 5: a hybrid node whose agent has not connected half a minute after its boot is told over SSH.
#[test]
fn a_hybrid_node_that_does_not_connect_is_told_over_ssh() {
    let world = world(EDGE);
    let door = Door::closed();
    let address = format!("127.0.0.1:{}", door.port);
    let words = ["create", "-M", "m", "-H", "local", "--json", "--mode", "hybrid", "--self-addr", &address];
    let mut create = world.command(&words);
    let (said, errors) = (world.path("said"), world.path("errors"));
    create.stdout(fs::File::create(&said).unwrap()).stderr(fs::File::create(&errors).unwrap());
    let mut create = Running::of(create.spawn().unwrap());
    // No signal of its server can reach it: only who logs in can tell it.
    let log = || {
        let homes = world.machine_ids().into_iter().map(|id| world.state_dir().join("machines").join(id));
        homes.map(|home| fs::read_to_string(home.join("agent.log")).unwrap_or_default()).collect::<String>()
    };
    while !log().contains("told to converge") {
        assert!(!create.is_over(), "{} {}", fs::read_to_string(&said).unwrap(), log());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let port = world.run(&["server", "status", "--json"]).document()["port"].as_u64().unwrap();
    door.open(u16::try_from(port).unwrap());
    let ended = create.end();
    let made = fs::read_to_string(&said).unwrap();
    assert_eq!(ended.code, 0, "{made} {}", log());
    let made: Value = serde_json::from_str(&made).unwrap();
    assert_eq!(
        (&made["nodes"][0]["status"], &made["nodes"][0]["mode"]),
        (&json!("completed"), &json!("hybrid"))
    );
}

/// Section 5: SSH is one of two ways to a hybrid node. One that has connected is not logged into, however long it takes.
#[test]
fn a_hybrid_node_that_has_connected_needs_no_ssh() {
    let world = world(EDGE);
    world.host(
        "local",
        "driver: sandbox\nfaults: [{node: edge, phase: ssh, error: no way in}, {node: edge, phase: config, delay_ms: 32000}]\n",
    );
    let made = good(world.create(&["--mode", "hybrid"]));
    assert_eq!(made["nodes"][0]["status"], "completed");
    assert!(!made["diagnostics"].to_string().contains("node/silent"), "{made}");
}

/// Section 5: a hybrid node that neither connects nor is reached is warned of, and waited for.
#[test]
fn a_hybrid_node_that_is_not_reached_may_connect_late() {
    let world = world(EDGE);
    world.host("local", "driver: sandbox\nfaults: [{node: edge, phase: ssh, error: no way in}]\n");
    let door = Door::closed();
    let address = format!("127.0.0.1:{}", door.port);
    let words = ["create", "-M", "m", "-H", "local", "--json", "--mode", "hybrid", "--self-addr", &address];
    let mut create = world.command(&words);
    let (said, errors) = (world.path("said"), world.path("errors"));
    create.stdout(fs::File::create(&said).unwrap()).stderr(fs::File::create(&errors).unwrap());
    let mut create = Running::of(create.spawn().unwrap());
    let journal = || {
        let runs = fs::read_dir(world.state_dir().join("runs")).into_iter().flatten().flatten();
        runs.map(|run| fs::read_to_string(run.path().join("events.jsonl")).unwrap_or_default())
            .collect::<String>()
    };
    while !journal().contains("node/silent") {
        assert!(!create.is_over(), "{} {}", fs::read_to_string(&said).unwrap(), journal());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let port = world.run(&["server", "status", "--json"]).document()["port"].as_u64().unwrap();
    door.open(u16::try_from(port).unwrap());
    let ended = create.end();
    let made = fs::read_to_string(&said).unwrap();
    assert_eq!(ended.code, 0, "{made}");
    assert!(made.contains("was not told to converge over SSH"), "{made}");
}

/// Sections 5 and 6: a server that is killed while nodes are waited for comes back, and what they report to it is heard.
#[test]
fn a_server_that_is_killed_while_nodes_are_waited_for_comes_back() {
    for mode in ["pull", "hybrid"] {
        let world = world(EDGE);
        // Long enough to kill a server in; who is not heard is given up after a minute.
        world.manifest(&format!("settings: {{timeout_buffer: 0}}\nnodes:\n{EDGE}"));
        world.host(
            "local",
            "driver: sandbox\ntimeouts: {config: 60}\nfaults: [{node: edge, phase: config, times: 1, delay_ms: 3000}]\n",
        );
        let mut create = world.command(&["create", "-M", "m", "-H", "local", "--json", "--mode", mode]);
        let (said, errors) = (world.path("said"), world.path("errors"));
        create.stdout(fs::File::create(&said).unwrap()).stderr(fs::File::create(&errors).unwrap());
        let mut create = Running::of(create.spawn().unwrap());
        let is_at_it = || {
            let machines =
                world.machine_ids().into_iter().map(|id| world.state_dir().join("machines").join(id));
            machines.into_iter().any(|machine| machine.join("root/var/lib/stead/config/spec.yaml").exists())
        };
        while !is_at_it() {
            assert!(!create.is_over(), "{}", fs::read_to_string(&said).unwrap());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let status = world.run(&["server", "status", "--json"]).exits(0).document();
        crate::cases_17_32::lab::kill(
            u32::try_from(status["pid"].as_u64().unwrap()).unwrap(),
            rustix::process::Signal::KILL,
        );
        let code = create.end().code;
        let made = fs::read_to_string(&said).unwrap();
        assert_eq!(code, 0, "{mode}: {made} {}", fs::read_to_string(&errors).unwrap());
        let made: Value = serde_json::from_str(&made).unwrap();
        assert_eq!(made["nodes"][0]["status"], "completed", "{mode}: {made}");
        assert!(made["diagnostics"].to_string().contains("node/server-gone"), "{mode}: {made}");
        let now = world.run(&["server", "status", "--json"]).exits(0).document();
        assert_eq!((&now["port"], &now["fingerprint"]), (&status["port"], &status["fingerprint"]), "{mode}");
    }
}

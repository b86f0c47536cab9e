//! Several pairs of manifest and host in one site, and what is known of each.

use std::fs;

use serde_json::{Value, json};

use super::BASE;
use super::pulled::wait_for;
use super::world::World;
use crate::cases_17_32::lab::{Ended, Running};

const SITE: &str =
    "server: {port: 0, bind: 127.0.0.1}\ndefaults: {domain: lab.example, packages: [ca-certificates]}\n";

/// A site with a second manifest, `n`, whose nodes go as well.
struct Pairs(World);

impl Pairs {
    fn new() -> Self {
        let world = World::new();
        world.write("site.yaml", SITE);
        Self(world)
    }

    fn second(&self, nodes: &str) {
        self.0.write("manifests/n.yaml", &format!("schema_version: 2\nname: n\nnodes:\n{nodes}"));
    }

    fn on(&self, verb: &str, manifest: &str, host: &str, more: &[&str]) -> Ended {
        self.0.run(&[&[verb, "-M", manifest, "-H", host, "--json", "--yes"], more].concat())
    }

    fn server_runs(&self) -> bool {
        self.0.run(&["server", "status", "--json"]).document()["running"] == true
    }
}

impl Drop for Pairs {
    fn drop(&mut self) {
        self.on("destroy", "n", "local", &[]);
    }
}

#[track_caller]
fn good(ended: Ended) -> Value {
    assert_eq!(ended.code, 0, "{} {}", ended.stdout, ended.stderr);
    ended.document()
}

/// Section 10: tokens, reports and signals know nodes by their names; so of two pairs one may have a name at a server.
#[test]
fn a_name_is_fetched_under_by_one_pair_only() {
    let pairs = Pairs::new();
    let world = &pairs.0;
    world.host("other", "driver: sandbox\n");
    world.nodes("- {name: a, type: vm, spec: base}\n");
    good(pairs.on("create", "m", "local", &["--mode", "pull"]));
    let refused = pairs.on("create", "m", "other", &["--mode", "pull"]);
    assert_eq!((refused.code, refused.document()["error"]["code"].clone()), (3, json!("node/conflict")));
    assert!(refused.stdout.contains("m on local"), "{}", refused.stdout);
    good(pairs.on("create", "m", "other", &["--mode", "push"]));
    good(pairs.on("destroy", "m", "other", &[]));
    let again = good(pairs.on("create", "m", "local", &["--mode", "pull"]));
    assert_eq!(again["nodes"][0]["changed"], false, "its tokens are as good as they were: {again}");
    good(pairs.on("destroy", "m", "local", &[]));
    good(pairs.on("create", "m", "other", &["--mode", "pull"]));
    good(pairs.on("destroy", "m", "other", &[]));
    assert!(!pairs.server_runs());
}

/// Section 6: a server that a run started is stopped by the destroy of the last node, whichever run that is, and not
/// while another pair is about to need it.
#[test]
fn the_server_goes_with_the_last_node_of_all_pairs() {
    let pairs = Pairs::new();
    let world = &pairs.0;
    world.host("slow", "driver: sandbox\nboot_delay_ms: 1500\n");
    world.nodes("- {name: a, type: vm, spec: base, execution: {mode: pull}}\n");
    pairs.second("- {name: b, type: vm, spec: base, host: slow, execution: {mode: pull}}\n");
    good(pairs.on("create", "m", "local", &[]));
    let mut second = world.command(&["create", "-M", "n", "-H", "local", "--json"]);
    second.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let second = Running::of(second.spawn().unwrap());
    let state = world.state_dir().join("nodes/local/n/state.json");
    wait_for("the second has its server", || state.exists());
    good(pairs.on("destroy", "m", "local", &[]));
    good(second.end());
    assert!(pairs.server_runs());
    good(pairs.on("destroy", "n", "local", &[]));
    assert!(!pairs.server_runs());
    // One that a person started stays.
    assert_eq!(world.run(&["server", "start"]).code, 0);
    good(pairs.on("create", "m", "local", &[]));
    good(pairs.on("destroy", "m", "local", &[]));
    assert!(pairs.server_runs());
    assert_eq!(world.run(&["server", "stop"]).code, 0);
}

/// Section 12: a command goes to every node that is meant, or to none.
#[test]
fn a_name_of_two_nodes_is_not_guessed() {
    let pairs = Pairs::new();
    let world = &pairs.0;
    world.host("other", "driver: sandbox\n");
    world.nodes("- {name: a, type: vm}\n");
    good(pairs.on("create", "m", "local", &[]));
    world.run(&["exec", "a", "--", "true"]).exits(0);
    good(pairs.on("create", "m", "other", &[]));
    for target in ["all", "a", "a*"] {
        let refused = world.run(&["exec", "-M", "m", target, "--", "true"]).exits(3);
        let refused = refused.says("`a` is a node of m on local and of m on other");
        assert!(refused.stderr.contains("-M and -H"), "{}", refused.stderr);
    }
    world.run(&["exec", "a", "--", "true"]).exits(3).says("m on other");
    world.run(&["exec", "-M", "m", "-H", "other", "all", "--", "true"]).exits(0);
    world.run(&["exec", "nobody", "--", "true"]).exits(3);
}

/// Section 6: who tells nobody an address needs none.
#[test]
fn only_who_makes_nodes_needs_an_address() {
    let mut pairs = Pairs::new();
    pairs.0.nodes("- {name: a, type: vm, spec: base}\n");
    good(pairs.on("create", "m", "local", &[]));
    pairs.0.set("STEAD_SELF_ADDR", "0.0.0.0");
    let world = &pairs.0;
    assert_eq!(world.run(&["drift", "-M", "m", "-H", "local"]).code, 0);
    assert_eq!(world.run(&["exec", "-M", "m", "-H", "local", "a", "--", "true"]).code, 0);
    assert_eq!(world.create(&[]).code, 2);
    good(pairs.on("destroy", "m", "local", &[]));
}

/// Section 12: nodes of a manifest that lies elsewhere are compared with it; those that nobody describes are listed.
#[test]
fn drift_of_one_pair_does_not_depend_on_others() {
    let pairs = Pairs::new();
    let world = &pairs.0;
    world.nodes("- {name: a, type: vm, spec: base}\n");
    good(pairs.on("create", "m", "local", &[]));
    let elsewhere = "schema_version: 2\nname: n\nnodes:\n- {name: b, type: vm, spec: base}\n";
    world.write("elsewhere.yaml", elsewhere);
    let file = ["--manifest-file", "site-config/elsewhere.yaml", "-H", "local"];
    good(world.run(&[&["create", "--json"][..], &file].concat()));
    fs::create_dir_all(world.state_dir().join("nodes/local/lost")).unwrap();
    assert_eq!(world.run(&[&["drift"][..], &file].concat()).code, 0);
    let all = world.run(&["drift", "--json"]);
    assert_eq!(
        (all.code, &all.document()["unreachable"]),
        (7, &json!(["b"])),
        "{} {}",
        all.stdout,
        all.stderr
    );
    assert!(all.stderr.contains("manifests/n.yaml"), "{}", all.stderr);
    assert_eq!(world.run(&["drift", "-M", "m"]).code, 0);
}

/// Section 2: a node is waited for as long as the host that it is made on may take.
#[test]
fn a_host_has_its_own_timeouts() {
    let pairs = Pairs::new();
    let world = &pairs.0;
    world.host("quick", "driver: sandbox\ntimeouts: {address: 1}\n");
    world.host("slow", "driver: sandbox\nboot_delay_ms: 1800\ntimeouts: {address: 60}\n");
    world.manifest("settings: {timeout_buffer: 0}\nnodes:\n- {name: a, type: vm, host: slow}\n");
    good(pairs.on("create", "m", "quick", &[]));
}

/// Section 10: what is remembered may be lost, also by damage.
#[test]
fn a_damaged_state_is_a_lost_one() {
    let pairs = Pairs::new();
    let world = &pairs.0;
    world.nodes("- {name: a, type: vm}\n");
    pairs.second("- {name: b, type: vm}\n");
    good(pairs.on("create", "m", "local", &[]));
    good(pairs.on("create", "n", "local", &[]));
    fs::write(world.state_path(), "{\"schema\": 1, \"nodes").unwrap();
    for verb in ["create", "status"] {
        let refused = world.run(&[verb, "-M", "m", "-H", "local"]).exits(3);
        refused.says("remove it: nodes are found again by their labels");
    }
    let all = world.run(&["status", "--json"]);
    assert_eq!((all.code, &all.document()["nodes"][0]["name"]), (1, &json!("b")), "{}", all.stderr);
    assert!(all.stderr.contains("nodes/local/m/state.json"), "{}", all.stderr);
    let gone = good(pairs.on("destroy", "m", "local", &[]));
    assert!(gone["diagnostics"].to_string().contains("node/damaged-state"), "{gone}");
    assert_eq!(world.machine_ids().len(), 1, "only the other pair's is left");
    assert!(world.state_path().with_extension("json.damaged").exists(), "it is put aside");
}

/// Section 11: nodes of the manifest that nobody made are not converged, and can be chosen among.
#[test]
fn status_knows_the_manifest() {
    let pairs = Pairs::new();
    let world = &pairs.0;
    world.nodes("- {name: a, type: vm, spec: base}\n- {name: b, type: vm}\n");
    good(pairs.on("create", "m", "local", &["--only", "a"]));
    let status = |more: &[&str]| world.run(&[&["status", "--json"], more].concat());
    let row =
        |row: &Value| format!("{} {} {}", row["name"], row["machine"], row["converged"]).replace('"', "");
    let rows =
        |ended: &Ended| ended.document()["nodes"].as_array().unwrap().iter().map(row).collect::<Vec<_>>();
    let whole = status(&["-M", "m", "-H", "local"]);
    assert_eq!((whole.code, rows(&whole)), (1, vec!["a running true".into(), "b absent false".into()]));
    let one = status(&["-M", "m", "--only", "a"]);
    assert_eq!((one.code, rows(&one)), (0, vec!["a running true".into()]));
    assert_eq!(status(&["-M", "m", "--only", "a", "--mode", "pull"]).code, 1, "it is pushed");
    assert_eq!(status(&["-M", "m", "--only", "zz"]).code, 3);
    assert_eq!(status(&["--manifest-file", "/nonexistent.yaml"]).code, 3);
    let file = status(&["--manifest-file", "site-config/manifests/m.yaml", "--only", "b"]);
    assert_eq!((file.code, rows(&file)), (1, vec!["b absent false".into()]));
    pairs.second("- {name: c, type: vm}\n");
    let never = status(&["-M", "n", "-H", "local"]);
    assert_eq!((never.code, rows(&never)), (1, vec!["c absent false".into()]));
}

/// Sections 3 and 12: a name that nobody has is refused, and not taken for a choice of nothing, also where no manifest is named.
#[test]
fn a_name_that_nobody_has_is_no_choice_of_nothing() {
    let pairs = Pairs::new();
    let world = &pairs.0;
    world.nodes("- {name: a, type: vm, spec: base}\n- {name: b, type: vm}\n");
    world.run(&["drift", "-M", "m"]).exits(0);
    good(pairs.on("create", "m", "local", &[]));
    for words in [
        &["drift", "-M", "mm"][..],
        &["drift", "-H", "nowhere"],
        &["drift", "--only", "c"],
        &["drift", "--only", "a,c", "-H", "local"],
        &["job", "list", "-M", "mm"],
        &["status", "--only", "c"],
        &["status", "--only", "a,c"],
    ] {
        let refused = world.run(&[words, &["--json"]].concat()).exits(3);
        assert_eq!(refused.document()["exit_code"], 3, "{words:?}");
    }
    let near = world.run(&["status", "--only", "bb", "--json"]).exits(3).document();
    assert_eq!(near["diagnostics"][0]["candidates"], json!(["b"]), "{near}");
    world.run(&["drift", "--only", "a"]).exits(0);
    // Words that mean nodes of different manifests are all meant.
    pairs.second("- {name: d, type: vm, spec: base, count: 2}\n");
    good(pairs.on("create", "n", "local", &[]));
    let keys =
        |id: &str| world.state_dir().join("machines").join(id).join("root/home/ops/.ssh/authorized_keys");
    for file in world.machine_ids().iter().map(|id| keys(id)).filter(|file| file.exists()) {
        fs::write(file, "").unwrap();
    }
    let found = world.run(&["drift", "--only", "a,d", "--json"]).exits(4).document();
    let found: Vec<&str> =
        found["drift"].as_array().unwrap().iter().map(|drift| drift["node"].as_str().unwrap()).collect();
    assert_eq!(found, ["a", "d-1", "d-2"]);
    good(pairs.on("create", "m", "local", &[]));
    good(pairs.on("destroy", "n", "local", &[]));
    let rows = |more: &[&str]| {
        let seen = world.run(&[&["status", "--json"], more].concat()).exits(0).document();
        let nodes = seen["nodes"].as_array().unwrap().clone();
        nodes.iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(rows(&[]), ["a", "b"]);
    assert_eq!(
        (rows(&["--only", "b"]), rows(&["--only", "[b-z]", "--depth", "1"])),
        (vec!["b".into()], vec!["b".into()])
    );
    // One that is there and that no manifest has is not compared, which is said.
    world.nodes("- {name: a, type: vm, spec: base}\n");
    let orphan = world.run(&["drift", "--only", "b,a", "--json"]).exits(7).document();
    assert_eq!(orphan["unreachable"], json!(["b"]), "{orphan}");
    // What keeps a manifest from being read is told, not that its nodes have other names.
    world.manifest("nodes: [");
    world.run(&["drift", "--only", "cc"]).exits(3).says("manifests/m.yaml");
    world.nodes("- {name: a, type: vm, spec: base}\n");
}

/// Section 7: a key file in the home directory is looked for before anything is made.
#[test]
fn a_missing_key_file_is_found_first() {
    let mut pairs = Pairs::new();
    let home = pairs.0.state_dir().with_file_name("home");
    pairs.0.set("HOME", home.to_str().unwrap());
    pairs.0.write("site.yaml", "defaults: {ssh_key_file: ~/.ssh/missing}\n");
    pairs.0.nodes("- {name: a, type: vm}\n");
    let refused = pairs.on("create", "m", "local", &[]);
    assert_eq!((refused.code, refused.document()["error"]["code"].clone()), (1, json!("node/preflight")));
    assert!(!pairs.0.state_dir().exists(), "no trace");
}

/// Section 2: `-H USER@HOST` logs in as that user, and a host key that is seen for the first time is recorded and said.
#[test]
fn a_host_is_set_up_as_the_user_that_is_named() {
    let mut pairs = Pairs::new();
    pairs.0.nodes("- {name: a, type: vm}\n");
    good(pairs.on("create", "m", "local", &[]));
    let home = pairs.0.state_dir().with_file_name("home");
    fs::create_dir_all(home.join(".ssh")).unwrap();
    fs::copy(pairs.0.state_dir().join("ssh/id_ed25519"), home.join(".ssh/id_ed25519")).unwrap();
    pairs.0.set("HOME", home.to_str().unwrap());
    let world = &pairs.0;
    let state: Value = serde_json::from_str(&world.state()).unwrap();
    let port = &state["nodes"]["a"]["ssh_port"];
    world.write(
        "hosts/box.yaml",
        &format!("ip: 127.0.0.1\naccess: {{ssh_port: {port}, host_user: somebody-else}}\n"),
    );
    let apply =
        |host: &str| world.run(&["config", "apply", "-H", host, "--spec", "base", "--node", "a", "--json"]);
    let applied = apply("stead@box");
    assert_eq!(applied.code, 0, "{} {}", applied.stdout, applied.stderr);
    assert!(applied.stderr.contains("key"), "{}", applied.stderr);
    assert_eq!(applied.document()["spec"], "base");
    assert_ne!(apply("box").code, 0, "the account of its file has no key");
}

/// Section 7: a machine that carries another label is neither used nor removed nor forgotten, whatever is remembered of it.
#[test]
fn a_remembered_machine_of_another_is_left_alone() {
    let pairs = Pairs::new();
    let world = &pairs.0;
    world.nodes("- {name: a, type: vm}\n");
    pairs.second("- {name: b, type: vm}\n");
    good(pairs.on("create", "m", "local", &[]));
    good(pairs.on("create", "n", "local", &[]));
    let (before, machines) = (world.state(), world.machine_ids());
    let id = |text: &str, name: &str| -> String {
        let state: Value = serde_json::from_str(text).unwrap();
        state["nodes"][name]["machine_id"].as_str().unwrap().to_owned()
    };
    let other = fs::read_to_string(world.state_dir().join("nodes/local/n/state.json")).unwrap();
    fs::write(world.state_path(), before.replace(&id(&before, "a"), &id(&other, "b"))).unwrap();
    let status = world.run(&["status", "-M", "m", "-H", "local", "--json"]).document();
    assert_eq!(
        (&status["nodes"][0]["machine"], &status["nodes"][0]["converged"]),
        (&"foreign".into(), &false.into())
    );
    let refused = pairs.on("destroy", "m", "local", &[]).exits(1).document();
    let error = refused["nodes"][0]["error"].as_str().unwrap();
    assert!(error.contains("site/n/local/b") && error.contains("left alone"), "{error}");
    let refused = pairs.on("create", "m", "local", &[]).exits(1).document();
    assert!(refused["nodes"][0]["error"].as_str().unwrap().contains("site/n/local/b"), "{refused}");
    assert_eq!(world.machine_ids(), machines);
    fs::write(world.state_path(), &before).unwrap();
    // A site that is called otherwise does not leave the machines behind that it made under its old name.
    world.write("site.yaml", &format!("name: renamed\n{SITE}"));
    for verb in ["create", "destroy"] {
        let refused = pairs.on(verb, "m", "local", &[]).exits(1).document();
        assert!(
            refused["nodes"][0]["error"].as_str().unwrap().contains("site/m/local/a"),
            "{verb}: {refused}"
        );
        assert_eq!(world.machine_ids(), machines, "{verb}");
    }
    world.write("site.yaml", SITE);
    let again = good(pairs.on("create", "m", "local", &[]));
    assert_eq!(again["nodes"][0]["changed"], false, "{again}");
    assert_eq!(world.machine_ids(), machines);
    good(pairs.on("destroy", "m", "local", &[]));
}

/// Section 9: a run needs the specs of its own nodes; what is wrong with others is theirs.
#[test]
fn a_spoilt_spec_is_no_matter_of_other_nodes() {
    let pairs = Pairs::new();
    let world = &pairs.0;
    world.write("specs/other.yaml", BASE);
    world.nodes("- {name: a, type: vm, spec: base}\n");
    pairs.second("- {name: b, type: vm, spec: other}\n");
    good(pairs.on("create", "m", "local", &["--mode", "pull"]));
    good(pairs.on("create", "n", "local", &["--mode", "pull"]));
    world.write("specs/other.yaml", "schema_version: [");
    world.write("specs/base.yaml", &BASE.replace("htop", "vim"));
    let made = good(pairs.on("create", "m", "local", &["--mode", "pull"]));
    assert_eq!(made["nodes"][0]["changed"], true, "{made}");
    let status = world.run(&["server", "status", "--json"]).document();
    assert_eq!(status["reload"]["ok"], false, "{status}");
    assert!(status["reload"]["problems"].to_string().contains("specs/other.yaml"), "{status}");
    // The node whose spec it is goes on with what it had.
    assert_eq!(pairs.on("create", "n", "local", &["--mode", "pull"]).code, 3);
    let job = ["job", "submit", "--node", "b", "--wait", "--json", "--", "true"];
    assert_eq!(world.run(&job).exits(0).document()["state"], "succeeded");
    world.write("specs/other.yaml", BASE);
    good(pairs.on("create", "n", "local", &["--mode", "pull"]));
    assert_eq!(world.run(&["server", "status", "--json"]).document()["reload"]["ok"], true);
}

//! Nodes and hosts of a site as hosts of commands and plans (reach 4): which there are, and how targets choose among them.

use std::fs;

use serde_json::{Value, json};

use super::world::World;

/// A site with two nodes: `a` becomes `base`, `b` becomes nothing.
fn pair() -> World {
    let world = World::new();
    world.nodes("- {name: a, type: vm, spec: base}\n- {name: b, type: ct}\n");
    world.create(&[]).exits(0);
    world
}

fn names(listed: &Value) -> Vec<&str> {
    listed["hosts"].as_array().unwrap().iter().map(|host| host["name"].as_str().unwrap()).collect()
}

#[test]
fn nodes_are_chosen_by_their_labels() {
    let world = pair();
    let list = |target: &str| {
        world.run(&["exec", "-M", "m", "-H", "local", target, "--list", "--json"]).exits(0).document()
    };
    let a = list("a");
    let labels = json!({"source": "nodes", "manifest": "m", "host": "local", "type": "vm", "spec": "base",
        "level": "1", "mode": "push"});
    assert_eq!((&a["hosts"][0]["labels"], &a["hosts"][0]["source"]), (&labels, &json!("nodes")));
    assert_eq!(names(&list("spec:base")), ["a"]);
    assert_eq!(names(&list("manifest:m,!type:vm")), ["b"]);
    assert_eq!(names(&list("parent:*")), Vec::<&str>::new());
    let said = world.run(&["exec", "-M", "m", "-H", "local", "type:ct", "--", "hostname"]).exits(0);
    assert!(said.stdout.contains('b') && !said.stdout.contains("[a]"), "{}", said.stdout);
}

/// What a plan ran on is known to its resume too.
#[test]
fn a_plan_runs_on_nodes_and_is_resumed_on_them() {
    let world = pair();
    let mark = world.path("go");
    let plan = world.path("plan.yaml");
    let text = format!(
        "api_version: v1\nname: visit\ntasks:\n  - {{name: look, target: 'spec:base', shell: \"test -e '{}'\"}}\n",
        mark.display()
    );
    fs::write(&plan, text).unwrap();
    let plan = plan.to_str().unwrap();
    world.run(&["plan", "run", plan]).exits(1).says("no host matches");
    let failed = world.run(&["plan", "run", plan, "-M", "m", "-H", "local", "--json"]).exits(1).document();
    let hosts = failed["tasks"][0]["hosts"].as_array().unwrap();
    assert_eq!((hosts.len(), &hosts[0]["host"]), (1, &json!("a")), "{failed}");
    fs::write(&mark, "").unwrap();
    let run = failed["run_id"].as_str().unwrap();
    let resumed = world.run(&["resume", run, "--json"]).exits(0).document();
    assert_eq!(resumed["status"], "success", "{resumed}");
}

#[test]
fn hosts_of_the_site_are_hosts_and_its_key_opens_them() {
    let mut world = pair();
    let home = world.path("home");
    fs::create_dir_all(&home).unwrap();
    world.set("HOME", home.to_str().unwrap());
    let state: Value = serde_json::from_str(&world.state()).unwrap();
    let port = &state["nodes"]["a"]["ssh_port"];
    let host = format!("ip: 127.0.0.1\nlabels: {{role: web.front}}\naccess: {{ssh_port: {port}}}\n");
    world.write("hosts/box.yaml", &host);
    let key = world.state_dir().join("ssh/id_ed25519");
    let site = format!("defaults: {{ssh_key_file: {}, host_user: stead}}\n", key.display());
    world.write("site.yaml", &site);
    let listed = world.run(&["exec", "role:web", "--list", "--json"]).exits(0).document();
    assert_eq!(names(&listed), ["box"]);
    let labels = json!({"source": "site", "driver": "none", "role": "web.front"});
    assert_eq!(listed["hosts"][0]["labels"], labels);
    let said = world.run(&["exec", "role:web", "--", "hostname"]).exits(0);
    assert!(said.stdout.contains('a'), "{}", said.stdout);

    // One name for two hosts would be either.
    fs::write(world.path("inventory.yaml"), "api_version: v1\nhosts:\n  box: ssh://10.0.0.1\n").unwrap();
    let refused = world.run(&["exec", "box", "--", "true"]).exits(3).says("reach/duplicate-host");
    assert!(
        refused.stderr.contains("inventory.yaml:3") && refused.stderr.contains("site"),
        "{}",
        refused.stderr
    );
    // The same said twice is said once.
    let transport = &listed["hosts"][0]["transport"];
    let same =
        format!("api_version: v1\nhosts:\n  box: {{transport: {transport}, labels: {{role: web.front}}}}\n");
    fs::write(world.path("inventory.yaml"), same).unwrap();
    assert_eq!(names(&world.run(&["exec", "box", "--list", "--json"]).exits(0).document()), ["box"]);
    let inventory = world.path("inventory.yaml");
    let named = ["exec", "-i", inventory.to_str().unwrap(), "box", "--list", "--json"];
    let named = world.run(&named).exits(0).document();
    assert_eq!(named["hosts"][0]["source"], "inventory");
}

/// Section 4 of reach: a name that a node and a host of the site share is neither, and both are named; who does not
/// mean it is not concerned.
#[test]
fn a_node_does_not_hide_the_host_of_its_name() {
    let world = pair();
    world.write("hosts/a.yaml", "ip: 10.0.0.1\n");
    let plan = world.path("plan.yaml");
    fs::write(&plan, "api_version: v1\nname: visit\ntasks: [{name: look, target: a, exec: [\"true\"]}]\n")
        .unwrap();
    let exec = |more: &[&str]| world.run(&[&["exec", "-M", "m", "-H", "local"], more].concat());
    for refused in [
        exec(&["a", "--", "true"]),
        exec(&["_all", "--list"]),
        world.run(&["plan", "run", plan.to_str().unwrap(), "-M", "m", "-H", "local"]),
    ] {
        let refused = refused.exits(3).says("reach/duplicate-host");
        let told = &refused.stderr;
        assert!(told.contains("a node of m on local and a host of the site"), "{told}");
        assert!(told.contains("hosts/a.yaml"), "{told}");
    }
    exec(&["b", "--", "true"]).exits(0);
}

/// Section 12: the key that a node showed when it was made is the only one that is believed.
#[test]
fn a_node_that_shows_another_key_is_not_talked_to() {
    let world = pair();
    let before = world.state();
    let state: Value = serde_json::from_str(&before).unwrap();
    let key = |node: &str| state["nodes"][node]["host_key"].as_str().unwrap();
    fs::write(world.state_path(), before.replace(key("a"), key("b"))).unwrap();
    let refused = world.run(&["exec", "-M", "m", "-H", "local", "a", "--", "true"]);
    assert_ne!(refused.code, 0, "{}", refused.stdout);
    assert!(
        refused.stderr.contains("key") || refused.stdout.contains("key"),
        "{} {}",
        refused.stdout,
        refused.stderr
    );
    fs::write(world.state_path(), before).unwrap();
    world.run(&["exec", "-M", "m", "-H", "local", "a", "--", "true"]).exits(0);
}

/// Section 4: with `-M` and `-i` together there are exactly the nodes and what the files have.
#[test]
fn exec_on_nodes_takes_files_of_hosts_too() {
    let world = pair();
    let file = |name: &str, text: &str| {
        fs::write(world.path(name), text).unwrap();
        world.path(name).to_str().unwrap().to_owned()
    };
    let more = file("more.yaml", "api_version: v1\nhosts: {here: {transport: local}}\n");
    let agents = file("others.yaml", "api_version: v1\nagents: {far: {transport: u@far}}\n");
    let list = |target: &str, args: &[&str]| {
        let args = [&["exec", "-M", "m", "-H", "local", target, "--list", "--json"], args].concat();
        world.run(&args).exits(0).document()
    };
    assert_eq!(names(&list("here,a", &["-i", &more])), ["here", "a"]);
    assert_eq!(names(&list("far,b,here", &["-i", &more, "--agents", &agents])), ["far", "b", "here"]);
    let said =
        world.run(&["exec", "-M", "m", "-H", "local", "-i", &more, "here,a", "--", "echo", "hi"]).exits(0);
    assert!(said.stdout.contains("here | hi") && said.stdout.contains("a | hi"), "{}", said.stdout);
}

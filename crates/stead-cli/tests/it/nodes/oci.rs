//! System tests over containers: one, two and three levels, by push, pull and hybrid, with real SSH daemons.

mod network;
mod templates;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use stead_testkit::sshd::{KeyKind, make_key};

use super::{LOCAL, site, write};
use crate::cases_17_32::accounts;
use crate::cases_17_32::lab::{Ended, Lab};
use crate::oci::yard::{groups_of, is_skipped, own_network, residue};

const SITE: &str = "server: {port: 0}\ndefaults: {domain: lab.example, packages: [ca-certificates]}\n";
const SPEC: &str = "schema_version: 1
access: {posture: local, users: [{name: ops, sudo: true}]}
platform: {packages: [openssh-server]}
";

/// A site whose nodes are containers of this machine, and go when the test ends, however it ends.
struct Harbour {
    lab: Lab,
    bridge: String,
}

impl Harbour {
    /// Returns a site with these nodes, all of them containers from the running root.
    fn new(runtime: &str, nodes: &[&str], rest: &str) -> Self {
        Self::with_key(super::KEY, runtime, nodes, rest)
    }

    /// The same for somebody with this key.
    fn with_key(key: &str, runtime: &str, nodes: &[&str], rest: &str) -> Self {
        let (bridge, subnet) = own_network();
        let lab = site(&[("site.yaml", SITE), ("postures/local.yaml", LOCAL), ("specs/base.yaml", SPEC)]);
        let harbour = Self { lab, bridge };
        let secrets = format!("ssh_keys:\n  ann@desk: {key}\nauth:\n  signing_key: '{}'\n", "ab".repeat(32));
        write(&harbour.lab, "secrets.yaml", &secrets);
        let host = format!(
            "driver: oci\nruntime: {runtime}\nbridge: {}\nsubnet: {subnet}\ntimeouts: {{ssh: 60, config: 120}}\n",
            harbour.bridge
        );
        write(&harbour.lab, "hosts/box.yaml", &host);
        harbour.nodes(nodes, rest);
        harbour
    }

    fn nodes(&self, nodes: &[&str], rest: &str) {
        let nodes: String =
            nodes.iter().map(|node| format!("  - {{type: ct, template: host, {node}}}\n")).collect();
        write(&self.lab, "manifests/m.yaml", &format!("schema_version: 2\nname: m\n{rest}nodes:\n{nodes}"));
    }

    fn run(&self, verb: &str, more: &[&str]) -> Ended {
        let words = [verb, "-M", "m", "-H", "box", "--json"];
        let yes: &[&str] = if ["status", "drift", "verify"].contains(&verb) { &[] } else { &["--yes"] };
        self.lab.run(words.into_iter().chain(yes.iter().copied()).chain(more.iter().copied()))
    }

    #[track_caller]
    fn make(&self, more: &[&str]) -> Value {
        let made = self.run("create", more);
        assert_eq!(made.code, 0, "{}\n{}\n{}", made.stdout, made.stderr, self.consoles());
        made.document()
    }

    /// Runs a command on a node and returns what it printed.
    #[track_caller]
    fn on(&self, node: &str, argv: &[&str]) -> String {
        let words = ["exec", "-M", "m", "-H", "box", "--json", node, "--"];
        let ended = self.lab.run(words.into_iter().chain(argv.iter().copied())).exits(0).document();
        ended["results"][0]["stdout"].as_str().unwrap_or_else(|| panic!("{ended}")).trim().to_owned()
    }

    #[track_caller]
    fn json_on(&self, node: &str, file: &str) -> Value {
        let text = self.on(node, &["sudo", "-n", "cat", file]);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    fn machines(&self) -> PathBuf {
        self.lab.root().canonicalize().unwrap().join("state/machines")
    }

    /// Returns what the containers of this level say: every login is noted there.
    fn consoles(&self) -> String {
        let homes = fs::read_dir(self.machines()).into_iter().flatten().flatten();
        let texts = homes.map(|home| fs::read(home.path().join("console.log")).unwrap_or_default());
        texts.map(|text| String::from_utf8_lossy(&text).into_owned()).collect()
    }

    /// Returns what the server of this level says of what it was asked.
    fn server_log(&self) -> String {
        let files = fs::read_dir(self.lab.path("state/server")).unwrap().flatten().map(|entry| entry.path());
        let logs = files.filter(|path| path.extension().is_some_and(|suffix| suffix == "log"));
        logs.map(|path| fs::read_to_string(path).unwrap()).collect()
    }

    /// Runs the stead of a hosting node there, over the nodes in it; `$places` names its site and its state.
    #[track_caller]
    fn on_level(&self, node: &str, words: &str) -> String {
        let below = "places='--site /var/lib/stead/delegated/site/m --state-dir /var/lib/stead'";
        let script = format!("{below}\nset -- /var/lib/stead/bin/*/stead\n\"$1\" {words}");
        self.on(node, &["sudo", "-n", "sh", "-c", &script])
    }

    /// Has a hosting node do something with the nodes in it by itself: nobody above has a part in it.
    #[track_caller]
    fn alone(&self, node: &str, verb: &str) -> Value {
        let address = self.state()["nodes"][node]["ip"].as_str().unwrap().to_owned();
        let words = format!(
            "{verb} --manifest-json - -H {node} --self-addr {address} --yes --json $places \
             <\"$(grep -l '^\\[\"create\"' /var/lib/stead/errands/*/arguments.json | sed 's/arguments.json$/manifest.json/')\""
        );
        let said = self.on_level(node, &words);
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
    }

    fn state(&self) -> Value {
        serde_json::from_str(&self.lab.read("state/nodes/box/m/state.json")).unwrap_or_default()
    }

    /// Removes everything and sees that nothing is left.
    #[track_caller]
    fn clear(&self) -> Value {
        let gone = self.run("destroy", &[]).exits(0).document();
        assert_eq!(residue(&self.machines(), &self.bridge), Vec::<String>::new());
        assert!(!self.machines().exists() && self.state().is_null());
        gone
    }

    /// Logs in to a node of this level as an account of its spec.
    fn login(&self, node: &str, key: &Path) -> String {
        let entry = self.state()["nodes"][node].clone();
        let (ip, host_key) = (entry["ip"].as_str().unwrap(), entry["host_key"].as_str().unwrap());
        self.lab.write("known", format!("{ip} {host_key}\n"));
        let mut command = Command::new("ssh");
        command.args([
            "-F",
            "none",
            "-o",
            "BatchMode=yes",
            "-o",
            "IdentitiesOnly=yes",
            "-o",
            "LogLevel=ERROR",
        ]);
        command.arg("-o").arg(format!("UserKnownHostsFile={}", self.lab.path("known").display()));
        command.arg("-i").arg(key).args(["-l", "ops", ip, "sudo -n id -un; hostname"]);
        String::from_utf8_lossy(&command.output().unwrap().stdout).trim().to_owned()
    }
}

impl Drop for Harbour {
    fn drop(&mut self) {
        let left = self.run("destroy", &[]);
        let residue = residue(&self.machines(), &self.bridge);
        if !std::thread::panicking() && (left.code != 0 || !residue.is_empty()) {
            panic!("nodes are left: {left:?} {residue:?}");
        }
    }
}

fn statuses(document: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let rows = document["nodes"].as_array().unwrap_or_else(|| panic!("{document}"));
    rows.iter().map(|row| (text(&row["name"]), text(&row["status"]))).collect()
}

fn all(status: &str, names: &[&str]) -> Vec<(String, String)> {
    names.iter().map(|name| ((*name).to_owned(), status.to_owned())).collect()
}

/// Returns where the first event is that says this of a task, here or below.
#[track_caller]
fn place(events: &[Value], ev: &str, task: &str) -> usize {
    let is = |event: &Value| event["ev"] == ev && event["task"] == task;
    let found = events.iter().position(|event| is(event) || is(&event["event"]));
    found.unwrap_or_else(|| panic!("no {ev} of {task}"))
}

fn public(keys: &Path) -> String {
    fs::read_to_string(keys.join("ann.pub")).unwrap().trim().to_owned()
}

/// Section 7: memory and processors of a preset are limits of its container; the room that it has is none, and this is said.
#[test]
fn a_size_that_is_no_limit_is_said() {
    if is_skipped("runc") {
        return;
    }
    let harbour = Harbour::new("runc", &["name: small, preset: small, disk: 3"], "");
    write(&harbour.lab, "presets/small.yaml", "cores: 2\nmemory: 640\ndisk: 1\n");
    let told = harbour.make(&[])["diagnostics"].to_string();
    let groups = groups_of(&harbour.machines());
    let limit = |names: [&str; 2]| {
        let files = groups.iter().flat_map(|group| names.map(|name| group.join(name)));
        files.filter_map(|file| fs::read_to_string(file).ok()).next().unwrap_or_default()
    };
    let memory = limit(["memory.limit_in_bytes", "memory.max"]);
    assert_eq!(memory.trim(), (640_u64 << 20).to_string(), "{groups:?}");
    let cpu = limit(["cpu.cfs_quota_us", "cpu.max"]);
    assert_eq!(cpu.split_whitespace().next(), Some("200000"), "two of them: {cpu}");
    assert!(told.contains("node/unapplied-key") && told.contains("cannot apply disk"), "{told}");
    harbour.clear();
}

/// ST-1: a container fetches its spec by its token and nobody logs in to it before it has reported.
fn one_container_pulls(runtime: &str, keys: &Path) -> Value {
    let (nodes, pull) = (&["name: edge, spec: base"], "execution: {default_mode: pull}\n");
    let harbour = Harbour::with_key(&public(keys), runtime, nodes, pull);
    let made = harbour.make(&[])["nodes"][0].clone();
    assert_eq!(harbour.consoles().matches("Accepted publickey").count(), 0, "{}", harbour.consoles());
    let jti = harbour.state()["nodes"]["edge"]["jti"].as_str().unwrap().to_owned();
    let logs = harbour.server_log();
    assert!(logs.lines().any(|line| line.contains("edge") && line.contains(&jti)), "{jti}: {logs}");
    let bootstrap = harbour.json_on("edge", "/etc/stead/bootstrap.json");
    let token = bootstrap["token"].as_str().unwrap();
    let claims = harbour.lab.run(["token", "inspect", token]).exits(0).stdout;
    assert!(claims.contains("base") && claims.contains(&jti), "the claim picks the spec: {claims}");
    assert_eq!(harbour.on("edge", &["sudo", "-n", "stat", "-c", "%a", "/etc/stead/bootstrap.json"]), "600");
    let spec = harbour.on("edge", &["sudo", "-n", "cat", "/var/lib/stead/config/spec.yaml"]);
    assert!(spec.contains("spec: base") || spec.contains("\"spec\":\"base\""), "{spec}");
    let marker = harbour.json_on("edge", "/var/lib/stead/config/config-complete.json");
    assert_eq!(marker["spec_digest"], made["spec_digest"]);
    let observed = harbour.json_on("edge", "/var/lib/stead/config/state.json");
    assert_eq!(observed["packages"], json!({"ca-certificates": true, "openssh-server": true}));
    assert_eq!(harbour.login("edge", &keys.join("ann")), "root\nedge");
    assert_eq!(harbour.login("edge", &keys.join("eve")), "");
    harbour.run("status", &[]).exits(0);
    harbour.run("drift", &[]).exits(0);
    harbour.clear();
    let server = harbour.lab.run(["server", "status", "--json", "--site", "site-config"]);
    assert_eq!(server.document()["running"], json!(false), "the server went with the last node");
    made
}

/// ST-2: a container is pushed to over one connection, without a server.
fn one_container_is_pushed_to(runtime: &str, keys: &Path) -> Value {
    let harbour = Harbour::with_key(&public(keys), runtime, &["name: edge, spec: base"], "");
    let made = harbour.make(&[])["nodes"][0].clone();
    assert!(!harbour.lab.path("state/server").exists(), "push starts no server");
    assert_eq!(harbour.consoles().matches("Accepted publickey").count(), 1, "{}", harbour.consoles());
    let signalled = harbour.make(&["--mode", "hybrid"])["nodes"][0].clone();
    assert_eq!(signalled["state_digest"], made["state_digest"]);
    harbour.clear();
    made
}

fn pull_and_push_agree(runtime: &str) {
    if is_skipped(runtime) {
        return;
    }
    let keys = tempfile::tempdir().unwrap();
    make_key(&keys.path().join("ann"), KeyKind::Ed25519);
    make_key(&keys.path().join("eve"), KeyKind::Ed25519);
    let (pulled, pushed) = std::thread::scope(|scope| {
        let pulled = scope.spawn(|| one_container_pulls(runtime, keys.path()));
        let pushed = one_container_is_pushed_to(runtime, keys.path());
        (pulled.join().unwrap(), pushed)
    });
    assert_eq!(pulled["state_digest"], pushed["state_digest"]);
    assert_eq!(pulled["spec_digest"], pushed["spec_digest"]);
}

/// ST-1 and ST-2 with runc.
#[test]
fn push_pull_and_hybrid_of_one_spec_give_one_digest_with_runc() {
    pull_and_push_agree("runc");
}

/// ST-1 and ST-2 with crun.
#[test]
fn push_pull_and_hybrid_of_one_spec_give_one_digest_with_crun() {
    pull_and_push_agree("crun");
}

/// ST-3: a parent is ready before its child is made, and stays until it is gone; commands reach the child through it.
fn two_levels(runtime: &str) {
    if is_skipped(runtime) {
        return;
    }
    let hosting = format!("name: host, spec: base, hosting: {{runtime: {runtime}}}");
    let harbour = Harbour::new(runtime, &[&hosting, "name: leaf, spec: base, parent: host"], "");
    let made = harbour.make(&[]);
    assert_eq!(statuses(&made), all("completed", &["host", "leaf"]));
    let events = harbour.lab.events(made["run"].as_str().unwrap());
    assert!(place(&events, "task_finished", "host.hosting") < place(&events, "task_started", "leaf.create"));
    assert_eq!(harbour.on("leaf", &["hostname"]), "leaf");
    let (host, leaf) = (harbour.on("host", &["hostname", "-I"]), harbour.on("leaf", &["hostname", "-I"]));
    let network = |address: &str| address.trim().rsplit_once('.').unwrap().0.to_owned();
    let above = host.split_whitespace().next().unwrap();
    assert_ne!(network(above), network(&leaf), "each level has a network of its own");
    harbour.run("status", &[]).exits(0);
    let gone = harbour.clear();
    assert_eq!(statuses(&gone), all("destroyed", &["leaf", "host"]));
    let events = harbour.lab.events(gone["run"].as_str().unwrap());
    assert!(place(&events, "task_finished", "leaf.destroy") < place(&events, "task_started", "host.destroy"));
}

/// ST-3 with runc.
#[test]
fn two_levels_of_containers_are_made_top_down_with_runc() {
    two_levels("runc");
}

/// ST-3 with crun.
#[test]
fn two_levels_of_containers_are_made_top_down_with_crun() {
    two_levels("crun");
}

/// Three levels, each of which makes the next one by the same runtime.
fn three(runtime: &str) -> [String; 3] {
    let hosting = format!("hosting: {{runtime: {runtime}}}");
    [
        format!("name: a, spec: base, {hosting}"),
        format!("name: b, spec: base, parent: a, {hosting}"),
        "name: c, spec: base, parent: b".to_owned(),
    ]
}

/// ST-4, push: containers in containers in containers, none of them an overlay on an overlay.
fn three_levels_by_push(runtime: &str) {
    if is_skipped(runtime) {
        return;
    }
    let harbour = Harbour::new(runtime, &three(runtime).each_ref().map(String::as_str), "");
    let made = harbour.make(&[]);
    assert_eq!(statuses(&made), all("completed", &["a", "b", "c"]));
    let events = harbour.lab.events(made["run"].as_str().unwrap());
    assert!(place(&events, "task_finished", "a.hosting") < place(&events, "task_started", "b.create"));
    assert!(place(&events, "task_finished", "b.hosting") < place(&events, "task_started", "c.create"));
    assert_eq!(harbour.on("c", &["hostname"]), "c");
    for node in ["a", "b", "c"] {
        let mounts = harbour.on(node, &["cat", "/proc/mounts"]);
        let volume = mounts.lines().find(|line| line.contains(" /var/lib/stead ")).unwrap();
        assert!(!volume.starts_with("stead ") && !volume.contains(" overlay "), "{node}: {volume}");
        let root = mounts.lines().find(|line| line.split(' ').nth(1) == Some("/")).unwrap();
        assert!(root.contains(" overlay "), "{node}: {root}");
    }
    let secret =
        |node: &str| harbour.on(node, &["sudo", "-n", "cat", "/var/lib/stead/delegated/site/m/secrets.yaml"]);
    assert_ne!(secret("a"), secret("b"), "a key per level");
    let keys = harbour.on("c", &["cat", "/etc/stead/keys/stead"]);
    assert_eq!(keys.lines().count(), 3, "every level above may log in: {keys}");
    let gone = harbour.clear();
    assert_eq!(statuses(&gone), all("destroyed", &["c", "b", "a"]));
}

/// Section 7: each level has a network that none of those above is, although a level has no way to one further above.
#[test]
fn every_level_of_containers_has_a_network_of_its_own() {
    if is_skipped("runc") {
        return;
    }
    let [a, b, c] = three("runc");
    let c = format!("{c}, hosting: {{runtime: runc}}");
    let harbour = Harbour::new("runc", &[a.as_str(), b.as_str(), c.as_str(), "name: d, parent: c"], "");
    let made = harbour.make(&[]);
    let networks: std::collections::BTreeSet<String> = made["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["ip"].as_str().unwrap().rsplit_once('.').unwrap().0.to_owned())
        .collect();
    assert_eq!(networks.len(), 4, "{made}");
    assert_eq!(harbour.on("d", &["hostname"]), "d");
    harbour.clear();
}

/// ST-4, push, with runc.
#[test]
fn three_levels_of_containers_are_pushed_with_runc() {
    three_levels_by_push("runc");
}

/// ST-4, push, with crun.
#[test]
fn three_levels_of_containers_are_pushed_with_crun() {
    three_levels_by_push("crun");
}

/// ST-4, pull: each level serves its own nodes, at the address it was told, has a key of its own, and works without those
/// above.
fn three_levels_by_pull(runtime: &str) {
    if is_skipped(runtime) {
        return;
    }
    let harbour = Harbour::new(
        runtime,
        &three(runtime).each_ref().map(String::as_str),
        "execution: {default_mode: pull}\n",
    );
    let made = harbour.make(&[]);
    assert_eq!(statuses(&made), all("completed", &["a", "b", "c"]));
    let events = harbour.lab.events(made["run"].as_str().unwrap());
    for (above, below) in [("a.hosting", "b.create"), ("b.hosting", "c.create")] {
        assert!(place(&events, "task_finished", above) < place(&events, "task_started", below));
    }
    assert_served_alone("a", &harbour.server_log());
    let state = harbour.state();
    for (node, above) in [("b", "a"), ("c", "b")] {
        let server =
            harbour.json_on(node, "/etc/stead/bootstrap.json")["server"].as_str().unwrap().to_owned();
        let address = state["nodes"][above]["ip"].as_str().unwrap();
        assert!(server.starts_with(&format!("https://{address}:")), "{node}: {server}, not {address}");
        let log =
            harbour.on(above, &["sudo", "-n", "sh", "-c", "cat /var/lib/stead/delegated/*/.*.server/*.log"]);
        assert_served_alone(node, &log);
    }
    let secrets = ["a", "b"]
        .map(|node| harbour.on(node, &["sudo", "-n", "cat", "/var/lib/stead/delegated/site/m/secrets.yaml"]));
    assert!(secrets[0] != secrets[1] && !secrets.concat().contains(&"ab".repeat(32)), "a key per level");

    // Without the servers above, the lowest level makes its node anew; the one above that finds all of it as it should be.
    harbour.lab.run(["server", "stop"]).exits(0);
    harbour.on_level("a", "server stop $places");
    assert_eq!(statuses(&harbour.alone("b", "destroy")), all("destroyed", &["c"]));
    let again = harbour.alone("b", "create");
    assert_eq!(statuses(&again), all("completed", &["c"]));
    assert_eq!((&again["nodes"][0]["mode"], &again["nodes"][0]["changed"]), (&json!("pull"), &json!(true)));
    let rows = made["nodes"].as_array().unwrap();
    assert_eq!(again["nodes"][0]["state_digest"], rows[2]["state_digest"]);
    let kept = harbour.alone("a", "create");
    assert_eq!(statuses(&kept), all("completed", &["b", "c"]));
    assert!(kept["nodes"].as_array().unwrap().iter().all(|row| row["changed"] == false), "{kept}");
    assert_eq!(statuses(&harbour.alone("a", "verify")), all("completed", &["b", "c"]));

    let gone = harbour.clear();
    assert_eq!(statuses(&gone), all("destroyed", &["c", "b", "a"]));
    let events = harbour.lab.events(gone["run"].as_str().unwrap());
    for (below, above) in [("c.destroy", "b.destroy"), ("b.destroy", "a.destroy")] {
        assert!(place(&events, "task_finished", below) < place(&events, "task_started", above));
    }
}

/// Whether a server gave a node its spec, and was asked by nobody else.
#[track_caller]
fn assert_served_alone(node: &str, log: &str) {
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let asked: Vec<&Value> = lines.iter().filter(|line| line["peer"].is_string()).collect();
    assert!(asked.iter().any(|line| line["route"] == "spec" && line["status"] == 200), "{log}");
    assert!(asked.iter().all(|line| line["node"] == node), "{node} alone asks there: {log}");
}

/// ST-4, pull, with runc.
#[test]
fn three_levels_of_containers_serve_their_own_nodes_with_runc() {
    three_levels_by_pull("runc");
}

/// ST-4, pull, with crun.
#[test]
fn three_levels_of_containers_serve_their_own_nodes_with_crun() {
    three_levels_by_pull("crun");
}

/// ST-5: a child that says nothing is what the manifest says, and its level mints its token.
fn silent_child(runtime: &str) {
    if is_skipped(runtime) {
        return;
    }
    let host = format!("name: host, spec: base, execution: {{mode: push}}, hosting: {{runtime: {runtime}}}");
    let nodes = [&*host, "name: leaf, spec: base, parent: host"];
    let harbour = Harbour::new(runtime, &nodes, "execution: {default_mode: pull}\n");
    let modes = |document: &Value| -> Vec<String> {
        let rows = document["nodes"].as_array().unwrap();
        rows.iter().map(|row| row["mode"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(modes(&harbour.make(&[])), ["push", "pull"]);
    assert_eq!(
        harbour.on("host", &["sh", "-c", "test -e /etc/stead/bootstrap.json || echo no agent"]),
        "no agent"
    );
    let token = harbour.json_on("leaf", "/etc/stead/bootstrap.json")["token"].as_str().unwrap().to_owned();
    harbour.lab.run(["token", "verify", &token, "--node", "leaf"]).exits(4).says("E301");
    let below = "--site /var/lib/stead/delegated/site/m";
    let verify = format!("/var/lib/stead/bin/*/stead token verify {token} --node leaf {below}");
    harbour.on("host", &["sudo", "-n", "sh", "-c", &verify]);
    assert!(!harbour.lab.path("state/server").exists(), "only the level of the pulling node has a server");
    assert_eq!(modes(&harbour.make(&["--mode", "push"])), ["push", "push"]);
    assert_eq!(
        harbour.on("leaf", &["sh", "-c", "test -e /etc/stead/bootstrap.json || echo no agent"]),
        "no agent"
    );
    harbour.clear();
}

/// ST-5 with runc.
#[test]
fn a_silent_child_container_pulls_after_delegation_with_runc() {
    silent_child("runc");
}

/// ST-5 with crun.
#[test]
fn a_silent_child_container_pulls_after_delegation_with_crun() {
    silent_child("crun");
}

/// ST-6: peers start at once, and one that fails leaves the others.
fn side_by_side(runtime: &str) {
    if is_skipped(runtime) {
        return;
    }
    let harbour =
        Harbour::new(runtime, &["name: p1", "name: p2", "name: p3"], "settings: {on_error: continue}\n");
    let made = harbour.make(&[]);
    let events = harbour.lab.events(made["run"].as_str().unwrap());
    let started = ["p1", "p2", "p3"].map(|name| place(&events, "task_started", &format!("{name}.create")));
    let finished = ["p1", "p2", "p3"].map(|name| place(&events, "task_finished", &format!("{name}.create")));
    assert!(started.iter().max() < finished.iter().min(), "{started:?} {finished:?}");
    harbour.clear();
    let written = harbour.lab.read("site-config/manifests/m.yaml");
    let with_template = |template: &str| {
        let other = format!("template: {template}, name: p2");
        write(&harbour.lab, "manifests/m.yaml", &written.replace("template: host, name: p2", &other));
    };
    with_template("gone");
    harbour.run("create", &[]).exits(1).says("there is no template");
    assert!(!harbour.machines().exists(), "what is missing is found before anything is made");
    fs::create_dir(harbour.lab.path("empty")).unwrap();
    with_template(harbour.lab.path("empty").to_str().unwrap());
    let made = harbour.run("create", &[]).exits(1).document();
    let expected = [("p1", "completed"), ("p2", "failed"), ("p3", "completed")];
    assert_eq!(statuses(&made), expected.map(|(name, status)| (name.to_owned(), status.to_owned())));
    harbour.clear();
}

/// ST-6 with runc.
#[test]
fn containers_side_by_side_start_at_once_with_runc() {
    side_by_side("runc");
}

/// ST-6 with crun.
#[test]
fn containers_side_by_side_start_at_once_with_crun() {
    side_by_side("crun");
}

/// ST-7: what is invalid is found by validate, and refused by create, for containers as for any machine.
fn refused(runtime: &str) {
    if is_skipped(runtime) {
        return;
    }
    let harbour = Harbour::new(runtime, &["name: a, spec: base"], "");
    let validate = || harbour.lab.run(["validate", "-M", "m", "-H", "box", "--json"]);
    assert_eq!(validate().code, 0);
    for (nodes, code) in [
        ("- {name: a, type: zebra}\n", "node/bad-enum"),
        ("- {name: a, type: ct, template: host, spec: nothing}\n", "node/unknown-fk"),
        ("- {name: a, type: vm}\n", "node/type-unsupported"),
        ("- {name: a, type: ct}\n", "node/missing-image"),
    ] {
        write(&harbour.lab, "manifests/m.yaml", &super::manifest(nodes));
        let found = validate().exits(1).document();
        assert!(found["errors"].as_array().unwrap().iter().any(|error| error["code"] == code), "{found}");
        harbour.run("create", &[]).exits(3);
    }
}

/// ST-7 with runc.
#[test]
fn what_no_container_can_be_is_refused_with_runc() {
    refused("runc");
}

/// ST-7 with crun.
#[test]
fn what_no_container_can_be_is_refused_with_crun() {
    refused("crun");
}

/// ST-8: what is as it should be is not touched; what is gone needs no removing; what is lost is found again. And `test`
/// leaves nothing.
fn made_twice(runtime: &str) {
    if is_skipped(runtime) {
        return;
    }
    let harbour = Harbour::new(runtime, &["name: edge, spec: base"], "");
    harbour.make(&[]);
    let before = harbour.lab.read("state/nodes/box/m/state.json");
    let again = harbour.make(&[]);
    assert_eq!(again["nodes"][0]["changed"], json!(false), "{again}");
    assert_eq!(harbour.lab.read("state/nodes/box/m/state.json"), before);
    fs::remove_file(harbour.lab.path("state/nodes/box/m/state.json")).unwrap();
    harbour.make(&[]);
    let id = |text: &str| serde_json::from_str::<Value>(text).unwrap()["nodes"]["edge"]["machine_id"].clone();
    assert_eq!(id(&before), harbour.state()["nodes"]["edge"]["machine_id"]);
    fs::remove_file(harbour.lab.path("state/nodes/box/m/state.json")).unwrap();
    harbour.clear();
    harbour.run("destroy", &[]).exits(0);
    let tested = harbour.run("test", &[]);
    assert_eq!(tested.code, 0, "{} {}", tested.stdout, tested.stderr);
    let report = fs::read_to_string(tested.document()["report"].as_str().unwrap()).unwrap();
    assert!(!report.contains("\"failed\""), "{report}");
}

/// ST-8 with runc.
#[test]
fn containers_made_twice_are_made_once_with_runc() {
    made_twice("runc");
}

/// ST-8 with crun.
#[test]
fn containers_made_twice_are_made_once_with_crun() {
    made_twice("crun");
}

/// ST-9: peers know each other, in one tree and between two, and spokes have their hub.
#[test]
fn meshes_hubs_and_linked_trees_of_containers_are_made_and_go() {
    if is_skipped("runc") {
        return;
    }
    let mesh = ["name: a, peers: [b]", "name: b, peers: [c]", "name: c"];
    let hub = ["name: a", "name: b, parent: a", "name: c, parent: a"];
    let linked = ["name: a, peers: [b]", "name: b", "name: c, parent: a, peers: [d]", "name: d, parent: b"];
    for (pattern, nodes, links) in [
        ("mesh", &mesh[..], &[("a", "b"), ("b", "a c"), ("c", "b")][..]),
        ("hub-spoke", &hub, &[("b", ""), ("c", "")]),
        ("federated", &linked, &[("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")]),
    ] {
        let harbour = Harbour::new("runc", nodes, &format!("pattern: {pattern}\n"));
        let valid = harbour.lab.run(["validate", "-M", "m", "-H", "box", "--json"]).exits(0).document();
        assert_eq!(valid["pattern"], pattern);
        harbour.make(&[]);
        for (node, expected) in links {
            let peers = harbour.on(node, &["sh", "-c", "cat /etc/stead/peers.json 2>/dev/null || echo []"]);
            let peers: Vec<Value> = serde_json::from_str(&peers).unwrap();
            let names: Vec<&str> = peers.iter().map(|peer| peer["name"].as_str().unwrap()).collect();
            assert_eq!(names.join(" "), *expected, "{pattern}: {node}");
        }
        let verified = harbour.run("verify", &[]);
        assert_eq!(verified.code, 0, "{pattern}: {} {}", verified.stdout, verified.stderr);
        harbour.clear();
    }
}

/// Section 7: an account without numbers of its own has no containers. It hears so from `doctor` and before anything is
/// made, with a way on, and who goes on regardless hears it again.
#[test]
fn who_lacks_what_containers_without_root_need_is_told_so() {
    let host = "driver: oci\nbridge: stt-nobody\n";
    let nodes = super::manifest("- {name: a, type: ct, template: /usr}\n");
    let lab = site(&[("hosts/box.yaml", host), ("manifests/m.yaml", &nodes)]);
    let Some(lab) = accounts::give_away(lab) else { return };
    let run = |args: &[&str]| -> Ended { accounts::command(&lab, args).output().unwrap().into() };
    let doctor = run(&["doctor", "--driver", "oci", "--json"]).exits(1).document();
    let checks = doctor["checks"].as_array().unwrap();
    let numbers = checks.iter().find(|check| check["name"] == "/etc/subuid").unwrap();
    assert_eq!(numbers["status"], "fail", "{numbers}");
    let fix = numbers["fix"].as_str().unwrap();
    assert!(fix.contains("usermod --add-subuids") && fix.contains("run stead as root"), "{fix}");

    let before = lab.snapshot("site-config");
    let create = ["create", "-M", "m", "-H", "box", "--json"];
    let refused = run(&create).exits(1).document();
    let found = refused["diagnostics"].as_array().unwrap();
    let found = found.iter().find(|row| row["message"].as_str().unwrap().starts_with("/etc/subgid gives"));
    assert!(found.unwrap()["help"].as_str().unwrap().contains("usermod --add-subgids"), "{refused}");
    assert_eq!(lab.snapshot("site-config"), before);
    assert!(!lab.path("state/machines").exists() && !lab.path("state/nodes").exists());

    let failed = run(&[&create[..], &["--skip-preflight"]].concat()).exits(1).document();
    let error = failed["nodes"][0]["error"].to_string();
    assert!(error.contains("only root has containers here") && error.contains("/etc/subuid"), "{error}");
    run(&["destroy", "-M", "m", "-H", "box", "--json", "--yes"]).exits(0);
    assert!(!lab.path("state/machines").exists());
}

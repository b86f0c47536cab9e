//! Subtrees: a hosting node runs what is in it, and the run above knows all of it. On sandboxes.

mod by_job;
mod images;
mod jobs;
mod keys;
mod repositories;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use stead_model::SiteKey;
use stead_model::token::SigningKey;

use super::{manifest, site, write};
use crate::cases_17_32::lab::{Ended, Lab};

/// How long something may take to come; a test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A site whose servers take any free port.
pub(super) const SERVED: &str =
    "defaults: {domain: lab.example, packages: [ca-certificates]}\nserver: {port: 0, bind: 127.0.0.1}\n";

/// A place with a site whose nodes go when the test ends, however it does.
pub(super) struct Tree {
    pub(super) lab: Lab,
}

impl Drop for Tree {
    fn drop(&mut self) {
        let left = self.lab.run(["destroy", "-M", "m", "-H", "local", "--yes", "--json"]);
        if left.code != 0 && !std::thread::panicking() {
            panic!("nodes are left: {left:?}");
        }
    }
}

impl Tree {
    pub(super) fn new(nodes: &str) -> Self {
        Self::with(nodes, &[])
    }

    pub(super) fn with(nodes: &str, files: &[(&str, &str)]) -> Self {
        let text = manifest(nodes);
        let files: Vec<(&str, &str)> =
            files.iter().copied().chain([("manifests/m.yaml", text.as_str())]).collect();
        Self { lab: site(&files) }
    }

    pub(super) fn run(&self, verb: &str, args: &[&str]) -> Ended {
        let words = [verb, "-M", "m", "-H", "local", "--yes", "--json"];
        self.lab.run(words.into_iter().chain(args.iter().copied()))
    }

    /// Starts a command without waiting for it.
    pub(super) fn start(&self, verb: &str) -> Child {
        let mut command = self.lab.stead([verb, "-M", "m", "-H", "local", "--yes", "--json"]);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        command.spawn().unwrap()
    }

    pub(super) fn state(&self) -> Value {
        serde_json::from_str(&self.lab.read("state/nodes/local/m/state.json")).unwrap_or_default()
    }

    /// Returns the root directory of a node, below the roots of those it is in.
    pub(super) fn root(&self, path: &[&str]) -> PathBuf {
        let state = self.state();
        let mut machines = self.lab.path("state/machines");
        let mut root = PathBuf::new();
        for name in path {
            let id = state["nodes"][name]["machine_id"].as_str().unwrap_or_else(|| panic!("{name}: {state}"));
            root = machines.join(id).join("root");
            machines = root.join("var/lib/stead/machines");
        }
        root
    }

    /// Returns the process of a sandbox.
    pub(super) fn pid(&self, path: &[&str]) -> Pid {
        let file = self.root(path).with_file_name("pid");
        let text = fs::read_to_string(&file).unwrap();
        let pid = text.split_ascii_whitespace().next().unwrap().parse().unwrap();
        Pid::from_raw(pid).unwrap()
    }

    /// Returns the processes of this place whose command line has these words.
    pub(super) fn processes(&self, words: &[&str]) -> Vec<Pid> {
        processes_of(self.lab.root(), words)
    }
}

/// Returns the processes with these words whose variables name `place`.
pub(super) fn processes_of(place: &Path, words: &[&str]) -> Vec<Pid> {
    let found = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let line: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        let environment = fs::read(entry.path().join("environ")).ok()?;
        let own = place.to_str().unwrap().as_bytes();
        let is_own = environment.windows(own.len()).any(|window| window == own);
        let has = |word: &&str| line.contains(&word.as_bytes());
        (is_own && words.iter().all(has)).then(|| Pid::from_raw(pid))?
    });
    found.collect()
}

pub(super) fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what} did not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a run of these has started a task.
pub(super) fn has_started(runs: &Path) -> bool {
    fs::read_dir(runs).is_ok_and(|mut runs| {
        runs.any(|run| {
            let journal = run.unwrap().path().join("events.jsonl");
            fs::read_to_string(journal).is_ok_and(|text| text.contains("\"task_started\""))
        })
    })
}

/// Returns name and status of every node of a document.
pub(super) fn statuses(document: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let rows = document["nodes"].as_array().unwrap_or_else(|| panic!("{document}"));
    rows.iter().map(|row| (text(&row["name"]), text(&row["status"]))).collect()
}

pub(super) fn all(status: &str, names: &[&str]) -> Vec<(String, String)> {
    names.iter().map(|name| ((*name).to_owned(), status.to_owned())).collect()
}

/// Returns the events of a run below as the journal above has them.
fn delegated<'a>(events: &'a [Value], task: &str, origin: &[&str]) -> Vec<&'a Value> {
    let of = |event: &&Value| {
        event["ev"] == "delegated" && event["task"] == task && event["origin"] == json!(origin)
    };
    events.iter().filter(of).map(|event| &event["event"]).collect()
}

/// Whether every event of a run is there, once and in order, from the first to the last.
#[track_caller]
pub(super) fn assert_whole(events: &[&Value]) {
    let numbers: Vec<u64> = events.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    let expected: Vec<u64> = (1..=numbers.len() as u64).collect();
    assert_eq!(numbers, expected);
    assert_eq!(events.first().unwrap()["ev"], "run_started");
    assert_eq!(events.last().unwrap()["ev"], "run_finished");
}

/// Returns where the first event is that says this of a task.
#[track_caller]
fn place(events: &[Value], ev: &str, task: &str) -> usize {
    let is = |event: &Value| event["ev"] == ev && event["task"] == task;
    let found = events.iter().position(|event| is(event) || is(&event["event"]));
    found.unwrap_or_else(|| panic!("no {ev} of {task}"))
}

/// ST-3: a parent is ready before its child is made, and stays until it is gone; the run above has all events.
#[test]
fn two_levels_are_made_top_down_and_removed_bottom_up() {
    let pve = format!("{}config: {{pve: {{remove_subscription_nag: true}}}}\n", super::BASE);
    let tree = Tree::with(
        "  - {name: host, type: vm, spec: pve}\n  - {name: test-vm, type: vm, spec: base, parent: host}\n",
        &[("specs/pve.yaml", &pve)],
    );
    let made = tree.run("create", &[]).exits(0).document();
    assert_eq!(statuses(&made), all("completed", &["host", "test-vm"]));
    let events = tree.lab.events(made["run"].as_str().unwrap());
    for ready in ["host.config", "host.hosting"] {
        assert!(place(&events, "task_finished", ready) < place(&events, "task_started", "test-vm.create"));
    }
    assert_whole(&delegated(&events, "host.children.create", &["host"]));
    let state = tree.state();
    assert_eq!(state["nodes"]["test-vm"]["parent"], "host");
    for (name, path) in [("host", &["host"][..]), ("test-vm", &["host", "test-vm"])] {
        assert_eq!(state["nodes"][name]["status"], "completed");
        let marker = tree.root(path).join("var/lib/stead/config/config-complete.json");
        let marker: Value = serde_json::from_str(&fs::read_to_string(marker).unwrap()).unwrap();
        assert_eq!(marker["spec_digest"], state["nodes"][name]["spec_digest"]);
    }
    // Both are ready: what is observed of them is what they should be, and the parent can host.
    tree.lab.run(["drift", "-M", "m", "-H", "local"]).exits(0);
    let said = tree.lab.run(["exec", "-M", "m", "-H", "local", "test-vm", "--", "hostname"]).exits(0).stdout;
    assert!(said.contains("test-vm | test-vm"), "over the chain: {said}");
    // The run below is recorded where it ran, and is whole.
    let runs = fs::read_dir(tree.root(&["host"]).join("var/lib/stead/runs")).unwrap().flatten();
    assert_eq!(runs.filter(|run| run.path().join("report.json").is_file()).count(), 1);

    let again = tree.run("create", &[]).exits(0).document();
    let changed: Vec<&Value> = again["nodes"].as_array().unwrap().iter().map(|row| &row["changed"]).collect();
    assert_eq!(changed, [false, false]);
    let gone = tree.run("destroy", &[]).exits(0).document();
    assert_eq!(statuses(&gone), all("destroyed", &["test-vm", "host"]));
    let events = tree.lab.events(gone["run"].as_str().unwrap());
    assert!(
        place(&events, "task_finished", "test-vm.destroy") < place(&events, "task_started", "host.destroy")
    );
    assert!(tree.state().is_null());
    assert_eq!(fs::read_dir(tree.lab.path("state/machines")).map_or(0, |left| left.count()), 0);
}

/// ST-4, push: three levels in order both ways, a key per level, nothing of a level above on a level below.
#[test]
fn three_levels_have_keys_of_their_own() {
    let secrets = format!(
        "api_tokens: {{pve: 'root@pam!stead=top-secret-token'}}\nssh_keys:\n  ann@desk: {}\nauth: {{signing_key: '{}'}}\n",
        super::KEY,
        "ab".repeat(32)
    );
    let nodes = "  - {name: a, type: vm, spec: base}\n  - {name: b, type: vm, spec: base, parent: a}\n  - {name: c, type: vm, spec: base, parent: b}\n";
    let tree = Tree::with(nodes, &[("secrets.yaml", &secrets)]);
    let made = tree.run("create", &[]).exits(0).document();
    assert_eq!(statuses(&made), all("completed", &["a", "b", "c"]));
    let events = tree.lab.events(made["run"].as_str().unwrap());
    assert!(place(&events, "task_finished", "a.hosting") < place(&events, "task_started", "b.create"));
    assert!(place(&events, "task_finished", "b.hosting") < place(&events, "task_started", "c.create"));
    assert_whole(&delegated(&events, "a.children.create", &["a", "b"]));

    let name = SiteKey::parse("m").unwrap();
    let top = SigningKey::parse(&"ab".repeat(32)).unwrap();
    let level =
        |key: &SigningKey, node: &str| key.derive(&name, &stead_model::NodeName::parse(node).unwrap());
    let (first, second) = (level(&top, "a"), level(&level(&top, "a"), "b"));
    for (path, own, others) in [
        (&["a"][..], &first, [top.to_hex(), "top-secret-token".to_owned()]),
        (&["a", "b"], &second, [top.to_hex(), first.to_hex()]),
    ] {
        let root = tree.root(path);
        let secrets = fs::read_to_string(root.join("var/lib/stead/delegated/site/m/secrets.yaml")).unwrap();
        assert!(secrets.contains(&own.to_hex()), "{path:?}");
        for other in others {
            assert!(!holds(&root, other.as_bytes()), "{path:?} holds a secret of a level above");
        }
    }
    // Every key above opens every level below, and private keys stay where they were made.
    let keys = fs::read_to_string(tree.root(&["a", "b", "c"]).join("etc/stead/keys/stead")).unwrap();
    assert_eq!(keys.lines().count(), 3, "{keys}");
    let own = tree.lab.read("state/ssh/id_ed25519");
    assert!(!own.is_empty() && !holds(&tree.root(&["a"]), own.as_bytes()));

    let gone = tree.run("destroy", &[]).exits(0).document();
    assert_eq!(statuses(&gone), all("destroyed", &["c", "b", "a"]));
}

/// Whether a file below `directory` holds these bytes. Programs are not looked into.
fn holds(directory: &Path, bytes: &[u8]) -> bool {
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).unwrap().flatten() {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                open.push(entry.path());
            } else if kind.is_file() && entry.file_name() != "stead" {
                let content = fs::read(entry.path()).unwrap_or_default();
                if content.windows(bytes.len()).any(|window| window == bytes) {
                    return true;
                }
            }
        }
    }
    false
}

/// ST-5: a child that says nothing is what the manifest says, and its level mints its token.
#[test]
fn a_silent_child_pulls_after_delegation() {
    let nodes = "  - {name: host, type: vm, spec: base, execution: {mode: push}}\n  - {name: leaf, type: vm, spec: base, parent: host}\nexecution: {default_mode: pull}\n";
    let tree = Tree::with(nodes, &[("site.yaml", SERVED)]);
    let made = tree.run("create", &[]).exits(0).document();
    assert_eq!(statuses(&made), all("completed", &["host", "leaf"]));
    let modes: Vec<&str> =
        made["nodes"].as_array().unwrap().iter().map(|row| row["mode"].as_str().unwrap()).collect();
    assert_eq!(modes, ["push", "pull"]);
    assert!(!tree.root(&["host"]).join("etc/stead/bootstrap.json").exists(), "a pushed node has no agent");
    let bootstrap = tree.root(&["host", "leaf"]).join("etc/stead/bootstrap.json");
    let bootstrap: Value = serde_json::from_str(&fs::read_to_string(bootstrap).unwrap()).unwrap();
    let token = bootstrap["token"].as_str().unwrap();
    let below = tree.root(&["host"]).join("var/lib/stead/delegated/site/m");
    tree.lab.run(["token", "verify", token, "--node", "leaf", "--site", below.to_str().unwrap()]).exits(0);
    tree.lab.run(["token", "verify", token, "--node", "leaf"]).exits(4).says("E301");
    assert!(!tree.lab.path("state/server").exists(), "only the level of the pulling node has a server");

    let pushed = tree.run("create", &["--mode", "push"]).exits(0).document();
    let modes: Vec<&str> =
        pushed["nodes"].as_array().unwrap().iter().map(|row| row["mode"].as_str().unwrap()).collect();
    assert_eq!(modes, ["push", "push"]);
    assert!(!tree.root(&["host", "leaf"]).join("etc/stead/bootstrap.json").exists());
}

/// ST-4, push, then pull: each level serves its own nodes, at the address it was told, and works without those above.
#[test]
fn each_level_serves_its_own_nodes() {
    let nodes = "  - {name: a, type: vm, spec: base}\n  - {name: b, type: vm, spec: base, parent: a}\n  - {name: c, type: vm, spec: base, parent: b}\n";
    let tree = Tree::with(nodes, &[("site.yaml", SERVED)]);
    tree.run("create", &[]).exits(0);
    let servers = [tree.lab.path("state"), tree.root(&["a"]), tree.root(&["a", "b"])];
    assert!(servers.iter().all(|place| !holds_server(place)), "push needs none");
    // What is fetched is not there already.
    write(&tree.lab, "specs/base.yaml", &super::BASE.replace("htop", "tmux"));
    let made = tree.run("create", &["--mode", "pull"]).exits(0).document();
    assert_eq!(statuses(&made), all("completed", &["a", "b", "c"]));
    let events = tree.lab.events(made["run"].as_str().unwrap());
    for (above, below) in [("a.hosting", "b.create"), ("b.hosting", "c.create")] {
        assert!(place(&events, "task_finished", above) < place(&events, "task_started", below));
    }
    let server = |path: &[&str]| {
        let file = tree.root(path).join("etc/stead/bootstrap.json");
        let bootstrap: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        bootstrap["server"].as_str().unwrap().to_owned()
    };
    let urls = [server(&["a"]), server(&["a", "b"]), server(&["a", "b", "c"])];
    assert!(urls.iter().all(|url| url.starts_with("https://127.0.0.1:")), "{urls:?}");
    assert!(urls[0] != urls[1] && urls[1] != urls[2] && urls[0] != urls[2], "{urls:?}");
    for (place, url, child) in [
        (tree.lab.path("state/server"), &urls[0], "a"),
        (tree.root(&["a"]).join(SERVER_BELOW), &urls[1], "b"),
        (tree.root(&["a", "b"]).join(SERVER_BELOW), &urls[2], "c"),
    ] {
        let port = url.rsplit_once(':').unwrap().1;
        let log = fs::read_to_string(place.join(format!("server-{port}.log"))).unwrap();
        let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let asked: Vec<&Value> = lines.iter().filter(|line| line["peer"].is_string()).collect();
        assert!(asked.iter().any(|line| line["route"] == "spec" && line["status"] == 200), "{log}");
        assert!(asked.iter().all(|line| line["node"] == child), "{child} alone asks there: {log}");
    }
    for (path, child) in [(&["a"][..], "b"), (&["a", "b"], "c")] {
        let told = Level::of(&tree, path).errand("arguments.json");
        let own = tree.state()["nodes"][path[path.len() - 1]]["ip"].as_str().unwrap().to_owned();
        assert!(told.contains(&format!("\"--self-addr\",\"{own}\"")), "{child}: {told}");
    }

    // Those above are gone: no server, no key of theirs.
    let (first, second) = (Level::of(&tree, &["a"]), Level::of(&tree, &["a", "b"]));
    tree.lab.run(["server", "stop"]).exits(0);
    let key = tree.lab.path("state/ssh/id_ed25519");
    fs::rename(&key, key.with_extension("away")).unwrap();
    first.run(&tree, "verify", &[]).exits(0);
    first.stop_server(&tree);
    let before = tree.state()["nodes"]["c"]["spec_digest"].clone();
    let spec = second.state.join("delegated/site/m/specs/base.yaml");
    fs::write(&spec, fs::read_to_string(&spec).unwrap().replace("tmux", "vim")).unwrap();
    let made = second.run(&tree, "create", &["--mode", "pull"]).exits(0).document();
    assert_eq!(statuses(&made), all("completed", &["c"]));
    assert_eq!(made["nodes"][0]["changed"], true, "{made}");
    assert_ne!(made["nodes"][0]["spec_digest"], before, "{made}");
    second.run(&tree, "verify", &[]).exits(0);

    fs::rename(key.with_extension("away"), &key).unwrap();
    let gone = tree.run("destroy", &[]).exits(0).document();
    assert_eq!(statuses(&gone), all("destroyed", &["c", "b", "a"]));
    let events = tree.lab.events(gone["run"].as_str().unwrap());
    for (below, above) in [("c.destroy", "b.destroy"), ("b.destroy", "a.destroy")] {
        assert!(place(&events, "task_finished", below) < place(&events, "task_started", above));
    }
}

/// Where the server of a level below the first is, in the root directory of its machine.
const SERVER_BELOW: &str = "var/lib/stead/delegated/site/.m.server";

/// Whether a server was ever started here.
fn holds_server(place: &Path) -> bool {
    place.join("server").exists() || place.join(SERVER_BELOW).exists()
}

/// A level below the first, as who is on its machine sees it.
struct Level {
    node: String,
    root: PathBuf,
    state: PathBuf,
}

impl Level {
    fn of(tree: &Tree, path: &[&str]) -> Self {
        let root = tree.root(path);
        Self { node: path[path.len() - 1].to_owned(), state: root.join("var/lib/stead"), root }
    }

    /// Returns a file of the last errand that made something.
    fn errand(&self, file: &str) -> String {
        let errands = fs::read_dir(self.state.join("errands")).unwrap().flatten();
        let mut made: Vec<(std::time::SystemTime, PathBuf)> = errands
            .filter(|errand| {
                fs::read_to_string(errand.path().join("arguments.json")).unwrap().starts_with("[\"create\"")
            })
            .map(|errand| (errand.metadata().unwrap().modified().unwrap(), errand.path()))
            .collect();
        made.sort();
        fs::read_to_string(made.last().unwrap().1.join(file)).unwrap()
    }

    /// Runs a command on the level's machine, over its own nodes.
    fn run(&self, tree: &Tree, verb: &str, more: &[&str]) -> Ended {
        let (site, state) = (self.state.join("delegated/site/m"), self.state.to_str().unwrap());
        let manifest = self.errand("manifest.json");
        let words = [verb, "--manifest-json", &manifest, "-H", &self.node, "--yes", "--json"];
        let places = ["--site", site.to_str().unwrap(), "--state-dir", state, "--self-addr", "127.0.0.1"];
        let mut command = tree.lab.stead(words.iter().chain(&places).chain(more).copied());
        command.env("STEAD_ROOT", &self.root).output().unwrap().into()
    }

    fn stop_server(&self, tree: &Tree) {
        let (site, state) = (self.state.join("delegated/site/m"), self.state.to_str().unwrap());
        let words = ["server", "stop", "--site", site.to_str().unwrap(), "--state-dir", state];
        tree.lab.run(words).exits(0);
    }
}

/// A test looks at every level, and its report has the checks of all of them.
#[test]
fn a_test_verifies_every_level() {
    let tree = Tree::new(
        "  - {name: host, type: vm, spec: base}\n  - {name: leaf, type: vm, spec: base, parent: host}\n",
    );
    let tested = tree.run("test", &[]).exits(0).document();
    assert_eq!(statuses(&tested), all("destroyed", &["host", "leaf"]));
    let report: Value =
        serde_json::from_str(&fs::read_to_string(tested["report"].as_str().unwrap()).unwrap()).unwrap();
    for row in report["nodes"].as_array().unwrap() {
        let checks = row["checks"].as_array().unwrap();
        assert!(!checks.is_empty() && checks.iter().all(|check| check["status"] != "failed"), "{row}");
        // Section 13: what is looked at, on a hosting node whether it can host too.
        let passed =
            |name: &str| checks.iter().any(|check| check["check"] == name && check["status"] == "passed");
        for name in ["address", "ssh", "hostname", "marker", "packages", "users", "services", "security"] {
            assert!(passed(name), "{name}: {row}");
        }
        assert_eq!(passed("hosting"), row["name"] == "host", "{row}");
    }
}

/// Case 29: what a sandbox holds ends with it, and comes back with it.
#[test]
fn a_subtree_dies_with_its_host_and_comes_back() {
    let tree = Tree::new(
        "  - {name: host, type: vm, spec: base}\n  - {name: leaf, type: vm, spec: base, parent: host}\n",
    );
    tree.run("create", &[]).exits(0);
    let (host, leaf) = (tree.pid(&["host"]), tree.pid(&["host", "leaf"]));
    let ids = |state: &Value| {
        [state["nodes"]["host"]["machine_id"].clone(), state["nodes"]["leaf"]["machine_id"].clone()]
    };
    let before = ids(&tree.state());
    kill_process(host, Signal::KILL).unwrap();
    wait_for("the end of the leaf", || rustix::process::test_kill_process(leaf).is_err());
    let again = tree.run("create", &[]).exits(0).document();
    assert_eq!(statuses(&again), all("completed", &["host", "leaf"]));
    assert_eq!(ids(&tree.state()), before);
    assert_ne!(tree.pid(&["host", "leaf"]), leaf);
}

/// Section 11: what machines below do is asked of those they are in, at every depth.
#[test]
fn the_state_of_machines_below_is_asked_for() {
    let nodes = "  - {name: a, type: vm, spec: base}\n  - {name: b, type: vm, spec: base, parent: a}\n  - {name: c, type: vm, parent: b}\n";
    let tree = Tree::new(nodes);
    tree.run("create", &[]).exits(0);
    let machines = |code: i32| {
        let status = tree.lab.run(["status", "-M", "m", "-H", "local", "--json"]).exits(code).document();
        let rows = status["nodes"].as_array().unwrap().iter();
        rows.map(|row| row["machine"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(machines(0), ["running", "running", "running"]);
    kill_process(tree.pid(&["a", "b", "c"]), Signal::KILL).unwrap();
    wait_for("the end of c", || machines(1) == ["running", "running", "stopped"]);
    kill_process(tree.pid(&["a"]), Signal::KILL).unwrap();
    wait_for("the end of a", || machines(1) == ["stopped", "stopped", "stopped"]);
}

/// Case 32: whoever listens is cut off again and again; nothing is missed, nothing comes twice.
#[test]
fn a_cut_connection_loses_no_event() {
    let nodes = "  - {name: host, type: vm, hosting: {boot_delay_ms: 12000}}\n  - {name: leaf, type: vm, spec: base, parent: host}\n";
    let tree = Tree::new(nodes);
    let mut child = tree.start("create");
    let mut cuts = 0;
    // Fewer than those over which nothing was heard until it is given up; on a slow machine the run is over before.
    while cuts < 8 {
        let mut is_over = false;
        wait_for("somebody who listens", || {
            is_over = child.try_wait().unwrap().is_some();
            is_over || !tree.processes(&["errand", "follow"]).is_empty()
        });
        if is_over {
            break;
        }
        // It says at once that it is there, and has nothing else to say while a machine boots.
        std::thread::sleep(Duration::from_millis(200));
        for listener in tree.processes(&["errand", "follow"]) {
            cuts += usize::from(kill_process(listener, Signal::KILL).is_ok());
        }
    }
    assert!(cuts > 0, "nobody was cut off");
    let ended: Ended = child.wait_with_output().unwrap().into();
    let made = ended.exits(0).document();
    let events = tree.lab.events(made["run"].as_str().unwrap());
    assert_whole(&delegated(&events, "host.children.create", &["host"]));
}

/// Nodes keep what the run below said of them; the others are left out, and why is said.
#[test]
fn a_failure_below_is_told_above() {
    let nodes = "  - {name: host, type: vm, hosting: {faults: [{node: bad, phase: create, error: no room}]}}\n  - {name: good, type: vm, parent: host}\n  - {name: bad, type: vm, parent: host, depends_on: [good]}\n  - {name: late, type: vm, parent: host, depends_on: [bad]}\n";
    let tree = Tree::new(nodes);
    let made = tree.run("create", &[]).exits(1).document();
    let expected = [("host", "completed"), ("good", "completed"), ("bad", "failed"), ("late", "skipped")];
    assert_eq!(statuses(&made), expected.map(|(name, status)| (name.to_owned(), status.to_owned())));
    let error = |index: usize| made["nodes"][index]["error"].as_str().unwrap_or_default().to_owned();
    assert!(error(2).contains("no room"), "{made}");
    assert!(error(3).contains("bad") && error(3).contains("no room"), "{made}");
    assert_eq!(tree.state()["nodes"]["good"]["status"], "completed");
}

/// A hosting node that does not answer does not keep its nodes.
#[test]
fn nodes_are_destroyed_with_a_host_that_is_not_reached() {
    let tree = Tree::new("  - {name: host, type: vm}\n  - {name: leaf, type: vm, parent: host}\n");
    tree.run("create", &[]).exits(0);
    kill_process(tree.pid(&["host"]), Signal::KILL).unwrap();
    let gone = tree.run("destroy", &[]).exits(0).document();
    assert_eq!(statuses(&gone), all("destroyed", &["leaf", "host"]));
    let events = tree.lab.events(gone["run"].as_str().unwrap());
    let said = events.iter().any(|event| event["ev"] == "warning" && event["code"] == "node/unreachable");
    assert!(said, "{events:?}");
    assert!(tree.state().is_null());
    assert_eq!(fs::read_dir(tree.lab.path("state/machines")).map_or(0, |left| left.count()), 0);
}

/// Cancel travels down: the run below ends by itself, and all bundles are complete.
#[test]
fn an_interrupt_travels_down() {
    let nodes = "  - {name: host, type: vm, hosting: {boot_delay_ms: 20000}}\n  - {name: leaf, type: vm, parent: host}\n";
    let tree = Tree::new(nodes);
    let child = tree.start("create");
    wait_for("the run below", || !tree.processes(&["errand", "follow"]).is_empty());
    let runs = tree.root(&["host"]).join("var/lib/stead/runs");
    wait_for("its journal", || has_started(&runs));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ended: Ended = child.wait_with_output().unwrap().into();
    let made = ended.exits(130).document();
    let run = fs::read_dir(&runs).unwrap().next().unwrap().unwrap().path();
    let report: Value = serde_json::from_str(&fs::read_to_string(run.join("report.json")).unwrap()).unwrap();
    assert_eq!(report["status"], "cancelled");
    assert_whole(&delegated(
        &tree.lab.events(made["run"].as_str().unwrap()),
        "host.children.create",
        &["host"],
    ));
}

/// Section 6: the run below does not need who keeps it, and says itself how it ended.
#[test]
fn a_killed_keeper_changes_nothing() {
    let nodes = "  - {name: host, type: vm, hosting: {boot_delay_ms: 6000}}\n  - {name: leaf, type: vm, parent: host}\n";
    let tree = Tree::new(nodes);
    let child = tree.start("create");
    kill_keeper(&tree);
    let ended: Ended = child.wait_with_output().unwrap().into();
    let made = ended.exits(0).document();
    assert_eq!(statuses(&made), all("completed", &["host", "leaf"]));
    let events = tree.lab.events(made["run"].as_str().unwrap());
    assert_whole(&delegated(&events, "host.children.create", &["host"]));
}

/// Kills who keeps the run in `host`, once that has begun.
fn kill_keeper(tree: &Tree) {
    wait_for("the run below", || !tree.processes(&["errand", "follow"]).is_empty());
    let runs = tree.root(&["host"]).join("var/lib/stead/runs");
    wait_for("its journal", || has_started(&runs));
    let keepers = tree.processes(&["errand", "keep"]);
    assert_eq!(keepers.len(), 1);
    kill_process(keepers[0], Signal::KILL).unwrap();
}

/// Cancel travels down also if nobody keeps the run below any more.
#[test]
fn an_interrupt_travels_down_without_a_keeper() {
    let nodes = "  - {name: host, type: vm, hosting: {boot_delay_ms: 30000}}\n  - {name: leaf, type: vm, parent: host}\n";
    let tree = Tree::new(nodes);
    let child = tree.start("create");
    kill_keeper(&tree);
    let runs = tree.root(&["host"]).join("var/lib/stead/runs");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ended: Ended = child.wait_with_output().unwrap().into();
    ended.exits(130);
    let run = fs::read_dir(&runs).unwrap().next().unwrap().unwrap().path();
    let report: Value = serde_json::from_str(&fs::read_to_string(run.join("report.json")).unwrap()).unwrap();
    assert_eq!(report["status"], "cancelled");
}

//! Hosts that are other machines: what is made there is made by the stead there. A real sshd at the loopback is one.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use stead_testkit::sshd::{self, Sshd};

use super::delegating::{assert_whole, processes_of, wait_for};
use super::{manifest, site, write};
use crate::cases_17_32::lab::{Ended, Lab};

/// A site, and another machine that has its own root directory.
struct Pair {
    lab: Lab,
    other: Sshd,
}

/// Writes the site called `name` to `lab`, with these nodes and the host `other`.
fn settle(lab: &Lab, name: &str, nodes: &str, other: &Sshd) {
    let key = other.file("id");
    write(
        lab,
        "site.yaml",
        &format!(
            "name: {name}\ndefaults: {{domain: lab.example, packages: [ca-certificates], ssh_key_file: {}}}\nserver: {{port: 0, bind: 127.0.0.1}}\n",
            key.display()
        ),
    );
    let host_key = fs::read_to_string(other.file("host_ed25519.pub")).unwrap();
    let host_key: Vec<&str> = host_key.split_whitespace().take(2).collect();
    write(
        lab,
        "hosts/other.yaml",
        &format!(
            "driver: sandbox\nip: 127.0.0.1\naccess: {{host_user: {}, ssh_port: {}, host_key: '{}'}}\n",
            other.user(),
            other.port(),
            host_key.join(" ")
        ),
    );
    write(lab, "manifests/m.yaml", &manifest(nodes));
}

impl Pair {
    /// Returns a site with these nodes and the host `other`; nothing where there is no sshd.
    fn new(nodes: &str) -> Option<Self> {
        if !sshd::available() {
            return None;
        }
        let lab = site(&[]);
        let root = lab.path("other-root");
        let other = Sshd::builder().environment("STEAD_ROOT", root.to_str().unwrap()).start();
        settle(&lab, "site", nodes, &other);
        let pair = Self { lab, other };
        pair.plant();
        Some(pair)
    }

    /// Puts this program where it would be brought: a debug build takes its time over SSH.
    fn plant(&self) {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_stead"));
        let sha256 = stead_bundle::hash_file(&program, &mut vec![0; 1 << 16]).unwrap().to_string();
        let directory = self.root().join("var/lib/stead/bin").join(sha256);
        fs::create_dir_all(&directory).unwrap();
        if fs::hard_link(&program, directory.join("stead")).is_err() {
            fs::copy(&program, directory.join("stead")).unwrap();
        }
    }

    fn root(&self) -> PathBuf {
        self.lab.path("other-root")
    }

    fn run(&self, verb: &str, host: &str, more: &[&str]) -> Ended {
        let words = [verb, "-M", "m", "-H", host, "--json"];
        self.lab.run(words.into_iter().chain(more.iter().copied()))
    }

    fn state(&self, host: &str) -> Value {
        let text = self.lab.read(&format!("state/nodes/{host}/m/state.json"));
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Returns what `status` says of every node's machine.
    fn status(&self, host: &str, code: i32) -> Vec<String> {
        let found = self.run("status", host, &[]).exits(code).document();
        let rows = found["nodes"].as_array().unwrap_or_else(|| panic!("{found}"));
        let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
        rows.iter().map(|row| format!("{} {}", text(row, "name"), text(row, "machine"))).collect()
    }

    /// Returns the processes of the machines on the other machine.
    fn pids_there(&self) -> Vec<Pid> {
        let machines =
            fs::read_dir(self.root().join("var/lib/stead/machines")).into_iter().flatten().flatten();
        let text = machines.map(|machine| fs::read_to_string(machine.path().join("pid")).unwrap_or_default());
        text.filter_map(|text| Pid::from_raw(text.split_whitespace().next()?.parse().ok()?)).collect()
    }

    /// Returns how many machines there are on the other machine.
    fn made_there(&self) -> usize {
        fs::read_dir(self.root().join("var/lib/stead/machines")).map_or(0, |entries| {
            entries.flatten().filter(|entry| !entry.file_name().to_string_lossy().starts_with('.')).count()
        })
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // A test that failed may have left a run that waits.
        let runs = processes_of(&self.root(), &["create", "--manifest-json"]);
        for pid in runs.into_iter().chain(self.pids_there()) {
            kill_process(pid, Signal::KILL).ok();
        }
        self.lab.run(["destroy", "-M", "m", "-H", "local", "--yes", "--json"]);
    }
}

fn rows(document: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let rows = document["nodes"].as_array().unwrap_or_else(|| panic!("{document}"));
    rows.iter().map(|row| (text(&row["name"]), text(&row["status"]))).collect()
}

fn all(status: &str, names: &[&str]) -> Vec<(String, String)> {
    names.iter().map(|name| ((*name).to_owned(), status.to_owned())).collect()
}

/// Case 32: the connection itself is cut, again and again; nothing is missed, nothing comes twice.
#[test]
fn a_connection_that_is_cut_loses_no_event() {
    const CUTS: usize = 3;
    let Some(pair) = Pair::new("  - {name: quay, type: vm, spec: base}\n") else { return };
    let host = pair.lab.read("site-config/hosts/other.yaml");
    write(&pair.lab, "hosts/other.yaml", &format!("{host}boot_delay_ms: 12000\n"));
    let mut command = pair.lab.stead(["create", "-M", "m", "-H", "other", "--yes", "--json"]);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The run there waits with its machine: all that is done over the connection is listening.
    let mut below = Vec::new();
    wait_for("the run there", || {
        assert!(child.try_wait().unwrap().is_none(), "it is over");
        below = processes_of(&pair.root(), &["create", "--manifest-json"]);
        !below.is_empty() && !processes_of(&pair.root(), &["errand", "follow"]).is_empty()
    });
    for pid in &below {
        kill_process(*pid, Signal::STOP).unwrap();
    }
    let mut known = Vec::new();
    for _ in 0..CUTS {
        wait_for("somebody else who listens", || {
            let listening = processes_of(&pair.root(), &["errand", "follow"]);
            let is_new = listening.iter().any(|pid| !known.contains(pid));
            known.extend(listening);
            is_new
        });
        pair.other.drop_connections();
    }
    for pid in &below {
        kill_process(*pid, Signal::CONT).unwrap();
    }
    let ended: Ended = child.wait_with_output().unwrap().into();
    let made = ended.exits(0).document();
    assert_eq!(rows(&made), all("completed", &["quay"]));
    let events = pair.lab.events(made["run"].as_str().unwrap());
    let of = |event: &&Value| {
        event["ev"] == "delegated" && event["task"] == "host_other.create" && event["origin"].is_null()
    };
    assert_whole(&events.iter().filter(of).map(|event| &event["event"]).collect::<Vec<_>>());
    assert!(pair.other.logins() > CUTS, "{}", pair.other.log());
}

/// Section 6: `-H other` is reached as a hosting node is; its nodes, and those in them, are this level's to know.
#[test]
fn a_host_that_is_another_machine_is_delegated_to() {
    let nodes =
        "  - {name: quay, type: vm, spec: base}\n  - {name: crane, type: vm, spec: base, parent: quay}\n";
    let Some(pair) = Pair::new(nodes) else { return };
    let planned = pair.run("create", "other", &["--dry-run"]).exits(0).document();
    let at: Vec<&str> =
        planned["plan"].as_array().unwrap().iter().map(|row| row["at"].as_str().unwrap()).collect();
    assert!(at.contains(&"other") && at.contains(&"other/quay") && !at.contains(&"local"), "{planned}");
    assert_eq!(pair.other.logins(), 0, "a dry run contacts nobody");

    let made = pair.run("create", "other", &[]).exits(0).document();
    assert_eq!(rows(&made), all("completed", &["quay", "crane"]), "{made}");
    assert_eq!(pair.made_there(), 1);
    assert!(!pair.lab.path("state/machines").exists(), "nothing is made here");
    let state = pair.state("other");
    assert_eq!(state["nodes"]["quay"]["parent"], Value::Null, "{state}");
    assert_eq!(state["nodes"]["crane"]["parent"], "quay");
    let events = pair.lab.events(made["run"].as_str().unwrap());
    let below: Vec<u64> = events
        .iter()
        .filter(|event| {
            event["ev"] == "delegated" && event["task"] == "host_other.create" && event["origin"].is_null()
        })
        .map(|event| event["event"]["seq"].as_u64().unwrap())
        .collect();
    assert!(below.len() > 5);
    // Those of the node in the node are of its own run, and are among them.
    assert!(events.iter().any(|event| event["ev"] == "delegated" && event["origin"] == json!(["quay"])));

    let again = pair.run("create", "other", &[]).exits(0).document();
    assert!(again["nodes"].as_array().unwrap().iter().all(|row| row["changed"] == false), "{again}");
    // Section 11: a test is not made over nodes that are there, wherever that is.
    pair.run("test", "other", &[]).exits(6);
    assert_eq!(pair.made_there(), 1);
    let said = pair.lab.run(["exec", "-M", "m", "-H", "other", "all", "--", "hostname"]).exits(0).stdout;
    assert!(said.contains("quay | quay") && said.contains("crane | crane"), "{said}");
    pair.lab.run(["drift", "-M", "m", "-H", "other"]).exits(0);
    assert_eq!(pair.status("other", 0), ["crane running", "quay running"]);
    kill_process(pair.pids_there()[0], Signal::KILL).unwrap();
    wait_for("the end of quay", || pair.status("other", 1) == ["crane stopped", "quay stopped"]);
    // Nobody describes them any more.
    write(&pair.lab, "manifests/m.yaml", "nonsense");
    // Section 11: everything that goes is told all the same.
    let planned = pair.run("destroy", "other", &["--dry-run"]).exits(0).document();
    assert_eq!(rows(&planned), all("pending", &["crane", "quay"]), "{planned}");
    let at: Vec<&str> =
        planned["plan"].as_array().unwrap().iter().map(|row| row["at"].as_str().unwrap()).collect();
    assert_eq!(at, ["other/quay", "other"]);
    let asked = pair.run("destroy", "other", &[]).exits(6).document();
    assert!(asked.to_string().contains("remove 2 nodes of m on other?"), "{asked}");
    let gone = pair.run("destroy", "other", &["--yes"]).exits(0).document();
    assert_eq!(rows(&gone), all("destroyed", &["crane", "quay"]), "{gone}");
    assert_eq!(pair.made_there(), 0);
    assert!(pair.state("other").is_null());
    // The last node took keys, specs and errands along.
    let there = pair.root().join("var/lib/stead");
    let site = there.join("delegated/site/m");
    assert!(
        !site.join("secrets.yaml").exists()
            && !site.join("specs").exists()
            && !site.join("site.yaml").exists()
    );
    let kept = fs::read_to_string(site.join("keyring.yaml")).unwrap_or_default();
    assert!(!kept.contains("key:"), "{kept}");
    assert_eq!(fs::read_dir(there.join("errands")).unwrap().count(), 1, "its own is still to be heard");
}

/// Section 3: a root names the other machine by `host`; the others are made here.
#[test]
fn one_root_of_two_is_made_on_another_machine() {
    let nodes = "  - {name: near, type: vm, spec: base}\n  - {name: far, type: vm, spec: base, host: other, execution: {mode: pull}}\n";
    let Some(pair) = Pair::new(nodes) else { return };
    let made = pair.run("create", "local", &[]).exits(0).document();
    assert_eq!(rows(&made), all("completed", &["near", "far"]), "{made}");
    assert_eq!(pair.made_there(), 1);
    assert_eq!(fs::read_dir(pair.lab.path("state/machines")).unwrap().count(), 1);
    assert_eq!(pair.state("local")["nodes"]["far"]["host"], "other");
    assert!(!pair.lab.path("state/server").exists(), "what pulls there pulls from there");
    // As a job, asked for by the machine that made it. The files that others may work with there stay as they are.
    let sites = pair.root().join("var/lib/stead/delegated/site");
    fs::write(sites.join("m/specs/own.yaml"), "schema_version: 1\n").unwrap();
    pair.lab.run(["drift", "-M", "m", "-H", "local"]).exits(0);
    assert!(sites.join("m/specs/own.yaml").exists());
    let left = fs::read_dir(&sites).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(left.filter(|name| name.contains('@')).count(), 0, "what it looked with is gone");
    assert_eq!(pair.status("local", 0), ["far running", "near running"]);
    // Section 10: one that the manifest does not have any more is told, by who made it or here, and left alone.
    let near = "  - {name: near, type: vm, spec: base}\n";
    for other in ["", "  - {name: wide, type: vm, host: other}\n"] {
        write(&pair.lab, "manifests/m.yaml", &manifest(&format!("{near}{other}")));
        let made = pair.run("create", "local", &[]).exits(0).document();
        let told = made["diagnostics"].as_array().unwrap().iter().filter(|row| row["code"] == "node/orphan");
        let told: Vec<&str> = told.map(|row| row["message"].as_str().unwrap()).collect();
        assert_eq!(told, ["far is not in the manifest any more; it is left alone"], "{made}");
    }
    pair.run("destroy", "local", &["--yes", "--only", "wide"]).exits(0);
    write(&pair.lab, "manifests/m.yaml", &manifest(nodes));
    let gone = pair.run("destroy", "local", &["--yes", "--only", "far"]).exits(0).document();
    assert_eq!(gone["success"], true, "{gone}");
    assert_eq!((pair.made_there(), pair.state("local")["nodes"]["far"].is_null()), (0, true));
    pair.run("destroy", "local", &["--yes"]).exits(0);
}

/// Nodes on a machine that is not reached are not gone.
#[test]
fn a_machine_that_is_not_reached_keeps_its_nodes() {
    let Some(pair) = Pair::new("  - {name: quay, type: vm}\n") else { return };
    pair.run("create", "other", &[]).exits(0);
    let file = pair.lab.read("site-config/hosts/other.yaml");
    let port = format!("ssh_port: {}", pair.other.port());
    write(&pair.lab, "hosts/other.yaml", &(file.replace(&port, "ssh_port: 1") + "timeouts: {ssh: 1}\n"));
    write(
        &pair.lab,
        "manifests/m.yaml",
        &(manifest("  - {name: quay, type: vm}\n") + "settings: {timeout_buffer: 1}\n"),
    );
    pair.run("destroy", "other", &["--yes"]).exits(7);
    assert_eq!(pair.made_there(), 1);
    assert_eq!(pair.state("other")["nodes"]["quay"]["status"], "completed");
    write(&pair.lab, "hosts/other.yaml", &file);
    pair.run("destroy", "other", &["--yes"]).exits(0);
    assert_eq!(pair.made_there(), 0);
}

/// Section 2: another machine is waited for as long as its own file says, whatever `-H` says of itself.
#[test]
fn another_machine_is_waited_for_as_its_own_file_says() {
    let Some(pair) = Pair::new("  - {name: far, type: vm, host: other}\n") else { return };
    let file = pair.lab.read("site-config/hosts/other.yaml");
    let port = format!("ssh_port: {}", pair.other.port());
    write(&pair.lab, "hosts/other.yaml", &(file.replace(&port, "ssh_port: 1") + "timeouts: {ssh: 1}\n"));
    write(&pair.lab, "hosts/local.yaml", "driver: sandbox\ntimeouts: {ssh: 3600}\n");
    let nodes = manifest("  - {name: far, type: vm, host: other}\n");
    write(&pair.lab, "manifests/m.yaml", &(nodes + "settings: {timeout_buffer: 1}\n"));
    let failed = pair.run("create", "local", &[]).exits(7).document();
    assert!(failed.to_string().contains("other was not reached over SSH within 2s"), "{failed}");
    write(&pair.lab, "hosts/other.yaml", &file);
}

/// Section 7: what is made for one site on another machine is not another site's to remove, whatever both call it.
#[test]
fn two_sites_share_a_machine_and_nothing_else() {
    let Some(first) = Pair::new("  - {name: a, type: vm, spec: base}\n") else { return };
    let second = site(&[]);
    settle(&second, "second", "  - {name: b, type: vm, spec: base}\n", &first.other);
    let by_second = |words: &[&str]| {
        let pair = ["-M", "m", "-H", "other", "--json"];
        second.run(words.iter().chain(&pair).copied())
    };
    first.run("create", "other", &[]).exits(0);
    let made = by_second(&["create"]).exits(0).document();
    assert!(!made.to_string().contains("node/orphan"), "{made}");
    assert_eq!(first.made_there(), 2);
    let again = first.run("create", "other", &[]).exits(0).document();
    assert_eq!(again["nodes"][0]["changed"], false, "its site is as it was: {again}");
    let gone = by_second(&["destroy", "--yes"]).exits(0).document();
    assert_eq!(rows(&gone), all("destroyed", &["b"]));
    assert_eq!(first.made_there(), 1);
    first.lab.run(["exec", "-M", "m", "-H", "other", "a", "--", "true"]).exits(0);
    // One that its manifest does not have any more can go alone.
    write(&first.lab, "manifests/m.yaml", &manifest("  - {name: c, type: vm}\n"));
    let gone = first.run("destroy", "other", &["--yes", "--only", "a"]).exits(0).document();
    assert!(rows(&gone).contains(&("a".to_owned(), "destroyed".to_owned())), "{gone}");
    assert_eq!(first.made_there(), 0);
}

/// Section 9: what pulls there fetches from a server of its own site and manifest, which knows no other's keys.
#[test]
fn what_pulls_on_a_shared_machine_has_a_server_of_its_own() {
    let Some(first) = Pair::new("  - {name: a, type: vm, spec: base}\n") else { return };
    write(
        &first.lab,
        "manifests/n.yaml",
        &manifest("  - {name: a, type: vm, spec: base}\n").replace("name: m\n", "name: n\n"),
    );
    let second = site(&[]);
    settle(&second, "second", "  - {name: a, type: vm, spec: base}\n", &first.other);
    let all = [(&first.lab, "m", "site"), (&first.lab, "n", "site"), (&second, "m", "second")];
    let run = |lab: &Lab, manifest: &str, words: &[&str]| {
        lab.run(words.iter().copied().chain(["-M", manifest, "-H", "other", "--json"]))
    };
    let state = first.root().join("var/lib/stead");
    for (lab, manifest, site) in all {
        let made = run(lab, manifest, &["create", "--mode", "pull"]).exits(0).document();
        assert_eq!(rows(&made), [("a".to_owned(), "completed".to_owned())], "{made}");
        assert!(state.join(format!("delegated/{site}/.{manifest}.server/cert.pem")).exists());
    }
    assert_eq!(first.made_there(), 3);
    assert!(!state.join("server").exists(), "nothing there is of that machine's own site");
    for (lab, manifest, site) in all {
        let again = run(lab, manifest, &["create", "--mode", "pull"]).exits(0).document();
        assert_eq!(again["nodes"][0]["changed"], false, "{again}");
        run(lab, manifest, &["destroy", "--yes"]).exits(0);
        assert!(!state.join(format!("delegated/{site}/.{manifest}.server")).exists());
    }
    assert_eq!(first.made_there(), 0);
}

/// Sections 6 and 12: a node on another machine asks the server there, and so does one in it; their jobs are asked for here.
#[test]
fn jobs_reach_nodes_on_another_machine() {
    let nodes = "  - {name: quay, type: vm, spec: base}\n  - {name: crane, type: vm, spec: base, parent: quay}\nexecution: {default_mode: pull}\n";
    let Some(pair) = Pair::new(nodes) else { return };
    pair.run("create", "other", &["--yes"]).exits(0);
    for (node, path) in [("quay", "other/j"), ("crane", "other/quay/j")] {
        let argv = ["job", "submit", "--node", node, "--wait", "--json", "--", "hostname"];
        let job = pair.lab.run(argv).exits(0).document();
        assert_eq!((&job["state"], &job["stdout"]), (&json!("succeeded"), &json!(format!("{node}\n"))));
        let id = job["id"].as_str().unwrap();
        assert!(id.starts_with(path), "{id}");
        assert_eq!(pair.lab.run(["job", "show", id, "--json"]).exits(0).document(), job);
    }
    let listed = pair.lab.run(["job", "list", "--json"]).exits(0).document();
    let nodes: Vec<&Value> = listed["jobs"].as_array().unwrap().iter().map(|job| &job["node"]).collect();
    assert_eq!(nodes, ["quay", "crane"], "{listed}");
    pair.run("destroy", "other", &["--yes"]).exits(0);
}

//! The agent of a node: it comes with a bootstrap, becomes its spec, heals, reports, and goes.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Map, Value, json};
use stead_model::NodeName;
use stead_model::machine::MachineState;
use stead_model::node::wire::{AgentState, ReportKind, ReportStatus, SignalKind};

use super::pulled::{HEALING, Pulled, block_on, is_alive, wait_for, wait_for_with};
use crate::cases_17_32::lab::{Ended, kill};

const COMPLETE: &str = "var/lib/stead/config/config-complete.json";
const KEYS: &str = "home/ops/.ssh/authorized_keys";

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn edge() -> NodeName {
    NodeName::parse("edge").unwrap()
}

#[test]
fn a_node_that_pulls_becomes_its_spec_and_there_is_one_agent() {
    let pulled = Pulled::new(&[]);
    pulled.make(Some(pulled.bootstrap("pull", &[])));
    let reports = pulled.wait_for_reports(1);
    let report = &reports[0].report;
    assert_eq!((report.kind, report.status), (ReportKind::Config, ReportStatus::Complete), "{report:?}");
    let marker = json_of(&pulled.read(COMPLETE));
    assert_eq!(marker["spec_digest"], report.spec_digest.clone().unwrap());
    assert_eq!(marker["state_digest"], report.state_digest.clone().unwrap());
    assert_eq!(marker["mode"], "pull");
    assert!(pulled.read(KEYS).contains("ann@desk"));
    let bootstrap = fs::metadata(pulled.root().join("etc/stead/bootstrap.json")).unwrap();
    assert_eq!(bootstrap.mode() & 0o777, 0o600);
    let programs = fs::read_dir(pulled.root().join("var/lib/stead/bin")).unwrap();
    assert_eq!(programs.count(), 1, "the program was planted");

    // Another one has no place.
    pulled.run_on_node(&["agent", "run"]).exits(5).says("another agent runs");
    pulled.run_on_node(&["agent", "run", "--once"]).exits(5);
    wait_for("it is connected", || {
        pulled.status().is_some_and(|status| status.agent == AgentState::Connected)
    });

    // A killed one is replaced, and reports again; one that is asked goes.
    let first = pulled.agent().unwrap();
    kill(first, Signal::KILL);
    pulled.wait_for_reports(2);
    let second = pulled.agent().unwrap();
    assert_ne!(first, second);
    let begun = Instant::now();
    kill(second, Signal::TERM);
    wait_for("it has gone", || !is_alive(second));
    // A second on a machine with nothing else to do; far less than it waits for its server's answers.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

/// Section 7: a sandbox that is killed does nothing any more: its agent goes with it.
#[test]
fn an_agent_ends_with_its_machine() {
    let pulled = Pulled::new(&[]);
    pulled.make(Some(pulled.bootstrap("pull", &[])));
    pulled.wait_for_reports(1);
    let agent = pulled.agent().unwrap();
    let text = fs::read_to_string(pulled.root().parent().unwrap().join("pid")).unwrap();
    kill(text.split_whitespace().next().unwrap().parse().unwrap(), Signal::KILL);
    wait_for("its agent has gone", || !is_alive(agent));
}

/// Case 36: what was changed by hand is healed on schedule, also with the server stopped; what was done is reported once
/// it is back.
#[test]
fn drift_is_healed_on_schedule_also_with_the_server_stopped() {
    let mut pulled = Pulled::new(&[("specs/base.yaml", HEALING)]);
    pulled.make(Some(pulled.bootstrap("pull", &[])));
    pulled.wait_for_reports(1);
    let keys = pulled.root().join(KEYS);
    let right = pulled.read(KEYS);
    assert!(right.contains("ann@desk"));
    fs::write(
        &keys,
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIC eve\n",
    )
    .unwrap();
    wait_for_with("healed", || pulled.read(KEYS) == right, || pulled.log());
    let reports = pulled.wait_for_reports(2);
    assert!(reports[1].report.changed > 0, "{:?}", reports[1]);

    pulled.kill_server();
    fs::write(&keys, "").unwrap();
    wait_for_with("healed without a server", || pulled.read(KEYS) == right, || pulled.log());
    pulled.start_server();
    let reports = pulled.wait_for_reports(3);
    assert!(reports[2].report.changed > 0 && reports[2].report.status == ReportStatus::Complete);
}

/// Section 5: a hybrid node does nothing until it is told, by its server or on the node.
#[test]
fn a_hybrid_node_waits_for_a_signal() {
    let pulled = Pulled::new(&[]);
    pulled.make(Some(pulled.bootstrap("hybrid", &[])));
    wait_for_with(
        "connected",
        || pulled.status().is_some_and(|status| status.agent == AgentState::Connected),
        || pulled.log(),
    );
    assert!(!pulled.root().join(COMPLETE).exists() && pulled.reports().is_empty());
    let id = block_on(pulled.client().signal(&edge(), SignalKind::Converge, Map::new())).unwrap();
    let reports = pulled.wait_for_reports(1);
    assert_eq!(
        (reports[0].report.id.as_ref(), reports[0].report.status),
        (Some(&id), ReportStatus::Complete)
    );
    pulled.run_on_node(&["agent", "signal", "converge"]).exits(0);
    let reports = pulled.wait_for_reports(2);
    assert_eq!((reports[1].report.changed, reports[1].report.status), (0, ReportStatus::Complete));
    let peers = json!({"peers": [{"name": "far", "address": "10.9.9.9"}]});
    block_on(pulled.client().signal(&edge(), SignalKind::Link, peers.as_object().unwrap().clone())).unwrap();
    let known = || pulled.root().join("etc/stead/peers.json").exists();
    wait_for_with("it knows its peer", known, || pulled.log());
    assert_eq!(json_of(&pulled.read("etc/stead/peers.json")), peers["peers"]);
    assert!(pulled.read("etc/hosts").contains("10.9.9.9\tfar"));
}

/// Case 37: an agent comes to a node that was made without one, and goes again.
#[test]
fn an_agent_comes_and_goes() {
    let pulled = Pulled::new(&[]);
    pulled.make(None);
    assert_eq!(pulled.agent(), None);
    pulled.run_on_node(&["agent", "signal", "converge"]).exits(1).says("no agent runs");
    pulled.run_on_node(&["agent", "run"]).exits(3).says("bootstrap.json");
    pulled.run_on_node(&["agent", "run", "--once"]).exits(3).says("bootstrap.json");
    assert!(!pulled.root().join("var/lib/stead/agent").exists(), "who is no node is left as it is");
    let enable = |text: &str| -> Ended {
        let mut command = pulled.on_node(&["agent", "enable"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        child.wait_with_output().unwrap().into()
    };
    enable("{\"token\": \"very.secret\"}").exits(3);
    let bootstrap = pulled.bootstrap("pull", &[]);
    enable(&bootstrap).exits(0).says("changed");
    pulled.wait_for_reports(1);
    assert_eq!(enable(&bootstrap).exits(0).stdout, "unchanged\n");
    pulled.run_on_node(&["agent", "disable"]).exits(0).says("changed");
    assert_eq!(pulled.agent(), None);
    assert!(!pulled.root().join("etc/stead/bootstrap.json").exists());
    assert!(!pulled.root().join("var/lib/stead/agent").exists());
    assert!(pulled.root().join(COMPLETE).exists(), "what the node is stays");
}

/// Case 37: pull over a node that was made by push brings its agent, push takes it away, and the node stays the same.
#[test]
fn a_node_made_by_push_is_pulled_and_pushed_again() {
    let one = super::manifest("  - {name: edge, type: vm, spec: base}\n");
    let pulled = Pulled::new(&[("manifests/m.yaml", &one)]);
    let create = |mode: &str| {
        let args = ["create", "-M", "m", "-H", "local", "--mode", mode, "--json", "--yes"];
        let document = pulled.lab.run(args).exits(0).document();
        document["nodes"][0].clone()
    };
    let first = create("push");
    assert_eq!((&first["mode"], pulled.agent()), (&"push".into(), None));
    let why = ["job", "submit", "--node", "edge", "--", "true"];
    pulled.lab.run(why).exits(1).says("the mode of edge is push").says("stead exec edge");
    let second = create("pull");
    assert!(second["mode"] == "pull" && pulled.agent().is_some(), "{second}");
    pulled.lab.run(["job", "submit", "--node", "edge", "--wait", "--", "true"]).exits(0);
    let third = create("push");
    assert_eq!((&third["mode"], pulled.agent()), (&"push".into(), None));
    for node in [&second, &third] {
        assert_eq!(node["state_digest"], first["state_digest"]);
        assert!(node["state_digest"].is_string());
    }
    pulled.lab.run(["destroy", "-M", "m", "-H", "local", "--yes"]).exits(0);
}

/// Case 37: a node that is to stop for good says so, and stops.
#[test]
fn a_terminated_node_reports_and_stops() {
    let pulled = Pulled::new(&[]);
    pulled.make(Some(pulled.bootstrap("pull", &[])));
    pulled.wait_for_reports(1);
    block_on(pulled.client().signal(&edge(), SignalKind::Terminate, Map::new())).unwrap();
    let reports = pulled.wait_for_reports(2);
    assert_eq!(reports[1].report.kind, ReportKind::Terminated);
    wait_for_with("stopped", || pulled.state() == MachineState::Stopped, || pulled.log());
}

/// Case 37: a node whose destruction is its own says so and is reclaimed with its tokens; one that does not hear it goes all
/// the same, and what it did not hear does not stop the next of its name.
#[test]
fn a_node_destroys_itself_and_comes_back() {
    let node = "  - {name: edge, type: vm, spec: base, execution: {mode: pull, phases: {destroy: pull}}}\n";
    let one = super::manifest(&format!("{node}settings: {{timeout_buffer: 0}}\n"));
    let host = |seconds: u32| format!("driver: sandbox\ntimeouts: {{destroy: {seconds}}}\n");
    let pulled = Pulled::new(&[("manifests/m.yaml", &one), ("hosts/local.yaml", &host(60))]);
    let run = |verb: &str| {
        let args = [verb, "-M", "m", "-H", "local", "--json", "--yes"];
        pulled.lab.run(args).exits(0).document()["nodes"][0].clone()
    };
    let machines = || {
        let all = fs::read_dir(pulled.lab.path("state/machines")).into_iter().flatten().flatten();
        all.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.')).count()
    };
    run("create");
    let token = pulled.token(&[]);
    assert_eq!(run("destroy")["status"], "destroyed");
    assert_eq!(pulled.reports().last().unwrap().report.kind, ReportKind::Terminated);
    assert_eq!(machines(), 0);
    let trust = ["--server", pulled.url(), "--fingerprint", pulled.fingerprint()];
    let mut fetch = pulled.lab.stead(["config", "fetch", "--identity", "edge"].into_iter().chain(trust));
    fs::create_dir_all(pulled.lab.path("root")).unwrap();
    fetch.env("STEAD_TOKEN", &token).env("STEAD_ROOT", pulled.lab.path("root"));
    Ended::from(fetch.output().unwrap()).exits(1).says("E303");

    run("create");
    kill(pulled.agent().unwrap(), Signal::STOP);
    // Nobody who does not hear is waited for longer.
    super::write(&pulled.lab, "hosts/local.yaml", &host(3));
    assert_eq!(run("destroy")["status"], "destroyed");
    assert_eq!(machines(), 0);
    assert_eq!(run("create")["status"], "completed", "the old machine's end is not the new one's");
    pulled.lab.run(["job", "submit", "--node", "edge", "--wait", "--", "true"]).exits(0);
    run("destroy");
}

/// Section 5: an agent that crashes while it converges was told to, and does so when it is back.
#[test]
fn a_signal_outlives_a_crash_over_it() {
    let pulled = Pulled::new(&[]);
    let faults = json!([{"node": "edge", "phase": "config", "times": 1, "crash": true}]);
    pulled.make_suffering(Some(pulled.bootstrap("hybrid", &[])), &faults);
    let signal = block_on(pulled.client().signal(&edge(), SignalKind::Converge, Map::new())).unwrap();
    let reports = pulled.wait_for_reports(1);
    assert_eq!((reports[0].report.status, &reports[0].report.id), (ReportStatus::Complete, &Some(signal)));
}

/// Section 6: peers that cannot be written are told of, not only logged.
#[test]
fn peers_that_cannot_be_written_are_reported() {
    let pulled = Pulled::new(&[]);
    pulled.make(Some(pulled.bootstrap("hybrid", &[])));
    let payload = Map::from_iter([("peers".to_owned(), json!("none"))]);
    let signal = block_on(pulled.client().signal(&edge(), SignalKind::Link, payload)).unwrap();
    let report = pulled.wait_for_reports(1).remove(0).report;
    assert_eq!((report.status, &report.id), (ReportStatus::Failed, &Some(signal)));
    assert!(report.error.unwrap().contains("peers"));
}

/// Sections 5 and 7: a report that does not get through, or an agent that crashes over it, comes again.
#[test]
fn reports_come_through_in_the_end() {
    let pulled = Pulled::new(&[]);
    let faults = json!([
        {"node": "edge", "phase": "report", "times": 2, "error": "no way through"},
        {"node": "edge", "phase": "report", "times": 1, "crash": true},
    ]);
    pulled.make_suffering(Some(pulled.bootstrap("pull", &[])), &faults);
    let reports = pulled.wait_for_reports(1);
    assert_eq!(reports[0].report.status, ReportStatus::Complete);
    assert!(reports[0].report.changed > 0, "the first one, from the disk");
    assert!(pulled.log().contains("no way through"));
}

/// Section 5: a token is renewed when half of its life is over.
#[test]
fn a_token_is_renewed_at_half_its_life() {
    let pulled = Pulled::new(&[]);
    // Machine, agent and connection come before the end of its life.
    let bootstrap = pulled.bootstrap("pull", &["--ttl", "16s"]);
    let before = json_of(&bootstrap);
    pulled.make(Some(bootstrap));
    let now = || json_of(&pulled.read("etc/stead/bootstrap.json"));
    wait_for_with("a new token", || now()["token"] != before["token"], || pulled.log());
    let made = |bootstrap: &Value| {
        let token = bootstrap["token"].as_str().unwrap();
        pulled.lab.run(["token", "inspect", token]).exits(0).document()["iat"].as_i64().unwrap()
    };
    assert!(made(&now()) - made(&before) >= 8, "not before half of its life is over");
    assert_eq!(now()["fingerprints"], before["fingerprints"]);
    assert_eq!(now()["spki_pin"], pulled.server["spki_pin"]);
    assert!(!pulled.log().contains(before["token"].as_str().unwrap()));
}

/// Section 5: `--once` is fetch, apply, report.
#[test]
fn once_is_fetch_apply_report() {
    let pulled = Pulled::new(&[]);
    pulled.make(None);
    let file = pulled.root().join("etc/stead/bootstrap.json");
    fs::write(&file, pulled.bootstrap("pull", &[])).unwrap();
    pulled.run_on_node(&["agent", "run", "--once"]).exits(0);
    assert_eq!(pulled.reports().len(), 1);
    fs::write(&file, pulled.bootstrap("pull", &["--exp", "1000"])).unwrap();
    pulled.run_on_node(&["agent", "run", "--once"]).exits(1).says("E302");
}

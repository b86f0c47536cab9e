//! What a server promises holds: over a full disk, a crash, a broken file, another server that starts.

use std::os::unix::fs::PermissionsExt as _;

use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use serde_json::{Value, json};

use super::super::{manifest, site, write};
use super::server;
use super::wire::{Serving, kill, until};

/// Bounds the size of files that the server of a document writes; none is as much as it likes.
fn bound_files(facts: &Value, most: Option<u64>) {
    let pid = Pid::from_raw(i32::try_from(facts["pid"].as_i64().unwrap()).unwrap());
    let before = prlimit(pid, Resource::Fsize, Rlimit { current: most, maximum: None }).unwrap();
    assert_eq!(before.maximum, None, "it can be taken back");
}

/// A change that cannot be kept has no effect; it shows, and it passes when there is room again.
#[test]
fn what_cannot_be_kept_does_not_happen() {
    let lab = site(&[("manifests/m.yaml", &manifest("  - {name: edge, type: vm}\n"))]);
    let mut serving = Serving::start(&lab);
    let (token, ann) = (serving.mint(&["--node", "edge", "--spec", "base"]), serving.operator());
    let submit = |serving: &Serving<'_>, what: &str| {
        // Long enough for the journal to be the largest file: the log has to go on.
        let argv = ["echo", what, &"x".repeat(100_000)];
        let body = json!({"node": "edge", "argv": argv, "ttl": "1h"}).to_string();
        serving.ask("POST", "/v1/jobs", &ann, &body)
    };
    let first = submit(&serving, "first");
    assert_eq!(first.status, 202);
    let journal = lab.path(&format!("state/server/server-{}.journal", serving.port));
    bound_files(&serving.facts, Some(std::fs::metadata(&journal).unwrap().len() + 10));
    assert_eq!(submit(&serving, "refused").code(), "E500");
    let listed = |serving: &Serving<'_>| serving.get("/v1/jobs", &ann).json()["jobs"].clone();
    assert_eq!(listed(&serving).as_array().unwrap().len(), 1, "what was refused is not there");
    for after in ["", "?after=s1"] {
        let given = serving.get(&format!("/v1/nodes/edge/next{after}"), &token);
        assert_eq!(given.code(), "E500", "nothing is given whose delivery cannot be kept: {given:?}");
    }
    assert_eq!(serving.get("/health", "").code(), "E500");
    let shown = server(&lab, &["status", "-p", &serving.port.to_string(), "--json"]).exits(7).document();
    assert!(shown["problem"].is_string() && shown["healthy"] == false, "{shown}");
    assert!(serving.log().contains("cannot be written"), "{}", serving.log());
    // It is there: who asks is told what it cannot do, and sees what it has.
    lab.run(["job", "list"]).exits(0).says("first");
    lab.run(["job", "submit", "--node", "edge", "--", "true"]).exits(7).says("E500");

    bound_files(&serving.facts, None);
    until(|| submit(&serving, "second").status == 202);
    assert_eq!(serving.get("/health", "").status, 200);
    let given = serving.get("/v1/nodes/edge/next?after=s1", &token).json();
    assert_eq!((&given["id"], &given["payload"]["argv"][1]), (&first.json()["id"], &json!("first")));
    serving.crash_and_start();
    let kept: Vec<Value> =
        listed(&serving).as_array().unwrap().iter().map(|job| job["argv"][1].clone()).collect();
    assert_eq!(kept, ["first", "second"]);
}

/// Who did what is on disk before the answer is: also a server that is killed right after it has noted it.
#[test]
fn what_operators_do_is_noted_before_they_are_answered() {
    let lab = site(&[]);
    let serving = Serving::start(&lab);
    let ann = serving.operator();
    let sent = serving.ask("POST", "/v1/nodes/edge/signals", &ann, r#"{"kind":"converge"}"#);
    kill(&serving.facts, Signal::KILL);
    let audit = lab.read("state/server/audit.log");
    let id = sent.json()["id"].as_str().unwrap().to_owned();
    assert!(audit.lines().any(|line| line.contains(&id) && line.contains("ann@desk")), "{audit}");
}

/// Section 8: a revocation counts whatever is wrong with other files; what cannot be served is no matter of other nodes.
#[test]
fn a_broken_spec_keeps_no_token_alive() {
    let pulled = manifest("  - {name: edge, type: vm, spec: base, execution: {mode: pull}}\n");
    let lab = site(&[
        ("site.yaml", "server: {port: 0, bind: 127.0.0.1}\n"),
        ("specs/other.yaml", super::BASE),
        ("manifests/m.yaml", &pulled),
    ]);
    let serving = Serving::start(&lab);
    let token = serving.mint(&["--node", "edge", "--spec", "base"]);
    assert_eq!(serving.get("/spec/edge", &token).status, 200);
    write(&lab, "specs/other.yaml", "schema_version: [");
    lab.run(["token", "revoke", "--node", "edge"]).exits(0);
    assert_eq!(serving.get("/spec/edge", &token).code(), "E303");
    let created = lab.run(["create", "-M", "m", "-H", "local", "--yes"]);
    let reload = serving.status()["reload"].clone();
    lab.run(["destroy", "-M", "m", "-H", "local", "--yes"]).exits(0);
    created.exits(0);
    assert!(reload["ok"] == false && reload.to_string().contains("specs/other.yaml"), "{reload}");
}

/// A server with another state directory is not told of a revocation; it notices, and who revokes hears that none was.
#[test]
fn a_server_elsewhere_notices_a_revocation() {
    let lab = site(&[]);
    let serving = Serving::start(&lab);
    let token = serving.mint(&["--node", "edge", "--spec", "base"]);
    assert_eq!(serving.get("/spec/edge", &token).status, 200);
    let other = lab.path("elsewhere");
    let mut again = std::process::Command::new(env!("CARGO_BIN_EXE_stead"));
    again.env_clear().env("PATH", "/usr/bin:/bin").current_dir(lab.root());
    again.arg("--state-dir").arg(&other).args(["token", "revoke", "--node", "edge"]);
    let ended: crate::cases_17_32::lab::Ended = again.output().unwrap().into();
    ended.exits(0).says("no running server was told").says("elsewhere");
    until(|| serving.get("/spec/edge", &token).code() == "E303");
}

/// A server that takes its time to start is waited for, and not killed by the next who wants one.
#[test]
fn a_server_that_is_starting_is_waited_for() {
    let lab = site(&[("site.yaml", "server: {port: 0, bind: 127.0.0.1, repos: {kit: ../kit}}\n")]);
    let mut init = std::process::Command::new("git");
    init.current_dir(lab.root()).args(["init", "-q", "-b", "main", "kit"]);
    assert!(init.status().unwrap().success());
    // A Git that takes longer to clone than a server that hangs is given.
    lab.write("bin/git", "#!/bin/sh\ncase \"$1\" in clone) sleep 3 ;; esac\nexec /usr/bin/git \"$@\"\n");
    std::fs::set_permissions(lab.path("bin/git"), std::fs::Permissions::from_mode(0o755)).unwrap();
    // A port is chosen first, so that both mean the same.
    let port = stead_testkit::sshd::free_port().to_string();
    let start = || {
        let mut command = lab.stead(["server", "start", "-p", &port, "--json"]);
        command.env("PATH", format!("{}:/usr/bin:/bin", lab.path("bin").display()));
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        command.spawn().unwrap()
    };
    let first = start();
    let lock = lab.path(&format!("state/server/server-{port}.lock"));
    until(|| lock.exists());
    let both = [start(), first].map(|child| {
        let ended: crate::cases_17_32::lab::Ended = child.wait_with_output().unwrap().into();
        ended.exits(0).document()
    });
    assert_eq!(both[0]["pid"], both[1]["pid"], "one server");
    server(&lab, &["stop", "-p", &port]).exits(0);
}

/// Section 9: `--new-cert` replaces the certificate also of a server that runs; what does not count then is said.
#[test]
fn a_running_server_gets_a_new_certificate() {
    let lab = site(&[]);
    let serving = Serving::start(&lab);
    let port = serving.port.to_string();
    let renewed = server(&lab, &["start", "-p", &port, "--new-cert", "--json"]).exits(0).document();
    assert_eq!(renewed["pid"], serving.facts["pid"]);
    assert_eq!(renewed["replaced_fingerprint"], serving.facts["fingerprint"]);
    assert_ne!(renewed["fingerprint"], serving.facts["fingerprint"]);
    assert_eq!(serving.status()["fingerprint"], renewed["fingerprint"]);
    let again = server(&lab, &["start", "-p", &port, "-b", "127.0.0.1"]).exits(0);
    again.says("already running").says("--bind").says("server stop");
}

//! Roles on other machines, through a real sshd.

use rustix::process::Signal;
use serde_json::json;
use stead_testkit::sshd::{self, Sshd};

use super::place::Place;
use crate::cases_17_32::lab::{kill, wait_until};

const QUIET: &str = "kind: service, files: [quiet.sh], command: [./quiet.sh], ready: {method: file, path: up}, artifacts: [marker]";

fn quiet(server: &Sshd, client: &str) -> Place {
    let place = Place::of(&format!(
        "api_version: v1
run_id: r
lease_seconds: 5
agents: {{edge: {{transport: \"{}\", workdir: {}}}}}
roles:
  server: {{agent: edge, {QUIET}}}
  client: {{needs: [server], command: [sh, -c, '{client}']}}
",
        server.spec_text(),
        server.workdir().display(),
    ));
    let marker = place.lab.path("marker");
    place.program(
        "quiet.sh",
        &format!("#!/bin/sh\ntrap 'echo stopped | tee {} > marker; exit 0' TERM\ntouch up\nwhile :; do sleep 0.02; done\n", marker.display()),
    );
    place
}

#[track_caller]
fn is_clean_there(place: &Place, server: &Sshd) {
    place.verifies();
    assert_eq!(place.lab.read("marker"), "stopped\n");
    let left: Vec<_> = std::fs::read_dir(server.workdir())
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("run-"))
        .map(|entry| entry.path())
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Case 21: gone with its marker written and its workdir removed after success, a signal and a timeout.
#[test]
fn a_quiet_remote_service_is_stopped_and_cleared_away_whatever_happens() {
    if !sshd::available() {
        return;
    }
    let server = Sshd::start();
    let place = quiet(&server, "true");
    let document = place.json(&[], 0);
    assert_eq!(document["roles"]["server"]["status"], "success");
    assert_eq!(place.read("roles/server/marker"), "stopped\n");
    assert_eq!(place.role("server")["agent_id"], "edge");
    is_clean_there(&place, &server);

    let place = quiet(&server, "sleep 60");
    let running = place.start(&[]);
    place.wait_for_event("role_started", "client");
    running.signal(Signal::INT);
    running.end().exits(130);
    is_clean_there(&place, &server);

    let place = quiet(&server, "sleep 60");
    place.run(&["--timeout", "12s"]).exits(8);
    is_clean_there(&place, &server);
}

/// Case 23: one of two agents cannot be reached: it is named, nothing starts on the other, the bundle is sealed.
#[test]
fn an_agent_that_cannot_be_reached_is_named_before_anything_starts() {
    let port = sshd::free_port();
    let place = Place::of(&format!(
        "api_version: v1\nrun_id: r\nroles:\n  here: {{command: ['true']}}\n  there: {{agent: 'ssh://nobody@127.0.0.1:{port}?connect_timeout=5s', command: ['true']}}\n"
    ));
    let document = place.json(&[], 7);
    assert_eq!((&document["status"], &document["failed_phase"]), (&json!("failed"), &json!("init")));
    assert!(document["error"].as_str().unwrap().contains(&port.to_string()), "{document}");
    assert!(place.told(&["role_started"]).is_empty());
    assert_eq!(place.role("here")["status"], "not_started");
    place.is_clean();
}

/// Section 4.3: an agent that is lost for longer than its lease: exit 7, the others are stopped, the role is lost.
#[test]
fn an_agent_that_is_lost_for_good_fails_the_run_with_seven() {
    if !sshd::available() {
        return;
    }
    let server = Sshd::start();
    let place = quiet(&server, "sleep 60");
    let running = place.start(&["--json"]);
    place.wait_for_event("role_started", "client");
    // Nobody answers any more, and what is there is cut off; the session and its role live on.
    kill(server.pid(), Signal::STOP);
    server.drop_connections();
    let document = running.end().exits(7).document();
    assert_eq!(document["roles"]["server"]["status"], "lost");
    assert_eq!(document["roles"]["client"]["status"], "cancelled");
    assert!(place.events().iter().any(|event| event["ev"] == "agent_lost" && event["agent"] == "edge"));
    place.verifies();
    wait_until("the service stops by itself", || place.lab.read("marker") == "stopped\n");
}

/// Section 4.3: a connection that comes back within the lease loses nothing.
#[test]
fn a_connection_that_comes_back_loses_nothing() {
    if !sshd::available() {
        return;
    }
    let server = Sshd::start();
    let place = quiet(&server, "while ! [ -e GO ]; do sleep 0.02; done");
    let manifest = place.lab.read("m.yaml").replace("GO", &place.lab.path("go").display().to_string());
    place.lab.write("m.yaml", manifest.replace("lease_seconds: 5", "lease_seconds: 60"));
    let running = place.start(&["--json"]);
    place.wait_for_event("role_started", "client");
    server.drop_connections();
    wait_until("it is back", || place.events().iter().any(|event| event["ev"] == "agent_back"));
    place.lab.write("go", "");
    running.end().exits(0);
    is_clean_there(&place, &server);
}

/// Case 24 with a remote role: the lease ends it, and `resume` brings what it left.
#[test]
fn what_a_lost_driver_left_on_an_agent_is_collected_by_resume() {
    if !sshd::available() {
        return;
    }
    let server = Sshd::start();
    let place = quiet(&server, "sleep 60");
    let running = place.start(&[]);
    place.wait_for_event("role_started", "client");
    running.kill_hard();
    wait_until("the lease ends the service", || place.lab.read("marker") == "stopped\n");
    let ended = place.stead(["resume", "runs/r", "--json"]).output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(place.read("roles/server/marker"), "stopped\n");
    is_clean_there(&place, &server);
}

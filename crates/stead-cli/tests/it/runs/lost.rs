//! Drivers and supervisors that are killed: nothing keeps running, and the bundle is finished.

use serde_json::json;

use super::place::{Place, SERVER};
use crate::cases_17_32::lab::{kill, wait_until};

/// A run that is slow in every phase, so that its driver can be killed in each.
fn slow() -> Place {
    let place = Place::of(&format!(
        "api_version: v1
run_id: r
roles:
  server: {}
  client: {{needs: [server], files: [a.pcap], command: [sh, -c, 'echo on; cp a.pcap client.pcap; sleep 0.4']}}
",
        SERVER.replace("kind: service", "kind: service, stop: {signal: TERM}")
    ));
    place.lab.write("a.pcap", stead_testkit::captures::golden_a());
    place
}

#[track_caller]
fn is_finished_by_resume(place: &Place) {
    wait_until("no role runs", || place.lab.processes().is_empty());
    let ended = place.stead(["resume", "runs/r", "--json"]).output().unwrap();
    let text = String::from_utf8(ended.stdout).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{text}\n{}", String::from_utf8_lossy(&ended.stderr));
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["status"], "failed");
    assert!(document["error"].as_str().unwrap().contains("driver was lost"), "{document}");
    for role in ["server", "client"] {
        assert!(document["roles"][role]["status"].is_string(), "{document}");
        assert_eq!(place.role(role)["role"], role);
    }
    place.is_clean();
    // A finished run stays as it is.
    let before = place.lab.snapshot("runs/r");
    let again = place.stead(["resume", "runs/r"]).output().unwrap();
    assert_eq!(again.status.code(), Some(1));
    assert_eq!(place.lab.snapshot("runs/r"), before);
}

/// Case 24, in every phase: the driver is killed, `resume` collects and seals.
#[test]
fn a_driver_that_is_killed_in_any_phase_leaves_a_run_that_resume_finishes() {
    let phases = [
        "init",
        "stage",
        "server_start",
        "server_ready",
        "client_start",
        "client_done",
        "server_stop",
        "collect",
        "bundle",
        "analyze",
    ];
    for phase in phases {
        let place = slow();
        let running = place.start(&[]);
        place.wait_for_phase(phase);
        running.kill_hard();
        if place.bundle().join("hashes.txt").exists() {
            continue;
        }
        is_finished_by_resume(&place);
    }
}

/// Case 24: logs and artifacts of the lost run are in its bundle.
#[test]
fn what_a_lost_run_left_is_collected() {
    let place = slow();
    let running = place.start(&[]);
    place.wait_for_event("role_started", "client");
    wait_until("the capture", || {
        let cache = place.lab.path("cache/stead");
        let runs = std::fs::read_dir(cache).into_iter().flatten().flatten();
        runs.into_iter().any(|run| run.path().join("client/client.pcap").exists())
    });
    running.kill_hard();
    is_finished_by_resume(&place);
    assert_eq!(place.read("roles/client/stdout.log"), "on\n");
    assert_eq!(place.role("client")["pcap_files"], json!(["client.pcap"]).clone());
    assert_eq!(place.role("client")["status"], "lost");
    assert_eq!(place.read("roles/server/marker"), "stopped\n");
}

/// Section 4.3: a supervisor that is killed takes its role with it, and the run fails.
#[test]
fn a_supervisor_that_is_killed_is_a_lost_role() {
    let place =
        Place::new(&format!("  server: {SERVER}\n  client: {{needs: [server], command: [sleep, '60']}}\n"));
    let running = place.start(&["--json"]);
    place.wait_for_event("role_started", "client");
    let supervisors: Vec<u32> = place
        .lab
        .processes()
        .into_iter()
        .filter(|(pid, line)| line.contains("supervise") && *pid != running.pid())
        .map(|(pid, _)| pid)
        .collect();
    assert_eq!(supervisors.len(), 2);
    kill(*supervisors.iter().max().unwrap(), rustix::process::Signal::KILL);
    let document = running.end().exits(1).document();
    assert_eq!(document["status"], "failed");
    assert!(
        document["roles"].as_object().unwrap().values().any(|role| role["status"] == "lost"),
        "{document}"
    );
    place.is_clean();
}

/// A role that is killed by somebody else failed.
#[test]
fn a_role_that_is_killed_from_outside_failed() {
    let place = Place::new("  client: {command: [sleep, '60']}\n");
    let running = place.start(&["--json"]);
    place.wait_for_event("role_started", "client");
    let pid =
        place.events().iter().find(|event| event["ev"] == "role_started").unwrap()["pid"].as_u64().unwrap();
    kill(u32::try_from(pid).unwrap(), rustix::process::Signal::KILL);
    let document = running.end().exits(1).document();
    assert_eq!(document["roles"]["client"], json!({"status": "failed", "exit_code": null, "signal": "KILL"}));
    place.is_clean();
}

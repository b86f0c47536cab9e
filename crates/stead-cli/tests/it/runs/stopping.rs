//! Stopping: by rule, by signal, by time.

use rustix::process::Signal;
use serde_json::json;

use super::place::{Place, SERVER};

const STUBBORN: &str = "{kind: service, command: [sh, -c, 'trap \"\" TERM; echo up; while :; do sleep 0.05; done'], ready: {method: regex, pattern: up}, stop: {grace_seconds: 1}}";

/// Case 15: one that listens writes its marker, one that does not is killed after its grace.
#[test]
fn a_service_that_ignores_its_signal_is_killed_after_its_grace() {
    let place = Place::new(&format!(
        "  server: {SERVER}\n  deaf: {STUBBORN}\n  client: {{needs: [server, deaf], command: ['true']}}\n"
    ));
    let document = place.json(&[], 0);
    assert_eq!(
        document["warnings"],
        json!([{"code": "run/role-killed", "text": document["warnings"][0]["text"], "role": "deaf"}])
    );
    let deaf = place.role("deaf");
    assert_eq!(
        (&deaf["signal"], &deaf["exit_code"], &deaf["stop"]["killed"]),
        (&json!("KILL"), &json!(null), &json!(true))
    );
    assert!(deaf["finished_at"].as_str().unwrap() > deaf["started_at"].as_str().unwrap(), "{deaf}");
    assert_eq!(place.read("roles/server/marker"), "stopped\n");
    place.is_clean();
}

fn long() -> Place {
    Place::new(&format!(
        "  server: {SERVER}\n  client: {{needs: [server], command: [sh, -c, 'echo on; sleep 60']}}\n"
    ))
}

/// Case 17: a signal in the middle stops the run in order.
#[test]
fn a_signal_cancels_a_run_and_its_bundle_is_whole() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let place = long();
        let running = place.start(&["--json"]);
        place.wait_for_phase("client_done");
        running.signal(signal);
        let document = running.end().exits(130).document();
        assert_eq!((&document["status"], &document["ended_by"]), (&json!("cancelled"), &json!("signal")));
        assert_eq!(place.role("client")["status"], "cancelled");
        assert_eq!(place.read("roles/server/marker"), "stopped\n");
        assert_eq!(
            place.phases()[5..9],
            ["client_done:cancelled", "server_stop:done", "collect:done", "bundle:done"]
        );
        place.is_clean();
    }
}

/// Case 17: also while a service is being stopped.
#[test]
fn a_signal_during_a_stop_cancels_a_run_that_went_well() {
    let place = Place::new(
        "  server: {kind: service, command: [sh, -c, 'trap \"sleep 5; exit 0\" TERM; echo up; while :; do sleep 0.02; done'], ready: {method: regex, pattern: up}}
  client: {needs: [server], command: ['true']}
",
    );
    let running = place.start(&["--json"]);
    place.wait_for_event("role_stop", "server");
    running.signal(Signal::INT);
    assert_eq!(running.end().exits(130).document()["status"], "cancelled");
    place.is_clean();
}

/// Section 4.4: the second signal kills, and the bundle is still sealed.
#[test]
fn a_second_signal_kills_and_still_collects() {
    let place = Place::new(
        "  deaf: {kind: service, command: [sh, -c, 'trap \"\" TERM; echo up; while :; do sleep 0.05; done'], ready: {method: regex, pattern: up}, stop: {grace_seconds: 300}}
  client: {needs: [deaf], command: [sleep, '60']}
",
    );
    let running = place.start(&["--json"]);
    place.wait_for_event("role_started", "client");
    running.signal(Signal::INT);
    place.wait_for_event("role_stop", "deaf");
    running.signal(Signal::INT);
    assert_eq!(running.end().exits(130).document()["status"], "cancelled");
    assert_eq!(place.role("deaf")["signal"], "KILL");
    place.is_clean();
}

/// Section 4.4: the third ends the driver at once; `resume` finishes what it left.
#[test]
fn a_third_signal_leaves_the_bundle_to_resume() {
    let place = Place::new(
        "  slow: {command: [sh, -c, 'trap \"sleep 2; exit 0\" TERM; echo up; while :; do sleep 0.02; done'], stop: {grace_seconds: 300}}\n",
    );
    let running = place.start(&[]);
    place.wait_for_event("role_started", "slow");
    // Different ones: two of a kind that wait are one.
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        running.signal(signal);
    }
    assert_eq!(running.end().code, 130);
    assert!(!place.bundle().join("hashes.txt").exists(), "it was sealed before the third was heard");
    place.stead(["resume", "runs/r"]).output().unwrap();
    assert!(place.bundle().join("hashes.txt").exists());
    crate::cases_17_32::lab::wait_until("nothing runs", || place.lab.processes().is_empty());
    place.is_clean();
}

/// Case 17: a run that goes on until a signal ends well by it.
#[test]
fn a_run_until_a_signal_ends_well_by_it() {
    let place = Place::new(&format!("  server: {SERVER}\n"));
    let running = place.start(&["--json"]);
    place.wait_for_phase("until");
    running.signal(Signal::INT);
    let document = running.end().exits(0).document();
    assert_eq!((&document["status"], &document["ended_by"]), (&json!("success"), &json!("signal")));
    assert_eq!(place.read("roles/server/marker"), "stopped\n");
    place.is_clean();
}

/// Section 2.2: after its duration a role is stopped, and that is success.
#[test]
fn a_duration_ends_a_service_and_a_task_well() {
    let place = Place::new(&format!(
        "  server: {}\n",
        SERVER.replace("kind: service", "kind: service, duration_seconds: 1")
    ));
    let document = place.json(&[], 0);
    assert_eq!((&document["status"], &document["ended_by"]), (&json!("success"), &json!("duration")));
    assert_eq!(place.role("server")["stop"]["reason"], "duration");
    place.is_clean();
    let place = Place::new("  t: {command: [sleep, '60'], duration_seconds: 1}\n");
    let document = place.json(&[], 0);
    assert_eq!((&document["status"], &document["ended_by"]), (&json!("success"), &json!("tasks")));
    place.is_clean();
}

/// Section 4.1: what was asked for and not done is no phase that was not asked for.
#[test]
fn what_a_stopped_run_was_to_analyse_is_cancelled() {
    let place = Place::of(
        "api_version: v1\nrun_id: r\npost_run: {analyze: true}\nroles:\n  one: {command: [sleep, '60']}\n",
    );
    let running = place.start(&[]);
    place.wait_for_event("role_started", "one");
    running.signal(Signal::INT);
    running.end().exits(130);
    assert_eq!(place.phases()[6..], ["analyze:cancelled", "diff:skipped"]);
    place.is_clean();
}

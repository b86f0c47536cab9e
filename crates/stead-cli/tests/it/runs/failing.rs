//! Runs that fail: what is said, and what is left.

use std::time::{Duration, Instant};

use serde_json::json;

use super::place::{Place, SERVER};

/// Returns a place with `roles`, in which `WAIT_FOR go` waits until the test has written the file `go`.
fn waiting(roles: &str) -> Place {
    let place = Place::new(roles);
    let mut manifest = place.lab.read("m.yaml");
    for name in ["go", "end"] {
        let wait = format!("until [ -e {} ]; do sleep 0.05; done", place.lab.path(name).display());
        manifest = manifest.replace(&format!("WAIT_FOR {name}"), &wait);
    }
    place.lab.write("m.yaml", manifest);
    place
}

/// Case 12: the task's exit code is told, the service is stopped, both have logs and metadata.
#[test]
fn a_task_that_fails_ends_the_run_in_order() {
    let place = Place::new(&format!(
        "  server: {SERVER}\n  client: {{needs: [server], command: [sh, -c, 'echo tried; echo reason >&2; exit 42']}}\n"
    ));
    let ended = place.run(&[]).exits(1).says("client ended with exit code 42").says("reason");
    assert!(ended.stdout.contains("Status: failed\nBundle: runs/r\n"), "{}", ended.stdout);
    let meta = place.meta();
    assert_eq!((&meta["failed_phase"], &meta["ended_by"]), (&json!("client_done"), &json!("failure")));
    assert!(meta["error"].as_str().unwrap().starts_with("client ended with exit code 42\n"), "{meta}");
    assert_eq!(
        (&place.role("client")["status"], &place.role("client")["exit_code"]),
        (&json!("failed"), &json!(42))
    );
    assert_eq!(place.read("roles/server/marker"), "stopped\n");
    assert_eq!(place.read("roles/client/stdout.log"), "tried\n");
    place.is_clean();
}

/// Case 13: not ready in time, and gone before it was ready.
#[test]
fn a_service_that_does_not_become_ready_fails_its_phase() {
    let place = Place::new(
        "  server: {kind: service, command: [sleep, '60'], ready: {method: structured_stdout, timeout_seconds: 2}}
  client: {needs: [server], command: ['true']}
",
    );
    let began = Instant::now();
    place.run(&[]).exits(1);
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(2), "{took:?}");
    assert_eq!(place.meta()["failed_phase"], "server_ready");
    assert_eq!(
        (&place.role("client")["status"], &place.role("client")["pid"]),
        (&json!("not_started"), &json!(null))
    );
    assert_eq!(place.phases()[3..6], ["server_ready:failed", "client_start:not_run", "client_done:not_run"]);
    place.is_clean();

    let place = Place::new(
        "  server: {kind: service, command: [sh, -c, 'echo no luck >&2; exit 3'], ready: {method: structured_stdout, timeout_seconds: 30}}\n",
    );
    let began = Instant::now();
    let ended = place.run(&[]).exits(1).says("exit code 3").says("no luck");
    assert!(began.elapsed() < Duration::from_secs(29), "{ended:?}");
    assert_eq!(place.meta()["failed_phase"], "server_ready");
    place.is_clean();
}

/// Section 2.2: a service that ends while a task needs it fails the run at once, unless it may.
#[test]
fn a_service_that_ends_while_it_is_needed_fails_the_run() {
    let place = waiting(
        "  server: {kind: service, command: [sh, -c, 'WAIT_FOR go; exit 7']}\n  client: {needs: [server], command: [sleep, '60']}\n",
    );
    let running = place.start(&[]);
    place.wait_for_phase("client_done");
    place.lab.write("go", "");
    running.end().exits(1).says("service server ended by itself while it was needed: exit code 7");
    assert_eq!(place.meta()["failed_phase"], "client_done");
    assert_eq!(place.role("client")["status"], "cancelled");
    place.is_clean();
    let place = waiting(
        "  server: {kind: service, may_exit: true, command: [sh, -c, 'WAIT_FOR go; exit 7']}\n  client: {needs: [server], command: [sh, -c, 'WAIT_FOR end']}\n",
    );
    let running = place.start(&[]);
    place.wait_for_phase("client_done");
    place.lab.write("go", "");
    place.wait_for_event("role_exited", "server");
    place.lab.write("end", "");
    running.end().exits(0);
    place.is_clean();
}

#[test]
fn a_failure_that_is_allowed_is_a_warning() {
    let place = Place::new(
        "  one: {command: [sh, -c, 'exit 5'], allow_failure: true}\n  two: {needs: [one], command: ['true']}\n",
    );
    let document = place.json(&[], 0);
    assert_eq!(document["warnings"][0]["code"], "run/role-failed-allowed");
    assert_eq!(document["warnings"][0]["role"], "one");
    assert_eq!(
        (&document["roles"]["one"]["status"], &document["roles"]["two"]["status"]),
        (&json!("failed"), &json!("success"))
    );
    place.is_clean();
}

/// Section 2.2: a program that is not there fails in `stage`, naming program, agent and PATH.
#[test]
fn a_program_that_is_not_there_fails_before_anything_starts() {
    let place = Place::new(&format!("  server: {SERVER}\n  client: {{command: [no-such-program]}}\n"));
    place.run(&[]).exits(1).says("no-such-program").says("local").says("PATH");
    assert_eq!(place.meta()["failed_phase"], "stage");
    assert!(place.told(&["role_started"]).is_empty());
    assert_eq!(place.role("server")["status"], "not_started");
    place.is_clean();
}

/// Case 16, and `timeout_seconds`.
#[test]
fn a_run_that_takes_too_long_is_stopped_with_all_its_processes() {
    let place = Place::new(&format!(
        "  server: {SERVER}\n  client: {{needs: [server], command: [sh, -c, 'sleep 60 & setsid sleep 60 & wait']}}\n"
    ));
    let began = Instant::now();
    let document = place.json(&["--timeout", "8s"], 8);
    assert!(began.elapsed() < Duration::from_secs(55), "{:?}", began.elapsed());
    assert_eq!((&document["status"], &document["ended_by"]), (&json!("timeout"), &json!("timeout")));
    assert_eq!(place.role("client")["status"], "timeout");
    place.is_clean();

    let place = Place::new("  client: {command: [sleep, '60'], timeout_seconds: 1}\n");
    let document = place.json(&[], 8);
    assert_eq!((&document["status"], &document["failed_phase"]), (&json!("timeout"), &json!("client_done")));
    place.is_clean();
}

/// Section 4.5: a role that runs too long is told with what it said last.
#[test]
fn a_role_that_runs_too_long_is_told_with_its_last_lines() {
    let place = Place::new("  one: {command: [sh, -c, 'echo why >&2; sleep 60'], timeout_seconds: 3}\n");
    place.run(&[]).exits(8);
    assert_eq!(place.meta()["error"], "one still ran after its timeout of 3 s\n  why");
    place.is_clean();
}

/// Section 4.1: the phase of the role that failed is blamed; those of others are stopped.
#[test]
fn the_phase_of_the_role_that_failed_is_blamed() {
    let place = waiting(
        "  a: {command: [sleep, '60']}\n  b: {command: [sh, -c, 'WAIT_FOR go; exit 42']}\n  c: {command: [sleep, '60']}\n",
    );
    let running = place.start(&[]);
    for phase in ["a_done", "b_done", "c_done"] {
        place.wait_for_phase(phase);
    }
    place.lab.write("go", "");
    running.end().exits(1);
    assert_eq!(place.meta()["failed_phase"], "b_done");
    let phases = place.phases();
    let status = |name: &str| phases.iter().find(|phase| phase.starts_with(name)).unwrap().clone();
    assert_eq!(
        ["a_done", "b_done", "c_done"].map(status),
        ["a_done:cancelled", "b_done:failed", "c_done:cancelled"]
    );
    let place = waiting(&format!(
        "  s: {{kind: service, command: [sh, -c, 'WAIT_FOR go; exit 7']}}\n  c1: {task}\n  c2: {task}\n",
        task = "{needs: [s], command: [sleep, '60']}"
    ));
    let running = place.start(&[]);
    for phase in ["c1_done", "c2_done"] {
        place.wait_for_phase(phase);
    }
    place.lab.write("go", "");
    running.end().exits(1);
    assert_eq!(place.meta()["failed_phase"], "c1_done");
    assert!(place.phases().contains(&"c2_done:cancelled".to_owned()), "{:?}", place.phases());
    place.is_clean();
}

/// Section 2.2: a failure that is allowed is told once.
#[test]
fn an_allowed_failure_is_told_once() {
    let place = waiting(
        "  s: {kind: service, allow_failure: true, command: [sh, -c, 'exit 3'], ready: {method: structured_stdout, timeout_seconds: 20}}\n  t: {command: [sh, -c, 'WAIT_FOR go']}\n",
    );
    let running = place.start(&[]);
    place.wait_for_event("role_exited", "s");
    place.lab.write("go", "");
    running.end().exits(0);
    assert_eq!(place.warnings(), ["run/role-failed-allowed"]);
}

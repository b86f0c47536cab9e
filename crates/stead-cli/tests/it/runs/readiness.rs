//! Case 14: every method of readiness works, and fails on time.

use std::time::{Duration, Instant};

use stead_testkit::sshd::free_port;

use super::place::Place;

fn service(script: &str, ready: &str) -> Place {
    Place::new(&format!(
        "  s: {{kind: service, command: [sh, -c, \"{script}\"], ready: {{{ready}}}}}\n  t: {{needs: [s], command: [sh, -c, 'echo \"$1\"', x, '{{{{ roles.s.ready.addr | default(\"none\") }}}}']}}\n"
    ))
}

#[track_caller]
fn works(script: &str, ready: &str, by: &str) -> Place {
    let place = service(script, ready);
    place.run(&[]).exits(0);
    assert_eq!(place.role("s")["ready"]["by"], by);
    place.is_clean();
    place
}

#[track_caller]
fn fails(ready: &str) {
    let place = service("sleep 60", &format!("{ready}, timeout_seconds: 1"));
    let began = Instant::now();
    place.run(&[]).exits(1);
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert_eq!(place.meta()["failed_phase"], "s_ready");
    place.is_clean();
}

const LISTEN: &str = "exec python3 -m http.server --bind 127.0.0.1 PORT";

#[test]
fn a_line_that_matches_makes_a_service_ready() {
    let place = works(
        "echo listening on a:7; exec sleep 60",
        "method: regex, pattern: 'listening on (?P<addr>\\S+)'",
        "regex",
    );
    assert_eq!(place.read("roles/t/stdout.log"), "a:7\n");
    fails("method: regex, pattern: never");
}

#[test]
fn a_file_makes_a_service_ready() {
    works("sleep 0.2; touch up; exec sleep 60", "method: file, path: up", "file");
    fails("method: file, path: up");
}

#[test]
fn a_command_makes_a_service_ready() {
    works("sleep 0.2; touch up; exec sleep 60", "method: command, command: [test, -e, up]", "command");
    fails("method: command, command: ['false']");
}

#[test]
fn an_answer_makes_a_service_ready() {
    let port = free_port().to_string();
    works(&LISTEN.replace("PORT", &port), &format!("method: http, url: 'http://127.0.0.1:{port}/'"), "http");
    fails(&format!("method: http, url: 'http://127.0.0.1:{port}/'"));
}

#[test]
fn a_connection_makes_a_service_ready_from_agent_and_driver() {
    let port = free_port().to_string();
    works(&LISTEN.replace("PORT", &port), &format!("method: tcp_connect, port: {port}"), "tcp_connect");
    let port = free_port().to_string();
    works(
        &LISTEN.replace("PORT", &port),
        &format!("method: tcp_connect, port: {port}, from: driver"),
        "tcp_connect",
    );
    fails(&format!("method: tcp_connect, port: {port}"));
}

/// Without any event the fallback connects, on a port that is not the default one.
#[test]
fn a_service_that_says_nothing_is_ready_by_its_port() {
    let port = free_port().to_string();
    works(
        &LISTEN.replace("PORT", &port),
        &format!("method: structured_stdout, port: {port}, fallback_after_seconds: 1"),
        "tcp_connect",
    );
    fails("method: structured_stdout");
}

/// Section 4.2: what already answers before the start is not this role.
#[test]
fn an_address_that_is_taken_fails_the_start() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    for from in ["agent", "driver"] {
        let place = service("sleep 60", &format!("method: tcp_connect, port: {port}, from: {from}"));
        place.run(&[]).exits(1).says("already accepts");
        assert_eq!(place.meta()["failed_phase"], "s_start");
        place.is_clean();
    }
}

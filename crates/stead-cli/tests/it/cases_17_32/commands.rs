//! What a command counts as.

use std::io::{BufRead as _, BufReader, Write as _};

use serde_json::json;

use super::lab::{Lab, statuses, task};

const PLAN: &str = r#"api_version: v1
name: commands
tasks:
  - {name: plain, shell: "echo x >> plain"}
  - {name: argv, exec: [sh, -c, "echo x >> argv"]}
  - {name: creates, shell: "echo x >> made", params: {creates: made}}
  - {name: unless-true, shell: "echo x >> never", params: {unless: "true"}}
  - {name: unless-made, shell: "echo x >> once", params: {unless: "test -e once"}}
  - {name: ok-exit, shell: "exit 3", params: {ok_exit: [0, 3]}}
  - {name: never-failed, shell: "exit 9", failed_when: "false"}
  - {name: never-changed, shell: "true", changed_when: "false"}
  - {name: says-changed, shell: "echo changed", changed_when: "result.stdout == 'changed\n'"}
"#;

/// Case 17: a command is changed each time, unless it says when there is nothing to do.
#[test]
fn commands_are_changed_unless_they_say_otherwise() {
    let lab = Lab::new(PLAN);
    let first = lab.plan_report(&[], 0);
    assert_eq!(
        statuses(&first),
        [
            "plain:changed",
            "argv:changed",
            "creates:changed",
            "unless-true:unchanged",
            "unless-made:changed",
            "ok-exit:changed",
            "never-failed:changed",
            "never-changed:unchanged",
            "says-changed:changed",
        ]
    );
    let second = lab.plan_report(&[], 0);
    for (name, status) in [
        ("plain", "changed"),
        ("argv", "changed"),
        ("creates", "unchanged"),
        ("unless-true", "unchanged"),
        ("unless-made", "unchanged"),
        ("ok-exit", "changed"),
    ] {
        assert_eq!(task(&second, name)["status"], status, "{name}");
        assert_eq!(task(&second, name)["changed"], status == "changed", "{name}");
    }
    let reason = |name: &str| task(&second, name)["hosts"][0]["reason"].as_str().unwrap().to_owned();
    assert!(reason("creates").contains("made"), "{}", reason("creates"));
    assert!(reason("unless-true").contains("true"), "{}", reason("unless-true"));
    assert_eq!(
        (lab.read("plain"), lab.read("made"), lab.read("once")),
        ("x\nx\n".into(), "x\n".into(), "x\n".into())
    );
    assert_eq!(lab.read("never"), "");
    assert_eq!(task(&second, "ok-exit")["data"]["exit_code"], 3);
    assert_eq!(task(&second, "never-failed")["data"]["exit_code"], 9);
}

/// Case 17: a failed command counts as changed too; `failed_when` replaces the look at the exit code.
#[test]
fn a_failed_command_is_changed_and_failed_when_decides_before_changed_when() {
    let lab = Lab::new(
        r#"api_version: v1
name: failing
on_error: continue
tasks:
  - {name: exits, shell: "exit 3"}
  - {name: killed, shell: "kill -9 $$"}
  - {name: judged, shell: "echo broken", failed_when: "'broken' in result.stdout"}
  - {name: always, op: assert, params: {that: ["true"]}, failed_when: true}
  - {name: both, shell: "exit 3", failed_when: "result.exit_code == 3", changed_when: "false"}
"#,
    );
    let report = lab.plan_report(&[], 1);
    for name in ["exits", "killed", "judged", "always", "both"] {
        assert_eq!(task(&report, name)["status"], "failed", "{name}");
    }
    assert!(task(&report, "exits")["error"].as_str().unwrap().contains("exit code 3"));
    assert_eq!(
        (&task(&report, "exits")["class"], &task(&report, "killed")["class"]),
        (&json!("exit"), &json!("exit"))
    );
    // What `failed_when` says itself is the operation's failure; one it only confirms keeps its class.
    assert_eq!(task(&report, "judged")["class"], "operation");
    assert_eq!(task(&report, "always")["class"], "operation");
    assert_eq!(task(&report, "both")["class"], "exit");
    assert_eq!(task(&report, "exits")["changed"], true);
    assert_eq!(task(&report, "killed")["changed"], true);
    assert_eq!(task(&report, "both")["changed"], false);
    assert_eq!(report["errors"].as_array().unwrap().len(), 5);
}

/// Section 8: what commands are told, and what they are not: stdin is empty, variables of secrets are not inherited.
#[test]
fn commands_know_their_run_task_host_and_attempt_and_no_secret_variable() {
    let lab = Lab::new(
        r#"api_version: v1
name: told
secrets: {key: {env: API_KEY}}
tasks:
  - name: env
    retry: 1
    shell: |
      test "$STEAD_ATTEMPT" = 2 || exit 1
      printf '%s %s %s [%s] [%s] [%s]' "$STEAD_RUN_ID" "$STEAD_TASK" "$STEAD_HOST" "$(cat)" "$API_KEY" "$OTHER"
"#,
    );
    let mut command = lab.stead(["plan", "run", "p.yaml", "--run-id", "r1", "--json"]);
    let ended = command.env("API_KEY", "hunter22").env("OTHER", "kept").output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(task(&report, "env")["data"]["stdout"], json!("r1 env local [] [] [kept]"));
    assert_eq!(task(&report, "env")["attempts"], 2);
}

/// Section 6: a limit that leaves no time is refused, wherever it stands.
#[test]
fn a_timeout_of_nothing_is_refused() {
    let lab = Lab::new(
        "api_version: v1\nname: t\ntimeout: 0s\nfinally_timeout: 0ms\ntasks:\n  - {name: a, timeout: 0s, exec: ['true']}\n",
    );
    let said = lab.plan(&["--json"]).exits(3).document();
    let lines: Vec<_> =
        said["diagnostics"].as_array().unwrap().iter().map(|problem| problem["line"].clone()).collect();
    assert_eq!(lines, [json!(3), json!(4), json!(6)], "{said}");
    lab.write_plan("api_version: v1\nname: t\ntasks:\n  - {name: a, exec: ['true']}\n");
    lab.plan(&["--timeout", "0s"]).exits(2).says("--timeout");
    assert!(!lab.path("state").exists());
}

/// Reach section 8: a request counts as a change, unless its own condition says otherwise, in every part of a sequence.
#[test]
fn a_request_says_when_it_changed_something() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let lab = Lab::new(&format!(
        r#"api_version: v1
name: requests
tasks:
  - {{name: posted, op: http.request, params: {{url: "{url}", method: POST}}}}
  - {{name: same, op: http.request, params: {{url: "{url}", method: POST, changed_when: "result.data.status == 201"}}}}
  - {{name: never, op: http.request, params: {{url: "{url}", method: POST, changed_when: false}}}}
  - name: parts
    sequence:
      - {{name: first, op: http.request, params: {{url: "{url}", method: PUT, changed_when: "false"}}}}
      - {{name: second, op: http.request, params: {{url: "{url}", method: PUT, changed_when: "result.data.body == 'ok'"}}}}
"#
    ));
    let server = std::thread::spawn(move || {
        for _ in 0..5 {
            let (stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(&stream).lines();
            while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
            (&stream)
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
                .unwrap();
        }
    });
    let report = lab.plan_report(&[], 0);
    server.join().unwrap();
    assert_eq!(statuses(&report), ["posted:changed", "same:unchanged", "never:unchanged", "parts:changed"]);
    lab.write_plan(
        "api_version: v1\nname: bad\ntasks:\n  - {name: a, op: http.request, params: {url: \"http://a/\", changed_when: \"no.such == 1\"}}\n",
    );
    lab.run(["plan", "run", "p.yaml"]).exits(3).says("p.yaml:4");
}

/// Reach sections 7 and 8: what a plan reads of an operation is there in every run, also where there was nothing to do.
#[test]
fn the_result_of_what_is_unchanged_can_be_read() {
    let lab = Lab::new(
        r#"api_version: v1
name: results
tasks:
  - {name: made, op: file.present, params: {path: "@/made", content: "x"}}
  - {name: used, depends_on: [made], exec: [echo, "{{ results.made.data.path }}"]}
"#,
    );
    for status in ["made:changed", "made:unchanged"] {
        let report = lab.plan_report(&[], 0);
        assert_eq!(statuses(&report), [status, "used:changed"]);
        let path = format!("{}\n", lab.path("made").display());
        assert_eq!(task(&report, "used")["data"]["stdout"], path.as_str());
    }
}

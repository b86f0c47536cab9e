//! `stead bundle report` and `list` on whatever a run left.

use std::fs;

use serde_json::Value;
use stead_testkit::captures::{golden_a, golden_b};

use super::fixture::{Role, json_of, run, write_run};

/// Case 33: a failed run, with the last words of the role that failed.
#[test]
fn a_failed_run_is_told_on_one_page() {
    let dir = tempfile::tempdir().unwrap();
    let stderr: String = (1..=30).map(|line| format!("line {line}\n")).collect();
    let client = Role { exit_code: Some(42), status: "failed", stderr, ..Role::client() };
    let roles = [Role::server().with("server.pcap", golden_a()), client.with("client.pcap", golden_b())];
    let bundle = write_run(dir.path(), "r1", "failed", &roles);
    let (code, text, _) = run(dir.path(), &["bundle", "report", "./r1", "--analyze"]);
    assert_eq!(code, 0);
    insta::assert_snapshot!("report_of_a_failed_run", text);
    let (_, page, _) = run(dir.path(), &["bundle", "report", "./r1", "--analyze", "--format", "markdown"]);
    insta::assert_snapshot!("report_as_a_page", page);
    assert!(!bundle.join("analysis").exists(), "nothing is written");

    let report = json_of(dir.path(), &["bundle", "report", "./r1", "--json"]);
    assert_eq!((&report["analysis"], &report["drops"]), (&Value::Null, &Value::Null));
    let tail = report["roles"]["client"]["stderr_tail"].as_array().unwrap();
    assert_eq!((tail.len(), &tail[0], &tail[19]), (20, &"line 11".into(), &"line 30".into()));
    assert_eq!(report["roles"]["server"]["stderr_tail"], serde_json::json!([]));

    // The same from an archive, and with what an analysis recorded.
    assert_eq!(run(dir.path(), &["bundle", "export", "./r1", "-o", "r1.tar.zst"]).0, 0);
    let (_, of_archive, _) = run(dir.path(), &["bundle", "report", "r1.tar.zst", "--analyze", "--jobs", "1"]);
    assert_eq!(of_archive, text);
    let afresh = json_of(dir.path(), &["bundle", "report", "r1.tar.zst", "--analyze", "--json"]);
    assert_eq!(afresh["drops"], "significant");
    fs::create_dir(bundle.join("analysis")).unwrap();
    fs::write(bundle.join("analysis/summary.json"), afresh["analysis"].to_string()).unwrap();
    stead_bundle::seal(&bundle).unwrap();
    let recorded = json_of(dir.path(), &["bundle", "report", "./r1", "--json"]);
    assert_eq!(recorded["analysis"], afresh["analysis"]);
    assert_eq!(run(dir.path(), &["bundle", "verify", "./r1"]).0, 0);
}

/// Case 33: a run of servers alone, and one whose driver was lost.
#[test]
fn any_set_of_roles_in_any_state_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    write_run(&runs, "only-server", "success", &[Role::server()]);
    let lost = write_run(
        &runs,
        "lost",
        "running",
        &[Role::server(), Role { status: "not_started", exit_code: None, ..Role::client() }],
    );
    for name in ["hashes.txt", "report.json", "roles/client/role_meta.json"] {
        fs::remove_file(lost.join(name)).unwrap();
    }
    for name in ["only-server", "lost"] {
        let (code, text, stderr) = run(dir.path(), &["bundle", "report", name]);
        assert_eq!(code, 0, "{stderr}");
        assert!(text.contains("server  service  local  success  0"), "{text}");
    }
    let listed = json_of(dir.path(), &["bundle", "list", "--json"]);
    assert_eq!(listed.as_array().unwrap().len(), 2);
    assert_eq!(run(dir.path(), &["bundle", "list", "--status", "running"]).1.lines().count(), 2);
}

#[test]
fn captures_that_are_none_exit_3() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("text.pcap"), "this is text, not packets").unwrap();
    fs::write(dir.path().join("empty.pcap"), "").unwrap();
    let (code, _, stderr) = run(dir.path(), &["bundle", "report", "text.pcap"]);
    assert_eq!(code, 3);
    assert!(stderr.contains("is not a capture"), "{stderr}");
    let empty = json_of(dir.path(), &["bundle", "report", "empty.pcap", "--json"]);
    assert_eq!(empty["capture"]["packets"], 0);
    let roles = [Role::client().with("client.pcap", "no packets in here")];
    write_run(dir.path(), "r1", "success", &roles);
    assert_eq!(run(dir.path(), &["bundle", "report", "./r1"]).0, 0);
    assert_eq!(run(dir.path(), &["bundle", "report", "./r1", "--analyze"]).0, 3);
    assert_eq!(run(dir.path(), &["bundle", "report", "./r1", "--format", "pdf"]).0, 2);
    assert_eq!(run(dir.path(), &["bundle", "report", "./r1", "--port", "0"]).0, 2);
}

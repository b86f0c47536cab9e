//! `stead bundle` and `stead schema` through the built binary.

use std::path::Path;
use std::process::Output;

use crate::process::stead;

fn run(dir: &Path, args: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = stead(dir).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// Writes a small sealed bundle of a plan run below `dir`.
fn write_bundle(dir: &Path, id: &str, status: &str) {
    let bundle = dir.join(id);
    std::fs::create_dir_all(&bundle).unwrap();
    let meta = serde_json::json!({
        "schema": 1, "kind": "plan", "run_id": id, "status": status, "exit_code": 0,
        "started_at": format!("2026-01-02T03:04:0{}.000000Z", id.len() % 10),
        "finished_at": "2026-01-02T03:05:05.000000Z", "duration_seconds": 61.5, "ended_by": "tasks",
        "driver_host": "here", "plan_hash": "0".repeat(64), "warnings": [], "plan": "web", "source": null,
    });
    std::fs::write(bundle.join("run_meta.json"), serde_json::to_vec_pretty(&meta).unwrap()).unwrap();
    for name in ["versions.json", "plan.json", "report.json"] {
        std::fs::write(bundle.join(name), "{}").unwrap();
    }
    std::fs::write(bundle.join("events.jsonl"), "").unwrap();
    stead_bundle::seal(&bundle).unwrap();
}

#[test]
fn list_shows_runs_newest_first_and_filters() {
    let dir = tempfile::tempdir().unwrap();
    let (code, stdout, stderr) = run(dir.path(), &["bundle", "list"]);
    assert_eq!((code, stdout.as_str()), (0, ""));
    assert!(stderr.starts_with("no bundles\nhint: every run leaves one"), "{stderr}");
    write_bundle(&dir.path().join(".stead/runs"), "r-1", "success");
    write_bundle(&dir.path().join("runs"), "r-two", "failed");
    let (code, stdout, _) = run(dir.path(), &["bundle", "list"]);
    assert_eq!(code, 0);
    insta::assert_snapshot!(stdout, @r"
    RUN    KIND  STATUS   STARTED               DURATION  SEALED
    r-two  plan  failed   2026-01-02T03:04:05Z  1m01s     yes
    r-1    plan  success  2026-01-02T03:04:03Z  1m01s     yes
    ");
    let (_, stdout, _) = run(dir.path(), &["bundle", "list", ".stead/runs", "--status", "failed", "--json"]);
    assert_eq!(stdout, "[]\n");
    let (_, stdout, _) = run(dir.path(), &["bundle", "list", "--limit", "1", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(listed[0]["run_id"], "r-two");
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert_eq!(run(dir.path(), &["bundle", "list", "nowhere"]).0, 3);
}

#[test]
fn verify_passes_a_whole_bundle_and_fails_a_changed_one() {
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join(".stead/runs");
    write_bundle(&runs, "r-1", "failed");
    let (code, stdout, _) = run(dir.path(), &["bundle", "verify", "last"]);
    assert_eq!(code, 0, "{stdout}");
    assert!(stdout.contains("valid, run failed"), "{stdout}");
    // What cannot be checked must not pass.
    let (code, stdout, _) = run(dir.path(), &["bundle", "verify", "r-1", "--require-signature", "--json"]);
    let document: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (code, &document["valid"], &document["errors"][0]["code"]),
        (4, &false.into(), &"unsigned".into())
    );
    std::fs::write(runs.join("r-1/report.json"), "{ }").unwrap();
    let (code, stdout, _) = run(dir.path(), &["bundle", "verify", ".stead/runs/r-1"]);
    assert_eq!(code, 4);
    assert!(stdout.contains("report.json") && stdout.contains("not valid"), "{stdout}");
}

#[test]
fn what_is_no_bundle_exits_3_with_one_document() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    std::fs::write(dir.path().join("file.zip"), "").unwrap();
    for path in ["empty", "missing", "file.zip", "./nowhere", "last"] {
        for command in ["verify", "info"] {
            let (code, stdout, stderr) = run(dir.path(), &["bundle", command, path, "--json"]);
            assert_eq!(code, 3, "{command} {path}: {stderr}");
            let document: serde_json::Value = serde_json::from_str(&stdout).unwrap();
            assert_eq!(document["exit_code"], 3);
            assert!(stderr.starts_with("error["), "{stderr}");
        }
    }
}

#[test]
fn info_shows_what_a_run_was() {
    let dir = tempfile::tempdir().unwrap();
    write_bundle(&dir.path().join("state/runs"), "r-1", "success");
    let (code, stdout, _) = run(dir.path(), &["--state-dir", "state", "bundle", "info", "r-1"]);
    assert_eq!(code, 0);
    assert!(stdout.contains("status:           success\n"), "{stdout}");
    let (_, stdout, _) = run(dir.path(), &["bundle", "info", "r-1", "--json", "--state-dir", "state"]);
    let document: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(document["run_meta"]["plan"], "web");
    assert_eq!(document["sealed"], true);
}

#[test]
fn schemas_are_json_schemas() {
    let dir = tempfile::tempdir().unwrap();
    for what in ["plan", "inventory", "steps"] {
        let (code, stdout, _) = run(dir.path(), &["schema", what]);
        assert_eq!(code, 0);
        let schema: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        assert!(schema["$schema"].as_str().unwrap().contains("json-schema.org"), "{what}");
        assert!(schema["properties"]["api_version"].is_object(), "{what}");
    }
}

#[test]
fn operations_are_described_and_the_nearest_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (_, all, _) = run(dir.path(), &["schema", "operation"]);
    let all: Vec<serde_json::Value> = serde_json::from_str(&all).unwrap();
    let (_, one, _) = run(dir.path(), &["schema", "operation", "command.exec"]);
    let one: serde_json::Value = serde_json::from_str(&one).unwrap();
    assert!(all.contains(&one));
    assert!(one["params"]["properties"]["args"].is_object(), "{one}");
    let (code, stdout, stderr) = run(dir.path(), &["schema", "operation", "comand.exec"]);
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(stderr.contains("did you mean `command.exec`?"), "{stderr}");
}

//! Export, and archives in place of directories.

use std::fs;
use std::process::Command;

use super::fixture::{Role, json_of, run, write_run};

/// Cases 25, 26, 28: a whole bundle, exported twice, verified and shown as archives, then damaged.
#[test]
fn a_bundle_travels_as_an_archive() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = write_run(&dir.path().join("runs"), "r1", "failed", &[Role::server(), Role::client()]);
    let found = json_of(dir.path(), &["bundle", "verify", "r1", "--json"]);
    assert_eq!((&found["warnings"], &found["status"]), (&serde_json::json!([]), &"failed".into()));

    let (code, stdout, _) = run(dir.path(), &["bundle", "export", "last"]);
    assert_eq!(code, 0, "{stdout}");
    assert!(stdout.starts_with("r1.zip: 14 files, "), "{stdout}");
    let (code, _, stderr) = run(dir.path(), &["bundle", "export", "r1", "-o", "r1.zip"]);
    assert_eq!(code, 3);
    assert!(stderr.contains("exists already") && stderr.contains("--force"), "{stderr}");
    assert_eq!(run(dir.path(), &["bundle", "export", "r1", "-o", "r1.zip", "--force"]).0, 0);
    assert_eq!(run(dir.path(), &["bundle", "export", "r1", "-o", "r1.tar.zst"]).0, 0);
    // The format wins over the name.
    assert_eq!(run(dir.path(), &["bundle", "export", "r1", "-o", "odd.zip", "--format", "tar.zst"]).0, 0);
    assert_eq!(
        fs::read(dir.path().join("odd.zip")).unwrap(),
        fs::read(dir.path().join("r1.tar.zst")).unwrap()
    );
    let passes = |words: &[&str]| {
        Command::new(words[0]).args(&words[1..]).current_dir(dir.path()).output().unwrap().status.success()
    };
    assert!(passes(&["unzip", "-tqq", "r1.zip"]) && passes(&["tar", "--zstd", "-tf", "r1.tar.zst"]));

    for archive in ["r1.zip", "r1.tar.zst", "odd.zip"] {
        assert_eq!(json_of(dir.path(), &["bundle", "verify", archive, "--json"]), found, "{archive}");
        let info = json_of(dir.path(), &["bundle", "info", archive, "--json"]);
        assert_eq!((&info["run_id"], &info["files"]), (&"r1".into(), &14.into()), "{archive}");
        assert_eq!(info["roles"]["client"]["argv"][0], "client");
    }
    let mut bytes = fs::read(dir.path().join("r1.tar.zst")).unwrap();
    bytes.truncate(bytes.len() - 10);
    fs::write(dir.path().join("cut.tar.zst"), bytes).unwrap();
    let (code, stdout, _) = run(dir.path(), &["bundle", "verify", "cut.tar.zst"]);
    assert_eq!(code, 4);
    assert!(stdout.contains("error[damaged-archive]"), "{stdout}");
    assert_eq!(run(dir.path(), &["bundle", "info", "cut.tar.zst"]).0, 3);

    fs::remove_file(bundle.join("hashes.txt")).unwrap();
    let (code, _, stderr) = run(dir.path(), &["bundle", "export", "r1", "-o", "x.zip"]);
    assert_eq!(code, 4, "{stderr}");
    assert!(!dir.path().join("x.zip").exists());
}

/// Case 25: changed, removed and added, each named; an empty capture is a warning only.
#[test]
fn every_change_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let roles = [Role::server(), Role::client().with("client.pcap", "").with("out.json", "{}")];
    let bundle = write_run(dir.path(), "r1", "success", &roles);
    let found = json_of(dir.path(), &["bundle", "verify", "./r1", "--json"]);
    assert_eq!((&found["valid"], &found["warnings"][0]["code"]), (&true.into(), &"empty-capture".into()));
    let mut bytes = fs::read(bundle.join("plan.json")).unwrap();
    bytes[0] ^= 1;
    fs::write(bundle.join("plan.json"), bytes).unwrap();
    fs::remove_file(bundle.join("roles/client/out.json")).unwrap();
    fs::write(bundle.join("added"), "").unwrap();
    let (code, stdout, _) = run(dir.path(), &["bundle", "verify", "./r1"]);
    assert_eq!(code, 4);
    for finding in ["hash-mismatch]: plan.json", "missing-file]: roles/client/out.json", "extra-file]: added"]
    {
        assert!(stdout.contains(finding), "{finding}: {stdout}");
    }
    let (code, stdout, _) = run(dir.path(), &["bundle", "verify", "./r1", "--allow-extra", "--json"]);
    let found: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(code, 4);
    assert_eq!(found["extra_files"], serde_json::json!(["added"]));
    let codes: Vec<_> = found["errors"].as_array().unwrap().iter().map(|error| &error["code"]).collect();
    assert_eq!(codes, ["hash-mismatch", "missing-file"]);
}

/// Case 26: a bundle of a plan is one like any other.
#[test]
fn a_bundle_of_a_plan_verifies_and_is_exported() {
    let dir = tempfile::tempdir().unwrap();
    let plan = "api_version: v1\nname: p\ntasks:\n  - name: hello\n    shell: echo hi\n";
    fs::write(dir.path().join("p.yaml"), plan).unwrap();
    let (code, _, stderr) = run(dir.path(), &["plan", "run", "p.yaml"]);
    assert_eq!(code, 0, "{stderr}");
    let found = json_of(dir.path(), &["bundle", "verify", "last", "--json"]);
    assert_eq!((&found["errors"], &found["warnings"]), (&serde_json::json!([]), &serde_json::json!([])));
    json_of(dir.path(), &["bundle", "info", "last", "--json"]);
    assert_eq!(run(dir.path(), &["bundle", "export", "last", "-o", "p.tar.zst"]).0, 0);
    assert_eq!(json_of(dir.path(), &["bundle", "verify", "p.tar.zst", "--json"]), found);
    let report = json_of(dir.path(), &["bundle", "report", "p.tar.zst", "--json"]);
    assert_eq!((&report["phases"][0]["name"], &report["kind"]), (&"hello".into(), &"plan".into()));
    let (code, shown, _) = run(dir.path(), &["bundle", "replay", "p.tar.zst", "--speed", "max"]);
    assert_eq!(code, 0);
    assert!(shown.contains("hello@local | hi\n"), "{shown}");
}

/// Section 5: a run that lives is neither verified nor exported.
#[test]
fn a_live_run_is_in_progress() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = write_run(dir.path(), "r1", "success", &[Role::client()]);
    let holder = stead_bundle::Holder::this_process(
        stead_model::RunId::parse("r1").unwrap(),
        stead_model::time::Timestamp::from_micros(1),
    );
    let lock = stead_bundle::FileLock::take(&bundle.join("lock"), &holder).unwrap();
    for words in [["bundle", "verify", "./r1"], ["bundle", "export", "./r1"]] {
        let (code, _, stderr) = run(dir.path(), &words);
        assert_eq!(code, 5, "{words:?}");
        assert!(stderr.contains("in progress"), "{stderr}");
    }
    drop(lock);
    assert_eq!(run(dir.path(), &["bundle", "verify", "./r1"]).0, 0);
}

//! Verification finds every kind of damage and names it.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use stead_bundle::{Verification, VerifyError, VerifyOptions, seal, verify};
use stead_model::ExitCode;

use crate::fixture::{create, sealed};

fn check(bundle: &Path) -> Verification {
    verify(bundle, &VerifyOptions::default()).unwrap()
}

fn codes(found: &Verification) -> Vec<(&str, &str)> {
    found.errors.iter().map(|error| (error.code, error.path.as_str())).collect()
}

#[test]
fn a_sealed_bundle_of_a_failed_run_is_valid() {
    let state = tempfile::tempdir().unwrap();
    let bundle = sealed(state.path(), "r1");
    let found = check(&bundle);
    assert_eq!(found.exit_code(), ExitCode::Success);
    let json = serde_json::to_value(&found).unwrap();
    let expected = json!({
        "valid": true, "sealed": true, "run_id": "r1", "status": "failed", "files_checked": 7, "hashes_verified": 7,
        "hash_mismatches": [], "missing_files": [], "extra_files": [], "errors": [], "warnings": [],
        "signature": {"present": false, "valid": null, "trusted": null, "fingerprint": null},
    });
    assert_eq!(json, expected);
}

#[test]
fn changed_removed_and_added_files_are_each_named_once() {
    let state = tempfile::tempdir().unwrap();
    let bundle = sealed(state.path(), "r1");
    let path = bundle.join("artifacts/out/result.json");
    fs::write(&path, "[2]").unwrap();
    fs::remove_file(bundle.join("plan.yaml")).unwrap();
    fs::remove_file(bundle.join("report.json")).unwrap();
    fs::write(bundle.join("more"), "").unwrap();
    let found = check(&bundle);
    assert_eq!(found.exit_code(), ExitCode::Verification);
    assert_eq!(found.hash_mismatches, ["artifacts/out/result.json"]);
    assert_eq!(found.missing_files, ["plan.yaml", "report.json"]);
    assert_eq!(found.extra_files, ["more"]);
    assert_eq!(found.errors.len(), 4, "{found:?}");

    let forgiving =
        verify(&bundle, &VerifyOptions { allow_extra: true, ..VerifyOptions::default() }).unwrap();
    assert_eq!((forgiving.errors.len(), forgiving.extra_files), (3, vec!["more".to_owned()]));
}

#[test]
fn an_unsealed_bundle_is_invalid_and_a_live_one_in_progress() {
    let state = tempfile::tempdir().unwrap();
    let run = create(state.path(), "r1");
    let path = run.path().to_owned();
    let error = verify(&path, &VerifyOptions::default()).unwrap_err();
    assert!(
        matches!(error, VerifyError::InProgress { .. }) && error.exit_code() == ExitCode::Locked,
        "{error}"
    );
    assert!(error.to_string().contains("in progress"), "{error}");
    drop(run);
    let found = check(&path);
    assert!(!found.sealed && !found.valid);
    assert!(codes(&found).contains(&("unsealed", "hashes.txt")), "{found:?}");
}

#[test]
fn what_is_no_bundle_is_said_so() {
    let dir = tempfile::tempdir().unwrap();
    for path in [dir.path().to_owned(), dir.path().join("nothing")] {
        let error = verify(&path, &VerifyOptions::default()).unwrap_err();
        assert_eq!(error.exit_code(), ExitCode::Invalid, "{error}");
    }
}

#[test]
fn bad_hashes_files_are_refused() {
    let state = tempfile::tempdir().unwrap();
    let bundle = sealed(state.path(), "r1");
    let good = fs::read_to_string(bundle.join("hashes.txt")).unwrap();
    let first = good.lines().next().unwrap();
    let zeros = "0".repeat(64);
    let twice = format!("{good}{first}\n");
    for (text, says) in [
        (format!("{good}{zeros}  ../x\n"), "leads out"),
        (format!("{good}{zeros}  /etc/passwd\n"), "leads out"),
        (twice, "listed twice"),
        (format!("{good}what\n"), "64 hex digits"),
        (format!("{good}\n"), "64 hex digits"),
        (format!("{good}{zeros}  lock\n"), "never listed"),
        (String::new(), "lists no file"),
    ] {
        fs::write(bundle.join("hashes.txt"), &text).unwrap();
        let found = check(&bundle);
        assert!(!found.valid && found.errors.iter().any(|e| e.message.contains(says)), "{says}: {found:?}");
    }
}

#[test]
fn links_metadata_and_names_are_checked() {
    let state = tempfile::tempdir().unwrap();
    let bundle = sealed(state.path(), "r1");
    std::os::unix::fs::symlink("plan.json", bundle.join("link")).unwrap();
    assert_eq!(codes(&check(&bundle)), [("not-a-file", "link")]);
    fs::remove_file(bundle.join("link")).unwrap();

    for name in ["lock", "hashes.txt"] {
        let kept = state.path().join("kept");
        fs::rename(bundle.join(name), &kept).unwrap();
        std::os::unix::fs::symlink(&kept, bundle.join(name)).unwrap();
        assert!(codes(&check(&bundle)).contains(&("not-a-file", name)), "{name}");
        fs::rename(&kept, bundle.join(name)).unwrap();
    }
    assert!(check(&bundle).valid);

    // A listed file that became a symlink to the same bytes is an error as well.
    fs::rename(bundle.join("plan.yaml"), state.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(state.path().join("elsewhere"), bundle.join("plan.yaml")).unwrap();
    assert_eq!(codes(&check(&bundle)), [("not-a-file", "plan.yaml")]);
    fs::remove_file(bundle.join("plan.yaml")).unwrap();

    let meta: Value = serde_json::from_slice(&fs::read(bundle.join("run_meta.json")).unwrap()).unwrap();
    for (meta, code) in [
        (json!([]), "bad-metadata"),
        (json!({"schema": 1, "kind": "plan", "status": "failed"}), "bad-metadata"),
        (json!({"schema": 1, "kind": "plan", "run_id": "r1"}), "bad-metadata"),
        (json!({"schema": 1, "kind": "odd", "run_id": "r1", "status": "failed"}), "bad-kind"),
    ] {
        fs::write(bundle.join("run_meta.json"), meta.to_string()).unwrap();
        seal(&bundle).unwrap();
        assert_eq!(codes(&check(&bundle)), [(code, "run_meta.json")], "{meta}");
    }
    fs::write(bundle.join("run_meta.json"), meta.to_string()).unwrap();
    seal(&bundle).unwrap();
    let moved = state.path().join("renamed");
    fs::rename(&bundle, &moved).unwrap();
    let found = check(&moved);
    assert!(found.valid && found.warnings[0].code == "other-name", "{found:?}");
}

#[test]
fn each_kind_has_its_required_files() {
    let state = tempfile::tempdir().unwrap();
    let bundle = sealed(state.path(), "r1");
    let write = |meta: Value| fs::write(bundle.join("run_meta.json"), meta.to_string()).unwrap();
    write(json!({"schema": 1, "kind": "run", "run_id": "r1", "status": "success"}));
    seal(&bundle).unwrap();
    assert_eq!(check(&bundle).missing_files, ["manifest.yaml", "manifest_resolved.yaml"]);

    // CIPDIP's form: no schema, `sha256:` before the digits.
    write(json!({"run_id": "r1", "status": "success"}));
    fs::write(bundle.join("manifest.yaml"), "x").unwrap();
    fs::remove_file(bundle.join("plan.json")).unwrap();
    seal(&bundle).unwrap();
    let hashes = fs::read_to_string(bundle.join("hashes.txt")).unwrap();
    let hashes: String = hashes.lines().map(|line| format!("sha256:{line}\n")).collect();
    fs::write(bundle.join("hashes.txt"), hashes).unwrap();
    let found = check(&bundle);
    assert!(found.valid, "{found:?}");
}

#[test]
fn files_that_roles_name_must_be_there_with_their_hash() {
    let state = tempfile::tempdir().unwrap();
    let bundle = sealed(state.path(), "r1");
    let role = bundle.join("roles/client");
    fs::create_dir_all(&role).unwrap();
    fs::write(role.join("out.json"), "{}").unwrap();
    let meta = json!({
        "pcap_files": ["gone.pcap"],
        "artifacts": [{"path": "out.json", "sha256": "0".repeat(64)}, {"path": "../../x", "sha256": ""}],
    });
    fs::write(role.join("role_meta.json"), meta.to_string()).unwrap();
    seal(&bundle).unwrap();
    let expected = [
        ("missing-file", "roles/client/gone.pcap"),
        ("hash-mismatch", "roles/client/out.json"),
        ("bad-metadata", "roles/client/role_meta.json"),
    ];
    assert_eq!(codes(&check(&bundle)), expected);
}

/// Section 5: which roles a run had is told by its phases, not by the directories that are left.
#[test]
fn roles_that_were_taken_out_are_missing() {
    let state = tempfile::tempdir().unwrap();
    let bundle = sealed(state.path(), "r1");
    let mut meta: serde_json::Value =
        serde_json::from_slice(&fs::read(bundle.join("run_meta.json")).unwrap()).unwrap();
    meta["kind"] = "run".into();
    meta["phases"] = json!([{"name": "client_start", "role": "client", "status": "done"}]);
    fs::write(bundle.join("run_meta.json"), meta.to_string()).unwrap();
    for name in ["manifest.yaml", "manifest_resolved.yaml"] {
        fs::write(bundle.join(name), "{}").unwrap();
    }
    seal(&bundle).unwrap();
    assert_eq!(codes(&check(&bundle)), [("missing-file", "roles/client/role_meta.json")]);

    let role = bundle.join("roles/client");
    fs::create_dir_all(&role).unwrap();
    let ran = json!({"status": "success", "started_at": "2026-01-01T00:00:00Z"});
    fs::write(role.join("role_meta.json"), ran.to_string()).unwrap();
    fs::write(role.join("stdout.log"), "").unwrap();
    seal(&bundle).unwrap();
    assert_eq!(codes(&check(&bundle)), [("missing-file", "roles/client/stderr.log")]);
    fs::write(role.join("stderr.log"), "").unwrap();
    seal(&bundle).unwrap();
    assert!(check(&bundle).valid, "{:?}", check(&bundle));
}

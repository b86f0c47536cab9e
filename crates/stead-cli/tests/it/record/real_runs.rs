//! Bundles that `stead run manifest` writes, from the run to the comparison of two of them.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use stead_testkit::captures::{golden_a, golden_b};
use stead_testkit::sshd::{KeyKind, make_key};

use super::fixture::{json_of, run};
use crate::process::stead;

/// Writes a manifest of a server, and of a client that leaves the capture `capture`.
fn write_manifest(dir: &Path, id: &str, capture: &str, more: &str) -> String {
    let name = format!("{id}.yaml");
    let text = format!(
        "api_version: v1\nrun_id: {id}\nroles:\n  server:\n    kind: service\n    \
         command: [sh, -c, 'echo ready; exec sleep 60']\n    ready: {{method: regex, pattern: ready}}\n  \
         client:\n    needs: [server]\n    files: [{{from: {capture}, to: given}}]\n    \
         command: [sh, -c, 'echo asked; echo oh >&2; cp given client.pcap']\n{more}"
    );
    fs::write(dir.join(&name), text).unwrap();
    name
}

/// Runs a manifest; workdirs are made below `dir` as everything else.
fn run_manifest(dir: &Path, words: &[&str]) -> (i32, String) {
    let mut command = stead(dir);
    command.args(["run", "manifest"]).args(words).env("XDG_CACHE_HOME", dir.join("cache"));
    let output = command.output().unwrap();
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

/// Cases 26, 27, 33: analysed, signed, verified, told and shown again.
#[test]
fn a_signed_run_with_a_capture_verifies_and_is_shown_again() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    make_key(&key, KeyKind::Ed25519);
    let public = fs::read_to_string(key.with_extension("pub")).unwrap();
    fs::write(dir.path().join("signers"), format!("ci {public}")).unwrap();
    fs::write(dir.path().join("a.pcap"), golden_a()).unwrap();
    let manifest = write_manifest(dir.path(), "r1", "a.pcap", "");
    let (code, stderr) = run_manifest(dir.path(), &[&manifest, "--sign", "key"]);
    assert_eq!(code, 0, "{stderr}");

    let words = ["bundle", "verify", "r1", "--require-signature", "--allowed-signers", "signers", "--json"];
    let found = json_of(dir.path(), &words);
    assert_eq!((&found["warnings"], &found["signature"]["trusted"]), (&serde_json::json!([]), &true.into()));
    let bundle = dir.path().join("runs/r1");
    let hashes = fs::read_to_string(bundle.join("hashes.txt")).unwrap();
    assert!(hashes.contains("  analysis/summary.json\n"), "{hashes}");
    let verified = Command::new("ssh-keygen")
        .args(["-Y", "verify", "-n", "stead-bundle", "-I", "ci", "-f", "signers", "-s"])
        .arg(bundle.join("hashes.txt.sig"))
        .current_dir(dir.path())
        .stdin(fs::File::open(bundle.join("hashes.txt")).unwrap())
        .output()
        .unwrap();
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    let checked =
        Command::new("sha256sum").args(["--quiet", "-c", "hashes.txt"]).current_dir(&bundle).status();
    assert!(checked.unwrap().success());

    let replay = || run(dir.path(), &["bundle", "replay", "last", "--speed", "max"]).1;
    let shown = replay();
    for line in ["server | ready\n", "client | asked\n", "client | oh\n", "server_stop"] {
        assert!(shown.contains(line), "{line:?} is missing in {shown}");
    }
    assert_eq!(shown, replay());
    let report = json_of(dir.path(), &["bundle", "report", "last", "--json"]);
    assert_eq!(report["analysis"]["roles"]["client"]["captures"][0]["packets"], 211);
    assert_eq!(report["phases"][0]["name"], "init");
    assert_eq!((&report["roles"]["client"]["exit_code"], &report["kind"]), (&0.into(), &"run".into()));
}

/// Cases 28, 31: an archive in place of the directory, compared with a baseline that is one.
#[test]
fn runs_that_leave_archives_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    for (name, capture) in [("a.pcap", golden_a()), ("b.pcap", golden_b())] {
        fs::write(dir.path().join(name), capture).unwrap();
    }
    let zip = "artifacts: {bundle_format: zip}\n";
    let base = write_manifest(dir.path(), "base", "a.pcap", zip);
    let (code, stderr) = run_manifest(dir.path(), &[&base]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(names(&dir.path().join("runs")), ["base.zip"]);
    assert_eq!(run(dir.path(), &["bundle", "verify", "base"]).0, 0);

    let gate = "artifacts: {bundle_format: tar.zst}\n\
                post_run: {diff_baseline: runs/base.zip, fail_on: [services_added]}\n";
    let new = write_manifest(dir.path(), "new", "b.pcap", gate);
    let (code, stderr) = run_manifest(dir.path(), &[&new]);
    assert_eq!(code, 4, "{stderr}");
    assert_eq!(names(&dir.path().join("runs")), ["base.zip", "new.tar.zst"]);
    let found = json_of(dir.path(), &["bundle", "verify", "last", "--json"]);
    assert_eq!((&found["run_id"], &found["status"]), (&"new".into(), &"failed".into()));
    let diff = json_of(dir.path(), &["diff", "run", "base", "new", "--json"]);
    assert_eq!((&diff["summary"]["diff_score"], &diff["role"]), (&50.into(), &Value::from("client")));
    let listed = json_of(dir.path(), &["bundle", "list", "--json"]);
    assert_eq!(listed.as_array().unwrap().len(), 2);
}

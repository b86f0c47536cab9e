//! Documents of secret values in files.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use serde_json::json;
use stead_model::base64;

use super::homelab::{Homelab, codes};

const DOCUMENT: &str = ".lab/runtime-inputs.yaml";
const SYNC: [&str; 2] = ["--only", "sync-runtime-inputs.sh"];

/// Case 18: lengths are checked before anything runs, and only while their gate holds.
#[test]
fn a_cookie_secret_of_the_wrong_length_is_refused() {
    let lab = Homelab::new();
    let with = |length: usize| {
        let text = lab.read("profiles/secrets.env");
        let lines = text.lines().filter(|line| !line.starts_with("OAUTH_COOKIE_SECRET="));
        let lines: String = lines.map(|line| format!("{line}\n")).collect();
        lab.write("profiles/secrets.env", format!("{lines}OAUTH_COOKIE_SECRET={}\n", "c".repeat(length)));
    };
    with(15);
    assert_eq!(codes(&lab.json(&SYNC, 3)).iter().filter(|code| *code == "value/rule").count(), 1);
    let refused = lab.run(&SYNC).exits(3);
    assert!(refused.stdout.starts_with("Plan: "), "the plan comes first: {}", refused.stdout);
    assert!(!refused.stderr.contains("ccccc"), "{}", refused.stderr);
    assert!(lab.log().is_empty() && !lab.path(".stead").exists() && !lab.path(".lab").exists());
    for length in [16, 24, 32] {
        with(length);
        lab.run(&SYNC).exits(0);
    }
    with(15);
    lab.run(&[SYNC[0], SYNC[1], "--set", "FEAT_OAUTH2_PROXY=false"]).exits(0);
}

/// Case 18: a fallback is a warning that names both keys; both have one value in the document.
#[test]
fn a_fallback_is_told_and_used() {
    let lab = Homelab::new();
    let ended = lab.run(&SYNC).exits(0);
    for part in ["CLICKSTACK_INGESTION_KEY", "CLICKSTACK_API_KEY", "set it after the first login"] {
        assert!(ended.stderr.contains(part), "{}", ended.stderr);
    }
    let document = lab.read(DOCUMENT);
    let value = |key: &str| {
        document.lines().find_map(|line| line.trim().strip_prefix(&format!("{key}: "))).unwrap().to_owned()
    };
    assert_eq!(value("CLICKSTACK_INGESTION_KEY"), value("CLICKSTACK_API_KEY"));
    assert_eq!(value("CLICKSTACK_API_KEY"), format!("\"{}\"", base64::encode(b"fake-clickstack-api-key")));
    assert!(document.starts_with("# managed by stead: inputs runtime\n"), "{document}");
    assert!(document.contains("app.kubernetes.io/managed-by: \"stead\""), "{document}");
}

/// Case 19: a second sync writes nothing.
#[test]
fn a_second_sync_writes_nothing() {
    let lab = Homelab::new();
    let make = || {
        let ended = lab.command("make", &["runtime-inputs-sync"]).output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        String::from_utf8(ended.stdout).unwrap()
    };
    assert!(make().contains("[changed] sync-runtime-inputs.sh"));
    let stat = || {
        let found = fs::metadata(lab.path(DOCUMENT)).unwrap();
        (found.ino(), found.mtime(), found.mtime_nsec(), found.mode() & 0o7777)
    };
    let before = stat();
    assert_eq!(before.3, 0o600);
    assert!(make().contains("[unchanged] sync-runtime-inputs.sh"));
    assert_eq!(stat(), before);
    assert_eq!(fs::metadata(lab.path(".lab")).unwrap().mode() & 0o7777, 0o700);
}

/// Section 9: drift is mended and told by key; a link is refused; a foreign file is not deleted.
#[test]
fn drift_is_mended_links_and_foreign_files_are_refused() {
    let lab = Homelab::new();
    lab.run(&SYNC).exits(0);
    fs::set_permissions(lab.path(DOCUMENT), fs::Permissions::from_mode(0o644)).unwrap();
    let mended = lab.json(&SYNC, 0);
    assert_eq!(
        mended["steps"]["inputs"]["runtime"],
        json!({"changed": true, "added": [], "updated": [], "removed": []})
    );
    assert_eq!(fs::metadata(lab.path(DOCUMENT)).unwrap().mode() & 0o7777, 0o600);
    lab.replace("profiles/secrets.env", "OIDC_CLIENT_ID=fake-client-id", "OIDC_CLIENT_ID=another-id");
    let updated = lab.json(&SYNC, 0);
    assert_eq!(updated["steps"]["inputs"]["runtime"]["updated"], json!(["OIDC_CLIENT_ID"]));
    fs::rename(lab.path(DOCUMENT), lab.path(".lab/elsewhere")).unwrap();
    symlink("elsewhere", lab.path(DOCUMENT)).unwrap();
    let refused = lab.json(&SYNC, 1);
    assert_eq!(refused["tasks"][0]["class"], "operation");
    assert!(refused["tasks"][0]["error"].as_str().unwrap().contains("symbolic link"));
    fs::remove_file(lab.path(DOCUMENT)).unwrap();

    lab.replace(
        "steps/cluster.yaml",
        "steps: [access, reconcile-stack,",
        "steps: [runtime-inputs, access, reconcile-stack,",
    );
    let delete = ["--only", "runtime-inputs", "--delete", "--confirm", "homelab"];
    assert_eq!(lab.json(&delete, 0)["tasks"][0]["status"], "unchanged");
    lab.write(DOCUMENT, "mine: true\n");
    assert!(lab.run(&delete).exits(1).stdout.contains("does not carry the mark of Stead"));
    assert_eq!(lab.read(DOCUMENT), "mine: true\n");
    lab.run(&SYNC).exits(0);
    let removed = lab.json(&delete, 0);
    assert_eq!(removed["steps"]["inputs"]["runtime"]["removed"].as_array().unwrap().len(), 5);
    assert!(!lab.path(DOCUMENT).exists());
}

/// Section 9: the other format of a file.
#[test]
fn an_env_file_holds_quoted_values() {
    let lab = Homelab::with(
        "api_version: v1\nlayers: [{file: s.env, secret: true}]\nvars: {A: {}, B: {}}\n\
         steps: {hand-over: {inputs: all}}\napply: [{steps: [hand-over]}]\n\
         inputs: {all: {sink: {kind: file, path: out/all.env, format: env}, keys: {A: {}, KEY: {from: B}}}}\n",
    );
    lab.write("s.env", "A=\"it's \\$1\"\n");
    lab.stead(&["steps", "run"]).exits(0);
    assert_eq!(lab.read("out/all.env"), "# managed by stead: inputs all\nA='it'\\''s $1'\nKEY=''\n");
}

//! What an intent edits, and the steps that follow.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use serde_json::{Value, json};

use super::{INFRASTRUCTURE, PLATFORM, SMALL, small, tree};
use crate::cases_17_32::lab::wait_until;
use crate::steps::homelab::{Homelab, steps_in};

fn document(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

/// Case 21: both documents differ in `spec.path` only; again: already set, not written, and the steps still run.
#[test]
fn an_intent_changes_one_value_of_each_file_and_runs_its_steps() {
    let lab = Homelab::new();
    let before: Vec<String> = [INFRASTRUCTURE, PLATFORM].iter().map(|name| lab.read(name)).collect();
    let ended = lab.stead(&["intent", "platform-certs", "CERT_ENV=prod"]).exits(0);
    for (name, before) in [INFRASTRUCTURE, PLATFORM].iter().zip(&before) {
        let after = lab.read(name);
        assert_eq!(after, before.replace("overlays/home\n", "overlays/home-letsencrypt-prod\n"), "{name}");
        let (mut old, new) = (document(before), document(&after));
        assert_ne!(old, new);
        old["spec"]["path"] = new["spec"]["path"].clone();
        assert_eq!(old, new, "{name}");
    }
    let path = format!("--- a/{INFRASTRUCTURE}\n+++ b/{INFRASTRUCTURE}\n@@ ");
    assert!(ended.stdout.starts_with(&path), "{ended:?}");
    assert_eq!(steps_in(&ended.stdout), ["sync-runtime-inputs.sh", "32_reconcile_flux_stack.sh"]);
    let ended = ended
        .says("Edited 2 local files.")
        .says("until they are committed and pushed")
        .says("Next: git commit");
    assert!(ended.stdout.ends_with("Done.\n"), "{ended:?}");
    assert_eq!(lab.log(), ["32_reconcile_flux_stack.sh"]);

    let inode = |name: &str| {
        let meta = fs::metadata(lab.path(name)).unwrap();
        (meta.ino(), meta.mtime(), meta.mtime_nsec())
    };
    let written = [inode(INFRASTRUCTURE), inode(PLATFORM)];
    let again = lab.stead(&["intent", "platform-certs", "CERT_ENV=prod"]).exits(0);
    let again = again
        .says(&format!("already set: {INFRASTRUCTURE} spec.path"))
        .says(&format!("already set: {PLATFORM}"));
    assert!(!again.stdout.contains("+++"), "{again:?}");
    assert_eq!([inode(INFRASTRUCTURE), inode(PLATFORM)], written);
    assert_eq!(lab.log().len(), 2);

    // Back again: the same bytes as ever.
    lab.stead(&["intent", "platform-certs", "CERT_ENV=staging"]).exits(0);
    let after: Vec<String> = [INFRASTRUCTURE, PLATFORM].iter().map(|name| lab.read(name)).collect();
    assert_eq!(after, before);
}

/// Section 10: edit and steps are tasks of one run, the diff one of its artifacts.
#[test]
fn edit_and_steps_are_one_run_and_the_diff_is_kept() {
    let lab = Homelab::new();
    let args = ["intent", "app-test", "APP_ENV=prod", "LE_ENV=prod", "--json", "--events", "events"];
    let said = lab.stead(&args).exits(0).document();
    assert_eq!(said["intent"], "app-test");
    assert_eq!(said["params"], json!({"APP_ENV": "prod", "LE_ENV": "prod"}));
    assert_eq!(
        (&said["schema"], &said["scope"], &said["exit_code"]),
        (&json!(1), &json!("local"), &json!(0))
    );
    assert_eq!(said["committed"], false);
    assert_eq!(said["diagnostics"][0]["code"], "value/fallback");
    let row = &said["files"][0];
    assert_eq!((&row["path"], &row["changed"]), (&json!("spec.path"), &json!(true)));
    assert_eq!(row["new"], "./tenants/overlays/app-prod-le-prod");
    assert!(row["line"].as_u64().unwrap() > 1);
    let tasks: Vec<&str> =
        said["then"]["tasks"].as_array().unwrap().iter().map(|task| task["name"].as_str().unwrap()).collect();
    assert_eq!(tasks, ["intent.edit", "runtime-inputs", "reconcile-stack"]);
    let [bundle] = lab.bundles().try_into().unwrap();
    assert_eq!(fs::read_to_string(bundle.join("events.jsonl")).unwrap(), lab.read("events"));
    let kept = said["then"]["tasks"][0]["data"]["diff"].as_str().unwrap();
    assert!(
        lab.root().join(kept).starts_with(&bundle) || std::path::Path::new(kept).starts_with(&bundle),
        "{kept}"
    );
    assert_eq!(fs::read_to_string(lab.root().join(kept)).unwrap(), said["diff"].as_str().unwrap());
    lab.stead(&["bundle", "verify", bundle.to_str().unwrap()]).exits(0);
    // An intent is done again, not resumed.
    let run = said["run_id"].as_str().unwrap();
    lab.stead(&["resume", run]).exits(3).says("stead intent app-test APP_ENV=prod LE_ENV=prod");
}

#[test]
fn what_follows_fails_and_the_edit_stays() {
    let lab = Homelab::new();
    lab.script("scripts/32_reconcile_flux_stack.sh", "exit 7\n");
    let before = lab.read(INFRASTRUCTURE);
    lab.stead(&["intent", "platform-certs", "CERT_ENV=prod"]).exits(1).says("The edit stays");
    assert_ne!(lab.read(INFRASTRUCTURE), before);
}

/// Section 10: value checks come before the edit.
#[test]
fn nothing_is_edited_while_the_steps_cannot_run() {
    let lab = Homelab::new();
    lab.append("profiles/local.env", "FEAT_VERIFY=banana");
    let before = tree(&lab);
    lab.stead(&["intent", "platform-certs", "CERT_ENV=prod"]).exits(3).says("banana");
    assert_eq!(tree(&lab), before);
    let lab = Homelab::new();
    fs::set_permissions(lab.path("scripts/32_reconcile_flux_stack.sh"), fs::Permissions::from_mode(0o644))
        .unwrap();
    let before = tree(&lab);
    lab.stead(&["intent", "platform-certs", "CERT_ENV=prod"]).exits(3).says("32_reconcile_flux_stack.sh");
    assert_eq!(tree(&lab), before);
}

/// Section 10: the lock comes before the edit.
#[test]
fn nothing_is_edited_while_another_run_has_the_target() {
    let lab = Homelab::new();
    lab.script("scripts/15_verify_cluster_access.sh", "touch \"$STEAD_LAB/started\"; sleep 60\n");
    let mut running = lab
        .command(lab.path("run.sh"), &["--only", "15"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let started = lab.root().parent().unwrap().join("started");
    wait_until("the first run", || started.exists());
    let before = lab.read(INFRASTRUCTURE);
    lab.stead(&["intent", "platform-certs", "CERT_ENV=prod"]).exits(5);
    assert_eq!(lab.read(INFRASTRUCTURE), before);
    running.kill().unwrap();
    running.wait().unwrap();
    for (pid, _) in lab.processes() {
        crate::cases_17_32::lab::kill(pid, rustix::process::Signal::KILL);
    }
    wait_until("nothing runs", || lab.processes().is_empty());
}

/// Section 10: `ONLY` means nothing to an intent, and a value that it never sets is a warning.
#[test]
fn only_is_ignored_and_an_unknown_value_is_a_warning() {
    let lab = Homelab::new();
    lab.replace(INFRASTRUCTURE, "overlays/home\n", "overlays/mine\n");
    let mut command =
        lab.command(env!("CARGO_BIN_EXE_stead"), &["intent", "platform-certs", "CERT_ENV=prod"]);
    let ended: crate::cases_17_32::lab::Ended = command.env("ONLY", "15").output().unwrap().into();
    let ended = ended.exits(0);
    assert_eq!(steps_in(&ended.stdout).len(), 2);
    let ended = ended.says("`ONLY` is `15`, and is ignored");
    assert!(ended.stderr.contains("overlays/mine") && ended.stderr.contains("never sets"), "{ended:?}");
}

#[test]
fn an_intent_without_steps_only_edits() {
    let lab = small();
    let ended = lab.stead(&["intent", "flip"]).exits(0);
    assert_eq!(
        (lab.read("a.yaml"), lab.read("b.yaml")),
        ("v: new # keep\n".to_owned(), "v: new # keep\n".to_owned())
    );
    let next = "Next: git commit -m 'intent flip V=new' -- a.yaml b.yaml\n";
    assert!(ended.stdout.contains(next), "{ended:?}");
    let said = lab.stead(&["intent", "flip", "V=new", "--json"]).exits(0).document();
    assert_eq!((&said["then"], &said["files"][0]["changed"]), (&Value::Null, &json!(false)));
    let run = said["run_id"].as_str().unwrap();
    lab.stead(&["resume", run]).exits(3);
}

/// Section 10: types, one document of several, and a key in quotes.
#[test]
fn numbers_booleans_and_one_document_of_several() {
    let lab = Homelab::with(&SMALL.replace(
        "edits: [ { file: c.yaml, path: v, value: \"${V}\" } ]",
        "edits:
      - { file: m.yaml, select: { kind: B, metadata.name: two }, path: spec.count, type: int, by: V, values: { x: 1, z: 2 } }
      - { file: m.yaml, select: { kind: B, metadata.name: two }, path: 'spec[\"a.b\"]', type: bool, by: V, values: { x: false, z: true } }
      - { file: m.yaml, select: { kind: B, metadata.name: two }, path: 'spec.list[name=web].image', value: \"r/${V}\" }",
    ));
    lab.script("a.sh", "exit 0\n");
    let one = "kind: B\nmetadata: {name: one}\nspec: {count: 1}\n";
    let two = "kind: B\nmetadata: {name: two}\nspec:\n  count: 1 # n\n  a.b: false\n  list:\n  - {name: db, image: x}\n  - {name: web, image: 'r/x'}\n";
    lab.write("m.yaml", format!("{one}---\n{two}"));
    lab.stead(&["intent", "other", "V=z"]).exits(0);
    let wanted = two.replace("count: 1", "count: 2").replace("a.b: false", "a.b: true").replace("r/x", "r/z");
    assert_eq!(lab.read("m.yaml"), format!("{one}---\n{wanted}"));
}

//! Taking runs up again.

use std::process::Stdio;

use serde_json::json;

use super::homelab::{Homelab, codes, statuses, steps_in};
use crate::cases_17_32::lab::wait_until;

const THREE: &str = "\
api_version: v1
name: three
target: {from: value, value: \"${BOX}\"}
layers: [{file: values.env}, {file: secret.env, secret: true}, {flag: profile}]
vars: {BOX: {default: box}, COLOR: {}, TOKEN: {secret: true}, PLAIN: {}}
steps:
  first: {run: first.sh}
  slow: {run: slow.sh, secrets: [TOKEN]}
  last: {run: last.sh, destructive: [apply]}
apply: [{steps: [first, slow, last]}]
";

/// Returns a lab whose second step waits until `go` is there.
fn three() -> Homelab {
    let lab = Homelab::with(THREE);
    lab.write("values.env", "COLOR=red\n");
    lab.write("secret.env", "");
    lab.script("first.sh", "echo first >>order\necho ::output key=$COLOR\n");
    lab.script("slow.sh", "echo slow >>order\necho \"$TOKEN/$PLAIN\" >seen\n[ -e go ] || sleep 60\n");
    lab.script("last.sh", "echo \"last $STEAD_OUTPUT_FIRST_KEY $COLOR\" >>order\n");
    lab
}

/// Starts a run and kills it, and only it, in its second step.
fn kill_in_second_step(lab: &Homelab, args: &[&str]) {
    let args: Vec<&str> =
        ["steps", "run", "--confirm", "box"].into_iter().chain(args.iter().copied()).collect();
    let mut command = lab.command(env!("CARGO_BIN_EXE_stead"), &args);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the second step runs", || lab.path("seen").exists());
    child.kill().unwrap();
    child.wait().unwrap();
    lab.write("go", "");
}

/// Section 8: after `kill -9` done steps are kept with their outputs, layers are read afresh and changes are told.
#[test]
fn a_killed_run_goes_on_where_it_stopped() {
    let lab = three();
    kill_in_second_step(&lab, &[]);
    let interrupted = lab.stead(&["steps", "history", "--json"]).exits(0).document();
    assert_eq!(interrupted["runs"][0]["outcome"], "interrupted");
    assert_eq!(interrupted["runs"][0]["done"], 1);
    lab.write("values.env", "COLOR=blue\n");
    lab.stead(&["resume", "last"]).exits(6);
    let left = lab.stead(&["steps", "run", "--resume", "last", "--dry-run", "--json"]).exits(0).document();
    assert_eq!(statuses(&left), ["first.sh:skipped", "slow.sh:changed", "last.sh:changed"]);
    lab.stead(&["steps", "run", "--resume", "last", "--dry-run"])
        .exits(0)
        .says("Left to do: slow.sh, last.sh\n");
    let ended = lab.stead(&["resume", "last", "--confirm", "box"]).exits(0);
    assert!(ended.stderr.contains("`COLOR` is not what it was when the run began"), "{}", ended.stderr);
    assert!(ended.stdout.ends_with("Done.\n"), "{}", ended.stdout);
    assert_eq!(lab.read("order"), "first\nslow\nslow\nlast red blue\n");
    assert_eq!(lab.bundles().len(), 1);
    lab.stead(&["bundle", "verify", "last"]).exits(0);
    let again =
        lab.stead(&["steps", "run", "--resume", "last", "--confirm", "box", "--json"]).exits(0).document();
    assert_eq!(again["segments"], 2);
    assert_eq!(again["tasks"][0]["step"]["outputs"], json!({"key": "red"}));
    assert_eq!(lab.read("order").lines().count(), 4);
}

/// Section 8: what was given comes from the record, a secret has to be given again, and other values may be.
#[test]
fn values_come_from_the_record_and_secrets_again() {
    let lab = three();
    lab.write("p.env", "PLAIN=of-the-profile\n");
    kill_in_second_step(&lab, &["--set", "TOKEN=top-secret", "--set", "COLOR=green", "--profile", "p.env"]);
    assert_eq!(lab.read("seen"), "top-secret/of-the-profile\n");
    let missing = lab.stead(&["resume", "last", "--confirm", "box", "--json"]).exits(3).document();
    assert!(missing["diagnostics"][0]["message"].as_str().unwrap().contains("`TOKEN`"), "{missing}");
    lab.stead(&["resume", "last", "--confirm", "box", "--set", "TOKEN=new-secret"]).exits(0);
    assert_eq!(lab.read("seen"), "new-secret/of-the-profile\n");
    assert_eq!(lab.read("order"), "first\nslow\nslow\nlast green green\n");
}

/// Section 8: a secret that changed is noted by name as well; the bundle holds nothing from which it could be guessed.
#[test]
fn a_changed_secret_is_noted_and_not_recorded() {
    let lab = three();
    lab.write("secret.env", "TOKEN=first-secret\nPLAIN=other-secret\n");
    kill_in_second_step(&lab, &[]);
    let resume = || lab.stead(&["steps", "run", "--resume", "last", "--dry-run"]).exits(0).stderr;
    assert!(!resume().contains("is not what it was"), "{}", resume());
    lab.write("secret.env", "TOKEN=second-secret\nPLAIN=other-secret\n");
    let noted = resume();
    assert!(noted.contains("`TOKEN` is not what it was when the run began"), "{noted}");
    assert!(!noted.contains("`PLAIN`") && !noted.contains("-secret"), "{noted}");
    let meta = std::fs::read_to_string(lab.bundles()[0].join("run_meta.json")).unwrap();
    let meta: serde_json::Value = serde_json::from_str(&meta).unwrap();
    let marks = &meta["steps"]["secret_marks"]["marks"];
    assert_eq!(marks.as_object().unwrap().keys().collect::<Vec<_>>(), ["PLAIN", "TOKEN"]);
    // Without the key, which is not in the bundle, nothing is known.
    std::fs::remove_file(lab.home().join(".local/state/stead/secret-marks.key")).unwrap();
    assert!(!resume().contains("`TOKEN`"), "{}", resume());
    lab.end_processes();
}

/// Section 8: another plan is not gone on with, unless forced; another target is named.
#[test]
fn a_changed_plan_is_refused_with_the_difference() {
    let lab = three();
    kill_in_second_step(&lab, &[]);
    lab.replace(
        "steps.yaml",
        "  slow: {run: slow.sh, secrets: [TOKEN]}",
        "  slow: {run: slow.sh, secrets: [TOKEN], args: {apply: [x]}}",
    );
    let changed = lab.stead(&["resume", "last", "--confirm", "box", "--json"]).exits(4).document();
    assert_eq!(codes(&changed), ["steps/plan-changed"]);
    assert!(changed["diagnostics"][0]["message"].as_str().unwrap().contains("changed slow"), "{changed}");
    let other = lab.stead(&["resume", "last", "--set", "BOX=other"]).exits(4);
    assert!(other.stderr.contains("`box`") && other.stderr.contains("`other`"), "{}", other.stderr);
    assert_eq!(steps_in(&other.stdout).len(), 3);
    lab.stead(&["resume", "last", "--force", "--confirm", "box"]).exits(0);
    assert_eq!(lab.read("order"), "first\nslow\nslow\nlast red red\n");
}

/// Section 8: what the record says is not selected anew, and other runs are not taken for runs of steps.
#[test]
fn a_resumed_run_is_not_selected_anew() {
    let lab = three();
    kill_in_second_step(&lab, &[]);
    for flags in [&["--only", "slow"][..], &["--delete"], &["--skip", "last"], &["--from", "slow"]] {
        let args: Vec<&str> =
            ["steps", "run", "--resume", "last"].into_iter().chain(flags.iter().copied()).collect();
        lab.stead(&args).exits(2);
    }
    lab.stead(&["resume", "last", "--yes"]).exits(2).says("leave --yes out");
    let flags =
        ["resume", "last", "--limit", "foo", "-i", "/nonexistent.yaml", "--agents", "/nonexistent", "--yes"];
    lab.stead(&flags).exits(2).says("leave --yes, --inventory, --agents, --limit out");
    lab.write("p.yaml", "api_version: v1\nname: p\ntasks: [{name: a, shell: exit 1}]\n");
    lab.stead(&["plan", "run", "p.yaml"]).exits(1);
    lab.stead(&["steps", "run", "--resume", "last"]).exits(3);
    lab.stead(&["resume", "last", "--set", "A=b"]).exits(2);
    lab.end_processes();
}

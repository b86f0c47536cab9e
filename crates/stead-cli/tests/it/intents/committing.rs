//! `--commit`: one commit of exactly the edited files, or nothing at all.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use serde_json::json;

use super::{INFRASTRUCTURE, PLATFORM, commit_all, git, small, tree};
use crate::cases_17_32::lab::{Ended, kill, wait_until};
use crate::steps::homelab::{Homelab, codes};

const COMMIT: [&str; 4] = ["intent", "platform-certs", "CERT_ENV=prod", "--commit"];

/// Case 24: one commit of the two files; what else is staged stays staged.
#[test]
fn one_commit_of_exactly_the_edited_files() {
    let lab = Homelab::new();
    commit_all(&lab);
    lab.write("notes", "mine");
    git(&lab, &["add", "notes"]);
    let ended =
        lab.stead(&COMMIT).exits(0).says("Committed 2 local files as ").says("until the commit is pushed");
    assert!(ended.stdout.contains("Next: git push\n"), "{ended:?}");
    let files = format!("intent platform-certs CERT_ENV=prod\n\n{INFRASTRUCTURE}\n{PLATFORM}\n");
    assert_eq!(git(&lab, &["show", "--format=%s", "--name-only", "HEAD"]), files);
    assert_eq!(git(&lab, &["status", "--porcelain"]), "A  notes\n");
    assert_eq!(lab.log(), ["32_reconcile_flux_stack.sh"]);
    // Nothing changed: no commit.
    let said =
        lab.stead(&["intent", "platform-certs", "CERT_ENV=prod", "--commit", "--json"]).exits(0).document();
    assert_eq!((&said["committed"], &said["commit"]), (&json!(false), &json!(null)));
    assert_eq!(git(&lab, &["rev-list", "--count", "HEAD"]), "2\n");
    let args = ["intent", "platform-certs", "CERT_ENV=staging", "--commit", "--json"];
    let said = lab.stead(&args).exits(0).document();
    assert_eq!(said["committed"], true);
    assert_eq!(said["commit"], git(&lab, &["rev-parse", "HEAD"]).trim());
}

/// Case 24: a dirty target is 3, and nothing is written.
#[test]
fn a_dirty_target_is_refused_before_anything_is_edited() {
    let lab = Homelab::new();
    commit_all(&lab);
    lab.append(PLATFORM, "# mine");
    let before = tree(&lab);
    let said =
        lab.stead(&["intent", "platform-certs", "CERT_ENV=prod", "--commit", "--json"]).exits(3).document();
    assert_eq!(codes(&said), ["intent/dirty"]);
    assert_eq!(said["diagnostics"][0]["file"], PLATFORM);
    assert_eq!(tree(&lab), before);
    // Without --commit it is edited all the same.
    lab.stead(&["intent", "platform-certs", "CERT_ENV=prod"]).exits(0);
    assert!(lab.read(PLATFORM).ends_with("# mine\n"));
}

#[test]
fn there_is_no_commit_outside_a_work_tree_or_during_a_merge() {
    let lab = small();
    let before = tree(&lab);
    lab.stead(&["intent", "flip", "--commit"]).exits(3).says("needs a Git work tree");
    assert_eq!(tree(&lab), before);
    commit_all(&lab);
    git(&lab, &["checkout", "--quiet", "-b", "side"]);
    lab.write("c.yaml", "v: z\n");
    git(&lab, &["commit", "--quiet", "-am", "side"]);
    git(&lab, &["checkout", "--quiet", "-"]);
    lab.append("c.yaml", "w: 1");
    git(&lab, &["commit", "--quiet", "-am", "main"]);
    let merge = lab.command("git", &["merge", "--quiet", "side"]).output().unwrap();
    assert!(!merge.status.success());
    let before = tree(&lab);
    lab.stead(&["intent", "flip", "--commit"]).exits(3).says("a merge is under way");
    assert_eq!(tree(&lab), before);
}

/// Section 10: if the commit fails the edit is put back, 1; the steps do not run.
#[test]
fn a_refused_commit_puts_the_edit_back() {
    let lab = Homelab::new();
    commit_all(&lab);
    let hook = lab.path(".git/hooks/pre-commit");
    fs::create_dir_all(hook.parent().unwrap()).unwrap();
    fs::write(&hook, "#!/bin/sh\necho not today >&2\nexit 1\n").unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    let before = lab.read(INFRASTRUCTURE);
    let ended = lab.stead(&COMMIT).exits(1).says("not today").says("the edit is put back");
    ended.says("all are as they were");
    assert_eq!(lab.read(INFRASTRUCTURE), before);
    assert_eq!(git(&lab, &["status", "--porcelain"]), "");
    assert_eq!(git(&lab, &["rev-list", "--count", "HEAD"]), "1\n");
    assert_eq!(lab.log(), Vec::<String>::new());
}

/// A signal while a hook runs: the edit is put back, and nothing is left running.
#[test]
fn a_signal_during_the_commit_puts_the_edit_back() {
    let lab = small();
    commit_all(&lab);
    let hook = lab.path(".git/hooks/pre-commit");
    fs::create_dir_all(hook.parent().unwrap()).unwrap();
    fs::write(&hook, "#!/bin/sh\ntouch .git/started\nsleep 60\n").unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = lab.command(env!("CARGO_BIN_EXE_stead"), &["intent", "flip", "--commit"]);
    let running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the hook", || lab.path(".git/started").exists());
    assert_eq!(lab.read("a.yaml"), "v: new # keep\n");
    kill(running.id(), rustix::process::Signal::INT);
    let ended: Ended = running.wait_with_output().unwrap().into();
    ended.exits(130);
    assert_eq!(
        (lab.read("a.yaml"), lab.read("b.yaml")),
        ("v: old # keep\n".to_owned(), "v: old # keep\n".to_owned())
    );
    assert_eq!(git(&lab, &["status", "--porcelain"]), "");
    assert!(!lab.path(".stead/intents/switch.json").exists());
}

/// The catalogue may be below the top of the work tree.
#[test]
fn the_root_may_be_a_part_of_the_work_tree() {
    let lab = small();
    let top = lab.root();
    fs::create_dir(top.join("sub")).unwrap();
    for name in ["steps.yaml", "a.sh", "a.yaml", "b.yaml", "c.yaml"] {
        fs::rename(top.join(name), top.join("sub").join(name)).unwrap();
    }
    commit_all(&lab);
    let mut command = lab.command(env!("CARGO_BIN_EXE_stead"), &["intent", "flip", "--commit"]);
    let ended: Ended = command.current_dir(top.join("sub")).output().unwrap().into();
    ended.exits(0);
    assert_eq!(git(&lab, &["show", "--format=", "--name-only", "HEAD"]), "sub/a.yaml\nsub/b.yaml\n");
}

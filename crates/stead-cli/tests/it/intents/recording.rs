//! What is kept of an intent, and how people go on from there.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;

use super::{SMALL, commit_all, git, small};
use crate::cases_17_32::lab::Ended;
use crate::steps::homelab::Homelab;

/// Returns a place whose intent is followed by a step that fails.
fn failing() -> Homelab {
    let lab = small();
    lab.replace("steps.yaml", "  flip:\n", "  flip:\n    then: { only: [a] }\n");
    lab.script("a.sh", "exit 7\n");
    lab
}

/// An intent is in the history, with its command, also if nothing follows; `stead resume` names what to do.
#[test]
fn an_intent_without_steps_is_in_the_history_and_is_done_again_by_its_command() {
    let lab = small();
    lab.stead(&["intent", "flip"]).exits(0);
    let runs = lab.stead(&["steps", "history", "--json"]).exits(0).document();
    assert_eq!(runs["runs"].as_array().unwrap().len(), 1, "{runs}");
    let run = &runs["runs"][0];
    assert_eq!((&run["intent"], &run["catalogue"]), (&json!("stead intent flip V=new"), &json!("small")));
    assert_eq!((&run["done"], &run["total"]), (&json!(0), &json!(0)));
    lab.stead(&["steps", "history"]).exits(0).says("stead intent flip V=new");
    lab.stead(&["resume", "last"]).exits(3).says("do it again").says("stead intent flip V=new");
}

/// The edit and the commit are no steps: a run whose only step failed has done none of one.
#[test]
fn history_counts_steps_only_and_the_hint_is_the_whole_command() {
    let lab = failing();
    commit_all(&lab);
    let ended = lab.stead(&["intent", "flip", "--commit"]).exits(1);
    assert!(ended.stdout.contains("hint: stead intent flip V=new --commit\n"), "{ended:?}");
    assert!(!ended.stdout.contains("stead resume"), "{ended:?}");
    let runs = lab.stead(&["steps", "history", "--json"]).exits(0).document();
    assert_eq!((&runs["runs"][0]["done"], &runs["runs"][0]["total"]), (&json!(0), &json!(1)), "{runs}");
}

/// From elsewhere a run is named by its place, which `stead resume` takes.
#[test]
fn the_hint_of_a_failed_run_works_where_the_caller_is() {
    let lab = failing();
    let here = lab.stead(&["steps", "run"]).exits(1);
    assert!(here.stdout.contains("hint: stead resume 2"), "{here:?}");
    let catalogue = lab.path("steps.yaml");
    let mut command =
        lab.command(env!("CARGO_BIN_EXE_stead"), &["steps", "run", catalogue.to_str().unwrap()]);
    let ended: Ended = command.current_dir(lab.home()).output().unwrap().into();
    let ended = ended.exits(1);
    let hint = ended.stdout.lines().find_map(|line| line.strip_prefix("hint: stead resume ")).unwrap();
    assert!(hint.starts_with('/'), "{hint}");
    lab.script("a.sh", "exit 0\n");
    let mut command = lab.command(env!("CARGO_BIN_EXE_stead"), &["resume", hint]);
    let resumed: Ended = command.current_dir(lab.home()).output().unwrap().into();
    resumed.exits(0);
}

/// `Next:` names what was written, not a link to it.
#[test]
fn the_next_command_commits_what_was_written_through_a_link() {
    let lab = small();
    fs::create_dir(lab.path("real")).unwrap();
    fs::rename(lab.path("b.yaml"), lab.path("real/b.yaml")).unwrap();
    symlink("real/b.yaml", lab.path("b.yaml")).unwrap();
    commit_all(&lab);
    let ended = lab.stead(&["intent", "flip"]).exits(0);
    let next = ended.stdout.lines().find_map(|line| line.strip_prefix("Next: ")).unwrap();
    let committed: Ended = lab.command("sh", &["-c", next]).output().unwrap().into();
    committed.exits(0);
    assert_eq!(git(&lab, &["status", "--porcelain"]), "");
    assert_eq!(git(&lab, &["show", "--format=", "--name-only", "HEAD"]), "a.yaml\nreal/b.yaml\n");
}

/// The catalogue in a bundle has no default of a secret, in use or not.
#[test]
fn defaults_of_secrets_are_not_recorded() {
    let secret =
        "vars: { PW: { secret: true, default: \"hunter2\\x64efault\" }, OPEN: { default: shown } }\nsteps:";
    let lab = small();
    lab.write("steps.yaml", SMALL.replace("\nsteps:", &format!("\n{secret}")));
    lab.stead(&["intent", "flip"]).exits(0);
    lab.stead(&["steps", "run", "--set", "PW=something-else"]).exits(0);
    let bundles = lab.bundles();
    assert_eq!(bundles.len(), 2);
    for bundle in bundles {
        let found = fs::read_dir(bundle.join("sources")).into_iter().flatten().flatten();
        let files: Vec<_> = found.map(|entry| entry.path()).chain([bundle.join("catalogue.yaml")]).collect();
        let text: String = files.iter().filter_map(|file| fs::read_to_string(file).ok()).collect();
        assert!(text.contains("shown") && text.contains("'***'"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}

/// `must_exist` holds for every value the intent may set, not only for the one that is there.
#[test]
fn check_looks_at_every_value_that_must_exist() {
    let lab = Homelab::new();
    lab.stead(&["steps", "check"]).exits(0);
    fs::remove_dir_all(lab.path("tenants/overlays/app-prod-le-prod")).unwrap();
    lab.stead(&["steps", "check"]).exits(4).says("`./tenants/overlays/app-prod-le-prod` does not exist");
}

/// `changed` says what was written: nothing, if the edit was put back.
#[test]
fn a_file_that_was_put_back_is_not_changed() {
    let lab = small();
    commit_all(&lab);
    lab.script(".git/hooks/pre-commit", "exit 1\n");
    let said = lab.stead(&["intent", "flip", "--commit", "--json"]).exits(1).document();
    assert_eq!(said["files"][0]["changed"], false, "{said}");
    fs::remove_file(lab.path(".git/hooks/pre-commit")).unwrap();
    let said = lab.stead(&["intent", "flip", "--commit", "--json"]).exits(0).document();
    assert_eq!(said["files"][0]["changed"], true, "{said}");
}

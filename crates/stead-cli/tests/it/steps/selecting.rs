//! Which steps run.

use super::homelab::{APPLY, Homelab, codes, steps_in};

/// Case 5: what names a step, and the order that stays the list's.
#[test]
fn steps_go_by_id_number_path_and_name_in_listed_order() {
    let lab = Homelab::new();
    let plan = |only: &str| -> Vec<String> {
        let ended = lab.run(&["--dry-run", "--only", only]).exits(0);
        steps_in(&ended.stdout).into_iter().map(str::to_owned).collect()
    };
    assert_eq!(plan("32,15"), [APPLY[0], APPLY[4]]);
    assert_eq!(plan(" 15 , 94 "), [APPLY[0], APPLY[1]]);
    assert_eq!(plan("15,15"), [APPLY[0]]);
    for token in
        ["bootstrap/install-flux.sh", "install-flux", "install-flux.sh", "scripts/bootstrap/install-flux.sh"]
    {
        assert_eq!(plan(token), [APPLY[2]], "{token}");
    }
    let range = lab.run(&["--dry-run", "--from", "94", "--until", "32", "--skip", "install-flux"]).exits(0);
    assert_eq!(steps_in(&range.stdout), [APPLY[1], APPLY[3], APPLY[4]]);
    let joined = lab.run(&["--dry-run", "--only", "15", "--only", "94"]).exits(0);
    assert_eq!(steps_in(&joined.stdout), [APPLY[0], APPLY[1]]);
}

/// Case 6: what names no step is refused, never everything.
#[test]
fn a_selection_that_names_nothing_is_refused() {
    let lab = Homelab::new();
    let unknown = lab.json(&["--only", "nosuch"], 2);
    assert_eq!(codes(&unknown), ["steps/unknown-token"]);
    assert!(unknown["diagnostics"][0]["message"].as_str().unwrap().contains("`nosuch`"));
    let candidates = unknown["diagnostics"][0]["candidates"].as_array().unwrap();
    assert!(candidates.iter().any(|token| token == "install-flux.sh"), "{candidates:?}");
    for args in [&["--only", ""][..], &["--only", ","], &["--skip", ""], &["--from", ""]] {
        assert_eq!(codes(&lab.json(args, 2)), ["steps/empty"], "{args:?}");
    }
    assert_eq!(codes(&lab.json(&["--only", "99"], 2)), ["steps/wrong-mode"]);
    assert_eq!(codes(&lab.json(&["--only", "94", "--set", "FEAT_VERIFY=false"], 2)), ["steps/gated-off"]);
    assert_eq!(codes(&lab.json(&["--from", "91", "--until", "15"], 2)), ["steps/empty"]);
    lab.run(&["--with-needs", "--skip-needs"]).exits(2);
    assert!(lab.log().is_empty() && !lab.path(".stead").exists());
}

/// Case 6: the control `ONLY`, which the flag beats and an empty value does not set.
#[test]
fn only_in_the_environment_is_beaten_by_the_flag() {
    let lab = Homelab::new();
    let plan = |only: &str, args: &[&str]| -> Vec<String> {
        let args: Vec<&str> = ["--dry-run"].into_iter().chain(args.iter().copied()).collect();
        let ended = lab.run_with(&[("ONLY", only)], &args).exits(0);
        steps_in(&ended.stdout).into_iter().map(str::to_owned).collect()
    };
    assert_eq!(plan("15", &[]), [APPLY[0]]);
    assert_eq!(plan("15", &["--only", "32"]), [APPLY[4]]);
    assert_eq!(plan("", &[]), APPLY);
    assert_eq!(lab.run_with(&[("ONLY", ",")], &["--dry-run"]).code, 2);
    let dry = lab.run_with(&[("DRY_RUN", "true")], &[]).exits(0);
    assert!(dry.stdout.ends_with("Dry run: nothing was executed.\n"));
    assert!(lab.run_with(&[("DRY_RUN", "yes")], &[]).exits(3).stderr.contains("DRY_RUN"));
    assert!(lab.log().is_empty());
}

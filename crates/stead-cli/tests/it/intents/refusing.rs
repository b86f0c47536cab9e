//! What an intent refuses, and that it then leaves everything as it is.

use serde_json::json;

use super::{INFRASTRUCTURE, PLATFORM, SMALL, small, tree};
use crate::cases_17_32::lab::Ended;
use crate::steps::homelab::{Homelab, codes, steps_in};

const SET: [&str; 3] = ["intent", "platform-certs", "CERT_ENV=prod"];

fn with(args: &[&'static str]) -> Vec<&'static str> {
    SET.iter().chain(args).copied().collect()
}

/// Case 22: a moved key and broken YAML: check says 4, the intent 3, nothing is written.
#[test]
fn a_file_whose_structure_changed_is_refused() {
    let moved = |text: &str| {
        let path = text.lines().find(|line| line.starts_with("  path: ")).unwrap();
        text.replace(&format!("{path}\n"), "").replace("  sourceRef:\n", &format!("  sourceRef:\n  {path}\n"))
    };
    let broken = |text: &str| text.replace("spec:\n", "spec: [\n");
    for (spoil, code, place) in [
        (&moved as &dyn Fn(&str) -> String, "intent/path", "spec.sourceRef.path"),
        (&broken, "intent/file", PLATFORM),
    ] {
        let lab = Homelab::new();
        let text = lab.read(PLATFORM);
        let spoiled = spoil(&text);
        assert_ne!(spoiled, text);
        lab.write(PLATFORM, spoiled);
        let before = tree(&lab);
        let said = lab.stead(&with(&["--json"])).exits(3);
        assert_eq!(codes(&said.document()), [code]);
        assert_eq!(said.document()["diagnostics"][0]["file"], PLATFORM);
        assert!(said.document()["diagnostics"][0]["line"].as_u64().is_some());
        said.says(place);
        assert_eq!(tree(&lab), before);
        lab.stead(&["steps", "check"]).exits(4).says(&format!("intent.platform-certs.{PLATFORM}"));
    }
}

/// Case 22: the directory that the value names has to be there.
#[test]
fn a_value_that_must_exist_and_does_not_is_refused() {
    let lab = Homelab::new();
    std::fs::remove_dir_all(lab.path("infrastructure/overlays/home-letsencrypt-prod")).unwrap();
    let before = tree(&lab);
    lab.stead(&SET).exits(3).says("`./infrastructure/overlays/home-letsencrypt-prod` does not exist");
    assert_eq!(tree(&lab), before);
}

/// Case 23: a dry run shows diff and plan, and leaves the tree as it is.
#[test]
fn a_dry_run_shows_the_diff_and_the_plan() {
    let lab = Homelab::new();
    let before = tree(&lab);
    let flag = lab.stead(&with(&["--dry-run"])).exits(0);
    let mut command = lab.command(env!("CARGO_BIN_EXE_stead"), &SET);
    let variable: Ended = command.env("DRY_RUN", "true").output().unwrap().into();
    for ended in [flag, variable.exits(0)] {
        assert!(ended.stdout.starts_with(&format!("--- a/{INFRASTRUCTURE}\n")), "{ended:?}");
        assert_eq!(steps_in(&ended.stdout), ["sync-runtime-inputs.sh", "32_reconcile_flux_stack.sh"]);
        ended.says("Dry run: nothing was executed.").says("Would edit 2 local files.");
    }
    let said = lab.stead(&with(&["--dry-run", "--json"])).exits(0).document();
    assert_eq!((&said["dry_run"], &said["files"][0]["changed"]), (&json!(true), &json!(true)));
    assert_eq!(tree(&lab), before);
    assert_eq!(lab.log(), Vec::<String>::new());

    let lab = small();
    let before = tree(&lab);
    lab.stead(&["intent", "flip", "--dry-run"]).exits(0).says("+v: new # keep");
    let mut command = lab.command(env!("CARGO_BIN_EXE_stead"), &["intent", "flip"]);
    let ended: Ended = command.env("DRY_RUN", "yes").output().unwrap().into();
    ended.exits(3).says("`DRY_RUN` is `yes`, from environment");
    assert_eq!(tree(&lab), before);
}

/// Case 23: parameters that are not the intent's.
#[test]
fn wrong_parameters_are_usage_errors() {
    let lab = Homelab::new();
    let before = tree(&lab);
    for (args, says) in [
        (&["intent", "platform-certs", "CERT_ENV=dev"][..], "allowed: staging, prod"),
        (&["intent", "platform-certs", "CERT=prod"], "`CERT_ENV` is missing"),
        (&["intent", "platform-certs"], "`CERT_ENV` is missing"),
        (&["intent", "platform-certs", "CERT_ENV"], "is not KEY=VALUE"),
        (&["intent", "platform-certs", "CERT_ENV=prod", "CERT_ENV=prod"], "given twice"),
        (&["intent", "platform-cert", "CERT_ENV=prod"], "did you mean `platform-certs`?"),
    ] {
        lab.stead(args).exits(2).says(says);
        let json: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
        let found = codes(&lab.stead(&json).exits(2).document());
        assert!(found.iter().all(|code| code == "intent/param" || code == "intent/unknown"), "{found:?}");
    }
    assert_eq!(tree(&lab), before);
}

/// Case 23: `make` hands `DRY_RUN` over, and Stead judges it.
#[test]
fn make_with_a_dry_run_that_is_none_fails_and_changes_nothing() {
    let lab = Homelab::new();
    let before = tree(&lab);
    let make = |args: &[&str]| -> Ended { lab.command("make", args).output().unwrap().into() };
    make(&["platform-certs", "CERT_ENV=prod", "DRY_RUN=yes"]).exits(2).says("DRY_RUN");
    make(&["platform-certs", "CERT_ENV=prod", "DRY_RUN=true"])
        .exits(0)
        .says("Dry run: nothing was executed.");
    assert_eq!(tree(&lab), before);
    make(&["platform-certs", "CERT_ENV=prod"]).exits(0);
    assert!(lab.read(INFRASTRUCTURE).contains("overlays/home-letsencrypt-prod\n"));
}

#[test]
fn a_name_means_one_intent_of_all_catalogues() {
    let lab = small();
    lab.write("steps/second.yaml", SMALL.replace("name: small", "name: second"));
    lab.stead(&["intent", "flip"]).exits(3).says("two catalogues have an intent `flip`");
    lab.stead(&["intent", "list"]).exits(3);
}

/// Section 10: links lead out of the root, files are missing: all of it at once.
#[test]
fn all_problems_of_all_files_come_at_once() {
    let lab = small();
    std::fs::remove_file(lab.path("a.yaml")).unwrap();
    std::fs::remove_file(lab.path("b.yaml")).unwrap();
    std::os::unix::fs::symlink("../home", lab.path("b.yaml")).unwrap();
    let before = lab.read("c.yaml");
    let said = lab.stead(&["intent", "flip", "--json"]).exits(3).document();
    assert_eq!(codes(&said), ["intent/file", "intent/file"]);
    assert_eq!(lab.read("c.yaml"), before);
}

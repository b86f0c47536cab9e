//! Failing, timing out, being stopped, and locks.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::homelab::{APPLY, Homelab, statuses};
use crate::cases_17_32::lab::{Ended, kill, wait_until};

const SLOW: &str = "\
api_version: v1
name: slow
target: {from: value, value: box}
layers: []
steps:
  first: {run: first.sh}
  slow: {run: slow.sh}
  last: {run: last.sh}
apply: [{steps: [first, slow, last]}]
";

fn slow(script: &str) -> Homelab {
    let lab = Homelab::with(SLOW);
    lab.script("first.sh", "echo first >>order\n");
    lab.script("slow.sh", script);
    lab.script("last.sh", "echo last >>order\n");
    lab
}

/// Case 11: a step that fails stops the run; its own code is recorded and not passed on.
#[test]
fn a_failing_step_stops_the_run() {
    let lab = Homelab::new();
    lab.script("scripts/bootstrap/install-flux.sh", "echo no >&2\nexit 7\n");
    let ended = lab.run(&[]).exits(1);
    assert!(!ended.stdout.contains("Done."), "{}", ended.stdout);
    assert!(ended.stdout.contains("[failed] install-flux.sh ") && ended.stderr.contains("no\n"), "{ended:?}");
    let report = lab.json(&[], 1);
    let expected: Vec<String> = APPLY
        .iter()
        .enumerate()
        .map(|(at, name)| {
            format!(
                "{name}:{}",
                match at {
                    0 | 1 => "unchanged",
                    2 => "failed",
                    _ => "not_run",
                }
            )
        })
        .collect();
    assert_eq!(statuses(&report), expected);
    assert_eq!(report["tasks"][2]["step"]["exit_code"], 7);
    assert_eq!((&report["tasks"][2]["class"], &report["exit_code"]), (&"exit".into(), &1.into()));
    assert_eq!(report["tasks"][3]["reason"], "stopped: task `install-flux` failed");
}

/// Case 15: a step's timeout is class `timeout` and exit code 1; nothing of it is left.
#[test]
fn a_step_that_takes_too_long_is_ended_with_all_it_started() {
    let lab = slow("sleep 60 & wait\n");
    lab.replace("steps.yaml", "{run: slow.sh}", "{run: slow.sh, timeout: 1s}");
    let start = Instant::now();
    let report = lab.stead(&["steps", "run", "--json"]).exits(1).document();
    assert!(start.elapsed() < Duration::from_secs(50), "{:?}", start.elapsed());
    assert_eq!(report["tasks"][1]["class"], "timeout");
    assert_eq!(statuses(&report), ["first.sh:changed", "slow.sh:failed", "last.sh:not_run"]);
    wait_until("nothing is left", || lab.processes().is_empty());
}

/// Case 15: a signal cancels; the bundle is whole.
#[test]
fn a_signal_cancels_and_leaves_a_whole_bundle() {
    let lab = slow("touch started; sleep 60 & wait\n");
    let mut command = lab.command(env!("CARGO_BIN_EXE_stead"), &["steps", "run"]);
    let child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    wait_until("the step runs", || lab.path("started").exists());
    kill(child.id(), Signal::INT);
    let ended: Ended = child.wait_with_output().unwrap().into();
    let ended = ended.exits(130);
    assert!(
        ended.stdout.contains("[cancelled] slow.sh ") && ended.stdout.contains("[not_run] last.sh"),
        "{ended:?}"
    );
    assert!(!ended.stdout.contains("Done."));
    lab.stead(&["bundle", "verify", "last"]).exits(0);
    wait_until("nothing is left", || lab.processes().is_empty());
}

/// Case 16: one run at a time acts on a target, over all checkouts; a killed one lets go.
#[test]
fn two_checkouts_do_not_act_on_one_target_at_once() {
    let lab = slow("touch started; sleep 60 & wait\n");
    let other = Homelab::with(SLOW);
    for name in ["first.sh", "slow.sh", "last.sh"] {
        other.script(name, "echo other\n");
    }
    let run_other = || -> Ended {
        other
            .command(env!("CARGO_BIN_EXE_stead"), &["steps", "run", "--json"])
            .env("HOME", lab.home())
            .output()
            .unwrap()
            .into()
    };
    let mut first = lab.command(env!("CARGO_BIN_EXE_stead"), &["steps", "run"]);
    let mut first =
        first.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
    wait_until("the step runs", || lab.path("started").exists());
    let run = lab.bundles()[0].file_name().unwrap().to_str().unwrap().to_owned();
    let refused = run_other().exits(5);
    assert!(
        refused.stderr.contains(&run) && refused.stderr.contains(&format!("pid {}", first.id())),
        "{}",
        refused.stderr
    );
    let document = refused.document();
    assert_eq!(statuses(&document), ["first.sh:not_run", "slow.sh:not_run", "last.sh:not_run"]);
    assert_eq!(document["steps"]["target"], "box");
    // What only reads takes no lock.
    let dry: Ended = other
        .command(env!("CARGO_BIN_EXE_stead"), &["steps", "run", "--dry-run"])
        .env("HOME", lab.home())
        .output()
        .unwrap()
        .into();
    dry.exits(0);
    first.kill().unwrap();
    first.wait().unwrap();
    run_other().exits(0);
    lab.end_processes();
}

/// Section 8: a `stead` that a step of the holder starts is not blocked.
#[test]
fn a_run_started_by_a_step_is_not_blocked() {
    let lab = slow("[ -z \"$NESTED\" ] || exit 0\nNESTED=1 \"$STEAD_BIN\" steps run --only first\n");
    lab.stead(&["steps", "run"]).exits(0);
    assert_eq!(lab.read("order"), "first\nfirst\nlast\n");
}

/// Section 8: nor is one that a run between them started, whatever that one acts on.
#[test]
fn a_run_started_by_a_run_of_a_step_is_not_blocked() {
    let between = "\
api_version: v1
target: { from: value, value: between }
layers: []
steps: { pass: { run: pass.sh } }
apply: [ { steps: [pass] } ]
";
    let lab = slow("[ -z \"$NESTED\" ] || exit 0\nNESTED=1 \"$STEAD_BIN\" steps run between/steps.yaml\n");
    lab.write("between/steps.yaml", between);
    lab.script(
        "between/pass.sh",
        "echo \"$STEAD_PARENT_RUNS\" > ../parents\n\"$STEAD_BIN\" steps run ../steps.yaml --only first\n",
    );
    lab.stead(&["steps", "run"]).exits(0);
    assert_eq!(lab.read("order"), "first\nfirst\nlast\n");
    let outer = lab.bundles()[0].file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(lab.read("parents"), format!("{outer}\n"));
}

/// Case 20: nothing is torn down under live data.
#[test]
fn a_volume_stops_the_teardown() {
    let lab = Homelab::new();
    lab.run(&[]).exits(0);
    lab.write(".lab/volumes/data", "precious");
    let report = lab.json(&["--delete", "--confirm", "homelab"], 4);
    assert_eq!(
        statuses(&report)[3..],
        [
            "99_execute_teardown.sh:failed",
            "26_manage_cilium_lifecycle.sh:not_run",
            "install-flux.sh:not_run",
            "98_verify_teardown_clean.sh:not_run"
        ]
    );
    assert_eq!(report["tasks"][3]["class"], "check");
    assert!(report["tasks"][3]["error"].as_str().unwrap().contains("volume:data"));
    assert_eq!(report["steps"]["checks"]["bad"], 1);
    assert!(lab.path(".lab/runtime-inputs.yaml").exists());
}

//! Plans, dry runs and confirmation.

use std::fs;

use serde_json::json;

use super::homelab::{APPLY, Homelab, codes, statuses, steps_in};
use crate::cases_17_32::lab::{Ended, program};

const DELETE: [&str; 7] = [
    "15_verify_cluster_access.sh",
    "32_reconcile_flux_stack.sh (delete)",
    "30_manage_cert_manager_cleanup.sh (delete)",
    "99_execute_teardown.sh (delete)",
    "26_manage_cilium_lifecycle.sh (delete)",
    "install-flux.sh (delete)",
    "98_verify_teardown_clean.sh (delete)",
];

/// Case 1: a dry run shows the six steps and does nothing.
#[test]
fn a_dry_run_shows_the_plan_and_does_nothing() {
    let lab = Homelab::new();
    let ended = lab.run(&["--dry-run"]).exits(0);
    assert_eq!(steps_in(&ended.stdout), APPLY);
    assert!(
        ended.stdout.starts_with("Plan: cluster apply, 6 steps, target homelab, hash "),
        "{}",
        ended.stdout
    );
    assert!(ended.stdout.ends_with("Dry run: nothing was executed.\n"), "{}", ended.stdout);
    assert!(ended.stdout.contains("\n  BASE_DOMAIN=homelab.test  # config.env:4\n"), "{}", ended.stdout);
    assert!(
        ended.stdout.contains("\n  OIDC_CLIENT_SECRET=***  # profiles/secrets.env:3\n"),
        "{}",
        ended.stdout
    );
    assert!(lab.log().is_empty());
    assert!(!lab.path(".lab").exists() && !lab.path(".stead").exists());
    assert_eq!(fs::read_dir(lab.home()).unwrap().count(), 0);
}

/// Case 1: a gate that is false leaves steps out, and says by which line.
#[test]
fn what_a_gate_leaves_out_is_told_with_file_and_line() {
    let lab = Homelab::new();
    lab.append("profiles/local.env", "FEAT_VERIFY=false");
    let line = lab.read("profiles/local.env").lines().count();
    let ended = lab.run(&["--dry-run"]).exits(0);
    let expected = [APPLY[0], APPLY[2], APPLY[3], APPLY[4]];
    assert_eq!(steps_in(&ended.stdout), expected);
    for name in [APPLY[1], APPLY[5]] {
        let left = format!("Left out: {name} (gate FEAT_VERIFY: false from profiles/local.env:{line})\n");
        assert!(ended.stdout.contains(&left), "{}", ended.stdout);
    }
    let document = lab.json(&["--dry-run"], 0);
    assert_eq!(document["steps"]["left_out"][0]["id"], "config-inputs");
    assert_eq!(document["steps"]["left_out"][0]["cause"], "gate");
}

/// Section 5: in a dry run scripts are assumed to change something, a file sink is compared, and a cluster not asked.
#[test]
fn a_dry_run_predicts_what_it_can_know() {
    let lab = Homelab::new();
    let document = lab.json(&["--dry-run"], 0);
    assert_eq!(document["mode"], "dry_run");
    assert_eq!(document["tasks"][0]["prediction"], "assumed");
    assert_eq!(document["tasks"][0]["step"]["assumed"], true);
    assert_eq!(
        (&document["tasks"][3]["status"], &document["tasks"][3]["prediction"]),
        (&json!("changed"), &json!("exact"))
    );
    let change = &document["steps"]["inputs"]["runtime"];
    assert_eq!(change["changed"], true, "{document:#}");
    assert!(change["added"].as_array().unwrap().contains(&json!("OIDC_CLIENT_SECRET")), "{change}");
    lab.run(&["--only", "sync-runtime-inputs.sh"]).exits(0);
    let document = lab.json(&["--dry-run"], 0);
    assert_eq!(document["tasks"][3]["status"], "unchanged");
    assert_eq!(document["steps"]["inputs"]["runtime"]["changed"], false);
    lab.replace(
        "steps/cluster.yaml",
        "kind: file, path: \"${LAB_STATE}/runtime-inputs.yaml\", format: manifest,",
        "kind: kubectl, command: scripts/no-such-kubectl,",
    );
    assert_eq!(lab.json(&["--dry-run"], 0)["tasks"][3]["status"], "unknown");
}

/// Section 1: a dry run provably writes nothing and starts nothing.
#[test]
fn a_dry_run_opens_nothing_for_writing_and_starts_no_program() {
    let Some(strace) = program("strace") else { return };
    let lab = Homelab::new();
    let log = tempfile::NamedTempFile::new().unwrap();
    let calls = "trace=open,openat,openat2,creat,mkdir,mkdirat,rename,renameat,renameat2,unlink,unlinkat,link,linkat,\
                 symlink,symlinkat,chmod,fchmod,fchmodat,truncate,ftruncate,execve,execveat,fork,vfork,clone,clone3";
    for args in [&["--dry-run"][..], &["--dry-run", "--json"], &["--dry-run", "--delete"]] {
        let mut traced = lab.command(&strace, &["-f", "-qq", "-e", calls, "-o"]);
        traced.arg(log.path()).arg(env!("CARGO_BIN_EXE_stead")).args(["steps", "run", "steps/cluster.yaml"]);
        let ended: Ended = traced.args(args).output().unwrap().into();
        ended.exits(0);
        let log = fs::read_to_string(log.path()).unwrap();
        let bad = log
            .lines()
            .filter(|line| !line.contains("resumed>") && !line.contains("<detached"))
            .filter(|line| {
                let call = line.split_once(' ').map_or("", |(_, call)| call.trim_start());
                let reads = call.starts_with("open")
                    && !call.contains("O_WRONLY")
                    && !call.contains("O_RDWR")
                    && !call.contains("O_CREAT");
                let thread = call.starts_with("clone") && call.contains("CLONE_THREAD");
                !reads && !thread && !call.starts_with("+++") && !call.starts_with("---")
            });
        let bad: Vec<&str> = bad.collect();
        // The one call that started the command itself.
        assert_eq!(bad.len(), 1, "{bad:#?}");
        assert!(bad[0].contains("execve("), "{bad:#?}");
    }
}

/// Case 2: delete is its own order, and every step but the first gets `--delete`.
#[test]
fn delete_runs_its_own_order() {
    let lab = Homelab::new();
    assert_eq!(steps_in(&lab.run(&["--delete", "--dry-run"]).exits(0).stdout), DELETE);
    let applied = lab.run(&[]).exits(0);
    assert!(applied.stdout.ends_with("Done.\n"), "{}", applied.stdout);
    let before = lab.log().len();
    let deleted = lab.run(&["--delete", "--confirm", "homelab"]).exits(0);
    assert_eq!(steps_in(&deleted.stdout), DELETE);
    let expected: Vec<String> = DELETE.iter().map(|name| name.replace(" (delete)", " --delete")).collect();
    assert_eq!(lab.log()[before..], expected);
    assert!(deleted.stdout.contains("[run] 99_execute_teardown.sh --delete\n"), "{}", deleted.stdout);
    assert!(!lab.path(".lab/runtime-inputs.yaml").exists());
}

/// Section 5: a real run prints the plan's bytes before its first step.
#[test]
fn a_run_prints_the_same_plan_first() {
    let lab = Homelab::new();
    let dry = lab.run(&["--dry-run", "--only", "15"]).exits(0).stdout;
    let (plan, _) = dry.split_once("Config:\n").unwrap();
    let run = lab.run(&["--only", "15"]).exits(0).stdout;
    let after = run.strip_prefix(plan).unwrap_or_else(|| panic!("{run}"));
    let lines: Vec<&str> = after.lines().collect();
    assert_eq!(lines[0], "[run] 15_verify_cluster_access.sh");
    assert_eq!(lines[1], "[OK] cluster.access the cluster of homelab can be reached");
    assert!(lines[2].starts_with("[unchanged] 15_verify_cluster_access.sh "), "{run}");
    assert_eq!(lines[3], "1 task: 1 unchanged");
    assert_eq!(lines.last(), Some(&"Done."));
}

/// Case 3: without the target's name nothing is deleted.
#[test]
fn delete_needs_the_targets_name() {
    let lab = Homelab::new();
    for (args, code) in [
        (&["--delete"][..], "steps/confirm-needed"),
        (&["--delete", "--confirm", ""], "steps/confirm-needed"),
        (&["--delete", "--confirm", "other"], "steps/confirm-mismatch"),
    ] {
        let ended = lab.run(args).exits(6);
        assert!(ended.stderr.contains("homelab") && ended.stderr.contains(code), "{}", ended.stderr);
        assert_eq!(steps_in(&ended.stdout), DELETE);
        let document = lab.json(args, 6);
        assert_eq!(codes(&document), [code]);
        assert_eq!(statuses(&document).len(), 7);
        assert_eq!(document["steps"]["target"], "homelab");
    }
    assert!(lab.log().is_empty() && !lab.path(".stead").exists());
}

/// Section 8: on a terminal the target's name is asked for; anything else is no.
#[test]
fn on_a_terminal_the_targets_name_is_asked_for() {
    let lab = Homelab::new();
    for (typed, code) in [("homelab\n", 0), ("yes\n", 6), ("\n", 6)] {
        let (slave, mut master) = crate::terminal::pty(24, 200);
        let mut command = lab.command(lab.path("run.sh"), &["--delete", "--only", "15"]);
        command.stdin(slave.try_clone().unwrap()).stderr(slave).stdout(std::process::Stdio::piped());
        let child = command.spawn().unwrap();
        // The command keeps its ends of the terminal; it must not be kept here.
        drop(command);
        let mut shown = String::new();
        let mut buffer = [0; 256];
        while !shown.contains("(homelab) to go on: ") {
            let count = std::io::Read::read(&mut master, &mut buffer).unwrap();
            shown.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
        std::io::Write::write_all(&mut master, typed.as_bytes()).unwrap();
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(code), "{typed:?}: {shown}");
        assert_eq!(steps_in(&String::from_utf8(ended.stdout).unwrap()), DELETE[..1]);
    }
    assert_eq!(lab.log(), ["15_verify_cluster_access.sh"]);
}

/// Section 8: an apply that holds a step destructive in apply needs the name as well, and a wrong one is never ignored.
#[test]
fn a_destructive_apply_needs_the_targets_name() {
    let lab = Homelab::with(
        "api_version: v1\ntarget: {from: value, value: box}\nlayers: []\n\
         steps:\n  wipe: {run: wipe.sh, destructive: [apply]}\n  look: {run: look.sh}\n\
         apply: [{steps: [look, wipe]}]\n",
    );
    lab.script("wipe.sh", "echo wiped\n");
    lab.script("look.sh", "echo looked\n");
    let ended = lab.stead(&["steps", "run"]).exits(6);
    assert!(ended.stdout.contains("Destructive: wipe.sh\n"), "{}", ended.stdout);
    lab.stead(&["steps", "run", "--only", "look"]).exits(0);
    lab.stead(&["steps", "run", "--only", "look", "--confirm", "box2"]).exits(6);
    lab.stead(&["steps", "run", "--confirm", "box"]).exits(0).says("wiped");
    lab.stead(&["steps", "run", "--delete", "--confirm", "box"]).exits(2);
}

/// Case 12: scripts that cannot run are named together, after the plan, and nothing runs.
#[test]
fn scripts_that_cannot_run_are_named_together() {
    let lab = Homelab::new();
    fs::remove_file(lab.path("scripts/15_verify_cluster_access.sh")).unwrap();
    let plain = fs::read(lab.path("scripts/94_verify_config_inputs.sh")).unwrap();
    fs::remove_file(lab.path("scripts/94_verify_config_inputs.sh")).unwrap();
    lab.write("scripts/94_verify_config_inputs.sh", plain);
    fs::write(lab.path("scripts/32_reconcile_flux_stack.sh"), "echo no interpreter\n").unwrap();
    let ended = lab.run(&[]).exits(3);
    assert_eq!(steps_in(&ended.stdout), APPLY);
    for code in ["steps/missing", "steps/not-executable", "steps/not-runnable"] {
        assert!(ended.stderr.contains(code), "{}", ended.stderr);
    }
    let document = lab.json(&[], 3);
    assert_eq!(codes(&document), ["steps/missing", "steps/not-executable", "steps/not-runnable"]);
    assert_eq!(statuses(&document).len(), 6);
    assert!(lab.log().is_empty() && !lab.path(".stead").exists());
}

/// Section 5: an interpreter that is not there is told before anything runs.
#[test]
fn a_missing_interpreter_is_named() {
    let lab = Homelab::new();
    for (name, line) in
        [("15_verify_cluster_access", "#!/no/such/sh"), ("94_verify_config_inputs", "#!/bin/sh\r")]
    {
        fs::write(lab.path(&format!("scripts/{name}.sh")), format!("{line}\necho hello\n")).unwrap();
    }
    let ended = lab.run(&[]).exits(3);
    assert!(ended.stderr.contains("begins with `#!/no/such/sh`, which is not there"), "{}", ended.stderr);
    assert!(ended.stderr.contains("its lines end in CR LF"), "{}", ended.stderr);
    assert!(lab.log().is_empty() && !lab.path(".stead").exists());
}

/// Section 1: what is wrong with the arguments is told at once, whether the catalogue has to be known for it or not.
#[test]
fn all_problems_of_arguments_are_told_at_once() {
    let lab = Homelab::with(
        "api_version: v1\nlayers: [{flag: profile}]\nsteps: {a: {run: a.sh}}\napply: [{steps: [a]}]\n",
    );
    let wrong = ["--only", ",", "--set", "DRY_RUN=true", "--host-env", "x.env", "--delete", "--json"];
    let stead = |first: &[&str]| lab.stead(&[&["steps", "run"], first, &wrong].concat()).exits(2).document();
    let [set, only, delete, flag] =
        ["steps/reserved-set", "steps/empty", "steps/unknown-flag", "steps/unknown-flag"];
    assert_eq!(codes(&stead(&[])), [set, only, delete, flag]);
    assert_eq!(codes(&stead(&["nosuch"])), [set, only, "steps/unknown-catalogue"]);
    // What is wrong with a catalogue belongs to the next group.
    lab.append("steps.yaml", "unknown: 1");
    assert_eq!(codes(&stead(&[])), [set, only]);
}

/// Section 2: a text as long as a file is not repeated whole.
#[test]
fn what_problems_repeat_is_bounded() {
    let long = "n".repeat(1 << 20);
    let lab = Homelab::with(&format!(
        "api_version: v1\nname: {long}!\n{long}: 1\nlayers: []\nsteps: {{a: {{run: /{long}}}}}\napply: [{{steps: [a]}}]\n"
    ));
    lab.write("plan.yaml", format!("api_version: v1\nname: {long}!\ntasks: {{a: {{{long}: 1}}}}\n"));
    for args in [["steps", "run", "--json"], ["plan", "show", "plan.yaml"]] {
        let ended = lab.stead(&args).exits(3);
        let said = ended.stdout.len() + ended.stderr.len();
        assert!((100..100_000).contains(&said), "{args:?}: {said} bytes");
    }
}

/// Case 13: one run shows all problems of a catalogue, each with its line.
#[test]
fn all_problems_of_a_catalogue_are_told_at_once() {
    let lab = Homelab::with(
        "api_version: v1\nlayers: []\nsteps:\n  a: {run: a.sh, modess: [apply]}\n  b: {run: b.sh, needs: {apply: [c]}}\n  \
         c: {run: c.sh}\n  d: {run: d.sh, modes: [delete]}\n  e: {run: e.sh, gate: NO_SUCH}\n\
         apply:\n  - {steps: [a, b, c, d]}\n  - {steps: [e, a]}\n",
    );
    let document = lab.stead(&["steps", "run", "--json"]).exits(3).document();
    let lines: Vec<i64> = document["diagnostics"]
        .as_array()
        .unwrap()
        .iter()
        .map(|problem| problem["line"].as_i64().unwrap())
        .collect();
    assert_eq!(lines.len(), 5, "{document:#}");
    assert!(codes(&document).iter().all(|code| code == "steps/catalogue"), "{document:#}");
    for line in [4, 5, 8, 10, 11] {
        assert!(lines.contains(&line), "no problem in line {line}: {document:#}");
    }
}

/// Section 1: a catalogue is found by path, by name, or because it is the only one; state lies at its root.
#[test]
fn catalogues_are_found_from_below_and_by_name() {
    let lab = Homelab::new();
    let from_below = |args: &[&str]| -> Ended {
        lab.command(env!("CARGO_BIN_EXE_stead"), args)
            .current_dir(lab.path("scripts/bootstrap"))
            .output()
            .unwrap()
            .into()
    };
    let several = from_below(&["steps", "run", "--json", "--dry-run"]).exits(2).document();
    assert_eq!(several["diagnostics"][0]["candidates"], json!(["cluster", "host"]));
    from_below(&["steps", "run", "cluster", "--dry-run"]).exits(0);
    let unknown = from_below(&["steps", "run", "clutser", "--json"]).exits(2).document();
    assert_eq!(codes(&unknown), ["steps/unknown-catalogue"]);
    assert!(
        unknown["diagnostics"][0]["help"].as_str().unwrap().contains("did you mean `cluster`?"),
        "{unknown}"
    );
    from_below(&["steps", "run", "no/such.yaml"]).exits(3);
    from_below(&["steps", "run", "cluster", "--only", "15"]).exits(0);
    assert!(lab.path(".stead/runs").is_dir());
    lab.write("steps/other.yaml", "api_version: v1\nname: cluster\nlayers: []\nsteps: {}\napply: []\n");
    from_below(&["steps", "run", "cluster"]).exits(3).says("both called `cluster`");
}

/// Section 2: the target is read from kubeconfigs, the first that names a context; what nothing names is not deleted.
#[test]
fn the_target_is_read_from_kubeconfigs() {
    let lab = Homelab::with(
        "api_version: v1\nname: t\ntarget: {from: kubeconfig}\nlayers: []\nsteps: {a: {run: a.sh}}\n\
         apply: [{steps: [a]}]\ndelete: [{steps: [a]}]\n",
    );
    lab.script("a.sh", "echo \"on $STEAD_TARGET\"\n");
    let run = |kubeconfig: Option<&str>, args: &[&str]| -> Ended {
        let args: Vec<&str> = ["steps", "run"].into_iter().chain(args.iter().copied()).collect();
        let mut command = lab.command(env!("CARGO_BIN_EXE_stead"), &args);
        match kubeconfig {
            Some(files) => command.env("KUBECONFIG", files),
            None => command.env_remove("KUBECONFIG"),
        };
        command.output().unwrap().into()
    };
    let unknown = run(None, &["--dry-run"]).exits(0);
    assert!(unknown.stdout.contains(", target unknown, "), "{}", unknown.stdout);
    let refused = run(None, &["--delete", "--confirm", "unknown"]).exits(3);
    assert!(refused.stdout.starts_with("Plan: t delete"), "{}", refused.stdout);
    lab.write("one", "apiVersion: v1\nclusters: []\n");
    lab.write("two", "{\"current-context\": \"second\"}");
    lab.write("three", "current-context: third\n");
    run(Some("missing:one:two:three"), &[]).exits(0).says("on second\n");
    lab.write("broken", "current-context: [\n");
    let warned = run(Some("broken:three"), &["--delete", "--confirm", "third"]).exits(0);
    assert!(warned.stderr.contains("steps/kubeconfig") && warned.stdout.contains("on third\n"), "{warned:?}");
    fs::create_dir(lab.home().join(".kube")).unwrap();
    fs::write(lab.home().join(".kube/config"), "current-context: of-home\n").unwrap();
    run(None, &[]).exits(0).says("on of-home\n");
    lab.replace("steps.yaml", "target: {from: kubeconfig}\n", "");
    let root = lab.root().canonicalize().unwrap();
    run(None, &[]).exits(0).says(&format!("on t@{}\n", root.display()));
    lab.replace(
        "steps.yaml",
        "layers: []",
        "layers: [{file: s.env, secret: true}]\nvars: {S: {}}\ntarget: {from: value, value: \"${S}\"}",
    );
    lab.write("s.env", "S=hidden-name\n");
    let secret = run(None, &[]).exits(3);
    assert!(
        secret.stderr.contains("the target holds a secret") && !secret.stderr.contains("hidden-name"),
        "{}",
        secret.stderr
    );
}

/// Section 5: a dry run that fails says why.
#[test]
fn a_dry_run_that_fails_says_why() {
    let lab = Homelab::new();
    fs::create_dir(lab.path(".lab")).unwrap();
    std::os::unix::fs::symlink("/nowhere", lab.path(".lab/runtime-inputs.yaml")).unwrap();
    let ended = lab.run(&["--only", "runtime-inputs", "--dry-run"]).exits(1);
    assert!(ended.stderr.contains("]: runtime-inputs: "), "{}", ended.stderr);
}

/// Section 9: an empty value makes no absolute path of one that starts at the root.
#[test]
fn an_empty_value_leads_no_path_out_of_the_root() {
    let lab = Homelab::new();
    let args = ["--only", "runtime-inputs", "--dry-run"];
    let refused = lab.run(&[&args[..], &["--set", "LAB_STATE="]].concat()).exits(3);
    assert!(refused.stderr.contains("becomes an absolute path"), "{}", refused.stderr);
    let elsewhere = format!("LAB_STATE={}", lab.home().display());
    lab.run(&[&args[..], &["--set", &elsewhere]].concat()).exits(0);
}

/// Section 1: events that cannot be written are told, and a success is none.
#[test]
fn events_that_cannot_be_written_are_told() {
    let lab = Homelab::new();
    let ended = lab.run(&["--only", "15", "--events", "/dev/full"]).exits(1);
    assert!(ended.stderr.contains("cannot write /dev/full"), "{}", ended.stderr);
    assert_eq!(lab.log().len(), 1);
}

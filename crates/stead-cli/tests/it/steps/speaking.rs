//! What steps say, what they see, and what becomes of it.

use serde_json::json;

use super::homelab::{APPLY, Homelab, statuses};

const TWO: &str = "\
api_version: v1
name: two
target: {from: value, value: box}
layers: [{file: values.env}, {file: secret.env, secret: true}]
vars:
  COLOR: {}
  EMPTY: {}
  TOKEN: {secret: true}
  OTHER: {secret: true}
steps:
  make-it: {run: make.sh, args: {apply: [--color, \"${COLOR}\"]}, env: {EXTRA: \"<${COLOR}>\"}, secrets: [TOKEN]}
  look: {run: look.sh, cwd: sub}
apply: [{steps: [make-it, look]}]
";

fn two() -> Homelab {
    let lab = Homelab::with(TWO);
    lab.write("values.env", "COLOR=red\n");
    lab.write("secret.env", "TOKEN=top-secret\nOTHER=other-secret\n");
    lab.write("sub/here", "");
    lab
}

/// Case 17: remedies are printed once, outputs reach later steps, and what a script says is in its row.
#[test]
fn what_steps_say_arrives() {
    let lab = two();
    lab.script("make.sh", "echo ::suggest fix it\necho '::output url=http://x'\necho ::changed false\necho plain\necho ::check warn a.b careful\n");
    lab.script(
        "look.sh",
        "echo '::suggest  fix it '\necho ::suggest other\necho \"url is $STEAD_OUTPUT_MAKE_IT_URL\"\n",
    );
    let ended = lab.stead(&["steps", "run"]).exits(0);
    assert!(ended.stdout.contains("Suggested:\n  fix it\n  other\n"), "{}", ended.stdout);
    assert_eq!(ended.stdout.matches("fix it").count(), 1, "{}", ended.stdout);
    assert!(ended.stdout.contains("\nplain\n[WARN] a.b careful\n"), "{}", ended.stdout);
    assert!(ended.stdout.contains("\nurl is http://x\n"), "{}", ended.stdout);
    assert!(!ended.stdout.contains("::"), "{}", ended.stdout);
    let report = lab.stead(&["steps", "run", "--json"]).exits(0).document();
    assert_eq!(statuses(&report), ["make.sh:unchanged", "look.sh:changed"]);
    let first = &report["tasks"][0]["step"];
    assert_eq!(first["outputs"], json!({"url": "http://x"}));
    assert_eq!(first["args"], json!(["--color", "red"]));
    assert_eq!((&first["assumed"], &first["exit_code"]), (&json!(false), &json!(0)));
    assert_eq!(first["checks"], json!([{"level": "warn", "key": "a.b", "message": "careful"}]));
    assert_eq!(report["tasks"][1]["step"]["assumed"], true);
    assert_eq!(report["steps"]["suggestions"], json!(["fix it", "other"]));
    assert_eq!(report["steps"]["checks"], json!({"ok": 0, "bad": 0, "warn": 1}));
    assert_eq!(report["steps"]["bundle"], report["bundle"]);
}

/// Case 17: a second apply changes nothing.
#[test]
fn a_second_apply_finds_everything_in_place() {
    let lab = Homelab::new();
    lab.json(&[], 0);
    let again = lab.json(&[], 0);
    let expected: Vec<String> = APPLY.iter().map(|name| format!("{name}:unchanged")).collect();
    assert_eq!(statuses(&again), expected);
}

/// Section 6: a step's environment is the caller's, with the values and without what is not granted.
#[test]
fn a_step_sees_values_and_only_granted_secrets() {
    let lab = two();
    lab.script("make.sh", "env >env.make; echo \"$@\" >args; pwd >cwd.make; cat >stdin.make\n");
    lab.script("look.sh", "env >../env.look; pwd >../cwd.look\n");
    let mut command = lab.command(env!("CARGO_BIN_EXE_stead"), &["steps", "run"]);
    for (name, value) in
        [("CALLER", "1"), ("EMPTY", "from the caller"), ("DRY_RUN", ""), ("ONLY", "x"), ("OTHER", "mine")]
    {
        command.env(name, value);
    }
    command.env("STEAD_OUTPUT_MAKE_IT_FORGED", "of another run");
    let ended: crate::cases_17_32::lab::Ended = command.output().unwrap().into();
    ended.exits(0);
    let root = lab.root().canonicalize().unwrap().display().to_string();
    let env = |name: &str| -> Vec<String> { lab.read(name).lines().map(str::to_owned).collect() };
    let (make, look) = (env("env.make"), env("env.look"));
    let has = |env: &[String], line: &str| env.iter().any(|found| found == line);
    let names = |env: &[String], name: &str| env.iter().any(|found| found.starts_with(&format!("{name}=")));
    for line in [
        "COLOR=red",
        "EXTRA=<red>",
        "TOKEN=top-secret",
        "CALLER=1",
        "STEAD_TASK=make-it",
        "STEAD_ATTEMPT=1",
        "STEAD_MODE=apply",
        "STEAD_CATALOGUE=two",
        "STEAD_TARGET=box",
    ] {
        assert!(has(&make, line), "no {line}: {make:#?}");
    }
    assert!(has(&make, &format!("STEAD_ROOT={root}")) && names(&make, "STEAD_RUN_ID"), "{make:#?}");
    for name in ["EMPTY", "OTHER", "ONLY", "DRY_RUN", "PROFILE_FILE", "STEAD_OUTPUT_MAKE_IT_FORGED"] {
        assert!(!names(&make, name), "{name}: {make:#?}");
    }
    assert!(has(&look, "COLOR=red") && !names(&look, "TOKEN") && !names(&look, "EXTRA"), "{look:#?}");
    assert_eq!(lab.read("args").trim(), "--color red");
    assert_eq!(lab.read("stdin.make"), "");
    assert_eq!(
        (lab.read("cwd.make").trim(), lab.read("cwd.look").trim()),
        (root.as_str(), format!("{root}/sub").as_str())
    );
}

/// Section 6: two outputs may have one variable.
#[test]
fn outputs_that_come_to_one_variable_are_told_and_the_later_counts() {
    let lab = Homelab::with(
        "api_version: v1\nlayers: []\nsteps: {a-b: {run: one.sh}, a: {run: two.sh}, c: {run: look.sh}}\n\
         apply: [{steps: [a-b, a, c]}]\n",
    );
    lab.script("one.sh", "echo '::output c=first'\n");
    lab.script("two.sh", "echo '::output b_c=later'\n");
    lab.script("look.sh", "echo \"saw $STEAD_OUTPUT_A_B_C\"\n");
    lab.stead(&["steps", "run"])
        .exits(0)
        .says("saw later")
        .says("STEAD_OUTPUT_A_B_C is output `c` of a-b and");
}

/// Section 7: a bad check fails a step that exits 0, with exit code 4; a malformed line is a warning and plain text.
#[test]
fn a_bad_check_fails_and_a_malformed_line_does_not() {
    let lab = two();
    lab.script("make.sh", "echo ::check maybe x; echo ::check bad disk full; exit 0\n");
    lab.script("look.sh", "exit 0\n");
    let ended = lab.stead(&["steps", "run"]).exits(4);
    assert!(ended.stdout.contains("\n::check maybe x\n[BAD] disk full\n"), "{}", ended.stdout);
    assert!(ended.stderr.contains("steps/line"), "{}", ended.stderr);
    assert!(!ended.stdout.contains("Done."), "{}", ended.stdout);
    let report = lab.stead(&["steps", "run", "--json"]).exits(4).document();
    assert_eq!(report["tasks"][0]["class"], "check");
    assert_eq!(statuses(&report), ["make.sh:failed", "look.sh:not_run"]);
}

/// Section 2: class `check` is retried too, and only the last attempt's checks count.
#[test]
fn checks_are_retried_and_only_the_last_attempt_counts() {
    let lab = two();
    lab.replace("steps.yaml", "secrets: [TOKEN]}", "secrets: [TOKEN], retry: 1}");
    lab.script(
        "make.sh",
        "if [ -e tried ]; then echo ::check ok a; else touch tried; echo ::check bad a not yet; fi\n",
    );
    lab.script("look.sh", "exit 0\n");
    let report = lab.stead(&["steps", "run", "--json"]).exits(0).document();
    assert_eq!(report["tasks"][0]["attempts"], 2);
    assert_eq!(report["steps"]["checks"], json!({"ok": 1, "bad": 0, "warn": 0}));
}

/// Section 6: a daemon that a script leaves behind does not hold the run.
#[test]
fn a_daemon_does_not_hold_the_run() {
    let lab = two();
    lab.script("make.sh", "sleep 600 & echo $! >pid\necho started\n");
    lab.script("look.sh", "exit 0\n");
    let start = std::time::Instant::now();
    lab.stead(&["steps", "run"]).exits(0);
    assert!(start.elapsed() < std::time::Duration::from_secs(120));
    let pid: u32 = lab.read("pid").trim().parse().unwrap();
    crate::cases_17_32::lab::kill(pid, rustix::process::Signal::KILL);
    crate::cases_17_32::lab::wait_until("the daemon is gone", || lab.processes().is_empty());
}

//! Runs whose driver is killed, and taken up again.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::lab::{Lab, essence, kill, statuses, task, wait_until};

/// `middle` blocks until the file `go` is there.
const BLOCKS: &str = r#"api_version: v1
name: blocks
grace: 1s
tasks:
  - {name: first, shell: "echo first >> out"}
  - {name: middle, depends_on: first, shell: "echo middle >> out; touch started; while ! test -e go; do sleep 0.02; done"}
  - {name: last, depends_on: middle, shell: "echo last >> out"}
"#;

/// Runs `p.yaml` as `r1` until `started` is there, then kills the driver alone.
fn killed_in_the_middle(lab: &Lab, args: &[&str]) {
    let running = lab.start_plan("r1", args);
    lab.wait_for_file("started");
    running.kill_hard();
}

/// Case 20: an interrupted command fails with both ways on named, on every resume, until a person decides: rerun.
#[test]
fn an_interrupted_command_stays_failed_until_it_is_rerun() {
    let lab = Lab::new(BLOCKS);
    killed_in_the_middle(&lab, &[]);
    for segment in [2, 3] {
        let report = lab.run(["resume", "r1", "--json"]).exits(1).document();
        let row = task(&report, "middle");
        assert_eq!((&row["status"], &row["class"]), (&json!("failed"), &json!("interrupted")));
        let error = row["error"].as_str().unwrap();
        for part in ["middle", "local", "--rerun middle", "--assume-done middle"] {
            assert!(error.contains(part), "no `{part}` in {error}");
        }
        assert_eq!(report["segments"], segment);
        assert_eq!(lab.read("out"), "first\nmiddle\n");
    }
    lab.run(["resume", "r1"]).exits(1).says("stead resume r1 --rerun middle");
    lab.write("go", "");
    let report = lab.run(["resume", "r1", "--rerun", "middle", "--json"]).exits(0).document();
    assert_eq!(statuses(&report), ["first:changed", "middle:changed", "last:changed"]);
    assert_eq!(lab.read("out"), "first\nmiddle\nmiddle\nlast\n");
    lab.verify("r1");
    // Case 21: a successful run is only shown.
    let shown = lab.run(["resume", "r1", "--json"]).exits(0).document();
    assert_eq!(essence(&shown), essence(&report));
    assert_eq!(lab.read("out"), "first\nmiddle\nmiddle\nlast\n");
}

/// Case 20: the other way on: the command counts as done, and changed.
#[test]
fn an_interrupted_command_can_be_assumed_done() {
    let lab = Lab::new(BLOCKS);
    killed_in_the_middle(&lab, &[]);
    lab.run(["resume", "r1", "--assume-done", "first"]).exits(2);
    lab.run(["resume", "r1", "--assume-done", "none"]).exits(2).says("none");
    let report = lab.run(["resume", "r1", "--assume-done", "middle", "--json"]).exits(0).document();
    assert_eq!(statuses(&report), ["first:changed", "middle:changed", "last:changed"]);
    assert_eq!(lab.read("out"), "first\nmiddle\nlast\n", "it did not run again");
    lab.verify("r1");
}

/// Case 20: commands that are interrupted together are all told of; deciding about one says nothing about the other.
#[test]
fn each_interrupted_command_is_asked_for_by_itself() {
    let blocks = |name: &str| {
        format!(
            "  - {{name: {name}, shell: \"echo {name}; echo {name} >> out-{name}; touch {name}.started; \
             while ! test -e go; do sleep 0.02; done; echo done\"}}\n"
        )
    };
    let lab = Lab::new(&format!(
        "api_version: v1\nname: two\ngrace: 1s\ntasks:\n{}{}",
        blocks("left"),
        blocks("right")
    ));
    let running = lab.start_plan("r1", &[]);
    lab.wait_for_file("left.started");
    lab.wait_for_file("right.started");
    running.kill_hard();
    lab.write("go", "");
    let report = lab.run(["resume", "r1", "--json"]).exits(1).document();
    for name in ["left", "right"] {
        assert_eq!(task(&report, name)["class"], "interrupted", "{name}");
    }
    lab.run(["resume", "r1"]).exits(1).says("stead resume r1 --rerun left --rerun right");
    // What is begun meanwhile is stopped by the failure of the other.
    let report = lab.run(["resume", "r1", "--rerun", "left", "--json"]).exits(1).document();
    assert_eq!(task(&report, "right")["class"], "interrupted");
    assert_eq!(lab.read("out-right"), "right\n");
    let report = lab.run(["resume", "r1", "--assume-done", "right", "--json"]).exits(0).document();
    assert_eq!(statuses(&report), ["left:changed", "right:changed"]);
    assert_eq!(lab.read("out-right"), "right\n");
    lab.verify("r1");
}

/// Section 11: `interrupted: retry` and `idempotent: true` run again without being asked, and use up no retry.
#[test]
fn an_interrupted_task_that_may_run_again_does() {
    for setting in ["interrupted: retry", "idempotent: true"] {
        let lab = Lab::new(&BLOCKS.replace("name: middle,", &format!("name: middle, {setting},")));
        killed_in_the_middle(&lab, &[]);
        lab.write("go", "");
        let report = lab.run(["resume", "r1", "--json"]).exits(0).document();
        assert_eq!(statuses(&report), ["first:changed", "middle:changed", "last:changed"]);
        assert_eq!(lab.read("out"), "first\nmiddle\nmiddle\nlast\n", "{setting}");
        assert_eq!(task(&report, "middle")["attempts"], 1, "{setting}: the interrupted one does not count");
    }
}

/// Case 21: killed after task k of 20 appenders; finished ones do not run again, and the report is the same.
#[test]
fn finished_tasks_do_not_run_again() {
    let tasks: String = (0..20)
        .map(|i| {
            let after = if i == 0 { String::new() } else { format!("depends_on: t{:02}, ", i - 1) };
            let stop = if i == 7 { "; touch started; test -e go || exec sleep 60" } else { "" };
            format!(
                "  - {{name: t{i:02}, {after}idempotent: true, shell: \"echo {i} >> out; echo {i}{stop}\"}}\n"
            )
        })
        .collect();
    let plan = format!("api_version: v1\nname: append\ngrace: 1s\ntasks:\n{tasks}");
    let calm = Lab::new(&plan);
    calm.write("go", "");
    let wanted = calm.plan_report(&[], 0);
    let lab = Lab::new(&plan);
    killed_in_the_middle(&lab, &[]);
    lab.write("go", "");
    let report = lab.run(["resume", "r1", "--json"]).exits(0).document();
    assert_eq!(essence(&report), essence(&wanted));
    assert_eq!(report["segments"], 2);
    let lines = lab.read("out");
    for i in 0..20 {
        let times = lines.lines().filter(|line| *line == i.to_string()).count();
        assert_eq!(times, if i == 7 { 2 } else { 1 }, "t{i:02}");
    }
}

/// Section 11: what the dead run left running is ended before anything runs, and said; also what ignores the request.
#[test]
fn processes_of_a_dead_run_are_ended_and_named() {
    let lab = Lab::new(
        r#"api_version: v1
name: leaves
grace: 200ms
tasks:
  - name: stubborn
    interrupted: retry
    shell: |
      test -e started && exit 0
      trap '' TERM
      sleep 1000 &
      echo $! > child
      touch started
      while :; do sleep 1000; done
"#,
    );
    killed_in_the_middle(&lab, &[]);
    let child: u32 = lab.read("child").trim().parse().unwrap();
    assert!(!lab.processes().is_empty(), "the driver alone was killed");
    let report = lab.run(["resume", "r1", "--json"]).exits(0).document();
    let said = report["warnings"].to_string();
    assert!(said.contains("run/process-ended") && said.contains(&format!("pid {child}")), "{said}");
    assert!(said.contains("stubborn"), "{said}");
    lab.nothing_runs();
    let events = lab.events("r1");
    let position = |ev: &str| events.iter().rposition(|event| event["ev"] == ev).unwrap();
    assert!(
        position("run_resumed") < position("warning") && position("warning") < position("attempt_started")
    );
}

/// Section 11: a daemon that a finished task started is its result, not a left-over.
#[test]
fn a_daemon_of_a_finished_task_lives_on() {
    let lab = Lab::new(
        r#"api_version: v1
name: daemon
grace: 1s
tasks:
  - {name: serve, shell: "setsid sleep 1000 > /dev/null 2>&1 < /dev/null & echo $! > daemon"}
  - {name: middle, depends_on: serve, interrupted: retry, shell: "test -e go && exit 0; touch started; exec sleep 1000"}
"#,
    );
    killed_in_the_middle(&lab, &[]);
    lab.write("go", "");
    lab.run(["resume", "r1"]).exits(0);
    let left = lab.processes();
    assert_eq!(left.len(), 1, "{left:?}");
    kill(left[0].0, Signal::KILL);
    wait_until("the daemon is gone", || lab.processes().is_empty());
}

/// Case 22: a changed task is named and nothing runs; `--force` runs it again and keeps the others.
#[test]
fn a_changed_plan_is_refused_and_forced() {
    let lab = Lab::new(BLOCKS);
    killed_in_the_middle(&lab, &[]);
    lab.write_plan(&BLOCKS.replace("echo first", "echo premier").replace("name: last", "name: final"));
    lab.write("go", "");
    let before = fs::read(lab.bundle("r1").join("events.jsonl")).unwrap();
    let refused = lab.run(["resume", "r1", "--rerun", "middle", "--json"]).exits(4);
    let said = refused.document().to_string();
    for part in ["added final", "removed last", "changed first"] {
        assert!(said.contains(part), "no `{part}` in {said}");
    }
    assert_eq!(fs::read(lab.bundle("r1").join("events.jsonl")).unwrap(), before);
    assert_eq!(lab.read("out"), "first\nmiddle\n");
    let report = lab.run(["resume", "r1", "--force", "--rerun", "middle", "--json"]).exits(0).document();
    assert_eq!(statuses(&report), ["first:changed", "middle:changed", "final:changed"]);
    assert_eq!(lab.read("out"), "first\nmiddle\npremier\nmiddle\nlast\n");
    lab.verify("r1");
    assert!(fs::read_to_string(lab.bundle("r1").join("plan.yaml")).unwrap().contains("premier"));
}

/// Case 22: kept rows are those with the same name and the same task; comments and key order are no change.
#[test]
fn force_keeps_what_is_the_same() {
    let plan = |b: &str| {
        format!(
            "api_version: v1\nname: k\non_error: continue\ntasks:\n  - {{name: a, shell: \"echo a >> out\"}}\n  - {{name: b, shell: \"{b}\"}}\n  - {{name: c, depends_on: b, shell: \"echo c >> out\"}}\n"
        )
    };
    let lab = Lab::new(&plan("exit 1"));
    lab.plan(&["--run-id", "r1"]).exits(1);
    lab.write_plan(&format!("# said\n{}", plan("exit 1")));
    lab.run(["resume", "r1"]).exits(1);
    lab.write_plan(&plan("echo b >> out"));
    lab.run(["resume", "r1"]).exits(4).says("changed b");
    let report = lab.run(["resume", "r1", "--force", "--json"]).exits(0).document();
    assert_eq!(statuses(&report), ["a:changed", "b:changed", "c:changed"]);
    assert_eq!(lab.read("out"), "a\nb\nc\n", "a did not run again");
    // The forced plan is the recorded one now.
    lab.run(["resume", "r1"]).exits(0);
}

/// Section 11: the source is gone: the stored plan goes on, with a warning. A changed plan.json is refused, forced or not.
#[test]
fn a_lost_source_is_a_warning_and_a_changed_record_a_refusal() {
    let lab = Lab::new(BLOCKS);
    killed_in_the_middle(&lab, &[]);
    lab.write("go", "");
    fs::remove_file(lab.path("p.yaml")).unwrap();
    let stored = lab.bundle("r1").join("plan.json");
    let good = fs::read_to_string(&stored).unwrap();
    fs::write(&stored, good.replace("echo last", "echo evil")).unwrap();
    lab.run(["resume", "r1", "--rerun", "middle"]).exits(4);
    lab.run(["resume", "r1", "--rerun", "middle", "--force"]).exits(4);
    assert_eq!(lab.read("out"), "first\nmiddle\n");
    fs::write(&stored, good).unwrap();
    let report = lab.run(["resume", "r1", "--rerun", "middle", "--json"]).exits(0).document();
    assert!(report["warnings"].to_string().contains("is gone"), "{}", report["warnings"]);
}

/// Section 11: a missing secret is named, exit 3, and nothing runs.
#[test]
fn resume_without_a_secret_names_it() {
    let plan = BLOCKS.replace("tasks:", "secrets: {key: {env: API_KEY}}\ntasks:").replace(
        "shell: \"echo last >> out\"",
        "shell: \"echo last >> out\", params: {env: {KEY: \"{{ secrets.key }}\"}}",
    );
    let lab = Lab::new(&plan);
    let mut command = lab.stead(["plan", "run", "p.yaml", "--run-id", "r1"]);
    let mut child = command.env("API_KEY", "hunter22").stderr(std::process::Stdio::null()).spawn().unwrap();
    lab.wait_for_file("started");
    child.kill().unwrap();
    child.wait().unwrap();
    lab.write("go", "");
    lab.run(["resume", "r1", "--assume-done", "middle"]).exits(3).says("API_KEY");
    let ended =
        lab.stead(["resume", "r1", "--assume-done", "middle"]).env("API_KEY", "hunter22").output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(lab.read("out"), "first\nmiddle\nlast\n");
}

/// Section 11: killed in `finally`: the main part is decided, `finally` goes on with what is unfinished.
#[test]
fn a_run_killed_in_finally_goes_on_there() {
    let lab = Lab::new(
        r#"api_version: v1
name: fin
grace: 1s
on_error: continue
tasks:
  - {name: good, shell: "echo good >> out"}
  - {name: bad, shell: "echo bad >> out; exit 1"}
finally:
  - {name: one, shell: "echo one >> out"}
  - {name: two, depends_on: one, idempotent: true, shell: "echo two >> out; test -e go && exit 0; touch started; exec sleep 60"}
"#,
    );
    killed_in_the_middle(&lab, &[]);
    lab.write("go", "");
    let report = lab.run(["resume", "r1", "--json"]).exits(1).document();
    assert_eq!(statuses(&report), ["good:changed", "bad:failed", "one:changed", "two:changed"]);
    let mut lines: Vec<String> = lab.read("out").lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["bad", "good", "one", "two", "two"]);
}

/// Section 11: a failed run runs its broken tasks and all of `finally` again; what ran or passed is kept.
#[test]
fn resume_of_a_failed_run_repeats_only_what_broke() {
    let lab = Lab::new(
        r#"api_version: v1
name: failed
on_error: continue
tasks:
  - {name: ran, shell: "echo ran >> out"}
  - {name: passed, when: "false", shell: "echo passed >> out"}
  - {name: broke, shell: "echo broke >> out; test -e fixed"}
  - {name: behind, depends_on: broke, shell: "echo behind >> out"}
finally:
  - {name: after, shell: "echo after >> out"}
"#,
    );
    lab.plan(&["--run-id", "r1", "--parallel", "1"]).exits(1);
    lab.write("fixed", "");
    let report: Value = lab.run(["resume", "r1", "--json"]).exits(0).document();
    assert_eq!(
        statuses(&report),
        ["ran:changed", "passed:skipped", "broke:changed", "behind:changed", "after:changed"]
    );
    assert_eq!(lab.read("out"), "ran\nbroke\nafter\nbroke\nbehind\nafter\n");
    lab.verify("r1");
}

/// Section 5 of reach: the host that `_any` chose is journaled, and retries and resumes keep it, even if the set has
/// grown and would give another by now. It is that host that is locked.
#[test]
fn the_choice_of_any_is_kept_by_retries_and_resume() {
    let inventory = |names: std::ops::Range<u32>| {
        let hosts: Vec<String> = names.map(|i| format!("h{i}: {{transport: local}}")).collect();
        format!("{{api_version: v1, hosts: {{{}}}}}", hosts.join(", "))
    };
    let lab = Lab::new(
        r#"api_version: v1
name: any
grace: 1s
tasks:
  - name: pick
    target: _any
    idempotent: true
    retry: 1
    shell: "echo $STEAD_HOST >> out; test $(wc -l < out) -gt 1 || exit 1; touch started; while ! test -e go; do sleep 0.02; done; test -e good"
"#,
    );
    lab.write("inventory.yaml", inventory(0..4));
    killed_in_the_middle(&lab, &[]);
    let events = lab.events("r1");
    let chosen = |events: &[Value]| -> Vec<String> {
        let started = events.iter().filter(|event| event["ev"] == "task_started");
        started.map(|event| event["hosts"][0].as_str().unwrap().to_owned()).collect()
    };
    let first = chosen(&events)[0].clone();
    // Names before and after the old ones: a choice made anew would hardly hit the same host out of a hundred.
    lab.write("inventory.yaml", inventory(0..100));
    let mut resumed = lab.start(["resume", "r1"]);
    wait_until("the resumed attempt", || lab.read("out").lines().count() == 3);
    let lock: Value = serde_json::from_str(&lab.read(&format!("state/locks/{first}.lock"))).unwrap();
    assert_eq!((&lock["run"], &lock["pid"]), (&json!("r1"), &json!(resumed.pid())));
    assert!(!resumed.is_over());
    lab.write("go", "");
    resumed.end().exits(1);
    // The run has ended, as failed: another resume runs the task again, on that host.
    lab.write("good", "");
    lab.run(["resume", "r1"]).exits(0);
    let hosts: std::collections::BTreeSet<String> = lab.read("out").lines().map(str::to_owned).collect();
    assert!(hosts.iter().eq([&first]), "{hosts:?}");
    assert_eq!(chosen(&lab.events("r1")), [first.clone(), first.clone(), first]);
}

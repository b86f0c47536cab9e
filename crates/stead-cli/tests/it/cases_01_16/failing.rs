//! Cases 5 and 7: what a failure stops and what it does not; exit codes of failures.

use super::stage::{Stage, eventually, is_alive, wait_for_end};
use rustix::process::Signal;

/// Case 5: nothing new starts after a failure, dependent or not, and every task has its row.
#[test]
fn stop_all_leaves_the_rest_not_run() {
    let stage = Stage::of(
        "  - {name: a, shell: 'exit 3'}
  - {name: b, depends_on: a, shell: 'touch b'}
  - {name: d, shell: 'touch d'}
",
    );
    let outcome = stage.run(&["--parallel", "1"]).exits(1);
    assert_eq!(outcome.statuses(), "a=failed b=not_run d=not_run");
    assert_eq!(outcome.report["status"], "failed");
    for task in ["b", "d"] {
        assert!(outcome.get(task, "reason").contains("`a`"), "{:#}", outcome.task(task));
        assert!(!stage.has(task));
    }
    assert_eq!((outcome.get("a", "error"), outcome.get("a", "class")), ("exit code 3".into(), "exit".into()));
    assert!(outcome.report["summary"].as_str().unwrap().starts_with("3 tasks: 1 failed, 2 not_run\n"));
}

/// Case 5: two tasks whose commands have both ended before either end is noticed are both failures.
#[test]
fn two_tasks_that_fail_together_are_both_errors() {
    let body = "echo $$ > \"$STEAD_TASK\"; until [ -e go ]; do sleep 0.02; done; exit 3";
    let stage = Stage::of(&format!("  - {{name: a, shell: '{body}'}}\n  - {{name: b, shell: '{body}'}}\n"));
    let running = stage.start(&[]);
    let pids = [running.wait_for_file("a"), running.wait_for_file("b")];
    // While the run sleeps it notices nothing.
    running.signal(Signal::STOP);
    stage.write("go", "");
    eventually("the end of both", || pids.iter().all(|pid| !is_alive(pid)).then_some(()));
    running.signal(Signal::CONT);
    let outcome = running.finish().exits(1);
    assert_eq!(outcome.statuses(), "a=failed b=failed");
    let errors = outcome.report["errors"].as_array().unwrap();
    let named: Vec<&str> = errors.iter().map(|error| error["task"].as_str().unwrap()).collect();
    assert_eq!(named, ["a", "b"]);
    assert!(errors.iter().all(|error| error["class"] == "exit" && error["message"] == "exit code 3"));
}

/// Case 7: with `continue` dependents are skipped over two hops and the others run.
#[test]
fn continue_skips_what_depends_on_the_failure_and_runs_the_rest() {
    let tasks = |on_error: &str| {
        format!(
            "  - {{name: a, shell: 'exit 1'{on_error}}}
  - {{name: b, depends_on: a, shell: 'touch b'}}
  - {{name: c, depends_on: b, shell: 'touch c'}}
  - {{name: d, shell: 'touch d'}}
"
        )
    };
    let plan = Stage::new(&format!("api_version: v1\nname: p\non_error: continue\ntasks:\n{}", tasks("")));
    let task = Stage::of(&tasks(", on_error: continue"));
    for stage in [plan, task] {
        let outcome = stage.run(&["--parallel", "1"]).exits(1);
        assert_eq!(outcome.statuses(), "a=failed b=skipped c=skipped d=changed");
        assert_eq!(outcome.skipped("b"), "dependency: dependency failed: a");
        assert_eq!(outcome.skipped("c"), "dependency: dependency failed: b");
        assert!(stage.has("d") && !stage.has("b") && !stage.has("c"));
        assert!(outcome.of("cancel_requested").is_empty());
        assert!(outcome.about("task_started", "b").is_empty(), "a skip has no start");
    }
}

/// Section 6: a task's `stop_all` overrides the plan's `continue`.
#[test]
fn stop_all_of_a_task_overrides_the_plan() {
    let stage = Stage::new(
        "{api_version: v1, name: p, on_error: continue, tasks: [{name: a, shell: 'exit 1', on_error: stop_all}, {name: d, shell: 'true'}]}",
    );
    assert_eq!(stage.run(&["--parallel", "1"]).exits(1).statuses(), "a=failed d=not_run");
}

/// Section 2: a run whose every failed row timed out exits 8; one other failure makes it 1.
#[test]
fn a_run_in_which_everything_that_failed_timed_out_exits_8() {
    let slow = "timeout: 100ms, on_error: continue, shell: 'sleep 60'";
    let stage = Stage::new(&format!(
        "api_version: v1\nname: p\ngrace: 1s\ntasks:\n  - {{name: a, {slow}}}\n  - {{name: b, {slow}}}\n"
    ));
    let outcome = stage.run(&[]).exits(8);
    assert_eq!(outcome.statuses(), "a=failed b=failed");
    assert_eq!(outcome.report["status"], "failed");
    assert_eq!(outcome.get("a", "class"), "timeout");
    assert_eq!(outcome.get("a", "error"), "timed out after 100ms");

    stage.plan(&format!(
        "api_version: v1\nname: p\ngrace: 1s\ntasks:\n  - {{name: a, {slow}}}\n  - {{name: b, on_error: continue, shell: 'exit 1'}}\n"
    ));
    stage.run(&["--run-id", "r2"]).exits(1);
}

/// Section 6: the limit holds for each attempt anew, and a timeout is retried.
#[test]
fn a_timeout_is_for_each_attempt() {
    let stage = Stage::of(
        "  - {name: a, timeout: 4s, retry: {times: 1, backoff: none}, shell: 'if [ $STEAD_ATTEMPT = 1 ]; then sleep 60; fi'}\n",
    );
    let outcome = stage.run(&[]).exits(0);
    assert_eq!(outcome.get("a", "attempts"), "2");
    let failed = outcome.about("attempt_failed", "a");
    assert_eq!((failed.len(), &failed[0]["class"]), (1, &"timeout".into()));
}

/// Section 6: a process that ignores SIGTERM is killed after the grace period, with what it started.
#[test]
fn a_timeout_kills_what_ignores_the_request() {
    let stage = Stage::new(
        "api_version: v1
name: p
grace: 300ms
tasks:
  - name: a
    timeout: 4s
    shell: |
      trap '' TERM
      sh -c 'echo $$ > child; while :; do sleep 0.1; done' &
      echo $$ > self
      while :; do sleep 0.1; done
",
    );
    let outcome = stage.run(&[]).exits(8);
    assert_eq!(outcome.get("a", "class"), "timeout");
    for file in ["self", "child"] {
        wait_for_end(&stage.text(file).unwrap());
    }
}

/// Sections 6 and 8: a timeout is a failure even if the command answers the request with success, and
/// `failed_when` does not overrule it.
#[test]
fn nothing_makes_a_timeout_a_success() {
    let stage = Stage::of(
        "  - {name: polite, timeout: 1s, on_error: continue, shell: 'trap \"exit 0\" TERM; while :; do sleep 0.05; done'}
  - {name: never, timeout: 1s, on_error: continue, failed_when: 'false', shell: 'exec sleep 60'}
  - {name: any, timeout: 1s, on_error: continue, shell: 'exec sleep 60', changed_when: 'false'}
",
    );
    let outcome = stage.run(&[]).exits(8);
    assert_eq!(outcome.statuses(), "polite=failed never=failed any=failed");
    for task in ["polite", "never", "any"] {
        assert_eq!(outcome.get(task, "class"), "timeout");
    }
}

/// Section 2: a failed row keeps what it changed and found.
#[test]
fn a_failed_row_keeps_its_data() {
    let stage = Stage::of("  - {name: a, shell: 'echo out; echo err >&2; exit 4'}\n");
    let outcome = stage.run(&[]).exits(1);
    let row = outcome.host("a", "local");
    assert_eq!((&row["exit_code"], &row["changed"]), (&4.into(), &true.into()));
    assert_eq!(row["data"], serde_json::json!({"exit_code": 4, "stdout": "out\n", "stderr": "err\n"}));
    assert_eq!(outcome.get("a", "changed"), "true");
}

//! Cases 8 and 9: attempts, delays, classes.

use serde_json::Value;

use super::stage::{Outcome, Stage};

fn delays(outcome: &Outcome, task: &str) -> Vec<u64> {
    outcome.about("attempt_failed", task).iter().map(|event| event["retry_in_ms"].as_u64().unwrap()).collect()
}

/// Case 8: two failures, then success, are three attempts, each failure with its own error.
#[test]
fn a_task_that_fails_twice_then_works_has_three_attempts() {
    for setting in ["retry: {times: 2, backoff: none}", "retry: 2", "on_error: {retry: 2}"] {
        let stage = Stage::of(&format!(
            "  - {{name: a, {setting}, shell: 'echo x >> tries; exit $((3 - STEAD_ATTEMPT))'}}\n"
        ));
        let outcome = stage.run(&[]).exits(0);
        assert_eq!(outcome.statuses(), "a=changed", "{setting}");
        assert_eq!(outcome.get("a", "attempts"), "3");
        assert_eq!(stage.lines("tries").len(), 3);
        let failed: Vec<(&Value, &Value, &Value)> = outcome
            .about("attempt_failed", "a")
            .iter()
            .map(|event| (&event["attempt"], &event["class"], &event["error"]))
            .collect();
        let exit = Value::from("exit");
        assert_eq!(
            failed,
            [(&1.into(), &exit, &"exit code 2".into()), (&2.into(), &exit, &"exit code 1".into())]
        );
        assert!(outcome.report["errors"].as_array().unwrap().is_empty());
    }
}

/// Case 8: attempts used up and `continue`: the row failed, the plan goes on.
#[test]
fn when_attempts_are_used_up_continue_goes_on() {
    let stage = Stage::of(
        "  - {name: a, retry: {times: 1, backoff: none}, on_error: continue, shell: 'exit 1'}
  - {name: b, shell: 'true'}
",
    );
    let outcome = stage.run(&["--parallel", "1"]).exits(1);
    assert_eq!(outcome.statuses(), "a=failed b=changed");
    assert_eq!(outcome.get("a", "attempts"), "2");
    assert_eq!(outcome.about("attempt_failed", "a").len(), 1, "the last failure is the result");
}

/// Section 6: the short form leaves stop or continue as the plan has it.
#[test]
fn retry_as_on_error_inherits_what_follows() {
    for (on_error, status) in [("continue", "changed"), ("stop_all", "not_run")] {
        let stage = Stage::new(&format!(
            "{{api_version: v1, name: p, on_error: {on_error}, tasks: [{{name: a, on_error: {{retry: 1}}, shell: 'exit 1'}}, {{name: b, shell: 'true'}}]}}"
        ));
        assert_eq!(stage.run(&["--parallel", "1"]).exits(1).statuses(), format!("a=failed b={status}"));
    }
}

/// Case 9: each delay is the double of the one before, up to the longest.
#[test]
fn delays_double_up_to_the_longest() {
    let task = |name: &str, times: u32, max: &str| {
        format!(
            "  - {{name: {name}, retry: {{times: {times}, backoff: {{initial: 100ms, max: {max}}}}}, on_error: continue, shell: 'exit 1'}}\n"
        )
    };
    let stage = Stage::of(&[task("long", 3, "10s"), task("short", 4, "300ms")].concat());
    let outcome = stage.run(&[]).exits(1);
    assert_eq!(delays(&outcome, "long"), [100, 200, 400]);
    assert_eq!(delays(&outcome, "short"), [100, 200, 300, 300]);
    assert_eq!(outcome.get("short", "attempts"), "5");
}

/// Section 6: `full` jitter lies between nothing and the delay, and is a function of run, task, host and attempt.
#[test]
fn jitter_is_bounded_and_the_same_for_the_same_run() {
    let stage = Stage::of(
        "  - {name: a, retry: {times: 4, backoff: {initial: 40ms, max: 40ms, jitter: full}}, shell: 'exit 1'}\n",
    );
    let outcome = stage.run(&["--run-id", "one"]).exits(1);
    let first = delays(&outcome, "a");
    assert!(first.len() == 4 && first.iter().all(|delay| *delay <= 40), "{first:?}");
    std::fs::remove_dir_all(stage.path("state")).unwrap();
    assert_eq!(delays(&stage.run(&["--run-id", "one"]).exits(1), "a"), first);
}

/// Section 6: `on` names the classes that are retried; the others are not.
#[test]
fn only_the_named_classes_are_retried() {
    let task = |name: &str, on: &str, body: &str| {
        // Only what sleeps runs into it.
        let timeout = if body.starts_with("sleep") { "300ms" } else { "1m" };
        format!(
            "  - {{name: {name}, retry: {{times: 1, backoff: none, on: [{on}]}}, timeout: {timeout}, on_error: continue, shell: '{body}'}}\n"
        )
    };
    let stage = Stage::of(
        &[
            task("exit-on-exit", "exit", "exit 1"),
            task("exit-on-timeout", "timeout, unreachable", "exit 1"),
            task("timeout-on-exit", "exit, operation", "sleep 60"),
            task("timeout-on-timeout", "timeout", "sleep 60"),
        ]
        .concat(),
    );
    let outcome = stage.run(&[]).exits(1);
    let attempts = |task: &str| outcome.get(task, "attempts");
    assert_eq!(attempts("exit-on-exit"), "2");
    assert_eq!(attempts("exit-on-timeout"), "1");
    assert_eq!(attempts("timeout-on-exit"), "1");
    assert_eq!(attempts("timeout-on-timeout"), "2");
}

/// Section 6: wrong parameters are not retried, whatever `retry` says.
#[test]
fn what_cannot_succeed_is_not_retried() {
    let stage = Stage::of(
        "  - {name: a, shell: 'echo text', changed_when: 'false'}
  - {name: b, depends_on: a, retry: 3, on_error: continue, op: file.present, params: {path: \"/{{ results.a.data.nope }}\", content: x}}
  - {name: c, retry: 3, on_error: continue, target: 'role:db', shell: 'true'}
",
    );
    let outcome = stage.run(&[]).exits(1);
    for task in ["b", "c"] {
        assert_eq!(outcome.get(task, "class"), "invalid", "{:#}", outcome.task(task));
        assert!(outcome.about("attempt_failed", task).is_empty());
    }
    assert!(outcome.get("b", "error").contains("nope"));
}

/// Section 8: `failed_when` replaces the check of the exit code and comes before `changed_when`.
#[test]
fn failed_when_and_changed_when_judge_the_result() {
    let stage = Stage::of(
        "  - {name: never, shell: 'exit 9', failed_when: 'false', changed_when: 'result.exit_code == 0'}
  - {name: told, shell: 'echo ERROR', failed_when: \"'ERROR' in result.stdout\", on_error: continue, changed_when: 'false'}
  - {name: passed, shell: 'echo fine; exit 5', failed_when: 'result.exit_code > 5', changed_when: \"result.stdout | trim == 'fine'\"}
  - {name: wrong, shell: 'true', failed_when: 'result.nope', on_error: continue}
",
    );
    let outcome = stage.run(&[]).exits(1);
    assert_eq!(outcome.statuses(), "never=unchanged told=failed passed=changed wrong=failed");
    assert_eq!(outcome.get("told", "changed"), "false");
    assert_eq!(outcome.get("wrong", "class"), "invalid");
    assert!(outcome.get("wrong", "error").contains("failed_when"), "{}", outcome.get("wrong", "error"));
}

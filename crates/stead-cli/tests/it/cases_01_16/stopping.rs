//! Cases 6, 9 and 10: cancelling, signals, what is left of processes.

use rustix::process::Signal;

use super::stage::{Stage, is_alive, wait_for_end};

const SIBLING: &str = "  - name: sibling
    shell: |
      sh -c 'sleep 60 & echo $! > grandchild; wait'
  - {name: fails, shell: 'until [ -s grandchild ]; do sleep 0.02; done; exit 1'}
";

/// Case 6: a failure cancels a running sibling, and nothing it started is left.
#[test]
fn a_failure_cancels_siblings_and_their_children() {
    let stage = Stage::of(SIBLING);
    let outcome = stage.run(&[]).exits(1);
    assert_eq!(outcome.statuses(), "sibling=cancelled fails=failed");
    wait_for_end(&stage.text("grandchild").unwrap());
    let cancel = &outcome.of("cancel_requested")[0];
    assert_eq!((&cancel["why"], &cancel["task"]), (&"failure".into(), &"fails".into()));
}

/// Case 6: what ignores the request is killed after the grace period, grandchildren too. The bound is in the plan:
/// without the kill nothing would ever end.
#[test]
fn what_ignores_the_request_is_killed_after_the_grace_period() {
    let stage = Stage::new(
        "api_version: v1
name: p
grace: 500ms
tasks:
  - name: stubborn
    shell: |
      trap '' TERM
      sh -c 'echo $$ > grandchild; while :; do sleep 0.1; done' &
      while :; do sleep 0.1; done
  - {name: fails, shell: 'until [ -s grandchild ]; do sleep 0.02; done; exit 1'}
",
    );
    let outcome = stage.run(&[]).exits(1);
    assert_eq!(outcome.statuses(), "stubborn=cancelled fails=failed");
    wait_for_end(&stage.text("grandchild").unwrap());
}

/// Section 6: the grace period is for everything that was asked, not only for the shell in front of it.
#[test]
fn a_child_may_clean_up_after_its_shell_has_gone() {
    let stage = Stage::new(
        "api_version: v1
name: p
grace: 60s
tasks:
  - name: server
    shell: |
      sh -c 'trap \"sleep 0.5; echo cleaned > cleaned; exit 0\" TERM; echo $$ > ready; while :; do sleep 0.05; done'
      echo not reached > after
  - {name: fails, shell: 'until [ -s ready ]; do sleep 0.02; done; exit 1'}
",
    );
    let outcome = stage.run(&[]).exits(1);
    assert_eq!(outcome.statuses(), "server=cancelled fails=failed");
    assert!(stage.has("cleaned"), "killed while it cleaned up");
    wait_for_end(&stage.text("ready").unwrap());
}

/// Case 9: SIGINT during a delay of a minute ends the run at once.
#[test]
fn an_interrupt_ends_a_long_backoff_at_once() {
    let stage = Stage::new(
        "api_version: v1
name: p
tasks:
  - {name: a, retry: {times: 3, backoff: {initial: 3m, max: 3m}}, shell: 'echo x >> tries; exit 1'}
  - {name: b, depends_on: a, shell: 'touch b'}
finally:
  - {name: last, shell: 'echo \"$STATUS\" > last', params: {env: {STATUS: '{{ run.status }}'}}}
",
    );
    let running = stage.start(&[]);
    running.wait_for_event("attempt_failed", Some("a"));
    running.signal(Signal::INT);
    // The delay is longer than this test may wait: ending at all means ending at once.
    let outcome = running.finish().exits(130);
    assert_eq!(outcome.statuses(), "a=cancelled b=not_run last=changed");
    assert_eq!(outcome.report["status"], "cancelled");
    assert_eq!(outcome.get("a", "attempts"), "1");
    assert_eq!(stage.lines("tries").len(), 1);
    assert_eq!(stage.text("last").unwrap(), "cancelled\n");
    assert_eq!(outcome.of("cancel_requested")[0]["why"], "signal");
}

/// Case 10: the first signal cancels and runs `finally`, whichever of the three it is.
#[test]
fn the_first_signal_cancels_and_runs_finally() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let stage = Stage::new(
            "api_version: v1
name: p
tasks:
  - {name: a, shell: 'echo $$ > started; exec sleep 60'}
  - {name: b, depends_on: a, shell: 'true'}
finally:
  - {name: last, shell: 'touch last'}
",
        );
        let running = stage.start(&[]);
        let pid = running.wait_for_file("started");
        running.signal(signal);
        let outcome = running.finish().exits(130);
        assert_eq!(outcome.statuses(), "a=cancelled b=not_run last=changed");
        assert_eq!(outcome.report["status"], "cancelled");
        assert!(outcome.get("b", "reason").contains("signal"));
        assert!(stage.has("last"));
        wait_for_end(&pid);
    }
}

/// Section 2: what was stopped is `cancelled`, even if it answers the request with success.
#[test]
fn a_command_that_was_stopped_has_not_succeeded() {
    let stage = Stage::of(
        "  - {name: polite, shell: 'trap \"exit 0\" TERM; echo x > polite; while :; do sleep 0.05; done'}
  - {name: never, failed_when: 'false', shell: 'echo x > never; exec sleep 60'}
",
    );
    let running = stage.start(&[]);
    running.wait_for_file("polite");
    running.wait_for_file("never");
    running.signal(Signal::INT);
    assert_eq!(running.finish().exits(130).statuses(), "polite=cancelled never=cancelled");
}

/// Section 6: cancelling is honoured between batches.
#[test]
fn an_interrupt_ends_a_pause_between_batches_at_once() {
    let stage = Stage::of(
        "  - {name: a, target: [h1, h2, h3], batch: 1, batch_pause: 10m, shell: 'echo x >> ran'}\n",
    )
    .with_hosts(&["h1", "h2", "h3"]);
    let running = stage.start(&[]);
    running.wait_for_event("host_result", Some("a"));
    running.signal(Signal::INT);
    let outcome = running.finish().exits(130);
    assert_eq!(outcome.hosts("a"), "h1=changed h2=not_run h3=not_run");
    assert_eq!(outcome.statuses(), "a=cancelled");
    assert_eq!(outcome.get("a", "changed"), "true");
}

/// Case 10: the second signal kills, `finally` is not run, and the recorded report still has every task.
#[test]
fn the_second_signal_kills_and_leaves_finally_out() {
    let stage = Stage::new(
        "api_version: v1
name: p
grace: 10m
tasks:
  - {name: done, shell: 'true'}
  - {name: stubborn, depends_on: done, shell: 'trap \"\" TERM; echo $$ > started; while :; do sleep 0.1; done'}
  - {name: later, depends_on: stubborn, shell: 'true'}
finally:
  - {name: last, shell: 'touch last'}
",
    );
    let running = stage.start(&[]);
    let pid = running.wait_for_file("started");
    running.signal(Signal::INT);
    running.wait_for_event("cancel_requested", None);
    assert!(is_alive(&pid), "the first signal only asks");
    running.signal(Signal::INT);
    let outcome = running.finish().exits(130);
    let wanted = "done=changed stubborn=cancelled later=not_run last=not_run";
    assert_eq!(outcome.statuses(), wanted);
    wait_for_end(&pid);
    assert!(!stage.has("last"));
    let recorded: serde_json::Value =
        serde_json::from_str(&stage.text("state/runs/r/report.json").unwrap()).unwrap();
    assert_eq!(recorded["tasks"], outcome.report["tasks"]);
    assert_eq!(recorded["exit_code"], 130);
}

/// Section 6: a second signal during `finally` kills it; what had not begun is not run.
#[test]
fn a_second_signal_kills_a_running_finally() {
    let stage = Stage::new(
        "api_version: v1
name: p
tasks:
  - {name: a, shell: 'echo $$ > started; exec sleep 60'}
finally:
  - {name: last, shell: 'trap \"\" TERM; echo $$ > final; while :; do sleep 0.1; done'}
  - {name: after, depends_on: last, shell: 'true'}
",
    );
    let running = stage.start(&[]);
    running.wait_for_file("started");
    running.signal(Signal::TERM);
    let pid = running.wait_for_file("final");
    running.signal(Signal::TERM);
    let outcome = running.finish().exits(130);
    assert_eq!(outcome.statuses(), "a=cancelled last=cancelled after=not_run");
    wait_for_end(&pid);
}

/// Section 6: a third signal ends the process at once; the run can be resumed.
#[test]
fn the_third_signal_leaves_a_run_that_can_be_resumed() {
    let stage = Stage::new(
        "api_version: v1
name: p
grace: 10m
tasks:
  - {name: first, shell: 'echo x >> first'}
  - {name: stubborn, depends_on: first, idempotent: true, shell: 'trap \"\" TERM; echo $$ > started; until [ -e go ]; do sleep 0.1; done'}
",
    );
    let running = stage.start(&[]);
    let pid = running.wait_for_file("started");
    // Stopped, it hears of all three together.
    running.signal(Signal::STOP);
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        running.signal(signal);
    }
    running.signal(Signal::CONT);
    assert_eq!(running.finish().code, Some(130));
    stage.write("go", "");
    let outcome = stage.resume(&[]).exits(0);
    assert_eq!(outcome.statuses(), "first=changed stubborn=changed");
    assert_eq!(stage.lines("first").len(), 1, "what had finished does not run again");
    wait_for_end(&pid);
}

/// Section 6: a run that had failed stays failed when a signal comes during `finally`.
#[test]
fn a_signal_makes_only_a_successful_run_cancelled() {
    for (body, status, code) in [("exit 1", "failed", 1), ("true", "cancelled", 130)] {
        let stage = Stage::new(&format!(
            "api_version: v1
name: p
tasks:
  - {{name: a, shell: '{body}'}}
finally:
  - {{name: last, shell: 'echo x > last; until [ -e go ]; do sleep 0.02; done'}}
"
        ));
        let running = stage.start(&[]);
        running.wait_for_file("last");
        running.signal(Signal::INT);
        running.wait_for_event("cancel_requested", None);
        if body == "true" {
            let events = || running.wait_for_event("cancel_requested", None);
            assert_eq!(events()["why"], "signal");
        }
        stage.write("go", "");
        let outcome = running.finish().exits(code);
        assert_eq!(outcome.get("last", "status"), "changed", "the first signal leaves finally alone");
        assert_eq!(outcome.report["status"], status);
    }
}

//! Sections 6 and 11 where cancelling meets resuming: what a killed run says about attempts that had not ended.

use rustix::process::Signal;

use super::stage::{Stage, eventually, is_alive};

fn killed(task: &str) -> Stage {
    let stage = Stage::of(&format!(
        "  - {{name: before, shell: 'echo x >> before'}}
  - {{name: a, depends_on: before, {task}, shell: 'echo x >> tries; echo $$ > pid; until [ -e go ]; do sleep 0.05; done'}}
  - {{name: after, depends_on: a, shell: 'true'}}
"
    ));
    let running = stage.start(&[]);
    let pid = running.wait_for_file("pid");
    running.signal(Signal::KILL);
    assert_eq!(running.finish().code, None);
    assert!(is_alive(&pid), "a killed run leaves its command behind");
    stage.write("killed", &pid);
    stage
}

/// Section 11: `interrupted: retry` runs the attempt again, and what was left of the first one is ended before.
#[test]
fn interrupted_retry_runs_again() {
    for setting in ["interrupted: retry", "idempotent: true"] {
        let stage = killed(setting);
        stage.write("go", "");
        let outcome = stage.resume(&[]).exits(0);
        assert_eq!(outcome.statuses(), "before=changed a=changed after=changed");
        assert_eq!((stage.lines("tries").len(), stage.lines("before").len()), (2, 1));
        assert_eq!(outcome.get("a", "attempts"), "1", "the interrupted attempt does not count");
        assert_eq!(outcome.report["segments"], 2);
        let first = stage.text("killed").unwrap();
        eventually("the end of the first attempt", || (!is_alive(&first)).then_some(()));
    }
}

/// Section 11: what a dead run left behind is ended, not what a run of the same id in another state directory does.
#[test]
fn resuming_ends_no_process_of_another_run_with_the_same_id() {
    let (stage, other) = (killed("interrupted: retry"), killed("interrupted: retry"));
    stage.write("go", "");
    stage.resume(&[]).exits(0);
    assert!(!is_alive(&stage.text("killed").unwrap()));
    assert!(is_alive(&other.text("killed").unwrap()));
    other.write("go", "");
    other.resume(&[]).exits(0);
}

/// Section 11: without it the row is failed and both ways on are named; `--assume-done` takes it as changed.
#[test]
fn interrupted_fail_asks_a_person() {
    let stage = killed("interrupted: fail");
    let outcome = stage.resume(&[]).exits(1);
    assert_eq!(outcome.statuses(), "before=changed a=failed after=not_run");
    assert_eq!(outcome.get("a", "class"), "interrupted");
    let error = outcome.get("a", "error");
    assert!(
        error.contains("--rerun a") && error.contains("--assume-done a") && error.contains("local"),
        "{error}"
    );
    let outcome = stage.resume(&["--assume-done", "a"]).exits(0);
    assert_eq!(outcome.statuses(), "before=changed a=changed after=changed");
    assert_eq!(stage.lines("tries").len(), 1, "it did not run again");
}

/// Section 11: a run cancelled by a signal goes on where it was stopped.
#[test]
fn a_cancelled_run_goes_on() {
    let stage = Stage::new(
        "api_version: v1
name: p
tasks:
  - {name: a, shell: 'echo x >> a'}
  - {name: b, depends_on: a, shell: 'echo $$ > started; until [ -e go ]; do sleep 0.05; done'}
  - {name: c, depends_on: b, shell: 'true'}
finally:
  - {name: last, shell: 'echo x >> last'}
",
    );
    let running = stage.start(&[]);
    running.wait_for_file("started");
    running.signal(Signal::INT);
    running.finish().exits(130);
    stage.write("go", "");
    let outcome = stage.resume(&[]).exits(0);
    assert_eq!(outcome.statuses(), "a=changed b=changed c=changed last=changed");
    assert_eq!((stage.lines("a").len(), stage.lines("last").len()), (1, 2), "finally runs again");
    assert_eq!(outcome.report["status"], "success");
}

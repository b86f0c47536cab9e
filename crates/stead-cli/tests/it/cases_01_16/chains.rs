//! Cases 1 to 4: order, levels, refusals, no barrier.

use serde_json::Value;

use super::stage::Stage;

/// Case 1: the order is kept and the summary is two lines.
#[test]
fn a_chain_runs_in_order_and_is_summed_up_in_two_lines() {
    let stage = Stage::of(
        "  - {name: c, depends_on: b, shell: 'echo c >> order', changed_when: 'false'}
  - {name: b, depends_on: a, shell: 'echo b >> order', changed_when: 'true'}
  - {name: a, shell: 'echo a >> order', changed_when: 'true'}
",
    );
    let result = stage.stead(&["plan", "run", "p.yaml"]).output().unwrap();
    assert_eq!(result.status.code(), Some(0));
    assert_eq!(stage.lines("order"), ["a", "b", "c"]);
    let stdout = String::from_utf8(result.stdout).unwrap();
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines[0], "3 tasks: 2 changed, 1 unchanged");
    assert!(lines[1].starts_with("Total duration: "), "{stdout}");

    let outcome = stage.run(&[]).exits(0);
    assert_eq!(outcome.statuses(), "c=unchanged b=changed a=changed", "rows are in plan order");
    let summary = outcome.report["summary"].as_str().unwrap();
    assert!(summary.starts_with("3 tasks: 2 changed, 1 unchanged\nTotal duration: "), "{summary}");
    assert!(outcome.when("task_finished", "a") < outcome.when("task_started", "b"));
    assert!(outcome.when("task_finished", "b") < outcome.when("task_started", "c"));
}

/// Section 2: one task is `1 task`, and counts that are zero are left out.
#[test]
fn one_task_is_told_in_the_singular() {
    let outcome = Stage::of("  - {name: a, shell: 'true'}\n").run(&[]).exits(0);
    assert!(outcome.report["summary"].as_str().unwrap().starts_with("1 task: 1 changed\n"));
}

/// Case 2: levels of a diamond, of independents and of a chain; an empty plan.
#[test]
fn show_tells_the_levels_of_each_shape() {
    let levels = |tasks: &str| {
        let stage = Stage::of(tasks);
        let result = stage.stead(&["plan", "show", "p.yaml", "--json"]).output().unwrap();
        assert_eq!(result.status.code(), Some(0));
        assert!(!stage.has("state"));
        serde_json::from_slice::<Value>(&result.stdout).unwrap()["levels"].clone()
    };
    let task =
        |name: &str, after: &str| format!("  - {{name: {name}, shell: 'true', depends_on: [{after}]}}\n");
    let diamond = [task("a", ""), task("b", "a"), task("c", "a"), task("d", "b, c")].concat();
    assert_eq!(levels(&diamond), serde_json::json!([["a"], ["b", "c"], ["d"]]));
    assert_eq!(levels(&[task("a", ""), task("b", ""), task("c", "")].concat()).as_array().unwrap().len(), 1);
    assert_eq!(
        levels(&[task("a", ""), task("b", "a"), task("c", "b")].concat()).as_array().unwrap().len(),
        3
    );

    let empty = Stage::new("{api_version: v1, name: p, tasks: []}");
    let outcome = empty.run(&[]).exits(0);
    assert_eq!(outcome.report["summary"].as_str().unwrap().lines().next(), Some("0 tasks"));
    assert_eq!(outcome.report["status"], "success");
}

/// Case 3: six problems of one file are told at once, each with its place, and nothing is written.
#[test]
fn every_problem_of_a_file_is_told_at_once() {
    let stage = Stage::new(
        "api_version: v1
name: p
tasks:
  - {name: a, depends_on: c, shell: 'touch ran'}
  - {name: b, depends_on: a, shell: 'touch ran'}
  - {name: c, depends_on: b, shell: 'touch ran'}
  - {name: loop, depends_on: loop, shell: 'touch ran'}
  - {name: twice, shell: 'touch ran'}
  - {name: twice, shell: 'touch ran'}
  - {name: typo, depnds_on: twice, shell: 'touch ran'}
  - {name: lost, depends_on: twyce, shell: 'touch ran'}
  - {name: slow, timeout: 30, shell: 'touch ran'}
",
    );
    let outcome = stage.run(&[]).exits(3);
    let diagnostics = outcome.report["diagnostics"].as_array().unwrap();
    let found = |code: &str, line: u64, said: &str| {
        let about = |diagnostic: &&Value| diagnostic["code"] == code && diagnostic["line"] == line;
        let Some(diagnostic) = diagnostics.iter().find(about) else {
            panic!("no {code} in line {line}: {diagnostics:#?}");
        };
        let text = format!("{} {}", diagnostic["message"], diagnostic["help"]);
        assert!(text.contains(said), "no `{said}` in {text}");
        assert!(diagnostic["column"].as_u64().unwrap() > 1);
        assert!(diagnostic["file"].as_str().unwrap().ends_with("p.yaml"));
        assert_eq!(diagnostic["severity"], "error");
    };
    found("plan/cycle", 4, "a -> b -> c -> a");
    found("plan/cycle", 7, "loop");
    found("plan/duplicate-task", 9, "twice");
    found("plan/unknown-key", 10, "depends_on");
    found("plan/unknown-dependency", 11, "twice");
    found("plan/bad-value", 12, "30s");
    assert_eq!(diagnostics.len(), 6, "{diagnostics:#?}");
    assert!(!stage.has("ran") && !stage.has("state"));

    // Without --json the same is for people, on stderr.
    let result = stage.stead(&["plan", "run", "p.yaml"]).output().unwrap();
    assert_eq!(result.status.code(), Some(3));
    let stderr = String::from_utf8(result.stderr).unwrap();
    for place in ["p.yaml:4:", "p.yaml:7:", "p.yaml:9:", "p.yaml:10:", "p.yaml:11:", "p.yaml:12:"] {
        assert!(stderr.contains(place), "no {place} in {stderr}");
    }
    assert!(result.stdout.is_empty());
}

/// Case 4: `slow` ends only after `last` has ended, so a barrier between levels would never end.
#[test]
fn a_slow_task_holds_back_nobody_who_does_not_depend_on_it() {
    let stage = Stage::of(
        "  - {name: slow, timeout: 60s, shell: 'until [ -e made ]; do sleep 0.02; done'}
  - {name: first, shell: 'true'}
  - {name: last, depends_on: first, shell: 'true'}
  - {name: tell, depends_on: last, shell: 'touch made'}
",
    );
    let outcome = stage.run(&["--parallel", "2"]).exits(0);
    assert!(outcome.when("task_finished", "last") < outcome.when("task_finished", "slow"));
}

/// Case 4: with one slot, attempts never overlap.
#[test]
fn with_one_slot_attempts_never_overlap() {
    let body = "echo begin >> log; sleep 0.05; echo end >> log";
    let tasks: String = (0..6).map(|i| format!("  - {{name: t{i}, shell: '{body}'}}\n")).collect();
    let stage = Stage::of(&tasks);
    let outcome = stage.run(&["--parallel", "1"]).exits(0);
    assert_eq!(outcome.most_at_once(|_| true), 1);
    assert_eq!(stage.lines("log"), ["begin", "end"].repeat(6));
    let started: Vec<&str> =
        outcome.of("task_started").iter().map(|event| event["task"].as_str().unwrap()).collect();
    assert_eq!(started, ["t0", "t1", "t2", "t3", "t4", "t5"], "ties are in plan order");
}

/// Section 4: with one slot, two runs give the same events, but for numbers, times, ids and output.
#[test]
fn with_one_slot_two_runs_tell_the_same_story() {
    let stage = Stage::of(
        "  - {name: a, target: [h1, h2], shell: 'echo hello; test $STEAD_HOST = h1', host_failure: {percent: 50}}
  - {name: b, when: '1 == 1', shell: 'false', retry: {times: 1, backoff: none}, on_error: continue}
  - {name: c, depends_on: b, shell: 'true'}
  - {name: d, depends_on: a, when: \"any_host_failed('a')\", shell: 'true'}
",
    )
    .with_hosts(&["h1", "h2"]);
    let story = |id: &str| {
        let outcome = stage.run(&["--parallel", "1", "--run-id", id]);
        let mut events = outcome.events;
        events.retain(|event| event["ev"] != "log");
        for event in &mut events {
            for member in ["seq", "t", "crc", "run_id", "duration_ms"] {
                event.as_object_mut().unwrap().remove(member);
            }
        }
        events
    };
    let first = story("one");
    assert!(first.len() > 10);
    assert_eq!(first, story("two"));
}

//! Cases 14 to 16 and section 7: several hosts.

use serde_json::json;

use super::stage::Stage;

const FOUR: &[&str] = &["h1", "h2", "h3", "h4"];
const H2_FAILS: &str = "target: [h4, h2, h1, h3], shell: 'test \"$STEAD_HOST\" != h2'";

/// Case 14: the host functions over rows that real commands and `when_host` made.
#[test]
fn host_functions_see_the_rows() {
    let mut plan = "api_version: v1
name: p
on_error: continue
tasks:
  - {name: one, target: [h1, h2, h3], shell: 'test \"$STEAD_HOST\" != h2', changed_when: \"host.name == 'h1'\"}
  - {name: every, target: [h1, h2], shell: 'exit 1'}
  - {name: skips, target: [h1, h2], when_host: \"host.name != 'h2'\", shell: 'exit 1'}
  - {name: fine, target: [h1, h2], shell: 'true'}
  - {name: quiet, target: [h1, h2], shell: 'true', changed_when: 'false'}
  - {name: left-out, when: '1 == 2', shell: 'true'}
"
    .to_owned();
    let table = [
        ("any_host_failed('one')", true),
        ("all_hosts_failed('one')", false),
        ("any_host_changed('one')", true),
        ("all_hosts_changed('one')", false),
        ("any_host_skipped('one')", false),
        ("all_hosts_failed('every')", true),
        ("any_host_failed('skips')", true),
        ("all_hosts_failed('skips')", false),
        ("any_host_skipped('skips')", true),
        ("any_host_failed('fine')", false),
        ("all_hosts_changed('fine')", true),
        ("any_host_changed('quiet')", false),
        ("any_host_failed('left-out')", false),
        ("all_hosts_failed('left-out')", false),
        ("all_hosts_changed('left-out')", false),
        // Without an argument: any direct dependency.
        ("any_host_failed()", true),
        ("any_host_skipped()", true),
        ("changed('fine') and failed('every') and skipped('left-out') and broken('one')", true),
        ("results.one.hosts.h2.class == 'exit' and results.one.hosts.h1.changed", true),
    ];
    for (i, (guard, _)) in table.iter().enumerate() {
        plan.push_str(&format!(
            "  - {{name: t{i}, depends_on: [one, every, skips, fine, quiet, left-out], trigger_rule: all_done, when: \"{guard}\", shell: 'true'}}\n"
        ));
    }
    plan.push_str("  - {name: alone, when: 'any_host_failed() or all_hosts_failed()', shell: 'true'}\n");
    let outcome = Stage::new(&plan).with_hosts(FOUR).run(&[]).exits(1);
    assert_eq!(outcome.hosts("one"), "h1=changed h2=failed h3=unchanged");
    assert_eq!(outcome.hosts("skips"), "h1=failed h2=skipped");
    for (i, (guard, wanted)) in table.into_iter().enumerate() {
        let status = outcome.get(&format!("t{i}"), "status");
        assert_eq!(status, if wanted { "changed" } else { "skipped" }, "{guard}");
    }
    assert_eq!(outcome.get("alone", "status"), "skipped", "no dependency: false");
}

/// Case 15: one failed host of four fails the task, and rows keep the target's order everywhere.
#[test]
fn one_failed_host_fails_the_task() {
    let stage =
        Stage::of(&format!("  - {{name: a, {H2_FAILS}}}\n  - {{name: b, depends_on: a, shell: 'true'}}\n"))
            .with_hosts(FOUR);
    let outcome = stage.run(&["--junit", "j.xml", "--markdown", "m.md"]).exits(1);
    assert_eq!(outcome.statuses(), "a=failed b=not_run");
    assert_eq!(outcome.hosts("a"), "h4=changed h2=failed h1=changed h3=changed");
    assert_eq!(outcome.get("a", "partial"), "false");
    assert_eq!(outcome.get("a", "error"), "h2: exit code 1");
    assert_eq!(
        outcome.report["errors"],
        json!([{"task": "a", "host": "h2", "class": "exit", "message": "exit code 1"}])
    );
    assert_eq!(outcome.about("task_started", "a")[0]["hosts"], json!(["h4", "h2", "h1", "h3"]));
    for (file, wanted) in
        [("j.xml", ["a@h4", "a@h2", "a@h1", "a@h3"]), ("m.md", ["| h4 |", "| h2 |", "| h1 |", "| h3 |"])]
    {
        let text = stage.text(file).unwrap();
        let places: Vec<usize> =
            wanted.iter().map(|row| text.find(row).unwrap_or_else(|| panic!("no {row} in {text}"))).collect();
        assert!(places.is_sorted(), "{file}: {text}");
    }
    // A set is in the order of names.
    stage.plan(&format!(
        "api_version: v1\nname: p\ntasks:\n  - {{name: a, {}}}\n",
        H2_FAILS.replace("[h4, h2, h1, h3]", "role:web")
    ));
    let outcome = stage.run(&["--run-id", "r2"]).exits(1);
    assert_eq!(outcome.hosts("a"), "h1=changed h2=failed h3=changed h4=changed");
}

/// Case 15: a tolerated failure is `partial` and dependents run.
#[test]
fn a_tolerated_failure_is_partial() {
    let policy = |policy: &str| {
        let stage = Stage::of(&format!(
            "  - {{name: a, host_failure: {policy}, {H2_FAILS}}}\n  - {{name: b, depends_on: a, shell: 'true'}}\n"
        ))
        .with_hosts(FOUR);
        let outcome = stage.run(&[]);
        (
            outcome.code.unwrap(),
            outcome.statuses(),
            outcome.get("a", "partial"),
            outcome.report["errors"].as_array().unwrap().len(),
        )
    };
    let tolerated = (0, "a=changed b=changed".to_owned(), "true".to_owned(), 1);
    let refused = (1, "a=failed b=not_run".to_owned(), "false".to_owned(), 1);
    assert_eq!(policy("{percent: 50}"), tolerated);
    assert_eq!(policy("{percent: 25}"), tolerated, "25 of 100 is not more than 25");
    assert_eq!(policy("{percent: 24}"), refused);
    assert_eq!(policy("{percent: 0}"), refused);
    assert_eq!(policy("all"), tolerated);
    assert_eq!(policy("any"), refused);
}

/// Section 7: skipped hosts are not counted; every other one failing violates `all`.
#[test]
fn skipped_hosts_do_not_count() {
    let stage = Stage::of(
        "  - {name: a, target: [h1, h2, h3], host_failure: all, on_error: continue, when_host: \"host.name != 'h1'\", shell: 'exit 1'}
  - {name: b, target: [h1, h2, h3], host_failure: {percent: 50}, on_error: continue, when_host: \"host.index > 0\", shell: 'test \"$STEAD_HOST\" = h3'}
  - {name: c, target: role:web, when_host: \"host.labels.zone == 'z'\", shell: 'true'}
  - {name: d, depends_on: c, shell: 'true'}
  - {name: e, depends_on: c, trigger_rule: all_ran, shell: 'true'}
",
    )
    .with_hosts(FOUR);
    let outcome = stage.run(&[]).exits(1);
    assert_eq!(outcome.statuses(), "a=failed b=changed c=skipped d=changed e=skipped");
    assert_eq!(outcome.hosts("a"), "h1=skipped h2=failed h3=failed");
    assert_eq!(outcome.hosts("b"), "h1=skipped h2=failed h3=changed");
    assert_eq!(outcome.get("b", "partial"), "true");
    assert_eq!(outcome.skipped("c"), "guard: guard is false: host.labels.zone == 'z'");
    assert_eq!(outcome.host("a", "h1")["reason"], "guard is false: host.name != 'h1'");
}

/// Case 15: each host retries on its own.
#[test]
fn only_the_host_that_failed_tries_again() {
    let stage = Stage::of(
        "  - name: a
    target: [h1, h2, h3, h4]
    retry: {times: 2, backoff: none}
    shell: 'echo x >> \"ran-$STEAD_HOST\"; test \"$STEAD_HOST-$STEAD_ATTEMPT\" != h2-1'
",
    )
    .with_hosts(FOUR);
    let outcome = stage.run(&[]).exits(0);
    let ran = |host: &str| stage.lines(&format!("ran-{host}")).len();
    assert_eq!([ran("h1"), ran("h2"), ran("h3"), ran("h4")], [1, 2, 1, 1]);
    let attempts = |host: &str| outcome.host("a", host)["attempts"].clone();
    assert_eq!([attempts("h1"), attempts("h2")], [json!(1), json!(2)]);
    assert_eq!(outcome.get("a", "attempts"), "2", "the most of any row");
    assert_eq!(outcome.about("attempt_failed", "a")[0]["host"], "h2");
}

/// Case 16: a rolling sequence has never more than its batch busy, and a host stops at its first failure.
#[test]
fn a_sequence_rolls_over_batches() {
    let stage = Stage::of(
        "  - name: roll
    target: [h1, h2, h3, h4]
    batch: 2
    host_failure: {percent: 50}
    sequence:
      - {name: one, op: command.shell, params: {script: 'echo \"begin $STEAD_HOST\" >> log; echo $STEAD_HOST >> one; sleep 0.1'}}
      - {name: two, op: command.shell, params: {script: 'echo $STEAD_HOST >> two; test $STEAD_HOST != h1 || { echo \"end h1\" >> log; exit 1; }'}}
      - {name: three, op: command.shell, params: {script: 'echo $STEAD_HOST >> three; echo \"end $STEAD_HOST\" >> log'}}
",
    )
    .with_hosts(FOUR);
    let outcome = stage.run(&[]).exits(0);
    assert_eq!(outcome.hosts("roll"), "h1=failed h2=changed h3=changed h4=changed");
    assert_eq!(outcome.get("roll", "partial"), "true");
    let mut busy = 0_i32;
    for line in stage.lines("log") {
        busy += if line.starts_with("begin") { 1 } else { -1 };
        assert!(busy <= 2, "{:?}", stage.lines("log"));
    }
    assert_eq!(outcome.most_at_once(|_| true), 2);
    assert_eq!((stage.lines("one").len(), stage.lines("two").len()), (4, 4));
    let mut third = stage.lines("three");
    third.sort();
    assert_eq!(third, ["h2", "h3", "h4"]);
    // The second batch begins when all of the first have ended.
    let log = stage.lines("log");
    assert!(log[..4].iter().all(|line| line.ends_with("h1") || line.ends_with("h2")), "{log:?}");
    let parts = outcome.host("roll", "h1")["parts"].as_array().unwrap();
    let seen: Vec<_> =
        parts.iter().map(|part| (part["name"].as_str().unwrap(), part["status"].as_str().unwrap())).collect();
    assert_eq!(seen, [("one", "changed"), ("two", "failed")]);
    assert_eq!(outcome.about("task_started", "roll")[0]["batches"], json!([2, 2]));
}

/// Section 7: a retry goes on at the part that failed.
#[test]
fn a_retry_goes_on_at_the_part_that_failed() {
    let stage = Stage::of(
        "  - name: a
    retry: {times: 1, backoff: none}
    sequence:
      - {name: one, op: command.shell, params: {script: 'echo 1 >> ran'}}
      - {name: two, op: command.shell, params: {script: 'echo 2 >> ran; test $STEAD_ATTEMPT = 2'}}
      - {name: three, op: command.shell, params: {script: 'echo 3 >> ran'}, when_host: '1 == 2'}
",
    );
    let outcome = stage.run(&[]).exits(0);
    assert_eq!(stage.lines("ran"), ["1", "2", "2"]);
    let parts = outcome.host("a", "local")["parts"].as_array().unwrap();
    let seen: Vec<_> =
        parts.iter().map(|part| (part["name"].as_str().unwrap(), part["status"].as_str().unwrap())).collect();
    assert_eq!(seen, [("one", "changed"), ("two", "changed"), ("three", "skipped")]);
}

/// Section 7: a host that leaves out every part is skipped; one left-out part says nothing about the row.
#[test]
fn a_sequence_with_nothing_to_do_on_a_host_is_skipped_there() {
    let stage = Stage::of(
        "  - name: a
    target: [h1, h2]
    sequence:
      - {name: one, op: command.shell, params: {script: 'true'}, when_host: \"host.name == 'h1'\"}
      - {name: two, op: command.shell, params: {script: 'true'}, when_host: '1 == 2'}
",
    )
    .with_hosts(FOUR);
    let outcome = stage.run(&[]).exits(0);
    assert_eq!(outcome.hosts("a"), "h1=changed h2=skipped");
    assert_eq!(outcome.host("a", "h1")["reason"], serde_json::Value::Null);
    assert_eq!(outcome.host("a", "h2")["reason"], "guard is false: host.name == 'h1'");
    assert_eq!(outcome.host("a", "h2")["attempts"], 0);
}

/// Section 7: once the policy is violated the later batches are not run, and the reason says why.
#[test]
fn a_failed_batch_keeps_the_rest_from_starting() {
    let stage = Stage::of(
        "  - {name: a, target: [h1, h2, h3, h4], batch: [1, 2], shell: 'echo $STEAD_HOST >> ran; test \"$STEAD_HOST\" != h2'}\n",
    )
    .with_hosts(FOUR);
    let outcome = stage.run(&[]).exits(1);
    assert_eq!(outcome.hosts("a"), "h1=changed h2=failed h3=changed h4=not_run");
    assert_eq!(outcome.host("a", "h4")["reason"], "host failed: h2");
    assert_eq!(outcome.about("task_started", "a")[0]["batches"], json!([1, 2, 1]));
    assert!(!stage.lines("ran").contains(&"h4".to_owned()));
}

/// Section 7: a failed canary fails the task whatever the policy, and the others are not touched.
#[test]
fn a_failed_canary_keeps_the_others_untouched() {
    let plan = |canary: &str, host: &str| {
        format!(
            "api_version: v1\nname: p\ntasks:\n  - {{name: a, target: [h1, h2, h3, h4], canary: {canary}, host_failure: {{percent: 90}}, shell: 'echo $STEAD_HOST >> ran; test \"$STEAD_HOST\" != {host}'}}\n"
        )
    };
    let stage = Stage::new(&plan("1", "h1")).with_hosts(FOUR);
    let outcome = stage.run(&[]).exits(1);
    assert_eq!(outcome.hosts("a"), "h1=failed h2=not_run h3=not_run h4=not_run");
    assert_eq!(outcome.host("a", "h3")["reason"], "canary failed: h1");
    assert_eq!(stage.lines("ran"), ["h1"]);

    // Behind the canary the policy holds.
    stage.plan(&plan("1", "h2"));
    let outcome = stage.run(&["--run-id", "r2"]).exits(0);
    assert_eq!(outcome.get("a", "partial"), "true");

    // All hosts may be canaries.
    stage.plan(&plan("'100%'", "h2"));
    let outcome = stage.run(&["--run-id", "r3"]).exits(1);
    assert_eq!(outcome.hosts("a"), "h1=changed h2=failed h3=changed h4=changed");
}

/// Section 7: pauses lie after the canary and between batches.
#[test]
fn pauses_lie_between_batches() {
    let stage = Stage::of(
        "  - {name: a, target: [h1, h2, h3], canary: 1, canary_pause: 400ms, batch: 1, batch_pause: 700ms, shell: 'true'}\n",
    )
    .with_hosts(FOUR);
    let outcome = stage.run(&[]).exits(0);
    let at = |kind: &str, host: &str| {
        let of_host = |event: &&&serde_json::Value| event["host"] == host;
        let event = *outcome.about(kind, "a").iter().find(of_host).unwrap();
        event["t"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap()
    };
    let between = |one: &str, other: &str| {
        at("attempt_started", other).duration_since(at("host_result", one)).as_millis()
    };
    assert!(between("h1", "h2") >= 399, "{}", between("h1", "h2"));
    assert!(between("h2", "h3") >= 699, "{}", between("h2", "h3"));
}

/// Section 7: a target that matches nobody fails the task, or skips it.
#[test]
fn a_target_that_matches_nobody_is_told() {
    let stage = Stage::of(
        "  - {name: a, target: 'role:db', on_error: continue, shell: 'true'}
  - {name: b, target: 'role:db', on_empty: skip, shell: 'true'}
  - {name: c, depends_on: b, shell: 'true'}
",
    )
    .with_hosts(FOUR);
    let outcome = stage.run(&[]).exits(1);
    assert_eq!((outcome.get("a", "class"), outcome.get("a", "status")), ("invalid".into(), "failed".into()));
    assert!(outcome.get("a", "error").contains("role:db"), "{}", outcome.get("a", "error"));
    assert_eq!(outcome.skipped("b"), "rule: no host matched");
    assert_eq!(outcome.get("c", "status"), "changed");
}

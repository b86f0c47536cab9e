//! Section 4: slots, hosts, mutexes.

use serde_json::Value;

use super::stage::Stage;

fn tasks(count: usize, keys: &str) -> String {
    (0..count).map(|i| format!("  - {{name: t{i}, {keys}}}\n")).collect()
}

/// A script that fails if another one of the same `group` runs at the same time.
fn alone(group: &str) -> String {
    format!("shell: 'mkdir \"lock-{group}\" && sleep 0.05 && rmdir \"lock-{group}\"'")
}

/// Section 4: no more attempts at once than the plan has slots; `--parallel` has the last word.
#[test]
fn the_plan_limits_attempts_at_once() {
    let plan = |limits: &str| {
        format!("api_version: v1\nname: p\nlimits: {limits}\ntasks:\n{}", tasks(8, "shell: 'sleep 0.3'"))
    };
    let stage = Stage::new(&plan("{parallel: 3, per_target: 100}"));
    assert_eq!(stage.run(&[]).exits(0).most_at_once(|_| true), 3);
    assert_eq!(stage.run(&["--parallel", "5", "--run-id", "r2"]).exits(0).most_at_once(|_| true), 5);
    for wrong in ["{parallel: 0}", "{parallel: 10001}", "{per_target: 0}"] {
        stage.plan(&plan(wrong));
        stage.run(&["--run-id", "r3"]).exits(3);
    }
}

/// Section 4: each host has slots of its own; one that is busy does not hold back work for another.
#[test]
fn each_host_has_slots_of_its_own() {
    let mut plan = "api_version: v1\nname: p\nlimits: {per_target: 2}\ntasks:\n".to_owned();
    for i in 0..5 {
        plan.push_str(&format!(
            "  - {{name: a{i}, target: h1, timeout: 60s, shell: 'until [ -e done ]; do sleep 0.02; done'}}\n"
        ));
    }
    // It is last in the plan and would never run if the busy host were waited for.
    plan.push_str("  - {name: b, target: h2, shell: 'touch done'}\n");
    let stage = Stage::new(&plan).with_hosts(&["h1", "h2"]);
    let outcome = stage.run(&[]).exits(0);
    assert_eq!(outcome.most_at_once(|event: &Value| event["host"] == "h1"), 2);
}

/// Section 4: a mutex of the run is held by one task at a time; those that wait are served in plan order.
#[test]
fn a_mutex_of_the_run_admits_one_task() {
    let stage = Stage::of(
        &[tasks(5, &format!("mutex: apt, {}", alone("x"))), "  - {name: free, shell: 'true'}\n".into()]
            .concat(),
    );
    let outcome = stage.run(&[]).exits(0);
    assert_eq!(outcome.most_at_once(|event: &Value| event["task"] != "free"), 1);
    let started: Vec<&str> =
        outcome.of("task_started").iter().map(|event| event["task"].as_str().unwrap()).collect();
    let waited: Vec<&&str> = started.iter().filter(|task| **task != "free").collect();
    assert_eq!(waited, [&"t0", &"t1", &"t2", &"t3", &"t4"]);
    assert_ne!(started.last(), Some(&"free"), "it does not wait for the mutex");
}

/// Section 4: a run's mutex is held by a task for all its hosts, through its retries too.
#[test]
fn a_mutex_of_the_run_is_held_through_retries() {
    let keys = "mutex: [m], target: [h1, h2], retry: {times: 1, backoff: {initial: 200ms, max: 200ms}}, shell: 'test $STEAD_ATTEMPT = 2'";
    let stage = Stage::of(&tasks(2, keys)).with_hosts(&["h1", "h2"]);
    let outcome = stage.run(&[]).exits(0);
    assert!(outcome.when("task_finished", "t0") < outcome.when("task_started", "t1"));
}

/// Section 4: a mutex of a host is held for an attempt there, and hosts do not wait for each other.
#[test]
fn a_mutex_of_a_host_is_held_per_host() {
    let keys = format!("target: [h1, h2], mutex: {{name: m, scope: host}}, {}", alone("$STEAD_HOST"));
    let stage = Stage::of(&tasks(4, &keys)).with_hosts(&["h1", "h2"]);
    let outcome = stage.run(&[]).exits(0);
    for host in ["h1", "h2"] {
        assert_eq!(outcome.most_at_once(|event: &Value| event["host"] == host), 1);
    }

    // Two hosts hold the mutex at the same time: each waits for the other.
    let meet = "touch here-$STEAD_HOST; until [ -e here-h1 ] && [ -e here-h2 ]; do sleep 0.02; done";
    let stage = Stage::of(&format!(
        "  - {{name: a, target: h1, timeout: 60s, mutex: {{name: m, scope: host}}, shell: '{meet}'}}
  - {{name: b, target: h2, timeout: 60s, mutex: {{name: m, scope: host}}, shell: '{meet}'}}
"
    ))
    .with_hosts(&["h1", "h2"]);
    stage.run(&[]).exits(0);
}

/// Section 4: several names are taken together or not at all, so that opposite orders cannot block each other.
#[test]
fn several_mutexes_do_not_deadlock() {
    let mut plan = String::new();
    for i in 0..12 {
        let (first, second) = if i % 2 == 0 { ("a", "b") } else { ("b", "a") };
        plan.push_str(&format!("  - {{name: t{i}, mutex: [{first}, {second}], {}}}\n", alone("both")));
        plan.push_str(&format!(
            "  - {{name: h{i}, mutex: [{{name: {first}, scope: host}}, {second}], shell: 'true'}}\n"
        ));
    }
    let outcome = Stage::of(&plan).run(&[]).exits(0);
    assert_eq!(outcome.report["counts"]["changed"], 24);
}

/// Section 4: a task cannot wait for itself.
#[test]
fn a_mutex_named_twice_by_one_task_is_refused() {
    let outcome = Stage::of("  - {name: a, mutex: [m, m], shell: 'true'}\n").run(&[]).exits(3);
    assert!(outcome.report["diagnostics"][0]["message"].as_str().unwrap().contains("`m`"));
}

/// Section 4: a task that waits for its next attempt holds no slot.
#[test]
fn a_task_in_backoff_holds_no_slot() {
    let stage = Stage::of(
        "  - {name: a, retry: {times: 1, backoff: {initial: 3m, max: 3m}}, timeout: 30s, shell: 'test -e made'}
  - {name: b, retry: {times: 1000, backoff: {initial: 20ms, max: 20ms}}, shell: 'test -e c'}
  - {name: c, shell: 'touch c'}
  - {name: stop, depends_on: [b, c], shell: 'exit 1'}
",
    );
    let outcome = stage.run(&["--parallel", "2"]).exits(1);
    assert_eq!(outcome.statuses(), "a=cancelled b=changed c=changed stop=failed");
}

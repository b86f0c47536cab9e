//! In which order roles start and stop, and how many at once.

use super::place::{Place, SERVER};

/// Case 10: needs decide the order of starts, stops are the reverse.
#[test]
fn roles_start_in_the_order_of_their_needs_and_stop_in_reverse() {
    let place = Place::new(&format!(
        "  load: {{needs: [api], command: ['true']}}
  check: {{needs: [load, db], command: ['true']}}
  api: {{needs: [db, cache], kind: service, files: [server.sh], command: [./server.sh], ready: {{method: structured_stdout}}}}
  db: {SERVER}
  cache: {{needs: [db], kind: service, files: [server.sh], command: [./server.sh], ready: {{method: structured_stdout}}}}
"
    ));
    place.json(&[], 0);
    assert_eq!(
        place.told(&["role_started"]),
        [
            "role_started:db",
            "role_started:cache",
            "role_started:api",
            "role_started:load",
            "role_started:check"
        ]
    );
    assert_eq!(place.told(&["role_stop"]), ["role_stop:api", "role_stop:cache", "role_stop:db"]);
    let told = place.told(&["role_ready", "role_started"]);
    let at = |what: &str| told.iter().position(|told| told == what).unwrap();
    assert!(
        at("role_ready:db") < at("role_started:cache") && at("role_ready:cache") < at("role_started:api")
    );
    place.is_clean();
}

/// Case 10: a matrix of two, three times: six instances, one at a time, in order, each in its own place.
#[test]
fn instances_run_in_order_as_many_at_once_as_they_may() {
    let place = Place::new(
        "  t:
    command: [sh, -c, 'pwd; echo \"{{ matrix.size }} {{ role.index }}\" > out.txt', x]
    matrix: {size: [1, 64]}
    repeat: 3
    artifacts: [out.txt]
",
    );
    place.json(&[], 0);
    let told = place.told(&["role_started", "role_exited"]);
    let expected: Vec<String> =
        (1..=6).flat_map(|i| [format!("role_started:t-{i}"), format!("role_exited:t-{i}")]).collect();
    assert_eq!(told, expected);
    let sizes: Vec<String> = (1..=6).map(|i| place.read(&format!("roles/t-{i}/out.txt"))).collect();
    assert_eq!(sizes, ["1 1\n", "1 2\n", "1 3\n", "64 4\n", "64 5\n", "64 6\n"]);
    let places: std::collections::BTreeSet<String> =
        (1..=6).map(|i| place.read(&format!("roles/t-{i}/stdout.log"))).collect();
    assert_eq!(places.len(), 6);
    assert_eq!(
        (&place.role("t-5")["matrix"]["size"], &place.role("t-5")["repeat_index"]),
        (&64.into(), &2.into())
    );
    place.is_clean();
}

#[test]
fn instances_run_together_up_to_their_number() {
    let script = "echo x >> @/n; while [ $(wc -l < @/n) -lt 3 ]; do sleep 0.01; done";
    let place = Place::new("");
    let script = script.replace("@", &place.lab.root().display().to_string());
    place.lab.write(
        "m.yaml",
        format!("api_version: v1\nrun_id: r\nroles:\n  t: {{command: [sh, -c, '{script}'], repeat: 3, concurrency: 0}}\n"),
    );
    place.json(&["--timeout", "20s"], 0);
    place.is_clean();
}

/// Section 2.3: also several at once start in order.
#[test]
fn instances_that_run_together_start_in_order() {
    let place =
        Place::new("  t: {command: [sleep, '0.05'], matrix: {n: [1, 2, 3, 4]}, repeat: 2, concurrency: 3}\n");
    place.json(&[], 0);
    let expected: Vec<String> = (1..=8).map(|i| format!("role_started:t-{i}")).collect();
    assert_eq!(place.told(&["role_started"]), expected);
    place.is_clean();
    let place = Place::new("  t: {command: [sleep, '0.05'], repeat: 8, concurrency: 0}\n");
    place.json(&[], 0);
    assert_eq!(place.told(&["role_started"]), expected);
}

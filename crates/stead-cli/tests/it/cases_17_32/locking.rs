//! Who may write to a host, and who takes a run up again.

use super::lab::{Lab, wait_until};

const HOLDS: &str = r#"api_version: v1
name: holds
grace: 1s
tasks:
  - {name: hold, interrupted: retry, shell: "test -e go && exit 0; touch started; while ! test -e go; do sleep 0.02; done"}
"#;
const OTHER: &str = "{api_version: v1, name: other, tasks: [{name: t, shell: \"echo t >> out\"}]}";

/// Case 23: a run in progress is not taken up again; a second run is refused and told who holds the host; `--wait-lock` waits.
#[test]
fn a_running_run_holds_its_host_and_itself() {
    let lab = Lab::new(HOLDS);
    lab.write("other.yaml", OTHER);
    let first = lab.start_plan("first", &[]);
    lab.wait_for_file("started");
    let pid = format!("pid {}", first.pid());
    lab.run(["resume", "first"]).exits(5).says(&pid);
    let refused = lab.run(["plan", "run", "other.yaml", "--json"]).exits(5);
    let document = refused.document();
    let said = document["errors"].to_string();
    for part in ["run first", &pid, "since 20"] {
        assert!(said.contains(part), "no `{part}` in {said}");
    }
    assert_eq!(document["tasks"][0]["status"], "not_run");
    lab.run(["plan", "run", "other.yaml", "--wait-lock", "100ms"]).exits(5).says("run first");
    // Reading, predicting and drawing need no lock.
    lab.run(["plan", "run", "other.yaml", "--dry-run"]).exits(0);
    assert_eq!(lab.read("out"), "");
    assert_eq!(std::fs::read_dir(lab.path("state/runs")).unwrap().count(), 1, "refused runs leave nothing");

    let mut waiting = lab.start(["plan", "run", "other.yaml", "--wait-lock", "60s", "--run-id", "second"]);
    // It waits: it has asked for the lock file, and has not run.
    let fds = format!("/proc/{}/fd", waiting.pid());
    let asks = || {
        let open = std::fs::read_dir(&fds).into_iter().flatten().flatten();
        open.filter_map(|entry| std::fs::read_link(entry.path()).ok())
            .any(|to| to.ends_with("locks/local.lock"))
    };
    wait_until("the second run asks for the lock", asks);
    assert!(!waiting.is_over() && lab.read("out").is_empty());
    lab.write("go", "");
    first.end().exits(0);
    waiting.end().exits(0);
    assert_eq!(lab.read("out"), "t\n");
}

/// Case 23: a waiting run hears a signal.
#[test]
fn a_signal_ends_waiting_for_a_lock() {
    let lab = Lab::new(HOLDS);
    lab.write("other.yaml", OTHER);
    let first = lab.start_plan("first", &[]);
    lab.wait_for_file("started");
    let waiting = lab.start(["plan", "run", "other.yaml", "--wait-lock", "1h", "--json"]);
    let status = format!("/proc/{}/status", waiting.pid());
    // It listens: the signal is caught, not deadly.
    wait_until("the second run listens", || {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 2 != 0)
    });
    waiting.signal(rustix::process::Signal::INT);
    let ended = waiting.end().exits(130);
    assert_eq!(ended.document()["status"], "cancelled");
    lab.write("go", "");
    first.end().exits(0);
}

/// Case 23: a lock left by a killed process is free, for other runs and for the resume of its own.
#[test]
fn a_lock_of_a_killed_process_is_free() {
    let lab = Lab::new(HOLDS);
    lab.write("other.yaml", OTHER);
    let first = lab.start_plan("first", &[]);
    lab.wait_for_file("started");
    first.kill_hard();
    assert!(!lab.processes().is_empty(), "its task still runs");
    lab.run(["plan", "run", "other.yaml"]).exits(0);
    lab.write("go", "");
    lab.run(["resume", "first"]).exits(0);
    lab.nothing_runs();
}

/// Case 23: a run that a task starts is not blocked by its parent, but by others it is.
#[test]
fn a_run_started_by_a_task_passes_its_parents_lock() {
    let lab = Lab::new(
        "{api_version: v1, name: outer, tasks: [{name: nested, shell: '\"$STEAD\" --state-dir state plan run other.yaml --run-id inner'}]}",
    );
    lab.write("other.yaml", OTHER);
    let mut command = lab.stead(["plan", "run", "p.yaml", "--run-id", "outer", "--json"]);
    let ended = command.env("STEAD", env!("CARGO_BIN_EXE_stead")).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
    assert_eq!(lab.read("out"), "t\n");
    assert_eq!(lab.report("inner")["status"], "success");
    // Somebody else's run as parent is no key.
    lab.write("p.yaml", HOLDS);
    let first = lab.start_plan("first", &[]);
    lab.wait_for_file("started");
    let ended = lab.stead(["plan", "run", "other.yaml"]).env("STEAD_RUN_ID", "outer").output().unwrap();
    assert_eq!(ended.status.code(), Some(5));
    lab.write("go", "");
    first.end().exits(0);
}

/// Case 23: hosts are locked one by one: runs on different hosts, and runs that only read, do not meet.
#[test]
fn only_hosts_that_are_written_to_are_locked() {
    let lab = Lab::new(&HOLDS.replace("name: hold,", "name: hold, target: h1,"));
    lab.write("inventory.yaml", "{api_version: v1, hosts: {h1: {transport: local}, h2: {transport: local}}}");
    let write = |target: &str| {
        format!("{{api_version: v1, name: o, tasks: [{{name: t, target: {target}, exec: ['true']}}]}}")
    };
    lab.write("h1.yaml", write("h1"));
    lab.write("h2.yaml", write("h2"));
    lab.write("both.yaml", write("[h2, h1]"));
    lab.write(
        "reads.yaml",
        "{api_version: v1, name: o, tasks: [{name: t, target: h1, op: assert, params: {that: [\"true\"]}}]}",
    );
    lab.write("free.yaml", write("h1").replace("tasks:", "lock: false, tasks:"));
    let first = lab.start_plan("first", &[]);
    lab.wait_for_file("started");
    for (file, code) in [("h1", 5), ("both", 5), ("h2", 0), ("reads", 0), ("free", 0)] {
        lab.run(["plan", "run", &format!("{file}.yaml")]).exits(code);
    }
    lab.write("go", "");
    first.end().exits(0);
}

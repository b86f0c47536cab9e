//! A long run whose driver is killed again and again, and taken up again each time.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use serde_json::Value;

use super::lab::{Lab, Running, essence, task};

const KILLS: u32 = 24;
const HOSTS: &str = "{api_version: v1, hosts: {h1: {transport: local}, h2: {transport: local}, h3: {transport: local}, h4: {transport: local}}}";

/// Small, seeded, and good enough to choose points.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Forty tasks in four branches that meet, retries, guards, a failure that goes on, and a sequence on four hosts.
///
/// Every attempt adds a line to `lines/<task>`, or `lines/<task>@<host>.<part>`.
fn plan() -> String {
    let mut text = String::from("api_version: v1\nname: long\ngrace: 2s\non_error: continue\ntasks:\n");
    let mut add = |line: String| writeln!(text, "  - {{idempotent: true, {line}}}").unwrap();
    let append = "echo x >> lines/$STEAD_TASK; echo $STEAD_TASK";
    add(format!("name: root, shell: \"{append}\""));
    for branch in 0..4 {
        for step in 0..9 {
            let after = if step == 0 { "root".to_owned() } else { format!("b{branch}-{}", step - 1) };
            let name = format!("name: b{branch}-{step}, depends_on: {after}");
            match (branch, step) {
                // Fails on its first two tries, however often the driver dies.
                (0, 3) | (2, 6) => add(format!(
                    "{name}, retry: {{times: 2, backoff: {{initial: 20ms, max: 20ms}}}}, shell: \"{append}; test $(wc -l < lines/$STEAD_TASK) -ge 3\""
                )),
                (1, 4) => add(format!("{name}, shell: \"{append}\", changed_when: \"false\"")),
                (1, 5) => add(format!("{name}, only_if_changed: true, shell: \"{append}\"")),
                (3, 2) => add(format!(
                    "{name}, when: \"results['b3-1'].data.stdout == 'b3-1\\n'\", shell: \"{append}\""
                )),
                (3, 8) => add(format!("{name}, shell: \"{append}; exit 3\"")),
                (_, step) if step % 4 == 1 => add(format!("{name}, shell: \"{append}; sleep 0.02\"")),
                _ => add(format!("{name}, shell: \"{append}\"")),
            }
        }
    }
    let line = |part: &str| {
        format!(
            "{{name: {part}, op: command.shell, params: {{script: \"echo x >> lines/$STEAD_TASK@$STEAD_HOST.{part}; sleep 0.01\"}}}}"
        )
    };
    add(format!(
        "name: roll, target: [h1, h2, h3, h4], batch: 2, depends_on: [b0-8, b1-8, b2-8], sequence: [{}, {}, {}]",
        line("one"),
        line("two"),
        line("three")
    ));
    add("name: behind, depends_on: b3-8, shell: \"exit 0\"".to_owned());
    add(format!("name: meets, depends_on: roll, shell: \"{append}\""));
    text.push_str("finally:\n");
    writeln!(text, "  - {{name: last, idempotent: true, shell: \"{append}\"}}").unwrap();
    text
}

fn lab() -> Lab {
    let lab = Lab::new(&plan());
    lab.write("inventory.yaml", HOSTS);
    fs::create_dir(lab.path("lines")).unwrap();
    lab
}

fn journal_len(lab: &Lab) -> usize {
    fs::read(lab.bundle("r1").join("events.jsonl")).map_or(0, |bytes| bytes.len())
}

/// Waits until the journal has `bytes` more, then kills; false if the run ended first.
fn kill_after(lab: &Lab, mut running: Running, bytes: usize) -> bool {
    let goal = journal_len(lab) + bytes;
    while journal_len(lab) < goal {
        if running.is_over() {
            running.end().exits(1);
            return false;
        }
        std::thread::yield_now();
    }
    running.kill_hard();
    true
}

/// Checks that no attempt began after a result of its row that ran.
fn nothing_finished_ran_again(lab: &Lab, seed: u64) {
    let mut attempts: BTreeMap<(String, String), (usize, bool)> = BTreeMap::new();
    for event in lab.events("r1") {
        let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        // A driver killed after the end of a failed run: `finally` runs again, by the rules.
        if event["ev"] == "run_finished" {
            attempts.entry(("last".to_owned(), "local".to_owned())).or_default().1 = false;
        }
        let row = attempts.entry((text("task"), text("host"))).or_default();
        match text("ev").as_str() {
            "attempt_started" => {
                assert!(!row.1, "seed {seed}: a finished task ran again: {event}");
                row.0 += 1;
            }
            "host_result" => row.1 = matches!(text("status").as_str(), "changed" | "unchanged"),
            _ => {}
        }
    }
    for ((task, host), (count, _)) in attempts.iter().filter(|(_, (count, _))| *count > 0) {
        if task == "roll" {
            for part in ["one", "two", "three"] {
                let lines = lab.read(&format!("lines/roll@{host}.{part}")).lines().count();
                assert!(
                    (1..=*count).contains(&lines),
                    "seed {seed}: {part} on {host} ran {lines} times in {count} attempts"
                );
            }
        } else if task != "behind" {
            let lines = lab.read(&format!("lines/{task}")).lines().count();
            assert!(
                (1..=*count).contains(&lines),
                "seed {seed}: {task} ran {lines} times in {count} attempts"
            );
        }
    }
}

/// Case 21, widened: killed at two dozen random points, resumed until done: the report is that of a run left alone.
#[test]
fn a_run_killed_again_and_again_ends_as_if_it_had_not_been() {
    let calm = lab();
    let wanted: Value = calm.plan_report(&["--run-id", "r1"], 1);
    assert_eq!(task(&wanted, "behind")["reason"], "dependency failed: b3-8");
    assert_eq!(task(&wanted, "meets")["status"], "changed");
    let mut kills = 0;
    let mut seed = 0x5eed_0001_u64;
    while kills < KILLS {
        println!("seed {seed:#x}");
        let mut random = Random(seed);
        let lab = lab();
        let mut running = lab.start_plan("r1", &["--progress", "none"]);
        while kill_after(&lab, running, usize::try_from(random.below(4000)).unwrap()) {
            kills += 1;
            // A driver that died before it made the directory has left nothing to go on with.
            running = if lab.bundle("r1").exists() {
                lab.start(["resume", "r1", "--progress", "none"])
            } else {
                lab.start_plan("r1", &["--progress", "none"])
            };
        }
        let report = lab.report("r1");
        assert_eq!(essence(&report), essence(&wanted), "seed {seed:#x}");
        nothing_finished_ran_again(&lab, seed);
        lab.nothing_runs();
        lab.verify("r1");
        seed += 1;
    }
}

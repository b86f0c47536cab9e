//! Dry runs: exact, and without a trace.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use super::lab::{Lab, statuses, task};

const HOSTS: &str = r#"api_version: v1
hosts:
  h1: {transport: local}
  h2: {transport: local}
  h3: {transport: local}
"#;

/// Files, commands, guards, several hosts, a sequence: all rows exact.
const MIXED: &str = r#"api_version: v1
name: mixed
tasks:
  - {name: dir, op: file.directory, params: {path: @/t/site, mode: "0750", parents: true}}
  - {name: page, for_each: {a: one, b: two}, depends_on: dir, op: file.present, params: {path: "@/t/site/{{ item.key }}", content: "{{ item.value }}"}}
  - {name: conf, depends_on: dir, op: file.line, params: {path: @/t/conf, line: "on=1", create: true}}
  - {name: again, depends_on: conf, op: file.line, params: {path: @/t/conf, line: "on=1", create: true}}
  - {name: link, depends_on: page, op: file.symlink, params: {path: @/t/site/home, to: a}}
  - {name: gone, op: file.absent, params: {path: @/t/old, recursive: true}}
  - {name: build, depends_on: page, shell: "echo built > t/built", params: {creates: t/built}}
  - {name: probed, shell: "echo x >> t/probed", params: {unless: "test -e t/probed"}}
  - {name: told, depends_on: [page, link], only_if_changed: true, shell: "echo x >> t/told"}
  - {name: quiet, depends_on: gone, when: "not changed('gone')", shell: "echo x >> t/quiet"}
  - name: per-host
    target: [h1, h2, h3]
    when_host: host.name != 'h2'
    op: file.present
    params: {path: "@/t/{{ host.name }}/f", content: "{{ host.name }}", parents: true}
  - name: rolled
    target: [h1, h2, h3]
    batch: 1
    depends_on: per-host
    sequence:
      - {name: first, op: file.present, params: {path: "@/t/roll-{{ host.name }}", content: "1"}}
      - {name: second, op: file.line, params: {path: "@/t/roll-{{ host.name }}", line: "2"}}
finally:
  - {name: done, op: file.present, params: {path: @/t/done, content: "x"}}
"#;

/// Every row that changed: a task, or a task on a host.
fn changed(report: &Value) -> BTreeSet<String> {
    let mut rows = BTreeSet::new();
    for row in report["tasks"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        if row["changed"] == true {
            rows.insert(name.to_owned());
        }
        for host in row["hosts"].as_array().unwrap() {
            if host["changed"] == true {
                rows.insert(format!("{name}@{}", host["host"].as_str().unwrap()));
            }
        }
    }
    rows
}

/// Predicts, checks that nothing was touched, runs, and compares.
fn prediction_comes_true(lab: &Lab, at_start: &str) {
    let (tree, state) = (lab.snapshot("t"), lab.snapshot("state"));
    let predicted = lab.plan_report(&["--dry-run", "--diff"], 0);
    lab.plan(&["--dry-run", "--fail-on-change"]).exits(4);
    assert_eq!(lab.snapshot("t"), tree, "{at_start}: the target was touched");
    assert_eq!(lab.snapshot("state"), state, "{at_start}: the state directory was touched");
    assert_eq!(predicted["mode"], "dry_run");
    for row in predicted["tasks"].as_array().unwrap() {
        if row["status"] != "skipped" {
            assert_eq!(row["prediction"], "exact", "{at_start}: {row}");
        }
    }
    let done = lab.plan_report(&[], 0);
    assert_eq!(changed(&predicted), changed(&done), "{at_start}");
    assert_eq!(statuses(&predicted), statuses(&done), "{at_start}");
}

/// Case 19: on a fresh target and on half-applied ones, what is predicted is what then changes, and nothing is touched.
#[test]
fn what_a_dry_run_predicts_is_what_the_run_right_after_changes() {
    let lab = Lab::new(MIXED);
    lab.write("inventory.yaml", HOSTS);
    fs::create_dir(lab.path("t")).unwrap();
    prediction_comes_true(&lab, "fresh");
    assert!(lab.read("t/quiet") == "x\n" && lab.read("t/told") == "x\n", "the guards were true");
    // Half applied, in several ways.
    lab.write("t/site/a", "other");
    fs::remove_file(lab.path("t/roll-h2")).unwrap();
    fs::remove_file(lab.path("t/built")).unwrap();
    lab.write("t/old/deep/file", "x");
    prediction_comes_true(&lab, "drifted and an old file");
}

const WRITES: &str = r#"api_version: v1
name: writes
tasks:
  - {name: dir, op: file.directory, params: {path: @/t/d, parents: true}}
  - {name: one, depends_on: dir, op: file.present, params: {path: @/t/d/f, content: "x\n"}}
  - {name: two, depends_on: one, op: file.present, params: {path: @/t/d/f, content: "x\n"}}
  - {name: line, depends_on: two, op: file.line, params: {path: @/t/d/f, line: "y"}}
  - {name: link, depends_on: dir, op: file.symlink, params: {path: @/t/d/l, to: f}}
"#;

/// Case 19: `--fail-on-change` is 4 before and 0 after; the second of two tasks that write one value is unchanged.
#[test]
fn fail_on_change_is_drift_before_and_nothing_after() {
    let lab = Lab::new(WRITES);
    lab.plan(&["--dry-run", "--fail-on-change"]).exits(4);
    let predicted = lab.plan_report(&["--dry-run"], 0);
    let wanted = ["dir:changed", "one:changed", "two:unchanged", "line:changed", "link:changed"];
    assert_eq!(statuses(&predicted), wanted);
    assert!(!lab.path("t").exists() && !lab.path("state").exists());
    assert!(predicted["summary"].as_str().unwrap().starts_with("dry run: 5 tasks: 4 changed, 1 unchanged\n"));
    // The two tasks disagree about the file from now on, so the plan without `line` is the one that settles.
    lab.write_plan(&WRITES.replace(
        "  - {name: line, depends_on: two, op: file.line, params: {path: @/t/d/f, line: \"y\"}}\n",
        "",
    ));
    lab.plan(&["--dry-run", "--fail-on-change"]).exits(4);
    lab.plan(&[]).exits(0);
    lab.plan(&["--dry-run", "--fail-on-change"]).exits(0).says("dry run: 4 tasks: 4 unchanged");
}

/// Case 19: the difference is shown, as a person reads differences.
#[test]
fn a_dry_run_shows_a_unified_diff() {
    let lab = Lab::new(
        "{api_version: v1, name: d, tasks: [{name: f, op: file.present, params: {path: @/f, content: \"new\\n\"}}]}",
    );
    lab.write("f", "old\n");
    let report = lab.plan_report(&["--dry-run"], 0);
    let diff = task(&report, "f")["hosts"][0]["diff"].to_string();
    assert!(diff.contains("-old") && diff.contains("+new"), "{diff}");
    let shown = lab.plan(&["--dry-run", "--diff"]).exits(0);
    assert!(shown.stderr.contains("-old") || shown.stdout.contains("-old"), "{shown:?}");
    assert_eq!(lab.read("f"), "old\n");
}

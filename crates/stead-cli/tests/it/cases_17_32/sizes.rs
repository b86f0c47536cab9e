//! Plans with ten thousand tasks.

use std::fmt::Write as _;

use super::lab::{Lab, task};

const TASKS: usize = 10_000;

fn run(plan: &str) -> serde_json::Value {
    let lab = Lab::new(plan);
    let report = lab.plan_report(&["--run-id", "r1", "--progress", "none"], 0);
    assert_eq!(report["counts"]["tasks"], TASKS);
    assert_eq!(
        report["counts"]["unchanged"].as_u64().unwrap() + report["counts"]["changed"].as_u64().unwrap(),
        TASKS as u64
    );
    lab.verify("r1");
    // Taken up again, it is read back and only shown.
    lab.run(["resume", "r1"]).exits(0).says("10000 tasks: ");
    report
}

/// Case 32: ten thousand tasks side by side, some of them processes.
#[test]
fn ten_thousand_wide_finishes() {
    let mut plan = String::from("api_version: v1\nname: wide\ntasks:\n");
    for i in 0..TASKS {
        let action = if i % 500 == 0 { "exec: ['true']" } else { "op: assert, params: {that: ['true']}" };
        writeln!(plan, "  - {{name: t{i}, {action}}}").unwrap();
    }
    let report = run(&plan);
    assert_eq!(report["counts"]["changed"], 20);
}

/// Case 32: ten thousand tasks one behind the other; shown, drawn and run without running out of stack.
#[test]
fn ten_thousand_deep_finishes() {
    let mut plan = String::from("api_version: v1\nname: deep\ntasks:\n");
    for i in 0..TASKS {
        let after = if i == 0 { String::new() } else { format!("depends_on: t{}, ", i - 1) };
        writeln!(plan, "  - {{name: t{i}, {after}op: assert, params: {{that: ['true']}}}}").unwrap();
    }
    let lab = Lab::new(&plan);
    lab.run(["plan", "show", "p.yaml"]).exits(0).says("Plan: 10000 tasks, 10000 levels");
    lab.run(["plan", "graph", "p.yaml", "--format", "dot"]).exits(0).says("\"t9998\" -> \"t9999\";");
    run(&plan);
}

/// Case 32: a failure at the head of a deep chain reaches its end, and so does a cycle of the same size.
#[test]
fn a_failure_and_a_cycle_reach_through_ten_thousand_tasks() {
    let mut plan = String::from("api_version: v1\nname: deep\non_error: continue\ntasks:\n");
    for i in 0..TASKS {
        let after = if i == 0 { String::new() } else { format!("depends_on: t{}, ", i - 1) };
        let that = if i == 0 { "false" } else { "true" };
        writeln!(plan, "  - {{name: t{i}, {after}op: assert, params: {{that: ['{that}']}}}}").unwrap();
    }
    let lab = Lab::new(&plan);
    let report = lab.plan_report(&["--progress", "none"], 1);
    assert_eq!(report["counts"]["skipped"], TASKS - 1);
    assert_eq!(task(&report, "t9999")["cause"], "dependency");
    let cycle = plan.replacen("{name: t0, ", "{name: t0, depends_on: t9999, ", 1);
    lab.write_plan(&cycle);
    lab.plan(&["--json"]).exits(3).says("plan/cycle");
}

//! The table of section 9, row by row.

use super::lab::{Lab, statuses, task};

/// Predicts `tasks` of a plan with `on_error: continue`.
fn predict(lab: &Lab, code: i32) -> serde_json::Value {
    lab.plan_report(&["--dry-run"], code)
}

fn plan(tasks: &str) -> Lab {
    Lab::new(&format!("api_version: v1\nname: table\non_error: continue\ntasks:\n{tasks}"))
}

/// Case 19, section 9, operation with check: exact, with a difference.
#[test]
fn an_operation_with_check_is_exact() {
    let lab = plan(
        "  - {name: f, op: file.present, params: {path: @/f, content: x}}\n  - {name: g, op: file.present, params: {path: @/g, content: x}}\n",
    );
    lab.write("g", "x");
    let report = predict(&lab, 0);
    assert_eq!(statuses(&report), ["f:changed", "g:unchanged"]);
    for name in ["f", "g"] {
        assert_eq!(task(&report, name)["prediction"], "exact");
    }
    assert!(!task(&report, "f")["hosts"][0]["diff"].is_null());
}

/// Case 19, section 9, command: probed, not run; `assumed` where `changed_when` would have decided.
#[test]
fn a_command_is_probed_and_not_run() {
    let lab = plan(
        r#"  - {name: plain, shell: "touch ran"}
  - {name: made, shell: "touch ran", params: {creates: here}}
  - {name: not-made, shell: "touch ran", params: {creates: there}}
  - {name: probe-yes, shell: "touch ran", params: {unless: "test -e here"}}
  - {name: probe-no, shell: "touch ran", params: {unless: "test -e there"}}
  - {name: judged, shell: "touch ran", changed_when: "result.exit_code == 1"}
"#,
    );
    lab.write("here", "");
    let report = predict(&lab, 0);
    let wanted = [
        "plain:changed",
        "made:unchanged",
        "not-made:changed",
        "probe-yes:unchanged",
        "probe-no:changed",
        "judged:changed",
    ];
    assert_eq!(statuses(&report), wanted);
    assert_eq!(task(&report, "plain")["prediction"], "exact");
    assert_eq!(task(&report, "judged")["prediction"], "assumed");
    assert!(!lab.path("ran").exists());
}

/// Case 19, section 9, a check that fails: `unknown` behind a change of that host, else `failed`, exit 1.
#[test]
fn a_failing_check_is_unknown_behind_a_change_and_failed_otherwise() {
    let lab = plan(
        r#"  - {name: maker, shell: "echo x > made"}
  - {name: behind, depends_on: maker, op: file.line, params: {path: @/made, line: "y"}}
"#,
    );
    let report = predict(&lab, 0);
    assert_eq!(statuses(&report), ["maker:changed", "behind:unknown"]);
    let reason = task(&report, "behind").to_string();
    assert!(reason.contains("made"), "the check is named: {reason}");
    lab.plan(&["--dry-run", "--fail-on-change"]).exits(4);

    let lab = plan("  - {name: alone, op: file.line, params: {path: @/missing, line: \"y\"}}\n");
    let report = predict(&lab, 1);
    assert_eq!(statuses(&report), ["alone:failed"]);
    lab.plan(&["--dry-run", "--fail-on-change"]).exits(1);
}

/// Case 19, section 9, a guard over data that nobody has: `unknown`, and so is what hangs on it; status and changed are known.
#[test]
fn a_guard_over_data_of_a_task_not_executed_is_unknown() {
    let lab = plan(
        r#"  - {name: count, shell: "echo 3"}
  - {name: reads-data, depends_on: count, when: "results.count.data.stdout | int > 2", op: file.present, params: {path: @/f, content: x}}
  - {name: hangs-on-it, depends_on: reads-data, only_if_changed: true, op: file.present, params: {path: @/g, content: x}}
  - {name: reads-status, depends_on: count, when: "results.count.status == 'changed'", op: file.present, params: {path: @/h, content: x}}
  - {name: reads-changed, depends_on: count, when: "not results.count.changed", op: file.present, params: {path: @/i, content: x}}
  - {name: writes-data, depends_on: count, op: file.present, params: {path: @/j, content: "{{ results.count.data.stdout }}"}}
"#,
    );
    let report = predict(&lab, 0);
    let wanted = [
        "count:changed",
        "reads-data:unknown",
        "hangs-on-it:unknown",
        "reads-status:changed",
        "reads-changed:skipped",
        "writes-data:unknown",
    ];
    assert_eq!(statuses(&report), wanted);
    assert!(report["summary"].as_str().unwrap().contains("3 unknown"), "{}", report["summary"]);
    assert_eq!(std::fs::read_dir(lab.root()).unwrap().count(), 1, "nothing but the plan");
}

/// Section 9: a question is not asked, `finally` is predicted, and what was left out stays left out.
#[test]
fn a_dry_run_asks_nothing_and_predicts_finally() {
    let lab = Lab::new(
        r#"api_version: v1
name: f
tasks:
  - {name: asked, confirm: "Sure?", op: file.present, params: {path: @/f, content: x}}
  - {name: other, op: file.present, params: {path: @/g, content: x}}
finally:
  - {name: last, when: "run.status == 'success'", op: file.present, params: {path: @/h, content: x}}
"#,
    );
    let report = lab.plan_report(&["--dry-run", "--only", "asked"], 0);
    assert_eq!(statuses(&report), ["asked:changed", "other:skipped", "last:changed"]);
}

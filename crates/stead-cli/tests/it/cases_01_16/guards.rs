//! Cases 12 and 13 and section 5: rules, guards, reasons.

use super::stage::Stage;

/// Case 12: `only_if_changed` behind an unchanged task, and what follows behind that.
#[test]
fn a_task_behind_something_unchanged_is_skipped() {
    let stage = Stage::of(
        "  - {name: a, shell: 'true', changed_when: 'false'}
  - {name: b, depends_on: a, only_if_changed: true, shell: 'touch b'}
  - {name: c, depends_on: b, shell: 'touch c'}
  - {name: d, depends_on: b, trigger_rule: all_ran, shell: 'touch d'}
",
    );
    let outcome = stage.run(&[]).exits(0);
    assert_eq!(outcome.statuses(), "a=unchanged b=skipped c=changed d=skipped");
    assert_eq!(outcome.skipped("b"), "unchanged: no dependencies changed");
    assert_eq!(outcome.skipped("d"), "rule: dependency skipped: b");
    assert!(stage.has("c") && !stage.has("b") && !stage.has("d"));
}

/// Section 5: `any` needs one change, `all` every one; a failed task that changed something counts.
#[test]
fn only_if_changed_counts_any_or_all() {
    let stage = Stage::new(
        "api_version: v1
name: p
on_error: continue
tasks:
  - {name: new, shell: 'true'}
  - {name: old, shell: 'true', changed_when: 'false'}
  - {name: bad, shell: 'exit 1'}
  - {name: any, depends_on: [new, old], only_if_changed: any, shell: 'true'}
  - {name: all, depends_on: [new, old], only_if_changed: all, shell: 'true'}
  - {name: all-new, depends_on: [new], only_if_changed: all, shell: 'true'}
  - {name: of-bad, depends_on: [bad], trigger_rule: all_done, only_if_changed: true, shell: 'true'}
",
    );
    let outcome = stage.run(&[]).exits(1);
    assert_eq!(
        outcome.statuses(),
        "new=changed old=unchanged bad=failed any=changed all=skipped all-new=changed of-bad=changed"
    );
    assert_eq!(outcome.skipped("all"), "unchanged: not all dependencies changed");
}

/// Section 5: the table of trigger rules, row by row.
#[test]
fn trigger_rules_decide_by_the_ends_of_dependencies() {
    let mut plan = "api_version: v1
name: p
on_error: continue
tasks:
  - {name: ran, shell: 'true', changed_when: 'false'}
  - {name: passed, when: '1 == 2', shell: 'true'}
  - {name: bad, shell: 'exit 1'}
  - {name: worse, shell: 'exit 2'}
"
    .to_owned();
    let table = [
        ("all_ok", "ran, passed", "changed"),
        ("all_ok", "worse, ran, bad", "dependency: dependency failed: bad, worse"),
        ("all_ran", "ran", "changed"),
        ("all_ran", "ran, passed", "rule: dependency skipped: passed"),
        ("all_ran", "passed, bad", "dependency: dependency failed: bad"),
        ("any_ok", "ran, bad", "changed"),
        ("any_ok", "passed, bad", "dependency: dependency failed: bad"),
        ("any_ok", "passed", "rule: no dependency ran"),
        ("all_done", "passed, bad", "changed"),
        ("any_failed", "ran, bad", "changed"),
        ("any_failed", "ran, passed", "rule: no dependency failed"),
        ("all_failed", "bad, worse", "changed"),
        ("all_failed", "bad, passed", "rule: not all dependencies failed"),
    ];
    for (i, (rule, after, _)) in table.iter().enumerate() {
        plan.push_str(&format!(
            "  - {{name: t{i}, depends_on: [{after}], trigger_rule: {rule}, shell: 'true'}}\n"
        ));
    }
    let outcome = Stage::new(&plan).run(&[]).exits(1);
    for (i, (rule, after, wanted)) in table.into_iter().enumerate() {
        let task = format!("t{i}");
        let shown = match outcome.get(&task, "status").as_str() {
            "skipped" => outcome.skipped(&task),
            other => other.to_owned(),
        };
        assert_eq!(shown, wanted, "{rule} over {after}");
    }
}

/// Section 5: a guard never widens the rule; an admitting rule lets a guard see the failure.
#[test]
fn a_guard_does_not_lift_the_rule() {
    let stage = Stage::new(
        "api_version: v1
name: p
on_error: continue
tasks:
  - {name: a, shell: 'exit 1'}
  - {name: b, depends_on: a, when: \"failed('a')\", shell: 'true'}
  - {name: c, depends_on: a, when: \"failed('a') and results.a.class == 'exit'\", trigger_rule: all_done, shell: 'true'}
",
    );
    let outcome = stage.run(&[]).exits(1);
    assert_eq!(outcome.skipped("b"), "dependency: dependency failed: a");
    assert_eq!(outcome.get("c", "status"), "changed");
}

/// Section 5: every guard is judged, and the reasons of all that are false are joined in order.
#[test]
fn the_reasons_of_all_false_guards_are_joined() {
    let stage = Stage::new(
        "api_version: v1
name: p
vars: {on: false, ticket: ''}
tasks:
  - {name: a, shell: 'true', changed_when: 'false'}
  - name: b
    depends_on: a
    only_if_changed: true
    when: [vars.on, '1 == 1', {expr: \"vars.ticket != ''\", reason: no ticket}]
    shell: 'true'
  - name: c
    when: {all: [{any: [vars.on, '1 == 1']}, {not: vars.on}]}
    shell: 'true'
  - name: d
    when: {any: [vars.on, {not: '1 == 1'}]}
    shell: 'true'
  - {name: e, when: false, shell: 'true'}
  - {name: f, when: true, shell: 'true'}
",
    );
    let outcome = stage.run(&[]).exits(0);
    assert_eq!(outcome.get("b", "reason"), "no dependencies changed; guard is false: vars.on; no ticket");
    assert_eq!(outcome.get("c", "status"), "changed");
    assert_eq!(outcome.get("d", "cause"), "guard");
    assert!(outcome.get("d", "reason").contains("vars.on"), "{}", outcome.get("d", "reason"));
    assert_eq!(outcome.skipped("e"), "guard: guard is false: false");
    assert_eq!(outcome.get("f", "status"), "changed");
}

/// Case 13: results of a task that is not upstream, and an undeclared variable, are refused before anything runs.
#[test]
fn names_that_cannot_be_known_are_refused() {
    let stage = Stage::of(
        "  - {name: x, shell: 'touch ran'}
  - {name: a, when: 'results.x.changed', shell: 'touch ran'}
  - {name: b, shell: \"echo {{ env.HOME | quote }}\"}
",
    );
    let outcome = stage.run(&[]).exits(3);
    let diagnostics = outcome.report["diagnostics"].as_array().unwrap();
    let said = |code: &str| {
        let found = diagnostics.iter().find(|diagnostic| diagnostic["code"] == code);
        let found = found.unwrap_or_else(|| panic!("no {code}: {diagnostics:#?}"));
        format!("{} {} {}", found["line"], found["message"], found["help"])
    };
    let upstream = said("plan/not-upstream");
    assert!(
        upstream.starts_with("5 ") && upstream.contains("`x`") && upstream.contains("depends_on"),
        "{upstream}"
    );
    let undeclared = said("plan/undeclared");
    assert!(undeclared.starts_with("6 ") && undeclared.contains("HOME"), "{undeclared}");
    assert!(!stage.has("ran") && !stage.has("state"));
}

/// Case 13: a guard that errs or gives no boolean fails its task; with `continue` the rest runs.
#[test]
fn a_broken_guard_fails_its_task() {
    let stage = Stage::new(
        "api_version: v1
name: p
on_error: continue
tasks:
  - {name: a, shell: 'true'}
  - {name: zero, when: '1 // 0 == 1', shell: 'true'}
  - {name: nope, depends_on: a, when: 'results.a.data.nope', shell: 'true'}
  - {name: word, when: \"'yes'\", shell: 'true'}
  - {name: behind, depends_on: word, shell: 'true'}
  - {name: rest, depends_on: a, shell: 'true'}
",
    );
    let outcome = stage.run(&[]).exits(1);
    assert_eq!(
        outcome.statuses(),
        "a=changed zero=failed nope=failed word=failed behind=skipped rest=changed"
    );
    for (task, expression) in [("zero", "1 // 0 == 1"), ("nope", "results.a.data.nope"), ("word", "'yes'")] {
        assert_eq!(outcome.get(task, "class"), "guard");
        assert!(outcome.get(task, "error").contains(expression), "{}", outcome.get(task, "error"));
        assert!(outcome.about("task_started", task).is_empty());
    }
    // Under `stop_all` a broken guard stops the run like any failure.
    stage.plan("{api_version: v1, name: p, tasks: [{name: zero, when: '1 // 0 == 1', shell: 'true'}, {name: b, shell: 'true', depends_on: zero}]}");
    assert_eq!(stage.run(&["--run-id", "r2"]).exits(1).statuses(), "zero=failed b=not_run");
}

/// Section 5: a rule that can never fire is warned about.
#[test]
fn a_rule_that_cannot_fire_is_warned_about() {
    let stage = Stage::of(
        "  - {name: a, shell: 'true'}
  - {name: b, depends_on: a, trigger_rule: any_failed, shell: 'true'}
",
    );
    let outcome = stage.run(&[]).exits(0);
    assert_eq!(outcome.skipped("b"), "rule: no dependency failed");
    assert_eq!(outcome.report["warnings"][0]["code"], "plan/never-runs");
}

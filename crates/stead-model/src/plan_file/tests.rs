//! Plans that are right, and everything that can be wrong with one.

use super::*;

fn source(text: &str) -> Source {
    Source { name: "plan.yaml".into(), text: text.into() }
}

/// Reads the whole file, every task included.
fn read(text: &str) -> (Option<PlanFile>, Diagnostics) {
    let mut diagnostics = Diagnostics::default();
    let file = PlanFile::read(&source(text), &mut diagnostics);
    if let Some(file) = &file {
        for index in 0..file.task_count() {
            file.task(index, &mut diagnostics);
        }
    }
    (file, diagnostics)
}

/// Returns the problems of a file whose first lines are right and whose rest is `rest`, from `line 1` on.
fn problems(rest: &str) -> Vec<String> {
    let (_, diagnostics) = read(&format!("api_version: v1\nname: p\n{rest}"));
    let show = |problem: &crate::Diagnostic| {
        let (line, column) = problem.place.location().1.unwrap_or_default();
        let help = if problem.help.is_empty() { String::new() } else { format!(" | {}", problem.help) };
        format!("{}:{column} {} {}{help}", line - 2, problem.code, problem.message)
    };
    diagnostics.iter().map(show).collect()
}

/// Returns the problems of one task, written in flow form.
fn task(keys: &str) -> Vec<String> {
    problems(&format!("tasks:\n- {{name: t, {keys}}}\n"))
}

/// Returns the problems of tasks with these keys, each of which has exactly one.
fn table(rows: &[&str]) -> String {
    let show = |keys: &&str| {
        let found = task(keys);
        assert_eq!(found.len(), 1, "{keys}: {found:?}");
        format!("{keys}\n    {}", found[0])
    };
    rows.iter().map(show).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_example_of_the_contract_is_read() {
    let (file, diagnostics) = read(EXAMPLE);
    assert_eq!(diagnostics.to_string(), "");
    let file = file.unwrap();
    assert_eq!((file.name.as_str(), file.task_count()), ("web", 4));
    let mut none = Diagnostics::default();
    let roll = file.task(1, &mut none).unwrap();
    assert_eq!(roll.canary, Some(Size::Count(1)));
    assert_eq!(roll.batch, Some(vec![Size::Percent(25)]));
    assert!(matches!(roll.action, Some(ActionForm::Sequence(parts)) if parts.len() == 2));
    let alert = file.task(3, &mut none).unwrap();
    assert_eq!(alert.section, Section::Finally);
    assert!(file.task(4, &mut none).is_none());
}

pub(crate) const EXAMPLE: &str = r#"api_version: v1
name: web
vars: {version: "1.27", start: true, mirrors: {eu: a.example, us: b.example}, ticket: null}
env: [DEPLOY_USER]
secrets: {api_key: {env: API_KEY}}
defaults: {target: "role:web", timeout: 5m, retry: {times: 2, backoff: exponential}}
tasks:
  - {name: probe, for_each: "{{ vars.mirrors }}", target: local, exec: [curl, -fsS, "https://{{ item.value }}/ok"], changed_when: "false"}
  - name: roll
    depends_on: probe
    canary: 1
    batch: "25%"
    sequence:
      - {name: install, op: command.exec, params: {command: apt-get, args: [install, -y, "nginx={{ vars.version }}*"]}}
      - {name: healthy, op: command.shell, params: {script: 'curl -fsS -H "X-Key: $KEY" localhost/health', env: {KEY: "{{ secrets.api_key }}"}}}
  - {name: announce, target: local, depends_on: roll, only_if_changed: true, when: "vars.start", shell: "echo {{ vars.ticket | quote }} done"}
finally:
  - {name: alert, target: local, when: "run.status != 'success'", exec: [logger, "web failed"]}
"#;

#[test]
fn every_key_has_its_default() {
    let (file, diagnostics) = read("api_version: v1\nname: p\ntasks: []\n");
    assert_eq!(diagnostics.0, []);
    let file = file.unwrap();
    assert_eq!(file.on_error, OnError::StopAll);
    assert_eq!(file.on_failure, OnFailure::Keep);
    assert_eq!(file.limits, Limits { parallel: 64, per_target: None });
    assert_eq!((file.timeout, file.lock), (None, true));
    assert_eq!((file.finally_timeout, file.grace), (Duration::from_secs(300), Duration::from_secs(10)));
}

#[test]
fn the_top_level_is_checked_as_a_whole() {
    let (_, diagnostics) = read("name: 'a b'\nvar: {}\nlimits: {parallel: 0}\nlock: yes\ngrace: 5\n");
    insta::assert_snapshot!(diagnostics.to_string());
}

#[test]
fn unknown_keys_name_the_nearest_or_what_is_meant() {
    assert_eq!(
        task("shell: x, depnds_on: a"),
        ["2:23 plan/unknown-key a task has no key `depnds_on` | did you mean `depends_on`?"]
    );
    assert_eq!(task("shell: x, on: a"), ["2:23 plan/unknown-key a task has no key `on` | use `target`"]);
    for word in ["needs", "after"] {
        let found = task(&format!("shell: x, {word}: a"));
        assert_eq!(found, [format!("2:23 plan/unknown-key a task has no key `{word}` | use `depends_on`")]);
    }
    assert_eq!(
        problems("tasks: []\nlimits: {xyz: 1}\n"),
        ["2:10 plan/unknown-key `limits` has no key `xyz` | keys of `limits`: parallel, per_target"]
    );
}

#[test]
fn values_of_the_wrong_kind_or_out_of_range_are_refused() {
    insta::assert_snapshot!(table(&[
        "shell: x, timeout: 30",
        "shell: x, timeout: 1.5h",
        "shell: x, retry: 1001",
        "shell: x, retry: -1",
        "shell: x, retry: 1.5",
        "shell: x, retry: {backoff: none}",
        "shell: x, retry: {times: 1, on: permanent}",
        "shell: x, retry: {times: 1, backoff: {initial: 1s, max: 2s, factor: 0.5}}",
        "shell: x, trigger_rule: all_okay",
        "shell: x, idempotent: yes",
        "shell: x, only_if_changed: on",
        "shell: x, only_if_changed: some",
        "shell: x, batch: 0",
        "shell: x, batch: [1, 101%]",
        "shell: x, host_failure: {percent: 100}",
        "shell: x, mutex: {name: m, scope: task}",
        "shell: x, depends_on: {a: b}",
        "shell: x, depends_on: [1]",
        "shell: x, for_each: 3",
        "shell: x, undo: never",
        "shell: x, confirm: ''",
        "shell: x, when: {}",
        "shell: x, when: {all: [a], any: [b]}",
        "shell: x, when: {not: [a, b]}",
    ]));
}

#[test]
fn a_task_does_exactly_one_thing() {
    insta::assert_snapshot!(table(&[
        "target: x",
        "shell: x, exec: [a]",
        "exec: []",
        "exec: ls -l",
        "exec: [a, [b]]",
        "op: File.Present",
        "shell: x, params: {script: y}",
        "op: a.b, params: [x]",
        "sequence: []",
        "sequence: [{name: x, op: a.b}], changed_when: true",
        "sequence: [{name: x}]",
    ]));
    assert_eq!(task("exec: [sleep, 1, true, 0644]"), Vec::<String>::new());
}

#[test]
fn expressions_with_braces_are_told_how_to_be_written() {
    assert_eq!(
        task("shell: x, when: '{{ vars.start }}'"),
        [
            "2:29 plan/bad-expression an expression is written without braces | write it without braces: \"vars.start\""
        ]
    );
    assert_eq!(
        task("shell: x, changed_when: 'a{{ b }}'"),
        [
            "2:37 plan/bad-expression an expression is written without braces | write the expression alone, without `{{ }}` or `{% %}`"
        ]
    );
    assert_eq!(task("shell: x, failed_when: ' '"), ["2:36 plan/bad-expression the expression is empty"]);
    assert_eq!(
        task("shell: x, changed_when: false, when: [true, {any: [a, {not: b}]}]"),
        Vec::<String>::new()
    );
}

#[test]
fn retry_cannot_be_set_twice_and_finally_cannot_stop_all() {
    let (_, diagnostics) = read(
        "api_version: v1\nname: p\ntasks:\n- {name: t, shell: x, retry: 1, on_error: {retry: 2}}\nfinally:\n- {name: f, shell: x, on_error: stop_all}\n",
    );
    insta::assert_snapshot!(diagnostics.render(false));
}

#[test]
fn names_follow_the_grammar() {
    assert_eq!(
        problems("tasks:\n- {shell: x}\n"),
        [
            "2:3 plan/bad-value a task needs the key `name` | a letter or digit, then letters, digits, `.`, `_` or `-`; unique in the plan"
        ]
    );
    for bad in ["'a b'", "-a", "'p[eu]'", "''", "ä"] {
        let found = problems(&format!("tasks:\n- {{name: {bad}, shell: x}}\n"));
        assert!(found.len() == 1 && found[0].contains("is not a task name"), "{bad}: {found:?}");
    }
    assert_eq!(
        problems("tasks: []\nvars: {9a: 1}\nenv: [A=b]\n"),
        [
            "2:8 plan/bad-value `9a` cannot name a variable | a letter or `_`, then letters, digits, `_`, `.` or `-`, at most 128 in all",
            "3:7 plan/bad-value `A=b` cannot name an environment variable | letters, digits and `_`, not beginning with a digit; only the name, no value",
        ]
    );
}

#[test]
fn secrets_are_references() {
    let found = problems(
        "tasks: []\nsecrets: {a: hunter2, b: {}, c: {env: A, file: b}, d: {env: 'x y'}, e: {vault: z}}\n",
    );
    assert!(!found.join("\n").contains("hunter2"), "{found:?}");
    insta::assert_snapshot!(found.join("\n"));
}

#[test]
fn triggers_are_checked() {
    let good = "tasks: []\nvars: {who: x}\nsecrets: {s: {env: S}}\ntriggers:\n- agent_online: {match: 'web*'}\n  vars: {who: '{{ trigger.agent }}'}\n- schedule: {cron: '0 3 * * mon', tz: Europe/Vienna, catch_up: one}\n  overlap: skip\n  min_interval: 5m\n- webhook: {path: /hooks/x, secret: s}\n";
    assert_eq!(problems(good), Vec::<String>::new());
    let bad = "tasks: []\ntriggers:\n- {}\n- {schedule: {}}\n- {webhook: {path: x, secret: s}}\n- {agent_online: {match: a}, overlap: maybe}\n";
    insta::assert_snapshot!(problems(bad).join("\n"));
}

/// Section 13: what a trigger does not say.
#[test]
fn a_trigger_that_says_nothing_else_is_queued_in_utc_and_makes_up_for_nothing() {
    use crate::plan::{CatchUp, Overlap, TriggerKind};
    let text = "api_version: v1\nname: p\ntasks: []\ntriggers:\n- schedule: {cron: '0 3 * * *'}\n- agent_online: {match: a}\n";
    let (file, diagnostics) = read(text);
    assert!(diagnostics.0.is_empty(), "{}", diagnostics.summary());
    let plain = |on| Trigger { on, overlap: Overlap::Queue, min_interval: None, vars: BTreeMap::new() };
    let cron = "0 3 * * *".to_owned();
    let schedule = TriggerKind::Schedule { cron, tz: "UTC".to_owned(), catch_up: CatchUp::None };
    let online = TriggerKind::AgentOnline { r#match: "a".to_owned() };
    assert_eq!(file.unwrap().triggers, [plain(schedule), plain(online)]);
}

#[test]
fn a_faulty_task_is_still_read_as_far_as_possible() {
    let mut diagnostics = Diagnostics::default();
    let text = "api_version: v1\nname: p\ntasks:\n- {name: t, shell: x, timeout: 30, depnds_on: a, depends_on: [b, c]}\n";
    let file = PlanFile::read(&source(text), &mut diagnostics).unwrap();
    let form = file.task(0, &mut diagnostics).unwrap();
    assert_eq!(diagnostics.0.len(), 2);
    assert_eq!((form.depends_on.len(), form.timeout), (2, None));
    assert!(form.action.is_some());
}

#[test]
fn too_many_tasks_are_refused() {
    let mut text = "api_version: v1\nname: p\ntasks:\n".to_owned();
    text.push_str(&"- x\n".repeat(MAX_TASKS + 1));
    let mut diagnostics = Diagnostics::default();
    assert!(PlanFile::read(&source(&text), &mut diagnostics).is_none());
    assert_eq!(diagnostics.0.len(), 1, "{}", diagnostics.summary());
}

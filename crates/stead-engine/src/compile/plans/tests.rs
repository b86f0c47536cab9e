//! From YAML to plans, and everything that can be wrong on the way.

use proptest::prelude::*;
use serde_json::json;
use stead_model::Descriptor;
use stead_model::operation::{Effect, ParamKind, ParamSpec, RootSupport};
use stead_model::plan::{HostFailure, Limits, Retry};

use super::*;
use crate::compile::VarFlag;

const CWD: ParamSpec = ParamSpec::new("cwd", ParamKind::Text, "directory");
const ENV: ParamSpec = ParamSpec::new("env", ParamKind::TextMap, "environment").secret();
const STDIN: ParamSpec = ParamSpec::new("stdin", ParamKind::Text, "input").secret();
const OK_EXIT: ParamSpec = ParamSpec::new("ok_exit", ParamKind::IntList(0, 255), "good exit codes");
const CREATES: ParamSpec = ParamSpec::new("creates", ParamKind::Text, "what it makes");
const UNLESS: ParamSpec = ParamSpec::new("unless", ParamKind::Text, "command");
const COMMAND: ParamSpec = ParamSpec::new("command", ParamKind::NonEmptyText, "the program").required();
const ARGS: ParamSpec = ParamSpec::new("args", ParamKind::TextList, "its arguments");
const SCRIPT: ParamSpec = ParamSpec::new("script", ParamKind::NonEmptyText, "the script").required();
static EXEC_PARAMS: [ParamSpec; 8] = [COMMAND, ARGS, CWD, ENV, STDIN, OK_EXIT, CREATES, UNLESS];
static SHELL_PARAMS: [ParamSpec; 7] = [SCRIPT, CWD, ENV, STDIN, OK_EXIT, CREATES, UNLESS];
static FILE_PARAMS: [ParamSpec; 3] = [
    ParamSpec::new("path", ParamKind::AbsolutePath, "the file").required(),
    ParamSpec::new("mode", ParamKind::Mode, "its mode"),
    ParamSpec::new("content", ParamKind::Text, "its content").secret(),
];

const fn descriptor(
    name: &'static str,
    effect: Effect,
    idempotent: bool,
    params: &'static [ParamSpec],
) -> Descriptor {
    Descriptor {
        name,
        summary: "for tests",
        effect,
        idempotent,
        check: true,
        undo: false,
        platforms: &[],
        root: RootSupport::Full,
        needs_root: false,
        params,
        exclusive: &[],
        one_of: &[],
        result: &[],
    }
}

static EXEC: Descriptor = descriptor("command.exec", Effect::Command, false, &EXEC_PARAMS);
static SHELL: Descriptor = descriptor("command.shell", Effect::Command, false, &SHELL_PARAMS);
static FILE: Descriptor = descriptor("file.present", Effect::Write, true, &FILE_PARAMS);

fn catalogue() -> Catalogue {
    Catalogue::new([&EXEC, &SHELL, &FILE])
}

fn source(text: &str) -> Source {
    Source { name: "plan.yaml".into(), text: text.into() }
}

fn inputs(vars: &[&str]) -> Inputs {
    Inputs {
        vars_files: Vec::new(),
        vars: vars.iter().map(|text| VarFlag::parse(text).unwrap()).collect(),
        env: BTreeMap::from([("HOME".to_owned(), "/root".to_owned()), ("WHO".to_owned(), "me".to_owned())]),
    }
}

fn compiled(rest: &str, vars: &[&str]) -> CompiledPlan {
    let text = format!("api_version: v1\nname: p\n{rest}");
    plan_file(&source(&text), &inputs(vars), &catalogue())
        .unwrap_or_else(|error| panic!("{}", error.render(false)))
}

/// Returns the problems of a plan whose first line of interest is line 1.
fn problems(rest: &str, vars: &[&str]) -> Vec<String> {
    let text = format!("api_version: v1\nname: p\n{rest}");
    let found = match plan_file(&source(&text), &inputs(vars), &catalogue()) {
        Ok(compiled) => Diagnostics(compiled.warnings),
        Err(found) => found,
    };
    let show = |problem: &stead_model::Diagnostic| {
        let at = match problem.place.location() {
            (_, Some((line, column))) => format!("{}:{column}", line.saturating_sub(2)),
            (name, None) => name.to_owned(),
        };
        let help = if problem.help.is_empty() { String::new() } else { format!(" | {}", problem.help) };
        format!("{at} {} {}{help}", problem.code, problem.message)
    };
    found.iter().map(show).collect()
}

/// Case 3: one file with a 3-cycle, a self-edge, a duplicate name, `depnds_on`, an unknown dependency and
/// `timeout: 30` gives all six at once, each at its place.
#[test]
fn all_six_problems_of_a_plan_are_located_at_once() {
    let text = "api_version: v1
name: broken
tasks:
  - {name: a, depends_on: c, shell: echo a}
  - {name: b, depends_on: a, shell: echo b}
  - {name: c, depends_on: b, shell: echo c}
  - {name: selfish, depends_on: [selfish], shell: echo}
  - {name: twin, shell: echo 1}
  - {name: twin, shell: echo 2}
  - {name: typo, depnds_on: a, shell: echo}
  - {name: lost, depends_on: [twin, nowhere], shell: echo}
  - {name: slow, timeout: 30, shell: echo}
";
    let found = plan_file(&source(text), &Inputs::default(), &catalogue()).unwrap_err();
    assert_eq!(found.0.len(), 6);
    let paths: Vec<&str> = found.iter().map(|problem| problem.path.as_str()).collect();
    assert_eq!(
        paths[2..],
        ["tasks[5].name", "tasks[6].depnds_on", "tasks[7].depends_on[1]", "tasks[8].timeout"]
    );
    insta::assert_snapshot!(found.render(false));
}

#[test]
fn the_example_of_the_contract_compiles() {
    let text = stead_example();
    let mut given = inputs(&["ticket=T-1"]);
    given.env.insert("DEPLOY_USER".to_owned(), "deploy".to_owned());
    let compiled = plan_file(&source(text), &given, &catalogue()).unwrap();
    assert_eq!(compiled.warnings, []);
    insta::assert_snapshot!(serde_json::to_string_pretty(&*compiled.plan).unwrap());
}

fn stead_example() -> &'static str {
    r#"api_version: v1
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
"#
}

/// Case 30: `for_each` over a map makes `p[eu]` and `p[us]`, and `depends_on: p` waits for both.
#[test]
fn for_each_makes_a_task_per_element() {
    let plan = compiled(
        "vars: {m: {eu: 1, us: [2]}}\ntasks:\n- {name: p, for_each: '{{ vars.m }}', exec: [echo, '{{ item.key }}', '{{ item.value }}x']}\n- {name: q, for_each: [a, b], depends_on: 'p[eu]', shell: 'echo {{ item.value | quote }}'}\n- {name: r, depends_on: [p, q], shell: x}\n- {name: none, for_each: [], shell: x}\n- {name: s, depends_on: [none, r], shell: x}\n- {name: chain, for_each: {eu: 1}, depends_on: 'p[{{ item.key }}]', shell: x}\n",
        &[],
    );
    let names: Vec<&str> = plan.plan.tasks.iter().map(|task| task.name.as_str()).collect();
    assert_eq!(names, ["p[eu]", "p[us]", "q[0]", "q[1]", "r", "s", "chain[eu]"]);
    let args =
        |index: usize| serde_json::to_value(&plan.plan.tasks[index].action.parts()[0].op.params).unwrap();
    assert_eq!(args(0), json!({"command": "echo", "args": ["eu", "1x"]}));
    assert_eq!(args(1), json!({"command": "echo", "args": ["us", "[2]x"]}));
    assert_eq!(args(3), json!({"script": "echo b"}));
    let waits = |name: &str| -> Vec<&str> {
        let index = plan.graph.index_of(name).unwrap();
        plan.graph.dependencies(index).iter().map(|index| plan.graph.name(*index).as_str()).collect()
    };
    assert_eq!(waits("r"), ["p[eu]", "p[us]", "q[0]", "q[1]"]);
    assert_eq!(waits("s"), ["r"], "a for_each without elements is nothing to wait for");
    assert_eq!(waits("chain[eu]"), ["p[eu]"]);
    assert_eq!(plan.plan.tasks[1].item, Some(Box::new(Item { key: "us".into(), value: json!([2]) })));
}

#[test]
fn for_each_refuses_what_it_cannot_know_or_name() {
    let tasks = |for_each: &str| {
        format!(
            "vars: {{a: x}}\ntasks:\n- {{name: t, for_each: {for_each}, shell: x}}\n- {{name: u, depends_on: t, shell: x}}\n"
        )
    };
    let rows = [
        "'{{ vars.a }}'",
        "'{{ vars.nope }}'",
        "'{{ results.u.data }}'",
        "{'a b': 1}",
        "['{{ host.name }}']",
        "'{{ }}'",
    ];
    let shown = rows.map(|row| format!("{row}\n    {}", problems(&tasks(row), &[]).join("\n    ")));
    insta::assert_snapshot!(shown.join("\n"));
}

#[test]
fn defaults_are_filled_and_overridden() {
    let plan = compiled(
        "on_error: continue\ndefaults: {target: [a, b], timeout: 5m, retry: 2, host_failure: all, batch: 3, mutex: m}\nlimits: {parallel: 7}\ntasks:\n- {name: t, shell: x}\n- {name: u, shell: x, target: c, timeout: 1s, retry: 0, on_error: stop_all, host_failure: any, batch: ['50%'], mutex: [{name: n, scope: host}]}\n- {name: v, shell: x, on_error: {retry: 5}, idempotent: true}\nfinally:\n- {name: f, shell: x, params: {creates: /x}}\n",
        &[],
    );
    let settings: Vec<&Settings> = plan.plan.tasks.iter().map(|task| &*task.settings).collect();
    assert_eq!(settings[0].target, ["a", "b"]);
    assert_eq!((settings[0].on_error, &settings[0].retry), (OnError::Continue, &Retry::times(2)));
    assert_eq!((settings[0].host_failure, settings[0].mutex.len()), (HostFailure::All, 1));
    assert_eq!((settings[1].on_error, &settings[1].retry), (OnError::StopAll, &Retry::times(0)));
    assert_eq!(settings[1].target, ["c"]);
    assert_eq!((settings[2].on_error, &settings[2].retry), (OnError::Continue, &Retry::times(5)));
    assert_eq!((settings[0].idempotent, settings[2].idempotent, settings[3].idempotent), (false, true, true));
    assert_eq!(settings[3].on_error, OnError::Continue);
    assert_eq!(plan.plan.limits, Limits { parallel: 7, per_target: None });
}

/// Section 7 of reach: templates are excepted from what is judged before a run, where a condition may leave them out.
#[test]
fn what_a_condition_may_leave_out_is_judged_when_it_runs() {
    let plan = |guard: &str, value: &str| {
        format!(
            "vars: {{n: '', m: 3}}\ntasks:\n- {{name: t, shell: 'true', {guard}params: {{ok_exit: ['{value}']}}}}\n"
        )
    };
    let template = "{{ vars.n }}";
    assert_eq!(problems(&plan("", template), &[]).len(), 1);
    for guard in ["when: vars.n != '', ", "when_host: vars.n != '', "] {
        let given = |value: &str| {
            compiled(&plan(guard, value), &[]).plan.tasks[0].action.parts()[0].op.params["ok_exit"].clone()
        };
        assert_eq!(given(template), Param::List(vec![Param::Template(template.into())]), "{guard}");
        assert_eq!(given("{{ vars.m }}"), Param::Value(json!([3])), "what is right is rendered: {guard}");
        assert_eq!(problems(&plan(guard, "x"), &[]).len(), 1, "what is no template is judged: {guard}");
    }
    let part = "vars: {n: ''}\ntasks:\n- name: t\n  sequence:\n  - {name: a, op: command.shell, params: {script: x}}\n  - {name: b, op: command.shell, when_host: vars.n != '', params: {script: x, ok_exit: '{{ vars.n }}'}}\n";
    let made = compiled(part, &[]);
    assert_eq!(made.plan.tasks[0].action.parts()[1].op.params["ok_exit"], Param::Template(template.into()));
    assert_eq!(problems(&part.replace(" when_host: vars.n != '',", ""), &[]).len(), 1);
}

#[test]
fn templates_that_can_be_rendered_are_and_keep_their_type() {
    let plan = compiled(
        "vars: {n: 3, l: [a, b]}\nenv: [WHO]\ntasks:\n- {name: a, shell: 'true', params: {ok_exit: '{{ [vars.n] }}', env: {X: 'n={{ vars.n }}', Y: '{{ env.WHO }}'}}}\n- {name: b, depends_on: a, target: '{{ vars.l }}', confirm: 'sure, {{ env.WHO }}?', exec: [echo, '{{ results.a.data.stdout }}', '{{ vars.n }}', '${#x}'], params: {stdin: '{{ vars.n }} {{ host.name }}'}}\n",
        &[],
    );
    let params = |index: usize| &plan.plan.tasks[index].action.parts()[0].op.params;
    assert_eq!(params(0)["ok_exit"], Param::Value(json!([3])));
    assert_eq!(params(0)["env"], Param::Value(json!({"X": "n=3", "Y": "me"})));
    assert_eq!(
        params(1)["args"],
        Param::List(vec![
            Param::Template("{{ results.a.data.stdout }}".into()),
            Param::Value(json!("3")),
            Param::Value(json!("${#x}")),
        ])
    );
    assert_eq!(params(1)["stdin"], Param::Template("{{ vars.n }} {{ host.name }}".into()));
    let settings = &plan.plan.tasks[1].settings;
    assert_eq!(settings.target, ["a", "b"]);
    assert_eq!(settings.confirm.as_deref(), Some("sure, me?"));
}

/// Case 13, the part that is refused before anything runs.
#[test]
fn names_that_are_not_declared_or_not_upstream_are_refused_with_the_fix() {
    let rows = [
        "tasks:\n- {name: a, shell: x}\n- {name: b, shell: x, when: results.a.changed}\n",
        "tasks:\n- {name: a, exec: [echo, '{{ env.HOME }}']}\n",
        "vars: {start: true}\ntasks:\n- {name: a, shell: x, when: vars.stat}\n",
        "vars: {start: true}\ntasks:\n- {name: a, shell: 'echo {{ vars.stat | quote }}'}\n",
        "tasks:\n- {name: a, shell: 'echo {% if x %}'}\n",
        "tasks:\n- {name: a, shell: x, when: '{{ vars.x }}'}\n",
        "tasks:\n- {name: a, shell: x, target: '{{ results.b }}'}\n",
        "tasks:\n- {name: a, shell: x, target: '{{ vars.b }}', confirm: '{{ env.C }}'}\n",
        "tasks:\n- {name: a, exec: [echo, '{{ 1 // 0 }}']}\n",
    ];
    let shown = rows.map(|row| format!("{row}    {}", problems(row, &[]).join("\n    ")));
    insta::assert_snapshot!(shown.join("\n"));
}

/// Case 29, the part that is refused before anything runs.
#[test]
fn secrets_in_commands_are_refused() {
    let plan = "secrets: {k: {env: K}}\ntasks:\n- {name: a, exec: [echo, x, '{{ secrets.k }}']}\n- {name: b, shell: 'echo {{ secrets.k | quote }}'}\n- {name: c, shell: x, params: {env: {K: '{{ secrets.k }}'}}}\n- {name: d, shell: x, target: '{{ secrets.k }}'}\n";
    insta::assert_snapshot!(problems(plan, &[]).join("\n"));
}

#[test]
fn values_put_into_a_script_unquoted_get_a_warning() {
    let plan = "vars: {v: x}\ntasks:\n- {name: a, shell: 'echo {{ vars.v }}'}\n- {name: b, shell: 'echo {{ vars.v | quote }}'}\n- {name: c, shell: 'echo {{ run.id }}'}\n- {name: d, exec: [echo, '{{ vars.v }}']}\n";
    insta::assert_snapshot!(problems(plan, &[]).join("\n"));
}

#[test]
fn every_path_of_a_task_is_found_in_the_file() {
    let text = "api_version: v1\nname: p\ndefaults: {timeout: 5m}\ntasks:\n- {name: a, exec: [echo, one, two], params: {env: {A.B: x}}, when: [p, q], depends_on: [z, b, z]}\n- {name: b, shell: run, depends_on: z, when: {all: [x]}}\n- name: c\n  sequence:\n  - {name: s, op: a.b, params: {x: 1}}\n  - {name: t, shell: script, when_host: y}\n  undo: {exec: [rm, it]}\ntriggers:\n- {}\n- {schedule: {cron: bad}}\n";
    let mut diagnostics = Diagnostics::default();
    let file = PlanFile::read(&source(text), &mut diagnostics).unwrap();
    let draft = compile(&file, &Inputs::default(), &mut diagnostics);
    let at = |task: u32, path: &str| match draft.places.locate(TaskIndex(task), path) {
        Place::Text { span, .. } => text[span.start..span.end].to_owned(),
        other @ (Place::Call { .. } | Place::Named(_)) => panic!("{other:?}"),
    };
    for (task, path, expected) in [
        (0, "name", "a"),
        (0, "params.command", "echo"),
        (0, "params.args", "[echo, one, two]"),
        (0, "params.args.1", "two"),
        (0, "params.env.A.B", "x"),
        (0, "params.missing", "{env: {A.B: x}}"),
        (0, "when.1", "q"),
        (0, "depends_on.0", "z"),
        (0, "depends_on.1", "b"),
        (0, "depends_on", "[z, b, z]"),
        (0, "timeout", "5m"),
        (0, "op", "[echo, one, two]"),
        (0, "retry", "a"),
        (1, "params.script", "run"),
        (1, "params", "run"),
        (1, "depends_on.0", "z"),
        (1, "when.0", "{all: [x]}"),
        (1, "when.0.all.0", "x"),
        (2, "sequence.0.params.x", "1"),
        (2, "sequence.1.params.script", "script"),
        (2, "sequence.1.when_host.0", "y"),
        (2, "undo.params.args.0", "it"),
        (2, "undo.params.command", "rm"),
        (u32::MAX, "triggers.0.schedule.cron", "bad"),
        (u32::MAX, "limits.parallel", "p"),
    ] {
        assert_eq!(at(task, path), expected, "{task} {path}");
    }
}

#[test]
fn a_faulty_task_does_not_hide_or_invent_problems() {
    let plan = "tasks:\n- {name: a, target: x, when_host: y, undo: auto, exec: []}\n- {name: b, depends_on: a, shell: x, timeout: 3}\n- {shell: x, params: {mode: 1}}\n- {name: c, sequence: [{op: nope.op}]}\n- {name: d, depends_on: ['a b', c], op: file.present, params: {path: x, mode: 644}}\n- text\n";
    insta::assert_snapshot!(problems(plan, &[]).join("\n"));
}

#[test]
fn triggers_are_checked_where_they_stand() {
    let plan = "tasks: []\nvars: {who: x}\ntriggers:\n- {overlap: skip}\n- {schedule: {cron: '61 * * * *', tz: Mars/Base}}\n- {agent_online: {match: 'a&&b'}, vars: {whom: 1, who: '{{ vars.x }}'}}\n- {webhook: {path: /x, secret: s}}\n";
    insta::assert_snapshot!(problems(plan, &[]).join("\n"));
}

/// Case 2: diamond 3 levels, three independents 1, chain of three 3; an empty plan is a plan.
#[test]
fn levels_of_small_plans() {
    let levels = |tasks: &[(&str, &str)]| {
        let text: String = tasks
            .iter()
            .map(|(name, deps)| format!("- {{name: {name}, shell: x, depends_on: [{deps}]}}\n"))
            .collect();
        crate::compile::level_table(&compiled(&format!("tasks:\n{text}"), &[])).len()
    };
    assert_eq!(levels(&[("a", ""), ("b", "a"), ("c", "a"), ("d", "b, c")]), 3);
    assert_eq!(levels(&[("a", ""), ("b", ""), ("c", "")]), 1);
    assert_eq!(levels(&[("a", ""), ("b", "a"), ("c", "b")]), 3);
    assert_eq!(compiled("tasks: []\n", &[]).plan.tasks.len(), 0);
}

#[test]
fn comments_order_and_spelled_out_defaults_do_not_change_the_hash() {
    let short = compiled("tasks:\n- {name: a, shell: x}\n", &[]);
    let long = compiled(
        "# comment\ngrace: 10s\nlock: true\nlimits: {parallel: 64}\ntasks:\n- op: command.shell\n  params: {script: x}\n  target: [local]\n  retry: {times: 0}\n  trigger_rule: all_ok\n  name: a\n",
        &[],
    );
    assert_eq!(short.hash, long.hash);
    assert_ne!(short.hash, compiled("tasks:\n- {name: a, shell: y}\n", &[]).hash);
}

/// Case 32, the part about compiling: wide and deep plans cost what they hold, and no stack.
#[test]
fn wide_and_deep_plans_compile() {
    let wide: String = (0..10_000).map(|i| format!("- {{name: t{i}, shell: x}}\n")).collect();
    let plan = compiled(&format!("tasks:\n{wide}"), &[]);
    assert_eq!(plan.plan.tasks.len(), 10_000);
    assert!(plan.plan.tasks.windows(2).all(|pair| Arc::ptr_eq(&pair[0].settings, &pair[1].settings)));
    let deep: String =
        (0..10_000).map(|i| format!("- {{name: t{}, shell: x, depends_on: t{i}}}\n", i + 1)).collect();
    let plan = compiled(&format!("tasks:\n- {{name: t0, shell: x}}\n{deep}"), &[]);
    assert_eq!(plan.graph.levels().iter().max(), Some(&10_000));
}

#[test]
fn for_each_cannot_make_too_many_tasks() {
    let text = "api_version: v1\nname: p\ntasks:\n- {name: a, for_each: [1, 2, 3, 4, 5, 6], shell: x}\n- {name: b, for_each: [1, 2, 3, 4, 5], shell: x}\n- {name: c, shell: x}\n";
    let mut diagnostics = Diagnostics::default();
    let file = PlanFile::read(&source(text), &mut diagnostics).unwrap();
    assert_eq!(compile_at_most(12, &file, &Inputs::default(), &mut diagnostics).plan.tasks.len(), 12);
    assert_eq!(diagnostics.0, []);
    compile_at_most(10, &file, &Inputs::default(), &mut diagnostics);
    assert_eq!(
        diagnostics.to_string(),
        "error[plan/bad-value]: plan.yaml:5:23: with this the plan has more than 10 tasks (help: make fewer elements, or several plans)"
    );
}

proptest! {
    #[test]
    fn no_mutated_plan_panics(
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..4_usize, "[\\[\\]{}:,&*!|>'\"%#?\\- \\nab1~é]{0,4}"), 1..8)
    ) {
        let mut text: Vec<char> = stead_example().chars().collect();
        for (at, removed, added) in edits {
            let at = at.index(text.len());
            let end = (at + removed).min(text.len());
            text.splice(at..end, added.chars());
        }
        let text: String = text.into_iter().collect();
        if let Err(found) = plan_file(&source(&text), &inputs(&["ticket=1"]), &catalogue()) {
            prop_assert!(found.has_errors());
            for problem in found.iter() {
                if let Place::Text { source, span } = &problem.place {
                    prop_assert!(source.text.get(span.start..span.end).is_some());
                }
            }
            prop_assert!(!found.render(false).is_empty());
        }
    }
}

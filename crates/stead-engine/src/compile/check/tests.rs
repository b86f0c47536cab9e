use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec, RootSupport};
use stead_model::plan::{
    Action, CatchUp, Expression, Function, Guard, HostFailure, Item, Mutex, MutexScope, OnError,
    OnlyIfChanged, Op, Overlap, Param, Retry, SecretRef, Size, Trigger, TriggerKind, TriggerRule,
};
use stead_model::{Descriptor, ErrorClass, HostName, OperationName, PlanName, Severity, TaskName};

use super::super::{level_table, select};
use super::*;
use crate::target::HostSet;

const fn descriptor(name: &'static str, effect: Effect, params: &'static [ParamSpec]) -> Descriptor {
    Descriptor {
        name,
        summary: "",
        effect,
        idempotent: !matches!(effect, Effect::Command),
        check: true,
        undo: matches!(effect, Effect::Write),
        platforms: &[],
        root: RootSupport::Full,
        needs_root: false,
        params,
        exclusive: &[],
        one_of: &[],
        result: &[],
    }
}

const ENV: ParamSpec = ParamSpec::new("env", ParamKind::TextMap, "environment").secret();
const CREATES: ParamSpec = ParamSpec::new("creates", ParamKind::AbsolutePath, "a path");

static EXEC: Descriptor = descriptor(
    "command.exec",
    Effect::Command,
    &[
        ParamSpec::new("command", ParamKind::NonEmptyText, "program").required(),
        ParamSpec::new("args", ParamKind::TextList, "arguments").default(ParamDefault::Texts(&[])),
        ParamSpec::new("ok_exit", ParamKind::IntList(0, 255), "codes"),
        ENV,
        CREATES,
    ],
);
static SHELL: Descriptor = descriptor(
    "command.shell",
    Effect::Command,
    &[ParamSpec::new("script", ParamKind::NonEmptyText, "script").required(), ENV, CREATES],
);
static FILE: Descriptor = Descriptor {
    exclusive: &[&["content", "source"]],
    one_of: &[&["content", "source"]],
    ..descriptor(
        "file.present",
        Effect::Write,
        &[
            ParamSpec::new("path", ParamKind::AbsolutePath, "where").required(),
            ParamSpec::new("content", ParamKind::Text, "what").secret(),
            ParamSpec::new("source", ParamKind::SourcePath, "from"),
            ParamSpec::new("mode", ParamKind::Mode, "mode"),
            ParamSpec::new("match", ParamKind::Regex, "pattern"),
        ],
    )
};

static HTTP: Descriptor = descriptor(
    "http.request",
    Effect::Command,
    &[ParamSpec::new(CHANGED_WHEN, ParamKind::Text, "an expression")],
);

fn catalogue() -> Catalogue {
    Catalogue::new([&EXEC, &SHELL, &FILE, &HTTP])
}

fn op(operation: &str, params: Value) -> Op {
    let params: BTreeMap<String, Param> = serde_json::from_value(params).unwrap();
    Op { operation: OperationName::parse(operation).unwrap(), params }
}

fn template(text: &str) -> Value {
    json!({"{{}}": text})
}

fn part(op: Op) -> Part {
    Part { name: None, op, when_host: Vec::new(), changed_when: None, failed_when: None }
}

fn task(name: &str, depends_on: &[&str], action: Action) -> Task {
    Task {
        name: TaskName::parse(name).unwrap(),
        section: Section::Main,
        depends_on: depends_on.iter().map(|name| TaskName::parse(name).unwrap()).collect(),
        action,
        settings: Arc::new(Settings::default()),
        item: None,
        hash: Default::default(),
    }
}

fn function(name: &str, depends_on: &[&str]) -> Task {
    task(name, depends_on, Action::Function(Function::default()))
}

fn operation(name: &str, depends_on: &[&str], op: Op) -> Task {
    task(name, depends_on, Action::Op(Arc::new(part(op))))
}

fn run_true(name: &str, depends_on: &[&str]) -> Task {
    operation(name, depends_on, op("command.exec", json!({"command": "true"})))
}

fn with(mut task: Task, change: impl FnOnce(&mut Settings)) -> Task {
    change(Arc::make_mut(&mut task.settings));
    task
}

fn when(text: &str) -> impl FnOnce(&mut Settings) {
    let guard = Guard::Expr { expr: Expression(text.into()), reason: None };
    move |settings| settings.when.push(guard)
}

/// A `finally` task as the front doors make it.
fn finally(task: Task) -> Task {
    with(in_finally(task), |settings| settings.on_error = OnError::Continue)
}

fn in_finally(mut task: Task) -> Task {
    task.section = Section::Finally;
    task
}

fn plan(tasks: Vec<Task>) -> Plan {
    let mut plan = Plan::new(PlanName::parse("web").unwrap());
    plan.vars = BTreeMap::from([("version".to_owned(), json!("1"))]);
    plan.secrets = BTreeMap::from([("key".to_owned(), SecretRef::Env("KEY".to_owned()))]);
    plan.tasks = tasks;
    plan
}

fn compile(plan: Plan) -> Result<CompiledPlan, Diagnostics> {
    let names: Vec<String> = plan.tasks.iter().map(|task| task.name.to_string()).collect();
    let locate = move |index: TaskIndex, path: &str| {
        let name = names.get(index.get()).map_or("plan", String::as_str);
        Place::Named(format!("{name}:{path}"))
    };
    check(plan, &Explicit::default(), &catalogue(), &locate, Diagnostics::default())
}

/// Compiles and returns each problem as `code place`.
fn problems(tasks: Vec<Task>) -> Vec<String> {
    match compile(plan(tasks)) {
        Ok(compiled) => {
            compiled.warnings.iter().map(|warning| format!("{} {}", warning.code, warning.place)).collect()
        }
        Err(found) => found.iter().map(|problem| format!("{} {}", problem.code, problem.place)).collect(),
    }
}

fn only_problem(tasks: Vec<Task>) -> Diagnostic {
    let found = compile(plan(tasks)).map(|compiled| compiled.hash).unwrap_err();
    assert_eq!(found.0.len(), 1, "{found}");
    found.0[0].clone()
}

#[test]
fn a_good_plan_is_hashed_and_its_defaults_are_filled() {
    let compiled = compile(plan(vec![
        run_true("a", &[]),
        operation("b", &["a"], op("command.exec", json!({"command": "x", "creates": "/x"}))),
        operation("c", &["a"], op("file.present", json!({"path": "/x", "content": "y"}))),
        function("d", &["b", "c"]),
        finally(run_true("e", &[])),
    ]))
    .unwrap();
    assert_eq!(compiled.warnings, []);
    let idempotent: Vec<bool> = compiled.plan.tasks.iter().map(|task| task.settings.idempotent).collect();
    assert_eq!(idempotent, [false, true, true, false, false]);
    assert_eq!(compiled.plan.tasks[0].settings.target, ["local"]);
    assert!(compiled.plan.tasks[3].settings.target.is_empty());
    assert_eq!(compiled.plan.tasks[4].settings.on_error, OnError::Continue);
    assert!(Arc::ptr_eq(&compiled.plan.tasks[1].settings, &compiled.plan.tasks[2].settings));
    assert_eq!(compiled.hash, stead_model::plan::Digest::of(&compiled.plan.to_json()));
    assert!(compiled.plan.tasks.iter().all(|task| task.hash == task.digest()));
    let table: Vec<Vec<u32>> =
        level_table(&compiled).iter().map(|row| row.iter().map(|index| index.0).collect()).collect();
    assert_eq!(table, [vec![0, 4], vec![1, 2], vec![3]]);
    assert_eq!(compile(plan(vec![])).unwrap().plan.tasks.len(), 0);
}

#[test]
fn an_explicit_idempotent_is_kept() {
    let explicit = Explicit { idempotent: BTreeMap::from([(TaskIndex(0), true)]), ..Explicit::default() };
    let locate = |_: TaskIndex, path: &str| Place::Named(path.to_owned());
    let compiled =
        check(plan(vec![run_true("a", &[])]), &explicit, &catalogue(), &locate, Diagnostics::default())
            .unwrap();
    assert!(compiled.plan.tasks[0].settings.idempotent);
}

/// Case 3 (in part): the problems of the graph are all found at once, the cycle as a path.
#[test]
fn the_problems_of_a_graph_have_their_codes_and_advice() {
    let tasks = vec![
        run_true("one", &["tow"]),
        run_true("two", &["three"]),
        run_true("three", &["two"]),
        run_true("self", &["self"]),
        run_true("one", &[]),
        run_true("late", &["end"]),
        finally(run_true("end", &[])),
        with(run_true("bad", &[]), when("results.nowhere.status == 'x'")),
    ];
    let found = compile(plan(tasks)).map(|compiled| compiled.hash).unwrap_err();
    let mut texts: Vec<String> =
        found.iter().map(|problem| format!("{} {}", problem.code, problem.message)).collect();
    texts.sort();
    assert_eq!(
        texts,
        [
            "plan/bad-value task `late` depends on the `finally` task `end`",
            "plan/cycle task `self` depends on itself: self -> self",
            "plan/cycle tasks wait for each other: two -> three -> two",
            "plan/duplicate-task two tasks are called `one`",
            "plan/not-upstream there is no task `nowhere`",
            "plan/unknown-dependency task `one` depends on `tow`, which does not exist",
        ]
    );
    let unknown = found.iter().find(|problem| problem.code == "plan/unknown-dependency").unwrap();
    assert_eq!(unknown.help, "did you mean `two`?");
}

#[test]
fn rules_without_dependencies_are_refused() {
    for rule in [TriggerRule::AnyOk, TriggerRule::AnyFailed, TriggerRule::AllFailed] {
        let task = with(run_true("a", &[]), |settings| settings.trigger_rule = rule);
        assert_eq!(problems(vec![task]), ["plan/needs-dependency a:trigger_rule"], "{rule}");
    }
    let task = with(run_true("a", &[]), |settings| settings.only_if_changed = OnlyIfChanged::Any);
    assert_eq!(problems(vec![task]), ["plan/needs-dependency a:only_if_changed"]);
    let task = with(run_true("a", &[]), |settings| settings.trigger_rule = TriggerRule::AllRan);
    assert_eq!(problems(vec![task]), [""; 0]);
}

#[test]
fn a_rule_that_can_never_fire_is_warned_of() {
    let fails =
        |name: &str, depends_on: &[&str], rule| with(run_true(name, depends_on), |s| s.trigger_rule = rule);
    let goes_on = |name: &str| with(run_true(name, &[]), |settings| settings.on_error = OnError::Continue);
    let tasks = vec![
        run_true("stops", &[]),
        goes_on("goes-on"),
        run_true("behind", &["goes-on"]),
        fails("never", &["stops"], TriggerRule::AnyFailed),
        fails("fires", &["stops", "goes-on"], TriggerRule::AnyFailed),
        fails("fires-behind", &["behind"], TriggerRule::AnyFailed),
        fails("never-all", &["stops", "goes-on"], TriggerRule::AllFailed),
        fails("done", &["stops"], TriggerRule::AllDone),
    ];
    assert_eq!(
        problems(tasks),
        ["plan/never-runs never-all:trigger_rule", "plan/never-runs never:trigger_rule"]
    );
}

#[test]
fn operations_and_parameters_are_checked_against_the_catalogue() {
    let one = |name: &str, params: Value| problems(vec![operation("t", &[], op(name, params))]);
    let file = |extra: Value| {
        let mut params = json!({"path": "/x", "content": "y"});
        params.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        one("file.present", params)
    };
    assert_eq!(one("file.presnt", json!({})), ["plan/unknown-operation t:op"]);
    assert_eq!(one("file.present", json!({})), ["plan/bad-param t:params"; 2]);
    assert_eq!(file(json!({"source": "z"})), ["plan/bad-param t:params"]);
    assert_eq!(file(json!({"mode": 644})), ["plan/bad-param t:params.mode"]);
    assert_eq!(file(json!({"mode": template("{{ vars.version }}")})), [""; 0]);
    assert_eq!(file(json!({"mod": "0644"})), ["plan/bad-param t:params.mod"]);
    assert_eq!(file(json!({"match": "a("})), ["plan/bad-param t:params.match"]);
    assert_eq!(file(json!({"mode": [template("{{ vars.version }}")]})), ["plan/bad-param t:params.mode"]);
    let args = json!({"command": "x", "args": [template("{{ vars.version }}"), 3, "ok"]});
    assert_eq!(one("command.exec", args), ["plan/bad-param t:params.args.1"]);
    let env = json!({"command": "x", "env": {"A": template("{{ vars.version }}"), "B": [1], "C": 1}});
    assert_eq!(one("command.exec", env), ["plan/bad-param t:params.env.B"]);
    let unknown = only_problem(vec![operation("t", &[], op("file.presnt", json!({})))]);
    assert_eq!(unknown.help, "did you mean `file.present`?");
    let misplaced = op("file.present", json!({"path": "/x", "content": "y", "changed_when": "true"}));
    let misplaced = only_problem(vec![operation("t", &[], misplaced)]);
    assert_eq!(misplaced.help, "`changed_when` is a key of the task, beside `params`");
}

/// Reach section 8: the `changed_when` that an operation lists is the one of its task.
#[test]
fn a_condition_among_the_parameters_is_that_of_the_task() {
    let lifted = |value: Value| {
        let task = operation("t", &[], op("http.request", json!({"changed_when": value})));
        let compiled = compile(plan(vec![task])).unwrap();
        let part = compiled.plan.tasks[0].action.parts()[0].clone();
        assert!(part.op.params.is_empty());
        part.changed_when.unwrap().0.to_string()
    };
    assert_eq!(lifted(json!("result.data.status == 201")), "result.data.status == 201");
    assert_eq!(lifted(json!(false)), "false");
    let mut twice = operation("t", &[], op("http.request", json!({"changed_when": "true"})));
    if let Action::Op(part) = &mut twice.action {
        Arc::make_mut(part).changed_when = Some(Expression("false".into()));
    }
    let templated = op("http.request", json!({"changed_when": template("{{ vars.version }}")}));
    let no_names = op("http.request", json!({"changed_when": "nothing.at.all"}));
    for (task, place) in [
        (twice, "t:params.changed_when"),
        (operation("t", &[], templated), "t:params.changed_when"),
        (operation("t", &[], no_names), "t:changed_when"),
    ] {
        assert_eq!(only_problem(vec![task]).place.to_string(), place);
    }
}

/// Plans section 8: an empty command or script is a compile error.
#[test]
fn empty_commands_are_refused() {
    for (name, params) in [
        ("command.exec", json!({"command": ""})),
        ("command.exec", json!({})),
        ("command.shell", json!({"script": " \n"})),
    ] {
        let problem = only_problem(vec![operation("t", &[], op(name, params.clone()))]);
        assert_eq!(problem.code, "plan/empty-command", "{name} {params}");
    }
}

/// Case 13: a result that is not upstream and an undeclared variable are compile errors that say what to do.
#[test]
fn names_must_be_upstream_and_declared() {
    let problem = only_problem(vec![run_true("x", &[]), with(run_true("t", &[]), when("results.x.changed"))]);
    assert_eq!(problem.code, "plan/not-upstream");
    assert!(problem.message.contains("`x`") && problem.help.contains("`depends_on`"), "{problem}");
    let problem = only_problem(vec![with(run_true("t", &[]), when("env.HOME == ''"))]);
    assert_eq!((problem.code, problem.help.as_str()), ("plan/undeclared", "declare it: `env: [HOME]`"));
    for (text, code) in [
        ("vars.versoin", "plan/undeclared"),
        ("results.t.changed", "plan/not-upstream"),
        ("changed('x')", "plan/not-upstream"),
        ("changed('nope')", "plan/not-upstream"),
        ("results.a-b.changed", "plan/bad-expression"),
        ("results['a-b'].changed and", "plan/bad-expression"),
        ("{{ vars.version }}", "plan/bad-expression"),
        ("run.status == 'x'", "plan/bad-expression"),
        ("run.nope", "plan/bad-expression"),
        ("item.key", "plan/bad-expression"),
        ("host.name", "plan/bad-expression"),
        ("result.exit_code", "plan/bad-expression"),
        ("var.x", "plan/bad-expression"),
        ("vars.version | qoute", "plan/bad-expression"),
        ("secrets.key == ''", "plan/secret-in-argv"),
    ] {
        let tasks = vec![run_true("x", &[]), run_true("a-b", &[]), with(run_true("t", &["a-b"]), when(text))];
        assert_eq!(problems(tasks), [format!("{code} t:when.0")], "{text}");
    }
    let tasks = vec![
        run_true("a", &[]),
        run_true("b", &["a"]),
        with(run_true("t", &["b"]), when("results.a.changed and changed() and run.dry_run and vars.version")),
        finally(with(run_true("f", &[]), when("results.t.changed and run.status == 'failed'"))),
    ];
    assert_eq!(problems(tasks), [""; 0]);
}

/// Case 30 (in part): instances of a `for_each` and what may be said of them.
#[test]
fn for_each_names_stand_for_all_instances() {
    let item = |mut task: Task| {
        task.item = Some(Box::new(Item { key: "eu".to_owned(), value: json!(1) }));
        with(task, when("item.key == 'eu'"))
    };
    let start = || vec![item(run_true("p[eu]", &[])), item(run_true("p[us]", &[]))];
    let mut tasks = start();
    tasks.push(with(run_true("t", &["p"]), when("changed('p') and results['p[eu]'].changed")));
    assert_eq!(problems(tasks), [""; 0]);
    let mut tasks = start();
    tasks.push(with(run_true("t", &["p[eu]"]), when("changed('p')")));
    assert_eq!(problems(tasks), ["plan/not-upstream t:when.0"]);
    let mut tasks = start();
    tasks.push(with(run_true("t", &["p"]), when("results.p.changed")));
    assert!(only_problem(tasks).help.contains("results['p[eu]']"));
    // `--only` a third task leaves both out.
    let mut tasks = start();
    tasks.extend([run_true("a", &[]), run_true("b", &["a"]), finally(run_true("f", &[]))]);
    let compiled = compile(plan(tasks)).unwrap();
    let left_out = |only: &[&str]| {
        let only: Vec<String> = only.iter().map(|name| (*name).to_owned()).collect();
        select(&compiled, &only).map(|found| found.into_iter().map(|index| index.0).collect::<Vec<_>>())
    };
    assert_eq!(left_out(&["b"]), Ok(vec![0, 1]));
    assert_eq!(left_out(&["p"]), Ok(vec![2, 3]));
    assert_eq!(left_out(&["p[us]", "a"]), Ok(vec![0, 3]));
    assert_eq!(left_out(&[]), Ok(vec![]));
    assert!(left_out(&["nope"]).unwrap_err().to_string().contains("known: p[eu], p[us], a, b, f"));
}

/// Case 29 (in part): a secret in `args` or `script` is refused, in `env` it is allowed.
#[test]
fn secrets_stand_only_where_operations_allow_them() {
    let secret = template("{{ secrets.key }}");
    let one = |name: &str, params: Value| problems(vec![operation("t", &[], op(name, params))]);
    let args = json!({"command": "x", "args": ["-k", secret]});
    assert_eq!(one("command.exec", args), ["plan/secret-in-argv t:params.args.1"]);
    let script = json!({"script": template("echo {{ secrets.key | quote }}")});
    assert_eq!(one("command.shell", script), ["plan/secret-in-argv t:params.script"]);
    assert_eq!(one("command.exec", json!({"command": "x", "env": {"KEY": secret}})), [""; 0]);
    let whole = json!({"command": "x", "args": [template("{{ secrets | tojson }}")]});
    assert_eq!(one("command.exec", whole), ["plan/secret-in-argv t:params.args.0"]);
}

#[test]
fn an_unquoted_value_in_a_script_is_warned_of() {
    let one = |text: &str| {
        problems(vec![operation("t", &[], op("command.shell", json!({"script": template(text)})))])
    };
    assert_eq!(one("echo {{ vars.version }}"), ["plan/unquoted-shell t:params.script"]);
    assert_eq!(one("echo {{ vars.version | quote }}"), [""; 0]);
    assert_eq!(one("echo {{ vars.version"), ["plan/bad-expression t:params.script"]);
    assert_eq!(one("{% if x %}{{ vars.version }}"), ["plan/bad-expression t:params.script"]);
}

#[test]
fn undo_sequences_and_outcomes_are_checked() {
    let undo = |task: Task, undo| problems(vec![with(task, |settings| settings.undo = Some(undo))]);
    assert_eq!(undo(run_true("t", &[]), Undo::Auto), ["plan/bad-value t:undo"]);
    assert_eq!(undo(function("t", &[]), Undo::Auto), ["plan/bad-value t:undo"]);
    let file = operation("t", &[], op("file.present", json!({"path": "/x", "content": "y"})));
    assert_eq!(undo(file, Undo::Auto), [""; 0]);
    assert_eq!(
        undo(run_true("t", &[]), Undo::Op(op("command.exec", json!({})))),
        ["plan/empty-command t:undo.params"]
    );
    let named = |name: Option<&str>, changed_when: &str| Part {
        name: name.map(|name| TaskName::parse(name).unwrap()),
        changed_when: Some(Expression(changed_when.into())),
        ..part(op("command.exec", json!({"command": "x"})))
    };
    let parts = [
        named(Some("a"), "result.exit_code == 3 and host.name"),
        named(Some("a"), "true"),
        named(None, "nope"),
    ];
    assert_eq!(
        problems(vec![task("t", &[], Action::Sequence(parts.into()))]),
        [
            "plan/bad-value t:sequence.1.name",
            "plan/bad-value t:sequence.2",
            "plan/bad-expression t:sequence.2.changed_when"
        ]
    );
    assert_eq!(problems(vec![task("t", &[], Action::Sequence([].into()))]), ["plan/bad-value t:sequence"]);
}

/// Case 25: a parameter spelled out as its operation's default gives the same plan, wherever the operation stands.
#[test]
fn spelled_out_parameter_defaults_are_the_same_plan() {
    let hash = |params: Value| {
        let op = op("command.exec", params);
        let named = Part { name: Some(TaskName::parse("p").unwrap()), ..part(op.clone()) };
        let undone = with(operation("a", &[], op.clone()), |settings| settings.undo = Some(Undo::Op(op)));
        let sequence = task("b", &[], Action::Sequence([named.clone()].into()));
        compile(plan(vec![undone, sequence])).unwrap().hash
    };
    let short = hash(json!({"command": "true"}));
    assert_eq!(hash(json!({"command": "true", "args": []})), short);
    assert_ne!(hash(json!({"command": "true", "args": [""]})), short);
    assert_ne!(hash(json!({"command": "true", "args": template("{{ host.name }}")})), short);
}

#[test]
fn settings_out_of_range_are_refused_all_at_once() {
    let bad = with(run_true("t", &[]), |settings| {
        settings.batch = vec![Size::Count(0), Size::Percent(101)];
        settings.canary = Some(Size::Percent(0));
        settings.host_failure = HostFailure::Percent(100);
        settings.retry =
            Retry::times(1_001).on([ErrorClass::Permanent]).backoff(Duration::ZERO, Duration::ZERO);
        settings.retry.backoff.factor = f64::NAN;
        settings.target = vec!["a,,b".to_owned(), "u@h:0".to_owned()];
        settings.timeout = Some(Duration::ZERO);
        let mutex = |name: &str| Mutex { name: name.to_owned(), scope: MutexScope::Run };
        settings.mutex = vec![mutex("apt"), mutex("a b"), mutex("apt")];
    });
    let found = problems(vec![bad.clone(), bad]);
    let count = |text: &str| found.iter().filter(|problem| problem.contains(text)).count();
    assert_eq!(count("t:batch"), 2);
    assert_eq!(count("t:timeout"), 1);
    assert_eq!(count("t:canary"), 1);
    assert_eq!(count("t:host_failure"), 1);
    assert_eq!(count("t:retry"), 3);
    assert_eq!(count("reach/bad-target"), 2);
    assert_eq!(count("t:mutex"), 2);
    let on = with(function("f", &[]), |settings| settings.target = vec!["local".to_owned()]);
    assert_eq!(problems(vec![on]), ["plan/bad-value f:target"]);
}

#[test]
fn an_ad_hoc_host_is_reached_in_one_way_and_without_a_secret_in_the_plan() {
    let on = |name: &str, target: &str| {
        with(run_true(name, &[]), |settings| settings.target = vec![target.to_owned()])
    };
    let same = vec![on("a", "u@h"), on("b", "ssh://u@h"), on("c", "ssh://u@h:2222?key=/k")];
    assert_eq!(problems(same), [""; 0]);
    assert_eq!(problems(vec![on("a", "u@h"), on("b", "u@h?key=/k")]), ["reach/duplicate-host b:target.0"]);
    let secret = only_problem(vec![on("a", "ssh://u:hunter2@h")]);
    assert_eq!(secret.code, "reach/secret-in-spec");
    assert!(!secret.to_string().contains("hunter2"), "{secret}");

    let mut inventory = stead_model::Inventory::default();
    let spec = stead_model::TransportSpec::parse("u@h").unwrap();
    let host = stead_model::inventory::Host::reached_by(spec);
    inventory.hosts.insert(HostName::parse("web").unwrap(), host);
    let catalogue = catalogue().with_hosts((&inventory).into());
    let locate = |_: TaskIndex, path: &str| Place::Named(path.to_owned());
    let plan = plan(vec![on("a", "ssh://web")]);
    let found = check(plan, &Explicit::default(), &catalogue, &locate, Diagnostics::default()).unwrap_err();
    assert_eq!(found.0[0].code, "reach/duplicate-host");
}

#[test]
fn stop_all_in_finally_is_refused() {
    let stops = in_finally(run_true("f", &[]));
    assert_eq!(problems(vec![stops]), ["plan/bad-value f:on_error"]);
}

#[test]
fn triggers_and_limits_are_checked() {
    let trigger = |on: TriggerKind, vars: Value| Trigger {
        on,
        overlap: Overlap::Queue,
        min_interval: None,
        vars: serde_json::from_value(vars).unwrap(),
    };
    let schedule = |cron: &str, tz: &str| TriggerKind::Schedule {
        cron: cron.to_owned(),
        tz: tz.to_owned(),
        catch_up: CatchUp::None,
    };
    let mut bad = plan(vec![]);
    bad.limits.parallel = 0;
    (bad.timeout, bad.finally_timeout) = (Some(Duration::ZERO), Duration::ZERO);
    bad.limits.per_target = Some(10_001);
    bad.triggers = vec![
        trigger(schedule("0 0 * *", "Mars/Base"), json!({"version": "{{ vars.version }}", "nope": 1})),
        trigger(
            TriggerKind::AgentOnline { r#match: "a:".to_owned() },
            json!({"version": ["{{ trigger.time }}", "{{ x"]}),
        ),
        trigger(TriggerKind::Webhook { path: "x".to_owned(), secret: "kye".to_owned() }, json!({})),
    ];
    let found = compile(bad).map(|compiled| compiled.hash).unwrap_err();
    let mut places: Vec<String> = found.iter().map(|problem| problem.place.to_string()).collect();
    places.sort();
    assert_eq!(
        places,
        [
            "plan:finally_timeout",
            "plan:limits.parallel",
            "plan:limits.per_target",
            "plan:timeout",
            "plan:triggers.0.schedule.cron",
            "plan:triggers.0.schedule.tz",
            "plan:triggers.0.vars.nope",
            "plan:triggers.0.vars.version",
            "plan:triggers.1.agent_online.match",
            "plan:triggers.1.vars.version",
            "plan:triggers.2.webhook.path",
            "plan:triggers.2.webhook.secret",
        ]
    );
    let mut good = plan(vec![]);
    good.triggers =
        vec![trigger(schedule("0 3 * * mon-fri", "Europe/Vienna"), json!({"version": "{{ trigger.id }}"}))];
    assert!(compile(good).is_ok());
}

/// What no agent and no request can ever match is told, not armed.
#[test]
fn triggers_that_can_never_fire_are_refused() {
    let found = |on: Vec<TriggerKind>| {
        let mut plan = plan(vec![]);
        plan.secrets = BTreeMap::from([("s".to_owned(), SecretRef::Env("S".to_owned()))]);
        let trigger = |on| Trigger { on, overlap: Overlap::Queue, min_interval: None, vars: BTreeMap::new() };
        plan.triggers = on.into_iter().map(trigger).collect();
        compile(plan).map_or_else(|problems| problems.iter().count(), |_| 0)
    };
    let online = |text: &str| TriggerKind::AgentOnline { r#match: text.to_owned() };
    let hook = |path: &str| TriggerKind::Webhook { path: path.to_owned(), secret: "s".to_owned() };
    assert_eq!(found(vec![online("ssh://root@web1")]), 1, "a way to a host, and no agent");
    for text in ["web*", "all", "web1,web2", "web*,!web9", "spec:web", "web*&spec:db", "!spec:web"] {
        assert_eq!(found(vec![online(text)]), 0, "{text}");
    }
    for path in ["/tail/", "/", "//", "/a//b", "/a/../b", "/.", "/a%20b", "/a b", "/a?b", "/a\\b", "/ä"] {
        assert_eq!(found(vec![hook(path)]), 1, "{path}");
    }
    assert_eq!(found(vec![hook("/deploy/web-1_v2.0")]), 0);
    assert_eq!(found(vec![hook("/same"), hook("/other"), hook("/same")]), 1);
}

#[test]
fn equal_settings_become_one_and_equal_plans_hash_the_same() {
    let slow = |settings: &mut Settings| settings.timeout = Some(Duration::from_secs(3));
    let build = || plan((0..50).map(|i| with(run_true(&format!("t{i}"), &[]), slow)).collect());
    let compiled = compile(build()).unwrap();
    assert!(
        compiled.plan.tasks.iter().all(|task| Arc::ptr_eq(&task.settings, &compiled.plan.tasks[0].settings))
    );
    assert_eq!(compile(build()).unwrap().hash, compiled.hash);
    let mut other = build();
    other.tasks[7] = run_true("t7", &[]);
    let other = compile(other).unwrap();
    assert_ne!(other.hash, compiled.hash);
    let differ = |i: usize| other.plan.tasks[i].hash != compiled.plan.tasks[i].hash;
    assert_eq!((0..50).filter(|i| differ(*i)).collect::<Vec<_>>(), [7]);
}

#[test]
fn problems_found_before_are_kept_and_warnings_stop_nothing() {
    let locate = |_: TaskIndex, path: &str| Place::Named(path.to_owned());
    let place = || Place::Named("file".to_owned());
    let before = Diagnostics(vec![Diagnostic::error("plan/syntax", place(), "bad")]);
    let found = check(plan(vec![]), &Explicit::default(), &catalogue(), &locate, before);
    assert_eq!(found.map(|compiled| compiled.hash).unwrap_err().0[0].code, "plan/syntax");
    let before = Diagnostics(vec![Diagnostic::warning("plan/x", place(), "hm")]);
    let compiled = check(plan(vec![]), &Explicit::default(), &catalogue(), &locate, before).unwrap();
    assert_eq!(compiled.warnings[0].severity, Severity::Warning);
}

/// Case 32 (compile part): 10,000 wide and 10,000 deep plans compile.
#[test]
fn wide_and_deep_plans_compile() {
    let wide = plan((0..10_000).map(|i| function(&format!("t{i}"), &[])).collect());
    assert_eq!(level_table(&compile(wide).unwrap()).len(), 1);
    let deep = (0..10_000).map(|i| {
        let before = format!("t{}", i.max(1) - 1);
        let before: &[&str] = if i == 0 { &[] } else { &[&before] };
        let task = function(&format!("t{i}"), before);
        if i == 0 { task } else { with(task, when("changed()")) }
    });
    assert_eq!(level_table(&compile(plan(deep.collect())).unwrap()).len(), 10_000);
}

proptest! {
    #[test]
    fn checking_never_panics(guard in "\\PC{0,40}", script in "\\PC{0,40}", target in "\\PC{0,12}") {
        let shell = operation("t", &[], op("command.shell", json!({"script": template(&script)})));
        let task = with(shell, |settings| {
            when(&guard)(settings);
            settings.target = vec![target];
        });
        let _compiled = compile(plan(vec![task]));
    }
}

#[test]
fn facts_of_unknown_hosts_are_refused_and_fact_needs_a_host() {
    let hosts = HostSet::new(["web1", "web2"].map(|name| (HostName::parse(name).unwrap(), BTreeMap::new())));
    let catalogue = catalogue().with_hosts(hosts);
    let errors_of = |expression: &str, when_host: bool| -> Vec<String> {
        let mut task = run_true("a", &[]);
        let guards = vec![Guard::Expr { expr: Expression(expression.into()), reason: None }];
        let settings = Arc::make_mut(&mut task.settings);
        if when_host {
            settings.when_host = guards
        } else {
            settings.when = guards
        }
        match check(
            plan(vec![task]),
            &Explicit::default(),
            &catalogue,
            &|_, path: &str| Place::Named(path.to_owned()),
            Diagnostics::default(),
        ) {
            Ok(_) => Vec::new(),
            Err(found) => {
                found.iter().map(|one| format!("{} {} {}", one.code, one.message, one.help)).collect()
            }
        }
    };
    for fine in ["facts['web1'].arch == 'x86_64'", "facts.local.arch == ''", "facts['a@10.0.0.1'].arch == ''"]
    {
        assert_eq!(errors_of(fine, false), Vec::<String>::new(), "{fine}");
    }
    assert_eq!(errors_of("fact.os.family == 'debian'", true), Vec::<String>::new());
    let unknown = errors_of("facts['web3'].arch == ''", true);
    assert_eq!(unknown.len(), 1);
    assert!(unknown[0].starts_with("reach/unknown-host") && unknown[0].contains("web1"), "{unknown:?}");
    let misplaced = errors_of("fact.arch == ''", false);
    assert!(
        misplaced[0].contains("`fact` means nothing") && misplaced[0].contains("when_host"),
        "{misplaced:?}"
    );
}

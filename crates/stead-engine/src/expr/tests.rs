use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;
use stead_model::plan::{Action, Digest, Function, Guard, Item, OnlyIfChanged, Section, Settings, TaskIndex};
use stead_model::time::Timestamp;
use stead_model::{Cause, HostName, Plan, PlanName, RunStatus, Status, Task};

use super::*;
use crate::graph::Graph;

fn task(name: &str, depends_on: &[&str], section: Section) -> Task {
    Task {
        name: TaskName::parse(name).unwrap(),
        section,
        depends_on: depends_on.iter().map(|name| TaskName::parse(name).unwrap()).collect(),
        action: Action::Function(Function::default()),
        settings: Arc::new(Settings::default()),
        item: None,
        hash: Digest::default(),
    }
}

/// `a`, `b-1` and `p[eu]`, `p[us]` before `t`; `z` beside it; `f` in `finally`.
fn results() -> Arc<Results> {
    let mut plan = Plan::new(PlanName::parse("web").unwrap());
    plan.vars = BTreeMap::from([
        ("n".to_owned(), json!(3)),
        ("list".to_owned(), json!(["x y", "it's"])),
        ("on".to_owned(), json!(true)),
        ("name".to_owned(), json!("web")),
    ]);
    plan.env = BTreeMap::from([("USER".to_owned(), "ann".to_owned())]);
    plan.tasks = vec![
        task("a", &[], Section::Main),
        task("b-1", &["a"], Section::Main),
        task("p[eu]", &[], Section::Main),
        task("p[us]", &[], Section::Main),
        task("t", &["b-1", "p"], Section::Main),
        task("z", &[], Section::Main),
        task("f", &[], Section::Finally),
    ];
    plan.tasks[4].item = Some(Box::new(Item { key: "k".to_owned(), value: json!({"v": 1}) }));
    let graph = Graph::build(&plan.tasks).unwrap();
    Arc::new(Results::new(Arc::new(graph), Arc::new(plan)))
}

fn scope_of(results: &Arc<Results>, task: &str) -> Scope {
    let run = RunScope {
        id: None,
        plan: PlanName::parse("web").unwrap(),
        started_at: Timestamp::from_micros(0),
        segment: 1,
        dry_run: false,
    };
    let index = results.graph().index_of(task).unwrap();
    Scope::new(Arc::new(Names::new(Arc::clone(results), run, None)), Some(index))
}

fn set(results: &Results, task: &str, row: Row) {
    set_hosts(results, task, row, &[]);
}

fn set_hosts(results: &Results, task: &str, row: Row, hosts: &[(&str, Status)]) {
    let hosts =
        hosts.iter().map(|(name, status)| (HostName::parse(name).unwrap(), Row::new(*status))).collect();
    let index = results.graph().index_of(task).unwrap();
    assert!(results.set(index, Arc::new(Finished { row, hosts })));
}

fn with_data(status: Status, data: Value) -> Row {
    Row { data: Some(data), ..Row::new(status) }
}

fn scope() -> Scope {
    let results = results();
    set(&results, "a", with_data(Status::Changed, json!({"version": "1.2", "n": 7})));
    set(&results, "b-1", Row::new(Status::Unchanged));
    set(&results, "p[eu]", Row::new(Status::Failed));
    set(&results, "p[us]", Row::new(Status::Skipped));
    set(&results, "z", Row::new(Status::Changed));
    scope_of(&results, "t")
}

fn eval(text: &str) -> Result<Value, ExprError> {
    evaluate_text(text, &scope())
}

fn guard(text: &str) -> Guard {
    Guard::Expr { expr: Expression(text.into()), reason: None }
}

fn no_functions(_: u32) -> Result<bool, String> {
    Err("none".to_owned())
}

#[test]
fn expressions_see_the_names_of_the_contract() {
    let table = [
        ("vars.n + 1", json!(4)),
        ("vars.list", json!(["x y", "it's"])),
        ("env.USER", json!("ann")),
        ("results.a.status", json!("changed")),
        ("results.a.changed", json!(true)),
        ("results.a.data.version", json!("1.2")),
        ("results['b-1'].changed", json!(false)),
        ("results.a.error", json!(null)),
        ("results['p[eu]'].status == 'failed'", json!(true)),
        ("results | length", json!(4)),
        ("results.a.hosts | length", json!(0)),
        ("item.key ~ item.value.v", json!("k1")),
        ("run.plan", json!("web")),
        ("run.dry_run", json!(false)),
        ("run.started_at", json!("1970-01-01T00:00:00.000000Z")),
        ("'{\"x\": [1]}' | from_json", json!({"x": [1]})),
        ("vars.list | map('quote') | join(' ')", json!("'x y' 'it'\\''s'")),
        ("vars.list | quote", json!("'x y' 'it'\\''s'")),
        ("range(3) | list", json!([0, 1, 2])),
        ("vars.n > 2 and vars.on", json!(true)),
        ("results.a.data.nope is defined", json!(false)),
        ("results.a.data.nope | default(5)", json!(5)),
        ("1.5", json!(1.5)),
        ("18446744073709551615", json!(18_446_744_073_709_551_615_u64)),
        ("{'a': (1, 2)}", json!({"a": [1, 2]})),
    ];
    for (text, value) in table {
        assert_eq!(eval(text), Ok(value), "{text}");
    }
}

#[test]
fn what_is_not_there_is_an_error_that_names_it() {
    for (text, part) in [
        ("vars.nope", "vars.nope"),
        ("vars.nope.x", "vars.nope"),
        ("nope", "nope"),
        ("results.a.data.nope", "results.a.data.nope"),
        ("results.nope.status", "results.nope"),
        ("secrets.key", "secrets"),
        ("run.status", "run.status"),
        ("[vars.nope]", "undefined"),
    ] {
        let error = eval(text).unwrap_err();
        assert!(error.to_string().contains(part), "{text}: {error}");
    }
    let error = eval("results.z.status").unwrap_err().to_string();
    assert!(error.contains("`z` is not upstream of `t`") && error.contains("depends_on"), "{error}");
    assert!(eval("results.t.status").is_err());
}

#[test]
fn syntax_errors_carry_their_offset() {
    let error = eval("vars.n + ) 1").unwrap_err();
    assert_eq!(error.offset(), Some(9), "{error:?}");
    assert!(matches!(render("x {{ vars.n", &scope()), Err(ExprError::Syntax { .. })));
}

#[test]
fn endless_and_huge_expressions_are_errors() {
    let huge = [
        "'x' * 10**9",
        "range(10**9) | list",
        "[0] * 10**8",
        "(range(100000) * 1000) | list",
        "(range(100000) * 1000) | join",
        "('x' * 10**7) | replace('x', 'y' * 10**7)",
        "'a\nb' | indent(10**9)",
        "'%1000000000d' | format(1)",
        "'%*d' | format(1000000000, 1)",
        "[1] | batch(10**9, 0)",
        "'x' * 90000000",
    ];
    for text in huge {
        let error = eval(text).unwrap_err();
        assert!(!matches!(error, ExprError::Syntax { .. }), "{text}: {error:?}");
    }
    let chain = format!("1{}", " + 1".repeat(100_000));
    assert!(matches!(eval(&chain), Err(ExprError::TooLarge { .. })));
    assert!(expression_references(&chain).is_err());
    let nested = format!("{}1{}", "(".repeat(900), ")".repeat(900));
    assert!(eval(&nested).is_err());
    let longest = format!("1{}", " + 1".repeat(MAX_TOKENS / 2 - 1));
    assert_eq!(eval(&longest), Ok(json!(MAX_TOKENS / 2)));
    let text = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
    assert_eq!(render_text(text, &Map::new(), &scope()), Err(ExprError::OutOfFuel));
    let text = "{% for a in range(100000) %}{{ 'x' * 100000 }}{% endfor %}";
    assert!(matches!(render_text(text, &Map::new(), &scope()), Err(ExprError::TooLarge { .. })));
}

#[test]
fn a_template_that_is_one_output_keeps_its_type() {
    let table = [
        ("{{ vars.list }}", json!(["x y", "it's"])),
        ("{{vars.n}}", json!(3)),
        ("{{- vars.n -}}", json!(3)),
        (" {{ vars.n }}", json!(" 3")),
        ("{{ vars.n }}{{ vars.n }}", json!("33")),
        ("nginx={{ vars.name }}*", json!("nginx=web*")),
        ("{{ '}}' }}", json!("}}")),
        ("echo ${#list} {# kept #} {{ vars.n }}\n", json!("echo ${#list} {# kept #} 3\n")),
        ("printf '{%s}' {{ vars.n }}", json!("printf '{%s}' 3")),
        ("plain", json!("plain")),
        ("{{ 1 == 1 }}", json!(true)),
        ("v={{ 1 == 1 }},{{ 1 == 2 }}", json!("v=true,false")),
        ("v={{ 2.0 }},{{ 2.9 }},{{ -1 }}", json!("v=2,2.9,-1")),
    ];
    for (text, value) in table {
        assert_eq!(render(text, &scope()), Ok(value), "{text}");
    }
    assert_eq!(render("a {% if x %}", &scope()), Err(ExprError::Statement { offset: 2 }));
    assert!(render("{{ vars.nope }} x", &scope()).is_err());
    assert!(is_template("{{") && is_template("{% x %}") && !is_template("{%s} {#"));
}

#[test]
fn file_templates_take_statements_keep_the_last_newline_and_say_the_line() {
    let vars = serde_json::from_value(json!({"name": "over", "extra": 1})).unwrap();
    let text = "{# note #}{% for x in vars.list %}[{{ x }}]{% endfor %}\n{{ vars.name }}{{ vars.extra }}{{ vars.n }}\n";
    assert_eq!(render_text(text, &vars, &scope()).unwrap(), "[x y][it's]\nover13\n");
    let error = render_text("ok\n\n{{ vars.nope }}\n", &Map::new(), &scope()).unwrap_err();
    assert_eq!(error.line(), Some(3), "{error:?}");
    let error = render_text("ok\n{% if %}\n", &Map::new(), &scope()).unwrap_err();
    assert_eq!(error.line(), Some(2), "{error:?}");
    assert!(render_text("{% include '/etc/passwd' %}", &Map::new(), &scope()).is_err());
    assert_eq!(render_text("<{{ '<&>' }}>", &Map::new(), &scope()).unwrap(), "<<&>>");
}

#[test]
fn hosts_facts_results_and_secrets_come_with_the_scope() {
    let host = HostScope {
        name: HostName::parse("h1").unwrap(),
        index: 2,
        labels: BTreeMap::from([("role".to_owned(), "web".to_owned())]),
    };
    let result = ResultScope { exit_code: Some(3), stdout: "out".to_owned(), ..ResultScope::default() };
    let scope = scope()
        .on_host(&host)
        .with_result(&result)
        .with_secrets(&BTreeMap::from([("key".to_owned(), "hunter2".to_owned())]))
        .with_run_status(RunStatus::Failed);
    for (text, value) in [
        ("host.name ~ host.index ~ host.labels.role", json!("h12web")),
        ("result.exit_code == 3 and result.stdout == 'out' and result.signal is none", json!(true)),
        ("secrets.key", json!("hunter2")),
        ("run.status", json!("failed")),
    ] {
        assert_eq!(evaluate_text(text, &scope), Ok(value), "{text}");
    }
    assert!(!format!("{scope:?}").contains("hunter2"));
}

#[test]
fn task_data_exists_with_at_most_one_host() {
    let results = results();
    let row = |n: i64| with_data(Status::Changed, json!({"n": n}));
    let host = |name: &str, n| (HostName::parse(name).unwrap(), row(n));
    let many = Finished { row: Row::new(Status::Changed), hosts: vec![host("h1", 1), host("h2", 2)] };
    let one = Finished { row: Row::new(Status::Changed), hosts: vec![host("h1", 1)] };
    results.set(TaskIndex(0), Arc::new(many));
    results.set(TaskIndex(1), Arc::new(one));
    let scope = scope_of(&results, "t");
    assert!(evaluate_text("results.a.data.n", &scope).is_err());
    assert_eq!(evaluate_text("results.a.hosts.h2.data.n", &scope), Ok(json!(2)));
    assert_eq!(evaluate_text("results.a.hosts | list", &scope), Ok(json!(["h1", "h2"])));
    assert_eq!(evaluate_text("results['b-1'].data.n", &scope), Ok(json!(1)));
    assert!(evaluate_text("results.a", &scope).is_ok());
}

#[test]
fn finally_reads_every_normal_task() {
    let results = results();
    set(&results, "z", Row::new(Status::Failed));
    let scope = scope_of(&results, "f");
    assert_eq!(evaluate_text("results.z.status", &scope), Ok(json!("failed")));
    assert_eq!(evaluate_text("failed('z')", &scope), Ok(json!(true)));
    assert_eq!(evaluate_text("failed()", &scope), Ok(json!(false)));
}

#[test]
fn functions_ask_a_task_any_instance_or_any_dependency() {
    for (text, value) in [
        ("changed('a')", true),
        ("changed('b-1')", false),
        ("changed()", false),
        ("failed('p')", true),
        ("failed('p[us]')", false),
        ("failed()", true),
        ("skipped()", true),
        ("skipped('p')", true),
        ("skipped('a')", false),
        ("broken('p[us]')", false),
        ("broken()", true),
        ("not changed('a') or vars.on", true),
    ] {
        assert_eq!(eval(text), Ok(json!(value)), "{text}");
    }
    for text in ["changed('z')", "changed('nope')", "changed(1)", "changed('a', 'a')"] {
        assert!(eval(text).is_err(), "{text}");
    }
}

/// Case 14: the host functions over rows.
#[test]
fn host_functions_follow_section_5() {
    use Status::{Changed, Failed, Skipped, Unchanged};
    const FUNCTIONS: [&str; 5] =
        ["any_host_failed", "all_hosts_failed", "any_host_skipped", "any_host_changed", "all_hosts_changed"];
    // Rows of `a` for `f('a')`, with the expected answers in the order of FUNCTIONS.
    type Rows<'a> = &'a [(&'a str, Status)];
    let table: &[(Rows<'_>, [bool; 5])] = &[
        (&[], [false, false, false, false, false]),
        (&[("h1", Changed), ("h2", Failed)], [true, false, false, true, false]),
        (&[("h1", Failed), ("h2", Failed)], [true, true, false, false, false]),
        (&[("h1", Failed), ("h2", Skipped)], [true, false, true, false, false]),
        (&[("h1", Changed), ("h2", Changed)], [false, false, false, true, true]),
        (&[("h1", Unchanged), ("h2", Skipped)], [false, false, true, false, false]),
    ];
    for (hosts, expected) in table {
        let results = results();
        set_hosts(&results, "a", Row::new(Failed), hosts);
        let scope = scope_of(&results, "t");
        for (function, value) in FUNCTIONS.iter().zip(expected) {
            assert_eq!(
                evaluate_text(&format!("{function}('a')"), &scope),
                Ok(json!(value)),
                "{function} {hosts:?}"
            );
        }
    }
    // Without argument: direct dependencies `b-1`, `p[eu]`, `p[us]`; one of them has no rows.
    let results = results();
    set_hosts(&results, "b-1", Row::new(Failed), &[("h1", Failed)]);
    set_hosts(&results, "p[eu]", Row::new(Failed), &[("h1", Failed)]);
    set(&results, "p[us]", Row::new(Skipped));
    let scope = scope_of(&results, "t");
    assert_eq!(evaluate_text("any_host_failed()", &scope), Ok(json!(true)));
    assert_eq!(evaluate_text("all_hosts_failed()", &scope), Ok(json!(false)));
    assert_eq!(evaluate_text("all_hosts_failed('b-1')", &scope), Ok(json!(true)));
    for function in FUNCTIONS {
        let alone = scope_of(&results, "z");
        assert_eq!(evaluate_text(&format!("{function}()"), &alone), Ok(json!(false)), "{function}");
    }
}

#[test]
fn a_dry_run_does_not_know_data_but_knows_predictions() {
    let results = results();
    set(&results, "a", Row { data_unknown: true, ..Row::new(Status::Changed) });
    set(&results, "b-1", Row::new(Status::Unknown));
    set(&results, "p[eu]", Row::new(Status::Changed));
    set(&results, "p[us]", Row::new(Status::Unchanged));
    let scope = scope_of(&results, "t");
    for text in [
        "results.a.data.n",
        "results.a.data is defined",
        "results.a.data.n | default(1)",
        "results['b-1'].status",
        "results['b-1'].changed",
        "results['b-1'].hosts | length",
        "changed('b-1')",
        "failed()",
        "results.a",
    ] {
        assert!(matches!(evaluate_text(text, &scope), Err(ExprError::NotKnown { .. })), "{text}");
    }
    for (text, value) in [
        ("results.a.status", json!("changed")),
        ("results.a.changed", json!(true)),
        ("changed()", json!(true)),
        ("results.a.changed or results.a.data.n", json!(true)),
    ] {
        assert_eq!(evaluate_text(text, &scope), Ok(value), "{text}");
    }
    let verdict = |guards: &[Guard], only| judge(guards, only, &scope, &no_functions);
    assert_eq!(verdict(&[guard("results.a.data.n == 1")], OnlyIfChanged::No), Verdict::Unknown);
    assert_eq!(verdict(&[], OnlyIfChanged::Any), Verdict::Pass);
    assert!(matches!(verdict(&[], OnlyIfChanged::All), Verdict::Fail { cause: Cause::Unchanged, .. }));
    let both = [guard("results.a.data.n == 1"), guard("false")];
    assert!(matches!(verdict(&both, OnlyIfChanged::No), Verdict::Fail { cause: Cause::Guard, .. }));
    assert_eq!(verdict(&[Guard::Not(Box::new(both[0].clone()))], OnlyIfChanged::No), Verdict::Unknown);
    assert_eq!(
        verdict(&[Guard::Any(vec![both[0].clone(), guard("true")])], OnlyIfChanged::No),
        Verdict::Pass
    );
}

#[test]
fn every_false_guard_gives_its_reason_in_order() {
    let scope = scope();
    let guards = [
        guard("vars.n == 4"),
        guard("vars.on"),
        Guard::Expr { expr: Expression("false".into()), reason: Some("not today".to_owned()) },
        Guard::Function { label: "closure says no".to_owned(), number: 0 },
        Guard::Not(Box::new(guard("vars.on"))),
        Guard::Any(vec![guard("1 > 2"), guard("2 > 3")]),
        Guard::All(vec![guard("true"), guard("3 > 4")]),
    ];
    let reason = "guard is false: vars.n == 4; not today; closure says no; guard is false: not (vars.on); \
                  guard is false: 1 > 2; guard is false: 2 > 3; guard is false: 3 > 4";
    let verdict = judge(&guards, OnlyIfChanged::No, &scope, &|_| Ok(false));
    assert_eq!(verdict, Verdict::Fail { cause: Cause::Guard, reason: reason.to_owned() });
    let verdict = judge(&guards[..1], OnlyIfChanged::Any, &scope, &no_functions);
    let reason = "no dependencies changed; guard is false: vars.n == 4".to_owned();
    assert_eq!(verdict, Verdict::Fail { cause: Cause::Unchanged, reason });
    let verdict = judge(&[], OnlyIfChanged::All, &scope, &no_functions);
    assert_eq!(
        verdict,
        Verdict::Fail { cause: Cause::Unchanged, reason: "not all dependencies changed".to_owned() }
    );
    assert_eq!(judge(&guards[1..2], OnlyIfChanged::No, &scope, &no_functions), Verdict::Pass);
}

/// Case 13 (guards): a guard that errs or gives no boolean is an error naming expression and cause.
#[test]
fn guards_that_err_or_are_no_booleans_are_errors() {
    for (text, cause) in
        [("1 // 0 == 1", "//"), ("results.a.data.nope", "undefined"), ("'yes'", "the text `yes`")]
    {
        let guards = [guard("false"), guard(text)];
        let Verdict::Error(message) = judge(&guards, OnlyIfChanged::No, &scope(), &no_functions) else {
            panic!("{text}")
        };
        assert!(message.contains(&format!("guard `{text}`")) && message.contains(cause), "{message}");
    }
    let mut deep = guard("true");
    for _ in 0..1_000 {
        deep = Guard::Not(Box::new(deep));
    }
    assert!(matches!(judge(&[deep], OnlyIfChanged::No, &scope(), &no_functions), Verdict::Error(_)));
}

#[test]
fn references_are_found_without_evaluating() {
    let set = |names: &[&str]| {
        names.iter().map(|name| (*name).to_owned()).collect::<std::collections::BTreeSet<_>>()
    };
    let found = expression_references(
        "vars.a.b and env['B'] == secrets.c or results.x.data or results['y-1'].changed and changed('z') and \
         failed() and item.key and host.name",
    )
    .unwrap();
    assert_eq!(found.vars, set(&["a"]));
    assert_eq!(found.env, set(&["B"]));
    assert_eq!(found.secrets, set(&["c"]));
    assert_eq!(found.results, set(&["x", "y-1"]));
    assert_eq!(found.tasks_in_functions, set(&["z"]));
    assert_eq!(found.tasks().collect::<Vec<_>>(), ["x", "y-1", "z"]);
    assert!(found.asks_dependencies && found.uses("item") && found.uses("host") && !found.uses("run"));
    assert!(found.dynamic.is_empty() && found.unknown.is_empty(), "{found:?}");
    let found =
        expression_references("results[vars.x].status or changed(item.key) or vars | length").unwrap();
    assert_eq!(found.dynamic, set(&["changed", "results", "vars"]));
    assert_eq!(found.vars, set(&["x"]));
}

#[test]
fn references_say_what_means_nothing_and_how_to_mend_it() {
    for (text, message, help) in [
        ("var.x", "`var`", "did you mean `vars`?"),
        ("results.a-b", "`results.a-b` subtracts", "results['a-b']"),
        ("results.a-b-1.changed and true", "`results.a-b-1`", "results['a-b-1']"),
        ("vars.x | qoute", "no filter `qoute`", "`quote`"),
        ("vars.x is defned", "no test `defned`", "`defined`"),
        ("chnged('a')", "no function `chnged`", "`changed`"),
        ("debug()", "no function `debug`", ""),
        ("changed and true", "is a function", "changed()"),
    ] {
        let found = expression_references(text).unwrap();
        assert!(found.unknown[0].message.contains(message), "{text}: {found:?}");
        assert!(found.unknown[0].help.contains(help), "{text}: {found:?}");
    }
    assert!(expression_references("results.a - vars.b").unwrap().unknown.is_empty());
    assert!(expression_references("a b").unwrap_err().offset().is_some());
}

#[test]
fn unquoted_outputs_are_found() {
    let unquoted = |text: &str| template_references(text).unwrap().unquoted.len();
    assert_eq!(unquoted("echo {{ vars.a | quote }} {{ vars.b|upper|quote }} {{ 'x' }}"), 0);
    assert_eq!(unquoted("echo {{ vars.a }} {{ vars.b | quote }} {{ vars.a ~ vars.b }}"), 2);
    assert_eq!(unquoted("{{ vars.a | quote if vars.c else 'none' }}"), 0);
    assert_eq!(template_references("x {% y %}"), Err(ExprError::Statement { offset: 2 }));
}

#[test]
fn an_unset_result_takes_at_most_16_bytes() {
    assert!(std::mem::size_of::<std::sync::OnceLock<Arc<Finished>>>() <= 16);
}

fn guards() -> impl Strategy<Value = Guard> {
    let texts =
        ["true", "false", "1", "vars.n == 3", "nope", "results.a.data.n", "changed()", "(", "failed('p')"];
    let leaf = prop_oneof![
        prop::sample::select(texts.to_vec()).prop_map(guard),
        ".{0,20}".prop_map(|text| guard(&text)),
        any::<u32>().prop_map(|number| Guard::Function { label: "f".to_owned(), number }),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Guard::All),
            prop::collection::vec(inner.clone(), 0..4).prop_map(Guard::Any),
            inner.prop_map(|guard| Guard::Not(Box::new(guard))),
        ]
    })
}

proptest! {
    #[test]
    fn judging_never_panics_and_a_false_guard_always_has_a_reason(guards in prop::collection::vec(guards(), 0..4)) {
        let functions = |number: u32| if number.is_multiple_of(3) { Err("odd".to_owned()) } else { Ok(number.is_multiple_of(2)) };
        if let Verdict::Fail { reason, .. } = judge(&guards, OnlyIfChanged::No, &scope(), &functions) {
            prop_assert!(!reason.is_empty());
        }
    }

    #[test]
    fn references_never_panic(text in "\\PC{0,60}", pieces in prop::collection::vec(
        prop::sample::select(vec!["{{", "}}", "{%", "%}", "vars", ".", "a", "-", "[", "]", "(", ")", "'", "|", "quote",
            " ", "if", "else", "~", "results", "1", "é", "\n", "\"", "\\", "is", "not", ",", ":", "**", "//"]), 0..30)) {
        for text in [text, pieces.concat()] {
            for found in [expression_references(&text), template_references(&text)] {
                if let Err(error) = found && let Some(offset) = error.offset() {
                    prop_assert!(offset <= text.len());
                }
            }
            let _value = evaluate_text(&text, &scope());
            let _value = render(&text, &scope());
        }
    }
}

fn names_with_facts(facts: &Arc<HostFacts>) -> Scope {
    let results = results();
    let run = RunScope {
        id: None,
        plan: PlanName::parse("web").unwrap(),
        started_at: Timestamp::from_micros(0),
        segment: 1,
        dry_run: false,
    };
    let index = results.graph().index_of("t").unwrap();
    let names = Names::new(Arc::clone(&results), run, None).with_facts(Arc::clone(facts));
    Scope::new(Arc::new(names), Some(index)).on_host(&HostScope {
        name: HostName::parse("h1").unwrap(),
        index: 0,
        labels: BTreeMap::new(),
    })
}

#[test]
fn facts_are_wanted_before_they_are_known_and_there_afterwards() {
    let host = |name: &str| HostName::parse(name).unwrap();
    let facts = Arc::new(HostFacts::new(["h1", "h2", "local"].map(host).into_iter().collect()));
    let scope = names_with_facts(&facts);
    for (text, wanted) in [
        ("fact.os.family == 'debian'", vec!["h1"]),
        ("facts['h2'].arch", vec!["h2"]),
        ("facts.h1.arch ~ facts.h2.arch", vec!["h1"]),
        ("fact is defined or true", vec!["h1"]),
        ("facts | length", vec!["h1", "h2", "local"]),
        ("facts['ops@10.0.0.9'].arch", vec!["ops@10.0.0.9"]),
    ] {
        let error = evaluate_text(text, &scope).unwrap_err();
        assert!(matches!(&error, ExprError::FactsWanted { .. }), "{text}: {error:?}");
        let found: Vec<String> = scope.take_wanted().iter().map(ToString::to_string).collect();
        assert_eq!(found, wanted, "{text}");
    }
    assert!(matches!(render("on {{ fact.arch }}", &scope), Err(ExprError::FactsWanted { .. })));
    assert_eq!(scope.clone().take_wanted().len(), 1, "clones share what is wanted");

    facts.learn(&host("h1"), &json!({"os": {"family": "debian"}, "arch": "x86_64"}));
    facts.learn(&host("h1"), &json!({"arch": "changed"}));
    facts.learn(&host("h2"), &json!({"arch": "aarch64"}));
    for (text, value) in [
        ("fact.os.family == 'debian'", json!(true)),
        ("facts['h2'].arch ~ facts.h1.arch", json!("aarch64x86_64")),
        ("'h2' in facts", json!(true)),
    ] {
        assert_eq!(evaluate_text(text, &scope), Ok(value), "{text}");
    }
    assert!(scope.take_wanted().is_empty());
    let error = evaluate_text("facts['h3'].arch", &scope).unwrap_err().to_string();
    assert!(error.contains("no host `h3`") && error.contains("did you mean"), "{error}");
    assert!(matches!(evaluate_text("fact.nope", &scope), Err(ExprError::Undefined { .. })));
}

#[test]
fn names_that_travelled_as_data_render_as_at_home() {
    let vars = std::collections::BTreeMap::from([("a".to_owned(), serde_json::json!({"b": [1, 2]}))]);
    let env = std::collections::BTreeMap::from([("E".to_owned(), "e".to_owned())]);
    let host = HostScope {
        name: stead_model::HostName::parse("web1").unwrap(),
        index: 3,
        labels: std::collections::BTreeMap::from([("role".to_owned(), "web".to_owned())]),
    };
    let home = Scope::before_run(&vars, &env).on_host(&host).with_item("k", &serde_json::json!("v"));
    let away =
        Scope::of_names(serde_json::from_str(&serde_json::to_string(&home.to_names()).unwrap()).unwrap());
    let own = serde_json::json!({"own": true});
    let own = own.as_object().unwrap();
    for template in [
        "{{ vars.a.b[1] }} {{ host.name }} {{ host.labels.role }} {{ item.value }} {{ env.E }}",
        "{{ vars.own }}",
    ] {
        let there = render_text(template, own, &away).unwrap();
        assert_eq!(there, render_text(template, own, &home).unwrap(), "{template}");
    }
    assert!(matches!(render_text("{{ results.x }}", own, &away), Err(ExprError::Undefined { .. })));
}

/// Found by the fuzzer: a control character before `#` or `%` began a comment or a statement.
#[test]
fn control_characters_are_text() {
    let scope = Scope::before_run(&BTreeMap::from([("n".to_owned(), json!(3))]), &BTreeMap::new());
    for text in ["a \u{1}# b", "\u{1}% if", "x\u{1}#\u{1}"] {
        assert_eq!(render(text, &scope).unwrap(), json!(text));
        assert_eq!(render(&format!("{text} {{{{ vars.n }}}}"), &scope).unwrap(), json!(format!("{text} 3")));
    }
}

//! Values of variables: who wins, what types, what uses what.

use serde_json::json;
use stead_model::diagnostic::Source;

use super::*;

fn resolve_with(head: &str, inputs: &Inputs) -> (Resolved, Vec<String>) {
    let text = format!("api_version: v1\nname: p\ntasks: []\n{head}");
    let mut diagnostics = Diagnostics::default();
    let file =
        PlanFile::read(&Source { name: "plan.yaml".into(), text: text.into() }, &mut diagnostics).unwrap();
    let resolved = resolve((&file).into(), inputs, &mut diagnostics);
    (resolved, diagnostics.iter().map(ToString::to_string).collect())
}

fn flags(flags: &[&str]) -> Inputs {
    Inputs { vars: flags.iter().map(|flag| VarFlag::parse(flag).unwrap()).collect(), ..Inputs::default() }
}

fn value(head: &str, given: &[&str], name: &str) -> Value {
    let (resolved, problems) = resolve_with(head, &flags(given));
    assert_eq!(problems, Vec::<String>::new());
    resolved.vars[name].clone()
}

#[test]
fn flags_win_over_files_and_files_over_the_plan() {
    let file = |name: &str, text: &str| Source { name: name.into(), text: text.into() };
    let inputs = Inputs {
        vars_files: vec![file("a.yaml", "a: 1\nb: 1\nc: '{{ vars.d }}!'\n"), file("b.yaml", "b: 2\n")],
        ..flags(&["b=3", "b=4"])
    };
    let (resolved, problems) = resolve_with("vars: {a: 0, b: 0, c: x, d: y}\n", &inputs);
    assert_eq!(problems, Vec::<String>::new());
    assert_eq!(serde_json::to_value(resolved.vars).unwrap(), json!({"a": 1, "b": 4, "c": "y!", "d": "y"}));
}

#[test]
fn a_flag_is_parsed_to_the_type_of_the_default() {
    let head = "vars: {s: x, n: 1, b: true, l: [a], m: {a: 1}, z: null, t: '{{ vars.n }}'}\n";
    let z = "z=0";
    for (flag, name, expected) in [
        ("s=1", "s", json!("1")),
        ("s={{ vars.n }}", "s", json!("{{ vars.n }}")),
        ("s=a=b", "s", json!("a=b")),
        ("n=2", "n", json!(2)),
        ("n=2.5", "n", json!(2.5)),
        ("b=false", "b", json!(false)),
        ("l=[1, 2]", "l", json!([1, 2])),
        ("m:={\"x\": 1}", "m", json!({"x": 1})),
        ("z=007", "z", json!("007")),
        ("z:=7", "z", json!(7)),
        ("z:=null", "z", json!(null)),
        ("t=5", "t", json!(5)),
        ("t=word", "t", json!("word")),
    ] {
        assert_eq!(value(head, &[z, flag], name), expected, "{flag}");
    }
}

#[test]
fn wrong_flags_are_named_with_what_is_possible() {
    let inputs = flags(&["start=yes", "n=x", "l=a", "strat=1", "s:=1"]);
    let (_, problems) = resolve_with("vars: {start: true, n: 1, l: [], s: x}\n", &inputs);
    insta::assert_snapshot!(problems.join("\n"));
    for bad in ["x", "=1", ":=1", "a:={"] {
        assert!(VarFlag::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn problems_of_flags_are_usage_and_those_of_files_are_not() {
    let file = Source { name: "v.yaml".into(), text: "m: 1\nn: text\n".into() };
    let inputs = Inputs { vars_files: vec![file], ..flags(&["x=1"]) };
    let text = "api_version: v1\nname: p\ntasks: []\nvars: {n: 1}\n";
    let mut diagnostics = Diagnostics::default();
    let plan =
        PlanFile::read(&Source { name: "plan.yaml".into(), text: text.into() }, &mut diagnostics).unwrap();
    resolve((&plan).into(), &inputs, &mut diagnostics);
    let usage: Vec<bool> = diagnostics.iter().map(is_usage).collect();
    assert_eq!(usage, [false, false, true]);
    assert_eq!(
        diagnostics.0[0].to_string(),
        "error[plan/undeclared]: v.yaml:1:1: there is no variable `m` (help: did you mean `n`?)"
    );
}

#[test]
fn what_must_be_given_is_asked_for() {
    let (resolved, problems) =
        resolve_with("vars: {ticket: null, t: 'T-{{ vars.ticket }}'}\nenv: [NOPE]\n", &Inputs::default());
    assert_eq!(
        problems,
        [
            "error[plan/missing-var]: plan.yaml:5:7: the environment variable `NOPE` is not set (help: set it, or take it out of `env`)",
            "error[plan/missing-var]: plan.yaml:4:16: the variable `ticket` must be given (help: add `--var ticket=…`)",
        ]
    );
    assert_eq!(resolved.broken_vars.into_iter().collect::<Vec<_>>(), ["t", "ticket"]);
}

#[test]
fn variables_use_variables_and_keep_types() {
    let head = "vars: {c: '{{ vars.b }}', b: '{{ vars.a }}', a: [1, {x: '{{ vars.n + 1 }}'}], n: 1, u: '{{ env.WHO }}/{{ vars.n }}'}\nenv: [WHO]\n";
    let inputs = Inputs { env: BTreeMap::from([("WHO".to_owned(), "me".to_owned())]), ..flags(&["n=5"]) };
    let (resolved, problems) = resolve_with(head, &inputs);
    assert_eq!(problems, Vec::<String>::new());
    assert_eq!(resolved.vars["c"], json!([1, {"x": 6}]));
    assert_eq!(resolved.vars["u"], json!("me/5"));
}

#[test]
fn variables_that_cannot_be_known_are_refused() {
    let mut shown = Vec::new();
    for head in [
        "vars: {a: '{{ vars.b }}', b: 'x{{ vars.c }}', c: ['{{ vars.a }}'], d: '{{ vars.a }}'}",
        "vars: {a: '{{ vars.a }}'}",
        "vars: {a: '{{ vars.bb }}', b: 1}",
        "vars: {a: '{{ env.HOME }}'}",
        "vars: {a: '{{ results.x }}'}",
        "vars: {a: '{{ vars[vars.b] }}', b: c}",
        "vars: {a: '{{ vars.b.c }}', b: {}}",
        "vars: {a: '{{ nope( }}'}",
        "vars: {a: '{% if x %}y{% endif %}'}",
    ] {
        let (_, problems) = resolve_with(&format!("{head}\n"), &Inputs::default());
        shown.push(format!("{head}\n    {}", problems.join("\n    ")));
    }
    insta::assert_snapshot!(shown.join("\n"));
}

#[test]
fn a_long_chain_of_variables_needs_no_stack() {
    let mut head = "vars:\n  v0: 1\n".to_owned();
    for i in 1..20_000 {
        head.push_str(&format!("  v{i}: '{{{{ vars.v{} }}}}'\n", i - 1));
    }
    assert_eq!(value(&head, &[], "v19999"), json!(1));
}

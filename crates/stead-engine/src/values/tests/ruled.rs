//! Rules, gates and requirements.

use super::*;

fn fine() -> World {
    World::cluster().file("config.env", "BASE_DOMAIN=lab.test\n")
}

/// Case 4: from a file, the environment and `--set`, with value and source.
#[test]
fn a_bool_is_exactly_true_or_false_wherever_it_comes_from() {
    let file = World::cluster().file("config.env", "BASE_DOMAIN=x\nFEAT_VERIFY=banana\n");
    assert_eq!(
        file.errors(),
        [
            "value/rule config.env:2: `FEAT_VERIFY` is `banana` (from config.env:2) and must be `true` or `false`"
        ]
    );
    assert_eq!(
        fine().env("FEAT_VERIFY", "banana").errors(),
        [
            "value/rule environment variable FEAT_VERIFY: `FEAT_VERIFY` is `banana` (from environment) and must be `true` or `false`"
        ]
    );
    assert_eq!(
        fine().set("FEAT_VERIFY", "banana").errors(),
        [
            "value/rule --set FEAT_VERIFY: `FEAT_VERIFY` is `banana` (from --set) and must be `true` or `false`"
        ]
    );
    for (name, value) in
        [("DRY_RUN", "yes"), ("PROFILE_EXCLUSIVE", "maybe"), ("FEAT_VERIFY", "True"), ("FEAT_VERIFY", "1")]
    {
        let errors = fine().env(name, value).errors();
        assert_eq!(errors.len(), 1, "{errors:?}");
        for words in [name, &format!("`{value}`"), "environment"] {
            assert!(errors[0].contains(words), "{errors:?}");
        }
    }
}

#[test]
fn every_rule_is_checked() {
    let rules = "vars:\n  I: { type: int, min: 2, max: 5 }\n  E: { enum: [a, b] }\n  L: { length: [2, 4] }\n  N: { min_length: 3 }\n  X: { max_length: 3 }\n  P: { pattern: \"[a-z]+|x1\" }\n  B: { type: bool }\n  C: { type: int, enum: [1, 3] }";
    let problems = |line: &str| World::of_vars(rules).file("low.env", line).errors();
    for line in [
        "I=2", "I=5", "E=a", "L=ab", "L=abcd", "N=abc", "X=abc", "P=abc", "P=x1", "B=true", "I=", "E=", "L=",
        "N=", "P=", "B=", "X=ü", "C=3",
    ] {
        assert_eq!(problems(line), Vec::<String>::new(), "{line}");
    }
    for (line, rule) in [
        ("I=1", "be at least 2"),
        ("I=6", "be at most 5"),
        ("I=x", "be a whole number"),
        ("I=+3", "be a whole number"),
        ("I=3.0", "be a whole number"),
        ("I=99999999999999999999", "be a whole number"),
        ("E=c", "be one of: a, b"),
        ("L=abc", "have 2 or 4 bytes"),
        ("L=üü1", "have 2 or 4 bytes"),
        ("N=ab", "have at least 3 bytes"),
        ("X=abcd", "have at most 3 bytes"),
        ("X=üü", "have at most 3 bytes"),
        ("P=abc1", "fit the pattern `[a-z]+|x1` as a whole"),
        ("P=\"abc\n\"", "fit the pattern `[a-z]+|x1` as a whole"),
        ("B=yes", "be `true` or `false`"),
        ("C=2", "be one of: 1, 3"),
    ] {
        let found = problems(line);
        assert_eq!(found.len(), 1, "{line}: {found:?}");
        assert!(
            found[0].starts_with("value/rule low.env:1: ") && found[0].ends_with(&format!("must {rule}")),
            "{found:?}"
        );
    }
}

#[test]
fn rules_hold_for_expanded_values_and_for_defaults_too() {
    let world = World::of_vars("vars: { N: { type: int, default: \"${M}0\" } }").file("low.env", "M=x\n");
    assert_eq!(
        world.errors(),
        ["value/rule steps.yaml:5: `N` is `x0` (from default) and must be a whole number"]
    );
    let world = World::of_vars("vars: { N: { type: int, default: \"${M}0\" } }").file("low.env", "M=1\n");
    assert_eq!(shown(&world.values(), "N"), "10 <- default");
}

#[test]
fn all_rules_that_all_values_break_are_told_of_at_once() {
    let world = World::cluster()
        .file("config.env", "BASE_DOMAIN=A_B\nTIMEOUT_SECS=0\nINGRESS_PROVIDER=apache\nFEAT_CILIUM=1\n");
    assert_eq!(world.errors().len(), 4, "{:?}", world.errors());
}

#[test]
fn gates_are_judged_with_what_decided_them() {
    let gates = [
        ("A", true, "A: true from low.env:1"),
        ("!A", false, "!A: A is true from low.env:1"),
        ("B", false, "B: false from default"),
        ("U", false, "U: unset"),
        ("A && B", false, "A && B: B is false from default"),
        ("A && !B", true, "A && !B: A is true from low.env:1, B is false from default"),
        ("A || B", true, "A || B: A is true from low.env:1"),
        ("B || U", false, "B || U: B is false from default, U is unset"),
        ("(A || B) && (B || U)", false, "(A || B) && (B || U): B is false from default, U is unset"),
        ("W == traefik", true, "W == traefik: W is traefik from low.env:2"),
        ("W != traefik", false, "W != traefik: W is traefik from low.env:2"),
        ("V == x", false, "V == x: V is unset"),
        ("V != x", true, "V != x: V is unset"),
        ("E != x", true, "E != x: E is empty from low.env:3"),
        ("A && A && A", true, "A && A && A: A is true from low.env:1"),
        ("S == hunter2", true, "S == hunter2: S is *** from low.env:4"),
    ];
    let steps: Vec<String> = gates
        .iter()
        .enumerate()
        .map(|(i, (gate, ..))| format!("  s{i}: {{ run: x{i}.sh, gate: \"{gate}\" }}\n"))
        .collect();
    let ids: Vec<String> = (0..gates.len()).map(|i| format!("s{i}")).collect();
    let world = World::new(&format!(
        "api_version: v1\nname: gates\nlayers: [{{ file: low.env }}]\nvars: {{ A: {{ type: bool }}, B: {{ type: bool, default: false }}, U: {{ type: bool }}, W: {{}}, V: {{}}, E: {{}}, S: {{ secret: true }} }}\nsteps:\n{}apply: [{{ steps: [{}] }}]\n",
        steps.concat(),
        ids.join(", ")
    ))
    .file("low.env", "A=true\nW=traefik\nE=\nS=hunter2\n");
    let values = world.values();
    for (i, (text, holds, reason)) in gates.iter().enumerate() {
        let gate = world.catalogue.steps[format!("s{i}").as_str()].gate.as_ref().unwrap();
        let verdict = values.judge(gate);
        assert_eq!((verdict.holds, verdict.reason(gate).as_str()), (*holds, *reason), "{text}");
    }
}

fn required(world: &World, selected: &[&str]) -> Vec<String> {
    let mut diagnostics = Diagnostics::default();
    require(&world.catalogue, &world.values(), &steps(selected), &mut diagnostics);
    told(&diagnostics, Severity::Error)
}

#[test]
fn a_required_value_must_be_there_while_its_gate_holds_and_its_step_is_selected() {
    let bare = World::cluster();
    assert_eq!(
        required(&bare, &["access"]),
        ["value/required steps.yaml:16: `BASE_DOMAIN` has no value, and it is required"]
    );
    assert_eq!(required(&World::cluster().file("config.env", "BASE_DOMAIN=\n"), &[]).len(), 1);
    assert_eq!(required(&fine(), &["access"]), Vec::<String>::new());
    assert_eq!(
        required(&fine(), &["config-inputs"]),
        [
            "value/required steps.yaml:24: `OIDC_CLIENT_SECRET` has no value, and it is required for the step `config-inputs` while FEAT_OAUTH2_PROXY: true from default"
        ]
    );
    assert_eq!(required(&fine().set("FEAT_OAUTH2_PROXY", "false"), &["config-inputs"]), Vec::<String>::new());
    assert_eq!(required(&bare, &["config-inputs"]).len(), 2);
}

#[test]
fn a_required_value_says_where_to_set_it() {
    let mut diagnostics = Diagnostics::default();
    let world = World::cluster();
    require(&world.catalogue, &world.values(), &steps(&["config-inputs"]), &mut diagnostics);
    assert_eq!(
        diagnostics.0[0].help,
        "set it: `BASE_DOMAIN=…` in profiles/local.env, or `--set BASE_DOMAIN=…`"
    );
    assert_eq!(diagnostics.0[1].help, "set it: `OIDC_CLIENT_SECRET=…` in profiles/secrets.env");
}

#[test]
fn a_broken_value_is_not_required_as_well() {
    let world = World::cluster().file("config.env", "BASE_DOMAIN=$NOBODY\n");
    let resolved = world.resolve();
    let mut diagnostics = Diagnostics::default();
    require(&world.catalogue, &resolved.values, &steps(&["access"]), &mut diagnostics);
    assert!(diagnostics.0.is_empty(), "{diagnostics}");
}

//! What is secret, and that it is shown nowhere.

use super::*;

fn is_secret(world: &World, name: &str) -> bool {
    world.values().get(name).unwrap().secret
}

#[test]
fn declared_secrets_are_secret_from_every_source() {
    let world = World::of_vars("vars: { S: { secret: true, default: default, env: true } }");
    assert!(is_secret(&world, "S"));
    let world = world.file("low.env", "S=from-file\n");
    assert!(is_secret(&world, "S"));
    let world = world.env("S", "from-env");
    assert!(is_secret(&world, "S"));
    assert!(is_secret(&world.set("S", "from-flag"), "S"));
}

#[test]
fn a_secret_layer_makes_values_secret_unless_they_are_bool_int_or_enum() {
    let world = World::of_vars("controls: { G: { type: bool }, H: { enum: [one, two] } }\nvars: { T: {}, B: { type: bool }, I: { type: int }, E: { enum: [x, y] } }")
        .file("secrets.env", "T=text\nB=true\nI=1\nE=x\nG=true\nUNKNOWN=text\n");
    for (name, expected) in
        [("T", true), ("UNKNOWN", true), ("B", false), ("I", false), ("E", false), ("G", false)]
    {
        assert_eq!(is_secret(&world, name), expected, "{name}");
    }
    assert!(!is_secret(&world.set("T", "text"), "T"));
}

#[test]
fn what_a_key_of_inputs_takes_is_secret() {
    let world = World::cluster().file("config.env", "BASE_DOMAIN=x\nOAUTH_COOKIE_SECRET=0123456789abcdef\n");
    assert!(is_secret(&world, "OAUTH_COOKIE_SECRET"));
}

#[test]
fn what_expands_a_secret_is_secret() {
    let world = World::of_vars("vars: { S: { secret: true }, N: { type: int } }")
        .file("low.env", "S=geheim\nURL=https://$S@host\nOVER=\"<$URL>\"\nUNUSED=${PLAIN:-$S}\nPLAIN=plain\nUSED=${NOBODY:-$S}\n");
    for (name, expected) in
        [("URL", true), ("OVER", true), ("USED", true), ("UNUSED", false), ("PLAIN", false)]
    {
        assert_eq!(is_secret(&world, name), expected, "{name}");
    }
    let world = World::of_vars("").file("low.env", "T=low\n").file("secrets.env", "T=high\n");
    assert!(is_secret(&world, "T"));
    let world = World::of_vars("").file("secrets.env", "X=secret\n").file("low.env", "Y=${X}\n");
    assert!(is_secret(&world, "Y"));
    let below = World::of_vars("vars: { T: { default: \"$S\" }, S: { secret: true, default: geheim } }")
        .file("high.env", "T=${T}:more\n");
    assert!(is_secret(&below, "T"));
}

#[test]
fn a_short_secret_is_refused_with_its_length_only() {
    let world = World::of_vars("vars: { S: { secret: true } }").file("low.env", "S=q7z\n");
    let found = world.resolve().diagnostics;
    assert_eq!(
        told(&found, Severity::Error),
        ["value/short-secret low.env:1: `S` (3 bytes, from low.env:1) is a secret of less than 4 bytes"]
    );
    assert!(!found.render(false).contains("q7z"));
    assert!(World::of_vars("vars: { S: { secret: true } }").file("low.env", "S=q7zx\n").errors().is_empty());
    assert!(World::of_vars("vars: { S: { secret: true } }").file("low.env", "S=\n").errors().is_empty());
}

#[test]
fn a_secret_set_by_flag_works_and_warns() {
    let world = World::of_vars("vars: { S: { secret: true } }").set("S", "geheim");
    assert_eq!(shown(&world.values(), "S"), "geheim <- --set");
    let warnings = world.warnings();
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].starts_with("value/visible-secret --set S: ") && !warnings[0].contains("geheim"),
        "{warnings:?}"
    );
}

/// Everything that can be wrong with a secret, with nothing of it in what is shown.
#[test]
fn no_problem_and_no_form_shows_a_secret() {
    let vars = "vars:\n  S: { secret: true, pattern: x, length: [1], type: string, min_length: 90 }\n  D: { secret: true, type: int, default: hunter2 }\n  E: { secret: true, enum: [a, b] }\n  T: { default: \"$S\" }\n  R: { secret: true, required: true, when: S == nothing }";
    let world = World::of_vars(vars)
        .file(
            "low.env",
            "S=hunter2\nE=hunter2\nU=hunter2${NOBODY}$S\nC1=hunter2$C2$S\nC2=hunter2$C1\nT=${T}hunter2\n",
        )
        .file("secrets.env", "ONLY=hunter2\nSTEAD_X=hunter2\nV=hunter2${NOBODY}\nLONG=hunter2${S}\n")
        .env("S", "hunter2-env")
        .env("R", "hunter2-env");
    let resolved = world.resolve();
    assert!(resolved.diagnostics.iter().count() > 8, "{}", resolved.diagnostics);
    let mut shown = vec![
        resolved.diagnostics.to_string(),
        resolved.diagnostics.render(false),
        format!("{:?}", resolved.values),
        format!("{:?}", resolved.values.config()),
    ];
    shown.extend(resolved.diagnostics.iter().map(|problem| problem.to_json().to_string()));
    for key in ["S", "D", "E", "T", "R", "V", "LONG"] {
        let explanation = resolved.values.explain(key).unwrap();
        shown.push(explanation.text());
        shown.push(serde_json::to_string(&explanation).unwrap());
    }
    for text in shown {
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[test]
fn the_line_of_an_open_value_is_shown_and_that_of_a_secret_is_not() {
    let world = World::of_vars("vars: { O: { type: int }, S: { secret: true, length: [5] } }")
        .file("low.env", "O=banana\nS=geheim  # old\n");
    let text = world.resolve().diagnostics.render(false);
    assert!(text.contains("O=banana"), "{text}");
    assert!(text.contains("S=******"), "{text}");
    assert!(!text.contains("geheim"), "{text}");
}

//! What is shown of values: the configuration and explanations.

use proptest::prelude::*;

use super::*;

#[test]
fn the_configuration_has_every_name_with_a_value_sorted_and_secrets_starred() {
    let world = World::of_vars(
        "controls: { DRY_RUN: {} }\nvars: { B: { default: b }, S: { secret: true }, NONE: {} }",
    )
    .file("low.env", "Z=\"a\nb\"\nS=geheim\nEMPTY=\n")
    .set("FLAG", "f");
    let rows: Vec<String> = world
        .values()
        .config()
        .iter()
        .map(|row| format!("{}={:?} {} {}", row.key, row.value, row.secret, row.source))
        .collect();
    assert_eq!(
        rows,
        [
            "B=\"b\" false default",
            "EMPTY=\"\" false low.env:4",
            "FLAG=\"f\" false --set",
            "S=\"***\" true low.env:3",
            "Z=\"a\\nb\" false low.env:1",
        ]
    );
    let json = serde_json::to_value(world.values().config()).unwrap();
    assert_eq!(json[0], serde_json::json!({"key": "B", "value": "b", "secret": false, "source": "default"}));
}

#[test]
fn an_explanation_has_a_row_per_source() {
    let world = World::of_vars("vars: { HOST: { default: \"${NAME}.default\" }, NAME: { default: lab } }")
        .file("low.env", "HOST=$NAME.low\nURL=https://$HOST\n")
        .file("high.env", "\nHOST=${HOST}.high\n")
        .env("HOST", "ignored");
    let explanation = world.values().explain("HOST").unwrap();
    assert_eq!(
        serde_json::to_value(&explanation).unwrap(),
        serde_json::json!({
            "schema": 1, "key": "HOST", "value": "lab.low.high", "secret": false, "declared": true, "winner": "high.env:2",
            "layers": [
                {"layer": "default", "state": "set", "line": null, "raw": "${NAME}.default", "value": "lab.default", "wins": false},
                {"layer": "low.env", "state": "set", "line": 1, "raw": "$NAME.low", "value": "lab.low", "wins": false},
                {"layer": "high.env", "state": "set", "line": 2, "raw": "${HOST}.high", "value": "lab.low.high", "wins": true},
                {"layer": "secrets.env", "state": "missing", "line": null, "raw": null, "value": null, "wins": false},
                {"layer": "environment", "state": "ignored", "line": null, "raw": "ignored", "value": "ignored", "wins": false},
                {"layer": "--set", "state": "unset", "line": null, "raw": null, "value": null, "wins": false},
            ],
            "references": ["HOST"], "referenced_by": ["URL"],
        })
    );
    insta::assert_snapshot!(explanation.text(), @r"
    HOST=lab.low.high  # high.env:2
      default      set      ${NAME}.default  ->  lab.default
      low.env      set      line 1  $NAME.low  ->  lab.low
    * high.env     set      line 2  ${HOST}.high  ->  lab.low.high
      secrets.env  missing
      environment  ignored  ignored
      --set        unset
    refers to: HOST
    referred to by: URL
    ");
}

#[test]
fn an_explanation_of_a_secret_is_stars() {
    let world = World::of_vars("vars: { S: { secret: true, default: d4fault } }")
        .file("low.env", "S=geheim\n")
        .env("S", "held-secret");
    let explanation = world.values().explain("S").unwrap();
    assert_eq!((explanation.value.as_deref(), explanation.secret), (Some("***"), true));
    insta::assert_snapshot!(explanation.text(), @r"
    S=***  # low.env:1
      default      set      ***
    * low.env      set      line 1  ***
      high.env     missing
      secrets.env  missing
      environment  ignored  ***
      --set        unset
    ");
}

#[test]
fn what_the_environment_gives_is_told_apart_from_what_is_ignored() {
    let state = |world: &World, key: &str| {
        let explanation = world.values().explain(key).unwrap();
        explanation.layers.iter().find(|row| row.layer == "environment").unwrap().state
    };
    let world = World::of_vars("vars: { A: {}, E: { env: true } }")
        .file("low.env", "A=x\nPATH=$PATH:/opt\n")
        .env("A", "y")
        .env("E", "z")
        .env("PATH", "/bin");
    assert_eq!(state(&world, "A"), RowState::Ignored);
    assert_eq!(state(&world, "E"), RowState::Set);
    assert_eq!(state(&world, "PATH"), RowState::Set);
    assert_eq!(state(&World::of_vars("vars: { A: {} }").env("A", ""), "A"), RowState::Unset);
}

#[test]
fn a_name_without_a_value_has_no_winner() {
    let explanation = World::of_vars("vars: { A: {} }").values().explain("A").unwrap();
    assert_eq!((explanation.winner, explanation.value), (None, None));
    assert!(explanation.layers.iter().all(|row| !row.wins));
}

#[test]
fn an_unknown_key_has_no_explanation_and_the_nearest_is_named() {
    let values = World::of_vars("vars: { BASE_DOMAIN: {} }").env("HOME", "/").values();
    assert_eq!(values.explain("HOME"), None);
    assert_eq!(values.explain("BASE_DOMAN"), None);
    let problem = values.unknown_key("BASE_DOMAN");
    assert_eq!((problem.code, problem.help.as_str()), ("steps/unknown-key", "did you mean `BASE_DOMAIN`?"));
}

#[test]
fn debug_shows_no_secret_and_no_environment() {
    let world = World::of_vars("vars: { S: { secret: true } }")
        .file("low.env", "S=geheim\nO=open\n")
        .env("HOME", "/home/me");
    let text = format!("{:?}", world.values());
    assert_eq!(text, r#"{"O": "open" from low.env:2, "S": "***" from low.env:1}"#);
}

proptest! {
    /// Whatever the layers hold, nothing panics, and what is explained is what counts.
    #[test]
    fn explanations_agree_with_the_values_of_any_layers(
        low in "([A-D]=([a-z]|[$][A-E]|[$][{][A-E]:-[$]?[A-E][}]|\"[$]A b\"){0,3}\n){0,6}",
        high in "([A-D]=([a-z]|[$][A-E]|[$][{][A-E]:-[$]?[A-E][}]){0,3}\n){0,4}",
        held in "[a-z]{0,2}",
    ) {
        let world = World::of_vars("vars: { A: { default: \"$B\" }, B: { env: true }, C: { secret: true } }")
            .file("low.env", &low)
            .file("high.env", &high)
            .env("B", &held)
            .env("E", &held);
        let Resolved { values, diagnostics } = world.resolve();
        for key in ["A", "B", "C", "D", "E"] {
            let explained = values.explain(key);
            prop_assert_eq!(explained.is_some(), values.get(key).is_some() || values.is_broken(key) || "ABC".contains(key));
            let Some(explained) = explained else { continue };
            let effective = values.get(key);
            prop_assert_eq!(explained.value.as_deref(), effective.map(Effective::shown));
            let winner = explained.layers.iter().find(|row| row.wins);
            prop_assert_eq!(winner.and_then(|row| row.value.as_deref()), effective.map(Effective::shown));
            prop_assert!(effective.is_some() || !values.is_broken(key) || diagnostics.has_errors());
        }
    }
}

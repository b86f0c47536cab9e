//! References, after merging.

use super::*;

#[test]
fn a_low_layer_follows_what_a_high_layer_sets() {
    let world = World::of_vars("")
        .file("low.env", "OAUTH_HOST=oauth.${BASE_DOMAIN}\nBASE_DOMAIN=low\n")
        .file("high.env", "BASE_DOMAIN=high\n");
    assert_eq!(shown(&world.values(), "OAUTH_HOST"), "oauth.high <- low.env:1");
    assert_eq!(shown(&world.set("BASE_DOMAIN", "flag").values(), "OAUTH_HOST"), "oauth.flag <- low.env:1");
}

#[test]
fn defaults_are_expanded_and_set_and_environment_values_are_not() {
    let world = World::cluster().file("config.env", "BASE_DOMAIN=lab\n");
    assert_eq!(shown(&world.values(), "OAUTH_HOST"), "oauth.lab <- default");
    let world = world.env("LAB_STATE", "${BASE_DOMAIN}").set("OAUTH_HOST", "$BASE_DOMAIN");
    assert_eq!(shown(&world.values(), "LAB_STATE"), "${BASE_DOMAIN} <- environment");
    assert_eq!(shown(&world.values(), "OAUTH_HOST"), "$BASE_DOMAIN <- --set");
}

#[test]
fn a_reference_to_itself_means_the_value_from_below() {
    let world = World::of_vars("vars: { P: { default: d } }")
        .file("low.env", "P=${P}:low\nP=$P:again\n")
        .file("high.env", "Q=${P}\nP=${P}:high\n");
    assert_eq!(shown(&world.values(), "P"), "d:low:again:high <- high.env:2");
    assert_eq!(shown(&world.values(), "Q"), "d:low:again:high <- high.env:1");
    let world = World::of_vars("").file("low.env", "PATH=${PATH}:/opt/bin\n").env("PATH", "/bin");
    assert_eq!(shown(&world.values(), "PATH"), "/bin:/opt/bin <- low.env:1");
    let world = World::of_vars("vars: { P: {} }").file("low.env", "P=${P}x\nR=${R:-r}\n");
    assert_eq!(shown(&world.values(), "P"), "x <- low.env:1");
    assert_eq!(shown(&world.values(), "R"), "r <- low.env:2");
    let world = World::of_vars("").file("low.env", "PATH=${PATH}:/opt/bin\n");
    assert_eq!(
        world.errors(),
        ["value/undefined low.env:1: `PATH` is set in no layer and not in the environment"]
    );
}

#[test]
fn names_that_nobody_declares_or_sets_come_from_the_environment() {
    let world = World::of_vars("vars: { EMPTY: {} }")
        .file(
            "low.env",
            "A=${HOME}/x\nB=[${EMPTY}]\nC=${NOBODY:-none}\nD=${EMPTY:-filled}\nE=${BLANK:-${HOME}}\nBLANK=\n",
        )
        .env("HOME", "/home/me");
    let values = world.values();
    let found: Vec<String> =
        ["A", "B", "C", "D", "E"].iter().map(|name| values.get(name).unwrap().value.clone()).collect();
    assert_eq!(found, ["/home/me/x", "[]", "none", "filled", "/home/me"]);
    assert_eq!(shown(&values, "HOME"), "-");
}

#[test]
fn an_unknown_name_is_refused_with_its_line_and_what_to_write() {
    let world =
        World::of_vars("").file("low.env", "A=x\nB=\"$NOBODY\n${NOR_HE}$NOBODY\"\nC=$B\n").env("NOR_HE", "");
    let found = world.resolve().diagnostics;
    assert_eq!(
        told(&found, Severity::Error),
        [
            "value/undefined low.env:2: `NOBODY` is set in no layer and not in the environment",
            "value/undefined low.env:3: `NOR_HE` is set in no layer and not in the environment",
        ]
    );
    assert!(found.0[0].help.contains("`${NOBODY:-}`"), "{found}");
    let default = World::of_vars("vars: { A: { default: \"$NOBODY\" } }");
    assert_eq!(
        default.errors(),
        ["value/undefined steps.yaml:5: `NOBODY` is set in no layer and not in the environment"]
    );
}

#[test]
fn what_does_not_count_is_not_expanded() {
    let world = World::of_vars("")
        .file("low.env", "A=$NOBODY\nB=${C:-$NOBODY}\nC=c\nD=${C:-$D2}\nD2=$D\n")
        .file("high.env", "A=fine\n");
    assert_eq!(shown(&world.values(), "A"), "fine <- high.env:1");
    assert_eq!(shown(&world.values(), "B"), "c <- low.env:2");
    assert_eq!(shown(&world.values(), "D2"), "c <- low.env:5");
}

#[test]
fn cycles_print_the_chain() {
    let world =
        World::of_vars("").file("low.env", "A=$B\nB=${C}x\nD=$A\nE=fine\n").file("high.env", "C=$A\n");
    assert_eq!(
        world.errors(),
        [
            "value/cycle low.env:1: values refer to each other: A (low.env:1) -> B (low.env:2) -> C (high.env:1) -> A"
        ]
    );
    assert_eq!(shown(&world.resolve().values, "E"), "fine <- low.env:4");
    assert_eq!(shown(&world.resolve().values, "D"), "-");
    let through_below = World::of_vars("").file("low.env", "A=$B\nB=$A\n").file("high.env", "A=${A}x\n");
    assert_eq!(through_below.errors().len(), 1);
    let two = World::of_vars("").file("low.env", "A=$B$C\nB=$A\nC=$A\n");
    assert_eq!(two.errors().len(), 2, "{:?}", two.errors());
}

#[test]
fn a_bad_value_is_not_told_of_again_where_it_is_used() {
    let world = World::of_vars("").file("low.env", "A=$(x)\nB=$A\nC=${A:-x}$B\n");
    assert_eq!(world.errors().len(), 1, "{:?}", world.errors());
    assert_eq!(shown(&world.resolve().values, "C"), "-");
}

#[test]
fn deep_chains_and_long_ones_are_walked_without_recursion() {
    let mut text: String = (0..20_000).map(|i| format!("K{i}=${{K{}}}\n", i + 1)).collect();
    text.push_str("K20000=end\n");
    let world = World::of_vars("").file("low.env", &text);
    assert_eq!(shown(&world.values(), "K0"), "end <- low.env:1");
    let repeats: String = (0..2_000).map(|i| format!("P=$P$X{i}\nX{i}=x\n")).collect();
    let world = World::of_vars("vars: { P: {} }").file("low.env", &repeats);
    assert_eq!(world.values().get("P").unwrap().value.len(), 2_000);
}

#[test]
fn a_value_that_grows_without_end_is_refused() {
    let mut text = "A0=0123456789\n".to_owned();
    text.extend((1..60).map(|i| format!("A{i}=$A{0}$A{0}\n", i - 1)));
    let errors = World::of_vars("").file("low.env", &text).errors();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].starts_with("value/rule low.env:15: `A14` has more than 131072 bytes"), "{errors:?}");
}

#[test]
fn texts_of_the_catalogue_are_expanded() {
    let world = World::new(&CLUSTER.replace(
        "scripts/15_verify_cluster_access.sh }",
        "x.sh, args: { apply: ['--to=${LAB_STATE}/${OAUTH_HOST}', '$OIDC_CLIENT_ID', '$NOBODY', '$NOBODY ${NOR_HE}'] } }",
    ));
    let values = world.file("config.env", "BASE_DOMAIN=lab\n").profile("OIDC_CLIENT_ID=client\n").values();
    let step = &World::new(&CLUSTER.replace(
        "scripts/15_verify_cluster_access.sh }",
        "x.sh, args: { apply: ['--to=${LAB_STATE}/${OAUTH_HOST}', '$OIDC_CLIENT_ID', '$NOBODY', '$NOBODY ${NOR_HE}'] } }",
    ))
    .catalogue
    .steps["access"];
    let args = &step.args.apply;
    assert_eq!(values.expand(&args[0]), Ok(Expanded { text: "--to=.lab/oauth.lab".into(), secret: false }));
    assert_eq!(values.expand(&args[1]), Ok(Expanded { text: "client".into(), secret: true }));
    let one = values.expand(&args[2]).unwrap_err();
    assert_eq!((one.code, one.place.location().0), ("value/undefined", "steps.yaml"));
    assert!(
        values.expand(&args[3]).unwrap_err().message.starts_with("`NOBODY`, `NOR_HE` are set in no layer")
    );
}

/// Section 9: only what is written as an absolute path, or is one as a value, is one.
#[test]
fn an_empty_value_makes_no_absolute_path() {
    let values =
        World::of_vars("vars: { NONE: {}, HERE: { default: .lab }, ROOT: { default: /srv } }").values();
    let path = |text: &str| {
        let place = Place::Named("test".to_owned());
        let value = Text::parse(text, &place, &mut Diagnostics::default());
        values.expand_path(&At { value, place }).map(|expanded| expanded.text)
    };
    for (text, expected) in [
        ("/etc/x", "/etc/x"),
        ("${ROOT}/x", "/srv/x"),
        ("${NONE:-/var}/x", "/var/x"),
        ("${HERE}/x", ".lab/x"),
        ("${NONE}x", "x"),
    ] {
        assert_eq!(path(text).unwrap(), expected, "{text}");
    }
    for text in ["${NONE}/x", "${NONE}${ROOT}/x", "${NONE:-}/x", "${NONE:-${NONE}/y}/x"] {
        assert!(path(text).unwrap_err().message.contains("becomes an absolute path"), "{text}");
    }
}

//! Which source wins, what layers may not set, and what the environment may not do.

use super::*;

/// Case 7: one key in all four layers, the layers taken away from the top.
#[test]
fn the_highest_layer_wins_and_explain_agrees() {
    let mut world = World::cluster()
        .file("config.env", "# note\nBASE_DOMAIN=one\n")
        .file("profiles/local.env", "BASE_DOMAIN=two\n")
        .file("profiles/secrets.env", "\n\nBASE_DOMAIN=three\n")
        .profile("BASE_DOMAIN=four\n");
    let check = |world: &World, expected: &str, winner: &str| {
        let values = world.values();
        assert_eq!(shown(&values, "BASE_DOMAIN"), expected);
        let explanation = values.explain("BASE_DOMAIN").unwrap();
        assert_eq!(explanation.winner.as_ref().unwrap().to_string(), winner);
        let wins: Vec<&str> =
            explanation.layers.iter().filter(|row| row.wins).map(|row| row.layer.as_str()).collect();
        assert_eq!(wins, [winner.split(':').next().unwrap()]);
    };
    check(&world, "four <- my.env:1", "my.env:1");
    world.profile = None;
    check(&world, "three <- profiles/secrets.env:3", "profiles/secrets.env:3");
    world.files.remove("profiles/secrets.env");
    check(&world, "two <- profiles/local.env:1", "profiles/local.env:1");
    world.files.remove("profiles/local.env");
    check(&world, "one <- config.env:2", "config.env:2");
}

/// Case 7: `PROFILE_EXCLUSIVE=true` skips the layers between, from the environment and by `--set`.
#[test]
fn layers_are_skipped_while_their_unless_holds() {
    let world = World::cluster()
        .file("config.env", "BASE_DOMAIN=one\n")
        .file("profiles/local.env", "BASE_DOMAIN=two\n")
        .file("profiles/secrets.env", "BASE_DOMAIN=three\n");
    for world in
        [world.clone().env("PROFILE_EXCLUSIVE", "true"), world.clone().set("PROFILE_EXCLUSIVE", "true")]
    {
        let values = world.values();
        assert_eq!(shown(&values, "BASE_DOMAIN"), "one <- config.env:1");
        let states: Vec<&str> =
            values.explain("BASE_DOMAIN").unwrap().layers.iter().map(|row| row.state.as_str()).collect();
        assert_eq!(states, ["unset", "set", "skipped", "skipped", "unset", "unset", "unset"]);
    }
    assert_eq!(
        shown(&world.env("PROFILE_EXCLUSIVE", "false").values(), "BASE_DOMAIN"),
        "three <- profiles/secrets.env:1"
    );
}

#[test]
fn default_then_files_then_environment_then_set() {
    let world = World::cluster().file("config.env", "BASE_DOMAIN=x\nFEAT_VERIFY=true\n");
    assert_eq!(shown(&world.values(), "LAB_STATE"), ".lab <- default");
    let world = world.profile("LAB_STATE=file\nFEAT_VERIFY=false\n");
    assert_eq!(shown(&world.values(), "LAB_STATE"), "file <- my.env:1");
    assert_eq!(shown(&world.values(), "FEAT_VERIFY"), "false <- my.env:2");
    let world = world.env("LAB_STATE", "/env").env("FEAT_VERIFY", "true");
    assert_eq!(shown(&world.values(), "LAB_STATE"), "/env <- environment");
    assert_eq!(shown(&world.values(), "FEAT_VERIFY"), "true <- environment");
    let world = world.set("LAB_STATE", "first").set("LAB_STATE", "${BASE_DOMAIN} $(x)");
    assert_eq!(shown(&world.values(), "LAB_STATE"), "${BASE_DOMAIN} $(x) <- --set");
}

#[test]
fn an_empty_environment_value_is_absent_and_an_empty_file_value_is_set() {
    let world = World::cluster()
        .file("config.env", "BASE_DOMAIN=x\nLAB_STATE=\n")
        .env("LAB_STATE", "")
        .env("FEAT_VERIFY", "");
    assert_eq!(shown(&world.values(), "LAB_STATE"), " <- config.env:2");
    assert_eq!(shown(&world.values(), "FEAT_VERIFY"), "true <- default");
    assert_eq!(shown(&world.set("LAB_STATE", "").values(), "LAB_STATE"), " <- --set");
}

#[test]
fn the_last_line_of_a_file_wins() {
    let world = World::cluster().file("config.env", "BASE_DOMAIN=one\nBASE_DOMAIN=two\n");
    assert_eq!(shown(&world.values(), "BASE_DOMAIN"), "two <- config.env:2");
    let warnings = world.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("layer/duplicate config.env:2: "), "{warnings:?}");
}

/// Case 9: the file's value and a warning; `env: true` obeys; `--set` beats both.
#[test]
fn files_beat_an_environment_that_was_not_asked_for() {
    let file = "BASE_DOMAIN=lab.test\n";
    let world = World::cluster().file("config.env", file).env("BASE_DOMAIN", "x");
    assert_eq!(shown(&world.values(), "BASE_DOMAIN"), "lab.test <- config.env:1");
    let warnings = world.resolve().diagnostics;
    assert_eq!(warnings.0.len(), 1, "{warnings}");
    let text = warnings.to_string();
    for words in ["BASE_DOMAIN", "config.env:1", "env: true", "--set BASE_DOMAIN=…"] {
        assert!(text.contains(words), "{text}");
    }
    let declared = CLUSTER.replace("BASE_DOMAIN: { required", "BASE_DOMAIN: { env: true, required");
    let obeying = World::new(&declared).file("config.env", file).env("BASE_DOMAIN", "x");
    assert_eq!(shown(&obeying.values(), "BASE_DOMAIN"), "x <- environment");
    assert!(obeying.warnings().is_empty());
    for world in [world, obeying] {
        let world = world.set("BASE_DOMAIN", "y");
        assert_eq!(shown(&world.values(), "BASE_DOMAIN"), "y <- --set");
        assert!(world.warnings().is_empty());
    }
}

#[test]
fn the_environment_is_warned_of_only_where_it_differs_and_is_not_used() {
    let world = World::of_vars("vars: { A: {}, B: { default: b }, PATH: {} }")
        .file("low.env", "PATH=${PATH}:/opt/bin\nC=c\n")
        .env("PATH", "/bin")
        .env("B", "b")
        .env("UNRELATED", "x");
    assert!(world.warnings().is_empty(), "{:?}", world.warnings());
    let world = world.env("A", "held").env("B", "other").env("C", "other");
    let warnings = world.warnings();
    let names: Vec<bool> =
        ["`A`", "`B`", "`C`"].iter().map(|name| warnings.iter().any(|w| w.contains(name))).collect();
    assert_eq!((names, warnings.len()), (vec![true; 3], 3), "{warnings:?}");
    assert!(
        warnings.iter().all(|warning| !warning.contains("held") && !warning.contains("other")),
        "{warnings:?}"
    );
    assert_eq!(shown(&world.values(), "A"), "-");
}

/// Case 26: a catalogue that does not list `ONLY` says so.
#[test]
fn controls_that_are_not_read_draw_a_warning() {
    let world = World::of_vars("")
        .env("ONLY", "10")
        .env("DRY_RUN", "true")
        .env("PROFILE_EXCLUSIVE", "true")
        .env("PROFILE_FILE", "p");
    let warnings = world.warnings();
    for name in ["`ONLY`", "`DRY_RUN`", "`PROFILE_EXCLUSIVE`", "`PROFILE_FILE`"] {
        assert_eq!(warnings.iter().filter(|warning| warning.contains(name)).count(), 1, "{warnings:?}");
    }
    let cluster =
        World::cluster().file("config.env", "BASE_DOMAIN=x").env("ONLY", "15").env("DRY_RUN", "true");
    assert!(cluster.warnings().is_empty(), "{:?}", cluster.warnings());
    assert_eq!(shown(&cluster.values(), "ONLY"), "15 <- environment");
    let empty = World::of_vars("").env("ONLY", "");
    assert!(empty.warnings().is_empty());
}

/// Case 8: a substitution and three reserved names, all four lines at once.
#[test]
fn reserved_names_and_bad_lines_are_told_of_at_once() {
    let world = World::cluster()
        .file("config.env", "X=$(touch pwned)\nDRY_RUN=true\nDELETE_MODE=true\nONLY=15\nBASE_DOMAIN=x\n");
    let mut errors = world.resolve().diagnostics.sorted();
    errors.0.retain(|problem| problem.code != "layer/undeclared");
    let told: Vec<(&str, Option<u32>)> = errors
        .iter()
        .map(|problem| (problem.code, problem.place.location().1.map(|(line, _)| line)))
        .collect();
    assert_eq!(
        told,
        [
            ("layer/substitution", Some(1)),
            ("layer/reserved", Some(2)),
            ("layer/reserved", Some(3)),
            ("layer/reserved", Some(4))
        ]
    );
}

#[test]
fn every_reserved_name_is_refused_in_layers() {
    let names = [
        "ONLY",
        "DRY_RUN",
        "DELETE_MODE",
        "PROFILE_FILE",
        "PROFILE_EXCLUSIVE",
        "STEAD_RUN_ID",
        "STEAD_",
        "BASH_ENV",
        "SHELLOPTS",
        "PS4",
        "LD_PRELOAD",
        "LD_AUDIT",
        "LD_LIBRARY_PATH",
    ];
    for name in names {
        let world = World::cluster().file("config.env", &format!("BASE_DOMAIN=x\n{name}=true\n"));
        let errors = world.errors();
        assert_eq!(errors.len(), 1, "{name}: {errors:?}");
        assert!(errors[0].starts_with("layer/reserved config.env:2: "), "{errors:?}");
    }
    assert!(World::of_vars("").file("low.env", "PROFILE_EXCLUSIVE=true\nSTEADY=x\n").errors().is_empty());
}

#[test]
fn reserved_names_cannot_be_set_and_the_flag_is_named() {
    for (name, help) in [
        ("ONLY", "use `--only`"),
        ("DRY_RUN", "use `--dry-run`"),
        ("DELETE_MODE", "use `--delete`"),
        ("PROFILE_FILE", "use `--profile`"),
        ("STEAD_X", "remove the flag"),
        ("LD_PRELOAD", "remove the flag"),
    ] {
        let found =
            World::cluster().file("config.env", "BASE_DOMAIN=x").set(name, "true").resolve().diagnostics;
        assert_eq!(found.0.len(), 1, "{found}");
        assert_eq!((found.0[0].code, found.0[0].help.as_str()), ("steps/reserved-set", help));
    }
    let host =
        World::new(&CLUSTER.replace("flag: profile", "flag: host-env")).file("config.env", "BASE_DOMAIN=x");
    assert_eq!(host.set("PROFILE_FILE", "x").resolve().diagnostics.0[0].help, "use `--host-env`");
    let world = World::cluster().file("config.env", "BASE_DOMAIN=x").set("PROFILE_EXCLUSIVE", "true");
    assert_eq!(shown(&world.values(), "PROFILE_EXCLUSIVE"), "true <- --set");
    assert_eq!(
        World::cluster().file("config.env", "BASE_DOMAIN=x").set("1A", "x").resolve().diagnostics.0[0].code,
        "steps/unknown-key"
    );
}

#[test]
fn undeclared_keys_are_allowed_warned_of_or_refused() {
    let files = |world: World| {
        world
            .file("config.env", "BASE_DOMAIN=x\nFEAT_VERIFI=true\n")
            .file("profiles/local.env", "FEAT_VERIFI=false\nNOTHING_LIKE_IT=1\n")
    };
    let refused = files(World::cluster());
    assert_eq!(
        refused.errors(),
        [
            "layer/undeclared config.env:2: the catalogue does not declare `FEAT_VERIFI`",
            "layer/undeclared profiles/local.env:1: the catalogue does not declare `FEAT_VERIFI`",
            "layer/undeclared profiles/local.env:2: the catalogue does not declare `NOTHING_LIKE_IT`",
        ]
    );
    let helps: Vec<String> =
        refused.resolve().diagnostics.iter().map(|problem| problem.help.clone()).collect();
    assert_eq!(
        helps,
        [
            "did you mean `FEAT_VERIFY`?",
            "did you mean `FEAT_VERIFY`?",
            "add `NOTHING_LIKE_IT` to `vars`, or remove it"
        ]
    );
    let warned = files(World::new(&CLUSTER.replace("undeclared: error\n", "")));
    assert_eq!(
        warned.warnings(),
        [
            "layer/undeclared config.env:2: the catalogue does not declare `FEAT_VERIFI`",
            "layer/undeclared profiles/local.env:2: the catalogue does not declare `NOTHING_LIKE_IT`",
        ]
    );
    assert_eq!(shown(&warned.values(), "FEAT_VERIFI"), "false <- profiles/local.env:1");
    let allowed = files(World::new(&CLUSTER.replace("undeclared: error", "undeclared: allow")));
    assert!(allowed.resolve().diagnostics.0.is_empty());
    let set = World::cluster().file("config.env", "BASE_DOMAIN=x\n").set("NEW", "x");
    assert_eq!(set.errors(), ["steps/unknown-key --set NEW: the catalogue does not declare `NEW`"]);
}

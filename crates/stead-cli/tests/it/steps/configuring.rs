//! Layers, values and where they come from.

use super::homelab::{Homelab, codes};

/// Case 4: a bool is `true` or `false`, whatever source it comes from, and the source is named.
#[test]
fn a_bad_bool_is_refused_from_every_source() {
    let lab = Homelab::new();
    let by_set = lab.run(&["--set", "FEAT_VERIFY=banana"]).exits(3);
    assert!(by_set.stderr.contains("banana") && by_set.stderr.contains("--set"), "{}", by_set.stderr);
    let by_environment = lab.run_with(&[("FEAT_VERIFY", "banana")], &[]).exits(3);
    assert!(by_environment.stderr.contains("banana") && by_environment.stderr.contains("environment"));
    lab.append("profiles/local.env", "FEAT_VERIFY=banana");
    let line = lab.read("profiles/local.env").lines().count();
    let by_file = lab.run(&[]).exits(3);
    assert!(by_file.stderr.contains("banana"), "{}", by_file.stderr);
    assert!(by_file.stderr.contains(&format!("profiles/local.env:{line}")), "{}", by_file.stderr);
    assert!(lab.log().is_empty() && !lab.path(".stead").exists());
}

/// Case 7: the highest layer wins; without it the next one does; `explain` agrees.
#[test]
fn the_highest_layer_wins_and_explain_agrees() {
    let lab = Homelab::new();
    let key = "INGRESS_PROVIDER";
    lab.replace("config.env", "INGRESS_PROVIDER=nginx", "INGRESS_PROVIDER=traefik");
    lab.append("profiles/local.env", "INGRESS_PROVIDER=nginx");
    lab.append("profiles/secrets.env", "INGRESS_PROVIDER=traefik");
    lab.write("profiles/mine.env", "INGRESS_PROVIDER=nginx\n");
    let explain = |args: &[&str]| {
        let args: Vec<&str> =
            ["steps", "explain", key, "cluster", "--json"].into_iter().chain(args.iter().copied()).collect();
        lab.stead(&args).exits(0).document()
    };
    let profile = ["--profile", "profiles/mine.env"];
    let wins = |document: &serde_json::Value, layer: &str| {
        let rows = document["layers"].as_array().unwrap();
        let winner: Vec<&str> =
            rows.iter().filter(|row| row["wins"] == true).map(|row| row["layer"].as_str().unwrap()).collect();
        assert_eq!(winner, [layer], "{document:#}");
        assert!(document["winner"].as_str().unwrap().starts_with(&format!("{layer}:")), "{document:#}");
    };
    wins(&explain(&profile), "profiles/mine.env");
    let shown = lab.run(&["--dry-run", "--profile", "profiles/mine.env"]).exits(0).stdout;
    assert!(shown.contains("  INGRESS_PROVIDER=nginx  # profiles/mine.env:1\n"), "{shown}");
    wins(&explain(&[]), "profiles/secrets.env");
    std::fs::remove_file(lab.path("profiles/secrets.env")).unwrap();
    wins(&explain(&[]), "profiles/local.env");
    std::fs::remove_file(lab.path("profiles/local.env")).unwrap();
    let lowest = explain(&[]);
    wins(&lowest, "config.env");
    let states: Vec<&str> =
        lowest["layers"].as_array().unwrap().iter().map(|row| row["state"].as_str().unwrap()).collect();
    assert_eq!(states[..4], ["set", "set", "missing", "missing"]);
    let text = lab.stead(&["steps", "explain", key, "cluster"]).exits(0).stdout;
    assert!(text.starts_with("INGRESS_PROVIDER=traefik  # config.env:"), "{text}");
}

/// Case 7: `PROFILE_EXCLUSIVE=true` leaves the layers in the middle unread.
#[test]
fn an_exclusive_profile_skips_the_layers_in_the_middle() {
    let lab = Homelab::new();
    let document = lab
        .command(env!("CARGO_BIN_EXE_stead"), &["steps", "explain", "TIMEOUT_SECS", "cluster", "--json"])
        .env("PROFILE_EXCLUSIVE", "true")
        .output()
        .unwrap();
    let document: serde_json::Value = serde_json::from_slice(&document.stdout).unwrap();
    let states: Vec<&str> =
        document["layers"].as_array().unwrap().iter().map(|row| row["state"].as_str().unwrap()).collect();
    assert_eq!(states[2..4], ["skipped", "skipped"], "{document:#}");
    assert_eq!(document["value"], "300");
    assert_eq!(lab.run_with(&[("PROFILE_EXCLUSIVE", "maybe")], &["--dry-run"]).code, 3);
    let unknown = lab.stead(&["steps", "explain", "TIMEOUT_SEC", "cluster", "--json"]).exits(2).document();
    assert_eq!(codes(&unknown), ["steps/unknown-key"]);
}

/// Case 8: a layer is parsed, never executed; all bad lines are told at once.
#[test]
fn layers_are_never_executed() {
    let lab = Homelab::new();
    lab.write("profiles/local.env", "X=$(touch pwned)\nDRY_RUN=true\nDELETE_MODE=true\nONLY=15\n");
    let document = lab.json(&[], 3);
    let lines: Vec<(&str, i64)> = document["diagnostics"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|problem| problem["severity"] == "error")
        .map(|problem| (problem["code"].as_str().unwrap(), problem["line"].as_i64().unwrap()))
        .collect();
    for found in
        [("layer/substitution", 1), ("layer/reserved", 2), ("layer/reserved", 3), ("layer/reserved", 4)]
    {
        assert!(lines.contains(&found), "{document:#}");
    }
    assert!(!lab.path("pwned").exists() && !lab.path("profiles/pwned").exists());
    assert!(lab.log().is_empty() && !lab.path(".stead").exists());
}

/// Case 9: files beat the environment with a warning; `env: true` turns that round; `--set` beats both.
#[test]
fn the_environment_is_obeyed_only_where_declared() {
    let lab = Homelab::new();
    let domain = |lab: &Homelab, args: &[&str]| {
        let args: Vec<&str> = ["--dry-run"].into_iter().chain(args.iter().copied()).collect();
        let ended = lab.run_with(&[("BASE_DOMAIN", "x")], &args).exits(0);
        let line = ended.stdout.lines().find(|line| line.starts_with("  BASE_DOMAIN=")).unwrap().to_owned();
        (line, ended.stderr)
    };
    let (line, stderr) = domain(&lab, &[]);
    assert!(line.starts_with("  BASE_DOMAIN=homelab.test  # config.env:"), "{line}");
    assert!(
        stderr.contains("BASE_DOMAIN") && stderr.contains("env: true") && stderr.contains("--set"),
        "{stderr}"
    );
    lab.replace(
        "steps/cluster.yaml",
        "BASE_DOMAIN: { required: true,",
        "BASE_DOMAIN: { env: true, required: true,",
    );
    let (line, stderr) = domain(&lab, &[]);
    assert_eq!(line, "  BASE_DOMAIN=x  # environment");
    assert!(!stderr.contains("BASE_DOMAIN"), "{stderr}");
    assert_eq!(domain(&lab, &["--set", "BASE_DOMAIN=y"]).0, "  BASE_DOMAIN=y  # --set");
    // Expansion comes after merging: what refers to it follows.
    let ended = lab.run(&["--dry-run", "--set", "BASE_DOMAIN=y"]).exits(0);
    assert!(ended.stdout.contains("  OAUTH_HOST=oauth.y  # default\n"), "{}", ended.stdout);
}

/// Case 10: a profile starts where the caller is, and must be there.
#[test]
fn a_profile_starts_where_the_caller_is() {
    let lab = Homelab::new();
    let from = |dir: &std::path::Path, args: &[&str]| -> crate::cases_17_32::lab::Ended {
        lab.command(lab.path("run.sh"), args).current_dir(dir).output().unwrap().into()
    };
    let missing = from(std::path::Path::new("/"), &["--profile", "stead-no-such.env"]).exits(3);
    assert!(missing.stderr.contains("/stead-no-such.env"), "{}", missing.stderr);
    let offered = from(&lab.home(), &["--profile", "profiles/local.env"]).exits(3);
    assert!(
        offered.stderr.contains(&lab.path("profiles/local.env").display().to_string()),
        "{}",
        offered.stderr
    );
    let outside = lab.home().join("p.env");
    std::fs::write(&outside, "TIMEOUT_SECS=7\n").unwrap();
    let read = from(&lab.home(), &["--dry-run", "--profile", "p.env"]).exits(0);
    assert!(read.stdout.contains("  TIMEOUT_SECS=7  # p.env:1\n"), "{}", read.stdout);
    let host = lab.command(lab.path("host/run-host.sh"), &["--host-env", "missing"]).output().unwrap();
    assert_eq!(host.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&host.stderr).contains("missing"));
    lab.run(&["--host-env", "profiles/local.env"]).exits(2).says("--profile");
    lab.run(&["--profile", "a", "--profile", "b"]).exits(2);
    lab.run(&["--profile", "a", "--host-env", "b"]).exits(2);
    assert!(lab.log().is_empty());
}

/// Section 3: names that flags set, or that make a child run code, cannot be set.
#[test]
fn reserved_names_cannot_be_set() {
    let lab = Homelab::new();
    for (set, says) in [
        ("DRY_RUN=true", "--dry-run"),
        ("ONLY=15", "--only"),
        ("LD_PRELOAD=x", "LD_PRELOAD"),
        ("STEAD_X=1", "STEAD_X"),
    ] {
        assert_eq!(codes(&lab.json(&["--set", set], 2)), ["steps/reserved-set"], "{set}");
        assert!(lab.run(&["--set", set]).exits(2).stderr.contains(says), "{set}");
    }
    lab.run(&["--set", "NOEQUALS"]).exits(2);
    lab.run(&["--dry-run", "--set", "PROFILE_EXCLUSIVE=false"]).exits(0);
    assert!(lab.log().is_empty());
}

/// Section 2: a layer that is not optional must be there.
#[test]
fn a_layer_that_is_not_optional_must_be_there() {
    let lab = Homelab::with(
        "api_version: v1\nlayers: [{file: l.env, optional: false}]\nsteps: {a: {run: a.sh}}\napply: [{steps: [a]}]\n",
    );
    lab.script("a.sh", "");
    let refused = lab.stead(&["steps", "run", "--json"]).exits(3).document();
    assert_eq!(codes(&refused), ["layer/missing"]);
    assert_eq!(refused["diagnostics"][0]["line"], 2);
    let checked = lab.stead(&["steps", "check"]).exits(4).stdout;
    assert!(checked.contains("bad  layer.l.env cannot read the layer l.env"), "{checked}");
    assert!(!checked.contains("is not there"), "{checked}");
    lab.write("l.env", "");
    lab.stead(&["steps", "run"]).exits(0);
}

/// Section 3: a value that is not text is refused where it is read, never taken for absent.
#[test]
fn a_garbled_variable_is_never_taken_for_absent() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    let lab = Homelab::new();
    let with = |program: &str, name: &str, args: &[&str]| -> crate::cases_17_32::lab::Ended {
        let mut command = lab.command(lab.path(program), args);
        command.env(name, OsStr::from_bytes(b"15\xff")).output().unwrap().into()
    };
    for name in ["DRY_RUN", "ONLY", "FEAT_VERIFY", "PROFILE_EXCLUSIVE", "LAB_STATE"] {
        let refused = with("run.sh", name, &["--only", "15"]).exits(3);
        assert!(refused.stderr.contains(&format!("`{name}` is not UTF-8 (from environment)")), "{name}");
    }
    let warned = with("run.sh", "BASE_DOMAIN", &["--dry-run"]).exits(0);
    assert!(warned.stderr.contains("`BASE_DOMAIN` is not UTF-8 and is not read"), "{}", warned.stderr);
    let warned = with("host/run-host.sh", "ONLY", &["--dry-run"]).exits(0);
    assert!(warned.stderr.contains("`ONLY` is not UTF-8 and is not read"), "{}", warned.stderr);
    assert!(lab.log().is_empty() && !lab.path(".stead").exists());
}

/// Section 1: what is wrong with the arguments is told first and together, whatever the catalogue is like.
#[test]
fn arguments_come_before_the_catalogue() {
    let lab = Homelab::new();
    lab.append("steps/cluster.yaml", "nope: 1");
    let refused = lab.json(&["--set", "ONLY=1", "--only", "", "--set", "LD_PRELOAD=x", "--set", "PS4=x"], 2);
    let mut found = codes(&refused);
    found.sort();
    assert_eq!(found, ["steps/empty", "steps/reserved-set", "steps/reserved-set", "steps/reserved-set"]);
    assert_eq!(codes(&lab.json(&[], 3)), ["steps/catalogue"]);
}

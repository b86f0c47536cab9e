//! Which hosts a word means.

use super::Site;

fn three() -> Site {
    Site::of(
        "  a1: {transport: local, labels: {role: web.x}}\n  a2: {transport: local, labels: {role: web}}\n  b1: {transport: local, labels: {role: webx}}\n",
    )
}

/// Case 15.
#[test]
fn expressions_mean_the_hosts_the_contract_lists() {
    let site = three();
    for (target, names) in [
        ("role:web", "a1 a2"),
        ("b1,a*", "b1 a1 a2"),
        ("!a1", "a2 b1"),
        ("a*,!a1,a1", "a2"),
        ("role:*&!b1", "a1 a2"),
        ("_all", "a1 a2 b1"),
        ("all", "a1 a2 b1"),
        ("local", "local"),
        ("_all , !role:web", "b1"),
    ] {
        assert_eq!(site.names(&[target]), names, "{target}");
        // A command runs on the same hosts.
        let told = site.run(&["exec", target, "--json", "--", "true"]).exits(0);
        let results = told.json()["results"].clone();
        let ran: Vec<&str> =
            results.as_array().unwrap().iter().map(|row| row["target"].as_str().unwrap()).collect();
        assert_eq!(ran.join(" "), names, "{target}");
    }
    assert_eq!(site.names(&["b1", "a*"]), "b1 a1 a2");
    assert_eq!(site.names(&[]), "a1 a2 b1");
}

/// Case 15: an unknown host exits 3 with the nearest and the candidates, wherever it is asked for.
#[test]
fn an_unknown_host_exits_3_with_candidates() {
    let site = three();
    for args in [vec!["exec", "nope", "--", "true"], vec!["exec", "nope", "--list"]] {
        let told = site.run(&args).exits(3);
        assert!(told.stderr.contains("there is no host `nope`: known: a1, a2, b1, local"), "{}", told.stderr);
    }
    let told = site.run(&["exec", "b11", "--", "true"]).exits(3);
    assert!(told.stderr.contains("did you mean `b1`? known: a1, a2, b1, local"), "{}", told.stderr);
    site.write("p.yaml", "api_version: v1\nname: p\ntasks: [{name: a, target: nope, shell: 'true'}]\n");
    insta::assert_snapshot!(site.run(&["plan", "run", "p.yaml"]).exits(3).transcript());
}

/// Section 5: a malformed expression names the position; one without a match warns.
#[test]
fn malformed_targets_name_the_position_and_empty_ones_warn() {
    let site = three();
    for (target, said) in [
        ("a1,,b1", "at character 4: an element is empty"),
        ("a1&&b1", "at character 4"),
        ("a1,!", "at character 5: `!` stands alone"),
        ("a:b:c", "at character 3"),
        ("role:", "at character 6"),
        ("_none", "at character 1: `_none` is not a set: known: _all, _any"),
        ("a/b", "at character 2"),
        ("a1,ops@h", "at character 4: a host by SSH stands alone"),
        ("ops@h:0", "at character 7: `0` is not a port"),
        ("ssh://u:hunter2@h?kye=1", "did you mean `key`?"),
        ("ssh://local", "`local` alone is no other host: write `ssh://user@local`"),
    ] {
        let told = site.run(&["exec", target, "--", "true"]).exits(3);
        assert!(told.stderr.contains(said), "{target}: {}", told.stderr);
        assert!(!told.stderr.contains("hunter2"), "{}", told.stderr);
    }
    let told = site.run(&["exec", "a1,zone:b", "--list"]).exits(0);
    assert!(told.stderr.contains("reach/no-match: `zone:b` matches no host"), "{}", told.stderr);
    let told = site.run(&["exec", "a1,zone:b", "--", "true"]).exits(0);
    assert!(told.stderr.contains("reach/no-match"), "{}", told.stderr);
    // Nobody at all is a failure, as in a plan.
    site.run(&["exec", "zone:b", "--", "true"]).exits(1);
}

/// Section 5: an ad hoc host is named by its address, and nothing that is meant for it is done here.
#[test]
fn an_ad_hoc_host_is_never_mistaken_for_this_machine() {
    let site = three();
    site.write(
        "p.yaml",
        "api_version: v1\nname: p\ntasks: [{name: a, target: [a1, 'ssh://ops@127.0.0.1:1?agent=false&connect_timeout=5s&ssh_config=none'], shell: 'echo $STEAD_HOST >> ran'}]\n",
    );
    let told = site.run(&["plan", "run", "p.yaml", "--json", "--no-journal"]);
    assert_ne!(told.code, Some(0));
    let hosts = told.json()["tasks"][0]["hosts"].clone();
    assert_eq!((&hosts[0]["host"], &hosts[0]["status"]), (&"a1".into(), &"changed".into()));
    assert_eq!((&hosts[1]["host"], &hosts[1]["status"]), (&"ops@127.0.0.1:1".into(), &"failed".into()));
    assert_eq!(std::fs::read_to_string(site.file("ran")).unwrap(), "a1\n");
}

/// Section 5: a plan is recorded, so that no secret may stand in it.
#[test]
fn a_plan_with_a_password_in_a_target_is_refused_without_showing_it() {
    let site = three();
    site.write(
        "p.yaml",
        "api_version: v1\nname: p\ntasks: [{name: a, target: 'ssh://u:hunter2@h', shell: 'true'}]\n",
    );
    let told = site.run(&["plan", "run", "p.yaml"]).exits(3);
    assert!(told.stderr.contains("reach/secret-in-spec"), "{}", told.stderr);
    assert!(!told.stderr.contains("hunter2"), "{}", told.stderr);
}

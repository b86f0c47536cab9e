//! Which hosts there are: transports, files, their problems, and where they are found.

use serde_json::{Value, json};

use super::Site;

/// Case 1: every form is read, and shown in its masked canonical form.
#[test]
fn transports_are_shown_in_their_masked_canonical_form() {
    for (written, shown) in [
        ("local", "local"),
        ("local://", "local"),
        ("ssh://h", "ssh://h"),
        ("ann@h:22", "ssh://ann@h"),
        ("a@b@h", "ssh://a%40b@h"),
        ("ssh://u:p@h?insecure=true&key=/k", "ssh://u:***@h?key=/k&insecure=true"),
        ("u@::1", "ssh://u@[::1]"),
        ("ssh://u@[fd00::7]:2222", "ssh://u@[fd00::7]:2222"),
    ] {
        let site = Site::of(&format!("  x: \"{written}\"\n"));
        let told = site.run(&["exec", "x", "--list", "--json"]).exits(0);
        assert_eq!(told.json()["hosts"][0]["transport"], shown, "{written}");
        // What is shown is itself a transport, and a target.
        if shown.contains("ssh") && !shown.contains("***") {
            let told = site.run(&["exec", shown, "--list", "--json"]).exits(0);
            assert_eq!(told.json()["hosts"][0]["transport"], shown);
        }
    }
}

/// Case 1: what is no transport exits 3 and names the part and the nearest.
#[test]
fn what_is_no_transport_names_the_part_and_the_nearest() {
    for (written, said) in [
        ("host", "`host` is not a transport: a bare word is never taken for a host name"),
        ("ftp://h", "`ftp://` is not a transport; there are `local` and `ssh://`"),
        ("ssh://", "the host is empty"),
        ("u@h:0", "`0` is not a port"),
        ("u@h:99999", "`99999` is not a port"),
        ("u@h?kye=/k", "did you mean `key`?"),
        ("u@h?key=a&key=b", "the option `key` is given twice"),
        ("", "a transport is empty"),
    ] {
        let site = Site::of(&format!("  x: \"{written}\"\n"));
        let told = site.run(&["exec", "--list"]).exits(3);
        assert!(told.stderr.contains("reach/bad-transport") && told.stderr.contains(said), "{}", told.stderr);
    }
}

/// Case 14: eight faults in one file, all located at once.
#[test]
fn eight_faults_are_told_at_once_with_their_places() {
    let site = Site::of("");
    site.write(
        "inventory.yaml",
        "api_version: v1
defaults: {becom: sudo}
hosts:
  all: local
  web1: {transport: \"ssh://ops:hunter2@h?kye=/k\"}
  web2: {transport: local, labels: {source: me}}
  web3: {transport: local, root: srv}
  web4: {transport: local, executor: sometimes}
  web5: {transport: local, become: sudo, become_password: hunter2}
  web6: {labels: {role: web}}
",
    );
    let told = site.run(&["exec", "--list", "-i", "inventory.yaml"]).exits(3);
    insta::assert_snapshot!(told.transcript());
    let problems = site.run(&["exec", "--list", "--json"]).exits(3).json()["diagnostics"].clone();
    let places: Vec<String> = problems
        .as_array()
        .unwrap()
        .iter()
        .map(|problem| {
            format!("{}:{} {}", problem["line"], problem["column"], problem["code"].as_str().unwrap())
        })
        .collect();
    assert_eq!(places.len(), 8, "{places:?}");
}

/// Case 14: one host in two files, both places named; the same definition twice is no problem.
#[test]
fn one_host_in_two_files_names_both_places() {
    let site = Site::of("  web1: local\n");
    site.write("more.yaml", "api_version: v1\nhosts:\n  web1: ops@10.0.0.1\n");
    let told = site.run(&["exec", "--list", "-i", "inventory.yaml", "-i", "more.yaml"]).exits(3);
    insta::assert_snapshot!(told.transcript());
    site.write("same.yaml", "api_version: v1\nhosts:\n  web1: local\n  web2: local\n");
    assert_eq!(site.names(&["-i", "inventory.yaml", "-i", "same.yaml"]), "web1 web2");
}

/// Case 14: a registry of agents is an inventory, by `-i` as by `--agents`.
#[test]
fn agents_are_hosts_by_either_flag() {
    let site = Site::of("  web1: local\n");
    site.write("registry.yaml", "agents:\n  lab1: {transport: ops@10.0.0.7, status: ok}\n");
    for flag in ["-i", "--inventory", "--agents"] {
        assert_eq!(site.names(&[flag, "registry.yaml"]), "lab1");
        let told = site.run(&["exec", "source:agents", "--list", "--json", flag, "registry.yaml"]).exits(0);
        let host = json!({"name": "lab1", "transport": "ssh://ops@10.0.0.7", "labels": {"source": "agents"},
            "source": "agents"});
        assert_eq!(told.json(), json!({"schema": 1, "hosts": [host]}));
    }
    assert_eq!(site.names(&["-i", "inventory.yaml", "--agents", "registry.yaml"]), "lab1 web1");
}

/// Section 4: which files are read, in which order.
#[test]
fn inventories_are_found_by_flag_variable_and_place() {
    let host = |name: &str| format!("api_version: v1\nhosts: {{{name}: local}}\n");
    let agent = |name: &str| format!("agents: {{{name}: {{transport: local}}}}\n");
    let site = Site::of("  here: local\n");
    site.write("plans/p.yaml", "api_version: v1\nname: p\ntasks: [{name: a, target: _all, shell: 'true'}]\n");
    site.write("plans/inventory.yaml", &host("beside"));
    site.write("var.yaml", &host("variable"));
    site.write("flag.yaml", &host("flag"));
    site.write("home/.config/stead/agents.yaml", &agent("own"));
    let hosts = |args: &[&str], env: &[(&str, &str)]| {
        let mut command = site.command(&["plan", "run", "plans/p.yaml", "--no-journal", "--json"]);
        command.args(args).envs(env.iter().copied());
        let rows = super::Told::of(command).exits(0).json()["tasks"][0]["hosts"].clone();
        let names: Vec<String> =
            rows.as_array().unwrap().iter().map(|row| row["host"].as_str().unwrap().to_owned()).collect();
        names.join(" ")
    };
    let home = site.file("home");
    let home = ("HOME", home.to_str().unwrap());
    assert_eq!(hosts(&[], &[]), "beside");
    assert_eq!(hosts(&[], &[home]), "beside own");
    assert_eq!(hosts(&[], &[home, ("STEAD_INVENTORY", "var.yaml")]), "own variable");
    assert_eq!(hosts(&["-i", "flag.yaml"], &[home, ("STEAD_INVENTORY", "var.yaml")]), "flag");
    site.write("agents.yaml", &agent("agent-here"));
    assert_eq!(hosts(&[], &[home]), "agent-here beside");
    site.write("plans/agents.yaml", &agent("agent-beside"));
    assert_eq!(hosts(&[], &[home]), "agent-beside beside");
    site.write("more.yaml", &agent("agent-variable"));
    assert_eq!(hosts(&[], &[("STEAD_AGENTS", "more.yaml")]), "agent-variable beside");
    assert_eq!(hosts(&["--agents", "more.yaml"], &[home]), "agent-variable");
    std::fs::remove_file(site.file("plans/inventory.yaml")).unwrap();
    assert_eq!(hosts(&[], &[("STEAD_AGENTS", "more.yaml")]), "agent-variable here");
}

/// Case 14: `--limit` leaves the rest `not_selected`.
#[test]
fn limit_leaves_the_rest_not_selected() {
    let site = Site::of("  a1: {transport: local, labels: {role: web}}\n  b1: local\n");
    site.write(
        "p.yaml",
        "api_version: v1\nname: p\ntasks:\n  - {name: both, target: _all, shell: 'true'}\n  - {name: other, target: b1, shell: 'true'}\n",
    );
    let told = site.run(&["plan", "run", "p.yaml", "--json", "--no-journal", "--limit", "role:web"]).exits(0);
    let rows = told.json()["tasks"].clone();
    assert_eq!(rows[0]["hosts"].as_array().unwrap().len(), 1);
    assert_eq!(rows[0]["hosts"][0]["host"], "a1");
    assert_eq!((&rows[1]["status"], &rows[1]["cause"]), (&json!("skipped"), &json!("not_selected")));
    assert_eq!(site.names(&["_all", "--limit", "role:web"]), "a1");
}

/// Section 5: what a run was limited to holds when it is resumed, for tasks that it never came to as well.
#[test]
fn a_run_that_is_resumed_keeps_its_limit() {
    let site = Site::of("  a1: {transport: local, labels: {role: web}}\n  b1: {transport: local}\n");
    site.write(
        "p.yaml",
        "api_version: v1\nname: p\ntasks:\n  - {name: first, target: _all, shell: 'test -e go'}\n  - {name: second, target: _all, shell: 'true', depends_on: [first]}\n",
    );
    site.run(&["plan", "run", "p.yaml", "--limit", "role:web"]).exits(1);
    site.write("go", "");
    let told = site.run(&["resume", "last", "--json"]).exits(0);
    for row in told.json()["tasks"].as_array().unwrap() {
        let hosts: Vec<&Value> = row["hosts"].as_array().unwrap().iter().map(|host| &host["host"]).collect();
        assert_eq!(hosts, ["a1"], "{row}");
    }
}

/// Section 5: a host that `--limit` names and that there is not is an error of the command line; a label or glob that
/// matches none is a warning.
#[test]
fn a_limit_to_hosts_that_there_are_not_is_told() {
    let site = Site::of("  web1: {transport: local, labels: {role: web}}\n  db1: local\n");
    site.write(
        "p.yaml",
        "api_version: v1\nname: p\ntasks: [{name: a, target: _all, shell: 'echo >> ran'}]\n",
    );
    let plan = ["plan", "run", "p.yaml", "--json", "--limit"];
    let shown = ["plan", "show", "p.yaml", "--limit"];
    let listed = ["exec", "_all", "--list", "--limit"];
    for command in [&plan[..], &shown, &listed, &["exec", "_all", "--limit"]] {
        let limited = |limit: &str| {
            let then: &[&str] = if command.len() == 3 { &["--", "true"] } else { &[] };
            site.run(&[command, &[limit], then].concat())
        };
        let told = limited("wbe1,db1").exits(2);
        let said = format!("{}{}", told.stdout, told.stderr);
        assert!(said.contains("there is no host `wbe1`: did you mean `web1`?"), "{command:?}: {said}");
        for limit in ["web1,role:wbe", "web1,wbe*"] {
            let told = limited(limit).exits(0);
            let said = format!("{}{}", told.stdout, told.stderr);
            assert!(said.contains("reach/no-match") && said.contains(&limit[5..]), "{command:?}: {said}");
        }
    }
    assert_eq!(std::fs::read_to_string(site.file("ran")).unwrap(), "\n\n", "only what was limited well");
    let run = site.run(&["plan", "run", "p.yaml", "--json"]).exits(0).json()["run_id"].clone();
    let told = site.run(&["resume", run.as_str().unwrap(), "--limit", "wbe1"]).exits(2);
    assert!(told.stderr.contains("did you mean `web1`?"), "{}", told.stderr);
}

/// Section 2: a host key that is not checked and a secret in the text are warned of on every run that reaches them.
#[test]
fn runs_warn_of_secrets_in_transports_and_of_unchecked_keys() {
    let far = "ssh://u:hunter2@127.0.0.1:1?insecure=true&agent=false&connect_timeout=5s&ssh_config=none";
    let site = Site::of(&format!("  far: \"{far}\"\n  near: local\n"));
    let plan = |target: &str| {
        format!("api_version: v1\nname: p\ntasks: [{{name: a, target: {target}, shell: 'touch ran'}}]\n")
    };
    site.write("p.yaml", &plan("far"));
    let told = site.run(&["plan", "run", "p.yaml", "--no-journal", "--json"]);
    assert_ne!(told.code, Some(0));
    assert!(!site.file("ran").exists());
    let warnings = told.json()["warnings"].clone();
    let codes: Vec<&str> =
        warnings.as_array().unwrap().iter().map(|warning| warning["code"].as_str().unwrap()).collect();
    assert_eq!(codes, ["reach/secret-in-spec", "reach/insecure"]);
    assert!(!format!("{told:?}").contains("hunter2"), "{told:?}");
    site.write("p.yaml", &plan("near"));
    let told = site.run(&["plan", "run", "p.yaml", "--json", "--no-journal"]).exits(0);
    assert_eq!(told.json()["warnings"], json!([]));
}

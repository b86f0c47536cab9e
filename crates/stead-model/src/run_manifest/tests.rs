//! What readers of manifests and kits accept and refuse.

use super::*;
use crate::run_plan::RoleKind;

/// The short form of the contract.
pub(crate) const SHORT: &str = "\
api_version: v1
run_id: auto
profile:
  path: profiles/pump.yaml
  distribution: push
network:
  data_plane:
    target_ip: 10.20.0.7
    server_listen_ip: 0.0.0.0
    target_port: 45000
roles:
  server: {agent: A1, personality: adapter}
  client:
    agent: local
    scenario: baseline
    duration_seconds: 20
readiness: {method: tcp_connect}
post_run: {analyze: true}
";

/// The general form of the contract.
pub(crate) const GENERAL: &str = r#"api_version: v1
run_id: cache-soak-07
vars: {rate: 500}
agents: {edge: "ssh://lab@10.20.0.7:2222?key=~/.ssh/lab"}
roles:
  store:
    agent: edge
    kind: service
    files: [bin/store]
    command: [./store, --port, "7070"]
    ready: {method: regex, pattern: 'listening on (?P<addr>\S+)'}
    stop: {signal: INT, grace_seconds: 5}
  load:
    needs: [store]
    command: [loadgen, "{{ roles.store.ready.addr }}", "--rate={{ vars.rate }}"]
    matrix: {size: [1, 64]}
    repeat: 3
    artifacts: ["out/*.json"]
"#;

/// The kit of the contract.
pub(crate) const IPERF: &str = r#"api_version: v1
kit: iperf
requires: [network.data_plane.target_ip]
roles:
  server: {kind: service, fields: {port: {type: int, default: 5201, min: 1, max: 65535}}, ready: {method: tcp_connect, port: "{{ port }}"},
           command: [iperf3, --server, --port, "{{ port }}", "{{ args }}"]}
  client: {needs: [server], fields: {seconds: {type: int, required: true, min: 1}, proto: {type: enum, values: [tcp, udp], default: tcp}},
           command: [iperf3, --client, "{{ network.data_plane.target_ip }}", --json, {flag: --time, value: "{{ seconds }}"}, "{{ args }}"]}
"#;

fn source(text: &str) -> Source {
    Source { name: "run.yaml".into(), text: text.into() }
}

/// Reads a manifest and its roles, those without a command as roles of the built-in kit.
fn read(text: &str) -> (Option<RunManifest>, Vec<String>) {
    let mut diagnostics = Diagnostics::default();
    let manifest = RunManifest::read(&source(text), &mut diagnostics);
    let cipdip = Kit::cipdip();
    if let Some(manifest) = &manifest {
        for entry in &manifest.roles {
            let kit = manifest.kit_of(entry).and_then(|_| cipdip.role(&entry.name));
            manifest.role(entry, kit, &mut diagnostics);
        }
    }
    let problems = with_paths(diagnostics).sorted();
    (manifest, problems.iter().map(|problem| format!("{}: {problem}", problem.path)).collect())
}

fn problems(text: &str) -> Vec<String> {
    read(text).1
}

#[test]
fn the_examples_of_both_forms_are_read() {
    let (short, found) = read(SHORT);
    assert_eq!(found, Vec::<String>::new());
    let short = short.unwrap();
    assert_eq!((short.run_id.as_ref(), short.network.port(), short.analyze), (None, 45000, Analyze::Yes));
    assert_eq!(short.kit_names(), BTreeSet::from([CIPDIP]));
    assert_eq!(short.agent_words(), BTreeSet::from(["A1", "local"]));

    let (general, found) = read(GENERAL);
    assert_eq!(found, Vec::<String>::new());
    let general = general.unwrap();
    assert_eq!(general.run_id.as_ref().unwrap().as_str(), "cache-soak-07");
    assert!(general.kit_names().is_empty());
    let load = general.role(&general.roles[1], None, &mut Diagnostics::default()).unwrap();
    assert_eq!((load.kind, load.repeat, load.matrix[0].1.len(), load.concurrency), (RoleKind::Task, 3, 2, 1));
    let store = general.role(&general.roles[0], None, &mut Diagnostics::default()).unwrap();
    assert_eq!((store.stop.grace_seconds, store.stop.signal.as_str()), (5, "INT"));
}

/// Case 1: an empty file reports what it lacks, another version is named.
#[test]
fn an_empty_file_lacks_its_version_and_its_roles() {
    for text in ["", "# nothing\n", "{}"] {
        let found = problems(text);
        assert_eq!(found.len(), 2, "{text:?}: {found:?}");
        assert!(found[0].contains("`api_version`") && found[1].contains("`roles`"), "{found:?}");
    }
    let found = problems("api_version: v2\nroles: {a: {command: [x]}}\n");
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("run.yaml:1:14: api_version: expected `v1`, found the text `v2`"), "{found:?}");
}

/// Case 2: eight faults, all told with their lines and paths.
#[test]
fn all_faults_are_told_at_once() {
    let text = "\
api_version: v1
run_id: ../../x
readines: {method: none}
lease_seconds: 1
network: {data_plane: {target_port: 99999, target_ip: pump.example}}
artifacts: {bundle_format: rar}
roles:
  a: {command: [], stop: {signal: KILL}}
  b: {command: [x], timeout_seconds: -3}
";
    let found = problems(text);
    let paths: Vec<&str> = found.iter().map(|problem| problem.split(": ").next().unwrap()).collect();
    assert_eq!(
        paths,
        [
            "run_id",
            "readines",
            "lease_seconds",
            "network.data_plane.target_port",
            "network.data_plane.target_ip",
            "artifacts.bundle_format",
            "roles.a.command",
            "roles.a.stop.signal",
            "roles.b.timeout_seconds",
        ]
    );
    let lines: Vec<&str> = found.iter().map(|problem| problem.split(':').nth(3).unwrap()).collect();
    assert_eq!(lines, ["2", "3", "4", "5", "5", "6", "8", "8", "9"]);
    assert!(found[1].contains("did you mean `readiness`?"), "{}", found[1]);
    assert!(found[5].contains("values: dir, zip, tar.zst"), "{}", found[5]);
}

/// Case 2: what is not YAML has a line.
#[test]
fn broken_yaml_and_keys_twice_have_a_line() {
    assert!(problems("api_version: v1\nroles: [\n")[0].contains("run.yaml:"));
    let twice = problems("api_version: v1\nseed: 1\nseed: 2\nroles: {a: {command: [x]}}\n");
    assert!(twice[0].contains("run.yaml:3:1"), "{twice:?}");
}

/// Case 5: names of runs stay in their directory.
#[test]
fn run_ids_are_words() {
    let id = |id: &str| problems(&format!("api_version: v1\nrun_id: {id}\nroles: {{a: {{command: [x]}}}}\n"));
    for good in ["auto", "''", "7", "a.b-c_d", &"x".repeat(64)] {
        assert_eq!(id(good), Vec::<String>::new(), "{good}");
    }
    for bad in ["../../x", "a/b", "-x", "'a b'", &"x".repeat(65), "[a]"] {
        assert_eq!(id(bad).len(), 1, "{bad}");
    }
}

#[test]
fn keys_that_mean_nothing_to_a_role_are_refused() {
    for (role, wanted) in [
        ("command: [x], ready: {method: none}", "roles.a.ready"),
        ("command: [x], may_exit: true", "roles.a.may_exit"),
        ("command: [x], kind: service, concurrency: 2", "roles.a.concurrency"),
        ("command: [x], kind: service, expect_exit: [3]", "roles.a.expect_exit"),
        ("command: [x], kit: cipdip", "roles.a.kit"),
        ("command: [x], kit_role: server", "roles.a.kit_role"),
        ("command: x y", "roles.a.command"),
        ("command: ['']", "roles.a.command[0]"),
        ("command: [x], args: {a: {b: c}}", "roles.a.args.a"),
        ("command: [x], env: {'A B': c}", "roles.a.env.A B"),
        ("command: [x], env: {STEAD_ROLE: c}", "roles.a.env.STEAD_ROLE"),
        ("command: [x], files: [{from: x, mode: 755}]", "roles.a.files[0].mode"),
        ("command: [x], matrix: {a: []}", "roles.a.matrix.a"),
        ("command: [x], repeat: 0", "roles.a.repeat"),
        ("command: [x], exec: [y]", "roles.a.exec"),
    ] {
        let found = problems(&format!("api_version: v1\nroles: {{a: {{{role}}}}}\n"));
        assert_eq!(found.len(), 1, "{role}: {found:?}");
        assert!(found[0].starts_with(&format!("{wanted}: ")), "{role}: {found:?}");
    }
}

/// Case 9: a kit is read with its fields; what is wrong in it is named.
#[test]
fn kits_are_read_with_their_fields() {
    let mut diagnostics = Diagnostics::default();
    let kit = Kit::read(&source(IPERF), "iperf", &mut diagnostics).unwrap();
    assert_eq!(diagnostics, Diagnostics::default());
    assert_eq!(kit.requires[0].name, "network.data_plane.target_ip");
    let client = kit.role("client").unwrap();
    let [seconds, proto] = &client.fields[..] else { panic!("two fields: {:?}", client.fields) };
    assert!(seconds.required && seconds.refuse(&0.into()).is_some() && seconds.refuse(&1.into()).is_none());
    assert!(proto.refuse(&"sctp".into()).unwrap().contains("tcp, udp"));

    let bad = "\
api_version: v1
kit: other
roles:
  a: {fields: {x: {type: text}, y: {type: enum}, command: {type: int}, z: {type: int, default: a}}, command: [x]}
  b: {kit: cipdip}
";
    let mut diagnostics = Diagnostics::default();
    Kit::read(&source(bad), "mine", &mut diagnostics);
    let paths: Vec<String> = diagnostics.sorted().iter().map(|problem| problem.path.clone()).collect();
    assert_eq!(
        paths,
        [
            "kit",
            "roles.a.fields.x.type",
            "roles.a.fields.y",
            "roles.a.fields.command",
            "roles.a.fields.z.default",
            "roles.b",
            "roles.b.kit"
        ]
    );
}

#[test]
fn the_built_in_kit_has_no_problems() {
    let kit = Kit::cipdip();
    let mut diagnostics = Diagnostics::default();
    for role in &kit.roles {
        RoleForm::read_of_kit(&mut Walk::new(&mut diagnostics), role.node(), role.node());
    }
    assert_eq!(diagnostics, Diagnostics::default());
    assert_eq!(kit.roles.iter().map(|role| role.name.as_str()).collect::<Vec<_>>(), ["server", "client"]);
}

#[test]
fn the_examples_fit_the_schemas() {
    let json = |text: &str| {
        let tree = crate::yaml::read(&source(text), crate::yaml::Codes::RUN, &mut Diagnostics::default());
        tree.unwrap().root().to_json()
    };
    let run = jsonschema::validator_for(&crate::schema::run_schema()).unwrap();
    let kit = jsonschema::validator_for(&crate::schema::kit_schema()).unwrap();
    assert!(run.is_valid(&json(SHORT)) && run.is_valid(&json(GENERAL)) && kit.is_valid(&json(IPERF)));
    for bad in ["{}", "{api_version: v1, roles: {}}", "{api_version: v1, roles: {a: {command: []}}}"] {
        assert!(!run.is_valid(&json(bad)), "{bad}");
    }
}

//! Roles on agents of every spelling, host keys, and kits from files, each run for real.

use std::fs;

use serde_json::{Value, json};
use stead_testkit::sshd::{self, KeyKind, Sshd, make_key};

use super::place::Place;
use crate::cases_17_32::lab::Ended;

/// A run of one role `one` on the agent `agent`, which does its work in the server's place.
fn on(server: &Sshd, transport: &str) -> Place {
    Place::of(&format!(
        "api_version: v1
run_id: r
agents: {{edge: {{transport: \"{transport}\", workdir: {}}}}}
roles:
  one: {{agent: edge, command: [sh, -c, 'echo \"$STEAD_ROLE of $STEAD_RUN_ID\"']}}
",
        server.workdir().display()
    ))
}

/// Runs it in an account whose `~/.ssh` is the directory `home` of the place.
fn run(place: &Place) -> Ended {
    let mut command = place.stead(["run", "manifest", "m.yaml", "--json"]);
    command.env("HOME", place.lab.path("home"));
    command.output().unwrap().into()
}

#[track_caller]
fn runs(place: &Place) {
    let document = run(place).exits(0).document();
    assert_eq!(document["roles"]["one"]["status"], "success");
    assert_eq!(place.read("roles/one/stdout.log"), "one of r\n");
    place.verifies();
}

/// Nobody was let in, nothing was started, and the options that help are named.
#[track_caller]
fn is_refused(place: &Place, server: &Sshd, words: &[&str]) {
    let logins = server.logins();
    let ended = run(place).exits(7);
    let error = ended.document()["error"].as_str().unwrap().to_owned();
    for word in words {
        assert!(error.contains(word), "no `{word}` in {error}");
    }
    assert_eq!(place.told(&["role_started"]), Vec::<String>::new());
    assert_eq!(server.logins(), logins);
    place.verifies();
}

/// Case 20: every form of a transport works, with what ssh_config says.
#[test]
fn a_role_runs_on_an_agent_of_every_spelling() {
    if !sshd::available() {
        return;
    }
    let server = Sshd::start();
    let (user, port, at) = (server.user(), server.port(), server.path().display());
    let config = format!(
        "Host lab\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {at}/id\n  UserKnownHostsFile {at}/known_hosts\n"
    );
    for transport in [
        "local".to_owned(),
        server.spec_text(),
        format!("ssh://{user}@127.0.0.1:{port}?key={at}/id&known_hosts={at}/known_hosts&os=linux"),
        format!("{user}@lab"),
        format!("ssh://{user}@lab"),
        format!("ssh://{user}@lab:{port}?agent=false"),
    ] {
        let place = on(&server, &transport);
        place.lab.write("home/.ssh/config", &config);
        runs(&place);
        let masked = place.role("one")["transport"].as_str().unwrap().to_owned();
        assert_eq!(masked == "local", transport == "local", "{masked}");
    }
    assert_eq!(server.logins(), 5);
}

/// Case 20: a host key that nobody knows is refused, and so is one that changed; `known_hosts=` and `insecure=true` help.
#[test]
fn host_keys_decide_whether_a_role_runs() {
    if !sshd::available() {
        return;
    }
    let server = Sshd::start();
    let at = server.path().display();
    let bare = format!(
        "ssh://{}@127.0.0.1:{}?key={at}/id&agent=false&ssh_config=none",
        server.user(),
        server.port()
    );

    let unknown = on(&server, &bare);
    is_refused(&unknown, &server, &["known_hosts=", "insecure=true"]);

    let insecure = on(&server, &format!("{bare}&insecure=true"));
    runs(&insecure);
    assert_eq!(insecure.warnings(), ["reach/insecure"]);
    runs(&on(&server, &format!("{bare}&known_hosts={at}/known_hosts")));

    let own = on(&server, &bare);
    fs::create_dir_all(own.lab.path("home/.ssh")).unwrap();
    fs::copy(server.file("known_hosts"), own.lab.path("home/.ssh/known_hosts")).unwrap();
    runs(&own);

    let changed = on(&server, &format!("{bare}&known_hosts=OTHER"));
    let (key, hosts) = (changed.lab.path("other"), changed.lab.path("hosts"));
    make_key(&key, KeyKind::Ed25519);
    let public = fs::read_to_string(key.with_extension("pub")).unwrap();
    let words: Vec<&str> = public.split_whitespace().take(2).collect();
    fs::write(&hosts, format!("[127.0.0.1]:{} {}\n", server.port(), words.join(" "))).unwrap();
    let manifest = changed.lab.read("m.yaml").replace("OTHER", &hosts.display().to_string());
    changed.lab.write("m.yaml", manifest);
    is_refused(&changed, &server, &["changed"]);
}

/// Case 8: an agent id is nothing until somebody says what it means: a flag or the registry.
#[test]
fn agents_from_flags_and_from_the_registry_run_roles() {
    let place =
        Place::of("api_version: v1\nrun_id: r\nroles:\n  one: {agent: A1, command: [echo, 'hello']}\n");
    place.run(&[]).exits(3).says("known agents: local");
    assert!(!place.lab.path("runs").exists());
    let ran = |args: &[&str]| {
        let document = place.json(args, 0);
        assert_eq!(document["roles"]["one"]["status"], "success");
        assert_eq!(place.read("roles/one/stdout.log"), "hello\n");
        place.is_clean();
        place.role("one")
    };
    let role = ran(&["--agent", "A1=local"]);
    assert_eq!((&role["agent_id"], &role["transport"]), (&json!("A1"), &json!("local")));
    place.lab.write("agents.yaml", "agents:\n  A1: {transport: local, description: here}\n");
    let role = ran(&["--force"]);
    assert_eq!((&role["agent_id"], &role["transport"]), (&json!("A1"), &json!("local")));
    if !sshd::available() {
        return;
    }
    let server = Sshd::start();
    let registry = format!(
        "agents:\n  A1: {{transport: \"{}\", workdir: {}}}\n",
        server.spec_text(),
        server.workdir().display()
    );
    place.lab.write("other.yaml", registry);
    let role = ran(&["--force", "--agents", "other.yaml"]);
    assert!(role["transport"].as_str().unwrap().starts_with("ssh://"), "{role}");
    assert_eq!(server.logins(), 1);
}

/// Case 9: the kit of section 3, run with a stub of its program: the command lines are as declared.
#[test]
fn a_kit_of_a_file_runs_its_program() {
    let place = Place::of(
        "api_version: v1
run_id: r
kit: iperf
network: {data_plane: {target_ip: 127.0.0.1}}
roles:
  server: {port: 5300}
  client: {seconds: 3, args: {window: 64K, parallel: 2, reverse: true}}
",
    );
    place.lab.write(
        "kits/iperf.yaml",
        r#"api_version: v1
kit: iperf
requires: [network.data_plane.target_ip]
roles:
  server: {kind: service, fields: {port: {type: int, default: 5201, min: 1, max: 65535}}, ready: {method: regex, pattern: listening},
           command: [iperf3, --server, --port, "{{ port }}", "{{ args }}"]}
  client: {needs: [server], fields: {seconds: {type: int, required: true, min: 1}, proto: {type: enum, values: [tcp, udp], default: tcp}},
           command: [iperf3, --client, "{{ network.data_plane.target_ip }}", --json, {flag: --time, value: "{{ seconds }}"}, "{{ args }}"]}
"#,
    );
    place.program(
        "bin/iperf3",
        "#!/bin/sh\nprintf '<%s>' \"$@\"; echo\n[ \"$1\" = --server ] || exit 0\necho listening\nexec sleep 60\n",
    );
    place.json(&[], 0);
    assert_eq!(place.read("roles/server/stdout.log"), "<--server><--port><5300>\nlistening\n");
    assert_eq!(
        place.read("roles/client/stdout.log"),
        "<--client><127.0.0.1><--json><--time><3><--window><64K><--parallel><2><--reverse>\n"
    );
    assert_eq!(
        place.told(&["role_ready", "role_started"])[..2],
        ["role_started:server", "role_ready:server"]
    );
    let versions: Value = serde_json::from_str(&place.read("versions.json")).unwrap();
    let program = place.lab.path("bin/iperf3").display().to_string();
    assert_eq!(versions["roles"]["client"]["program"], program);
    place.is_clean();
}

/// Case 22: a password is nowhere in the bundle, nor in what is said of a run that could not begin.
#[test]
fn a_password_in_a_transport_is_nowhere_in_the_bundle() {
    let transport = format!("ssh://ann:hunter22@127.0.0.1:{}?agent=false&ssh_config=none", sshd::free_port());
    let place = Place::new(&format!("  one: {{agent: '{transport}', command: ['true']}}\n"));
    let ended = place.run(&["--json", "-v"]).exits(7);
    assert!(!ended.stdout.contains("hunter22") && !ended.stderr.contains("hunter22"), "{ended:?}");
    assert!(place.role("one")["transport"].as_str().unwrap().starts_with("ssh://ann:***@"));
    assert_eq!(place.warnings(), ["reach/secret-in-spec"]);
    place.verifies();
    let files = place.lab.snapshot("runs/r");
    // Only the manifest itself is kept byte for byte.
    let tells = |(path, content): &(&std::path::PathBuf, &String)| {
        content.contains("hunter22") && !path.ends_with("manifest.yaml")
    };
    let found: Vec<_> = files.iter().filter(tells).map(|(path, _)| path).collect();
    assert!(found.is_empty(), "{found:?}");
}

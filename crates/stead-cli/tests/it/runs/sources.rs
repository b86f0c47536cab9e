//! Where roles and agents come from, and what is left of how they were written.

use super::place::{Place, SERVER};

/// Cases 8 and 9: roles of a kit's file run on an agent of the registry, their command lines as the kit declares them.
#[test]
fn a_kit_of_a_file_runs_on_an_agent_of_the_registry() {
    let place = Place::of(
        "api_version: v1
run_id: r
kit: iperf
network: {data_plane: {target_ip: 127.0.0.1}}
roles:
  server: {agent: A1, port: 5202}
  client: {agent: A1, seconds: 3, args: {zerocopy: true, parallel: 2}}
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
        "#!/bin/sh\necho \"$*\"\n[ \"$1\" = --server ] || exit 0\necho listening\ntrap 'exit 0' TERM\nwhile :; do sleep 0.02; done\n",
    );
    place.run(&[]).exits(3).says("known agents: local");
    place.lab.write("agents.yaml", "agents: {A1: {transport: local, status: ok}}\n");
    place.json(&[], 0);
    assert_eq!(place.read("roles/server/stdout.log"), "--server --port 5202\nlistening\n");
    assert_eq!(
        place.read("roles/client/stdout.log"),
        "--client 127.0.0.1 --json --time 3 --zerocopy --parallel 2\n"
    );
    assert_eq!(place.role("client")["agent_id"], "A1");
    place.is_clean();
}

/// Section 5: the order of roles and of `args` is that of the manifest.
#[test]
fn the_resolved_manifest_keeps_the_order_of_the_manifest() {
    let place = Place::new(&format!(
        "  zeta: {SERVER}\n  alpha: {{needs: [zeta], command: ['true'], matrix: {{size: [1], mode: [a]}}}}\n"
    ));
    place.json(&[], 0);
    let resolved = place.read("manifest_resolved.yaml");
    let at = |text: &str| resolved.find(text).unwrap_or_else(|| panic!("no {text}: {resolved}"));
    assert!(at("\n    zeta:") < at("\n    alpha:"), "{resolved}");
    assert!(at("        size:") < at("        mode:"), "{resolved}");
    place.is_clean();
}

/// Section 2.3: one text form of a value, alone and inside a text.
#[test]
fn values_read_the_same_alone_and_inside_a_text() {
    let place = Place::of(
        "api_version: v1
run_id: r
vars: {b: true, f: 1.0, g: 2.9}
roles:
  one: {command: [echo, '{{ vars.b }}', 'v={{ vars.b }}', '{{ vars.f }}', 'v={{ vars.f }}', 'v={{ vars.g }}', 'v={{ matrix.x }}'], matrix: {x: [false]}}
",
    );
    place.json(&[], 0);
    assert_eq!(place.read("roles/one/stdout.log"), "true v=true 1 v=1 v=2.9 v=false\n");
    place.is_clean();
}

/// Section 2.1: with `until: duration` the run ends by it, also while a task would go on.
#[test]
fn a_duration_ends_a_run_whose_task_goes_on() {
    let place = Place::of(&format!(
        "api_version: v1\nrun_id: r\nuntil: duration\nroles:\n  server: {}\n  t: {{needs: [server], command: [sleep, '100']}}\n",
        SERVER.replace("kind: service", "kind: service, duration_seconds: 1")
    ));
    let document = place.json(&["--timeout", "60s"], 0);
    assert_eq!((&document["status"], &document["ended_by"]), (&"success".into(), &"duration".into()));
    place.is_clean();
}

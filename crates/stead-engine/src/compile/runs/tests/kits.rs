//! Roles that kits make.

use super::*;

const IPERF: &str = r#"api_version: v1
kit: iperf
requires: [network.data_plane.target_ip]
roles:
  server: {kind: service, fields: {port: {type: int, default: 5201, min: 1, max: 65535}}, ready: {method: tcp_connect, port: "{{ port }}"},
           command: [iperf3, --server, --port, "{{ port }}", "{{ args }}"]}
  client: {needs: [server], fields: {seconds: {type: int, required: true, min: 1}, proto: {type: enum, values: [tcp, udp], default: tcp}},
           command: [iperf3, --client, "{{ network.data_plane.target_ip }}", --json, {flag: --time, value: "{{ seconds }}"}, "{{ args }}"]}
"#;

/// Case 4: both command lines of the short form, exactly.
#[test]
fn cipdip_command_lines_are_exact() {
    let manifest = short(
        "  server: {agent: local, personality: adapter}\n  client:\n    agent: local\n    scenario: baseline\n    \
         duration_seconds: 20\n    args: {log_level: debug, rate: 2.9, tag: [a, b], quiet: true, off: false, none: null, \
         empty: '', big: 3.0, n: 0x10}\n",
    );
    let run = Wish { files: PUMP, ..Wish::of(&manifest) }.run();
    assert_eq!(
        argv(&run.roles["server"]),
        [
            "cipdip",
            "server",
            "--listen-ip",
            "0.0.0.0",
            "--listen-port",
            "45000",
            "--personality",
            "adapter",
            "--tui-stats"
        ]
    );
    assert_eq!(
        argv(&run.roles["client"]),
        [
            "cipdip",
            "client",
            "--ip",
            "10.20.0.7",
            "--port",
            "45000",
            "--scenario",
            "baseline",
            "--duration-seconds",
            "20",
            "--tui-stats",
            "--log-level",
            "debug",
            "--rate",
            "2.9",
            "--tag",
            "a",
            "--tag",
            "b",
            "--quiet",
            "--big",
            "3",
            "--n",
            "16",
        ]
    );
    assert_eq!(run.start_order, ["server", "client"]);
    assert_eq!(run.roles["client"].needs, ["server"]);
    assert_eq!(run.roles["client"].duration_seconds, None, "it is told how long to talk");
    let ready = run.roles["server"].ready.as_ref().unwrap();
    assert_eq!(
        (&ready["method"], &ready["fallback"], &ready["host"], &ready["port"], &ready["timeout_seconds"]),
        (&json!("structured_stdout"), &json!("tcp_connect"), &json!("0.0.0.0"), &json!(45000), &json!(30))
    );
}

#[test]
fn every_flag_of_cipdip_has_its_place() {
    let manifest = short(
        "  server: {agent: local, personality: '', mode: fast, args: {pcap: true, server_config: conf/s.yaml, x: 1}}\n  \
         client: {agent: local, scenario: profile, profile_role: pump, duration_seconds: 5, interval_ms: 7, args: {pcap: out/c.pcap}}\n",
    );
    let files = &[PUMP[0], ("conf/s.yaml", "s"), ("cipdip_client.yaml", "c")];
    let run = Wish { files, ..Wish::of(&manifest) }.run();
    assert_eq!(
        argv(&run.roles["server"]),
        [
            "cipdip",
            "server",
            "--listen-ip",
            "0.0.0.0",
            "--listen-port",
            "45000",
            "--mode",
            "fast",
            "--pcap",
            "server.pcap",
            "--tui-stats",
            "--server-config",
            "s.yaml",
            "--x",
            "1",
        ]
    );
    assert_eq!(
        argv(&run.roles["client"]),
        [
            "cipdip",
            "client",
            "--ip",
            "10.20.0.7",
            "--port",
            "45000",
            "--profile",
            "{{ profile.path }}",
            "--role",
            "pump",
            "--duration-seconds",
            "5",
            "--interval-ms",
            "7",
            "--pcap",
            "out/c.pcap",
            "--tui-stats",
        ]
    );
    let staged = |role: &str| -> Vec<(&str, &str)> {
        run.roles[role].files.iter().map(|file| (file.from.as_str(), file.to.as_str())).collect()
    };
    assert_eq!(staged("server"), [("conf/s.yaml", "s.yaml")]);
    assert_eq!(staged("client"), [("cipdip_client.yaml", "cipdip_client.yaml")]);
    assert_eq!(run.roles["client"].artifacts[0].path, "out/c.pcap");
}

/// Case 3: what a short form cannot do without, and values it cannot have.
#[test]
fn short_forms_are_checked() {
    let client = "  client: {agent: local, scenario: s, duration_seconds: 1}\n";
    let alone = short(client).replace("server_listen_ip: 0.0.0.0, ", "");
    Wish { files: PUMP, ..Wish::of(&alone) }.run();
    let of = |roles: &str| Wish { files: PUMP, ..Wish::of(&short(roles)) }.problems();
    let with_server = format!("{alone}  server: {{agent: local}}\n");
    let found = Wish { files: PUMP, ..Wish::of(&with_server) }.problems();
    assert!(found.len() == 1 && found[0].contains("network.data_plane.server_listen_ip: "), "{found:?}");
    for (role, wanted) in [
        (
            "agent: local, scenario: s, duration_seconds: 0",
            "roles.client.duration_seconds: expected a whole number from 1",
        ),
        ("agent: local, scenario: s", "roles.client.duration_seconds: a `client` of kit `cipdip` needs"),
        (
            "agent: local, duration_seconds: 1",
            "roles.client.scenario: a `client` of kit `cipdip` needs `scenario`",
        ),
        ("scenario: s, duration_seconds: 1", "roles.client.agent: a role of kit `cipdip` needs `agent`"),
        (
            "agent: local, scenario: profile, duration_seconds: 1",
            "roles.client.profile_role: scenario `profile` needs",
        ),
        (
            "agent: local, scenario: s, duration_seconds: 1, interval_ms: 0",
            "roles.client.interval_ms: expected a number of at least 1",
        ),
        (
            "agent: local, scenario: s, duration_seconds: 1, args: {ip: x}",
            "roles.client.args.ip: `--ip` is set by the kit itself",
        ),
        (
            "agent: local, scenario: s, duration_seconds: 1, args: {pcap: ../x}",
            "roles.client.args.pcap: `../x` leaves the workdir",
        ),
        (
            "agent: local, scenario: s, duration_seconds: 1, args: {config: nope}",
            "roles.client.args.config: there is no file `nope`",
        ),
        (
            "agent: local, scenario: s, duration_seconds: 1, personality: adapter",
            "roles.client.personality: a role has no key `personality`",
        ),
    ] {
        let found = of(&format!("  client: {{{role}}}\n"));
        assert!(found.len() == 1 && found[0].contains(wanted), "{role}: {found:?}");
    }
    let found = of("  server: {agent: local, personality: plc}\n");
    assert!(found[0].contains("expected one of adapter, logix_like, pccc, minimal"), "{found:?}");
    let found = Wish { files: PUMP, ..Wish::of(&format!("{}readiness: {{method: tcp}}\n", short(client))) }
        .problems();
    assert!(
        found[0].contains("readiness.method: `method` is `tcp`") && found[0].contains("tcp_connect"),
        "{found:?}"
    );
    let bare = Wish::of(&general(client)).problems();
    assert!(bare.iter().any(|problem| problem.contains("profile.path: kit `cipdip` needs")), "{bare:?}");
    assert!(bare.iter().any(|problem| problem.contains("network.data_plane.target_ip: kit")), "{bare:?}");
}

#[test]
fn an_address_of_the_client_is_checked_but_not_passed() {
    let manifest = short("  client: {agent: local, scenario: s, duration_seconds: 1}\n")
        .replace("target_port", "client_bind_ip: 10.0.0.9, target_port");
    let run = Wish { files: PUMP, ..Wish::of(&manifest) }.run();
    assert_eq!(run.roles["client"].bind_ip, Some("10.0.0.9".parse().unwrap()));
    assert_eq!((run.warnings.len(), run.warnings[0].code.as_str()), (1, "run/kit-field-not-passed"));
    assert_eq!(run.warnings[0].role.as_deref(), Some("client"));
}

fn iperf(roles: &str) -> String {
    format!("api_version: v1\nkit: iperf\nnetwork: {{data_plane: {{target_ip: '::1'}}}}\nroles:\n{roles}")
}

/// Case 9: command lines as the kit declares them; what is missing or unknown is named.
#[test]
fn kits_of_files_make_command_lines() {
    let kits = &[("iperf", IPERF)];
    let manifest = iperf(
        "  server: {port: 7000}\n  fast: {kit_role: client, seconds: 3, args: {parallel: 4, zerocopy: true}}\n",
    );
    let run = Wish { kits, ..Wish::of(&manifest) }.run();
    assert_eq!(argv(&run.roles["server"]), ["iperf3", "--server", "--port", "7000"]);
    assert_eq!(
        argv(&run.roles["fast"]),
        ["iperf3", "--client", "::1", "--json", "--time", "3", "--parallel", "4", "--zerocopy"]
    );
    assert_eq!(run.roles["fast"].needs, ["server"]);
    assert_eq!(run.roles["server"].ready.as_ref().unwrap()["port"], 7000);
    assert_eq!(run.kits["iperf"], Digest::of(IPERF.as_bytes()));
    for (role, wanted) in [
        ("client: {}", "roles.client.seconds: a `client` of kit `iperf` needs `seconds`"),
        ("client: {seconds: 1, bandwidth: 3}", "roles.client.bandwidth: a role has no key `bandwidth`"),
        ("client: {seconds: 0}", "roles.client.seconds: expected a number of at least 1"),
        ("client: {seconds: soon}", "roles.client.seconds: expected a whole number"),
        ("client: {seconds: 1, proto: sctp}", "roles.client.proto: expected one of tcp, udp"),
        (
            "client: {seconds: 1, args: {time: 3}}",
            "roles.client.args.time: `--time` is set by the kit itself",
        ),
        (
            "other: {seconds: 1}",
            "roles.other: the role has no `command`, and kit `iperf` has no role `other`",
        ),
        ("client: {seconds: 1, kit: ipref}", "roles.client.kit: there is no kit `ipref`"),
    ] {
        let found = Wish { kits, ..Wish::of(&iperf(&format!("  {role}\n"))) }.problems();
        assert!(found.len() == 1 && found[0].contains(wanted), "{role}: {found:?}");
    }
    let lacking = iperf("  client: {seconds: 1}\n").replace("{target_ip: '::1'}", "{}");
    let found = Wish { kits, ..Wish::of(&lacking) }.problems();
    assert!(found[0].contains("network.data_plane.target_ip: kit `iperf` needs"), "{found:?}");
}

#[test]
fn a_role_that_says_nothing_is_all_its_kits() {
    let kit = "api_version: v1\nkit: k\nroles:\n  db: {kind: service, command: [db]}\n  app: {needs: [db], command: [app]}\n";
    let kits = &[("k", kit)];
    let run =
        Wish { kits, ..Wish::of("api_version: v1\nkit: k\nroles:\n  app:\n  store: {kit_role: db}\n") }.run();
    assert_eq!(
        (argv(&run.roles["app"]), &run.roles["app"].needs[..]),
        (vec!["app"], &["store".to_owned()][..])
    );
    let alone = Wish { kits, ..Wish::of("api_version: v1\nkit: k\nroles: {app: {}}\n") }.run();
    assert!(alone.roles["app"].needs.is_empty());
}

#[test]
fn a_role_overrides_its_kit_key_by_key() {
    let kits = &[("iperf", IPERF)];
    let manifest =
        iperf("  server: {ready: {method: none}, kind: task}\n").replace("ready: {method: none}, ", "");
    let found = Wish { kits, ..Wish::of(&manifest) }.problems();
    assert!(
        found[0].contains("only a service has this"),
        "the kit's `ready` is of no use to a task: {found:?}"
    );
    let manifest = iperf(
        "  server: {ready: {method: file, path: up}}\n  client: {needs: [], seconds: 1, matrix: {n: [1, 2]}, args: {p: '{{ matrix.n }}'}}\n",
    );
    let run = Wish { kits, ..Wish::of(&manifest) }.run();
    assert_eq!(run.roles["server"].ready.as_ref().unwrap()["method"], "file");
    assert!(run.roles["client-1"].needs.is_empty());
    assert_eq!(argv(&run.roles["client-2"])[6..], ["--p", "2"]);
}

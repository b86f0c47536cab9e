//! Rules of single keys, and what a problem is made of.

use super::*;

/// Code, severity and path of the problems of a file called `x`.
fn told(kind: FileKind, text: &str) -> Vec<String> {
    let read = site(&[(kind, "x", text)]);
    let all = read.manifests.values().flat_map(|entry| &entry.diagnostics.0);
    let all = all.chain(read.presets.values().flat_map(|entry| &entry.diagnostics.0));
    let all = all.chain(read.hosts.values().flat_map(|entry| &entry.diagnostics.0));
    all.map(|problem| {
        let written = problem.to_json();
        let word = written["severity"].as_str().unwrap();
        format!("{word} {} {}", problem.code, problem.path)
    })
    .collect()
}

/// Section 3: a node cannot make itself, and only a root is made on a host of its own.
#[test]
fn create_is_push_and_only_roots_have_hosts() {
    let nodes = |more: &str| {
        format!(
            "schema_version: 2\nname: x\nnodes: [{{name: a, type: vm}}, {{name: b, type: vm, parent: a, {more}}}]\n"
        )
    };
    for mode in ["pull", "hybrid"] {
        let found = told(FileKind::Manifest, &nodes(&format!("execution: {{phases: {{create: {mode}}}}}")));
        assert_eq!(found, ["error node/conflict nodes[1].execution.phases.create"], "{mode}");
    }
    assert_eq!(told(FileKind::Manifest, &nodes("execution: {phases: {create: push}}")), [""; 0]);
    assert_eq!(told(FileKind::Manifest, &nodes("host: h")), ["error node/conflict nodes[1].host"]);
}

/// Section 2: the description of a host has types and known keys; what nothing reads is warned of.
#[test]
fn the_description_of_a_host_is_checked() {
    for (text, found) in [
        ("storage: {zfs_pools: 5}", &["error node/bad-type storage.zfs_pools"][..]),
        ("storage: {zfs_pools: [tank, {name: fast, devices: [sda]}]}", &[]),
        ("storage: {zfs_pools: [{devices: [sda]}]}", &["error node/missing-field storage.zfs_pools[0].name"]),
        (
            "network: {interfaces: {vmbr0: {adress: 10.0.0.1/24}}}",
            &["error node/unknown-key network.interfaces.vmbr0.adress"],
        ),
        (
            "network: {interfaces: {vmbr0: {address: 10.0.0.1/24, ports: [eno1], mtu: 9000, type: bridge}}}",
            &[],
        ),
        (
            "network: {interfaces: {vmbr0: {mtu: many, gateway: nowhere}}}",
            &[
                "error node/bad-type network.interfaces.vmbr0.mtu",
                "error node/bad-type network.interfaces.vmbr0.gateway",
            ],
        ),
        (
            "{arch: x86_64, domain: lab.example, hardware: {cpu: 1}}",
            &[
                "warning node/unapplied-key arch",
                "warning node/unapplied-key domain",
                "warning node/unapplied-key hardware",
            ],
        ),
    ] {
        assert_eq!(told(FileKind::Host, text), found, "{text}");
    }
}

/// Section 2: packages of a preset still count, and are warned of.
#[test]
fn packages_of_a_preset_are_warned_of() {
    let text = "{cores: 1, memory: 512, disk: 1, packages: [htop]}\n";
    assert_eq!(told(FileKind::Preset, text), ["warning node/unapplied-key packages"]);
    assert_eq!(site(&[(FileKind::Preset, "x", text)]).presets["x"].value.packages, ["htop"]);
}

/// Section 3: every part of a problem, where it is and how bad it is.
#[test]
fn a_problem_says_where_it_is_and_how_bad() {
    let text = "schema_version: 2\nname: x\nnodes:\n  - {name: a, type: zebra}\n";
    let read = site(&[(FileKind::Manifest, "x", text)]);
    let mut written = read.manifests["x"].diagnostics.0[0].to_json();
    for spoken in ["message", "help"] {
        let text = written.as_object_mut().unwrap().remove(spoken).unwrap();
        assert!(text.as_str().is_some_and(|text| !text.is_empty()), "{spoken}");
    }
    assert_eq!(
        written,
        json!({"code": "node/bad-enum", "severity": "error", "file": "manifests/x.yaml", "line": 4, "column": 21,
            "path": "nodes[0].type", "candidates": ["vm", "ct", "pve"]})
    );
}

//! Site files that are right and wrong, and what they resolve to.

use serde_json::{Value, json};

use super::manifest::{Mode, Origin, Pattern};
use super::*;
use crate::id::NodeName;

mod defaults;
mod rules;

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB ann@desk";

const LOCAL: &str =
    "ssh: {permit_root_login: prohibit-password, password_authentication: 'no'}\nsudo: {nopasswd: true}\n";

const BASE: &str = "schema_version: 1
access:
  posture: local
  users: [{name: ops, sudo: true}]
platform:
  packages: [htop, curl]
  services: {disable: [rpcbind]}
";

fn file(kind: FileKind, stem: &str, text: &str) -> SiteFile {
    SiteFile { kind, stem: stem.to_owned(), name: kind.path_of(stem), content: Ok(text.as_bytes().to_vec()) }
}

fn site(files: &[(FileKind, &str, &str)]) -> Site {
    Site::read(files.iter().map(|(kind, stem, text)| file(*kind, stem, text)).collect())
}

fn vector_site() -> Site {
    site(&[
        (FileKind::Site, "site", "defaults: {domain: lab.example, packages: [ca-certificates]}\n"),
        (FileKind::Secrets, "secrets", &format!("ssh_keys: {{ann@desk: {KEY}}}\n")),
        (FileKind::Posture, "local", LOCAL),
        (FileKind::Spec, "base", BASE),
    ])
}

fn key(text: &str) -> SiteKey {
    SiteKey::parse(text).unwrap()
}

fn edge() -> NodeName {
    NodeName::parse("edge").unwrap()
}

/// All problems of a site, in the order of its files.
fn problems(site: &Site) -> String {
    let mut all = Diagnostics::default();
    let mut take = |diagnostics: &Diagnostics| all.0.extend(diagnostics.0.clone());
    [&site.settings.diagnostics, &site.secrets.diagnostics, &site.keyring.diagnostics]
        .into_iter()
        .for_each(&mut take);
    site.hosts.values().chain(site.instances.values()).for_each(|entry| take(&entry.diagnostics));
    site.presets.values().for_each(|entry| take(&entry.diagnostics));
    site.postures.values().for_each(|entry| take(&entry.diagnostics));
    site.specs.values().for_each(|entry| take(&entry.diagnostics));
    site.manifests.values().for_each(|entry| take(&entry.diagnostics));
    take(&site.strays);
    all.iter().map(|problem| format!("{problem} [{}]\n", problem.path)).collect()
}

/// Case 13: the vector, byte for byte.
#[test]
fn the_vector_resolves_to_its_bytes_and_digest() {
    let site = vector_site();
    assert_eq!(problems(&site), "");
    let resolved = resolve(&site, &key("base"), &edge()).unwrap();
    let expected = format!(
        r#"{{"access":{{"posture":"local","security":{{"fail2ban":{{"enabled":false}},"ssh":{{"password_authentication":"no","permit_root_login":"prohibit-password","port":22}},"sudo":{{"nopasswd":true}}}},"users":[{{"name":"ops","ssh_keys":["{KEY}"],"sudo":true}}]}},"config":{{"timezone":"UTC"}},"identity":{{"domain":"lab.example","hostname":"edge"}},"node":"edge","platform":{{"packages":["htop","curl","ca-certificates"],"services":{{"disable":["rpcbind"],"enable":[]}}}},"run":{{"trigger":"manual"}},"schema_version":1,"spec":"base"}}"#
    );
    assert_eq!(resolved.to_canonical_json(), expected);
    assert_eq!(expected.len(), 589);
    assert_eq!(resolved.digest(), "sha256:2c5ccf39e00acf2381d580ca35aff89c135694fced864d0ad0df9792cb9fed2f");
    let again: ResolvedSpec = serde_json::from_str(&expected).unwrap();
    assert_eq!(again, resolved);
}

/// The digests of many nodes are those of each alone, also where a value looks like a node's name.
#[test]
fn many_digests_are_those_of_each() {
    let spec = "schema_version: 1
identity: {domain: edge}
access: {posture: p}
config: {mine: {node: edge, identity: {hostname: edge}, hostname: edge}}
";
    let site = site(&[
        (FileKind::Posture, "p", "{}"),
        (FileKind::Spec, "s", spec),
        (FileKind::Spec, "plain", "schema_version: 1\naccess: {posture: p}\n"),
        (FileKind::Spec, "lost", "schema_version: 1\naccess: {posture: none}\n"),
    ]);
    let mut digests = Digests::new(&site);
    for name in ["edge", "edge-2", "a"] {
        let node = NodeName::parse(name).unwrap();
        for spec in ["s", "plain"] {
            let alone = resolve(&site, &key(spec), &node).unwrap().digest();
            assert_eq!(digests.of(&key(spec), &node), Some(alone), "{spec} {name}");
        }
        assert_eq!(digests.of(&key("lost"), &node), None);
        assert_eq!(digests.of(&key("none"), &node), None);
    }
}

/// Case 14: omitted, one id, none.
#[test]
fn keys_of_a_user_are_all_some_or_none() {
    let second = KEY.replace("ann@desk", "bob");
    let secrets = format!("ssh_keys:\n  zoe: {KEY}\n  ann: {second}\n  twin: {KEY}\n");
    let spec = "schema_version: 1\naccess: {posture: p, users: [{name: a}, {name: b, ssh_keys: [zoe, ann, twin]}, {name: c, ssh_keys: []}]}\n";
    let site = site(&[
        (FileKind::Secrets, "secrets", &secrets),
        (FileKind::Posture, "p", "{}"),
        (FileKind::Spec, "s", spec),
    ]);
    let users = resolve(&site, &key("s"), &edge()).unwrap().access.users;
    assert_eq!(users[0].ssh_keys, [second.clone(), KEY.to_owned()], "sorted by id, each line once");
    assert_eq!(users[1].ssh_keys, [KEY.to_owned(), second], "in the order given");
    assert!(users[2].ssh_keys.is_empty());
}

#[test]
fn optional_parts_and_free_keys_resolve() {
    let spec = "schema_version: 1
identity: {hostname: other, domain: own.example}
network: {ip: 10.0.0.5/24, gateway: 10.0.0.1}
access: {posture: p}
config: {timezone: Europe/Vienna, pve: {}, mine: {b: 1.50, a: [true, 1.0e+2]}}
run: {trigger: schedule}
";
    let site = site(&[
        (
            FileKind::Site,
            "site",
            "defaults: {domain: lab.example, pve_remove_subscription_nag: false, timezone: UTC}",
        ),
        (FileKind::Posture, "p", "packages: [strace, curl]"),
        (FileKind::Spec, "s", spec),
    ]);
    let text = resolve(&site, &key("s"), &edge()).unwrap().to_canonical_json();
    for part in [
        r#""network":{"dns":[],"gateway":"10.0.0.1","ip":"10.0.0.5/24"}"#,
        r#""run":{"interval":900,"trigger":"schedule"}"#,
        r#""config":{"mine":{"a":[true,100],"b":1.5},"pve":{"remove_subscription_nag":false},"timezone":"Europe/Vienna"}"#,
        r#""identity":{"domain":"own.example","hostname":"edge"}"#,
        r#""packages":["strace","curl"]"#,
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert_eq!(problems(&site).matches("node/unapplied-key").count(), 1);
}

#[test]
fn what_is_missing_is_named() {
    let base = vector_site();
    let error = |change: &dyn Fn(&mut Site)| {
        let mut site = base.clone();
        change(&mut site);
        resolve(&site, &key("base"), &edge()).unwrap_err().to_string()
    };
    assert_eq!(error(&|site| site.specs.clear()), "there is no specs/base.yaml");
    assert_eq!(error(&|site| site.postures.clear()), "there is no postures/local.yaml");
    let named = "schema_version: 1\naccess: {posture: local, users: [{name: a, ssh_keys: [nobody]}]}\n";
    assert_eq!(
        error(&|site| site.add(file(FileKind::Spec, "base", named))),
        "there is no key `nobody` in `ssh_keys` of secrets.yaml"
    );
    assert_eq!(
        error(&|site| site.add(file(FileKind::Spec, "base", "schema_version: 2"))),
        "specs/base.yaml has problems"
    );
    assert_eq!(
        error(&|site| site.add(file(FileKind::Secrets, "secrets", "x: 1"))),
        "secrets.yaml has problems"
    );
}

/// Case 7: older names mean the same, and two that differ are told.
#[test]
fn older_names_are_read() {
    let ours = site(&[(
        FileKind::Site,
        "site",
        "defaults: {server_url: 'https://a:1', host_user: h, vm_user: v, image_release: r}",
    )]);
    let older = site(&[(
        FileKind::Site,
        "site",
        "defaults: {spec_server: 'https://a:1', ssh_user: h, automation_user: v, packer_release: r}",
    )]);
    // Nothing is called after a release here, which is said.
    assert_eq!(problems(&older).matches("node/unapplied-key").count(), 1, "{}", problems(&older));
    assert_eq!(problems(&older).lines().count(), 1);
    assert_eq!(ours.settings.value, older.settings.value);
    let both = site(&[(
        FileKind::Site,
        "site",
        "defaults:\n  vm_user: v\n  automation_user: w\n  host_user: h\n  ssh_user: h\n",
    )]);
    assert_eq!(
        problems(&both),
        "error[node/alias-conflict]: site.yaml:3:20: `automation_user` is the older name of `vm_user`, and the two differ (help: leave `automation_user` out) [defaults.automation_user]\n"
    );
    let posture = |text: &str| site(&[(FileKind::Posture, "p", text)]).postures["p"].value.clone();
    assert_eq!(
        posture("ssh: {permit_root_login: true, password_authentication: false}"),
        posture("ssh: {permit_root_login: 'yes', password_authentication: no}")
    );
    let ignored = site(&[
        (FileKind::Secrets, "secrets", "auth: {site_token: hunter2, node_tokens: {a: hunter2}}"),
        (FileKind::Posture, "p", "auth: {method: x}"),
    ]);
    let told = problems(&ignored);
    assert_eq!(told.matches("warning[node/unapplied-key]").count(), 3, "{told}");
    assert!(!told.contains("hunter2") && !ignored.secrets.is_broken());
}

#[test]
fn every_kind_of_file_tells_all_its_problems() {
    let site = site(&[
        (
            FileKind::Site,
            "site",
            "name: A\nserver: {port: 65536, bind: x, token_ttl: soon, limits: {header_seconds: 0}, repos: [a]}\ndefaults: {gateway: 1.2.3, dns_servers: x, timezone: Vienna, server_url: http://a, colour: red, posture: '..'}\n",
        ),
        (
            FileKind::Host,
            "h",
            "driver: qmeu\nparallel: 0\ntimeouts: {create: 0}\nnetwork: {interfaces: {vmbr0: {address: 10.0.0.9/33}}}\nfaults: [{node: a, phase: never}]\nvmid_range: [200, 100]\nsubnet: 10.0.0.0\nbecome: su\n",
        ),
        (FileKind::Host, "p", "api_endpoint: http://x\n"),
        (FileKind::Instance, "i", "driver: qemu\n"),
        (FileKind::Preset, "v", "cores: 129\nmemory: 511\ndisk: 0\nip: 10.0.0.1\nimagee: x\n"),
        (FileKind::Posture, "p", "ssh: {port: 99999, permit_root_login: maybe}\nsudo: {nopasswd: 'yes'}\n"),
        (
            FileKind::Spec,
            "s",
            "network: {ip: 10.0.0.5/24, gateway: 10.0.1.1}\naccess: {users: [{name: A}, {name: a}, {name: a}, {}]}\nplatform: {services: {enable: [x], disable: [x]}}\nconfig: {timezone: Vienna, pve: {nag: true}}\nrun: {trigger: git, interval: 4s}\n",
        ),
        (FileKind::Spec, "t", "schema_version: 1\nnetwork: {ip: 10.0.0.5/24}\n"),
        (FileKind::Spec, "A", "schema_version: 1\n"),
    ]);
    insta::assert_snapshot!(problems(&site));
}

/// What only a driver or an SSH server would refuse is refused where it is written.
#[test]
fn a_host_says_what_can_be_used() {
    let told = |text: &str| {
        let site = site(&[(FileKind::Host, "h", text)]);
        let problems = site.hosts["h"].diagnostics.iter();
        let mut told: Vec<String> = problems.map(|p| format!("{} {}", p.code, p.path)).collect();
        told.sort();
        told
    };
    let digest = "AB:".repeat(31) + "CD";
    let good = format!(
        "driver: proxmox\ndatastore: d\nfingerprint: '{digest}'\naccess: {{host_user: Ann.Smith, host_key: ssh-ed25519 AAAA ann@desk}}\n"
    );
    assert_eq!(told(&good), [""; 0]);
    assert_eq!(
        told("driver: proxmox\ndatastore: d\nfingerprint: zz\naccess: {host_user: A b, host_key: foo}\n"),
        ["node/bad-name access.host_user", "node/bad-type access.host_key", "node/bad-type fingerprint"]
    );
    assert_eq!(
        told("driver: sandbox\nservices: [ssh, 'x;y']\npackages: [a b, curl]\n"),
        ["node/bad-name packages[0]", "node/bad-name services[1]"]
    );
}

/// Nothing of a file of secrets is in its problems.
#[test]
fn problems_of_secrets_show_no_secret() {
    for text in [
        "api_tokens: {a: hunter2}\nssh_keys: {b: hunter2}\npasswords: {vm_root: hunter2}\nauth: {signing_key: hunter2}\n",
        "hunter2",
        "auth: hunter2",
        "api_tokens: [hunter2]",
        "passwords: {vm_root: [hunter2]}",
        "auth: {signing_key: hunter2",
        "auth: {signing_key: \"hunter2}\n",
        "api_tokens: {a: !hunter2 hunter2}",
        "passwords: {vm_root: *hunter2}",
        "keys: [{key: mint, use: hunter2}]\nauth: {hunter2: 1}\n",
        "hunter2: 1\n? [hunter2]\n: 1\n",
        "ssh_keys: {hunter2: x, hunter2: y}\nrevoked: [{node: Hunter2_hunter2, before: 1}]\n",
        "revoked: [{node: n, before: hunter2}]\nhunter2x: hunter2\n",
        "a: b: hunter2\n",
        "%hunter2 x\n---\na: 1\n",
    ] {
        for kind in [FileKind::Secrets, FileKind::Keyring] {
            let site = site(&[(kind, "x", text)]);
            let broken = [&site.secrets.diagnostics, &site.keyring.diagnostics]
                .into_iter()
                .find(|found| found.has_errors());
            let broken = broken.unwrap();
            let shown = format!("{} {} {broken} {site:?}", broken.render(false), problems(&site));
            let rows: Vec<String> = broken.iter().map(|problem| problem.to_json().to_string()).collect();
            let candidates: Vec<&String> = broken.iter().flat_map(|problem| &problem.candidates).collect();
            let shown = format!("{shown} {rows:?} {candidates:?}");
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }
    let number = site(&[(FileKind::Secrets, "secrets", "{4711: x, auth: 4711, passwords: {vm_root: 4711}}")]);
    let shown = format!("{} {}", number.secrets.diagnostics.render(false), problems(&number));
    assert!(!shown.contains("4711"), "{shown}");
    let mut bytes = b"auth: hunter2 ".to_vec();
    bytes.push(0xff);
    let file = SiteFile {
        kind: FileKind::Secrets,
        stem: "secrets".into(),
        name: "secrets.yaml".into(),
        content: Ok(bytes),
    };
    let site = Site::read(vec![file]);
    let shown = format!("{} {site:?}", site.secrets.diagnostics.render(false));
    assert!(site.secrets.is_broken() && !shown.contains("hunter2"), "{shown}");
}

#[test]
fn debug_of_a_site_shows_no_secret() {
    let secrets = format!(
        "api_tokens: {{a: r@p!i=hunter2}}\npasswords: {{vm_root: $6$hunter2}}\nauth: {{signing_key: '{}'}}\n",
        "ab".repeat(32)
    );
    let keyring = format!("keys: [{{key: '{}', use: mint}}]\n", "cd".repeat(32));
    let site = site(&[(FileKind::Secrets, "secrets", &secrets), (FileKind::Keyring, "keyring", &keyring)]);
    assert_eq!(problems(&site), "");
    let shown = format!("{site:?}");
    assert!(!shown.contains("hunter2") && !shown.contains("abab") && !shown.contains("cdcd"), "{shown}");
    assert!(shown.contains("9a2db2e2"));
}

fn manifest(text: &str) -> Entry<Manifest> {
    Site::read_manifest("m.yaml", text.as_bytes().to_vec(), Origin::Elsewhere)
}

/// The example of the contract, word for word.
#[test]
fn the_contracts_manifest_is_read() {
    let entry = manifest(
        "schema_version: 2
name: harbour
pattern: tiered
execution: {default_mode: pull}
nodes:
  - {name: quay, type: pve, spec: pve, preset: vm-large, image: debian-13-pve, execution: {mode: push}}
  - {name: crane, type: vm, spec: base, preset: vm-small, image: debian-12, parent: quay, count: 2}   # inherits pull
",
    );
    assert_eq!(entry.diagnostics.to_string(), "");
    let manifest = entry.value;
    assert_eq!(manifest.pattern.unwrap().value, Pattern::Tiered);
    assert_eq!((manifest.default_mode, manifest.nodes[0].execution.mode), (Mode::Pull, Some(Mode::Push)));
    assert_eq!((manifest.nodes[1].count, manifest.nodes[1].execution.mode), (Some(2), None));
}

/// Case 4: seven problems with their paths; `imagee` suggests `image`.
#[test]
fn seven_problems_of_a_manifest_have_their_paths() {
    let entry = manifest(
        "schema_version: 2
name: m
settings: {on_error: explode}
nodes:
  - {name: a, type: zebra, execution: {mode: sideways}, imagee: x, vmid: 5, disk: 0, count: 0}
",
    );
    let found: Vec<(&str, &str)> =
        entry.diagnostics.iter().map(|problem| (problem.code, problem.path.as_str())).collect();
    assert_eq!(
        found,
        [
            ("node/bad-enum", "settings.on_error"),
            ("node/bad-enum", "nodes[0].type"),
            ("node/bad-enum", "nodes[0].execution.mode"),
            ("node/unknown-key", "nodes[0].imagee"),
            ("node/out-of-range", "nodes[0].vmid"),
            ("node/out-of-range", "nodes[0].disk"),
            ("node/out-of-range", "nodes[0].count"),
        ]
    );
    assert_eq!(entry.diagnostics.0[3].candidates, ["image"]);
    assert_eq!(entry.diagnostics.0[1].candidates, ["vm", "ct", "pve"]);
}

/// Case 5: what is no manifest at all.
#[test]
fn what_is_no_manifest_says_why() {
    let told = |text: &str| -> Vec<String> {
        manifest(text)
            .diagnostics
            .iter()
            .map(|problem| format!("{} {}", problem.code, problem.message))
            .collect()
    };
    let nodes = "nodes: [{name: a, type: vm}]\n";
    for version in ["1", "99", "'2'"] {
        let found = told(&format!("schema_version: {version}\nname: m\n{nodes}"));
        assert!(
            found.len() == 1 && found[0].starts_with("node/version-unsupported") && found[0].contains("is 2"),
            "{found:?}"
        );
    }
    assert_eq!(
        told(&format!("name: m\n{nodes}")),
        ["node/missing-field a manifest needs the key `schema_version`"]
    );
    assert_eq!(told("schema_version: 2\nname: m\n"), ["node/missing-field a manifest needs the key `nodes`"]);
    assert_eq!(
        told("schema_version: 2\nname: m\nnodes: []\n"),
        ["node/missing-field a manifest has at least one node"]
    );
    assert_eq!(
        told("schema_version: 2\nname: m\nnodes: [{}]\n"),
        ["node/missing-field a node needs the key `name`", "node/missing-field a node needs the key `type`"]
    );
    assert_eq!(told("[a]"), ["node/bad-type expected a manifest (a map), found a list"]);
    assert!(told("{\"schema_version\": 2,")[0].starts_with("node/bad-yaml"));
    let levels = manifest("schema_version: 1\nname: m\nlevels: []\n").diagnostics.to_string();
    assert!(levels.contains("use `nodes` with `parent` in each node"), "{levels}");
}

#[test]
fn a_manifest_in_a_file_has_its_name_and_no_context() {
    let text = "schema_version: 2\nname: other\ncontext: {run: r, path: [a], host: h}\nnodes: [{name: a, type: vm, parent: null}]\n";
    let told = problems(&site(&[(FileKind::Manifest, "m", text)]));
    assert_eq!(told.matches("node/conflict").count(), 2, "{told}");
    let given = Site::read_manifest("--manifest-json", text.as_bytes().to_vec(), Origin::Given);
    assert_eq!(given.diagnostics.to_string(), "");
    assert_eq!(given.value.context.unwrap().path, [NodeName::parse("a").unwrap()]);
}

/// Every key that can be written is written, and reads as what it was.
#[test]
fn manifests_hosts_and_settings_are_written_as_they_are_read() {
    let hosting: Value = serde_json::from_str(
        r#"{
        "driver": "sandbox", "host": "h", "domain": "d", "ip": "10.0.0.1", "arch": "x86_64", "self_addr": "10.0.0.1",
        "parallel": 3, "timeouts": {"create": 1, "address": 2, "ssh": 3, "config": 4, "delegate": 5, "destroy": 6},
        "labels": {"a": "b"}, "become": "sudo:ops",
        "access": {"host_user": "u", "ssh_port": 2222, "authorized_keys": ["ann"], "host_key": "ssh-ed25519 AAAA"},
        "network": {"interfaces": {"vmbr0": {"address": "10.0.0.1/24"}}}, "storage": "overlay", "hardware": {"cpu": 1},
        "ssh": {"a": 1}, "node": "pve", "parent_node": "p", "api_endpoint": "https://h:8006", "api_token": "t",
        "datastore": "zfs", "packages": ["htop"], "services": "any", "boot_delay_ms": 7,
        "faults": [{"node": "a*", "phase": "boot", "times": 1, "error": "e", "delay_ms": 2, "crash": true}],
        "root_dir": "r", "runtime": "crun", "image_dir": "i", "subnet": "10.1.0.0/16", "bridge": "br0", "binary": "b",
        "machine": "q35", "accel": "kvm", "kernel": "k", "initrd": "i", "cmdline": "c", "firmware": "f",
        "iso_storage": "iso", "method": "import", "images": {"d12": 100}, "vmid_range": [100, 200], "fingerprint": "ABABABABABABABABABABABABABABABABABABABABABABABABABABABABABABABAB"
        }"#,
    )
    .unwrap();
    let manifest = json!({
        "schema_version": 2, "name": "m", "description": "d", "pattern": "tiered", "execution": {"default_mode": "pull"},
        "nodes": [
            {"name": "a", "type": "pve", "spec": "s", "preset": "p", "image": "i", "template": "t", "peers": ["b"],
             "depends_on": ["b"], "count": 1, "host": "h", "hosting": hosting.clone(), "vmid": 100, "disk": 3,
             "ip": "10.0.0.5/24", "execution": {"mode": "push", "phases": {"config": "pull", "run": "push", "destroy": "hybrid"}}},
            {"name": "b", "type": "ct", "parent": "a-1", "ip": "dhcp"},
        ],
        "settings": {"verify_ssh": false, "cleanup_on_failure": false, "timeout_buffer": 1, "on_error": "rollback",
            "parallel": 2, "delegation": "job"},
        "context": {"run": "r", "path": ["q"], "host": "local"},
    });
    let read = Site::read_manifest("m", manifest.to_string().into_bytes(), Origin::Given);
    // All keys at once are more than any driver reads, of which it is warned.
    assert!(!read.diagnostics.to_string().contains("error["), "{}", read.diagnostics);
    assert_eq!(read.value.to_json(), manifest);
    let settings = json!({
        "name": "s",
        "server": {"port": 0, "bind": "127.0.0.1", "public_specs": true, "repos": {"r": "/r"}, "token_ttl": "1m30s", "accept_v1": false,
            "limits": {"header_seconds": 1, "header_bytes": 2, "body_seconds": 3, "body_bytes": 4, "connections": 5,
                "auth_failures_per_minute": 6, "anonymous_per_second": 7, "token_per_second": 8}},
        "defaults": {"gateway": "10.0.0.1", "dns_servers": ["1.1.1.1"], "domain": "d", "timezone": "Europe/Vienna", "host_user": "h",
            "vm_user": "v", "ssh_key_file": "k", "packages": ["p"], "posture": "prod", "image": "i", "bridge": "b",
            "image_release": "r", "server_url": "https://s:1", "pve_remove_subscription_nag": false},
    });
    let read = site(&[(FileKind::Site, "site", &settings.to_string())]);
    assert!(!problems(&read).contains("error["), "{}", problems(&read));
    assert_eq!(read.settings.value.to_json(), settings);
    // No key of a table is forgotten above.
    let named = |keys: &crate::yaml::Keys, written: &Value| {
        let missing = keys.keys.iter().filter(|key| written.get(key.name).is_none());
        missing.map(|key| key.name).collect::<Vec<_>>()
    };
    assert_eq!(named(&host::HOSTING_KEYS, &hosting), [""; 0]);
    assert_eq!(named(&manifest::MANIFEST_KEYS, &manifest), [""; 0]);
    let older = ["ssh_user", "automation_user", "packer_release", "spec_server"];
    assert_eq!(named(&settings::DEFAULTS_KEYS, &settings["defaults"]), older);
    assert_eq!(named(&settings::SERVER_KEYS, &settings["server"]), [""; 0]);
}

#[test]
fn files_are_bounded_in_size_and_depth() {
    let deep = format!("schema_version: 1\nconfig: {{a: {}1{}}}\n", "[".repeat(64), "]".repeat(64));
    let told = problems(&site(&[(FileKind::Spec, "s", &deep)]));
    assert!(told.contains("nested deeper than 64 levels"), "{told}");
    let large = "#".repeat(16 * 1024 * 1024 + 1);
    let told = problems(&site(&[(FileKind::Spec, "s", &large)]));
    assert!(told.contains("16 MiB"), "{told}");
}

proptest::proptest! {
    /// Whatever bytes there are: an answer, never a panic.
    #[test]
    fn any_bytes_are_read(bytes: Vec<u8>, text in "[a-z0-9 :{}\\[\\],\n-]{0,120}") {
        for kind in [FileKind::Site, FileKind::Secrets, FileKind::Keyring, FileKind::Host, FileKind::Instance,
            FileKind::Preset, FileKind::Posture, FileKind::Spec, FileKind::Manifest]
        {
            for bytes in [bytes.clone(), text.clone().into_bytes()] {
                let file = SiteFile { kind, stem: "a".to_owned(), name: "a.yaml".to_owned(), content: Ok(bytes) };
                drop(format!("{:?}", Site::read(vec![file])));
            }
        }
    }
}

/// Texts that reach files and programs of a node hold nothing but names.
#[test]
fn texts_that_reach_a_node_are_names() {
    let found = |kind: FileKind, text: &str| -> Vec<String> {
        let site = site(&[(kind, "x", text)]);
        let mut all = site.settings.diagnostics.0.clone();
        all.extend(site.specs.values().flat_map(|entry| entry.diagnostics.0.clone()));
        all.extend(site.postures.values().flat_map(|entry| entry.diagnostics.0.clone()));
        all.into_iter().map(|problem| format!("{} {}", problem.code, problem.path)).collect()
    };
    assert_eq!(
        found(
            FileKind::Spec,
            "schema_version: 1\nidentity: {domain: \"a\\nb\"}\nplatform: {packages: [\"x\\ny\", -x], services: {enable: [\"a b\"], disable: [-x]}}\nconfig: {timezone: europe/vienna}\n"
        ),
        [
            "node/bad-name identity.domain",
            "node/bad-name platform.packages[0]",
            "node/bad-name platform.packages[1]",
            "node/bad-name platform.services.enable[0]",
            "node/bad-name platform.services.disable[0]",
            "node/bad-enum config.timezone",
        ]
    );
    assert_eq!(
        found(
            FileKind::Site,
            "defaults: {domain: -x, packages: [-y], vm_user: Root, timezone: utc, server_url: 'https://x:99999'}\n"
        ),
        [
            "node/bad-name defaults.domain",
            "node/bad-name defaults.packages[0]",
            "node/bad-name defaults.vm_user",
            "node/bad-enum defaults.timezone",
            "node/bad-type defaults.server_url",
        ]
    );
    assert_eq!(found(FileKind::Posture, "packages: ['a;b']\n"), ["node/bad-name packages[0]"]);
    let zone = site(&[(FileKind::Site, "x", "defaults: {timezone: europe/vienna}\n")]);
    assert_eq!(zone.settings.diagnostics.0[0].candidates, ["Europe/Vienna"]);
    for good in ["UTC", "Europe/Vienna", "Etc/UTC", "US/Pacific"] {
        let zone = site(&[(FileKind::Site, "x", &format!("defaults: {{timezone: {good}}}\n"))]);
        assert_eq!(zone.settings.diagnostics.to_string(), "", "{good}");
    }
}

/// What no driver of the host reads is told; so is an address that leads nowhere.
#[test]
fn keys_that_nobody_reads_are_told() {
    let told = |text: &str| -> Vec<String> {
        let site = site(&[(FileKind::Host, "h", text)]);
        let problems = site.hosts.values().flat_map(|entry| entry.diagnostics.0.clone());
        problems.map(|problem| format!("{} {}", problem.code, problem.path)).collect()
    };
    assert_eq!(
        told("driver: sandbox\nkernel: /k\ndatastore: d\nnetwork: user\nself_addr: 127.0.0.1\n"),
        ["node/unapplied-key kernel", "node/unapplied-key datastore", "node/unapplied-key network"]
    );
    assert_eq!(told("driver: qemu\nkernel: /k\nnetwork: {interfaces: {}}\n"), [""; 0]);
    assert_eq!(told("datastore: d\n"), [""; 0], "a file that others inherit from");
    for bad in ["0.0.0.0", "0.0.0.0:1", "'::'", "a b", "'x:99999'"] {
        assert_eq!(told(&format!("self_addr: {bad}\n")), ["node/bad-type self_addr"], "{bad}");
    }
    for here in ["127.0.0.1", "localhost", "'[::1]:443'"] {
        let certain = told(&format!("driver: qemu\nself_addr: {here}\n"));
        assert_eq!(certain, ["node/bad-type self_addr"], "{here}");
        assert_eq!(told(&format!("self_addr: {here}\n")), [""; 0], "who makes machines there is not known");
    }
    let nodes = "schema_version: 2\nname: m\nnodes: [{name: a, type: ct, image: i}, {name: b, type: vm, template: t}, {name: c, type: pve, image: i, template: t}]\n";
    let site = site(&[(FileKind::Manifest, "m", nodes)]);
    let told: Vec<&str> =
        site.manifests.values().flat_map(|entry| &entry.diagnostics.0).map(|p| p.path.as_str()).collect();
    assert_eq!(told, ["nodes[0].image", "nodes[1].template"]);
}

//! What a hosting node is given: all that its subtree needs, and nothing of elsewhere.

use proptest::prelude::*;
use stead_model::NodeName;
use stead_model::site::host::DriverKind;
use stead_model::site::manifest::{Context, Mode};
use stead_model::site::{Parcel, resolve};
use stead_model::token::{LiveRing, SigningKey};

use super::properties::forests;
use super::*;

const NOW: i64 = 1_800_000_000;

fn key_line(i: u8) -> String {
    let bytes = [&[0, 0, 0, 11][..], b"ssh-ed25519", &[0, 0, 0, 32], &[i + 1; 32]].concat();
    format!("ssh-ed25519 {} key-{i}@desk", stead_model::base64::encode(&bytes))
}

fn parent_key(i: u8) -> SigningKey {
    SigningKey::from_bytes([0xa0 + i; 32])
}

/// A site in which every node has a spec, a preset and a posture of its own, and every spec a key.
fn crowded_site(count: u8) -> Site {
    let mut files = Vec::new();
    let mut keys = String::new();
    for i in 0..count {
        let spec = format!(
            "# secret-of-n{i}\nschema_version: 1\naccess: {{posture: p{i}, users: [{{name: ops, ssh_keys: [k{i}]}}]}}\n"
        );
        files.push(file(FileKind::Spec, &format!("s{i}"), &spec));
        files.push(file(FileKind::Posture, &format!("p{i}"), &format!("packages: [posture-of-n{i}]\n")));
        let preset = format!("# preset-of-n{i}\ncores: 1\nmemory: 512\ndisk: 1\n");
        files.push(file(FileKind::Preset, &format!("v{i}"), &preset));
        keys.push_str(&format!("  k{i}: {}\n", key_line(i)));
    }
    let secrets = format!(
        "api_tokens: {{pve: 'root@pam!stead=top-secret'}}\npasswords: {{vm_root: '$6$salt$hash'}}\nssh_keys:\n{keys}  unused: {}\nauth: {{signing_key: '{}'}}\n",
        key_line(200),
        parent_key(0).to_hex()
    );
    let keyring = format!(
        "keys:\n  - {{key: '{}', use: verify, until: {}}}\n  - {{key: '{}', use: verify, until: {}}}\n  - {{key: '{}', use: mint}}\nrevoked: [{{node: n1, before: 5}}, {{jti: some-jti}}]\n",
        parent_key(3).to_hex(),
        NOW - 1,
        parent_key(1).to_hex(),
        NOW + 100,
        parent_key(2).to_hex(),
    );
    let settings = "name: lab\nserver: {repos: {tools: /srv/secret-repo}}\ndefaults: {domain: lab.example, host_user: boss, ssh_key_file: /home/boss/id, server_url: 'https://up.example:1', packages: [common]}\n";
    files.push(file(FileKind::Site, "site", settings));
    files.push(file(FileKind::Secrets, "secrets", &secrets));
    files.push(file(FileKind::Keyring, "keyring", &keyring));
    files.push(file(FileKind::Host, "other", "driver: sandbox\ndomain: other-host.example\n"));
    let site = Site::read(files);
    assert!(!check_site(&site).has_errors(), "{}", check_site(&site));
    site
}

fn above<'a>(site: &'a Site, ring: &'a LiveRing) -> Above<'a> {
    Above { site, ring: Some(ring), driver: DriverKind::Sandbox, authorized_keys: &[] }
}

fn forest_of(entry: &Entry<Manifest>, site: &Site) -> Forest {
    let checked = check_manifest(site, entry, ForHost::default());
    assert!(!checked.diagnostics.has_errors(), "{}", checked.diagnostics);
    checked.forest.unwrap()
}

/// Returns where a node takes logins: of `far` it is known.
fn place(name: &NodeName) -> Option<(std::net::IpAddr, u16)> {
    (name.as_str() == "far").then(|| ([10, 0, 0, 7].into(), 22))
}

/// Returns the manifest below `name`, as the level below reads it.
fn below(entry: &Entry<Manifest>, site: &Site, name: &str) -> Entry<Manifest> {
    let forest = forest_of(entry, site);
    let node = forest.named(name).unwrap().start;
    let context = context_below(&entry.value, "run-1", "local", &forest.nodes[node].name);
    let peers = peers_outside(&entry.value, &forest, &forest.below(node), &place);
    let sub = sub_manifest(&entry.value, &forest, node, Context { peers, ..context });
    let read = Site::read_manifest("--manifest-json", sub.to_json().to_string().into_bytes(), Origin::Given);
    assert_eq!(read.diagnostics.to_string(), "");
    assert_eq!(read.value.to_json(), sub.to_json());
    read
}

#[test]
fn children_become_roots_and_deeper_nodes_keep_their_parents() {
    let site = Site::default();
    let entry = manifest(
        "pattern: federated
execution: {default_mode: pull}
settings: {on_error: continue, parallel: 3}
nodes:
  - {name: quay, type: pve, execution: {mode: push}}
  - {name: crane, type: vm, parent: quay, count: 2, peers: [crane, far]}
  - {name: hook, type: ct, parent: crane-2, peers: [rope, far], execution: {mode: hybrid}}
  - {name: rope, type: vm, parent: quay, depends_on: [crane]}
  - {name: far, type: vm, peers: [quay]}
",
    );
    let sub = below(&entry, &site, "quay").value;
    assert_eq!(
        sub.to_json(),
        serde_json::json!({
            "schema_version": 2, "name": "m", "pattern": "federated", "execution": {"default_mode": "pull"},
            "nodes": [
                {"name": "crane", "type": "vm", "count": 2, "peers": ["crane"]},
                {"name": "hook", "type": "ct", "parent": "crane-2", "peers": ["rope"], "execution": {"mode": "hybrid", "phases": {}}},
                {"name": "rope", "type": "vm", "depends_on": ["crane"]},
            ],
            "settings": {"verify_ssh": true, "cleanup_on_failure": true, "timeout_buffer": 60, "on_error": "continue",
                "parallel": 3, "delegation": "ssh"},
            "context": {"run": "run-1", "path": ["quay"], "host": "local", "peers": [
                {"of": "crane-1", "name": "far", "ip": "10.0.0.7", "ssh_port": 22},
                {"of": "crane-2", "name": "far", "ip": "10.0.0.7", "ssh_port": 22},
                {"of": "hook", "name": "far", "ip": "10.0.0.7", "ssh_port": 22},
            ]},
        })
    );
    // A second level below: the first run and its host stay, the path grows.
    let sub = below(&below(&entry, &site, "quay"), &site, "crane-2").value;
    let context = sub.context.unwrap();
    assert_eq!((context.run.as_str(), context.host.as_str()), ("run-1", "local"));
    assert_eq!(context.path.iter().map(NodeName::as_str).collect::<Vec<_>>(), ["quay", "crane-2"]);
    let outside: Vec<_> = context.peers.iter().map(|peer| (peer.name.as_str(), peer.place)).collect();
    assert_eq!(outside, [("rope", None), ("far", place(&NodeName::parse("far").unwrap()))], "links of hook");
    assert_eq!(sub.nodes.len(), 1);
    assert_eq!((sub.nodes[0].name.value.as_str(), &sub.nodes[0].parent), ("hook", &None));
}

/// ST-5: a child that says nothing is what the manifest says, not what its parent is.
#[test]
fn a_silent_child_has_the_manifests_mode_below() {
    let entry = manifest(
        "execution: {default_mode: pull}\nnodes: [{name: a, type: vm, execution: {mode: push}}, {name: b, type: vm, parent: a}]\n",
    );
    let sub = below(&entry, &Site::default(), "a");
    let checked = check_manifest(&Site::default(), &sub, ForHost::default());
    assert_eq!(checked.nodes[0].modes.config, Mode::Pull);
}

/// A subtree need not have the pattern of the whole.
#[test]
fn the_pattern_is_not_checked_again() {
    let entry = manifest(
        "pattern: mesh\nnodes: [{name: a, type: vm, peers: [b]}, {name: b, type: vm}, {name: c, type: vm, parent: a}]\n",
    );
    let sub = below(&entry, &Site::default(), "a");
    assert_eq!(check_manifest(&Site::default(), &sub, ForHost::default()).diagnostics.to_string(), "");
}

#[test]
fn the_site_below_has_what_the_subtree_names() {
    let site = crowded_site(3);
    let entry = manifest(
        "nodes:
  - {name: n0, type: vm, spec: s0, preset: v0, hosting: {packages: [htop], access: {authorized_keys: [k2]}}}
  - {name: n1, type: vm, spec: s1, preset: v1, parent: n0}
",
    );
    let sub = below(&entry, &site, "n0").value;
    let ring = LiveRing::of(&site, NOW).unwrap();
    let keys = ["ssh-ed25519 AAAA driver".to_owned()];
    let above = Above { authorized_keys: &keys, ..above(&site, &ring) };
    let hosting = entry.value.nodes[0].hosting.as_ref().map(|hosting| &hosting.value);
    let node = NodeName::parse("n0").unwrap();
    let parcel = sub_site(&above, &sub, &node, hosting);
    assert_eq!(parcel.authorized_keys, keys);
    assert_eq!(
        parcel.files.keys().collect::<Vec<_>>(),
        [
            "hosts/n0.yaml",
            "keyring.yaml",
            "postures/p1.yaml",
            "presets/v1.yaml",
            "secrets.yaml",
            "site.yaml",
            "specs/s1.yaml"
        ]
    );
    let below = Parcel::parse(&parcel.to_bytes()).unwrap().to_site();
    assert!(!check_site(&below).has_errors(), "{}", check_site(&below));
    let host = find_host(&below, "n0").unwrap().host;
    assert_eq!(host.driver(), DriverKind::Sandbox);
    assert_eq!(host.packages, hosting.unwrap().packages);
    assert_eq!(below.secrets.value.ssh_keys.keys().collect::<Vec<_>>(), ["k1", "k2"]);
    assert_eq!(below.settings.value.server.port, 0);
    // One key per live key of the parent, and the same one mints.
    let derived = LiveRing::of(&below, NOW).unwrap();
    let name = entry.value.name.clone().unwrap();
    let expected: Vec<SigningKey> =
        [parent_key(0), parent_key(1), parent_key(2)].iter().map(|key| key.derive(&name, &node)).collect();
    let sorted = |keys: &[SigningKey]| {
        let mut keys: Vec<String> = keys.iter().map(SigningKey::to_hex).collect();
        keys.sort();
        keys
    };
    assert_eq!(sorted(derived.keys()), sorted(&expected));
    assert_eq!(derived.minting().unwrap(), &expected[2]);
    assert_eq!(LiveRing::of(&below, NOW + 101).unwrap().keys().len(), 2, "overlaps end below as above");
    assert_eq!(below.keyring.value.revoked.len(), 1, "of its own node, not of others' tokens");
}

/// Users without a list have all keys of the site, below as well: the digest is the same.
#[test]
fn all_keys_go_down_only_where_a_spec_means_all() {
    let mut site = crowded_site(2);
    let all = "schema_version: 1\naccess: {users: [{name: ops}]}\n";
    let others =
        Site::read(vec![file(FileKind::Spec, "s0", all), file(FileKind::Posture, "dev", "packages: [x]\n")]);
    site.specs.extend(others.specs);
    site.postures.extend(others.postures);
    let entry =
        manifest("nodes: [{name: top, type: vm, spec: s1}, {name: n0, type: vm, spec: s0, parent: top}]\n");
    let sub = below(&entry, &site, "top").value;
    let ring = LiveRing::of(&site, NOW).unwrap();
    let parcel = sub_site(&above(&site, &ring), &sub, &NodeName::parse("top").unwrap(), None);
    let below = parcel.to_site();
    assert_eq!(below.secrets.value.ssh_keys, site.secrets.value.ssh_keys);
    let (spec, node) = (stead_model::SiteKey::parse("s0").unwrap(), NodeName::parse("n0").unwrap());
    assert_eq!(resolve(&below, &spec, &node).unwrap(), resolve(&site, &spec, &node).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Nothing of elsewhere leaks, whatever the forest, and everything below means what it means above.
    #[test]
    fn nothing_of_elsewhere_goes_down(text in forests()) {
        let plain = manifest(&text);
        let count = u8::try_from(plain.value.nodes.len()).unwrap();
        let site = crowded_site(count.max(2));
        let text = (0..count).fold(text, |text, i| {
            text.replace(&format!("{{name: n{i}, "), &format!("{{name: n{i}, spec: s{i}, preset: v{i}, "))
        });
        let entry = Site::read_manifest("m.yaml", format!("schema_version: 2\nname: m\ncontext: {{run: r, path: [], host: h}}\n{text}").into_bytes(), Origin::Given);
        let forest = forest_of(&entry, &site);
        let ring = LiveRing::of(&site, NOW).unwrap();
        for (index, node) in forest.nodes.iter().enumerate().filter(|(_, node)| !node.children.is_empty()) {
            let sub = below(&entry, &site, node.name.as_str());
            let parcel = sub_site(&above(&site, &ring), &sub.value, &node.name, None);
            let shipped = String::from_utf8(parcel.to_bytes()).unwrap();
            let inside = forest.below(index);
            for (other, is_below) in forest.nodes.iter().zip(&inside) {
                let i: u8 = other.name.as_str()[1..].parse().unwrap();
                let own = [format!("secret-of-n{i}\\n"), format!("preset-of-n{i}\\n"), format!("posture-of-n{i}]"), key_line(i)];
                for marker in own {
                    prop_assert_eq!(shipped.contains(&marker), *is_below, "{} below {}", marker, node.name);
                }
            }
            for secret in ["top-secret", "api_tokens", "boss", "up.example", "secret-repo", "other-host", "some-jti", &key_line(200)] {
                prop_assert!(!shipped.contains(secret), "{}", secret);
            }
            for i in 0..4 {
                prop_assert!(!shipped.contains(&parent_key(i).to_hex()));
            }
            let site_below = parcel.to_site();
            prop_assert!(!check_site(&site_below).has_errors());
            let forest_below = forest_of(&sub, &site_below);
            prop_assert_eq!(forest_below.nodes.len(), inside.iter().filter(|is_below| **is_below).count());
            for lower in &forest_below.nodes {
                let upper = &forest.nodes[forest.named(lower.name.as_str()).unwrap().start];
                prop_assert_eq!(lower.depth, upper.depth - node.depth - 1);
                let spec = sub.value.nodes[lower.written].spec.clone().unwrap().value;
                prop_assert_eq!(resolve(&site_below, &spec, &lower.name).unwrap(), resolve(&site, &spec, &lower.name).unwrap());
            }
        }
    }
}

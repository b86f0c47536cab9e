//! The seed: what cloud-init reads at the first boot, as a volume called `cidata`.
//!
//! `user-data`, `meta-data` and `network-config` are those of the spec. What the spec says beside them (the account's
//! keys, the host key, planted files) is `vendor-data`, which cloud-init merges below `user-data`. A guest without
//! cloud-init finds the same in `stead-files`, an archive that is unpacked in its root before SSH is started.

use std::io;
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use stead_model::machine::{MachineSpec, PlantedFile};
use stead_model::node::path;

use super::iso;
use super::network::Card;
use crate::machine::home::{Home, write_bytes};
use crate::transport::ssh::server::ServerKey;

/// The volume's file in the machine's directory.
pub(crate) const FILE: &str = "seed.iso";
/// What is unpacked in the root of a guest without cloud-init.
const ARCHIVE: &str = "stead-files";
/// Where OpenSSH has the key it shows.
const HOST_KEY: &str = "/etc/ssh/ssh_host_ed25519_key";
/// What cloud-init looks for.
const LABEL: &str = "cidata";

/// Writes the machine's seed.
pub(super) fn write(home: &Home, spec: &MachineSpec, cards: &[Card], key: &ServerKey) -> io::Result<()> {
    write_bytes(&home.file(FILE), &volume(spec, cards, key)?, 0o600)
}

/// Returns the machine's seed: the bytes of the volume.
pub(crate) fn volume(spec: &MachineSpec, cards: &[Card], key: &ServerKey) -> io::Result<Vec<u8>> {
    let files = files(spec, cards, &key.to_text()?, &key.public()?);
    let archive = archive(spec, &key.to_text()?)?;
    let files = files.iter().map(|(name, text)| (*name, text.as_bytes()));
    let files: Vec<(&str, &[u8])> = files.chain([(ARCHIVE, archive.as_slice())]).collect();
    iso::write(LABEL, &files).map_err(io::Error::other)
}

fn files(spec: &MachineSpec, cards: &[Card], key: &str, public: &str) -> Vec<(&'static str, String)> {
    let mut meta_data =
        format!("instance-id: {}\nlocal-hostname: {}\n", spec.owner.uuid(), spec.owner.name());
    let mut user_data = "#cloud-config\n{}\n".to_owned();
    let mut network_config = network_config(cards, &spec.name_servers);
    if let Some(seed) = &spec.seed {
        if !seed.meta_data.is_empty() {
            meta_data.clone_from(&seed.meta_data);
        }
        if !seed.user_data.is_empty() {
            user_data.clone_from(&seed.user_data);
        }
        network_config = seed.network_config.clone().or(network_config);
    }
    let mut files = vec![
        ("meta-data", meta_data),
        ("user-data", user_data),
        ("vendor-data", format!("#cloud-config\n{}\n", vendor_data(spec, key, public))),
    ];
    files.extend(network_config.map(|text| ("network-config", text)));
    files
}

/// Returns the network configuration of cards with addresses of their own; none: the guest's own way is right.
fn network_config(cards: &[Card], name_servers: &[IpAddr]) -> Option<String> {
    if cards.iter().all(|card| card.address.is_none()) {
        return None;
    }
    let mut ethernets = Map::new();
    for (index, card) in cards.iter().enumerate() {
        let mut config = json!({ "match": { "macaddress": card.mac } });
        match &card.address {
            Some(address) => {
                config["addresses"] = json!([address]);
                if let Some(gateway) = &card.gateway {
                    config["routes"] = json!([{ "to": "0.0.0.0/0", "via": gateway }]);
                }
                if !name_servers.is_empty() {
                    config["nameservers"] = json!({ "addresses": name_servers });
                }
            }
            None => config["dhcp4"] = json!(true),
        }
        ethernets.insert(format!("nic{index}"), config);
    }
    Some(format!("{}\n", json!({ "version": 2, "ethernets": ethernets })))
}

fn vendor_data(spec: &MachineSpec, key: &str, public: &str) -> Value {
    let kind = match public.split_once(' ').map(|(kind, _)| kind) {
        Some("ssh-rsa") => "rsa",
        Some(kind) if kind.starts_with("ecdsa-") => "ecdsa",
        Some(_) | None => "ed25519",
    };
    let mut data = Map::new();
    data.insert(
        "ssh_keys".to_owned(),
        json!({ format!("{kind}_private"): key, format!("{kind}_public"): public }),
    );
    if !spec.authorized_keys.is_empty() {
        let keys: Vec<&str> = spec.authorized_keys.iter().map(|key| key.trim()).collect();
        let mut account = json!({ "name": spec.user, "ssh_authorized_keys": keys });
        if spec.user != "root" {
            account["sudo"] = json!("ALL=(ALL) NOPASSWD:ALL");
            account["shell"] = json!("/bin/sh");
            account["lock_passwd"] = json!(true);
        }
        data.insert("users".to_owned(), json!([account]));
    }
    let files = planted(spec);
    if !files.is_empty() {
        let files = files.iter().map(|file| {
            json!({
                "path": file.path, "permissions": format!("{:04o}", file.mode),
                "encoding": "b64", "content": STANDARD.encode(&file.content),
            })
        });
        data.insert("write_files".to_owned(), files.collect());
    }
    Value::Object(data)
}

/// Returns the files that the machine has from the beginning: those of its spec, and the keys that open its account
/// whatever becomes of the account's own.
fn planted(spec: &MachineSpec) -> Vec<PlantedFile> {
    let mut files = spec.files.clone();
    if !spec.authorized_keys.is_empty() {
        let lines: String = spec.authorized_keys.iter().map(|key| format!("{}\n", key.trim())).collect();
        let path = format!("{}/{}", path::KEYS, spec.user);
        files.push(PlantedFile { path, mode: 0o644, content: lines.into_bytes() });
    }
    files
}

fn archive(spec: &MachineSpec, key: &str) -> io::Result<Vec<u8>> {
    let host_key = PlantedFile { path: HOST_KEY.to_owned(), mode: 0o600, content: key.as_bytes().to_vec() };
    let mut archive = tar::Builder::new(Vec::new());
    for file in planted(spec).iter().chain([&host_key]) {
        let mut header = tar::Header::new_gnu();
        header.set_size(file.content.len() as u64);
        header.set_mode(file.mode);
        header.set_mtime(0);
        archive.append_data(&mut header, file.path.trim_start_matches('/'), file.content.as_slice())?;
    }
    archive.into_inner()
}

#[cfg(test)]
mod tests {
    use stead_model::machine::{MachineKind, Owner, Seed};

    use super::*;

    fn spec() -> MachineSpec {
        MachineSpec {
            authorized_keys: vec!["ssh-ed25519 AAAA me\n".to_owned()],
            files: vec![PlantedFile { path: "/etc/x".to_owned(), mode: 0o600, content: b"hush".to_vec() }],
            ..MachineSpec::new(Owner::new("lab/harbour/local", "quay").unwrap(), MachineKind::Vm)
        }
    }

    fn text(files: &[(&str, String)], name: &str) -> String {
        files.iter().find(|(found, _)| *found == name).map(|(_, text)| text.clone()).unwrap()
    }

    #[test]
    fn what_the_spec_says_beside_the_seed_is_vendor_data() {
        let files = files(&spec(), &[], "PRIVATE", "ssh-ed25519 BBBB");
        assert_eq!(
            text(&files, "meta-data"),
            "instance-id: b8ca0a97-6f03-56c9-ab24-2f428cb4ff94\nlocal-hostname: quay\n"
        );
        let vendor = text(&files, "vendor-data");
        let data: Value = serde_json::from_str(vendor.strip_prefix("#cloud-config\n").unwrap()).unwrap();
        assert_eq!(data["ssh_keys"]["ed25519_private"], "PRIVATE");
        assert_eq!(data["users"][0]["ssh_authorized_keys"][0], "ssh-ed25519 AAAA me");
        assert_eq!(data["write_files"][0]["content"], "aHVzaA==");
        assert_eq!(data["write_files"][0]["permissions"], "0600");
        assert_eq!(data["write_files"][1]["path"], "/etc/stead/keys/stead");
        assert!(!files.iter().any(|(name, _)| *name == "network-config"));
    }

    #[test]
    fn a_guest_without_cloud_init_finds_the_same_in_an_archive() {
        let bytes = archive(&spec(), "PRIVATE").unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let found: Vec<(String, u32, String)> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let mut entry = entry.unwrap();
                let mut text = String::new();
                io::Read::read_to_string(&mut entry, &mut text).unwrap();
                (entry.path().unwrap().display().to_string(), entry.header().mode().unwrap(), text)
            })
            .collect();
        let expected = [
            ("etc/x", 0o600, "hush"),
            ("etc/stead/keys/stead", 0o644, "ssh-ed25519 AAAA me\n"),
            ("etc/ssh/ssh_host_ed25519_key", 0o600, "PRIVATE"),
        ];
        assert_eq!(found, expected.map(|(path, mode, text)| (path.to_owned(), mode, text.to_owned())));
    }

    /// Nodes, section 2: `gateway` and `dns_servers` are for addresses that no network gives.
    #[test]
    fn a_fixed_address_has_a_way_out_and_somebody_to_ask_for_names() {
        use crate::machine::vm::network::Wire;
        let card = Card {
            wire: Wire::Tap { name: "st0-1".to_owned(), bridge: "br0".to_owned() },
            mac: "52:54:00:83:99:24".to_owned(),
            address: Some("10.7.0.9/20".to_owned()),
            gateway: Some("10.7.0.254".to_owned()),
            ports: Vec::new(),
        };
        let spec = MachineSpec { name_servers: vec![IpAddr::from([9, 9, 9, 9])], ..spec() };
        let given = text(&files(&spec, std::slice::from_ref(&card), "K", "ssh-rsa C"), "network-config");
        let config: Value = serde_json::from_str(&given).unwrap();
        let nic = &config["ethernets"]["nic0"];
        assert_eq!(nic["addresses"], json!(["10.7.0.9/20"]));
        assert_eq!(nic["routes"], json!([{ "to": "0.0.0.0/0", "via": "10.7.0.254" }]));
        assert_eq!(nic["nameservers"], json!({ "addresses": ["9.9.9.9"] }));
        let free = Card { address: None, ..card };
        assert!(!files(&spec, &[free], "K", "ssh-rsa C").iter().any(|(name, _)| *name == "network-config"));
    }

    #[test]
    fn a_given_seed_is_written_as_it_is() {
        let seed = Seed {
            user_data: "#!/bin/sh\n".to_owned(),
            meta_data: "instance-id: own\n".to_owned(),
            network_config: Some("version: 1\n".to_owned()),
        };
        let files = files(&MachineSpec { seed: Some(seed), ..spec() }, &[], "K", "ssh-rsa C");
        assert_eq!(text(&files, "user-data"), "#!/bin/sh\n");
        assert_eq!(text(&files, "meta-data"), "instance-id: own\n");
        assert_eq!(text(&files, "network-config"), "version: 1\n");
        assert!(text(&files, "vendor-data").contains("rsa_private"));
    }
}

//! Sites, manifests and tokens: the commands that need no machine.

mod agents;
mod applying;
mod cloud_hypervisor;
mod creating;
mod delegating;
mod destroying;
mod discovering;
mod documents;
mod elsewhere;
mod fetching;
mod first_boot;
mod flags;
mod guests;
mod jobs;
mod links;
mod oci;
mod pairs;
mod proxmox;
mod pulled;
mod qemu;
mod retold;
mod serving;
mod starting;
mod submitting;
mod subtrees;
mod system;
mod targets;
mod tls;
mod tokens;
mod triggering;
mod validating;
mod verifying;
mod waits;
mod world;

use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use crate::cases_17_32::lab::{Ended, Lab};

pub(crate) const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB ann@desk";

pub(crate) const LOCAL: &str =
    "ssh: {permit_root_login: prohibit-password, password_authentication: \"no\"}\nsudo: {nopasswd: true}\n";

pub(crate) const BASE: &str = "schema_version: 1
access:
  posture: local
  users: [{name: ops, sudo: true}]
platform:
  packages: [htop, curl]
  services: {disable: [rpcbind]}
";

/// Returns a place with a site in it: that of the contract's vector, and these files.
pub(crate) fn site(files: &[(&str, &str)]) -> Lab {
    let lab = Lab::new("");
    write(&lab, "site.yaml", "defaults: {domain: lab.example, packages: [ca-certificates]}\n");
    let secrets = format!("ssh_keys:\n  ann@desk: {KEY}\nauth:\n  signing_key: '{}'\n", "ab".repeat(32));
    write(&lab, "secrets.yaml", &secrets);
    write(&lab, "postures/local.yaml", LOCAL);
    write(&lab, "specs/base.yaml", BASE);
    write(&lab, "presets/vm-small.yaml", "{cores: 2, memory: 2048, disk: 10}\n");
    for (path, text) in files {
        write(&lab, path, text);
    }
    lab
}

pub(crate) fn write(lab: &Lab, path: &str, text: &str) {
    let path = format!("site-config/{path}");
    lab.write(&path, text);
    std::fs::set_permissions(lab.path(&path), std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// Returns a manifest of these nodes, called `m`.
pub(crate) fn manifest(nodes: &str) -> String {
    format!("schema_version: 2\nname: m\nnodes:\n{nodes}")
}

/// Returns code and path of every problem of a document.
pub(crate) fn problems(document: &Value) -> Vec<String> {
    let list = document["errors"].as_array().unwrap();
    list.iter()
        .map(|row| format!("{} {}", row["code"].as_str().unwrap(), row["path"].as_str().unwrap()))
        .collect()
}

pub(crate) fn validate(lab: &Lab, args: &[&str]) -> Ended {
    lab.run(["validate", "--json"].into_iter().chain(args.iter().copied()))
}

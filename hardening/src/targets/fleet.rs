//! Files and documents of a fleet, and the hosts of a plan.

use stead_fleet::fuzzing as nix;
use stead_fleet::identity::Member;
use stead_model::Inventory;
use stead_model::diagnostic::Diagnostics;
use stead_model::fleet::FleetFile;
use stead_model::fleet::services::{MasterFile, PublisherFile, WorkerFile};
use stead_model::fleet::vm::{Reading, VmDefaults, read_specs, read_vms};

use super::{SECRET, Target, check_hidden, chosen, source, tell, text};

pub(super) const INVENTORY: Target = Target {
    name: "inventory",
    about: "an inventory of hosts",
    run: inventory,
    words: &[
        "api_version: v1\n",
        "hosts:\n",
        "  a: {",
        "transport: ",
        "ssh://u@h",
        "labels: {",
        "become: sudo",
        "become_password: ",
        "defaults: {",
        "workdir: ",
        "executor: ",
        "root: ",
        "parallel: ",
        "description: ",
        "env:X",
        "file:/x",
        "local",
    ],
};

pub(super) const AGENTS: Target = Target {
    name: "agents",
    about: "a registry of agents",
    run: inventory,
    words: &[
        "api_version: v1\n",
        "agents:\n",
        "  a: {",
        "transport: ",
        "ssh://u@h",
        "tags: [",
        "workdir: ",
        "description: ",
        "id: ",
    ],
};

pub(super) const FLEET: Target = Target {
    name: "fleet-file",
    about: "fleet.yaml, and its canonical form",
    run: fleet_file,
    words: &[
        "api_version: v1\n",
        "workers:\n",
        "groups:\n",
        "vms:\n",
        "suspend: {",
        "rollout: {",
        "defaults: {",
        "manifests: [",
        "drain: true",
        "labels: {",
        "replicas: ",
        "selector: [",
        "pin: ",
        "strategy: ",
        "maxUnavailable: ",
        "hosts: ",
    ],
};

pub(super) const DAEMONS: Target = Target {
    name: "daemons",
    about: "the files of publisher, master and worker; the first letter says which",
    run: daemons,
    words: &[
        "api_version: v1\n",
        "repo: ",
        "ref: ",
        "poll: 30s",
        "webhook: {",
        "master: ",
        "listen: ",
        "store: ",
        "etcd: [",
        "drivers: [",
        "nix: {",
        "cache: ",
        "labels: {",
        "reserve: {",
        "state: ",
        "evaluator: site",
        "signers: [",
        "timeout: ",
        "4GiB",
    ],
};

pub(super) const VMS: Target = Target {
    name: "vms",
    about: "VMs as an evaluator gives them",
    run: vms,
    words: &[
        "{\"web\":{",
        "\"resources\":{\"cpu\":\"500m\",\"memory\":\"1GiB\"}",
        "\"replicas\":",
        "\"driver\":\"qemu\"",
        "\"image\":",
        "\"kernel\":",
        "\"selector\":[",
        "\"spread\":{",
        "\"restart\":",
        "\"ready\":{",
        "\"rollout\":{",
        "\"volumes\":[",
        "\"labels\":{",
        "\"onLost\":",
        "\"priority\":",
        "/nix/store/nzwi9zybr70kfpbp3s3l07k0xxps0j12-vm-web",
        "\"group\":\"g\"",
        "\"id\":\"web\"",
    ],
};

pub(super) const NIX: Target = Target {
    name: "nix",
    about: "what Nix prints and binary caches serve",
    run: nix_documents,
    words: &[
        "\"narHash\":\"",
        "sha256-HDfQGvQL4ugGkd48w99EN3ppmvuxfGjwgJZLL9Bx/BM=",
        "\"narSize\":",
        "\"references\":[",
        "\"version\":2",
        "\"info\":{",
        "\"outputs\":{\"out\":",
        "/nix/store/",
        "nzwi9zybr70kfpbp3s3l07k0xxps0j12-vm-web",
        "StorePath: ",
        "URL: nar/",
        "Compression: xz",
        "NarHash: sha256:",
        "NarSize: ",
        "References: ",
        "Sig: ",
    ],
};

pub(super) const CERTIFICATE: Target = Target {
    name: "certificate",
    about: "a certificate of a fleet's member",
    run: certificate,
    words: &["stead://", "\u{6}\u{3}\u{55}\u{1d}\u{11}"],
};

fn inventory(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let told = match Inventory::read(&[source("inventory.yaml", text)]) {
        Ok(inventory) => {
            for name in inventory.hosts.keys() {
                let host = inventory.get(name.as_str()).expect("a host that is listed is found");
                drop((host.account().cloned(), host.account_password().cloned()));
            }
            format!("{inventory:?}")
        }
        Err(diagnostics) => {
            assert!(diagnostics.has_errors());
            tell(&diagnostics)
        }
    };
    drop(told);
    // A password in a transport is not shown, whatever is wrong around it.
    if text.contains(SECRET) {
        return;
    }
    let line = format!("api_version: v1\nhosts:\n  aaa: {{transport: 'ssh://u:{SECRET}@h'}}\n{text}");
    if let Err(diagnostics) = Inventory::read(&[source("inventory.yaml", &line)]) {
        check_hidden(&tell(&diagnostics), "an inventory");
    }
}

fn fleet_file(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let mut diagnostics = Diagnostics::default();
    let file = FleetFile::read(&source("fleet.yaml", text), &mut diagnostics);
    tell(&diagnostics);
    if diagnostics.has_errors() {
        return;
    }
    let canonical = file.to_canonical();
    let again = FleetFile::from_canonical("fleet", &canonical);
    let again = again.unwrap_or_else(|problems| panic!("{}\n{canonical}", problems.render(false)));
    assert_eq!(again.to_canonical(), canonical, "the canonical form has another one");
}

fn daemons(bytes: &[u8]) {
    let Some((choice, bytes)) = chosen(bytes) else { return };
    let Some(text) = text(bytes) else { return };
    let source = source("daemon.yaml", text);
    let mut diagnostics = Diagnostics::default();
    let is_read = match choice {
        b'p' => PublisherFile::read(&source, &mut diagnostics).is_some(),
        b'm' => MasterFile::read(&source, &mut diagnostics).is_some(),
        b'w' => WorkerFile::read(&source, &mut diagnostics).is_some(),
        _ => return,
    };
    assert!(is_read || diagnostics.has_errors(), "neither read nor refused");
    tell(&diagnostics);
}

fn vms(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let mut diagnostics = Diagnostics::default();
    let defaults = VmDefaults::default();
    let reading = Reading { group: None, defaults: &defaults, driver: None };
    let vms = read_vms(&source("vms.json", text), &reading, &mut diagnostics);
    tell(&diagnostics);
    if diagnostics.has_errors() {
        return;
    }
    let written: Vec<String> = vms.iter().map(stead_model::fleet::VmSpec::to_canonical).collect();
    let list = format!("[{}]", written.join(","));
    let mut problems = Diagnostics::default();
    let again = read_specs(&source("specs", &list), &mut problems);
    assert!(!problems.has_errors(), "{}\n{list}", problems.render(false));
    assert_eq!(again, vms, "specs do not survive the way to a worker");
}

fn nix_documents(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    nix::path_infos(text);
    nix::built(text);
    nix::narinfo(text);
}

fn certificate(bytes: &[u8]) {
    if let Ok(member) = Member::read(bytes) {
        assert!(!member.wants_renewal(i64::MIN) || member.not_before == i64::MIN);
    }
}

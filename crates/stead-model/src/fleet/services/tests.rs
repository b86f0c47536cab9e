//! The files of the daemons as they are written.

use super::*;
use crate::fleet::vm::Driver;
use crate::schema::{FleetFileKind, fleet_schema};

fn source(text: &str) -> Source {
    Source { name: "f.yaml".into(), text: text.into() }
}

fn told(diagnostics: &Diagnostics) -> Vec<String> {
    diagnostics.iter().map(|p| format!("{} {} {}", p.code, p.path, p.message)).collect()
}

fn fits(kind: FleetFileKind, text: &str) -> bool {
    let tree = yaml::read(&source(text), Codes::FLEET, &mut Diagnostics::default()).unwrap();
    jsonschema::validator_for(&fleet_schema(kind)).unwrap().is_valid(&tree.root().to_json())
}

#[test]
fn a_publisher_needs_a_repository_and_full_names() {
    let mut diagnostics = Diagnostics::default();
    let text =
        "repo: /srv/fleet.git\nmasters: [m1:44444]\nwebhook: {secret_file: /etc/hook}\nnix: {memory: 2GiB}\n";
    let file = PublisherFile::read(&source(text), &mut diagnostics).unwrap();
    assert_eq!(told(&diagnostics), Vec::<String>::new());
    assert_eq!((file.reference.as_str(), file.poll), ("refs/heads/main", Duration::from_secs(60)));
    assert!(file.observe.ip().is_loopback() && file.observe.port() == 0, "a port of its own");
    assert_eq!((file.nix.memory_bytes, file.webhook.unwrap().path.as_str()), (2 << 30, "/hooks/git"));
    assert!(fits(FleetFileKind::Publisher, text));
    let wrong = "ref: main\npoll: 10ms\nverify: range\nsubdir: ../x\nmasters: [\"a b\"]\ncredentials: {}\nnix: {memory: lots, public_keys: [x]}\nwebhook: {listen: here, path: x}\n";
    assert_eq!(PublisherFile::read(&source(wrong), &mut diagnostics), None);
    assert_eq!(
        told(&diagnostics),
        [
            "fleet/missing-field repo publisher.yaml needs the key `repo`",
            "fleet/out-of-range poll `poll` is at least 1s",
            "fleet/missing-field verify signatures are wanted, and nobody may sign",
            "fleet/bad-name ref `main` is not the full name of a branch",
            "fleet/conflict credentials `credentials` has one of `ssh_key_file` and `token_file`",
            "fleet/bad-type subdir `subdir` is a path in the repository that stays there",
            "fleet/bad-type nix.memory `lots` is not an amount of memory",
            "fleet/bad-type nix.public_keys[0] `x` is not a public key",
            "fleet/bad-type masters[0] `a b` is not an address",
            "fleet/missing-field webhook.secret_file `webhook` needs the key `secret_file`",
            "fleet/bad-type webhook.path a path begins with `/`",
            "fleet/bad-type webhook.listen `here` is not an address to listen at",
        ]
    );
    let bare = diagnostics.iter().find(|problem| problem.code == "fleet/bad-name").unwrap();
    assert_eq!(bare.help, "write `ref: refs/heads/main`");
    assert!(!fits(FleetFileKind::Publisher, wrong));
}

#[test]
fn a_master_has_one_kind_of_store() {
    let mut diagnostics = Diagnostics::default();
    assert_eq!(MasterFile::read(&source(""), &mut diagnostics), Some(MasterFile::default()));
    let text = "name: m1\nstore: {kind: distributed, endpoints: [e1:2379], tls: {ca_file: a, cert_file: b, key_file: c}}\nhistory: 5\n";
    let file = MasterFile::read(&source(text), &mut diagnostics).unwrap();
    assert_eq!(told(&diagnostics), Vec::<String>::new());
    assert!(matches!(file.store, master::Store::Distributed { tls: Some(_), .. }) && file.history == 5);
    assert!(fits(FleetFileKind::Master, text));
    MasterFile::read(&source("store: {kind: distributed, path: x}\nlisten: :1\n"), &mut diagnostics);
    assert_eq!(
        told(&diagnostics),
        [
            "fleet/bad-type listen `:1` is not an address to listen at",
            "fleet/conflict store.path this kind of store has no use for `path`",
            "fleet/missing-field store a distributed store needs the key `endpoints`",
        ]
    );
}

#[test]
fn a_worker_offers_and_trusts() {
    let mut diagnostics = Diagnostics::default();
    assert_eq!(WorkerFile::read(&source(""), &mut diagnostics), Some(WorkerFile::default()));
    let text = "observe: '[::1]:44447'\nmasters: [m1:44444]\ndrivers: {sandbox: , qemu: {accel: tcg}}\ncapacity: {cpuMilli: 4000, memMiB: 4096}\n\
                reserve: {cpuMilli: 100}\nmin_free_disk: 7%\nmap_driver: {cloud-hypervisor: sandbox}\n";
    let file = WorkerFile::read(&source(text), &mut diagnostics).unwrap();
    assert_eq!(told(&diagnostics), Vec::<String>::new());
    assert_eq!(file.map_driver[&Driver::CloudHypervisor], Driver::Sandbox);
    assert_eq!((file.reserve.mem_mib, file.reserve.cpu_milli, file.min_free_disk_percent), (256, 100, 7));
    assert_eq!(file.drivers.len(), 2);
    assert_eq!(file.observe.port(), 44447);
    let wrong = "observe: 0.0.0.0:44447\ndrivers: {docker: {}}\nlabels: {stead/os: x}\nmin_free_disk: 5\nmap_driver: {qemu: qemu}\ndrift_interval: 1ms\n";
    WorkerFile::read(&source(wrong), &mut diagnostics);
    assert_eq!(
        told(&diagnostics),
        [
            "fleet/bad-type observe `0.0.0.0:44447` is not an address of this machine alone",
            "fleet/conflict labels.stead/os labels of `stead/` are set by Stead",
            "fleet/out-of-range drift_interval `drift_interval` is at least 1s",
            "fleet/bad-type min_free_disk expected a text, found the number 5",
            "fleet/bad-enum drivers.docker `docker` is not one of its values",
            "fleet/conflict map_driver.qemu a driver does not stand in for itself",
        ]
    );
}

/// Section 2: what a file does not say is what the contract says.
#[test]
fn every_default_is_that_of_the_contract() {
    let mut diagnostics = Diagnostics::default();
    let seconds = Duration::from_secs;
    let text = "repo: r\nwebhook: {secret_file: s}\n";
    let file = PublisherFile::read(&source(text), &mut diagnostics).unwrap();
    assert_eq!(file.reference, "refs/heads/main");
    assert_eq!((file.poll, file.debounce, file.fetch_timeout), (seconds(60), seconds(2), seconds(60)));
    assert_eq!((file.verify, file.rewrites), (publisher::Verify::None, publisher::Rewrites::Reject));
    assert_eq!((file.evaluator, file.subdir.as_str()), (publisher::Evaluator::Auto, ""));
    assert_eq!((file.credentials, file.artifacts, file.masters), (None, None, Vec::new()));
    let nix = file.nix;
    assert_eq!((nix.binary.as_str(), nix.store.as_str(), nix.cache), ("nix", "auto", None));
    assert_eq!((nix.eval_timeout, nix.build_timeout), (seconds(1_800), seconds(7_200)));
    assert_eq!((nix.memory_bytes, nix.import_from_derivation), (4_294_967_296, false));
    assert!(nix.secret_key_file.is_none() && nix.public_keys.is_empty() && nix.settings.is_empty());
    let webhook = file.webhook.unwrap();
    assert_eq!((webhook.listen.as_str(), webhook.path.as_str()), ("127.0.0.1:44446", "/hooks/git"));

    let file = MasterFile::read(&source("{}"), &mut diagnostics).unwrap();
    assert_eq!((file.listen.as_str(), file.observe.as_str()), ("0.0.0.0:44444", "127.0.0.1:44445"));
    assert_eq!((file.store, file.history), (master::Store::Embedded { path: None }, 100));
    assert_eq!((file.name, file.advertise), (None, None));
    let text = "store: {kind: distributed, endpoints: [e1:2379]}\n";
    let file = MasterFile::read(&source(text), &mut diagnostics).unwrap();
    assert!(
        matches!(&file.store, master::Store::Distributed { prefix, tls: None, .. } if prefix == "stead/"),
        "{file:?}"
    );

    let file = WorkerFile::read(&source("{}"), &mut diagnostics).unwrap();
    assert_eq!((file.keep_previous, file.drift_interval), (2, seconds(30)));
    assert_eq!((file.reserve.cpu_milli, file.reserve.mem_mib), (0, 256));
    assert_eq!((file.min_free_disk_percent, file.nix.local_build), (5, false));
    assert_eq!((file.nix.binary.as_str(), file.nix.caches.len(), file.nix.public_keys.len()), ("nix", 0, 0));
    assert!(file.map_driver.is_empty() && file.capacity.is_none() && file.labels.is_empty());
    assert_eq!(told(&diagnostics), Vec::<String>::new());
}

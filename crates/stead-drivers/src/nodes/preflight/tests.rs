//! Everything that is missing is found, at once.

use std::time::Duration;

use stead_engine::nodes::{ForHost, check_manifest};
use stead_model::machine::{Machine, MachineExit, MachineId, MachineKind, MachineSpec, OwnerScope};
use stead_model::site::manifest::Origin;
use stead_model::site::{FileKind, SiteFile};
use stead_runner::machine::{Capabilities, Changed, ConsoleStream, Ensured, MachineError, Stopped};

use super::*;

/// Makes nothing, and needs what it is told to.
struct Needy(Vec<Need>);

fn nothing<T>() -> Result<T, MachineError> {
    Err(MachineError::Unsupported("it only needs".to_owned()))
}

#[async_trait::async_trait]
impl MachineDriver for Needy {
    fn capabilities(&self) -> Capabilities {
        let needs = self.0.clone();
        Capabilities { kinds: vec![MachineKind::Vm], networks: true, needs, ..Capabilities::default() }
    }

    fn check_boot(&self, _: Option<&Boot>) -> Result<(), MachineError> {
        Err(MachineError::Invalid("there is no image `debian-99`".to_owned()))
    }

    async fn ensure_created(&self, _: &MachineSpec) -> Result<Ensured, MachineError> {
        nothing()
    }

    async fn start(&self, _: &MachineId) -> Result<Changed, MachineError> {
        nothing()
    }

    async fn stop(&self, _: &MachineId, _: Duration) -> Result<Stopped, MachineError> {
        nothing()
    }

    async fn destroy(&self, _: &MachineId) -> Result<Changed, MachineError> {
        nothing()
    }

    async fn inspect(&self, _: &MachineId) -> Result<Option<Machine>, MachineError> {
        nothing()
    }

    async fn list(&self, _: &OwnerScope) -> Result<Vec<Machine>, MachineError> {
        nothing()
    }

    async fn console(&self, _: &MachineId, _: u64) -> Result<ConsoleStream, MachineError> {
        nothing()
    }

    async fn wait(&self, _: &MachineId) -> Result<MachineExit, MachineError> {
        nothing()
    }
}

/// A host that is said to have what this machine has not.
const HOST: &str = "driver: qemu\nnetwork: {interfaces: {lo: {}, no-such-bridge: {address: dhcp}}}\nstorage: {zfs_pools: [no-such-pool, {name: nor-this}]}\n";

/// Returns what preflight says of one node with a fixed address that pulls, in a site without keys, on a host with these needs.
fn findings(needs: Vec<Need>) -> Vec<String> {
    let file = |kind: FileKind, stem: &str, text: &str| SiteFile {
        kind,
        stem: stem.to_owned(),
        name: kind.path_of(stem),
        content: Ok(text.as_bytes().to_vec()),
    };
    let site = Site::read(vec![
        file(FileKind::Site, "site", "defaults: {ssh_key_file: /nowhere/key}\n"),
        file(FileKind::Spec, "base", "schema_version: 1\n"),
        file(FileKind::Host, "h", HOST),
    ]);
    let text = "schema_version: 2\nname: m\nnodes:\n- {name: edge, type: vm, spec: base, ip: 10.0.0.7/24, image: debian-99, execution: {mode: pull}}\n";
    let manifest = Site::read_manifest("m.yaml", text.into(), Origin::Given);
    let checked = check_manifest(&site, &manifest, ForHost::default());
    let forest = checked.forest.clone().unwrap();
    let driver: Arc<dyn MachineDriver> = Arc::new(Needy(needs));
    let preflight = Preflight {
        site: &site,
        site_dir: Path::new("/nowhere"),
        manifest: &manifest.value,
        forest: &forest,
        checked: &checked,
        selection: &Selection { selected: vec![true], added: Vec::new() },
        drivers: &BTreeMap::from([("h".to_owned(), driver)]),
        host: "h",
        scope: "lab/m/h",
        environment: &BTreeMap::new(),
    };
    preflight.findings().iter().map(|finding| finding.message.clone()).collect()
}

/// Section 7: a run ends with all that it would have stumbled over, one after the other.
#[test]
fn everything_that_is_missing_is_found_at_once() {
    let no = |name: &str| format!("no-such-{name}");
    let found = findings(vec![
        Need::Program(no("program")),
        Need::Program("sh".to_owned()),
        Need::AnyProgram(vec![no("a"), no("b")]),
        Need::AnyProgram(vec![no("a"), "sh".to_owned()]),
        Need::Root,
        Need::Kvm("/nowhere/kvm".into()),
        Need::Kvm("/dev/null".into()),
    ]);
    let root = "only root can make machines here";
    let mut expected = vec![
        "the program `no-such-program` is not installed",
        "none of no-such-a, no-such-b is installed",
        root,
        "the processor cannot run guests: /nowhere/kvm cannot be opened",
        "no interface `no-such-bridge`",
        "no ZFS pool `no-such-pool`",
        "no ZFS pool `nor-this`",
        "there is no image `debian-99`",
        "edge needs a token",
        "/nowhere/key",
        "edge has a fixed address and no gateway",
        "edge has a fixed address and no name servers",
    ];
    if rustix::process::geteuid().is_root() {
        expected.retain(|message| *message != root);
    }
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (message, part) in found.iter().zip(expected) {
        assert!(message.contains(part), "{part}: {found:#?}");
    }
}

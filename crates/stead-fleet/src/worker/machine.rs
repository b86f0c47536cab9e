//! What a driver is asked for so that an instance comes to be.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use stead_drivers::machine::volume;
use stead_model::fleet::vm::{Disk, DiskFormat, DiskSource, Driver, Net, NetMode};
use stead_model::fleet::{Artifact, InstanceKey, VmSpec};
use stead_model::machine::{
    Boot, Drive, DriveAccess, DriveFormat, MachineKind, MachineProgram, MachineSpec, Nic, Owner, PassedPort,
    PlantedFile,
};
use stead_model::plan::Digest;
use stead_runner::machine::MachineError;

use super::files::{Files, make_directory, remove};

/// Where containers have their volumes.
const VOLUMES: &str = "/volumes";

/// Where the bits of artifacts lie on this worker.
#[derive(Clone, Debug)]
pub(super) struct Bits {
    files: Files,
    /// What is before `/nix/store` in the names of files; none: nothing.
    store_root: Option<PathBuf>,
}

impl Bits {
    /// Returns where bits lie, with Nix's store `store`.
    pub(super) fn new(files: Files, store: &str) -> Self {
        let named = store.strip_prefix("local?root=").unwrap_or(store);
        let store_root = Some(named).filter(|path| path.starts_with('/') && *path != "/").map(PathBuf::from);
        Self { files, store_root }
    }

    /// Returns the file or directory of an artifact.
    pub(super) fn path(&self, artifact: &Artifact) -> PathBuf {
        match artifact {
            Artifact::Blob { sha256, .. } => self.blob(sha256),
            Artifact::Written { path, sub } | Artifact::Store { path, sub, .. } => {
                let path = self.real(path.as_str());
                sub.as_ref().map_or(path.clone(), |sub| path.join(sub))
            }
        }
    }

    /// Returns the file of a blob.
    pub(super) fn blob(&self, sha256: &Digest) -> PathBuf {
        self.files.blob(sha256)
    }

    /// Returns where a path of the store really is.
    pub(super) fn real(&self, path: &str) -> PathBuf {
        match &self.store_root {
            Some(root) => root.join(path.trim_start_matches('/')),
            None => PathBuf::from(path),
        }
    }

    /// Returns a word of a command line as it is meant here: paths of the store where they are.
    fn word(&self, word: &str) -> String {
        if self.store_root.is_some() && word.starts_with("/nix/store/") {
            return self.real(word).display().to_string();
        }
        word.to_owned()
    }
}

/// An instance as its machine is asked for.
pub(super) struct Asked<'a> {
    pub(super) key: &'a InstanceKey,
    pub(super) spec: &'a VmSpec,
    /// What really makes it.
    pub(super) driver: Driver,
    pub(super) owner: Owner,
    pub(super) bits: &'a Bits,
    /// The directory of its volumes.
    pub(super) volumes: &'a Path,
    /// Whether the driver plugs machines without cards into a network of its own.
    pub(super) has_network: bool,
    /// Files it has from the beginning.
    pub(super) files: Vec<PlantedFile>,
}

impl Asked<'_> {
    /// Returns what the driver is asked for.
    ///
    /// # Errors
    /// If that driver cannot make it.
    pub(super) fn machine(self) -> Result<MachineSpec, MachineError> {
        let kind = match self.driver {
            Driver::Oci => MachineKind::Ct,
            Driver::Sandbox | Driver::Qemu | Driver::CloudHypervisor => MachineKind::Vm,
        };
        let mut machine =
            MachineSpec { user: "root".to_owned(), ..MachineSpec::new(self.owner.clone(), kind) };
        let size = self.spec.resources;
        machine.memory_mb = Some(size.mem_mib);
        // A driver without one says so; what only stands in for another does without.
        let is_mapped = self.driver != self.spec.runtime.driver && !self.driver.is_virtual();
        machine.vsock = self.spec.runtime.vsock && !is_mapped;
        match self.driver {
            Driver::Sandbox => {
                machine.cpu_milli = Some(size.cpu_milli);
                machine.program = self.program(self.volumes);
            }
            Driver::Oci => {
                machine.cpu_milli = Some(size.cpu_milli);
                let rootfs = self.spec.runtime.rootfs.as_ref();
                machine.boot = rootfs.map(|rootfs| Boot::Template(self.text(rootfs)));
                machine.program = self.program(Path::new(VOLUMES));
                let volumes = self.spec.volumes.iter().map(|wanted| {
                    let name = wanted.name.as_str();
                    (format!("{VOLUMES}/{name}"), directory_of(self.volumes, name).display().to_string())
                });
                machine.mounts = volumes.collect();
                machine.nics = self.cards();
                machine.files = self.files;
            }
            Driver::Qemu | Driver::CloudHypervisor => {
                machine.cpus = u32::try_from(size.cpu_milli.div_ceil(1000)).ok();
                machine.boot = self.boot();
                machine.drives = self.spec.runtime.disks.iter().map(|disk| self.drive(disk)).collect();
                machine.nics = self.cards();
                machine.files = self.files;
            }
        }
        Ok(machine)
    }

    fn text(&self, artifact: &Artifact) -> String {
        self.bits.path(artifact).display().to_string()
    }

    fn boot(&self) -> Option<Boot> {
        let runtime = &self.spec.runtime;
        match (&runtime.kernel, &runtime.firmware) {
            (Some(kernel), _) => Some(Boot::Kernel {
                kernel: self.text(kernel),
                initrd: runtime.initrd.as_ref().map(|initrd| self.text(initrd)),
                cmdline: runtime.cmdline.clone(),
            }),
            (None, Some(firmware)) => Some(Boot::Firmware(self.text(firmware))),
            (None, None) => None,
        }
    }

    fn drive(&self, disk: &Disk) -> Drive {
        let format = format_of(disk.format);
        let written = |access| if disk.read_only { DriveAccess::ReadOnly } else { access };
        match &disk.source {
            DiskSource::Image(image) => {
                Drive { path: self.text(image), format, access: written(DriveAccess::Private) }
            }
            DiskSource::Volume(name) => Drive {
                path: volume::file(self.volumes, name.as_str(), format).display().to_string(),
                format,
                access: written(DriveAccess::Shared),
            },
        }
    }

    /// Returns the cards; none: what the driver plugs machines into.
    fn cards(&self) -> Vec<Nic> {
        let none =
            || Nic { network: "none".to_owned(), mac: None, address: None, gateway: None, ports: Vec::new() };
        let nets = &self.spec.runtime.nets;
        if nets.is_empty() && !self.has_network {
            return vec![none()];
        }
        let card = |(index, net): (usize, &Net)| {
            let network = match (net.mode, self.driver) {
                (NetMode::None, _) => return none(),
                (NetMode::Tap, _) => net.bridge.clone().unwrap_or_default(),
                (NetMode::User, Driver::Qemu) => "user".to_owned(),
                // Theirs is a bridge.
                (NetMode::User, Driver::CloudHypervisor | Driver::Oci | Driver::Sandbox) => String::new(),
            };
            let own = (index == 0).then(|| self.key.mac());
            let ports = net.ports.iter().map(|port| PassedPort { guest: port.guest, host: port.host });
            Nic {
                network,
                mac: net.mac.clone().or(own),
                address: None,
                gateway: None,
                ports: ports.collect(),
            }
        };
        nets.iter().enumerate().map(card).collect()
    }

    /// Returns what runs in a sandbox or container; none: it only stands there.
    fn program(&self, volumes: &Path) -> Option<MachineProgram> {
        let runtime = &self.spec.runtime;
        if runtime.argv.is_empty() {
            return None;
        }
        let mut env: BTreeMap<String, String> = BTreeMap::new();
        env.insert("STEAD_INSTANCE".to_owned(), self.key.to_string());
        if !self.spec.volumes.is_empty() {
            env.insert("STEAD_VOLUMES".to_owned(), volumes.display().to_string());
        }
        // A container has a root of its own, where paths of the store are what they are called.
        let word = |word: &String| match self.driver {
            Driver::Sandbox => self.bits.word(word),
            Driver::Oci | Driver::Qemu | Driver::CloudHypervisor => word.clone(),
        };
        env.extend(runtime.env.iter().map(|(name, value)| (name.clone(), word(value))));
        let argv = runtime.argv.iter().map(word).collect();
        Some(MachineProgram { argv, env, cwd: runtime.cwd.clone() })
    }
}

/// Returns the directory that a volume is for a sandbox or a container.
fn directory_of(volumes: &Path, name: &str) -> PathBuf {
    volumes.join(name)
}

fn format_of(format: DiskFormat) -> DriveFormat {
    match format {
        DiskFormat::Raw => DriveFormat::Raw,
        DiskFormat::Qcow2 => DriveFormat::Qcow2,
    }
}

/// Makes the volumes of a VM unless they are there: directories, or for a virtual machine files of their size, in the format of
/// the disks that they are. Blocks.
pub(super) fn make_volumes(volumes: &Path, spec: &VmSpec, driver: Driver) -> Result<(), MachineError> {
    if spec.volumes.is_empty() {
        return Ok(());
    }
    make_directory(volumes).map_err(|error| MachineError::failed(error.to_string()))?;
    for wanted in &spec.volumes {
        let name = wanted.name.as_str();
        if driver.is_virtual() {
            let is_it = |disk: &&Disk| disk.source == DiskSource::Volume(wanted.name.clone());
            let disk = spec.runtime.disks.iter().find(is_it);
            let format = disk.map_or(DriveFormat::Raw, |disk| format_of(disk.format));
            volume::ensure(volumes, name, format, wanted.size_mib.saturating_mul(1 << 20))?;
        } else {
            let made = make_directory(&directory_of(volumes, name));
            made.map_err(|error| MachineError::failed(error.to_string()))?;
        }
    }
    Ok(())
}

/// Removes a volume, whatever it was for.
pub(super) fn remove_volume(volumes: &Path, name: &str) -> io::Result<()> {
    remove(&directory_of(volumes, name))?;
    volume::remove(volumes, name)
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};
    use stead_model::diagnostic::{Diagnostics, Source};
    use stead_model::fleet::vm::read_specs;

    use super::*;

    const STORE: &str = "/nix/store/nzwi9zybr70kfpbp3s3l07k0xxps0j12-vm-web";

    pub(in crate::worker) fn spec(more: &Value) -> VmSpec {
        let resources = json!({"cpuMilli": 1500, "memMiB": 64});
        let mut value = json!([{"id": "web", "group": "default", "resources": resources}]);
        for (key, part) in more.as_object().unwrap() {
            value[0][key] = part.clone();
        }
        let source = Source { name: "spec".into(), text: value.to_string().into() };
        let mut diagnostics = Diagnostics::default();
        let found = read_specs(&source, &mut diagnostics).pop();
        assert!(!diagnostics.has_errors(), "{diagnostics:?}");
        found.unwrap()
    }

    fn asked(spec: &VmSpec, driver: Driver, has_network: bool) -> MachineSpec {
        let dir = tempfile::tempdir().unwrap();
        let (files, _lock) = Files::take(dir.path()).unwrap();
        let bits = Bits::new(files, "/srv/nix");
        let asked = Asked {
            key: &InstanceKey::parse("web/0").unwrap(),
            spec,
            driver,
            owner: Owner::new("fleet/w1", "web-0").unwrap(),
            bits: &bits,
            volumes: Path::new("/v"),
            has_network,
            files: Vec::new(),
        };
        asked.machine().unwrap()
    }

    fn store(sub: &str) -> Value {
        json!({"storePath": STORE, "sub": sub, "narHash": "sha256-HDfQGvQL4ugGkd48w99EN3ppmvuxfGjwgJZLL9Bx/BM="})
    }

    /// Sections 3 and 11: whole processors, private layers, volumes as files, passed ports, the instance's own address.
    #[test]
    fn a_virtual_machine_has_what_its_spec_names() {
        let spec = spec(&json!({
            "volumes": [{"name": "data", "sizeMiB": 8}, {"name": "thin", "sizeMiB": 8}],
            "runtime": {"driver": "qemu", "kernel": store("vmlinux"), "cmdline": "a=b",
                "disks": [{"image": store("disk.raw")}, {"image": store("ro.img"), "readOnly": true, "format": "qcow2"},
                    {"volume": "data"}, {"volume": "thin", "format": "qcow2"}],
                "nets": [{"ports": [{"guest": 80, "host": 8080}]}, {"mode": "tap", "bridge": "br0"}, {"mode": "none"}]},
        }));
        let machine = asked(&spec, Driver::Qemu, true);
        assert_eq!((machine.cpus, machine.memory_mb, machine.kind), (Some(2), Some(64), MachineKind::Vm));
        let kernel = format!("/srv/nix{STORE}/vmlinux");
        assert_eq!(machine.boot, Some(Boot::Kernel { kernel, initrd: None, cmdline: "a=b".to_owned() }));
        let drives: Vec<(&str, DriveFormat, DriveAccess)> = machine
            .drives
            .iter()
            .map(|drive| (drive.path.rsplit('/').next().unwrap(), drive.format, drive.access))
            .collect();
        assert_eq!(
            drives,
            [
                ("disk.raw", DriveFormat::Raw, DriveAccess::Private),
                ("ro.img", DriveFormat::Qcow2, DriveAccess::ReadOnly),
                ("data.raw", DriveFormat::Raw, DriveAccess::Shared),
                ("thin.qcow2", DriveFormat::Qcow2, DriveAccess::Shared)
            ]
        );
        let nics: Vec<(&str, Option<&str>)> =
            machine.nics.iter().map(|nic| (nic.network.as_str(), nic.mac.as_deref())).collect();
        assert_eq!(nics, [("user", Some("02:21:d2:e8:88:64")), ("br0", None), ("none", None)]);
        assert_eq!(machine.nics[0].ports, [PassedPort { guest: 80, host: 8080 }]);
    }

    #[test]
    fn machines_without_cards_are_plugged_in_where_there_is_a_network() {
        let spec = spec(&json!({"runtime": {"driver": "cloud-hypervisor", "firmware": store("fw")}}));
        assert!(asked(&spec, Driver::CloudHypervisor, true).nics.is_empty());
        let machine = asked(&spec, Driver::CloudHypervisor, false);
        assert_eq!(machine.nics[0].network, "none");
        assert_eq!(machine.boot, Some(Boot::Firmware(format!("/srv/nix{STORE}/fw"))));
    }

    #[test]
    fn a_program_finds_its_volumes_and_its_store() {
        let argv = json!([format!("{STORE}/bin/serve"), "--here"]);
        let spec = |driver: &str| {
            let mut runtime = json!({"driver": driver, "argv": argv, "env": {"A": "b"}, "cwd": "/srv"});
            if driver == "oci" {
                runtime["rootfs"] = store("rootfs");
            }
            spec(&json!({"volumes": [{"name": "data", "sizeMiB": 8}], "runtime": runtime}))
        };
        let machine = asked(&spec("sandbox"), Driver::Sandbox, false);
        assert_eq!((machine.cpu_milli, machine.cpus), (Some(1500), None), "a quota, no processors");
        let program = machine.program.unwrap();
        assert_eq!(program.argv, [format!("/srv/nix{STORE}/bin/serve"), "--here".to_owned()]);
        assert_eq!((program.env["STEAD_VOLUMES"].as_str(), program.cwd.as_deref()), ("/v", Some("/srv")));
        let machine = asked(&spec("oci"), Driver::Oci, true);
        assert_eq!((machine.cpu_milli, machine.cpus, machine.kind), (Some(1500), None, MachineKind::Ct));
        assert_eq!(machine.mounts["/volumes/data"], "/v/data");
        assert_eq!(machine.program.unwrap().argv[0], format!("{STORE}/bin/serve"));
    }
}

//! The configuration of a machine, as `vm.create` takes it. Paths are relative to the machine's directory, which its
//! process starts in.

use serde_json::{Map, Value, json};
use stead_model::machine::{Drive, DriveAccess, DriveFormat, MachineSpec};

use crate::machine::console;
use crate::machine::vm::network::{Card, Wire};
use crate::machine::vm::{CPUS, Kernel, MEMORY_MB, context_id, image, seed};

/// The first disk.
pub(super) const DISK: &str = "disk.raw";

/// Returns the file of a disk besides the first.
pub(super) fn extra_disk(name: &str) -> String {
    format!("disk-{name}.raw")
}

/// Returns a drive as `vm.create` takes it.
fn drive(index: usize, drive: &Drive) -> Value {
    let kind = match drive.format {
        DriveFormat::Raw => "Raw",
        DriveFormat::Qcow2 => "Qcow2",
    };
    match drive.access {
        DriveAccess::ReadOnly => json!({ "path": drive.path, "readonly": true, "image_type": kind }),
        DriveAccess::Shared => json!({ "path": drive.path, "readonly": false, "image_type": kind }),
        DriveAccess::Private => {
            let path = image::layer(index);
            json!({ "path": path, "readonly": false, "image_type": "Qcow2", "backing_files": true })
        }
    }
}

/// Returns the body of `vm.create`.
pub(super) fn config(
    spec: &MachineSpec,
    kernel: Option<&Kernel>,
    firmware: Option<&str>,
    has_disk: bool,
    cards: &[Card],
) -> Value {
    let cpus = spec.cpus.unwrap_or(CPUS);
    let mut payload = Map::new();
    match (kernel, firmware) {
        (Some(kernel), _) => {
            payload.insert("kernel".to_owned(), json!(kernel.path));
            payload.insert("cmdline".to_owned(), json!(kernel.cmdline));
            payload.extend(kernel.initrd.as_ref().map(|initrd| ("initramfs".to_owned(), json!(initrd))));
        }
        (None, Some(firmware)) => drop(payload.insert("firmware".to_owned(), json!(firmware))),
        (None, None) => {}
    }
    // The type is always said: a guest could have written what looks like another one.
    let disk =
        |path: &str, readonly: bool| json!({ "path": path, "readonly": readonly, "image_type": "Raw" });
    let drives = spec.drives.iter().enumerate().map(|(index, given)| drive(index, given));
    let mut disks: Vec<Value> = drives.chain(has_disk.then(|| disk(DISK, false))).collect();
    disks.extend(spec.disks.iter().map(|extra| disk(&extra_disk(&extra.name), false)));
    disks.push(disk(seed::FILE, true));
    let net: Vec<Value> = cards
        .iter()
        .filter_map(|card| match &card.wire {
            Wire::Tap { name, .. } => Some(json!({ "tap": name, "mac": card.mac })),
            Wire::User => None,
        })
        .collect();
    let mut config = json!({
        "cpus": { "boot_vcpus": cpus, "max_vcpus": cpus },
        "memory": { "size": spec.memory_mb.unwrap_or(MEMORY_MB).saturating_mul(1 << 20) },
        "payload": payload,
        "disks": disks,
        "serial": { "mode": "File", "file": console::PIPE },
        "console": { "mode": "Off" },
        "platform": {
            "uuid": spec.owner.uuid(),
            "oem_strings": [format!("dev.stead.owner={}", spec.owner)],
        },
    });
    if !net.is_empty() {
        config["net"] = Value::Array(net);
    }
    if spec.vsock {
        config["vsock"] = json!({ "cid": context_id(&spec.owner), "socket": "vsock.sock" });
    }
    config
}

#[cfg(test)]
mod tests {
    use stead_model::machine::{MachineKind, Owner};

    use super::*;

    #[test]
    fn every_disk_has_its_type_and_the_machine_its_mark() {
        let owner = Owner::new("lab/harbour/local", "quay").unwrap();
        let spec =
            MachineSpec { memory_mb: Some(64), cpus: Some(2), ..MachineSpec::new(owner, MachineKind::Vm) };
        let kernel = Kernel { path: "/k".to_owned(), initrd: None, cmdline: "console=ttyS0".to_owned() };
        let tap = Wire::Tap { name: "st0-0".to_owned(), bridge: "br0".to_owned() };
        let card = Card {
            wire: tap,
            mac: "52:54:00:83:99:24".to_owned(),
            address: None,
            gateway: None,
            ports: Vec::new(),
        };
        let config = config(&spec, Some(&kernel), None, true, &[card]);
        assert_eq!(
            config,
            json!({
                "cpus": { "boot_vcpus": 2, "max_vcpus": 2 },
                "memory": { "size": 67_108_864 },
                "payload": { "kernel": "/k", "cmdline": "console=ttyS0" },
                "disks": [
                    { "path": "disk.raw", "readonly": false, "image_type": "Raw" },
                    { "path": "seed.iso", "readonly": true, "image_type": "Raw" },
                ],
                "net": [{ "tap": "st0-0", "mac": "52:54:00:83:99:24" }],
                "serial": { "mode": "File", "file": "console.pipe" },
                "console": { "mode": "Off" },
                "platform": {
                    "uuid": "b8ca0a97-6f03-56c9-ab24-2f428cb4ff94",
                    "oem_strings": ["dev.stead.owner=lab/harbour/local/quay"],
                },
            })
        );
    }

    #[test]
    fn drives_come_first_and_firmware_boots_them() {
        let owner = Owner::new("fleet/w1", "web-0").unwrap();
        let drive = |path: &str, format, access| Drive { path: path.to_owned(), format, access };
        let spec = MachineSpec {
            drives: vec![
                drive("/store/disk.qcow2", DriveFormat::Qcow2, DriveAccess::Private),
                drive("/store/ro.qcow2", DriveFormat::Qcow2, DriveAccess::ReadOnly),
                drive("/volumes/data.raw", DriveFormat::Raw, DriveAccess::Shared),
            ],
            vsock: true,
            ..MachineSpec::new(owner, MachineKind::Vm)
        };
        let config = config(&spec, None, Some("/firmware"), false, &[]);
        assert_eq!(config["payload"], json!({ "firmware": "/firmware" }));
        assert_eq!(
            config["disks"],
            json!([
                { "path": "layer-0.qcow2", "readonly": false, "image_type": "Qcow2", "backing_files": true },
                { "path": "/store/ro.qcow2", "readonly": true, "image_type": "Qcow2" },
                { "path": "/volumes/data.raw", "readonly": false, "image_type": "Raw" },
                { "path": "seed.iso", "readonly": true, "image_type": "Raw" },
            ])
        );
        assert!(config["vsock"]["cid"].as_u64().is_some_and(|cid| cid > 2));
    }
}

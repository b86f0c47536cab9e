//! What the fields of a VM say of each other.

use super::{Disk, DiskSource, Driver, Ready, ReadyKind, VmSpec};
use crate::yaml::{Fields, Walk};

/// Reports what does not fit together.
pub(super) fn check(walk: &mut Walk<'_>, fields: Fields<'_>, vm: &VmSpec) {
    if let Some(node) = fields.get("singleton")
        && vm.singleton
        && vm.replicas > 1
    {
        let message = format!("a singleton has at most one instance, not {}", vm.replicas);
        walk.report(node.error("fleet/conflict", message).help("write `replicas: 1`"));
    }
    if let Some(node) = fields.get("spread").and_then(|spread| spread.get("notWith"))
        && vm.spread.not_with.contains(&vm.id)
    {
        walk.report(
            node.error("fleet/conflict", "a VM cannot keep away from itself").help("write `maxPerWorker: 1`"),
        );
    }
    if let Some(runtime) = fields.get("runtime") {
        check_driver(walk, runtime, vm);
        check_volumes(walk, runtime, vm);
    }
}

/// Reports fields that the driver has no use for, and those it needs.
fn check_driver(walk: &mut Walk<'_>, runtime: crate::yaml::Node<'_>, vm: &VmSpec) {
    let driver = vm.runtime.driver;
    let unused: &[&str] = match driver {
        Driver::CloudHypervisor | Driver::Qemu => &["rootfs"],
        Driver::Oci => &["kernel", "initrd", "firmware", "cmdline", "disks"],
        Driver::Sandbox => &["kernel", "initrd", "firmware", "cmdline", "disks", "rootfs", "nets"],
    };
    for key in unused {
        if let Some(node) = runtime.key(key) {
            let message = format!("the driver `{}` has no use for `{key}`", driver.word());
            walk.report(node.error("fleet/conflict", message).help("leave it out, or choose another driver"));
        }
    }
    let missing = match driver {
        Driver::CloudHypervisor | Driver::Qemu => {
            let boots = ["kernel", "firmware"].into_iter().any(|key| runtime.get(key).is_some());
            (!boots).then_some("`kernel` or `firmware`")
        }
        Driver::Oci => runtime.get("rootfs").is_none().then_some("`rootfs`"),
        Driver::Sandbox => None,
    };
    if let Some(missing) = missing {
        let message = format!("the driver `{}` needs {missing} in `runtime`", driver.word());
        walk.report(runtime.error("fleet/missing-field", message));
    }
}

fn check_volumes(walk: &mut Walk<'_>, runtime: crate::yaml::Node<'_>, vm: &VmSpec) {
    let disks = runtime.get("disks");
    for (index, disk) in vm.runtime.disks.iter().enumerate() {
        let DiskSource::Volume(name) = &disk.source else { continue };
        let node = disks.and_then(|disks| disks.as_list()?.nth(index)).unwrap_or(runtime);
        let is_other = |other: &Disk| other.source == disk.source && other.format != disk.format;
        if vm.runtime.disks.iter().take(index).any(is_other) {
            let message = format!("the volume `{name}` is a disk of two formats");
            walk.report(node.error("fleet/conflict", message).help("write the same `format` in both"));
        }
        if vm.volumes.iter().any(|volume| volume.name == *name) {
            continue;
        }
        let names = vm.volumes.iter().map(|volume| volume.name.as_str());
        let message = format!("there is no volume `{name}`");
        let help = crate::diagnostic::suggest(name.as_str(), names);
        walk.report(node.error("fleet/unknown-volume", message).help(help));
    }
}

/// Reports what a kind of readiness needs, and what it has no use for.
pub(super) fn check_ready(walk: &mut Walk<'_>, fields: Fields<'_>, ready: &Ready) {
    let (needed, also): (&[&str], &[&str]) = match ready.kind {
        ReadyKind::Started => (&[], &[]),
        ReadyKind::Tcp => (&["port"], &[]),
        ReadyKind::Http => (&["port"], &["path"]),
        ReadyKind::Serial => (&["match"], &[]),
        ReadyKind::Exec => (&["argv"], &[]),
    };
    for key in needed {
        if fields.get(key).is_none() {
            let message = format!("this kind of readiness needs the key `{key}`");
            walk.report(fields.node().error("fleet/missing-field", message));
        }
    }
    if let Some(node) = fields.get("argv").filter(|_| needed.contains(&"argv"))
        && node.as_list().is_some_and(|mut words| words.next().is_none_or(|word| word.as_text() == Some("")))
    {
        walk.report(node.bad("`argv` begins with a program, and here is none"));
    }
    for key in ["port", "path", "match", "argv"] {
        if let Some(node) = fields.node().key(key)
            && !needed.contains(&key)
            && !also.contains(&key)
        {
            let message = format!("this kind of readiness has no use for `{key}`");
            walk.report(node.error("fleet/conflict", message).help("leave it out, or set `kind`"));
        }
    }
}

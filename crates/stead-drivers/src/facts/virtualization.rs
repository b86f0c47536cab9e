//! What the running system runs in: a hypervisor, a container, both or neither.

use std::path::Path;

use stead_model::facts::{Container, Virtualization, VirtualizationRole};

use super::files;

pub(super) fn read() -> Virtualization {
    let hypervisor = hypervisor().unwrap_or("none");
    let is_xen_host = files::text("/proc/xen/capabilities").is_some_and(|text| text.contains("control_d"));
    let role = if hypervisor != "none" && !is_xen_host {
        VirtualizationRole::Guest
    } else if is_xen_host || Path::new("/dev/kvm").exists() {
        VirtualizationRole::Host
    } else {
        VirtualizationRole::None
    };
    Virtualization { hypervisor: hypervisor.to_owned(), role, container: container() }
}

/// What the processor says of a hypervisor.
#[derive(Debug, PartialEq, Eq)]
enum Processor {
    /// There is none.
    Bare,
    /// There is this one.
    Below(&'static str),
    /// It cannot say, or names one nobody here knows.
    Unsaid,
}

/// Returns the hypervisor below: what the processor says, then the firmware, then the kernel.
fn hypervisor() -> Option<&'static str> {
    let firmware = || {
        ["sys_vendor", "product_name", "board_vendor", "bios_vendor", "product_version"]
            .iter()
            .filter_map(|name| files::line(Path::new("/sys/class/dmi/id").join(name)))
            .find_map(|text| by_firmware(&text))
    };
    match processor() {
        // These run on KVM or Hyper-V and say so only in the firmware.
        Processor::Below(name) => Some(
            firmware().filter(|name| matches!(*name, "virtualbox" | "xen" | "parallels")).unwrap_or(name),
        ),
        Processor::Unsaid => firmware().or_else(by_kernel),
        Processor::Bare => by_kernel(),
    }
}

#[cfg(target_arch = "x86_64")]
fn processor() -> Processor {
    use core::arch::x86_64::__cpuid;
    const HYPERVISOR_BIT: u32 = 1 << 31;
    if __cpuid(1).ecx & HYPERVISOR_BIT == 0 {
        return Processor::Bare;
    }
    let leaf = __cpuid(0x4000_0000);
    let signature: Vec<u8> =
        [leaf.ebx, leaf.ecx, leaf.edx].iter().flat_map(|part| part.to_le_bytes()).collect();
    by_signature(&signature)
}

#[cfg(not(target_arch = "x86_64"))]
fn processor() -> Processor {
    Processor::Unsaid
}

#[cfg(target_arch = "x86_64")]
fn by_signature(signature: &[u8]) -> Processor {
    let end = signature.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    Processor::Below(match &signature[..end] {
        b"KVMKVMKVM" | b"Linux KVM Hv" => "kvm",
        b"TCGTCGTCGTCG" => "qemu",
        b"XenVMMXenVMM" => "xen",
        b"VMwareVMware" => "vmware",
        b"Microsoft Hv" => "hyperv",
        b"VBoxVBoxVBox" => "virtualbox",
        b"prl hyperv  " | b" lrpepyh  vr" => "parallels",
        b"bhyve bhyve " => "bhyve",
        b"ACRNACRNACRN" => "acrn",
        b"QNXQVMBSQG" => "qnx",
        _ => return Processor::Unsaid,
    })
}

fn by_firmware(text: &str) -> Option<&'static str> {
    const NAMES: [(&str, &str); 13] = [
        ("KVM", "kvm"),
        ("OpenStack", "kvm"),
        ("Amazon EC2", "kvm"),
        ("Google Compute Engine", "kvm"),
        ("QEMU", "qemu"),
        ("VMware", "vmware"),
        ("innotek GmbH", "virtualbox"),
        ("VirtualBox", "virtualbox"),
        ("Xen", "xen"),
        ("Parallels", "parallels"),
        ("BHYVE", "bhyve"),
        ("Hyper-V", "hyperv"),
        ("Apple Virtualization", "apple"),
    ];
    NAMES.iter().find(|(start, _)| text.starts_with(start)).map(|(_, name)| *name)
}

/// Returns what the kernel found out: where the processor has no way to say, or is told to hide it.
fn by_kernel() -> Option<&'static str> {
    if files::line("/sys/hypervisor/type").is_some_and(|kind| kind == "xen") {
        return Some("xen");
    }
    if let Some(compatible) = files::text("/proc/device-tree/hypervisor/compatible") {
        return Some(if compatible.contains("xen") { "xen" } else { "kvm" });
    }
    let clocks = files::line("/sys/devices/system/clocksource/clocksource0/available_clocksource")?;
    clocks.split(' ').find_map(|clock| match clock {
        "kvm-clock" => Some("kvm"),
        "xen" => Some("xen"),
        _ if clock.starts_with("hyperv_clocksource") => Some("hyperv"),
        _ => None,
    })
}

/// The first process-id namespace of a kernel has this number, always.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

fn container() -> Container {
    // What the container's manager tells its first process; only root may read it of another account's.
    let told = files::text("/proc/1/environ").and_then(|variables| {
        variables.split('\0').find_map(|variable| variable.strip_prefix("container=").map(str::to_owned))
    });
    let told = told.or_else(|| files::line("/run/systemd/container"));
    if let Some(manager) = told.filter(|manager| !manager.is_empty()) {
        return match manager.as_str() {
            "docker" => Container::Docker,
            "podman" => Container::Podman,
            "lxc" | "lxc-libvirt" => Container::Lxc,
            _ => Container::Oci,
        };
    }
    if Path::new("/run/.containerenv").exists() {
        return Container::Podman;
    }
    if Path::new("/.dockerenv").exists() {
        return Container::Docker;
    }
    let namespace = std::fs::read_link("/proc/self/ns/pid").ok();
    let is_first = namespace.is_none_or(|namespace| namespace == Path::new(FIRST_PID_NAMESPACE));
    if is_first { Container::None } else { Container::Oci }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn processors_name_their_hypervisor() {
        assert_eq!(by_signature(b"KVMKVMKVM\0\0\0"), Processor::Below("kvm"));
        assert_eq!(by_signature(b"TCGTCGTCGTCG"), Processor::Below("qemu"));
        assert_eq!(by_signature(b"Microsoft Hv"), Processor::Below("hyperv"));
        assert_eq!(by_signature(b"SomethingNew"), Processor::Unsaid);
    }

    #[test]
    fn firmware_names_its_vendor() {
        assert_eq!(by_firmware("VMware, Inc."), Some("vmware"));
        assert_eq!(by_firmware("innotek GmbH"), Some("virtualbox"));
        assert_eq!(by_firmware("Dell Inc."), None);
    }
}

//! What runs in a VM: its driver, what boots, disks and network cards.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::fleet::artifact::Artifact;
use crate::id::VmId;
use crate::site::host::DriverKind;

/// What makes and runs instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Driver {
    /// Cloud Hypervisor.
    CloudHypervisor,
    /// QEMU.
    Qemu,
    /// OCI containers.
    Oci,
    /// Processes that stand for machines.
    Sandbox,
}

impl Driver {
    /// Every driver with its word.
    pub const WORDS: [(&'static str, Self); 4] = [
        ("cloud-hypervisor", Self::CloudHypervisor),
        ("qemu", Self::Qemu),
        ("oci", Self::Oci),
        ("sandbox", Self::Sandbox),
    ];

    /// Returns its word.
    pub const fn word(self) -> &'static str {
        self.kind().word()
    }

    /// Returns the driver of machines it is.
    pub const fn kind(self) -> DriverKind {
        match self {
            Self::CloudHypervisor => DriverKind::CloudHypervisor,
            Self::Qemu => DriverKind::Qemu,
            Self::Oci => DriverKind::Oci,
            Self::Sandbox => DriverKind::Sandbox,
        }
    }

    /// Whether it makes virtual machines, which boot a kernel and have disks.
    pub const fn is_virtual(self) -> bool {
        match self {
            Self::CloudHypervisor | Self::Qemu => true,
            Self::Oci | Self::Sandbox => false,
        }
    }
}

/// A kind of processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Arch {
    /// 64-bit x86.
    #[default]
    #[serde(rename = "x86_64")]
    X86,
    /// 64-bit ARM.
    #[serde(rename = "aarch64")]
    Arm,
}

impl Arch {
    /// Every kind with its word.
    pub const WORDS: [(&'static str, Self); 2] = [("x86_64", Self::X86), ("aarch64", Self::Arm)];

    /// Returns its word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::X86 => "x86_64",
            Self::Arm => "aarch64",
        }
    }
}

/// What runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// What makes it.
    pub driver: Driver,
    /// What it is made for.
    pub arch: Arch,
    /// What boots.
    pub kernel: Option<Artifact>,
    /// The first file system.
    pub initrd: Option<Artifact>,
    /// What boots, where the disk has the kernel.
    pub firmware: Option<Artifact>,
    /// The kernel's arguments.
    pub cmdline: String,
    /// Its disks, in their order.
    pub disks: Vec<Disk>,
    /// The file tree of a container.
    pub rootfs: Option<Artifact>,
    /// What is executed.
    pub argv: Vec<String>,
    /// The environment of that.
    pub env: BTreeMap<String, String>,
    /// The directory of that.
    pub cwd: Option<String>,
    /// Its network cards, in their order.
    pub nets: Vec<Net>,
    /// Whether it has a socket to its host.
    pub vsock: bool,
    /// The resolved spec that is applied at first boot.
    pub config: Option<Artifact>,
    /// What else has to be at hand.
    pub artifacts: Vec<Artifact>,
}

impl Runtime {
    /// Returns a runtime of `driver` with nothing else set.
    pub fn new(driver: Driver) -> Self {
        Self {
            driver,
            arch: Arch::default(),
            kernel: None,
            initrd: None,
            firmware: None,
            cmdline: String::new(),
            disks: Vec::new(),
            rootfs: None,
            argv: Vec::new(),
            env: BTreeMap::new(),
            cwd: None,
            nets: Vec::new(),
            vsock: false,
            config: None,
            artifacts: Vec::new(),
        }
    }
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// What is on it.
    pub source: DiskSource,
    /// Whether it cannot be written.
    pub read_only: bool,
    /// How its bits are laid out.
    pub format: DiskFormat,
}

/// What is on a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskSource {
    /// An image; what is written to it goes with the instance.
    Image(Artifact),
    /// A volume of the VM.
    Volume(VmId),
}

/// How the bits of a disk are laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskFormat {
    /// One after the other.
    #[default]
    Raw,
    /// As QEMU does.
    Qcow2,
}

impl DiskFormat {
    /// Every format with its word.
    pub const WORDS: [(&'static str, Self); 2] = [("raw", Self::Raw), ("qcow2", Self::Qcow2)];
}

/// A network card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Net {
    /// What it is plugged into.
    pub mode: NetMode,
    /// Of tap: the bridge.
    pub bridge: Option<String>,
    /// Its hardware address; none: [`InstanceKey::mac`](crate::fleet::InstanceKey::mac).
    pub mac: Option<String>,
    /// Of user: ports that are passed on, guest and host.
    pub ports: Vec<Port>,
}

/// A port of a guest that is reached at one of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// In the guest.
    pub guest: u16,
    /// On the worker.
    pub host: u16,
}

/// What a network card is plugged into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetMode {
    /// A device of the worker.
    Tap,
    /// The worker's own network, by translation.
    #[default]
    User,
    /// Nothing.
    None,
}

impl NetMode {
    /// Every mode with its word.
    pub const WORDS: [(&'static str, Self); 3] =
        [("tap", Self::Tap), ("user", Self::User), ("none", Self::None)];
}

//! What is known of a host: one value, the same shape everywhere, with null for what is not there.
//!
//! Gathering is `stead-drivers`' work. Here are the shape, the words it uses, and how a part of it is chosen.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

mod selection;

pub use selection::{Selection, UnknownFact};

/// The version of the shape.
pub const SCHEMA: u32 = 1;

/// What is known of a host. Lists are sorted by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// The version of this shape.
    pub schema: u32,
    /// The operating system.
    pub os: Os,
    /// The processor's architecture: `x86_64`, `aarch64`, `armv7`, `riscv64`, or what the kernel calls it.
    pub arch: Option<String>,
    /// The kernel.
    pub kernel: Kernel,
    /// The host's own name for itself.
    pub hostname: Option<String>,
    /// Its name with the domain, where the host knows it.
    pub fqdn: Option<String>,
    /// The id of this installation.
    pub machine_id: Option<String>,
    /// The id of this boot.
    pub boot_id: Option<String>,
    /// Its processors.
    pub cpu: Cpu,
    /// Its memory.
    pub memory: Memory,
    /// Its block devices.
    pub disks: Vec<Disk>,
    /// Its file systems.
    pub mounts: Vec<Mount>,
    /// Its network interfaces.
    pub interfaces: Vec<Interface>,
    /// How others reach it.
    pub address: Address,
    /// What installs packages.
    pub package_manager: PackageManager,
    /// What starts services.
    pub service_manager: ServiceManager,
    /// What it runs in.
    pub virtualization: Virtualization,
    /// Who asked.
    pub user: User,
    /// The time zone's name, such as `Europe/Vienna`.
    pub timezone: Option<String>,
    /// Seconds since it booted.
    pub uptime_seconds: Option<u64>,
    /// The program that gathered these facts.
    pub stead: Stead,
    /// What the host says of itself in `/etc/stead/facts.d`.
    pub custom: BTreeMap<String, Value>,
}

impl Default for Facts {
    fn default() -> Self {
        Self {
            schema: SCHEMA,
            os: Os::default(),
            arch: None,
            kernel: Kernel::default(),
            hostname: None,
            fqdn: None,
            machine_id: None,
            boot_id: None,
            cpu: Cpu::default(),
            memory: Memory::default(),
            disks: Vec::new(),
            mounts: Vec::new(),
            interfaces: Vec::new(),
            address: Address::default(),
            package_manager: PackageManager::default(),
            service_manager: ServiceManager::default(),
            virtualization: Virtualization::default(),
            user: User::default(),
            timezone: None,
            uptime_seconds: None,
            stead: Stead::default(),
            custom: BTreeMap::new(),
        }
    }
}

impl Facts {
    /// Returns the facts as expressions and reports see them.
    pub fn to_json(&self) -> Value {
        // Every field is text, a number, a list or a map with text keys.
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// An operating system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Os {
    /// What it descends from.
    pub family: OsFamily,
    /// The distribution's id, such as `debian`.
    pub distribution: Option<String>,
    /// Its version, such as `12` or `9.4`.
    pub version: Option<String>,
    /// The first number of the version.
    pub major: Option<u64>,
    /// The version's name, such as `bookworm`.
    pub codename: Option<String>,
    /// What people call it.
    pub name: Option<String>,
}

/// What an operating system descends from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OsFamily {
    /// Debian and what is made from it.
    Debian,
    /// Red Hat Enterprise Linux, Fedora and what is made from them.
    Redhat,
    /// Alpine.
    Alpine,
    /// Arch and what is made from it.
    Arch,
    /// SUSE and openSUSE.
    Suse,
    /// macOS.
    Darwin,
    /// None of these.
    #[default]
    Unknown,
}

impl OsFamily {
    /// Returns the family of a distribution by its id, then by the ids of what it is like.
    pub fn of(id: &str, like: &str) -> Self {
        let known = |word: &str| match word {
            "debian" | "ubuntu" | "raspbian" | "linuxmint" | "devuan" | "kali" | "pop" => Some(Self::Debian),
            "rhel" | "redhat" | "fedora" | "centos" | "rocky" | "almalinux" | "ol" | "amzn" => {
                Some(Self::Redhat)
            }
            "alpine" => Some(Self::Alpine),
            "arch" | "archarm" | "manjaro" => Some(Self::Arch),
            "suse" | "opensuse" | "sles" | "sled" | "sle-micro" => Some(Self::Suse),
            _ if word.starts_with("opensuse-") => Some(Self::Suse),
            _ => None,
        };
        std::iter::once(id).chain(like.split_ascii_whitespace()).find_map(known).unwrap_or_default()
    }
}

/// A kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    /// Its name, such as `Linux`.
    pub name: Option<String>,
    /// Its release, such as `6.1.0-18-amd64`.
    pub release: Option<String>,
}

/// Processors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// How many are online, as the kernel counts them.
    pub count: Option<u64>,
    /// What they call themselves.
    pub model: Option<String>,
}

/// Memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// All of it.
    pub total_bytes: Option<u64>,
    /// What a new program could use without swapping.
    pub available_bytes: Option<u64>,
    /// All of the swap space.
    pub swap_total_bytes: Option<u64>,
}

/// A block device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// Its name below `/dev`.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Whether it turns.
    pub rotational: Option<bool>,
    /// `disk`, `rom`, `loop`, `raid`, `lvm`, `crypt`, `multipath` or `dm`.
    #[serde(rename = "type")]
    pub kind: String,
}

/// A mounted file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Where.
    pub path: String,
    /// What.
    pub device: String,
    /// Its type.
    pub fstype: String,
    /// Its size; null for one that other machines serve, which is not asked.
    pub size_bytes: Option<u64>,
    /// What an ordinary account may still write.
    pub available_bytes: Option<u64>,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its hardware address.
    pub mac: Option<String>,
    /// The largest packet it takes.
    pub mtu: Option<u64>,
    /// Whether it is switched on.
    pub up: bool,
    /// Its addresses, in the kernel's order: the first of a family is its primary one.
    pub addresses: Vec<InterfaceAddress>,
}

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceAddress {
    /// The address.
    pub address: String,
    /// How many bits of it are the network's.
    pub prefix: u8,
    /// Which kind of address.
    pub family: AddressFamily,
}

/// Kinds of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AddressFamily {
    /// IPv4.
    Inet,
    /// IPv6.
    Inet6,
}

/// How others reach a host: the source address of its default route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The IPv4 address.
    pub primary4: Option<String>,
    /// The IPv6 address.
    pub primary6: Option<String>,
    /// The interface of the default route, IPv4 first.
    pub interface: Option<String>,
    /// Where the IPv4 default route leads.
    pub gateway4: Option<String>,
}

/// What installs packages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PackageManager {
    /// Debian's.
    Apt,
    /// Fedora's.
    Dnf,
    /// Alpine's.
    Apk,
    /// Arch's.
    Pacman,
    /// SUSE's.
    Zypper,
    /// Homebrew.
    Brew,
    /// A sandbox's own list.
    Sandbox,
    /// Nothing known.
    #[default]
    None,
}

/// What starts services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceManager {
    /// systemd, running as init.
    Systemd,
    /// OpenRC.
    Openrc,
    /// macOS's.
    Launchd,
    /// A sandbox's own list.
    Sandbox,
    /// Nothing known.
    #[default]
    None,
}

/// What a host runs in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Virtualization {
    /// The hypervisor: `none`, `kvm`, `qemu`, `xen`, `vmware`, `hyperv`, `virtualbox`, `parallels`, `bhyve`, …
    #[serde(rename = "type")]
    pub hypervisor: String,
    /// Whether it is a virtual machine, has virtual machines, or neither.
    pub role: VirtualizationRole,
    /// The container around it.
    pub container: Container,
}

impl Default for Virtualization {
    fn default() -> Self {
        Self { hypervisor: "none".to_owned(), role: VirtualizationRole::None, container: Container::None }
    }
}

/// Which side of a hypervisor a host is on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VirtualizationRole {
    /// It is a virtual machine.
    Guest,
    /// It can run virtual machines.
    Host,
    /// Neither.
    #[default]
    None,
}

/// Containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Container {
    /// Not in one.
    #[default]
    None,
    /// Docker's.
    Docker,
    /// Podman's.
    Podman,
    /// Of a runtime that leaves no name.
    Oci,
    /// LXC's.
    Lxc,
    /// A sandbox.
    Sandbox,
}

/// An account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// Its name.
    pub name: Option<String>,
    /// Its number.
    pub uid: Option<u32>,
    /// Its home directory.
    pub home: Option<String>,
}

/// The program that gathered facts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stead {
    /// Its version.
    pub version: Option<String>,
    /// The SHA-256 of its file.
    pub sha256: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_is_the_contracts_with_null_for_what_is_absent() {
        let facts = Facts {
            disks: vec![Disk { name: "sda".to_owned(), kind: "disk".to_owned(), ..Disk::default() }],
            mounts: vec![Mount::default()],
            interfaces: vec![Interface {
                addresses: vec![InterfaceAddress {
                    address: "::1".to_owned(),
                    prefix: 128,
                    family: AddressFamily::Inet6,
                }],
                ..Interface::default()
            }],
            ..Facts::default()
        };
        let text = serde_json::to_string(&facts).unwrap();
        assert_eq!(
            text,
            r#"{"schema":1,"os":{"family":"unknown","distribution":null,"version":null,"major":null,"codename":null,"name":null},"arch":null,"kernel":{"name":null,"release":null},"hostname":null,"fqdn":null,"machine_id":null,"boot_id":null,"cpu":{"count":null,"model":null},"memory":{"total_bytes":null,"available_bytes":null,"swap_total_bytes":null},"disks":[{"name":"sda","size_bytes":0,"rotational":null,"type":"disk"}],"mounts":[{"path":"","device":"","fstype":"","size_bytes":null,"available_bytes":null}],"interfaces":[{"name":"","mac":null,"mtu":null,"up":false,"addresses":[{"address":"::1","prefix":128,"family":"inet6"}]}],"address":{"primary4":null,"primary6":null,"interface":null,"gateway4":null},"package_manager":"none","service_manager":"none","virtualization":{"type":"none","role":"none","container":"none"},"user":{"name":null,"uid":null,"home":null},"timezone":null,"uptime_seconds":null,"stead":{"version":null,"sha256":null},"custom":{}}"#
        );
        assert_eq!(serde_json::from_str::<Facts>(&text).unwrap(), facts);
    }

    #[test]
    fn a_family_comes_from_the_id_then_from_what_it_is_like() {
        for (id, like, family) in [
            ("debian", "", OsFamily::Debian),
            ("ubuntu", "debian", OsFamily::Debian),
            ("rocky", "rhel centos fedora", OsFamily::Redhat),
            ("mylinux", "arch", OsFamily::Arch),
            ("opensuse-leap", "suse opensuse", OsFamily::Suse),
            ("alpine", "", OsFamily::Alpine),
            // The id wins over what the distribution says it is like.
            ("fedora", "debian", OsFamily::Redhat),
            ("nixos", "", OsFamily::Unknown),
            ("", "", OsFamily::Unknown),
        ] {
            assert_eq!(OsFamily::of(id, like), family, "{id} {like}");
        }
    }
}

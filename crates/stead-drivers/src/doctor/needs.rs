//! Which programs and devices drivers use, and in which Debian package they are.

use std::path::{Path, PathBuf};

use super::{Check, Programs};
use crate::machine::oci;
use crate::machine::qemu::{KVM, kvm_works, open_kvm};

/// The machine drivers, by the names users write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineDriverName {
    /// Supervised processes with a root of their own.
    Sandbox,
    /// Containers by an OCI runtime.
    Oci,
    /// Virtual machines by QEMU.
    Qemu,
    /// Virtual machines by Cloud Hypervisor.
    CloudHypervisor,
    /// Virtual machines and containers of a Proxmox cluster.
    Proxmox,
}

impl MachineDriverName {
    /// Every driver.
    pub const ALL: [Self; 5] = [Self::Sandbox, Self::Oci, Self::Qemu, Self::CloudHypervisor, Self::Proxmox];

    /// Returns the word used in files and flags.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Oci => "oci",
            Self::Qemu => "qemu",
            Self::CloudHypervisor => "cloud-hypervisor",
            Self::Proxmox => "proxmox",
        }
    }
}

/// Programs of which one is enough.
struct Need {
    /// What the check is called.
    name: &'static str,
    /// Program and Debian package, the first choice first.
    any_of: &'static [(&'static str, Option<&'static str>)],
    /// What it is for.
    purpose: &'static str,
}

const GIT: Need = Need { name: "git", any_of: &[("git", Some("git"))], purpose: "fleets, and git.checkout" };
const ZSTD: Need = Need {
    name: "zstd",
    any_of: &[("zstd", Some("zstd")), ("gzip", Some("gzip"))],
    purpose: "a quick first upload of stead to this machine",
};
const NIX: Need =
    Need { name: "nix", any_of: &[("nix", Some("nix-bin"))], purpose: "fleets that are Nix flakes" };
const OCI_RUNTIME: Need = Need {
    name: "oci-runtime",
    any_of: &[("runc", Some("runc")), ("crun", Some("crun")), ("youki", None)],
    purpose: "the driver oci",
};
const SSHD: Need = Need {
    name: "sshd",
    any_of: &[("sshd", Some("openssh-server"))],
    purpose: "machines of the driver oci whose template is `host`",
};
const QEMU: Need = Need {
    name: "qemu",
    any_of: &[if cfg!(target_arch = "aarch64") {
        ("qemu-system-aarch64", Some("qemu-system-arm"))
    } else {
        ("qemu-system-x86_64", Some("qemu-system-x86"))
    }],
    purpose: "the driver qemu",
};
const QEMU_IMG: Need = Need {
    name: "qemu-img",
    any_of: &[("qemu-img", Some("qemu-utils"))],
    purpose: "disks of virtual machines",
};
const CLOUD_HYPERVISOR: Need = Need {
    name: "cloud-hypervisor",
    any_of: &[("cloud-hypervisor", None)],
    purpose: "the driver cloud-hypervisor",
};

const IP: Need =
    Need { name: "ip", any_of: &[("ip", Some("iproute2"))], purpose: "network cards on bridges" };

impl Need {
    fn find(&self, programs: &Programs<'_>) -> Option<PathBuf> {
        self.any_of.iter().find_map(|(name, _)| programs.find(name))
    }

    fn check(&self, programs: &Programs<'_>, is_required: bool) -> Check {
        if let Some(path) = self.find(programs) {
            return Check::pass(self.name, format!("{} (for {})", path.display(), self.purpose));
        }
        let names: Vec<&str> = self.any_of.iter().map(|(name, _)| *name).collect();
        let detail = format!("{} is not installed; needed for {}", names.join(" or "), self.purpose);
        let packages: Vec<&str> = self.any_of.iter().filter_map(|(_, package)| *package).collect();
        let fix = match packages.as_slice() {
            [] => format!("Debian has no package of {}: install its release by hand", names.join(" or ")),
            packages => format!("install the Debian package {}", packages.join(" or ")),
        };
        if is_required {
            Check::fail(self.name, detail, fix)
        } else {
            Check::skip(self.name, detail).fix(fix)
        }
    }
}

/// Returns which of the programs that anything in Stead uses are there. None is needed for everything.
pub fn programs(programs: &Programs<'_>) -> Vec<Check> {
    [GIT, ZSTD, NIX, OCI_RUNTIME, QEMU, QEMU_IMG, CLOUD_HYPERVISOR]
        .iter()
        .map(|need| need.check(programs, false))
        .collect()
}

/// Returns whether this machine has what a machine driver needs.
///
/// Whether the processor runs guests is tried, by a guest that powers off at once: a `/dev/kvm` that is there may still
/// hang or abort.
pub async fn driver(driver: MachineDriverName, programs: &Programs<'_>) -> Vec<Check> {
    match driver {
        MachineDriverName::Sandbox => {
            vec![Check::pass("driver sandbox", "needs nothing installed and no root")]
        }
        MachineDriverName::Proxmox => {
            vec![Check::pass("driver proxmox", "needs nothing on this machine; its API is asked over HTTPS")]
        }
        MachineDriverName::Oci if oci::is_rootless() => {
            let mut checks = vec![OCI_RUNTIME.check(programs, true), IP.check(programs, true)];
            checks.extend(rootless());
            checks
        }
        MachineDriverName::Oci => vec![
            OCI_RUNTIME.check(programs, true),
            IP.check(programs, true),
            root(),
            oci_namespaces(),
            oci_groups(),
            SSHD.check(programs, false),
        ],
        MachineDriverName::Qemu => {
            let kvm = match try_kvm(programs).await {
                Ok(found) => Check::pass("kvm", found),
                Err(why) => Check::skip("kvm", format!("{why}: machines run emulated (tcg), slower")),
            };
            vec![QEMU.check(programs, true), QEMU_IMG.check(programs, true), kvm]
        }
        MachineDriverName::CloudHypervisor => {
            let kvm = match try_kvm(programs).await {
                Ok(found) => Check::pass("kvm", found),
                Err(why) => Check::fail("kvm", why, "use a machine with virtualization, and the group kvm"),
            };
            vec![
                CLOUD_HYPERVISOR.check(programs, true),
                QEMU_IMG.check(programs, true),
                IP.check(programs, true),
                root(),
                kvm,
            ]
        }
    }
}

fn root() -> Check {
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        Check::pass("root", "this is root")
    } else {
        let detail = format!("this is uid {}; mounts, namespaces and taps need root", uid.as_raw());
        Check::fail("root", detail, "run stead as root")
    }
}

/// Whether this process may have mounts and networks of its own: root in a container often may not.
fn oci_namespaces() -> Check {
    match oci::try_namespaces() {
        Ok(()) => Check::pass("namespaces", "this process may have mounts and networks of its own"),
        Err(why) => {
            let fix =
                "run stead on a machine of its own, or in a container with CAP_SYS_ADMIN and CAP_NET_ADMIN";
            Check::fail("namespaces", why, fix)
        }
    }
}

/// Whether an ordinary account has what it needs to have containers.
fn rootless() -> Vec<Check> {
    let lacks = match std::env::current_exe() {
        Ok(program) => oci::lacks(&program),
        Err(error) => return vec![Check::fail("rootless", error.to_string(), "run stead as root")],
    };
    if lacks.is_empty() {
        let detail = "this account has containers without root; `cpus` and `memory_mb` limit nothing there";
        return vec![Check::pass("rootless", detail)];
    }
    let check =
        |lack: oci::Lack| Check::fail(lack.name, lack.what, format!("{}; or run stead as root", lack.fix));
    lacks.into_iter().map(check).collect()
}

fn oci_groups() -> Check {
    let mounted = Path::new("/sys/fs/cgroup");
    let has_groups = ["cgroup.controllers", "memory", "cpu"].iter().any(|name| mounted.join(name).exists());
    if has_groups {
        Check::pass("cgroups", format!("{} has control groups", mounted.display()))
    } else {
        let detail = format!("{} has no control groups, by which machines are limited", mounted.display());
        Check::fail("cgroups", detail, "mount cgroup2 there, as systemd does")
    }
}

/// Returns how far it is known that the processor runs guests: by a guest, if there is a QEMU to run it.
async fn try_kvm(programs: &Programs<'_>) -> Result<String, String> {
    open_kvm(Path::new(KVM))?;
    match QEMU.find(programs) {
        Some(binary) => kvm_works(&binary, Path::new(KVM)).await.map(|()| format!("a guest runs by {KVM}")),
        None => Ok(format!("{KVM} can be opened; there is no QEMU to try a guest with")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::CheckStatus;

    /// Case 30: each missing program is named with its package.
    #[test]
    fn a_missing_program_is_named_with_its_package() {
        const NOWHERE: Need = Need {
            name: "x",
            any_of: &[("no-such-program-a", Some("package-a")), ("no-such-program-b", Some("package-b"))],
            purpose: "tests",
        };
        let programs = Programs { path: None };
        let required = NOWHERE.check(&programs, true);
        assert_eq!(required.status, CheckStatus::Fail);
        assert!(required.detail.contains("no-such-program-a or no-such-program-b"), "{}", required.detail);
        assert_eq!(required.fix.as_deref(), Some("install the Debian package package-a or package-b"));
        let optional = NOWHERE.check(&programs, false);
        assert_eq!((optional.status, optional.fix), (CheckStatus::Skip, required.fix));
        const SH: Need = Need { name: "sh", any_of: &[("no-such", None), ("sh", None)], purpose: "tests" };
        assert_eq!(SH.check(&programs, true).status, CheckStatus::Pass);
        const UNPACKAGED: Need = Need { name: "x", any_of: &[("no-such", None)], purpose: "tests" };
        assert!(UNPACKAGED.check(&programs, true).fix.unwrap().contains("no package of no-such"));
    }
}

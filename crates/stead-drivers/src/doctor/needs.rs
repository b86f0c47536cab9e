//! Which programs and devices drivers use, and in which Debian package they are.

use std::path::Path;

use super::{Check, Programs};

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

const GIT: Need =
    Need { name: "git", any_of: &[("git", Some("git"))], purpose: "the operation git.checkout" };
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
    purpose: "disks of the driver qemu",
};
const CLOUD_HYPERVISOR: Need = Need {
    name: "cloud-hypervisor",
    any_of: &[("cloud-hypervisor", None)],
    purpose: "the driver cloud-hypervisor",
};

impl Need {
    fn check(&self, programs: &Programs<'_>, is_required: bool) -> Check {
        let found = self.any_of.iter().find_map(|(name, _)| programs.find(name));
        if let Some(path) = found {
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
pub fn driver(driver: MachineDriverName, programs: &Programs<'_>) -> Vec<Check> {
    match driver {
        MachineDriverName::Sandbox => {
            vec![Check::pass("driver sandbox", "needs nothing installed and no root")]
        }
        MachineDriverName::Proxmox => {
            vec![Check::pass("driver proxmox", "needs nothing on this machine; its API is asked over HTTPS")]
        }
        MachineDriverName::Oci => vec![OCI_RUNTIME.check(programs, true), root()],
        MachineDriverName::Qemu => {
            let kvm = match open_kvm() {
                Ok(()) => Check::pass("kvm", "/dev/kvm can be opened"),
                Err(why) => Check::skip("kvm", format!("{why}: machines run emulated (tcg), slower")),
            };
            vec![QEMU.check(programs, true), QEMU_IMG.check(programs, true), kvm]
        }
        MachineDriverName::CloudHypervisor => {
            let kvm = match open_kvm() {
                Ok(()) => Check::pass("kvm", "/dev/kvm can be opened"),
                Err(why) => Check::fail("kvm", why, "use a machine with virtualization, and the group kvm"),
            };
            vec![CLOUD_HYPERVISOR.check(programs, true), kvm]
        }
    }
}

fn root() -> Check {
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        Check::pass("root", "this is root")
    } else {
        let detail = format!("this is uid {}; mounts and namespaces need root", uid.as_raw());
        Check::fail("root", detail, "run stead as root")
    }
}

fn open_kvm() -> Result<(), String> {
    let device = Path::new("/dev/kvm");
    let opened = std::fs::File::options().read(true).write(true).open(device);
    opened.map(drop).map_err(|error| format!("{} cannot be opened: {error}", device.display()))
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

//! What a worker says of itself.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use stead_drivers::doctor::{self, CheckStatus, MachineDriverName, Programs};
use stead_drivers::machine::{oci, sandbox};
use stead_model::fleet::services::WorkerFile;
use stead_model::fleet::state::{Allocatable, WorkerFacts};
use stead_model::fleet::vm::{Arch, Driver, Resources, SPEC_VERSION};

use super::drivers::Machines;
use super::fetch::nix_version;

/// What is said of containers of an ordinary account.
const ROOTLESS: &str = "containers here may use more than their cpuMilli and memory, for an ordinary account has no control groups to limit them by: run the agent as root";

/// How many foreign machines are told of.
const MOST_FOREIGN: usize = 32;

/// What does not change while the agent lives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Abilities {
    drivers: BTreeSet<Driver>,
    nix_version: Option<String>,
    /// What machines here do without.
    pub(super) notes: Vec<String>,
}

impl Abilities {
    /// Returns what is known before anything was tried: sandboxes need nothing.
    pub(super) fn at_first(machines: &Machines) -> Self {
        let found =
            machines.all().map(|(driver, _)| driver).filter(|driver| *driver == Driver::Sandbox).collect();
        Self { drivers: with_mapped(found, machines), ..Self::default() }
    }

    /// Finds out which drivers really work here. Takes its time: a guest may be booted to see.
    pub(super) async fn find_out(
        machines: Machines,
        nix_binary: String,
        search_path: Option<OsString>,
    ) -> Self {
        let programs = Programs { path: search_path.as_deref() };
        let mut found = BTreeSet::new();
        for (driver, _) in machines.all() {
            let checks = doctor::driver(doctor_name(driver), &programs).await;
            if checks.iter().all(|check| check.status != CheckStatus::Fail) {
                found.insert(driver);
            }
        }
        let nix_version = nix_version(&nix_binary, search_path.as_ref()).await;
        let mut notes: Vec<String> = match found.contains(&Driver::Sandbox) {
            true => sandbox::try_quota().err().map(|why| unlimited(&why)).into_iter().collect(),
            false => Vec::new(),
        };
        if found.contains(&Driver::Oci) && oci::is_rootless() {
            notes.push(ROOTLESS.to_owned());
        }
        Self { drivers: with_mapped(found, &machines), nix_version, notes }
    }
}

/// Returns what is said of sandboxes that no control group can be made for.
fn unlimited(why: &str) -> String {
    format!(
        "sandboxes here may use more than their cpuMilli, for no control group can be made ({why}): run the agent as root, or in a unit with `Delegate=cpu` and `DelegateSubgroup=agent`"
    )
}

fn doctor_name(driver: Driver) -> MachineDriverName {
    match driver {
        Driver::CloudHypervisor => MachineDriverName::CloudHypervisor,
        Driver::Qemu => MachineDriverName::Qemu,
        Driver::Oci => MachineDriverName::Oci,
        Driver::Sandbox => MachineDriverName::Sandbox,
    }
}

/// Returns these drivers and those they stand in for.
fn with_mapped(found: BTreeSet<Driver>, machines: &Machines) -> BTreeSet<Driver> {
    let mapped = machines.mapped();
    let stood_in = mapped.iter().filter(|(_, actual)| found.contains(actual)).map(|(driver, _)| *driver);
    let own = found.iter().copied().filter(|driver| !mapped.contains_key(driver));
    own.chain(stood_in).collect()
}

/// Returns what the worker says of itself now.
pub(super) fn facts(
    file: &WorkerFile,
    directory: &Path,
    abilities: &Abilities,
    used: Resources,
    foreign: &BTreeSet<String>,
) -> WorkerFacts {
    let space = Space::of(directory);
    let capacity = file.capacity.unwrap_or_else(|| Allocatable {
        cpu_milli: std::thread::available_parallelism().map_or(1, |count| count.get() as u64) * 1000,
        mem_mib: memory_mib(&fs::read_to_string("/proc/meminfo").unwrap_or_default()).unwrap_or_default(),
        disk_mib: space.map(|space| space.total >> 20),
    });
    WorkerFacts {
        capacity: capacity.without(file.reserve),
        used,
        drivers: abilities.drivers.clone(),
        labels: file.labels.clone(),
        arch: if cfg!(target_arch = "aarch64") { Arch::Arm } else { Arch::X86 },
        os: std::env::consts::OS.to_owned(),
        spec_version: SPEC_VERSION,
        disk_pressure: is_disk_low(file, directory),
        nix_version: abilities.nix_version.clone(),
        notes: abilities.notes.clone(),
        foreign: foreign.iter().take(MOST_FOREIGN).cloned().collect(),
        mapped: file.map_driver.clone(),
    }
}

/// Whether too little is free of a disk that bits or machines are on.
pub(super) fn is_disk_low(file: &WorkerFile, directory: &Path) -> bool {
    let store = if file.nix.store == "auto" { "/nix" } else { file.nix.store.as_str() };
    let places = [directory, Path::new(store)];
    places.into_iter().filter_map(Space::of).any(|space| space.is_below(file.min_free_disk_percent))
}

/// The disk that a directory is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Space {
    total: u64,
    free: u64,
}

impl Space {
    fn of(directory: &Path) -> Option<Self> {
        let found = rustix::fs::statvfs(directory).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Some(Self { total: bytes(found.f_blocks), free: bytes(found.f_bavail) })
    }

    fn is_below(self, percent: u32) -> bool {
        u128::from(self.free) * 100 < u128::from(self.total) * u128::from(percent)
    }
}

/// Returns the memory that `/proc/meminfo` shows.
fn memory_mib(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib >> 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_disk_are_read_as_the_machine_shows_them() {
        assert_eq!(memory_mib("Buffers: 1 kB\nMemTotal:       8388608 kB\n"), Some(8192));
        assert_eq!(memory_mib("MemTotal: lots\n"), None);
        let space = Space { total: 1000, free: 50 };
        assert!(!space.is_below(5) && space.is_below(6) && !space.is_below(0));
    }
}

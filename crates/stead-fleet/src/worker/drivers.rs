//! What makes machines on this worker, and what machines are called there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stead_drivers::nodes::{machine_driver, machines_directory};
use stead_model::WorkerName;
use stead_model::fleet::InstanceKey;
use stead_model::fleet::services::WorkerFile;
use stead_model::fleet::vm::Driver;
use stead_model::machine::{MachineId, Owner};
use stead_model::plan::Digest;
use stead_model::site::{Host, Secrets};
use stead_runner::machine::{MachineDriver, MachineError};

use super::WorkerError;

/// The longest name of a machine: its host name.
const LONGEST_NAME: usize = 63;

/// The drivers of a worker.
#[derive(Clone)]
pub(super) struct Machines {
    drivers: BTreeMap<Driver, Kept>,
    mapped: BTreeMap<Driver, Driver>,
    scope: String,
}

#[derive(Clone)]
struct Kept {
    driver: Arc<dyn MachineDriver>,
    root_dir: PathBuf,
    has_bridge: bool,
}

impl Machines {
    /// Returns the drivers that `file` names, or all there are. Touches nothing.
    pub(super) fn new(
        file: &WorkerFile,
        worker: &WorkerName,
        directory: &Path,
        program: &Path,
    ) -> Result<Self, WorkerError> {
        let all = Driver::WORDS.iter().map(|(_, driver)| *driver);
        let plain = |driver: Driver| Host { driver: Some(driver.kind()), ..Host::default() };
        let hosts: BTreeMap<Driver, Host> = if file.drivers.is_empty() {
            all.map(|driver| (driver, plain(driver))).collect()
        } else {
            let stand_ins = file.map_driver.values().map(|driver| (*driver, plain(*driver)));
            stand_ins.chain(file.drivers.clone()).collect()
        };
        let mut drivers = BTreeMap::new();
        for (kind, host) in hosts {
            let driver = machine_driver(kind.word(), &host, &Secrets::default(), directory, program, None)
                .map_err(|error| WorkerError::Driver(error.to_string()))?;
            let has_bridge = host.driver_settings.contains_key("bridge");
            let root_dir = machines_directory(&host, directory);
            drivers.insert(kind, Kept { driver, root_dir, has_bridge });
        }
        Ok(Self { drivers, mapped: file.map_driver.clone(), scope: format!("fleet/{worker}") })
    }

    /// Returns what really makes machines of a driver.
    pub(super) fn actual(&self, driver: Driver) -> Driver {
        self.mapped.get(&driver).copied().unwrap_or(driver)
    }

    /// Returns what stands in for what.
    pub(super) fn mapped(&self) -> &BTreeMap<Driver, Driver> {
        &self.mapped
    }

    /// Returns the drivers there are.
    pub(super) fn all(&self) -> impl Iterator<Item = (Driver, &Arc<dyn MachineDriver>)> {
        self.drivers.iter().map(|(kind, kept)| (*kind, &kept.driver))
    }

    /// Returns a driver.
    ///
    /// # Errors
    /// If `worker.yaml` does not name it.
    pub(super) fn get(&self, driver: Driver) -> Result<&Arc<dyn MachineDriver>, MachineError> {
        self.drivers.get(&driver).map(|kept| &kept.driver).ok_or_else(|| {
            let word = driver.word();
            MachineError::Unsupported(format!("this worker has no driver `{word}`: add it to `drivers`"))
        })
    }

    /// Returns where a driver keeps its machines.
    pub(super) fn root_dir(&self, driver: Driver) -> Option<&Path> {
        self.drivers.get(&driver).map(|kept| kept.root_dir.as_path())
    }

    /// Whether a driver plugs machines without cards into a network: QEMU is one itself, containers have a bridge that is
    /// made for them, and Cloud Hypervisor has what `worker.yaml` names.
    pub(super) fn has_network(&self, driver: Driver) -> bool {
        match driver {
            Driver::Qemu | Driver::Oci => true,
            Driver::CloudHypervisor => self.drivers.get(&driver).is_some_and(|kept| kept.has_bridge),
            Driver::Sandbox => false,
        }
    }

    /// Returns the scope of our machines.
    pub(super) fn scope(&self) -> &str {
        &self.scope
    }

    /// Returns whose the machine of an instance is.
    pub(super) fn owner(&self, key: &InstanceKey) -> Result<Owner, MachineError> {
        Owner::new(&self.scope, &node_name(key)).map_err(|error| MachineError::Invalid(error.to_string()))
    }

    /// Returns what drivers call the machine of an instance.
    pub(super) fn id(&self, key: &InstanceKey) -> Result<MachineId, MachineError> {
        self.owner(key).map(|owner| MachineId::new(owner.uuid()))
    }
}

/// Returns what an instance is called as a node and as a host: `ID-ORDINAL`, cut where that is longer than a host name.
pub(super) fn node_name(key: &InstanceKey) -> String {
    let name = format!("{}-{}", key.vm, key.ordinal);
    if name.len() <= LONGEST_NAME {
        return name;
    }
    let hash: String = Digest::of(key.to_string().as_bytes()).to_string().chars().take(12).collect();
    let tail = format!("-{hash}-{}", key.ordinal);
    let head: String = name.chars().take(LONGEST_NAME - tail.len()).collect();
    format!("{head}{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_nodes_are_names_of_hosts() {
        let key = |text: &str| InstanceKey::parse(text).unwrap();
        assert_eq!(node_name(&key("web/0")), "web-0");
        let long = "x".repeat(63);
        let (first, second) = (node_name(&key(&format!("{long}/0"))), node_name(&key(&format!("{long}/10"))));
        assert!(first.len() == 63 && second.len() == 63 && first != second, "{first} {second}");
        assert!(stead_model::NodeName::parse(&first).is_ok());
    }
}

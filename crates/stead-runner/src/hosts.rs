//! What a run knows of hosts: the inventory, and how much may run on each.

use std::collections::BTreeMap;
use std::path::PathBuf;

use stead_engine::run::Hosts;
use stead_engine::target::{self, HostSet, TargetExpr};
use stead_model::HostName;
use stead_model::inventory::{Inventory, Transport};

use crate::executor::HostTable;

/// Attempts at once on a host that is not this machine.
const SLOTS: u32 = 8;

/// The hosts of a run.
#[derive(Debug)]
pub(crate) struct InventoryHosts {
    inventory: Inventory,
    set: HostSet,
    limit: Vec<TargetExpr>,
    cpus: u32,
}

impl InventoryHosts {
    /// Returns the hosts of `inventory`; with `limit`, every target is cut down to it.
    pub(crate) fn new(inventory: Inventory, limit: Vec<TargetExpr>) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX));
        let set = HostSet::new(inventory.hosts.iter().map(|(name, host)| (name.clone(), host.labels.clone())));
        Self { inventory, set, limit, cpus }
    }

    fn parse(target: &[String]) -> Result<Vec<TargetExpr>, String> {
        target.iter().map(|text| TargetExpr::parse(text).map_err(|error| error.to_string())).collect()
    }
}

impl Hosts for InventoryHosts {
    fn resolve(&self, target: &[String], seed: &str) -> Result<Vec<HostName>, String> {
        let resolve = |exprs: &[TargetExpr]| {
            target::resolve(exprs, &self.set, seed)
                .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
        };
        // By far the most common target needs no search.
        if let [only] = target
            && only == "local"
            && self.limit.is_empty()
        {
            return Ok(vec![HostName::local()]);
        }
        let found = resolve(&Self::parse(target)?)?;
        if self.limit.is_empty() {
            return Ok(found);
        }
        let within = resolve(&self.limit)?;
        Ok(found.into_iter().filter(|host| within.contains(host)).collect())
    }

    fn slots(&self, host: &HostName, per_target: Option<u32>) -> u32 {
        let own = self.inventory.get(host.as_str());
        if let Some(limit) = own.as_ref().and_then(|host| host.parallel).or(per_target) {
            return limit;
        }
        match own.map(|host| host.transport) {
            Some(Transport::Local) if host.as_str() == "local" => self.cpus.saturating_add(2),
            Some(Transport::Local) | None => SLOTS,
        }
    }
}

impl HostTable for InventoryHosts {
    fn labels(&self, host: &HostName) -> BTreeMap<String, String> {
        self.inventory.get(host.as_str()).map(|host| host.labels).unwrap_or_default()
    }

    fn root(&self, host: &HostName) -> Option<PathBuf> {
        self.inventory.get(host.as_str()).and_then(|host| host.root).map(PathBuf::from)
    }
}

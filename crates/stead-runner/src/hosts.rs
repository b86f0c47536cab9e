//! What a run knows of hosts: the inventory, and how much may run on each.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use stead_engine::run::{Hosts, Unresolved};
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
        let cpus = std::thread::available_parallelism()
            .map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX));
        let set = HostSet::from(&inventory);
        Self { inventory, set, limit, cpus }
    }
}

impl Hosts for InventoryHosts {
    fn resolve(&self, target: &[String], seed: &str) -> Result<Vec<HostName>, Unresolved> {
        // By far the most common target needs no search.
        if let [only] = target
            && only == "local"
            && self.limit.is_empty()
        {
            return Ok(vec![HostName::local()]);
        }
        let resolve = |exprs: &[TargetExpr]| {
            target::resolve(exprs, &self.set, seed).map_err(|errors| {
                Unresolved::Wrong(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
            })
        };
        let parsed: Result<Vec<TargetExpr>, _> = target.iter().map(|text| TargetExpr::parse(text)).collect();
        let found = resolve(&parsed.map_err(|error| Unresolved::Wrong(error.to_string()))?)?;
        if self.limit.is_empty() || found.is_empty() {
            return Ok(found);
        }
        let within: BTreeSet<HostName> = resolve(&self.limit)?.into_iter().collect();
        let left: Vec<HostName> = found.into_iter().filter(|host| within.contains(host)).collect();
        if left.is_empty() { Err(Unresolved::LeftOut) } else { Ok(left) }
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

    fn has(&self, host: &HostName) -> bool {
        self.inventory.get(host.as_str()).is_some()
    }

    fn root(&self, host: &HostName) -> Option<PathBuf> {
        self.inventory.get(host.as_str()).and_then(|host| host.root).map(PathBuf::from)
    }
}

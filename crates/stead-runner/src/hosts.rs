//! What a run knows of hosts: the inventory, and how much may run on each.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use stead_engine::run::{Hosts, Unresolved};
use stead_engine::target::{self, HostSet, TargetExpr};
use stead_model::inventory::{Host, Inventory};
use stead_model::plan::{Plan, Task};
use stead_model::report::Warning;
use stead_model::{HostName, RunId, TransportSpec};

use crate::executor::HostTable;

/// Attempts at once on a host that is not this machine.
const SLOTS: u32 = 8;

/// Hosts that are warned of one by one, per code: a large inventory may be all alike.
const WARNINGS: usize = 20;

/// The hosts of a run.
#[derive(Debug)]
pub(crate) struct InventoryHosts {
    inventory: Inventory,
    set: HostSet,
    limit: Vec<TargetExpr>,
    /// The machine Stead runs on, where no inventory describes it.
    local: Host,
    cpus: u32,
}

impl InventoryHosts {
    /// Returns the hosts of `inventory` and those that targets of `plan` say how to reach; with `limit`, every target
    /// is cut down to it.
    pub(crate) fn new(mut inventory: Inventory, limit: Vec<TargetExpr>, plan: &Plan) -> Self {
        let set = HostSet::from(&inventory);
        for (name, transport) in target::ad_hoc_hosts(plan) {
            inventory.hosts.entry(name).or_insert_with(|| Host::reached_by(transport));
        }
        let cpus = std::thread::available_parallelism()
            .map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX));
        Self { inventory, set, limit, local: Host::local(), cpus }
    }

    fn host(&self, name: &HostName) -> Option<&Host> {
        let described = self.inventory.hosts.get(name);
        described.or_else(|| (name.as_str() == "local").then_some(&self.local))
    }

    /// Returns what to say at the start about how the hosts of these tasks are reached.
    pub(crate) fn warnings<'a>(&self, tasks: impl Iterator<Item = &'a Task>, run_id: &RunId) -> Vec<Warning> {
        let speaks = |host: &Host| host.transport != TransportSpec::Local;
        if !self.inventory.hosts.values().any(speaks) {
            return Vec::new();
        }
        let mut hosts = BTreeSet::new();
        let mut seen: BTreeSet<&[String]> = BTreeSet::new();
        for task in tasks {
            let target = task.settings.target.as_slice();
            // `_any` depends on the task; everything else on the target alone.
            if seen.insert(target) || target.iter().any(|text| text.contains("_any")) {
                hosts.extend(self.resolve(target, &format!("{run_id}/{}", task.name)).unwrap_or_default());
            }
        }
        let mut warnings: Vec<Warning> = Vec::new();
        let mut more: BTreeMap<&'static str, usize> = BTreeMap::new();
        for (code, text) in
            hosts.iter().filter_map(|host| self.host(host)).flat_map(|host| host.transport.warnings())
        {
            if warnings.iter().filter(|warning| warning.code == code).count() < WARNINGS {
                warnings.push(Warning::new(code, text));
            } else {
                *more.entry(code).or_default() += 1;
            }
        }
        let rest = |(code, count): (&str, usize)| {
            Warning::new(code, format!("the same is true of {count} more hosts"))
        };
        warnings.extend(more.into_iter().map(rest));
        warnings
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

    fn instead_of(
        &self,
        target: &[String],
        host: &HostName,
        is_taken: &dyn Fn(&HostName) -> bool,
    ) -> Option<HostName> {
        let exprs: Vec<TargetExpr> =
            target.iter().map(|text| TargetExpr::parse(text).ok()).collect::<Option<_>>()?;
        let limit = target::resolve(&self.limit, &self.set, "").ok()?;
        let left_out = |host: &HostName| !self.limit.is_empty() && !limit.contains(host);
        target::instead_of(&exprs, &self.set, host, &|other| is_taken(other) || left_out(other))
    }

    fn slots(&self, host: &HostName, per_target: Option<u32>) -> u32 {
        let own = self.host(host);
        if let Some(limit) = own.and_then(|host| host.parallel).or(per_target) {
            return limit;
        }
        match own.map(|host| &host.transport) {
            Some(TransportSpec::Local) if host.as_str() == "local" => self.cpus.saturating_add(2),
            Some(TransportSpec::Local | TransportSpec::Ssh(_)) | None => SLOTS,
        }
    }
}

impl HostTable for InventoryHosts {
    fn labels(&self, host: &HostName) -> BTreeMap<String, String> {
        self.host(host).map(|host| host.labels.clone()).unwrap_or_default()
    }

    fn has(&self, host: &HostName) -> bool {
        self.inventory.get(host.as_str()).is_some()
    }

    fn root(&self, host: &HostName) -> Option<PathBuf> {
        self.host(host).and_then(|host| host.root.as_ref()).map(PathBuf::from)
    }

    fn host(&self, name: &HostName) -> Option<&Host> {
        self.host(name)
    }
}

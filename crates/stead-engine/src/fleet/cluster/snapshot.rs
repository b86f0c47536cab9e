//! Everything that decides what a publication does, in one value.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use stead_model::fleet::state::{
    HoldTarget, Homeless, Placement, Snapshot, SnapshotGroup, SnapshotNow, SnapshotPlacement,
};
use stead_model::fleet::vm::Resources;
use stead_model::fleet::{InstanceKey, Millis};
use stead_model::plan::Digest;
use stead_model::{GroupName, VmId, WorkerName};

use super::super::schedule::Copies;
use super::Cluster;

impl Cluster {
    /// Returns everything that a plan needs. What of a lost state is unclaimed only takes room: what becomes of it is
    /// decided when its group is published again.
    pub fn snapshot(&self, now: Millis) -> Snapshot {
        let claimed = || self.durable.placements.iter().filter(|(key, _)| !self.is_unclaimed(&key.vm));
        let placements = claimed().filter_map(|(key, placement)| {
            let spec = self.released_spec(key, placement).filter(|spec| spec.is_bound());
            let volumes = spec.map(|spec| &spec.volumes);
            Some(SnapshotPlacement {
                instance: key.clone(),
                worker: placement.worker.clone()?,
                vm_hash: Some(placement.released),
                volumes: volumes.into_iter().flatten().map(|volume| volume.name.to_string()).collect(),
            })
        });
        // Those that the list of placements does not say.
        let volumes = claimed().filter(|(key, placement)| {
            placement.worker.is_some()
                && !(placement.worker == placement.volumes_on && self.is_tied(key, placement))
        });
        let volumes =
            volumes.filter_map(|(key, placement)| Some((key.clone(), placement.volumes_on.clone()?)));
        let groups = self.durable.groups.iter().filter(|(name, _)| **name != GroupName::fleet());
        let groups = groups.filter_map(|(name, group)| {
            let active = group.active()?;
            Some(SnapshotGroup {
                group: name.clone(),
                generation: active.number,
                commit: active.commit.clone(),
                specs: active.specs.iter().map(|spec| (**spec).clone()).collect(),
            })
        });
        let homeless = claimed().filter(|(_, placement)| placement.worker.is_none());
        let homeless = homeless.map(|(key, placement)| {
            let (vm_hash, volumes_on) = (placement.released, placement.volumes_on.clone());
            let (leaving, tied) = (placement.leaving.clone(), self.is_tied(key, placement));
            (key.clone(), Homeless { vm_hash, volumes_on, leaving, tied })
        });
        let runs = claimed().filter_map(|(key, placement)| Some((key.clone(), self.runs(key, placement)?)));
        let held_rollouts = self.rollouts.iter().filter(|(_, row)| row.memory.hold.is_some());
        let facts = self.durable.workers.iter().filter_map(|(name, facts)| Some((name, facts.as_ref()?)));
        let copies = self.copies();
        let own_labels = facts.filter(|(_, facts)| !facts.labels.is_empty());
        let workers = self.worker_views(now);
        let removed = self.remnants(&workers);
        Snapshot {
            fleet: (*self.fleet()).clone(),
            workers,
            placements: placements.collect(),
            groups: groups.collect(),
            now: SnapshotNow {
                held_vms: self.held_vms(now).cloned().collect(),
                held_groups: self.held_groups(now),
                held_rollouts: held_rollouts
                    .filter_map(|(vm, row)| Some((vm.clone(), row.memory.target?)))
                    .collect(),
                brake: self.presence.brake.is_some(),
                rebalanced: self.rebalanced_at(now),
                leaving: self.leaving_and_frozen(&copies),
                copies,
                volumes: self.durable.volumes.clone().into_iter().chain(volumes).collect(),
                homeless: homeless.collect(),
                runs: runs.chain(removed).collect(),
                specs: self.specs_of_before(),
                own_labels: own_labels.map(|(name, facts)| (name.clone(), facts.labels.clone())).collect(),
            },
        }
    }

    /// Returns what copies that leave take, and what nobody wants any more and is frozen: its spec is in no group.
    fn leaving_and_frozen(&self, copies: &Copies) -> BTreeMap<WorkerName, Resources> {
        let mut load = self.leaving_load(copies);
        let placed = self.durable.placements.iter().filter(|(key, _)| !self.is_unclaimed(&key.vm));
        for (key, placement) in placed.filter(|(key, _)| self.desired_spec(&key.vm).is_none()) {
            if let (Some(worker), Some(spec)) = (&placement.worker, self.released_spec(key, placement)) {
                let entry = load.entry(worker.clone()).or_default();
                *entry = entry.plus(spec.resources);
            }
        }
        load
    }

    /// Returns specs that instances may run and that are not active any more.
    fn specs_of_before(&self) -> BTreeMap<VmId, BTreeMap<Digest, Value>> {
        let mut found: BTreeMap<VmId, BTreeMap<Digest, Value>> = BTreeMap::new();
        for (key, placement) in &self.durable.placements {
            let target = self.target(&key.vm);
            if target.is_some_and(|target| target != placement.released)
                && let Some(spec) = self.released_spec(key, placement)
            {
                let specs = found.entry(key.vm.clone()).or_default();
                specs.entry(placement.released).or_insert_with(|| spec.to_json());
            }
        }
        found
    }

    fn held_groups(&self, now: Millis) -> BTreeSet<GroupName> {
        let targets = self.holds_at(now).filter_map(|hold| match &hold.target {
            HoldTarget::Group(name) => Some(name.clone()),
            HoldTarget::Worker(_) | HoldTarget::Vm(_) => None,
        });
        targets.collect()
    }

    /// Returns what an instance may run and was seen to run, with what each takes; none if that is its active spec alone.
    fn runs(&self, key: &InstanceKey, placement: &Placement) -> Option<BTreeMap<Digest, Resources>> {
        let worker: Option<&WorkerName> = placement.worker.as_ref();
        let sighting = worker.and_then(|worker| self.ears.get(worker)?.seen.get(key));
        let running = sighting.and_then(|sighting| sighting.seen.vm_hash);
        let hashes: BTreeSet<Digest> = [Some(placement.released), running].into_iter().flatten().collect();
        let target = self.target(&key.vm);
        if hashes.iter().all(|hash| Some(*hash) == target) {
            return None;
        }
        let known = hashes
            .into_iter()
            .filter_map(|hash| Some((hash, self.durable.specs.get(&(key.vm.clone(), hash))?.resources)));
        Some(known.collect())
    }
}

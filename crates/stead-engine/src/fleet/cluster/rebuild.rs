//! A state that was lost, taken from what workers report.
//!
//! What a VM *is* only the publisher knows. Until its group is active again, a VM that is reported is **unclaimed**: every
//! copy of it stays as it is, where it is, and takes what its worker says it takes; nothing of it is placed, released, moved
//! or stopped, while groups that are active go on. A group claims its VMs when it becomes active, and what runs of them is
//! what the guard counts before that. A worker gets no assignment before its report was taken.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use stead_model::fleet::state::{InstanceState, MoveReason, Placement};
use stead_model::fleet::vm::Resources;
use stead_model::fleet::{Code, InstanceKey, Millis};
use stead_model::{GroupName, VmId, WorkerName};

use super::{Cluster, Group};

#[cfg(test)]
mod tests;

/// A VM that workers run and no active group has yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unclaimed {
    /// Its group; none: no worker says.
    pub group: Option<GroupName>,
    /// What an instance of it takes.
    pub takes: Resources,
}

impl Cluster {
    /// Begins to take what workers report as what there is.
    pub fn begin_rebuild(&mut self, now: Millis) {
        self.taken.get_or_insert_default();
        self.take_reports(now);
    }

    /// Whether everything is known again: who was heard or is given up, and whom every VM belongs to. `has_all_groups`:
    /// nothing more is about to be published, so that nobody will want what no worker has a group for.
    pub fn is_rebuilt(&self, has_all_groups: bool) -> bool {
        let is_claimed = self.durable.unclaimed.values().all(|one| one.group.is_none() && has_all_groups);
        is_claimed && self.unheard().next().is_none()
    }

    /// Takes nothing more from reports: what no group has claimed, nobody wants.
    pub fn end_rebuild(&mut self) {
        self.taken = None;
        self.durable.unclaimed.clear();
        self.is_dirty = true;
    }

    /// Returns the workers whose reports are still missing.
    pub fn unheard(&self) -> impl Iterator<Item = &WorkerName> {
        let is_missing =
            |name: &&WorkerName| !self.is_dismissed(name) && !self.given_up.given_up.contains(*name);
        self.ears.iter().filter(|(_, ear)| !ear.is_complete).map(|(name, _)| name).filter(is_missing)
    }

    /// Whether a VM stays as it is until its group is active.
    pub fn is_unclaimed(&self, vm: &VmId) -> bool {
        self.durable.unclaimed.contains_key(vm)
    }

    /// Whether a VM is one that a group will claim. What no worker has a group for counts as the default group's.
    pub(super) fn is_unclaimed_of(&self, vm: &VmId, group: &GroupName) -> bool {
        let of = |one: &Unclaimed| {
            one.group.as_ref().map_or(*group == GroupName::default_group(), |of| of == group)
        };
        self.durable.unclaimed.get(vm).is_some_and(of)
    }

    /// Returns what each unclaimed copy takes, and of which worker.
    pub fn unclaimed_load(&self) -> impl Iterator<Item = (&WorkerName, Resources)> {
        self.durable.unclaimed.iter().flat_map(|(vm, one)| {
            let copies =
                self.placements_of(vm).flat_map(|(_, place)| place.leaving.iter().chain(&place.worker));
            copies.map(|worker| (worker, one.takes))
        })
    }

    pub(super) fn placements_of<'a>(
        &'a self,
        vm: &'a VmId,
    ) -> impl Iterator<Item = (&'a InstanceKey, &'a Placement)> {
        let first = InstanceKey::new(vm, 0);
        self.durable.placements.range(first..).take_while(move |(key, _)| key.vm == *vm)
    }

    /// Takes what was reported of VMs that no active group has, while a state is rebuilt.
    pub(super) fn take_reports(&mut self, now: Millis) {
        let Some(taken) = &self.taken else { return };
        let heard: BTreeSet<WorkerName> =
            self.ears.iter().filter(|(_, ear)| ear.is_complete).map(|(name, _)| name.clone()).collect();
        let mut found: BTreeMap<InstanceKey, Vec<(bool, WorkerName, Placement)>> = BTreeMap::new();
        let mut unclaimed: BTreeMap<VmId, Unclaimed> = BTreeMap::new();
        for name in &heard {
            let Some(ear) = self.ears.get(name) else { continue };
            self.reported = self.reported.max(ear.seen_generation);
            self.durable.last_generation = self.durable.last_generation.max(ear.seen_generation);
            self.epoch = self.epoch.max((ear.seen_revision >> 32) + u64::from(!taken.contains(name)));
            for (key, sighting) in &ear.seen {
                let seen = &sighting.seen;
                let Some(hash) = seen.vm_hash.filter(|_| seen.state != InstanceState::Absent) else {
                    continue;
                };
                let is_known = self.durable.placements.get(key).is_some_and(|placement| {
                    placement.worker.as_ref() == Some(name) || placement.leaving.contains(name)
                });
                // What an active group does not want was its own: it goes as anything else that nobody wants.
                let is_decided = self.targets.contains_key(&key.vm)
                    || seen.group.as_ref().is_some_and(|group| self.active(group).is_some());
                if is_known || is_decided || seen.code == Some(Code::Foreign) {
                    continue;
                }
                let placement = Placement {
                    worker: Some(name.clone()),
                    released: hash,
                    generation: ear.seen_generation,
                    since: now.saturating_sub(seen.uptime_ms),
                    reason: MoveReason::New,
                    leaving: BTreeSet::new(),
                    volumes_on: Some(name.clone()),
                };
                found.entry(key.clone()).or_default().push((!seen.ready, name.clone(), placement));
                let one = unclaimed.entry(key.vm.clone()).or_default();
                one.takes = one.takes.larger(seen.takes);
                one.group = one.group.take().or_else(|| seen.group.clone());
            }
        }
        self.taken = Some(heard);
        self.is_dirty |= !found.is_empty();
        for (vm, one) in unclaimed {
            let known = self.durable.unclaimed.entry(vm).or_default();
            known.takes = known.takes.larger(one.takes);
            known.group = known.group.take().or(one.group);
        }
        for (key, mut copies) in found {
            // Of two copies the one that is ready is the one that stays, once its group decides.
            copies.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
            let mut workers: BTreeSet<WorkerName> =
                copies.iter().map(|(_, worker, _)| worker.clone()).collect();
            let Some((_, _, first)) = copies.into_iter().next() else { continue };
            let placement = self.durable.placements.entry(key).or_insert(first);
            workers.retain(|worker| placement.worker.as_ref() != Some(worker));
            placement.leaving.append(&mut workers);
        }
        self.forget_unclaimed();
    }

    /// Forgets copies on workers that are not of the fleet any more.
    fn forget_unclaimed(&mut self) {
        let durable = &mut self.durable;
        let (workers, unclaimed) = (&durable.workers, &durable.unclaimed);
        let before = durable.placements.len();
        durable.placements.retain(|key, placement| {
            if !unclaimed.contains_key(&key.vm) {
                return true;
            }
            placement.leaving.retain(|worker| workers.contains_key(worker));
            let is_gone = placement.worker.as_ref().is_some_and(|worker| !workers.contains_key(worker));
            if is_gone {
                placement.worker = placement.leaving.pop_first();
            }
            placement.worker.is_some()
        });
        if durable.placements.len() != before {
            let placed: BTreeSet<&VmId> = durable.placements.keys().map(|key| &key.vm).collect();
            durable.unclaimed.retain(|vm, _| placed.contains(vm));
            self.is_dirty = true;
        }
    }

    fn active(&self, group: &GroupName) -> Option<u64> {
        self.durable.groups.get(group).and_then(Group::active).map(|active| active.number)
    }

    /// Lets a group that became active have what is its own.
    pub(super) fn claim(&mut self, group: &GroupName, now: Millis) {
        if self.taken.is_none() {
            return;
        }
        let is_its =
            |vm: &VmId, one: &Unclaimed| self.targets.contains_key(vm) || one.group.as_ref() == Some(group);
        let unclaimed = self.durable.unclaimed.iter();
        let claimed: Vec<VmId> =
            unclaimed.filter(|(vm, one)| is_its(vm, one)).map(|(vm, _)| vm.clone()).collect();
        // What must not run twice and was seen nowhere may run where nobody has been heard.
        let silent = self.ears.iter().filter(|(_, ear)| !ear.is_complete);
        let silent: BTreeSet<WorkerName> = silent.map(|(name, _)| name.clone()).collect();
        let active = self.durable.groups.get(group).and_then(Group::active);
        let specs: Vec<_> = active.into_iter().flat_map(|active| active.specs.iter().cloned()).collect();
        for spec in specs.iter().filter(|spec| spec.stops_first() && !silent.is_empty()) {
            let keys = (0..spec.replicas).map(|ordinal| InstanceKey::new(&spec.id, ordinal));
            for key in keys.filter(|key| !self.durable.placements.contains_key(key)).collect::<Vec<_>>() {
                self.durable.ghosts.entry(key).or_default().extend(silent.iter().cloned());
            }
        }
        for vm in &claimed {
            self.durable.unclaimed.remove(vm);
            let is_bound = self.desired_spec(vm).is_some_and(|spec| spec.is_bound());
            let keys: Vec<InstanceKey> = self.placements_of(vm).map(|(key, _)| key.clone()).collect();
            for key in keys.iter().filter(|_| !is_bound) {
                if let Some(placement) = self.durable.placements.get_mut(key) {
                    placement.volumes_on = None;
                }
            }
            if let Some(target) = self.target(vm) {
                let row = self.stored_rollout(vm, target);
                self.rollouts.insert(vm.clone(), row);
            }
        }
        if !claimed.is_empty() {
            // The scheduler learns where they are.
            self.load_scheduler(now);
        }
    }
}

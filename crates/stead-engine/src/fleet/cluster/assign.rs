//! What each worker is to run.

use std::collections::BTreeMap;
use std::sync::Arc;

use stead_model::fleet::VmSpec;
use stead_model::fleet::state::{Assigned, Assignment, HoldTarget, WorkerState};
use stead_model::plan::Digest;
use stead_model::{VmId, WorkerName};

use super::super::rollout::Handover;
use super::{Cluster, Duty};

impl Cluster {
    /// Works out what changed for whom.
    pub(super) fn assign(&mut self) {
        let mut lists: BTreeMap<WorkerName, Vec<Duty>> = BTreeMap::new();
        let fleet = self.fleet();
        for (key, placement) in &self.durable.placements {
            // What runs a spec that nobody knows any more stays as it is until its VM is released anew.
            let released = self.released_spec(key, placement);
            let spec = released.or_else(|| self.desired_spec(&key.vm));
            let is_unclaimed = self.is_unclaimed(&key.vm);
            if spec.is_none() && !is_unclaimed {
                continue;
            }
            let mut give = |worker: &WorkerName, leaving: bool| {
                let assigned = Assigned {
                    instance: key.clone(),
                    generation: placement.generation,
                    vm_hash: placement.released,
                    spec: 0,
                    leaving,
                    frozen: released.is_none() || self.is_frozen(&key.vm) || fleet.worker(worker).suspend,
                };
                lists.entry(worker.clone()).or_default().push((assigned, spec.cloned()));
            };
            if is_unclaimed {
                // Every copy stays as it is: which of them should go, its group decides.
                let copies = placement.leaving.iter().chain(&placement.worker);
                copies.for_each(|worker| give(worker, false));
                continue;
            }
            let mut waits_for: Vec<&WorkerName> = Vec::new();
            for worker in &placement.leaving {
                match self.handover_of(key, placement, worker) {
                    Handover::Overlap => give(worker, true),
                    Handover::WaitForStop => waits_for.push(worker),
                    Handover::StopOld => {}
                }
            }
            match &placement.worker {
                Some(worker) if waits_for.is_empty() => give(worker, false),
                Some(_) => {}
                // Without another place, even what must not run twice stays where it runs.
                None => waits_for.into_iter().for_each(|worker| give(worker, true)),
            }
        }
        for (name, ear) in &mut self.ears {
            let list = lists.remove(name).unwrap_or_default();
            if !self.assigned.get(name).is_some_and(|old| is_same(old, &list)) {
                // A worker asks by its numbers alone: no two leaders give the same one.
                ear.revision = ear.revision.max(ear.seen_revision).max(self.epoch << 32).saturating_add(1);
                self.assigned.insert(name.clone(), list);
            }
        }
    }

    /// Returns everything a worker is to run. A leader that has not ticked yet has no answer, nor has one that rebuilds its
    /// state for a worker whose report it has not taken: what that runs is not in it.
    pub fn assignment(&self, worker: &WorkerName) -> Option<Assignment> {
        if self.taken.as_ref().is_some_and(|taken| !taken.contains(worker)) {
            return None;
        }
        let list = self.assigned.get(worker)?;
        let ear = self.ears.get(worker)?;
        let mut indexes: BTreeMap<(&VmId, Digest), u32> = BTreeMap::new();
        let mut specs: Vec<Arc<VmSpec>> = Vec::new();
        let mut instances = Vec::new();
        for (assigned, spec) in list {
            let Some(spec) = spec else {
                // Only its worker knows it.
                instances.push(Assigned { spec: u32::MAX, ..assigned.clone() });
                continue;
            };
            let next = u32::try_from(specs.len()).unwrap_or(u32::MAX);
            let index = *indexes.entry((&spec.id, assigned.vm_hash)).or_insert_with(|| {
                specs.push(Arc::clone(spec));
                next
            });
            instances.push(Assigned { spec: index, ..assigned.clone() });
        }
        Some(Assignment {
            generation: self.generation(),
            revision: ear.revision,
            epoch: self.epoch,
            specs,
            instances,
        })
    }

    /// Whether a worker has what it is to have, by its numbers.
    pub fn is_current(&self, worker: &WorkerName, generation: u64, revision: u64) -> bool {
        let ear = self.ears.get(worker);
        generation == self.generation() && ear.is_some_and(|ear| ear.revision == revision)
    }

    /// Returns the state of a worker as it is shown.
    pub fn shown_state(&self, worker: &WorkerName) -> WorkerState {
        let fleet = self.fleet();
        let state = self.presence.states.get(worker).copied().unwrap_or(WorkerState::Unknown);
        if state.is_present() {
            let target = HoldTarget::Worker(worker.clone());
            let is_held = self.durable.holds.values().any(|hold| hold.target == target);
            self.presence.for_scheduling(worker, &self.given_up, &fleet, is_held)
        } else {
            state
        }
    }
}

/// Whether two lists say the same, what does not change a machine included.
fn is_same(old: &[Duty], new: &[Duty]) -> bool {
    let is_one = |old: &Option<Arc<VmSpec>>, new: &Option<Arc<VmSpec>>| match (old, new) {
        (Some(old), Some(new)) => Arc::ptr_eq(old, new) || old == new,
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    };
    old.len() == new.len() && old.iter().zip(new).all(|((a, old), (b, new))| a == b && is_one(old, new))
}

//! From what the scheduler says to where instances are, copies that leave included.

use std::collections::BTreeMap;
use std::sync::Arc;

use stead_model::fleet::state::{HoldTarget, InstanceState, MoveReason, Placement, WorkerState, WorkerView};
use stead_model::fleet::vm::Resources;
use stead_model::fleet::{InstanceKey, Millis, VmSpec};
use stead_model::plan::Digest;
use stead_model::{VmId, WorkerName};

use super::super::rollout::{Handover, handover};
use super::super::schedule::{Move, Previous, SchedulePolicy, Scheduler};
use super::{Cluster, Event, EventKind, Sighting};

/// How long a worker may take to kill what has no lease any more.
pub(super) const FENCE: Millis = 5_000;

impl Cluster {
    /// Fills a new scheduler with what the store kept.
    pub(super) fn load_scheduler(&mut self, now: Millis) {
        self.schedule_policy = self.policy_now(now);
        let mut scheduler = Scheduler::new(self.schedule_policy.clone());
        for name in self.durable.workers.keys() {
            if let Some(view) = self.worker_view(name, WorkerState::Unknown) {
                scheduler.set_worker(view);
            }
        }
        for spec in self.desired() {
            scheduler.set_vm(Arc::clone(spec));
        }
        for (key, placement) in &self.durable.placements {
            let holds = self.holds_of(key, placement);
            let (worker, volumes_on) = (placement.worker.clone(), placement.volumes_on.clone());
            scheduler.set_previous(key, &Previous { worker, holds, volumes_on });
        }
        self.scheduler = scheduler;
        self.released_at = self.durable.placements.keys().map(|key| (key.clone(), now)).collect();
    }

    /// Tells the scheduler which VMs are wanted now.
    pub(super) fn load_desired(&mut self) {
        let desired: BTreeMap<VmId, Arc<VmSpec>> =
            self.desired().map(|spec| (spec.id.clone(), Arc::clone(spec))).collect();
        let gone: Vec<VmId> = self
            .durable
            .placements
            .keys()
            .map(|key| &key.vm)
            .chain(self.rollouts.keys())
            .filter(|vm| !desired.contains_key(*vm))
            .cloned()
            .collect();
        for vm in gone {
            self.scheduler.remove_vm(&vm);
        }
        for spec in desired.into_values() {
            self.scheduler.set_vm(spec);
        }
    }

    /// Tells the scheduler what instances still have of specs that are not wanted any more.
    fn load_holds(&mut self) {
        let open: Vec<VmId> = self
            .targets
            .iter()
            .filter(|(vm, target)| {
                let row = self.rollouts.get(*vm);
                let is_over =
                    row.is_some_and(|row| row.memory.is_done && row.memory.target == Some(**target));
                !is_over || self.scheduler.has_holds(vm)
            })
            .map(|(vm, _)| vm.clone())
            .collect();
        for vm in open {
            let first = InstanceKey::new(&vm, 0);
            let placed = self.durable.placements.range(first..).take_while(|(key, _)| key.vm == vm);
            let holds: Vec<(InstanceKey, Option<Resources>)> =
                placed.map(|(key, placement)| (key.clone(), self.holds_of(key, placement))).collect();
            for (key, holds) in holds {
                self.scheduler.set_holds(&key, holds);
            }
        }
    }

    /// Returns what an instance takes where it is, if that is not what its VM asks for: by what it may run, and by what it
    /// was last seen to run.
    pub fn holds_of(&self, key: &InstanceKey, placement: &Placement) -> Option<Resources> {
        let target = self.target(&key.vm)?;
        let sighting = placement.worker.as_ref().and_then(|worker| self.ears.get(worker)?.seen.get(key));
        self.holds_beside(key, placement.released, target, sighting)
    }

    /// The same with what was looked up already.
    pub(in crate::fleet) fn holds_beside(
        &self,
        key: &InstanceKey,
        released: Digest,
        target: Digest,
        sighting: Option<&Sighting>,
    ) -> Option<Resources> {
        let running = sighting.filter(|sighting| sighting.seen.state.is_live());
        let running = running.and_then(|sighting| sighting.seen.vm_hash);
        let others = [Some(released), running].into_iter().flatten().filter(|hash| *hash != target);
        let held = others.filter_map(|hash| self.durable.specs.get(&(key.vm.clone(), hash)));
        held.map(|spec| spec.resources).reduce(Resources::larger)
    }

    /// Returns a worker as the scheduler sees it; none if it has never said what it is.
    pub fn worker_view(&self, name: &WorkerName, state: WorkerState) -> Option<WorkerView> {
        let facts = self.durable.workers.get(name)?.as_ref()?;
        let fleet = self.fleet();
        let entry = fleet.worker(name);
        let mut labels = if fleet.policy.trust_worker_labels { facts.labels.clone() } else { [].into() };
        labels.extend(entry.labels);
        Some(WorkerView {
            id: name.clone(),
            state,
            labels,
            allocatable: facts.capacity.without(entry.reserve),
            drivers: facts.drivers.clone(),
            arch: facts.arch,
            os: facts.os.clone(),
            spec_version: facts.spec_version,
            disk_pressure: facts.disk_pressure,
        })
    }

    /// Returns every worker as the scheduler sees it now.
    pub fn worker_views(&self, now: Millis) -> Vec<WorkerView> {
        let fleet = self.fleet();
        let is_held = |name: &WorkerName| {
            self.holds_at(now).any(|hold| hold.target == HoldTarget::Worker(name.clone()))
        };
        let state =
            |name: &WorkerName| self.presence.for_scheduling(name, &self.given_up, &fleet, is_held(name));
        self.durable.workers.keys().filter_map(|name| self.worker_view(name, state(name))).collect()
    }

    fn policy_now(&self, now: Millis) -> SchedulePolicy {
        let fleet = self.fleet();
        let mut leaving: BTreeMap<WorkerName, Resources> = BTreeMap::new();
        for (key, placement) in &self.durable.placements {
            for worker in &placement.leaving {
                let takes = self.released_spec(key, placement).map(|spec| spec.resources);
                let entry = leaving.entry(worker.clone()).or_default();
                *entry = entry.plus(takes.unwrap_or_default());
            }
        }
        for (worker, takes) in self.unclaimed_load() {
            let entry = leaving.entry(worker.clone()).or_default();
            *entry = entry.plus(takes);
        }
        let recent = self.rebalanced.iter().filter(|at| now.saturating_sub(**at) < 3_600_000).count();
        let recent = u32::try_from(recent).unwrap_or(u32::MAX);
        let is_braked = self.presence.brake.is_some();
        let homeless = self.durable.placements.iter().filter(|(_, placement)| placement.worker.is_none());
        SchedulePolicy {
            preempt: fleet.policy.preempt && !is_braked,
            rebalance: if is_braked { 0 } else { fleet.policy.rebalance.saturating_sub(recent) },
            brake: is_braked.then(|| homeless.map(|(key, _)| key.clone()).collect()),
            freeze_all: fleet.suspend.all,
            frozen: fleet.suspend.vms.iter().chain(self.held_vms(now)).cloned().collect(),
            leaving,
        }
    }

    /// Settles where everything goes, and writes it down.
    pub(super) fn place(&mut self, now: Millis) {
        let policy = self.policy_now(now);
        if policy != self.schedule_policy {
            self.schedule_policy = policy.clone();
            self.scheduler.set_policy(policy);
            self.is_dirty = true;
        }
        for view in self.worker_views(now) {
            self.scheduler.set_worker(view);
        }
        self.load_holds();
        let moves = self.scheduler.settle();
        if moves.is_empty() && !self.is_dirty {
            return;
        }
        self.is_dirty = true;
        for change in &moves {
            self.note_move(change, now);
        }
        self.drop_unwanted();
        self.note_lost_places();
    }

    fn note_move(&mut self, change: &Move, now: Millis) {
        let key = &change.instance;
        let Some(spec) = self.desired_spec(&key.vm).cloned() else { return };
        let generation = self.generation_of(&key.vm);
        let Some(target) = self.target(&key.vm) else { return };
        let is_bound = spec.is_bound();
        let ghosts = self.durable.ghosts.remove(key).unwrap_or_default();
        let placement = self.durable.placements.entry(key.clone()).or_insert_with(|| Placement {
            worker: None,
            released: target,
            generation,
            since: now,
            reason: change.reason,
            leaving: [].into(),
            volumes_on: None,
        });
        if let Some(from) = &change.from
            && *from != change.to
        {
            placement.leaving.insert(from.clone());
        }
        placement.leaving.extend(ghosts);
        // A copy that was leaving is where it belongs again.
        placement.leaving.remove(&change.to);
        placement.worker = Some(change.to.clone());
        placement.since = now;
        placement.reason = change.reason;
        if is_bound {
            placement.volumes_on = Some(change.to.clone());
        }
        if change.reason == MoveReason::Rebalance {
            self.rebalanced.push(now);
        }
        self.released_at.insert(key.clone(), now);
        let kind = if change.from.is_some() { EventKind::Moved } else { EventKind::Placed };
        let reason =
            serde_json::to_value(change.reason).ok().and_then(|word| word.as_str().map(str::to_owned));
        let event = Event::of_instance(kind, key, Some(&change.to), &reason.unwrap_or_default());
        self.events.push(Event { generation: Some(generation), ..event });
    }

    /// Returns what is wanted of a VM.
    pub fn desired_spec(&self, vm: &VmId) -> Option<&Arc<VmSpec>> {
        self.durable.groups.values().filter_map(|group| group.active()).find_map(|active| {
            let at = active.specs.binary_search_by(|spec| spec.id.cmp(vm)).ok()?;
            active.specs.get(at)
        })
    }

    /// Removes instances that nobody wants any more.
    fn drop_unwanted(&mut self) {
        let unwanted: Vec<InstanceKey> = self
            .durable
            .placements
            .keys()
            .filter(|key| !self.is_frozen(&key.vm) && !self.is_unclaimed(&key.vm))
            .filter(|key| self.desired_spec(&key.vm).is_none_or(|spec| key.ordinal >= spec.replicas))
            .cloned()
            .collect();
        for key in unwanted {
            let Some(placement) = self.durable.placements.remove(&key) else { continue };
            let worker = placement.worker.clone();
            if self.stops_first(&key, &placement) {
                let left = placement.leaving.into_iter().chain(worker.clone());
                self.durable.ghosts.entry(key.clone()).or_default().extend(left);
            }
            self.events.push(Event::of_instance(EventKind::Removed, &key, worker.as_ref(), ""));
        }
    }

    /// What lost its place and found no other keeps its copy until it does.
    fn note_lost_places(&mut self) {
        let lost: Vec<InstanceKey> = self
            .durable
            .placements
            .iter()
            .filter(|(key, placement)| placement.worker.is_some() && self.scheduler.place_of(key).is_none())
            .filter(|(key, _)| !self.is_unclaimed(&key.vm))
            .map(|(key, _)| key.clone())
            .collect();
        for key in lost {
            if let Some(placement) = self.durable.placements.get_mut(&key)
                && let Some(worker) = placement.worker.take()
            {
                placement.leaving.insert(worker);
            }
        }
    }

    /// Lets copies go whose replacements are ready.
    pub(super) fn hand_over(&mut self) {
        let mut ghosts = std::mem::take(&mut self.durable.ghosts);
        ghosts.retain(|key, workers| {
            workers.retain(|worker| !self.is_surely_gone(key, worker));
            !workers.is_empty()
        });
        self.durable.ghosts = ghosts;
        let mut done: Vec<(InstanceKey, WorkerName)> = Vec::new();
        for (key, placement) in &self.durable.placements {
            if self.is_unclaimed(&key.vm) {
                continue;
            }
            for worker in &placement.leaving {
                if self.handover_of(key, placement, worker) == Handover::StopOld {
                    done.push((key.clone(), worker.clone()));
                }
            }
        }
        for (key, worker) in done {
            if let Some(placement) = self.durable.placements.get_mut(&key) {
                placement.leaving.remove(&worker);
            }
            self.events.push(Event::of_instance(EventKind::Replaced, &key, Some(&worker), ""));
            self.is_dirty = true;
        }
    }

    /// Returns what becomes of the copy on a leaving worker.
    pub(super) fn handover_of(
        &self,
        key: &InstanceKey,
        placement: &Placement,
        worker: &WorkerName,
    ) -> Handover {
        let stops_first = self.stops_first(key, placement);
        let new_is_ready = placement.worker.as_ref().is_some_and(|worker| self.is_ready_on(key, worker));
        // Of what may run twice a lost worker keeps its copy until the new one is ready.
        let old_is_gone =
            if stops_first { self.is_surely_gone(key, worker) } else { self.is_gone_from(key, worker) };
        handover(stops_first, new_is_ready, old_is_gone)
    }

    /// Whether an instance must not run twice. What nobody knows any more may be such a one.
    fn stops_first(&self, key: &InstanceKey, placement: &Placement) -> bool {
        let spec = self.released_spec(key, placement).or_else(|| self.desired_spec(&key.vm));
        spec.is_none_or(|spec| spec.stops_first())
    }

    /// Whether an instance that must not run twice does not run on a worker and will not: the worker says so, or is not
    /// enrolled any more, or is given up, which is long after its lease ended.
    fn is_surely_gone(&self, key: &InstanceKey, worker: &WorkerName) -> bool {
        let is_fenced = || {
            let until = self.ears.get(worker).map_or(0, |ear| ear.lease_until);
            self.now >= until.saturating_add(FENCE)
        };
        !self.durable.workers.contains_key(worker)
            || (self.given_up.given_up.contains(worker) && is_fenced())
            || self.is_gone_from(key, worker)
    }

    fn is_ready_on(&self, key: &InstanceKey, worker: &WorkerName) -> bool {
        let is_present = self.presence.states.get(worker).is_some_and(|state| state.is_present());
        let sighting = self.ears.get(worker).and_then(|ear| ear.seen.get(key));
        is_present && sighting.is_some_and(|sighting| sighting.ready_since.is_some() && sighting.seen.ready)
    }

    /// Whether a worker that is heard does not have an instance, and has applied an assignment without it: before that it
    /// may be about to start it.
    fn is_gone_from(&self, key: &InstanceKey, worker: &WorkerName) -> bool {
        let Some(ear) = self.ears.get(worker) else { return true };
        let list = self.assigned.get(worker);
        let has_let_go = ear.seen_revision == ear.revision
            && list.is_some_and(|list| {
                list.binary_search_by(|(assigned, _)| assigned.instance.cmp(key)).is_err()
            });
        let is_present = self.presence.states.get(worker).is_some_and(|state| state.is_present());
        let is_there = ear.seen.get(key).is_some_and(|sighting| {
            sighting.seen.state.is_live() || sighting.seen.state == InstanceState::Failed
        });
        has_let_go && ear.is_complete && is_present && ear.heard.at.is_some() && !is_there
    }

    /// Returns why nothing takes an instance.
    pub fn refusals(&self, key: &InstanceKey) -> Option<super::super::schedule::Refusals> {
        self.scheduler.refusals(key)
    }

    /// Returns the scheduler as it is.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }
}

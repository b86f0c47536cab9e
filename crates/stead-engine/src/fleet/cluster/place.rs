//! From what the scheduler says to where instances are, copies that leave included.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stead_model::fleet::state::{HoldTarget, InstanceState, MoveReason, Placement, WorkerState, WorkerView};
use stead_model::fleet::vm::{Resources, Retain, Volume};
use stead_model::fleet::{InstanceKey, Millis, VmSpec};
use stead_model::plan::Digest;
use stead_model::{GroupName, VmId, WorkerName};

use super::super::rollout::{Handover, handover};
use super::super::schedule::{Copies, Move, Previous, SchedulePolicy, Scheduler, held_beside};
use super::{Cluster, Event, EventKind, Group, Sighting};

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
        let frozen = self.frozen_and_unwanted();
        for spec in self.desired().chain(frozen.values()) {
            scheduler.set_vm(Arc::clone(spec));
        }
        for (key, placement) in &self.durable.placements {
            let (holds, is_tied) = (self.holds_of(key, placement), self.is_tied(key, placement));
            let (worker, volumes_on) = (placement.worker.clone(), placement.volumes_on.clone());
            scheduler.set_previous(key, &Previous { worker, holds, volumes_on, is_tied });
        }
        for (key, worker) in &self.durable.volumes {
            scheduler.set_home(key, worker);
        }
        frozen.keys().for_each(|vm| scheduler.remove_vm(vm));
        self.scheduler = scheduler;
        self.released_at = self.durable.placements.keys().map(|key| (key.clone(), now)).collect();
    }

    /// Returns VMs that nobody wants any more and that stay where they are, with what they may run.
    fn frozen_and_unwanted(&self) -> BTreeMap<VmId, Arc<VmSpec>> {
        let placed = self.durable.placements.iter().filter(|(key, _)| {
            !self.targets.contains_key(&key.vm) && self.is_frozen(&key.vm) && !self.is_unclaimed(&key.vm)
        });
        placed
            .filter_map(|(key, placement)| {
                Some((key.vm.clone(), Arc::clone(self.released_spec(key, placement)?)))
            })
            .collect()
    }

    /// Tells the scheduler which VMs are wanted now.
    pub(super) fn load_desired(&mut self) {
        let desired: BTreeMap<VmId, Arc<VmSpec>> =
            self.desired().map(|spec| (spec.id.clone(), Arc::clone(spec))).collect();
        let gone = self.scheduler.vms().filter(|vm| !desired.contains_key(*vm));
        for vm in gone.cloned().collect::<Vec<VmId>>() {
            self.scheduler.remove_vm(&vm);
        }
        for spec in desired.into_values() {
            self.scheduler.set_vm(spec);
        }
        let placements = self.durable.placements.iter();
        let placed = placements.filter_map(|(key, placement)| Some((key, placement.volumes_on.as_ref()?)));
        for (key, worker) in placed.chain(&self.durable.volumes) {
            self.scheduler.set_home(key, worker);
        }
    }

    /// Whether what an instance may run has volumes that bind it.
    pub(super) fn is_tied(&self, key: &InstanceKey, placement: &Placement) -> bool {
        self.released_spec(key, placement).is_some_and(|spec| spec.is_bound())
    }

    /// Tells the scheduler what instances still have of specs that are not wanted any more.
    fn load_holds(&mut self, workers: &[WorkerView]) {
        let remnants = if self.lacks_places() { self.remnants(workers) } else { BTreeMap::new() };
        let open: Vec<VmId> = self
            .targets
            .iter()
            .filter(|(vm, target)| {
                let row = self.rollouts.get(*vm);
                let is_over =
                    row.is_some_and(|row| row.memory.is_done && row.memory.target == Some(**target));
                let mut left = remnants.range(InstanceKey::new(vm, 0)..);
                !is_over || self.scheduler.has_holds(vm) || left.next().is_some_and(|(key, _)| key.vm == **vm)
            })
            .map(|(vm, _)| vm.clone())
            .collect();
        for vm in open {
            let replicas = self.desired_spec(&vm).map_or(0, |spec| spec.replicas);
            let unplaced = (0..replicas).map(|ordinal| InstanceKey::new(&vm, ordinal));
            let unplaced = unplaced.filter(|key| !self.durable.placements.contains_key(key));
            let unplaced = unplaced.map(|key| {
                let target = self.target(&vm);
                let holds =
                    target.zip(remnants.get(&key)).and_then(|(target, runs)| held_beside(runs, target));
                (key, holds, false)
            });
            let placed = self.durable.placements.range(InstanceKey::new(&vm, 0)..);
            let placed = placed.take_while(|(key, _)| key.vm == vm);
            let placed = placed.map(|(key, placement)| {
                (key.clone(), self.holds_of(key, placement), self.is_tied(key, placement))
            });
            for (key, holds, is_tied) in unplaced.chain(placed).collect::<Vec<_>>() {
                self.scheduler.set_holds(&key, holds);
                self.scheduler.set_tied(&key, is_tied);
            }
        }
    }

    /// Whether an instance that is wanted has never had a place.
    fn lacks_places(&self) -> bool {
        self.desired().any(|spec| {
            let own = InstanceKey::new(&spec.id, 0)..InstanceKey::new(&spec.id, spec.replicas);
            self.durable.placements.range(own).count() < spec.replicas as usize
        })
    }

    /// Returns what workers that take something still have of instances that were removed, with what each takes. What comes
    /// back under such a name may find its old copy where it goes.
    pub(super) fn remnants(
        &self,
        workers: &[WorkerView],
    ) -> BTreeMap<InstanceKey, BTreeMap<Digest, Resources>> {
        let mut remnants: BTreeMap<InstanceKey, BTreeMap<Digest, Resources>> = BTreeMap::new();
        let takers = workers.iter().filter(|worker| worker.state.receives());
        let seen = takers.filter_map(|worker| self.ears.get(&worker.id)).flat_map(|ear| &ear.seen);
        for (key, sighting) in seen.filter(|(key, _)| !self.durable.placements.contains_key(*key)) {
            if let Some(hash) = sighting.seen.vm_hash
                && let Some(spec) = self.durable.specs.get(&(key.vm.clone(), hash))
            {
                remnants.entry(key.clone()).or_default().insert(hash, spec.resources);
            }
        }
        remnants
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
        // What has ended is started again, as long as its worker has not heard of anything else.
        let running = sighting.and_then(|sighting| sighting.seen.vm_hash);
        let others = [Some(released), running].into_iter().flatten().filter(|hash| *hash != target);
        let held = others.filter_map(|hash| self.durable.specs.get(&(key.vm.clone(), hash)));
        held.map(|spec| spec.resources).reduce(Resources::larger)
    }

    /// Returns what a copy of an instance takes at most on a worker: of what it may run, and of what it was last seen to run.
    pub fn may_take(&self, key: &InstanceKey, placement: &Placement, worker: &WorkerName) -> Resources {
        let sighting = self.ears.get(worker).and_then(|ear| ear.seen.get(key));
        let hashes = [Some(placement.released), sighting.and_then(|sighting| sighting.seen.vm_hash)];
        let known = hashes.into_iter().flatten().collect::<BTreeSet<Digest>>();
        let specs = known.into_iter().filter_map(|hash| self.durable.specs.get(&(key.vm.clone(), hash)));
        specs.map(|spec| spec.resources).reduce(Resources::larger).unwrap_or_default()
    }

    /// Returns what everything that is placed, and every copy that leaves, takes at most, by worker.
    pub fn may_use(&self) -> BTreeMap<WorkerName, Resources> {
        let mut used = self.leaving_load(&self.copies());
        for (key, placement) in &self.durable.placements {
            if let Some(worker) = placement.worker.as_ref().filter(|_| !self.is_unclaimed(&key.vm)) {
                let entry = used.entry(worker.clone()).or_default();
                *entry = entry.plus(self.may_take(key, placement, worker));
            }
        }
        used
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

    /// Returns what copies that leave take on their workers, those included that were to go and are still seen.
    pub fn copies(&self) -> Copies {
        let mut copies = Copies::new();
        for (key, placement) in &self.durable.placements {
            for worker in &placement.leaving {
                // It stays as it is until it goes, whatever is released meanwhile.
                let sighting = self.ears.get(worker).and_then(|ear| ear.seen.get(key));
                let seen = sighting
                    .and_then(|sighting| self.durable.specs.get(&(key.vm.clone(), sighting.seen.vm_hash?)));
                let takes = seen.or_else(|| self.released_spec(key, placement)).map(|spec| spec.resources);
                copies.entry(key.clone()).or_default().insert(worker.clone(), takes.unwrap_or_default());
            }
        }
        for (worker, ear) in &self.ears {
            for (key, sighting) in &ear.seen {
                let is_elsewhere = self.durable.placements.get(key).is_some_and(|placement| {
                    placement.worker.as_ref() != Some(worker) && !placement.leaving.contains(worker)
                });
                if is_elsewhere
                    && let Some(hash) = sighting.seen.vm_hash
                    && let Some(spec) = self.durable.specs.get(&(key.vm.clone(), hash))
                {
                    copies.entry(key.clone()).or_default().insert(worker.clone(), spec.resources);
                }
            }
        }
        copies
    }

    /// Returns what copies that leave, and what nobody claims, take on their workers.
    pub(super) fn leaving_load(&self, copies: &Copies) -> BTreeMap<WorkerName, Resources> {
        let mut leaving: BTreeMap<WorkerName, Resources> = BTreeMap::new();
        for (worker, takes) in copies.values().flatten() {
            let entry = leaving.entry(worker.clone()).or_default();
            *entry = entry.plus(*takes);
        }
        for (worker, takes) in self.unclaimed_load() {
            let entry = leaving.entry(worker.clone()).or_default();
            *entry = entry.plus(takes);
        }
        leaving
    }

    /// Returns how many moves for balance there were in the last hour.
    pub(super) fn rebalanced_at(&self, now: Millis) -> u32 {
        let recent = self.rebalanced.iter().filter(|at| now.saturating_sub(**at) < 3_600_000).count();
        u32::try_from(recent).unwrap_or(u32::MAX)
    }

    fn policy_now(&self, now: Millis) -> SchedulePolicy {
        let fleet = self.fleet();
        let copies = self.copies();
        let recent = self.rebalanced_at(now);
        let is_braked = self.presence.brake.is_some();
        let homeless = self.durable.placements.iter().filter(|(_, placement)| placement.worker.is_none());
        SchedulePolicy {
            preempt: fleet.policy.preempt && !is_braked,
            rebalance: if is_braked { 0 } else { fleet.policy.rebalance.saturating_sub(recent) },
            brake: is_braked.then(|| homeless.map(|(key, _)| key.clone()).collect()),
            freeze_all: fleet.suspend.all,
            frozen: fleet.suspend.vms.iter().chain(self.held_vms(now)).cloned().collect(),
            leaving: self.leaving_load(&copies),
            copies,
            keeps_copies: true,
        }
    }

    /// Tells the scheduler what may be moved now.
    pub(super) fn load_policy(&mut self, now: Millis) {
        let policy = self.policy_now(now);
        if policy != self.schedule_policy {
            self.schedule_policy = policy.clone();
            self.scheduler.set_policy(policy);
            self.is_dirty = true;
        }
    }

    /// Settles where everything goes, and writes it down.
    pub(super) fn place(&mut self, now: Millis) {
        self.load_policy(now);
        let workers = self.worker_views(now);
        self.load_holds(&workers);
        for view in workers {
            self.scheduler.set_worker(view);
        }
        let moves = self.scheduler.settle();
        if moves.is_empty() && !self.is_dirty && !self.scheduler.has_lost() {
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
        let generation = self.generation_of(&key.vm).max(self.generation_of_policy());
        let Some(target) = self.target(&key.vm) else { return };
        let is_bound = spec.is_bound();
        let ghosts = self.durable.ghosts.remove(key).unwrap_or_default();
        let volumes_on = self.durable.volumes.remove(key);
        let placement = self.durable.placements.entry(key.clone()).or_insert_with(|| Placement {
            worker: None,
            released: target,
            generation,
            since: now,
            reason: change.reason,
            leaving: [].into(),
            volumes_on,
        });
        if let Some(from) = &change.from
            && *from != change.to
        {
            placement.leaving.insert(from.clone());
        }
        placement.leaving.extend(ghosts);
        // A copy that was leaving is where it belongs again. If it works it keeps what it runs until its rollout has its turn:
        // what was released meanwhile was so because it seemed lost.
        let is_back = placement.leaving.remove(&change.to);
        let sighting = self.ears.get(&change.to).and_then(|ear| ear.seen.get(key));
        let works = sighting.filter(|sighting| is_back && sighting.seen.ready);
        let runs =
            works.and_then(|sighting| sighting.seen.vm_hash).filter(|hash| *hash != placement.released);
        let runs = runs.filter(|hash| self.durable.specs.contains_key(&(key.vm.clone(), *hash)));
        placement.released = runs.unwrap_or(placement.released);
        placement.worker = Some(change.to.clone());
        placement.since = now;
        placement.generation = generation;
        placement.reason = change.reason;
        let kept = runs.and_then(|hash| self.durable.specs.get(&(key.vm.clone(), hash)));
        if is_bound || kept.is_some_and(|spec| spec.is_bound()) {
            placement.volumes_on = Some(change.to.clone());
            self.scheduler.set_home(key, &change.to);
        }
        if change.reason == MoveReason::Rebalance {
            self.rebalanced.push(now);
        }
        self.released_at.insert(key.clone(), now);
        let kind = if change.from.is_some() { EventKind::Moved } else { EventKind::Placed };
        let reason =
            serde_json::to_value(change.reason).ok().and_then(|word| word.as_str().map(str::to_owned));
        let event = Event::of_instance(kind, key, Some(&change.to), &reason.unwrap_or_default());
        let event = self.mark_move(event, &key.vm);
        self.events.push(event);
    }

    /// Returns the active generation of what `fleet.yaml` says, which is published before the VMs of the same commit.
    fn generation_of_policy(&self) -> u64 {
        self.durable.groups.get(&GroupName::fleet()).and_then(|group| group.active).unwrap_or_default()
    }

    /// Says in an event about a place which commit it goes back to: that of the VM's group, or a newer `fleet.yaml`.
    fn mark_move(&self, event: Event, vm: &VmId) -> Event {
        let event = self.mark(event, vm, None);
        let name = GroupName::fleet();
        let policy = self.durable.groups.get(&name).and_then(Group::active);
        match policy.filter(|policy| Some(policy.number) > event.generation) {
            None => event,
            Some(policy) => Event {
                commit: Some(policy.commit.clone()),
                generation: Some(policy.number),
                group: Some(name),
                ..event
            },
        }
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
                let left = placement.leaving.iter().cloned().chain(worker.clone());
                self.durable.ghosts.entry(key.clone()).or_default().extend(left);
            }
            if let Some(home) = placement.volumes_on.as_ref().filter(|_| self.keeps_volumes(&key, &placement))
            {
                self.scheduler.set_home(&key, home);
                self.durable.volumes.insert(key.clone(), home.clone());
            }
            let group = self.released_spec(&key, &placement).map(|spec| spec.group.clone());
            let event = Event::of_instance(EventKind::Removed, &key, worker.as_ref(), "");
            let event = self.mark(event, &key.vm, group.as_ref());
            self.events.push(event);
        }
    }

    /// Whether volumes that bind an instance stay on their worker when it goes. What nobody knows any more may have some.
    pub(super) fn keeps_volumes(&self, key: &InstanceKey, placement: &Placement) -> bool {
        let is_kept = |volume: &Volume| !volume.movable && volume.retain == Retain::Keep;
        self.released_spec(key, placement).is_none_or(|spec| {
            // Volumes of a spec before this one stay wherever they are.
            !spec.is_bound() || spec.volumes.iter().any(is_kept)
        })
    }

    /// Says in an event which commit it goes back to: the active one of the VM's group, or of the group that had it.
    pub(super) fn mark(&self, event: Event, vm: &VmId, had: Option<&GroupName>) -> Event {
        let has = |group: &Group| {
            group.active().is_some_and(|active| active.specs.binary_search_by(|spec| spec.id.cmp(vm)).is_ok())
        };
        let groups = &self.durable.groups;
        let found = groups.iter().find(|(_, group)| has(group));
        let found = found.or_else(|| groups.get_key_value(had?));
        let Some((name, active)) = found.and_then(|(name, group)| Some((name, group.active()?))) else {
            return event;
        };
        Event {
            commit: Some(active.commit.clone()),
            generation: Some(active.number),
            group: Some(name.clone()),
            ..event
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
            let event = Event::of_instance(EventKind::Replaced, &key, Some(&worker), "");
            let event = self.mark(event, &key.vm, None);
            self.events.push(event);
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

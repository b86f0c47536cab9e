//! One look at everything: who is there, where things go, what may be replaced.

use std::collections::{BTreeMap, BTreeSet};

use stead_model::fleet::state::{HoldTarget, Placement, WorkerState};
use stead_model::fleet::vm::Resources;
use stead_model::fleet::{FleetFile, InstanceKey, Millis};
use stead_model::plan::Digest;
use stead_model::{VmId, WorkerName};

use super::super::liveness::liveness;
use super::super::rollout::{self, Instance, Phase, Rolling, Sight};
use super::super::schedule::short_of;
use super::{Cluster, Event, EventKind, Group, RolloutRow};

impl Cluster {
    /// Looks at everything once. Calling it twice at the same moment does nothing the second time.
    pub fn tick(&mut self, now: Millis) {
        self.now = now;
        self.end_holds(now);
        self.activate_waiting(now);
        self.forget_dismissed(now);
        self.take_reports(now);
        self.look_at_workers(now);
        self.place(now);
        self.hand_over();
        self.roll(now);
        self.assign();
        self.forget(now);
    }

    /// Looks at who is there, and at nothing else.
    pub fn listen(&mut self, now: Millis) {
        self.now = now;
        self.look_at_workers(now);
    }

    fn end_holds(&mut self, now: Millis) {
        let ended: Vec<String> = self
            .durable
            .holds
            .values()
            .filter(|hold| hold.until <= now)
            .map(|hold| hold.id.clone())
            .collect();
        for id in ended {
            if let Some(hold) = self.durable.holds.remove(&id) {
                self.events.push(Event::hold_ended(&hold));
                self.is_dirty = true;
            }
        }
    }

    fn look_at_workers(&mut self, now: Millis) {
        let policy = self.fleet().policy;
        let ears = self.ears.iter().filter(|(name, _)| !self.is_dismissed(name));
        let heard = ears.map(|(name, ear)| (name.clone(), ear.heard.clone())).collect();
        let presence = liveness(&heard, self.leader_since, &policy, &mut self.given_up, now);
        for (name, state) in &presence.states {
            if self.presence.states.get(name) != Some(state) {
                self.events.push(Event::of_worker(EventKind::WorkerState, name, state.word()));
                if let Some(ear) = self.ears.get_mut(name) {
                    ear.state_since = now;
                }
            }
        }
        match (self.presence.brake, presence.brake) {
            (None, Some(brake)) => {
                let reason = format!("{} of {} workers are silent", brake.silent, brake.enrolled);
                self.events.push(Event::new(EventKind::Brake, reason));
            }
            (Some(_), None) => self.events.push(Event::new(EventKind::Brake, "over")),
            (None, None) | (Some(_), Some(_)) => {}
        }
        self.presence = presence;
    }

    /// Whether nothing of a VM may be replaced, moved or scaled.
    pub(super) fn is_frozen(&self, vm: &VmId) -> bool {
        self.schedule_policy.is_frozen(vm)
    }

    /// Returns the VMs that operators hold.
    pub(super) fn held_vms(&self, now: Millis) -> impl Iterator<Item = &VmId> {
        self.holds_at(now).filter_map(|hold| match &hold.target {
            HoldTarget::Vm(id) => Some(id),
            HoldTarget::Worker(_) | HoldTarget::Group(_) => None,
        })
    }

    /// Releases new specs where the rollout of each VM lets it.
    fn roll(&mut self, now: Millis) {
        let desired: Vec<_> = self.desired().cloned().collect();
        let fleet = self.fleet();
        let mut releases: Vec<(InstanceKey, Digest)> = Vec::new();
        for spec in &desired {
            let Some(target) = self.target(&spec.id) else { continue };
            let instances = self.rolling_instances(&fleet, &spec.id, spec.replicas, now);
            let rolling = Rolling {
                vm: &spec.id,
                target,
                settings: spec.rollout,
                replicas: spec.replicas,
                is_frozen: self.is_frozen(&spec.id),
                instances: &instances,
            };
            let row = self
                .rollouts
                .entry(spec.id.clone())
                .or_insert_with(|| RolloutRow { memory: rollout::Memory::default(), decision: None });
            let mut happened: Vec<Event> = Vec::new();
            let was_held = row.memory.hold.is_some();
            let decision = rollout::rollout(&rolling, &mut row.memory, now);
            // What may not be replaced is not late: its time begins once it may.
            let kept = instances.iter().filter(|instance| rolling.is_frozen || instance.is_frozen);
            for instance in kept.filter(|instance| !row.memory.proven.contains(&instance.key)) {
                self.released_at.insert(instance.key.clone(), now);
            }
            let before = row.decision.as_ref().map(|decision| decision.phase);
            if let Some(hold) = &row.memory.hold
                && !was_held
            {
                happened.push(Event::of_instance(
                    EventKind::RolloutHeld,
                    &hold.instance,
                    None,
                    hold.code.word(),
                ));
            }
            if decision.phase == Phase::Done && before.is_some_and(|phase| phase != Phase::Done) {
                happened.push(Event::new(EventKind::RolloutDone, spec.id.as_str()));
            }
            releases.extend(decision.release.iter().map(|key| (key.clone(), target)));
            row.decision = Some(decision);
            for event in happened {
                let event = self.mark(event, &spec.id, None);
                self.events.push(event);
            }
        }
        for (key, target) in self.with_room(releases) {
            let generation = self.generation_of(&key.vm);
            let before = self.durable.placements.get(&key);
            let keeps_volumes = before.is_some_and(|before| self.keeps_volumes(&key, before));
            let Some(placement) = self.durable.placements.get_mut(&key) else { continue };
            placement.released = target;
            placement.generation = generation;
            placement.since = now;
            let worker = placement.worker.clone();
            // Volumes that it did not have are made where it is; those that go with the old spec are nowhere any more.
            let spec = self.durable.specs.get(&(key.vm.clone(), target));
            match (spec.is_some_and(|spec| spec.is_bound()), &worker) {
                (true, Some(worker)) if placement.volumes_on.is_none() => {
                    placement.volumes_on = Some(worker.clone());
                    self.scheduler.set_home(&key, worker);
                }
                (false, _) if !keeps_volumes => {
                    placement.volumes_on = None;
                    self.scheduler.forget_home(&key);
                }
                (true | false, _) => {}
            }
            self.released_at.insert(key.clone(), now);
            let event = Event::of_instance(EventKind::Released, &key, worker.as_ref(), &target.to_string());
            let event = self.mark(event, &key.vm, None);
            self.events.push(event);
            self.is_dirty = true;
        }
        let wanted: BTreeSet<&VmId> = desired.iter().map(|spec| &spec.id).collect();
        self.rollouts.retain(|vm, _| wanted.contains(vm));
        let open = self.rollouts.iter().filter(|(_, row)| !row.memory.is_done || row.memory.hold.is_some());
        self.durable.rollouts = open
            .map(|(vm, row)| (vm.clone(), rollout::Memory { proven: BTreeSet::new(), ..row.memory.clone() }))
            .collect();
    }

    /// Returns the releases for which there is room now: a larger spec waits until what it gets the room of is seen to be
    /// smaller. What the scheduler keeps for it is not there yet after a takeover, or while the brake is on.
    fn with_room(&self, releases: Vec<(InstanceKey, Digest)>) -> Vec<(InstanceKey, Digest)> {
        let takes = |key: &InstanceKey, hash: Digest| {
            self.durable.specs.get(&(key.vm.clone(), hash)).map(|spec| spec.resources).unwrap_or_default()
        };
        let mut used: Option<BTreeMap<WorkerName, Resources>> = None;
        let mut granted = Vec::new();
        for (key, target) in releases {
            let placement = self.durable.placements.get(&key);
            if let Some(placement) = placement
                && let Some(worker) = &placement.worker
                && let before = self.may_take(&key, placement, worker)
                && let after = before.larger(takes(&key, target))
                && after != before
            {
                let here = used.get_or_insert_with(|| self.may_use()).entry(worker.clone()).or_default();
                let others = here.minus(before);
                let view = self.worker_view(worker, WorkerState::Ready);
                if view.is_some_and(|view| short_of(&view.allocatable, others, after).is_some()) {
                    continue;
                }
                *here = others.plus(after);
            }
            granted.push((key, target));
        }
        granted
    }

    fn rolling_instances(&self, fleet: &FleetFile, vm: &VmId, replicas: u32, now: Millis) -> Vec<Instance> {
        let is_suspended = |worker: &WorkerName| fleet.workers.get(worker).is_some_and(|entry| entry.suspend);
        let first = InstanceKey::new(vm, 0);
        let placed = self.durable.placements.range(first..).take_while(|(key, _)| key.vm == *vm);
        placed
            .filter(|(key, _)| key.ordinal < replicas)
            .map(|(key, placement)| Instance {
                key: key.clone(),
                released: placement.released,
                released_at: self.released_at.get(key).copied().unwrap_or(self.leader_since).min(now),
                is_assigned: placement.worker.is_some(),
                is_frozen: placement.worker.as_ref().is_some_and(is_suspended),
                seen: match &placement.worker {
                    Some(worker) => self.sight_of(key, worker),
                    None => self.sight_of_leaving(key, placement),
                },
            })
            .collect()
    }

    /// Returns what a worker says of an instance; none if it is silent, or was not heard by this leader.
    fn sight_of(&self, key: &InstanceKey, worker: &WorkerName) -> Option<Sight> {
        let is_heard = self.presence.states.get(worker).is_some_and(|state| state.is_present());
        let ear =
            self.ears.get(worker).filter(|ear| is_heard && ear.is_complete && ear.heard.at.is_some())?;
        Some(ear.seen.get(key).map_or_else(Sight::default, |sighting| Sight {
            hash: sighting.seen.vm_hash,
            is_running: sighting.seen.state.is_live(),
            ready_since: sighting.ready_since,
            exits: sighting.seen.attempts,
        }))
    }

    /// Returns what is said of an instance without a place: of its copy that leaves, which works until it has one. Those on
    /// workers that are given up count as gone.
    fn sight_of_leaving(&self, key: &InstanceKey, placement: &Placement) -> Option<Sight> {
        let is_there = |worker: &&WorkerName| {
            self.ears.contains_key(*worker) && !self.given_up.given_up.contains(*worker)
        };
        let copies = placement.leaving.iter().filter(is_there).map(|worker| self.sight_of(key, worker));
        let copies: Vec<Sight> = copies.collect::<Option<_>>()?;
        let working = copies.into_iter().max_by_key(|sight| (sight.is_running, sight.ready_since.is_some()));
        Some(working.unwrap_or_default())
    }

    /// Returns the active generation of a VM's group.
    pub(super) fn generation_of(&self, vm: &VmId) -> u64 {
        let has = |group: &&Group| {
            group.active().is_some_and(|active| active.specs.binary_search_by(|spec| spec.id.cmp(vm)).is_ok())
        };
        self.durable.groups.values().find(has).and_then(|group| group.active).unwrap_or_default()
    }

    /// Forgets specs that neither a group wants nor an instance runs.
    fn forget(&mut self, now: Millis) {
        if !self.is_dirty {
            return;
        }
        self.is_dirty = false;
        let placements = self.durable.placements.iter();
        let mut used: BTreeSet<(VmId, Digest)> =
            placements.map(|(key, placement)| (key.vm.clone(), placement.released)).collect();
        used.extend(self.targets.iter().map(|(vm, hash)| (vm.clone(), *hash)));
        let seen = self.ears.values().flat_map(|ear| &ear.seen);
        used.extend(seen.filter_map(|(key, sighting)| Some((key.vm.clone(), sighting.seen.vm_hash?))));
        // Who has not been heard may run any of them.
        if self.unheard().next().is_none() {
            self.durable.specs.retain(|key, _| used.contains(key));
        }
        self.rebalanced.retain(|at| now.saturating_sub(*at) < 3_600_000);
        let placements = &self.durable.placements;
        self.released_at.retain(|key, _| placements.contains_key(key));
    }

    /// Keeps the newest `history` generations of each group, the active one, and the numbers of commits that are as new.
    pub fn trim(&mut self, history: usize) {
        let oldest = self.durable.last_generation.saturating_sub(history as u64);
        self.durable.commits.retain(|_, number| *number > oldest);
        for group in self.durable.groups.values_mut() {
            let active = group.active;
            let gone = group.stored.len().saturating_sub(history);
            let numbers: Vec<u64> = group.stored.keys().take(gone).copied().collect();
            for number in numbers.into_iter().filter(|number| Some(*number) != active) {
                group.stored.remove(&number);
            }
        }
    }
}

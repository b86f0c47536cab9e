//! What always holds, and what holds at the end.

use std::collections::{BTreeMap, BTreeSet};

use stead_engine::fleet::canon::{specs_hash, vm_hash};
use stead_engine::fleet::cluster::{Durable, Event, EventKind};
use stead_engine::fleet::converge::{State, status};
use stead_engine::fleet::reconcile::{ClosureState, LocalState, Step, StopReason};
use stead_model::fleet::state::{Assignment, MoveReason};
use stead_model::fleet::vm::Resources;
use stead_model::fleet::{InstanceKey, VmSpec};
use stead_model::{GroupName, WorkerName};

use super::worker::{CAPACITY, zone};
use super::world::World;

impl World {
    /// Looks at everything once.
    pub(super) fn check(&mut self) {
        self.check_store();
        self.check_singletons();
        self.check_master();
        for worker in &self.workers {
            assert_eq!(worker.here.foreign.len(), 1, "foreign-untouched");
        }
    }

    fn check_store(&mut self) {
        let durable = &self.store.durable;
        for (name, group) in &durable.groups {
            let Some(active) = group.active() else {
                assert_eq!(group.active, None, "one-active: {name} points to nothing");
                continue;
            };
            if *name != GroupName::fleet() {
                let hash = specs_hash(active.specs.iter().map(AsRef::as_ref));
                assert_eq!(hash, active.specs_hash, "one-active: {name} is not whole");
                assert!(!active.specs.is_empty(), "never-empty-by-accident");
            }
        }
        let active =
            durable.groups.iter().map(|(name, group)| (name.clone(), group.active.unwrap_or_default()));
        let mark: (u64, BTreeMap<GroupName, u64>) = (durable.last_generation, active.collect());
        let (issued, before) = &self.watermark;
        let goes_on = before.iter().all(|(name, number)| mark.1.get(name) >= Some(number));
        assert!(mark.0 >= *issued && goes_on, "monotonic: {mark:?} after {:?}", self.watermark);
        self.watermark = mark;
    }

    /// Looks at what a leader has just written: it leads, and everything that changed has an event.
    pub(super) fn check_write(&self, number: u64, before: &Durable, events: &[Event]) {
        let holder = self.store.holder(self.now).map(|(_, holder)| holder);
        assert_eq!(holder, Some(number), "deposed-leader-writes-nothing: {number} wrote at {}", self.now);
        let is_told = |key: &InstanceKey, kinds: &[EventKind], worker: Option<&WorkerName>| {
            events.iter().any(|event| {
                event.instance.as_ref() == Some(key)
                    && kinds.contains(&event.ev)
                    && (worker.is_none() || event.worker.as_ref() == worker)
            })
        };
        let after = &self.store.durable;
        // What a lost state is rebuilt of has happened before.
        let is_found = |key: &&InstanceKey| {
            before.unclaimed.contains_key(&key.vm) || after.unclaimed.contains_key(&key.vm)
        };
        for (key, placement) in after.placements.iter().filter(|(key, _)| !is_found(key)) {
            let old = before.placements.get(key);
            let came = placement
                .worker
                .as_ref()
                .filter(|worker| old.and_then(|old| old.worker.as_ref()).is_none_or(|old| old != *worker));
            if let Some(worker) = came {
                let kinds = [EventKind::Placed, EventKind::Moved];
                assert!(is_told(key, &kinds, came), "no-act-without-event: {key} went to {worker}");
                self.check_place(after, key, worker);
            }
            if old.is_some_and(|old| old.released != placement.released) {
                // What gets its place back has the spec that it runs there.
                let kinds = [EventKind::Released, EventKind::Placed, EventKind::Moved];
                assert!(is_told(key, &kinds, None), "no-act-without-event: {key} has another spec");
            }
            for worker in old.iter().flat_map(|old| &old.leaving).filter(|worker| {
                !placement.leaving.contains(*worker) && placement.worker.as_ref() != Some(*worker)
            }) {
                let is_told = is_told(key, &[EventKind::Replaced], Some(worker));
                assert!(is_told, "no-act-without-event: {key} leaves {worker}");
            }
        }
        // Who moves because a worker is lost has lost it: silence alone moves nothing.
        let lost = |event: &&Event| event.ev == EventKind::Moved && event.reason == "worker-lost";
        for key in events.iter().filter(lost).filter_map(|event| event.instance.as_ref()) {
            let from = before.placements.get(key).and_then(|placement| placement.worker.as_ref());
            let leader = self.cluster().filter(|_| self.leader().is_some());
            let is_lost =
                from.zip(leader).is_none_or(|(from, leader)| leader.given_up.given_up.contains(from));
            assert!(is_lost, "minimal-moves: {key} leaves {from:?}, which is not lost");
        }
        let gone = before.placements.keys().filter(|key| !after.placements.contains_key(*key));
        for key in gone.filter(|key| !is_found(key)) {
            assert!(is_told(key, &[EventKind::Removed], None), "no-act-without-event: {key} goes");
        }
    }

    /// Looks at where an instance comes to: its VM may be there.
    fn check_place(&self, durable: &Durable, key: &InstanceKey, worker: &WorkerName) {
        let groups = durable.groups.values().filter_map(|group| group.active());
        let Some(spec) = groups.flat_map(|active| &active.specs).find(|spec| spec.id == key.vm) else {
            return;
        };
        // Said twice, so that a pin that is not published is missed.
        let is_there = spec.labels.get("pinned").is_none_or(|name| name == worker.as_str());
        assert!(is_there, "pinned: {key} goes to {worker}, and {:?} say where it has to be", spec.labels);
        let index = self.workers.iter().position(|known| known.name == *worker).unwrap();
        for requirement in &spec.selector {
            let zone = zone(index);
            assert!(requirement.holds(Some(&zone)), "pinned: {key} goes to {worker}, which is in {zone}");
        }
    }

    /// Looks at what a worker starts: where volumes bind an instance, it runs where they are and nowhere else.
    pub(super) fn check_home(&mut self, index: usize, key: &InstanceKey, spec: &VmSpec) {
        let worker = self.workers[index].name.clone();
        if spec.volumes.iter().any(|volume| volume.name.as_str() == "data") {
            let home = self.homes.entry(key.clone()).or_insert_with(|| worker.clone());
            assert_eq!(*home, worker, "volume-home: {key} starts away from its volume at {}", self.now);
        }
    }

    /// Looks at what a master tells a worker to run: whoever tells it, it is stored so.
    pub(super) fn check_answer(&self, stored: &Durable, worker: &WorkerName, assignment: &Assignment) {
        for assigned in assignment.instances.iter().filter(|assigned| !assigned.leaving && !assigned.frozen) {
            let placement = stored.placements.get(&assigned.instance);
            let is_so = placement.is_some_and(|placement| {
                placement.worker.as_ref() == Some(worker) && placement.released == assigned.vm_hash
            });
            assert!(is_so, "deposed-leader-writes-nothing: {assigned:?} of {worker} is not stored");
        }
    }

    fn check_singletons(&self) {
        let mut running: BTreeMap<&InstanceKey, u32> = BTreeMap::new();
        // Nothing runs on a machine that is suspended. One that wakes up too late has a moment to stop what it had.
        let awake =
            self.workers.iter().filter(|worker| worker.asleep_until.is_none() && worker.fence_by.is_none());
        for worker in awake {
            for (key, machine) in &worker.here.machines {
                let is_there = matches!(
                    machine.state,
                    LocalState::Running | LocalState::Starting | LocalState::Stopping
                );
                if machine.is_singleton && is_there {
                    *running.entry(key).or_default() += 1;
                }
            }
        }
        for (key, count) in running {
            assert!(count <= 1, "no-double-singleton: {key} runs {count} times at {}", self.now);
        }
    }

    /// Looks at what a leader has just decided, `before` being what everything took before that, copies that leave included,
    /// and `known` what had a place or a copy: it puts nothing where there is no room by all it knows. What it learns later, of a worker that had not heard of its last decision yet, is no fault
    /// of its, and nothing comes on top of it.
    pub(super) fn check_tick(
        &self,
        index: usize,
        before: &BTreeMap<WorkerName, Resources>,
        known: &BTreeSet<InstanceKey>,
    ) {
        let Some(lead) = &self.masters[index].lead else { return };
        let cluster = &lead.cluster;
        let mut after = cluster.may_use();
        // What was removed and comes back has left copies that were nobody's before; what a copy takes that was never seen is
        // only believed, and believed to be more than it is.
        for (key, copies) in cluster.copies() {
            for (worker, takes) in copies {
                let is_seen = cluster.ears.get(&worker).is_some_and(|ear| ear.seen.contains_key(&key));
                if !known.contains(&key) || !is_seen {
                    after.entry(worker).and_modify(|used| *used = used.minus(takes));
                }
            }
        }
        for (worker, used) in after {
            let fits = used.cpu_milli <= CAPACITY.0 && used.mem_mib <= CAPACITY.1;
            let had = before.get(&worker).copied().unwrap_or_default();
            assert!(fits || had.larger(used) == had, "capacity: {worker} has {used:?} after {had:?}");
        }
    }

    fn check_master(&self) {
        let Some(master) = self.cluster() else { return };
        for (key, placement) in &master.durable.placements {
            // A spec that asks for more than there is on its worker is a reason to go, too.
            let is_excused = match placement.reason {
                // What found no place waited with a copy that leaves: its place is a new one.
                MoveReason::WorkerLost
                | MoveReason::Drained
                | MoveReason::CapacityShrunk
                | MoveReason::New => true,
                // Some say where they have to be, now here and then there, or have volumes again that they had before.
                MoveReason::SelectorChanged | MoveReason::Pinned => ["p", "v"].contains(&key.vm.as_str()),
                MoveReason::Preempted | MoveReason::Rebalance => false,
            };
            assert!(
                placement.leaving.is_empty() || is_excused,
                "minimal-moves: {key} leaves for {:?}",
                placement.reason
            );
        }
        for spec in master.desired() {
            let most = spec.rollout.max_unavailable.of(spec.replicas) as usize;
            let target = vm_hash(spec);
            let away = self.taken.iter().filter(|(key, (worker, old))| {
                let placement = master.durable.placements.get(*key);
                // What moved meanwhile is away because its worker was lost.
                let placement = placement.filter(|placement| placement.worker.as_ref() == Some(worker));
                key.vm == spec.id
                    && key.ordinal < spec.replicas
                    && placement.is_some_and(|placement| {
                        let ear = placement.worker.as_ref().and_then(|worker| master.ears.get(worker));
                        let seen = ear.and_then(|ear| ear.seen.get(*key));
                        placement.released == target
                            && target != *old
                            && seen.is_none_or(|seen| {
                                seen.seen.vm_hash != Some(target) || seen.ready_since.is_none()
                            })
                    })
            });
            let away: Vec<String> = away.map(|(key, (worker, _))| format!("{key} on {worker}")).collect();
            assert!(away.len() <= most, "budget: {away:?} are away at {}, {most} may be", self.now);
        }
    }

    /// Remembers which instances do their work before a tick may release them.
    pub(super) fn remember_available(&mut self) {
        let Some(index) = self.leader() else { return };
        let clock = self.masters[index].clock(self.now);
        let Some(master) = self.masters[index].lead.as_ref().map(|lead| &lead.cluster) else { return };
        // What was scaled away and comes back is new. What has no place, or is on a worker that is given up, is away by that,
        // unless it is at work when that comes back.
        let given_up = &master.given_up.given_up;
        self.taken.retain(|key, (worker, old)| {
            let seen = master.ears.get(worker).and_then(|ear| ear.seen.get(key));
            // A spec that nobody knows any more cannot be gone back to.
            let is_known = master.durable.specs.contains_key(&(key.vm.clone(), *old));
            let works =
                seen.is_some_and(|seen| seen.seen.vm_hash == Some(*old) && seen.seen.ready) && is_known;
            let placement = master.durable.placements.get(key);
            let is_lost = given_up.contains(worker) || placement.is_some_and(|one| one.worker.is_none());
            placement.is_some() && (works || !is_lost)
        });
        for (key, placement) in &master.durable.placements {
            let Some(spec) = master.desired_spec(&key.vm) else { continue };
            let ear = placement.worker.as_ref().and_then(|worker| master.ears.get(worker));
            let seen = ear.and_then(|ear| ear.seen.get(key));
            let was_ready = seen.is_some_and(|seen| {
                seen.seen.vm_hash == Some(placement.released)
                    && seen.ready_since.is_some_and(|since| clock >= since + 10_000)
            });
            let is_outdated = placement.released != vm_hash(spec);
            if is_outdated && was_ready {
                let released = placement.released;
                self.taken.extend(placement.worker.clone().map(|worker| (key.clone(), (worker, released))));
            } else if is_outdated || was_ready {
                self.taken.remove(key);
            }
        }
    }

    /// Looks at one act of a worker before it is taken.
    pub(super) fn check_act(&self, index: usize, step: &Step) {
        let worker = &self.workers[index];
        match step {
            Step::Replace { to, .. } | Step::Start { vm_hash: to, .. } => {
                let state = worker.here.closures.get(to).map(|closure| closure.state);
                assert_eq!(state, Some(ClosureState::Rooted), "fetch-before-stop: {step:?} without its bits");
            }
            Step::Stop { instance, why } => {
                let is_over = worker.clock(self.now) >= worker.here.lease_until;
                assert!(
                    *why != StopReason::Fenced || is_over,
                    "no-act-without-event: {instance} has its lease"
                );
                let assigned =
                    worker.applied.instances.iter().find(|assigned| assigned.instance == *instance);
                let machine = worker.here.machines.get(instance);
                let has_bits = |hash| {
                    worker
                        .here
                        .closures
                        .get(hash)
                        .is_some_and(|closure| closure.state == ClosureState::Rooted)
                };
                if let (Some(assigned), Some(machine)) = (assigned, machine)
                    && assigned.vm_hash != machine.vm_hash
                    && !machine.is_singleton
                {
                    assert!(
                        has_bits(&assigned.vm_hash),
                        "fetch-before-stop: {instance} is stopped without its bits"
                    );
                }
            }
            Step::Adopt(_) | Step::Count { .. } | Step::Clean(_) | Step::Fetch(_) | Step::Root(_) => {}
        }
    }

    /// Whether everything is as the newest active commit says, in truth and by the status.
    pub(super) fn is_converged(&self) -> bool {
        let Some(master) = self.cluster() else { return false };
        let mut wanted: BTreeMap<InstanceKey, _> = BTreeMap::new();
        for spec in master.desired() {
            for ordinal in 0..spec.replicas {
                wanted.insert(InstanceKey::new(&spec.id, ordinal), vm_hash(spec));
            }
        }
        let mut running = BTreeMap::new();
        for worker in &self.workers {
            for (key, machine) in &worker.here.machines {
                if running.insert(key.clone(), machine.vm_hash).is_some()
                    || machine.state != LocalState::Running
                {
                    return false;
                }
            }
        }
        let status = status(master, false);
        for instance in &status.instances {
            let is_right = instance.observed_hash == instance.desired_hash && instance.ready;
            assert!(is_right || instance.leaving || instance.code.is_some(), "{} has no code", instance.key);
        }
        running == wanted && status.convergence_percent == 100 && status.state != State::Converging
    }

    /// Goes on until everything is as it should be and nothing needs anybody any more.
    pub(super) fn settle_whole(&mut self, seconds: u64) {
        self.settle(seconds);
        for _ in 0..seconds * 2 {
            let shown = self.cluster().map(|master| status(master, false).state);
            if shown == Some(State::Converged) {
                return;
            }
            self.step();
        }
        let shown = self.cluster().map(|master| status(master, false));
        let (rollouts, workers) = shown.map(|shown| (shown.rollouts, shown.workers)).unwrap_or_default();
        panic!("converges: everything runs and it is not said so: {rollouts:#?} {workers:#?}");
    }

    /// Goes on until everything is as it should be.
    pub(super) fn settle(&mut self, seconds: u64) {
        for _ in 0..seconds * 2 {
            self.step();
            if self.publishing.is_none() && self.is_converged() {
                return;
            }
        }
        let shown = self.cluster().map(|master| status(master, false));
        let wrong: Vec<String> = shown
            .iter()
            .flat_map(|status| &status.instances)
            .filter(|instance| instance.code.is_some() || instance.leaving)
            .map(|instance| {
                format!(
                    "{} on {:?}: {:?} {:?} leaving={}",
                    instance.key, instance.worker, instance.code, instance.state, instance.leaving
                )
            })
            .collect();
        panic!("converges: not within {seconds} s: {wrong:#?}");
    }
}

//! What always holds, and what holds at the end.

use std::collections::BTreeMap;

use stead_engine::fleet::canon::{specs_hash, vm_hash};
use stead_engine::fleet::converge::{State, status};
use stead_engine::fleet::reconcile::{ClosureState, LocalState, Step};
use stead_model::GroupName;
use stead_model::fleet::InstanceKey;
use stead_model::fleet::state::MoveReason;
use stead_model::fleet::vm::Resources;

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
        let default = durable.groups.get(&GroupName::default_group()).and_then(|group| group.active);
        let mark = (durable.last_generation, default.unwrap_or_default());
        let (issued, active) = self.watermark;
        assert!(mark.0 >= issued && mark.1 >= active, "monotonic: {mark:?} after {:?}", self.watermark);
        self.watermark = mark;
    }

    fn check_singletons(&self) {
        let mut running: BTreeMap<&InstanceKey, u32> = BTreeMap::new();
        for worker in &self.workers {
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

    fn check_master(&self) {
        let Some(master) = &self.master else { return };
        let mut used: BTreeMap<_, Resources> = BTreeMap::new();
        for (key, placement) in &master.durable.placements {
            if let (Some(worker), Some(spec)) = (&placement.worker, master.desired_spec(&key.vm)) {
                // What runs counts, not only what is wanted.
                let takes = spec.resources.larger(master.holds_of(key, placement).unwrap_or_default());
                let entry = used.entry(worker.clone()).or_default();
                *entry = entry.plus(takes);
            }
        }
        for (worker, used) in used {
            assert!(used.cpu_milli <= 8_000 && used.mem_mib <= 8_192, "capacity: {worker} has {used:?}");
        }
        for (key, placement) in &master.durable.placements {
            // What must not run twice and was removed comes back only once its last copy is gone.
            let may_have_ghosts = master.desired_spec(&key.vm).is_some_and(|spec| spec.stops_first());
            let is_excused = matches!(placement.reason, MoveReason::WorkerLost | MoveReason::Drained)
                || (placement.reason == MoveReason::New && may_have_ghosts);
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
        let Some(master) = &self.master else { return };
        // What was scaled away and comes back is new.
        self.taken.retain(|key, _| master.durable.placements.contains_key(key));
        for (key, placement) in &master.durable.placements {
            let Some(spec) = master.desired_spec(&key.vm) else { continue };
            let ear = placement.worker.as_ref().and_then(|worker| master.ears.get(worker));
            let seen = ear.and_then(|ear| ear.seen.get(key));
            let was_ready = seen.is_some_and(|seen| {
                seen.seen.vm_hash == Some(placement.released)
                    && seen.ready_since.is_some_and(|since| self.now >= since + 10_000)
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
            Step::Stop { instance, .. } => {
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
        let Some(master) = &self.master else { return false };
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
            let shown = self.master.as_ref().map(|master| status(master, false).state);
            if shown == Some(State::Converged) {
                return;
            }
            self.step();
        }
        let shown = self.master.as_ref().map(|master| status(master, false));
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
        let shown = self.master.as_ref().map(|master| status(master, false));
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

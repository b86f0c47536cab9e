//! The master's whole state and everything that changes it.
//!
//! ```text
//! publish ─▶ accept ─▶ stored, active ──┐
//! heartbeat ─▶ heard, seen ─────────────┼─▶ tick(now): holds end, waiting generations activate, liveness, schedule,
//! hold, release ────────────────────────┘             placements, rollouts, handovers ─▶ events, assignments
//! ```
//!
//! [`Durable`] is what a store keeps; the rest is what this leader has heard, and starts empty with it. Whoever holds a
//! [`Cluster`] stores `durable` in one transaction with every answer, and hands out [`Cluster::assignment`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stead_model::fleet::policy::millis;
use stead_model::fleet::state::{
    Assigned, Generation, Heartbeat, Hold, InstanceState, Placement, Problem, Seen, Specs, WorkerFacts,
    WorkerState,
};
use stead_model::fleet::{CommitId, FleetFile, InstanceKey, Millis, VmSpec};
use stead_model::plan::Digest;
use stead_model::{GroupName, VmId, WorkerName};

use super::canon::vm_hash;
use super::liveness::{self, Freshness, Heard, Presence};
use super::rollout;
use super::schedule::{SchedulePolicy, Scheduler};

mod assign;
mod events;
mod leave;
mod place;
mod publish;
mod rebuild;
mod snapshot;
#[cfg(test)]
pub(super) mod tests;
mod tick;

pub use events::{Event, EventKind};
pub use publish::MOVES_TOGETHER;
pub use rebuild::Unclaimed;

/// More generations than any fleet will have.
pub const MOST_GENERATIONS: u64 = 1 << 48;

/// More instances than any worker has.
pub const MOST_SEEN: usize = 20_000;

/// More leaders than any fleet will have.
pub const MOST_EPOCHS: u64 = 1 << 30;

/// What a store keeps.
#[derive(Clone, Debug, Default)]
pub struct Durable {
    /// The groups.
    pub groups: BTreeMap<GroupName, Group>,
    /// The generation of each commit.
    pub commits: BTreeMap<CommitId, u64>,
    /// The highest generation that was issued.
    pub last_generation: u64,
    /// Where instances are.
    pub placements: BTreeMap<InstanceKey, Placement>,
    /// Workers that may still run an instance that nobody wanted any more and that must never run twice.
    pub ghosts: BTreeMap<InstanceKey, BTreeSet<WorkerName>>,
    /// Where volumes of instances are that nobody wants any more, and that are kept.
    pub volumes: BTreeMap<InstanceKey, WorkerName>,
    /// Specs that are desired or still run, by VM and hash.
    pub specs: Specs,
    /// Enrolled workers, with what they last said of themselves.
    pub workers: BTreeMap<WorkerName, Option<WorkerFacts>>,
    /// What operators froze.
    pub holds: BTreeMap<String, Hold>,
    /// Rollouts that are not over.
    pub rollouts: BTreeMap<VmId, rollout::Memory>,
    /// Of a state that was lost: VMs that workers run and no active group has yet.
    pub unclaimed: BTreeMap<VmId, Unclaimed>,
}

/// The generations of a group.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// The stored ones.
    pub stored: BTreeMap<u64, Generation>,
    /// The active one.
    pub active: Option<u64>,
    /// Since when it is.
    pub since: Millis,
    /// Why the newest one waits, if it does.
    pub why: Option<Problem>,
}

impl Group {
    /// Returns the active generation.
    pub fn active(&self) -> Option<&Generation> {
        self.active.and_then(|number| self.stored.get(&number))
    }

    /// Returns the newest stored generation.
    pub fn highest(&self) -> Option<&Generation> {
        self.stored.values().next_back()
    }
}

/// What this leader has heard of a worker.
#[derive(Clone, Debug, Default)]
pub struct Ear {
    /// When.
    pub heard: Heard,
    /// Its instances.
    pub seen: BTreeMap<InstanceKey, Sighting>,
    /// Whether all of them are known.
    pub is_complete: bool,
    /// What it has applied.
    pub seen_generation: u64,
    /// What it has applied.
    pub seen_revision: u64,
    /// Counts changes of its assignment.
    pub revision: u64,
    /// Reports that said nothing new.
    pub replayed: u64,
    /// Since when it is what it is: there, silent, lost.
    pub state_since: Millis,
    /// Until when it may have a lease, whatever policy said when that was granted.
    pub lease_until: Millis,
}

/// An instance as its worker last saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// What was said.
    pub seen: Seen,
    /// When, by the leader's clock.
    pub at: Millis,
    /// Since when it is ready, by the leader's clock.
    pub ready_since: Option<Millis>,
}

/// The answer to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// How long singletons may run, from when the heartbeat was sent; none: it said nothing new, or the worker has not
    /// applied its newest assignment.
    pub lease: Option<Millis>,
    /// When to report again.
    pub interval: Millis,
    /// Whether everything has to be reported.
    pub needs_full: bool,
}

/// The master's whole state.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// What a store keeps.
    pub durable: Durable,
    /// Counts leaders.
    pub epoch: u64,
    /// When this leader began to listen.
    pub leader_since: Millis,
    /// When it last looked.
    pub now: Millis,
    /// Workers that are not of the fleet any more.
    dismissed: BTreeSet<WorkerName>,
    /// What it has heard.
    pub ears: BTreeMap<WorkerName, Ear>,
    /// Who is there, as of the last tick.
    pub presence: Presence,
    /// Who was given up.
    pub given_up: liveness::Memory,
    /// Where rollouts are.
    pub rollouts: BTreeMap<VmId, RolloutRow>,
    /// Since when instances have their released spec, by the leader's clock.
    released_at: BTreeMap<InstanceKey, Millis>,
    /// Moves for balance, and when they were made.
    rebalanced: Vec<Millis>,
    /// What each VM is to run.
    targets: BTreeMap<VmId, Digest>,
    scheduler: Scheduler,
    schedule_policy: SchedulePolicy,
    assigned: BTreeMap<WorkerName, Vec<Duty>>,
    /// Of a state that is rebuilt: the workers whose reports were taken.
    taken: Option<BTreeSet<WorkerName>>,
    /// Of a state that is rebuilt: the newest generation that a worker has applied. It applies none that is older.
    reported: u64,
    is_dirty: bool,
    events: Vec<Event>,
}

/// What a worker is to run; none: a spec that only it knows.
type Duty = (Assigned, Option<Arc<VmSpec>>);

/// A VM's rollout.
#[derive(Clone, Debug)]
pub struct RolloutRow {
    /// What is remembered of it.
    pub memory: rollout::Memory,
    /// Where it was at the last tick.
    pub decision: Option<rollout::Decision>,
}

impl Cluster {
    /// Returns a leader that begins now with what a store kept.
    pub fn resume(durable: Durable, epoch: u64, now: Millis) -> Self {
        let mut cluster = Self {
            durable,
            epoch,
            leader_since: now,
            now,
            dismissed: BTreeSet::new(),
            ears: BTreeMap::new(),
            presence: Presence::default(),
            given_up: liveness::Memory::default(),
            rollouts: BTreeMap::new(),
            released_at: BTreeMap::new(),
            rebalanced: Vec::new(),
            targets: BTreeMap::new(),
            scheduler: Scheduler::new(SchedulePolicy::default()),
            schedule_policy: SchedulePolicy::default(),
            assigned: BTreeMap::new(),
            taken: None,
            reported: 0,
            is_dirty: true,
            events: Vec::new(),
        };
        let lease_until = now.saturating_add(cluster.longest_lease());
        for name in cluster.durable.workers.keys() {
            cluster.ears.insert(name.clone(), Ear { state_since: now, lease_until, ..Ear::default() });
        }
        cluster.load_targets();
        cluster.load_rollouts();
        cluster.load_scheduler(now);
        cluster
    }

    /// Goes back to what a store has, which may be less than was decided since. What was heard stays.
    pub fn restore(&mut self, durable: Durable, now: Millis) {
        self.durable = durable;
        let known: BTreeSet<WorkerName> = self.durable.workers.keys().cloned().collect();
        for name in self.ears.keys().filter(|name| !known.contains(*name)) {
            // Who reports is enrolled, and is written down with what comes next.
            self.durable.workers.insert(name.clone(), None);
        }
        let lease_until = now.saturating_add(self.longest_lease());
        for name in known {
            self.ears.entry(name).or_insert_with(|| Ear { state_since: now, lease_until, ..Ear::default() });
        }
        self.events.clear();
        // What was taken from reports and not kept is taken again before anybody gets an assignment.
        self.taken.iter_mut().for_each(BTreeSet::clear);
        self.load_targets();
        self.load_rollouts();
        self.load_scheduler(now);
        // Nobody is told of what was decided and not kept.
        self.assign();
        self.is_dirty = true;
    }

    /// Returns what `fleet.yaml` says, as it is active.
    pub fn fleet(&self) -> Arc<FleetFile> {
        let group = self.durable.groups.get(&GroupName::fleet());
        group.and_then(Group::active).and_then(|generation| generation.policy.clone()).unwrap_or_default()
    }

    /// Returns the longest lease that a leader before may have granted.
    fn longest_lease(&self) -> Millis {
        let group = self.durable.groups.get(&GroupName::fleet());
        let stored = group.into_iter().flat_map(|group| group.stored.values());
        let leases =
            stored.filter_map(|generation| Some(millis(generation.policy.as_ref()?.policy.liveness.lease)));
        leases.chain([millis(self.fleet().policy.liveness.lease)]).max().unwrap_or_default()
    }

    /// Returns the VMs of all active groups.
    pub fn desired(&self) -> impl Iterator<Item = &Arc<VmSpec>> {
        self.durable.groups.values().filter_map(Group::active).flat_map(|generation| &generation.specs)
    }

    /// Returns the hash of what a VM is to run.
    pub fn target(&self, vm: &VmId) -> Option<Digest> {
        self.targets.get(vm).copied()
    }

    fn load_targets(&mut self) {
        self.targets = self.desired().map(|spec| (spec.id.clone(), vm_hash(spec))).collect();
    }

    /// Takes up the rollouts that are not over; of the others nothing more is to be said.
    fn load_rollouts(&mut self) {
        let placed: BTreeSet<VmId> = self.durable.placements.keys().map(|key| key.vm.clone()).collect();
        let known = self.targets.iter().filter(|(vm, _)| placed.contains(*vm));
        self.rollouts = known.map(|(vm, target)| (vm.clone(), self.stored_rollout(vm, *target))).collect();
    }

    /// Returns the rollout of a VM that is placed, as far as it is remembered.
    fn stored_rollout(&self, vm: &VmId, target: Digest) -> RolloutRow {
        let open = self.durable.rollouts.get(vm);
        let mut memory = open.cloned().unwrap_or_else(|| rollout::Memory::done(target));
        // One that is over was proven by everything that has its spec. Of a state that was lost nobody knows.
        if open.is_none() && self.taken.is_none() {
            let placed = self.placements_of(vm).filter(|(_, placement)| placement.released == target);
            memory.proven = placed.map(|(key, _)| key.clone()).collect();
        }
        if let Some(row) = self.rollouts.get(vm).filter(|row| row.memory.target == memory.target) {
            memory.proven.clone_from(&row.memory.proven);
        }
        RolloutRow { memory, decision: None }
    }

    /// Returns the newest active generation. Of a state that is rebuilt it is at least what workers have applied.
    pub fn generation(&self) -> u64 {
        let active = self.durable.groups.values().filter_map(|group| group.active).max();
        active.unwrap_or_default().max(self.reported)
    }

    /// Returns the generation of a commit: the same one while that is the highest, else a new one.
    pub fn reserve(&mut self, commit: &CommitId) -> u64 {
        if let Some(number) = self.durable.commits.get(commit)
            && *number == self.durable.last_generation
        {
            return *number;
        }
        self.durable.last_generation = self.durable.last_generation.saturating_add(1);
        self.durable.commits.insert(commit.clone(), self.durable.last_generation);
        self.durable.last_generation
    }

    /// Enrols a worker.
    pub fn enrol(&mut self, name: &WorkerName) {
        self.durable.workers.entry(name.clone()).or_default();
        if !self.ears.contains_key(name) {
            self.ears.insert(name.clone(), Ear { state_since: self.now, ..Ear::default() });
            self.events.push(Event::of_worker(EventKind::WorkerJoined, name, ""));
            // Who comes is there, though nobody has looked yet.
            if self.presence.states.insert(name.clone(), WorkerState::Ready).is_none() {
                let word = WorkerState::Ready.word();
                self.events.push(Event::of_worker(EventKind::WorkerState, name, word));
            }
        }
    }

    fn holds_at(&self, now: Millis) -> impl Iterator<Item = &Hold> {
        self.durable.holds.values().filter(move |hold| hold.until > now)
    }

    /// Takes what a worker reports.
    pub fn heartbeat(&mut self, heartbeat: &Heartbeat, now: Millis) -> Reply {
        let policy = self.fleet().policy;
        let interval = millis(policy.liveness.heartbeat);
        self.enrol(&heartbeat.worker);
        let ear = self.ears.entry(heartbeat.worker.clone()).or_default();
        let freshness = ear.heard.freshness(heartbeat);
        if freshness == Freshness::Replayed {
            ear.replayed += 1;
            return Reply { lease: None, interval, needs_full: false };
        }
        if freshness == Freshness::NewSession && !heartbeat.full {
            // What it has is not known: it is heard, and asked for everything.
            ear.is_complete = false;
        }
        ear.lease_until = ear.lease_until.max(now.saturating_add(millis(policy.liveness.lease)));
        ear.heard = Heard {
            at: Some(now),
            session: heartbeat.session,
            seq: heartbeat.seq,
            boot_id: heartbeat.boot_id.clone(),
            process: heartbeat.process.clone(),
        };
        // What no master can have said was never applied.
        ear.seen_generation =
            Some(heartbeat.seen_generation).filter(|seen| *seen <= MOST_GENERATIONS).unwrap_or(0);
        ear.seen_revision =
            Some(heartbeat.seen_revision).filter(|seen| seen >> 32 <= MOST_EPOCHS).unwrap_or(0);
        if heartbeat.full {
            ear.is_complete = true;
            let listed: BTreeSet<&InstanceKey> = heartbeat.instances.iter().map(|seen| &seen.key).collect();
            ear.seen.retain(|key, _| listed.contains(key));
        }
        for seen in &heartbeat.instances {
            let placement = self.durable.placements.get(&seen.key);
            let is_placed = placement.is_some_and(|placement| {
                placement.worker.as_ref() == Some(&heartbeat.worker)
                    || placement.leaving.contains(&heartbeat.worker)
            });
            if seen.state == InstanceState::Absent && !is_placed {
                ear.seen.remove(&seen.key);
                continue;
            }
            if ear.seen.len() >= MOST_SEEN && !ear.seen.contains_key(&seen.key) {
                continue;
            }
            let before = ear.seen.get(&seen.key);
            let same = before.filter(|before| before.seen.vm_hash == seen.vm_hash);
            let ready_since = seen.ready.then(|| {
                same.and_then(|before| before.ready_since)
                    // What was ready before this leader listened has been so for as long as it runs.
                    .unwrap_or_else(
                        || if before.is_none() { now.saturating_sub(seen.uptime_ms) } else { now },
                    )
            });
            ear.seen.insert(seen.key.clone(), Sighting { seen: seen.clone(), at: now, ready_since });
        }
        if let Some(facts) = &heartbeat.facts {
            let known = self.durable.workers.entry(heartbeat.worker.clone()).or_default();
            // What is used changes all the time, and nothing is decided by it.
            let is_same = known.as_ref().is_some_and(|known| known.says_the_same(facts));
            *known = Some(facts.clone());
            self.is_dirty |= !is_same;
        }
        let ear = self.ears.get(&heartbeat.worker);
        let is_complete = ear.is_some_and(|ear| ear.is_complete);
        // A worker that comes back with an old assignment may have a singleton in it that runs elsewhere by now.
        let is_current = ear.is_some_and(|ear| ear.revision == heartbeat.seen_revision);
        let lease = is_current.then(|| millis(policy.liveness.lease));
        Reply { lease, interval, needs_full: !is_complete }
    }

    /// Freezes something for a while.
    pub fn hold(&mut self, hold: Hold) {
        self.events.push(Event::hold(&hold));
        self.durable.holds.insert(hold.id.clone(), hold);
        self.is_dirty = true;
    }

    /// Ends a hold before its time.
    pub fn release(&mut self, id: &str) -> Option<Hold> {
        self.is_dirty = true;
        self.durable.holds.remove(id)
    }

    /// Returns what happened since this was last asked.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Returns the spec an instance may run now.
    pub fn released_spec(&self, key: &InstanceKey, placement: &Placement) -> Option<&Arc<VmSpec>> {
        self.durable.specs.get(&(key.vm.clone(), placement.released))
    }
}

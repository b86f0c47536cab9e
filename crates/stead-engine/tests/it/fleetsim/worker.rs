//! A worker: an agent that may die, machines that outlive it, and a driver that takes its time.

use std::collections::{BTreeMap, BTreeSet};

use stead_engine::fleet::canon::vm_hash;
use stead_engine::fleet::reconcile::{
    Closure, ClosureState, Exit, Here, Local, LocalState, Step, StopReason, fetch_retry_at, is_newer,
    reconcile,
};
use stead_model::fleet::state::{Allocatable, Assignment, Heartbeat, InstanceState, Seen, WorkerFacts};
use stead_model::fleet::vm::Driver;
use stead_model::fleet::{Code, InstanceKey, Millis};
use stead_model::plan::Digest;
use stead_model::{GroupName, WorkerName};

use super::world::{Message, Plant, World};

/// What a worker has: thousandths of a processor, and memory. Two of them have room for what is wanted, and one has not.
pub(super) const CAPACITY: (u64, u64) = (2_500, 3_072);

/// How long an agent may take to stop what has no lease any more.
pub(super) const FENCE: Millis = 5_000;

/// Returns the zone that a worker is in.
pub(super) fn zone(index: usize) -> String {
    format!("z{}", index % 2)
}

pub(super) struct Worker {
    pub(super) name: WorkerName,
    /// Whether the agent runs; machines run without it.
    pub(super) is_up: bool,
    pub(super) back_at: Millis,
    /// Until when the whole machine is suspended.
    pub(super) asleep_until: Option<Millis>,
    /// How far its clock is from the time that has passed: it counts from when the machine was started, suspends included.
    pub(super) skew: Millis,
    /// How far its time of day is from the right one.
    wall: i64,
    pub(super) reads_time_of_day: bool,
    /// It woke up after its lease had ended: by then its agent has stopped what must not run twice.
    pub(super) fence_by: Option<Millis>,
    /// The master it talks to, and how many heartbeats that did not answer.
    master: usize,
    unanswered: u32,
    /// Whether nothing it sends arrives, and whether nothing reaches it.
    pub(super) is_mute: bool,
    pub(super) is_deaf: bool,
    pub(super) session: u64,
    boots: u64,
    seq: u64,
    pub(super) applied: Assignment,
    pub(super) here: Here,
    /// When what is under way is done, and when machines started.
    pub(super) due: BTreeMap<InstanceKey, Millis>,
    fetch_due: BTreeMap<Digest, Millis>,
    pub(super) started: BTreeMap<InstanceKey, Millis>,
    replaced: BTreeMap<InstanceKey, Digest>,
    codes: BTreeMap<InstanceKey, Code>,
    needs_full: bool,
    beats: u64,
    /// What fetching this gives instead of bits.
    pub(super) bad_fetch: BTreeMap<Digest, Code>,
    pub(super) starts: u64,
    pub(super) stops: u64,
    pub(super) acts: Vec<String>,
    /// Versions that end as soon as they start.
    pub(super) crashing: BTreeSet<Digest>,
    /// Instances that were here.
    gone: BTreeSet<InstanceKey>,
}

impl Worker {
    pub(super) fn new(name: WorkerName) -> Self {
        let mut here = Here { lease_until: 0, ..Here::default() };
        here.foreign.insert("somebody's".to_owned());
        Self {
            name,
            is_up: true,
            back_at: 0,
            asleep_until: None,
            skew: 0,
            wall: 0,
            reads_time_of_day: false,
            fence_by: None,
            master: 0,
            unanswered: 0,
            is_mute: false,
            is_deaf: false,
            session: 1,
            boots: 1,
            seq: 0,
            applied: Assignment::default(),
            here,
            due: BTreeMap::new(),
            fetch_due: BTreeMap::new(),
            started: BTreeMap::new(),
            replaced: BTreeMap::new(),
            codes: BTreeMap::new(),
            needs_full: true,
            beats: 0,
            bad_fetch: BTreeMap::new(),
            starts: 0,
            stops: 0,
            acts: Vec::new(),
            crashing: BTreeSet::new(),
            gone: BTreeSet::new(),
        }
    }

    /// Returns what its clock shows.
    pub(super) fn clock(&self, now: Millis) -> Millis {
        now + self.skew
    }

    /// Somebody sets its time of day, which nobody reads unless that is the fault that is planted.
    pub(super) fn set_time_of_day(&mut self, wall: i64) {
        let ahead = wall - std::mem::replace(&mut self.wall, wall);
        if self.reads_time_of_day {
            self.here.lease_until = self.here.lease_until.saturating_add_signed(-ahead);
        }
    }

    /// Whether a process of the instance is there.
    pub(super) fn runs(&self, key: &InstanceKey) -> bool {
        self.here.machines.get(key).is_some_and(|machine| {
            matches!(machine.state, LocalState::Running | LocalState::Starting | LocalState::Stopping)
        })
    }

    fn is_ready(&self, key: &InstanceKey, now: Millis) -> bool {
        let is_running =
            self.here.machines.get(key).is_some_and(|machine| machine.state == LocalState::Running);
        is_running && self.started.get(key).is_some_and(|at| now >= at + 2_000)
    }

    /// Returns what it says is wrong.
    pub(super) fn codes(&self) -> impl Iterator<Item = Code> + '_ {
        self.codes.values().copied()
    }

    /// The whole machine is suspended; its clock goes on.
    pub(super) fn suspend(&mut self, until: Millis) {
        self.asleep_until = Some(until);
    }

    /// The agent dies; machines go on, what was being fetched is not there.
    pub(super) fn crash(&mut self, back_at: Millis) {
        self.is_up = false;
        self.back_at = back_at;
        // Nobody else fences what it has.
        self.fence_by = self.fence_by.map(|_| back_at + FENCE);
        self.fetch_due.clear();
        self.replaced.clear();
        self.here.closures.retain(|_, closure| closure.state != ClosureState::Fetching);
    }

    /// The machine it runs on starts anew: every process is gone, and its clock counts from there.
    pub(super) fn reboot(&mut self, back_at: Millis, skew: Millis) {
        self.crash(back_at);
        self.boots += 1;
        self.skew = skew;
        self.asleep_until = None;
        self.fence_by = None;
        self.started.clear();
        self.here.closures.values_mut().for_each(|closure| closure.next_retry = 0);
        for (key, machine) in &mut self.here.machines {
            if matches!(machine.state, LocalState::Stopping | LocalState::Running | LocalState::Starting) {
                machine.state = LocalState::Remains;
            }
            // Its record is of another boot.
            machine.next_retry = 0;
            self.due.remove(key);
        }
        // The lease is of this boot: nobody knows how long the machine was off.
        self.here.lease_until = 0;
    }

    fn seen(&self, now: Millis) -> Vec<Seen> {
        let states = self.here.machines.iter().map(|(key, machine)| Seen {
            key: key.clone(),
            vm_hash: Some(machine.vm_hash),
            state: match machine.state {
                LocalState::Running => InstanceState::Running,
                LocalState::Starting | LocalState::Begun => InstanceState::Starting,
                LocalState::Stopping => InstanceState::Stopping,
                LocalState::Gone { .. } => InstanceState::Failed,
                LocalState::Remains => InstanceState::Absent,
            },
            ready: self.is_ready(key, now),
            uptime_ms: self.started.get(key).map_or(0, |at| now.saturating_sub(*at)),
            attempts: machine.attempts,
            code: self.codes.get(key).copied(),
            detail: String::new(),
            group: Some(GroupName::default_group()),
            takes: Default::default(),
        });
        let gone = self.gone.iter().filter(|key| !self.here.machines.contains_key(*key)).map(|key| Seen {
            key: key.clone(),
            vm_hash: None,
            state: InstanceState::Absent,
            ready: false,
            uptime_ms: 0,
            attempts: 0,
            code: None,
            detail: String::new(),
            group: Some(GroupName::default_group()),
            takes: Default::default(),
        });
        states.chain(gone).collect()
    }
}

impl World {
    /// Machines whose time has come go on: what ran on them runs again, until their agents look at the clock.
    pub(super) fn wake_workers(&mut self) {
        let now = self.now;
        for worker in &mut self.workers {
            if worker.asleep_until.is_some_and(|until| until <= now) {
                worker.asleep_until = None;
                if worker.clock(now) >= worker.here.lease_until {
                    let agent_at = if worker.is_up { now } else { worker.back_at.max(now) };
                    worker.fence_by = Some(agent_at + FENCE);
                }
            }
            worker.fence_by = worker.fence_by.filter(|by| now <= *by);
        }
    }

    pub(super) fn act_worker(&mut self, index: usize) {
        let now = self.now;
        if self.workers[index].asleep_until.is_some() {
            return;
        }
        self.run_machines(index);
        let worker = &mut self.workers[index];
        if !worker.is_up {
            if now < worker.back_at {
                return;
            }
            worker.is_up = true;
            worker.session += 1;
            worker.seq = 0;
            worker.needs_full = true;
            worker.here.machines.values_mut().for_each(|machine| machine.is_adopted = false);
        }
        let offset = 500 * index as u64;
        if (now + offset).is_multiple_of(5_000) {
            self.beat(index);
        }
        if (now + offset).is_multiple_of(1_000) {
            let worker = &self.workers[index];
            let (generation, revision) = (worker.applied.generation, worker.applied.revision);
            // A new leader counts anew: a worker of an older epoch asks for everything.
            self.send(Message::Ask { from: index, to: worker.master, generation, revision });
        }
        self.reconcile_worker(index);
    }

    fn beat(&mut self, index: usize) {
        let masters = self.masters.len();
        let worker = &mut self.workers[index];
        let now = worker.clock(self.now);
        if worker.unanswered >= 2 {
            // The next one, in turn.
            worker.master = (worker.master + 1) % masters;
            worker.unanswered = 0;
        }
        worker.unanswered += 1;
        worker.seq += 1;
        worker.beats += 1;
        let full = worker.needs_full || worker.beats.is_multiple_of(12);
        let times = if self.plant == Some(Plant::Overbook) { 4 } else { 1 };
        let capacity =
            Allocatable { cpu_milli: CAPACITY.0 * times, mem_mib: CAPACITY.1 * times, disk_mib: None };
        let heartbeat = Heartbeat {
            worker: worker.name.clone(),
            boot_id: format!("boot {}", worker.boots),
            session: worker.session,
            process: String::new(),
            seq: worker.seq,
            seen_generation: worker.applied.generation,
            seen_revision: worker.applied.revision,
            // The wire sends changes only; here every report is whole, and only some say so.
            full,
            instances: worker.seen(now),
            facts: full.then(|| WorkerFacts {
                capacity,
                used: Default::default(),
                drivers: [Driver::Sandbox].into(),
                labels: [("zone".to_owned(), zone(index))].into(),
                arch: Default::default(),
                os: "linux".to_owned(),
                spec_version: 1,
                disk_pressure: worker.here.is_disk_low,
                nix_version: None,
                notes: Vec::new(),
                foreign: Default::default(),
                mapped: Default::default(),
            }),
        };
        worker.needs_full = worker.needs_full && worker.is_deaf;
        let to = worker.master;
        self.send(Message::Beat { from: index, to, heartbeat: Box::new(heartbeat), sent_at: now });
    }

    /// Whether a worker hears what a master says.
    fn hears(&self, (from, to): (usize, usize)) -> bool {
        let worker = &self.workers[to];
        worker.is_up && !worker.is_deaf && !self.deaf.contains(&(to, from))
    }

    /// Another master leads.
    pub(super) fn take_hint(&mut self, way: (usize, usize), leader: usize) {
        if self.hears(way) && self.workers[way.1].master == way.0 {
            self.workers[way.1].master = leader;
            self.workers[way.1].unanswered = 0;
        }
    }

    pub(super) fn take_reply(
        &mut self,
        way: (usize, usize),
        session: u64,
        sent_at: Millis,
        lease: Option<Millis>,
        needs_full: bool,
    ) {
        let hears = self.hears(way);
        let worker = &mut self.workers[way.1];
        // A reply to an earlier life of the agent says nothing of this one.
        if hears && worker.session == session {
            if worker.master == way.0 {
                worker.unanswered = 0;
            }
            if let Some(lease) = lease {
                let until = stead_engine::fleet::liveness::lease_until(sent_at, lease);
                worker.here.lease_until = worker.here.lease_until.max(until);
            }
            worker.needs_full |= needs_full;
        }
    }

    pub(super) fn take_answer(&mut self, way: (usize, usize), assignment: Assignment) {
        let hears = self.hears(way);
        let is_stubborn = self.plant == Some(Plant::Stubborn);
        let worker = &mut self.workers[way.1];
        if is_stubborn && !worker.applied.instances.is_empty() {
            return;
        }
        if hears && is_newer(&worker.applied, &assignment) {
            worker.applied = assignment;
        }
    }

    /// Lets time pass for machines and fetches.
    fn run_machines(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        let now = worker.clock(self.now);
        let due: Vec<InstanceKey> =
            worker.due.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect();
        for key in due {
            worker.due.remove(&key);
            let Some(machine) = worker.here.machines.get_mut(&key) else { continue };
            match machine.state {
                LocalState::Starting => {
                    machine.state = if worker.crashing.contains(&machine.vm_hash) {
                        LocalState::Gone { exit: Exit::Status(1), ran_for: 0, is_counted: false }
                    } else {
                        LocalState::Running
                    };
                    worker.started.insert(key, now);
                }
                LocalState::Stopping => match worker.replaced.remove(&key) {
                    Some(to) => {
                        machine.vm_hash = to;
                        machine.attempts = 0;
                        machine.state = LocalState::Starting;
                        worker.due.insert(key, now + 1_000);
                    }
                    None => machine.state = LocalState::Remains,
                },
                LocalState::Running | LocalState::Begun | LocalState::Gone { .. } | LocalState::Remains => {}
            }
        }
        let fetched: Vec<Digest> =
            worker.fetch_due.iter().filter(|(_, at)| **at <= now).map(|(hash, _)| *hash).collect();
        for hash in fetched {
            worker.fetch_due.remove(&hash);
            let closure = worker.here.closures.entry(hash).or_default();
            match worker.bad_fetch.get(&hash) {
                Some(code) => {
                    closure.failures += 1;
                    closure.state = ClosureState::Absent;
                    closure.next_retry = fetch_retry_at(closure.failures, now);
                    closure.code = Some(*code);
                }
                None => *closure = Closure { state: ClosureState::Fetched, ..Closure::default() },
            }
        }
    }

    fn reconcile_worker(&mut self, index: usize) {
        let worker = &self.workers[index];
        let now = worker.clock(self.now);
        let mut found = reconcile(&worker.applied, &worker.here, now);
        if self.plant == Some(Plant::StopBeforeFetch) {
            // The planted fault: the old one goes as soon as a new one is wanted.
            for assigned in &worker.applied.instances {
                let other = worker.here.machines.get(&assigned.instance);
                if other.is_some_and(|machine| {
                    machine.state == LocalState::Running
                        && machine.vm_hash != assigned.vm_hash
                        && !assigned.leaving
                }) {
                    let stop =
                        Step::Stop { instance: assigned.instance.clone(), why: StopReason::NotAssigned };
                    found.steps.insert(0, stop);
                }
            }
        }
        self.workers[index].codes = found.codes;
        for step in found.steps {
            // The agent may die before any act, or right after it.
            if self.dice.one_in(self.odds.crash) {
                let back_at = self.now + 1_000 + self.dice.below(10_000);
                self.workers[index].crash(back_at);
                return;
            }
            self.check_act(index, &step);
            if let Step::Start { instance, vm_hash: hash } | Step::Replace { instance, to: hash, .. } = &step
            {
                let specs = &self.workers[index].applied.specs;
                let spec =
                    specs.iter().find(|spec| spec.id == instance.vm && vm_hash(spec) == *hash).cloned();
                spec.iter().for_each(|spec| self.check_home(index, instance, spec));
            }
            let wait = 500 + self.dice.below(3_000);
            self.take_step(index, step, wait);
        }
    }

    fn take_step(&mut self, index: usize, step: Step, wait: Millis) {
        let is_planted = self.plant == Some(Plant::Overlap);
        let worker = &mut self.workers[index];
        let now = worker.clock(self.now);
        worker.acts.push(format!("{step:?}"));
        match step {
            Step::Adopt(key) => {
                if let Some(machine) = worker.here.machines.get_mut(&key) {
                    machine.is_adopted = true;
                }
            }
            Step::Count { instance, attempts, next_retry } => {
                if let Some(machine) = worker.here.machines.get_mut(&instance) {
                    machine.attempts = attempts;
                    machine.next_retry = next_retry;
                    if let LocalState::Gone { is_counted, .. } = &mut machine.state {
                        *is_counted = true;
                    }
                }
            }
            Step::Stop { instance, .. } => {
                if let Some(machine) = worker.here.machines.get_mut(&instance) {
                    let until = now + wait.min(4_000);
                    // A fence cuts a stop that is under way, and never draws it out.
                    let under_way = worker.due.get(&instance).copied();
                    let known = under_way.filter(|_| machine.state == LocalState::Stopping);
                    machine.state = LocalState::Stopping;
                    worker.stops += u64::from(known.is_none());
                    worker.replaced.remove(&instance);
                    worker.due.insert(instance, known.map_or(until, |known| known.min(until)));
                }
            }
            Step::Clean(key) => {
                if self.plant == Some(Plant::TakeStrangers) {
                    worker.here.foreign.clear();
                }
                worker.here.machines.remove(&key);
                worker.started.remove(&key);
                worker.gone.insert(key);
            }
            Step::Fetch(hash) => {
                worker.here.closures.entry(hash).or_default().state = ClosureState::Fetching;
                worker.fetch_due.insert(hash, now + wait);
            }
            Step::Root(hash) => {
                worker.here.closures.entry(hash).or_default().state = ClosureState::Rooted;
            }
            Step::Replace { instance, to, .. } => {
                if let Some(machine) = worker.here.machines.get_mut(&instance) {
                    machine.state = LocalState::Stopping;
                    worker.stops += 1;
                    worker.starts += 1;
                    worker.replaced.insert(instance.clone(), to);
                    worker.due.insert(instance, now + wait);
                }
            }
            Step::Start { instance, vm_hash: hash } => {
                let spec = worker.applied.instances.iter().find(|assigned| assigned.instance == instance);
                let spec = spec.and_then(|assigned| worker.applied.specs.get(assigned.spec as usize));
                let old = worker.here.machines.get(&instance);
                let machine = Local {
                    vm_hash: hash,
                    is_singleton: spec
                        .is_some_and(|spec| spec.singleton || (is_planted && spec.id.as_str() == "one")),
                    state: LocalState::Starting,
                    attempts: old.filter(|old| old.vm_hash == hash).map_or(0, |old| old.attempts),
                    next_retry: 0,
                    is_adopted: true,
                };
                worker.here.machines.insert(instance.clone(), machine);
                worker.starts += 1;
                worker.due.insert(instance, now + wait);
            }
        }
    }

    /// Makes a version of a VM end as soon as it starts, everywhere.
    pub(super) fn make_crash(&mut self, spec: &stead_model::fleet::VmSpec) {
        for worker in &mut self.workers {
            worker.crashing.insert(vm_hash(spec));
        }
    }
}

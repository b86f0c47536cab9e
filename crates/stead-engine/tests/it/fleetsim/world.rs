//! What there is: a repository, a store, masters, workers, and messages on their way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use stead_engine::fleet::canon::{intent_hash, policy_hash, specs_hash};
use stead_engine::fleet::cluster::{Cluster, Durable, Event, EventKind};
use stead_model::fleet::state::{Assignment, Heartbeat, Publication};
use stead_model::fleet::vm::{Driver, OnLost, Ready, Resources, Restart, Rollout, Runtime, Spread, VmSpec};
use stead_model::fleet::{CommitId, FleetFile, InstanceKey, Millis};
use stead_model::plan::Digest;
use stead_model::{GroupName, VmId, WorkerName};

use super::master::Master;
use super::store::Store;
use super::worker::Worker;

/// A fault that is planted to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plant {
    /// A worker stops the old one as soon as a new one is wanted.
    StopBeforeFetch,
    /// A leader writes without comparing who leads.
    NoFence,
    /// A leader measures its lease with a clock that stands still while its machine is suspended.
    LeaseByStandingClock,
    /// Workers measure their lease with the time of day.
    LeaseByTimeOfDay,
    /// Workers say that they have four times what they have.
    Overbook,
    /// A worker that cleans up takes along what is not the fleet's.
    TakeStrangers,
    /// The guard is off: whatever is published may be empty.
    Unguarded,
    /// What runs is moved for balance though nobody said so.
    Restless,
    /// A part of a publication is stored.
    TornWrite,
    /// Numbers are given again.
    NumberTwice,
    /// What is decided is not told.
    SilentMaster,
    /// Everything gets its new spec at once.
    ReleaseAll,
    /// What must not run twice is moved as anything else.
    Overlap,
    /// Workers do the first thing they were told, and nothing later.
    Stubborn,
    /// Volumes that bind are published as such that may be left behind.
    Unbound,
    /// What has to be on one worker is published as such that may be anywhere.
    Unpinned,
}

/// A generator of numbers.
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % end.max(1)
    }

    pub(super) fn one_in(&mut self, of: u64) -> bool {
        of > 0 && self.below(of) == 0
    }
}

/// Something on its way.
#[derive(Clone, Debug)]
pub(super) enum Message {
    /// From a worker to a master. When it was sent is by the worker's clock.
    Beat {
        from: usize,
        to: usize,
        heartbeat: Box<Heartbeat>,
        sent_at: Millis,
    },
    Ask {
        from: usize,
        to: usize,
        generation: u64,
        revision: u64,
    },
    /// From a master to a worker.
    Reply {
        from: usize,
        to: usize,
        session: u64,
        sent_at: Millis,
        lease: Option<Millis>,
        needs_full: bool,
    },
    Answer {
        from: usize,
        to: usize,
        assignment: Assignment,
    },
    Elsewhere {
        from: usize,
        to: usize,
        leader: usize,
    },
}

/// A commit of the repository.
#[derive(Clone, Debug)]
pub(super) struct Commit {
    pub(super) id: CommitId,
    pub(super) specs: Vec<VmSpec>,
    pub(super) fleet: FleetFile,
}

/// How likely faults are: one in so many; 0: never.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Odds {
    pub(super) loss: u64,
    pub(super) twice: u64,
    pub(super) delay: u64,
    pub(super) crash: u64,
}

pub(super) struct World {
    pub(super) now: Millis,
    pub(super) dice: Dice,
    pub(super) odds: Odds,
    pub(super) plant: Option<Plant>,
    pub(super) store: Store,
    pub(super) masters: Vec<Master>,
    pub(super) workers: Vec<Worker>,
    /// Workers of which nothing reaches a master, and workers that nothing of a master reaches.
    pub(super) mute: BTreeSet<(usize, usize)>,
    pub(super) deaf: BTreeSet<(usize, usize)>,
    pub(super) post: BTreeMap<(Millis, u64), Message>,
    sent: u64,
    pub(super) commits: Vec<Commit>,
    /// Which commit is published, and the groups of it that are not yet.
    pub(super) publishing: Option<(usize, VecDeque<GroupName>)>,
    /// Whether VMs with volumes, VMs that have to be somewhere, and a second group are drawn.
    pub(super) is_wide: bool,
    /// Where each instance had its volumes.
    pub(super) homes: BTreeMap<InstanceKey, WorkerName>,
    pub(super) events: Vec<Event>,
    pub(super) trace: u64,
    pub(super) moved: u64,
    /// The highest number that was issued, and the active one of each group.
    pub(super) watermark: (u64, BTreeMap<GroupName, u64>),
    /// Instances that did their work when their spec was to change: where, and what they ran.
    pub(super) taken: BTreeMap<InstanceKey, (WorkerName, Digest)>,
}

pub(super) fn vm_id(text: &str) -> VmId {
    VmId::parse(text).unwrap()
}

/// Returns a VM; `version` is what it runs.
pub(super) fn vm(id: &str, replicas: u32, version: &str) -> VmSpec {
    let mut runtime = Runtime::new(Driver::Sandbox);
    runtime.argv = vec![version.to_owned()];
    VmSpec {
        id: vm_id(id),
        group: GroupName::default_group(),
        replicas,
        labels: [].into(),
        selector: vec![],
        spread: Spread::default(),
        pin: None,
        priority: 0,
        resources: Resources { cpu_milli: 500, mem_mib: 256, disk_mib: 0 },
        restart: Restart::default(),
        ready: Ready::default(),
        rollout: Rollout::default(),
        on_lost: OnLost::Move,
        singleton: false,
        stop_seconds: 30,
        volumes: vec![],
        runtime,
    }
}

pub(super) fn singleton(id: &str, version: &str) -> VmSpec {
    VmSpec { singleton: true, ..vm(id, 1, version) }
}

impl World {
    pub(super) fn new(seed: u64, (masters, workers): (usize, usize), plant: Option<Plant>) -> Self {
        let mut world = Self {
            now: 1_000,
            dice: Dice(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x1234_5678),
            odds: Odds::default(),
            plant,
            store: Store::default(),
            masters: (0..masters).map(|_| Master::new()).collect(),
            workers: Vec::new(),
            mute: BTreeSet::new(),
            deaf: BTreeSet::new(),
            post: BTreeMap::new(),
            sent: 0,
            commits: Vec::new(),
            publishing: None,
            is_wide: false,
            homes: BTreeMap::new(),
            events: Vec::new(),
            trace: seed,
            moved: 0,
            watermark: (0, BTreeMap::new()),
            taken: BTreeMap::new(),
        };
        let mut durable = Durable::default();
        for index in 0..workers {
            let name = WorkerName::parse(&format!("w{index}")).unwrap();
            durable.workers.insert(name.clone(), None);
            let mut worker = Worker::new(name);
            worker.skew = 100_000_000 + world.dice.below(10_000_000);
            worker.reads_time_of_day = plant == Some(Plant::LeaseByTimeOfDay);
            world.workers.push(worker);
        }
        world.store.durable = Rc::new(durable);
        world.elect(0);
        world
    }

    /// Adds a commit and has it published.
    pub(super) fn commit(&mut self, specs: Vec<VmSpec>) -> usize {
        let fleet = self.commits.last().map(|commit| commit.fleet.clone()).unwrap_or_default();
        self.commit_with(specs, fleet)
    }

    pub(super) fn commit_with(&mut self, mut specs: Vec<VmSpec>, mut fleet: FleetFile) -> usize {
        if self.plant == Some(Plant::Unguarded) {
            fleet.groups.entry(GroupName::default_group()).or_default().allow_empty = true;
        }
        if self.plant == Some(Plant::Overlap) {
            specs.iter_mut().for_each(|spec| spec.singleton = false);
        }
        if self.plant == Some(Plant::Unbound) {
            specs.iter_mut().flat_map(|spec| &mut spec.volumes).for_each(|volume| volume.movable = true);
        }
        if self.plant == Some(Plant::Unpinned) {
            specs.iter_mut().for_each(|spec| spec.pin = None);
        }
        if self.plant == Some(Plant::Restless) {
            fleet.policy.rebalance = 5;
        }
        let id = CommitId::parse(&format!("{:040x}", self.commits.len() + 1)).unwrap();
        self.commits.push(Commit { id, specs, fleet });
        // Whatever once was a group is published, if only as an empty one.
        let groups: BTreeSet<&GroupName> =
            self.commits.iter().flat_map(|commit| &commit.specs).map(|spec| &spec.group).collect();
        let default = GroupName::default_group();
        let others = groups.into_iter().filter(|group| **group != default).cloned();
        let queue = [GroupName::fleet(), default.clone()].into_iter().chain(others).collect();
        self.publishing = Some((self.commits.len() - 1, queue));
        self.commits.len() - 1
    }

    /// Returns what the publisher sends for a commit.
    pub(super) fn publication(&self, commit: usize, group: &GroupName, generation: u64) -> Publication {
        let Commit { id, specs, fleet, .. } = &self.commits[commit];
        let is_fleet = *group == GroupName::fleet();
        let specs: Vec<Arc<VmSpec>> =
            specs.iter().filter(|spec| spec.group == *group).cloned().map(Arc::new).collect();
        let specs_hash =
            if is_fleet { policy_hash(fleet) } else { specs_hash(specs.iter().map(AsRef::as_ref)) };
        Publication {
            intent_hash: intent_hash(id, group, &specs_hash),
            group: group.clone(),
            commit: id.clone(),
            generation,
            specs_hash,
            specs,
            policy: is_fleet.then(|| Arc::new(fleet.clone())),
            broken: Vec::new(),
        }
    }

    /// Puts a message on its way, or loses it, or sends it twice.
    pub(super) fn send(&mut self, message: Message) {
        let is_cut = match &message {
            Message::Beat { from, to, .. } | Message::Ask { from, to, .. } => {
                self.workers[*from].is_mute || self.mute.contains(&(*from, *to))
            }
            Message::Reply { from, to, .. }
            | Message::Answer { from, to, .. }
            | Message::Elsewhere { from, to, .. } => {
                self.workers[*to].is_deaf || self.deaf.contains(&(*to, *from))
            }
        };
        if is_cut {
            return;
        }
        let copies = if self.dice.one_in(self.odds.twice) { 2 } else { 1 };
        for _ in 0..copies {
            if self.dice.one_in(self.odds.loss) {
                continue;
            }
            let extra = if self.dice.one_in(self.odds.delay) { self.dice.below(20_000) } else { 0 };
            let due = self.now + 10 + self.dice.below(100) + extra;
            self.sent += 1;
            self.post.insert((due, self.sent), message.clone());
        }
    }

    /// Goes on by one step of half a second.
    pub(super) fn step(&mut self) {
        self.now += 500;
        self.wake_masters();
        self.wake_workers();
        self.deliver();
        if self.now.is_multiple_of(1_000) {
            self.publish();
        }
        for index in 0..self.masters.len() {
            self.act_master(index);
        }
        for index in 0..self.workers.len() {
            self.act_worker(index);
        }
        self.check();
    }

    /// Goes on for so many seconds.
    pub(super) fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds * 2 {
            self.step();
        }
    }

    fn deliver(&mut self) {
        while let Some(entry) = self.post.first_entry() {
            let (due, number) = *entry.key();
            if due > self.now {
                break;
            }
            let message = entry.remove();
            if let Some(until) = self.sleeps_until(&message) {
                // What reaches a machine that stands still is there when it goes on, or was given up by then.
                if self.dice.one_in(2) {
                    self.post.insert((until, number), message);
                }
                continue;
            }
            match message {
                Message::Beat { to, heartbeat, sent_at, .. } => self.take_heartbeat(to, &heartbeat, sent_at),
                Message::Ask { from, to, generation, revision } => {
                    self.take_question(to, from, generation, revision);
                }
                Message::Reply { from, to, session, sent_at, lease, needs_full } => {
                    self.take_reply((from, to), session, sent_at, lease, needs_full);
                }
                Message::Answer { from, to, assignment } => self.take_answer((from, to), assignment),
                Message::Elsewhere { from, to, leader } => self.take_hint((from, to), leader),
            }
        }
    }

    /// Returns until when whoever gets a message stands still.
    fn sleeps_until(&self, message: &Message) -> Option<Millis> {
        match message {
            Message::Beat { to, .. } | Message::Ask { to, .. } => {
                self.masters[*to].asleep.map(|sleep| sleep.until)
            }
            Message::Reply { to, .. } | Message::Answer { to, .. } | Message::Elsewhere { to, .. } => {
                self.workers[*to].asleep_until
            }
        }
    }

    /// Adds something to the trace.
    pub(super) fn note(&mut self, text: &str) {
        for byte in text.bytes() {
            self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.trace = self.trace.wrapping_add(self.now);
    }

    /// Returns how often something of this kind happened.
    pub(super) fn count(&self, kind: EventKind) -> usize {
        self.events.iter().filter(|event| event.ev == kind).count()
    }

    /// Returns what the leader has.
    pub(super) fn master(&self) -> &Cluster {
        self.cluster().expect("there is a leader")
    }
}

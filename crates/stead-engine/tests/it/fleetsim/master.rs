//! The masters' edge: each feeds its cluster, writes what that says to the store before it answers, and may die or stand still
//! at any write.
//!
//! Who holds the store's lease leads. Who held it and stood still does not know that another one leads: it goes on as it was,
//! and nothing it writes counts.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use stead_engine::fleet::cluster::{Cluster, Durable, Event, EventKind, Reply};
use stead_engine::fleet::ties::ties;
use stead_model::fleet::Millis;
use stead_model::fleet::state::{Heartbeat, Outcome, Publication};
use stead_model::{GroupName, VmId};

use super::world::{Message, Plant, World};

/// How long a leader's lease is, and how often it is renewed.
const LEASE: Millis = 6_000;
const RENEWAL: Millis = 2_000;

/// What time of day it is when everything begins.
const DAWN: i64 = 100_000_000;

/// A master: a process on a machine with a clock of its own.
#[derive(Default)]
pub(super) struct Master {
    pub(super) is_up: bool,
    pub(super) back_at: Millis,
    pub(super) asleep: Option<Sleep>,
    /// Whether the store does not answer it.
    pub(super) is_cut: bool,
    /// How far its time of day is from the right one. It is read when its process begins, and never again.
    pub(super) wall: i64,
    /// How far its clock is from the time that has passed.
    shift: i64,
    /// What it has, if it believes to lead.
    pub(super) lead: Option<Lead>,
}

/// A machine that is suspended, or a process that is stopped.
#[derive(Clone, Copy)]
pub(super) struct Sleep {
    pub(super) since: Millis,
    pub(super) until: Millis,
    /// Whether its clock stands still, too: it does where the whole machine is suspended.
    pub(super) clock_stands: bool,
}

/// What a leader has.
pub(super) struct Lead {
    pub(super) cluster: Cluster,
    /// Which leader it is: what every write is compared with.
    number: u64,
    /// What it knows to be stored.
    stored: Rc<Durable>,
    /// When its lease was last renewed: by a clock that runs through suspends, and by its own.
    renewed: (Millis, Millis),
    next_renewal: Millis,
    /// Whether the store did not answer, or refused it.
    is_away: bool,
    /// Whether it stood still when it was about to write.
    was_writing: bool,
    /// What a planted fault did.
    planted: Vec<Event>,
}

impl Master {
    pub(super) fn new() -> Self {
        Self { is_up: true, shift: DAWN, ..Self::default() }
    }

    /// Returns what its clock shows: the time of day when its process began, and since then a clock that nobody sets.
    pub(super) fn clock(&self, now: Millis) -> Millis {
        now.saturating_add_signed(self.shift)
    }

    pub(super) fn is_awake(&self) -> bool {
        self.is_up && self.asleep.is_none()
    }

    fn begin(&mut self) {
        self.is_up = true;
        self.shift = DAWN + self.wall;
    }

    fn wake(&mut self) {
        if let Some(sleep) = self.asleep.take()
            && sleep.clock_stands
        {
            self.shift -= i64::try_from(sleep.until - sleep.since).unwrap();
        }
    }
}

impl Lead {
    /// Goes back to what it knows to be stored, and changes nothing until the store answers.
    fn lose_store(&mut self, clock: Millis) {
        self.is_away = true;
        self.was_writing = false;
        self.planted.clear();
        // Somebody looks at once whether it still leads.
        self.next_renewal = clock;
        self.cluster.restore((*self.stored).clone(), clock);
    }

    fn find_store(&mut self, stored: &Rc<Durable>, clock: Millis) {
        self.is_away = false;
        self.stored = Rc::clone(stored);
        self.cluster.restore((**stored).clone(), clock);
    }
}

impl World {
    /// Returns who leads: it holds the lease, and is awake.
    pub(super) fn leader(&self) -> Option<usize> {
        let (index, number) = self.store.holder(self.now)?;
        let master = &self.masters[index];
        let is_it = master.lead.as_ref().is_some_and(|lead| lead.number == number);
        (is_it && master.is_awake()).then_some(index)
    }

    /// Returns what the leader has.
    pub(super) fn cluster(&self) -> Option<&Cluster> {
        self.masters[self.leader()?].lead.as_ref().map(|lead| &lead.cluster)
    }

    /// Returns what the leader has, and what its clock shows.
    pub(super) fn cluster_mut(&mut self) -> Option<(&mut Cluster, Millis)> {
        let (index, now) = (self.leader()?, self.now);
        let master = &mut self.masters[index];
        let clock = master.clock(now);
        master.lead.as_mut().map(|lead| (&mut lead.cluster, clock))
    }

    /// A master takes the lease, and begins with what is stored.
    pub(super) fn elect(&mut self, index: usize) {
        let number = self.store.take_lease(index, self.now + LEASE);
        let stored = Rc::clone(&self.store.durable);
        let master = &mut self.masters[index];
        let clock = master.clock(self.now);
        master.lead = Some(Lead {
            cluster: Cluster::resume((*stored).clone(), number, clock),
            number,
            stored,
            renewed: (self.now, clock),
            next_renewal: clock + RENEWAL,
            is_away: false,
            was_writing: false,
            planted: Vec::new(),
        });
        self.note(&format!("master {index} leads"));
    }

    /// A master dies; what it had not written is gone.
    pub(super) fn crash_master(&mut self, index: usize) {
        self.note("master dies");
        let back_at = self.now + 2_000 + self.dice.below(20_000);
        let master = &mut self.masters[index];
        (master.is_up, master.asleep, master.lead, master.back_at) = (false, None, None, back_at);
    }

    /// A master stands still for so long: its machine is suspended, or only its process is.
    pub(super) fn freeze_master(&mut self, index: usize, length: Millis, clock_stands: bool) {
        let master = &mut self.masters[index];
        if master.is_awake() {
            master.asleep = Some(Sleep { since: self.now, until: self.now + length, clock_stands });
            self.note("master stands still");
        }
    }

    /// A leader stands still when it is about to write.
    pub(super) fn freeze_writing(&mut self, index: usize, length: Millis, clock_stands: bool) {
        self.freeze_master(index, length, clock_stands);
        if let Some(lead) = &mut self.masters[index].lead {
            lead.was_writing = true;
        }
    }

    /// Those whose time has come go on, and do not know that they stood still.
    pub(super) fn wake_masters(&mut self) {
        for index in 0..self.masters.len() {
            let master = &mut self.masters[index];
            if master.asleep.is_some_and(|sleep| sleep.until <= self.now) {
                master.wake();
                self.note("master goes on");
                // What it was about to write is on its way before it looks at anything.
                if self.masters[index].lead.as_ref().is_some_and(|lead| lead.was_writing) {
                    self.write(index);
                }
            }
        }
    }

    pub(super) fn act_master(&mut self, index: usize) {
        let now = self.now;
        let master = &mut self.masters[index];
        if master.asleep.is_some() || (!master.is_up && now < master.back_at) {
            return;
        }
        if !master.is_up {
            master.begin();
        }
        self.campaign(index);
        if !now.is_multiple_of(1_000) {
            return;
        }
        let may_write = |lead: &Lead| !lead.is_away;
        if !self.masters[index].lead.as_ref().is_some_and(may_write) {
            return;
        }
        if self.leader() == Some(index) {
            self.remember_available();
        }
        let master = &mut self.masters[index];
        let clock = master.clock(now);
        if let Some(lead) = &mut master.lead {
            if self.plant == Some(Plant::ReleaseAll) {
                lead.planted = release_all(&mut lead.cluster);
            }
            let before = lead.cluster.may_use();
            let known = lead.cluster.durable.placements.keys().cloned().collect();
            lead.cluster.tick(clock);
            self.check_tick(index, &before, &known);
        }
        self.save(index);
    }

    /// Renews the lease, finds that it is gone, or takes it where nobody has it.
    fn campaign(&mut self, index: usize) {
        let now = self.now;
        let master = &mut self.masters[index];
        let clock = master.clock(now);
        let Some(lead) = &mut master.lead else {
            // Several look at once, and one of them is faster.
            if !self.masters[index].is_cut && self.store.holder(now).is_none() && self.dice.one_in(2) {
                self.elect(index);
            }
            return;
        };
        if clock < lead.next_renewal {
            return;
        }
        lead.next_renewal = clock + RENEWAL;
        if master.is_cut {
            if !lead.is_away {
                lead.lose_store(clock);
            }
        } else if self.store.renew(lead.number, now, now + LEASE) {
            lead.renewed = (now, clock);
            if lead.is_away {
                lead.find_store(&self.store.durable, clock);
            }
        } else {
            master.lead = None;
            self.note(&format!("master {index} leads no more"));
        }
    }

    /// Writes what a leader decided. It may die before or after, or stand still before; then nothing is answered.
    fn save(&mut self, index: usize) -> bool {
        if self.dice.one_in(self.odds.crash) {
            self.crash_master(index);
            return false;
        }
        if self.dice.one_in(self.odds.crash) {
            let (length, clock_stands) = (500 + self.dice.below(20_000), self.dice.one_in(2));
            self.freeze_writing(index, length, clock_stands);
            return false;
        }
        self.write(index)
    }

    /// Writes what a leader decided, and returns whether it knows that this is stored.
    fn write(&mut self, index: usize) -> bool {
        let is_found_out = self.plant != Some(Plant::NoFence);
        let (now, master) = (self.now, &mut self.masters[index]);
        let (clock, is_cut) = (master.clock(now), master.is_cut);
        let Some(lead) = &mut master.lead else { return false };
        lead.was_writing = false;
        let (number, mut events) = (lead.number, lead.cluster.take_events());
        match self.plant {
            Some(Plant::SilentMaster) => events.clear(),
            Some(Plant::ReleaseAll) => events.append(&mut lead.planted),
            Some(Plant::TornWrite) => tear(&mut lead.cluster),
            Some(Plant::NumberTwice) if now.is_multiple_of(3_000) => {
                let last = &mut lead.cluster.durable.last_generation;
                *last = last.saturating_sub(1);
            }
            _ => {}
        }
        let is_refused = is_found_out && !self.store.leads(number, now);
        self.store.refused += u64::from(is_refused);
        if is_cut || is_refused {
            lead.lose_store(clock);
            return false;
        }
        let durable = Rc::new(lead.cluster.durable.clone());
        let before = self.store.put(Rc::clone(&durable));
        self.check_write(number, &before, &events);
        if self.dice.one_in(self.odds.crash) {
            self.crash_master(index);
            return false;
        }
        let is_answer_lost = self.dice.one_in(self.odds.crash);
        let Some(lead) = &mut self.masters[index].lead else { return false };
        if is_answer_lost {
            // It is stored, and nobody knows.
            lead.lose_store(clock);
            return false;
        }
        lead.stored = durable;
        for event in events {
            self.moved += u64::from(event.ev == EventKind::Moved);
            self.note(&format!("{event:?}"));
            self.events.push(event);
        }
        true
    }

    /// The publisher: the newest commit, group by group, `fleet` first, tried until it is there.
    pub(super) fn publish(&mut self) {
        let Some((commit, groups)) = &self.publishing else { return };
        let (commit, Some(group)) = (*commit, groups.front().cloned()) else { return };
        let leads = |index: &usize| {
            let master = &self.masters[*index];
            master.is_awake() && master.lead.as_ref().is_some_and(|lead| !lead.is_away)
        };
        // Whoever believes to lead may be asked.
        let believers: Vec<usize> = (0..self.masters.len()).filter(leads).collect();
        let chosen = self.dice.below(believers.len() as u64) as usize;
        let Some(index) = believers.get(chosen).copied() else { return };
        let id = self.commits[commit].id.clone();
        let clock = self.masters[index].clock(self.now);
        let Some(lead) = &mut self.masters[index].lead else { return };
        let generation = lead.cluster.reserve(&id);
        if !self.save(index) {
            return;
        }
        let groups = self.tied(index, commit, &group);
        let messages: Vec<Publication> =
            groups.iter().map(|group| self.publication(commit, group, generation)).collect();
        let Some(lead) = &mut self.masters[index].lead else { return };
        let verdicts = lead.cluster.publish_together(&messages, clock);
        if !self.save(index) || self.dice.one_in(self.odds.loss) {
            return;
        }
        for (group, verdict) in groups.iter().zip(verdicts) {
            self.note(&format!("{:?}", verdict.outcome));
            match verdict.outcome {
                Outcome::Accepted
                | Outcome::Duplicate
                | Outcome::Held
                | Outcome::Suspended
                | Outcome::Stale => {
                    if let Some((_, waiting)) = &mut self.publishing {
                        waiting.retain(|waiting| waiting != group);
                    }
                }
                Outcome::Conflict => {}
                Outcome::Invalid => panic!("a good commit is refused: {:?}", verdict.problems),
            }
        }
        self.publishing.take_if(|(_, groups)| groups.is_empty());
    }

    /// Returns the groups of a commit that are published with one of them: those between which VMs move.
    fn tied(&self, index: usize, commit: usize, group: &GroupName) -> BTreeSet<GroupName> {
        let alone = BTreeSet::from([group.clone()]);
        let Some((lead, (_, waiting))) = self.masters[index].lead.as_ref().zip(self.publishing.as_ref())
        else {
            return alone;
        };
        if *group == GroupName::fleet() {
            return alone;
        }
        let active = lead.cluster.desired().map(|spec| (spec.id.clone(), spec.group.clone())).collect();
        let mut next: BTreeMap<GroupName, BTreeSet<VmId>> =
            waiting.iter().map(|group| (group.clone(), BTreeSet::new())).collect();
        for spec in &self.commits[commit].specs {
            if let Some(ids) = next.get_mut(&spec.group) {
                ids.insert(spec.id.clone());
            }
        }
        ties(&active, &next).into_iter().find(|list| list.contains(group)).unwrap_or(alone)
    }

    pub(super) fn take_heartbeat(&mut self, index: usize, heartbeat: &Heartbeat, sent_at: Millis) {
        let Some(to) = self.workers.iter().position(|worker| worker.name == heartbeat.worker) else { return };
        let (now, by_own_clock) = (self.now, self.plant == Some(Plant::LeaseByStandingClock));
        let master = &mut self.masters[index];
        let clock = master.clock(now);
        let Some(lead) = &mut master.lead else { return self.send_on(index, to) };
        let Reply { lease, needs_full, .. } = lead.cluster.heartbeat(heartbeat, clock);
        // Whoever may have been deposed lets no singleton run on.
        let age = if by_own_clock { clock - lead.renewed.1 } else { now - lead.renewed.0 };
        let lease = lease.filter(|_| age < LEASE);
        if lead.is_away && age >= LEASE {
            // Nor does it keep workers from who leads by now.
            return;
        }
        let is_news = heartbeat.facts.is_some() && !lead.is_away;
        if is_news && !self.save(index) {
            return;
        }
        let session = heartbeat.session;
        self.send(Message::Reply { from: index, to, session, sent_at, lease, needs_full });
    }

    pub(super) fn take_question(&mut self, index: usize, from: usize, generation: u64, revision: u64) {
        let Some(lead) = &self.masters[index].lead else { return self.send_on(index, from) };
        let name = &self.workers[from].name;
        if lead.cluster.is_current(name, generation, revision) {
            return;
        }
        // Only what is stored is handed out: a tick that was not written died with its master, or was taken back.
        if let Some(assignment) = lead.cluster.assignment(name) {
            self.check_answer(&lead.stored, name, &assignment);
            self.send(Message::Answer { from: index, to: from, assignment });
        }
    }

    /// A master that does not lead says who does.
    fn send_on(&mut self, index: usize, to: usize) {
        let holder = self.store.holder(self.now).filter(|_| !self.masters[index].is_cut);
        if let Some((leader, _)) = holder.filter(|(leader, _)| *leader != index) {
            self.send(Message::Elsewhere { from: index, to, leader });
        }
    }
}

/// A planted fault: every instance may run its new spec at once.
fn release_all(cluster: &mut Cluster) -> Vec<Event> {
    let mut events = Vec::new();
    let targets: Vec<_> =
        cluster.durable.placements.keys().map(|key| (key.clone(), cluster.target(&key.vm))).collect();
    for (key, target) in targets {
        let placement = cluster.durable.placements.get_mut(&key);
        if let (Some(placement), Some(target)) = (placement, target)
            && placement.released != target
        {
            placement.released = target;
            events.push(Event {
                ev: EventKind::Released,
                commit: None,
                generation: None,
                group: None,
                instance: Some(key),
                worker: None,
                reason: String::new(),
            });
        }
    }
    events
}

/// A planted fault: of what is active a VM is missing.
fn tear(cluster: &mut Cluster) {
    for group in cluster.durable.groups.values_mut() {
        if let Some(active) = group.active.and_then(|number| group.stored.get_mut(&number)) {
            active.specs.pop();
        }
    }
}

//! From publications to active generations.
//!
//! Ids are unique over all groups, and each group becomes active on its own. Groups between which one commit moves VMs are
//! the exception: they are published together, are judged by what all of them say, and become active together or not at all.
//! So a VM that goes from one group to another runs on, two groups may give each other VMs, and while one of them has to wait
//! the others keep what they have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stead_model::fleet::state::{Generation, HoldTarget, Outcome, Placement, Problem, Publication, Verdict};
use stead_model::fleet::{FleetFile, InstanceKey, Millis, VmSpec};
use stead_model::{GroupName, VmId};

use super::super::accept::{Standing, accept, stops};
use super::super::canon::vm_hash;
use super::{Cluster, Event, Group};

/// The code of what waits for another group: the commit moves VMs between them.
pub const MOVES_TOGETHER: &str = "moves-together";

/// Generations that become active at once: one of each group.
type Due = BTreeMap<GroupName, u64>;

impl Cluster {
    /// Takes a publication, or says why not. What becomes active is placed by the next tick.
    pub fn publish(&mut self, message: &Publication, now: Millis) -> Verdict {
        let verdicts = self.publish_together(std::slice::from_ref(message), now);
        let nothing = || Verdict { outcome: Outcome::Invalid, problems: Vec::new(), active: 0, highest: 0 };
        verdicts.into_iter().next().unwrap_or_else(nothing)
    }

    /// Takes groups of one commit between which VMs move: all of them, or none. The verdicts are in the order of `messages`.
    pub fn publish_together(&mut self, messages: &[Publication], now: Millis) -> Vec<Verdict> {
        let fleet = self.fleet();
        let mut verdicts: Vec<Verdict> =
            messages.iter().map(|message| self.judge(message, messages, &fleet, now)).collect();
        refuse_the_rest(messages, &mut verdicts);
        let is_new =
            |outcome: Outcome| matches!(outcome, Outcome::Accepted | Outcome::Held | Outcome::Suspended);
        for (message, verdict) in messages.iter().zip(&verdicts).filter(|(_, one)| is_new(one.outcome)) {
            self.keep(message, verdict);
        }
        let due = if verdicts.iter().any(|verdict| is_new(verdict.outcome)) {
            self.due(now)
        } else {
            Due::default()
        };
        for (message, verdict) in messages.iter().zip(&mut verdicts) {
            let is_due = due.get(&message.group) == Some(&message.generation);
            if verdict.outcome == Outcome::Accepted && !is_due {
                let group = self.durable.groups.get(&message.group);
                verdict.outcome = Outcome::Suspended;
                verdict.active = group.and_then(|group| group.active).unwrap_or_default();
                verdict.problems.extend(self.clash(&message.group, message.generation, &due));
                let why = verdict.problems.first().cloned();
                if let Some(group) = self.durable.groups.get_mut(&message.group) {
                    group.why = why;
                }
            }
            self.events.push(Event::of_verdict(message, verdict.outcome));
        }
        self.activate(&due, now);
        verdicts
    }

    /// Returns what a publication is by itself, others of the same commit being as they are published with it.
    fn judge(
        &self,
        message: &Publication,
        together: &[Publication],
        fleet: &FleetFile,
        now: Millis,
    ) -> Verdict {
        let group = self.durable.groups.get(&message.group);
        let taken = self.taken(message, together);
        let running: Vec<InstanceKey> = self.running_of(&message.group);
        let known = group
            .and_then(|group| group.stored.values().find(|generation| generation.commit == message.commit));
        let others = together.iter().filter(|one| one.group != message.group);
        let elsewhere: Vec<Arc<VmSpec>> = others.flat_map(|one| one.specs.iter().cloned()).collect();
        let standing = Standing {
            highest: group.and_then(Group::highest),
            active: group.and_then(Group::active),
            taken: &taken,
            reserved: self.durable.commits.get(&message.commit).copied(),
            known_specs: known.map(|generation| generation.specs_hash),
            running: &running,
            elsewhere: &elsewhere,
            fleet,
            is_suspended: self.waits(&message.group, fleet, now),
        };
        accept(&standing, message)
    }

    /// Stores a publication that may become active.
    fn keep(&mut self, message: &Publication, verdict: &Verdict) {
        let mut specs = message.specs.clone();
        specs.sort_by(|a, b| a.id.cmp(&b.id));
        // Whether it is active now is decided with all the others.
        let waits = if verdict.outcome == Outcome::Held { Outcome::Held } else { Outcome::Suspended };
        let generation = Generation {
            number: message.generation,
            commit: message.commit.clone(),
            intent_hash: message.intent_hash,
            specs_hash: message.specs_hash,
            specs,
            policy: message.policy.clone(),
            waits: Some(waits),
        };
        let group = self.durable.groups.entry(message.group.clone()).or_default();
        group.stored.insert(message.generation, generation);
        group.why = verdict.problems.first().cloned();
    }

    /// Returns which other group has which VM: of those that are published with it what they will have, of others what they
    /// have of this commit or a newer one, though it may wait, and else what is active. What waits of an older one is about
    /// to be published anew; if it is not, it does not become active.
    fn taken(&self, message: &Publication, together: &[Publication]) -> BTreeMap<VmId, GroupName> {
        let mut taken = BTreeMap::new();
        let others = self.durable.groups.iter().filter(|(name, _)| **name != message.group);
        for (name, group) in others.filter(|(name, _)| together.iter().all(|one| one.group != **name)) {
            let newest = group.highest().filter(|highest| highest.number >= message.generation);
            let specs =
                newest.or_else(|| group.active()).into_iter().flat_map(|generation| &generation.specs);
            taken.extend(specs.map(|spec| (spec.id.clone(), name.clone())));
        }
        for one in together.iter().filter(|one| one.group != message.group) {
            taken.extend(one.ids().map(|id| (id.clone(), one.group.clone())));
        }
        taken
    }

    /// Returns the instances of a group that run, as far as is known.
    fn running_of(&self, group: &GroupName) -> Vec<InstanceKey> {
        let active = self.durable.groups.get(group).and_then(Group::active);
        let of_group = |key: &InstanceKey| {
            active.is_some_and(|active| has(active, &key.vm)) || self.is_unclaimed_of(&key.vm, group)
        };
        let runs = |place: &Placement| place.worker.is_some() || !place.leaving.is_empty();
        let placed = self.durable.placements.iter().filter(|(_, place)| runs(place));
        placed.map(|(key, _)| key).filter(|key| of_group(key)).cloned().collect()
    }

    /// Returns how many running instances of a group a generation of it would stop, and how many run.
    pub fn stops_of(&self, group: &GroupName, generation: &Generation) -> (u32, u32) {
        let running = self.running_of(group);
        let others = self.durable.groups.iter().filter(|(name, _)| *name != group);
        let others = others.filter_map(|(_, other)| other.stored.get(&generation.number));
        let elsewhere: Vec<Arc<VmSpec>> = others.flat_map(|other| other.specs.iter().cloned()).collect();
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        (count(stops(&running, &generation.specs, &elsewhere)), count(running.len()))
    }

    /// Whether new generations of a group wait.
    pub(super) fn waits(&self, group: &GroupName, fleet: &FleetFile, now: Millis) -> bool {
        let target = HoldTarget::Group(group.clone());
        fleet.group(group).suspend || self.holds_at(now).any(|hold| hold.target == target)
    }

    /// Activates the newest generations of groups whose suspension ended, or that were approved.
    pub(super) fn activate_waiting(&mut self, now: Millis) {
        let due = self.due(now);
        for (name, number) in self.unhindered(now) {
            let problem = if due.contains_key(&name) { None } else { self.clash(&name, number, &due) };
            if let (Some(problem), Some(group)) = (problem, self.durable.groups.get_mut(&name)) {
                group.why = Some(problem);
            }
        }
        self.activate(&due, now);
    }

    /// Returns the newest generations that nobody keeps from becoming active.
    fn unhindered(&self, now: Millis) -> Due {
        let fleet = self.fleet();
        let groups = self.durable.groups.iter().filter_map(|(name, group)| Some((name, group.highest()?)));
        let groups = groups.filter(|(name, highest)| match highest.waits {
            Some(Outcome::Held) => {
                fleet.approve.contains(&highest.specs_hash) && !self.waits(name, &fleet, now)
            }
            Some(_) => !self.waits(name, &fleet, now),
            None => false,
        });
        groups.map(|(name, highest)| (name.clone(), highest.number)).collect()
    }

    /// Returns the most of them that can become active at once.
    fn due(&self, now: Millis) -> Due {
        let mut due = self.unhindered(now);
        loop {
            let hindered = due.iter().filter(|(name, number)| self.clash(name, **number, &due).is_some());
            let hindered: Vec<GroupName> = hindered.map(|(name, _)| name.clone()).collect();
            if hindered.is_empty() {
                return due;
            }
            due.retain(|name, _| !hindered.contains(name));
        }
    }

    /// Returns why a generation cannot become active if those that are due do: another group has one of its VMs, or one that
    /// it gives away does not arrive where its commit has it.
    fn clash(&self, name: &GroupName, number: u64, due: &Due) -> Option<Problem> {
        let group = self.durable.groups.get(name)?;
        let waiting = group.stored.get(&number)?;
        let others = || self.durable.groups.iter().filter(|(other, _)| *other != name);
        let will_be =
            |other: &GroupName, them: &Group| -> Option<u64> { due.get(other).copied().or(them.active) };
        for (other, them) in others() {
            let theirs = will_be(other, them);
            // Of two that wait for the same VM the older one was first.
            let is_second =
                due.contains_key(other) && theirs.is_some_and(|theirs| (theirs, other) > (number, name));
            let theirs = theirs.filter(|_| !is_second).and_then(|theirs| them.stored.get(&theirs));
            let Some(spec) =
                theirs.and_then(|theirs| waiting.specs.iter().find(|spec| has(theirs, &spec.id)))
            else {
                continue;
            };
            let lacks_it = |generation: &Generation| !has(generation, &spec.id);
            let gives_it =
                them.stored.get(&number).is_some_and(lacks_it) && them.highest().is_some_and(lacks_it);
            return Some(if gives_it {
                moves(&spec.id, other, name, other)
            } else {
                twice(&spec.id, other, name)
            });
        }
        let lost = group.active()?.specs.iter().map(|spec| &spec.id).filter(|id| !has(waiting, id));
        let lost: Vec<&VmId> = lost.collect();
        for (to, them) in others() {
            let Some(same) = them.stored.get(&number) else { continue };
            for id in lost.iter().filter(|id| has(same, id)) {
                let arrives = others().any(|(other, them)| {
                    let theirs = will_be(other, them).and_then(|theirs| them.stored.get(&theirs));
                    theirs.is_some_and(|theirs| has(theirs, id))
                });
                if !arrives {
                    return Some(moves(id, name, to, to));
                }
            }
        }
        None
    }

    /// Makes stored generations the active ones of their groups.
    fn activate(&mut self, due: &Due, now: Millis) {
        let mut specs: Vec<Arc<VmSpec>> = Vec::new();
        for (name, number) in due {
            let Some(group) = self.durable.groups.get_mut(name) else { continue };
            let Some(generation) = group.stored.get_mut(number) else { continue };
            generation.waits = None;
            group.active = Some(*number);
            group.since = now;
            group.why = None;
            specs.extend(generation.specs.iter().cloned());
            self.events.push(Event::activated(name, generation));
        }
        if due.is_empty() {
            return;
        }
        self.load_targets();
        for spec in specs {
            let hash = self.target(&spec.id).unwrap_or_else(|| vm_hash(&spec));
            self.durable.specs.insert((spec.id.clone(), hash), spec);
        }
        // What is frozen from now on is so before anything of it goes.
        self.load_policy(now);
        self.load_desired();
        for name in due.keys() {
            self.claim(name, now);
        }
        self.is_dirty = true;
    }
}

/// Whether a generation has a VM.
fn has(generation: &Generation, id: &VmId) -> bool {
    generation.specs.binary_search_by(|spec| spec.id.cmp(id)).is_ok()
}

/// Where one of several is refused, nothing of the others is stored.
fn refuse_the_rest(messages: &[Publication], verdicts: &mut [Verdict]) {
    let is_refused =
        |verdict: &Verdict| matches!(verdict.outcome, Outcome::Invalid | Outcome::Conflict | Outcome::Stale);
    let Some(at) = verdicts.iter().position(is_refused) else { return };
    let (outcome, group) = (verdicts[at].outcome, &messages[at].group);
    let refused: BTreeSet<usize> = (0..verdicts.len()).filter(|at| is_refused(&verdicts[*at])).collect();
    for (index, verdict) in verdicts.iter_mut().enumerate() {
        if refused.contains(&index) || verdict.outcome == Outcome::Duplicate {
            continue;
        }
        let word = format!("{outcome:?}").to_lowercase();
        verdict.outcome = outcome;
        verdict.problems = vec![Problem {
            code: MOVES_TOGETHER.to_owned(),
            message: format!("VMs move between it and group `{group}`, which is {word}"),
            subject: messages[index].group.to_string(),
        }];
    }
}

fn twice(id: &VmId, other: &GroupName, name: &GroupName) -> Problem {
    Problem {
        code: "duplicate-id".to_owned(),
        message: format!(
            "`{id}` is a VM of group `{other}` and of group `{name}`; take it out of one of them"
        ),
        subject: format!("{id}.id"),
    }
}

fn moves(id: &VmId, from: &GroupName, to: &GroupName, waiting: &GroupName) -> Problem {
    Problem {
        code: MOVES_TOGETHER.to_owned(),
        message: format!(
            "`{id}` goes from group `{from}` to group `{to}`: both become active together, and `{waiting}` waits"
        ),
        subject: format!("{id}.group"),
    }
}

//! One look at everything: what is there, what follows, and what is begun.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use stead_engine::fleet::reconcile::{
    self, Closure, ClosureState, Exit, Here, Local, LocalState, Step, StopReason,
};
use stead_model::fleet::state::Assignment;
use stead_model::fleet::vm::VmSpec;
use stead_model::fleet::{InstanceKey, Millis};
use stead_model::plan::Digest;

use super::runs::{detail_of, spec_now};
use super::{Agent, Busy, Done, PAUSE, assigned, clock};
use crate::events::Ev;
use crate::worker::act::{ActError, Order};
use crate::worker::facts;
use crate::worker::fetch::Progress;
use crate::worker::files::{Cause, Record};
use crate::worker::observe::{self, Found, Sight};

/// How often the lease is looked at while singletons run: timers stand still while the machine is suspended.
const LEASE_LOOK: Millis = 1_000;
/// How often it is told how much of what is fetched has come.
const FETCH_LOOK: Millis = 5_000;
/// How long a singleton may take to stop once its lease is over.
pub(super) const FENCE: Duration = Duration::from_secs(2);

impl Agent {
    /// Looks at everything, decides and begins what can be done now. What cannot be read or written for now (the disk is
    /// full, say) is tried again: machines are never left without their agent for that.
    pub(super) async fn look(&mut self) {
        loop {
            self.wake_at = None;
            self.next_drift = clock::now() + millis(self.settings.file.drift_interval);
            let Ok(sight) = observe::look(&self.hands).await else {
                self.wake(clock::now() + PAUSE);
                return;
            };
            let here = self.here(&sight);
            let now = clock::now();
            // How full the disk is decides what is placed here: that is told at once.
            self.needs_full |= here.is_disk_low != self.was_disk_low;
            self.was_disk_low = here.is_disk_low;
            self.needs_full |= sight.foreign != self.foreign;
            self.foreign.clone_from(&sight.foreign);
            self.has_singletons = here.machines.values().any(|machine| machine.is_singleton)
                || self.applied.iter().flat_map(|applied| &applied.specs).any(|spec| spec.singleton);
            // Without a word of what is wanted nothing is done but what two agents could not agree on later.
            let known = self.applied.clone();
            let reconciled = match &known {
                Some(applied) => reconcile::reconcile(applied, &here, now),
                None => reconcile::fence_all(&here, now),
            };
            if let Some(wake) = reconciled.wake_at {
                self.wake(wake);
            }
            if self.has_singletons {
                self.wake(now + LEASE_LOOK);
                self.keep_lease();
            }
            if !self.progress.is_empty() {
                self.wake(now + FETCH_LOOK);
            }
            let applied = known.clone().unwrap_or_default();
            self.refresh_records(&applied, &sight);
            self.note_ends(&applied, &sight);
            let mut again = false;
            for step in &reconciled.steps {
                again |= self.begin_step(step, &applied, &sight);
            }
            self.watch_runs(&applied, &sight);
            self.see(&sight, &reconciled, known.as_ref());
            if !again {
                if known.is_some() {
                    self.collect(&applied, &sight);
                }
                return;
            }
        }
    }

    /// Brings records up to what is assigned where that is the same to run: what the next agent knows is of them alone.
    fn refresh_records(&self, applied: &Assignment, sight: &Sight) {
        for (key, found) in &sight.instances {
            let spec = spec_now(applied, found);
            // Whoever looks next tries again.
            self.hands.fence(key, found.record.driver, spec.singleton).ok();
            if *spec != *found.record.spec {
                self.hands.files.update_record(key, |record| record.spec = spec).ok();
            }
        }
    }

    /// Writes down what came to its end, by itself or by an agent that did not live to say so, and what is not as it was left
    /// though nobody here did anything to it.
    fn note_ends(&self, applied: &Assignment, sight: &Sight) {
        for (key, found) in sight.instances.iter().filter(|(key, _)| !self.busy.contains_key(*key)) {
            if let Some(reason) = drift(found).filter(|_| assigned(applied, key).is_some()) {
                self.tell_once(found, Ev::Drift, reason);
            }
            match found.state {
                // What cannot be written is written by whoever looks next.
                LocalState::Remains => self.hands.note_stopped(key).unwrap_or(()),
                LocalState::Gone { .. } => self.tell_once(found, Ev::Exited, detail_of(found)),
                LocalState::Running | LocalState::Starting | LocalState::Stopping | LocalState::Begun => {}
            }
        }
    }

    /// Writes down what happened to an instance, unless that was done when it was looked at.
    fn tell_once(&self, found: &Found, ev: Ev, reason: String) {
        let has_told = |known: Ev| found.record.has_told(known);
        // The end is what is written last of a run: whoever has it has what came before, too.
        if has_told(ev) || has_told(Ev::Exited) {
            return;
        }
        if let Some(record) = self.hands.files.record(&found.record.instance) {
            // What cannot be written is written by whoever looks next.
            self.hands.tell(record, Cause { ev, reason }).ok();
        }
    }

    /// Returns what the engine has to know.
    pub(super) fn here(&self, sight: &Sight) -> Here {
        let mut machines: BTreeMap<InstanceKey, Local> = BTreeMap::new();
        for (key, found) in &sight.instances {
            let record = &found.record;
            let busy = self.busy.get(key);
            machines.insert(
                key.clone(),
                Local {
                    vm_hash: record.vm_hash,
                    is_singleton: record.spec.singleton,
                    state: busy.map_or(found.state, |busy| busy.state),
                    attempts: record.attempts,
                    next_retry: if record.boot_id == self.boot_id { record.next_retry } else { 0 },
                    is_adopted: self.adopted.contains(key),
                },
            );
        }
        for assigned in self.applied.iter().flat_map(|applied| &applied.instances) {
            // Its record comes as the first thing of its start.
            let Some(busy) = self.busy.get(&assigned.instance) else { continue };
            machines.entry(assigned.instance.clone()).or_insert(Local {
                vm_hash: assigned.vm_hash,
                is_singleton: false,
                state: busy.state,
                attempts: 0,
                next_retry: 0,
                is_adopted: true,
            });
        }
        let wanted =
            self.applied.iter().flat_map(|applied| &applied.instances).map(|assigned| assigned.vm_hash);
        let mut closures: BTreeMap<Digest, Closure> = BTreeMap::new();
        for hash in wanted.chain(sight.instances.values().map(|found| found.record.vm_hash)) {
            closures.entry(hash).or_insert_with(|| self.closure(&hash));
        }
        Here {
            machines,
            foreign: sight.foreign.clone(),
            closures,
            is_disk_low: facts::is_disk_low(&self.settings.file, self.hands.files.directory()),
            lease_until: self.lease_until,
            unsupported: BTreeSet::new(),
        }
    }

    pub(super) fn closure(&self, hash: &Digest) -> Closure {
        let known = self.closures.get(hash).copied();
        if self.fetching.contains_key(hash) {
            return Closure { state: ClosureState::Fetching, ..known.unwrap_or_default() };
        }
        match known {
            Some(closure) if closure.state == ClosureState::Fetched => closure,
            Some(_) | None if self.fetcher.is_rooted(hash).is_some() => {
                Closure { state: ClosureState::Rooted, ..Closure::default() }
            }
            Some(closure) => closure,
            None => Closure::default(),
        }
    }

    /// Begins a step; returns whether it is over already, so that more can be done at once.
    pub(super) fn begin_step(&mut self, step: &Step, applied: &Assignment, sight: &Sight) -> bool {
        match step {
            Step::Adopt(key) => {
                self.adopted.insert(key.clone());
                if sight.instances.get(key).is_some_and(|found| found.record.is_stopping) {
                    // It was about to be stopped, and is wanted again.
                    let stays = |record: &mut Record| {
                        (record.is_stopping, record.stopping) = (false, None);
                    };
                    if self.hands.files.update_record(key, stays).is_err() {
                        self.wake(clock::now() + PAUSE);
                    }
                }
                self.write(Ev::Adopted, key, "the agent began anew");
                true
            }
            Step::Count { instance, attempts, next_retry } => {
                let files = &self.hands.files;
                let counted = files.update_record(instance, |record| {
                    record.attempts = *attempts;
                    record.next_retry = *next_retry;
                    record.is_counted = true;
                });
                if counted.is_err() {
                    self.wake(clock::now() + PAUSE);
                    return false;
                }
                (self.settings.watch)("count");
                let (hands, key) = (Arc::clone(&self.hands), instance.clone());
                // What a killed process left would run on until the next start.
                self.act(instance, LocalState::Stopping, async move { hands.sweep(&key).await });
                false
            }
            Step::Stop { instance, why } => {
                if let Some(busy) = self.busy.get(instance) {
                    // What nobody wants is let come up and stopped then; a lease waits neither for that nor for a slow stop.
                    match why {
                        StopReason::NotAssigned => {}
                        StopReason::Fenced if busy.is_fencing => {}
                        StopReason::Fenced => busy.abort.abort(),
                    }
                    return false;
                }
                let grace = grace_of(applied, instance, sight);
                let (grace, ev, reason) = match why {
                    StopReason::NotAssigned => (grace, Ev::Stopped, "nobody wants it here"),
                    StopReason::Fenced => (grace.min(FENCE), Ev::Fenced, "no master was heard in time"),
                };
                let cause = Cause { ev, reason: reason.to_owned() };
                let (hands, key) = (Arc::clone(&self.hands), instance.clone());
                let stopping = async move { hands.stop(&key, grace, cause).await };
                self.act(instance, LocalState::Stopping, stopping);
                if let Some(busy) = self.busy.get_mut(instance) {
                    busy.is_fencing = *why == StopReason::Fenced;
                }
                false
            }
            Step::Clean(key) => {
                let (hands, cleaned) = (Arc::clone(&self.hands), key.clone());
                self.act(key, LocalState::Stopping, async move { hands.clean(&cleaned).await });
                false
            }
            Step::Fetch(hash) => {
                let Some(spec) = spec_of(applied, hash) else { return false };
                let (fetcher, hash) = (Arc::clone(&self.fetcher), *hash);
                let progress = Arc::new(Progress::of(&spec));
                self.progress.insert(hash, Arc::clone(&progress));
                let fetching = async move { Done::Fetched(hash, fetcher.fetch(&spec, &progress).await) };
                let id = self.work.spawn(fetching).id();
                self.fetching.insert(hash, id);
                self.wake(clock::now() + FETCH_LOOK);
                false
            }
            Step::Root(hash) => {
                let Some(spec) = spec_of(applied, hash) else { return false };
                let (fetcher, hash) = (Arc::clone(&self.fetcher), *hash);
                let is_built_locally = self.built_locally.contains(&hash);
                let rooting =
                    async move { Done::Rooted(hash, fetcher.root(&hash, &spec, is_built_locally).await) };
                let id = self.work.spawn(rooting).id();
                self.fetching.insert(hash, id);
                false
            }
            Step::Replace { instance, to, .. } => {
                let Some(order) = order(applied, instance, to, sight) else { return false };
                let (hands, grace) = (Arc::clone(&self.hands), grace_of(applied, instance, sight));
                let retiring = async move { hands.retire(&order, grace).await };
                self.act(instance, LocalState::Stopping, retiring);
                false
            }
            Step::Start { instance, vm_hash } => {
                let Some(order) = order(applied, instance, vm_hash, sight) else { return false };
                self.adopted.insert(instance.clone());
                let hands = Arc::clone(&self.hands);
                let has_run = sight.instances.get(instance).is_some_and(|found| found.record.since > 0);
                self.figures.restarts.add(u64::from(has_run && !self.busy.contains_key(instance)));
                let why = match sight.instances.get(instance).map(|found| (found, detail_of(found))) {
                    Some((_, why)) if !why.is_empty() => why,
                    Some((found, _)) if found.record.since > 0 => "it was stopped".to_owned(),
                    Some(_) | None => "it is assigned".to_owned(),
                };
                self.fetcher.remember(&order.spec.id, order.vm_hash).ok();
                self.act(instance, LocalState::Starting, async move { hands.start(&order, why).await });
                false
            }
        }
    }

    /// Begins an act, unless one is under way or the last one failed just now.
    pub(super) fn act(
        &mut self,
        key: &InstanceKey,
        state: LocalState,
        act: impl Future<Output = Result<(), ActError>> + Send + 'static,
    ) {
        if self.busy.contains_key(key) {
            return;
        }
        if let Some(paused) = self.paused.get(key).filter(|paused| clock::now() < paused.until) {
            let until = paused.until;
            self.wake(until);
            return;
        }
        self.watched.remove(key);
        let acted = key.clone();
        let abort = self.work.spawn(async move { Done::Acted(acted, act.await) });
        self.busy.insert(key.clone(), Busy { state, is_fencing: false, abort });
    }

    /// Drops closures that nobody needs, while nothing is being fetched.
    pub(super) fn collect(&mut self, applied: &Assignment, sight: &Sight) {
        if !self.fetching.is_empty()
            || self.closures.values().any(|closure| closure.state == ClosureState::Fetched)
        {
            return;
        }
        let assigned = applied.instances.iter().map(|assigned| assigned.vm_hash);
        let in_use = assigned.chain(sight.instances.values().map(|found| found.record.vm_hash)).collect();
        let assigned = applied.instances.iter().map(|assigned| &assigned.instance);
        let here = assigned.chain(sight.instances.keys()).map(|key| key.vm.clone()).collect();
        // What could not be dropped is found again.
        self.fetcher.collect(&here, &in_use, &applied.specs, self.settings.file.keep_previous).ok();
    }
}

/// Returns how an instance is other than its record says, where nobody here did that and it did not end by itself.
fn drift(found: &Found) -> Option<String> {
    let record = &found.record;
    match found.state {
        LocalState::Gone { exit: Exit::Killed, .. } => Some(format!("it was killed: {}", detail_of(found))),
        LocalState::Begun if record.pid.is_some() => Some("another process than its own is there".to_owned()),
        LocalState::Remains if record.pid.is_some() && !record.is_stopping => {
            let is_same_boot = record.boot_id == clock::boot_id();
            let why = if is_same_boot { "its machine is gone" } else { "the worker's machine was restarted" };
            Some(why.to_owned())
        }
        LocalState::Gone { .. }
        | LocalState::Begun
        | LocalState::Remains
        | LocalState::Running
        | LocalState::Starting
        | LocalState::Stopping => None,
    }
}

pub(super) fn millis(duration: Duration) -> Millis {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns how long a stop of an instance may take.
pub(super) fn grace_of(applied: &Assignment, key: &InstanceKey, sight: &Sight) -> Duration {
    let seconds = sight.instances.get(key).map_or(0, |found| spec_now(applied, found).stop_seconds);
    Duration::from_secs(seconds.into())
}

/// Returns a spec with this hash.
pub(super) fn spec_of(applied: &Assignment, hash: &Digest) -> Option<Arc<VmSpec>> {
    let assigned = applied.instances.iter().find(|assigned| assigned.vm_hash == *hash)?;
    applied.specs.get(assigned.spec as usize).cloned()
}

/// Returns what an instance is to run: what is assigned, or what it ran before and still may.
pub(super) fn order(
    applied: &Assignment,
    key: &InstanceKey,
    vm_hash: &Digest,
    sight: &Sight,
) -> Option<Order> {
    let assigned = assigned(applied, key)?;
    let (spec, generation) = if assigned.vm_hash == *vm_hash {
        (applied.specs.get(assigned.spec as usize)?, assigned.generation)
    } else {
        let found = sight.instances.get(key).filter(|found| found.record.vm_hash == *vm_hash)?;
        (&found.record.spec, found.record.generation)
    };
    Some(Order { key: key.clone(), spec: Arc::clone(spec), vm_hash: *vm_hash, generation })
}

//! How a new spec reaches the instances of a VM: few at a time, canaries first, and no further once one fails.
//!
//! An instance runs its *released* spec; the rollout decides when that becomes the desired one. What is broken is
//! released at once, for it has nothing to lose; what is healthy only while few enough are away. What a silent worker has
//! is away but not broken: nobody knows.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use stead_model::VmId;
use stead_model::fleet::vm::Rollout;
use stead_model::fleet::{Code, InstanceKey, Millis};
use stead_model::plan::Digest;

#[cfg(test)]
mod tests;

/// How many exits are a crash loop.
pub const CRASH_LOOP: u32 = 3;

/// What is remembered of a VM's rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// What it goes to.
    pub target: Option<Digest>,
    /// Where it came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Digest>,
    /// Why it stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// Whether every instance was ready with it once.
    #[serde(default)]
    pub is_done: bool,
    /// Instances that were ready with it: what becomes of them later is no matter of the rollout's deadline.
    #[serde(skip)]
    pub proven: BTreeSet<InstanceKey>,
}

impl Memory {
    /// Returns what is remembered of a rollout that is over.
    pub fn done(target: Digest) -> Self {
        Self { target: Some(target), is_done: true, ..Self::default() }
    }
}

/// Why a rollout stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// The instance that fails.
    pub instance: InstanceKey,
    /// How.
    pub code: Code,
}

/// One instance as the rollout sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Which.
    pub key: InstanceKey,
    /// What it may run.
    pub released: Digest,
    /// Since when.
    pub released_at: Millis,
    /// Whether it has a worker.
    pub is_assigned: bool,
    /// Whether its worker is suspended: whatever is released, it stays as it is.
    pub is_frozen: bool,
    /// What its worker says of it, or the one that it leaves while it has no other; none: that is silent, or has not been
    /// heard by this leader.
    pub seen: Option<Sight>,
}

/// What a worker says of an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    /// What it runs; none: nothing.
    pub hash: Option<Digest>,
    /// Whether it runs.
    pub is_running: bool,
    /// Since when it is ready, if it is.
    pub ready_since: Option<Millis>,
    /// How often it ended since it was stable.
    pub exits: u32,
}

/// A VM whose instances are rolled.
#[derive(Clone, Debug)]
pub struct Rolling<'a> {
    /// The VM.
    pub vm: &'a VmId,
    /// What it is to run.
    pub target: Digest,
    /// How.
    pub settings: Rollout,
    /// How many instances it has.
    pub replicas: u32,
    /// Whether nothing may be released: suspended, or held by an operator.
    pub is_frozen: bool,
    /// Its instances, sorted by ordinal.
    pub instances: &'a [Instance],
}

/// Where a rollout is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It goes on.
    Running,
    /// It stopped because an instance fails.
    Held,
    /// It is paused.
    Paused,
    /// Every instance has its spec and was ready with it.
    Done,
}

/// What a rollout does now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Instances that may run the new spec from now on.
    pub release: Vec<InstanceKey>,
    /// Where it is.
    pub phase: Phase,
    /// How many run the new spec.
    pub updated: u32,
    /// Of how many.
    pub total: u32,
}

impl Instance {
    /// Whether it does its work: it has a place, runs what it may, is ready and has been for long enough.
    pub fn is_available(&self, min_ready: Millis, now: Millis) -> bool {
        let Some(seen) = self.seen else { return false };
        self.is_assigned
            && seen.is_running
            && seen.hash == Some(self.released)
            && seen.ready_since.is_some_and(|since| now.saturating_sub(since) >= min_ready)
    }

    /// Whether it is known to have nothing to lose: it does not work, or runs the target already, or was to run something
    /// else for which no place was found.
    fn is_free(&self, target: Digest) -> bool {
        let Some(seen) = self.seen else { return false };
        let is_given_up = !self.is_assigned && seen.hash != Some(self.released);
        !seen.is_running || seen.ready_since.is_none() || seen.hash == Some(target) || is_given_up
    }

    /// Whether a suspension keeps it from the target.
    fn is_kept_from(&self, target: Digest) -> bool {
        let runs_it = self.seen.is_some_and(|seen| seen.hash == Some(target));
        self.is_frozen && !(self.released == target && runs_it)
    }
}

/// Returns what is released now, and remembers why it stopped.
pub fn rollout(rolling: &Rolling<'_>, memory: &mut Memory, now: Millis) -> Decision {
    if memory.target != Some(rolling.target) {
        // Another spec is another rollout: what stopped the last one is over.
        *memory = Memory { target: Some(rolling.target), from: memory.target, ..Memory::default() };
    }
    let settings = &rolling.settings;
    let is_ready = |instance: &&Instance| {
        let seen = instance.seen.filter(|seen| seen.hash == Some(rolling.target));
        instance.released == rolling.target && seen.is_some_and(|seen| seen.ready_since.is_some())
    };
    let ready: BTreeSet<InstanceKey> =
        rolling.instances.iter().filter(is_ready).map(|instance| instance.key.clone()).collect();
    let all_ready = count(ready.iter()) == rolling.replicas;
    memory.proven.retain(|key| key.ordinal < rolling.replicas);
    memory.proven.extend(ready);
    if all_ready {
        // Nothing waits and nothing fails: there is nothing left to hold back.
        memory.hold = None;
        memory.is_done = true;
    }
    // What is frozen has no chance to become ready; whether it fails is looked at before anything else is released.
    if memory.hold.is_none() && settings.auto_hold && !rolling.is_frozen {
        let proven = &memory.proven;
        memory.hold = rolling.instances.iter().find_map(|instance| failure(rolling, instance, proven, now));
    }
    let is_updated = |instance: &Instance| instance.released == rolling.target;
    let mut decision = Decision {
        release: Vec::new(),
        phase: Phase::Running,
        updated: count(rolling.instances.iter().filter(|instance| {
            is_updated(instance) && instance.seen.is_some_and(|seen| seen.hash == Some(rolling.target))
        })),
        total: rolling.replicas,
    };
    let waiting: Vec<&Instance> = rolling.instances.iter().filter(|instance| !is_updated(instance)).collect();
    memory.is_done &= waiting.is_empty();
    if memory.hold.is_some() {
        decision.phase = Phase::Held;
    } else if memory.is_done {
        decision.phase = Phase::Done;
    } else if settings.pause || rolling.is_frozen {
        decision.phase = Phase::Paused;
    }
    if decision.phase != Phase::Running {
        return decision;
    }
    release(rolling, &waiting, &mut decision, now);
    decision
}

fn release(rolling: &Rolling<'_>, waiting: &[&Instance], decision: &mut Decision, now: Millis) {
    let settings = &rolling.settings;
    let min_ready = seconds(settings.min_ready_seconds);
    let is_available = |instance: &Instance| instance.is_available(min_ready, now);
    let missing = rolling.replicas.saturating_sub(count(rolling.instances.iter()));
    let mut away = missing + count(rolling.instances.iter().filter(|instance| !is_available(instance)));
    // What a suspension keeps as it is would only count as away.
    let waiting = || waiting.iter().filter(|instance| !instance.is_frozen);
    // What has nothing to lose costs nothing: it is away already.
    for instance in waiting().filter(|instance| instance.is_free(rolling.target)) {
        decision.release.push(instance.key.clone());
    }
    // Nobody waits for a canary that is suspended: the next one goes in its place.
    let canaries = rolling.instances.iter().fold(settings.canary, |end, instance| {
        let is_kept = instance.key.ordinal < end && instance.is_kept_from(rolling.target);
        end.saturating_add(u32::from(is_kept))
    });
    let canaries_done = rolling
        .instances
        .iter()
        .filter(|instance| instance.key.ordinal < canaries && !instance.is_kept_from(rolling.target))
        .all(|instance| instance.released == rolling.target && is_available(instance));
    let most = settings.max_unavailable.of(rolling.replicas);
    for instance in waiting().filter(|instance| !instance.is_free(rolling.target)) {
        let is_canary = instance.key.ordinal < canaries;
        // Of a silent worker nobody knows: it is not touched until it speaks.
        let may_go = instance.seen.is_some() && (is_canary || canaries_done);
        if !may_go {
            continue;
        }
        if away >= most {
            break;
        }
        away += u32::from(is_available(instance));
        decision.release.push(instance.key.clone());
    }
    decision.release.sort();
}

/// Returns whether an instance of the new spec fails.
fn failure(
    rolling: &Rolling<'_>,
    instance: &Instance,
    proven: &BTreeSet<InstanceKey>,
    now: Millis,
) -> Option<Hold> {
    let seen = instance.seen?;
    if instance.released != rolling.target {
        return None;
    }
    let is_on_target = seen.hash == Some(rolling.target);
    if is_on_target && seen.exits >= CRASH_LOOP && seen.ready_since.is_none() {
        return Some(Hold { instance: instance.key.clone(), code: Code::CrashLoop });
    }
    let deadline = seconds(rolling.settings.progress_deadline_seconds);
    let is_late = now.saturating_sub(instance.released_at) > deadline;
    (is_late && !instance.is_frozen && !proven.contains(&instance.key) && instance.is_assigned)
        .then(|| Hold { instance: instance.key.clone(), code: Code::NotReady })
}

fn seconds(seconds: u32) -> Millis {
    Millis::from(seconds) * 1000
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

/// What becomes of the copies of an instance that moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handover {
    /// Both run until the new one is ready.
    Overlap,
    /// The old one goes first; the new one waits until that is confirmed.
    WaitForStop,
    /// The old one may go.
    StopOld,
}

/// Returns what becomes of a leaving copy.
///
/// `stops_first` is of singletons and instances with volumes. `old_is_gone` is what the leaving worker says, or that it
/// is lost, which is long after its lease ended.
pub fn handover(stops_first: bool, new_is_ready: bool, old_is_gone: bool) -> Handover {
    if old_is_gone || (new_is_ready && !stops_first) {
        Handover::StopOld
    } else if stops_first {
        Handover::WaitForStop
    } else {
        Handover::Overlap
    }
}

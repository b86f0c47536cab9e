//! Which worker runs which instance: a pure function of what is wanted, the workers, and where things are.
//!
//! ```text
//! VMs ─┐                        keep pass, worker by worker     place pass, by priority and size
//! workers ─▶ Scheduler (rows) ─▶ what may stay stays ──────────▶ the rest goes where it fits best ─▶ Schedule
//! previous ─┘                   (only workers that changed)     (seats by load, HRW among equals)
//! ```
//!
//! Whether an instance may stay depends on its own worker and what is on it, so a change is settled by looking again
//! at the workers it touches; everything without a place is tried again every time. That makes the incremental path the
//! full one with fewer workers to look at: [`schedule`] is a [`Scheduler`] in which everything is new.
//!
//! Nothing that runs is moved for balance or to make room, unless the policy grants it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stead_model::fleet::state::{MoveReason, WorkerView};
use stead_model::fleet::vm::Resources;
use stead_model::fleet::{InstanceKey, VmSpec};
use stead_model::plan::Digest;
use stead_model::{VmId, WorkerName};

mod candidates;
mod filter;
mod hrw;
mod index;
mod place;
#[cfg(test)]
mod properties;
mod spare;
mod table;
#[cfg(test)]
mod tests;

pub(in crate::fleet) use filter::short_of;
pub use filter::{Filter, Refusals};
pub use hrw::hrw;
pub use table::Scheduler;

/// What the scheduler decides over.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// The VMs of all active groups.
    pub vms: &'a [Arc<VmSpec>],
    /// The workers.
    pub workers: &'a [WorkerView],
    /// Where instances are.
    pub previous: &'a BTreeMap<InstanceKey, Previous>,
    /// What may be moved.
    pub policy: SchedulePolicy,
}

/// Where an instance is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Previous {
    /// Its worker; none: nowhere.
    pub worker: Option<WorkerName>,
    /// What it takes there now, if that is not what its VM asks for: the old spec of a rollout.
    pub holds: Option<Resources>,
    /// Where its volumes are.
    pub volumes_on: Option<WorkerName>,
    /// Whether what it may run has volumes that bind it, whatever its VM asks for by now.
    pub is_tied: bool,
}

impl Previous {
    /// Returns an instance on `worker`.
    pub fn on(worker: &WorkerName) -> Self {
        Self { worker: Some(worker.clone()), holds: None, volumes_on: None, is_tied: false }
    }
}

/// What copies of instances that leave take on their workers, by instance.
pub type Copies = BTreeMap<InstanceKey, BTreeMap<WorkerName, Resources>>;

/// What may be moved, and what may not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchedulePolicy {
    /// Whether higher priority takes the place of lower.
    pub preempt: bool,
    /// How many moves for balance are left now.
    pub rebalance: u32,
    /// Whether everything stays as it is.
    pub freeze_all: bool,
    /// VMs that stay as they are.
    pub frozen: BTreeSet<VmId>,
    /// What leaving copies take on their workers.
    pub leaving: BTreeMap<WorkerName, Resources>,
    /// What of that an instance's own copies take: they are in nobody's way who comes back to them.
    pub copies: Copies,
    /// Whether a copy stays where an instance loses its place, and takes what it took until there is another one.
    pub keeps_copies: bool,
    /// Instances that have been somewhere and have no place, if nothing may go elsewhere now; then nothing does.
    pub brake: Option<BTreeSet<InstanceKey>>,
}

impl SchedulePolicy {
    /// Whether what is somewhere stays there, whatever becomes of that place.
    pub fn is_braked(&self) -> bool {
        self.brake.is_some()
    }

    /// Whether nothing of `vm` may be placed, moved or removed.
    pub fn is_frozen(&self, vm: &VmId) -> bool {
        self.freeze_all || self.frozen.contains(vm)
    }
}

/// An instance that goes somewhere.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Move {
    /// Which.
    pub instance: InstanceKey,
    /// From where; none: it was nowhere.
    pub from: Option<WorkerName>,
    /// Where to.
    pub to: WorkerName,
    /// Why.
    pub reason: MoveReason,
}

/// What was decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Where each instance goes or stays.
    pub assign: BTreeMap<InstanceKey, WorkerName>,
    /// Why instances have no place.
    pub unschedulable: BTreeMap<InstanceKey, Refusals>,
    /// Instances on draining workers that have no other place.
    pub drain_blocked: BTreeSet<InstanceKey>,
    /// What changed.
    pub moves: Vec<Move>,
}

/// Returns where everything goes.
pub fn schedule(wanted: &Wanted<'_>) -> Schedule {
    let mut scheduler = Scheduler::new(wanted.policy.clone());
    for worker in wanted.workers {
        scheduler.set_worker(worker.clone());
    }
    for vm in wanted.vms {
        scheduler.set_vm(Arc::clone(vm));
    }
    for (instance, previous) in wanted.previous {
        scheduler.set_previous(instance, previous);
    }
    let moves = scheduler.settle();
    scheduler.schedule(moves)
}

/// Returns the most that an instance takes by what it may still run beside its target.
pub(in crate::fleet) fn held_beside(runs: &BTreeMap<Digest, Resources>, target: Digest) -> Option<Resources> {
    let others = runs.iter().filter(|(hash, _)| **hash != target);
    others.map(|(_, takes)| *takes).reduce(Resources::larger)
}

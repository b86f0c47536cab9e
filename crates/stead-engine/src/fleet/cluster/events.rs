//! What happened, for the event log.

use serde::Serialize;
use stead_model::fleet::state::{Generation, Hold, Outcome, Publication};
use stead_model::fleet::{CommitId, InstanceKey};
use stead_model::{GroupName, WorkerName};

/// What kind of thing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A publication was judged.
    Verdict,
    /// A generation became active.
    Activated,
    /// A worker was enrolled.
    WorkerJoined,
    /// A worker's state changed.
    WorkerState,
    /// An instance got a worker.
    Placed,
    /// An instance got another worker.
    Moved,
    /// An instance is wanted no more.
    Removed,
    /// An instance may run its new spec.
    Released,
    /// A rollout stopped.
    RolloutHeld,
    /// A rollout is over.
    RolloutDone,
    /// So many workers are silent that nothing goes elsewhere, or that is over.
    Brake,
    /// Something was frozen, or is no more.
    Hold,
    /// A copy that was leaving may go.
    Replaced,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// What kind.
    pub ev: EventKind,
    /// Of which commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<CommitId>,
    /// Of which generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// Of which group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupName>,
    /// Of which instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceKey>,
    /// Of which worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerName>,
    /// Why.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

impl Event {
    /// Returns an event of this kind with nothing else said.
    pub(super) fn new(ev: EventKind, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self { ev, commit: None, generation: None, group: None, instance: None, worker: None, reason }
    }

    pub(super) fn of_worker(ev: EventKind, worker: &WorkerName, reason: &str) -> Self {
        Self { worker: Some(worker.clone()), ..Self::new(ev, reason) }
    }

    pub(super) fn of_instance(
        ev: EventKind,
        key: &InstanceKey,
        worker: Option<&WorkerName>,
        reason: &str,
    ) -> Self {
        Self { instance: Some(key.clone()), worker: worker.cloned(), ..Self::new(ev, reason) }
    }

    pub(super) fn of_verdict(message: &Publication, outcome: Outcome) -> Self {
        Self {
            commit: Some(message.commit.clone()),
            generation: Some(message.generation),
            group: Some(message.group.clone()),
            ..Self::new(EventKind::Verdict, format!("{outcome:?}").to_lowercase())
        }
    }

    pub(super) fn activated(group: &GroupName, generation: &Generation) -> Self {
        Self {
            commit: Some(generation.commit.clone()),
            generation: Some(generation.number),
            group: Some(group.clone()),
            ..Self::new(EventKind::Activated, "")
        }
    }

    pub(super) fn hold(hold: &Hold) -> Self {
        let Hold { id, target, by, reason, .. } = hold;
        Self::new(EventKind::Hold, format!("{id}: {target} by {by}: {reason}"))
    }

    pub(super) fn hold_ended(hold: &Hold) -> Self {
        let Hold { id, target, by, .. } = hold;
        Self::new(EventKind::Hold, format!("{id}: {target} by {by} ended"))
    }
}

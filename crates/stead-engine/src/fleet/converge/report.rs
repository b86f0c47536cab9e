//! What a status says.

use std::collections::BTreeSet;

use serde::{Serialize, Serializer};
use stead_model::fleet::labels::Labels;
use stead_model::fleet::state::{Allocatable, InstanceState};
use stead_model::fleet::vm::{Driver, Resources};
use stead_model::fleet::{Code, CommitId, InstanceKey, Millis};
use stead_model::plan::Digest;
use stead_model::time::Timestamp;
use stead_model::{GroupName, VmId, WorkerName};

use super::super::rollout::Phase;

/// Writes a moment as everybody reads it; 0 is none.
pub(in crate::fleet) fn moment<S: Serializer>(at: &Millis, serializer: S) -> Result<S::Ok, S::Error> {
    let micros = i64::try_from(at.saturating_mul(1000)).unwrap_or(i64::MAX);
    let moment = (*at > 0).then(|| Timestamp::from_micros(micros).to_string());
    moment.serialize(serializer)
}

/// How far a fleet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Everything is as it should be.
    Converged,
    /// It is on its way.
    Converging,
    /// Something needs somebody.
    Degraded,
}

/// The part of a status that the master's state gives; who serves it adds names and times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// How far it is.
    pub state: State,
    /// Of a hundred; 100 only if everything is exact.
    pub convergence_percent: u32,
    /// The newest active generation.
    pub generation: u64,
    /// Its commit.
    pub commit: Option<CommitId>,
    /// The groups.
    pub groups: Vec<GroupStatus>,
    /// How many of what.
    pub counts: Counts,
    /// The workers.
    pub workers: Vec<WorkerStatus>,
    /// The instances.
    pub instances: Vec<InstanceStatus>,
    /// The rollouts.
    pub rollouts: Vec<RolloutStatus>,
    /// Whether so many are silent that nothing goes elsewhere.
    pub brake: BrakeStatus,
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupStatus {
    /// Its name.
    pub group: GroupName,
    /// What is active.
    pub active: Option<ActiveStatus>,
    /// A newer generation that waits, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<HeldStatus>,
    /// Whether new generations wait.
    pub suspended: bool,
    /// What `fleet.yaml` says of VMs and groups that are not there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// What is active of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ActiveStatus {
    /// Its number.
    pub generation: u64,
    /// Its commit.
    pub commit: CommitId,
    /// What it means.
    pub intent_hash: Digest,
    /// What it is.
    pub specs_hash: Digest,
    /// Since when.
    #[serde(serialize_with = "moment")]
    pub since: Millis,
}

/// A generation that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeldStatus {
    /// Its number.
    pub generation: u64,
    /// Its commit.
    pub commit: CommitId,
    /// Why it waits: what the guard says (`empty-set`, `too-many-stops`), `suspended`, for another group that VMs move
    /// from or to (`moves-together`), or `duplicate-id` by now.
    pub code: String,
    /// How many of the group's running instances would stop.
    pub stops: u32,
    /// How many of them there are.
    pub running: u32,
    /// What it would do, and what to do.
    pub message: String,
    /// The line to put into `approve`.
    pub approve: Digest,
}

/// How many of what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Instances that should be.
    pub desired: u32,
    /// Of these, as they should be.
    pub converged: u32,
    /// Of these, on their way.
    pub converging: u32,
    /// Of these, failed.
    pub failed: u32,
    /// Of these, without a place.
    pub unschedulable: u32,
    /// Instances that should not be.
    pub orphans: u32,
}

/// A worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WorkerStatus {
    /// Its name.
    pub id: WorkerName,
    /// What it is.
    pub state: &'static str,
    /// Since when it is there, silent or lost; 0: never.
    #[serde(serialize_with = "moment")]
    pub since: Millis,
    /// The generation it has applied.
    pub seen_generation: u64,
    /// How many instances it has.
    pub instances: u32,
    /// What it offers.
    pub capacity: Option<Allocatable>,
    /// What is placed there.
    pub allocated: Resources,
    /// What is used of it.
    pub used: Resources,
    /// Its labels, as the scheduler sees them.
    pub labels: Labels,
    /// What it can make.
    pub drivers: BTreeSet<Driver>,
    /// What is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// An instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InstanceStatus {
    /// Which.
    pub key: InstanceKey,
    /// Its group.
    pub group: Option<GroupName>,
    /// Its worker.
    pub worker: Option<WorkerName>,
    /// What it should run.
    pub desired_hash: Option<Digest>,
    /// What it runs.
    pub observed_hash: Option<Digest>,
    /// What it is doing.
    pub state: InstanceState,
    /// Whether it is ready.
    pub ready: bool,
    /// How long it has been running.
    pub uptime_ms: Millis,
    /// The generation that released it.
    pub generation: u64,
    /// How often it ended since it was stable.
    pub attempts: u32,
    /// Whether its worker has its newest assignment, and sees something else.
    pub drifted: bool,
    /// Whether it only stays until its replacement is ready.
    pub leaving: bool,
    /// What makes it; `NAME (mapped)` where another driver stands in.
    pub driver: Option<&'static str>,
    /// What is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RolloutStatus {
    /// The VM.
    pub vm: VmId,
    /// Where it came from.
    pub from: Option<Digest>,
    /// Where it goes.
    pub to: Option<Digest>,
    /// How many are there.
    pub updated: u32,
    /// Of how many.
    pub total: u32,
    /// Where it is.
    pub state: Phase,
    /// What is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Whether so many are silent that nothing goes elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BrakeStatus {
    /// Whether.
    pub active: bool,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

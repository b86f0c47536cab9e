//! Why an instance is where it is, and why not elsewhere or not yet.

use serde::Serialize;
use stead_model::fleet::state::MoveReason;
use stead_model::fleet::{Code, CommitId, InstanceKey, Millis};
use stead_model::plan::Digest;
use stead_model::{VmId, WorkerName};

use super::cluster::Cluster;
use super::converge::{REBUILDING, code_of, moment};
use super::schedule::Filter;

#[cfg(test)]
mod tests;

/// Why an instance is where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// Which.
    pub instance: InstanceKey,
    /// Where it is.
    pub worker: Option<WorkerName>,
    /// Why there.
    pub why_here: Option<MoveReason>,
    /// Every worker, the best first.
    pub candidates: Vec<Candidate>,
    /// What it may run.
    pub released: Option<Digest>,
    /// What it should run.
    pub desired: Option<Digest>,
    /// Why it does not yet.
    pub why_not_yet: Option<String>,
    /// What changed it last.
    pub last_changed_by: Option<Change>,
}

/// What changed an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The commit.
    pub commit: Option<CommitId>,
    /// The generation.
    pub generation: u64,
    /// When it was placed or released last.
    #[serde(serialize_with = "moment")]
    pub at: Millis,
}

/// What a worker would be for an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// The worker.
    pub worker: WorkerName,
    /// Whether it would take it.
    pub verdict: CandidateVerdict,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<Filter>,
    /// The same in words: what is wanted, and what there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What it is compared by, the least first: spread, instances of the VM, load, and the weight, highest first.
    pub score: Vec<String>,
}

/// Whether a worker would take an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CandidateVerdict {
    /// It has it.
    Here,
    /// It would.
    Fits,
    /// It would not.
    Refuses,
}

/// Why there is nothing to explain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no instance `{instance}`{}", nearest.as_ref().map(|near| format!("; did you mean `{near}`?")).unwrap_or_default())]
pub struct UnknownInstance {
    /// What was asked for.
    pub instance: InstanceKey,
    /// What is nearest to it.
    pub nearest: Option<InstanceKey>,
}

/// Returns why an instance is where it is.
pub fn explain(cluster: &Cluster, key: &InstanceKey) -> Result<Explanation, UnknownInstance> {
    let spec = cluster.desired_spec(&key.vm).filter(|spec| key.ordinal < spec.replicas);
    let placement = cluster.durable.placements.get(key);
    if spec.is_none() && placement.is_none() {
        return Err(UnknownInstance { instance: key.clone(), nearest: nearest(cluster, key) });
    }
    let desired = spec.and_then(|spec| cluster.target(&spec.id));
    let worker = placement.and_then(|placement| placement.worker.clone());
    let why_not_yet = desired
        .and_then(|desired| code_of(cluster, key, desired, placement))
        .or_else(|| {
            cluster.is_unclaimed(&key.vm).then(|| (Code::WaitingForAssignment, REBUILDING.to_owned()))
        })
        .map(|(code, message)| format!("{code}: {message}"));
    let commit_of = |generation: u64| {
        let stored = cluster.durable.groups.values().find_map(|group| group.stored.get(&generation));
        stored.map(|generation| generation.commit.clone())
    };
    Ok(Explanation {
        instance: key.clone(),
        why_here: placement.filter(|placement| placement.worker.is_some()).map(|placement| placement.reason),
        candidates: cluster.scheduler().candidates(key),
        released: placement.map(|placement| placement.released),
        desired,
        why_not_yet,
        last_changed_by: placement.map(|placement| Change {
            commit: commit_of(placement.generation),
            generation: placement.generation,
            at: placement.since,
        }),
        worker,
    })
}

/// Returns the instance that may have been meant: the same ordinal of a VM that reads alike, or the last of this VM.
fn nearest(cluster: &Cluster, key: &InstanceKey) -> Option<InstanceKey> {
    let last = |vm: &VmId| {
        let spec = cluster.desired_spec(vm).filter(|spec| spec.replicas > 0)?;
        Some(InstanceKey::new(vm, key.ordinal.min(spec.replicas - 1)))
    };
    if let Some(found) = last(&key.vm) {
        return Some(found);
    }
    let ids = cluster.desired().map(|spec| spec.id.as_str());
    let near = stead_model::diagnostic::nearest(key.vm.as_str(), ids)?;
    last(&VmId::parse(near).ok()?)
}

//! What a commit would do, before anybody merges it: the same decisions over a snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use stead_model::fleet::state::{Generation, MoveReason, Outcome, Problem, Publication, Snapshot};
use stead_model::fleet::{CommitId, InstanceKey, VmSpec};
use stead_model::plan::Digest;
use stead_model::{GroupName, VmId, WorkerName};

use super::accept::{Standing, accept};
use super::canon::{intent_hash, specs_hash, vm_hash};
use super::schedule::{Filter, Previous, SchedulePolicy, Wanted, schedule};

#[cfg(test)]
mod tests;

/// What a commit would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The commit.
    pub rev: CommitId,
    /// What the group would be.
    pub specs_hash: Digest,
    /// What the commit would mean for it.
    pub intent_hash: Digest,
    /// Whether bits are known: without a build paths alone are compared.
    pub exact: bool,
    /// The VMs.
    pub vms: Vec<PlannedVm>,
    /// Where everything would be.
    pub assign: BTreeMap<InstanceKey, WorkerName>,
    /// The groups that change.
    pub groups: Vec<GroupName>,
    /// Instances that would be new.
    pub add: Vec<InstanceKey>,
    /// Instances that would go.
    pub remove: Vec<InstanceKey>,
    /// Instances that would be made anew where they are.
    pub replace: Vec<Replacement>,
    /// Instances that would go elsewhere.
    #[serde(rename = "move")]
    pub moves: Vec<PlannedMove>,
    /// Instances without a place.
    pub unschedulable: Vec<Unschedulable>,
    /// Why the publication would wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<Problem>,
    /// How many instances would stay as they are.
    pub unchanged: u32,
}

/// A VM of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedVm {
    /// Its id.
    pub id: VmId,
    /// What it would run.
    pub vm_hash: Digest,
}

/// An instance that would be made anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Replacement {
    /// Which.
    pub instance: InstanceKey,
    /// What it runs.
    pub from: Digest,
    /// What it would run.
    pub to: Digest,
    /// What differs.
    pub fields: Vec<String>,
}

/// An instance that would go elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedMove {
    /// Which.
    pub instance: InstanceKey,
    /// From where.
    pub from: WorkerName,
    /// Where to.
    pub to: WorkerName,
    /// Why.
    pub reason: MoveReason,
}

/// An instance without a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unschedulable {
    /// Which.
    pub instance: InstanceKey,
    /// How many workers refuse it for what.
    pub filters: BTreeMap<Filter, u32>,
    /// The same in words.
    pub message: String,
}

/// What is planned.
#[derive(Clone, Debug)]
pub struct Proposal<'a> {
    /// The commit.
    pub commit: &'a CommitId,
    /// The group.
    pub group: &'a GroupName,
    /// Its VMs.
    pub specs: &'a [Arc<VmSpec>],
}

/// Returns what publishing `proposal` right now would do.
pub fn plan(snapshot: &Snapshot, proposal: &Proposal<'_>) -> Plan {
    let specs_hash = specs_hash(proposal.specs.iter().map(AsRef::as_ref));
    let intent_hash = intent_hash(proposal.commit, proposal.group, &specs_hash);
    let mut desired: BTreeMap<VmId, Arc<VmSpec>> = BTreeMap::new();
    let mut old: BTreeMap<VmId, &VmSpec> = BTreeMap::new();
    for group in &snapshot.groups {
        for spec in &group.specs {
            old.insert(spec.id.clone(), spec);
            if group.group != *proposal.group {
                desired.insert(spec.id.clone(), Arc::new(spec.clone()));
            }
        }
    }
    desired.extend(proposal.specs.iter().map(|spec| (spec.id.clone(), Arc::clone(spec))));
    let held = held(snapshot, proposal, specs_hash, intent_hash);
    let previous: BTreeMap<InstanceKey, Previous> = snapshot
        .placements
        .iter()
        .map(|placement| {
            let volumes_on = (!placement.volumes.is_empty()).then(|| placement.worker.clone());
            (placement.instance.clone(), Previous { volumes_on, ..Previous::on(&placement.worker) })
        })
        .collect();
    let vms: Vec<Arc<VmSpec>> = desired.values().cloned().collect();
    let policy = SchedulePolicy {
        preempt: snapshot.fleet.policy.preempt,
        freeze_all: snapshot.fleet.suspend.all,
        frozen: snapshot.fleet.suspend.vms.clone(),
        ..SchedulePolicy::default()
    };
    let found = schedule(&Wanted { vms: &vms, workers: &snapshot.workers, previous: &previous, policy });
    let mut plan = Plan {
        rev: proposal.commit.clone(),
        specs_hash,
        intent_hash,
        exact: proposal
            .specs
            .iter()
            .all(|spec| spec.artifacts().iter().all(|(_, artifact)| artifact.is_resolved())),
        vms: proposal
            .specs
            .iter()
            .map(|spec| PlannedVm { id: spec.id.clone(), vm_hash: vm_hash(spec) })
            .collect(),
        groups: groups(snapshot, proposal, specs_hash),
        add: Vec::new(),
        remove: Vec::new(),
        replace: Vec::new(),
        moves: Vec::new(),
        unschedulable: Vec::new(),
        held,
        unchanged: 0,
        assign: found.assign,
    };
    plan.vms.sort_by(|a, b| a.id.cmp(&b.id));
    for change in found.moves {
        match change.from {
            None => plan.add.push(change.instance),
            Some(from) => {
                let (instance, to, reason) = (change.instance, change.to, change.reason);
                plan.moves.push(PlannedMove { instance, from, to, reason });
            }
        }
    }
    for (instance, refusals) in found.unschedulable {
        let (filters, message) = (refusals.filters, refusals.text);
        plan.unschedulable.push(Unschedulable { instance, filters, message });
    }
    compare(&mut plan, snapshot, &desired, &old);
    plan
}

/// Adds what stays, goes, and is made anew.
fn compare(
    plan: &mut Plan,
    snapshot: &Snapshot,
    desired: &BTreeMap<VmId, Arc<VmSpec>>,
    old: &BTreeMap<VmId, &VmSpec>,
) {
    let moved: BTreeSet<InstanceKey> = plan.moves.iter().map(|change| change.instance.clone()).collect();
    for placement in &snapshot.placements {
        let key = &placement.instance;
        let wanted = desired.get(&key.vm).filter(|spec| key.ordinal < spec.replicas);
        let Some(spec) = wanted else {
            if !plan.assign.contains_key(key) {
                plan.remove.push(key.clone());
            }
            continue;
        };
        let to = vm_hash(spec);
        let before = old.get(&key.vm);
        let from = placement.vm_hash.or_else(|| before.map(|spec| vm_hash(spec))).unwrap_or(to);
        if from != to && !snapshot.fleet.is_suspended(&key.vm) {
            let fields = before.map(|before| changed_fields(before, spec)).unwrap_or_default();
            plan.replace.push(Replacement { instance: key.clone(), from, to, fields });
        } else if !moved.contains(key) && plan.assign.contains_key(key) {
            plan.unchanged += 1;
        }
    }
    plan.remove.sort();
    plan.replace.sort_by(|a, b| a.instance.cmp(&b.instance));
}

fn groups(snapshot: &Snapshot, proposal: &Proposal<'_>, hash: Digest) -> Vec<GroupName> {
    let active = snapshot.groups.iter().find(|group| group.group == *proposal.group);
    let is_same = active.is_some_and(|active| specs_hash(&active.specs) == hash);
    if is_same { Vec::new() } else { vec![proposal.group.clone()] }
}

/// Returns why the publication would wait for approval.
fn held(snapshot: &Snapshot, proposal: &Proposal<'_>, specs: Digest, intent: Digest) -> Option<Problem> {
    let active = snapshot.groups.iter().find(|group| group.group == *proposal.group);
    let generation = active.map(|group| {
        let specs: Vec<Arc<VmSpec>> = group.specs.iter().cloned().map(Arc::new).collect();
        let hash = specs_hash(specs.iter().map(AsRef::as_ref));
        Generation {
            number: group.generation,
            commit: group.commit.clone(),
            intent_hash: intent_hash(&group.commit, &group.group, &hash),
            specs_hash: hash,
            specs,
            policy: None,
            waits: None,
        }
    });
    let number = generation.as_ref().map_or(1, |generation| generation.number + 1);
    let of_group = |key: &InstanceKey| {
        generation.as_ref().is_some_and(|generation| generation.specs.iter().any(|spec| spec.id == key.vm))
    };
    let keys = snapshot.placements.iter().map(|placement| &placement.instance);
    let running: Vec<InstanceKey> = keys.filter(|key| of_group(key)).cloned().collect();
    let standing = Standing {
        highest: generation.as_ref(),
        active: generation.as_ref(),
        taken: &BTreeMap::new(),
        reserved: Some(number),
        known_specs: None,
        running: &running,
        fleet: &snapshot.fleet,
        is_suspended: snapshot.fleet.group(proposal.group).suspend,
    };
    let message = Publication {
        group: proposal.group.clone(),
        commit: proposal.commit.clone(),
        generation: number,
        intent_hash: intent,
        specs_hash: specs,
        specs: proposal.specs.to_vec(),
        policy: None,
    };
    let verdict = accept(&standing, &message);
    match verdict.outcome {
        Outcome::Held => verdict.problems.into_iter().next(),
        Outcome::Suspended => Some(Problem {
            code: "suspended".to_owned(),
            message: "new generations of this group wait until its suspension ends".to_owned(),
            subject: proposal.group.to_string(),
        }),
        Outcome::Accepted | Outcome::Duplicate | Outcome::Stale | Outcome::Conflict | Outcome::Invalid => {
            None
        }
    }
}

/// Returns the fields in which what two specs run differs: `runtime.kernel`.
pub fn changed_fields(old: &VmSpec, new: &VmSpec) -> Vec<String> {
    let (old, new) = (old.to_json(), new.to_json());
    let mut found = BTreeSet::new();
    for key in ["resources", "runtime", "volumes"] {
        let (a, b) = (&old[key], &new[key]);
        match (a, b) {
            (Value::Object(a), Value::Object(b)) => {
                for field in a.keys().chain(b.keys()) {
                    if a.get(field) != b.get(field) {
                        found.insert(format!("{key}.{field}"));
                    }
                }
            }
            (a, b) => {
                if a != b {
                    found.insert(key.to_owned());
                }
            }
        }
    }
    found.into_iter().collect()
}

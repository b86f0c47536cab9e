//! What a commit would do, before anybody merges it: the same decisions over a snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use stead_model::fleet::state::{
    Generation, MoveReason, Outcome, Problem, Publication, Snapshot, SnapshotPlacement, Verdict, WorkerState,
};
use stead_model::fleet::{CommitId, InstanceKey, VmSpec};
use stead_model::plan::Digest;
use stead_model::{GroupName, VmId, WorkerName};

use super::accept::{Standing, accept};
use super::canon::{intent_hash, specs_hash, vm_hash};
use super::schedule::{Filter, Previous, Schedule, SchedulePolicy, Scheduler, held_beside};

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
    /// Instances that would get a place and have none.
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
    /// What `fleet.yaml` would say of VMs and groups that are not there; for people.
    #[serde(skip)]
    pub notes: Vec<String>,
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

/// Returns what publishing `proposal` right now would do: the steps of a master that has the state of `snapshot`.
pub fn plan(snapshot: &Snapshot, proposal: &Proposal<'_>) -> Plan {
    plan_together(snapshot, proposal, &[])
}

/// Returns what publishing `proposal` together with others of its commit would do; the hashes are those of `proposal`.
pub fn plan_together(snapshot: &Snapshot, proposal: &Proposal<'_>, others: &[Proposal<'_>]) -> Plan {
    let all: Vec<&Proposal<'_>> = std::iter::once(proposal).chain(others).collect();
    let specs_hash = specs_hash(proposal.specs.iter().map(AsRef::as_ref));
    let intent_hash = intent_hash(proposal.commit, proposal.group, &specs_hash);
    let mut desired: BTreeMap<VmId, Arc<VmSpec>> = BTreeMap::new();
    let mut old: BTreeMap<VmId, Arc<VmSpec>> = BTreeMap::new();
    for group in &snapshot.groups {
        for spec in &group.specs {
            let spec = Arc::new(spec.clone());
            if all.iter().all(|one| *one.group != group.group) {
                desired.insert(spec.id.clone(), Arc::clone(&spec));
            }
            old.insert(spec.id.clone(), spec);
        }
    }
    let specs = || all.iter().flat_map(|one| one.specs);
    desired.extend(specs().map(|spec| (spec.id.clone(), Arc::clone(spec))));
    let held = all.iter().find_map(|one| held(snapshot, one, &all));
    let policy = policy(snapshot);
    let found = settle(snapshot, &policy, &desired, &old);
    let is_built = |spec: &Arc<VmSpec>| spec.artifacts().iter().all(|(_, artifact)| artifact.is_resolved());
    let mut plan = Plan {
        rev: proposal.commit.clone(),
        specs_hash,
        intent_hash,
        exact: specs().all(is_built),
        vms: specs().map(|spec| PlannedVm { id: spec.id.clone(), vm_hash: vm_hash(spec) }).collect(),
        groups: all.iter().filter(|one| is_changed(snapshot, one)).map(|one| one.group.clone()).collect(),
        add: Vec::new(),
        remove: Vec::new(),
        replace: Vec::new(),
        moves: Vec::new(),
        unschedulable: Vec::new(),
        held,
        unchanged: 0,
        notes: Vec::new(),
        assign: found.assign,
    };
    plan.vms.sort_by(|a, b| a.id.cmp(&b.id));
    plan.groups.sort();
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
    compare(&mut plan, snapshot, &policy, &desired, &old);
    plan
}

/// Returns everything for which a master that has the state of `snapshot` would refuse these groups of one commit. What is
/// not built yet is none of it: a plan can do without bits.
pub fn refusals(snapshot: &Snapshot, proposals: &[Proposal<'_>]) -> Vec<Problem> {
    let all: Vec<&Proposal<'_>> = proposals.iter().collect();
    let mut found = Vec::new();
    for proposal in proposals {
        let staying = snapshot.groups.iter().filter(|group| all.iter().all(|one| *one.group != group.group));
        let staying =
            staying.flat_map(|group| group.specs.iter().map(|spec| (spec.id.clone(), group.group.clone())));
        // Of two groups that get the same VM one is refused.
        let others = all.iter().take_while(|one| one.group != proposal.group);
        let others =
            others.flat_map(|one| one.specs.iter().map(|spec| (spec.id.clone(), (*one.group).clone())));
        let verdict = verdict(snapshot, proposal, &staying.chain(others).collect(), &[]);
        if verdict.outcome == Outcome::Invalid {
            found.extend(verdict.problems.into_iter().filter(|problem| problem.code != "not-built"));
        }
    }
    found
}

/// Returns what may be moved now.
fn policy(snapshot: &Snapshot) -> SchedulePolicy {
    let (fleet, now) = (&snapshot.fleet, &snapshot.now);
    SchedulePolicy {
        preempt: fleet.policy.preempt && !now.brake,
        rebalance: if now.brake { 0 } else { fleet.policy.rebalance.saturating_sub(now.rebalanced) },
        freeze_all: fleet.suspend.all,
        frozen: fleet.suspend.vms.union(&now.held_vms).cloned().collect(),
        leaving: now.leaving.clone(),
        copies: now.copies.clone(),
        keeps_copies: true,
        brake: now.brake.then(|| now.homeless.keys().cloned().collect()),
    }
}

/// Settles where everything goes, from where it is with the old specs to where it would be with the new ones.
fn settle(
    snapshot: &Snapshot,
    policy: &SchedulePolicy,
    desired: &BTreeMap<VmId, Arc<VmSpec>>,
    old: &BTreeMap<VmId, Arc<VmSpec>>,
) -> Schedule {
    let mut scheduler = Scheduler::new(policy.clone());
    snapshot.workers.iter().cloned().for_each(|worker| scheduler.set_worker(worker));
    old.values().cloned().for_each(|spec| scheduler.set_vm(spec));
    for placement in &snapshot.placements {
        scheduler.set_previous(&placement.instance, &previous_of(placement));
    }
    for (key, homeless) in &snapshot.now.homeless {
        let (volumes_on, is_tied) = (homeless.volumes_on.clone(), homeless.tied);
        scheduler.set_previous(key, &Previous { worker: None, holds: None, volumes_on, is_tied });
    }
    old.keys().filter(|vm| !desired.contains_key(*vm)).for_each(|vm| scheduler.remove_vm(vm));
    desired.values().cloned().for_each(|spec| scheduler.set_vm(spec));
    // What is frozen is somewhere though nobody wanted it any more.
    for placement in snapshot.placements.iter().filter(|one| !old.contains_key(&one.instance.vm)) {
        scheduler.set_previous(&placement.instance, &previous_of(placement));
    }
    snapshot.now.volumes.iter().for_each(|(key, worker)| scheduler.set_home(key, worker));
    let placed = snapshot.placements.iter().map(|placement| (&placement.instance, placement.vm_hash));
    let homeless = snapshot.now.homeless.iter().map(|(key, homeless)| (key, Some(homeless.vm_hash)));
    // Of what was removed a worker may still have a copy.
    let removed = snapshot.now.runs.keys().map(|key| (key, None));
    let known: BTreeMap<&InstanceKey, Option<Digest>> = removed.chain(placed).chain(homeless).collect();
    for (key, released) in known {
        let Some(target) = desired.get(&key.vm).map(|spec| vm_hash(spec)) else { continue };
        let holds = match (snapshot.now.runs.get(key), old.get(&key.vm)) {
            (Some(runs), _) => held_beside(runs, target),
            (None, Some(old)) => {
                let runs = released.unwrap_or_else(|| vm_hash(old));
                (runs != target).then_some(old.resources)
            }
            (None, None) => None,
        };
        scheduler.set_holds(key, holds);
    }
    let moves = scheduler.settle();
    scheduler.schedule(moves)
}

fn previous_of(placement: &SnapshotPlacement) -> Previous {
    let is_tied = !placement.volumes.is_empty();
    let volumes_on = is_tied.then(|| placement.worker.clone());
    Previous { volumes_on, is_tied, ..Previous::on(&placement.worker) }
}

/// Adds what stays, goes, and is made anew.
fn compare(
    plan: &mut Plan,
    snapshot: &Snapshot,
    policy: &SchedulePolicy,
    desired: &BTreeMap<VmId, Arc<VmSpec>>,
    old: &BTreeMap<VmId, Arc<VmSpec>>,
) {
    let moved = plan.moves.iter().map(|change| &change.instance);
    let moved: BTreeSet<InstanceKey> = moved.chain(&plan.add).cloned().collect();
    let suspended: BTreeSet<&WorkerName> = snapshot
        .workers
        .iter()
        .filter(|worker| worker.state == WorkerState::Suspended)
        .map(|worker| &worker.id)
        .collect();
    let placed = snapshot.placements.iter().map(|placement| (&placement.instance, placement.vm_hash));
    let homeless = snapshot.now.homeless.iter().map(|(key, homeless)| (key, Some(homeless.vm_hash)));
    for (key, runs) in placed.chain(homeless) {
        let is_frozen = policy.is_frozen(&key.vm);
        let wanted = desired.get(&key.vm).filter(|spec| key.ordinal < spec.replicas);
        let place = plan.assign.get(key);
        let Some(spec) = wanted else {
            if place.is_none() && !is_frozen {
                plan.remove.push(key.clone());
            }
            continue;
        };
        let to = vm_hash(spec);
        let before = old.get(&key.vm);
        let from = runs.or_else(|| before.map(|spec| vm_hash(spec))).unwrap_or(to);
        // A rollout that is paused or stopped at this very spec replaces nothing, nor does a suspended worker; what has no
        // place waits for one.
        let is_stopped = spec.rollout.pause || snapshot.now.held_rollouts.get(&key.vm) == Some(&to);
        let stays = is_frozen || is_stopped || place.is_none_or(|worker| suspended.contains(worker));
        if from != to && !stays {
            // What only waited runs something that is not active any more.
            let ran = snapshot.now.specs.get(&key.vm).and_then(|specs| specs.get(&from));
            let fields = match (ran, before) {
                (Some(ran), _) => changed_between(ran, &spec.to_json()),
                (None, Some(before)) => changed_fields(before, spec),
                (None, None) => Vec::new(),
            };
            plan.replace.push(Replacement { instance: key.clone(), from, to, fields });
        } else if !moved.contains(key) && place.is_some() {
            plan.unchanged += 1;
        }
    }
    plan.remove.sort();
    plan.replace.sort_by(|a, b| a.instance.cmp(&b.instance));
}

/// Whether a group would be another than it is.
fn is_changed(snapshot: &Snapshot, proposal: &Proposal<'_>) -> bool {
    let active = snapshot.groups.iter().find(|group| group.group == *proposal.group);
    let hash = specs_hash(proposal.specs.iter().map(AsRef::as_ref));
    active.is_none_or(|active| specs_hash(&active.specs) != hash)
}

/// Returns what a master would say of the publication; `taken` is which other group has which VM, `together` what is
/// published with it.
fn verdict(
    snapshot: &Snapshot,
    proposal: &Proposal<'_>,
    taken: &BTreeMap<VmId, GroupName>,
    together: &[&Proposal<'_>],
) -> Verdict {
    let specs = specs_hash(proposal.specs.iter().map(AsRef::as_ref));
    let intent = intent_hash(proposal.commit, proposal.group, &specs);
    let others = together.iter().filter(|one| one.group != proposal.group);
    let elsewhere: Vec<Arc<VmSpec>> = others.flat_map(|one| one.specs.iter().cloned()).collect();
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
    let leaving = snapshot.now.homeless.iter().filter(|(_, homeless)| !homeless.leaving.is_empty());
    let keys = keys.chain(leaving.map(|(key, _)| key));
    let running: Vec<InstanceKey> = keys.filter(|key| of_group(key)).cloned().collect();
    let standing = Standing {
        highest: generation.as_ref(),
        active: generation.as_ref(),
        taken,
        reserved: Some(number),
        known_specs: None,
        running: &running,
        elsewhere: &elsewhere,
        fleet: &snapshot.fleet,
        is_suspended: snapshot.fleet.group(proposal.group).suspend
            || snapshot.now.held_groups.contains(proposal.group),
    };
    let message = Publication {
        group: proposal.group.clone(),
        commit: proposal.commit.clone(),
        generation: number,
        intent_hash: intent,
        specs_hash: specs,
        specs: proposal.specs.to_vec(),
        policy: None,
        broken: Vec::new(),
    };
    accept(&standing, &message)
}

/// Returns why the publication would wait for approval.
fn held(snapshot: &Snapshot, proposal: &Proposal<'_>, together: &[&Proposal<'_>]) -> Option<Problem> {
    let verdict = verdict(snapshot, proposal, &BTreeMap::new(), together);
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
    changed_between(&old.to_json(), &new.to_json())
}

fn changed_between(old: &Value, new: &Value) -> Vec<String> {
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

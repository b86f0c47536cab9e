//! What a commit would do, and what it then does.

use stead_model::fleet::state::{SnapshotGroup, SnapshotPlacement, WorkerState};

use super::*;
use crate::fleet::testing::{Dice, any_vms, any_workers, vm, worker, worker_name};

fn commit() -> CommitId {
    CommitId::parse(&"c".repeat(40)).unwrap()
}

fn snapshot(specs: Vec<VmSpec>, places: &[(&str, &str)]) -> Snapshot {
    let hash = |key: &InstanceKey| specs.iter().find(|spec| spec.id == key.vm).map(vm_hash);
    let placements = places
        .iter()
        .map(|(key, worker)| {
            let instance = InstanceKey::parse(key).unwrap();
            let vm_hash = hash(&instance);
            SnapshotPlacement { instance, worker: worker_name(worker), vm_hash, volumes: vec![] }
        })
        .collect();
    let group = SnapshotGroup { group: GroupName::default_group(), generation: 3, commit: commit(), specs };
    let workers = ["w1", "w2"].map(|name| worker(name, 2000, 2048, &[])).into();
    Snapshot { workers, placements, groups: vec![group], ..Snapshot::default() }
}

fn of(snapshot: &Snapshot, specs: Vec<VmSpec>) -> Plan {
    let specs: Vec<Arc<VmSpec>> = specs.into_iter().map(Arc::new).collect();
    let (commit, group) = (commit(), GroupName::default_group());
    plan(snapshot, &Proposal { commit: &commit, group: &group, specs: &specs })
}

/// Case 21: what is added, removed, replaced, and what has no place.
#[test]
fn a_plan_says_everything_that_would_change() {
    let before = snapshot(
        vec![vm("a", 1, 500, 512), vm("b", 1, 500, 512), vm("c", 1, 500, 512)],
        &[("a/0", "w1"), ("b/0", "w2"), ("c/0", "w2")],
    );
    let mut changed = vm("a", 1, 500, 512);
    changed.runtime.argv = vec!["new".to_owned()];
    let found = of(&before, vec![changed, vm("b", 2, 500, 512), vm("huge", 1, 500, 9999)]);
    assert_eq!(found.replace[0].fields, ["runtime.argv"]);
    let names = |keys: &[InstanceKey]| keys.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!((names(&found.add), names(&found.remove)), (vec!["b/1".to_owned()], vec!["c/0".to_owned()]));
    assert_eq!(found.unschedulable[0].message, "2 workers: 2 memory short by 8463 MiB");
    assert_eq!((found.unchanged, found.held.is_some(), found.groups.len()), (1, false, 1));
    let same = of(&before, before.groups[0].specs.clone());
    assert_eq!((same.unchanged, same.groups.len(), same.exact), (3, 0, true));
    let empty = of(&before, vec![]);
    assert_eq!(empty.held.map(|problem| problem.code).as_deref(), Some("empty-set"));
    let json = serde_json::to_value(&found).unwrap();
    for key in [
        "rev",
        "specsHash",
        "intentHash",
        "vms",
        "assign",
        "groups",
        "add",
        "remove",
        "replace",
        "move",
        "unschedulable",
        "unchanged",
        "exact",
    ] {
        assert!(json.get(key).is_some(), "{key}");
    }
}

/// Case 21: the actions of a plan are those of the schedule that follows; 10,000 random fleets.
#[test]
fn a_plan_accounts_for_every_instance() {
    for seed in 0..10_000 {
        let mut dice = Dice::new(seed);
        let mut workers = any_workers(&mut dice);
        workers.iter_mut().for_each(|worker| worker.state = WorkerState::Ready);
        let old: Vec<VmSpec> =
            any_vms(&mut dice).iter().map(|vm| VmSpec { volumes: vec![], ..VmSpec::clone(vm) }).collect();
        let new: Vec<VmSpec> =
            any_vms(&mut dice).iter().map(|vm| VmSpec { volumes: vec![], ..VmSpec::clone(vm) }).collect();
        let group = SnapshotGroup {
            group: GroupName::default_group(),
            generation: 1,
            commit: commit(),
            specs: vec![],
        };
        let mut state = Snapshot { workers, groups: vec![group], ..Snapshot::default() };
        let first = of(&state, old.clone());
        state.groups[0].specs = old;
        state.placements = first
            .assign
            .iter()
            .map(|(key, worker)| SnapshotPlacement {
                instance: key.clone(),
                worker: worker.clone(),
                vm_hash: None,
                volumes: vec![],
            })
            .collect();
        let found = of(&state, new.clone());
        let wanted: usize = new.iter().map(|spec| spec.replicas as usize).sum();
        assert_eq!(found.assign.len() + found.unschedulable.len(), wanted, "seed {seed}");
        for placement in &state.placements {
            let key = &placement.instance;
            let stays = found.assign.get(key) == Some(&placement.worker);
            let is_named = found.remove.contains(key)
                || found.moves.iter().any(|change| change.instance == *key)
                || found.unschedulable.iter().any(|entry| entry.instance == *key);
            assert_eq!(stays, !is_named, "seed {seed}: {key}");
        }
        for key in &found.add {
            assert!(state.placements.iter().all(|placement| placement.instance != *key), "seed {seed}");
        }
    }
}

/// A snapshot is read back as it was written.
#[test]
fn snapshots_go_both_ways() {
    let before = snapshot(vec![vm("a", 1, 500, 512)], &[("a/0", "w1")]);
    let text = before.to_json().to_string();
    assert_eq!(Snapshot::read("s.json", &text).unwrap(), before);
    let small = r#"{"schema": 1, "workers": [{"id": "w1", "state": "ready", "allocatable": {"cpuMilli": 1, "memMiB": 1}}]}"#;
    assert_eq!(Snapshot::read("s.json", small).unwrap().workers[0].drivers.len(), 4);
    assert!(Snapshot::read("s.json", r#"{"schema": 2}"#).is_err());
}

//! What a commit would do, and what it then does.

use stead_model::fleet::FleetFile;
use stead_model::fleet::state::{
    Hold, HoldTarget, InstanceState, Seen, SnapshotGroup, SnapshotNow, SnapshotPlacement, WorkerState,
};

use super::*;
use crate::fleet::cluster::tests::{heartbeat, policy as fleet_yaml, publication};
use crate::fleet::cluster::{Cluster, Durable, EventKind};
use crate::fleet::testing::{Dice, any_vms, any_workers, vm, vm_id, worker, worker_name};

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

/// What a master of a random fleet goes through before somebody plans.
struct Past {
    cluster: Cluster,
    now: u64,
    number: u64,
    silent: u64,
}

const NAMES: [&str; 4] = ["w0", "w1", "w2", "w3"];

impl Past {
    fn new(dice: &mut Dice) -> Self {
        let cluster = Cluster::resume(Durable::default(), 1, 0);
        let mut past = Self { cluster, now: 1000, number: 0, silent: 0 };
        past.beat();
        past.publish(dice);
        for _ in 0..dice.below(6) {
            match dice.below(5) {
                0 => past.publish(dice),
                1 => past.set_policy(dice),
                2 => past.hold(dice),
                3 => past.silent = if dice.one_in(2) { dice.below(5) } else { 0 },
                _ => {}
            }
            past.now += [1000, 20_000, 70_000][usize::try_from(dice.below(3)).unwrap()];
            past.beat();
        }
        past
    }

    /// Has every worker that is heard do as it is told and say so.
    fn beat(&mut self) {
        for (index, name) in (0_u64..).zip(NAMES) {
            if index < self.silent {
                continue;
            }
            let assignment = self.cluster.assignment(&worker_name(name));
            let assigned = assignment.iter().flat_map(|assignment| &assignment.instances);
            let seen = assigned.map(|assigned| Seen {
                key: assigned.instance.clone(),
                vm_hash: Some(assigned.vm_hash),
                state: InstanceState::Running,
                ready: true,
                uptime_ms: 60_000,
                attempts: 0,
                code: None,
                detail: String::new(),
                group: None,
                takes: Default::default(),
            });
            let disk = ["ssd", "hdd"][usize::from(index % 2 == 0)];
            let mut heartbeat = heartbeat(name, self.now, disk, seen.collect());
            heartbeat.seen_revision = assignment.as_ref().map_or(0, |assignment| assignment.revision);
            heartbeat.facts.as_mut().unwrap().capacity.mem_mib = 1024 * (1 + index);
            self.cluster.heartbeat(&heartbeat, self.now);
        }
        self.cluster.tick(self.now);
    }

    fn publish(&mut self, dice: &mut Dice) {
        self.number += 1;
        let specs = any_specs(dice);
        let message = publication(&mut self.cluster, self.number, &specs);
        self.cluster.publish(&message, self.now);
        self.cluster.tick(self.now);
    }

    fn set_policy(&mut self, dice: &mut Dice) {
        self.number += 1;
        let mut fleet = FleetFile::default();
        for name in NAMES {
            let entry = fleet.workers.entry(worker_name(name)).or_default();
            entry.drain = dice.one_in(6);
            entry.cordon = dice.one_in(6);
            entry.suspend = dice.one_in(8);
            entry.reserve.mem_mib = 512 * dice.below(2);
        }
        fleet.suspend.all = dice.one_in(12);
        fleet.suspend.vms.extend(dice.one_in(3).then(|| vm_id("v0")));
        fleet.policy.preempt = dice.one_in(3);
        fleet.policy.rebalance = u32::try_from(dice.below(4)).unwrap();
        fleet.policy.trust_worker_labels = !dice.one_in(6);
        let message = fleet_yaml(&mut self.cluster, self.number, fleet);
        self.cluster.publish(&message, self.now);
        self.cluster.tick(self.now);
    }

    fn hold(&mut self, dice: &mut Dice) {
        let target = match dice.below(3) {
            0 => HoldTarget::Worker(worker_name("w1")),
            1 => HoldTarget::Vm(vm_id(&format!("v{}", dice.below(3)))),
            _ => HoldTarget::Group(GroupName::default_group()),
        };
        let until = self.now + 100_000;
        let (id, by, reason) = (format!("h{}", self.now), String::new(), String::new());
        self.cluster.hold(Hold { id, target, until, by, reason });
        self.cluster.tick(self.now);
    }
}

fn any_specs(dice: &mut Dice) -> Vec<VmSpec> {
    if dice.one_in(10) {
        return vec![];
    }
    let specs = any_vms(dice);
    specs
        .iter()
        .map(|vm| VmSpec { singleton: vm.replicas == 1 && dice.one_in(3), ..VmSpec::clone(vm) })
        .collect()
}

/// Case 21: what a master does right after is what was planned, and nothing else: with copies that leave, holds, drains,
/// suspensions, the brake, moves for balance and rollouts on their way.
#[test]
fn a_publication_does_what_was_planned() {
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in 0..600 {
        let mut dice = Dice::new(seed);
        let mut past = Past::new(&mut dice);
        // As a file has it: nothing of it may be lost on the way.
        let snapshot = past.cluster.snapshot(past.now).to_json().to_string();
        let snapshot = Snapshot::read("s.json", &snapshot).unwrap();
        let specs = any_specs(&mut dice);
        let planned = of(&snapshot, specs.clone());
        past.cluster.take_events();
        past.number += 1;
        let message = publication(&mut past.cluster, past.number, &specs);
        let outcome = past.cluster.publish(&message, past.now).outcome;
        let waits = matches!(outcome, Outcome::Held | Outcome::Suspended);
        assert_eq!(planned.held.is_some(), waits, "seed {seed}");
        past.cluster.tick(past.now);
        let events = past.cluster.take_events();
        let done = |kind: EventKind| -> Vec<(InstanceKey, Option<WorkerName>)> {
            let of = events.iter().filter(|event| event.ev == kind);
            of.map(|event| (event.instance.clone().unwrap(), event.worker.clone())).collect()
        };
        if waits {
            *seen.entry("held").or_default() += 1;
            assert!(events.iter().all(|event| event.instance.is_none()), "seed {seed}: {events:?}");
            continue;
        }
        let place = |key: &InstanceKey| (key.clone(), planned.assign.get(key).cloned());
        let added: Vec<_> = planned.add.iter().map(place).collect();
        assert_eq!(done(EventKind::Placed), added, "seed {seed}");
        let moved: Vec<_> =
            planned.moves.iter().map(|change| (change.instance.clone(), Some(change.to.clone()))).collect();
        assert_eq!(done(EventKind::Moved), moved, "seed {seed}");
        let removed: Vec<InstanceKey> = done(EventKind::Removed).into_iter().map(|(key, _)| key).collect();
        assert_eq!(removed, planned.remove, "seed {seed}");
        // Everything else follows as workers come along, and only what was planned.
        let replaced: BTreeSet<&InstanceKey> =
            planned.replace.iter().map(|change| &change.instance).collect();
        let mut released: BTreeSet<InstanceKey> =
            done(EventKind::Released).into_iter().map(|(key, _)| key).collect();
        // What has no place, or nobody hears of, uses up what a rollout may have away.
        let goes_on =
            past.silent == 0 && past.cluster.durable.holds.is_empty() && planned.unschedulable.is_empty();
        if goes_on {
            for _ in 0..40 {
                past.now += 15_000;
                past.beat();
                let events = past.cluster.take_events();
                let more = events.into_iter().filter(|event| event.ev == EventKind::Released);
                released.extend(more.filter_map(|event| event.instance));
            }
            assert_eq!(released.iter().collect::<BTreeSet<_>>(), replaced, "seed {seed}");
            *seen.entry("followed").or_default() += 1;
        } else {
            // What has no place may run something else as soon as it has one, and runs nothing yet.
            let has_place = |key: &InstanceKey| planned.unschedulable.iter().all(|one| one.instance != *key);
            released.retain(|key| has_place(key));
            assert!(released.iter().all(|key| replaced.contains(key)), "seed {seed}");
        }
        let SnapshotNow { held_vms, brake, rebalanced, leaving, homeless, runs, .. } = &snapshot.now;
        for (what, is_seen) in [
            ("hold", !held_vms.is_empty()),
            ("brake", *brake),
            ("rebalanced", *rebalanced > 0),
            ("leaving", !leaving.is_empty()),
            ("homeless", !homeless.is_empty()),
            ("runs", !runs.is_empty()),
            ("balance", planned.moves.iter().any(|change| change.reason == MoveReason::Rebalance)),
            ("move", !planned.moves.is_empty()),
            ("replace", !planned.replace.is_empty()),
            ("unschedulable", !planned.unschedulable.is_empty()),
        ] {
            *seen.entry(what).or_default() += u32::from(is_seen);
        }
    }
    assert!(seen.len() == 12 && seen.values().all(|count| *count > 5), "{seen:?}");
}

/// Section 14: a replacement that only waited for a freeze has the fields in which it differs from what runs.
#[test]
fn what_only_waited_says_what_differs() {
    let (old, mut new) = (vm("a", 1, 100, 64), vm("a", 1, 100, 128));
    new.runtime.argv = vec!["new".to_owned()];
    let mut cluster =
        crate::fleet::cluster::tests::cluster_with(std::slice::from_ref(&old), &[("w1", "ssd")]);
    crate::fleet::cluster::tests::obey(&mut cluster, "w1", 1000);
    let mut fleet = FleetFile::default();
    fleet.suspend.vms.insert(old.id.clone());
    let message = fleet_yaml(&mut cluster, 2, fleet);
    cluster.publish(&message, 2000);
    let message = publication(&mut cluster, 3, std::slice::from_ref(&new));
    cluster.publish(&message, 3000);
    cluster.tick(3000);
    let mut snapshot = cluster.snapshot(3000);
    // As it travels.
    snapshot = Snapshot::read("snapshot", &snapshot.to_json().to_string()).unwrap();
    snapshot.fleet.suspend.vms.clear();
    let specs = [Arc::new(new)];
    let proposal = Proposal { commit: &commit(), group: &GroupName::default_group(), specs: &specs };
    let found = plan(&snapshot, &proposal);
    assert_eq!((found.replace.len(), found.replace[0].from), (1, vm_hash(&old)));
    assert_eq!(found.replace[0].fields, ["resources.memMiB", "runtime.argv"]);
}

/// Sections 3, 14, case 16: what a master would refuse of a commit is known before: one name in two groups of it, in a group
/// that runs, and a VM of another group. What is not built, and a VM that changes its group, are none of it.
#[test]
fn what_a_master_would_refuse_is_known_before() {
    let name = |group: &str| GroupName::parse(group).unwrap();
    let of = |group: &str, id: &str| Arc::new(VmSpec { group: name(group), ..vm(id, 1, 100, 64) });
    let (commit, default, edge) = (commit(), GroupName::default_group(), name("edge"));
    let told = |snapshot: &Snapshot, first: &[Arc<VmSpec>], second: &[Arc<VmSpec>]| {
        let proposals = [
            Proposal { commit: &commit, group: &default, specs: first },
            Proposal { commit: &commit, group: &edge, specs: second },
        ];
        let found = refusals(snapshot, &proposals);
        found.into_iter().map(|problem| format!("{}: {}", problem.code, problem.message)).collect::<Vec<_>>()
    };
    let nobody = Snapshot::default();
    let twice = "duplicate-id: `a` is a VM of group `default` and of group `edge`".to_owned();
    assert_eq!(told(&nobody, &[of("default", "a")], &[of("edge", "a")]), [twice]);
    assert_eq!(
        told(&nobody, &[of("default", "a")], &[of("other", "b")]),
        ["wrong-group: it is of group `other`, and published with `edge`"]
    );
    let running = snapshot(vec![vm("a", 1, 100, 64)], &[("a/0", "w1")]);
    assert_eq!(told(&running, &[], &[of("edge", "a")]), Vec::<String>::new(), "it goes before it comes");
    let alone = [Proposal { commit: &commit, group: &edge, specs: &[of("edge", "a")] }];
    assert_eq!(refusals(&running, &alone)[0].code, "duplicate-id");
    let mut unbuilt = vm("c", 1, 100, 64);
    let path = "/nix/store/nzwi9zybr70kfpbp3s3l07k0xxps0j12-vm-web";
    let path = stead_model::fleet::artifact::StorePath::parse(path).unwrap();
    unbuilt.runtime.artifacts.push(stead_model::fleet::Artifact::Written { path, sub: None });
    assert_eq!(told(&nobody, &[Arc::new(unbuilt)], &[]), Vec::<String>::new());
}

//! A master's state, step by step.

use stead_model::fleet::state::{Allocatable, HoldTarget, InstanceState, Outcome, Publication, Verdict};
use stead_model::fleet::vm::Driver;

use super::*;
use crate::fleet::canon::{intent_hash, policy_hash, specs_hash};
use crate::fleet::converge::{State, status};
use crate::fleet::plan::{Proposal, plan};
use crate::fleet::testing::{requires, vm, worker_name};

mod moves;
mod suspended;
mod volumes;

pub(in crate::fleet) fn commit(number: u64) -> CommitId {
    CommitId::parse(&format!("{number:040x}")).unwrap()
}

pub(in crate::fleet) fn publication(cluster: &mut Cluster, number: u64, specs: &[VmSpec]) -> Publication {
    let group = GroupName::default_group();
    let specs_hash = specs_hash(specs);
    Publication {
        intent_hash: intent_hash(&commit(number), &group, &specs_hash),
        group,
        commit: commit(number),
        generation: cluster.reserve(&commit(number)),
        specs_hash,
        specs: specs.iter().cloned().map(Arc::new).collect(),
        policy: None,
        broken: Vec::new(),
    }
}

pub(in crate::fleet) fn policy(cluster: &mut Cluster, number: u64, fleet: FleetFile) -> Publication {
    let group = GroupName::fleet();
    let specs_hash = policy_hash(&fleet);
    Publication {
        intent_hash: intent_hash(&commit(number), &group, &specs_hash),
        group,
        commit: commit(number),
        generation: cluster.reserve(&commit(number)),
        specs_hash,
        specs: vec![],
        policy: Some(Arc::new(fleet)),
        broken: Vec::new(),
    }
}

pub(in crate::fleet) fn heartbeat(worker: &str, seq: u64, disk: &str, instances: Vec<Seen>) -> Heartbeat {
    Heartbeat {
        worker: worker_name(worker),
        boot_id: String::new(),
        session: 1,
        process: String::new(),
        seq,
        seen_generation: 0,
        seen_revision: 0,
        full: true,
        instances,
        facts: Some(WorkerFacts {
            capacity: Allocatable { cpu_milli: 4000, mem_mib: 4096, disk_mib: None },
            used: Default::default(),
            drivers: [Driver::Sandbox].into(),
            labels: [("disk".to_owned(), disk.to_owned())].into(),
            arch: Default::default(),
            os: "linux".to_owned(),
            spec_version: 1,
            disk_pressure: false,
            nix_version: None,
            notes: Vec::new(),
            foreign: Default::default(),
            mapped: Default::default(),
        }),
    }
}

fn beat(cluster: &mut Cluster, worker: &str, seq: u64, disk: &str, instances: Vec<Seen>, now: Millis) {
    cluster.heartbeat(&heartbeat(worker, seq, disk, instances), now);
}

/// Has a worker do as it is told, and say so.
pub(in crate::fleet) fn obey(cluster: &mut Cluster, worker: &str, now: Millis) {
    let seen = obedient(cluster, worker, 60_000);
    let assignment = cluster.assignment(&worker_name(worker)).unwrap();
    let heartbeat = Heartbeat {
        seen_generation: assignment.generation,
        seen_revision: assignment.revision,
        ..heartbeat(worker, now + 2, "ssd", seen)
    };
    cluster.heartbeat(&heartbeat, now);
}

/// Returns a cluster in which these VMs were published and placed.
pub(in crate::fleet) fn cluster_with(specs: &[VmSpec], workers: &[(&str, &str)]) -> Cluster {
    let mut cluster = Cluster::resume(Durable::default(), 1, 0);
    for (name, disk) in workers {
        beat(&mut cluster, name, 1, disk, vec![], 0);
    }
    let message = publication(&mut cluster, 1, specs);
    assert_eq!(cluster.publish(&message, 0).outcome, Outcome::Accepted);
    cluster.tick(0);
    cluster
}

/// Returns what a worker that does as it is told would report.
fn obedient(cluster: &Cluster, worker: &str, uptime_ms: Millis) -> Vec<Seen> {
    let assignment = cluster.assignment(&worker_name(worker)).unwrap();
    let seen = assignment.instances.iter().map(|assigned| Seen {
        key: assigned.instance.clone(),
        vm_hash: Some(assigned.vm_hash),
        state: InstanceState::Running,
        ready: true,
        uptime_ms,
        attempts: 0,
        code: None,
        detail: String::new(),
        group: Some(GroupName::default_group()),
        takes: Default::default(),
    });
    seen.collect()
}

/// Cases 2, 12: a commit is placed, converges, and one that changes nothing does nothing.
#[test]
fn a_commit_converges_and_one_without_changes_does_nothing() {
    let mut cluster = cluster_with(&[vm("a", 2, 500, 512)], &[("w1", "ssd"), ("w2", "ssd")]);
    assert_eq!(status(&cluster, false).state, State::Converging);
    for worker in ["w1", "w2"] {
        let seen = obedient(&cluster, worker, 20_000);
        beat(&mut cluster, worker, 2, "ssd", seen, 1000);
    }
    cluster.tick(1000);
    let shown = status(&cluster, false);
    assert_eq!((shown.state, shown.convergence_percent, shown.generation), (State::Converged, 100, 1));
    cluster.take_events();
    let before: Vec<Option<u64>> =
        ["w1", "w2"].map(|name| cluster.assignment(&worker_name(name)).map(|a| a.revision)).into();
    let message = publication(&mut cluster, 2, &[vm("a", 2, 500, 512)]);
    assert_eq!(cluster.publish(&message, 2000).outcome, Outcome::Accepted);
    cluster.tick(2000);
    let kinds: Vec<EventKind> = cluster.take_events().iter().map(|event| event.ev).collect();
    assert_eq!(kinds, [EventKind::Verdict, EventKind::Activated]);
    let after: Vec<Option<u64>> =
        ["w1", "w2"].map(|name| cluster.assignment(&worker_name(name)).map(|a| a.revision)).into();
    assert_eq!((before, cluster.generation()), (after, 2));
    assert!(!cluster.is_current(&worker_name("w1"), 1, 1));
}

/// Section 12: a worker's word for what it applied is not believed beyond what anybody can have said.
#[test]
fn numbers_of_workers_are_not_believed() {
    let mut cluster = cluster_with(&[vm("a", 1, 500, 512)], &[("w1", "ssd")]);
    let mut heartbeat = heartbeat("w1", 2, "ssd", vec![]);
    (heartbeat.seen_generation, heartbeat.seen_revision) = (u64::MAX, u64::MAX);
    cluster.heartbeat(&heartbeat, 1000);
    let message = publication(&mut cluster, 2, &[vm("a", 2, 500, 512)]);
    assert_eq!(cluster.publish(&message, 2000).outcome, Outcome::Accepted);
    cluster.tick(2000);
    let assignment = cluster.assignment(&worker_name("w1")).unwrap();
    assert_eq!((assignment.revision >> 32, assignment.instances.len()), (1, 2));
    assert_eq!(status(&cluster, false).workers[0].seen_generation, 0);
}

/// Section 7: what an instance still has under its old spec is nobody else's, however small the new one is.
#[test]
fn a_smaller_spec_frees_nothing_before_it_runs() {
    let mut large = vm("web", 1, 500, 3000);
    large.rollout.pause = true;
    let mut cluster = cluster_with(&[large.clone()], &[("w1", "ssd")]);
    obey(&mut cluster, "w1", 1000);
    cluster.tick(1000);
    let mut small = large;
    small.resources.mem_mib = 100;
    let big = vm("big", 1, 500, 2000);
    let message = publication(&mut cluster, 2, &[big.clone(), small.clone()]);
    assert_eq!(cluster.publish(&message, 2000).outcome, Outcome::Accepted);
    cluster.tick(2000);
    let place = |cluster: &Cluster| cluster.durable.placements.get(&InstanceKey::new(&big.id, 0)).cloned();
    assert_eq!(place(&cluster), None);
    assert_eq!(status(&cluster, false).workers[0].allocated.mem_mib, 3000);
    // A leader that takes over knows it too.
    let mut next = Cluster::resume(cluster.durable.clone(), 2, 3000);
    beat(&mut next, "w1", 1, "ssd", vec![], 3000);
    next.tick(3000);
    assert_eq!(place(&next), None);
    // Released, but not seen to run yet: the old one may still be there.
    small.rollout.pause = false;
    let message = publication(&mut cluster, 3, &[big.clone(), small]);
    assert_eq!(cluster.publish(&message, 40_000).outcome, Outcome::Accepted);
    cluster.tick(40_000);
    cluster.tick(40_001);
    assert_eq!(place(&cluster), None);
    obey(&mut cluster, "w1", 50_000);
    cluster.tick(50_000);
    cluster.tick(50_001);
    assert!(place(&cluster).is_some());
    assert_eq!(status(&cluster, false).workers[0].allocated.mem_mib, 2100);
}

/// Case 16: an id is of one group, also while the other group's generation waits.
#[test]
fn an_id_that_waits_in_another_group_is_taken() {
    let mut cluster = cluster_with(&[vm("a", 1, 500, 512)], &[("w1", "ssd")]);
    let edge = GroupName::parse("edge").unwrap();
    let (by, reason) = ("ann".to_owned(), "looking".to_owned());
    cluster.hold(Hold {
        id: "h1".to_owned(),
        target: HoldTarget::Group(edge.clone()),
        until: 5000,
        by,
        reason,
    });
    let of = |cluster: &mut Cluster, number: u64, group: &GroupName, ids: &[&str]| {
        let specs: Vec<VmSpec> = ids
            .iter()
            .map(|id| {
                let mut spec = vm(id, 1, 500, 512);
                spec.group = group.clone();
                spec
            })
            .collect();
        let message = publication(cluster, number, &specs);
        Publication {
            intent_hash: intent_hash(&message.commit, group, &message.specs_hash),
            group: group.clone(),
            ..message
        }
    };
    let waits = of(&mut cluster, 2, &edge, &["x"]);
    assert_eq!(cluster.publish(&waits, 1000).outcome, Outcome::Suspended);
    let twice = of(&mut cluster, 2, &GroupName::default_group(), &["a", "x"]);
    let verdict = cluster.publish(&twice, 1000);
    assert_eq!((verdict.outcome, verdict.problems[0].code.as_str()), (Outcome::Invalid, "duplicate-id"));
    // With the next commit it may be elsewhere: what waited for it is about to be published anew, or never becomes active.
    let next = of(&mut cluster, 3, &GroupName::default_group(), &["a", "x"]);
    assert_eq!(cluster.publish(&next, 1000).outcome, Outcome::Accepted);
    cluster.tick(6000);
    assert_eq!(cluster.durable.groups[&edge].active, None);
    assert_eq!(cluster.durable.groups[&edge].why.as_ref().unwrap().code, "duplicate-id");
}

/// Section 9: a lease that was granted counts to its end, whatever policy says later.
#[test]
fn a_shorter_policy_takes_no_lease_back() {
    let mut only = vm("only", 1, 500, 512);
    only.singleton = true;
    let mut cluster = cluster_with(&[only.clone()], &[("w1", "ssd"), ("w2", "ssd")]);
    let key = InstanceKey::new(&only.id, 0);
    let from = cluster.durable.placements[&key].worker.clone().unwrap();
    let to = if from.as_str() == "w1" { "w2" } else { "w1" };
    obey(&mut cluster, from.as_str(), 1000);
    let mut fleet = FleetFile::default();
    fleet.policy.liveness.lease = std::time::Duration::from_secs(20);
    fleet.policy.liveness.unknown = std::time::Duration::from_secs(18);
    fleet.policy.liveness.lost = std::time::Duration::from_secs(60);
    let message = policy(&mut cluster, 2, fleet);
    assert_eq!(cluster.publish(&message, 2000).outcome, Outcome::Accepted);
    let runs_at = |cluster: &mut Cluster, now: Millis| {
        obey(cluster, to, now);
        cluster.tick(now);
        cluster.assignment(&worker_name(to)).unwrap().instances.len()
    };
    assert_eq!(runs_at(&mut cluster, 3000), 0);
    assert_eq!(runs_at(&mut cluster, 70_000), 0);
    assert_eq!(cluster.durable.placements[&key].worker, Some(worker_name(to)), "it is given up, and moved");
    assert_eq!(runs_at(&mut cluster, 125_000), 0, "its lease of 120 s runs, and then it is killed");
    assert_eq!(runs_at(&mut cluster, 127_000), 1);
}

/// Sections 9, 13: of what a rebuilt state does not know it is not assumed that it may run twice.
#[test]
fn what_nobody_knows_leaves_a_ghost() {
    let mut cluster = cluster_with(&[vm("a", 1, 500, 512)], &[("w1", "ssd")]);
    let key = InstanceKey::new(&vm("gone", 1, 1, 1).id, 0);
    let known = cluster.durable.placements.values().next().unwrap().clone();
    cluster.durable.placements.insert(key.clone(), Placement { released: Digest([9; 32]), ..known });
    let durable = cluster.durable.clone();
    cluster.restore(durable, 1000);
    cluster.tick(1000);
    assert!(!cluster.durable.placements.contains_key(&key));
    assert_eq!(cluster.durable.ghosts.get(&key), Some(&[worker_name("w1")].into()));
}

/// Sections 9, 12: a worker that was revoked counts for nothing, and is forgotten once its lease is over.
#[test]
fn a_revoked_worker_goes() {
    let names = ["w1", "w2", "w3", "w4"];
    let mut only = vm("only", 1, 500, 512);
    only.singleton = true;
    let specs = [only, vm("web", 4, 500, 512)];
    let mut cluster = cluster_with(&specs, &names.map(|name| (name, "ssd")));
    for name in names {
        obey(&mut cluster, name, 1000);
    }
    cluster.tick(1000);
    let only = InstanceKey::parse("only/0").unwrap();
    let kept = cluster.durable.placements[&only].worker.clone().unwrap();
    let kept = if kept.as_str() == "w1" { "w2" } else { "w1" };
    let gone: BTreeSet<WorkerName> =
        names.into_iter().filter(|name| *name != kept).map(worker_name).collect();
    cluster.dismiss(&gone);
    for now in (2000..=120_000).step_by(2000) {
        obey(&mut cluster, kept, now);
        cluster.tick(now);
    }
    assert_eq!(cluster.presence.brake, None, "those who are left are all there");
    assert_ne!(cluster.durable.placements[&only].worker, Some(worker_name(kept)), "its lease runs");
    for now in (122_000..=160_000).step_by(2000) {
        obey(&mut cluster, kept, now);
        cluster.tick(now);
    }
    assert_eq!(cluster.durable.workers.keys().collect::<Vec<_>>(), [&worker_name(kept)]);
    let shown = status(&cluster, false);
    assert_eq!((shown.state, shown.counts.converged, shown.counts.orphans), (State::Converged, 5, 0));
    // Who joins again under the name counts from the beginning.
    let back = gone.first().unwrap();
    beat(&mut cluster, back.as_str(), 1, "ssd", vec![], 170_000);
    cluster.dismiss(&BTreeSet::new());
    cluster.tick(170_000);
    assert_eq!(cluster.shown_state(back).word(), "ready");
}

/// Section 12: who is revoked and joins again at once begins to count anew.
#[test]
fn a_worker_that_joins_again_counts_anew() {
    let mut cluster = cluster_with(&[vm("a", 1, 500, 512)], &[("w1", "ssd")]);
    let before = Heartbeat { session: 7, ..heartbeat("w1", 9, "ssd", vec![]) };
    cluster.heartbeat(&before, 1000);
    cluster.dismiss(&[worker_name("w1")].into());
    beat(&mut cluster, "w1", 1, "ssd", vec![], 2000);
    cluster.dismiss(&BTreeSet::new());
    cluster.tick(400_000);
    assert_eq!(cluster.ears[&worker_name("w1")].heard.at, Some(2000));
    assert_eq!(cluster.shown_state(&worker_name("w1")).word(), "lost", "and is heard like anybody else");
}

/// F6, section 9: with the brake on nothing that is somewhere goes elsewhere; what was never anywhere is placed.
#[test]
fn with_the_brake_on_only_new_instances_are_placed() {
    let names = ["w1", "w2", "w3", "w4", "w5"];
    let mut cluster = cluster_with(&[vm("web", 10, 100, 64)], &names.map(|name| (name, "ssd")));
    for name in names {
        obey(&mut cluster, name, 1000);
    }
    cluster.tick(1000);
    let before = cluster.durable.placements.clone();
    for now in [30_000, 62_000] {
        for name in ["w1", "w2"] {
            obey(&mut cluster, name, now);
        }
        cluster.tick(now);
    }
    assert!(cluster.presence.brake.is_some());
    let mut fleet = FleetFile::default();
    fleet.workers.entry(worker_name("w1")).or_default().drain = true;
    let message = policy(&mut cluster, 2, fleet);
    assert_eq!(cluster.publish(&message, 62_000).outcome, Outcome::Accepted);
    cluster.tick(62_000);
    assert_eq!(cluster.durable.placements, before, "a drain is a move, too");
    let message = publication(&mut cluster, 3, &[vm("web", 11, 100, 64)]);
    assert_eq!(cluster.publish(&message, 63_000).outcome, Outcome::Accepted);
    cluster.tick(63_000);
    let new = &cluster.durable.placements[&InstanceKey::parse("web/10").unwrap()];
    assert_eq!(new.worker, Some(worker_name("w2")));
    for name in names {
        obey(&mut cluster, name, 64_000);
    }
    cluster.tick(64_000);
    let on_w1 = cluster.durable.placements.values().filter(|place| place.worker == Some(worker_name("w1")));
    assert_eq!((cluster.presence.brake, on_w1.count()), (None, 0), "the brake is off, and the drain goes on");
}

/// Section 8: a rollout that is on hold is so under the next leader, too; only another spec clears it.
#[test]
fn holds_of_rollouts_outlive_a_leader() {
    let mut cluster = cluster_with(&[vm("web", 2, 500, 512)], &[("w1", "ssd")]);
    obey(&mut cluster, "w1", 20_000);
    cluster.tick(20_000);
    assert!(cluster.durable.rollouts.is_empty(), "what is over is not kept");
    let message = publication(&mut cluster, 2, &[vm("web", 2, 500, 256)]);
    assert_eq!(cluster.publish(&message, 40_000).outcome, Outcome::Accepted);
    cluster.tick(40_000);
    let mut seen = obedient(&cluster, "w1", 60_000);
    (seen[0].ready, seen[0].attempts, seen[0].state) = (false, 3, InstanceState::Failed);
    beat(&mut cluster, "w1", 100_000, "ssd", seen.clone(), 50_000);
    cluster.tick(50_000);
    let held = cluster.rollouts[&vm("web", 1, 1, 1).id].memory.clone();
    assert!(held.hold.is_some() && held.from.is_some());
    let mut next = Cluster::resume(cluster.durable.clone(), 2, 60_000);
    seen[0].attempts = 0;
    beat(&mut next, "w1", 1, "ssd", seen, 60_000);
    next.tick(60_000);
    assert_eq!(next.rollouts[&vm("web", 1, 1, 1).id].memory, held);
    assert_eq!(status(&next, false).rollouts[0].state, rollout::Phase::Held);
}

/// Section 18: what one worker says takes a bounded place, and what is not there takes none.
#[test]
fn what_a_worker_says_is_bounded() {
    let mut cluster = cluster_with(&[vm("a", 1, 500, 512)], &[("w1", "ssd")]);
    let template = obedient(&cluster, "w1", 0).remove(0);
    let many = |state: InstanceState, from: u32| -> Vec<Seen> {
        let keys = (from..from + 15_000).map(|ordinal| InstanceKey::new(&vm("x", 1, 1, 1).id, ordinal));
        keys.map(|key| Seen { key, state, ..template.clone() }).collect()
    };
    for (seq, (state, from)) in
        [(InstanceState::Absent, 0), (InstanceState::Running, 0), (InstanceState::Running, 15_000)]
            .into_iter()
            .enumerate()
    {
        let beat = Heartbeat { full: false, ..heartbeat("w1", 2 + seq as u64, "ssd", many(state, from)) };
        cluster.heartbeat(&beat, 1000);
        let seen = cluster.ears[&worker_name("w1")].seen.len();
        assert_eq!(seen, [0, 15_000, MOST_SEEN][seq]);
    }
}

/// Section 5: a commit keeps its number while that is the highest.
#[test]
fn numbers_are_issued_once() {
    let mut cluster = Cluster::resume(Durable::default(), 1, 0);
    assert_eq!([1, 1, 2, 1].map(|number| cluster.reserve(&commit(number))), [1, 1, 2, 3]);
}

/// Section 2: what a worker says of itself counts only where that is trusted; what `fleet.yaml` says of it always does, and
/// so do the labels that nobody gives.
#[test]
fn labels_of_workers_count_where_they_are_trusted() {
    let mut tied = vm("tied", 1, 500, 512);
    tied.selector = vec![requires("disk", "ssd")];
    let mut named = vm("named", 1, 500, 512);
    named.selector = vec![requires("stead/worker", "w1")];
    let mut cluster = cluster_with(&[tied, named], &[("w1", "ssd")]);
    let place = |cluster: &Cluster, key: &str| {
        let placement = &cluster.durable.placements[&InstanceKey::parse(key).unwrap()];
        placement.worker.as_ref().map(ToString::to_string)
    };
    assert_eq!(place(&cluster, "tied/0").as_deref(), Some("w1"));
    beat(&mut cluster, "w2", 1, "ssd", vec![], 0);
    let mut fleet = FleetFile::default();
    fleet.policy.trust_worker_labels = false;
    let publish = |cluster: &mut Cluster, number: u64, fleet: &FleetFile| {
        let message = policy(cluster, number, fleet.clone());
        assert_eq!(cluster.publish(&message, 0).outcome, Outcome::Accepted);
        cluster.tick(0);
        status(cluster, false).workers.into_iter().map(|worker| worker.labels.len()).collect::<Vec<_>>()
    };
    assert_eq!(publish(&mut cluster, 2, &fleet), [0, 0]);
    assert_eq!(place(&cluster, "tied/0"), None, "nobody says that any worker has such a disk");
    assert_eq!(place(&cluster, "named/0").as_deref(), Some("w1"));
    let labels = &mut fleet.workers.entry(worker_name("w2")).or_default().labels;
    labels.insert("disk".to_owned(), "ssd".to_owned());
    assert_eq!(publish(&mut cluster, 3, &fleet), [0, 1]);
    assert_eq!(place(&cluster, "tied/0").as_deref(), Some("w2"));
    assert_eq!(publish(&mut cluster, 4, &FleetFile::default()), [1, 1]);
    assert_eq!(place(&cluster, "tied/0").as_deref(), Some("w2"), "nothing moves back");
}

/// Case 20: holds freeze and end by themselves.
#[test]
fn holds_freeze_and_end() {
    let mut cluster = cluster_with(&[vm("a", 1, 500, 512)], &[("w1", "ssd"), ("w2", "ssd")]);
    for (id, target) in
        [("h1", HoldTarget::Group(GroupName::default_group())), ("h2", HoldTarget::Worker(worker_name("w1")))]
    {
        let (by, reason) = ("ann".to_owned(), "looking".to_owned());
        cluster.hold(Hold { id: id.to_owned(), target, until: 5000, by, reason });
    }
    let message = publication(&mut cluster, 2, &[vm("a", 4, 500, 512)]);
    assert_eq!(cluster.publish(&message, 1000).outcome, Outcome::Suspended);
    cluster.tick(1000);
    assert_eq!((cluster.generation(), status(&cluster, false).state), (1, State::Degraded));
    cluster.tick(5000);
    assert_eq!((cluster.generation(), cluster.durable.holds.len()), (2, 0));
    assert_eq!(cluster.durable.placements.len(), 4);
}

/// Section 6: an approval in `fleet.yaml` activates what was held.
#[test]
fn an_approval_activates_what_was_held() {
    let mut cluster = cluster_with(&[vm("a", 1, 500, 512)], &[("w1", "ssd")]);
    let empty = publication(&mut cluster, 2, &[]);
    assert_eq!(cluster.publish(&empty, 0).outcome, Outcome::Held);
    cluster.tick(0);
    assert_eq!(cluster.durable.placements.len(), 1);
    let mut fleet = FleetFile::default();
    fleet.approve.insert(empty.specs_hash);
    let message = policy(&mut cluster, 3, fleet);
    assert_eq!(cluster.publish(&message, 0).outcome, Outcome::Accepted);
    cluster.tick(0);
    assert_eq!(cluster.durable.placements.len(), 0);
}

/// Sections 9, 13: a leader that takes over restarts and moves nothing, whatever it has not heard yet.
#[test]
fn a_new_leader_changes_nothing() {
    let cluster = cluster_with(&[vm("a", 3, 500, 512)], &[("w1", "ssd"), ("w2", "ssd")]);
    let before = cluster.durable.placements.clone();
    let mut next = Cluster::resume(cluster.durable.clone(), 2, 900_000);
    for now in [900_000, 910_000, 950_000] {
        next.tick(now);
        assert_eq!(next.durable.placements, before);
    }
    let [old, new] = [&cluster, &next].map(|cluster| cluster.assignment(&worker_name("w1")).unwrap());
    assert_eq!(old.instances, new.instances);
    assert!(new.epoch > old.epoch && new.revision > old.revision);
}

/// Section 15: what becomes of an instance names the commit and the generation that it goes back to.
#[test]
fn events_of_instances_name_their_commit() {
    let old = [vm("a", 1, 500, 512), vm("b", 1, 500, 512)];
    let mut cluster = cluster_with(&old, &[("w1", "ssd")]);
    obey(&mut cluster, "w1", 1000);
    cluster.tick(1000);
    cluster.take_events();
    let mut next = vm("a", 1, 500, 512);
    next.runtime.argv = vec!["new".to_owned()];
    let message = publication(&mut cluster, 2, &[next]);
    assert_eq!(cluster.publish(&message, 20_000).outcome, Outcome::Accepted);
    cluster.tick(20_000);
    obey(&mut cluster, "w1", 21_000);
    cluster.tick(21_000);
    let events = cluster.take_events();
    for kind in [EventKind::Removed, EventKind::Released, EventKind::RolloutDone] {
        let event = events.iter().find(|event| event.ev == kind).unwrap_or_else(|| panic!("{kind:?}"));
        assert_eq!((&event.commit, event.generation), (&Some(commit(2)), Some(2)), "{kind:?}");
    }
}

/// Sections 9 and 15: every state of a worker is written down as it comes, and so is the brake, on and off.
#[test]
fn states_of_workers_and_the_brake_are_events() {
    let names = ["w1", "w2", "w3", "w4", "w5"];
    let mut cluster = cluster_with(&[vm("a", 1, 500, 512)], &names.map(|name| (name, "ssd")));
    let told = |cluster: &mut Cluster, kinds: &[EventKind]| -> Vec<String> {
        let events = cluster.take_events().into_iter().filter(|event| kinds.contains(&event.ev));
        let word = |event: Event| {
            format!("{} {}", event.worker.map(|w| w.to_string()).unwrap_or_default(), event.reason)
        };
        events.map(|event| word(event).trim().to_owned()).collect()
    };
    let of_workers = [EventKind::WorkerState];
    let joined = told(&mut cluster, &[EventKind::WorkerJoined]);
    assert_eq!(joined, names, "each is enrolled once");
    told(&mut cluster, &of_workers);
    for (seconds, expected) in [(10, ""), (16, "w1 late"), (61, "w1 unknown"), (301, "w1 lost"), (302, "")] {
        for name in &names[1..] {
            beat(&mut cluster, name, seconds, "ssd", vec![], seconds * 1000);
        }
        cluster.tick(seconds * 1000);
        assert_eq!(told(&mut cluster, &of_workers).join(", "), expected, "{seconds} s");
    }
    beat(&mut cluster, "w1", 303, "ssd", vec![], 303_000);
    cluster.tick(303_000);
    assert_eq!(told(&mut cluster, &of_workers), ["w1 ready"]);
    // Three of five are silent, and one of them comes back.
    for seconds in [330, 370] {
        for name in &names[3..] {
            beat(&mut cluster, name, seconds, "ssd", vec![], seconds * 1000);
        }
        cluster.tick(seconds * 1000);
    }
    assert_eq!(told(&mut cluster, &[EventKind::Brake]).len(), 1, "it is on");
    assert!(status(&cluster, false).brake.active);
    beat(&mut cluster, "w1", 371, "ssd", vec![], 371_000);
    cluster.tick(371_000);
    assert_eq!(told(&mut cluster, &[EventKind::Brake]).len(), 1, "it is off");
    assert!(!status(&cluster, false).brake.active);
}

/// Section 7: what goes elsewhere in the middle of a rollout runs its old spec there, and goes only where that has room.
#[test]
fn what_moves_in_a_rollout_has_room_for_its_old_spec() {
    let large = vm("a", 1, 500, 3_072);
    let mut cluster = cluster_with(std::slice::from_ref(&large), &[("w1", "ssd"), ("w2", "ssd")]);
    let a = InstanceKey::new(&large.id, 0);
    let lost = cluster.durable.placements[&a].worker.clone().unwrap();
    let left = ["w1", "w2"].into_iter().find(|name| *name != lost.as_str()).unwrap();
    obey(&mut cluster, lost.as_str(), 1_000);
    let mut small = vm("a", 1, 500, 512);
    small.rollout.pause = true;
    let message = publication(&mut cluster, 2, &[small, vm("b", 1, 500, 2_048)]);
    assert_eq!(cluster.publish(&message, 2_000).outcome, Outcome::Accepted);
    cluster.tick(2_000);
    for now in (10_000..500_000).step_by(10_000) {
        obey(&mut cluster, left, now);
        cluster.tick(now);
    }
    assert!(cluster.given_up.given_up.contains(&lost));
    assert_eq!(cluster.durable.placements[&a].worker, None, "4096 MiB have no room for 2048 and 3072");
    assert_eq!(cluster.may_use()[&worker_name(left)].mem_mib, 2_048);
    // Once its new spec may run it takes less.
    let message = publication(&mut cluster, 3, &[vm("a", 1, 500, 512), vm("b", 1, 500, 2_048)]);
    assert_eq!(cluster.publish(&message, 500_000).outcome, Outcome::Accepted);
    for now in [500_000, 501_000] {
        obey(&mut cluster, left, now);
        cluster.tick(now);
    }
    assert_eq!(cluster.durable.placements[&a].worker, Some(worker_name(left)));
    assert_eq!(cluster.may_use()[&worker_name(left)].mem_mib, 2_560);
}

/// Section 7: a leader does not know what instances still run that were released before it led. What is larger than before
/// waits until there is room for it in truth.
#[test]
fn a_larger_spec_is_released_once_there_is_room() {
    let specs = |a: u64, b: u64| [vm("a", 1, 500, a), vm("b", 1, 500, b)];
    let mut cluster = cluster_with(&specs(2_048, 1_024), &[("w1", "ssd")]);
    obey(&mut cluster, "w1", 20_000);
    let old = obedient(&cluster, "w1", 60_000);
    let message = publication(&mut cluster, 2, &specs(512, 1_024));
    assert_eq!(cluster.publish(&message, 40_000).outcome, Outcome::Accepted);
    cluster.tick(40_000);
    let mut next = Cluster::resume(cluster.durable.clone(), 2, 50_000);
    let message = publication(&mut next, 3, &specs(512, 3_072));
    assert_eq!(next.publish(&message, 50_000).outcome, Outcome::Accepted);
    next.tick(50_000);
    beat(&mut next, "w1", 100_000, "ssd", old, 60_000);
    next.tick(60_000);
    let b = InstanceKey::parse("b/0").unwrap();
    let takes = |cluster: &Cluster| cluster.may_use()[&worker_name("w1")].mem_mib;
    let released = |cluster: &Cluster| Some(cluster.durable.placements[&b].released) == cluster.target(&b.vm);
    assert_eq!((takes(&next), released(&next)), (3_072, false), "`a` still has 2048 MiB");
    obey(&mut next, "w1", 120_000);
    next.tick(120_000);
    assert_eq!((takes(&next), released(&next)), (3_584, true));
}

/// Section 8: what finds no place for its new spec goes on working where it was, and is not taken away all at once when it
/// comes back there.
#[test]
fn what_has_no_place_is_released_within_the_budget() {
    let specs = |mem: u64| [vm("a", 1, 500, 2_048), vm("b", 2, 500, mem)];
    let mut cluster = cluster_with(&specs(512), &[("w1", "ssd")]);
    obey(&mut cluster, "w1", 1_000);
    cluster.tick(1_000);
    let publish = |cluster: &mut Cluster, number: u64, mem: u64, now: Millis| {
        let message = publication(cluster, number, &specs(mem));
        assert_eq!(cluster.publish(&message, now).outcome, Outcome::Accepted);
        cluster.tick(now);
    };
    let b = |ordinal: u32| InstanceKey::new(&VmId::parse("b").unwrap(), ordinal);
    let placed = |cluster: &Cluster, ordinal: u32| cluster.durable.placements[&b(ordinal)].clone();
    let released = |cluster: &Cluster| {
        let target = cluster.target(&b(0).vm);
        [0, 1].map(|ordinal| Some(placed(cluster, ordinal).released) == target)
    };
    publish(&mut cluster, 2, 3_072, 30_000);
    cluster.tick(31_000);
    for ordinal in [0, 1] {
        assert_eq!(placed(&cluster, ordinal).worker, None, "2048 and 3072 MiB are more than 4096");
        assert_eq!(placed(&cluster, ordinal).leaving, [worker_name("w1")].into());
    }
    assert_eq!(released(&cluster), [false, false], "both still work there, and wait for a place");
    publish(&mut cluster, 3, 600, 40_000);
    cluster.tick(41_000);
    for ordinal in [0, 1] {
        assert_eq!(placed(&cluster, ordinal).worker, Some(worker_name("w1")));
    }
    assert_eq!(released(&cluster), [true, false]);
    for now in [42_000, 60_000] {
        obey(&mut cluster, "w1", now);
        cluster.tick(now);
    }
    assert_eq!(released(&cluster), [true, true]);
}

/// Section 7: what comes back under the name of an instance that was removed finds the old copy, and goes only where that
/// has room; a plan knows it.
#[test]
fn what_comes_back_has_room_for_what_was_removed() {
    let mut cluster = cluster_with(&[vm("a", 1, 500, 3_072)], &[("w1", "ssd")]);
    let a = InstanceKey::parse("a/0").unwrap();
    obey(&mut cluster, "w1", 1_000);
    let publish = |cluster: &mut Cluster, number: u64, specs: &[VmSpec], now: Millis| {
        let message = publication(cluster, number, specs);
        assert_eq!(cluster.publish(&message, now).outcome, Outcome::Accepted);
        cluster.tick(now);
    };
    publish(&mut cluster, 2, &[vm("b", 1, 500, 2_048)], 2_000);
    let both = [vm("a", 1, 500, 512), vm("b", 1, 500, 2_048)];
    let planned = |cluster: &Cluster, now: Millis| {
        let (group, commit) = (GroupName::default_group(), commit(3));
        let specs = both.clone().map(Arc::new);
        plan(&cluster.snapshot(now), &Proposal { commit: &commit, group: &group, specs: &specs }).add
    };
    assert_eq!(planned(&cluster, 3_000), []);
    publish(&mut cluster, 3, &both, 3_000);
    assert!(!cluster.durable.placements.contains_key(&a), "4096 MiB have no room for 2048 and 3072");
    obey(&mut cluster, "w1", 4_000);
    assert_eq!(planned(&cluster, 4_000), std::slice::from_ref(&a));
    cluster.tick(4_000);
    assert_eq!(cluster.durable.placements[&a].worker, Some(worker_name("w1")));
}

/// Section 7: what one publication brings and the next takes away, between two looks, is wanted by nobody.
#[test]
fn what_two_publications_bring_and_take_is_not_placed() {
    let (stays, comes) = (vm("a", 1, 500, 512), vm("b", 1, 500, 512));
    let mut cluster = cluster_with(std::slice::from_ref(&stays), &[("w1", "ssd")]);
    for (number, specs) in [(2, vec![stays.clone(), comes.clone()]), (3, vec![stays.clone()])] {
        let message = publication(&mut cluster, number, &specs);
        assert_eq!(cluster.publish(&message, 1_000).outcome, Outcome::Accepted);
    }
    cluster.tick(1_000);
    let b = InstanceKey::new(&comes.id, 0);
    assert_eq!(cluster.scheduler().place_of(&b), None);
    let message = publication(&mut cluster, 4, &[stays, comes]);
    assert_eq!(cluster.publish(&message, 2_000).outcome, Outcome::Accepted);
    cluster.tick(2_000);
    assert_eq!(cluster.durable.placements[&b].worker, Some(worker_name("w1")));
}

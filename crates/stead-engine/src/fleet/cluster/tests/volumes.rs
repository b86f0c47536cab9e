//! Instances that have to be somewhere: where their volumes are, or where a copy of them still runs.

use stead_model::fleet::state::{MoveReason, Snapshot};
use stead_model::fleet::vm::Retain;

use super::*;
use crate::fleet::testing::volume;

fn key(text: &str) -> InstanceKey {
    InstanceKey::parse(text).unwrap()
}

/// Returns where an instance is.
fn place(cluster: &Cluster, instance: &str) -> Option<String> {
    cluster.durable.placements.get(&key(instance))?.worker.as_ref().map(ToString::to_string)
}

fn publish(cluster: &mut Cluster, number: u64, specs: &[VmSpec], now: Millis) {
    let message = publication(cluster, number, specs);
    assert_eq!(cluster.publish(&message, now).outcome, Outcome::Accepted);
    cluster.tick(now);
}

/// Publishes a `fleet.yaml` that drains these workers.
fn drain(cluster: &mut Cluster, number: u64, workers: &[&str], now: Millis) {
    let mut fleet = FleetFile::default();
    workers.iter().for_each(|name| fleet.workers.entry(worker_name(name)).or_default().drain = true);
    let message = policy(cluster, number, fleet);
    assert_eq!(cluster.publish(&message, now).outcome, Outcome::Accepted);
    cluster.tick(now);
}

/// Returns the state of a fleet as a file has it.
fn snapshot(cluster: &Cluster, now: Millis) -> Snapshot {
    let text = cluster.snapshot(now).to_json().to_string();
    let read = Snapshot::read("s.json", &text).unwrap();
    assert_eq!(read, cluster.snapshot(now));
    read
}

/// Returns where a plan of these VMs would have an instance.
fn planned(cluster: &Cluster, specs: &[VmSpec], instance: &str, now: Millis) -> Option<String> {
    let (group, commit) = (GroupName::default_group(), commit(99));
    let specs: Vec<Arc<VmSpec>> = specs.iter().cloned().map(Arc::new).collect();
    let plan = plan(&snapshot(cluster, now), &Proposal { commit: &commit, group: &group, specs: &specs });
    plan.assign.get(&key(instance)).map(ToString::to_string)
}

/// Whoever is not `name` of two.
fn other(name: &str) -> &'static str {
    if name == "w1" { "w2" } else { "w1" }
}

const TWO: [(&str, &str); 2] = [("w1", "ssd"), ("w2", "hdd")];

/// Section 7: what lost its place keeps its copy there, and that copy is not in its way when it may come back.
#[test]
fn what_lost_its_place_comes_back_to_its_copy() {
    let mut tied = vm("a", 1, 500, 3_072);
    let mut cluster = cluster_with(std::slice::from_ref(&tied), &[("w1", "ssd")]);
    obey(&mut cluster, "w1", 1_000);
    cluster.tick(1_000);
    tied.selector = vec![requires("disk", "nvme")];
    publish(&mut cluster, 2, std::slice::from_ref(&tied), 2_000);
    cluster.tick(3_000);
    let placement = cluster.durable.placements[&key("a/0")].clone();
    assert_eq!((placement.worker, placement.leaving), (None, [worker_name("w1")].into()));
    tied.selector = vec![];
    let both = [tied, vm("b", 1, 500, 2_048)];
    assert_eq!(planned(&cluster, &both, "a/0", 4_000).as_deref(), Some("w1"));
    publish(&mut cluster, 3, &both, 4_000);
    assert_eq!(place(&cluster, "a/0").as_deref(), Some("w1"));
    assert_eq!(place(&cluster, "b/0"), None, "there is no room for both");
    obey(&mut cluster, "w1", 5_000);
    cluster.tick(5_000);
    assert_eq!(cluster.durable.placements[&key("a/0")].leaving, [].into());
    assert_eq!(cluster.may_use()[&worker_name("w1")].mem_mib, 3_072);
}

/// The same for what is to be smaller than its copy: until that is replaced it has what it had, and nobody else gets it.
#[test]
fn what_comes_back_has_what_its_copy_has() {
    let mut cluster = cluster_with(&[vm("a", 1, 500, 3_072)], &[("w1", "ssd")]);
    obey(&mut cluster, "w1", 1_000);
    cluster.tick(1_000);
    publish(&mut cluster, 2, &[vm("a", 1, 500, 5_000)], 2_000);
    cluster.tick(3_000);
    assert_eq!(place(&cluster, "a/0"), None, "4096 MiB have no room for 5000");
    let both = [vm("a", 1, 500, 512), vm("b", 1, 500, 2_048)];
    assert_eq!(planned(&cluster, &both, "a/0", 4_000).as_deref(), Some("w1"));
    assert_eq!(planned(&cluster, &both, "b/0", 4_000), None);
    publish(&mut cluster, 3, &both, 4_000);
    cluster.tick(4_001);
    assert_eq!((place(&cluster, "a/0").as_deref(), place(&cluster, "b/0")), (Some("w1"), None));
    for now in [15_000, 16_000, 17_000] {
        obey(&mut cluster, "w1", now);
        cluster.tick(now);
    }
    assert_eq!(place(&cluster, "b/0").as_deref(), Some("w1"), "its copy is replaced");
}

/// Section 3: a volume binds its instance to the worker that has it, under the leader that placed it and under the next.
#[test]
fn what_has_volumes_stays_with_them() {
    let mut bound = vm("v", 1, 500, 512);
    bound.volumes.push(volume("data", false));
    let mut cluster = cluster_with(&[bound.clone(), vm("free", 1, 500, 512)], &TWO);
    let home = place(&cluster, "v/0").unwrap();
    obey(&mut cluster, &home, 1_000);
    drain(&mut cluster, 2, &[&home], 2_000);
    assert_eq!(place(&cluster, "v/0"), Some(home.clone()));
    assert!(cluster.scheduler().is_drain_blocked(&key("v/0")));
    assert_eq!(place(&cluster, "free/0").as_deref(), Some(other(&home)));
    let mut next = Cluster::resume(cluster.durable.clone(), 2, 3_000);
    next.tick(3_000);
    for name in ["w1", "w2"] {
        obey(&mut next, name, 3_000);
    }
    next.tick(3_000);
    assert_eq!(place(&next, "v/0"), Some(home.clone()));
    // Without its volumes it may go.
    bound.volumes.clear();
    publish(&mut cluster, 3, std::slice::from_ref(&bound), 20_000);
    for now in [30_000, 40_000, 60_000] {
        for name in ["w1", "w2"] {
            obey(&mut cluster, name, now);
        }
        cluster.tick(now);
    }
    assert_eq!(place(&cluster, "v/0").as_deref(), Some(other(&home)));
    // And comes back to them: they were kept.
    drain(&mut cluster, 4, &[], 70_000);
    bound.volumes.push(volume("data", false));
    assert_eq!(planned(&cluster, std::slice::from_ref(&bound), "v/0", 71_000), Some(home.clone()));
    publish(&mut cluster, 5, &[bound], 71_000);
    assert_eq!(place(&cluster, "v/0"), Some(home));
    assert_eq!(cluster.durable.placements[&key("v/0")].reason, MoveReason::Pinned);
}

/// Section 3: volumes that an instance gets where it runs bind it there once it may run with them.
#[test]
fn volumes_of_a_new_spec_bind_where_it_runs() {
    let mut spec = vm("v", 1, 500, 512);
    let mut cluster = cluster_with(std::slice::from_ref(&spec), &TWO);
    let home = place(&cluster, "v/0").unwrap();
    obey(&mut cluster, &home, 20_000);
    cluster.tick(20_000);
    spec.volumes.push(volume("data", false));
    publish(&mut cluster, 2, std::slice::from_ref(&spec), 40_000);
    obey(&mut cluster, &home, 41_000);
    cluster.tick(41_000);
    drain(&mut cluster, 3, &[&home], 50_000);
    assert_eq!(place(&cluster, "v/0"), Some(home.clone()));
    // A rollout that takes them away is paused: what runs still has them.
    spec.volumes.clear();
    spec.rollout.pause = true;
    assert_eq!(planned(&cluster, std::slice::from_ref(&spec), "v/0", 60_000), Some(home.clone()));
    publish(&mut cluster, 4, std::slice::from_ref(&spec), 60_000);
    assert_eq!(place(&cluster, "v/0"), Some(home));
}

/// Section 3: volumes that are kept wait for their instance, whether it was removed, scaled away or went to another group; those
/// that go with it do not.
#[test]
fn what_comes_back_comes_back_to_its_volumes() {
    let mut bound = vm("v", 1, 500, 2_048);
    bound.volumes.push(volume("data", false));
    let mut cluster = cluster_with(std::slice::from_ref(&bound), &TWO);
    let home = place(&cluster, "v/0").unwrap();
    obey(&mut cluster, &home, 1_000);
    // Whoever looks for room now finds more of it elsewhere.
    let mut full = vm("full", 1, 500, 1_024);
    full.pin = Some(worker_name(&home));
    publish(&mut cluster, 2, std::slice::from_ref(&full), 2_000);
    assert_eq!(cluster.durable.volumes.get(&key("v/0")), Some(&worker_name(&home)));
    for (now, name) in [(3_000, "w1"), (3_000, "w2")] {
        obey(&mut cluster, name, now);
    }
    cluster.tick(3_000);
    let both = [full.clone(), bound.clone()];
    assert_eq!(planned(&cluster, &both, "v/0", 4_000), Some(home.clone()));
    let mut next = Cluster::resume(cluster.durable.clone(), 2, 4_000);
    next.tick(4_000);
    for cluster in [&mut cluster, &mut next] {
        for name in ["w1", "w2"] {
            obey(cluster, name, 4_000);
        }
        cluster.tick(4_000);
        publish(cluster, 3, &both, 5_000);
        assert_eq!(place(cluster, "v/0"), Some(home.clone()));
        assert!(cluster.durable.volumes.is_empty());
    }
    bound.volumes[0].retain = Retain::Delete;
    publish(&mut cluster, 4, &[full.clone(), bound], 30_000);
    for now in [31_000, 50_000] {
        for name in ["w1", "w2"] {
            obey(&mut cluster, name, now);
        }
        cluster.tick(now);
    }
    publish(&mut cluster, 5, &[full], 60_000);
    assert!(cluster.durable.volumes.is_empty(), "its volume went with it");
}

/// Section 14: what waits for the worker that has its volumes, and for nothing else, says so.
#[test]
fn what_waits_for_its_volumes_says_so() {
    let mut bound = vm("v", 1, 500, 512);
    bound.volumes.push(volume("data", false));
    let mut cluster = cluster_with(std::slice::from_ref(&bound), &TWO);
    let home = place(&cluster, "v/0").unwrap();
    obey(&mut cluster, &home, 1_000);
    publish(&mut cluster, 2, &[vm("other", 1, 500, 512)], 2_000);
    for name in ["w1", "w2"] {
        obey(&mut cluster, name, 3_000);
    }
    drain(&mut cluster, 3, &[&home], 4_000);
    publish(&mut cluster, 4, &[vm("other", 1, 500, 512), bound], 5_000);
    assert_eq!(place(&cluster, "v/0"), None, "there is room elsewhere, and not its volume");
    let shown = status(&cluster, false);
    let row = shown.instances.iter().find(|row| row.key == key("v/0")).unwrap();
    assert_eq!(row.code, Some(stead_model::fleet::Code::VolumeLocal), "{row:?}");
}

/// Section 7: whatever loses its place leaves a copy behind, whose room nobody gets in the same breath; a plan knows it.
#[test]
fn a_lost_place_is_not_free_at_once() {
    let mut large = vm("large", 1, 500, 3_072);
    let mut cluster = cluster_with(std::slice::from_ref(&large), &[("w1", "ssd")]);
    obey(&mut cluster, "w1", 1_000);
    cluster.tick(1_000);
    large.selector = vec![requires("disk", "nvme")];
    let both = [large, vm("new", 1, 500, 2_048)];
    assert_eq!(planned(&cluster, &both, "new/0", 2_000), None);
    publish(&mut cluster, 2, &both, 2_000);
    assert_eq!((place(&cluster, "large/0"), place(&cluster, "new/0")), (None, None));
    let said = |cluster: &Cluster| cluster.refusals(&key("new/0")).unwrap().text;
    let at_once = said(&cluster);
    cluster.tick(3_000);
    assert_eq!(
        (at_once.as_str(), said(&cluster).as_str()),
        ("1 worker: 1 memory short by 1024 MiB", at_once.as_str())
    );
}

/// Section 14: what is on hold and wanted by nobody stays where it is, under the next leader as well, and is there when it is
/// wanted again.
#[test]
fn what_is_frozen_and_unwanted_keeps_its_place() {
    let mut bound = vm("v", 1, 500, 512);
    bound.volumes.push(volume("data", false));
    let keep = vm("keep", 1, 500, 512);
    let mut cluster = cluster_with(&[bound.clone(), keep.clone()], &TWO);
    let before = cluster.durable.placements[&key("v/0")].clone();
    let (by, reason, target) = ("ann".to_owned(), "looking".to_owned(), HoldTarget::Vm(bound.id.clone()));
    cluster.hold(Hold { id: "h1".to_owned(), target, until: 50_000, by, reason });
    cluster.tick(1_000);
    publish(&mut cluster, 2, std::slice::from_ref(&keep), 2_000);
    let mut next = Cluster::resume(cluster.durable.clone(), 2, 3_000);
    for cluster in [&mut cluster, &mut next] {
        cluster.tick(3_000);
        for name in ["w1", "w2"] {
            obey(cluster, name, 4_000);
        }
        cluster.tick(4_000);
        assert_eq!(cluster.durable.placements[&key("v/0")], before);
        let both = [bound.clone(), keep.clone()];
        let home = before.worker.as_ref().map(ToString::to_string);
        assert_eq!(planned(cluster, &both, "v/0", 5_000), home);
        publish(cluster, 3, &both, 5_000);
        assert_eq!(place(cluster, "v/0"), home);
        assert_eq!(cluster.durable.placements[&key("v/0")].leaving, [].into());
    }
}

/// Section 7: a copy that was told to go has its room for as long as its worker says that it is there.
#[test]
fn a_copy_that_has_not_gone_yet_has_its_room() {
    let mut moving = vm("a", 1, 500, 3_072);
    moving.pin = Some(worker_name("w1"));
    let mut cluster = cluster_with(std::slice::from_ref(&moving), &TWO);
    obey(&mut cluster, "w1", 1_000);
    cluster.tick(1_000);
    moving.pin = Some(worker_name("w2"));
    publish(&mut cluster, 2, std::slice::from_ref(&moving), 2_000);
    obey(&mut cluster, "w2", 3_000);
    cluster.tick(3_000);
    assert_eq!(cluster.durable.placements[&key("a/0")].leaving, [].into(), "the new one is ready");
    let mut new = vm("new", 1, 500, 2_048);
    new.pin = Some(worker_name("w1"));
    let both = [moving, new];
    assert_eq!(planned(&cluster, &both, "new/0", 4_000), None);
    publish(&mut cluster, 3, &both, 4_000);
    assert_eq!(place(&cluster, "new/0"), None);
    obey(&mut cluster, "w1", 5_000);
    cluster.tick(5_000);
    assert_eq!(place(&cluster, "new/0").as_deref(), Some("w1"));
}

/// Section 7: what never had a place is not looked after any more once nobody wants it, by a new leader neither.
#[test]
fn what_never_had_a_place_is_forgotten() {
    let mut picky = vm("picky", 1, 500, 512);
    picky.selector = vec![requires("disk", "ssd")];
    let keep = vm("keep", 1, 500, 512);
    let cluster = cluster_with(&[picky.clone(), keep.clone()], &[("w1", "hdd")]);
    let mut next = Cluster::resume(cluster.durable.clone(), 2, 1_000);
    publish(&mut next, 2, std::slice::from_ref(&keep), 1_000);
    obey(&mut next, "w1", 2_000);
    next.tick(2_000);
    assert_eq!(next.scheduler().place_of(&key("picky/0")), None);
    publish(&mut next, 3, &[picky, keep], 3_000);
    assert_eq!(place(&next, "picky/0").as_deref(), Some("w1"));
}

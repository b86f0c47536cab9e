//! Keys and back: whatever happens, what is written in parts is what there is.

use std::time::Instant;

use stead_engine::fleet::canon::{intent_hash, policy_hash, specs_hash};
use stead_engine::fleet::cluster::Cluster;
use stead_model::fleet::state::{Allocatable, Heartbeat, HoldTarget, Publication};
use stead_model::fleet::vm::{
    Driver, OnLost, Ready, Resources, Restart, Retain, Rollout, Runtime, Spread, Volume,
};

use super::*;

/// A store that is a map.
#[derive(Default)]
struct Shelf {
    entries: BTreeMap<String, Vec<u8>>,
    writes: usize,
}

impl Shelf {
    fn take(&mut self, txn: &Txn) {
        for put in &txn.puts {
            assert!(!txn.deletes.contains(&put.key), "{}", put.key);
            self.entries.insert(put.key.clone(), put.value.clone());
        }
        for key in &txn.deletes {
            assert!(self.entries.remove(key).is_some(), "{key} was there");
        }
        self.writes += txn.puts.len() + txn.deletes.len();
    }

    fn load(&self) -> Mirror {
        let entries = self.entries.iter();
        let entries =
            entries.map(|(key, value)| Entry { key: key.clone(), value: value.clone(), revision: 1 });
        Mirror::load(&entries.collect::<Vec<_>>()).unwrap()
    }
}

fn spec(id: &str, replicas: u32, label: u64) -> VmSpec {
    VmSpec {
        id: VmId::parse(id).unwrap(),
        group: GroupName::default_group(),
        replicas,
        labels: [("n".to_owned(), label.to_string())].into(),
        selector: vec![],
        spread: Spread::default(),
        pin: None,
        priority: 0,
        resources: Resources { cpu_milli: 100, mem_mib: 16, disk_mib: 0 },
        restart: Restart::default(),
        ready: Ready::default(),
        rollout: Rollout::default(),
        on_lost: OnLost::Move,
        singleton: false,
        stop_seconds: 30,
        volumes: Vec::<Volume>::new(),
        runtime: Runtime::new(Driver::Sandbox),
    }
}

fn commit(number: u64) -> CommitId {
    CommitId::parse(&format!("{number:040x}")).unwrap()
}

fn publish(cluster: &mut Cluster, group: &GroupName, number: u64, specs: Vec<VmSpec>, now: Millis) {
    let is_fleet = *group == GroupName::fleet();
    let mut fleet = FleetFile::default();
    fleet.policy.rebalance = u32::try_from(number % 7).unwrap();
    let mut specs: Vec<VmSpec> = if is_fleet { vec![] } else { specs };
    specs.iter_mut().for_each(|spec| spec.group = group.clone());
    let hash = if is_fleet { policy_hash(&fleet) } else { specs_hash(&specs) };
    let message = Publication {
        intent_hash: intent_hash(&commit(number), group, &hash),
        group: group.clone(),
        commit: commit(number),
        generation: cluster.reserve(&commit(number)),
        specs_hash: hash,
        specs: specs.into_iter().map(Arc::new).collect(),
        policy: is_fleet.then(|| Arc::new(fleet)),
        broken: Vec::new(),
    };
    let verdict = cluster.publish(&message, now);
    assert!(matches!(verdict.outcome, Outcome::Accepted | Outcome::Held | Outcome::Suspended), "{verdict:?}");
}

fn beat(cluster: &mut Cluster, worker: &str, seq: u64, used: u64, now: Millis) {
    let heartbeat = Heartbeat {
        worker: WorkerName::parse(worker).unwrap(),
        boot_id: String::new(),
        session: 1,
        process: String::new(),
        seq,
        seen_generation: 0,
        seen_revision: 0,
        // What a worker runs that never says everything is not known to be broken, and keeps its spec.
        full: worker != "w0",
        instances: vec![],
        facts: Some(WorkerFacts {
            capacity: Allocatable { cpu_milli: 100_000, mem_mib: 100_000, disk_mib: None },
            used: Resources { cpu_milli: used, mem_mib: 0, disk_mib: 0 },
            drivers: [Driver::Sandbox].into(),
            labels: [].into(),
            arch: Default::default(),
            os: "linux".to_owned(),
            spec_version: 1,
            disk_pressure: false,
            nix_version: None,
            notes: Vec::new(),
            foreign: Default::default(),
            mapped: Default::default(),
        }),
    };
    cluster.heartbeat(&heartbeat, now);
}

fn assert_same(a: &Durable, b: &Durable) {
    assert_eq!(a.last_generation, b.last_generation);
    assert_eq!((&a.commits, &a.placements, &a.ghosts), (&b.commits, &b.placements, &b.ghosts));
    assert_eq!((&a.specs, &a.holds, &a.volumes), (&b.specs, &b.holds, &b.volumes));
    assert_eq!(a.workers.keys().collect::<Vec<_>>(), b.workers.keys().collect::<Vec<_>>());
    assert_eq!(a.groups.len(), b.groups.len());
    for (name, group) in &a.groups {
        let other = &b.groups[name];
        assert_eq!(
            (group.active, group.since, &group.why),
            (other.active, other.since, &other.why),
            "{name}"
        );
        assert_eq!(group.stored, other.stored, "{name}");
    }
}

/// Section 13: whatever is written in parts, over many commits, holds, losses and trims, reads back as it was.
#[test]
fn what_is_written_reads_back() {
    let mut shelf = Shelf::default();
    let mut mirror = Mirror::default();
    let mut cluster = Cluster::resume(Durable::default(), 1, 1_000);
    let mut dice = 7_u64;
    let groups = ["default", "edge", "fleet"].map(|name| GroupName::parse(name).unwrap());
    let (mut had_old_specs, mut had_volumes) = (false, false);
    for step in 1..70 {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let roll = usize::try_from(dice >> 40).unwrap();
        let now = 1_000 + step * 2_000;
        beat(&mut cluster, &format!("w{}", roll % 3), step, dice >> 50, now);
        let group = &groups[roll % 3];
        let specs = (0..roll % 40).map(|at| {
            let mut spec = spec(&format!("{}-{at}", group.as_str()), 1, dice >> 60);
            spec.singleton = at % 5 == 0;
            if at % 7 == 0 {
                let (name, retain) = (VmId::parse("data").unwrap(), Retain::Keep);
                spec.volumes.push(Volume { name, size_mib: 1, retain, movable: false });
            }
            spec.resources.cpu_milli += (dice >> 61) + 1;
            spec
        });
        match roll % 4 {
            0 => {
                let target = HoldTarget::Group(group.clone());
                let (by, reason) = ("ann".to_owned(), "x".to_owned());
                cluster.hold(Hold { id: format!("h{step}"), target, until: now + 5_000, by, reason });
            }
            _ => publish(&mut cluster, group, step, specs.collect(), now),
        }
        cluster.tick(now);
        cluster.trim(10);
        let difference = mirror.difference(&cluster.durable);
        shelf.take(&difference.txn);
        mirror.advance(difference);
        had_old_specs |=
            shelf.entries.keys().any(|key| key.starts_with("spec/") && key.matches('/').count() == 2);
        had_volumes |= shelf.entries.keys().any(|key| key.starts_with("volume/"));
        assert!(mirror.difference(&cluster.durable).is_empty(), "what was written is not written again");
        assert_same(mirror.durable(), &cluster.durable);
        assert_same(shelf.load().durable(), &cluster.durable);
    }
    assert!(had_old_specs && had_volumes);
    // What another leader reads is what this one has.
    let loaded = shelf.load();
    let mut next = Cluster::resume(loaded.durable().clone(), 2, 1_000_000);
    assert!(loaded.difference(&next.durable).is_empty());
    next.tick(1_000_000);
    assert_eq!(next.durable.placements, cluster.durable.placements);
}

/// A heartbeat writes nothing, and a commit that changes one of many VMs writes little.
#[test]
fn only_what_changed_is_written() {
    let mut mirror = Mirror::default();
    let mut cluster = Cluster::resume(Durable::default(), 1, 1_000);
    for at in 0..10 {
        beat(&mut cluster, &format!("w{at}"), 1, 0, 1_000);
    }
    let specs = |changed: u64| -> Vec<VmSpec> {
        (0..500).map(|at| spec(&format!("vm-{at:03}"), 10, if at == 250 { changed } else { 0 })).collect()
    };
    let group = GroupName::default_group();
    publish(&mut cluster, &group, 1, specs(0), 1_000);
    cluster.tick(1_000);
    let first = mirror.difference(&cluster.durable);
    assert!(first.txn.puts.len() > 5_000);
    mirror.advance(first);
    beat(&mut cluster, "w3", 2, 77, 2_000);
    cluster.tick(2_000);
    assert!(mirror.difference(&cluster.durable).is_empty(), "what is used is not stored");
    publish(&mut cluster, &group, 2, specs(1), 3_000);
    cluster.tick(3_000);
    let second = mirror.difference(&cluster.durable);
    let keys: Vec<&str> = second.txn.puts.iter().map(|put| put.key.as_str()).collect();
    assert!(keys.len() <= 6, "{keys:?}");
    let bytes: usize = second.txn.puts.iter().map(|put| put.value.len()).sum();
    assert!(bytes < 60_000, "{bytes}");
    mirror.advance(second);
    // Its labels are not what runs: nothing is released, nothing old is kept.
    assert_eq!(old_specs(&cluster.durable).len(), 0);
}

/// Section 18: a large state is read back fast; the bar is for release builds and one second.
#[test]
fn a_large_state_reads_back() {
    let mut cluster = Cluster::resume(Durable::default(), 1, 1_000);
    for at in 0..200 {
        beat(&mut cluster, &format!("w{at}"), 1, 0, 1_000);
    }
    let specs = (0..1_000).map(|at| spec(&format!("vm-{at:04}"), 20, 0)).collect();
    publish(&mut cluster, &GroupName::default_group(), 1, specs, 1_000);
    cluster.tick(1_000);
    let mut shelf = Shelf::default();
    shelf.take(&Mirror::default().difference(&cluster.durable).txn);
    let began = Instant::now();
    let loaded = shelf.load();
    let took = began.elapsed();
    assert_eq!(loaded.durable().placements.len(), 20_000);
    assert!(took.as_secs() < 20, "{took:?}");
    println!("20,000 placements and 1,000 specs in {took:?}");
}

/// Keys that cannot be read are named.
#[test]
fn what_cannot_be_read_is_named() {
    let entry = |key: &str, value: &str| Entry { key: key.to_owned(), value: value.into(), revision: 1 };
    let hash = Digest::of(b"[]");
    for (key, value) in [
        ("place/web/0", "{"),
        ("place/web/x", "{}"),
        ("active/default", r#"{"generation":3,"since":1}"#),
        ("gen/default/1", "{}"),
        (&format!("spec/{hash}"), "[ ]"),
        ("meta/next-generation", "x"),
        ("commit/zz", "1"),
    ] {
        let error = Mirror::load(&[entry(key, value)]).unwrap_err();
        assert_eq!(error.key, key, "{error}");
    }
    Mirror::load(&[entry("meta/ca", "{"), entry("jti/x", "{"), entry("later/x", "{")]).unwrap();
}

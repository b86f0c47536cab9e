//! States that were lost: what of them goes on, and what stays as it is.

use std::sync::Arc;

use stead_model::fleet::state::{Assignment, Heartbeat, Outcome, Publication, Seen, Verdict};
use stead_model::fleet::{FleetFile, VmSpec};
use stead_model::plan::Digest;

use super::super::tests::{commit, heartbeat};
use super::super::{Durable, EventKind};
use super::*;
use crate::fleet::canon::{intent_hash, policy_hash, specs_hash, vm_hash};
use crate::fleet::converge::{State, status};
use crate::fleet::testing::{Dice, vm, worker_name};

fn group(text: &str) -> GroupName {
    GroupName::parse(text).unwrap()
}

fn of(name: &str, specs: &[VmSpec]) -> Vec<VmSpec> {
    specs.iter().map(|spec| VmSpec { group: group(name), ..spec.clone() }).collect()
}

fn publish(cluster: &mut Cluster, number: u64, name: &str, specs: &[VmSpec], now: Millis) -> Verdict {
    let group = group(name);
    let specs_hash = specs_hash(specs);
    let message = Publication {
        intent_hash: intent_hash(&commit(number), &group, &specs_hash),
        group,
        commit: commit(number),
        generation: cluster.reserve(&commit(number)),
        specs_hash,
        specs: specs.iter().cloned().map(Arc::new).collect(),
        policy: None,
        broken: Vec::new(),
    };
    cluster.publish(&message, now)
}

/// Workers with what they run; they do as they are told.
#[derive(Default)]
struct Yard {
    runs: BTreeMap<WorkerName, BTreeMap<InstanceKey, Seen>>,
    applied: BTreeMap<WorkerName, (u64, u64)>,
    seq: u64,
    /// What was stopped, and begun or begun anew.
    acts: Vec<String>,
}

impl Yard {
    fn new(workers: &[&str]) -> Self {
        let runs = workers.iter().map(|name| (worker_name(name), BTreeMap::new())).collect();
        Self { runs, ..Self::default() }
    }

    fn beat(&mut self, cluster: &mut Cluster, worker: &WorkerName, now: Millis) {
        self.seq += 1;
        let (seen_generation, seen_revision) = self.applied.get(worker).copied().unwrap_or_default();
        let seen = self.runs[worker].values().cloned().collect();
        let beat =
            Heartbeat { seen_generation, seen_revision, ..heartbeat(worker.as_str(), self.seq, "ssd", seen) };
        cluster.heartbeat(&beat, now);
    }

    fn obey(&mut self, cluster: &Cluster, worker: &WorkerName) -> Option<Assignment> {
        let assignment = cluster.assignment(worker)?;
        let wanted: BTreeMap<&InstanceKey, Digest> =
            assignment.instances.iter().map(|one| (&one.instance, one.vm_hash)).collect();
        let runs = self.runs.get_mut(worker).unwrap();
        runs.retain(|key, seen| {
            let stays = wanted.get(key).copied() == seen.vm_hash;
            if !stays {
                self.acts.push(format!("stop {key}"));
            }
            stays
        });
        for one in assignment.instances.iter().filter(|one| !one.leaving) {
            let Some(spec) = assignment.specs.get(one.spec as usize) else { continue };
            runs.entry(one.instance.clone()).or_insert_with(|| {
                self.acts.push(format!("start {}", one.instance));
                seen(&one.instance, one.vm_hash, Some(&spec.group), spec.resources)
            });
        }
        self.applied.insert(worker.clone(), (assignment.generation, assignment.revision));
        Some(assignment)
    }

    /// Everybody reports and obeys, for so many seconds.
    fn pass(&mut self, cluster: &mut Cluster, now: &mut Millis, seconds: u64) {
        for _ in 0..seconds {
            *now += 1000;
            let names: Vec<WorkerName> = self.runs.keys().cloned().collect();
            for name in names {
                self.beat(cluster, &name, *now);
                self.obey(cluster, &name);
            }
            cluster.tick(*now);
        }
    }

    fn all(&self) -> BTreeMap<InstanceKey, WorkerName> {
        let runs = self.runs.iter();
        runs.flat_map(|(name, runs)| runs.keys().map(move |key| (key.clone(), name.clone()))).collect()
    }
}

fn seen(key: &InstanceKey, hash: Digest, group: Option<&GroupName>, takes: Resources) -> Seen {
    Seen {
        key: key.clone(),
        vm_hash: Some(hash),
        state: InstanceState::Running,
        ready: true,
        uptime_ms: 60_000,
        attempts: 0,
        code: None,
        detail: String::new(),
        group: group.cloned(),
        takes,
    }
}

/// Returns a yard in which these groups run, with the state that runs them.
fn running(workers: &[&str], groups: &[(&str, Vec<VmSpec>)], now: &mut Millis) -> Yard {
    let mut yard = Yard::new(workers);
    let mut cluster = Cluster::resume(Durable::default(), 1, *now);
    yard.pass(&mut cluster, now, 1);
    for (name, specs) in groups {
        assert_eq!(publish(&mut cluster, 1, name, specs, *now).outcome, Outcome::Accepted);
    }
    yard.pass(&mut cluster, now, 30);
    assert_eq!(status(&cluster, false).state, State::Converged);
    yard.acts.clear();
    yard
}

/// Returns a state that begins anew with what these workers report.
fn rebuilt(yard: &mut Yard, heard: &[&str], now: Millis) -> Cluster {
    let mut cluster = Cluster::resume(Durable::default(), 1, now);
    for name in yard.runs.keys() {
        cluster.enrol(name);
    }
    for name in heard {
        yard.beat(&mut cluster, &worker_name(name), now);
    }
    cluster.begin_rebuild(now);
    cluster
}

/// Section 13, F9: groups that are published again go on; what of the others runs is left as it is, and its room is taken.
#[test]
fn a_group_that_is_missing_freezes_nobody_else() {
    let mut now = 0;
    let web = of("default", &[vm("web", 3, 500, 512)]);
    let cam = of("edge", &[vm("cam", 2, 500, 1600)]);
    let mut yard = running(&["w1", "w2"], &[("default", web), ("edge", cam.clone())], &mut now);
    let before = yard.all();
    let mut cluster = rebuilt(&mut yard, &["w1", "w2"], now);
    yard.pass(&mut cluster, &mut now, 5);
    assert_eq!((yard.all(), yard.acts.as_slice()), (before.clone(), [].as_slice()), "nothing is known yet");
    let more = of("default", &[vm("web", 4, 500, 512), vm("big", 3, 100, 1200)]);
    assert_eq!(publish(&mut cluster, 2, "default", &more, now).outcome, Outcome::Accepted);
    yard.pass(&mut cluster, &mut now, 30);
    let runs = yard.all();
    assert!(before.iter().all(|(key, worker)| runs.get(key) == Some(worker)), "{runs:?}");
    assert!(runs.contains_key(&InstanceKey::parse("web/3").unwrap()), "{runs:?}");
    // 4096 MiB each: 1600 of a camera and 1024 of two webs leave room for one of 1200.
    let shown = status(&cluster, false);
    assert_eq!((shown.counts.desired, shown.counts.converged, shown.counts.unschedulable), (7, 6, 1));
    assert!(!cluster.is_rebuilt(true));
    let cameras: Vec<_> = shown.instances.iter().filter(|one| one.key.vm.as_str() == "cam").collect();
    assert_eq!(cameras.len(), 2);
    assert!(
        cameras
            .iter()
            .all(|one| one.code == Some(Code::WaitingForAssignment) && one.group == Some(group("edge")))
    );
    // Over a restart, too.
    let mut cluster = Cluster::resume(cluster.durable.clone(), 2, now);
    cluster.begin_rebuild(now);
    yard.pass(&mut cluster, &mut now, 30);
    assert_eq!(yard.all(), runs);
    assert_eq!(publish(&mut cluster, 2, "edge", &cam, now).outcome, Outcome::Accepted);
    cluster.take_events();
    yard.pass(&mut cluster, &mut now, 30);
    assert!(cluster.is_rebuilt(false));
    cluster.end_rebuild();
    yard.pass(&mut cluster, &mut now, 30);
    assert_eq!(yard.all(), runs);
    assert!(!yard.acts.iter().any(|act| act.starts_with("stop")), "{:?}", yard.acts);
    let moved = |kind: EventKind| matches!(kind, EventKind::Placed | EventKind::Moved | EventKind::Removed);
    assert!(!cluster.take_events().iter().any(|event| moved(event.ev)));
}

/// Sections 6, 13, F26: what a rebuilt group runs is what the guard counts.
#[test]
fn the_guard_counts_what_a_rebuilt_group_runs() {
    let mut now = 0;
    let full = of("edge", &[vm("cam", 8, 100, 64), vm("eye", 4, 100, 64)]);
    let mut yard = running(&["w1", "w2"], &[("edge", full.clone())], &mut now);
    let before = yard.all();
    let mut cluster = rebuilt(&mut yard, &["w1", "w2"], now);
    assert_eq!(publish(&mut cluster, 2, "default", &[vm("web", 1, 1, 1)], now).outcome, Outcome::Accepted);
    let empty = publish(&mut cluster, 3, "edge", &[], now);
    assert_eq!((empty.outcome, empty.problems[0].code.as_str()), (Outcome::Held, "empty-set"));
    let few = of("edge", &[vm("eye", 4, 100, 64)]);
    let few = publish(&mut cluster, 4, "edge", &few, now);
    assert_eq!((few.outcome, few.problems[0].code.as_str()), (Outcome::Held, "too-many-stops"));
    assert!(few.problems[0].message.starts_with("8 of 12 running"), "{:?}", few.problems);
    yard.pass(&mut cluster, &mut now, 30);
    let runs = yard.all();
    assert!(before.iter().all(|(key, worker)| runs.get(key) == Some(worker)), "{runs:?}");
    // What stops less than half is no matter for the guard: it is rolled out as ever.
    let less = of("edge", &[vm("cam", 8, 100, 64)]);
    assert_eq!(publish(&mut cluster, 5, "edge", &less, now).outcome, Outcome::Accepted);
    yard.pass(&mut cluster, &mut now, 30);
    assert_eq!(yard.all().len(), 9);
    assert!(cluster.is_rebuilt(true) && status(&cluster, false).counts.orphans == 0);
}

/// Section 13: a worker that is heard late is told nothing before, and keeps what is of a group that is missing.
#[test]
fn a_worker_that_is_heard_late_keeps_what_it_runs() {
    let mut now = 0;
    let only = VmSpec { singleton: true, ..vm("only", 1, 100, 64) };
    let default = of("default", &[only.clone(), vm("web", 2, 100, 64)]);
    let cam = of("edge", &[vm("cam", 4, 100, 64)]);
    let mut yard = running(&["w1", "w2"], &[("default", default.clone()), ("edge", cam)], &mut now);
    let late = yard.all()[&InstanceKey::new(&only.id, 0)].clone();
    let early = if late.as_str() == "w1" { "w2" } else { "w1" };
    let had = yard.runs[&late].clone();
    let mut cluster = rebuilt(&mut yard, &[early], now);
    assert_eq!(publish(&mut cluster, 2, "default", &default, now).outcome, Outcome::Accepted);
    for _ in 0..20 {
        now += 1000;
        yard.beat(&mut cluster, &worker_name(early), now);
        yard.obey(&cluster, &worker_name(early));
        cluster.tick(now);
        assert_eq!(cluster.assignment(&late), None, "who was not heard is told nothing");
        assert!(!yard.runs[&worker_name(early)].contains_key(&InstanceKey::new(&only.id, 0)));
    }
    assert_eq!(cluster.unheard().collect::<Vec<_>>(), [&late]);
    yard.pass(&mut cluster, &mut now, 30);
    let cameras = had.keys().filter(|key| key.vm.as_str() == "cam");
    assert!(cameras.clone().count() > 0);
    let runs = yard.all();
    assert!(cameras.clone().all(|key| runs.get(key) == Some(&late)), "{runs:?}");
    assert!(!yard.acts.iter().any(|act| act.starts_with("stop cam")), "{:?}", yard.acts);
    assert_eq!(runs.keys().filter(|key| key.vm == only.id).count(), 1);
}

/// A worker that is not of the fleet any more keeps nobody waiting.
#[test]
fn a_revoked_worker_is_not_waited_for() {
    let mut now = 0;
    let mut yard = running(&["w1", "w2"], &[("edge", of("edge", &[vm("cam", 4, 100, 64)]))], &mut now);
    let mut cluster = rebuilt(&mut yard, &["w1", "w2"], now);
    yard.pass(&mut cluster, &mut now, 2);
    yard.runs.remove(&worker_name("w2"));
    cluster.dismiss(&[worker_name("w2")].into());
    yard.pass(&mut cluster, &mut now, 150);
    let workers: BTreeSet<_> = cluster.durable.placements.values().map(|one| one.worker.clone()).collect();
    assert_eq!(workers, [Some(worker_name("w1"))].into());
    yard.runs.remove(&worker_name("w1"));
    cluster.dismiss(&[worker_name("w1"), worker_name("w2")].into());
    yard.pass(&mut cluster, &mut now, 150);
    assert!(cluster.durable.unclaimed.is_empty() && cluster.is_rebuilt(false));
}

/// Workers that do not say which group an instance is of keep it until every group is there.
#[test]
fn what_has_no_group_stays_until_all_are_there() {
    let mut now = 0;
    let mut yard = running(&["w1"], &[("default", of("default", &[vm("web", 2, 100, 64)]))], &mut now);
    yard.runs.values_mut().flat_map(BTreeMap::values_mut).for_each(|seen| seen.group = None);
    let mut cluster = rebuilt(&mut yard, &["w1"], now);
    let other = of("default", &[vm("new", 1, 100, 64)]);
    assert_eq!(publish(&mut cluster, 2, "default", &other, now).outcome, Outcome::Accepted);
    yard.pass(&mut cluster, &mut now, 10);
    assert_eq!(yard.all().len(), 3);
    assert!(!cluster.is_rebuilt(false) && cluster.is_rebuilt(true));
    cluster.end_rebuild();
    yard.pass(&mut cluster, &mut now, 10);
    assert_eq!(yard.all().len(), 1);
}

/// Section 13: in whatever order workers report, groups come and masters restart, nothing of a group that is not there is
/// touched, and in the end everything is as it was.
#[test]
fn any_order_of_reports_and_groups_keeps_what_runs() {
    for seed in 0..80 {
        let mut dice = Dice::new(seed);
        let mut now = 0;
        let names = ["default", "edge", "lab"];
        let mut groups: Vec<(&str, Vec<VmSpec>)> = Vec::new();
        for name in names {
            let count = 1 + u32::try_from(dice.below(3)).unwrap();
            let mut one = vm(&format!("{name}-a"), count, 100, 64);
            one.singleton = count == 1 && dice.one_in(2);
            groups.push((name, of(name, &[one, vm(&format!("{name}-b"), 2, 100, 64)])));
        }
        let workers = ["w1", "w2", "w3"];
        let mut yard = running(&workers, &groups, &mut now);
        let before = yard.all();
        let mut cluster = rebuilt(&mut yard, &workers, now);
        let mut waiting = groups.clone();
        dice.shuffle(&mut waiting);
        while !waiting.is_empty() {
            match dice.below(4) {
                0 => {
                    let (name, specs) = waiting.pop().unwrap();
                    assert_eq!(publish(&mut cluster, 2, name, &specs, now).outcome, Outcome::Accepted);
                }
                1 => {
                    cluster = Cluster::resume(cluster.durable.clone(), cluster.epoch + 1, now);
                    cluster.begin_rebuild(now);
                }
                _ => {
                    let worker = worker_name(workers[usize::try_from(dice.below(3)).unwrap()]);
                    yard.beat(&mut cluster, &worker, now);
                    yard.obey(&cluster, &worker);
                }
            }
            now += 500;
            cluster.tick(now);
            assert_eq!(yard.all(), before, "seed {seed}");
            let placed = |key: &InstanceKey| cluster.durable.placements.contains_key(key);
            assert!(before.keys().all(placed), "seed {seed}");
        }
        yard.pass(&mut cluster, &mut now, 30);
        assert!(cluster.is_rebuilt(true), "seed {seed}: {:?}", cluster.durable.unclaimed);
        cluster.end_rebuild();
        yard.pass(&mut cluster, &mut now, 10);
        assert_eq!((yard.all(), yard.acts.as_slice()), (before, [].as_slice()), "seed {seed}");
        assert_eq!(status(&cluster, false).state, State::Converged, "seed {seed}");
    }
}

/// The policy is no group that anything runs of.
#[test]
fn the_policy_claims_nothing() {
    let mut now = 0;
    let mut yard = running(&["w1"], &[("default", of("default", &[vm("web", 2, 100, 64)]))], &mut now);
    let mut cluster = rebuilt(&mut yard, &["w1"], now);
    let fleet = FleetFile::default();
    let message = Publication {
        intent_hash: intent_hash(&commit(2), &GroupName::fleet(), &policy_hash(&fleet)),
        group: GroupName::fleet(),
        commit: commit(2),
        generation: cluster.reserve(&commit(2)),
        specs_hash: policy_hash(&fleet),
        specs: vec![],
        policy: Some(Arc::new(fleet)),
        broken: Vec::new(),
    };
    assert_eq!(cluster.publish(&message, now).outcome, Outcome::Accepted);
    yard.pass(&mut cluster, &mut now, 10);
    assert!(cluster.is_unclaimed(&vm("web", 1, 1, 1).id) && yard.acts.is_empty());
    assert_eq!(cluster.target(&vm("web", 1, 1, 1).id), None);
    assert!(vm_hash(&vm("web", 2, 100, 64)) == cluster.durable.placements.values().next().unwrap().released);
}

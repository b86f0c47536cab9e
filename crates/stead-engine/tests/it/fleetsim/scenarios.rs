//! The failures of the contract, each as a script.

use std::rc::Rc;

use stead_engine::fleet::canon::vm_hash;
use stead_engine::fleet::cluster::{Durable, EventKind};
use stead_engine::fleet::converge::{State, status};
use stead_model::GroupName;
use stead_model::fleet::state::WorkerState;
use stead_model::fleet::{Code, FleetFile, InstanceKey};

use super::faults::{edge, kill_one};
use super::world::{Plant, World, singleton, vm};

/// Returns a fleet of so many workers that runs `a` ×3 and the singleton `one`.
pub(super) fn settled(workers: usize) -> World {
    several(1, workers, None)
}

/// The same with so many masters.
pub(super) fn several(masters: usize, workers: usize, plant: Option<Plant>) -> World {
    let mut world = World::new(7, (masters, workers), plant);
    world.commit(vec![vm("a", 3, "v1"), singleton("one", "v1")]);
    world.settle(120);
    world
}

pub(super) fn starts(world: &World) -> u64 {
    world.workers.iter().map(|worker| worker.starts).sum()
}

pub(super) fn stops(world: &World) -> u64 {
    world.workers.iter().map(|worker| worker.stops).sum()
}

fn code_of(world: &World, key: &str) -> Option<Code> {
    let key = InstanceKey::parse(key).unwrap();
    status(world.master(), false).instances.into_iter().find(|instance| instance.key == key)?.code
}

/// The index of the worker that has an instance.
pub(super) fn place(world: &World, key: &str) -> usize {
    let key = InstanceKey::parse(key).unwrap();
    world.workers.iter().position(|worker| worker.runs(&key)).expect("it runs")
}

/// Section 6: VMs change groups, one way and both ways at once, also while one of the groups has to wait: nothing restarts.
#[test]
fn vms_that_change_groups_run_on() {
    let mut world = settled(3);
    let of = |in_edge: &[&str]| {
        let mut specs = vec![vm("a", 2, "v1"), vm("b", 1, "v1"), singleton("one", "v1"), vm("e", 1, "v1")];
        for spec in specs.iter_mut().filter(|spec| in_edge.contains(&spec.id.as_str())) {
            spec.group = edge();
        }
        specs
    };
    world.commit(of(&["e"]));
    world.settle(120);
    let before = (starts(&world), stops(&world));
    for in_edge in [&["e", "one"][..], &["e", "a", "b"], &["e", "one", "b"], &["e"]] {
        world.commit(of(in_edge));
        world.settle(60);
    }
    let mut fleet = FleetFile::default();
    fleet.groups.entry(edge()).or_default().suspend = true;
    world.commit_with(of(&["e", "one"]), fleet);
    world.pass(30);
    let group = |world: &World, name: GroupName| world.master().durable.groups[&name].clone();
    let waiting = group(&world, GroupName::default_group());
    assert_eq!(waiting.why.map(|why| why.code).as_deref(), Some("moves-together"));
    world.commit_with(of(&["e", "b"]), FleetFile::default());
    world.settle(60);
    assert!(group(&world, GroupName::default_group()).active == group(&world, edge()).active);
    assert_eq!((starts(&world), stops(&world)), before);
}

/// F1: the agent restarts; nothing else does.
#[test]
fn f1_an_agent_restarts_and_adopts() {
    let mut world = settled(3);
    let before = (starts(&world), stops(&world));
    for index in 0..3 {
        let back_at = world.now + 5_000;
        world.workers[index].crash(back_at);
    }
    world.pass(60);
    assert!(world.is_converged());
    assert_eq!((starts(&world), stops(&world)), before);
    let adopted: usize = world
        .workers
        .iter()
        .map(|worker| worker.acts.iter().filter(|act| act.contains("Adopt")).count())
        .sum();
    assert_eq!(adopted, 4);
}

/// F2: a worker reboots and makes everything again; nobody else changes.
#[test]
fn f2_a_worker_reboots() {
    let mut world = settled(3);
    let index = place(&world, "a/0");
    let others: Vec<(u64, u64)> = world.workers.iter().map(|worker| (worker.starts, worker.stops)).collect();
    let back_at = world.now + 30_000;
    world.workers[index].reboot(back_at, 200_000_000);
    world.pass(30);
    world.settle(120);
    for (at, worker) in world.workers.iter().enumerate().filter(|(at, _)| *at != index) {
        assert_eq!((worker.starts, worker.stops), others[at]);
    }
    assert_eq!(world.moved, 0);
}

/// F3: silent for a minute: nothing moves, nothing restarts.
#[test]
fn f3_a_worker_is_silent_for_a_while() {
    let mut world = settled(3);
    let before = (starts(&world), stops(&world));
    let index = place(&world, "a/0");
    world.workers[index].is_mute = true;
    world.pass(65);
    assert_eq!(world.master().shown_state(&world.workers[index].name.clone()), WorkerState::Unknown);
    assert_eq!(code_of(&world, "a/0"), Some(Code::WorkerUnknown));
    world.workers[index].is_mute = false;
    world.settle(60);
    assert_eq!((starts(&world), stops(&world), world.moved), (before.0, before.1, 0));
}

/// F4, F5: lost: exactly its instances move; it returns: nothing moves back, its copies go, never two singletons.
#[test]
fn f4_f5_a_worker_is_lost_and_returns() {
    let mut world = settled(4);
    let index = place(&world, "one/0");
    let name = world.workers[index].name.clone();
    let had = world
        .master()
        .durable
        .placements
        .values()
        .filter(|place| place.worker.as_ref() == Some(&name))
        .count();
    world.workers[index].is_mute = true;
    world.workers[index].is_deaf = true;
    world.pass(330);
    assert_eq!(world.moved as usize, had);
    world.pass(60);
    assert_ne!(place(&world, "one/0"), index, "it was fenced long before");
    let (moved, stopped) = (world.moved, world.workers[index].stops);
    world.workers[index].is_mute = false;
    world.workers[index].is_deaf = false;
    world.settle(120);
    assert_eq!(world.moved, moved, "nothing moves back");
    assert!(world.workers[index].stops >= stopped && world.workers[index].here.machines.is_empty());
}

/// Section 8: `b/1` has no place while its worker is lost, and may run the new spec then: it has nothing to lose. Its worker
/// comes back with it at work while `b/0` is still away: it keeps what it runs until the rollout has its turn.
#[test]
fn what_comes_back_at_work_waits_for_its_turn() {
    let mut world = World::new(7, (1, 2), None);
    let spec = |version: &str| {
        let mut spec = vm("b", 2, version);
        spec.spread.max_per_worker = 1;
        spec
    };
    world.commit(vec![spec("v1")]);
    world.settle(120);
    world.pass(30);
    let (first, second) = (place(&world, "b/0"), place(&world, "b/1"));
    world.workers[first].here.is_disk_low = true;
    world.commit(vec![spec("v2")]);
    world.pass(10);
    let runs = |world: &World, at: usize, key: &str| {
        world.workers[at].here.machines[&InstanceKey::parse(key).unwrap()].vm_hash
    };
    let (old, new) = (vm_hash(&spec("v1")), vm_hash(&spec("v2")));
    let released = |world: &World, key: &str| {
        world.master().durable.placements[&InstanceKey::parse(key).unwrap()].released
    };
    assert_eq!((released(&world, "b/0"), released(&world, "b/1")), (new, old), "one at a time");
    world.workers[second].is_mute = true;
    world.workers[second].is_deaf = true;
    world.pass(330);
    assert_eq!(released(&world, "b/1"), new, "it is lost, and has no place");
    world.workers[second].is_mute = false;
    world.workers[second].is_deaf = false;
    world.pass(60);
    assert_eq!((runs(&world, second, "b/1"), released(&world, "b/1")), (old, old), "`b/0` is away");
    world.workers[first].here.is_disk_low = false;
    world.settle(120);
    assert_eq!((runs(&world, first, "b/0"), runs(&world, second, "b/1")), (new, new));
}

/// F6: three of five silent: nothing is placed elsewhere, and the status says so.
#[test]
fn f6_the_brake() {
    let mut world = settled(5);
    for index in 0..3 {
        world.workers[index].is_mute = true;
    }
    world.pass(400);
    assert_eq!(world.moved, 0);
    let shown = status(world.master(), false);
    assert!(shown.brake.active && shown.state == State::Degraded);
    for index in 0..3 {
        world.workers[index].is_mute = false;
    }
    world.settle(120);
    assert_eq!(world.moved, 0);
}

/// F7: the master dies at every write of a publication: old or new, whole.
#[test]
fn f7_the_master_dies_while_publishing() {
    let mut world = settled(2);
    for round in 0..10 {
        world.odds.crash = 3;
        world.commit(vec![vm("a", 3, &format!("r{round}")), singleton("one", "v1")]);
        world.pass(20);
        world.odds.crash = 0;
        world.settle(300);
    }
}

/// F8: the master is away for ten minutes: all runs on, and drift is repaired; singletons wait for it.
#[test]
fn f8_the_master_is_away() {
    let mut world = settled(2);
    world.commit(vec![vm("a", 3, "v1"), vm("b", 1, "v1")]);
    world.settle(120);
    world.crash_master(0);
    world.masters[0].back_at = world.now + 600_000;
    world.pass(60);
    let index = place(&world, "a/0");
    kill_one(&mut world, index);
    world.pass(60);
    assert!(
        world.cluster().is_none() && ["a/0", "a/1", "a/2", "b/0"].iter().all(|key| place(&world, key) < 2)
    );
    world.pass(500);
    world.settle(120);
    assert_eq!(world.moved, 0);
}

/// F14: two pushes at once: the newer one stays.
#[test]
fn f14_the_newer_of_two_commits_stays() {
    let mut world = settled(2);
    let first = world.commit(vec![vm("a", 1, "v2")]);
    let second = world.commit(vec![vm("a", 2, "v3")]);
    let (low, high) = {
        let ids = [world.commits[first].id.clone(), world.commits[second].id.clone()];
        let (master, _) = world.cluster_mut().unwrap();
        (master.reserve(&ids[0]), master.reserve(&ids[1]))
    };
    let group = GroupName::default_group();
    let newer = world.publication(second, &group, high);
    let older = world.publication(first, &group, low);
    let (master, now) = world.cluster_mut().unwrap();
    assert_eq!(format!("{:?}", master.publish(&newer, now).outcome), "Accepted");
    assert_eq!(format!("{:?}", master.publish(&older, now).outcome), "Stale");
}

/// F15, F16: a revert goes back without a download; a revert of labels restarts nothing.
#[test]
fn f15_f16_a_revert_goes_back() {
    let mut world = settled(2);
    let old = vec![vm("a", 3, "v1"), singleton("one", "v1")];
    world.commit(vec![vm("a", 3, "v2"), singleton("one", "v1")]);
    world.settle(300);
    let fetched = |world: &World| {
        world.workers.iter().flat_map(|worker| &worker.acts).filter(|act| act.contains("Fetch")).count()
    };
    let (before, other) = (fetched(&world), place(&world, "one/0"));
    world.commit(old.clone());
    world.settle(300);
    assert_eq!((fetched(&world), place(&world, "one/0")), (before, other));
    let before = (starts(&world), stops(&world));
    let mut labelled = old.clone();
    labelled[0].labels.insert("tier".to_owned(), "web".to_owned());
    world.commit(labelled);
    world.settle(60);
    world.commit(old);
    world.settle(60);
    assert_eq!((starts(&world), stops(&world)), before);
}

/// F19: a new image that ends at once holds the rollout; the others keep the old one; a fix goes on.
#[test]
fn f19_a_bad_image_holds_the_rollout() {
    let mut world = settled(2);
    let bad = vm("a", 3, "bad");
    world.make_crash(&bad);
    world.commit(vec![bad, singleton("one", "v1")]);
    world.pass(180);
    let shown = status(world.master(), false);
    assert_eq!((world.count(EventKind::RolloutHeld), shown.state), (1, State::Degraded));
    let ready =
        shown.instances.iter().filter(|instance| instance.key.vm.as_str() == "a" && instance.ready).count();
    assert_eq!(ready, 2, "two keep the old one");
    assert_eq!(code_of(&world, "a/1"), Some(Code::WaitingForRollout));
    let rollout = shown.rollouts.iter().find(|rollout| rollout.vm.as_str() == "a").unwrap();
    assert_eq!(rollout.code, Some(Code::CrashLoop));
    let message = rollout.message.as_deref().unwrap();
    assert!(message.starts_with("the rollout stopped at a/0 (crash-loop)"), "{message}");
    world.commit(vec![vm("a", 3, "v3"), singleton("one", "v1")]);
    world.settle(300);
}

/// F20: an instance killed by hand is back.
#[test]
fn f20_a_killed_machine_is_back() {
    let mut world = settled(2);
    // Long after its release: that was in time.
    world.pass(700);
    let index = place(&world, "a/0");
    kill_one(&mut world, index);
    world.pass(6);
    assert!(
        world
            .master()
            .ears
            .values()
            .any(|ear| ear.seen.values().any(|seen| seen.seen.code == Some(Code::ProcessGone)))
    );
    world.settle_whole(30);
    assert_eq!(world.count(EventKind::RolloutHeld), 0);
}

/// F12, F13, F25: what cannot be fetched leaves the old one, with its code.
#[test]
fn f12_f13_f25_what_cannot_be_fetched_leaves_the_old_one() {
    for code in [Code::MissingDependency, Code::NarMismatch, Code::SignatureRejected, Code::DiskPressure] {
        let mut world = settled(2);
        let new = vm("a", 3, "v2");
        for worker in &mut world.workers {
            match code {
                Code::DiskPressure => worker.here.is_disk_low = true,
                code => drop(worker.bad_fetch.insert(stead_engine::fleet::canon::vm_hash(&new), code)),
            }
        }
        let before = stops(&world);
        world.commit(vec![new, singleton("one", "v1")]);
        world.pass(60);
        assert_eq!(stops(&world), before, "{code}");
        assert_eq!(code_of(&world, "a/0"), Some(code));
        for worker in &mut world.workers {
            worker.bad_fetch.clear();
            worker.here.is_disk_low = false;
        }
        world.settle(400);
    }
}

/// F26: a list that is suddenly empty is held, and an approval lets it pass.
#[test]
fn f26_an_empty_list_is_held() {
    let mut world = settled(2);
    let before = stops(&world);
    world.commit(vec![]);
    world.pass(30);
    let shown = status(world.master(), false);
    assert_eq!((stops(&world), shown.state), (before, State::Degraded));
    assert!(
        shown.groups.iter().any(|group| group.held.as_ref().is_some_and(|held| held.code == "empty-set"))
    );
    world.commit(vec![vm("a", 3, "v1"), singleton("one", "v1")]);
    world.settle(60);
    assert_eq!(stops(&world), before, "a later generation supersedes the held one");
}

/// Case 10: a drained worker is left, the new copy being ready first; undone, nothing moves back.
#[test]
fn drains_are_made_before_they_break() {
    let mut world = settled(3);
    let specs = world.commits[0].specs.clone();
    let index = place(&world, "a/0");
    let mut fleet = FleetFile::default();
    fleet.workers.entry(world.workers[index].name.clone()).or_default().drain = true;
    world.commit_with(specs.clone(), fleet);
    for _ in 0..120 {
        world.step();
        let ready = (0..3).filter(|ordinal| {
            let key = InstanceKey::parse(&format!("a/{ordinal}")).unwrap();
            world.workers.iter().any(|worker| worker.runs(&key))
        });
        let shown = |worker: &super::worker::Worker| {
            format!("{}: {:?} {:?}", worker.name, worker.here.machines, worker.acts)
        };
        let all: Vec<String> = world.workers.iter().map(shown).collect();
        assert_eq!(ready.count(), 3, "a copy runs at every moment: {all:#?}");
    }
    world.settle(60);
    assert!(world.workers[index].here.machines.is_empty());
    let moved = world.moved;
    world.commit_with(specs, FleetFile::default());
    world.settle(60);
    assert_eq!(world.moved, moved);
}

/// F9, F26: the master's state is lost. What runs stays as it is while nothing is published, while what is published is
/// held, and when what was there is published again.
#[test]
fn f9_f26_a_lost_state_is_taken_from_reports() {
    let mut world = settled(3);
    let before = (starts(&world), stops(&world));
    let workers = world.store.durable.workers.keys().map(|name| (name.clone(), None)).collect();
    world.store.durable = Rc::new(Durable { workers, ..Durable::default() });
    world.watermark = Default::default();
    world.elect(0);
    let (master, now) = world.cluster_mut().unwrap();
    master.begin_rebuild(now);
    world.pass(150);
    assert_eq!((starts(&world), stops(&world)), before, "leases are renewed, and nothing is known");
    assert_eq!(code_of(&world, "a/0"), Some(Code::WaitingForAssignment));
    world.commit(vec![]);
    world.pass(60);
    let held = status(world.master(), false).groups.into_iter().find_map(|group| group.held).unwrap();
    assert_eq!((held.code.as_str(), held.stops, held.running), ("empty-set", 4, 4));
    assert_eq!((starts(&world), stops(&world)), before);
    world.commit(vec![vm("a", 3, "v1"), singleton("one", "v1")]);
    world.settle(120);
    assert_eq!((starts(&world), stops(&world), world.moved), (before.0, before.1, 0));
    assert!(world.master().is_rebuilt(false));
}

//! Masters and machines that stand still, and clocks that somebody sets.

use std::panic::{AssertUnwindSafe, catch_unwind};

use stead_model::fleet::state::WorkerState;
use stead_model::fleet::{Code, InstanceKey, Millis};

use super::scenarios::{place, settled, several, starts, stops};
use super::world::{Message, Plant, World, singleton, vm};

const HOUR: i64 = 3_600_000;

/// Returns what an invariant said of a script, if one did.
fn found(script: impl FnOnce()) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(script)).err()?;
    Some(panic.downcast_ref::<String>().cloned().unwrap_or_default())
}

/// Whether a process of the singleton is there on a worker.
fn has_one(world: &World, index: usize) -> bool {
    world.workers[index].runs(&InstanceKey::parse("one/0").unwrap())
}

/// Cuts a worker off from everybody.
fn cut(world: &mut World, index: usize) {
    world.workers[index].is_mute = true;
    world.workers[index].is_deaf = true;
}

/// F23: whatever anybody's time of day becomes, with the leader it was set under and with the next one, nobody is lost, and
/// nothing is stopped or moved.
#[test]
fn f23_clocks_that_are_set_change_nothing() {
    for jump in [HOUR, -HOUR] {
        let mut world = several(2, 3, None);
        let before = (starts(&world), stops(&world));
        for round in 0..3 {
            world.masters.iter_mut().for_each(|master| master.wall = jump);
            world.workers.iter_mut().for_each(|worker| worker.set_time_of_day(-jump));
            // One hour ahead of the last leader, then one behind the next.
            let leader = world.leader().unwrap();
            world.masters[leader].wall = if round == 1 { -jump } else { jump };
            world.crash_master(leader);
            world.pass(150);
            let states = world.master().presence.states.values();
            assert!(states.into_iter().all(|state| *state == WorkerState::Ready), "{jump} {round}");
        }
        assert!(world.is_converged());
        assert_eq!((starts(&world), stops(&world), world.moved), (before.0, before.1, 0), "{jump}");
    }
}

/// Cuts the worker of a singleton off, sets its time of day, and returns after how long it was fenced.
fn fenced_after(jump: i64, plant: Option<Plant>) -> Millis {
    let mut world = several(1, 4, plant);
    let index = place(&world, "one/0");
    let until = world.workers[index].here.lease_until - world.workers[index].clock(world.now);
    cut(&mut world, index);
    world.workers[index].set_time_of_day(jump);
    let since = world.now;
    while has_one(&world, index) {
        world.step();
    }
    let after = world.now - since;
    assert!(after >= until, "an early fence: after {after}, the lease had {until} to go");
    assert!(after <= until + 5_500, "a late fence: after {after}, the lease had {until} to go");
    after
}

/// F23: a fence is neither early nor late. A worker that went by its time of day would be found out, one way and the other.
#[test]
fn f23_fences_are_in_time() {
    for jump in [HOUR, 0, -HOUR] {
        assert!(fenced_after(jump, None) > 100_000);
        let script = || assert!(fenced_after(jump, Some(Plant::LeaseByTimeOfDay)) > 0);
        let why = found(script).unwrap_or_default();
        let word = ["no-double-singleton", "", "an early fence"][usize::try_from(jump / HOUR + 1).unwrap()];
        assert!(why.contains(word) && why.is_empty() == (jump == 0), "{jump}: {why}");
    }
}

/// F24: heartbeats that are repeated, late or out of order are counted and say nothing: who is silent is.
#[test]
fn f24_heartbeats_that_come_again_say_nothing() {
    let mut world = settled(4);
    let index = place(&world, "one/0");
    let name = world.workers[index].name.clone();
    let mut heard = Vec::new();
    for _ in 0..120 {
        world.step();
        let beats = world
            .post
            .values()
            .filter(|message| matches!(message, Message::Beat { from, .. } if *from == index));
        heard.extend(beats.cloned());
    }
    assert!(heard.len() >= 10);
    cut(&mut world, index);
    // The last first, and for as long as it takes.
    for turn in 0..64 {
        let again = heard[heard.len() - 1 - turn % heard.len()].clone();
        let due = world.now + 1;
        world.post.insert((due, u64::MAX), again);
        world.pass(5);
    }
    assert!(world.master().ears[&name].replayed >= 64);
    assert_eq!(world.master().presence.states[&name], WorkerState::Lost);
    assert_ne!(place(&world, "one/0"), index, "it was given up in time");
}

/// F6 with several masters: the brake holds across a takeover, whose leader has heard nobody yet.
#[test]
fn f6_the_brake_outlives_its_leader() {
    let mut world = several(2, 5, None);
    (0..3).for_each(|index| cut(&mut world, index));
    world.pass(400);
    assert!(world.master().presence.brake.is_some());
    let leader = world.leader().unwrap();
    world.crash_master(leader);
    world.masters[leader].back_at = world.now + 900_000;
    world.pass(400);
    assert!(world.leader().is_some_and(|next| next != leader) && world.master().presence.brake.is_some());
    assert_eq!(world.moved, 0);
}

/// A leader stands still while another one takes over and a commit is published; what it had in mind when it goes on
/// is not written, whether its clock stood still with it or not.
#[test]
fn a_leader_that_stood_still_writes_nothing() {
    for clock_stands in [true, false] {
        let mut world = several(3, 3, None);
        let leader = world.leader().unwrap();
        let before = (starts(&world), stops(&world));
        world.freeze_writing(leader, 400_000, clock_stands);
        world.pass(10);
        let next = world.leader().expect("another one leads within ten seconds");
        assert_ne!(next, leader);
        world.pass(30);
        assert_eq!((starts(&world), stops(&world), world.moved), (before.0, before.1, 0), "nothing restarts");
        world.commit(vec![vm("a", 3, "v2"), singleton("one", "v1")]);
        world.settle(200);
        let refused = world.store.refused;
        let believes = |world: &World| world.masters[leader].lead.is_some();
        while world.masters[leader].asleep.is_some() {
            assert!(believes(&world));
            world.step();
        }
        world.pass(5);
        assert!(!believes(&world) && world.store.refused > refused, "it tried, and found out");
        world.settle(60);
        assert_eq!(world.leader(), Some(next));
    }
}

/// A leader's machine is suspended, and only the worker of the singleton still talks to it. The next leader cannot hear that
/// worker and starts the singleton elsewhere, long after the fence.
fn a_leader_sleeps(plant: Option<Plant>) {
    let mut world = several(2, 3, plant);
    let (leader, index) = (world.leader().unwrap(), place(&world, "one/0"));
    world.mute.insert((index, 1 - leader));
    world.deaf.insert((index, 1 - leader));
    world.freeze_master(leader, 600_000, true);
    world.pass(590);
    assert_ne!(place(&world, "one/0"), index);
    world.pass(60);
    assert!(!has_one(&world, index));
}

/// Section 9: a leader that slept and does not know it grants no lease. One that went by a clock that slept with it
/// would: two singletons.
#[test]
fn a_leader_that_slept_grants_no_lease() {
    assert_eq!(found(|| a_leader_sleeps(None)), None);
    let why = found(|| a_leader_sleeps(Some(Plant::LeaseByStandingClock))).unwrap_or_default();
    assert!(why.contains("no-double-singleton"), "{why}");
}

/// A leader that loses its store changes nothing, and lets no singleton run beyond its lease; the next one leads.
#[test]
fn a_leader_without_its_store_is_followed() {
    let mut world = several(2, 3, None);
    let leader = world.leader().unwrap();
    let before = (starts(&world), stops(&world));
    world.masters[leader].is_cut = true;
    world.pass(60);
    let next = world.leader().unwrap();
    assert_ne!(next, leader);
    assert!(world.masters[leader].lead.is_some(), "it cannot know");
    let states = world.master().presence.states.values();
    assert!(states.into_iter().all(|state| *state == WorkerState::Ready), "everybody found the next one");
    world.settle(60);
    assert_eq!((starts(&world), stops(&world), world.moved), (before.0, before.1, 0));
    world.masters[leader].is_cut = false;
    world.pass(5);
    assert!(world.masters[leader].lead.is_none());
}

/// A machine that is suspended for a while goes on as it was: nothing moved, nothing restarted.
#[test]
fn a_worker_that_is_suspended_goes_on() {
    let mut world = settled(3);
    let before = (starts(&world), stops(&world));
    let index = place(&world, "one/0");
    let until = world.now + 70_000;
    world.workers[index].suspend(until);
    world.pass(65);
    assert_eq!(world.master().presence.states[&world.workers[index].name], WorkerState::Unknown);
    world.settle(60);
    assert_eq!((starts(&world), stops(&world), world.moved), (before.0, before.1, 0));
}

/// A machine that is suspended beyond its lease stops its singleton as soon as it wakes up; the replacement, which
/// began long after the lease, stays where it is.
#[test]
fn a_worker_that_slept_through_its_lease_is_fenced() {
    let mut world = settled(4);
    let index = place(&world, "one/0");
    let until = world.now + 500_000;
    world.workers[index].suspend(until);
    world.pass(499);
    assert!(has_one(&world, index), "it is only asleep");
    let moved = world.moved;
    assert!(moved > 0);
    world.pass(1);
    let codes: Vec<Code> = world.workers[index].codes().collect();
    assert!(codes.contains(&Code::Fenced), "{codes:?}");
    world.pass(5);
    assert!(!has_one(&world, index));
    world.settle(120);
    assert_eq!(world.moved, moved, "nothing moves back");
}

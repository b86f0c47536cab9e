//! Budgets, canaries, holds, and what a random fleet never does.

use stead_model::fleet::vm::Amount;

use super::*;
use crate::fleet::testing::{Dice, vm_id};

const OLD: Digest = Digest([1; 32]);
const NEW: Digest = Digest([2; 32]);
const NOW: Millis = 1_000_000;

fn healthy(ordinal: u32, hash: Digest) -> Instance {
    Instance {
        key: InstanceKey::new(&vm_id("web"), ordinal),
        released: hash,
        released_at: NOW - 60_000,
        is_assigned: true,
        is_frozen: false,
        seen: Some(Sight { hash: Some(hash), is_running: true, ready_since: Some(0), exits: 0 }),
    }
}

fn broken(ordinal: u32, hash: Digest, exits: u32) -> Instance {
    let seen = Some(Sight { hash: Some(hash), is_running: false, ready_since: None, exits });
    Instance { seen, ..healthy(ordinal, hash) }
}

fn decide(instances: &[Instance], settings: Rollout, memory: &mut Memory, now: Millis) -> Decision {
    let vm = vm_id("web");
    let replicas = u32::try_from(instances.len()).unwrap();
    let rolling = Rolling { vm: &vm, target: NEW, settings, replicas, is_frozen: false, instances };
    rollout(&rolling, memory, now)
}

fn released(instances: &[Instance], settings: Rollout) -> Vec<u32> {
    let decision = decide(instances, settings, &mut Memory::default(), NOW);
    decision.release.iter().map(|key| key.ordinal).collect()
}

/// Case 3: one at a time, in their order, and the next only once the last has been ready for long enough.
#[test]
fn healthy_instances_go_one_at_a_time() {
    let mut instances: Vec<Instance> = (0..3).map(|ordinal| healthy(ordinal, OLD)).collect();
    assert_eq!(released(&instances, Rollout::default()), [0]);
    instances[0].released = NEW;
    assert_eq!(released(&instances, Rollout::default()), Vec::<u32>::new(), "it is about to go down");
    instances[0] = healthy(0, NEW);
    instances[0].seen.as_mut().unwrap().ready_since = Some(NOW - 9_999);
    assert_eq!(
        released(&instances, Rollout::default()),
        Vec::<u32>::new(),
        "it is not ready for long enough"
    );
    instances[0] = healthy(0, NEW);
    assert_eq!(released(&instances, Rollout::default()), [1]);
    let two = Rollout { max_unavailable: Amount::Percent(70), ..Rollout::default() };
    assert_eq!(released(&[healthy(0, OLD), healthy(1, OLD), healthy(2, OLD)], two), [0, 1]);
}

/// Section 8: what is broken is released at once, whatever the budget; what is silent is not touched.
#[test]
fn what_is_broken_goes_at_once_and_what_is_silent_waits() {
    let instances = [healthy(0, OLD), broken(1, OLD, 1), broken(2, OLD, 0)];
    assert_eq!(released(&instances, Rollout::default()), [1, 2]);
    let silent = Instance { seen: None, ..healthy(1, OLD) };
    assert_eq!(released(&[healthy(0, OLD), silent.clone()], Rollout::default()), Vec::<u32>::new());
    let two = Rollout { max_unavailable: Amount::Count(2), ..Rollout::default() };
    assert_eq!(released(&[healthy(0, OLD), silent], two), [0]);
    // A commit went back before the worker acted: what runs the target already costs nothing.
    let back = Instance { released: OLD, ..healthy(0, NEW) };
    assert_eq!(released(&[back, broken(1, NEW, 0)], Rollout::default()), [0]);
}

/// Section 8: what has no place is away, though a copy of it that leaves still works, and waits for one.
#[test]
fn what_has_no_place_is_away() {
    let homeless = Instance { is_assigned: false, ..healthy(2, OLD) };
    let instances = [healthy(0, OLD), healthy(1, OLD), homeless];
    assert_eq!(released(&instances, Rollout::default()), Vec::<u32>::new());
    let two = Rollout { max_unavailable: Amount::Count(2), ..Rollout::default() };
    assert_eq!(released(&instances, two), [0]);
    let canary = Rollout { canary: 1, max_unavailable: Amount::Count(3), ..Rollout::default() };
    let first = Instance { is_assigned: false, ..healthy(0, NEW) };
    assert_eq!(released(&[first, healthy(1, OLD)], canary), Vec::<u32>::new(), "a canary without a place");
}

#[test]
fn canaries_go_alone() {
    let settings = Rollout { canary: 1, max_unavailable: Amount::Count(3), ..Rollout::default() };
    let mut instances: Vec<Instance> = (0..4).map(|ordinal| healthy(ordinal, OLD)).collect();
    assert_eq!(released(&instances, settings), [0]);
    instances[0] = broken(0, NEW, 0);
    assert_eq!(released(&instances, settings), Vec::<u32>::new());
    instances[0] = healthy(0, NEW);
    assert_eq!(released(&instances, settings), [1, 2, 3]);
}

/// F19: a crash loop or a missed deadline stops it for good; another spec starts anew.
#[test]
fn trouble_holds_the_rollout_until_another_spec() {
    for (instance, now, code) in
        [(broken(0, NEW, 3), NOW, Code::CrashLoop), (broken(0, NEW, 1), NOW + 600_000, Code::NotReady)]
    {
        let mut memory = Memory { target: Some(NEW), ..Memory::default() };
        let instances = [instance, healthy(1, OLD), healthy(2, OLD)];
        let decision = decide(&instances, Rollout::default(), &mut memory, now);
        assert_eq!((decision.phase, decision.release), (Phase::Held, vec![]));
        assert_eq!(memory.hold.as_ref().map(|hold| hold.code), Some(code));
        // It recovers by itself, and the hold stays.
        let instances = [healthy(0, NEW), healthy(1, OLD), healthy(2, OLD)];
        assert_eq!(decide(&instances, Rollout::default(), &mut memory, now).phase, Phase::Held);
        // A fix, or a revert, is another spec.
        let vm = vm_id("web");
        let fix = Rolling {
            vm: &vm,
            target: OLD,
            settings: Rollout::default(),
            replicas: 3,
            is_frozen: false,
            instances: &[broken(0, NEW, 3), healthy(1, OLD), healthy(2, OLD)],
        };
        let decision = rollout(&fix, &mut memory, now);
        assert_eq!((decision.release.len(), memory.hold), (1, None));
    }
    let free = Rollout { auto_hold: false, ..Rollout::default() };
    let instances = [broken(0, NEW, 9), healthy(1, OLD)];
    assert_eq!(decide(&instances, free, &mut Memory::default(), NOW).phase, Phase::Running);
}

/// F20, section 8: an instance that was ready in time may end whenever it likes: that is no matter of the rollout.
#[test]
fn what_was_ready_in_time_holds_nothing_later() {
    let mut memory = Memory::default();
    let ready = [healthy(0, NEW), healthy(1, NEW)];
    assert_eq!(decide(&ready, Rollout::default(), &mut memory, NOW).phase, Phase::Done);
    let ended = [broken(0, NEW, 1), healthy(1, NEW)];
    let later = NOW + 3_600_000;
    assert_eq!(decide(&ended, Rollout::default(), &mut memory, later).phase, Phase::Done);
    assert_eq!(memory.hold, None);
    // One that was scaled away and is new again has its deadline again.
    decide(&ready[..1], Rollout::default(), &mut memory, later);
    let anew = [healthy(0, NEW), broken(1, NEW, 0)];
    assert_eq!(decide(&anew, Rollout::default(), &mut memory, later).phase, Phase::Held);
    // Where nothing waits, a hold is over once everything is ready.
    assert_eq!(decide(&ready, Rollout::default(), &mut memory, later).phase, Phase::Done);
}

/// Section 8: a rollout is done when everything is ready, not when everything has the new spec.
#[test]
fn a_rollout_is_done_when_all_are_ready() {
    let mut memory = Memory::default();
    let started = [healthy(0, NEW), broken(1, NEW, 0)];
    let decision = decide(&started, Rollout::default(), &mut memory, NOW);
    assert_eq!((decision.phase, decision.updated), (Phase::Running, 2));
    let ready = [healthy(0, NEW), healthy(1, NEW)];
    assert_eq!(decide(&ready, Rollout::default(), &mut memory, NOW).phase, Phase::Done);
}

#[test]
fn pauses_and_suspensions_freeze_releases() {
    let instances = [broken(0, OLD, 0), healthy(1, OLD)];
    let paused = Rollout { pause: true, ..Rollout::default() };
    let decision = decide(&instances, paused, &mut Memory::default(), NOW);
    assert_eq!((decision.phase, decision.release), (Phase::Paused, vec![]));
    let done = [healthy(0, NEW), healthy(1, NEW)];
    assert_eq!(decide(&done, paused, &mut Memory::default(), NOW).phase, Phase::Done);
}

/// Sections 7, 8: what a suspended worker keeps is not released and stops nobody; another is the canary in its place.
#[test]
fn what_is_suspended_is_passed_over() {
    let kept = |instance: Instance| Instance { is_frozen: true, ..instance };
    let rest = [healthy(1, OLD), healthy(2, OLD), healthy(3, OLD)];
    let with = |first: &Instance| [std::slice::from_ref(first), &rest].concat();
    let many = Rollout { max_unavailable: Amount::Count(4), ..Rollout::default() };
    let canary = Rollout { canary: 1, ..many };
    // The last one was released, and runs, what a commit then took back.
    let back = Instance { released: OLD, ..healthy(0, NEW) };
    for first in [healthy(0, OLD), broken(0, OLD, 0), back] {
        let mut instances = with(&kept(first));
        assert_eq!(released(&instances, many), [1, 2, 3]);
        assert_eq!(released(&instances, canary), [1]);
        instances[1] = broken(1, NEW, 0);
        assert_eq!(released(&instances, canary), Vec::<u32>::new(), "the canary in its place is not ready");
        instances[1] = healthy(1, NEW);
        assert_eq!(released(&instances, canary), [2, 3]);
        assert_eq!(released(&instances, Rollout { canary: 2, ..canary }), [2]);
    }
    assert_eq!(released(&with(&kept(healthy(0, OLD))), Rollout::default()), [1]);
    // A canary that has its spec is one, suspended or not.
    assert_eq!(released(&with(&kept(healthy(0, NEW))), canary), [1, 2, 3]);
    assert_eq!(released(&with(&kept(broken(0, NEW, 0))), canary), Vec::<u32>::new());
}

/// Section 8: what may not be replaced is not late, whether its worker is suspended or its VM is frozen. What crashes with the
/// new spec crashes.
#[test]
fn nothing_is_late_while_it_is_frozen() {
    let vm = vm_id("web");
    let later = NOW + 3_600_000;
    let hold = |first: Instance, is_frozen: bool| {
        let instances = [first, healthy(1, OLD)];
        let settings = Rollout::default();
        let rolling =
            Rolling { vm: &vm, target: NEW, settings, replicas: 2, is_frozen, instances: &instances };
        let mut memory = Memory { target: Some(NEW), ..Memory::default() };
        let phase = rollout(&rolling, &mut memory, later).phase;
        (phase, memory.hold.map(|hold| hold.code))
    };
    let waits = Instance { released: NEW, ..healthy(0, OLD) };
    let kept = Instance { is_frozen: true, ..waits.clone() };
    assert_eq!(hold(waits.clone(), false), (Phase::Held, Some(Code::NotReady)));
    assert_eq!(hold(waits, true), (Phase::Paused, None));
    assert_eq!(hold(kept, false), (Phase::Running, None));
    let crashes = Instance { is_frozen: true, ..broken(0, NEW, 3) };
    assert_eq!(hold(crashes.clone(), false), (Phase::Held, Some(Code::CrashLoop)));
    assert_eq!(hold(crashes, true), (Phase::Paused, None), "nothing is released meanwhile");
}

#[test]
fn moves_start_the_new_copy_first_unless_two_must_not_run() {
    assert_eq!(handover(false, false, false), Handover::Overlap);
    assert_eq!(handover(false, true, false), Handover::StopOld);
    assert_eq!(handover(true, false, false), Handover::WaitForStop);
    assert_eq!(handover(true, true, false), Handover::WaitForStop);
    assert_eq!(handover(true, false, true), Handover::StopOld);
}

/// Section 8: our own acts never take more than the budget away; 10,000 random fleets.
#[test]
fn the_budget_is_never_exceeded() {
    let mut dice = Dice::new(3);
    for case in 0..10_000 {
        let replicas = 1 + u32::try_from(dice.below(8)).unwrap();
        let instances: Vec<Instance> = (0..replicas)
            .map(|ordinal| {
                let hash = if dice.one_in(3) { NEW } else { OLD };
                let is_frozen = dice.one_in(6);
                let instance = match dice.below(5) {
                    0 => broken(ordinal, hash, u32::try_from(dice.below(4)).unwrap()),
                    1 => Instance { seen: None, ..healthy(ordinal, hash) },
                    2 => Instance { released: NEW, ..healthy(ordinal, OLD) },
                    _ => healthy(ordinal, hash),
                };
                Instance { is_frozen, is_assigned: !dice.one_in(8), ..instance }
            })
            .collect();
        let settings = Rollout {
            max_unavailable: Amount::Count(1 + u32::try_from(dice.below(3)).unwrap()),
            canary: u32::try_from(dice.below(3)).unwrap(),
            ..Rollout::default()
        };
        let mut memory = Memory::default();
        let decision = decide(&instances, settings, &mut memory, NOW);
        let is_available = |instance: &Instance| instance.is_available(10_000, NOW);
        let away = instances.iter().filter(|instance| !is_available(instance)).count();
        let taken = instances
            .iter()
            .filter(|instance| is_available(instance) && decision.release.contains(&instance.key))
            .count();
        let most = settings.max_unavailable.of(replicas) as usize;
        assert!(taken == 0 || away + taken <= most, "case {case}: {away} away, {taken} taken of {most}");
        assert!(memory.hold.is_none() || decision.release.is_empty(), "case {case}");
        let mut kept = instances.iter().filter(|instance| instance.is_frozen);
        assert!(kept.all(|instance| !decision.release.contains(&instance.key)), "case {case}");
        let again = decide(&instances, settings, &mut memory, NOW);
        assert_eq!(again, decision, "case {case}: the same look twice");
    }
}

//! Each row of the table, and what no worker ever does.

use super::*;
use crate::fleet::canon::vm_hash;
use crate::fleet::testing::{Dice, vm, vm_id};

const NOW: Millis = 1_000_000;

fn key(text: &str) -> InstanceKey {
    InstanceKey::parse(text).unwrap()
}

/// Returns an assignment of these, each as it is to run.
fn assign(specs: &[&VmSpec], leaving: bool) -> Assignment {
    let instances = specs
        .iter()
        .enumerate()
        .map(|(index, spec)| Assigned {
            instance: InstanceKey::new(&spec.id, 0),
            generation: 1,
            vm_hash: vm_hash(spec),
            spec: u32::try_from(index).unwrap(),
            leaving,
            frozen: false,
        })
        .collect();
    let specs = specs.iter().map(|spec| Arc::new(VmSpec::clone(spec))).collect();
    Assignment { generation: 1, revision: 1, epoch: 1, specs, instances }
}

fn local(hash: Digest, state: LocalState) -> Local {
    Local { vm_hash: hash, is_singleton: false, state, attempts: 0, next_retry: 0, is_adopted: true }
}

fn here(machines: &[(&str, Local)]) -> Here {
    Here {
        machines: machines.iter().map(|(name, machine)| (key(name), machine.clone())).collect(),
        lease_until: Millis::MAX,
        ..Here::default()
    }
}

fn with(mut here: Here, hash: Digest, state: ClosureState) -> Here {
    here.closures.insert(hash, Closure { state, ..Closure::default() });
    here
}

fn other(spec: &VmSpec) -> VmSpec {
    let mut spec = spec.clone();
    spec.runtime.argv = vec!["new".to_owned()];
    spec
}

/// Section 10: nothing to do; not there; other hash, whose bits come first.
#[test]
fn bits_come_before_anything_stops() {
    let old = vm("a", 1, 1, 1);
    let new = other(&old);
    let (from, to) = (vm_hash(&old), vm_hash(&new));
    let running = here(&[("a/0", local(from, LocalState::Running))]);
    assert_eq!(reconcile(&assign(&[&old], false), &running, NOW), Reconciled::default());
    let assignment = assign(&[&new], false);
    for (state, steps) in [
        (ClosureState::Absent, vec![Step::Fetch(to)]),
        (ClosureState::Fetching, vec![]),
        (ClosureState::Fetched, vec![Step::Root(to)]),
        (ClosureState::Rooted, vec![Step::Replace { instance: key("a/0"), from, to }]),
    ] {
        assert_eq!(reconcile(&assignment, &with(running.clone(), to, state), NOW).steps, steps, "{state:?}");
        let start = match steps.first() {
            Some(Step::Replace { .. }) => vec![Step::Start { instance: key("a/0"), vm_hash: to }],
            Some(_) | None => steps,
        };
        assert_eq!(reconcile(&assignment, &with(here(&[]), to, state), NOW).steps, start, "{state:?}");
    }
}

/// F12, F13, F25: what cannot be fetched never stops the old one, and says why.
#[test]
fn a_failed_fetch_stops_nothing() {
    let old = vm("a", 1, 1, 1);
    let new = other(&old);
    let assignment = assign(&[&new], false);
    for code in [Code::MissingDependency, Code::NarMismatch, Code::SignatureRejected] {
        let mut here = here(&[("a/0", local(vm_hash(&old), LocalState::Running))]);
        let closure = Closure { failures: 1, next_retry: NOW + 5, code: Some(code), ..Closure::default() };
        here.closures.insert(vm_hash(&new), closure);
        let found = reconcile(&assignment, &here, NOW);
        assert_eq!((found.steps, found.codes[&key("a/0")], found.wake_at), (vec![], code, Some(NOW + 5)));
    }
    let mut full = here(&[("a/0", local(vm_hash(&old), LocalState::Running))]);
    full.is_disk_low = true;
    let found = reconcile(&assignment, &full, NOW);
    assert_eq!((found.steps, found.codes[&key("a/0")]), (vec![], Code::DiskPressure));
    let mut odd = here(&[("a/0", local(vm_hash(&old), LocalState::Running))]);
    odd.unsupported.insert(vm_hash(&new));
    assert_eq!(reconcile(&assignment, &odd, NOW).codes[&key("a/0")], Code::SpecUnsupported);
    // The old one dies meanwhile: it is started again.
    let gone = LocalState::Gone { exit: Exit::Killed, ran_for: 0, is_counted: true };
    let dead = with(here(&[("a/0", local(vm_hash(&old), gone))]), vm_hash(&old), ClosureState::Rooted);
    let steps = reconcile(&assignment, &dead, NOW).steps;
    assert!(steps.contains(&Step::Start { instance: key("a/0"), vm_hash: vm_hash(&old) }), "{steps:?}");
}

/// F1: what runs is taken over, once, without a restart.
#[test]
fn what_runs_is_adopted() {
    let spec = vm("a", 1, 1, 1);
    let machine = Local { is_adopted: false, ..local(vm_hash(&spec), LocalState::Running) };
    let found = reconcile(&assign(&[&spec], false), &here(&[("a/0", machine)]), NOW);
    assert_eq!(found.steps, [Step::Adopt(key("a/0"))]);
}

/// Section 10, F22: what is ours and not assigned goes; an empty assignment stops all of ours; the rest is not ours.
#[test]
fn what_nobody_wants_goes_and_what_is_foreign_stays() {
    let spec = vm("a", 1, 1, 1);
    let mut here = here(&[
        ("a/0", local(vm_hash(&spec), LocalState::Running)),
        ("b/0", local(vm_hash(&spec), LocalState::Remains)),
    ]);
    here.foreign.insert("somebody's machine".to_owned());
    let found = reconcile(&Assignment::default(), &here, NOW);
    let stop = Step::Stop { instance: key("a/0"), why: StopReason::NotAssigned };
    assert_eq!(found.steps, [stop, Step::Clean(key("b/0"))]);
    assert_eq!(found.codes[&key("a/0")], Code::Orphan);
}

/// F20, case 14: ends by policy, waits that double, and their reset after a stable time.
#[test]
fn ends_are_counted_and_waited_for() {
    let mut spec = vm("a", 1, 1, 1);
    let hash = vm_hash(&spec);
    let mut look = |policy, exit, attempts, ran_for, is_counted, next_retry| {
        spec.restart.policy = policy;
        let state = LocalState::Gone { exit, ran_for, is_counted };
        let machine = Local { attempts, next_retry, ..local(hash, state) };
        let here = with(here(&[("a/0", machine)]), hash, ClosureState::Rooted);
        let found = reconcile(&assign(&[&spec], false), &here, NOW);
        (found.steps, found.codes.get(&key("a/0")).copied())
    };
    let count = |attempts, wait| vec![Step::Count { instance: key("a/0"), attempts, next_retry: NOW + wait }];
    let start = vec![Step::Start { instance: key("a/0"), vm_hash: hash }];
    use RestartPolicy::{Always, Never, OnFailure};
    assert_eq!(look(Always, Exit::Killed, 0, 5, false, 0), (count(1, 10_000), Some(Code::ProcessGone)));
    assert_eq!(look(Always, Exit::Status(0), 1, 5, false, 0), (count(2, 20_000), Some(Code::Exited)));
    assert_eq!(look(Always, Exit::Status(1), 9, 5, false, 0), (count(10, 300_000), Some(Code::CrashLoop)));
    assert_eq!(
        look(Always, Exit::Status(1), 9, 600_000, false, 0),
        (count(1, 10_000), Some(Code::CrashLoop))
    );
    assert_eq!(look(Always, Exit::Killed, 1, 5, true, NOW), (start, Some(Code::ProcessGone)));
    assert_eq!(look(Always, Exit::Killed, 1, 5, true, NOW + 1).0, []);
    assert_eq!(look(OnFailure, Exit::Status(0), 0, 5, false, 0), (vec![], Some(Code::Exited)));
    assert_eq!(look(OnFailure, Exit::Status(3), 0, 5, false, 0).0, count(1, 10_000));
    assert_eq!(look(Never, Exit::Status(3), 0, 5, false, 0).0, []);
    assert_eq!(look(Always, Exit::Refused, 0, 5, false, 0), (vec![], Some(Code::DriverError)));
    // What could not be started this time is no end of its own: it is tried again whatever the policy.
    assert_eq!(look(Never, Exit::Failed, 3, 0, false, 0), (count(4, 80_000), Some(Code::DriverError)));
}

/// Section 9: a singleton without a lease stops and does not start.
#[test]
fn singletons_are_fenced() {
    let mut spec = vm("a", 1, 1, 1);
    spec.singleton = true;
    let assignment = assign(&[&spec], false);
    let mut running = here(&[("a/0", local(vm_hash(&spec), LocalState::Running))]);
    running.lease_until = NOW + 1;
    let found = reconcile(&assignment, &running, NOW);
    assert_eq!((found.steps, found.wake_at), (vec![], Some(NOW + 1)));
    running.lease_until = NOW;
    let found = reconcile(&assignment, &running, NOW);
    assert_eq!(found.steps, [Step::Stop { instance: key("a/0"), why: StopReason::Fenced }]);
    assert_eq!(found.codes[&key("a/0")], Code::Fenced);
    let mut absent = with(here(&[]), vm_hash(&spec), ClosureState::Rooted);
    absent.lease_until = NOW;
    assert_eq!(reconcile(&assignment, &absent, NOW).steps, []);
}

/// Section 10: leaving and frozen copies are neither replaced nor made.
#[test]
fn what_leaves_is_left_alone() {
    let old = vm("a", 1, 1, 1);
    let new = other(&old);
    let running = with(
        here(&[("a/0", local(vm_hash(&old), LocalState::Running))]),
        vm_hash(&new),
        ClosureState::Rooted,
    );
    assert_eq!(reconcile(&assign(&[&new], true), &running, NOW).steps, []);
    assert_eq!(reconcile(&assign(&[&new], true), &here(&[]), NOW).steps, []);
}

#[test]
fn older_assignments_are_ignored() {
    let of =
        |epoch, generation, revision| Assignment { epoch, generation, revision, ..Assignment::default() };
    let applied = of(2, 5, 7);
    for (incoming, newer) in [
        (of(2, 5, 8), true),
        (of(2, 6, 1), true),
        (of(3, 5, 1), true),
        (of(2, 5, 7), false),
        (of(2, 5, 6), false),
        (of(1, 9, 9), false),
        (of(3, 4, 9), false),
    ] {
        assert_eq!(is_newer(&applied, &incoming), newer, "{incoming:?}");
    }
}

#[test]
fn at_most_so_many_at_once() {
    let specs: Vec<VmSpec> = (0..12)
        .map(|index| {
            let mut spec = vm(&format!("v{index}"), 1, 1, 1);
            spec.runtime.argv = vec![index.to_string()];
            spec
        })
        .collect();
    let refs: Vec<&VmSpec> = specs.iter().collect();
    let assignment = assign(&refs, false);
    assert_eq!(reconcile(&assignment, &here(&[]), NOW).steps.len(), MOST_FETCHES);
    let mut ready = here(&[]);
    for spec in &specs {
        ready = with(ready, vm_hash(spec), ClosureState::Rooted);
    }
    assert_eq!(reconcile(&assignment, &ready, NOW).steps.len(), MOST_STARTS);
}

/// Case 13: what runs, is released or was there lately is kept.
#[test]
fn old_closures_may_go() {
    let hash = |byte| Digest([byte; 32]);
    let history = [(vm_id("a"), vec![hash(1), hash(2), hash(3), hash(4)])].into();
    let in_use = [hash(4)].into();
    let here = [vm_id("a")].into();
    assert_eq!(collectable(&history, &here, &in_use, 2), [hash(1)]);
    assert_eq!(collectable(&history, &here, &in_use, 0), [hash(1), hash(2), hash(3)]);
    assert_eq!(collectable(&history, &here, &[hash(1), hash(4)].into(), 1), [hash(2)]);
    // A VM that is not here any more needs nothing of what it had.
    assert_eq!(collectable(&history, &BTreeSet::new(), &BTreeSet::new(), 2).len(), 4);
}

/// Over random worlds: nothing wanted stops before its bits are rooted, nothing is done twice, and steps that are taken
/// lead to rest.
#[test]
fn steps_lead_to_rest_and_never_stop_early() {
    for case in 0..10_000 {
        let mut dice = Dice::new(case);
        let specs: Vec<VmSpec> = (0..1 + dice.below(4)).map(|i| vm(&format!("v{i}"), 1, 1, 1)).collect();
        let mut wanted: Vec<VmSpec> = Vec::new();
        for spec in &specs {
            match dice.below(3) {
                0 => {}
                1 => wanted.push(other(spec)),
                _ => wanted.push(spec.clone()),
            }
        }
        let refs: Vec<&VmSpec> = wanted.iter().collect();
        let assignment = assign(&refs, false);
        let mut world = here(&[]);
        for spec in &specs {
            if dice.one_in(2) {
                let state = *dice.pick(&[
                    LocalState::Running,
                    LocalState::Remains,
                    LocalState::Gone { exit: Exit::Killed, ran_for: 1, is_counted: false },
                ]);
                world.machines.insert(InstanceKey::new(&spec.id, 0), local(vm_hash(spec), state));
                world
                    .closures
                    .insert(vm_hash(spec), Closure { state: ClosureState::Rooted, ..Closure::default() });
            }
        }
        let mut now = NOW;
        for _ in 0..12 {
            let found = reconcile(&assignment, &world, now);
            if found.steps.is_empty() && found.wake_at.is_none() {
                break;
            }
            for step in found.steps {
                take(&mut world, &assignment, step, case);
            }
            now = found.wake_at.unwrap_or(now) + 1;
        }
        let running: Vec<(&InstanceKey, Digest)> = world
            .machines
            .iter()
            .filter(|(_, machine)| machine.state == LocalState::Running)
            .map(|(key, machine)| (key, machine.vm_hash))
            .collect();
        let expected: Vec<(&InstanceKey, Digest)> =
            assignment.instances.iter().map(|assigned| (&assigned.instance, assigned.vm_hash)).collect();
        assert_eq!(running, expected, "case {case}");
        assert_eq!(world.machines.len(), expected.len(), "case {case}: nothing is left over");
    }
}

fn take(world: &mut Here, assignment: &Assignment, step: Step, case: u64) {
    let rooted = |world: &Here, hash: &Digest| {
        world.closures.get(hash).is_some_and(|closure| closure.state == ClosureState::Rooted)
    };
    match step {
        Step::Adopt(_) => {}
        Step::Count { instance, attempts, next_retry } => {
            let machine = world.machines.get_mut(&instance).unwrap();
            machine.attempts = attempts;
            machine.next_retry = next_retry;
            machine.state = LocalState::Gone { exit: Exit::Killed, ran_for: 1, is_counted: true };
        }
        Step::Stop { instance, .. } => {
            assert!(assignment.instances.iter().all(|a| a.instance != instance), "case {case}");
            world.machines.get_mut(&instance).unwrap().state = LocalState::Remains;
        }
        Step::Clean(instance) => drop(world.machines.remove(&instance)),
        Step::Fetch(hash) => {
            world.closures.insert(hash, Closure { state: ClosureState::Fetched, ..Closure::default() });
        }
        Step::Root(hash) => {
            world.closures.insert(hash, Closure { state: ClosureState::Rooted, ..Closure::default() });
        }
        Step::Replace { instance, to, .. } | Step::Start { instance, vm_hash: to } => {
            assert!(rooted(world, &to), "case {case}: started without its bits");
            world.machines.insert(instance, local(to, LocalState::Running));
        }
    }
}

/// Section 9: at the end of the lease a singleton ends whatever it is doing, also one that only its record knows.
#[test]
fn no_singleton_outlives_its_lease() {
    let mut spec = vm("a", 1, 1, 1);
    spec.singleton = true;
    let stop = vec![Step::Stop { instance: key("a/0"), why: StopReason::Fenced }];
    for state in [LocalState::Running, LocalState::Starting, LocalState::Stopping, LocalState::Begun] {
        let machine = Local { is_singleton: true, ..local(vm_hash(&spec), state) };
        let mut fenced = here(&[("a/0", machine)]);
        fenced.lease_until = NOW;
        assert_eq!(reconcile(&assign(&[&spec], false), &fenced, NOW).steps, stop, "{state:?}");
        assert_eq!(reconcile(&assign(&[], false), &fenced, NOW).steps, stop, "{state:?}, not assigned");
        assert_eq!(fence_all(&fenced, NOW).steps, stop, "{state:?}, nothing known");
        fenced.lease_until = NOW + 1;
        let kept = fence_all(&fenced, NOW);
        assert_eq!((kept.steps, kept.wake_at), (vec![], Some(NOW + 1)));
    }
    let others = here(&[("b/0", local(vm_hash(&spec), LocalState::Running))]);
    assert_eq!(fence_all(&Here { lease_until: 0, ..others }, NOW), Reconciled::default());
}

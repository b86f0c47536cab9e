//! The golden, and single rules.

use stead_model::fleet::state::WorkerState;
use stead_model::fleet::vm::OnLost;

use super::*;
use crate::fleet::testing::{Dice, requires, vm, volume, worker, worker_name};

type Places = BTreeMap<InstanceKey, Previous>;

fn places(schedule: &Schedule) -> Places {
    schedule.assign.iter().map(|(key, worker)| (key.clone(), Previous::on(worker))).collect()
}

fn run(vms: &[Arc<VmSpec>], workers: &[WorkerView], previous: &Places) -> Schedule {
    schedule(&Wanted { vms, workers, previous, policy: SchedulePolicy::default() })
}

fn shown(schedule: &Schedule) -> Vec<String> {
    schedule.assign.iter().map(|(key, worker)| format!("{key} {worker}")).collect()
}

fn moved(schedule: &Schedule) -> Vec<String> {
    let from = |from: &Option<WorkerName>| from.as_ref().map(ToString::to_string).unwrap_or_default();
    let moves = schedule.moves.iter();
    moves.map(|a| format!("{} {}>{} {:?}", a.instance, from(&a.from), a.to, a.reason)).collect()
}

fn golden() -> (Vec<Arc<VmSpec>>, Vec<WorkerView>) {
    let mut web = vm("web", 3, 1000, 512);
    web.selector = vec![requires("disk", "ssd")];
    let mut cache = vm("cache", 4, 250, 128);
    cache.spread.key = Some("zone".to_owned());
    let workers = vec![
        worker("w1", 4000, 4096, &[("zone", "a"), ("disk", "ssd")]),
        worker("w2", 4000, 4096, &[("zone", "a"), ("disk", "ssd")]),
        worker("w3", 4000, 4096, &[("zone", "b"), ("disk", "hdd")]),
    ];
    (vec![Arc::new(web), Arc::new(cache), Arc::new(vm("job", 2, 500, 1024))], workers)
}

/// Case 9: the golden of section 7, its inputs in every order.
#[test]
fn the_golden_is_placed_moved_and_left() {
    let (mut vms, mut workers) = golden();
    let mut dice = Dice::new(7);
    for _ in 0..20 {
        dice.shuffle(&mut vms);
        dice.shuffle(&mut workers);
        let first = run(&vms, &workers, &Places::new());
        assert_eq!(
            shown(&first),
            [
                "cache/0 w3",
                "cache/1 w2",
                "cache/2 w1",
                "cache/3 w3",
                "job/0 w3",
                "job/1 w2",
                "web/0 w1",
                "web/1 w2",
                "web/2 w1"
            ]
        );
        assert_eq!(first.moves.len(), 9);
        let mut fewer = workers.clone();
        fewer
            .iter_mut()
            .filter(|worker| worker.id.as_str() == "w1")
            .for_each(|worker| worker.state = WorkerState::Lost);
        let lost = run(&vms, &fewer, &places(&first));
        assert_eq!(
            moved(&lost),
            ["cache/2 w1>w2 WorkerLost", "web/0 w1>w2 WorkerLost", "web/2 w1>w2 WorkerLost"]
        );
        let back = run(&vms, &workers, &places(&lost));
        assert_eq!((moved(&back), shown(&back)), (vec![], shown(&lost)));
    }
}

/// Case 10: counts add up to the workers, and say what is missing.
#[test]
fn what_fits_nowhere_says_why() {
    let mut big = vm("big", 2, 100, 9000);
    big.selector = vec![requires("disk", "ssd")];
    let mut workers: Vec<WorkerView> =
        (0..3).map(|i| worker(&format!("s{i}"), 4000, 8488, &[("disk", "ssd")])).collect();
    workers.extend((0..2).map(|i| worker(&format!("h{i}"), 4000, 16384, &[])));
    let vms = [Arc::new(big)];
    let found = run(&vms, &workers, &Places::new());
    let refusals: Vec<&Refusals> = found.unschedulable.values().collect();
    assert_eq!(refusals.len(), 2);
    assert_eq!(refusals[0].text, "5 workers: 2 label disk=ssd, 3 memory short by 512 MiB");
    assert_eq!(refusals[0].filters.values().sum::<u32>(), refusals[0].workers);
    workers.push(worker("s9", 4000, 20000, &[("disk", "ssd")]));
    let joined = run(&vms, &workers, &places(&found));
    assert_eq!(moved(&joined), ["big/0 >s9 New", "big/1 >s9 New"]);
}

/// Sections 7, 12: a worker whose agent does not know the form of a spec gets none of it. It counts under that filter, after
/// driver and arch and before labels.
#[test]
fn what_a_worker_is_too_old_for_goes_elsewhere() {
    let mut tied = vm("tied", 2, 500, 512);
    tied.selector = vec![requires("disk", "ssd")];
    let vms = [Arc::new(tied)];
    let mut old = worker("w1", 4000, 4096, &[("disk", "ssd")]);
    old.spec_version = 0;
    let mut other = worker("w2", 4000, 4096, &[]);
    (other.spec_version, other.arch) = (0, stead_model::fleet::vm::Arch::Arm);
    let mut plain = worker("w3", 4000, 4096, &[]);
    plain.spec_version = 0;
    let found = run(&vms, &[old.clone(), other, plain], &Places::new());
    let refusals = found.unschedulable.values().next().unwrap();
    assert_eq!(refusals.filters, [(Filter::Arch, 1), (Filter::SpecVersion, 2)].into());
    assert_eq!(refusals.text, "3 workers: 1 not x86_64, 2 too old for its spec");
    let new = worker("w4", 4000, 4096, &[("disk", "ssd")]);
    let found = run(&vms, &[old.clone(), new.clone()], &Places::new());
    assert_eq!(shown(&found), ["tied/0 w4", "tied/1 w4"]);
    // Its agent was brought up to date: it takes its part of what is new, and what runs stays.
    old.spec_version = new.spec_version;
    let mut more = (*vms[0]).clone();
    more.replicas = 3;
    let found = run(&[Arc::new(more)], &[old, new], &places(&found));
    assert_eq!(moved(&found), ["tied/2 >w1 New"]);
}

/// Case 10: drained instances leave, one that fits nowhere stays; cordon adds nothing; both undone move nothing.
#[test]
fn drains_and_cordons_are_kept_and_undone() {
    let mut tied = vm("tied", 1, 500, 512);
    tied.selector = vec![requires("disk", "ssd")];
    let vms = [Arc::new(tied), Arc::new(vm("free", 1, 500, 512))];
    let mut workers = vec![worker("w1", 4000, 4096, &[("disk", "ssd")])];
    let first = run(&vms, &workers, &Places::new());
    workers.push(worker("w2", 4000, 4096, &[]));
    workers[0].state = WorkerState::Draining;
    let drained = run(&vms, &workers, &places(&first));
    assert_eq!(moved(&drained), ["free/0 w1>w2 Drained"]);
    assert_eq!(drained.drain_blocked.iter().map(ToString::to_string).collect::<Vec<_>>(), ["tied/0"]);
    assert_eq!(run(&vms, &workers, &places(&drained)).moves, []);
    workers[0].state = WorkerState::Ready;
    assert_eq!(run(&vms, &workers, &places(&drained)).moves, []);
    workers[0].state = WorkerState::Cordoned;
    let more = [Arc::clone(&vms[0]), Arc::new(vm("free", 3, 500, 512))];
    assert_eq!(moved(&run(&more, &workers, &places(&drained))), ["free/1 >w2 New", "free/2 >w2 New"]);
}

/// Case 4, and the other reasons an instance leaves its worker.
#[test]
fn every_move_has_its_reason() {
    let workers =
        vec![worker("w1", 4000, 4096, &[("disk", "ssd")]), worker("w2", 4000, 4096, &[("disk", "hdd")])];
    let on_w1: Places = [(InstanceKey::parse("a/0").unwrap(), Previous::on(&worker_name("w1")))].into();
    let with = |change: &dyn Fn(&mut VmSpec)| {
        let mut spec = vm("a", 1, 1000, 1024);
        change(&mut spec);
        moved(&run(&[Arc::new(spec)], &workers, &on_w1))
    };
    assert_eq!(with(&|_| {}), Vec::<String>::new());
    assert_eq!(with(&|spec| spec.selector = vec![requires("disk", "hdd")]), ["a/0 w1>w2 SelectorChanged"]);
    assert_eq!(with(&|spec| spec.pin = Some(worker_name("w2"))), ["a/0 w1>w2 Pinned"]);
    let mut small = workers.clone();
    small[0].allocatable.mem_mib = 1000;
    let spec = [Arc::new(vm("a", 1, 1000, 1024))];
    assert_eq!(moved(&run(&spec, &small, &on_w1)), ["a/0 w1>w2 CapacityShrunk"]);
    assert_eq!(moved(&run(&spec, &workers[1..], &on_w1)), ["a/0 w1>w2 WorkerLost"]);
}

/// Sections 3 and 7: what waits, and what has its volume there, stays with a lost worker; a movable volume does not.
#[test]
fn what_is_bound_stays_with_its_worker() {
    let mut workers = vec![worker("w1", 4000, 4096, &[]), worker("w2", 4000, 4096, &[])];
    workers[0].state = WorkerState::Lost;
    for (change, moves) in [
        ((|spec: &mut VmSpec| spec.on_lost = OnLost::Wait) as fn(&mut VmSpec), 0),
        (|spec| spec.volumes.push(volume("data", false)), 0),
        (|spec| spec.volumes.push(volume("data", true)), 1),
        (|_| {}, 1),
    ] {
        let mut spec = vm("a", 1, 500, 512);
        change(&mut spec);
        let home = Previous { volumes_on: Some(worker_name("w1")), ..Previous::on(&worker_name("w1")) };
        let previous: Places = [(InstanceKey::parse("a/0").unwrap(), home)].into();
        assert_eq!(run(&[Arc::new(spec)], &workers, &previous).moves.len(), moves);
    }
    // The worker with the volume is gone for good: it waits, and says so.
    let mut spec = vm("a", 1, 500, 512);
    spec.volumes.push(volume("data", false));
    let home = Previous { volumes_on: Some(worker_name("w1")), ..Previous::on(&worker_name("w1")) };
    let previous: Places = [(InstanceKey::parse("a/0").unwrap(), home)].into();
    let found = run(&[Arc::new(spec)], &workers[1..], &previous);
    assert_eq!(found.unschedulable.values().next().unwrap().filters, [(Filter::Volume, 1)].into());
}

/// Section 2: what is suspended neither moves, grows nor shrinks.
#[test]
fn frozen_vms_stay_as_they_are() {
    let workers = vec![worker("w1", 4000, 4096, &[])];
    let vms = [Arc::new(vm("a", 2, 500, 512)), Arc::new(vm("b", 2, 500, 512))];
    let first = run(&vms, &workers, &Places::new());
    let mut away = workers.clone();
    away[0].state = WorkerState::Lost;
    away.push(worker("w2", 4000, 4096, &[]));
    let scaled = [Arc::new(vm("a", 4, 500, 512)), Arc::new(vm("b", 1, 500, 512))];
    for policy in [
        SchedulePolicy { freeze_all: true, ..SchedulePolicy::default() },
        SchedulePolicy { frozen: vms.iter().map(|vm| vm.id.clone()).collect(), ..SchedulePolicy::default() },
    ] {
        let found = schedule(&Wanted { vms: &scaled, workers: &away, previous: &places(&first), policy });
        assert_eq!((found.moves, found.assign, found.unschedulable.len()), (vec![], first.assign.clone(), 0));
    }
}

/// Section 7: only strictly lower priority gives way, and only where the policy says so.
#[test]
fn priority_takes_places_only_where_it_may() {
    let workers = vec![worker("w1", 1000, 1024, &[])];
    let low = run(&[Arc::new(vm("low", 2, 500, 512))], &workers, &Places::new());
    let mut high = vm("high", 1, 500, 512);
    high.priority = 1;
    let vms = [Arc::new(vm("low", 2, 500, 512)), Arc::new(high.clone())];
    assert_eq!(run(&vms, &workers, &places(&low)).moves, []);
    let policy = SchedulePolicy { preempt: true, ..SchedulePolicy::default() };
    let found =
        schedule(&Wanted { vms: &vms, workers: &workers, previous: &places(&low), policy: policy.clone() });
    assert_eq!(shown(&found), ["high/0 w1", "low/0 w1"]);
    let again =
        schedule(&Wanted { vms: &vms, workers: &workers, previous: &places(&found), policy: policy.clone() });
    assert_eq!((again.moves, again.assign), (vec![], found.assign));
    high.priority = 0;
    let vms = [Arc::clone(&vms[0]), Arc::new(high)];
    assert_eq!(schedule(&Wanted { vms: &vms, workers: &workers, previous: &places(&low), policy }).moves, []);
}

/// Section 7: balance moves as much as is granted and no more.
#[test]
fn balance_costs_what_is_granted() {
    let mut workers = vec![worker("w1", 4000, 4096, &[])];
    let vms = [Arc::new(vm("a", 6, 500, 512))];
    let first = run(&vms, &workers, &Places::new());
    workers.push(worker("w2", 4000, 4096, &[]));
    for (rebalance, moves) in [(0, 0), (2, 2), (9, 3)] {
        let policy = SchedulePolicy { rebalance, ..SchedulePolicy::default() };
        let found = schedule(&Wanted { vms: &vms, workers: &workers, previous: &places(&first), policy });
        assert_eq!(found.moves.len(), moves, "{rebalance}");
        assert!(found.moves.iter().all(|a| a.reason == MoveReason::Rebalance));
    }
}

/// Rows of VMs that are gone are used again: what is remembered does not grow with every id there ever was.
#[test]
fn rows_are_used_again() {
    let mut scheduler = Scheduler::new(SchedulePolicy::default());
    scheduler.set_worker(worker("w1", 4000, 4096, &[]));
    for number in 0..100 {
        let spec = vm(&format!("v{number}"), 2, 100, 64);
        scheduler.set_vm(Arc::new(spec.clone()));
        assert_eq!(scheduler.settle().len(), 2);
        scheduler.remove_vm(&spec.id);
        assert_eq!(scheduler.settle(), []);
    }
    assert_eq!(scheduler.row_count(), 1);
    // One that is frozen goes when it is not any more.
    let spec = vm("kept", 1, 100, 64);
    let frozen = SchedulePolicy { frozen: [spec.id.clone()].into(), ..SchedulePolicy::default() };
    scheduler.set_vm(Arc::new(spec.clone()));
    scheduler.settle();
    scheduler.set_policy(frozen);
    scheduler.remove_vm(&spec.id);
    assert!(scheduler.place_of(&InstanceKey::new(&spec.id, 0)).is_some());
    scheduler.set_policy(SchedulePolicy::default());
    scheduler.settle();
    scheduler.set_vm(Arc::new(vm("next", 1, 100, 64)));
    assert_eq!(scheduler.row_count(), 1);
}

//! What holds of every schedule, over random fleets: 10,000 cases each.

use stead_model::fleet::state::WorkerState;

use super::*;
use crate::fleet::testing::{Dice, any_wide_vm, any_wide_workers, worker};

const CASES: u64 = 10_000;

type Places = BTreeMap<InstanceKey, Previous>;

struct Case {
    dice: Dice,
    vms: Vec<Arc<VmSpec>>,
    workers: Vec<WorkerView>,
    previous: Places,
}

fn any_vms(dice: &mut Dice) -> Vec<Arc<VmSpec>> {
    let count = 1 + dice.below(3);
    (0..count).map(|index| Arc::new(any_wide_vm(dice, &format!("v{index}")))).collect()
}

/// Returns a random fleet that has settled, with workers in any state.
fn case(seed: u64) -> Case {
    let mut dice = Dice::new(seed);
    let vms = any_vms(&mut dice);
    let mut workers = any_wide_workers(&mut dice);
    let states: Vec<WorkerState> = workers.iter().map(|worker| worker.state).collect();
    workers.iter_mut().for_each(|worker| worker.state = WorkerState::Ready);
    let previous =
        if dice.one_in(4) { Places::new() } else { places(&vms, &run(&vms, &workers, &Places::new())) };
    workers.iter_mut().zip(states).for_each(|(worker, state)| worker.state = state);
    Case { dice, vms, workers, previous }
}

/// Returns where instances are, volumes included, as a master would keep it.
fn places(vms: &[Arc<VmSpec>], schedule: &Schedule) -> Places {
    let bound = |id: &VmId| vms.iter().any(|vm| vm.id == *id && vm.is_bound());
    schedule
        .assign
        .iter()
        .map(|(key, worker)| {
            let volumes_on = bound(&key.vm).then(|| worker.clone());
            (key.clone(), Previous { volumes_on, ..Previous::on(worker) })
        })
        .collect()
}

fn run(vms: &[Arc<VmSpec>], workers: &[WorkerView], previous: &Places) -> Schedule {
    schedule(&Wanted { vms, workers, previous, policy: SchedulePolicy::default() })
}

#[test]
fn the_order_of_inputs_changes_nothing() {
    for seed in 0..CASES {
        let Case { mut dice, mut vms, mut workers, previous } = case(seed);
        let first = run(&vms, &workers, &previous);
        dice.shuffle(&mut vms);
        dice.shuffle(&mut workers);
        assert_eq!(run(&vms, &workers, &previous), first, "seed {seed}");
    }
}

#[test]
fn hard_rules_are_never_broken() {
    for seed in 0..CASES {
        let Case { vms, workers, previous, .. } = case(seed);
        let found = run(&vms, &workers, &previous);
        for worker in &workers {
            let here: Vec<&InstanceKey> =
                found.assign.iter().filter(|(_, at)| **at == worker.id).map(|(key, _)| key).collect();
            let spec = |key: &InstanceKey| vms.iter().find(|vm| vm.id == key.vm).expect("it is wanted");
            let used = here.iter().fold(Resources::default(), |sum, key| sum.plus(spec(key).resources));
            assert!(used.cpu_milli <= worker.allocatable.cpu_milli, "seed {seed}");
            assert!(used.mem_mib <= worker.allocatable.mem_mib, "seed {seed}");
            assert!(used.disk_mib <= worker.allocatable.disk_mib.unwrap_or(u64::MAX), "seed {seed}");
            for key in &here {
                let vm = spec(key);
                assert!(vm.selector.iter().all(|rule| rule.holds(worker.label(&rule.key))), "seed {seed}");
                assert!(worker.drivers.contains(&vm.runtime.driver), "seed {seed}");
                assert!(worker.arch == vm.runtime.arch && worker.spec_version >= 1, "seed {seed}");
                assert!(vm.pin.as_ref().is_none_or(|pin| *pin == worker.id), "seed {seed}");
                assert!(!here.iter().any(|other| vm.spread.not_with.contains(&other.vm)), "seed {seed}");
                let same = here.iter().filter(|other| other.vm == key.vm).count();
                let most = vm.spread.max_per_worker as usize;
                assert!(most == 0 || same <= most, "seed {seed}");
                let was_here = previous.get(*key).and_then(|place| place.worker.as_ref()) == Some(&worker.id);
                assert!(was_here || (worker.state.receives() && !worker.disk_pressure), "seed {seed}");
                assert!(key.ordinal < vm.replicas, "seed {seed}");
            }
        }
        for (key, refusals) in &found.unschedulable {
            let refused: u32 = refusals.filters.values().sum();
            assert_eq!(refused as usize, workers.len(), "seed {seed}: {key} {refusals:?}");
        }
        let wanted: usize = vms.iter().map(|vm| vm.replicas as usize).sum();
        assert_eq!(found.assign.len() + found.unschedulable.len(), wanted, "seed {seed}");
    }
}

#[test]
fn feeding_the_result_back_changes_nothing() {
    for seed in 0..CASES {
        let Case { vms, workers, previous, .. } = case(seed);
        let first = run(&vms, &workers, &previous);
        let again = run(&vms, &workers, &places(&vms, &first));
        assert_eq!(again, Schedule { moves: vec![], ..first }, "seed {seed}");
    }
}

#[test]
fn losing_a_worker_moves_exactly_what_may_move_and_its_return_nothing() {
    for seed in 0..CASES {
        let Case { mut dice, vms, mut workers, .. } = case(seed);
        workers.iter_mut().for_each(|worker| worker.state = WorkerState::Ready);
        let first = run(&vms, &workers, &Places::new());
        let at = usize::try_from(dice.below(workers.len() as u64)).unwrap();
        workers[at].state = WorkerState::Lost;
        let lost = run(&vms, &workers, &places(&vms, &first));
        for (key, worker) in &first.assign {
            let vm = vms.iter().find(|vm| vm.id == key.vm).expect("it is wanted");
            let stays = *worker != workers[at].id
                || vm.on_lost == stead_model::fleet::vm::OnLost::Wait
                || vm.is_bound();
            assert_eq!(lost.assign.get(key) == Some(worker), stays, "seed {seed}: {key}");
        }
        workers[at].state = WorkerState::Ready;
        let back = run(&vms, &workers, &places(&vms, &lost));
        assert!(back.moves.iter().all(|a| a.reason == MoveReason::New), "seed {seed}: {:?}", back.moves);
    }
}

#[test]
fn a_new_worker_or_image_moves_nothing_and_scaling_down_takes_the_last() {
    for seed in 0..CASES {
        let Case { vms, mut workers, previous, .. } = case(seed);
        let first = run(&vms, &workers, &previous);
        workers.push(worker("w9", 4000, 8192, &[("zone", "d"), ("disk", "ssd")]));
        let before = places(&vms, &first);
        let joined = run(&vms, &workers, &before);
        let is_blocked = |a: &Move| first.drain_blocked.contains(&a.instance);
        assert!(joined.moves.iter().all(|a| a.from.is_none() || is_blocked(a)), "seed {seed}");
        workers.pop();
        let changed: Vec<Arc<VmSpec>> = vms
            .iter()
            .map(|vm| {
                let mut vm = VmSpec::clone(vm);
                vm.runtime.argv = vec!["new".to_owned()];
                Arc::new(vm)
            })
            .collect();
        assert_eq!(run(&changed, &workers, &before).moves, [], "seed {seed}");
        let fewer: Vec<Arc<VmSpec>> = vms
            .iter()
            .map(|vm| Arc::new(VmSpec { replicas: vm.replicas / 2, ..VmSpec::clone(vm) }))
            .collect();
        let scaled = run(&fewer, &workers, &before);
        for (key, worker) in &first.assign {
            let vm = fewer.iter().find(|vm| vm.id == key.vm).expect("it is wanted");
            let stays = key.ordinal < vm.replicas;
            let is_there = scaled.assign.get(key) == Some(worker);
            assert!(is_there == stays || first.drain_blocked.contains(key), "seed {seed}: {key}");
        }
    }
}

/// A scheduler that is changed step by step is where one is that starts from what it had.
#[test]
fn the_incremental_path_is_the_full_one() {
    for seed in 0..CASES {
        let mut dice = Dice::new(seed ^ 0xabcd);
        let mut policy = SchedulePolicy { preempt: dice.one_in(3), ..SchedulePolicy::default() };
        let mut scheduler = Scheduler::new(policy.clone());
        let (mut vms, mut workers): (BTreeMap<VmId, Arc<VmSpec>>, BTreeMap<WorkerName, WorkerView>) =
            Default::default();
        let mut previous = Places::new();
        let mut been: BTreeSet<InstanceKey> = BTreeSet::new();
        for vm in any_vms(&mut dice) {
            vms.insert(vm.id.clone(), Arc::clone(&vm));
            scheduler.set_vm(vm);
        }
        for step in 0..4 {
            match dice.below(9) {
                0 | 1 => {
                    for view in any_wide_workers(&mut dice) {
                        workers.insert(view.id.clone(), view.clone());
                        scheduler.set_worker(view);
                    }
                }
                2 => {
                    let id = format!("v{}", dice.below(4));
                    let vm = Arc::new(any_wide_vm(&mut dice, &id));
                    // A volume that comes and goes is not known to this test's bookkeeping.
                    let vm = Arc::new(VmSpec { volumes: vec![], ..VmSpec::clone(&vm) });
                    vms.insert(vm.id.clone(), Arc::clone(&vm));
                    scheduler.set_vm(vm);
                }
                3 => {
                    if let Some(name) = workers.keys().next().cloned() {
                        workers.remove(&name);
                        scheduler.remove_worker(&name);
                    }
                }
                4 => {
                    if let Some(id) = vms.keys().next().cloned()
                        && !policy.is_frozen(&id)
                    {
                        vms.remove(&id);
                        scheduler.remove_vm(&id);
                    }
                }
                5 => {
                    policy.frozen = vms.keys().filter(|_| dice.one_in(4)).cloned().collect();
                    scheduler.set_policy(policy.clone());
                }
                6 => {
                    // What copies take that leave, and how many moves for balance are left.
                    let size = Resources { cpu_milli: 500, mem_mib: 512, disk_mib: 0 };
                    let left: Vec<WorkerName> = workers.keys().filter(|_| dice.one_in(2)).cloned().collect();
                    policy.leaving = left.into_iter().map(|name| (name, size)).collect();
                    policy.rebalance = u32::try_from(dice.below(3)).unwrap();
                    scheduler.set_policy(policy.clone());
                }
                7 => {
                    let lost = been.iter().filter(|key| !previous.contains_key(*key)).cloned();
                    policy.brake = dice.one_in(2).then(|| lost.collect());
                    scheduler.set_policy(policy.clone());
                }
                _ => {}
            }
            let moves = scheduler.settle();
            let incremental = scheduler.schedule(moves);
            let all: Vec<Arc<VmSpec>> = vms.values().cloned().collect();
            let views: Vec<WorkerView> = workers.values().cloned().collect();
            let full =
                schedule(&Wanted { vms: &all, workers: &views, previous: &previous, policy: policy.clone() });
            assert_eq!(incremental, full, "seed {seed}, step {step}");
            been.extend(full.assign.keys().cloned());
            if let Some(homeless) = &mut policy.brake {
                *homeless = been.iter().filter(|key| !full.assign.contains_key(*key)).cloned().collect();
                scheduler.set_policy(policy.clone());
            }
            previous = full.assign.iter().map(|(key, worker)| (key.clone(), Previous::on(worker))).collect();
        }
    }
}

//! Random commits and random faults, then none.

use stead_engine::fleet::reconcile::{Exit, LocalState};
use stead_model::fleet::VmSpec;

use super::world::{Odds, World, singleton, vm};

/// Returns a random list of VMs, which fits the smallest fleet.
fn any_specs(world: &mut World) -> Vec<VmSpec> {
    let version = |world: &mut World| format!("v{}", world.dice.below(3));
    let mut specs = Vec::new();
    for id in ["a", "b"] {
        let replicas = 1 + u32::try_from(world.dice.below(3)).unwrap();
        let version = version(world);
        let mut spec = vm(id, replicas, &version);
        if world.dice.one_in(3) {
            spec.resources.mem_mib = 1_024;
        }
        if world.dice.one_in(2) {
            spec.spread.key = Some("zone".to_owned());
        }
        specs.push(spec);
    }
    if !world.dice.one_in(3) {
        let version = version(world);
        specs.push(singleton("one", &version));
    }
    specs
}

/// Some minutes in which everything may happen.
pub(super) fn storm(world: &mut World) {
    world.odds = Odds { loss: 12, twice: 10, delay: 8, crash: 150 };
    let specs = any_specs(world);
    world.commit(specs);
    // Most are short; some are long enough to lose workers.
    let length = if world.dice.one_in(4) { 300 + world.dice.below(400) } else { 60 + world.dice.below(120) };
    for _ in 0..length {
        world.pass(1);
        let (workers, masters) = (world.workers.len(), world.masters.len());
        let (index, master) = (any_of(world, workers), any_of(world, masters));
        let until = world.now + 5_000 + world.dice.below(400_000);
        match world.dice.below(155) {
            0 => {
                let specs = any_specs(world);
                world.commit(specs);
            }
            1 if world.workers[index].asleep_until.is_none() => {
                world.workers[index].crash(until.min(world.now + 60_000));
            }
            2 => {
                let skew = 100_000_000 + world.dice.below(10_000_000);
                world.workers[index].reboot(until, skew);
            }
            3 => world.workers[index].is_mute = true,
            4 => world.workers[index].is_deaf = true,
            5 => {
                world.workers[index].is_deaf = true;
                world.workers[index].is_mute = true;
            }
            6 => world.workers[index].here.is_disk_low = true,
            7 => kill_one(world, index),
            8 => world.crash_master(master),
            // Two lists at once: the first is superseded.
            10 => {
                let specs = any_specs(world);
                world.commit(specs);
                let specs = any_specs(world);
                world.commit(specs);
            }
            11..=30 => {
                let worker = &mut world.workers[index];
                worker.is_mute = false;
                worker.is_deaf = false;
                worker.here.is_disk_low = false;
                world.mute.retain(|(worker, _)| *worker != index);
                world.deaf.retain(|(worker, _)| *worker != index);
                world.masters[master].is_cut = false;
            }
            // Machines that stand still, with their clocks or without, and a process that does.
            31 | 32 => world.workers[index].suspend(until),
            33 | 34 => {
                let (length, clock_stands) = (world.dice.below(60_000), world.dice.one_in(2));
                world.freeze_master(master, length, clock_stands);
            }
            // Somebody sets a clock.
            35 => world.masters[master].wall = any_jump(world),
            36 => {
                let jump = any_jump(world);
                world.workers[index].set_time_of_day(jump);
            }
            // A master and its store, or a master and a worker, do not hear each other; or one does.
            37 => world.masters[master].is_cut = true,
            38 => drop(world.mute.insert((index, master))),
            39 => drop(world.deaf.insert((index, master))),
            40 => {
                world.mute.insert((index, master));
                world.deaf.insert((index, master));
            }
            _ => {}
        }
    }
}

fn any_of(world: &mut World, count: usize) -> usize {
    usize::try_from(world.dice.below(count as u64)).unwrap()
}

/// Returns how far somebody sets a clock: up to an hour ahead or back.
fn any_jump(world: &mut World) -> i64 {
    i64::try_from(world.dice.below(7_200_000)).unwrap() - 3_600_000
}

/// Somebody kills a machine.
pub(super) fn kill_one(world: &mut World, index: usize) {
    let worker = &mut world.workers[index];
    let now = worker.clock(world.now);
    let running = worker.here.machines.iter_mut().find(|(_, machine)| machine.state == LocalState::Running);
    if let Some((key, machine)) = running {
        let ran_for = worker.started.get(key).map_or(0, |at| now.saturating_sub(*at));
        machine.state = LocalState::Gone { exit: Exit::Killed, ran_for, is_counted: false };
    }
}

/// Faults are over: within ten minutes everything is as the newest commit says.
pub(super) fn calm(world: &mut World) {
    world.odds = Odds::default();
    for worker in &mut world.workers {
        worker.is_mute = false;
        worker.is_deaf = false;
        worker.here.is_disk_low = false;
        worker.back_at = worker.back_at.min(world.now + 1_000);
        worker.asleep_until = worker.asleep_until.map(|until| until.min(world.now + 1_000));
    }
    world.mute.clear();
    world.deaf.clear();
    for master in &mut world.masters {
        master.is_cut = false;
        master.back_at = master.back_at.min(world.now + 1_000);
        if let Some(sleep) = &mut master.asleep {
            sleep.until = sleep.until.min(world.now + 1_000);
        }
    }
    // A rollout that stopped in the storm goes on with the next commit.
    world.commit(vec![vm("a", 3, "final"), vm("b", 2, "final"), singleton("one", "final")]);
    world.settle_whole(600);
}

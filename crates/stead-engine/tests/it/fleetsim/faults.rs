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
        let count = world.workers.len() as u64;
        let index = usize::try_from(world.dice.below(count)).unwrap();
        let until = world.now + 5_000 + world.dice.below(400_000);
        match world.dice.below(140) {
            0 => {
                let specs = any_specs(world);
                world.commit(specs);
            }
            1 => world.workers[index].crash(until.min(world.now + 60_000)),
            2 => world.workers[index].reboot(until),
            3 => world.workers[index].is_mute = true,
            4 => world.workers[index].is_deaf = true,
            5 => {
                world.workers[index].is_deaf = true;
                world.workers[index].is_mute = true;
            }
            6 => world.workers[index].here.is_disk_low = true,
            7 => kill_one(world, index),
            8 => world.pause_master(),
            9 => world.crash_master(),
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
            }
            _ => {}
        }
    }
}

/// Somebody kills a machine.
pub(super) fn kill_one(world: &mut World, index: usize) {
    let (now, worker) = (world.now, &mut world.workers[index]);
    let running = worker.here.machines.iter_mut().find(|(_, machine)| machine.state == LocalState::Running);
    if let Some((key, machine)) = running {
        let ran_for = worker.started.get(key).map_or(0, |at| now - at);
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
    }
    world.master_back_at = world.master_back_at.min(world.now + 1_000);
    // A rollout that stopped in the storm goes on with the next commit.
    world.commit(vec![vm("a", 3, "final"), vm("b", 2, "final"), singleton("one", "final")]);
    world.settle_whole(600);
}

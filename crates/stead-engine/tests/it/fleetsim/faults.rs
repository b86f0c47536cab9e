//! Random commits and random faults, then none.

use std::time::Duration;

use stead_engine::fleet::reconcile::{Exit, LocalState};
use stead_model::fleet::labels::{Operator, Requirement};
use stead_model::fleet::state::{Hold, HoldTarget};
use stead_model::fleet::vm::{Retain, Volume};
use stead_model::fleet::{FleetFile, VmSpec};
use stead_model::{GroupName, WorkerName};

use super::worker::zone;
use super::world::{Odds, World, singleton, vm, vm_id};

/// Of what there may be on a worker so much is left that `small` always fits, wherever it has to be: processors for five of the
/// others and a bit, and memory for three of the largest and a bit.
const LARGE: (u64, u64) = (490, 1_000);

/// Returns a VM that fits everywhere.
fn small(id: &str, replicas: u32, version: &str) -> VmSpec {
    let mut spec = vm(id, replicas, version);
    (spec.resources.cpu_milli, spec.resources.mem_mib) = (5, 8);
    spec
}

pub(super) fn edge() -> GroupName {
    GroupName::parse("edge").unwrap()
}

fn volume(name: &str) -> Volume {
    Volume { name: vm_id(name), size_mib: 1, retain: Retain::Keep, movable: name != "data" }
}

/// Has a VM be on one worker.
fn pin(spec: &mut VmSpec, worker: &WorkerName) {
    spec.pin = Some(worker.clone());
    spec.labels.insert("pinned".to_owned(), worker.to_string());
}

/// Returns VMs that have to be somewhere: `v` has volumes, now and then, `p` says where. `m` goes from group to group, as `v`
/// does, and `e` is of the second one.
fn any_bound(world: &mut World) -> Vec<VmSpec> {
    let draw = |world: &mut World, id: &str, replicas: u64| {
        let version = format!("v{}", world.dice.below(3));
        let replicas = 1 + u32::try_from(world.dice.below(replicas)).unwrap();
        let mut spec = small(id, replicas, &version);
        if world.dice.one_in(3) {
            (spec.resources.cpu_milli, spec.resources.mem_mib) = (300, 256);
        }
        spec
    };
    let [mut v, mut p, mut m, mut e] =
        [("v", 2), ("p", 2), ("m", 1), ("e", 1)].map(|(id, replicas)| draw(world, id, replicas));
    match world.dice.below(6) {
        0 => {}
        1 => v.volumes.push(volume("scratch")),
        _ => v.volumes.push(volume("data")),
    }
    let workers = world.workers.len();
    let at = any_of(world, workers);
    let name = world.workers[at].name.clone();
    match world.dice.below(3) {
        0 => pin(&mut p, &name),
        1 => {
            let values = [zone(any_of(world, 2))].into();
            p.selector.push(Requirement { key: "zone".to_owned(), op: Operator::In, values });
        }
        _ => {}
    }
    e.group = edge();
    // Each goes its own way: now and then groups give each other something at once.
    for spec in [&mut v, &mut m] {
        if world.dice.one_in(3) {
            spec.group = edge();
        }
    }
    let mut specs = vec![v, p, m];
    // Whatever is not wanted for a while comes back.
    specs.retain(|_| !world.dice.one_in(6));
    specs.push(e);
    specs
}

/// Returns a random list of VMs, which fits the smallest fleet.
fn any_specs(world: &mut World) -> Vec<VmSpec> {
    // Somebody deletes everything by accident.
    if !world.commits.is_empty() && world.dice.one_in(12) {
        return Vec::new();
    }
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
    if world.is_wide {
        specs.iter_mut().for_each(keep_room);
        specs.extend(any_bound(world));
    }
    specs
}

/// Makes a VM leave a bit of its worker to others.
fn keep_room(spec: &mut VmSpec) {
    let resources = &mut spec.resources;
    resources.cpu_milli = resources.cpu_milli.min(LARGE.0);
    resources.mem_mib = resources.mem_mib.min(LARGE.1);
}

/// Returns a random `fleet.yaml`: what is drained, gets nothing new or stays as it is, and how soon somebody is lost.
fn any_fleet(world: &mut World) -> FleetFile {
    let mut fleet = FleetFile::default();
    let workers = world.workers.len();
    let at = any_of(world, workers);
    let name = world.workers[at].name.clone();
    let entry = fleet.workers.entry(name).or_default();
    match world.dice.below(8) {
        0 => entry.drain = true,
        1 => entry.cordon = true,
        2 => entry.suspend = true,
        3 => drop(fleet.suspend.vms.insert(vm_id("a"))),
        4 => fleet.suspend.all = true,
        5 => {
            let group = if world.dice.one_in(2) { GroupName::default_group() } else { edge() };
            fleet.groups.entry(group).or_default().suspend = true;
        }
        6 => {
            let liveness = &mut fleet.policy.liveness;
            liveness.unknown = Duration::from_secs(30);
            liveness.lease = Duration::from_secs(40);
            liveness.lost = Duration::from_secs(70);
        }
        // And whatever was said is taken back.
        _ => {}
    }
    fleet
}

/// An operator freezes something for a while.
fn hold_something(world: &mut World) {
    let (workers, length) = (world.workers.len(), world.dice.below(120_000));
    let at = any_of(world, workers);
    let target = match world.dice.below(3) {
        0 => HoldTarget::Worker(world.workers[at].name.clone()),
        1 if world.dice.one_in(2) => HoldTarget::Vm(vm_id("v")),
        1 => HoldTarget::Vm(vm_id("b")),
        _ if world.dice.one_in(2) => HoldTarget::Group(edge()),
        _ => HoldTarget::Group(GroupName::default_group()),
    };
    let id = format!("h{}", world.now);
    if let Some((cluster, clock)) = world.cluster_mut() {
        let until = clock + length;
        cluster.hold(Hold { id, target, until, by: "ann".to_owned(), reason: "looking".to_owned() });
    }
}

/// Some minutes in which everything may happen.
pub(super) fn storm(world: &mut World) {
    world.odds = Odds { loss: 12, twice: 10, delay: 8, crash: 150 };
    world.is_wide = world.dice.one_in(2);
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
            41 | 42 => {
                let (specs, fleet) = (any_specs(world), any_fleet(world));
                world.commit_with(specs, fleet);
            }
            43 => hold_something(world),
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
    // Whoever froze something thaws it: by a clock that was set back it would last an hour longer.
    while !world.store.durable.holds.is_empty() {
        if let Some((cluster, _)) = world.cluster_mut() {
            let ids: Vec<String> = cluster.durable.holds.keys().cloned().collect();
            ids.iter().for_each(|id| drop(cluster.release(id)));
        }
        world.pass(1);
    }
    // A rollout that stopped in the storm goes on with the next commit.
    let mut specs = vec![vm("a", 3, "final"), vm("b", 2, "final"), singleton("one", "final")];
    if world.is_wide {
        specs.iter_mut().for_each(keep_room);
        let [mut v, mut p, mut m, mut e] =
            [("v", 2), ("p", 1), ("m", 1), ("e", 1)].map(|(id, replicas)| small(id, replicas, "final"));
        v.volumes.push(volume("data"));
        pin(&mut p, &world.workers[0].name);
        (v.group, m.group, e.group) = (edge(), edge(), edge());
        specs.extend([v, p, m, e]);
    }
    world.commit_with(specs, FleetFile::default());
    world.settle_whole(600);
}

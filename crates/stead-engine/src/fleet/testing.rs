//! What the tests of fleets share: a small generator, VMs and workers.

use std::sync::Arc;

use stead_model::fleet::labels::{Operator, Requirement};
use stead_model::fleet::state::{Allocatable, WorkerState, WorkerView};
use stead_model::fleet::vm::{
    Arch, Driver, OnLost, Ready, Resources, Restart, Rollout, Runtime, Spread, VmSpec, Volume,
};
use stead_model::{GroupName, VmId, WorkerName};

/// A generator of numbers: the same seed gives the same numbers.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// Whether one of `of` came up.
    pub(crate) fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    pub(crate) fn pick<'t, T>(&mut self, of: &'t [T]) -> &'t T {
        &of[usize::try_from(self.below(of.len() as u64)).unwrap()]
    }

    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            list.swap(at, usize::try_from(self.below(at as u64 + 1)).unwrap());
        }
    }
}

pub(crate) fn vm_id(text: &str) -> VmId {
    VmId::parse(text).unwrap()
}

pub(crate) fn worker_name(text: &str) -> WorkerName {
    WorkerName::parse(text).unwrap()
}

/// Returns a plain VM.
pub(crate) fn vm(id: &str, replicas: u32, cpu_milli: u64, mem_mib: u64) -> VmSpec {
    VmSpec {
        id: vm_id(id),
        group: GroupName::default_group(),
        replicas,
        labels: [].into(),
        selector: vec![],
        spread: Spread::default(),
        pin: None,
        priority: 0,
        resources: Resources { cpu_milli, mem_mib, disk_mib: 0 },
        restart: Restart::default(),
        ready: Ready::default(),
        rollout: Rollout::default(),
        on_lost: OnLost::Move,
        singleton: false,
        stop_seconds: 30,
        volumes: vec![],
        runtime: Runtime::new(Driver::Sandbox),
    }
}

pub(crate) fn volume(name: &str, movable: bool) -> Volume {
    Volume { name: vm_id(name), size_mib: 1, retain: stead_model::fleet::vm::Retain::Keep, movable }
}

pub(crate) fn requires(key: &str, value: &str) -> Requirement {
    Requirement { key: key.to_owned(), op: Operator::In, values: [value.to_owned()].into() }
}

/// Returns a worker with these labels.
pub(crate) fn worker(name: &str, cpu_milli: u64, mem_mib: u64, labels: &[(&str, &str)]) -> WorkerView {
    let allocatable = Allocatable { cpu_milli, mem_mib, disk_mib: None };
    let mut view = WorkerView::new(worker_name(name), allocatable);
    view.labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    view
}

/// Returns a few random workers.
pub(crate) fn any_workers(dice: &mut Dice) -> Vec<WorkerView> {
    let count = 1 + dice.below(4);
    (0..count)
        .map(|index| {
            let zone = *dice.pick(&["a", "b", "c"]);
            let disk = *dice.pick(&["ssd", "hdd"]);
            let mut view = worker(
                &format!("w{index}"),
                1000 * (1 + dice.below(4)),
                1024 * (1 + dice.below(4)),
                &[("zone", zone), ("disk", disk)],
            );
            view.disk_pressure = dice.one_in(12);
            view.state = match dice.below(12) {
                0 => WorkerState::Cordoned,
                1 => WorkerState::Unknown,
                2 => WorkerState::Draining,
                3 => WorkerState::Late,
                4 => WorkerState::Lost,
                _ => WorkerState::Ready,
            };
            view
        })
        .collect()
}

/// Returns a few random VMs.
pub(crate) fn any_vms(dice: &mut Dice) -> Vec<Arc<VmSpec>> {
    let count = 1 + dice.below(3);
    (0..count).map(|index| Arc::new(any_vm(dice, &format!("v{index}")))).collect()
}

/// Returns a random VM of any driver, processor and disk, with rules of every kind. Nobody could run all of them.
pub(crate) fn any_wide_vm(dice: &mut Dice, id: &str) -> VmSpec {
    let mut spec = any_vm(dice, id);
    spec.resources.disk_mib = 1024 * dice.below(3);
    if dice.one_in(5) {
        spec.runtime.driver = Driver::Oci;
    }
    if dice.one_in(6) {
        spec.runtime.arch = Arch::Arm;
    }
    if dice.one_in(4) {
        let (key, op, values): (&str, Operator, &[&str]) = *dice.pick(&[
            ("zone", Operator::NotIn, &["a", "b"][..]),
            ("disk", Operator::NotIn, &["hdd"][..]),
            ("gpu", Operator::Exists, &[][..]),
            ("gpu", Operator::NotExists, &[][..]),
            ("stead/arch", Operator::In, &["aarch64"][..]),
        ]);
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        spec.selector.push(Requirement { key: key.to_owned(), op, values });
    }
    spec
}

/// Returns random workers with any disk, driver, processor and age.
pub(crate) fn any_wide_workers(dice: &mut Dice) -> Vec<WorkerView> {
    let mut workers = any_workers(dice);
    for view in &mut workers {
        if !dice.one_in(3) {
            view.allocatable.disk_mib = Some(1024 * dice.below(6));
        }
        if dice.one_in(6) {
            view.drivers = [*dice.pick(&[Driver::Sandbox, Driver::Oci])].into();
        }
        if dice.one_in(5) {
            view.arch = Arch::Arm;
        }
        if dice.one_in(12) {
            view.spec_version = 0;
        }
        if dice.one_in(4) {
            view.labels.insert("gpu".to_owned(), "yes".to_owned());
        }
        if dice.one_in(12) {
            view.state = WorkerState::Suspended;
        }
    }
    workers
}

/// Returns a random VM.
pub(crate) fn any_vm(dice: &mut Dice, id: &str) -> VmSpec {
    let sizes = [(250, 128), (500, 512), (500, 1024), (1000, 512)];
    let (cpu, mem) = *dice.pick(&sizes);
    let mut spec = vm(id, u32::try_from(dice.below(4)).unwrap(), cpu, mem);
    spec.priority = i32::try_from(dice.below(3)).unwrap();
    if dice.one_in(4) {
        let disk = ["ssd", "hdd"][usize::from(dice.one_in(2))];
        spec.selector.push(requires("disk", disk));
    }
    if dice.one_in(3) {
        spec.spread.key = Some("zone".to_owned());
    }
    if dice.one_in(5) {
        spec.spread.max_per_worker = 1 + u32::try_from(dice.below(2)).unwrap();
    }
    if dice.one_in(6) {
        let other = format!("v{}", dice.below(3));
        if other != id {
            spec.spread.not_with.insert(vm_id(&other));
        }
    }
    if dice.one_in(10) {
        spec.pin = Some(worker_name(&format!("w{}", dice.below(4))));
    }
    if dice.one_in(8) {
        spec.volumes.push(volume("data", dice.one_in(2)));
    }
    if dice.one_in(6) {
        spec.on_lost = OnLost::Wait;
    }
    spec
}

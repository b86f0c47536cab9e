//! Why a worker does not take an instance: the first reason in a fixed order.

use std::collections::BTreeMap;

use serde::Serialize;
use stead_model::WorkerName;
use stead_model::fleet::state::{Allocatable, MoveReason, WorkerState, WorkerView};
use stead_model::fleet::vm::{Resources, SPEC_VERSION};
use stead_model::fleet::{InstanceKey, VmSpec};

use super::table::{Home, Row, Scheduler, Slot};

/// Why a worker does not take an instance, in the order they are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Filter {
    /// It takes nothing now.
    State,
    /// It has no such driver.
    Driver,
    /// It has another processor.
    Arch,
    /// It does not know this form of specs.
    SpecVersion,
    /// Its labels do not fit.
    Selector,
    /// The VM is pinned to another.
    Pin,
    /// The volumes are elsewhere.
    Volume,
    /// It has as many of the VM as may be on one.
    MaxPerWorker,
    /// It has a VM that this one keeps away from.
    NotWith,
    /// Its processors are taken.
    Cpu,
    /// Its memory is taken.
    Memory,
    /// Its disk is taken.
    Disk,
    /// It has too little free disk to take more.
    DiskPressure,
}

impl Filter {
    /// Every reason, in the order they are looked at.
    pub const ALL: [Self; 13] = [
        Self::State,
        Self::Driver,
        Self::Arch,
        Self::SpecVersion,
        Self::Selector,
        Self::Pin,
        Self::Volume,
        Self::MaxPerWorker,
        Self::NotWith,
        Self::Cpu,
        Self::Memory,
        Self::Disk,
        Self::DiskPressure,
    ];

    /// Returns its word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Driver => "driver",
            Self::Arch => "arch",
            Self::SpecVersion => "specVersion",
            Self::Selector => "selector",
            Self::Pin => "pin",
            Self::Volume => "volume",
            Self::MaxPerWorker => "maxPerWorker",
            Self::NotWith => "notWith",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::DiskPressure => "diskPressure",
        }
    }
}

/// Why no worker takes an instance: how many refuse it for what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Refusals {
    /// How many workers there are.
    pub workers: u32,
    /// How many refuse for each reason.
    pub filters: BTreeMap<Filter, u32>,
    /// The same in words.
    pub text: String,
}

/// Why one worker refuses, with how much is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fleet) struct Refusal {
    pub(super) filter: Filter,
    /// Of capacity: by how much it is short.
    pub(super) short: u64,
    /// Of the selector: which requirement.
    pub(super) requirement: usize,
}

impl From<Filter> for Refusal {
    fn from(filter: Filter) -> Self {
        Self { filter, short: 0, requirement: 0 }
    }
}

impl Refusal {
    /// Says what is wanted of a worker and what it has.
    pub(super) fn describe(&self, row: &Row, slot: &Slot, used: Resources, need: Resources) -> String {
        let (spec, view) = (&row.spec, &slot.view);
        let room = |wanted: u64, all: u64, used: u64, unit: &str| {
            format!("it needs {wanted} {unit}, and {} of {all} {unit} are free", all.saturating_sub(used))
        };
        match self.filter {
            Filter::Cpu => room(need.cpu_milli, view.allocatable.cpu_milli, used.cpu_milli, "mCPU"),
            Filter::Memory => room(need.mem_mib, view.allocatable.mem_mib, used.mem_mib, "MiB of memory"),
            Filter::Disk => {
                let all = view.allocatable.disk_mib.unwrap_or_default();
                room(need.disk_mib, all, used.disk_mib, "MiB of disk")
            }
            Filter::State => format!("it is {} and takes nothing new", view.state.word()),
            Filter::Selector => {
                let wanted = spec.selector.get(self.requirement);
                let has = wanted.and_then(|wanted| view.label(&wanted.key));
                let wanted = wanted.map(|wanted| wanted.describe()).unwrap_or_default();
                match has {
                    Some(has) => format!("it wants the label {wanted}, and the worker's is `{has}`"),
                    None => format!("it wants the label {wanted}, and the worker has none"),
                }
            }
            Filter::Driver
            | Filter::Arch
            | Filter::SpecVersion
            | Filter::Pin
            | Filter::Volume
            | Filter::MaxPerWorker
            | Filter::NotWith
            | Filter::DiskPressure => {
                format!("it is {}", say(row, self.filter, self.requirement, self.short))
            }
        }
    }
}

/// Returns why a worker with `used` has no room for `need`.
pub(in crate::fleet) fn short_of(
    allocatable: &Allocatable,
    used: Resources,
    need: Resources,
) -> Option<Refusal> {
    let total = used.plus(need);
    let lacks = |total: u64, most: u64, filter: Filter| {
        (total > most).then(|| Refusal { short: total - most, ..filter.into() })
    };
    lacks(total.cpu_milli, allocatable.cpu_milli, Filter::Cpu)
        .or_else(|| lacks(total.mem_mib, allocatable.mem_mib, Filter::Memory))
        .or_else(|| lacks(total.disk_mib, allocatable.disk_mib.unwrap_or(u64::MAX), Filter::Disk))
}

/// Returns the form of specs that `vm` needs. Raised where a field is added that older workers would not know.
fn spec_version_of(_vm: &VmSpec) -> u32 {
    SPEC_VERSION.min(1)
}

/// Returns why a worker can never take `vm` as both are now, whatever is on it.
pub(super) fn unfit(vm: &VmSpec, worker: &WorkerView) -> Option<Refusal> {
    if !worker.drivers.contains(&vm.runtime.driver) {
        return Some(Filter::Driver.into());
    }
    if worker.arch != vm.runtime.arch {
        return Some(Filter::Arch.into());
    }
    if worker.spec_version < spec_version_of(vm) {
        return Some(Filter::SpecVersion.into());
    }
    let broken =
        vm.selector.iter().position(|requirement| !requirement.holds(worker.label(&requirement.key)));
    broken.map(|requirement| Refusal { requirement, ..Filter::Selector.into() })
}

/// Returns whether a worker keeps what is on it.
fn keeps(state: WorkerState, row: &Row, ordinal: u32) -> bool {
    match state {
        WorkerState::Ready
        | WorkerState::Late
        | WorkerState::Cordoned
        | WorkerState::Suspended
        | WorkerState::Unknown => true,
        WorkerState::Draining => false,
        WorkerState::Lost => {
            row.spec.on_lost == stead_model::fleet::vm::OnLost::Wait || row.is_bound(ordinal)
        }
    }
}

/// What is asked of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To keep what it has.
    Keep,
    /// To keep what it has although it is draining.
    KeepAnyway,
    /// To take something new.
    Take,
}

impl Scheduler {
    /// Returns why `slot` does not do it, the instance itself not being on it.
    pub(super) fn refusal(
        &self,
        row: &Row,
        ordinal: u32,
        slot_index: u32,
        need: Resources,
        purpose: Purpose,
    ) -> Option<Refusal> {
        let slot = self.slot(slot_index);
        let state = slot.view.state;
        let is_willing = match purpose {
            Purpose::Keep => keeps(state, row, ordinal),
            Purpose::KeepAnyway => state == WorkerState::Draining,
            Purpose::Take => state.receives(),
        };
        if !is_willing {
            return Some(Filter::State.into());
        }
        if let Some(refusal) = unfit(&row.spec, &slot.view) {
            return Some(refusal);
        }
        if row.spec.pin.as_ref().is_some_and(|pin| *pin != slot.view.id) {
            return Some(Filter::Pin.into());
        }
        if row.home(ordinal).is_some_and(|home| home != Home::Slot(slot_index)) {
            return Some(Filter::Volume.into());
        }
        let most = row.spec.spread.max_per_worker;
        if most > 0 && row.count_on(slot_index) >= most {
            return Some(Filter::MaxPerWorker.into());
        }
        if self.rivals(&row.spec).any(|rival| rival.count_on(slot_index) > 0) {
            return Some(Filter::NotWith.into());
        }
        let (used, need) = match purpose {
            Purpose::Keep | Purpose::KeepAnyway => (slot.used, need),
            Purpose::Take => self.beside(row, ordinal, slot, need),
        };
        if let Some(refusal) = short_of(&slot.view.allocatable, used, need) {
            return Some(refusal);
        }
        (purpose == Purpose::Take && slot.view.disk_pressure).then(|| Filter::DiskPressure.into())
    }

    /// Returns what others take on a worker, and what an instance that comes there does: where a copy of it leaves, the
    /// more of what it asks for and what the copy has.
    pub(super) fn beside(
        &self,
        row: &Row,
        ordinal: u32,
        slot: &Slot,
        need: Resources,
    ) -> (Resources, Resources) {
        let copy = self.copies_of(row, ordinal).and_then(|copies| copies.get(&slot.view.id)).copied();
        match copy.or_else(|| self.lost_copy(row, ordinal, slot)) {
            Some(copy) => (slot.taken().minus(copy), need.larger(copy)),
            None => (slot.taken(), need),
        }
    }

    /// Returns what a copy takes that an instance left on a worker at the last settling.
    fn lost_copy(&self, row: &Row, ordinal: u32, slot: &Slot) -> Option<Resources> {
        if self.lost.is_empty() {
            return None;
        }
        let (from, takes) = self.lost.get(&(self.row_index(&row.spec.id)?, ordinal))?;
        (self.slot(*from).view.id == slot.view.id).then_some(*takes)
    }

    /// Returns what copies of an instance that leave take on their workers.
    pub(super) fn copies_of(&self, row: &Row, ordinal: u32) -> Option<&BTreeMap<WorkerName, Resources>> {
        if self.policy.copies.is_empty() {
            return None;
        }
        self.policy.copies.get(&InstanceKey::new(&row.spec.id, ordinal))
    }

    /// Returns how many workers refuse `instance` for what.
    pub fn refusals(&self, instance: &InstanceKey) -> Option<Refusals> {
        let row = self.row_of(&instance.vm)?;
        let mut counted: BTreeMap<(Filter, usize), (u32, u64)> = BTreeMap::new();
        let mut workers = 0;
        let need = row.need(instance.ordinal);
        for (index, _) in self.live_slots() {
            workers += 1;
            let found = self.refusal(row, instance.ordinal, index, need, Purpose::Take);
            // What fits now did not at its turn only if something left since: the next settling places it.
            let Some(refusal) = found else { continue };
            let entry = counted.entry((refusal.filter, refusal.requirement)).or_insert((0, u64::MAX));
            entry.0 += 1;
            entry.1 = entry.1.min(refusal.short);
        }
        let mut filters = BTreeMap::new();
        let mut words = Vec::new();
        for ((filter, requirement), (count, short)) in counted {
            *filters.entry(filter).or_insert(0) += count;
            words.push(format!("{count} {}", say(row, filter, requirement, short)));
        }
        let noun = if workers == 1 { "worker" } else { "workers" };
        let text = if words.is_empty() {
            format!("{workers} {noun}")
        } else {
            format!("{workers} {noun}: {}", words.join(", "))
        };
        Some(Refusals { workers, filters, text })
    }
}

fn say(row: &Row, filter: Filter, requirement: usize, short: u64) -> String {
    let spec = &row.spec;
    match filter {
        Filter::State => "take nothing now".to_owned(),
        Filter::Driver => format!("no driver {}", spec.runtime.driver.word()),
        Filter::Arch => format!("not {}", spec.runtime.arch.word()),
        Filter::SpecVersion => "too old for its spec".to_owned(),
        Filter::Selector => {
            let wanted = spec.selector.get(requirement).map(|requirement| requirement.describe());
            format!("label {}", wanted.unwrap_or_default())
        }
        Filter::Pin => format!("not {}", spec.pin.as_ref().map(ToString::to_string).unwrap_or_default()),
        Filter::Volume => "without its volume".to_owned(),
        Filter::MaxPerWorker => format!("with {} of it already", spec.spread.max_per_worker),
        Filter::NotWith => "with a VM it keeps away from".to_owned(),
        Filter::Cpu => format!("processors short by {short} mCPU"),
        Filter::Memory => format!("memory short by {short} MiB"),
        Filter::Disk => format!("disk short by {short} MiB"),
        Filter::DiskPressure => "with too little free disk".to_owned(),
    }
}

/// Returns why an instance leaves `slot`, which refused to keep it.
pub(super) fn reason(refusal: Refusal, slot: &Slot) -> MoveReason {
    match refusal.filter {
        Filter::State if slot.view.state == WorkerState::Draining => MoveReason::Drained,
        Filter::State => MoveReason::WorkerLost,
        Filter::Driver
        | Filter::Arch
        | Filter::SpecVersion
        | Filter::Selector
        | Filter::MaxPerWorker
        | Filter::NotWith => MoveReason::SelectorChanged,
        Filter::Pin | Filter::Volume => MoveReason::Pinned,
        Filter::Cpu | Filter::Memory | Filter::Disk | Filter::DiskPressure => MoveReason::CapacityShrunk,
    }
}

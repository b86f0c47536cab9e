//! Which workers have room for something of one shape, by how full they would be.
//!
//! VMs of one shape (size, driver, selector, spread label) see the workers alike, so they share an index: workers by
//! value of the spread label and by load. Placing something changes one seat. Choosing looks at one load after the
//! other and, among the workers of one, for the highest weight.

use std::collections::BTreeMap;

use stead_model::fleet::VmSpec;
use stead_model::fleet::labels::{Requirement, WORKER_LABEL};
use stead_model::fleet::state::{Allocatable, WorkerView};
use stead_model::fleet::vm::{Arch, Driver, Resources};

use super::filter::{short_of, unfit};
use super::hrw::{UPPER, draft, fold, mix, weight};
use super::table::Scheduler;

/// Loads go from 0 to 10.
const LEVELS: usize = 11;

/// What of a VM decides which workers can take it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shape {
    need: Resources,
    driver: Driver,
    arch: Arch,
    selector: Vec<Requirement>,
    spread_key: Option<String>,
}

impl Shape {
    fn of(vm: &VmSpec, need: Resources) -> Self {
        Self {
            need,
            driver: vm.runtime.driver,
            arch: vm.runtime.arch,
            selector: vm.selector.clone(),
            spread_key: vm.spread.key.clone(),
        }
    }
}

/// Returns how full a worker would be, in tenths of its fullest resource.
pub(super) fn load(allocatable: &Allocatable, used: Resources, need: Resources) -> u64 {
    let total = used.plus(need);
    let tenths = |total: u64, most: u64| total.saturating_mul(10).checked_div(most).unwrap_or(0);
    let disk = allocatable.disk_mib.map_or(0, |most| tenths(total.disk_mib, most));
    tenths(total.cpu_milli, allocatable.cpu_milli).max(tenths(total.mem_mib, allocatable.mem_mib)).max(disk)
}

/// Workers of one load. Their hashes, folded, lie side by side: choosing reads all of them, and little else.
#[derive(Clone, Debug, Default)]
struct Level {
    hashes: Vec<u64>,
    slots: Vec<u32>,
}

impl Level {
    /// Returns the worker of the highest weight among those that `may` take it, with the weight. Of two with one weight
    /// the first by name.
    fn heaviest(&self, scheduler: &Scheduler, key: u64, may: impl Fn(u32) -> bool) -> Option<(u64, u32)> {
        let key = fold(key);
        let mut best: Option<(u64, u32)> = None;
        // Invariant: what is drafted below this weighs less than the best so far. Nearly everything is, and goes no further.
        let mut floor = 0;
        for (hash, slot) in self.hashes.iter().zip(&self.slots) {
            let draft = draft(key, *hash);
            if draft < floor {
                continue;
            }
            let weight = weight(draft);
            let is_better = best.is_none_or(|(most, other)| {
                weight > most || (weight == most && scheduler.is_before(*slot, other))
            });
            if is_better && may(*slot) {
                (floor, best) = (weight & UPPER, Some((weight, *slot)));
            }
        }
        best
    }
}

#[derive(Clone, Debug, Default)]
struct Part {
    levels: [Level; LEVELS],
}

/// Where a worker sits.
#[derive(Clone, Copy, Debug)]
struct Seat {
    part: u32,
    /// Level and position; none: no room.
    at: Option<(u8, u32)>,
}

/// Workers that can take one shape.
#[derive(Clone, Debug)]
pub(super) struct Index {
    shape: Shape,
    parts: Vec<Part>,
    values: Vec<String>,
    seats: Vec<Option<Seat>>,
}

/// What is particular to one VM while its instances are placed.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    /// How many instances of the VM each worker has.
    pub(super) counts: Vec<u32>,
    /// Workers that may not have it.
    pub(super) barred: Vec<bool>,
}

/// The indexes in use.
#[derive(Debug, Default)]
pub(super) struct Indexes {
    indexes: Vec<Index>,
    /// The order in which they are replaced.
    next: usize,
}

/// How many shapes are kept: each placement changes a seat in every one.
const KEPT: usize = 16;

impl Indexes {
    /// Returns the index for an instance of `vm` that takes `need`.
    pub(super) fn of(&mut self, scheduler: &Scheduler, vm: &VmSpec, need: Resources) -> &Index {
        let shape = Shape::of(vm, need);
        let found = self.indexes.iter().position(|index| index.shape == shape);
        let at = found.unwrap_or_else(|| {
            let index = Index::build(scheduler, vm, shape);
            if self.indexes.len() < KEPT {
                self.indexes.push(index);
                return self.indexes.len() - 1;
            }
            self.next = (self.next + 1) % KEPT;
            self.indexes[self.next] = index;
            self.next
        });
        &self.indexes[at]
    }

    /// Says that something was put on, or taken off, a worker.
    pub(super) fn changed(&mut self, scheduler: &Scheduler, slot: u32) {
        for index in &mut self.indexes {
            index.reseat(scheduler, slot);
        }
    }
}

impl Index {
    fn build(scheduler: &Scheduler, vm: &VmSpec, shape: Shape) -> Self {
        let mut values: BTreeMap<String, u32> = BTreeMap::new();
        let mut index =
            Self { shape, parts: Vec::new(), values: Vec::new(), seats: vec![None; scheduler.slot_count()] };
        let minds_name = vm.selector.iter().any(|requirement| requirement.key == WORKER_LABEL);
        // Equal workers get the same answer: only the first of a run is looked at.
        let mut last: Option<(&WorkerView, bool)> = None;
        for (slot_index, slot) in scheduler.live_slots() {
            let view = &slot.view;
            let fits = match last {
                Some((like, fits)) if !minds_name && are_alike(like, view) => fits,
                Some(_) | None => view.state.receives() && !view.disk_pressure && unfit(vm, view).is_none(),
            };
            last = Some((view, fits));
            if !fits {
                continue;
            }
            let value = vm.spread.key.as_ref().and_then(|key| view.label(key)).unwrap_or_default();
            let part = match values.get(value) {
                Some(part) => *part,
                None => {
                    let part = u32::try_from(index.parts.len()).unwrap_or(u32::MAX);
                    values.insert(value.to_owned(), part);
                    index.values.push(value.to_owned());
                    index.parts.push(Part::default());
                    part
                }
            };
            index.seats[slot_index as usize] = Some(Seat { part, at: None });
            index.sit(scheduler, slot_index);
        }
        index
    }

    /// Gives a worker its seat, if it has room.
    fn sit(&mut self, scheduler: &Scheduler, slot_index: u32) {
        let slot = scheduler.slot(slot_index);
        let used = slot.taken();
        if short_of(&slot.view.allocatable, used, self.shape.need).is_some() {
            return;
        }
        let level = load(&slot.view.allocatable, used, self.shape.need);
        let Some(seat) = self.seats[slot_index as usize].as_mut() else { return };
        let level = u8::try_from(level).unwrap_or(u8::MAX).min(10);
        let seated = &mut self.parts[seat.part as usize].levels[usize::from(level)];
        seat.at = Some((level, u32::try_from(seated.slots.len()).unwrap_or(u32::MAX)));
        seated.hashes.push(fold(slot.hash));
        seated.slots.push(slot_index);
    }

    fn reseat(&mut self, scheduler: &Scheduler, slot: u32) {
        let Some(Some(seat)) = self.seats.get_mut(slot as usize) else { return };
        if let Some((level, position)) = seat.at.take() {
            let seated = &mut self.parts[seat.part as usize].levels[usize::from(level)];
            seated.hashes.swap_remove(position as usize);
            seated.slots.swap_remove(position as usize);
            if let Some(moved) = seated.slots.get(position as usize)
                && let Some(Some(other)) = self.seats.get_mut(*moved as usize)
            {
                other.at = Some((level, position));
            }
        }
        self.sit(scheduler, slot);
    }

    /// Returns the best worker for an instance with this hash.
    pub(super) fn best(
        &self,
        scheduler: &Scheduler,
        vm: &VmSpec,
        spread: &BTreeMap<String, u32>,
        marks: &Marks,
        key: u64,
    ) -> Option<u32> {
        let count = |part: &usize| {
            let value = self.values.get(*part).map(String::as_str).unwrap_or_default();
            if vm.spread.key.is_some() { spread.get(value).copied().unwrap_or_default() } else { 0 }
        };
        let mut order: Vec<usize> = (0..self.parts.len()).collect();
        order.sort_by_key(count);
        order.chunk_by(|a, b| count(a) == count(b)).find_map(|parts| {
            self.best_fresh(scheduler, parts, marks, key)
                .or_else(|| self.best_used(scheduler, vm, parts, marks, key))
        })
    }

    /// Returns the best of the workers without an instance of the VM.
    fn best_fresh(&self, scheduler: &Scheduler, parts: &[usize], marks: &Marks, key: u64) -> Option<u32> {
        let is_fresh = |slot: u32| marks.counts[slot as usize] == 0 && !marks.barred[slot as usize];
        (0..LEVELS).find_map(|level| {
            let seated = parts.iter().map(|part| &self.parts[*part].levels[level]);
            let heaviest = seated.filter_map(|level| level.heaviest(scheduler, key, is_fresh));
            let better = |a: &(u64, u32), b: &(u64, u32)| {
                a.0.cmp(&b.0).then_with(|| scheduler.slot(b.1).view.id.cmp(&scheduler.slot(a.1).view.id))
            };
            heaviest.max_by(better).map(|(_, slot)| slot)
        })
    }

    /// Returns the best of the workers that have instances of the VM.
    fn best_used(
        &self,
        scheduler: &Scheduler,
        vm: &VmSpec,
        parts: &[usize],
        marks: &Marks,
        key: u64,
    ) -> Option<u32> {
        let most = vm.spread.max_per_worker;
        let candidates = scheduler
            .row_of(&vm.id)?
            .counts()
            .filter(|(slot, count)| !marks.barred[*slot as usize] && (most == 0 || *count < most));
        let seated = candidates.filter_map(|(slot, count)| {
            let seat = self.seats.get(slot as usize).copied().flatten()?;
            let (level, _) = seat.at?;
            let weight = mix(key, scheduler.slot(slot).hash);
            parts.contains(&(seat.part as usize)).then_some((count, level, std::cmp::Reverse(weight), slot))
        });
        let better = |a: &(u32, u8, std::cmp::Reverse<u64>, u32),
                      b: &(u32, u8, std::cmp::Reverse<u64>, u32)| {
            let names = || scheduler.slot(a.3).view.id.cmp(&scheduler.slot(b.3).view.id);
            (a.0, a.1, a.2).cmp(&(b.0, b.1, b.2)).then_with(names)
        };
        seated.min_by(better).map(|(_, _, _, slot)| slot)
    }
}

/// Whether two workers take the same things, their room aside.
fn are_alike(a: &WorkerView, b: &WorkerView) -> bool {
    a.state == b.state
        && a.arch == b.arch
        && a.spec_version == b.spec_version
        && a.disk_pressure == b.disk_pressure
        && a.drivers == b.drivers
        && a.os == b.os
        && a.labels == b.labels
}

impl Scheduler {
    /// Whether one worker comes before another by name.
    pub(super) fn is_before(&self, a: u32, b: u32) -> bool {
        self.slot(a).view.id < self.slot(b).view.id
    }
}

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
use super::hrw::{BLOCK, UPPER, blocks_below, draft, fold, is_wide, mix, weight};
use super::table::{Scheduler, Slot};

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

/// Weighs workers for one instance.
struct Scales<'a, May> {
    scheduler: &'a Scheduler,
    /// The hash of the instance, folded.
    key: u64,
    /// Which workers may be chosen.
    may: May,
    /// The weight of the heaviest so far, and which that is. Of two with one weight it is the first by name.
    best: Option<(u64, u32)>,
    /// Invariant: what is drafted below this weighs less than the best so far. Nearly everything is, and goes no further.
    floor: u64,
}

impl<'a, May: Fn(u32) -> bool> Scales<'a, May> {
    fn new(scheduler: &'a Scheduler, key: u64, may: May) -> Self {
        Self { scheduler, key: fold(key), may, best: None, floor: 0 }
    }

    /// Weighs the workers of a level.
    fn weigh(&mut self, level: &Level) {
        if !is_wide() {
            self.weigh_each(&level.hashes, &level.slots);
            return;
        }
        let (mut hashes, mut slots) = (level.hashes.as_slice(), level.slots.as_slice());
        while !hashes.is_empty() {
            let light = BLOCK * blocks_below(self.key, hashes, self.floor);
            (hashes, slots) =
                (hashes.get(light..).unwrap_or_default(), slots.get(light..).unwrap_or_default());
            let heavy = BLOCK.min(hashes.len());
            let ((block, later), (block_slots, later_slots)) =
                (hashes.split_at(heavy), slots.split_at(heavy));
            self.weigh_each(block, block_slots);
            (hashes, slots) = (later, later_slots);
        }
    }

    /// Weighs one worker after the other.
    fn weigh_each(&mut self, hashes: &[u64], slots: &[u32]) {
        // What the loop changes is its own: that is faster.
        let (key, mut floor, mut best) = (self.key, self.floor, self.best);
        for (hash, slot) in hashes.iter().zip(slots) {
            let draft = draft(key, *hash);
            if draft < floor {
                continue;
            }
            let weight = weight(draft);
            let is_better = best.is_none_or(|(most, other)| {
                weight > most || (weight == most && self.scheduler.is_before(*slot, other))
            });
            if is_better && (self.may)(*slot) {
                (floor, best) = (weight & UPPER, Some((weight, *slot)));
            }
        }
        (self.floor, self.best) = (floor, best);
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

    /// Returns how full a worker would be; none: it has no room.
    fn level(&self, slot: &Slot) -> Option<u8> {
        let (allocatable, used) = (&slot.view.allocatable, slot.taken());
        if short_of(allocatable, used, self.shape.need).is_some() {
            return None;
        }
        let level = load(allocatable, used, self.shape.need);
        Some(u8::try_from(level).unwrap_or(u8::MAX).min(10))
    }

    /// Gives a worker its seat, if it has room.
    fn sit(&mut self, scheduler: &Scheduler, slot_index: u32) {
        let slot = scheduler.slot(slot_index);
        let Some(level) = self.level(slot) else { return };
        let Some(seat) = self.seats[slot_index as usize].as_mut() else { return };
        let seated = &mut self.parts[seat.part as usize].levels[usize::from(level)];
        seat.at = Some((level, u32::try_from(seated.slots.len()).unwrap_or(u32::MAX)));
        seated.hashes.push(fold(slot.hash));
        seated.slots.push(slot_index);
    }

    fn reseat(&mut self, scheduler: &Scheduler, slot: u32) {
        let Some(Some(Seat { part, at })) = self.seats.get(slot as usize).copied() else { return };
        if at.map(|(level, _)| level) == self.level(scheduler.slot(slot)) {
            return;
        }
        if let Some((level, position)) = at {
            self.seats[slot as usize] = Some(Seat { part, at: None });
            let seated = &mut self.parts[part as usize].levels[usize::from(level)];
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

    /// Returns the value of the spread label of a worker that has a seat.
    pub(super) fn value(&self, slot: u32) -> &str {
        let seat = self.seats.get(slot as usize).copied().flatten();
        seat.and_then(|seat| self.values.get(seat.part as usize)).map(String::as_str).unwrap_or_default()
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
            let mut scales = Scales::new(scheduler, key, is_fresh);
            parts.iter().for_each(|part| scales.weigh(&self.parts[*part].levels[level]));
            scales.best.map(|(_, slot)| slot)
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

#[cfg(test)]
mod tests {
    use stead_model::WorkerName;

    use super::*;
    use crate::fleet::schedule::SchedulePolicy;
    use crate::fleet::schedule::hrw::hash;

    /// Section 7: of many workers the heaviest that may be chosen is, and of two that weigh the same the first by name,
    /// whether they are weighed one after the other or many at once, in one go or in parts.
    #[test]
    fn the_heaviest_of_many_workers_is_chosen() {
        let mut scheduler = Scheduler::new(SchedulePolicy::default());
        for index in 0..700 {
            let name = WorkerName::parse(&format!("w{index}")).unwrap();
            scheduler.set_worker(WorkerView::new(name, Allocatable::default()));
        }
        for count in [1, 2, 63, 64, 65, 127, 128, 129, 300, 640, 700_u32] {
            let mut level = Level::default();
            for slot in 0..count {
                // Each has a twin of the same weight, in another block where there are several.
                let like = slot % (count / 2).max(1);
                level.hashes.push(fold(hash(&format!("w{like}"))));
                level.slots.push(slot);
            }
            for ordinal in 0..40 {
                let key = hash(&format!("web/{ordinal}"));
                let may = |slot: u32| !(slot + ordinal).is_multiple_of(3);
                let weight = |slot: &u32| weight(draft(fold(key), level.hashes[*slot as usize]));
                let allowed = (0..count).filter(|slot| may(*slot));
                let best = allowed.max_by(|a, b| {
                    let names = || scheduler.slot(*b).view.id.cmp(&scheduler.slot(*a).view.id);
                    weight(a).cmp(&weight(b)).then_with(names)
                });
                let best = best.map(|slot| (weight(&slot), slot));
                let mut one_by_one = Scales::new(&scheduler, key, may);
                one_by_one.weigh_each(&level.hashes, &level.slots);
                assert_eq!(one_by_one.best, best, "{count} {ordinal}");
                let mut at_once = Scales::new(&scheduler, key, may);
                at_once.weigh(&level);
                assert_eq!(at_once.best, best, "{count} {ordinal}");
                let mut in_parts = Scales::new(&scheduler, key, may);
                for (hashes, slots) in level.hashes.chunks(100).zip(level.slots.chunks(100)) {
                    in_parts.weigh(&Level { hashes: hashes.to_vec(), slots: slots.to_vec() });
                }
                assert_eq!(in_parts.best, best, "{count} {ordinal}");
            }
        }
    }
}

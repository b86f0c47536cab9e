//! The rows the scheduler works on: workers, VMs, and which instance is where.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stead_model::fleet::state::WorkerView;
use stead_model::fleet::vm::Resources;
use stead_model::fleet::{InstanceKey, VmSpec};
use stead_model::{VmId, WorkerName};

use super::hrw;
use super::{Move, Previous, Schedule, SchedulePolicy};

/// A worker and what is on it.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) view: WorkerView,
    /// Of its name, for weights.
    pub(super) hash: u64,
    /// What its instances take.
    pub(super) used: Resources,
    /// What leaving copies take: nothing new gets that, and nothing that is there goes for it.
    pub(super) leaving: Resources,
    /// The same of copies of instances that lost their place here at the last settling.
    pub(super) left: Resources,
    /// Its instances: row and ordinal, in no order.
    pub(super) members: Vec<(u32, u32)>,
    pub(super) is_live: bool,
}

impl Slot {
    /// Returns what is not there for anything new.
    pub(super) fn taken(&self) -> Resources {
        self.used.plus(self.leaving).plus(self.left)
    }
}

/// Where the volumes of an instance are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// On this worker.
    Slot(u32),
    /// On a worker that is not there.
    Gone,
}

/// A VM and where its instances are.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) spec: Arc<VmSpec>,
    /// Whether anybody wants it; a VM that is only frozen is not.
    pub(super) is_wanted: bool,
    /// Where each placed instance is, and what it takes there.
    pub(super) places: BTreeMap<u32, (u32, Resources)>,
    /// How many are on each worker.
    counts: BTreeMap<u32, u32>,
    /// How many are on workers with each value of the spread label.
    pub(super) spread: BTreeMap<String, u32>,
    /// Where volumes are.
    homes: BTreeMap<u32, Home>,
    /// Instances that may still run a spec with volumes that bind them.
    tied: BTreeSet<u32>,
    /// What instances take that still run an old spec.
    holds: BTreeMap<u32, Resources>,
}

impl Row {
    /// Returns how many of its instances are on a worker.
    pub(super) fn count_on(&self, slot: u32) -> u32 {
        self.counts.get(&slot).copied().unwrap_or_default()
    }

    /// Returns its workers with how many instances each has.
    pub(super) fn counts(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.counts.iter().map(|(slot, count)| (*slot, *count))
    }

    /// Returns what an instance takes where it is: what its VM asks for, or what its old spec still has.
    pub(super) fn need(&self, ordinal: u32) -> Resources {
        self.holds.get(&ordinal).map_or(self.spec.resources, |holds| holds.larger(self.spec.resources))
    }

    /// Whether an instance has to be where its volumes are.
    pub(super) fn is_bound(&self, ordinal: u32) -> bool {
        self.spec.is_bound() || self.tied.contains(&ordinal)
    }

    /// Returns where the instance has to be for its volumes.
    pub(super) fn home(&self, ordinal: u32) -> Option<Home> {
        if self.is_bound(ordinal) { self.homes.get(&ordinal).copied() } else { None }
    }
}

/// The state of scheduling, which changes and is settled.
#[derive(Clone, Debug)]
pub struct Scheduler {
    pub(super) policy: SchedulePolicy,
    slots: Vec<Slot>,
    slot_of: BTreeMap<WorkerName, u32>,
    pub(super) rows: Vec<Row>,
    row_of: BTreeMap<VmId, u32>,
    /// Rows of VMs that are gone.
    free: Vec<u32>,
    /// Who lists a VM in `notWith`.
    avoided_by: BTreeMap<VmId, BTreeSet<VmId>>,
    /// Workers whose instances have to be looked at again.
    pub(super) dirty: BTreeSet<u32>,
    /// Where instances were when they were last settled, of those that may have changed.
    pub(super) before: BTreeMap<(u32, u32), Option<u32>>,
    /// Instances on draining workers that have no other place.
    pub(super) blocked: BTreeSet<(u32, u32)>,
    /// Instances that lost their place at the last settling, with where that was and what their copies take.
    pub(super) lost: BTreeMap<(u32, u32), (u32, Resources)>,
    /// What the last settling placed.
    pub(super) new_places: Vec<(u32, u32)>,
    /// Whether the last settling took places without another one.
    pub(super) has_lost: bool,
}

impl Scheduler {
    /// Returns a scheduler without workers and VMs.
    pub fn new(policy: SchedulePolicy) -> Self {
        Self {
            policy,
            slots: Vec::new(),
            slot_of: BTreeMap::new(),
            rows: Vec::new(),
            row_of: BTreeMap::new(),
            free: Vec::new(),
            avoided_by: BTreeMap::new(),
            dirty: BTreeSet::new(),
            before: BTreeMap::new(),
            blocked: BTreeSet::new(),
            lost: BTreeMap::new(),
            new_places: Vec::new(),
            has_lost: false,
        }
    }

    /// Adds a worker, or says what became of it.
    pub fn set_worker(&mut self, view: WorkerView) {
        let leaving = self.policy.leaving.get(&view.id).copied().unwrap_or_default();
        match self.slot_of.get(&view.id) {
            Some(index) => {
                let index = *index;
                if self.slot(index).view == view && self.slot(index).is_live {
                    return;
                }
                // Labels may be what others are spread over.
                self.lift_all(index);
                let slot = &mut self.slots[index as usize];
                slot.view = view;
                slot.is_live = true;
                self.dirty.insert(index);
            }
            None => {
                let index = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
                let hash = hrw::hash(view.id.as_str());
                self.slot_of.insert(view.id.clone(), index);
                let (used, left, members) = (Resources::default(), Resources::default(), Vec::new());
                self.slots.push(Slot { view, hash, used, leaving, left, members, is_live: true });
                self.dirty.insert(index);
            }
        }
    }

    /// Says what may be moved from now on.
    pub fn set_policy(&mut self, policy: SchedulePolicy) {
        let old = std::mem::replace(&mut self.policy, policy);
        for slot in &mut self.slots {
            slot.leaving = self.policy.leaving.get(&slot.view.id).copied().unwrap_or_default();
        }
        if old.is_braked() != self.policy.is_braked() {
            let slots: Vec<u32> = self.live_slots().map(|(index, _)| index).collect();
            self.dirty.extend(slots);
        }
        if (old.freeze_all, &old.frozen) == (self.policy.freeze_all, &self.policy.frozen) {
            return;
        }
        let rows: Vec<(u32, VmId, u32)> = (0_u32..)
            .zip(&self.rows)
            .map(|(index, row)| {
                (index, row.spec.id.clone(), if row.is_wanted { row.spec.replicas } else { 0 })
            })
            .collect();
        for (index, id, wanted) in rows {
            if old.is_frozen(&id) != self.policy.is_frozen(&id) {
                self.touch_row(index);
                if !self.policy.is_frozen(&id) && self.row_of.get(&id) == Some(&index) {
                    self.drop_from(index, wanted);
                    self.free_row(index);
                }
            }
        }
    }

    /// Removes a worker; what it had goes elsewhere.
    pub fn remove_worker(&mut self, name: &WorkerName) {
        if let Some(index) = self.slot_of.get(name).copied() {
            self.lift_all(index);
            self.slots[index as usize].is_live = false;
            self.dirty.remove(&index);
        }
    }

    /// Takes everything off a worker and remembers where it was.
    fn lift_all(&mut self, slot: u32) {
        // From its end, where each is found at once.
        for (row, ordinal) in self.slot(slot).members.clone().into_iter().rev() {
            self.lift(row, ordinal);
        }
    }

    /// Adds a VM, or says what is wanted of it now.
    pub fn set_vm(&mut self, spec: Arc<VmSpec>) {
        let id = spec.id.clone();
        if let Some(index) = self.row_of.get(&id).copied() {
            let row = &self.rows[index as usize];
            if row.is_wanted && row.spec == spec {
                return;
            }
            self.touch_row(index);
            let old = Arc::clone(&self.rows[index as usize].spec);
            self.forget_rivals(&old);
            let key_changed = old.spread.key != spec.spread.key;
            let replicas = spec.replicas;
            let is_frozen = self.policy.is_frozen(&id);
            self.rows[index as usize].spec = Arc::clone(&spec);
            self.rows[index as usize].is_wanted = true;
            if key_changed {
                self.recount_spread(index);
            }
            if !is_frozen {
                self.drop_from(index, replicas);
            }
        } else {
            let row = Row {
                spec: Arc::clone(&spec),
                is_wanted: true,
                places: BTreeMap::new(),
                counts: BTreeMap::new(),
                spread: BTreeMap::new(),
                homes: BTreeMap::new(),
                tied: BTreeSet::new(),
                holds: BTreeMap::new(),
            };
            let index = match self.free.pop() {
                Some(index) => {
                    self.rows[index as usize] = row;
                    index
                }
                None => {
                    self.rows.push(row);
                    u32::try_from(self.rows.len() - 1).unwrap_or(u32::MAX)
                }
            };
            self.row_of.insert(id.clone(), index);
        }
        for rival in &spec.spread.not_with {
            self.avoided_by.entry(rival.clone()).or_default().insert(id.clone());
        }
        // A new rule concerns whoever shares a worker with it.
        if let Some(index) = self.row_of.get(&id).copied() {
            self.touch_row(index);
        }
    }

    /// Removes a VM: nobody wants it. A frozen one stays where it is.
    pub fn remove_vm(&mut self, id: &VmId) {
        let Some(index) = self.row_of.get(id).copied() else { return };
        let spec = Arc::clone(&self.rows[index as usize].spec);
        self.forget_rivals(&spec);
        self.rows[index as usize].is_wanted = false;
        if !self.policy.is_frozen(id) {
            self.drop_from(index, 0);
            self.free_row(index);
        }
    }

    /// Lets go of the row of a VM that nobody wants and that is nowhere.
    fn free_row(&mut self, index: u32) {
        let row = &self.rows[index as usize];
        if row.is_wanted || !row.places.is_empty() {
            return;
        }
        let id = row.spec.id.clone();
        self.new_places.retain(|(row, _)| *row != index);
        if self.avoided_by.get(&id).is_some_and(BTreeSet::is_empty) {
            self.avoided_by.remove(&id);
        }
        self.row_of.remove(&id);
        self.free.push(index);
    }

    /// Returns how many rows there are, used or not.
    #[cfg(test)]
    pub(super) fn row_count(&self) -> usize {
        self.rows.len()
    }

    /// Says where an instance is. Of a VM that nobody wants it is dropped, unless that is frozen.
    pub fn set_previous(&mut self, instance: &InstanceKey, previous: &Previous) {
        let Some(index) = self.row_of.get(&instance.vm).copied() else { return };
        if let Some(home) = &previous.volumes_on {
            self.set_home(instance, home);
        }
        let row = &mut self.rows[index as usize];
        if instance.ordinal >= row.spec.replicas && !self.policy.is_frozen(&instance.vm) {
            return;
        }
        match previous.holds {
            Some(holds) => row.holds.insert(instance.ordinal, holds),
            None => row.holds.remove(&instance.ordinal),
        };
        self.set_tied(instance, previous.is_tied);
        let was = self.take_off(index, instance.ordinal).map(|(slot, _)| slot);
        let Some(worker) = &previous.worker else { return };
        let slot = self.stand_in(worker);
        if self.slot(slot).is_live {
            let need = self.rows[index as usize].need(instance.ordinal);
            self.put(index, instance.ordinal, slot, need);
            self.dirty.insert(slot);
        }
        if was != Some(slot) {
            self.before.insert((index, instance.ordinal), Some(slot));
        }
    }

    /// Says where the volumes of an instance are.
    pub fn set_home(&mut self, instance: &InstanceKey, worker: &WorkerName) {
        let slot = self.slot_of.get(worker).copied();
        if let Some(index) = self.row_of.get(&instance.vm).copied() {
            let home = slot.map_or(Home::Gone, Home::Slot);
            self.rows[index as usize].homes.insert(instance.ordinal, home);
        }
    }

    /// Says that an instance has no volumes anywhere.
    pub fn forget_home(&mut self, instance: &InstanceKey) {
        if let Some(index) = self.row_of.get(&instance.vm).copied() {
            self.rows[index as usize].homes.remove(&instance.ordinal);
        }
    }

    /// Says whether an instance may still run a spec with volumes that bind it.
    pub fn set_tied(&mut self, instance: &InstanceKey, is_tied: bool) {
        let Some(index) = self.row_of.get(&instance.vm).copied() else { return };
        let tied = &mut self.rows[index as usize].tied;
        if is_tied {
            tied.insert(instance.ordinal);
        } else {
            tied.remove(&instance.ordinal);
        }
    }

    /// Whether instances of a VM have something of an old spec: what it takes, or volumes that bind them.
    pub fn has_holds(&self, vm: &VmId) -> bool {
        self.row_of(vm).is_some_and(|row| !row.holds.is_empty() || !row.tied.is_empty())
    }

    /// Says what an instance still takes of an old spec where it is.
    pub fn set_holds(&mut self, instance: &InstanceKey, holds: Option<Resources>) {
        let Some(index) = self.row_of.get(&instance.vm).copied() else { return };
        let is_frozen = self.policy.is_frozen(&instance.vm);
        let row = &mut self.rows[index as usize];
        let before = row.need(instance.ordinal);
        // What goes takes nothing along to an instance that comes in its place.
        let is_wanted = instance.ordinal < row.spec.replicas || is_frozen;
        match holds.filter(|_| is_wanted) {
            Some(holds) => row.holds.insert(instance.ordinal, holds),
            None => row.holds.remove(&instance.ordinal),
        };
        let need = row.need(instance.ordinal);
        if need == before {
            return;
        }
        if let Some((slot, _)) = self.take_off(index, instance.ordinal) {
            self.put(index, instance.ordinal, slot, need);
        }
    }

    /// Returns the slot of a worker, a dead one if it is only known by name.
    fn stand_in(&mut self, worker: &WorkerName) -> u32 {
        if let Some(index) = self.slot_of.get(worker) {
            return *index;
        }
        let view = WorkerView::new(worker.clone(), stead_model::fleet::state::Allocatable::default());
        self.set_worker(view);
        let index = self.slot_of.get(worker).copied().unwrap_or_default();
        self.slots[index as usize].is_live = false;
        self.dirty.remove(&index);
        index
    }

    /// Looks again at every worker that has an instance of a row.
    fn touch_row(&mut self, row: u32) {
        let slots: Vec<u32> = self.rows[row as usize].counts.keys().copied().collect();
        self.dirty.extend(slots);
    }

    fn forget_rivals(&mut self, spec: &VmSpec) {
        for rival in &spec.spread.not_with {
            if let Some(list) = self.avoided_by.get_mut(rival) {
                list.remove(&spec.id);
            }
        }
    }

    /// Returns the VMs that `spec` keeps away from, either side having said so.
    pub(super) fn rivals<'s>(&'s self, spec: &'s VmSpec) -> impl Iterator<Item = &'s Row> {
        let listing = self.avoided_by.get(&spec.id).into_iter().flatten();
        spec.spread.not_with.iter().chain(listing).filter_map(|id| self.row_of(id))
    }

    /// Drops the instances of a row from this ordinal on.
    fn drop_from(&mut self, row: u32, first: u32) {
        let gone: Vec<u32> =
            self.rows[row as usize].places.range(first..).map(|(ordinal, _)| *ordinal).collect();
        for ordinal in gone {
            self.take_off(row, ordinal);
        }
        let left = &mut self.rows[row as usize];
        left.holds.retain(|ordinal, _| *ordinal < first);
        left.homes.retain(|ordinal, _| *ordinal < first);
        left.tied.retain(|ordinal| *ordinal < first);
        let stays = |key: &(u32, u32)| key.0 != row || key.1 < first;
        self.before.retain(|key, _| stays(key));
        self.blocked.retain(stays);
    }

    /// Puts an instance on a worker.
    pub(super) fn put(&mut self, row: u32, ordinal: u32, slot: u32, need: Resources) {
        let view = &self.slots[slot as usize].view;
        let row_of = &mut self.rows[row as usize];
        if let Some(key) = &row_of.spec.spread.key {
            increase(&mut row_of.spread, view.label(key).unwrap_or_default());
        }
        self.seat(row, ordinal, slot, need);
    }

    /// Puts an instance on a worker whose value of the spread label is known: its labels are not looked at, which lie
    /// all over the memory.
    pub(super) fn put_at(&mut self, row: u32, ordinal: u32, slot: u32, need: Resources, value: &str) {
        let row_of = &mut self.rows[row as usize];
        if row_of.spec.spread.key.is_some() {
            increase(&mut row_of.spread, value);
        }
        self.seat(row, ordinal, slot, need);
    }

    fn seat(&mut self, row: u32, ordinal: u32, slot: u32, need: Resources) {
        let place = &mut self.slots[slot as usize];
        place.used = place.used.plus(need);
        place.members.push((row, ordinal));
        let row = &mut self.rows[row as usize];
        row.places.insert(ordinal, (slot, need));
        *row.counts.entry(slot).or_default() += 1;
    }

    /// Takes an instance off its worker.
    pub(super) fn take_off(&mut self, row_index: u32, ordinal: u32) -> Option<(u32, Resources)> {
        let row = &mut self.rows[row_index as usize];
        let (slot, need) = row.places.remove(&ordinal)?;
        let place = &mut self.slots[slot as usize];
        place.used = place.used.minus(need);
        if let Some(at) = place.members.iter().rposition(|member| *member == (row_index, ordinal)) {
            place.members.swap_remove(at);
        }
        decrease(&mut row.counts, &slot);
        if let Some(key) = &row.spec.spread.key {
            decrease(&mut row.spread, place.view.label(key).unwrap_or_default());
        }
        Some((slot, need))
    }

    /// Says that an instance lost its place: a copy of it stays there for now.
    pub(super) fn lose(&mut self, row: u32, ordinal: u32, slot: u32, takes: Resources) {
        let place = &mut self.slots[slot as usize];
        place.left = place.left.plus(takes);
        self.lost.insert((row, ordinal), (slot, takes));
    }

    /// Forgets what lost its place before: by now its copies are among those that leave.
    pub(super) fn forget_lost(&mut self) {
        for (slot, _) in std::mem::take(&mut self.lost).into_values() {
            self.slots[slot as usize].left = Resources::default();
        }
    }

    /// Takes an instance off its worker and remembers where it was.
    pub(super) fn lift(&mut self, row: u32, ordinal: u32) -> Option<(u32, Resources)> {
        let lifted = self.take_off(row, ordinal)?;
        self.before.entry((row, ordinal)).or_insert(Some(lifted.0));
        Some(lifted)
    }

    fn recount_spread(&mut self, row: u32) {
        let row = &mut self.rows[row as usize];
        row.spread.clear();
        let Some(key) = &row.spec.spread.key else { return };
        for (slot, _) in row.places.values() {
            increase(&mut row.spread, self.slots[*slot as usize].view.label(key).unwrap_or_default());
        }
    }

    pub(super) fn slot(&self, index: u32) -> &Slot {
        &self.slots[index as usize]
    }

    pub(super) fn row(&self, index: u32) -> &Row {
        &self.rows[index as usize]
    }

    pub(super) fn row_of(&self, id: &VmId) -> Option<&Row> {
        self.row_of.get(id).map(|index| self.row(*index))
    }

    pub(super) fn row_index(&self, id: &VmId) -> Option<u32> {
        self.row_of.get(id).copied()
    }

    pub(super) fn slot_named(&self, name: &WorkerName) -> Option<u32> {
        self.slot_of.get(name).copied().filter(|index| self.slot(*index).is_live)
    }

    pub(super) fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// Returns the workers that are there.
    pub(super) fn live_slots(&self) -> impl Iterator<Item = (u32, &Slot)> {
        let slots = (0_u32..).zip(&self.slots);
        slots.filter(|(_, slot)| slot.is_live)
    }

    pub(super) fn key(&self, row: u32, ordinal: u32) -> InstanceKey {
        InstanceKey::new(&self.row(row).spec.id, ordinal)
    }

    /// Returns which place each row has by the name of its VM.
    pub(super) fn ranks(&self) -> Vec<u32> {
        let mut ranks = vec![0; self.rows.len()];
        for (rank, index) in (0_u32..).zip(self.row_of.values()) {
            ranks[*index as usize] = rank;
        }
        ranks
    }

    /// Whether nothing of a VM may be placed, moved or removed.
    pub fn is_frozen(&self, vm: &VmId) -> bool {
        self.policy.is_frozen(vm)
    }

    /// Whether an instance stays on a draining worker because it has no other place.
    pub fn is_drain_blocked(&self, instance: &InstanceKey) -> bool {
        if self.blocked.is_empty() {
            return false;
        }
        let row = self.row_of.get(&instance.vm);
        row.is_some_and(|row| self.blocked.contains(&(*row, instance.ordinal)))
    }

    /// Whether something lost its place at the last settling and found no other.
    pub fn has_lost(&self) -> bool {
        self.has_lost
    }

    /// Returns the VMs that are wanted, or stay where they are.
    pub fn vms(&self) -> impl Iterator<Item = &VmId> {
        self.row_of.keys()
    }

    /// Returns where an instance is.
    pub fn place_of(&self, instance: &InstanceKey) -> Option<&WorkerName> {
        let (slot, _) = self.row_of(&instance.vm)?.places.get(&instance.ordinal)?;
        Some(&self.slot(*slot).view.id)
    }

    /// Returns everything that was decided; `moves` are those of the last settling.
    pub fn schedule(&self, moves: Vec<Move>) -> Schedule {
        let mut schedule = Schedule { moves, ..Schedule::default() };
        // By name, so that the whole map is built at once.
        let rows = || self.row_of.values().map(|index| self.row(*index));
        let places = rows().flat_map(|row| {
            row.places
                .iter()
                .map(move |(ordinal, (slot, _))| (InstanceKey::new(&row.spec.id, *ordinal), *slot))
        });
        schedule.assign = places.map(|(key, slot)| (key, self.slot(slot).view.id.clone())).collect();
        for (id, index) in &self.row_of {
            let (index, row) = (*index, self.row(*index));
            if !row.is_wanted || self.policy.is_frozen(id) {
                continue;
            }
            let mut shared = None;
            for ordinal in (0..row.spec.replicas).filter(|ordinal| !row.places.contains_key(ordinal)) {
                let key = InstanceKey::new(id, ordinal);
                // Without volumes, an old spec and copies that leave the answer is the same for all instances.
                let is_alone = row.home(ordinal).is_some()
                    || row.holds.contains_key(&ordinal)
                    || self.copies_of(row, ordinal).is_some()
                    || self.lost.contains_key(&(index, ordinal));
                let refusals = match &shared {
                    _ if is_alone => self.refusals(&key),
                    Some(refusals) => Some(Clone::clone(refusals)),
                    None => {
                        shared = self.refusals(&key);
                        shared.clone()
                    }
                };
                schedule.unschedulable.insert(key, refusals.unwrap_or_default());
            }
        }
        schedule.drain_blocked = self.blocked.iter().map(|(row, ordinal)| self.key(*row, *ordinal)).collect();
        schedule
    }
}

fn increase(counts: &mut BTreeMap<String, u32>, key: &str) {
    match counts.get_mut(key) {
        Some(count) => *count += 1,
        None => drop(counts.insert(key.to_owned(), 1)),
    }
}

fn decrease<K: Ord + Borrow<Q>, Q: Ord + ?Sized>(counts: &mut BTreeMap<K, u32>, key: &Q) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

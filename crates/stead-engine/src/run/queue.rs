//! The ready queue: what may start next, under slots and mutexes.
//!
//! Units (a task that waits to start, or one row of a started task) are served in the order in which
//! their task became ready. A unit that lacks a host slot or a mutex is parked at exactly that
//! resource and does not hold back the ones behind it; giving the resource back wakes the first
//! unit parked there. So the cost per start does not grow with the number of waiting units.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

use stead_model::HostName;
use stead_model::plan::TaskIndex;

/// Something that waits to start. Ordered by the moment its task became ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Unit {
    /// When the task became ready.
    pub(super) order: u64,
    /// Which row of the task, if it has started.
    pub(super) row: u32,
    /// Which task.
    pub(super) task: TaskIndex,
}

/// Something a unit may have to wait for, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Resource(u32);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Name {
    Host(HostName),
    RunMutex(String),
    HostMutex(String, HostName),
}

/// Slots, mutexes, and the units that wait for them.
#[derive(Debug)]
pub(super) struct Queue {
    candidates: BinaryHeap<Reverse<(Unit, Option<Resource>)>>,
    // Invariant: a unit is parked at one resource at most, and that one was exhausted when it was parked.
    parked: HashMap<Resource, BTreeSet<Unit>>,
    numbers: HashMap<Name, Resource>,
    /// Units of each resource that are free.
    free: Vec<u32>,
    free_slots: u32,
}

impl Queue {
    pub(super) fn new(parallel: u32) -> Self {
        Self {
            candidates: BinaryHeap::new(),
            parked: HashMap::new(),
            numbers: HashMap::new(),
            free: Vec::new(),
            free_slots: parallel,
        }
    }

    /// Returns the slots of `host`, of which there are `capacity` in all.
    pub(super) fn host(&mut self, host: &HostName, capacity: impl FnOnce() -> u32) -> Resource {
        self.resource(Name::Host(host.clone()), capacity)
    }

    /// Returns the mutex `name` of the run or, with `host`, of that host.
    pub(super) fn mutex(&mut self, name: &str, host: Option<&HostName>) -> Resource {
        let name = match host {
            Some(host) => Name::HostMutex(name.to_owned(), host.clone()),
            None => Name::RunMutex(name.to_owned()),
        };
        self.resource(name, || 1)
    }

    fn resource(&mut self, name: Name, capacity: impl FnOnce() -> u32) -> Resource {
        if let Some(known) = self.numbers.get(&name) {
            return *known;
        }
        let number = Resource(u32::try_from(self.free.len()).expect("fewer resources than tasks and hosts"));
        self.free.push(capacity().max(1));
        self.numbers.insert(name, number);
        number
    }

    /// Adds a unit.
    pub(super) fn push(&mut self, unit: Unit) {
        self.candidates.push(Reverse((unit, None)));
    }

    /// Returns the first unit that may be tried, and the resource it was woken for.
    pub(super) fn pop(&mut self) -> Option<(Unit, Option<Resource>)> {
        self.candidates.pop().map(|Reverse(entry)| entry)
    }

    /// Whether a global slot is free.
    pub(super) fn has_slot(&self) -> bool {
        self.free_slots > 0
    }

    /// Takes a global slot.
    pub(super) fn take_slot(&mut self) {
        self.free_slots -= 1;
    }

    /// Gives a global slot back.
    pub(super) fn give_slot(&mut self) {
        self.free_slots += 1;
    }

    /// Returns the first of `wanted` of which nothing is free.
    pub(super) fn lacking(&self, wanted: &[Resource]) -> Option<Resource> {
        wanted.iter().copied().find(|resource| self.free[resource.0 as usize] == 0)
    }

    /// Takes one of each. The caller has seen that none is lacking.
    pub(super) fn take(&mut self, wanted: &[Resource]) {
        for resource in wanted {
            self.free[resource.0 as usize] -= 1;
        }
    }

    /// Gives one of each back and wakes the first unit parked at each.
    pub(super) fn give(&mut self, held: &[Resource]) {
        for resource in held {
            self.free[resource.0 as usize] += 1;
            self.wake(*resource);
        }
    }

    /// Parks a unit that lacks `missing`. If it was woken for something else, that goes to the next in line.
    pub(super) fn park(&mut self, unit: Unit, missing: Resource, woken_for: Option<Resource>) {
        self.parked.entry(missing).or_default().insert(unit);
        self.pass_on(woken_for.filter(|woken| *woken != missing));
    }

    /// Offers a resource that a woken unit did not take to the next in line.
    pub(super) fn pass_on(&mut self, woken_for: Option<Resource>) {
        if let Some(resource) = woken_for
            && self.free[resource.0 as usize] > 0
        {
            self.wake(resource);
        }
    }

    fn wake(&mut self, resource: Resource) {
        if let Some(waiting) = self.parked.get_mut(&resource)
            && let Some(unit) = waiting.pop_first()
        {
            self.candidates.push(Reverse((unit, Some(resource))));
        }
    }

    /// Forgets every waiting unit.
    pub(super) fn clear(&mut self) {
        self.candidates.clear();
        self.parked.clear();
    }
}

//! Workers that are not of the fleet any more: whose every certificate was revoked.
//!
//! Nobody hears such a worker again, and it hears nobody. It counts for nothing at once; what must not run twice waits until
//! its lease is over, and then it is forgotten, with everything that was seen on it.

use std::collections::BTreeSet;

use stead_model::WorkerName;
use stead_model::fleet::Millis;

use super::super::liveness::Heard;
use super::place::FENCE;
use super::{Cluster, Event, EventKind};

impl Cluster {
    /// Says who is not of the fleet any more: these, and nobody else.
    pub fn dismiss(&mut self, names: &BTreeSet<WorkerName>) {
        for name in names.difference(&self.dismissed) {
            if let Some(ear) = self.ears.get_mut(name) {
                // Who joins again under this name begins to count anew.
                ear.heard = Heard { at: ear.heard.at, ..Heard::default() };
                ear.is_complete = false;
            }
        }
        self.dismissed.clone_from(names);
    }

    /// Whether a worker is not of the fleet any more.
    pub fn is_dismissed(&self, worker: &WorkerName) -> bool {
        self.dismissed.contains(worker)
    }

    /// Forgets those whose lease is over.
    pub(super) fn forget_dismissed(&mut self, now: Millis) {
        let over: Vec<WorkerName> = self
            .dismissed
            .iter()
            .filter(|name| self.durable.workers.contains_key(*name))
            .filter(|name| {
                let until = self.ears.get(*name).map_or(0, |ear| ear.lease_until);
                now >= until.saturating_add(FENCE)
            })
            .cloned()
            .collect();
        for name in over {
            self.durable.workers.remove(&name);
            self.ears.remove(&name);
            self.assigned.remove(&name);
            self.durable.volumes.retain(|_, worker| *worker != name);
            self.scheduler.remove_worker(&name);
            self.events.push(Event::of_worker(EventKind::WorkerState, &name, "gone"));
            self.is_dirty = true;
        }
    }
}

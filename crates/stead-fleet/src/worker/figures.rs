//! What a worker counts, for Prometheus of this machine. Labels are bounded: states, and nothing else.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use stead_model::fleet::state::InstanceState;

use crate::metrics::{Counter, Page};

/// What a worker counts.
#[derive(Debug, Default)]
pub(super) struct Figures {
    /// Heartbeats that were answered, and those that were not.
    pub(super) heartbeats: Counter,
    pub(super) rejected: Counter,
    /// Bytes that were fetched.
    pub(super) fetched: Counter,
    /// Machines that were started again.
    pub(super) restarts: Counter,
    /// Assignments that are older than what is applied.
    pub(super) ignored: Counter,
    generation: AtomicU64,
    instances: Mutex<BTreeMap<InstanceState, u64>>,
}

impl Figures {
    /// Notes the generation that is applied.
    pub(super) fn applied(&self, generation: u64) {
        self.generation.store(generation, Ordering::Relaxed);
    }

    /// Notes what the instances here are doing.
    pub(super) fn saw(&self, states: impl Iterator<Item = InstanceState>) {
        let mut counted = BTreeMap::new();
        states.for_each(|state| *counted.entry(state).or_default() += 1);
        *self.instances.lock().unwrap_or_else(PoisonError::into_inner) = counted;
    }

    /// Returns everything as text.
    pub(super) fn to_text(&self) -> String {
        let mut page = Page::default();
        let generation = self.generation.load(Ordering::Relaxed);
        page.one("generation", "gauge", "The generation that is applied.", generation);
        page.head("instances", "gauge", "Instances by what they are doing.");
        let counted = self.instances.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (word, state) in InstanceState::WORDS {
            page.value("instances", &[("state", word)], counted.get(&state).copied().unwrap_or_default());
        }
        for (name, help, counter) in [
            ("heartbeats_total", "Heartbeats that a master answered.", &self.heartbeats),
            ("heartbeat_rejected_total", "Heartbeats that no master answered.", &self.rejected),
            ("fetch_bytes_total", "Bytes that were fetched.", &self.fetched),
            ("restarts_total", "Instances that were started again.", &self.restarts),
            ("assignments_ignored_total", "Assignments older than what is applied.", &self.ignored),
        ] {
            page.one(name, "counter", help, counter.get());
        }
        page.into_text()
    }
}

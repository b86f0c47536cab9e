//! What a worker tells of its instances.

use std::collections::BTreeMap;

use stead_engine::fleet::reconcile::{ClosureState, LocalState};
use stead_model::fleet::state::{InstanceState, Seen};
use stead_model::fleet::vm::Resources;
use stead_model::fleet::{InstanceKey, Millis};

/// What was told, and what of it somebody has.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// As it is now.
    current: BTreeMap<InstanceKey, Seen>,
    /// As the master has it.
    known: BTreeMap<InstanceKey, Seen>,
}

impl Told {
    /// Takes what is seen now.
    pub(super) fn update(&mut self, seen: BTreeMap<InstanceKey, Seen>) {
        self.current = seen;
    }

    /// Whether there is something that the master does not have.
    pub(super) fn has_news(&self) -> bool {
        self.news(&self.current).next().is_some() || self.gone().next().is_some()
    }

    /// Returns what to tell: everything, or what changed.
    pub(super) fn to_tell(&self, is_full: bool) -> Vec<Seen> {
        if is_full {
            return self.current.values().cloned().chain(self.gone()).collect();
        }
        self.news(&self.current).cloned().chain(self.gone()).collect()
    }

    /// Returns all that is seen now, to be given back once it was told.
    pub(super) fn snapshot(&self) -> BTreeMap<InstanceKey, Seen> {
        self.current.clone()
    }

    /// Notes what the master has.
    pub(super) fn was_told(&mut self, snapshot: BTreeMap<InstanceKey, Seen>) {
        self.known = snapshot;
    }

    fn news<'a>(&'a self, current: &'a BTreeMap<InstanceKey, Seen>) -> impl Iterator<Item = &'a Seen> {
        let is_news = |seen: &&Seen| {
            self.known.get(&seen.key).is_none_or(|known| {
                Seen { uptime_ms: 0, ..known.clone() } != Seen { uptime_ms: 0, ..(*seen).clone() }
            })
        };
        current.values().filter(is_news)
    }

    /// Returns those that are not here any more.
    fn gone(&self) -> impl Iterator<Item = Seen> {
        self.known.keys().filter(|key| !self.current.contains_key(*key)).map(absent)
    }
}

/// Returns an instance that is not there.
pub(super) fn absent(key: &InstanceKey) -> Seen {
    Seen {
        key: key.clone(),
        vm_hash: None,
        state: InstanceState::Absent,
        ready: false,
        uptime_ms: 0,
        attempts: 0,
        code: None,
        detail: String::new(),
        group: None,
        takes: Resources::default(),
    }
}

/// Returns the word for what a machine is doing; nobody may want it.
pub(super) fn word(state: LocalState, is_wanted: bool) -> InstanceState {
    match state {
        LocalState::Running if !is_wanted => InstanceState::Orphan,
        LocalState::Running => InstanceState::Running,
        LocalState::Starting | LocalState::Begun => InstanceState::Starting,
        LocalState::Stopping => InstanceState::Stopping,
        LocalState::Gone { .. } => InstanceState::Failed,
        LocalState::Remains => InstanceState::Absent,
    }
}

/// Returns the word for an instance of which only bits are here.
pub(super) fn word_of_bits(state: ClosureState) -> InstanceState {
    match state {
        ClosureState::Absent => InstanceState::Absent,
        ClosureState::Fetching => InstanceState::Fetching,
        ClosureState::Fetched | ClosureState::Rooted => InstanceState::Fetched,
    }
}

/// Returns when a full report is due again.
pub(super) const FULL_EVERY: Millis = 60_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(text: &str, ready: bool, uptime_ms: Millis) -> (InstanceKey, Seen) {
        let key = InstanceKey::parse(text).unwrap();
        (key.clone(), Seen { ready, uptime_ms, ..absent(&key) })
    }

    /// Section 12: whatever is told, a full report comes every minute.
    #[test]
    fn a_full_report_is_due_every_minute() {
        assert_eq!(FULL_EVERY, 60_000);
    }

    #[test]
    fn only_changes_are_told_and_what_went_is_told_once() {
        let mut told = Told::default();
        told.update([seen("a/0", false, 1), seen("b/0", true, 1)].into());
        assert_eq!(told.to_tell(false).len(), 2);
        told.was_told(told.snapshot());
        told.update([seen("a/0", false, 9), seen("b/0", true, 9)].into());
        assert!(!told.has_news(), "time alone is no news");
        told.update([seen("a/0", true, 10)].into());
        let news = told.to_tell(false);
        assert_eq!(news.len(), 2);
        assert_eq!((news[1].key.to_string().as_str(), news[1].state), ("b/0", InstanceState::Absent));
        told.was_told(told.snapshot());
        assert!(!told.has_news() && told.to_tell(true).len() == 1);
    }
}

//! What this run has heard of the level below before: a driver that was started anew reads on where it stopped.

use stead_model::event::EventKind;
use stead_model::{NodeName, Value};
use stead_runner::journal::read_with;
use stead_runner::operation::{OpContext, OpError};

/// What the journal has of a task's runs below.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Recalled {
    /// Runs that ended.
    pub(super) ended: u32,
    /// Events of the one after them.
    pub(super) heard: u64,
    /// What they said of nodes: which run said it, and the event.
    pub(super) said: Vec<(Vec<NodeName>, Value)>,
}

impl Recalled {
    /// Returns what the journal of `cx` has of the runs on `node`; none: on another machine. Each event below is one event here.
    pub(super) fn of(cx: &OpContext, node: Option<&NodeName>) -> Result<Self, OpError> {
        let mut recalled = Self::default();
        let Some(bundle) = &cx.bundle else { return Ok(recalled) };
        let own = node.map_or(&[][..], std::slice::from_ref);
        let taken = read_with(&bundle.join(stead_bundle::EVENTS), |event| {
            let EventKind::Delegated { task, origin, event } = event.kind else { return };
            if task == cx.task {
                let is_own = origin == own;
                recalled.take(is_own, origin, *event);
            }
        });
        taken.map_err(|error| OpError::operation(error.to_string()))?;
        Ok(recalled)
    }

    /// Counts an event; `is_own` says whether it is one of the run right below.
    fn take(&mut self, is_own: bool, origin: Vec<NodeName>, event: Value) {
        let is = |word: &str| event["ev"] == word;
        // The one before was killed.
        if is_own && is("run_started") && self.heard > 0 {
            self.begin_next();
        }
        self.heard += 1;
        match is_own && is("run_finished") {
            true => self.begin_next(),
            false if is("node") => self.said.push((origin, event)),
            false => {}
        }
    }

    /// Goes on to the run after the one that is not heard of any more.
    pub(super) fn begin_next(&mut self) {
        *self = Self { ended: self.ended + 1, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Case 32: what was heard is counted, and the next run begins from its first event.
    #[test]
    fn events_of_a_run_that_ended_are_not_counted_for_the_next() {
        let mut recalled = Recalled::default();
        let quay = || vec![NodeName::parse("quay").unwrap()];
        let take = |recalled: &mut Recalled, ev: &str| recalled.take(true, quay(), json!({"ev": ev}));
        for ev in ["run_started", "task_ready", "node", "run_finished"] {
            take(&mut recalled, ev);
        }
        assert_eq!(recalled, Recalled { ended: 1, heard: 0, said: Vec::new() });
        ["run_started", "node"].into_iter().for_each(|ev| take(&mut recalled, ev));
        assert_eq!(recalled, Recalled { ended: 1, heard: 2, said: vec![(quay(), json!({"ev": "node"}))] });
        take(&mut recalled, "run_started");
        assert_eq!(recalled, Recalled { ended: 2, heard: 1, said: Vec::new() }, "the one before was killed");
        recalled.take(false, [quay(), quay()].concat(), json!({"ev": "run_finished"}));
        assert_eq!((recalled.ended, recalled.heard), (2, 2), "a deeper one");
    }
}

//! What this run has heard of the level below before: a driver that was started anew reads on where it stopped.

use stead_model::NodeName;
use stead_model::event::EventKind;
use stead_runner::journal::read_with;
use stead_runner::operation::{OpContext, OpError};

/// What the journal has of a task's runs below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Recalled {
    /// Runs that ended.
    pub(super) ended: u32,
    /// Events of the one after them.
    pub(super) heard: u64,
}

impl Recalled {
    /// Returns what the journal of `cx` has of the runs on `node`. Each event below is one event here.
    pub(super) fn of(cx: &OpContext, node: &NodeName) -> Result<Self, OpError> {
        let mut recalled = Self::default();
        let Some(bundle) = &cx.bundle else { return Ok(recalled) };
        let own = std::slice::from_ref(node);
        let taken = read_with(&bundle.join(stead_bundle::EVENTS), |event| {
            let EventKind::Delegated { task, origin, event } = event.kind else { return };
            if task == cx.task {
                let of_run = if origin == own { event["ev"].as_str() } else { None };
                recalled.take(of_run.unwrap_or_default());
            }
        });
        taken.map_err(|error| OpError::operation(error.to_string()))?;
        Ok(recalled)
    }

    /// Counts an event; `of_run` says which, if it is one of the run right below.
    fn take(&mut self, of_run: &str) {
        // The one before was killed.
        if of_run == "run_started" && self.heard > 0 {
            *self = self.next();
        }
        self.heard += 1;
        if of_run == "run_finished" {
            *self = self.next();
        }
    }

    /// Returns this with one more run behind it.
    pub(super) fn next(self) -> Self {
        Self { ended: self.ended + 1, heard: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Case 32: what was heard is counted, and the next run begins from its first event.
    #[test]
    fn events_of_a_run_that_ended_are_not_counted_for_the_next() {
        let mut recalled = Recalled::default();
        ["run_started", "", "node", "run_finished"].into_iter().for_each(|event| recalled.take(event));
        assert_eq!(recalled, Recalled { ended: 1, heard: 0 });
        ["run_started", "node"].into_iter().for_each(|event| recalled.take(event));
        assert_eq!(recalled, Recalled { ended: 1, heard: 2 });
        recalled.take("run_started");
        assert_eq!(recalled, Recalled { ended: 2, heard: 1 }, "the one before was killed");
    }
}

//! Stopping a run from outside: signals, and the key that stands for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use stead_model::bundle::EndedBy;
use stead_model::run_plan::Until;
use stead_runner::Canceller;

use super::RunSurroundings;

/// Stops a run of roles. Every clone stops the same one.
#[derive(Clone, Debug)]
pub struct RunStopper {
    run: Arc<RunSurroundings>,
    canceller: Canceller,
    count: Arc<AtomicU32>,
}

/// How a run is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopWish {
    /// By SIGINT or SIGTERM, or by a key: the normal end of a run that goes on until a signal.
    End,
    /// By SIGHUP: whoever watched is gone.
    HangUp,
}

impl RunStopper {
    pub(super) fn new(run: Arc<RunSurroundings>, canceller: Canceller) -> Self {
        Self { run, canceller, count: Arc::default() }
    }

    /// Stops the run: first in order, the second time by killing its roles; both times what they left is collected and
    /// the bundle sealed.
    pub fn stop(&self, wish: StopWish) {
        let is_first = self.count.fetch_add(1, Ordering::SeqCst) == 0;
        if is_first && wish == StopWish::End && self.ends_the_run() {
            return;
        }
        self.canceller.signal(1);
        if !is_first {
            self.run.kill.send_replace(true);
        }
    }

    /// Ends a run that goes on until a signal; one that has not come so far is cancelled.
    fn ends_the_run(&self) -> bool {
        self.run.run.until == Until::Signal
            && self.run.state.change(|state| {
                let ends = state.is_under_way(&self.run.run) && state.failure.is_none();
                if ends {
                    state.ended_by.get_or_insert(EndedBy::Signal);
                }
                ends
            })
    }
}

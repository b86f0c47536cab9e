//! Stopping a run from outside.

use std::sync::Arc;

use stead_model::event::CancelReason;
use tokio::sync::watch;

/// How urgently a run should stop, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// It should go on.
    GoOn,
    /// Cancel what runs, then run `finally`.
    Stop(CancelReason),
    /// Kill everything, `finally` too.
    Kill,
}

/// Stops a run; every clone stops the same one. Works before and during [`crate::Runner::run`].
#[derive(Clone, Debug)]
pub struct Canceller(Arc<watch::Sender<Wish>>);

impl Canceller {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Wish::GoOn)))
    }

    /// Cancels what runs; `finally` still runs. A second call changes nothing.
    pub fn cancel(&self) {
        self.wish(Wish::Stop(CancelReason::Api));
    }

    /// Stops the run as the `count`-th signal does: the first cancels, the second kills everything.
    pub fn signal(&self, count: u32) {
        self.wish(if count > 1 { Wish::Kill } else { Wish::Stop(CancelReason::Signal) });
    }

    /// Kills everything, `finally` too. The report is still complete.
    pub fn kill(&self) {
        self.wish(Wish::Kill);
    }

    fn wish(&self, wish: Wish) {
        self.0.send_if_modified(|now| {
            let stronger = match (&now, wish) {
                (Wish::GoOn, _) => true,
                (Wish::Stop(_), Wish::Kill) => true,
                (Wish::Stop(_) | Wish::Kill, _) => false,
            };
            if stronger {
                *now = wish;
            }
            stronger
        });
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Wish> {
        self.0.subscribe()
    }
}

//! How often the run was asked to stop, by a key or by a signal: the first asks, the second kills.

use std::sync::{Mutex, MutexGuard, PoisonError};

use stead_drivers::run::{RunStopper, StopWish};

/// Tells the run to stop, also if it was asked before it could be told.
#[derive(Debug, Default)]
pub(crate) struct Stops(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    asked: Vec<StopWish>,
    stopper: Option<RunStopper>,
}

impl Stops {
    /// Asks once more.
    pub(crate) fn press(&self, wish: StopWish) {
        self.lock().press(wish);
    }

    /// Asks, unless that has been done.
    pub(crate) fn ask(&self, wish: StopWish) {
        let mut inner = self.lock();
        if inner.asked.is_empty() {
            inner.press(wish);
        }
    }

    /// Forgets an earlier run and what was asked of it.
    pub(super) fn forget(&self) {
        *self.lock() = Inner::default();
    }

    /// Tells `stopper` from now on, and what was asked so far.
    pub(super) fn listen(&self, stopper: RunStopper) {
        let mut inner = self.lock();
        inner.asked.iter().for_each(|wish| stopper.stop(*wish));
        inner.stopper = Some(stopper);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn press(&mut self, wish: StopWish) {
        self.asked.push(wish);
        if let Some(stopper) = &self.stopper {
            stopper.stop(wish);
        }
    }
}

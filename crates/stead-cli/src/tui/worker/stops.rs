//! How often the run was asked to stop, by a key or by a signal: the first asks, the second kills.

use std::sync::{Mutex, MutexGuard, PoisonError};

use stead_runner::Canceller;

/// Counts what asks the run to stop and tells the run, also if it was asked before it could be told.
#[derive(Debug, Default)]
pub(crate) struct Stops(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    count: u32,
    canceller: Option<Canceller>,
}

impl Stops {
    /// Asks once more.
    pub(crate) fn press(&self) {
        let mut inner = self.lock();
        inner.count = inner.count.saturating_add(1);
        inner.tell();
    }

    /// Asks, unless that has been done.
    pub(crate) fn ask(&self) {
        let mut inner = self.lock();
        if inner.count == 0 {
            inner.count = 1;
            inner.tell();
        }
    }

    /// Forgets an earlier run and what was asked of it.
    pub(super) fn forget(&self) {
        *self.lock() = Inner::default();
    }

    /// Tells `canceller` from now on.
    pub(super) fn listen(&self, canceller: Canceller) {
        let mut inner = self.lock();
        inner.canceller = Some(canceller);
        inner.tell();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn tell(&self) {
        if let Some(canceller) = self.canceller.as_ref().filter(|_| self.count > 0) {
            canceller.signal(self.count);
        }
    }
}

//! What a master counts and measures.

use std::sync::atomic::AtomicBool;

use tokio::sync::watch;

use crate::api::Leader;
use crate::metrics::{Counter, Durations};

/// What a master counts and measures.
#[derive(Debug, Default)]
pub(super) struct Figures {
    /// Who leads.
    pub(super) leader: watch::Sender<Leader>,
    /// Whether this master leads.
    pub(super) leads: AtomicBool,
    /// Whether its store answers.
    pub(super) has_store: AtomicBool,
    /// Heartbeats taken.
    pub(super) heartbeats: Counter,
    /// Heartbeats that said nothing new.
    pub(super) rejected: Counter,
    /// From an assignment's call to its answer, where there was one to give.
    pub(super) assignment: Durations,
    /// From a publication to its verdict.
    pub(super) publish: Durations,
    /// Transactions of the store.
    pub(super) store_txn: Durations,
}

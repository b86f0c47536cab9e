//! What the store remembers of each change: one line of its journal.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stead_model::node::wire::{JobState, SignalKind, StoredReport};
use stead_model::time::Timestamp;
use stead_model::{MessageId, NodeName};

/// A change. A live server and the replay of a journal feed them through the same function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub(crate) enum Record {
    /// Ids go on from here: what had smaller ones may be forgotten.
    Counter { next: u64 },
    /// An operator has sent a signal.
    Signal {
        id: MessageId,
        node: NodeName,
        kind: SignalKind,
        payload: Value,
        /// When; the beginning of time in journals that do not say.
        #[serde(default = "long_ago")]
        at: Timestamp,
    },
    /// An operator has submitted a job.
    Job {
        id: MessageId,
        node: NodeName,
        argv: Vec<String>,
        ttl: u64,
        timeout: Option<u64>,
        idempotent: bool,
        #[serde(default)]
        live: bool,
        /// Whether it reads something, which is kept elsewhere.
        #[serde(default)]
        input: bool,
        /// What it was asked for with, if that may come again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        by: String,
        at: Timestamp,
    },
    /// An agent was given a signal or job.
    Delivered {
        id: MessageId,
        node: NodeName,
        /// When; the beginning of time in journals that do not say.
        #[serde(default = "long_ago")]
        at: Timestamp,
    },
    /// The tokens of a node that were made before this are revoked: what waits is for a machine that is gone. None if the
    /// keyring does not say so any more.
    Revoked { node: NodeName, before: Option<i64> },
    /// A job has gone on.
    JobChanged {
        id: MessageId,
        state: JobState,
        at: Timestamp,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rc: Option<i32>,
        #[serde(default)]
        truncated: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        /// How much it wrote.
        #[serde(default)]
        bytes: u64,
    },
    /// A node has reported.
    Report { node: NodeName, report: StoredReport },
}

fn long_ago() -> Timestamp {
    Timestamp::from_micros(0)
}

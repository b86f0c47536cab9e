//! What a server says of itself.

use serde::{Deserialize, Serialize};
use stead_model::time::Timestamp;

use crate::place::ServerFacts;

/// What a server says of itself: `GET /v1/server`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerReport {
    /// What clients need to know of it.
    #[serde(flatten)]
    pub facts: ServerFacts,
    /// How long it has been running.
    pub uptime_seconds: u64,
    /// How many agents are connected.
    pub agents: usize,
    /// How the last reload went, if there was one.
    pub reload: Option<ReloadReport>,
}

/// How a reload went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadReport {
    /// When.
    pub at: Timestamp,
    /// Whether what was read is in force.
    pub ok: bool,
    /// Why it is not.
    pub problems: Vec<String>,
}

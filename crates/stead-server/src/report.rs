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
    /// Whether a run started it, and stops it when nothing needs it any more.
    #[serde(default)]
    pub for_run: bool,
    /// How the last reload went, if there was one.
    pub reload: Option<ReloadReport>,
    /// What of its plans cannot be used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unusable_plans: Vec<String>,
    /// Why nothing can be kept, if that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
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

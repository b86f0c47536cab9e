//! What a run of roles adds to the event log. Nothing here decides the state of a task.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::plan::Digest;

/// The driver is connected to an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentConnected {
    /// The agent's id.
    pub agent: String,
    /// Its operating system.
    pub os: String,
    /// Its architecture.
    pub arch: String,
    /// How long a message and its answer take.
    pub latency_ms: f64,
    /// How far its clock is ahead of the driver's.
    pub clock_offset_ms: f64,
    /// Whether the program had to be brought there.
    #[serde(default)]
    pub uploaded: bool,
}

/// The connection to an agent was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentLost {
    /// The agent's id.
    pub agent: String,
    /// What is known of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The connection to an agent is there again; nothing was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentBack {
    /// The agent's id.
    pub agent: String,
}

/// A role's process was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleStarted {
    /// The role's name.
    pub role: String,
    /// The id of its agent.
    pub agent: String,
    /// Its process there.
    pub pid: u32,
    /// What was started.
    pub argv: Vec<String>,
    /// Where it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Its program there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The hash of its program, if that can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program_sha256: Option<String>,
}

/// A service is ready.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoleReady {
    /// The role's name.
    pub role: String,
    /// Which method found out.
    pub by: String,
    /// What it said of itself.
    #[serde(default)]
    pub values: Map<String, Value>,
    /// How long after its start.
    pub after_ms: u64,
}

/// A role is being stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleStop {
    /// The role's name.
    pub role: String,
    /// The signal its processes get first.
    pub signal: String,
    /// Why.
    pub reason: String,
}

/// A role ended: no process of its tree is left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleExited {
    /// The role's name.
    pub role: String,
    /// Its exit code; none if a signal ended it.
    #[serde(default)]
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(default)]
    pub signal: Option<String>,
    /// From its start to its end.
    pub duration_ms: u64,
}

/// A file that a role left is in the bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// The role's name.
    pub role: String,
    /// Where it is below the role's directory.
    pub path: String,
    /// How long it is.
    pub bytes: u64,
    /// Its hash, the same as on the agent.
    pub sha256: Digest,
}

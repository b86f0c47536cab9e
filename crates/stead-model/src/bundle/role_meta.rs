//! What a bundle says of each role of a run.

use core::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::plan::Digest;
use crate::run_plan::RoleKind;
use crate::time::Timestamp;

/// Files that every role has in its directory; no artifact may be called so.
pub const ROLE_FILES: [&str; 3] = ["stdout.log", "stderr.log", "role_meta.json"];

/// `role_meta.json`: what a role was and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoleMeta {
    /// The role instance.
    pub role: String,
    /// Whether it ends by itself.
    pub kind: RoleKind,
    /// The id of its agent.
    pub agent_id: String,
    /// How that is reached, masked.
    pub transport: String,
    /// What was started, or would have been.
    pub argv: Vec<String>,
    /// The variables it was given.
    pub env_names: Vec<String>,
    /// Where it ran; none if it had no place yet.
    pub workdir: Option<String>,
    /// What became of it.
    pub status: RoleStatus,
    /// Its process.
    pub pid: Option<u32>,
    /// When it was started.
    pub started_at: Option<Timestamp>,
    /// How it became ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<ReadyMeta>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// Its exit code; none if a signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// How it was stopped, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopMeta>,
    /// Bytes of `stdout.log`.
    pub stdout_bytes: u64,
    /// Bytes of `stderr.log`.
    pub stderr_bytes: u64,
    /// Those of its artifacts that are captures.
    pub pcap_files: Vec<String>,
    /// What was collected, by path.
    pub artifacts: Vec<ArtifactMeta>,
    /// An address its agent must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bind_ip: Option<IpAddr>,
    /// The address it talks to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_ip: Option<IpAddr>,
    /// Its values of the role's matrix.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub matrix: Map<String, Value>,
    /// Which repetition it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeat_index: Option<u32>,
    /// The most memory one of its processes had at once.
    pub max_rss_bytes: u64,
    /// Processor time of all its processes.
    pub cpu_ms: u64,
}

/// What became of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoleStatus {
    /// It did what it had to do.
    Success,
    /// It did not.
    Failed,
    /// It, or the run, took too long.
    Timeout,
    /// The run was stopped while it ran.
    Cancelled,
    /// Its agent, or its driver, was lost.
    Lost,
    /// It was never started.
    NotStarted,
}

impl RoleStatus {
    /// Returns the word used in files and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failed => "failed",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Lost => "lost",
            Self::NotStarted => "not_started",
        }
    }
}

/// How a role became ready.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadyMeta {
    /// Which method answered.
    pub by: String,
    /// How long after its start.
    pub after_ms: u64,
    /// What it said of itself.
    pub values: Map<String, Value>,
}

/// How a role was stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopMeta {
    /// What its processes were sent.
    pub signal: String,
    /// Why.
    pub reason: String,
    /// Whether they had to be killed.
    pub killed: bool,
}

/// A file that a role left.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ArtifactMeta {
    /// Below the role's directory.
    pub path: String,
    /// How long it is.
    pub bytes: u64,
    /// Its hash.
    pub sha256: Digest,
}

impl ArtifactMeta {
    /// Whether it is a capture, by its name.
    pub fn is_capture(&self) -> bool {
        self.path.ends_with(".pcap") || self.path.ends_with(".pcapng")
    }
}

/// What `versions.json` says of a role.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoleVersions {
    /// The id of its agent.
    pub agent_id: String,
    /// How that is reached, masked.
    pub transport: String,
    /// The agent's own name.
    pub host: Option<String>,
    /// Its system.
    pub os: Option<String>,
    /// Its processor.
    pub arch: Option<String>,
    /// The `stead` that supervised there.
    pub stead_sha256: Option<String>,
    /// Its clock less the driver's.
    pub clock_offset_ms: Option<f64>,
    /// The program that ran.
    pub program: Option<String>,
    /// Its hash.
    pub program_sha256: Option<String>,
}

impl RoleVersions {
    /// Returns what is known here, and of what is not, what was known before.
    #[must_use]
    pub fn or(self, before: Self) -> Self {
        // A program has its own hash, or none.
        let (program, program_sha256) = match self.program {
            Some(program) => (Some(program), self.program_sha256),
            None => (before.program, before.program_sha256),
        };
        Self {
            agent_id: self.agent_id,
            transport: self.transport,
            host: self.host.or(before.host),
            os: self.os.or(before.os),
            arch: self.arch.or(before.arch),
            stead_sha256: self.stead_sha256.or(before.stead_sha256),
            clock_offset_ms: self.clock_offset_ms.or(before.clock_offset_ms),
            program,
            program_sha256,
        }
    }
}

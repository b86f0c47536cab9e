//! The metadata files of a bundle.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::event::RunKind;
use crate::exit_code::ExitCode;
use crate::id::RunId;
use crate::plan::Digest;
use crate::report::Warning;
use crate::status::RunStatus;
use crate::steps::StepsMeta;
use crate::time::Timestamp;

mod role_meta;

pub use role_meta::{ArtifactMeta, ROLE_FILES, ReadyMeta, RoleMeta, RoleStatus, RoleVersions, StopMeta};

/// `run_meta.json`: what a run is and how it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunMeta {
    /// Version of this format: 1.
    pub schema: u32,
    /// Which front door.
    pub kind: RunKind,
    /// The run's id.
    pub run_id: RunId,
    /// `running` until the end.
    pub status: RunStatus,
    /// What the process exited with, once it has.
    pub exit_code: Option<ExitCode>,
    /// When its first segment began.
    pub started_at: Timestamp,
    /// When its last segment ended.
    pub finished_at: Option<Timestamp>,
    /// How long all segments took together.
    pub duration_seconds: f64,
    /// What ended it.
    pub ended_by: Option<EndedBy>,
    /// The machine that drove it.
    pub driver_host: String,
    /// SHA-256 of `plan.json`.
    pub plan_hash: Digest,
    /// The seed of a run of roles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// Names of the tasks that are done, in plan order.
    #[serde(default)]
    pub phases_completed: Vec<String>,
    /// How each phase of a run of roles went, in plan order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<Phase>,
    /// The phase whose failure was the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_phase: Option<String>,
    /// Why the run as a whole failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What a person should know.
    #[serde(default)]
    pub warnings: Vec<Warning>,
    /// What a run of kind `plan` adds.
    #[serde(flatten)]
    pub plan: PlanMeta,
    /// What a run of kind `steps` adds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<Box<StepsMeta>>,
    /// Keys of other front doors.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}

/// What a run of kind `plan` adds to `run_meta.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlanMeta {
    /// The plan's name.
    pub plan: String,
    /// The plan file as the user named it, absolute; none if it came from standard input or a program.
    pub source: Option<String>,
    /// The command line, secrets masked.
    #[serde(default)]
    pub argv: Vec<String>,
    /// Variables given on the command line or in files, for compiling the source again.
    #[serde(default)]
    pub vars: BTreeMap<String, Value>,
    /// Tasks named by `--only`.
    #[serde(default)]
    pub only: Vec<String>,
    /// The targets of `--limit`, which also hold when the run is resumed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limit: Vec<String>,
    /// Inventory files, absolute.
    #[serde(default)]
    pub inventory: Vec<String>,
    /// The site whose hosts and nodes were hosts too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodesOrigin>,
    /// What started the run, if not a person.
    #[serde(default)]
    pub trigger: Option<Value>,
    /// How many processes worked on it, one after the other.
    #[serde(default)]
    pub segments: u32,
}

/// Where nodes and hosts of a site came from that a plan ran on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodesOrigin {
    /// The site directory, absolute.
    pub site: String,
    /// The manifest of the nodes; without it and without host only the hosts of the site were meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// The host they are on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// One phase of a run of roles.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// Its name, which is that of its task.
    pub name: String,
    /// The role it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// How it went.
    pub status: PhaseStatus,
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// How a phase of a run of roles went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PhaseStatus {
    /// It did what it had to do.
    Done,
    /// It failed.
    Failed,
    /// It was not asked for.
    Skipped,
    /// It was stopped.
    Cancelled,
    /// The run stopped before it began.
    NotRun,
}

/// What ended a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndedBy {
    /// All tasks were decided.
    Tasks,
    /// A role's duration passed.
    Duration,
    /// A signal.
    Signal,
    /// A failure.
    Failure,
    /// A timeout.
    Timeout,
}

/// `versions.json`: what made the bundle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Versions {
    /// Stead's version.
    pub stead_version: String,
    /// The commit Stead was built from, if known.
    pub git_commit: Option<String>,
    /// The compiler Stead was built with.
    pub rust_version: String,
    /// Operating system of the driver.
    pub driver_os: String,
    /// Architecture of the driver.
    pub driver_arch: String,
    /// Per role, for runs of kind `run`.
    #[serde(default)]
    pub roles: BTreeMap<String, RoleVersions>,
}

//! What a node tells of itself, and what is known of it.

use serde::{Deserialize, Serialize};

use super::{STREAM_BYTES, WireCode, WireError, parse_body};
use crate::id::{MessageId, NodeName, SiteKey};
use crate::plan::Digest;
use crate::time::Timestamp;

/// The most that is kept of the text of an error.
const MOST_ERROR_BYTES: usize = 16 * 1024;

/// What a report is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReportKind {
    /// It became its spec, or did not.
    Config,
    /// A job.
    Job,
    /// It knows the peers that a signal told it of, or does not.
    Link,
    /// It stops for good.
    Terminated,
}

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReportStatus {
    /// A job was started. Only of jobs.
    Running,
    /// Well.
    Complete,
    /// Not well.
    Failed,
}

/// How a job ended that did not end by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobOutcome {
    /// An operator ended it.
    Cancelled,
    /// The agent ended in between: nobody knows whether it ran.
    Lost,
}

/// What a node reports: `POST …/reports`. Members that are not known are ignored: agents may be newer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// About what.
    pub kind: ReportKind,
    /// How it went.
    pub status: ReportStatus,
    /// The signal or job that asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<MessageId>,
    /// The spec in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<SiteKey>,
    /// Its digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_digest: Option<String>,
    /// The digest of what was observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_digest: Option<String>,
    /// How many things were changed.
    #[serde(default)]
    pub changed: u64,
    /// How long it took.
    #[serde(default)]
    pub duration_seconds: f64,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What a job ended with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rc: Option<i32>,
    /// What a job wrote.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stdout: String,
    /// What a job complained about.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stderr: String,
    /// Whether one of the streams was cut.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// How a failed job ended, if not by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<JobOutcome>,
}

impl NodeReport {
    /// Returns a report that says nothing more.
    pub fn new(kind: ReportKind, status: ReportStatus) -> Self {
        Self {
            kind,
            status,
            id: None,
            spec: None,
            spec_digest: None,
            state_digest: None,
            changed: 0,
            duration_seconds: 0.0,
            error: None,
            rc: None,
            stdout: String::new(),
            stderr: String::new(),
            truncated: false,
            outcome: None,
        }
    }

    /// Returns what a body reports. Streams and errors that are too long are cut.
    pub fn parse(body: &[u8]) -> Result<Self, WireError> {
        let mut report: Self = parse_body(body)?;
        let refuse = |why: &str| Err(WireError::new(WireCode::E400, why));
        for digest in [&report.spec_digest, &report.state_digest].into_iter().flatten() {
            if !is_digest(digest) {
                return refuse("a digest is `sha256:` and 64 hex digits");
            }
        }
        if !report.duration_seconds.is_finite() || report.duration_seconds < 0.0 {
            return refuse("`duration_seconds` is not a time");
        }
        match report.kind {
            ReportKind::Job if report.id.is_none() => return refuse("the report of a job names its `id`"),
            ReportKind::Config | ReportKind::Link | ReportKind::Terminated
                if report.status == ReportStatus::Running =>
            {
                return refuse("only a job reports that it runs");
            }
            ReportKind::Config if report.status == ReportStatus::Complete => {
                if report.spec.is_none() || report.spec_digest.is_none() || report.state_digest.is_none() {
                    return refuse("a complete config names `spec`, `spec_digest` and `state_digest`");
                }
            }
            ReportKind::Config | ReportKind::Job | ReportKind::Link | ReportKind::Terminated => {}
        }
        report.truncated |= cut(&mut report.stdout, STREAM_BYTES) | cut(&mut report.stderr, STREAM_BYTES);
        if let Some(error) = &mut report.error {
            cut(error, MOST_ERROR_BYTES);
        }
        Ok(report)
    }
}

/// Whether `text` is written as digests are.
pub fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|hex| Digest::parse(hex).is_some())
}

/// Cuts `text` to at most `most` bytes, and returns whether it was longer.
fn cut(text: &mut String, most: usize) -> bool {
    let is_longer = text.len() > most;
    if is_longer {
        text.truncate(text.floor_char_boundary(most));
    }
    is_longer
}

/// A report as the server keeps it; what a job wrote is with the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredReport {
    /// Its place among all that the server took; grows.
    pub seq: u64,
    /// When it came.
    pub at: Timestamp,
    /// What it says.
    #[serde(flatten)]
    pub report: NodeReport,
}

/// Whether a node's agent is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AgentState {
    /// It polls, or did so in the last 15 seconds.
    Connected,
    /// It polled before that.
    Stale,
    /// It never polled.
    None,
}

/// What a server knows of a node: `GET /v1/nodes/N`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Which node.
    pub node: NodeName,
    /// Whether its agent is there.
    pub agent: AgentState,
    /// When it was last heard of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<Timestamp>,
    /// Digest of the spec it last became.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_digest: Option<String>,
    /// Digest of what was then observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_digest: Option<String>,
    /// The place of its last report; 0 if there is none. What to ask for next: `after=SEQ`.
    pub seq: u64,
    /// Its reports after the one that was asked for, oldest first.
    pub reports: Vec<StoredReport>,
}

//! What a master does for others. The wire's client and the master itself implement it; publisher, worker and command
//! line use it, and tests give them a master of their own.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use stead_engine::fleet::watch::FailureClass;
use stead_model::fleet::state::{Assignment, Heartbeat, HoldTarget, Publication, Verdict};
use stead_model::fleet::{CommitId, InstanceKey, Millis};
use stead_model::{GroupName, VmId, WorkerName};

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Nobody answered, or not in time. It may have been done all the same.
    #[error("no master answers: {0}")]
    Away(String),
    /// Another master leads.
    #[error("the master at {leader} leads")]
    NotLeader {
        /// Its address; empty: none is known.
        leader: String,
    },
    /// It is refused, and would be again.
    #[error("{message} ({code})")]
    Refused {
        /// Such as `forbidden`, `store-unavailable`, `version-unsupported`.
        code: String,
        /// Why, and what to do.
        message: String,
    },
}

/// Who leads a fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leader {
    /// Its address; empty: none is known.
    pub address: String,
    /// Counts leaders.
    pub epoch: u64,
}

/// What a worker has applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The generation.
    pub generation: u64,
    /// The revision.
    pub revision: u64,
}

/// The answer to a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// How long singletons may run, from when the heartbeat was sent; none: not granted.
    pub lease: Option<Millis>,
    /// When to report again.
    pub interval: Millis,
    /// Whether everything has to be reported.
    pub needs_full: bool,
    /// Who leads.
    pub leader: String,
}

/// The code of a master's answer to a report of groups that it does not have: its state was lost.
pub const UNPUBLISHED: &str = "unpublished";

/// Which part of a status is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StatusFilter {
    /// Only this group's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupName>,
    /// Only what is on this worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerName>,
    /// Only this VM's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm: Option<VmId>,
}

impl StatusFilter {
    /// Whether a group is of the part that is wanted.
    pub fn has_group(&self, group: &GroupName) -> bool {
        self.group.as_ref().is_none_or(|wanted| wanted == group)
    }
}

/// A JSON document as it travels: written once by who knows its type, read by who needs it.
#[derive(Clone, PartialEq, Eq)]
pub struct Json(pub String);

impl fmt::Debug for Json {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Json({} bytes)", self.0.len())
    }
}

/// What the publisher tells of a commit on its way, for `status` and `wait`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PipelineReport {
    /// The watcher.
    pub watcher: WatcherReport,
    /// The newest commit of each group that is on its way or came to an end, by group.
    pub groups: Vec<GroupPipeline>,
}

/// What the watcher sees.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatcherReport {
    /// The full ref.
    #[serde(rename = "ref")]
    pub reference: String,
    /// `ok`, `rewrite-rejected`, `ref-missing`, `unreachable`, `signature-rejected`, `waiting-for-master`.
    pub state: String,
    /// When the ref was last looked at, in milliseconds since 1970, for people.
    pub last_poll: Millis,
    /// What is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The head that was seen last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<CommitId>,
    /// A head that was rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<CommitId>,
}

/// Where a group's newest commit is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupPipeline {
    /// The group.
    pub group: GroupName,
    /// The commit.
    pub commit: CommitId,
    /// The commits that it contains, newest first, as far as anybody may wait for them.
    #[serde(default)]
    pub contains: Vec<CommitId>,
    /// `observed`, `verified`, `evaluated`, `built`, `cached`, `cache-verified`, `submitted`, `failed`, `superseded`.
    pub stage: String,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<PipelineFailure>,
}

/// Why a commit failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PipelineFailure {
    /// Where.
    pub stage: String,
    /// Whether trying again helps.
    pub class: FailureClass,
    /// Which VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// What went wrong, with the file and line that the tool gave.
    pub error: String,
    /// The file with everything it said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
}

/// What an operator asks to freeze, or to free again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldOrder {
    /// Freeze for a while. Its name is the answer.
    Hold {
        /// What.
        target: HoldTarget,
        /// For how long; a day at most.
        duration: Millis,
        /// Why.
        reason: String,
    },
    /// Free again.
    Release {
        /// The hold's name.
        id: String,
    },
}

/// A master. Every call ends within its deadline, whatever the other side does.
#[async_trait]
pub trait Master: Send + Sync + fmt::Debug {
    /// Returns who leads, as far as is known.
    async fn leader(&self) -> Leader {
        Leader::default()
    }

    /// Returns the generation of a commit: the same one while that is the highest, else a new one.
    async fn reserve_generation(&self, commit: &CommitId, publisher: &str) -> Result<u64, CallError>;

    /// Takes a publication as a whole, or says why not.
    async fn publish(&self, publication: Publication, publisher: &str) -> Result<Verdict, CallError>;

    /// Takes groups of one commit between which VMs move: all of them, or none. The verdicts are in their order.
    async fn publish_together(
        &self,
        publications: Vec<Publication>,
        publisher: &str,
    ) -> Result<Vec<Verdict>, CallError> {
        let mut verdicts = Vec::new();
        for publication in publications {
            verdicts.push(self.publish(publication, publisher).await?);
        }
        Ok(verdicts)
    }

    /// Returns a worker's assignment; none if it has applied it already and nothing came within `wait`.
    async fn assignment(
        &self,
        worker: &WorkerName,
        applied: Applied,
        wait: Duration,
    ) -> Result<Option<Assignment>, CallError>;

    /// Takes a heartbeat.
    async fn report(&self, heartbeat: Heartbeat) -> Result<Beat, CallError>;

    /// Returns the status with its number, as soon as that is greater than `after` or `wait` has passed.
    async fn status(
        &self,
        after: u64,
        wait: Duration,
        filter: &StatusFilter,
    ) -> Result<(Json, u64), CallError>;

    /// Says why an instance is where it is.
    async fn explain(&self, instance: &InstanceKey) -> Result<Json, CallError>;

    /// Returns everything that a plan needs.
    async fn snapshot(&self) -> Result<Json, CallError>;

    /// Takes what the publisher tells.
    async fn report_pipeline(&self, report: PipelineReport) -> Result<(), CallError>;

    /// Freezes something, or frees it again, for the operator `by`. Returns the hold's name.
    async fn set_hold(&self, order: HoldOrder, by: &str) -> Result<String, CallError>;
}

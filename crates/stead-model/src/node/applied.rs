//! What became of a node when its spec was applied: what `stead config apply --json` prints and push reads.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::marker::MarkedPhase;
use crate::id::{NodeName, RunId, SiteKey};

/// What became of a node when its spec was applied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Applied {
    /// `config`: by it the document is told from events.
    pub phase: MarkedPhase,
    /// Whether everything is as the spec wants it.
    pub success: bool,
    /// Whether it was only looked at what would change.
    pub dry_run: bool,
    /// The node.
    pub node: NodeName,
    /// The spec's name.
    pub spec: SiteKey,
    /// The digest of the resolved spec.
    pub spec_digest: String,
    /// The digest of what is observed now; none if that could not be observed.
    pub state_digest: Option<String>,
    /// How long it took.
    pub duration_seconds: f64,
    /// How many packages the spec wants.
    pub packages: usize,
    /// How many services it enables.
    pub services_enabled: usize,
    /// How many it disables.
    pub services_disabled: usize,
    /// How many users it has.
    pub users: usize,
    /// How many things are different now.
    pub changed: usize,
    /// Which.
    pub changes: Vec<Change>,
    /// Why it went wrong, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ApplyFailure>,
    /// A change of the network that is undone unless this run is confirmed within 60 s: by whoever reached the node since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unconfirmed: Option<RunId>,
}

/// Something that is different now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Where in [`NodeState`](super::NodeState), or the item that changed what is not seen there.
    pub path: String,
    /// What was there; null: nothing.
    pub before: Value,
    /// What is there now.
    pub after: Value,
}

/// Why a spec could not be applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplyFailure {
    /// The item that failed, such as `packages`.
    pub code: String,
    /// What went wrong.
    pub message: String,
}

//! Markers: that a node became what its spec wants, or that it did not.

use serde::{Deserialize, Serialize};

use crate::id::{NodeName, SiteKey};
use crate::site::manifest::Mode;
use crate::time::Timestamp;

/// The phase that markers are about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkedPhase {
    /// The node becomes its spec.
    #[default]
    Config,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkedStatus {
    /// Well.
    Complete,
    /// Not.
    Failed,
}

/// That a node is what its spec wants: `config-complete.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfigComplete {
    /// `config`.
    pub phase: MarkedPhase,
    /// `complete`.
    pub status: MarkedStatus,
    /// When the spec was applied.
    pub timestamp: Timestamp,
    /// The node.
    pub node: NodeName,
    /// The spec's name.
    pub spec: SiteKey,
    /// The digest of the resolved spec.
    pub spec_digest: String,
    /// The digest of what was observed afterwards.
    pub state_digest: String,
    /// How the spec came.
    pub mode: Mode,
    /// How many packages the spec wants.
    pub packages: usize,
    /// How many services it enables.
    pub services_enabled: usize,
    /// How many it disables.
    pub services_disabled: usize,
    /// How many users it has.
    pub users: usize,
    /// How many things were changed.
    pub changed: usize,
    /// How long it took.
    pub duration_seconds: f64,
}

/// That a node did not become what its spec wants: `config-failed.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigFailed {
    /// `config`.
    pub phase: MarkedPhase,
    /// `failed`.
    pub status: MarkedStatus,
    /// What sort of failure, in a word: `apply-failed`, `spec-invalid`, or what the fetch calls it.
    pub error: String,
    /// A code of the server (`E301`), or the item that failed.
    pub code: String,
    /// What went wrong, in words.
    pub message: String,
    /// The node, if known.
    pub node: Option<NodeName>,
    /// The spec, if known.
    pub spec: Option<SiteKey>,
    /// The digest of the resolved spec, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_digest: Option<String>,
    /// The server that was asked, if one was.
    pub server: Option<String>,
    /// How often it was tried.
    pub attempts: u32,
    /// When it was tried first.
    pub first_attempt: Timestamp,
    /// When it was tried last.
    pub last_attempt: Timestamp,
    /// What happened, line by line.
    pub log: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_failure_names_node_and_spec_or_says_null() {
        let failed = ConfigFailed {
            phase: MarkedPhase::Config,
            status: MarkedStatus::Failed,
            error: "unreachable".to_owned(),
            code: "E501".to_owned(),
            message: "no answer".to_owned(),
            node: None,
            spec: None,
            spec_digest: None,
            server: Some("https://127.0.0.1:1".to_owned()),
            attempts: 3,
            first_attempt: Timestamp::from_micros(0),
            last_attempt: Timestamp::from_micros(1),
            log: Vec::new(),
        };
        let json = serde_json::to_value(&failed).unwrap();
        assert_eq!(json["phase"], "config");
        assert_eq!(json["status"], "failed");
        assert_eq!(json["node"], json!(null));
        assert_eq!(json["spec"], json!(null));
        assert_eq!(serde_json::from_value::<ConfigFailed>(json).unwrap(), failed);
    }
}

//! Nodes as they live: what lies on them, what is seen of them, what they tell, and what is remembered of them.

pub mod applied;
pub mod bootstrap;
pub mod entry;
pub mod errand;
pub mod job_ask;
pub mod marker;
pub mod observed;
pub mod operations;
pub mod spec_file;
pub mod test_report;
pub mod wire;

pub use applied::{Applied, ApplyFailure, Change};
pub use bootstrap::Bootstrap;
pub use entry::{NodeChange, NodeEntry, NodeStatus, NodesState, ServerEntry, StateError, Told};
pub use errand::{
    Errand, ErrandBegun, ErrandEnd, ErrandNote, ErrandVerb, ImageOffered, ImagesAsked, ImagesOffered,
};
pub use job_ask::{AnswerPart, JobAnswer, JobAsked, JobId, JobIdError, JobRefusal, JobWish};
pub use marker::{ConfigComplete, ConfigFailed};
pub use observed::{Drift, NodeState, Observation};
pub use test_report::{Check, TestReport};

/// Where a node keeps what it was given and what it became; every path is below the node's root.
pub mod path {
    /// What the node was told when it was made ([`Bootstrap`](super::Bootstrap)), 0600.
    pub const BOOTSTRAP: &str = "/etc/stead/bootstrap.json";
    /// The folder of the driver's keys: one file of public keys for each account they open.
    pub const KEYS: &str = "/etc/stead/keys";
    /// Names and addresses of the node's peers.
    pub const PEERS: &str = "/etc/stead/peers.json";
    /// The state directory.
    pub const STATE: &str = "/var/lib/stead";
    /// The folder of programs by hash: `SHA256/stead`.
    pub const PROGRAMS: &str = "/var/lib/stead/bin";
    /// The folder of the files below.
    pub const CONFIG: &str = "/var/lib/stead/config";
    /// The resolved spec in force.
    pub const SPEC: &str = "/var/lib/stead/config/spec.yaml";
    /// The one before.
    pub const PREVIOUS_SPEC: &str = "/var/lib/stead/config/spec.yaml.prev";
    /// What was observed last ([`NodeState`](super::NodeState)).
    pub const OBSERVED: &str = "/var/lib/stead/config/state.json";
    /// That the node is what its spec wants ([`ConfigComplete`](super::ConfigComplete)).
    pub const COMPLETE: &str = "/var/lib/stead/config/config-complete.json";
    /// That it is not ([`ConfigFailed`](super::ConfigFailed)).
    pub const FAILED: &str = "/var/lib/stead/config/config-failed.json";
}

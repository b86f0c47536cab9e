//! Manifests (version 2): which nodes there are, how they hang together and how they are built.

use core::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::address::NodeAddress;
use super::{Host, Located};
use crate::id::{NodeName, SiteKey};

mod keys;
mod read;
mod write;

pub use keys::MANIFEST_KEYS;
pub(super) use read::read;

/// Where a manifest comes from, and so what it may say.
#[derive(Clone, Copy, Debug)]
pub enum Origin<'a> {
    /// A file in `manifests/` with this stem, which is its name.
    File(&'a str),
    /// A file elsewhere.
    Elsewhere,
    /// A text that a delegating parent may have made: it may have a `context`.
    Given,
}

/// What is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pattern {
    /// One level.
    Flat,
    /// Nodes in nodes.
    Tiered,
    /// One in the middle.
    HubSpoke,
    /// Roots that know each other.
    Mesh,
    /// Linked trees.
    Federated,
}

impl Pattern {
    /// Every pattern with its word.
    pub const WORDS: [(&'static str, Self); 5] = [
        ("flat", Self::Flat),
        ("tiered", Self::Tiered),
        ("hub-spoke", Self::HubSpoke),
        ("mesh", Self::Mesh),
        ("federated", Self::Federated),
    ];

    /// Returns the pattern's word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Flat => "flat",
            Self::Tiered => "tiered",
            Self::HubSpoke => "hub-spoke",
            Self::Mesh => "mesh",
            Self::Federated => "federated",
        }
    }
}

/// How it is built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The driver does it.
    #[default]
    Push,
    /// The node does it.
    Pull,
    /// The node does it when the driver says so.
    Hybrid,
}

impl Mode {
    /// Every mode with its word.
    pub const WORDS: [(&'static str, Self); 3] =
        [("push", Self::Push), ("pull", Self::Pull), ("hybrid", Self::Hybrid)];

    /// Returns the mode's word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Pull => "pull",
            Self::Hybrid => "hybrid",
        }
    }
}

/// What kind of machine a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeType {
    /// A virtual machine.
    Vm,
    /// A container.
    Ct,
    /// A Proxmox host.
    Pve,
}

impl NodeType {
    /// Every type with its word.
    pub const WORDS: [(&'static str, Self); 3] = [("vm", Self::Vm), ("ct", Self::Ct), ("pve", Self::Pve)];

    /// Returns the type's word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Vm => "vm",
            Self::Ct => "ct",
            Self::Pve => "pve",
        }
    }
}

/// What a failed node does to a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnNodeError {
    /// Nothing new is started.
    #[default]
    Stop,
    /// What does not depend on it goes on.
    Continue,
    /// What this run made is removed.
    Rollback,
}

impl OnNodeError {
    /// Every choice with its word.
    pub const WORDS: [(&'static str, Self); 3] =
        [("stop", Self::Stop), ("continue", Self::Continue), ("rollback", Self::Rollback)];

    /// Returns the choice's word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Continue => "continue",
            Self::Rollback => "rollback",
        }
    }
}

/// How a hosting node is told to run its subtree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delegation {
    /// Over SSH.
    #[default]
    Ssh,
    /// As a job of its agent.
    Job,
}

impl Delegation {
    /// Every way with its word.
    pub const WORDS: [(&'static str, Self); 2] = [("ssh", Self::Ssh), ("job", Self::Job)];
}

/// What holds for all nodes of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestSettings {
    /// Whether verify logs in.
    pub verify_ssh: bool,
    /// Whether `test` destroys what it could not create.
    pub cleanup_on_failure: bool,
    /// Seconds added to every wait.
    pub timeout_buffer: u32,
    /// What a failed node does to the run.
    pub on_error: OnNodeError,
    /// Nodes at once; 0: the host's.
    pub parallel: u32,
    /// How hosting nodes are told.
    pub delegation: Delegation,
}

impl Default for ManifestSettings {
    fn default() -> Self {
        Self {
            verify_ssh: true,
            cleanup_on_failure: true,
            timeout_buffer: 60,
            on_error: OnNodeError::Stop,
            parallel: 0,
            delegation: Delegation::Ssh,
        }
    }
}

/// Where in a larger run a delegated manifest belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// The first run.
    pub run: String,
    /// The hosting nodes above, outermost first.
    pub path: Vec<NodeName>,
    /// The host of the first run.
    pub host: String,
    /// Links that leave the manifest: whoever holds both ends makes them.
    pub peers: Vec<PeerOutside>,
}

/// A peer of a node that another level, or another part of the first run, has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerOutside {
    /// The node of the manifest.
    pub of: NodeName,
    /// Its peer.
    pub name: NodeName,
    /// Where the peer takes logins, once that is known.
    pub place: Option<(IpAddr, u16)>,
}

/// How one node is built, where it differs from the manifest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeExecution {
    /// Of all phases.
    pub mode: Option<Mode>,
    /// Of config.
    pub config: Option<Mode>,
    /// Of run.
    pub run: Option<Mode>,
    /// Of destroy.
    pub destroy: Option<Mode>,
}

/// One node as it is written; with `count` it stands for several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestNode {
    /// Its place in the list of nodes.
    pub index: usize,
    /// Its name.
    pub name: Located<NodeName>,
    /// What kind of machine it is; none if that cannot be read.
    pub kind: Option<Located<NodeType>>,
    /// What it becomes; none: no config phase.
    pub spec: Option<Located<SiteKey>>,
    /// How large it is; none: the driver's defaults.
    pub preset: Option<Located<SiteKey>>,
    /// What a vm or pve boots.
    pub image: Option<String>,
    /// What a ct is made of.
    pub template: Option<String>,
    /// The node it is made in.
    pub parent: Option<Located<String>>,
    /// Nodes it is linked with.
    pub peers: Vec<Located<String>>,
    /// Nodes beside it that come first.
    pub depends_on: Vec<Located<String>>,
    /// How many it stands for.
    pub count: Option<u32>,
    /// Where a root is made instead.
    pub host: Option<Located<String>>,
    /// What it uses for its children.
    pub hosting: Option<Box<Located<Host>>>,
    /// Its id in Proxmox.
    pub vmid: Option<Located<u32>>,
    /// GB; overrides the preset.
    pub disk: Option<u32>,
    /// Overrides the preset.
    pub ip: Option<NodeAddress>,
    /// How it is built.
    pub execution: NodeExecution,
}

/// A manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Its name; none if it cannot be read.
    pub name: Option<SiteKey>,
    /// What it is for.
    pub description: Option<String>,
    /// What is built; none: inferred.
    pub pattern: Option<Located<Pattern>>,
    /// How it is built where a node does not say.
    pub default_mode: Mode,
    /// The nodes as they are written.
    pub nodes: Vec<ManifestNode>,
    /// What holds for all of them.
    pub settings: ManifestSettings,
    /// Where in a larger run it belongs.
    pub context: Option<Context>,
}

//! What a level remembers of its nodes: `STATE/nodes/HOST/MANIFEST/state.json`, and the events that change it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::id::{NodeName, RunId, SiteKey};
use crate::machine::MachineId;
use crate::site::host::DriverKind;
use crate::site::manifest::{Mode, NodeType};
use crate::time::Timestamp;

/// The version of the file.
pub const SCHEMA: u32 = 1;

/// Where a node stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeStatus {
    /// Nothing was begun.
    Pending,
    /// Something is being done to it, or was when its driver died.
    Running,
    /// It is what it should be.
    Completed,
    /// It is not, and why is said.
    Failed,
    /// It is gone, as was asked for.
    Destroyed,
    /// It was left out, and why is said.
    Skipped,
}

impl NodeStatus {
    /// Returns the word used in files and output.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Destroyed => "destroyed",
            Self::Skipped => "skipped",
        }
    }
}

/// What is remembered of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEntry {
    /// Where it stands.
    pub status: NodeStatus,
    /// What kind of machine it is.
    #[serde(rename = "type")]
    pub kind: NodeType,
    /// What made it.
    pub driver: DriverKind,
    /// The host it was made on, if not the one of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// What its driver calls it; none until it is made.
    pub machine_id: Option<MachineId>,
    /// Its number, where its driver numbers machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm_id: Option<u32>,
    /// Where it is reached, once that is known.
    pub ip: Option<String>,
    /// The port it takes logins at.
    pub ssh_port: Option<u16>,
    /// The key it shows: type and base64.
    pub host_key: Option<String>,
    /// The node it is made in.
    pub parent: Option<NodeName>,
    /// By whom it was configured last.
    pub mode: Mode,
    /// What it becomes.
    pub spec: Option<SiteKey>,
    /// The digest of the spec in force on it.
    pub spec_digest: Option<String>,
    /// The digest of what was observed of it.
    pub state_digest: Option<String>,
    /// The id of its token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jti: Option<String>,
    /// What its agent was told with that token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<Told>,
    /// When its machine was made.
    pub created_at: Option<Timestamp>,
    /// The run that made its machine: the first one, where runs have delegated that. None: the machine was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<RunId>,
    /// Why it failed or was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl NodeEntry {
    /// Returns the entry of a node to which nothing has been done.
    pub fn new(kind: NodeType, driver: DriverKind, mode: Mode) -> Self {
        Self {
            status: NodeStatus::Pending,
            kind,
            driver,
            host: None,
            machine_id: None,
            vm_id: None,
            ip: None,
            ssh_port: None,
            host_key: None,
            parent: None,
            mode,
            spec: None,
            spec_digest: None,
            state_digest: None,
            jti: None,
            told: None,
            created_at: None,
            made_by: None,
            error: None,
        }
    }

    /// Whether its agent asks the server of the level it is of.
    pub fn fetches(&self) -> bool {
        self.jti.is_some() || (self.mode != Mode::Push && self.spec.is_some())
    }

    /// Whether `run` made its machine, or may have left half of one. Clocks do not count: that of who made it may be another.
    pub fn is_made_by(&self, run: Option<&RunId>) -> bool {
        match self.machine_id {
            Some(_) => run.is_some() && self.made_by.as_ref() == run,
            None => matches!(self.status, NodeStatus::Running | NodeStatus::Failed),
        }
    }

    /// Forgets its agent: what it was told is worth nothing any more.
    pub fn forget_agent(&mut self) {
        (self.jti, self.told) = (None, None);
    }
}

/// What an agent was told with its token: enough to see later whether the token is still good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// How the agent works.
    pub mode: Mode,
    /// The key that signed the token.
    pub kid: String,
    /// When it was made, in seconds since 1970.
    pub iat: i64,
    /// When it ends unless it is renewed.
    pub exp: i64,
}

/// What became of a node: one event of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeChange {
    /// Which node.
    pub name: NodeName,
    /// Whether something about it is different from before the run.
    pub changed: bool,
    /// How long the run has worked on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// How it is now.
    #[serde(flatten)]
    pub entry: NodeEntry,
}

/// The server that serves a level's nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerEntry {
    /// What nodes are told to connect to.
    pub url: String,
    /// Its port.
    pub port: u16,
    /// SHA-256 of its certificate, `AB:CD:…`.
    pub fingerprint: String,
    /// The nodes that fetch from it, also those that are only about to be made: no other pair may use their names.
    #[serde(default)]
    pub nodes: BTreeSet<NodeName>,
}

/// What a level remembers: one file per manifest and host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodesState {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The manifest's name.
    pub manifest: String,
    /// The digest of the manifest in force.
    pub manifest_digest: String,
    /// The host.
    pub host: String,
    /// The last run that changed anything.
    pub run: Option<RunId>,
    /// The server of its nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerEntry>,
    /// The nodes, of all levels.
    pub nodes: BTreeMap<NodeName, NodeEntry>,
}

/// Why a file is no memory of nodes.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// It is not the JSON it should be.
    #[error("it is not a state of nodes: {0}")]
    Json(#[from] serde_json::Error),
    /// A later program wrote it.
    #[error("it has version {0}, and this program knows {SCHEMA}")]
    Version(u32),
}

impl NodesState {
    /// Returns the state of a level that has nothing yet.
    pub fn new(manifest: &str, host: &str) -> Self {
        Self {
            schema: SCHEMA,
            manifest: manifest.to_owned(),
            manifest_digest: String::new(),
            host: host.to_owned(),
            run: None,
            server: None,
            nodes: BTreeMap::new(),
        }
    }

    /// Returns the state that these bytes hold.
    ///
    /// # Errors
    /// If they hold none that this program knows.
    pub fn parse(bytes: &[u8]) -> Result<Self, StateError> {
        let state: Self = serde_json::from_slice(bytes)?;
        if state.schema == SCHEMA { Ok(state) } else { Err(StateError::Version(state.schema)) }
    }

    /// Returns the nodes that fetch, or are about to, from the server of the level that this is the state of.
    pub fn fetching(&self) -> BTreeSet<NodeName> {
        let own = self.nodes.iter().filter(|(_, entry)| entry.parent.is_none() && entry.fetches());
        let claimed = self.server.iter().flat_map(|server| &server.nodes);
        own.map(|(name, _)| name).chain(claimed).cloned().collect()
    }

    /// Returns the nodes that a node is in, outermost first.
    pub fn way_to<'s>(&'s self, name: &NodeName) -> Vec<&'s NodeName> {
        let above = |name: &NodeName| self.nodes.get(name).and_then(|entry| entry.parent.as_ref());
        // A damaged file may say that nodes are in each other.
        let mut way: Vec<&NodeName> =
            std::iter::successors(above(name), |name| above(name)).take(self.nodes.len()).collect();
        way.reverse();
        way
    }

    /// Returns the node of this level that a node is in, or the node itself. None for one that is not known, and in a
    /// damaged file.
    pub fn root_of<'s>(&'s self, name: &'s NodeName) -> Option<&'s NodeName> {
        let mut root = name;
        for _ in 0..=self.nodes.len() {
            match self.nodes.get(root)?.parent.as_ref() {
                None => return Some(root),
                Some(parent) => root = parent,
            }
        }
        None
    }

    /// Returns how deep a node is, 1 for those of this level.
    pub fn level_of(&self, name: &NodeName) -> usize {
        self.way_to(name).len() + 1
    }

    /// Returns the bytes of the file: the same for the same state.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> NodesState {
        let mut state = NodesState::new("lab", "local");
        let mut entry = NodeEntry::new(NodeType::Vm, DriverKind::CloudHypervisor, Mode::Hybrid);
        entry.machine_id = Some(MachineId::new("b8ca0a97"));
        entry.parent = Some(NodeName::parse("quay").unwrap());
        state.nodes.insert(NodeName::parse("crane").unwrap(), entry);
        state
    }

    #[test]
    fn what_is_written_is_read_again_with_the_same_bytes() {
        let bytes = state().to_bytes();
        let read = NodesState::parse(&bytes).unwrap();
        assert_eq!((read.to_bytes(), read), (bytes, state()));
    }

    /// Section 10: the clock of who made a machine says nothing about which run that was.
    #[test]
    fn a_machine_is_of_the_run_that_made_it_whatever_the_clock_says() {
        let [first, second] = ["first", "second"].map(|run| RunId::parse(run).unwrap());
        let mut entry = NodeEntry::new(NodeType::Vm, DriverKind::Sandbox, Mode::Push);
        assert!(!entry.is_made_by(Some(&first)), "nothing was begun");
        entry.status = NodeStatus::Failed;
        assert!(entry.is_made_by(Some(&first)), "half of it may be there");
        entry.machine_id = Some(MachineId::new("b8ca0a97"));
        entry.created_at = Some(Timestamp::from_micros(i64::MAX));
        assert!(!entry.is_made_by(Some(&first)), "it was found");
        assert!(!entry.is_made_by(None), "it was found, by nobody knows which run");
        entry.made_by = Some(first.clone());
        entry.created_at = Some(Timestamp::from_micros(0));
        assert!(entry.is_made_by(Some(&first)) && !entry.is_made_by(Some(&second)));
    }

    #[test]
    fn words_of_files_are_those_of_manifests() {
        let text = String::from_utf8(state().to_bytes()).unwrap();
        for part in
            [r#""type": "vm""#, r#""driver": "cloud-hypervisor""#, r#""mode": "hybrid""#, r#""pending""#]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_later_version_is_not_guessed_at() {
        let text = String::from_utf8(state().to_bytes()).unwrap().replace("\"schema\": 1", "\"schema\": 2");
        assert!(matches!(NodesState::parse(text.as_bytes()), Err(StateError::Version(2))));
        assert!(NodesState::parse(b"{").is_err());
    }
}

//! Nodes: what the tasks of `stead create`, `destroy` and `test` do.
//!
//! A plan of nodes holds names; everything else is handed over in memory, per run, as [`NodesSurroundings`]. Without it
//! the operations refuse to act: they are no operations of plan files.
//!
//! ```text
//!  site, manifest, host ──▶ NodesSurroundings ──▶ make ─▶ push | await | signal ─▶ hosting ─▶ link ─▶ verify ─▶ remove
//!                                │    │                                             └─▶ delegate: the level below
//!                machine drivers ┘    └ memory: events, then STATE/nodes/HOST/MANIFEST/state.json
//! ```

mod act;
mod below;
mod delegate;
mod drifted;
mod fit_out;
mod host_setup;
mod hosting;
mod hosts;
mod jobs_below;
mod keys;
mod line;
mod link;
mod make;
mod memory;
mod pairs;
mod preflight;
mod push;
mod reach;
mod reached;
mod remove;
mod report;
mod seed;
mod serve;
mod test_files;
mod tokens;
mod verify;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use stead_engine::nodes::{Checked, CheckedNode, ChosenHost, Forest, ForestNode, Selection, find_host};
use stead_model::machine::{Owner, OwnerScope};
use stead_model::node::{NodeChange, NodeEntry};
use stead_model::plan::Digest;
use stead_model::site::host::Timeouts;
use stead_model::site::manifest::{ManifestNode, Mode, NodeType, OnNodeError};
use stead_model::site::{Host, Manifest, ResolvedSpec, Site, resolve};
use stead_model::{NodeName, RunId, canonical_json};
use stead_runner::Announcer;
use stead_runner::machine::MachineDriver;
use stead_runner::operation::{OpError, Registry};
use stead_runner::remote::Carrier;
use stead_runner::transport::Connect;
use tokio::sync::OnceCell;

use crate::facts::hash_in_path;
use crate::program_hash;

pub use below::{MachineSeen, NodeSeen, SeenBelow, Told};
pub use delegate::offers;
pub use drifted::{Drifted, NodeDrift};
pub use hosts::{HostError, machine_driver, machines_directory, network_side};
pub use jobs_below::{answer_part, new_job_key};
pub use keys::{DriverKey, KeyError};
pub use memory::{Memory, known_labels, known_mode};
pub use pairs::{Pairs, is_handed_down, server_directory};
pub use preflight::{OnlyReach, Preflight};
pub use reached::reached_hosts;
pub use serve::{LevelServer, Serving};
pub use test_files::write_test_report;

/// What a level of nodes is made of.
pub struct NodesParts {
    /// The site, as it was read.
    pub site: Arc<Site>,
    /// Where it is.
    pub site_dir: PathBuf,
    /// Where runs, locks, keys and what is known of nodes are kept.
    pub state_dir: PathBuf,
    /// The host of the run.
    pub host: ChosenHost,
    /// The manifest's name.
    pub name: String,
    /// The manifest; empty where nodes are removed that nobody describes any more.
    pub manifest: Arc<Manifest>,
    /// Its digest.
    pub manifest_digest: String,
    /// Its nodes.
    pub forest: Arc<Forest>,
    /// What is known of them.
    pub checked: Arc<Checked>,
    /// Those that are meant.
    pub selection: Arc<Selection>,
    /// What was asked for on the command line, for the levels below.
    pub wishes: NodesWishes,
    /// This program: what supervises sandboxes and is brought to nodes.
    pub program: PathBuf,
    /// Opens connections.
    pub connect: Arc<dyn Connect>,
    /// Adds events to the run.
    pub announcer: Announcer,
    /// What is remembered of the nodes.
    pub memory: Arc<Memory>,
    /// Makes machines, by host; the host of the run is among them.
    pub drivers: BTreeMap<String, Arc<dyn MachineDriver>>,
    /// Hosts that are other machines, by name: what is made there is made by the stead there.
    pub elsewhere: BTreeMap<String, ChosenHost>,
    /// Starts, asks and stops the server of the level.
    pub server: Option<Arc<dyn LevelServer>>,
    /// The environment, for what is found by it.
    pub environment: BTreeMap<String, String>,
}

/// What was asked for on the command line.
#[derive(Clone, Debug, Default)]
pub struct NodesWishes {
    /// `--mode`.
    pub mode: Option<Mode>,
    /// `--on-error`.
    pub on_error: Option<OnNodeError>,
    /// The address that nodes of this level are told.
    pub self_addr: Option<String>,
    /// Whether hosts are looked at first.
    pub skip_preflight: bool,
    /// Whether machines that were there before the run are left alone: nobody said yes to their removal.
    pub only_new: bool,
    /// Nodes that are to go, that the manifest does not have, and that this level did not make.
    pub orphans: Vec<NodeName>,
}

/// What the tasks of one level share. `Debug` shows names only.
pub struct NodesSurroundings {
    pub(crate) parts: NodesParts,
    /// The driver's own key, made when it is needed first.
    key: OnceCell<DriverKey>,
    /// The hash of this program, computed once.
    program_sha256: OnceCell<Digest>,
    /// The run, once its first task has begun: then what is remembered is this run's to change.
    begun: OnceCell<Option<RunId>>,
    /// The server of this level, once it answers.
    serving: tokio::sync::Mutex<Option<Serving>>,
    /// Brings this program to nodes.
    carrier: Carrier,
    /// Who tells a node of its peers: one at a time.
    link_turns: Mutex<BTreeMap<NodeName, Arc<tokio::sync::Mutex<()>>>>,
    /// What this run did to nodes.
    touched: Mutex<BTreeMap<NodeName, Touched>>,
    /// Hosts of whose drivers the user was told something.
    remarked: Mutex<BTreeSet<String>>,
}

/// What this run did to a node.
#[derive(Clone, Debug)]
struct Touched {
    changed: bool,
    began: Instant,
    earlier: Duration,
}

impl fmt::Debug for NodesSurroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodesSurroundings")
            .field("manifest", &self.parts.name)
            .field("host", &self.parts.host.name)
            .finish_non_exhaustive()
    }
}

/// A node of the manifest, with everything known of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeView<'a> {
    /// Its place in the forest.
    pub(crate) index: usize,
    /// How it hangs together with others.
    pub(crate) node: &'a ForestNode,
    /// As it is written.
    pub(crate) written: &'a ManifestNode,
    /// What was found out when it was checked.
    pub(crate) known: &'a CheckedNode,
}

impl NodesSurroundings {
    /// Returns the surroundings of one level.
    pub fn new(parts: NodesParts) -> Arc<Self> {
        let carrier = Carrier::new(parts.program.clone(), vec![parts.state_dir.join("bin")]);
        Arc::new(Self {
            parts,
            carrier,
            key: OnceCell::new(),
            program_sha256: OnceCell::new(),
            begun: OnceCell::new(),
            serving: tokio::sync::Mutex::default(),
            link_turns: Mutex::default(),
            touched: Mutex::default(),
            remarked: Mutex::default(),
        })
    }

    /// Returns the node called `name`.
    pub(crate) fn node(&self, name: &str) -> Result<NodeView<'_>, OpError> {
        let parts = &self.parts;
        let range = parts.forest.named(name).filter(|range| range.len() == 1);
        let found = range.and_then(|range| {
            let index = range.start;
            let node = parts.forest.nodes.get(index)?;
            let written = parts.manifest.nodes.get(node.written)?;
            Some(NodeView { index, node, written, known: parts.checked.nodes.get(index)? })
        });
        found.ok_or_else(|| OpError::invalid(format!("the manifest has no node `{name}`")))
    }

    /// Returns what a node becomes; none: it has no config phase.
    pub(crate) fn spec_of(&self, node: &NodeView<'_>) -> Result<Option<ResolvedSpec>, OpError> {
        let Some(spec) = &node.written.spec else { return Ok(None) };
        let resolved = resolve(&self.parts.site, &spec.value, &node.node.name);
        resolved.map(Some).map_err(|error| OpError::invalid(error.to_string()))
    }

    /// Returns the name of the host that a node of this level is made on.
    pub(crate) fn host_of(&self, node: Option<&NodeView<'_>>, entry: Option<&NodeEntry>) -> String {
        let written = node.and_then(|node| node.written.host.as_ref()).map(|host| host.value.clone());
        let remembered = entry.and_then(|entry| entry.host.clone());
        // Where it is counts, not where it would be made now.
        let is_there = entry.is_some_and(|entry| entry.machine_id.is_some());
        let found = if is_there { remembered } else { written };
        found.unwrap_or_else(|| self.parts.host.name.clone())
    }

    /// Returns what makes machines on `host`.
    pub(crate) fn driver(&self, host: &str) -> Result<Arc<dyn MachineDriver>, OpError> {
        let found = self.parts.drivers.get(host).cloned();
        found.ok_or_else(|| OpError::invalid(format!("host `{host}` makes no machines")))
    }

    /// Returns whose the machines of this level are.
    pub(crate) fn scope(&self) -> String {
        format!("{}/{}/{}", self.parts.site.settings.value.name, self.parts.name, self.parts.host.name)
    }

    /// Returns the mark of the machine of `node`.
    pub(crate) fn owner(&self, node: &str) -> Result<Owner, OpError> {
        Owner::new(&self.scope(), node).map_err(|error| OpError::invalid(error.to_string()))
    }

    /// Returns which machines are of this level.
    pub(crate) fn owner_scope(&self) -> OwnerScope {
        OwnerScope::Exactly(self.scope())
    }

    /// Returns how long a part of a node's life may take where it is made, the buffer added.
    pub(crate) fn limit(&self, name: &str, pick: impl FnOnce(&Timeouts) -> u32) -> Duration {
        let entry = NodeName::parse(name).ok().and_then(|name| self.entry(&name));
        let host = self.host_of(self.node(name).ok().as_ref(), entry.as_ref());
        let own = &self.parts.host;
        let other = (host != own.name).then(|| find_host(&self.parts.site, &host).ok()).flatten();
        self.limit_on(&other.as_ref().unwrap_or(own).host, pick)
    }

    /// Returns how long a part of the life of what is made on `host` may take, the buffer added.
    pub(crate) fn limit_on(&self, host: &Host, pick: impl FnOnce(&Timeouts) -> u32) -> Duration {
        let seconds = pick(&host.timeouts());
        Duration::from_secs(u64::from(seconds) + u64::from(self.parts.manifest.settings.timeout_buffer))
    }

    /// Returns what is remembered of a node.
    pub fn entry(&self, name: &NodeName) -> Option<NodeEntry> {
        self.parts.memory.look(|state| state.nodes.get(name).cloned())
    }

    /// Reads again what is remembered, once per run: another run may have changed it before this one had the lock.
    pub(crate) async fn begin_run(&self, run: Option<&RunId>) -> Result<(), OpError> {
        let beginning = || async {
            let path = self.parts.memory.path().display();
            self.parts
                .memory
                .reload()
                .map_err(|error| OpError::io(format_args!("reading {path}"), &error))?;
            if !self.parts.forest.nodes.is_empty() {
                let digest = self.parts.manifest_digest.clone();
                self.parts.memory.change(|state| state.manifest_digest = digest);
            }
            Ok::<_, OpError>(run.cloned())
        };
        self.begun.get_or_try_init(beginning).await.map(drop)
    }

    /// Changes the entry of a node; if that makes a difference, this run is the last that made one.
    fn remember<T>(&self, name: &NodeName, change: impl FnOnce(&mut Option<NodeEntry>) -> T) -> T {
        self.parts.memory.change(|state| {
            let before = state.nodes.remove(name);
            let mut entry = before.clone();
            let result = change(&mut entry);
            if entry != before {
                state.run = self.begun.get().cloned().flatten().or(state.run.take());
            }
            state.nodes.extend(entry.map(|entry| (name.clone(), entry)));
            result
        })
    }

    /// Returns the run that everything is done in: this one, or the first of those that have delegated it.
    pub(crate) fn first_run(&self) -> Option<RunId> {
        match &self.parts.manifest.context {
            Some(context) => RunId::parse(&context.run).ok(),
            None => self.begun.get().cloned().flatten(),
        }
    }

    /// Notes that this run has made the machine of a node. What is done next to the node writes it down.
    fn note_maker(&self, name: &NodeName) {
        let (new, run) = (self.new_entry(name), self.first_run());
        self.remember(name, |entry| entry.get_or_insert(new).made_by = run);
    }

    /// Changes what is remembered of a node: says it, then writes it down if it is different.
    pub(crate) async fn update(
        &self,
        name: &NodeName,
        changed: bool,
        change: impl FnOnce(&mut NodeEntry),
    ) -> Result<(), OpError> {
        let new = self.new_entry(name);
        let entry = self.remember(name, |entry| {
            let entry = entry.get_or_insert(new);
            change(entry);
            entry.clone()
        });
        self.say(name, changed, entry).await;
        self.parts.memory.flush().await
    }

    /// Forgets a node that is gone: says so, then writes it down.
    pub(crate) async fn forget(&self, name: &NodeName, changed: bool) -> Result<(), OpError> {
        use stead_model::node::NodeStatus;
        let new = self.new_entry(name);
        let mut entry = self.remember(name, Option::take).unwrap_or(new);
        (entry.status, entry.error) = (NodeStatus::Destroyed, None);
        self.say(name, changed, entry).await;
        self.parts.memory.flush().await
    }

    /// Takes over what a run below this one says of a node, which is in `parent`.
    pub(crate) async fn take_over(&self, change: NodeChange) -> Result<(), OpError> {
        use stead_model::node::NodeStatus;
        let NodeChange { name, entry, .. } = change;
        self.remember(&name, |known| {
            *known = match entry.status {
                NodeStatus::Destroyed => None,
                NodeStatus::Pending
                | NodeStatus::Running
                | NodeStatus::Completed
                | NodeStatus::Failed
                | NodeStatus::Skipped => Some(entry),
            };
        });
        self.parts.memory.flush().await
    }

    async fn say(&self, name: &NodeName, changed: bool, entry: NodeEntry) {
        let touched = {
            let mut all = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
            let touched = all.entry(name.clone()).or_insert_with(Touched::now);
            touched.changed |= changed;
            touched.clone()
        };
        let duration = touched.earlier + touched.began.elapsed();
        let duration_ms = Some(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
        let change = NodeChange { name: name.clone(), changed: touched.changed, duration_ms, entry };
        self.parts.announcer.say(stead_model::EventKind::Node(Box::new(change))).await;
    }

    /// Notes that work on a node begins.
    pub(crate) fn touch(&self, name: &NodeName) {
        let mut all = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(name.clone()).or_insert_with(Touched::now);
    }

    /// Returns the entry of a node of which nothing is remembered.
    fn new_entry(&self, name: &NodeName) -> NodeEntry {
        let Ok(node) = self.node(name.as_str()) else {
            return NodeEntry::new(NodeType::Vm, self.parts.host.host.driver(), Mode::Push);
        };
        let kind = node.written.kind.as_ref().map_or(NodeType::Vm, |kind| kind.value);
        let driver = node.known.driver.unwrap_or_else(|| self.parts.host.host.driver());
        let mut entry = NodeEntry::new(kind, driver, node.known.modes.config);
        entry.host = node.written.host.as_ref().map(|host| host.value.clone());
        entry.parent = node.node.parent.map(|parent| self.parts.forest.nodes[parent].name.clone());
        entry.spec = node.written.spec.as_ref().map(|spec| spec.value.clone());
        entry
    }

    /// Returns the hash of this program.
    pub(crate) async fn program_sha256(&self) -> Result<Digest, OpError> {
        let hashing = || async {
            let (program, place) = (self.parts.program.clone(), self.parts.state_dir.clone());
            let hashed = tokio::task::spawn_blocking(move || match hash_in_path(&program) {
                Some(named) => Ok(named),
                None => program_hash::of(&program, &place),
            });
            let hashed = hashed.await.map_err(|_| OpError::operation("hashing this program was cut off"))?;
            let hashed = hashed.map_err(|error| OpError::io("hashing this program", &error))?;
            Digest::parse(&hashed).ok_or_else(|| OpError::operation("this program has no hash"))
        };
        self.program_sha256.get_or_try_init(hashing).await.copied()
    }
}

impl Touched {
    fn now() -> Self {
        Self { changed: false, began: Instant::now(), earlier: Duration::ZERO }
    }
}

/// Adds the operations of nodes; they act with `surroundings`.
pub fn add_to(registry: &mut Registry, surroundings: &Arc<NodesSurroundings>) {
    act::add_to(registry, surroundings);
}

/// Returns the digest of a manifest: of what it says, not of how it is written or by which run it was handed down.
pub fn manifest_digest(manifest: &Manifest) -> String {
    let mut said = manifest.to_json();
    if let Some(members) = said.as_object_mut() {
        members.remove("context");
    }
    format!("sha256:{}", Digest::of(canonical_json::to_string(&said).as_bytes()))
}

//! What travels between the parts of a fleet and what its master keeps.
//!
//! A [`Publication`] comes from the publisher and gets a [`Verdict`]; a [`Heartbeat`] comes from a worker; an
//! [`Assignment`] goes to it; [`Placement`]s are what the master decided. [`Snapshot`] is all of it in one file, for
//! plans without a master.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::labels::Labels;
use super::vm::{Arch, Driver, Resources, SPEC_VERSION};
use super::{Code, CommitId, FleetFile, InstanceKey, Millis, VmSpec};
use crate::id::{GroupName, VmId, WorkerName};
use crate::plan::Digest;

mod snapshot;

pub use snapshot::{Homeless, Snapshot, SnapshotGroup, SnapshotNow, SnapshotPlacement};

/// What is known of a worker's presence, with what `fleet.yaml` and holds make of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    /// It reports.
    #[default]
    Ready,
    /// It has been silent for a little while.
    Late,
    /// It gets nothing new.
    Cordoned,
    /// What it has goes elsewhere.
    Draining,
    /// Everything on it stays as it is.
    Suspended,
    /// It has been silent.
    Unknown,
    /// It has been silent for long.
    Lost,
}

impl WorkerState {
    /// Every state with its word.
    pub const WORDS: [(&'static str, Self); 7] = [
        ("ready", Self::Ready),
        ("late", Self::Late),
        ("cordoned", Self::Cordoned),
        ("draining", Self::Draining),
        ("suspended", Self::Suspended),
        ("unknown", Self::Unknown),
        ("lost", Self::Lost),
    ];

    /// Returns its word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Late => "late",
            Self::Cordoned => "cordoned",
            Self::Draining => "draining",
            Self::Suspended => "suspended",
            Self::Unknown => "unknown",
            Self::Lost => "lost",
        }
    }

    /// Whether something new may be placed there.
    pub const fn receives(self) -> bool {
        match self {
            Self::Ready | Self::Late => true,
            Self::Cordoned | Self::Draining | Self::Suspended | Self::Unknown | Self::Lost => false,
        }
    }

    /// Whether it is heard from.
    pub const fn is_present(self) -> bool {
        match self {
            Self::Ready | Self::Late | Self::Cordoned | Self::Draining | Self::Suspended => true,
            Self::Unknown | Self::Lost => false,
        }
    }
}

/// What a worker can give to instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Allocatable {
    /// Thousandths of a processor.
    pub cpu_milli: u64,
    /// Memory.
    #[serde(rename = "memMiB")]
    pub mem_mib: u64,
    /// Disk; none: as much as is wanted.
    #[serde(default, rename = "diskMiB", skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<u64>,
}

impl Allocatable {
    /// Returns what is left without `reserve`.
    pub fn without(self, reserve: Resources) -> Self {
        Self {
            cpu_milli: self.cpu_milli.saturating_sub(reserve.cpu_milli),
            mem_mib: self.mem_mib.saturating_sub(reserve.mem_mib),
            disk_mib: self.disk_mib,
        }
    }
}

/// A worker as the scheduler sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerView {
    /// Its name.
    pub id: WorkerName,
    /// What may be done with it.
    pub state: WorkerState,
    /// Its labels, without the built-in ones.
    #[serde(default)]
    pub labels: Labels,
    /// What it can give.
    pub allocatable: Allocatable,
    /// What it can make.
    #[serde(default = "all_drivers")]
    pub drivers: BTreeSet<Driver>,
    /// Its processor.
    #[serde(default)]
    pub arch: Arch,
    /// Its operating system.
    #[serde(default = "linux", skip_serializing_if = "is_linux")]
    pub os: String,
    /// The newest form of specs it knows.
    #[serde(default = "newest_spec_version")]
    pub spec_version: u32,
    /// Whether it has too little free disk to take more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disk_pressure: bool,
}

fn all_drivers() -> BTreeSet<Driver> {
    Driver::WORDS.iter().map(|(_, driver)| *driver).collect()
}

fn newest_spec_version() -> u32 {
    SPEC_VERSION
}

fn linux() -> String {
    "linux".to_owned()
}

fn is_linux(os: &str) -> bool {
    os == "linux"
}

impl WorkerView {
    /// Returns a worker that can do everything.
    pub fn new(id: WorkerName, allocatable: Allocatable) -> Self {
        Self {
            id,
            state: WorkerState::Ready,
            labels: Labels::new(),
            allocatable,
            drivers: all_drivers(),
            arch: Arch::default(),
            os: linux(),
            spec_version: SPEC_VERSION,
            disk_pressure: false,
        }
    }

    /// Returns the value of a label, built-in ones included.
    pub fn label(&self, key: &str) -> Option<&str> {
        match key {
            super::labels::ARCH_LABEL => Some(self.arch.word()),
            super::labels::OS_LABEL => Some(&self.os),
            super::labels::WORKER_LABEL => Some(self.id.as_str()),
            key => self.labels.get(key).map(String::as_str),
        }
    }
}

/// What a worker says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerFacts {
    /// What the machine has for instances, its own reserve taken off.
    pub capacity: Allocatable,
    /// What is used of it.
    #[serde(default)]
    pub used: Resources,
    /// What it can make.
    pub drivers: BTreeSet<Driver>,
    /// Its own labels.
    #[serde(default)]
    pub labels: Labels,
    /// Its processor.
    #[serde(default)]
    pub arch: Arch,
    /// Its operating system.
    #[serde(default = "linux")]
    pub os: String,
    /// The newest form of specs it knows.
    #[serde(default = "newest_spec_version")]
    pub spec_version: u32,
    /// Whether it has too little free disk.
    #[serde(default)]
    pub disk_pressure: bool,
    /// The version of its Nix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nix_version: Option<String>,
    /// What its machines do without, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Machines there that are not of this fleet, by what they are called; some of them, if there are many.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub foreign: BTreeSet<String>,
    /// What stands in for which driver.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mapped: BTreeMap<Driver, Driver>,
}

impl WorkerFacts {
    /// Whether it says the same, but for what is used.
    pub fn says_the_same(&self, other: &Self) -> bool {
        Self { used: other.used, ..self.clone() } == *other
    }
}

/// Why an instance is where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MoveReason {
    /// It was nowhere.
    New,
    /// Its worker is lost.
    WorkerLost,
    /// Its worker is drained.
    Drained,
    /// Its worker may not run it any more.
    SelectorChanged,
    /// Its worker has no room for it any more.
    CapacityShrunk,
    /// It is pinned to another worker.
    Pinned,
    /// Something more important took its place.
    Preempted,
    /// For balance.
    Rebalance,
}

/// Where an instance is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Where it is to run; none: nowhere yet, and only a leaving copy may be left.
    pub worker: Option<WorkerName>,
    /// What it may run now.
    pub released: Digest,
    /// The generation that placed or released it last.
    pub generation: u64,
    /// When that was.
    pub since: Millis,
    /// Why it is there.
    pub reason: MoveReason,
    /// Workers whose copies go once this one is ready.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub leaving: BTreeSet<WorkerName>,
    /// Where its volumes are, once it has been there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes_on: Option<WorkerName>,
}

/// One instance in an assignment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assigned {
    /// Which.
    pub instance: InstanceKey,
    /// The generation that released it.
    pub generation: u64,
    /// What it is to run.
    pub vm_hash: Digest,
    /// Its spec, as an index into the assignment's.
    pub spec: u32,
    /// Whether it only stays until its replacement is ready.
    pub leaving: bool,
    /// Whether it stays as it is.
    pub frozen: bool,
}

/// Everything one worker is to run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Assignment {
    /// The fleet's newest active generation.
    pub generation: u64,
    /// Counts changes for this worker.
    pub revision: u64,
    /// Counts leaders.
    pub epoch: u64,
    /// The specs.
    pub specs: Vec<Arc<VmSpec>>,
    /// The instances, sorted.
    pub instances: Vec<Assigned>,
}

/// What an instance is doing, as its worker sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InstanceState {
    /// It is not there.
    #[default]
    Absent,
    /// Its bits are on their way.
    Fetching,
    /// Its bits are there.
    Fetched,
    /// It is on its way up.
    Starting,
    /// It runs.
    Running,
    /// It is on its way down.
    Stopping,
    /// It ended.
    Failed,
    /// It runs and nobody wants it.
    Orphan,
}

impl InstanceState {
    /// Every state with its word.
    pub const WORDS: [(&'static str, Self); 8] = [
        ("absent", Self::Absent),
        ("fetching", Self::Fetching),
        ("fetched", Self::Fetched),
        ("starting", Self::Starting),
        ("running", Self::Running),
        ("stopping", Self::Stopping),
        ("failed", Self::Failed),
        ("orphan", Self::Orphan),
    ];

    /// Whether a process of it may be there.
    pub const fn is_live(self) -> bool {
        match self {
            Self::Starting | Self::Running | Self::Stopping | Self::Orphan => true,
            Self::Absent | Self::Fetching | Self::Fetched | Self::Failed => false,
        }
    }
}

/// One instance as its worker sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Which.
    pub key: InstanceKey,
    /// What it runs; none: nothing.
    pub vm_hash: Option<Digest>,
    /// What it is doing.
    pub state: InstanceState,
    /// Whether it is ready.
    pub ready: bool,
    /// How long it has been running.
    pub uptime_ms: Millis,
    /// How often it ended since it was last stable.
    pub attempts: u32,
    /// What is wrong with it.
    pub code: Option<Code>,
    /// More about that.
    #[serde(default)]
    pub detail: String,
    /// The group it is of, by the worker's record; none: an agent that does not say.
    #[serde(default)]
    pub group: Option<GroupName>,
    /// What it takes, by the worker's record.
    #[serde(default)]
    pub takes: Resources,
}

/// What a worker reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Who.
    pub worker: WorkerName,
    /// Of the machine's boot.
    pub boot_id: String,
    /// Of the agent's life; a later one is larger.
    pub session: u64,
    /// Of the agent's process, like no other; empty: an agent that does not say.
    pub process: String,
    /// Which of the session.
    pub seq: u64,
    /// The generation it has applied.
    pub seen_generation: u64,
    /// The revision it has applied.
    pub seen_revision: u64,
    /// Whether all instances are listed, or only those that changed.
    pub full: bool,
    /// The instances.
    pub instances: Vec<Seen>,
    /// What it says of itself, with every full report.
    pub facts: Option<WorkerFacts>,
}

/// What the publisher gives to the master: one group of one commit, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// The group.
    pub group: GroupName,
    /// The commit.
    pub commit: CommitId,
    /// The number reserved for it.
    pub generation: u64,
    /// The hash of commit, group and specs.
    pub intent_hash: Digest,
    /// The hash of the specs.
    pub specs_hash: Digest,
    /// The VMs.
    pub specs: Vec<Arc<VmSpec>>,
    /// Of the group `fleet`: what `fleet.yaml` says.
    pub policy: Option<Arc<FleetFile>>,
    /// VMs that were sent and are none.
    pub broken: Vec<BrokenVm>,
}

impl Publication {
    /// Returns the ids of all VMs that were sent.
    pub fn ids(&self) -> impl Iterator<Item = &VmId> {
        let broken = self.broken.iter().filter_map(|vm| vm.id.as_ref());
        self.specs.iter().map(|spec| &spec.id).chain(broken)
    }
}

/// What was sent as a VM and breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenVm {
    /// Its id, if it has one.
    pub id: Option<VmId>,
    /// What is wrong with it.
    pub problems: Vec<Problem>,
}

/// One thing that is wrong with a publication.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Problem {
    /// Its code.
    pub code: String,
    /// What is wrong.
    pub message: String,
    /// VM and field.
    pub subject: String,
}

/// What became of a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is active.
    Accepted,
    /// It was there already.
    Duplicate,
    /// A newer one is there.
    Stale,
    /// Its number is another commit's.
    Conflict,
    /// It is broken.
    Invalid,
    /// It waits for approval.
    Held,
    /// It waits for a suspension to end.
    Suspended,
}

/// The master's answer to a publication.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// What became of it.
    pub outcome: Outcome,
    /// Everything that is wrong, or why it waits.
    pub problems: Vec<Problem>,
    /// The group's active generation.
    pub active: u64,
    /// The group's highest stored generation.
    pub highest: u64,
}

/// One stored generation of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Its number.
    pub number: u64,
    /// Its commit.
    pub commit: CommitId,
    /// The hash of commit, group and specs.
    pub intent_hash: Digest,
    /// The hash of the specs.
    pub specs_hash: Digest,
    /// The VMs, sorted by id.
    pub specs: Vec<Arc<VmSpec>>,
    /// Of the group `fleet`: what `fleet.yaml` says.
    pub policy: Option<Arc<FleetFile>>,
    /// Why it is not active, if it waits.
    pub waits: Option<Outcome>,
}

/// What an operator froze for a while.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Hold {
    /// Its name.
    pub id: String,
    /// What is frozen.
    pub target: HoldTarget,
    /// When it ends.
    pub until: Millis,
    /// Who did it.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// What a hold freezes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldTarget {
    /// A worker gets nothing new.
    Worker(WorkerName),
    /// A VM is neither replaced, moved nor scaled.
    Vm(VmId),
    /// New generations of a group wait.
    Group(GroupName),
}

impl fmt::Display for HoldTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Worker(name) => write!(f, "worker/{name}"),
            Self::Vm(id) => write!(f, "vm/{id}"),
            Self::Group(name) => write!(f, "group/{name}"),
        }
    }
}

/// Specs by VM and by the hash of what they run: two VMs may run the same and yet not be the same.
pub type Specs = BTreeMap<(VmId, Digest), Arc<VmSpec>>;

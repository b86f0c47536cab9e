//! One VM of desired state: what runs, how large, how often and where it may.
//!
//! [`read_vms`] reads what an evaluator gives and [`read_specs`] what travels, every problem at once with VM and field;
//! [`VmSpec::to_canonical`] writes the one spelling, in which what equals its default is left out.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize, Serializer};

use super::artifact::Artifact;
use super::labels::{Labels, Requirement};
use crate::id::{GroupName, VmId, WorkerName};

mod keys;
mod read;
mod read_runtime;
mod rules;
mod runtime;
#[cfg(test)]
mod tests;
mod write;

pub(super) use keys::VM_DEFAULTS_KEYS;
pub use keys::{SCHEDULING_KEYS, VM_KEYS};
pub use read::{Frame, Reading, Scheduling, VmDefaults, read_specs, read_vms};
pub(super) use read::{read_defaults, read_scheduling};
pub use runtime::{Arch, Disk, DiskFormat, DiskSource, Driver, Net, NetMode, Port, Runtime};
pub(super) use write::Sparse;

/// The newest form of specs this program knows; workers of an older one get no spec that needs it.
pub const SPEC_VERSION: u32 = 1;

/// A VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmSpec {
    /// What it is called; unique over all groups.
    pub id: VmId,
    /// What it is published with.
    pub group: GroupName,
    /// How many instances there are.
    pub replicas: u32,
    /// Its own labels.
    pub labels: Labels,
    /// What has to hold of a worker's labels; sorted.
    pub selector: Vec<Requirement>,
    /// How instances are spread.
    pub spread: Spread,
    /// The only worker it may run on.
    pub pin: Option<WorkerName>,
    /// Higher comes first.
    pub priority: i32,
    /// What one instance takes.
    pub resources: Resources,
    /// When an instance that ended is started again.
    pub restart: Restart,
    /// When an instance is ready.
    pub ready: Ready,
    /// How a new spec reaches its instances.
    pub rollout: Rollout,
    /// What happens to instances of a lost worker.
    pub on_lost: OnLost,
    /// Whether two instances must never run at once.
    pub singleton: bool,
    /// How long a graceful stop may take.
    pub stop_seconds: u32,
    /// Its volumes, sorted by name.
    pub volumes: Vec<Volume>,
    /// What runs.
    pub runtime: Runtime,
}

impl VmSpec {
    /// Whether an instance stays where its volumes are.
    pub fn is_bound(&self) -> bool {
        self.volumes.iter().any(|volume| !volume.movable)
    }

    /// Whether a move stops the old copy before it starts the new one.
    pub fn stops_first(&self) -> bool {
        self.singleton || !self.volumes.is_empty()
    }

    /// Returns every artifact with the field it is in.
    pub fn artifacts(&self) -> Vec<(String, &Artifact)> {
        let runtime = &self.runtime;
        let mut found: Vec<(String, &Artifact)> = Vec::new();
        for (field, artifact) in [
            ("runtime.kernel", &runtime.kernel),
            ("runtime.initrd", &runtime.initrd),
            ("runtime.firmware", &runtime.firmware),
            ("runtime.rootfs", &runtime.rootfs),
            ("runtime.config", &runtime.config),
        ] {
            found.extend(artifact.as_ref().map(|artifact| (field.to_owned(), artifact)));
        }
        for (index, disk) in runtime.disks.iter().enumerate() {
            if let DiskSource::Image(artifact) = &disk.source {
                found.push((format!("runtime.disks[{index}].image"), artifact));
            }
        }
        let further = runtime.artifacts.iter().enumerate();
        found.extend(further.map(|(index, artifact)| (format!("runtime.artifacts[{index}]"), artifact)));
        found
    }
}

impl Serialize for VmSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_json().serialize(serializer)
    }
}

/// How instances are spread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// The label of workers over whose values they are spread.
    pub key: Option<String>,
    /// The most on one worker; 0: no limit.
    pub max_per_worker: u32,
    /// VMs they never share a worker with.
    pub not_with: BTreeSet<VmId>,
}

/// What one instance takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Resources {
    /// Thousandths of a processor.
    #[serde(default)]
    pub cpu_milli: u64,
    /// Memory.
    #[serde(default, rename = "memMiB")]
    pub mem_mib: u64,
    /// Disk.
    #[serde(default, rename = "diskMiB")]
    pub disk_mib: u64,
}

impl Resources {
    /// Returns both together.
    pub fn plus(self, other: Self) -> Self {
        Self {
            cpu_milli: self.cpu_milli.saturating_add(other.cpu_milli),
            mem_mib: self.mem_mib.saturating_add(other.mem_mib),
            disk_mib: self.disk_mib.saturating_add(other.disk_mib),
        }
    }

    /// Returns what is left without `other`.
    pub fn minus(self, other: Self) -> Self {
        Self {
            cpu_milli: self.cpu_milli.saturating_sub(other.cpu_milli),
            mem_mib: self.mem_mib.saturating_sub(other.mem_mib),
            disk_mib: self.disk_mib.saturating_sub(other.disk_mib),
        }
    }

    /// Returns the larger of each.
    pub fn larger(self, other: Self) -> Self {
        Self {
            cpu_milli: self.cpu_milli.max(other.cpu_milli),
            mem_mib: self.mem_mib.max(other.mem_mib),
            disk_mib: self.disk_mib.max(other.disk_mib),
        }
    }
}

/// When an instance that ended is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restart {
    /// Whether.
    pub policy: RestartPolicy,
    /// The first wait.
    pub backoff_seconds: u32,
    /// The longest wait.
    pub max_backoff_seconds: u32,
    /// How long it has to run until waits begin anew.
    pub stable_seconds: u32,
}

impl Default for Restart {
    fn default() -> Self {
        Self {
            policy: RestartPolicy::Always,
            backoff_seconds: 10,
            max_backoff_seconds: 300,
            stable_seconds: 600,
        }
    }
}

/// Whether an instance that ended is started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestartPolicy {
    /// It is.
    #[default]
    Always,
    /// Unless it ended well.
    OnFailure,
    /// It is not.
    Never,
}

impl RestartPolicy {
    /// Every policy with its word.
    pub const WORDS: [(&'static str, Self); 3] =
        [("always", Self::Always), ("on-failure", Self::OnFailure), ("never", Self::Never)];
}

/// When an instance is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// What is looked at.
    pub kind: ReadyKind,
    /// Of tcp and http.
    pub port: Option<u16>,
    /// Of http.
    pub path: Option<String>,
    /// Of serial: what the console has to show.
    pub pattern: Option<String>,
    /// Of exec.
    pub argv: Vec<String>,
    /// How often.
    pub interval_seconds: u32,
    /// How long one look may take.
    pub timeout_seconds: u32,
}

impl Default for Ready {
    fn default() -> Self {
        Self {
            kind: ReadyKind::Started,
            port: None,
            path: None,
            pattern: None,
            argv: Vec::new(),
            interval_seconds: 2,
            timeout_seconds: 60,
        }
    }
}

/// What readiness is seen by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadyKind {
    /// It has been alive for 2 s.
    #[default]
    Started,
    /// A port takes connections.
    Tcp,
    /// A port answers.
    Http,
    /// The console shows something.
    Serial,
    /// A command succeeds.
    Exec,
}

impl ReadyKind {
    /// Every kind with its word.
    pub const WORDS: [(&'static str, Self); 5] = [
        ("started", Self::Started),
        ("tcp", Self::Tcp),
        ("http", Self::Http),
        ("serial", Self::Serial),
        ("exec", Self::Exec),
    ];
}

/// A number of instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// So many.
    Count(u32),
    /// So many of a hundred.
    Percent(u32),
}

impl Amount {
    /// Returns how many of `total` that is: rounded down, at least 1.
    pub fn of(self, total: u32) -> u32 {
        let count = match self {
            Self::Count(count) => u64::from(count),
            Self::Percent(percent) => u64::from(total) * u64::from(percent) / 100,
        };
        u32::try_from(count).unwrap_or(u32::MAX).max(1)
    }
}

/// How a new spec reaches its instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// How many may be away at once.
    pub max_unavailable: Amount,
    /// How many go first, alone.
    pub canary: u32,
    /// How long an instance has to be ready to count.
    pub min_ready_seconds: u32,
    /// How long one may take to become ready.
    pub progress_deadline_seconds: u32,
    /// Whether trouble stops the rollout.
    pub auto_hold: bool,
    /// Whether nothing is released.
    pub pause: bool,
}

impl Default for Rollout {
    fn default() -> Self {
        Self {
            max_unavailable: Amount::Count(1),
            canary: 0,
            min_ready_seconds: 10,
            progress_deadline_seconds: 600,
            auto_hold: true,
            pause: false,
        }
    }
}

/// What happens to instances of a lost worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLost {
    /// They are started elsewhere.
    #[default]
    Move,
    /// They wait for it.
    Wait,
}

impl OnLost {
    /// Every choice with its word.
    pub const WORDS: [(&'static str, Self); 2] = [("move", Self::Move), ("wait", Self::Wait)];
}

/// A volume of each instance, local to a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its name: a DNS label.
    pub name: VmId,
    /// Its size.
    pub size_mib: u64,
    /// What happens to it when its instance goes.
    pub retain: Retain,
    /// Whether its instance may go elsewhere, where it starts empty.
    pub movable: bool,
}

/// What happens to a volume when its instance goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retain {
    /// It stays.
    #[default]
    Keep,
    /// It goes too.
    Delete,
}

impl Retain {
    /// Every choice with its word.
    pub const WORDS: [(&'static str, Self); 2] = [("keep", Self::Keep), ("delete", Self::Delete)];
}

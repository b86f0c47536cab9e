//! The state of a fleet in one file, for plans without a master.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::WorkerView;
use crate::diagnostic::{Diagnostic, Diagnostics, Place, Source};
use crate::fleet::labels::Labels;
use crate::fleet::vm::{Resources, VmSpec, read_specs};
use crate::fleet::{CommitId, FleetFile, InstanceKey};
use crate::id::{GroupName, VmId, WorkerName};
use crate::plan::Digest;

/// The state of a fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// What `fleet.yaml` says.
    pub fleet: FleetFile,
    /// The workers.
    pub workers: Vec<WorkerView>,
    /// Where instances are.
    pub placements: Vec<SnapshotPlacement>,
    /// What is active.
    pub groups: Vec<SnapshotGroup>,
    /// What is frozen, on its way and used up at this moment.
    pub now: SnapshotNow,
}

/// What a master knows besides that decides what a publication does right now. A file without it is of a fleet at rest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SnapshotNow {
    /// VMs that operators hold.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub held_vms: BTreeSet<VmId>,
    /// Groups that operators hold.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub held_groups: BTreeSet<GroupName>,
    /// VMs whose rollout stopped, with the spec that it stopped at.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub held_rollouts: BTreeMap<VmId, Digest>,
    /// Specs that still run and are not active any more, by VM and hash.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub specs: BTreeMap<VmId, BTreeMap<Digest, Value>>,
    /// Whether so many workers are silent that nothing goes elsewhere.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub brake: bool,
    /// How many moves for balance there were in the last hour.
    #[serde(skip_serializing_if = "is_none")]
    pub rebalanced: u32,
    /// What copies that leave take on their workers.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub leaving: BTreeMap<WorkerName, Resources>,
    /// What of that is of which instance: in the way of others, and not of itself.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub copies: BTreeMap<InstanceKey, BTreeMap<WorkerName, Resources>>,
    /// Where volumes are of instances that are elsewhere, do not use them, or are gone.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub volumes: BTreeMap<InstanceKey, WorkerName>,
    /// Instances without a place.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub homeless: BTreeMap<InstanceKey, Homeless>,
    /// What instances may run or were seen to run, with what it takes, where that is not the active spec alone. Those that
    /// were removed and are still seen are among them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub runs: BTreeMap<InstanceKey, BTreeMap<Digest, Resources>>,
    /// The labels that workers give themselves.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub own_labels: BTreeMap<WorkerName, Labels>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_none(count: &u32) -> bool {
    *count == 0
}

/// An instance without a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Homeless {
    /// What it may run.
    #[serde(rename = "vmHash")]
    pub vm_hash: Digest,
    /// Where its volumes are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes_on: Option<WorkerName>,
    /// Where copies of it are that stay until it has a place.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub leaving: BTreeSet<WorkerName>,
    /// Whether what it may run has volumes that bind it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tied: bool,
}

/// Where an instance is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotPlacement {
    /// Which.
    pub instance: InstanceKey,
    /// Where.
    pub worker: WorkerName,
    /// What it runs.
    #[serde(rename = "vmHash", default)]
    pub vm_hash: Option<Digest>,
    /// The volumes that bind it there.
    #[serde(default)]
    pub volumes: Vec<String>,
}

/// What is active of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotGroup {
    /// The group.
    pub group: GroupName,
    /// Its generation.
    pub generation: u64,
    /// Its commit.
    pub commit: CommitId,
    /// Its VMs.
    pub specs: Vec<VmSpec>,
}

/// A snapshot as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    schema: u32,
    #[serde(default)]
    policy: Value,
    #[serde(default)]
    workers: Vec<WorkerView>,
    #[serde(default)]
    placements: Vec<SnapshotPlacement>,
    #[serde(default)]
    groups: Vec<WrittenGroup>,
    #[serde(default)]
    now: SnapshotNow,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenGroup {
    group: GroupName,
    generation: u64,
    commit: CommitId,
    #[serde(default)]
    specs: Value,
}

impl Snapshot {
    /// Returns what the file `name` says, or everything that is wrong with it.
    pub fn read(name: &str, text: &str) -> Result<Self, Diagnostics> {
        let bad = |message: String| {
            let place = Place::Named(name.to_owned());
            Diagnostics(vec![
                Diagnostic::error("fleet/bad-snapshot", place, message)
                    .help("write it with `stead fleet status --snapshot`"),
            ])
        };
        let written: Written = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
        if written.schema != 1 {
            return Err(bad(format!("this is version {} of snapshots, and 1 is read", written.schema)));
        }
        let mut diagnostics = Diagnostics::default();
        let mut groups = Vec::new();
        for group in written.groups {
            let source = source(&format!("{name}: specs of {}", group.group), &group.specs);
            let mut specs = read_specs(&source, &mut diagnostics);
            specs.iter_mut().for_each(|spec| spec.group = group.group.clone());
            let WrittenGroup { group, generation, commit, .. } = group;
            groups.push(SnapshotGroup { group, generation, commit, specs });
        }
        let fleet = match written.policy {
            Value::Object(mut policy) => {
                policy.entry("api_version").or_insert_with(|| json!("v1"));
                let source = source(&format!("{name}: policy"), &Value::Object(policy));
                FleetFile::read(&source, &mut diagnostics)
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                FleetFile::default()
            }
        };
        if diagnostics.has_errors() {
            return Err(diagnostics);
        }
        Ok(Self { fleet, workers: written.workers, placements: written.placements, groups, now: written.now })
    }

    /// Returns the JSON form.
    pub fn to_json(&self) -> Value {
        let groups: Vec<Value> = self
            .groups
            .iter()
            .map(|group| {
                json!({
                    "group": group.group, "generation": group.generation,
                    "commit": group.commit, "specs": group.specs,
                })
            })
            .collect();
        let policy: Value = serde_json::from_str(&self.fleet.to_canonical()).unwrap_or_default();
        let mut value = json!({
            "schema": 1, "policy": policy, "workers": self.workers,
            "placements": self.placements, "groups": groups,
        });
        if self.now != SnapshotNow::default() {
            value["now"] = json!(self.now);
        }
        value
    }
}

fn source(name: &str, value: &Value) -> Source {
    let text = if value.is_null() { "[]".to_owned() } else { value.to_string() };
    Source { name: name.into(), text: text.into() }
}

//! The state of a fleet in one file, for plans without a master.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::WorkerView;
use crate::diagnostic::{Diagnostic, Diagnostics, Place, Source};
use crate::fleet::vm::{VmSpec, read_specs};
use crate::fleet::{CommitId, FleetFile, InstanceKey};
use crate::id::{GroupName, WorkerName};
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
    /// The volumes it has there.
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
        Ok(Self { fleet, workers: written.workers, placements: written.placements, groups })
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
        json!({
            "schema": 1, "policy": policy, "workers": self.workers,
            "placements": self.placements, "groups": groups,
        })
    }
}

fn source(name: &str, value: &Value) -> Source {
    let text = if value.is_null() { "[]".to_owned() } else { value.to_string() };
    Source { name: name.into(), text: text.into() }
}

//! `fleet.yaml`: the part of desired state that is not VMs.
//!
//! It forms the group `fleet`. [`FleetFile::read`] tells every problem at once; [`FleetFile::to_canonical`] is what the
//! group's hash is of: what concerns VMs (`defaults`, and the keys of the site evaluator) is in their specs already.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::labels::{Labels, labels_schema, read_worker_labels};
use super::policy::{self, POLICY_KEYS, Policy};
use super::vm::{
    Resources, SCHEDULING_KEYS, Scheduling, Sparse, VM_DEFAULTS_KEYS, VmDefaults, read_defaults,
    read_scheduling,
};
use crate::canonical_json;
use crate::diagnostic::{Diagnostics, Source, Span, suggest};
use crate::id::{GroupName, NodeName, VmId, WorkerName};
use crate::plan::Digest;
use crate::schema::{api_version, boolean, full_text, integer, object};
use crate::site::Located;
use crate::site::read;
use crate::yaml::{self, Codes, Fields, Key, Keys, Node, Value as Written, Walk};

/// What `fleet.yaml` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetFile {
    /// What is said of workers.
    pub workers: BTreeMap<WorkerName, WorkerEntry>,
    /// What is said of groups.
    pub groups: BTreeMap<GroupName, GroupEntry>,
    /// What is placed under every VM.
    pub defaults: VmDefaults,
    /// What stays as it is.
    pub suspend: Suspend,
    /// Lists of specs that pass the guard, by their hash.
    pub approve: BTreeSet<Digest>,
    /// How workers are minded.
    pub policy: Policy,
    /// Which manifests are VMs.
    pub manifests: Vec<Located<String>>,
    /// Scheduling fields of nodes.
    pub vms: BTreeMap<NodeName, Located<Scheduling>>,
    /// Images by the name manifests use.
    pub images: BTreeMap<String, Located<Image>>,
}

/// What is said of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerEntry {
    /// These win over its own.
    pub labels: Labels,
    /// Whether it gets nothing new.
    pub cordon: bool,
    /// Whether what it has goes elsewhere.
    pub drain: bool,
    /// Whether everything on it stays as it is.
    pub suspend: bool,
    /// What is not for instances.
    pub reserve: Resources,
}

/// What is said of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupEntry {
    /// Whether new generations wait.
    pub suspend: bool,
    /// Whether it may be empty.
    pub allow_empty: bool,
    /// Whether it is gone for good.
    pub removed: bool,
}

/// What stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suspend {
    /// Everything.
    pub all: bool,
    /// These.
    pub vms: BTreeSet<VmId>,
}

/// An image of the site evaluator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Where it is.
    pub source: ImageSource,
    /// The hash of its bytes.
    pub sha256: Digest,
}

/// Where an image is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageSource {
    /// In the repository.
    Path(String),
    /// Elsewhere.
    Url(String),
}

/// The keys of `fleet.yaml`.
pub const FLEET_KEYS: Keys = Keys {
    what: "fleet.yaml",
    keys: &[
        Key::new("api_version", api_version, "the format of the file: `v1`").required(),
        Key::new("workers", || by_name(&WORKER_KEYS), "what is said of workers, by name"),
        Key::new("groups", || by_name(&GROUP_KEYS), "what is said of groups, by name"),
        Key::new("defaults", || object(&VM_DEFAULTS_KEYS), "what is placed under every VM"),
        Key::new("suspend", || object(&SUSPEND_KEYS), "what stays as it is"),
        Key::new("approve", approve_schema, "hashes of specs that pass the guard"),
        Key::new("policy", || object(&POLICY_KEYS), "how workers are minded"),
        Key::new("manifests", globs, "which manifests are VMs; default `manifests/*.yaml`"),
        Key::new("vms", || by_name(&SCHEDULING_KEYS), "scheduling fields of nodes, by name"),
        Key::new("images", || by_name(&IMAGE_KEYS), "images by the name manifests use"),
    ],
    hints: &[("version", "api_version"), ("nodes", "workers")],
};

const WORKER_KEYS: Keys = Keys {
    what: "a worker",
    keys: &[
        Key::new("labels", labels_schema, "these win over its own"),
        Key::new("cordon", boolean, "whether it gets nothing new; default `false`"),
        Key::new("drain", boolean, "whether what it has goes elsewhere; default `false`"),
        Key::new("suspend", boolean, "whether everything on it stays as it is; default `false`"),
        Key::new("reserve", || object(&RESERVE_KEYS), "what is not for instances"),
    ],
    hints: &[],
};

/// What is not for instances.
pub(super) const RESERVE_KEYS: Keys = Keys {
    what: "`reserve`",
    keys: &[
        Key::new("cpuMilli", || integer(0, 1_024_000), "thousandths of a processor"),
        Key::new("memMiB", || integer(0, 16_777_216), "memory in MiB"),
    ],
    hints: &[("cpu", "cpuMilli"), ("memory", "memMiB")],
};

const GROUP_KEYS: Keys = Keys {
    what: "a group",
    keys: &[
        Key::new("suspend", boolean, "whether new generations wait; default `false`"),
        Key::new("allowEmpty", boolean, "whether it may be empty; default `false`"),
        Key::new("removed", boolean, "whether it is gone for good; default `false`"),
    ],
    hints: &[("allow_empty", "allowEmpty")],
};

const SUSPEND_KEYS: Keys = Keys {
    what: "`suspend`",
    keys: &[
        Key::new("all", boolean, "everything; default `false`"),
        Key::new("vms", || json!({"type": "array", "items": full_text()}), "these"),
    ],
    hints: &[],
};

const IMAGE_KEYS: Keys = Keys {
    what: "an image",
    keys: &[
        Key::new("path", full_text, "where it is in the repository"),
        Key::new("url", full_text, "where it is elsewhere"),
        Key::new("sha256", full_text, "the hash of its bytes: 64 hex digits").required(),
    ],
    hints: &[("file", "path"), ("hash", "sha256")],
};

fn by_name(keys: &Keys) -> Value {
    json!({"type": "object", "additionalProperties": object(keys)})
}

fn approve_schema() -> Value {
    json!({"type": "array", "items": {"type": "string", "pattern": "^[0-9a-f]{64}$"}})
}

fn globs() -> Value {
    json!({"type": "array", "items": full_text()})
}

impl FleetFile {
    /// The manifests that are VMs where the file does not say.
    pub const MANIFESTS: &'static str = "manifests/*.yaml";

    /// Returns what `source` says, as far as it can be read.
    pub fn read(source: &Source, diagnostics: &mut Diagnostics) -> Self {
        let Some(tree) = yaml::read(source, Codes::FLEET, diagnostics) else { return Self::default() };
        read_file(&mut Walk::new(diagnostics), tree.root())
    }

    /// Returns what its canonical JSON says (see [`FleetFile::to_canonical`]), or everything that is wrong with it.
    pub fn from_canonical(name: &str, text: &str) -> Result<Self, Diagnostics> {
        let mut diagnostics = Diagnostics::default();
        // The text is JSON, in which the version goes without saying.
        let rest = text.trim_start().strip_prefix('{').unwrap_or(text);
        let comma = if rest.trim_start().starts_with('}') { "" } else { "," };
        let text = format!("{{\"api_version\":\"v1\"{comma}{rest}");
        let file = Self::read(&Source { name: name.into(), text: text.into() }, &mut diagnostics);
        if diagnostics.has_errors() { Err(diagnostics) } else { Ok(file) }
    }

    /// Returns what it says of a worker.
    pub fn worker(&self, name: &WorkerName) -> WorkerEntry {
        self.workers.get(name).cloned().unwrap_or_default()
    }

    /// Returns what it says of a group.
    pub fn group(&self, name: &GroupName) -> GroupEntry {
        self.groups.get(name).copied().unwrap_or_default()
    }

    /// Whether nothing of `vm` may be replaced, moved or scaled.
    pub fn is_suspended(&self, vm: &VmId) -> bool {
        self.suspend.all || self.suspend.vms.contains(vm)
    }

    /// Returns what it says of VMs and groups that are not there, each in a sentence with the nearest name. It is no error:
    /// they may come later.
    pub fn unmatched(&self, vms: &BTreeSet<&VmId>, groups: &BTreeSet<&GroupName>) -> Vec<String> {
        let unknown = self.suspend.vms.iter().filter(|id| !vms.contains(id));
        let of_vms = unknown.map(|id| {
            let near = suggest(id.as_str(), vms.iter().map(|id| id.as_str()));
            format!("`suspend.vms` names `{id}`, and there is no such VM; {near}")
        });
        let said = self.groups.iter().filter(|(_, entry)| !entry.removed);
        let of_groups = said.filter(|(name, _)| !groups.contains(name)).map(|(name, _)| {
            let near = suggest(name.as_str(), groups.iter().map(|name| name.as_str()));
            format!("`groups` names `{name}`, and there is no such group; {near}")
        });
        of_vms.chain(of_groups).collect()
    }

    /// Returns the canonical JSON of what is not in the specs of VMs.
    pub fn to_canonical(&self) -> String {
        let mut file = Sparse::default();
        let workers: Value =
            self.workers.iter().map(|(name, worker)| (name.to_string(), worker.to_json())).collect();
        let groups: Value =
            self.groups.iter().map(|(name, group)| (name.to_string(), group.to_json())).collect();
        file.full("workers", without_empty(workers));
        file.full("groups", without_empty(groups));
        let mut suspend = Sparse::default();
        suspend.unless("all", self.suspend.all, false);
        suspend.full("vms", json!(self.suspend.vms));
        file.full("suspend", suspend.into_json());
        file.full("approve", self.approve.iter().map(ToString::to_string).collect::<Vec<_>>());
        file.full("policy", self.policy.to_json());
        canonical_json::by_code_points(&file.into_json())
    }
}

/// Returns the entries of an object that say something.
fn without_empty(value: Value) -> Value {
    match value {
        Value::Object(entries) => entries
            .into_iter()
            .filter(|(_, entry)| entry.as_object().is_none_or(|entry| !entry.is_empty()))
            .collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => value,
    }
}

impl WorkerEntry {
    fn to_json(&self) -> Value {
        let mut worker = Sparse::default();
        worker.full("labels", json!(self.labels));
        worker.unless("cordon", self.cordon, false);
        worker.unless("drain", self.drain, false);
        worker.unless("suspend", self.suspend, false);
        let mut reserve = Sparse::default();
        reserve.unless("cpuMilli", self.reserve.cpu_milli, 0);
        reserve.unless("memMiB", self.reserve.mem_mib, 0);
        worker.full("reserve", reserve.into_json());
        worker.into_json()
    }
}

impl GroupEntry {
    fn to_json(self) -> Value {
        let mut group = Sparse::default();
        group.unless("suspend", self.suspend, false);
        group.unless("allowEmpty", self.allow_empty, false);
        group.unless("removed", self.removed, false);
        group.into_json()
    }
}

fn read_file(walk: &mut Walk<'_>, root: Node<'_>) -> FleetFile {
    let mut file = FleetFile::default();
    let Some(fields) = walk.map(root, &FLEET_KEYS) else { return file };
    if let Some(node) = fields.get("api_version")
        && node.as_text() != Some("v1")
    {
        let problem = node.bad(format!("expected `v1`, found {}", node.describe()));
        walk.report(problem.help("write `api_version: v1`"));
    }
    file.workers = named(walk, fields, "workers", read_worker);
    file.groups = named(walk, fields, "groups", read_group);
    if let Some(key) = fields.get("groups").and_then(|node| node.key("fleet")) {
        let message = "`fleet` is the group of this file itself";
        walk.report(key.error("fleet/conflict", message).help("leave it out"));
    }
    if let Some(node) = fields.get("defaults") {
        file.defaults = read_defaults(walk, node);
    }
    if let Some(given) = read::map(walk, fields, "suspend", &SUSPEND_KEYS) {
        file.suspend.all = read::flag(walk, given, "all").unwrap_or_default();
        for item in given.get("vms").and_then(|node| walk.list(node, "ids of VMs")).into_iter().flatten() {
            file.suspend.vms.extend(walk.id::<VmId>(item));
        }
    }
    for item in fields.get("approve").and_then(|node| walk.list(node, "hashes")).into_iter().flatten() {
        file.approve.extend(digest(walk, item));
    }
    if let Some(node) = fields.get("policy") {
        file.policy = policy::read(walk, node);
    }
    for item in fields.get("manifests").and_then(|node| walk.list(node, "globs")).into_iter().flatten() {
        let text = walk.full_text(item).map(str::to_owned);
        file.manifests.extend(text.map(|value| Located { value, span: item.span() }));
    }
    file.vms =
        located(named(walk, fields, "vms", |walk, node| Some((read_scheduling(walk, node)?, node.span()))));
    file.images = read_images(walk, fields);
    file
}

fn located<K: Ord, T>(entries: BTreeMap<K, (T, Span)>) -> BTreeMap<K, Located<T>> {
    entries.into_iter().map(|(key, (value, span))| (key, Located { value, span })).collect()
}

/// Reads a map from names to values.
fn named<'t, K, T>(
    walk: &mut Walk<'_>,
    fields: Fields<'t>,
    key: &str,
    read: impl Fn(&mut Walk<'_>, Node<'t>) -> Option<T>,
) -> BTreeMap<K, T>
where
    K: Ord + std::str::FromStr<Err: std::fmt::Display>,
{
    let mut found = BTreeMap::new();
    let Some(node) = fields.get(key) else { return found };
    let Some(entries) = node.as_map() else {
        walk.report(node.bad(format!("expected a map, found {}", node.describe())));
        return found;
    };
    for (key, value) in entries {
        let (name, value) = (walk.id::<K>(key), read(walk, value));
        if let (Some(name), Some(value)) = (name, value) {
            found.insert(name, value);
        }
    }
    found
}

fn read_worker(walk: &mut Walk<'_>, node: Node<'_>) -> Option<WorkerEntry> {
    if matches!(node.value(), Written::Null) {
        return Some(WorkerEntry::default());
    }
    let fields = walk.map(node, &WORKER_KEYS)?;
    Some(WorkerEntry {
        labels: fields.get("labels").map(|node| read_worker_labels(walk, node)).unwrap_or_default(),
        cordon: read::flag(walk, fields, "cordon").unwrap_or_default(),
        drain: read::flag(walk, fields, "drain").unwrap_or_default(),
        suspend: read::flag(walk, fields, "suspend").unwrap_or_default(),
        reserve: fields.get("reserve").map(|node| read_reserve(walk, node)).unwrap_or_default(),
    })
}

/// Reads what is not for instances.
pub(super) fn read_reserve(walk: &mut Walk<'_>, node: Node<'_>) -> Resources {
    let Some(fields) = walk.map(node, &RESERVE_KEYS) else { return Resources::default() };
    Resources {
        cpu_milli: read::number(walk, fields, "cpuMilli", 0..=1_024_000).unwrap_or_default(),
        mem_mib: read::number(walk, fields, "memMiB", 0..=16_777_216).unwrap_or_default(),
        disk_mib: 0,
    }
}

fn read_group(walk: &mut Walk<'_>, node: Node<'_>) -> Option<GroupEntry> {
    let fields = walk.map(node, &GROUP_KEYS)?;
    Some(GroupEntry {
        suspend: read::flag(walk, fields, "suspend").unwrap_or_default(),
        allow_empty: read::flag(walk, fields, "allowEmpty").unwrap_or_default(),
        removed: read::flag(walk, fields, "removed").unwrap_or_default(),
    })
}

fn digest(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Digest> {
    let digest = Digest::parse(walk.full_text(node)?);
    if digest.is_none() {
        walk.report(node.bad(format!("expected 64 lower-case hex digits, found {}", node.describe())));
    }
    digest
}

fn read_images(walk: &mut Walk<'_>, fields: Fields<'_>) -> BTreeMap<String, Located<Image>> {
    let mut images = BTreeMap::new();
    let Some(node) = fields.get("images") else { return images };
    let Some(entries) = node.as_map() else {
        walk.report(node.bad(format!("expected a map of images, found {}", node.describe())));
        return images;
    };
    for (key, value) in entries {
        let Some(fields) = walk.map(value, &IMAGE_KEYS) else { continue };
        let sha256 = fields.get("sha256").and_then(|node| digest(walk, node));
        let source = match (read::text(walk, fields, "path"), read::text(walk, fields, "url")) {
            (Some(path), None) => Some(ImageSource::Path(path)),
            (None, Some(url)) => Some(ImageSource::Url(url)),
            (Some(_), Some(_)) => {
                walk.report(value.error("fleet/conflict", "an image has a `path` or a `url`, not both"));
                None
            }
            (None, None) => {
                walk.report(value.error("fleet/missing-field", "an image needs a `path` or a `url`"));
                None
            }
        };
        if let (Some(sha256), Some(source), Some(name)) = (sha256, source, key.as_text()) {
            images.insert(name.to_owned(), Located { value: Image { source, sha256 }, span: value.span() });
        }
    }
    images
}

#[cfg(test)]
mod tests;

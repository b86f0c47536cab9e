//! Which keys of a store say what of a [`Durable`], both ways.
//!
//! | key | value |
//! |---|---|
//! | `meta/next-generation` | the next number |
//! | `gen/GROUP/N` | commit, hashes, names of its lists of specs, policy, why it waits |
//! | `active/GROUP` | the active number, since when, why the newest one waits |
//! | `spec/HASH` | a list of specs, by the hash of its text |
//! | `spec/VM/HASH` | a spec that an instance still may run and its group does not want any more |
//! | `policy` | what the active `fleet.yaml` says |
//! | `commit/SHA`, `place/ID/ORD`, `ghost/ID/ORD`, `volume/ID/ORD`, `worker/NAME`, `hold/ID`, `rollout/ID`, `unclaimed/ID` | one entry each |
//!
//! [`Mirror`] is what the store has; only what differs from it is written. Specs of a group are cut into lists at ids
//! that their hash chooses, so that a commit that changes one VM writes one short list.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stead_engine::fleet::canon::vm_hash;
use stead_engine::fleet::cluster::{Durable, Group, Unclaimed};
use stead_engine::fleet::rollout::Memory;
use stead_model::diagnostic::{Diagnostics, Source};
use stead_model::fleet::state::{Generation, Hold, Outcome, Placement, Problem, Specs, WorkerFacts};
use stead_model::fleet::vm::read_specs;
use stead_model::fleet::{CommitId, FleetFile, InstanceKey, Millis, VmSpec};
use stead_model::plan::Digest;
use stead_model::{GroupName, VmId, WorkerName};

use crate::store::{Entry, Txn};

#[cfg(test)]
mod tests;

/// The next generation's number.
const NEXT_GENERATION: &str = "meta/next-generation";

/// What the active `fleet.yaml` says.
const POLICY: &str = "policy";

/// The most specs of one list, and the largest list; a value has at most 1 MiB.
const LONGEST_LIST: usize = 256;
const LARGEST_LIST: usize = 256 << 10;

/// The largest policy that is stored with its generation; a larger one is cut.
const LARGEST_POLICY: usize = 256 << 10;

/// Why the keys of a store say nothing that can be used.
#[derive(Debug, thiserror::Error)]
#[error("the store's key `{key}` cannot be read: {why}")]
pub struct UnreadableKey {
    /// Which.
    pub key: String,
    /// Why.
    pub why: String,
}

/// What a store has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mirror {
    durable: Durable,
    /// The lists of each generation.
    lists: Lists,
    /// Specs that no active generation has.
    old_specs: Specs,
    policy: Option<String>,
}

/// Entries that are not as they were; none: gone.
type Changes<K, V> = Vec<(K, Option<V>)>;

/// What has to be written, and what the mirror is after that.
#[derive(Clone, Debug, Default)]
pub(crate) struct Difference {
    /// What has to be written.
    pub(crate) txn: Txn,
    last_generation: u64,
    commits: Changes<CommitId, u64>,
    placements: Changes<InstanceKey, Placement>,
    ghosts: Changes<InstanceKey, BTreeSet<WorkerName>>,
    volumes: Changes<InstanceKey, WorkerName>,
    workers: Changes<WorkerName, Option<WorkerFacts>>,
    holds: Changes<String, Hold>,
    rollouts: Changes<VmId, Memory>,
    unclaimed: Changes<VmId, Unclaimed>,
    old_specs: Changes<(VmId, Digest), Arc<VmSpec>>,
    /// All specs, if there are others.
    specs: Option<Specs>,
    groups: Option<Groups>,
}

/// The lists of specs of each generation.
type Lists = BTreeMap<(GroupName, u64), Vec<Digest>>;

/// Groups that are not as they were.
#[derive(Clone, Debug)]
struct Groups {
    groups: BTreeMap<GroupName, Group>,
    lists: Lists,
    policy: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredGeneration {
    commit: CommitId,
    intent_hash: Digest,
    specs_hash: Digest,
    specs: Vec<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    policy: Option<Value>,
    /// Whether its lists are pieces of its policy.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    policy_in_lists: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    waits: Option<Outcome>,
}

#[derive(Serialize, Deserialize)]
struct StoredActive {
    generation: Option<u64>,
    since: Millis,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    why: Option<Problem>,
}

#[derive(Serialize, Deserialize)]
struct StoredSpec {
    group: GroupName,
    spec: Value,
}

impl Mirror {
    /// Returns what the store has.
    pub(crate) fn durable(&self) -> &Durable {
        &self.durable
    }

    /// Returns what has to be written so that the store has `new`.
    pub(crate) fn difference(&self, new: &Durable) -> Difference {
        let old = &self.durable;
        let mut txn = Txn::default();
        if new.last_generation != old.last_generation {
            txn = txn.put(NEXT_GENERATION, new.last_generation.saturating_add(1).to_string());
        }
        let groups = self.changed_groups(new, &mut txn);
        let old_specs = changed(&self.old_specs, &old_specs(new), |a, b| Arc::ptr_eq(a, b) || a == b);
        let has_other_specs = groups.is_some() || !old_specs.is_empty();
        let difference = Difference {
            specs: has_other_specs.then(|| new.specs.clone()),
            last_generation: new.last_generation,
            commits: changed(&old.commits, &new.commits, |a, b| a == b),
            placements: changed(&old.placements, &new.placements, |a, b| a == b),
            ghosts: changed(&old.ghosts, &new.ghosts, |a, b| a == b),
            volumes: changed(&old.volumes, &new.volumes, |a, b| a == b),
            workers: changed(&old.workers, &new.workers, |a, b| match (a, b) {
                (Some(a), Some(b)) => a.says_the_same(b),
                (None, None) => true,
                (None, Some(_)) | (Some(_), None) => false,
            }),
            holds: changed(&old.holds, &new.holds, |a, b| a == b),
            rollouts: changed(&old.rollouts, &new.rollouts, |a, b| a == b),
            unclaimed: changed(&old.unclaimed, &new.unclaimed, |a, b| a == b),
            old_specs,
            groups,
            txn: Txn::default(),
        };
        write(&mut txn, &difference.commits, |commit| format!("commit/{commit}"), json);
        write(&mut txn, &difference.placements, |key| format!("place/{key}"), json);
        write(&mut txn, &difference.ghosts, |key| format!("ghost/{key}"), json);
        write(&mut txn, &difference.volumes, |key| format!("volume/{key}"), json);
        write(&mut txn, &difference.workers, |name| format!("worker/{name}"), json);
        write(&mut txn, &difference.holds, |id| format!("hold/{id}"), json);
        write(&mut txn, &difference.rollouts, |vm| format!("rollout/{vm}"), json);
        write(&mut txn, &difference.unclaimed, |vm| format!("unclaimed/{vm}"), json);
        write(
            &mut txn,
            &difference.old_specs,
            |(vm, hash)| format!("spec/{vm}/{hash}"),
            |spec| json(&StoredSpec { group: spec.group.clone(), spec: spec.to_json() }),
        );
        Difference { txn, ..difference }
    }

    fn changed_groups(&self, new: &Durable, txn: &mut Txn) -> Option<Groups> {
        let is_same = |a: &Group, b: &Group| {
            let of = |group: &Group| {
                group.stored.values().map(|one| (one.number, one.intent_hash, one.waits)).collect::<Vec<_>>()
            };
            (a.active, a.since, &a.why) == (b.active, b.since, &b.why) && of(a) == of(b)
        };
        let groups = changed(&self.durable.groups, &new.groups, is_same);
        if groups.is_empty() {
            return None;
        }
        let mut lists = BTreeMap::new();
        let mut texts: BTreeMap<Digest, String> = BTreeMap::new();
        for (name, group) in &new.groups {
            for generation in group.stored.values() {
                let key = (name.clone(), generation.number);
                let known = self.lists.get(&key).cloned();
                let found = known.unwrap_or_else(|| {
                    let cut = match large_policy(generation) {
                        Some(text) => pieces_of(&text),
                        None => lists_of(&generation.specs),
                    };
                    let hashes = cut.iter().map(|(hash, _)| *hash).collect();
                    texts.extend(cut);
                    hashes
                });
                lists.insert(key, found);
            }
        }
        let (old_lists, new_lists): (BTreeSet<Digest>, BTreeSet<Digest>) =
            (self.lists.values().flatten().copied().collect(), lists.values().flatten().copied().collect());
        for hash in new_lists.difference(&old_lists) {
            let text = texts.remove(hash).unwrap_or_default();
            *txn = std::mem::take(txn).put(&format!("spec/{hash}"), text);
        }
        for hash in old_lists.difference(&new_lists) {
            *txn = std::mem::take(txn).delete(&format!("spec/{hash}"));
        }
        for (name, group) in &groups {
            self.write_group(name, group.as_ref(), &lists, txn);
        }
        let fleet = new.groups.get(&GroupName::fleet()).and_then(Group::active);
        // One that is large is only with its generation.
        let policy = fleet.filter(|generation| large_policy(generation).is_none());
        let policy = policy.and_then(|generation| generation.policy.as_ref());
        let policy = policy.map(|policy| policy.to_canonical());
        if policy != self.policy {
            *txn = match &policy {
                Some(text) => std::mem::take(txn).put(POLICY, text.as_str()),
                None => std::mem::take(txn).delete(POLICY),
            };
        }
        Some(Groups { groups: new.groups.clone(), lists, policy })
    }

    fn write_group(&self, name: &GroupName, group: Option<&Group>, lists: &Lists, txn: &mut Txn) {
        let none = BTreeMap::new();
        let old = self.durable.groups.get(name).map_or(&none, |group| &group.stored);
        let new = group.map_or(&none, |group| &group.stored);
        let rows = changed(old, new, |a, b| a.intent_hash == b.intent_hash && a.waits == b.waits);
        write(
            txn,
            &rows,
            |number| format!("gen/{name}/{number}"),
            |generation| {
                let policy_in_lists = large_policy(generation).is_some();
                let policy = generation.policy.as_ref().filter(|_| !policy_in_lists);
                let policy = policy.map(|policy| policy.to_canonical());
                json(&StoredGeneration {
                    commit: generation.commit.clone(),
                    intent_hash: generation.intent_hash,
                    specs_hash: generation.specs_hash,
                    specs: lists.get(&(name.clone(), generation.number)).cloned().unwrap_or_default(),
                    policy: policy.and_then(|text| serde_json::from_str(&text).ok()),
                    policy_in_lists,
                    waits: generation.waits,
                })
            },
        );
        let key = format!("active/{name}");
        *txn = match group {
            None => std::mem::take(txn).delete(&key),
            Some(group) => {
                let (generation, since, why) = (group.active, group.since, group.why.clone());
                std::mem::take(txn).put(&key, json(&StoredActive { generation, since, why }))
            }
        };
    }

    /// Takes over what was written.
    pub(crate) fn advance(&mut self, difference: Difference) {
        let durable = &mut self.durable;
        durable.last_generation = difference.last_generation;
        advance(&mut durable.commits, difference.commits);
        advance(&mut durable.placements, difference.placements);
        advance(&mut durable.ghosts, difference.ghosts);
        advance(&mut durable.volumes, difference.volumes);
        advance(&mut durable.workers, difference.workers);
        advance(&mut durable.holds, difference.holds);
        advance(&mut durable.rollouts, difference.rollouts);
        advance(&mut durable.unclaimed, difference.unclaimed);
        advance(&mut self.old_specs, difference.old_specs);
        if let Some(specs) = difference.specs {
            durable.specs = specs;
        }
        if let Some(Groups { groups, lists, policy }) = difference.groups {
            durable.groups = groups;
            self.lists = lists;
            self.policy = policy;
        }
    }

    /// Returns what the keys of a store say.
    pub(crate) fn load(entries: &[Entry]) -> Result<Self, UnreadableKey> {
        let mut loading = Loading::default();
        for entry in entries {
            loading.read(entry).map_err(|why| UnreadableKey { key: entry.key.clone(), why })?;
        }
        loading.finish()
    }
}

impl Difference {
    /// Whether nothing has to be written.
    pub(crate) fn is_empty(&self) -> bool {
        self.txn.is_empty()
    }
}

fn json<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

/// Returns the entries that are not the same.
fn changed<K: Ord + Clone, V: Clone>(
    old: &BTreeMap<K, V>,
    new: &BTreeMap<K, V>,
    is_same: impl Fn(&V, &V) -> bool,
) -> Changes<K, V> {
    let mut found = Vec::new();
    let mut before = old.iter().peekable();
    for (key, value) in new {
        while let Some((gone, _)) = before.next_if(|(other, _)| *other < key) {
            found.push((gone.clone(), None));
        }
        match before.next_if(|(other, _)| *other == key) {
            Some((_, other)) if is_same(other, value) => {}
            Some(_) | None => found.push((key.clone(), Some(value.clone()))),
        }
    }
    found.extend(before.map(|(gone, _)| (gone.clone(), None)));
    found
}

fn advance<K: Ord, V>(map: &mut BTreeMap<K, V>, changes: Changes<K, V>) {
    for (key, value) in changes {
        match value {
            Some(value) => drop(map.insert(key, value)),
            None => drop(map.remove(&key)),
        }
    }
}

fn write<K, V>(
    txn: &mut Txn,
    changes: &[(K, Option<V>)],
    key: impl Fn(&K) -> String,
    value: impl Fn(&V) -> Vec<u8>,
) {
    for (name, new) in changes {
        *txn = match new {
            Some(new) => std::mem::take(txn).put(&key(name), value(new)),
            None => std::mem::take(txn).delete(&key(name)),
        };
    }
}

/// Returns the specs that no active generation has.
fn old_specs(durable: &Durable) -> Specs {
    let active: BTreeMap<&VmId, &Arc<VmSpec>> = durable
        .groups
        .values()
        .filter_map(Group::active)
        .flat_map(|generation| generation.specs.iter().map(|spec| (&spec.id, spec)))
        .collect();
    let is_active =
        |vm: &VmId, spec: &Arc<VmSpec>| active.get(vm).is_some_and(|other| Arc::ptr_eq(other, spec));
    let old = durable.specs.iter().filter(|((vm, _), spec)| !is_active(vm, spec));
    old.map(|(key, spec)| (key.clone(), Arc::clone(spec))).collect()
}

/// Returns all specs: those of active generations, and old ones.
fn specs_of(groups: &BTreeMap<GroupName, Group>, old: &Specs) -> Specs {
    let active = groups.values().filter_map(Group::active).flat_map(|generation| &generation.specs);
    let mut specs: Specs = active.map(|spec| ((spec.id.clone(), vm_hash(spec)), Arc::clone(spec))).collect();
    specs.extend(old.iter().map(|(key, spec)| (key.clone(), Arc::clone(spec))));
    specs
}

/// Cuts specs into lists, each with the hash of its text.
fn lists_of(specs: &[Arc<VmSpec>]) -> Vec<(Digest, String)> {
    let mut lists = Vec::new();
    let mut text = String::new();
    let mut count = 0;
    for spec in specs {
        text.push(if text.is_empty() { '[' } else { ',' });
        text.push_str(&spec.to_canonical());
        count += 1;
        // About every 32nd id ends a list, whatever is before it.
        let is_end = Digest::of(spec.id.as_str().as_bytes()).0[0] < 8;
        if is_end || count == LONGEST_LIST || text.len() > LARGEST_LIST {
            text.push(']');
            lists.push((Digest::of(text.as_bytes()), std::mem::take(&mut text)));
            count = 0;
        }
    }
    if !text.is_empty() {
        text.push(']');
        lists.push((Digest::of(text.as_bytes()), text));
    }
    lists
}

/// Returns the text of a policy that is too large for one value.
fn large_policy(generation: &Generation) -> Option<String> {
    let text = generation.policy.as_ref()?.to_canonical();
    (text.len() > LARGEST_POLICY && generation.specs.is_empty()).then_some(text)
}

/// Cuts a text into pieces, each with its hash.
fn pieces_of(text: &str) -> Vec<(Digest, String)> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.floor_char_boundary(LARGEST_LIST));
        pieces.push((Digest::of(piece.as_bytes()), piece.to_owned()));
        rest = after;
    }
    pieces
}

/// Keys on their way to a mirror.
#[derive(Default)]
struct Loading {
    mirror: Mirror,
    generations: BTreeMap<(GroupName, u64), StoredGeneration>,
    texts: BTreeMap<Digest, String>,
}

impl Loading {
    fn read(&mut self, entry: &Entry) -> Result<(), String> {
        let durable = &mut self.mirror.durable;
        let text = || String::from_utf8(entry.value.clone()).map_err(|_| "it is no text".to_owned());
        if entry.key == NEXT_GENERATION {
            let next: u64 = text()?.parse().map_err(|_| "it is no number".to_owned())?;
            durable.last_generation = next.saturating_sub(1);
            return Ok(());
        }
        if entry.key == POLICY {
            self.mirror.policy = Some(text()?);
            return Ok(());
        }
        let Some((kind, name)) = entry.key.split_once('/') else { return Ok(()) };
        match kind {
            "gen" => {
                let (group, number) = name.rsplit_once('/').ok_or("it has no number")?;
                let number = number.parse().map_err(|_| "it has no number".to_owned())?;
                self.generations.insert((parsed(GroupName::parse(group))?, number), value(entry)?);
            }
            "active" => {
                let StoredActive { generation, since, why } = value(entry)?;
                let group = durable.groups.entry(parsed(GroupName::parse(name))?).or_default();
                (group.active, group.since, group.why) = (generation, since, why);
            }
            "spec" => match name.split_once('/') {
                None => {
                    let hash = Digest::parse(name).ok_or("it has no hash")?;
                    let text = text()?;
                    if Digest::of(text.as_bytes()) != hash {
                        return Err("its content has another hash".to_owned());
                    }
                    self.texts.insert(hash, text);
                }
                Some((vm, hash)) => {
                    let hash = Digest::parse(hash).ok_or("it has no hash")?;
                    let StoredSpec { group, spec } = value(entry)?;
                    let read = specs(&entry.key, &format!("[{spec}]"), &group)?;
                    let spec = read.into_iter().next().ok_or("it has no spec")?;
                    self.mirror.old_specs.insert((parsed(VmId::parse(vm))?, hash), spec);
                }
            },
            "commit" => {
                durable.commits.insert(parsed(CommitId::parse(name))?, value(entry)?);
            }
            "place" => {
                durable.placements.insert(parsed(InstanceKey::parse(name))?, value(entry)?);
            }
            "ghost" => {
                durable.ghosts.insert(parsed(InstanceKey::parse(name))?, value(entry)?);
            }
            "volume" => {
                durable.volumes.insert(parsed(InstanceKey::parse(name))?, value(entry)?);
            }
            "worker" => {
                durable.workers.insert(parsed(WorkerName::parse(name))?, value(entry)?);
            }
            "hold" => {
                durable.holds.insert(name.to_owned(), value(entry)?);
            }
            "rollout" => {
                durable.rollouts.insert(parsed(VmId::parse(name))?, value(entry)?);
            }
            "unclaimed" => {
                durable.unclaimed.insert(parsed(VmId::parse(name))?, value(entry)?);
            }
            // Others keep theirs here too.
            _ => {}
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Mirror, UnreadableKey> {
        let mut read: BTreeMap<(Digest, GroupName), Vec<Arc<VmSpec>>> = BTreeMap::new();
        for ((name, number), stored) in self.generations {
            let key = || format!("gen/{name}/{number}");
            let unreadable = |why: String| UnreadableKey { key: key(), why };
            let mut all = Vec::new();
            let mut policy = stored.policy.map(|policy| policy.to_string());
            if stored.policy_in_lists {
                let pieces = stored.specs.iter().map(|hash| {
                    self.texts
                        .get(hash)
                        .map(String::as_str)
                        .ok_or_else(|| unreadable(format!("spec/{hash} is missing")))
                });
                policy = Some(pieces.collect::<Result<String, _>>()?);
            }
            for hash in stored.specs.iter().filter(|_| !stored.policy_in_lists) {
                let known = (*hash, name.clone());
                if !read.contains_key(&known) {
                    let text =
                        self.texts.get(hash).ok_or_else(|| unreadable(format!("spec/{hash} is missing")))?;
                    let some = specs(&format!("spec/{hash}"), text, &name).map_err(unreadable)?;
                    read.insert(known.clone(), some);
                }
                all.extend(read.get(&known).into_iter().flatten().cloned());
            }
            let policy = policy.map(|policy| FleetFile::from_canonical(&key(), &policy));
            let policy = policy.transpose().map_err(|problems| unreadable(first(&problems)))?;
            let generation = Generation {
                number,
                commit: stored.commit,
                intent_hash: stored.intent_hash,
                specs_hash: stored.specs_hash,
                specs: all,
                policy: policy.map(Arc::new),
                waits: stored.waits,
            };
            self.mirror.lists.insert((name.clone(), number), stored.specs);
            self.mirror.durable.groups.entry(name).or_default().stored.insert(number, generation);
        }
        for (name, group) in &self.mirror.durable.groups {
            if let Some(active) = group.active.filter(|number| !group.stored.contains_key(number)) {
                let why = format!("its generation {active} is missing");
                return Err(UnreadableKey { key: format!("active/{name}"), why });
            }
        }
        let Mirror { durable, old_specs, .. } = &mut self.mirror;
        durable.specs = specs_of(&durable.groups, old_specs);
        Ok(self.mirror)
    }
}

fn parsed<T, E: std::fmt::Display>(result: Result<T, E>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

fn value<T: for<'de> Deserialize<'de>>(entry: &Entry) -> Result<T, String> {
    serde_json::from_slice(&entry.value).map_err(|error| error.to_string())
}

fn first(problems: &Diagnostics) -> String {
    problems.0.first().map(|problem| problem.message.clone()).unwrap_or_default()
}

fn specs(name: &str, text: &str, group: &GroupName) -> Result<Vec<Arc<VmSpec>>, String> {
    let mut problems = Diagnostics::default();
    let source = Source { name: name.into(), text: text.into() };
    let mut read = read_specs(&source, &mut problems);
    if problems.has_errors() {
        return Err(first(&problems));
    }
    read.iter_mut().for_each(|spec| spec.group = group.clone());
    Ok(read.into_iter().map(Arc::new).collect())
}

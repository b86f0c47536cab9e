//! Whether a publication becomes a generation: the whole of it, or nothing.
//!
//! Checked in a fixed order: what is broken, what was there before, what is late, whose number it is; then what waits for
//! approval or for a suspension to end. Everything that is wrong is told at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use stead_model::fleet::policy::Guard;
use stead_model::fleet::state::{Generation, Outcome, Problem, Publication, Verdict};
use stead_model::fleet::{FleetFile, InstanceKey, VmSpec};
use stead_model::plan::Digest;
use stead_model::{GroupName, VmId};

use super::canon::{intent_hash, policy_hash, specs_hash};

#[cfg(test)]
mod tests;

/// The most VMs of one group.
pub const MOST_SPECS: usize = 100_000;

/// What a publication is compared with.
#[derive(Clone, Debug)]
pub struct Standing<'a> {
    /// The group's newest stored generation.
    pub highest: Option<&'a Generation>,
    /// The group's active generation.
    pub active: Option<&'a Generation>,
    /// Which group has which VM, of the other groups.
    pub taken: &'a BTreeMap<VmId, GroupName>,
    /// The number reserved for the publication's commit.
    pub reserved: Option<u64>,
    /// The hash of specs that this commit had before, in this group.
    pub known_specs: Option<Digest>,
    /// Instances of the group that run.
    pub running: &'a [InstanceKey],
    /// VMs of other groups that are published with it: what goes there does not stop.
    pub elsewhere: &'a [Arc<VmSpec>],
    /// What `fleet.yaml` says.
    pub fleet: &'a FleetFile,
    /// Whether new generations wait: suspended, or held by an operator.
    pub is_suspended: bool,
}

/// Returns what becomes of a publication.
pub fn accept(standing: &Standing<'_>, message: &Publication) -> Verdict {
    let number = |generation: Option<&Generation>| generation.map_or(0, |generation| generation.number);
    let verdict = |outcome, problems| Verdict {
        outcome,
        problems,
        active: number(standing.active),
        highest: number(standing.highest),
    };
    let problems = problems_of(standing, message);
    if !problems.is_empty() {
        return verdict(Outcome::Invalid, problems);
    }
    if let Some(highest) = standing.highest {
        if message.generation == highest.number {
            if message.intent_hash == highest.intent_hash {
                return verdict(Outcome::Duplicate, Vec::new());
            }
            let problem = conflict(message, "the same generation with another content is stored already");
            return verdict(Outcome::Conflict, vec![problem]);
        }
        if message.generation < highest.number {
            return verdict(Outcome::Stale, Vec::new());
        }
    }
    if standing.reserved != Some(message.generation) {
        let problem = conflict(message, "this generation is not reserved for this commit");
        return verdict(Outcome::Conflict, vec![problem]);
    }
    if let Some(problem) = guard(standing, message) {
        return verdict(Outcome::Held, vec![problem]);
    }
    let outcome = if standing.is_suspended { Outcome::Suspended } else { Outcome::Accepted };
    let active = if outcome == Outcome::Accepted { message.generation } else { number(standing.active) };
    Verdict { outcome, problems: Vec::new(), active, highest: message.generation }
}

fn conflict(message: &Publication, why: &str) -> Problem {
    Problem {
        code: "generation-conflict".to_owned(),
        message: format!("{why}: {} for {}", message.generation, message.commit),
        subject: message.group.to_string(),
    }
}

/// Returns everything that is broken.
fn problems_of(standing: &Standing<'_>, message: &Publication) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut add = |code: &str, message: String, subject: String| {
        problems.push(Problem { code: code.to_owned(), message, subject });
    };
    let is_fleet = message.group == GroupName::fleet();
    let specs = match &message.policy {
        Some(policy) => policy_hash(policy),
        None => specs_hash(message.specs.iter().map(AsRef::as_ref)),
    };
    if is_fleet != message.policy.is_some() || (is_fleet && !message.specs.is_empty()) {
        add(
            "bad-group",
            "the group `fleet` has a policy and no VMs, others have none".to_owned(),
            message.group.to_string(),
        );
    }
    // What is no VM has no hash.
    if specs != message.specs_hash && message.broken.is_empty() {
        let text = format!("specsHash is {specs}, not {}", message.specs_hash);
        add("specs-hash", text, message.group.to_string());
    }
    let intent = intent_hash(&message.commit, &message.group, &message.specs_hash);
    if intent != message.intent_hash {
        let text = format!("intentHash is {intent}, not {}", message.intent_hash);
        add("intent-hash", text, message.group.to_string());
    }
    if message.specs.len() > MOST_SPECS {
        let text = format!("{} VMs; at most {MOST_SPECS} are in a group", message.specs.len());
        add("too-many-specs", text, message.group.to_string());
    }
    let mut seen: BTreeMap<&VmId, u32> = BTreeMap::new();
    for id in message.ids() {
        *seen.entry(id).or_default() += 1;
        if let Some(other) = standing.taken.get(id) {
            let text = format!("`{id}` is a VM of group `{other}` and of group `{}`", message.group);
            add("duplicate-id", text, format!("{id}.id"));
        }
    }
    for spec in &message.specs {
        if spec.group != message.group {
            let text = format!("it is of group `{}`, and published with `{}`", spec.group, message.group);
            add("wrong-group", text, format!("{}.group", spec.id));
        }
        for (field, artifact) in spec.artifacts() {
            if !artifact.is_resolved() {
                add("not-built", "its bits are not known".to_owned(), format!("{}.{field}", spec.id));
            }
        }
        if spec.singleton && spec.replicas > 1 {
            let text = format!("a singleton has at most one instance, not {}", spec.replicas);
            add("conflict", text, format!("{}.singleton", spec.id));
        }
    }
    for (id, _) in seen.into_iter().filter(|(_, count)| *count > 1) {
        add("duplicate-id", format!("`{id}` is there twice"), format!("{id}.id"));
    }
    if let Some(known) = standing.known_specs
        && known != message.specs_hash
        && standing.fleet.policy.require_same_specs
    {
        let text = format!("this commit had specsHash {known} before, and has {} now", message.specs_hash);
        add("evaluation-not-deterministic", text, message.group.to_string());
    }
    problems.extend(message.broken.iter().flat_map(|vm| vm.problems.iter().cloned()));
    problems.sort();
    problems
}

/// Returns why a publication waits for approval.
fn guard(standing: &Standing<'_>, message: &Publication) -> Option<Problem> {
    if standing.fleet.approve.contains(&message.specs_hash) || message.policy.is_some() {
        return None;
    }
    let entry = standing.fleet.group(&message.group);
    let had_some = standing.active.is_some_and(|active| !active.specs.is_empty());
    let advice = format!("; to let it pass, put `{}` into `approve` of fleet.yaml", message.specs_hash);
    if message.specs.is_empty() && !entry.allow_empty && !entry.removed {
        let what = if had_some { "the group would become empty" } else { "the group is empty" };
        return Some(Problem {
            code: "empty-set".to_owned(),
            message: format!("{what}{advice}"),
            subject: message.group.to_string(),
        });
    }
    let stops = stops(standing.running, &message.specs, standing.elsewhere);
    let running = standing.running.len();
    let Guard { max_stop_percent, min_instances } = standing.fleet.policy.guard;
    let is_much = stops as u64 * 100 > u64::from(max_stop_percent) * running as u64;
    if is_much && running >= min_instances as usize {
        return Some(Problem {
            code: "too-many-stops".to_owned(),
            message: format!(
                "{stops} of {running} running instances would stop, more than {max_stop_percent} %{advice}"
            ),
            subject: message.group.to_string(),
        });
    }
    None
}

/// Returns how many running instances would disappear. Replacements do not count, nor does what goes elsewhere.
pub(super) fn stops(running: &[InstanceKey], specs: &[Arc<VmSpec>], elsewhere: &[Arc<VmSpec>]) -> usize {
    let specs = elsewhere.iter().chain(specs);
    let replicas: BTreeMap<&VmId, u32> = specs.map(|spec| (&spec.id, spec.replicas)).collect();
    running.iter().filter(|key| replicas.get(&key.vm).is_none_or(|count| key.ordinal >= *count)).count()
}

//! A master whose state is lost begins anew: what runs is what the workers say.
//!
//! First it collects: every worker reports everything it has, and nobody gets an assignment, so that everything runs on.
//! Then placements and numbers are those that were reported, the numbers raised above the highest. What the VMs *are* only
//! the publisher knows, so until every group it tells of was published again nothing is placed, released or stopped. A
//! mark in the store keeps all of this true over a restart.

use std::collections::{BTreeMap, BTreeSet};

use stead_engine::fleet::cluster::Cluster;
use stead_model::fleet::state::{InstanceState, MoveReason, Placement};
use stead_model::fleet::{InstanceKey, Millis};
use stead_model::{GroupName, WorkerName};

use super::Rebuild;
use super::campaign::EPOCH;
use crate::api::PipelineReport;
use crate::store::{Entry, Put};

/// Where it is written that a master begins anew.
pub(super) const MARK: &str = "meta/rebuild";

const COLLECTING: &str = "collecting";
const CLAIMING: &str = "claiming";

/// Where a master that begins anew is.
pub(super) struct Rebuilding {
    phase: Phase,
}

enum Phase {
    /// Workers report.
    Collecting { enrolled: BTreeSet<WorkerName>, until: Millis },
    /// The publisher publishes again; these are its groups.
    Claiming { groups: Option<BTreeSet<GroupName>> },
}

/// What a step has to store, and whether it was the last.
pub(super) struct Step {
    pub(super) puts: Vec<Put>,
    pub(super) is_over: bool,
}

impl Rebuilding {
    /// Returns where to begin: asked for, or not finished by the leader before.
    pub(super) fn begin(asked: Option<&Rebuild>, entries: &[Entry], now: Millis) -> Option<Self> {
        let mark = entries.iter().find(|entry| entry.key == MARK).map(|entry| entry.value.as_slice());
        if mark == Some(CLAIMING.as_bytes()) {
            return Some(Self { phase: Phase::Claiming { groups: None } });
        }
        // A store that has generations is not lost.
        let is_empty = !entries.iter().any(|entry| entry.key.starts_with("gen/"));
        let asked = asked.filter(|_| is_empty).cloned().or_else(|| mark.map(|_| Rebuild::default()))?;
        let patience = u64::try_from(asked.patience.as_millis()).unwrap_or(u64::MAX);
        let enrolled = asked.enrolled.into_iter().collect();
        Some(Self { phase: Phase::Collecting { enrolled, until: now.saturating_add(patience) } })
    }

    pub(super) fn mark(&self) -> Put {
        let value = match self.phase {
            Phase::Collecting { .. } => COLLECTING,
            Phase::Claiming { .. } => CLAIMING,
        };
        Put { key: MARK.to_owned(), value: value.into(), lease: None }
    }

    pub(super) fn is_collecting(&self) -> bool {
        match self.phase {
            Phase::Collecting { .. } => true,
            Phase::Claiming { .. } => false,
        }
    }

    /// Says what is waited for.
    pub(super) fn missing(&self, cluster: &Cluster) -> String {
        match &self.phase {
            Phase::Collecting { enrolled, .. } => {
                let is_silent =
                    |name: &&WorkerName| cluster.ears.get(*name).is_none_or(|ear| !ear.is_complete);
                let silent: Vec<&str> = enrolled.iter().filter(is_silent).map(WorkerName::as_str).collect();
                match silent.as_slice() {
                    [] => "workers report".to_owned(),
                    silent => format!("workers that were not heard yet: {}", few(silent)),
                }
            }
            Phase::Claiming { groups: None } => "the publisher, which has not said what there is".to_owned(),
            Phase::Claiming { groups: Some(groups) } => {
                let is_missing = |name: &&GroupName| {
                    cluster.durable.groups.get(*name).is_none_or(|group| group.active.is_none())
                };
                let missing: Vec<&str> = groups.iter().filter(is_missing).map(GroupName::as_str).collect();
                format!("groups that were not published again yet: {}", few(&missing))
            }
        }
    }

    /// Hears which groups there are.
    pub(super) fn note(&mut self, report: &PipelineReport) {
        if let Phase::Claiming { groups } = &mut self.phase
            && !report.groups.is_empty()
        {
            *groups = Some(report.groups.iter().map(|group| group.group.clone()).collect());
        }
    }

    /// Goes on as far as it can.
    pub(super) fn step(&mut self, cluster: &mut Cluster, now: Millis) -> Step {
        let goes_on = Step { puts: Vec::new(), is_over: false };
        match &self.phase {
            Phase::Collecting { enrolled, until } => {
                let heard = |name: &WorkerName| cluster.ears.get(name).is_some_and(|ear| ear.is_complete);
                let all_heard = !enrolled.is_empty() && enrolled.iter().all(heard);
                if !all_heard && now < *until {
                    return goes_on;
                }
                // Who is enrolled and was not heard is a worker all the same.
                enrolled.iter().for_each(|name| cluster.enrol(name));
                take_reports(cluster, now);
                self.phase = Phase::Claiming { groups: None };
                let epoch = cluster.epoch.to_string().into_bytes();
                let puts = vec![self.mark(), Put { key: EPOCH.to_owned(), value: epoch, lease: None }];
                Step { puts, is_over: false }
            }
            Phase::Claiming { groups } => {
                let is_active = |name: &GroupName| {
                    cluster.durable.groups.get(name).is_some_and(|group| group.active.is_some())
                };
                let is_over = groups.as_ref().is_some_and(|groups| groups.iter().all(is_active));
                if is_over {
                    settle(cluster, now);
                }
                Step { is_over, ..goes_on }
            }
        }
    }
}

/// Returns the first of many names.
fn few(names: &[&str]) -> String {
    let shown = names.iter().take(10).copied().collect::<Vec<_>>().join(", ");
    if names.len() > 10 { format!("{shown} and {} more", names.len() - 10) } else { shown }
}

/// Lets the scheduler know what runs where, now that it knows what there is.
fn settle(cluster: &mut Cluster, now: Millis) {
    let mut durable = cluster.durable.clone();
    // What must not run twice and was seen nowhere may run where nobody has been heard.
    let silent: BTreeSet<WorkerName> =
        cluster.ears.iter().filter(|(_, ear)| !ear.is_complete).map(|(name, _)| name.clone()).collect();
    for spec in cluster.desired().filter(|spec| spec.stops_first() && !silent.is_empty()) {
        let keys = (0..spec.replicas).map(|ordinal| InstanceKey::new(&spec.id, ordinal));
        for key in keys.filter(|key| !cluster.durable.placements.contains_key(key)) {
            durable.ghosts.entry(key).or_default().extend(silent.iter().cloned());
        }
    }
    for (key, placement) in &mut durable.placements {
        if !cluster.desired_spec(&key.vm).is_some_and(|spec| spec.is_bound()) {
            placement.volumes_on = None;
        }
    }
    cluster.restore(durable, now);
}

/// Takes placements and numbers from what the workers reported.
fn take_reports(cluster: &mut Cluster, now: Millis) {
    let mut found: BTreeMap<InstanceKey, Vec<(bool, WorkerName, Placement)>> = BTreeMap::new();
    let (mut generation, mut revision) = (cluster.durable.last_generation, 0);
    for (worker, ear) in &cluster.ears {
        generation = generation.max(ear.seen_generation);
        revision = revision.max(ear.seen_revision);
        for (key, sighting) in &ear.seen {
            let seen = &sighting.seen;
            let Some(hash) = seen.vm_hash.filter(|_| seen.state != InstanceState::Absent) else { continue };
            let placement = Placement {
                worker: Some(worker.clone()),
                released: hash,
                generation: ear.seen_generation,
                since: now.saturating_sub(seen.uptime_ms),
                reason: MoveReason::New,
                leaving: BTreeSet::new(),
                volumes_on: Some(worker.clone()),
            };
            found.entry(key.clone()).or_default().push((!seen.ready, worker.clone(), placement));
        }
    }
    for (key, mut copies) in found {
        // Of two copies the one that is ready stays.
        copies.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        let leaving: BTreeSet<WorkerName> =
            copies.iter().skip(1).map(|(_, worker, _)| worker.clone()).collect();
        if let Some((_, _, placement)) = copies.into_iter().next() {
            cluster.durable.placements.insert(key, Placement { leaving, ..placement });
        }
    }
    cluster.durable.last_generation = generation;
    cluster.epoch = cluster.epoch.max((revision >> 32) + 1);
    let durable = cluster.durable.clone();
    cluster.restore(durable, now);
}

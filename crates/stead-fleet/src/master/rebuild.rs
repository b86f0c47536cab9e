//! A master whose state is lost begins anew: what runs is what the workers say.
//!
//! First it collects: every worker reports everything it has, and nobody gets an assignment, so that everything runs on.
//! Then placements and numbers are those that were reported, the numbers raised above the highest. What the VMs *are* only
//! the publisher knows. Once it is known what policy there is, groups that are published again go on, and what is of others
//! stays as it is (`stead_engine::fleet::cluster`). A mark in the store keeps all of this true over a restart.

use std::collections::BTreeSet;

use stead_engine::fleet::cluster::Cluster;
use stead_model::fleet::Millis;
use stead_model::{GroupName, WorkerName};

use super::Rebuild;
use crate::api::PipelineReport;
use crate::store::{COLLECTING, Entry, Put, REBUILD};

/// Where it is written that a master begins anew.
pub(super) const MARK: &str = REBUILD;

const CLAIMING: &str = "claiming";
const GOING_ON: &str = "going-on";

/// Where a master that begins anew is.
pub(super) struct Rebuilding {
    phase: Phase,
}

enum Phase {
    /// Workers report.
    Collecting { enrolled: BTreeSet<WorkerName>, until: Millis },
    /// The publisher publishes again; these are its groups. What is active goes on once the policy is known.
    Claiming { groups: Option<BTreeSet<GroupName>>, goes_on: bool },
}

/// What follows from where a master that begins anew is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nobody gets an assignment.
    Wait,
    /// What is active goes on.
    GoOn,
    /// Everything is known again.
    Over,
}

impl Rebuilding {
    /// Returns where to begin: asked for, or not finished by the leader before.
    pub(super) fn begin(
        asked: Option<&Rebuild>,
        entries: &[Entry],
        cluster: &mut Cluster,
        now: Millis,
    ) -> Option<Self> {
        let mark = entries.iter().find(|entry| entry.key == MARK).map(|entry| entry.value.as_slice());
        let goes_on = mark == Some(GOING_ON.as_bytes());
        if goes_on || mark == Some(CLAIMING.as_bytes()) {
            cluster.begin_rebuild(now);
            return Some(Self { phase: Phase::Claiming { groups: None, goes_on } });
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
            Phase::Claiming { goes_on: false, .. } => CLAIMING,
            Phase::Claiming { goes_on: true, .. } => GOING_ON,
        };
        Put { key: MARK.to_owned(), value: value.into(), lease: None }
    }

    pub(super) fn is_collecting(&self) -> bool {
        match self.phase {
            Phase::Collecting { .. } => true,
            Phase::Claiming { .. } => false,
        }
    }

    /// Whether workers get assignments: those whose reports were taken.
    pub(super) fn goes_on(&self) -> bool {
        match self.phase {
            Phase::Collecting { .. } => false,
            Phase::Claiming { goes_on, .. } => goes_on,
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
            Phase::Claiming { groups: None, goes_on: false } => {
                "the publisher, which has not said what there is".to_owned()
            }
            Phase::Claiming { goes_on: false, .. } => {
                "the group `fleet`, which says how everything is".to_owned()
            }
            Phase::Claiming { groups, goes_on: true } => {
                let unclaimed = cluster.durable.unclaimed.values().filter_map(|one| one.group.as_ref());
                let told = groups.iter().flatten().filter(|name| !is_active(cluster, name));
                let missing: BTreeSet<&str> = unclaimed.chain(told).map(GroupName::as_str).collect();
                let missing: Vec<&str> = missing.into_iter().collect();
                let unheard: Vec<&str> = cluster.unheard().map(WorkerName::as_str).collect();
                match (missing.as_slice(), unheard.as_slice()) {
                    ([], []) => "the publisher, which has not said what there is".to_owned(),
                    ([], unheard) => format!("workers that were not heard yet: {}", few(unheard)),
                    (missing, _) => format!("groups that were not published again yet: {}", few(missing)),
                }
            }
        }
    }

    /// Hears which groups there are.
    pub(super) fn note(&mut self, report: &PipelineReport) {
        if let Phase::Claiming { groups, .. } = &mut self.phase
            && !report.groups.is_empty()
        {
            *groups = Some(report.groups.iter().map(|group| group.group.clone()).collect());
        }
    }

    /// Goes on as far as it can.
    pub(super) fn step(&mut self, cluster: &mut Cluster, now: Millis) -> Step {
        if let Phase::Collecting { enrolled, until } = &self.phase {
            let heard = |name: &WorkerName| cluster.ears.get(name).is_some_and(|ear| ear.is_complete);
            let all_heard = !enrolled.is_empty() && enrolled.iter().all(heard);
            if !all_heard && now < *until {
                return Step::Wait;
            }
            // Who is enrolled and was not heard is a worker all the same.
            enrolled.iter().for_each(|name| cluster.enrol(name));
            cluster.begin_rebuild(now);
            self.phase = Phase::Claiming { groups: None, goes_on: false };
        }
        let Phase::Claiming { groups, goes_on } = &mut self.phase else { return Step::Wait };
        // Without the policy a worker has other labels, and what runs on it may have to go.
        let fleet = GroupName::fleet();
        *goes_on |=
            is_active(cluster, &fleet) || groups.as_ref().is_some_and(|groups| !groups.contains(&fleet));
        let has_all =
            groups.as_ref().is_some_and(|groups| groups.iter().all(|name| is_active(cluster, name)));
        match *goes_on {
            false => Step::Wait,
            true if cluster.is_rebuilt(has_all) => Step::Over,
            true => Step::GoOn,
        }
    }
}

fn is_active(cluster: &Cluster, name: &GroupName) -> bool {
    cluster.durable.groups.get(name).is_some_and(|group| group.active.is_some())
}

/// Returns the first of many names.
fn few(names: &[&str]) -> String {
    let shown = names.iter().take(10).copied().collect::<Vec<_>>().join(", ");
    if names.len() > 10 { format!("{shown} and {} more", names.len() - 10) } else { shown }
}

//! A status as everybody sees it: what the engine says of the cluster, with names, times and what is on its way to it.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use stead_engine::fleet::cluster::Cluster;
use stead_engine::fleet::converge::{
    ActiveStatus, BrakeStatus, Counts, HeldStatus, InstanceStatus, REBUILDING, RolloutStatus, State, Status,
    WorkerStatus, is_published, newest, status,
};
use stead_engine::fleet::rollout::Phase;
use stead_model::fleet::state::Hold;
use stead_model::fleet::{Code, CommitId, Millis};
use stead_model::time::Timestamp;
use stead_model::{GroupName, VmId, WorkerName};

use super::campaign::LeaderRecord;
use crate::api::{GroupPipeline, PipelineReport, StatusFilter};

/// What the owner adds.
pub(super) struct Stage {
    pub(super) fleet: String,
    pub(super) seq: u64,
    pub(super) now: Millis,
    pub(super) store_kind: &'static str,
    pub(super) pipeline: Option<PipelineReport>,
    /// What a state that is rebuilt waits for.
    pub(super) rebuilding: Option<String>,
}

/// What a status shows.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) seq: u64,
    fleet: String,
    at: Millis,
    pub(super) core: Status,
    pub(super) leader: LeaderRecord,
    store_kind: &'static str,
    /// Why what is shown may be old.
    pub(super) stale: Option<String>,
    /// What a state that is rebuilt waits for.
    rebuilding: Option<String>,
    pub(super) pipeline: Option<PipelineReport>,
    groups: Vec<GroupShown>,
    holds: Vec<HoldShown>,
}

/// A group.
#[derive(Clone, Debug, Serialize)]
struct GroupShown {
    group: GroupName,
    head: Option<CommitId>,
    evaluated: Option<Evaluated>,
    active: Option<ActiveStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<HeldStatus>,
    suspended: bool,
    why: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

impl GroupShown {
    /// Whether its newest commit failed, or waits for somebody.
    fn needs_somebody(&self) -> bool {
        self.held.as_ref().is_some_and(HeldStatus::needs_somebody)
            || self.evaluated.as_ref().is_some_and(|evaluated| evaluated.error.is_some())
    }
}

/// How far a part of the fleet is.
struct Part {
    state: State,
    percent: u32,
    counts: Counts,
}

/// How far the newest commit of a group came.
#[derive(Clone, Debug, Serialize)]
struct Evaluated {
    commit: CommitId,
    stage: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    contains: Vec<CommitId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vm: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<String>,
}

/// Something that an operator froze.
#[derive(Clone, Debug, Serialize)]
struct HoldShown {
    id: String,
    target: String,
    #[serde(serialize_with = "moment")]
    until: Millis,
    by: String,
    reason: String,
}

pub(super) fn moment<S: Serializer>(at: &Millis, serializer: S) -> Result<S::Ok, S::Error> {
    serializer
        .collect_str(&Timestamp::from_micros(i64::try_from(at.saturating_mul(1000)).unwrap_or(i64::MAX)))
}

/// The whole document.
#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    fleet: &'a str,
    seq: u64,
    #[serde(serialize_with = "moment")]
    at: Millis,
    state: State,
    convergence_percent: u32,
    generation: u64,
    commit: Option<CommitId>,
    leader: Leader<'a>,
    store: Store<'a>,
    watcher: Watcher<'a>,
    groups: Vec<&'a GroupShown>,
    counts: Counts,
    workers: Vec<&'a WorkerStatus>,
    instances: Vec<&'a InstanceStatus>,
    rollouts: Vec<&'a RolloutStatus>,
    brake: &'a BrakeStatus,
    holds: &'a [HoldShown],
}

#[derive(Serialize)]
struct Leader<'a> {
    name: &'a str,
    epoch: u64,
}

#[derive(Serialize)]
struct Store<'a> {
    kind: &'a str,
    state: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<Code>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

#[derive(Serialize)]
struct Watcher<'a> {
    #[serde(rename = "ref")]
    reference: &'a str,
    state: &'a str,
    last_poll: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rejected: Option<&'a CommitId>,
}

impl Shown {
    pub(super) fn new(
        cluster: &Cluster,
        stage: Stage,
        (leader, stale): (LeaderRecord, Option<String>),
    ) -> Self {
        let failed = stage.pipeline.as_ref().is_some_and(has_failed);
        let mut core = status(cluster, failed);
        let is_coming = stage.pipeline.as_ref().is_some_and(|report| is_coming(report, &core));
        if is_coming && core.state == State::Converged {
            core.state = State::Converging;
        }
        let groups = groups(&core, stage.pipeline.as_ref());
        let holds = cluster.durable.holds.values().map(shown_hold).collect();
        Self {
            seq: stage.seq,
            fleet: stage.fleet,
            at: stage.now,
            core,
            leader,
            store_kind: stage.store_kind,
            stale,
            rebuilding: stage.rebuilding,
            pipeline: stage.pipeline,
            groups,
            holds,
        }
    }

    /// Returns the part that `filter` asks for, as JSON.
    pub(super) fn to_json(&self, filter: &StatusFilter) -> String {
        let core = &self.core;
        let of_group: BTreeMap<&VmId, &GroupName> = core
            .instances
            .iter()
            .filter(|_| filter.group.is_some())
            .filter_map(|instance| Some((&instance.key.vm, instance.group.as_ref()?)))
            .collect();
        let has_group =
            |vm: &VmId| filter.group.as_ref().is_none_or(|group| of_group.get(vm) == Some(&group));
        let has_vm = |vm: &VmId| filter.vm.as_ref().is_none_or(|wanted| wanted == vm) && has_group(vm);
        let has_worker =
            |name: Option<&WorkerName>| filter.worker.is_none() || filter.worker.as_ref() == name;
        let groups: Vec<&GroupShown> =
            self.groups.iter().filter(|group| filter.has_group(&group.group)).collect();
        let workers: Vec<&WorkerStatus> =
            core.workers.iter().filter(|worker| has_worker(Some(&worker.id))).collect();
        let instances: Vec<&InstanceStatus> = core
            .instances
            .iter()
            .filter(|instance| has_vm(&instance.key.vm) && has_worker(instance.worker.as_ref()))
            .collect();
        let rollouts: Vec<&RolloutStatus> =
            core.rollouts.iter().filter(|rollout| has_vm(&rollout.vm)).collect();
        let part = if *filter == StatusFilter::default() {
            Part { state: core.state, percent: core.convergence_percent, counts: core.counts }
        } else {
            self.part(filter, &groups, &workers, &instances, &rollouts)
        };
        let (generation, commit) = newest(core.groups.iter().filter(|group| filter.has_group(&group.group)));
        let document = Document {
            schema: 1,
            fleet: &self.fleet,
            seq: self.seq,
            at: self.at,
            state: if self.trouble().is_some() { State::Degraded } else { part.state },
            convergence_percent: part.percent,
            generation,
            commit,
            leader: Leader { name: &self.leader.name, epoch: self.leader.epoch },
            store: self.store(),
            watcher: self.watcher(),
            groups,
            counts: part.counts,
            workers,
            instances,
            rollouts,
            brake: &core.brake,
            holds: &self.holds,
        };
        serde_json::to_string(&document).unwrap_or_default()
    }

    /// Returns how far the part that a filter left is, by what of it can be seen.
    fn part(
        &self,
        filter: &StatusFilter,
        groups: &[&GroupShown],
        workers: &[&WorkerStatus],
        instances: &[&InstanceStatus],
        rollouts: &[&RolloutStatus],
    ) -> Part {
        let counts = Counts::of(instances.iter().copied());
        let percent = counts.percent();
        let is_published =
            is_published(self.core.groups.iter().filter(|group| filter.has_group(&group.group)));
        let is_silent = |worker: &&&WorkerStatus| matches!(worker.state, "lost" | "unknown");
        // A VM is one of a group's; what else becomes of the group is not about it.
        let of_groups = filter.vm.is_none() && filter.worker.is_none();
        let needs_somebody = counts.failed + counts.unschedulable > 0
            || rollouts.iter().any(|rollout| rollout.state == Phase::Held)
            || (filter.worker.is_some() && workers.iter().any(|worker| is_silent(&worker)))
            || (of_groups && groups.iter().any(|group| group.needs_somebody()));
        let is_coming = of_groups && groups.iter().any(|group| group.active.is_none());
        let state = match (needs_somebody, percent) {
            (true, _) => State::Degraded,
            (false, 100) if is_published && !is_coming => State::Converged,
            (false, _) => State::Converging,
        };
        Part { state, percent, counts }
    }

    /// Returns what is wrong with what the master keeps, and how.
    fn trouble(&self) -> Option<(&'static str, Code, &str)> {
        let stale = self.stale.as_deref().map(|why| ("stale", Code::Stale, why));
        stale
            .or_else(|| self.rebuilding.as_deref().map(|why| ("rebuilding", Code::WaitingForAssignment, why)))
    }

    fn store(&self) -> Store<'_> {
        let trouble = self.trouble();
        Store {
            kind: self.store_kind,
            state: trouble.map_or("ok", |(state, _, _)| state),
            code: trouble.map(|(_, code, _)| code),
            message: trouble.map(|(_, code, why)| {
                let advice = if code == Code::Stale { code.advice() } else { REBUILDING };
                format!("{advice} ({why})")
            }),
        }
    }

    fn watcher(&self) -> Watcher<'_> {
        let Some(report) = &self.pipeline else {
            return Watcher { reference: "", state: "unknown", last_poll: None, error: None, rejected: None };
        };
        let watcher = &report.watcher;
        let micros = i64::try_from(watcher.last_poll.saturating_mul(1000)).unwrap_or(i64::MAX);
        Watcher {
            reference: &watcher.reference,
            state: &watcher.state,
            last_poll: (watcher.last_poll > 0).then(|| Timestamp::from_micros(micros).to_string()),
            error: watcher.error.as_deref(),
            rejected: watcher.rejected.as_ref(),
        }
    }
}

/// Whether something is about to be published where nothing was before.
fn is_coming(report: &PipelineReport, core: &Status) -> bool {
    let is_new = |pipeline: &GroupPipeline| {
        pipeline.group != GroupName::fleet()
            && !core.groups.iter().any(|group| group.group == pipeline.group && group.active.is_some())
    };
    report.groups.iter().any(is_new)
}

/// Whether the newest commit failed or was refused before the master, or nobody can know which one that is.
fn has_failed(report: &PipelineReport) -> bool {
    let watcher = &report.watcher;
    let is_unreadable = matches!(watcher.state.as_str(), "unreachable" | "ref-missing");
    is_unreadable || watcher.rejected.is_some() || report.groups.iter().any(|group| group.failure.is_some())
}

fn groups(core: &Status, report: Option<&PipelineReport>) -> Vec<GroupShown> {
    let on_their_way: BTreeMap<&GroupName, &GroupPipeline> =
        report.into_iter().flat_map(|report| &report.groups).map(|group| (&group.group, group)).collect();
    let head = report.and_then(|report| report.watcher.head.clone());
    let mut found: BTreeMap<GroupName, GroupShown> = BTreeMap::new();
    for group in &core.groups {
        let shown = GroupShown {
            group: group.group.clone(),
            head: None,
            evaluated: None,
            active: group.active.clone(),
            held: group.held.clone(),
            suspended: group.suspended,
            why: String::new(),
            notes: group.notes.clone(),
        };
        found.insert(group.group.clone(), shown);
    }
    for name in on_their_way.keys() {
        found.entry((*name).clone()).or_insert_with(|| GroupShown {
            group: (*name).clone(),
            head: None,
            evaluated: None,
            active: None,
            held: None,
            suspended: false,
            why: String::new(),
            notes: Vec::new(),
        });
    }
    for (name, shown) in &mut found {
        let pipeline = on_their_way.get(name);
        shown.head = head.clone().or_else(|| pipeline.map(|pipeline| pipeline.commit.clone()));
        shown.evaluated = pipeline.map(|pipeline| evaluated(pipeline));
        shown.why = why(shown);
    }
    found.into_values().collect()
}

fn evaluated(pipeline: &GroupPipeline) -> Evaluated {
    let failure = pipeline.failure.as_ref();
    let class = failure.and_then(|failure| serde_json::to_value(failure.class).ok());
    Evaluated {
        commit: pipeline.commit.clone(),
        stage: failure.map_or_else(|| pipeline.stage.clone(), |failure| failure.stage.clone()),
        contains: pipeline.contains.clone(),
        class: class.and_then(|class| class.as_str().map(str::to_owned)),
        vm: failure.and_then(|failure| failure.vm.clone()),
        error: failure.map(|failure| failure.error.clone()),
        log: failure.and_then(|failure| failure.log.clone()),
    }
}

/// Says in one sentence where a group is.
fn why(group: &GroupShown) -> String {
    let short = |commit: &CommitId| commit.as_str().get(..12).unwrap_or_default().to_owned();
    if let Some(evaluated) = group.evaluated.as_ref().filter(|evaluated| evaluated.error.is_some()) {
        let (commit, stage) = (short(&evaluated.commit), &evaluated.stage);
        let vm = evaluated.vm.as_ref().map(|vm| format!(" at VM `{vm}`")).unwrap_or_default();
        return format!(
            "commit {commit} failed at `{stage}`{vm}, so the generation before stays; fix it or revert it"
        );
    }
    if let Some(held) = &group.held {
        return format!("generation {} waits: {}", held.generation, held.message);
    }
    let active = group.active.as_ref().map(|active| &active.commit);
    match (&group.evaluated, active) {
        (Some(evaluated), active) if active != Some(&evaluated.commit) => {
            format!("commit {} is on its way: {}", short(&evaluated.commit), evaluated.stage)
        }
        (_, Some(commit)) => format!("commit {} is active", short(commit)),
        (_, None) => "nothing was published yet".to_owned(),
    }
}

fn shown_hold(hold: &Hold) -> HoldShown {
    HoldShown {
        id: hold.id.clone(),
        target: hold.target.to_string(),
        until: hold.until,
        by: hold.by.clone(),
        reason: hold.reason.clone(),
    }
}

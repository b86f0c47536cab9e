//! How far a fleet is from what is wanted: status, percent, and one code for everything that is not there yet.

use std::collections::{BTreeMap, BTreeSet};

use stead_model::fleet::state::{InstanceState, Outcome, Placement, WorkerFacts, WorkerState};
use stead_model::fleet::vm::{Driver, Resources};
use stead_model::fleet::{Code, CommitId, FleetFile, InstanceKey, Millis};
use stead_model::plan::Digest;
use stead_model::{GroupName, VmId, WorkerName};

use super::cluster::{Cluster, Ear, MOVES_TOGETHER, Sighting};
use super::rollout::{Hold, Phase};
use super::schedule::Filter;

mod report;
#[cfg(test)]
mod tests;

pub(super) use report::moment;
pub use report::{
    ActiveStatus, BrakeStatus, Counts, GroupStatus, HeldStatus, InstanceStatus, RolloutStatus, State, Status,
    WorkerStatus,
};

/// What is said of everything while a state that was lost is not whole yet.
pub const REBUILDING: &str = "the master's state was lost and comes from what workers report and the publisher publishes; wait for what is missing";

/// Returns how far `converged` of `desired` and `orphans` is: rounded down, 100 only if exact.
pub fn percent(converged: u32, desired: u32, orphans: u32) -> u32 {
    let total = u64::from(desired) + u64::from(orphans);
    if total == 0 {
        return 100;
    }
    u32::try_from(100 * u64::from(converged) / total).unwrap_or(100)
}

/// Returns the status of a cluster. `head_failed` is whether the newest commit failed or was refused before the master.
pub fn status(cluster: &Cluster, head_failed: bool) -> Status {
    let faces = faces(cluster);
    let mut instances = wanted(cluster, &faces);
    instances.extend(unwanted(cluster));
    let counts = Counts::of(&instances);
    instances.sort_by(|a, b| (&a.key, a.leaving, &a.worker).cmp(&(&b.key, b.leaving, &b.worker)));
    let workers = workers(cluster, &faces);
    let groups = groups(cluster);
    let rollouts = rollouts(cluster);
    let brake = BrakeStatus {
        active: cluster.presence.brake.is_some(),
        message: cluster.presence.brake.map(|brake| {
            let (silent, enrolled) = (brake.silent, brake.enrolled);
            format!(
                "{silent} of {enrolled} workers are silent, so nothing is placed elsewhere; check the network"
            )
        }),
    };
    let percent = counts.percent();
    let needs_somebody = head_failed
        || brake.active
        || counts.failed + counts.unschedulable > 0
        || !cluster.durable.holds.is_empty()
        || groups.iter().any(|group| group.held.as_ref().is_some_and(HeldStatus::needs_somebody))
        || rollouts.iter().any(|rollout| rollout.state == Phase::Held)
        || workers
            .iter()
            .any(|worker| matches!(worker.state, "lost" | "unknown") && !cluster.is_dismissed(&worker.id));
    let (generation, commit) = newest(&groups);
    Status {
        state: match (needs_somebody, percent) {
            (true, _) => State::Degraded,
            (false, 100) if is_published(&groups) => State::Converged,
            (false, _) => State::Converging,
        },
        convergence_percent: percent,
        generation,
        commit,
        groups,
        counts,
        workers,
        instances,
        rollouts,
        brake,
    }
}

/// Returns generation and commit of what machines run: the newest of these groups. A commit may be taken for its
/// `fleet.yaml` alone, which counts only where there is nothing else.
pub fn newest<'g>(groups: impl IntoIterator<Item = &'g GroupStatus>) -> (u64, Option<CommitId>) {
    let active = groups.into_iter().filter_map(|group| Some((!group.is_policy(), group.active.as_ref()?)));
    let newest = active.max_by_key(|(is_run, active)| (*is_run, active.generation));
    newest.map_or((0, None), |(_, active)| (active.generation, Some(active.commit.clone())))
}

/// Whether anything of these groups is there to be run. Before that nobody knows what there should be, and it is not there yet.
pub fn is_published<'g>(groups: impl IntoIterator<Item = &'g GroupStatus>) -> bool {
    groups.into_iter().any(|group| !group.is_policy() && group.active.is_some())
}

impl HeldStatus {
    /// Whether it waits for somebody, and not for a suspension that somebody meant, nor for a group that does.
    pub fn needs_somebody(&self) -> bool {
        ![Code::Suspended.word(), MOVES_TOGETHER].contains(&self.code.as_str())
    }
}

impl GroupStatus {
    /// Whether it is what `fleet.yaml` says, of which nothing runs.
    pub fn is_policy(&self) -> bool {
        self.group == GroupName::fleet()
    }
}

impl Counts {
    /// Returns how far it is.
    pub fn percent(&self) -> u32 {
        percent(self.converged, self.desired, self.orphans)
    }

    /// Returns how many of these instances are what.
    pub fn of<'i>(instances: impl IntoIterator<Item = &'i InstanceStatus>) -> Self {
        let mut counts = Self::default();
        for instance in instances {
            if instance.desired_hash.is_none() {
                let is_unwanted = matches!(instance.code, Some(Code::Orphan | Code::Suspended));
                counts.orphans += u32::from(is_unwanted);
                continue;
            }
            counts.desired += 1;
            match instance.code {
                // What no cache has is as good as what came from one, and what only has no other place is as it should be.
                None | Some(Code::BuiltLocally | Code::DrainBlocked) => counts.converged += 1,
                Some(Code::NoFit | Code::VolumeLocal) if instance.worker.is_none() => {
                    counts.unschedulable += 1;
                }
                Some(code) if is_failure(code) => counts.failed += 1,
                Some(_) => counts.converging += 1,
            }
        }
        counts
    }
}

/// Whether a code means that waiting does not help.
fn is_failure(code: Code) -> bool {
    match code {
        Code::FetchFailed
        | Code::SignatureRejected
        | Code::NarMismatch
        | Code::MissingDependency
        | Code::CrashLoop
        | Code::Exited
        | Code::DriverError
        | Code::DiskPressure
        | Code::Fenced
        | Code::SpecUnsupported
        | Code::VolumeLocal
        | Code::WorkerLost
        | Code::WorkerUnknown => true,
        Code::WaitingForAssignment
        | Code::WaitingForRollout
        | Code::Fetching
        | Code::NoFit
        | Code::Starting
        | Code::NotReady
        | Code::ProcessGone
        | Code::DrainBlocked
        | Code::HeldGeneration
        | Code::Suspended
        | Code::Orphan
        | Code::Foreign
        | Code::Stale
        | Code::BuiltLocally => false,
    }
}

/// What is known of a worker: looked up once for everything that is asked about an instance on it.
#[derive(Clone, Copy, Debug, Default)]
struct Face<'a> {
    ear: Option<&'a Ear>,
    state: Option<WorkerState>,
    facts: Option<&'a WorkerFacts>,
}

impl<'a> Face<'a> {
    fn of(cluster: &'a Cluster, worker: &WorkerName) -> Self {
        Self {
            ear: cluster.ears.get(worker),
            state: cluster.presence.states.get(worker).copied(),
            facts: cluster.durable.workers.get(worker).and_then(Option::as_ref),
        }
    }

    /// Returns what makes an instance of `driver` there: that, or what stands in for it.
    fn driver(&self, driver: Driver) -> &'static str {
        match self.facts.and_then(|facts| facts.mapped.get(&driver)) {
            None => driver.word(),
            Some(Driver::CloudHypervisor) => "cloud-hypervisor (mapped)",
            Some(Driver::Qemu) => "qemu (mapped)",
            Some(Driver::Oci) => "oci (mapped)",
            Some(Driver::Sandbox) => "sandbox (mapped)",
        }
    }

    fn sighting(&self, key: &InstanceKey) -> Option<&'a Sighting> {
        self.ear.and_then(|ear| ear.seen.get(key))
    }
}

fn faces(cluster: &Cluster) -> BTreeMap<&WorkerName, Face<'_>> {
    cluster.ears.keys().map(|name| (name, Face::of(cluster, name))).collect()
}

/// Where an instance is, and who has it.
#[derive(Clone, Copy, Debug)]
struct Spot<'a> {
    key: &'a InstanceKey,
    placement: Option<&'a Placement>,
    face: Face<'a>,
    sighting: Option<&'a Sighting>,
}

impl<'a> Spot<'a> {
    fn new(key: &'a InstanceKey, placement: Option<&'a Placement>, face: Face<'a>) -> Self {
        Self { key, placement, face, sighting: face.sighting(key) }
    }

    fn worker(&self) -> Option<&'a WorkerName> {
        self.placement.and_then(|placement| placement.worker.as_ref())
    }
}

/// Returns the instances that should be.
fn wanted(cluster: &Cluster, faces: &BTreeMap<&WorkerName, Face<'_>>) -> Vec<InstanceStatus> {
    let count: usize = cluster.desired().map(|spec| spec.replicas as usize).sum();
    let mut found = Vec::with_capacity(count);
    for spec in cluster.desired() {
        let Some(desired) = cluster.target(&spec.id) else { continue };
        // Placements lie side by side in the order of ordinals.
        let first = InstanceKey::new(&spec.id, 0);
        let placed = cluster.durable.placements.range(first..).take_while(|(key, _)| key.vm == spec.id);
        let mut placed = placed.peekable();
        for ordinal in 0..spec.replicas {
            let key = InstanceKey::new(&spec.id, ordinal);
            let placement = placed.next_if(|(key, _)| key.ordinal == ordinal).map(|(_, placement)| placement);
            let worker = placement.and_then(|placement| placement.worker.as_ref());
            let face = worker.and_then(|worker| faces.get(worker)).copied().unwrap_or_default();
            let spot = Spot::new(&key, placement, face);
            let why = code_at(cluster, &spot, desired);
            found.push(InstanceStatus {
                group: Some(spec.group.clone()),
                desired_hash: Some(desired),
                generation: placement.map_or(0, |placement| placement.generation),
                driver: Some(face.driver(spec.runtime.driver)),
                drifted: is_drifted(&spot),
                code: why.as_ref().map(|(code, _)| *code),
                message: why.map(|(_, message)| message),
                ..shown(cluster, &key, worker.cloned(), face, spot.sighting)
            });
        }
    }
    found
}

/// Returns how long an instance has been running: its worker says so once, and time goes on while it is heard.
fn uptime(cluster: &Cluster, face: Face<'_>, sighting: &Sighting) -> Millis {
    if sighting.seen.uptime_ms == 0 {
        return 0;
    }
    let is_present = face.state.is_some_and(|state| state.is_present());
    let heard = face.ear.and_then(|ear| ear.heard.at);
    let until = if is_present { cluster.now } else { heard.unwrap_or_default() };
    sighting.seen.uptime_ms + until.saturating_sub(sighting.at)
}

fn shown(
    cluster: &Cluster,
    key: &InstanceKey,
    worker: Option<WorkerName>,
    face: Face<'_>,
    sighting: Option<&Sighting>,
) -> InstanceStatus {
    let uptime_ms = sighting.map(|sighting| uptime(cluster, face, sighting));
    let seen = sighting.map(|sighting| &sighting.seen);
    InstanceStatus {
        key: key.clone(),
        group: None,
        worker,
        desired_hash: None,
        observed_hash: seen.and_then(|seen| seen.vm_hash),
        state: seen.map_or(InstanceState::Absent, |seen| seen.state),
        ready: seen.is_some_and(|seen| seen.ready),
        uptime_ms: uptime_ms.unwrap_or_default(),
        generation: 0,
        attempts: seen.map_or(0, |seen| seen.attempts),
        drifted: false,
        leaving: false,
        driver: None,
        code: None,
        message: None,
    }
}

/// Whether a worker that has its newest assignment sees something else than it is to run.
fn is_drifted(spot: &Spot<'_>) -> bool {
    let (Some(ear), Some(placement)) = (spot.face.ear, spot.placement) else { return false };
    let has_applied = ear.is_complete && ear.revision > 0 && ear.seen_revision == ear.revision;
    let is_as_assigned = spot.sighting.is_some_and(|sighting| {
        sighting.seen.state.is_live() && sighting.seen.vm_hash == Some(placement.released)
    });
    has_applied && !is_as_assigned
}

/// Returns why an instance is not as it should be, and what to do; none if it is.
pub(super) fn code_of(
    cluster: &Cluster,
    key: &InstanceKey,
    desired: Digest,
    placement: Option<&Placement>,
) -> Option<(Code, String)> {
    let worker = placement.and_then(|placement| placement.worker.as_ref());
    let face = worker.map(|worker| Face::of(cluster, worker)).unwrap_or_default();
    code_at(cluster, &Spot::new(key, placement, face), desired)
        .filter(|(code, _)| *code != Code::BuiltLocally)
}

fn code_at(cluster: &Cluster, spot: &Spot<'_>, desired: Digest) -> Option<(Code, String)> {
    let say = |code: Code, more: &str| {
        let advice = code.advice();
        Some((code, if more.is_empty() { advice.to_owned() } else { [advice, " (", more, ")"].concat() }))
    };
    let key = spot.key;
    let frozen = cluster.scheduler().is_frozen(&key.vm);
    let Some(worker) = spot.worker() else {
        if frozen {
            return say(Code::Suspended, "");
        }
        let refusals = cluster.refusals(key).unwrap_or_default();
        let only_volume = refusals.filters.get(&Filter::Volume).is_some_and(|count| *count > 0)
            && refusals.filters.keys().all(|filter| *filter == Filter::Volume || *filter == Filter::State);
        return say(if only_volume { Code::VolumeLocal } else { Code::NoFit }, &refusals.text);
    };
    match spot.face.state {
        Some(WorkerState::Unknown) | None => return say(Code::WorkerUnknown, worker.as_str()),
        Some(WorkerState::Lost) => return say(Code::WorkerLost, worker.as_str()),
        Some(
            WorkerState::Ready
            | WorkerState::Late
            | WorkerState::Cordoned
            | WorkerState::Draining
            | WorkerState::Suspended,
        ) => {}
    }
    let released = spot.placement.map(|placement| placement.released);
    let seen = spot.sighting.map(|sighting| &sighting.seen);
    let is_right = seen.is_some_and(|seen| seen.vm_hash == Some(desired) && seen.ready);
    if is_right {
        let is_blocked = cluster.scheduler().is_drain_blocked(key);
        let is_built_there = seen.is_some_and(|seen| seen.code == Some(Code::BuiltLocally));
        return match (is_blocked, is_built_there) {
            (true, _) => say(Code::DrainBlocked, worker.as_str()),
            (false, true) => say(Code::BuiltLocally, worker.as_str()),
            (false, false) => None,
        };
    }
    let told = seen.and_then(|seen| Some((seen.code?, &seen.detail)));
    // Of what is to be replaced, where it came from says nothing.
    if let Some((code, detail)) = told.filter(|(code, _)| *code != Code::BuiltLocally) {
        return say(code, detail);
    }
    // Asked of few: most run what they should.
    let is_kept = || frozen || cluster.fleet().worker(worker).suspend;
    if released != Some(desired) {
        let row = cluster.rollouts.get(&key.vm);
        let phase = row.and_then(|row| row.decision.as_ref()).map(|decision| decision.phase);
        return match phase {
            Some(Phase::Held) => {
                let hold = row.and_then(|row| row.memory.hold.as_ref());
                Some((Code::WaitingForRollout, hold.map(stopped).unwrap_or_default()))
            }
            Some(Phase::Paused) if frozen => say(Code::Suspended, ""),
            Some(Phase::Paused) => Some((Code::Suspended, PAUSED.to_owned())),
            Some(Phase::Running | Phase::Done) | None if is_kept() => say(Code::Suspended, ""),
            Some(Phase::Running | Phase::Done) | None => say(Code::WaitingForRollout, ""),
        };
    }
    // It may run what it should, and is not replaced.
    if seen.and_then(|seen| seen.vm_hash).is_some_and(|hash| hash != desired) && is_kept() {
        return say(Code::Suspended, "");
    }
    match seen.map(|seen| seen.state) {
        None | Some(InstanceState::Absent) => say(Code::WaitingForAssignment, worker.as_str()),
        Some(InstanceState::Fetching | InstanceState::Fetched) => say(Code::Fetching, ""),
        Some(InstanceState::Starting) => say(Code::Starting, ""),
        Some(InstanceState::Running) if seen.is_some_and(|seen| seen.vm_hash == Some(desired)) => {
            say(Code::NotReady, "")
        }
        Some(InstanceState::Running | InstanceState::Stopping | InstanceState::Orphan) => {
            say(Code::WaitingForAssignment, worker.as_str())
        }
        Some(InstanceState::Failed) => say(Code::ProcessGone, ""),
    }
}

/// What is said of a rollout that its VM pauses.
const PAUSED: &str = "the rollout is paused; set `rollout.pause: false`";

/// Says at which instance a rollout stopped, why, and what to do.
fn stopped(hold: &Hold) -> String {
    let (instance, code) = (&hold.instance, hold.code);
    format!("the rollout stopped at {instance} ({code}); fix it or revert the commit")
}

/// Returns what an instance of a VM asks for.
fn asked_for(cluster: &Cluster, vm: &VmId) -> Resources {
    let asks = cluster.desired_spec(vm).map(|spec| spec.resources);
    asks.or_else(|| cluster.durable.unclaimed.get(vm).map(|one| one.takes)).unwrap_or_default()
}

/// Returns the instances that are seen and should not be, what a freeze keeps of them, and copies that leave.
fn unwanted(cluster: &Cluster) -> Vec<InstanceStatus> {
    let mut found = Vec::new();
    for (worker, ear) in &cluster.ears {
        let face = Face::of(cluster, worker);
        // What a worker had that is lost, nobody sees and nobody can remove.
        let is_lost = face.state == Some(WorkerState::Lost);
        if is_lost || cluster.is_dismissed(worker) {
            continue;
        }
        for (key, sighting) in &ear.seen {
            let placement = cluster.durable.placements.get(key);
            let is_here = placement.is_some_and(|placement| placement.worker.as_ref() == Some(worker));
            let unclaimed = cluster.durable.unclaimed.get(&key.vm);
            let is_wanted = || cluster.desired_spec(&key.vm).is_some_and(|spec| key.ordinal < spec.replicas);
            let is_told_of = is_here && unclaimed.is_none() && is_wanted();
            if is_told_of || sighting.seen.state == InstanceState::Absent {
                continue;
            }
            let generation = placement.map_or(0, |placement| placement.generation);
            if let Some(unclaimed) = unclaimed {
                let group = unclaimed.group.as_ref();
                let of =
                    group.map_or_else(|| "of no known group".to_owned(), |group| format!("group `{group}`"));
                found.push(InstanceStatus {
                    group: unclaimed.group.clone(),
                    generation,
                    code: Some(Code::WaitingForAssignment),
                    message: Some(format!("it runs on as it is; {REBUILDING} ({of})")),
                    ..shown(cluster, key, Some(worker.clone()), face, Some(sighting))
                });
                continue;
            }
            let leaving = placement.is_some_and(|placement| placement.leaving.contains(worker));
            // Nobody wants it any more, and nothing of its VM may be stopped.
            let is_kept = placement.is_some() && cluster.scheduler().is_frozen(&key.vm) && !is_wanted();
            let code = match sighting.seen.code {
                _ if is_kept => Some(Code::Suspended),
                _ if leaving => None,
                Some(Code::Foreign) => Some(Code::Foreign),
                _ => Some(Code::Orphan),
            };
            let runs =
                sighting.seen.vm_hash.and_then(|hash| cluster.durable.specs.get(&(key.vm.clone(), hash)));
            let spec = runs.or_else(|| cluster.released_spec(key, placement?));
            found.push(InstanceStatus {
                group: spec.map(|spec| spec.group.clone()),
                generation,
                driver: spec.map(|spec| face.driver(spec.runtime.driver)),
                leaving,
                code,
                message: code.map(|code| code.advice().to_owned()),
                ..shown(cluster, key, Some(worker.clone()), face, Some(sighting))
            });
        }
    }
    found
}

fn workers(cluster: &Cluster, faces: &BTreeMap<&WorkerName, Face<'_>>) -> Vec<WorkerStatus> {
    let mut allocated: BTreeMap<&WorkerName, (u32, Resources)> = BTreeMap::new();
    // Instances of a VM lie side by side: what it asks for is looked up once.
    let mut last: Option<(&VmId, Resources, Option<Digest>)> = None;
    for (key, placement) in &cluster.durable.placements {
        if let Some(worker) = &placement.worker {
            let entry = allocated.entry(worker).or_default();
            entry.0 += 1;
            let (_, asks, target) = match last.filter(|(vm, _, _)| **vm == key.vm) {
                Some(known) => known,
                None => *last.insert((&key.vm, asked_for(cluster, &key.vm), cluster.target(&key.vm))),
            };
            let face = faces.get(worker).copied().unwrap_or_default();
            let holds = target
                .and_then(|target| cluster.holds_beside(key, placement.released, target, face.sighting(key)));
            entry.1 = entry.1.plus(asks.larger(holds.unwrap_or_default()));
        }
    }
    let mut found: Vec<WorkerStatus> = cluster
        .durable
        .workers
        .iter()
        .map(|(name, facts)| {
            let state = cluster.shown_state(name);
            let (instances, allocated) = allocated.get(name).copied().unwrap_or_default();
            let code = match state {
                WorkerState::Unknown => Some(Code::WorkerUnknown),
                WorkerState::Lost => Some(Code::WorkerLost),
                WorkerState::Suspended => Some(Code::Suspended),
                WorkerState::Ready | WorkerState::Late | WorkerState::Cordoned | WorkerState::Draining => {
                    let is_so = |fits: fn(&WorkerFacts) -> bool| facts.as_ref().is_some_and(fits);
                    let foreign = is_so(|facts| !facts.foreign.is_empty()).then_some(Code::Foreign);
                    is_so(|facts| facts.disk_pressure).then_some(Code::DiskPressure).or(foreign)
                }
            };
            let foreign = facts.iter().flat_map(|facts| &facts.foreign).map(String::as_str);
            WorkerStatus {
                id: name.clone(),
                state: state.word(),
                since: cluster.ears.get(name).map_or(0, |ear| ear.state_since),
                seen_generation: cluster.ears.get(name).map_or(0, |ear| ear.seen_generation),
                instances,
                capacity: facts.as_ref().map(|facts| facts.capacity),
                allocated,
                used: facts.as_ref().map(|facts| facts.used).unwrap_or_default(),
                labels: cluster.worker_view(name, state).map(|view| view.labels).unwrap_or_default(),
                drivers: facts.as_ref().map(|facts| facts.drivers.clone()).unwrap_or_default(),
                code,
                message: code.map_or_else(
                    // Nothing is wrong with it, and still it does without something.
                    || facts.as_ref().map(|facts| facts.notes.join("; ")).filter(|notes| !notes.is_empty()),
                    |code| {
                        let advice = code.advice();
                        let names = || foreign.collect::<Vec<_>>().join(", ");
                        let is_foreign = code == Code::Foreign;
                        Some(if is_foreign { format!("{advice} ({})", names()) } else { advice.to_owned() })
                    },
                ),
            }
        })
        .collect();
    for name in cluster.fleet().workers.keys().filter(|name| !cluster.durable.workers.contains_key(*name)) {
        found.push(WorkerStatus {
            id: name.clone(),
            state: "absent",
            since: 0,
            seen_generation: 0,
            instances: 0,
            capacity: None,
            allocated: Resources::default(),
            used: Resources::default(),
            labels: cluster.fleet().worker(name).labels,
            drivers: BTreeSet::new(),
            code: None,
            message: None,
        });
    }
    found.sort_by(|a, b| a.id.cmp(&b.id));
    found
}

fn groups(cluster: &Cluster) -> Vec<GroupStatus> {
    let fleet = cluster.fleet();
    cluster
        .durable
        .groups
        .iter()
        .map(|(name, group)| GroupStatus {
            group: name.clone(),
            active: group.active().map(|active| ActiveStatus {
                generation: active.number,
                commit: active.commit.clone(),
                intent_hash: active.intent_hash,
                specs_hash: active.specs_hash,
                since: group.since,
            }),
            held: group.highest().and_then(|highest| {
                let code = match highest.waits? {
                    Outcome::Held if highest.specs.is_empty() => "empty-set",
                    Outcome::Held => "too-many-stops",
                    Outcome::Suspended => Code::Suspended.word(),
                    Outcome::Accepted
                    | Outcome::Duplicate
                    | Outcome::Stale
                    | Outcome::Conflict
                    | Outcome::Invalid => return None,
                };
                let why = group.why.as_ref();
                let advice = || match highest.waits {
                    Some(Outcome::Held) => Code::HeldGeneration.advice().to_owned(),
                    _ => Code::Suspended.advice().to_owned(),
                };
                let (stops, running) = cluster.stops_of(name, highest);
                Some(HeldStatus {
                    generation: highest.number,
                    commit: highest.commit.clone(),
                    code: why.map_or_else(|| code.to_owned(), |why| why.code.clone()),
                    stops,
                    running,
                    message: why.map_or_else(advice, |why| why.message.clone()),
                    approve: highest.specs_hash,
                })
            }),
            suspended: fleet.group(name).suspend,
            notes: if *name == GroupName::fleet() { notes(cluster, &fleet) } else { Vec::new() },
        })
        .collect()
}

/// Returns what `fleet.yaml` says of VMs and groups that are not there. What runs is, though nobody wants it any more.
fn notes(cluster: &Cluster, fleet: &FleetFile) -> Vec<String> {
    // Most name nothing, and a fleet may be large.
    if fleet.suspend.vms.is_empty() && fleet.groups.is_empty() {
        return Vec::new();
    }
    let groups = cluster.durable.groups.iter().filter(|(name, _)| **name != GroupName::fleet());
    let wanted = groups.clone().flat_map(|(_, group)| [group.active(), group.highest()]).flatten();
    let wanted = wanted.flat_map(|generation| &generation.specs).map(|spec| &spec.id);
    let vms = wanted.chain(cluster.durable.placements.keys().map(|key| &key.vm)).collect();
    fleet.unmatched(&vms, &groups.map(|(name, _)| name).collect())
}

fn rollouts(cluster: &Cluster) -> Vec<RolloutStatus> {
    let rows = cluster.rollouts.iter();
    rows.filter_map(|(vm, row)| {
        let decision = row.decision.as_ref()?;
        let why = match (decision.phase, &row.memory.hold) {
            (Phase::Held, Some(hold)) => Some((hold.code, stopped(hold))),
            (Phase::Paused, _) if cluster.scheduler().is_frozen(vm) => {
                Some((Code::Suspended, Code::Suspended.advice().to_owned()))
            }
            (Phase::Paused, _) => Some((Code::Suspended, PAUSED.to_owned())),
            (Phase::Held | Phase::Running | Phase::Done, _) => None,
        };
        Some(RolloutStatus {
            vm: vm.clone(),
            from: row.memory.from,
            to: row.memory.target,
            updated: decision.updated,
            total: decision.total,
            state: decision.phase,
            code: why.as_ref().map(|(code, _)| *code),
            message: why.map(|(_, message)| message),
        })
    })
    .collect()
}

//! What a commit would do, before anybody merges it: evaluated as a publisher would, decided as a master would.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use stead_engine::fleet::canon::vm_hash;
use stead_engine::fleet::plan::{Plan, Proposal, plan_together, refusals};
use stead_engine::fleet::ties::ties;
use stead_model::diagnostic::{Place, Source as Text, suggest};
use stead_model::fleet::artifact::StorePath;
use stead_model::fleet::fleet_file::WorkerEntry;
use stead_model::fleet::state::{
    Homeless, MoveReason, Problem, Snapshot, SnapshotGroup, SnapshotPlacement, WorkerState,
};
use stead_model::fleet::vm::{Resources, read_specs};
use stead_model::fleet::{Artifact, CommitId, FleetFile, InstanceKey, VmSpec};
use stead_model::plan::Digest;
use stead_model::{Diagnostic, Diagnostics, GroupName, VmId, WorkerName};

use super::artifacts::Artifacts;
use super::failure::{Cause, Failure, Stage};
use super::git::{Git, GitError};
use super::nix::{Nix, fill_in, placed};
use super::site::SiteWork;
use super::source::{Chosen, Source};
use super::{PublishError, Settings};

/// What is planned, on what.
#[derive(Clone, Debug)]
pub struct PlanRequest {
    /// What is planned.
    pub what: Planned,
    /// Of a list of specs: the commit it stands for.
    pub commit: Option<CommitId>,
    /// Of a list of specs: the group of all of them. Of a revision: only this group.
    pub group: Option<GroupName>,
    /// Whether images are built, so that bits are compared and not paths alone.
    pub build: bool,
    /// The state of the fleet.
    pub snapshot: Snapshot,
}

/// What is planned.
#[derive(Clone, Debug)]
pub enum Planned {
    /// A revision of the repository, as git names it.
    Revision(String),
    /// A list of VMs in JSON.
    Specs {
        /// What to call it in messages.
        name: String,
        /// The text.
        text: String,
    },
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The repository or a program cannot be used.
    #[error(transparent)]
    Settings(#[from] PublishError),
    /// The revision has no such group, nor has the fleet.
    #[error("there is no group `{group}`; {help}")]
    UnknownGroup {
        /// The group that was asked for.
        group: GroupName,
        /// What could have been meant.
        help: String,
    },
    /// The revision cannot be evaluated or built.
    #[error("{error}")]
    Evaluation {
        /// What went wrong, with the file and line that the tool gave.
        error: String,
    },
    /// Specs or `fleet.yaml` are invalid.
    #[error("{error}")]
    Invalid {
        /// Everything that is wrong, in words.
        error: String,
        /// The same one by one.
        problems: Diagnostics,
    },
}

impl PlanError {
    /// Returns the exit code of `stead fleet plan`.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Settings(_) | Self::Evaluation { .. } => 1,
            Self::UnknownGroup { .. } => 2,
            Self::Invalid { .. } => 3,
        }
    }
}

impl From<Failure> for PlanError {
    fn from(failure: Failure) -> Self {
        let error = failure.error;
        match failure.cause {
            Cause::Invalid => Self::Invalid { error, problems: failure.problems },
            Cause::Work | Cause::Away | Cause::Refused(_) => Self::Evaluation { error },
        }
    }
}

impl From<GitError> for PlanError {
    fn from(error: GitError) -> Self {
        Self::Evaluation { error: error.to_string() }
    }
}

/// The groups of a commit.
struct Proposed {
    commit: CommitId,
    groups: BTreeMap<GroupName, Vec<Arc<VmSpec>>>,
    /// What `fleet.yaml` would say.
    fleet: Option<Arc<FleetFile>>,
    /// Whether bits are known.
    is_exact: bool,
}

/// Returns what publishing something right now would do. Nothing is published, put or copied; the revision is read from the
/// repository of `settings`, which needs not be pushed where that is a path.
///
/// # Errors
/// If it cannot be evaluated, or is invalid.
pub async fn plan(settings: &Settings, request: PlanRequest) -> Result<Plan, PlanError> {
    let proposed = match &request.what {
        Planned::Specs { name, text } => of_specs(name, text, &request)?,
        Planned::Revision(revision) => of_revision(settings, revision, &request).await?,
    };
    let name = match &request.what {
        Planned::Specs { name, .. } => name,
        Planned::Revision(revision) => revision,
    };
    check(name, &request.snapshot, &proposed)?;
    let wanted = request.group.unwrap_or_else(GroupName::default_group);
    let mut found = plan_groups(request.snapshot, &proposed, &wanted);
    found.exact &= proposed.is_exact;
    Ok(found)
}

/// Refuses what a master would refuse.
fn check(name: &str, snapshot: &Snapshot, proposed: &Proposed) -> Result<(), PlanError> {
    let commit = &proposed.commit;
    let proposals: Vec<Proposal<'_>> =
        proposed.groups.iter().map(|(group, specs)| Proposal { commit, group, specs }).collect();
    let problems = refusals(snapshot, &proposals).into_iter().map(|problem| refused(name, problem));
    let problems = Diagnostics(problems.collect());
    if problems.has_errors() {
        return Err(Failure::invalid(Stage::Submitted, &problems).into());
    }
    Ok(())
}

fn refused(name: &str, problem: Problem) -> Diagnostic {
    let code = match problem.code.as_str() {
        "bad-group" => "fleet/bad-group",
        "conflict" => "fleet/conflict",
        "duplicate-id" => "fleet/duplicate-id",
        "too-many-specs" => "fleet/too-many-specs",
        "wrong-group" => "fleet/wrong-group",
        _ => "input/invalid",
    };
    Diagnostic::error(code, Place::Named(name.to_owned()), problem.message).path(problem.subject)
}

fn of_specs(name: &str, text: &str, request: &PlanRequest) -> Result<Proposed, PlanError> {
    let source = Text { name: name.into(), text: text.into() };
    let mut problems = Diagnostics::default();
    let specs = read_specs(&source, &mut problems);
    if problems.has_errors() {
        return Err(Failure::invalid(Stage::Evaluated, &problems.sorted()).into());
    }
    let mut groups: BTreeMap<GroupName, Vec<Arc<VmSpec>>> = BTreeMap::new();
    groups.extend(request.group.clone().map(|group| (group, Vec::new())));
    for mut spec in specs {
        // What says nothing is of the group that is asked for; what says another is refused with it.
        if let Some(group) = request.group.as_ref().filter(|_| spec.group == GroupName::default_group()) {
            spec.group = group.clone();
        }
        let group = request.group.clone().unwrap_or_else(|| spec.group.clone());
        groups.entry(group).or_default().push(Arc::new(spec));
    }
    if groups.is_empty() {
        groups.insert(GroupName::default_group(), Vec::new());
    }
    let nobody = || CommitId::parse(&"0".repeat(40)).expect("forty digits are a commit");
    let commit = request.commit.clone().unwrap_or_else(nobody);
    Ok(Proposed { commit, groups, fleet: None, is_exact: true })
}

async fn of_revision(
    settings: &Settings,
    revision: &str,
    request: &PlanRequest,
) -> Result<Proposed, PlanError> {
    let failed = |source| PublishError::File { what: "make", path: PathBuf::from("a directory"), source };
    let scratch = tempfile::tempdir().map_err(failed)?;
    let git = Git::open(&settings.file, scratch.path().join("clone.git"))?.at_hand().await?;
    let commit = git.resolve(revision).await?;
    let source = Source::read(&git, &commit, &settings.file).await?;
    let known: BTreeSet<GroupName> =
        request.snapshot.groups.iter().map(|group| group.group.clone()).collect();
    let mut is_exact = true;
    let mut groups: BTreeMap<GroupName, Vec<VmSpec>> = match source.evaluator {
        Chosen::Site => {
            let artifacts = settings.file.artifacts.as_deref().map(Artifacts::open).transpose();
            let artifacts = artifacts.map_err(PublishError::Settings)?;
            let mut work = SiteWork::evaluate(&git, &source).await?;
            work.measure(&source, artifacts.as_ref()).await?;
            BTreeMap::from([(GroupName::default_group(), work.vms().to_vec())])
        }
        Chosen::Nix => {
            let (log, evaluations) = (scratch.path().join("log"), scratch.path().to_owned());
            let nix = Nix {
                settings: placed(&settings.file.nix)?,
                evaluations,
                cache_home: scratch.path().join("nix"),
                flake: git.flake(&commit, &settings.file.subdir),
                version: Arc::new(OnceLock::new()),
            };
            let mut found = BTreeMap::new();
            for group in nix.groups(&log, &known).await? {
                let mut vms = nix.vms(&log, &group, &source.fleet, known.contains(&group)).await?;
                if request.build {
                    nix.build(&log, &group).await?;
                    nix.resolve(&log, &mut vms).await?;
                } else {
                    is_exact &= !take_known_bits(&mut vms, &request.snapshot);
                }
                found.insert(group, vms);
            }
            found
        }
    };
    for group in known.iter().filter(|group| **group != GroupName::fleet()) {
        groups.entry(group.clone()).or_default();
    }
    if let Some(only) = &request.group {
        if !groups.contains_key(only) {
            let help = suggest(only.as_str(), groups.keys().map(GroupName::as_str));
            return Err(PlanError::UnknownGroup { group: only.clone(), help });
        }
        groups.retain(|group, _| group == only);
    }
    let has_fleet = source.fleet_text.is_some() || known.contains(&GroupName::fleet());
    let groups =
        groups.into_iter().map(|(group, vms)| (group, vms.into_iter().map(Arc::new).collect())).collect();
    Ok(Proposed { commit, groups, fleet: has_fleet.then_some(source.fleet), is_exact })
}

/// Fills in the bits that the fleet runs of the same paths, and returns whether there are paths at all: they alone are
/// compared.
fn take_known_bits(vms: &mut [VmSpec], snapshot: &Snapshot) -> bool {
    let mut known: BTreeMap<StorePath, String> = BTreeMap::new();
    for spec in snapshot.groups.iter().flat_map(|group| &group.specs) {
        for (_, artifact) in spec.artifacts() {
            if let Artifact::Store { path, nar_hash, .. } = artifact {
                known.insert(path.clone(), nar_hash.clone());
            }
        }
    }
    vms.iter_mut().for_each(|vm| fill_in(vm, &known));
    vms.iter().any(|vm| vm.artifacts().iter().any(|(_, artifact)| artifact.store_path().is_some()))
}

/// Returns the state of a fleet as it would be under another `fleet.yaml`.
fn under(snapshot: &Snapshot, fleet: &FleetFile) -> Snapshot {
    let mut changed = Snapshot { fleet: fleet.clone(), ..snapshot.clone() };
    for worker in &mut changed.workers {
        let (old, new) = (snapshot.fleet.worker(&worker.id), fleet.worker(&worker.id));
        worker.state = state_under(worker.state, &old, &new);
        match snapshot.now.own_labels.get(&worker.id) {
            Some(own) if fleet.policy.trust_worker_labels => worker.labels.clone_from(own),
            Some(_) => worker.labels.clear(),
            // A file that was written by hand does not say whose labels these are.
            None => worker.labels.retain(|key, value| old.labels.get(key) != Some(value)),
        }
        worker.labels.extend(new.labels);
        let given = &mut worker.allocatable;
        given.cpu_milli = given.cpu_milli.saturating_add(old.reserve.cpu_milli);
        given.mem_mib = given.mem_mib.saturating_add(old.reserve.mem_mib);
        *given = given.without(new.reserve);
    }
    changed
}

/// Returns the state of a worker: what only the old file says is undone, what a hold or silence says stays.
fn state_under(state: WorkerState, old: &WorkerEntry, new: &WorkerEntry) -> WorkerState {
    let is_undone = match state {
        WorkerState::Unknown | WorkerState::Lost => return state,
        WorkerState::Ready | WorkerState::Late => false,
        WorkerState::Cordoned => old.cordon,
        WorkerState::Draining => old.drain,
        WorkerState::Suspended => old.suspend,
    };
    if new.suspend {
        WorkerState::Suspended
    } else if new.drain {
        WorkerState::Draining
    } else if new.cordon {
        WorkerState::Cordoned
    } else if is_undone {
        WorkerState::Ready
    } else {
        state
    }
}

/// Plans what `fleet.yaml` alone does, which is published first, then one group after the other, each on what the one
/// before would leave; the hashes are those of `wanted`.
fn plan_groups(snapshot: Snapshot, proposed: &Proposed, wanted: &GroupName) -> Plan {
    let before: BTreeSet<InstanceKey> =
        snapshot.placements.iter().map(|placement| placement.instance.clone()).collect();
    let mut state = snapshot;
    let mut alone = None;
    if let Some(fleet) = &proposed.fleet {
        state = under(&state, fleet);
        if let Some(active) = state.groups.first().cloned() {
            let specs: Vec<Arc<VmSpec>> = active.specs.into_iter().map(Arc::new).collect();
            let proposal = Proposal { commit: &proposed.commit, group: &active.group, specs: &specs };
            let found = plan_together(&state, &proposal, &[]);
            advance(&mut state, &[proposal], &found);
            alone = Some(found);
        }
    }
    let mut whole: Option<Plan> = None;
    for list in lists(&state, proposed, wanted) {
        let Some((first, rest)) = list.split_first() else { continue };
        let found = plan_together(&state, first, rest);
        advance(&mut state, &list, &found);
        whole = Some(match whole {
            None => found,
            Some(whole) => join(whole, found),
        });
    }
    let mut whole = whole.unwrap_or_else(|| {
        plan_together(&state, &Proposal { commit: &proposed.commit, group: wanted, specs: &[] }, &[])
    });
    if let Some(alone) = alone {
        whole.add = both(alone.add, whole.add, Clone::clone);
        whole.remove = both(alone.remove, whole.remove, Clone::clone);
        whole.replace = both(alone.replace, whole.replace, |change| change.instance.clone());
        whole.moves = both(alone.moves, whole.moves, |change| change.instance.clone());
    }
    let moved = whole.moves.iter().map(|change| &change.instance);
    let replaced = whole.replace.iter().map(|change| &change.instance);
    let changed: BTreeSet<&InstanceKey> = moved.chain(replaced).chain(&whole.remove).collect();
    let unchanged = whole.assign.keys().filter(|key| before.contains(*key) && !changed.contains(key)).count();
    whole.unchanged = u32::try_from(unchanged).unwrap_or(u32::MAX);
    let vms = state.groups.iter().flat_map(|group| &group.specs).map(|spec| &spec.id);
    let vms = vms.chain(state.placements.iter().map(|placement| &placement.instance.vm)).collect();
    let groups = state.groups.iter().map(|group| &group.group).collect();
    whole.notes = proposed.fleet.iter().flat_map(|fleet| fleet.unmatched(&vms, &groups)).collect();
    whole
}

/// Returns the groups in lists that are published at once, the wanted one first.
fn lists<'a>(state: &Snapshot, proposed: &'a Proposed, wanted: &GroupName) -> Vec<Vec<Proposal<'a>>> {
    let vms =
        state.groups.iter().flat_map(|one| one.specs.iter().map(|spec| (spec.id.clone(), one.group.clone())));
    let ids = |specs: &[Arc<VmSpec>]| specs.iter().map(|spec| spec.id.clone()).collect();
    let next = proposed.groups.iter().map(|(group, specs)| (group.clone(), ids(specs)));
    let mut lists = ties(&vms.collect(), &next.collect());
    lists.sort_by_key(|list| !list.contains(wanted));
    let commit = &proposed.commit;
    let proposals = |list: BTreeSet<GroupName>| {
        let groups = proposed.groups.iter().filter(|(group, _)| list.contains(*group));
        let mut found: Vec<Proposal<'a>> =
            groups.map(|(group, specs)| Proposal { commit, group, specs }).collect();
        found.sort_by_key(|one| one.group != wanted);
        found
    };
    lists.into_iter().map(proposals).collect()
}

/// Puts groups in place, as their plan says: what it moves leaves a copy behind for now, what it makes anew still takes what
/// it had, and what it found no place for waits.
fn advance(state: &mut Snapshot, groups: &[Proposal<'_>], plan: &Plan) {
    let old: BTreeMap<VmId, VmSpec> = state
        .groups
        .iter()
        .flat_map(|group| &group.specs)
        .map(|spec| (spec.id.clone(), spec.clone()))
        .collect();
    let takes = |instance: &InstanceKey| old.get(&instance.vm).map(|spec| spec.resources).unwrap_or_default();
    for change in &plan.moves {
        leave(state, &change.instance, &change.from, takes(&change.instance));
        state.now.rebalanced += u32::from(change.reason == MoveReason::Rebalance);
    }
    for change in &plan.replace {
        let runs = state.now.runs.entry(change.instance.clone()).or_default();
        runs.entry(change.from).or_insert_with(|| takes(&change.instance));
    }
    state.groups.retain(|active| groups.iter().all(|one| active.group != *one.group));
    state.groups.extend(groups.iter().map(|one| SnapshotGroup {
        group: one.group.clone(),
        generation: 0,
        commit: one.commit.clone(),
        specs: one.specs.iter().map(|spec| VmSpec::clone(spec)).collect(),
    }));
    let specs = state.groups.iter().flat_map(|group| &group.specs);
    let hashes: BTreeMap<VmId, Digest> = specs.map(|spec| (spec.id.clone(), vm_hash(spec))).collect();
    let placed = std::mem::take(&mut state.placements);
    let mut left = Vec::new();
    for placement in placed.iter().filter(|placement| !plan.assign.contains_key(&placement.instance)) {
        let key = &placement.instance;
        if let Some(hash) = hashes.get(&key.vm).filter(|_| !plan.remove.contains(key)) {
            let tied = !placement.volumes.is_empty();
            let volumes_on = tied.then(|| placement.worker.clone());
            let leaving = BTreeSet::from([placement.worker.clone()]);
            let vm_hash = placement.vm_hash.unwrap_or(*hash);
            left.push((key.clone(), placement.worker.clone()));
            state.now.homeless.insert(key.clone(), Homeless { vm_hash, volumes_on, leaving, tied });
        }
    }
    for (key, worker) in left {
        leave(state, &key, &worker, takes(&key));
    }
    state.now.homeless.retain(|key, _| !plan.assign.contains_key(key) && !plan.remove.contains(key));
    let volumes: BTreeMap<&InstanceKey, &Vec<String>> =
        placed.iter().map(|placement| (&placement.instance, &placement.volumes)).collect();
    let replaced: BTreeSet<&InstanceKey> = plan.replace.iter().map(|change| &change.instance).collect();
    let ran: BTreeMap<&InstanceKey, Digest> =
        placed.iter().filter_map(|placement| Some((&placement.instance, placement.vm_hash?))).collect();
    state.placements = plan
        .assign
        .iter()
        .map(|(instance, worker)| SnapshotPlacement {
            instance: instance.clone(),
            worker: worker.clone(),
            // What is not made anew keeps what it runs.
            vm_hash: ran
                .get(instance)
                .filter(|_| !replaced.contains(instance))
                .or_else(|| hashes.get(&instance.vm))
                .copied(),
            volumes: volumes.get(instance).map(|volumes| (*volumes).clone()).unwrap_or_default(),
        })
        .collect();
}

/// Leaves a copy of an instance on a worker for now.
fn leave(state: &mut Snapshot, key: &InstanceKey, worker: &WorkerName, takes: Resources) {
    let entry = state.now.leaving.entry(worker.clone()).or_default();
    *entry = entry.plus(takes);
    state.now.copies.entry(key.clone()).or_default().insert(worker.clone(), takes);
}

fn both<T, K: Ord>(mut first: Vec<T>, next: Vec<T>, key: impl Fn(&T) -> K) -> Vec<T> {
    first.extend(next);
    first.sort_by_key(|item| key(item));
    first
}

/// Returns both plans as one, of which `first` gives the hashes.
fn join(first: Plan, next: Plan) -> Plan {
    Plan {
        exact: first.exact && next.exact,
        vms: both(first.vms, next.vms, |vm| vm.id.clone()),
        assign: next.assign,
        groups: both(first.groups, next.groups, Clone::clone),
        add: both(first.add, next.add, Clone::clone),
        remove: both(first.remove, next.remove, Clone::clone),
        replace: both(first.replace, next.replace, |change| change.instance.clone()),
        moves: both(first.moves, next.moves, |change| change.instance.clone()),
        // The last one knows of everything that has no place.
        unschedulable: next.unschedulable,
        held: first.held.or(next.held),
        ..first
    }
}

#[cfg(test)]
mod tests {
    use stead_model::fleet::labels::Labels;
    use stead_model::fleet::state::{Allocatable, WorkerView};

    use super::*;

    fn request(text: &str, group: Option<&str>) -> PlanRequest {
        let name = WorkerName::parse("w1").unwrap();
        let allocatable = Allocatable { cpu_milli: 4000, mem_mib: 4096, disk_mib: None };
        PlanRequest {
            what: Planned::Specs { name: "specs".to_owned(), text: text.to_owned() },
            commit: None,
            group: group.map(|group| GroupName::parse(group).unwrap()),
            build: false,
            snapshot: Snapshot { workers: vec![WorkerView::new(name, allocatable)], ..Snapshot::default() },
        }
    }

    fn proposed(request: &PlanRequest) -> Proposed {
        let Planned::Specs { name, text } = &request.what else { panic!("specs") };
        of_specs(name, text, request).unwrap()
    }

    /// Groups share the workers: what the first takes the second does not get.
    #[test]
    fn groups_are_planned_on_what_is_left() {
        let vm = |id: &str, group: &str, mem: u32| {
            format!(
                r#"{{"id":"{id}","group":"{group}","resources":{{"cpuMilli":100,"memMiB":{mem}}},"runtime":{{"driver":"sandbox"}}}}"#
            )
        };
        let text = format!("[{},{}]", vm("web", "default", 3000), vm("edge", "edge", 3000));
        let request = request(&text, None);
        let found = plan_groups(request.snapshot.clone(), &proposed(&request), &GroupName::default_group());
        let names = |keys: &[InstanceKey]| keys.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names(&found.add), ["web/0"]);
        assert_eq!(
            found.unschedulable.iter().map(|row| row.instance.to_string()).collect::<Vec<_>>(),
            ["edge/0"]
        );
        assert_eq!((found.vms.len(), found.groups.len(), found.unchanged), (2, 2, 0));
        let again =
            plan_groups(request.snapshot.clone(), &proposed(&request), &GroupName::parse("edge").unwrap());
        assert_eq!(names(&again.add), ["edge/0"], "whose hashes are wanted goes first");
    }

    /// A worker's own labels count again, or no more, as the new file says.
    #[test]
    fn labels_of_workers_count_as_the_new_file_says() {
        let mut snapshot = request("[]", None).snapshot;
        let labels = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<Labels>()
        };
        let name = snapshot.workers[0].id.clone();
        let say = |given: &[(&str, &str)], trust: bool| {
            let entry = WorkerEntry { labels: labels(given), ..WorkerEntry::default() };
            let mut fleet = FleetFile { workers: [(name.clone(), entry)].into(), ..FleetFile::default() };
            fleet.policy.trust_worker_labels = trust;
            fleet
        };
        snapshot.fleet = say(&[("disk", "ssd")], true);
        snapshot.workers[0].labels = labels(&[("disk", "ssd"), ("zone", "a")]);
        snapshot.now.own_labels = [(name.clone(), labels(&[("disk", "hdd"), ("zone", "a")]))].into();
        let under = |fleet: FleetFile| under(&snapshot, &fleet).workers[0].labels.clone();
        assert_eq!(under(say(&[], true)), labels(&[("disk", "hdd"), ("zone", "a")]));
        assert_eq!(under(say(&[("disk", "ssd")], false)), labels(&[("disk", "ssd")]));
        assert_eq!(under(say(&[], false)), labels(&[]));
    }

    /// `fleet.yaml` is published first: what it moves leaves a copy behind, whose room the groups do not get.
    #[test]
    fn what_a_policy_moves_still_takes_its_room() {
        let vm = |id: &str, mem: u32| {
            format!(
                r#"{{"id":"{id}","resources":{{"cpuMilli":100,"memMiB":{mem}}},"runtime":{{"driver":"sandbox"}}}}"#
            )
        };
        let request = request(&format!("[{},{}]", vm("a", 2000), vm("b", 3000)), None);
        let mut proposed = proposed(&request);
        let mut snapshot = request.snapshot.clone();
        let (w1, w2) = (WorkerName::parse("w1").unwrap(), WorkerName::parse("w2").unwrap());
        snapshot.workers.push(WorkerView::new(w2.clone(), snapshot.workers[0].allocatable));
        let specs: Vec<VmSpec> = proposed.groups[&GroupName::default_group()][..1]
            .iter()
            .map(|spec| VmSpec::clone(spec))
            .collect();
        let group = GroupName::default_group();
        snapshot.groups.push(SnapshotGroup { group, generation: 1, commit: proposed.commit.clone(), specs });
        let instance = InstanceKey::parse("a/0").unwrap();
        snapshot.placements.push(SnapshotPlacement {
            instance,
            worker: w1.clone(),
            vm_hash: None,
            volumes: vec![],
        });
        let pinned = |drain: bool| {
            let entry = WorkerEntry { drain, ..WorkerEntry::default() };
            Some(Arc::new(FleetFile { workers: [(w1.clone(), entry)].into(), ..FleetFile::default() }))
        };
        proposed.fleet = pinned(false);
        let found = plan_groups(snapshot.clone(), &proposed, &GroupName::default_group());
        assert_eq!((found.moves.len(), found.add.len(), found.assign.values().max()), (0, 1, Some(&w2)));
        proposed.fleet = pinned(true);
        let found = plan_groups(snapshot, &proposed, &GroupName::default_group());
        assert_eq!((found.moves.len(), found.add.len(), found.unschedulable.len()), (1, 0, 1));
    }

    /// What the old file said of a worker is undone, what a hold or silence says stays.
    #[test]
    fn workers_are_what_the_new_file_says() {
        use WorkerState::{Cordoned, Draining, Late, Lost, Ready, Suspended, Unknown};
        let nothing = WorkerEntry::default();
        let cordon = WorkerEntry { cordon: true, ..WorkerEntry::default() };
        let drain = WorkerEntry { drain: true, ..WorkerEntry::default() };
        for (state, old, new, expected) in [
            (Ready, &nothing, &drain, Draining),
            (Draining, &drain, &nothing, Ready),
            (Cordoned, &cordon, &nothing, Ready),
            (Cordoned, &nothing, &nothing, Cordoned),
            (Cordoned, &cordon, &drain, Draining),
            (Late, &nothing, &nothing, Late),
            (Lost, &drain, &cordon, Lost),
            (Unknown, &nothing, &drain, Unknown),
            (Suspended, &nothing, &nothing, Suspended),
        ] {
            assert_eq!(state_under(state, old, new), expected, "{state:?}");
        }
    }
}

//! The way of one commit from the clone to the master.
//!
//! ```text
//! reserve numbers, in the order of acceptance ───────────────────────────────┐
//! read the tree ─▶ groups ─┬─ fleet ────────────────────────────▶ submit ────┤ first
//!                          ├─ default: evaluate ▸ build ▸ cache ▸ read back ─┴─▶ submit
//!                          └─ …      : each on its own, failing on its own
//! ```
//!
//! Groups between which the commit moves VMs are submitted at once ([`Tied`]).
//!
//! Every step tells the owner. A step that failed is tried again as its class says, from evaluation on: what was evaluated,
//! built or put before is found again. Dropping the future ends everything it started.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::join_all;
use stead_engine::fleet::canon::{intent_hash, policy_hash, specs_hash};
use stead_engine::fleet::watch::{FailureClass, retry_at};
use stead_model::GroupName;
use stead_model::fleet::artifact::StorePath;
use stead_model::fleet::nix_signature::PathFacts;
use stead_model::fleet::services::PublisherFile;
use stead_model::fleet::state::{Outcome, Publication, Verdict};
use stead_model::fleet::{CommitId, FleetFile, VmSpec};
use tokio::sync::{Semaphore, mpsc, watch};

use super::artifacts::Artifacts;
use super::cache::{Cache, CacheFault, Verified, trusted};
use super::failure::{Cause, Failure, Stage};
use super::git::{Git, GitError};
use super::nix::{Nix, store_paths};
use super::site::{SiteWork, Trust, verify_blobs};
use super::source::{Chosen, Source};
use super::tied::Tied;
use crate::api::Master;

/// How many groups evaluate and build at once: each may take all the memory it is allowed.
const AT_ONCE: usize = 2;

/// What the owner is told.
#[derive(Clone, Debug)]
pub(super) enum Progress {
    /// A commit has its number.
    Reserved {
        /// Which.
        commit: CommitId,
        /// Its number.
        generation: u64,
    },
    /// A group has reached a stage.
    Reached(GroupName, Stage),
    /// A group failed; it is tried again, or not.
    Failed(GroupName, Failure),
    /// The master answered.
    Answered(GroupName, Verdict),
}

/// What became of each group.
pub(super) type Results = BTreeMap<GroupName, Result<Verdict, Failure>>;

/// Whether what is away is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// It is, without end.
    Daemon,
    /// It is not.
    Once,
}

/// One commit on its way.
#[derive(Debug)]
pub(super) struct Pipeline {
    /// The repository.
    pub(super) git: Git,
    /// What `publisher.yaml` says.
    pub(super) file: Arc<PublisherFile>,
    /// Where blobs go.
    pub(super) artifacts: Option<Artifacts>,
    /// What was read back from the cache before.
    pub(super) verified: Verified,
    /// What `nix --version` says, once it was asked.
    pub(super) nix_version: Arc<OnceLock<String>>,
    /// The publisher's directory.
    pub(super) paths: Paths,
    /// Who takes it.
    pub(super) master: Arc<dyn Master>,
    /// Who publishes.
    pub(super) name: String,
    /// The commit.
    pub(super) commit: CommitId,
    /// Accepted commits without a number, oldest first; this one is the last, if it has none.
    pub(super) waiting: Vec<CommitId>,
    /// Its number, if it has one.
    pub(super) generation: Option<u64>,
    /// Groups that were published before.
    pub(super) known: BTreeSet<GroupName>,
    /// Groups that came to an end already.
    pub(super) ended: BTreeSet<GroupName>,
    /// Whether what is away is waited for.
    pub(super) patience: Patience,
    /// The owner.
    pub(super) tell: mpsc::Sender<Progress>,
}

/// Where things are.
#[derive(Clone, Debug)]
pub(super) struct Paths {
    /// Temporary files.
    pub(super) work: PathBuf,
    /// Logs.
    pub(super) logs: PathBuf,
    /// Evaluations.
    pub(super) evaluations: PathBuf,
    /// What Nix fetched.
    pub(super) nix_home: PathBuf,
}

impl Paths {
    /// Returns the log of a commit's group.
    pub(super) fn log(&self, commit: &CommitId, group: &GroupName) -> PathBuf {
        self.logs.join(format!("{commit:.12}-{group}.log"))
    }
}

/// What all groups of a commit share.
struct Shared<'a> {
    pipeline: &'a Pipeline,
    source: Source,
    /// The commit's number, or why there is none, once that is known.
    generation: watch::Receiver<Option<Result<u64, Failure>>>,
    /// Whether the group `fleet` came to its end.
    fleet_ended: watch::Sender<bool>,
    turns: Semaphore,
    /// Groups between which VMs move.
    tied: Tied,
}

/// What a group is made of.
enum Content {
    /// `fleet.yaml`, or the defaults where it is gone.
    Policy(Arc<FleetFile>),
    /// The VMs of the evaluator.
    Vms,
    /// Nothing any more.
    Nothing,
}

impl Pipeline {
    /// Goes all the way.
    pub(super) async fn run(self) -> Results {
        let (number, generation) = watch::channel(self.generation.map(Ok));
        let (results, ()) = tokio::join!(self.publish(generation), self.reserve(number));
        results
    }

    async fn say(&self, progress: Progress) {
        // The owner is gone only when everything ends.
        self.tell.send(progress).await.unwrap_or(());
    }

    /// Gets numbers, in the order of acceptance.
    async fn reserve(&self, number: watch::Sender<Option<Result<u64, Failure>>>) {
        for commit in &self.waiting {
            let mut tries = Tries::new(self.patience);
            loop {
                match self.master.reserve_generation(commit, &self.name).await {
                    Ok(generation) => {
                        self.say(Progress::Reserved { commit: commit.clone(), generation }).await;
                        if *commit == self.commit {
                            number.send_replace(Some(Ok(generation)));
                        }
                        break;
                    }
                    Err(error) => {
                        let mut failure = Failure::call(&error);
                        match tries.wait(&mut failure) {
                            Some(wait) => tokio::time::sleep(wait).await,
                            None => {
                                number.send_replace(Some(Err(failure)));
                                return;
                            }
                        }
                    }
                }
            }
        }
    }

    async fn publish(&self, generation: watch::Receiver<Option<Result<u64, Failure>>>) -> Results {
        let (source, groups) = match self.prepare().await {
            Ok(prepared) => prepared,
            Err((failure, groups)) => {
                return groups.into_iter().map(|group| (group, Err(failure.clone()))).collect();
            }
        };
        let shared = Shared {
            pipeline: self,
            source,
            generation,
            fleet_ended: watch::Sender::new(!groups.contains_key(&GroupName::fleet())),
            turns: Semaphore::new(AT_ONCE),
            tied: Tied::new(groups.keys().filter(|group| **group != GroupName::fleet()).cloned()),
        };
        let ways = groups.iter().map(|(group, content)| shared.group(group, content));
        let results = join_all(ways).await;
        groups.into_keys().zip(results).collect()
    }

    /// Returns what the commit holds and the groups to publish, tried again as failures say.
    async fn prepare(&self) -> Result<(Source, BTreeMap<GroupName, Content>), (Failure, Vec<GroupName>)> {
        let mut tries = Tries::new(self.patience);
        loop {
            let mut failure = match self.groups().await {
                Ok(prepared) => return Ok(prepared),
                Err(failure) => failure,
            };
            let wait = tries.wait(&mut failure);
            let mut groups = self.known.clone();
            groups.insert(GroupName::default_group());
            if failure.is_of_fleet_file {
                groups.insert(GroupName::fleet());
            }
            for group in &groups {
                self.say(Progress::Failed(group.clone(), failure.clone())).await;
            }
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return Err((failure, groups.into_iter().collect())),
            }
        }
    }

    /// Returns Nix at this commit.
    fn nix(&self) -> Nix {
        Nix {
            settings: self.file.nix.clone(),
            evaluations: self.paths.evaluations.clone(),
            cache_home: self.paths.nix_home.clone(),
            flake: self.git.flake(&self.commit, &self.file.subdir),
            version: Arc::clone(&self.nix_version),
        }
    }

    async fn groups(&self) -> Result<(Source, BTreeMap<GroupName, Content>), Failure> {
        let failed = |error| Failure::git(Stage::Evaluated, &error);
        if !self.git.has(&self.commit).await.map_err(failed)? {
            let away = |error: GitError| Failure {
                cause: Cause::Away,
                ..Failure::transient(Stage::Evaluated, error.to_string())
            };
            self.git.fetch(&self.commit).await.map_err(away)?;
        }
        self.git.accept(&self.commit).await.map_err(failed)?;
        let source = Source::read(&self.git, &self.commit, &self.file).await?;
        let mut groups: BTreeMap<GroupName, Content> = match source.evaluator {
            Chosen::Site => BTreeMap::from([(GroupName::default_group(), Content::Vms)]),
            Chosen::Nix => {
                let log = self.paths.log(&self.commit, &GroupName::default_group());
                let found = self.nix().groups(&log, &self.known).await?;
                found.into_iter().map(|group| (group, Content::Vms)).collect()
            }
        };
        for group in &self.known {
            groups.entry(group.clone()).or_insert(Content::Nothing);
        }
        // One that was there and is gone has all defaults; one that was never there is not published.
        if source.fleet_text.is_some() || self.known.contains(&GroupName::fleet()) {
            groups.insert(GroupName::fleet(), Content::Policy(Arc::clone(&source.fleet)));
        }
        groups.retain(|group, _| !self.ended.contains(group));
        Ok((source, groups))
    }
}

impl Shared<'_> {
    /// Takes one group to its end.
    async fn group(&self, group: &GroupName, content: &Content) -> Result<Verdict, Failure> {
        let result = self.try_group(group, content).await;
        if *group == GroupName::fleet() {
            self.fleet_ended.send_replace(true);
        }
        self.tied.ended(group, result.as_ref().map(|_| ()).map_err(Clone::clone));
        result
    }

    async fn try_group(&self, group: &GroupName, content: &Content) -> Result<Verdict, Failure> {
        let mut tries = Tries::new(self.pipeline.patience);
        self.pipeline.say(Progress::Reached(group.clone(), Stage::Verified)).await;
        loop {
            let mut failure = match self.attempt(group, content).await {
                Ok(verdict) => return Ok(verdict),
                Err(failure) => failure,
            };
            let wait = tries.wait(&mut failure);
            self.tied.failed(group);
            self.pipeline.say(Progress::Failed(group.clone(), failure.clone())).await;
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return Err(failure),
            }
        }
    }

    async fn attempt(&self, group: &GroupName, content: &Content) -> Result<Verdict, Failure> {
        let reached = async |stage| self.pipeline.say(Progress::Reached(group.clone(), stage)).await;
        let specs: Vec<Arc<VmSpec>> = match content {
            Content::Policy(_) | Content::Nothing => {
                self.tied.evaluated(group, &[]);
                reached(Stage::Evaluated).await;
                Vec::new()
            }
            Content::Vms => {
                let turn = self.turns.acquire().await;
                let vms = match self.source.evaluator {
                    Chosen::Site => self.site(group).await?,
                    Chosen::Nix => self.nix(group).await?,
                };
                drop(turn);
                vms.into_iter().map(Arc::new).collect()
            }
        };
        let policy = match content {
            Content::Policy(policy) => Some(Arc::clone(policy)),
            Content::Vms | Content::Nothing => None,
        };
        self.submit(group, specs, policy).await
    }

    /// Takes the manifests to where their VMs can be published.
    async fn site(&self, group: &GroupName) -> Result<Vec<VmSpec>, Failure> {
        let reached = async |stage| self.pipeline.say(Progress::Reached(group.clone(), stage)).await;
        let (git, artifacts) = (&self.pipeline.git, self.pipeline.artifacts.as_ref());
        let mut work = SiteWork::evaluate(git, &self.source).await?;
        self.tied.evaluated(group, work.vms());
        reached(Stage::Evaluated).await;
        let temporary = &self.pipeline.paths.work;
        work.gather(git, &self.source, artifacts, temporary, Trust::There).await?;
        reached(Stage::Built).await;
        work.store(artifacts, Trust::There).await?;
        reached(Stage::Cached).await;
        if work.verify(artifacts).await.is_err() {
            // What rotted is put anew, once.
            work.gather(git, &self.source, artifacts, temporary, Trust::Nothing).await?;
            work.store(artifacts, Trust::Nothing).await?;
            work.verify(artifacts).await?;
        }
        reached(Stage::CacheVerified).await;
        Ok(work.vms().to_vec())
    }

    /// Takes a group of the flake to where its VMs can be published.
    async fn nix(&self, group: &GroupName) -> Result<Vec<VmSpec>, Failure> {
        let reached = async |stage| self.pipeline.say(Progress::Reached(group.clone(), stage)).await;
        let (pipeline, nix) = (self.pipeline, self.pipeline.nix());
        let log = pipeline.paths.log(&self.source.commit, group);
        let is_known = pipeline.known.contains(group);
        let mut vms = nix.vms(&log, group, &self.source.fleet, is_known).await?;
        self.tied.evaluated(group, &vms);
        reached(Stage::Evaluated).await;
        nix.build(&log, group).await.map_err(|failure| of_vm(failure, &vms))?;
        let closure = nix.resolve(&log, &mut vms).await?;
        reached(Stage::Built).await;
        let roots: BTreeSet<StorePath> = store_paths(&vms);
        if !roots.is_empty() {
            nix.copy(&log, &roots).await?;
        }
        reached(Stage::Cached).await;
        if !roots.is_empty() {
            self.read_back(&nix, &log, &roots, &closure).await?;
        }
        verify_blobs(&vms, pipeline.artifacts.as_ref()).await?;
        reached(Stage::CacheVerified).await;
        Ok(vms)
    }

    /// Reads everything back from the cache; what was there before and is not signed is signed.
    async fn read_back(
        &self,
        nix: &Nix,
        log: &Path,
        roots: &BTreeSet<StorePath>,
        closure: &BTreeMap<StorePath, PathFacts>,
    ) -> Result<(), Failure> {
        let refuse = |why: String| Failure::permanent(Stage::Cached, why);
        let settings = &nix.settings;
        let keys = trusted(&settings.public_keys, settings.secret_key_file.as_deref()).map_err(refuse)?;
        let url = settings.cache.as_deref().unwrap_or_default();
        let cache = Cache::open(url, keys, self.pipeline.verified.clone()).map_err(refuse)?;
        let found = match cache.verify(closure).await {
            Err(CacheFault::Unsigned { .. }) => {
                nix.sign_in_cache(log, roots).await?;
                cache.verify(closure).await
            }
            found @ (Ok(()) | Err(CacheFault::Missing { .. } | CacheFault::Mismatch { .. })) => found,
        };
        found.map_err(|fault| Failure::transient(Stage::CacheVerified, fault.to_string()))
    }

    /// Gives a group to the master.
    async fn submit(
        &self,
        group: &GroupName,
        specs: Vec<Arc<VmSpec>>,
        policy: Option<Arc<FleetFile>>,
    ) -> Result<Verdict, Failure> {
        if policy.is_none() {
            // It is published first. Its sender lives as long as this.
            self.fleet_ended.subscribe().wait_for(|is_ended| *is_ended).await.map(|_| ()).unwrap_or(());
        }
        let generation = self.generation().await?;
        let commit = &self.source.commit;
        let specs_hash = match &policy {
            Some(policy) => policy_hash(policy),
            None => specs_hash(specs.iter().map(AsRef::as_ref)),
        };
        let publication = Publication {
            group: group.clone(),
            commit: commit.clone(),
            generation,
            intent_hash: intent_hash(commit, group, &specs_hash),
            specs_hash,
            specs,
            policy,
            broken: Vec::new(),
        };
        let (master, name) = (self.pipeline.master.as_ref(), &self.pipeline.name);
        let verdict = if publication.policy.is_some() {
            master.publish(publication, name).await.map_err(|error| Failure::call(&error))?
        } else {
            self.tied.publish(publication, master, name).await?
        };
        self.pipeline.say(Progress::Answered(group.clone(), verdict.clone())).await;
        let refused = |cause| {
            let lines: Vec<String> = verdict
                .problems
                .iter()
                .map(|problem| format!("{}: {} ({})", problem.subject, problem.message, problem.code))
                .collect();
            Err(Failure { cause, ..Failure::permanent(Stage::Submitted, lines.join("\n")) })
        };
        match verdict.outcome {
            Outcome::Accepted | Outcome::Duplicate | Outcome::Held | Outcome::Suspended | Outcome::Stale => {
                Ok(verdict)
            }
            Outcome::Invalid => refused(Cause::Invalid),
            Outcome::Conflict => refused(Cause::Refused(Outcome::Conflict)),
        }
    }

    /// Returns the commit's number, as soon as there is one.
    async fn generation(&self) -> Result<u64, Failure> {
        let mut generation = self.generation.clone();
        match generation.wait_for(Option::is_some).await {
            Ok(number) => number.clone().unwrap_or(Ok(0)),
            // Nobody tries to get one any more.
            Err(_) => Err(Failure {
                cause: Cause::Away,
                ..Failure::transient(Stage::Submitted, "no master gives the commit a number")
            }),
        }
    }
}

/// Returns a failed build with the VM whose image it is.
fn of_vm(failure: Failure, vms: &[VmSpec]) -> Failure {
    let is_named = |path: &StorePath| {
        let name = path.base_name().split_once('-').map_or("", |(_, name)| name);
        failure.error.contains(&format!("-{name}.drv"))
    };
    let uses =
        |vm: &&VmSpec| vm.artifacts().iter().filter_map(|(_, artifact)| artifact.store_path()).any(is_named);
    let vm = vms.iter().find(uses).map(|vm| vm.id.to_string());
    Failure { vm: failure.vm.clone().or(vm), ..failure }
}

/// How often something was tried.
struct Tries {
    patience: Patience,
    failures: BTreeMap<Stage, u32>,
}

impl Tries {
    fn new(patience: Patience) -> Self {
        Self { patience, failures: BTreeMap::new() }
    }

    /// Returns how long to wait before the next try; none: there is none. What failed for want of memory or time and is not
    /// tried again has failed for good.
    fn wait(&mut self, failure: &mut Failure) -> Option<Duration> {
        if self.patience == Patience::Once && failure.class == FailureClass::Transient {
            return None;
        }
        let count = self.failures.entry(failure.stage).or_default();
        *count += 1;
        let wait = retry_at(failure.class, *count, 0).map(Duration::from_millis);
        if wait.is_none() {
            failure.class = FailureClass::Permanent;
        }
        wait
    }
}

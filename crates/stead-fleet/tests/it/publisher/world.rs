//! Repositories, and a master that remembers in a file.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use stead_engine::fleet::cluster::{Cluster, Durable};
use stead_fleet::api::{
    Applied, Beat, CallError, GroupPipeline, HoldOrder, Json, Master, PipelineReport, StatusFilter,
    UNPUBLISHED,
};
use stead_fleet::publisher::{self, PublishError, Published, Settings};
use stead_model::diagnostic::Source;
use stead_model::fleet::services::PublisherFile;
use stead_model::fleet::state::{Assignment, Generation, Heartbeat, Outcome, Publication, Verdict};
use stead_model::fleet::{CommitId, FleetFile, InstanceKey};
use stead_model::{Diagnostics, GroupName, WorkerName};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// A directory with a repository, what a publisher keeps, and what it puts.
pub(super) struct World {
    pub(super) directory: TempDir,
}

impl World {
    pub(super) fn new() -> Self {
        let world = Self { directory: tempfile::tempdir().unwrap() };
        fs::create_dir(world.repo()).unwrap();
        world.git(&["init", "-q", "-b", "main"]);
        world
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(super) fn repo(&self) -> PathBuf {
        self.path("repo")
    }

    /// Runs git in the repository.
    pub(super) fn git(&self, args: &[&str]) -> String {
        git_at(&self.repo(), args)
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        let path = self.repo().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Commits everything, and returns the commit.
    pub(super) fn commit(&self, message: &str) -> CommitId {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "--allow-empty", "-m", message]);
        self.head()
    }

    pub(super) fn head(&self) -> CommitId {
        CommitId::parse(&self.git(&["rev-parse", "HEAD"])).unwrap()
    }

    /// Returns settings with further lines of `publisher.yaml`.
    pub(super) fn settings(&self, more: &str) -> Settings {
        settings(self.directory.path(), more)
    }

    /// Publishes once.
    pub(super) async fn once(&self, master: &Arc<TestMaster>, more: &str) -> Published {
        once(self.settings(more), master).await
    }

    /// Writes a small site of two nodes.
    pub(super) fn small_site(&self) {
        self.write("site.yaml", "{}\n");
        self.write("presets/small.yaml", "cores: 1\nmemory: 512\ndisk: 1\n");
        self.write("postures/dev.yaml", "{}\n");
        self.write("specs/web.yaml", "schema_version: 1\nplatform: {packages: [nginx]}\n");
        self.write("specs/db.yaml", "schema_version: 1\nplatform: {packages: [sqlite3]}\n");
        self.manifest("  - {name: web, type: vm, preset: small, spec: web, count: 2}\n  - {name: db, type: vm, preset: small, spec: db}\n");
    }

    pub(super) fn manifest(&self, nodes: &str) {
        self.write("manifests/m.yaml", &format!("schema_version: 2\nname: m\nnodes:\n{nodes}"));
    }
}

pub(super) fn settings(directory: &Path, more: &str) -> Settings {
    let (repo, blobs) = (directory.join("repo"), directory.join("blobs"));
    let text =
        format!("repo: {}\npoll: 1s\ndebounce: 0s\nartifacts: {}\n{more}", repo.display(), blobs.display());
    let source = Source { name: "publisher.yaml".into(), text: text.into() };
    let mut problems = Diagnostics::default();
    let file = PublisherFile::read(&source, &mut problems).unwrap();
    assert_eq!(problems.to_string(), "");
    Settings {
        file,
        directory: directory.join("fleet"),
        name: "p1".to_owned(),
        commit: None,
        events: None,
        metrics: Arc::default(),
    }
}

pub(super) async fn once(settings: Settings, master: &Arc<TestMaster>) -> Published {
    let master: Arc<dyn Master> = Arc::clone(master) as _;
    publisher::once(settings, master, CancellationToken::new()).await.unwrap()
}

/// A publisher that follows its branch.
pub(super) struct Daemon {
    tasks: JoinSet<Result<(), PublishError>>,
    shutdown: CancellationToken,
}

impl Daemon {
    pub(super) fn start(settings: Settings, master: &Arc<TestMaster>) -> Self {
        let (mut tasks, shutdown) = (JoinSet::new(), CancellationToken::new());
        let master: Arc<dyn Master> = Arc::clone(master) as _;
        tasks.spawn(publisher::run(settings, master, shutdown.clone()));
        Self { tasks, shutdown }
    }

    pub(super) async fn stop(mut self) {
        self.shutdown.cancel();
        self.tasks.join_next().await.unwrap().unwrap().unwrap();
    }
}

pub(super) fn git_at(directory: &Path, args: &[&str]) -> String {
    let mut command = Command::new("git");
    command.arg("-C").arg(directory).args(["-c", "user.name=Tester", "-c", "user.email=tester@example.org"]);
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(name);
    }
    let output = command.args(args).output().unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A master around the engine's cluster. What it promised is in a file before it answers.
#[derive(Debug)]
pub(super) struct TestMaster {
    state: Mutex<Memory>,
    journal: PathBuf,
    is_away: AtomicBool,
    is_old: AtomicBool,
}

#[derive(Debug)]
struct Memory {
    cluster: Cluster,
    calls: Vec<String>,
    report: Option<PipelineReport>,
    steps: u32,
    /// Whether its state was lost.
    is_lost: bool,
}

impl TestMaster {
    /// Returns the master of a world, with everything it promised before.
    pub(super) fn of(world: &World) -> Arc<Self> {
        Self::open(&world.path("master.jsonl"))
    }

    pub(super) fn open(journal: &Path) -> Arc<Self> {
        let cluster = Cluster::resume(Durable::default(), 1, 0);
        let state = Mutex::new(Memory { cluster, calls: Vec::new(), report: None, steps: 0, is_lost: false });
        let (is_away, is_old) = (AtomicBool::new(false), AtomicBool::new(false));
        let master = Self { state, journal: journal.to_owned(), is_away, is_old };
        for line in fs::read_to_string(journal).unwrap_or_default().lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            match line.get("publish") {
                Some(publications) => {
                    let publications = publications.as_array().unwrap().iter().map(read_publication);
                    let publications: Vec<Publication> = publications.collect();
                    master.memory().cluster.publish_together(&publications, 0);
                }
                None => {
                    let commit = CommitId::parse(line["reserve"].as_str().unwrap()).unwrap();
                    master.memory().cluster.reserve(&commit);
                }
            }
        }
        Arc::new(master)
    }

    pub(super) fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::SeqCst);
    }

    /// Has it be of before protocol 1.5: groups that go together come to it one after the other.
    pub(super) fn set_old(&self) {
        self.is_old.store(true, Ordering::SeqCst);
    }

    /// Loses everything.
    pub(super) fn lose_state(&self) {
        let mut memory = self.memory();
        memory.cluster = Cluster::resume(Durable::default(), 2, 0);
        memory.is_lost = true;
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends this process where a test wants it to: twice per call that changes something, before and after it is kept.
    fn maybe_die(&self) {
        let Some(wanted) = std::env::var_os("STEAD_TEST_KILL_CALL") else { return };
        let mut memory = self.memory();
        memory.steps += 1;
        if wanted.to_str() == Some(memory.steps.to_string().as_str()) {
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
        }
    }

    fn keep(&self, line: &Value) {
        self.maybe_die();
        self.keep_line(line);
        self.maybe_die();
    }

    fn keep_line(&self, line: &Value) {
        let mut file = fs::File::options().create(true).append(true).open(&self.journal).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
        file.sync_all().unwrap();
    }

    fn answer<T>(&self, answer: T) -> Result<T, CallError> {
        if self.is_away.load(Ordering::SeqCst) {
            return Err(CallError::Away("the test says so".to_owned()));
        }
        Ok(answer)
    }

    /// Returns the active generation of a group.
    pub(super) fn active(&self, group: &str) -> Option<Generation> {
        let memory = self.memory();
        let group = memory.cluster.durable.groups.get(&GroupName::parse(group).unwrap());
        group.and_then(|group| group.active().cloned())
    }

    /// Returns what was called: `reserve SHA7`, `publish GROUP SHA7 GENERATION OUTCOME`.
    pub(super) fn calls(&self) -> Vec<String> {
        self.memory().calls.clone()
    }

    /// Returns what it was told last.
    pub(super) fn report(&self) -> Option<PipelineReport> {
        self.memory().report.clone()
    }

    pub(super) fn reserved(&self, commit: &CommitId) -> Option<u64> {
        self.memory().cluster.durable.commits.get(commit).copied()
    }

    /// Waits until `is_there` holds, or says what the master was told last.
    pub(super) async fn wait(&self, what: &str, is_there: impl Fn(&Self) -> bool) {
        for _ in 0..1200 {
            if is_there(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{what} did not happen: {:?} {:?}", self.calls(), self.report());
    }
}

fn read_publication(value: &Value) -> Publication {
    let text = value["specs"].to_string();
    let source = Source { name: "specs".into(), text: text.into() };
    let mut problems = Diagnostics::default();
    let specs = stead_model::fleet::vm::read_specs(&source, &mut problems);
    let policy = value.get("policy").map(|policy| {
        let mut policy = policy.clone();
        policy["api_version"] = json!("v1");
        let source = Source { name: "policy".into(), text: policy.to_string().into() };
        Arc::new(FleetFile::read(&source, &mut problems))
    });
    assert_eq!(problems.to_string(), "");
    let hash = |key: &str| stead_model::plan::Digest::parse(value[key].as_str().unwrap()).unwrap();
    Publication {
        group: GroupName::parse(value["group"].as_str().unwrap()).unwrap(),
        commit: CommitId::parse(value["commit"].as_str().unwrap()).unwrap(),
        generation: value["generation"].as_u64().unwrap(),
        intent_hash: hash("intent"),
        specs_hash: hash("specs_hash"),
        specs: specs.into_iter().map(Arc::new).collect(),
        policy,
        broken: Vec::new(),
    }
}

fn write_publication(publication: &Publication) -> Value {
    let specs: Vec<Value> =
        publication.specs.iter().map(|spec| serde_json::from_str(&spec.to_canonical()).unwrap()).collect();
    let mut value = json!({
        "group": publication.group, "commit": publication.commit, "generation": publication.generation,
        "intent": publication.intent_hash.to_string(), "specs_hash": publication.specs_hash.to_string(),
        "specs": specs,
    });
    if let Some(policy) = &publication.policy {
        value["policy"] = serde_json::from_str(&policy.to_canonical()).unwrap();
    }
    value
}

#[async_trait]
impl Master for TestMaster {
    async fn reserve_generation(&self, commit: &CommitId, _publisher: &str) -> Result<u64, CallError> {
        self.answer(())?;
        self.keep(&json!({"reserve": commit}));
        let mut memory = self.memory();
        let number = memory.cluster.reserve(commit);
        memory.calls.push(format!("reserve {commit:.7} {number}"));
        Ok(number)
    }

    async fn publish(&self, publication: Publication, publisher: &str) -> Result<Verdict, CallError> {
        Ok(self.publish_together(vec![publication], publisher).await?.remove(0))
    }

    async fn publish_together(
        &self,
        publications: Vec<Publication>,
        publisher: &str,
    ) -> Result<Vec<Verdict>, CallError> {
        self.answer(())?;
        if publications.len() > 1 && self.is_old.load(Ordering::SeqCst) {
            let mut verdicts = Vec::new();
            for publication in publications {
                verdicts.push(self.publish(publication, publisher).await?);
            }
            return Ok(verdicts);
        }
        // Read as it travels, so that what a spec loses on the way is seen.
        let written: Vec<Value> = publications.iter().map(write_publication).collect();
        let publications: Vec<Publication> = written.iter().map(read_publication).collect();
        let verdicts = self.memory().cluster.publish_together(&publications, 0);
        let is_stored =
            |verdict: &Verdict| verdict.outcome == Outcome::Accepted || verdict.outcome == Outcome::Held;
        if verdicts.iter().any(is_stored) {
            self.keep(&json!({"publish": written}));
        }
        let mut memory = self.memory();
        for (Publication { group, commit, generation, .. }, verdict) in publications.iter().zip(&verdicts) {
            let with = if publications.len() > 1 { " together" } else { "" };
            memory
                .calls
                .push(format!("publish {group} {commit:.7} {generation} {:?}{with}", verdict.outcome));
        }
        Ok(verdicts)
    }

    async fn assignment(
        &self,
        _worker: &WorkerName,
        _applied: Applied,
        _wait: Duration,
    ) -> Result<Option<Assignment>, CallError> {
        self.answer(None)
    }

    async fn report(&self, _heartbeat: Heartbeat) -> Result<Beat, CallError> {
        Err(CallError::Refused { code: "forbidden".to_owned(), message: "no workers here".to_owned() })
    }

    async fn status(
        &self,
        _after: u64,
        _wait: Duration,
        _filter: &StatusFilter,
    ) -> Result<(Json, u64), CallError> {
        self.answer((Json("{}".to_owned()), 0))
    }

    async fn explain(&self, _instance: &InstanceKey) -> Result<Json, CallError> {
        self.answer(Json("{}".to_owned()))
    }

    async fn snapshot(&self) -> Result<Json, CallError> {
        self.answer(())?;
        let memory = self.memory();
        let groups: Vec<Value> = memory
            .cluster
            .durable
            .groups
            .iter()
            .filter_map(|(name, group)| Some((name, group.active()?)))
            .map(|(name, active)| {
                let specs: Vec<Value> = active.specs.iter().map(|spec| spec.to_json()).collect();
                json!({"group": name, "generation": active.number, "commit": active.commit, "specs": specs})
            })
            .collect();
        Ok(Json(json!({"schema": 1, "groups": groups}).to_string()))
    }

    async fn report_pipeline(&self, report: PipelineReport) -> Result<(), CallError> {
        self.answer(())?;
        let mut memory = self.memory();
        let is_missing = |group: &GroupPipeline| {
            group.stage == "submitted" && !memory.cluster.durable.groups.contains_key(&group.group)
        };
        let is_lost = memory.is_lost && report.groups.iter().any(is_missing);
        memory.report = Some(report);
        if is_lost {
            let (code, message) = (UNPUBLISHED.to_owned(), "the test says so".to_owned());
            return Err(CallError::Refused { code, message });
        }
        Ok(())
    }

    async fn set_hold(&self, _order: HoldOrder, _by: &str) -> Result<String, CallError> {
        Err(CallError::Refused { code: "forbidden".to_owned(), message: "no holds here".to_owned() })
    }
}

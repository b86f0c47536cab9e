//! The one task that owns what a publisher knows: it looks, decides with the engine, and starts and ends pipelines.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use stead_engine::fleet::watch::{self as branch, WatchPolicy};
use stead_model::GroupName;
use stead_model::fleet::policy::millis;
use stead_model::fleet::services::PublisherFile;
use stead_model::fleet::services::publisher::Credentials;
use stead_model::fleet::state::{Outcome, Verdict};
use stead_model::fleet::{CommitId, Millis};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::artifacts::Artifacts;
use super::cache::Verified;
use super::failure::{Cause, FAILED, Failure, SUPERSEDED, Stage};
use super::git::Git;
use super::hook::Door;
use super::kept::{Kept, Place};
use super::look::{Found, jittered, report};
use super::nix::{SCRATCH, placed};
use super::pipeline::{Patience, Pipeline, Progress, Results};
use super::{Ending, PublishError, Published, Settings};
use crate::api::{Master, PipelineReport, WatcherReport};
use crate::events::{Ev, Fields};
use crate::metrics::door;

mod head;

/// How many messages of a pipeline may wait: it tells little, and waits for its owner.
const MESSAGES: usize = 64;

/// How soon a master that was away is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// How long a master that does not have what was published again is not listened to: it may refuse it.
const AGAIN: Duration = Duration::from_secs(600);

/// Longer than anything takes.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// What happened.
enum Input {
    Found(Found),
    Told(Progress),
    Ended(Results),
    /// The master does not have what was published.
    Again,
    Look,
    Stop,
}

/// The owner.
pub(super) struct Owner {
    settings: Settings,
    file: Arc<PublisherFile>,
    place: Place,
    git: Git,
    artifacts: Option<Artifacts>,
    verified: Verified,
    nix_version: Arc<OnceLock<String>>,
    master: Arc<dyn Master>,
    patience: Patience,
    started: Instant,
    kept: Kept,
    /// Whether nothing was remembered: the pipeline of the master's own commit may not have ended.
    is_lost: bool,
    branch: branch::State,
    /// The head that was seen last, and what it contains once it was looked into.
    head: Option<CommitId>,
    contains: Vec<CommitId>,
    watcher: WatcherReport,
    report: watch::Sender<PipelineReport>,
    looks: JoinSet<Found>,
    next_look: Instant,
    pipelines: JoinSet<Results>,
    progress: Option<mpsc::Receiver<Progress>>,
    ending: Ending,
    /// When the pipeline began, and when each group came where it is.
    clocks: (Instant, BTreeMap<GroupName, Instant>),
    poke: Arc<Notify>,
    /// The master does not have what was published.
    again: Arc<Notify>,
    /// When it was published again for that.
    last_again: Option<Instant>,
    /// Why nothing more can be remembered.
    broken: Option<PublishError>,
}

/// Refuses files that cannot be read, by the keys that name them: whoever needs one first would blame something else.
fn check_named(file: &PublisherFile) -> Result<(), PublishError> {
    let credentials = file.credentials.as_ref().map(|credentials| match credentials {
        Credentials::TokenFile(path) => ("credentials.token_file", path),
        Credentials::SshKeyFile(path) => ("credentials.ssh_key_file", path),
    });
    let signers = file.allowed_signers.as_ref().map(|path| ("allowed_signers", path));
    let hook = file.webhook.as_ref().map(|hook| ("webhook.secret_file", &hook.secret_file));
    for (key, path) in [credentials, signers, hook].into_iter().flatten() {
        if let Err(error) = std::fs::File::open(path) {
            return Err(PublishError::Settings(format!("`{key}` {path} cannot be read: {error}")));
        }
    }
    Ok(())
}

impl Owner {
    /// Opens what is kept.
    pub(super) fn open(mut settings: Settings, master: Arc<dyn Master>) -> Result<Self, PublishError> {
        settings.file.nix = placed(&settings.file.nix)?;
        check_named(&settings.file)?;
        let place = Place::open(&settings.directory)?;
        if let Some(events) = &settings.events {
            let path = events.directory().to_owned();
            events.begin().map_err(|source| PublishError::File { what: "write events to", path, source })?;
        }
        // Builds that were killed left what they worked on; nobody else works here.
        std::fs::remove_dir_all(place.paths().nix_home.join(SCRATCH)).ok();
        let git = Git::open(&settings.file, place.clone_directory())?;
        let artifacts = settings.file.artifacts.as_deref().map(Artifacts::open).transpose();
        let remembered = place.read();
        let kept = remembered.clone().unwrap_or_default();
        // A head that was refused is looked into once more: the settings may be others.
        let branch = branch::State { accepted: kept.accepted.clone(), ..branch::State::default() };
        if let Some(generation) = kept.work.as_ref().and_then(|work| work.generation) {
            settings.metrics.reserved(generation);
        }
        let watcher = WatcherReport {
            reference: settings.file.reference.clone(),
            state: "ok".to_owned(),
            rejected: kept.rejected.as_ref().map(|rejection| rejection.head.clone()),
            ..WatcherReport::default()
        };
        let report = PipelineReport { watcher: watcher.clone(), groups: Vec::new() };
        Ok(Self {
            file: Arc::new(settings.file.clone()),
            artifacts: artifacts.map_err(PublishError::Settings)?,
            settings,
            place,
            git,
            verified: Verified::default(),
            nix_version: Arc::default(),
            master,
            patience: Patience::Daemon,
            started: Instant::now(),
            kept,
            is_lost: remembered.is_none(),
            branch,
            head: None,
            contains: Vec::new(),
            watcher,
            report: watch::Sender::new(report),
            looks: JoinSet::new(),
            next_look: Instant::now(),
            pipelines: JoinSet::new(),
            progress: None,
            ending: Ending::NothingNew,
            clocks: (Instant::now(), BTreeMap::new()),
            poke: Arc::default(),
            again: Arc::default(),
            last_again: None,
            broken: None,
        })
    }

    /// Watches and publishes until `shutdown`.
    pub(super) async fn run(mut self, shutdown: CancellationToken) -> Result<(), PublishError> {
        let mut reporters = JoinSet::new();
        reporters.spawn(report(Arc::clone(&self.master), self.report.subscribe(), Arc::clone(&self.again)));
        let address = self.file.observe;
        let listener = door::open(address, self.settings.events.as_ref()).await;
        let listener = listener.map_err(|source| PublishError::Listen { address, source })?;
        let metrics = Arc::clone(&self.settings.metrics);
        reporters.spawn(door::serve(listener, Arc::new(move || metrics.to_text())));
        if let Some(hook) = &self.file.webhook {
            let door = Door::open(hook, Arc::clone(&self.poke), Arc::clone(&self.settings.metrics)).await?;
            reporters.spawn(door.serve());
        }
        if let Some(work) = self.kept.work.as_mut().filter(|work| !work.is_done) {
            let ended = work.ended();
            let is_open = |group: &GroupName| *group != GroupName::fleet() && !ended.contains(group);
            if work.groups.keys().any(is_open) {
                // What failed is tried once more: VMs may move between it and what has not ended.
                work.groups.retain(|_, row| row.failure.is_none());
            }
            self.start();
        }
        loop {
            let input = self.next(&shutdown).await;
            if matches!(input, Input::Stop) {
                break;
            }
            self.handle(input);
            self.tell();
            if let Some(error) = self.broken.take() {
                self.end_all().await;
                return Err(error);
            }
        }
        self.end_all().await;
        reporters.shutdown().await;
        Ok(())
    }

    /// Publishes the head and ends.
    pub(super) async fn once(mut self, shutdown: CancellationToken) -> Result<Published, PublishError> {
        self.patience = Patience::Once;
        if let Some(work) = &mut self.kept.work {
            // What failed is tried again: somebody asks for it.
            work.is_done &= work.groups.values().all(|row| row.failure.is_none());
            work.groups.retain(|_, row| row.failure.is_none());
        }
        loop {
            let input = self.next(&shutdown).await;
            if matches!(input, Input::Stop) {
                self.end_all().await;
                // Nothing is known that the master would have to hear.
                return Ok(Published { ending: Ending::Cancelled, report: self.report.borrow().clone() });
            }
            self.handle(input);
            if let Some(error) = self.broken.take() {
                self.end_all().await;
                return Err(error);
            }
            if self.looks.is_empty() && self.pipelines.is_empty() && self.settle() {
                break;
            }
        }
        self.end_all().await;
        self.tell();
        let report = self.report.borrow().clone();
        // Whoever waits for this commit learns of it from the next publisher otherwise.
        self.master.report_pipeline(report.clone()).await.unwrap_or(());
        Ok(Published { ending: self.ending, report })
    }

    /// Whether nothing is left to do; begins what an earlier publisher did not end.
    fn settle(&mut self) -> bool {
        let is_unfinished = self.kept.work.as_ref().is_some_and(|work| !work.is_done);
        if is_unfinished && self.ending == Ending::NothingNew && self.watcher.state == "ok" {
            self.start();
            return false;
        }
        true
    }

    async fn end_all(&mut self) {
        self.looks.shutdown().await;
        self.pipelines.shutdown().await;
    }

    fn now(&self) -> Millis {
        millis(self.started.elapsed())
    }

    fn policy(&self) -> WatchPolicy {
        let debounce = match self.patience {
            Patience::Daemon => millis(self.file.debounce),
            Patience::Once => 0,
        };
        WatchPolicy { debounce, rewrites: self.file.rewrites }
    }

    /// Waits for what happens next. Cancel safe.
    async fn next(&mut self, shutdown: &CancellationToken) -> Input {
        loop {
            let progress = async {
                match &mut self.progress {
                    Some(progress) => progress.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Input::Stop,
                told = progress => match told {
                    Some(told) => return Input::Told(told),
                    None => self.progress = None,
                },
                Some(results) = self.pipelines.join_next() => match results {
                    Ok(results) => return Input::Ended(results),
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => return Input::Ended(panicked(&error.to_string())),
                },
                Some(found) = self.looks.join_next() => match found {
                    Ok(found) => return Input::Found(found),
                    Err(_) => return Input::Look,
                },
                () = self.again.notified() => return Input::Again,
                () = self.poke.notified(), if self.looks.is_empty() => return Input::Look,
                () = tokio::time::sleep_until(self.next_look), if self.looks.is_empty() => return Input::Look,
            }
        }
    }

    fn handle(&mut self, input: Input) {
        match input {
            Input::Look => {
                let git = self.git.clone();
                self.next_look = Instant::now()
                    + match self.patience {
                        Patience::Daemon => jittered(self.file.poll),
                        // One look is what was asked for.
                        Patience::Once => NEVER,
                    };
                self.looks.spawn(async move { Found::Remote(git.look().await) });
            }
            Input::Found(Found::Remote(found)) => self.seen_remote(found),
            Input::Found(Found::Inspected(found)) => self.inspected(found),
            Input::Found(Found::Anchor(found)) => self.anchored(found),
            Input::Again => self.publish_again(),
            Input::Told(progress) => self.told(progress),
            Input::Ended(results) => self.ended(&results),
            Input::Stop => {}
        }
    }

    /// Writes down that something happened; a log that cannot be written ends nothing.
    fn note(&self, ev: Ev, fields: Fields) {
        if let Some(events) = &self.settings.events {
            events.write(ev, fields).unwrap_or(());
        }
    }

    /// Writes down how far a group is, and how long that took.
    fn note_stage(&mut self, group: &GroupName, stage: &str, code: &str, reason: &str) {
        let Some(work) = &self.kept.work else { return };
        let fields = Fields {
            commit: Some(work.commit.clone()),
            generation: work.generation,
            group: Some(group.clone()),
            stage: stage.to_owned(),
            code: code.to_owned(),
            reason: reason.to_owned(),
            ..Fields::default()
        };
        self.note(Ev::Pipeline, fields);
        let now = Instant::now();
        let since = self.clocks.1.insert(group.clone(), now).unwrap_or(self.clocks.0);
        self.settings.metrics.reached(stage, now - since);
    }

    /// Publishes what was published before: the master lost its state, and what runs waits for its groups.
    fn publish_again(&mut self) {
        let is_soon = self.last_again.is_some_and(|at| at.elapsed() < AGAIN);
        let done =
            self.kept.work.as_ref().filter(|work| work.is_done && self.pipelines.is_empty() && !is_soon);
        let Some((commit, contains)) = done.map(|work| (work.commit.clone(), work.contains.clone())) else {
            return;
        };
        self.last_again = Some(Instant::now());
        if let Some(events) = &self.settings.events {
            events.say("the master does not have what was published; it is published again");
        }
        self.kept.begin(commit, contains);
        self.save();
        self.start();
    }

    /// Starts the pipeline of what is under way; one of an older commit ends.
    fn start(&mut self) {
        let Some(work) = &self.kept.work else { return };
        self.clocks = (Instant::now(), BTreeMap::new());
        // With it goes what the older one may have ended with just now.
        self.pipelines = JoinSet::new();
        let (tell, progress) = mpsc::channel(MESSAGES);
        self.progress = Some(progress);
        let waiting = match work.generation {
            Some(_) => Vec::new(),
            None => self.kept.waiting().to_vec(),
        };
        let pipeline = Pipeline {
            git: self.git.clone(),
            file: Arc::clone(&self.file),
            artifacts: self.artifacts.clone(),
            verified: self.verified.clone(),
            nix_version: Arc::clone(&self.nix_version),
            paths: self.place.paths(),
            master: Arc::clone(&self.master),
            name: self.settings.name.clone(),
            commit: work.commit.clone(),
            waiting,
            generation: work.generation,
            known: self.kept.groups.clone(),
            ended: work.ended(),
            patience: self.patience,
            tell,
        };
        self.pipelines.spawn(pipeline.run());
        self.place.trim_logs();
    }

    fn told(&mut self, progress: Progress) {
        match progress {
            Progress::Reserved { commit, generation } => {
                self.kept.reserved(&commit, generation);
                self.settings.metrics.reserved(generation);
                let (commit, generation) = (Some(commit), Some(generation));
                self.note(Ev::Reserved, Fields { commit, generation, ..Fields::default() });
                self.save();
            }
            Progress::Reached(group, stage) => {
                self.note_stage(&group, stage.word(), "", "");
                let Some(work) = &mut self.kept.work else { return };
                let row = work.group(&group);
                row.stage = stage.word().to_owned();
                row.failure = None;
            }
            Progress::Failed(group, failure) => {
                self.note_stage(&group, FAILED, failure.stage.word(), &failure.error);
                let paths = self.place.paths();
                let Some(work) = &mut self.kept.work else { return };
                let log = paths.log(&work.commit, &group);
                let row = work.group(&group);
                row.stage = FAILED.to_owned();
                row.failure = Some(failure.report(&log));
                self.save();
            }
            Progress::Answered(group, verdict) => {
                self.settings.metrics.published(self.clocks.0.elapsed());
                self.note_verdict(&group, &verdict);
                let Some(work) = &mut self.kept.work else { return };
                let row = work.group(&group);
                let stage = match verdict.outcome {
                    Outcome::Stale => SUPERSEDED,
                    Outcome::Accepted
                    | Outcome::Duplicate
                    | Outcome::Held
                    | Outcome::Suspended
                    | Outcome::Conflict
                    | Outcome::Invalid => Stage::Submitted.word(),
                };
                row.stage = stage.to_owned();
                row.failure = None;
                self.kept.groups.insert(group);
                self.save();
            }
        }
    }

    fn note_verdict(&self, group: &GroupName, verdict: &Verdict) {
        let Some(work) = &self.kept.work else { return };
        let reasons: Vec<&str> = verdict.problems.iter().map(|problem| problem.message.as_str()).collect();
        let fields = Fields {
            commit: Some(work.commit.clone()),
            generation: work.generation,
            group: Some(group.clone()),
            code: format!("{:?}", verdict.outcome).to_lowercase(),
            reason: reasons.join("; "),
            ..Fields::default()
        };
        self.note(Ev::Verdict, fields);
    }

    fn ended(&mut self, results: &Results) {
        while let Some(Ok(told)) = self.progress.as_mut().map(mpsc::Receiver::try_recv) {
            self.told(told);
        }
        let Some(work) = &mut self.kept.work else { return };
        let is_away = |failure: &Failure| {
            self.patience == Patience::Once
                && failure.class == stead_engine::fleet::watch::FailureClass::Transient
        };
        work.is_done = !results.values().any(|result| result.as_ref().is_err_and(is_away));
        self.ending = worst(results);
        self.save();
    }

    /// Remembers everything.
    fn save(&mut self) {
        if let Err(error) = self.place.write(&self.kept) {
            self.broken = Some(error);
        }
    }

    /// Tells the master, if there is something new.
    fn tell(&mut self) {
        let mut report = PipelineReport { watcher: self.watcher.clone(), groups: Vec::new() };
        if let Some(work) = &self.kept.work {
            report.groups = work.groups.values().cloned().collect();
            report.groups.iter_mut().for_each(|row| row.contains.clone_from(&work.contains));
        }
        self.report.send_if_modified(|told| {
            let is_new = *told != report;
            *told = report;
            is_new
        });
    }
}

/// Returns what became of a commit, the worst of its groups.
fn worst(results: &Results) -> Ending {
    let endings = results.values().map(|result| match result {
        Ok(verdict) => match verdict.outcome {
            Outcome::Accepted | Outcome::Duplicate | Outcome::Suspended => Ending::Published,
            refused @ (Outcome::Held | Outcome::Stale | Outcome::Conflict | Outcome::Invalid) => {
                Ending::Refused(refused)
            }
        },
        Err(failure) => match failure.cause {
            Cause::Work => Ending::Failed,
            Cause::Invalid => Ending::Invalid,
            Cause::Away => Ending::Away,
            Cause::Refused(outcome) => Ending::Refused(outcome),
        },
    });
    // What a new commit has to mend comes before what mends itself.
    let rank = |ending: &Ending| match ending {
        Ending::NothingNew => 0,
        Ending::Published => 1,
        Ending::Away => 2,
        Ending::Refused(_) | Ending::Rejected => 3,
        Ending::Failed => 4,
        Ending::Invalid => 5,
        Ending::Cancelled => 6,
    };
    endings.max_by_key(rank).unwrap_or(Ending::Published)
}

fn panicked(error: &str) -> Results {
    let failure = Failure::permanent(Stage::Evaluated, format!("the pipeline broke: {error}"));
    Results::from([(GroupName::default_group(), Err(failure))])
}

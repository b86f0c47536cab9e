//! The agent: one loop that owns everything it knows, looks, decides by `engine::fleet::reconcile`, and lets others act.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use stead_engine::fleet::reconcile::{Closure, ClosureState, LocalState, fetch_retry_at};
use stead_model::WorkerName;
use stead_model::fleet::state::{Assigned, Assignment, Seen};
use stead_model::fleet::vm::Resources;
use stead_model::fleet::{Code, InstanceKey, Millis};
use stead_model::plan::Digest;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::act::{ActError, Hands, hands};
use super::facts::Abilities;
use super::fetch::{FetchError, Fetched, Fetcher, Progress};
use super::figures::Figures;
use super::files::{Files, Lock, Session};
use super::ready::Run;
use super::report::Told;
use super::{Settings, WorkerError, clock};
use crate::api::{Beat, CallError, Master};
use crate::events::Ev;

mod look;
mod runs;
mod talk;

/// How often the first heartbeats are sent, until a master says it.
const HEARTBEAT: Millis = 5_000;
/// How long a machine with foreign or failing surroundings is left alone.
const PAUSE: Millis = 5_000;

/// The agent of a worker.
pub(super) struct Agent {
    settings: Settings,
    name: WorkerName,
    master: Arc<dyn Master>,
    hands: Arc<Hands>,
    fetcher: Arc<Fetcher>,
    abilities: Abilities,
    boot_id: String,
    session: Session,
    seq: u64,
    applied: Option<Assignment>,
    lease_until: Millis,
    /// Until when by what is written down.
    kept_lease: Millis,
    work: JoinSet<Done>,
    /// What is under way for instances.
    busy: BTreeMap<InstanceKey, Busy>,
    /// What is under way for closures.
    fetching: BTreeMap<Digest, Id>,
    /// How much of them came.
    progress: BTreeMap<Digest, Arc<Progress>>,
    /// Closures that are here and not kept yet, and those that could not be had.
    closures: BTreeMap<Digest, Closure>,
    fetch_messages: BTreeMap<Digest, String>,
    built_locally: BTreeSet<Digest>,
    /// Machines taken over, or started, by this agent.
    adopted: BTreeSet<InstanceKey>,
    watched: BTreeMap<InstanceKey, Watched>,
    /// Instances whose last act failed without a record that could say so.
    paused: BTreeMap<InstanceKey, Paused>,
    told: Told,
    used: Resources,
    was_disk_low: bool,
    /// Machines here that are not ours.
    foreign: BTreeSet<String>,
    /// Whether something here or assigned must not run twice.
    has_singletons: bool,
    is_telling: bool,
    needs_full: bool,
    last_beat: Option<Millis>,
    last_full: Millis,
    interval: Millis,
    poll_failures: u32,
    beat_failures: u32,
    next_drift: Millis,
    wake_at: Option<Millis>,
    figures: Arc<Figures>,
    _lock: Lock,
}

/// What is under way for an instance.
struct Busy {
    state: LocalState,
    /// Whether it is stopped because its lease is over.
    is_fencing: bool,
    abort: AbortHandle,
}

/// A run of an instance that is looked after.
struct Watched {
    run: Run,
    /// Why it is not ready; none: it is.
    why_not: Option<String>,
    probe: Option<AbortHandle>,
    end: AbortHandle,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.end.abort();
        if let Some(probe) = &self.probe {
            probe.abort();
        }
    }
}

struct Paused {
    until: Millis,
    code: Code,
    message: String,
}

/// What came to its end.
enum Done {
    Acted(InstanceKey, Result<(), ActError>),
    Fetched(Digest, Result<Fetched, FetchError>),
    Rooted(Digest, Result<(), FetchError>),
    /// A run of an instance ended.
    Ended(InstanceKey),
    Probed(InstanceKey, Run, Option<String>),
    Polled(Result<Option<Assignment>, CallError>),
    Told {
        sent_at: Millis,
        is_full: bool,
        snapshot: BTreeMap<InstanceKey, Seen>,
        answer: Result<Beat, CallError>,
    },
    FoundOut(Abilities),
}

impl Agent {
    /// Takes the state directory and begins another life.
    pub(super) fn begin(settings: Settings, master: Arc<dyn Master>) -> Result<Self, WorkerError> {
        let (files, lock) = Files::take(&settings.state_dir)?;
        settings.begin_events()?;
        let about =
            |source: std::io::Error| WorkerError::Files { path: files.directory().to_owned(), source };
        let boot_id = clock::boot_id();
        let name = settings.name()?;
        match files.name().map_err(about)? {
            Some(known) if known != name.as_str() => {
                return Err(WorkerError::Renamed { directory: files.directory().to_owned(), known, name });
            }
            Some(_) => {}
            None => files.set_name(&name).map_err(about)?,
        }
        let hands = Arc::new(hands(&settings, files.clone(), &name)?);
        hands.recall().map_err(about)?;
        let (figures, applied) = (Arc::new(Figures::default()), files.assignment());
        figures.applied(applied.as_ref().map_or(0, |applied| applied.generation));
        let fetcher = Fetcher::new(files.clone(), &settings.file, settings.search_path.clone());
        Ok(Self {
            name,
            session: files.next_session().map_err(about)?,
            applied,
            lease_until: files.lease(&boot_id),
            kept_lease: files.lease(&boot_id),
            abilities: Abilities::at_first(&hands.machines),
            fetcher: Arc::new(fetcher),
            master,
            hands,
            boot_id,
            seq: 0,
            work: JoinSet::new(),
            busy: BTreeMap::new(),
            fetching: BTreeMap::new(),
            progress: BTreeMap::new(),
            closures: BTreeMap::new(),
            fetch_messages: BTreeMap::new(),
            built_locally: BTreeSet::new(),
            adopted: BTreeSet::new(),
            watched: BTreeMap::new(),
            paused: BTreeMap::new(),
            told: Told::default(),
            used: Resources::default(),
            was_disk_low: false,
            foreign: BTreeSet::new(),
            has_singletons: false,
            is_telling: false,
            needs_full: true,
            last_beat: None,
            last_full: 0,
            interval: HEARTBEAT,
            poll_failures: 0,
            beat_failures: 0,
            next_drift: 0,
            wake_at: None,
            figures,
            settings,
            _lock: lock,
        })
    }

    /// Returns what it counts.
    pub(super) fn figures(&self) -> Arc<Figures> {
        Arc::clone(&self.figures)
    }

    /// Runs until `shutdown`. What is under way is dropped, and gone on with by the next agent.
    pub(super) async fn run(mut self, shutdown: CancellationToken) -> Result<(), WorkerError> {
        let (machines, binary) = (self.hands.machines.clone(), self.settings.file.nix.binary.clone());
        let search_path = self.settings.search_path.clone();
        self.work
            .spawn(async move { Done::FoundOut(Abilities::find_out(machines, binary, search_path).await) });
        self.poll();
        self.look().await;
        loop {
            self.tell();
            let pause = Duration::from_millis(self.next_wake().saturating_sub(clock::now()));
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                Some(ended) = self.work.join_next_with_id() => {
                    let taken = self.take(ended).await;
                    if let Err(WorkerError::Replaced) = &taken {
                        self.give_way().await;
                    }
                    taken?;
                }
                () = tokio::time::sleep(pause) => {
                    let now = clock::now();
                    if now >= self.next_drift || self.wake_at.is_some_and(|wake| now >= wake) {
                        self.look().await;
                    }
                }
            }
        }
    }

    /// Returns when something is to be done though nothing happened.
    fn next_wake(&self) -> Millis {
        let look = self.wake_at.map_or(self.next_drift, |wake| wake.min(self.next_drift));
        if self.is_telling { look } else { look.min(self.next_beat()) }
    }

    async fn take(&mut self, ended: Result<(Id, Done), JoinError>) -> Result<(), WorkerError> {
        let done = match ended {
            Ok((_, done)) => done,
            Err(error) => {
                // Stopped on purpose, or broken: whatever it was about is looked at anew.
                let under_way = self.busy.len() + self.fetching.len();
                self.busy.retain(|_, busy| busy.abort.id() != error.id());
                self.fetching.retain(|_, id| *id != error.id());
                let was_watching = under_way == self.busy.len() + self.fetching.len();
                if !was_watching || !error.is_cancelled() {
                    self.look().await;
                }
                return Ok(());
            }
        };
        match done {
            Done::Acted(key, result) => {
                self.busy.remove(&key);
                self.note_act(&key, result);
            }
            Done::Fetched(hash, result) => self.note_fetch(hash, result),
            Done::Rooted(hash, result) => self.note_root(hash, result),
            Done::Ended(key) => drop(self.watched.remove(&key)),
            Done::Probed(key, run, why_not) => {
                if let Some(watched) = self.watched.get_mut(&key).filter(|watched| watched.run == run) {
                    watched.why_not = why_not;
                    watched.probe = None;
                }
            }
            Done::Polled(polled) => self.note_poll(polled)?,
            Done::Told { sent_at, is_full, snapshot, answer } => {
                self.note_told(sent_at, is_full, snapshot, answer)?;
                if self.has_singletons {
                    self.look().await;
                }
                return Ok(());
            }
            Done::FoundOut(abilities) => {
                self.needs_full |= abilities != self.abilities;
                if let Some(events) = &self.settings.events {
                    // Once in each life of an agent; the status goes on saying it.
                    abilities.notes.iter().for_each(|note| events.say(note));
                }
                self.abilities = abilities;
            }
        }
        self.look().await;
        Ok(())
    }

    fn note_act(&mut self, key: &InstanceKey, result: Result<(), ActError>) {
        match result {
            Ok(()) => drop(self.paused.remove(key)),
            Err(error) => {
                let code = if error.is_foreign { Code::Foreign } else { Code::DriverError };
                let until = clock::now() + PAUSE;
                self.paused.insert(key.clone(), Paused { until, code, message: error.message });
            }
        }
    }

    fn note_fetch(&mut self, hash: Digest, result: Result<Fetched, FetchError>) {
        self.fetching.remove(&hash);
        self.progress.remove(&hash);
        match result {
            Ok(fetched) => {
                self.fetch_messages.remove(&hash);
                self.figures.fetched.add(fetched.bytes);
                if fetched.is_built_locally {
                    self.built_locally.insert(hash);
                }
                let fetched_for = self.applied.iter().flat_map(|applied| &applied.instances);
                let fetched_for = fetched_for
                    .filter(|assigned| assigned.vm_hash == hash)
                    .map(|assigned| assigned.instance.clone());
                for key in fetched_for.collect::<Vec<_>>() {
                    self.write(Ev::Fetched, &key, &format!("{} bytes of {hash}", fetched.bytes));
                }
                self.closures.insert(hash, Closure { state: ClosureState::Fetched, ..Closure::default() });
            }
            Err(error) => self.note_fetch_failure(hash, error),
        }
    }

    fn note_fetch_failure(&mut self, hash: Digest, error: FetchError) {
        let failures = self.closures.get(&hash).map_or(0, |closure| closure.failures) + 1;
        let next_retry = fetch_retry_at(failures, clock::now());
        let closure = Closure { state: ClosureState::Absent, failures, next_retry, code: Some(error.code) };
        self.closures.insert(hash, closure);
        self.fetch_messages.insert(hash, error.message);
    }

    fn note_root(&mut self, hash: Digest, result: Result<(), FetchError>) {
        self.fetching.remove(&hash);
        match result {
            Ok(()) => drop(self.closures.remove(&hash)),
            Err(error) => self.note_fetch_failure(hash, error),
        }
    }

    /// Writes down what is true as often as it is said.
    fn write(&self, ev: Ev, key: &InstanceKey, reason: &str) {
        let assigned = self.applied.as_ref().and_then(|applied| assigned(applied, key));
        self.hands.logbook.write(ev, key, assigned.map(|assigned| assigned.generation), reason);
    }

    fn wake(&mut self, at: Millis) {
        self.wake_at = Some(self.wake_at.map_or(at, |wake| wake.min(at)));
    }
}

fn assigned<'a>(applied: &'a Assignment, key: &InstanceKey) -> Option<&'a Assigned> {
    applied.instances.iter().find(|assigned| assigned.instance == *key)
}

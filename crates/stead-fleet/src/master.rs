//! A master: one task owns the [`Cluster`](stead_engine::fleet::cluster::Cluster), and everything comes to it as a call.
//!
//! ```text
//! wire, fleet dev ─▶ Handle (api::Master) ── calls ──▶ owner ─▶ Cluster ─▶ keys ─▶ FleetStore ─▶ answer
//!                                                        ▲
//!                             campaign: lease, leader key, watch of a follower
//! ```
//!
//! The owner stores what it decided before anybody hears of it: while a transaction is on its way it takes heartbeats, and
//! everything else waits. Heartbeats themselves store nothing; who enrols is written with what comes next. A leader holds
//! a lease of [`LEASE`], and every write of it names the transaction that made it the leader, so that a deposed one writes
//! nothing. A follower keeps a copy by watch and sends others to the leader. Without its store a master answers from
//! memory, marked stale, and changes nothing.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stead_model::WorkerName;
use stead_model::fleet::Millis;
use stead_runner::clock;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::api;
use crate::events::Events;
use crate::store::{FleetStore, StoreError, fleet_id};

mod calls;
mod campaign;
mod figures;
mod follower;
mod keys;
mod leader;
mod observe;
mod owner;
mod rebuild;
mod status;

pub use calls::Handle;
pub use keys::UnreadableKey;
pub use observe::{Check, Observe, ObserveError, Visitor, may_see};

/// How long a leader leads without renewing.
pub const LEASE: Duration = Duration::from_secs(6);

/// How often it renews.
pub const RENEWAL: Duration = Duration::from_secs(2);

/// Calls that wait to be taken: as many as a burst of heartbeats of a large fleet.
const MAILBOX: usize = 10_000;

/// Returns a way to the master at an address, if there is one.
pub type Peers = Arc<dyn Fn(&str) -> Option<Arc<dyn api::Master>> + Send + Sync>;

/// What a master needs.
#[derive(Clone)]
pub struct Settings {
    /// What it is called.
    pub name: String,
    /// The address it gives to others.
    pub address: String,
    /// What it keeps its state in.
    pub store: Arc<dyn FleetStore>,
    /// How many generations are kept.
    pub history: usize,
    /// Where it writes down what happens.
    pub events: Option<Arc<Events>>,
    /// How a follower reaches the leader, to answer as it would; none: it answers by itself where it can.
    pub peers: Option<Peers>,
    /// Begin anew from what the workers report.
    pub rebuild: Option<Rebuild>,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("name", &self.name)
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

/// How a master begins anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rebuild {
    /// Workers that have certificates, as far as is known: once all were heard, it goes on. Empty: nobody knows.
    pub enrolled: Vec<WorkerName>,
    /// How long is waited for them.
    pub patience: Duration,
}

impl Default for Rebuild {
    fn default() -> Self {
        Self { enrolled: Vec::new(), patience: Duration::from_secs(60) }
    }
}

/// Why there is no master.
#[derive(Debug, thiserror::Error)]
pub enum MasterError {
    /// The store has no answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What the store has cannot be read.
    #[error(transparent)]
    Unreadable(#[from] UnreadableKey),
}

/// A master that runs until this is dropped or told to stop.
#[derive(Debug)]
pub struct Running {
    handle: Arc<Handle>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Running {
    /// Returns the way to the master.
    pub fn handle(&self) -> Arc<Handle> {
        Arc::clone(&self.handle)
    }

    /// Returns when it has ended by itself, which it should not: then it leads no more.
    pub async fn ended(&self) {
        self.stop.cancelled().await;
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Ends it: it leads no more, so that another one may at once.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Starts a master. It leads at once if nobody else does. Needs a Tokio runtime; the answer comes when what is stored was
/// read once and it is known who leads, so that a store that cannot be used is told of here.
pub async fn start(settings: Settings) -> Result<Running, MasterError> {
    let fleet = fleet_id(&*settings.store).await?;
    let stop = CancellationToken::new();
    let (calls, mailbox) = mpsc::channel(MAILBOX);
    let (news, campaign_news) = mpsc::channel(64);
    let time = Time::begin();
    let figures = Arc::new(figures::Figures::default());
    let (begun, first) = Begun::new();
    let (owner, nudge) =
        owner::Owner::new((settings.clone(), fleet), time, Arc::clone(&figures), mailbox, campaign_news);
    let owner = owner.telling(begun.clone());
    let campaign = campaign::Campaign::new(&settings, news, (nudge, begun));
    let handle = Arc::new(Handle::new(calls, settings.peers, figures));
    let mut tasks = JoinSet::new();
    let stopping = stop.clone();
    tasks.spawn(async move { campaign.run(stopping).await });
    let stopping = stop.clone();
    tasks.spawn(async move {
        // However the owner ends, nobody goes on renewing the lease for it.
        let _ends_all = stopping.clone().drop_guard();
        owner.run(stopping).await;
    });
    let running = Running { handle, stop, tasks };
    // Who ends before it has begun is gone.
    if let Err(error) = first.await.unwrap_or(Ok(())) {
        running.stop().await;
        return Err(error);
    }
    Ok(running)
}

/// Runs a master until `shutdown`, and calls `ready` with the way to it once it answers.
pub async fn run(
    settings: Settings,
    shutdown: CancellationToken,
    ready: impl FnOnce(Arc<Handle>),
) -> Result<(), MasterError> {
    let running = start(settings).await?;
    ready(running.handle());
    shutdown.cancelled().await;
    running.stop().await;
    Ok(())
}

/// Tells once how a master began.
#[derive(Clone)]
struct Begun(Arc<Mutex<Option<oneshot::Sender<Beginning>>>>);

/// How a master began.
type Beginning = Result<(), MasterError>;

impl Begun {
    fn new() -> (Self, oneshot::Receiver<Beginning>) {
        let (sender, receiver) = oneshot::channel();
        (Self(Arc::new(Mutex::new(Some(sender)))), receiver)
    }

    /// Tells how it began, if nobody has.
    fn tell(&self, how: Beginning) {
        if let Some(sender) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // Who started it may be gone.
            sender.send(how).ok();
        }
    }
}

/// The time of one master: milliseconds since 1970 when it began, and from then on a clock that nobody sets.
#[derive(Clone, Copy, Debug)]
struct Time {
    base: Millis,
    began: std::time::Instant,
}

impl Time {
    fn begin() -> Self {
        let base = u64::try_from(clock::now().as_micros() / 1_000).unwrap_or(0);
        Self { base, began: clock::instant() }
    }

    fn now(&self) -> Millis {
        self.base + u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

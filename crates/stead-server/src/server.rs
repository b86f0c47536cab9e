//! What all connections share.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use serde_json::{Map, json};
use stead_drivers::site::{Manifests, load};
use stead_model::node::wire::{WireCode, WireError};
use stead_model::token::Claims;
use stead_runner::clock;
use stead_web::Desk;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::artifacts::{Index, Indexes};
use crate::audit::Audit;
use crate::keys::Keys;
use crate::log::Log;
use crate::place::ServerFacts;
use crate::plans::Plans;
use crate::rates::Rates;
use crate::report::{ReloadReport, ServerReport};
use crate::snapshot::{Snapshot, Sources, Spoilt, said};
use crate::store::Store;

/// What all connections share.
pub(crate) struct Server {
    /// What snapshots are made of.
    pub(crate) sources: Sources,
    /// Signals, jobs, reports.
    pub(crate) store: Store,
    /// Submitted plans.
    pub(crate) plans: Plans,
    /// The records of runs, for the page.
    pub(crate) desk: Desk,
    /// What was asked and answered.
    pub(crate) log: Arc<Log>,
    /// What operators did.
    pub(crate) audit: Audit,
    /// Requests without a token, by address.
    pub(crate) anonymous: Rates<IpAddr>,
    /// Refused tokens, by address.
    pub(crate) failures: Rates<IpAddr>,
    /// Requests with a token, by its id.
    pub(crate) tokens: Rates<String>,
    pub(crate) artifacts: Indexes,
    snapshot: RwLock<Arc<Snapshot>>,
    reload: Mutex<Option<ReloadReport>>,
    reloading: tokio::sync::Mutex<()>,
    /// How often everything, and how often the keys, began to be read again.
    reloads: AtomicU64,
    key_reloads: AtomicU64,
    /// How the keys were last read.
    key_reload: Mutex<Result<(), WireError>>,
    /// What goes on also if its client does not.
    errands: Mutex<JoinSet<()>>,
    indexes: watch::Sender<Option<Arc<Index>>>,
    stopping: watch::Receiver<bool>,
    started: Instant,
    facts: ServerFacts,
}

/// What a server is made of.
pub(crate) struct Parts {
    pub(crate) sources: Sources,
    pub(crate) snapshot: Snapshot,
    pub(crate) store: Store,
    pub(crate) plans: Plans,
    pub(crate) desk: Desk,
    pub(crate) log: Arc<Log>,
    pub(crate) audit: Audit,
    pub(crate) stopping: watch::Receiver<bool>,
    pub(crate) facts: ServerFacts,
}

impl Server {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let (indexes, artifacts) = watch::channel(None);
        Arc::new(Self {
            sources: parts.sources,
            store: parts.store,
            plans: parts.plans,
            desk: parts.desk,
            log: parts.log,
            audit: parts.audit,
            anonymous: Rates::default(),
            failures: Rates::default(),
            tokens: Rates::default(),
            artifacts,
            snapshot: RwLock::new(Arc::new(parts.snapshot)),
            reload: Mutex::new(None),
            reloading: tokio::sync::Mutex::new(()),
            reloads: AtomicU64::new(0),
            key_reloads: AtomicU64::new(0),
            key_reload: Mutex::new(Ok(())),
            errands: Mutex::default(),
            indexes,
            stopping: parts.stopping,
            started: clock::instant(),
            facts: parts.facts,
        })
    }

    /// Returns the site as it is in force. Who answers takes it once, so that one answer is of one moment.
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends when the server does.
    pub(crate) fn stops(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stopping = self.stopping();
        async move {
            // Who could say so is gone: that is an end, too.
            drop(stopping.wait_for(|stopping| *stopping).await);
        }
    }

    /// Returns what turns true when the server stops.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.clone()
    }

    /// Returns what the server says of itself.
    pub(crate) fn report(&self) -> ServerReport {
        let snapshot = self.snapshot();
        let pins = snapshot.certificate.pins();
        let facts = ServerFacts {
            fingerprint: snapshot.certificate.fingerprint().to_owned(),
            spki_pin: pins.spki_pin.clone(),
            specs: snapshot.site.specs.len(),
            repos: snapshot.repos.len(),
            replaced_fingerprint: None,
            ..self.facts.clone()
        };
        ServerReport {
            facts,
            uptime_seconds: self.started.elapsed().as_secs(),
            agents: self.store.connected(),
            for_run: self.sources.options.for_run,
            reload: self.reload.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            unusable_plans: self.plans.problems().to_vec(),
            problem: self.store.problem(),
        }
    }

    /// Does work to its end, also if who wants it goes away in between.
    pub(crate) async fn see_through<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, WireError> {
        let (done, told) = oneshot::channel();
        {
            let mut errands = self.errands.lock().unwrap_or_else(PoisonError::into_inner);
            while errands.try_join_next().is_some() {}
            errands.spawn(async move {
                // Who wanted it may be gone.
                done.send(work.await).ok();
            });
        }
        told.await.map_err(|_| WireError::new(WireCode::E500, "it was cut off"))
    }

    /// Waits for what goes on without a client.
    pub(crate) async fn finish(&self) {
        let mut errands = std::mem::take(&mut *self.errands.lock().unwrap_or_else(PoisonError::into_inner));
        while errands.join_next().await.is_some() {}
    }

    /// Checks what has held of a token before.
    pub(crate) fn verify_again(&self, claims: &Claims) -> Result<(), WireError> {
        self.snapshot().verify_again(claims, clock::now().as_micros() / 1_000_000)
    }

    /// Reads the keys again, and nothing else: whatever is wrong with other files, what is revoked is refused.
    pub(crate) async fn reload_keys(&self) -> Result<(), WireError> {
        let asked = self.key_reloads.load(Ordering::SeqCst);
        let _one_at_a_time = self.reloading.lock().await;
        if self.key_reloads.load(Ordering::SeqCst) > asked {
            // It has begun after it was asked for here: it has seen the same files.
            return self.key_reload.lock().unwrap_or_else(PoisonError::into_inner).clone();
        }
        self.key_reloads.fetch_add(1, Ordering::SeqCst);
        let result = self.read_keys().await;
        if let Err(error) = &result {
            let known = [("ok".to_owned(), json!(false)), ("problem".to_owned(), json!(error.message))];
            self.log.say("keys", known.into_iter().collect());
        }
        self.key_reload.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&result);
        result
    }

    async fn read_keys(&self) -> Result<(), WireError> {
        let site = self.sources.place.site.clone();
        let read = tokio::task::spawn_blocking(move || load(&site, &site, Manifests::None)).await;
        let site = match read {
            Ok(Ok(loaded)) => loaded.site,
            Ok(Err(error)) => return Err(WireError::new(WireCode::E400, said(&error))),
            Err(_) => return Err(WireError::new(WireCode::E500, "it was cut off")),
        };
        let problems = Keys::problems(&site);
        if !problems.is_empty() {
            return Err(WireError::new(WireCode::E400, problems.join("; ")));
        }
        self.snapshot().set_keys(Keys::of(&site));
        self.revoke().await
    }

    /// Drops what waits for machines whose tokens are revoked.
    async fn revoke(&self) -> Result<(), WireError> {
        let keys = self.snapshot().keys();
        self.store.revoke(keys.revoked()).await
    }

    /// Reads everything again. A reading with problems changes nothing but what is reported.
    pub(crate) async fn reload(self: &Arc<Self>) {
        let asked = self.reloads.load(Ordering::SeqCst);
        let _one_at_a_time = self.reloading.lock().await;
        if self.reloads.load(Ordering::SeqCst) > asked {
            return;
        }
        self.reloads.fetch_add(1, Ordering::SeqCst);
        // What went wrong is in the log and in the report.
        drop(self.read_again(Spoilt::Refused).await);
    }

    /// Reads everything again for a run, which has looked at all that its nodes need: a spec or a posture of others that
    /// was spoilt stays as it was.
    pub(crate) async fn reload_usable(self: &Arc<Self>) -> Result<(), WireError> {
        let _one_at_a_time = self.reloading.lock().await;
        self.read_again(Spoilt::Kept).await
    }

    /// Reads everything again, while nobody else does. It is an error if it goes on with what it has.
    async fn read_again(self: &Arc<Self>, spoilt: Spoilt) -> Result<(), WireError> {
        let server = Arc::clone(self);
        let before = self.snapshot();
        let read = tokio::task::spawn_blocking(move || server.sources.reload(&before, spoilt));
        let (refused, problems) = match read.await {
            Ok(Ok((snapshot, mut problems))) => {
                *self.snapshot.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
                let refused = self.revoke().await.err();
                problems.extend(refused.as_ref().map(|error| error.message.clone()));
                (refused, problems)
            }
            Ok(Err(problems)) => (Some(WireError::new(WireCode::E400, problems.join("; "))), problems),
            Err(_) => {
                let problem = "the reload itself has failed".to_owned();
                (Some(WireError::new(WireCode::E500, problem.clone())), vec![problem])
            }
        };
        let ok = problems.is_empty();
        let mut known = Map::new();
        known.insert("ok".to_owned(), json!(ok));
        known.insert("problems".to_owned(), json!(problems));
        self.log.say("reload", known);
        let report = ReloadReport { at: clock::now(), ok, problems };
        *self.reload.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
        self.index().await;
        refused.map_or(Ok(()), Err)
    }

    /// Hashes what there is to serve by hash.
    pub(crate) async fn index(&self) {
        let before = self.artifacts.borrow().clone();
        let state = self.sources.place.state.clone();
        let made = tokio::task::spawn_blocking(move || Index::make(&state, before.as_deref()));
        if let Ok(index) = made.await {
            self.indexes.send_replace(Some(Arc::new(index)));
        }
    }
}

//! What all connections share.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use serde_json::{Map, Value, json};
use stead_runner::clock;
use tokio::sync::watch;

use crate::artifacts::{Index, Indexes};
use crate::log::Log;
use crate::place::ServerFacts;
use crate::rates::Rates;
use crate::report::{ReloadReport, ServerReport};
use crate::snapshot::{Snapshot, Sources};
use crate::store::Store;

/// What all connections share.
pub(crate) struct Server {
    /// What snapshots are made of.
    pub(crate) sources: Sources,
    /// Signals, jobs, reports.
    pub(crate) store: Store,
    /// What was asked and answered.
    pub(crate) log: Log,
    /// What operators did.
    pub(crate) audit: Log,
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
    pub(crate) log: Log,
    pub(crate) audit: Log,
    pub(crate) stopping: watch::Receiver<bool>,
    pub(crate) facts: ServerFacts,
}

impl Server {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let (indexes, artifacts) = watch::channel(None);
        Arc::new(Self {
            sources: parts.sources,
            store: parts.store,
            log: parts.log,
            audit: parts.audit,
            anonymous: Rates::default(),
            failures: Rates::default(),
            tokens: Rates::default(),
            artifacts,
            snapshot: RwLock::new(Arc::new(parts.snapshot)),
            reload: Mutex::new(None),
            reloading: tokio::sync::Mutex::new(()),
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
            reload: self.reload.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// Reads everything again. A reading with problems changes nothing but what is reported.
    pub(crate) async fn reload(self: &Arc<Self>) {
        let _one_at_a_time = self.reloading.lock().await;
        let server = Arc::clone(self);
        let before = self.snapshot();
        let read = tokio::task::spawn_blocking(move || server.sources.reload(&before));
        let problems = match read.await {
            Ok(Ok(snapshot)) => {
                *self.snapshot.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
                Vec::new()
            }
            Ok(Err(error)) => chain(&error),
            Err(_) => vec!["the reload itself has failed".to_owned()],
        };
        let ok = problems.is_empty();
        let mut known = Map::new();
        known.insert("ok".to_owned(), json!(ok));
        known.insert("problems".to_owned(), json!(problems));
        self.log.say("reload", known);
        let report = ReloadReport { at: clock::now(), ok, problems };
        *self.reload.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
        self.index().await;
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

    /// Notes what an operator did.
    pub(crate) fn note(&self, by: &str, what: &str, known: Value) {
        let mut members = Map::new();
        members.insert("by".to_owned(), json!(by));
        if let Value::Object(known) = known {
            members.extend(known);
        }
        self.audit.say(what, members);
    }
}

/// Returns what an error says, and what its causes say.
fn chain(error: &dyn std::error::Error) -> Vec<String> {
    let mut messages = vec![error.to_string()];
    let mut next = error.source();
    while let Some(cause) = next {
        messages.push(cause.to_string());
        next = cause.source();
    }
    messages.dedup();
    messages
}

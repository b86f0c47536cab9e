//! Signals, jobs and reports: what outlives the server.
//!
//! [`state`] decides and remembers, [`journal`] keeps. Every change is journaled in the order it was made, and nobody is
//! told of one that is not on disk.

mod journal;
mod outputs;
mod record;
mod state;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use stead_model::node::wire::{
    AgentState, Job, JobRequest, NodeReport, NodeStatus, Signal, SignalRequest, StoredReport, WireCode,
    WireError,
};
use stead_model::{MessageId, NodeName};
use stead_runner::clock;
use tokio::sync::{Notify, watch};

pub use journal::JournalError;
use journal::{Journal, Ticket, to_lines};
use outputs::Outputs;
use record::Record;
use state::{NodeRecord, State};

use crate::place::ServerPlace;

/// A journal is rewritten when it is this much larger than what it stands for.
const REWRITE_BYTES: u64 = 16 << 20;

/// How long after its last poll an agent counts as connected.
const CONNECTED: Duration = Duration::from_secs(15);

/// What a server remembers.
pub(crate) struct Store {
    inner: Mutex<Inner>,
    journal: Journal,
    outputs: Outputs,
    stopping: watch::Receiver<bool>,
}

struct Inner {
    state: State,
    presence: HashMap<NodeName, Presence>,
    /// Bytes of the journal, and of it when it was last rewritten.
    size: u64,
    least: u64,
}

/// What is known of a node's agent while the server runs.
#[derive(Default)]
struct Presence {
    /// Counts polls: the newest is the one that is answered.
    poll: u64,
    polling: usize,
    last_poll: Option<Instant>,
    /// Something waits for the agent.
    wake: Arc<Notify>,
    /// Something is new for operators.
    news: Arc<Notify>,
}

impl Presence {
    fn is_connected(&self, now: Instant) -> bool {
        self.polling > 0 || self.last_poll.is_some_and(|last| now.duration_since(last) < CONNECTED)
    }
}

impl Store {
    /// Opens the store of a server; `stopping` turns true when its long-polls are to end.
    pub(crate) fn open(
        place: &ServerPlace,
        port: u16,
        stopping: watch::Receiver<bool>,
    ) -> Result<Self, JournalError> {
        let mut state = State::default();
        let (journal, size) = Journal::open(&place.journal(port), |record| state.apply(&record))?;
        let outputs = Outputs::open(place.outputs(port), state.jobs().map(|job| &job.id))?;
        state.forgotten.clear();
        let mut inner = Inner { state, presence: HashMap::new(), size, least: 0 };
        if size > REWRITE_BYTES / 16 {
            inner.rewrite(&journal);
        }
        Ok(Self { inner: Mutex::new(inner), journal, outputs, stopping })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes changes in and sees to it that they are kept.
    fn commit(&self, inner: &mut Inner, records: &[Record]) -> Ticket {
        for record in records {
            inner.state.apply(record);
        }
        let lines = to_lines(records);
        inner.size += lines.len() as u64;
        let ticket = self.journal.append(lines);
        if inner.size > inner.least * 2 + REWRITE_BYTES {
            inner.rewrite(&self.journal);
        }
        self.outputs.remove(&std::mem::take(&mut inner.state.forgotten));
        ticket
    }

    async fn kept(ticket: Ticket) -> Result<(), WireError> {
        let failed = |_| WireError::new(WireCode::E500, "it cannot be kept: look at the disk of the server");
        ticket.wait().await.map_err(failed)
    }

    /// Lets jobs expire whose agent did not come.
    fn expire(&self, inner: &mut Inner) {
        let expired = inner.state.expired(clock::now());
        if !expired.is_empty() {
            // Nobody waits for it: a crash before it is on disk makes the next start find the same.
            drop(self.commit(inner, &expired));
        }
    }

    /// Sends a signal to a node, which need not be known yet.
    pub(crate) async fn signal(
        &self,
        node: &NodeName,
        request: &SignalRequest,
    ) -> Result<MessageId, WireError> {
        let (id, ticket) = {
            let mut inner = self.lock();
            let (id, record) = inner.state.signal(node, request)?;
            (id, self.commit(&mut inner, &[record]))
        };
        Self::kept(ticket).await?;
        self.wake(node);
        Ok(id)
    }

    /// Queues a job.
    pub(crate) async fn submit(&self, request: &JobRequest, by: &str) -> Result<MessageId, WireError> {
        let (id, ticket) = {
            let mut inner = self.lock();
            self.expire(&mut inner);
            let (id, record) = inner.state.submit(request, by, clock::now())?;
            (id, self.commit(&mut inner, &[record]))
        };
        Self::kept(ticket).await?;
        self.wake(&request.node);
        Ok(id)
    }

    fn wake(&self, node: &NodeName) {
        if let Some(presence) = self.lock().presence.get(node) {
            presence.wake.notify_waiters();
        }
    }

    /// Returns all jobs, oldest first, without what they wrote.
    pub(crate) fn jobs(&self) -> Vec<Job> {
        let mut inner = self.lock();
        self.expire(&mut inner);
        inner.state.jobs().cloned().collect()
    }

    /// Returns a job with what it wrote.
    pub(crate) fn job(&self, id: &MessageId) -> Result<Job, WireError> {
        let mut job = {
            let mut inner = self.lock();
            self.expire(&mut inner);
            inner.state.job(id)?.clone()
        };
        if job.state.is_final() {
            (job.stdout, job.stderr) = self.outputs.read(id);
        }
        Ok(job)
    }

    /// Ends a job, or asks its agent to.
    pub(crate) async fn cancel(&self, id: &MessageId) -> Result<Job, WireError> {
        let (job, ticket) = {
            let mut inner = self.lock();
            self.expire(&mut inner);
            let record = inner.state.cancel(id, clock::now())?;
            let ticket = self.commit(&mut inner, &[record]);
            (inner.state.job(id)?.clone(), ticket)
        };
        Self::kept(ticket).await?;
        self.wake(&job.node);
        Ok(job)
    }

    /// Whether a node has been given this job and has not ended it.
    pub(crate) fn has_job(&self, node: &NodeName, id: &MessageId) -> bool {
        self.lock().state.has_job(node, id)
    }

    /// Takes a report.
    pub(crate) async fn report(&self, node: &NodeName, report: NodeReport) -> Result<(), WireError> {
        if let Some(id) =
            report.id.as_ref().filter(|_| !report.stdout.is_empty() || !report.stderr.is_empty())
            && self.has_job(node, id)
        {
            // Before the journal says that the job has ended.
            self.outputs.write(id, &report).await?;
        }
        let ticket = {
            let mut inner = self.lock();
            let records = inner.state.report(node, &report, clock::now())?;
            self.commit(&mut inner, &records)
        };
        Self::kept(ticket).await?;
        if let Some(presence) = self.lock().presence.get(node) {
            presence.news.notify_waiters();
        }
        Ok(())
    }

    /// Waits for what an agent is to be told, and returns it; nothing if the time is over, a newer poll has come or the
    /// server stops. Dropped in between, nothing is delivered.
    pub(crate) async fn next(
        &self,
        node: &NodeName,
        after: Option<&MessageId>,
        wait: Duration,
    ) -> Result<Option<Signal>, WireError> {
        let after = after.map(MessageId::sequence);
        let poll = Poll::begin(self, node);
        let deadline = tokio::time::Instant::now() + wait;
        let mut stopping = self.stopping.clone();
        loop {
            let woken = poll.wake.notified();
            tokio::pin!(woken);
            // From here on no wake-up is missed.
            woken.as_mut().enable();
            if let Some((signal, ticket)) = self.take(&poll, after) {
                if let Some(ticket) = ticket {
                    Self::kept(ticket).await?;
                }
                return Ok(Some(signal));
            }
            if poll.is_superseded() {
                return Ok(None);
            }
            tokio::select! {
                () = &mut woken => {}
                () = tokio::time::sleep_until(deadline) => return Ok(None),
                // A sender that is gone is a server that stops.
                _ = stopping.wait_for(|stopping| *stopping) => return Ok(None),
            }
        }
    }

    fn take(&self, poll: &Poll<'_>, after: Option<u64>) -> Option<(Signal, Option<Ticket>)> {
        if poll.is_superseded() {
            return None;
        }
        let mut inner = self.lock();
        self.expire(&mut inner);
        let (signal, record) = inner.state.next(poll.node, after)?;
        let ticket = record.map(|record| self.commit(&mut inner, &[record]));
        Some((signal, ticket))
    }

    /// Returns what is known of a node and its reports after `after`, as soon as there are some or the time is over.
    /// Nothing if it is not known and nobody waits for it.
    pub(crate) async fn follow(
        &self,
        node: &NodeName,
        after: u64,
        wait: Option<Duration>,
    ) -> Option<NodeStatus> {
        let Some(wait) = wait else { return self.status(node, after) };
        let news = Arc::clone(&self.lock().presence.entry(node.clone()).or_default().news);
        let deadline = tokio::time::Instant::now() + wait;
        let mut stopping = self.stopping.clone();
        loop {
            let told = news.notified();
            tokio::pin!(told);
            told.as_mut().enable();
            let status = self.status(node, after);
            if status.as_ref().is_some_and(|status| !status.reports.is_empty()) || *stopping.borrow() {
                return status.or_else(|| Some(unheard(node)));
            }
            tokio::select! {
                () = &mut told => {}
                () = tokio::time::sleep_until(deadline) => return status.or_else(|| Some(unheard(node))),
                _ = stopping.wait_for(|stopping| *stopping) => {}
            }
        }
    }

    fn status(&self, node: &NodeName, after: u64) -> Option<NodeStatus> {
        let inner = self.lock();
        let (record, presence) = (inner.state.nodes.get(node), inner.presence.get(node));
        let has_polled = presence.is_some_and(|presence| presence.poll > 0);
        if record.is_none() && !has_polled {
            return None;
        }
        let empty = NodeRecord::default();
        Some(status_of(node, record.unwrap_or(&empty), presence, |report| report.seq > after))
    }

    /// Returns what is known of every node, each with its last report.
    pub(crate) fn statuses(&self) -> Vec<NodeStatus> {
        let inner = self.lock();
        let mut known: BTreeMap<&NodeName, Option<&NodeRecord>> =
            inner.state.nodes.iter().map(|(name, record)| (name, Some(record))).collect();
        for (name, _) in inner.presence.iter().filter(|(_, presence)| presence.poll > 0) {
            known.entry(name).or_default();
        }
        let empty = NodeRecord::default();
        let status = |(name, record): (&NodeName, Option<&NodeRecord>)| {
            let record = record.unwrap_or(&empty);
            status_of(name, record, inner.presence.get(name), |report| report.seq == record.seq)
        };
        known.into_iter().map(status).collect()
    }

    /// Returns how many agents are connected.
    pub(crate) fn connected(&self) -> usize {
        let now = clock::instant();
        self.lock().presence.values().filter(|presence| presence.is_connected(now)).count()
    }
}

impl Inner {
    /// Lets the journal hold what is remembered, and no history.
    fn rewrite(&mut self, journal: &Journal) {
        let lines = to_lines(&self.state.to_records());
        self.size = lines.len() as u64;
        self.least = self.size;
        journal.replace(lines);
    }
}

fn unheard(node: &NodeName) -> NodeStatus {
    status_of(node, &NodeRecord::default(), None, |_| false)
}

fn status_of(
    node: &NodeName,
    record: &NodeRecord,
    presence: Option<&Presence>,
    is_wanted: impl Fn(&StoredReport) -> bool,
) -> NodeStatus {
    let is_connected = presence.is_some_and(|presence| presence.is_connected(clock::instant()));
    let has_polled = presence.is_some_and(|presence| presence.poll > 0);
    let agent = match (is_connected, has_polled || record.heard.is_some()) {
        (true, _) => AgentState::Connected,
        (false, true) => AgentState::Stale,
        (false, false) => AgentState::None,
    };
    NodeStatus {
        node: node.clone(),
        agent,
        last_seen: record.heard,
        spec_digest: record.spec_digest.clone(),
        state_digest: record.state_digest.clone(),
        seq: record.seq,
        reports: record.reports.iter().filter(|report| is_wanted(report)).cloned().collect(),
    }
}

/// One poll of an agent, as long as it lasts.
struct Poll<'s> {
    store: &'s Store,
    node: &'s NodeName,
    number: u64,
    wake: Arc<Notify>,
}

impl<'s> Poll<'s> {
    fn begin(store: &'s Store, node: &'s NodeName) -> Self {
        let mut inner = store.lock();
        let presence = inner.presence.entry(node.clone()).or_default();
        presence.poll += 1;
        presence.polling += 1;
        presence.last_poll = Some(clock::instant());
        let (number, wake) = (presence.poll, Arc::clone(&presence.wake));
        drop(inner);
        // An older poll of this agent ends: its connection is likely gone.
        wake.notify_waiters();
        Self { store, node, number, wake }
    }

    fn is_superseded(&self) -> bool {
        self.store.lock().presence.get(self.node).is_none_or(|presence| presence.poll != self.number)
    }
}

impl Drop for Poll<'_> {
    fn drop(&mut self) {
        if let Some(presence) = self.store.lock().presence.get_mut(self.node) {
            presence.polling = presence.polling.saturating_sub(1);
            presence.last_poll = Some(clock::instant());
        }
    }
}

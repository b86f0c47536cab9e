//! Signals, jobs and reports: what outlives the server.
//!
//! [`state`] decides and remembers, [`journal`] keeps. Every change is journaled in the order it was made, and nobody is
//! told of one that is not on disk.

mod inputs;
mod journal;
mod outputs;
mod record;
mod state;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use stead_model::node::wire::{
    AgentState, Job, JobRequest, NodeReport, NodeStatus, Signal, SignalRequest, StoredReport, WireCode,
    WireError,
};
use stead_model::token::Revoked;
use stead_model::{MessageId, NodeName};
use stead_runner::clock;
use tokio::sync::{Notify, watch};

use inputs::Inputs;
pub use journal::JournalError;
pub(crate) use journal::Tell;
use journal::{Journal, Ticket, to_lines};
use outputs::Outputs;
use record::Record;
pub(crate) use state::Taken;
use state::{NodeRecord, State};

use crate::place::ServerPlace;

/// A journal of this size is rewritten at the start.
const START_BYTES: u64 = 1 << 20;

/// How long nothing is taken in after a change could not be kept.
const REST: Duration = Duration::from_secs(1);

/// The most of a list that is one answer: clients read twice as much.
const PAGE_BYTES: usize = 8 << 20;

/// How long after its last poll an agent counts as connected.
const CONNECTED: Duration = Duration::from_secs(15);

/// What a server remembers.
pub(crate) struct Store {
    inner: Mutex<Inner>,
    journal: Journal,
    outputs: Outputs,
    inputs: Inputs,
    /// A job has gone on.
    job_news: Notify,
    stopping: watch::Receiver<bool>,
}

struct Inner {
    state: State,
    presence: HashMap<NodeName, Presence>,
    /// What jobs that run have written so far, as far as they tell. Lost with the server: they tell it again.
    live: HashMap<MessageId, String>,
    /// A change could not be kept: until then no other is tried.
    rests_until: Option<Instant>,
}

/// A job that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Submitted {
    pub(crate) id: MessageId,
    /// Whether it is queued now, and was not before.
    pub(crate) is_new: bool,
}

/// A part of a list, and after what the next one begins if there is more.
pub(crate) struct Page<T> {
    pub(crate) items: Vec<T>,
    pub(crate) next: Option<String>,
}

impl<T: serde::Serialize> Page<T> {
    /// Takes as many as fit one answer; at least one.
    fn of(all: impl Iterator<Item = T>, name: impl Fn(&T) -> String) -> Self {
        let (mut items, mut size) = (Vec::new(), 0);
        for item in all {
            size += serde_json::to_vec(&item).map_or(0, |text| text.len() + 1);
            if size > PAGE_BYTES && !items.is_empty() {
                let next = items.last().map(&name);
                return Self { items, next };
            }
            items.push(item);
        }
        Self { items, next: None }
    }
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
        tell: Tell,
    ) -> Result<Self, JournalError> {
        let mut state = State::default();
        let journal = Journal::open(&place.journal(port), |record| state.apply(&record), tell)?;
        if journal.size() == 0 {
            // Agents know the last id they were given by a journal that may have been before this one.
            let next = u64::try_from(clock::now().as_micros() / 1_000).unwrap_or(1);
            let first = Record::Counter { next };
            state.apply(&first);
            drop(journal.append(to_lines(&[first])));
        }
        let outputs = Outputs::open(place.outputs(port), state.jobs().map(|job| &job.id))?;
        let inputs = Inputs::open(place.inputs(port), state.readers())?;
        state.forgotten.clear();
        state.read_all.clear();
        let inner = Inner { state, presence: HashMap::new(), live: HashMap::new(), rests_until: None };
        if journal.size() > START_BYTES {
            inner.rewrite(&journal);
        }
        Ok(Self { inner: Mutex::new(inner), journal, outputs, inputs, job_news: Notify::new(), stopping })
    }

    /// Returns what is remembered. What could not be kept is not: nobody was told of it, and nobody is.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if self.journal.has_failed() && !inner.is_resting() {
            inner.rests_until = Some(clock::instant() + REST);
            let mut state = State::default();
            // One that cannot be read is refused at every change, and tried again later.
            if self.journal.recover(|record| state.apply(&record)).is_ok() {
                state.forgotten.clear();
                state.read_all.clear();
                inner.state = state;
            }
        }
        inner
    }

    /// Returns why nothing can be kept, if that is so.
    pub(crate) fn problem(&self) -> Option<String> {
        self.journal.problem()
    }

    /// Takes changes in and sees to it that they are kept.
    fn commit(&self, inner: &mut Inner, records: &[Record]) -> Result<Ticket, WireError> {
        if inner.is_resting() || self.journal.has_failed() {
            return Err(unkept());
        }
        for record in records {
            inner.state.apply(record);
        }
        let ticket = self.journal.append(to_lines(records));
        if self.journal.is_large() {
            inner.rewrite(&self.journal);
        }
        let outputs = std::mem::take(&mut inner.state.forgotten).into_iter().map(|id| self.outputs.file(&id));
        let inputs = std::mem::take(&mut inner.state.read_all).into_iter().map(|id| self.inputs.file(&id));
        self.journal.remove(outputs.chain(inputs).collect());
        Ok(ticket)
    }

    async fn kept(ticket: Ticket) -> Result<(), WireError> {
        ticket.wait().await.map_err(|_| unkept())
    }

    /// Takes in which tokens are revoked. What waits for a node whose tokens are, or was given to it, is not for the
    /// machine that has the next ones.
    pub(crate) async fn revoke(&self, revoked: &Revoked) -> Result<(), WireError> {
        let ticket = {
            let mut inner = self.lock();
            let records = inner.state.revoke(revoked.nodes(), clock::now());
            self.commit(&mut inner, &records)?
        };
        Self::kept(ticket).await?;
        self.job_news.notify_waiters();
        Ok(())
    }

    /// Lets jobs expire whose agent did not come.
    fn expire(&self, inner: &mut Inner) {
        let expired = inner.state.expired(clock::now());
        if !expired.is_empty() {
            // Nobody waits for it: if it is not kept, the next who looks finds the same.
            self.commit(inner, &expired).ok();
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
            let (id, record) = inner.state.signal(node, request, clock::now())?;
            (id, self.commit(&mut inner, &[record])?)
        };
        Self::kept(ticket).await?;
        self.wake(node);
        Ok(id)
    }

    /// Queues a job, unless it was asked for before with the same key.
    pub(crate) async fn submit(&self, request: &JobRequest, by: &str) -> Result<Submitted, WireError> {
        let input = match &request.input {
            Some(input) => Some(self.inputs.write(input).await?),
            None => None,
        };
        let (submitted, ticket) = {
            let mut inner = self.lock();
            self.expire(&mut inner);
            match inner.state.known_by_key(request)? {
                // Told only once it is on disk, as the first time.
                Some(id) => (Submitted { id, is_new: false }, self.commit(&mut inner, &[])?),
                None => {
                    let (id, record) = inner.state.submit(request, by, clock::now())?;
                    // Before the journal says that there is such a job.
                    input.map(|input| self.inputs.name(input, &id)).transpose()?;
                    (Submitted { id, is_new: true }, self.commit(&mut inner, &[record])?)
                }
            }
        };
        Self::kept(ticket).await?;
        self.wake(&request.node);
        Ok(submitted)
    }

    fn wake(&self, node: &NodeName) {
        if let Some(presence) = self.lock().presence.get(node) {
            presence.wake.notify_waiters();
        }
    }

    /// Returns jobs after one of them, oldest first, without what they wrote.
    pub(crate) fn jobs(&self, after: Option<&MessageId>) -> Page<Job> {
        let jobs = {
            let mut inner = self.lock();
            self.expire(&mut inner);
            // What they are asked to run may be long: it is written down without holding others up.
            inner.state.clone()
        };
        let after = after.map_or(0, MessageId::sequence);
        Page::of(jobs.jobs_after(after).cloned(), |job| job.id.to_string())
    }

    /// Returns what a job of `node` reads; the node has been given it.
    pub(crate) async fn input(&self, node: &NodeName, id: &MessageId) -> Result<Vec<u8>, WireError> {
        if !self.lock().state.reads(node, id) {
            let message = format!("there is no job {id} of this node that reads something");
            return Err(WireError::new(WireCode::E200, message));
        }
        self.inputs.read(id).await
    }

    /// Returns a job as soon as it has ended or has written more than `after` bytes, or the time is over.
    pub(crate) async fn follow_job(
        &self,
        id: &MessageId,
        after: u64,
        wait: Duration,
    ) -> Result<Job, WireError> {
        let deadline = tokio::time::Instant::now() + wait;
        let mut stopping = self.stopping.clone();
        loop {
            let told = self.job_news.notified();
            tokio::pin!(told);
            told.as_mut().enable();
            let job = self.job(id)?;
            if job.state.is_final() || job.stdout.len() as u64 > after || *stopping.borrow() {
                return Ok(job);
            }
            tokio::select! {
                () = &mut told => {}
                () = tokio::time::sleep_until(deadline) => return Ok(job),
                _ = stopping.wait_for(|stopping| *stopping) => {}
            }
        }
    }

    /// Returns a job with what it wrote; of one that runs, as far as it has told.
    pub(crate) fn job(&self, id: &MessageId) -> Result<Job, WireError> {
        let (mut job, written) = {
            let mut inner = self.lock();
            self.expire(&mut inner);
            let mut job = inner.state.job(id)?.clone();
            job.stdout = inner.live.get(id).cloned().unwrap_or_default();
            (job, inner.state.written(id))
        };
        if job.state.is_final() && written > 0 {
            match self.outputs.read(id) {
                Some(output) => (job.stdout, job.stderr) = output,
                None => {
                    job.truncated = true;
                    job.error.get_or_insert_with(|| "what it wrote is not there any more".to_owned());
                }
            }
        }
        Ok(job)
    }

    /// Ends a job, or asks its agent to.
    pub(crate) async fn cancel(&self, id: &MessageId) -> Result<Job, WireError> {
        let (job, ticket) = {
            let mut inner = self.lock();
            self.expire(&mut inner);
            let node = inner.state.job(id)?.node.clone();
            let presence = inner.presence.get(&node);
            let agent = match presence.is_some_and(|presence| presence.is_connected(clock::instant())) {
                true => AgentState::Connected,
                false => AgentState::Stale,
            };
            let record = inner.state.cancel(id, agent, clock::now())?;
            let ticket = self.commit(&mut inner, record.as_slice())?;
            (inner.state.job(id)?.clone(), ticket)
        };
        Self::kept(ticket).await?;
        self.wake(&job.node);
        self.job_news.notify_waiters();
        Ok(job)
    }

    /// Whether a node has been given this job and has not ended it.
    pub(crate) fn has_job(&self, node: &NodeName, id: &MessageId) -> bool {
        self.lock().state.has_job(node, id)
    }

    /// Takes a report.
    pub(crate) async fn report(&self, node: &NodeName, report: NodeReport) -> Result<(), WireError> {
        if self.take_progress(node, &report) {
            return Ok(());
        }
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
            self.commit(&mut inner, &records)?
        };
        Self::kept(ticket).await?;
        self.end_progress(&report);
        if let Some(presence) = self.lock().presence.get(node) {
            presence.news.notify_waiters();
        }
        Ok(())
    }

    /// Keeps what a job has written so far, if that is all `report` says. It is not journaled: the job's end has it all.
    fn take_progress(&self, node: &NodeName, report: &NodeReport) -> bool {
        let mut inner = self.lock();
        let is_progress = inner.state.is_progress(node, report);
        if let (true, Some(id)) = (is_progress, &report.id)
            && inner.state.has_job(node, id)
        {
            inner.live.insert(id.clone(), report.stdout.clone());
            self.job_news.notify_waiters();
        }
        is_progress
    }

    /// Lets go of what was kept of a job that has ended.
    fn end_progress(&self, report: &NodeReport) {
        if let Some(id) = &report.id {
            let mut inner = self.lock();
            if inner.state.job(id).is_ok_and(|job| job.state.is_final()) {
                inner.live.remove(id);
            }
        }
        self.job_news.notify_waiters();
    }

    /// Waits for what an agent is to be told, and returns it; nothing if the time is over, a newer poll has come or the
    /// server stops. Whether it may still be told is asked (`may_know`) whenever there may be something. Dropped in
    /// between, nothing is delivered.
    pub(crate) async fn next(
        &self,
        node: &NodeName,
        taken: Taken,
        wait: Duration,
        may_know: impl Fn() -> Result<(), WireError> + Send + Sync,
    ) -> Result<Option<Signal>, WireError> {
        let poll = Poll::begin(self, node);
        let deadline = tokio::time::Instant::now() + wait;
        let mut stopping = self.stopping.clone();
        loop {
            let woken = poll.wake.notified();
            tokio::pin!(woken);
            // From here on no wake-up is missed.
            woken.as_mut().enable();
            may_know()?;
            if let Some((signal, ticket)) = self.take(&poll, taken)? {
                Self::kept(ticket).await?;
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

    fn take(&self, poll: &Poll<'_>, taken: Taken) -> Result<Option<(Signal, Ticket)>, WireError> {
        if poll.is_superseded() {
            return Ok(None);
        }
        let now = clock::now();
        let mut inner = self.lock();
        self.expire(&mut inner);
        let outlived = inner.state.outlived(poll.node, taken, now);
        if !outlived.is_empty() {
            self.commit(&mut inner, &outlived)?;
        }
        let Some((signal, record)) = inner.state.next(poll.node, taken, now) else { return Ok(None) };
        // Also one that is given again: that there is such a signal has to be on disk.
        let ticket = self.commit(&mut inner, record.as_slice())?;
        Ok(Some((signal, ticket)))
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
        Some(status_of(node, record.map_or(&empty, |record| record), presence, |report| report.seq > after))
    }

    /// Returns what is known of nodes after one of them, by name, each with its last report.
    pub(crate) fn statuses(&self, after: Option<&NodeName>) -> Page<NodeStatus> {
        let inner = self.lock();
        let mut known: BTreeMap<&NodeName, Option<&NodeRecord>> =
            inner.state.nodes.iter().map(|(name, record)| (name, Some(&**record))).collect();
        for (name, _) in inner.presence.iter().filter(|(_, presence)| presence.poll > 0) {
            known.entry(name).or_default();
        }
        let empty = NodeRecord::default();
        let status = |(name, record): (&NodeName, Option<&NodeRecord>)| {
            let record = record.unwrap_or(&empty);
            status_of(name, record, inner.presence.get(name), |report| report.seq == record.seq)
        };
        let wanted = known.into_iter().filter(|(name, _)| after.is_none_or(|after| *name > after));
        let statuses: Vec<NodeStatus> = wanted.map(status).collect();
        drop(inner);
        Page::of(statuses.into_iter(), |status| status.node.to_string())
    }

    /// Returns the nodes whose agents are connected.
    pub(crate) fn connected_nodes(&self) -> BTreeSet<NodeName> {
        let now = clock::instant();
        let inner = self.lock();
        let connected = inner.presence.iter().filter(|(_, presence)| presence.is_connected(now));
        connected.map(|(node, _)| node.clone()).collect()
    }

    /// Returns how many agents are connected.
    pub(crate) fn connected(&self) -> usize {
        let now = clock::instant();
        self.lock().presence.values().filter(|presence| presence.is_connected(now)).count()
    }
}

impl Inner {
    /// Lets the journal hold what is remembered, and no history.
    fn rewrite(&self, journal: &Journal) {
        let state = self.state.clone();
        journal.rewrite(move || state.to_records());
    }

    fn is_resting(&self) -> bool {
        self.rests_until.is_some_and(|until| clock::instant() < until)
    }
}

fn unkept() -> WireError {
    WireError::new(WireCode::E500, "it cannot be kept: look at the disk of the server")
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
    let (spec_digest, state_digest) = record.digests();
    NodeStatus {
        node: node.clone(),
        agent,
        last_seen: record.heard,
        spec_digest,
        state_digest,
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

#[cfg(test)]
mod tests;

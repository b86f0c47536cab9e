//! What a server remembers, and how it changes. No clock, no file: both are passed in.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde_json::{Value, json};
use stead_model::node::wire::{
    AgentState, Job, JobOrder, JobOutcome, JobRequest, JobState, NodeReport, ReportKind, ReportStatus,
    Signal, SignalKind, SignalRequest, StoredReport, WireCode, WireError,
};
use stead_model::time::Timestamp;
use stead_model::{MessageId, NodeName};

use super::record::Record;

/// The most nodes that are remembered.
const MOST_NODES: usize = 100_000;
/// The reports of a node that are kept.
const MOST_REPORTS: usize = 64;
/// Signals of a node that wait for its agent.
const MOST_WAITING: usize = 1_000;
/// Delivered signals of a node that are kept in case their answer was lost.
const MOST_DELIVERED: usize = 64;
/// Jobs of all nodes that have not ended.
const MOST_JOBS: usize = 20_000;
/// Jobs that have ended and are kept, and how much they may have written together.
const MOST_ENDED: usize = 1_000;
const MOST_ENDED_BYTES: u64 = 256 << 20;
/// How long after its timeout a job may take to be told of, in seconds; how often an idempotent one is begun.
const GRACE_SECONDS: u64 = 3600;
const MOST_TRIES: u64 = 3;

/// A signal that waits, or that was delivered and may have to be again.
#[derive(Clone, Debug, PartialEq)]
struct Waiting {
    id: MessageId,
    kind: SignalKind,
    /// Null for a job, whose order is made from the job.
    payload: Value,
    sent: Timestamp,
    delivered: Option<Timestamp>,
}

/// What an agent says it has taken down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It does not say: what was delivered does not come again.
    Unsaid,
    /// Everything up to this place.
    UpTo(u64),
    /// Nothing yet. The node was told at this time who it is: what was delivered before was for another of its name.
    NothingSince(Timestamp),
}

/// What is remembered of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NodeRecord {
    waiting: VecDeque<Waiting>,
    pub(super) reports: VecDeque<StoredReport>,
    /// The last that says it became its spec, however old.
    complete: Option<StoredReport>,
    /// When it last reported.
    pub(super) heard: Option<Timestamp>,
    /// The place of its last report.
    pub(super) seq: u64,
}

#[derive(Clone, Debug, PartialEq)]
struct JobRecord {
    job: Job,
    ttl: u64,
    timeout: Option<u64>,
    idempotent: bool,
    live: bool,
    input: bool,
    key: Option<String>,
    bytes: u64,
    delivered_at: Option<Timestamp>,
    /// Whether its agent was asked to end it.
    is_cancelled: bool,
}

impl NodeRecord {
    /// Returns the digest of the spec it last became, and that of what was then observed.
    pub(super) fn digests(&self) -> (Option<String>, Option<String>) {
        let last = self.complete.as_ref().map(|complete| &complete.report);
        (
            last.and_then(|report| report.spec_digest.clone()),
            last.and_then(|report| report.state_digest.clone()),
        )
    }
}

impl JobRecord {
    /// Returns by when an agent has to come for it, or has to have said how it ended; and its place.
    fn deadline(&self) -> Option<(i64, u64)> {
        let (from, seconds) = match self.job.state {
            JobState::Queued => (self.job.created_at, self.ttl),
            JobState::Delivered | JobState::Running => {
                let tries = if self.idempotent { MOST_TRIES } else { 1 };
                let longest = self.timeout?.saturating_mul(tries).saturating_add(GRACE_SECONDS);
                (self.delivered_at?, longest)
            }
            JobState::Succeeded
            | JobState::Failed
            | JobState::Cancelled
            | JobState::Expired
            | JobState::Lost => return None,
        };
        Some((after(from, seconds), self.job.id.sequence()))
    }

    /// Whether its lifetime is over: no agent may begin it any more.
    fn is_over(&self, now: Timestamp) -> bool {
        after(self.job.created_at, self.ttl) <= now.as_micros()
    }
}

/// Returns the moment so many seconds after another, in microseconds.
fn after(from: Timestamp, seconds: u64) -> i64 {
    let length = i64::try_from(seconds.saturating_mul(1_000_000)).unwrap_or(i64::MAX);
    from.as_micros().saturating_add(length)
}

/// What a server remembers. A copy of it is cheap: it shares what is not changed afterwards.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct State {
    last: u64,
    pub(super) nodes: BTreeMap<NodeName, Arc<NodeRecord>>,
    jobs: BTreeMap<u64, Arc<JobRecord>>,
    /// Nodes whose tokens were revoked, and which of them.
    revoked: BTreeMap<NodeName, i64>,
    // Invariant: the deadlines of exactly those jobs that have one.
    deadlines: BTreeSet<(i64, u64)>,
    /// Those of them that have ended, oldest first.
    ended: VecDeque<u64>,
    ended_bytes: u64,
    /// Jobs that are no longer kept, whose output is to be removed.
    pub(super) forgotten: Vec<MessageId>,
    /// Jobs that have ended and read something, which is to be removed.
    pub(super) read_all: Vec<MessageId>,
}

fn refuse<T>(code: WireCode, message: impl Into<String>) -> Result<T, WireError> {
    Err(WireError::new(code, message))
}

impl State {
    /// Takes a change in. The only place that changes what is remembered, but for what an agent acknowledges.
    pub(super) fn apply(&mut self, record: &Record) {
        match record {
            Record::Counter { next } => self.last = self.last.max(next.saturating_sub(1)),
            Record::Signal { id, node, kind, payload, at } => {
                self.last = self.last.max(id.sequence());
                if let (SignalKind::Job, Ok(JobOrder::Cancel { job })) =
                    (kind, serde_json::from_value(payload.clone()))
                {
                    self.change_job(&job, |record| record.is_cancelled = true);
                }
                self.enqueue(id, node, *kind, payload.clone(), *at);
            }
            Record::Job { id, node, argv, ttl, timeout, idempotent, live, input, key, by, at } => {
                self.last = self.last.max(id.sequence());
                let job = Job {
                    id: id.clone(),
                    node: node.clone(),
                    argv: argv.clone(),
                    state: JobState::Queued,
                    by: by.clone(),
                    created_at: *at,
                    started_at: None,
                    finished_at: None,
                    rc: None,
                    stdout: String::new(),
                    stderr: String::new(),
                    truncated: false,
                    error: None,
                };
                let (ttl, timeout, idempotent) = (*ttl, *timeout, *idempotent);
                let (live, input) = (*live, *input);
                let (bytes, delivered_at, is_cancelled) = (0, None, false);
                let record = JobRecord {
                    job,
                    ttl,
                    timeout,
                    idempotent,
                    live,
                    input,
                    key: key.clone(),
                    bytes,
                    delivered_at,
                    is_cancelled,
                };
                self.deadlines.extend(record.deadline());
                self.jobs.insert(id.sequence(), Arc::new(record));
                self.enqueue(id, node, SignalKind::Job, Value::Null, *at);
            }
            Record::Delivered { id, node, at } => self.mark_delivered(id, node, *at),
            Record::JobChanged { id, state, at, rc, truncated, error, bytes } => {
                self.change_job(id, |record| {
                    record.job.state = *state;
                    if *state == JobState::Running {
                        record.job.started_at = Some(*at);
                    }
                    if state.is_final() {
                        record.job.finished_at = Some(*at);
                        (record.job.rc, record.job.truncated) = (*rc, *truncated);
                        record.job.error.clone_from(error);
                        record.bytes = *bytes;
                    }
                });
                let Some(record) = self.jobs.get(&id.sequence()) else { return };
                if state.is_final() {
                    if record.input {
                        self.read_all.push(id.clone());
                    }
                    let node = record.job.node.clone();
                    self.settle(id, &node);
                    self.ended.push_back(id.sequence());
                    self.ended_bytes = self.ended_bytes.saturating_add(*bytes);
                    self.forget();
                }
            }
            Record::Report { node, report } => {
                self.last = self.last.max(report.seq);
                let record = Arc::make_mut(self.nodes.entry(node.clone()).or_default());
                record.heard = Some(report.at);
                record.seq = report.seq;
                if report.report.kind == ReportKind::Config && report.report.status == ReportStatus::Complete
                {
                    record.complete = Some(report.clone());
                }
                record.reports.push_back(report.clone());
                if record.reports.len() > MOST_REPORTS {
                    record.reports.pop_front();
                }
                if let Some(id) = &report.report.id
                    && report.report.status != ReportStatus::Running
                {
                    self.settle(id, node);
                }
            }
            Record::Revoked { node, before } => {
                match before {
                    Some(before) => self.revoked.insert(node.clone(), *before),
                    None => self.revoked.remove(node),
                };
                if let (Some(_), Some(record)) = (before, self.nodes.get_mut(node)) {
                    Arc::make_mut(record).waiting.clear();
                }
            }
        }
    }

    /// Changes a job, and with it when something has to have happened to it.
    fn change_job(&mut self, id: &MessageId, change: impl FnOnce(&mut JobRecord)) {
        let Some(record) = self.jobs.get_mut(&id.sequence()).filter(|record| record.job.id == *id) else {
            return;
        };
        if let Some(before) = record.deadline() {
            self.deadlines.remove(&before);
        }
        let record = Arc::make_mut(record);
        change(record);
        self.deadlines.extend(record.deadline());
    }

    fn enqueue(
        &mut self,
        id: &MessageId,
        node: &NodeName,
        kind: SignalKind,
        payload: Value,
        sent: Timestamp,
    ) {
        let waiting = Waiting { id: id.clone(), kind, payload, sent, delivered: None };
        let queue = &mut Arc::make_mut(self.nodes.entry(node.clone()).or_default()).waiting;
        // At the end, but for a journal that was rewritten: there jobs come before all signals.
        let place = queue.partition_point(|before| before.id.sequence() < id.sequence());
        queue.insert(place, waiting);
    }

    fn mark_delivered(&mut self, id: &MessageId, node: &NodeName, at: Timestamp) {
        self.change_job(id, |record| {
            if record.job.state == JobState::Queued {
                (record.job.state, record.delivered_at) = (JobState::Delivered, Some(at));
            }
        });
        let Some(node) = self.nodes.get_mut(node) else { return };
        let node = Arc::make_mut(node);
        if let Some(waiting) = node.waiting.iter_mut().find(|waiting| waiting.id == *id) {
            waiting.delivered = Some(at);
        }
        let mut surplus =
            node.waiting.iter().filter(|w| w.delivered.is_some()).count().saturating_sub(MOST_DELIVERED);
        node.waiting.retain(|waiting| {
            let is_kept = waiting.delivered.is_none() || surplus == 0;
            surplus = if is_kept { surplus } else { surplus - 1 };
            is_kept
        });
    }

    /// Takes a signal that needs no delivery any more out.
    fn settle(&mut self, id: &MessageId, node: &NodeName) {
        if let Some(node) = self.nodes.get_mut(node)
            && node.waiting.iter().any(|waiting| waiting.id == *id)
        {
            Arc::make_mut(node).waiting.retain(|waiting| waiting.id != *id);
        }
    }

    /// Drops the oldest of the jobs that have ended, until those left are few enough.
    fn forget(&mut self) {
        while self.ended.len() > MOST_ENDED || (self.ended_bytes > MOST_ENDED_BYTES && self.ended.len() > 1) {
            let Some(oldest) = self.ended.pop_front() else { return };
            if let Some(record) = self.jobs.remove(&oldest) {
                self.ended_bytes = self.ended_bytes.saturating_sub(record.bytes);
                self.forgotten.push(record.job.id.clone());
            }
        }
    }

    /// Returns the records that make this state.
    pub(super) fn to_records(&self) -> Vec<Record> {
        let mut records = vec![Record::Counter { next: self.last + 1 }];
        let revoked = self.revoked.iter();
        records.extend(revoked.map(|(node, before)| {
            let (node, before) = (node.clone(), Some(*before));
            Record::Revoked { node, before }
        }));
        for record in self.jobs.values() {
            let job = &record.job;
            records.push(Record::Job {
                id: job.id.clone(),
                node: job.node.clone(),
                argv: job.argv.clone(),
                ttl: record.ttl,
                timeout: record.timeout,
                idempotent: record.idempotent,
                live: record.live,
                input: record.input,
                key: record.key.clone(),
                by: job.by.clone(),
                at: job.created_at,
            });
            let changed = |state: JobState, at: Timestamp| Record::JobChanged {
                id: job.id.clone(),
                state,
                at,
                rc: job.rc,
                truncated: job.truncated,
                error: job.error.clone(),
                bytes: record.bytes,
            };
            records.extend(record.delivered_at.map(|at| {
                let (id, node) = (job.id.clone(), job.node.clone());
                Record::Delivered { id, node, at }
            }));
            records.extend(job.started_at.map(|at| changed(JobState::Running, at)));
        }
        // In the order they ended, which decides who is forgotten first.
        for record in self.ended.iter().filter_map(|id| self.jobs.get(id)) {
            let job = &record.job;
            records.push(Record::JobChanged {
                id: job.id.clone(),
                state: job.state,
                at: job.finished_at.unwrap_or(job.created_at),
                rc: job.rc,
                truncated: job.truncated,
                error: job.error.clone(),
                bytes: record.bytes,
            });
        }
        for (name, node) in &self.nodes {
            for waiting in node.waiting.iter().filter(|waiting| !self.is_job(&waiting.id)) {
                records.push(Record::Signal {
                    id: waiting.id.clone(),
                    node: name.clone(),
                    kind: waiting.kind,
                    payload: waiting.payload.clone(),
                    at: waiting.sent,
                });
                let delivered = waiting.delivered.map(|at| Record::Delivered {
                    id: waiting.id.clone(),
                    node: name.clone(),
                    at,
                });
                records.extend(delivered);
            }
            let oldest = node.reports.front().map_or(u64::MAX, |report| report.seq);
            let complete = node.complete.iter().filter(|complete| complete.seq < oldest).cloned();
            let reports = complete.chain(node.reports.iter().cloned());
            records.extend(reports.map(|report| Record::Report { node: name.clone(), report }));
        }
        records
    }

    fn is_job(&self, id: &MessageId) -> bool {
        self.jobs.get(&id.sequence()).is_some_and(|record| record.job.id == *id)
    }

    fn room_for(&self, node: &NodeName) -> Result<(), WireError> {
        match self.nodes.get(node) {
            Some(node) if node.waiting.len() >= MOST_WAITING => {
                refuse(WireCode::E105, "too many signals wait for this node's agent")
            }
            None if self.nodes.len() >= MOST_NODES => refuse(WireCode::E401, "too many nodes are known"),
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the change that a signal for `node` is.
    pub(super) fn signal(
        &self,
        node: &NodeName,
        request: &SignalRequest,
        now: Timestamp,
    ) -> Result<(MessageId, Record), WireError> {
        self.room_for(node)?;
        let (id, node) = (MessageId::signal(self.last + 1), node.clone());
        let payload = Value::Object(request.payload.clone());
        Ok((id.clone(), Record::Signal { id, node, kind: request.kind, payload, at: now }))
    }

    /// Returns the job that was asked for with the key of `request`, if there is one.
    ///
    /// # Errors
    /// If that is another job than is wanted now.
    pub(super) fn known_by_key(&self, request: &JobRequest) -> Result<Option<MessageId>, WireError> {
        let Some(key) = &request.key else { return Ok(None) };
        let Some(known) = self.jobs.values().find(|record| record.key.as_ref() == Some(key)) else {
            return Ok(None);
        };
        if (&known.job.node, &known.job.argv) != (&request.node, &request.argv) {
            return refuse(WireCode::E401, "this key was used for another job");
        }
        Ok(Some(known.job.id.clone()))
    }

    /// Returns the change that a job is.
    pub(super) fn submit(
        &self,
        request: &JobRequest,
        by: &str,
        now: Timestamp,
    ) -> Result<(MessageId, Record), WireError> {
        self.room_for(&request.node)?;
        if self.jobs.len() - self.ended.len() >= MOST_JOBS {
            return refuse(WireCode::E105, "too many jobs have not ended");
        }
        let id = MessageId::job(self.last + 1);
        let JobRequest { node, argv, ttl, timeout, idempotent, live, key, input } = request;
        let (node, argv, ttl, timeout) = (node.clone(), argv.clone(), *ttl, *timeout);
        let (idempotent, live, input) = (*idempotent, *live, input.is_some());
        let (key, by, at) = (key.clone(), by.to_owned(), now);
        Ok((id.clone(), Record::Job { id, node, argv, ttl, timeout, idempotent, live, input, key, by, at }))
    }

    /// Returns the changes that time alone makes: jobs whose agent did not come, or did not come back.
    pub(super) fn expired(&self, now: Timestamp) -> Vec<Record> {
        let late = self.deadlines.iter().take_while(|(deadline, _)| *deadline <= now.as_micros());
        let end = |sequence: &u64| {
            let id = MessageId::job(*sequence);
            match self.jobs.get(sequence)?.job.state {
                JobState::Queued => Some(ended(&id, JobState::Expired, now)),
                JobState::Delivered | JobState::Running => {
                    Some(lost(&id, now, "its agent did not come back"))
                }
                JobState::Succeeded
                | JobState::Failed
                | JobState::Cancelled
                | JobState::Expired
                | JobState::Lost => None,
            }
        };
        late.filter_map(|(_, sequence)| end(sequence)).collect()
    }

    /// Returns the changes of jobs that `node` was given and, by what it says it has taken down, has not: they come again
    /// only while they may still be begun.
    pub(super) fn outlived(&self, node: &NodeName, taken: Taken, now: Timestamp) -> Vec<Record> {
        let after = match taken {
            Taken::Unsaid => return Vec::new(),
            Taken::UpTo(after) => after,
            Taken::NothingSince(_) => 0,
        };
        let waiting = self.nodes.get(node).into_iter().flat_map(|record| &record.waiting);
        let given = waiting.filter(|waiting| waiting.delivered.is_some() && waiting.id.sequence() > after);
        let jobs = given.filter_map(|waiting| self.jobs.get(&waiting.id.sequence()));
        let over = jobs.filter(|record| record.job.state == JobState::Delivered && record.is_over(now));
        over.map(|record| ended(&record.job.id, JobState::Expired, now)).collect()
    }

    /// Returns the changes that the revocations of a keyring are: what waits for a node, or was given to it, is not for
    /// the machine that comes after them.
    pub(super) fn revoke<'r>(
        &self,
        revoked: impl Iterator<Item = (&'r NodeName, i64)>,
        now: Timestamp,
    ) -> Vec<Record> {
        let listed: BTreeMap<&NodeName, i64> = revoked.collect();
        let is_new = |node: &NodeName| {
            listed.get(node).is_some_and(|before| self.revoked.get(node).is_none_or(|known| known < before))
        };
        let of_gone = self.jobs.values().map(|record| &record.job);
        let of_gone = of_gone.filter(|job| !job.state.is_final() && is_new(&job.node));
        let why = "the node's tokens were revoked";
        let mut records: Vec<Record> = of_gone
            .map(|job| match job.state {
                JobState::Queued => told(&job.id, JobState::Cancelled, now, why),
                JobState::Delivered
                | JobState::Running
                | JobState::Succeeded
                | JobState::Failed
                | JobState::Cancelled
                | JobState::Expired
                | JobState::Lost => lost(&job.id, now, why),
            })
            .collect();
        let new = listed.iter().filter(|(node, _)| is_new(node));
        records.extend(new.map(|(node, before)| {
            let (node, before) = ((*node).clone(), Some(*before));
            Record::Revoked { node, before }
        }));
        let gone = self.revoked.keys().filter(|node| !listed.contains_key(node));
        records.extend(gone.map(|node| Record::Revoked { node: node.clone(), before: None }));
        records
    }

    /// Returns what an agent is told next, and the change that telling it is. What it has taken down is not kept any
    /// longer.
    pub(super) fn next(
        &mut self,
        node: &NodeName,
        taken: Taken,
        now: Timestamp,
    ) -> Option<(Signal, Option<Record>)> {
        let record = self.nodes.get_mut(node)?;
        let has = |waiting: &Waiting| match taken {
            Taken::Unsaid => false,
            Taken::UpTo(after) => waiting.delivered.is_some() && waiting.id.sequence() <= after,
            // A new node is not stopped by what one before it did not hear.
            Taken::NothingSince(since) => match waiting.delivered {
                Some(delivered) => delivered < since,
                None => waiting.kind == SignalKind::Terminate && waiting.sent < since,
            },
        };
        if record.waiting.iter().any(has) {
            Arc::make_mut(record).waiting.retain(|waiting| !has(waiting));
        }
        let jobs = &self.jobs;
        let is_due = |waiting: &&Waiting| {
            let may_come_again = waiting.kind != SignalKind::Job
                || jobs.get(&waiting.id.sequence()).is_none_or(|job| job.job.state != JobState::Running);
            waiting.delivered.is_none() || (taken != Taken::Unsaid && may_come_again)
        };
        let waiting = record.waiting.iter().find(is_due)?;
        let payload = match jobs.get(&waiting.id.sequence()).filter(|job| job.job.id == waiting.id) {
            Some(job) => order(&JobOrder::Run {
                job: waiting.id.clone(),
                argv: job.job.argv.clone(),
                timeout: job.timeout,
                idempotent: job.idempotent,
                live: job.live,
                input: job.input,
            }),
            None => waiting.payload.clone(),
        };
        let signal = Signal { id: waiting.id.clone(), kind: waiting.kind, payload };
        let delivered = Record::Delivered { id: waiting.id.clone(), node: node.clone(), at: now };
        Some((signal, waiting.delivered.is_none().then_some(delivered)))
    }

    /// Returns the changes that a report is: its own, and that of the job it is about.
    pub(super) fn report(
        &self,
        node: &NodeName,
        report: &NodeReport,
        now: Timestamp,
    ) -> Result<Vec<Record>, WireError> {
        if !self.nodes.contains_key(node) && self.nodes.len() >= MOST_NODES {
            return refuse(WireCode::E401, "too many nodes are known");
        }
        let mut records = Vec::new();
        if let (ReportKind::Job, Some(id)) = (report.kind, &report.id) {
            let job = &self.job_of(node, id)?.job;
            if !job.state.is_final() {
                let (stdout, stderr) = (report.stdout.len() as u64, report.stderr.len() as u64);
                records.push(Record::JobChanged {
                    id: id.clone(),
                    state: state_after(report),
                    at: now,
                    rc: report.rc,
                    truncated: report.truncated,
                    error: report.error.clone(),
                    bytes: stdout.saturating_add(stderr),
                });
            }
        }
        let mut kept = report.clone();
        (kept.stdout, kept.stderr) = (String::new(), String::new());
        let report = StoredReport { seq: self.last + 1, at: now, report: kept };
        records.push(Record::Report { node: node.clone(), report });
        Ok(records)
    }

    /// Returns a job of `node`; there is none of this id for other nodes.
    fn job_of(&self, node: &NodeName, id: &MessageId) -> Result<&JobRecord, WireError> {
        let record = self.jobs.get(&id.sequence()).filter(|job| job.job.id == *id && job.job.node == *node);
        let record = record.map(|record| &**record);
        record.ok_or_else(|| WireError::new(WireCode::E200, format!("there is no job {id} of this node")))
    }

    /// Whether `id` is a job that `node` has been given.
    pub(super) fn has_job(&self, node: &NodeName, id: &MessageId) -> bool {
        self.job_of(node, id)
            .is_ok_and(|record| matches!(record.job.state, JobState::Delivered | JobState::Running))
    }

    /// Whether `id` is a job that `node` has been given and that reads something.
    pub(super) fn reads(&self, node: &NodeName, id: &MessageId) -> bool {
        self.has_job(node, id) && self.job_of(node, id).is_ok_and(|record| record.input)
    }

    /// Returns the jobs that read something and have not ended.
    pub(super) fn readers(&self) -> impl Iterator<Item = &MessageId> {
        let readers = self.jobs.values().filter(|record| record.input && !record.job.state.is_final());
        readers.map(|record| &record.job.id)
    }

    /// Whether `report` only says what a job that is known to run has written so far.
    pub(super) fn is_progress(&self, node: &NodeName, report: &NodeReport) -> bool {
        let job = report.id.as_ref().and_then(|id| self.job_of(node, id).ok());
        (report.kind, report.status) == (ReportKind::Job, ReportStatus::Running)
            && !report.stdout.is_empty()
            && job.is_some_and(|record| record.live)
    }

    /// Returns the change that ends a job: at once if it waits, by a signal to its agent if it may run. An agent that was
    /// asked and is not there (`agent`) is not asked again: whoever insists has it ended without it.
    pub(super) fn cancel(
        &self,
        id: &MessageId,
        agent: AgentState,
        now: Timestamp,
    ) -> Result<Option<Record>, WireError> {
        let job = self.job(id)?;
        let is_asked = self.jobs.get(&id.sequence()).is_some_and(|record| record.is_cancelled);
        match job.state {
            JobState::Queued => Ok(Some(ended(id, JobState::Cancelled, now))),
            JobState::Delivered | JobState::Running if is_asked && agent != AgentState::Connected => {
                Ok(Some(lost(id, now, "its agent was asked to end it and is not there")))
            }
            JobState::Delivered | JobState::Running => {
                let payload = order(&JobOrder::Cancel { job: id.clone() });
                let waiting = self.nodes.get(&job.node).map(|record| &record.waiting);
                if waiting.into_iter().flatten().any(|waiting| waiting.payload == payload) {
                    return Ok(None);
                }
                self.room_for(&job.node)?;
                let (id, node) = (MessageId::signal(self.last + 1), job.node.clone());
                Ok(Some(Record::Signal { id, node, kind: SignalKind::Job, payload, at: now }))
            }
            JobState::Succeeded
            | JobState::Failed
            | JobState::Cancelled
            | JobState::Expired
            | JobState::Lost => refuse(WireCode::E401, format!("job {id} has ended: {}", job.state.as_str())),
        }
    }

    /// Returns a job, without what it wrote.
    pub(super) fn job(&self, id: &MessageId) -> Result<&Job, WireError> {
        let record = self.jobs.get(&id.sequence()).filter(|record| record.job.id == *id);
        let record = record.ok_or_else(|| WireError::new(WireCode::E200, format!("there is no job {id}")))?;
        Ok(&record.job)
    }

    /// Returns how much a job wrote.
    pub(super) fn written(&self, id: &MessageId) -> u64 {
        self.jobs.get(&id.sequence()).map_or(0, |record| record.bytes)
    }

    /// Returns all jobs after a place, oldest first.
    pub(super) fn jobs_after(&self, place: u64) -> impl Iterator<Item = &Job> {
        self.jobs.range(place.saturating_add(1)..).map(|(_, record)| &record.job)
    }

    /// Returns all jobs, oldest first.
    pub(super) fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs.values().map(|record| &record.job)
    }
}

fn ended(id: &MessageId, state: JobState, at: Timestamp) -> Record {
    Record::JobChanged { id: id.clone(), state, at, rc: None, truncated: false, error: None, bytes: 0 }
}

fn told(id: &MessageId, state: JobState, at: Timestamp, why: &str) -> Record {
    let (id, error) = (id.clone(), Some(why.to_owned()));
    Record::JobChanged { id, state, at, rc: None, truncated: false, error, bytes: 0 }
}

/// Returns the change of a job of which nobody knows whether it ran.
fn lost(id: &MessageId, at: Timestamp, why: &str) -> Record {
    told(id, JobState::Lost, at, why)
}

fn order(order: &JobOrder) -> Value {
    serde_json::to_value(order).unwrap_or_else(|_| json!({}))
}

/// Returns what a job is after its agent has reported.
fn state_after(report: &NodeReport) -> JobState {
    match (report.status, report.outcome) {
        (ReportStatus::Running, _) => JobState::Running,
        (ReportStatus::Complete | ReportStatus::Failed, Some(JobOutcome::Cancelled)) => JobState::Cancelled,
        (ReportStatus::Complete | ReportStatus::Failed, Some(JobOutcome::Lost)) => JobState::Lost,
        (ReportStatus::Complete, None) if report.rc.unwrap_or(0) == 0 => JobState::Succeeded,
        (ReportStatus::Complete | ReportStatus::Failed, None) => JobState::Failed,
    }
}

#[cfg(test)]
mod tests;

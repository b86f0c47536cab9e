//! What a server remembers, and how it changes. No clock, no file: both are passed in.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Value, json};
use stead_model::node::wire::{
    Job, JobOrder, JobOutcome, JobRequest, JobState, NodeReport, ReportKind, ReportStatus, Signal,
    SignalKind, SignalRequest, StoredReport, WireCode, WireError,
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

/// A signal that waits, or that was delivered and may have to be again.
#[derive(Clone, Debug, PartialEq)]
struct Waiting {
    id: MessageId,
    kind: SignalKind,
    /// Null for a job, whose order is made from the job.
    payload: Value,
    is_delivered: bool,
}

/// What is remembered of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NodeRecord {
    waiting: VecDeque<Waiting>,
    pub(super) reports: VecDeque<StoredReport>,
    pub(super) spec_digest: Option<String>,
    pub(super) state_digest: Option<String>,
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
    bytes: u64,
}

impl JobRecord {
    /// Returns when it expires unless it is delivered, and its place: what orders those that wait.
    fn deadline(&self) -> (i64, u64) {
        let lifetime = i64::try_from(self.ttl.saturating_mul(1_000_000)).unwrap_or(i64::MAX);
        (self.job.created_at.as_micros().saturating_add(lifetime), self.job.id.sequence())
    }
}

/// What a server remembers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct State {
    last: u64,
    pub(super) nodes: BTreeMap<NodeName, NodeRecord>,
    jobs: BTreeMap<u64, JobRecord>,
    // Invariant: the deadlines of exactly those that are queued.
    deadlines: BTreeSet<(i64, u64)>,
    /// Those of them that have ended, oldest first.
    ended: VecDeque<u64>,
    ended_bytes: u64,
    /// Jobs that are no longer kept, whose output is to be removed.
    pub(super) forgotten: Vec<MessageId>,
}

fn refuse<T>(code: WireCode, message: impl Into<String>) -> Result<T, WireError> {
    Err(WireError::new(code, message))
}

impl State {
    /// Takes a change in. The only place that changes what is remembered, but for what an agent acknowledges.
    pub(super) fn apply(&mut self, record: &Record) {
        match record {
            Record::Counter { next } => self.last = self.last.max(next.saturating_sub(1)),
            Record::Signal { id, node, kind, payload } => {
                self.last = self.last.max(id.sequence());
                self.enqueue(id, node, *kind, payload.clone());
            }
            Record::Job { id, node, argv, ttl, timeout, idempotent, by, at } => {
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
                let record = JobRecord { job, ttl, timeout, idempotent, bytes: 0 };
                self.deadlines.insert(record.deadline());
                self.jobs.insert(id.sequence(), record);
                self.enqueue(id, node, SignalKind::Job, Value::Null);
            }
            Record::Delivered { id, node } => self.mark_delivered(id, node),
            Record::JobChanged { id, state, at, rc, truncated, error, bytes } => {
                let Some(record) = self.jobs.get_mut(&id.sequence()) else { return };
                record.job.state = *state;
                self.deadlines.remove(&record.deadline());
                if *state == JobState::Running {
                    record.job.started_at = Some(*at);
                }
                if state.is_final() {
                    record.job.finished_at = Some(*at);
                    (record.job.rc, record.job.truncated) = (*rc, *truncated);
                    record.job.error.clone_from(error);
                    record.bytes = *bytes;
                    let node = record.job.node.clone();
                    self.settle(id, &node);
                    self.ended.push_back(id.sequence());
                    self.ended_bytes = self.ended_bytes.saturating_add(*bytes);
                    self.forget();
                }
            }
            Record::Report { node, report } => {
                self.last = self.last.max(report.seq);
                let record = self.nodes.entry(node.clone()).or_default();
                record.heard = Some(report.at);
                record.seq = report.seq;
                if report.report.kind == ReportKind::Config && report.report.status == ReportStatus::Complete
                {
                    record.spec_digest.clone_from(&report.report.spec_digest);
                    record.state_digest.clone_from(&report.report.state_digest);
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
        }
    }

    fn enqueue(&mut self, id: &MessageId, node: &NodeName, kind: SignalKind, payload: Value) {
        let waiting = Waiting { id: id.clone(), kind, payload, is_delivered: false };
        self.nodes.entry(node.clone()).or_default().waiting.push_back(waiting);
    }

    fn mark_delivered(&mut self, id: &MessageId, node: &NodeName) {
        if let Some(record) = self.jobs.get_mut(&id.sequence())
            && record.job.id == *id
            && record.job.state == JobState::Queued
        {
            record.job.state = JobState::Delivered;
            self.deadlines.remove(&record.deadline());
        }
        let Some(node) = self.nodes.get_mut(node) else { return };
        if let Some(waiting) = node.waiting.iter_mut().find(|waiting| waiting.id == *id) {
            waiting.is_delivered = true;
        }
        let mut surplus =
            node.waiting.iter().filter(|w| w.is_delivered).count().saturating_sub(MOST_DELIVERED);
        node.waiting.retain(|waiting| {
            let is_kept = !waiting.is_delivered || surplus == 0;
            surplus = if is_kept { surplus } else { surplus - 1 };
            is_kept
        });
    }

    /// Takes a signal that needs no delivery any more out.
    fn settle(&mut self, id: &MessageId, node: &NodeName) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.waiting.retain(|waiting| waiting.id != *id);
        }
    }

    /// Drops the oldest of the jobs that have ended, until those left are few enough.
    fn forget(&mut self) {
        while self.ended.len() > MOST_ENDED || (self.ended_bytes > MOST_ENDED_BYTES && self.ended.len() > 1) {
            let Some(oldest) = self.ended.pop_front() else { return };
            if let Some(record) = self.jobs.remove(&oldest) {
                self.ended_bytes = self.ended_bytes.saturating_sub(record.bytes);
                self.forgotten.push(record.job.id);
            }
        }
    }

    /// Returns the records that make this state.
    pub(super) fn to_records(&self) -> Vec<Record> {
        let mut records = vec![Record::Counter { next: self.last + 1 }];
        for record in self.jobs.values() {
            let job = &record.job;
            records.push(Record::Job {
                id: job.id.clone(),
                node: job.node.clone(),
                argv: job.argv.clone(),
                ttl: record.ttl,
                timeout: record.timeout,
                idempotent: record.idempotent,
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
            if job.state != JobState::Queued {
                records.push(Record::Delivered { id: job.id.clone(), node: job.node.clone() });
            }
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
                });
                if waiting.is_delivered {
                    records.push(Record::Delivered { id: waiting.id.clone(), node: name.clone() });
                }
            }
            let reports = node.reports.iter().cloned();
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
    ) -> Result<(MessageId, Record), WireError> {
        self.room_for(node)?;
        let (id, node) = (MessageId::signal(self.last + 1), node.clone());
        let payload = Value::Object(request.payload.clone());
        Ok((id.clone(), Record::Signal { id, node, kind: request.kind, payload }))
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
        let JobRequest { node, argv, ttl, timeout, idempotent } = request.clone();
        let (by, at) = (by.to_owned(), now);
        Ok((id.clone(), Record::Job { id, node, argv, ttl, timeout, idempotent, by, at }))
    }

    /// Returns the changes that time alone makes: jobs whose agent did not come.
    pub(super) fn expired(&self, now: Timestamp) -> Vec<Record> {
        let late = self.deadlines.iter().take_while(|(deadline, _)| *deadline <= now.as_micros());
        late.map(|(_, sequence)| ended(&MessageId::job(*sequence), JobState::Expired, now)).collect()
    }

    /// Returns what an agent is told next, and the change that telling it is. What it says it has taken down (`after`) is
    /// not kept any longer.
    pub(super) fn next(&mut self, node: &NodeName, after: Option<u64>) -> Option<(Signal, Option<Record>)> {
        let record = self.nodes.get_mut(node)?;
        if let Some(after) = after {
            record.waiting.retain(|waiting| !waiting.is_delivered || waiting.id.sequence() > after);
        }
        let jobs = &self.jobs;
        let is_due = |waiting: &&Waiting| {
            let may_come_again = waiting.kind != SignalKind::Job
                || jobs.get(&waiting.id.sequence()).is_none_or(|job| job.job.state != JobState::Running);
            !waiting.is_delivered || (after.is_some() && may_come_again)
        };
        let waiting = record.waiting.iter().find(is_due)?;
        let payload = match jobs.get(&waiting.id.sequence()).filter(|job| job.job.id == waiting.id) {
            Some(job) => order(&JobOrder::Run {
                job: waiting.id.clone(),
                argv: job.job.argv.clone(),
                timeout: job.timeout,
                idempotent: job.idempotent,
            }),
            None => waiting.payload.clone(),
        };
        let signal = Signal { id: waiting.id.clone(), kind: waiting.kind, payload };
        let delivered = Record::Delivered { id: waiting.id.clone(), node: node.clone() };
        Some((signal, (!waiting.is_delivered).then_some(delivered)))
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
        record.ok_or_else(|| WireError::new(WireCode::E200, format!("there is no job {id} of this node")))
    }

    /// Whether `id` is a job that `node` has been given.
    pub(super) fn has_job(&self, node: &NodeName, id: &MessageId) -> bool {
        self.job_of(node, id)
            .is_ok_and(|record| matches!(record.job.state, JobState::Delivered | JobState::Running))
    }

    /// Returns the changes that end a job: at once if it waits, by a signal to its agent if it may run.
    pub(super) fn cancel(&self, id: &MessageId, now: Timestamp) -> Result<Record, WireError> {
        let job = self.job(id)?;
        match job.state {
            JobState::Queued => Ok(ended(id, JobState::Cancelled, now)),
            JobState::Delivered | JobState::Running => {
                self.room_for(&job.node)?;
                let payload = order(&JobOrder::Cancel { job: id.clone() });
                let (id, node) = (MessageId::signal(self.last + 1), job.node.clone());
                Ok(Record::Signal { id, node, kind: SignalKind::Job, payload })
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

    /// Returns all jobs, oldest first.
    pub(super) fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs.values().map(|record| &record.job)
    }
}

fn ended(id: &MessageId, state: JobState, at: Timestamp) -> Record {
    Record::JobChanged { id: id.clone(), state, at, rc: None, truncated: false, error: None, bytes: 0 }
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

//! What a leader has, and what it does with calls that change something.

use std::collections::BTreeMap;

use stead_engine::fleet::cluster::Cluster;
use stead_model::fleet::policy::millis;
use stead_model::fleet::state::{Assignment, Heartbeat, Hold, HoldTarget, Outcome, Publication, Verdict};
use stead_model::fleet::{Code, CommitId, InstanceKey, Millis};
use stead_model::{GroupName, WorkerName};

use super::calls::{Patience, Reply};
use super::campaign::{EPOCH, LeaderRecord};
use super::keys::{Difference, Mirror, UnreadableKey};
use super::owner::Owner;
use super::rebuild::{Rebuilding, Step};
use super::{LEASE, Settings};
use crate::api::{Applied, Beat, CallError, GroupPipeline, HoldOrder, PipelineReport, UNPUBLISHED};
use crate::events::{Ev, Fields};
use crate::store::{Compare, Entry, Put, Revision};

/// The longest hold: a day.
const LONGEST_HOLD: Millis = 24 * 3_600_000;

/// How long a worker stays with a leader that has lost its store, and may lead no more, before it looks for another one.
const SEARCH: Millis = 30_000;

/// What a publisher says of a group that it has published.
const SUBMITTED: &str = "submitted";

/// The longest reason of a hold.
const LONGEST_REASON: usize = 1_024;

/// What a leader has.
pub(super) struct Lead {
    pub(super) cluster: Cluster,
    /// What is stored.
    pub(super) mirror: Mirror,
    /// What every write compares.
    pub(super) fence: Compare,
    /// The last transaction of this leader that is known to be done.
    pub(super) stored: Revision,
    pub(super) record: LeaderRecord,
    /// When the lease was last renewed, since boot: it goes on ending while this machine is suspended.
    pub(super) renewed: Millis,
    /// Why the store cannot be used, if it cannot.
    pub(super) away: Option<String>,
    /// When workers were last sent to look for another leader, since boot.
    sent_on: BTreeMap<WorkerName, Millis>,
    /// Beginning anew from what the workers report.
    pub(super) rebuilding: Option<Rebuilding>,
    /// Further keys to write with what comes next.
    extra: Vec<Put>,
    dropped: Vec<String>,
    history: usize,
}

impl Lead {
    /// Returns a leader that begins with what is stored.
    pub(super) fn begin(
        settings: &Settings,
        record: LeaderRecord,
        fence: Compare,
        renewed: Millis,
        entries: &[Entry],
        now: Millis,
    ) -> Result<Self, UnreadableKey> {
        let mirror = Mirror::load(entries)?;
        let cluster = Cluster::resume(mirror.durable().clone(), record.epoch, now);
        let mut lead = Self {
            cluster,
            mirror,
            stored: fence.revision,
            fence,
            record,
            renewed,
            away: None,
            sent_on: BTreeMap::new(),
            rebuilding: None,
            extra: Vec::new(),
            dropped: Vec::new(),
            history: settings.history.max(1),
        };
        lead.rebuilding = Rebuilding::begin(settings.rebuild.as_ref(), entries, &mut lead.cluster, now);
        if let Some(rebuilding) = &lead.rebuilding {
            lead.extra.push(rebuilding.mark());
        }
        Ok(lead)
    }

    /// Looks at everything once.
    pub(super) fn tick(&mut self, now: Millis) {
        if let Some(rebuilding) = &mut self.rebuilding {
            let mark = rebuilding.mark();
            let step = rebuilding.step(&mut self.cluster, now);
            self.extra.extend(Some(rebuilding.mark()).filter(|put| *put != mark));
            match step {
                Step::Wait => self.cluster.listen(now),
                Step::GoOn => {}
                Step::Over => {
                    self.cluster.end_rebuild();
                    self.dropped.push(super::rebuild::MARK.to_owned());
                    self.extra.retain(|put| put.key != super::rebuild::MARK);
                    self.rebuilding = None;
                }
            }
            self.note_epoch();
            if step == Step::Wait {
                return;
            }
        }
        self.cluster.tick(now);
        self.note_epoch();
        self.cluster.trim(self.history);
    }

    /// Workers may have applied more than this leader knew of: it goes on above that.
    fn note_epoch(&mut self) {
        if self.record.epoch < self.cluster.epoch {
            self.record.epoch = self.cluster.epoch;
            let value = self.cluster.epoch.to_string().into_bytes();
            self.extra.push(Put { key: EPOCH.to_owned(), value, lease: None });
        }
    }

    /// Returns what has to be stored.
    pub(super) fn difference(&mut self) -> Difference {
        let mut difference = self.mirror.difference(&self.cluster.durable);
        difference.txn.puts.append(&mut self.extra);
        difference.txn.deletes.append(&mut self.dropped);
        difference
    }

    /// Goes back to what is stored.
    pub(super) fn lose_store(&mut self, why: &str, now: Millis) {
        self.away = Some(why.to_owned());
        self.cluster.restore(self.mirror.durable().clone(), now);
    }

    /// Goes on with what is stored.
    pub(super) fn find_store(&mut self, entries: &[Entry], now: Millis) -> Result<(), UnreadableKey> {
        self.mirror = Mirror::load(entries)?;
        self.cluster.restore(self.mirror.durable().clone(), now);
        self.away = None;
        Ok(())
    }

    pub(super) fn replayed(&self, worker: &WorkerName) -> u64 {
        self.cluster.ears.get(worker).map_or(0, |ear| ear.replayed)
    }

    /// Whether nobody else can lead at this moment since boot.
    pub(super) fn has_lease(&self, moment: Millis) -> bool {
        moment.saturating_sub(self.renewed) < u64::try_from(LEASE.as_millis()).unwrap_or(0)
    }

    /// Whether a worker is to look for another leader: there may be one that the store keeps from this one. It is sent away
    /// once in a while, for where there is no other it comes back.
    pub(super) fn sends_on(&mut self, worker: &WorkerName, moment: Millis) -> bool {
        let last = self.sent_on.get(worker);
        let is_due = last.is_none_or(|last| moment.saturating_sub(*last) >= SEARCH);
        if self.away.is_none() || !is_due {
            return false;
        }
        self.sent_on.insert(worker.clone(), moment);
        true
    }

    /// Takes a heartbeat. `is_sure`: no other master leads. Whoever may have been deposed lets no singleton run on.
    pub(super) fn report(&mut self, heartbeat: &Heartbeat, is_sure: bool, now: Millis) -> Beat {
        let reply = self.cluster.heartbeat(heartbeat, now);
        let granted = if self.goes_on() { reply.lease } else { self.lease_to_run_on(&heartbeat.worker) };
        Beat {
            lease: granted.filter(|_| is_sure),
            interval: reply.interval,
            needs_full: reply.needs_full,
            leader: self.record.address.clone(),
        }
    }

    /// Returns the lease of a worker while nobody has assignments: it lets what runs run on, and starts nothing that may
    /// run elsewhere.
    fn lease_to_run_on(&self, worker: &WorkerName) -> Option<Millis> {
        let ear = self.cluster.ears.get(worker).filter(|ear| ear.is_complete)?;
        // Which of them must not run twice nobody knows yet. What waits for a lease does, and what another one has may.
        let is_elsewhere = |key: &InstanceKey| {
            self.cluster.ears.iter().any(|(name, ear)| {
                name != worker && ear.seen.get(key).is_some_and(|sighting| sighting.seen.state.is_live())
            })
        };
        let may_start = ear.seen.iter().any(|(key, sighting)| {
            let is_fenced = sighting.seen.code == Some(Code::Fenced);
            !sighting.seen.state.is_live() && (is_fenced || is_elsewhere(key))
        });
        (!may_start).then(|| millis(self.cluster.fleet().policy.liveness.lease))
    }

    pub(super) fn note_pipeline(&mut self, report: &PipelineReport) {
        if let Some(rebuilding) = &mut self.rebuilding {
            rebuilding.note(report);
        }
    }

    /// Tells a publisher which of the groups that it has published are not here: this master begins anew.
    pub(super) fn unpublished(&self, report: Option<&PipelineReport>) -> Result<(), CallError> {
        if self.rebuilding.is_none() || self.is_collecting() {
            return Ok(());
        }
        let is_missing = |group: &&GroupPipeline| {
            let stored = self.cluster.durable.groups.get(&group.group);
            group.stage == SUBMITTED && stored.is_none_or(|group| group.stored.is_empty())
        };
        let groups = report.into_iter().flat_map(|report| &report.groups).filter(is_missing);
        let groups: Vec<&str> = groups.map(|group| group.group.as_str()).collect();
        if groups.is_empty() {
            return Ok(());
        }
        let message = format!("this master lost its state and has nothing of {}", groups.join(", "));
        Err(refused(UNPUBLISHED, message))
    }

    /// Whether workers get assignments.
    fn goes_on(&self) -> bool {
        self.rebuilding.as_ref().is_none_or(Rebuilding::goes_on)
    }

    fn is_collecting(&self) -> bool {
        self.rebuilding.as_ref().is_some_and(Rebuilding::is_collecting)
    }
}

impl Owner {
    pub(super) fn reserve(&mut self, commit: &CommitId, publisher: String, reply: Reply<u64>) {
        let lead = match self.writer().and_then(not_collecting) {
            Ok(lead) => lead,
            Err(error) => return drop(reply.send(Err(error))),
        };
        let generation = lead.cluster.reserve(commit);
        let fields = Fields {
            commit: Some(commit.clone()),
            generation: Some(generation),
            by: publisher,
            ..Fields::default()
        };
        let is_new = lead.mirror.durable().commits.get(commit) != Some(&generation);
        let events = if is_new { vec![(Ev::Reserved, fields)] } else { Vec::new() };
        self.store(events, Box::new(move |done| drop(reply.send(done.map(|()| generation)))));
    }

    pub(super) fn publish(
        &mut self,
        publications: &[Publication],
        publisher: &str,
        reply: Reply<Vec<Verdict>>,
    ) {
        let now = self.time.now();
        let lead = match self.writer().and_then(not_collecting) {
            Ok(lead) => lead,
            Err(error) => return drop(reply.send(Err(error))),
        };
        let verdicts = lead.cluster.publish_together(publications, now);
        let mut events = Vec::new();
        let mut is_new = false;
        for (publication, verdict) in publications.iter().zip(&verdicts) {
            match verdict.outcome {
                Outcome::Accepted | Outcome::Held | Outcome::Suspended => is_new = true,
                Outcome::Duplicate | Outcome::Stale | Outcome::Conflict | Outcome::Invalid => {
                    events.extend(verdict.problems.iter().map(|problem| {
                        let fields = Fields {
                            commit: Some(publication.commit.clone()),
                            generation: Some(publication.generation),
                            group: Some(publication.group.clone()),
                            code: problem.code.clone(),
                            by: publisher.to_owned(),
                            reason: format!("{}: {}", problem.subject, problem.message),
                            ..Fields::default()
                        };
                        (Ev::Refused, fields)
                    }));
                }
            }
        }
        if is_new {
            lead.tick(now);
        }
        self.store(events, Box::new(move |done| drop(reply.send(done.map(|()| verdicts)))));
    }

    /// Returns a worker's assignment; none: it waits for a change.
    pub(super) fn assignment(
        &mut self,
        worker: &WorkerName,
        applied: Applied,
        patience: Patience,
    ) -> Option<Result<Option<Assignment>, CallError>> {
        let lead = match self.lead() {
            Ok(lead) => lead,
            // Nobody leads yet: a worker goes on with what it has.
            Err(CallError::Away(_)) if patience == Patience::Change => return None,
            Err(error) => return Some(Err(error)),
        };
        let is_current = lead.cluster.is_current(worker, applied.generation, applied.revision);
        let answer = if is_current || !lead.goes_on() { None } else { lead.cluster.assignment(worker) };
        if answer.is_none() && patience == Patience::Change {
            return None;
        }
        Some(Ok(answer))
    }

    pub(super) fn hold(&mut self, order: HoldOrder, by: String, reply: Reply<String>) {
        let now = self.time.now();
        let decided = self.writer().and_then(|lead| {
            let decided = match order {
                HoldOrder::Hold { target, duration, reason } => {
                    (lead.freeze(target, duration, reason, by.clone(), now)?, None)
                }
                HoldOrder::Release { id } => {
                    let hold = lead.free(&id)?;
                    (id, Some(hold))
                }
            };
            lead.tick(now);
            Ok(decided)
        });
        match decided {
            Ok((id, released)) => {
                let released = released.map(|hold| {
                    let reason = format!("{id}: {} by {} ended", hold.target, hold.by);
                    let code = "released".to_owned();
                    (Ev::Hold, Fields { code, by, reason, ..Fields::default() })
                });
                let events = released.into_iter().collect();
                self.store(events, Box::new(move |done| drop(reply.send(done.map(|()| id)))));
            }
            Err(error) => drop(reply.send(Err(error))),
        }
    }
}

/// While workers are collected nothing is published: nobody knows yet what runs.
fn not_collecting(lead: &mut Lead) -> Result<&mut Lead, CallError> {
    if lead.is_collecting() {
        return Err(CallError::Away("it begins anew and waits for what the workers report".to_owned()));
    }
    Ok(lead)
}

fn refused(code: &str, message: String) -> CallError {
    CallError::Refused { code: code.to_owned(), message }
}

impl Lead {
    fn freeze(
        &mut self,
        target: HoldTarget,
        duration: Millis,
        reason: String,
        by: String,
        now: Millis,
    ) -> Result<String, CallError> {
        if duration == 0 || duration > LONGEST_HOLD {
            return Err(refused("bad-hold", "a hold lasts at most 24h".to_owned()));
        }
        if reason.trim().is_empty() || reason.len() > LONGEST_REASON {
            return Err(refused(
                "bad-hold",
                format!("a hold needs a reason of up to {LONGEST_REASON} bytes"),
            ));
        }
        let durable = &self.cluster.durable;
        let unknown = match &target {
            HoldTarget::Worker(name) if !durable.workers.contains_key(name) => {
                Some(format!("worker `{name}`"))
            }
            HoldTarget::Vm(id) if self.cluster.target(id).is_none() => Some(format!("VM `{id}`")),
            HoldTarget::Group(name) if !is_known(&self.cluster, name) => Some(format!("group `{name}`")),
            HoldTarget::Worker(_) | HoldTarget::Vm(_) | HoldTarget::Group(_) => None,
        };
        if let Some(what) = unknown {
            return Err(refused("unknown-target", format!("there is no {what}")));
        }
        let id = hold_id().map_err(|error| CallError::Away(error.to_string()))?;
        self.cluster.hold(Hold { id: id.clone(), target, until: now + duration, by, reason });
        Ok(id)
    }

    fn free(&mut self, id: &str) -> Result<Hold, CallError> {
        let unknown = || refused("unknown-hold", format!("there is no hold `{id}`; it may have ended"));
        self.cluster.release(id).ok_or_else(unknown)
    }
}

/// Returns a name that no hold has had: who wrote one down frees nobody else's.
fn hold_id() -> Result<String, getrandom::Error> {
    let mut random = [0; 5];
    getrandom::fill(&mut random)?;
    Ok(random.iter().fold("h".to_owned(), |id, byte| format!("{id}{byte:02x}")))
}

fn is_known(cluster: &Cluster, group: &GroupName) -> bool {
    cluster.durable.groups.contains_key(group) || cluster.fleet().groups.contains_key(group)
}

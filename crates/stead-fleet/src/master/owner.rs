//! The one task that owns a master's state.

use std::collections::{BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use stead_engine::fleet::cluster::Event;
use stead_model::WorkerName;
use stead_model::fleet::Millis;
use stead_runner::clock;
use tokio::sync::{Notify, mpsc};
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

use super::calls::{Call, Patience};
use super::campaign::{LeaderRecord, News};
use super::figures::Figures;
use super::follower::Follow;
use super::keys::Difference;
use super::leader::Lead;
use super::status::Shown;
use super::{Begun, Settings, Time};
use crate::api::{CallError, Json, Leader, PipelineReport};
use crate::boottime;
use crate::events::{Ev, Fields};
use crate::store::{Committed, Range, Revision, StoreError};

mod look;

use look::of_engine;

/// How often everything is looked at when nothing happens.
const IDLE: Duration = Duration::from_secs(1);

/// The shortest time between two looks.
const BREATH: Duration = Duration::from_millis(20);

/// How often, in transactions, the store forgets how things were.
const COMPACTION: u64 = 500;

/// How many transactions it does not forget, for followers that are late.
const KEPT_REVISIONS: Revision = 1_000;

/// How many events of instances are remembered, for explanations.
const REMEMBERED: usize = 10_000;

/// What is told when a transaction is done, or is not.
pub(super) type Answer = Box<dyn FnOnce(Result<(), CallError>) + Send>;

/// What this master is.
pub(super) enum Role {
    /// It does not know yet.
    Nobody,
    /// It leads.
    Leader(Box<Lead>),
    /// Another one leads.
    Follower(Box<Follow>),
}

/// A transaction on its way.
struct InFlight {
    done: Pin<Box<dyn Future<Output = Result<Committed, StoreError>> + Send>>,
    difference: Difference,
    events: Vec<(Ev, Fields)>,
    answers: Vec<Answer>,
}

enum Input {
    Call(Call),
    News(News),
    Committed(Result<Committed, StoreError>),
    Tick,
    Stop,
}

/// Something that happened to an instance, for explanations.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct Past {
    #[serde(serialize_with = "super::status::moment")]
    pub(super) at: Millis,
    #[serde(flatten)]
    pub(super) event: Event,
}

/// The one task that owns a master's state.
pub(super) struct Owner {
    pub(super) settings: Settings,
    fleet: String,
    pub(super) time: Time,
    pub(super) figures: Arc<Figures>,
    mailbox: mpsc::Receiver<Call>,
    news: mpsc::Receiver<News>,
    nudge: Arc<Notify>,
    pub(super) role: Role,
    /// Counts what can be seen.
    pub(super) seq: u64,
    pub(super) pipeline: Option<PipelineReport>,
    /// What happened to instances lately.
    past: VecDeque<Past>,
    view: Option<(Arc<Shown>, Instant, Duration)>,
    /// Calls that wait for a change.
    parked: Vec<Call>,
    /// Calls that wait for the transaction on its way.
    waiting: VecDeque<Call>,
    commit: Option<InFlight>,
    next_tick: Instant,
    last_tick: Duration,
    begun: Option<Begun>,
    /// What was read when the store answered again, and is not taken yet.
    back: Option<Range>,
    /// Workers of whom every enrolment is revoked.
    departed: BTreeSet<WorkerName>,
    /// Whether it was elected and cannot read what is stored: another one may.
    is_unfit: bool,
    /// Counts transactions, for compaction.
    commits: u64,
}

impl Owner {
    pub(super) fn new(
        (settings, fleet): (Settings, String),
        time: Time,
        figures: Arc<Figures>,
        mailbox: mpsc::Receiver<Call>,
        news: mpsc::Receiver<News>,
    ) -> (Self, Arc<Notify>) {
        let nudge = Arc::new(Notify::new());
        let owner = Self {
            settings,
            fleet,
            time,
            figures,
            mailbox,
            news,
            nudge: Arc::clone(&nudge),
            role: Role::Nobody,
            seq: 0,
            pipeline: None,
            past: VecDeque::new(),
            view: None,
            parked: Vec::new(),
            waiting: VecDeque::new(),
            commit: None,
            next_tick: clock::instant(),
            last_tick: Duration::ZERO,
            begun: None,
            back: None,
            departed: BTreeSet::new(),
            is_unfit: false,
            commits: 0,
        };
        (owner, nudge)
    }

    /// Returns the owner that also tells how it began.
    pub(super) fn telling(self, begun: Begun) -> Self {
        Self { begun: Some(begun), ..self }
    }

    /// Owns the state until `stop`.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        loop {
            let input = self.next(&stop).await;
            match input {
                Input::Stop => break,
                Input::Call(call) => self.take(call),
                Input::News(news) => self.hear(news),
                Input::Committed(done) => self.committed(done),
                Input::Tick => self.tick(),
            }
            self.note_role();
            if self.is_unfit {
                break;
            }
        }
        // What is on its way holds the store: whoever opens it next must not find it locked.
        if let Some(commit) = self.commit.take() {
            drop(commit.done.await);
        }
    }

    fn note_role(&self) {
        let nobody = LeaderRecord::default();
        let (leads, has_store, record) = match &self.role {
            Role::Leader(lead) => (true, lead.away.is_none(), &lead.record),
            Role::Follower(follow) => (false, follow.away.is_none(), &follow.record),
            Role::Nobody => (false, false, &nobody),
        };
        self.figures.leader.send_if_modified(|leader| {
            let is_new = leader.epoch != record.epoch || leader.address != record.address;
            if is_new {
                *leader = Leader { address: record.address.clone(), epoch: record.epoch };
            }
            is_new
        });
        self.figures.leads.store(leads, Ordering::Relaxed);
        self.figures.has_store.store(has_store, Ordering::Relaxed);
    }

    async fn next(&mut self, stop: &CancellationToken) -> Input {
        let ticks = self.commit.is_none() && self.leads();
        let Self { commit, mailbox, news, next_tick, .. } = self;
        let done = async {
            match commit {
                Some(commit) => (&mut commit.done).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => Input::Stop,
            done = done => Input::Committed(done),
            Some(news) = news.recv() => Input::News(news),
            () = sleep_until((*next_tick).into()), if ticks => Input::Tick,
            call = mailbox.recv() => call.map_or(Input::Stop, Input::Call),
        }
    }

    /// Whether this master leads, and has its store.
    fn leads(&self) -> bool {
        match &self.role {
            Role::Leader(lead) => lead.away.is_none(),
            Role::Nobody | Role::Follower(_) => false,
        }
    }

    /// Looks at everything soon: something changed.
    fn tick_soon(&mut self) {
        let soon = clock::instant() + BREATH.max(self.last_tick * 4);
        self.next_tick = self.next_tick.min(soon);
    }

    fn tick(&mut self) {
        let began = clock::instant();
        let now = self.time.now();
        self.next_tick = began + IDLE;
        if let Role::Leader(lead) = &mut self.role {
            lead.tick(now);
            self.begin_commit(Vec::new(), Vec::new());
        }
        self.last_tick = began.elapsed();
        let earliest = clock::instant() + BREATH.max(self.last_tick * 4);
        self.next_tick = self.next_tick.max(earliest);
    }

    /// Stores what was decided; then what happened is written down and the answers are given.
    fn begin_commit(&mut self, mut events: Vec<(Ev, Fields)>, answers: Vec<Answer>) {
        let Role::Leader(lead) = &mut self.role else { return };
        let happened = lead.cluster.take_events();
        let now = self.time.now();
        for event in happened {
            events.push(of_engine(&event));
            if event.instance.is_some() {
                self.past.push_back(Past { at: now, event });
            }
        }
        self.past.drain(..self.past.len().saturating_sub(REMEMBERED));
        let difference = lead.difference();
        if difference.is_empty() {
            if !events.is_empty() {
                self.seq += 1;
            }
            self.write_events(events);
            answers.into_iter().for_each(|answer| answer(Ok(())));
            return self.serve_parked();
        }
        let txn = difference.txn.clone().when(&lead.fence.key, lead.fence.revision);
        let (store, figures) = (Arc::clone(&self.settings.store), Arc::clone(&self.figures));
        self.commits += 1;
        let compacts = self.commits.is_multiple_of(COMPACTION);
        let done = Box::pin(async move {
            let _measured = figures.store_txn.start();
            let done = store.txn(txn).await;
            if let (true, Ok(Committed::Done(revision))) = (compacts, &done) {
                // What is not forgotten now is the next time.
                store.compact((revision - KEPT_REVISIONS).max(0)).await.ok();
            }
            done
        });
        self.commit = Some(InFlight { done, difference, events, answers });
    }

    fn committed(&mut self, done: Result<Committed, StoreError>) {
        let Some(InFlight { difference, events, answers, .. }) = self.commit.take() else { return };
        let now = self.time.now();
        let answer = match (&mut self.role, done) {
            (Role::Leader(lead), Ok(Committed::Done(revision))) => {
                lead.stored = lead.stored.max(revision);
                // A leader that has gone back meanwhile reads what is stored before it goes on.
                if lead.away.is_none() {
                    lead.mirror.advance(difference);
                }
                self.seq += 1;
                self.write_events(events);
                Ok(())
            }
            (Role::Leader(_), Ok(Committed::Refused)) => {
                // Another one leads by now; the campaign is about to find out.
                self.store_away("another master has taken over");
                Err(CallError::NotLeader { leader: String::new() })
            }
            (Role::Leader(lead), Err(error @ StoreError::Unfit { .. })) => {
                // It was refused before anything was written: the store is as it was, and there.
                lead.cluster.restore(lead.mirror.durable().clone(), now);
                let message = error.to_string();
                let fields =
                    Fields { code: "too-large".to_owned(), reason: message.clone(), ..Fields::default() };
                self.write_events(vec![(Ev::Refused, fields)]);
                Err(CallError::Refused { code: "too-large".to_owned(), message })
            }
            (Role::Leader(_), Err(error)) => {
                self.store_away(&error.to_string());
                Err(unavailable(&error.to_string()))
            }
            (Role::Follower(_) | Role::Nobody, _) => Err(deposed()),
        };
        answers.into_iter().for_each(|tell| tell(answer.clone()));
        if let Role::Leader(lead) = &self.role
            && lead.away.is_some()
        {
            match self.back {
                Some(_) => self.go_back(),
                None => self.nudge.notify_one(),
            }
        }
        self.serve_waiting();
    }

    /// Goes back to what is stored, and changes nothing until the store answers again.
    fn store_away(&mut self, why: &str) {
        let now = self.time.now();
        if let Role::Leader(lead) = &mut self.role
            && lead.away.is_none()
        {
            lead.lose_store(why, now);
            self.seq += 1;
            let reason = format!("the store is away: {why}");
            self.write_events(vec![(Ev::Leader, Fields { reason, ..Fields::default() })]);
        }
    }

    pub(super) fn write_events(&self, events: Vec<(Ev, Fields)>) {
        if let Some(log) = &self.settings.events {
            // A full disk keeps the log from growing, not the fleet from running.
            log.write_all(events).ok();
        }
    }

    fn hear(&mut self, news: News) {
        let now = self.time.now();
        match news {
            News::Elected { record, fence, renewed, entries } => {
                // What a leader before had on its way is in what was read, or never will be.
                self.back = None;
                if let Some(left) = self.commit.take() {
                    left.answers.into_iter().for_each(|answer| answer(Err(deposed())));
                }
                let fields = Fields {
                    by: record.name.clone(),
                    reason: format!("epoch {}", record.epoch),
                    ..Fields::default()
                };
                match Lead::begin(&self.settings, record, fence, renewed, &entries, now) {
                    Ok(mut lead) => {
                        lead.cluster.dismiss(&self.departed);
                        self.seq = self.seq.max(lead.record.epoch << 32) + 1;
                        self.role = Role::Leader(Box::new(lead));
                        self.write_events(vec![(Ev::Leader, fields)]);
                        self.next_tick = clock::instant();
                        self.tick();
                    }
                    Err(error) => {
                        self.refuse(&error.to_string());
                        self.is_unfit = true;
                        if let Some(begun) = self.begun.take() {
                            begun.tell(Err(error.into()));
                        }
                    }
                }
            }
            News::Renewed(at) => {
                if let Role::Leader(lead) = &mut self.role {
                    lead.renewed = lead.renewed.max(at);
                }
            }
            News::Deposed => self.depose(),
            News::Following { record, entries } => {
                let reason = format!("follows {}, epoch {}", record.name, record.epoch);
                self.write_events(vec![(
                    Ev::Leader,
                    Fields { by: record.name.clone(), reason, ..Fields::default() },
                )]);
                self.seq = self.seq.max(record.epoch << 32) + 1;
                self.role = Role::Follower(Box::new(Follow::new(record, entries)));
            }
            News::Changed(changes) => {
                if let Role::Follower(follow) = &mut self.role {
                    follow.change(changes);
                    self.seq += 1;
                }
            }
            News::Away(why) => match &mut self.role {
                Role::Leader(_) => self.store_away(&why),
                Role::Follower(follow) => {
                    self.seq += u64::from(follow.away.is_none());
                    follow.away = Some(why);
                }
                Role::Nobody => {}
            },
            News::Back(range) => {
                self.back = Some(range);
                self.go_back();
            }
        }
        if self.commit.is_none() {
            self.serve_waiting();
        }
        if !matches!(self.role, Role::Nobody)
            && let Some(begun) = self.begun.take()
        {
            begun.tell(Ok(()));
        }
    }

    /// Goes on with what was read when the store answered again, unless it is older than what was stored since.
    fn go_back(&mut self) {
        // What is on its way was asked for before; its answer comes first.
        if self.commit.is_some() {
            return;
        }
        let (Some(range), Role::Leader(lead)) = (self.back.take(), &mut self.role) else { return };
        if range.revision < lead.stored {
            // It was read before the last transaction: it is read again.
            self.nudge.notify_one();
            return;
        }
        match lead.find_store(&range.entries, self.time.now()) {
            Ok(()) => {
                self.seq += 1;
                self.tick();
            }
            Err(error) => self.refuse(&error.to_string()),
        }
    }

    /// What is stored cannot be used: nothing is done with it.
    fn refuse(&mut self, why: &str) {
        self.write_events(vec![(Ev::Refused, Fields { reason: why.to_owned(), ..Fields::default() })]);
        if let Role::Leader(lead) = &mut self.role {
            lead.away = Some(why.to_owned());
        }
    }

    fn depose(&mut self) {
        let role = std::mem::replace(&mut self.role, Role::Nobody);
        if let Role::Leader(lead) = role {
            let reason = "the lease has ended".to_owned();
            self.write_events(vec![(Ev::Leader, Fields { reason, ..Fields::default() })]);
            self.role = Role::Follower(Box::new(Follow::after(*lead)));
            self.seq += 1;
        }
    }

    /// Takes the calls that waited for a transaction.
    fn serve_waiting(&mut self) {
        while self.commit.is_none() {
            let Some(call) = self.waiting.pop_front() else { break };
            self.take(call);
        }
        if self.commit.is_none() {
            self.serve_parked();
        }
    }

    /// Looks whether those who wait for a change have one.
    fn serve_parked(&mut self) {
        for call in std::mem::take(&mut self.parked) {
            self.take(call);
        }
    }

    fn take(&mut self, call: Call) {
        match call {
            Call::Report { heartbeat, reply } => {
                let answer = self.report(&heartbeat);
                // Who asked may be gone; here and below.
                reply.send(answer).ok();
            }
            Call::Pipeline { report, reply } => {
                let answer = self.take_pipeline(*report);
                reply.send(answer).ok();
            }
            Call::Status { after, patience, whose, reply } => {
                if reply.is_closed() {
                    return;
                }
                match self.show(after, patience, whose) {
                    Some(answer) => drop(reply.send(answer)),
                    None if patience == Patience::Now => {
                        self.waiting.push_back(Call::Status { after, patience, whose, reply });
                    }
                    None => self.parked.push(Call::Status { after, patience, whose, reply }),
                }
            }
            Call::Departed(names) => {
                self.departed = names;
                if let Role::Leader(lead) = &mut self.role {
                    lead.cluster.dismiss(&self.departed);
                    self.seq += 1;
                    self.tick_soon();
                }
            }
            call if self.commit.is_some() => self.waiting.push_back(call),
            Call::Reserve { commit, publisher, reply } => self.reserve(&commit, publisher, reply),
            Call::Publish { publications, publisher, reply } => {
                self.publish(&publications, &publisher, reply)
            }
            Call::Assignment { worker, applied, patience, reply } => {
                if reply.is_closed() {
                    return;
                }
                match self.assignment(&worker, applied, patience) {
                    Some(answer) => drop(reply.send(answer)),
                    None => self.parked.push(Call::Assignment { worker, applied, patience, reply }),
                }
            }
            Call::Explain { instance, whose, reply } => drop(reply.send(self.explain(&instance, whose))),
            Call::Snapshot { whose, reply } => {
                let now = self.time.now();
                let snapshot = self.cluster_for(whose).map(|cluster| cluster.snapshot(now));
                let answer = snapshot.map(|snapshot| Json(snapshot.to_json().to_string()));
                reply.send(answer).ok();
            }
            Call::Hold { order, by, reply } => self.hold(order, by, reply),
        }
    }

    fn report(
        &mut self,
        heartbeat: &stead_model::fleet::state::Heartbeat,
    ) -> Result<crate::api::Beat, CallError> {
        let now = self.time.now();
        let is_sole = self.settings.store.kind() == "embedded";
        let lead = self.lead()?;
        let before = lead.replayed(&heartbeat.worker);
        let moment = boottime::now();
        let is_sure = is_sole || lead.has_lease(moment);
        let beat = lead.report(heartbeat, is_sure, now);
        let is_sent_on = !is_sure && lead.sends_on(&heartbeat.worker, moment);
        let is_replayed = lead.replayed(&heartbeat.worker) != before;
        self.figures.heartbeats.add(1);
        if is_replayed {
            self.figures.rejected.add(1);
        } else if !heartbeat.instances.is_empty() || heartbeat.full {
            self.seq += 1;
            self.tick_soon();
        }
        if is_sent_on {
            return Err(CallError::Away("the store is away, and another master may lead".to_owned()));
        }
        Ok(beat)
    }

    /// Returns the leader's state, if this master leads.
    pub(super) fn lead(&mut self) -> Result<&mut Lead, CallError> {
        match &mut self.role {
            Role::Leader(lead) => Ok(lead),
            Role::Follower(follow) => Err(CallError::NotLeader { leader: follow.record.address.clone() }),
            Role::Nobody => Err(CallError::Away("no master leads yet".to_owned())),
        }
    }

    /// Returns the leader's state, if this master leads and may change something.
    pub(super) fn writer(&mut self) -> Result<&mut Lead, CallError> {
        let lead = self.lead()?;
        match &lead.away {
            Some(why) => Err(unavailable(why)),
            None => Ok(lead),
        }
    }

    /// Stores what was decided just now, with an answer.
    pub(super) fn store(&mut self, events: Vec<(Ev, Fields)>, answer: Answer) {
        self.begin_commit(events, vec![answer]);
    }

    fn take_pipeline(&mut self, report: PipelineReport) -> Result<(), CallError> {
        self.lead()?;
        self.pipeline = Some(report);
        self.seq += 1;
        self.tick_soon();
        if let (Role::Leader(lead), Some(report)) = (&mut self.role, &self.pipeline) {
            lead.note_pipeline(report);
        }
        self.serve_parked();
        match &self.role {
            Role::Leader(lead) => lead.unpublished(self.pipeline.as_ref()),
            Role::Follower(_) | Role::Nobody => Ok(()),
        }
    }
}

/// Returns the answer of a leader that leads no more: nobody here knows what became of what was asked.
fn deposed() -> CallError {
    CallError::Away("this master leads no more".to_owned())
}

/// Returns the refusal of what needs the store.
pub(super) fn unavailable(why: &str) -> CallError {
    CallError::Refused {
        code: "store-unavailable".to_owned(),
        message: format!("the master's store is away, so nothing is changed; try again ({why})"),
    }
}

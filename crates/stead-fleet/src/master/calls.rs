//! The way to a master from inside its process.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use stead_model::WorkerName;
use stead_model::fleet::state::{Assignment, Heartbeat, Publication, Verdict};
use stead_model::fleet::{CommitId, InstanceKey};
use stead_runner::clock;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::Peers;
use super::figures::Figures;
use super::status::Shown;
use crate::api::{Applied, Beat, CallError, HoldOrder, Json, Leader, Master, PipelineReport, StatusFilter};

/// How long a call may take beyond what it waits for.
const DEADLINE: Duration = Duration::from_secs(10);

/// How long a publication may take.
const PUBLISH_DEADLINE: Duration = Duration::from_secs(60);

/// The longest wait for a change.
const LONGEST_WAIT: Duration = Duration::from_millis(55_000);

/// An answer on its way.
pub(super) type Reply<T> = oneshot::Sender<Result<T, CallError>>;

/// Whether an answer may wait for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// It may.
    Change,
    /// It is wanted as things are.
    Now,
}

/// Whose answer is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// The leader's, if it can be reached.
    Leaders,
    /// This master's.
    Own,
}

/// What is asked of the owner.
#[derive(Debug)]
pub(super) enum Call {
    Reserve {
        commit: CommitId,
        publisher: String,
        reply: Reply<u64>,
    },
    Publish {
        publications: Vec<Publication>,
        publisher: String,
        reply: Reply<Vec<Verdict>>,
    },
    Assignment {
        worker: WorkerName,
        applied: Applied,
        patience: Patience,
        reply: Reply<Option<Assignment>>,
    },
    Report {
        heartbeat: Box<Heartbeat>,
        reply: Reply<Beat>,
    },
    Status {
        after: u64,
        patience: Patience,
        whose: Whose,
        reply: Reply<Arc<Shown>>,
    },
    Explain {
        instance: InstanceKey,
        whose: Whose,
        reply: Reply<Json>,
    },
    Snapshot {
        whose: Whose,
        reply: Reply<Json>,
    },
    Pipeline {
        report: Box<PipelineReport>,
        reply: Reply<()>,
    },
    Hold {
        order: HoldOrder,
        by: String,
        reply: Reply<String>,
    },
    /// These workers are not of the fleet any more.
    Departed(BTreeSet<WorkerName>),
}

/// The way to a master from inside its process.
pub struct Handle {
    calls: mpsc::Sender<Call>,
    peers: Option<Peers>,
    figures: Arc<Figures>,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

fn away() -> CallError {
    CallError::Away("it has ended".to_owned())
}

impl Handle {
    pub(super) fn new(calls: mpsc::Sender<Call>, peers: Option<Peers>, figures: Arc<Figures>) -> Self {
        Self { calls, peers, figures }
    }

    /// Says who is not of the fleet any more: these, and nobody else.
    pub async fn set_departed(&self, names: BTreeSet<WorkerName>) {
        // An owner that has ended needs to know nothing more.
        self.calls.send(Call::Departed(names)).await.ok();
    }

    pub(super) fn figures(&self) -> &Figures {
        &self.figures
    }

    /// Returns the owner's answer, within `deadline`.
    async fn ask<T>(&self, deadline: Duration, call: impl FnOnce(Reply<T>) -> Call) -> Result<T, CallError> {
        let (reply, answer) = oneshot::channel();
        let asked = async {
            self.calls.send(call(reply)).await.map_err(|_| away())?;
            answer.await.map_err(|_| away())?
        };
        let late = || CallError::Away(format!("it took longer than {} s", deadline.as_secs()));
        timeout(deadline, asked).await.map_err(|_| late())?
    }

    /// Returns what a status shows as soon as its number is greater than `after`, or `wait` has passed.
    pub(super) async fn shown(
        &self,
        after: u64,
        wait: Duration,
        whose: Whose,
    ) -> Result<Arc<Shown>, CallError> {
        let status = |patience, after| move |reply| Call::Status { after, patience, whose, reply };
        if !wait.is_zero() {
            let waiting = self.ask(LONGEST_WAIT + DEADLINE, status(Patience::Change, after));
            if let Ok(answer) = timeout(wait.min(LONGEST_WAIT), waiting).await {
                return answer;
            }
        }
        self.ask(DEADLINE, status(Patience::Now, 0)).await
    }

    /// Asks the leader what was asked here.
    fn forward(&self, error: CallError) -> Result<Arc<dyn Master>, CallError> {
        match (&self.peers, error) {
            (Some(peers), CallError::NotLeader { leader }) if !leader.is_empty() => {
                peers(&leader).ok_or(CallError::NotLeader { leader })
            }
            (_, error) => Err(error),
        }
    }
}

/// Returns a status as JSON, on a thread of its own: it may be large.
pub(super) async fn written(shown: Arc<Shown>, filter: &StatusFilter) -> Result<Json, CallError> {
    let filter = filter.clone();
    let text = tokio::task::spawn_blocking(move || shown.to_json(&filter)).await;
    text.map(Json).map_err(|_| away())
}

#[async_trait]
impl Master for Handle {
    async fn leader(&self) -> Leader {
        self.figures.leader.borrow().clone()
    }

    async fn reserve_generation(&self, commit: &CommitId, publisher: &str) -> Result<u64, CallError> {
        let (commit, publisher) = (commit.clone(), publisher.to_owned());
        self.ask(DEADLINE, |reply| Call::Reserve { commit, publisher, reply }).await
    }

    async fn publish(&self, publication: Publication, publisher: &str) -> Result<Verdict, CallError> {
        let verdicts = self.publish_together(vec![publication], publisher).await?;
        verdicts.into_iter().next().ok_or_else(away)
    }

    async fn publish_together(
        &self,
        publications: Vec<Publication>,
        publisher: &str,
    ) -> Result<Vec<Verdict>, CallError> {
        let publisher = publisher.to_owned();
        let _measured = self.figures.publish.start();
        self.ask(PUBLISH_DEADLINE, |reply| Call::Publish { publications, publisher, reply }).await
    }

    async fn assignment(
        &self,
        worker: &WorkerName,
        applied: Applied,
        wait: Duration,
    ) -> Result<Option<Assignment>, CallError> {
        let call = |patience| {
            let worker = worker.clone();
            move |reply| Call::Assignment { worker, applied, patience, reply }
        };
        if !wait.is_zero() {
            let began = clock::instant();
            let waiting = self.ask(LONGEST_WAIT + DEADLINE, call(Patience::Change));
            match timeout(wait.min(LONGEST_WAIT), waiting).await {
                Ok(Err(error)) => return self.forward(error)?.assignment(worker, applied, wait).await,
                Ok(Ok(answer)) => {
                    let micros = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
                    self.figures.assignment.note(micros);
                    return Ok(answer);
                }
                Err(_) => {}
            }
        }
        match self.ask(DEADLINE, call(Patience::Now)).await {
            Err(error) => self.forward(error)?.assignment(worker, applied, Duration::ZERO).await,
            Ok(answer) => Ok(answer),
        }
    }

    async fn report(&self, heartbeat: Heartbeat) -> Result<Beat, CallError> {
        let heartbeat = Box::new(heartbeat);
        self.ask(DEADLINE, |reply| Call::Report { heartbeat, reply }).await
    }

    async fn status(
        &self,
        after: u64,
        wait: Duration,
        filter: &StatusFilter,
    ) -> Result<(Json, u64), CallError> {
        let shown = match self.shown(after, wait, Whose::Leaders).await {
            Ok(shown) => shown,
            Err(error) => {
                let told = self.forward(error)?.status(after, wait, filter).await;
                if told.is_ok() {
                    return told;
                }
                self.shown(after, Duration::ZERO, Whose::Own).await?
            }
        };
        let seq = shown.seq;
        Ok((written(shown, filter).await?, seq))
    }

    async fn explain(&self, instance: &InstanceKey) -> Result<Json, CallError> {
        let call = |whose| {
            let instance = instance.clone();
            move |reply| Call::Explain { instance, whose, reply }
        };
        match self.ask(DEADLINE, call(Whose::Leaders)).await {
            Err(error @ CallError::NotLeader { .. }) => match self.forward(error)?.explain(instance).await {
                Err(CallError::Away(_)) => self.ask(DEADLINE, call(Whose::Own)).await,
                answer => answer,
            },
            answer => answer,
        }
    }

    async fn snapshot(&self) -> Result<Json, CallError> {
        match self.ask(DEADLINE, |reply| Call::Snapshot { whose: Whose::Leaders, reply }).await {
            Err(error @ CallError::NotLeader { .. }) => match self.forward(error)?.snapshot().await {
                Err(CallError::Away(_)) => {
                    self.ask(DEADLINE, |reply| Call::Snapshot { whose: Whose::Own, reply }).await
                }
                answer => answer,
            },
            answer => answer,
        }
    }

    async fn report_pipeline(&self, report: PipelineReport) -> Result<(), CallError> {
        let report = Box::new(report);
        self.ask(DEADLINE, |reply| Call::Pipeline { report, reply }).await
    }

    async fn set_hold(&self, order: HoldOrder, by: &str) -> Result<String, CallError> {
        let by = by.to_owned();
        self.ask(DEADLINE, |reply| Call::Hold { order, by, reply }).await
    }
}

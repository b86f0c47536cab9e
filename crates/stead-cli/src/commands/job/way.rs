//! The way to a job: the server of this level, one that is named, or one of a level below.

use std::time::Duration;

use stead_drivers::nodes::new_job_key;
use stead_drivers::server_client::ServerClient;
use stead_model::node::wire::{Job, JobRequest};
use stead_model::node::{JobAnswer, JobId, JobWish};
use stead_model::{MessageId, SiteKey};

use crate::args::{JobPairArgs, OperatorArgs, PairArgs};
use crate::commands::nodes::jobs::{self, Below, Place};
use crate::commands::server_way;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::settings::Settings;

/// How long a server below is asked to wait for the end of a job.
const ONE_POLL: u64 = 25;

/// The way to a job.
pub(super) enum Way {
    /// A server that this machine can ask itself.
    Near(ServerClient),
    /// One that only who makes its nodes can ask.
    Below(Below),
}

/// Returns the pair that is meant, if one is.
pub(super) fn pair(operator: &OperatorArgs, pair: &JobPairArgs) -> PairArgs {
    PairArgs { manifest: pair.manifest.clone(), host: pair.host.clone(), site: operator.site.clone() }
}

/// Returns where the job `id` is, if not at a server that can be asked from here.
pub(super) fn below(
    id: &JobId,
    operator: &OperatorArgs,
    meant: &JobPairArgs,
    settings: &Settings,
) -> Result<Place, Failure> {
    if id.path.is_empty() {
        return Ok(Place::Own);
    }
    if operator.server.is_some() {
        let why = "a server elsewhere knows its own jobs only: leave out what is before the last `/`";
        return Err(Failure::new(FailureKind::Usage, why));
    }
    jobs::of_path(&pair(operator, meant), &id.path, settings).map(Place::Below)
}

impl Way {
    /// Returns the way to a place; one that is nowhere is looked for here.
    pub(super) async fn to(
        place: Place,
        operator: &OperatorArgs,
        settings: &Settings,
        output: &Output,
    ) -> Result<Self, Failure> {
        match place {
            Place::Below(below) => Ok(Self::Below(below)),
            Place::Own | Place::Nowhere => {
                server_way::operator(operator, settings, output).await.map(Self::Near)
            }
        }
    }

    /// Submits a job. Below it has a key: whatever is cut off on the way, there is one.
    pub(super) async fn submit(&self, request: &JobRequest) -> Result<JobId, Failure> {
        match self {
            Self::Near(client) => {
                let id = client.submit(request).await;
                id.map(|id| self.named(id)).map_err(|error| super::submit::refused(error, request))
            }
            Self::Below(below) => {
                let request = JobRequest { key: Some(new_job_key()), ..request.clone() };
                let answer = below.ask(JobWish::Submit(Box::new(request))).await?;
                let JobAnswer::Submitted(id) = answer else { return Err(odd()) };
                Ok(self.named(id))
            }
        }
    }

    /// Returns a job; one that is waited for, perhaps only when it has ended.
    pub(super) async fn job(&self, id: &MessageId, is_waited_for: bool) -> Result<Job<JobId>, Failure> {
        match self {
            Self::Near(client) => client.job(id).await.map(|job| self.seen(job)).map_err(server_way::failure),
            Self::Below(below) => {
                let wait = if is_waited_for { ONE_POLL } else { 0 };
                self.one(below.ask(JobWish::Show { id: id.clone(), wait }).await?)
            }
        }
    }

    /// Ends a job.
    pub(super) async fn cancel(&self, id: &MessageId) -> Result<Job<JobId>, Failure> {
        match self {
            Self::Near(client) => {
                client.cancel(id).await.map(|job| self.seen(job)).map_err(server_way::failure)
            }
            Self::Below(below) => self.one(below.ask(JobWish::Cancel(id.clone())).await?),
        }
    }

    /// Returns all jobs.
    pub(super) async fn jobs(&self) -> Result<Vec<Job<JobId>>, Failure> {
        let jobs = match self {
            Self::Near(client) => client.jobs().await.map_err(server_way::failure)?,
            Self::Below(below) => {
                let JobAnswer::Jobs(jobs) = below.ask(JobWish::List).await? else { return Err(odd()) };
                jobs
            }
        };
        Ok(jobs.into_iter().map(|job| self.seen(job)).collect())
    }

    /// Returns how long to wait before a job is looked at again that was just looked at.
    pub(super) fn pause(&self, pause: Duration) -> Duration {
        match self {
            Self::Near(_) => pause,
            // It has waited there.
            Self::Below(_) => Duration::ZERO,
        }
    }

    fn path(&self) -> Vec<SiteKey> {
        match self {
            Self::Near(_) => Vec::new(),
            Self::Below(below) => below.path.clone(),
        }
    }

    pub(super) fn named(&self, id: MessageId) -> JobId {
        JobId { path: self.path(), id }
    }

    fn seen(&self, job: Job) -> Job<JobId> {
        job.named(|id| self.named(id))
    }

    fn one(&self, answer: JobAnswer) -> Result<Job<JobId>, Failure> {
        let JobAnswer::Job(job) = answer else { return Err(odd()) };
        Ok(self.seen(*job))
    }
}

/// Returns the failure of an answer to another question.
fn odd() -> Failure {
    Failure::new(FailureKind::Work, "something was answered that was not asked for")
}

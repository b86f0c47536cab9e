//! What a level above asks about the jobs of this machine's nodes: `stead errand job`.

use std::path::PathBuf;

use stead_drivers::nodes::answer_part;
use stead_model::SiteKey;
use stead_model::node::wire::JobRequest;
use stead_model::node::{JobAnswer, JobAsked, JobRefusal, JobWish};

use crate::args::{OperatorArgs, PairArgs, SiteArgs};
use crate::commands::nodes::jobs;
use crate::commands::{reach, server_way};
use crate::failure::Failure;
use crate::output::Output;
use crate::settings::Settings;

/// Where the question is about.
pub(in crate::commands) struct Here<'a> {
    /// The site that was handed down.
    pub(in crate::commands) site: PathBuf,
    /// Its manifest.
    pub(in crate::commands) manifest: &'a SiteKey,
    /// What this machine is called by who asks.
    pub(in crate::commands) host: &'a str,
}

/// Answers `asked`, or hands it on, and returns the answer from byte `from` on. There always is one.
pub(in crate::commands) fn answer(
    here: Here<'_>,
    asked: &JobAsked,
    from: u64,
    settings: &Settings,
    output: &Output,
) -> String {
    let site = SiteArgs { site: Some(here.site) };
    let part = if asked.path.is_empty() {
        own(asked, &OperatorArgs { site, ..OperatorArgs::default() }, settings, output)
            .map(|answer| answer_part(&answer, from))
    } else {
        let (manifest, host) = (Some(here.manifest.to_string()), Some(here.host.to_owned()));
        jobs::hand_on(&PairArgs { manifest, host, site }, asked, from, settings)
    };
    part.unwrap_or_else(|failure| answer_part(&JobAnswer::Refused(refusal(&failure)), from))
}

/// Asks the server of this level.
fn own(
    asked: &JobAsked,
    operator: &OperatorArgs,
    settings: &Settings,
    output: &Output,
) -> Result<JobAnswer, Failure> {
    let refused = |error, request: &JobRequest| super::submit::refused(error, request);
    reach::block_on(async {
        let client = server_way::operator(operator, settings, output).await?;
        match &asked.wish {
            JobWish::Submit(request) => {
                let id = client.submit_for(request, &asked.by).await;
                id.map(JobAnswer::Submitted).map_err(|error| refused(error, request))
            }
            JobWish::Show { id, wait: 0 } => {
                client.job(id).await.map(|job| JobAnswer::Job(Box::new(job))).map_err(server_way::failure)
            }
            JobWish::Show { id, wait } => {
                let job = client.job_news(id, u64::MAX, std::time::Duration::from_secs(*wait)).await;
                job.map(|job| JobAnswer::Job(Box::new(job))).map_err(server_way::failure)
            }
            JobWish::Cancel(id) => {
                let job = client.cancel_for(id, &asked.by).await;
                job.map(|job| JobAnswer::Job(Box::new(job))).map_err(server_way::failure)
            }
            JobWish::List => client.jobs().await.map(JobAnswer::Jobs).map_err(server_way::failure),
        }
    })?
}

fn refusal(failure: &Failure) -> JobRefusal {
    JobRefusal {
        exit_code: failure.exit_code(),
        code: failure.stable_code().into_owned(),
        message: failure.message(),
    }
}

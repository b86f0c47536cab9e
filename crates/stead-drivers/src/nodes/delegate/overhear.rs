//! Listens to a run on a hosting node through jobs of its agent.
//!
//! One job hands on so many bytes of events, and they can be read while it runs; the next one goes on after the last
//! event that was heard. A job that is lost with its agent is followed by another: no event is missed, none comes twice.

use std::time::Duration;

use stead_model::node::ErrandEnd;
use stead_model::node::wire::JobState;
use stead_model::{ErrorClass, MessageId, NodeName};
use stead_runner::operation::{OpContext, OpError, Stop};
use tokio::time::sleep;

use super::super::NodesSurroundings;
use super::super::line::{ended, news};
use super::Deputy;
use super::listen::{Heard, Listening};
use crate::errand::COMMAND;
use crate::server_client::ServerClient;

/// The events of one job: few enough to be told again and again while it runs.
const MOST_BYTES: &str = "131072";

/// Before a run is asked again to stop.
const PAUSE: Duration = Duration::from_millis(500);

/// What one job was good for.
enum Told {
    /// The run ended.
    End(ErrandEnd),
    /// There is more.
    More,
    /// The job did not last.
    Lost(String),
}

impl NodesSurroundings {
    /// Listens until the run ends: its end, or why it cannot be heard over this line any more.
    pub(super) async fn overhear(
        &self,
        cx: &OpContext,
        deputy: &Deputy<'_>,
        listening: &mut Listening,
        client: &ServerClient,
    ) -> Result<Result<ErrandEnd, OpError>, OpError> {
        loop {
            let (after, run) = (listening.after.to_string(), listening.run.to_string());
            let argv = [COMMAND, "follow", "--run", &run, "--after", &after, "--most", MOST_BYTES];
            let before = listening.after;
            let job = match self.submit(client, agent_of(deputy)?, &argv, Vec::new(), true).await {
                Ok(job) => job,
                // The server of the level is away; the run goes on without it.
                Err(error) if error.class == ErrorClass::Unreachable => return Ok(Err(error)),
                Err(error) => return Err(error),
            };
            let why = match self.overhear_job(cx, deputy, listening, client, &job).await? {
                Told::End(end) => return Ok(Ok(end)),
                Told::More if listening.after > before => continue,
                // Nothing of it would be heard the next time either.
                Told::More => {
                    let why = format!("the run on {deputy} has an event that is too long for a job");
                    return Err(OpError::permanent(why));
                }
                Told::Lost(why) => why,
            };
            return Ok(Err(OpError::new(ErrorClass::Unreachable, why)));
        }
    }

    /// Listens to one job until it ends.
    async fn overhear_job(
        &self,
        cx: &OpContext,
        deputy: &Deputy<'_>,
        listening: &mut Listening,
        client: &ServerClient,
        id: &MessageId,
    ) -> Result<Told, OpError> {
        let mut heard = 0;
        loop {
            let job = tokio::select! {
                job = news(client, id, heard as u64) => job?,
                () = cx.cancel.at_least(Stop::Ask), if listening.may_ask_to_stop() => {
                    let run = listening.run.to_string();
                    let argv = [COMMAND, "stop", "--run", &run];
                    let asked = self.submit(client, agent_of(deputy)?, &argv, Vec::new(), false).await;
                    listening.stop_job = asked.ok();
                    if listening.stop_job.is_none() {
                        sleep(PAUSE).await;
                    }
                    continue;
                }
                is_heard = has_stopped(client, listening.stop_job.as_ref()), if listening.stop_job.is_some() => {
                    (listening.stop_job, listening.asked_to_stop) = (None, is_heard);
                    if !is_heard {
                        sleep(PAUSE).await;
                    }
                    continue;
                }
            };
            // Lines stay as they were once told; those of a job that ended are whole too.
            let new = job.stdout.get(heard..).unwrap_or_default();
            for line in new.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
                heard += line.len();
                match listening.hear(line.trim_end().as_bytes())? {
                    Heard::Event(event) => self.hand_up(cx, deputy, listening, event).await?,
                    Heard::Nothing => {}
                    Heard::End(end) => return Ok(Told::End(end)),
                }
            }
            match job.state {
                JobState::Queued | JobState::Delivered | JobState::Running => {}
                JobState::Succeeded => return Ok(Told::More),
                JobState::Failed | JobState::Cancelled | JobState::Expired | JobState::Lost => {
                    let why = job.error.unwrap_or_else(|| job.stderr.trim().to_owned());
                    return Ok(Told::Lost(format!("job {id} is {}: {why}", job.state.as_str())));
                }
            }
        }
    }
}

/// Waits for the end of the job that asks a run to stop; returns whether the run was asked.
async fn has_stopped(client: &ServerClient, job: Option<&MessageId>) -> bool {
    match job {
        Some(id) => ended(client, id).await.is_ok_and(|job| job.state == JobState::Succeeded),
        None => false,
    }
}

/// Returns the node whose agent is told what to do.
fn agent_of<'a>(deputy: &'a Deputy<'_>) -> Result<&'a NodeName, OpError> {
    deputy.node().ok_or_else(|| OpError::invalid(format!("{deputy} has no agent")))
}

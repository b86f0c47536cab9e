//! The line to the stead on a node: SSH, or jobs of the node's agent.
//!
//! ```text
//!  Line::Ssh    this driver ── SSH ──▶ stead …
//!  Line::Jobs   this driver ── job ──▶ server of the level ◀── long-poll ── agent ──▶ stead …
//! ```
//! Over both the same commands are run with the same input. What goes as a job is not in its arguments: the server
//! keeps the input in a file of its own until the job has ended.

use std::sync::Arc;
use std::time::Duration;

use stead_model::node::wire::{AgentState, INPUT_BYTES, Job, JobInput, JobRequest, JobState};
use stead_model::site::manifest::Delegation;
use stead_model::{ErrorClass, MessageId, NodeName};
use stead_runner::operation::OpError;
use stead_runner::transport::Transport;
use tokio::time::{Instant, sleep, timeout_at};

use super::NodesSurroundings;
use super::reach::Said;
use crate::server_client::{ClientError, ServerClient};

/// The program of the agent, as jobs call it.
const PROGRAM: &str = "stead";
/// How long one question for a job waits.
const ONE_POLL: Duration = Duration::from_secs(50);
/// How often is looked whether an agent is there.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Between two questions to a server that is away.
const PAUSE: Duration = Duration::from_millis(500);

/// The way to the stead on a node.
pub(super) enum Line {
    /// Over SSH.
    Ssh(Arc<dyn Transport>),
    /// Through the server of this level.
    Jobs(ServerClient),
}

impl NodesSurroundings {
    /// Opens the line over which a hosting node is told what to do.
    pub(super) async fn hosting_line(&self, name: &NodeName) -> Result<Line, OpError> {
        match self.parts.manifest.settings.delegation {
            Delegation::Ssh => self.connect(name).await.map(Line::Ssh),
            Delegation::Job => {
                let client = self.server_client().await?;
                self.job_line(client, name, self.limit(name.as_str(), |limits| limits.ssh)).await
            }
        }
    }

    /// Opens the line to a node's agent, once that is there.
    pub(super) async fn job_line(
        &self,
        client: ServerClient,
        name: &NodeName,
        patience: Duration,
    ) -> Result<Line, OpError> {
        let deadline = Instant::now() + patience;
        loop {
            let known = client.node(name, 0, Duration::ZERO).await;
            if known.is_ok_and(|known| known.agent == AgentState::Connected) {
                return Ok(Line::Jobs(client));
            }
            if Instant::now() > deadline {
                let within = stead_model::duration::to_exact(patience);
                let message = format!("the agent of {name} was not heard within {within}");
                return Err(OpError::new(ErrorClass::Unreachable, message));
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Runs stead at the other end with `input` on its standard input, and returns what it left. `name`: the node there.
    pub(super) async fn ask(
        &self,
        line: &Line,
        name: Option<&NodeName>,
        argv: &[&str],
        input: Vec<u8>,
    ) -> Result<Said, OpError> {
        match line {
            Line::Ssh(transport) => self.on_node(&**transport, argv, input).await,
            Line::Jobs(client) => {
                let name = name.ok_or_else(|| OpError::invalid("only a node has an agent"))?;
                let patience = self.limit(name.as_str(), |limits| limits.config);
                self.ask_agent(client, name, argv, input, patience).await
            }
        }
    }

    /// Has the agent of a node run stead with `input` on its standard input, and returns what it left.
    pub(super) async fn ask_agent(
        &self,
        client: &ServerClient,
        name: &NodeName,
        argv: &[&str],
        input: Vec<u8>,
        patience: Duration,
    ) -> Result<Said, OpError> {
        let deadline = Instant::now() + patience;
        let id = self.submit(client, name, argv, input, false).await?;
        let ended = timeout_at(deadline, ended(client, &id)).await;
        let job = ended.map_err(|_| {
            OpError::new(ErrorClass::Timeout, format!("{name} did not end its job {id} in time"))
        })??;
        said(name, job)
    }

    /// Has the agent of a node run stead as a job.
    pub(super) async fn submit(
        &self,
        client: &ServerClient,
        name: &NodeName,
        argv: &[&str],
        input: Vec<u8>,
        live: bool,
    ) -> Result<MessageId, OpError> {
        if input.len() > INPUT_BYTES {
            let most = INPUT_BYTES >> 20;
            let message =
                format!("what {name} is to be given has more than {most} MiB: use `delegation: ssh`");
            return Err(OpError::permanent(message));
        }
        let text = String::from_utf8(input).map_err(|_| OpError::invalid("a job reads text only"))?;
        let request = JobRequest {
            node: name.clone(),
            argv: [PROGRAM].iter().chain(argv).map(|&word| word.to_owned()).collect(),
            ttl: self.limit(name.as_str(), |limits| limits.ssh).as_secs().max(1),
            timeout: Some(self.limit(name.as_str(), |limits| limits.delegate).as_secs().max(1)),
            idempotent: false,
            live,
            key: None,
            input: (!text.is_empty()).then(|| JobInput::new(text)),
        };
        client.submit(&request).await.map_err(|error| refused(&error))
    }
}

/// Waits for the end of a job.
pub(super) async fn ended(client: &ServerClient, id: &MessageId) -> Result<Job, OpError> {
    loop {
        let job = news(client, id, u64::MAX).await?;
        if job.state.is_final() {
            return Ok(job);
        }
    }
}

/// Returns a job when it has ended or has written more than `after` bytes; a server that is away is waited for.
pub(super) async fn news(client: &ServerClient, id: &MessageId, after: u64) -> Result<Job, OpError> {
    loop {
        match client.job_news(id, after, ONE_POLL).await {
            Ok(job) => return Ok(job),
            Err(error) if error.may_pass() => sleep(PAUSE).await,
            Err(error) => return Err(refused(&error)),
        }
    }
}

/// Returns what the command of a job left.
fn said(name: &NodeName, job: Job) -> Result<Said, OpError> {
    let failed = |class, why: &str| {
        let told = job.error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
        Err(OpError::new(class, format!("job {} on {name} {why}{told}", job.id)))
    };
    match job.state {
        JobState::Succeeded | JobState::Failed if job.rc.is_some() && job.error.is_none() => {
            Ok(Said { code: job.rc, stdout: job.stdout.into_bytes(), stderr: job.stderr.into_bytes() })
        }
        JobState::Succeeded | JobState::Failed => failed(ErrorClass::Operation, "did not run"),
        JobState::Expired => failed(ErrorClass::Unreachable, "was not fetched by its agent"),
        JobState::Lost => failed(ErrorClass::Unreachable, "was cut off"),
        JobState::Cancelled => failed(ErrorClass::Operation, "was cancelled"),
        JobState::Queued | JobState::Delivered | JobState::Running => {
            failed(ErrorClass::Operation, "has not ended")
        }
    }
}

/// Returns what it means that the server of the level refuses.
pub(super) fn refused(error: &ClientError) -> OpError {
    let class = if error.may_pass() { ErrorClass::Unreachable } else { ErrorClass::Operation };
    OpError::new(class, format!("the level's server: {error}"))
}

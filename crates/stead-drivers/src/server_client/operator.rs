//! What operators ask a server.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};
use stead_model::node::wire::{
    FOR_HEADER, Job, JobRequest, LONGEST_WAIT_SECONDS, NodeStatus, SignalKind, SignalRequest,
};
use stead_model::{MessageId, NodeName};

use super::{ClientError, PATIENCE, ServerClient, to_body};

#[derive(Deserialize)]
struct Nodes {
    nodes: Vec<NodeStatus>,
    #[serde(default)]
    next: Option<NodeName>,
}

#[derive(Deserialize)]
struct Jobs {
    jobs: Vec<Job>,
    #[serde(default)]
    next: Option<MessageId>,
}

#[derive(Deserialize)]
struct Named {
    id: MessageId,
}

impl ServerClient {
    /// Returns what the server knows of its nodes, by name.
    pub async fn nodes(&self) -> Result<Vec<NodeStatus>, ClientError> {
        let (mut nodes, mut path) = (Vec::new(), "/v1/nodes".to_owned());
        loop {
            let answer = self.call("GET", &path, None).await?;
            let known = self.read::<Nodes>(&answer.body)?;
            nodes.extend(known.nodes);
            let Some(next) = known.next else { return Ok(nodes) };
            path = format!("/v1/nodes?after={next}");
        }
    }

    /// Returns what the server knows of a node, with its reports after `after`; if there are none it waits for one.
    pub async fn node(&self, node: &NodeName, after: u64, wait: Duration) -> Result<NodeStatus, ClientError> {
        let seconds = wait.as_secs().min(LONGEST_WAIT_SECONDS);
        let path = format!("/v1/nodes/{node}?after={after}&wait={seconds}");
        let patience = PATIENCE + Duration::from_secs(seconds);
        let answer = self.accepted(self.send("GET", &path, None, None, patience).await?)?;
        self.read(&answer.body)
    }

    /// Sends a node a signal, and returns what it is called.
    pub async fn signal(
        &self,
        node: &NodeName,
        kind: SignalKind,
        payload: Map<String, Value>,
    ) -> Result<MessageId, ClientError> {
        let body = to_body(&SignalRequest { kind, payload })?;
        let answer = self.call("POST", &format!("/v1/nodes/{node}/signals"), Some(body)).await?;
        self.read::<Named>(&answer.body).map(|named| named.id)
    }

    /// Submits a job, and returns what it is called.
    pub async fn submit(&self, request: &JobRequest) -> Result<MessageId, ClientError> {
        let answer = self.call("POST", "/v1/jobs", Some(to_body(request)?)).await?;
        self.read::<Named>(&answer.body).map(|named| named.id)
    }

    /// Submits a job for somebody of a level above, and returns what it is called. With a key it may be asked for again.
    pub async fn submit_for(&self, request: &JobRequest, by: &str) -> Result<MessageId, ClientError> {
        let answer = self.send("POST", "/v1/jobs", Some(for_whom(by)), Some(to_body(request)?), PATIENCE);
        self.read::<Named>(&self.accepted(answer.await?)?.body).map(|named| named.id)
    }

    /// Returns the jobs the server knows, oldest first, without what they wrote.
    pub async fn jobs(&self) -> Result<Vec<Job>, ClientError> {
        let (mut jobs, mut path) = (Vec::new(), "/v1/jobs".to_owned());
        loop {
            let answer = self.call("GET", &path, None).await?;
            let known = self.read::<Jobs>(&answer.body)?;
            jobs.extend(known.jobs);
            let Some(next) = known.next else { return Ok(jobs) };
            path = format!("/v1/jobs?after={next}");
        }
    }

    /// Returns a job.
    pub async fn job(&self, id: &MessageId) -> Result<Job, ClientError> {
        let answer = self.call("GET", &format!("/v1/jobs/{id}"), None).await?;
        self.read(&answer.body)
    }

    /// Returns a job as soon as it has ended or has written more than `after` bytes; else when the time is over.
    pub async fn job_news(&self, id: &MessageId, after: u64, wait: Duration) -> Result<Job, ClientError> {
        let seconds = wait.as_secs().min(LONGEST_WAIT_SECONDS);
        let path = format!("/v1/jobs/{id}?after={after}&wait={seconds}");
        let patience = PATIENCE + Duration::from_secs(seconds);
        let answer = self.accepted(self.send("GET", &path, None, None, patience).await?)?;
        self.read(&answer.body)
    }

    /// Ends a job, and returns it as it is then.
    pub async fn cancel(&self, id: &MessageId) -> Result<Job, ClientError> {
        let answer = self.call("DELETE", &format!("/v1/jobs/{id}"), None).await?;
        self.read(&answer.body)
    }

    /// Ends a job for somebody of a level above, and returns it as it is then.
    pub async fn cancel_for(&self, id: &MessageId, by: &str) -> Result<Job, ClientError> {
        let path = format!("/v1/jobs/{id}");
        let answer = self.send("DELETE", &path, Some(for_whom(by)), None, PATIENCE).await?;
        self.read(&self.accepted(answer)?.body)
    }
}

/// Returns the header that says for whom of a level above somebody asks.
fn for_whom(by: &str) -> (&'static str, String) {
    let is_plain = |c: &char| c.is_ascii_graphic() || *c == ' ';
    (FOR_HEADER, by.chars().filter(is_plain).collect())
}

//! `node.await` and `node.signal`: a node configures itself, and its report at the level's server is waited for.

use std::pin::pin;
use std::time::Duration;

use serde_json::Map;
use stead_model::node::wire::{AgentState, NodeReport, ReportKind, ReportStatus, SignalKind, StoredReport};
use stead_model::node::{NodeEntry, NodeStatus};
use stead_model::report::Warning;
use stead_model::token::RefusalCode;
use stead_model::{ErrorClass, NodeName};
use stead_runner::operation::{OpContext, OpError, Outcome};
use tokio::time::{Instant, timeout, timeout_at};

use super::line::refused;
use super::tokens::{Telling, was_made_here};
use super::{NodeView, NodesSurroundings};
use crate::server_client::{ClientError, ServerClient};

/// How long one question to the server waits for a report.
const ONE_POLL: Duration = Duration::from_secs(50);
/// How long after its boot an agent may take to connect before it is told over SSH.
const CONNECTED_WITHIN: Duration = Duration::from_secs(30);
/// How long between two looks at a machine whose report is waited for.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How long a node that pulls may take to be reached over SSH, which it does not need.
const REACHED_WITHIN: Duration = Duration::from_secs(20);

impl NodesSurroundings {
    /// Waits for the report of a node that fetches its spec. One that has reported before is told to do so again.
    pub(super) async fn await_report(&self, cx: &OpContext, name: &NodeName) -> Result<Outcome, OpError> {
        self.converge(cx, name, false).await
    }

    /// Tells a node to fetch its spec, and waits for its report.
    pub(super) async fn signal(&self, cx: &OpContext, name: &NodeName) -> Result<Outcome, OpError> {
        self.converge(cx, name, true).await
    }

    async fn converge(&self, cx: &OpContext, name: &NodeName, is_hybrid: bool) -> Result<Outcome, OpError> {
        let node = self.node(name.as_str())?;
        let spec = self.spec_of(&node)?.ok_or_else(|| OpError::invalid(format!("{name} has no spec")))?;
        let digest = spec.digest();
        let client = self.server_client().await?;
        let known = client.node(name, 0, Duration::ZERO).await;
        let (seq, agent, reported) = match known {
            Ok(known) => (known.seq, known.agent, self.is_of_this_machine(name, known.reports.last())),
            // A server that has never heard of a node does not know it.
            Err(ClientError::Refused { .. }) => (0, AgentState::None, false),
            Err(error) => return Err(refused(&error)),
        };
        let mut enabled = self.enable_agent(cx, &node).await?;
        let limit = self.limit(name.as_str(), |limits| limits.config);
        let deadline = Instant::now() + limit;
        // A new node that pulls needs no telling; its report may be there already.
        let is_told = is_hybrid || (reported && !enabled);
        if is_told {
            client.signal(name, SignalKind::Converge, Map::new()).await.map_err(|error| refused(&error))?;
        }
        // What was reported before an agent was told anew is what another one found.
        let after = if is_told || enabled { seq } else { 0 };
        // An agent that was told long ago may have been told what is not good any more.
        let is_old = self.entry(name).is_some_and(|entry| !was_made_here(cx, &entry));
        let is_silent = if is_hybrid { agent != AgentState::Connected } else { is_old && !enabled };
        let mut over_ssh = is_silent.then(|| Instant::now() + CONNECTED_WITHIN);
        let mut seen = after;
        let mut end = pin!(self.end_of_machine(name));
        let report = loop {
            let wait = over_ssh.unwrap_or(deadline).min(deadline);
            let poll = self.next_report(&client, name, seen);
            let polled = tokio::select! {
                biased;
                polled = timeout_at(wait, poll) => polled,
                why = &mut end => {
                    let message = format!("{name} did not report that it is configured: {why}");
                    let error = OpError { changed: true, ..OpError::new(ErrorClass::Unreachable, message) };
                    return Err(self.with_last_words(name, error).await);
                }
            };
            match polled {
                Ok(found) => {
                    let (last, reports) = found?;
                    seen = last;
                    if let Some(report) = self.judge(name, &reports, &digest)? {
                        break report;
                    }
                }
                Err(_) if wait < deadline && is_hybrid => {
                    over_ssh = None;
                    self.signal_if_silent(&client, name).await?;
                }
                Err(_) if wait < deadline => {
                    over_ssh = None;
                    enabled |= self.tell_if_silent(cx, &client, &node).await?;
                }
                Err(_) => {
                    let within = stead_model::duration::to_exact(limit);
                    let message = format!("{name} did not report within {within} that it is configured");
                    let error = OpError { changed: true, ..OpError::new(ErrorClass::Timeout, message) };
                    return Err(self.with_last_words(name, error).await);
                }
            }
        };
        let changed = report.changed > 0 || enabled;
        let (mode, is_done) = (node.known.modes.config, !node.known.is_hosting);
        self.follow_port(&node, spec.access.security.ssh.port).await?;
        self.update(name, changed, |entry| {
            (entry.mode, entry.spec) = (mode, Some(spec.spec.clone()));
            entry.spec_digest = Some(digest);
            entry.state_digest = report.state_digest.clone();
            if is_done {
                (entry.status, entry.error) = (NodeStatus::Completed, None);
            }
        })
        .await?;
        Ok(Outcome { changed, ..Outcome::default() })
    }

    /// Waits until the machine of a node has ended, and returns why no report will come any more. It is looked at twice: one
    /// that restarts is away for a moment.
    async fn end_of_machine(&self, name: &NodeName) -> String {
        let mut was_gone = false;
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            match self.end_of(name).await {
                Some(why) if was_gone => return why,
                found => was_gone = found.is_some(),
            }
        }
    }

    /// Returns the reports after `after`, waiting for one, and the place of the last.
    pub(super) async fn next_report(
        &self,
        client: &ServerClient,
        name: &NodeName,
        after: u64,
    ) -> Result<(u64, Vec<StoredReport>), OpError> {
        loop {
            match client.node(name, after, ONE_POLL).await {
                Ok(known) if known.reports.is_empty() => {}
                Ok(known) => return Ok((known.seq.max(after), known.reports)),
                Err(ClientError::Refused { .. }) => tokio::time::sleep(Duration::from_millis(100)).await,
                Err(error @ ClientError::Unreachable { .. }) => {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    let gone = |failed: OpError| failed.within(format_args!("{error}"));
                    self.revive_server().await.map_err(gone)?;
                }
                Err(error) if error.may_pass() => tokio::time::sleep(Duration::from_millis(500)).await,
                Err(error) => return Err(refused(&error)),
            }
        }
    }

    /// Returns the report that ends the wait well, or the failure that ends it.
    fn judge(
        &self,
        name: &NodeName,
        reports: &[StoredReport],
        digest: &str,
    ) -> Result<Option<NodeReport>, OpError> {
        let mut own = reports.iter().filter(|report| self.is_of_this_machine(name, Some(report)));
        let Some(last) =
            own.rfind(|stored| stored.report.kind == ReportKind::Config && !was_refused(&stored.report))
        else {
            return Ok(None);
        };
        match last.report.status {
            ReportStatus::Running => Ok(None),
            ReportStatus::Complete if last.report.spec_digest.as_deref() == Some(digest) => {
                Ok(Some(last.report.clone()))
            }
            // Of a spec before this one; the next report counts.
            ReportStatus::Complete => Ok(None),
            ReportStatus::Failed => {
                let why = last.report.error.clone().unwrap_or_else(|| "it did not say why".to_owned());
                Err(OpError { changed: true, ..OpError::operation(why) })
            }
        }
    }

    /// Whether a report is of the node as it is now, and not of one of the same name before it.
    fn is_of_this_machine(&self, name: &NodeName, report: Option<&StoredReport>) -> bool {
        let made = self.entry(name).and_then(|entry| entry.created_at);
        report.is_some_and(|report| made.is_none_or(|made| report.at >= made))
    }

    /// Tells a node whom to ask, unless it was told and that is still good. Whether it had to be told.
    pub(super) async fn enable_agent(&self, cx: &OpContext, node: &NodeView<'_>) -> Result<bool, OpError> {
        let name = &node.node.name;
        let Some(entry) = self.entry(name) else {
            return Err(OpError::operation(format!("{name} was never made")));
        };
        let mode = entry.told.as_ref().map_or(entry.mode, |told| told.mode);
        let is_told = entry.jti.is_some() && Some(mode) == node.agent_mode();
        let refusal = self.refusal(name, &entry).filter(|_| is_told);
        let Some(code) = refusal else {
            if !is_told {
                self.tell_anew(cx, node, entry).await?;
            }
            return Ok(!is_told);
        };
        let text = format!("the token of {name} is refused ({}); it is given a new one", code.as_str());
        let text = Warning::new("node/new-token", text);
        match code {
            RefusalCode::E303 => {
                self.parts.announcer.warn(text).await;
                self.tell_anew(cx, node, entry).await?;
                Ok(true)
            }
            // It may have renewed its token since, and then it asks.
            RefusalCode::E200
            | RefusalCode::E201
            | RefusalCode::E202
            | RefusalCode::E300
            | RefusalCode::E301
            | RefusalCode::E302
            | RefusalCode::E304
            | RefusalCode::E400
            | RefusalCode::E500 => {
                let told = self.tell_if_silent(cx, &self.server_client().await?, node).await?;
                if told {
                    self.parts.announcer.warn(text).await;
                }
                Ok(told)
            }
        }
    }

    /// Gives a node's agent a new token over SSH; all it had before are worthless then.
    async fn tell_anew(&self, cx: &OpContext, node: &NodeView<'_>, before: NodeEntry) -> Result<(), OpError> {
        let name = &node.node.name;
        let supersedes = self.may_have_tokens(cx, &before);
        let Telling { bootstrap, jti, told } = self.telling(node, supersedes).await?;
        let transport = self.connect(name).await?;
        let said = self.on_node(&*transport, &["agent", "enable"], bootstrap.to_json().into_bytes()).await?;
        if said.code != Some(0) {
            return Err(OpError::operation(format!("starting the agent of {name}: {}", said.complaint())));
        }
        let (mode, first) = (node.known.modes.config, told.iat);
        self.update(name, true, |entry| {
            (entry.jti, entry.told, entry.mode) = (Some(jti), Some(told), mode);
        })
        .await?;
        if supersedes {
            self.revoke_tokens(name, before.jti, Some(first)).await?;
        }
        Ok(())
    }

    /// Gives a new token to a node that pulls and has not asked for long, if it is reached. Whether it was.
    async fn tell_if_silent(
        &self,
        cx: &OpContext,
        client: &ServerClient,
        node: &NodeView<'_>,
    ) -> Result<bool, OpError> {
        let name = &node.node.name;
        if asks(client, name).await? {
            return Ok(false);
        }
        let Some(entry) = self.entry(name) else { return Ok(false) };
        let text = match timeout(REACHED_WITHIN, self.tell_anew(cx, node, entry)).await {
            Ok(Ok(())) => return Ok(true),
            Ok(Err(error)) => error.message,
            Err(_) => format!("it was not reached within {} s", REACHED_WITHIN.as_secs()),
        };
        // It may come back by itself: nothing else is needed of a node that pulls.
        let text = format!("{name} does not ask the server, and was given no new token: {text}");
        self.parts.announcer.warn(Warning::new("node/silent", text)).await;
        Ok(false)
    }

    /// Tells a hybrid node to converge over SSH if its agent has not connected, and warns if that cannot be done.
    async fn signal_if_silent(&self, client: &ServerClient, name: &NodeName) -> Result<(), OpError> {
        if asks(client, name).await? {
            return Ok(());
        }
        let text = match timeout(REACHED_WITHIN, self.tell_over_ssh(name)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error.message,
            Err(_) => format!("it was not reached within {} s", REACHED_WITHIN.as_secs()),
        };
        // SSH is one of two ways: the signal waits at the server for an agent that comes late.
        let text = format!("{name} does not ask the server, and was not told to converge over SSH: {text}");
        self.parts.announcer.warn(Warning::new("node/silent", text)).await;
        Ok(())
    }

    async fn tell_over_ssh(&self, name: &NodeName) -> Result<(), OpError> {
        let transport = self.connect(name).await?;
        let said = self.on_node(&*transport, &["agent", "signal", "converge"], Vec::new()).await?;
        match said.code {
            Some(0) => Ok(()),
            Some(_) | None => {
                Err(OpError::operation(format!("telling {name} to converge: {}", said.complaint())))
            }
        }
    }

    /// Has a node stop itself, and waits until it says so. One that does not answer is removed all the same.
    pub(super) async fn terminate(&self, name: &NodeName) -> Result<(), OpError> {
        let client = self.running_server().await?;
        let seq = match client.node(name, 0, Duration::ZERO).await {
            Ok(known) if known.agent != AgentState::None => known.seq,
            Ok(_) | Err(_) => return Ok(()),
        };
        client.signal(name, SignalKind::Terminate, Map::new()).await.map_err(|error| refused(&error))?;
        let deadline = Instant::now() + self.limit(name.as_str(), |limits| limits.destroy);
        let mut seen = seq;
        loop {
            let Ok(found) = timeout_at(deadline, self.next_report(&client, name, seen)).await else {
                let text = format!("{name} did not say that it stopped; it is removed all the same");
                self.parts.announcer.warn(Warning::new("node/no-answer", text)).await;
                return Ok(());
            };
            let (last, reports) = found?;
            seen = last;
            if reports.iter().any(|stored| stored.report.kind == ReportKind::Terminated) {
                return Ok(());
            }
        }
    }
}

/// Whether the agent of a node asks the server.
async fn asks(client: &ServerClient, name: &NodeName) -> Result<bool, OpError> {
    match client.node(name, 0, Duration::ZERO).await {
        Ok(known) => Ok(known.agent == AgentState::Connected),
        Err(ClientError::Refused { .. }) => Ok(false),
        Err(error) => Err(refused(&error)),
    }
}

/// Whether a report says that the server refused the node's token. It came with one that is good: that is over.
fn was_refused(report: &NodeReport) -> bool {
    let says =
        |code: RefusalCode| report.error.as_deref().is_some_and(|error| error.starts_with(code.as_str()));
    report.status == ReportStatus::Failed
        && [RefusalCode::E301, RefusalCode::E302, RefusalCode::E303].into_iter().any(says)
}

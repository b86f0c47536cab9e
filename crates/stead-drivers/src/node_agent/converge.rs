//! A node becomes its spec: fetched from its server, else the one in force.

use std::path::PathBuf;
use std::time::Duration;

use stead_model::node::wire::{NodeReport, ReportKind, ReportStatus};
use stead_model::node::{Applied, Bootstrap};
use stead_model::site::ResolvedSpec;
use stead_model::site::resolve::ResolvedRun;
use stead_model::{MessageId, RunId};

use super::Tell;
use super::fetch::{FetchFailed, Patience, fetch};
use super::place::NodeFiles;
use crate::config::{self, ApplyError, ApplyOptions, ConfigFiles};
use crate::server_client::{ClientError, ServerClient};

/// How often the server is asked after the network changed.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Why a node converges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// It was told to, by these signals or by its start.
    Told(Vec<MessageId>),
    /// It is time.
    Schedule,
}

/// How it went.
#[derive(Debug)]
pub(super) struct Converged {
    pub(super) why: Why,
    /// Why the spec is not known to be the server's.
    pub(super) not_fetched: Option<FetchFailed>,
    /// The spec in force, if there is one, and what became of the node by it.
    pub(super) applied: Option<(ResolvedSpec, Result<Applied, ApplyError>)>,
}

impl Converged {
    /// Whether the server has to be asked again: it was away, and somebody waits for its answer.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.why, Why::Told(_)) && self.away().is_some()
    }

    /// Returns the error of a server that was away.
    pub(super) fn away(&self) -> Option<&ClientError> {
        self.not_fetched.as_ref().map(|failed| &*failed.error).filter(|error| error.may_pass())
    }

    /// Returns how often the node converges by itself, in seconds.
    pub(super) fn interval(&self) -> Option<u64> {
        self.applied.as_ref().and_then(|(spec, _)| interval(spec))
    }

    /// Whether all is well.
    pub(super) fn is_good(&self) -> bool {
        let is_applied = matches!(&self.applied, Some((_, Ok(applied))) if applied.success);
        self.not_fetched.is_none() && is_applied
    }

    /// Returns what to report, for each signal that asked; nothing if nobody has to know.
    pub(super) fn reports(&self) -> Vec<NodeReport> {
        let report = match (&self.why, &self.not_fetched, &self.applied) {
            // A server that is away is asked again; one that refuses has to hear what comes of it.
            (Why::Told(_), Some(failed), _) if !failed.error.may_pass() => {
                let error = Some(failed.error.to_string());
                NodeReport { error, ..NodeReport::new(ReportKind::Config, ReportStatus::Failed) }
            }
            (_, _, Some((spec, outcome))) => of_outcome(spec, outcome),
            (_, _, None) => return Vec::new(),
        };
        match &self.why {
            Why::Schedule if is_quiet(&report) => Vec::new(),
            Why::Told(_) if self.is_open() && is_quiet(&report) => Vec::new(),
            Why::Told(ids) if !self.is_open() && !ids.is_empty() => {
                ids.iter().map(|id| NodeReport { id: Some(id.clone()), ..report.clone() }).collect()
            }
            Why::Told(_) | Why::Schedule => vec![report],
        }
    }
}

/// Whether a report says nothing new.
fn is_quiet(report: &NodeReport) -> bool {
    report.status == ReportStatus::Complete && report.changed == 0
}

pub(super) fn interval(spec: &ResolvedSpec) -> Option<u64> {
    match spec.run {
        ResolvedRun::Schedule { interval } => Some(interval),
        ResolvedRun::Manual {} => None,
    }
}

fn of_outcome(spec: &ResolvedSpec, outcome: &Result<Applied, ApplyError>) -> NodeReport {
    let about = NodeReport {
        spec: Some(spec.spec.clone()),
        spec_digest: Some(spec.digest()),
        ..NodeReport::new(ReportKind::Config, ReportStatus::Failed)
    };
    match outcome {
        Ok(applied) => NodeReport {
            status: if applied.success { ReportStatus::Complete } else { ReportStatus::Failed },
            state_digest: applied.state_digest.clone(),
            changed: applied.changed as u64,
            duration_seconds: applied.duration_seconds,
            error: applied.error.as_ref().map(|error| format!("{}: {}", error.code, error.message)),
            ..about
        },
        Err(error) => NodeReport { error: Some(super::chain(error)), ..about },
    }
}

/// Fetches the spec and applies it. With a server that is away, or on schedule, the spec in force is applied.
pub(super) async fn converge(
    files: NodeFiles,
    bootstrap: Bootstrap,
    client: ServerClient,
    why: Why,
    patience: Patience,
    tell: Tell,
) -> Converged {
    let kept = ConfigFiles::below(files.root());
    let in_force = kept.spec().filter(|spec| spec.node == bootstrap.node);
    let known = in_force.as_ref().map(ResolvedSpec::digest);
    let (spec, not_fetched) = match fetch(&client, &bootstrap.node, known.as_deref(), patience, &*tell).await
    {
        Ok(Some(fetched)) => (Some(fetched.spec), None),
        Ok(None) => (in_force, None),
        Err(failed) if failed.error.may_pass() || why == Why::Schedule => (in_force, Some(failed)),
        Err(failed) => (None, Some(failed)),
    };
    let Some(spec) = spec else {
        let marker =
            not_fetched.as_ref().map(|failed| failed.marker(Some(&bootstrap.node), &bootstrap.server));
        if let Some(Err(error)) = marker.map(|marker| kept.put_failed(&marker)) {
            tell(&format!("the failure cannot be kept: {error}"));
        }
        return Converged { why, not_fetched, applied: None };
    };
    let options = ApplyOptions {
        mode: bootstrap.mode,
        server: Some(bootstrap.server.clone()),
        confirmed_by_caller: true,
        ..ApplyOptions::default()
    };
    let outcome = apply(spec.clone(), files.root().to_owned(), options).await;
    if let Ok(Some(run)) = outcome.as_ref().map(|applied| applied.unconfirmed.clone()) {
        confirm(&client, &run, &*tell).await;
    }
    Converged { why, not_fetched, applied: Some((spec, outcome)) }
}

/// Applies a spec on a thread of its own.
async fn apply(spec: ResolvedSpec, root: PathBuf, options: ApplyOptions) -> Result<Applied, ApplyError> {
    let runtime = tokio::runtime::Handle::current();
    // What runs a plan stays on the thread it began on.
    let work = move || runtime.block_on(config::apply(&spec, &root, options));
    let applied = tokio::task::spawn_blocking(work).await;
    applied.unwrap_or_else(|error| Err(ApplyError::Crashed(format!("it was cut off: {error}"))))
}

/// Confirms a change of the network once the server is reached through it; else it is undone.
async fn confirm(client: &ServerClient, run: &RunId, tell: &(dyn Fn(&str) + Send + Sync)) {
    let deadline = tokio::time::Instant::now() + config::NETWORK_PATIENCE;
    while tokio::time::Instant::now() < deadline {
        if client.health().await.is_ok() {
            if let Err(error) = crate::confirm_network_changes(run) {
                tell(&format!("the change of the network cannot be confirmed: {error}"));
            }
            return;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    tell("the server is not reached since the network changed: the change is undone");
}

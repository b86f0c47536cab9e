//! `stead agent run --once`: fetch, apply, report, and end.

use std::path::PathBuf;
use std::sync::Arc;

use stead_model::ExitCode;

use super::converge::{Why, converge};
use super::fetch::Patience;
use super::spool::Spool;
use super::{AgentError, NodeFiles, Tell, client, failed, is_final, suffer, take_place, told};
use crate::server_client::ClientError;

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Once {
    /// The node is what its spec wants, and its server knows.
    Converged,
    /// It is not.
    Failed,
    /// The server refuses.
    Refused(ExitCode),
    /// It was not told how it went: that is kept for the next agent.
    NotReported,
}

impl Once {
    /// Returns what the command ends with.
    pub fn exit_code(self) -> ExitCode {
        match self {
            Self::Converged => ExitCode::Success,
            Self::Failed => ExitCode::Failed,
            Self::Refused(code) => code,
            Self::NotReported => ExitCode::Unreachable,
        }
    }
}

/// Makes the node below `root` what its server says, once, and reports.
///
/// # Errors
/// If an agent runs, or the node was not told who it is.
pub async fn run_once(root: PathBuf, patience: Patience, tell: Tell) -> Result<Once, AgentError> {
    let files = NodeFiles::below(root);
    let _held = take_place(&files)?;
    let bootstrap = told(&files)?;
    let client = client(&bootstrap).map_err(AgentError::Server)?;
    let mut spool = Spool::open(&files).map_err(failed("undelivered reports cannot be read"))?;
    let why = Why::Told(Vec::new());
    let work =
        converge(files.clone(), bootstrap.clone(), client.clone(), why, patience, Arc::clone(&tell)).await;
    for report in work.reports() {
        spool.push(&report).map_err(failed("a report cannot be kept"))?;
    }
    if let Some(failed) = &work.not_fetched
        && failed.error.may_pass()
    {
        return Ok(Once::Refused(failed.error.exit_code()));
    }
    let is_reported = deliver(&mut spool, &files, &bootstrap, &client, patience, &tell).await;
    Ok(match &work.not_fetched {
        Some(failed) => Once::Refused(failed.error.exit_code()),
        None if !work.is_good() => Once::Failed,
        None if !is_reported => Once::NotReported,
        None => Once::Converged,
    })
}

/// Delivers what waits, in order; returns whether nothing is left.
async fn deliver(
    spool: &mut Spool,
    files: &NodeFiles,
    bootstrap: &stead_model::node::Bootstrap,
    client: &crate::server_client::ServerClient,
    patience: Patience,
    tell: &Tell,
) -> bool {
    let mut attempts = 0;
    while let Some((number, report)) = spool.first() {
        let answer = match suffer(files.root()).await {
            Some(why) => Err(ClientError::Unreachable { server: client.server(), why }),
            None => client.report(&bootstrap.node, &report).await,
        };
        match answer {
            Ok(()) => spool.done(number),
            Err(error) if is_final(&error) => {
                tell(&format!("a report is not taken and given up: {error}"));
                spool.done(number);
            }
            Err(error) => {
                attempts += 1;
                tell(&format!("a report is not delivered: {error}"));
                let Some(pause) = patience.pause(attempts, &error) else { return false };
                tokio::time::sleep(pause).await;
            }
        }
    }
    true
}

//! Connections of a run: one per host, shared by all who need it, with or without an executor behind it.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use stead_model::HostName;
use stead_model::event::Mode;
use stead_model::inventory::Host;
use tokio::sync::Mutex;

use crate::operate::{Ran, from_outcome};
use crate::operation::{Entry, OpContext, OpError, Params};
use crate::transport::Transport;

use super::pending::Lost;
use super::pool::{HostPool, Target};

/// The connection to one host.
#[derive(Default)]
pub(crate) struct Line(Mutex<State>);

#[derive(Default)]
struct State {
    open: Option<Arc<dyn Transport>>,
    /// The last failure, and how many there were: those who waited for it share it.
    failed: Option<OpError>,
    failures: u64,
}

/// The connections of a run, by host.
pub(crate) type Lines = std::sync::Mutex<BTreeMap<HostName, Arc<Line>>>;

/// Returns the line to a host.
pub(crate) fn line(lines: &Lines, host: &HostName) -> Arc<Line> {
    let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(lines.entry(host.clone()).or_default())
}

impl Line {
    /// Returns the connection, opening it if nobody has.
    pub(crate) async fn connect(&self, target: &Target) -> Result<Arc<dyn Transport>, OpError> {
        let before = self.0.try_lock().map_or(u64::MAX, |state| state.failures);
        let mut state = self.0.lock().await;
        if let Some(open) = &state.open {
            return Ok(Arc::clone(open));
        }
        // Somebody else tried while this one waited for its turn.
        if let (u64::MAX, Some(error)) = (before, &state.failed) {
            return Err(error.clone());
        }
        match target.dial().await {
            Ok(transport) => {
                state.failed = None;
                state.open = Some(Arc::clone(&transport));
                Ok(transport)
            }
            Err(error) => {
                state.failures += 1;
                state.failed = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Forgets a connection that is of no use any more.
    pub(crate) async fn forget(&self) {
        self.0.lock().await.open = None;
    }
}

impl HostPool {
    /// Carries out an action that needs no executor.
    pub(crate) async fn act_bare(
        &self,
        record: &Host,
        entry: &Entry,
        cx: &OpContext,
        params: &Params,
        mode: Mode,
    ) -> Result<Result<Ran, OpError>, Lost> {
        let Some(action) = entry.as_bare() else {
            let name = entry.descriptor().name;
            let error = OpError::invalid(format!(
                "{name} needs the executor, and `executor: never` of host {} forbids it",
                cx.host
            ));
            return Ok(Err(error));
        };
        // An inventory file that says so is refused; a host may come from elsewhere.
        if let Some(what) = record.needs_executor() {
            let error = OpError::invalid(format!(
                "`{what}` needs the executor, and `executor: never` of host {} forbids it",
                cx.host
            ));
            return Ok(Err(error));
        }
        let target = self.target(record, &cx.host);
        let transport = target.connect().await.map_err(|error| Lost { error, begun: false })?;
        match action.act_over(&*transport, cx, params, mode).await {
            Ok(outcome) => Ok(Ok(from_outcome(outcome, entry.descriptor().effect))),
            Err(error) if error.class == stead_model::ErrorClass::Unreachable => {
                target.hang_up().await;
                let begun = error.changed;
                Err(Lost { error: OpError { changed: false, ..error }, begun })
            }
            Err(error) => Ok(Err(error)),
        }
    }
}

//! A decided task, kept small: a run of a million tasks has a million of them.
//!
//! What expressions see of the end is shared with them and not kept a second time. A functional task's only row
//! says little, and that little is kept instead of the row.

use std::borrow::Cow;
use std::sync::Arc;

use stead_model::Status;
use stead_model::event::{Prediction, TaskResult};
use stead_model::time::Timestamp;

use crate::expr;
use crate::task_state::RowState;

use super::Row;

/// A decided task: what the report and later tasks see of it.
#[derive(Clone, Debug)]
pub(super) struct Finished {
    /// When it took its first slot.
    pub(super) started_at: Option<Timestamp>,
    /// Whether hosts failed and the policy tolerated it.
    pub(super) partial: bool,
    /// How sure a dry run is.
    pub(super) prediction: Option<Prediction>,
    /// How it ended, as expressions see it.
    pub(super) end: Arc<expr::Finished>,
    rows: Rows,
}

#[derive(Clone, Debug)]
enum Rows {
    /// In target order; none for a task that did not start.
    OnHosts(Box<[Row]>),
    /// The one row of a functional task.
    Function { attempt: u32, changed: bool, interrupted: bool },
}

impl Finished {
    /// Returns the end of a task with its rows, in target order; in a dry run no data was made.
    pub(super) fn new(started_at: Option<Timestamp>, result: TaskResult, rows: Vec<Row>, dry: bool) -> Self {
        let hosts =
            rows.iter().filter_map(|row| Some((row.host.clone()?, seen_on_host(row, dry)?))).collect();
        let row = expr::Row {
            status: result.status,
            changed: result.changed,
            cause: result.cause,
            reason: result.reason.map(Into::into),
            error: result.error.map(Into::into),
            class: result.class,
            attempts: result.attempts,
            duration_ms: result.duration_ms,
            data: result.data,
            data_unknown: dry,
        };
        Self {
            started_at,
            partial: result.partial,
            prediction: result.prediction,
            end: Arc::new(expr::Finished { row, hosts }),
            rows: Rows::new(rows),
        }
    }

    /// Returns how it ended.
    pub(super) fn status(&self) -> Status {
        self.end.row.status
    }

    /// Returns its rows, in target order.
    pub(super) fn rows(&self) -> Cow<'_, [Row]> {
        match &self.rows {
            Rows::OnHosts(rows) => Cow::Borrowed(rows),
            Rows::Function { attempt, changed, interrupted } => Cow::Owned(vec![Row {
                state: RowState::Done,
                attempt: *attempt,
                changed: *changed,
                interrupted: *interrupted,
                ..Row::default()
            }]),
        }
    }

    /// Returns its rows, if it has hosts.
    pub(super) fn rows_on_hosts(&self) -> &[Row] {
        match &self.rows {
            Rows::OnHosts(rows) => rows,
            Rows::Function { .. } => &[],
        }
    }
}

impl Rows {
    fn new(rows: Vec<Row>) -> Self {
        match rows.as_slice() {
            [Row { host: None, attempt, changed, interrupted, .. }] => {
                Self::Function { attempt: *attempt, changed: *changed, interrupted: *interrupted }
            }
            _ => Self::OnHosts(rows.into()),
        }
    }
}

fn seen_on_host(row: &Row, dry: bool) -> Option<expr::Row> {
    let result = row.result.as_deref()?;
    Some(expr::Row {
        status: result.status,
        changed: result.changed,
        cause: None,
        reason: result.reason.as_deref().map(Into::into),
        error: result.error.as_deref().map(Into::into),
        class: result.class,
        attempts: row.attempts(),
        duration_ms: result.duration_ms,
        data: result.data.clone(),
        data_unknown: dry,
    })
}

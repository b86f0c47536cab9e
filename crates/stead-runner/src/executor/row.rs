//! How an operation's result becomes a row: predicted, judged by `failed_when` and `changed_when`, joined.

use std::time::Duration;

use serde_json::Value;
use stead_engine::expr::{self, ResultScope, Scope};
use stead_model::event::{Prediction, RowResult};
use stead_model::plan::Part;
use stead_model::{ErrorClass, Status};

use crate::operation::OpError;

use super::operate::Ran;

pub(super) fn failed(class: ErrorClass, error: impl Into<String>) -> RowResult {
    RowResult { class: Some(class), error: Some(error.into()), ..RowResult::new(Status::Failed) }
}

pub(super) fn timed_out(after: Duration) -> RowResult {
    failed(ErrorClass::Timeout, format!("timed out after {}", stead_model::duration::to_exact(after)))
}

/// Whether a dry run's row says that the operation could not look, or did not like what it saw.
pub(super) fn is_failed_check(row: &RowResult) -> bool {
    row.status == Status::Failed && !matches!(row.class, Some(ErrorClass::Guard | ErrorClass::Invalid))
}

/// Returns the row of a check that fails now, on a host that will have changed by then.
pub(super) fn not_checkable(row: &RowResult) -> RowResult {
    let why = row.error.as_deref().unwrap_or("the check fails");
    RowResult {
        reason: Some(format!("not known before an earlier task has run: {why}")),
        ..RowResult::new(Status::Unknown)
    }
}

/// Returns a dry run's row for one operation.
pub(super) fn predicted(part: &Part, ran: Result<Ran, OpError>) -> RowResult {
    match ran {
        Ok(ran) => {
            let status = match ran.changed {
                _ if ran.unknown => Status::Unknown,
                true => Status::Changed,
                false => Status::Unchanged,
            };
            let mut row = RowResult::new(status);
            (row.reason, row.data, row.diff) = (ran.reason, ran.data, ran.diff);
            if status != Status::Unknown {
                let assumed = (part.changed_when.is_some() || ran.assumed) && ran.changed;
                row.prediction = Some(if assumed { Prediction::Assumed } else { Prediction::Exact });
            }
            if let Some(failure) = ran.failure {
                return error_row(failure);
            }
            row
        }
        Err(error) => error_row(error),
    }
}

/// Returns the row of an operation's result, `failed_when` and `changed_when` applied, in this order.
pub(super) fn judge_result(part: &Part, ran: Result<Ran, OpError>, scope: &Scope) -> RowResult {
    let mut ran = match ran {
        Ok(ran) => ran,
        Err(error) => return error_row(error),
    };
    // A command may answer the request to stop with success, and `failed_when` may call anything a success.
    if ran.stopped {
        return RowResult {
            changed: ran.changed,
            exit_code: ran.exit_code,
            data: ran.data,
            ..RowResult::new(Status::Cancelled)
        };
    }
    let text = |ran: &Ran, member: &str| {
        ran.data.as_ref().and_then(|data| data.get(member)).and_then(Value::as_str).unwrap_or("").to_owned()
    };
    if part.failed_when.is_some() || part.changed_when.is_some() {
        let scope = scope.clone().with_result(&ResultScope {
            exit_code: ran.exit_code,
            signal: ran.signal,
            stdout: text(&ran, "stdout"),
            stderr: text(&ran, "stderr"),
            changed: ran.changed,
            data: ran.data.clone(),
        });
        let overrulable = ran
            .failure
            .as_ref()
            .is_none_or(|failure| !matches!(failure.class, ErrorClass::Timeout | ErrorClass::Unreachable));
        if let (Some(expression), true) = (&part.failed_when, overrulable && !ran.passed_over) {
            match expr::evaluate_bool(expression, &scope) {
                Ok(false) => ran.failure = None,
                Ok(true) => {
                    ran.failure.get_or_insert_with(|| {
                        OpError::operation(format!("failed_when is true: {expression}"))
                    });
                }
                Err(error) => {
                    ran.failure = Some(OpError::invalid(format!("failed_when `{expression}`: {error}")))
                }
            }
        }
        if let (Some(expression), false) = (&part.changed_when, ran.passed_over) {
            match expr::evaluate_bool(expression, &scope) {
                Ok(changed) => ran.changed = changed,
                Err(error) => {
                    ran.failure = Some(OpError::invalid(format!("changed_when `{expression}`: {error}")))
                }
            }
        }
    }
    let mut row = match ran.failure {
        Some(failure) => RowResult { changed: ran.changed, ..error_row(failure) },
        None => RowResult::new(if ran.changed { Status::Changed } else { Status::Unchanged }),
    };
    row.reason = row.reason.or(ran.reason);
    (row.exit_code, row.data, row.diff) = (ran.exit_code, ran.data, ran.diff);
    row.inverse = ran.inverse.into_iter().collect();
    row
}

pub(super) fn error_row(error: OpError) -> RowResult {
    if error.not_known {
        return RowResult { reason: Some(error.message), ..RowResult::new(Status::Unknown) };
    }
    if error.unsupported {
        // The class tells `unsupported` from a guard's skip.
        return RowResult {
            class: Some(ErrorClass::Permanent),
            reason: Some(error.message),
            ..RowResult::new(Status::Skipped)
        };
    }
    RowResult {
        changed: error.changed,
        not_started: error.not_started,
        in_vain: error.in_vain,
        ..failed(error.class, error.message)
    }
}

/// Adds a part's result to that of the parts before it.
pub(super) fn join(whole: RowResult, part: RowResult, is_sequence: bool) -> RowResult {
    if !is_sequence {
        return part;
    }
    if part.status == Status::Skipped {
        return if whole.status == Status::Skipped && whole.reason.is_none() { part } else { whole };
    }
    let changed = whole.changed || part.changed;
    let status = match part.status {
        Status::Failed | Status::Cancelled | Status::Unknown => part.status,
        Status::Changed | Status::Unchanged | Status::Skipped | Status::NotRun => {
            if whole.status == Status::Unknown {
                Status::Unknown
            } else if changed {
                Status::Changed
            } else {
                Status::Unchanged
            }
        }
    };
    let mut inverse = whole.inverse;
    inverse.extend(part.inverse);
    let prediction = match (whole.prediction, part.prediction) {
        (Some(Prediction::Assumed), _) | (_, Some(Prediction::Assumed)) => Some(Prediction::Assumed),
        (one, other) => other.or(one),
    };
    RowResult { status, changed, inverse, prediction, ..part }
}

//! Carrying out one operation: the same steps for every one of them, on this machine and in an executor elsewhere.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;
use stead_model::event::Mode;
use stead_model::executor::{OpResult, OpStatus, Restart};
use stead_model::operation::RootSupport;
use stead_model::plan::Op;
use stead_model::report::Warning;
use stead_model::{Effect, ErrorClass, OperationName};

use crate::machine::sandbox_of;
use crate::operation::{Action, Diff, Entry, Observed, OpContext, OpError, Operation, Outcome, Params};

/// How an operation went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ran {
    /// Whether something is different now, or would be.
    pub changed: bool,
    /// Dry run: it cannot be known.
    pub unknown: bool,
    /// Nothing ran, because `creates` or `unless` said so.
    pub passed_over: bool,
    /// It was asked to stop and did.
    pub stopped: bool,
    /// The failure, if it was one; `failed_when` may overrule it.
    pub failure: Option<OpError>,
    /// Said with it.
    pub reason: Option<String>,
    /// A command's exit code.
    pub exit_code: Option<i32>,
    /// The signal that ended a command.
    pub signal: Option<i32>,
    /// The operation's result data.
    pub data: Option<Value>,
    /// What differed.
    pub diff: Option<Value>,
    /// The operation that restores what was before.
    pub inverse: Option<Op>,
    /// What a person should know.
    pub warnings: Vec<Warning>,
    /// Dry run: whether it is only assumed that something would change.
    pub assumed: bool,
    /// The machine is about to restart, and the operation is not done before it is back.
    pub restart: Option<Restart>,
}

/// Carries out an operation as [`operate`] does; a panic in it is its failure.
pub async fn operate_safely(
    entry: &Entry,
    cx: &OpContext,
    params: Params,
    mode: Mode,
    wants_inverse: bool,
) -> Result<Ran, OpError> {
    let work = super::CatchPanic(Box::pin(operate(entry, cx, params, mode, wants_inverse)));
    work.await.unwrap_or_else(|panic| Err(OpError::new(ErrorClass::Panic, format!("panicked: {panic}"))))
}

/// Carries out an operation, or in a dry run predicts it.
pub async fn operate(
    entry: &Entry,
    cx: &OpContext,
    params: Params,
    mode: Mode,
    wants_inverse: bool,
) -> Result<Ran, OpError> {
    let descriptor = entry.descriptor();
    if !descriptor.platforms.is_empty() && !descriptor.platforms.contains(&std::env::consts::OS) {
        return Err(OpError::unsupported(format!(
            "{} needs {}",
            descriptor.name,
            descriptor.platforms.join(" or ")
        )));
    }
    // A sandbox is a root that runs: there the operation itself knows what it can do.
    let is_at_rest = |root: &PathBuf| sandbox_of(root).is_none();
    if descriptor.root == RootSupport::None && cx.root.as_ref().is_some_and(is_at_rest) {
        return Err(OpError::unsupported(format!(
            "{} needs the running system: it does not work below a root directory",
            descriptor.name
        )));
    }
    if mode == Mode::DryRun && !descriptor.check {
        return Ok(Ran { unknown: true, ..Ran::default() });
    }
    match entry {
        Entry::State(operation) => {
            let (operation, cx) = (Arc::clone(operation), cx.clone());
            let work = move || bring_about(&*operation, &cx, &params, mode, wants_inverse);
            tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| match error.try_into_panic() {
                Ok(panic) => {
                    Err(OpError::new(ErrorClass::Panic, format!("panicked: {}", super::panic_text(&*panic))))
                }
                Err(_) => Err(OpError::operation("the operation was stopped")),
            })
        }
        Entry::Action(action) => act(&**action, cx, &params, mode).await,
    }
}

async fn act(action: &dyn Action, cx: &OpContext, params: &Params, mode: Mode) -> Result<Ran, OpError> {
    let outcome = match mode {
        Mode::DryRun => action.check(cx, params).await?,
        Mode::Run => action.run(cx, params).await?,
    };
    Ok(from_outcome(outcome, action.descriptor().effect))
}

/// Returns how an action went, as all operations are judged.
pub(crate) fn from_outcome(outcome: Outcome, effect: Effect) -> Ran {
    let is_read = effect == Effect::Read;
    Ran {
        changed: outcome.changed && !is_read,
        passed_over: outcome.reason.is_some()
            && outcome.exit_code.is_none()
            && outcome.signal.is_none()
            && !is_read,
        stopped: outcome.stopped,
        failure: outcome.failure,
        reason: outcome.reason,
        exit_code: outcome.exit_code,
        signal: outcome.signal,
        data: outcome.data,
        warnings: outcome.warnings,
        assumed: outcome.assumed,
        restart: outcome.restart,
        ..Ran::default()
    }
}

/// Observes, compares, applies the difference, and looks whether it is gone.
fn bring_about(
    operation: &dyn Operation,
    cx: &OpContext,
    params: &Params,
    mode: Mode,
    wants_inverse: bool,
) -> Result<Ran, OpError> {
    let before = operation.observe(cx, params)?;
    let diff = operation.diff(params, &before);
    if diff.is_empty() {
        return Ok(Ran { data: operation.unchanged(cx, params, &before), ..Ran::default() });
    }
    let mut ran = Ran { changed: true, diff: Some(diff.to_json()), ..Ran::default() };
    if mode == Mode::DryRun {
        operation.permit(cx, params, &before)?;
        operation.predict(cx, params, &diff);
        return Ok(ran);
    }
    if wants_inverse {
        ran.inverse = operation.inverse(params, &before);
    }
    let mut ran = apply(operation, cx, params, &before, &diff, ran)?;
    if wants_inverse && ran.changed && ran.inverse.is_none() {
        let name = operation.descriptor().name;
        let text = format!(
            "{}: {name} changed something that nothing can bring back: a rollback of task `{}` will fail there",
            cx.host, cx.task
        );
        ran.warnings.push(Warning::new("plan/no-inverse", text));
        ran.inverse = OperationName::parse(name).ok().map(Op::irreversible);
    }
    Ok(ran)
}

/// Applies a difference, and looks whether it is gone.
fn apply(
    operation: &dyn Operation,
    cx: &OpContext,
    params: &Params,
    before: &Observed,
    diff: &Diff,
    mut ran: Ran,
) -> Result<Ran, OpError> {
    let applied = operation.permit(cx, params, before).and_then(|()| operation.apply(cx, params, diff));
    let after = operation.observe(cx, params);
    // What is different now is different, whether the operation succeeded or not.
    let changed = after.as_ref() != Ok(before);
    let applied = match applied {
        Ok(applied) => applied,
        Err(error) => {
            let changed = error.changed || changed;
            ran.failure = Some(error);
            ran.changed = changed;
            return Ok(ran);
        }
    };
    let left = operation.diff(params, &after?);
    if let Some(problem) = name_difference(&left) {
        ran.failure = Some(OpError::operation(problem));
        ran.changed = changed;
        return Ok(ran);
    }
    ran.data = applied.data;
    if !applied.notes.is_empty() {
        ran.reason = Some(applied.notes.join("; "));
    }
    Ok(ran)
}

fn name_difference(left: &Diff) -> Option<String> {
    let field = left.fields.first()?;
    Some(format!("after the change {} should be {} but is {}", field.name, field.after, field.before))
}

/// Returns how an operation went, as it travels.
pub fn to_result(ran: Result<Ran, OpError>) -> OpResult {
    let (ran, refused) = match ran {
        Ok(ran) => (ran, false),
        Err(error) => (Ran { changed: error.changed, failure: Some(error), ..Ran::default() }, true),
    };
    let status = match &ran.failure {
        _ if ran.stopped => OpStatus::Cancelled,
        Some(failure) if failure.unsupported => OpStatus::Skipped,
        Some(failure) if failure.not_known => OpStatus::Unknown,
        Some(_) => OpStatus::Failed,
        None if ran.unknown => OpStatus::Unknown,
        None if ran.changed => OpStatus::Changed,
        None => OpStatus::Unchanged,
    };
    let error_changed = ran.failure.as_ref().is_some_and(|failure| failure.changed);
    let class = ran.failure.as_ref().map(|failure| failure.class);
    OpResult {
        status,
        changed: ran.changed,
        data: ran.data,
        diff: ran.diff,
        before: ran.inverse,
        error: ran.failure.map(|failure| failure.message),
        class,
        refused,
        error_changed,
        reason: ran.reason,
        exit_code: ran.exit_code,
        signal: ran.signal,
        duration_ms: None,
        max_rss_bytes: None,
        cpu_ms: None,
        passed_over: ran.passed_over,
        warnings: ran.warnings,
        assumed: ran.assumed,
        restart: ran.restart,
    }
}

/// Returns how an operation went that was carried out elsewhere.
pub fn from_result(result: OpResult) -> Result<Ran, OpError> {
    let failure = result.error.map(|message| OpError {
        class: result.class.unwrap_or(ErrorClass::Operation),
        message,
        unsupported: result.status == OpStatus::Skipped,
        not_known: result.status == OpStatus::Unknown,
        changed: result.error_changed,
        not_started: false,
        in_vain: false,
    });
    if let (true, Some(error)) = (result.refused, &failure) {
        return Err(error.clone());
    }
    Ok(Ran {
        changed: result.changed,
        unknown: result.status == OpStatus::Unknown && failure.is_none(),
        passed_over: result.passed_over,
        stopped: result.status == OpStatus::Cancelled,
        failure,
        reason: result.reason,
        exit_code: result.exit_code,
        signal: result.signal,
        data: result.data,
        diff: result.diff,
        inverse: result.before,
        warnings: result.warnings,
        assumed: result.assumed,
        restart: result.restart,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_back_as_they_went() {
        let failure = OpError { changed: true, ..OpError::new(ErrorClass::Exit, "exit code 3") };
        for ran in [
            Ok(Ran { changed: true, data: Some(serde_json::json!({"a": 1})), ..Ran::default() }),
            Ok(Ran { unknown: true, ..Ran::default() }),
            Ok(Ran { changed: true, assumed: true, ..Ran::default() }),
            Ok(Ran { changed: true, failure: Some(failure.clone()), exit_code: Some(3), ..Ran::default() }),
            Ok(Ran { stopped: true, signal: Some(15), ..Ran::default() }),
            Ok(Ran { passed_over: true, reason: Some("creates".to_owned()), ..Ran::default() }),
            Ok(Ran { restart: Some(Restart { boot_id: "b".to_owned(), timeout_ms: 5 }), ..Ran::default() }),
            Err(failure),
            Err(OpError::unsupported("needs linux")),
            Err(OpError { not_known: true, ..OpError::invalid("later") }),
        ] {
            let travelled = serde_json::to_string(&to_result(ran.clone())).unwrap();
            assert_eq!(from_result(serde_json::from_str(&travelled).unwrap()), ran, "{travelled}");
        }
    }
}

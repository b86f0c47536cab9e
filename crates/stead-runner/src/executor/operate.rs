//! Carrying out one operation: the same steps for every one of them.

use std::sync::Arc;

use serde_json::Value;
use stead_model::event::Mode;
use stead_model::operation::RootSupport;
use stead_model::plan::Op;
use stead_model::report::Warning;
use stead_model::{Effect, ErrorClass};

use crate::operation::{Action, Diff, Entry, OpContext, OpError, Operation, Params};

/// How an operation went.
#[derive(Clone, Debug, Default)]
pub(super) struct Ran {
    pub(super) changed: bool,
    /// Dry run: it cannot be known.
    pub(super) unknown: bool,
    /// Nothing ran, because `creates` or `unless` said so.
    pub(super) passed_over: bool,
    /// It was asked to stop and did.
    pub(super) stopped: bool,
    pub(super) failure: Option<OpError>,
    pub(super) reason: Option<String>,
    pub(super) exit_code: Option<i32>,
    pub(super) signal: Option<i32>,
    pub(super) data: Option<Value>,
    pub(super) diff: Option<Value>,
    pub(super) inverse: Option<Op>,
    pub(super) warnings: Vec<Warning>,
}

/// Carries out an operation, or in a dry run predicts it.
pub(super) async fn operate(
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
    if cx.root.is_some() && descriptor.root == RootSupport::None {
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
    let is_read = action.descriptor().effect == Effect::Read;
    Ok(Ran {
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
        ..Ran::default()
    })
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
        return Ok(Ran::default());
    }
    let mut ran = Ran { changed: true, diff: Some(diff.to_json()), ..Ran::default() };
    if mode == Mode::DryRun {
        operation.predict(cx, params, &diff);
        return Ok(ran);
    }
    if wants_inverse {
        ran.inverse = operation.inverse(params, &before);
    }
    let applied = operation.apply(cx, params, &diff);
    let after = operation.observe(cx, params);
    // What is different now is different, whether the operation succeeded or not.
    let changed = after.as_ref().map_or(true, |after| *after != before);
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

//! Observe, compare, apply, observe again: the way the runner treats an operation that describes a state.

use stead_model::{ErrorClass, Op};
use stead_runner::operation::{Applied, Diff, Observed, OpContext, OpError, Operation, Params};

/// How a run of an operation went.
#[derive(Debug)]
pub struct Ran {
    /// Whether something was applied.
    pub changed: bool,
    /// What differed before.
    pub diff: Diff,
    /// The state before.
    pub before: Observed,
    /// What it reported.
    pub applied: Applied,
}

/// Returns what would change, and whether it would; nothing is written.
pub fn check(operation: &dyn Operation, cx: &OpContext, params: &Params) -> Result<Diff, OpError> {
    let seen = operation.observe(cx, params)?;
    let diff = operation.diff(params, &seen);
    if !diff.is_empty() {
        operation.permit(cx, params, &seen)?;
        operation.predict(cx, params, &diff);
    }
    Ok(diff)
}

/// Brings the target to the described state.
///
/// # Errors
/// Also if the target is still different afterwards.
pub fn run(operation: &dyn Operation, cx: &OpContext, params: &Params) -> Result<Ran, OpError> {
    let before = operation.observe(cx, params)?;
    let diff = operation.diff(params, &before);
    if diff.is_empty() {
        let applied = Applied { data: operation.unchanged(cx, params, &before), notes: Vec::new() };
        return Ok(Ran { changed: false, diff, before, applied });
    }
    operation.permit(cx, params, &before)?;
    let applied = operation.apply(cx, params, &diff)?;
    let after = operation.observe(cx, params)?;
    if let Some(field) = operation.diff(params, &after).fields.first() {
        let message =
            format!("`{}` is still different: wanted {}, found {}", field.name, field.after, field.before);
        return Err(OpError { changed: true, ..OpError::new(ErrorClass::Operation, message) });
    }
    Ok(Ran { changed: true, diff, before, applied })
}

/// Returns the parameters of an operation without templates, such as an inverse.
///
/// # Panics
/// If there is a template in it.
pub fn params_of(op: &Op) -> Params {
    let values = op.params.iter().map(|(name, param)| {
        let value = param.as_value().unwrap_or_else(|| panic!("`{name}` holds a template"));
        (name.clone(), value.clone())
    });
    Params::new(values.collect())
}

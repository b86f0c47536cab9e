//! Templates and expressions with the names a task knows.

use serde_json::{Map, Value};
use stead_engine::expr::{self, Scope};
use stead_model::plan::Param;

use crate::operation::{OpError, Render};

/// Why a parameter has no value.
pub(super) enum RenderError {
    NotKnown,
    Wrong(String),
}

/// Renders a parameter. Depth is that of the plan file, which its reader bounds.
pub(super) fn render(param: &Param, scope: &Scope, path: &str) -> Result<Value, RenderError> {
    match param {
        Param::Value(value) => Ok(value.clone()),
        Param::Template(template) => expr::render(template, scope).map_err(|error| {
            if matches!(error, expr::ExprError::NotKnown { .. }) {
                RenderError::NotKnown
            } else {
                RenderError::Wrong(format!("parameter `{path}`: {error}"))
            }
        }),
        Param::List(items) => items.iter().map(|item| render(item, scope, path)).collect(),
        Param::Map(items) => items
            .iter()
            .map(|(key, item)| Ok((key.clone(), render(item, scope, path)?)))
            .collect::<Result<_, _>>()
            .map(Value::Object),
    }
}

impl Render for Scope {
    fn render(&self, template: &str, vars: &Map<String, Value>) -> Result<String, OpError> {
        expr::render_text(template, vars, self).map_err(|error| {
            let line = error.line();
            let error = not_rendered(error);
            line.map_or(error.clone(), |line| error.within(format_args!("line {line}")))
        })
    }

    fn evaluate(&self, expression: &str) -> Result<Value, OpError> {
        expr::evaluate_text(expression, self).map_err(not_rendered)
    }
}

/// A dry run does not know what an earlier task has yet to find; everything else is a mistake.
fn not_rendered(error: expr::ExprError) -> OpError {
    let not_known = matches!(error, expr::ExprError::NotKnown { .. });
    OpError { not_known, ..OpError::invalid(error.to_string()) }
}

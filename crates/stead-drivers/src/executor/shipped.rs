//! Templates and expressions away from the driver: with the names and values that came with the operation.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use stead_engine::expr::Scope;
use stead_model::executor::Answer;
use stead_runner::operation::{OpError, Render};

/// What came with an operation.
pub(super) struct Shipped {
    scope: Scope,
    answers: BTreeMap<String, Answer>,
}

impl Shipped {
    pub(super) fn new(names: Option<Map<String, Value>>, answers: BTreeMap<String, Answer>) -> Self {
        Self { scope: Scope::of_names(names.unwrap_or_default()), answers }
    }
}

impl std::fmt::Debug for Shipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shipped")
    }
}

impl Render for Shipped {
    fn render(&self, template: &str, vars: &Map<String, Value>) -> Result<String, OpError> {
        Render::render(&self.scope, template, vars)
    }

    fn evaluate(&self, expression: &str) -> Result<Value, OpError> {
        match self.answers.get(expression) {
            Some(Answer::Value(value)) => Ok(value.clone()),
            Some(Answer::Error(error)) => {
                Err(OpError { not_known: error.not_known, ..OpError::invalid(error.message.clone()) })
            }
            None => Render::evaluate(&self.scope, expression),
        }
    }
}

//! An operation as the author of a plan writes it.

use std::collections::BTreeMap;

use serde_json::Value;
use stead_model::OperationName;
use stead_model::plan::{self, Expression, Param, Part};

/// An operation with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    operation: String,
    params: BTreeMap<String, Param>,
    changed_when: Option<Expression>,
    failed_when: Option<Expression>,
}

impl Op {
    /// Returns the operation called `operation`, such as `file.present`, without parameters.
    pub fn new(operation: &str) -> Self {
        Self {
            operation: operation.to_owned(),
            params: BTreeMap::new(),
            changed_when: None,
            failed_when: None,
        }
    }

    /// Returns `command.exec` of a program with arguments.
    pub fn exec<S: Into<String>>(program: &str, args: impl IntoIterator<Item = S>) -> Self {
        let args: Vec<String> = args.into_iter().map(Into::into).collect();
        Self::new("command.exec").param("command", program).param("args", args)
    }

    /// Returns `command.shell` of a script for `/bin/sh`.
    pub fn shell(script: &str) -> Self {
        Self::new("command.shell").param("script", script)
    }

    /// Returns this operation with a parameter; giving one again replaces it.
    pub fn param(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.params.insert(name.to_owned(), Param::Value(value.into()));
        self
    }

    /// Returns this operation with a parameter that is rendered when it runs, such as `{{ secrets.key }}`.
    pub fn template(mut self, name: &str, template: &str) -> Self {
        self.params.insert(name.to_owned(), Param::Template(template.to_owned()));
        self
    }

    /// Returns this command, not run if `path` exists.
    pub fn creates(self, path: &str) -> Self {
        self.param("creates", path)
    }

    /// Returns this operation with an expression over `result` that decides `changed`.
    pub fn changed_when(mut self, expression: &str) -> Self {
        self.changed_when = Some(Expression(expression.into()));
        self
    }

    /// Returns this operation with an expression over `result` that decides failure.
    pub fn failed_when(mut self, expression: &str) -> Self {
        self.failed_when = Some(Expression(expression.into()));
        self
    }

    /// Returns the operation as data, or why its name is none.
    pub(crate) fn into_part(self) -> Result<Part, String> {
        let operation = OperationName::parse(&self.operation).map_err(|error| error.to_string())?;
        Ok(Part {
            name: None,
            op: plan::Op { operation, params: self.params },
            when_host: Vec::new(),
            changed_when: self.changed_when,
            failed_when: self.failed_when,
        })
    }
}

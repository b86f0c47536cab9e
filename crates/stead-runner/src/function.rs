//! Functional tasks: closures of the program that built the plan, and what they give back.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use stead_model::ErrorClass;
use stead_model::plan::TaskIndex;

use crate::context::TaskContext;

/// A functional task's success: its value, and whether it changed something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done<T> {
    /// The value later tasks and the report can read.
    pub value: T,
    /// Whether something is different now.
    pub changed: bool,
}

impl<T> Done<T> {
    /// Returns a success that changed something.
    pub fn changed(value: T) -> Self {
        Self { value, changed: true }
    }

    /// Returns a success that changed nothing.
    pub fn unchanged(value: T) -> Self {
        Self { value, changed: false }
    }
}

/// A functional task's failure. Any error converts to one of class `operation`.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub(crate) class: ErrorClass,
    pub(crate) message: String,
    pub(crate) changed: bool,
    pub(crate) data: Option<Value>,
}

impl Failure {
    /// Returns a failure that `retry` may try again.
    pub fn new(message: impl Into<String>) -> Self {
        Self { class: ErrorClass::Operation, message: message.into(), changed: false, data: None }
    }

    /// Returns a failure that trying again cannot mend.
    pub fn permanent(message: impl Into<String>) -> Self {
        Self { class: ErrorClass::Permanent, ..Self::new(message) }
    }

    /// Returns this failure, saying whether something is different already.
    pub fn changed(mut self, changed: bool) -> Self {
        self.changed = changed;
        self
    }

    /// Returns this failure with data for its row; a value that is not JSON is left out.
    pub fn data(mut self, data: impl Serialize) -> Self {
        self.data = serde_json::to_value(data).ok();
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message = format!("{message}: {cause}");
            source = cause.source();
        }
        Self::new(message)
    }
}

/// What a closure's future gives back, its value as data.
pub(crate) type Ended = Result<Done<Option<Value>>, Failure>;
/// A closure's future.
pub(crate) type TaskFuture = Pin<Box<dyn Future<Output = Ended> + Send>>;
/// A closure.
pub(crate) type TaskFunction = Arc<dyn Fn(TaskContext) -> TaskFuture + Send + Sync>;
/// A guard's closure.
pub(crate) type GuardFunction = Arc<dyn Fn(&TaskContext) -> Result<bool, Failure> + Send + Sync>;

/// The closures of one task.
#[derive(Clone, Default)]
pub(crate) struct Closures {
    pub(crate) run: Option<TaskFunction>,
    pub(crate) check: Option<TaskFunction>,
    pub(crate) undo: Option<TaskFunction>,
}

/// The closures of a plan.
#[derive(Default)]
pub(crate) struct Functions {
    /// By task; empty for a plan without closures.
    pub(crate) tasks: Vec<Closures>,
    /// By number.
    pub(crate) guards: Vec<GuardFunction>,
}

impl Functions {
    pub(crate) fn of(&self, task: TaskIndex) -> Option<&Closures> {
        self.tasks.get(task.get())
    }
}

/// Wraps a typed closure as one that gives data.
pub(crate) fn erase<T, F, R>(closure: F) -> TaskFunction
where
    T: Serialize,
    F: Fn(TaskContext) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Done<T>, Failure>> + Send + 'static,
{
    Arc::new(move |cx| {
        let future = closure(cx);
        Box::pin(async move {
            let done = future.await?;
            let value = serde_json::to_value(done.value)
                .map_err(|error| Failure::permanent(format!("the task's value is not JSON: {error}")))?;
            // A unit value is no data.
            Ok(Done { value: Some(value).filter(|value| !value.is_null()), changed: done.changed })
        })
    })
}

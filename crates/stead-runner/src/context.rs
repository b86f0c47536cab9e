//! What a closure knows of the run it is part of.

use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;
use stead_engine::expr::Finished;
use stead_model::plan::{Section, TaskIndex};
use stead_model::report::Report;
use stead_model::{HostName, RunId, RunStatus, Status, TaskName};

use crate::author::{Op, Task};
use crate::executor::Executor;
use crate::function::Failure;
use crate::operation::{Cancel, Stop};

/// Why a result cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResultError {
    /// The handle is of another plan.
    #[error("the task is not of this plan")]
    UnknownTask,
    /// Only results of tasks it depends on can be read.
    #[error("task `{0}` is not upstream of this task; add it to `after`")]
    NotUpstream(TaskName),
    /// The task gave no value, or did not run.
    #[error("task `{0}` has no data ({1})")]
    NoData(TaskName, Status),
    /// The value is of another type.
    #[error("the value of task `{task}` is not a {wanted}: {problem}")]
    WrongType {
        /// The task.
        task: TaskName,
        /// The wanted type.
        wanted: &'static str,
        /// What does not fit.
        problem: String,
    },
    /// The task ran on several hosts.
    #[error("task `{0}` ran on several hosts; name one with `.host(name)`")]
    ManyHosts(TaskName),
    /// The task did not run on that host.
    #[error("task `{0}` did not run on host `{1}`")]
    UnknownHost(TaskName, String),
}

/// A task whose result is read, on one host if it ran on several.
#[derive(Clone, Debug)]
pub struct ResultOf<T> {
    pub(crate) plan: u32,
    pub(crate) task: TaskIndex,
    pub(crate) host: Option<String>,
    pub(crate) value: PhantomData<fn() -> T>,
}

impl<T> From<Task<T>> for ResultOf<T> {
    fn from(task: Task<T>) -> Self {
        Self { plan: task.plan, task: task.index, host: None, value: PhantomData }
    }
}

/// What a closure knows of the run it is part of, and what it can do in it. Cheap to clone.
#[derive(Clone)]
pub struct TaskContext {
    pub(crate) executor: Arc<Executor>,
    pub(crate) task: TaskIndex,
    pub(crate) attempt: u32,
    pub(crate) cancel: Cancel,
    pub(crate) run_status: Option<RunStatus>,
}

impl std::fmt::Debug for TaskContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskContext")
            .field("task", self.name())
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

impl TaskContext {
    /// Returns the task's name.
    pub fn name(&self) -> &TaskName {
        &self.executor.plan.task(self.task).name
    }

    /// Returns which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns what is known of the run.
    pub fn run(&self) -> RunView {
        RunView { id: self.executor.run_id.clone(), status: self.run_status.unwrap_or(RunStatus::Running) }
    }

    /// Resolves when the run wants this task to stop. Cancel safe.
    pub async fn cancelled(&self) {
        self.cancel.at_least(Stop::Ask).await;
    }

    /// Carries out an operation on a host and returns its result. It shares this task's slot.
    pub async fn op(&self, op: Op, host: &str) -> Result<OpOutput, Failure> {
        let host = HostName::parse(host).map_err(|error| Failure::permanent(error.to_string()))?;
        self.executor.clone().op_in_function(self, op, host).await
    }

    /// Returns the value of a task this one depends on, directly or not.
    pub fn result<T: DeserializeOwned>(&self, of: impl Into<ResultOf<T>>) -> Result<T, ResultError> {
        let of = of.into();
        let results = &self.executor.results;
        if of.plan != self.executor.plan_number || of.task.get() >= results.plan().tasks.len() {
            return Err(ResultError::UnknownTask);
        }
        let task = results.plan().task(of.task);
        let is_final =
            results.plan().task(self.task).section == Section::Finally && task.section == Section::Main;
        if !is_final && !results.graph().is_upstream(self.task, of.task) {
            return Err(ResultError::NotUpstream(task.name.clone()));
        }
        let Some(finished) = results.get(of.task) else {
            return Err(ResultError::NoData(task.name.clone(), Status::NotRun));
        };
        read(&task.name, value_of(&task.name, &finished, of.host.as_deref())?)
    }
}

fn value_of(task: &TaskName, finished: &Finished, host: Option<&str>) -> Result<Value, ResultError> {
    let row = match (host, finished.hosts.as_slice()) {
        (Some(host), hosts) => {
            let found = hosts.iter().find(|(name, _)| name.as_str() == host).map(|(_, row)| row);
            found.ok_or_else(|| ResultError::UnknownHost(task.clone(), host.to_owned()))?
        }
        (None, []) => &finished.row,
        (None, [(_, only)]) => only,
        (None, _) => return Err(ResultError::ManyHosts(task.clone())),
    };
    match (&row.data, row.status) {
        (Some(value), _) => Ok(value.clone()),
        (None, Status::Changed | Status::Unchanged) => Ok(Value::Null),
        (None, status) => Err(ResultError::NoData(task.clone(), status)),
    }
}

fn read<T: DeserializeOwned>(task: &TaskName, value: Value) -> Result<T, ResultError> {
    let is_null = value.is_null();
    serde_json::from_value(value).map_err(|error| {
        if is_null {
            ResultError::NoData(task.clone(), Status::Unchanged)
        } else {
            ResultError::WrongType {
                task: task.clone(),
                wanted: std::any::type_name::<T>(),
                problem: error.to_string(),
            }
        }
    })
}

/// What a closure sees of its run.
#[derive(Clone, Debug)]
pub struct RunView {
    id: Option<RunId>,
    status: RunStatus,
}

impl RunView {
    /// Returns the run's id, if it is recorded.
    pub fn id(&self) -> Option<&RunId> {
        self.id.as_ref()
    }

    /// Returns how the run ended, in `finally`; `running` before.
    pub fn status(&self) -> RunStatus {
        self.status
    }
}

/// The result of an operation carried out by a closure.
#[derive(Clone, Debug)]
pub struct OpOutput {
    pub(crate) changed: bool,
    pub(crate) exit_code: Option<i32>,
    pub(crate) data: Option<Value>,
}

impl OpOutput {
    /// Whether something is different now.
    pub fn changed(&self) -> bool {
        self.changed
    }

    /// Returns a command's exit code.
    pub fn exit_code(&self) -> Option<i32> {
        self.exit_code
    }

    /// Returns what a command wrote to its standard output.
    pub fn stdout(&self) -> &str {
        self.text("stdout")
    }

    /// Returns what a command wrote to its standard error.
    pub fn stderr(&self) -> &str {
        self.text("stderr")
    }

    /// Returns the operation's data.
    pub fn data(&self) -> Option<&Value> {
        self.data.as_ref()
    }

    fn text(&self, member: &str) -> &str {
        self.data.as_ref().and_then(|data| data.get(member)).and_then(Value::as_str).unwrap_or("")
    }
}

/// Reading typed values from a report.
pub trait ReportValues {
    /// Returns the value of a task.
    fn value<T: DeserializeOwned>(&self, of: impl Into<ResultOf<T>>) -> Result<T, ResultError>;
}

impl ReportValues for Report {
    fn value<T: DeserializeOwned>(&self, of: impl Into<ResultOf<T>>) -> Result<T, ResultError> {
        let of = of.into();
        let row = self.tasks.get(of.task.get()).ok_or(ResultError::UnknownTask)?;
        let data = match (of.host.as_deref(), row.hosts.as_slice()) {
            (Some(host), hosts) => {
                let found = hosts.iter().find(|row| row.host.as_str() == host);
                found.ok_or_else(|| ResultError::UnknownHost(row.name.clone(), host.to_owned()))?.data.clone()
            }
            (None, [] | [_]) => row.data.clone(),
            (None, _) => return Err(ResultError::ManyHosts(row.name.clone())),
        };
        match (data, row.status) {
            (Some(value), _) => read(&row.name, value),
            (None, Status::Changed | Status::Unchanged) => read(&row.name, Value::Null),
            (None, status) => Err(ResultError::NoData(row.name.clone(), status)),
        }
    }
}

//! How finished tasks ended, for those after them: written once per task, read without locks.

use std::fmt;
use std::sync::{Arc, OnceLock};

use serde_json::Value;
use stead_model::plan::TaskIndex;
use stead_model::status::Class;
use stead_model::{Cause, ErrorClass, HostName, Plan, Status};

use crate::graph::Graph;

/// How a task, or one host's part of it, ended, as expressions see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its status; `unknown` in a dry run that cannot predict it.
    pub status: Status,
    /// Whether something is different now.
    pub changed: bool,
    /// Why it was skipped.
    pub cause: Option<Cause>,
    /// Why, in words.
    pub reason: Option<Box<str>>,
    /// What went wrong.
    pub error: Option<Box<str>>,
    /// What kind of error it was.
    pub class: Option<ErrorClass>,
    /// How often it was tried.
    pub attempts: u32,
    /// How long it took.
    pub duration_ms: u64,
    /// Its result.
    pub data: Option<Value>,
    /// Dry run: it was predicted, not executed, so its data is not known.
    pub data_unknown: bool,
}

impl Row {
    /// Returns a row that ended so and says nothing else.
    pub fn new(status: Status) -> Self {
        Self {
            status,
            changed: status == Status::Changed,
            cause: None,
            reason: None,
            error: None,
            class: None,
            attempts: 0,
            duration_ms: 0,
            data: None,
            data_unknown: false,
        }
    }

    /// Returns what this end means to dependents.
    pub fn ending(&self) -> Class {
        self.status.class(self.cause)
    }
}

/// How a task ended, with its hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// The task as a whole.
    pub row: Row,
    /// Its hosts in target order; none for a functional task or one that did not start.
    pub hosts: Vec<(HostName, Row)>,
}

impl Finished {
    /// Returns the end of a task without hosts.
    pub fn new(row: Row) -> Self {
        Self { row, hosts: Vec::new() }
    }
}

/// The ends of a run's tasks so far. Append-only; 16 bytes for each task not yet finished.
pub struct Results {
    graph: Arc<Graph>,
    plan: Arc<Plan>,
    ends: Box<[OnceLock<Arc<Finished>>]>,
}

impl Results {
    /// Returns a store without results.
    pub fn new(graph: Arc<Graph>, plan: Arc<Plan>) -> Self {
        let ends = (0..plan.tasks.len()).map(|_| OnceLock::new()).collect();
        Self { graph, plan, ends }
    }

    /// Remembers how `task` ended. The first end stays: false if there was one already.
    pub fn set(&self, task: TaskIndex, finished: Arc<Finished>) -> bool {
        self.ends[task.get()].set(finished).is_ok()
    }

    /// Returns how `task` ended, if it has.
    pub fn get(&self, task: TaskIndex) -> Option<Arc<Finished>> {
        self.ends[task.get()].get().cloned()
    }

    /// Returns how `task` ended, if it has, without taking a share of it.
    pub fn peek(&self, task: TaskIndex) -> Option<&Finished> {
        self.ends[task.get()].get().map(|finished| &**finished)
    }

    /// Returns the plan whose tasks these are.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Returns the plan's graph.
    pub fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }
}

impl fmt::Debug for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Results({} tasks)", self.ends.len())
    }
}

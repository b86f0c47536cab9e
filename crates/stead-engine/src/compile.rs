//! From what a front door read or built to a plan that can run.
//!
//! A front door makes a [`Plan`] with its own defaults filled in; [`check`] finds every problem in it and returns a
//! [`CompiledPlan`]: checked, hashed and with its graph. Nothing here reaches a target or reads a file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stead_model::diagnostic::suggest;
use stead_model::plan::{Digest, Section, TaskIndex};
use stead_model::{Descriptor, Diagnostic, Plan};

use crate::graph::Graph;
use crate::target::HostSet;

mod check;
pub mod config;
pub mod intents;
pub mod nodes;
pub mod plans;
pub mod runs;
pub mod single;
pub mod steps;
mod vars;

pub use check::{Explicit, Guarded, WHOLE_PLAN, check};
pub use plans::plan_file;
pub use vars::{Inputs, InvalidVar, VarFlag, VarValue, is_usage};

/// A plan without problems.
#[derive(Clone, Debug)]
pub struct CompiledPlan {
    /// The plan, defaults filled in, every task with its hash.
    pub plan: Arc<Plan>,
    /// Who waits for whom.
    pub graph: Arc<Graph>,
    /// SHA-256 of the plan's canonical JSON.
    pub hash: Digest,
    /// What is worth saying but stops nothing.
    pub warnings: Vec<Diagnostic>,
}

/// What plans can name: operations and, if they are known already, hosts.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    operations: BTreeMap<&'static str, &'static Descriptor>,
    hosts: Option<HostSet>,
}

impl Catalogue {
    /// Returns the catalogue of these operations.
    pub fn new(descriptors: impl IntoIterator<Item = &'static Descriptor>) -> Self {
        let operations = descriptors.into_iter().map(|descriptor| (descriptor.name, descriptor)).collect();
        Self { operations, hosts: None }
    }

    /// Returns this catalogue with the hosts there are; targets are then checked against them.
    pub fn with_hosts(mut self, hosts: HostSet) -> Self {
        self.hosts = Some(hosts);
        self
    }

    /// Returns the hosts there are, if they are known.
    pub fn hosts(&self) -> Option<&HostSet> {
        self.hosts.as_ref()
    }

    /// Returns what the operation `name` declares of itself.
    pub fn get(&self, name: &str) -> Option<&'static Descriptor> {
        self.operations.get(name).copied()
    }

    /// Returns the names of all operations, sorted.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.operations.keys().copied()
    }
}

/// Returns the tasks of each level, in plan order: what `plan show` prints.
pub fn level_table(compiled: &CompiledPlan) -> Vec<Vec<TaskIndex>> {
    let levels = compiled.graph.levels();
    let count = levels.iter().max().map_or(0, |highest| *highest as usize + 1);
    let mut table = vec![Vec::new(); count];
    for (index, _) in compiled.plan.indexed() {
        table[levels[index.get()] as usize].push(index);
    }
    table
}

/// Names given to `--only` that no task has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", unmatched.iter().map(|(name, help)| format!("no task is called `{name}`; {help}")).collect::<Vec<_>>().join("\n"))]
pub struct SelectError {
    /// Each name with the nearest or the candidates.
    pub unmatched: Vec<(String, String)>,
}

/// Returns the tasks that `--only` leaves out: all but the named ones, what they depend on, and `finally`.
///
/// The base name of a `for_each` task names all its instances. No names at all select everything.
pub fn select(compiled: &CompiledPlan, only: &[String]) -> Result<BTreeSet<TaskIndex>, SelectError> {
    if only.is_empty() {
        return Ok(BTreeSet::new());
    }
    let graph = &compiled.graph;
    let mut unmatched = Vec::new();
    let mut selected = vec![false; graph.len()];
    let mut queue = Vec::new();
    for name in only {
        let found = graph.matching(name);
        if found.is_empty() {
            let names = compiled.plan.tasks.iter().map(|task| task.name.as_str());
            unmatched.push((name.clone(), suggest(name, names)));
        }
        queue.extend(found);
    }
    if !unmatched.is_empty() {
        return Err(SelectError { unmatched });
    }
    while let Some(task) = queue.pop() {
        if !std::mem::replace(&mut selected[task.get()], true) {
            queue.extend(graph.dependencies(task));
        }
    }
    let left_out = compiled
        .plan
        .indexed()
        .filter(|(index, task)| task.section == Section::Main && !selected[index.get()]);
    Ok(left_out.map(|(index, _)| index).collect())
}

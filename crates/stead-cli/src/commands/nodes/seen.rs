//! What a run says of nodes, its own and those of levels below.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use stead_engine::nodes::test_report::Lived;
use stead_model::node::{Check, NodeChange};
use stead_model::{Event, EventKind, NodeName};
use stead_runner::Observer;

/// The last that was said of each node, and what was looked at. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen(Arc<Mutex<Said>>);

#[derive(Debug, Default)]
struct Said {
    nodes: BTreeMap<NodeName, NodeChange>,
    lives: BTreeMap<NodeName, Lived>,
    checks: BTreeMap<NodeName, Vec<Check>>,
    report: Option<PathBuf>,
}

impl Seen {
    /// Returns what was said of a node.
    pub(super) fn of(&self, name: &NodeName) -> Option<NodeChange> {
        self.said().nodes.get(name).cloned()
    }

    /// Returns what was said of each node over the whole run.
    pub(super) fn lives(&self) -> BTreeMap<NodeName, Lived> {
        self.said().lives.clone()
    }

    /// Returns why a node that is gone now was not what it should be.
    pub(super) fn failure(&self, name: &NodeName) -> Option<String> {
        self.said().lives.get(name).and_then(|lived| lived.not_made.clone())
    }

    /// Returns what was looked at, by node.
    pub(super) fn checks(&self) -> BTreeMap<NodeName, Vec<Check>> {
        self.said().checks.clone()
    }

    /// Keeps where the report of a test was written.
    pub(super) fn keep_report(&self, path: PathBuf) {
        self.said().report = Some(path);
    }

    /// Returns where the report of a test was written.
    pub(super) fn report(&self) -> Option<PathBuf> {
        self.said().report.clone()
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_in(&self, event: &Event) {
        let change = if let EventKind::Node(change) = &event.kind {
            Some((**change).clone())
        } else if let EventKind::Delegated { event, .. } = &event.kind {
            let event = unwrapped(event);
            if let (Some(task), Some(data)) = (event["task"].as_str(), event.get("data")) {
                self.take_checks(task, data);
            }
            (event["ev"] == "node").then(|| serde_json::from_value(event.clone()).ok()).flatten()
        } else {
            if let EventKind::HostResult { task, result, .. } = &event.kind
                && let Some(data) = &result.data
            {
                self.take_checks(task.as_str(), data);
            }
            None
        };
        if let Some(change) = change {
            let mut said = self.said();
            let lived = said.lives.entry(change.name.clone()).or_default();
            lived.take(change.entry.status, change.entry.error.as_deref());
            said.nodes.insert(change.name.clone(), change);
        }
    }

    /// Keeps the checks that a task of the phase `verify` left.
    fn take_checks(&self, task: &str, data: &Value) {
        let node = task.strip_suffix(".verify").and_then(|node| NodeName::parse(node).ok());
        let checks = data.get("checks").and_then(|checks| serde_json::from_value(checks.clone()).ok());
        if let (Some(node), Some(checks)) = (node, checks) {
            self.said().checks.insert(node, checks);
        }
    }
}

/// Returns an event of a level below, however deep it is wrapped.
fn unwrapped(event: &Value) -> &Value {
    let mut event = event;
    while event["ev"] == "delegated" {
        event = &event["event"];
    }
    event
}

impl Observer for Seen {
    fn on_event(&mut self, event: &Event) {
        self.take_in(event);
    }

    fn on_recorded(&mut self, event: &Event) {
        self.take_in(event);
    }
}

//! What a run says of nodes, its own and those of levels below.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use stead_model::node::NodeChange;
use stead_model::{Event, EventKind, NodeName};
use stead_runner::Observer;

/// The last that was said of each node. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen(Arc<Mutex<BTreeMap<NodeName, NodeChange>>>);

impl Seen {
    /// Returns what was said of a node.
    pub(super) fn of(&self, name: &NodeName) -> Option<NodeChange> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    fn take_in(&self, event: &Event) {
        let change = if let EventKind::Node(change) = &event.kind {
            Some((**change).clone())
        } else if let EventKind::Delegated { event, .. } = &event.kind {
            inner(event)
        } else {
            None
        };
        if let Some(change) = change {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(change.name.clone(), change);
        }
    }
}

/// Returns what an event of a level below says of a node, however deep it is wrapped.
fn inner(event: &Value) -> Option<NodeChange> {
    let mut event = event;
    while event["ev"] == "delegated" {
        event = &event["event"];
    }
    (event["ev"] == "node").then(|| serde_json::from_value(event.clone()).ok())?
}

impl Observer for Seen {
    fn on_event(&mut self, event: &Event) {
        self.take_in(event);
    }

    fn on_recorded(&mut self, event: &Event) {
        self.take_in(event);
    }
}

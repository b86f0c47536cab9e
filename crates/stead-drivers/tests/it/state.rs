//! Runs an operation that describes a state, by name.

use serde_json::Value;
use stead_runner::operation::{Diff, Entry, OpContext, OpError, Operation, Outcome};
use stead_testkit::context::params;
use stead_testkit::flow::{self, Ran};

pub(crate) fn operation(name: &str) -> std::sync::Arc<dyn Operation> {
    match stead_drivers::Drivers::standard().get(name) {
        Some(Entry::State(operation)) => operation.clone(),
        Some(Entry::Action(_)) | None => panic!("{name} describes no state"),
    }
}

pub(crate) fn run(cx: &OpContext, name: &str, values: Value) -> Result<Ran, OpError> {
    flow::run(operation(name).as_ref(), cx, &params(values))
}

pub(crate) fn check(cx: &OpContext, name: &str, values: Value) -> Result<Diff, OpError> {
    flow::check(operation(name).as_ref(), cx, &params(values))
}

/// Runs an operation that does something, by name.
pub(crate) fn act(cx: &OpContext, name: &str, values: Value) -> Result<Outcome, OpError> {
    let registry = stead_drivers::Drivers::standard();
    let Some(Entry::Action(action)) = registry.get(name) else { panic!("{name} is no action") };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(action.run(cx, &params(values)))
}

//! Runs an operation that describes a state, by name.

use serde_json::Value;
use stead_runner::operation::{Diff, Entry, OpContext, OpError, Operation};
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

//! Runs of roles through the built binary: real processes, signals, logs and bundles.
//!
//! Roles are shell scripts; what a run leaves running is found by the lab's mark, and fails the test.

mod place;

mod artifacts;
mod comparing;
mod failing;
mod lost;
mod order;
mod readiness;
mod remote;
mod resuming;
mod sources;
mod stopping;
mod transports;
mod well;
mod wire;

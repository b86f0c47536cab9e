//! The run state machine under random plans, outcomes, interleavings and crashes; the layer grammar against shells.
#![expect(clippy::unwrap_used, reason = "a helper of tests fails the test")]
#![expect(clippy::wildcard_enum_match_arm, reason = "tests look for one event among many")]

mod any;
mod fleetsim;
mod properties;
mod role_runs;
mod schedule;
mod shell;
mod simulate;

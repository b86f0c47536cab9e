//! The run state machine under random plans, outcomes, interleavings and crashes.

mod properties;
mod schedule;
mod simulate;

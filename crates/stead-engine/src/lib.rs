//! Stead's pure decisions: compiling plans, walking them, expressions, targets, resume.
//!
//! Nothing here knows a clock, a file, a socket or an async runtime: time, randomness and the world's
//! answers come in as values, events and commands go out as values.

pub mod compile;
pub mod cron;
pub mod expr;
pub mod fleet;
pub mod graph;
pub mod nodes;
pub mod run;
pub mod target;
pub mod task_state;
pub mod triggers;
pub mod values;

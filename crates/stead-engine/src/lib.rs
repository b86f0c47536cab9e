//! Stead's pure decisions: compiling plans, walking them, expressions, targets, resume.

pub mod compile;
pub mod cron;
pub mod expr;
pub mod graph;
pub mod target;

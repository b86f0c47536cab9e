//! Stead's pure decisions: compiling plans, walking them, expressions, targets, resume.

pub mod graph;

//! Stead's acts: dispatcher, executor, journal, locks, redaction and the traits at the edge.

pub mod operation;

//! Stead's acts: dispatcher, executor, journal, locks, redaction and the traits at the edge.

pub mod clock;
pub mod journal;
pub mod operation;

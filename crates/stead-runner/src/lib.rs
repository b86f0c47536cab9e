//! Stead's acts: dispatcher, executor, journal, locks, redaction and the traits at the edge.

pub mod clock;
pub mod journal;
pub mod lock;
pub mod operation;
pub mod process_scan;
pub mod redact;

//! Stead's acts: dispatcher, executor, journal, locks, redaction and the traits at the edge.
//!
//! [`Runner`] walks a [`CheckedPlan`]: the engine decides, the dispatcher records every event before
//! it acts on it, the executor carries out operations and closures. This crate names no concrete
//! operation and prints nothing.

pub mod agent;
mod announce;
pub mod author;
mod cancel;
pub mod clock;
mod context;
mod dispatcher;
mod executor;
pub mod files;
mod function;
mod hosts;
pub mod journal;
pub mod lock;
pub mod machine;
mod observe;
pub mod operation;
pub mod process_scan;
pub mod process_table;
mod record;
pub mod redact;
pub mod remote;
mod resume;
mod runner;
mod secrets;
pub mod socket;
pub mod transport;
mod warner;

pub use announce::Announcer;
pub use author::CheckedPlan;
pub use cancel::Canceller;
pub use context::{OpOutput, ReportValues, ResultError, ResultOf, RunView, TaskContext};
pub use dispatcher::{Answer, Durability};
pub use executor::operate;
pub use function::{Done, Failure};
pub use observe::Observer;
pub use record::{GIT_COMMIT, Taken, versions};
pub use resume::{ResumeError, ResumeOptions, plan_changes};
pub use runner::{Provenance, Runner};
pub use secrets::{read_secrets, readable_secrets};
pub use warner::Warner;

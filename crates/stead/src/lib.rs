//! The Stead library: build and run plans from Rust.
//!
//! A plan is a DAG of tasks. A task is an operation ([`Op`](author::Op): data, predictable, resumable) or an async
//! closure. [`Runner`] walks the plan in parallel, records every event before it acts on it, and returns a [`Report`]
//! with a row for every task, whatever happened.
//!
//! ```
//! use stead::prelude::*;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Diagnostics> {
//! let mut plan = Plan::builder("hello");
//! let greet = plan.op("greet", Op::exec("echo", ["hello"]).changed_when("false")).handle();
//! let count = plan
//!     .func("count", move |cx| async move {
//!         let greeting: Value = cx.result(greet)?;
//!         Ok(Done::unchanged(greeting["stdout"].as_str().unwrap_or("").trim().len()))
//!     })
//!     .after(greet)
//!     .handle();
//!
//! let report = Runner::new(Drivers::standard()).run(plan.build()?).await;
//! assert_eq!(report.summary().lines().next(), Some("2 tasks: 2 unchanged"));
//! assert_eq!(report.value(count).unwrap(), 5);
//! # Ok(()) }
//! ```
//!
//! Longer: `examples/simple.rs` and `examples/webserver.rs` of this crate.
//!
//! # Where things are
//!
//! | crate | holds |
//! |---|---|
//! | [`model`] | ids, plans, events, reports, diagnostics, file formats |
//! | [`engine`] | compiling, the run state machine, expressions, targets |
//! | [`runner`] | [`Runner`], dispatcher, executor, journal, the traits operations implement |
//! | [`drivers`] | the operations |
//! | [`bundle`] | what a run leaves on disk |
//!
//! | file of a run | is |
//! |---|---|
//! | `.stead/runs/ID/events.jsonl` | the journal: every event, checksummed |
//! | `.stead/runs/ID/plan.json` | the compiled plan; its SHA-256 is the plan's hash |
//! | `.stead/runs/ID/report.json` | the report |
//! | `.stead/runs/ID/logs/TASK/HOST.N.stdout` | output of attempt N |
//! | `.stead/runs/ID/hashes.txt` | the seal: SHA-256 of every other file |
//! | `.stead/locks/HOST.lock` | held while a run writes to that host |

pub use stead_bundle as bundle;
pub use stead_drivers as drivers;
pub use stead_engine as engine;
pub use stead_model as model;
pub use stead_runner as runner;

pub use stead_model::{Diagnostics, Report};
pub use stead_runner::{Runner, author};

/// Everything a program that builds and runs plans needs.
pub mod prelude {
    pub use std::time::Duration;

    pub use stead_cli::render::terminal::Terminal;
    pub use stead_drivers::Drivers;
    pub use stead_model::plan::{
        HostFailure, Interrupted, Jitter, Limits, OnEmpty, OnFailure, Retry, SecretRef, Size, TriggerRule,
    };
    pub use stead_model::{
        Cause, Diagnostics, ErrorClass, Event, EventKind, ExitCode, Report, RunId, RunStatus, Status,
    };
    pub use stead_runner::author::{CheckedPlan, Guard, OnError, Op, Task, TaskBuilder};
    pub use stead_runner::{
        Canceller, Done, Failure, Observer, OpOutput, ReportValues, ResultError, Runner, TaskContext,
    };

    pub use crate::{Plan, hours, millis, mins, secs};
    #[doc(no_inline)]
    pub use stead_model::Value;
}

/// Entry to building plans.
#[derive(Clone, Copy, Debug)]
pub struct Plan;

impl Plan {
    /// Returns an empty plan called `name` that knows the standard operations.
    #[track_caller]
    pub fn builder(name: &str) -> author::PlanBuilder {
        let mut builder = author::Plan::builder(name);
        builder.operations(&stead_drivers::Drivers::standard());
        builder
    }
}

/// Returns a duration of so many milliseconds.
pub const fn millis(count: u64) -> std::time::Duration {
    std::time::Duration::from_millis(count)
}

/// Returns a duration of so many seconds.
pub const fn secs(count: u64) -> std::time::Duration {
    std::time::Duration::from_secs(count)
}

/// Returns a duration of so many minutes.
pub const fn mins(count: u64) -> std::time::Duration {
    std::time::Duration::from_secs(count * 60)
}

/// Returns a duration of so many hours.
pub const fn hours(count: u64) -> std::time::Duration {
    std::time::Duration::from_secs(count * 3600)
}

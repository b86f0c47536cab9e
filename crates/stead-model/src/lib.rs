//! Stead's nouns: ids, file formats, plans, events, reports and diagnostics.
//!
//! Everything here is a value: parse it, check it, print it. This crate does no IO, knows no
//! clock and no async runtime; `stead-engine` decides over these values and the other crates act.

pub mod argv;
pub mod base64;
pub mod bundle;
pub mod canonical_json;
pub mod catalogue;
pub mod diagnostic;
pub mod duration;
pub mod event;
pub mod executor;
pub mod exit_code;
pub mod explain;
pub mod facts;
pub mod fleet;
pub mod id;
pub mod intent;
pub mod inventory;
pub mod layer;
pub mod machine;
pub mod node;
pub mod operation;
pub mod plan;
pub mod plan_file;
pub mod report;
pub mod role;
pub mod run_manifest;
pub mod run_plan;
pub mod schema;
pub mod site;
pub mod starter;
pub mod status;
pub mod steps;
pub mod tail;
pub mod time;
pub mod token;
pub mod transport;
pub mod yaml;

pub use catalogue::{Catalogue, StepMode};
pub use diagnostic::{Diagnostic, Diagnostics, Severity};
pub use event::{Event, EventKind};
pub use exit_code::ExitCode;
pub use facts::Facts;
pub use id::{
    GroupName, HostName, MessageId, NodeName, OperationName, PlanName, RunId, SiteKey, StepId, TaskName,
    VmId, WorkerName,
};
pub use inventory::Inventory;
pub use operation::{Descriptor, Effect};
pub use plan::{Op, Plan, Task};
pub use plan_file::PlanFile;
pub use report::Report;
pub use run_manifest::RunManifest;
pub use run_plan::RunPlan;
pub use serde_json::Value;
pub use site::Site;
pub use status::{Cause, ErrorClass, RunStatus, Status};
pub use transport::TransportSpec;

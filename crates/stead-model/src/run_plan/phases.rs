//! The phases of a run: the tasks of its plan and the operations they are.

use crate::operation::{Descriptor, Effect, ParamKind, ParamSpec, RootSupport};

/// Makes the bundle and connects to every agent.
pub const INIT: &str = "init";
/// Brings to the agents what roles need.
pub const STAGE: &str = "stage";
/// Holds the run: until a signal, or for the longest `duration_seconds`.
pub const UNTIL: &str = "until";
/// Brings back what roles left.
pub const COLLECT: &str = "collect";
/// Writes the bundle's metadata.
pub const BUNDLE: &str = "bundle";
/// Analyses captures.
pub const ANALYZE: &str = "analyze";
/// Compares with another run.
pub const DIFF: &str = "diff";

/// Returns the name of the phase that starts `role`.
pub fn start_of(role: &str) -> String {
    format!("{role}_start")
}

/// Returns the name of the phase that waits until the service `role` is ready.
pub fn ready_of(role: &str) -> String {
    format!("{role}_ready")
}

/// Returns the name of the phase that waits for the end of the task `role`.
pub fn done_of(role: &str) -> String {
    format!("{role}_done")
}

/// Returns the name of the phase that stops the service `role`.
pub fn stop_of(role: &str) -> String {
    format!("{role}_stop")
}

/// The operation of `init`.
pub const RUN_INIT: &str = "run.init";
/// The operation of `stage`.
pub const RUN_STAGE: &str = "run.stage";
/// The operation of `R_start`.
pub const RUN_START: &str = "run.start";
/// The operation of `R_ready`.
pub const RUN_READY: &str = "run.ready";
/// The operation of `R_done`.
pub const RUN_DONE: &str = "run.done";
/// The operation of `until`.
pub const RUN_UNTIL: &str = "run.until";
/// The operation of `R_stop`.
pub const RUN_STOP: &str = "run.stop";
/// The operation of `collect`.
pub const RUN_COLLECT: &str = "run.collect";
/// The operation of `bundle`.
pub const RUN_BUNDLE: &str = "run.bundle";
/// The operation of `analyze`.
pub const RUN_ANALYZE: &str = "run.analyze";
/// The operation of `diff`.
pub const RUN_DIFF: &str = "run.diff";

const ROLE: &[ParamSpec] =
    &[ParamSpec::new("role", ParamKind::NonEmptyText, "The role instance.").required()];

const fn phase(name: &'static str, summary: &'static str, params: &'static [ParamSpec]) -> Descriptor {
    Descriptor {
        name,
        summary,
        effect: Effect::Command,
        idempotent: false,
        check: false,
        undo: false,
        platforms: &[],
        root: RootSupport::None,
        needs_root: false,
        params,
        exclusive: &[],
        one_of: &[],
        result: &[],
    }
}

/// The operations of phases, which only `stead run` has.
pub static OPERATIONS: [Descriptor; 11] = [
    phase(RUN_INIT, "Makes the bundle of a run and connects to its agents.", &[]),
    phase(RUN_STAGE, "Brings to the agents of a run what its roles need.", &[]),
    phase(RUN_START, "Starts a role.", ROLE),
    phase(RUN_READY, "Waits until a service is ready.", ROLE),
    phase(RUN_DONE, "Waits for the end of a task.", ROLE),
    phase(RUN_UNTIL, "Holds a run.", &[]),
    phase(RUN_STOP, "Stops a service.", ROLE),
    phase(RUN_COLLECT, "Brings back what the roles of a run left.", &[]),
    phase(RUN_BUNDLE, "Writes the metadata of a run's bundle.", &[]),
    phase(RUN_ANALYZE, "Analyses the captures of a run.", &[]),
    phase(RUN_DIFF, "Compares a run with another.", &[]),
];

/// Returns what the operation `name` of a phase declares of itself.
pub fn operation(name: &str) -> Option<&'static Descriptor> {
    OPERATIONS.iter().find(|operation| operation.name == name)
}

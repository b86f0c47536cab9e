//! `stead fleet …`: the doors of a fleet. Nothing here writes what a fleet should be.

mod daemon;
mod dev;
pub(crate) mod explain;
mod file;
mod hold;
mod plan;
pub(crate) mod shown;
mod status;
mod token;
mod wait;
mod way;

pub(crate) use way::master;

use serde_json::Value;
use stead_fleet::api::{CallError, Json};
use stead_model::ExitCode;

use crate::args::{FleetCommand, FleetWayArgs};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::settings::Settings;

pub(super) fn run(
    command: &FleetCommand,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    match command {
        FleetCommand::Dev(args) => dev::run(args, settings, output),
        FleetCommand::Status(args) => status::run(args, settings, output),
        FleetCommand::Wait(args) => wait::run(args, settings, output),
        FleetCommand::Plan(args) => plan::run(args, settings, output),
        FleetCommand::Explain(args) => explain::run(args, settings, output),
        FleetCommand::Hold(args) => hold::hold(args, settings, output),
        FleetCommand::Release(args) => hold::release(args, settings, output),
        FleetCommand::Token(command) => token::run(command, settings, output),
        FleetCommand::Publish(args) => daemon::publish(args, settings, output),
        FleetCommand::Master(args) => daemon::master(args, settings, output),
        FleetCommand::Worker(args) => daemon::worker(args, settings, output),
    }
}

/// Whether a fleet is named, or somebody joined one here.
pub(crate) fn is_known(args: &FleetWayArgs, settings: &Settings) -> bool {
    !args.masters.is_empty() || args.join_file.is_some() || way::identity_directory(args, settings).exists()
}

/// Returns the failure of a call that had no answer.
pub(crate) fn call_failure(error: CallError) -> Failure {
    match error {
        CallError::Away(_) => Failure::caused_by(FailureKind::Unreachable, error)
            .hint("is a master running, and do --masters and --identity name the right one?"),
        CallError::NotLeader { .. } => Failure::caused_by(FailureKind::Unreachable, error)
            .hint("no leader is known at the moment: try again in a few seconds"),
        CallError::Refused { ref code, .. } => {
            let unknown = ["unknown", "unknown-hold", "unknown-target", "unknown-instance"];
            let kind = if unknown.contains(&code.as_str()) { FailureKind::Usage } else { FailureKind::Work };
            let code = format!("fleet/{code}");
            Failure::caused_by(kind, error).code(code)
        }
    }
}

/// Returns what a master's document says.
pub(crate) fn parsed(document: &Json) -> Result<Value, Failure> {
    serde_json::from_str(&document.0).map_err(|error| {
        Failure::new(FailureKind::Work, format!("what the master says is not understood: {error}"))
    })
}

//! `stead sandbox`: the process of one sandbox, which its driver starts.

use stead_drivers::machine::sandbox;
use stead_model::ExitCode;

use crate::args::SandboxArgs;
use crate::failure::{Failure, FailureKind};

pub(super) fn run(args: &SandboxArgs) -> Result<ExitCode, Failure> {
    sandbox::supervise(&args.machine, &args.ticket)
        .map_err(|error| Failure::caused_by(FailureKind::Work, error))?;
    Ok(ExitCode::Success)
}

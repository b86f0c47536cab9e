//! `stead supervise`: what a run starts for each of its roles.

use stead_drivers::supervisor;
use stead_model::ExitCode;

use crate::failure::{Failure, FailureKind};

pub(super) fn run() -> Result<ExitCode, Failure> {
    supervisor::supervise().map_err(|error| Failure::caused_by(FailureKind::Work, error))?;
    Ok(ExitCode::Success)
}

//! `stead console`: the process that writes the console of a virtual machine, which its driver starts.

use std::path::Path;

use stead_drivers::machine::keep_console;
use stead_model::ExitCode;

use crate::failure::{Failure, FailureKind};

pub(super) fn run(machine: &Path) -> Result<ExitCode, Failure> {
    keep_console(machine).map_err(|error| Failure::caused_by(FailureKind::Work, error))?;
    Ok(ExitCode::Success)
}

//! `stead schema`.

use stead_model::ExitCode;

use crate::args::SchemaCommand;
use crate::commands::not_wired;
use crate::failure::Failure;
use crate::output::Output;

pub(super) fn run(_command: &SchemaCommand, _output: &Output) -> Result<ExitCode, Failure> {
    Err(not_wired("schema"))
}

//! `stead bundle verify`.

use stead_model::ExitCode;

use crate::args::BundleVerifyArgs;
use crate::commands::not_wired;
use crate::failure::Failure;
use crate::output::Output;
use crate::settings::Settings;

pub(crate) fn run(
    _args: &BundleVerifyArgs,
    _settings: &Settings,
    _output: &mut Output,
) -> Result<ExitCode, Failure> {
    Err(not_wired("bundle verify"))
}

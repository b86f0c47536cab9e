//! `stead tui`.

use stead_model::ExitCode;

use crate::args::TuiArgs;
use crate::failure::Failure;
use crate::settings::Settings;
use crate::tui;

pub(crate) fn run(_args: &TuiArgs, settings: &Settings) -> Result<ExitCode, Failure> {
    tui::run(settings)
}

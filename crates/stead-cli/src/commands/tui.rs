//! `stead tui`.

use stead_model::ExitCode;

use crate::args::TuiArgs;
use crate::commands::site;
use crate::failure::Failure;
use crate::settings::Settings;
use crate::tui;

pub(crate) fn run(args: &TuiArgs, settings: &Settings) -> Result<ExitCode, Failure> {
    // Without one that is named there need be none.
    if args.site.site.is_some() {
        site::find(&args.site, settings)?;
    }
    tui::run(args, settings)
}

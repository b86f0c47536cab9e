//! `stead job show`.

use stead_model::ExitCode;

use super::way::{self, Way};
use crate::args::JobShowArgs;
use crate::commands::reach;
use crate::failure::Failure;
use crate::output::Output;
use crate::settings::Settings;

pub(crate) fn run(args: &JobShowArgs, settings: &Settings, output: &mut Output) -> Result<ExitCode, Failure> {
    let place = way::below(&args.id, &args.operator, &args.pair, settings)?;
    let job = reach::block_on(async {
        let way = Way::to(place, &args.operator, settings, output).await?;
        way.job(&args.id.id, false).await
    })??;
    super::print(&job, args.json, output);
    Ok(ExitCode::Success)
}

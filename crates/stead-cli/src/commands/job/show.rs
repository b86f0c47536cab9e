//! `stead job show`.

use stead_model::ExitCode;

use crate::args::JobShowArgs;
use crate::commands::{reach, server_way};
use crate::failure::Failure;
use crate::output::Output;
use crate::settings::Settings;

pub(crate) fn run(args: &JobShowArgs, settings: &Settings, output: &mut Output) -> Result<ExitCode, Failure> {
    let job = reach::block_on(async {
        let client = server_way::operator(&args.operator, settings, output).await?;
        client.job(&args.id).await.map_err(server_way::failure)
    })??;
    super::print(&job, args.json, output);
    Ok(ExitCode::Success)
}

//! `stead job list`.

use serde_json::json;
use stead_model::ExitCode;

use crate::args::JobListArgs;
use crate::commands::{reach, server_way};
use crate::failure::Failure;
use crate::output::Output;
use crate::render::json as render_json;
use crate::settings::Settings;

pub(crate) fn run(args: &JobListArgs, settings: &Settings, output: &mut Output) -> Result<ExitCode, Failure> {
    let mut jobs = reach::block_on(async {
        let client = server_way::operator(&args.operator, settings, output).await?;
        client.jobs().await.map_err(server_way::failure)
    })??;
    jobs.retain(|job| args.node.as_ref().is_none_or(|node| job.node == *node));
    if args.json {
        output.out.print(&render_json::document(&json!({"jobs": jobs})));
    } else if jobs.is_empty() {
        output.err.print_line("no jobs");
    } else {
        jobs.iter().for_each(|job| output.out.print_line(&super::line(job)));
    }
    Ok(ExitCode::Success)
}

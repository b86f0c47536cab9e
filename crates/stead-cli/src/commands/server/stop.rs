//! `stead server stop`.

use serde_json::json;
use stead_model::ExitCode;
use stead_server::stop;

use crate::args::ServerStopArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::render::json as render_json;
use crate::settings::Settings;

pub(crate) fn run(
    args: &ServerStopArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let place = super::place(&args.site, settings)?;
    let was_running = stop(&place, args.port).map_err(super::failure)?;
    if args.json {
        output.out.print(&render_json::document(&json!({"stopped": was_running})));
    } else {
        output.out.print_line(if was_running { "stopped" } else { "not running" });
    }
    Ok(ExitCode::Success)
}

//! `stead fleet hold` and `stead fleet release`.

use serde_json::json;
use stead_fleet::api::{HoldOrder, Master as _};
use stead_model::ExitCode;

use super::{call_failure, way};
use crate::args::{FleetHoldArgs, FleetReleaseArgs, FleetWayArgs};
use crate::commands::reach;
use crate::failure::Failure;
use crate::output::Output;
use crate::render::json as render_json;
use crate::settings::Settings;

pub(crate) fn hold(
    args: &FleetHoldArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let duration = u64::try_from(args.duration.as_millis()).unwrap_or(u64::MAX);
    let order = HoldOrder::Hold { target: args.target.clone(), duration, reason: args.reason.clone() };
    let id = give(order, &args.way, settings)?;
    if args.way.json {
        output.out.print(&render_json::document(&json!({"id": id})));
    } else {
        output.out.print_line(&id);
        output.err.print_line(&format!("it ends by itself, or with `stead fleet release {id}`"));
    }
    Ok(ExitCode::Success)
}

pub(crate) fn release(
    args: &FleetReleaseArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let id = give(HoldOrder::Release { id: args.id.clone() }, &args.way, settings)?;
    if args.way.json {
        output.out.print(&render_json::document(&json!({"id": id})));
    } else {
        output.out.print_line(&format!("{id} ended"));
    }
    Ok(ExitCode::Success)
}

fn give(order: HoldOrder, args: &FleetWayArgs, settings: &Settings) -> Result<String, Failure> {
    reach::block_on(async {
        let master = way::master(args, settings).await?;
        // Who it was is what the certificate says.
        master.set_hold(order, "").await.map_err(call_failure)
    })?
}

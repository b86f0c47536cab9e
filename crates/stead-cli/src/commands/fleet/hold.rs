//! `stead fleet hold` and `stead fleet release`.

use std::time::Duration;

use serde_json::{Value, json};
use stead_fleet::api::{HoldOrder, Master as _, StatusFilter};
use stead_model::ExitCode;

use super::shown::{list, text};
use super::{call_failure, parsed, way};
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
    let (id, hold) = give(order, &args.way, settings)?;
    if args.way.json {
        output.out.print(&render_json::document(&hold));
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
    let (id, hold) = give(HoldOrder::Release { id: args.id.clone() }, &args.way, settings)?;
    if args.way.json {
        output.out.print(&render_json::document(&hold));
    } else {
        output.out.print_line(&format!("{id} ended"));
    }
    Ok(ExitCode::Success)
}

/// Gives an order; returns the hold's name, and the document of what it is now: as the status has it, or that it ended.
fn give(order: HoldOrder, args: &FleetWayArgs, settings: &Settings) -> Result<(String, Value), Failure> {
    reach::block_on(async {
        let master = way::master(args, settings).await?;
        // Who it was is what the certificate says.
        let id = master.set_hold(order, "").await.map_err(call_failure)?;
        let (status, _) =
            master.status(0, Duration::ZERO, &StatusFilter::default()).await.map_err(call_failure)?;
        let status = parsed(&status)?;
        let mut document = json!({"schema": 1, "id": id, "active": false});
        if let Some(hold) = list(&status, "holds").find(|hold| text(hold, "id") == id) {
            document["active"] = json!(true);
            for key in ["target", "until", "by", "reason"] {
                document[key] = hold.get(key).cloned().unwrap_or_default();
            }
        }
        Ok((id, document))
    })?
}

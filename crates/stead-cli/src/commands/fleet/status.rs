//! `stead fleet status`.

use std::time::Duration;

use serde_json::Value;
use stead_fleet::api::{Master, StatusFilter};
use stead_model::ExitCode;

use super::{call_failure, parsed, shown, way};
use crate::args::FleetStatusArgs;
use crate::commands::reach;
use crate::failure::Failure;
use crate::output::Output;
use crate::settings::Settings;
use crate::signals;

/// How long one question waits for a change.
const LONG: Duration = Duration::from_secs(30);

pub(crate) fn run(
    args: &FleetStatusArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    reach::block_on(async {
        let master = way::master(&args.way, settings).await?;
        if args.snapshot {
            let snapshot = master.snapshot().await.map_err(call_failure)?;
            output.out.print_line(&snapshot.0);
            return Ok(ExitCode::Success);
        }
        let filter =
            StatusFilter { group: args.group.clone(), worker: args.worker.clone(), vm: args.vm.clone() };
        if args.watch {
            return watch(master.as_ref(), &filter, args, settings, output).await;
        }
        let (status, _) = master.status(0, Duration::ZERO, &filter).await.map_err(call_failure)?;
        let status = parsed(&status)?;
        print(&status, args.way.json, settings, output);
        Ok(shown::exit_code(&status))
    })?
}

fn print(status: &Value, json: bool, settings: &Settings, output: &Output) {
    if json {
        output.out.print_line(&status.to_string());
    } else {
        output.out.print(&shown::to_text(status, settings.stdout_paint));
    }
}

/// Prints every change until a signal comes. What was seen last is the exit code.
async fn watch(
    master: &dyn Master,
    filter: &StatusFilter,
    args: &FleetStatusArgs,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode, Failure> {
    let mut signals =
        signals::listen().map_err(|error| Failure::caused_by(crate::failure::FailureKind::Work, error))?;
    let mut after = 0;
    let mut last = ExitCode::Converging;
    while !output.out.is_closed() {
        let asked = master.status(after, LONG, filter);
        let (status, seq) = tokio::select! {
            asked = asked => asked.map_err(call_failure)?,
            changed = signals.changed() => {
                drop(changed);
                return Ok(last);
            }
        };
        if seq == after {
            continue;
        }
        let status = parsed(&status)?;
        last = shown::exit_code(&status);
        if after != 0 && !args.way.json {
            output.out.print("\n");
        }
        print(&status, args.way.json, settings, output);
        after = seq;
    }
    Ok(last)
}

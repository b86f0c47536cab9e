//! `stead fleet explain`.

use serde_json::Value;
use stead_fleet::api::Master as _;
use stead_model::ExitCode;

use super::{call_failure, parsed, way};
use crate::args::FleetExplainArgs;
use crate::commands::reach;
use crate::failure::Failure;
use crate::output::Output;
use crate::render::{json as render_json, table};
use crate::settings::Settings;

pub(crate) fn run(
    args: &FleetExplainArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let explanation = reach::block_on(async {
        let master = way::master(&args.way, settings).await?;
        master.explain(&args.instance).await.map_err(call_failure)
    })??;
    if args.way.json {
        output.out.print(&render_json::document(&parsed(&explanation)?));
    } else {
        output.out.print(&to_text(&parsed(&explanation)?));
    }
    Ok(ExitCode::Success)
}

/// Returns why an instance is where it is, for people.
pub(crate) fn to_text(explanation: &Value) -> String {
    let said = |key: &str| explanation.get(key).and_then(Value::as_str).unwrap_or_default();
    let worker = explanation.get("worker").and_then(Value::as_str).unwrap_or("no worker");
    let mut text = format!("{} is on {worker}: {}\n", said("instance"), said("why_here"));
    if !said("why_not_yet").is_empty() {
        text.push_str(&format!("not yet as it should be: {}\n", said("why_not_yet")));
    }
    if let Some(change) = explanation.get("last_changed_by").filter(|change| !change.is_null()) {
        let commit: String =
            change.get("commit").and_then(Value::as_str).unwrap_or_default().chars().take(12).collect();
        let generation = change.get("generation").and_then(Value::as_u64).unwrap_or_default();
        text.push_str(&format!("last changed by generation {generation}, commit {commit}\n"));
    }
    let candidates = explanation.get("candidates").and_then(Value::as_array).into_iter().flatten();
    let rows: Vec<[String; 4]> = candidates
        .map(|candidate| {
            let word = |key: &str| candidate.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
            [format!("  {}", word("worker")), word("verdict"), word("filter"), word("why")]
        })
        .collect();
    text.push_str(&table::to_text(&rows));
    text
}

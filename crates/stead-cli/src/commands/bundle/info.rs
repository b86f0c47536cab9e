//! `stead bundle info PATH`.

use std::path::Path;

use serde_json::Value;
use stead_bundle::Bundle;
use stead_model::ExitCode;

use crate::args::BundleInfoArgs;
use crate::commands::bundle::{find, unreadable};
use crate::failure::Failure;
use crate::output::Output;
use crate::render::{json, one_line, shown_path};
use crate::settings::Settings;

/// Members of `run_meta.json` that a person wants to see first.
const SHOWN: [&str; 8] =
    ["kind", "plan", "status", "exit_code", "started_at", "finished_at", "duration_seconds", "plan_hash"];

pub(crate) fn run(
    args: &BundleInfoArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let path = find(&args.path, settings)?;
    let bundle = stead_bundle::info(&path).map_err(unreadable)?;
    if args.json {
        output.out.print(&json::document(&bundle));
    } else {
        output.out.print(&to_text(&bundle, &settings.current_dir));
    }
    Ok(ExitCode::Success)
}

fn to_text(bundle: &Bundle, here: &Path) -> String {
    let yes = |answer: bool| if answer { "yes" } else { "no" }.to_owned();
    let mut rows = vec![("run", bundle.run_id.clone().unwrap_or_else(|| "unknown".to_owned()))];
    for name in SHOWN {
        match bundle.run_meta.get(name) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => rows.push((name, text.clone())),
            Some(other) => rows.push((name, other.to_string())),
        }
    }
    if let Some(version) = bundle.versions.get("stead_version").and_then(Value::as_str) {
        rows.push(("stead_version", version.to_owned()));
    }
    if !bundle.roles.is_empty() {
        rows.push(("roles", bundle.roles.keys().cloned().collect::<Vec<_>>().join(", ")));
    }
    rows.push(("sealed", yes(bundle.sealed)));
    rows.push(("signed", yes(bundle.signature.present)));
    rows.push(("files", format!("{} ({} bytes)", bundle.files, bundle.bytes)));
    rows.push(("path", shown_path(&bundle.path, here)));
    rows.iter().map(|(name, value)| format!("{:<17} {}\n", format!("{name}:"), one_line(value))).collect()
}

//! `stead diff run BASE NEW`.

use std::collections::BTreeMap;
use std::fs;

use globset::GlobSetBuilder;
use serde_json::{Value, json};
use stead_bundle::Style;
use stead_bundle::analysis::AnalysisOptions;
use stead_bundle::diff::{
    self, DiffError, DiffOptions, DiffRequest, RoleChoice, RoleDiff, RoleError, RunDiff, Skipped,
};
use stead_model::ExitCode;

use crate::args::{DiffRunArgs, DocumentFormat};
use crate::commands::bundle::{target, unreadable};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::{json, one_line};
use crate::settings::Settings;

pub(super) fn run(args: &DiffRunArgs, settings: &Settings, output: &mut Output) -> Result<ExitCode, Failure> {
    let (base, new) = (target(&args.base, settings)?, target(&args.new, settings)?);
    let diffed = diff::diff_runs(&base, &new, &request(args)?).map_err(|error| match error {
        DiffError::Load(error) => unreadable(error),
        DiffError::Role(RoleError::Ambiguous { .. }) => Failure::caused_by(FailureKind::Invalid, error)
            .hint("name one of them with --role, or compare all with --role all"),
        DiffError::Capture(_) | DiffError::Role(_) => Failure::caused_by(FailureKind::Invalid, error),
    })?;
    for warning in &diffed.warnings {
        output.err.print_line(&format!("warning: {}", one_line(warning)));
    }
    if args.raw && !diffed.diff.has_captures() {
        return Err(Failure::new(FailureKind::Invalid, "neither BASE nor NEW has a capture of that role"));
    }
    let text = shown(&diffed.diff, args);
    match &args.output {
        None => output.out.print(&text),
        Some(file) => fs::write(settings.current_dir.join(file), text).map_err(|error| {
            Failure::new(FailureKind::Output, format!("cannot write {}: {error}", file.display()))
        })?,
    }
    if !diffed.diff.has_failed() {
        return Ok(ExitCode::Success);
    }
    // Where the difference itself does not say so.
    if args.output.is_some() || args.raw {
        for failed in diffed.diff.thresholds().iter().filter(|result| result.failed) {
            let value =
                failed.value.map_or_else(|| "there is no such value".to_owned(), |value| value.to_string());
            output.err.print_line(&format!("failed: {} ({value})", one_line(&failed.expr)));
        }
    }
    Ok(ExitCode::Verification)
}

fn request(args: &DiffRunArgs) -> Result<DiffRequest, Failure> {
    let mut globs = GlobSetBuilder::new();
    for glob in &args.text {
        globs.add(glob.clone());
    }
    let text = globs.build().map_err(|error| Failure::caused_by(FailureKind::Usage, error))?;
    let mut analysis = AnalysisOptions {
        expected_rpi_ms: args.expected_rpi,
        rpi_tolerance_pct: args.rpi_tolerance,
        ..AnalysisOptions::default()
    };
    analysis.ports.extend(&args.port);
    let options = DiffOptions {
        skipped: Skipped { timing: args.skip_timing, intervals: args.skip_rpi },
        ignored_lines: args.ignore.clone(),
        thresholds: args.fail_on.clone(),
    };
    let role = args.role.clone().unwrap_or(RoleChoice::Default);
    Ok(DiffRequest { role, text, analysis, options, so_far: None })
}

fn shown(diff: &RunDiff, args: &DiffRunArgs) -> String {
    let style = match args.format.or_json(args.json) {
        DocumentFormat::Json if args.raw => return json::document(&captures(diff)),
        DocumentFormat::Json => return json::document(diff),
        DocumentFormat::Text => Style::Text,
        DocumentFormat::Markdown => Style::Markdown,
    };
    if args.raw { diff::render_captures(diff, style) } else { diff::render_diff(diff, style) }
}

/// Returns only what concerns captures.
fn captures(diff: &RunDiff) -> Value {
    let of_role = |diff: &RoleDiff| {
        json!({
            "schema": diff.schema, "role": diff.role, "baseline_pcap": diff.baseline_pcap,
            "compare_pcap": diff.compare_pcap, "pcap_diff": diff.pcap_diff,
        })
    };
    match diff {
        RunDiff::One(diff) => of_role(diff),
        RunDiff::All(all) => {
            let roles: BTreeMap<&String, Value> =
                all.roles.iter().map(|(role, diff)| (role, of_role(diff))).collect();
            json!({"schema": all.schema, "roles": roles})
        }
    }
}

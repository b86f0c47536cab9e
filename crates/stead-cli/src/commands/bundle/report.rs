//! `stead bundle report PATH`.

use serde_json::json;
use stead_bundle::analysis::{AnalysisOptions, analyze_file, render_capture};
use stead_bundle::diff::TargetKind;
use stead_bundle::{ReportError, Style};
use stead_model::ExitCode;

use crate::args::{BundleReportArgs, DocumentFormat};
use crate::commands::bundle::{target, unreadable};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::json;
use crate::settings::Settings;

pub(crate) fn run(
    args: &BundleReportArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let target = target(&args.path, settings)?;
    let mut options = AnalysisOptions::default();
    options.ports.extend(&args.port);
    let style = match args.format.or_json(args.json) {
        DocumentFormat::Json => None,
        DocumentFormat::Text => Some(Style::Text),
        DocumentFormat::Markdown => Some(Style::Markdown),
    };
    let text = match target.kind {
        TargetKind::Capture => {
            let capture = analyze_file(&target.path, &target.name, &options)
                .map_err(|error| Failure::caused_by(FailureKind::Invalid, error))?;
            style.map_or_else(
                || json::document(&json!({"capture": capture})),
                |style| render_capture(&capture, style),
            )
        }
        TargetKind::Bundle => {
            let jobs =
                args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
            let afresh = args.analyze || !args.port.is_empty();
            let report = stead_bundle::report(&target.path, afresh.then_some((&options, jobs)));
            let report = report.map_err(|error| match error {
                ReportError::Load(error) => unreadable(error),
                ReportError::Captures(_) => Failure::caused_by(FailureKind::Invalid, error),
            })?;
            style.map_or_else(|| json::document(&report), |style| report.render(style))
        }
    };
    output.out.print(&text);
    Ok(ExitCode::Success)
}

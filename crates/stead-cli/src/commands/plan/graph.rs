//! `stead plan graph FILE`.

use std::io;
use std::path::PathBuf;

use serde_json::json;
use stead_model::{ExitCode, Report};

use crate::args::{GraphFormat, PlanGraphArgs};
use crate::commands::bundle::{run_directories, unresolved};
use crate::commands::plan::source;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::{graph, json};
use crate::settings::Settings;

/// Why a run's report cannot colour a graph.
#[derive(Debug, thiserror::Error)]
enum ReportError {
    #[error("cannot read {path}", path = path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} is not a report", path = path.display())]
    Parse {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
}

pub(crate) fn run(
    args: &PlanGraphArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let loaded = source::load(&args.file, &(&args.vars).into(), None, settings)?;
    let report = args.run.as_deref().map(|run| report_of(run, settings)).transpose()?;
    let draw = match args.format {
        GraphFormat::Dot => graph::to_dot,
        GraphFormat::Mermaid => graph::to_mermaid,
    };
    let graph = draw(&loaded.compiled.plan, report.as_ref());
    if args.json {
        let format = match args.format {
            GraphFormat::Dot => "dot",
            GraphFormat::Mermaid => "mermaid",
        };
        output.out.print(&json::document(&json!({"schema": 1, "format": format, "graph": graph})));
    } else {
        output.out.print(&graph);
    }
    Ok(ExitCode::Success)
}

fn report_of(run: &str, settings: &Settings) -> Result<Report, Failure> {
    let bundle = stead_bundle::resolve(run, &run_directories(settings))
        .map_err(|error| unresolved(error, FailureKind::Usage))?;
    let path = bundle.join(stead_bundle::REPORT);
    let invalid = |error: ReportError| {
        Failure::caused_by(FailureKind::Invalid, error).hint("a run that has not ended has no report yet")
    };
    let bytes =
        std::fs::read(&path).map_err(|source| invalid(ReportError::Read { path: path.clone(), source }))?;
    serde_json::from_slice(&bytes).map_err(|source| invalid(ReportError::Parse { path, source }))
}

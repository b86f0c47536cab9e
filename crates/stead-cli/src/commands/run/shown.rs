//! How a run of roles is shown: its phases as it goes, its end, and the same for programs.

use std::path::PathBuf;

use serde_json::{Value, json};
use stead_model::{ExitCode, RunStatus};
use stead_runner::Observer;

use super::act::Ended;
use crate::args::Sink;
use crate::commands::plan::present;
use crate::failure::Failure;
use crate::output::{Output, Style};
use crate::render::run::RunShown;
use crate::render::{Streaming, error_word, shown_path, text};
use crate::settings::Settings;

/// What is wanted to be seen of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// One document for programs at the end.
    pub(crate) json: bool,
    /// The journal as it is written.
    pub(crate) events: Option<Sink>,
    /// The output of roles.
    pub(crate) verbose: bool,
}

/// Where the run's bundle will be.
pub(crate) enum Where {
    /// In a new directory below this one.
    Below(PathBuf),
    /// Here.
    In(PathBuf),
}

/// Returns what shows a run as it goes.
pub(crate) fn observers(
    wanted: &Wanted,
    place: Where,
    settings: &Settings,
    output: &Output,
) -> Result<Vec<Box<dyn Observer>>, Failure> {
    let streaming = if wanted.verbose { Streaming::Logs } else { Streaming::Off };
    let (runs_dir, bundle) = match place {
        Where::Below(dir) => (Some(dir), None),
        Where::In(bundle) => (None, Some(bundle)),
    };
    let phases: Box<dyn Observer> = Box::new(RunShown::new(output.err.clone(), streaming, runs_dir, bundle));
    let events = present::events(wanted.events.as_ref(), settings, output)?;
    Ok([Some(phases), events].into_iter().flatten().collect())
}

/// Shows how a run ended and returns what the process exits with.
pub(crate) fn finish(ended: &Ended, wanted: &Wanted, settings: &Settings, output: &Output) -> ExitCode {
    if wanted.json {
        let mut text = serde_json::to_string_pretty(&document(ended)).unwrap_or_default();
        text.push('\n');
        output.out.print(&text);
    } else {
        let (handle, paint) = match wanted.events {
            // Standard output has the journal's lines and nothing else.
            Some(Sink::Stdout) => (&output.err, settings.stderr_paint),
            Some(Sink::File(_)) | None => (&output.out, settings.stdout_paint),
        };
        let report = &ended.report;
        let mut lines = Vec::new();
        if let Some(error) = ended.meta.error.as_ref().filter(|_| report.status != RunStatus::Success) {
            let mut of_error = error.lines().map(|line| text::clean(line).into_owned());
            let first = of_error.next().unwrap_or_default();
            let class = report.errors.first().and_then(|error| error.class);
            lines.push(format!("{} {first}", error_word(report, class, paint)));
            lines.extend(of_error);
        }
        lines.push(format!("Status: {}", paint.apply(Style::of_run(report.status), report.status.as_str())));
        if let Some(bundle) = &report.bundle {
            lines.push(format!("Bundle: {}", shown_path(bundle, &settings.current_dir)));
        }
        lines.push(String::new());
        handle.print(&lines.join("\n"));
    }
    ended.report.exit_code
}

/// Returns the run for programs: the keys of `run_meta.json`, the bundle, and how each role ended.
fn document(ended: &Ended) -> Value {
    let mut document = serde_json::to_value(&ended.meta).unwrap_or_default();
    let roles = ended.roles.iter().map(|(name, role)| {
        (name.clone(), json!({"status": role.status, "exit_code": role.exit_code, "signal": role.signal}))
    });
    document["exit_code"] = json!(ended.report.exit_code);
    document["bundle"] = json!(ended.report.bundle);
    document["roles"] = Value::Object(roles.collect());
    document
}

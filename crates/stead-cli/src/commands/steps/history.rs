//! `stead steps history`.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use stead_engine::compile::intents;
use stead_model::bundle::RunMeta;
use stead_model::duration::Short;
use stead_model::steps::{SelectionRow, StepsMeta};
use stead_model::time::Timestamp;
use stead_model::{EventKind, ExitCode, RunStatus, Status, StepMode};

use super::find;
use crate::args::StepsHistoryArgs;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::{json, one_line, table};
use crate::settings::Settings;

/// One run.
#[derive(Serialize)]
struct Row {
    run_id: String,
    started_at: Timestamp,
    catalogue: String,
    mode: StepMode,
    target: String,
    selection: SelectionRow,
    /// The command of the intent whose run it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    intent: Option<String>,
    /// A run's status, or `interrupted` if nobody works on it any more.
    outcome: String,
    exit_code: Option<ExitCode>,
    duration_ms: u64,
    done: usize,
    total: u32,
    bundle: String,
}

#[derive(Serialize)]
struct Document {
    schema: u32,
    runs: Vec<Row>,
}

pub(crate) fn run(
    args: &StepsHistoryArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let (start, wanted) = match args.catalogue.as_deref() {
        Some(typed) => {
            let catalogue = find::load(&find::one(Some(typed), settings)?)?;
            (catalogue.root, Some(catalogue.name.to_string()))
        }
        None => (find::all(settings)?.directory.unwrap_or_else(|| settings.current_dir.clone()), None),
    };
    let runs = settings.state_dir.from(&start).runs();
    let listing = stead_bundle::list(&[runs], None, None)
        .map_err(|error| Failure::caused_by(FailureKind::Invalid, error))?;
    let warn = |text: String| output.err.print_line(&format!("warning: {}", one_line(&text)));
    for problem in listing.problems {
        warn(Failure::caused_by(FailureKind::Invalid, problem).message());
    }
    let mut rows = Vec::new();
    for bundle in listing.bundles.iter().filter(|bundle| bundle.kind.as_deref() == Some("steps")) {
        if rows.len() == args.limit {
            break;
        }
        let path = Path::new(&bundle.path);
        match stead_bundle::load_meta(path) {
            Ok(RunMeta { steps: Some(steps), .. })
                if wanted.as_ref().is_some_and(|name| *name != steps.catalogue) => {}
            Ok(meta) => rows.extend(row(path, &meta)),
            Err(error) => warn(Failure::caused_by(FailureKind::Invalid, error).message()),
        }
    }
    if args.json {
        output.out.print(&json::document(&Document { schema: 1, runs: rows }));
    } else if rows.is_empty() {
        output.err.print_line("no runs of steps");
    } else {
        output.out.print(&to_text(&rows));
    }
    Ok(ExitCode::Success)
}

fn row(bundle: &Path, meta: &RunMeta) -> Option<Row> {
    let steps: &StepsMeta = meta.steps.as_deref()?;
    let is_running = meta.status == RunStatus::Running;
    let lives =
        || stead_bundle::holder_of(&bundle.join(stead_bundle::LOCK)).is_ok_and(|holder| holder.is_some());
    let seconds = Duration::try_from_secs_f64(meta.duration_seconds).unwrap_or_default();
    Some(Row {
        run_id: meta.run_id.to_string(),
        started_at: meta.started_at,
        catalogue: steps.catalogue.clone(),
        mode: steps.mode,
        target: steps.target.clone(),
        selection: steps.selection.clone(),
        intent: steps.intent.clone(),
        outcome: if is_running && !lives() { "interrupted" } else { meta.status.as_str() }.to_owned(),
        exit_code: meta.exit_code,
        duration_ms: u64::try_from(seconds.as_millis()).unwrap_or(u64::MAX),
        done: if is_running {
            done_so_far(bundle)
        } else {
            steps_among(meta.phases_completed.iter().map(String::as_str))
        },
        total: steps.steps,
        bundle: bundle.display().to_string(),
    })
}

/// Counts the steps that a run without end has done, from its journal.
fn done_so_far(bundle: &Path) -> usize {
    let Ok(read) = stead_runner::journal::read(&bundle.join(stead_bundle::EVENTS)) else { return 0 };
    let done = read.events.iter().filter_map(|event| {
        let EventKind::TaskFinished { task, result } = &event.kind else { return None };
        matches!(result.status, Status::Changed | Status::Unchanged).then(|| task.as_str())
    });
    steps_among(done)
}

/// Counts the steps among tasks: the edit and the commit of an intent are none.
fn steps_among<'t>(tasks: impl Iterator<Item = &'t str>) -> usize {
    let is_step = |name: &&str| *name != intents::EDIT && *name != intents::COMMIT;
    tasks.filter(is_step).collect::<BTreeSet<_>>().len()
}

fn to_text(rows: &[Row]) -> String {
    let header =
        ["RUN", "STARTED", "CATALOGUE", "MODE", "TARGET", "SELECTION", "OUTCOME", "EXIT", "DURATION", "DONE"];
    let cells = rows.iter().map(|row| {
        [
            one_line(&row.run_id),
            // To the second is enough to find a run by.
            format!("{}Z", row.started_at.to_string().split('.').next().unwrap_or_default()),
            one_line(&row.catalogue),
            row.mode.to_string(),
            one_line(&row.target),
            one_line(&row.intent.clone().unwrap_or_else(|| selection(&row.selection))),
            row.outcome.clone(),
            row.exit_code.map_or_else(|| "-".to_owned(), |code| code.code().to_string()),
            Short::from_millis(row.duration_ms).to_string(),
            format!("{}/{}", row.done, row.total),
        ]
    });
    let rows: Vec<_> = std::iter::once(header.map(str::to_owned)).chain(cells).collect();
    table::fitting(&rows, table::width_of_stdout())
}

/// Returns what was selected in few words.
fn selection(selection: &SelectionRow) -> String {
    let list =
        |flag: &str, tokens: &[String]| (!tokens.is_empty()).then(|| format!("{flag} {}", tokens.join(",")));
    let one = |flag: &str, token: &Option<String>| token.as_ref().map(|token| format!("{flag} {token}"));
    let parts = [
        list("only", &selection.only),
        list("skip", &selection.skip),
        one("from", &selection.from),
        one("until", &selection.until),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "all".to_owned() } else { parts.join(" ") }
}

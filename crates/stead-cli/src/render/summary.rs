//! What a person reads when a run has ended.

use std::path::Path;

use stead_model::{ErrorClass, ExitCode, Report, RunStatus, Status};

use super::{shown_path, text};
use crate::failure::FailureKind;
use crate::output::{Paint, Style};

/// What to do about something another run holds.
pub(crate) const WAIT_LOCK: &str = "wait for that run to end: `--wait-lock 5m` does, for five minutes";

/// How many failed tasks are listed; the report has all.
const MOST_FAILED: usize = 20;

/// Returns the end-of-run block, newline included: what failed, what to do, and the two summary lines. Paths below `here`
/// are relative.
pub fn to_text(report: &Report, here: &Path, paint: Paint) -> String {
    let mut lines = Vec::new();
    let failed: Vec<_> = report.tasks().iter().filter(|row| row.status == Status::Failed).collect();
    for row in failed.iter().take(MOST_FAILED) {
        let error = row.error.as_deref().unwrap_or("no error was given");
        lines.push(format!("{} {}: {}", paint.apply(Style::Bad, "failed:"), row.name, text::one_line(error)));
    }
    if failed.len() > MOST_FAILED {
        lines.push(format!("… and {} more failed", failed.len() - MOST_FAILED));
    }
    for error in report.errors.iter().filter(|error| error.task.is_none()) {
        lines.push(format!("{} {}", error_word(report, error.class, paint), text::one_line(&error.message)));
    }
    lines.extend(lock_hint(report).lines().map(str::to_owned));
    if let Some(rollback) = &report.rollback {
        let names = |tasks: &[stead_model::TaskName]| {
            tasks.iter().map(|task| task.as_str()).collect::<Vec<_>>().join(", ")
        };
        for (word, tasks) in [
            ("undone", &rollback.done),
            ("undo failed", &rollback.failed),
            ("changed, no undo", &rollback.missing),
        ] {
            if !tasks.is_empty() {
                lines.push(format!("{word}: {}", names(tasks)));
            }
        }
    }
    let mut summary = report.summary().lines();
    if let Some(first) = summary.next() {
        lines.push(paint.apply(Style::of_run(report.status), first));
    }
    lines.extend(summary.map(str::to_owned));
    if let Some(bundle) = &report.bundle {
        lines.push(format!("Bundle: {}", shown_path(bundle, here)));
        if let Some(run) = report.run_id.as_ref().filter(|_| can_be_resumed(report)) {
            let hint = paint.apply(Style::Strong, "hint:");
            lines.push(format!("{hint} stead resume {run}{}", rerun_flags(report)));
        }
    }
    lines.push(String::new());
    lines.join("\n")
}

/// Returns how an error of a run begins: with a code that `stead explain` knows, of its class, else of how the run ended.
pub(crate) fn error_word(report: &Report, class: Option<ErrorClass>, paint: Paint) -> String {
    paint.apply(Style::Bad, &format!("error[{}]:", error_code(report, class)))
}

/// Returns the code of an error of a run: of its class, else of how the run ended.
pub(crate) fn error_code(report: &Report, class: Option<ErrorClass>) -> String {
    let of_run = || FailureKind::of(report.exit_code).code().to_owned();
    class.map_or_else(of_run, |class| format!("failed/{class}"))
}

/// Returns what to do about a run that could not have its locks, newline included; nothing for others.
pub(crate) fn lock_hint(report: &Report) -> String {
    if report.exit_code == ExitCode::Locked { format!("  = help: {WAIT_LOCK}\n") } else { String::new() }
}

/// Tasks that were interrupted only go on once somebody says that they may be run again.
fn rerun_flags(report: &Report) -> String {
    let interrupted = report.tasks.iter().filter(|row| row.class == Some(ErrorClass::Interrupted));
    interrupted.map(|row| format!(" --rerun {}", row.name)).collect()
}

/// A success has nothing left to do, and a run that was rolled back must start anew.
fn can_be_resumed(report: &Report) -> bool {
    match report.status {
        RunStatus::Success => false,
        RunStatus::Running | RunStatus::Failed | RunStatus::Timeout | RunStatus::Cancelled => {
            report.rollback.is_none()
        }
    }
}

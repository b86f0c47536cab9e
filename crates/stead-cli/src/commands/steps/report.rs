//! What a report of steps has beyond that of every run, and what is shown of it.

use std::collections::BTreeMap;

use serde_json::json;
use stead_model::event::Prediction;
use stead_model::plan::Section;
use stead_model::report::TaskRow;
use stead_model::steps::{ConfigRow, StepOutcome, StepRow, StepsReport};
use stead_model::{Diagnostics, Report, TaskName};

use super::load::Configured;
use super::plan::Planned;
use crate::failure::{Failure, FailureKind};

/// Adds to a report what is known of its steps.
pub(crate) fn complete(report: &mut Report, mut steps: StepsReport, rows: Vec<(TaskName, StepRow)>) {
    let mut rows: BTreeMap<TaskName, StepRow> = rows.into_iter().collect();
    let mut outcomes = Vec::new();
    for task in &mut report.tasks {
        let Some(mut row) = rows.remove(&task.name) else { continue };
        match outcome_of(task) {
            Some(outcome) => {
                row.assumed = outcome.assumed;
                row.exit_code = outcome.exit_code;
                row.checks.clone_from(&outcome.checks);
                row.outputs.clone_from(&outcome.outputs);
                outcomes.push(outcome);
            }
            None => row.assumed = task.prediction == Some(Prediction::Assumed),
        }
        task.step = Some(Box::new(row));
    }
    steps.add(&outcomes);
    steps.bundle.clone_from(&report.bundle);
    report.steps = Some(Box::new(steps));
}

fn outcome_of(task: &TaskRow) -> Option<StepOutcome> {
    serde_json::from_value(task.data.clone()?).ok()
}

/// Returns the failure of a plan that is not run, with the plan for the JSON document.
pub(crate) fn refused(
    kind: FailureKind,
    problems: Diagnostics,
    configured: &Configured,
    planned: &Planned,
) -> Failure {
    let tasks: Vec<TaskRow> = planned.rows().into_iter().map(|(name, step)| not_run(name, step)).collect();
    Failure::of(kind, problems.sorted())
        .knowing("steps", json!(planned.report(configured)))
        .knowing("tasks", json!(tasks))
}

fn not_run(name: TaskName, step: StepRow) -> TaskRow {
    TaskRow { step: Some(Box::new(step)), ..TaskRow::not_run(name, Section::Main) }
}

/// Returns the lines of `Config:`.
pub(crate) fn config_text(rows: &[ConfigRow]) -> String {
    let mut text = String::from("Config:\n");
    for row in rows {
        let value = crate::render::visible(&row.value.replace('\n', "\\n"));
        text.push_str(&format!("  {}={value}  # {}\n", row.key, row.source));
    }
    text
}

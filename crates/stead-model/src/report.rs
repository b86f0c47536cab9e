//! The report: one row per task in plan order, and a summary.

use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::duration::Short;
use crate::event::{Counts, Mode, Prediction};
use crate::exit_code::ExitCode;
use crate::id::{HostName, PlanName, RunId, TaskName};
use crate::plan::{Digest, Section};
use crate::status::{Cause, ErrorClass, RunStatus, Status};
use crate::steps::{StepRow, StepsReport};
use crate::time::Timestamp;

/// What a run did. The JSON form is `report.json` and the output of `--json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of this format: 1.
    pub schema: u32,
    /// The run's id; none if nothing was recorded.
    pub run_id: Option<RunId>,
    /// The bundle's directory, if there is one.
    pub bundle: Option<String>,
    /// The plan's name.
    pub plan: PlanName,
    /// The plan's hash.
    pub plan_hash: Digest,
    /// Whether it acted.
    pub mode: Mode,
    /// How the run ended.
    pub status: RunStatus,
    /// What the process exits with.
    pub exit_code: ExitCode,
    /// When its first segment began.
    pub started_at: Timestamp,
    /// When its last segment ended.
    pub finished_at: Timestamp,
    /// How long all segments took together.
    pub duration_ms: u64,
    /// How many processes worked on it, one after the other.
    pub segments: u32,
    /// The two lines of [`Report::summary`].
    pub summary: String,
    /// How many tasks ended how.
    pub counts: Counts,
    /// One row per task, in plan order.
    pub tasks: Vec<TaskRow>,
    /// Every failure.
    pub errors: Vec<ErrorRow>,
    /// Everything else a person should know.
    pub warnings: Vec<Warning>,
    /// What was undone.
    pub rollback: Option<Rollback>,
    /// What a run of steps adds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<Box<StepsReport>>,
}

/// One task's row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskRow {
    /// Its name.
    pub name: TaskName,
    /// `main` or `finally`.
    pub section: Section,
    /// How it ended.
    pub status: Status,
    /// Whether something is different now.
    pub changed: bool,
    /// Whether hosts failed and the policy tolerated it.
    pub partial: bool,
    /// Why it was skipped.
    pub cause: Option<Cause>,
    /// Why it did not run, in words.
    pub reason: Option<String>,
    /// What kind of error.
    pub class: Option<ErrorClass>,
    /// The error.
    pub error: Option<String>,
    /// The most attempts any host took.
    pub attempts: u32,
    /// When it took its first slot.
    pub started_at: Option<Timestamp>,
    /// How long it took, for reading in code; the file has `duration_ms`.
    #[serde(rename = "duration_ms", with = "crate::duration::as_millis")]
    pub duration: Duration,
    /// Its value; with several hosts it is in their rows.
    pub data: Option<Value>,
    /// How its undo ended.
    pub undo: Option<Status>,
    /// How sure a dry run is.
    pub prediction: Option<Prediction>,
    /// One row per host, in target order.
    pub hosts: Vec<HostRow>,
    /// What a run of steps adds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Box<StepRow>>,
}

impl TaskRow {
    /// Returns the row of a task that has not run.
    pub fn not_run(name: TaskName, section: Section) -> Self {
        Self {
            name,
            section,
            status: Status::NotRun,
            changed: false,
            partial: false,
            cause: None,
            reason: None,
            class: None,
            error: None,
            attempts: 0,
            started_at: None,
            duration: Duration::ZERO,
            data: None,
            undo: None,
            prediction: None,
            hosts: Vec::new(),
            step: None,
        }
    }
}

/// One host's row of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostRow {
    /// Which host.
    pub host: HostName,
    /// How it ended.
    pub status: Status,
    /// Whether something is different now.
    pub changed: bool,
    /// How many attempts were made.
    pub attempts: u32,
    /// What kind of error.
    pub class: Option<ErrorClass>,
    /// The error.
    pub error: Option<String>,
    /// Why it did not run, or why nothing had to be done.
    pub reason: Option<String>,
    /// A command's exit code.
    pub exit_code: Option<i32>,
    /// What it found or made.
    pub data: Option<Value>,
    /// What changed.
    pub diff: Option<Value>,
    /// How long, over all attempts.
    pub duration_ms: u64,
    /// The parts of a sequence.
    pub parts: Vec<PartRow>,
}

/// One part of a sequence on one host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartRow {
    /// Its name.
    pub name: TaskName,
    /// How it ended.
    pub status: Status,
    /// Whether something is different now.
    pub changed: bool,
    /// The error.
    pub error: Option<String>,
}

/// One failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorRow {
    /// Of which task; none if the run itself failed.
    pub task: Option<TaskName>,
    /// On which host.
    pub host: Option<HostName>,
    /// What kind of error.
    pub class: Option<ErrorClass>,
    /// The error.
    pub message: String,
}

/// Something a person should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// Its stable code.
    pub code: String,
    /// One sentence.
    pub text: String,
    /// The role of a run that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

impl Warning {
    /// Returns a warning about the run as a whole.
    pub fn new(code: impl Into<String>, text: impl Into<String>) -> Self {
        Self { code: code.into(), text: text.into(), role: None }
    }

    /// Returns this warning, about `role`.
    pub fn of_role(self, role: impl Into<String>) -> Self {
        Self { role: Some(role.into()), ..self }
    }
}

/// What was undone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollback {
    /// Undone.
    pub done: Vec<TaskName>,
    /// The undo failed.
    pub failed: Vec<TaskName>,
    /// Changed, and without a way to undo it.
    pub missing: Vec<TaskName>,
}

impl Report {
    /// Returns the two lines that say how a run went.
    pub fn summary(&self) -> &str {
        &self.summary
    }

    /// Returns the rows in plan order.
    pub fn tasks(&self) -> &[TaskRow] {
        &self.tasks
    }

    /// Returns the row of the task called `name`.
    pub fn task(&self, name: &str) -> Option<&TaskRow> {
        self.tasks.iter().find(|row| row.name.as_str() == name)
    }

    /// Whether the run ended well.
    pub fn is_success(&self) -> bool {
        self.status == RunStatus::Success
    }
}

/// Returns the two lines that say how a run went, without a final newline.
pub fn summarize(counts: Counts, mode: Mode, duration_ms: u64) -> String {
    let mut line = String::new();
    if mode == Mode::DryRun {
        line.push_str("dry run: ");
    }
    let noun = if counts.tasks == 1 { "task" } else { "tasks" };
    write!(line, "{} {noun}", counts.tasks).expect("writing to memory does not fail");
    let mut separator = ": ";
    for status in Status::ALL {
        let count = counts.of(*status);
        if count > 0 {
            write!(line, "{separator}{count} {status}").expect("writing to memory does not fail");
            separator = ", ";
        }
    }
    format!("{line}\nTotal duration: {}", Short::from_millis(duration_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_read_as_the_contract_says() {
        let mut counts = Counts::default();
        assert_eq!(summarize(counts, Mode::Run, 0), "0 tasks\nTotal duration: 0ms");
        counts.add(Status::Unknown);
        assert_eq!(summarize(counts, Mode::DryRun, 0), "dry run: 1 task: 1 unknown\nTotal duration: 0ms");
        let mut counts = Counts::default();
        for status in [Status::Skipped, Status::Changed, Status::Changed, Status::Unchanged] {
            counts.add(status);
        }
        assert_eq!(
            summarize(counts, Mode::Run, 12_345),
            "4 tasks: 2 changed, 1 unchanged, 1 skipped\nTotal duration: 12.3s"
        );
    }
}

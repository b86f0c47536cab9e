//! `stead job …`: commands that agents of nodes run.

pub(super) mod below;
pub(super) mod cancel;
pub(super) mod list;
pub(super) mod show;
pub(super) mod submit;
mod way;

use stead_model::ExitCode;
use stead_model::node::JobId;
use stead_model::node::wire::{Job, JobState};

use crate::output::Output;
use crate::render::{json, one_line};

/// Prints a job: what it wrote goes where it would have gone here.
fn print(job: &Job<JobId>, is_json: bool, output: &Output) {
    if is_json {
        output.out.print(&json::document(job));
        return;
    }
    output.err.print_line(&line(job));
    if let Some(error) = &job.error {
        output.err.print_line(&one_line(error));
    }
    output.out.print(&job.stdout);
    output.err.print(&job.stderr);
    if job.truncated {
        output.err.print_line("[warning] job/truncated: it wrote more than is kept");
    }
}

/// Returns a job on one line.
fn line(job: &Job<JobId>) -> String {
    let rc = job.rc.map_or_else(String::new, |rc| format!(" ({rc})"));
    format!("{}  {}  {}{rc}  {}", job.id, job.node, job.state.as_str(), one_line(&job.argv.join(" ")))
}

/// Returns what a command ends with that waited for a job.
fn exit_code(state: JobState) -> ExitCode {
    match state {
        JobState::Succeeded => ExitCode::Success,
        JobState::Queued
        | JobState::Delivered
        | JobState::Running
        | JobState::Failed
        | JobState::Cancelled
        | JobState::Expired
        | JobState::Lost => ExitCode::Failed,
    }
}

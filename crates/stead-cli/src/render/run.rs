//! Shows a run of roles while it goes on: one line per phase when it is decided, and role output if it is wanted.

use std::path::PathBuf;

use stead_model::duration::Short;
use stead_model::event::{Event, EventKind};
use stead_model::{Status, TaskName};
use stead_runner::Observer;

use super::lines::Lines;
use super::logs::Logs;
use super::{Streaming, plain, text};
use crate::output::Handle;

/// Shows phases on a stream.
pub(crate) struct RunShown {
    out: Handle,
    streaming: Streaming,
    lines: Lines,
    logs: Logs,
}

impl RunShown {
    /// Returns what shows a run that is recorded below `runs_dir`, or in `bundle`, on `out`.
    pub(crate) fn new(
        out: Handle,
        streaming: Streaming,
        runs_dir: Option<PathBuf>,
        bundle: Option<PathBuf>,
    ) -> Self {
        Self { out, streaming, lines: Lines::of_roles(), logs: Logs::new(runs_dir, bundle) }
    }
}

impl Observer for RunShown {
    fn on_event(&mut self, event: &Event) {
        self.logs.on_event(&event.kind);
        let Self { out, lines, logs, .. } = self;
        if let EventKind::Log { task, host, stream, file, offset, len, .. } = &event.kind
            && self.streaming != Streaming::Off
        {
            logs.read(file, *offset, *len, |bytes| {
                lines.push(task, host.as_ref(), *stream, bytes, |line| out.print_line(line));
            });
        }
        if let EventKind::RoleExited(exited) = &event.kind
            && let Ok(role) = TaskName::parse(&exited.role)
        {
            lines.finish(&role, None, |line| out.print_line(line));
        }
        if let Some(line) = line_of(&event.kind) {
            out.print_line(&line);
        }
    }
}

/// Returns the line of an event of a run of roles, if it has one: one per phase, when it is decided.
pub(crate) fn line_of(kind: &EventKind) -> Option<String> {
    match kind {
        EventKind::TaskFinished { task, result } => {
            let word = match result.status {
                Status::Changed | Status::Unchanged => "done",
                Status::Skipped => "skipped",
                Status::Failed => "failed",
                Status::Cancelled => "cancelled",
                Status::NotRun | Status::Unknown => "not_run",
            };
            let took = (result.status != Status::Skipped).then_some(result.duration_ms);
            Some(phase_line(word, task, took, result.error.as_deref().or(result.reason.as_deref())))
        }
        EventKind::TaskSkipped { task, reason, .. } => Some(phase_line("skipped", task, None, Some(reason))),
        EventKind::TaskNotRun { task, reason } => Some(phase_line("not_run", task, None, Some(reason))),
        EventKind::RunStarted(_)
        | EventKind::RunResumed(_)
        | EventKind::Warning { .. }
        | EventKind::CancelRequested { .. } => plain::line_of(kind),
        EventKind::AgentLost(lost) => {
            let error = lost.error.as_deref().unwrap_or("the connection was lost");
            Some(format!("[lost] agent {}: {}", lost.agent, text::one_line(error)))
        }
        EventKind::AgentBack(back) => Some(format!("[back] agent {}", back.agent)),
        EventKind::SectionStarted { .. }
        | EventKind::FactsGathered { .. }
        | EventKind::TaskReady { .. }
        | EventKind::TaskStarted { .. }
        | EventKind::AttemptStarted { .. }
        | EventKind::AttemptFailed { .. }
        | EventKind::Log { .. }
        | EventKind::PartFinished { .. }
        | EventKind::HostResult { .. }
        | EventKind::Confirmed { .. }
        | EventKind::UndoStarted { .. }
        | EventKind::UndoFinished { .. }
        | EventKind::AgentConnected(_)
        | EventKind::RoleStarted(_)
        | EventKind::RoleReady(_)
        | EventKind::RoleStop(_)
        | EventKind::RoleExited(_)
        | EventKind::Artifact(_)
        | EventKind::Node(_)
        | EventKind::Delegated { .. }
        | EventKind::RunFinished(_) => None,
    }
}

fn phase_line(word: &str, phase: &TaskName, duration_ms: Option<u64>, why: Option<&str>) -> String {
    let mut line = format!("[{word}] {phase}");
    if let Some(millis) = duration_ms {
        line.push_str(&format!(" {}", Short::from_millis(millis)));
    }
    if let Some(why) = why.and_then(|why| why.lines().next()) {
        line.push_str(&format!(": {}", text::one_line(why)));
    }
    line
}

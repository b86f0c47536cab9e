//! One line per event, for logs and pipes: no escape byte, ever.

use std::collections::HashSet;
use std::fmt::Write as _;

use stead_model::duration::Short;
use stead_model::event::{CancelReason, RowResult, Stream, TaskResult};
use stead_model::{Event, EventKind, HostName, Status, TaskName};
use stead_runner::Observer;

use super::lines::Lines;
use super::logs::Logs;
use super::{Differences, Options, Streaming, diff, text};
use crate::output::Handle;

/// Shows a run as plain lines.
pub struct Plain {
    out: Handle,
    streaming: Streaming,
    diff: Differences,
    logs: Logs,
    lines: Lines,
    // Invariant: holds the running tasks of several hosts; the others get no `[host]` lines.
    many_hosts: HashSet<TaskName>,
}

impl Plain {
    /// Returns a renderer that writes to `out`.
    pub fn new(out: Handle, options: Options) -> Self {
        Self {
            out,
            streaming: options.streaming,
            diff: options.diff,
            logs: Logs::new(options.runs_dir, options.bundle),
            lines: Lines::default(),
            many_hosts: HashSet::new(),
        }
    }

    fn show_rest(&mut self, task: &TaskName, host: Option<&HostName>) {
        let Self { out, lines, .. } = self;
        lines.finish(task, host, |line| out.print_line(line));
    }

    fn show_diff(&self, result: &RowResult) {
        if self.diff == Differences::Shown
            && let Some(difference) = &result.diff
        {
            let lines: String = diff::lines(difference).iter().map(|line| format!("  {line}\n")).collect();
            self.out.print(&lines);
        }
    }
}

impl Observer for Plain {
    fn on_event(&mut self, event: &Event) {
        self.logs.on_event(&event.kind);
        match &event.kind {
            EventKind::TaskStarted { task, hosts, .. } if hosts.len() > 1 => {
                self.many_hosts.insert(task.clone());
            }
            EventKind::Log { task, host, stream, file, offset, len, .. }
                if self.streaming == Streaming::Logs =>
            {
                let Self { out, lines, logs, .. } = self;
                logs.read(file, *offset, *len, |bytes| {
                    lines.push(task, host.as_ref(), *stream, bytes, |line| out.print_line(line));
                });
            }
            EventKind::AttemptFailed { task, host, .. } => self.show_rest(task, host.as_ref()),
            EventKind::HostResult { task, host, result, .. } => {
                self.show_rest(task, Some(host));
                if self.many_hosts.contains(task) {
                    self.out.print_line(&host_line(task, host, result));
                }
                self.show_diff(result);
                return;
            }
            EventKind::TaskFinished { task, .. } => {
                self.show_rest(task, None);
                self.many_hosts.remove(task);
            }
            EventKind::RunStarted(_)
            | EventKind::RunResumed(_)
            | EventKind::SectionStarted { .. }
            | EventKind::FactsGathered { .. }
            | EventKind::TaskReady { .. }
            | EventKind::TaskStarted { .. }
            | EventKind::AttemptStarted { .. }
            | EventKind::Log { .. }
            | EventKind::PartFinished { .. }
            | EventKind::TaskSkipped { .. }
            | EventKind::TaskNotRun { .. }
            | EventKind::Confirmed { .. }
            | EventKind::UndoStarted { .. }
            | EventKind::UndoFinished { .. }
            | EventKind::Warning { .. }
            | EventKind::AgentConnected(_)
            | EventKind::AgentLost(_)
            | EventKind::AgentBack(_)
            | EventKind::RoleStarted(_)
            | EventKind::RoleReady(_)
            | EventKind::RoleStop(_)
            | EventKind::RoleExited(_)
            | EventKind::Artifact(_)
            | EventKind::Node(_)
            | EventKind::Delegated { .. }
            | EventKind::CancelRequested { .. }
            | EventKind::RunFinished(_) => {}
        }
        if let Some(line) = line_of(&event.kind) {
            self.out.print_line(&line);
        }
    }

    fn on_output(&mut self, task: &TaskName, host: Option<&HostName>, stream: Stream, bytes: &[u8]) {
        if self.streaming == Streaming::Live {
            let Self { out, lines, .. } = self;
            lines.push(task, host, stream, bytes, |line| out.print_line(line));
        }
    }

    fn wants_output(&self) -> bool {
        self.streaming == Streaming::Live
    }
}

/// Returns the line of an event, if it has one of its own.
pub(crate) fn line_of(kind: &EventKind) -> Option<String> {
    let line = match kind {
        EventKind::RunStarted(started) => format!("[run] {} {}", started.plan, started.run_id),
        EventKind::RunResumed(resumed) => format!("[resumed] segment={}", resumed.segment),
        EventKind::TaskStarted { task, .. } => format!("[start] {task}"),
        EventKind::AttemptFailed { task, host, attempt, error, retry_in_ms, .. } => {
            let delay = Short::from_millis(*retry_in_ms);
            format!(
                "[retry] {} attempt={attempt} in {delay}: {}",
                at(task, host.as_ref()),
                text::one_line(error)
            )
        }
        EventKind::TaskFinished { task, result } => task_line(task.as_str(), result),
        EventKind::TaskSkipped { task, reason, .. } => decided(Status::Skipped, task.as_str(), Some(reason)),
        EventKind::TaskNotRun { task, reason } => decided(Status::NotRun, task.as_str(), Some(reason)),
        EventKind::Confirmed { task, answer } => {
            format!("[confirmed] {task}: {}", if *answer { "yes" } else { "no" })
        }
        EventKind::UndoStarted { task, .. } => format!("[undo] {task}"),
        EventKind::UndoFinished { task, status, error } => {
            let mut line = format!("[undone] {task} {status}");
            append(&mut line, error.as_deref());
            line
        }
        EventKind::Warning { code, text, .. } => {
            format!("[warning] {}: {}", text::one_line(code), text::one_line(text))
        }
        EventKind::CancelRequested { why, task } => match (why, task) {
            (CancelReason::Failure, Some(task)) => format!("[cancel] {task} failed"),
            (CancelReason::Failure, None) => "[cancel] the run cannot be recorded any more".to_owned(),
            (CancelReason::Signal, _) => "[cancel] signal".to_owned(),
            (CancelReason::Timeout, _) => "[cancel] timeout".to_owned(),
            (CancelReason::Api, _) => "[cancel] asked to stop".to_owned(),
        },
        EventKind::RunFinished(finished) => {
            let mut line =
                format!("[finished] {} {}", finished.status, Short::from_millis(finished.duration_ms));
            append(&mut line, finished.error.as_deref());
            line
        }
        EventKind::SectionStarted { .. }
        | EventKind::FactsGathered { .. }
        | EventKind::TaskReady { .. }
        | EventKind::AttemptStarted { .. }
        | EventKind::Log { .. }
        | EventKind::PartFinished { .. }
        | EventKind::HostResult { .. }
        | EventKind::AgentConnected(_)
        | EventKind::AgentLost(_)
        | EventKind::AgentBack(_)
        | EventKind::RoleStarted(_)
        | EventKind::RoleReady(_)
        | EventKind::RoleStop(_)
        | EventKind::RoleExited(_)
        | EventKind::Artifact(_)
        | EventKind::Node(_)
        | EventKind::Delegated { .. } => return None,
    };
    Some(line)
}

/// Returns `task@host`, or the task alone.
pub(crate) fn at(task: &TaskName, host: Option<&HostName>) -> String {
    host.map_or_else(|| task.to_string(), |host| format!("{task}@{host}"))
}

/// Returns the line of a task that never started: no duration.
pub(super) fn decided(status: Status, task: &str, reason: Option<&str>) -> String {
    let mut line = format!("[{status}] {task}");
    append(&mut line, reason);
    line
}

/// Returns the line of a task that has ended.
pub(super) fn task_line(task: &str, result: &TaskResult) -> String {
    if result.status == Status::Skipped {
        return decided(Status::Skipped, task, result.reason.as_deref());
    }
    let mut line = format!("[{}] {task} {}", result.status, Short::from_millis(result.duration_ms));
    if result.partial {
        line.push_str(" (partial)");
    }
    append(&mut line, explanation(result.status, result.error.as_deref(), result.reason.as_deref()));
    line
}

fn host_line(task: &TaskName, host: &HostName, result: &RowResult) -> String {
    let mut line = format!("[host] {task}@{host} {}", result.status);
    if !matches!(result.status, Status::Skipped | Status::NotRun) {
        write!(line, " {}", Short::from_millis(result.duration_ms)).expect("writing to memory does not fail");
    }
    append(&mut line, explanation(result.status, result.error.as_deref(), result.reason.as_deref()));
    line
}

/// Returns what is said about an end: of one that went well only what is to be known of the change.
pub(super) fn explanation<'a>(
    status: Status,
    error: Option<&'a str>,
    reason: Option<&'a str>,
) -> Option<&'a str> {
    match status {
        Status::Changed => reason,
        Status::Unchanged => None,
        Status::Failed | Status::Cancelled | Status::Unknown => error.or(reason),
        Status::Skipped | Status::NotRun => reason.or(error),
    }
}

fn append(line: &mut String, detail: Option<&str>) {
    if let Some(detail) = detail.filter(|detail| !detail.is_empty()) {
        line.push_str(": ");
        line.push_str(&text::one_line(detail));
    }
}

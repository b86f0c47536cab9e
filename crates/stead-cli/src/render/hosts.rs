//! The output of one command on many hosts: each line as it comes, its host in front.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use stead_model::event::Stream;
use stead_model::{Event, EventKind, HostName, TaskName};
use stead_runner::Observer;

use super::lines::Lines;
use super::text;
use crate::output::Output;

/// Shows the output of hosts, and counts it.
pub(crate) struct HostLines {
    output: Output,
    shown: Shown,
    stdout: Lines,
    stderr: Lines,
    written: Written,
}

/// Whether lines are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// They are.
    Yes,
    /// They come later, in one document.
    No,
}

/// How many bytes each host wrote on the fuller of its streams.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written(Arc<Mutex<BTreeMap<(HostName, Stream), u64>>>);

impl Written {
    /// Returns how many bytes `host` wrote on the stream it wrote more on.
    pub(crate) fn most(&self, host: &HostName) -> u64 {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |stream: Stream| counts.get(&(host.clone(), stream)).copied().unwrap_or(0);
        of(Stream::Stdout).max(of(Stream::Stderr))
    }

    fn add(&self, host: &HostName, stream: Stream, bytes: &[u8]) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry((host.clone(), stream)).or_default() += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    }
}

impl HostLines {
    /// Returns a reader that shows lines on the streams they were written to, and what it counts.
    pub(crate) fn new(output: Output, shown: Shown) -> (Self, Written) {
        let written = Written::default();
        let (stdout, stderr) = (Lines::of_hosts(), Lines::of_hosts());
        (Self { output, shown, stdout, stderr, written: written.clone() }, written)
    }
}

impl Observer for HostLines {
    fn on_event(&mut self, event: &Event) {
        match &event.kind {
            EventKind::HostResult { task, host, .. } => {
                let Self { output, stdout, stderr, .. } = self;
                stdout.finish(task, Some(host), |line| output.out.print_line(line));
                stderr.finish(task, Some(host), |line| output.err.print_line(line));
            }
            EventKind::Warning { code, text, .. } => {
                let line = format!("[warning] {}: {}", text::one_line(code), text::one_line(text));
                self.output.err.print_line(&line);
            }
            EventKind::RunStarted(_)
            | EventKind::RunResumed(_)
            | EventKind::SectionStarted { .. }
            | EventKind::FactsGathered { .. }
            | EventKind::TaskReady { .. }
            | EventKind::TaskStarted { .. }
            | EventKind::AttemptStarted { .. }
            | EventKind::AttemptFailed { .. }
            | EventKind::Log { .. }
            | EventKind::PartFinished { .. }
            | EventKind::TaskFinished { .. }
            | EventKind::TaskSkipped { .. }
            | EventKind::TaskNotRun { .. }
            | EventKind::Confirmed { .. }
            | EventKind::UndoStarted { .. }
            | EventKind::UndoFinished { .. }
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
    }

    fn on_output(&mut self, task: &TaskName, host: Option<&HostName>, stream: Stream, bytes: &[u8]) {
        let Some(on) = host else { return };
        self.written.add(on, stream, bytes);
        if self.shown == Shown::Yes {
            let Self { output, stdout, stderr, .. } = self;
            match stream {
                Stream::Stdout => stdout.push(task, host, stream, bytes, |line| output.out.print_line(line)),
                Stream::Stderr => stderr.push(task, host, stream, bytes, |line| output.err.print_line(line)),
            }
        }
    }

    fn wants_output(&self) -> bool {
        true
    }
}

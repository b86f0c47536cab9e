//! The last lines of stderr of tasks that may fail.
//!
//! They come from the log file that the task's `log` events name; without a record from the output as it
//! came; else from the result itself. Kept for running tasks only, and for few hosts of each.

use std::collections::HashMap;

use serde_json::Value;
use stead_model::event::RowResult;
use stead_model::{HostName, TaskName};

use crate::render::logs::{self, Logs};

/// How many lines are shown.
const LINES: usize = 20;
/// Of how many hosts of one task.
const HOSTS: usize = 3;
/// How much output is remembered without a record.
const REMEMBERED: usize = 16 * 1024;

/// Where the ends of stderr are.
#[derive(Debug)]
pub(super) struct Tails {
    recorded: bool,
    running: HashMap<TaskName, HashMap<Option<HostName>, End>>,
    kept: HashMap<TaskName, Vec<Tail>>,
}

#[derive(Debug)]
enum End {
    File { file: String, end: u64 },
    Bytes(Vec<u8>),
}

/// The last lines of one host's stderr.
#[derive(Debug)]
pub(super) struct Tail {
    pub(super) host: Option<HostName>,
    pub(super) lines: Vec<String>,
}

impl Tails {
    pub(super) fn new(recorded: bool) -> Self {
        Self { recorded, running: HashMap::new(), kept: HashMap::new() }
    }

    /// Whether log files have what is needed, so that output as it comes is not.
    pub(super) fn is_recorded(&self) -> bool {
        self.recorded
    }

    /// A piece of stderr went to a log file.
    pub(super) fn logged(&mut self, task: &TaskName, host: Option<&HostName>, file: &str, end: u64) {
        let ends = self.running.entry(task.clone()).or_default();
        ends.insert(host.cloned(), End::File { file: file.to_owned(), end });
    }

    /// A piece of stderr came.
    pub(super) fn said(&mut self, task: &TaskName, host: Option<&HostName>, bytes: &[u8]) {
        if self.recorded {
            return;
        }
        let ends = self.running.entry(task.clone()).or_default();
        let end = ends.entry(host.cloned()).or_insert_with(|| End::Bytes(Vec::new()));
        if let End::Bytes(remembered) = end {
            remembered.extend_from_slice(&bytes[bytes.len().saturating_sub(REMEMBERED)..]);
            // Cut seldom, so that many small pieces do not move the memory each time.
            if remembered.len() > 2 * REMEMBERED {
                remembered.drain(..remembered.len() - REMEMBERED);
            }
        }
    }

    /// A new attempt begins: what the last one said no longer matters.
    pub(super) fn forget(&mut self, task: &TaskName, host: Option<&HostName>) {
        if let Some(ends) = self.running.get_mut(task) {
            ends.remove(&host.cloned());
        }
    }

    /// A host ended well.
    pub(super) fn forget_host(&mut self, task: &TaskName, host: &HostName) {
        self.forget(task, Some(host));
    }

    /// Keeps the last lines of a host that failed.
    pub(super) fn keep(&mut self, task: &TaskName, host: &HostName, result: &RowResult, logs: &Logs) {
        let key = Some(host.clone());
        let end = self.running.get_mut(task).and_then(|ends| ends.remove(&key));
        let kept = self.kept.entry(task.clone()).or_default();
        if kept.len() < HOSTS {
            let mut lines = end.map(|end| end.lines(logs)).unwrap_or_default();
            if lines.is_empty()
                && let Some(stderr) =
                    result.data.as_ref().and_then(|data| data.get("stderr")).and_then(Value::as_str)
            {
                lines = logs::last_lines(stderr.as_bytes(), LINES);
            }
            kept.push(Tail { host: key, lines });
        }
    }

    /// Returns the last lines of a task that ended and forgets it. A functional task has no host rows.
    pub(super) fn take(&mut self, task: &TaskName, logs: &Logs) -> Vec<Tail> {
        let mut tails = self.kept.remove(task).unwrap_or_default();
        if let Some(end) = self.running.remove(task).and_then(|mut ends| ends.remove(&None))
            && tails.is_empty()
        {
            tails.push(Tail { host: None, lines: end.lines(logs) });
        }
        tails.retain(|tail| !tail.lines.is_empty());
        tails
    }
}

impl End {
    fn lines(&self, logs: &Logs) -> Vec<String> {
        match self {
            Self::File { file, end } => logs.tail(file, *end, LINES),
            Self::Bytes(bytes) => logs::last_lines(bytes, LINES),
        }
    }
}

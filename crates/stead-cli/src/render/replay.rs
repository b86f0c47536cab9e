//! A recorded run shown again: phases, what became of roles, and their output, line by line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stead_model::event::{RunKind, Stream};
use stead_model::run_plan::phases;
use stead_model::{Event, EventKind, TaskName};

use super::lines::Lines;
use super::logs::Logs;
use super::plain::line_of;
use super::text::one_line;
use crate::output::Handle;

/// Shows events of a journal and the output they point to.
pub(crate) struct Replayed {
    out: Handle,
    bundle: PathBuf,
    logs: Logs,
    lines: Lines,
    /// Only what concerns this role.
    role: Option<String>,
    /// How far each log was shown or passed over.
    ends: BTreeMap<String, u64>,
    /// Tasks whose output came, in the order it came.
    speakers: Vec<TaskName>,
}

impl Replayed {
    /// Returns a renderer that writes to `out` what the bundle at `bundle` recorded, only of `role` if there is one.
    pub(crate) fn new(out: Handle, bundle: PathBuf, role: Option<String>) -> Self {
        let logs = Logs::new(None, Some(bundle.clone()));
        let (lines, ends, speakers) = (Lines::default(), BTreeMap::new(), Vec::new());
        Self { out, bundle, logs, lines, role, ends, speakers }
    }

    /// Shows an event.
    pub(crate) fn show(&mut self, event: &Event) {
        if let EventKind::RunStarted(started) = &event.kind
            && started.kind == RunKind::Run
        {
            self.lines = Lines::of_tasks();
        }
        if let EventKind::Log { task, host, stream, file, offset, len, .. } = &event.kind {
            self.pass_over(event);
            if self.role.as_deref().is_none_or(|role| role == task.as_str()) {
                self.speak(task);
                let Self { out, lines, logs, .. } = self;
                logs.read(file, *offset, *len, |bytes| {
                    lines.push(task, host.as_ref(), *stream, bytes, |line| out.print_line(line));
                });
            }
            return;
        }
        if let Some(role) = ended(&event.kind)
            && let Ok(task) = TaskName::parse(role)
        {
            self.end_of_lines(&task);
        }
        if self.role.as_deref().is_none_or(|role| concerns(&event.kind, role))
            && let Some(line) = line_of(&event.kind).or_else(|| role_line(&event.kind))
        {
            self.out.print_line(&line);
        }
    }

    /// Takes note of an event that is not shown.
    pub(crate) fn pass_over(&mut self, event: &Event) {
        if let EventKind::Log { file, offset, len, .. } = &event.kind {
            let end = self.ends.entry(file.clone()).or_default();
            *end = (*end).max(offset.saturating_add(*len));
        }
    }

    /// Shows what is left: lines without an end, and output that a lost driver did not announce.
    pub(crate) fn finish(mut self) {
        let Ok(roles) = std::fs::read_dir(self.bundle.join("roles")) else { return self.end_all() };
        let mut names: Vec<String> =
            roles.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        names.retain(|name| self.role.as_ref().is_none_or(|role| role == name));
        for name in names {
            let Ok(task) = TaskName::parse(&name) else { continue };
            for stream in [Stream::Stdout, Stream::Stderr] {
                self.show_rest(&task, stream);
            }
        }
        self.end_all();
    }

    fn show_rest(&mut self, task: &TaskName, stream: Stream) {
        let file = format!("roles/{task}/{}.log", stream.as_str());
        let from = self.ends.get(&file).copied().unwrap_or(0);
        let len = length(&self.bundle.join(&file));
        if from >= len {
            return;
        }
        self.speak(task);
        // Told by the role alone, as all its output is.
        let Self { out, lines, logs, .. } = self;
        logs.read(&file, from, len - from, |bytes| {
            lines.push(task, None, stream, bytes, |line| out.print_line(line));
        });
    }

    fn speak(&mut self, task: &TaskName) {
        if !self.speakers.contains(task) {
            self.speakers.push(task.clone());
        }
    }

    fn end_of_lines(&mut self, task: &TaskName) {
        let Self { out, lines, .. } = self;
        lines.finish(task, None, |line| out.print_line(line));
    }

    fn end_all(&mut self) {
        for task in std::mem::take(&mut self.speakers) {
            self.end_of_lines(&task);
        }
    }
}

fn length(path: &Path) -> u64 {
    let found = path.symlink_metadata().ok().filter(std::fs::Metadata::is_file);
    found.map_or(0, |found| found.len())
}

/// Returns whose output is complete after an event.
fn ended(kind: &EventKind) -> Option<&str> {
    if let EventKind::TaskFinished { task, .. } = kind {
        return Some(task.as_str());
    }
    if let EventKind::RoleExited(exited) = kind { Some(&exited.role) } else { None }
}

/// Whether an event is about `role`: one of its phases, or something that happened to it.
fn concerns(kind: &EventKind, role: &str) -> bool {
    let of_task = |task: &TaskName| {
        let name = task.as_str();
        let is_phase = |phase: fn(&str) -> String| phase(role) == name;
        name == role
            || [phases::start_of, phases::ready_of, phases::done_of, phases::stop_of]
                .into_iter()
                .any(is_phase)
    };
    role_of(kind).map_or_else(|| kind.task().is_some_and(of_task), |of| of == role)
}

/// Returns the role that something happened to.
fn role_of(kind: &EventKind) -> Option<&str> {
    if let EventKind::RoleStarted(it) = kind {
        Some(&it.role)
    } else if let EventKind::RoleReady(it) = kind {
        Some(&it.role)
    } else if let EventKind::RoleStop(it) = kind {
        Some(&it.role)
    } else if let EventKind::RoleExited(it) = kind {
        Some(&it.role)
    } else if let EventKind::Artifact(it) = kind {
        Some(&it.role)
    } else if let EventKind::Warning { role, .. } = kind {
        role.as_deref()
    } else {
        None
    }
}

/// Returns the line of something that happened to a role.
fn role_line(kind: &EventKind) -> Option<String> {
    let line = if let EventKind::RoleStarted(it) = kind {
        format!("[role] {} started on {}", it.role, it.agent)
    } else if let EventKind::RoleReady(it) = kind {
        format!("[role] {} ready by {}", it.role, it.by)
    } else if let EventKind::RoleStop(it) = kind {
        format!("[role] {} gets {}: {}", it.role, it.signal, it.reason)
    } else if let EventKind::RoleExited(it) = kind {
        match (&it.signal, it.exit_code) {
            (Some(signal), _) => format!("[role] {} ended by {signal}", it.role),
            (None, Some(code)) => format!("[role] {} exited with {code}", it.role),
            (None, None) => format!("[role] {} ended", it.role),
        }
    } else {
        return None;
    };
    Some(one_line(&line).into_owned())
}

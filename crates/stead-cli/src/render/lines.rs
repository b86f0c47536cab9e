//! Makes lines of output that comes in pieces, one buffer per task, host and stream.

use std::collections::HashMap;

use stead_model::event::Stream;
use stead_model::{HostName, TaskName};

use super::text;

/// A line longer than this is shown in pieces, so that a program without newlines costs no memory.
const LONGEST: usize = 8 * 1024;

type Key = (TaskName, Option<HostName>, Stream);

/// Pieces of lines that have not ended yet.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    pending: HashMap<Key, Vec<u8>>,
    prefix: Prefix,
}

/// What stands before a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Prefix {
    /// `task@host`.
    #[default]
    TaskAndHost,
    /// The host, where there is but one task.
    Host,
    /// The task, which is a role of a run.
    Role,
    /// The task, where it is a role: it has but one host.
    Task,
}

impl Lines {
    /// Returns lines that begin with their host alone.
    pub(crate) fn of_hosts() -> Self {
        Self { prefix: Prefix::Host, ..Self::default() }
    }

    /// Returns lines that begin with their task alone.
    pub(crate) fn of_tasks() -> Self {
        Self { prefix: Prefix::Task, ..Self::default() }
    }

    /// Returns lines that begin with their role alone.
    pub(crate) fn of_roles() -> Self {
        Self { prefix: Prefix::Role, ..Self::default() }
    }

    /// Takes a piece of output and calls `show` with each `task@host | line` that is now complete.
    pub(crate) fn push(
        &mut self,
        task: &TaskName,
        host: Option<&HostName>,
        stream: Stream,
        bytes: &[u8],
        mut show: impl FnMut(&str),
    ) {
        let prefix = self.prefix;
        let pending = self.pending.entry((task.clone(), host.cloned(), stream)).or_default();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            pending.extend_from_slice(piece);
            while pending.len() > LONGEST {
                let rest = pending.split_off(boundary(pending));
                show(&prefixed(prefix, task, host, pending));
                *pending = rest;
            }
            if pending.last() == Some(&b'\n') {
                show(&prefixed(prefix, task, host, pending));
                pending.clear();
            }
        }
    }

    /// Shows what is left of a host's output, or of all of a task's if `host` is not given.
    pub(crate) fn finish(&mut self, task: &TaskName, host: Option<&HostName>, mut show: impl FnMut(&str)) {
        if self.pending.is_empty() {
            return;
        }
        let mut ended: Vec<Key> = self
            .pending
            .keys()
            .filter(|key| key.0 == *task && (host.is_none() || key.1.as_ref() == host))
            .cloned()
            .collect();
        ended.sort();
        for key in ended {
            if let Some(rest) = self.pending.remove(&key)
                && !rest.is_empty()
            {
                show(&prefixed(self.prefix, &key.0, key.1.as_ref(), &rest));
            }
        }
    }
}

/// Returns where to cut a long line so that no character is split.
fn boundary(bytes: &[u8]) -> usize {
    let is_start = |byte: u8| byte & 0b1100_0000 != 0b1000_0000;
    (LONGEST - 3..=LONGEST).rev().find(|at| bytes.get(*at).copied().is_some_and(is_start)).unwrap_or(LONGEST)
}

fn prefixed(prefix: Prefix, task: &TaskName, host: Option<&HostName>, line: &[u8]) -> String {
    let line = String::from_utf8_lossy(line);
    let line = text::clean(line.trim_end_matches(['\n', '\r'])).into_owned();
    match host {
        Some(host) if prefix == Prefix::Host => format!("{host} | {line}"),
        Some(host) if prefix == Prefix::TaskAndHost => format!("{task}@{host} | {line}"),
        Some(_) | None => format!("{task} | {line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_become_lines_and_the_rest_comes_at_the_end() {
        let task = TaskName::parse("t").unwrap();
        let host = HostName::parse("h").unwrap();
        let mut lines = Lines::default();
        let mut shown = Vec::new();
        lines.push(&task, Some(&host), Stream::Stdout, b"on", |line| shown.push(line.to_owned()));
        lines.push(&task, Some(&host), Stream::Stderr, b"err\n", |line| shown.push(line.to_owned()));
        lines.push(&task, Some(&host), Stream::Stdout, b"e\r\ntwo\nre", |line| shown.push(line.to_owned()));
        lines.finish(&task, Some(&host), |line| shown.push(line.to_owned()));
        assert_eq!(shown, ["t@h | err", "t@h | one", "t@h | two", "t@h | re"]);
        assert!(lines.pending.is_empty());
    }

    #[test]
    fn a_line_without_end_is_shown_in_bounded_pieces() {
        let task = TaskName::parse("t").unwrap();
        let mut lines = Lines::default();
        let (mut total, mut longest) = (0, 0);
        let bytes = "ä".repeat(50_000);
        for chunk in bytes.as_bytes().chunks(999) {
            lines.push(&task, None, Stream::Stdout, chunk, |line| {
                total += line.matches('ä').count();
                longest = longest.max(line.len());
                assert!(!line.contains('\u{fffd}'));
            });
        }
        lines.finish(&task, None, |line| total += line.matches('ä').count());
        assert_eq!(total, 50_000);
        assert!(longest <= LONGEST + 10);
    }
}

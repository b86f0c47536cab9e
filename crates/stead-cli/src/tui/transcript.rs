//! The last lines of some output, made of pieces as they come. Memory does not grow with output.

use std::collections::{BTreeMap, VecDeque};

use stead_model::event::Stream;

use super::scroll::wrap;
use crate::render::visible;

/// How many lines are kept.
const MOST_LINES: usize = 2_000;
/// A line longer than this is shown in pieces.
const LONGEST: usize = 4 * 1024;

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineKind {
    /// A role or task wrote it to standard output.
    Stdout,
    /// A role or task wrote it to standard error.
    Stderr,
    /// The run says it.
    Run,
    /// This screen says it.
    Note,
}

impl From<Stream> for LineKind {
    fn from(stream: Stream) -> Self {
        match stream {
            Stream::Stdout => Self::Stdout,
            Stream::Stderr => Self::Stderr,
        }
    }
}

/// The last lines of some output.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transcript {
    lines: VecDeque<(LineKind, String)>,
    /// Lines that have not ended, by who writes them.
    pending: BTreeMap<(String, Stream), Vec<u8>>,
    /// How many lines there are below the window; 0 follows the end.
    below: usize,
}

impl Transcript {
    /// Adds a line of our own.
    pub(crate) fn say(&mut self, kind: LineKind, text: &str) {
        self.push(kind, visible(text));
    }

    /// Takes a piece of what `who` writes; with a name, its lines begin with it.
    pub(crate) fn take(&mut self, who: &str, stream: Stream, bytes: &[u8]) {
        let key = (who.to_owned(), stream);
        let mut pending = self.pending.remove(&key).unwrap_or_default();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            pending.extend_from_slice(piece);
            while pending.len() > LONGEST {
                let rest = pending.split_off(boundary(&pending));
                self.push(stream.into(), shown(who, &pending));
                pending = rest;
            }
            if pending.last() == Some(&b'\n') {
                self.push(stream.into(), shown(who, &pending));
                pending.clear();
            }
        }
        if !pending.is_empty() {
            self.pending.insert(key, pending);
        }
    }

    /// Scrolls by some lines, down if positive.
    pub(crate) fn by(&mut self, lines: isize) {
        let most = self.all().count().saturating_sub(1);
        self.below = self.below.min(most).saturating_add_signed(-lines).min(most);
    }

    /// Goes to the first line.
    pub(crate) fn show_start(&mut self) {
        self.below = self.all().count().saturating_sub(1);
    }

    /// Follows the end again.
    pub(crate) fn follow_end(&mut self) {
        self.below = 0;
    }

    /// Returns how many lines there are below the window.
    pub(crate) fn below(&self) -> usize {
        self.below
    }

    /// Returns the rows of a window, the newest last.
    pub(crate) fn rows(&self, width: usize, height: usize) -> Vec<(LineKind, String)> {
        let mut rows = VecDeque::new();
        let all: Vec<(LineKind, String)> = self.all().collect();
        let end = all.len().saturating_sub(self.below);
        for (kind, text) in all[..end].iter().rev() {
            for piece in wrap(text, width).into_iter().rev() {
                rows.push_front((*kind, piece.to_owned()));
            }
            if rows.len() >= height {
                break;
            }
        }
        // Scrolled to the top, the beginning of the first line counts more than its end.
        let extra = if end <= 1 { 0 } else { rows.len().saturating_sub(height) };
        let further = all[end..].iter().flat_map(|(kind, text)| {
            wrap(text, width).into_iter().map(|piece| (*kind, piece.to_owned())).collect::<Vec<_>>()
        });
        rows.into_iter().skip(extra).chain(further).take(height).collect()
    }

    /// Returns every line, those that have not ended last.
    pub(crate) fn all(&self) -> impl Iterator<Item = (LineKind, String)> {
        let unfinished =
            self.pending.iter().map(|((who, stream), bytes)| ((*stream).into(), shown(who, bytes)));
        self.lines.iter().cloned().chain(unfinished)
    }

    fn push(&mut self, kind: LineKind, text: String) {
        if self.lines.len() == MOST_LINES {
            self.lines.pop_front();
        }
        self.lines.push_back((kind, text));
        if self.below > 0 {
            self.below += 1;
        }
    }
}

/// Returns where to cut a long line so that no character is split.
fn boundary(bytes: &[u8]) -> usize {
    let is_start = |byte: u8| byte & 0b1100_0000 != 0b1000_0000;
    (LONGEST - 3..=LONGEST).rev().find(|at| bytes.get(*at).copied().is_some_and(is_start)).unwrap_or(LONGEST)
}

fn shown(who: &str, line: &[u8]) -> String {
    let line = String::from_utf8_lossy(line);
    let line = visible(line.trim_end_matches(['\n', '\r']));
    if who.is_empty() { line } else { format!("{who} | {line}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(rows: Vec<(LineKind, String)>) -> Vec<String> {
        rows.into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn pieces_become_lines_and_what_has_not_ended_is_shown() {
        let mut transcript = Transcript::default();
        transcript.take("", Stream::Stdout, b"one\ntw");
        transcript.take("", Stream::Stderr, b"\x1b[31mbad\x1b[0m\n");
        assert_eq!(texts(transcript.rows(20, 5)), ["one", "bad", "tw"]);
        transcript.take("", Stream::Stdout, b"o\n");
        transcript.take("client", Stream::Stdout, b"three\n");
        assert_eq!(texts(transcript.rows(20, 5)), ["one", "bad", "two", "client | three"]);
        assert_eq!(texts(transcript.rows(9, 2)), ["client | ", "three"]);
    }

    #[test]
    fn only_the_last_lines_are_kept_and_a_scrolled_window_stays() {
        let mut transcript = Transcript::default();
        for i in 0..MOST_LINES + 10 {
            transcript.take("", Stream::Stdout, format!("{i}\n").as_bytes());
        }
        assert_eq!(transcript.all().count(), MOST_LINES);
        transcript.by(-3);
        let before = transcript.rows(20, 4);
        transcript.take("", Stream::Stdout, b"new\n");
        assert_eq!(transcript.rows(20, 4), before);
        transcript.follow_end();
        assert_eq!(texts(transcript.rows(20, 1)), ["new"]);
        transcript.show_start();
        assert_eq!(texts(transcript.rows(20, 3)), ["11", "12", "13"]);
        transcript.by(isize::MAX);
        assert_eq!(transcript.below(), 0);
    }

    #[test]
    fn a_line_without_end_costs_no_memory() {
        let mut transcript = Transcript::default();
        transcript.take("", Stream::Stdout, &vec![b'x'; 1 << 20]);
        assert!(transcript.pending.values().map(Vec::len).sum::<usize>() <= LONGEST);
        assert_eq!(transcript.all().map(|(_, line)| line.len()).sum::<usize>(), 1 << 20);
    }
}

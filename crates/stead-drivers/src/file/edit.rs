//! A text file as lines, edited without touching what is not meant: line ends, a missing final newline and bytes
//! that are not UTF-8 stay as they are.

use regex::bytes::Regex;
use stead_runner::operation::{OpError, Params};

/// Files that are edited by line are held in memory.
pub(crate) const LARGEST: u64 = 64 << 20;

/// The lines of a file, each with its end.
pub(crate) struct Lines {
    lines: Vec<Vec<u8>>,
}

/// Where new lines go.
pub(crate) enum Place {
    After(Regex),
    Before(Regex),
    Start,
    End,
}

impl Place {
    /// Returns the place `after` and `before` name.
    pub(crate) fn new(params: &Params) -> Result<Self, OpError> {
        Ok(match (params.text("after"), params.text("before")) {
            (Some("EOF") | None, None) | (None, Some("EOF")) => Self::End,
            (Some("BOF"), None) | (None, Some("BOF")) => Self::Start,
            (Some(after), None) => Self::After(regex("after", after)?),
            (None, Some(before)) => Self::Before(regex("before", before)?),
            (Some(_), Some(_)) => {
                return Err(OpError::invalid("only one of `after` and `before` may be given"));
            }
        })
    }
}

/// Returns the regular expression of parameter `name`.
pub(crate) fn regex(name: &str, pattern: &str) -> Result<Regex, OpError> {
    Regex::new(pattern)
        .map_err(|error| OpError::invalid(format!("`{name}` is not a regular expression: {error}")))
}

impl Lines {
    /// Splits content into lines.
    pub(crate) fn new(content: &[u8]) -> Self {
        Self { lines: content.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect() }
    }

    /// Returns the whole content.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.lines.concat()
    }

    /// Returns the number of lines.
    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }

    /// Returns line `i` without its end.
    pub(crate) fn text(&self, i: usize) -> &[u8] {
        let line = &self.lines[i];
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        line.strip_suffix(b"\r").unwrap_or(line)
    }

    /// Returns the lines, in order, that `is_meant` says.
    pub(crate) fn find(&self, is_meant: impl Fn(&[u8]) -> bool) -> Vec<usize> {
        (0..self.len()).filter(|i| is_meant(self.text(*i))).collect()
    }

    /// Replaces the text of line `i`, keeping its end.
    pub(crate) fn set(&mut self, i: usize, text: &[u8]) {
        let end = self.lines[i][self.text(i).len()..].to_vec();
        self.lines[i] = [text, &end].concat();
    }

    /// Removes the lines `range`. If the last one goes, the new last one ends as it did.
    pub(crate) fn remove(&mut self, range: std::ops::Range<usize>) {
        let last_goes = range.end == self.len() && !range.is_empty();
        let unfinished = self.lines.last().is_some_and(|line| !line.ends_with(b"\n"));
        self.lines.drain(range);
        if last_goes && unfinished && !self.lines.is_empty() {
            let i = self.len() - 1;
            self.lines[i] = self.text(i).to_vec();
        }
    }

    /// Returns where lines belong that are at no place yet.
    pub(crate) fn place(&self, place: &Place) -> usize {
        let last = |regex: &Regex| self.find(|line| regex.is_match(line)).last().copied();
        match place {
            Place::Start => 0,
            Place::End => self.len(),
            Place::After(regex) => last(regex).map_or(self.len(), |i| i + 1),
            Place::Before(regex) => last(regex).unwrap_or(self.len()),
        }
    }

    /// Inserts lines before line `at`, with the file's own line ends.
    pub(crate) fn insert(&mut self, at: usize, texts: &[&[u8]]) {
        // Only a file that has lines can lack the final newline; a new one gets it.
        let unfinished = at == self.len() && self.lines.last().is_some_and(|line| !line.ends_with(b"\n"));
        let end: &[u8] =
            if self.lines.first().is_some_and(|line| line.ends_with(b"\r\n")) { b"\r\n" } else { b"\n" };
        if unfinished {
            self.lines[at - 1].extend_from_slice(end);
        }
        let mut new: Vec<Vec<u8>> = texts.iter().map(|text| [text, end].concat()).collect();
        if unfinished && let Some(last) = new.last_mut() {
            last.truncate(last.len() - end.len());
        }
        self.lines.splice(at..at, new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inserting_and_removing_at_the_end_keeps_a_missing_final_newline() {
        let mut lines = Lines::new(b"a\r\nb");
        lines.insert(2, &[b"c"]);
        assert_eq!(lines.lines.concat(), b"a\r\nb\r\nc");
        lines.remove(2..3);
        assert_eq!(lines.into_bytes(), b"a\r\nb");
    }

    #[test]
    fn a_new_file_gets_final_newlines() {
        let mut lines = Lines::new(b"");
        lines.insert(0, &[b"a", b"b"]);
        assert_eq!(lines.into_bytes(), b"a\nb\n");
    }
}

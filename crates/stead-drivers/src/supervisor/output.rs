//! What a role says on its way to the disk: masked, counted, its last lines kept.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use stead_model::tail::LAST_LINES;
use stead_runner::redact::{MaskingStream, Redactor};

/// A last line longer than this is cut: it is for people.
const LONGEST_SHOWN: usize = 4 << 10;

/// One stream of a role, written to its log as it comes.
pub(super) struct Log {
    file: File,
    mask: MaskingStream,
    bytes: u64,
    last: LastLines,
    failure: Option<io::Error>,
}

impl Log {
    /// Makes the file `path`, empty.
    pub(super) fn create(path: &Path, redactor: &Redactor) -> io::Result<Self> {
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        Ok(Self { file, mask: redactor.stream(), bytes: 0, last: LastLines::default(), failure: None })
    }

    /// Takes the next bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let masked = self.mask.push(bytes).into_owned();
        self.write(&masked);
    }

    /// No more comes.
    pub(super) fn finish(&mut self) {
        let rest = self.mask.finish();
        self.write(&rest);
    }

    fn write(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.last.push(bytes);
        // After a failure the log would have a hole: nothing more is written, and the role goes on.
        if self.failure.is_none() {
            match self.file.write_all(bytes) {
                Ok(()) => self.bytes += bytes.len() as u64,
                Err(error) => self.failure = Some(error),
            }
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns why the log is not whole, once.
    pub(super) fn take_failure(&mut self) -> Option<String> {
        self.failure.as_ref().map(ToString::to_string)
    }

    pub(super) fn last_lines(&self) -> Vec<String> {
        self.last.lines()
    }
}

/// The end of a stream, as lines.
#[derive(Debug, Default)]
struct LastLines {
    whole: VecDeque<Vec<u8>>,
    open: Vec<u8>,
}

impl LastLines {
    fn push(&mut self, bytes: &[u8]) {
        let mut pieces = bytes.split(|byte| *byte == b'\n');
        if let Some(first) = pieces.next() {
            self.extend(first);
        }
        for piece in pieces {
            self.whole.push_back(std::mem::take(&mut self.open));
            if self.whole.len() > LAST_LINES {
                self.whole.pop_front();
            }
            self.extend(piece);
        }
    }

    fn extend(&mut self, bytes: &[u8]) {
        let room = LONGEST_SHOWN.saturating_sub(self.open.len()).min(bytes.len());
        self.open.extend_from_slice(bytes.get(..room).unwrap_or_default());
    }

    fn lines(&self) -> Vec<String> {
        let open = Some(&self.open).filter(|open| !open.is_empty());
        let all: Vec<&Vec<u8>> = self.whole.iter().chain(open).collect();
        let last = all.get(all.len().saturating_sub(LAST_LINES)..).unwrap_or_default();
        last.iter().map(|line| String::from_utf8_lossy(line).trim_end_matches('\r').to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_twenty_lines_are_kept_however_they_come() {
        let mut last = LastLines::default();
        let text: String = (1..=30).map(|number| format!("line {number}\n")).collect();
        text.as_bytes().chunks(7).for_each(|piece| last.push(piece));
        last.push(b"open end");
        let lines = last.lines();
        assert_eq!((lines.len(), lines[0].as_str(), lines[19].as_str()), (20, "line 12", "open end"));
    }

    #[test]
    fn a_line_without_end_is_cut_and_costs_little() {
        let mut last = LastLines::default();
        (0..1000).for_each(|_| last.push(&[b'x'; 10_000]));
        assert_eq!(last.lines()[0].len(), LONGEST_SHOWN);
        assert!(last.open.capacity() <= 2 * LONGEST_SHOWN);
    }

    #[test]
    fn a_secret_split_over_two_writes_is_masked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("stdout.log");
        let redactor = Redactor::new(["opensesame"]).unwrap();
        let mut log = Log::create(&path, &redactor).unwrap();
        for piece in [&b"a open"[..], b"ses", b"ame b open"] {
            log.push(piece);
        }
        log.finish();
        assert_eq!(std::fs::read(&path).unwrap(), b"a *** b open");
        assert_eq!(log.bytes(), 12);
    }
}

//! Reads the log files of a bundle that `log` events point into. Never outside the bundle.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use stead_model::EventKind;

use super::text;

/// How much of a file's end is searched for its last lines.
const TAIL_BYTES: u64 = 64 * 1024;
/// How much is read at once.
const CHUNK: usize = 64 * 1024;

/// The log files of a run.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    runs_dir: Option<PathBuf>,
    bundle: Option<PathBuf>,
}

impl Logs {
    pub(crate) fn new(runs_dir: Option<PathBuf>, bundle: Option<PathBuf>) -> Self {
        Self { runs_dir, bundle }
    }

    /// Learns where the bundle is when the run starts.
    pub(crate) fn on_event(&mut self, kind: &EventKind) {
        if let EventKind::RunStarted(started) = kind
            && self.bundle.is_none()
        {
            self.bundle = self.runs_dir.as_ref().map(|dir| dir.join(started.run_id.as_str()));
        }
    }

    fn open(&self, file: &str) -> Option<File> {
        stead_bundle::open_inside(self.bundle.as_ref()?, Path::new(file)).ok()
    }

    /// Calls `take` with the bytes of a range, in pieces; what cannot be read is left out.
    pub(crate) fn read(&self, file: &str, offset: u64, len: u64, mut take: impl FnMut(&[u8])) {
        let Some(file) = self.open(file) else { return };
        let mut buffer = vec![0; usize::try_from(len).unwrap_or(CHUNK).min(CHUNK)];
        let (mut at, end) = (offset, offset.saturating_add(len));
        while at < end {
            let wanted = usize::try_from(end - at).unwrap_or(CHUNK).min(buffer.len());
            match file.read_at(&mut buffer[..wanted], at) {
                Ok(0) | Err(_) => return,
                Ok(count) => {
                    take(&buffer[..count]);
                    at += count as u64;
                }
            }
        }
    }

    /// Returns the last `count` lines before byte `end`, safe to show.
    pub(crate) fn tail(&self, file: &str, end: u64, count: usize) -> Vec<String> {
        let start = end.saturating_sub(TAIL_BYTES);
        let mut bytes = Vec::new();
        self.read(file, start, end - start, |piece| bytes.extend_from_slice(piece));
        last_lines(&bytes, count)
    }
}

/// Returns the last `count` lines of `bytes`, safe to show.
pub(crate) fn last_lines(bytes: &[u8], count: usize) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines: Vec<String> =
        text.lines().rev().take(count).map(|line| text::clean(line).into_owned()).collect();
    lines.reverse();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_ranges_and_tails_and_stays_inside() {
        let dir = tempfile::tempdir().unwrap();
        let bundle = dir.path().join("bundle");
        std::fs::create_dir(&bundle).unwrap();
        std::fs::write(bundle.join("log"), "one\ntwo\nthree\n").unwrap();
        std::fs::write(dir.path().join("secret"), "no").unwrap();
        let logs = Logs::new(None, Some(bundle));
        let mut seen = Vec::new();
        logs.read("log", 4, 4, |piece| seen.extend_from_slice(piece));
        assert_eq!(seen, b"two\n");
        assert_eq!(logs.tail("log", 14, 2), ["two", "three"]);
        assert!(logs.tail("../secret", 2, 1).is_empty());
        assert!(logs.tail("missing", 2, 1).is_empty());
    }
}

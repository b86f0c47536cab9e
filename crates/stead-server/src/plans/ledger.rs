//! What must not happen twice: a file of lines that is only ever added to.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// A file of lines.
pub(super) struct Ledger {
    file: File,
    /// How many bytes are whole lines.
    length: u64,
}

impl Ledger {
    /// Opens a ledger and returns its lines. One that was not written to its end never counted, and is cut off.
    ///
    /// A ledger that cannot be read is an error: without it what has happened could happen again.
    pub(super) fn open(path: &Path) -> io::Result<(Self, Vec<String>)> {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        if whole < bytes.len() {
            file.set_len(whole as u64)?;
            bytes.truncate(whole);
        }
        // A damaged line is damaged alone.
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let lines = lines.map(|line| String::from_utf8_lossy(line).into_owned()).collect();
        Ok((Self { file, length: whole as u64 }, lines))
    }

    /// Adds a line; it is on the disk when this returns, or not there.
    pub(super) fn add(&mut self, line: &str) -> io::Result<()> {
        let bytes = format!("{line}\n").into_bytes();
        let written = self.write(&bytes);
        match written {
            Ok(()) => self.length += bytes.len() as u64,
            // What of it is there would be the beginning of the next.
            Err(_) => self.file.set_len(self.length).unwrap_or_default(),
        }
        written
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.length))?;
        self.file.write_all(bytes)?;
        self.file.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &Path) -> Vec<String> {
        Ledger::open(path).unwrap().1
    }

    #[test]
    fn what_was_added_is_there_again_whatever_else_is_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("spent");
        let (mut ledger, known) = Ledger::open(&path).unwrap();
        assert!(known.is_empty());
        ledger.add("d1").unwrap();
        ledger.add("d2").unwrap();
        drop(ledger);
        std::fs::write(&path, b"d1\n\xff\nd2\ntorn").unwrap();
        let (mut ledger, known) = Ledger::open(&path).unwrap();
        assert_eq!(known, ["d1", "\u{fffd}", "d2"]);
        ledger.add("d3").unwrap();
        assert_eq!(lines(&path), ["d1", "\u{fffd}", "d2", "d3"], "not `tornd3`");
    }

    #[test]
    fn one_that_cannot_be_read_is_no_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Ledger::open(dir.path()).is_err());
    }
}

//! Handing a journal's lines on as they come. Who gets them checks them whole.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

use super::LONGEST_LINE;

/// Returns the number of the event in a line.
pub fn number_of(line: &[u8]) -> Option<u64> {
    let rest = line.strip_prefix(b"{\"seq\":")?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(rest.get(..digits)?).ok()?.parse().ok()
}

/// A place in a journal: what comes before it is not read again.
#[derive(Clone, Debug)]
pub struct Lines {
    journal: PathBuf,
    after: u64,
    offset: u64,
}

impl Lines {
    /// Returns the place behind the event `after`, which ends not before the byte `offset`; 0 if that is not known.
    pub fn new(journal: impl Into<PathBuf>, after: u64, offset: u64) -> Self {
        Self { journal: journal.into(), after, offset }
    }

    /// Returns the number of the last event that was handed on, and where it ends.
    pub const fn place(&self) -> (u64, u64) {
        (self.after, self.offset)
    }

    /// Returns the whole lines that are there now: none after `most` bytes of them.
    pub fn next(&mut self, most: usize) -> io::Result<Vec<u8>> {
        let mut reader = BufReader::new(File::open(&self.journal)?);
        self.find(&mut reader)?;
        let (mut lines, mut line) = (Vec::new(), Vec::new());
        while lines.len() < most {
            line.clear();
            let length = (&mut reader).take(LONGEST_LINE as u64).read_until(b'\n', &mut line)?;
            if line.last() != Some(&b'\n') {
                break;
            }
            self.offset += length as u64;
            if let Some(seq) = number_of(&line).filter(|seq| *seq > self.after) {
                lines.extend_from_slice(&line);
                self.after = seq;
            }
        }
        Ok(lines)
    }

    /// Goes to the place. A damaged tail may have been cut off since: then it is looked for from the beginning.
    fn find(&mut self, reader: &mut BufReader<File>) -> io::Result<()> {
        if let Some(before) = self.offset.checked_sub(1) {
            reader.seek(SeekFrom::Start(before))?;
            let mut end = [0];
            match reader.read_exact(&mut end) {
                Ok(()) if end == *b"\n" => return Ok(()),
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                Err(error) => return Err(error),
            }
            self.offset = 0;
            reader.seek(SeekFrom::Start(0))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_once_and_after_a_number() {
        let dir = tempfile::tempdir().unwrap();
        let journal = dir.path().join("events.jsonl");
        std::fs::write(&journal, "{\"seq\":1,\"a\":0}\n{\"seq\":2}\n{\"seq\":3").unwrap();
        let mut all = Lines::new(&journal, 0, 0);
        assert_eq!(all.next(1).unwrap(), b"{\"seq\":1,\"a\":0}\n");
        assert_eq!(all.next(100).unwrap(), b"{\"seq\":2}\n");
        assert_eq!((all.next(100).unwrap(), all.place()), (Vec::new(), (2, 26)));
        std::fs::write(&journal, "{\"seq\":1,\"a\":0}\n{\"seq\":2}\n{\"seq\":3}\n").unwrap();
        assert_eq!(all.next(100).unwrap(), b"{\"seq\":3}\n");
        assert_eq!(Lines::new(&journal, 1, 0).next(100).unwrap(), b"{\"seq\":2}\n{\"seq\":3}\n");
        assert!(Lines::new(dir.path().join("none"), 0, 0).next(100).is_err());
    }

    /// What lies before the place is not read again, and a place that is gone is looked for.
    #[test]
    fn a_place_is_gone_to_and_looked_for_if_it_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let journal = dir.path().join("events.jsonl");
        // Were it read, the first line would come too.
        std::fs::write(&journal, "{\"seq\":9}\n{\"seq\":2}\n").unwrap();
        assert_eq!(Lines::new(&journal, 1, 10).next(100).unwrap(), b"{\"seq\":2}\n");
        std::fs::write(&journal, "{\"seq\":1}\n{\"seq\":2}\n").unwrap();
        for gone in [7, 20, 400] {
            assert_eq!(
                Lines::new(&journal, 1, gone).next(100).unwrap().len(),
                if gone == 20 { 0 } else { 10 }
            );
        }
    }
}

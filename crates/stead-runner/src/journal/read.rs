//! Reading a journal back: what is whole, what a crash cut off, and what is damaged.
//!
//! A driver that died in a write leaves bad bytes at the end and nowhere else; those are dropped and
//! counted. Bad bytes with a good line after them, or a gap in the numbers, mean that the file was
//! changed: that is an error, and nothing runs.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use stead_model::Event;
use stead_model::event::{LineError, decode};

use super::LONGEST_LINE;

/// The whole part of a journal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JournalRead {
    /// The events; empty from [`read_with`], which hands them out one by one.
    pub events: Vec<Event>,
    /// The number the next event gets.
    pub next_seq: u64,
    /// How many bytes hold whole events.
    pub good_len: u64,
    /// How many bytes after them are a damaged tail; see [`repair`].
    pub dropped_bytes: u64,
}

/// Why a journal cannot be trusted.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file could not be read.
    #[error("failed to read the journal {path}")]
    Read {
        /// The journal.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A damaged line has a good one after it.
    #[error("the journal {path} is damaged at line {line}, byte {offset}")]
    Damaged {
        /// The journal.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// Where the line begins.
        offset: u64,
        /// What is wrong with it.
        #[source]
        source: LineError,
    },
    /// A line is whole but its number does not follow.
    #[error(
        "the journal {path} has event {found} at line {line}, byte {offset}, where event {expected} belongs"
    )]
    Gap {
        /// The journal.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// Where the line begins.
        offset: u64,
        /// The number that follows.
        expected: u64,
        /// The number found.
        found: u64,
    },
    /// A line is whole but holds an event this version does not know.
    #[error("the journal {path} has an event this version does not know at line {line}, byte {offset}")]
    Unknown {
        /// The journal.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// Where the line begins.
        offset: u64,
        /// What is wrong with it.
        #[source]
        source: LineError,
    },
}

/// Returns the events of the journal at `path`.
pub fn read(path: &Path) -> Result<JournalRead, ReadError> {
    let mut events = Vec::new();
    let read = read_with(path, |event| events.push(event))?;
    Ok(JournalRead { events, ..read })
}

/// Gives the events of the journal at `path` to `take`, one by one.
///
/// Memory holds one line at a time. On an error, what `take` was given must not be used.
pub fn read_with(path: &Path, mut take: impl FnMut(Event)) -> Result<JournalRead, ReadError> {
    let failed = |source| ReadError::Read { path: path.to_owned(), source };
    let mut reader = BufReader::with_capacity(1 << 18, File::open(path).map_err(failed)?);
    let mut buffer = Vec::new();
    let mut read = JournalRead { next_seq: 1, ..JournalRead::default() };
    let mut offset = 0;
    let mut line = 0;
    // The first bad line, in case a good one follows.
    let mut bad: Option<(u64, u64, LineError)> = None;
    loop {
        let (len, whole) = next_line(&mut reader, &mut buffer).map_err(failed)?;
        if len == 0 {
            break;
        }
        line += 1;
        let decoded = if whole { decode(&buffer) } else { Err(LineError::NoChecksum) };
        match decoded {
            Ok(event) => {
                if let Some((line, offset, source)) = bad {
                    return Err(ReadError::Damaged { path: path.to_owned(), line, offset, source });
                }
                if event.seq != read.next_seq {
                    let (expected, found) = (read.next_seq, event.seq);
                    return Err(ReadError::Gap { path: path.to_owned(), line, offset, expected, found });
                }
                read.next_seq += 1;
                read.good_len = offset + len;
                take(event);
            }
            // The checksum is right and it is JSON: no crash made this, so it must not be cut off.
            Err(source @ LineError::NotAnEvent(_)) if is_json(&source) => {
                return Err(ReadError::Unknown { path: path.to_owned(), line, offset, source });
            }
            Err(source) => {
                bad.get_or_insert((line, offset, source));
            }
        }
        offset += len;
    }
    read.dropped_bytes = offset - read.good_len;
    Ok(read)
}

/// Cuts the damaged tail off the journal at `path`: `good_len` as [`read`] gave it.
pub fn repair(path: &Path, good_len: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    if file.metadata()?.len() > good_len {
        file.set_len(good_len)?;
        file.sync_data()?;
    }
    Ok(())
}

fn is_json(error: &LineError) -> bool {
    match error {
        LineError::NotAnEvent(error) => error.is_data(),
        LineError::NoChecksum | LineError::BadChecksum => false,
    }
}

/// Reads the next line without its newline into `buffer`; returns how many bytes it took and whether it is
/// whole: ended by a newline and not longer than any line may be. No bytes: the end.
fn next_line(reader: &mut impl BufRead, buffer: &mut Vec<u8>) -> io::Result<(u64, bool)> {
    buffer.clear();
    buffer.shrink_to(1 << 20);
    let mut taken = 0;
    let mut too_long = false;
    loop {
        let available = match reader.fill_buf() {
            Ok(available) => available,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if available.is_empty() {
            return Ok((taken, false));
        }
        let end = available.iter().position(|byte| *byte == b'\n');
        let piece = &available[..end.unwrap_or(available.len())];
        too_long = too_long || buffer.len() + piece.len() >= LONGEST_LINE;
        if too_long {
            buffer.clear();
        } else {
            buffer.extend_from_slice(piece);
        }
        let used = end.map_or(available.len(), |end| end + 1);
        reader.consume(used);
        taken += used as u64;
        if end.is_some() {
            return Ok((taken, !too_long));
        }
    }
}

//! The journal: events in the kernel's hands before anyone acts on them.
//!
//! The dispatcher is the only writer. It hands over all events of one turn; they become one buffer and
//! one `write`. A thread of the journal's own calls `fdatasync` soon after, so the dispatcher waits for
//! the disk only where it asks to ([`Journal::sync_now`]) and at `run_finished`.
//!
//! ```text
//! dispatcher ── append(events) ──► write ──► page cache
//!                    │ dirty                    ▲
//!                    └──────► sync thread ── fdatasync
//! ```
//!
//! It decides nothing about events and retries nothing: a failed write leaves the file as it was before
//! the turn, and the caller ends the run.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use stead_model::event::encode;
use stead_model::{Event, EventKind};

mod lines;
mod read;
mod sync;

pub use lines::{Lines, number_of};
pub use read::{JournalRead, ReadError, read, read_with, repair};
use sync::Syncer;

/// The longest line that is written or read; a bound on memory, far above what a run produces.
pub const LONGEST_LINE: usize = 256 << 20;
/// A turn's buffer is given back to the allocator if one turn made it larger than this.
const KEEP_BUFFER: usize = 1 << 20;

/// Why events could not be recorded.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file could not be opened.
    #[error("failed to open the journal {path}")]
    Open {
        /// The journal.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The events of this turn are not in the file; everything before is.
    #[error("failed to write the journal {path}")]
    Write {
        /// The journal.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The events are in the file, but the disk did not confirm them or some before them.
    #[error("failed to sync the journal {path}")]
    Sync {
        /// The journal.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// An event is longer than a reader accepts.
    #[error("an event of {bytes} bytes is too long for a journal")]
    TooLong {
        /// How long.
        bytes: usize,
    },
    /// An event's number does not follow; a reader would refuse the file.
    #[error("event {found} was to be recorded where event {expected} belongs")]
    OutOfOrder {
        /// The number that follows.
        expected: u64,
        /// The number given.
        found: u64,
    },
    /// The file ends in a partial line, of a dead driver or of a failed write that could not be taken back.
    #[error("the journal {path} ends in a partial line")]
    Torn {
        /// The journal.
        path: PathBuf,
    },
}

/// What [`Journal::append`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended<'a> {
    /// The lines, newlines included, byte for byte as in the file. Empty if nobody wants lines.
    pub lines: &'a [u8],
}

/// The event log of one run, open for appending.
#[derive(Debug)]
pub struct Journal {
    next_seq: u64,
    sink: Option<Sink>,
    // Whether lines are made though there is no file.
    keep_lines: bool,
    buffer: Vec<u8>,
}

/// The file behind a journal.
#[derive(Debug)]
struct Sink {
    path: PathBuf,
    // Invariant: the file's length after the last complete turn.
    len: u64,
    // Whether bytes after `len` could not be cut off.
    torn: bool,
    syncer: Syncer,
}

impl Journal {
    /// Returns the journal of a new run, at `path`, which must not exist yet.
    pub fn create(path: &Path) -> Result<Self, JournalError> {
        let open = OpenOptions::new().append(true).create_new(true).mode(0o644).open(path);
        // As every file of a bundle, whatever the process's mask is.
        let open = open.and_then(|file| file.set_permissions(Permissions::from_mode(0o644)).map(|()| file));
        Self::on(path, open, 1)
    }

    /// Returns the journal of a run that goes on, at `path`; the next event gets `next_seq`.
    ///
    /// A damaged tail must be cut off already (see [`repair`]); one without a final newline is refused.
    pub fn reopen(path: &Path, next_seq: u64) -> Result<Self, JournalError> {
        let failed = |source| JournalError::Open { path: path.to_owned(), source };
        let file = OpenOptions::new().read(true).append(true).open(path).map_err(failed)?;
        if let Some(last) = file.metadata().map_err(failed)?.len().checked_sub(1) {
            let mut end = [0];
            file.read_exact_at(&mut end, last).map_err(failed)?;
            if end != *b"\n" {
                return Err(JournalError::Torn { path: path.to_owned() });
            }
        }
        Self::on(path, Ok(file), next_seq)
    }

    /// Returns a journal without a file: it only makes lines, and those only if `keep_lines`.
    pub fn without_file(keep_lines: bool) -> Self {
        Self { next_seq: 1, sink: None, keep_lines, buffer: Vec::new() }
    }

    fn on(path: &Path, open: io::Result<File>, next_seq: u64) -> Result<Self, JournalError> {
        let failed = |source| JournalError::Open { path: path.to_owned(), source };
        let file = open.map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        let syncer = Syncer::start(file).map_err(failed)?;
        let sink = Sink { path: path.to_owned(), len, torn: false, syncer };
        Ok(Self { next_seq, sink: Some(sink), keep_lines: true, buffer: Vec::new() })
    }

    /// Returns the number the next event gets.
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Hands the events of one dispatcher turn to the kernel in one `write`.
    ///
    /// If they hold `run_finished` they are on the disk when this returns. On an error none of them is in
    /// the file and their numbers are free again; only after [`JournalError::Sync`] they are in the file.
    pub fn append(&mut self, events: &[Event]) -> Result<Appended<'_>, JournalError> {
        self.buffer.clear();
        self.buffer.shrink_to(KEEP_BUFFER);
        let mut next = self.next_seq;
        for event in events {
            if event.seq != next {
                return Err(JournalError::OutOfOrder { expected: next, found: event.seq });
            }
            next += 1;
            if !self.keep_lines {
                continue;
            }
            let start = self.buffer.len();
            encode(event.seq, event.t, &event.kind, &mut self.buffer);
            let bytes = self.buffer.len() - start;
            if bytes > LONGEST_LINE {
                return Err(JournalError::TooLong { bytes });
            }
        }
        if events.is_empty() {
            return Ok(Appended { lines: &[] });
        }
        if let Some(sink) = &mut self.sink {
            sink.write(&self.buffer)?;
        }
        // The lines are in the file from here on, whatever a sync says.
        self.next_seq = next;
        if let Some(sink) = &self.sink {
            sink.check_sync()?;
            if events.iter().any(|event| matches!(event.kind, EventKind::RunFinished(_))) {
                sink.sync_now()?;
            }
        }
        Ok(Appended { lines: &self.buffer })
    }

    /// Returns when everything appended so far is on the disk.
    pub fn sync_now(&self) -> Result<(), JournalError> {
        self.sink.as_ref().map_or(Ok(()), Sink::sync_now)
    }
}

impl Sink {
    fn write(&mut self, lines: &[u8]) -> Result<(), JournalError> {
        if self.torn {
            return Err(JournalError::Torn { path: self.path.clone() });
        }
        let mut file = self.syncer.file();
        if let Err(source) = file.write_all(lines) {
            // A full disk takes a part of the buffer: without this the next reader finds a torn line, and
            // complete lines of events that the caller believes were never recorded.
            self.torn = file.set_len(self.len).is_err();
            return Err(JournalError::Write { path: self.path.clone(), source });
        }
        self.len += lines.len() as u64;
        self.syncer.written();
        Ok(())
    }

    fn check_sync(&self) -> Result<(), JournalError> {
        let failure = self.syncer.take_failure();
        failure.map_or(Ok(()), |source| Err(JournalError::Sync { path: self.path.clone(), source }))
    }

    fn sync_now(&self) -> Result<(), JournalError> {
        self.syncer.sync_now().map_err(|source| JournalError::Sync { path: self.path.clone(), source })
    }
}

#[cfg(test)]
mod tests;

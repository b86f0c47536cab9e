//! The file of a store: lines are appended and on disk before anybody is told.
//!
//! One thread writes. What waits while it syncs is written together next time, so that many requests at once cost one
//! sync. A line that a crash has torn off at the end is dropped at the next start: nobody was told of it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use tokio::sync::oneshot;

use super::record::Record;

/// The longest line: a job's arguments, escaped.
const LONGEST_LINE: u64 = 16 << 20;

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file could not be used.
    #[error("failed to {what} {}", path.display())]
    File {
        /// What was done.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It was changed by somebody else.
    #[error("line {line} of {} is damaged; move the file away to start without it", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Which line.
        line: usize,
    },
}

enum Order {
    Append {
        lines: Vec<u8>,
        done: oneshot::Sender<io::Result<()>>,
    },
    /// The file is to hold this and nothing else.
    Replace {
        lines: Vec<u8>,
    },
}

/// A journal that is open.
pub(super) struct Journal {
    orders: Option<Sender<Order>>,
    writer: Option<JoinHandle<()>>,
}

/// Says when a change is on disk.
pub(super) struct Ticket(oneshot::Receiver<io::Result<()>>);

impl Ticket {
    /// Waits until the change is on disk.
    pub(super) async fn wait(self) -> io::Result<()> {
        self.0.await.unwrap_or_else(|_| Err(io::Error::other("the journal is closed")))
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> JournalError {
    let path = path.to_owned();
    move |source| JournalError::File { what, path, source }
}

impl Journal {
    /// Reads the journal at `path`, lets `take` have each record, and opens it for more. Returns its size, too.
    pub(super) fn open(path: &Path, take: impl FnMut(Record)) -> Result<(Self, u64), JournalError> {
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
        let mut file = opened.map_err(failed("open", path))?;
        let size = replay(&file, path, take)?;
        file.set_len(size).map_err(failed("cut", path))?;
        file.seek(io::SeekFrom::End(0)).map_err(failed("read", path))?;
        let (orders, inbox) = channel();
        let writing = Writing { file, path: path.to_owned(), has_failed: false };
        let writer = thread::Builder::new().name("journal".to_owned()).spawn(move || writing.run(&inbox));
        let writer = writer.map_err(failed("write", path))?;
        Ok((Self { orders: Some(orders), writer: Some(writer) }, size))
    }

    /// Appends records; they are on disk when the ticket says so. The order of calls is the order of lines.
    pub(super) fn append(&self, lines: Vec<u8>) -> Ticket {
        let (done, ticket) = oneshot::channel();
        if let Some(orders) = &self.orders {
            // A writer that is gone drops `done`, which the ticket tells.
            orders.send(Order::Append { lines, done }).ok();
        }
        Ticket(ticket)
    }

    /// Lets the file hold `lines` and nothing else, whole or not at all.
    pub(super) fn replace(&self, lines: Vec<u8>) {
        if let Some(orders) = &self.orders {
            orders.send(Order::Replace { lines }).ok();
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(writer) = self.writer.take() {
            writer.join().ok();
        }
    }
}

/// Returns the lines of records.
pub(super) fn to_lines<'r>(records: impl IntoIterator<Item = &'r Record>) -> Vec<u8> {
    let mut lines = Vec::new();
    for record in records {
        let start = lines.len();
        match serde_json::to_writer(&mut lines, record) {
            Ok(()) => lines.push(b'\n'),
            Err(_) => lines.truncate(start),
        }
    }
    lines
}

/// Reads all whole lines, and returns how many bytes they are.
fn replay(file: &File, path: &Path, mut take: impl FnMut(Record)) -> Result<u64, JournalError> {
    let mut reader = BufReader::new(file);
    let (mut size, mut number, mut line) = (0, 0, Vec::new());
    loop {
        line.clear();
        number += 1;
        let read = reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line);
        read.map_err(failed("read", path))?;
        if line.last() != Some(&b'\n') {
            return Ok(size);
        }
        match serde_json::from_slice(&line) {
            Ok(record) => take(record),
            Err(_) => return Err(JournalError::Damaged { path: path.to_owned(), line: number }),
        }
        size += line.len() as u64;
    }
}

/// The side of the thread.
struct Writing {
    file: File,
    path: PathBuf,
    /// After a failure nobody knows what the file holds: nothing more is promised.
    has_failed: bool,
}

impl Writing {
    fn run(mut self, inbox: &Receiver<Order>) {
        while let Ok(first) = inbox.recv() {
            let mut lines = Vec::new();
            let mut waiting = Vec::new();
            for order in std::iter::once(first).chain(inbox.try_iter()) {
                match order {
                    Order::Append { lines: more, done } => {
                        lines.extend_from_slice(&more);
                        waiting.push(done);
                    }
                    Order::Replace { lines: all } => {
                        // What came before is part of what replaces it.
                        let result = self.replace(&all);
                        self.tell(&result, waiting.drain(..));
                        lines.clear();
                    }
                }
            }
            if !waiting.is_empty() {
                let result = self.append(&lines);
                self.tell(&result, waiting.drain(..));
            }
        }
    }

    fn tell(
        &mut self,
        result: &io::Result<()>,
        waiting: impl Iterator<Item = oneshot::Sender<io::Result<()>>>,
    ) {
        self.has_failed |= result.is_err();
        for done in waiting {
            let told = match result {
                Ok(()) => Ok(()),
                Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
            };
            // Who asked may have gone.
            done.send(told).ok();
        }
    }

    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.has_failed {
            return Err(io::Error::other("an earlier write has failed"));
        }
        self.file.write_all(lines)?;
        self.file.sync_data()
    }

    fn replace(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.has_failed {
            return Err(io::Error::other("an earlier write has failed"));
        }
        let new = self.path.with_extension("journal.new");
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(lines)?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        if let Some(parent) = self.path.parent() {
            File::open(parent)?.sync_all()?;
        }
        self.file = file;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &Path) -> Result<Vec<Record>, JournalError> {
        let mut records = Vec::new();
        Journal::open(path, |record| records.push(record)).map(|_| records)
    }

    #[tokio::test]
    async fn what_was_promised_is_read_back_and_a_torn_line_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.journal");
        let record = |next| Record::Counter { next };
        let (journal, _) = Journal::open(&path, |_| ()).unwrap();
        journal.append(to_lines(&[record(1)])).wait().await.unwrap();
        journal.append(to_lines(&[record(2)])).wait().await.unwrap();
        drop(journal);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"record\":\"coun").unwrap();
        assert_eq!(read(&path).unwrap(), [record(1), record(2)]);
        let (journal, _) = Journal::open(&path, |_| ()).unwrap();
        journal.append(to_lines(&[record(3)])).wait().await.unwrap();
        assert_eq!(read(&path).unwrap(), [record(1), record(2), record(3)]);
        journal.replace(to_lines(&[record(9)]));
        journal.append(to_lines(&[record(10)])).wait().await.unwrap();
        assert_eq!(read(&path).unwrap(), [record(9), record(10)]);
        fs::write(&path, "x\n").unwrap();
        assert!(matches!(read(&path), Err(JournalError::Damaged { line: 1, .. })));
    }
}

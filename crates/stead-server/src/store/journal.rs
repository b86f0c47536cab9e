//! The file of a store: lines are appended and on disk before anybody is told.
//!
//! One thread writes. What waits while it syncs is written together next time, so that many requests at once cost one
//! sync. A line that a crash has torn off at the end is dropped at the next start: nobody was told of it.
//!
//! A write that fails is taken back, and so is everything after it until the store has taken it back too
//! ([`Journal::recover`]): what the file holds is what was promised.
//!
//! A rewrite goes on beside appending: another thread writes the new file from a copy of what is remembered, and what is
//! appended meanwhile is added to it before it takes the old one's place.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use tokio::sync::oneshot;

use super::record::Record;

/// The longest line: a body of the largest size there may be, whose numbers are written at full length.
const LONGEST_LINE: u64 = 64 << 20;

/// A journal is rewritten when it is this much larger than twice what it stands for.
const REWRITE_BYTES: u64 = 16 << 20;

/// Is told what goes wrong with a journal, and that it goes on.
pub(crate) type Tell = Arc<dyn Fn(&str) + Send + Sync>;

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

/// Makes the records that a journal is to hold.
type Records = Box<dyn FnOnce() -> Vec<Record> + Send>;

enum Order {
    Append {
        lines: Vec<u8>,
        done: oneshot::Sender<io::Result<()>>,
    },
    /// The file is to hold these records and what comes after them.
    Rewrite {
        records: Records,
        /// Where to say that the new file is there.
        orders: Sender<Order>,
    },
    Rewritten(io::Result<(File, u64)>),
    /// These files belong to nothing any more.
    Remove(Vec<PathBuf>),
    /// What failed is taken back.
    Recover(Sender<io::Result<()>>),
}

/// What the thread that writes shows to others.
#[derive(Default)]
struct Shown {
    has_failed: AtomicBool,
    is_rewriting: AtomicBool,
    /// Bytes of the file, and of it when it was last rewritten.
    size: AtomicU64,
    least: AtomicU64,
    /// What the last write failed with.
    problem: Mutex<Option<String>>,
}

impl Shown {
    fn problem(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A journal that is open.
pub(super) struct Journal {
    path: PathBuf,
    orders: Option<Sender<Order>>,
    writer: Option<JoinHandle<()>>,
    shown: Arc<Shown>,
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
    /// Reads the journal at `path`, lets `take` have each record, and opens it for more.
    pub(super) fn open(path: &Path, take: impl FnMut(Record), tell: Tell) -> Result<Self, JournalError> {
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
        let mut file = opened.map_err(failed("open", path))?;
        let size = replay(&file, path, take)?;
        file.set_len(size).map_err(failed("cut", path))?;
        file.seek(io::SeekFrom::End(0)).map_err(failed("read", path))?;
        // A new one is there also after the power was cut.
        sync_parent(path).map_err(failed("keep", path))?;
        let shown = Arc::new(Shown { size: AtomicU64::new(size), ..Shown::default() });
        let (orders, inbox) = channel();
        let writing =
            Writing { file, path: path.to_owned(), size, tail: None, shown: Arc::clone(&shown), tell };
        let writer = thread::Builder::new().name("journal".to_owned()).spawn(move || writing.run(&inbox));
        let writer = writer.map_err(failed("write", path))?;
        Ok(Self { path: path.to_owned(), orders: Some(orders), writer: Some(writer), shown })
    }

    fn send(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // A writer that is gone drops what it was to answer with, which shows.
            orders.send(order).ok();
        }
    }

    /// Appends records; they are on disk when the ticket says so, with everything before them. The order of calls is the
    /// order of lines. Without records the ticket tells of what was before.
    pub(super) fn append(&self, lines: Vec<u8>) -> Ticket {
        let (done, ticket) = oneshot::channel();
        self.send(Order::Append { lines, done });
        Ticket(ticket)
    }

    /// Removes files, once everything that was appended is on disk.
    pub(super) fn remove(&self, files: Vec<PathBuf>) {
        if !files.is_empty() {
            self.send(Order::Remove(files));
        }
    }

    /// Lets the file hold these records and what is appended from now on, whole or not at all. They are made elsewhere.
    pub(super) fn rewrite(&self, records: impl FnOnce() -> Vec<Record> + Send + 'static) {
        if let Some(orders) = &self.orders
            && !self.shown.is_rewriting.swap(true, Ordering::Relaxed)
        {
            self.send(Order::Rewrite { records: Box::new(records), orders: orders.clone() });
        }
    }

    /// Whether the file has grown enough to be rewritten.
    pub(super) fn is_large(&self) -> bool {
        let (size, least) =
            (self.shown.size.load(Ordering::Relaxed), self.shown.least.load(Ordering::Relaxed));
        size > least.saturating_mul(2).saturating_add(REWRITE_BYTES)
            && !self.shown.is_rewriting.load(Ordering::Relaxed)
    }

    /// Returns how large the file is.
    pub(super) fn size(&self) -> u64 {
        self.shown.size.load(Ordering::Relaxed)
    }

    /// Whether something was refused that the store has taken in.
    pub(super) fn has_failed(&self) -> bool {
        self.shown.has_failed.load(Ordering::Acquire)
    }

    /// Returns what the last write failed with, if none has succeeded since.
    pub(super) fn problem(&self) -> Option<String> {
        self.shown.problem().clone()
    }

    /// Takes back what failed, and lets `take` have each record that is left. Nothing may be appended meanwhile.
    pub(super) fn recover(&self, take: impl FnMut(Record)) -> Result<(), JournalError> {
        let (done, recovered) = channel();
        self.send(Order::Recover(done));
        let recovered = recovered.recv().unwrap_or_else(|_| Err(io::Error::other("the journal is closed")));
        recovered.map_err(failed("cut", &self.path))?;
        let file = File::open(&self.path).map_err(failed("open", &self.path))?;
        replay(&file, &self.path, take)?;
        self.shown.has_failed.store(false, Ordering::Release);
        Ok(())
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

/// Sees to it that a file's name is on disk.
pub(super) fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
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
        let damaged = || JournalError::Damaged { path: path.to_owned(), line: number };
        let read = reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line);
        read.map_err(failed("read", path))?;
        if line.last() != Some(&b'\n') {
            // Torn off at the end by a crash; before the end it is none of ours.
            let is_end = reader.fill_buf().map_err(failed("read", path))?.is_empty();
            return if is_end { Ok(size) } else { Err(damaged()) };
        }
        take(serde_json::from_slice(&line).map_err(|_| damaged())?);
        size += line.len() as u64;
    }
}

/// Writes a whole journal beside the one that is in use.
fn write_new(path: &Path, records: Records) -> io::Result<(File, u64)> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    let mut writer = BufWriter::with_capacity(1 << 16, file);
    let mut size = 0;
    for record in records() {
        let line = to_lines([&record]);
        size += line.len() as u64;
        writer.write_all(&line)?;
    }
    let file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    Ok((file, size))
}

/// The side of the thread.
struct Writing {
    file: File,
    path: PathBuf,
    // Invariant: what was promised is in this many bytes.
    size: u64,
    /// What was appended since the file began to be rewritten.
    tail: Option<Vec<u8>>,
    shown: Arc<Shown>,
    tell: Tell,
}

impl Writing {
    fn run(mut self, inbox: &Receiver<Order>) {
        let (mut lines, mut waiting) = (Vec::new(), Vec::new());
        while let Ok(first) = inbox.recv() {
            for order in std::iter::once(first).chain(inbox.try_iter()) {
                match order {
                    Order::Append { lines: more, done } => {
                        lines.extend_from_slice(&more);
                        waiting.push(done);
                        continue;
                    }
                    Order::Rewrite { .. } | Order::Rewritten(_) | Order::Remove(_) | Order::Recover(_) => {
                        self.append(&mut lines, &mut waiting);
                    }
                }
                self.do_beside(order);
            }
            self.append(&mut lines, &mut waiting);
        }
    }

    /// Does what is not appending; everything before it was appended.
    fn do_beside(&mut self, order: Order) {
        match order {
            Order::Append { .. } => {}
            Order::Rewrite { records, orders } => self.begin_rewrite(records, orders),
            Order::Rewritten(new) => self.end_rewrite(new),
            Order::Remove(files) => {
                for file in files.iter().filter(|_| !self.has_failed()) {
                    // The next start tries again.
                    fs::remove_file(file).ok();
                }
            }
            Order::Recover(done) => {
                // Who asked may have gone.
                done.send(self.take_back()).ok();
            }
        }
    }

    fn has_failed(&self) -> bool {
        self.shown.has_failed.load(Ordering::Acquire)
    }

    /// Writes what waits, and tells those who wait.
    fn append(&mut self, lines: &mut Vec<u8>, waiting: &mut Vec<oneshot::Sender<io::Result<()>>>) {
        let result = self.write(lines);
        lines.clear();
        for done in waiting.drain(..) {
            let told = match &result {
                Ok(()) => Ok(()),
                Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
            };
            // Who asked may have gone.
            done.send(told).ok();
        }
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.has_failed() {
            return Err(io::Error::other("an earlier write has failed"));
        }
        if lines.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.file.write_all(lines).and_then(|()| self.file.sync_data()) {
            self.fail(&error);
            return Err(error);
        }
        self.grow(self.size + lines.len() as u64);
        if let Some(tail) = &mut self.tail {
            tail.extend_from_slice(lines);
        }
        if self.shown.problem().take().is_some() {
            (self.tell)("it can be written again");
        }
        Ok(())
    }

    fn grow(&mut self, size: u64) {
        self.size = size;
        self.shown.size.store(size, Ordering::Relaxed);
    }

    fn fail(&mut self, error: &io::Error) {
        let is_new = self.shown.problem().replace(error.to_string()).is_none();
        if is_new {
            (self.tell)(&format!("{} cannot be written: {error}", self.path.display()));
        }
        self.tail = None;
        // What is left of it is taken back before anything is written again.
        self.take_back().ok();
        self.shown.has_failed.store(true, Ordering::Release);
    }

    fn take_back(&mut self) -> io::Result<()> {
        self.file.set_len(self.size)?;
        self.file.seek(io::SeekFrom::Start(self.size)).map(drop)
    }

    fn begin_rewrite(&mut self, records: Records, orders: Sender<Order>) {
        self.tail = (!self.has_failed()).then(Vec::new);
        let path = self.path.with_extension("journal.new");
        let writing = thread::Builder::new().name("rewrite".to_owned()).spawn(move || {
            // A journal that is closed meanwhile stays as it is.
            orders.send(Order::Rewritten(write_new(&path, records))).ok();
        });
        if let Err(error) = writing {
            self.end_rewrite(Err(error));
        }
    }

    /// Puts the new file in the old one's place. If that fails the old one is as good, until it has grown again.
    fn end_rewrite(&mut self, new: io::Result<(File, u64)>) {
        let tail = self.tail.take();
        let replaced = match (new, tail) {
            (Ok((file, size)), Some(tail)) => self.replace(file, size, &tail),
            (Ok(_), None) => Err(io::Error::other("the journal has failed meanwhile")),
            (Err(error), _) => Err(error),
        };
        let least = match replaced {
            Ok(size) => size,
            Err(error) => {
                (self.tell)(&format!("{} is not rewritten: {error}", self.path.display()));
                self.size
            }
        };
        self.shown.least.store(least, Ordering::Relaxed);
        self.shown.is_rewriting.store(false, Ordering::Relaxed);
    }

    /// Returns how large the new file is without what was appended meanwhile.
    fn replace(&mut self, mut file: File, size: u64, tail: &[u8]) -> io::Result<u64> {
        file.write_all(tail)?;
        file.sync_all()?;
        fs::rename(self.path.with_extension("journal.new"), &self.path)?;
        // The new file counts from here on, whether its name outlives a power cut or not: the old one has no name.
        self.file = file;
        self.grow(size + tail.len() as u64);
        sync_parent(&self.path)?;
        Ok(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> Journal {
        Journal::open(path, |_| (), Arc::new(|_| ())).unwrap()
    }

    fn read(path: &Path) -> Result<Vec<Record>, JournalError> {
        let mut records = Vec::new();
        Journal::open(path, |record| records.push(record), Arc::new(|_| ())).map(|_| records)
    }

    fn record(next: u64) -> Record {
        Record::Counter { next }
    }

    #[tokio::test]
    async fn what_was_promised_is_read_back_and_a_torn_line_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.journal");
        let journal = open(&path);
        journal.append(to_lines(&[record(1)])).wait().await.unwrap();
        journal.append(to_lines(&[record(2)])).wait().await.unwrap();
        drop(journal);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"record\":\"coun").unwrap();
        assert_eq!(read(&path).unwrap(), [record(1), record(2)]);
        let journal = open(&path);
        journal.append(to_lines(&[record(3)])).wait().await.unwrap();
        assert_eq!(read(&path).unwrap(), [record(1), record(2), record(3)]);
        drop(journal);
        fs::write(&path, "x\n").unwrap();
        assert!(matches!(read(&path), Err(JournalError::Damaged { line: 1, .. })));
    }

    /// What is appended while the new file is written is in it, and nothing of the old one is.
    #[tokio::test]
    async fn a_rewrite_loses_nothing_that_is_appended_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.journal");
        let journal = open(&path);
        journal.append(to_lines(&[record(1)])).wait().await.unwrap();
        let (go, gone) = channel::<()>();
        journal.rewrite(move || {
            gone.recv().ok();
            vec![record(9)]
        });
        // On disk while the rewrite waits: it holds nobody up.
        journal.append(to_lines(&[record(10)])).wait().await.unwrap();
        go.send(()).unwrap();
        drop(journal);
        assert_eq!(read(&path).unwrap(), [record(9), record(10)]);
    }

    /// A line that is too long is no line that a crash has torn off: what follows it is not thrown away.
    #[test]
    fn a_line_that_is_too_long_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.journal");
        let file = File::create(&path).unwrap();
        file.set_len(LONGEST_LINE + 10).unwrap();
        assert!(matches!(read(&path), Err(JournalError::Damaged { line: 1, .. })));
        assert_eq!(fs::metadata(&path).unwrap().len(), LONGEST_LINE + 10, "it is left as it was");
    }
}

//! What happened, on disk: one line per event, in the form of every journal (number, time, event, checksum last).
//!
//! Each component of a fleet has its own log in `STATE/fleet/events/`. Files are `events-NNN.jsonl`; a full one is followed
//! by the next number and the oldest of more than [`KEPT`] goes. Numbers of events go on from file to file, so that a
//! gap shows. A line is in the kernel's hands when [`Events::write`] returns. What a crash cut off is dropped on the next
//! open.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use stead_model::event::{decode_as, encode};
use stead_model::fleet::{CommitId, InstanceKey};
use stead_model::time::Timestamp;
use stead_model::{GroupName, WorkerName};
use stead_runner::clock;

#[cfg(test)]
mod tests;

/// The largest size of a file.
pub const LARGEST: u64 = 64 << 20;

/// How many files are kept.
pub const KEPT: usize = 16;

/// How much of a file's end is read for its last line: lines are far shorter.
const TAIL: u64 = 1 << 20;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ev {
    /// The watched ref has a new head.
    HeadSeen,
    /// A head is not taken.
    HeadRejected,
    /// A commit came a stage further, or failed.
    Pipeline,
    /// A commit has its generation.
    Reserved,
    /// A publication was judged.
    Verdict,
    /// A generation became active.
    Activated,
    /// A worker was enrolled.
    WorkerJoined,
    /// A worker's state changed.
    WorkerState,
    /// An instance got a worker.
    Placed,
    /// An instance got another worker.
    Moved,
    /// An instance may run its new spec.
    Released,
    /// A rollout stopped.
    RolloutHeld,
    /// A rollout is over.
    RolloutDone,
    /// So many workers are silent that nothing goes elsewhere, or that is over.
    Brake,
    /// Artifacts are on the worker.
    Fetched,
    /// An instance was started.
    Started,
    /// A running instance was found again.
    Adopted,
    /// An instance is ready.
    Ready,
    /// An instance ended.
    Exited,
    /// An instance was stopped.
    Stopped,
    /// An instance is wanted no more, or what was left of it is gone.
    Removed,
    /// Singletons were killed because no master was heard.
    Fenced,
    /// Something is not as assigned.
    Drift,
    /// Something was frozen, or is no more.
    Hold,
    /// Who leads changed.
    Leader,
    /// A call was refused.
    Refused,
}

/// What an event is about, as it applies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fields {
    /// Of which commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<CommitId>,
    /// Of which generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// Of which group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupName>,
    /// Of which instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceKey>,
    /// Of which worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerName>,
    /// At which stage.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stage: String,
    /// With which code.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub code: String,
    /// Who did it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// Why.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// One line as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Written {
    ev: Ev,
    #[serde(flatten)]
    fields: Fields,
}

/// One line as it is read.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Line {
    /// Its number, from 1 over all files.
    pub seq: u64,
    /// When.
    pub t: Timestamp,
    /// What happened.
    pub ev: Ev,
    /// To what.
    #[serde(flatten)]
    pub fields: Fields,
}

/// The event log of one component. Shared by all its tasks.
pub struct Events {
    directory: PathBuf,
    largest: u64,
    inner: Mutex<Inner>,
}

struct Inner {
    /// None: it has not begun.
    log: Option<Log>,
    copy: Option<Box<dyn Write + Send>>,
}

/// The file that is written to.
struct Log {
    file: File,
    number: u64,
    length: u64,
    next_seq: u64,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl Events {
    /// Returns the log in `directory`, which is made if it is not there. What a crash cut off of its last line goes.
    pub fn open(directory: &Path) -> io::Result<Self> {
        Self::open_with(directory, LARGEST)
    }

    fn open_with(directory: &Path, largest: u64) -> io::Result<Self> {
        let events = Self { largest, ..Self::at(directory) };
        events.begin()?;
        Ok(events)
    }

    /// Returns the log in `directory`, which is left alone until it [begins](Self::begin): whoever shares the directory with
    /// others takes its lock first.
    pub fn at(directory: &Path) -> Self {
        let inner = Mutex::new(Inner { log: None, copy: None });
        Self { directory: directory.to_owned(), largest: LARGEST, inner }
    }

    /// Begins to write, if it has not. What a crash cut off of the last line goes.
    pub fn begin(&self) -> io::Result<()> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        begun(&mut inner.log, &self.directory).map(drop)
    }

    /// Returns where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the log that writes every line to `copy` too, such as a daemon's standard error.
    pub fn with_copy(self, copy: Box<dyn Write + Send>) -> Self {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).copy = Some(copy);
        self
    }

    /// Says something that is no event, such as that nobody answers, to whoever follows the copy.
    pub fn say(&self, message: &str) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(copy) = &mut inner.copy {
            let line = serde_json::json!({"t": clock::now(), "message": message});
            copy.write_all(format!("{line}\n").as_bytes()).ok();
        }
    }

    /// Writes down that something happened. An error means that the line is not in the file.
    pub fn write(&self, ev: Ev, fields: Fields) -> io::Result<()> {
        self.write_all([(ev, fields)])
    }

    /// Writes down several things at once.
    pub fn write_all(&self, events: impl IntoIterator<Item = (Ev, Fields)>) -> io::Result<()> {
        let now = clock::now();
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { log, copy } = &mut *inner;
        let log = begun(log, &self.directory)?;
        let mut lines = Vec::new();
        let mut seq = log.next_seq;
        for (ev, fields) in events {
            encode(seq, now, &Written { ev, fields }, &mut lines);
            seq += 1;
        }
        if lines.is_empty() {
            return Ok(());
        }
        if log.length > 0 && log.length + lines.len() as u64 > self.largest {
            self.begin_next(log)?;
        }
        if let Err(error) = log.file.write_all(&lines) {
            // What was written in part would be a damaged line in the middle of the file.
            log.file.set_len(log.length)?;
            return Err(error);
        }
        log.length += lines.len() as u64;
        log.next_seq = seq;
        if let Some(copy) = copy {
            // A reader of the copy that is gone changes nothing.
            copy.write_all(&lines).ok();
        }
        Ok(())
    }

    /// Returns the number that the next event has.
    pub fn next_seq(&self) -> io::Result<u64> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(begun(&mut inner.log, &self.directory)?.next_seq)
    }

    /// Returns all whole lines from number `first` on, as far as they are kept.
    pub fn since(&self, first: u64) -> io::Result<Vec<Line>> {
        // Nobody writes, and no file goes, meanwhile.
        let _inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = Vec::new();
        for number in numbers(&self.directory)?.into_iter().rev() {
            let mut lines = lines_of(&path(&self.directory, number))?;
            let is_enough = lines.first().is_some_and(|line| line.seq <= first);
            lines.retain(|line| line.seq >= first);
            lines.append(&mut found);
            found = lines;
            if is_enough {
                break;
            }
        }
        Ok(found)
    }

    fn begin_next(&self, log: &mut Log) -> io::Result<()> {
        log.file.sync_data()?;
        let number = log.number + 1;
        let mut options = OpenOptions::new();
        let path = path(&self.directory, number);
        log.file = options.read(true).append(true).create_new(true).mode(0o600).open(path)?;
        (log.number, log.length) = (number, 0);
        let numbers = numbers(&self.directory)?;
        for old in numbers.iter().take(numbers.len().saturating_sub(KEPT)) {
            fs::remove_file(self::path(&self.directory, *old))?;
        }
        Ok(())
    }
}

/// Returns the log, begun if it had not.
fn begun<'l>(log: &'l mut Option<Log>, directory: &Path) -> io::Result<&'l mut Log> {
    let begun = match log.take() {
        Some(log) => log,
        None => begin(directory)?,
    };
    Ok(log.insert(begun))
}

fn begin(directory: &Path) -> io::Result<Log> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let numbers = numbers(directory)?;
    let number = numbers.last().copied().unwrap_or(1);
    let path = path(directory, number);
    let mut options = OpenOptions::new();
    let mut file = options.read(true).append(true).create(true).mode(0o600).open(&path)?;
    let end = last_line(&mut file)?;
    if end.length != file.metadata()?.len() {
        file.set_len(end.length)?;
    }
    let mut last = end.seq;
    // A new file is empty until its first line: the number is in the one before.
    for earlier in numbers.iter().rev().skip(1) {
        if last.is_some() {
            break;
        }
        last = last_line(&mut File::open(self::path(directory, *earlier))?)?.seq;
    }
    Ok(Log { file, number, length: end.length, next_seq: last.map_or(1, |seq| seq + 1) })
}

/// Returns all whole lines of the log in `directory`, the oldest first.
pub fn read(directory: &Path) -> io::Result<Vec<Line>> {
    let mut found = Vec::new();
    for number in numbers(directory)? {
        found.append(&mut lines_of(&path(directory, number))?);
    }
    Ok(found)
}

fn lines_of(path: &Path) -> io::Result<Vec<Line>> {
    let bytes = fs::read(path)?;
    let lines = bytes.split(|byte| *byte == b'\n');
    Ok(lines.filter_map(|line| decode_as(line).ok()).collect())
}

fn path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("events-{number:03}.jsonl"))
}

/// Returns the numbers of the files, sorted.
fn numbers(directory: &Path) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("events-")?.strip_suffix(".jsonl"));
        found.extend(number.and_then(|number| number.parse::<u64>().ok()));
    }
    found.sort_unstable();
    Ok(found)
}

/// Where the whole lines of a file end.
struct End {
    length: u64,
    seq: Option<u64>,
}

fn last_line(file: &mut File) -> io::Result<End> {
    #[derive(Deserialize)]
    struct Numbered {
        seq: u64,
    }

    let length = file.metadata()?.len();
    let start = length.saturating_sub(TAIL);
    file.seek(SeekFrom::Start(start))?;
    let mut tail = Vec::new();
    file.take(TAIL).read_to_end(&mut tail)?;
    let mut end = tail.len();
    while let Some(newline) = tail.get(..end).and_then(|tail| tail.iter().rposition(|byte| *byte == b'\n')) {
        let begin = tail.get(..newline).and_then(|tail| tail.iter().rposition(|byte| *byte == b'\n'));
        let line = tail.get(begin.map_or(0, |begin| begin + 1)..newline).unwrap_or_default();
        if let Ok(Numbered { seq }) = decode_as(line) {
            return Ok(End { length: start + newline as u64 + 1, seq: Some(seq) });
        }
        end = newline;
    }
    // No line in what was read: only a file that is not ours, or one cut in its first line, has none.
    Ok(End { length: if start == 0 { 0 } else { length }, seq: None })
}

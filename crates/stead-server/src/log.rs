//! What a server says of what it does: one line of JSON each, written by a thread of its own.
//!
//! Lines hold routes, nodes, specs, ids of tokens and codes; never a token, a query or a path as it came.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};

use serde_json::{Map, Value, json};
use stead_runner::clock;

/// Lines that may wait for the disk: beyond it they are counted, not kept, so that a slow disk delays no answer.
const MOST_WAITING: usize = 8192;

/// The size at which a log is put aside; the one before is then gone.
const ROTATE_BYTES: u64 = 64 << 20;

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// A file, with one before it.
    File(PathBuf),
    /// Standard error, for who started the server.
    Stderr,
}

/// A log.
pub(crate) struct Log {
    lines: Option<SyncSender<String>>,
    lost: AtomicU64,
    writer: Option<JoinHandle<()>>,
}

impl Log {
    /// Opens a log.
    pub(crate) fn open(destination: &Destination) -> io::Result<Self> {
        let mut sink = Sink::open(destination)?;
        let (lines, inbox) = sync_channel(MOST_WAITING);
        let writer = thread::Builder::new().name("log".to_owned()).spawn(move || sink.run(&inbox))?;
        Ok(Self { lines: Some(lines), lost: AtomicU64::new(0), writer: Some(writer) })
    }

    /// Writes a line: what happened, and what is known of it.
    pub(crate) fn say(&self, what: &str, known: Map<String, Value>) {
        let mut members = Map::new();
        members.insert("at".to_owned(), json!(clock::now()));
        members.insert("event".to_owned(), json!(what));
        members.extend(known);
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            members.insert("lost_before".to_owned(), json!(lost));
        }
        let Some(lines) = &self.lines else { return };
        match lines.try_send(format!("{}\n", Value::Object(members))) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.lost.fetch_add(lost + 1, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.lines = None;
        if let Some(writer) = self.writer.take() {
            writer.join().ok();
        }
    }
}

struct Sink {
    path: Option<PathBuf>,
    file: Box<dyn Write + Send>,
    size: u64,
}

fn append(path: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    let size = file.metadata()?.len();
    Ok((file, size))
}

impl Sink {
    fn open(destination: &Destination) -> io::Result<Self> {
        match destination {
            Destination::Stderr => Ok(Self { path: None, file: Box::new(io::stderr()), size: 0 }),
            Destination::File(path) => {
                let (file, size) = append(path)?;
                Ok(Self { path: Some(path.clone()), file: Box::new(file), size })
            }
        }
    }

    fn run(&mut self, inbox: &Receiver<String>) {
        while let Ok(first) = inbox.recv() {
            let mut text = first;
            for line in inbox.try_iter().take(MOST_WAITING) {
                text.push_str(&line);
            }
            // A disk that is full must not end the server.
            self.file.write_all(text.as_bytes()).and_then(|()| self.file.flush()).ok();
            self.size += text.len() as u64;
            if self.size > ROTATE_BYTES {
                self.rotate();
            }
        }
    }

    fn rotate(&mut self) {
        self.size = 0;
        let Some(path) = &self.path else { return };
        let mut aside = path.clone().into_os_string();
        aside.push(".1");
        if fs::rename(path, &aside).is_ok()
            && let Ok((file, _)) = append(path)
        {
            self.file = Box::new(file);
        }
    }
}

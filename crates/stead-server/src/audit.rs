//! What operators did: a line of JSON each, on disk before they are answered, and never thrown away.
//!
//! Servers of one site write to one file, each line whole. It grows with what people do, which is little.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use serde_json::{Map, Value, json};
use stead_model::node::wire::{WireCode, WireError};
use stead_runner::clock;
use tokio::sync::oneshot;

struct Entry {
    line: String,
    done: oneshot::Sender<bool>,
}

/// The audit log.
pub(crate) struct Audit {
    entries: Option<Sender<Entry>>,
    writer: Option<JoinHandle<()>>,
}

impl Audit {
    /// Opens it.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        if let Some(parent) = path.parent() {
            File::open(parent)?.sync_all()?;
        }
        let (entries, inbox) = channel();
        let writer = thread::Builder::new().name("audit".to_owned()).spawn(move || write(file, &inbox))?;
        Ok(Self { entries: Some(entries), writer: Some(writer) })
    }

    /// Notes who did what. It is on disk when this returns.
    pub(crate) async fn note(&self, by: &str, what: &str, known: Value) -> Result<(), WireError> {
        let mut members = Map::new();
        members.insert("at".to_owned(), json!(clock::now()));
        members.insert("event".to_owned(), json!(what));
        members.insert("by".to_owned(), json!(by));
        if let Value::Object(known) = known {
            members.extend(known);
        }
        let (done, noted) = oneshot::channel();
        if let Some(entries) = &self.entries {
            // A writer that is gone drops `done`, which shows.
            entries.send(Entry { line: format!("{}\n", Value::Object(members)), done }).ok();
        }
        if noted.await.unwrap_or(false) {
            return Ok(());
        }
        Err(WireError::new(WireCode::E500, "it is done but cannot be noted: look at the disk of the server"))
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.entries = None;
        if let Some(writer) = self.writer.take() {
            writer.join().ok();
        }
    }
}

/// Writes what waits together, so that many at once cost one sync.
fn write(mut file: File, inbox: &Receiver<Entry>) {
    while let Ok(first) = inbox.recv() {
        let entries: Vec<Entry> = std::iter::once(first).chain(inbox.try_iter()).collect();
        let text: String = entries.iter().map(|entry| entry.line.as_str()).collect();
        let is_kept = file.write_all(text.as_bytes()).and_then(|()| file.sync_data()).is_ok();
        for entry in entries {
            // Who did it may have gone.
            entry.done.send(is_kept).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two servers of a site write to one file; each line is there as soon as its writer knows.
    #[tokio::test]
    async fn lines_are_there_when_they_are_noted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let (one, other) = (Audit::open(&path).unwrap(), Audit::open(&path).unwrap());
        for (audit, by) in [(&one, "ann"), (&other, "bob"), (&one, "cid")] {
            audit.note(by, "signal", json!({"id": "s1"})).await.unwrap();
            let text = std::fs::read_to_string(&path).unwrap();
            let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
            assert_eq!((&last["by"], &last["id"]), (&json!(by), &json!("s1")));
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 3);
    }
}

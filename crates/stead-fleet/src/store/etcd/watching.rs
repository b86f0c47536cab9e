//! What changes in etcd, as it does, over one answer that does not end.

use bytes::Bytes;

use super::http::Stream;
use super::*;

/// A watch that hears nothing for so long is asked for anew: a server may be gone without a word.
const SILENCE: Duration = Duration::from_secs(10);

/// The longest line of an answer; a transaction is far smaller.
const LONGEST_LINE: usize = 64 << 20;

/// What changes in etcd.
pub(super) struct Watching {
    store: Etcd,
    prefix: String,
    from: Revision,
    stream: Option<Stream>,
    buffer: Vec<u8>,
    /// Changes of a large transaction that is being applied.
    held: Option<Vec<Change>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Answer {
    result: Told,
    error: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Told {
    header: Header,
    canceled: bool,
    compact_revision: Number,
    events: Vec<Event>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Event {
    r#type: String,
    kv: KeyValue,
}

impl Watching {
    pub(super) fn new(store: Etcd, prefix: String, from: Revision) -> Self {
        Self { store, prefix, from, stream: None, buffer: Vec::new(), held: None }
    }

    /// Returns the next line, over a new answer if need be. Cancel-safe: what has come is kept.
    async fn line(&mut self) -> Result<Vec<u8>, StoreError> {
        loop {
            if let Some(at) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(at + 1);
                return Ok(std::mem::replace(&mut self.buffer, rest));
            }
            if self.buffer.len() > LONGEST_LINE {
                return Err(StoreError::Unavailable("etcd tells of a change that is too large".to_owned()));
            }
            let Some(stream) = &mut self.stream else {
                let (start, end) = self.store.bounds("");
                let request = json!({"create_request": {
                    "key": start, "range_end": end, "start_revision": self.from.to_string(),
                }});
                self.buffer.clear();
                // What of a large transaction had come comes again.
                self.held = None;
                self.stream = Some(self.store.http.stream("/v3/watch", &request).await?);
                continue;
            };
            match tokio::time::timeout(SILENCE, stream.next()).await {
                Ok(Ok(Some(piece))) => self.buffer.extend_from_slice(&piece),
                Ok(Ok(None) | Err(_)) | Err(_) => self.stream = None,
            }
        }
    }

    /// Returns what a line tells of.
    fn read(&mut self, line: &[u8]) -> Result<Vec<Change>, StoreError> {
        let answer: Answer = serde_json::from_slice(line)
            .map_err(|error| StoreError::Unavailable(format!("etcd's watch is no JSON: {error}")))?;
        if let Some(error) = answer.error {
            self.stream = None;
            return Err(StoreError::Unavailable(format!("etcd's watch ended: {error}")));
        }
        let told = answer.result;
        if told.compact_revision.0 > 0 {
            return Err(StoreError::Compacted);
        }
        if told.canceled {
            self.stream = None;
            return Ok(Vec::new());
        }
        let mut changes = Vec::new();
        for event in &told.events {
            let entry = self.store.entry(&event.kv)?;
            let revision = entry.revision;
            let is_put = event.r#type != "DELETE";
            if entry.key == PENDING {
                if is_put {
                    self.held.get_or_insert_default();
                } else {
                    changes.extend(self.held.take().unwrap_or_default());
                }
            } else if entry.key.starts_with(&self.prefix) && !is_hidden(&entry.key) {
                let change =
                    if is_put { Change::Put(entry) } else { Change::Deleted { key: entry.key, revision } };
                self.held.as_mut().unwrap_or(&mut changes).push(change);
            }
        }
        // An answer that begins anew begins before a transaction that has not been told of yet.
        if self.held.is_none() && !told.events.is_empty() {
            self.from = told
                .events
                .iter()
                .map(|event| event.kv.mod_revision.0)
                .fold(self.from, |from, revision| from.max(revision + 1));
        }
        Ok(changes)
    }
}

#[async_trait]
impl Watch for Watching {
    async fn next(&mut self) -> Result<Vec<Change>, StoreError> {
        loop {
            let line = self.line().await?;
            let changes = self.read(Bytes::from(line).trim_ascii())?;
            if !changes.is_empty() {
                return Ok(changes);
            }
        }
    }
}

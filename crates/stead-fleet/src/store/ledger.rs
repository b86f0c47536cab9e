//! What the fleet's authority keeps in the master's store: its founding, and records of join tokens.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;
use zeroize::Zeroizing;

use super::{Committed, Embedded, Entry, FLEET, FleetStore, Put, StoreError, Txn, Watch, fleet_id};
use crate::identity::{Enrolment, Founding, Ledger, LedgerError};

/// The fleet's founding.
const FOUNDING: &str = "meta/ca";
/// Says that a master begins anew, and where it is with that.
pub(crate) const REBUILD: &str = "meta/rebuild";
/// Where it is at first: workers report.
pub(crate) const COLLECTING: &str = "collecting";
/// Records of join tokens, by their ids.
const RECORDS: &str = "jti/";
/// After so long records are read again in any case.
const PATIENCE: Duration = Duration::from_secs(60);
/// How soon a store that was away is asked again.
const AGAIN: Duration = Duration::from_secs(2);

/// The ledger of a master.
pub struct StoreLedger {
    store: Arc<dyn FleetStore>,
    watch: Mutex<Option<Box<dyn Watch>>>,
    copy: Option<Copied>,
}

/// A copy of the records, one a line, in the order they were written: the last one of a token counts.
struct Copied {
    path: PathBuf,
    file: std::sync::Mutex<File>,
}

impl Copied {
    /// Writes a record behind the others. It is on the disk when this returns.
    fn append(&self, line: &[u8]) -> io::Result<()> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let mut file = &*file;
        file.write_all(line)?;
        file.sync_data()
    }
}

impl std::fmt::Debug for StoreLedger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreLedger").field("store", &self.store).finish_non_exhaustive()
    }
}

impl StoreLedger {
    /// Returns the ledger in `store`, which every master of the fleet shares.
    pub fn new(store: Arc<dyn FleetStore>) -> Self {
        Self { store, watch: Mutex::new(None), copy: None }
    }

    /// Returns the ledger in `store`, whose file is `path`, and copies every record to a file beside that: whoever was
    /// admitted can come back to a fleet whose store is lost, and whoever was revoked cannot.
    pub async fn copied(store: Arc<dyn FleetStore>, path: &Path) -> Result<Self, StoreError> {
        let copy = copy_of_records(path);
        let failed = |source| StoreError::File { what: "write", path: copy.clone(), source };
        let mut lines = Vec::new();
        for entry in store.range(RECORDS, None).await?.entries {
            lines.extend_from_slice(&entry.value);
            lines.push(b'\n');
        }
        write_copy(&copy, &lines).map_err(failed)?;
        let file = File::options().append(true).open(&copy).map_err(failed)?;
        let copy = Copied { path: copy.clone(), file: std::sync::Mutex::new(file) };
        Ok(Self { copy: Some(copy), ..Self::new(store) })
    }
}

fn failed(error: StoreError) -> LedgerError {
    LedgerError(error.to_string())
}

fn read(entry: &Entry) -> Result<(Enrolment, u64), LedgerError> {
    let record = serde_json::from_slice(&entry.value)
        .map_err(|error| LedgerError(format!("{} cannot be read: {error}", entry.key)))?;
    Ok((record, u64::try_from(entry.revision).unwrap_or_default()))
}

#[async_trait]
impl Ledger for StoreLedger {
    async fn fleet(&self) -> Result<String, LedgerError> {
        fleet_id(&*self.store).await.map_err(failed)
    }

    async fn founding(&self, first: Founding) -> Result<Founding, LedgerError> {
        loop {
            if let Some(entry) = self.store.get(FOUNDING).await.map_err(failed)? {
                let value = Zeroizing::new(entry.value);
                let text = std::str::from_utf8(&value)
                    .map_err(|_| LedgerError("the fleet's founding is no text".to_owned()))?;
                return Founding::from_json(text);
            }
            // Refused: another master was faster, whose founding it is.
            let txn = Txn::default().when(FOUNDING, 0).put(FOUNDING, first.to_json().as_bytes());
            self.store.txn(txn).await.map_err(failed)?;
        }
    }

    async fn enrolment(&self, jti: &str) -> Result<Option<(Enrolment, u64)>, LedgerError> {
        let entry = self.store.get(&format!("{RECORDS}{jti}")).await.map_err(failed)?;
        entry.as_ref().map(read).transpose()
    }

    async fn enrolments(&self) -> Result<Vec<(Enrolment, u64)>, LedgerError> {
        self.store.range(RECORDS, None).await.map_err(failed)?.entries.iter().map(read).collect()
    }

    async fn record(&self, enrolment: &Enrolment, seen: Option<u64>) -> Result<bool, LedgerError> {
        let key = format!("{RECORDS}{}", enrolment.jti);
        let revision = i64::try_from(seen.unwrap_or_default()).unwrap_or(i64::MAX);
        let value = serde_json::to_vec(enrolment).map_err(|error| LedgerError(error.to_string()))?;
        let mut line = value.clone();
        line.push(b'\n');
        let done =
            self.store.txn(Txn::default().when(&key, revision).put(&key, value)).await.map_err(failed)?;
        match (done, &self.copy) {
            (Committed::Refused, _) => Ok(false),
            (Committed::Done(_), None) => Ok(true),
            (Committed::Done(_), Some(copy)) => {
                let copied = copy.append(&line);
                copied.map_err(|error| LedgerError(format!("{}: {error}", copy.path.display())))?;
                Ok(true)
            }
        }
    }

    async fn changed(&self) {
        let mut kept = self.watch.lock().await;
        if kept.is_none() {
            // The watch begins before records are read again, so that nothing falls between.
            let Ok(range) = self.store.range(RECORDS, None).await else { return pause().await };
            let Ok(watch) = self.store.watch(RECORDS, range.revision + 1).await else { return pause().await };
            *kept = Some(watch);
            return;
        }
        let Some(watch) = kept.as_mut() else { return };
        if let Ok(Err(_)) = tokio::time::timeout(PATIENCE, watch.next()).await {
            *kept = None;
            drop(kept);
            pause().await;
        }
    }
}

async fn pause() {
    tokio::time::sleep(AGAIN).await;
}

/// Returns where a copy of the fleet's authority is, of the store at `path`.
fn copy_of_authority(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}.authority", path.display()))
}

/// Returns where a copy of the records of join tokens is, of the store at `path`.
fn copy_of_records(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}.enrolments", path.display()))
}

/// Returns the records of the copy at `path` by their keys. What was being written when it ended is left out.
fn copied_records(path: &Path) -> BTreeMap<String, Enrolment> {
    let bytes = std::fs::read(path).unwrap_or_default();
    let lines = bytes.split(|byte| *byte == b'\n');
    let records = lines.filter_map(|line| serde_json::from_slice::<Enrolment>(line).ok());
    records.map(|record| (format!("{RECORDS}{}", record.jti), record)).collect()
}

/// Keeps a copy of the fleet's authority beside the store at `path`, as secret as that: without it nobody who has a
/// certificate could come back to a fleet whose store is lost.
pub async fn keep_authority(store: &dyn FleetStore, path: &Path) -> Result<(), StoreError> {
    let copy = copy_of_authority(path);
    let mut kept: BTreeMap<&str, String> = BTreeMap::new();
    for key in [FOUNDING, FLEET] {
        let Some(entry) = store.get(key).await? else { return Ok(()) };
        kept.insert(key, String::from_utf8_lossy(&entry.value).into_owned());
    }
    let text = Zeroizing::new(serde_json::to_string(&kept).unwrap_or_default());
    if std::fs::read_to_string(&copy).is_ok_and(|there| there == *text) {
        return Ok(());
    }
    write_copy(&copy, text.as_bytes()).map_err(|source| StoreError::File {
        what: "write",
        path: copy,
        source,
    })
}

fn write_copy(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    // Such files can be read by their owner alone.
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    File::open(directory)?.sync_all()
}

/// Puts a store that cannot be used aside and returns a new one in its place that keeps the fleet's authority, who was
/// enrolled as far as that can still be read, and the names of those who had certificates.
///
/// # Errors
/// If there was an authority and it is nowhere any more: then nothing is changed.
pub async fn begin_anew(path: &Path) -> Result<(Embedded, Vec<String>), StoreError> {
    let mut names = Vec::new();
    let copy = copy_of_authority(path);
    let (store, _) = Embedded::replace(path, |source, was_there| {
        // With the first write: whoever is killed before it leads is followed by one that begins anew, not by an empty one.
        let mut puts: BTreeMap<String, Vec<u8>> = BTreeMap::from([(REBUILD.to_owned(), COLLECTING.into())]);
        let mut records = copied_records(&copy_of_records(path));
        for prefix in [FOUNDING, FLEET, "meta/epoch", RECORDS] {
            for entry in source.into_iter().flat_map(|source| Embedded::salvage(source, prefix)) {
                if prefix != RECORDS {
                    puts.insert(entry.key, entry.value);
                    continue;
                }
                let Ok((record, _)) = read(&entry) else { continue };
                // The store has the newest, unless it is an older one that was put back: who is revoked stays so.
                let is_revoked = records.get(&entry.key).is_some_and(|copied| copied.revoked);
                records.insert(entry.key, Enrolment { revoked: record.revoked || is_revoked, ..record });
            }
        }
        for (key, record) in records {
            let Ok(value) = serde_json::to_vec(&record) else { continue };
            if let Enrolment { name: Some(name), revoked: false, certificates, .. } = record
                && !certificates.is_empty()
            {
                names.push(name);
            }
            puts.insert(key, value);
        }
        let text = Zeroizing::new(std::fs::read_to_string(&copy).unwrap_or_default());
        let copied: BTreeMap<String, String> = serde_json::from_str(&text).unwrap_or_default();
        if !puts.contains_key(FOUNDING) || !puts.contains_key(FLEET) {
            puts.extend(copied.into_iter().map(|(key, value)| (key, value.into_bytes())));
        }
        if was_there && !(puts.contains_key(FOUNDING) && puts.contains_key(FLEET)) {
            return Err(StoreError::NoAuthority { path: path.to_owned(), copy: copy.clone() });
        }
        Ok(puts.into_iter().map(|(key, value)| Put { key, value, lease: None }).collect())
    })?;
    names.sort();
    names.dedup();
    Ok((store, names))
}

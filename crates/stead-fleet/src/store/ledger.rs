//! What the fleet's authority keeps in the master's store: its founding, and records of join tokens.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;
use zeroize::Zeroizing;

use super::{Committed, Embedded, Entry, FLEET, FleetStore, Put, StoreError, Txn, Watch, fleet_id};
use crate::identity::{Enrolment, Founding, Ledger, LedgerError};

/// The fleet's founding.
const FOUNDING: &str = "meta/ca";
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
}

impl std::fmt::Debug for StoreLedger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreLedger").field("store", &self.store).finish_non_exhaustive()
    }
}

impl StoreLedger {
    /// Returns the ledger in `store`, which every master of the fleet shares.
    pub fn new(store: Arc<dyn FleetStore>) -> Self {
        Self { store, watch: Mutex::new(None) }
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
        let done =
            self.store.txn(Txn::default().when(&key, revision).put(&key, value)).await.map_err(failed)?;
        Ok(match done {
            Committed::Done(_) => true,
            Committed::Refused => false,
        })
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
        let mut puts: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for prefix in [FOUNDING, FLEET, "meta/epoch", RECORDS] {
            for entry in source.into_iter().flat_map(|source| Embedded::salvage(source, prefix)) {
                if let Ok((Enrolment { name: Some(name), revoked: false, certificates, .. }, _)) =
                    read(&entry)
                    && !certificates.is_empty()
                {
                    names.push(name);
                }
                puts.insert(entry.key, entry.value);
            }
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

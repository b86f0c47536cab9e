//! A store in one file, for one process: SQLite with a write-ahead log, synced before an answer.
//!
//! `live` has the keys as they are, `past` what they were, each from `revision` to `until`; compaction empties the latter.
//! Every row has a checksum of its own, for SQLite has none. A lock beside the file keeps a second process out; it also
//! remembers that there was a file, so that a missing one is never taken for a new fleet.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Row, params};
use rustix::fs::{FlockOperation, flock};
use stead_runner::clock;
use tokio::sync::watch;

use super::{
    Change, Committed, Entry, FleetStore, LeaseId, Put, Range, Revision, StoreError, Txn, Watch, check,
    end_of,
};

mod damage;

/// What tells our files from others': `SFLT`.
const APPLICATION: i32 = 0x5346_4c54;

/// The form of the tables.
const VERSION: i32 = 1;

const SCHEMA: &str = "
CREATE TABLE head(one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL, compacted INTEGER NOT NULL);
INSERT INTO head VALUES (1, 1, 0);
CREATE TABLE live(key TEXT PRIMARY KEY, revision INTEGER NOT NULL, leased INTEGER NOT NULL, sum INTEGER NOT NULL,
    value BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX live_revision ON live(revision);
CREATE TABLE past(key TEXT NOT NULL, revision INTEGER NOT NULL, until INTEGER NOT NULL, deleted INTEGER NOT NULL,
    sum INTEGER NOT NULL, value BLOB NOT NULL, PRIMARY KEY (key, revision)) WITHOUT ROWID;
CREATE INDEX past_revision ON past(revision);
CREATE INDEX past_until ON past(until);
";

/// A store in one file. All handles of one file share it.
#[derive(Clone)]
pub struct Embedded {
    inner: Arc<Mutex<Inner>>,
    head: watch::Sender<Revision>,
    path: PathBuf,
}

impl std::fmt::Debug for Embedded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Embedded").field("path", &self.path).finish_non_exhaustive()
    }
}

struct Inner {
    connection: Connection,
    path: PathBuf,
    leases: BTreeMap<LeaseId, Lease>,
    last_lease: i64,
    head: watch::Sender<Revision>,
    // Held as long as the store is open.
    _lock: File,
}

struct Lease {
    ttl: Duration,
    ends: Instant,
    keys: Vec<String>,
}

/// Whether a store that is not there may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    Make,
    Refuse,
}

impl Embedded {
    /// Returns the store in the file `path`, a new one if there never was one.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let directory = path.parent().unwrap_or(Path::new("."));
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(failed("make", directory))?;
        let (lock, missing) = take_lock(path)?;
        if !path.exists() {
            if missing == Missing::Refuse {
                return Err(StoreError::Lost { path: path.to_owned() });
            }
            make(path)?;
        }
        remember(path, &lock)?;
        Self::open_locked(path, lock)
    }

    /// Puts a file that cannot be used aside and returns a new store in its place, with the name of the old file.
    ///
    /// `keep` says what the new one begins with; it is given the file, or what an earlier try made for its place, and
    /// whether there ever was one. The new file has it before the old one goes, so that there is never one without.
    pub fn replace(
        path: &Path,
        keep: impl FnOnce(Option<&Path>, bool) -> Result<Vec<Put>, StoreError>,
    ) -> Result<(Self, Option<PathBuf>), StoreError> {
        let (lock, missing) = take_lock(path)?;
        let next = beside(path, "next");
        let source = [path, &next].into_iter().find(|source| source.exists());
        let puts = keep(source, source.is_some() || missing == Missing::Refuse)?;
        let filled = beside(path, "filled");
        make_file(&filled)?;
        let spare = lock.try_clone().map_err(failed("lock", path))?;
        Self::open_locked(&filled, spare)?.fill(puts)?;
        fs::rename(&filled, &next).map_err(failed("make", &next))?;
        sync_directory(path)?;
        let aside = (1..).map(|number| beside(path, &format!("broken-{number}"))).find(|name| !name.exists());
        let mut moved = None;
        if let Some(aside) = aside.filter(|_| path.exists()) {
            fs::rename(path, &aside).map_err(failed("put aside", path))?;
            moved = Some(aside);
        }
        for rest in ["-wal", "-shm"] {
            let file = PathBuf::from(format!("{}{rest}", path.display()));
            match (&moved, file.exists()) {
                (Some(aside), true) => {
                    let name = PathBuf::from(format!("{}{rest}", aside.display()));
                    fs::rename(&file, name).map_err(failed("put aside", &file))?;
                }
                (None, true) => fs::remove_file(&file).map_err(failed("remove", &file))?,
                (_, false) => {}
            }
        }
        fs::rename(&next, path).map_err(failed("make", path))?;
        sync_directory(path)?;
        remember(path, &lock)?;
        Ok((Self::open_locked(path, lock)?, moved))
    }

    /// Writes the first keys, and closes.
    fn fill(self, puts: Vec<Put>) -> Result<(), StoreError> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.txn(Txn { puts, ..Txn::default() })?;
        Ok(())
    }

    /// Returns what can still be read of the keys under `prefix` in a file that may be damaged.
    pub fn salvage(path: &Path, prefix: &str) -> Vec<Entry> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let Ok(connection) = Connection::open_with_flags(path, flags) else { return Vec::new() };
        let rows = read_live(&connection, prefix);
        rows.into_iter().filter_map(|row| row.ok().and_then(|row| row.into_entry().ok())).collect()
    }

    fn open_locked(path: &Path, lock: File) -> Result<Self, StoreError> {
        damage::check_header(path)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(|error| told(path, &error))?;
        set_up(&connection).map_err(|error| told(path, &error))?;
        damage::check_structure(path, &connection)?;
        let mark = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
        let found = mark("application_id").and_then(|id| Ok((id, mark("user_version")?)));
        let (application, version) = found.map_err(|error| told(path, &error))?;
        if application != APPLICATION || version != VERSION {
            let what = format!("it is no store of a fleet of this version ({application:x}, {version})");
            return Err(StoreError::Corrupted { path: path.to_owned(), offset: 60, what });
        }
        let (head, _) = watch::channel(0);
        let mut inner = Inner {
            connection,
            path: path.to_owned(),
            leases: BTreeMap::new(),
            last_lease: 0,
            head: head.clone(),
            _lock: lock,
        };
        // Who held these is gone, for there is one process.
        let leased = inner.leased_keys()?;
        inner.txn(Txn { deletes: leased, ..Txn::default() })?;
        let revision = inner.revision()?;
        head.send_replace(revision);
        Ok(Self { inner: Arc::new(Mutex::new(inner)), head, path: path.to_owned() })
    }

    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Inner) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let inner = Arc::clone(&self.inner);
        let done = tokio::task::spawn_blocking(move || {
            let mut inner = inner.lock().unwrap_or_else(PoisonError::into_inner);
            inner.end_leases(clock::instant())?;
            work(&mut inner)
        });
        done.await.unwrap_or_else(|_| Err(StoreError::Unavailable("it was cut off".to_owned())))
    }
}

#[async_trait]
impl FleetStore for Embedded {
    fn kind(&self) -> &'static str {
        "embedded"
    }

    async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let key = key.to_owned();
        self.with(move |inner| inner.get(&key)).await
    }

    async fn range(&self, prefix: &str, at: Option<Revision>) -> Result<Range, StoreError> {
        let prefix = prefix.to_owned();
        self.with(move |inner| inner.range(&prefix, at)).await
    }

    async fn txn(&self, txn: Txn) -> Result<Committed, StoreError> {
        check(&txn)?;
        self.with(move |inner| inner.txn(txn)).await
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Box<dyn Watch>, StoreError> {
        let watch =
            Following { store: self.clone(), prefix: prefix.to_owned(), from, head: self.head.subscribe() };
        Ok(Box::new(watch))
    }

    async fn lease(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.with(move |inner| {
            inner.last_lease += 1;
            let id = LeaseId(inner.last_lease);
            inner.leases.insert(id, Lease { ttl, ends: clock::instant() + ttl, keys: Vec::new() });
            Ok(id)
        })
        .await
    }

    async fn keepalive(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.with(move |inner| {
            let lease = inner.leases.get_mut(&lease).ok_or(StoreError::LeaseEnded)?;
            lease.ends = clock::instant() + lease.ttl;
            Ok(())
        })
        .await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.with(move |inner| inner.end_lease(lease)).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.with(move |inner| inner.compact(revision)).await
    }

    async fn snapshot(&self, file: &Path) -> Result<(), StoreError> {
        let file = file.to_owned();
        self.with(move |inner| {
            let name = file.to_string_lossy().into_owned();
            let done = inner.connection.execute("VACUUM INTO ?1", [name]);
            done.map(drop).map_err(|error| told(&inner.path, &error))
        })
        .await
    }
}

impl Inner {
    fn told(&self) -> impl Fn(rusqlite::Error) -> StoreError + use<> {
        let path = self.path.clone();
        move |error| told(&path, &error)
    }

    fn revision(&self) -> Result<Revision, StoreError> {
        let found = self.connection.query_row("SELECT revision FROM head", [], |row| row.get(0));
        found.map_err(self.told())
    }

    fn compacted(&self) -> Result<Revision, StoreError> {
        let found = self.connection.query_row("SELECT compacted FROM head", [], |row| row.get(0));
        found.map_err(self.told())
    }

    fn leased_keys(&self) -> Result<Vec<String>, StoreError> {
        let mut statement =
            self.connection.prepare("SELECT key FROM live WHERE leased = 1").map_err(self.told())?;
        let keys = statement.query_map([], |row| row.get(0)).map_err(self.told())?;
        keys.collect::<Result<_, _>>().map_err(self.told())
    }

    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let mut statement = self
            .connection
            .prepare_cached("SELECT key, revision, sum, value FROM live WHERE key = ?1")
            .map_err(self.told())?;
        let row = statement.query_row([key], Stored::of).optional().map_err(self.told())?;
        row.map(|row| row.into_entry()).transpose().map_err(|key| damage::of_row(&self.path, &key))
    }

    fn range(&self, prefix: &str, at: Option<Revision>) -> Result<Range, StoreError> {
        let revision = self.revision()?;
        let Some(at) = at.filter(|at| *at < revision) else {
            let entries = self.entries(read_live(&self.connection, prefix))?;
            return Ok(Range { entries, revision });
        };
        if at < self.compacted()? {
            return Err(StoreError::Compacted);
        }
        let sql = "SELECT key, revision, sum, value FROM live
                WHERE key >= ?1 AND (?2 IS NULL OR key < ?2) AND revision <= ?3
            UNION ALL SELECT key, revision, sum, value FROM past
                WHERE key >= ?1 AND (?2 IS NULL OR key < ?2) AND revision <= ?3 AND until > ?3
            ORDER BY key";
        let mut statement = self.connection.prepare_cached(sql).map_err(self.told())?;
        let rows =
            statement.query_map(params![prefix, end_of(prefix), at], Stored::of).map_err(self.told())?;
        let entries = self.entries(rows.collect())?;
        Ok(Range { entries, revision: at })
    }

    fn entries(&self, rows: Vec<rusqlite::Result<Stored>>) -> Result<Vec<Entry>, StoreError> {
        let mut found = Vec::with_capacity(rows.len());
        for row in rows {
            let row = row.map_err(self.told())?;
            found.push(row.into_entry().map_err(|key| damage::of_row(&self.path, &key))?);
        }
        Ok(found)
    }

    fn txn(&mut self, txn: Txn) -> Result<Committed, StoreError> {
        let leases: Vec<LeaseId> = txn.puts.iter().filter_map(|put| put.lease).collect();
        if leases.iter().any(|lease| !self.leases.contains_key(lease)) {
            return Err(StoreError::LeaseEnded);
        }
        let done = commit(&mut self.connection, &txn);
        let Some((before, after)) = done.map_err(self.told())? else { return Ok(Committed::Refused) };
        for put in txn.puts {
            for lease in self.leases.values_mut() {
                lease.keys.retain(|key| *key != put.key);
            }
            if let Some(lease) = put.lease.and_then(|lease| self.leases.get_mut(&lease)) {
                lease.keys.push(put.key);
            }
        }
        if after != before {
            self.head.send_replace(after);
        }
        Ok(Committed::Done(after))
    }

    fn changes(&self, prefix: &str, from: Revision) -> Result<Vec<Change>, StoreError> {
        if from < self.compacted()? {
            return Err(StoreError::Compacted);
        }
        let sql = "SELECT key, revision, sum, value, 0 AS gone, revision AS at FROM live
                WHERE revision >= ?3 AND key >= ?1 AND (?2 IS NULL OR key < ?2)
            UNION ALL SELECT key, revision, sum, value, 0, revision FROM past
                WHERE revision >= ?3 AND key >= ?1 AND (?2 IS NULL OR key < ?2)
            UNION ALL SELECT key, revision, sum, value, 1, until FROM past
                WHERE until >= ?3 AND deleted = 1 AND key >= ?1 AND (?2 IS NULL OR key < ?2)
            ORDER BY at, key";
        let mut statement = self.connection.prepare_cached(sql).map_err(self.told())?;
        let rows = statement
            .query_map(params![prefix, end_of(prefix), from], |row| {
                Ok((Stored::of(row)?, row.get::<_, bool>(4)?, row.get::<_, Revision>(5)?))
            })
            .map_err(self.told())?;
        let mut found = Vec::new();
        for row in rows {
            let (row, is_gone, at) = row.map_err(self.told())?;
            let entry = row.into_entry().map_err(|key| damage::of_row(&self.path, &key))?;
            found.push(if is_gone {
                Change::Deleted { key: entry.key, revision: at }
            } else {
                Change::Put(entry)
            });
        }
        Ok(found)
    }

    fn compact(&mut self, revision: Revision) -> Result<(), StoreError> {
        let revision = revision.min(self.revision()?);
        if revision <= self.compacted()? {
            return Ok(());
        }
        let tell = self.told();
        let transaction = self.connection.transaction().map_err(&tell)?;
        transaction.execute("DELETE FROM past WHERE until <= ?1", [revision]).map_err(&tell)?;
        transaction.execute("UPDATE head SET compacted = ?1", [revision]).map_err(&tell)?;
        transaction.commit().map_err(&tell)
    }

    fn end_leases(&mut self, now: Instant) -> Result<(), StoreError> {
        let ended: Vec<LeaseId> =
            self.leases.iter().filter(|(_, lease)| lease.ends <= now).map(|(id, _)| *id).collect();
        ended.into_iter().try_for_each(|id| self.end_lease(id))
    }

    fn end_lease(&mut self, id: LeaseId) -> Result<(), StoreError> {
        let Some(lease) = self.leases.get(&id) else { return Err(StoreError::LeaseEnded) };
        let deletes = lease.keys.clone();
        self.txn(Txn { deletes, ..Txn::default() })?;
        self.leases.remove(&id);
        Ok(())
    }
}

/// Does a transaction. Returns the numbers before and after; none if something did not hold.
fn commit(connection: &mut Connection, txn: &Txn) -> rusqlite::Result<Option<(Revision, Revision)>> {
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let before: Revision = transaction.query_row("SELECT revision FROM head", [], |row| row.get(0))?;
    let mut after = before;
    {
        let mut find = transaction.prepare_cached("SELECT revision FROM live WHERE key = ?1")?;
        for compare in &txn.compares {
            let found: Option<Revision> = find.query_row([&compare.key], |row| row.get(0)).optional()?;
            if found.unwrap_or(0) != compare.revision {
                return Ok(None);
            }
        }
        let next = before + 1;
        let mut keep = transaction.prepare_cached(
            "INSERT INTO past SELECT key, revision, ?2, ?3, sum, value FROM live WHERE key = ?1",
        )?;
        let mut put = transaction.prepare_cached(
            "INSERT OR REPLACE INTO live(key, revision, leased, sum, value) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?;
        for written in &txn.puts {
            keep.execute(params![written.key, next, false])?;
            let sum = sum(&written.key, next, &written.value);
            put.execute(params![written.key, next, written.lease.is_some(), sum, written.value])?;
            after = next;
        }
        let mut delete = transaction.prepare_cached("DELETE FROM live WHERE key = ?1")?;
        for key in &txn.deletes {
            if keep.execute(params![key, next, true])? > 0 {
                delete.execute([key])?;
                after = next;
            }
        }
    }
    if after != before {
        transaction.execute("UPDATE head SET revision = ?1", [after])?;
        transaction.commit()?;
    }
    Ok(Some((before, after)))
}

/// A row as it is stored.
struct Stored {
    entry: Entry,
    sum: u32,
}

impl Stored {
    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        let entry = Entry { key: row.get(0)?, revision: row.get(1)?, value: row.get(3)? };
        Ok(Self { entry, sum: row.get(2)? })
    }

    /// Returns the row, or its key if it is damaged.
    fn into_entry(self) -> Result<Entry, String> {
        let Self { entry, sum: told } = self;
        if sum(&entry.key, entry.revision, &entry.value) == told { Ok(entry) } else { Err(entry.key) }
    }
}

fn sum(key: &str, revision: Revision, value: &[u8]) -> u32 {
    let sum = crc32c::crc32c(key.as_bytes());
    let sum = crc32c::crc32c_append(sum, &revision.to_le_bytes());
    crc32c::crc32c_append(sum, value)
}

fn read_live(connection: &Connection, prefix: &str) -> Vec<rusqlite::Result<Stored>> {
    let sql = "SELECT key, revision, sum, value FROM live
        WHERE key >= ?1 AND (?2 IS NULL OR key < ?2) ORDER BY key";
    let mut statement = match connection.prepare_cached(sql) {
        Ok(statement) => statement,
        Err(error) => return vec![Err(error)],
    };
    match statement.query_map(params![prefix, end_of(prefix)], Stored::of) {
        Ok(rows) => rows.collect(),
        Err(error) => vec![Err(error)],
    }
}

fn set_up(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(Duration::from_secs(5))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // Kept in the page cache of the kernel: reading a large store back is one pass.
    connection.pragma_update(None, "mmap_size", 256 << 20)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(())
}

/// Makes a new file: whole when it has its name.
fn make(path: &Path) -> Result<(), StoreError> {
    let new = beside(path, "new");
    make_file(&new)?;
    fs::rename(&new, path).map_err(failed("make", path))?;
    sync_directory(path)
}

/// Makes the file of an empty store, anew if there is one.
fn make_file(new: &Path) -> Result<(), StoreError> {
    for rest in ["", "-wal", "-shm"] {
        let file = PathBuf::from(format!("{}{rest}", new.display()));
        match fs::remove_file(&file) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("remove", &file)(error)),
        }
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new);
    file.map_err(failed("make", new))?;
    let filled = Connection::open(new).and_then(|connection| {
        connection.pragma_update(None, "application_id", APPLICATION)?;
        connection.pragma_update(None, "user_version", VERSION)?;
        connection.execute_batch(SCHEMA)
    });
    filled.map_err(|error| told(new, &error))
}

fn sync_directory(path: &Path) -> Result<(), StoreError> {
    let directory = path.parent().unwrap_or(Path::new("."));
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed("sync", directory))
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    PathBuf::from(format!("{}.{ending}", path.display()))
}

/// Takes the lock of a store; says whether there may be none yet.
fn take_lock(path: &Path) -> Result<(File, Missing), StoreError> {
    let lock = beside(path, "lock");
    let mut options = OpenOptions::new();
    let opened = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&lock);
    let mut file = opened.map_err(failed("open", &lock))?;
    let mut text = String::new();
    (&mut file).take(64).read_to_string(&mut text).map_err(failed("read", &lock))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            return Err(StoreError::Locked { path: path.to_owned(), pid: text.trim().parse().ok() });
        }
        Err(errno) => return Err(failed("lock", &lock)(errno.into())),
    }
    Ok((file, if text.trim().is_empty() { Missing::Make } else { Missing::Refuse }))
}

/// Writes down who has the store, and thereby that there is one.
fn remember(path: &Path, lock: &File) -> Result<(), StoreError> {
    let mut file = lock;
    let text = format!("{}\n", std::process::id());
    let written = file.rewind().and_then(|()| file.set_len(0)).and_then(|()| file.write_all(text.as_bytes()));
    written.and_then(|()| file.sync_all()).map_err(failed("write", &beside(path, "lock")))
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::File { what, path, source }
}

/// Returns what an error of SQLite means.
fn told(path: &Path, error: &rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DatabaseCorrupt | rusqlite::ErrorCode::NotADatabase) => {
            damage::find(path, error.to_string())
        }
        _ => StoreError::Unavailable(format!("{}: {error}", path.display())),
    }
}

/// What changes in a file.
struct Following {
    store: Embedded,
    prefix: String,
    from: Revision,
    head: watch::Receiver<Revision>,
}

/// How often a watch looks whether a lease has ended.
const LOOK: Duration = Duration::from_millis(200);

#[async_trait]
impl Watch for Following {
    async fn next(&mut self) -> Result<Vec<Change>, StoreError> {
        loop {
            let is_due = *self.head.borrow_and_update() >= self.from;
            if is_due {
                let (prefix, from) = (self.prefix.clone(), self.from);
                let (changes, revision) = self
                    .store
                    .with(move |inner| Ok((inner.changes(&prefix, from)?, inner.revision()?)))
                    .await?;
                self.from = revision + 1;
                if !changes.is_empty() {
                    return Ok(changes);
                }
                continue;
            }
            if let Ok(Err(_)) = tokio::time::timeout(LOOK, self.head.changed()).await {
                return Err(StoreError::Unavailable("it was closed".to_owned()));
            }
            self.store.with(|_| Ok(())).await?;
        }
    }
}

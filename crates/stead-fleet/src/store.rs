//! What a master keeps: keys with values, changed by whole transactions, each of which has a number.
//!
//! [`FleetStore`] is shaped like etcd, and there are two: [`Embedded`], one file for one process, and [`Etcd`], which
//! several masters share. One suite of tests runs on both. Everything here is about keys and bytes; what they mean is the
//! business of `master` and `identity`.
//!
//! Keys are printable ASCII. A transaction is whole or not at all, of whatever size, on disk when it is answered, and its
//! number (revision) is greater than all before. A comparison names the number of the transaction that last wrote a key,
//! or 0 for a key that is not there.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;

mod embedded;
mod etcd;
mod ledger;

pub use embedded::Embedded;
pub use etcd::{Etcd, EtcdTls};
pub(crate) use ledger::{COLLECTING, REBUILD};
pub use ledger::{StoreLedger, begin_anew, keep_authority};

/// Counts transactions.
pub type Revision = i64;

/// A lease: what it is attached to goes when it is not kept alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseId(pub i64);

/// A key with its value.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: Vec<u8>,
    /// The transaction that wrote it.
    pub revision: Revision,
}

impl fmt::Debug for Entry {
    // Values may be keys of a CA.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{} ({} bytes)", self.key, self.revision, self.value.len())
    }
}

/// Keys of one moment, sorted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The keys.
    pub entries: Vec<Entry>,
    /// The moment.
    pub revision: Revision,
}

/// What has to hold for a transaction: the key was last written by this one; 0: it is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// The key.
    pub key: String,
    /// Who wrote it.
    pub revision: Revision,
}

/// A key to write.
#[derive(Clone, PartialEq, Eq)]
pub struct Put {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: Vec<u8>,
    /// What it goes with.
    pub lease: Option<LeaseId>,
}

impl fmt::Debug for Put {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.key, self.value.len())
    }
}

/// A transaction. A key is in `puts` or in `deletes`, once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// What has to hold.
    pub compares: Vec<Compare>,
    /// What is written.
    pub puts: Vec<Put>,
    /// What goes.
    pub deletes: Vec<String>,
}

impl Txn {
    /// Returns the transaction that also needs `key` to be last written by `revision`.
    pub fn when(mut self, key: &str, revision: Revision) -> Self {
        self.compares.push(Compare { key: key.to_owned(), revision });
        self
    }

    /// Returns the transaction that also writes `key`.
    pub fn put(mut self, key: &str, value: impl Into<Vec<u8>>) -> Self {
        self.puts.push(Put { key: key.to_owned(), value: value.into(), lease: None });
        self
    }

    /// Returns the transaction that also writes `key`, for as long as `lease` lives.
    pub fn put_with(mut self, key: &str, value: impl Into<Vec<u8>>, lease: LeaseId) -> Self {
        self.puts.push(Put { key: key.to_owned(), value: value.into(), lease: Some(lease) });
        self
    }

    /// Returns the transaction that also removes `key`.
    pub fn delete(mut self, key: &str) -> Self {
        self.deletes.push(key.to_owned());
        self
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.puts.is_empty() && self.deletes.is_empty()
    }
}

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    /// It is done, and this is the store's number now.
    Done(Revision),
    /// Something did not hold; nothing was done.
    Refused,
}

/// A key that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was written.
    Put(Entry),
    /// It is gone.
    Deleted {
        /// The key.
        key: String,
        /// By which transaction.
        revision: Revision,
    },
}

impl Change {
    /// Returns the key.
    pub fn key(&self) -> &str {
        match self {
            Self::Put(entry) => &entry.key,
            Self::Deleted { key, .. } => key,
        }
    }

    /// Returns the number of its transaction.
    pub fn revision(&self) -> Revision {
        match self {
            Self::Put(entry) => entry.revision,
            Self::Deleted { revision, .. } => *revision,
        }
    }
}

/// Why a store has no answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has the file.
    #[error("{} is in use by another master{}", path.display(), pid.map(|pid| format!(" (process {pid})")).unwrap_or_default())]
    Locked {
        /// The file.
        path: PathBuf,
        /// Who, if it said so.
        pid: Option<u32>,
    },
    /// The file is damaged.
    #[error("{} is damaged at byte {offset}: {what}; start with `--rebuild` to begin anew from what the workers report", path.display())]
    Corrupted {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// The file was there once and is not any more.
    #[error("{} is gone; put it back, or start with `--rebuild` to begin anew from what the workers report", path.display())]
    Lost {
        /// The file.
        path: PathBuf,
    },
    /// Beginning anew would make another fleet: nobody who has a certificate could come back.
    #[error("the fleet's authority can be read neither in {} nor in {}; put one of them back, or begin another fleet in another directory", path.display(), copy.display())]
    NoAuthority {
        /// The file.
        path: PathBuf,
        /// The copy of the authority.
        copy: PathBuf,
    },
    /// A file cannot be used.
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
    /// It does not answer. A transaction may have been done all the same.
    #[error("the store does not answer: {0}")]
    Unavailable(String),
    /// What is asked for is older than what is kept: read everything again.
    #[error("the store has forgotten what is asked for (compacted)")]
    Compacted,
    /// The lease has ended.
    #[error("the lease has ended")]
    LeaseEnded,
    /// A key or value cannot be stored.
    #[error("`{key}` cannot be stored: {why}")]
    Unfit {
        /// The key.
        key: String,
        /// Why.
        why: String,
    },
}

/// What changes, as it does.
#[async_trait]
pub trait Watch: Send {
    /// Returns the next changes, oldest first; those of one transaction are never apart. Cancel-safe.
    ///
    /// [`StoreError::Compacted`]: some are forgotten, and everything has to be read again.
    async fn next(&mut self) -> Result<Vec<Change>, StoreError>;
}

/// What a master keeps.
#[async_trait]
pub trait FleetStore: Send + Sync + fmt::Debug {
    /// Returns its kind, as status shows it.
    fn kind(&self) -> &'static str;

    /// Returns a key.
    async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError>;

    /// Returns the keys that begin with `prefix`, now or as they were.
    async fn range(&self, prefix: &str, at: Option<Revision>) -> Result<Range, StoreError>;

    /// Does a transaction, or nothing.
    async fn txn(&self, txn: Txn) -> Result<Committed, StoreError>;

    /// Returns what changes under `prefix`, beginning with the transaction `from`.
    async fn watch(&self, prefix: &str, from: Revision) -> Result<Box<dyn Watch>, StoreError>;

    /// Returns a new lease.
    async fn lease(&self, ttl: Duration) -> Result<LeaseId, StoreError>;

    /// Lets a lease live for its time again.
    async fn keepalive(&self, lease: LeaseId) -> Result<(), StoreError>;

    /// Ends a lease; what it is attached to goes.
    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError>;

    /// Forgets how things were before `revision`.
    async fn compact(&self, revision: Revision) -> Result<(), StoreError>;

    /// Writes everything as of one moment to a file.
    async fn snapshot(&self, file: &Path) -> Result<(), StoreError>;
}

/// The name of the fleet whose store this is.
const FLEET: &str = "meta/fleet";

/// Returns the name of the fleet whose store this is. The first who asks makes it.
pub async fn fleet_id(store: &dyn FleetStore) -> Result<String, StoreError> {
    loop {
        if let Some(entry) = store.get(FLEET).await? {
            return Ok(String::from_utf8_lossy(&entry.value).into_owned());
        }
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let name = random.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        // Refused: somebody was faster, whose name it is.
        store.txn(Txn::default().when(FLEET, 0).put(FLEET, name)).await?;
    }
}

/// The longest key.
const LONGEST_KEY: usize = 512;

/// The largest value.
pub const LARGEST_VALUE: usize = 1 << 20;

/// Refuses what not every store takes.
fn check(txn: &Txn) -> Result<(), StoreError> {
    let unfit = |key: &str, why: &str| StoreError::Unfit { key: key.to_owned(), why: why.to_owned() };
    let mut seen = std::collections::BTreeSet::new();
    for key in txn.puts.iter().map(|put| &put.key).chain(&txn.deletes) {
        if key.is_empty() || key.len() > LONGEST_KEY || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(unfit(key, "a key is up to 512 printable characters"));
        }
        if !seen.insert(key) {
            return Err(unfit(key, "it is twice in one transaction"));
        }
    }
    match txn.puts.iter().find(|put| put.value.len() > LARGEST_VALUE) {
        Some(put) => Err(unfit(&put.key, "a value has at most 1 MiB")),
        None => Ok(()),
    }
}

/// Returns the first text after all that begin with `prefix`; none if there is no such.
fn end_of(prefix: &str) -> Option<String> {
    let mut bytes = prefix.as_bytes().to_vec();
    *bytes.last_mut()? += 1;
    String::from_utf8(bytes).ok()
}

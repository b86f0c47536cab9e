//! Files of this machine, written whole or not at all.

use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rustix::fs::{Gid, Uid, chown};
use sha2::{Digest as _, Sha256};
use stead_model::plan::Digest;
use stead_runner::transport::{FileMeta, Source, TransportError, TransportErrorKind};
use tokio::fs::{self, File};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

/// Large enough that the hops to the blocking pool do not count.
const PIECE: usize = 256 << 10;
/// Pieces read before they are asked for: enough that disk and network never wait for each other.
const AHEAD: usize = 4;
const NEW_FILE_MODE: u32 = 0o644;

/// A file on its way: under a temporary name beside its place until it is complete. Dropping it removes it.
pub(super) struct Incoming {
    file: File,
    temporary: Temporary,
    to: PathBuf,
    hash: Sha256,
}

struct Temporary(Option<PathBuf>);

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            // Nothing more can be done about it here.
            std::fs::remove_file(path).ok();
        }
    }
}

impl Incoming {
    /// Begins the file `to`.
    pub(super) async fn create(to: &Path, random: &str) -> Result<Self, TransportError> {
        let (Some(parent), Some(name)) = (to.parent(), to.file_name()) else {
            return Err(failed(format!("{} names no file", to.display())));
        };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        if !parent.is_dir() {
            return Err(missing_parent(parent, to));
        }
        if to.is_dir() {
            return Err(failed(format!("{} is a directory", to.display())));
        }
        let mut temporary = std::ffi::OsString::from(".");
        temporary.push(name);
        temporary.push(".stead-");
        temporary.push(random);
        let path = parent.join(temporary);
        let options = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).clone();
        let file = options.open(&path).await.map_err(|error| cannot("written", to, &error))?;
        Ok(Self { file, temporary: Temporary(Some(path)), to: to.to_path_buf(), hash: Sha256::new() })
    }

    /// Adds bytes.
    pub(super) async fn write(&mut self, data: &[u8]) -> Result<(), TransportError> {
        self.hash.update(data);
        self.file.write_all(data).await.map_err(|error| cannot("written", &self.to, &error))
    }

    /// Puts the file in its place, if it is what was `expected`.
    pub(super) async fn finish(
        mut self,
        expected: Option<Digest>,
        meta: &FileMeta,
    ) -> Result<Digest, TransportError> {
        let digest = Digest(self.hash.finalize().into());
        if let Some(expected) = expected.filter(|expected| *expected != digest) {
            return Err(mismatch(&self.to, expected, digest));
        }
        let Some(temporary) = self.temporary.0.clone() else {
            return Err(failed("the file is gone".to_owned()));
        };
        let result = async {
            self.file.flush().await?;
            apply(&temporary, &self.to, meta)?;
            self.file.sync_all().await?;
            fs::rename(&temporary, &self.to).await?;
            self.temporary.0 = None;
            let parent = self.to.parent().filter(|parent| !parent.as_os_str().is_empty());
            File::open(parent.unwrap_or(Path::new("."))).await?.sync_all().await
        };
        result.await.map_err(|error| cannot("written", &self.to, &error))?;
        Ok(digest)
    }
}

/// Gives `file`, which is to take the place of `old`, its owner and mode: as asked, else the old one's.
fn apply(file: &Path, old: &Path, meta: &FileMeta) -> io::Result<()> {
    let before = std::fs::symlink_metadata(old).ok().filter(std::fs::Metadata::is_file);
    let now = std::fs::symlink_metadata(file)?;
    let kept = |asked: Option<u32>, old: Option<u32>, now: u32| asked.or(old).filter(|id| *id != now);
    let asked = (id_of(meta.owner.as_deref(), "/etc/passwd")?, id_of(meta.group.as_deref(), "/etc/group")?);
    let user = kept(asked.0, before.as_ref().map(MetadataExt::uid), now.uid());
    let group = kept(asked.1, before.as_ref().map(MetadataExt::gid), now.gid());
    if user.is_some() || group.is_some() {
        chown(file, user.map(Uid::from_raw), group.map(Gid::from_raw))?;
    }
    let mode = meta.mode.or(before.map(|before| before.mode() & 0o7777)).unwrap_or(NEW_FILE_MODE);
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode))
}

/// Makes an existing file have the owner and mode asked for, touching nothing that is right already.
pub(super) fn apply_in_place(path: &Path, meta: &FileMeta) -> Result<(), TransportError> {
    let work = || -> io::Result<()> {
        let now = std::fs::symlink_metadata(path)?;
        let user = id_of(meta.owner.as_deref(), "/etc/passwd")?.filter(|id| *id != now.uid());
        let group = id_of(meta.group.as_deref(), "/etc/group")?.filter(|id| *id != now.gid());
        if user.is_some() || group.is_some() {
            chown(path, user.map(Uid::from_raw), group.map(Gid::from_raw))?;
        }
        // Another owner takes setuid away.
        let mode = meta.mode.unwrap_or(now.mode() & 0o7777);
        if std::fs::symlink_metadata(path)?.mode() & 0o7777 == mode {
            return Ok(());
        }
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
    };
    work().map_err(|error| cannot("changed", path, &error))
}

/// Returns the number of a user or group given by name or number.
fn id_of(name: Option<&str>, database: &str) -> io::Result<Option<u32>> {
    let Some(name) = name else { return Ok(None) };
    if let Ok(number) = name.parse() {
        return Ok(Some(number));
    }
    let text = std::fs::read_to_string(database)?;
    let found = text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)).flatten()?.parse().ok()
    });
    let missing = || io::Error::new(io::ErrorKind::NotFound, format!("{name} is not in {database}"));
    found.map(Some).ok_or_else(missing)
}

/// A source, piece by piece.
pub(super) enum Pieces {
    Bytes(std::sync::Arc<[u8]>, bool),
    File(File, PathBuf, Vec<u8>),
}

impl Pieces {
    /// Begins reading `source`.
    pub(super) async fn open(source: &Source) -> Result<Self, TransportError> {
        match source {
            Source::Bytes(bytes) => Ok(Self::Bytes(std::sync::Arc::clone(bytes), false)),
            Source::File(path) => {
                let file = File::open(path).await.map_err(|error| cannot("read", path, &error))?;
                Ok(Self::File(file, path.clone(), vec![0; PIECE]))
            }
        }
    }

    /// Returns the next piece, empty at the end.
    pub(super) async fn next(&mut self) -> Result<&[u8], TransportError> {
        match self {
            Self::Bytes(bytes, taken) => Ok(if std::mem::replace(taken, true) { &[] } else { bytes }),
            Self::File(file, path, buffer) => {
                let count = file.read(buffer).await.map_err(|error| cannot("read", path, &error))?;
                Ok(buffer.get(..count).unwrap_or_default())
            }
        }
    }
}

/// Returns the length and hash of `source`.
pub(super) async fn measure(source: &Source) -> Result<(u64, Digest), TransportError> {
    let path = match source {
        Source::Bytes(bytes) => return Ok((bytes.len() as u64, Digest::of(bytes))),
        Source::File(path) => path.clone(),
    };
    // Computing, not waiting: no work for a thread that others wait on.
    let hashed = tokio::task::spawn_blocking(move || {
        let fail = |error: io::Error| cannot("read", &path, &error);
        let mut file = std::fs::File::open(&path).map_err(fail)?;
        let mut buffer = vec![0; PIECE];
        let (mut hash, mut length) = (Sha256::new(), 0);
        loop {
            let count = file.read(&mut buffer).map_err(fail)?;
            let data = buffer.get(..count).unwrap_or_default();
            if data.is_empty() {
                return Ok((length, Digest(hash.finalize().into())));
            }
            hash.update(data);
            length += data.len() as u64;
        }
    });
    hashed.await.unwrap_or_else(|_| Err(failed("hashing a file ended without a result".to_owned())))
}

/// Reads a file ahead of whoever takes its pieces: a few at most, and none once nobody does.
pub(super) fn read_ahead(path: PathBuf) -> mpsc::Receiver<io::Result<Bytes>> {
    let (sender, pieces) = mpsc::channel(AHEAD);
    tokio::task::spawn_blocking(move || {
        let read = || -> io::Result<()> {
            let mut file = std::fs::File::open(&path)?;
            loop {
                let mut buffer = vec![0; PIECE];
                let count = file.read(&mut buffer)?;
                buffer.truncate(count);
                if count == 0 || sender.blocking_send(Ok(Bytes::from(buffer))).is_err() {
                    return Ok(());
                }
            }
        };
        if let Err(error) = read() {
            sender.blocking_send(Err(error)).ok();
        }
    });
    pieces
}

pub(super) fn mismatch(path: &Path, expected: Digest, found: Digest) -> TransportError {
    failed(format!(
        "{} did not arrive as it was sent and was removed: its SHA-256 is {found}, expected {expected}",
        path.display()
    ))
}

pub(super) fn missing_parent(parent: &Path, to: &Path) -> TransportError {
    failed(format!("the directory {} of {} is not there", parent.display(), to.display()))
}

pub(super) fn failed(message: String) -> TransportError {
    TransportError::new(TransportErrorKind::Failed, message)
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> TransportError {
    failed(format!("{} cannot be {what}: {error}", path.display()))
}

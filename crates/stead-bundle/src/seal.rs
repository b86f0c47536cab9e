//! Sealing: every file of a bundle hashed into `hashes.txt`, as the very last act.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use stead_model::plan::Digest;

use crate::error::RecordError;
use crate::hashes::{HashLine, hash_files};
use crate::layout::{HASHES, LOCK, SIGNATURE, TEMPORARY};

/// Why a bundle was not sealed.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// Symlinks and special files have no place in a bundle.
    #[error("{path} is neither a file nor a directory", path = path.display())]
    NotAFile {
        /// The first one found.
        path: PathBuf,
    },
    /// Something could not be read or written.
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// What a walk through a bundle found, sorted by path bytes.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// Every file that hashes cover, relative, with its length.
    pub(crate) files: Vec<(PathBuf, u64)>,
    /// Whatever is neither file nor directory, relative.
    pub(crate) others: Vec<PathBuf>,
    /// `hashes.txt` and its signature, which hashes do not cover.
    pub(crate) own: Vec<(PathBuf, u64)>,
}

impl Contents {
    /// Adds what is at `path`; returns the path if it is a file that can be read. The lock is none.
    pub(crate) fn add(&mut self, path: PathBuf, bytes: u64, is_file: bool) -> Option<PathBuf> {
        let is = |name: &str| path == Path::new(name);
        if !is_file {
            self.others.push(path);
            return None;
        }
        if is(LOCK) {
            return None;
        }
        let list = if is(HASHES) || is(SIGNATURE) { &mut self.own } else { &mut self.files };
        list.push((path.clone(), bytes));
        Some(path)
    }

    /// Sorts by bytes of the whole path: comparing paths would compare component by component.
    pub(crate) fn sort(&mut self) {
        let by_bytes = |a: &Path, b: &Path| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes());
        self.files.sort_unstable_by(|a, b| by_bytes(&a.0, &b.0));
        self.own.sort_unstable_by(|a, b| by_bytes(&a.0, &b.0));
        self.others.sort_unstable_by(|a, b| by_bytes(a, b));
    }

    /// Returns every file, sorted: what a copy of the bundle has to have.
    pub(crate) fn all(&self) -> Vec<(PathBuf, u64)> {
        let mut all: Vec<_> = self.files.iter().chain(&self.own).cloned().collect();
        all.sort_unstable_by(|a, b| a.0.as_os_str().as_bytes().cmp(b.0.as_os_str().as_bytes()));
        all
    }
}

/// Returns what is in the bundle directory at `bundle`; its `lock` does not count.
pub(crate) fn contents(bundle: &Path) -> Result<Contents, RecordError> {
    let mut found = Contents::default();
    for entry in walkdir::WalkDir::new(bundle).follow_links(false).min_depth(1) {
        let entry = entry.map_err(|error| {
            let path = error.path().unwrap_or(bundle).to_owned();
            RecordError { action: "read directory", path, source: error.into() }
        })?;
        let Ok(relative) = entry.path().strip_prefix(bundle) else { continue };
        let kind = entry.file_type();
        if kind.is_dir() {
            continue;
        }
        let len = if kind.is_file() {
            let found = entry.metadata().map_err(|error| RecordError {
                action: "read",
                path: entry.path().to_owned(),
                source: error.into(),
            })?;
            found.len()
        } else {
            0
        };
        found.add(relative.to_owned(), len, kind.is_file());
    }
    found.sort();
    Ok(found)
}

/// The hashes of files as they were at one moment, for a seal that follows later.
#[derive(Clone, Debug, Default)]
pub struct Hashed(BTreeMap<PathBuf, (Stamp, Digest)>);

/// What changes whenever a file does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    len: u64,
    inode: u64,
    changed: (i64, i64),
    modified: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let found = path.symlink_metadata().ok().filter(fs::Metadata::is_file)?;
        Some(Self {
            len: found.len(),
            inode: found.ino(),
            changed: (found.ctime(), found.ctime_nsec()),
            modified: (found.mtime(), found.mtime_nsec()),
        })
    }
}

/// Returns the hashes of the files of the bundle at `bundle`, for [`seal_reusing`].
pub fn hash_contents(bundle: &Path) -> Result<Hashed, SealError> {
    let contents = sealable(bundle)?;
    // Taken before the files are read: one that changes meanwhile has another stamp afterwards.
    let stamps: Vec<_> = contents.files.iter().map(|(path, _)| Stamp::of(&bundle.join(path))).collect();
    let mut hashed = BTreeMap::new();
    let digests = hash_files(bundle, &contents.files);
    for (((path, _), stamp), digest) in contents.files.into_iter().zip(stamps).zip(digests) {
        let digest = digest.map_err(RecordError::of("hash", &bundle.join(&path)))?;
        if let Some(stamp) = stamp {
            hashed.insert(path, (stamp, digest));
        }
    }
    Ok(Hashed(hashed))
}

/// Hashes every file of the bundle at `bundle` into `hashes.txt`. Sealing a sealed bundle seals it anew.
pub fn seal(bundle: &Path) -> Result<(), SealError> {
    seal_reusing(bundle, &Hashed::default())
}

/// Seals as [`seal`] does; files that are still as they were when `hashed` was made are not read again.
pub fn seal_reusing(bundle: &Path, hashed: &Hashed) -> Result<(), SealError> {
    unseal(bundle)?;
    remove_leftovers(bundle)?;
    let contents = sealable(bundle)?;
    let known = |path: &Path| {
        let (stamp, digest) = hashed.0.get(path)?;
        (Stamp::of(&bundle.join(path)).as_ref() == Some(stamp)).then_some(*digest)
    };
    let mut digests = BTreeMap::new();
    let mut unknown = Vec::new();
    for (path, len) in contents.files {
        match known(&path) {
            Some(digest) => drop(digests.insert(path.into_os_string(), digest)),
            None => unknown.push((path, len)),
        }
    }
    let found = hash_files(bundle, &unknown);
    for ((path, _), digest) in unknown.into_iter().zip(found) {
        let digest = digest.map_err(RecordError::of("hash", &bundle.join(&path)))?;
        digests.insert(path.into_os_string(), digest);
    }
    // A map of names as they are: sorted by their bytes, as `hashes.txt` is.
    let mut text = Vec::with_capacity(digests.len() * 128);
    for (path, digest) in digests {
        HashLine { path: path.into(), digest }.write(&mut text);
    }
    write_beside(bundle, HASHES, &text)?;
    Ok(())
}

/// Returns what is in the bundle, which must be files only.
fn sealable(bundle: &Path) -> Result<Contents, SealError> {
    let contents = contents(bundle)?;
    match contents.others.first() {
        Some(path) => Err(SealError::NotAFile { path: bundle.join(path) }),
        None => Ok(contents),
    }
}

/// Writes the file `name` of the bundle at `bundle` under a temporary name and renames it.
pub(crate) fn write_beside(bundle: &Path, name: &str, bytes: &[u8]) -> Result<(), RecordError> {
    let (path, temporary) = (bundle.join(name), bundle.join(format!("{TEMPORARY}{name}")));
    let mut options = OpenOptions::new();
    let written = options.write(true).create(true).truncate(true).mode(0o644).open(&temporary);
    let written =
        written.and_then(|mut file| file.write_all(bytes)).and_then(|()| fs::rename(&temporary, &path));
    written.map_err(|error| {
        drop(fs::remove_file(&temporary));
        RecordError::of("write", &path)(error)
    })
}

/// Takes the seal off the bundle at `bundle`, its signature too. Nothing happens if there is none.
pub fn unseal(bundle: &Path) -> Result<(), RecordError> {
    for name in [SIGNATURE, HASHES] {
        let path = bundle.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(RecordError::of("remove", &path)(error));
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Returns whether the bundle at `bundle` has a seal; whether it holds, `verify` says.
pub fn is_sealed(bundle: &Path) -> bool {
    bundle.join(HASHES).is_file()
}

/// Removes what a driver that died while replacing a file left at the top of the bundle.
fn remove_leftovers(bundle: &Path) -> Result<(), RecordError> {
    let failed = RecordError::of("read directory", bundle);
    for entry in fs::read_dir(bundle).map_err(&failed)? {
        let entry = entry.map_err(&failed)?;
        if entry.file_name().as_bytes().starts_with(TEMPORARY.as_bytes())
            && entry.file_type().is_ok_and(|kind| kind.is_file())
        {
            fs::remove_file(entry.path()).map_err(RecordError::of("remove", &entry.path()))?;
        }
    }
    Ok(())
}

//! Sealing: every file of a bundle hashed into `hashes.txt`, as the very last act.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::directory::replace_file;
use crate::error::RecordError;
use crate::hashes::HashLine;
use crate::known_hashes::KnownHashes;
use crate::layout::{ARRIVING, HASHES, LOCK, SIGNATURE, TEMPORARY};
use crate::roles::ROLES;

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

/// Hashes every file of the bundle at `bundle` into `hashes.txt`. Sealing a sealed bundle seals it anew.
pub fn seal(bundle: &Path) -> Result<(), SealError> {
    seal_knowing(bundle, &KnownHashes::default())
}

/// Seals as [`seal`] does, without reading files whose hashes are known.
pub fn seal_knowing(bundle: &Path, known: &KnownHashes) -> Result<(), SealError> {
    unseal(bundle)?;
    remove_leftovers(bundle)?;
    let contents = contents(bundle)?;
    if let Some(path) = contents.others.first() {
        return Err(SealError::NotAFile { path: bundle.join(path) });
    }
    let files: Vec<PathBuf> = contents.files.into_iter().map(|(path, _)| path).collect();
    let mut text = Vec::with_capacity(files.len() * 128);
    let digests = known.of(bundle, &files)?;
    for (path, digest) in files.into_iter().zip(digests) {
        HashLine { path, digest }.write(&mut text);
    }
    replace_file(bundle, HASHES, &|out| out.write_all(&text))?;
    Ok(())
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

/// Removes what a driver that died while writing a file left: at the top of the bundle, and where artifacts go.
fn remove_leftovers(bundle: &Path) -> Result<(), RecordError> {
    let roles = bundle.join(ROLES);
    for entry in walkdir::WalkDir::new(bundle).follow_links(false).min_depth(1) {
        let entry = entry.map_err(|error| {
            let path = error.path().unwrap_or(bundle).to_owned();
            RecordError { action: "read directory", path, source: error.into() }
        })?;
        let name = entry.file_name().as_bytes();
        let is_left = match entry.depth() {
            1 => name.starts_with(TEMPORARY.as_bytes()),
            _ => {
                let is_of_role = entry.path().starts_with(&roles);
                is_of_role && name.starts_with(b".") && name.ends_with(ARRIVING.as_bytes())
            }
        };
        if is_left && entry.file_type().is_file() {
            fs::remove_file(entry.path()).map_err(RecordError::of("remove", entry.path()))?;
        }
    }
    Ok(())
}

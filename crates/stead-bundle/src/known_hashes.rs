//! Hashes of files that were read already, for as long as the files stay as they were.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use stead_model::plan::Digest;

use crate::error::RecordError;
use crate::hashes::hash_files;
use crate::seal::contents;

/// Hashes of a bundle's files, so that sealing need not read again what was hashed before. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct KnownHashes(Arc<Mutex<BTreeMap<PathBuf, (Stamp, Digest)>>>);

/// What tells whether a file is as it was: written to, replaced or touched, it has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    len: u64,
    inode: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(found: &Metadata) -> Self {
        Self {
            len: found.len(),
            inode: found.ino(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        }
    }
}

impl KnownHashes {
    /// Hashes every file of the bundle at `bundle` that is not known as it is now.
    pub fn hash_all(&self, bundle: &Path) -> Result<(), RecordError> {
        let files: Vec<PathBuf> = contents(bundle)?.files.into_iter().map(|(path, _)| path).collect();
        self.of(bundle, &files).map(drop)
    }

    /// Returns the hash of each of `files`, which are relative to `bundle`, reading those that are not known.
    pub(crate) fn of(&self, bundle: &Path, files: &[PathBuf]) -> Result<Vec<Digest>, RecordError> {
        let mut digests: Vec<Option<Digest>> = Vec::with_capacity(files.len());
        let mut unknown = Vec::new();
        for (i, file) in files.iter().enumerate() {
            let path = bundle.join(file);
            // Taken before the file is read: a file that is written to meanwhile is read again.
            let found = path.symlink_metadata().map_err(RecordError::of("read", &path))?;
            let stamp = Stamp::of(&found);
            let known = self.known(file, stamp);
            if known.is_none() {
                unknown.push((i, stamp, (file.clone(), found.len())));
            }
            digests.push(known);
        }
        let to_read: Vec<(PathBuf, u64)> = unknown.iter().map(|(_, _, file)| file.clone()).collect();
        for ((i, stamp, (file, _)), digest) in unknown.into_iter().zip(hash_files(bundle, &to_read)) {
            let digest = digest.map_err(RecordError::of("hash", &bundle.join(&file)))?;
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(file, (stamp, digest));
            digests[i] = Some(digest);
        }
        Ok(digests.into_iter().flatten().collect())
    }

    fn known(&self, file: &Path, stamp: Stamp) -> Option<Digest> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(file).filter(|(seen, _)| *seen == stamp).map(|(_, digest)| *digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_again_only_after_it_changed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, file) = (dir.path().join("a"), PathBuf::from("a"));
        std::fs::write(&path, "one").unwrap();
        let known = KnownHashes::default();
        known.hash_all(dir.path()).unwrap();
        let stamp = Stamp::of(&path.metadata().unwrap());
        assert_eq!(known.known(&file, stamp), Some(Digest::of(b"one")));
        // A hash nobody could compute shows that the file is not read.
        known.0.lock().unwrap().insert(file.clone(), (stamp, Digest([9; 32])));
        assert_eq!(known.of(dir.path(), std::slice::from_ref(&file)).unwrap(), [Digest([9; 32])]);
        std::fs::write(&path, "two!").unwrap();
        assert_eq!(known.of(dir.path(), &[file]).unwrap(), [Digest::of(b"two!")]);
    }
}

//! Programs and images by their hash.
//!
//! What there is to serve: this program, what lies in `STATE/bin/ARCH/`, and what lies in `STATE/artifacts/`. Files are
//! hashed beside serving, and again only when they changed. What a run offers for a while lies in
//! [`offers`], under the hash that the run has found: it is large, and is not hashed here as well. Who fetches
//! something compares its hash.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use stead_drivers::nodes::offers;
use stead_model::plan::Digest;
use tokio::sync::watch;

/// The most files that are served.
const MOST: usize = 10_000;

/// A file that can be served.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Artifact {
    path: PathBuf,
    seen: Seen,
}

/// What shows that a file is still the one that was hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Seen {
    size: u64,
    modified: (i64, i64),
    inode: u64,
}

impl Seen {
    fn of(found: &Metadata) -> Self {
        Self { size: found.len(), modified: (found.mtime(), found.mtime_nsec()), inode: found.ino() }
    }
}

/// Files by hash.
#[derive(Debug, Default)]
pub(crate) struct Index(HashMap<Digest, Artifact>);

/// The newest index; none until the first is made.
pub(crate) type Indexes = watch::Receiver<Option<std::sync::Arc<Index>>>;

impl Index {
    /// Hashes what there is to serve; what `before` knows already is taken from it.
    pub(crate) fn make(state: &Path, before: Option<&Self>) -> Self {
        let mut paths: Vec<PathBuf> = std::env::current_exe().into_iter().collect();
        for directory in list(&state.join("bin")) {
            paths.extend(list(&directory));
        }
        paths.extend(list(&state.join("artifacts")));
        let known: HashMap<(&Path, Seen), Digest> = before
            .map(|index| index.0.iter().map(|(d, a)| ((a.path.as_path(), a.seen), *d)).collect())
            .unwrap_or_default();
        let mut index = HashMap::new();
        for path in paths.into_iter().take(MOST) {
            let Ok((file, seen)) = open(&path) else { continue };
            let digest = match known.get(&(path.as_path(), seen)) {
                Some(digest) => Ok(*digest),
                None => hash(file),
            };
            if let Ok(digest) = digest {
                index.insert(digest, Artifact { path, seen });
            }
        }
        Self(index)
    }

    /// Returns the file with this hash, if it has not changed since, and its size.
    pub(crate) fn open(&self, digest: &Digest) -> Option<(File, u64)> {
        let artifact = self.0.get(digest)?;
        let (file, seen) = open(&artifact.path).ok()?;
        (seen == artifact.seen).then_some((file, seen.size))
    }
}

/// Opens what a run offers under this hash, and returns its size.
pub(crate) fn offered(state: &Path, digest: &Digest) -> Option<(File, u64)> {
    let (file, seen) = open(&offers(state).join(digest.to_string())).ok()?;
    Some((file, seen.size))
}

fn list(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).take(MOST).collect();
    paths.sort();
    paths
}

fn open(path: &Path) -> io::Result<(File, Seen)> {
    if !path.metadata()?.is_file() {
        return Err(io::Error::other("not a file"));
    }
    let file = File::open(path)?;
    let found = file.metadata()?;
    if found.is_file() { Ok((file, Seen::of(&found))) } else { Err(io::Error::other("not a file")) }
}

fn hash(mut file: File) -> io::Result<Digest> {
    let mut hasher = Sha256::new();
    let mut piece = vec![0; 1 << 16];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(Digest(hasher.finalize().into())),
            count => hasher.update(piece.get(..count).unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_by_hash_until_they_change() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("bin/aarch64")).unwrap();
        fs::create_dir_all(dir.path().join("artifacts")).unwrap();
        fs::write(dir.path().join("bin/aarch64/stead"), "program").unwrap();
        fs::write(dir.path().join("artifacts/image"), "image").unwrap();
        let index = Index::make(dir.path(), None);
        for content in ["program", "image"] {
            assert!(index.open(&Digest::of(content.as_bytes())).is_some(), "{content}");
        }
        assert!(index.open(&Digest::of(b"other")).is_none());
        fs::write(dir.path().join("artifacts/image"), "changed").unwrap();
        assert!(index.open(&Digest::of(b"image")).is_none());
        let again = Index::make(dir.path(), Some(&index));
        assert!(again.open(&Digest::of(b"changed")).is_some());
    }

    #[test]
    fn what_a_run_offers_is_there_as_long_as_it_does() {
        let dir = tempfile::tempdir().unwrap();
        let digest = Digest::of(b"large");
        assert!(offered(dir.path(), &digest).is_none());
        fs::create_dir_all(offers(dir.path())).unwrap();
        fs::write(dir.path().join("image"), "large").unwrap();
        let link = offers(dir.path()).join(digest.to_string());
        std::os::unix::fs::symlink(dir.path().join("image"), &link).unwrap();
        assert_eq!(offered(dir.path(), &digest).map(|(_, size)| size), Some(5));
        assert!(Index::make(dir.path(), None).open(&digest).is_none(), "it is not hashed here");
        fs::remove_file(&link).unwrap();
        assert!(offered(dir.path(), &digest).is_none());
    }
}

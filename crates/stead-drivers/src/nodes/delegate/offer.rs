//! What a run has the server of its level hand out by hash, for as long as somebody is to fetch it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use stead_model::plan::Digest;
use tempfile::TempDir;

/// Returns where a state directory has what runs offer, each file under its hash.
pub fn offers(state: &Path) -> PathBuf {
    state.join("artifacts").join("sha256")
}

/// Files that are offered until this goes. Runs that offer the same share it: the last one takes it away, also what
/// one left that was killed.
pub(super) struct Offer {
    directory: PathBuf,
    held: File,
}

impl Offer {
    /// Begins to offer. Blocks for as long as another one ends to.
    pub(super) fn begin(state: &Path) -> io::Result<Self> {
        let directory = offers(state);
        DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        let held = File::open(&directory)?;
        rustix::fs::flock(&held, FlockOperation::LockShared)?;
        Ok(Self { directory, held })
    }

    /// Returns a new directory for what is yet to be offered. What one leaves in it that is killed goes with the rest.
    pub(super) fn aside(&self) -> io::Result<TempDir> {
        tempfile::Builder::new().prefix(".tmp-").tempdir_in(&self.directory)
    }

    /// Offers a file under its hash.
    pub(super) fn add(&self, digest: &Digest, file: &Path) -> io::Result<()> {
        let link = self.directory.join(digest.to_string());
        let file = file.canonicalize()?;
        // Another path of the same content may be gone by now.
        let aside = self.aside()?;
        let new = aside.path().join("link");
        symlink(file, &new)?;
        fs::rename(&new, &link)
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        if rustix::fs::flock(&self.held, FlockOperation::NonBlockingLockExclusive).is_err() {
            return;
        }
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            // What stays is removed by the next one.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                fs::remove_dir_all(entry.path()).ok();
            } else {
                fs::remove_file(entry.path()).ok();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_offer_goes_with_the_last_of_them() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        fs::write(&image, "large").unwrap();
        let digest = Digest::of(b"large");
        let link = offers(dir.path()).join(digest.to_string());
        let (first, second) = (Offer::begin(dir.path()).unwrap(), Offer::begin(dir.path()).unwrap());
        first.add(&digest, &image).unwrap();
        second.add(&digest, &image).unwrap();
        drop(first);
        assert_eq!(fs::read(&link).unwrap(), b"large");
        drop(second);
        assert_eq!(fs::read_dir(offers(dir.path())).unwrap().count(), 0);
        assert!(image.is_file(), "the image itself stays");
    }
}

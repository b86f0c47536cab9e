//! The new file beside the old one, before it takes its place.
//!
//! It is called `.NAME.stead-tmp` and locked (`flock`) by whoever writes it. The lock vanishes with its holder, so a
//! temporary file without a lock is the leftover of a kill: the next writer of the same path removes it. Two live
//! writers of one path wait for each other. One fixed name needs no search of the directory.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use stead_runner::operation::OpError;

use crate::disk::body::hex;
use crate::disk::{Disk, Spot, io_error};

/// How long a live writer of the same path is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest name a directory entry can have.
const LONGEST_NAME: usize = 255;

/// A file that is removed again unless it takes its place.
pub(crate) struct Temporary {
    directory: Arc<OwnedFd>,
    name: OsString,
    file: File,
    kept: bool,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.kept {
            // Best effort: a leftover is removed by the next writer.
            rustix::fs::unlinkat(&self.directory, &self.name, AtFlags::empty()).unwrap_or(());
        }
    }
}

/// Returns what the temporary file of `name` is called.
pub(crate) fn name_of(name: &OsStr) -> OsString {
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(".stead-tmp");
    if temporary.len() > LONGEST_NAME {
        temporary = format!(".{}.stead-tmp", &hex(&Sha256::digest(name.as_bytes()))[..32]).into();
    }
    temporary
}

impl Temporary {
    /// Makes the temporary file for `spot`, readable by its owner alone unless `mode` says otherwise.
    pub(crate) fn create(spot: &Spot, mode: u32) -> Result<Self, OpError> {
        let says = |errno| io_error(&spot.path, "write beside", errno);
        let directory =
            spot.directory.clone().ok_or_else(|| io_error(&spot.path, "write beside", Errno::NOENT))?;
        let name = name_of(&spot.name);
        let start = Instant::now();
        loop {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match rustix::fs::openat(&directory, &name, flags, Mode::from_raw_mode(mode)) {
                Ok(fd) => {
                    rustix::fs::flock(&fd, FlockOperation::LockExclusive).map_err(says)?;
                    // Between the two calls another writer may have taken it for a leftover.
                    if rustix::fs::fstat(&fd).map_err(says)?.st_nlink > 0 {
                        return Ok(Self { directory, name, file: File::from(fd), kept: false });
                    }
                }
                Err(Errno::EXIST) => remove_leftover(&directory, &name).map_err(says)?,
                Err(errno) => return Err(says(errno)),
            }
            if start.elapsed() > PATIENCE {
                return Err(OpError::operation(format!(
                    "`{}` is being written by somebody else",
                    spot.path.display()
                )));
            }
        }
    }

    /// Writes the whole content.
    pub(crate) fn fill(&mut self, reader: &mut dyn io::Read) -> io::Result<()> {
        io::copy(reader, &mut self.file)?;
        self.file.flush()
    }

    /// Returns the file's handle.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Returns the path outside the root, for programs that look at it.
    pub(crate) fn outside(&self, disk: &Disk, spot: &Spot) -> PathBuf {
        disk.outside(&spot.path).with_file_name(&self.name)
    }

    /// Copies extended attributes (ACLs and labels among them) from `old`, as far as the system lets us.
    pub(crate) fn copy_attributes(&self, old: impl AsFd) {
        let Ok(size) = rustix::fs::flistxattr(&old, &mut [0u8; 0][..]).or_else(|_| query(&old)) else {
            return;
        };
        let mut names = vec![0; size + 1024];
        let Ok(size) = rustix::fs::flistxattr(&old, &mut names[..]) else { return };
        for name in names[..size].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let mut value = vec![0; 64 << 10];
            if let Ok(size) = rustix::fs::fgetxattr(&old, name, &mut value[..]) {
                rustix::fs::fsetxattr(&self.file, name, &value[..size], XattrFlags::empty()).unwrap_or(());
            }
        }
    }

    /// Renames it over `spot`.
    pub(crate) fn take_place(mut self, spot: &Spot) -> Result<(), (Self, Errno)> {
        match rustix::fs::renameat(&self.directory, &self.name, &self.directory, &spot.name) {
            Ok(()) => {
                self.kept = true;
                Ok(())
            }
            Err(errno) => Err((self, errno)),
        }
    }
}

fn query(fd: impl AsFd) -> rustix::io::Result<usize> {
    rustix::fs::flistxattr(fd, &mut [0u8; 1][..])
}

/// Removes the temporary file of `spot` that a dead writer left, if there is one. Best effort: the next writer does it too.
pub(crate) fn clear(spot: &Spot) {
    if let Some(directory) = &spot.directory {
        remove_leftover(directory, &name_of(&spot.name)).unwrap_or(());
    }
}

/// Removes a temporary file that nobody holds; waits a moment if somebody does.
fn remove_leftover(directory: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(()),
        // A link is not ours and never locked.
        Err(Errno::LOOP) => return unlink(directory, name),
        Err(errno) => return Err(errno),
    };
    match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
        // The lock may have come from its holder having just renamed it: then the name is free or another's.
        Ok(()) if is_same(directory, name, &fd)? => unlink(directory, name),
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => {
            std::thread::sleep(Duration::from_millis(5));
            Ok(())
        }
        Err(errno) => Err(errno),
    }
}

fn unlink(directory: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn is_same(directory: &OwnedFd, name: &OsStr, fd: &OwnedFd) -> Result<bool, Errno> {
    let ours = rustix::fs::fstat(fd)?;
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) => Ok((there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

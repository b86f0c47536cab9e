//! Locks between the drivers of this machine: one for each machine being worked on, and a short one for free numbers.
//!
//! Drivers on other machines are told apart by what is in the cluster itself.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use stead_runner::machine::MachineError;

/// How often another's lock is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A held lock. Dropping it lets go.
#[derive(Debug)]
pub(super) struct Held {
    _file: File,
    path: PathBuf,
}

impl Held {
    /// Lets go of a lock that nobody needs any more.
    pub(super) fn forget(self) {
        // One that stays is found and used again.
        fs::remove_file(&self.path).ok();
    }
}

/// Waits for the lock `name` in `directory`.
pub(super) async fn hold(directory: &Path, name: &str) -> Result<Held, MachineError> {
    let path = directory.join(format!("{name}.lock"));
    let failed = |error: io::Error| MachineError::failed(format!("cannot lock {}: {error}", path.display()));
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
    loop {
        if let Some(file) = try_hold(&path).map_err(failed)? {
            return Ok(Held { _file: file, path });
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Takes the lock if it is free, and still the one that others look at.
fn try_hold(path: &Path) -> io::Result<Option<File>> {
    let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    }
    let held = file.metadata()?;
    let is_same =
        fs::metadata(path).is_ok_and(|there| (held.dev(), held.ino()) == (there.dev(), there.ino()));
    Ok(is_same.then_some(file))
}

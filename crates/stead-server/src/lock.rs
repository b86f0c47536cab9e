//! The lock that a server holds as long as it lives.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Takes the lock for this process; none if another holds it. It is held until the file is closed.
pub(crate) fn take(path: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    let mut file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    if !try_lock(&file)? {
        return Ok(None);
    }
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())?;
    Ok(Some(file))
}

/// Takes the lock for a moment in which nobody else may have it, without saying who has it; none if another holds it.
pub(crate) fn hold(path: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    }
    // Who had it before does not have it now.
    file.set_len(0)?;
    Ok(Some(file))
}

/// Returns the process that holds the lock, if one does; the inner is none if it has not said who it is.
pub(crate) fn holder(path: &Path) -> io::Result<Option<Option<u32>>> {
    let mut file = match OpenOptions::new().read(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // Shared, so that two who look do not see each other.
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => return Ok(None),
        Err(Errno::WOULDBLOCK) => {}
        Err(errno) => return Err(errno.into()),
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(Some(text.trim().parse().ok()))
}

fn try_lock(file: &File) -> io::Result<bool> {
    // One who only looks holds it for a moment.
    for _ in 0..50 {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) => std::thread::sleep(std::time::Duration::from_millis(4)),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_until_it_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert_eq!(holder(&path).unwrap(), None);
        let lock = take(&path).unwrap();
        assert!(lock.is_some() && take(&path).unwrap().is_none());
        assert_eq!(holder(&path).unwrap(), Some(Some(std::process::id())));
        assert!(hold(&path).unwrap().is_none());
        drop(lock);
        let held = hold(&path).unwrap();
        assert_eq!(holder(&path).unwrap(), Some(None), "and not the one before");
        drop(held);
        assert_eq!(holder(&path).unwrap(), None, "what is left of a server that has ended is no server");
    }
}

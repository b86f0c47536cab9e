//! Locks that cannot go stale: `flock` on a file that says who holds it.
//!
//! The kernel drops the lock when its holder ends, however it ends; the file stays and is never removed,
//! so two processes can never hold different files of one name. What the file says is only for people:
//! whether a lock is held is asked of the kernel.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use stead_model::RunId;
use stead_model::time::Timestamp;

use crate::error::RecordError;

/// Who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The run.
    pub run: RunId,
    /// The process.
    pub pid: u32,
    /// Since when.
    pub since: Timestamp,
}

impl Holder {
    /// Returns this process, on behalf of `run`.
    pub fn this_process(run: RunId, since: Timestamp) -> Self {
        Self { run, pid: std::process::id(), since }
    }

    fn is_alive(&self) -> bool {
        is_alive(self.pid)
    }
}

/// Whether there is a process with this id.
pub(crate) fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

/// Why a lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds it.
    #[error("{} is locked{}", path.display(), held_by(holder.as_ref()))]
    Held {
        /// The lock.
        path: PathBuf,
        /// Who holds it; none if it has not said so yet.
        holder: Option<Holder>,
    },
    /// The lock file could not be used.
    #[error(transparent)]
    File(#[from] RecordError),
}

fn held_by(holder: Option<&Holder>) -> String {
    holder.map_or_else(String::new, |holder| {
        format!(" by run {} (pid {}, since {})", holder.run, holder.pid, holder.since)
    })
}

/// How long is waited before a lock that will be free in an instant is tried again.
const PAUSE: Duration = Duration::from_millis(10);

/// Whether a lock that is held, as far as one can see by `seen`, will be free in an instant.
///
/// A process that is killed while it starts a child leaves its locks to that child until the child becomes another
/// program: on a busy machine that takes a while, and it always ends.
fn is_passing(seen: Option<&Holder>, tries: u32) -> bool {
    match seen {
        Some(holder) => !holder.is_alive() && tries < 300,
        // A reader that asks, or a holder that has not yet said who it is.
        None => tries < 5,
    }
}

/// A lock this process holds until it is dropped.
#[derive(Debug)]
pub struct FileLock {
    file: File,
}

impl FileLock {
    /// Takes the lock at `path`, or says who holds it.
    ///
    /// A reader asking [`holder_of`] holds the lock for an instant; that is waited out, as is a dead holder's child.
    pub fn take(path: &Path, holder: &Holder) -> Result<Self, LockError> {
        for tries in 1.. {
            match Self::try_take(path, holder) {
                Err(LockError::Held { holder: seen, .. }) if is_passing(seen.as_ref(), tries) => {
                    std::thread::sleep(PAUSE);
                }
                other => return other,
            }
        }
        Self::try_take(path, holder)
    }

    /// Takes the lock at `path` if it is free right now. Does not wait.
    pub fn try_take(path: &Path, holder: &Holder) -> Result<Self, LockError> {
        let mut open = OpenOptions::new();
        let open = open.read(true).write(true).create(true).truncate(false).mode(0o644).open(path);
        let mut file = open.map_err(RecordError::of("open lock", path))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(LockError::Held { path: path.to_owned(), holder: read_holder(&mut file) });
            }
            Err(errno) => return Err(RecordError::of("take lock", path)(errno.into()).into()),
        }
        write_holder(&mut file, holder).map_err(RecordError::of("write lock", path))?;
        Ok(Self { file })
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // So that nobody is named who is gone. If it fails the kernel still knows that the lock is free.
        drop(self.file.set_len(0));
    }
}

/// Returns whether the lock at `path` is held right now, and by whom if the holder has said so.
pub fn holder_of(path: &Path) -> Result<Option<Option<Holder>>, RecordError> {
    // Anything else is no lock of ours, and opening a pipe would wait for its other end.
    if path.symlink_metadata().is_ok_and(|found| !found.is_file()) {
        return Ok(None);
    }
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(RecordError::of("open lock", path)(error)),
    };
    let mut tries = 0;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => return Ok(None),
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(errno) => return Err(RecordError::of("ask for lock", path)(errno.into())),
        }
        file.rewind().map_err(RecordError::of("read lock", path))?;
        let seen = read_holder(&mut file);
        tries += 1;
        // Who does not say who it is holds it all the same, unless it is just about to let go.
        if !is_passing(seen.as_ref(), tries) {
            return Ok(Some(seen));
        }
        std::thread::sleep(PAUSE);
    }
}

fn write_holder(file: &mut File, holder: &Holder) -> io::Result<()> {
    let mut text = serde_json::to_vec(holder)?;
    text.push(b'\n');
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(&text)
}

fn read_holder(file: &mut File) -> Option<Holder> {
    let mut text = String::new();
    file.take(4_096).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(run: &str) -> Holder {
        Holder::this_process(RunId::parse(run).unwrap(), Timestamp::from_micros(1))
    }

    #[test]
    fn a_lock_is_held_once_and_free_after_its_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert_eq!(holder_of(&path).unwrap(), None);
        let lock = FileLock::take(&path, &holder("a")).unwrap();
        assert_eq!(holder_of(&path).unwrap(), Some(Some(holder("a"))));
        let error = FileLock::take(&path, &holder("b")).unwrap_err();
        assert!(
            error.to_string().contains(&format!("by run a (pid {}, since 1970-", std::process::id())),
            "{error}"
        );
        drop(lock);
        assert_eq!(holder_of(&path).unwrap(), None);
        FileLock::take(&path, &holder("b")).unwrap();
    }

    /// What a driver leaves that was killed while it started a child: its name, and its lock for a little longer.
    #[test]
    fn a_lock_that_outlives_its_holder_for_an_instant_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let mut gone = std::process::Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        let dead = Holder { pid: gone.id(), ..holder("dead") };
        for asks in [
            |path: &Path| holder_of(path).unwrap().is_none(),
            |path: &Path| FileLock::take(path, &holder("next")).is_ok(),
        ] {
            let lock = FileLock::take(&path, &dead).unwrap();
            let (seen, asked) = std::sync::mpsc::channel();
            let keeper = std::thread::spawn(move || {
                asked.recv().unwrap();
                drop(lock);
            });
            assert_eq!(read_holder(&mut File::open(&path).unwrap()), Some(dead.clone()));
            seen.send(()).unwrap();
            assert!(asks(&path));
            keeper.join().unwrap();
        }
    }
}

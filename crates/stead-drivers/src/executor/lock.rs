//! The target's own lock: two runs, from wherever they are driven, never write to it at once.
//!
//! A `flock` on `BASE/locks/target.lock`, held by the session process for as long as one of its hosts needs it. The
//! kernel frees it when the session ends, however that happens; what the file says is for people.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rustix::fs::FlockOperation;
use stead_model::RunId;
use stead_model::executor::Holder;

use super::home::private_directory;

/// How often a held lock is tried again.
const POLL: Duration = Duration::from_millis(50);

/// The lock of the target, shared by the hosts of one run.
#[derive(Debug)]
pub(super) struct TargetLock {
    path: PathBuf,
    held: Mutex<Weak<Held>>,
}

/// The lock, held until the last clone is dropped.
#[derive(Debug)]
pub(super) struct Held(Option<File>);

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            // So that nobody is named who is gone.
            file.set_len(0).unwrap_or(());
        }
    }
}

/// Why the lock was not taken.
#[derive(Debug)]
pub(super) enum Refused {
    By(Option<Holder>),
    Failed(io::Error),
}

impl TargetLock {
    pub(super) fn new(base: &Path) -> Self {
        Self { path: base.join("locks").join("target.lock"), held: Mutex::default() }
    }

    /// Takes the lock for `holder`, waiting up to `wait`; a lock of the run `parent` is no obstacle.
    pub(super) async fn take(
        &self,
        holder: &Holder,
        parent: Option<&RunId>,
        wait: Duration,
    ) -> Result<Arc<Held>, Refused> {
        let deadline = tokio::time::Instant::now() + wait;
        loop {
            match self.try_take(holder) {
                Err(Refused::By(Some(other))) if Some(&other.run) == parent => {
                    return Ok(Arc::new(Held(None)));
                }
                // Somebody who has just taken it and not yet said so, or has just let it go.
                Err(Refused::By(_)) if tokio::time::Instant::now() < deadline => {}
                Err(Refused::By(None)) if wait.is_zero() => {
                    tokio::time::sleep(POLL).await;
                    return self.try_take(holder);
                }
                other => return other,
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn try_take(&self, holder: &Holder) -> Result<Arc<Held>, Refused> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = held.upgrade() {
            return Ok(held);
        }
        let taken = Arc::new(self.lock_file(holder)?);
        *held = Arc::downgrade(&taken);
        Ok(taken)
    }

    fn lock_file(&self, holder: &Holder) -> Result<Held, Refused> {
        if let Some(directory) = self.path.parent() {
            private_directory(directory).map_err(Refused::Failed)?;
        }
        let mut options = File::options();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&self.path)
            .map_err(Refused::Failed)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let read = file.take(16 << 10).read_to_string(&mut text);
                return Err(Refused::By(read.ok().and_then(|_| serde_json::from_str(&text).ok())));
            }
            Err(errno) => return Err(Refused::Failed(errno.into())),
        }
        let said = serde_json::to_vec(holder).unwrap_or_default();
        let written = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(&said));
        written.map_err(Refused::Failed)?;
        Ok(Held(Some(file)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(run: &str) -> Holder {
        Holder {
            run: RunId::parse(run).unwrap(),
            driver: "laptop".to_owned(),
            user: "ann".to_owned(),
            since: "2026-11-15T12:00:00Z".to_owned(),
        }
    }

    /// Case 13.
    #[tokio::test]
    async fn one_run_shares_it_another_is_told_who_has_it() {
        let base = tempfile::tempdir().unwrap();
        let (mine, theirs) = (TargetLock::new(base.path()), TargetLock::new(base.path()));
        let first = mine.take(&holder("one"), None, Duration::ZERO).await.unwrap();
        let second = mine.take(&holder("one"), None, Duration::ZERO).await.unwrap();
        drop(first);
        let Err(Refused::By(Some(found))) = theirs.take(&holder("two"), None, Duration::ZERO).await else {
            panic!("it is held")
        };
        assert_eq!(found, holder("one"));
        let one = RunId::parse("one").unwrap();
        theirs.take(&holder("three"), Some(&one), Duration::ZERO).await.unwrap();
        let two = holder("two");
        let mut waiting = Box::pin(theirs.take(&two, None, Duration::from_secs(30)));
        assert!(tokio::time::timeout(Duration::from_millis(120), &mut waiting).await.is_err());
        drop(second);
        waiting.await.unwrap();
    }
}

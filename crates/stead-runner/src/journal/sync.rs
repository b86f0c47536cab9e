//! The thread that brings a journal's writes to the disk, so that the dispatcher never waits for it.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long after the first unsynced write a sync begins. Users are promised 50 ms; the rest is the disk's.
const DELAY: Duration = Duration::from_millis(30);

/// A file and the thread that syncs it.
#[derive(Debug)]
pub(super) struct Syncer {
    shared: Arc<Shared>,
    // Invariant: some until dropped.
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    file: File,
    // Set by a write, cleared before a sync: a write during a sync asks for another one.
    dirty: AtomicBool,
    stopping: AtomicBool,
    failure: Mutex<Option<io::Error>>,
}

impl Syncer {
    /// Returns a syncer of `file` with its thread running.
    pub(super) fn start(file: File) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            file,
            dirty: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            failure: Mutex::new(None),
        });
        let of_thread = Arc::clone(&shared);
        let thread =
            thread::Builder::new().name("stead-journal".to_owned()).spawn(move || of_thread.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Returns the file, for writing.
    pub(super) fn file(&self) -> &File {
        &self.shared.file
    }

    /// Says that something was written.
    pub(super) fn written(&self) {
        if !self.shared.dirty.swap(true, Ordering::AcqRel)
            && let Some(thread) = &self.thread
        {
            thread.thread().unpark();
        }
    }

    /// Returns what the thread's last sync failed with, once.
    pub(super) fn take_failure(&self) -> Option<io::Error> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Syncs on the calling thread.
    pub(super) fn sync_now(&self) -> io::Result<()> {
        self.shared.dirty.store(false, Ordering::Release);
        self.shared.file.sync_data()?;
        self.take_failure().map_or(Ok(()), Err)
    }
}

impl Shared {
    fn run(&self) {
        loop {
            while !self.dirty.load(Ordering::Acquire) {
                if self.stopping.load(Ordering::Acquire) {
                    return;
                }
                thread::park();
            }
            let due = Instant::now() + DELAY;
            while !self.stopping.load(Ordering::Acquire) {
                let left = due.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                thread::park_timeout(left);
            }
            if self.dirty.swap(false, Ordering::AcqRel)
                && let Err(error) = self.file.sync_data()
            {
                *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        }
    }
}

impl Drop for Syncer {
    /// Brings what is left to the disk and ends the thread.
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic in the thread has nothing left to tell: the file stays as the writes left it.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_write_is_synced_without_being_asked_for() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"x").unwrap();
        let syncer = Syncer::start(file).unwrap();
        for _ in 0..2 {
            syncer.written();
            let start = Instant::now();
            while syncer.shared.dirty.load(Ordering::Acquire) {
                assert!(start.elapsed() < Duration::from_secs(20), "nobody syncs");
                thread::yield_now();
            }
            assert!(syncer.take_failure().is_none());
        }
    }

    #[test]
    fn a_failing_sync_is_told() {
        // A pipe cannot be synced.
        let (_reader, writer) = io::pipe().unwrap();
        let syncer = Syncer::start(File::from(std::os::fd::OwnedFd::from(writer))).unwrap();
        assert!(syncer.sync_now().is_err());
        syncer.written();
        let start = Instant::now();
        while syncer.take_failure().is_none() {
            assert!(start.elapsed() < Duration::from_secs(20), "the failure is kept from us");
            thread::yield_now();
        }
    }
}

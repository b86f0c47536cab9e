//! The thread that brings a journal's writes to the disk, so that the dispatcher never waits for it.
//!
//! When it syncs is decided in [`Work::run`], which knows time and disk only through [`Surroundings`]: tests give it a
//! clock of their own.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long after the first unsynced write a sync begins. Users are promised 50 ms; the rest is the disk's.
const DELAY: Duration = Duration::from_millis(30);

/// What the thread needs of the world.
trait Surroundings {
    /// Returns the time since some fixed moment.
    fn now(&self) -> Duration;
    /// Returns when something was written, the work is stopping, or so long has passed; perhaps earlier.
    fn wait(&self, longest: Option<Duration>);
    /// Brings everything written so far to the disk.
    fn sync(&self) -> io::Result<()>;
}

/// What writers and the thread share.
#[derive(Debug, Default)]
struct Work {
    // Set by a write, cleared before a sync: a write during a sync asks for another one.
    dirty: AtomicBool,
    stopping: AtomicBool,
    failure: Mutex<Option<io::Error>>,
}

impl Work {
    /// Syncs within [`DELAY`] of every write, and once for all writes of that time, until it is stopping and clean.
    fn run(&self, world: &impl Surroundings) {
        loop {
            while !self.dirty.load(Ordering::Acquire) {
                if self.stopping.load(Ordering::Acquire) {
                    return;
                }
                world.wait(None);
            }
            let due = world.now() + DELAY;
            while !self.stopping.load(Ordering::Acquire) {
                let left = due.saturating_sub(world.now());
                if left.is_zero() {
                    break;
                }
                world.wait(Some(left));
            }
            if self.dirty.swap(false, Ordering::AcqRel)
                && let Err(error) = world.sync()
            {
                *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        }
    }
}

/// The real world: the file, and the thread that waits for it.
#[derive(Debug)]
struct Shared {
    file: File,
    start: Instant,
    work: Work,
}

impl Surroundings for Shared {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn wait(&self, longest: Option<Duration>) {
        match longest {
            Some(longest) => thread::park_timeout(longest),
            None => thread::park(),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// A file and the thread that syncs it.
#[derive(Debug)]
pub(super) struct Syncer {
    shared: Arc<Shared>,
    // Invariant: some until dropped.
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    /// Returns a syncer of `file` with its thread running.
    pub(super) fn start(file: File) -> io::Result<Self> {
        let shared = Arc::new(Shared { file, start: Instant::now(), work: Work::default() });
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("stead-journal".to_owned())
            .spawn(move || of_thread.work.run(&*of_thread))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Returns the file, for writing.
    pub(super) fn file(&self) -> &File {
        &self.shared.file
    }

    /// Says that something was written.
    pub(super) fn written(&self) {
        if !self.shared.work.dirty.swap(true, Ordering::AcqRel)
            && let Some(thread) = &self.thread
        {
            thread.thread().unpark();
        }
    }

    /// Returns what the thread's last sync failed with, once.
    pub(super) fn take_failure(&self) -> Option<io::Error> {
        self.shared.work.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Syncs on the calling thread.
    pub(super) fn sync_now(&self) -> io::Result<()> {
        self.shared.work.dirty.store(false, Ordering::Release);
        self.shared.file.sync_data()?;
        self.take_failure().map_or(Ok(()), Err)
    }
}

impl Drop for Syncer {
    /// Brings what is left to the disk and ends the thread.
    fn drop(&mut self) {
        self.shared.work.stopping.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic in the thread has nothing left to tell: the file stays as the writes left it.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::VecDeque;
    use std::io::Write as _;

    use super::*;

    /// A world whose clock stands still but for waiting, in which writes come at given times and a sync takes a while.
    struct Told<'a> {
        work: &'a Work,
        now: Cell<Duration>,
        writes: RefCell<VecDeque<Duration>>,
        sync_takes: Duration,
        syncs: RefCell<Vec<Duration>>,
    }

    impl<'a> Told<'a> {
        fn run(writes: &[u64], sync_takes: u64) -> Vec<Duration> {
            let work = Work::default();
            let told = Told {
                work: &work,
                now: Cell::new(Duration::ZERO),
                writes: RefCell::new(writes.iter().copied().map(Duration::from_millis).collect()),
                sync_takes: Duration::from_millis(sync_takes),
                syncs: RefCell::default(),
            };
            work.run(&told);
            told.syncs.into_inner()
        }

        /// Lets time pass until `until`, or the next write; without either the journal is closed.
        fn pass(&self, until: Option<Duration>) {
            let next = self.writes.borrow().front().copied();
            match (next, until) {
                (Some(write), None) => self.write(write),
                (Some(write), Some(until)) if write <= until => self.write(write),
                (Some(_) | None, Some(until)) => self.now.set(until),
                (None, None) => self.work.stopping.store(true, Ordering::Release),
            }
        }

        fn write(&self, at: Duration) {
            self.writes.borrow_mut().pop_front();
            self.now.set(self.now.get().max(at));
            self.work.dirty.store(true, Ordering::Release);
        }
    }

    impl Surroundings for Told<'_> {
        fn now(&self) -> Duration {
            self.now.get()
        }

        fn wait(&self, longest: Option<Duration>) {
            self.pass(longest.map(|longest| self.now.get() + longest));
        }

        fn sync(&self) -> io::Result<()> {
            self.syncs.borrow_mut().push(self.now.get());
            let end = self.now.get() + self.sync_takes;
            while self.now.get() < end {
                self.pass(Some(end));
            }
            Ok(())
        }
    }

    /// Section 11: every write is being brought to the disk within 50 ms, and writes that come together share a sync.
    #[test]
    fn a_sync_begins_within_fifty_milliseconds_of_every_write() {
        let steady: Vec<u64> = (0..3_000).collect();
        let bursts: Vec<u64> = (0..40).flat_map(|burst| (0..25).map(move |_| burst * 500)).collect();
        for (writes, sync_takes, most) in [
            (&steady, 0, 3_000 / 30 + 1),
            (&steady, 15, 3_000 / 45 + 2),
            (&bursts, 0, 40),
            (&bursts, 20, 40),
            (&vec![7], 3, 1),
            (&vec![], 0, 0),
        ] {
            let syncs = Told::run(writes, sync_takes);
            assert!(syncs.len() <= most, "{} syncs for {} writes", syncs.len(), writes.len());
            for write in writes {
                let write = Duration::from_millis(*write);
                // A write during a sync waits for that one to end; this much is the disk's.
                let bound = write + Duration::from_millis(50 + sync_takes);
                let in_time = syncs.iter().any(|sync| (write..=bound).contains(sync));
                assert!(in_time, "nothing syncs the write at {write:?}: {syncs:?}");
            }
        }
    }

    #[test]
    fn a_write_is_synced_without_being_asked_for() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"x").unwrap();
        let syncer = Syncer::start(file).unwrap();
        for _ in 0..2 {
            syncer.written();
            let start = Instant::now();
            while syncer.shared.work.dirty.load(Ordering::Acquire) {
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

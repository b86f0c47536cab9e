//! Locks of hosts: two runs of one state directory never write to one host at once. A run of steps locks the name of
//! what it acts on instead, in the state directory of its user.
//!
//! One file per name, taken in name order so that two runs waiting for each other's hosts cannot block
//! each other for good. The kernel frees the locks of a dead process; see [`stead_bundle::FileLock`].

use std::collections::BTreeSet;
use std::fmt;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stead_bundle::{FileLock, Holder, LockError, RecordError, file_name, locks_directory};
use stead_model::{ErrorClass, HostName, RunId};

use crate::clock;

/// How often a held lock is tried again: a person does not notice the delay, a machine not the load.
const POLL: Duration = Duration::from_millis(50);

/// What one run at a time may write to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lockable {
    /// A host.
    Host(HostName),
    /// What a run of steps acts on, by its name.
    Target(String),
}

impl Lockable {
    fn name(&self) -> &str {
        match self {
            Self::Host(host) => host.as_str(),
            Self::Target(name) => name,
        }
    }
}

impl From<&HostName> for Lockable {
    fn from(host: &HostName) -> Self {
        Self::Host(host.clone())
    }
}

impl From<&Lockable> for Lockable {
    fn from(lockable: &Lockable) -> Self {
        lockable.clone()
    }
}

impl fmt::Display for Lockable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(host) => write!(f, "host {host}"),
            Self::Target(name) => write!(f, "target {name}"),
        }
    }
}

/// Why a run does not have its locks.
#[derive(Debug, thiserror::Error)]
pub enum HostLockError {
    /// Another run has one of them.
    #[error("{what} is locked{}", held_by(holder.as_ref()))]
    Held {
        /// The host or target.
        what: Lockable,
        /// Who has it; none if it has not said so yet.
        holder: Option<Holder>,
    },
    /// A lock file could not be used.
    #[error("failed to lock {what}")]
    File {
        /// The host or target.
        what: Lockable,
        /// Why.
        #[source]
        source: RecordError,
    },
    /// The directory of locks could not be made.
    #[error(transparent)]
    Directory(#[from] RecordError),
}

impl HostLockError {
    /// Returns the class of what fails for it: only what another run has is worth waiting for.
    pub(crate) const fn class(&self) -> ErrorClass {
        match self {
            Self::Held { .. } => ErrorClass::Locked,
            Self::File { .. } | Self::Directory(_) => ErrorClass::Journal,
        }
    }
}

fn held_by(holder: Option<&Holder>) -> String {
    holder.map_or_else(String::new, |holder| {
        format!(" by run {} (pid {}, since {})", holder.run, holder.pid, holder.since)
    })
}

/// The locks that one run holds. Dropping it frees them.
#[derive(Debug)]
pub struct HostLocks {
    directory: PathBuf,
    holder: Holder,
    parents: Arc<[RunId]>,
    // Invariant: all that this run may write to, taken or passed because a run that started this one has it.
    passed: BTreeSet<Lockable>,
    taken: Vec<FileLock>,
}

impl HostLocks {
    /// Returns an empty set of locks in the state directory `state`.
    ///
    /// `parents` are the runs this one was started by, directly or not: their locks do not block this run.
    pub fn new(state: &Path, holder: Holder, parents: Arc<[RunId]>) -> Self {
        Self {
            directory: locks_directory(state),
            holder,
            parents,
            passed: BTreeSet::new(),
            taken: Vec::new(),
        }
    }

    /// Takes the locks of `all` that this run does not have yet: all of them, or none and the error.
    pub fn take<L: Into<Lockable>>(&mut self, all: impl IntoIterator<Item = L>) -> Result<(), HostLockError> {
        let mut added = Added::default();
        for what in self.missing(all)? {
            self.try_take(&what, &mut added, true)?;
        }
        self.keep(added);
        Ok(())
    }

    /// As [`take`](Self::take), but waits up to `wait` for what other runs have.
    ///
    /// Cancel safe: if the future is dropped, none of these locks is kept. Two runs that take hosts in several
    /// calls can wait for each other; then both get their error at the end of their wait.
    pub async fn take_within<L: Into<Lockable>>(
        &mut self,
        all: impl IntoIterator<Item = L>,
        wait: Duration,
    ) -> Result<(), HostLockError> {
        let deadline = clock::instant().checked_add(wait);
        let mut added = Added::default();
        for what in self.missing(all)? {
            loop {
                let error = match self.try_take(&what, &mut added, false) {
                    Ok(()) => break,
                    Err(error @ HostLockError::Held { .. }) => error,
                    Err(error) => return Err(error),
                };
                // A wait that has no end is longer than any clock counts.
                let left =
                    deadline.map_or(POLL, |deadline| deadline.saturating_duration_since(clock::instant()));
                if left.is_zero() {
                    return Err(error);
                }
                tokio::time::sleep(left.min(POLL)).await;
            }
        }
        self.keep(added);
        Ok(())
    }

    fn missing<L: Into<Lockable>>(
        &self,
        all: impl IntoIterator<Item = L>,
    ) -> Result<BTreeSet<Lockable>, RecordError> {
        let missing: BTreeSet<Lockable> =
            all.into_iter().map(Into::into).filter(|what| !self.passed.contains(what)).collect();
        if !missing.is_empty() {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(&self.directory);
            made.map_err(|source| RecordError {
                action: "create directory",
                path: self.directory.clone(),
                source,
            })?;
        }
        Ok(missing)
    }

    fn try_take(&self, what: &Lockable, added: &mut Added, patient: bool) -> Result<(), HostLockError> {
        let path = self.directory.join(file_name(what.name(), ".lock"));
        let take = if patient { FileLock::take } else { FileLock::try_take };
        match take(&path, &self.holder) {
            Ok(lock) => added.taken.push(lock),
            Err(LockError::Held { holder, .. }) => {
                if holder.as_ref().is_none_or(|holder| !self.parents.contains(&holder.run)) {
                    return Err(HostLockError::Held { what: what.clone(), holder });
                }
            }
            Err(LockError::File(source)) => return Err(HostLockError::File { what: what.clone(), source }),
        }
        added.passed.push(what.clone());
        Ok(())
    }

    fn keep(&mut self, added: Added) {
        self.passed.extend(added.passed);
        self.taken.extend(added.taken);
    }
}

/// How long a run that was to wait without end waits for one more host.
const ONE_MORE: Duration = Duration::from_secs(300);

/// Returns how long a run that holds hosts waits for one more, if it was to wait for `wait`.
///
/// The hosts that a run begins with are taken by name, so runs that wait for those do not wait for each other. Whoever holds
/// some and wants one more may be waited for by its holder: a wait without end would have none.
pub(crate) fn wait_holding(wait: Duration) -> Duration {
    if wait == Duration::MAX { ONE_MORE } else { wait }
}

/// The locks of a run that goes on: hosts that only become known while it does are added to them.
#[derive(Debug)]
pub(crate) struct RunLocks {
    locks: Arc<Mutex<HostLocks>>,
    wait: Option<Duration>,
}

impl RunLocks {
    /// Returns the locks of a run that waits up to `wait` for hosts that other runs have.
    pub(crate) fn new(locks: HostLocks, wait: Option<Duration>) -> Self {
        Self { locks: Arc::new(Mutex::new(locks)), wait }
    }

    /// Takes the lock of `host`, unless this run has it. Kept until the run ends.
    ///
    /// Cancel safe. Those who wait for different hosts do not wait for each other.
    pub(crate) async fn take(&self, host: &HostName) -> Result<(), HostLockError> {
        let what = Lockable::from(host);
        if self.locks.lock().unwrap_or_else(PoisonError::into_inner).passed.contains(&what) {
            return Ok(());
        }
        let deadline = self.wait.map(|wait| clock::instant().checked_add(wait));
        loop {
            let (locks, host) = (Arc::clone(&self.locks), host.clone());
            // On a thread where waiting out a holder that is just ending disturbs nobody.
            let taking = tokio::task::spawn_blocking(move || {
                locks.lock().unwrap_or_else(PoisonError::into_inner).take([&host])
            });
            let taken = match taking.await {
                Ok(taken) => taken,
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    // The runtime is going down, and this future with it.
                    Err(_) => std::future::pending().await,
                },
            };
            let error = match taken {
                Ok(()) => return Ok(()),
                Err(error @ HostLockError::Held { .. }) => error,
                Err(error) => return Err(error),
            };
            let left = match deadline {
                None => Duration::ZERO,
                Some(None) => POLL,
                Some(Some(deadline)) => deadline.saturating_duration_since(clock::instant()),
            };
            if left.is_zero() {
                return Err(error);
            }
            tokio::time::sleep(left.min(POLL)).await;
        }
    }
}

/// What one call has taken so far.
#[derive(Default)]
struct Added {
    passed: Vec<Lockable>,
    taken: Vec<FileLock>,
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn host(name: &str) -> HostName {
        HostName::parse(name).unwrap()
    }

    fn run(id: &str) -> RunId {
        RunId::parse(id).unwrap()
    }

    fn locks(state: &Path, id: &str) -> HostLocks {
        HostLocks::new(state, Holder::this_process(run(id), clock::now()), Arc::default())
    }

    /// Two runs that were to wait without end and hold what the other wants both get an error that names the other.
    #[tokio::test]
    async fn runs_that_hold_each_others_hosts_do_not_wait_for_ever() {
        assert_eq!(wait_holding(Duration::from_secs(7200)), Duration::from_secs(7200), "as somebody asked");
        assert_eq!(wait_holding(Duration::MAX), ONE_MORE);
        let state = tempfile::tempdir().unwrap();
        let holding = |id: &str, own: &str| {
            let mut held = locks(state.path(), id);
            held.take([&host(own)]).unwrap();
            RunLocks::new(held, Some(Duration::from_millis(50)))
        };
        let (one, other) = (holding("one", "a"), holding("other", "b"));
        let (b, a) = (host("b"), host("a"));
        let (left, right) = tokio::join!(one.take(&b), other.take(&a));
        assert!(left.unwrap_err().to_string().contains("other"));
        assert!(right.unwrap_err().to_string().contains("one"));
    }

    /// Case 23: the second run is refused and told who has the host; it gets nothing at all.
    #[test]
    fn a_held_host_is_named_with_its_holder_and_nothing_else_is_kept() {
        let state = tempfile::tempdir().unwrap();
        let mut first = locks(state.path(), "first");
        first.take([&host("web2")]).unwrap();
        let mut second = locks(state.path(), "second");
        let error = second.take([&host("web1"), &host("web2"), &host("web3")]).unwrap_err();
        let HostLockError::Held { what: held, holder: Some(holder) } = &error else { panic!("{error:?}") };
        assert_eq!((held.name(), holder.run.as_str(), holder.pid), ("web2", "first", std::process::id()));
        assert!(error.to_string().starts_with("host web2 is locked by run first (pid "), "{error}");
        first.take([&host("web1"), &host("web2")]).unwrap();
        drop(first);
        second.take([&host("web1"), &host("web2")]).unwrap();
    }

    #[test]
    fn a_run_started_by_the_holder_passes() {
        let state = tempfile::tempdir().unwrap();
        let mut outer = locks(state.path(), "outer");
        outer.take([&host("a"), &host("b")]).unwrap();
        let holder = Holder::this_process(run("inner"), clock::now());
        let mut inner = HostLocks::new(state.path(), holder, [run("middle"), run("outer")].into());
        inner.take([&host("b"), &host("c")]).unwrap();
        // What the inner run took itself is its own.
        let error = outer.take([&host("c")]).unwrap_err();
        assert!(matches!(error, HostLockError::Held { .. }), "{error}");
        drop(inner);
        outer.take([&host("c")]).unwrap();
    }

    #[tokio::test]
    async fn waiting_ends_when_the_host_is_free() {
        let state = tempfile::tempdir().unwrap();
        let mut first = locks(state.path(), "first");
        first.take([&host("b")]).unwrap();
        let mut second = locks(state.path(), "second");
        let hosts = [host("a"), host("b")];
        let mut waiting = Box::pin(second.take_within(&hosts, Duration::from_secs(60)));
        let timed_out = tokio::time::timeout(Duration::from_millis(120), &mut waiting).await;
        assert!(timed_out.is_err(), "it waits");
        drop(first);
        waiting.await.unwrap();
    }

    #[tokio::test]
    async fn waiting_ends_at_its_deadline_and_a_dropped_wait_keeps_nothing() {
        let state = tempfile::tempdir().unwrap();
        let mut first = locks(state.path(), "first");
        first.take([&host("b")]).unwrap();
        let mut second = locks(state.path(), "second");
        let hosts = [host("a"), host("b")];
        let error = second.take_within(&hosts, Duration::from_millis(60)).await.unwrap_err();
        assert!(matches!(error, HostLockError::Held { .. }), "{error}");
        let waiting = second.take_within(&hosts, Duration::MAX);
        assert!(tokio::time::timeout(Duration::from_millis(60), waiting).await.is_err());
        first.take([&host("a")]).unwrap();
    }

    /// A process that is killed and reaped when dropped.
    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            drop(self.0.kill());
            drop(self.0.wait());
        }
    }

    /// Case 23: a real process holds the lock and is named; killed, its lock is free though its file remains.
    #[test]
    fn the_lock_of_a_killed_process_is_free() {
        const VARIABLE: &str = "STEAD_TEST_LOCK_IN";
        let given = std::env::vars_os().find(|(name, _)| name == VARIABLE).map(|(_, value)| value);
        if let Some(state) = given {
            let mut held = locks(Path::new(&state), "theirs");
            held.take([&host("web")]).unwrap();
            println!("\nheld");
            loop {
                std::thread::park();
            }
        }
        let state = tempfile::tempdir().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "--nocapture", "lock::tests::the_lock_of_a_killed_process_is_free"]);
        command.env(VARIABLE, state.path()).stdout(Stdio::piped());
        let mut theirs = Killed(command.spawn().unwrap());
        let mut said = BufReader::new(theirs.0.stdout.take().unwrap()).lines();
        assert!(said.any(|line| line.unwrap() == "held"), "the child never took the lock");

        let mut mine = locks(state.path(), "mine");
        match mine.take([&host("web")]) {
            Err(HostLockError::Held { holder: Some(holder), .. }) => {
                assert_eq!((holder.run.as_str(), holder.pid), ("theirs", theirs.0.id()));
            }
            other => panic!("{other:?}"),
        }
        drop(theirs);
        let file = std::fs::read_to_string(locks_directory(state.path()).join("web.lock")).unwrap();
        assert!(file.contains("theirs"), "what the dead process wrote remains");
        mine.take([&host("web")]).unwrap();
    }

    #[test]
    fn an_unusable_lock_directory_is_named() {
        let state = tempfile::tempdir().unwrap();
        std::fs::write(state.path().join("locks"), "a file").unwrap();
        let error = locks(state.path(), "r").take([&host("web")]).unwrap_err();
        assert!(error.to_string().contains("locks"), "{error}");
    }
}

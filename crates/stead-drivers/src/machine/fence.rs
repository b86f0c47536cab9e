//! The lease of a machine that must not run twice.
//!
//! Whoever made it writes into a file until when it may run, and goes on doing so; in the machine's directory `fence` says
//! which file that is. The process that keeps the machine ends it when its time is over, so that this holds although
//! nobody else is left: an agent that was killed fences nobody.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};
use stead_model::machine::{MachineExit, MachineId};
use stead_runner::clock;

use super::console::Console;
use super::home::{Home, canonical, write_text};
use super::process::Handle;

const FILE: &str = "fence";

/// How often it is looked whether a lease is over.
pub(super) const LOOK: Duration = Duration::from_secs(1);
/// How much longer than its lease a machine may run: whoever granted it stops it in good order first, if it lives.
const SLACK: u64 = 3_000;

/// Says which file has the lease of the machine `id` that is kept in `root_dir`: a line `MILLISECONDS-SINCE-BOOT BOOT-ID`.
/// None: it needs no lease.
///
/// # Errors
/// If that cannot be written. A machine that is not there needs none.
pub fn set(root_dir: &Path, id: &MachineId, lease: Option<&Path>) -> io::Result<()> {
    let directory = canonical(root_dir).join(id.as_str());
    let path = directory.join(FILE);
    let known = fs::read_to_string(&path).ok();
    match lease {
        Some(lease) if known.as_deref() == Some(&*lease.to_string_lossy()) => Ok(()),
        Some(lease) if directory.is_dir() => write_text(&path, &lease.to_string_lossy(), 0o600),
        None if known.is_some() => fs::remove_file(path),
        Some(_) | None => Ok(()),
    }
}

/// Whether the machine in `directory` has to end: its lease is over, or nobody knows how long it is.
pub(super) fn is_over(directory: &Path) -> bool {
    let Ok(lease) = fs::read_to_string(directory.join(FILE)) else { return false };
    let said = fs::read_to_string(PathBuf::from(lease)).unwrap_or_default();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    is_past(&said, boot.trim(), now())
}

fn is_past(said: &str, boot: &str, now: u64) -> bool {
    let (until, of_boot) = said.trim().split_once(' ').unwrap_or_default();
    let until: u64 = if of_boot == boot { until.parse().unwrap_or_default() } else { 0 };
    now >= until.saturating_add(SLACK)
}

/// Milliseconds since boot, suspends included.
fn now() -> u64 {
    let since = clock_gettime(ClockId::Boottime);
    u64::try_from(since.tv_sec.saturating_mul(1000) + since.tv_nsec / 1_000_000).unwrap_or_default()
}

/// Waits until the machine in `directory` has to end, and calls `end`, in a thread of its own.
pub(super) fn watch(directory: PathBuf, end: impl Fn() + Send + 'static) {
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(LOOK);
            if is_over(&directory) {
                end();
            }
        }
    });
}

/// Ends a machine whose lease is over.
pub(super) fn end(home: &Home, process: &Handle) {
    let exit = exit();
    Console::new(home.clone()).say(&exit.reason);
    // Known before it ends: whoever waits for that is told why. Without room for that it ends all the same.
    if home.exit().is_none() {
        home.set_exit(&exit).ok();
    }
    process.signal(Signal::KILL);
}

/// How a machine ended whose lease was over.
pub(super) fn exit() -> MachineExit {
    let reason = "its lease is over".to_owned();
    MachineExit { code: None, signal: Some(Signal::KILL.as_raw()), at: Some(clock::now()), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Contract of fleets, section 9: a lease is over with its time, with its boot, and if nobody knows it.
    #[test]
    fn a_lease_ends_with_its_time_and_its_boot() {
        assert!(!is_past("5000 b1\n", "b1", 5000 + SLACK - 1));
        for (said, now) in [("5000 b1\n", 5000 + SLACK), ("5000 b2\n", 4000), ("", 4000), ("x b1", 4000)] {
            assert!(is_past(said, "b1", now), "{said}");
        }
    }

    #[test]
    fn a_machine_without_a_fence_has_no_end() {
        let dir = tempfile::tempdir().unwrap();
        let id = MachineId::new("11111111-1111-5111-8111-111111111111");
        let home = dir.path().join(id.as_str());
        set(dir.path(), &id, Some(Path::new("/nowhere/lease"))).unwrap();
        assert!(!home.exists(), "what is not there needs none");
        fs::create_dir(&home).unwrap();
        assert!(!is_over(&home));
        set(dir.path(), &id, Some(Path::new("/nowhere/lease"))).unwrap();
        assert!(is_over(&home), "nobody knows its lease");
        set(dir.path(), &id, None).unwrap();
        assert!(!is_over(&home));
    }
}

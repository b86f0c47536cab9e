//! The binaries kept on a target: which are in use, and which can go.
//!
//! A session holds a shared lock on `BASE/bin/SHA256/used` for as long as it lives, and touches it when it begins.

use std::fs::File;
use std::path::Path;

use rustix::fs::{FlockOperation, Timespec, Timestamps, UTIME_NOW};

/// Versions that nobody used for so long are removed.
const UNUSED: i64 = 30 * 24 * 3600;

const USED: &str = "used";

/// Says that the binary in `directory` is in use, until the result is dropped.
pub(super) fn hold(directory: &Path) -> Option<File> {
    let file = File::options().create(true).truncate(false).write(true).open(directory.join(USED)).ok()?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).ok()?;
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    rustix::fs::futimens(&file, &Timestamps { last_access: now, last_modification: now }).ok()?;
    Some(file)
}

/// Removes binaries that nobody has used for 30 days and nobody uses now.
pub(super) fn remove_unused(base: &Path) {
    let now = stead_runner::clock::now().as_micros() / 1_000_000;
    let Ok(entries) = std::fs::read_dir(base.join("bin")) else { return };
    for directory in entries.flatten().map(|entry| entry.path()) {
        // Without the mark it was uploaded by somebody who has yet to start it.
        let Ok(used) = File::options().write(true).open(directory.join(USED)) else { continue };
        let Ok(stat) = rustix::fs::fstat(&used) else { continue };
        if now - stat.st_mtime < UNUSED {
            continue;
        }
        if rustix::fs::flock(&used, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // Best effort: the next upload tries again.
            std::fs::remove_dir_all(&directory).unwrap_or(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_goes_when_it_is_old_and_nobody_uses_it() {
        assert_eq!(UNUSED, 30 * 24 * 60 * 60, "as the contract says");
        let base = tempfile::tempdir().unwrap();
        for name in ["old", "held", "new"] {
            std::fs::create_dir_all(base.path().join("bin").join(name)).unwrap();
            drop(hold(&base.path().join("bin").join(name)).unwrap());
        }
        let age = |name: &str| {
            let file =
                File::options().write(true).open(base.path().join("bin").join(name).join(USED)).unwrap();
            let then = stead_runner::clock::now().as_micros() / 1_000_000 - UNUSED - 60;
            let then = Timespec { tv_sec: then, tv_nsec: 0 };
            rustix::fs::futimens(&file, &Timestamps { last_access: then, last_modification: then }).unwrap();
        };
        let held = hold(&base.path().join("bin/held")).unwrap();
        age("old");
        age("held");
        remove_unused(base.path());
        let left = |name: &str| base.path().join("bin").join(name).exists();
        assert_eq!([left("old"), left("held"), left("new")], [false, true, true]);
        drop(held);
        age("held");
        remove_unused(base.path());
        assert!(!left("held"));
    }
}

//! Directories of runs: made for one account alone, locked while somebody uses them, swept when nobody comes back.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::FlockOperation;
use stead_model::role::WorkTag;
use stead_runner::clock;

/// How long what a lost driver left is kept.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// What the supervisors of a run's roles keep there.
pub(super) const CONTROL: &str = ".control";
/// Locked while the run has a driver.
pub(super) const LIVE: &str = ".live";

/// Returns the names of the directories in a directory.
pub(super) fn directories_in(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Makes a directory, with those above it, for this account alone.
pub(super) fn private_directories(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Makes a place, and makes sure that it is ours alone.
pub(super) fn try_place(place: &Path) -> Result<(), String> {
    if !place.is_absolute() {
        return Err("it is no absolute path".to_owned());
    }
    private_directories(place).map_err(|error| error.to_string())?;
    let metadata = fs::symlink_metadata(place).map_err(|error| error.to_string())?;
    if metadata.is_symlink() {
        return Err("it is a symbolic link".to_owned());
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err("it belongs to another account".to_owned());
    }
    if metadata.mode() & 0o002 != 0 {
        return Err("others may write there".to_owned());
    }
    rustix::fs::access(place, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)
        .map_err(|error| error.to_string())
}

/// Removes a run's directory in which nobody has anything any more.
pub(super) fn leave(directory: &Path) {
    if fs::remove_dir(directory.join(CONTROL)).is_ok() || !directory.join(CONTROL).exists() {
        let is_empty = fs::read_dir(directory)
            .is_ok_and(|entries| entries.flatten().all(|entry| entry.file_name() == LIVE));
        if is_empty {
            remove_tree(directory).unwrap_or(());
        }
    }
}

/// Takes the lock of a run's directory: shared by agents that use it, alone by who removes it.
pub(super) fn lock(directory: &Path, how: FlockOperation) -> io::Result<File> {
    let mut options = File::options();
    let file = options.create(true).truncate(false).write(true).mode(0o600).open(directory.join(LIVE))?;
    rustix::fs::flock(&file, how)?;
    Ok(file)
}

/// Removes what lost drivers left for longer than a day.
pub(super) fn sweep(place: &Path) {
    let now = SystemTime::UNIX_EPOCH
        + Duration::from_micros(u64::try_from(clock::now().as_micros()).unwrap_or_default());
    for entry in directories_in(place).into_iter().filter(|name| is_run(name)) {
        let directory = place.join(entry);
        let is_old = last_change(&directory)
            .and_then(|changed| now.duration_since(changed).ok())
            .is_some_and(|age| age > KEPT);
        // Without it somebody wanted it kept.
        if !is_old || !directory.join(LIVE).exists() {
            continue;
        }
        // Held while it is removed: nobody can take it up meanwhile.
        if let Ok(_held) = lock(&directory, FlockOperation::NonBlockingLockExclusive) {
            // What cannot be removed now is found again by the next run.
            remove_tree(&directory).unwrap_or(());
        }
    }
}

fn is_run(name: &str) -> bool {
    let rest = name.strip_prefix("run-").and_then(|rest| rest.rsplit_once('-'));
    rest.is_some_and(|(run, tag)| !run.is_empty() && WorkTag::parse(tag).is_some())
}

/// Returns when something in a run's directory last changed, two levels deep: a role that works writes.
fn last_change(directory: &Path) -> Option<SystemTime> {
    let walk = walkdir::WalkDir::new(directory).max_depth(3).into_iter().flatten();
    walk.filter_map(|entry| entry.metadata().ok()?.modified().ok()).max()
}

/// Removes a directory with all in it, also what its owner made unreadable.
pub(super) fn remove_tree(directory: &Path) -> io::Result<()> {
    if let Err(error) = fs::remove_dir_all(directory) {
        if error.kind() == io::ErrorKind::NotFound {
            return Ok(());
        }
        for entry in walkdir::WalkDir::new(directory).into_iter().flatten() {
            if entry.file_type().is_dir() {
                fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o700)).unwrap_or(());
            }
        }
        return fs::remove_dir_all(directory);
    }
    Ok(())
}

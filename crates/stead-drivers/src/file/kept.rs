//! Copies of what `undo: auto` may have to bring back and the journal is too small for.
//!
//! They are called by the SHA-256 of their content, in a directory of the run's own below the machine's base directory
//! (`BASE/undo/RUN`), readable by its account alone. They stay for seven days: a run that is taken up again after a
//! crash can still be rolled back. The next run that keeps something removes older ones.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use stead_runner::operation::{OpContext, OpError};

use super::entry::{Entry, Record};
use super::restored;
use crate::disk::body::{Body, hash};
use crate::disk::seen::open_file;

/// How long copies are kept, in seconds.
const KEPT_FOR: i64 = 7 * 24 * 60 * 60;

/// Keeps what the inverse of `entries` will not hold itself, before it is gone.
pub(super) fn keep(cx: &OpContext, entries: &[Entry]) -> Result<(), OpError> {
    if !cx.undo.is_wanted() {
        return Ok(());
    }
    let records: Vec<Record> = entries.iter().map(Entry::record).collect();
    let too_long: Vec<&Entry> = restored::too_long(&records).into_iter().map(|i| &entries[i]).collect();
    if too_long.is_empty() {
        return Ok(());
    }
    let directory = directory(cx, "the copy that `undo: auto` needs of a large file")?;
    for entry in too_long {
        copy(entry, &directory).map_err(|error| {
            let (path, place) = (entry.spot.path.display(), directory.display());
            OpError::io(format_args!("cannot keep a copy of `{path}` in {place} for `undo: auto`"), &error)
        })?;
    }
    Ok(())
}

/// Returns the file that holds these bytes, if it was kept by this run.
pub(super) fn find(cx: &OpContext, body: &Body) -> Option<PathBuf> {
    let mut files = cx.undo.directories().map(|directory| directory.join(body.sha256()));
    files.find(|file| file.symlink_metadata().is_ok_and(|found| found.is_file() && found.len() == body.size))
}

/// Returns the error of content that was not kept, or not long enough.
pub(super) fn lost(cx: &OpContext, path: &Path, body: &Body) -> OpError {
    let places: Vec<String> = cx.undo.directories().map(|place| place.display().to_string()).collect();
    OpError::permanent(format!(
        "the {} bytes that were in `{}` are not in {} any more: copies are kept for seven days",
        body.size,
        path.display(),
        places.join(" or ")
    ))
}

/// Returns the run's own directory, in the first place where there can be one, for `what` is to be kept there.
pub(crate) fn directory(cx: &OpContext, what: &str) -> Result<PathBuf, OpError> {
    let mut whys = Vec::new();
    for directory in cx.undo.directories() {
        match prepare(&directory) {
            Ok(()) => return Ok(directory),
            Err(error) => whys.push(format!("{}: {error}", directory.display())),
        }
    }
    Err(OpError::operation(format!("there is no place for {what}: {}", whys.join("; "))))
}

/// Makes `BASE/undo/RUN`, each of the three the account's own.
fn prepare(directory: &Path) -> io::Result<()> {
    let mut levels: Vec<&Path> = directory.ancestors().take(3).collect();
    levels.reverse();
    for level in &levels {
        let is_base = level == &levels[0];
        match DirBuilder::new().recursive(is_base).mode(0o700).create(level) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        let found = level.symlink_metadata()?;
        let refuse = |why: &str| Err(io::Error::other(format!("{} {why}", level.display())));
        if !found.is_dir() {
            return refuse("is not a directory");
        }
        if found.uid() != rustix::process::geteuid().as_raw() {
            return refuse("belongs to another account");
        }
        if found.mode() & 0o022 != 0 {
            return refuse("can be written by others");
        }
    }
    if let Some(all) = directory.parent() {
        // The moment is the kernel's, read off the directory just made: this crate asks no clock.
        sweep(all, directory, directory.metadata()?.mtime());
    }
    Ok(())
}

/// Removes what other runs kept too long ago. Best effort: what stays is removed another time.
fn sweep(all: &Path, own: &Path, now: i64) {
    for entry in fs::read_dir(all).into_iter().flatten().flatten() {
        let is_old = entry.metadata().is_ok_and(|found| now.saturating_sub(found.mtime()) > KEPT_FOR);
        if is_old && entry.path() != own {
            drop(fs::remove_dir_all(entry.path()));
        }
    }
}

fn copy(entry: &Entry, directory: &Path) -> io::Result<()> {
    let (Some(body), Some(above)) = (&entry.seen.body, &entry.spot.directory) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let place = directory.join(body.sha256());
    if place.symlink_metadata().is_ok_and(|found| found.is_file() && found.len() == body.size) {
        return Ok(());
    }
    let temporary =
        directory.join(format!(".{}.{}", body.sha256(), rustix::thread::gettid().as_raw_nonzero()));
    let copied = (|| {
        let from = open_file(above, &entry.spot.name)?;
        let mut to =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        io::copy(&mut from.take(body.size + 1), &mut to)?;
        to.sync_all()?;
        if hash(&mut File::open(&temporary)?)? != (body.size, body.sha256()) {
            return Err(io::Error::other("it changed while it was read"));
        }
        fs::rename(&temporary, &place)
    })();
    if copied.is_err() {
        drop(fs::remove_file(&temporary));
    }
    copied
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_age(path: &Path, days: u64) {
        let age = std::time::Duration::from_secs(days * 24 * 60 * 60);
        let then = path.metadata().unwrap().modified().unwrap() - age;
        File::open(path).unwrap().set_modified(then).unwrap();
    }

    #[test]
    fn copies_of_runs_older_than_seven_days_go() {
        let base = tempfile::tempdir().unwrap();
        let own = |run: &str| base.path().join("undo").join(run);
        for (run, days) in [("old", 8), ("young", 6)] {
            prepare(&own(run)).unwrap();
            fs::write(own(run).join("copy"), "x").unwrap();
            set_age(&own(run), days);
        }
        prepare(&own("now")).unwrap();
        assert_eq!([own("old"), own("young"), own("now")].map(|dir| dir.exists()), [false, true, true]);
        assert_eq!(own("now").metadata().unwrap().mode() & 0o777, 0o700);
        // A run that goes on for longer does not lose its own.
        set_age(&own("young"), 8);
        prepare(&own("young")).unwrap();
        assert!(own("young").join("copy").exists());
    }

    #[test]
    fn a_place_others_can_change_is_not_used() {
        let base = tempfile::tempdir().unwrap();
        let open = base.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        assert!(prepare(&open.join("undo/run")).unwrap_err().to_string().contains("written by others"));
        let link = base.path().join("link");
        std::os::unix::fs::symlink(base.path(), &link).unwrap();
        assert!(prepare(&link.join("undo/run")).unwrap_err().to_string().contains("not a directory"));
    }
}

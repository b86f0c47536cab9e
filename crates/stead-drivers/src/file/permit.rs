//! Whether entries could be written, told without writing: a dry run fails where the run would, in its words.
//!
//! Only what the kernel says beforehand is looked at: whether this account may write to the directory of a path, and
//! whether its file system is read-only. What an earlier task of a dry run makes or changes is not judged.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Access, AtFlags};
use rustix::io::Errno;
use stead_runner::operation::OpError;

use super::compare::fields;
use super::entry::Record;
use crate::disk::seen::Kind;
use crate::disk::{Disk, Last, io_error};

/// Refuses entries that differ and cannot be written.
pub(crate) fn permit(disk: &Disk, records: &[Record]) -> Result<(), OpError> {
    let differing = |record: &&Record| !fields(&record.label, &record.seen, &record.want).is_empty();
    // In the order of writing, so that the first refusal is the one of the run.
    let gone = records.iter().rev().filter(|record| record.want.kind == Kind::Absent);
    let made = records.iter().filter(|record| record.want.kind != Kind::Absent);
    gone.chain(made).filter(differing).try_for_each(|record| look(disk, record))
}

fn look(disk: &Disk, record: &Record) -> Result<(), OpError> {
    // Something on the way that goes first: nothing can be said of what comes after it.
    let Ok(spot) = disk.locate(&record.path, Last::Keep) else { return Ok(()) };
    let foreseen = |path: &Path| path.parent().is_some_and(|parent| disk.predicted_at(parent).is_some());
    if spot.is_root() || foreseen(&spot.path) {
        return Ok(());
    }
    let Some(directory) = &spot.directory else {
        // The first of those that would be made.
        let Some(first) = spot.missing.first().filter(|first| !foreseen(first)) else { return Ok(()) };
        let Ok(above) = disk.locate(first, Last::Keep) else { return Ok(()) };
        return above
            .directory
            .as_deref()
            .map_or(Ok(()), |directory| may_fill(directory, first, "make directory"));
    };
    let is_new = record.seen.kind != record.want.kind;
    let doing = match record.want.kind {
        Kind::Absent => "remove",
        Kind::Directory if is_new && record.seen.kind != Kind::Absent => "remove",
        Kind::Directory if is_new => "make",
        Kind::Symlink if is_new || record.want.to != record.seen.to => "link",
        Kind::File if is_new || record.want.body.is_some() && record.want.body != record.seen.body => {
            "write beside"
        }
        Kind::File | Kind::Directory | Kind::Symlink | Kind::Other | Kind::Unknown => {
            // An owner may change what it cannot write, but not where nobody can.
            let doing = if record.want.uid.is_some() || record.want.gid.is_some() {
                "change the owner of"
            } else {
                "change the mode of"
            };
            let asked = AtFlags::EACCESS | AtFlags::SYMLINK_NOFOLLOW;
            return match rustix::fs::accessat(directory, &spot.name, Access::WRITE_OK, asked) {
                Err(Errno::ROFS) => Err(io_error(&spot.path, doing, Errno::ROFS)),
                _ => Ok(()),
            };
        }
    };
    may_fill(directory, &spot.path, doing)
}

/// Refuses if names can be neither added to `directory` nor taken from it.
fn may_fill(directory: &OwnedFd, path: &Path, doing: &str) -> Result<(), OpError> {
    let asked = Access::WRITE_OK | Access::EXEC_OK;
    match rustix::fs::accessat(directory, ".", asked, AtFlags::EACCESS) {
        Err(errno @ (Errno::ACCESS | Errno::ROFS)) => Err(io_error(path, doing, errno)),
        // Whatever else is wrong shows when it is written.
        _ => Ok(()),
    }
}

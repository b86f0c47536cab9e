//! Removing trees that a machine had in its hands: however deep, whatever is closed in them, and without following a link.
//!
//! Directories are moved up to the top as they are found, so that no more than two are ever open and no path grows: a
//! guest may nest them beyond every limit.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, openat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

/// What directories are called that were moved up.
const MOVED: &str = ".moved-";

/// Removes a file or a tree, also one whose directories were closed; one that is not there is removed.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let is_directory = match fs::symlink_metadata(path) {
        Ok(found) => found.is_dir(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !is_directory {
        return fs::remove_file(path);
    }
    let top = open(CWD, &CString::new(path.as_os_str().as_encoded_bytes())?)?;
    let mut waiting: VecDeque<CString> = unlink_files(&top)?.into();
    let mut moved = 0;
    while let Some(name) = waiting.pop_front() {
        let directory = open(&top, &name)?;
        for inner in unlink_files(&directory)? {
            waiting.push_back(move_up(&directory, &inner, &top, &mut moved)?);
        }
        unlinkat(&top, &name, AtFlags::REMOVEDIR)?;
    }
    fs::remove_dir(path)
}

/// Opens a directory, and opens it up if it was closed.
fn open(at: impl AsFd, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = openat(&at, name, flags | OFlags::PATH, Mode::empty())?;
    if !Mode::from_raw_mode(rustix::fs::fstat(&place)?.st_mode).contains(Mode::RWXU) {
        // By its descriptor: no name leads elsewhere. Where this account may not, what follows says so.
        rustix::fs::chmod(format!("/proc/self/fd/{}", place.as_raw_fd()), Mode::RWXU).ok();
    }
    Ok(openat(&place, c".", flags, Mode::empty())?)
}

/// Removes everything in a directory but the directories in it, and returns those.
fn unlink_files(directory: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut directories = Vec::new();
    let entries: Vec<_> = Dir::read_from(directory)?.collect::<Result<_, Errno>>()?;
    for entry in entries {
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let mut kind = entry.file_type();
        if kind == FileType::Unknown {
            kind = FileType::from_raw_mode(statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode);
        }
        if kind == FileType::Directory {
            directories.push(name.to_owned());
        } else {
            unlinkat(directory, name, AtFlags::empty())?;
        }
    }
    Ok(directories)
}

/// Moves a directory to the top and returns its name there.
fn move_up(from: &OwnedFd, name: &CStr, top: &OwnedFd, moved: &mut u64) -> io::Result<CString> {
    let mut was_opened = false;
    loop {
        let new = CString::new(format!("{MOVED}{moved}"))?;
        // An empty directory of that name would be replaced, and then be looked for twice.
        match renameat_with(from, name, top, &new, RenameFlags::NOREPLACE) {
            Ok(()) => {
                *moved += 1;
                return Ok(new);
            }
            // The guest may have called something so.
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => *moved += 1,
            // A closed one cannot be moved either.
            Err(Errno::ACCESS) if !was_opened => {
                open(from, name)?;
                was_opened = true;
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Deeper than a process may have files open, and than a path can be long.
    #[test]
    fn a_deep_tree_goes() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path().join("top");
        fs::create_dir(&top).unwrap();
        let mut at = open(CWD, &CString::new(top.as_os_str().as_encoded_bytes()).unwrap()).unwrap();
        for _ in 0..5000 {
            rustix::fs::mkdirat(&at, c"a", Mode::RWXU).unwrap();
            at = openat(&at, c"a", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        }
        remove(&top).unwrap();
        assert!(!top.exists());
        remove(&top).unwrap();
    }

    /// Somebody was cut off who had moved directories up; or a guest calls its own so.
    #[test]
    fn what_was_moved_up_before_goes_too() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path().join("top");
        fs::create_dir_all(top.join("x/y/z")).unwrap();
        for number in 0..4 {
            fs::create_dir(top.join(format!("{MOVED}{number}"))).unwrap();
        }
        remove(&top).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn what_is_closed_or_leads_elsewhere_goes_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let (top, other) = (place.path().join("top"), place.path().join("other"));
        fs::create_dir_all(top.join("x/y/z")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("precious"), "mine").unwrap();
        fs::write(top.join(format!("{MOVED}0")), "in the way").unwrap();
        fs::create_dir_all(top.join(format!("{MOVED}1/full"))).unwrap();
        std::os::unix::fs::symlink(&other, top.join("x/link")).unwrap();
        fs::write(top.join("x/y/file"), "").unwrap();
        for closed in ["x/y/z", "x/y", "x"] {
            fs::set_permissions(top.join(closed), fs::Permissions::from_mode(0o000)).unwrap();
        }
        remove(&top).unwrap();
        assert!(!top.exists() && other.join("precious").exists());
        std::os::unix::fs::symlink(&other, &top).unwrap();
        remove(&top).unwrap();
        assert!(!top.exists() && other.join("precious").exists());
    }
}

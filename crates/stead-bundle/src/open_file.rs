//! Opening files that others named or made: never a pipe that nobody writes to, never out of a bundle.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use rustix::fs::{Mode, OFlags};

/// Opens the regular file at `path` for reading. A pipe, which would wait for its other end, or a device is refused.
///
/// # Errors
/// If there is none, or it cannot be opened.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    regular(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Opens the regular file at `path` below `directory` for reading. Links are not followed, wherever on the way they are.
///
/// # Errors
/// If there is none, or it cannot be opened.
pub fn open_inside(directory: &Path, path: &Path) -> io::Result<File> {
    let outside = || io::Error::new(io::ErrorKind::InvalidInput, "it is no path below the bundle");
    let parts: Option<Vec<_>> = path
        .components()
        .map(|part| match part {
            Component::Normal(name) => Some(name),
            Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => None,
        })
        .collect();
    let parts = parts.ok_or_else(outside)?;
    let (name, folders) = parts.split_last().ok_or_else(outside)?;
    let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = rustix::fs::open(directory, folder, Mode::empty())?;
    for part in folders {
        at = rustix::fs::openat(&at, *part, folder | OFlags::NOFOLLOW, Mode::empty())?;
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    regular(rustix::fs::openat(&at, *name, flags, Mode::empty())?)
}

fn regular(opened: OwnedFd) -> io::Result<File> {
    let file = File::from(opened);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_nothing_outside() {
        let place = tempfile::tempdir().unwrap();
        let bundle = place.path().join("bundle");
        std::fs::create_dir_all(bundle.join("roles/client")).unwrap();
        std::fs::write(bundle.join("roles/client/stdout.log"), "x").unwrap();
        std::fs::write(place.path().join("secret"), "no").unwrap();
        std::os::unix::fs::symlink("../secret", bundle.join("link")).unwrap();
        std::os::unix::fs::symlink("roles", bundle.join("folder")).unwrap();
        let pipe = bundle.join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();

        let opens = |path: &str| open_inside(&bundle, Path::new(path)).is_ok();
        assert!(opens("roles/client/stdout.log"));
        for path in ["link", "folder/client/stdout.log", "../secret", "/etc/hostname", "pipe", "roles", ""] {
            assert!(!opens(path), "{path}");
        }
        assert!(open_regular(&bundle.join("link")).is_ok(), "whoever names a link means what it leads to");
        for path in [&pipe, &bundle, Path::new("/dev/null")] {
            assert!(open_regular(path).is_err(), "{path:?}");
        }
    }
}

//! The state of one path, as it is on disk or as a dry run predicts it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use stead_runner::operation::OpError;

use super::body::Body;
use super::{Disk, Spot, io_error};

/// What is at a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// Nothing.
    #[default]
    Absent,
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A socket, a pipe or a device.
    Other,
    /// Predicted: a command would make it, so nobody knows what it will be.
    Unknown,
}

impl Kind {
    /// Returns the word for it in messages and diffs.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::File => "file",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::Other => "special file",
            Self::Unknown => "unknown",
        }
    }
}

/// The state of one path.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// What is there.
    pub(crate) kind: Kind,
    /// Permission bits.
    #[serde(default)]
    pub(crate) mode: u32,
    /// Owner.
    #[serde(default)]
    pub(crate) uid: u32,
    /// Group.
    #[serde(default)]
    pub(crate) gid: u32,
    /// A file's content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) body: Option<Body>,
    /// A link's text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) to: Option<String>,
}

/// How much of a path is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Kind, mode and owner.
    Attributes,
    /// A file's content as well, by hash alone.
    Hash,
    /// A file's content as well, whole if it is short.
    Content,
}

impl Disk {
    /// Returns what is at `spot`, predicted or on disk.
    pub(crate) fn see(&self, spot: &Spot, depth: Depth) -> Result<Seen, OpError> {
        if let Some(seen) = self.predicted_at(&spot.path) {
            return Ok(seen);
        }
        let Some(directory) = &spot.directory else { return Ok(Seen::default()) };
        let says = |errno| io_error(&spot.path, "read", errno);
        let stat = match rustix::fs::statat(directory, &spot.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(Seen::default()),
            Err(errno) => return Err(says(errno)),
        };
        let mut seen =
            Seen { mode: stat.st_mode & 0o7777, uid: stat.st_uid, gid: stat.st_gid, ..Seen::default() };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                seen.kind = Kind::File;
                if depth != Depth::Attributes {
                    let mut file = open_file(directory, &spot.name).map_err(says)?;
                    let body =
                        if depth == Depth::Hash { Body::hashed(&mut file) } else { Body::read(&mut file) };
                    seen.body =
                        Some(body.map_err(|error| {
                            OpError::io(format_args!("`{}`", spot.path.display()), &error)
                        })?);
                }
            }
            FileType::Directory => seen.kind = Kind::Directory,
            FileType::Symlink => {
                seen.kind = Kind::Symlink;
                let to = rustix::fs::readlinkat(directory, &spot.name, Vec::new()).map_err(says)?;
                seen.to = Some(to.to_string_lossy().into_owned());
            }
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => seen.kind = Kind::Other,
        }
        Ok(seen)
    }

    /// Returns the bytes of the file at `spot`, at most `limit`.
    pub(crate) fn read(&self, spot: &Spot, seen: &Seen, limit: u64) -> Result<Vec<u8>, OpError> {
        use std::io::Read;
        let Some(body) = &seen.body else { return Ok(Vec::new()) };
        if body.size > limit {
            return Err(OpError::permanent(format!(
                "`{}` has {} bytes; this operation edits files of at most {limit}",
                spot.path.display(),
                body.size
            )));
        }
        if let Some(bytes) = body.bytes() {
            return Ok(bytes);
        }
        let mut bytes = Vec::new();
        let says = |error: std::io::Error| {
            OpError::io(format_args!("cannot read `{}`", spot.path.display()), &error)
        };
        let file = match (&body.source, &spot.directory) {
            (Some(source), _) => File::open(source).map_err(says)?,
            (None, Some(directory)) => {
                open_file(directory, &spot.name).map_err(|errno| says(errno.into()))?
            }
            (None, None) => return Err(unknown(&spot.path)),
        };
        file.take(limit).read_to_end(&mut bytes).map_err(says)?;
        // What is on disk may not be what was predicted, or may have changed since it was looked at.
        if Body::new(&bytes) == *body { Ok(bytes) } else { Err(unknown(&spot.path)) }
    }

    /// Opens the directory at `spot` if it is on disk.
    pub(crate) fn directory(&self, spot: &Spot) -> Result<Option<Arc<OwnedFd>>, OpError> {
        let Some(parent) = &spot.directory else { return Ok(None) };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(parent, &spot.name, flags, Mode::empty()) {
            Ok(fd) => Ok(Some(Arc::new(fd))),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(io_error(&spot.path, "open", errno)),
        }
    }

    /// Returns what is directly in the directory at `spot`, predicted or on disk, by name.
    pub(crate) fn children(&self, spot: &Spot) -> Result<Vec<Spot>, OpError> {
        let directory = self.directory(spot)?;
        let mut names = Vec::new();
        if let Some(fd) = &directory {
            let says = |errno| io_error(&spot.path, "list", errno);
            for entry in Dir::read_from(fd).map_err(says)? {
                let entry = entry.map_err(says)?;
                let name = entry.file_name().to_bytes();
                if name != b"." && name != b".." {
                    names.push(<OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(name).to_owned());
                }
            }
        }
        for (name, seen) in self.predicted_below(&spot.path) {
            names.retain(|known: &OsString| *known != name);
            if seen.kind != Kind::Absent {
                names.push(name);
            }
        }
        names.sort();
        Ok(names.iter().map(|name| spot.child(name, directory.clone())).collect())
    }
}

/// Opens a regular file for reading without following a link or waiting for a pipe's writer.
pub(crate) fn open_file(directory: &OwnedFd, name: &OsStr) -> Result<File, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::empty()).map(File::from)
}

/// Returns the error of needing to know what a command of this dry run would have made.
pub(crate) fn unknown(path: &Path) -> OpError {
    OpError::operation(format!(
        "the content of `{}` is not known yet: an earlier task would make it",
        path.display()
    ))
}

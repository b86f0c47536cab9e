//! The files of a node's agent: below the node's root, whole or not there, on the disk before they count.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::disk::Disk;

/// The most that is read of a file: the report of a job with both its streams, written as JSON.
const MOST_BYTES: u64 = 16 << 20;

/// Where the agent keeps what must not be lost.
pub(super) const AGENT: &str = "/var/lib/stead/agent";

/// A node's file system.
#[derive(Clone, Debug)]
pub struct NodeFiles {
    root: PathBuf,
}

impl NodeFiles {
    /// Returns the files below `root`.
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns where a path of the node really is; links do not lead out of the root.
    pub(super) fn real(&self, path: &str) -> io::Result<PathBuf> {
        let disk = Disk::at(&self.root).map_err(|error| io::Error::other(error.message))?;
        disk.real_path(path.as_ref()).map_err(|error| io::Error::other(error.message))
    }

    /// Makes a directory that only the node's own account can enter.
    pub(super) fn directory(&self, path: &str) -> io::Result<PathBuf> {
        let real = self.real(path)?;
        DirBuilder::new().recursive(true).mode(0o700).create(&real)?;
        Ok(real)
    }

    /// Returns a file's bytes; nothing if it is not there.
    pub fn read(&self, path: &str) -> io::Result<Option<Vec<u8>>> {
        read(&self.real(path)?)
    }

    /// Returns what a file of JSON says; nothing if it is not there or says something else.
    pub(super) fn json<T: DeserializeOwned>(&self, path: &str) -> Option<T> {
        serde_json::from_slice(&self.read(path).ok()??).ok()
    }

    /// Replaces a file.
    pub fn write(&self, path: &str, content: &[u8], mode: u32) -> io::Result<()> {
        write(&self.real(path)?, content, mode)
    }

    /// Replaces a file of JSON.
    pub(super) fn write_json(&self, path: &str, value: &impl Serialize) -> io::Result<()> {
        self.write(path, &serde_json::to_vec(value)?, 0o600)
    }

    /// Removes a file; one that is not there is removed.
    pub fn remove(&self, path: &str) -> io::Result<()> {
        remove(&self.real(path)?)
    }
}

pub(super) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(io::Error::other(format!("{} has more than {MOST_BYTES} bytes", path.display())));
    }
    Ok(Some(bytes))
}

/// Replaces a file: old or new, never a part, and on the disk when this returns.
pub(super) fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    if !directory.is_dir() {
        DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
    }
    let mut builder = tempfile::Builder::new();
    builder.prefix(".tmp-").permissions(fs::Permissions::from_mode(mode));
    let mut file = builder.tempfile_in(directory)?;
    file.write_all(content)?;
    // What is asked for counts, whatever the mask of this process.
    file.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    File::open(directory)?.sync_all()
}

pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

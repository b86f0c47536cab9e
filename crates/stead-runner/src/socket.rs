//! Names of sockets: an address holds about a hundred bytes, paths of sockets may be longer.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// Fits into an address with room for what the system adds.
const LONGEST: usize = 100;

/// A path of a socket's file that fits into an address, however long the one of its directory is. It is good for as
/// long as this lives.
#[derive(Debug)]
pub struct SocketPath {
    path: PathBuf,
    _directory: Option<OwnedFd>,
}

impl SocketPath {
    /// Opens the directory if `path` is too long.
    ///
    /// # Errors
    ///
    /// The directory cannot be opened.
    pub fn new(path: &Path) -> io::Result<Self> {
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(Self { path: path.to_owned(), _directory: None });
        };
        if path.as_os_str().len() <= LONGEST {
            return Ok(Self { path: path.to_owned(), _directory: None });
        }
        let directory =
            rustix::fs::open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let near = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        Ok(Self { path: near.join(name), _directory: Some(directory) })
    }

    /// Returns the path. It is borrowed, for whoever took this by value would drop it before the path is used.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn a_socket_in_a_deep_directory_is_made_and_reached() {
        let place = tempfile::tempdir().unwrap();
        for depth in [0, 40] {
            let directory = place.path().join("deep/".repeat(depth));
            std::fs::create_dir_all(&directory).unwrap();
            let path = directory.join("socket");
            let listener = UnixListener::bind(SocketPath::new(&path).unwrap().path()).unwrap();
            assert!(path.exists());
            let mut near = UnixStream::connect(SocketPath::new(&path).unwrap().path()).unwrap();
            near.write_all(b"hello").unwrap();
            drop(near);
            let mut said = String::new();
            listener.accept().unwrap().0.read_to_string(&mut said).unwrap();
            assert_eq!(said, "hello");
        }
        assert!(SocketPath::new(&place.path().join("none/".repeat(40))).is_err());
    }
}

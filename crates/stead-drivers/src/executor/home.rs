//! Where executors live on a target: `BASE`, and the directory of one run below it.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode};
use stead_model::RunId;
use stead_runner::socket::SocketPath;

const SOCKET: &str = "executor.sock";

/// The directory of one run's session.
#[derive(Clone, Debug)]
pub(super) struct Home {
    pub(super) base: PathBuf,
    pub(super) directory: PathBuf,
}

impl Home {
    pub(super) fn new(base: &Path, run: &RunId) -> Self {
        Self { base: base.to_owned(), directory: base.join("run").join(run.as_str()) }
    }

    /// Takes the lock under which sessions begin and end. Held for moments only.
    pub(super) fn doorstep(&self) -> io::Result<File> {
        let runs = self.base.join("run");
        private_directory(&runs)?;
        let lock =
            File::options().create(true).truncate(false).write(true).mode(0o600).open(runs.join(".lock"))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        Ok(lock)
    }

    /// Connects to the session.
    pub(super) fn connect(&self) -> io::Result<UnixStream> {
        UnixStream::connect(SocketPath::new(&self.directory.join(SOCKET))?.path())
    }

    /// Makes the socket that the session listens on.
    pub(super) fn listen(&self) -> io::Result<UnixListener> {
        match std::fs::remove_file(self.directory.join(SOCKET)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let listener = UnixListener::bind(SocketPath::new(&self.directory.join(SOCKET))?.path())?;
        // The directory keeps others out already; this says it of the socket itself.
        rustix::fs::chmod(self.directory.join(SOCKET), Mode::from_raw_mode(0o600))?;
        Ok(listener)
    }

    pub(super) fn stderr(&self) -> PathBuf {
        self.directory.join("stderr")
    }

    /// Returns what the session last said.
    pub(super) fn last_words(&self) -> String {
        use std::io::{Read, Seek, SeekFrom};
        const TAIL: u64 = 16 << 10;
        let mut text = Vec::new();
        if let Ok(mut file) = File::open(self.stderr()) {
            let size = file.metadata().map_or(0, |metadata| metadata.len());
            let read = file
                .seek(SeekFrom::Start(size.saturating_sub(TAIL)))
                .and_then(|_| file.take(TAIL).read_to_end(&mut text));
            drop(read);
        }
        let text = String::from_utf8_lossy(&text);
        stead_model::tail::last_words(&text).join("\n")
    }

    /// Removes the directory.
    pub(super) fn remove(&self) {
        // What cannot be removed is found by the next session that begins.
        std::fs::remove_dir_all(&self.directory).unwrap_or(());
    }
}

/// Makes a directory that only this account can enter, with those above it.
pub(super) fn private_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

//! Every file that is written below a directory, as it is closed; also if it is gone a moment later.
//!
//! fanotify hands over an open file for each, so nothing is missed because somebody was faster. It needs root.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};

/// The file that says that all has been written.
pub(super) const ENOUGH: &str = ".enough";
/// The most bytes of a file that are looked at.
const MOST: u64 = 64 << 20;

/// A directory that is watched.
#[derive(Debug)]
pub(super) struct Watch {
    events: Fanotify,
    directory: PathBuf,
}

impl Watch {
    /// Begins to watch.
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        let directory = fs::canonicalize(directory)?;
        let flags = InitFlags::FAN_CLASS_NOTIF | InitFlags::FAN_CLOEXEC | InitFlags::FAN_UNLIMITED_QUEUE;
        let events =
            Fanotify::init(flags, EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC | EventFFlags::O_LARGEFILE)?;
        // The whole filesystem: a directory alone would not tell of those below it.
        let marks = MarkFlags::FAN_MARK_ADD | MarkFlags::FAN_MARK_FILESYSTEM;
        events.mark(marks, MaskFlags::FAN_CLOSE_WRITE, rustix::fs::CWD, Some(&directory))?;
        Ok(Self { events, directory })
    }

    /// Gives each file and its content to `take`, until [`ENOUGH`] was written.
    pub(super) fn run(&self, mut take: impl FnMut(&Path, Vec<u8>)) -> io::Result<()> {
        let own = std::process::id();
        loop {
            for event in self.events.read_events()? {
                let Some(fd) = event.fd() else { continue };
                if u32::try_from(event.pid()).is_ok_and(|pid| pid == own) {
                    continue;
                }
                let Some(path) = path_of(&fd) else { continue };
                if !path.starts_with(&self.directory) {
                    continue;
                }
                if path == self.directory.join(ENOUGH) {
                    return Ok(());
                }
                let file = File::from(fd.as_fd().try_clone_to_owned()?);
                if let Some(bytes) = content(file) {
                    take(&path, bytes);
                }
            }
        }
    }
}

/// Returns what is in a file, as far as it can be read. Programs are not looked at: tests bring them to hosts by the hundred.
fn content(mut file: File) -> Option<Vec<u8>> {
    file.rewind().ok()?;
    let mut bytes = Vec::new();
    drop(file.by_ref().take(4).read_to_end(&mut bytes));
    if bytes == b"\x7fELF" {
        return None;
    }
    drop(file.take(MOST).read_to_end(&mut bytes));
    Some(bytes)
}

/// Returns where an open file is, or was.
fn path_of(fd: &impl std::os::fd::AsRawFd) -> Option<PathBuf> {
    let path = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    let text = path.to_str()?;
    Some(PathBuf::from(text.strip_suffix(" (deleted)").unwrap_or(text)))
}

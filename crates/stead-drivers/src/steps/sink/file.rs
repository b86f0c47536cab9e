//! A file that only its owner can read.
//!
//! Written beside its place and renamed over it, so that at any moment the old or the new document is there.

use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use stead_model::catalogue::SinkFormat;
use stead_runner::operation::{OpContext, OpError};
use zeroize::Zeroizing;

use super::{Held, Sink, manifest};
use crate::disk::{Disk, Last, Spot, io_error};
use crate::file::temporary::Temporary;
use crate::steps::InputsDocument;

/// Read and written by its owner.
const MODE: u32 = 0o600;
/// Directories made for it.
const DIRECTORY_MODE: u32 = 0o700;
/// A longer file is none that Stead wrote; it is not read into memory.
const LONGEST: u64 = 64 << 20;

/// A document in a file.
pub(super) struct FileSink<'a> {
    pub(super) document: &'a InputsDocument,
    pub(super) path: &'a Path,
    pub(super) format: &'a SinkFormat,
}

#[async_trait::async_trait]
impl Sink for FileSink<'_> {
    fn cannot_look(&self) -> Option<&'static str> {
        None
    }

    async fn look(&self, cx: &OpContext) -> Result<Option<Held>, OpError> {
        let spot = Disk::open(cx)?.locate(self.path, Last::Keep)?;
        let Some(Content { bytes, mode }) = read(&spot)? else { return Ok(None) };
        let text = String::from_utf8_lossy(&bytes);
        let wanted = manifest::to_file(self.document, self.format);
        Ok(Some(Held {
            what: format!("`{}`", self.path.display()),
            managed: text.starts_with(manifest::MARK),
            as_wanted: mode == MODE && bytes.as_slice() == wanted.as_bytes(),
            keys: manifest::keys_in(&text, self.format),
        }))
    }

    async fn write(&self, cx: &OpContext) -> Result<(), OpError> {
        let disk = Disk::open(cx)?;
        let mut spot = disk.locate(self.path, Last::Keep)?;
        for missing in spot.missing.clone() {
            let above = disk.locate(&missing, Last::Keep)?;
            let directory = directory_of(&above)?;
            match rustix::fs::mkdirat(directory, &above.name, Mode::from_raw_mode(DIRECTORY_MODE)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(io_error(&above.path, "make directory", errno)),
            }
        }
        if spot.directory.is_none() {
            spot = disk.locate(self.path, Last::Keep)?;
        }
        let says = |errno| io_error(&spot.path, "write", errno);
        if let Some((_, stat)) = look_at(&spot)? {
            refuse_other_kinds(&spot, &stat)?;
        }
        let mut temporary = Temporary::create(&spot, MODE)?;
        let text = manifest::to_file(self.document, self.format);
        let cannot =
            |error: io::Error| OpError::io(format_args!("cannot write `{}`", spot.path.display()), &error);
        temporary.fill(&mut text.as_bytes()).map_err(cannot)?;
        // Whatever the umask took away.
        rustix::fs::fchmod(temporary.file(), Mode::from_raw_mode(MODE)).map_err(says)?;
        temporary.file().sync_all().map_err(cannot)?;
        temporary.take_place(&spot).map_err(|(_, errno)| says(errno))?;
        sync(&spot)
    }

    async fn remove(&self, cx: &OpContext) -> Result<(), OpError> {
        let spot = Disk::open(cx)?.locate(self.path, Last::Keep)?;
        match rustix::fs::unlinkat(directory_of(&spot)?, &spot.name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => sync(&spot),
            Err(errno) => Err(io_error(&spot.path, "remove", errno)),
        }
    }
}

fn directory_of(spot: &Spot) -> Result<&std::os::fd::OwnedFd, OpError> {
    spot.directory.as_deref().ok_or_else(|| io_error(&spot.path, "write", Errno::NOENT))
}

/// Returns what is at a place, if something is.
fn look_at(spot: &Spot) -> Result<Option<(&std::os::fd::OwnedFd, rustix::fs::Stat)>, OpError> {
    let Some(directory) = spot.directory.as_deref() else { return Ok(None) };
    match rustix::fs::statat(directory, &spot.name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some((directory, stat))),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(io_error(&spot.path, "look at", errno)),
    }
}

/// A link would lead the secrets elsewhere, and nothing else but a file can be replaced by one.
fn refuse_other_kinds(spot: &Spot, stat: &rustix::fs::Stat) -> Result<(), OpError> {
    let kind = FileType::from_raw_mode(stat.st_mode);
    let what = match kind {
        FileType::RegularFile => return Ok(()),
        FileType::Symlink => "a symbolic link",
        FileType::Directory => "a directory",
        FileType::Fifo | FileType::Socket | FileType::CharacterDevice | FileType::BlockDevice => "not a file",
        FileType::Unknown => "of unknown kind",
    };
    Err(OpError::operation(format!("`{}` is {what}; nothing was written there", spot.path.display())))
}

/// What a file is.
struct Content {
    bytes: Zeroizing<Vec<u8>>,
    /// Its permissions.
    mode: u32,
}

/// Returns what a file is, if there is one.
fn read(spot: &Spot) -> Result<Option<Content>, OpError> {
    let Some((directory, stat)) = look_at(spot)? else { return Ok(None) };
    refuse_other_kinds(spot, &stat)?;
    let says = |errno| io_error(&spot.path, "read", errno);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(directory, &spot.name, flags, Mode::empty()).map_err(says)?;
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&fd).map_err(says)?.st_mode).as_raw_mode();
    let mut bytes = Zeroizing::new(Vec::new());
    let mut file = io::Read::take(std::fs::File::from(fd), LONGEST);
    io::Read::read_to_end(&mut file, &mut bytes)
        .map_err(|error| OpError::io(format_args!("cannot read `{}`", spot.path.display()), &error))?;
    Ok(Some(Content { bytes, mode: mode & 0o7777 }))
}

/// Brings the directory's own entry to the disk.
fn sync(spot: &Spot) -> Result<(), OpError> {
    let Some(directory) = spot.directory.as_deref() else { return Ok(()) };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // One that may be passed through but not read cannot be synced; the file itself is on the disk.
    match rustix::fs::openat(directory, ".", flags, Mode::empty()) {
        Ok(directory) => rustix::fs::fsync(directory).map_err(|errno| io_error(&spot.path, "sync", errno)),
        Err(_) => Ok(()),
    }
}

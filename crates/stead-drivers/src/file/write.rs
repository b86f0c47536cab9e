//! Makes entries as they should be. Reached only for what differs.
//!
//! Files are replaced whole: written beside their place, synced, given owner, attributes and mode, looked at by
//! `validate`, then renamed. Files with several hard links and files that are mount points cannot be replaced
//! without breaking the link or the mount: they are written in place, which is not atomic, and a note says so.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use stead_model::time::Timestamp;
use stead_runner::operation::{OpContext, OpError, Params, Stop};

use super::entry::{Entry, Want};
use super::temporary::{Temporary, name_of};
use crate::command::blocking::{self, Program};
use crate::disk::seen::{Kind, Seen, open_file, unknown};
use crate::disk::{Disk, Last, Spot, io_error};

/// A program with one of these bits runs as its owner or its group.
pub(super) const SET_ID: u32 = 0o6000;

/// What writing reports.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// The copy of what was replaced.
    pub(crate) backup: Option<String>,
    /// Said to the user.
    pub(crate) notes: Vec<String>,
}

/// Makes every entry that differs as it should be.
///
/// # Errors
/// With `changed` set if something is different already.
pub(crate) fn apply(
    cx: &OpContext,
    disk: &Disk,
    params: &Params,
    entries: Vec<Entry>,
) -> Result<Written, OpError> {
    super::kept::keep(cx, &entries)?;
    let mut writer = Writer { cx, disk, params, written: Written::default(), changed: false };
    match writer.apply(entries) {
        Ok(()) => Ok(writer.written),
        Err(error) => Err(OpError { changed: error.changed || writer.changed, ..error }),
    }
}

struct Writer<'a> {
    cx: &'a OpContext,
    disk: &'a Disk,
    params: &'a Params,
    written: Written,
    changed: bool,
}

impl Writer<'_> {
    fn apply(&mut self, entries: Vec<Entry>) -> Result<(), OpError> {
        let todo: Vec<Entry> = entries.into_iter().filter(Entry::differs).collect();
        let (gone, mut made): (Vec<_>, Vec<_>) =
            todo.into_iter().partition(|entry| entry.want.kind == Kind::Absent);
        // Children before the directories they are in.
        for entry in gone.iter().rev() {
            self.remove(&entry.spot, &entry.seen)?;
        }
        for entry in &mut made {
            if self.cx.cancel.now() >= Stop::Ask {
                return Err(OpError::operation("cancelled before every file was written"));
            }
            self.ensure_directory(&mut entry.spot)?;
            self.make(entry)?;
        }
        // Directories get their attributes last: until then their maker can fill them.
        for entry in made.iter().rev().filter(|entry| entry.want.kind == Kind::Directory) {
            let is_new = entry.seen.kind != Kind::Directory;
            self.set_attributes(&entry.spot, &entry.want, is_new)?;
        }
        Ok(())
    }

    /// Makes the directories above `spot` that are missing, and looks for it anew if some were.
    fn ensure_directory(&mut self, spot: &mut Spot) -> Result<(), OpError> {
        if spot.directory.is_some() {
            return Ok(());
        }
        for missing in &spot.missing {
            let above = self.disk.locate(missing, Last::Keep)?;
            let Some(directory) = &above.directory else { return Err(gone(&above)) };
            match rustix::fs::mkdirat(directory, &above.name, Mode::from_raw_mode(0o755)) {
                Ok(()) => {
                    self.changed = true;
                    // Whatever the mask of this process takes away.
                    change_mode(directory, &above, 0o755)?;
                }
                // Another task may have made it meanwhile.
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(io_error(&above.path, "make directory", errno)),
            }
        }
        let now = self.disk.locate(&spot.path, Last::Keep)?;
        if now.path != spot.path {
            // A link made on the way, by this operation or by somebody else, must not lead it elsewhere.
            return Err(OpError::permanent(format!(
                "`{}` leads to `{}` now; nothing was written there",
                spot.path.display(),
                now.path.display()
            )));
        }
        *spot = now;
        if spot.directory.is_none() { Err(gone(spot)) } else { Ok(()) }
    }

    fn make(&mut self, entry: &Entry) -> Result<(), OpError> {
        let Entry { spot, seen, want, .. } = entry;
        let is_new = seen.kind != want.kind;
        match want.kind {
            Kind::Directory if is_new => {
                self.remove(spot, seen)?;
                let mode = Mode::from_raw_mode(want.mode_if_new() | 0o700);
                rustix::fs::mkdirat(handle(spot)?, &spot.name, mode)
                    .map_err(|e| io_error(&spot.path, "make", e))?;
                self.changed = true;
                Ok(())
            }
            Kind::Directory => Ok(()),
            Kind::Symlink if is_new || want.to.is_some() && want.to != seen.to => self.link(spot, seen, want),
            Kind::File if entry.content_differs() => self.replace(entry),
            Kind::File => self.set_attributes(spot, &with_all_bits(seen, want), false),
            Kind::Symlink => self.set_attributes(spot, want, false),
            Kind::Other if !is_new => self.set_attributes(spot, want, false),
            Kind::Absent | Kind::Other | Kind::Unknown => Err(unknown(&spot.path)),
        }
    }

    fn remove(&mut self, spot: &Spot, seen: &Seen) -> Result<(), OpError> {
        if seen.kind == Kind::Absent || spot.directory.is_none() {
            return Ok(());
        }
        let flags = if seen.kind == Kind::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        match rustix::fs::unlinkat(handle(spot)?, &spot.name, flags) {
            Ok(()) => {
                self.changed = true;
                Ok(())
            }
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(io_error(&spot.path, "remove", errno)),
        }
    }

    fn link(&mut self, spot: &Spot, seen: &Seen, want: &Want) -> Result<(), OpError> {
        let says = |errno| io_error(&spot.path, "link", errno);
        let directory = handle(spot)?;
        if seen.kind == Kind::Directory {
            self.remove(spot, seen)?;
        }
        let temporary = name_of(&spot.name);
        match rustix::fs::unlinkat(directory, &temporary, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(says(errno)),
        }
        let to = want.to.clone().or_else(|| seen.to.clone()).unwrap_or_default();
        rustix::fs::symlinkat(to.as_str(), directory, &temporary).map_err(says)?;
        let keep = |wanted: Option<u32>, old: u32| wanted.or((seen.kind == Kind::Symlink).then_some(old));
        let owner = keep(want.uid, seen.uid).map(Uid::from_raw);
        let group = keep(want.gid, seen.gid).map(Gid::from_raw);
        let renamed = rustix::fs::chownat(directory, &temporary, owner, group, AtFlags::SYMLINK_NOFOLLOW)
            .and_then(|()| rustix::fs::renameat(directory, &temporary, directory, &spot.name));
        if let Err(errno) = renamed {
            rustix::fs::unlinkat(directory, &temporary, AtFlags::empty()).unwrap_or(());
            return Err(says(errno));
        }
        self.changed = true;
        Ok(())
    }

    fn set_attributes(&mut self, spot: &Spot, want: &Want, is_new: bool) -> Result<(), OpError> {
        let directory = handle(spot)?;
        if want.uid.is_some() || want.gid.is_some() {
            let (owner, group) = (want.uid.map(Uid::from_raw), want.gid.map(Gid::from_raw));
            rustix::fs::chownat(directory, &spot.name, owner, group, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|errno| io_error(&spot.path, "change the owner of", errno))?;
            self.changed = true;
        }
        let mode = if is_new { Some(want.mode_if_new()) } else { want.mode };
        if let Some(mode) = mode.filter(|_| want.kind != Kind::Symlink) {
            change_mode(directory, spot, mode)?;
            self.changed = true;
        }
        Ok(())
    }

    /// Puts a new file in the place of whatever is there.
    fn replace(&mut self, entry: &Entry) -> Result<(), OpError> {
        let Entry { spot, seen, want, .. } = entry;
        let directory = handle(spot)?;
        let is_new = seen.kind != Kind::File;
        let says = |errno| io_error(&spot.path, "write", errno);
        let failed =
            |error: io::Error| OpError::io(format_args!("cannot write `{}`", spot.path.display()), &error);

        // Until owner and mode are set nobody else may read it, unless anybody may in the end.
        let first_mode = if is_new && want.mode.is_none() { want.new_mode.unwrap_or(0o644) } else { 0o600 };
        let mut temporary = Temporary::create(spot, first_mode)?;
        fill(self.cx, &mut temporary, want, spot)?;
        let old = if is_new { None } else { Some(open_file(directory, &spot.name).map_err(says)?) };
        if let Some(old) = &old {
            temporary.copy_attributes(old);
        }
        let keep = |wanted: Option<u32>, old: u32| wanted.or((!is_new).then_some(old));
        let (uid, gid) = (keep(want.uid, seen.uid), keep(want.gid, seen.gid));
        let made = rustix::fs::fstat(temporary.file()).map_err(says)?;
        if uid.is_some_and(|uid| uid != made.st_uid) || gid.is_some_and(|gid| gid != made.st_gid) {
            rustix::fs::fchown(temporary.file(), uid.map(Uid::from_raw), gid.map(Gid::from_raw))
                .map_err(|errno| io_error(&spot.path, "change the owner of", errno))?;
        }
        if let Some(mode) = keep(want.mode, seen.mode) {
            rustix::fs::fchmod(temporary.file(), Mode::from_raw_mode(mode)).map_err(says)?;
        }
        temporary.file().sync_all().map_err(failed)?;
        self.validate(spot, want, &temporary)?;
        if let Some(old) = &old
            && self.params.flag("backup", false)
        {
            self.written.backup = Some(backup(spot, seen, old).map_err(failed)?);
        }
        if seen.kind == Kind::Directory {
            self.remove(spot, seen)?;
        }
        let links = old.as_ref().map(|old| rustix::fs::fstat(old).map(|stat| stat.st_nlink));
        if links.transpose().map_err(says)?.is_some_and(|links| links > 1) {
            return self.write_in_place(entry, &temporary, "it has several hard links");
        }
        match temporary.take_place(spot) {
            Ok(()) => {
                self.changed = true;
                Ok(())
            }
            Err((temporary, Errno::BUSY)) if !is_new => {
                self.write_in_place(entry, &temporary, "it is a mount point")
            }
            Err((_, errno)) => Err(says(errno)),
        }
    }

    fn write_in_place(&mut self, entry: &Entry, temporary: &Temporary, why: &str) -> Result<(), OpError> {
        let spot = &entry.spot;
        let failed =
            |error: io::Error| OpError::io(format_args!("cannot write `{}`", spot.path.display()), &error);
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = rustix::fs::openat(handle(spot)?, &spot.name, flags, Mode::empty())
            .map_err(|errno| io_error(&spot.path, "write", errno))?;
        let mut place = File::from(place);
        let mut from = temporary.file();
        from.seek(SeekFrom::Start(0)).map_err(failed)?;
        self.changed = true;
        let size = io::copy(&mut from, &mut place).map_err(failed)?;
        place.set_len(size).map_err(failed)?;
        place.flush().and_then(|()| place.sync_all()).map_err(failed)?;
        self.written.notes.push(format!("`{}` was written in place: {why}", spot.path.display()));
        self.set_attributes(spot, &with_all_bits(&entry.seen, &entry.want), false)
    }

    fn validate(&self, spot: &Spot, want: &Want, temporary: &Temporary) -> Result<(), OpError> {
        let argv =
            if want.validate.is_empty() { self.params.texts("validate") } else { want.validate.clone() };
        let Some((name, args)) = argv.split_first() else { return Ok(()) };
        if argv.iter().filter(|arg| arg.as_str() == "{}").count() != 1 {
            return Err(OpError::invalid("`validate` needs exactly one argument `{}` for the new file"));
        }
        let file = temporary.outside(self.disk, spot);
        let args = args.iter().map(|arg| if arg == "{}" { file.clone().into() } else { arg.into() });
        let program =
            Program { name: name.clone(), args: args.collect(), cwd: "/".into(), env: Default::default() };
        let said = blocking::run(self.cx, program)?;
        if said.is_ok() {
            return Ok(());
        }
        Err(OpError::operation(format!(
            "`{name}` refuses the new `{}`: {}",
            spot.path.display(),
            said.describe()
        )))
    }
}

/// Returns the wish with the mode that is there, where that would go by itself: whoever changes the owner of a file, or
/// writes to it, takes the bits from it that make it run as its owner or group.
fn with_all_bits(seen: &Seen, want: &Want) -> Want {
    let goes = want.mode.is_none() && seen.mode & SET_ID != 0;
    if goes { want.clone().mode(seen.mode) } else { want.clone() }
}

fn handle(spot: &Spot) -> Result<&OwnedFd, OpError> {
    spot.directory.as_deref().ok_or_else(|| gone(spot))
}

fn gone(spot: &Spot) -> OpError {
    OpError::operation(format!("the directory of `{}` does not exist", spot.path.display()))
}

/// Writes what is wanted into the temporary file.
fn fill(cx: &OpContext, temporary: &mut Temporary, want: &Want, spot: &Spot) -> Result<(), OpError> {
    let failed =
        |error: io::Error| OpError::io(format_args!("cannot write `{}`", spot.path.display()), &error);
    let Some(body) = &want.body else { return Ok(()) };
    if let Some(bytes) = want.bytes.as_ref().map(|bytes| bytes.as_ref().clone()).or_else(|| body.bytes()) {
        return temporary.fill(&mut bytes.as_slice()).map_err(failed);
    }
    let source = match (&body.source, &want.from) {
        (Some(source), _) => source.clone(),
        (None, Some(from)) => cx.files.content(&from.0, &from.1)?,
        (None, None) => return Err(unknown(&spot.path)),
    };
    let from = File::open(&source)
        .map_err(|error| OpError::io(format_args!("cannot read source `{}`", source.display()), &error))?;
    temporary.fill(&mut from.take(body.size + 1)).map_err(failed)?;
    let mut written = temporary.file();
    written.seek(SeekFrom::Start(0)).map_err(failed)?;
    let (size, sha256) = crate::disk::body::hash(&mut written).map_err(failed)?;
    if (size, sha256) == (body.size, body.sha256()) {
        return Ok(());
    }
    Err(OpError::operation(format!("source `{}` changed while it was copied", source.display())))
}

/// Changes the mode of what is at `spot`, never of what a link there points to.
fn change_mode(directory: &OwnedFd, spot: &Spot, mode: u32) -> Result<(), OpError> {
    let says = |errno| io_error(&spot.path, "change the mode of", errno);
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(directory, &spot.name, flags, Mode::empty()).map_err(says)?;
    let stat = rustix::fs::fstat(&fd).map_err(says)?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_symlink() {
        return Err(says(Errno::LOOP));
    }
    // A handle without read permission can be changed only by its name in /proc.
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::chmod(Path::new(&path), Mode::from_raw_mode(mode)).map_err(says)
}

/// Copies the old file to `PATH.stead.TIMESTAMP`, with mode and owner.
fn backup(spot: &Spot, seen: &Seen, old: &File) -> io::Result<String> {
    let Some(directory) = &spot.directory else { return Err(Errno::NOENT.into()) };
    // The moment is the kernel's, read off the temporary file just written: this crate asks no clock.
    let stat = rustix::fs::statat(directory, name_of(&spot.name), AtFlags::SYMLINK_NOFOLLOW)?;
    let micros = stat
        .st_mtime
        .saturating_mul(1_000_000)
        .saturating_add(i64::try_from(stat.st_mtime_nsec).unwrap_or(0) / 1_000);
    let moment = Timestamp::from_micros(micros).to_run_id_prefix();
    for number in 0..1_000 {
        let mut name = spot.name.clone();
        name.push(format!(".stead.{moment}"));
        if number > 0 {
            name.push(format!("-{number}"));
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(directory, &name, flags, Mode::from_raw_mode(0o600)) {
            Ok(fd) => fd,
            Err(Errno::EXIST) => continue,
            Err(errno) => return Err(errno.into()),
        };
        let mut copy = File::from(fd);
        let mut old = old;
        old.seek(SeekFrom::Start(0))?;
        io::copy(&mut old, &mut copy)?;
        rustix::fs::fchown(&copy, Some(Uid::from_raw(seen.uid)), Some(Gid::from_raw(seen.gid)))
            .or_else(|errno| if errno == Errno::PERM { Ok(()) } else { Err(errno) })?;
        rustix::fs::fchmod(&copy, Mode::from_raw_mode(seen.mode))?;
        copy.sync_all()?;
        let path = spot.path.with_file_name(&name);
        return Ok(path.to_string_lossy().into_owned());
    }
    Err(Errno::EXIST.into())
}

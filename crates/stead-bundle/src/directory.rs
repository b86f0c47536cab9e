//! The directory of one run while it is being written.
//!
//! It is built under a temporary name and renamed, so that a run directory either has its metadata,
//! plan and lock, or does not exist. The lock inside is held until this value is dropped.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use serde_json::Value;
use stead_model::bundle::{RunMeta, Versions};
use stead_model::event::Stream;
use stead_model::time::Timestamp;
use stead_model::{HostName, Report, RunId, TaskName};

use crate::archive::ArchiveFormat;
use crate::error::RecordError;
use crate::export::{ExportError, Exported, archive_path, replace_by_archive};
use crate::known_hashes::KnownHashes;
use crate::layout::{
    ARTIFACTS, EVENTS, LOCK, PLAN, REPORT, RUN_META, TEMPORARY, VERSIONS, file_name, inside, runs_directory,
};
use crate::lock::{FileLock, Holder, LockError, holder_of, is_alive};
use crate::log_file::LogFile;
use crate::seal::{SealError, seal_knowing, unseal};
use crate::signature::{SignError, SigningKey, sign};
use crate::stored::{LoadError, load_meta};

/// The permissions of a bundle's directories.
const DIRECTORY: u32 = 0o755;
/// The permissions of a bundle's files, but logs.
const FILE: u32 = 0o644;
/// Files are written in pieces of this size.
const WRITE_AT_ONCE: usize = 64 << 10;

/// Writes the bytes of a file, which need not be in memory as a whole.
pub type WriteBytes<'a> = &'a dyn Fn(&mut dyn io::Write) -> io::Result<()>;

/// What a new run directory begins with.
#[derive(Clone, Copy)]
pub struct NewRun<'a> {
    /// `run_meta.json`; its `run_id` names the directory, its `started_at` is written into the lock.
    pub meta: &'a RunMeta,
    /// `versions.json`.
    pub versions: &'a Versions,
    /// Writes the bytes of `plan.json`.
    pub plan: WriteBytes<'a>,
    /// Sources as the user wrote them, by file name, such as `plan.yaml`.
    pub sources: &'a [(&'a str, &'a [u8])],
}

/// Why there is no new run directory.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The id is taken.
    #[error("run {run_id} exists already in {}", directory.display())]
    Exists {
        /// The id.
        run_id: RunId,
        /// Where runs are kept.
        directory: PathBuf,
    },
    /// A live run has the id.
    #[error("run {run_id} in {} is in progress{}", directory.display(), holder.as_ref().map_or_else(String::new, |holder| format!(" (pid {}, since {})", holder.pid, holder.since)))]
    Held {
        /// The id.
        run_id: RunId,
        /// Where runs are kept.
        directory: PathBuf,
        /// Who has it; none if it has not said so yet.
        holder: Option<Holder>,
    },
    /// Something could not be written.
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// Why a run cannot go on in its directory.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A live process owns the run, or its lock cannot be used.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Its metadata cannot be used.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Something could not be written.
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// The directory of one run, locked by this process.
#[derive(Debug)]
pub struct RunDirectory {
    path: Arc<Path>,
    run_id: RunId,
    _lock: FileLock,
}

impl RunDirectory {
    /// Makes the directory of a new run in the state directory `state`.
    pub fn create(state: &Path, new: &NewRun<'_>) -> Result<Self, CreateError> {
        Self::create_below(&runs_directory(state), new)
    }

    /// Makes the directory of a new run right below `runs`.
    pub fn create_below(runs: &Path, new: &NewRun<'_>) -> Result<Self, CreateError> {
        // What bundles are put in is its owner's, and so are its permissions.
        let made = DirBuilder::new().recursive(true).mode(DIRECTORY).create(runs);
        made.map_err(RecordError::of("create directory", runs))?;
        let run_id = new.meta.run_id.clone();
        let path = runs.join(run_id.as_str());
        let exists = || taken(runs, &run_id);
        if names_of(runs, &run_id).iter().any(|(path, _)| path.symlink_metadata().is_ok()) {
            return Err(exists());
        }
        sweep(runs, "");
        let holder = Holder::this_process(run_id.clone(), new.meta.started_at);
        let (mut temporary, lock) = Temporary::create(runs, &holder)?;
        let building = temporary.path.clone();
        let within = |name: &str| building.join(name);
        write_new(&within(RUN_META), &|out| write_json(new.meta, out))?;
        write_new(&within(VERSIONS), &|out| write_json(new.versions, out))?;
        write_new(&within(PLAN), new.plan)?;
        for (name, bytes) in new.sources {
            let name = within(&file_name(name, ""));
            write_new(&name, &|out| out.write_all(bytes))?;
        }
        match rename_new(&temporary.path, &path) {
            Ok(()) => {}
            Err(error) if is_taken(&error) => return Err(exists()),
            Err(error) => return Err(RecordError::of("create run directory", &path)(error).into()),
        }
        temporary.kept = true;
        Ok(Self { path: path.into(), run_id, _lock: lock })
    }

    /// Gives the name `run_id` below `runs` free: what has it, a directory or an archive, is renamed to
    /// `<run_id>.old-N` with its ending, never removed.
    ///
    /// # Errors
    /// If a live run has the name.
    pub fn move_away(runs: &Path, run_id: &RunId) -> Result<(), CreateError> {
        if let held @ CreateError::Held { .. } = taken(runs, run_id) {
            return Err(held);
        }
        for (path, ending) in names_of(runs, run_id) {
            if path.symlink_metadata().is_ok() {
                move_aside(&path, &|number| runs.join(format!("{run_id}.old-{number}{ending}")))?;
            }
        }
        Ok(())
    }

    /// Takes the directory of a run that goes on: locks it for this process from `now` on and unseals it.
    pub fn reopen(path: &Path, now: Timestamp) -> Result<(Self, RunMeta), OpenError> {
        // Read before the lock is made: a directory that is no run stays as it is.
        let run_id = load_meta(path)?.run_id;
        let lock = FileLock::take(&path.join(LOCK), &Holder::this_process(run_id.clone(), now))?;
        // Again under the lock: another process may have finished it in between.
        let meta = load_meta(path)?;
        unseal(path)?;
        let path = fs::canonicalize(path).map_err(RecordError::of("find", path))?;
        Ok((Self { path: path.into(), run_id, _lock: lock }, meta))
    }

    /// Returns the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the run's id.
    pub fn run_id(&self) -> &RunId {
        &self.run_id
    }

    /// Returns where the event log is.
    pub fn events_path(&self) -> PathBuf {
        self.path.join(EVENTS)
    }

    /// Replaces `run_meta.json`; a reader sees the old one or the new one.
    pub fn update_meta(&self, meta: &RunMeta) -> Result<(), RecordError> {
        self.replace(RUN_META, &|out| write_json(meta, out))
    }

    /// Replaces `versions.json`; a reader sees the old one or the new one.
    pub fn update_versions(&self, versions: &Versions) -> Result<(), RecordError> {
        self.replace(VERSIONS, &|out| write_json(versions, out))
    }

    /// Replaces `report.json`; a reader sees the old one or the new one.
    pub fn write_report(&self, report: &Report) -> Result<(), RecordError> {
        self.replace(REPORT, &|out| write_json(report, out))
    }

    /// Replaces `plan.json` and the sources, for a run that goes on with another plan.
    pub fn replace_plan(&self, plan: &[u8], sources: &[(&str, &[u8])]) -> Result<(), RecordError> {
        for (name, bytes) in sources {
            self.replace(&file_name(name, ""), &|out| out.write_all(bytes))?;
        }
        self.replace(PLAN, &|out| out.write_all(plan))
    }

    /// Returns the log of `stream` of an attempt on `host`, none for a functional task's own output.
    pub fn log_file(
        &self,
        task: &TaskName,
        host: Option<&HostName>,
        attempt: u32,
        stream: Stream,
    ) -> LogFile {
        LogFile::new(Arc::clone(&self.path), task, host, attempt, stream)
    }

    /// Writes data that is too long for the event log; returns its path within the bundle, for `data_file`.
    pub fn write_data(
        &self,
        task: &TaskName,
        host: Option<&HostName>,
        attempt: u32,
        data: &Value,
    ) -> Result<String, RecordError> {
        let host = host.map_or("_", HostName::as_str);
        let file = file_name(host, &format!(".{attempt}.json"));
        let relative = format!("{}/{file}", file_name(task.as_str(), ""));
        self.write_artifact(&relative, &to_json(data))
    }

    /// Writes a file below `artifacts/`, replacing one of the same name; returns its path within the bundle.
    ///
    /// A path that would leave the directory is refused.
    pub fn write_artifact(&self, relative: &str, bytes: &[u8]) -> Result<String, RecordError> {
        let within = format!("{ARTIFACTS}/{relative}");
        // Behind the directory's name an absolute path would look like one below it.
        if inside(relative).is_none() {
            let path = self.path.join(&within);
            return Err(RecordError::of("write outside of the bundle", &path)(
                io::ErrorKind::InvalidInput.into(),
            ));
        }
        self.replace(&within, &|out| out.write_all(bytes))?;
        Ok(within)
    }

    /// Brings the directory's own entries and its metadata to the disk, for runs that must survive a power cut.
    pub fn sync(&self) -> Result<(), RecordError> {
        for name in [RUN_META, VERSIONS, PLAN] {
            let path = self.path.join(name);
            File::open(&path).and_then(|file| file.sync_all()).map_err(RecordError::of("sync", &path))?;
        }
        for directory in self.path.ancestors().take(3) {
            let synced = File::open(directory).and_then(|file| file.sync_all());
            synced.map_err(RecordError::of("sync", directory))?;
        }
        Ok(())
    }

    /// Hashes every file; the last act on a run that ended. The lock is held until `self` is dropped.
    pub fn seal(&self, known: &KnownHashes) -> Result<(), SealError> {
        seal_knowing(&self.path, known)
    }

    /// Signs the seal. Call it after [`seal`](Self::seal).
    pub fn sign(&self, key: &SigningKey) -> Result<(), SignError> {
        sign(&self.path, key)
    }

    /// Replaces the sealed bundle by an archive beside it, called as the run with the ending of `format`.
    ///
    /// The directory goes after the archive has verified; on an error it is still there.
    pub fn into_archive(self, format: ArchiveFormat) -> Result<Exported, ExportError> {
        replace_by_archive(&self.path, format)
    }

    fn replace(&self, name: &str, bytes: WriteBytes<'_>) -> Result<(), RecordError> {
        replace_file(&self.path, name, bytes)
    }
}

/// Returns what a bundle called `run_id` below `runs` may be, each with the ending of its name: a directory or an archive.
fn names_of(runs: &Path, run_id: &RunId) -> Vec<(PathBuf, String)> {
    let directory = runs.join(run_id.as_str());
    let archives = ArchiveFormat::ALL.map(|format| {
        let ending = format!(".{}", format.as_str());
        (archive_path(&directory, format), ending)
    });
    [(directory, String::new())].into_iter().chain(archives).collect()
}

/// Renames what is at `path` to the first free name that `name` gives for a number.
fn move_aside(path: &Path, name: &dyn Fn(u32) -> PathBuf) -> Result<(), RecordError> {
    for number in 1.. {
        match rename_new(path, &name(number)) {
            Err(error) if is_taken(&error) => {}
            other => return other.map_err(RecordError::of("rename", path)),
        }
    }
    Ok(())
}

/// Returns why the name `run_id` below `runs` cannot be had.
fn taken(runs: &Path, run_id: &RunId) -> CreateError {
    let (run_id, directory) = (run_id.clone(), runs.to_owned());
    match holder_of(&runs.join(run_id.as_str()).join(LOCK)) {
        Ok(Some(holder)) => CreateError::Held { run_id, directory, holder },
        Ok(None) | Err(_) => CreateError::Exists { run_id, directory },
    }
}

/// Replaces the file `name` of the bundle at `bundle`, making its directories; a reader sees the old one or the new one.
///
/// A name that would leave the bundle is refused.
pub fn replace_file(bundle: &Path, name: &str, bytes: WriteBytes<'_>) -> Result<(), RecordError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let path = bundle.join(name);
    if inside(name).is_none() {
        return Err(RecordError::of("write outside of the bundle", &path)(
            io::ErrorKind::InvalidInput.into(),
        ));
    }
    if let Some(parent) = path.parent() {
        make_directory(parent)?;
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let temporary = bundle.join(format!("{TEMPORARY}{number}"));
    let written = write_file(&temporary, bytes).and_then(|()| fs::rename(&temporary, &path));
    written.map_err(|error| {
        // Best effort: a full disk is the likely cause, and sealing removes leftovers as well.
        drop(fs::remove_file(&temporary));
        RecordError::of("write", &path)(error)
    })
}

/// Replaces a file of the bundle at `bundle` by `value` as JSON; see [`replace_file`].
pub fn replace_json(bundle: &Path, name: &str, value: &impl Serialize) -> Result<(), RecordError> {
    replace_file(bundle, name, &|out| write_json(value, out))
}

/// A directory that is removed unless it is kept.
struct Temporary {
    path: PathBuf,
    kept: bool,
}

impl Temporary {
    /// Makes a directory that `holder` has locked.
    fn create(runs: &Path, holder: &Holder) -> Result<(Self, FileLock), RecordError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut tries = 0;
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = runs.join(format!("{TEMPORARY}{}-{number}-{}", holder.pid, holder.run));
            let made = DirBuilder::new().mode(DIRECTORY).create(&path);
            let made = made.and_then(|()| allow(&path, DIRECTORY));
            made.map_err(RecordError::of("create directory", &path))?;
            let temporary = Self { path, kept: false };
            let error = match FileLock::try_take(&temporary.path.join(LOCK), holder) {
                Ok(lock) => return Ok((temporary, lock)),
                Err(LockError::File(error)) => error,
                Err(LockError::Held { path, .. }) => {
                    RecordError::of("take lock", &path)(io::ErrorKind::WouldBlock.into())
                }
            };
            // A sweep in another process namespace may take it for a dead one's before it is locked.
            tries += 1;
            let swept = matches!(error.source.kind(), io::ErrorKind::NotFound | io::ErrorKind::WouldBlock);
            if !swept || tries >= 3 {
                return Err(error);
            }
        }
    }
}

/// Removes what processes left in `directory` that were killed while they made a run directory or an archive, if its name
/// ends with `ending`. Never one in use: its process lives, or holds its lock. Best effort: what cannot be removed is in
/// nobody's way.
pub(crate) fn sweep(directory: &Path, ending: &str) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let named = name.to_str().filter(|name| name.ends_with(ending));
        let maker = named.and_then(|name| name.strip_prefix(TEMPORARY)?.split('-').next()?.parse().ok());
        let Some(maker) = maker else { continue };
        if is_alive(maker) {
            continue;
        }
        if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            drop(fs::remove_file(entry.path()));
        } else if matches!(holder_of(&entry.path().join(LOCK)), Ok(None)) {
            drop(fs::remove_dir_all(entry.path()));
        }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.kept {
            drop(fs::remove_dir_all(&self.path));
        }
    }
}

/// Makes a directory of a bundle, with its parents. All that are new have the permissions that bundles have, whatever the
/// process's mask is.
pub fn make_directory(path: &Path) -> Result<(), RecordError> {
    let is_missing = |path: &&Path| !path.as_os_str().is_empty() && path.symlink_metadata().is_err();
    let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
    let made = DirBuilder::new().recursive(true).mode(DIRECTORY).create(path);
    let made = made.and_then(|()| missing.into_iter().rev().try_for_each(|path| allow(path, DIRECTORY)));
    made.map_err(RecordError::of("create directory", path))
}

/// Sets permissions whatever the process's mask is.
fn allow(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn write_new(path: &Path, bytes: WriteBytes<'_>) -> Result<(), RecordError> {
    write_file(path, bytes).map_err(RecordError::of("write", path))
}

fn write_file(path: &Path, bytes: WriteBytes<'_>) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(FILE).open(path)?;
    file.set_permissions(fs::Permissions::from_mode(FILE))?;
    let mut file = BufWriter::with_capacity(WRITE_AT_ONCE, file);
    bytes(&mut file)?;
    file.flush()
}

/// Returns the form of every JSON file but `plan.json`; see [`write_json`].
pub(crate) fn to_json(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_json(value, &mut bytes).expect("metadata is always JSON, and memory takes all of it");
    bytes
}

/// Writes the form of every JSON file but `plan.json`: two spaces, a final newline.
fn write_json(value: &impl Serialize, out: &mut dyn io::Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    out.write_all(b"\n")
}

/// Renames a directory or file to a name that must be free.
pub(crate) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // The file system does not know the flag: a plain rename refuses a directory with anything in it.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => fs::rename(from, to),
        other => other.map_err(io::Error::from),
    }
}

fn is_taken(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotADirectory
    )
}

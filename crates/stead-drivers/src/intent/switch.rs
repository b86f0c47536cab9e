//! Several files changed as one: all of them, or none.
//!
//! ```text
//!  lock ─▶ journal ─▶ temporaries ─▶ look again ─▶ renames ─▶ (commit) ─▶ journal removed
//!                                        └──────────┴───────────┴─▶ put back
//! ```
//!
//! The journal holds what every file held, and is on the disk before the first file changes. While it is there the
//! switch is not done: whoever finds it with nobody holding the lock puts back what was changed. The kernel frees the
//! lock of a dead process; a `git` that makes the commit holds it too, since it may outlive us.
//!
//! A journal may come from anywhere, with a checkout for example: it is believed only if it is this user's and names files
//! where the root has them.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, Gid, Mode, OFlags, Uid};
use rustix::io::{Errno, FdFlags};
use serde::{Deserialize, Serialize};
use stead_model::{ErrorClass, RunId, base64};
use stead_runner::operation::OpError;

use super::git;
use super::prepared::{PreparedFile, locate, sha256};
use crate::disk::Spot;
use crate::file::temporary::{self, Temporary};

/// Where switches are kept in a state directory.
const DIRECTORY: &str = "intents";
const LOCK: &str = "lock";
const JOURNAL: &str = "switch.json";
const SCHEMA: u32 = 1;

/// What a switch changes, as it is written down before it begins.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Journal {
    schema: u32,
    /// The intent.
    intent: String,
    /// Where its files are, in base64.
    root: String,
    /// The run that makes it, if it has an id.
    run: Option<RunId>,
    /// Whether it is done only when the files are committed.
    committing: bool,
    files: Vec<Journaled>,
}

/// One file of a switch.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Journaled {
    /// As the catalogue names it.
    name: String,
    /// Where it is, links followed, in base64: a path need not be text.
    place: String,
    /// What it held, in base64.
    before: String,
    /// The SHA-256 of what it should hold.
    after: String,
}

impl Journaled {
    fn place(&self) -> Option<PathBuf> {
        decoded(&self.place)
    }

    /// Whether the place is where `root`, which is free of links, has the file, or had it.
    fn is_below(&self, root: &Path) -> bool {
        let Some(place) = self.place() else { return false };
        match locate(root, &self.name) {
            Ok(real) => real == place,
            Err(_) => {
                let parent = place.parent().and_then(|parent| parent.canonicalize().ok());
                let is_gone = place.symlink_metadata().is_err();
                is_gone
                    && parent.is_none_or(|parent| {
                        parent.starts_with(root) && Some(parent.as_path()) == place.parent()
                    })
            }
        }
    }
}

fn encoded(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    base64::encode(path.as_os_str().as_bytes())
}

fn decoded(text: &str) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStringExt as _;
    base64::decode(text).map(|bytes| PathBuf::from(std::ffi::OsString::from_vec(bytes)))
}

/// What became of a switch that a dead process left half done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The intent.
    pub intent: String,
    /// The run that made it, if it had an id.
    pub run: Option<RunId>,
    /// Files that were put back.
    pub put_back: Vec<String>,
    /// Files that somebody has changed or removed since: they are as they are.
    pub left: Vec<String>,
    /// Whether all was done: the files are committed.
    pub committed: bool,
}

/// The only switch of a state directory, from its journal to its end.
#[derive(Debug)]
pub(super) struct Switch {
    directory: PathBuf,
    journal: Journal,
    // Held until the journal is gone.
    lock: File,
}

/// Undoes what a dead process left half done below `root`, if there is anything; nothing is made where nothing is.
///
/// # Errors
/// Class `locked` if an intent is at work, or the commit of a dead one, or one of another root is not undone; others if the journal is not to be believed, or
/// something could not be put back: then the next call tries again.
pub fn recover(state: &Path, root: &Path) -> Result<Option<Recovered>, OpError> {
    let directory = state.join(DIRECTORY);
    if !directory.join(JOURNAL).exists() {
        return Ok(None);
    }
    let lock = lock(&directory)?;
    let Some(journal) = read_journal(&directory)? else { return Ok(None) };
    check_journal(&journal, &directory, root)?;
    let switch = Switch { directory, journal, lock };
    let (intent, run) = (switch.journal.intent.clone(), switch.journal.run.clone());
    let committed = switch.journal.committing && switch.is_committed();
    if committed {
        switch.keep()?;
        return Ok(Some(Recovered { intent, run, put_back: Vec::new(), left: Vec::new(), committed }));
    }
    let Restored { put_back, left } = switch.put_back(Foreign::Leave)?;
    Ok(Some(Recovered { intent, run, put_back, left, committed }))
}

/// Whether a dead process may have left something half done.
pub fn is_half_done(state: &Path) -> bool {
    state.join(DIRECTORY).join(JOURNAL).exists()
}

/// What happens to a file that holds neither what it held nor what it should.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Foreign {
    /// It is somebody's: it stays.
    Leave,
    /// It was made of ours while we waited: it is put back.
    PutBack,
}

/// What was put back and what was not.
#[derive(Debug, Default)]
pub(super) struct Restored {
    pub(super) put_back: Vec<String>,
    pub(super) left: Vec<String>,
}

impl Switch {
    /// Writes down what is going to change. Nothing is different yet.
    pub(super) fn begin(
        state: &Path,
        root: &Path,
        intent: &str,
        run: Option<RunId>,
        committing: bool,
        files: &[&PreparedFile],
    ) -> Result<Self, OpError> {
        let directory = state.join(DIRECTORY);
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&directory)
            .map_err(cannot("make", &directory))?;
        let root = encoded(&root.canonicalize().map_err(cannot("read", root))?);
        let lock = lock(&directory)?;
        if read_journal(&directory)?.is_some() {
            return Err(OpError::operation(
                "an intent that was cut off has not been undone yet: run this one again",
            ));
        }
        let files = files.iter().map(|file| Journaled {
            name: file.name.clone(),
            place: encoded(&file.real),
            before: base64::encode(file.before.as_bytes()),
            after: sha256(file.after.as_bytes()),
        });
        let (intent, files) = (intent.to_owned(), files.collect());
        let journal = Journal { schema: SCHEMA, intent, root, run, committing, files };
        write_journal(&directory, &journal)?;
        Ok(Self { directory, journal, lock })
    }

    /// Has programs that `work` starts hold the lock too, so that nobody undoes what they are about to commit. Nothing
    /// else of the run may start programs meanwhile.
    pub(super) fn shared_with<T>(&self, work: impl FnOnce() -> Result<T, OpError>) -> Result<T, OpError> {
        let set = |flags| {
            rustix::io::fcntl_setfd(&self.lock, flags)
                .map_err(|errno| cannot("share the lock of", &self.directory)(errno.into()))
        };
        set(FdFlags::empty())?;
        let done = work();
        set(FdFlags::CLOEXEC)?;
        done
    }

    /// Gives every file its new content.
    ///
    /// # Errors
    /// After one the files may be half changed: [`put_back`](Self::put_back) is called next.
    pub(super) fn carry_out(&self, files: &[&PreparedFile]) -> Result<(), OpError> {
        let mut ready = Vec::with_capacity(files.len());
        for file in files {
            ready.push((file, Replacement::write(&file.real, file.after.as_bytes())?));
        }
        for file in files {
            check_unchanged(file)?;
        }
        for (file, replacement) in ready {
            check_unchanged(file)?;
            replacement.take_place()?;
        }
        Ok(())
    }

    /// Ends the switch: what is there now stays.
    pub(super) fn keep(self) -> Result<(), OpError> {
        self.clear_temporaries();
        self.forget()
    }

    /// Puts every file back that holds what the switch wrote.
    ///
    /// # Errors
    /// The first file that cannot be put back; the journal stays, so that the next intent tries again.
    pub(super) fn put_back(self, foreign: Foreign) -> Result<Restored, OpError> {
        let mut restored = Restored::default();
        for file in &self.journal.files {
            let (Some(place), Some(before)) = (file.place(), base64::decode(&file.before)) else {
                return Err(damaged(&self.directory));
            };
            let now = match std::fs::read(&place) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    restored.left.push(file.name.clone());
                    continue;
                }
                Err(error) => return Err(cannot("read", &place)(error)),
            };
            if now == before {
                continue;
            }
            if sha256(&now) != file.after && foreign == Foreign::Leave {
                restored.left.push(file.name.clone());
                continue;
            }
            Replacement::write(&place, &before)?.take_place()?;
            restored.put_back.push(file.name.clone());
        }
        self.clear_temporaries();
        self.forget()?;
        Ok(restored)
    }

    /// Returns where its files are.
    pub(super) fn places(&self) -> Vec<PathBuf> {
        self.journal.files.iter().filter_map(Journaled::place).collect()
    }

    /// Whether what the switch wrote is what Git has by now.
    pub(super) fn is_committed(&self) -> bool {
        let written = self.journal.files.iter().all(|file| {
            let now = file.place().and_then(|place| std::fs::read(place).ok());
            now.is_some_and(|now| sha256(&now) == file.after)
        });
        written && git::is_committed(&self.places())
    }

    /// Removes what a dead process left beside the files. Best effort: the next writer removes them as well.
    fn clear_temporaries(&self) {
        for place in self.places() {
            if let Ok(spot) = spot(&place) {
                temporary::clear(&spot);
            }
        }
    }

    fn forget(&self) -> Result<(), OpError> {
        let journal = self.directory.join(JOURNAL);
        std::fs::remove_file(&journal).map_err(cannot("remove", &journal))?;
        sync_directory(&self.directory)?;
        // What the commit left behind, such as Git's housekeeping, may hold it for long.
        rustix::fs::flock(&self.lock, FlockOperation::Unlock)
            .map_err(|errno| cannot("unlock", &self.directory)(errno.into()))
    }
}

fn check_unchanged(file: &PreparedFile) -> Result<(), OpError> {
    let now = std::fs::read(&file.real).map_err(cannot("read", &file.real))?;
    if now == file.before.as_bytes() {
        return Ok(());
    }
    Err(OpError::operation(format!("`{}` changed since it was read", file.name)))
}

/// A new file beside the old one, with its owner, mode and attributes.
struct Replacement {
    spot: Spot,
    temporary: Temporary,
}

impl Replacement {
    fn write(place: &Path, mut content: &[u8]) -> Result<Self, OpError> {
        let says = |errno: Errno| cannot("write", place)(errno.into());
        let old = File::open(place).map_err(cannot("read", place))?;
        let stat = rustix::fs::fstat(&old).map_err(says)?;
        let spot = spot(place)?;
        // Until owner and mode are set nobody else may read it.
        let mut temporary = Temporary::create(&spot, 0o600)?;
        temporary.fill(&mut content).map_err(cannot("write", place))?;
        temporary.copy_attributes(&old);
        let made = rustix::fs::fstat(temporary.file()).map_err(says)?;
        if (made.st_uid, made.st_gid) != (stat.st_uid, stat.st_gid) {
            let (owner, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
            rustix::fs::fchown(temporary.file(), Some(owner), Some(group)).map_err(says)?;
        }
        rustix::fs::fchmod(temporary.file(), Mode::from_raw_mode(stat.st_mode & 0o7777)).map_err(says)?;
        temporary.file().sync_all().map_err(cannot("write", place))?;
        Ok(Self { spot, temporary })
    }

    fn take_place(self) -> Result<(), OpError> {
        let path = &self.spot.path;
        self.temporary.take_place(&self.spot).map_err(|(_, errno)| cannot("replace", path)(errno.into()))?;
        path.parent().map_or(Ok(()), sync_directory)
    }
}

/// Returns the place of a file whose path is free of links.
fn spot(place: &Path) -> Result<Spot, OpError> {
    let (Some(parent), Some(name)) = (place.parent(), place.file_name()) else {
        return Err(OpError::operation(format!("`{}` is not a file", place.display())));
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(parent, flags, Mode::empty())
        .map_err(|errno| cannot("open", parent)(errno.into()))?;
    Ok(Spot {
        path: place.to_owned(),
        directory: Some(Arc::new(directory)),
        name: name.to_owned(),
        missing: Vec::new(),
    })
}

/// Takes the lock of switches: at most one is under way.
fn lock(directory: &Path) -> Result<File, OpError> {
    let path = directory.join(LOCK);
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o644).open(&path);
    let file = file.map_err(cannot("open", &path))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(OpError::new(
            ErrorClass::Locked,
            format!("another intent is at work: {} is locked", path.display()),
        )),
        Err(errno) => Err(cannot("lock", &path)(errno.into())),
    }
}

fn read_journal(directory: &Path) -> Result<Option<Journal>, OpError> {
    let path = directory.join(JOURNAL);
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let open = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(&path);
    let mut file = match open {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(cannot("read", &path)(error)),
    };
    let metadata = file.metadata().map_err(cannot("read", &path))?;
    if !metadata.is_file() || metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(damaged(directory));
    }
    let mut text = Vec::new();
    file.read_to_end(&mut text).map_err(cannot("read", &path))?;
    serde_json::from_slice(&text).map(Some).map_err(|_| damaged(directory))
}

/// Refuses a journal that is not of this root, before anything it names is touched.
fn check_journal(journal: &Journal, directory: &Path, root: &Path) -> Result<(), OpError> {
    let root = root.canonicalize().map_err(cannot("read", root))?;
    let of = decoded(&journal.root).ok_or_else(|| damaged(directory))?;
    if of != root {
        return Err(OpError::new(
            ErrorClass::Locked,
            format!(
                "{} is of an intent that was cut off in `{}`: run `stead steps check` there, or remove it if that is gone",
                directory.join(JOURNAL).display(),
                of.display()
            ),
        ));
    }
    let is_ours = journal.schema == SCHEMA && journal.files.iter().all(|file| file.is_below(&root));
    if is_ours { Ok(()) } else { Err(damaged(directory)) }
}

fn damaged(directory: &Path) -> OpError {
    OpError::permanent(format!(
        "{} is not a journal of an intent: look at the files it names, then remove it",
        directory.join(JOURNAL).display()
    ))
}

/// Writes the journal so that it is there as a whole or not at all, even after a power cut.
fn write_journal(directory: &Path, journal: &Journal) -> Result<(), OpError> {
    let path = directory.join(JOURNAL);
    let temporary = directory.join(format!("{JOURNAL}.tmp"));
    let text = serde_json::to_vec(journal).map_err(|error| OpError::operation(error.to_string()))?;
    let written = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary);
    let written = written.and_then(|mut file| {
        file.write_all(&text)?;
        file.sync_all()?;
        std::fs::rename(&temporary, &path)
    });
    written.map_err(cannot("write", &path))?;
    sync_directory(directory)
}

fn sync_directory(directory: &Path) -> Result<(), OpError> {
    File::open(directory).and_then(|open| open.sync_all()).map_err(cannot("write", directory))
}

fn cannot(doing: &str, path: &Path) -> impl Fn(io::Error) -> OpError {
    let doing = format!("cannot {doing} `{}`", path.display());
    move |error| OpError::io(&doing, &error)
}

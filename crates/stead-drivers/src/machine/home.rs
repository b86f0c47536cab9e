//! The directory of one machine of this machine: its files, its lock, and what they say of it.
//!
//! A directory `ROOT_DIR/UUID` that is ours holds `machine.json` and `lock` from its first to its last moment: it is
//! made aside under another name and renamed, and renamed again before the last two files go. So a directory of that
//! name without them is somebody else's.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, RenameFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use stead_model::machine::{Machine, MachineExit, MachineId, MachineSpec, MachineState, SshDoor};
use stead_model::time::Timestamp;
use stead_runner::machine::MachineError;

use super::process::ProcessMark;
pub(super) use super::removal::remove;

const SCHEMA: u32 = 1;
const RECORD: &str = "machine.json";
const LOCK: &str = "lock";
/// How the last run ended.
pub(super) const EXIT: &str = "exit.json";
/// Says which start of the machine's process is meant.
const TICKET: &str = "ticket";
/// How long another's lock is left alone before it is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// How long a process that was killed may hold on to its files.
const LAST_BREATH: Duration = Duration::from_secs(2);
/// A console's end, as far as errors show it.
const TAIL: u64 = 16 << 10;

/// What tells the machines of one driver from those of others.
#[derive(Debug)]
pub(super) struct Kind {
    /// The driver, as `machine.json` names it.
    pub(super) driver: &'static str,
    /// What messages call its machines.
    pub(super) noun: &'static str,
    /// Files that stay until the very end, besides the record and the lock.
    pub(super) kept: &'static [&'static str],
    /// The variable by which everything started for a machine is known: it holds the machine's directory.
    pub(super) mark: &'static str,
}

/// The directory of a machine.
#[derive(Clone, Debug)]
pub(super) struct Home {
    kind: &'static Kind,
    directory: PathBuf,
}

/// `machine.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    schema: u32,
    driver: String,
    pub(super) uuid: String,
    pub(super) spec: MachineSpec,
    pub(super) spec_hash: String,
    /// Nothing is missing and nothing is being removed.
    pub(super) made: bool,
    pub(super) created_at: Timestamp,
}

impl Record {
    pub(super) fn new(kind: &Kind, spec: &MachineSpec, created_at: Timestamp) -> Self {
        Self {
            schema: SCHEMA,
            driver: kind.driver.to_owned(),
            uuid: spec.owner.uuid(),
            spec_hash: spec.hash(),
            spec: spec.clone(),
            made: false,
            created_at,
        }
    }
}

/// What is at a machine's place.
pub(super) enum Found {
    Absent,
    Foreign,
    Ours(Box<Record>),
    /// It cannot be told: this process may not look, or has too many files open.
    Unreadable(io::Error),
}

/// A held lock. Dropping it lets go.
#[derive(Debug)]
pub(super) struct Held {
    _file: File,
}

impl Home {
    pub(super) fn new(kind: &'static Kind, root_dir: &Path, uuid: &str) -> Self {
        Self::at(kind, root_dir.join(uuid))
    }

    pub(super) fn at(kind: &'static Kind, directory: PathBuf) -> Self {
        Self { kind, directory }
    }

    pub(super) fn kind(&self) -> &'static Kind {
        self.kind
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(super) fn console(&self) -> PathBuf {
        self.file("console.log")
    }

    fn id(&self) -> MachineId {
        let name = self.directory.file_name().map(|name| name.to_string_lossy().into_owned());
        MachineId::new(name.unwrap_or_default())
    }

    pub(super) fn not_found(&self) -> MachineError {
        MachineError::NotFound(self.id())
    }

    pub(super) fn foreign(&self) -> MachineError {
        MachineError::Foreign { what: self.directory.display().to_string(), owner: self.id().to_string() }
    }

    pub(super) fn unreadable(&self, error: &io::Error) -> MachineError {
        MachineError::Unavailable(format!("{} cannot be looked at: {error}", self.directory.display()))
    }

    /// Looks at what is there.
    pub(super) fn find(&self) -> Found {
        match self.look() {
            // It may have been removed and made anew between two looks.
            Found::Foreign => self.look(),
            found @ (Found::Absent | Found::Ours(_) | Found::Unreadable(_)) => found,
        }
    }

    fn look(&self) -> Found {
        if !fs::symlink_metadata(&self.directory).is_ok_and(|found| found.is_dir()) {
            return if fs::symlink_metadata(&self.directory).is_ok() {
                Found::Foreign
            } else {
                Found::Absent
            };
        }
        let record = match fs::read(self.file(RECORD)) {
            Ok(bytes) => serde_json::from_slice::<Record>(&bytes).ok(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Found::Unreadable(error),
        };
        match record {
            Some(record)
                if record.schema == SCHEMA
                    && record.driver == self.kind.driver
                    && record.uuid == self.id().as_str()
                    && record.spec.owner.uuid() == record.uuid =>
            {
                Found::Ours(Box::new(record))
            }
            // It may have gone between the two looks.
            Some(_) | None if self.directory.exists() => Found::Foreign,
            Some(_) | None => Found::Absent,
        }
    }

    /// Waits for the machine's lock; none if there is no machine.
    pub(super) async fn lock(&self) -> Result<Option<(Held, Record)>, MachineError> {
        loop {
            match self.find() {
                Found::Absent => return Ok(None),
                Found::Foreign => return Err(self.foreign()),
                Found::Unreadable(error) => return Err(self.unreadable(&error)),
                Found::Ours(_) => {}
            }
            if let Some(held) = self.try_lock()? {
                return Ok(Some(held));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Takes the machine's lock if it is free. One that somebody removed is made anew: all look at the same file.
    pub(super) fn try_lock(&self) -> Result<Option<(Held, Record)>, MachineError> {
        match open_lock(&self.file(LOCK)) {
            Ok(file) => self.try_hold(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed("lock", &error)),
        }
    }

    /// Takes the lock if it is free and still that of this directory.
    fn try_hold(&self, file: File) -> Result<Option<(Held, Record)>, MachineError> {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(self.failed("lock", &errno.into())),
        }
        match self.find() {
            Found::Ours(record) if is_same(&file, &self.file(LOCK)) => {
                Ok(Some((Held { _file: file }, *record)))
            }
            Found::Unreadable(error) => Err(self.unreadable(&error)),
            Found::Ours(_) | Found::Foreign | Found::Absent => Ok(None),
        }
    }

    /// Makes the directory with its first files; none if another was faster.
    pub(super) fn reserve(&self, record: &Record) -> Result<Option<Held>, MachineError> {
        let failed = |error: io::Error| self.failed("make", &error);
        let parent = self.directory.parent().unwrap_or(Path::new("/"));
        private_directory(parent).map_err(failed)?;
        sweep(parent);
        let aside = parent.join(format!(".new-{}-{}", self.id(), random_hex().map_err(failed)?));
        let made: io::Result<Option<Held>> = (|| {
            DirBuilder::new().mode(0o700).create(&aside)?;
            let lock =
                File::options().create_new(true).read(true).write(true).mode(0o600).open(aside.join(LOCK))?;
            rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
            write(&aside.join(RECORD), record)?;
            match rustix::fs::renameat_with(CWD, &aside, CWD, &self.directory, RenameFlags::NOREPLACE) {
                // Somebody who took it for a leftover may have begun to remove it: then the lock is no file any more.
                Ok(()) if is_same(&lock, &self.file(LOCK)) => Ok(Some(Held { _file: lock })),
                Ok(()) => Ok(None),
                Err(Errno::EXIST | Errno::NOTEMPTY) => Ok(None),
                Err(errno) => Err(errno.into()),
            }
        })();
        if !matches!(made, Ok(Some(_))) {
            fs::remove_dir_all(&aside).ok();
        }
        match made {
            // Somebody took what was being made for a leftover: then it is tried again.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            made => made.map_err(failed),
        }
    }

    /// Says which start of the machine's process is meant from now on.
    pub(super) fn set_ticket(&self, ticket: &str) -> io::Result<()> {
        write_text(&self.file(TICKET), ticket, 0o600)
    }

    /// Takes the place of the one process of the machine; none if another has it, or this start is not wanted any more.
    pub(super) fn be_the_one(&self, ticket: &str) -> io::Result<Option<File>> {
        let alive = File::options().create(true).truncate(false).write(true).open(self.file("alive"))?;
        let is_wanted = || fs::read_to_string(self.file(TICKET)).is_ok_and(|wanted| wanted == ticket);
        let deadline = Instant::now() + LAST_BREATH;
        while rustix::fs::flock(&alive, FlockOperation::NonBlockingLockExclusive).is_err() {
            if !is_wanted() || Instant::now() > deadline {
                return Ok(None);
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(is_wanted().then_some(alive))
    }

    /// Writes the record.
    pub(super) fn set_record(&self, record: &Record) -> io::Result<()> {
        write(&self.file(RECORD), record)
    }

    /// Removes everything but what says whose it is.
    pub(super) fn wipe(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            if [RECORD, LOCK].iter().chain(self.kind.kept).any(|kept| entry.file_name() == *kept) {
                continue;
            }
            remove(&entry.path())?;
        }
        Ok(())
    }

    /// Removes the directory itself.
    pub(super) fn vanish(&self) -> io::Result<()> {
        let parent = self.directory.parent().unwrap_or(Path::new("/"));
        let aside = parent.join(format!(".gone-{}-{}", self.id(), random_hex()?));
        fs::rename(&self.directory, &aside)?;
        // Somebody who sweeps may be at it too.
        while let Err(error) = fs::remove_dir_all(&aside) {
            if !aside.exists() {
                break;
            }
            if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) {
                return Err(error);
            }
        }
        Ok(())
    }

    /// The mark of the machine's process and when it began, as they were written.
    pub(super) fn pid(&self) -> Option<(ProcessMark, Option<Timestamp>)> {
        let text = fs::read_to_string(self.file("pid")).ok()?;
        let mut lines = text.lines();
        let mark = ProcessMark::parse(lines.next()?)?;
        Some((mark, lines.next().and_then(Timestamp::parse)))
    }

    pub(super) fn set_pid(&self, mark: &ProcessMark, now: Timestamp) -> io::Result<()> {
        write_text(&self.file("pid"), &format!("{mark}\n{now}\n"), 0o600)
    }

    pub(super) fn exit(&self) -> Option<MachineExit> {
        read(&self.file(EXIT))
    }

    pub(super) fn set_exit(&self, exit: &MachineExit) -> io::Result<()> {
        write(&self.file(EXIT), exit)
    }

    /// Returns the last lines of the console.
    pub(super) fn last_lines(&self) -> Vec<String> {
        last_lines(&self.console())
    }

    pub(super) fn failed(&self, doing: &str, error: &io::Error) -> MachineError {
        MachineError::failed(format!(
            "cannot {doing} the {} in {}: {error}",
            self.kind.noun,
            self.directory.display()
        ))
    }

    /// Returns the machine as it is now; none if there is none of ours. `run` says what a live process is doing,
    /// `exit` how one ended that said so.
    ///
    /// # Errors
    /// If it cannot be looked at.
    pub(super) fn machine(
        &self,
        run: impl FnOnce(&Record, &ProcessMark) -> Run,
        exit: impl FnOnce() -> Option<MachineExit>,
    ) -> io::Result<Option<Machine>> {
        let record = match self.find() {
            Found::Ours(record) => record,
            Found::Absent | Found::Foreign => return Ok(None),
            Found::Unreadable(error) => return Err(error),
        };
        let (mark, started_at) = self.pid().unzip();
        let lives = mark.as_ref().map(ProcessMark::find).transpose()?.flatten().is_some();
        let live = mark.as_ref().filter(|_| lives);
        let exit = if live.is_some() { None } else { exit_of(exit(), mark.as_ref()) };
        let run = live.map(|mark| run(&record, mark));
        let state = match (record.made, &run) {
            (false, _) => MachineState::Creating,
            (true, Some(run)) => run.state,
            (true, None) if exit.as_ref().is_some_and(|exit| exit.code != Some(0)) => MachineState::Failed,
            (true, None) => MachineState::Stopped,
        };
        let Run { addresses, ssh, .. } = run.unwrap_or_default();
        Ok(Some(Machine {
            id: self.id(),
            owner: record.spec.owner.clone(),
            uuid: record.uuid.clone(),
            state,
            spec_hash: record.spec_hash.clone(),
            pid: live.map(|mark| mark.pid),
            vmid: None,
            addresses,
            ssh,
            exit,
            created_at: record.created_at,
            started_at: started_at.flatten(),
        }))
    }
}

/// What a machine's live process is doing.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) state: MachineState,
    pub(super) addresses: Vec<String>,
    pub(super) ssh: Option<SshDoor>,
}

impl Default for Run {
    fn default() -> Self {
        Self { state: MachineState::Starting, addresses: Vec::new(), ssh: None }
    }
}

/// Returns how the last run ended: by what was said of it, or by what follows from silence.
pub(super) fn exit_of(said: Option<MachineExit>, run: Option<&ProcessMark>) -> Option<MachineExit> {
    let silent = |code: Option<i32>, reason: &str| MachineExit {
        code,
        signal: None,
        at: None,
        reason: reason.to_owned(),
    };
    match (said, run) {
        (Some(exit), _) => Some(exit),
        (None, Some(mark)) if mark.is_of_another_boot() => {
            Some(silent(Some(0), "the machine it ran on was restarted"))
        }
        (None, Some(_)) => Some(silent(None, "its process was killed")),
        (None, None) => None,
    }
}

/// Returns the last lines of a log.
pub(super) fn last_lines(path: &Path) -> Vec<String> {
    File::open(path).map_or_else(|_| Vec::new(), last_lines_of)
}

/// Returns the last lines of an open file.
pub(super) fn last_lines_of(mut file: File) -> Vec<String> {
    use std::io::{Seek, SeekFrom};
    let mut text = Vec::new();
    let size = file.metadata().map_or(0, |metadata| metadata.len());
    let read = file.seek(SeekFrom::Start(size.saturating_sub(TAIL)));
    read.and_then(|_| file.take(TAIL).read_to_end(&mut text)).ok();
    let text = String::from_utf8_lossy(&text);
    stead_model::tail::last_words(&text).into_iter().map(str::to_owned).collect()
}

/// Whether a file is the one at `path`.
pub(super) fn is_same(file: &File, path: &Path) -> bool {
    let found = file.metadata().ok().zip(fs::metadata(path).ok());
    found.is_some_and(|(held, there)| (held.dev(), held.ino()) == (there.dev(), there.ino()))
}

fn open_lock(path: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).read(true).write(true).mode(0o600).open(path)
}

/// Removes what was being made or removed by somebody who is gone.
pub(super) fn sweep(root_dir: &Path) {
    for entry in fs::read_dir(root_dir).into_iter().flatten().flatten() {
        if !is_aside(&entry.file_name().to_string_lossy()) {
            continue;
        }
        let lock = File::options().write(true).open(entry.path().join(LOCK));
        let is_free = lock
            .as_ref()
            .map_or(true, |lock| rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok());
        if is_free {
            // Two who sweep at once help each other.
            fs::remove_dir_all(entry.path()).ok();
        }
    }
}

/// Whether a directory has the name of one that is being made or removed: `.new-UUID-HEX`, `.gone-UUID-HEX`.
fn is_aside(name: &str) -> bool {
    let rest = name.strip_prefix(".new-").or_else(|| name.strip_prefix(".gone-"));
    let parts = rest.and_then(|rest| rest.rsplit_once('-'));
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    parts.is_some_and(|(uuid, random)| {
        (uuid.len(), random.len()) == (36, 32) && is_hex(uuid) && is_hex(random)
    })
}

/// Returns the one name of a directory that need not be there yet: by it processes of a machine are known again.
pub(super) fn canonical(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let known = absolute.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    known.map_or_else(
        || absolute.clone(),
        |(above, real)| {
            let rest = absolute.strip_prefix(above).unwrap_or(Path::new(""));
            if rest.as_os_str().is_empty() { real } else { real.join(rest) }
        },
    )
}

/// Returns 32 hex digits that nobody can guess.
pub(super) fn random_hex() -> io::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Makes a directory that only this account can enter, with those above it.
pub(super) fn private_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Returns what a guest wrote to a small file below `root`. It may have put anything there: links lead nowhere else, and
/// what is no regular file of at most `limit` bytes is as good as none.
pub(super) fn guest_file(root: &Path, path: &str, limit: u64) -> Option<Vec<u8>> {
    let place =
        rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let file = File::from(openat2(&place, path, flags, Mode::empty(), within).ok()?);
    let found = file.metadata().ok()?;
    if !found.is_file() || found.len() > limit {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

pub(super) fn write<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    write_text(path, &serde_json::to_string(value)?, 0o600)
}

/// Replaces a file: old or new, never a part.
pub(super) fn write_text(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    write_bytes(path, text.as_bytes(), mode)
}

/// Replaces a file: old or new, never a part.
pub(super) fn write_bytes(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let mut builder = tempfile::Builder::new();
    builder.prefix(".tmp-").permissions(fs::Permissions::from_mode(mode));
    let mut file = builder.tempfile_in(directory)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    static KIND: Kind = Kind { driver: "test", noun: "machine", kept: &[], mark: "STEAD_TEST_MACHINE" };

    #[test]
    fn a_place_has_one_name_whoever_names_it() {
        let place = tempfile::tempdir().unwrap();
        let real = place.path().canonicalize().unwrap();
        std::os::unix::fs::symlink(&real, real.join("link")).unwrap();
        assert_eq!(canonical(&real.join("link/machines")), real.join("machines"));
        assert_eq!(canonical(&real.join("link")), real);
        assert!(canonical(Path::new("not-there/machines")).is_absolute());
    }

    /// A guest puts a link, a queue, a directory or a huge file where something small is expected.
    #[test]
    fn what_a_guest_wrote_is_read_with_care() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        fs::write(at("small"), "hello").unwrap();
        fs::create_dir(at("directory")).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", at("outside")).unwrap();
        std::os::unix::fs::symlink("/small", at("inside")).unwrap();
        rustix::fs::mknodat(CWD, at("queue"), rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0)
            .unwrap();
        fs::File::create(at("huge")).unwrap().set_len(1 << 40).unwrap();
        let read = |name: &str| guest_file(place.path(), name, 1024);
        assert_eq!(read("small").as_deref(), Some(b"hello".as_slice()));
        assert_eq!(read("inside").as_deref(), Some(b"hello".as_slice()));
        for nothing in ["outside", "queue", "directory", "huge", "missing"] {
            assert_eq!(read(nothing), None, "{nothing}");
        }
    }

    /// A directory of somebody else in the place for machines is nobody's leftover.
    #[test]
    fn only_what_was_put_aside_is_swept() {
        let place = tempfile::tempdir().unwrap();
        let uuid = "b8ca0a97-6f03-56c9-ab24-2f428cb4ff94";
        let ours = [format!(".new-{uuid}-{}", "0".repeat(32)), format!(".gone-{uuid}-{}", "f".repeat(32))];
        let others =
            [".new-photos".to_owned(), format!(".gone-{uuid}"), format!(".old-{uuid}-{}", "0".repeat(32))];
        for name in ours.iter().chain(&others) {
            fs::create_dir(place.path().join(name)).unwrap();
        }
        sweep(place.path());
        assert!(ours.iter().all(|name| !place.path().join(name).exists()));
        assert!(others.iter().all(|name| place.path().join(name).exists()));
    }

    /// A machine's directory whose lock somebody removed is locked all the same.
    #[tokio::test]
    async fn a_lost_lock_is_made_anew() {
        let place = tempfile::tempdir().unwrap();
        let owner = stead_model::machine::Owner::new("lab/m/local", "quay").unwrap();
        let spec = MachineSpec::new(owner, stead_model::machine::MachineKind::Vm);
        let home = Home::new(&KIND, place.path(), &spec.owner.uuid());
        let record = Record::new(&KIND, &spec, stead_runner::clock::now());
        drop(home.reserve(&record).unwrap().unwrap());
        fs::remove_file(home.file(LOCK)).unwrap();
        let held = tokio::time::timeout(Duration::from_secs(10), home.lock()).await.unwrap().unwrap();
        assert!(held.is_some() && home.file(LOCK).exists());
    }

    /// A record that cannot be read for now says nothing of whose the machine is.
    #[tokio::test]
    async fn what_cannot_be_looked_at_is_not_foreign() {
        let place = tempfile::tempdir().unwrap();
        let home = Home::new(&KIND, place.path(), "b8ca0a97-6f03-56c9-ab24-2f428cb4ff94");
        fs::create_dir_all(home.file(RECORD)).unwrap();
        assert!(matches!(home.lock().await, Err(MachineError::Unavailable(_))));
    }
}

//! The directory of one sandbox: its files, its lock, and what they say of the machine.
//!
//! A directory `ROOT_DIR/UUID` that is ours holds `machine.json` and `lock` from its first to its last moment: it is
//! made aside under another name and renamed, and renamed again before the last two files go. So a directory of that
//! name without them is somebody else's.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, FlockOperation, RenameFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use stead_model::machine::{Machine, MachineExit, MachineId, MachineSpec, MachineState, OwnerScope, SshDoor};
use stead_model::time::Timestamp;
use stead_runner::machine::{MachineError, SANDBOX_FILE};

use super::faults::Fault;
use super::names::Names;
use super::process::ProcessMark;

const SCHEMA: u32 = 1;
const RECORD: &str = "machine.json";
const LOCK: &str = "lock";
const COUNTS: &str = "faults.json";
/// What of a machine stays until the very end.
const KEPT: [&str; 3] = [RECORD, LOCK, COUNTS];
/// How long another's lock is left alone before it is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// A console's end, as far as errors show it.
const TAIL: u64 = 16 << 10;

/// The directory of a sandbox.
#[derive(Clone, Debug)]
pub(super) struct Home {
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
    pub(super) fn new(spec: &MachineSpec, created_at: Timestamp) -> Self {
        Self {
            schema: SCHEMA,
            driver: "sandbox".to_owned(),
            uuid: spec.owner.uuid(),
            spec_hash: spec.hash(),
            spec: spec.clone(),
            made: false,
            created_at,
        }
    }
}

/// `sandbox.json`: what the host says of its sandboxes, as it was said last.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sheet {
    pub(super) schema: u32,
    pub(super) node: String,
    pub(crate) packages: Names,
    pub(crate) services: Names,
    pub(super) boot_delay_ms: u64,
    pub(super) faults: Vec<Fault>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) parent: Option<PathBuf>,
}

/// `door.json`: where the machine takes logins in this run of its process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Door {
    pub(super) process: ProcessMark,
    pub(super) ssh: SshDoor,
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
    pub(super) fn new(root_dir: &Path, uuid: &str) -> Self {
        Self::at(root_dir.join(uuid))
    }

    pub(super) fn at(directory: PathBuf) -> Self {
        Self { directory }
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The machine's own file system.
    pub(super) fn root(&self) -> PathBuf {
        self.file("root")
    }

    /// Programs that answer for the machine.
    pub(super) fn programs(&self) -> PathBuf {
        self.file("bin")
    }

    pub(super) fn console(&self) -> PathBuf {
        self.file("console.log")
    }

    pub(super) fn fault_counts(&self) -> PathBuf {
        self.file(COUNTS)
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
                    && record.driver == "sandbox"
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
            let record = match self.find() {
                Found::Absent => return Ok(None),
                Found::Foreign => return Err(self.foreign()),
                Found::Unreadable(error) => return Err(self.unreadable(&error)),
                // A lock that somebody removed is made anew: all look at the same file.
                Found::Ours(_) => match open_lock(&self.file(LOCK)) {
                    Ok(file) => self.try_hold(file)?,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                    Err(error) => return Err(self.failed("lock", &error)),
                },
            };
            if let Some(held) = record {
                return Ok(Some(held));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Takes the lock if it is free and still that of this directory.
    fn try_hold(&self, file: File) -> Result<Option<(Held, Record)>, MachineError> {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(self.failed("lock", &errno.into())),
        }
        let same = file
            .metadata()
            .ok()
            .zip(fs::metadata(self.file(LOCK)).ok())
            .is_some_and(|(held, there)| (held.dev(), held.ino()) == (there.dev(), there.ino()));
        match self.find() {
            Found::Ours(record) if same => Ok(Some((Held { _file: file }, *record))),
            Found::Ours(_) | Found::Foreign | Found::Absent | Found::Unreadable(_) => Ok(None),
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
                Ok(()) => Ok(Some(Held { _file: lock })),
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

    /// Writes the record.
    pub(super) fn set_record(&self, record: &Record) -> io::Result<()> {
        write(&self.file(RECORD), record)
    }

    /// Removes everything but what says whose it is.
    pub(super) fn wipe(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            if KEPT.iter().any(|kept| entry.file_name() == *kept) {
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
        // Only if it was made for machines and has none any more.
        fs::remove_dir(parent).ok();
        Ok(())
    }

    /// What the host says.
    pub(crate) fn sheet(&self) -> Option<Sheet> {
        read(&self.file(SANDBOX_FILE))
    }

    pub(super) fn set_sheet(&self, sheet: &Sheet) -> io::Result<()> {
        write(&self.file(SANDBOX_FILE), sheet)
    }

    /// The supervisor's mark and when it began, as it wrote them.
    pub(super) fn pid(&self) -> Option<(ProcessMark, Option<Timestamp>)> {
        let text = fs::read_to_string(self.file("pid")).ok()?;
        let mut lines = text.lines();
        let mark = ProcessMark::parse(lines.next()?)?;
        Some((mark, lines.next().and_then(Timestamp::parse)))
    }

    pub(super) fn set_pid(&self, mark: &ProcessMark, now: Timestamp) -> io::Result<()> {
        write_text(&self.file("pid"), &format!("{mark}\n{now}\n"), 0o600)
    }

    pub(super) fn door(&self) -> Option<Door> {
        read(&self.file("door.json"))
    }

    pub(super) fn set_door(&self, door: &Door) -> io::Result<()> {
        write(&self.file("door.json"), door)
    }

    pub(super) fn exit(&self) -> Option<MachineExit> {
        read(&self.file("exit.json"))
    }

    pub(super) fn set_exit(&self, exit: &MachineExit) -> io::Result<()> {
        write(&self.file("exit.json"), exit)
    }

    /// The machine's own boot.
    pub(super) fn boot_id(&self) -> Option<String> {
        let text = fs::read_to_string(self.file("boot_id")).ok()?;
        Some(text.trim().to_owned()).filter(|id| !id.is_empty())
    }

    /// Begins another boot.
    pub(super) fn new_boot(&self) -> io::Result<String> {
        let hex = random_hex()?;
        let parts: Vec<&str> =
            [0..8, 8..12, 12..16, 16..20, 20..32].into_iter().filter_map(|range| hex.get(range)).collect();
        let id = parts.join("-");
        write_text(&self.file("boot_id"), &format!("{id}\n"), 0o600)?;
        Ok(id)
    }

    /// Returns the last lines of the console.
    pub(super) fn last_lines(&self) -> Vec<String> {
        use std::io::{Read, Seek, SeekFrom};
        let mut text = Vec::new();
        if let Ok(mut file) = File::open(self.console()) {
            let size = file.metadata().map_or(0, |metadata| metadata.len());
            let read = file.seek(SeekFrom::Start(size.saturating_sub(TAIL)));
            read.and_then(|_| file.take(TAIL).read_to_end(&mut text)).ok();
        }
        let text = String::from_utf8_lossy(&text);
        stead_model::tail::last_words(&text).into_iter().map(str::to_owned).collect()
    }

    pub(super) fn failed(&self, doing: &str, error: &io::Error) -> MachineError {
        MachineError::failed(format!("cannot {doing} the sandbox in {}: {error}", self.directory.display()))
    }

    /// Returns the machine as it is now; none if there is none of ours.
    pub(super) fn machine(&self) -> Option<Machine> {
        let record = match self.find() {
            Found::Ours(record) => record,
            Found::Absent | Found::Foreign | Found::Unreadable(_) => return None,
        };
        let run = self.pid();
        let live = run.as_ref().map(|(mark, _)| mark).filter(|mark| mark.open().is_some());
        let door = self.door().filter(|door| Some(&door.process) == live);
        let exit = if live.is_some() { None } else { self.exit_of(run.as_ref().map(|(mark, _)| mark)) };
        let state = match (record.made, live) {
            (false, _) => MachineState::Creating,
            (true, Some(_)) if self.file("stopping").exists() => MachineState::Stopping,
            (true, Some(_)) if door.is_some() => MachineState::Running,
            (true, Some(_)) => MachineState::Starting,
            (true, None) if exit.as_ref().is_some_and(|exit| exit.code != Some(0)) => MachineState::Failed,
            (true, None) => MachineState::Stopped,
        };
        let ssh = door.map(|door| door.ssh);
        Some(Machine {
            id: self.id(),
            owner: record.spec.owner.clone(),
            uuid: record.uuid.clone(),
            state,
            spec_hash: record.spec_hash.clone(),
            pid: live.map(|mark| mark.pid),
            addresses: ssh.iter().map(|ssh| ssh.host.clone()).collect(),
            ssh,
            exit,
            created_at: record.created_at,
            started_at: run.and_then(|(_, at)| at),
        })
    }

    /// Returns how the last run ended: by the supervisor's own word, or by what follows from its silence.
    pub(super) fn exit_of(&self, run: Option<&ProcessMark>) -> Option<MachineExit> {
        let silent = |code: Option<i32>, reason: &str| MachineExit {
            code,
            signal: None,
            at: None,
            reason: reason.to_owned(),
        };
        match (self.exit(), run) {
            (Some(exit), _) => Some(exit),
            (None, Some(mark)) if mark.is_of_another_boot() => {
                Some(silent(Some(0), "the machine it ran on was restarted"))
            }
            (None, Some(_)) => Some(silent(None, "its process was killed")),
            (None, None) => None,
        }
    }
}

fn open_lock(path: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).read(true).write(true).mode(0o600).open(path)
}

/// Returns the machines below `root_dir` that are of `scope`, by scope and name.
pub(super) fn list(root_dir: &Path, scope: &OwnerScope) -> Result<Vec<Machine>, MachineError> {
    let entries = match fs::read_dir(root_dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(MachineError::Unavailable(format!("{} cannot be read: {error}", root_dir.display())));
        }
    };
    let homes = entries.flatten().map(|entry| Home::at(entry.path()));
    let mut machines: Vec<Machine> =
        homes.filter_map(|home| home.machine()).filter(|machine| scope.covers(&machine.owner)).collect();
    machines.sort_by(|a, b| a.owner.cmp(&b.owner));
    Ok(machines)
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

/// Removes a file or a tree, also one whose directories were closed; one that is not there is removed.
fn remove(path: &Path) -> io::Result<()> {
    let is_directory = match fs::symlink_metadata(path) {
        Ok(found) => found.is_dir(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !is_directory {
        return fs::remove_file(path);
    }
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            for entry in walkdir::WalkDir::new(path).into_iter().flatten() {
                if entry.file_type().is_dir() {
                    fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o700)).ok();
                }
            }
            fs::remove_dir_all(path)
        }
        removed => removed,
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn write<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    write_text(path, &serde_json::to_string(value)?, 0o600)
}

/// Replaces a file: old or new, never a part.
pub(super) fn write_text(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let mut builder = tempfile::Builder::new();
    builder.prefix(".tmp-").permissions(fs::Permissions::from_mode(mode));
    let mut file = builder.tempfile_in(directory)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let home = Home::new(place.path(), &spec.owner.uuid());
        let record = Record::new(&spec, stead_runner::clock::now());
        drop(home.reserve(&record).unwrap().unwrap());
        fs::remove_file(home.file(LOCK)).unwrap();
        let held = tokio::time::timeout(Duration::from_secs(10), home.lock()).await.unwrap().unwrap();
        assert!(held.is_some() && home.file(LOCK).exists());
    }

    /// A record that cannot be read for now says nothing of whose the machine is.
    #[tokio::test]
    async fn what_cannot_be_looked_at_is_not_foreign() {
        let place = tempfile::tempdir().unwrap();
        let home = Home::new(place.path(), "b8ca0a97-6f03-56c9-ab24-2f428cb4ff94");
        fs::create_dir_all(home.file(RECORD)).unwrap();
        assert!(matches!(home.lock().await, Err(MachineError::Unavailable(_))));
    }
}

//! The files of a worker, each whole or not there, and what they say.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::FlockOperation;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use stead_model::diagnostic::{Diagnostics, Source};
use stead_model::fleet::state::{Assigned, Assignment};
use stead_model::fleet::vm::{Driver, read_specs};
use stead_model::fleet::{InstanceKey, Millis, VmSpec};
use stead_model::plan::Digest;
use stead_model::{GroupName, VmId, WorkerName};

use super::WorkerError;
use crate::events::Ev;

const LOCK: &str = "worker.lock";
/// How often a lock that is taken is looked at again before somebody else has it, and how soon.
const LOOKS: u32 = 50;
const LOOK_AGAIN: Duration = Duration::from_millis(20);
const NAME: &str = "worker.name";
const SESSION: &str = "worker.session";
const LEASE: &str = "worker.lease";
const ASSIGNMENT: &str = "assignment.json";
const HISTORY: &str = "closures.json";
const RECORD: &str = "record.json";
/// How files are called that are not whole yet.
pub(super) const ASIDE: &str = ".tmp-";

/// `STATE/fleet`.
#[derive(Clone, Debug)]
pub(super) struct Files {
    directory: PathBuf,
}

/// The right to act here. Dropping it lets go.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

/// One life of an agent.
#[derive(Clone, Debug)]
pub(super) struct Session {
    /// Counts lives, in this directory.
    pub(super) number: u64,
    /// Like no other, in whichever copy of this directory.
    pub(super) process: String,
}

/// Our mark: `instances/ID.ORD/record.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    pub(super) instance: InstanceKey,
    pub(super) group: GroupName,
    pub(super) generation: u64,
    pub(super) vm_hash: Digest,
    /// What really makes it.
    pub(super) driver: Driver,
    /// Its process; none: it is being started, or was stopped.
    pub(super) pid: Option<u32>,
    /// When that began, in clock ticks since boot.
    pub(super) pid_start: Option<u64>,
    pub(super) boot_id: String,
    /// When it was started last, since boot.
    pub(super) since: Millis,
    pub(super) attempts: u32,
    #[serde(rename = "next_retry")]
    pub(super) next_retry: Millis,
    /// Whether its last end is in `attempts` already.
    pub(super) is_counted: bool,
    /// Whether it is stopped on purpose.
    pub(super) is_stopping: bool,
    /// Why it could not be started.
    pub(super) failure: Option<Failure>,
    /// Where its console begins, of its last run.
    pub(super) console_from: u64,
    /// Why it is being stopped, until it is.
    #[serde(default)]
    pub(super) stopping: Option<Cause>,
    /// What was written down of it last.
    #[serde(default)]
    pub(super) told: Option<Told>,
    /// What it runs, whole: nobody else may know it any more.
    #[serde(deserialize_with = "read_spec")]
    pub(super) spec: Arc<VmSpec>,
}

/// What happens to an instance, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cause {
    pub(super) ev: Ev,
    pub(super) reason: String,
}

/// An event of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Told {
    pub(super) cause: Cause,
    /// The log has it under this number or a later one, if it was written at all; none: it was.
    pub(super) after: Option<u64>,
}

/// Why an instance could not be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Failure {
    /// Whether it would fail again.
    pub(super) is_permanent: bool,
    pub(super) message: String,
}

impl Record {
    /// Returns the record of an instance that is about to be made.
    pub(super) fn new(key: &InstanceKey, spec: &Arc<VmSpec>, vm_hash: Digest, driver: Driver) -> Self {
        Self {
            instance: key.clone(),
            group: spec.group.clone(),
            generation: 0,
            vm_hash,
            driver,
            pid: None,
            pid_start: None,
            boot_id: super::clock::boot_id(),
            since: 0,
            attempts: 0,
            next_retry: 0,
            is_counted: false,
            is_stopping: false,
            failure: None,
            console_from: 0,
            stopping: None,
            told: None,
            spec: Arc::clone(spec),
        }
    }

    /// Whether this is what was written down of it last.
    pub(super) fn has_told(&self, ev: Ev) -> bool {
        self.told.as_ref().is_some_and(|told| told.cause.ev == ev)
    }
}

impl Files {
    /// Takes `STATE/fleet` for one agent.
    pub(super) fn take(state_dir: &Path) -> Result<(Self, Lock), WorkerError> {
        let directory = state_dir.join("fleet");
        let about = |path: &Path| {
            let path = path.to_owned();
            move |source: io::Error| WorkerError::Files { path, source }
        };
        make_directory(&directory).map_err(about(&directory))?;
        let directory = directory.canonicalize().map_err(about(&directory))?;
        let path = directory.join(LOCK);
        let mut options = File::options();
        let file = options.create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = file.map_err(about(&path))?;
        // What an agent was about to start when it was killed has the lock until it is another program.
        let is_taken = || rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err();
        let mut looks = 0;
        while is_taken() {
            looks += 1;
            if looks > LOOKS {
                return Err(WorkerError::Locked(directory));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        sweep(&directory).map_err(about(&directory))?;
        let files = Self { directory };
        for name in ["instances", "roots", "blobs/sha256", "volumes"] {
            let place = files.place(name);
            make_directory(&place).map_err(about(&place))?;
        }
        Ok((files, Lock { _file: file }))
    }

    /// Returns a place in the directory.
    pub(super) fn place(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns the directory.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns what the worker here is called, once there was one: machines are known by it.
    pub(super) fn name(&self) -> io::Result<Option<String>> {
        match fs::read_to_string(self.place(NAME)) {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Keeps what the worker here is called.
    pub(super) fn set_name(&self, name: &WorkerName) -> io::Result<()> {
        replace(&self.place(NAME), format!("{name}\n").as_bytes())
    }

    /// Begins another life of the agent.
    pub(super) fn next_session(&self) -> io::Result<Session> {
        let path = self.place(SESSION);
        let last = match fs::read_to_string(&path) {
            Ok(text) => text.trim().parse().map_err(io::Error::other)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0_u64,
            Err(error) => return Err(error),
        };
        let number = last.saturating_add(1);
        replace(&path, format!("{number}\n").as_bytes())?;
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        Ok(Session { number, process: stead_model::base64::url::encode(&random) })
    }

    /// Returns until when singletons may run, as it was last granted in this boot.
    pub(super) fn lease(&self, boot_id: &str) -> Millis {
        let text = fs::read_to_string(self.place(LEASE)).unwrap_or_default();
        let (until, boot) = text.trim().split_once(' ').unwrap_or_default();
        if boot == boot_id { until.parse().unwrap_or_default() } else { 0 }
    }

    /// Keeps until when singletons may run. Where there is no room for another file the one that is there is written over: it
    /// is what machines end by.
    pub(super) fn set_lease(&self, until: Millis, boot_id: &str) -> io::Result<()> {
        let (path, text) = (self.place(LEASE), format!("{until} {boot_id}\n"));
        replace(&path, text.as_bytes())
            .or_else(|_| File::options().write(true).open(&path)?.write_all(text.as_bytes()))
    }

    /// Returns the file that says until when singletons may run.
    pub(super) fn lease_file(&self) -> PathBuf {
        self.place(LEASE)
    }

    /// Returns the assignment that was applied last; none: there was none, or it cannot be understood.
    pub(super) fn assignment(&self) -> Option<Assignment> {
        let written: Value = read(&self.place(ASSIGNMENT))?;
        let number = |key: &str| written.get(key).and_then(Value::as_u64);
        let specs = written.get("specs")?.as_array()?.iter().map(spec_of).collect::<Option<Vec<_>>>()?;
        let instances: Vec<Assigned> = serde_json::from_value(written.get("instances")?.clone()).ok()?;
        Some(Assignment {
            generation: number("generation")?,
            revision: number("revision")?,
            epoch: number("epoch")?,
            specs,
            instances,
        })
    }

    /// Keeps the assignment that is applied from now on.
    pub(super) fn set_assignment(&self, assignment: &Assignment) -> io::Result<()> {
        replace(&self.place(ASSIGNMENT), &serde_json::to_vec(assignment)?)
    }

    /// Returns the closures each VM had, the newest last.
    pub(super) fn history(&self) -> BTreeMap<VmId, Vec<Digest>> {
        read(&self.place(HISTORY)).unwrap_or_default()
    }

    /// Keeps them.
    pub(super) fn set_history(&self, history: &BTreeMap<VmId, Vec<Digest>>) -> io::Result<()> {
        replace(&self.place(HISTORY), &serde_json::to_vec(history)?)
    }

    /// Returns the directory of an instance.
    pub(super) fn instance(&self, key: &InstanceKey) -> PathBuf {
        self.place("instances").join(key.file_name())
    }

    /// Returns the directory of an instance's volumes.
    pub(super) fn volumes(&self, key: &InstanceKey) -> PathBuf {
        self.place("volumes").join(key.file_name())
    }

    /// Returns the directory of a closure.
    pub(super) fn root(&self, hash: &Digest) -> PathBuf {
        self.place("roots").join(hash.to_string())
    }

    /// Returns the file of a blob.
    pub(super) fn blob(&self, sha256: &Digest) -> PathBuf {
        self.place("blobs/sha256").join(sha256.to_string())
    }

    /// Returns the record of an instance, if it is ours.
    pub(super) fn record(&self, key: &InstanceKey) -> Option<Record> {
        read(&self.instance(key).join(RECORD)).filter(|record: &Record| record.instance == *key)
    }

    /// Writes the record of an instance.
    pub(super) fn set_record(&self, record: &Record) -> io::Result<()> {
        let directory = self.instance(&record.instance);
        make_directory(&directory)?;
        replace(&directory.join(RECORD), &serde_json::to_vec(record)?)
    }

    /// Changes the record of an instance, if there is one.
    pub(super) fn update_record(
        &self,
        key: &InstanceKey,
        change: impl FnOnce(&mut Record),
    ) -> io::Result<()> {
        let Some(mut record) = self.record(key) else { return Ok(()) };
        change(&mut record);
        self.set_record(&record)
    }

    /// Returns all records. What is there without one is not ours.
    pub(super) fn records(&self) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        for entry in fs::read_dir(self.place("instances"))? {
            let name = entry?.file_name();
            let Some((vm, ordinal)) = name.to_str().and_then(|name| name.rsplit_once('.')) else { continue };
            let Ok(key) = InstanceKey::parse(&format!("{vm}/{ordinal}")) else { continue };
            records.extend(self.record(&key));
        }
        records.sort_by(|a, b| a.instance.cmp(&b.instance));
        Ok(records)
    }

    /// Removes everything of an instance but its volumes.
    pub(super) fn forget(&self, key: &InstanceKey) -> io::Result<()> {
        let directory = self.instance(key);
        // The mark goes last: until then whoever comes next goes on.
        for entry in fs::read_dir(&directory)?.flatten() {
            if entry.file_name() != RECORD {
                remove(&entry.path())?;
            }
        }
        remove(&directory)
    }
}

/// Returns the spec that a JSON value holds.
fn spec_of(value: &Value) -> Option<Arc<VmSpec>> {
    let source = Source { name: ASSIGNMENT.into(), text: format!("[{value}]").into() };
    let mut diagnostics = Diagnostics::default();
    let specs = read_specs(&source, &mut diagnostics);
    specs.into_iter().next().filter(|_| !diagnostics.has_errors()).map(Arc::new)
}

fn read_spec<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<VmSpec>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    spec_of(&value).ok_or_else(|| serde::de::Error::custom("this is not a spec that this program knows"))
}

pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Makes a directory that only this account can enter, with those above it.
pub(super) fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Replaces a file: old or new, never a part, and there after a power cut.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let mut builder = tempfile::Builder::new();
    builder.prefix(ASIDE).permissions(fs::Permissions::from_mode(0o600));
    let mut file = builder.tempfile_in(directory)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    File::open(directory)?.sync_all()
}

/// Removes what somebody who died was about to put in its place.
pub(super) fn sweep(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(ASIDE) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Removes a file or a tree; one that is not there is removed.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

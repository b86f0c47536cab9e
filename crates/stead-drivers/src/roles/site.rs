//! The place where roles work on one machine: their directories, programs, addresses and files.
//!
//! ```text
//!   <agent workdir>/run-<run>-<tag>/<role>/          what the role works in
//!                                  /.control/<role>/  logs that are spooled, how the role ended
//!                                  /.live             locked while the run has a driver
//!                  program.json                     the hash of `stead`, as long as its file stays as it is
//! ```

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::fs::FlockOperation;
use stead_model::plan::Digest;
use stead_model::role::{
    FileStat, FoundKind, LeftRole, Leftovers, Program, ProgramQuestion, RunWork, SiteAnswer, SiteAsk,
    StopRule, WorkTag,
};
use stead_runner::clock;
use stead_runner::files::Content;
use stead_runner::operation::OpError;

use crate::command::program;
use crate::supervisor::tree::Orphans;

use super::{artifacts, program_hash};

/// How long what a lost driver left is kept.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);
const CONTROL: &str = ".control";
const LIVE: &str = ".live";
/// The longest a supervisor takes to stop its role: the longest grace period, and the kernel.
const LONGEST_STOP: Duration = Duration::from_secs(StopRule::LONGEST_GRACE as u64 + 60);
/// How often it is looked whether it has.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// What the end of a role is noted in.
const NOTE: &str = "exit.json";

/// Where roles work on this machine.
#[derive(Debug)]
pub(crate) struct Site {
    /// Where they may, the first choice first.
    places: Vec<PathBuf>,
    /// Runs that have something here, with their locks.
    live: Mutex<BTreeMap<String, Live>>,
}

#[derive(Debug)]
struct Live {
    directory: PathBuf,
    /// What was made for it from here: another agent of the run may be this same machine.
    made: Vec<PathBuf>,
    _lock: File,
}

/// Where a supervisor puts what it keeps of one role.
#[derive(Clone, Debug)]
pub(crate) struct ControlPlace {
    pub(crate) directory: PathBuf,
}

impl ControlPlace {
    pub(crate) fn note(&self) -> PathBuf {
        self.directory.join(NOTE)
    }
}

impl Site {
    /// Returns the site that works in the first usable one of `places`.
    pub(crate) fn new(places: Vec<PathBuf>) -> Self {
        Self { places, live: Mutex::default() }
    }

    /// Answers a question. It may take a while: call it where that does not matter.
    pub(crate) fn answer(&self, ask: &SiteAsk) -> Result<SiteAnswer, OpError> {
        match ask {
            SiteAsk::MakeWorkdir { work, role } => {
                self.make_workdir(work, role).map(|path| SiteAnswer::Path { path })
            }
            SiteAsk::EnsureDirectory { path } => {
                let made = DirBuilder::new().recursive(true).create(absolute(path)?);
                made.map(|()| SiteAnswer::Done).map_err(|error| cannot("make", Path::new(path), &error))
            }
            SiteAsk::KeepWork { work } => self.keep(work).map(|()| SiteAnswer::Done),
            SiteAsk::RemoveWork { work } => self.remove(work).map(|()| SiteAnswer::Done),
            SiteAsk::Program(question) => find_program(question).map(SiteAnswer::Program),
            SiteAsk::HasAddress { address } => Ok(SiteAnswer::Is { yes: has_address(*address) }),
            SiteAsk::Stat { path, hash } => {
                stat(absolute(path)?, *hash).map(|found| SiteAnswer::Stat { found })
            }
            SiteAsk::Artifacts(question) => {
                absolute(&question.workdir)?;
                artifacts::find(question).map(|found| SiteAnswer::Artifacts { found })
            }
            SiteAsk::Leftovers { work } => self.leftovers(work).map(SiteAnswer::Leftovers),
        }
    }

    /// Returns the SHA-256 of a program, which is remembered here as long as the program stays as it is.
    pub(crate) fn hash_of(&self, program: &Path) -> Result<String, OpError> {
        let place = self.usable()?;
        program_hash::of(program, &place).map_err(|error| cannot("read", program, &error))
    }

    /// Makes the place where the supervisor of a role keeps what nobody has heard yet.
    pub(crate) fn make_control(&self, work: &RunWork, role: &str) -> Result<ControlPlace, OpError> {
        let directory = self.run_directory(work)?.join(CONTROL).join(name(role)?);
        private_directories(&directory).map_err(|error| cannot("make", &directory, &error))?;
        self.note_made(work, &directory);
        Ok(ControlPlace { directory })
    }

    fn make_workdir(&self, work: &RunWork, role: &str) -> Result<String, OpError> {
        let directory = self.run_directory(work)?.join(name(role)?);
        let made = DirBuilder::new().mode(0o700).create(&directory);
        made.map_err(|error| cannot("make", &directory, &error))?;
        self.note_made(work, &directory);
        text(&directory)
    }

    fn note_made(&self, work: &RunWork, directory: &Path) {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(live) = live.get_mut(&work.to_string()) {
            live.made.push(directory.to_owned());
        }
    }

    /// Returns the run's directory, made and locked if this is the first time.
    fn run_directory(&self, work: &RunWork) -> Result<PathBuf, OpError> {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(live) = live.get(&work.to_string()) {
            return Ok(live.directory.clone());
        }
        let place = self.usable()?;
        sweep(&place);
        let directory = place.join(work.to_string());
        private_directories(&directory).map_err(|error| cannot("make", &directory, &error))?;
        let lock = lock(&directory, FlockOperation::NonBlockingLockShared)
            .map_err(|error| cannot("lock", &directory, &error))?;
        let made = Vec::new();
        live.insert(work.to_string(), Live { directory: directory.clone(), made, _lock: lock });
        Ok(directory)
    }

    /// Returns the first place that can be used.
    fn usable(&self) -> Result<PathBuf, OpError> {
        let mut refused = Vec::new();
        for place in &self.places {
            match try_place(place) {
                Ok(()) => return Ok(place.clone()),
                Err(why) => refused.push(format!("{}: {why}", place.display())),
            }
        }
        let why = if refused.is_empty() { "none is known".to_owned() } else { refused.join("; ") };
        Err(OpError::permanent(format!("no directory for roles: {why}; set `workdir` of the agent")))
    }

    /// Removes what the run has here; what a lost driver left of it goes whole.
    fn remove(&self, work: &RunWork) -> Result<(), OpError> {
        let Some(Live { directory, made, _lock }) = self.forget(work) else {
            for directory in self.directories(work) {
                remove_tree(&directory).map_err(|error| cannot("remove", &directory, &error))?;
            }
            return Ok(());
        };
        for path in &made {
            remove_tree(path).map_err(|error| cannot("remove", path, &error))?;
        }
        drop(_lock);
        // Held by nobody else it is of no use any more; what another agent of the run has there keeps it.
        if lock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok() {
            leave(&directory);
        }
        Ok(())
    }

    /// Removes what is needed only while the run lives; without it nobody takes the rest for a lost driver's.
    fn keep(&self, work: &RunWork) -> Result<(), OpError> {
        drop(self.forget(work));
        for directory in self.directories(work) {
            let control = directory.join(CONTROL);
            remove_tree(&control).map_err(|error| cannot("remove", &control, &error))?;
            fs::remove_file(directory.join(LIVE)).unwrap_or(());
        }
        Ok(())
    }

    fn forget(&self, work: &RunWork) -> Option<Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).remove(&work.to_string())
    }

    fn directories(&self, work: &RunWork) -> Vec<PathBuf> {
        let places = self.places.iter().map(|place| place.join(work.to_string()));
        places.filter(|directory| directory.is_dir()).collect()
    }

    fn leftovers(&self, work: &RunWork) -> Result<Leftovers, OpError> {
        let mut roles: BTreeMap<String, LeftRole> = BTreeMap::new();
        let of = |role: &str| LeftRole {
            role: role.to_owned(),
            workdir: None,
            stdout: None,
            stderr: None,
            exit: None,
        };
        for directory in self.directories(work) {
            for role in directories_in(&directory).into_iter().filter(|name| !name.starts_with('.')) {
                let workdir = text(&directory.join(&role))?;
                roles.entry(role.clone()).or_insert_with(|| of(&role)).workdir = Some(workdir);
            }
            let control = directory.join(CONTROL);
            for role in directories_in(&control) {
                let left = roles.entry(role.clone()).or_insert_with(|| of(&role));
                let note = control.join(&role).join(NOTE);
                await_end(&note, work, &role, left.workdir.as_deref());
                let log = |name: &str| Some(control.join(&role).join(name)).filter(|path| path.is_file());
                left.stdout = log("stdout.log").map(|path| text(&path)).transpose()?;
                left.stderr = log("stderr.log").map(|path| text(&path)).transpose()?;
                left.exit = fs::read(&note).ok().and_then(|note| serde_json::from_slice(&note).ok());
            }
        }
        Ok(Leftovers { roles: roles.into_values().collect() })
    }
}

/// Returns the file that the supervisor who notes the end in `note` has locked while it lives.
pub(crate) fn live_file(note: &Path) -> PathBuf {
    note.with_extension("live")
}

/// Waits until a role whose driver was lost has been stopped by its supervisor. If that was killed as well, what is left
/// of the role is ended here.
fn await_end(note: &Path, work: &RunWork, role: &str, workdir: Option<&str>) {
    let Ok(live) = File::open(live_file(note)) else { return };
    let mut waited = Duration::ZERO;
    while rustix::fs::flock(&live, FlockOperation::NonBlockingLockShared).is_err() && waited < LONGEST_STOP {
        std::thread::sleep(LOOK_AGAIN);
        waited += LOOK_AGAIN;
    }
    if let (false, Some(workdir)) = (note.exists(), workdir) {
        let marks = [("STEAD_RUN_ID", work.run.as_str()), ("STEAD_ROLE", role), ("STEAD_WORKDIR", workdir)];
        Orphans { session: None, marks: &marks }.kill();
    }
}

fn directories_in(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Returns a role's name, if it is one: it becomes a directory.
fn name(role: &str) -> Result<&str, OpError> {
    let is_name = role.starts_with(|first: char| first.is_ascii_lowercase())
        && role.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-'));
    is_name.then_some(role).ok_or_else(|| OpError::invalid(format!("`{role}` is no name of a role")))
}

fn absolute(path: &str) -> Result<&Path, OpError> {
    let path = Path::new(path);
    path.is_absolute()
        .then_some(path)
        .ok_or_else(|| OpError::invalid(format!("`{}` is no absolute path", path.display())))
}

fn text(path: &Path) -> Result<String, OpError> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| OpError::permanent(format!("the path {} is not text", path.display())))
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> OpError {
    OpError::operation(format!("cannot {what} {}: {error}", path.display()))
}

fn private_directories(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Makes a place, and makes sure that it is ours alone.
fn try_place(place: &Path) -> Result<(), String> {
    if !place.is_absolute() {
        return Err("it is no absolute path".to_owned());
    }
    private_directories(place).map_err(|error| error.to_string())?;
    let metadata = fs::symlink_metadata(place).map_err(|error| error.to_string())?;
    if metadata.is_symlink() {
        return Err("it is a symbolic link".to_owned());
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err("it belongs to another account".to_owned());
    }
    if metadata.mode() & 0o002 != 0 {
        return Err("others may write there".to_owned());
    }
    rustix::fs::access(place, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)
        .map_err(|error| error.to_string())
}

/// Removes a run's directory in which nobody has anything any more.
fn leave(directory: &Path) {
    if fs::remove_dir(directory.join(CONTROL)).is_ok() || !directory.join(CONTROL).exists() {
        let is_empty = fs::read_dir(directory)
            .is_ok_and(|entries| entries.flatten().all(|entry| entry.file_name() == LIVE));
        if is_empty {
            remove_tree(directory).unwrap_or(());
        }
    }
}

/// Takes the lock of a run's directory: shared by agents that use it, alone by who removes it.
fn lock(directory: &Path, how: FlockOperation) -> io::Result<File> {
    let mut options = File::options();
    let file = options.create(true).truncate(false).write(true).mode(0o600).open(directory.join(LIVE))?;
    rustix::fs::flock(&file, how)?;
    Ok(file)
}

/// Removes what lost drivers left for longer than a day.
fn sweep(place: &Path) {
    let now = SystemTime::UNIX_EPOCH
        + Duration::from_micros(u64::try_from(clock::now().as_micros()).unwrap_or_default());
    for entry in directories_in(place).into_iter().filter(|name| is_run(name)) {
        let directory = place.join(entry);
        let is_old = last_change(&directory)
            .and_then(|changed| now.duration_since(changed).ok())
            .is_some_and(|age| age > KEPT);
        // Without it somebody wanted it kept.
        if !is_old || !directory.join(LIVE).exists() {
            continue;
        }
        // Held while it is removed: nobody can take it up meanwhile.
        if let Ok(_held) = lock(&directory, FlockOperation::NonBlockingLockExclusive) {
            // What cannot be removed now is found again by the next run.
            remove_tree(&directory).unwrap_or(());
        }
    }
}

fn is_run(name: &str) -> bool {
    let rest = name.strip_prefix("run-").and_then(|rest| rest.rsplit_once('-'));
    rest.is_some_and(|(run, tag)| !run.is_empty() && WorkTag::parse(tag).is_some())
}

/// Returns when something in a run's directory last changed, two levels deep: a role that works writes.
fn last_change(directory: &Path) -> Option<SystemTime> {
    let walk = walkdir::WalkDir::new(directory).max_depth(3).into_iter().flatten();
    walk.filter_map(|entry| entry.metadata().ok()?.modified().ok()).max()
}

/// Removes a directory with all in it, also what its owner made unreadable.
fn remove_tree(directory: &Path) -> io::Result<()> {
    if let Err(error) = fs::remove_dir_all(directory) {
        if error.kind() == io::ErrorKind::NotFound {
            return Ok(());
        }
        for entry in walkdir::WalkDir::new(directory).into_iter().flatten() {
            if entry.file_type().is_dir() {
                fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o700)).unwrap_or(());
            }
        }
        return fs::remove_dir_all(directory);
    }
    Ok(())
}

fn find_program(question: &ProgramQuestion) -> Result<Program, OpError> {
    let path = question.path.as_ref().map(Into::into).or_else(|| std::env::var_os("PATH"));
    let workdir = absolute(&question.workdir)?;
    let found = program::find_on_path(&question.name, workdir, path.as_deref())
        .map_err(|refused| OpError::permanent(refused.message))?;
    let content = File::open(&found).and_then(|mut file| Content::read(&mut file));
    // A program may be executable and not readable.
    let sha256 = content.ok().map(|content| content.sha256);
    Ok(Program { path: text(&found)?, sha256 })
}

/// An address can be listened on where it is, and only there.
fn has_address(address: IpAddr) -> bool {
    !address.is_unspecified() && UdpSocket::bind((address, 0)).is_ok()
}

fn stat(path: &Path, hash: bool) -> Result<Option<FileStat>, OpError> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(cannot("look at", path, &error)),
    };
    let kind = if metadata.is_file() {
        FoundKind::File
    } else if metadata.is_dir() {
        FoundKind::Directory
    } else {
        FoundKind::Special
    };
    let sha256 = match hash && kind == FoundKind::File {
        true => {
            let content = File::open(path).and_then(|mut file| Content::read(&mut file));
            Some(content.map_err(|error| cannot("read", path, &error))?.sha256)
        }
        false => None,
    };
    Ok(Some(FileStat {
        kind,
        mode: metadata.mode() & 0o7777,
        bytes: metadata.len(),
        modified: artifacts::timestamp(metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH)),
        sha256,
    }))
}

/// Opens a file that is to go to the driver; links are not followed.
pub(crate) fn open_for_driver(path: &str) -> Result<File, OpError> {
    let path = absolute(path)?;
    artifacts::open_file(path).map_err(|error| cannot("read", path, &error))
}

/// Puts the content of `from` into the file `to`, with its parents, whole or not at all; returns its hash.
pub(crate) fn install(from: &mut dyn io::Read, to: &str, mode: Option<u32>) -> Result<Digest, OpError> {
    use io::Write as _;
    use sha2::Digest as _;
    let to = absolute(to)?;
    let fail = |error: io::Error| cannot("write", to, &error);
    let (Some(parent), Some(file_name)) = (to.parent(), to.file_name()) else {
        return Err(OpError::invalid(format!("`{}` names no file", to.display())));
    };
    DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(fail)?;
    let mut prefix = std::ffi::OsString::from(".");
    prefix.push(file_name);
    let mut builder = tempfile::Builder::new();
    let mut temporary =
        builder.prefix(&prefix).suffix(stead_bundle::ARRIVING).tempfile_in(parent).map_err(fail)?;
    let mut hasher = sha2::Sha256::new();
    let mut buffer = vec![0; 128 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => {
                let bytes = buffer.get(..n).unwrap_or_default();
                hasher.update(bytes);
                temporary.write_all(bytes).map_err(fail)?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(fail(error)),
        }
    }
    let permissions = fs::Permissions::from_mode(mode.unwrap_or(0o644) & 0o7777);
    temporary.as_file().set_permissions(permissions).map_err(fail)?;
    temporary.persist(to).map_err(|error| fail(error.error))?;
    Ok(Digest(hasher.finalize().into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use stead_model::RunId;

    fn work(run: &str, tag: u8) -> RunWork {
        RunWork { run: RunId::parse(run).unwrap(), tag: WorkTag::new([0, 0, 0, tag]) }
    }

    fn site(directory: &Path) -> Site {
        Site::new(vec![directory.join("work")])
    }

    #[test]
    fn runs_never_meet_and_leave_nothing_when_they_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let site = site(directory.path());
        let one = site.make_workdir(&work("r", 1), "server").unwrap();
        let two = site.make_workdir(&work("r", 2), "server").unwrap();
        assert!(one.ends_with("/work/run-r-00000001/server") && one != two, "{one}");
        assert!(site.make_workdir(&work("r", 1), "server").is_err(), "it is fresh or it is an error");
        assert!(site.make_workdir(&work("r", 1), "../x").unwrap_err().message.contains("no name"));
        fs::write(format!("{one}/file"), "x").unwrap();
        fs::create_dir(format!("{one}/closed")).unwrap();
        fs::set_permissions(format!("{one}/closed"), fs::Permissions::from_mode(0o000)).unwrap();
        site.remove(&work("r", 1)).unwrap();
        site.remove(&work("r", 1)).unwrap();
        assert!(!Path::new(&one).exists() && Path::new(&two).exists());
    }

    #[test]
    fn what_a_lost_driver_left_is_found_and_swept_after_a_day() {
        let directory = tempfile::tempdir().unwrap();
        let lost = site(directory.path());
        let workdir = lost.make_workdir(&work("soak-07", 1), "server").unwrap();
        let control = lost.make_control(&work("soak-07", 1), "server").unwrap();
        fs::write(control.directory.join("stdout.log"), "said").unwrap();
        fs::write(control.note(), serde_json::to_vec(&stead_model::role::RoleExit::default()).unwrap())
            .unwrap();
        drop(lost);
        let later = site(directory.path());
        let found = later.leftovers(&work("soak-07", 1)).unwrap();
        assert_eq!(found.roles.len(), 1);
        assert_eq!(found.roles[0].workdir.as_deref(), Some(workdir.as_str()));
        assert!(found.roles[0].exit.is_some() && found.roles[0].stderr.is_none());
        assert!(found.roles[0].stdout.as_ref().is_some_and(|path| path.ends_with("/stdout.log")));

        later.make_workdir(&work("next", 2), "server").unwrap();
        assert!(Path::new(&workdir).exists(), "it is not a day old");
        let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        for entry in
            walkdir::WalkDir::new(directory.path().join("work/run-soak-07-00000001")).contents_first(true)
        {
            File::open(entry.unwrap().path()).unwrap().set_modified(old).unwrap();
        }
        let unrelated = directory.path().join("work/run-mine");
        fs::create_dir(&unrelated).unwrap();
        File::open(&unrelated).unwrap().set_modified(old).unwrap();
        let held =
            lock(&directory.path().join("work/run-soak-07-00000001"), FlockOperation::NonBlockingLockShared)
                .unwrap();
        File::open(directory.path().join("work/run-soak-07-00000001")).unwrap().set_modified(old).unwrap();
        sweep(&directory.path().join("work"));
        assert!(Path::new(&workdir).exists(), "a driver still has it");
        drop(held);
        sweep(&directory.path().join("work"));
        assert!(!Path::new(&workdir).exists() && unrelated.exists());
    }

    #[test]
    fn two_agents_of_one_run_may_be_one_machine() {
        let directory = tempfile::tempdir().unwrap();
        let (one, two) = (site(directory.path()), site(directory.path()));
        let server = one.make_workdir(&work("r", 1), "server").unwrap();
        let client = two.make_workdir(&work("r", 1), "client").unwrap();
        one.make_control(&work("r", 1), "server").unwrap();
        one.remove(&work("r", 1)).unwrap();
        assert!(!Path::new(&server).exists() && Path::new(&client).exists());
        two.remove(&work("r", 1)).unwrap();
        assert_eq!(directories_in(&directory.path().join("work")), Vec::<String>::new());
    }

    #[test]
    fn what_is_kept_is_not_taken_for_left() {
        let directory = tempfile::tempdir().unwrap();
        let site = site(directory.path());
        let workdir = site.make_workdir(&work("r", 1), "server").unwrap();
        site.make_control(&work("r", 1), "server").unwrap();
        site.keep(&work("r", 1)).unwrap();
        let run = directory.path().join("work/run-r-00000001");
        assert_eq!(directories_in(&run), ["server"]);
        let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        for path in [Path::new(&workdir), &run] {
            File::open(path).unwrap().set_modified(old).unwrap();
        }
        sweep(&directory.path().join("work"));
        assert!(Path::new(&workdir).exists());
    }

    #[test]
    fn a_place_of_others_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let open = directory.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        let site = Site::new(vec![open, directory.path().join("own")]);
        assert!(site.make_workdir(&work("r", 1), "a").unwrap().contains("/own/"));
        let none = Site::new(vec![PathBuf::from("relative")]);
        assert!(none.make_workdir(&work("r", 1), "a").unwrap_err().message.contains("workdir"));
    }

    #[test]
    fn programs_are_looked_for_as_the_role_would() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("tool");
        fs::write(&own, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).unwrap();
        let workdir = directory.path().display().to_string();
        let ask = |name: &str, path: Option<&str>| {
            find_program(&ProgramQuestion {
                name: name.to_owned(),
                path: path.map(str::to_owned),
                workdir: workdir.clone(),
            })
        };
        assert_eq!(ask("./tool", None).unwrap().sha256, Some(Digest::of(b"#!/bin/sh\n").to_string()));
        assert_eq!(ask("tool", Some(&workdir)).unwrap().path, own.display().to_string());
        assert!(ask("sh", None).is_ok());
        let missing = ask("sh", Some("/nowhere")).unwrap_err().message;
        assert!(missing.contains("`sh`") && missing.contains("`/nowhere`"), "{missing}");
    }

    #[test]
    fn files_are_installed_whole_with_their_mode() {
        let directory = tempfile::tempdir().unwrap();
        let to = directory.path().join("a/b/c").display().to_string();
        let digest = install(&mut &b"content"[..], &to, Some(0o755)).unwrap();
        assert_eq!(digest, Digest::of(b"content"));
        let found = stat(Path::new(&to), true).unwrap().unwrap();
        assert_eq!((found.mode, found.bytes, found.sha256), (0o755, 7, Some(digest.to_string())));
        assert_eq!(fs::read_dir(directory.path().join("a/b")).unwrap().count(), 1);
        assert!(install(&mut &b""[..], "relative", None).is_err());
        assert_eq!(stat(&directory.path().join("none"), true).unwrap(), None);
    }

    #[test]
    fn loopback_is_an_own_address_and_a_documentation_one_is_not() {
        assert!(has_address("127.0.0.1".parse().unwrap()));
        assert!(!has_address("192.0.2.1".parse().unwrap()) && !has_address("0.0.0.0".parse().unwrap()));
    }
}

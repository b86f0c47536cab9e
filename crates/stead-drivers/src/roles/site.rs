//! The place where roles work on one machine: their directories, programs, addresses and files.
//!
//! ```text
//!   <agent workdir>/run-<run>-<tag>/<role>/          what the role works in
//!                                  /.control/<role>/  logs that are spooled, how the role ended
//!                                  /.live             locked while the run has a driver
//!                  program.json                     the hash of `stead`, as long as its file stays as it is
//! ```

mod directories;
mod files;

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::FlockOperation;
use stead_model::role::{LeftRole, Leftovers, RunWork, SiteAnswer, SiteAsk, StopRule};
use stead_runner::operation::OpError;

use crate::program_hash;
use crate::supervisor::tree::Orphans;

use super::artifacts;
use directories::{
    CONTROL, LIVE, directories_in, leave, lock, private_directories, remove_tree, sweep, try_place,
};
use files::{find_program, has_address, stat};

pub(crate) use files::{install, open_for_driver};

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::SystemTime;

    use stead_model::RunId;
    use stead_model::role::WorkTag;

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
}

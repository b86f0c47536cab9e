//! Errands: what a level above has this machine do with the nodes in it, whoever listens meanwhile.
//!
//! ```text
//!  driver ══ SSH ══▶ stead errand begin ─ unpacks the site, starts ─▶ stead errand keep ─▶ stead create|destroy|…
//!         ══ SSH ══▶ stead errand follow ◀── events of the run, then its end ──────────────────┘
//! ```
//! `begin` may be sent again, after a cut connection or by a driver that was started anew: an errand is known by its run
//! and begins once. It ends with the machine, not with a connection.

mod follow;
pub mod images;
mod keep;

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::FlockOperation;
use stead_model::node::{Errand, ErrandEnd, ErrandVerb};
use stead_model::site::parcel::ParcelError;
use stead_model::{EventKind, RunId, SiteKey};
use stead_runner::journal::read_with;

use crate::machine::ProcessMark;
use crate::node_agent::JOB_MARK;
use crate::nodes::{Pairs, server_directory};
use crate::repositories;
use crate::site::{UnpackError, clear, unpack, unpacked_name};

pub use follow::{Wanted, follow};
pub use keep::keep;

/// The command that all of this is.
pub const COMMAND: &str = "errand";

/// Where sites are unpacked: `delegated/SITE/MANIFEST`.
pub(crate) const DELEGATED: &str = "delegated";

/// How long a keeper may take to come up, and how often is looked.
const COMING_UP: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// The arguments of its command.
const ARGUMENTS: &str = "arguments.json";
/// The manifest of an errand.
const MANIFEST: &str = "manifest.json";
/// The process that keeps it going, and the one that it is.
const KEEPER: &str = "keeper";
const RUNNING: &str = "command";
/// The argument after which the site is named.
const SITE_FLAG: &str = "--site";
/// How it ended.
const END: &str = "end.json";
/// Errands that are kept after they ended, to be looked at.
const KEPT: usize = 20;

/// Why an errand was not begun, kept or followed.
#[derive(Debug, thiserror::Error)]
pub enum ErrandError {
    /// It is none.
    #[error(transparent)]
    Malformed(#[from] ParcelError),
    /// Its site could not be unpacked.
    #[error(transparent)]
    Site(#[from] UnpackError),
    /// A file could not be used.
    #[error("failed to {what} {}", path.display())]
    File {
        /// What was done.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Its site would take the place of another.
    #[error("{} is the site `{there}`: it is not replaced by `{given}`", path.display())]
    OtherSite {
        /// Where that is.
        path: PathBuf,
        /// The site that is there.
        there: SiteKey,
        /// The site of the errand.
        given: SiteKey,
    },
    /// There is no such errand.
    #[error("there is no errand `{0}`")]
    Unknown(RunId),
    /// Its process did not come up.
    #[error("the errand `{0}` did not begin")]
    NotBegun(RunId),
    /// Its output could not be written: nobody listens.
    #[error("nobody listens")]
    Unheard(#[source] io::Error),
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ErrandError {
    let path = path.to_owned();
    move |source| ErrandError::File { what, path, source }
}

/// What became of the wish to begin an errand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It goes on, or has ended: it can be followed.
    Going,
    /// Its run was killed: nothing more becomes of it.
    Lost,
    /// Not begun: this errand of before still works on the nodes of its manifest.
    Busy(RunId),
}

/// What is known of an errand.
enum Standing {
    /// It goes on.
    Going,
    /// It ended like this.
    Ended(ErrandEnd),
    /// It never was, or something killed it.
    Gone,
}

/// The errands of a state directory.
#[derive(Clone, Debug)]
pub struct Errands {
    state: PathBuf,
}

impl Errands {
    /// Returns the errands that are kept in the state directory `state`.
    pub fn of(state: impl Into<PathBuf>) -> Self {
        Self { state: state.into() }
    }

    /// Returns where what the site called `site` has handed down for `manifest` is unpacked. Other sites may use this
    /// machine as well, and have manifests of the same name.
    pub fn site(&self, site: &SiteKey, manifest: &SiteKey) -> PathBuf {
        self.state.join(DELEGATED).join(site.as_str()).join(manifest.as_str())
    }

    fn home(&self, run: &RunId) -> Home {
        Home { directory: self.state.join("errands").join(run.as_str()) }
    }

    /// Begins an errand with `program`, unless it was begun before. Returns when it goes on without this process.
    ///
    /// One that ended before it had a run begins anew. One whose run was killed is lost: it needs another name. While
    /// another errand works on nodes of the same manifest none begins: whoever sent that one may be gone.
    pub fn begin(&self, errand: &Errand, program: &Path) -> Result<Begun, ErrandError> {
        let home = self.home(&errand.run);
        let name = errand.parcel.site_name();
        let place = self.site(&name, &errand.parcel.manifest);
        // Until the errand has a keeper: whoever looks next sees that somebody works here.
        let _alone = lock_site(&place)?;
        let has_run = self.journal(&errand.run).exists();
        match (self.standing(&errand.run)?, has_run) {
            (Standing::Going, _) | (Standing::Ended(_), true) => return Ok(Begun::Going),
            (Standing::Gone, true) => return Ok(Begun::Lost),
            (Standing::Ended(_) | Standing::Gone, false) => {}
        }
        if let Some(there) = unpacked_name(&place).filter(|there| *there != name) {
            return Err(ErrandError::OtherSite { path: place, there, given: name });
        }
        if let Some(other) = self.other_at_work(errand, &place)? {
            return Ok(Begun::Busy(other));
        }
        home.forget_end()?;
        let site = match errand.verb {
            ErrandVerb::Create | ErrandVerb::Verify | ErrandVerb::Destroy => place,
            // Who only looks leaves the files alone that others work with.
            ErrandVerb::Drift => place.with_file_name(format!("{}@{}", errand.parcel.manifest, errand.run)),
        };
        unpack(&errand.parcel, &site)?;
        if errand.verb == ErrandVerb::Create {
            let server = server_directory(&self.state, &site);
            repositories::keep(&server, errand.repositories.as_deref()).map_err(failed("write", &server))?;
        }
        self.forget_old()?;
        home.prepare(errand, &self.arguments(errand, &site))?;
        let mut keeper = Command::new(program);
        keeper.args([COMMAND, "keep", "--run", errand.run.as_str(), "--state-dir"]).arg(&self.state);
        keeper.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // Begun by a job of this machine's agent, it outlives that job.
        keeper.env_remove(JOB_MARK);
        keeper.spawn().map_err(failed("start", program))?;
        let end = Instant::now() + COMING_UP;
        while !home.is_alive()? && home.end()?.is_none() {
            if Instant::now() > end {
                return Err(ErrandError::NotBegun(errand.run.clone()));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(Begun::Going)
    }

    /// Returns another errand that works on nodes of the same manifest. Who only looks does not.
    fn other_at_work(&self, errand: &Errand, site: &Path) -> Result<Option<RunId>, ErrandError> {
        if errand.verb == ErrandVerb::Drift {
            return Ok(None);
        }
        let entries = fs::read_dir(self.state.join("errands")).into_iter().flatten().flatten();
        let runs = entries.filter_map(|entry| RunId::parse(entry.file_name().to_str()?).ok());
        let mut runs: Vec<RunId> = runs.filter(|run| *run != errand.run).collect();
        runs.sort();
        for run in runs {
            let home = self.home(&run);
            if home.end()?.is_none()
                && home.is_alive()?
                && home.works_on(site)
                // It may have ended between the questions.
                && home.end()?.is_none()
            {
                return Ok(Some(run));
            }
        }
        Ok(None)
    }

    /// Returns what becomes of an errand.
    ///
    /// Its command goes on if its keeper is killed, and says in its journal how it ended.
    fn standing(&self, run: &RunId) -> Result<Standing, ErrandError> {
        let home = self.home(run);
        if let Some(end) = home.end()? {
            return Ok(Standing::Ended(end));
        }
        if home.is_alive()? {
            return Ok(Standing::Going);
        }
        // It may have ended between the two questions.
        if let Some(end) = home.end()? {
            return Ok(Standing::Ended(end));
        }
        let code = if home.directory.is_dir() { exit_code(&self.journal(run)) } else { None };
        let Some(code) = code else { return Ok(Standing::Gone) };
        let end = keep::end_of(&home, Some(code));
        home.set_end(&end)?;
        Ok(Standing::Ended(end))
    }

    /// Removes the site of an errand that only looked, and the one whose last node is gone, with its server's files and all
    /// errands of it. What cannot be removed is removed by the next one.
    fn clear_after(&self, home: &Home, end: &ErrandEnd) {
        let Some((verb, site)) = home.work() else { return };
        if verb == ErrandVerb::Drift.word() {
            fs::remove_dir_all(&site).ok();
        } else if verb == ErrandVerb::Destroy.word() && end.code == Some(0) {
            let Ok(_alone) = lock_site(&site) else { return };
            let manifest = site.file_name().and_then(|name| name.to_str());
            if Pairs::of(&self.state, &site).known(None, manifest).is_empty() && clear(&site).is_ok() {
                let server = server_directory(&self.state, &site);
                if !holds_socket(&server) {
                    fs::remove_dir_all(&server).ok();
                }
                let ended = self.ended().into_iter().map(|(_, directory)| Home { directory });
                let of_site = ended.filter(|other| other.work().is_some_and(|(_, used)| used == site));
                of_site.for_each(|other| drop(fs::remove_dir_all(&other.directory)));
            }
        }
    }

    /// Returns where the run of an errand writes its events.
    fn journal(&self, run: &RunId) -> PathBuf {
        stead_bundle::runs_directory(&self.state).join(run.as_str()).join(stead_bundle::EVENTS)
    }

    /// Asks an errand to stop; one that has ended needs not be asked.
    pub fn stop(&self, run: &RunId) -> Result<(), ErrandError> {
        let home = self.home(run);
        if !home.directory.is_dir() {
            return Err(ErrandError::Unknown(run.clone()));
        }
        let process = |file| ProcessMark::parse(&fs::read_to_string(home.file(file)).ok()?)?.open();
        if let Some(keeper) = process(KEEPER) {
            keeper.signal(rustix::process::Signal::TERM);
        } else if let Some(command) = process(RUNNING) {
            // Nobody is left to pass it on.
            command.signal(rustix::process::Signal::INT);
        }
        Ok(())
    }

    /// Returns the command's arguments. None of them is secret.
    fn arguments(&self, errand: &Errand, site: &Path) -> Vec<String> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let (source, manifest) = match errand.manifest.is_null() {
            true => ("-M", errand.parcel.manifest.as_str()),
            false => ("--manifest-json", "-"),
        };
        let mut arguments = vec![
            errand.verb.word().to_owned(),
            source.to_owned(),
            manifest.to_owned(),
            SITE_FLAG.to_owned(),
            text(site),
            "--state-dir".to_owned(),
            text(&self.state),
            "-H".to_owned(),
            errand.host.to_string(),
            "--json".to_owned(),
        ];
        arguments.extend(errand.arguments.iter().cloned());
        arguments
    }

    /// Returns when errands ended and where they are kept, oldest first.
    fn ended(&self) -> Vec<(SystemTime, PathBuf)> {
        let entries = fs::read_dir(self.state.join("errands")).into_iter().flatten().flatten();
        let ended = |entry: fs::DirEntry| {
            let home = Home { directory: entry.path() };
            let at = home.file(END).metadata().and_then(|file| file.modified()).ok()?;
            Some((at, home.directory))
        };
        let mut ended: Vec<_> = entries.filter_map(ended).collect();
        ended.sort();
        ended
    }

    /// Removes the oldest errands that have ended.
    fn forget_old(&self) -> Result<(), ErrandError> {
        let ended = self.ended();
        let surplus = ended.len().saturating_sub(KEPT);
        for (_, path) in ended.into_iter().take(surplus) {
            fs::remove_dir_all(&path).map_err(failed("remove", &path))?;
        }
        Ok(())
    }
}

/// Whether a server that uses this directory runs, or was killed and may be wanted again.
fn holds_socket(directory: &Path) -> bool {
    let mut entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.any(|entry| entry.path().extension().is_some_and(|extension| extension == "sock"))
}

/// Takes the lock of the site that is unpacked at `place`, which goes with the file.
fn lock_site(place: &Path) -> Result<File, ErrandError> {
    let name = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let path = place.with_file_name(format!(".{name}.lock"));
    if let Some(directory) = path.parent() {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(failed("make", directory))?;
    }
    let file = File::options().create(true).append(true).mode(0o600).open(&path);
    let file = file.map_err(failed("open", &path))?;
    rustix::fs::flock(&file, FlockOperation::LockExclusive)
        .map_err(|errno| failed("lock", &path)(errno.into()))?;
    Ok(file)
}

/// Returns what the run of this journal ended with, if it has.
fn exit_code(journal: &Path) -> Option<i32> {
    let mut last = None;
    read_with(journal, |event| last = Some(event.kind)).ok()?;
    let Some(EventKind::RunFinished(finished)) = last else { return None };
    Some(i32::from(finished.exit_code.code()))
}

/// The directory of one errand.
#[derive(Clone, Debug)]
struct Home {
    directory: PathBuf,
}

impl Home {
    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn prepare(&self, errand: &Errand, arguments: &[String]) -> Result<(), ErrandError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.directory);
        made.map_err(failed("make", &self.directory))?;
        self.write(ARGUMENTS, &serde_json::to_vec(arguments).unwrap_or_default())?;
        // Last, and never replaced: its lock says whether somebody works on the errand.
        let path = self.file(MANIFEST);
        let file = self.filled(errand.manifest.to_string().as_bytes()).map_err(failed("write", &path))?;
        match file.persist_noclobber(&path) {
            Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => {
                Err(failed("write", &path)(error.error))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Writes a file, whole or not at all.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), ErrandError> {
        let path = self.file(name);
        let written = self.filled(bytes).and_then(|file| file.persist(&path).map_err(|error| error.error));
        written.map(drop).map_err(failed("write", &path))
    }

    fn filled(&self, bytes: &[u8]) -> io::Result<tempfile::NamedTempFile> {
        let mut file = tempfile::Builder::new().prefix(".tmp-").tempfile_in(&self.directory)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        Ok(file)
    }

    /// Returns what it does, and where the site is unpacked with whose nodes.
    fn work(&self) -> Option<(String, PathBuf)> {
        let arguments: Vec<String> = serde_json::from_slice(&fs::read(self.file(ARGUMENTS)).ok()?).ok()?;
        let mut words = arguments.into_iter();
        let verb = words.next()?;
        let site = words.skip_while(|word| word != SITE_FLAG).nth(1)?;
        Some((verb, PathBuf::from(site)))
    }

    /// Whether it does something with the nodes of the site in `site`. Who only looks has one of its own.
    fn works_on(&self, site: &Path) -> bool {
        self.work().is_some_and(|(_, used)| used == site)
    }

    /// Writes down how it ended.
    fn set_end(&self, end: &ErrandEnd) -> Result<(), ErrandError> {
        self.write(END, &serde_json::to_vec(end).unwrap_or_default())
    }

    /// Forgets how it ended: it begins anew.
    fn forget_end(&self) -> Result<(), ErrandError> {
        let path = self.file(END);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", &path)(error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Returns how the errand ended, if it has.
    fn end(&self) -> Result<Option<ErrandEnd>, ErrandError> {
        let path = self.file(END);
        match fs::read(&path) {
            Ok(bytes) => {
                let end = serde_json::from_slice(&bytes).map_err(io::Error::from);
                end.map(Some).map_err(failed("read", &path))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", &path)(error)),
        }
    }

    /// Opens the manifest, whose lock is held for as long as the errand goes on; none if there is no errand.
    fn open_manifest(&self) -> Result<Option<File>, ErrandError> {
        let path = self.file(MANIFEST);
        match File::open(&path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("open", &path)(error)),
        }
    }

    /// Whether somebody works on it.
    fn is_alive(&self) -> Result<bool, ErrandError> {
        let Some(manifest) = self.open_manifest()? else { return Ok(false) };
        match rustix::fs::flock(&manifest, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
            Err(errno) => Err(failed("lock", &self.file(MANIFEST))(errno.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use stead_model::event::{Counts, RunFinished, encode};
    use stead_model::site::Parcel;
    use stead_model::time::Timestamp;
    use stead_model::{ExitCode, RunStatus, Value};

    use super::*;

    fn key(text: &str) -> SiteKey {
        SiteKey::parse(text).unwrap()
    }

    fn errand(site: &str) -> Errand {
        let files = BTreeMap::from([("site.yaml".to_owned(), format!("name: {site}\n"))]);
        Errand {
            run: RunId::parse("r").unwrap(),
            verb: ErrandVerb::Create,
            host: key("other"),
            parcel: Parcel { schema: 1, manifest: key("m"), files, authorized_keys: Vec::new() },
            manifest: Value::Null,
            arguments: Vec::new(),
            repositories: None,
        }
    }

    /// What is kept of an errand may be gone before its run is.
    #[test]
    fn an_errand_that_is_forgotten_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let (errands, errand) = (Errands::of(dir.path()), errand("harbour"));
        let journal = errands.journal(&errand.run);
        fs::create_dir_all(journal.parent().unwrap()).unwrap();
        let mut line = Vec::new();
        let finished = RunFinished {
            status: RunStatus::Success,
            exit_code: ExitCode::Success,
            counts: Counts::default(),
            duration_ms: 1,
            error: None,
        };
        let at = Timestamp::parse("2026-01-02T03:04:05Z").unwrap();
        encode(1, at, &EventKind::RunFinished(Box::new(finished)), &mut line);
        fs::write(&journal, line).unwrap();
        assert_eq!(errands.begin(&errand, Path::new("/bin/false")).unwrap(), Begun::Lost);
        // One that is kept, and whose keeper was killed, has ended as its journal says.
        fs::create_dir_all(errands.home(&errand.run).directory).unwrap();
        assert_eq!(errands.begin(&errand, Path::new("/bin/false")).unwrap(), Begun::Going);
        assert_eq!(errands.home(&errand.run).end().unwrap().unwrap().code, Some(0));
    }

    #[test]
    fn a_site_does_not_take_the_place_of_another() {
        let dir = tempfile::tempdir().unwrap();
        let errands = Errands::of(dir.path());
        let place = errands.site(&key("harbour"), &key("m"));
        assert_eq!(place, dir.path().join("delegated/harbour/m"));
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("site.yaml"), "name: airport\n").unwrap();
        let refused = errands.begin(&errand("harbour"), Path::new("/bin/false")).unwrap_err();
        let ErrandError::OtherSite { there, given, .. } = refused else { panic!("{refused}") };
        assert_eq!((there, given), (key("airport"), key("harbour")));
        assert_eq!(fs::read_to_string(place.join("site.yaml")).unwrap(), "name: airport\n");
        assert!(!dir.path().join("errands").exists());
    }
}

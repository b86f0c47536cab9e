//! Errands: what a level above has this machine do with the nodes in it, whoever listens meanwhile.
//!
//! ```text
//!  driver ══ SSH ══▶ stead errand begin ─ unpacks the site, starts ─▶ stead errand keep ─▶ stead create|destroy|…
//!         ══ SSH ══▶ stead errand follow ◀── events of the run, then its end ──────────────────┘
//! ```
//! `begin` may be sent again, after a cut connection or by a driver that was started anew: an errand is known by its run
//! and begins once. It ends with the machine, not with a connection.

mod follow;
mod keep;

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use stead_model::node::{Errand, ErrandEnd};
use stead_model::site::parcel::ParcelError;
use stead_model::{RunId, SiteKey};

use crate::machine::sandbox::ProcessMark;
use crate::site::{UnpackError, unpack};

pub use follow::follow;
pub use keep::keep;

/// The command that all of this is.
pub const COMMAND: &str = "errand";

/// How long a keeper may take to come up, and how often is looked.
const COMING_UP: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// The manifest of an errand.
const MANIFEST: &str = "manifest.json";
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It goes on, or has ended: it can be followed.
    Going,
    /// Its run was killed: nothing more becomes of it.
    Lost,
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

    /// Returns where the site of `manifest` is unpacked.
    pub fn site(&self, manifest: &SiteKey) -> PathBuf {
        self.state.join("delegated").join(manifest.as_str())
    }

    fn home(&self, run: &RunId) -> Home {
        Home { directory: self.state.join("errands").join(run.as_str()) }
    }

    /// Begins an errand with `program`, unless it was begun before. Returns when it goes on without this process.
    ///
    /// One that ended before it had a run begins anew. One whose run was killed is lost: it needs another name.
    pub fn begin(&self, errand: &Errand, program: &Path) -> Result<Begun, ErrandError> {
        let home = self.home(&errand.run);
        let has_run = self.journal(&errand.run).exists();
        match (home.end()?.is_some(), home.is_alive()?) {
            (false, true) => return Ok(Begun::Going),
            (true, _) if has_run => return Ok(Begun::Going),
            (false, false) if has_run => return Ok(Begun::Lost),
            (true, _) => {
                let end = home.file(END);
                fs::remove_file(&end).map_err(failed("remove", &end))?;
            }
            (false, false) => {}
        }
        let site = self.site(&errand.parcel.manifest);
        unpack(&errand.parcel, &site)?;
        self.forget_old()?;
        home.prepare(errand, &self.arguments(errand, &site))?;
        let mut keeper = Command::new(program);
        keeper.args([COMMAND, "keep", "--run", errand.run.as_str(), "--state-dir"]).arg(&self.state);
        keeper.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
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
        let keeper = fs::read_to_string(home.file("keeper")).ok();
        if let Some(process) = keeper.and_then(|mark| ProcessMark::parse(&mark)?.open()) {
            process.signal(rustix::process::Signal::TERM);
        }
        Ok(())
    }

    /// Returns the command's arguments. None of them is secret.
    fn arguments(&self, errand: &Errand, site: &Path) -> Vec<String> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut arguments = vec![
            errand.verb.word().to_owned(),
            "--manifest-json".to_owned(),
            "-".to_owned(),
            "--site".to_owned(),
            text(site),
            "--state-dir".to_owned(),
            text(&self.state),
            "-H".to_owned(),
            errand.node.to_string(),
            "--json".to_owned(),
        ];
        arguments.extend(errand.arguments.iter().cloned());
        arguments
    }

    /// Removes the oldest errands that have ended.
    fn forget_old(&self) -> Result<(), ErrandError> {
        let directory = self.state.join("errands");
        let Ok(entries) = fs::read_dir(&directory) else { return Ok(()) };
        let ended = |entry: fs::DirEntry| {
            let home = Home { directory: entry.path() };
            let at = home.file(END).metadata().and_then(|file| file.modified()).ok()?;
            Some((at, home.directory))
        };
        let mut ended: Vec<_> = entries.flatten().filter_map(ended).collect();
        ended.sort();
        let surplus = ended.len().saturating_sub(KEPT);
        for (_, path) in ended.into_iter().take(surplus) {
            fs::remove_dir_all(&path).map_err(failed("remove", &path))?;
        }
        Ok(())
    }
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
        self.write("arguments.json", &serde_json::to_vec(arguments).unwrap_or_default())?;
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

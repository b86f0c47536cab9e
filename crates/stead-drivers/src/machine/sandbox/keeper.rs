//! Keeps a sandbox's agent running while its bootstrap wants one.

use std::fs::{self, File};
use std::io;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use stead_model::node::{Bootstrap, path};
use stead_model::site::manifest::Mode;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::door::{Guest, Waiting};
use super::planted;
use super::process::ProcessMark;
use crate::disk::Disk;

/// How long an agent that ended at once stays away; doubles each time.
const SHORTEST: Duration = Duration::from_millis(100);
/// And no longer than this.
const LONGEST: Duration = Duration::from_secs(10);
/// An agent that ran this long is not one that fails at once.
const STEADY: Duration = Duration::from_secs(10);
/// A log is begun anew at this size; the one before is kept.
const ROTATE: u64 = 16 << 20;

/// The agent of one machine.
pub(super) struct Keeper {
    guest: Arc<Guest>,
    running: Option<Running>,
    /// When the next one is started, if one is wanted.
    start_at: Option<Instant>,
    pause: Duration,
}

struct Running {
    child: Child,
    since: Instant,
    _awaited: Waiting,
}

impl Keeper {
    pub(super) fn new(guest: Arc<Guest>) -> Self {
        Self { guest, running: None, start_at: None, pause: SHORTEST }
    }

    /// Looks at what the machine was told: a running agent ends, since it may be another one that is wanted.
    pub(super) fn look(&mut self) {
        if let Some(running) = &self.running {
            running.end();
        }
        self.pause = SHORTEST;
        self.start_at = self.wanted().map(|_| Instant::now());
    }

    /// Waits for the agent's end, or for the time to start one, and does what follows. Cancel safe.
    pub(super) async fn turn(&mut self) {
        match (&mut self.running, self.start_at) {
            (Some(running), _) => {
                let ended = running.child.wait().await;
                self.note_end(ended);
            }
            (None, Some(at)) => {
                tokio::time::sleep_until(at).await;
                self.start();
            }
            (None, None) => std::future::pending().await,
        }
    }

    fn wanted(&self) -> Option<Bootstrap> {
        let disk = Disk::at(&self.guest.home.root()).ok()?;
        let text = disk.text(path::BOOTSTRAP.as_ref()).ok()??;
        let bootstrap = Bootstrap::parse(text.as_bytes())
            .inspect_err(|error| self.guest.console.say(&format!("no agent: {}: {error}", path::BOOTSTRAP)))
            .ok()?;
        match bootstrap.mode {
            Mode::Pull | Mode::Hybrid => Some(bootstrap),
            Mode::Push => None,
        }
    }

    fn note_end(&mut self, ended: io::Result<ExitStatus>) {
        let Some(running) = self.running.take() else { return };
        if running.since.elapsed() >= STEADY {
            self.pause = SHORTEST;
        }
        let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
        self.guest.console.say(&format!("its agent ended: {how}"));
        // Somebody may have said already when the next one starts.
        if self.start_at.is_none() && self.wanted().is_some() {
            self.start_later();
        }
    }

    fn start_later(&mut self) {
        self.start_at = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(LONGEST);
    }

    fn start(&mut self) {
        self.start_at = None;
        let Some(bootstrap) = self.wanted() else { return };
        match self.spawn(bootstrap.binary_sha256.as_deref()) {
            Ok(running) => {
                self.guest.console.say("its agent runs");
                self.running = Some(running);
            }
            Err(error) => {
                self.guest.console.say(&format!("its agent cannot be started: {error}"));
                self.start_later();
            }
        }
    }

    fn spawn(&self, sha256: Option<&str>) -> io::Result<Running> {
        let program = planted::find(&self.guest.home, sha256)
            .ok_or_else(|| io::Error::other("there is no program in it"))?;
        let log = self.log()?;
        let mut command = Command::new(program);
        command.args(["agent", "run"]).env_clear().envs(self.guest.variables("root"));
        command.current_dir(self.guest.home.root()).process_group(0);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // Known as awaited before anybody can find it ended.
        let mut awaited = self.guest.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        let child = command.spawn()?;
        let pid = child.id().unwrap_or_default();
        awaited.insert(pid);
        let guard = Waiting { pid, awaited: Arc::clone(&self.guest.awaited) };
        Ok(Running { child, since: Instant::now(), _awaited: guard })
    }

    fn log(&self) -> io::Result<File> {
        let path = self.guest.home.file("agent.log");
        if fs::metadata(&path).is_ok_and(|log| log.len() >= ROTATE) {
            fs::rename(&path, path.with_extension("log.1"))?;
        }
        File::options().create(true).append(true).open(path)
    }
}

impl Running {
    fn end(&self) {
        let process = self.child.id().and_then(ProcessMark::of).and_then(|mark| mark.open());
        if let Some(process) = process {
            process.signal(Signal::TERM);
        }
    }
}

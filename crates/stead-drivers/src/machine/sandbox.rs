//! Sandboxes: machines that need nothing but this program.
//!
//! ```text
//!   SandboxDriver ── makes, starts, stops ──▶ ROOT_DIR/UUID/   machine.json  pid  console.log  sandbox.json  root/ …
//!        │ spawns `stead sandbox`, once per machine
//!        ▼
//!   supervisor ── SSH on 127.0.0.1:PORT ──▶ commands below root/, all of them its descendants
//! ```
//! A sandbox is a directory and a process. The process outlives the driver and takes what was started in it along when
//! it ends; nothing of it needs root or an installed program. Packages, services and accounts are its own.

mod control;
mod database;
mod door;
mod faults;
mod home;
mod keeper;
mod make;
mod names;
mod planted;
mod process;
mod supervisor;
mod tree;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stead_model::machine::{Boot, Machine, MachineExit, MachineId, MachineKind, MachineSpec, OwnerScope};
use stead_runner::machine::{
    Capabilities, Changed, ConsoleStream, Ensured, MachineDriver, MachineError, Stopped,
};

pub(crate) use database::{Sandbox, Service};
pub use faults::{Fault, Phase, Struck};
pub use names::Names;
pub(crate) use process::ProcessMark;
pub use supervisor::supervise;

use crate::transport::ssh::server::ServerKey;
use home::Home;

/// What a host says of its sandboxes.
#[derive(Clone, Debug)]
pub struct SandboxSettings {
    /// Where machines are kept.
    pub root_dir: PathBuf,
    /// The program that supervises: this one.
    pub program: PathBuf,
    /// Packages there are.
    pub packages: Names,
    /// Services there are.
    pub services: Names,
    /// How long a start takes.
    pub boot_delay: Duration,
    /// What goes wrong on purpose.
    pub faults: Vec<Fault>,
    /// The directory of the sandbox that this driver runs in, if it does: its machines end with it.
    pub parent: Option<PathBuf>,
}

impl SandboxSettings {
    /// Returns settings without limits, delays and faults.
    pub fn new(root_dir: impl Into<PathBuf>, program: impl Into<PathBuf>) -> Self {
        Self {
            root_dir: root_dir.into(),
            program: program.into(),
            packages: Names::Any,
            services: Names::Any,
            boot_delay: Duration::ZERO,
            faults: Vec::new(),
            parent: None,
        }
    }
}

/// Told of every step of making and removing, before the next one begins.
pub type StepWatch = Arc<dyn Fn(&str) + Send + Sync>;

/// Makes and keeps sandboxes.
#[derive(Clone)]
pub struct SandboxDriver {
    settings: Arc<SandboxSettings>,
    watch: StepWatch,
}

impl SandboxDriver {
    /// Returns the driver of these settings. Touches nothing yet.
    pub fn new(settings: SandboxSettings) -> Self {
        Self { settings: Arc::new(settings), watch: Arc::new(|_| {}) }
    }

    /// Returns this driver with somebody who is told of every step.
    pub fn watched(self, watch: StepWatch) -> Self {
        Self { watch, ..self }
    }

    fn home(&self, id: &MachineId) -> Result<Home, MachineError> {
        let fits = |c: char| c.is_ascii_hexdigit() || c == '-';
        if id.as_str().len() != 36 || !id.as_str().chars().all(fits) {
            return Err(MachineError::Invalid(format!(
                "`{}` is not a sandbox's id",
                id.as_str().escape_debug()
            )));
        }
        Ok(Home::new(&self.settings.root_dir, id.as_str()))
    }
}

/// Refuses what a sandbox has not.
fn check(spec: &MachineSpec) -> Result<(), MachineError> {
    let unsupported = |what: &str| Err(MachineError::Unsupported(format!("a sandbox has no {what}")));
    match &spec.boot {
        Some(Boot::Kernel { .. }) => return unsupported("kernel of its own to boot"),
        // Recorded, so that another one is another machine; there is nothing to boot.
        Some(Boot::Image(_) | Boot::Template(_)) | None => {}
    }
    if !spec.disks.is_empty() {
        return unsupported("disks");
    }
    if !spec.nics.is_empty() {
        return unsupported("network cards: it is reached on 127.0.0.1");
    }
    if spec.seed.is_some() {
        return unsupported("cloud-init: plant `files` instead");
    }
    if !names::is_account(&spec.user) {
        return Err(MachineError::Invalid(format!(
            "`{}` is not an account's name",
            spec.user.escape_debug()
        )));
    }
    if let Some(key) = &spec.host_key {
        ServerKey::parse(key.expose()).map_err(MachineError::Invalid)?;
    }
    spec.files.iter().try_for_each(|file| make::check_path(&file.path).map(drop))
}

#[async_trait::async_trait]
impl MachineDriver for SandboxDriver {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kinds: vec![MachineKind::Vm, MachineKind::Ct],
            hosts: true,
            console: true,
            ..Capabilities::default()
        }
    }

    async fn ensure_created(&self, spec: &MachineSpec) -> Result<Ensured, MachineError> {
        check(spec)?;
        control::ensure_created(&self.settings, &self.watch, spec).await
    }

    async fn start(&self, id: &MachineId) -> Result<Changed, MachineError> {
        control::start(&self.settings, &self.home(id)?).await
    }

    async fn stop(&self, id: &MachineId, grace: Duration) -> Result<Stopped, MachineError> {
        control::stop(&self.home(id)?, grace).await
    }

    async fn destroy(&self, id: &MachineId) -> Result<Changed, MachineError> {
        control::destroy(&self.settings, &self.watch, &self.home(id)?).await
    }

    async fn inspect(&self, id: &MachineId) -> Result<Option<Machine>, MachineError> {
        Ok(self.home(id)?.machine())
    }

    async fn list(&self, scope: &OwnerScope) -> Result<Vec<Machine>, MachineError> {
        home::list(&self.settings.root_dir, scope)
    }

    async fn console(&self, id: &MachineId, from: u64) -> Result<ConsoleStream, MachineError> {
        control::console(&self.home(id)?, from).await
    }

    async fn wait(&self, id: &MachineId) -> Result<MachineExit, MachineError> {
        control::wait(&self.home(id)?).await
    }
}

/// Strikes with the fault of the sandbox whose root this is, if it has one for `phase`, and counts it.
pub fn strike(root: &std::path::Path, phase: Phase) -> Option<Struck> {
    let directory = stead_runner::machine::sandbox_of(root)?;
    faults::strike(&Home::at(directory), phase)
}

/// Makes the sandbox whose root this is look again whether its node is to have an agent; no if it is no sandbox that
/// runs.
pub fn look_again(root: &std::path::Path) -> bool {
    signal(root, rustix::process::Signal::USR1)
}

/// Stops the sandbox whose root this is, from within; no if it is no sandbox that runs.
pub fn power_off(root: &std::path::Path) -> bool {
    signal(root, rustix::process::Signal::TERM)
}

fn signal(root: &std::path::Path, signal: rustix::process::Signal) -> bool {
    let directory = stead_runner::machine::sandbox_of(root);
    let process = directory.and_then(|directory| Home::at(directory).pid()?.0.open());
    process.inspect(|process| process.signal(signal)).is_some()
}

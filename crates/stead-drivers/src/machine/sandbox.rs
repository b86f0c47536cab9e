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
mod program;
mod quota;
mod supervisor;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stead_model::machine::{
    Boot, Machine, MachineExit, MachineId, MachineKind, MachineProgram, MachineSpec, OwnerScope,
};
use stead_runner::machine::{
    Capabilities, Changed, ConsoleStream, Ensured, MachineDriver, MachineError, Stopped,
};

pub(crate) use database::{Sandbox, Service};
pub use faults::{Fault, Phase, Struck};
pub(super) use make::check_path;
pub use names::Names;
pub(super) use planted::sha256 as program_sha256;
pub use supervisor::supervise;

use super::home::{Home as AnyHome, Kind, Record, Run, canonical};
use super::local::{self, Local, StepWatch};
use super::process::ProcessMark;
use super::{console, process};
use crate::machine::tree;
use crate::transport::ssh::server::ServerKey;
use home::Home;

/// The variable by which everything started in a sandbox is known: its directory.
const MARK: &str = "STEAD_SANDBOX";

/// What a host says of its sandboxes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxSettings {
    /// Where machines are kept.
    pub root_dir: PathBuf,
    /// Whether that stays when its last machine goes: somebody chose it.
    pub keeps_root_dir: bool,
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
            keeps_root_dir: false,
            program: program.into(),
            packages: Names::Any,
            services: Names::Any,
            boot_delay: Duration::ZERO,
            faults: Vec::new(),
            parent: None,
        }
    }
}

/// Makes and keeps sandboxes.
#[derive(Clone)]
pub struct SandboxDriver {
    settings: Arc<SandboxSettings>,
    watch: StepWatch,
}

impl SandboxDriver {
    /// Returns the driver of these settings. Touches nothing yet.
    pub fn new(mut settings: SandboxSettings) -> Self {
        settings.root_dir = canonical(&settings.root_dir);
        Self { settings: Arc::new(settings), watch: Arc::new(|_| {}) }
    }

    /// Returns this driver with somebody who is told of every step.
    pub fn watched(self, watch: StepWatch) -> Self {
        Self { watch, ..self }
    }

    fn home(&self, id: &MachineId) -> Result<Home, MachineError> {
        local::home_of(self, id).map(|home| Home::from(&home))
    }
}

/// Refuses what a sandbox has not.
fn check(spec: &MachineSpec) -> Result<(), MachineError> {
    let unsupported = |what: &str| Err(MachineError::Unsupported(format!("a sandbox has no {what}")));
    match &spec.boot {
        Some(Boot::Kernel { .. } | Boot::Firmware(_)) => return unsupported("kernel of its own to boot"),
        // Recorded, so that another one is another machine; there is nothing to boot.
        Some(Boot::Image(_) | Boot::Template(_)) | None => {}
    }
    if !spec.disks.is_empty() || !spec.drives.is_empty() {
        return unsupported("disks");
    }
    if spec.vsock {
        return unsupported("socket to this machine");
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
impl Local for SandboxDriver {
    fn kind(&self) -> &'static Kind {
        &home::KIND
    }

    fn root_dir(&self) -> &Path {
        &self.settings.root_dir
    }

    fn keeps_root_dir(&self) -> bool {
        self.settings.keeps_root_dir
    }

    fn watch(&self) -> &StepWatch {
        &self.watch
    }

    fn refresh(&self, home: &AnyHome, spec: &MachineSpec) -> Result<(), MachineError> {
        let sheet = control::sheet(&self.settings, spec.owner.name());
        Home::from(home).set_sheet(&sheet).map_err(|error| home.failed("make", &error))
    }

    async fn before_making(&self, home: &AnyHome, spec: &MachineSpec) -> Result<(), MachineError> {
        // What it may suffer is known before it can be half made by it.
        self.refresh(home, spec)?;
        (self.watch)("sheet");
        control::suffer(&Home::from(home), Phase::Create).await
    }

    fn make(&self, home: &AnyHome, spec: &MachineSpec) -> Result<(), MachineError> {
        make::make(&Home::from(home), spec, &self.settings.program, &*self.watch)?;
        self.refresh(home, spec)?;
        (self.watch)("settings");
        Ok(())
    }

    async fn before_removing(&self, home: &AnyHome) -> Result<(), MachineError> {
        let place = Home::from(home);
        // What the host says now counts, not what it said when the sandbox was last made or started.
        if let Some(before) = place.sheet() {
            let sheet = control::sheet(&self.settings, &before.node);
            place.set_sheet(&sheet).map_err(|error| home.failed("remove", &error))?;
        }
        control::suffer(&place, Phase::Destroy).await
    }

    fn release(&self, home: &AnyHome) -> Result<(), MachineError> {
        match quota::release(&Home::from(home)) {
            true => Ok(()),
            false => {
                let place = home.directory().display();
                Err(MachineError::failed(format!("the control group of the sandbox in {place} stays")))
            }
        }
    }

    fn run(&self, home: &AnyHome, record: &Record, mark: &ProcessMark) -> Run {
        home::run(home, record, mark)
    }

    fn exit(&self, home: &AnyHome) -> Option<MachineExit> {
        home.exit()
    }
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
        local::ensure_created(self, spec).await
    }

    async fn start(&self, id: &MachineId) -> Result<Changed, MachineError> {
        control::start(self, &self.home(id)?).await
    }

    async fn stop(&self, id: &MachineId, grace: Duration) -> Result<Stopped, MachineError> {
        control::stop(self, &self.home(id)?, grace).await
    }

    async fn destroy(&self, id: &MachineId) -> Result<Changed, MachineError> {
        local::destroy(self, &*self.home(id)?).await
    }

    async fn inspect(&self, id: &MachineId) -> Result<Option<Machine>, MachineError> {
        local::inspect(self, &*self.home(id)?)
    }

    async fn list(&self, scope: &OwnerScope) -> Result<Vec<Machine>, MachineError> {
        local::list(self, scope)
    }

    async fn console(&self, id: &MachineId, from: u64) -> Result<ConsoleStream, MachineError> {
        console::follow(self, &*self.home(id)?, from)
    }

    async fn last_words(&self, id: &MachineId) -> Vec<String> {
        let Ok(home) = self.home(id) else { return Vec::new() };
        let of_agent = super::home::last_lines(&home.file("agent.log"));
        home.last_lines().into_iter().chain(of_agent).collect()
    }

    async fn wait(&self, id: &MachineId) -> Result<MachineExit, MachineError> {
        local::wait(self, &*self.home(id)?).await
    }
}

/// Tries whether sandboxes that this process makes can be limited to a part of the processors. Leaves nothing.
///
/// # Errors
/// With why they cannot.
pub fn try_quota() -> Result<(), String> {
    quota::attempt()
}

/// Strikes with the fault of the sandbox whose root this is, if it has one for `phase`, and counts it.
pub fn strike(root: &Path, phase: Phase) -> Option<Struck> {
    let directory = stead_runner::machine::sandbox_of(root)?;
    faults::strike(&Home::at(directory), phase)
}

/// Returns the command of a program in the sandbox `id` that is kept in `root_dir`, with what programs of it find around
/// them. Whatever it starts ends with the sandbox.
///
/// # Errors
/// If there is no such sandbox.
pub fn command_in(
    root_dir: &Path,
    id: &MachineId,
    program: &MachineProgram,
) -> std::io::Result<tokio::process::Command> {
    let home = Home::at(canonical(root_dir).join(id.as_str()));
    let sheet = home.sheet().ok_or_else(|| std::io::Error::other(format!("there is no sandbox {id}")))?;
    let console = Arc::new(console::Console::new((*home).clone()));
    let guest = door::Guest { home, node: sheet.node, console, awaited: door::Awaited::default() };
    program::command(&guest, program)
}

/// Returns the root directory of the sandbox `id` that is kept in `root_dir`.
pub fn root_of(root_dir: &Path, id: &MachineId) -> PathBuf {
    Home::at(canonical(root_dir).join(id.as_str())).root()
}

/// Has this process asked to end when the sandbox whose root this is does, however that ends, if it is what started this one.
///
/// # Errors
/// If that cannot be had, or the sandbox has ended meanwhile.
pub fn end_with(root: &Path) -> std::io::Result<()> {
    let Some(directory) = stead_runner::machine::sandbox_of(root) else { return Ok(()) };
    let home = Home::at(directory);
    let is_child = || {
        let parent = rustix::process::getppid().and_then(|pid| u32::try_from(pid.as_raw_pid()).ok());
        parent
            .and_then(ProcessMark::of)
            .is_some_and(|parent| home.pid().is_some_and(|(own, _)| own == parent))
    };
    if !is_child() {
        return Ok(());
    }
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    if is_child() { Ok(()) } else { Err(std::io::Error::other("its machine has ended")) }
}

/// Makes the sandbox whose root this is look again whether its node is to have an agent; no if it is no sandbox that
/// runs.
pub fn look_again(root: &Path) -> bool {
    signal(root, rustix::process::Signal::USR1)
}

/// Stops the sandbox whose root this is, from within; no if it is no sandbox that runs.
pub fn power_off(root: &Path) -> bool {
    signal(root, rustix::process::Signal::TERM)
}

fn signal(root: &Path, signal: rustix::process::Signal) -> bool {
    let directory = stead_runner::machine::sandbox_of(root);
    let process = directory.and_then(|directory| Home::at(directory).pid()?.0.open());
    process.inspect(|process| process.signal(signal)).is_some()
}

//! Containers by an OCI runtime: machines with the kernel of this one, a root, a network and processes of their own.
//!
//! ```text
//!   OciDriver ──▶ ROOT/UUID/  machine.json  pid  console.log  config.json  upper/  volume/  runtime/ …
//!        │ spawns `stead container keep`, once per start
//!        ▼
//!   keeper ── overlay on the template, runc|crun|youki create, start ──▶ `stead container init` ─▶ sshd, agent
//!                └── veth ── bridge
//! ```
//! Mounts are in a namespace that goes with the keeper, cards in one that goes with the container: what is left to be
//! taken back is a control group, a bridge that nobody is on any more, and the directory.
//!
//! An ordinary account has containers too, by a user namespace: see `rootless`.

mod bundle;
mod cgroup;
mod control;
mod execute;
mod init;
mod keeper;
mod mounts;
mod network;
mod plant;
mod ports;
mod refusal;
mod rootless;
mod runtime;
mod storage;
mod template;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use sha2::{Digest as _, Sha256};
use stead_model::machine::{
    Boot, Machine, MachineExit, MachineId, MachineKind, MachineSpec, MachineState, OwnerScope, ShapeChange,
    SshDoor,
};
use stead_model::site::address::Cidr;
use stead_model::site::names::is_account;
use stead_runner::machine::{
    Capabilities, Changed, ConsoleStream, Ensured, MachineDriver, MachineError, Need, Stopped,
};

pub(super) use cgroup::end as end_groups;
pub use execute::execute;
pub(crate) use init::boot_id;
pub use init::{init, look_again, power_off, restart};
pub use keeper::keep;
pub use rootless::{Lack, apart, is_rootless, lacks, make, map, remove};
pub use runtime::RuntimeChoice;
pub use storage::StorageChoice;

use super::console;
use super::home::{Found, Home, Kind, Record, Run, canonical, guest_file};
use super::local::{self, Local, StepWatch};
use super::process::ProcessMark;
use super::sandbox::check_path;
use super::vm::network::{Networks, USER, plan};
use super::vm::run::{self, Virtual};
use crate::transport::ssh::server::ServerKey;
use keeper::Door;
use runtime::Runtime;
use storage::Storage;
use template::Template;

/// The variable by which everything started for a container is known: its directory.
pub(super) const MARK: &str = "STEAD_MACHINE";
/// The bridge of hosts that name none.
pub const BRIDGE: &str = "stead0";
/// The addresses of hosts that name none.
pub const SUBNET: &str = "10.44.0.0/16";
/// What is read of it.
const LARGEST_SETTINGS: u64 = 64 << 10;
/// Where a configured machine says at which port its SSH daemon listens.
const SSHD_SETTINGS: &str = "/etc/ssh/sshd_config.d/10-stead.conf";

static KIND: Kind = Kind { driver: "oci", noun: "container", kept: &[], mark: MARK };

/// What a host says of its containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OciSettings {
    /// Where machines are kept.
    pub root_dir: PathBuf,
    /// This program: it keeps containers and is the first process in them.
    pub program: PathBuf,
    /// What runs containers.
    pub runtime: RuntimeChoice,
    /// Where templates are looked for by name.
    pub image_dir: PathBuf,
    /// What roots are made of.
    pub storage: StorageChoice,
    /// The bridge that machines without cards are plugged into.
    pub bridge: String,
    /// Where levels have their networks.
    pub subnet: Cidr,
    /// Places of this machine that nobody inside sees, even if it is the template.
    pub hidden: Vec<PathBuf>,
}

impl OciSettings {
    /// Returns settings with defaults.
    pub fn new(root_dir: impl Into<PathBuf>, program: impl Into<PathBuf>) -> Self {
        let root_dir = root_dir.into();
        Self {
            image_dir: root_dir.join("images"),
            hidden: vec![root_dir.clone()],
            root_dir,
            program: program.into(),
            runtime: RuntimeChoice::default(),
            storage: StorageChoice::default(),
            bridge: BRIDGE.to_owned(),
            subnet: Cidr { address: core::net::Ipv4Addr::new(10, 44, 0, 0).into(), prefix: 16 },
        }
    }
}

/// Makes and keeps containers.
#[derive(Clone)]
pub struct OciDriver {
    settings: Arc<OciSettings>,
    watch: StepWatch,
    /// Whether a machine was to have limits that this account cannot give it.
    unlimited: Arc<AtomicBool>,
}

impl OciDriver {
    /// Returns the driver of these settings. Touches nothing yet.
    pub fn new(settings: OciSettings) -> Self {
        let root_dir = canonical(&settings.root_dir);
        let settings = Arc::new(OciSettings { root_dir, ..settings });
        Self { settings, watch: Arc::new(|_| {}), unlimited: Arc::default() }
    }

    /// Returns this driver with somebody who is told of every step.
    pub fn watched(self, watch: StepWatch) -> Self {
        Self { watch, ..self }
    }

    fn check(&self, spec: &MachineSpec) -> Result<(), MachineError> {
        let unsupported = |what: &str| Err(MachineError::Unsupported(format!("a container has no {what}")));
        if spec.kind != MachineKind::Ct {
            return Err(MachineError::Unsupported("oci runs containers, not virtual machines".to_owned()));
        }
        if !spec.disks.is_empty() || !spec.drives.is_empty() {
            return unsupported("disks");
        }
        if spec.vsock {
            return unsupported("socket to this machine");
        }
        for (inside, here) in &spec.mounts {
            check_path(inside)?;
            if !Path::new(here).is_absolute() {
                return Err(MachineError::Invalid(format!("`{}` is not absolute", here.escape_debug())));
            }
        }
        if spec.seed.is_some() {
            return unsupported("cloud-init: plant `files` instead");
        }
        if spec.cpus == Some(0) || spec.memory_mb == Some(0) {
            return Err(MachineError::Invalid("`cpus` and `memory_mb` are at least 1".to_owned()));
        }
        if !is_account(&spec.user) {
            return Err(MachineError::Invalid(format!(
                "`{}` is not an account's name",
                spec.user.escape_debug()
            )));
        }
        let breaks = |c: char| c == ':' || c.is_control();
        if spec.root_password.as_ref().is_some_and(|hash| hash.expose().contains(breaks)) {
            return Err(MachineError::Invalid("the hash of root's password is none".to_owned()));
        }
        if let Some(key) = &spec.host_key {
            ServerKey::parse(key.expose()).map_err(MachineError::Invalid)?;
        }
        let home = Home::new(&KIND, &self.settings.root_dir, &spec.owner.uuid());
        let is_rootless = is_rootless();
        network::check(&plan(&home, spec, &networks(&self.settings.bridge, is_rootless))?, is_rootless)?;
        if is_rootless && spec.hosts {
            let why = "only root's containers can make machines in them: run stead as root";
            return Err(MachineError::Unsupported(why.to_owned()));
        }
        self.template(spec.boot.as_ref())?;
        spec.files.iter().try_for_each(|file| check_path(&file.path).map(drop))
    }

    /// Returns what a machine is made from.
    fn template(&self, boot: Option<&Boot>) -> Result<Template, MachineError> {
        match Template::of(boot, &self.settings.image_dir)? {
            Template::Host if is_rootless() => Err(MachineError::Unsupported(
                "the template `host` is for root alone, who can read all of this machine: name a tarball or a \
                 directory, or run stead as root"
                    .to_owned(),
            )),
            template @ (Template::Host | Template::Directory(_) | Template::Tarball(_)) => Ok(template),
        }
    }

    /// Returns the places that nobody in a machine of this one may see: its own, and those around it.
    fn hidden(&self) -> Vec<PathBuf> {
        let mut hidden = self.settings.hidden.clone();
        hidden.extend(keeper::hidden_above());
        hidden.sort();
        hidden.dedup();
        hidden
    }

    /// Removes unpacked templates that no machine stands on any more. Blocks.
    fn sweep(&self) {
        let root_dir = &self.settings.root_dir;
        let remove = |tree: &Path| {
            if is_rootless() {
                rootless::remove_apart(&self.settings.program, tree, &[tree.to_owned()])
            } else {
                super::home::remove(tree)
            }
        };
        template::sweep(root_dir, remove, || {
            let homes = fs::read_dir(root_dir).into_iter().flatten().flatten();
            let homes = homes.map(|entry| Home::at(&KIND, entry.path()));
            let used: Vec<Home> = homes.filter(|home| matches!(home.find(), Found::Ours(_))).collect();
            if used.iter().any(|home| Storage::of(home).is_none()) {
                // One is being made, and may be about to stand on any of them.
                let all = fs::read_dir(root_dir.join(".templates")).into_iter().flatten().flatten();
                return all.map(|entry| entry.path()).collect();
            }
            let lower = |home: &Home| Storage::of(home)?.lower().map(Path::to_owned);
            used.iter().filter_map(lower).collect::<BTreeSet<PathBuf>>()
        });
    }
}

/// Tries whether this process may have mounts and networks of its own. Leaves nothing.
///
/// # Errors
/// With what it may not.
pub fn try_namespaces() -> Result<(), String> {
    mounts::apart(|| ()).map_err(|error| error.to_string())?;
    let held = bundle::held();
    let missing: Vec<&str> = [("CAP_SYS_ADMIN", 21), ("CAP_NET_ADMIN", 12)]
        .into_iter()
        .filter(|(_, bit)| held & (1 << bit) == 0)
        .map(|(name, _)| name)
        .collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("this process has no {}", missing.join(", no "))) }
}

/// Returns what containers are plugged into: bridges alone, and their keepers pass ports on. Those of an ordinary account
/// have a network of their own each.
fn networks(bridge: &str, is_rootless: bool) -> Networks<'_> {
    let default = Some(if is_rootless { USER } else { bridge });
    Networks { default, has_user: is_rootless, passes_ports: true, ..Networks::default() }
}

/// Mounts the root of a machine and puts into it what it has of its own. Blocks.
fn make_files(
    home: &Home,
    spec: &MachineSpec,
    storage: &Storage,
    step: &(dyn Fn(&str) + Sync),
) -> Result<(), MachineError> {
    mounts::apart(|| {
        let root = storage.mount(home).map_err(|error| home.failed("make", &error))?;
        plant::plant(home, spec, &root, step)
    })?
}

/// Returns the runtime's name for a machine.
fn container_id(home: &Home) -> String {
    group_name(home)
}

/// Returns the name of a machine's control group. Machines of one owner may be kept at several places.
pub(super) fn group_name(home: &Home) -> String {
    let directory = home.directory();
    let uuid = directory.file_name().unwrap_or_default().to_string_lossy();
    let digest = Sha256::digest(directory.as_os_str().as_encoded_bytes());
    let place: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    format!("stead-{uuid}-{place}")
}

#[async_trait::async_trait]
impl Local for OciDriver {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn root_dir(&self) -> &Path {
        &self.settings.root_dir
    }

    fn watch(&self) -> &StepWatch {
        &self.watch
    }

    fn refresh(&self, home: &Home, spec: &MachineSpec) -> Result<(), MachineError> {
        let Found::Ours(mut record) = home.find() else { return Ok(()) };
        if record.spec.hosts || !spec.hosts {
            return Ok(());
        }
        if run::live(home).is_some() {
            let (old, new) = (false.into(), true.into());
            let changes = vec![ShapeChange { field: "hosts".to_owned(), old, new }];
            return Err(MachineError::Conflict { machine: format!("the container {}", spec.owner), changes });
        }
        record.spec.hosts = true;
        home.set_record(&record).map_err(|error| home.failed("make", &error))
    }

    fn make(&self, home: &Home, spec: &MachineSpec) -> Result<(), MachineError> {
        let settings = &self.settings;
        let watch = &self.watch;
        if is_rootless() {
            return rootless::make_apart(settings, &self.hidden(), home, spec, &|step| watch(step));
        }
        let tree = self.template(spec.boot.as_ref())?.tree(&settings.root_dir, false)?;
        watch("template");
        let storage = Storage::make(home, &tree, settings.storage, false, &self.hidden())?;
        watch("storage");
        make_files(home, spec, &storage, &|step| watch(step))
    }

    /// What a machine of an ordinary account has written may belong to numbers that are nobody's here.
    fn wipe(&self, home: &Home) -> std::io::Result<()> {
        match home.wipe() {
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied && is_rootless() => {
                let trees = storage::TREES.map(|name| home.file(name));
                rootless::remove_apart(&self.settings.program, home.directory(), &trees)?;
                home.wipe()
            }
            wiped => wiped,
        }
    }

    fn release(&self, home: &Home) -> Result<(), MachineError> {
        let id = container_id(home);
        if is_rootless() {
            // Everything else of it went with its last process.
            return super::home::remove(&home.file(runtime::STATE))
                .map_err(|error| home.failed("clear", &error));
        }
        let deleted = Runtime::of(home, &id).map_or(Ok(()), |runtime| runtime.delete());
        if !cgroup::remove(&id) {
            deleted?;
            return Err(MachineError::failed(format!("processes of the container {id} cannot be ended")));
        }
        network::unplug(home)
    }

    fn run(&self, home: &Home, _record: &Record, mark: &ProcessMark) -> Run {
        let Some(door) = Door::of(home, mark) else { return Run::default() };
        let state = match run::is_stopping(home) || door.is_closing() {
            true => MachineState::Stopping,
            false => MachineState::Running,
        };
        let first = door.addresses.first().cloned();
        let ssh = first.zip(plant::host_key_of(home)).map(|(host, host_key)| SshDoor {
            host,
            port: door.port.unwrap_or_else(|| ssh_port(door.init)),
            host_key,
        });
        Run { state, addresses: door.addresses, ssh }
    }

    fn exit(&self, home: &Home) -> Option<MachineExit> {
        home.exit()
    }
}

/// Returns the port that the SSH daemon of a container was told to listen at.
fn ssh_port(init: u32) -> u16 {
    let root = PathBuf::from(format!("/proc/{init}/root"));
    let settings = guest_file(&root, SSHD_SETTINGS.trim_start_matches('/'), LARGEST_SETTINGS);
    let port = settings
        .as_deref()
        .map(String::from_utf8_lossy)
        .and_then(|text| text.lines().find_map(|line| line.strip_prefix("Port ")?.trim().parse().ok()));
    port.unwrap_or(22)
}

#[async_trait::async_trait]
impl Virtual for OciDriver {
    async fn ask(&self, home: &Home) {
        tell(home, "TERM").await;
    }

    async fn quit(&self, home: &Home) {
        tell(home, "KILL").await;
    }

    const QUIT_SIGNAL: Option<Signal> = Some(Signal::KILL);
}

/// Sends a signal to the first process of a container; one that is gone needs none.
async fn tell(home: &Home, signal: &'static str) {
    let home = home.clone();
    let told = local::blocking(move || {
        Runtime::of(&home, &container_id(&home)).map_or(Ok(()), |runtime| runtime.kill(signal))
    });
    told.await.ok();
}

#[async_trait::async_trait]
impl MachineDriver for OciDriver {
    fn capabilities(&self) -> Capabilities {
        let runtime = match &self.settings.runtime {
            RuntimeChoice::Auto => Need::AnyProgram(runtime::KNOWN.map(str::to_owned).to_vec()),
            RuntimeChoice::Named(name) => Need::Program(name.clone()),
        };
        let is_rootless = is_rootless();
        let mut needs =
            if is_rootless { vec![Need::UserNamespaces] } else { vec![Need::Root, Need::Namespaces] };
        needs.extend([runtime, Need::Program("ip".to_owned())]);
        Capabilities {
            kinds: vec![MachineKind::Ct],
            hosts: !is_rootless,
            console: true,
            networks: true,
            needs,
            ..Capabilities::default()
        }
    }

    fn check_boot(&self, boot: Option<&Boot>) -> Result<(), MachineError> {
        self.template(boot).map(drop)
    }

    fn remark(&self) -> Option<String> {
        let told = "containers of an ordinary account have no limits: their `cpus` and `memory_mb` are those of this \
                    machine (root's containers have them)";
        self.unlimited.load(Ordering::Relaxed).then(|| told.to_owned())
    }

    async fn ensure_created(&self, spec: &MachineSpec) -> Result<Ensured, MachineError> {
        self.check(spec)?;
        if is_rootless() {
            rootless::refuse(&rootless::absent())?;
            let is_limited = spec.cpus.is_some() || spec.cpu_milli.is_some() || spec.memory_mb.is_some();
            self.unlimited.fetch_or(is_limited, Ordering::Relaxed);
        }
        local::ensure_created(self, spec).await
    }

    async fn start(&self, id: &MachineId) -> Result<Changed, MachineError> {
        control::start(self, &local::home_of(self, id)?).await
    }

    async fn stop(&self, id: &MachineId, grace: Duration) -> Result<Stopped, MachineError> {
        run::stop(self, &local::home_of(self, id)?, grace).await
    }

    async fn destroy(&self, id: &MachineId) -> Result<Changed, MachineError> {
        let changed = local::destroy(self, &local::home_of(self, id)?).await?;
        let driver = self.clone();
        local::blocking(move || {
            driver.sweep();
            Ok(changed)
        })
        .await
    }

    async fn inspect(&self, id: &MachineId) -> Result<Option<Machine>, MachineError> {
        local::inspect(self, &local::home_of(self, id)?)
    }

    async fn list(&self, scope: &OwnerScope) -> Result<Vec<Machine>, MachineError> {
        local::list(self, scope)
    }

    async fn console(&self, id: &MachineId, from: u64) -> Result<ConsoleStream, MachineError> {
        console::follow(self, &local::home_of(self, id)?, from)
    }

    async fn wait(&self, id: &MachineId) -> Result<MachineExit, MachineError> {
        local::wait(self, &local::home_of(self, id)?).await
    }
}

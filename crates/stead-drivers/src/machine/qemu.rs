//! Virtual machines by QEMU: one process per machine, driven over its machine protocol.
//!
//! ```text
//!   QemuDriver ──▶ ROOT/UUID/  machine.json  pid  console.log  vm.log  events.log  disk.qcow2  seed.iso  qmp.sock
//!        │ spawns qemu-system-*, once per start; talks to qmp.sock
//!        ▼
//!   QEMU ── serial ─▶ its console     ── events ─▶ events.log     ── user network ─▶ 127.0.0.1:PORT leads to SSH
//! ```
//! The process outlives the driver. Why it ended is in the events that it writes itself.

mod accel;
mod argv;
mod control;
mod events;
mod qmp;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stead_model::machine::{
    Boot, Machine, MachineExit, MachineId, MachineKind, MachineSpec, Owner, OwnerScope,
};
use stead_model::site::address::Cidr;
use stead_runner::machine::{
    Capabilities, Changed, ConsoleStream, Ensured, MachineDriver, MachineError, Need, Stopped,
};
use tokio::sync::OnceCell;

pub use accel::{Accel, Acceleration};
pub(crate) use accel::{KVM, kvm_works, open_kvm};
pub use argv::Emulated;

use super::home::{Home, Kind, Record, Run, canonical};
use super::local::{self, Local, StepWatch};
use super::process::ProcessMark;
use super::vm::network::{self, Networks};
use super::vm::run::{self, Virtual};
use super::vm::{self, BootSettings, image};
use super::{console, qemu::argv::DISK};

static KIND: Kind = Kind { driver: "qemu", noun: "virtual machine", kept: &[], mark: "STEAD_MACHINE" };

/// What a host says of its QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QemuSettings {
    /// Where machines are kept.
    pub root_dir: PathBuf,
    /// This program: a process of it keeps each machine's console.
    pub program: PathBuf,
    /// QEMU.
    pub binary: PathBuf,
    /// The kind of machine.
    pub machine: Emulated,
    /// How guests are run.
    pub accel: Accel,
    /// What they boot.
    pub boot: BootSettings,
    /// The bridge that machines without cards are plugged into; none: QEMU's own network.
    pub bridge: Option<String>,
    /// Addresses of cards on bridges; none: the network gives them.
    pub subnet: Option<Cidr>,
    /// What lets the processor run guests.
    pub kvm_device: PathBuf,
}

impl QemuSettings {
    /// Returns settings that leave everything to this machine.
    pub fn new(root_dir: impl Into<PathBuf>, program: impl Into<PathBuf>) -> Self {
        let arch = if cfg!(target_arch = "aarch64") { "aarch64" } else { "x86_64" };
        Self {
            root_dir: root_dir.into(),
            program: program.into(),
            binary: PathBuf::from(format!("qemu-system-{arch}")),
            machine: Emulated::default(),
            accel: Accel::default(),
            boot: BootSettings::default(),
            bridge: None,
            subnet: None,
            kvm_device: PathBuf::from(KVM),
        }
    }

    fn networks(&self) -> Networks<'_> {
        let default = self.bridge.as_deref().unwrap_or(network::USER);
        Networks { default: Some(default), has_user: true, passes_ports: false, subnet: self.subnet }
    }
}

/// Makes and keeps virtual machines by QEMU.
#[derive(Clone)]
pub struct QemuDriver {
    settings: Arc<QemuSettings>,
    acceleration: Arc<OnceCell<Acceleration>>,
    watch: StepWatch,
}

impl QemuDriver {
    /// Returns the driver of these settings. Touches nothing yet.
    pub fn new(mut settings: QemuSettings) -> Self {
        settings.root_dir = canonical(&settings.root_dir);
        Self { settings: Arc::new(settings), acceleration: Arc::default(), watch: Arc::new(|_| {}) }
    }

    /// Returns this driver with somebody who is told of every step.
    pub fn watched(self, watch: StepWatch) -> Self {
        Self { watch, ..self }
    }

    /// Returns how guests are run here. Found out once: a guest is booted to see.
    pub async fn acceleration(&self) -> &Acceleration {
        let find_out = async {
            let QemuSettings { accel, binary, kvm_device, .. } = &*self.settings;
            accel::probe(*accel, binary, kvm_device).await
        };
        self.acceleration.get_or_init(|| find_out).await
    }

    fn check(&self, spec: &MachineSpec) -> Result<(), MachineError> {
        if spec.kind != MachineKind::Vm {
            return Err(MachineError::Unsupported("QEMU runs virtual machines, not containers".to_owned()));
        }
        vm::check(spec)?;
        self.settings.boot.resolve(spec.boot.as_ref())?;
        let home = Home::new(&KIND, &self.settings.root_dir, &spec.owner.uuid());
        network::plan(&home, spec, &self.settings.networks()).map(drop)
    }
}

#[async_trait::async_trait]
impl Local for QemuDriver {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn root_dir(&self) -> &Path {
        &self.settings.root_dir
    }

    fn watch(&self) -> &StepWatch {
        &self.watch
    }

    fn make(&self, home: &Home, spec: &MachineSpec) -> Result<(), MachineError> {
        let booted = self.settings.boot.resolve(spec.boot.as_ref())?;
        let mut cards = network::plan(home, spec, &self.settings.networks())?;
        network::settle(home, &mut cards, self.settings.subnet)?;
        (self.watch)("cards");
        match (&booted.image, spec.disk_gb) {
            (Some(image), size) => image::overlay(image, &home.file(DISK), size)?,
            (None, Some(size)) => image::empty(&home.file(DISK), size)?,
            (None, None) => {}
        }
        (self.watch)("disk");
        for disk in &spec.disks {
            image::empty(&home.file(&argv::extra_disk(&disk.name)), disk.size_gb)?;
        }
        image::layers(spec, home)?;
        (self.watch)("disks");
        vm::plant(home, spec, &cards)?;
        (self.watch)("seed");
        Ok(())
    }

    fn release(&self, home: &Home) -> Result<(), MachineError> {
        network::remove_taps(home)
    }

    fn run(&self, home: &Home, _record: &Record, mark: &ProcessMark) -> Run {
        run::seen(home, mark, &network::cards(home))
    }

    fn exit(&self, home: &Home) -> Option<MachineExit> {
        home.exit().or_else(|| events::exit(home))
    }

    async fn tend(&self, home: &Home) {
        console::mend(home, &self.settings.program);
    }
}

#[async_trait::async_trait]
impl Virtual for QemuDriver {
    async fn ask(&self, home: &Home) {
        control::order(home, "system_powerdown").await;
    }

    async fn quit(&self, home: &Home) {
        control::order(home, "quit").await;
    }
}

#[async_trait::async_trait]
impl MachineDriver for QemuDriver {
    fn capabilities(&self) -> Capabilities {
        let mut needs = vec![
            Need::Program(self.settings.binary.display().to_string()),
            Need::Program("qemu-img".to_owned()),
        ];
        if self.settings.accel == Accel::Kvm {
            needs.push(Need::Kvm(self.settings.kvm_device.clone()));
        }
        if self.settings.bridge.is_some() {
            needs.extend([Need::Program("ip".to_owned()), Need::Root]);
        }
        Capabilities {
            kinds: vec![MachineKind::Vm],
            hosts: true,
            console: true,
            seed: true,
            kernel_boot: true,
            disk_resize: true,
            networks: true,
            needs,
        }
    }

    fn check_boot(&self, boot: Option<&Boot>) -> Result<(), MachineError> {
        self.settings.boot.resolve(boot).map(drop)
    }

    /// A device that is there may still hang or abort: where nothing else will do, a guest is booted to see.
    async fn missing(&self, _boots: &[Boot], _numbers: &[(Owner, u32)]) -> Vec<MachineError> {
        let QemuSettings { accel, binary, kvm_device, .. } = &*self.settings;
        // Those who look for it without a guest say that it is not there.
        if *accel != Accel::Kvm || open_kvm(kvm_device).is_err() {
            return Vec::new();
        }
        let why = kvm_works(binary, kvm_device).await.err();
        why.map(|why| MachineError::failed(format!("`accel: kvm`: {why}"))).into_iter().collect()
    }

    fn remark(&self) -> Option<String> {
        let why = self.acceleration.get()?.why.as_ref()?;
        Some(format!("machines run emulated (tcg), slower: {why}"))
    }

    async fn ensure_created(&self, spec: &MachineSpec) -> Result<Ensured, MachineError> {
        self.check(spec)?;
        local::ensure_created(self, spec).await
    }

    async fn start(&self, id: &MachineId) -> Result<Changed, MachineError> {
        control::start(self, &local::home_of(self, id)?).await
    }

    async fn ssh_moved(&self, id: &MachineId, port: u16) -> Result<Changed, MachineError> {
        control::ssh_moved(&local::home_of(self, id)?, port).await
    }

    async fn stop(&self, id: &MachineId, grace: Duration) -> Result<Stopped, MachineError> {
        run::stop(self, &local::home_of(self, id)?, grace).await
    }

    async fn destroy(&self, id: &MachineId) -> Result<Changed, MachineError> {
        local::destroy(self, &local::home_of(self, id)?).await
    }

    async fn inspect(&self, id: &MachineId) -> Result<Option<Machine>, MachineError> {
        let home = local::home_of(self, id)?;
        self.tend(&home).await;
        local::inspect(self, &home)
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

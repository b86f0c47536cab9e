//! Virtual machines by Cloud Hypervisor: one process per machine, driven over HTTP on its socket.
//!
//! ```text
//!   CloudHypervisorDriver ──▶ ROOT/UUID/  machine.json  pid  console.log  vm.log  events.json  disk.raw  seed.iso
//!        │ spawns cloud-hypervisor, once per start; PUT vm.create, vm.boot on api.sock
//!        ▼
//!   cloud-hypervisor ── serial ─▶ its console     ── event monitor ─▶ events.json     ── tap ─▶ bridge
//! ```
//! The process outlives the driver, and ends with the guest's power-off.

mod api;
mod config;
mod control;
mod events;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stead_model::machine::{Boot, Machine, MachineExit, MachineId, MachineKind, MachineSpec, OwnerScope};
use stead_model::site::address::Cidr;
use stead_runner::machine::{
    Capabilities, Changed, ConsoleStream, Ensured, MachineDriver, MachineError, Need, Stopped,
};

use super::console;
use super::home::{Home, Kind, Record, Run, canonical};
use super::local::{self, Local, StepWatch};
use super::process::ProcessMark;
use super::qemu::KVM;
use super::vm::network::{self, Networks};
use super::vm::run::{self, Virtual};
use super::vm::{self, BootSettings, image};
use config::{DISK, extra_disk};

static KIND: Kind =
    Kind { driver: "cloud-hypervisor", noun: "virtual machine", kept: &[], mark: "STEAD_MACHINE" };

/// What a host says of its Cloud Hypervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudHypervisorSettings {
    /// Where machines are kept.
    pub root_dir: PathBuf,
    /// This program: a process of it keeps each machine's console.
    pub program: PathBuf,
    /// Cloud Hypervisor.
    pub binary: PathBuf,
    /// What machines boot.
    pub boot: BootSettings,
    /// What boots an image that has no kernel beside it.
    pub firmware: Option<String>,
    /// The bridge that machines without cards are plugged into; none: they have no card.
    pub bridge: Option<String>,
    /// Addresses of cards; none: the network gives them.
    pub subnet: Option<Cidr>,
}

impl CloudHypervisorSettings {
    /// Returns settings that leave everything to this machine.
    pub fn new(root_dir: impl Into<PathBuf>, program: impl Into<PathBuf>) -> Self {
        Self {
            root_dir: root_dir.into(),
            program: program.into(),
            binary: PathBuf::from("cloud-hypervisor"),
            boot: BootSettings::default(),
            firmware: None,
            bridge: None,
            subnet: None,
        }
    }

    fn networks(&self) -> Networks<'_> {
        Networks { default: self.bridge.as_deref(), subnet: self.subnet, ..Networks::default() }
    }
}

/// Makes and keeps virtual machines by Cloud Hypervisor.
#[derive(Clone)]
pub struct CloudHypervisorDriver {
    settings: Arc<CloudHypervisorSettings>,
    watch: StepWatch,
}

impl CloudHypervisorDriver {
    /// Returns the driver of these settings. Touches nothing yet.
    pub fn new(mut settings: CloudHypervisorSettings) -> Self {
        settings.root_dir = canonical(&settings.root_dir);
        Self { settings: Arc::new(settings), watch: Arc::new(|_| {}) }
    }

    /// Returns this driver with somebody who is told of every step.
    pub fn watched(self, watch: StepWatch) -> Self {
        Self { watch, ..self }
    }

    fn check(&self, spec: &MachineSpec) -> Result<(), MachineError> {
        if spec.kind != MachineKind::Vm {
            let why = "Cloud Hypervisor runs virtual machines, not containers";
            return Err(MachineError::Unsupported(why.to_owned()));
        }
        vm::check(spec)?;
        self.check_boot(spec.boot.as_ref())?;
        let home = Home::new(&KIND, &self.settings.root_dir, &spec.owner.uuid());
        network::plan(&home, spec, &self.settings.networks()).map(drop)
    }
}

#[async_trait::async_trait]
impl Local for CloudHypervisorDriver {
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
            (Some(image), size) => image::raw_copy(image, &home.file(DISK), size)?,
            (None, Some(size)) => image::raw_empty(&home.file(DISK), size)?,
            (None, None) => {}
        }
        (self.watch)("disk");
        for disk in &spec.disks {
            image::raw_empty(&home.file(&extra_disk(&disk.name)), disk.size_gb)?;
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
impl Virtual for CloudHypervisorDriver {
    async fn ask(&self, home: &Home) {
        // A lost answer is one of a process that ends; another is given again.
        api::put(home, "vm.power-button", None).await.ok();
    }

    async fn quit(&self, home: &Home) {
        for path in ["vm.shutdown", "vmm.shutdown"] {
            api::put(home, path, None).await.ok();
        }
    }
}

#[async_trait::async_trait]
impl MachineDriver for CloudHypervisorDriver {
    fn capabilities(&self) -> Capabilities {
        let mut needs = vec![
            Need::Program(self.settings.binary.display().to_string()),
            Need::Program("qemu-img".to_owned()),
            Need::Kvm(PathBuf::from(KVM)),
        ];
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
        let booted = self.settings.boot.resolve(boot)?;
        if booted.kernel.is_none() && booted.firmware.is_none() && self.settings.firmware.is_none() {
            let why = "an image needs the host's `firmware` or `kernel` to boot it";
            return Err(MachineError::Invalid(why.to_owned()));
        }
        Ok(())
    }

    async fn ensure_created(&self, spec: &MachineSpec) -> Result<Ensured, MachineError> {
        self.check(spec)?;
        local::ensure_created(self, spec).await
    }

    async fn start(&self, id: &MachineId) -> Result<Changed, MachineError> {
        control::start(self, &local::home_of(self, id)?).await
    }

    async fn ssh_moved(&self, id: &MachineId, port: u16) -> Result<Changed, MachineError> {
        run::ssh_moved(&local::home_of(self, id)?, port).await
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Section 10: the guest goes first, then the program.
    #[tokio::test]
    async fn a_program_that_is_to_quit_ends_its_guest_first() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(&KIND, dir.path().to_owned());
        let listener = tokio::net::UnixListener::bind(dir.path().join(api::SOCKET)).unwrap();
        let heard = async {
            let mut lines = Vec::new();
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut said = Vec::new();
                while !said.ends_with(b"\r\n\r\n") {
                    said.push(stream.read_u8().await.unwrap());
                }
                lines.extend(String::from_utf8(said).unwrap().lines().next().map(str::to_owned));
                stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
            }
            lines
        };
        let driver = CloudHypervisorDriver::new(CloudHypervisorSettings::new(dir.path(), "stead"));
        let ((), lines) = tokio::join!(driver.quit(&home), heard);
        let put = |path: &str| format!("PUT /api/v1/{path} HTTP/1.1");
        assert_eq!(lines, [put("vm.shutdown"), put("vmm.shutdown")]);
    }
}

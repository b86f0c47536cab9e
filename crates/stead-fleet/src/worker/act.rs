//! What a worker does to one instance. Each act leaves a state from which the next agent goes on.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use stead_drivers::config::{ApplyOptions, apply};
use stead_drivers::machine::{FIRST_BOOT, StepWatch, fence, sandbox};
use stead_model::fleet::vm::{Driver, Retain, Volume};
use stead_model::fleet::{InstanceKey, VmSpec};
use stead_model::machine::{Machine, MachineId, PlantedFile};
use stead_model::plan::Digest;
use stead_model::site::ResolvedSpec;
use stead_model::{NodeName, WorkerName};
use stead_runner::machine::{MachineDriver, MachineError};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;

use super::drivers::{Machines, node_name};
use super::files::{Cause, Failure, Files, Record};
use super::logbook::Logbook;
use super::machine::{Asked, Bits, make_volumes, remove_volume};
use super::observe::start_of;
use super::{Settings, WorkerError, clock};
use crate::events::Ev;

/// How much longer than its grace a stop may take until it counts as hung.
const STOP_SLACK: Duration = Duration::from_secs(60);

/// Everything that acts need.
pub(super) struct Hands {
    pub(super) files: Files,
    pub(super) machines: Machines,
    pub(super) bits: Bits,
    pub(super) logbook: Logbook,
    pub(super) watch: StepWatch,
}

/// An instance and what it is to run.
#[derive(Clone, Debug)]
pub(super) struct Order {
    pub(super) key: InstanceKey,
    pub(super) spec: Arc<VmSpec>,
    pub(super) vm_hash: Digest,
    pub(super) generation: u64,
}

/// Why an act did not do what it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(super) struct ActError {
    /// Something that is not ours is in the way.
    pub(super) is_foreign: bool,
    pub(super) message: String,
}

impl From<io::Error> for ActError {
    fn from(error: io::Error) -> Self {
        Self { is_foreign: false, message: error.to_string() }
    }
}

impl From<MachineError> for ActError {
    fn from(error: MachineError) -> Self {
        let is_foreign = matches!(error, MachineError::Foreign { .. });
        Self { is_foreign, message: error.to_string() }
    }
}

impl Hands {
    pub(super) fn step(&self, step: &str) {
        (self.watch)(step);
    }

    /// Makes the instance unless it is there, and starts it unless it runs. What goes wrong is in its record.
    pub(super) async fn start(&self, order: &Order, why: String) -> Result<(), ActError> {
        let actual = self.machines.actual(order.spec.runtime.driver);
        let known = self.files.record(&order.key);
        if known.is_none() {
            self.refuse_foreign(&order.key, actual).await?;
        }
        let mut record = Record::new(&order.key, &order.spec, order.vm_hash, actual);
        record.generation = order.generation;
        record.attempts =
            known.filter(|known| known.vm_hash == order.vm_hash).map_or(0, |known| known.attempts);
        self.files.set_record(&record)?;
        self.step("start: record");
        match self.bring_up(order, &mut record).await {
            Ok(machine) => {
                record.pid = machine.pid;
                record.pid_start = machine.pid.and_then(start_of);
                record.since = clock::now();
                self.tell(record, Cause { ev: Ev::Started, reason: why })?;
                self.step("start: running");
                Ok(())
            }
            Err(error) => self.give_up(order, record, error).await,
        }
    }

    /// Refuses to act where somebody else's machine stands.
    async fn refuse_foreign(&self, key: &InstanceKey, driver: Driver) -> Result<(), ActError> {
        let id = self.machines.id(key)?;
        if self.machines.get(driver)?.inspect(&id).await?.is_none() {
            return Ok(());
        }
        let message = format!(
            "the driver `{}` has a machine {id} that no record of this worker knows; remove it by hand",
            driver.word()
        );
        Err(ActError { is_foreign: true, message })
    }

    async fn bring_up(&self, order: &Order, record: &mut Record) -> Result<Machine, MachineError> {
        let driver = self.machines.get(record.driver)?;
        let id = self.machines.id(&order.key)?;
        let volumes = self.files.volumes(&order.key);
        let (place, vm, kind) = (volumes.clone(), Arc::clone(&order.spec), record.driver);
        let made = tokio::task::spawn_blocking(move || make_volumes(&place, &vm, kind)).await;
        made.map_err(|error| MachineError::failed(error.to_string()))??;
        let config = self.config(order).await?;
        let spec = Asked {
            key: &order.key,
            spec: &order.spec,
            driver: record.driver,
            owner: self.machines.owner(&order.key)?,
            bits: &self.bits,
            volumes: &volumes,
            has_network: self.machines.has_network(record.driver),
            files: config.iter().map(planted).collect(),
        };
        let spec = spec.machine()?;
        let ensured = driver.ensure_created(&spec).await?;
        self.step("start: made");
        self.fence(&order.key, record.driver, order.spec.singleton)
            .map_err(|error| MachineError::failed(error.to_string()))?;
        if ensured.machine.pid.is_none() {
            if let Some(config) = config.filter(|_| record.driver == Driver::Sandbox) {
                self.configure(order, config, &id).await?;
            }
            record.console_from = console_end(&**driver, &id).await;
            self.files.set_record(record).map_err(|error| MachineError::failed(error.to_string()))?;
            self.step("start: configured");
        }
        driver.start(&id).await?;
        self.step("start: started");
        driver.inspect(&id).await?.ok_or(MachineError::NotFound(id))
    }

    /// Has what keeps the machine of an instance end it with the lease, or not.
    pub(super) fn fence(&self, key: &InstanceKey, driver: Driver, is_singleton: bool) -> io::Result<()> {
        let (Some(root_dir), Ok(id)) = (self.machines.root_dir(driver), self.machines.id(key)) else {
            return Ok(());
        };
        let lease = self.files.lease_file();
        fence::set(root_dir, &id, is_singleton.then_some(lease.as_path()))
    }

    /// Returns the resolved spec that the instance is configured from, if there is one.
    async fn config(&self, order: &Order) -> Result<Option<ResolvedSpec>, MachineError> {
        let Some(config) = &order.spec.runtime.config else { return Ok(None) };
        let failed = |error: io::Error| MachineError::failed(format!("the config of {}: {error}", order.key));
        let bytes = tokio::fs::read(self.bits.path(config)).await.map_err(failed)?;
        resolved(&order.key, &bytes).map(Some).map_err(MachineError::Invalid)
    }

    /// Applies the resolved spec to a sandbox before its first boot, as `stead config apply` would in it.
    async fn configure(&self, order: &Order, spec: ResolvedSpec, id: &MachineId) -> Result<(), MachineError> {
        let failed = |what: String| MachineError::failed(format!("cannot configure {}: {what}", order.key));
        let Some(root_dir) = self.machines.root_dir(Driver::Sandbox) else { return Ok(()) };
        let root = sandbox::root_of(root_dir, id);
        // On a thread of its own: an apply is no work for many threads.
        let applied = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let applied = runtime.block_on(apply(&spec, &root, ApplyOptions::default()));
            applied.map_err(io::Error::other)
        });
        let applied = applied.await.map_err(|error| failed(error.to_string()))?;
        match applied.map_err(|error| failed(error.to_string()))?.error {
            None => Ok(()),
            Some(error) => Err(failed(format!("{}: {}", error.code, error.message))),
        }
    }

    /// Removes those of the volumes that go with their instance.
    fn drop_volumes<'a>(
        &self,
        key: &InstanceKey,
        volumes: impl Iterator<Item = &'a Volume>,
    ) -> io::Result<()> {
        let directory = self.files.volumes(key);
        let mut going = volumes.filter(|volume| volume.retain == Retain::Delete);
        going.try_for_each(|going| remove_volume(&directory, going.name.as_str()))
    }

    /// Leaves nothing of an instance that cannot be started but the record that says why.
    async fn give_up(&self, order: &Order, mut record: Record, error: MachineError) -> Result<(), ActError> {
        if matches!(error, MachineError::Foreign { .. }) {
            self.files.forget(&order.key)?;
            return Err(error.into());
        }
        let is_permanent = match &error {
            MachineError::Unsupported(_) | MachineError::Invalid(_) | MachineError::Foreign { .. } => true,
            MachineError::NotFound(_)
            | MachineError::Conflict { .. }
            | MachineError::Unavailable(_)
            | MachineError::Timeout(_)
            | MachineError::Failed { .. } => false,
        };
        record.failure = Some(Failure { is_permanent, message: error.to_string() });
        if let (Ok(driver), Ok(id)) = (self.machines.get(record.driver), self.machines.id(&order.key)) {
            driver.destroy(&id).await?;
        }
        self.files.set_record(&record)?;
        self.step("start: failed");
        Ok(())
    }

    /// Stops the instance; its record stays.
    pub(super) async fn stop(
        &self,
        key: &InstanceKey,
        grace: Duration,
        cause: Cause,
    ) -> Result<(), ActError> {
        let Some(mut record) = self.files.record(key) else { return Ok(()) };
        let is_stopped = record.is_stopping && record.stopping.is_none() && record.pid.is_none();
        if !is_stopped {
            record.is_stopping = true;
            record.stopping = Some(cause);
            self.files.set_record(&record)?;
        }
        self.step("stop: record");
        let (driver, id) = (self.machines.get(record.driver)?, self.machines.id(key)?);
        let stopping = tokio::time::timeout(grace + STOP_SLACK, driver.stop(&id, grace)).await;
        stopping.map_err(|_| MachineError::Timeout(format!("{key} does not stop")))??;
        self.step("stop: stopped");
        self.note_stopped(key)?;
        Ok(())
    }

    /// Writes down that the instance was stopped, unless that was done.
    pub(super) fn note_stopped(&self, key: &InstanceKey) -> io::Result<()> {
        let Some(mut record) = self.files.record(key) else { return Ok(()) };
        let Some(cause) = record.stopping.take() else { return Ok(()) };
        record.pid = None;
        self.tell(record, cause)
    }

    /// Ends what a killed process of the instance left behind.
    pub(super) async fn sweep(&self, key: &InstanceKey) -> Result<(), ActError> {
        let Some(record) = self.files.record(key) else { return Ok(()) };
        self.machines.get(record.driver)?.stop(&self.machines.id(key)?, Duration::ZERO).await?;
        Ok(())
    }

    /// Stops the old machine of an instance, removes it and marks the place for the new one.
    pub(super) async fn retire(&self, order: &Order, grace: Duration) -> Result<(), ActError> {
        let reason = format!("it is replaced by {}", order.vm_hash);
        self.stop(&order.key, grace, Cause { ev: Ev::Stopped, reason }).await?;
        let Some(old) = self.files.record(&order.key) else { return Ok(()) };
        self.machines.get(old.driver)?.destroy(&self.machines.id(&order.key)?).await?;
        self.step("replace: destroyed");
        let stays = |old: &Volume| order.spec.volumes.iter().any(|new| new.name == old.name);
        self.drop_volumes(&order.key, old.spec.volumes.iter().filter(|old| !stays(old)))?;
        let actual = self.machines.actual(order.spec.runtime.driver);
        let mut record = Record::new(&order.key, &order.spec, order.vm_hash, actual);
        record.generation = order.generation;
        self.files.set_record(&record)?;
        self.step("replace: record");
        Ok(())
    }

    /// Removes what is left of an instance: machine, volumes that go with it, record.
    pub(super) async fn clean(&self, key: &InstanceKey) -> Result<(), ActError> {
        let Some(record) = self.files.record(key) else { return Ok(()) };
        self.machines.get(record.driver)?.destroy(&self.machines.id(key)?).await?;
        self.step("clean: destroyed");
        self.drop_volumes(key, record.spec.volumes.iter())?;
        // Only if none stays.
        std::fs::remove_dir(self.files.volumes(key)).ok();
        self.step("clean: volumes");
        if !record.has_told(Ev::Removed) {
            // The mark goes last: with it goes the memory of what was written down.
            self.tell(record, Cause { ev: Ev::Removed, reason: "nobody wants it here".to_owned() })?;
        }
        self.files.forget(key)?;
        Ok(())
    }
}

/// Returns where the console of a machine that does not run ends: what it says from there on is of its next run.
async fn console_end(driver: &dyn MachineDriver, id: &MachineId) -> u64 {
    let Ok(mut console) = driver.console(id, 0).await else { return 0 };
    let mut end = console.start;
    let mut piece = vec![0; 64 << 10];
    while let Ok(read @ 1..) = console.bytes.read(&mut piece).await {
        end += read as u64;
    }
    end
}

/// Returns the resolved spec of an instance: that of its VM, with the instance's own name.
fn resolved(key: &InstanceKey, bytes: &[u8]) -> Result<ResolvedSpec, String> {
    let name = node_name(key);
    let mut value: serde_json::Value =
        serde_json::from_slice(bytes).map_err(|error| format!("the config of {key} is not JSON: {error}"))?;
    value["node"] = name.as_str().into();
    value["identity"]["hostname"] = name.as_str().into();
    NodeName::parse(&name).map_err(|error| error.to_string())?;
    let bytes = value.to_string().into_bytes();
    stead_model::node::spec_file::read(&format!("config of {key}"), bytes)
        .map_err(|problems| problems.summary())
}

/// Returns the file by which a machine that is no sandbox finds its spec at the first boot.
fn planted(spec: &ResolvedSpec) -> PlantedFile {
    PlantedFile {
        path: FIRST_BOOT.to_owned(),
        mode: 0o600,
        content: stead_model::node::spec_file::to_yaml(spec).into_bytes(),
    }
}

/// Stops all instances at once; see [`super::stop_all`].
pub(super) async fn stop_all(settings: Settings) -> Result<(), WorkerError> {
    let (files, _lock) = Files::take(&settings.state_dir)?;
    settings.begin_events()?;
    let about = |source: io::Error| WorkerError::Files { path: files.place("instances"), source };
    let known = files.name().map_err(about)?;
    let name = match known {
        Some(known) => WorkerName::parse(&known).map_err(|error| WorkerError::Name(error.to_string()))?,
        None => settings.name()?,
    };
    let hands = Arc::new(hands(&settings, files.clone(), &name)?);
    hands.recall().map_err(about)?;
    let mut stops = JoinSet::new();
    for record in files.records().map_err(about)? {
        let hands = Arc::clone(&hands);
        stops.spawn(async move {
            let cause = Cause { ev: Ev::Stopped, reason: "everything here is to stop".to_owned() };
            let grace = Duration::from_secs(record.spec.stop_seconds.into());
            hands.stop(&record.instance, grace, cause).await
        });
    }
    let mut problems = Vec::new();
    while let Some(stopped) = stops.join_next().await {
        match stopped {
            Ok(Ok(())) => {}
            Ok(Err(error)) => problems.push(error.message),
            Err(error) => problems.push(error.to_string()),
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(WorkerError::Driver(problems.join("; "))) }
}

/// Returns what acts need, under the name that the worker of this state directory has.
pub(super) fn hands(settings: &Settings, files: Files, name: &WorkerName) -> Result<Hands, WorkerError> {
    let machines = Machines::new(&settings.file, name, files.directory(), &settings.program)?;
    let bits = Bits::new(files.clone(), &settings.file.nix.store);
    let logbook = Logbook { worker: name.clone(), events: settings.events.clone() };
    Ok(Hands { files, machines, bits, logbook, watch: Arc::clone(&settings.watch) })
}

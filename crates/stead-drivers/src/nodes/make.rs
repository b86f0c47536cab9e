//! `node.make`: a machine is there, runs and has an address.

use std::time::Duration;

use stead_model::machine::{Boot, Machine, MachineKind, MachineSpec, PlantedFile, SshDoor};
use stead_model::node::{NodeEntry, NodeStatus, path};
use stead_model::site::manifest::{Mode, NodeType};
use stead_model::{ErrorClass, NodeName};
use stead_runner::machine::{Changed, MachineDriver, MachineError};
use stead_runner::operation::{OpContext, OpError, Outcome};
use tokio::time::{Instant, sleep, timeout};

use super::{NodeView, NodesSurroundings};

/// How often a machine is looked at for its address, and at most.
const FIRST_LOOK: Duration = Duration::from_millis(10);
const LAST_LOOK: Duration = Duration::from_millis(500);

impl NodesSurroundings {
    /// Makes the machine of a node unless it is there, starts it and learns its address.
    pub(super) async fn make(&self, _: &OpContext, name: &NodeName) -> Result<Outcome, OpError> {
        let node = self.node(name.as_str())?;
        let before = self.entry(name);
        if let Some(before) = &before {
            self.refuse_changes(&node, before)?;
        }
        let host = self.host_of(Some(&node), before.as_ref());
        let driver = self.driver(&host)?;
        let mut spec = self.machine_spec(&node).await?;
        let mut known = false;
        if let Some(id) = before.as_ref().and_then(|entry| entry.machine_id.as_ref()) {
            known = driver.inspect(id).await.map_err(refused)?.is_some();
            if !known {
                let text = format!("the machine of {name} is gone; it is made again");
                self.parts.announcer.warn(stead_model::report::Warning::new("node/gone", text)).await;
            }
        }
        let fetches = node.written.spec.is_some() && node.known.modes.config != Mode::Push;
        let jti = match fetches && !known {
            true => {
                let (bootstrap, jti) = self.bootstrap(&node).await?;
                let content = bootstrap.to_json().into_bytes();
                spec.files.push(PlantedFile { path: path::BOOTSTRAP.to_owned(), mode: 0o600, content });
                Some(jti)
            }
            false => None,
        };
        let limit = self.limit(|limits| limits.create);
        let ensured = timeout(limit, driver.ensure_created(&spec)).await;
        let ensured = ensured.unwrap_or_else(|_| Err(late(name, "made", limit)));
        // Half of it may be there already.
        let ensured = ensured.map_err(|error| OpError { changed: !known, ..refused(error) })?;
        if !ensured.changed && !known {
            let text = format!("a machine of {name} is there and carries its label; it is adopted");
            self.parts.announcer.warn(stead_model::report::Warning::new("node/adopted", text)).await;
        }
        let made = ensured.changed;
        let broken = |error: OpError| OpError { changed: made, ..error };
        let started = driver.start(&ensured.machine.id).await.map_err(refused).map_err(broken)?;
        let (machine, door) = self.address(name, &*driver, &ensured.machine).await.map_err(broken)?;
        let changed = made || started == Changed::Yes;
        let mode = node.known.modes.config;
        let is_done = node.written.spec.is_none() && !node.known.is_hosting;
        let is_new =
            before.as_ref().is_none_or(|entry| entry.machine_id.as_ref() != Some(&machine.id)) || made;
        self.update(name, changed, |entry| {
            if is_new {
                (entry.spec_digest, entry.state_digest, entry.jti) = (None, None, None);
            }
            if made && jti.is_some() {
                (entry.jti, entry.mode) = (jti, mode);
            }
            entry.machine_id = Some(machine.id.clone());
            entry.created_at = Some(machine.created_at);
            entry.ip = Some(door.host.clone());
            entry.ssh_port = Some(door.port);
            entry.host_key = Some(door.host_key.clone());
            if is_done {
                (entry.status, entry.error) = (NodeStatus::Completed, None);
            } else if is_new || entry.status != NodeStatus::Completed {
                (entry.status, entry.error) = (NodeStatus::Running, None);
            }
        })
        .await?;
        Ok(Outcome { changed, ..Outcome::default() })
    }

    /// Refuses to make another machine of one that is there.
    fn refuse_changes(&self, node: &NodeView<'_>, before: &NodeEntry) -> Result<(), OpError> {
        if before.machine_id.is_none() {
            return Ok(());
        }
        let name = &node.node.name;
        let refuse = |field: &str, old: &str, new: &str| {
            Err(OpError::permanent(format!(
                "{name} cannot be changed: {field} is {old}, not {new}; destroy it first"
            )))
        };
        let kind = node.written.kind.as_ref().map_or(before.kind, |kind| kind.value);
        if kind != before.kind {
            return refuse("type", before.kind.word(), kind.word());
        }
        let parent = node.node.parent.map(|parent| &self.parts.forest.nodes[parent].name);
        if parent != before.parent.as_ref() {
            let shown = |parent: Option<&NodeName>| parent.map_or("none", NodeName::as_str).to_owned();
            return refuse("parent", &shown(before.parent.as_ref()), &shown(parent));
        }
        let host = node.written.host.as_ref().map(|host| host.value.as_str());
        if host != before.host.as_deref() {
            let own = self.parts.host.name.as_str();
            return refuse("host", before.host.as_deref().unwrap_or(own), host.unwrap_or(own));
        }
        match (&node.written.vmid, before.vm_id) {
            (Some(wanted), Some(given)) if wanted.value != given => {
                refuse("vmid", &given.to_string(), &wanted.value.to_string())
            }
            (Some(_) | None, _) => Ok(()),
        }
    }

    /// Returns what the machine of a node should be.
    async fn machine_spec(&self, node: &NodeView<'_>) -> Result<MachineSpec, OpError> {
        let written = node.written;
        let kind = match written.kind.as_ref().map(|kind| kind.value) {
            Some(NodeType::Ct) => MachineKind::Ct,
            Some(NodeType::Vm | NodeType::Pve) | None => MachineKind::Vm,
        };
        let mut spec = MachineSpec::new(self.owner(node.node.name.as_str())?, kind);
        if let Some(preset) = &written.preset {
            let preset = self.parts.site.presets.get(&preset.value).map(|entry| &entry.value);
            let preset = preset.ok_or_else(|| OpError::invalid("its preset is gone"))?;
            spec.cpus = Some(preset.cores);
            spec.memory_mb = Some(preset.memory.into());
            spec.disk_gb = Some(preset.disk.into());
        }
        if let Some(disk) = written.disk {
            spec.disk_gb = Some(disk.into());
        }
        let defaults = &self.parts.site.settings.value.defaults;
        spec.boot = match kind {
            MachineKind::Vm => written.image.clone().or_else(|| defaults.image.clone()).map(Boot::Image),
            MachineKind::Ct => written.template.clone().map(Boot::Template),
        };
        spec.user = defaults.vm_user.clone();
        spec.authorized_keys = self.planted_keys().await?;
        Ok(spec)
    }

    /// Returns the public keys that open every node of this level: the driver's own and those of all levels above.
    pub(super) async fn planted_keys(&self) -> Result<Vec<String>, OpError> {
        let above = crate::site::keys_above(&self.parts.site_dir);
        let mut keys = above.map_err(|error| OpError::io("reading the keys of the levels above", &error))?;
        keys.insert(0, self.key().await?.public.clone());
        Ok(keys)
    }

    /// Waits until the machine can be reached.
    async fn address(
        &self,
        name: &NodeName,
        driver: &dyn MachineDriver,
        machine: &Machine,
    ) -> Result<(Machine, SshDoor), OpError> {
        let limit = self.limit(|limits| limits.address);
        let deadline = Instant::now() + limit;
        let mut pause = FIRST_LOOK;
        loop {
            let now = driver.inspect(&machine.id).await.map_err(refused)?;
            let now = now.ok_or_else(|| OpError::operation(format!("the machine of {name} vanished")))?;
            if !now.state.is_live() {
                let why = now.exit.map_or_else(String::new, |exit| format!(": {}", exit.reason));
                return Err(OpError::operation(format!(
                    "the machine of {name} ended before it had an address{why}"
                )));
            }
            if let Some(door) = now.ssh.clone() {
                return Ok((now, door));
            }
            if Instant::now() + pause > deadline {
                return Err(refused(late(name, "reachable", limit)));
            }
            sleep(pause).await;
            pause = (pause * 2).min(LAST_LOOK);
        }
    }
}

fn late(name: &NodeName, what: &str, limit: Duration) -> MachineError {
    MachineError::Timeout(format!("{name} was not {what} within {}", stead_model::duration::to_exact(limit)))
}

/// Returns what a driver's refusal means for the task.
pub(super) fn refused(error: MachineError) -> OpError {
    let class: ErrorClass = error.class();
    OpError::new(class, error.to_string())
}

//! `node.make`: a machine is there, runs and has an address.

use std::sync::PoisonError;
use std::time::Duration;

use stead_model::machine::{
    Boot, Machine, MachineId, MachineKind, MachineSpec, MachineState, PlantedFile, ShapeChange, SshDoor,
};
use stead_model::node::{NodeEntry, NodeStatus, path};
use stead_model::report::Warning;
use stead_model::site::Site;
use stead_model::site::manifest::{ManifestNode, Mode, NodeType};
use stead_model::{ErrorClass, NodeName};
use stead_runner::machine::{Changed, MachineDriver, MachineError};
use stead_runner::operation::{OpContext, OpError, Outcome};
use tokio::time::{Instant, sleep, timeout};

use super::remove::is_older;
use super::seed::agent_starter;
use super::{NodeView, NodesSurroundings};

/// How often a machine is looked at for its address, and at most.
const FIRST_LOOK: Duration = Duration::from_millis(10);
const LAST_LOOK: Duration = Duration::from_millis(500);

impl NodesSurroundings {
    /// Makes the machine of a node unless it is there, starts it and learns its address.
    pub(super) async fn make(&self, cx: &OpContext, name: &NodeName) -> Result<Outcome, OpError> {
        let node = self.node(name.as_str())?;
        let before = self.entry(name);
        let host = self.host_of(Some(&node), before.as_ref());
        if let Some(before) = &before {
            self.refuse_changes(&node, before, &host).await?;
        }
        let driver = self.driver(&host)?;
        if self.parts.wishes.only_new {
            self.refuse_older(cx, &*driver, name, before.as_ref()).await?;
        }
        let mut spec = self.machine_spec(&node, &*driver).await?;
        self.fit_out(&node, &host, &*driver, &mut spec).await;
        let mut known = false;
        if let Some(id) = before.as_ref().and_then(|entry| entry.machine_id.as_ref()) {
            let state = self.remembered_machine(&*driver, name, id).await?.map(|machine| machine.state);
            // One that is only half there is made anew, and told what every new one is.
            known = state.is_some_and(|state| state != MachineState::Creating);
            if !known {
                let how = if state.is_some() { "only half there" } else { "gone" };
                let text = format!("the machine of {name} is {how}; it is made again");
                self.parts.announcer.warn(Warning::new("node/gone", text)).await;
            }
        }
        let fetches = node.written.spec.is_some() && node.known.modes.config != Mode::Push;
        let had_tokens = before.as_ref().is_some_and(|before| self.may_have_tokens(cx, before));
        let telling = match fetches && !known {
            true => {
                let telling = self.telling(&node, had_tokens).await?;
                let content = telling.bootstrap.to_json().into_bytes();
                spec.files.push(PlantedFile { path: path::BOOTSTRAP.to_owned(), mode: 0o600, content });
                if driver.capabilities().seed {
                    spec.files.push(agent_starter());
                }
                Some(telling)
            }
            false => None,
        };
        if driver.capabilities().seed {
            spec.seed = Some(self.seed_of(&node, &spec.owner.mac(0), telling.is_some()));
        }
        let limit = self.limit(name.as_str(), |limits| limits.create);
        let ensured = timeout(limit, driver.ensure_created(&spec)).await;
        let ensured = ensured.unwrap_or_else(|_| Err(late(name, "made", limit)));
        // Half of it may be there already.
        let ensured = ensured.map_err(|error| OpError { changed: !known, ..refused(error) })?;
        if !ensured.changed && !known {
            let text = format!("a machine of {name} is there and carries its label; it is adopted");
            self.parts.announcer.warn(Warning::new("node/adopted", text)).await;
        }
        let made = ensured.changed;
        if made {
            self.note_maker(name);
        }
        let broken = |error: OpError| OpError { changed: made, ..error };
        let started = timeout(limit, driver.start(&ensured.machine.id)).await;
        let started = started.unwrap_or_else(|_| Err(late(name, "started", limit)));
        let started = started.map_err(refused).map_err(broken)?;
        self.pass_on_remark(&host, &*driver).await;
        let (machine, door) = self.address(name, &*driver, &ensured.machine).await.map_err(broken)?;
        let is_adopted = !made && !known;
        let telling = telling.filter(|_| made);
        if made && had_tokens {
            // They were of the machine that is gone.
            let (jti, first) = (before.as_ref().and_then(|before| before.jti.clone()), telling.as_ref());
            self.revoke_tokens(name, jti, first.map(|telling| telling.told.iat)).await.map_err(broken)?;
        }
        let mode = node.known.modes.config;
        let has_spec = node.written.spec.is_some();
        let vmid = machine.vmid.or(node.written.vmid.as_ref().map(|vmid| vmid.value));
        let is_done = node.written.spec.is_none() && !node.known.is_hosting;
        let is_new =
            before.as_ref().is_none_or(|entry| entry.machine_id.as_ref() != Some(&machine.id)) || made;
        let changed = made || started == Changed::Yes;
        self.update(name, changed, |entry| {
            if is_new {
                (entry.spec_digest, entry.state_digest) = (None, None);
                entry.forget_agent();
                entry.vm_id = vmid;
            }
            if let Some(telling) = telling {
                (entry.jti, entry.told, entry.mode) = (Some(telling.jti), Some(telling.told), mode);
            }
            note_machine(entry, &machine, &door);
            if is_done {
                (entry.status, entry.error) = (NodeStatus::Completed, None);
            } else if is_new || entry.status != NodeStatus::Completed {
                (entry.status, entry.error) = (NodeStatus::Running, None);
            }
        })
        .await?;
        let unmanaged = match has_spec {
            true => false,
            false => self.leave_spec(name, before.as_ref(), is_adopted).await?,
        };
        Ok(Outcome { changed: changed || unmanaged, ..Outcome::default() })
    }

    /// Lets go of a node that has no spec any more: nobody configures it. Whether something did.
    async fn leave_spec(
        &self,
        name: &NodeName,
        before: Option<&NodeEntry>,
        is_adopted: bool,
    ) -> Result<bool, OpError> {
        let has_spec = |entry: &NodeEntry| entry.spec.is_some() || entry.jti.is_some();
        if !is_adopted && !before.is_some_and(has_spec) {
            return Ok(false);
        }
        let mut stopped = false;
        let jti = before.and_then(|before| before.jti.clone());
        if is_adopted || before.is_some_and(NodeEntry::fetches) {
            let transport = self.connect(name).await?;
            stopped = self.disable_agent(&*transport, name).await?;
            if stopped || jti.is_some() {
                self.revoke_tokens(name, jti, None).await?;
            }
        }
        self.update(name, stopped, |entry| {
            (entry.spec, entry.spec_digest, entry.state_digest, entry.mode) = (None, None, None, Mode::Push);
            entry.forget_agent();
        })
        .await?;
        Ok(stopped)
    }

    /// Refuses to use a machine that was there before this run.
    async fn refuse_older(
        &self,
        cx: &OpContext,
        driver: &dyn MachineDriver,
        name: &NodeName,
        before: Option<&NodeEntry>,
    ) -> Result<(), OpError> {
        let known = before.and_then(|entry| entry.machine_id.as_ref());
        match self.find_machine(driver, name, known).await? {
            Some(machine) if is_older(cx, &machine) => Err(OpError::permanent(format!(
                "a machine of {name} is there, and a test would remove it: --yes goes on"
            ))),
            Some(_) | None => Ok(()),
        }
    }

    /// Tells the user what a driver has to say of itself, once.
    async fn pass_on_remark(&self, host: &str, driver: &dyn MachineDriver) {
        let Some(text) = driver.remark() else { return };
        let is_new = self.remarked.lock().unwrap_or_else(PoisonError::into_inner).insert(host.to_owned());
        if is_new {
            self.parts.announcer.warn(Warning::new("node/driver", format!("host {host}: {text}"))).await;
        }
    }

    /// Refuses to make another machine of one that is there.
    async fn refuse_changes(
        &self,
        node: &NodeView<'_>,
        before: &NodeEntry,
        host: &str,
    ) -> Result<(), OpError> {
        let Some(id) = &before.machine_id else { return Ok(()) };
        let own = self.parts.host.name.as_str();
        let mut changes = identity_changes(node.written, before, own);
        changes.extend(self.parent_change(node, before));
        if changes.is_empty() {
            return Ok(());
        }
        changes.extend(self.size_changes(node, id, host).await);
        Err(unchangeable(&node.node.name, &changes))
    }

    /// Returns what of the size of a machine that is there is written another way, as its driver says, who compares it.
    async fn size_changes(&self, node: &NodeView<'_>, id: &MachineId, host: &str) -> Vec<String> {
        let Ok(driver) = self.driver(host) else { return Vec::new() };
        let there = driver.inspect(id).await.ok().flatten();
        if there.is_none_or(|machine| machine.state == MachineState::Creating) {
            // Asked for it would be made.
            return Vec::new();
        }
        let Ok(spec) = self.machine_spec(node, &*driver).await else { return Vec::new() };
        let limit = self.limit(node.node.name.as_str(), |limits| limits.create);
        match timeout(limit, driver.ensure_created(&spec)).await {
            Ok(Err(MachineError::Conflict { changes, .. })) => {
                let is_size =
                    |change: &&ShapeChange| matches!(change.field.as_str(), "cpus" | "memory_mb" | "disk_gb");
                changes.iter().filter(is_size).map(ToString::to_string).collect()
            }
            Ok(Ok(_) | Err(_)) | Err(_) => Vec::new(),
        }
    }

    /// Returns why a node that is there cannot be made: it is to be in another node than it is.
    pub(super) fn moved(&self, node: &NodeView<'_>, before: &NodeEntry) -> Option<OpError> {
        let change = self.parent_change(node, before)?;
        Some(unchangeable(&node.node.name, &[change]))
    }

    fn parent_change(&self, node: &NodeView<'_>, before: &NodeEntry) -> Option<String> {
        let parent = node.node.parent.map(|parent| &self.parts.forest.nodes[parent].name);
        if before.machine_id.is_none() || parent == before.parent.as_ref() {
            return None;
        }
        let shown = |parent: Option<&NodeName>| parent.map_or("none", NodeName::as_str).to_owned();
        Some(change("parent", &shown(before.parent.as_ref()), &shown(parent)))
    }

    /// Returns what the machine of a node should be.
    async fn machine_spec(
        &self,
        node: &NodeView<'_>,
        driver: &dyn MachineDriver,
    ) -> Result<MachineSpec, OpError> {
        let written = node.written;
        let makes = driver.capabilities().kinds;
        let mut spec = MachineSpec::new(self.owner(node.node.name.as_str())?, kind_of(written, &makes));
        spec.hosts = node.known.is_hosting;
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
        spec.boot = boot_of(&self.parts.site, written, &makes);
        spec.vmid = written.vmid.as_ref().map(|vmid| vmid.value);
        spec.user = self.parts.site.settings.value.defaults.vm_user.clone();
        spec.root_password = self.parts.site.secrets.value.vm_root.clone();
        spec.authorized_keys = self.planted_keys().await?;
        // Where no spec takes them away. An SSH server reads them as the account that logs in.
        spec.files.push(PlantedFile {
            path: format!("{}/{}", path::KEYS, spec.user),
            mode: 0o644,
            content: spec
                .authorized_keys
                .iter()
                .map(|key| format!("{}\n", key.trim()))
                .collect::<String>()
                .into(),
        });
        Ok(spec)
    }

    /// Returns the public keys that open every node of this level: the driver's own and those of all levels above.
    pub(super) async fn planted_keys(&self) -> Result<Vec<String>, OpError> {
        let above = crate::site::keys_above(&self.parts.site_dir);
        let mut keys = above.map_err(|error| OpError::io("reading the keys of the levels above", &error))?;
        keys.insert(0, self.key().await?.public.clone());
        Ok(keys)
    }

    /// Returns the error of a wait for a node, with the last lines that its machine left: they may say why it was in vain.
    pub(super) async fn with_last_words(&self, name: &NodeName, error: OpError) -> OpError {
        if !matches!(error.class, ErrorClass::Timeout | ErrorClass::Unreachable) {
            return error;
        }
        let (node, entry) = (self.node(name.as_str()).ok(), self.entry(name));
        let driver = self.driver(&self.host_of(node.as_ref(), entry.as_ref()));
        let (Ok(driver), Some(id)) = (driver, entry.and_then(|entry| entry.machine_id)) else {
            return error;
        };
        with_words(error, &driver.last_words(&id).await)
    }

    /// Waits until the machine can be reached.
    async fn address(
        &self,
        name: &NodeName,
        driver: &dyn MachineDriver,
        machine: &Machine,
    ) -> Result<(Machine, SshDoor), OpError> {
        let limit = self.limit(name.as_str(), |limits| limits.address);
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
                let words = driver.last_words(&machine.id).await;
                return Err(with_words(refused(late(name, "reachable", limit)), &words));
            }
            sleep(pause).await;
            pause = (pause * 2).min(LAST_LOOK);
        }
    }
}

/// Returns the kind of machine that a node is, of those that its host `makes`.
fn kind_of(node: &ManifestNode, makes: &[MachineKind]) -> MachineKind {
    match node.kind.as_ref().map(|kind| kind.value) {
        Some(NodeType::Ct) => MachineKind::Ct,
        Some(NodeType::Pve) if !makes.contains(&MachineKind::Vm) => MachineKind::Ct,
        Some(NodeType::Vm | NodeType::Pve) | None => MachineKind::Vm,
    }
}

/// Returns what the machine of a node boots, on a host that `makes` these; none: what the host says.
pub(super) fn boot_of(site: &Site, node: &ManifestNode, makes: &[MachineKind]) -> Option<Boot> {
    let default = || site.settings.value.defaults.image.clone();
    match kind_of(node, makes) {
        MachineKind::Vm => node.image.clone().or_else(default).map(Boot::Image),
        MachineKind::Ct => node.template.clone().or_else(|| node.image.clone()).map(Boot::Template),
    }
}

/// Notes which machine a node is and where it is reached.
pub(super) fn note_machine(entry: &mut NodeEntry, machine: &Machine, door: &SshDoor) {
    entry.machine_id = Some(machine.id.clone());
    entry.created_at = Some(machine.created_at);
    entry.ip = Some(door.host.clone());
    entry.ssh_port = Some(door.port);
    entry.host_key = Some(door.host_key.clone());
}

/// Returns what of a machine's identity is written another way than it was made; `own` is the host of nodes that name
/// none.
fn identity_changes(written: &ManifestNode, before: &NodeEntry, own: &str) -> Vec<String> {
    let mut changes = Vec::new();
    let kind = written.kind.as_ref().map_or(before.kind, |kind| kind.value);
    if kind != before.kind {
        changes.push(change("type", before.kind.word(), kind.word()));
    }
    let host = written.host.as_ref().map(|host| host.value.as_str());
    if host != before.host.as_deref() {
        changes.push(change("host", before.host.as_deref().unwrap_or(own), host.unwrap_or(own)));
    }
    // A number that is not written any more is kept.
    if let Some(wanted) = written.vmid.as_ref().filter(|wanted| before.vm_id != Some(wanted.value)) {
        let given = before.vm_id.map_or_else(|| "none".to_owned(), |given| given.to_string());
        changes.push(change("vmid", &given, &wanted.value.to_string()));
    }
    changes
}

fn change(field: &str, old: &str, new: &str) -> String {
    format!("{field} is {old}, not {new}")
}

fn unchangeable(name: &NodeName, changes: &[String]) -> OpError {
    OpError::permanent(format!(
        "{name} cannot be changed: {}; write back what it was made with, or destroy it first",
        changes.join(", ")
    ))
}

/// Returns the error of a wait that ended, with the last lines that the machine left.
fn with_words(error: OpError, words: &[String]) -> OpError {
    if words.is_empty() {
        return error;
    }
    OpError { message: format!("{}; its last lines:\n{}", error.message, words.join("\n")), ..error }
}

fn late(name: &NodeName, what: &str, limit: Duration) -> MachineError {
    MachineError::Timeout(format!("{name} was not {what} within {}", stead_model::duration::to_exact(limit)))
}

/// Returns what a driver's refusal means for the task.
pub(super) fn refused(error: MachineError) -> OpError {
    let class: ErrorClass = error.class();
    let what_to_do = if matches!(error, MachineError::Conflict { .. }) {
        "; write back what it was made with, or destroy it first"
    } else {
        ""
    };
    OpError::new(class, format!("{error}{what_to_do}"))
}

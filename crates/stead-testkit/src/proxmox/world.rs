//! What there is: guests, tasks and volumes. Tasks end, and do what they do, when somebody looks and their time is over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stead_runner::clock;

use super::request::Request;
use super::{Call, DOOMED, Fault, Guests, IMAGE, NODE, TEMPLATE, TREE, Wrong, server};

/// How long a task takes unless a test says otherwise.
const TASK: Duration = Duration::from_millis(10);
/// How long a guest takes until its agent answers.
const AGENT: Duration = Duration::from_millis(20);
/// How far what the cluster tells of its nodes lags behind.
const LAG: Duration = Duration::from_secs(2);
/// How long a guest takes to power off.
const POWER_OFF: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Qemu,
    Lxc,
}

impl Kind {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Qemu => "qemu",
            Self::Lxc => "lxc",
        }
    }

    pub(super) fn noun(self) -> &'static str {
        match self {
            Self::Qemu => "VM",
            Self::Lxc => "CT",
        }
    }
}

pub(super) struct Guest {
    pub(super) kind: Kind,
    pub(super) config: BTreeMap<String, String>,
    pub(super) is_template: bool,
    pub(super) runs_since: Option<Instant>,
    pub(super) address: Option<String>,
    is_deaf: bool,
    born: Instant,
}

impl Guest {
    pub(super) fn new(kind: Kind, config: &[(&str, &str)]) -> Self {
        let config = config.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Self {
            kind,
            config,
            is_template: false,
            runs_since: None,
            address: None,
            is_deaf: false,
            born: Instant::now(),
        }
    }

    /// What it is called.
    pub(super) fn name(&self) -> &str {
        let key = match self.kind {
            Kind::Qemu => "name",
            Kind::Lxc => "hostname",
        };
        self.config.get(key).map_or("", String::as_str)
    }

    /// Whether the cluster knows more of it than that it is there.
    pub(super) fn is_known(&self) -> bool {
        self.born.elapsed() > LAG
    }
}

/// What a task does at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    Unlock(u32),
    Start(u32),
    Stop(u32),
    Remove(u32),
}

pub(super) struct Task {
    pub(super) kind: &'static str,
    pub(super) vmid: String,
    pub(super) started: i64,
    pub(super) ended: Option<i64>,
    pub(super) exit: String,
    pub(super) log: Vec<String>,
    ends_at: Instant,
    effect: Effect,
    /// The guest that is locked while it runs.
    holds: Option<u32>,
}

pub(super) struct World {
    pub(super) guests: BTreeMap<u32, Guest>,
    pub(super) tasks: BTreeMap<String, Task>,
    pub(super) volumes: BTreeMap<String, Vec<u8>>,
    pub(super) calls: Vec<Call>,
    pub(super) faults: Vec<Fault>,
    pub(super) task_takes: Duration,
    pub(super) agent_takes: Duration,
    /// The most clones that were made at once.
    pub(super) most_clones: usize,
    /// Requests that are being answered, and the most that were so at once.
    pub(super) requests: usize,
    pub(super) most_requests: usize,
    real: Option<Arc<dyn Guests>>,
    count: u32,
}

impl World {
    pub(super) fn new(real: Option<Arc<dyn Guests>>) -> Self {
        let mut guests = BTreeMap::new();
        for (vmid, name) in [(TEMPLATE, "debian-12"), (DOOMED, "doomed")] {
            let mut template = Guest::new(
                Kind::Qemu,
                &[
                    ("name", name),
                    ("boot", "order=scsi0"),
                    ("scsihw", "virtio-scsi-single"),
                    ("scsi0", "fast:base-9000-disk-0,size=2G"),
                    ("ide2", "fast:vm-9000-cloudinit,media=cdrom"),
                    ("net0", "virtio=BC:24:11:00:00:01,bridge=vmbr0"),
                    ("cores", "1"),
                    ("memory", "512"),
                    ("tags", "golden"),
                    ("description", "the template of all\n"),
                    ("template", "1"),
                ],
            );
            template.is_template = true;
            guests.insert(vmid, template);
        }
        let volumes = [IMAGE, TREE].map(|volume| (volume.to_owned(), Vec::new()));
        Self {
            guests,
            tasks: BTreeMap::new(),
            volumes: BTreeMap::from(volumes),
            calls: Vec::new(),
            faults: Vec::new(),
            task_takes: TASK,
            agent_takes: AGENT,
            most_clones: 0,
            requests: 0,
            most_requests: 0,
            real,
            count: 0,
        }
    }

    /// Returns what goes wrong with a request, and counts it.
    pub(super) fn wrong(&mut self, request: &Request) -> Option<Wrong> {
        let path = request.path.join("/");
        let fits = |fault: &Fault| fault.method.is_empty() || fault.method == request.method;
        let hit = |fault: &Fault| fits(fault) && path.contains(&fault.path);
        let place = self.faults.iter().position(hit)?;
        let fault = self.faults.get_mut(place)?;
        if fault.after > 0 {
            fault.after -= 1;
            return None;
        }
        let wrong = fault.wrong.clone();
        if fault.times == 1 {
            self.faults.remove(place);
        } else if fault.times > 1 {
            fault.times -= 1;
        }
        Some(wrong)
    }

    /// Whether answers are held back.
    pub(super) fn holds(&self) -> bool {
        self.faults.iter().any(|fault| fault.wrong == Wrong::Hold)
    }

    pub(super) fn note(&mut self, request: &Request, status: u16) {
        self.calls.push(server::call(request, status));
    }

    /// Starts a task and returns its UPID.
    pub(super) fn task(
        &mut self,
        kind: &'static str,
        vmid: u32,
        effect: Effect,
        wrong: Option<&Wrong>,
    ) -> String {
        let vmid_text = if vmid == 0 { String::new() } else { vmid.to_string() };
        let mut task = Task {
            kind,
            vmid: vmid_text.clone(),
            started: seconds(),
            ended: None,
            exit: "OK".to_owned(),
            log: vec![format!("{kind} begins")],
            ends_at: Instant::now() + self.task_takes,
            holds: matches!(effect, Effect::Start(_) | Effect::Stop(_) | Effect::Remove(_)).then_some(vmid),
            effect,
        };
        match wrong {
            Some(Wrong::Task(exit)) => {
                task.log.push(format!("TASK ERROR: {exit}"));
                task.exit.clone_from(exit);
                // A clone that fails leaves nothing.
                task.effect = match task.effect {
                    Effect::Unlock(vmid) => Effect::Remove(vmid),
                    Effect::None | Effect::Start(_) | Effect::Stop(_) | Effect::Remove(_) => Effect::None,
                };
            }
            Some(Wrong::Warn) => task.exit = "WARNINGS: 1".to_owned(),
            Some(
                Wrong::Status(..) | Wrong::Lose | Wrong::Drop | Wrong::Delay(_) | Wrong::Hold | Wrong::Race,
            )
            | None => {}
        }
        self.count += 1;
        let upid = format!(
            "UPID:{NODE}:{:08X}:{:08X}:{:08X}:{kind}:{vmid_text}:root@pam!stead:",
            self.count, self.count, task.started
        );
        self.tasks.insert(upid.clone(), task);
        let clones = self.tasks.values().filter(|task| task.kind == "qmclone" && task.ended.is_none());
        self.most_clones = self.most_clones.max(clones.count());
        upid
    }

    /// Returns a task that asks a guest to power off.
    pub(super) fn shutdown(
        &mut self,
        kind: &'static str,
        vmid: u32,
        timeout: u64,
        wrong: Option<&Wrong>,
    ) -> String {
        let is_deaf = self.guests.get(&vmid).is_some_and(|guest| guest.is_deaf);
        let upid = self.task(kind, vmid, Effect::Stop(vmid), wrong);
        if let Some(task) = self.tasks.get_mut(&upid).filter(|task| task.exit == "OK") {
            task.ends_at = Instant::now() + POWER_OFF;
            if is_deaf {
                task.ends_at = Instant::now() + Duration::from_secs(timeout);
                task.exit = "VM quit/powerdown failed - got timeout".to_owned();
                task.effect = Effect::None;
            }
        }
        upid
    }

    /// Returns the task that holds a guest.
    pub(super) fn is_held(&self, vmid: u32) -> bool {
        self.tasks.values().any(|task| task.ended.is_none() && task.holds == Some(vmid))
    }

    /// Ends the tasks whose time is over.
    pub(super) fn tick(&mut self) {
        let mut effects = Vec::new();
        for (upid, task) in &mut self.tasks {
            if task.ended.is_none() && Instant::now() >= task.ends_at {
                task.ended = Some(seconds());
                effects.push((upid.clone(), task.effect.clone()));
            }
        }
        for (upid, effect) in effects {
            let Err(why) = self.take_effect(&effect) else { continue };
            if let Some(task) = self.tasks.get_mut(&upid) {
                task.exit = "start failed: QEMU exited with code 1".to_owned();
                task.log.extend([why, format!("TASK ERROR: {}", task.exit)]);
            }
        }
    }

    fn take_effect(&mut self, effect: &Effect) -> Result<(), String> {
        match effect {
            Effect::None => {}
            Effect::Unlock(vmid) => {
                if let Some(guest) = self.guests.get_mut(vmid) {
                    guest.config.remove("lock");
                }
            }
            Effect::Start(vmid) => self.boot(*vmid)?,
            Effect::Stop(vmid) => self.halt(*vmid),
            Effect::Remove(vmid) => {
                self.halt(*vmid);
                self.guests.remove(vmid);
                if let Some(real) = &self.real {
                    real.remove(*vmid);
                }
            }
        }
        Ok(())
    }

    fn boot(&mut self, vmid: u32) -> Result<(), String> {
        let Some(guest) = self.guests.get_mut(&vmid) else { return Err("it went".to_owned()) };
        if guest.config.get("args").is_some_and(|args| args.contains("doomed")) {
            return Err("kvm: -device doomed: 'doomed' is not a valid device model name".to_owned());
        }
        let seed = guest.config.get("ide2").and_then(|drive| drive.split(',').next());
        let mut address = format!("10.9.{}.{}", vmid / 250 % 250, vmid % 250 + 1);
        if let (Some(real), Some(seed)) = (&self.real, seed) {
            let volume = self.volumes.get(seed).ok_or_else(|| format!("volume '{seed}' does not exist"))?;
            address = real.boot(vmid, volume)?;
        }
        (guest.address, guest.runs_since) = (Some(address), Some(Instant::now()));
        Ok(())
    }

    fn halt(&mut self, vmid: u32) {
        let Some(guest) = self.guests.get_mut(&vmid).filter(|guest| guest.runs_since.is_some()) else {
            return;
        };
        (guest.runs_since, guest.is_deaf, guest.address) = (None, false, None);
        if let Some(real) = &self.real {
            real.halt(vmid);
        }
    }

    pub(super) fn plant(&mut self, vmid: u32, name: &str) {
        self.guests.insert(vmid, Guest::new(Kind::Qemu, &[("name", name), ("description", "precious\n")]));
    }

    pub(super) fn take(&mut self, vmid: u32) -> Vec<String> {
        let guest = self.guests.remove(&vmid);
        let config = guest.map(|guest| guest.config).unwrap_or_default();
        config.into_iter().map(|(key, value)| format!("{key}: {value}")).collect()
    }

    pub(super) fn vmids(&self) -> Vec<u32> {
        self.guests.iter().filter(|(_, guest)| !guest.is_template).map(|(vmid, _)| *vmid).collect()
    }

    pub(super) fn config(&self, vmid: u32, key: &str) -> Option<String> {
        self.guests.get(&vmid)?.config.get(key).cloned()
    }

    pub(super) fn set_config(&mut self, vmid: u32, key: &str, value: &str) {
        if let Some(guest) = self.guests.get_mut(&vmid) {
            guest.config.insert(key.to_owned(), value.to_owned());
        }
    }

    pub(super) fn lock(&mut self, vmid: u32, lock: Option<&str>) {
        if let Some(guest) = self.guests.get_mut(&vmid) {
            guest.config.remove("lock");
            guest.config.extend(lock.map(|lock| ("lock".to_owned(), lock.to_owned())));
        }
    }

    pub(super) fn is_running(&self, vmid: u32) -> bool {
        self.guests.get(&vmid).is_some_and(|guest| guest.runs_since.is_some())
    }

    pub(super) fn deafen(&mut self, vmid: u32) {
        if let Some(guest) = self.guests.get_mut(&vmid) {
            guest.is_deaf = true;
        }
    }

    pub(super) fn kill(&mut self, vmid: u32) {
        self.halt(vmid);
    }

    pub(super) fn left(&self) -> Vec<String> {
        let guests = self.vmids().into_iter().map(|vmid| format!("machine {vmid}"));
        let volumes = self.volumes.keys().filter(|name| ![IMAGE, TREE].contains(&name.as_str())).cloned();
        let tasks = self.tasks.iter().filter(|(_, task)| task.ended.is_none()).map(|(upid, _)| upid.clone());
        guests.chain(volumes).chain(tasks).collect()
    }
}

/// Returns the seconds since the epoch.
pub(super) fn seconds() -> i64 {
    clock::now().as_micros().div_euclid(1_000_000)
}

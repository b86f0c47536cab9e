//! Making machines. What is half made is found by its mark and finished, whoever began it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use stead_model::machine::{MachineKind, MachineSpec, Nic, Owner, ShapeChange};
use stead_model::node::path;
use stead_runner::clock;
use stead_runner::machine::{Ensured, MachineError};

use super::Cluster;
use super::api::{ApiError, Change};
use super::boot::{self, Source};
use super::find::{At, Found, Place, half_made_name, tags, word};
use super::form::encode;
use super::lock::hold;
use super::record::{MARK, Record};
use crate::machine::vm::{CPUS, MEMORY_MB, seed};
use crate::transport::ssh::server::ServerKey;

/// How often a number may be taken by others before this gives up.
const RACES: usize = 10;
/// How many numbers are tried that nobody may see are taken.
const PROBES: usize = 200;
/// The first disk of a container that does not say how large it is.
const CONTAINER_GB: u64 = 8;
/// What the seed's drive is called.
const SEED_DRIVE: &str = "ide2";

impl Cluster {
    /// Makes the machine unless it is there.
    pub(super) async fn ensure_created(&self, spec: &MachineSpec) -> Result<Ensured, MachineError> {
        self.check(spec)?;
        let uuid = spec.owner.uuid();
        let _held = hold(&self.settings.lock_dir, &lock_name(&uuid)).await?;
        let failed = |error: ApiError| error.while_doing(&format!("looking for {}", spec.owner));
        let listed = self.listed().await.map_err(failed)?;
        if let Some(place) = self.foreign(&spec.owner, spec.vmid, &listed).await.map_err(failed)? {
            return Err(foreign(&place, spec.owner.to_string()));
        }
        let found = self.marked(&uuid, &listed).await.map_err(failed)?;
        let half_made = match self.only_one(found).await? {
            Some(found) if found.record.made => return self.as_it_is(spec, &found).await,
            Some(found) if found.record.spec.hash() == spec.hash() && fits(spec, &found.place) => {
                Some(found.place)
            }
            Some(found) => {
                self.remove(&found).await?;
                None
            }
            None => None,
        };
        let begun = match half_made {
            Some(place) => self.unlocked(&place).await?,
            None => self.begin(spec).await?,
        };
        // Drivers of other machines may be at it too. All of them look after they began and before any of them says
        // that it is made, so the last of them sees every other and all keep the same one.
        let kept = self.kept(spec).await?;
        if kept.record.made {
            return self.as_it_is(spec, &kept).await;
        }
        let place = if kept.place == begun { begun } else { self.unlocked(&kept.place).await? };
        self.finish(spec, place).await?;
        let made = self.kept(spec).await?;
        self.ensured(&made, true).await
    }

    /// Returns the one machine with this mark; what else has it is removed.
    async fn kept(&self, spec: &MachineSpec) -> Result<Found, MachineError> {
        let failed = |error: ApiError| error.while_doing(&format!("looking for {}", spec.owner));
        let listed = self.listed().await.map_err(failed)?;
        let found = self.marked(&spec.owner.uuid(), &listed).await.map_err(failed)?;
        let went = || MachineError::failed(format!("{} went while it was made", spec.owner));
        self.only_one(found).await?.ok_or_else(went)
    }

    /// Refuses a number that no machine here can have.
    fn check_number(&self, vmid: u32) -> Result<(), MachineError> {
        let (low, high) = (self.settings.vmids.start(), self.settings.vmids.end());
        match self.settings.vmids.contains(&vmid) {
            true => Ok(()),
            false => Err(MachineError::Invalid(format!(
                "vmid {vmid} is not between {low} and {high} (`vmid_range`)"
            ))),
        }
    }

    /// Refuses a number that the machine of `owner` cannot have.
    pub(super) async fn refuse_number(&self, owner: &Owner, vmid: u32) -> Result<(), MachineError> {
        self.check_number(vmid)?;
        let taken = self.foreign(owner, Some(vmid), &[]).await;
        match taken.map_err(|error| error.while_doing(&format!("looking for machine {vmid}")))? {
            Some(place) => Err(foreign(&place, owner.to_string())),
            None => Ok(()),
        }
    }

    /// Refuses what no machine here can be.
    fn check(&self, spec: &MachineSpec) -> Result<(), MachineError> {
        crate::machine::vm::check(spec)?;
        boot::check(spec.boot.as_ref())?;
        spec.vmid.map_or(Ok(()), |vmid| self.check_number(vmid))?;
        for nic in &spec.nics {
            check_nic(nic)?;
        }
        if spec.kind == MachineKind::Vm {
            return Ok(());
        }
        if spec.root_password.as_ref().is_some_and(|hash| !takes_hash(hash.expose())) {
            let why = "`passwords.vm_root` has a hash that Proxmox would take for the password itself: for containers \
                       use one of `$5$` or `$6$` without rounds";
            return Err(MachineError::Invalid(why.to_owned()));
        }
        let keys = format!("{}/{}", path::KEYS, spec.user);
        if let Some(file) = spec.files.iter().find(|file| file.path != keys) {
            return Err(MachineError::Unsupported(format!(
                "Proxmox gives containers no files, so not {}: configure this one by push",
                file.path
            )));
        }
        if spec.user != "root" && !spec.authorized_keys.is_empty() {
            return Err(MachineError::Unsupported(format!(
                "Proxmox opens containers for root alone, not for {}: set `defaults.vm_user: root`",
                spec.user
            )));
        }
        Ok(())
    }

    /// Returns a machine that is there, if it is the one that is asked for.
    async fn as_it_is(&self, spec: &MachineSpec, found: &Found) -> Result<Ensured, MachineError> {
        let mut changes = spec.differences(&found.record.spec);
        if !fits(spec, &found.place) {
            let (old, new) = (found.place.vmid.into(), spec.vmid.into());
            changes.push(ShapeChange { field: "vmid".to_owned(), old, new });
        }
        if changes.is_empty() {
            return self.ensured(found, false).await;
        }
        Err(MachineError::Conflict { machine: format!("{} ({})", spec.owner, found.place), changes })
    }

    async fn ensured(&self, found: &Found, changed: bool) -> Result<Ensured, MachineError> {
        let owner = &found.record.spec.owner;
        let machine =
            self.machine(found).await.map_err(|error| error.while_doing(&format!("looking at {owner}")))?;
        let gone = || MachineError::NotFound(found.id());
        Ok(Ensured { machine: machine.ok_or_else(gone)?, changed })
    }

    /// Keeps one of the machines with the same mark: the one that is wholly made, else the one with the lowest number.
    async fn only_one(&self, mut found: Vec<Found>) -> Result<Option<Found>, MachineError> {
        found.sort_by_key(|one| (!one.record.made, one.place.vmid));
        let mut found = found.into_iter();
        let Some(first) = found.next() else { return Ok(None) };
        for other in found {
            if other.record.made {
                return Err(MachineError::failed(format!(
                    "{} is there twice, as {} and as {}: remove one of them by hand",
                    first.record.spec.owner, first.place, other.place
                )));
            }
            self.remove(&other).await?;
        }
        Ok(Some(first))
    }

    /// Makes what will be the machine, at a number of its own.
    async fn begin(&self, spec: &MachineSpec) -> Result<Place, MachineError> {
        let source = self.source(spec).await?;
        let record = Record::new(spec, clock::now());
        let doing = format!("making {}", spec.owner);
        // Disks are copied few at a time: storages lock themselves, and time out.
        let _one_of_few = self.disks.acquire().await;
        let mut tries = self.api.tries();
        let mut raced = BTreeSet::new();
        loop {
            let (place, sent) = {
                let _short = hold(&self.settings.lock_dir, &self.numbers_lock()).await?;
                let vmid = match spec.vmid {
                    Some(vmid) => vmid,
                    None => self.free_number(&raced).await?,
                };
                let place = Place { vmid, node: self.settings.node.clone(), kind: spec.kind };
                let change = self.creation(spec, &source, &place, &record).await?;
                (place, self.api.send(&change).await)
            };
            let made = match sent {
                Ok(data) => self.api.finish(&data).await,
                Err(error) => Err(error),
            };
            match made {
                Ok(warning) => {
                    self.say(warning);
                    return Ok(place);
                }
                Err(error) if error.is_taken() || matches!(error, ApiError::Lost(_)) => {
                    if self.is_begun(&place, &record).await.map_err(|error| error.while_doing(&doing))? {
                        return self.unlocked(&place).await;
                    }
                    if matches!(error, ApiError::Lost(_)) {
                        tries.again(error).await.map_err(|error| error.while_doing(&doing))?;
                    } else if spec.vmid.is_some() {
                        return Err(foreign(&place, spec.owner.to_string()));
                    } else if raced.len() + 1 >= RACES {
                        return Err(
                            error.while_doing(&format!("{doing}: {RACES} numbers were taken by others"))
                        );
                    } else {
                        raced.insert(place.vmid);
                    }
                }
                Err(error) => tries.again(error).await.map_err(|error| error.while_doing(&doing))?,
            }
        }
    }

    /// Whether a request without an answer made the machine after all.
    async fn is_begun(&self, place: &Place, record: &Record) -> Result<bool, ApiError> {
        Ok(match self.look(place.clone()).await? {
            At::Ours(found) => found.record.uuid() == record.uuid(),
            At::Absent | At::Foreign(_) => false,
        })
    }

    /// Waits until nothing holds the machine's lock.
    async fn unlocked(&self, place: &Place) -> Result<Place, MachineError> {
        let doing = format!("waiting for {place}");
        let mut tries = self.api.tries();
        loop {
            let config = self.config(place).await.map_err(|error| error.while_doing(&doing))?;
            let Some(config) = config else {
                return Err(MachineError::failed(format!("{place} went while it was being made")));
            };
            let Some(lock) = config.get("lock").and_then(Value::as_str) else { return Ok(place.clone()) };
            let busy = ApiError::Busy(format!("{place} is locked ({lock})"));
            tries.again(busy).await.map_err(|error| error.while_doing(&doing))?;
        }
    }

    fn numbers_lock(&self) -> String {
        let digest = Sha256::digest(&self.settings.endpoint);
        let hash: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        format!("vmids-{hash}")
    }

    /// Returns a number that nobody has now. It is not reserved.
    async fn free_number(&self, raced: &BTreeSet<u32>) -> Result<u32, MachineError> {
        let failed = |error: ApiError| error.while_doing("looking for a free number");
        let range = &self.settings.vmids;
        let next = self.api.get("cluster/nextid").await.map_err(failed)?;
        let next = super::find::number(&next).filter(|next| range.contains(next));
        let taken = self.taken().await.map_err(failed)?;
        let free = |vmid: &u32| !taken.contains(vmid) && !raced.contains(vmid);
        for vmid in (next.unwrap_or(*range.start())..=*range.end()).filter(free).take(PROBES) {
            match self.api.get(&format!("cluster/nextid?vmid={vmid}")).await {
                Ok(_) => return Ok(vmid),
                Err(ApiError::Refused(_)) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(MachineError::failed(format!(
            "no number from {} to {} is free (`vmid_range`)",
            range.start(),
            range.end()
        )))
    }

    /// Returns the request that makes the machine.
    async fn creation(
        &self,
        spec: &MachineSpec,
        source: &Source,
        place: &Place,
        record: &Record,
    ) -> Result<Change, MachineError> {
        let node = encode(&self.settings.node);
        let (vmid, datastore) = (place.vmid.to_string(), &self.settings.datastore);
        let name = half_made_name(&spec.owner.uuid());
        Ok(match source {
            Source::Clone(template) => {
                let failed = |error: ApiError| error.while_doing("looking for the template");
                // A template of shared storage may be on any node.
                let from = self.place_of(*template).await.map_err(failed)?;
                let absent = || MachineError::Invalid(format!("there is no template {template}"));
                Change::new("POST", from.ok_or_else(absent)?.path("clone"))
                    .with("newid", vmid)
                    .with("target", &self.settings.node)
                    .with("name", name)
                    .with("description", record.to_description())
                    .with("full", "1")
                    .with("storage", datastore)
            }
            Source::Import(volume) => Change::new("POST", format!("nodes/{node}/{}", word(MachineKind::Vm)))
                .with("vmid", vmid)
                .with("name", name)
                .with("description", record.to_description())
                .with("tags", MARK)
                .with("ostype", "l26")
                .with("scsihw", "virtio-scsi-single")
                .with("scsi0", format!("{datastore}:0,import-from={volume}"))
                .with("boot", "order=scsi0")
                .with("serial0", "socket")
                .with("cores", spec.cpus.unwrap_or(CPUS).to_string())
                .with("memory", spec.memory_mb.unwrap_or(MEMORY_MB).to_string()),
            Source::Tree(volume) => {
                let mut change = Change::new("POST", format!("nodes/{node}/{}", word(MachineKind::Ct)))
                    .with("vmid", vmid)
                    .with("hostname", spec.owner.name())
                    .with("description", record.to_description())
                    .with("tags", MARK)
                    .with("ostemplate", volume)
                    .with("unprivileged", "1")
                    .with("rootfs", format!("{datastore}:{}", spec.disk_gb.unwrap_or(CONTAINER_GB)))
                    .with("cores", spec.cpus.unwrap_or(CPUS).to_string())
                    .with("memory", spec.memory_mb.unwrap_or(MEMORY_MB).to_string());
                for (index, card) in self.cards(spec).iter().enumerate() {
                    change = change.with(format!("net{index}"), container_card(spec, card, index));
                }
                if !spec.authorized_keys.is_empty() {
                    change = change.with("ssh-public-keys", keys(spec));
                }
                if let Some(hash) = &spec.root_password {
                    change = change.with("password", hash.expose());
                }
                if !spec.name_servers.is_empty() {
                    let servers: Vec<String> = spec.name_servers.iter().map(IpAddr::to_string).collect();
                    change = change.with("nameserver", servers.join(" "));
                }
                change
            }
        })
    }

    /// Returns the machine's cards: one on the host's bridge unless it says otherwise.
    fn cards(&self, spec: &MachineSpec) -> Vec<Nic> {
        let mut cards = spec.nics.clone();
        if cards.is_empty() {
            cards.push(Nic {
                network: String::new(),
                mac: None,
                address: None,
                gateway: None,
                ports: Vec::new(),
            });
        }
        for card in cards.iter_mut().filter(|card| card.network.is_empty()) {
            card.network.clone_from(&self.settings.bridge);
        }
        cards
    }

    /// Does what is missing of a machine that was begun. Each step may be done again.
    async fn finish(&self, spec: &MachineSpec, place: Place) -> Result<(), MachineError> {
        let doing = format!("making {}", spec.owner);
        let failed = |error: ApiError| error.while_doing(&doing);
        let gone = || MachineError::failed(format!("{place} went while it was being made"));
        let At::Ours(found) = self.look(place.clone()).await.map_err(failed)? else { return Err(gone()) };
        let mut record = found.record.clone();
        record.made = true;
        let last = match spec.kind {
            MachineKind::Vm => {
                self.fit_out(spec, &found).await?;
                let io = |error: std::io::Error| MachineError::failed(format!("{doing}: {error}"));
                let key = match &spec.host_key {
                    Some(key) => ServerKey::parse(key.expose()).map_err(MachineError::Invalid)?,
                    None => ServerKey::generate().map_err(io)?,
                };
                record.host_key = Some(key.public().map_err(io)?);
                let volume = seed::volume(spec, &[], &key).map_err(io)?;
                let uploads = format!(
                    "nodes/{}/storage/{}/upload",
                    encode(&place.node),
                    encode(&self.settings.iso_storage)
                );
                self.api.upload(&uploads, &seed_file(&spec.owner.uuid()), &volume).await.map_err(failed)?;
                let drive = format!("{},media=cdrom", self.seed_volume(&spec.owner.uuid()));
                Change::new("PUT", place.path("config"))
                    .with("name", spec.owner.name())
                    .with(SEED_DRIVE, drive)
            }
            MachineKind::Ct => Change::new("PUT", place.path("config")),
        };
        let last = last.with("description", record.to_description());
        self.api.ensure(&last).await.map_err(failed).map(|warning| self.say(warning))
    }

    /// Gives a virtual machine its processors, memory, cards and disks.
    async fn fit_out(&self, spec: &MachineSpec, found: &Found) -> Result<(), MachineError> {
        let doing = format!("making {}", spec.owner);
        let failed = |error: ApiError| error.while_doing(&doing);
        let config = &found.config;
        let place = &found.place;
        let known = config.get("tags").and_then(Value::as_str).unwrap_or_default();
        let mut tags: Vec<&str> = tags(known).filter(|tag| *tag != MARK).collect();
        tags.push(MARK);
        let mut change = Change::new("PUT", place.path("config"))
            .with("tags", tags.join(";"))
            .with("agent", "1")
            .with("ciuser", &spec.user);
        if let Some(cpus) = spec.cpus {
            change = change.with("cores", cpus.to_string());
        }
        if let Some(memory) = spec.memory_mb {
            change = change.with("memory", memory.to_string());
        }
        if !spec.authorized_keys.is_empty() {
            // Encoded here, and once more with the form.
            change = change.with("sshkeys", encode(&keys(spec)));
        }
        for (index, card) in self.cards(spec).iter().enumerate() {
            change = change
                .with(
                    format!("net{index}"),
                    format!("virtio={},bridge={}", mac(spec, card, index), card.network),
                )
                .with(format!("ipconfig{index}"), address(card));
        }
        let others = boot::cloudinit_drives(config);
        if !others.is_empty() {
            // Two seeds would contradict each other.
            change = change.with("delete", others.join(","));
        }
        for (index, disk) in spec.disks.iter().enumerate() {
            let drive = format!("scsi{}", index + 1);
            if config.get(&drive).is_none() {
                change = change.with(drive, format!("{}:{}", self.settings.datastore, disk.size_gb));
            }
        }
        self.api.ensure(&change).await.map_err(failed).map(|warning| self.say(warning))?;
        self.grow(spec, place, config).await
    }

    /// Makes the first disk as large as asked for.
    async fn grow(&self, spec: &MachineSpec, place: &Place, config: &Value) -> Result<(), MachineError> {
        let Some(wanted) = spec.disk_gb else { return Ok(()) };
        let Some((disk, size)) = boot::boot_disk(config) else {
            return Err(MachineError::Invalid(format!("{place} has no disk to boot from")));
        };
        let wanted_bytes = wanted.saturating_mul(1 << 30);
        if size.is_some_and(|size| size > wanted_bytes) {
            return Err(MachineError::Invalid(format!(
                "a disk of {wanted} GB is too small for its image, which has {} bytes",
                size.unwrap_or_default()
            )));
        }
        if size == Some(wanted_bytes) {
            return Ok(());
        }
        let change =
            Change::new("PUT", place.path("resize")).with("disk", disk).with("size", format!("{wanted}G"));
        let grown = self.api.ensure(&change).await;
        grown
            .map_err(|error| error.while_doing(&format!("growing the disk of {place}")))
            .map(|warning| self.say(warning))
    }

    /// Returns the volume of a machine's seed.
    pub(super) fn seed_volume(&self, uuid: &str) -> String {
        format!("{}:iso/{}", self.settings.iso_storage, seed_file(uuid))
    }
}

/// Returns the error of something that is not ours.
pub(super) fn foreign(place: &Place, owner: String) -> MachineError {
    MachineError::Foreign { what: place.to_string(), owner }
}

/// Returns the name of a machine's lock.
pub(super) fn lock_name(uuid: &str) -> String {
    format!("machine-{uuid}")
}

fn seed_file(uuid: &str) -> String {
    format!("{MARK}-{uuid}.iso")
}

/// Whether a machine has the number that is asked for, if one is.
fn fits(spec: &MachineSpec, place: &Place) -> bool {
    spec.vmid.is_none_or(|vmid| vmid == place.vmid)
}

fn keys(spec: &MachineSpec) -> String {
    spec.authorized_keys.iter().map(|key| key.trim()).collect::<Vec<_>>().join("\n")
}

/// Whether Proxmox knows this for a hash; it hashes what it does not.
fn takes_hash(hash: &str) -> bool {
    let mut parts = hash.split('$');
    let is_plain = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '/'));
    let (first, kind, salt, rest) = (parts.next(), parts.next(), parts.next(), parts.next());
    let is_known = kind.is_some_and(|kind| matches!(kind, "1" | "2" | "2a" | "2x" | "2y" | "5" | "6"));
    let is_salt = salt.is_some_and(|salt| (1..=16).contains(&salt.len()) && is_plain(salt));
    first == Some("")
        && is_known
        && is_salt
        && rest.is_some_and(|rest| !rest.is_empty() && is_plain(rest))
        && parts.next().is_none()
}

fn mac(spec: &MachineSpec, card: &Nic, index: usize) -> String {
    card.mac.clone().unwrap_or_else(|| spec.owner.mac(index)).to_ascii_uppercase()
}

fn address(card: &Nic) -> String {
    match (&card.address, &card.gateway) {
        (Some(address), Some(gateway)) => format!("ip={address},gw={gateway}"),
        (Some(address), None) => format!("ip={address}"),
        (None, _) => "ip=dhcp".to_owned(),
    }
}

fn container_card(spec: &MachineSpec, card: &Nic, index: usize) -> String {
    format!("name=eth{index},bridge={},hwaddr={},{}", card.network, mac(spec, card, index), address(card))
}

/// Refuses what would be read as something else in a list of options.
fn check_nic(nic: &Nic) -> Result<(), MachineError> {
    let odd = |text: &str| text.contains([',', '=', ';', ' ']) || text.contains(char::is_control);
    let texts =
        [Some(nic.network.as_str()), nic.mac.as_deref(), nic.address.as_deref(), nic.gateway.as_deref()];
    match texts.into_iter().flatten().find(|text| odd(text)) {
        Some(text) => {
            Err(MachineError::Invalid(format!("`{}` cannot be said of a network card", text.escape_debug())))
        }
        None => Ok(()),
    }
}

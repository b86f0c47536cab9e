//! Which machines are there, and which of them are ours.
//!
//! A machine of ours carries our tag, or, while it is being cloned, a name made of its UUID; the mark in its notes says
//! whose it is, and alone decides. Nothing here changes anything.

use std::sync::PoisonError;

use serde_json::Value;
use stead_model::machine::{MachineId, MachineKind, Owner};
use stead_runner::machine::MachineError;

use super::Cluster;
use super::api::ApiError;
use super::form::encode;
use super::record::{MARK, Record};

/// Where a machine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) vmid: u32,
    pub(super) node: String,
    pub(super) kind: MachineKind,
}

impl Place {
    /// Returns the path of what is at this place.
    pub(super) fn path(&self, what: &str) -> String {
        format!("nodes/{}/{}/{}/{what}", encode(&self.node), word(self.kind), self.vmid)
    }

    /// Returns the path of the machine itself.
    pub(super) fn own_path(&self) -> String {
        format!("nodes/{}/{}/{}", encode(&self.node), word(self.kind), self.vmid)
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let noun = match self.kind {
            MachineKind::Vm => "VM",
            MachineKind::Ct => "CT",
        };
        write!(f, "{noun} {} on {}", self.vmid, self.node)
    }
}

/// What the API calls machines of a kind.
pub(super) fn word(kind: MachineKind) -> &'static str {
    match kind {
        MachineKind::Vm => "qemu",
        MachineKind::Ct => "lxc",
    }
}

/// A machine as lists have it.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    pub(super) place: Place,
    pub(super) name: String,
    pub(super) is_template: bool,
    is_tagged: bool,
}

impl Listed {
    fn read(entry: &Value, node: &str, kind: MachineKind) -> Option<Self> {
        let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default();
        Some(Self {
            place: Place { vmid: number(entry.get("vmid")?)?, node: node.to_owned(), kind },
            name: text("name").to_owned(),
            is_template: entry.get("template").and_then(number) == Some(1),
            is_tagged: tags(text("tags")).any(|tag| tag == MARK),
        })
    }

    fn may_be_ours(&self) -> bool {
        !self.is_template && (self.is_tagged || self.name.starts_with(&half_made_name("")))
    }
}

/// Returns the tags of a text that has some.
pub(super) fn tags(text: &str) -> impl Iterator<Item = &str> {
    text.split([';', ',', ' ']).filter(|tag| !tag.is_empty())
}

/// Returns the name of a machine while it is being made.
pub(super) fn half_made_name(uuid: &str) -> String {
    format!("{MARK}-{uuid}")
}

/// Returns a number that may be written as text.
pub(super) fn number(value: &Value) -> Option<u32> {
    match value {
        Value::Number(number) => number.as_u64()?.try_into().ok(),
        Value::String(text) => text.parse().ok(),
        Value::Bool(is_so) => Some(u32::from(*is_so)),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// A machine of ours, with what its configuration said.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) place: Place,
    pub(super) config: Value,
    pub(super) record: Record,
}

impl Found {
    pub(super) fn id(&self) -> MachineId {
        MachineId::new(format!("{}.{}", self.place.vmid, self.record.uuid()))
    }
}

/// What is where a machine is looked for.
pub(super) enum At {
    Absent,
    Foreign(Place),
    Ours(Box<Found>),
}

/// What a machine's id says: where it was, and which one it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) vmid: u32,
    pub(super) uuid: String,
}

impl Known {
    pub(super) fn parse(id: &MachineId) -> Result<Self, MachineError> {
        let fits = |c: char| c.is_ascii_hexdigit() || c == '-';
        let parts = id.as_str().split_once('.').and_then(|(vmid, uuid)| Some((vmid.parse().ok()?, uuid)));
        match parts {
            Some((vmid, uuid)) if uuid.len() == 36 && uuid.chars().all(fits) => {
                Ok(Self { vmid, uuid: uuid.to_owned() })
            }
            Some(_) | None => Err(MachineError::Invalid(format!(
                "`{}` is not the id of a machine in Proxmox",
                id.as_str().escape_debug()
            ))),
        }
    }
}

impl Cluster {
    /// Returns the machines of the host's node, and those of other nodes that carry our tag.
    pub(super) async fn listed(&self) -> Result<Vec<Listed>, ApiError> {
        let node = &self.settings.node;
        let mut all = Vec::new();
        // What every node tells of itself is as new as can be; what the cluster tells of its nodes lags behind.
        for kind in [MachineKind::Vm, MachineKind::Ct] {
            let list = self.api.get(&format!("nodes/{}/{}", encode(node), word(kind))).await?;
            let entries = list.as_array().into_iter().flatten();
            all.extend(entries.filter_map(|entry| Listed::read(entry, node, kind)));
        }
        all.extend(
            self.everywhere().await?.into_iter().filter(|one| one.place.node != *node && one.is_tagged),
        );
        Ok(all)
    }

    /// Returns the machines of all nodes: sure about where they are, not about names.
    async fn everywhere(&self) -> Result<Vec<Listed>, ApiError> {
        let list = self.api.get("cluster/resources?type=vm").await?;
        let entries = list.as_array().into_iter().flatten().filter_map(|entry| {
            let kind = match entry.get("type").and_then(Value::as_str)? {
                "qemu" => MachineKind::Vm,
                "lxc" => MachineKind::Ct,
                _ => return None,
            };
            Listed::read(entry, entry.get("node")?.as_str()?, kind)
        });
        Ok(entries.collect())
    }

    /// Returns where the machine with this number is.
    pub(super) async fn place_of(&self, vmid: u32) -> Result<Option<Place>, ApiError> {
        Ok(self.everywhere().await?.into_iter().map(|one| one.place).find(|place| place.vmid == vmid))
    }

    /// Returns the numbers that are known to be taken.
    pub(super) async fn taken(&self) -> Result<std::collections::BTreeSet<u32>, ApiError> {
        Ok(self.everywhere().await?.into_iter().map(|one| one.place.vmid).collect())
    }

    /// Returns the configuration of what is at a place.
    pub(super) async fn config(&self, place: &Place) -> Result<Option<Value>, ApiError> {
        self.api.find(&place.path("config")).await
    }

    /// Looks at a place: whose is what is there?
    pub(super) async fn look(&self, place: Place) -> Result<At, ApiError> {
        let Some(config) = self.config(&place).await? else { return Ok(At::Absent) };
        let description = config.get("description").and_then(Value::as_str).unwrap_or_default();
        Ok(match Record::parse(description) {
            Some(record) => At::Ours(Box::new(Found { place, config, record })),
            None => At::Foreign(place),
        })
    }

    /// Looks for the machine that an id means.
    pub(super) async fn at(&self, known: &Known) -> Result<At, ApiError> {
        let Some(place) = self.place_of(known.vmid).await? else { return Ok(At::Absent) };
        Ok(match self.look(place).await? {
            // Another machine of ours has its number now.
            At::Ours(found) if found.record.uuid() != known.uuid => At::Absent,
            at @ (At::Ours(_) | At::Foreign(_) | At::Absent) => at,
        })
    }

    /// Returns the machines that carry the mark of this UUID: one, unless two drivers were at it at once.
    pub(super) async fn marked(&self, uuid: &str, listed: &[Listed]) -> Result<Vec<Found>, ApiError> {
        let mut found = Vec::new();
        for one in listed.iter().filter(|one| one.may_be_ours()) {
            if self.is_anothers(one, uuid) {
                continue;
            }
            if let At::Ours(ours) = self.look(one.place.clone()).await? {
                self.remember(one, &ours.record);
                found.extend((ours.record.uuid() == uuid).then_some(*ours));
            }
        }
        Ok(found)
    }

    /// Whether a machine was seen under this number and name that is another's. Saves reading the notes of every machine
    /// for every machine.
    fn is_anothers(&self, one: &Listed, uuid: &str) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = known.get(&one.place.vmid);
        seen.is_some_and(|(name, other)| *name == one.name && !name.is_empty() && other != uuid)
    }

    fn remember(&self, one: &Listed, record: &Record) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(one.place.vmid, (one.name.clone(), record.uuid()));
    }

    /// Returns every machine of ours.
    pub(super) async fn all_marked(&self) -> Result<Vec<Found>, ApiError> {
        let mut found = Vec::new();
        for one in self.listed().await?.iter().filter(|one| one.may_be_ours()) {
            if let At::Ours(ours) = self.look(one.place.clone()).await? {
                self.remember(one, &ours.record);
                found.push(*ours);
            }
        }
        Ok(found)
    }

    /// Returns what has the machine's name or number on the host's node and is not ours.
    pub(super) async fn foreign(
        &self,
        owner: &Owner,
        vmid: Option<u32>,
        listed: &[Listed],
    ) -> Result<Option<Place>, ApiError> {
        let named = |one: &&Listed| {
            one.name == owner.name() && one.place.node == self.settings.node && !one.is_template
        };
        let mut places: Vec<Place> = listed.iter().filter(named).map(|one| one.place.clone()).collect();
        if let Some(vmid) = vmid {
            places.extend(self.place_of(vmid).await?);
        }
        for place in places {
            let has_number = vmid == Some(place.vmid);
            match self.look(place).await? {
                At::Foreign(place) => return Ok(Some(place)),
                At::Ours(found) if has_number && found.record.spec.owner != *owner => {
                    return Ok(Some(found.place));
                }
                At::Ours(_) | At::Absent => {}
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_are_read_whoever_wrote_their_numbers() {
        let read = |entry: Value| Listed::read(&entry, "a", MachineKind::Vm).unwrap();
        let one = read(json!({"vmid": "101", "name": "x", "tags": "lab;stead", "template": ""}));
        assert_eq!((one.place.vmid, one.is_template, one.may_be_ours()), (101, false, true));
        assert!(!read(json!({"vmid": 102, "name": "x", "tags": "steady"})).may_be_ours());
        assert!(!read(json!({"vmid": 102, "tags": "stead", "template": 1})).may_be_ours());
        assert!(read(json!({"vmid": 102, "name": "stead-b8ca0a97"})).may_be_ours());
        assert!(Listed::read(&json!({"name": "x"}), "a", MachineKind::Ct).is_none());
    }

    #[test]
    fn ids_name_number_and_mark() {
        let uuid = "b8ca0a97-6f03-56c9-ab24-2f428cb4ff94";
        let known = Known::parse(&MachineId::new(format!("105.{uuid}"))).unwrap();
        assert_eq!(known, Known { vmid: 105, uuid: uuid.to_owned() });
        for bad in ["", "105", uuid, "105.x", "x.b8ca0a97-6f03-56c9-ab24-2f428cb4ff94"] {
            assert!(Known::parse(&MachineId::new(bad)).is_err(), "{bad}");
        }
    }
}

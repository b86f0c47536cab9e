//! Machines: what is asked of a driver, what it answers, and the mark by which a machine is known to be ours.
//!
//! A machine belongs to a scope and has a name in it; its UUID follows from both ([`Owner::uuid`]), so that it is
//! found again when everything else is lost.

mod mark;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::time::Timestamp;

pub use mark::{InvalidOwner, MachineId, Owner};

/// What a machine should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineSpec {
    /// Whose it is.
    pub owner: Owner,
    /// What sort of machine.
    pub kind: MachineKind,
    /// Processors; none: the driver's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// Memory; none: the driver's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    /// The first disk's size; none: the driver's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_gb: Option<u64>,
    /// What it boots; none: the driver needs nothing to boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<Boot>,
    /// Disks besides the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<ExtraDisk>,
    /// Network cards, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<Nic>,
    /// What cloud-init reads at the first boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<Seed>,
    /// The account that `authorized_keys` open.
    pub user: String,
    /// Lines of public keys that open `user`, whatever the machine is configured to be later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorized_keys: Vec<String>,
    /// The private key it shows to those who connect, as OpenSSH writes it; none: it makes one.
    #[serde(skip)]
    pub host_key: Option<HostKey>,
    /// Files that are there before it starts for the first time.
    #[serde(skip)]
    pub files: Vec<PlantedFile>,
}

impl MachineSpec {
    /// Returns the spec of a machine of `kind` with the driver's defaults.
    pub fn new(owner: Owner, kind: MachineKind) -> Self {
        Self {
            owner,
            kind,
            cpus: None,
            memory_mb: None,
            disk_gb: None,
            boot: None,
            disks: Vec::new(),
            nics: Vec::new(),
            seed: None,
            user: "stead".to_owned(),
            authorized_keys: Vec::new(),
            host_key: None,
            files: Vec::new(),
        }
    }

    /// Returns the fields that cannot change once the machine is there, by name.
    ///
    /// Keys, files and the seed are not among them: they are given at the first boot, and what they become is the
    /// configuration's business.
    pub fn shape(&self) -> BTreeMap<&'static str, Value> {
        let mut shape = BTreeMap::from([
            ("boot", json(&self.boot)),
            ("cpus", json(&self.cpus)),
            ("disk_gb", json(&self.disk_gb)),
            ("disks", json(&self.disks)),
            ("kind", json(&self.kind)),
            ("memory_mb", json(&self.memory_mb)),
            ("nics", json(&self.nics)),
            ("user", json(&self.user)),
        ]);
        shape.retain(|_, value| !value.is_null() && *value != Value::Array(Vec::new()));
        shape
    }

    /// Returns `sha256:` and the hash of the canonical JSON of [`Self::shape`].
    pub fn hash(&self) -> String {
        let text = crate::canonical_json::to_string(&json(&self.shape()));
        let digest: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("sha256:{digest}")
    }

    /// Returns what of the shape differs from that of `other`, by field: there, here.
    pub fn differences(&self, other: &Self) -> Vec<ShapeChange> {
        let (old, new) = (other.shape(), self.shape());
        let names: std::collections::BTreeSet<&str> = old.keys().chain(new.keys()).copied().collect();
        let value = |shape: &BTreeMap<&str, Value>, name: &str| shape.get(name).cloned().unwrap_or_default();
        let changes = names.into_iter().map(|name| ShapeChange {
            field: name.to_owned(),
            old: value(&old, name),
            new: value(&new, name),
        });
        changes.filter(|change| change.old != change.new).collect()
    }
}

fn json<T: Serialize>(value: &T) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

/// A field of a machine that is not as it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeChange {
    /// Its name in [`MachineSpec`].
    pub field: String,
    /// What the machine has.
    pub old: Value,
    /// What is asked for.
    pub new: Value,
}

impl fmt::Display for ShapeChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, not {}", self.field, self.old, self.new)
    }
}

/// What sort of machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MachineKind {
    /// A virtual machine.
    Vm,
    /// A container.
    Ct,
}

/// What a machine boots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Boot {
    /// A disk image, by name or path.
    Image(String),
    /// A file tree, by name or path.
    Template(String),
    /// A kernel, without a boot loader.
    Kernel {
        /// Its path.
        kernel: String,
        /// The first file system's path.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        initrd: Option<String>,
        /// The kernel's arguments.
        #[serde(default)]
        cmdline: String,
    },
}

/// A disk besides the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraDisk {
    /// Its name in the machine's directory.
    pub name: String,
    /// Its size.
    pub size_gb: u64,
}

/// A network card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// What it is plugged into, as the driver names networks.
    pub network: String,
    /// Its hardware address; none: [`Owner::mac`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Its address with prefix length; none: the network gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

/// What cloud-init reads. `Debug` shows nothing of it: a token may be in it.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seed {
    /// `user-data`.
    pub user_data: String,
    /// `meta-data`.
    pub meta_data: String,
    /// `network-config`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_config: Option<String>,
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed")
    }
}

/// A private key. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct HostKey(String);

impl HostKey {
    /// Returns the key of this text, as OpenSSH writes private keys.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// Returns its text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostKey")
    }
}

/// A file that a machine has from the beginning. `Debug` does not show its content.
#[derive(Clone, PartialEq, Eq)]
pub struct PlantedFile {
    /// Where it is in the machine: absolute.
    pub path: String,
    /// Its permission bits.
    pub mode: u32,
    /// Its content.
    pub content: Vec<u8>,
}

impl fmt::Debug for PlantedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlantedFile")
            .field("path", &self.path)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

/// A machine, as its driver sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// As its driver calls it.
    pub id: MachineId,
    /// Whose it is.
    pub owner: Owner,
    /// The mark.
    pub uuid: String,
    /// What it is doing.
    pub state: MachineState,
    /// [`MachineSpec::hash`] of what it was made from.
    pub spec_hash: String,
    /// Its process, where it is one of this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Where it is reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// How it is logged in to, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<SshDoor>,
    /// How its last run ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<MachineExit>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
}

/// Where a machine takes logins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SshDoor {
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// The key it shows: type and base64.
    pub host_key: String,
}

/// How a machine's run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineExit {
    /// Its process's exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// The signal that ended its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// When, if somebody was there to see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// Why, in words.
    pub reason: String,
}

/// What a machine is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MachineState {
    /// It is being made, or was when its maker died.
    Creating,
    /// It is there and does not run.
    Stopped,
    /// It is on its way up.
    Starting,
    /// It runs.
    Running,
    /// It is on its way down.
    Stopping,
    /// Its last run ended badly.
    Failed,
}

impl MachineState {
    /// Whether there is something running.
    pub fn is_live(self) -> bool {
        match self {
            Self::Starting | Self::Running | Self::Stopping => true,
            Self::Creating | Self::Stopped | Self::Failed => false,
        }
    }
}

/// Which machines are listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnerScope {
    /// Every machine of this driver.
    All,
    /// Those of exactly this scope.
    Exactly(String),
}

impl OwnerScope {
    /// Whether a machine of `owner` is meant.
    pub fn covers(&self, owner: &Owner) -> bool {
        match self {
            Self::All => true,
            Self::Exactly(scope) => owner.scope() == scope,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> MachineSpec {
        MachineSpec {
            cpus: Some(2),
            boot: Some(Boot::Image("debian-12".to_owned())),
            ..MachineSpec::new(Owner::new("lab/harbour/local", "quay").unwrap(), MachineKind::Vm)
        }
    }

    #[test]
    fn keys_files_and_seed_do_not_make_another_machine() {
        let given = MachineSpec {
            authorized_keys: vec!["ssh-ed25519 AAAA".to_owned()],
            host_key: Some(HostKey::new("secret".to_owned())),
            seed: Some(Seed::default()),
            files: vec![PlantedFile { path: "/x".to_owned(), mode: 0o600, content: b"hush".to_vec() }],
            ..spec()
        };
        assert_eq!(given.hash(), spec().hash());
        assert_eq!(given.differences(&spec()), []);
        assert!(!format!("{given:?}").contains("hush") && !format!("{given:?}").contains("secret"));
        assert!(!serde_json::to_string(&given).unwrap().contains("hush"));
    }

    #[test]
    fn every_difference_is_named_with_both_values() {
        let other = MachineSpec { cpus: Some(4), boot: None, ..spec() };
        let said: Vec<String> = other.differences(&spec()).iter().map(ToString::to_string).collect();
        assert_eq!(said, ["boot is {\"image\":\"debian-12\"}, not null", "cpus is 2, not 4"]);
        assert_ne!(other.hash(), spec().hash());
    }
}

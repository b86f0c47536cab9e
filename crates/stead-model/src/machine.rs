//! Machines: what is asked of a driver, what it answers, and the mark by which a machine is known to be ours.
//!
//! A machine belongs to a scope and has a name in it; its UUID follows from both ([`Owner::uuid`]), so that it is
//! found again when everything else is lost.

mod mark;

use core::net::IpAddr;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::site::secrets::Secret;
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
    /// Thousandths of a processor it may use, where a part of one can be given; none: `cpus`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_milli: Option<u64>,
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
    /// Disks whose files are there already, before the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drives: Vec<Drive>,
    /// Directories of this machine that it has, by where it has them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mounts: BTreeMap<String, String>,
    /// Whether it has a socket to the machine it runs on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub vsock: bool,
    /// Network cards, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<Nic>,
    /// What cloud-init reads at the first boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<Seed>,
    /// What it runs, whose end is its own; none: it stands ready for logins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<MachineProgram>,
    /// The number it is to have, where machines have numbers; none: a free one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vmid: Option<u32>,
    /// The account that `authorized_keys` open.
    pub user: String,
    /// Whether machines are made in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hosts: bool,
    /// Lines of public keys that open `user`, whatever the machine is configured to be later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authorized_keys: Vec<String>,
    /// The private key it shows to those who connect, as OpenSSH writes it; none: it makes one.
    #[serde(skip)]
    pub host_key: Option<HostKey>,
    /// The crypt hash of its root's password; none: what its image or template has.
    #[serde(skip)]
    pub root_password: Option<Secret>,
    /// Who it asks for names, where its address is fixed or its driver chooses it; none: what its network or its template
    /// says.
    #[serde(skip)]
    pub name_servers: Vec<IpAddr>,
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
            cpu_milli: None,
            memory_mb: None,
            disk_gb: None,
            boot: None,
            disks: Vec::new(),
            drives: Vec::new(),
            mounts: BTreeMap::new(),
            vsock: false,
            nics: Vec::new(),
            seed: None,
            program: None,
            vmid: None,
            user: "stead".to_owned(),
            hosts: false,
            authorized_keys: Vec::new(),
            host_key: None,
            root_password: None,
            name_servers: Vec::new(),
            files: Vec::new(),
        }
    }

    /// Returns the fields that cannot change once the machine is there, by name.
    ///
    /// Keys, files and the seed are not among them: they are given at the first boot, and what they become is the
    /// configuration's business. Nor is whether it makes machines: only some drivers care. Nor its number: one that was
    /// given a free one has that. Nor the way out of its networks: it is set at each start.
    pub fn shape(&self) -> BTreeMap<&'static str, Value> {
        let nics: Vec<Nic> = self.nics.iter().map(|nic| Nic { gateway: None, ..nic.clone() }).collect();
        let mut shape = BTreeMap::from([
            ("boot", json(&self.boot)),
            ("cpu_milli", json(&self.cpu_milli)),
            ("cpus", json(&self.cpus)),
            ("disk_gb", json(&self.disk_gb)),
            ("disks", json(&self.disks)),
            ("drives", json(&self.drives)),
            ("kind", json(&self.kind)),
            ("memory_mb", json(&self.memory_mb)),
            ("mounts", json(&(!self.mounts.is_empty()).then_some(&self.mounts))),
            ("nics", json(&nics)),
            ("program", json(&self.program.as_ref().map(MachineProgram::shape))),
            ("user", json(&self.user)),
            ("vsock", json(&self.vsock.then_some(true))),
        ]);
        shape.retain(|_, value| !value.is_null() && *value != Value::Array(Vec::new()));
        shape
    }

    /// Returns `sha256:` and the hash of the canonical JSON of [`Self::shape`].
    pub fn hash(&self) -> String {
        digest(&json(&self.shape()))
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

/// Returns `sha256:` and the hash of the canonical JSON of a value.
fn digest(value: &Value) -> String {
    let digest = Sha256::digest(crate::canonical_json::to_string(value));
    format!("sha256:{}", digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
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

impl ShapeChange {
    /// Returns what a manifest or preset calls the field.
    fn word(&self) -> &str {
        match self.field.as_str() {
            "cpus" => "cores",
            "memory_mb" => "memory",
            "disk_gb" => "disk",
            other => other,
        }
    }
}

impl fmt::Display for ShapeChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What it boots from has a word of its own in a manifest, which is the only key.
        let only = |value: &'_ Value| {
            let (word, named) = value.as_object().filter(|map| map.len() == 1)?.iter().next()?;
            Some((word.clone(), named.clone()))
        };
        match (only(&self.old), only(&self.new)) {
            (Some((word, old)), Some((other, new))) if word == other => {
                write!(f, "{word} is {old}, not {new}")
            }
            (Some(_) | None, Some(_) | None) => {
                write!(f, "{} is {}, not {}", self.word(), self.old, self.new)
            }
        }
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
    /// What finds the kernel on the first disk, by its path.
    Firmware(String),
}

/// A disk whose file is there already.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drive {
    /// Its absolute path.
    pub path: String,
    /// How its bits are laid out.
    pub format: DriveFormat,
    /// What the machine may do with it.
    pub access: DriveAccess,
}

/// How the bits of a disk are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriveFormat {
    /// One after the other.
    Raw,
    /// As QEMU does.
    Qcow2,
}

/// What a machine may do with a disk whose file is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriveAccess {
    /// Read it.
    ReadOnly,
    /// Write to a layer of its own, which goes with the machine.
    Private,
    /// Write to the file.
    Shared,
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
    /// What it is plugged into, as the driver names networks; empty: what machines are plugged into there.
    pub network: String,
    /// Its hardware address; none: [`Owner::mac`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Its address with prefix length; none: the network gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The way out of that address's network, where the driver has to say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// Ports of it that are reached at ports of this machine, where the network can pass them on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PassedPort>,
}

/// A port of a machine that is reached at one of the machine it runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedPort {
    /// In the machine.
    pub guest: u16,
    /// Here.
    pub host: u16,
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

/// What a machine runs. `Debug` does not show its environment.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineProgram {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Its environment, besides what every program of the machine has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The directory of the machine it starts in; none: its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

impl MachineProgram {
    /// Returns what of it cannot change: its environment by hash alone, since what differs is told.
    fn shape(&self) -> Value {
        let mut shape = json(self);
        if let Some(env) = shape.get_mut("env") {
            *env = Value::String(digest(env));
        }
        shape
    }
}

impl fmt::Debug for MachineProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MachineProgram")
            .field("argv", &self.argv)
            .field("cwd", &self.cwd)
            .finish_non_exhaustive()
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
    /// Its number, where machines have numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vmid: Option<u32>,
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
        assert_eq!(said, ["boot is {\"image\":\"debian-12\"}, not null", "cores is 2, not 4"]);
        assert_ne!(other.hash(), spec().hash());
    }

    /// What differs goes into errors, journals and bundles.
    #[test]
    fn a_program_with_another_environment_differs_without_saying_how() {
        let with = |secret: &str| {
            let env = BTreeMap::from([("TOKEN".to_owned(), secret.to_owned())]);
            let program = MachineProgram { argv: vec!["run".to_owned()], env, cwd: None };
            MachineSpec { program: Some(program), ..spec() }
        };
        assert_eq!(with("hush").differences(&with("hush")), []);
        assert_ne!(with("hush").hash(), with("hidden").hash());
        let said = format!("{:?}", with("hush").differences(&with("hidden")));
        assert!(said.contains("sha256:") && !said.contains("hush") && !said.contains("hidden"), "{said}");
    }
}

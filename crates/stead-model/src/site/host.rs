//! Hosts: machines that can make machines. The same fields describe what a node does for its children (`hosting`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::address::Cidr;
use super::{Located, read};
use crate::id::SiteKey;
use crate::transport::Become;
use crate::yaml::{Fields, Node, Walk};

mod fault;
mod keys;
mod write;

pub use fault::{Fault, FaultPhase};
pub(super) use keys::VMIDS;
use keys::{ACCESS_KEYS, NETWORK_KEYS, STORAGE_KEYS, TIMEOUT_KEYS};
pub use keys::{HOST_KEYS, HOSTING_KEYS, INSTANCE_KEYS};

/// What makes machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverKind {
    /// Processes that stand for machines; needs nothing.
    Sandbox,
    /// OCI containers.
    Oci,
    /// QEMU.
    Qemu,
    /// Cloud Hypervisor.
    CloudHypervisor,
    /// A Proxmox API.
    Proxmox,
    /// Nothing: the host can be configured, but makes no machines.
    None,
}

impl DriverKind {
    /// Every driver with its word.
    pub const WORDS: [(&'static str, Self); 6] = [
        ("sandbox", Self::Sandbox),
        ("oci", Self::Oci),
        ("qemu", Self::Qemu),
        ("cloud-hypervisor", Self::CloudHypervisor),
        ("proxmox", Self::Proxmox),
        ("none", Self::None),
    ];

    /// Returns the driver's word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Oci => "oci",
            Self::Qemu => "qemu",
            Self::CloudHypervisor => "cloud-hypervisor",
            Self::Proxmox => "proxmox",
            Self::None => "none",
        }
    }
}

/// How long each part of a node's life may take, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Making it.
    pub create: u32,
    /// Getting an address.
    pub address: u32,
    /// Answering over SSH.
    pub ssh: u32,
    /// Becoming its spec.
    pub config: u32,
    /// Running its subtree.
    pub delegate: u32,
    /// Removing it.
    pub destroy: u32,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { create: 300, address: 300, ssh: 120, config: 600, delegate: 1800, destroy: 300 }
    }
}

/// How a host is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The SSH user; none: the site's.
    pub host_user: Option<String>,
    /// The SSH port.
    pub ssh_port: u16,
    /// Ids of keys that may log in.
    pub authorized_keys: Vec<Located<String>>,
    /// Its key; none: the first one seen is recorded.
    pub host_key: Option<String>,
}

impl Default for Access {
    fn default() -> Self {
        Self { host_user: None, ssh_port: 22, authorized_keys: Vec::new(), host_key: None }
    }
}

/// Names a sandbox accepts: all, or only these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Names {
    /// All.
    Any,
    /// These.
    Only(Vec<String>),
}

/// A machine that can make machines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// What makes them, if the file says it; see [`Host::driver`].
    pub driver: Option<DriverKind>,
    /// The `hosts/` file an instance inherits from, or a word of description.
    pub host: Option<Located<String>>,
    /// Its domain.
    pub domain: Option<String>,
    /// Its address, if it is given or known from the bridge's interface.
    pub address: Option<String>,
    /// Its processor.
    pub arch: Option<String>,
    /// What its nodes are told to find it by.
    pub self_addr: Option<String>,
    /// Nodes at once; none: the driver's.
    pub parallel: Option<u32>,
    /// How long things may take.
    pub timeouts: Timeouts,
    /// For target expressions.
    pub labels: BTreeMap<String, String>,
    /// Who operations run as.
    pub become_user: Option<Become>,
    /// How it is reached.
    pub access: Access,
    /// The token of the Proxmox API, a name in `secrets.yaml`.
    pub api_token: Option<Located<String>>,
    /// Where the Proxmox API is.
    pub api_endpoint: Option<String>,
    /// The Proxmox node; none: the file's name.
    pub node: Option<String>,
    /// The instance a Proxmox node is nested in.
    pub parent_node: Option<Located<SiteKey>>,
    /// Where disks are kept.
    pub datastore: Option<String>,
    /// What the machine has: `network`, `storage`, `hardware`, `ssh`, for preflight.
    pub description: BTreeMap<String, Value>,
    /// Packages a sandbox knows.
    pub packages: Option<Names>,
    /// Services a sandbox knows.
    pub services: Option<Names>,
    /// How long a sandbox takes to boot.
    pub boot_delay_ms: u64,
    /// What a sandbox does wrong on purpose.
    pub faults: Vec<Fault>,
    /// Everything else a driver is told, checked.
    pub driver_settings: BTreeMap<String, Value>,
}

impl Host {
    /// Returns the built-in host `local`.
    pub fn local() -> Self {
        Self { driver: Some(DriverKind::Sandbox), ..Self::default() }
    }

    /// Returns what makes machines here.
    pub fn driver(&self) -> DriverKind {
        match self.driver {
            Some(driver) => driver,
            None if self.api_endpoint.is_some() => DriverKind::Proxmox,
            None => DriverKind::None,
        }
    }

    /// Returns how many nodes are worked on at once.
    pub fn parallel(&self) -> u32 {
        self.parallel.unwrap_or(if self.driver() == DriverKind::Sandbox { 64 } else { 8 })
    }
}

pub(super) fn read(walk: &mut Walk<'_>, root: Node<'_>) -> Host {
    let Some(fields) = walk.map(root, &HOST_KEYS) else { return Host::default() };
    let host = read_fields(walk, fields);
    if host.driver() == DriverKind::Proxmox {
        require_datastore(walk, fields);
    }
    host
}

pub(super) fn read_instance(walk: &mut Walk<'_>, root: Node<'_>) -> Host {
    let Some(fields) = walk.map(root, &INSTANCE_KEYS) else { return Host::default() };
    let mut host = read_fields(walk, fields);
    if let Some(node) = fields.get("driver")
        && host.driver != Some(DriverKind::Proxmox)
    {
        walk.report(
            node.error("node/conflict", "files in nodes/ are Proxmox instances")
                .help("leave `driver` out, or put the file into hosts/"),
        );
    }
    host.driver = Some(DriverKind::Proxmox);
    require_datastore(walk, fields);
    host
}

/// Returns what `hosting` of a node says.
pub(super) fn read_hosting(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Host> {
    let fields = walk.map(node, &HOSTING_KEYS)?;
    Some(read_fields(walk, fields))
}

fn require_datastore(walk: &mut Walk<'_>, fields: Fields<'_>) {
    if fields.get("datastore").is_none() {
        let problem = fields.node().error("node/missing-field", "a Proxmox host needs the key `datastore`");
        walk.report(problem.help("where disks are kept, such as `local-zfs`"));
    }
}

fn read_fields(walk: &mut Walk<'_>, fields: Fields<'_>) -> Host {
    let mut host = Host {
        driver: read::word(walk, fields, "driver", &DriverKind::WORDS),
        host: located_text(walk, fields, "host"),
        domain: read::text(walk, fields, "domain"),
        address: read::ip(walk, fields, "ip").map(|address| address.to_string()),
        arch: read::text(walk, fields, "arch"),
        self_addr: read::text(walk, fields, "self_addr"),
        parallel: read::number(walk, fields, "parallel", 1..=10_000),
        timeouts: read_timeouts(walk, fields),
        labels: read_labels(walk, fields),
        become_user: fields.get("become").and_then(|node| read_become(walk, node)),
        access: read_access(walk, fields),
        api_token: located_text(walk, fields, "api_token"),
        api_endpoint: fields.get("api_endpoint").and_then(|node| read_endpoint(walk, node)),
        node: read::text(walk, fields, "node"),
        parent_node: read::id(walk, fields, "parent_node"),
        datastore: read::text(walk, fields, "datastore"),
        packages: fields.get("packages").and_then(|node| read_names(walk, node)),
        services: fields.get("services").and_then(|node| read_names(walk, node)),
        boot_delay_ms: read::number(walk, fields, "boot_delay_ms", 0..=3_600_000).unwrap_or_default(),
        faults: fault::read(walk, fields),
        ..Host::default()
    };
    read_description(walk, fields, &mut host);
    read_driver_settings(walk, fields, &mut host);
    host
}

fn located_text(walk: &mut Walk<'_>, fields: Fields<'_>, key: &str) -> Option<Located<String>> {
    let node = fields.get(key)?;
    Some(Located { value: walk.full_text(node)?.to_owned(), span: node.span() })
}

fn read_timeouts(walk: &mut Walk<'_>, fields: Fields<'_>) -> Timeouts {
    let mut timeouts = Timeouts::default();
    let Some(fields) = read::map(walk, fields, "timeouts", &TIMEOUT_KEYS) else { return timeouts };
    let Timeouts { create, address, ssh, config, delegate, destroy } = &mut timeouts;
    for (key, place) in [
        ("create", create),
        ("address", address),
        ("ssh", ssh),
        ("config", config),
        ("delegate", delegate),
        ("destroy", destroy),
    ] {
        *place = read::number(walk, fields, key, 1..=keys::LONGEST).unwrap_or(*place);
    }
    timeouts
}

fn read_labels(walk: &mut Walk<'_>, fields: Fields<'_>) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let Some(node) = fields.get("labels") else { return labels };
    let Some(entries) = node.as_map() else {
        walk.report(node.bad(format!("expected a map of labels, found {}", node.describe())));
        return labels;
    };
    for (key, value) in entries {
        if let Some(text) = walk.text_of_scalar(value) {
            labels.insert(key.as_text().unwrap_or_default().to_owned(), text.to_owned());
        }
    }
    labels
}

fn read_become(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Become> {
    let text = walk.text(node)?;
    let account = Become::parse(text);
    if account.is_none() && text != "none" {
        let problem = node.error("node/bad-enum", format!("`{text}` is not a way to become another account"));
        walk.report(problem.help("write `sudo`, `doas`, `sudo:USER` or `none`"));
    }
    account
}

fn read_access(walk: &mut Walk<'_>, fields: Fields<'_>) -> Access {
    let default = Access::default();
    let Some(fields) = read::map(walk, fields, "access", &ACCESS_KEYS) else { return default };
    Access {
        host_user: read::text(walk, fields, "host_user"),
        ssh_port: read::number(walk, fields, "ssh_port", 1..=65535).unwrap_or(default.ssh_port),
        authorized_keys: read::located_texts(walk, fields, "authorized_keys").unwrap_or_default(),
        host_key: read::text(walk, fields, "host_key"),
    }
}

fn read_endpoint(walk: &mut Walk<'_>, node: Node<'_>) -> Option<String> {
    let text = walk.full_text(node)?;
    if !text.starts_with("https://") || text.contains(char::is_whitespace) || text.contains('@') {
        walk.report(node.bad("the API is at an https URL").help("write `https://HOST:8006`"));
        return None;
    }
    Some(text.trim_end_matches('/').to_owned())
}

fn read_names(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Names> {
    if node.as_text() == Some("any") {
        return Some(Names::Any);
    }
    let Some(items) = node.as_list() else {
        walk.report(node.bad(format!("expected `any` or a list of names, found {}", node.describe())));
        return None;
    };
    let mut names = Vec::new();
    for item in items {
        names.extend(walk.full_text(item).map(str::to_owned));
    }
    Some(Names::Only(names))
}

/// Reads what the machine has; `network` and `storage` are words of a driver instead if they are texts.
fn read_description(walk: &mut Walk<'_>, fields: Fields<'_>, host: &mut Host) {
    for (key, table) in [
        ("network", Some(&NETWORK_KEYS)),
        ("storage", Some(&STORAGE_KEYS)),
        ("hardware", None),
        ("ssh", None),
    ] {
        let Some(node) = fields.get(key) else { continue };
        if table.is_some() && node.as_text().is_some() {
            continue;
        }
        let is_fine = match table {
            Some(table) => walk.map(node, table).is_some(),
            None => {
                node.as_map().is_some() || {
                    walk.report(node.bad(format!("expected `{key}` (a map), found {}", node.describe())));
                    false
                }
            }
        };
        if is_fine {
            host.description.insert(key.to_owned(), node.to_json());
        }
    }
    let Some(interfaces) = fields.get("network").and_then(|node| node.get("interfaces")) else { return };
    let Some(entries) = interfaces.as_map() else {
        walk.report(interfaces.bad(format!("expected interfaces by name, found {}", interfaces.describe())));
        return;
    };
    let bridge = fields.get("bridge").and_then(Node::as_text).unwrap_or("vmbr0");
    for (name, interface) in entries {
        if interface.as_map().is_none() {
            walk.report(
                interface.bad(format!("expected an interface (a map), found {}", interface.describe())),
            );
            continue;
        }
        let Some(address) = interface.get("address").and_then(|node| walk.text(node)) else { continue };
        match (Cidr::parse(address), address.parse::<core::net::IpAddr>()) {
            (Ok(cidr), _) if name.as_text() == Some(bridge) && host.address.is_none() => {
                host.address = Some(cidr.address.to_string());
            }
            (Err(_), Ok(ip)) if name.as_text() == Some(bridge) && host.address.is_none() => {
                host.address = Some(ip.to_string());
            }
            (Ok(_), _) | (_, Ok(_)) => {}
            (Err(_), Err(_)) if address == "dhcp" => {}
            (Err(error), Err(_)) => {
                if let Some(node) = interface.get("address") {
                    walk.report(node.bad(error.to_string()));
                }
            }
        }
    }
}

fn read_driver_settings(walk: &mut Walk<'_>, fields: Fields<'_>, host: &mut Host) {
    for setting in keys::DRIVER_SETTINGS {
        let Some(node) = fields.get(setting.name) else { continue };
        if matches!(setting.name, "network" | "storage") && node.as_map().is_some() {
            continue;
        }
        if setting.kind.accepts(walk, node) {
            host.driver_settings.insert(setting.name.to_owned(), node.to_json());
        }
    }
}

//! Hosts: machines that can make machines. The same fields describe what a node does for its children (`hosting`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::address::{Authority, Cidr, Reach};
use super::{Located, names, read};
use crate::id::SiteKey;
use crate::transport::{Become, is_host_key};
use crate::yaml::{Fields, Node, Walk};

mod fault;
mod keys;
mod write;

pub use fault::{Fault, FaultPhase};
pub(super) use keys::VMIDS;
use keys::{ACCESS_KEYS, INTERFACE_KEYS, NETWORK_KEYS, POOL_KEYS, STORAGE_KEYS, TIMEOUT_KEYS};
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

/// What a file says of [`Timeouts`]; the rest is inherited, or the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenTimeouts {
    /// Making it.
    pub create: Option<u32>,
    /// Getting an address.
    pub address: Option<u32>,
    /// Answering over SSH.
    pub ssh: Option<u32>,
    /// Becoming its spec.
    pub config: Option<u32>,
    /// Running its subtree.
    pub delegate: Option<u32>,
    /// Removing it.
    pub destroy: Option<u32>,
}

impl GivenTimeouts {
    /// Returns these, and what `base` says where they are silent.
    pub fn or(self, base: Self) -> Self {
        Self {
            create: self.create.or(base.create),
            address: self.address.or(base.address),
            ssh: self.ssh.or(base.ssh),
            config: self.config.or(base.config),
            delegate: self.delegate.or(base.delegate),
            destroy: self.destroy.or(base.destroy),
        }
    }
}

/// Who operations on a host run as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunAs {
    /// Who logs in.
    Login,
    /// Somebody else.
    Other(Become),
}

/// How a host is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The SSH user; none: the site's.
    pub host_user: Option<String>,
    /// The SSH port; none: 22.
    pub ssh_port: Option<u16>,
    /// Ids of keys that may log in; none: nothing is said of them.
    pub authorized_keys: Option<Vec<Located<String>>>,
    /// Its key; none: the first one seen is recorded.
    pub host_key: Option<String>,
}

impl Access {
    /// Returns the SSH port.
    pub fn ssh_port(&self) -> u16 {
        self.ssh_port.unwrap_or(22)
    }

    /// Returns this, and what `base` says where it is silent.
    fn or(self, base: &Self) -> Self {
        Self {
            host_user: self.host_user.or_else(|| base.host_user.clone()),
            ssh_port: self.ssh_port.or(base.ssh_port),
            authorized_keys: self.authorized_keys.or_else(|| base.authorized_keys.clone()),
            host_key: self.host_key.or_else(|| base.host_key.clone()),
        }
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
    /// Its address, if it is given; else that of its bridge is, see [`Host::interface_address`].
    pub address: Option<String>,
    /// Its processor.
    pub arch: Option<String>,
    /// What its nodes are told to find it by.
    pub self_addr: Option<String>,
    /// Nodes at once; none: the driver's.
    pub parallel: Option<u32>,
    /// How long things may take, as far as the file says; see [`Host::timeouts`].
    pub timeouts: GivenTimeouts,
    /// For target expressions.
    pub labels: BTreeMap<String, String>,
    /// Who operations run as; none: who logs in, unless it is inherited.
    pub become_user: Option<RunAs>,
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

    /// Whether it says what makes machines here.
    pub fn names_driver(&self) -> bool {
        self.driver.is_some() || self.api_endpoint.is_some()
    }

    /// Returns the account that operations run as, if it is not the one that logs in.
    pub fn becomes(&self) -> Option<&Become> {
        match &self.become_user {
            Some(RunAs::Other(account)) => Some(account),
            Some(RunAs::Login) | None => None,
        }
    }

    /// Returns how long things may take here.
    pub fn timeouts(&self) -> Timeouts {
        let (given, usual) = (&self.timeouts, Timeouts::default());
        Timeouts {
            create: given.create.unwrap_or(usual.create),
            address: given.address.unwrap_or(usual.address),
            ssh: given.ssh.unwrap_or(usual.ssh),
            config: given.config.unwrap_or(usual.config),
            delegate: given.delegate.unwrap_or(usual.delegate),
            destroy: given.destroy.unwrap_or(usual.destroy),
        }
    }

    /// Returns this host with what `base` says where it is silent.
    pub fn inherit(self, base: &Self) -> Self {
        let mut merged = self;
        macro_rules! fill {
            ($($field:ident),*) => {
                $(if merged.$field.is_none() { merged.$field = base.$field.clone(); })*
            };
        }
        fill!(
            driver,
            domain,
            address,
            arch,
            self_addr,
            parallel,
            become_user,
            api_token,
            api_endpoint,
            node,
            datastore,
            packages,
            services
        );
        merged.timeouts = merged.timeouts.or(base.timeouts);
        merged.access = merged.access.or(&base.access);
        for (key, value) in &base.labels {
            merged.labels.entry(key.clone()).or_insert_with(|| value.clone());
        }
        for (key, value) in &base.description {
            merged.description.entry(key.clone()).or_insert_with(|| value.clone());
        }
        for (key, value) in &base.driver_settings {
            merged.driver_settings.entry(key.clone()).or_insert_with(|| value.clone());
        }
        merged
    }

    /// Returns the names of the interfaces that the machine is said to have.
    pub fn interfaces(&self) -> impl Iterator<Item = &str> {
        let network = self.description.get("network").and_then(|network| network.get("interfaces"));
        network.and_then(Value::as_object).into_iter().flat_map(|map| map.keys().map(String::as_str))
    }

    /// Returns the address that the machine is said to have on the interface `name`, without its prefix.
    pub fn interface_address(&self, name: &str) -> Option<String> {
        let interfaces = self.description.get("network")?.get("interfaces")?;
        let text = interfaces.get(name)?.get("address")?.as_str()?;
        let address = text.split_once('/').map_or(text, |(address, _)| address);
        address.parse::<core::net::IpAddr>().ok().map(|address| address.to_string())
    }

    /// Returns the names of the ZFS pools that the machine is said to have.
    pub fn zfs_pools(&self) -> impl Iterator<Item = &str> {
        let storage = self.description.get("storage").and_then(|storage| storage.get("zfs_pools"));
        let pools = storage.and_then(Value::as_array).into_iter().flatten();
        pools.filter_map(|pool| pool.as_str().or_else(|| pool.get("name")?.as_str()))
    }

    /// Returns how many nodes are worked on at once.
    pub fn parallel(&self) -> u32 {
        self.parallel.unwrap_or(if self.driver() == DriverKind::Sandbox { 64 } else { 8 })
    }
}

pub(super) fn read(walk: &mut Walk<'_>, root: Node<'_>) -> Host {
    let Some(fields) = walk.map(root, &HOST_KEYS) else { return Host::default() };
    read_described(walk, fields)
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
    warn_of_unread(walk, fields, DriverKind::Proxmox);
    host
}

/// Returns what `hosting` of a node says.
pub(super) fn read_hosting(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Host> {
    let fields = walk.map(node, &HOSTING_KEYS)?;
    Some(read_described(walk, fields))
}

/// Reads what a worker of a fleet says of one of its drivers: the fields of a host without `driver`.
pub(crate) fn read_driver(walk: &mut Walk<'_>, node: Node<'_>, driver: DriverKind) -> Option<Host> {
    let fields = walk.map(node, &HOST_KEYS)?;
    if let Some(key) = fields.node().key("driver") {
        walk.report(key.error("fleet/conflict", "the driver is the key above").help("leave it out"));
    }
    let mut host = read_fields(walk, fields);
    host.driver = Some(driver);
    warn_of_unread(walk, fields, driver);
    Some(host)
}

/// Reads a host that inherits nothing.
fn read_described(walk: &mut Walk<'_>, fields: Fields<'_>) -> Host {
    let host = read_fields(walk, fields);
    if host.driver() == DriverKind::Proxmox {
        require_datastore(walk, fields);
    }
    if host.names_driver() {
        warn_of_unread(walk, fields, host.driver());
    }
    host
}

/// Reports keys that only other drivers read.
fn warn_of_unread(walk: &mut Walk<'_>, fields: Fields<'_>, driver: DriverKind) {
    for (name, readers) in keys::READERS {
        let Some(key) = fields.node().key(name) else { continue };
        // `network` and `storage` are words of a driver, or the description of the machine.
        let describes = fields.get(name).is_some_and(|node| node.as_map().is_some());
        if readers.contains(&driver) || (matches!(*name, "network" | "storage") && describes) {
            continue;
        }
        let words: Vec<&str> = readers.iter().map(|driver| driver.word()).collect();
        let message = format!("the driver `{}` does not read `{name}`", driver.word());
        let help = format!("leave it out; it is for {}", words.join(", "));
        read::warn(walk, key, "node/unapplied-key", &message, &help);
    }
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
        domain: read::domain(walk, fields, "domain"),
        address: read::ip(walk, fields, "ip").map(|address| address.to_string()),
        arch: read::text(walk, fields, "arch"),
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
        packages: fields.get("packages").and_then(|node| read_names(walk, node, names::is_package)),
        services: fields.get("services").and_then(|node| read_names(walk, node, names::is_service)),
        boot_delay_ms: read::number(walk, fields, "boot_delay_ms", 0..=3_600_000).unwrap_or_default(),
        faults: fault::read(walk, fields),
        ..Host::default()
    };
    host.self_addr = read_self_addr(walk, fields, host.driver());
    read_description(walk, fields, &mut host);
    read_driver_settings(walk, fields, &mut host);
    host
}

fn located_text(walk: &mut Walk<'_>, fields: Fields<'_>, key: &str) -> Option<Located<String>> {
    let node = fields.get(key)?;
    Some(Located { value: walk.full_text(node)?.to_owned(), span: node.span() })
}

fn read_self_addr(walk: &mut Walk<'_>, fields: Fields<'_>, driver: DriverKind) -> Option<String> {
    let node = fields.get("self_addr")?;
    let text = walk.full_text(node)?;
    let why = match Authority::parse(text).map(Authority::reach) {
        Some(Reach::Here) if !matches!(driver, DriverKind::Sandbox | DriverKind::None) => {
            "which leads every other machine to itself"
        }
        Some(Reach::Here | Reach::Everybody) => return Some(text.to_owned()),
        Some(Reach::Nobody) => "which other machines cannot reach",
        None => "which is neither an address nor a name",
    };
    let problem = node.bad(format!("nodes are told {}, {why}", node.describe()));
    walk.report(problem.help("write what nodes reach this host by: `10.0.0.1`, `lab.example`"));
    None
}

fn read_timeouts(walk: &mut Walk<'_>, fields: Fields<'_>) -> GivenTimeouts {
    let mut timeouts = GivenTimeouts::default();
    let Some(fields) = read::map(walk, fields, "timeouts", &TIMEOUT_KEYS) else { return timeouts };
    let GivenTimeouts { create, address, ssh, config, delegate, destroy } = &mut timeouts;
    for (key, place) in [
        ("create", create),
        ("address", address),
        ("ssh", ssh),
        ("config", config),
        ("delegate", delegate),
        ("destroy", destroy),
    ] {
        *place = read::number(walk, fields, key, 1..=keys::LONGEST);
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

fn read_become(walk: &mut Walk<'_>, node: Node<'_>) -> Option<RunAs> {
    let text = walk.text(node)?;
    if text == "none" {
        return Some(RunAs::Login);
    }
    let account = Become::parse(text).map(RunAs::Other);
    if account.is_none() {
        let problem = node.error("node/bad-enum", format!("`{text}` is not a way to become another account"));
        walk.report(problem.help("write `sudo`, `doas`, `sudo:USER` or `none`"));
    }
    account
}

fn read_access(walk: &mut Walk<'_>, fields: Fields<'_>) -> Access {
    let Some(fields) = read::map(walk, fields, "access", &ACCESS_KEYS) else { return Access::default() };
    let names_keys =
        fields.get("authorized_keys").and_then(Node::as_list).is_some_and(|mut keys| keys.next().is_some());
    if let (true, Some(key)) = (names_keys, fields.node().key("authorized_keys")) {
        let message = "`authorized_keys` of a host has no effect: who may log in is said by its spec";
        let help = "name the keys in `access.users` of a spec, and `stead config apply -H HOST` it";
        read::warn(walk, key, "node/unapplied-key", message, help);
    }
    Access {
        host_user: fields.get("host_user").and_then(|node| read_host_user(walk, node)),
        ssh_port: read::number(walk, fields, "ssh_port", 1..=65535),
        authorized_keys: read::located_texts(walk, fields, "authorized_keys"),
        host_key: fields.get("host_key").and_then(|node| read_host_key(walk, node)),
    }
}

fn read_host_user(walk: &mut Walk<'_>, node: Node<'_>) -> Option<String> {
    let text = walk.full_text(node)?;
    if text.starts_with('-') || text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        walk.report(node.error("node/bad-name", format!("{} is no name to log in by", node.describe())));
        return None;
    }
    Some(text.to_owned())
}

fn read_host_key(walk: &mut Walk<'_>, node: Node<'_>) -> Option<String> {
    let text = walk.full_text(node)?;
    if !is_host_key(text) {
        let problem = node.bad(format!("{} is no key of a host", node.describe()));
        walk.report(problem.help("write `SHA256:…`, or `TYPE BASE64` as in a known_hosts file"));
        return None;
    }
    Some(text.to_owned())
}

fn read_endpoint(walk: &mut Walk<'_>, node: Node<'_>) -> Option<String> {
    let text = walk.full_text(node)?;
    if !text.starts_with("https://") || text.contains(char::is_whitespace) || text.contains('@') {
        walk.report(node.bad("the API is at an https URL").help("write `https://HOST:8006`"));
        return None;
    }
    Some(text.trim_end_matches('/').to_owned())
}

fn read_names(walk: &mut Walk<'_>, node: Node<'_>, is_name: fn(&str) -> bool) -> Option<Names> {
    if node.as_text() == Some("any") {
        return Some(Names::Any);
    }
    let Some(items) = node.as_list() else {
        walk.report(node.bad(format!("expected `any` or a list of names, found {}", node.describe())));
        return None;
    };
    let mut names = Vec::new();
    for item in items {
        match walk.full_text(item) {
            Some(name) if !is_name(name) => {
                walk.report(item.error("node/bad-name", format!("{} cannot be a name", item.describe())));
            }
            name => names.extend(name.map(str::to_owned)),
        }
    }
    Some(Names::Only(names))
}

/// Keys that describe a host to people: nothing is done with them.
const FOR_PEOPLE: [&str; 4] = ["domain", "arch", "hardware", "ssh"];

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
    for key in FOR_PEOPLE.into_iter().filter_map(|key| fields.node().key(key)) {
        let message = format!("`{}` of a host has no effect", key.as_text().unwrap_or_default());
        read::warn(walk, key, "node/unapplied-key", &message, "leave it out, or keep it for people");
    }
    check_interfaces(walk, fields);
    read_pools(walk, fields);
}

fn check_interfaces(walk: &mut Walk<'_>, fields: Fields<'_>) {
    let Some(interfaces) = fields.get("network").and_then(|node| node.get("interfaces")) else { return };
    let Some(entries) = interfaces.as_map() else {
        walk.report(interfaces.bad(format!("expected interfaces by name, found {}", interfaces.describe())));
        return;
    };
    for (_, interface) in entries {
        let Some(own) = walk.map(interface, &INTERFACE_KEYS) else { continue };
        read::ip(walk, own, "gateway");
        for key in ["type", "mac"] {
            read::text(walk, own, key);
        }
        read::located_texts(walk, own, "ports");
        read::number::<u16>(walk, own, "mtu", 68..=65535);
        let Some(node) = own.get("address") else { continue };
        let Some(address) = walk.text(node) else { continue };
        if let Err(error) = Cidr::parse(address)
            && address.parse::<core::net::IpAddr>().is_err()
            && address != "dhcp"
        {
            walk.report(node.bad(error.to_string()));
        }
    }
}

fn read_pools(walk: &mut Walk<'_>, fields: Fields<'_>) {
    let Some(pools) = fields.get("storage").and_then(|node| node.get("zfs_pools")) else { return };
    let Some(pools) = pools.as_list() else {
        walk.report(pools.bad(format!("expected a list of ZFS pools, found {}", pools.describe())));
        return;
    };
    for pool in pools {
        if pool.as_map().is_none() {
            walk.full_text(pool);
        } else if let Some(own) = walk.map(pool, &POOL_KEYS) {
            for key in ["name", "type"] {
                read::text(walk, own, key);
            }
            read::located_texts(walk, own, "devices");
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

//! The keys of hosts, Proxmox instances and `hosting`, and what drivers are told beyond them.

use serde_json::{Value, json};

use super::{DriverKind, fault};
use crate::plan::Digest;
use crate::schema::{full_text, integer, object, words};
use crate::site::address::{Cidr, CidrError, ip_schema};
use crate::site::preset::texts;
use crate::site::settings::site_key;
use crate::yaml::{Key, Keys, Node, Value as Written, Walk};

/// The longest wait, in seconds.
pub(super) const LONGEST: i64 = 7 * 24 * 3600;

const DRIVER: Key = Key::new(
    "driver",
    || words(&DriverKind::WORDS),
    "what makes machines; default `proxmox` if `api_endpoint` is set, else `none`",
);
const HOST: Key =
    Key::new("host", full_text, "a word of description; in nodes/: the file in hosts/ it inherits from");
const DOMAIN: Key = Key::new("domain", full_text, "its domain, for people");
const IP: Key = Key::new("ip", ip_schema, "its address; default that of the bridge's interface");
const ARCH: Key = Key::new("arch", full_text, "its processor, for people");
const SELF_ADDR: Key = Key::new("self_addr", full_text, "what its nodes are told to find it by");
const PARALLEL: Key = Key::new("parallel", || integer(1, 10_000), "nodes at once; default 8, sandbox 64");
const TIMEOUTS: Key = Key::new("timeouts", || object(&TIMEOUT_KEYS), "how long things may take, in seconds");
const LABELS: Key = Key::new(
    "labels",
    || json!({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}),
    "for target expressions",
);
const BECOME: Key = Key::new(
    "become",
    || json!({"type": "string", "pattern": "^(none|(sudo|doas)(:[^:\\s-][^:\\s]*)?)$"}),
    "who operations run as: `sudo`, `doas`, `sudo:USER` or `none`",
);
const ACCESS: Key = Key::new("access", || object(&ACCESS_KEYS), "how it is reached");
const NETWORK: Key = Key::new("network", network, "interfaces; for qemu also `user` or `tap`");
const STORAGE: Key = Key::new("storage", storage, "ZFS pools; for oci also `auto`, `overlay` or `copy`");
const HARDWARE: Key = Key::new("hardware", any_map, "what it has, for people");
const SSH: Key = Key::new("ssh", any_map, "its SSH server, for people");
const NODE: Key = Key::new("node", full_text, "the Proxmox node; default the file's name");
const PARENT_NODE: Key = Key::new("parent_node", site_key, "the file in nodes/ it is nested in");
const API_ENDPOINT: Key = Key::new(
    "api_endpoint",
    || json!({"type": "string", "pattern": "^https://"}),
    "the Proxmox API: `https://HOST:8006`",
);
const API_TOKEN: Key =
    Key::new("api_token", full_text, "a name in `api_tokens` of secrets.yaml; default the file's name");
const DATASTORE: Key = Key::new("datastore", full_text, "where Proxmox keeps disks");
const PACKAGES: Key = Key::new("packages", names, "sandbox: `any` or the packages there are");
const SERVICES: Key = Key::new("services", names, "sandbox: `any` or the services there are");
const BOOT_DELAY: Key = Key::new("boot_delay_ms", || integer(0, 3_600_000), "sandbox: default 0");
const FAULTS: Key = Key::new("faults", fault::schema, "sandbox: what goes wrong on purpose");
const ROOT_DIR: Key = Key::new("root_dir", full_text, "sandbox: where machines are kept");
const RUNTIME: Key = Key::new("runtime", full_text, "oci: `auto`, `runc`, `crun`, `youki` or a path");
const IMAGE_DIR: Key = Key::new("image_dir", full_text, "oci, qemu, cloud-hypervisor: where images are");
const SUBNET: Key =
    Key::new("subnet", || json!({"type": "string", "pattern": "/"}), "addresses of its nodes");
const BRIDGE: Key = Key::new("bridge", full_text, "the bridge of its nodes");
const BINARY: Key = Key::new("binary", full_text, "qemu, cloud-hypervisor: the program");
const MACHINE: Key = Key::new("machine", || words(&one_of(MACHINES)), "qemu: default `auto`");
const ACCEL: Key = Key::new("accel", || words(&one_of(ACCELS)), "qemu: default `auto`");
const KERNEL: Key = Key::new("kernel", full_text, "qemu, cloud-hypervisor: boots this");
const INITRD: Key = Key::new("initrd", full_text, "qemu: with `kernel`");
const CMDLINE: Key = Key::new("cmdline", full_text, "qemu: with `kernel`");
const FIRMWARE: Key = Key::new("firmware", full_text, "cloud-hypervisor: boots this");
const ISO_STORAGE: Key = Key::new("iso_storage", full_text, "proxmox: default `local`");
const METHOD: Key = Key::new("method", || words(&one_of(METHODS)), "proxmox: default `clone`");
const IMAGES: Key = Key::new(
    "images",
    || json!({"type": "object", "additionalProperties": integer(100, 999_999_999)}),
    "proxmox: templates by image name",
);
const VMID_RANGE: Key = Key::new(
    "vmid_range",
    || json!({"type": "array", "items": integer(100, 999_999_999), "minItems": 2, "maxItems": 2}),
    "proxmox: ids it may use; default [100, 999999999]",
);
const FINGERPRINT: Key = Key::new("fingerprint", full_text, "proxmox: SHA-256 of the API's certificate");

const MACHINES: &[&str] = &["auto", "microvm", "q35", "pc"];
const ACCELS: &[&str] = &["auto", "kvm", "tcg"];
const METHODS: &[&str] = &["clone", "import"];
const NETWORKS: &[&str] = &["user", "tap"];
const STORAGES: &[&str] = &["auto", "overlay", "copy"];

const FIELDS: &[Key] = &[
    DRIVER,
    HOST,
    DOMAIN,
    IP,
    ARCH,
    SELF_ADDR,
    PARALLEL,
    TIMEOUTS,
    LABELS,
    BECOME,
    ACCESS,
    NETWORK,
    STORAGE,
    HARDWARE,
    SSH,
    NODE,
    PARENT_NODE,
    API_ENDPOINT,
    API_TOKEN,
    DATASTORE,
    PACKAGES,
    SERVICES,
    BOOT_DELAY,
    FAULTS,
    ROOT_DIR,
    RUNTIME,
    IMAGE_DIR,
    SUBNET,
    BRIDGE,
    BINARY,
    MACHINE,
    ACCEL,
    KERNEL,
    INITRD,
    CMDLINE,
    FIRMWARE,
    ISO_STORAGE,
    METHOD,
    IMAGES,
    VMID_RANGE,
    FINGERPRINT,
];

/// The keys of a file in hosts/.
pub const HOST_KEYS: Keys = Keys { what: "a host", keys: FIELDS, hints: HINTS };

/// The keys of a file in nodes/.
pub const INSTANCE_KEYS: Keys = Keys { what: "a Proxmox instance", keys: FIELDS, hints: HINTS };

/// The keys of `hosting` of a node.
pub const HOSTING_KEYS: Keys = Keys { what: "`hosting`", keys: FIELDS, hints: HINTS };

const HINTS: &[(&str, &str)] = &[("address", "ip"), ("user", "access: {host_user: …}"), ("tags", "labels")];

pub(super) const TIMEOUT_KEYS: Keys = Keys {
    what: "`timeouts`",
    keys: &[
        Key::new("create", seconds, "default 300"),
        Key::new("address", seconds, "default 300"),
        Key::new("ssh", seconds, "default 120"),
        Key::new("config", seconds, "default 600"),
        Key::new("delegate", seconds, "default 1800"),
        Key::new("destroy", seconds, "default 300"),
    ],
    hints: &[],
};

pub(super) const ACCESS_KEYS: Keys = Keys {
    what: "`access`",
    keys: &[
        Key::new("host_user", full_text, "the SSH user; default the site's"),
        Key::new("ssh_port", || integer(1, 65535), "default 22"),
        Key::new("authorized_keys", texts, "ids of keys in secrets.yaml"),
        Key::new("host_key", full_text, "its public key; default the first one seen"),
    ],
    hints: &[],
};

pub(super) const NETWORK_KEYS: Keys = Keys {
    what: "`network`",
    keys: &[Key::new("interfaces", interfaces, "interfaces by name, each with its `address`")],
    hints: &[],
};

pub(super) const INTERFACE_KEYS: Keys = Keys {
    what: "an interface",
    keys: &[
        Key::new("address", full_text, "its address, with or without prefix, or `dhcp`"),
        Key::new("gateway", ip_schema, "its way out"),
        Key::new("type", full_text, "a word of description, such as `bridge`"),
        Key::new("ports", texts, "the interfaces that are plugged into it"),
        Key::new("mac", full_text, "its hardware address"),
        Key::new("mtu", || integer(68, 65535), "the largest packet"),
    ],
    hints: &[("ip", "address")],
};

pub(super) const STORAGE_KEYS: Keys = Keys {
    what: "`storage`",
    keys: &[Key::new("zfs_pools", pools, "ZFS pools: names, or maps with a `name`")],
    hints: &[],
};

pub(super) const POOL_KEYS: Keys = Keys {
    what: "a ZFS pool",
    keys: &[
        Key::new("name", full_text, "what it is called").required(),
        Key::new("devices", texts, "what it lies on"),
        Key::new("type", full_text, "a word of description, such as `mirror`"),
    ],
    hints: &[],
};

fn interfaces() -> Value {
    json!({"type": "object", "additionalProperties": object(&INTERFACE_KEYS)})
}

fn pools() -> Value {
    json!({"type": "array", "items": {"anyOf": [full_text(), object(&POOL_KEYS)]}})
}

fn seconds() -> Value {
    integer(1, LONGEST)
}

fn any_map() -> Value {
    json!({"type": "object"})
}

fn names() -> Value {
    json!({"anyOf": [{"const": "any"}, texts()]})
}

fn network() -> Value {
    json!({"anyOf": [{"enum": NETWORKS}, object(&NETWORK_KEYS)]})
}

fn storage() -> Value {
    json!({"anyOf": [{"enum": STORAGES}, object(&STORAGE_KEYS)]})
}

fn one_of(list: &'static [&'static str]) -> Vec<(&'static str, ())> {
    list.iter().map(|word| (*word, ())).collect()
}

/// A value that only a driver reads.
pub(super) struct DriverSetting {
    pub(super) name: &'static str,
    pub(super) kind: SettingKind,
}

/// What such a value may be.
pub(super) enum SettingKind {
    Text,
    Word(&'static [&'static str]),
    Network,
    VmIdsByName,
    VmIdRange,
    Fingerprint,
}

pub(super) const DRIVER_SETTINGS: &[DriverSetting] = &[
    DriverSetting { name: "root_dir", kind: SettingKind::Text },
    DriverSetting { name: "runtime", kind: SettingKind::Text },
    DriverSetting { name: "image_dir", kind: SettingKind::Text },
    DriverSetting { name: "subnet", kind: SettingKind::Network },
    DriverSetting { name: "bridge", kind: SettingKind::Text },
    DriverSetting { name: "binary", kind: SettingKind::Text },
    DriverSetting { name: "machine", kind: SettingKind::Word(MACHINES) },
    DriverSetting { name: "accel", kind: SettingKind::Word(ACCELS) },
    DriverSetting { name: "kernel", kind: SettingKind::Text },
    DriverSetting { name: "initrd", kind: SettingKind::Text },
    DriverSetting { name: "cmdline", kind: SettingKind::Text },
    DriverSetting { name: "firmware", kind: SettingKind::Text },
    DriverSetting { name: "iso_storage", kind: SettingKind::Text },
    DriverSetting { name: "method", kind: SettingKind::Word(METHODS) },
    DriverSetting { name: "images", kind: SettingKind::VmIdsByName },
    DriverSetting { name: "vmid_range", kind: SettingKind::VmIdRange },
    DriverSetting { name: "fingerprint", kind: SettingKind::Fingerprint },
    DriverSetting { name: "network", kind: SettingKind::Word(NETWORKS) },
    DriverSetting { name: "storage", kind: SettingKind::Word(STORAGES) },
];

/// Keys that only some drivers read, with those drivers.
pub(super) const READERS: &[(&str, &[DriverKind])] = {
    use DriverKind::{CloudHypervisor, Oci, Proxmox, Qemu, Sandbox};
    &[
        ("packages", &[Sandbox]),
        ("services", &[Sandbox]),
        ("boot_delay_ms", &[Sandbox]),
        ("faults", &[Sandbox]),
        ("root_dir", &[Sandbox]),
        ("runtime", &[Oci]),
        ("image_dir", &[Oci, Qemu, CloudHypervisor]),
        ("subnet", &[Oci, Qemu, CloudHypervisor]),
        ("binary", &[Qemu, CloudHypervisor]),
        ("machine", &[Qemu]),
        ("accel", &[Qemu]),
        ("kernel", &[Qemu, CloudHypervisor]),
        ("initrd", &[Qemu, CloudHypervisor]),
        ("cmdline", &[Qemu, CloudHypervisor]),
        ("firmware", &[CloudHypervisor]),
        ("api_endpoint", &[Proxmox]),
        ("api_token", &[Proxmox]),
        ("node", &[Proxmox]),
        ("parent_node", &[Proxmox]),
        ("datastore", &[Proxmox]),
        ("iso_storage", &[Proxmox]),
        ("method", &[Proxmox]),
        ("images", &[Proxmox]),
        ("vmid_range", &[Proxmox]),
        ("fingerprint", &[Proxmox]),
        ("network", &[Qemu]),
        ("storage", &[Oci]),
    ]
};

/// Ids of machines in Proxmox.
pub(in crate::site) const VMIDS: std::ops::RangeInclusive<i64> = 100..=999_999_999;

impl SettingKind {
    /// Whether `node` is such a value; if not, that is reported.
    pub(super) fn accepts(&self, walk: &mut Walk<'_>, node: Node<'_>) -> bool {
        match self {
            Self::Text => walk.full_text(node).is_some(),
            Self::Word(list) => walk.choice(node, &one_of(list)).is_some(),
            Self::Network => match walk.text(node).map(Cidr::parse) {
                Some(Ok(_)) => true,
                Some(Err(error)) => {
                    let code = match error {
                        CidrError::Prefix { .. } => "node/out-of-range",
                        CidrError::Bare { .. } | CidrError::Malformed { .. } => "node/bad-type",
                    };
                    walk.report(node.error(code, error.to_string()));
                    false
                }
                None => false,
            },
            Self::VmIdsByName => match node.value() {
                Written::Map(entries) => {
                    entries.fold(true, |fine, (_, value)| walk.integer(value, VMIDS).is_some() && fine)
                }
                Written::Null
                | Written::Bool(_)
                | Written::Number(_)
                | Written::Text(_)
                | Written::List(_) => {
                    walk.report(node.bad(format!("expected ids by image name, found {}", node.describe())));
                    false
                }
            },
            Self::Fingerprint => {
                let Some(text) = walk.full_text(node) else { return false };
                let fits = Digest::parse(&text.replace(':', "").to_ascii_lowercase()).is_some();
                if !fits {
                    let problem = node.bad(format!("{} is no SHA-256 of a certificate", node.describe()));
                    walk.report(problem.help("write 32 pairs of hex digits: `AB:CD:…`"));
                }
                fits
            }
            Self::VmIdRange => {
                let Some(items) = walk.list(node, "two ids") else { return false };
                let ids: Vec<Option<i64>> = items.map(|item| walk.integer(item, VMIDS)).collect();
                let fits = matches!(ids.as_slice(), [Some(low), Some(high)] if low <= high);
                if !fits && ids.iter().all(Option::is_some) {
                    walk.report(node.error("node/out-of-range", "expected two ids, the lower one first"));
                }
                fits
            }
        }
    }
}

//! Presets: how large a machine is.

use core::net::IpAddr;

use serde_json::{Value, json};

use super::address::{NodeAddress, ip_schema, node_address_schema};
use super::read;
use crate::schema::{full_text, integer};
use crate::yaml::{Key, Keys, Node, Walk};

/// The most memory, in MB, and disk, in GB, that a file may ask for.
pub(super) const MOST: i64 = 1 << 30;

/// The keys of a preset.
pub const PRESET_KEYS: Keys = Keys {
    what: "a preset",
    keys: &[
        Key::new("cores", || integer(1, 128), "CPUs, 1 to 128").required(),
        Key::new("memory", || integer(512, MOST), "MB, at least 512").required(),
        Key::new("disk", || integer(1, MOST), "GB, at least 1").required(),
        Key::new("ip", node_address_schema, "`dhcp` or an address with prefix; default: the driver's"),
        Key::new("bridge", full_text, "the bridge of its network; default the site's"),
        Key::new("gateway", ip_schema, "the default route; default the site's"),
        Key::new("packages", texts, "older form: belongs in a spec"),
    ],
    hints: &[("cpus", "cores"), ("ram", "memory"), ("mem", "memory"), ("size", "disk")],
};

/// The JSON Schema of a list of texts.
pub(super) fn texts() -> Value {
    json!({"type": "array", "items": {"type": "string", "minLength": 1}})
}

/// How large a machine is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preset {
    /// CPUs.
    pub cores: u32,
    /// MB.
    pub memory: u32,
    /// GB.
    pub disk: u32,
    /// How it gets its address.
    pub ip: Option<NodeAddress>,
    /// The bridge of its network.
    pub bridge: Option<String>,
    /// Its default route.
    pub gateway: Option<IpAddr>,
    /// Installed by bootstrap.
    pub packages: Vec<String>,
}

pub(super) fn read(walk: &mut Walk<'_>, root: Node<'_>) -> Preset {
    let Some(fields) = walk.map(root, &PRESET_KEYS) else { return Preset::default() };
    if let Some(key) = root.key("packages") {
        let message = "packages of a preset are only installed at create";
        read::warn(walk, key, "node/unapplied-key", message, "move them to `platform.packages` of a spec");
    }
    Preset {
        cores: read::number(walk, fields, "cores", 1..=128).unwrap_or_default(),
        memory: read::number(walk, fields, "memory", 512..=MOST).unwrap_or_default(),
        disk: read::number(walk, fields, "disk", 1..=MOST).unwrap_or_default(),
        ip: read::node_address(walk, fields, "ip"),
        bridge: read::text(walk, fields, "bridge"),
        gateway: read::ip(walk, fields, "gateway"),
        packages: read::packages(walk, fields, "packages"),
    }
}

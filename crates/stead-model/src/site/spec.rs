//! Specs: what nodes become.

use core::net::IpAddr;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::address::{NodeAddress, ip_schema, node_address_schema};
use super::names::is_account;
use super::preset::texts;
use super::settings::{site_key, timezone};
use super::{Located, read};
use crate::id::SiteKey;
use crate::schema::{boolean, duration, full_text, object};
use crate::yaml::{Fields, Key, Keys, Node, Walk};

/// The keys of a spec.
pub const SPEC_KEYS: Keys = Keys {
    what: "a spec",
    keys: &[
        Key::new("schema_version", || json!({"const": 1}), "the format of the file: 1").required(),
        Key::new("identity", || object(&IDENTITY_KEYS), "what the node is called"),
        Key::new("network", || object(&NETWORK_KEYS), "its address"),
        Key::new("access", || object(&ACCESS_KEYS), "who may use it"),
        Key::new("platform", || object(&PLATFORM_KEYS), "what is installed and runs"),
        Key::new("config", config, "time zone, Proxmox settings and values of your own"),
        Key::new("run", run, "when it is configured again"),
    ],
    hints: &[("packages", "platform: {packages: …}"), ("users", "access: {users: …}")],
};

const IDENTITY_KEYS: Keys = Keys {
    what: "`identity`",
    keys: &[
        Key::new("hostname", full_text, "always the node's name; another value is a warning"),
        Key::new("domain", full_text, "default the site's"),
    ],
    hints: &[],
};

const NETWORK_KEYS: Keys = Keys {
    what: "`network`",
    keys: &[
        Key::new("ip", node_address_schema, "`dhcp` or an address with prefix").required(),
        Key::new("gateway", ip_schema, "the default route; required with an address, inside its network"),
        Key::new("dns", || json!({"type": "array", "items": ip_schema()}), "name servers; default none"),
    ],
    hints: &[("dns_servers", "dns"), ("address", "ip")],
};

const ACCESS_KEYS: Keys = Keys {
    what: "`access`",
    keys: &[
        Key::new("posture", site_key, "a file in postures/; default the site's"),
        Key::new("users", || json!({"type": "array", "items": object(&USER_KEYS)}), "accounts"),
    ],
    hints: &[],
};

const USER_KEYS: Keys = Keys {
    what: "a user",
    keys: &[
        Key::new("name", user_name, "a login name, unique in the spec").required(),
        Key::new("sudo", boolean, "whether it may use sudo; default `false`"),
        Key::new("ssh_keys", texts, "ids of keys in secrets.yaml; left out: all of them, sorted by id"),
    ],
    hints: &[("keys", "ssh_keys")],
};

const PLATFORM_KEYS: Keys = Keys {
    what: "`platform`",
    keys: &[
        Key::new("packages", texts, "installed"),
        Key::new("services", || object(&SERVICE_KEYS), "what runs"),
    ],
    hints: &[],
};

const SERVICE_KEYS: Keys = Keys {
    what: "`services`",
    keys: &[
        Key::new("enable", texts, "run now and after boot; must exist"),
        Key::new("disable", texts, "neither; need not exist"),
    ],
    hints: &[("enabled", "enable"), ("disabled", "disable")],
};

const PVE_KEYS: Keys = Keys {
    what: "`config.pve`",
    keys: &[Key::new("remove_subscription_nag", boolean, "default the site's")],
    hints: &[],
};

const RUN_KEYS: Keys = Keys {
    what: "`run`",
    keys: &[
        Key::new("trigger", || json!({"enum": ["manual", "schedule"]}), "`manual` (default) or `schedule`"),
        Key::new("interval", duration, "with `schedule`: at least `5s`; default `15m`"),
    ],
    hints: &[],
};

fn config() -> Value {
    json!({"type": "object", "properties": {
        "timezone": {"type": "string", "minLength": 1, "description": "an IANA name; default the site's"},
        "pve": object(&PVE_KEYS),
    }})
}

fn run() -> Value {
    object(&RUN_KEYS)
}

fn user_name() -> Value {
    json!({"type": "string", "pattern": "^[a-z_][a-z0-9_-]{0,31}$"})
}

/// What a node becomes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spec {
    /// A host name, which is the node's name anyway.
    pub hostname: Option<Located<String>>,
    /// Its domain.
    pub domain: Option<String>,
    /// Its address.
    pub network: Option<Network>,
    /// Its posture.
    pub posture: Option<Located<SiteKey>>,
    /// Its accounts.
    pub users: Vec<User>,
    /// What is installed.
    pub packages: Vec<String>,
    /// Services that run.
    pub enable: Vec<String>,
    /// Services that do not.
    pub disable: Vec<String>,
    /// `config` as it is written.
    pub config: Map<String, Value>,
    /// When it is configured again.
    pub run: Run,
}

/// An address of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// The address.
    pub ip: NodeAddress,
    /// The default route.
    pub gateway: Option<IpAddr>,
    /// Name servers.
    pub dns: Vec<IpAddr>,
}

/// An account of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Its name.
    pub name: String,
    /// Whether it may use sudo.
    pub sudo: bool,
    /// Ids of its keys; none: all keys of the site.
    pub ssh_keys: Option<Vec<Located<String>>>,
}

/// When a node is configured again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Run {
    /// When somebody says so.
    #[default]
    Manual,
    /// Every so often.
    Schedule {
        /// How often.
        interval: Duration,
    },
}

pub(super) fn read(walk: &mut Walk<'_>, root: Node<'_>) -> Spec {
    let mut spec = Spec::default();
    let Some(fields) = walk.map(root, &SPEC_KEYS) else { return spec };
    read_version(walk, fields, 1);
    if let Some(identity) = read::map(walk, fields, "identity", &IDENTITY_KEYS) {
        spec.hostname = identity.get("hostname").and_then(|node| {
            let value = walk.full_text(node)?.to_owned();
            Some(Located { value, span: node.span() })
        });
        spec.domain = read::domain(walk, identity, "domain");
    }
    spec.network =
        read::map(walk, fields, "network", &NETWORK_KEYS).and_then(|node| read_network(walk, node));
    if let Some(access) = read::map(walk, fields, "access", &ACCESS_KEYS) {
        spec.posture = read::id(walk, access, "posture");
        spec.users = read_users(walk, access);
    }
    if let Some(platform) = read::map(walk, fields, "platform", &PLATFORM_KEYS) {
        spec.packages = read::packages(walk, platform, "packages");
        if let Some(services) = read::map(walk, platform, "services", &SERVICE_KEYS) {
            spec.enable = read::services(walk, services, "enable");
            spec.disable = read::services(walk, services, "disable");
            refuse_both(walk, services);
        }
    }
    if let Some(node) = fields.get("config") {
        spec.config = read_config(walk, node);
    }
    if let Some(fields) = read::map(walk, fields, "run", &RUN_KEYS) {
        spec.run = read_run(walk, fields);
    }
    spec
}

/// Reports a `schema_version` that is not `wanted`.
pub(super) fn read_version(walk: &mut Walk<'_>, fields: Fields<'_>, wanted: i64) {
    let Some(node) = fields.get("schema_version") else { return };
    if node.to_json() != json!(wanted) {
        let message =
            format!("{} is not a version that is read here; the version is {wanted}", node.describe());
        let problem = node.error("node/version-unsupported", message);
        walk.report(problem.help(format!("write `schema_version: {wanted}`")));
    }
}

fn read_network(walk: &mut Walk<'_>, fields: Fields<'_>) -> Option<Network> {
    let ip = read::node_address(walk, fields, "ip");
    let gateway = read::ip(walk, fields, "gateway");
    let dns = read::ips(walk, fields, "dns");
    let ip = ip?;
    if let NodeAddress::Static(cidr) = ip {
        match (fields.get("gateway"), gateway) {
            (None, _) => walk.report(
                fields
                    .node()
                    .error("node/missing-field", "an address needs a `gateway`")
                    .help("name the default route, inside the network of `ip`"),
            ),
            (Some(node), Some(gateway)) if !cidr.contains(gateway) => walk.report(node.error(
                "node/out-of-range",
                format!("the gateway {gateway} is not in the network of {cidr}"),
            )),
            (Some(_), Some(_) | None) => {}
        }
    }
    Some(Network { ip, gateway, dns })
}

fn read_users(walk: &mut Walk<'_>, access: Fields<'_>) -> Vec<User> {
    let Some(node) = access.get("users") else { return Vec::new() };
    let Some(items) = walk.list(node, "users") else { return Vec::new() };
    let mut users: Vec<User> = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    for item in items {
        let Some(fields) = walk.map(item, &USER_KEYS) else { continue };
        let sudo = read::flag(walk, fields, "sudo").unwrap_or_default();
        let ssh_keys = read::located_texts(walk, fields, "ssh_keys");
        let Some(node) = fields.get("name") else { continue };
        let Some(name) = walk.text(node) else { continue };
        if !is_account(name) {
            let rule = "a lower-case letter or `_`, then those, digits or `-`, at most 32 in all";
            walk.report(node.error("node/bad-name", format!("`{name}` is not a login name: {rule}")));
        } else if !seen.insert(name) {
            walk.report(node.error("node/duplicate-name", format!("the user `{name}` is there twice")));
        } else {
            users.push(User { name: name.to_owned(), sudo, ssh_keys });
        }
    }
    users
}

fn refuse_both(walk: &mut Walk<'_>, services: Fields<'_>) {
    let (Some(enable), Some(disable)) = (services.get("enable"), services.get("disable")) else { return };
    let (Some(enable), Some(disable)) = (enable.as_list(), disable.as_list()) else { return };
    let enabled: std::collections::BTreeMap<&str, Node<'_>> =
        enable.filter_map(|node| Some((node.as_text()?, node))).collect();
    for node in disable {
        if let Some(name) = node.as_text()
            && let Some(other) = enabled.get(name)
        {
            walk.report(
                node.error("node/conflict", format!("the service `{name}` is both enabled and disabled"))
                    .related(other.place(), "enabled here"),
            );
        }
    }
}

fn read_config(walk: &mut Walk<'_>, node: Node<'_>) -> Map<String, Value> {
    let Some(entries) = node.as_map() else {
        walk.report(node.bad(format!("expected `config` (a map), found {}", node.describe())));
        return Map::new();
    };
    for (key, value) in entries {
        match key.as_text().unwrap_or_default() {
            "timezone" => drop(timezone(walk, value)),
            "pve" => {
                if let Some(fields) = walk.map(value, &PVE_KEYS) {
                    read::flag(walk, fields, "remove_subscription_nag");
                }
            }
            other => {
                let message = format!("`config.{other}` reaches the node, but nothing applies it");
                read::warn(
                    walk,
                    key,
                    "node/unapplied-key",
                    &message,
                    "a command or a plan may read it there",
                );
            }
        }
    }
    match node.to_json() {
        Value::Object(config) => config,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    }
}

/// The shortest interval of a schedule, and the one that holds if none is given.
const SHORTEST: Duration = Duration::from_secs(5);
const USUAL: Duration = Duration::from_secs(15 * 60);

fn read_run(walk: &mut Walk<'_>, fields: Fields<'_>) -> Run {
    let scheduled = match fields.get("trigger") {
        None => false,
        Some(node) => match node.as_text() {
            Some(word @ ("git" | "webhook")) => {
                walk.report(
                    node.error("node/bad-enum", format!("the trigger `{word}` is not available"))
                        .help("use `manual` or `schedule`")
                        .candidates(vec!["manual".to_owned(), "schedule".to_owned()]),
                );
                false
            }
            Some(_) | None => walk.choice(node, &[("manual", false), ("schedule", true)]).unwrap_or_default(),
        },
    };
    let Some(node) = fields.get("interval") else {
        return if scheduled { Run::Schedule { interval: USUAL } } else { Run::Manual };
    };
    let interval = walk.duration(node).unwrap_or(USUAL);
    if interval < SHORTEST || interval.subsec_nanos() != 0 {
        walk.report(node.error("node/out-of-range", "the interval is whole seconds, at least 5s"));
    }
    if !scheduled {
        walk.report(node.error("node/conflict", "an interval needs `trigger: schedule`"));
        return Run::Manual;
    }
    Run::Schedule { interval }
}

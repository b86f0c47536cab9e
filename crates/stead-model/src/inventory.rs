//! The inventory: which hosts there are and how they are reached.
//!
//! This release reaches the machine it runs on, under as many names and roots as the file gives it. Keys
//! and transports that need more are refused, not ignored.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::diagnostic::{Diagnostic, Diagnostics, Place, Source};
use crate::id::HostName;
use crate::schema::{api_version, full_text, integer, object, text};
use crate::yaml::{self, Codes, Fields, Key, Keys, Node, Value, Walk};

/// The top level of an inventory.
pub const INVENTORY_KEYS: Keys = Keys {
    what: "an inventory",
    keys: &[
        Key::new("api_version", api_version, "the format of the file: `v1`").required(),
        Key::new(
            "defaults",
            || object(&DEFAULTS_KEYS),
            "keys of every host that does not set them; labels are merged",
        ),
        Key::new("hosts", hosts_schema, "hosts by name").required(),
    ],
    hints: &[("all", "hosts"), ("agents", "hosts")],
};

/// `defaults` of an inventory: any host key but `transport`.
pub const DEFAULTS_KEYS: Keys = Keys {
    what: "`defaults`",
    keys: &[LABELS, ROOT, PARALLEL, DESCRIPTION],
    hints: &[("transport", "transport in each host"), ("tags", "labels")],
};

/// One host.
pub const HOST_KEYS: Keys = Keys {
    what: "a host",
    keys: &[
        Key::new("transport", transport_schema, "how it is reached: `local`").required(),
        LABELS,
        ROOT,
        PARALLEL,
        DESCRIPTION,
    ],
    hints: &[("tags", "labels"), ("address", "transport"), ("connection", "transport")],
};

const LABELS: Key =
    Key::new("labels", labels_schema, "labels that targets select by, such as `role: web.front`");
const ROOT: Key = Key::new(
    "root",
    || serde_json::json!({"type": "string", "pattern": "^/"}),
    "operations act below this absolute path; default `/`",
);
const PARALLEL: Key =
    Key::new("parallel", || integer(1, 1000), "attempts at once; default the plan's `per_target`");
const DESCRIPTION: Key = Key::new("description", text, "what the host is for");

/// Labels that are set by Stead.
const AUTOMATIC_LABELS: [&str; 9] =
    ["source", "manifest", "host", "type", "spec", "parent", "level", "mode", "driver"];

fn transport_schema() -> serde_json::Value {
    full_text()
}

fn hosts_schema() -> serde_json::Value {
    let host = serde_json::json!({"anyOf": [transport_schema(), {"$ref": "#/$defs/host"}]});
    serde_json::json!({"type": "object", "propertyNames": {"pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$"},
        "additionalProperties": host})
}

fn labels_schema() -> serde_json::Value {
    serde_json::json!({"type": "object", "propertyNames": {"pattern": "^[A-Za-z0-9_-]{1,63}$"},
        "additionalProperties": {"type": ["string", "number", "boolean"]}})
}

/// The hosts there are, besides `local`, which always is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// By name.
    pub hosts: BTreeMap<HostName, Host>,
}

/// One host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// How it is reached.
    pub transport: Transport,
    /// What targets select by, `source` included.
    pub labels: BTreeMap<String, String>,
    /// Operations act below this path; none: the whole machine.
    pub root: Option<String>,
    /// Attempts at once; none: the plan's `per_target`.
    pub parallel: Option<u32>,
    /// What it is for.
    pub description: Option<String>,
}

/// How a host is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// It is the machine Stead itself runs on.
    Local,
}

impl Host {
    /// Returns the machine Stead itself runs on, as it is without any inventory.
    pub fn local() -> Self {
        Self {
            transport: Transport::Local,
            labels: BTreeMap::new(),
            root: None,
            parallel: None,
            description: None,
        }
    }
}

impl Inventory {
    /// Returns the host called `name`; `local` always is there.
    pub fn get(&self, name: &str) -> Option<Host> {
        match self.hosts.get(name) {
            Some(host) => Some(host.clone()),
            None => (name == "local").then(Host::local),
        }
    }

    /// Returns the inventory that `sources` hold together, or every problem in them.
    pub fn read(sources: &[Source]) -> Result<Self, Diagnostics> {
        let mut diagnostics = Diagnostics::default();
        let mut found: BTreeMap<HostName, (Host, Place)> = BTreeMap::new();
        for source in sources {
            for (name, host, place) in read_one(source, &mut diagnostics) {
                match found.get(&name) {
                    Some((other, first)) if *other != host => diagnostics.push(
                        Diagnostic::error(
                            "reach/duplicate-host",
                            place,
                            format!("the host `{name}` has two different definitions"),
                        )
                        .related(first.clone(), "the other one")
                        .help("rename one of them, or leave one out"),
                    ),
                    Some(_) => {}
                    None => {
                        found.insert(name, (host, place));
                    }
                }
            }
        }
        if diagnostics.has_errors() {
            return Err(diagnostics.sorted());
        }
        Ok(Self { hosts: found.into_iter().map(|(name, (host, _))| (name, host)).collect() })
    }
}

fn read_one(source: &Source, diagnostics: &mut Diagnostics) -> Vec<(HostName, Host, Place)> {
    let mut hosts = Vec::new();
    let Some(tree) = yaml::read(source, Codes::REACH, diagnostics) else { return hosts };
    let mut walk = Walk::new(diagnostics);
    let Some(fields) = walk.map(tree.root(), &INVENTORY_KEYS) else { return hosts };
    if let Some(node) = fields.get("api_version")
        && node.as_text() != Some("v1")
    {
        walk.report(
            node.bad(format!("expected `v1`, found {}", node.describe())).help("write `api_version: v1`"),
        );
    }
    let mut defaults = Host::local();
    if let Some(given) = fields.get("defaults").and_then(|node| walk.map(node, &DEFAULTS_KEYS)) {
        settings(&mut walk, given, &mut defaults);
    }
    let Some(node) = fields.get("hosts") else { return hosts };
    let Some(entries) = node.as_map() else {
        walk.report(node.bad(format!("expected a map of hosts, found {}", node.describe())));
        return hosts;
    };
    for (key, value) in entries {
        let host = host(&mut walk, value, &defaults);
        if let (Some(name), Some(host)) = (host_name(&mut walk, key), host) {
            hosts.push((name, host, key.place()));
        }
    }
    hosts
}

fn host_name(walk: &mut Walk<'_>, key: Node<'_>) -> Option<HostName> {
    let text = key.as_text().unwrap_or_default();
    if text == "all" || text.starts_with('_') {
        walk.report(
            key.error("reach/reserved-name", format!("`{text}` is reserved"))
                .help("`all` and names that begin with `_` are target words; choose another name"),
        );
        return None;
    }
    let word = text.len() <= 253
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    match HostName::parse(text) {
        Ok(name) if word => Some(name),
        Ok(_) | Err(_) => {
            walk.report(key.bad(format!(
                "`{text}` is not a host name: a letter or digit, then letters, digits, `.`, `_` or `-`, at most 253 in all"
            )));
            None
        }
    }
}

fn host(walk: &mut Walk<'_>, node: Node<'_>, defaults: &Host) -> Option<Host> {
    let mut host = defaults.clone();
    let transport_node = if node.as_map().is_some() {
        let fields = walk.map(node, &HOST_KEYS)?;
        settings(walk, fields, &mut host);
        fields.get("transport")?
    } else {
        node
    };
    host.transport = transport(walk, transport_node)?;
    host.labels.insert("source".to_owned(), "inventory".to_owned());
    Some(host)
}

fn settings(walk: &mut Walk<'_>, fields: Fields<'_>, host: &mut Host) {
    if let Some(node) = fields.get("labels") {
        labels(walk, node, &mut host.labels);
    }
    if let Some(node) = fields.get("root")
        && let Some(root) = walk.text(node)
    {
        if root.starts_with('/') && root.split('/').all(|part| part != "..") {
            host.root = Some(root.to_owned()).filter(|root| root.bytes().any(|byte| byte != b'/'));
        } else {
            walk.report(node.bad(format!("expected an absolute path without `..`, found `{root}`")));
        }
    }
    if let Some(parallel) = fields.get("parallel").and_then(|node| walk.integer(node, 1..=1000)) {
        host.parallel = u32::try_from(parallel).ok();
    }
    if let Some(description) = fields.get("description").and_then(|node| walk.text(node)) {
        host.description = Some(description.to_owned());
    }
}

fn labels(walk: &mut Walk<'_>, node: Node<'_>, labels: &mut BTreeMap<String, String>) {
    const CODE: &str = "reach/bad-label";
    let Some(entries) = node.as_map() else {
        walk.report(node.error(CODE, format!("expected a map of labels, found {}", node.describe())));
        return;
    };
    let is_segment = |text: &str| {
        (1..=63).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
    };
    for (key, value) in entries {
        let name = key.as_text().unwrap_or_default();
        if AUTOMATIC_LABELS.contains(&name) {
            let problem = key.error(CODE, format!("the label `{name}` is set by Stead"));
            walk.report(problem.help("choose another name"));
            continue;
        }
        if !is_segment(name) {
            let problem = key.error(CODE, format!("`{name}` is not a label name"));
            walk.report(problem.help("1 to 63 letters, digits, `_` or `-`"));
            continue;
        }
        let text = match value.value() {
            Value::Text(text) => text,
            Value::Bool(_) | Value::Number(_) => value.raw(),
            Value::Null | Value::List(_) | Value::Map(_) => {
                walk.report(value.error(CODE, format!("expected a text, found {}", value.describe())));
                continue;
            }
        };
        if text.len() <= 255 && text.split('.').all(is_segment) {
            labels.insert(name.to_owned(), text.to_owned());
        } else {
            let problem = value.error(CODE, format!("`{text}` is not a label value"));
            walk.report(
                problem.help("segments of letters, digits, `_` or `-`, joined by `.`, at most 255 in all"),
            );
        }
    }
}

fn transport(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Transport> {
    const CODE: &str = "reach/bad-transport";
    let Value::Text(text) = node.value() else {
        walk.report(
            node.error(CODE, format!("expected a transport, found {}", node.describe()))
                .help("write `local`"),
        );
        return None;
    };
    if matches!(text, "local" | "local://") {
        return Some(Transport::Local);
    }
    let problem = if text.starts_with("ssh://") || text.contains('@') {
        node.error(CODE, "SSH targets come with the next release").help("this release reaches `local` only")
    } else {
        node.error(CODE, format!("`{text}` is not a transport")).help("write `local`")
    };
    walk.report(problem);
    None
}

#[cfg(test)]
mod tests;

//! `worker.yaml`: what a worker offers, whom it trusts and what it keeps.

use core::net::SocketAddr;
use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::publisher::read_public_keys;
use super::{ANYWHERE, authorities, duration, read_observe, read_whole, texts, texts_schema};
use crate::diagnostic::{Diagnostics, Source};
use crate::fleet::fleet_file::{RESERVE_KEYS, read_reserve};
use crate::fleet::labels::{Labels, labels_schema, read_worker_labels};
use crate::fleet::state::Allocatable;
use crate::fleet::vm::{Driver, Resources};
use crate::id::WorkerName;
use crate::schema::{self, boolean, full_text, integer, object, words};
use crate::site::Host;
use crate::site::host::read_driver;
use crate::site::read;
use crate::yaml::{Fields, Key, Keys, Node, Value, Walk};

/// What `worker.yaml` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerFile {
    /// What it is called; none: the machine's name.
    pub name: Option<WorkerName>,
    /// Where its figures are, on this machine; port 0: wherever is room.
    pub observe: SocketAddr,
    /// The masters.
    pub masters: Vec<String>,
    /// What it can make, with what a host says of each; empty: whatever this machine can.
    pub drivers: BTreeMap<Driver, Host>,
    /// Its own labels.
    pub labels: Labels,
    /// What it offers; none: what the machine has.
    pub capacity: Option<Allocatable>,
    /// How Nix is used.
    pub nix: WorkerNix,
    /// Where blobs are: a directory, or an address of https.
    pub artifacts: Option<String>,
    /// How many earlier closures of a VM are kept.
    pub keep_previous: u32,
    /// What is not for instances.
    pub reserve: Resources,
    /// How often it looks whether all is as it should be.
    pub drift_interval: Duration,
    /// Below so much free disk, of a hundred, nothing is added.
    pub min_free_disk_percent: u32,
    /// What stands in for a driver the machine does not have.
    pub map_driver: BTreeMap<Driver, Driver>,
}

impl Default for WorkerFile {
    fn default() -> Self {
        Self {
            name: None,
            observe: ANYWHERE,
            masters: Vec::new(),
            drivers: BTreeMap::new(),
            labels: Labels::new(),
            capacity: None,
            nix: WorkerNix::default(),
            artifacts: None,
            keep_previous: 2,
            reserve: Resources { cpu_milli: 0, mem_mib: 256, disk_mib: 0 },
            drift_interval: Duration::from_secs(30),
            min_free_disk_percent: 5,
            map_driver: BTreeMap::new(),
        }
    }
}

/// How a worker uses Nix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerNix {
    /// The program.
    pub binary: String,
    /// The store.
    pub store: String,
    /// Where paths are fetched from.
    pub caches: Vec<String>,
    /// Who is trusted.
    pub public_keys: Vec<String>,
    /// Whether what no cache has is built here.
    pub local_build: bool,
}

impl Default for WorkerNix {
    fn default() -> Self {
        Self {
            binary: "nix".to_owned(),
            store: "auto".to_owned(),
            caches: Vec::new(),
            public_keys: Vec::new(),
            local_build: false,
        }
    }
}

/// The keys of `worker.yaml`.
pub const WORKER_FILE_KEYS: Keys = Keys {
    what: "worker.yaml",
    keys: &[
        Key::new("name", full_text, "what it is called; default the machine's name"),
        Key::new(
            "observe",
            full_text,
            "where its `/metrics` is; default `127.0.0.1:0`: at a port of its own, which it says",
        ),
        Key::new("masters", texts_schema, "the masters: `HOST:44444`"),
        Key::new("drivers", drivers_schema, "what it can make, with the fields of a host for each"),
        Key::new("labels", labels_schema, "its own labels"),
        Key::new("capacity", || object(&CAPACITY_KEYS), "what it offers; default what the machine has"),
        Key::new("nix", || object(&NIX_KEYS), "how Nix is used"),
        Key::new("artifacts", full_text, "where blobs are: a directory, or an address of https"),
        Key::new("keep_previous", || integer(0, 1000), "earlier closures kept of a VM; default 2"),
        Key::new("reserve", || object(&RESERVE_KEYS), "what is not for instances; default 256 MiB"),
        Key::new("drift_interval", schema::duration, "how often it looks at everything; default `30s`"),
        Key::new("min_free_disk", percent_schema, "below this nothing is added; default `5%`"),
        Key::new("map_driver", map_schema, "what stands in for a driver that is not there"),
    ],
    hints: &[("mapDriver", "map_driver"), ("keepPrevious", "keep_previous")],
};

const CAPACITY_KEYS: Keys = Keys {
    what: "`capacity`",
    keys: &[
        Key::new("cpuMilli", || integer(0, 1_024_000), "thousandths of a processor").required(),
        Key::new("memMiB", || integer(0, 16_777_216), "memory in MiB").required(),
        Key::new("diskMiB", || integer(0, 1 << 40), "disk in MiB; default as much as there is"),
    ],
    hints: &[("cpu", "cpuMilli"), ("memory", "memMiB")],
};

const NIX_KEYS: Keys = Keys {
    what: "`nix`",
    keys: &[
        Key::new("binary", full_text, "the program; default `nix`"),
        Key::new("store", full_text, "default `auto`"),
        Key::new("caches", texts_schema, "where paths are fetched from"),
        Key::new("public_keys", texts_schema, "who is trusted: `NAME:BASE64`"),
        Key::new("local_build", boolean, "whether what no cache has is built here; default `false`"),
    ],
    hints: &[("cache", "caches: [URL]")],
};

fn drivers_schema() -> Json {
    let words: Vec<&str> = Driver::WORDS.iter().map(|(word, _)| *word).collect();
    json!({"type": "object", "propertyNames": {"enum": words}})
}

fn map_schema() -> Json {
    let mut schema = drivers_schema();
    schema["additionalProperties"] = words(&Driver::WORDS);
    schema
}

fn percent_schema() -> Json {
    json!({"type": "string", "pattern": "^([0-9]|[1-9][0-9])%$"})
}

impl WorkerFile {
    /// Returns what `source` says, if it can be used.
    pub fn read(source: &Source, diagnostics: &mut Diagnostics) -> Option<Self> {
        read_whole(source, diagnostics, read_worker)
    }
}

fn read_worker(walk: &mut Walk<'_>, root: Node<'_>) -> Option<WorkerFile> {
    let default = WorkerFile::default();
    if matches!(root.value(), Value::Null) {
        return Some(default);
    }
    let fields = walk.map(root, &WORKER_FILE_KEYS)?;
    let mut file = WorkerFile {
        name: fields.get("name").and_then(|node| walk.id(node)),
        observe: read_observe(walk, fields, "127.0.0.1:44447"),
        masters: authorities(walk, fields, "masters"),
        labels: fields.get("labels").map(|node| read_worker_labels(walk, node)).unwrap_or_default(),
        artifacts: read::text(walk, fields, "artifacts"),
        keep_previous: read::number(walk, fields, "keep_previous", 0..=1000).unwrap_or(default.keep_previous),
        drift_interval: duration(walk, fields, "drift_interval", default.drift_interval),
        ..default
    };
    if let Some(node) = fields.get("drift_interval")
        && file.drift_interval < Duration::from_secs(1)
    {
        walk.report(node.error("fleet/out-of-range", "`drift_interval` is at least 1s"));
    }
    if let Some(node) = fields.get("reserve") {
        let given = read_reserve(walk, node);
        let mem_mib = if node.get("memMiB").is_some() { given.mem_mib } else { file.reserve.mem_mib };
        file.reserve = Resources { mem_mib, ..given };
    }
    if let Some(given) = read::map(walk, fields, "capacity", &CAPACITY_KEYS) {
        let cpu_milli = read::number(walk, given, "cpuMilli", 0..=1_024_000);
        let mem_mib = read::number(walk, given, "memMiB", 0..=16_777_216);
        let disk_mib = read::number(walk, given, "diskMiB", 0..=1 << 40);
        file.capacity =
            cpu_milli.zip(mem_mib).map(|(cpu_milli, mem_mib)| Allocatable { cpu_milli, mem_mib, disk_mib });
    }
    if let Some(given) = read::map(walk, fields, "nix", &NIX_KEYS) {
        file.nix = read_nix(walk, given);
    }
    file.min_free_disk_percent = read_percent(walk, fields).unwrap_or(file.min_free_disk_percent);
    read_drivers(walk, fields, &mut file);
    Some(file)
}

fn read_nix(walk: &mut Walk<'_>, fields: Fields<'_>) -> WorkerNix {
    let default = WorkerNix::default();
    WorkerNix {
        binary: read::text(walk, fields, "binary").unwrap_or(default.binary),
        store: read::text(walk, fields, "store").unwrap_or(default.store),
        caches: texts(walk, fields, "caches"),
        public_keys: read_public_keys(walk, fields),
        local_build: read::flag(walk, fields, "local_build").unwrap_or_default(),
    }
}

fn read_percent(walk: &mut Walk<'_>, fields: Fields<'_>) -> Option<u32> {
    let node = fields.get("min_free_disk")?;
    let text = walk.text(node)?;
    let percent = text.strip_suffix('%').and_then(|digits| digits.parse::<u32>().ok());
    if percent.is_none_or(|percent| percent > 99) {
        let problem = node.bad(format!("`{text}` is not a percentage"));
        walk.report(problem.help("write `min_free_disk: 5%`, at most 99%"));
        return None;
    }
    percent
}

fn read_drivers(walk: &mut Walk<'_>, fields: Fields<'_>, file: &mut WorkerFile) {
    for (key, value) in fields.get("drivers").and_then(Node::as_map).into_iter().flatten() {
        let Some(driver) = walk.choice(key, &Driver::WORDS) else { continue };
        let host = match value.value() {
            Value::Null => Some(Host { driver: Some(driver.kind()), ..Host::default() }),
            Value::Map(_) => read_driver(walk, value, driver.kind()),
            Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::List(_) => {
                let message = format!("expected the fields of a host, found {}", value.describe());
                walk.report(value.bad(message).help("write `{}` for its defaults"));
                continue;
            }
        };
        file.drivers.extend(host.map(|host| (driver, host)));
    }
    for (key, value) in fields.get("map_driver").and_then(Node::as_map).into_iter().flatten() {
        let (from, to) = (walk.choice(key, &Driver::WORDS), walk.choice(value, &Driver::WORDS));
        if let (Some(from), Some(to)) = (from, to) {
            if from == to {
                walk.report(value.error("fleet/conflict", "a driver does not stand in for itself"));
            }
            file.map_driver.insert(from, to);
        }
    }
    for key in ["drivers", "map_driver"] {
        if let Some(node) = fields.get(key)
            && node.as_map().is_none()
        {
            walk.report(node.bad(format!("expected a map of drivers, found {}", node.describe())));
        }
    }
}

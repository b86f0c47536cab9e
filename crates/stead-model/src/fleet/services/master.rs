//! `master.yaml`: where a master listens and what it keeps its state in.

use super::{authorities, listen, read_whole, texts_schema};
use crate::diagnostic::{Diagnostics, Source};
use crate::id::WorkerName;
use crate::schema::{full_text, integer, object, words};
use crate::site::read;
use crate::yaml::{Fields, Key, Keys, Node, Value, Walk};

/// What `master.yaml` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterFile {
    /// What it is called; none: the machine's name.
    pub name: Option<WorkerName>,
    /// Where workers, publishers and people reach it.
    pub listen: String,
    /// Where it shows its page and figures.
    pub observe: String,
    /// The address it gives to others.
    pub advertise: Option<String>,
    /// What it keeps its state in.
    pub store: Store,
    /// How many generations are kept.
    pub history: u32,
}

impl Default for MasterFile {
    fn default() -> Self {
        Self {
            name: None,
            listen: LISTEN.to_owned(),
            observe: OBSERVE.to_owned(),
            advertise: None,
            store: Store::Embedded { path: None },
            history: 100,
        }
    }
}

/// What a master keeps its state in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    /// One file.
    Embedded {
        /// Where; none: in the state directory.
        path: Option<String>,
    },
    /// A store that several masters share.
    Distributed {
        /// Its servers.
        endpoints: Vec<String>,
        /// What keys begin with.
        prefix: String,
        /// How they are entered.
        tls: Option<StoreTls>,
    },
}

/// How a shared store is entered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreTls {
    /// Who its servers are.
    pub ca_file: String,
    /// Who we are.
    pub cert_file: String,
    /// What proves it.
    pub key_file: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum StoreKind {
    #[default]
    Embedded,
    Distributed,
}

const STORE_KINDS: [(&str, StoreKind); 2] =
    [("embedded", StoreKind::Embedded), ("distributed", StoreKind::Distributed)];

const LISTEN: &str = "0.0.0.0:44444";
const OBSERVE: &str = "127.0.0.1:44445";

/// The keys of `master.yaml`.
pub const MASTER_KEYS: Keys = Keys {
    what: "master.yaml",
    keys: &[
        Key::new("name", full_text, "what it is called; default the machine's name"),
        Key::new("listen", full_text, "default `0.0.0.0:44444`"),
        Key::new("observe", full_text, "its page and figures; default `127.0.0.1:44445`"),
        Key::new("advertise", full_text, "the address it gives to others"),
        Key::new("store", || object(&STORE_KEYS), "what it keeps its state in"),
        Key::new("history", || integer(1, 100_000), "how many generations are kept; default 100"),
    ],
    hints: &[("bind", "listen")],
};

const STORE_KEYS: Keys = Keys {
    what: "`store`",
    keys: &[
        Key::new("kind", || words(&STORE_KINDS), "default `embedded`"),
        Key::new("path", full_text, "of `embedded`: the file; default STATE/fleet/master.db"),
        Key::new("endpoints", texts_schema, "of `distributed`: its servers"),
        Key::new("prefix", full_text, "of `distributed`: what keys begin with; default `stead/`"),
        Key::new("tls", || object(&TLS_KEYS), "of `distributed`: how they are entered"),
    ],
    hints: &[],
};

const TLS_KEYS: Keys = Keys {
    what: "`store.tls`",
    keys: &[
        Key::new("ca_file", full_text, "who the servers are").required(),
        Key::new("cert_file", full_text, "who the master is").required(),
        Key::new("key_file", full_text, "what proves it").required(),
    ],
    hints: &[],
};

impl MasterFile {
    /// Returns what `source` says, if it can be used.
    pub fn read(source: &Source, diagnostics: &mut Diagnostics) -> Option<Self> {
        read_whole(source, diagnostics, read_master)
    }
}

fn read_master(walk: &mut Walk<'_>, root: Node<'_>) -> Option<MasterFile> {
    let default = MasterFile::default();
    if matches!(root.value(), Value::Null) {
        return Some(default);
    }
    let fields = walk.map(root, &MASTER_KEYS)?;
    Some(MasterFile {
        name: fields.get("name").and_then(|node| walk.id(node)),
        listen: listen(walk, fields, "listen", LISTEN),
        observe: listen(walk, fields, "observe", OBSERVE),
        advertise: read::text(walk, fields, "advertise"),
        store: read::map(walk, fields, "store", &STORE_KEYS)
            .and_then(|given| read_store(walk, given))
            .unwrap_or(default.store),
        history: read::number(walk, fields, "history", 1..=100_000).unwrap_or(default.history),
    })
}

fn read_store(walk: &mut Walk<'_>, fields: Fields<'_>) -> Option<Store> {
    let kind = read::word(walk, fields, "kind", &STORE_KINDS).unwrap_or_default();
    let unused: &[&str] = match kind {
        StoreKind::Embedded => &["endpoints", "prefix", "tls"],
        StoreKind::Distributed => &["path"],
    };
    for key in unused {
        if let Some(node) = fields.node().key(key) {
            walk.report(node.error("fleet/conflict", format!("this kind of store has no use for `{key}`")));
        }
    }
    match kind {
        StoreKind::Embedded => Some(Store::Embedded { path: read::text(walk, fields, "path") }),
        StoreKind::Distributed => {
            let endpoints = authorities(walk, fields, "endpoints");
            if fields.get("endpoints").is_none() {
                let message = "a distributed store needs the key `endpoints`";
                walk.report(fields.node().error("fleet/missing-field", message));
            }
            let prefix = read::text(walk, fields, "prefix").unwrap_or_else(|| "stead/".to_owned());
            let tls = read::map(walk, fields, "tls", &TLS_KEYS).and_then(|given| {
                let (ca_file, cert_file) =
                    (read::text(walk, given, "ca_file"), read::text(walk, given, "cert_file"));
                let key_file = read::text(walk, given, "key_file");
                Some(StoreTls { ca_file: ca_file?, cert_file: cert_file?, key_file: key_file? })
            });
            Some(Store::Distributed { endpoints, prefix, tls })
        }
    }
}

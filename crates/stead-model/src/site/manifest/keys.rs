//! The keys of manifests.

use serde_json::{Value, json};

use super::{Delegation, Mode, NodeType, OnNodeError, Pattern};
use crate::schema::{boolean, full_text, integer, object, text, words};
use crate::site::address::node_address_schema;
use crate::site::host::HOSTING_KEYS;
use crate::site::preset::MOST;
use crate::site::settings::site_key;
use crate::yaml::{Key, Keys};

/// The most nodes one entry may stand for.
pub(super) const MOST_NODES: i64 = 100_000;

/// The keys of a manifest.
pub const MANIFEST_KEYS: Keys = Keys {
    what: "a manifest",
    keys: &[
        Key::new("schema_version", || json!({"const": 2}), "the format of the file: 2").required(),
        Key::new("name", site_key, "its name: that of the file without `.yaml`").required(),
        Key::new("description", text, "what it is for"),
        Key::new("pattern", || words(&Pattern::WORDS), "what is built; default inferred"),
        Key::new("execution", || object(&EXECUTION_KEYS), "how it is built"),
        Key::new("nodes", nodes, "the nodes: at least one").required(),
        Key::new("settings", || object(&SETTINGS_KEYS), "what holds for all nodes"),
        Key::new("context", || object(&CONTEXT_KEYS), "set by a delegating parent; not in files"),
    ],
    hints: &[
        ("levels", "nodes` with `parent` in each node of a lower level, which is the form of version `2"),
        ("default_mode", "execution: {default_mode: …}"),
    ],
};

pub(super) const EXECUTION_KEYS: Keys = Keys {
    what: "`execution`",
    keys: &[Key::new("default_mode", || words(&Mode::WORDS), "of nodes that do not say; default `push`")],
    hints: &[("mode", "default_mode")],
};

pub(super) const NODE_KEYS: Keys = Keys {
    what: "a node",
    keys: &[
        Key::new("name", node_name, "a DNS label, unique in the manifest").required(),
        Key::new("type", || words(&NodeType::WORDS), "`vm`, `ct` or `pve`").required(),
        Key::new("spec", site_key, "a file in specs/; left out: no config phase"),
        Key::new("preset", site_key, "a file in presets/; default the driver's size"),
        Key::new("image", full_text, "what a vm or pve boots"),
        Key::new("template", full_text, "what a ct is made of"),
        Key::new("parent", parent, "the node it is made in; `null`: none"),
        Key::new("peers", names, "nodes it is linked with; one side is enough"),
        Key::new("depends_on", names, "nodes of the same parent that come first"),
        Key::new("count", || integer(1, MOST_NODES), "makes NAME-1 to NAME-N"),
        Key::new("host", site_key, "of a root: where it is made instead of on `-H`"),
        Key::new("hosting", || object(&HOSTING_KEYS), "what it uses for its children; default what made it"),
        Key::new("vmid", || integer(100, 999_999_999), "its id in Proxmox; default the next free one"),
        Key::new("disk", || integer(1, MOST), "GB; overrides the preset"),
        Key::new("ip", node_address_schema, "`dhcp` or an address with prefix; overrides the preset"),
        Key::new("execution", || object(&NODE_EXECUTION_KEYS), "how it is built"),
    ],
    hints: &[
        ("mode", "execution: {mode: …}"),
        ("needs", "depends_on"),
        ("replicas", "count"),
        ("kind", "type"),
    ],
};

pub(super) const NODE_EXECUTION_KEYS: Keys = Keys {
    what: "`execution` of a node",
    keys: &[
        Key::new("mode", || words(&Mode::WORDS), "of all phases; default the manifest's"),
        Key::new("phases", || object(&PHASES_KEYS), "of single phases"),
    ],
    hints: &[("default_mode", "mode")],
};

pub(super) const PHASES_KEYS: Keys = Keys {
    what: "`phases`",
    keys: &[
        Key::new("create", || json!({"const": "push"}), "only `push`: a node cannot make itself"),
        Key::new("config", || words(&Mode::WORDS), "default the node's mode"),
        Key::new("run", || words(&Mode::WORDS), "default that of config"),
        Key::new("destroy", || words(&Mode::WORDS), "default `push`"),
    ],
    hints: &[],
};

pub(super) const SETTINGS_KEYS: Keys = Keys {
    what: "`settings`",
    keys: &[
        Key::new("verify_ssh", boolean, "whether verify logs in; default `true`"),
        Key::new(
            "cleanup_on_failure",
            boolean,
            "whether `test` destroys what it could not create; default `true`",
        ),
        Key::new("timeout_buffer", || integer(0, 86_400), "seconds added to every wait; default 60"),
        Key::new(
            "on_error",
            || words(&OnNodeError::WORDS),
            "what a failed node does to the run; default `stop`",
        ),
        Key::new("parallel", || integer(0, 10_000), "nodes at once; default 0 = the host's"),
        Key::new("delegation", || words(&Delegation::WORDS), "how hosting nodes are told; default `ssh`"),
    ],
    hints: &[],
};

pub(super) const CONTEXT_KEYS: Keys = Keys {
    what: "`context`",
    keys: &[
        Key::new("run", full_text, "the first run").required(),
        Key::new("path", names, "the hosting nodes above").required(),
        Key::new("host", full_text, "the host of the first run").required(),
        Key::new("peers", peers_outside, "links that leave the manifest"),
    ],
    hints: &[],
};

pub(super) const PEER_KEYS: Keys = Keys {
    what: "a peer outside",
    keys: &[
        Key::new("of", node_name, "the node of the manifest").required(),
        Key::new("name", node_name, "its peer").required(),
        Key::new("ip", full_text, "where the peer is"),
        Key::new("ssh_port", || integer(1, 65_535), "where it takes logins"),
    ],
    hints: &[],
};

fn peers_outside() -> Value {
    json!({"type": "array", "items": object(&PEER_KEYS)})
}

fn node_name() -> Value {
    json!({"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"})
}

fn parent() -> Value {
    json!({"anyOf": [node_name(), {"type": "null"}]})
}

fn names() -> Value {
    json!({"type": "array", "items": node_name()})
}

fn nodes() -> Value {
    json!({"type": "array", "items": object(&NODE_KEYS), "minItems": 1})
}

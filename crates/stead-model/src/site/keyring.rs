//! `keyring.yaml`: the keys that sign tokens and the tokens that are revoked. Written by `stead token` alone.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::read;
use super::secrets::{read_key, signing_key};
use crate::id::NodeName;
use crate::schema::{full_text, integer, object, words};
use crate::token::{LATEST, SigningKey, is_token_id};
use crate::yaml::{Key, Keys, Node, Value as Written, Walk};

/// The keys of `keyring.yaml`.
pub const KEYRING_KEYS: Keys = Keys {
    what: "keyring.yaml",
    keys: &[
        Key::new("keys", || list(&KEY_KEYS), "the keys, oldest first"),
        Key::new("revoked", || list(&REVOKED_KEYS), "tokens that are not accepted any more"),
    ],
    hints: &[],
};

const KEY_KEYS: Keys = Keys {
    what: "a key",
    keys: &[
        Key::new("key", signing_key, "64 hex digits").required(),
        Key::new("use", || words(&KeyUse::WORDS), "`mint` or `verify`").required(),
        Key::new("until", time, "when it stops to verify, in seconds since 1970; default never"),
    ],
    hints: &[],
};

const REVOKED_KEYS: Keys = Keys {
    what: "a revocation",
    keys: &[
        Key::new("jti", token_id, "the id of one token"),
        Key::new("node", full_text, "a node, with `before`"),
        Key::new("before", time, "tokens made before this are revoked, in seconds since 1970"),
    ],
    hints: &[],
};

/// Words of the file that may be shown: its keys.
pub(super) const KNOWN_WORDS: &[&str] =
    &["keys", "key", "use", "mint", "verify", "until", "revoked", "jti", "node", "before"];

fn time() -> Value {
    integer(0, LATEST)
}

fn token_id() -> Value {
    json!({"type": "string", "pattern": "^[!-~]{1,128}$"})
}

fn list(keys: &Keys) -> Value {
    json!({"type": "array", "items": object(keys)})
}

/// What a key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyUse {
    /// It signs new tokens, and verifies.
    Mint,
    /// It only verifies.
    Verify,
}

impl KeyUse {
    /// Every use with its word.
    pub const WORDS: [(&'static str, Self); 2] = [("mint", Self::Mint), ("verify", Self::Verify)];
}

/// One key of a keyring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyringKey {
    /// The key.
    pub key: SigningKey,
    /// What it is for.
    pub usage: KeyUse,
    /// When it stops to verify, in seconds since 1970.
    pub until: Option<i64>,
}

/// What is not accepted any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Revocation {
    /// One token.
    Token {
        /// Its id.
        jti: String,
    },
    /// All older tokens of a node.
    Node {
        /// The node.
        node: NodeName,
        /// Tokens made before this, in seconds since 1970.
        before: i64,
    },
}

/// Keys and revocations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keyring {
    /// The keys, oldest first.
    pub keys: Vec<KeyringKey>,
    /// What is not accepted any more.
    pub revoked: Vec<Revocation>,
}

pub(super) fn read(walk: &mut Walk<'_>, root: Node<'_>) -> Keyring {
    let mut keyring = Keyring::default();
    if matches!(root.value(), Written::Null) {
        return keyring;
    }
    if root.as_map().is_none() {
        walk.report(root.bad("expected a map with `keys` and `revoked`"));
        return keyring;
    }
    let Some(fields) = walk.map(root, &KEYRING_KEYS) else { return keyring };
    let mut seen = BTreeSet::new();
    let mut mints = false;
    for node in items(walk, fields.get("keys")) {
        let Some(key) = read_keyring_key(walk, node) else { continue };
        if key.usage == KeyUse::Mint && std::mem::replace(&mut mints, true) {
            walk.report(node.error("node/conflict", "two keys mint; one does"));
        }
        if !seen.insert(key.key.to_hex()) {
            walk.report(node.error("node/duplicate-name", "this key is there twice"));
        }
        keyring.keys.push(key);
    }
    for node in items(walk, fields.get("revoked")) {
        keyring.revoked.extend(read_revocation(walk, node));
    }
    keyring
}

fn items<'t>(walk: &mut Walk<'_>, node: Option<Node<'t>>) -> Vec<Node<'t>> {
    let Some(node) = node else { return Vec::new() };
    match node.as_list() {
        Some(items) => items.collect(),
        None => {
            walk.report(node.bad("expected a list"));
            Vec::new()
        }
    }
}

fn read_keyring_key(walk: &mut Walk<'_>, node: Node<'_>) -> Option<KeyringKey> {
    if node.as_map().is_none() {
        walk.report(node.bad("expected a key (a map)"));
        return None;
    }
    let fields = walk.map(node, &KEY_KEYS)?;
    let key = fields.get("key").and_then(|node| read_key(walk, node));
    let usage = read::word(walk, fields, "use", &KeyUse::WORDS);
    let until = read::number(walk, fields, "until", 0..=LATEST);
    Some(KeyringKey { key: key?, usage: usage?, until })
}

fn read_revocation(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Revocation> {
    let fields = walk.map(node, &REVOKED_KEYS)?;
    match (fields.get("jti"), fields.get("node"), fields.get("before")) {
        (Some(jti), None, None) => {
            let id = jti.as_text().filter(|text| is_token_id(text));
            if id.is_none() {
                walk.report(jti.bad("the id of a token has 1 to 128 visible ASCII characters"));
            }
            Some(Revocation::Token { jti: id?.to_owned() })
        }
        (None, Some(name), Some(before)) => {
            let (name, before) = (walk.id(name), walk.integer(before, 0..=LATEST));
            Some(Revocation::Node { node: name?, before: before? })
        }
        _ => {
            walk.report(node.error("node/missing-field", "a revocation has `jti`, or `node` and `before`"));
            None
        }
    }
}

impl Keyring {
    /// Returns the text of `keyring.yaml`. It holds keys: who writes it keeps it from others.
    pub fn to_yaml(&self) -> String {
        let mut text = String::from("# Written by `stead token`; do not edit, do not share.\n");
        text.push_str(if self.keys.is_empty() { "keys: []\n" } else { "keys:\n" });
        for key in &self.keys {
            let usage = match key.usage {
                KeyUse::Mint => "mint",
                KeyUse::Verify => "verify",
            };
            let until = key.until.map_or_else(String::new, |until| format!(", until: {until}"));
            text.push_str(&format!("  - {{key: \"{}\", use: {usage}{until}}}\n", key.key.to_hex()));
        }
        text.push_str(if self.revoked.is_empty() { "revoked: []\n" } else { "revoked:\n" });
        for revocation in &self.revoked {
            let entry = match revocation {
                // As JSON, which is YAML.
                Revocation::Token { jti } => json!({"jti": jti}).to_string(),
                Revocation::Node { node, before } => json!({"node": node, "before": before}).to_string(),
            };
            text.push_str(&format!("  - {entry}\n"));
        }
        text
    }
}

//! `secrets.yaml`: what must not be seen. Nothing here is ever part of a message or of `Debug`.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};

use super::read;
use crate::base64;
use crate::schema::object;
use crate::token::SigningKey;
use crate::yaml::{Fields, Key, Keys, Node, Value as Written, Walk};

/// The keys of `secrets.yaml`.
pub const SECRETS_KEYS: Keys = Keys {
    what: "secrets.yaml",
    keys: &[
        Key::new("api_tokens", texts_by_name, "tokens of Proxmox APIs by name: `user@realm!id=value`"),
        Key::new("passwords", || object(&PASSWORD_KEYS), "crypt hashes"),
        Key::new("ssh_keys", texts_by_name, "public keys by id"),
        Key::new("auth", || object(&AUTH_KEYS), "what tokens are signed with"),
    ],
    hints: &[("signing_key", "auth: {signing_key: …}")],
};

const PASSWORD_KEYS: Keys = Keys {
    what: "`passwords`",
    keys: &[Key::new(
        "vm_root",
        crate::schema::text,
        "crypt hash of root's password; set at create if not empty",
    )],
    hints: &[],
};

const AUTH_KEYS: Keys = Keys {
    what: "`auth`",
    keys: &[
        Key::new("signing_key", signing_key, "64 hex digits that tokens are signed with"),
        Key::new("site_token", || json!({}), "older form, ignored"),
        Key::new("node_tokens", || json!({}), "older form, ignored"),
    ],
    hints: &[],
};

/// Words of the file that may be shown: its keys.
pub(super) const KNOWN_WORDS: &[&str] =
    &["api_tokens", "passwords", "ssh_keys", "auth", "vm_root", "signing_key", "site_token", "node_tokens"];

fn texts_by_name() -> Value {
    json!({"type": "object", "additionalProperties": {"type": "string", "minLength": 1}})
}

pub(super) fn signing_key() -> Value {
    json!({"type": "string", "pattern": "^[0-9A-Fa-f]{64}$"})
}

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Returns `text` as something that is never shown.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns what must not be seen.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// What must not be seen, and the public keys that are kept with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Secrets {
    /// Tokens of Proxmox APIs by name.
    pub api_tokens: BTreeMap<String, Secret>,
    /// Crypt hash of root's password.
    pub vm_root: Option<Secret>,
    /// Public keys by id; nothing in them is secret.
    pub ssh_keys: BTreeMap<String, String>,
    /// What tokens are signed with.
    pub signing_key: Option<SigningKey>,
}

pub(super) fn read(walk: &mut Walk<'_>, root: Node<'_>) -> Secrets {
    let mut secrets = Secrets::default();
    if matches!(root.value(), Written::Null) {
        return secrets;
    }
    // A text in the place of the map may be a secret: it is not repeated.
    if root.as_map().is_none() {
        walk.report(root.bad("expected a map of secrets"));
        return secrets;
    }
    let Some(fields) = walk.map(root, &SECRETS_KEYS) else { return secrets };
    for (name, node) in entries(walk, fields, "api_tokens") {
        let Some(text) = secret_text(walk, node) else { continue };
        if is_api_token(text) {
            secrets.api_tokens.insert(name, Secret(text.to_owned()));
        } else {
            walk.report(node.bad("this is not a token of a Proxmox API").help("write `user@realm!id=value`"));
        }
    }
    for (id, node) in entries(walk, fields, "ssh_keys") {
        let Some(text) = secret_text(walk, node) else { continue };
        match check_public_key(text) {
            Ok(()) => {
                secrets.ssh_keys.insert(id, text.trim_end().to_owned());
            }
            Err(why) => walk.report(
                node.bad(format!("this is not an OpenSSH public key: {why}"))
                    .help("write the line of the `.pub` file"),
            ),
        }
    }
    if let Some(passwords) = map(walk, fields, "passwords", &PASSWORD_KEYS)
        && let Some(node) = passwords.get("vm_root")
    {
        let hash = secret_text(walk, node).filter(|hash| !hash.is_empty());
        if hash.is_some_and(|hash| !hash.starts_with('$') || hash.contains([':', '\n'])) {
            walk.report(node.bad("this is not a crypt hash").help("make one with `openssl passwd -6`"));
        } else {
            secrets.vm_root = hash.map(|hash| Secret(hash.to_owned()));
        }
    }
    if let Some(auth) = map(walk, fields, "auth", &AUTH_KEYS) {
        secrets.signing_key = auth.get("signing_key").and_then(|node| read_key(walk, node));
        for ignored in ["site_token", "node_tokens"] {
            if let Some(key) = auth.node().key(ignored) {
                let message = format!("`auth.{ignored}` is ignored");
                read::warn(
                    walk,
                    key,
                    "node/unapplied-key",
                    &message,
                    "leave it out; `stead token mint` makes tokens",
                );
            }
        }
    }
    secrets
}

/// Returns the signing key that `node` is.
pub(super) fn read_key(walk: &mut Walk<'_>, node: Node<'_>) -> Option<SigningKey> {
    let key = node.as_text().and_then(SigningKey::parse);
    if key.is_none() {
        let problem = node.bad("a signing key has 64 hex digits");
        walk.report(problem.help("put it in quotes; `stead token rotate` makes one"));
    }
    key
}

fn map<'t>(walk: &mut Walk<'_>, fields: Fields<'t>, key: &str, keys: &Keys) -> Option<Fields<'t>> {
    let node = fields.get(key)?;
    if node.as_map().is_none() {
        walk.report(node.bad(format!("expected {} (a map)", keys.what)));
        return None;
    }
    walk.map(node, keys)
}

fn entries<'t>(walk: &mut Walk<'_>, fields: Fields<'t>, key: &str) -> Vec<(String, Node<'t>)> {
    let Some(node) = fields.get(key) else { return Vec::new() };
    let Some(entries) = node.as_map() else {
        walk.report(node.bad(format!("expected a map of texts by name at `{key}`")));
        return Vec::new();
    };
    let mut found = Vec::new();
    for (name, value) in entries {
        let text = name.as_text().unwrap_or_default();
        if text.is_empty() || text.len() > 128 || text.contains(|c: char| c.is_whitespace() || c.is_control())
        {
            let rule = "1 to 128 characters without white space";
            walk.report(name.error("node/bad-name", format!("this cannot be a name in `{key}`: {rule}")));
        } else {
            found.push((text.to_owned(), value));
        }
    }
    found
}

fn secret_text<'t>(walk: &mut Walk<'_>, node: Node<'t>) -> Option<&'t str> {
    let text = node.as_text();
    if text.is_none() {
        walk.report(node.bad("expected a text").help("put it in quotes"));
    }
    text
}

/// Whether `text` is `user@realm!id=value`.
fn is_api_token(text: &str) -> bool {
    let parts = text
        .split_once('=')
        .and_then(|(name, value)| Some((name.split_once('!')?, value)))
        .and_then(|((account, id), value)| Some((account.split_once('@')?, id, value)));
    let full = |part: &str| !part.is_empty() && !part.contains(|c: char| c.is_whitespace() || c.is_control());
    parts.is_some_and(|((user, realm), id, value)| [user, realm, id, value].into_iter().all(full))
}

/// Kinds of public keys, with how many fields follow the name and how long the first of them is, if that is fixed.
const KINDS: [(&str, usize, Option<usize>); 8] = [
    ("ssh-ed25519", 1, Some(32)),
    ("ssh-rsa", 2, None),
    ("ecdsa-sha2-nistp256", 2, Some(8)),
    ("ecdsa-sha2-nistp384", 2, Some(8)),
    ("ecdsa-sha2-nistp521", 2, Some(8)),
    ("sk-ssh-ed25519@openssh.com", 2, Some(32)),
    ("sk-ecdsa-sha2-nistp256@openssh.com", 3, Some(8)),
    ("ssh-dss", 4, None),
];

/// Whether `line` is an OpenSSH public key: its kind, its bytes in base64, a comment.
fn check_public_key(line: &str) -> Result<(), &'static str> {
    let line = line.trim_end();
    if line.contains(['\n', '\r', '\0']) {
        return Err("it has more than one line");
    }
    let mut words = line.split(' ').filter(|word| !word.is_empty());
    let kind = words.next().unwrap_or_default();
    let Some((_, fields, first)) = KINDS.iter().find(|(name, ..)| *name == kind) else {
        return Err("its kind is not known");
    };
    let bytes = words.next().and_then(base64::decode).ok_or("its second word is not base64")?;
    let mut rest = bytes.as_slice();
    let mut found = Vec::new();
    while !rest.is_empty() {
        let (length, tail) = rest.split_at_checked(4).ok_or("it is cut off")?;
        let length = length.iter().fold(0usize, |length, byte| length << 8 | usize::from(*byte));
        let (field, tail) = tail.split_at_checked(length).ok_or("it is cut off")?;
        found.push(field);
        rest = tail;
    }
    match found.as_slice() {
        [name, fields_found @ ..]
            if *name == kind.as_bytes()
                && fields_found.len() == *fields
                && first
                    .is_none_or(|length| fields_found.first().is_some_and(|field| field.len() == length)) =>
        {
            Ok(())
        }
        _ => Err("its bytes are not a key of its kind"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB ann@desk";

    #[test]
    fn public_keys_are_looked_into() {
        assert_eq!(check_public_key(KEY), Ok(()));
        assert_eq!(check_public_key(&format!("{KEY}\n")), Ok(()));
        for bad in [
            "",
            "ssh-ed25519",
            "ssh-ed25519 AAAA",
            "ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB",
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAHwEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQ==",
            "command=\"x\" ssh-ed25519 AAAA",
            &format!("{KEY}\n{KEY}"),
        ] {
            assert!(check_public_key(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn api_tokens_have_four_parts() {
        assert!(is_api_token("root@pam!stead=0b1c"));
        for bad in
            ["", "root@pam!stead", "root!stead=x", "@pam!stead=x", "root@pam!=x", "root@pam!a=", "r@p!a=b c"]
        {
            assert!(!is_api_token(bad), "{bad}");
        }
    }

    #[test]
    fn debug_shows_nothing() {
        assert_eq!(format!("{:?}", Secret("hunter2".to_owned())), "***");
    }
}

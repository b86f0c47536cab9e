//! What an instance is made of: paths of a Nix store, or blobs by their hash.
//!
//! A store path that was not built by its content names a recipe, not bits: once it is built, its identity is the path
//! **and** the hash of its archive.

use serde_json::{Value, json};

use crate::base64;
use crate::diagnostic::nearest;
use crate::plan::Digest;
use crate::schema::{full_text, integer, object};
use crate::yaml::{Fields, Key, Keys, Node, Value as Written, Walk};

/// Where every store path lies.
const STORE: &str = "/nix/store/";

/// The letters of Nix's base 32.
pub(crate) const NIX32: &[u8; 32] = b"0123456789abcdfghijklmnpqrsvwxyz";

/// The largest number every reader of JSON keeps exactly.
const EXACT: i64 = 1 << 53;

/// A path of a Nix store: `/nix/store/HASH-NAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StorePath(String);

impl StorePath {
    /// Returns the path and what is below it that `text` names.
    pub fn parse_with_sub(text: &str) -> Option<(Self, Option<String>)> {
        let rest = text.strip_prefix(STORE)?;
        let (base, sub) = rest.split_once('/').map_or((rest, None), |(base, sub)| (base, Some(sub)));
        let (hash, name) = base.split_once('-')?;
        let is_hash = hash.len() == 32 && hash.bytes().all(|byte| NIX32.contains(&byte));
        let is_name = (1..=211).contains(&name.len())
            && !name.starts_with('.')
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-._?=".contains(&byte));
        if !is_hash || !is_name || !sub.is_none_or(is_sub) {
            return None;
        }
        Some((Self(format!("{STORE}{base}")), sub.map(str::to_owned)))
    }

    /// Returns the path that `text` names, without anything below it.
    pub fn parse(text: &str) -> Option<Self> {
        Self::parse_with_sub(text).filter(|(_, sub)| sub.is_none()).map(|(path, _)| path)
    }

    /// Returns the path.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns its last part, `HASH-NAME`.
    pub fn base_name(&self) -> &str {
        self.0.strip_prefix(STORE).unwrap_or_default()
    }
}

/// Whether `text` is a path below another, and stays there.
fn is_sub(text: &str) -> bool {
    text.len() <= 1024
        && text
            .split('/')
            .all(|part| !part.is_empty() && part != "." && part != ".." && !part.contains(['\0', '\n']))
}

/// Something an instance is made of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Artifact {
    /// A store path as it is written, before it is built.
    Written {
        /// The path.
        path: StorePath,
        /// What of it is meant.
        sub: Option<String>,
    },
    /// A store path and its bits.
    Store {
        /// The path.
        path: StorePath,
        /// What of it is meant.
        sub: Option<String>,
        /// The hash of its archive: `sha256-` and base 64.
        nar_hash: String,
    },
    /// Bits by their hash.
    Blob {
        /// Of its bytes.
        sha256: Digest,
        /// How many.
        size: u64,
        /// What it is called.
        name: String,
    },
}

impl Artifact {
    /// Returns its canonical form.
    pub fn to_json(&self) -> Value {
        let with_sub = |mut value: Value, sub: &Option<String>| {
            if let Some(sub) = sub {
                value["sub"] = json!(sub);
            }
            value
        };
        match self {
            Self::Written { path, sub } => with_sub(json!({"storePath": path.as_str()}), sub),
            Self::Store { path, sub, nar_hash } => {
                with_sub(json!({"storePath": path.as_str(), "narHash": nar_hash}), sub)
            }
            Self::Blob { sha256, size, name } => {
                json!({"sha256": sha256.to_string(), "size": size, "name": name})
            }
        }
    }

    /// Whether its bits are known.
    pub fn is_resolved(&self) -> bool {
        match self {
            Self::Written { .. } => false,
            Self::Store { .. } | Self::Blob { .. } => true,
        }
    }

    /// Returns its store path, if it has one.
    pub fn store_path(&self) -> Option<&StorePath> {
        match self {
            Self::Written { path, .. } | Self::Store { path, .. } => Some(path),
            Self::Blob { .. } => None,
        }
    }
}

/// The keys of an artifact.
pub const ARTIFACT_KEYS: Keys = Keys {
    what: "an artifact",
    keys: &[
        Key::new("storePath", full_text, "`/nix/store/HASH-NAME`"),
        Key::new("sub", full_text, "what of the path is meant"),
        Key::new("narHash", full_text, "the hash of its archive: `sha256-…`"),
        Key::new("sha256", full_text, "of a blob: its hash, 64 hex digits"),
        Key::new("size", || integer(0, EXACT), "of a blob: its bytes"),
        Key::new("name", full_text, "of a blob: what it is called"),
    ],
    hints: &[("path", "storePath"), ("hash", "narHash"), ("nar_hash", "narHash")],
};

/// Returns the JSON Schema of an artifact.
pub fn artifact_schema() -> Value {
    json!({"anyOf": [full_text(), object(&ARTIFACT_KEYS)]})
}

/// Reads an artifact in any of its forms.
pub(super) fn read(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Artifact> {
    match node.value() {
        Written::Map(_) => {
            let fields = walk.map(node, &ARTIFACT_KEYS)?;
            if fields.get("sha256").is_some() { blob(walk, fields) } else { store(walk, fields) }
        }
        Written::Text(_) => {
            let text = walk.full_text(node)?;
            let (path, sub) = store_path(walk, node, text)?;
            Some(Artifact::Written { path, sub })
        }
        Written::Null | Written::Bool(_) | Written::Number(_) | Written::List(_) => {
            let found = node.describe();
            walk.report(
                node.bad(format!("expected an artifact, found {found}"))
                    .help("write a store path such as `/nix/store/HASH-NAME/disk.raw`"),
            );
            None
        }
    }
}

fn store_path(walk: &mut Walk<'_>, node: Node<'_>, text: &str) -> Option<(StorePath, Option<String>)> {
    let found = StorePath::parse_with_sub(text);
    if found.is_none() {
        let near = nearest(text, [STORE]).is_some() || text.starts_with(STORE);
        let help = if near { "a hash has 32 letters of Nix's base 32, then `-` and a name" } else { "" };
        walk.report(
            node.bad(format!("{} is not a path of the Nix store", node.describe()))
                .help(if help.is_empty() { "write `/nix/store/HASH-NAME[/SUB]`" } else { help }),
        );
    }
    found
}

fn store(walk: &mut Walk<'_>, fields: Fields<'_>) -> Option<Artifact> {
    let Some(node) = fields.get("storePath") else {
        walk.report(
            fields.node().error(
                "fleet/missing-field",
                "an artifact needs `storePath`, or `sha256`, `size` and `name`",
            ),
        );
        return None;
    };
    let text = walk.full_text(node)?;
    let (path, below) = store_path(walk, node, text)?;
    for key in ["size", "name"] {
        refuse(walk, fields, key, "of a blob, and this is a store path");
    }
    let sub = match fields.get("sub") {
        Some(node) => {
            let sub = walk.full_text(node)?;
            if below.is_some() || !is_sub(sub) {
                walk.report(node.bad("`sub` is a path below `storePath` that stays there, once"));
                return None;
            }
            Some(sub.to_owned())
        }
        None => below,
    };
    let Some(node) = fields.get("narHash") else { return Some(Artifact::Written { path, sub }) };
    let hash = walk.full_text(node)?;
    if !is_sri(hash) {
        walk.report(node.bad(format!("{} is not `sha256-` and 32 bytes in base 64", node.describe())));
        return None;
    }
    Some(Artifact::Store { path, sub, nar_hash: hash.to_owned() })
}

/// Whether `text` is the one spelling of a hash: another would be another VM.
fn is_sri(text: &str) -> bool {
    let Some(written) = text.strip_prefix("sha256-") else { return false };
    base64::decode(written).is_some_and(|bits| bits.len() == 32 && base64::encode(&bits) == written)
}

fn blob(walk: &mut Walk<'_>, fields: Fields<'_>) -> Option<Artifact> {
    for key in ["storePath", "sub", "narHash"] {
        refuse(walk, fields, key, "of a store path, and this is a blob");
    }
    let sha256 = fields.get("sha256").and_then(|node| {
        let digest = Digest::parse(walk.full_text(node)?);
        if digest.is_none() {
            walk.report(node.bad("expected 64 lower-case hex digits"));
        }
        digest
    });
    let mut needed = |key: &str| {
        let found = fields.get(key);
        if found.is_none() {
            let problem = fields.node().error("fleet/missing-field", format!("a blob needs the key `{key}`"));
            walk.report(problem);
        }
        found
    };
    let (size, name) = (needed("size"), needed("name"));
    let size = size.and_then(|node| walk.integer(node, 0..=EXACT));
    let name = name.and_then(|node| walk.full_text(node)).map(str::to_owned);
    Some(Artifact::Blob { sha256: sha256?, size: u64::try_from(size?).ok()?, name: name? })
}

fn refuse(walk: &mut Walk<'_>, fields: Fields<'_>, key: &str, why: &str) {
    if let Some(node) = fields.node().key(key) {
        walk.report(node.error("fleet/conflict", format!("`{key}` is {why}")).help("leave it out"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 4: one hash, one spelling.
    #[test]
    fn a_hash_has_one_spelling() {
        assert!(is_sri("sha256-HDfQGvQL4ugGkd48w99EN3ppmvuxfGjwgJZLL9Bx/BM="));
        for bad in [
            "sha256-HDfQGvQL4ugGkd48w99EN3pp mvuxfGjwgJZLL9Bx/BM=",
            "sha256-HDfQGvQL4ugGkd48w99EN3ppmvuxfGjwgJZLL9Bx/BM=\n",
            "sha256- HDfQGvQL4ugGkd48w99EN3ppmvuxfGjwgJZLL9Bx/BM=",
            "sha256-HDfQGvQL4ugGkd48w99EN3ppmvuxfGjwgJZLL9Bx/BM",
            "sha256-HDfQGvQL4ugGkd48w99EN3ppmvuxfGjwgJZLL9Bx",
            "HDfQGvQL4ugGkd48w99EN3ppmvuxfGjwgJZLL9Bx/BM=",
        ] {
            assert!(!is_sri(bad), "{bad}");
        }
    }

    #[test]
    fn store_paths_stay_in_the_store() {
        let path = "/nix/store/nzwi9zybr70kfpbp3s3l07k0xxps0j12-vm-web";
        assert_eq!(StorePath::parse(path).unwrap().as_str(), path);
        let (store, sub) = StorePath::parse_with_sub(&format!("{path}/a/disk.raw")).unwrap();
        assert_eq!((store.base_name(), sub.as_deref()), (&path[11..], Some("a/disk.raw")));
        for bad in [
            "",
            "/nix/store",
            "/nix/store/",
            "/nix/store/nzwi9zybr70kfpbp3s3l07k0xxps0j12",
            "/nix/store/nzwi9zybr70kfpbp3s3l07k0xxps0j12-",
            "/nix/store/ezwi9zybr70kfpbp3s3l07k0xxps0j12-vm",
            "/nix/store/nzwi9zybr70kfpbp3s3l07k0xxps0j12-vm/",
            "/nix/store/nzwi9zybr70kfpbp3s3l07k0xxps0j12-vm/../x",
            "/nix/store/nzwi9zybr70kfpbp3s3l07k0xxps0j12-.x",
            "/tmp/x",
        ] {
            assert_eq!(StorePath::parse_with_sub(bad), None, "{bad}");
        }
    }
}

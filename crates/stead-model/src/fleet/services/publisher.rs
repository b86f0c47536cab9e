//! `publisher.yaml`: which branch is watched, who may sign it, and where what comes of it goes.

use core::net::SocketAddr;
use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::{authorities, duration, listen, read_observe, read_whole, texts, texts_schema};
use crate::diagnostic::{Diagnostics, Source};
use crate::schema::{self, boolean, full_text, object, text, words};
use crate::site::read;
use crate::yaml::{Fields, Key, Keys, Node, Walk};

/// What `publisher.yaml` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublisherFile {
    /// The repository: URL or path.
    pub repo: String,
    /// The full name of the branch.
    pub reference: String,
    /// How often it is looked at.
    pub poll: Duration,
    /// How long a new head has to stay.
    pub debounce: Duration,
    /// How long a fetch may take.
    pub fetch_timeout: Duration,
    /// How the repository is entered.
    pub credentials: Option<Credentials>,
    /// Which commits have to be signed.
    pub verify: Verify,
    /// Who may sign with SSH.
    pub allowed_signers: Option<String>,
    /// Who may sign with OpenPGP.
    pub gpg_home: Option<String>,
    /// What becomes of a rewritten branch.
    pub rewrites: Rewrites,
    /// What turns a commit into VMs.
    pub evaluator: Evaluator,
    /// Where in the repository it looks.
    pub subdir: String,
    /// How Nix is used.
    pub nix: NixSettings,
    /// Where blobs are put.
    pub artifacts: Option<String>,
    /// The masters.
    pub masters: Vec<String>,
    /// Where hooks are taken.
    pub webhook: Option<Webhook>,
    /// Where its figures are, on this machine; port 0: wherever is room.
    pub observe: SocketAddr,
}

/// How a repository is entered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// With an SSH key.
    SshKeyFile(String),
    /// With a token.
    TokenFile(String),
}

/// Which commits have to be signed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// None.
    #[default]
    None,
    /// The newest.
    Head,
    /// Every one since the last that was accepted.
    Range,
}

impl Verify {
    /// Every choice with its word.
    pub const WORDS: [(&'static str, Self); 3] =
        [("none", Self::None), ("head", Self::Head), ("range", Self::Range)];
}

/// What becomes of a rewritten branch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rewrites {
    /// It is refused.
    #[default]
    Reject,
    /// It is a new commit as any other.
    Allow,
}

impl Rewrites {
    /// Every choice with its word.
    pub const WORDS: [(&'static str, Self); 2] = [("reject", Self::Reject), ("allow", Self::Allow)];
}

/// What turns a commit into VMs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Evaluator {
    /// What the files say.
    #[default]
    Auto,
    /// Nix.
    Nix,
    /// Manifests of a site.
    Site,
}

impl Evaluator {
    /// Every choice with its word.
    pub const WORDS: [(&'static str, Self); 3] =
        [("auto", Self::Auto), ("nix", Self::Nix), ("site", Self::Site)];
}

/// How Nix is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NixSettings {
    /// The program.
    pub binary: String,
    /// The store it works in.
    pub store: String,
    /// Where built paths are put.
    pub cache: Option<String>,
    /// What signs them.
    pub secret_key_file: Option<String>,
    /// Who is trusted.
    pub public_keys: Vec<String>,
    /// How long an evaluation may take.
    pub eval_timeout: Duration,
    /// How long a build may take.
    pub build_timeout: Duration,
    /// How much memory they may use.
    pub memory_bytes: u64,
    /// Whether evaluation may build.
    pub import_from_derivation: bool,
    /// Further settings of Nix.
    pub settings: BTreeMap<String, String>,
}

impl Default for NixSettings {
    fn default() -> Self {
        Self {
            binary: "nix".to_owned(),
            store: "auto".to_owned(),
            cache: None,
            secret_key_file: None,
            public_keys: Vec::new(),
            eval_timeout: Duration::from_secs(30 * 60),
            build_timeout: Duration::from_secs(2 * 3600),
            memory_bytes: 4 << 30,
            import_from_derivation: false,
            settings: BTreeMap::new(),
        }
    }
}

/// Where hooks are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// The address.
    pub listen: String,
    /// The path.
    pub path: String,
    /// The file that holds the secret.
    pub secret_file: String,
}

/// The keys of `publisher.yaml`.
pub const PUBLISHER_KEYS: Keys = Keys {
    what: "publisher.yaml",
    keys: &[
        Key::new("repo", full_text, "the repository: URL or path").required(),
        Key::new("ref", ref_schema, "the full name of the branch; default `refs/heads/main`"),
        Key::new("poll", schema::duration, "how often it is looked at; default `60s`"),
        Key::new("debounce", schema::duration, "how long a new head has to stay; default `2s`"),
        Key::new("fetch_timeout", schema::duration, "how long a fetch may take; default `60s`"),
        Key::new("credentials", || object(&CREDENTIALS_KEYS), "how the repository is entered"),
        Key::new("verify", || words(&Verify::WORDS), "which commits have to be signed; default `none`"),
        Key::new("allowed_signers", full_text, "who may sign with SSH: a file"),
        Key::new("gpg_home", full_text, "who may sign with OpenPGP: a directory"),
        Key::new("rewrites", || words(&Rewrites::WORDS), "of a rewritten branch; default `reject`"),
        Key::new("evaluator", || words(&Evaluator::WORDS), "what makes VMs of a commit; default `auto`"),
        Key::new("subdir", text, "where in the repository it looks; default its root"),
        Key::new("nix", || object(&NIX_KEYS), "how Nix is used"),
        Key::new("artifacts", full_text, "directory or https address where blobs are put"),
        Key::new("masters", texts_schema, "the masters: `HOST:44444`"),
        Key::new("webhook", || object(&WEBHOOK_KEYS), "where hooks are taken"),
        Key::new(
            "observe",
            full_text,
            "where its `/metrics` is; default `127.0.0.1:0`: at a port of its own, which it says",
        ),
    ],
    hints: &[("branch", "ref"), ("repository", "repo"), ("interval", "poll")],
};

const CREDENTIALS_KEYS: Keys = Keys {
    what: "`credentials`",
    keys: &[
        Key::new("ssh_key_file", full_text, "a private SSH key"),
        Key::new("token_file", full_text, "a file that holds a token"),
    ],
    hints: &[],
};

const NIX_KEYS: Keys = Keys {
    what: "`nix`",
    keys: &[
        Key::new("binary", full_text, "the program; default `nix`"),
        Key::new("store", full_text, "the store it works in; default `auto`"),
        Key::new("cache", full_text, "where built paths are put"),
        Key::new("secret_key_file", full_text, "what signs them"),
        Key::new("public_keys", texts_schema, "who is trusted: `NAME:BASE64`"),
        Key::new("eval_timeout", schema::duration, "default `30m`"),
        Key::new("build_timeout", schema::duration, "default `2h`"),
        Key::new("memory", full_text, "how much they may use; default `4GiB`"),
        Key::new("import_from_derivation", boolean, "whether evaluation may build; default `false`"),
        Key::new(
            "settings",
            || json!({"type": "object", "additionalProperties": text()}),
            "further settings of Nix",
        ),
    ],
    hints: &[],
};

const WEBHOOK_KEYS: Keys = Keys {
    what: "`webhook`",
    keys: &[
        Key::new("listen", full_text, "default `127.0.0.1:44446`"),
        Key::new("path", full_text, "default `/hooks/git`"),
        Key::new("secret_file", full_text, "the file that holds the secret").required(),
    ],
    hints: &[],
};

fn ref_schema() -> serde_json::Value {
    json!({"type": "string", "pattern": "^refs/.+$"})
}

impl PublisherFile {
    /// Returns what `source` says, if it says enough.
    pub fn read(source: &Source, diagnostics: &mut Diagnostics) -> Option<Self> {
        read_whole(source, diagnostics, read_publisher)
    }
}

fn read_publisher(walk: &mut Walk<'_>, root: Node<'_>) -> Option<PublisherFile> {
    let fields = walk.map(root, &PUBLISHER_KEYS)?;
    let repo = read::text(walk, fields, "repo");
    let poll = duration(walk, fields, "poll", Duration::from_secs(60));
    if let Some(node) = fields.get("poll")
        && poll < Duration::from_secs(1)
    {
        walk.report(node.error("fleet/out-of-range", "`poll` is at least 1s"));
    }
    let verify = read::word(walk, fields, "verify", &Verify::WORDS).unwrap_or_default();
    let allowed_signers = read::text(walk, fields, "allowed_signers");
    let gpg_home = read::text(walk, fields, "gpg_home");
    if let Some(node) = fields.get("verify")
        && verify != Verify::None
        && allowed_signers.is_none()
        && gpg_home.is_none()
    {
        walk.report(
            node.error("fleet/missing-field", "signatures are wanted, and nobody may sign")
                .help("write `allowed_signers: FILE` or `gpg_home: DIRECTORY`"),
        );
    }
    let file = PublisherFile {
        repo: repo.clone().unwrap_or_default(),
        reference: read_reference(walk, fields),
        poll,
        debounce: duration(walk, fields, "debounce", Duration::from_secs(2)),
        fetch_timeout: duration(walk, fields, "fetch_timeout", Duration::from_secs(60)),
        credentials: read_credentials(walk, fields),
        verify,
        allowed_signers,
        gpg_home,
        rewrites: read::word(walk, fields, "rewrites", &Rewrites::WORDS).unwrap_or_default(),
        evaluator: read::word(walk, fields, "evaluator", &Evaluator::WORDS).unwrap_or_default(),
        subdir: read_subdir(walk, fields),
        nix: fields.get("nix").map(|node| read_nix(walk, node)).unwrap_or_default(),
        artifacts: read::text(walk, fields, "artifacts"),
        masters: authorities(walk, fields, "masters"),
        webhook: read_webhook(walk, fields),
        observe: read_observe(walk, fields, "127.0.0.1:44448"),
    };
    repo.map(|_| file)
}

fn read_reference(walk: &mut Walk<'_>, fields: Fields<'_>) -> String {
    let default = "refs/heads/main".to_owned();
    let Some(node) = fields.get("ref") else { return default };
    let Some(text) = walk.full_text(node) else { return default };
    if !text.starts_with("refs/") || text.ends_with('/') {
        let name = text.trim_matches('/');
        walk.report(
            node.error("fleet/bad-name", format!("`{text}` is not the full name of a branch"))
                .help(format!("write `ref: refs/heads/{name}`")),
        );
    }
    text.to_owned()
}

fn read_subdir(walk: &mut Walk<'_>, fields: Fields<'_>) -> String {
    let Some(node) = fields.get("subdir") else { return String::new() };
    let text = walk.text(node).unwrap_or_default();
    if text.starts_with('/') || text.split('/').any(|part| part == "..") {
        walk.report(node.bad("`subdir` is a path in the repository that stays there"));
    }
    text.trim_matches('/').to_owned()
}

fn read_credentials(walk: &mut Walk<'_>, fields: Fields<'_>) -> Option<Credentials> {
    let node = fields.get("credentials")?;
    let given = walk.map(node, &CREDENTIALS_KEYS)?;
    match (read::text(walk, given, "ssh_key_file"), read::text(walk, given, "token_file")) {
        (Some(file), None) => Some(Credentials::SshKeyFile(file)),
        (None, Some(file)) => Some(Credentials::TokenFile(file)),
        (Some(_), Some(_)) | (None, None) => {
            let message = "`credentials` has one of `ssh_key_file` and `token_file`";
            walk.report(node.error("fleet/conflict", message));
            None
        }
    }
}

fn read_nix(walk: &mut Walk<'_>, node: Node<'_>) -> NixSettings {
    let default = NixSettings::default();
    let Some(fields) = walk.map(node, &NIX_KEYS) else { return default };
    let mut settings = BTreeMap::new();
    if let Some(node) = fields.get("settings") {
        match node.as_map() {
            Some(entries) => {
                for (key, value) in entries {
                    let value = walk.text_of_scalar(value).map(str::to_owned);
                    settings.extend(key.as_text().map(str::to_owned).zip(value));
                }
            }
            None => walk.report(node.bad(format!("expected a map, found {}", node.describe()))),
        }
    }
    let memory = fields.get("memory").and_then(|node| {
        let text = walk.full_text(node)?;
        let bytes = parse_bytes(text);
        if bytes.is_none() {
            walk.report(node.bad(format!("`{text}` is not an amount of memory")).help("write `4GiB`"));
        }
        bytes
    });
    NixSettings {
        binary: read::text(walk, fields, "binary").unwrap_or(default.binary),
        store: read::text(walk, fields, "store").unwrap_or(default.store),
        cache: read::text(walk, fields, "cache"),
        secret_key_file: read::text(walk, fields, "secret_key_file"),
        public_keys: read_public_keys(walk, fields),
        eval_timeout: duration(walk, fields, "eval_timeout", default.eval_timeout),
        build_timeout: duration(walk, fields, "build_timeout", default.build_timeout),
        memory_bytes: memory.unwrap_or(default.memory_bytes),
        import_from_derivation: read::flag(walk, fields, "import_from_derivation")
            .unwrap_or(default.import_from_derivation),
        settings,
    }
}

/// Returns the bytes that `text` names: whole numbers of KiB, MiB, GiB or TiB.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim_start() {
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Reads public keys of Nix.
pub(super) fn read_public_keys(walk: &mut Walk<'_>, fields: Fields<'_>) -> Vec<String> {
    let keys = texts(walk, fields, "public_keys");
    let items = fields.get("public_keys").and_then(Node::as_list);
    for item in items.into_iter().flatten() {
        let Some(text) = item.as_text() else { continue };
        if !text.is_empty() && crate::fleet::nix_signature::PublicKey::parse(text).is_none() {
            walk.report(item.bad(format!("`{text}` is not a public key")).help("write `NAME:BASE64`"));
        }
    }
    keys
}

fn read_webhook(walk: &mut Walk<'_>, fields: Fields<'_>) -> Option<Webhook> {
    let node = fields.get("webhook")?;
    let given = walk.map(node, &WEBHOOK_KEYS)?;
    let path = read::text(walk, given, "path").unwrap_or_else(|| "/hooks/git".to_owned());
    if let Some(node) = given.get("path")
        && !path.starts_with('/')
    {
        walk.report(node.bad("a path begins with `/`"));
    }
    let listen = listen(walk, given, "listen", "127.0.0.1:44446");
    Some(Webhook { listen, path, secret_file: read::text(walk, given, "secret_file")? })
}

//! `site.yaml`: what holds where no other file says something else.

use core::net::IpAddr;
use std::collections::BTreeMap;
use std::time::Duration;

use jiff::tz::TimeZoneDatabase;
use serde_json::{Value, json};

use super::address::{Authority, ip_schema};
use super::preset::texts;
use super::{Located, names, read};
use crate::id::SiteKey;
use crate::schema::{boolean, full_text, integer, object};
use crate::yaml::{Fields, Key, Keys, Node, Value as Written, Walk};

mod write;

/// The keys of `site.yaml`.
pub const SITE_KEYS: Keys = Keys {
    what: "site.yaml",
    keys: &[
        Key::new("name", site_key, "part of machine labels; default `site`"),
        Key::new("server", || object(&SERVER_KEYS), "the server of specs, jobs and reports"),
        Key::new("defaults", || object(&DEFAULTS_KEYS), "what holds where a file is silent"),
    ],
    hints: &[],
};

/// `server`.
pub const SERVER_KEYS: Keys = Keys {
    what: "`server`",
    keys: &[
        Key::new("port", || integer(0, 65535), "default 44443; 0 is any that is free"),
        Key::new("bind", ip_schema, "the address it listens at; default `0.0.0.0`"),
        Key::new("public_specs", boolean, "whether the list of specs needs no token; default `false`"),
        Key::new("repos", repos, "Git repositories that nodes may clone: name and path"),
        Key::new("limits", || object(&LIMITS_KEYS), "what one client may cost"),
        Key::new("token_ttl", lifetime_schema, "how long tokens live; default `7d`"),
        Key::new("accept_v1", boolean, "whether tokens of version 1 are accepted; default `true`"),
    ],
    hints: &[],
};

/// `server.limits`.
pub const LIMITS_KEYS: Keys = Keys {
    what: "`server.limits`",
    keys: &[
        Key::new("header_seconds", limit, "default 5"),
        Key::new("header_bytes", limit, "default 16384"),
        Key::new("body_seconds", limit, "default 30"),
        Key::new("body_bytes", || integer(1, MOST_BODY), "default 1048576"),
        Key::new("connections", limit, "default 20000"),
        Key::new("auth_failures_per_minute", rate, "per address; default 60, 0 = no limit"),
        Key::new("anonymous_per_second", rate, "per address; default 100, 0 = no limit"),
        Key::new("token_per_second", rate, "per token; default 0 = no limit"),
    ],
    hints: &[],
};

/// `defaults`.
pub const DEFAULTS_KEYS: Keys = Keys {
    what: "`defaults`",
    keys: &[
        Key::new("gateway", ip_schema, "the default route of static addresses"),
        Key::new("dns_servers", || json!({"type": "array", "items": ip_schema()}), "for static addresses"),
        Key::new("domain", full_text, "the domain of specs that name none"),
        Key::new("timezone", full_text, "an IANA name; default `UTC`"),
        Key::new("host_user", full_text, "the SSH user on hosts; default the caller"),
        Key::new("ssh_user", full_text, "older name of `host_user`"),
        Key::new("vm_user", full_text, "the bootstrap user on nodes; default `stead`"),
        Key::new("automation_user", full_text, "older name of `vm_user`"),
        Key::new("ssh_key_file", full_text, "the driver's private key; default a generated one"),
        Key::new("packages", texts, "installed on every node"),
        Key::new("posture", site_key, "the posture of specs that name none; default `dev`"),
        Key::new("image", full_text, "the image of nodes that name none"),
        Key::new("bridge", full_text, "the bridge of presets that name none; default `vmbr0`"),
        Key::new("image_release", full_text, "which release of images; default `latest`"),
        Key::new("packer_release", full_text, "older name of `image_release`"),
        Key::new("server_url", server_url, "what level-1 nodes are told; default the run's own server"),
        Key::new("spec_server", server_url, "older name of `server_url`"),
        Key::new("pve_remove_subscription_nag", boolean, "for specs with `config.pve`; default `true`"),
    ],
    hints: &[("dns", "dns_servers"), ("tz", "timezone")],
};

/// The JSON Schema of a name of a site file.
pub(super) fn site_key() -> Value {
    json!({"type": "string", "pattern": "^(?!.*\\.\\.)[a-z0-9][a-z0-9._-]{0,62}$"})
}

fn limit() -> Value {
    integer(1, MOST)
}

fn rate() -> Value {
    integer(0, MOST)
}

fn repos() -> Value {
    json!({"type": "object", "additionalProperties": full_text(), "propertyNames": site_key()})
}

fn server_url() -> Value {
    json!({"type": "string", "pattern": "^(https://.*)?$"})
}

fn lifetime_schema() -> Value {
    json!({"anyOf": [{"type": "string", "pattern": "^[0-9]+d$"}, crate::schema::duration()]})
}

/// The largest limit.
const MOST: i64 = 1 << 40;

/// The largest body: what one says is kept as one line of the server's journal, several times as long at most.
const MOST_BODY: i64 = 8 << 20;

/// What holds where no other file says something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteSettings {
    /// Part of machine labels.
    pub name: SiteKey,
    /// The server.
    pub server: ServerSettings,
    /// What holds where a file is silent.
    pub defaults: Defaults,
}

impl Default for SiteSettings {
    fn default() -> Self {
        Self { name: known_key("site"), server: ServerSettings::default(), defaults: Defaults::default() }
    }
}

/// Returns a name that is written in this program.
pub(super) fn known_key(text: &str) -> SiteKey {
    SiteKey::parse(text).expect("a default is a name")
}

/// The server of a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSettings {
    /// Its port; 0 is any that is free.
    pub port: u16,
    /// The address it listens at.
    pub bind: IpAddr,
    /// Whether the list of specs needs no token.
    pub public_specs: bool,
    /// Repositories that nodes may clone, with their paths.
    pub repos: BTreeMap<SiteKey, String>,
    /// What one client may cost.
    pub limits: Limits,
    /// How long tokens live.
    pub token_ttl: Duration,
    /// Whether tokens of version 1 are accepted.
    pub accept_v1: bool,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            port: 44443,
            bind: IpAddr::from([0, 0, 0, 0]),
            public_specs: false,
            repos: BTreeMap::new(),
            limits: Limits::default(),
            token_ttl: Duration::from_secs(7 * 24 * 3600),
            accept_v1: true,
        }
    }
}

/// What one client may cost a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Time to send the head of a request.
    pub header_seconds: u64,
    /// Its size.
    pub header_bytes: u64,
    /// Time to send a body.
    pub body_seconds: u64,
    /// Its size.
    pub body_bytes: u64,
    /// Open at once.
    pub connections: u64,
    /// Refused tokens per address; 0 = no limit.
    pub auth_failures_per_minute: u64,
    /// Requests without token per address; 0 = no limit.
    pub anonymous_per_second: u64,
    /// Requests per token; 0 = no limit.
    pub token_per_second: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            header_seconds: 5,
            header_bytes: 16_384,
            body_seconds: 30,
            body_bytes: 1_048_576,
            connections: 20_000,
            auth_failures_per_minute: 60,
            anonymous_per_second: 100,
            token_per_second: 0,
        }
    }
}

/// What holds where a file is silent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// The default route of static addresses.
    pub gateway: Option<IpAddr>,
    /// For static addresses.
    pub dns_servers: Vec<IpAddr>,
    /// Domain of specs.
    pub domain: Option<String>,
    /// Time zone of specs.
    pub timezone: String,
    /// SSH user on hosts.
    pub host_user: Option<String>,
    /// Bootstrap user on nodes.
    pub vm_user: String,
    /// The driver's key.
    pub ssh_key_file: Option<String>,
    /// Installed on every node.
    pub packages: Vec<String>,
    /// Posture of specs, if `site.yaml` names one.
    pub posture: Option<Located<SiteKey>>,
    /// Image of nodes.
    pub image: Option<String>,
    /// Bridge of presets.
    pub bridge: String,
    /// Which release of images.
    pub image_release: String,
    /// What level-1 nodes are told.
    pub server_url: Option<String>,
    /// For specs with `config.pve`.
    pub pve_remove_subscription_nag: bool,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            gateway: None,
            dns_servers: Vec::new(),
            domain: None,
            timezone: "UTC".to_owned(),
            host_user: None,
            vm_user: "stead".to_owned(),
            ssh_key_file: None,
            packages: Vec::new(),
            posture: None,
            image: None,
            bridge: "vmbr0".to_owned(),
            image_release: "latest".to_owned(),
            server_url: None,
            pve_remove_subscription_nag: true,
        }
    }
}

impl Defaults {
    /// Returns the posture of specs that name none.
    pub fn posture(&self) -> SiteKey {
        self.posture.as_ref().map_or_else(|| known_key("dev"), |posture| posture.value.clone())
    }
}

pub(super) fn read(walk: &mut Walk<'_>, root: Node<'_>) -> SiteSettings {
    let mut settings = SiteSettings::default();
    if matches!(root.value(), Written::Null) {
        return settings;
    }
    let Some(fields) = walk.map(root, &SITE_KEYS) else { return settings };
    if let Some(name) = read::id(walk, fields, "name") {
        settings.name = name.value;
    }
    if let Some(server) = read::map(walk, fields, "server", &SERVER_KEYS) {
        settings.server = read_server(walk, server);
    }
    if let Some(defaults) = read::map(walk, fields, "defaults", &DEFAULTS_KEYS) {
        settings.defaults = read_defaults(walk, defaults);
    }
    settings
}

fn read_server(walk: &mut Walk<'_>, fields: Fields<'_>) -> ServerSettings {
    let default = ServerSettings::default();
    ServerSettings {
        port: read::number(walk, fields, "port", 0..=65535).unwrap_or(default.port),
        bind: read::ip(walk, fields, "bind").unwrap_or(default.bind),
        public_specs: read::flag(walk, fields, "public_specs").unwrap_or(default.public_specs),
        repos: read_repos(walk, fields),
        limits: read_limits(walk, fields),
        token_ttl: fields.get("token_ttl").and_then(|node| lifetime(walk, node)).unwrap_or(default.token_ttl),
        accept_v1: read::flag(walk, fields, "accept_v1").unwrap_or(default.accept_v1),
    }
}

fn read_repos(walk: &mut Walk<'_>, fields: Fields<'_>) -> BTreeMap<SiteKey, String> {
    let mut repos = BTreeMap::new();
    let Some(node) = fields.get("repos") else { return repos };
    let Some(entries) = node.as_map() else {
        walk.report(node.bad(format!("expected a map of names and paths, found {}", node.describe())));
        return repos;
    };
    for (key, value) in entries {
        if let (Some(name), Some(path)) = (walk.id(key), walk.full_text(value)) {
            repos.insert(name, path.to_owned());
        }
    }
    repos
}

fn read_limits(walk: &mut Walk<'_>, fields: Fields<'_>) -> Limits {
    let mut limits = Limits::default();
    let Some(fields) = read::map(walk, fields, "limits", &LIMITS_KEYS) else { return limits };
    let Limits {
        header_seconds,
        header_bytes,
        body_seconds,
        body_bytes,
        connections,
        auth_failures_per_minute,
        anonymous_per_second,
        token_per_second,
    } = &mut limits;
    for (key, range, place) in [
        ("header_seconds", 1..=MOST, header_seconds),
        ("header_bytes", 1..=MOST, header_bytes),
        ("body_seconds", 1..=MOST, body_seconds),
        ("body_bytes", 1..=MOST_BODY, body_bytes),
        ("connections", 1..=MOST, connections),
        ("auth_failures_per_minute", 0..=MOST, auth_failures_per_minute),
        ("anonymous_per_second", 0..=MOST, anonymous_per_second),
        ("token_per_second", 0..=MOST, token_per_second),
    ] {
        *place = read::number(walk, fields, key, range).unwrap_or(*place);
    }
    limits
}

fn read_defaults(walk: &mut Walk<'_>, fields: Fields<'_>) -> Defaults {
    let default = Defaults::default();
    let aliased = |walk: &mut Walk<'_>, ours: &str, other: &str| {
        read::aliased(walk, fields, ours, other).and_then(|node| walk.full_text(node)).map(str::to_owned)
    };
    let host_user = aliased(walk, "host_user", "ssh_user");
    let vm_user = aliased(walk, "vm_user", "automation_user");
    if let Some(node) = fields.get("vm_user").or_else(|| fields.get("automation_user"))
        && vm_user.as_deref().is_some_and(|user| !names::is_account(user))
    {
        walk.report(node.error("node/bad-name", format!("{} is not a login name", node.describe())));
    }
    let image_release = aliased(walk, "image_release", "packer_release");
    for name in ["image_release", "packer_release"] {
        if let Some(key) = fields.node().key(name) {
            let message = format!("`{name}` has no effect: an image is the file or template that is named");
            read::warn(walk, key, "node/unapplied-key", &message, "name the release in `image`");
        }
    }
    Defaults {
        gateway: read::ip(walk, fields, "gateway"),
        dns_servers: read::ips(walk, fields, "dns_servers"),
        domain: read::domain(walk, fields, "domain"),
        timezone: fields.get("timezone").and_then(|node| timezone(walk, node)).unwrap_or(default.timezone),
        host_user,
        vm_user: vm_user.unwrap_or(default.vm_user),
        ssh_key_file: read::text(walk, fields, "ssh_key_file"),
        packages: read::packages(walk, fields, "packages"),
        posture: read::id(walk, fields, "posture"),
        image: read::text(walk, fields, "image"),
        bridge: read::text(walk, fields, "bridge").unwrap_or(default.bridge),
        image_release: image_release.unwrap_or(default.image_release),
        server_url: read_server_url(walk, fields),
        pve_remove_subscription_nag: read::flag(walk, fields, "pve_remove_subscription_nag")
            .unwrap_or(default.pve_remove_subscription_nag),
    }
}

fn read_server_url(walk: &mut Walk<'_>, fields: Fields<'_>) -> Option<String> {
    let node = read::aliased(walk, fields, "server_url", "spec_server")?;
    let url = walk.text(node)?.trim_end_matches('/');
    if url.is_empty() {
        return None;
    }
    let authority = url.strip_prefix("https://").unwrap_or_default();
    if Authority::parse(authority).is_none() {
        walk.report(
            node.bad("this is not the address of a server")
                .help("write it as `https://HOST:PORT`, without a path"),
        );
        return None;
    }
    Some(url.to_owned())
}

/// Returns the IANA time zone that `node` names.
pub(super) fn timezone(walk: &mut Walk<'_>, node: Node<'_>) -> Option<String> {
    let text = walk.full_text(node)?;
    let database = TimeZoneDatabase::bundled();
    // The database does not mind the case of letters; files on a node do.
    if database.get(text).is_ok_and(|zone| zone.iana_name() == Some(text)) {
        return Some(text.to_owned());
    }
    let names: Vec<String> = database.available().map(|name| name.to_string()).collect();
    if names.iter().any(|name| name == text) {
        return Some(text.to_owned());
    }
    let near = names.iter().find(|name| name.eq_ignore_ascii_case(text)).map(String::as_str);
    let near = near.or_else(|| crate::diagnostic::nearest(text, names.iter().map(String::as_str)));
    let help = match near {
        Some(near) => format!("did you mean `{near}`?"),
        None => "write an IANA name such as `UTC` or `Europe/Vienna`".to_owned(),
    };
    let problem = node.error("node/bad-enum", format!("there is no time zone `{text}`")).help(help);
    walk.report(problem.candidates(near.map(str::to_owned).into_iter().collect()));
    None
}

/// The longest a token lives or a key overlaps.
const LONGEST_LIFETIME: Duration = Duration::from_secs(3650 * 24 * 3600);

/// Returns a time that may be given in days: `7d`, `24h`; at most ten years.
pub fn parse_lifetime(text: &str) -> Result<Duration, String> {
    let days = text.strip_suffix('d').filter(|days| !days.is_empty());
    let duration =
        match days.map(|days| (days.bytes().all(|byte| byte.is_ascii_digit()), days.parse::<u32>())) {
            Some((true, Ok(days))) => Duration::from_secs(u64::from(days) * 24 * 3600),
            Some((true, Err(_))) => return Err(format!("`{text}` is too long")),
            Some((false, _)) | None => crate::duration::parse(text).map_err(|error| error.to_string())?,
        };
    if duration < Duration::from_secs(1) {
        return Err(format!("`{text}` is less than a second"));
    }
    if duration > LONGEST_LIFETIME {
        return Err(format!("`{text}` is more than ten years (3650d)"));
    }
    Ok(duration)
}

fn lifetime(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Duration> {
    let text = walk.text(node)?;
    walk.parsed(node, parse_lifetime(text))
}

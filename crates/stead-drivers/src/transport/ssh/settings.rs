//! What holds for one host: the spec beats ssh_config, ssh_config beats the defaults.

mod effective;
mod jump;

use std::path::{Path, PathBuf};
use std::time::Duration;

use stead_model::transport::{HostKeys, Jump, SecretSource, SshSpec};
use stead_runner::transport::{TransportError, TransportErrorKind};

use super::config::{SshConfig, Tokens};
use crate::transport::Surroundings;

pub(super) use effective::effective;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_COUNT: usize = 3;
const DEFAULT_IDENTITIES: &[&str] = &["id_ed25519", "id_ecdsa", "id_rsa"];
const GLOBAL_KNOWN_HOSTS: &[&str] = &["/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"];

/// Everything that decides how a host is reached.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) user: String,
    pub(super) host_key_alias: Option<String>,
    pub(super) user_known_hosts: Vec<PathBuf>,
    pub(super) global_known_hosts: Vec<PathBuf>,
    pub(super) policy: Policy,
    /// Whether `StrictHostKeyChecking no` was read as accept-new.
    pub(super) softened: bool,
    pub(super) hash_known_hosts: bool,
    /// Identity files that were asked for, in order.
    pub(super) identities: Vec<PathBuf>,
    /// Those that are tried if they are there.
    pub(super) default_identities: Vec<PathBuf>,
    pub(super) certificates: Vec<PathBuf>,
    pub(super) identities_only: bool,
    pub(super) agent: Option<PathBuf>,
    pub(super) passphrase: Option<SecretSource>,
    pub(super) password: Option<SecretSource>,
    pub(super) proxy: Proxy,
    pub(super) connect_timeout: Duration,
    pub(super) keepalive: Option<Duration>,
    pub(super) keepalive_count: usize,
    pub(super) family: Family,
    pub(super) bind_address: Option<String>,
    pub(super) lists: Lists,
}

/// What is asked of a host key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    /// It must be known.
    Strict,
    /// It must not be another than the known one.
    AcceptNew,
    /// It must be this one.
    Pinned(String),
    /// Nothing.
    Insecure,
}

/// What lies between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Proxy {
    /// Nothing.
    Direct,
    /// Other hosts, first hop first.
    Jump(Vec<Jump>),
    /// A program whose input and output are the connection.
    Command(String),
}

/// Which addresses of a name are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Any,
    Inet,
    Inet6,
}

/// Lists of algorithms, as written.
#[derive(Clone, Debug, Default)]
pub(super) struct Lists {
    pub(super) host_key: Option<String>,
    pub(super) kex: Option<String>,
    pub(super) ciphers: Option<String>,
    pub(super) macs: Option<String>,
    pub(super) pubkey: Option<String>,
}

impl Settings {
    /// Returns what holds for the host of `spec`.
    pub(super) fn new(
        spec: &SshSpec,
        config: &SshConfig,
        around: &Surroundings,
    ) -> Result<Self, TransportError> {
        let home = around.home.display().to_string();
        let port = match (spec.port, config.get("port")) {
            (Some(port), _) => port,
            (None, Some(text)) => {
                text.parse().ok().filter(|port| *port > 0).ok_or_else(|| bad("Port", text, "1 to 65535"))?
            }
            (None, None) => 22,
        };
        let user = spec.user.clone().or_else(|| config.get("user").map(str::to_owned));
        let user = user.unwrap_or_else(|| around.user.clone());
        let host = match config.get("hostname") {
            Some(name) => name.replace("%%", "\0").replace("%h", &spec.host).replace('\0', "%"),
            None => spec.host.clone(),
        }
        .to_lowercase();
        let port_text = port.to_string();
        let alias = config.get("hostkeyalias").map(str::to_lowercase);
        let tokens = Tokens {
            host: &host,
            original: &spec.host,
            port: &port_text,
            user: &user,
            local_user: &around.user,
            home: &home,
            alias: alias.as_deref(),
        };
        let place = Places { tokens, around };
        let (policy, softened) = policy(spec, config)?;
        let identities_only = flag(config, "identitiesonly")?;
        let (identities, default_identities) = place.identities(spec, config, identities_only)?;
        Ok(Self {
            user_known_hosts: place.user_known_hosts(spec, config)?,
            global_known_hosts: place.global_known_hosts(spec, config)?,
            agent: place.agent(spec, config)?,
            certificates: place.files(config.all("certificatefile"))?,
            proxy: proxy(spec, config, &tokens)?,
            host_key_alias: alias,
            policy,
            softened,
            hash_known_hosts: flag(config, "hashknownhosts")?,
            identities,
            default_identities,
            identities_only,
            passphrase: spec.passphrase.clone(),
            password: spec.password.clone(),
            connect_timeout: match (spec.connect_timeout, config.get("connecttimeout")) {
                (Some(time), _) => time,
                (None, None | Some("none")) => CONNECT_TIMEOUT,
                (None, Some(text)) => seconds("ConnectTimeout", text)?.unwrap_or(CONNECT_TIMEOUT),
            },
            keepalive: match (spec.keepalive, config.get("serveraliveinterval")) {
                (Some(time), _) => Some(time).filter(|time| !time.is_zero()),
                (None, Some(text)) => seconds("ServerAliveInterval", text)?,
                (None, None) => Some(KEEPALIVE),
            },
            keepalive_count: match config.get("serveralivecountmax") {
                None => KEEPALIVE_COUNT,
                Some(text) => text.parse().map_err(|_| bad("ServerAliveCountMax", text, "a number"))?,
            },
            family: match config.get("addressfamily").map(str::to_lowercase).as_deref() {
                None | Some("any") => Family::Any,
                Some("inet") => Family::Inet,
                Some("inet6") => Family::Inet6,
                Some(other) => return Err(bad("AddressFamily", other, "any, inet or inet6")),
            },
            bind_address: config.get("bindaddress").map(str::to_owned),
            lists: Lists {
                host_key: config.get("hostkeyalgorithms").map(str::to_owned),
                kex: config.get("kexalgorithms").map(str::to_owned),
                ciphers: config.get("ciphers").map(str::to_owned),
                macs: config.get("macs").map(str::to_owned),
                pubkey: config.get("pubkeyacceptedalgorithms").map(str::to_owned),
            },
            host,
            port,
            user,
        })
    }

    /// The host and its port, for messages.
    pub(super) fn name(&self) -> String {
        match (self.host.contains(':'), self.port) {
            (_, 22) => self.host.clone(),
            (true, port) => format!("[{}]:{port}", self.host),
            (false, port) => format!("{}:{port}", self.host),
        }
    }
}

fn bad(keyword: &str, value: &str, expected: &str) -> TransportError {
    TransportError::new(
        TransportErrorKind::Invalid,
        format!("ssh_config: `{keyword} {value}` cannot be used; expected {expected}"),
    )
}

fn flag(config: &SshConfig, keyword: &str) -> Result<bool, TransportError> {
    match config.get(keyword).map(str::to_lowercase).as_deref() {
        None | Some("no" | "false") => Ok(false),
        Some("yes" | "true") => Ok(true),
        Some(other) => Err(bad(keyword, other, "yes or no")),
    }
}

/// Returns a time such as `90` or `1m30s`; none for zero.
fn seconds(keyword: &str, text: &str) -> Result<Option<Duration>, TransportError> {
    let fail = || bad(keyword, text, "seconds, or a time such as 1m30s");
    let mut total: u64 = 0;
    let mut number: Option<u64> = None;
    for c in text.chars() {
        if let Some(digit) = c.to_digit(10) {
            let next = number.unwrap_or(0).checked_mul(10).and_then(|n| n.checked_add(u64::from(digit)));
            number = Some(next.ok_or_else(fail)?);
            continue;
        }
        let unit = match c.to_ascii_lowercase() {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86400,
            'w' => 604_800,
            _ => return Err(fail()),
        };
        let part = number.take().ok_or_else(fail)?.checked_mul(unit).ok_or_else(fail)?;
        total = total.checked_add(part).ok_or_else(fail)?;
    }
    let total = total.checked_add(number.unwrap_or(0)).ok_or_else(fail)?;
    Ok(Some(Duration::from_secs(total)).filter(|time| !time.is_zero()))
}

fn policy(spec: &SshSpec, config: &SshConfig) -> Result<(Policy, bool), TransportError> {
    if spec.insecure {
        return Ok((Policy::Insecure, false));
    }
    if let Some(key) = &spec.host_key {
        return Ok((Policy::Pinned(key.clone()), false));
    }
    if let Some(host_keys) = spec.host_keys {
        let policy = match host_keys {
            HostKeys::Strict => Policy::Strict,
            HostKeys::AcceptNew => Policy::AcceptNew,
        };
        return Ok((policy, false));
    }
    match config.get("stricthostkeychecking").map(str::to_lowercase).as_deref() {
        // Nobody is there to be asked.
        None | Some("yes" | "true" | "ask") => Ok((Policy::Strict, false)),
        Some("accept-new") => Ok((Policy::AcceptNew, false)),
        Some("no" | "false" | "off") => Ok((Policy::AcceptNew, true)),
        Some(other) => Err(bad("StrictHostKeyChecking", other, "yes, accept-new, ask or no")),
    }
}

fn proxy(spec: &SshSpec, config: &SshConfig, tokens: &Tokens<'_>) -> Result<Proxy, TransportError> {
    if !spec.jump.is_empty() {
        return Ok(Proxy::Jump(spec.jump.clone()));
    }
    if let Some(text) = config.get("proxyjump").filter(|text| !text.eq_ignore_ascii_case("none")) {
        let hops =
            jump::parse(text).ok_or_else(|| bad("ProxyJump", text, "user@host:port, comma separated"))?;
        return Ok(Proxy::Jump(hops));
    }
    match config.get("proxycommand") {
        None => Ok(Proxy::Direct),
        Some(text) if text.eq_ignore_ascii_case("none") => Ok(Proxy::Direct),
        Some(text) => {
            tokens.expand(text).map(Proxy::Command).map_err(|problem| bad("ProxyCommand", text, &problem))
        }
    }
}

/// Files by name, for one host.
struct Places<'a> {
    tokens: Tokens<'a>,
    around: &'a Surroundings,
}

impl Places<'_> {
    /// Returns the path that `text` means: `~`, tokens and `${VARIABLE}` replaced.
    fn path(&self, text: &str) -> Result<PathBuf, TransportError> {
        let invalid = |problem: String| TransportError::new(TransportErrorKind::Invalid, problem);
        let text = self.tokens.expand(text).map_err(|problem| invalid(format!("`{text}`: {problem}")))?;
        let mut out = String::new();
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once("${") {
            let (name, after) =
                after.split_once('}').ok_or_else(|| invalid(format!("`{text}`: a `${{` without `}}`")))?;
            let value = self
                .around
                .variable(name)
                .ok_or_else(|| invalid(format!("`{text}`: the environment variable {name} is not set")))?;
            out.push_str(before);
            out.push_str(&value.to_string_lossy());
            rest = after;
        }
        out.push_str(rest);
        Ok(expand_home(&out, self.around))
    }

    fn files(&self, texts: &[String]) -> Result<Vec<PathBuf>, TransportError> {
        texts.iter().filter(|text| !text.eq_ignore_ascii_case("none")).map(|text| self.path(text)).collect()
    }

    fn identities(
        &self,
        spec: &SshSpec,
        config: &SshConfig,
        only: bool,
    ) -> Result<(Vec<PathBuf>, Vec<PathBuf>), TransportError> {
        if let Some(key) = &spec.key {
            return Ok((vec![expand_home(key, self.around)], Vec::new()));
        }
        let asked = self.files(config.all("identityfile"))?;
        let directory = self.around.home.join(".ssh");
        let defaults = DEFAULT_IDENTITIES.iter().map(|name| directory.join(name));
        let defaults = if only && !asked.is_empty() { Vec::new() } else { defaults.collect() };
        Ok((asked, defaults))
    }

    fn user_known_hosts(&self, spec: &SshSpec, config: &SshConfig) -> Result<Vec<PathBuf>, TransportError> {
        if let Some(path) = &spec.known_hosts {
            return Ok(vec![expand_home(path, self.around)]);
        }
        let directory = self.around.home.join(".ssh");
        match config.all("userknownhostsfile") {
            [] => Ok(vec![directory.join("known_hosts"), directory.join("known_hosts2")]),
            texts => self.files(texts),
        }
    }

    fn global_known_hosts(&self, spec: &SshSpec, config: &SshConfig) -> Result<Vec<PathBuf>, TransportError> {
        if spec.known_hosts.is_some() {
            return Ok(Vec::new());
        }
        match config.all("globalknownhostsfile") {
            [] => Ok(GLOBAL_KNOWN_HOSTS.iter().map(PathBuf::from).collect()),
            texts => self.files(texts),
        }
    }

    fn agent(&self, spec: &SshSpec, config: &SshConfig) -> Result<Option<PathBuf>, TransportError> {
        if spec.agent == Some(false) {
            return Ok(None);
        }
        let variable = |name: &str| Ok(self.around.variable(name).map(PathBuf::from));
        match config.get("identityagent") {
            None | Some("SSH_AUTH_SOCK") => variable("SSH_AUTH_SOCK"),
            Some("none") => Ok(None),
            Some(text) => match text.strip_prefix('$').filter(|name| !name.starts_with('{')) {
                Some(name) => variable(name),
                None => self.path(text).map(Some),
            },
        }
    }
}

/// Returns `text` with a leading `~/` replaced.
pub(super) fn expand_home(text: &str, around: &Surroundings) -> PathBuf {
    match text.strip_prefix("~/") {
        Some(rest) => around.home.join(rest),
        None if text == "~" => around.home.clone(),
        None => Path::new(text).to_path_buf(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_openssh_writes_them() {
        for (text, expected) in [("90", 90), ("1m30s", 90), ("1h", 3600), ("2w1d", 1_296_000), ("0", 0)] {
            let time = seconds("ConnectTimeout", text).unwrap().unwrap_or_default();
            assert_eq!(time.as_secs(), expected, "{text}");
        }
        for text in ["x", "1x", "m", "99999999999999999999", "-1"] {
            assert!(seconds("ConnectTimeout", text).is_err(), "{text}");
        }
    }
}

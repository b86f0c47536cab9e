//! Postures: how a machine is secured.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::preset::texts;
use super::read;
use crate::schema::{boolean, integer, object};
use crate::yaml::{Fields, Key, Keys, Node, Value as Written, Walk};

/// The keys of a posture.
pub const POSTURE_KEYS: Keys = Keys {
    what: "a posture",
    keys: &[
        Key::new("ssh", || object(&SSH_KEYS), "the SSH server"),
        Key::new("sudo", || object(&SUDO_KEYS), "sudo"),
        Key::new("fail2ban", || object(&FAIL2BAN_KEYS), "fail2ban"),
        Key::new("packages", texts, "installed with this posture; default none"),
        Key::new("auth", || object(&AUTH_KEYS), "older form, ignored"),
    ],
    hints: &[],
};

const SSH_KEYS: Keys = Keys {
    what: "`ssh` of a posture",
    keys: &[
        Key::new("port", || integer(1, 65535), "default 22"),
        Key::new("permit_root_login", root_login, "`yes`, `no` or `prohibit-password` (default)"),
        Key::new("password_authentication", yes_or_no, "`yes` or `no` (default)"),
    ],
    hints: &[("root_login", "permit_root_login"), ("passwords", "password_authentication")],
};

const SUDO_KEYS: Keys = Keys {
    what: "`sudo` of a posture",
    keys: &[Key::new("nopasswd", boolean, "whether sudo asks for no password; default `false`")],
    hints: &[],
};

const FAIL2BAN_KEYS: Keys = Keys {
    what: "`fail2ban` of a posture",
    keys: &[Key::new("enabled", boolean, "whether it runs; default `false`")],
    hints: &[],
};

const AUTH_KEYS: Keys = Keys {
    what: "`auth` of a posture",
    keys: &[Key::new("method", || json!({}), "older form, ignored")],
    hints: &[],
};

fn root_login() -> Value {
    json!({"enum": ["yes", "no", "prohibit-password", true, false]})
}

fn yes_or_no() -> Value {
    json!({"enum": ["yes", "no", true, false]})
}

/// How a machine is secured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Posture {
    /// What is set on the machine.
    pub security: Security,
    /// What is installed with it.
    pub packages: Vec<String>,
}

/// What a posture sets on a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Security {
    /// fail2ban.
    pub fail2ban: Fail2ban,
    /// The SSH server.
    pub ssh: SshServer,
    /// sudo.
    pub sudo: Sudo,
}

/// fail2ban.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fail2ban {
    /// Whether it runs.
    pub enabled: bool,
}

/// The SSH server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SshServer {
    /// Whether passwords are accepted.
    pub password_authentication: YesNo,
    /// Whether root may log in.
    pub permit_root_login: RootLogin,
    /// Its port.
    pub port: u16,
}

impl Default for SshServer {
    fn default() -> Self {
        Self { password_authentication: YesNo::No, permit_root_login: RootLogin::ProhibitPassword, port: 22 }
    }
}

/// sudo.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sudo {
    /// Whether it asks for no password.
    pub nopasswd: bool,
}

/// `yes` or `no`, as sshd writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum YesNo {
    /// Yes.
    Yes,
    /// No.
    No,
}

impl YesNo {
    /// Every value with its word.
    pub const WORDS: [(&'static str, Self); 2] = [("yes", Self::Yes), ("no", Self::No)];
}

/// Whether root may log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RootLogin {
    /// In any way.
    Yes,
    /// Not at all.
    No,
    /// With a key.
    ProhibitPassword,
}

impl RootLogin {
    /// Every value with its word.
    pub const WORDS: [(&'static str, Self); 3] =
        [("yes", Self::Yes), ("no", Self::No), ("prohibit-password", Self::ProhibitPassword)];
}

pub(super) fn read(walk: &mut Walk<'_>, root: Node<'_>) -> Posture {
    let Some(fields) = walk.map(root, &POSTURE_KEYS) else { return Posture::default() };
    let mut posture = Posture { packages: read::packages(walk, fields, "packages"), ..Posture::default() };
    if let Some(ssh) = read::map(walk, fields, "ssh", &SSH_KEYS) {
        let server = &mut posture.security.ssh;
        server.port = read::number(walk, ssh, "port", 1..=65535).unwrap_or(server.port);
        if let Some(login) = word(walk, ssh, "permit_root_login", &RootLogin::WORDS) {
            server.permit_root_login = login;
        }
        if let Some(passwords) = word(walk, ssh, "password_authentication", &YesNo::WORDS) {
            server.password_authentication = passwords;
        }
    }
    if let Some(sudo) = read::map(walk, fields, "sudo", &SUDO_KEYS) {
        posture.security.sudo.nopasswd = read::flag(walk, sudo, "nopasswd").unwrap_or_default();
    }
    if let Some(fail2ban) = read::map(walk, fields, "fail2ban", &FAIL2BAN_KEYS) {
        posture.security.fail2ban.enabled = read::flag(walk, fail2ban, "enabled").unwrap_or_default();
    }
    if let Some(auth) = read::map(walk, fields, "auth", &AUTH_KEYS)
        && let Some(method) = auth.node().key("method")
    {
        let help = "leave it out; nodes present a token of their own";
        read::warn(walk, method, "node/unapplied-key", "`auth.method` is ignored", help);
    }
    posture
}

/// As [`read::word`], with `true` for `yes` and `false` for `no`.
fn word<T: Copy>(walk: &mut Walk<'_>, fields: Fields<'_>, key: &str, words: &[(&str, T)]) -> Option<T> {
    let node = fields.get(key)?;
    if let Written::Bool(value) = node.value() {
        let wanted = if value { "yes" } else { "no" };
        return words.iter().find(|(word, _)| *word == wanted).map(|(_, value)| *value);
    }
    walk.choice(node, words)
}

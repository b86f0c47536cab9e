//! Writes transports in their masked canonical form.

use std::fmt;

use super::{
    DEFAULT_CONNECT_TIMEOUT, DEFAULT_KEEPALIVE, DEFAULT_PORT, HostKeys, SecretSource, SshSpec, TargetOs,
    TransportSpec,
};
use crate::duration::to_exact;

/// The masked canonical form: scheme `ssh://`, options in the order of their table, defaults left out, literal
/// secrets `***`.
impl fmt::Display for TransportSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Ssh(ssh) => write!(f, "{ssh}"),
        }
    }
}

impl fmt::Display for SshSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ssh://")?;
        // A literal password stands before `@`, where there is a user to stand behind.
        let inline = self.user.is_some() && matches!(self.password, Some(SecretSource::Literal(_)));
        if let Some(user) = &self.user {
            write!(f, "{}{}@", encode(user, ""), if inline { ":***" } else { "" })?;
        }
        f.write_str(&address(None, &self.host, self.port))?;
        let mut separator = '?';
        for (name, value) in options(self, inline) {
            write!(f, "{separator}{name}={value}")?;
            separator = '&';
        }
        Ok(())
    }
}

/// Returns the options that are not at their default, by the table's order, values encoded.
fn options(spec: &SshSpec, inline_password: bool) -> Vec<(&'static str, String)> {
    let value = |text: &str| encode(text, "~/:@,+=[]");
    let secret = |source: &Option<SecretSource>| {
        source.as_ref().map(|source| match source {
            SecretSource::Literal(_) => "***".to_owned(),
            SecretSource::Env(_) | SecretSource::File(_) => value(&source.to_string()),
        })
    };
    let text = |text: &Option<String>| text.as_deref().map(value);
    let jump = spec.jump.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let all = [
        ("key", text(&spec.key)),
        ("passphrase", secret(&spec.passphrase)),
        ("password", if inline_password { None } else { secret(&spec.password) }),
        ("known_hosts", text(&spec.known_hosts)),
        ("host_key", text(&spec.host_key)),
        ("agent", (spec.agent == Some(false)).then(|| "false".to_owned())),
        ("host_keys", (spec.host_keys == Some(HostKeys::AcceptNew)).then(|| "accept-new".to_owned())),
        ("insecure", spec.insecure.then(|| "true".to_owned())),
        ("jump", (!spec.jump.is_empty()).then(|| value(&jump))),
        (
            "connect_timeout",
            spec.connect_timeout.filter(|time| *time != DEFAULT_CONNECT_TIMEOUT).map(to_exact),
        ),
        ("keepalive", spec.keepalive.filter(|time| *time != DEFAULT_KEEPALIVE).map(to_exact)),
        ("become", spec.become_user.as_ref().map(|account| value(&account.to_string()))),
        ("become_password", secret(&spec.become_password)),
        (
            "os",
            spec.os.map(|os| match os {
                TargetOs::Linux => "linux".to_owned(),
                TargetOs::Darwin => "darwin".to_owned(),
            }),
        ),
        ("ssh_config", text(&spec.ssh_config)),
    ];
    all.into_iter().filter_map(|(name, value)| value.map(|value| (name, value))).collect()
}

/// Returns `user@host:port`: the user encoded, an IPv6 address in brackets, port 22 left out.
pub(super) fn address(user: Option<&str>, host: &str, port: Option<u16>) -> String {
    let mut text = user.map(|user| encode(user, "") + "@").unwrap_or_default();
    if host.contains(':') {
        text.push_str(&format!("[{host}]"));
    } else {
        text.push_str(host);
    }
    if let Some(port) = port.filter(|port| *port != DEFAULT_PORT) {
        text.push_str(&format!(":{port}"));
    }
    text
}

/// Returns `text` percent-encoded, but for letters, digits, `.`, `_`, `-` and the characters of `bare`.
///
/// A dot at the front is encoded too: no name made of it begins like a hidden file.
fn encode(text: &str, bare: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for (at, byte) in text.bytes().enumerate() {
        let stands = byte.is_ascii_alphanumeric()
            || b"_-".contains(&byte)
            || (byte == b'.' && (at > 0 || !bare.is_empty()))
            || bare.as_bytes().contains(&byte);
        if stands {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

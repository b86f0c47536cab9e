//! Reads the options of a transport: `?a=b&c=d`.

use std::time::Duration;

use super::parse::{Fault, Part, decode, jumps};
use super::{Become, BecomeMethod, HostKeys, SecretSource, SshSpec, TargetOs, TransportFault};
use crate::duration;

/// Every option, in the order of the canonical form; `elevate` is another way to say `become`.
pub const OPTIONS: [&str; 16] = [
    "key",
    "passphrase",
    "password",
    "known_hosts",
    "host_key",
    "agent",
    "host_keys",
    "insecure",
    "jump",
    "connect_timeout",
    "keepalive",
    "become",
    "become_password",
    "os",
    "ssh_config",
    "elevate",
];

/// Options whose value is a secret or says where one is.
pub(super) const SECRET_OPTIONS: [&str; 3] = ["passphrase", "password", "become_password"];

pub(super) fn read(query: Part<'_>, spec: &mut SshSpec) -> Result<(), Fault> {
    let mut given = Vec::new();
    if spec.password.is_some() {
        given.push("password");
    }
    let mut at = query.at;
    for text in query.text.split('&') {
        let part = Part { text, at };
        at += text.len() + 1;
        let Some(equals) = text.find('=') else { return Err(part.fault(TransportFault::OptionForm)) };
        let (name, value) = part.split(equals, 1);
        let Some(known) = OPTIONS.into_iter().find(|option| *option == name.text) else {
            return Err(name.fault(TransportFault::UnknownOption { name: name.text.to_owned() }));
        };
        // `elevate=true` says `become=sudo`, so one of the two is enough.
        let counts_as = if known == "elevate" { "become" } else { known };
        if given.contains(&counts_as) {
            return Err(name.fault(TransportFault::OptionTwice { name: known }));
        }
        given.push(counts_as);
        option(known, value, spec)?;
    }
    Ok(())
}

fn option(name: &'static str, part: Part<'_>, spec: &mut SshSpec) -> Result<(), Fault> {
    let value = decode(part)?;
    let wants = |wanted: &'static str| part.fault(TransportFault::OptionValue { name, wanted });
    let path = |wanted| if value.is_empty() { Err(wants(wanted)) } else { Ok(Some(value.clone())) };
    let flag = || match value.as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(wants("`true` or `false`")),
    };
    let time = || match duration::parse(&value) {
        Ok(time) if time > Duration::ZERO => Ok(Some(time)),
        Ok(_) | Err(_) => Err(wants("a duration above zero, such as `30s` or `1m30s`")),
    };
    match name {
        "key" => spec.key = path("a path; `~` is allowed")?,
        "passphrase" => spec.passphrase = Some(secret(&value).ok_or_else(|| wants(SECRET))?),
        "password" => spec.password = Some(secret(&value).ok_or_else(|| wants(SECRET))?),
        "become_password" => spec.become_password = Some(secret(&value).ok_or_else(|| wants(SECRET))?),
        "known_hosts" => spec.known_hosts = path("a path; `~` is allowed")?,
        "host_key" => {
            let wanted = "a fingerprint, `SHA256:…`, or `type%20base64` as in a known_hosts file";
            spec.host_key = Some(host_key(&value).ok_or_else(|| wants(wanted))?);
        }
        "agent" => spec.agent = Some(flag()?),
        "host_keys" => {
            spec.host_keys = Some(match value.as_str() {
                "strict" => HostKeys::Strict,
                "accept-new" => HostKeys::AcceptNew,
                _ => return Err(wants("`strict` or `accept-new`")),
            });
        }
        "insecure" => spec.insecure = flag()?,
        "jump" => spec.jump = jumps(part, &value)?,
        "connect_timeout" => spec.connect_timeout = time()?,
        "keepalive" => spec.keepalive = time()?,
        "become" => {
            let wanted = "`sudo`, `doas`, `sudo:USER` or `doas:USER`";
            spec.become_user = Some(Become::parse(&value).ok_or_else(|| wants(wanted))?);
        }
        "elevate" => spec.become_user = flag()?.then_some(Become { method: BecomeMethod::Sudo, user: None }),
        "os" => {
            spec.os = Some(match value.as_str() {
                "linux" => TargetOs::Linux,
                "darwin" => TargetOs::Darwin,
                _ => return Err(wants("`linux` or `darwin`")),
            });
        }
        "ssh_config" => spec.ssh_config = path("a path or `none`")?,
        _ => return Err(part.fault(TransportFault::UnknownOption { name: name.to_owned() })),
    }
    Ok(())
}

const SECRET: &str = "`env:NAME` or `file:PATH`; a literal works too";

fn secret(value: &str) -> Option<SecretSource> {
    let source = SecretSource::parse(value);
    let good = match &source {
        SecretSource::Env(name) => {
            !name.starts_with(|first: char| first.is_ascii_digit())
                && !name.is_empty()
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        }
        SecretSource::File(path) | SecretSource::Literal(path) => !path.is_empty(),
    };
    good.then_some(source)
}

/// Whether `text` pins the key of a host: a fingerprint as OpenSSH prints it, or `type base64`, with or without a comment.
pub(crate) fn is_host_key(text: &str) -> bool {
    let mut words = text.split_whitespace();
    match (words.next(), words.next()) {
        (Some(kind), Some(key)) => host_key(&format!("{kind} {key}")).is_some(),
        (Some(digest), None) => host_key(digest).is_some(),
        (None, _) => false,
    }
}

/// Returns a fingerprint as OpenSSH prints it, or `type base64`, if `value` has one of the two forms.
fn host_key(value: &str) -> Option<String> {
    let is_base64 = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+' || b == b'/');
    if let Some(digest) = value.strip_prefix("SHA256:") {
        let digest = digest.strip_suffix('=').unwrap_or(digest);
        return (digest.len() == 43 && is_base64(digest)).then(|| format!("SHA256:{digest}"));
    }
    let (kind, key) = value.split_once(' ')?;
    let is_kind = !kind.is_empty() && kind.bytes().all(|b| b.is_ascii_alphanumeric() || b"@.-".contains(&b));
    let body = key.trim_end_matches('=');
    (is_kind && !body.is_empty() && key.len() - body.len() <= 2 && is_base64(body)).then(|| value.to_owned())
}

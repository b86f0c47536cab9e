//! The values that hold, as `ssh -G` prints them.

use std::time::Duration;

use stead_model::transport::SshSpec;

use super::{Family, Policy, Proxy, Settings};
use crate::transport::ssh::config::SshConfig;

/// Returns keyword and value, sorted by keyword.
///
/// What the spec says is printed as it holds; ssh_config's own words stand only where the spec says nothing.
pub(in crate::transport::ssh) fn effective(
    spec: &SshSpec,
    settings: &Settings,
    config: &SshConfig,
) -> Vec<(String, String)> {
    let mut out: Vec<(String, String)> = Vec::new();
    let mut put = |keyword: &str, value: String| out.push((keyword.to_owned(), value));
    put("hostname", settings.host.clone());
    put("port", settings.port.to_string());
    put("user", settings.user.clone());
    put("connecttimeout", seconds(settings.connect_timeout));
    put("serveraliveinterval", seconds(settings.keepalive.unwrap_or_default()));
    put("serveralivecountmax", settings.keepalive_count.to_string());
    put("identitiesonly", yes_no(settings.identities_only));
    put("hashknownhosts", yes_no(settings.hash_known_hosts));
    put("stricthostkeychecking", strictness(&settings.policy).to_owned());
    put("addressfamily", family(settings.family).to_owned());
    if let Some(alias) = &settings.host_key_alias {
        put("hostkeyalias", alias.clone());
    }
    if let Some(address) = &settings.bind_address {
        put("bindaddress", address.clone());
    }
    match &settings.proxy {
        Proxy::Direct => {}
        Proxy::Jump(hops) => {
            let hops: Vec<String> = hops.iter().map(ToString::to_string).collect();
            let written = config.get("proxyjump").filter(|_| spec.jump.is_empty());
            put("proxyjump", written.map_or_else(|| hops.join(","), str::to_owned));
        }
        // As written, too.
        Proxy::Command(line) => {
            put("proxycommand", config.get("proxycommand").unwrap_or(line).to_owned());
        }
    }
    if spec.agent == Some(false) {
        put("identityagent", "none".to_owned());
    } else if let Some(text) = config.get("identityagent") {
        let agent = settings.agent.as_ref().map(|agent| agent.display().to_string());
        put("identityagent", agent.unwrap_or_else(|| text.to_owned()));
    }
    // As written, like `ssh -G`: what they mean depends on who logs in.
    match config.all("identityfile") {
        texts if texts.is_empty() || spec.key.is_some() => {
            for path in settings.identities.iter().chain(&settings.default_identities) {
                put("identityfile", path.display().to_string());
            }
        }
        texts => texts.iter().for_each(|text| put("identityfile", text.clone())),
    }
    for text in config.all("certificatefile") {
        put("certificatefile", text.clone());
    }
    for (keyword, files) in [
        ("userknownhostsfile", &settings.user_known_hosts),
        ("globalknownhostsfile", &settings.global_known_hosts),
    ] {
        let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
        put(keyword, files.join(" "));
    }
    let lists = &settings.lists;
    for (keyword, list) in [
        ("hostkeyalgorithms", &lists.host_key),
        ("kexalgorithms", &lists.kex),
        ("ciphers", &lists.ciphers),
        ("macs", &lists.macs),
        ("pubkeyacceptedalgorithms", &lists.pubkey),
    ] {
        if let Some(list) = list {
            put(keyword, list.clone());
        }
    }
    // Stable: what adds up keeps its order.
    out.sort_by(|one, other| one.0.cmp(&other.0));
    out
}

/// Returns a time in seconds; OpenSSH knows no parts of one, transports do.
fn seconds(time: Duration) -> String {
    match time.subsec_nanos() {
        0 => time.as_secs().to_string(),
        _ => time.as_secs_f64().to_string(),
    }
}

fn yes_no(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

fn strictness(policy: &Policy) -> &'static str {
    match policy {
        Policy::Strict | Policy::Pinned(_) => "true",
        Policy::AcceptNew => "accept-new",
        Policy::Insecure => "false",
    }
}

fn family(family: Family) -> &'static str {
    match family {
        Family::Any => "any",
        Family::Inet => "inet",
        Family::Inet6 => "inet6",
    }
}

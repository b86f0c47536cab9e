//! The files of the three daemons of a fleet. They hold trust, so no commit can change them.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde_json::{Value, json};

use crate::diagnostic::{Diagnostics, Source};
use crate::schema::full_text;
use crate::site::address::Authority;
use crate::site::read;
use crate::yaml::{self, Codes, Fields, Node, Walk};

pub mod master;
pub mod publisher;
#[cfg(test)]
mod tests;
pub mod worker;

pub use master::{MASTER_KEYS, MasterFile};
pub use publisher::{PUBLISHER_KEYS, PublisherFile};
pub use worker::{WORKER_FILE_KEYS, WorkerFile};

/// The port of masters.
pub const MASTER_PORT: u16 = 44444;

/// Reads a whole file.
fn read_whole<T>(
    source: &Source,
    diagnostics: &mut Diagnostics,
    read: impl FnOnce(&mut Walk<'_>, Node<'_>) -> Option<T>,
) -> Option<T> {
    let tree = yaml::read(source, Codes::FLEET, diagnostics)?;
    read(&mut Walk::new(diagnostics), tree.root())
}

/// Returns the duration of `key`, or the default.
fn duration(walk: &mut Walk<'_>, fields: Fields<'_>, key: &str, default: Duration) -> Duration {
    fields.get(key).and_then(|node| walk.duration(node)).unwrap_or(default)
}

/// Returns the texts of `key`.
fn texts(walk: &mut Walk<'_>, fields: Fields<'_>, key: &str) -> Vec<String> {
    let mut found = Vec::new();
    for item in fields.get(key).and_then(|node| walk.list(node, "texts")).into_iter().flatten() {
        found.extend(walk.full_text(item).map(str::to_owned));
    }
    found
}

fn texts_schema() -> Value {
    json!({"type": "array", "items": full_text()})
}

/// Returns the addresses of `key`, each `HOST:PORT`; the port may be left out.
fn authorities(walk: &mut Walk<'_>, fields: Fields<'_>, key: &str) -> Vec<String> {
    let mut found = Vec::new();
    for item in fields.get(key).and_then(|node| walk.list(node, "addresses")).into_iter().flatten() {
        let Some(text) = walk.full_text(item) else { continue };
        if Authority::parse(text).is_none() {
            let problem = item.bad(format!("`{text}` is not an address")).help("write `HOST:44444`");
            walk.report(problem);
            continue;
        }
        found.push(text.to_owned());
    }
    found
}

/// Any free port of this machine alone.
const ANYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Returns where figures are shown. They need no certificate to be seen, so they are for this machine alone.
fn read_observe(walk: &mut Walk<'_>, fields: Fields<'_>, usual: &str) -> SocketAddr {
    let Some(text) = read::text(walk, fields, "observe") else { return ANYWHERE };
    let address: Option<SocketAddr> = text.parse().ok();
    if address.is_none_or(|address| !address.ip().is_loopback())
        && let Some(node) = fields.get("observe")
    {
        let problem = node.bad(format!("`{text}` is not an address of this machine alone"));
        walk.report(problem.help(format!("write `{usual}`")));
    }
    address.unwrap_or(ANYWHERE)
}

/// Returns where `key` says to listen, or the default.
fn listen(walk: &mut Walk<'_>, fields: Fields<'_>, key: &str, default: &str) -> String {
    let Some(text) = read::text(walk, fields, key) else { return default.to_owned() };
    if text.parse::<SocketAddr>().is_err()
        && let Some(node) = fields.get(key)
    {
        let help = format!("write an IP address and a port, such as `{default}`");
        walk.report(node.bad(format!("`{text}` is not an address to listen at")).help(help));
    }
    text
}

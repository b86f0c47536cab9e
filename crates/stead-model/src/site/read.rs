//! What the readers and writers of all site files share: one value of one key, or why there is none.

use core::net::IpAddr;

use serde_json::{Map, Value};

use super::Located;
use super::address::{Cidr, CidrError, NodeAddress};
use super::names;
use crate::diagnostic::Diagnostic;
use crate::yaml::{Fields, Node, Walk};

/// Returns the text of `key`.
pub(crate) fn text(walk: &mut Walk<'_>, fields: Fields<'_>, key: &str) -> Option<String> {
    fields.get(key).and_then(|node| walk.full_text(node)).map(str::to_owned)
}

/// Returns the boolean of `key`.
pub(crate) fn flag(walk: &mut Walk<'_>, fields: Fields<'_>, key: &str) -> Option<bool> {
    fields.get(key).and_then(|node| walk.boolean(node))
}

/// Returns the whole number of `key`, which is in `range`.
pub(crate) fn number<T: TryFrom<i64>>(
    walk: &mut Walk<'_>,
    fields: Fields<'_>,
    key: &str,
    range: std::ops::RangeInclusive<i64>,
) -> Option<T> {
    let number = fields.get(key).and_then(|node| walk.integer(node, range))?;
    T::try_from(number).ok()
}

/// Returns one of the values that words stand for.
pub(crate) fn word<T: Copy>(
    walk: &mut Walk<'_>,
    fields: Fields<'_>,
    key: &str,
    words: &[(&str, T)],
) -> Option<T> {
    fields.get(key).and_then(|node| walk.choice(node, words))
}

/// Returns the texts of a list with their places; nothing if the key is not there.
pub(super) fn located_texts(
    walk: &mut Walk<'_>,
    fields: Fields<'_>,
    key: &str,
) -> Option<Vec<Located<String>>> {
    let items = walk.list(fields.get(key)?, "texts")?;
    let mut texts = Vec::new();
    for item in items {
        if let Some(text) = walk.full_text(item) {
            texts.push(Located { value: text.to_owned(), span: item.span() });
        }
    }
    Some(texts)
}

/// Returns the domain of `key`.
pub(super) fn domain(walk: &mut Walk<'_>, fields: Fields<'_>, key: &str) -> Option<String> {
    let node = fields.get(key)?;
    let text = walk.full_text(node)?;
    if !names::is_domain(text) {
        walk.report(node.error("node/bad-name", format!("{} is not a domain", node.describe())));
        return None;
    }
    Some(text.to_owned())
}

/// Returns the names of packages in a list.
pub(super) fn packages(walk: &mut Walk<'_>, fields: Fields<'_>, key: &str) -> Vec<String> {
    plain_names(walk, fields, key, "a package", names::is_package)
}

/// Returns the names of services in a list.
pub(super) fn services(walk: &mut Walk<'_>, fields: Fields<'_>, key: &str) -> Vec<String> {
    plain_names(walk, fields, key, "a service", names::is_service)
}

fn plain_names(
    walk: &mut Walk<'_>,
    fields: Fields<'_>,
    key: &str,
    what: &str,
    is_name: fn(&str) -> bool,
) -> Vec<String> {
    let Some(items) = fields.get(key).and_then(|node| walk.list(node, "texts")) else { return Vec::new() };
    let mut found = Vec::new();
    for item in items {
        let Some(text) = walk.full_text(item) else { continue };
        if is_name(text) {
            found.push(text.to_owned());
        } else {
            walk.report(
                item.error("node/bad-name", format!("{} is not the name of {what}", item.describe())),
            );
        }
    }
    found
}

/// Returns an identifier with its place.
pub(crate) fn id<T: std::str::FromStr<Err: std::fmt::Display>>(
    walk: &mut Walk<'_>,
    fields: Fields<'_>,
    key: &str,
) -> Option<Located<T>> {
    let node = fields.get(key)?;
    Some(Located { value: walk.id(node)?, span: node.span() })
}

/// Returns the map of `key`.
pub(crate) fn map<'t>(
    walk: &mut Walk<'_>,
    fields: Fields<'t>,
    key: &str,
    keys: &crate::yaml::Keys,
) -> Option<Fields<'t>> {
    fields.get(key).and_then(|node| walk.map(node, keys))
}

/// Returns the value of `ours`, or of the older name `other`; both are an error if they differ.
pub(super) fn aliased<'t>(
    walk: &mut Walk<'_>,
    fields: Fields<'t>,
    ours: &str,
    other: &str,
) -> Option<Node<'t>> {
    match (fields.get(ours), fields.get(other)) {
        (Some(given), Some(older)) => {
            if given.to_json() != older.to_json() {
                let message = format!("`{other}` is the older name of `{ours}`, and the two differ");
                walk.report(
                    older
                        .error("node/alias-conflict", message)
                        .related(given.place(), format!("`{ours}` is here"))
                        .help(format!("leave `{other}` out")),
                );
            }
            Some(given)
        }
        (given, older) => given.or(older),
    }
}

/// Returns the address of `key`.
pub(super) fn ip(walk: &mut Walk<'_>, fields: Fields<'_>, key: &str) -> Option<IpAddr> {
    fields.get(key).and_then(|node| ip_of(walk, node))
}

fn ip_of(walk: &mut Walk<'_>, node: Node<'_>) -> Option<IpAddr> {
    let text = walk.text(node)?;
    match text.parse() {
        Ok(address) => Some(address),
        Err(_) => {
            walk.report(node.bad(format!("`{text}` is not an IP address")));
            None
        }
    }
}

/// Returns the addresses of a list.
pub(super) fn ips(walk: &mut Walk<'_>, fields: Fields<'_>, key: &str) -> Vec<IpAddr> {
    let Some(node) = fields.get(key) else { return Vec::new() };
    let Some(items) = walk.list(node, "IP addresses") else { return Vec::new() };
    let mut addresses = Vec::new();
    for item in items {
        addresses.extend(ip_of(walk, item));
    }
    addresses
}

/// Returns the address with prefix of `key`, or `dhcp`.
pub(super) fn node_address(walk: &mut Walk<'_>, fields: Fields<'_>, key: &str) -> Option<NodeAddress> {
    let node = fields.get(key)?;
    let text = walk.text(node)?;
    if text == "dhcp" {
        return Some(NodeAddress::Dhcp);
    }
    match Cidr::parse(text) {
        Ok(cidr) => Some(NodeAddress::Static(cidr)),
        Err(error) => {
            let code = match error {
                CidrError::Prefix { .. } => "node/out-of-range",
                CidrError::Bare { .. } | CidrError::Malformed { .. } => "node/bad-type",
            };
            walk.report(
                node.error(code, error.to_string())
                    .help("write `dhcp` or an address with its prefix: 10.0.0.5/24"),
            );
            None
        }
    }
}

/// Reports something that does not stop the work.
pub(super) fn warn(walk: &mut Walk<'_>, node: Node<'_>, code: &'static str, message: &str, help: &str) {
    walk.report(Diagnostic::warning(code, node.place(), message).path(node.path()).help(help));
}

/// Reports a second occurrence of a value in a list.
pub(super) fn refuse_repeated(walk: &mut Walk<'_>, node: Option<Node<'_>>, what: &str) {
    let Some(items) = node.and_then(Node::as_list) else { return };
    let mut seen = std::collections::BTreeSet::new();
    for item in items {
        if let Some(text) = item.as_text()
            && !seen.insert(text)
        {
            walk.report(item.error("node/duplicate-name", format!("the {what} `{text}` is there twice")));
        }
    }
}

/// Returns an object with the keys that have a value.
pub(crate) fn without_absent<const N: usize>(fields: [(&str, Option<Value>); N]) -> Map<String, Value> {
    fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

/// Returns the word that stands for `value`.
pub(crate) fn word_of<T: Copy + PartialEq>(value: T, words: &[(&'static str, T)]) -> Option<&'static str> {
    words.iter().find(|(_, other)| *other == value).map(|(word, _)| *word)
}

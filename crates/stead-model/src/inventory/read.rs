//! Reads inventories, every problem at once.

use std::collections::BTreeMap;

use super::keys::{AUTOMATIC_LABELS, DEFAULTS_KEYS, HOST_KEYS, INVENTORY_KEYS, PASSWORD_KEYS};
use super::{ExecutorMode, Host, SOURCE_LABEL, agents};
use crate::diagnostic::{Diagnostics, Place, Source};
use crate::id::HostName;
use crate::plan_file::keys::is_env_name;
use crate::transport::{Become, SecretSource, TransportSpec};
use crate::yaml::{self, Codes, Fields, Node, Value, Walk, span_at};

/// A host, what it is called and where.
pub(super) type Found = (HostName, Host, Place);

/// Returns the hosts of a file, whichever of the two formats it has.
pub(super) fn read_one(source: &Source, diagnostics: &mut Diagnostics) -> Vec<Found> {
    let Some(tree) = yaml::read(source, Codes::REACH, diagnostics) else { return Vec::new() };
    let mut walk = Walk::new(diagnostics);
    let root = tree.root();
    if root.get("agents").is_some() && root.get("hosts").is_none() {
        return agents::agents(&mut walk, root);
    }
    hosts(&mut walk, root)
}

fn hosts(walk: &mut Walk<'_>, root: Node<'_>) -> Vec<Found> {
    let mut hosts = Vec::new();
    let Some(fields) = walk.map(root, &INVENTORY_KEYS) else { return hosts };
    api_version(walk, fields);
    let mut defaults = Host::local();
    if let Some(given) = fields.get("defaults").and_then(|node| walk.map(node, &DEFAULTS_KEYS)) {
        settings(walk, given, &mut defaults);
    }
    let Some(node) = fields.get("hosts") else { return hosts };
    let Some(entries) = node.as_map() else {
        walk.report(node.bad(format!("expected a map of hosts, found {}", node.describe())));
        return hosts;
    };
    for (key, value) in entries {
        let host = host(walk, value, &defaults);
        if let (Some(name), Some(host)) = (host_name(walk, key, value), host) {
            hosts.push((name, host, key.place()));
        }
    }
    hosts
}

pub(super) fn api_version(walk: &mut Walk<'_>, fields: Fields<'_>) {
    if let Some(node) = fields.get("api_version")
        && node.as_text() != Some("v1")
    {
        walk.report(
            node.bad(format!("expected `v1`, found {}", node.describe())).help("write `api_version: v1`"),
        );
    }
}

/// Returns the name that `key` gives to the host of `value`.
pub(crate) fn host_name(walk: &mut Walk<'_>, key: Node<'_>, value: Node<'_>) -> Option<HostName> {
    const CODE: &str = "reach/reserved-name";
    let text = key.as_text().unwrap_or_default();
    if text == "all" || text.starts_with('_') {
        walk.report(
            key.error(CODE, format!("`{text}` is reserved"))
                .help("`all` and names that begin with `_` are target words; choose another name"),
        );
        return None;
    }
    let transport = value.get("transport").unwrap_or(value).as_text();
    if text == "local" && !transport.is_some_and(|text| matches!(text, "local" | "local://")) {
        walk.report(
            key.error(CODE, "`local` is the machine Stead runs on")
                .help("describe it with `transport: local`, or choose another name"),
        );
        return None;
    }
    let word = text.len() <= 253
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    match HostName::parse(text) {
        Ok(name) if word => Some(name),
        Ok(_) | Err(_) => {
            walk.report(key.bad(format!(
                "`{text}` is not a host name: a letter or digit, then letters, digits, `.`, `_` or `-`, at most 253 in all"
            )));
            None
        }
    }
}

fn host(walk: &mut Walk<'_>, node: Node<'_>, defaults: &Host) -> Option<Host> {
    let mut host = defaults.clone();
    let mut password = None;
    let transport_node = if node.as_map().is_some() {
        let fields = walk.map(node, &HOST_KEYS)?;
        settings(walk, fields, &mut host);
        password = fields.node().key("become_password");
        fields.get("transport")?
    } else {
        node
    };
    host.transport = transport(walk, transport_node)?;
    if let Some(key) = password
        && host.account().is_none()
    {
        walk.report(key.bad("`become_password` without `become` has no use").help("add `become: sudo`"));
    }
    if let Some(what) = host.needs_executor()
        && host.executor == ExecutorMode::Never
    {
        let key = |name| node.as_map().and_then(|_| node.key(name));
        let place = key("executor").or_else(|| key(what)).unwrap_or(node);
        walk.report(
            place
                .bad(format!("`executor: never` and `{what}` exclude each other"))
                .help("only the executor changes the account or works below another root"),
        );
    }
    host.labels.insert(SOURCE_LABEL.to_owned(), "inventory".to_owned());
    Some(host)
}

fn settings(walk: &mut Walk<'_>, fields: Fields<'_>, host: &mut Host) {
    if let Some(node) = fields.get("labels") {
        labels(walk, node, &mut host.labels);
    }
    if let Some(node) = fields.get("become") {
        account(walk, node, host);
    }
    if let Some(node) = fields.get("become_password") {
        host.become_password = password(walk, node);
    }
    if let Some(mode) = fields.get("executor").and_then(|node| walk.choice(node, &ExecutorMode::WORDS)) {
        host.executor = mode;
    }
    if let Some(root) = fields.get("root").and_then(|node| absolute_path(walk, node)) {
        host.root = Some(root).filter(|root| root.bytes().any(|byte| byte != b'/'));
    }
    if let Some(parallel) = fields.get("parallel").and_then(|node| walk.integer(node, 1..=1000)) {
        host.parallel = u32::try_from(parallel).ok();
    }
    texts(walk, fields, host);
}

/// Reads what hosts and agents have in common.
pub(super) fn texts(walk: &mut Walk<'_>, fields: Fields<'_>, host: &mut Host) {
    if let Some(workdir) = fields.get("workdir").and_then(|node| absolute_path(walk, node)) {
        host.workdir = Some(workdir);
    }
    if let Some(description) = fields.get("description").and_then(|node| walk.text(node)) {
        host.description = Some(description.to_owned());
    }
}

fn absolute_path(walk: &mut Walk<'_>, node: Node<'_>) -> Option<String> {
    let path = walk.text(node)?;
    if path.starts_with('/') && path.split('/').all(|part| part != "..") {
        return Some(path.to_owned());
    }
    walk.report(node.bad(format!("expected an absolute path without `..`, found `{path}`")));
    None
}

fn account(walk: &mut Walk<'_>, node: Node<'_>, host: &mut Host) {
    let Some(text) = walk.text(node) else { return };
    match Become::parse(text) {
        // What `defaults` says need not hold for every host.
        None if text == "none" => (host.become_user, host.become_password) = (None, None),
        Some(account) => host.become_user = Some(account),
        None => walk.report(
            node.bad(format!("`{text}` is not a way to become another account"))
                .help("write `sudo`, `doas`, `sudo:USER` or `none`"),
        ),
    }
}

fn password(walk: &mut Walk<'_>, node: Node<'_>) -> Option<SecretSource> {
    const WAYS: &str = "say where it comes from: `{env: NAME}` or `{file: PATH}`";
    if node.as_map().is_none() {
        // The text may be the password itself: it is not repeated in the message.
        walk.report(node.bad("a password is never written in the inventory").help(WAYS));
        return None;
    }
    let fields = walk.map(node, &PASSWORD_KEYS)?;
    match (fields.get("env"), fields.get("file")) {
        (Some(env), None) => {
            let name = walk.text(env)?;
            if !is_env_name(name) {
                walk.report(env.bad("this cannot name an environment variable"));
                return None;
            }
            Some(SecretSource::Env(name.to_owned()))
        }
        (None, Some(file)) => walk.full_text(file).map(|path| SecretSource::File(path.to_owned())),
        (Some(_), Some(_)) | (None, None) => {
            walk.report(node.bad("a password comes from `env` or from `file`, one of the two").help(WAYS));
            None
        }
    }
}

fn labels(walk: &mut Walk<'_>, node: Node<'_>, labels: &mut BTreeMap<String, String>) {
    const CODE: &str = "reach/bad-label";
    let Some(entries) = node.as_map() else {
        walk.report(node.error(CODE, format!("expected a map of labels, found {}", node.describe())));
        return;
    };
    let is_segment = |text: &str| {
        (1..=63).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
    };
    for (key, value) in entries {
        let name = key.as_text().unwrap_or_default();
        if AUTOMATIC_LABELS.contains(&name) {
            let problem = key.error(CODE, format!("the label `{name}` is set by Stead"));
            walk.report(problem.help("choose another name"));
            continue;
        }
        if !is_segment(name) {
            let problem = key.error(CODE, format!("`{name}` is not a label name"));
            walk.report(problem.help("1 to 63 letters, digits, `_` or `-`"));
            continue;
        }
        let text = match value.value() {
            Value::Text(text) => text,
            Value::Bool(_) | Value::Number(_) => value.raw(),
            Value::Null | Value::List(_) | Value::Map(_) => {
                walk.report(value.error(CODE, format!("expected a text, found {}", value.describe())));
                continue;
            }
        };
        if text.len() <= 255 && text.split('.').all(is_segment) {
            labels.insert(name.to_owned(), text.to_owned());
        } else {
            let problem = value.error(CODE, format!("`{text}` is not a label value"));
            walk.report(
                problem.help("segments of letters, digits, `_` or `-`, joined by `.`, at most 255 in all"),
            );
        }
    }
}

/// Returns the transport `node` is, or reports the part of it that is wrong.
pub(super) fn transport(walk: &mut Walk<'_>, node: Node<'_>) -> Option<TransportSpec> {
    const CODE: &str = "reach/bad-transport";
    let Value::Text(text) = node.value() else {
        walk.report(
            node.error(CODE, format!("expected a transport, found {}", node.describe()))
                .help("write `local` or `ssh://user@host`"),
        );
        return None;
    };
    match TransportSpec::parse(text) {
        Ok(spec) => Some(spec),
        Err(error) => {
            let message = format!("{}, at character {} of the transport", error.fault, error.position);
            let mut problem = node.error(CODE, message).help(error.help());
            // Where the file has the text as it is, the place is the wrong part itself.
            let written = node.raw();
            if let Some(at) = written.find(text).filter(|_| !text.is_empty())
                && let Place::Text { source, span } = &mut problem.place
            {
                let start = span.start + at;
                *span = span_at(&source.text, start + error.range.start, start + error.range.end);
            }
            walk.report(problem);
            None
        }
    }
}

//! Reads the top level of a run manifest.

use core::net::IpAddr;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::keys::{
    AGENT_KEYS, ANALYZE, ARTIFACTS_KEYS, BUNDLE_FORMAT, DATA_PLANE_KEYS, DISTRIBUTION, KEEP_WORKDIR,
    MANIFEST_KEYS, NETWORK_KEYS, POST_RUN_KEYS, PROFILE_KEYS, ROLE_RULE, UNTIL, is_role_name,
};
use super::{Network, Profile, RoleEntry, RunManifest};
use crate::diagnostic::{Diagnostics, Source};
use crate::id::{HostName, RunId};
use crate::inventory::{self, Host};
use crate::plan::Digest;
use crate::plan_file::{self, Declared};
use crate::run_plan::{Analyze, Distribution};
use crate::yaml::{self, Codes, Fields, Node, Value, Walk};

/// The longest name of a run.
const LONGEST_RUN_ID: usize = 64;
/// What is collected of a role, if nobody says otherwise.
const DEFAULT_MAX_BYTES: u64 = 2 << 30;
const DEFAULT_LEASE_SECONDS: u32 = 15;

pub(super) fn manifest(source: &Source, diagnostics: &mut Diagnostics) -> Option<RunManifest> {
    let tree = Arc::new(yaml::read(source, Codes::RUN, diagnostics)?);
    let mut walk = Walk::new(diagnostics);
    let root = tree.root();
    if matches!(root.value(), Value::Null) {
        for key in MANIFEST_KEYS.keys.iter().filter(|key| key.required) {
            let message = format!("the file is empty: a run manifest needs the key `{}`", key.name);
            walk.report(root.bad(message).path(key.name).help(key.doc));
        }
        return None;
    }
    let fields = walk.map(root, &MANIFEST_KEYS)?;
    if let Some(node) = fields.get("api_version") {
        plan_file::api_version(&mut walk, node);
    }
    let artifacts = block(&mut walk, fields, "artifacts", &ARTIFACTS_KEYS);
    let post_run = block(&mut walk, fields, "post_run", &POST_RUN_KEYS);
    let of = |block: Option<Fields<'_>>, key: &str| block.and_then(|block| block.get(key)).map(Node::id);
    let node = |id| tree.node(id);
    let until = fields.get("until");
    let manifest = RunManifest {
        run_id: fields.get("run_id").and_then(|node| run_id(&mut walk, node)),
        seed: fields.get("seed").and_then(|node| walk.integer(node, i64::MIN..=i64::MAX)).unwrap_or(0),
        kit: fields.get("kit").and_then(|node| walk.full_text(node)).unwrap_or(super::CIPDIP).to_owned(),
        profile: block(&mut walk, fields, "profile", &PROFILE_KEYS).and_then(|node| profile(&mut walk, node)),
        network: network(&mut walk, fields),
        vars: plan_file::vars(&mut walk, fields),
        env: plan_file::env(&mut walk, fields),
        secrets: plan_file::secrets(&mut walk, fields),
        agents: agents(&mut walk, fields),
        roles: roles(&mut walk, fields),
        readiness: fields.get("readiness").map(Node::id),
        until: until.and_then(|node| walk.choice(node, UNTIL)),
        until_place: until.map(Node::id),
        lease_seconds: fields
            .get("lease_seconds")
            .and_then(|node| walk.integer(node, 2..=3600))
            .and_then(|seconds| u32::try_from(seconds).ok())
            .unwrap_or(DEFAULT_LEASE_SECONDS),
        keep_workdir: fields
            .get("keep_workdir")
            .and_then(|node| walk.choice(node, KEEP_WORKDIR))
            .unwrap_or_default(),
        bundle_format: of(artifacts, "bundle_format")
            .and_then(|id| walk.choice(node(id), BUNDLE_FORMAT))
            .unwrap_or_default(),
        include: of(artifacts, "include").map(|id| texts(&mut walk, node(id), "patterns")),
        max_bytes: of(artifacts, "max_bytes")
            .and_then(|id| walk.integer(node(id), 0..=i64::MAX))
            .and_then(|bytes| u64::try_from(bytes).ok())
            .unwrap_or(DEFAULT_MAX_BYTES),
        analyze: of(post_run, "analyze").and_then(|id| analyze(&mut walk, node(id))).unwrap_or_default(),
        ports: of(post_run, "ports").map(|id| ports(&mut walk, node(id))).unwrap_or_default(),
        diff_baseline: of(post_run, "diff_baseline").and_then(|id| declared(&mut walk, node(id))),
        fail_on: of(post_run, "fail_on").map(|id| thresholds(&mut walk, node(id))).unwrap_or_default(),
        tree: Arc::clone(&tree),
    };
    if let (None, Some(first)) = (&manifest.diff_baseline, manifest.fail_on.first())
        && of(post_run, "diff_baseline").is_none()
    {
        let problem = node(first.value).bad("`fail_on` without `diff_baseline` has nothing to compare");
        walk.report(problem.help("add `diff_baseline`, or leave it out"));
    }
    Some(manifest)
}

/// Returns the map that `key` holds; nothing is an empty one.
fn block<'t>(walk: &mut Walk<'_>, fields: Fields<'t>, key: &str, keys: &yaml::Keys) -> Option<Fields<'t>> {
    let node = fields.get(key).filter(|node| !matches!(node.value(), Value::Null))?;
    walk.map(node, keys)
}

fn run_id(walk: &mut Walk<'_>, node: Node<'_>) -> Option<RunId> {
    let text = match node.value() {
        Value::Null => return None,
        // A name such as `7` is a number to YAML.
        Value::Number(_) => node.raw(),
        Value::Text(_) | Value::Bool(_) | Value::List(_) | Value::Map(_) => walk.text(node)?,
    };
    if matches!(text, "" | "auto") {
        return None;
    }
    match RunId::parse(text) {
        Ok(id) if text.len() <= LONGEST_RUN_ID => Some(id),
        Ok(_) | Err(_) => {
            let problem = node.bad(format!("`{text}` cannot name a run"));
            walk.report(problem.help(
                "a letter or digit, then letters, digits, `.`, `_` or `-`, at most 64 in all; or `auto`",
            ));
            None
        }
    }
}

fn profile(walk: &mut Walk<'_>, fields: Fields<'_>) -> Option<Profile> {
    let checksum = fields.get("checksum");
    let digest = checksum.and_then(|node| {
        let text = walk.text(node)?;
        let digest = text.strip_prefix("sha256:").and_then(Digest::parse);
        if digest.is_none() {
            walk.report(
                node.bad(format!("`{text}` is no checksum"))
                    .help("write `sha256:` and 64 lower-case hex digits, as `sha256sum` prints them"),
            );
        }
        digest
    });
    let distribution = fields.get("distribution").and_then(|node| walk.choice(node, DISTRIBUTION));
    let distribution = distribution.unwrap_or_default();
    let node = fields.get("path")?;
    let path = walk.full_text(node)?;
    if distribution == Distribution::Preinstalled && !path.starts_with('/') {
        let problem = node.bad(format!("a preinstalled profile has an absolute path, found `{path}`"));
        walk.report(problem.help("write where it is on the agents, from `/`"));
    }
    Some(Profile {
        path: path.to_owned(),
        place: node.id(),
        checksum: digest,
        checksum_place: checksum.map(Node::id),
        distribution,
    })
}

fn network(walk: &mut Walk<'_>, fields: Fields<'_>) -> Network {
    let mut network = Network::default();
    let Some(given) = block(walk, fields, "network", &NETWORK_KEYS) else { return network };
    network.control_plane =
        given.get("control_plane").and_then(|node| walk.text_of_scalar(node)).map(str::to_owned);
    let Some(plane) = block(walk, given, "data_plane", &DATA_PLANE_KEYS) else { return network };
    let mut ip = |key: &str| plane.get(key).and_then(|node| ip(walk, node));
    network.target_ip = ip("target_ip");
    network.server_listen_ip = ip("server_listen_ip");
    network.client_bind_ip = ip("client_bind_ip");
    network.client_bind_place = plane.get("client_bind_ip").map(Node::id);
    network.target_port = plane.get("target_port").and_then(|node| port(walk, node));
    network
}

fn ip(walk: &mut Walk<'_>, node: Node<'_>) -> Option<IpAddr> {
    let text = walk.text(node)?;
    match text.parse() {
        Ok(ip) => Some(ip),
        Err(_) => {
            let problem = node.bad(format!("`{text}` is no IP address"));
            walk.report(problem.help("write an IPv4 or IPv6 address; host names are not looked up"));
            None
        }
    }
}

fn port(walk: &mut Walk<'_>, node: Node<'_>) -> Option<u16> {
    walk.integer(node, 1..=65_535).and_then(|port| u16::try_from(port).ok())
}

fn ports(walk: &mut Walk<'_>, node: Node<'_>) -> Vec<u16> {
    walk.one_or_many(node).into_iter().filter_map(|node| port(walk, node)).collect()
}

fn analyze(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Analyze> {
    match node.value() {
        Value::Bool(true) => Some(Analyze::Yes),
        Value::Bool(false) => Some(Analyze::No),
        Value::Text(_) | Value::Null | Value::Number(_) | Value::List(_) | Value::Map(_) => {
            let known = node.as_text() == Some("auto");
            if !known {
                walk.report(
                    node.bad(format!("expected one of auto, true, false, found {}", node.describe())),
                );
            }
            known.then(|| walk.choice(node, ANALYZE)).flatten()
        }
    }
}

fn declared(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Declared> {
    walk.full_text(node).map(|text| Declared { name: text.to_owned(), value: node.id() })
}

fn thresholds(walk: &mut Walk<'_>, node: Node<'_>) -> Vec<Declared> {
    walk.one_or_many(node).into_iter().filter_map(|node| declared(walk, node)).collect()
}

fn texts(walk: &mut Walk<'_>, node: Node<'_>, what: &str) -> Vec<yaml::NodeId> {
    let Some(items) = walk.list(node, what) else { return Vec::new() };
    items.filter(|item| walk.full_text(*item).is_some()).map(Node::id).collect()
}

fn agents(walk: &mut Walk<'_>, fields: Fields<'_>) -> BTreeMap<HostName, Host> {
    let mut agents = BTreeMap::new();
    let Some(node) = fields.get("agents").filter(|node| !matches!(node.value(), Value::Null)) else {
        return agents;
    };
    let Some(entries) = node.as_map() else {
        walk.report(node.bad(format!("expected a map of agents, found {}", node.describe())));
        return agents;
    };
    for (key, value) in entries {
        let host = inventory::agent(walk, value, &AGENT_KEYS);
        if let (Some(name), Some(host)) = (inventory::host_name(walk, key, value), host) {
            agents.insert(name, host);
        }
    }
    agents
}

fn roles(walk: &mut Walk<'_>, fields: Fields<'_>) -> Vec<RoleEntry> {
    let Some(node) = fields.get("roles") else { return Vec::new() };
    let entries = match node.as_map() {
        Some(entries) if entries.len() > 0 => entries,
        Some(_) | None => {
            let problem =
                node.bad(format!("expected a map of roles, at least one, found {}", node.describe()));
            walk.report(problem.help("write `roles: {NAME: {command: […]}}`"));
            return Vec::new();
        }
    };
    let mut roles = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        let name = key.as_text().unwrap_or_default();
        if !is_role_name(name) {
            walk.report(key.bad(format!("`{name}` cannot name a role")).help(ROLE_RULE));
        }
        roles.push(RoleEntry { name: name.to_owned(), key: key.id(), node: value.id() });
    }
    roles
}

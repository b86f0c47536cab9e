//! Reads agent registries (`agents.yaml`).

use super::keys::{AGENT_KEYS, REGISTRY_KEYS};
use super::read::{self, Found};
use super::{Host, SOURCE_LABEL};
use crate::yaml::{Keys, Node, Walk};

/// Returns the agents of a registry as hosts.
pub(super) fn agents(walk: &mut Walk<'_>, root: Node<'_>) -> Vec<Found> {
    let mut hosts = Vec::new();
    let Some(fields) = walk.map(root, &REGISTRY_KEYS) else { return hosts };
    read::api_version(walk, fields);
    let Some(node) = fields.get("agents") else { return hosts };
    // A registry whose last agent was removed.
    if matches!(node.value(), crate::yaml::Value::Null) {
        return hosts;
    }
    let Some(entries) = node.as_map() else {
        walk.report(node.bad(format!("expected a map of agents, found {}", node.describe())));
        return hosts;
    };
    for (key, value) in entries {
        let agent = agent(walk, value, &AGENT_KEYS);
        if let (Some(name), Some(host)) = (read::host_name(walk, key, value), agent) {
            hosts.push((name, host, key.place()));
        }
    }
    hosts
}

/// Returns the agent that `node` is: a transport, or a map with some of the keys of agents.
pub(crate) fn agent(walk: &mut Walk<'_>, node: Node<'_>, keys: &Keys) -> Option<Host> {
    let mut host = Host::default();
    let transport = if node.as_map().is_some() {
        let fields = walk.map(node, keys)?;
        read::texts(walk, fields, &mut host);
        fields.get("transport")?
    } else {
        node
    };
    host.transport = read::transport(walk, transport)?;
    host.labels.insert(SOURCE_LABEL.to_owned(), "agents".to_owned());
    Some(host)
}

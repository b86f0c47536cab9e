//! What of the nodes is not as their specs want it any more, at every level, and the ways to all of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use stead_engine::nodes::drift::drift;
use stead_model::NodeName;
use stead_model::node::Drift;
use stead_model::site::{Host, Site};
use stead_model::transport::{HostKeys, SshSpec, TransportSpec};
use stead_runner::operation::OpError;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::NodesSurroundings;

/// So many nodes are asked at once: each is a connection and a process here.
const AT_ONCE: usize = 16;
/// How long a node may take to be reached; who waits for it to boot is not asking what it is.
const PATIENCE: Duration = Duration::from_secs(20);

/// Something of a node that is not as its spec wants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeDrift {
    /// The node.
    pub node: NodeName,
    /// What is different.
    #[serde(flatten)]
    pub drift: Drift,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Drifted {
    /// Everything that is different, by node and path.
    pub drift: Vec<NodeDrift>,
    /// Nodes that could not be asked.
    pub unreachable: Vec<NodeName>,
    /// Why, for people.
    #[serde(skip)]
    pub reasons: Vec<(NodeName, String)>,
}

impl NodesSurroundings {
    /// Asks all selected nodes that have a spec what they are, and compares.
    pub async fn drifted(self: &Arc<Self>) -> Drifted {
        let order = self.parts.forest.order().iter();
        let names: Vec<NodeName> = order
            .filter(|index| self.parts.selection.selected.get(**index) == Some(&true))
            .map(|index| self.parts.forest.nodes[*index].name.clone())
            .collect();
        let slots = Arc::new(Semaphore::new(AT_ONCE));
        let mut asked = JoinSet::new();
        for name in names {
            let (nodes, slots) = (Arc::clone(self), Arc::clone(&slots));
            asked.spawn(async move {
                let _slot = slots.acquire().await;
                let found = nodes.drift_of(&name).await;
                (name, found)
            });
        }
        let mut found = BTreeMap::new();
        while let Some(ended) = asked.join_next().await {
            if let Ok((name, drift)) = ended {
                found.insert(name, drift);
            }
        }
        let mut all = Drifted::default();
        for (node, drift) in found {
            match drift {
                Ok(drift) => {
                    all.drift.extend(drift.into_iter().map(|drift| NodeDrift { node: node.clone(), drift }));
                }
                Err(error) => {
                    all.unreachable.push(node.clone());
                    all.reasons.push((node, error.message));
                }
            }
        }
        all
    }

    async fn drift_of(&self, name: &NodeName) -> Result<Vec<Drift>, OpError> {
        let node = self.node(name.as_str())?;
        let Some(spec) = self.spec_of(&node)? else { return Ok(Vec::new()) };
        let late = |_| OpError::operation(format!("{name} did not answer within 20s"));
        let transport = timeout(PATIENCE, self.connect(name)).await.map_err(late)??;
        let seen = self.observe_over(&*transport, &spec, []).await?;
        Ok(drift(&spec, &seen.state))
    }

    /// Returns the way to every host of the site that has an address, by name.
    pub fn host_ways(&self) -> BTreeMap<String, TransportSpec> {
        let site = &self.parts.site;
        let all = site.hosts.iter().chain(&site.instances);
        let ways = all.filter_map(|(name, entry)| Some((name.to_string(), host_way(site, &entry.value)?)));
        ways.collect()
    }

    /// Returns the way to every node that was made, by name.
    ///
    /// # Errors
    /// If the driver's key cannot be used.
    pub async fn ways(&self) -> Result<BTreeMap<NodeName, TransportSpec>, OpError> {
        let known = self.parts.memory.look(|state| state.nodes.clone());
        let mut ways = BTreeMap::new();
        for (name, entry) in known.iter().filter(|(_, entry)| entry.ip.is_some()) {
            ways.insert(name.clone(), self.way_to(name, entry).await?);
        }
        Ok(ways)
    }
}

/// Returns the way to a host of `site`; none if it has no address. Without a pinned key the first one seen is recorded.
pub(crate) fn host_way(site: &Site, host: &Host) -> Option<TransportSpec> {
    let defaults = &site.settings.value.defaults;
    Some(TransportSpec::Ssh(Box::new(SshSpec {
        user: host.access.host_user.clone().or_else(|| defaults.host_user.clone()),
        host: host.address.clone()?,
        port: Some(host.access.ssh_port()),
        host_key: host.access.host_key.clone(),
        host_keys: Some(HostKeys::AcceptNew),
        become_user: host.becomes().cloned(),
        ..SshSpec::default()
    })))
}

//! `node.link`: two nodes are told of each other.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use stead_model::node::NodeEntry;
use stead_model::node::wire::{AgentState, ReportStatus, SignalKind};
use stead_model::site::host::DriverKind;
use stead_model::site::manifest::PeerOutside;
use stead_model::{ErrorClass, MessageId, NodeName};
use stead_runner::operation::{OpContext, OpError, Outcome};

use super::line::refused;
use super::{NodeView, NodesSurroundings};
use crate::machine::USER_GATEWAY;
use crate::machine::oci::is_rootless;
use crate::node_agent::{Peer, Peers};
use crate::server_client::ServerClient;

/// Returns where the node of `entry` finds what this machine finds at `address`: on QEMU's own network, and on that of a
/// container of an ordinary account, this machine is not where it is for itself.
pub(super) fn seen_from(entry: &NodeEntry, address: IpAddr) -> IpAddr {
    match entry.driver {
        DriverKind::Qemu if address.is_loopback() => USER_GATEWAY.into(),
        DriverKind::Oci if address.is_loopback() && is_rootless() => USER_GATEWAY.into(),
        DriverKind::Qemu
        | DriverKind::Sandbox
        | DriverKind::Oci
        | DriverKind::CloudHypervisor
        | DriverKind::Proxmox
        | DriverKind::None => address,
    }
}

/// Returns why nothing is known of a link that an agent was told of, and what to do. An agent that hears and does not say
/// is of a version that had nothing to say of links.
fn silence(agent: AgentState, limit: Duration) -> String {
    let within = stead_model::duration::to_exact(limit);
    let why = match agent {
        AgentState::Connected => {
            "although it is connected; one of an older version reports no links: create with --mode push takes it away, the next create brings a new one"
        }
        AgentState::Stale | AgentState::None => "and is not connected; see its log on the node",
    };
    format!("its agent did not report within {within} that it knows its peers, {why}")
}

impl NodesSurroundings {
    /// Tells both nodes of all peers whose addresses are known.
    pub(super) async fn link(&self, _: &OpContext, a: &NodeName, b: &NodeName) -> Result<Outcome, OpError> {
        let mut changed = false;
        for name in [a, b] {
            let one = self.tell_peers(name).await;
            changed |= one.map_err(|error| error.within(format_args!("linking {a} with {b}: {name}")))?;
        }
        Ok(Outcome { changed, ..Outcome::default() })
    }

    /// Makes a node know its peers. Whether that was new to it.
    async fn tell_peers(&self, name: &NodeName) -> Result<bool, OpError> {
        // One after the other: each knows at least what the one before did.
        let turn = {
            let mut turns = self.link_turns.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(turns.entry(name.clone()).or_default())
        };
        let _turn = turn.lock().await;
        let node = self.node(name.as_str())?;
        let told = self.peers_to_tell(&node);
        // The agent of a node that another run made asks the server of that run, which is not this one.
        let is_served =
            self.deputy_of(node.index).is_none() && self.entry(name).is_some_and(|entry| entry.jti.is_some());
        if !is_served {
            let transport = self.connect(name).await?;
            let input = serde_json::to_vec(&told).unwrap_or_default();
            let said = self.on_node(&*transport, &["agent", "link"], input).await?;
            return match said.code {
                Some(0) => Ok(said.stdout.starts_with(b"changed")),
                Some(_) | None => Err(OpError::operation(said.complaint())),
            };
        }
        let client = self.server_client().await?;
        let payload = serde_json::to_value(&told).ok().and_then(|told| told.as_object().cloned());
        let known = client.node(name, 0, Duration::ZERO).await.map_err(|error| refused(&error))?;
        let sent = client.signal(name, SignalKind::Link, payload.unwrap_or_default()).await;
        let id = sent.map_err(|error| refused(&error))?;
        let limit = self.limit(name.as_str(), |limits| limits.ssh);
        let linked = self.linked(&client, name, known.seq, &id);
        if let Ok(answer) = tokio::time::timeout(limit, linked).await {
            return answer;
        }
        let agent = client.node(name, 0, Duration::ZERO).await.map_or(AgentState::None, |known| known.agent);
        Err(OpError::new(ErrorClass::Timeout, silence(agent, limit)))
    }

    /// Waits for what a node reports of the signal `id`, and returns whether its peers were new to it.
    async fn linked(
        &self,
        client: &ServerClient,
        name: &NodeName,
        mut seen: u64,
        id: &MessageId,
    ) -> Result<bool, OpError> {
        loop {
            let (last, reports) = self.next_report(client, name, seen).await?;
            seen = last;
            let mut own = reports.into_iter().map(|stored| stored.report);
            let Some(report) = own.find(|report| report.id.as_ref() == Some(id)) else { continue };
            return match report.status {
                ReportStatus::Failed => Err(OpError::operation(report.error.unwrap_or_default())),
                ReportStatus::Complete | ReportStatus::Running => Ok(report.changed > 0),
            };
        }
    }

    /// Returns the peers of a node whose addresses are known, and those that only a level above knows.
    fn peers_to_tell(&self, node: &NodeView<'_>) -> Peers {
        let entry = self.entry(&node.node.name);
        let own = node.node.peers.iter().filter_map(|peer| {
            let peer = &self.parts.forest.nodes[*peer].name;
            let address: IpAddr = self.entry(peer)?.ip?.parse().ok()?;
            Some(Peer { name: peer.clone(), address: seen_from(entry.as_ref()?, address) })
        });
        let mut told = Peers { peers: own.collect(), keep: Vec::new() };
        for PeerOutside { name, place, .. } in self.peers_above(node) {
            match place {
                Some((address, _)) => told.peers.push(Peer { name: name.clone(), address: *address }),
                None => told.keep.push(name.clone()),
            }
        }
        told
    }

    /// Returns the peers of a node that are not of this manifest, because a level above cut them off.
    pub(super) fn peers_above(&self, node: &NodeView<'_>) -> impl Iterator<Item = &PeerOutside> {
        let outside = self.parts.manifest.context.iter().flat_map(|context| &context.peers);
        outside.filter(|peer| peer.of == node.node.name)
    }
}

#[cfg(test)]
mod tests {
    use stead_model::site::manifest::{Mode, NodeType};

    use super::*;

    #[test]
    fn what_is_here_is_elsewhere_on_the_network_of_qemu() {
        let entry = |driver| NodeEntry::new(NodeType::Vm, driver, Mode::Push);
        let here: IpAddr = "127.0.0.1".parse().unwrap();
        let there: IpAddr = "192.0.2.7".parse().unwrap();
        assert_eq!(seen_from(&entry(DriverKind::Qemu), here).to_string(), "10.0.2.2");
        assert_eq!(seen_from(&entry(DriverKind::Qemu), there), there);
        assert_eq!(seen_from(&entry(DriverKind::Sandbox), here), here);
    }
}

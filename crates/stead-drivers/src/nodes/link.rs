//! `node.link`: two nodes are told of each other.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

use stead_model::NodeName;
use stead_model::node::NodeEntry;
use stead_model::node::wire::SignalKind;
use stead_model::site::host::DriverKind;
use stead_model::site::manifest::PeerOutside;
use stead_runner::operation::{OpContext, OpError, Outcome};

use super::{NodeView, NodesSurroundings};
use crate::machine::USER_GATEWAY;
use crate::node_agent::{Peer, Peers};

/// Returns where the node of `entry` finds what this machine finds at `address`: on QEMU's own network this machine is
/// not where it is for itself.
pub(super) fn seen_from(entry: &NodeEntry, address: IpAddr) -> IpAddr {
    match entry.driver {
        DriverKind::Qemu if address.is_loopback() => USER_GATEWAY.into(),
        DriverKind::Qemu
        | DriverKind::Sandbox
        | DriverKind::Oci
        | DriverKind::CloudHypervisor
        | DriverKind::Proxmox
        | DriverKind::None => address,
    }
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

    /// Makes a node know its peers. Whether that was new to it; of one that is only told later nobody knows.
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
        let sent = client.signal(name, SignalKind::Link, payload.unwrap_or_default()).await;
        sent.map_err(|error| OpError::operation(error.to_string()))?;
        Ok(false)
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

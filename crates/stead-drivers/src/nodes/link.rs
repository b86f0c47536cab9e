//! `node.link`: two nodes are told of each other.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

use serde_json::{Map, Value, json};
use stead_model::NodeName;
use stead_model::node::wire::SignalKind;
use stead_model::site::manifest::Mode;
use stead_runner::operation::{OpContext, OpError, Outcome};

use super::NodesSurroundings;
use crate::node_agent::Peer;

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
        let peers: Vec<Peer> = node
            .node
            .peers
            .iter()
            .filter_map(|peer| {
                let peer = &self.parts.forest.nodes[*peer].name;
                let address: IpAddr = self.entry(peer)?.ip?.parse().ok()?;
                Some(Peer { name: peer.clone(), address })
            })
            .collect();
        if node.known.modes.run == Mode::Push || node.written.spec.is_none() {
            let transport = self.connect(name).await?;
            let input = serde_json::to_vec(&peers).unwrap_or_default();
            let said = self.on_node(&*transport, &["agent", "link"], input).await?;
            return match said.code {
                Some(0) => Ok(said.stdout.starts_with(b"changed")),
                Some(_) | None => Err(OpError::operation(said.complaint())),
            };
        }
        let client = self.server_client().await?;
        let payload: Map<String, Value> = Map::from_iter([("peers".to_owned(), json!(peers))]);
        let sent = client.signal(name, SignalKind::Link, payload).await;
        sent.map_err(|error| OpError::operation(error.to_string()))?;
        Ok(false)
    }
}

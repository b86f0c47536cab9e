//! What a node says of itself to those who ask: its state, its marker, its peers and whom it reaches.

use std::collections::BTreeMap;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use stead_model::node::{Observation, path};
use stead_model::site::ResolvedSpec;
use stead_runner::operation::OpError;

use super::{ConfigFiles, observe};

/// How long another machine may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A peer, as it lies on a node.
#[derive(Deserialize)]
struct Peer {
    name: String,
    address: String,
}

/// Returns what the node below `root` says of itself, as far as `spec` is about it, and whether it reaches each of `places`
/// (`HOST:PORT`).
///
/// # Errors
/// If something that is there cannot be read.
pub fn observation(
    spec: Option<&ResolvedSpec>,
    root: &Path,
    places: &[String],
) -> Result<Observation, OpError> {
    let files = ConfigFiles::below(root);
    let below = (root != Path::new("/")).then_some(root);
    let peers: Vec<Peer> = files.json(path::PEERS).unwrap_or_default();
    let reached: BTreeMap<String, bool> = std::thread::scope(|scope| {
        let asked: Vec<_> = places.iter().map(|place| (place, scope.spawn(move || answers(place)))).collect();
        asked.into_iter().map(|(place, asked)| (place.clone(), asked.join().unwrap_or(false))).collect()
    });
    Ok(Observation {
        state: spec.map(|spec| observe(spec, below)).transpose()?.unwrap_or_default(),
        complete: files.complete(),
        peers: peers.into_iter().map(|peer| (peer.name, peer.address)).collect(),
        reached,
    })
}

/// Whether somebody takes connections at `place`.
fn answers(place: &str) -> bool {
    let found = place.to_socket_addrs().into_iter().flatten();
    found.into_iter().any(|address| TcpStream::connect_timeout(&address, PATIENCE).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_takes_connections_is_reached() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let place = listener.local_addr().unwrap().to_string();
        assert!(answers(&place));
        drop(listener);
        assert!(!answers(&place) && !answers("nonsense"));
    }
}

//! The peers of a node: `/etc/stead/peers.json`, and their names in `/etc/hosts`.

use std::io;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use stead_model::NodeName;
use stead_model::node::path;

use super::place::NodeFiles;
use crate::identity::hosts::Hosts;

const HOSTS: &str = "/etc/hosts";
/// More peers than this a node has not.
const MOST: usize = 100_000;

/// Another node that this one is to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// What it is called.
    pub name: NodeName,
    /// Where it is.
    pub address: IpAddr,
}

/// The payload of a signal `link`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peers {
    /// All peers there are.
    pub peers: Vec<Peer>,
}

/// Makes a node know these peers and no others; returns whether something changed.
///
/// # Errors
/// If there are too many, or the files cannot be written.
pub fn know_peers(files: &NodeFiles, peers: &[Peer]) -> io::Result<bool> {
    if peers.len() > MOST {
        return Err(io::Error::other(format!("a node has at most {MOST} peers")));
    }
    let before: Vec<Peer> = files.json(path::PEERS).unwrap_or_default();
    let content = files.read(HOSTS)?.unwrap_or_default();
    let mut hosts = Hosts::new(&content);
    for gone in before.iter().filter(|peer| peers.iter().all(|other| other.name != peer.name)) {
        hosts.take_off(gone.name.as_str(), |_, address| address == gone.address);
    }
    for peer in peers {
        hosts.make_known(peer.address, &[peer.name.as_str()]);
    }
    let edited = hosts.into_bytes();
    let is_known = before == peers && files.read(path::PEERS)?.is_some();
    if is_known && edited == content {
        return Ok(false);
    }
    files.write(HOSTS, &edited, 0o644)?;
    let mut text = serde_json::to_vec_pretty(peers)?;
    text.push(b'\n');
    files.write(path::PEERS, &text, 0o644)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str, address: &str) -> Peer {
        Peer { name: NodeName::parse(name).unwrap(), address: address.parse().unwrap() }
    }

    #[test]
    fn peers_come_and_go_and_other_names_stay() {
        let dir = tempfile::tempdir().unwrap();
        let files = NodeFiles::below(dir.path());
        files.write(HOSTS, b"127.0.0.1 localhost\n127.0.1.1 own\n", 0o644).unwrap();
        let both = [peer("b", "10.0.0.2"), peer("c", "10.0.0.3")];
        assert!(know_peers(&files, &both).unwrap());
        assert!(!know_peers(&files, &both).unwrap(), "a second time changes nothing");
        let hosts = || String::from_utf8(files.read(HOSTS).unwrap().unwrap()).unwrap();
        assert_eq!(hosts(), "127.0.0.1 localhost\n127.0.1.1 own\n10.0.0.2\tb\n10.0.0.3\tc\n");
        assert!(know_peers(&files, &[peer("c", "10.0.0.4")]).unwrap());
        assert_eq!(hosts(), "127.0.0.1 localhost\n127.0.1.1 own\n10.0.0.4\tc\n");
        assert!(know_peers(&files, &[]).unwrap());
        assert_eq!(hosts(), "127.0.0.1 localhost\n127.0.1.1 own\n");
        assert_eq!(files.json::<Vec<Peer>>(path::PEERS), Some(Vec::new()));
    }
}

//! The peers of a node: `/etc/stead/peers.json`, and their names in `/etc/hosts`.

use std::fs::File;
use std::io;
use std::net::IpAddr;

use rustix::fs::FlockOperation;
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peers {
    /// The peers that who says it knows.
    pub peers: Vec<Peer>,
    /// Further peers, which somebody else tells it of: what the node knows of them stays.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keep: Vec<NodeName>,
}

/// Makes a node know these peers and no others but those that are kept; returns whether something changed.
///
/// # Errors
/// If there are too many, or the files cannot be written.
pub fn know_peers(files: &NodeFiles, told: Peers) -> io::Result<bool> {
    if told.peers.len() > MOST {
        return Err(io::Error::other(format!("a node has at most {MOST} peers")));
    }
    // The agent and a driver may both have something to tell.
    let _turn = turn(files)?;
    let before: Vec<Peer> = files.json(path::PEERS).unwrap_or_default();
    let Peers { mut peers, keep } = told;
    let is_kept =
        |peer: &&Peer| keep.contains(&peer.name) && peers.iter().all(|other| other.name != peer.name);
    let kept: Vec<Peer> = before.iter().filter(is_kept).cloned().collect();
    peers.extend(kept);
    peers.sort_by(|a, b| a.name.cmp(&b.name));
    let content = files.read(HOSTS)?.unwrap_or_default();
    let mut hosts = Hosts::new(&content);
    for gone in before.iter().filter(|peer| peers.iter().all(|other| other.name != peer.name)) {
        hosts.take_off(gone.name.as_str(), |_, address| address == gone.address);
    }
    for peer in &peers {
        hosts.make_known(peer.address, &[peer.name.as_str()]);
    }
    let edited = hosts.into_bytes();
    let is_known = before == peers && files.read(path::PEERS)?.is_some();
    if is_known && edited == content {
        return Ok(false);
    }
    files.write(HOSTS, &edited, 0o644)?;
    let mut text = serde_json::to_vec_pretty(&peers)?;
    text.push(b'\n');
    files.write(path::PEERS, &text, 0o644)?;
    Ok(true)
}

/// Waits until nobody else changes the peers of a node, and keeps it so.
fn turn(files: &NodeFiles) -> io::Result<File> {
    let real = files.real(path::PEERS)?;
    let directory = real.parent().unwrap_or_else(|| files.root());
    std::fs::create_dir_all(directory)?;
    let turn = File::open(directory)?;
    rustix::fs::flock(&turn, FlockOperation::LockExclusive)?;
    Ok(turn)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str, address: &str) -> Peer {
        Peer { name: NodeName::parse(name).unwrap(), address: address.parse().unwrap() }
    }

    fn told(peers: &[Peer], keep: &[&str]) -> Peers {
        let keep = keep.iter().map(|name| NodeName::parse(name).unwrap()).collect();
        Peers { peers: peers.to_vec(), keep }
    }

    /// Two runs tell a node of its peers, each of those it knows: neither takes away what the other said.
    #[test]
    fn peers_of_others_stay_while_they_are_meant_to() {
        let dir = tempfile::tempdir().unwrap();
        let files = NodeFiles::below(dir.path());
        let (inner, outer) = (peer("z", "10.0.0.2"), peer("b", "10.1.0.2"));
        know_peers(&files, told(&[inner.clone(), outer.clone()], &[])).unwrap();
        assert!(!know_peers(&files, told(std::slice::from_ref(&inner), &["b"])).unwrap(), "it is kept");
        assert_eq!(files.json::<Vec<Peer>>(path::PEERS), Some(vec![outer, inner.clone()]));
        assert!(
            know_peers(&files, told(std::slice::from_ref(&inner), &["other"])).unwrap(),
            "it is meant no more"
        );
        assert_eq!(files.json::<Vec<Peer>>(path::PEERS), Some(vec![inner]));
    }

    #[test]
    fn peers_come_and_go_and_other_names_stay() {
        let dir = tempfile::tempdir().unwrap();
        let files = NodeFiles::below(dir.path());
        files.write(HOSTS, b"127.0.0.1 localhost\n127.0.1.1 own\n", 0o644).unwrap();
        let both = [peer("b", "10.0.0.2"), peer("c", "10.0.0.3")];
        assert!(know_peers(&files, told(&both, &[])).unwrap());
        assert!(!know_peers(&files, told(&both, &[])).unwrap(), "a second time changes nothing");
        let hosts = || String::from_utf8(files.read(HOSTS).unwrap().unwrap()).unwrap();
        assert_eq!(hosts(), "127.0.0.1 localhost\n127.0.1.1 own\n10.0.0.2\tb\n10.0.0.3\tc\n");
        assert!(know_peers(&files, told(&[peer("c", "10.0.0.4")], &[])).unwrap());
        assert_eq!(hosts(), "127.0.0.1 localhost\n127.0.1.1 own\n10.0.0.4\tc\n");
        assert!(know_peers(&files, told(&[], &[])).unwrap());
        assert_eq!(hosts(), "127.0.0.1 localhost\n127.0.1.1 own\n");
        assert_eq!(files.json::<Vec<Peer>>(path::PEERS), Some(Vec::new()));
    }
}

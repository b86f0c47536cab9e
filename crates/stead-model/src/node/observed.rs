//! What is seen of a node: only what its spec manages, without times, versions or facts of the machine, so that two
//! nodes of one spec look alike however they came to it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::marker::ConfigComplete;
use crate::canonical_json;
use crate::plan::Digest;

/// What is seen of a node: `state.json`. What is not there, or cannot be read as what it should be, is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeState {
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Its domain, if the spec says one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Its time zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Whether each package of the spec is installed.
    pub packages: BTreeMap<String, bool>,
    /// Those of the spec's users that are there, by name.
    pub users: Vec<ObservedUser>,
    /// The services that the spec names.
    pub services: BTreeMap<String, ObservedService>,
    /// What the posture sets.
    pub security: ObservedSecurity,
    /// Its address, if the spec says one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<ObservedNetwork>,
    /// Whether Proxmox asks for a subscription, if the spec says something about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pve: Option<ObservedPve>,
}

/// A user of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObservedUser {
    /// Its name.
    pub name: String,
    /// Whether it may use sudo.
    pub sudo: bool,
    /// The lines of its `authorized_keys`.
    pub keys: Vec<String>,
}

/// A service of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObservedService {
    /// Whether it starts at boot.
    pub enabled: bool,
    /// Whether it runs.
    pub active: bool,
}

/// How a node is secured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObservedSecurity {
    /// fail2ban.
    pub fail2ban: ObservedFail2ban,
    /// The SSH server.
    pub ssh: ObservedSsh,
    /// sudo, if a user of the spec may use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sudo: Option<ObservedSudo>,
}

/// fail2ban.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObservedFail2ban {
    /// Whether it runs, now and after boot.
    pub enabled: bool,
}

/// The SSH server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObservedSsh {
    /// Whether passwords are accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_authentication: Option<String>,
    /// Whether root may log in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permit_root_login: Option<String>,
    /// Its port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// sudo.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObservedSudo {
    /// Whether it asks none of the spec's users for a password.
    pub nopasswd: bool,
}

/// The address of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObservedNetwork {
    /// Name servers.
    pub dns: Vec<String>,
    /// The default route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// `dhcp` or an address with prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
}

/// Proxmox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObservedPve {
    /// Whether it asks for no subscription.
    pub remove_subscription_nag: bool,
}

impl NodeState {
    /// Returns the canonical JSON.
    pub fn to_canonical_json(&self) -> String {
        canonical_json::to_string(&serde_json::to_value(self).expect("a state is always JSON"))
    }

    /// Returns `sha256:` and the hash of the canonical JSON.
    pub fn digest(&self) -> String {
        format!("sha256:{}", Digest::of(self.to_canonical_json().as_bytes()))
    }
}

/// What a node says of itself when it is looked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// What is seen of it.
    pub state: NodeState,
    /// The marker of the spec in force, if there is one.
    #[serde(default)]
    pub complete: Option<ConfigComplete>,
    /// The peers it was told of, by name.
    #[serde(default)]
    pub peers: BTreeMap<String, String>,
    /// Whether it reaches what it was asked about: `HOST:PORT`.
    #[serde(default)]
    pub reached: BTreeMap<String, bool>,
}

/// Something about a node that is not as its spec wants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drift {
    /// Where in [`NodeState`]; users are named: `users.ops.keys`.
    pub path: String,
    /// What the spec wants.
    pub expected: Value,
    /// What is there; null: nothing.
    pub observed: Value,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_state_has_one_digest_however_it_was_filled() {
        let mut one = NodeState { hostname: Some("edge".to_owned()), ..NodeState::default() };
        let mut other = one.clone();
        one.packages = [("a".to_owned(), true), ("b".to_owned(), false)].into();
        other.packages = [("b".to_owned(), false), ("a".to_owned(), true)].into();
        assert_eq!(one.digest(), other.digest());
        let read: NodeState = serde_json::from_str(&one.to_canonical_json()).unwrap();
        assert_eq!(read, one);
        other.packages.insert("b".to_owned(), true);
        assert_ne!(one.digest(), other.digest());
    }
}

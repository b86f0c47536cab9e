//! What a node becomes, in full: the one answer that push, server, validation and every level agree on.

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::address::NodeAddress;
use super::posture::Security;
use super::spec::{Run, Spec};
use super::{FileKind, Site};
use crate::canonical_json;
use crate::id::{NodeName, SiteKey};
use crate::plan::Digest;

/// What a node becomes, with everything it needs to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResolvedSpec {
    /// Who may use it.
    pub access: ResolvedAccess,
    /// Time zone, Proxmox settings, and values of the site's own.
    pub config: Map<String, Value>,
    /// What it is called.
    pub identity: Identity,
    /// Its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<ResolvedNetwork>,
    /// The node.
    pub node: NodeName,
    /// What is installed and runs.
    pub platform: Platform,
    /// When it is configured again.
    pub run: ResolvedRun,
    /// 1.
    pub schema_version: u32,
    /// The spec it comes from.
    pub spec: SiteKey,
}

/// Who may use a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResolvedAccess {
    /// The posture's name.
    pub posture: SiteKey,
    /// What the posture sets.
    pub security: Security,
    /// Accounts.
    pub users: Vec<ResolvedUser>,
}

/// An account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResolvedUser {
    /// Its name.
    pub name: String,
    /// Lines of its `authorized_keys`.
    pub ssh_keys: Vec<String>,
    /// Whether it may use sudo.
    pub sudo: bool,
}

/// What a node is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Its domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Its name.
    pub hostname: NodeName,
}

/// Its address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResolvedNetwork {
    /// Name servers.
    pub dns: Vec<IpAddr>,
    /// The default route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// The address.
    pub ip: NodeAddress,
}

/// What is installed and runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Platform {
    /// What is installed.
    pub packages: Vec<String>,
    /// What runs.
    pub services: Services,
}

/// What runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Services {
    /// What does not.
    pub disable: Vec<String>,
    /// What does.
    pub enable: Vec<String>,
}

/// When a node is configured again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "trigger", rename_all = "snake_case", deny_unknown_fields)]
pub enum ResolvedRun {
    /// When somebody says so.
    Manual {},
    /// Every so often.
    Schedule {
        /// Seconds.
        interval: u64,
    },
}

impl ResolvedSpec {
    /// Returns the canonical JSON.
    pub fn to_canonical_json(&self) -> String {
        canonical_json::to_string(&serde_json::to_value(self).expect("a resolved spec is always JSON"))
    }

    /// Returns `sha256:` and the hash of the canonical JSON.
    pub fn digest(&self) -> String {
        format!("sha256:{}", Digest::of(self.to_canonical_json().as_bytes()))
    }
}

/// The digests of many nodes: what nodes of one spec have in common is resolved and written once.
#[derive(Debug)]
pub struct Digests<'a> {
    site: &'a Site,
    /// The canonical JSON of a spec around the names of its node; none if it cannot be resolved.
    known: BTreeMap<SiteKey, Option<Vec<String>>>,
}

impl<'a> Digests<'a> {
    /// Returns the digests of nodes of `site`.
    pub const fn new(site: &'a Site) -> Self {
        Self { site, known: BTreeMap::new() }
    }

    /// Returns the digest of what `node` becomes by the spec called `spec`, if that can be resolved.
    pub fn of(&mut self, spec: &SiteKey, node: &NodeName) -> Option<String> {
        if !self.known.contains_key(spec) {
            let resolved = resolve(self.site, spec, node).ok();
            let value = resolved.and_then(|resolved| serde_json::to_value(resolved).ok());
            let parts = value.as_ref().and_then(Value::as_object).map(|object| {
                // Where a node's name is in what it becomes.
                canonical_json::around(object, &[&["identity", "hostname"], &["node"]])
            });
            self.known.insert(spec.clone(), parts);
        }
        let parts = self.known.get(spec)?.as_ref()?;
        // The letters of a node's name are written as they are.
        let text = parts.join(&format!("\"{node}\""));
        Some(format!("sha256:{}", Digest::of(text.as_bytes())))
    }
}

/// Why a spec cannot be resolved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// There is no such spec.
    #[error("there is no {}", FileKind::Spec.path_of(.0.as_str()))]
    UnknownSpec(SiteKey),
    /// The spec has problems.
    #[error("{} has problems", FileKind::Spec.path_of(.0.as_str()))]
    BrokenSpec(SiteKey),
    /// There is no such posture.
    #[error("there is no {}", FileKind::Posture.path_of(.0.as_str()))]
    UnknownPosture(SiteKey),
    /// The posture has problems.
    #[error("{} has problems", FileKind::Posture.path_of(.0.as_str()))]
    BrokenPosture(SiteKey),
    /// There is no such key.
    #[error("there is no key `{0}` in `ssh_keys` of secrets.yaml")]
    UnknownKey(String),
    /// `site.yaml` or `secrets.yaml` has problems.
    #[error("{} has problems", .0.place())]
    BrokenSite(FileKind),
}

/// Returns what `node` becomes by the spec called `spec`.
pub fn resolve(site: &Site, spec: &SiteKey, node: &NodeName) -> Result<ResolvedSpec, ResolveError> {
    let entry = site.specs.get(spec).ok_or_else(|| ResolveError::UnknownSpec(spec.clone()))?;
    if entry.is_broken() {
        return Err(ResolveError::BrokenSpec(spec.clone()));
    }
    for (is_broken, kind) in
        [(site.settings.is_broken(), FileKind::Site), (site.secrets.is_broken(), FileKind::Secrets)]
    {
        if is_broken {
            return Err(ResolveError::BrokenSite(kind));
        }
    }
    let name = spec;
    let (spec, defaults) = (&entry.value, &site.settings.value.defaults);
    let posture_name =
        spec.posture.as_ref().map_or_else(|| defaults.posture(), |posture| posture.value.clone());
    let Some(posture) = site.postures.get(&posture_name) else {
        return Err(ResolveError::UnknownPosture(posture_name));
    };
    if posture.is_broken() {
        return Err(ResolveError::BrokenPosture(posture_name));
    }
    let posture = &posture.value;
    let users = spec.users.iter().map(|user| {
        Ok(ResolvedUser { name: user.name.clone(), sudo: user.sudo, ssh_keys: key_lines(site, user)? })
    });
    Ok(ResolvedSpec {
        access: ResolvedAccess {
            posture: posture_name,
            security: posture.security.clone(),
            users: users.collect::<Result<_, _>>()?,
        },
        config: config(spec, site),
        identity: Identity {
            domain: spec.domain.clone().or_else(|| defaults.domain.clone()),
            hostname: node.clone(),
        },
        network: spec.network.as_ref().map(|network| ResolvedNetwork {
            dns: network.dns.clone(),
            gateway: network.gateway,
            ip: network.ip,
        }),
        node: node.clone(),
        platform: Platform {
            packages: union([&spec.packages, &posture.packages, &defaults.packages]),
            services: Services { disable: spec.disable.clone(), enable: spec.enable.clone() },
        },
        run: match spec.run {
            Run::Manual => ResolvedRun::Manual {},
            Run::Schedule { interval } => ResolvedRun::Schedule { interval: interval.as_secs() },
        },
        schema_version: 1,
        spec: name.clone(),
    })
}

/// Returns the lines of a user's keys: all of the site, or exactly those it names.
fn key_lines(site: &Site, user: &super::spec::User) -> Result<Vec<String>, ResolveError> {
    let keys = &site.secrets.value.ssh_keys;
    let lines: Vec<&String> = match &user.ssh_keys {
        None => keys.values().collect(),
        Some(ids) => ids
            .iter()
            .map(|id| keys.get(&id.value).ok_or_else(|| ResolveError::UnknownKey(id.value.clone())))
            .collect::<Result<_, _>>()?,
    };
    Ok(first_occurrences(lines))
}

/// Returns `config` with what the site says where the spec is silent.
fn config(spec: &Spec, site: &Site) -> Map<String, Value> {
    let defaults = &site.settings.value.defaults;
    let mut config = spec.config.clone();
    config.entry("timezone").or_insert_with(|| json!(defaults.timezone));
    if let Some(Value::Object(pve)) = config.get_mut("pve") {
        pve.entry("remove_subscription_nag").or_insert_with(|| json!(defaults.pve_remove_subscription_nag));
    }
    config
}

fn union(lists: [&Vec<String>; 3]) -> Vec<String> {
    first_occurrences(lists.into_iter().flatten())
}

fn first_occurrences<'a>(texts: impl IntoIterator<Item = &'a String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    texts.into_iter().filter(|text| seen.insert(text.as_str())).cloned().collect()
}

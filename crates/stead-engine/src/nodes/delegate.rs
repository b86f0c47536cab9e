//! What a hosting node is given to run its subtree: a manifest and a site, cut from those of the level above.
//!
//! Only what the subtree names goes down. What else the site knows (tokens of APIs, other levels' keys, keys nobody
//! below uses, files of other nodes) has no way into what is made here, because nothing is copied that is not looked up.

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Value, json};
use stead_model::site::host::DriverKind;
use stead_model::site::keyring::{KeyUse, KeyringKey, Revocation};
use stead_model::site::manifest::{Context, ManifestNode, PeerOutside};
use stead_model::site::settings::{Defaults, ServerSettings};
use stead_model::site::{Entry, FileKind, Folder, Host, Keyring, Manifest, Parcel, Site, SiteSettings};
use stead_model::token::LiveRing;
use stead_model::{NodeName, SiteKey};

use super::Forest;

/// Returns where in a larger run the subtree of `node` belongs: below whatever this manifest is below.
pub fn context_below(manifest: &Manifest, run: &str, host: &str, node: &NodeName) -> Context {
    let mut context = manifest.context.clone().unwrap_or_else(|| Context {
        run: run.to_owned(),
        path: Vec::new(),
        host: host.to_owned(),
        peers: Vec::new(),
    });
    context.path.push(node.clone());
    context
}

/// Returns the manifest of what is in `node`: its children are roots, what is deeper keeps its parent.
pub fn sub_manifest(manifest: &Manifest, forest: &Forest, node: usize, context: Context) -> Manifest {
    part_of(manifest, forest, &forest.below(node), context)
}

/// Returns the manifest of the trees that a host makes: `made_there` says of every node whether it is in one of them.
pub fn host_manifest(
    manifest: &Manifest,
    forest: &Forest,
    made_there: &[bool],
    context: Context,
) -> Manifest {
    let mut part = part_of(manifest, forest, made_there, context);
    for node in &mut part.nodes {
        // There it is the host of the run.
        node.host = None;
    }
    part
}

fn part_of(manifest: &Manifest, forest: &Forest, below: &[bool], context: Context) -> Manifest {
    let is_below = |name: &str| forest.named(name).is_some_and(|found| found.into_iter().all(|i| below[i]));
    // Nodes of one entry have one parent: an entry is below as a whole, or not at all.
    let written: BTreeSet<usize> =
        forest.nodes.iter().zip(below).filter(|(_, below)| **below).map(|(node, _)| node.written).collect();
    let nodes = written.into_iter().enumerate().map(|(index, written)| {
        let mut kept: ManifestNode = manifest.nodes[written].clone();
        kept.index = index;
        kept.parent = kept.parent.filter(|parent| is_below(&parent.value));
        // A link that leaves the subtree is made by a run that holds both ends.
        kept.peers.retain(|peer| is_below(&peer.value));
        kept
    });
    Manifest { nodes: nodes.collect(), context: Some(context), ..manifest.clone() }
}

/// Returns the links between nodes of a part of the forest and others; `place` says where a node takes logins.
///
/// The level below can make none of them, but has to leave them be, and can look whether they hold.
pub fn peers_outside(
    manifest: &Manifest,
    forest: &Forest,
    part: &[bool],
    place: &dyn Fn(&NodeName) -> Option<(IpAddr, u16)>,
) -> Vec<PeerOutside> {
    let inner = forest.nodes.iter().zip(part).filter(|(_, below)| **below).map(|(node, _)| node);
    let names: BTreeSet<&NodeName> = inner.clone().map(|node| &node.name).collect();
    let cut_here = inner.flat_map(|inner| {
        let outer = inner.peers.iter().filter(|peer| !part[**peer]).map(|peer| &forest.nodes[*peer].name);
        outer.map(|name| PeerOutside { of: inner.name.clone(), name: name.clone(), place: place(name) })
    });
    let cut_above = manifest.context.iter().flat_map(|context| &context.peers);
    let cut_above = cut_above.filter(|peer| names.contains(&peer.of)).cloned();
    cut_here.chain(cut_above).collect()
}

/// A level that hands a subtree to the level below.
#[derive(Clone, Copy, Debug)]
pub struct Above<'a> {
    /// Its site.
    pub site: &'a Site,
    /// Its live keys, if it has any.
    pub ring: Option<&'a LiveRing>,
    /// What made the hosting node.
    pub driver: DriverKind,
    /// Public keys of everybody who may log in below: this level's and those above it.
    pub authorized_keys: &'a [String],
}

/// Returns the site of the subtree `manifest` that `node` runs, whose own entry says `hosting`.
///
/// What is missing from the site is missing from the answer: removing nodes needs none of it.
pub fn sub_site(
    above: &Above<'_>,
    manifest: &Manifest,
    node: &impl fmt::Display,
    hosting: Option<&Host>,
) -> Parcel {
    let site = above.site;
    let specs = named(&site.specs, manifest.nodes.iter().filter_map(|node| Some(&node.spec.as_ref()?.value)));
    let presets =
        named(&site.presets, manifest.nodes.iter().filter_map(|node| Some(&node.preset.as_ref()?.value)));
    let defaults = &site.settings.value.defaults;
    let wanted: Vec<SiteKey> = specs
        .values()
        .map(|spec| {
            spec.value.posture.as_ref().map_or_else(|| defaults.posture(), |posture| posture.value.clone())
        })
        .collect();
    let postures = named(&site.postures, wanted.iter());
    let host = host_below(above.driver, hosting);
    let name = manifest.name.clone().unwrap_or_else(|| SiteSettings::default().name);

    let mut files = BTreeMap::new();
    let uses_default = specs.values().any(|spec| spec.value.posture.is_none());
    let settings = settings_below(&site.settings.value, above.driver, uses_default);
    files.insert(FileKind::Site.place().to_owned(), settings.to_json().to_string());
    files.insert(FileKind::Host.path_of(&node.to_string()), host.to_json().to_string());
    add(&mut files, FileKind::Spec, &specs);
    add(&mut files, FileKind::Preset, &presets);
    add(&mut files, FileKind::Posture, &postures);

    let keyring = keyring_below(above, manifest, &name, node);
    let minting = keyring.keys.iter().find(|key| key.usage == KeyUse::Mint);
    let mut secrets = json!({"ssh_keys": keys_below(site, &specs, manifest, &host)});
    if let Some(hash) = &site.secrets.value.vm_root {
        secrets["passwords"] = json!({"vm_root": hash.expose()});
    }
    if let Some(minting) = minting {
        secrets["auth"] = json!({"signing_key": minting.key.to_hex()});
    }
    files.insert(FileKind::Secrets.place().to_owned(), secrets.to_string());
    files.insert(FileKind::Keyring.place().to_owned(), keyring.to_yaml());
    Parcel { schema: 1, manifest: name, files, authorized_keys: above.authorized_keys.to_vec() }
}

/// Returns the files of `folder` that are named.
fn named<'a, T>(
    folder: &'a Folder<T>,
    names: impl Iterator<Item = &'a SiteKey>,
) -> BTreeMap<&'a SiteKey, &'a Entry<T>> {
    names.filter_map(|name| folder.get_key_value(name)).collect()
}

/// Adds files as they are written, so that they mean below what they mean here.
fn add<T>(files: &mut BTreeMap<String, String>, kind: FileKind, entries: &BTreeMap<&SiteKey, &Entry<T>>) {
    for (name, entry) in entries {
        if let Some(source) = &entry.source {
            files.insert(kind.path_of(name.as_str()), source.text.to_string());
        }
    }
}

/// Returns what a node uses for its children: what its entry says, with the kind that made it where that is silent.
pub fn host_below(made_by: DriverKind, hosting: Option<&Host>) -> Host {
    let mut host = hosting.cloned().unwrap_or_default();
    if host.driver.is_none() && host.api_endpoint.is_none() {
        host.driver = Some(made_by);
    }
    host
}

/// Returns `site.yaml` without what is about this level alone: its user, its key file, its server's address, its
/// repositories. A sandbox shares its addresses with all others, so it serves at a free port of its own.
fn settings_below(settings: &SiteSettings, driver: DriverKind, uses_default_posture: bool) -> SiteSettings {
    let mut server = ServerSettings { repos: BTreeMap::new(), ..settings.server.clone() };
    if driver == DriverKind::Sandbox {
        server.port = 0;
        server.bind = core::net::Ipv4Addr::LOCALHOST.into();
    } else {
        server.bind = ServerSettings::default().bind;
    }
    let defaults = Defaults {
        host_user: None,
        ssh_key_file: None,
        server_url: None,
        posture: settings.defaults.posture.clone().filter(|_| uses_default_posture),
        ..settings.defaults.clone()
    };
    SiteSettings { name: settings.name.clone(), server, defaults }
}

/// Returns the public keys that specs and hosts of the subtree name. A user without a list has all keys of the site.
fn keys_below(
    site: &Site,
    specs: &BTreeMap<&SiteKey, &Entry<stead_model::site::Spec>>,
    manifest: &Manifest,
    host: &Host,
) -> Value {
    let known = &site.secrets.value.ssh_keys;
    let users = || specs.values().flat_map(|spec| &spec.value.users);
    if users().any(|user| user.ssh_keys.is_none()) {
        return json!(known);
    }
    let hosts = manifest.nodes.iter().filter_map(|node| Some(&node.hosting.as_ref()?.value)).chain([host]);
    let ids: BTreeSet<&str> = users()
        .flat_map(|user| user.ssh_keys.iter().flatten())
        .chain(hosts.flat_map(|host| host.access.authorized_keys.iter().flatten()))
        .map(|id| id.value.as_str())
        .collect();
    let lines: BTreeMap<&str, &String> =
        ids.into_iter().filter_map(|id| Some((id, known.get(id)?))).collect();
    json!(lines)
}

/// Returns a key for every live key of the level above, and what is revoked of the subtree's nodes.
fn keyring_below(
    above: &Above<'_>,
    manifest: &Manifest,
    name: &SiteKey,
    node: &impl fmt::Display,
) -> Keyring {
    let Some(ring) = above.ring else { return Keyring::default() };
    let listed = &above.site.keyring.value;
    let minting = ring.minting().ok();
    let keys = ring.keys().iter().map(|key| KeyringKey {
        key: key.derive(name, node),
        usage: if minting == Some(key) { KeyUse::Mint } else { KeyUse::Verify },
        until: listed.keys.iter().find(|other| other.key == *key).and_then(|other| other.until),
    });
    let is_below = |name: &NodeName| manifest.nodes.iter().any(|node| stands_for(node, name));
    let revoked = listed.revoked.iter().filter(|revoked| match revoked {
        Revocation::Token { .. } => false,
        Revocation::Node { node, .. } => is_below(node),
    });
    Keyring { keys: keys.collect(), revoked: revoked.cloned().collect() }
}

/// Whether `name` is the node of this entry, or one of those it stands for.
fn stands_for(entry: &ManifestNode, name: &NodeName) -> bool {
    let own = entry.name.value.as_str();
    match entry.count {
        None => own == name.as_str(),
        Some(count) => name
            .as_str()
            .strip_prefix(own)
            .and_then(|rest| rest.strip_prefix('-'))
            .and_then(|number| number.parse::<u32>().ok())
            .is_some_and(|number| (1..=count).contains(&number)),
    }
}

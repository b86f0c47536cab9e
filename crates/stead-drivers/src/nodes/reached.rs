//! Nodes and hosts of a site as hosts of an inventory: how each is reached, and the labels that targets select by.

use std::collections::BTreeMap;
use std::path::Path;

use stead_engine::nodes::find_host;
use stead_model::NodeName;
use stead_model::inventory::{Host as Reached, SOURCE_LABEL};
use stead_model::node::{NodeEntry, NodesState};
use stead_model::site::{Host, Site};
use stead_model::transport::{HostKeys, SshSpec, TransportSpec};
use stead_runner::operation::OpError;

use super::NodesSurroundings;
use super::reach::expand_home;

impl NodesSurroundings {
    /// Returns the nodes that were made and have an address.
    ///
    /// # Errors
    /// If the driver's key cannot be used.
    pub async fn reached_nodes(&self) -> Result<BTreeMap<NodeName, Reached>, OpError> {
        let known = self.parts.memory.look(NodesState::clone);
        let mut reached = BTreeMap::new();
        for (name, entry) in known.nodes.iter().filter(|(_, entry)| entry.ip.is_some()) {
            let labels = node_labels(&known, name, entry);
            let node = Reached { labels, ..Reached::reached_by(self.way_to(name, entry).await?) };
            reached.insert(name.clone(), node);
        }
        Ok(reached)
    }

    /// Returns the hosts of the site that have an address; that of this level as the user that was asked for.
    pub fn reached_hosts(&self) -> BTreeMap<String, Reached> {
        let parts = &self.parts;
        let mut reached = reached_hosts(&parts.site, &parts.site_dir, &parts.environment);
        if let (Some(user), Some(own)) = (&parts.host.user, reached.get_mut(&parts.host.name))
            && let TransportSpec::Ssh(ssh) = &mut own.transport
        {
            ssh.user = Some(user.clone());
        }
        reached
    }
}

/// Returns the hosts of `site`, which is at `site_dir`, that have an address. One whose file is broken is none.
pub fn reached_hosts(
    site: &Site,
    site_dir: &Path,
    environment: &BTreeMap<String, String>,
) -> BTreeMap<String, Reached> {
    let key = site.settings.value.defaults.ssh_key_file.as_ref();
    let key = key.map(|file| site_dir.join(expand_home(file, environment)).display().to_string());
    let names = site.hosts.keys().chain(site.instances.keys());
    let reached = names.filter_map(|name| {
        let host = find_host(site, name.as_str()).ok()?.host;
        let mut way = host_way(site, &host, None)?;
        if let TransportSpec::Ssh(ssh) = &mut way {
            ssh.key = key.clone();
        }
        let mut labels = host.labels.clone();
        labels.insert(SOURCE_LABEL.to_owned(), "site".to_owned());
        labels.insert("driver".to_owned(), host.driver().word().to_owned());
        Some((name.to_string(), Reached { labels, ..Reached::reached_by(way) }))
    });
    reached.collect()
}

/// Returns what targets select a node by.
pub(super) fn node_labels(
    state: &NodesState,
    name: &NodeName,
    entry: &NodeEntry,
) -> BTreeMap<String, String> {
    let host = entry.host.as_deref().unwrap_or(&state.host);
    let parent = entry.parent.as_ref().map(ToString::to_string);
    let spec = entry.spec.as_ref().map(ToString::to_string);
    let labels = [
        (SOURCE_LABEL, Some("nodes".to_owned())),
        ("manifest", Some(state.manifest.clone())),
        ("host", Some(host.to_owned())),
        ("type", Some(entry.kind.word().to_owned())),
        ("spec", spec),
        ("parent", parent),
        ("level", Some(state.level_of(name).to_string())),
        ("mode", Some(entry.mode.word().to_owned())),
    ];
    labels.into_iter().filter_map(|(label, value)| Some((label.to_owned(), value?))).collect()
}

/// Returns the way to a host of `site`, as `user` if one is given; none if it has no address. Without a pinned key the
/// first one seen is recorded.
pub(crate) fn host_way(site: &Site, host: &Host, user: Option<&str>) -> Option<TransportSpec> {
    let defaults = &site.settings.value.defaults;
    Some(TransportSpec::Ssh(Box::new(SshSpec {
        user: user
            .map(str::to_owned)
            .or_else(|| host.access.host_user.clone())
            .or_else(|| defaults.host_user.clone()),
        host: host.address.clone()?,
        port: Some(host.access.ssh_port()),
        host_key: host.access.host_key.clone(),
        host_keys: Some(HostKeys::AcceptNew),
        become_user: host.becomes().cloned(),
        ..SshSpec::default()
    })))
}

//! Who runs a part of the forest: a node for what is in it, or a host that is another machine for what is made there.

use std::fmt;
use std::time::Duration;

use stead_engine::nodes::{
    ChosenHost, address_below, context_below, host_below, host_manifest, sub_manifest,
};
use stead_model::site::host::{DriverKind, Timeouts};
use stead_model::site::manifest::Context;
use stead_model::site::{Host, Manifest};
use stead_model::{NodeName, SiteKey};
use stead_runner::operation::OpError;

use super::super::line::Line;
use super::super::{NodeView, NodesSurroundings};

/// Who runs a part of the forest.
pub(in super::super) enum Deputy<'a> {
    /// A node of this level, for the nodes in it.
    Node(NodeView<'a>),
    /// Another machine, for the nodes of this level that are made there.
    Host(&'a ChosenHost),
}

impl fmt::Display for Deputy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => node.node.name.fmt(f),
            Self::Host(host) => f.write_str(&host.name),
        }
    }
}

impl Deputy<'_> {
    /// Returns the node, if it is one.
    pub(super) fn node(&self) -> Option<&NodeName> {
        match self {
            Self::Node(node) => Some(&node.node.name),
            Self::Host(_) => None,
        }
    }
}

impl NodesSurroundings {
    /// Returns a node as who runs what is in it.
    pub(in super::super) fn node_deputy(&self, name: &NodeName) -> Result<Deputy<'_>, OpError> {
        self.node(name.as_str()).map(Deputy::Node)
    }

    /// Returns another machine as who runs what is made there.
    pub(in super::super) fn host_deputy(&self, name: &str) -> Result<Deputy<'_>, OpError> {
        let found = self.parts.elsewhere.get(name).map(Deputy::Host);
        found.ok_or_else(|| OpError::invalid(format!("host `{name}` is no other machine")))
    }

    /// Returns who runs what is to be done with the node at `index`, if this level does not.
    pub(in super::super) fn deputy_of(&self, index: usize) -> Option<Deputy<'_>> {
        let forest = &self.parts.forest;
        let root = *forest.trees().get(index)?;
        let node = self.node(forest.nodes[root].name.as_str()).ok()?;
        let host = self.host_of(Some(&node), self.entry(&node.node.name).as_ref());
        match self.parts.elsewhere.get(&host) {
            Some(host) => Some(Deputy::Host(host)),
            None if root == index => None,
            None => Some(Deputy::Node(node)),
        }
    }

    /// Returns for every node whether `deputy` runs what is to be done with it.
    pub(super) fn part_of(&self, deputy: &Deputy<'_>) -> Vec<bool> {
        let forest = &self.parts.forest;
        match deputy {
            Deputy::Node(node) => forest.below(node.index),
            Deputy::Host(host) => {
                let made_there = |root: usize| {
                    let node = self.node(forest.nodes[root].name.as_str());
                    node.is_ok_and(|node| {
                        self.host_of(Some(&node), self.entry(&node.node.name).as_ref()) == host.name
                    })
                };
                let mut roots = vec![false; forest.nodes.len()];
                forest.roots().for_each(|root| roots[root] = made_there(root));
                forest.trees().into_iter().map(|root| roots[root]).collect()
            }
        }
    }

    /// Whether a node that is remembered was made by `deputy`.
    pub(super) fn is_run_by(&self, deputy: &Deputy<'_>, name: &NodeName) -> bool {
        self.parts.memory.look(|state| {
            let root = state.root_of(name).and_then(|root| Some((root, state.nodes.get(root)?)));
            root.is_some_and(|(root, entry)| match deputy {
                Deputy::Node(node) => node.node.name == *root,
                Deputy::Host(host) => self.made_on(entry) == host.name,
            })
        })
    }

    /// Opens the line over which a deputy is told what to do.
    pub(in super::super) async fn line_to(&self, deputy: &Deputy<'_>) -> Result<Line, OpError> {
        match deputy {
            Deputy::Node(node) => self.hosting_line(&node.node.name).await,
            Deputy::Host(host) => {
                let way = self.way_to_host(host).await?;
                let limit = self.limit_of(deputy, |limits| limits.ssh);
                self.connect_by(&way, &host.name, limit, None).await.map(Line::Ssh)
            }
        }
    }

    /// Returns how long something may take that a deputy is waited for.
    pub(super) fn limit_of(&self, deputy: &Deputy<'_>, pick: impl FnOnce(&Timeouts) -> u32) -> Duration {
        match deputy {
            Deputy::Node(node) => self.limit(node.node.name.as_str(), pick),
            Deputy::Host(host) => self.limit_on(&host.host, pick),
        }
    }

    /// Returns where in a larger run the part of a deputy belongs.
    pub(in super::super) fn context_of(&self, deputy: &Deputy<'_>, run: &str) -> Context {
        let parts = &self.parts;
        match deputy {
            Deputy::Node(node) => context_below(&parts.manifest, run, &parts.host.name, &node.node.name),
            Deputy::Host(host) => {
                Context { run: run.to_owned(), path: Vec::new(), host: host.name.clone(), peers: Vec::new() }
            }
        }
    }

    /// Returns the manifest of a deputy's part; none if nobody describes its nodes any more.
    pub(super) fn manifest_of(&self, deputy: &Deputy<'_>, context: Context) -> Option<Manifest> {
        let parts = &self.parts;
        let manifest = match deputy {
            Deputy::Node(node) => sub_manifest(&parts.manifest, &parts.forest, node.index, context),
            Deputy::Host(_) => host_manifest(&parts.manifest, &parts.forest, &self.part_of(deputy), context),
        };
        (!manifest.nodes.is_empty()).then_some(manifest)
    }

    /// Returns what a deputy makes machines with, and which kind of machine it is itself.
    pub(super) fn hosting_of(&self, deputy: &Deputy<'_>) -> (DriverKind, Option<Host>) {
        match deputy {
            Deputy::Node(node) => {
                let driver = node.known.driver.unwrap_or_else(|| self.parts.host.host.driver());
                (driver, node.written.hosting.as_ref().map(|hosting| hosting.value.clone()))
            }
            Deputy::Host(host) => {
                let mut there = host.host.clone();
                // How it is reached is for this machine to know.
                (there.address, there.access.host_user, there.access.host_key) = (None, None, None);
                there.access.ssh_port = None;
                (there.driver(), Some(there))
            }
        }
    }

    /// Returns the address at which a deputy is reached, which the nodes it makes are told; none if they could not reach it
    /// there.
    pub(super) fn address_of(&self, deputy: &Deputy<'_>) -> Option<String> {
        let reached = match deputy {
            Deputy::Node(node) => self.entry(&node.node.name)?.ip?,
            Deputy::Host(host) if host.host.self_addr.is_some() => return host.host.self_addr.clone(),
            Deputy::Host(host) => host.host.address.clone()?,
        };
        let (made_by, hosting) = self.hosting_of(deputy);
        address_below(&reached, host_below(made_by, hosting.as_ref()).driver()).map(str::to_owned)
    }
}

/// Returns what the host of a deputy's run is called.
pub(super) fn host_key(deputy: &Deputy<'_>) -> Result<SiteKey, OpError> {
    SiteKey::parse(&deputy.to_string()).map_err(|error| OpError::invalid(error.to_string()))
}

//! The run manifest and its kits: their keys, values and rules, before any template is rendered.
//!
//! [`RunManifest::read`] checks the top level. Which keys a role may have depends on its kit, so roles are read one by
//! one, with it, by [`RunManifest::role`]. Texts that may hold templates stay [`Node`]s, which know their places. What
//! needs several roles, files or agents to be judged is left to `stead-engine`'s `compile`.

pub mod keys;
mod kit;
mod read;
mod role;
#[cfg(test)]
mod tests;

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::diagnostic::{Diagnostics, Place, Source};
use crate::id::{HostName, RunId};
use crate::inventory::Host;
use crate::plan::{Digest, SecretRef};
use crate::plan_file::Declared;
use crate::run_plan::{Analyze, BundleFormat, Distribution, KeepWorkdir, Until};
use crate::yaml::{Node, NodeId, Tree, Walk};

pub use kit::{CIPDIP, Field, FieldKind, Kit, KitRole};
pub use role::{ArgForm, ArtifactForm, FileForm, NeedsForm, RoleForm};

/// A run manifest whose top level has been read.
#[derive(Clone, Debug)]
pub struct RunManifest {
    tree: Arc<Tree>,
    /// The run's name; none: `auto`.
    pub run_id: Option<RunId>,
    /// Template `seed`.
    pub seed: i64,
    /// The kit of roles without `command`.
    pub kit: String,
    /// The profile.
    pub profile: Option<Profile>,
    /// Addresses.
    pub network: Network,
    /// Declared variables in written order.
    pub vars: Vec<Declared>,
    /// Declared environment variables in written order.
    pub env: Vec<Declared>,
    /// Where secrets come from.
    pub secrets: BTreeMap<String, SecretRef>,
    /// Agents by id.
    pub agents: BTreeMap<HostName, Host>,
    /// The roles in written order.
    pub roles: Vec<RoleEntry>,
    /// `readiness`.
    pub readiness: Option<NodeId>,
    /// What ends the run; none: by its roles.
    pub until: Option<Until>,
    /// Where that is written.
    pub until_place: Option<NodeId>,
    /// How long agents go on without the driver.
    pub lease_seconds: u32,
    /// Whether workdirs stay.
    pub keep_workdir: KeepWorkdir,
    /// What the bundle is in the end.
    pub bundle_format: BundleFormat,
    /// Collected from every role: patterns, which may hold templates. None: the default.
    pub include: Option<Vec<NodeId>>,
    /// Bytes collected per role.
    pub max_bytes: u64,
    /// Whether captures are analysed.
    pub analyze: Analyze,
    /// More ports of captures.
    pub ports: Vec<u16>,
    /// The bundle to compare with, relative to the manifest.
    pub diff_baseline: Option<Declared>,
    /// Thresholds of the comparison, as written.
    pub fail_on: Vec<Declared>,
}

/// The profile of a manifest.
#[derive(Clone, Debug)]
pub struct Profile {
    /// As written.
    pub path: String,
    /// Where it is written.
    pub place: NodeId,
    /// The hash it must have.
    pub checksum: Option<Digest>,
    /// Where that is written.
    pub checksum_place: Option<NodeId>,
    /// How roles get it.
    pub distribution: Distribution,
}

/// The port of the data plane, if nobody says otherwise.
pub const DEFAULT_TARGET_PORT: u16 = 44818;

/// Patterns of what every role leaves, if nobody says otherwise.
pub const DEFAULT_INCLUDE: [&str; 2] = ["*.pcap", "*.pcapng"];

/// `network` of a manifest.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// A label.
    pub control_plane: Option<String>,
    /// The address that clients talk to.
    pub target_ip: Option<IpAddr>,
    /// The address that servers listen on.
    pub server_listen_ip: Option<IpAddr>,
    /// The port of both, if it is written.
    pub target_port: Option<u16>,
    /// An address that the client's agent must have.
    pub client_bind_ip: Option<IpAddr>,
    /// Where that is written.
    pub client_bind_place: Option<NodeId>,
}

impl Network {
    /// Returns the port of the data plane.
    pub fn port(&self) -> u16 {
        self.target_port.unwrap_or(DEFAULT_TARGET_PORT)
    }
}

/// A role of a manifest, not yet read.
#[derive(Clone, Debug)]
pub struct RoleEntry {
    /// Its name.
    pub name: String,
    /// Where the name is written.
    pub key: NodeId,
    /// What is written of it.
    pub node: NodeId,
}

impl RunManifest {
    /// Returns the manifest `source` holds, problems of its top level added to `diagnostics`; nothing if it is not YAML
    /// or no map.
    pub fn read(source: &Source, diagnostics: &mut Diagnostics) -> Option<Self> {
        read::manifest(source, diagnostics)
    }

    /// Returns the tree the file was read into.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// Returns the node with this number.
    pub fn node(&self, id: NodeId) -> Node<'_> {
        self.tree.node(id)
    }

    /// Returns the name of the kit a role is made by; none if it has a command of its own.
    pub fn kit_of<'m>(&'m self, role: &RoleEntry) -> Option<&'m str> {
        let node = self.node(role.node);
        match node.get("kit").and_then(Node::as_text) {
            Some(kit) => Some(kit),
            None => node.get("command").is_none().then_some(&*self.kit),
        }
    }

    /// Returns the names of the kits that roles are made by.
    pub fn kit_names(&self) -> BTreeSet<&str> {
        self.roles.iter().filter_map(|role| self.kit_of(role)).collect()
    }

    /// Returns a role as it is written, completed by the role of its kit, problems added to `diagnostics`; nothing if
    /// it is no map.
    pub fn role<'m>(
        &'m self,
        entry: &RoleEntry,
        kit: Option<&'m KitRole>,
        diagnostics: &mut Diagnostics,
    ) -> Option<RoleForm<'m>> {
        RoleForm::read(&mut Walk::new(diagnostics), self.node(entry.key), self.node(entry.node), kit)
    }

    /// Returns the words that roles give as their agent and that are no transports: ids.
    pub fn agent_words(&self) -> BTreeSet<&str> {
        let word = |role: &RoleEntry| self.node(role.node).get("agent").and_then(Node::as_text);
        let words = self.roles.iter().filter_map(word);
        words.filter(|word| !word.contains("://") && !word.contains('@')).collect()
    }

    /// Returns where the file as a whole is.
    pub fn place(&self) -> Place {
        self.tree.root().place()
    }
}

/// Returns problems whose messages say where in the document they are: a line alone does not tell one role from another.
pub fn with_paths(diagnostics: Diagnostics) -> Diagnostics {
    let mut seen = BTreeSet::new();
    let mut told = Vec::with_capacity(diagnostics.0.len());
    for mut problem in diagnostics.0 {
        let key = (problem.code, problem.place.to_string(), problem.message.clone());
        // Instances of a role, and roles of one kit, share their texts and so their problems.
        if !seen.insert(key) {
            continue;
        }
        if !problem.path.is_empty() && matches!(problem.place, Place::Text { .. }) {
            problem.message = format!("{}: {}", problem.path, problem.message);
        }
        told.push(problem);
    }
    Diagnostics(told)
}

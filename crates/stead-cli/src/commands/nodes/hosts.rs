//! Nodes and hosts of a site as hosts that commands can be run on.

use std::collections::BTreeMap;

use stead_drivers::nodes::reached_hosts;
use stead_drivers::site::Manifests;
use stead_engine::compile::nodes::NodesVerb;
use stead_engine::target::{HostSet, TargetExpr, resolve};
use stead_model::HostName;
use stead_model::inventory::{Host, Inventory};

use super::meant;
use crate::args::{PairArgs, SiteArgs};
use crate::commands::site::{self, SiteDir};
use crate::failure::{Failure, FailureKind};
use crate::settings::Settings;

/// The word that means all nodes.
pub(in crate::commands) const ALL: &str = "all";

/// What commands can be run on.
pub(in crate::commands) struct Reached {
    /// The nodes and hosts.
    pub(in crate::commands) inventory: Inventory,
    /// The targets, with the names of nodes instead of `all`.
    pub(in crate::commands) targets: Vec<String>,
    /// What is worth saying.
    pub(in crate::commands) notes: Vec<String>,
}

/// Returns the nodes and hosts that `args` mean, of which `targets` are wanted.
pub(in crate::commands) fn inventory(
    args: &PairArgs,
    targets: &[String],
    settings: &Settings,
) -> Result<Reached, Failure> {
    let Known { nodes, mut hosts, pairs } = Known::of(args, settings)?;
    let mut wanted: Vec<String> = Vec::new();
    for target in targets {
        match target.as_str() {
            ALL => wanted.extend(nodes.keys().map(ToString::to_string)),
            _ => wanted.push(target.clone()),
        }
    }
    if wanted.is_empty() && !targets.is_empty() {
        return Err(
            Failure::new(FailureKind::Invalid, "there are no nodes").hint("`stead create` makes them")
        );
    }
    let hidden: Vec<HostName> = hosts.keys().filter(|name| nodes.contains_key(*name)).cloned().collect();
    hosts.extend(nodes);
    let inventory = Inventory { hosts };
    let chosen = chosen(&wanted, &inventory);
    refuse_ambiguous(chosen.iter().filter_map(|name| pairs.get_key_value(name)))?;
    let hidden = hidden.into_iter().filter(|name| chosen.contains(name));
    let notes = hidden.map(|name| format!("`{name}` is the node of that name, not the host")).collect();
    Ok(Reached { inventory, targets: wanted, notes })
}

/// Returns all nodes and hosts that `args` mean, as hosts that a plan may choose from; a node hides the host of its name.
pub(in crate::commands) fn all(args: &PairArgs, settings: &Settings) -> Result<Inventory, Failure> {
    let Known { nodes, mut hosts, pairs } = Known::of(args, settings)?;
    refuse_ambiguous(pairs.iter())?;
    hosts.extend(nodes);
    Ok(Inventory { hosts })
}

/// The nodes and hosts that are meant.
struct Known {
    nodes: BTreeMap<HostName, Host>,
    hosts: BTreeMap<HostName, Host>,
    /// The pairs of manifest and host that have a node of this name.
    pairs: BTreeMap<HostName, Vec<String>>,
}

impl Known {
    fn of(args: &PairArgs, settings: &Settings) -> Result<Self, Failure> {
        let meant = meant::surroundings(NodesVerb::Destroy, args, &[], settings)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::caused_by(FailureKind::Work, error))?;
        let mut known = Self { nodes: BTreeMap::new(), hosts: BTreeMap::new(), pairs: BTreeMap::new() };
        for (pair, level) in meant.levels {
            let nodes = runtime.block_on(level.reached_nodes());
            let nodes = nodes.map_err(|error| Failure::new(FailureKind::Work, error.message))?;
            for (name, node) in nodes {
                let name = named(name.as_str())?;
                known.pairs.entry(name.clone()).or_default().push(pair.clone());
                known.nodes.insert(name, node);
            }
            for (name, host) in level.reached_hosts() {
                known.hosts.insert(named(&name)?, host);
            }
        }
        Ok(known)
    }
}

/// Returns the hosts of the site that `args` mean, and where it is; none if nobody named one and there is none.
pub(in crate::commands) fn of_site(
    args: &SiteArgs,
    settings: &Settings,
) -> Result<Option<(SiteDir, Inventory)>, Failure> {
    let directory = match site::find(args, settings) {
        Err(_) if args.site.is_none() => return Ok(None),
        found => found?,
    };
    let site = site::load(&directory, Manifests::None)?.site;
    let hosts = reached_hosts(&site, &directory.path, &settings.environment.to_map()).into_iter();
    let hosts = hosts.map(|(name, host)| Ok((named(&name)?, host))).collect::<Result<_, Failure>>()?;
    Ok(Some((directory, Inventory { hosts })))
}

fn named(name: &str) -> Result<HostName, Failure> {
    HostName::parse(name).map_err(|error| Failure::caused_by(FailureKind::Invalid, error))
}

fn refuse_ambiguous<'a>(
    chosen: impl Iterator<Item = (&'a HostName, &'a Vec<String>)>,
) -> Result<(), Failure> {
    let ambiguous = chosen.filter(|(_, pairs)| pairs.len() > 1);
    let told: Vec<String> =
        ambiguous.map(|(name, pairs)| format!("`{name}` is a node of {}", pairs.join(" and of "))).collect();
    if told.is_empty() {
        return Ok(());
    }
    Err(Failure::new(FailureKind::Invalid, told.join("; ")).hint("say which with -M and -H"))
}

/// Returns the hosts that `targets` mean; what is wrong with them is told when they are used.
fn chosen(targets: &[String], inventory: &Inventory) -> Vec<HostName> {
    let exprs: Vec<TargetExpr> = targets.iter().filter_map(|text| TargetExpr::parse(text).ok()).collect();
    resolve(&exprs, &HostSet::from(inventory), "").unwrap_or_default()
}

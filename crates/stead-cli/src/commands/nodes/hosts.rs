//! Nodes and hosts of a site as hosts that commands can be run on.

use std::collections::BTreeMap;

use stead_drivers::nodes::reached_hosts;
use stead_drivers::site::Manifests;
use stead_engine::compile::nodes::NodesVerb;
use stead_engine::target::{HostSet, TargetExpr, resolve};
use stead_model::diagnostic::Place;
use stead_model::inventory::{Host, Inventory};
use stead_model::{Diagnostic, Diagnostics, HostName};

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
}

/// Returns the nodes and hosts that `args` mean, of which `targets` are wanted.
pub(in crate::commands) fn inventory(
    args: &PairArgs,
    targets: &[String],
    settings: &Settings,
) -> Result<Reached, Failure> {
    let known = Known::of(args, settings)?;
    let mut wanted: Vec<String> = Vec::new();
    for target in targets {
        match target.as_str() {
            ALL => wanted.extend(known.nodes.keys().map(ToString::to_string)),
            _ => wanted.push(target.clone()),
        }
    }
    if wanted.is_empty() && !targets.is_empty() {
        return Err(
            Failure::new(FailureKind::Invalid, "there are no nodes").hint("`stead create` makes them")
        );
    }
    let inventory = known.inventory();
    known.refuse_ambiguous(&chosen(&wanted, &inventory))?;
    Ok(Reached { inventory, targets: wanted })
}

/// Returns all nodes and hosts that `args` mean, as hosts that a plan may choose from.
pub(in crate::commands) fn all(args: &PairArgs, settings: &Settings) -> Result<Inventory, Failure> {
    let known = Known::of(args, settings)?;
    let inventory = known.inventory();
    known.refuse_ambiguous(&inventory.hosts.keys().cloned().collect::<Vec<_>>())?;
    Ok(inventory)
}

/// The nodes and hosts that are meant.
struct Known {
    nodes: BTreeMap<HostName, Host>,
    hosts: BTreeMap<HostName, Host>,
    /// The pairs of manifest and host that have a node of this name.
    pairs: BTreeMap<HostName, Vec<String>>,
    site: SiteDir,
}

impl Known {
    fn of(args: &PairArgs, settings: &Settings) -> Result<Self, Failure> {
        let meant = meant::surroundings(NodesVerb::Destroy, args, &[], settings)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::caused_by(FailureKind::Work, error))?;
        let site = site::find(&args.site, settings)?;
        let mut known = Self { nodes: BTreeMap::new(), hosts: BTreeMap::new(), pairs: BTreeMap::new(), site };
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

    fn inventory(&self) -> Inventory {
        let all = self.hosts.iter().chain(&self.nodes);
        Inventory { hosts: all.map(|(name, host)| (name.clone(), host.clone())).collect() }
    }

    /// Refuses names among `chosen` that are several nodes, or a node and a host of the site: each would be either.
    fn refuse_ambiguous(&self, chosen: &[HostName]) -> Result<(), Failure> {
        let nodes = chosen.iter().filter_map(|name| self.pairs.get_key_value(name));
        let several = nodes.clone().filter(|(_, pairs)| pairs.len() > 1);
        let told: Vec<String> = several
            .map(|(name, pairs)| format!("`{name}` is a node of {}", pairs.join(" and of ")))
            .collect();
        if !told.is_empty() {
            let failure = Failure::new(FailureKind::Invalid, told.join("; "));
            return Err(failure.hint("say which with -M and -H"));
        }
        let both = nodes.filter(|(name, _)| self.hosts.contains_key(*name)).map(|(name, pairs)| {
            let message = format!("`{name}` is a node of {} and a host of the site", pairs.join(" and of "));
            let places = ["nodes", "hosts"].map(|folder| format!("{folder}/{name}.yaml"));
            let file = places.iter().find(|place| self.site.path.join(place).is_file()).unwrap_or(&places[1]);
            let place = Place::Named(self.site.shown.join(file).display().to_string());
            Diagnostic::error("reach/duplicate-host", place, message).help("rename one of them")
        });
        let problems = Diagnostics(both.collect());
        if problems.has_errors() { Err(Failure::invalid(problems)) } else { Ok(()) }
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

/// Returns the hosts that `targets` mean; what is wrong with them is told when they are used.
fn chosen(targets: &[String], inventory: &Inventory) -> Vec<HostName> {
    let exprs: Vec<TargetExpr> = targets.iter().filter_map(|text| TargetExpr::parse(text).ok()).collect();
    resolve(&exprs, &HostSet::from(inventory), "").unwrap_or_default()
}

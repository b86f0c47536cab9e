//! Nodes and hosts of a site as hosts that commands can be run on.

use std::collections::BTreeMap;

use stead_engine::compile::nodes::NodesVerb;
use stead_engine::target::{HostSet, TargetExpr, resolve};
use stead_model::HostName;
use stead_model::inventory::{Host, Inventory};

use super::meant;
use crate::args::PairArgs;
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

/// Returns the nodes and hosts that `args` mean.
pub(in crate::commands) fn inventory(
    args: &PairArgs,
    targets: &[String],
    settings: &Settings,
) -> Result<Reached, Failure> {
    let meant = meant::surroundings(NodesVerb::Destroy, args, &[], settings)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::caused_by(FailureKind::Work, error))?;
    let (mut nodes, mut hosts) = (BTreeMap::new(), BTreeMap::new());
    let mut pairs: BTreeMap<HostName, Vec<String>> = BTreeMap::new();
    let named =
        |name: &str| HostName::parse(name).map_err(|error| Failure::caused_by(FailureKind::Invalid, error));
    for (pair, level) in meant.levels {
        let ways = runtime.block_on(level.ways());
        let ways = ways.map_err(|error| Failure::new(FailureKind::Work, error.message))?;
        for (name, way) in ways {
            let name = named(name.as_str())?;
            pairs.entry(name.clone()).or_default().push(pair.clone());
            nodes.insert(name, Host::reached_by(way));
        }
        for (name, way) in level.host_ways() {
            hosts.insert(named(&name)?, Host::reached_by(way));
        }
    }
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
    let ambiguous = chosen.iter().filter_map(|name| pairs.get_key_value(name));
    let ambiguous = ambiguous.filter(|(_, pairs)| pairs.len() > 1);
    let told: Vec<String> =
        ambiguous.map(|(name, pairs)| format!("`{name}` is a node of {}", pairs.join(" and of "))).collect();
    if !told.is_empty() {
        return Err(Failure::new(FailureKind::Invalid, told.join("; ")).hint("say which with -M and -H"));
    }
    let hidden = hidden.into_iter().filter(|name| chosen.contains(name));
    let notes = hidden.map(|name| format!("`{name}` is the node of that name, not the host")).collect();
    Ok(Reached { inventory, targets: wanted, notes })
}

/// Returns the hosts that `targets` mean; what is wrong with them is told when they are used.
fn chosen(targets: &[String], inventory: &Inventory) -> Vec<HostName> {
    let exprs: Vec<TargetExpr> = targets.iter().filter_map(|text| TargetExpr::parse(text).ok()).collect();
    resolve(&exprs, &HostSet::from(inventory), "").unwrap_or_default()
}

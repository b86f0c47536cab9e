//! Nodes and hosts of a site as hosts that commands can be run on.

use std::collections::BTreeMap;

use stead_engine::compile::nodes::NodesVerb;
use stead_model::HostName;
use stead_model::inventory::{Host, Inventory};

use super::meant;
use crate::args::PairArgs;
use crate::failure::{Failure, FailureKind};
use crate::settings::Settings;

/// The word that means all nodes.
const ALL: &str = "all";

/// Returns the nodes and hosts that `args` mean, and `targets` with the names of nodes instead of `all`.
pub(in crate::commands) fn inventory(
    args: &PairArgs,
    targets: &[String],
    settings: &Settings,
) -> Result<(Inventory, Vec<String>), Failure> {
    let levels = meant::surroundings(NodesVerb::Destroy, args, &[], settings)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::caused_by(FailureKind::Work, error))?;
    let (mut nodes, mut hosts) = (BTreeMap::new(), BTreeMap::new());
    let named =
        |name: &str| HostName::parse(name).map_err(|error| Failure::caused_by(FailureKind::Invalid, error));
    for level in levels {
        let ways = runtime.block_on(level.ways());
        let ways = ways.map_err(|error| Failure::new(FailureKind::Work, error.message))?;
        for (name, way) in ways {
            nodes.insert(named(name.as_str())?, Host::reached_by(way));
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
    hosts.extend(nodes);
    Ok((Inventory { hosts }, wanted))
}

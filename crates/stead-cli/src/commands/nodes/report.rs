//! What a node's agent told the server of its level.

use std::time::Duration;

use stead_drivers::nodes::Pairs;
use stead_drivers::server_client::ServerClient;
use stead_model::NodeName;
use stead_model::node::wire::NodeStatus;
use stead_server::ServerPlace;

use super::load;
use crate::args::SiteArgs;
use crate::commands::{reach, site};
use crate::failure::{Failure, FailureKind};
use crate::settings::Settings;

/// Which node of which pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodePlace {
    /// The host of its pair.
    pub(crate) host: String,
    /// The manifest of its pair.
    pub(crate) manifest: String,
    /// Its name.
    pub(crate) node: String,
}

/// Returns what the server of a node's level knows of it, with its reports; none if the level has no server.
pub(crate) fn of_node(
    args: &SiteArgs,
    place: &NodePlace,
    settings: &Settings,
) -> Result<Option<NodeStatus>, Failure> {
    let directory = site::find(args, settings)?;
    let state_dir = settings.state_dir.from(&directory.path).path;
    let path = Pairs::of(&state_dir, &directory.path).state_file(&place.host, &place.manifest);
    let memory = load::remembered(&path, &place.manifest, &place.host)?;
    let Some(port) = memory.look(|state| state.server.as_ref().map(|server| server.port)) else {
        return Ok(None);
    };
    let node = NodeName::parse(&place.node).map_err(|error| Failure::caused_by(FailureKind::Usage, error))?;
    let socket = ServerPlace { site: directory.path, state: state_dir }.socket(port);
    let asked = reach::block_on(ServerClient::socket(socket).node(&node, 0, Duration::ZERO))?;
    asked.map(Some).map_err(|error| {
        Failure::caused_by(FailureKind::Unreachable, error)
            .hint("`stead server status` says whether the server of this site runs")
    })
}

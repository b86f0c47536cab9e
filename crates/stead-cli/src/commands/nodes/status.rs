//! `stead status`: nodes as they are remembered, beside what is there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use stead_drivers::nodes::{Memory, machine_driver, state_file};
use stead_drivers::server_client::ServerClient;
use stead_drivers::site::Manifests;
use stead_engine::nodes::{FindHostError, find_host};
use stead_model::machine::{MachineState, OwnerScope};
use stead_model::node::wire::AgentState;
use stead_model::node::{NodeEntry, NodeStatus};
use stead_model::site::{Site, resolve};
use stead_model::{Diagnostics, ExitCode, NodeName};
use stead_server::ServerPlace;

use super::document;
use crate::args::StatusArgs;
use crate::commands::site;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::json as render_json;
use crate::settings::Settings;

pub(in crate::commands) fn run(
    args: &StatusArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let found = match look(args, settings) {
        Ok(found) => found,
        Err(failure) if args.json => {
            let manifest = args.manifest.manifest.as_deref();
            let told = document::of_failure("status", manifest, args.host.as_deref(), false, &failure);
            output.out.print(&render_json::document(&told));
            return Ok(failure.exit_code());
        }
        Err(failure) => return Err(failure),
    };
    let success = !found.is_empty() && found.iter().all(|row| row["converged"] == true);
    if args.json {
        output
            .out
            .print(&render_json::document(&json!({"verb": "status", "success": success, "nodes": found})));
    } else {
        output.out.print(&to_text(&found));
    }
    Ok(if success { ExitCode::Success } else { ExitCode::Failed })
}

/// Returns a row for every node of every pair that is meant.
fn look(args: &StatusArgs, settings: &Settings) -> Result<Vec<Value>, Failure> {
    let directory = site::find(&args.site, settings)?;
    let state_dir = settings.state_dir.from(&directory.path).path;
    let loaded = site::load(&directory, Manifests::None)?;
    let host = args.host.as_deref().map(|host| find_host(&loaded.site, host)).transpose();
    let host = host.map_err(|error| match error {
        FindHostError::Unknown(problem) => Failure::invalid(Diagnostics(vec![*problem])),
        FindHostError::Broken(problems) => Failure::invalid(problems),
    })?;
    if let Some(name) = args.manifest.manifest.as_ref().filter(|name| !loaded.manifest_names.contains(name))
        && pairs(&state_dir, None, Some(name)).is_empty()
    {
        let message = format!("there is no manifests/{name}.yaml, and no node of it is known");
        return Err(Failure::new(FailureKind::Invalid, message));
    }
    let wanted =
        pairs(&state_dir, host.as_ref().map(|host| host.name.as_str()), args.manifest.manifest.as_deref());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::caused_by(FailureKind::Work, error))?;
    let mut rows = Vec::new();
    for (host, manifest) in wanted {
        let path = state_file(&state_dir, &host, &manifest);
        let memory = Memory::open(path.clone(), &manifest, &host).map_err(|error| {
            Failure::new(FailureKind::Invalid, format!("cannot read {}: {error}", path.display()))
        })?;
        let machines = runtime.block_on(machines(&loaded.site, &state_dir, &host, &manifest, &memory));
        let place = ServerPlace { site: directory.path.clone(), state: state_dir.clone() };
        let port = memory.look(|state| state.server.as_ref().map(|server| server.port));
        let agents = runtime.block_on(agents(port.map(|port| place.socket(port))));
        memory.look(|state| {
            for (name, entry) in &state.nodes {
                let mut row = row(&loaded.site, &manifest, &host, name, entry, &machines);
                row["agent"] = json!(agents.get(name).copied().unwrap_or(AgentState::None));
                rows.push(row);
            }
        });
    }
    Ok(rows)
}

/// Returns the pairs of host and manifest of which something is known, sorted.
pub(super) fn pairs(state_dir: &Path, host: Option<&str>, manifest: Option<&str>) -> Vec<(String, String)> {
    let list = |directory: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_unstable();
        names
    };
    let nodes = state_dir.join("nodes");
    let hosts = list(&nodes).into_iter().filter(|name| host.is_none_or(|host| host == name));
    let mut found = Vec::new();
    for host in hosts {
        let manifests = list(&nodes.join(&host)).into_iter();
        let manifests = manifests.filter(|name| manifest.is_none_or(|manifest| manifest == name));
        found.extend(manifests.map(|manifest| (host.clone(), manifest)));
    }
    found
}

/// What a machine does, by the host it is on and the node's name; none: that host could not be asked.
type Machines = BTreeMap<String, Option<BTreeMap<String, MachineState>>>;

async fn machines(site: &Site, state_dir: &Path, host: &str, manifest: &str, memory: &Memory) -> Machines {
    let mut hosts: Vec<String> =
        memory.look(|state| state.nodes.values().filter_map(|entry| entry.host.clone()).collect());
    hosts.push(host.to_owned());
    hosts.sort_unstable();
    hosts.dedup();
    let scope = OwnerScope::Exactly(format!("{}/{manifest}/{host}", site.settings.value.name));
    let mut found = Machines::new();
    for name in hosts {
        let driver = find_host(site, &name)
            .ok()
            .and_then(|host| machine_driver(&name, &host.host, state_dir, Path::new("stead"), None).ok());
        let listed = match driver {
            Some(driver) => driver.list(&scope).await.ok(),
            None => None,
        };
        let listed = listed.map(|machines| {
            machines.into_iter().map(|machine| (machine.owner.name().to_owned(), machine.state)).collect()
        });
        found.insert(name, listed);
    }
    found
}

/// Returns where the agents of nodes are, as the level's server knows; one that does not answer knows of none.
async fn agents(socket: Option<PathBuf>) -> BTreeMap<NodeName, AgentState> {
    let Some(socket) = socket else { return BTreeMap::new() };
    let known = ServerClient::socket(socket).nodes().await.unwrap_or_default();
    known.into_iter().map(|node| (node.node, node.agent)).collect()
}

fn row(
    site: &Site,
    manifest: &str,
    host: &str,
    name: &NodeName,
    entry: &NodeEntry,
    machines: &Machines,
) -> Value {
    let machine = match (&entry.parent, machines.get(entry.host.as_deref().unwrap_or(host))) {
        // Only the node it is in knows.
        (Some(_), _) | (None, None | Some(None)) => "unknown",
        (None, Some(Some(machines))) => match machines.get(name.as_str()) {
            None => "absent",
            Some(state) if state.is_live() => "running",
            Some(_) => "stopped",
        },
    };
    let wanted = entry.spec.as_ref().map(|spec| resolve(site, spec, name).map(|spec| spec.digest()));
    let is_current = match wanted {
        None => true,
        Some(Ok(digest)) => entry.spec_digest.as_ref() == Some(&digest),
        Some(Err(_)) => false,
    };
    let is_there = machine == "running" || (machine == "unknown" && entry.parent.is_some());
    let mut row = serde_json::to_value(entry).unwrap_or_default();
    row["name"] = json!(name);
    row["manifest"] = json!(manifest);
    row["on"] = json!(host);
    row["machine"] = json!(machine);
    row["converged"] = json!(is_there && is_current && entry.status == NodeStatus::Completed);
    row
}

fn to_text(rows: &[Value]) -> String {
    if rows.is_empty() {
        return "no nodes\n".to_owned();
    }
    let mut text = String::new();
    for row in rows {
        let field = |key: &str| row[key].as_str().unwrap_or("-");
        let converged = if row["converged"] == true { "converged" } else { "not converged" };
        text.push_str(&format!(
            "  {} {} on {}: {}, machine {}, {} {converged}",
            field("name"),
            field("manifest"),
            field("on"),
            field("status"),
            field("machine"),
            field("mode")
        ));
        if let Some(error) = row["error"].as_str() {
            text.push_str(&format!(": {}", crate::render::one_line(error)));
        }
        text.push('\n');
    }
    text
}

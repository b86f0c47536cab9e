//! `stead status`: nodes as they are remembered, beside what is there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use stead_drivers::nodes::{MachineSeen, Pairs, SeenBelow, machine_driver};
use stead_drivers::server_client::ServerClient;
use stead_drivers::site::Manifests;
use stead_engine::compile::nodes::NodesVerb;
use stead_engine::nodes::{FindHostError, SelectError, check_known, find_host, means};
use stead_model::diagnostic::Place;
use stead_model::machine::OwnerScope;
use stead_model::node::wire::{self, AgentState};
use stead_model::node::{NodeEntry, NodeStatus, NodesState};
use stead_model::site::manifest::{Mode, NodeType};
use stead_model::site::{Site, resolve};
use stead_model::time::Timestamp;
use stead_model::{Diagnostic, Diagnostics, ExitCode, NodeName};
use stead_runner::machine::MachineDriver;
use stead_server::ServerPlace;
use tokio::runtime::Runtime;

use super::{document, load, meant, only_looks};
use crate::args::{ManifestArgs, PairArgs, SelectArgs, StatusArgs};
use crate::commands::{manifest, site, validate};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::json as render_json;
use crate::settings::Settings;

/// The code of nodes that are not what they should be, where there is no better one.
const NOT_CONVERGED: &str = "node/verification";

pub(in crate::commands) fn run(
    args: &StatusArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let found = only_looks::check(&args.act, settings, output).and_then(|()| look(args, settings));
    let found = found.map_err(|failure| {
        let manifest = args.manifest.manifest.as_deref();
        let told = document::of_failure("status", manifest, args.host.as_deref(), args.act.dry_run, &failure);
        failure.shown_as(told)
    })?;
    let problems = problems(&found);
    let Found { rows, notes, unread, .. } = found;
    let success = problems.0.is_empty() && !rows.is_empty();
    unread.iter().for_each(|problem| output.err.print_line(problem));
    if args.json {
        let mut told = json!({"verb": "status", "success": success, "nodes": rows});
        if !success {
            let first = problems.iter().find(|_| !unread.is_empty());
            let code = first.map_or(NOT_CONVERGED, |problem| problem.code);
            let message = match (first, rows.len()) {
                (Some(problem), _) => problem.message.clone(),
                (None, 0) => "no node is known".to_owned(),
                (None, all) => format!("{} of {all} nodes are not converged", problems.0.len()),
            };
            told["error"] = json!({"code": code, "message": message});
            told["diagnostics"] = problems.iter().map(validate::row).collect();
        }
        output.out.print(&render_json::document(&told));
    } else {
        only_looks::shown(&args.act, output).print(&to_text(&rows, &notes));
    }
    Ok(if success { ExitCode::Success } else { ExitCode::Failed })
}

/// Returns why not all is well: first the pairs that cannot be read, then the nodes that are not converged.
fn problems(found: &Found) -> Diagnostics {
    let unread = found.unread.iter().map(|why| {
        Diagnostic::error(FailureKind::Invalid.code(), Place::Named("state".to_owned()), why.clone())
    });
    let open = found.rows.iter().zip(&found.notes).filter(|(row, _)| row["converged"] != true);
    let open = open.map(|(row, note)| {
        let (code, why) = why_not(row, note.is_current);
        let text = |key: &str| row[key].as_str().unwrap_or_default();
        let place = Place::Named(format!("{} on {}", text("manifest"), text("on")));
        Diagnostic::error(code.unwrap_or(NOT_CONVERGED), place, format!("{}: {why}", text("name")))
    });
    Diagnostics(unread.chain(open).collect())
}

/// Returns what is known of nodes, as the page in a browser and the screen want it: with why a node is not converged, when
/// its agent was last heard of, and which manifests there are.
pub(crate) fn document(args: &StatusArgs, settings: &Settings) -> Result<Value, Failure> {
    let Found { mut rows, unread, manifests, notes } = look(args, settings)?;
    for (row, note) in rows.iter_mut().zip(notes) {
        if row["converged"] != true {
            let (code, why) = why_not(row, note.is_current);
            (row["code"], row["why"]) = (json!(code), json!(why));
        }
        row["last_seen"] = json!(note.last_seen);
    }
    Ok(json!({"nodes": rows, "problems": unread, "manifests": manifests}))
}

/// Returns why a node is not converged: a code that `stead explain` knows, if there is one, and a sentence.
fn why_not(row: &Value, is_current: bool) -> (Option<&'static str>, String) {
    let said = |text: &str| text.to_owned();
    let error = row["error"].as_str().map(crate::render::one_line);
    match (row["status"].as_str().unwrap_or_default(), row["machine"].as_str().unwrap_or_default()) {
        ("failed", _) => (Some("node/failed"), error.unwrap_or_else(|| said("it failed"))),
        ("skipped", _) => (None, error.unwrap_or_else(|| said("it was left out"))),
        ("pending", _) => (None, said("nobody has made it yet: `stead create` does")),
        ("destroyed", _) => (None, said("it was removed, as was asked for")),
        (_, "foreign") => (Some("node/conflict"), said("there is a machine that is somebody else's")),
        ("running", _) => (None, said("a run works on it, or was ended in the middle of that")),
        (_, "absent") => (Some("node/gone"), said("its machine is not there any more")),
        (_, "stopped") => (None, said("its machine does not run: `stead create` starts it")),
        (_, "unknown") => (Some("node/unreachable"), said("nobody could be asked about its machine")),
        _ if !is_current => (
            Some("node/verification"),
            said("its spec says something else since: `stead create` configures it"),
        ),
        _ => (None, error.unwrap_or_else(|| said("it is not known why"))),
    }
}

/// What is known of nodes.
struct Found {
    /// A row for every node of every pair that is meant.
    rows: Vec<Value>,
    /// What else is known of each of them.
    notes: Vec<Note>,
    /// Pairs whose file cannot be read, and why.
    unread: Vec<String>,
    /// The manifests of the site.
    manifests: Vec<String>,
}

/// What is known of a node beyond its row.
struct Note {
    /// Whether the spec in force on it is the one of the site.
    is_current: bool,
    /// When its agent was last heard of.
    last_seen: Option<Timestamp>,
}

fn look(args: &StatusArgs, settings: &Settings) -> Result<Found, Failure> {
    let directory = site::find(&args.site, settings)?;
    let state_dir = settings.state_dir.from(&directory.path).path;
    let pairs = Pairs::of(&state_dir, &directory.path);
    let manifests = args.manifest.manifest.as_deref().map_or(Manifests::None, Manifests::One);
    let loaded = site::load(&directory, manifests)?;
    let host = args.host.as_deref().map(|host| find_host(&loaded.site, host)).transpose();
    let host = host.map_err(|error| match error {
        FindHostError::Unknown(problem) => Failure::invalid(Diagnostics(vec![*problem])),
        FindHostError::Broken(problems) => Failure::invalid(problems),
    })?;
    if let Some(name) = args.manifest.manifest.as_ref().filter(|name| !loaded.manifest_names.contains(name))
        && pairs.known(None, Some(name)).is_empty()
    {
        let message = format!("there is no manifests/{name}.yaml, and no node of it is known");
        return Err(Failure::unknown_name(FailureKind::Invalid, message));
    }
    let (name, described) = described(args, &loaded.site, &loaded.manifest_names, settings)?;
    let mut wanted = pairs.known(host.as_ref().map(|host| host.name.as_str()), name.as_deref());
    if let (Some(host), Some(name), true) = (&host, name, wanted.is_empty() && described.is_some()) {
        wanted.push((host.name.clone(), name));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::caused_by(FailureKind::Work, error))?;
    let is_one = args.host.is_some() && args.manifest.manifest.is_some();
    let manifests = loaded.manifest_names.clone();
    let mut found = Found { rows: Vec::new(), notes: Vec::new(), unread: Vec::new(), manifests };
    let mut names: BTreeSet<NodeName> = BTreeSet::new();
    for (host, manifest) in wanted {
        let path = pairs.state_file(&host, &manifest);
        let memory = match load::remembered(&path, &manifest, &host) {
            Ok(memory) => memory,
            Err(failure) if is_one => return Err(failure),
            // The others are what they are.
            Err(failure) => {
                found.unread.push(failure.message());
                continue;
            }
        };
        let mut state = memory.look(Clone::clone);
        names.extend(state.nodes.keys().cloned());
        let mut means: Box<dyn Fn(&NodeName) -> bool> = Box::new(remembered(&args.select, &state));
        if let Some(described) = &described {
            let asked = meant::asked(described.clone(), host.clone(), args.select.clone(), args.site.clone());
            match load::known(NodesVerb::Create, &asked, settings) {
                Ok(wanted) => means = Box::new(add_unmade(&mut state, wanted)),
                Err(failure) if !state.nodes.is_empty() && args.select.only.is_empty() => {
                    found.unread.push(failure.message());
                }
                Err(failure) => return Err(failure),
            }
        }
        let mut seen = Seen::default();
        let mut port = None;
        if !args.act.dry_run {
            seen.machines = runtime.block_on(machines(&loaded.site, &state_dir, &host, &manifest, &state));
            seen.below = below(args, (&host, &manifest), &state, &seen, &runtime, settings);
            port = state.server.as_ref().map(|server| server.port);
        }
        let place = ServerPlace { site: directory.path.clone(), state: state_dir.clone() };
        let agents = runtime.block_on(agents(port.map(|port| place.socket(port))));
        let mode = args.select.mode.map(Mode::from);
        for (name, entry) in state.nodes.iter().filter(|(name, _)| means(name)) {
            let is_current = is_current(&loaded.site, name, entry);
            let machine = match entry.machine_id.is_none() && args.act.dry_run {
                // Known without asking: nobody made it.
                true => MachineSeen::Absent,
                false => seen.machine(&host, name, &state),
            };
            let mut row = row(&manifest, &host, name, entry, machine, is_current);
            let known = agents.get(name);
            let agent = seen.agent(name).or(known.map(|known| known.agent)).unwrap_or(AgentState::None);
            row["agent"] = json!(agent);
            found.notes.push(Note { is_current, last_seen: known.and_then(|known| known.last_seen) });
            if mode.is_some_and(|mode| mode != entry.mode) {
                row["converged"] = json!(false);
            }
            found.rows.push(row);
        }
    }
    if described.is_none() && found.unread.is_empty() {
        refuse_unknown(&args.select, &names, found.rows.is_empty())?;
    }
    Ok(found)
}

/// Returns which nodes are meant where no manifest says which there are: those that are remembered under such a name.
fn remembered(select: &SelectArgs, state: &NodesState) -> impl Fn(&NodeName) -> bool + use<> {
    let is_near = |name: &NodeName| select.depth.is_none_or(|depth| state.level_of(name) <= depth);
    let chosen = state.nodes.keys().filter(|name| means(&select.only, name.as_str()) && is_near(name));
    let chosen: BTreeSet<NodeName> = chosen.cloned().collect();
    move |name| chosen.contains(name)
}

/// Refuses names of nodes that nobody knows, as of a manifest that does not have them.
fn refuse_unknown(select: &SelectArgs, known: &BTreeSet<NodeName>, is_empty: bool) -> Result<(), Failure> {
    if known.is_empty() || select.only.is_empty() {
        return Ok(());
    }
    let refused = |error: SelectError| Failure::invalid(Diagnostics(vec![validate::no_selection(&error)]));
    check_known(&select.only, known.iter().map(NodeName::as_str)).map_err(refused)?;
    match select.depth.filter(|_| is_empty) {
        Some(depth) => Err(refused(SelectError::Deeper { only: select.only.join(","), depth })),
        None => Ok(()),
    }
}

/// Returns the name of the manifest that is meant, and how it is loaded if it is there.
fn described(
    args: &StatusArgs,
    site: &Site,
    names: &[String],
    settings: &Settings,
) -> Result<(Option<String>, Option<ManifestArgs>), Failure> {
    if !manifest::has_own(&args.manifest) {
        let name = args.manifest.manifest.clone();
        let is_there = name.as_ref().is_some_and(|name| names.contains(name));
        return Ok((name, is_there.then(|| args.manifest.clone())));
    }
    let entry = manifest::find(&args.manifest, site, names, settings)?.unwrap_or_default();
    if entry.is_broken() {
        return Err(Failure::invalid(entry.diagnostics));
    }
    // Read once: it may come from standard input.
    let text = entry.source.as_ref().map(|source| source.text.to_string());
    let given = ManifestArgs { manifest_json: text, ..ManifestArgs::default() };
    Ok((entry.value.name.map(|name| name.to_string()), Some(given)))
}

/// Adds the nodes to `state` that the manifest has and nobody made. Returns which nodes are meant.
fn add_unmade(state: &mut NodesState, wanted: load::Loaded) -> impl Fn(&NodeName) -> bool + use<> {
    let forest = Arc::clone(&wanted.forest);
    for (index, node) in forest.nodes.iter().enumerate() {
        let written = wanted.manifest.nodes.get(node.written);
        let (Some(written), Some(checked)) = (written, wanted.checked.nodes.get(index)) else { continue };
        state.nodes.entry(node.name.clone()).or_insert_with(|| {
            let kind = written.kind.as_ref().map_or(NodeType::Vm, |kind| kind.value);
            let driver = checked.driver.unwrap_or_else(|| wanted.host.host.driver());
            let mut entry = NodeEntry::new(kind, driver, checked.modes.config);
            entry.host = written.host.as_ref().map(|host| host.value.clone());
            entry.parent = node.parent.map(|parent| forest.nodes[parent].name.clone());
            entry.spec = written.spec.as_ref().map(|spec| spec.value.clone());
            entry
        });
    }
    let depth_is_free = wanted.selection.selected.iter().all(|selected| *selected);
    move |name: &NodeName| match forest.named(name.as_str()) {
        Some(range) => range.clone().all(|index| wanted.selection.selected.get(index) == Some(&true)),
        None => depth_is_free || (!wanted.only.is_empty() && wanted.means(name)),
    }
}

/// What a machine does, by the host it is on and the node's name; none: that host could not be asked.
type Machines = BTreeMap<String, Option<BTreeMap<String, MachineSeen>>>;

/// What is seen of the nodes of a pair.
#[derive(Default)]
struct Seen {
    /// Of those of this level.
    machines: Machines,
    /// Of those that this level did not make, as told by who did; none: it did not answer.
    below: SeenBelow,
}

impl Seen {
    /// Returns what the machine of a node does.
    fn machine(&self, host: &str, name: &NodeName, state: &NodesState) -> MachineSeen {
        let Some(root) = state.root_of(name) else { return MachineSeen::Unknown };
        let on = state.nodes.get(root).and_then(|entry| entry.host.as_deref()).unwrap_or(host);
        if let Some(told) = self.below.hosts.get(on) {
            return told.get(name).map_or(MachineSeen::Absent, |seen| seen.machine);
        }
        let of_root = match self.machines.get(on) {
            None | Some(None) => MachineSeen::Unknown,
            Some(Some(machines)) => machines.get(root.as_str()).copied().unwrap_or(MachineSeen::Absent),
        };
        match of_root {
            _ if root == name => of_root,
            // What is in a machine runs no longer than it does.
            MachineSeen::Absent | MachineSeen::Stopped | MachineSeen::Foreign => of_root,
            MachineSeen::Running | MachineSeen::Unknown => match self.below.nodes.get(root) {
                None => MachineSeen::Unknown,
                Some(told) => told.get(name).map_or(MachineSeen::Absent, |seen| seen.machine),
            },
        }
    }

    /// Returns where the agent of a node is that this level did not make.
    fn agent(&self, name: &NodeName) -> Option<AgentState> {
        let mut told = self.below.nodes.values().chain(self.below.hosts.values());
        told.find_map(|told| told.get(name)).map(|seen| seen.agent)
    }
}

/// Asks what the nodes that this level did not make do.
fn below(
    args: &StatusArgs,
    (host, manifest): (&str, &str),
    state: &NodesState,
    seen: &Seen,
    runtime: &Runtime,
    settings: &Settings,
) -> SeenBelow {
    let is_unasked = |host: &str| matches!(seen.machines.get(host), None | Some(None));
    let is_below = |entry: &NodeEntry| {
        let was_made = entry.machine_id.is_some();
        was_made && (entry.parent.is_some() || is_unasked(entry.host.as_deref().unwrap_or(host)))
    };
    if !state.nodes.values().any(is_below) {
        return SeenBelow::default();
    }
    let pair = PairArgs {
        manifest: Some(manifest.to_owned()),
        // As it was named: with its user.
        host: args.host.clone().or_else(|| Some(host.to_owned())),
        site: args.site.clone(),
    };
    // Without what it takes to reach them nothing is known of them, which is an answer too.
    let meant = meant::surroundings(NodesVerb::Destroy, &pair, &[], settings).unwrap_or_default();
    let may_run = |name: &NodeName| {
        matches!(seen.machine(host, name, state), MachineSeen::Running | MachineSeen::Unknown)
    };
    let level = meant.levels.into_iter().next();
    level.map(|(_, level)| runtime.block_on(level.seen_below(may_run))).unwrap_or_default()
}

async fn machines(site: &Site, state_dir: &Path, host: &str, manifest: &str, state: &NodesState) -> Machines {
    let mut hosts: Vec<String> = state.nodes.values().filter_map(|entry| entry.host.clone()).collect();
    hosts.push(host.to_owned());
    hosts.sort_unstable();
    hosts.dedup();
    let scope = OwnerScope::Exactly(format!("{}/{manifest}/{host}", site.settings.value.name));
    let mut found = Machines::new();
    for name in hosts {
        let driver = find_host(site, &name)
            .ok()
            // It knows its machines itself.
            .filter(|host| !load::is_other_machine(&host.host))
            .and_then(|host| {
                let secrets = &site.secrets.value;
                machine_driver(&name, &host.host, secrets, state_dir, Path::new("stead"), None).ok()
            });
        let listed = match driver {
            Some(driver) => seen_by(&*driver, &scope, state).await,
            None => None,
        };
        found.insert(name, listed);
    }
    found
}

/// Returns what the machines of `scope` do, by node, and which of those that are remembered are somebody else's; none if
/// they could not be asked for.
async fn seen_by(
    driver: &dyn MachineDriver,
    scope: &OwnerScope,
    state: &NodesState,
) -> Option<BTreeMap<String, MachineSeen>> {
    let mut seen = BTreeMap::new();
    let mut own = BTreeSet::new();
    for machine in driver.list(scope).await.ok()? {
        let does = if machine.state.is_live() { MachineSeen::Running } else { MachineSeen::Stopped };
        seen.insert(machine.owner.name().to_owned(), does);
        own.insert((machine.owner.name().to_owned(), machine.id));
    }
    for (name, entry) in &state.nodes {
        // One that is remembered and carries another label is somebody else's.
        if let Some(id) = &entry.machine_id
            && !own.contains(&(name.to_string(), id.clone()))
            && let Ok(Some(machine)) = driver.inspect(id).await
            && !(scope.covers(&machine.owner) && machine.owner.name() == name.as_str())
        {
            seen.insert(name.to_string(), MachineSeen::Foreign);
        }
    }
    Some(seen)
}

/// Returns where the agents of nodes are, as the level's server knows; one that does not answer knows of none.
async fn agents(socket: Option<PathBuf>) -> BTreeMap<NodeName, wire::NodeStatus> {
    let Some(socket) = socket else { return BTreeMap::new() };
    let known = ServerClient::socket(socket).nodes().await.unwrap_or_default();
    known.into_iter().map(|node| (node.node.clone(), node)).collect()
}

/// Whether the spec in force on a node is the one of the site.
fn is_current(site: &Site, name: &NodeName, entry: &NodeEntry) -> bool {
    let wanted = entry.spec.as_ref().map(|spec| resolve(site, spec, name).map(|spec| spec.digest()));
    match wanted {
        None => true,
        Some(Ok(digest)) => entry.spec_digest.as_ref() == Some(&digest),
        Some(Err(_)) => false,
    }
}

fn row(
    manifest: &str,
    host: &str,
    name: &NodeName,
    entry: &NodeEntry,
    machine: MachineSeen,
    is_current: bool,
) -> Value {
    let is_there = machine == MachineSeen::Running;
    let mut row = serde_json::to_value(entry).unwrap_or_default();
    row["name"] = json!(name);
    row["manifest"] = json!(manifest);
    row["on"] = json!(host);
    row["machine"] = json!(machine);
    row["converged"] = json!(is_there && is_current && entry.status == NodeStatus::Completed);
    row
}

/// Returns a line for each node; one that is not converged says why, and where that is known what to do.
fn to_text(rows: &[Value], notes: &[Note]) -> String {
    if rows.is_empty() {
        return "no nodes are known: `stead create -M MANIFEST -H HOST` makes some\n".to_owned();
    }
    let mut text = String::new();
    for (row, note) in rows.iter().zip(notes) {
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
        let error = row["error"].as_str().map(crate::render::one_line);
        let why = (row["converged"] != true).then(|| why_not(row, note.is_current).1);
        let error = error.filter(|error| why.as_ref() != Some(error));
        for told in why.into_iter().chain(error) {
            text.push_str(&format!(": {told}"));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use stead_model::explain;

    use super::*;

    #[test]
    fn a_node_that_is_not_converged_says_why_with_a_code_that_is_explained() {
        let told = |status: &str, machine: &str, is_current| {
            let row = json!({"status": status, "machine": machine, "error": "no space\nleft"});
            why_not(&row, is_current)
        };
        assert_eq!(told("failed", "running", true), (Some("node/failed"), "no space | left".to_owned()));
        for (status, machine, is_current, code) in [
            ("completed", "absent", true, Some("node/gone")),
            ("completed", "foreign", true, Some("node/conflict")),
            ("completed", "unknown", true, Some("node/unreachable")),
            ("completed", "running", false, Some("node/verification")),
            ("completed", "stopped", true, None),
            ("pending", "absent", true, None),
            ("running", "running", true, None),
            ("destroyed", "absent", true, None),
        ] {
            let (found, why) = told(status, machine, is_current);
            assert_eq!(found, code, "{status} {machine}");
            assert!(!why.is_empty() && found.is_none_or(|code| explain::find(code).len() == 1), "{why}");
        }
    }

    #[test]
    fn the_text_says_why_and_what_to_do_once() {
        let row = |status: &str, converged: bool, error: Option<&str>| {
            json!({"name": "one", "manifest": "m", "on": "local", "status": status, "machine": "running",
                "mode": "push", "converged": converged, "error": error})
        };
        let text = |row: Value, is_current| to_text(&[row], &[Note { is_current, last_seen: None }]);
        let begin = "  one m on local: completed, machine running, push";
        assert_eq!(text(row("completed", true, None), true), format!("{begin} converged\n"));
        let stale = "its spec says something else since: `stead create` configures it";
        assert_eq!(text(row("completed", false, None), false), format!("{begin} not converged: {stale}\n"));
        let failed = text(row("failed", false, Some("no space\nleft")), true);
        assert!(failed.ends_with("push not converged: no space | left\n"), "{failed}");
        let both = text(row("completed", false, Some("no space")), false);
        assert!(both.ends_with(&format!("{stale}: no space\n")), "{both}");
    }
}

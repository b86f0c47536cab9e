//! What the built-in kit does that a kit file cannot say.

use std::collections::BTreeSet;

use serde_json::Value;
use stead_model::Diagnostics;
use stead_model::run_manifest::{ArgForm, CIPDIP, Kit, KitRole, RoleForm};
use stead_model::run_plan::{Arg, RunWarning};
use stead_model::yaml::{self, Node};

use super::roles::FileWish;
use super::texts::{Here, escape};
use super::{BAD_VALUE, MISSING, RunInputs, command, paths, warning};

/// The role that talks.
const CLIENT: &str = "client";
/// The role that listens.
const SERVER: &str = "server";
/// What it listens on.
pub(super) const LISTEN_IP: &str = "network.data_plane.server_listen_ip";

/// Whether a role is one of the built-in kit.
pub(super) fn is_one(kit: Option<(&Kit, &KitRole)>) -> bool {
    kit.is_some_and(|(kit, _)| kit.name == CIPDIP)
}

/// Whether a role is a client of the built-in kit.
pub(super) fn is_client(kit: Option<(&Kit, &KitRole)>) -> bool {
    kit.is_some_and(|(kit, role)| kit.name == CIPDIP && role.name == CLIENT)
}

/// What the kit adds to an instance.
#[derive(Default)]
pub(super) struct Extras {
    /// The names `pcap` and `duration_seconds`.
    pub(super) names: Vec<(String, Value)>,
    /// The flags of `args`.
    pub(super) args: Vec<Arg>,
    /// Configurations that are staged.
    pub(super) files: Vec<FileWish>,
    /// The capture that is collected.
    pub(super) capture: Option<String>,
}

/// Refuses what a role of the kit cannot do without.
pub(super) fn check(inputs: &RunInputs<'_>, form: &RoleForm<'_>, kit_role: &str, problems: &mut Diagnostics) {
    let mut missing = |key: &str, message: &str, help: &str| {
        let path = format!("{}.{key}", form.key.path());
        problems.push(form.key.error(MISSING, message).path(path).help(help));
    };
    let is_flagged = |name: &str| inputs.agents.iter().any(|flag| flag.name == name);
    if form.agent.is_none() && !is_flagged(form.key.as_text().unwrap_or_default()) {
        missing(
            "agent",
            "a role of kit `cipdip` needs `agent`",
            "write `agent: local`, an agent's id or a transport",
        );
    }
    if kit_role == CLIENT && form.duration_seconds.is_none() && form.node.get("duration_seconds").is_none() {
        missing(
            "duration_seconds",
            "a `client` of kit `cipdip` needs `duration_seconds`",
            "write how long it talks, more than 0",
        );
    }
    let network = &inputs.manifest.network;
    if kit_role == SERVER && network.server_listen_ip.is_none() {
        let root = inputs.manifest.tree().root();
        let plane = root.get("network").and_then(|network| network.get("data_plane"));
        // One that is written and faulty has been reported.
        if plane.and_then(|plane| plane.get("server_listen_ip")).is_none() {
            let message = "a `server` of kit `cipdip` needs `network.data_plane.server_listen_ip`";
            let problem = plane.unwrap_or(root).error(MISSING, message);
            problems.push(problem.path(LISTEN_IP).help("write the address it listens on"));
        }
    }
}

/// Refuses values of a client that do not go together.
pub(super) fn check_client(
    form: &RoleForm<'_>,
    fields: &serde_json::Map<String, Value>,
    problems: &mut Diagnostics,
) {
    let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
    if let Some(node) = form.node.get("scenario").filter(|node| node.as_text() == Some("")) {
        problems.push(node.bad("must not be empty").help("name a scenario, or `profile`"));
    }
    if text("scenario") == "profile" && text("profile_role").is_empty() {
        let path = format!("{}.profile_role", form.key.path());
        let node = form.node.get("profile_role").or_else(|| form.node.get("scenario")).unwrap_or(form.key);
        let problem = node.error(MISSING, "scenario `profile` needs `profile_role`");
        problems.push(problem.path(path).help("say which role of the profile it plays"));
    }
}

/// Returns the command of a client without the flags that do not go with its scenario.
pub(super) fn by_scenario<'t>(command: &[ArgForm<'t>], scenario: Option<&str>) -> Vec<ArgForm<'t>> {
    let left_out: &[&str] =
        if scenario == Some("profile") { &["--scenario"] } else { &["--profile", "--role"] };
    let stays = |item: &&ArgForm<'t>| match item {
        ArgForm::Flag { flag, .. } => !left_out.contains(&flag.as_text().unwrap_or_default()),
        ArgForm::Text(_) => true,
    };
    command.iter().filter(stays).copied().collect()
}

/// Returns what the kit adds to the instance `name` of the role of `form`.
pub(super) fn extras(
    here: &Here<'_>,
    name: &str,
    kit_role: &str,
    form: &RoleForm<'_>,
    problems: &mut Diagnostics,
) -> Extras {
    let mut extras = Extras::default();
    let mut own: BTreeSet<String> = command::own_flags(&form.command);
    own.insert("--duration-seconds".to_owned());
    let mut has_config = false;
    for (key, value) in &form.args {
        match key.as_text().unwrap_or_default() {
            "pcap" => extras.capture = capture(here, name, *value, problems),
            given @ ("config" | "server_config") => {
                let is_own = (given == "server_config") == (kit_role == SERVER);
                if let Some(file) = config(here, *value, problems) {
                    has_config |= is_own;
                    extras.args.extend(
                        [command::flag_of(given), file.to.clone()].map(|text| Arg::Text(escape(&text))),
                    );
                    extras.files.push(file);
                }
            }
            _ => extras.args.extend(command::args(here, &[(*key, *value)], &own, problems)),
        }
    }
    if !has_config {
        let usual = format!("cipdip_{kit_role}.yaml");
        extras.files.push(FileWish {
            from: usual.clone(),
            to: usual,
            mode: None,
            place: form.key.place(),
            path: form.key.path(),
            is_optional: true,
        });
    }
    extras.names = vec![
        ("pcap".to_owned(), extras.capture.clone().unwrap_or_default().into()),
        ("duration_seconds".to_owned(), form.duration_seconds.map_or(Value::Null, Value::from)),
    ];
    extras
}

/// Returns the file that a client or server captures into.
fn capture(here: &Here<'_>, name: &str, node: Node<'_>, problems: &mut Diagnostics) -> Option<String> {
    match node.value() {
        yaml::Value::Bool(true) => return Some(format!("{name}.pcap")),
        yaml::Value::Bool(false) | yaml::Value::Null | yaml::Value::Text("") => return None,
        yaml::Value::Text(_) => {}
        yaml::Value::Number(_) | yaml::Value::List(_) | yaml::Value::Map(_) => {
            let message = format!("expected true or the name of a file, found {}", node.describe());
            problems.push(node.bad(message));
            return None;
        }
    }
    let file = here.known_text(node, problems)?;
    let refused = paths::refuse_artifact(&file).or_else(|| {
        let is_pattern = file.contains(['*', '?', '[', '\\']);
        is_pattern.then(|| format!("`{file}` is a pattern: name one file"))
    });
    match refused {
        None => Some(file),
        Some(message) => {
            problems.push(node.error(BAD_VALUE, message));
            None
        }
    }
}

/// Returns the configuration that is staged.
fn config(here: &Here<'_>, node: Node<'_>, problems: &mut Diagnostics) -> Option<FileWish> {
    match node.value() {
        yaml::Value::Bool(false) | yaml::Value::Null | yaml::Value::Text("") => return None,
        yaml::Value::Text(_) => {}
        yaml::Value::Bool(true) | yaml::Value::Number(_) | yaml::Value::List(_) | yaml::Value::Map(_) => {
            problems.push(node.bad(format!("expected the name of a file, found {}", node.describe())));
            return None;
        }
    }
    let from = here.known_text(node, problems)?;
    let to = paths::last_part(&from);
    let Some(to) = to.map(str::to_owned) else {
        problems.push(node.error(BAD_VALUE, format!("`{from}` names no file")));
        return None;
    };
    Some(FileWish { from, to, mode: None, place: node.place(), path: node.path(), is_optional: false })
}

/// Returns what a person should know of a client with an address of its own.
pub(super) fn bind_warning(name: &str, ip: core::net::IpAddr) -> RunWarning {
    let text = format!(
        "`network.data_plane.client_bind_ip` ({ip}) is checked and recorded, but not passed on: the `cipdip` client has no \
         flag for it"
    );
    warning("run/kit-field-not-passed", text, Some(name))
}

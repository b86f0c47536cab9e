//! The roles of a manifest, completed by kits and agents, instance by instance.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use stead_model::diagnostic::{Place, suggest};
use stead_model::inventory::Host;
use stead_model::plan::Digest;
use stead_model::run_manifest::{
    DEFAULT_INCLUDE, Kit, KitRole, NeedsForm, Network, RoleEntry, RoleForm, keys,
};
use stead_model::run_plan::{ArtifactPlan, Distribution, KitUse, RoleKind, RolePlan, RunWarning, Until};
use stead_model::yaml::{self, Node};
use stead_model::{Diagnostics, HostName, RunManifest, TransportSpec};

use super::super::vars::{self, Declarations, Resolved};
use super::agents::{Agents, Found};
use super::instances::{self, Instance};
use super::render::Before;
use super::texts::{Here, Kept, Names, Spot};
use super::{
    BAD_VALUE, CYCLE, DUPLICATE_ROLE, MISSING, RunInputs, UNKNOWN_AGENT, UNKNOWN_KIT, UNKNOWN_ROLE, cipdip,
    command, fields, paths, ready,
};

/// The roles of a run.
#[derive(Debug)]
pub(super) struct Roles<'a> {
    /// Values of variables and environment.
    pub(super) resolved: Resolved,
    /// `network`, defaults filled in.
    pub(super) network: Value,
    /// What is written of the roles.
    pub(super) written: Vec<Written<'a>>,
    /// The agents they run on.
    pub(super) agents: BTreeMap<HostName, Host>,
    /// Their instances, in the order in which they start.
    pub(super) instances: Vec<Draft>,
    /// What ends the run.
    pub(super) until: Until,
    /// The kits they are made by.
    pub(super) kits: BTreeMap<String, Digest>,
    /// What a person should know.
    pub(super) warnings: Vec<RunWarning>,
}

/// A role as it is written.
#[derive(Debug)]
pub(super) struct Written<'a> {
    pub(super) entry: &'a RoleEntry,
    /// None: it is faulty, which has been reported.
    pub(super) form: Option<RoleForm<'a>>,
    pub(super) kit: Option<(&'a Kit, &'a KitRole)>,
    pub(super) agent: Option<Found>,
}

impl Written<'_> {
    fn kind(&self) -> RoleKind {
        self.form.as_ref().map_or(RoleKind::Task, |form| form.kind)
    }
}

/// An instance whose files have not been looked at.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) name: String,
    pub(super) plan: RolePlan,
    pub(super) files: Vec<FileWish>,
}

/// A file that is to be staged.
#[derive(Clone, Debug)]
pub(super) struct FileWish {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) mode: Option<u32>,
    pub(super) place: Place,
    pub(super) path: String,
    /// Whether it is staged only if it is there.
    pub(super) is_optional: bool,
}

/// Returns the roles of a run, problems added to `problems`.
pub(super) fn read<'a>(inputs: &RunInputs<'a>, problems: &mut Diagnostics) -> Roles<'a> {
    let manifest = inputs.manifest;
    let declarations = Declarations { tree: manifest.tree(), vars: &manifest.vars, env: &manifest.env };
    let resolved = vars::resolve(declarations, inputs.given, problems);
    let network = network(&manifest.network);
    let written = written(inputs, problems);
    let agents = agents(&written, manifest, problems);
    let needs = needs(&written, problems);
    let instances = expand(&written, problems);
    let until = until(manifest, &written, problems);
    check_requirements(inputs, &written, problems);
    if let Some(node) = manifest.readiness.map(|id| manifest.node(id)) {
        // Said also if no service takes it.
        ready::check(node, &node.to_json(), &ready::defaults(&manifest.network, false), problems);
    }
    let mut roles = Roles {
        resolved,
        network,
        written,
        agents,
        instances: Vec::new(),
        until,
        kits: BTreeMap::new(),
        warnings: Vec::new(),
    };
    roles.drafts(inputs, &needs, &instances, problems);
    roles
}

fn written<'a>(inputs: &RunInputs<'a>, problems: &mut Diagnostics) -> Vec<Written<'a>> {
    let manifest = inputs.manifest;
    let agents = Agents::new(inputs, problems);
    let mut written = Vec::with_capacity(manifest.roles.len());
    for entry in &manifest.roles {
        let (kit, is_faulty) = match manifest.kit_of(entry) {
            None => (None, false),
            Some(name) => match kit_role(inputs, entry, name, problems) {
                Some(found) => (Some(found), false),
                None => (None, true),
            },
        };
        // Without its kit nobody can say which keys it may have.
        let form = match is_faulty {
            true => None,
            false => manifest.role(entry, kit.map(|(_, role)| role), problems),
        };
        let agent = form.as_ref().and_then(|form| agents.find(&entry.name, form.agent, problems));
        if let (Some(form), Some((kit, role))) = (&form, kit)
            && cipdip::is_one(Some((kit, role)))
        {
            cipdip::check(inputs, form, &role.name, problems);
        }
        written.push(Written { entry, form, kit, agent });
    }
    written
}

fn kit_role<'a>(
    inputs: &RunInputs<'a>,
    entry: &RoleEntry,
    name: &str,
    problems: &mut Diagnostics,
) -> Option<(&'a Kit, &'a KitRole)> {
    let node = inputs.manifest.node(entry.node);
    let key = inputs.manifest.node(entry.key);
    let Some(found) = inputs.kits.get(name) else {
        let place = node.get("kit").or_else(|| inputs.manifest.tree().root().get("kit")).unwrap_or(key);
        let known = inputs.kits.keys().map(String::as_str);
        let help = format!("write it as `kits/{name}.yaml` beside the manifest; {}", suggest(name, known));
        problems.push(place.error(UNKNOWN_KIT, format!("there is no kit `{name}`")).help(help));
        return None;
    };
    let kit = found.as_ref()?;
    let written = node.get("kit_role").and_then(Node::as_text);
    let wanted = written.unwrap_or(&entry.name);
    if let Some(role) = kit.role(wanted) {
        return Some((kit, role));
    }
    let known = kit.roles.iter().map(|role| role.name.as_str()).collect::<Vec<_>>().join(", ");
    let problem = match node.get("kit_role") {
        Some(place) => place.error(UNKNOWN_KIT, format!("kit `{name}` has no role `{wanted}`")),
        None => {
            let message = format!("the role has no `command`, and kit `{name}` has no role `{wanted}`");
            key.error(UNKNOWN_KIT, message)
        }
    };
    problems.push(problem.help(format!("write `command`, or `kit_role` with one of: {known}")));
    None
}

/// Returns `network` as templates see it.
fn network(network: &Network) -> Value {
    let mut plane = json!({"target_port": network.port()});
    let addresses = [
        ("target_ip", network.target_ip),
        ("server_listen_ip", network.server_listen_ip),
        ("client_bind_ip", network.client_bind_ip),
    ];
    for (key, ip) in addresses {
        if let Some(ip) = ip {
            plane[key] = ip.to_string().into();
        }
    }
    let mut value = json!({"data_plane": plane});
    if let Some(label) = &network.control_plane {
        value["control_plane"] = label.clone().into();
    }
    value
}

/// Returns the agents that roles run on; one id cannot mean two machines.
fn agents(
    written: &[Written<'_>],
    manifest: &RunManifest,
    problems: &mut Diagnostics,
) -> BTreeMap<HostName, Host> {
    let mut agents: BTreeMap<HostName, Host> = BTreeMap::new();
    for role in written {
        let Some((id, host)) = &role.agent else { continue };
        match agents.get(id) {
            Some(other) if other != host => {
                let node = manifest.node(role.entry.node);
                let node = node.get("agent").unwrap_or(node);
                let message = format!("`{id}` is reached in two different ways");
                problems
                    .push(node.error(UNKNOWN_AGENT, message).help("give each a name of its own in `agents`"));
            }
            Some(_) => {}
            None => {
                agents.insert(id.clone(), host.clone());
            }
        }
    }
    agents
}

/// Returns for each role the roles it needs.
fn needs(written: &[Written<'_>], problems: &mut Diagnostics) -> Vec<BTreeSet<usize>> {
    let mut needs = Vec::with_capacity(written.len());
    for (at, role) in written.iter().enumerate() {
        let mut found = BTreeSet::new();
        match role.form.as_ref().map(|form| &form.needs) {
            None => {}
            Some(NeedsForm::Roles(names)) => {
                for node in names {
                    let name = node.as_text().unwrap_or_default();
                    match written.iter().position(|other| other.entry.name == name) {
                        Some(other) => {
                            found.insert(other);
                        }
                        None => {
                            let known = written.iter().map(|other| other.entry.name.as_str());
                            let known = known.filter(|other| *other != role.entry.name);
                            let problem = node.error(UNKNOWN_ROLE, format!("there is no role `{name}`"));
                            problems.push(problem.help(suggest(name, known)));
                        }
                    }
                }
            }
            Some(NeedsForm::OfKit(names)) => {
                for node in names {
                    let name = node.as_text().unwrap_or_default();
                    let is_meant = |other: &Written<'_>| match (other.kit, role.kit) {
                        (Some((kit, other)), Some((own, _))) => kit.name == own.name && other.name == name,
                        (Some(_) | None, Some(_) | None) => false,
                    };
                    if let Some((own, _)) = role.kit
                        && own.role(name).is_none()
                    {
                        let known = own.roles.iter().map(|role| role.name.as_str());
                        let problem = node.error(UNKNOWN_ROLE, format!("the kit has no role `{name}`"));
                        problems.push(problem.help(suggest(name, known)));
                    }
                    let others = written
                        .iter()
                        .enumerate()
                        .filter(|(other, written)| *other != at && is_meant(written));
                    found.extend(others.map(|(other, _)| other));
                }
            }
        }
        needs.push(found);
    }
    if let Some(cycle) = instances::cycle(&needs) {
        let names: Vec<&str> = cycle.iter().map(|role| written[*role].entry.name.as_str()).collect();
        if let Some(form) = &written[cycle[0]].form {
            let place = form.node.get("needs").unwrap_or(form.key);
            let message = format!("roles wait for each other: {}", names.join(" -> "));
            problems.push(place.error(CYCLE, message).help("take one of them out of `needs`"));
        }
    }
    needs
}

/// Returns the instances of each role, none if there are too many.
fn expand(written: &[Written<'_>], problems: &mut Diagnostics) -> Vec<Vec<Instance>> {
    let most = u64::try_from(keys::MAX_INSTANCES).unwrap_or(u64::MAX);
    let counts = written.iter().map(|role| role.form.as_ref().map_or(1, instances::count));
    let all = counts.fold(0_u64, u64::saturating_add);
    if all > most {
        let largest =
            written.iter().filter_map(|role| role.form.as_ref()).max_by_key(|form| instances::count(form));
        if let Some(form) = largest {
            let message = format!("the run has {all} role instances; at most {most} are allowed");
            problems.push(form.key.error(BAD_VALUE, message).help("make `matrix` or `repeat` smaller"));
        }
        return written.iter().map(|_| Vec::new()).collect();
    }
    let mut names: BTreeMap<String, &str> = BTreeMap::new();
    let mut expanded = Vec::with_capacity(written.len());
    let of_role = |role: &Written<'_>| match &role.form {
        Some(form) => instances::expand(&role.entry.name, form),
        None => Vec::new(),
    };
    for role in written {
        let instances = of_role(role);
        if instances.len() == 1 || instances.is_empty() {
            names.insert(role.entry.name.clone(), &role.entry.name);
        }
        expanded.push(instances);
    }
    for (role, instances) in written.iter().zip(&expanded) {
        let taken = instances.iter().filter(|_| instances.len() > 1).find_map(|instance| {
            let other = names.insert(instance.name.clone(), &role.entry.name)?;
            Some((instance, other))
        });
        if let (Some((instance, other)), Some(form)) = (taken, &role.form) {
            let message = format!(
                "an instance of `{}` is called `{}`, as the role `{other}` has",
                role.entry.name, instance.name
            );
            problems.push(form.key.error(DUPLICATE_ROLE, message).help("rename one of the roles"));
        }
    }
    expanded
}

fn until(manifest: &RunManifest, written: &[Written<'_>], problems: &mut Diagnostics) -> Until {
    let has_task = written.iter().any(|role| role.kind() == RoleKind::Task);
    let has_duration = written.iter().any(|role| {
        role.kind() == RoleKind::Service
            && role.form.as_ref().is_some_and(|form| form.duration_seconds.is_some())
    });
    let Some(until) = manifest.until else {
        return match (has_task, has_duration) {
            (true, _) => Until::Tasks,
            (false, true) => Until::Duration,
            (false, false) => Until::Signal,
        };
    };
    let missing = match until {
        Until::Tasks if !has_task => Some(("no role is a task: the run would end at once", "signal")),
        Until::Duration if !has_duration => Some(("no service has `duration_seconds`", "signal")),
        Until::Tasks | Until::Duration | Until::Signal => None,
    };
    if let (Some((message, instead)), Some(place)) = (missing, manifest.until_place) {
        let problem = manifest.node(place).bad(message);
        problems.push(problem.help(format!("write `until: {instead}`, or leave it out")));
    }
    until
}

/// Returns the paths that kits require of the manifest.
fn required<'a>(written: &[Written<'a>]) -> BTreeSet<&'a str> {
    let kits = written.iter().filter_map(|role| role.kit);
    let mut required: BTreeSet<&str> =
        kits.flat_map(|(kit, _)| kit.requires.iter().map(|path| path.name.as_str())).collect();
    if written.iter().any(|role| cipdip::is_one(role.kit)) {
        required.insert(cipdip::LISTEN_IP);
    }
    required
}

/// Refuses manifests without what kits require of them.
fn check_requirements(inputs: &RunInputs<'_>, written: &[Written<'_>], problems: &mut Diagnostics) {
    let kits: BTreeMap<&str, &Kit> =
        written.iter().filter_map(|role| role.kit.map(|(kit, _)| (kit.name.as_str(), kit))).collect();
    for (name, kit) in kits {
        for path in &kit.requires {
            let mut place = inputs.manifest.tree().root();
            let mut is_there = true;
            for part in path.name.split('.') {
                match place.get(part).filter(|node| !matches!(node.value(), yaml::Value::Null)) {
                    Some(node) => place = node,
                    None => {
                        is_there = false;
                        break;
                    }
                }
            }
            if !is_there {
                let problem = place.error(MISSING, format!("kit `{name}` needs `{}`", path.name));
                problems.push(problem.path(path.name.clone()).help("write it in the manifest"));
            }
        }
    }
}

impl<'a> Roles<'a> {
    fn drafts(
        &mut self,
        inputs: &RunInputs<'a>,
        needs: &[BTreeSet<usize>],
        instances: &[Vec<Instance>],
        problems: &mut Diagnostics,
    ) {
        let manifest = inputs.manifest;
        let named = instances.iter().enumerate();
        let names = Names {
            manifest,
            resolved: &self.resolved,
            instances: named
                .flat_map(|(role, instances)| {
                    instances.iter().map(move |instance| (instance.name.clone(), role))
                })
                .collect(),
            roles: self.written.iter().map(|role| (role.entry.name.as_str(), role.kind())).collect(),
            needed: instances::closure(needs),
            required: required(&self.written),
        };
        let preinstalled = manifest
            .profile
            .as_ref()
            .filter(|profile| profile.distribution == Distribution::Preinstalled)
            .map(|profile| profile.path.as_str());
        let before = Before {
            vars: &self.resolved.vars,
            env: &self.resolved.env,
            run_id: manifest.run_id.as_ref(),
            seed: manifest.seed,
            network: &self.network,
            manifest_dir: inputs.manifest_dir,
            profile_path: preinstalled,
        };
        let mut order = instances::start_order(needs);
        // Those of a cycle have problems of their own.
        order.extend((0..self.written.len()).filter(|role| !order.contains(role)).collect::<Vec<_>>());
        let (mut drafts, mut warnings) = (Vec::new(), Vec::new());
        for role in order {
            let written = &self.written[role];
            let Some(form) = &written.form else { continue };
            if let Some((kit, _)) = written.kit {
                self.kits.insert(kit.name.clone(), kit.sha256);
            }
            let needed: Vec<String> = needs[role]
                .iter()
                .flat_map(|other| instances[*other].iter().map(|instance| instance.name.clone()))
                .collect();
            for instance in &instances[role] {
                let known = before.names(&instance.name, instance.index, &instance.matrix);
                // A role whose agent is not known is read on, for its other problems.
                let is_local =
                    written.agent.as_ref().is_none_or(|(_, host)| host.transport == TransportSpec::Local);
                let here = Here::new(&names, role, is_local, known);
                let mut draft = draft(inputs, written, form, instance, here, problems);
                draft.plan.needs = needed.clone();
                if cipdip::is_client(written.kit)
                    && let Some(ip) = manifest.network.client_bind_ip
                {
                    warnings.push(cipdip::bind_warning(&instance.name, ip));
                }
                drafts.push(draft);
            }
        }
        if let (Some(_), Some(place), true) =
            (manifest.network.client_bind_ip, manifest.network.client_bind_place, warnings.is_empty())
        {
            let problem =
                manifest.node(place).bad("no role is a `client` of kit `cipdip`: nothing uses this address");
            problems.push(problem.help("leave it out"));
        }
        self.instances = drafts;
        self.warnings = warnings;
    }
}

/// Returns one instance of a role.
fn draft(
    inputs: &RunInputs<'_>,
    written: &Written<'_>,
    form: &RoleForm<'_>,
    instance: &Instance,
    mut here: Here<'_>,
    problems: &mut Diagnostics,
) -> Draft {
    let manifest = inputs.manifest;
    let mut files = Vec::new();
    let mut artifacts = Vec::new();
    let mut command = form.command.clone();
    let mut kit = None;
    let args = match written.kit {
        None => {
            if let Some((key, _)) = form.args.first() {
                let problem = key.bad("`args` are flags for a kit's command line");
                problems.push(problem.help("write them into `command`"));
            }
            Vec::new()
        }
        Some((of, role)) => {
            let (mut values, broken) = fields::values(of, role, form, &here, problems);
            here.broken = broken;
            here.add(values.clone());
            let args = if cipdip::is_one(written.kit) {
                let extras = cipdip::extras(&here, &instance.name, &role.name, form, problems);
                here.add(extras.names);
                files.extend(extras.files);
                artifacts.extend(
                    extras
                        .capture
                        .map(|path| ArtifactPlan { path: super::texts::escape(&path), required: false }),
                );
                if cipdip::is_client(written.kit) {
                    cipdip::check_client(form, &values, problems);
                    command = cipdip::by_scenario(&command, values.get("scenario").and_then(Value::as_str));
                }
                extras.args
            } else {
                command::args(&here, &form.args, &command::own_flags(&command), problems)
            };
            if let Some(list) = command::as_value(&args) {
                here.add([("args".to_owned(), list.clone())]);
                values.insert("args".to_owned(), list);
            }
            kit = Some(KitUse { name: of.name.clone(), role: role.name.clone(), fields: values });
            args
        }
    };
    let before = problems.0.len();
    let argv = command::argv(&here, &command, &args, problems);
    let is_empty = argv.is_empty() && here.broken.is_empty() && problems.0.len() == before;
    if let (true, Some(place)) = (is_empty, form.command_place) {
        let is_reported = place.as_list().is_none_or(|items| items.len() == 0);
        if !is_reported {
            problems.push(place.bad("the command is empty").help("it must name a program"));
        }
    }
    files.extend(self::files(&here, form, problems));
    artifacts.extend(self::artifacts(&here, form, manifest, problems));
    let env: BTreeMap<String, String> = form
        .env
        .iter()
        .filter_map(|(name, node)| {
            Some((name.clone(), here.kept_text(*node, Spot::Env, problems)?.into_plan()))
        })
        .collect();
    let workdir = form.workdir.and_then(|node| {
        let kept = here.kept_text(node, Spot::Workdir, problems)?;
        if let Some(message) = kept.known().and_then(paths::refuse_workdir) {
            problems.push(node.bad(message));
        }
        Some(kept.into_plan())
    });
    let (agent_id, transport) = match &written.agent {
        Some((id, host)) => (id.clone(), host.transport.to_string()),
        None => (HostName::local(), "local".to_owned()),
    };
    let is_client = cipdip::is_client(written.kit);
    let plan = RolePlan {
        role: written.entry.name.clone(),
        kind: form.kind,
        agent_id,
        transport,
        argv,
        env_names: env.keys().cloned().collect(),
        env,
        workdir,
        files: Vec::new(),
        ready: readiness(&here, written, form, manifest, problems),
        stop: form.stop,
        // The client is told how long to talk, and ends by itself.
        duration_seconds: form.duration_seconds.filter(|_| !is_client),
        timeout_seconds: form.timeout_seconds,
        expect_exit: form.expect_exit.clone(),
        may_exit: form.may_exit,
        allow_failure: form.allow_failure,
        artifacts,
        needs: Vec::new(),
        index: instance.index,
        concurrency: if form.kind == RoleKind::Service { 0 } else { form.concurrency },
        matrix: instance.matrix.clone(),
        repeat_index: instance.repeat_index,
        kit,
        bind_ip: manifest.network.client_bind_ip.filter(|_| is_client),
        target_ip: manifest.network.target_ip.filter(|_| is_client),
    };
    Draft { name: instance.name.clone(), plan, files }
}

fn readiness(
    here: &Here<'_>,
    written: &Written<'_>,
    form: &RoleForm<'_>,
    manifest: &RunManifest,
    problems: &mut Diagnostics,
) -> Option<Value> {
    if form.kind == RoleKind::Task {
        return None;
    }
    let is_of_cipdip = cipdip::is_one(written.kit);
    let defaults = ready::defaults(&manifest.network, is_of_cipdip);
    let node = form.ready.or_else(|| manifest.readiness.map(|id| manifest.node(id)));
    Some(match node {
        Some(node) => ready::written(here, node, &defaults, problems),
        None if is_of_cipdip => ready::structured(&defaults),
        None => ready::none(),
    })
}

fn files(here: &Here<'_>, form: &RoleForm<'_>, problems: &mut Diagnostics) -> Vec<FileWish> {
    let mut files = Vec::new();
    for file in &form.files {
        let Some(from) = here.known_text(file.from, problems) else { continue };
        let to = match file.to {
            Some(node) => match here.known_text(node, problems) {
                Some(to) => to,
                None => continue,
            },
            None => paths::last_part(&from).unwrap_or_default().to_owned(),
        };
        if let Some(message) = paths::refuse_inside(&to) {
            problems.push(file.to.unwrap_or(file.from).bad(message));
            continue;
        }
        files.push(FileWish {
            from,
            to,
            mode: file.mode,
            place: file.from.place(),
            path: file.from.path(),
            is_optional: false,
        });
    }
    files
}

fn artifacts(
    here: &Here<'_>,
    form: &RoleForm<'_>,
    manifest: &RunManifest,
    problems: &mut Diagnostics,
) -> Vec<ArtifactPlan> {
    let own = form.artifacts.iter().map(|artifact| (artifact.path, artifact.required));
    let common = manifest.include.iter().flatten().map(|id| (manifest.node(*id), false));
    let mut artifacts = Vec::new();
    for (node, required) in own.chain(common) {
        let Some(kept) = here.kept_text(node, Spot::Run, problems) else { continue };
        if let Some(message) = kept.known().and_then(paths::refuse_artifact) {
            problems.push(node.bad(message));
        }
        artifacts.push(ArtifactPlan { path: Kept::into_plan(kept), required });
    }
    if manifest.include.is_none() {
        let usual = DEFAULT_INCLUDE.map(|path| ArtifactPlan { path: path.to_owned(), required: false });
        artifacts.extend(usual);
    }
    artifacts
}

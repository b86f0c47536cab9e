//! Everything that can be known to be wrong with a manifest or a site before anything is made.

use std::collections::BTreeSet;

use stead_model::diagnostic::Span;
use stead_model::site::host::DriverKind;
use stead_model::site::manifest::{Delegation, ManifestNode, Mode, NodeType, Pattern};
use stead_model::site::{Digests, Entry, FileKind, Host, Located, Manifest, Site};
use stead_model::{Diagnostic, Diagnostics, SiteKey};

use super::drivers;
use super::mode::{Modes, modes};
use super::pattern::{infer, violation};
use super::problems::{Looks, Problems};
use super::references::{self, HostAt, Written};
use super::{ChosenHost, Forest, ForestNode, HostOrigin, find_host, host_below};

/// What a manifest is checked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct ForHost<'a> {
    /// `--mode`.
    pub mode: Option<Mode>,
    /// The host, if one was named.
    pub host: Option<&'a ChosenHost>,
}

/// What is known of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedNode {
    /// Its modes.
    pub modes: Modes,
    /// What makes it, if that is known.
    pub driver: Option<DriverKind>,
    /// The digest of what it becomes, if that can be known.
    pub spec_digest: Option<String>,
    /// Whether it makes machines itself: it has children, or is a Proxmox host.
    pub is_hosting: bool,
}

/// What is known of a manifest.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// Its nodes; nothing if they cannot be brought into an order.
    pub forest: Option<Forest>,
    /// What is known of each.
    pub nodes: Vec<CheckedNode>,
    /// What is built.
    pub pattern: Option<Pattern>,
    /// Whether the pattern is inferred.
    pub is_inferred: bool,
    /// Everything that is wrong, with it and with the files it refers to.
    pub diagnostics: Diagnostics,
}

/// What has been told and looked for, so that it is not again.
#[derive(Default)]
struct Told<'s> {
    looks: Looks,
    /// Specs whose hostname is not used.
    hostnames: BTreeSet<&'s SiteKey>,
}

/// Returns what is known of `manifest`.
pub fn check_manifest(site: &Site, manifest: &Entry<Manifest>, wanted: ForHost<'_>) -> Checked {
    let (mut checked, mut others) = check_one(site, manifest, wanted, &mut Told::default());
    checked.diagnostics.0.append(&mut others.0);
    checked.diagnostics = std::mem::take(&mut checked.diagnostics).sorted();
    checked
}

/// Returns what is known of `manifest`, and apart from its own problems those of the files it refers to.
fn check_one<'s>(
    site: &'s Site,
    manifest: &Entry<Manifest>,
    wanted: ForHost<'_>,
    told: &mut Told<'s>,
) -> (Checked, Diagnostics) {
    let mut checked = Checked { diagnostics: manifest.diagnostics.clone(), ..Checked::default() };
    let mut others = Diagnostics::default();
    let Told { looks, hostnames } = told;
    let mut problems = Problems::new(manifest, looks);
    let forest = Forest::build(&manifest.value, &mut problems);
    if let Some(forest) = &forest {
        check_pattern(forest, manifest, &mut checked, &mut problems);
        check_ids(forest, &manifest.value, wanted.host, &mut problems);
    }
    check_references(site, &manifest.value, wanted.host, &mut others, &mut problems);
    if let Some(forest) = &forest {
        check_nodes(site, &manifest.value, forest, wanted, &mut checked, &mut problems);
        warn_of_hostnames(site, &manifest.value, forest, hostnames, &mut checked);
    }
    checked.diagnostics.0.append(&mut problems.found.0);
    checked.forest = forest;
    (checked, others)
}

/// Returns everything that is wrong with a site.
pub fn check_site(site: &Site) -> Diagnostics {
    check_site_for(site, None)
}

/// Returns everything that is wrong with a site, and with making its manifests on `host` if one was named.
pub fn check_site_for(site: &Site, host: Option<&ChosenHost>) -> Diagnostics {
    let mut told = Told::default();
    let mut problems = site.strays.clone();
    problems.0.extend(site.settings.diagnostics.0.clone());
    problems.0.extend(site.secrets.diagnostics.0.clone());
    problems.0.extend(site.keyring.diagnostics.0.clone());
    if let Some(posture) = &site.settings.value.defaults.posture {
        let place = site.settings.place(posture.span);
        let written = Written { place, path: "defaults.posture".to_owned(), name: posture.value.as_str() };
        references::check_posture(site, &written, &mut problems, &mut told.looks);
    }
    for (kind, folder) in [(FileKind::Host, &site.hosts), (FileKind::Instance, &site.instances)] {
        for (name, entry) in folder {
            problems.0.extend(entry.diagnostics.0.clone());
            references::check_host(site, kind, name.as_str(), entry, &mut problems, &mut told.looks);
        }
    }
    site.presets.values().for_each(|entry| problems.0.extend(entry.diagnostics.0.clone()));
    site.postures.values().for_each(|entry| problems.0.extend(entry.diagnostics.0.clone()));
    for entry in site.specs.values() {
        problems.0.extend(entry.diagnostics.0.clone());
        let mut found = Diagnostics::default();
        references::check_spec(site, entry, &mut found, &mut told.looks);
        // What `site.yaml` gets wrong was told above, once.
        found.0.retain(|problem| problem.path != "defaults.posture");
        problems.0.append(&mut found.0);
    }
    for manifest in site.manifests.values() {
        // What is wrong with other files was told with them.
        let (checked, _) = check_one(site, manifest, ForHost { mode: None, host }, &mut told);
        problems.0.extend(checked.diagnostics.0);
    }
    problems.sorted()
}

fn check_pattern(
    forest: &Forest,
    entry: &Entry<Manifest>,
    checked: &mut Checked,
    problems: &mut Problems<'_>,
) {
    let manifest = &entry.value;
    if let Some(pattern) = &manifest.pattern {
        checked.pattern = Some(pattern.value);
        // A part of a manifest need not have the pattern of the whole.
        if manifest.context.is_some() {
            return;
        }
        let Some(broken) = violation(pattern.value, forest, manifest) else { return };
        let problem =
            Diagnostic::error("node/pattern-mismatch", problems.place(pattern.span), broken).path("pattern");
        let all = Pattern::WORDS.iter().map(|(_, pattern)| *pattern);
        let fits = infer(forest, manifest)
            .into_iter()
            .chain(all)
            .find(|other| violation(*other, forest, manifest).is_none());
        problems.push(match fits {
            Some(fits) => problem
                .help(format!("the nodes are `{}`", fits.word()))
                .candidates(vec![fits.word().to_owned()]),
            None => problem.help("no pattern fits these nodes"),
        });
        return;
    }
    checked.pattern = infer(forest, manifest);
    checked.is_inferred = checked.pattern.is_some();
    if checked.pattern.is_none() && manifest.context.is_none() && !forest.nodes.is_empty() {
        let linked = manifest.nodes.iter().find_map(|node| Some((node, node.peers.first()?)));
        if let Some((node, peer)) = linked {
            let message = "no pattern has such peers: they are between roots, between children of one parent, or between trees";
            problems.push(problems.error("node/pattern-mismatch", node, "peers", peer.span, message));
        }
    }
}

/// Tells ids that two machines of one host have.
fn check_ids(forest: &Forest, manifest: &Manifest, wanted: Option<&ChosenHost>, problems: &mut Problems<'_>) {
    let mut seen = std::collections::BTreeMap::new();
    for node in &forest.nodes {
        let written = &manifest.nodes[node.written];
        let Some(vmid) = &written.vmid else { continue };
        let wanted = wanted.filter(|_| node.parent.is_none()).map(|host| host.name.as_str());
        let host = written.host.as_ref().map(|host| host.value.as_str()).or(wanted);
        // Several of one entry have been told where the entry was read.
        if let Some(other) = seen.insert((node.parent, host, vmid.value), written)
            && other.index != written.index
        {
            let message =
                format!("`{}` and `{}` have the same vmid {}", other.name.value, node.name, vmid.value);
            let problem = problems.error("node/conflict", written, "vmid", vmid.span, message);
            let related = other.vmid.as_ref().map_or(other.name.span, |vmid| vmid.span);
            problems.push(problem.related(problems.place(related), "the other one"));
        }
    }
}

/// Tells names of files that do not exist, and what is wrong with those that do.
fn check_references(
    site: &Site,
    manifest: &Manifest,
    host: Option<&ChosenHost>,
    found: &mut Diagnostics,
    problems: &mut Problems<'_>,
) {
    for entry in [&site.settings.diagnostics, &site.secrets.diagnostics, &site.keyring.diagnostics] {
        found.0.extend(entry.0.clone());
    }
    let mut seen = BTreeSet::new();
    let chosen = host.and_then(|host| {
        let (kind, folder) = match host.origin {
            HostOrigin::Instance => (FileKind::Instance, &site.instances),
            HostOrigin::Host => (FileKind::Host, &site.hosts),
            HostOrigin::BuiltIn => return None,
        };
        Some((kind, host.name.as_str(), folder.get(host.name.as_str())?))
    });
    if let Some((kind, name, entry)) = chosen {
        seen.insert((kind, name));
        found.0.extend(entry.diagnostics.0.clone());
        references::check_host(site, kind, name, entry, found, problems.looks);
    }
    for node in &manifest.nodes {
        if let Some(spec) = &node.spec {
            match site.specs.get(&spec.value) {
                None => {
                    let written = written(problems, node, "spec", spec.span, spec.value.as_str());
                    let problem =
                        written.no_file(FileKind::Spec, references::keys(&site.specs), problems.looks);
                    problems.push(problem);
                }
                Some(entry) if seen.insert((FileKind::Spec, spec.value.as_str())) => {
                    found.0.extend(entry.diagnostics.0.clone());
                    references::check_spec(site, entry, found, problems.looks);
                    let defaults = &site.settings.value.defaults;
                    let posture = entry
                        .value
                        .posture
                        .as_ref()
                        .map_or_else(|| defaults.posture(), |posture| posture.value.clone());
                    if let Some(posture) = site.postures.get_key_value(&posture)
                        && seen.insert((FileKind::Posture, posture.0.as_str()))
                    {
                        found.0.extend(posture.1.diagnostics.0.clone());
                    }
                }
                Some(_) => {}
            }
        }
        if let Some(preset) = &node.preset {
            match site.presets.get(&preset.value) {
                None => {
                    let written = written(problems, node, "preset", preset.span, preset.value.as_str());
                    let problem =
                        written.no_file(FileKind::Preset, references::keys(&site.presets), problems.looks);
                    problems.push(problem);
                }
                Some(entry) if seen.insert((FileKind::Preset, preset.value.as_str())) => {
                    found.0.extend(entry.diagnostics.0.clone());
                }
                Some(_) => {}
            }
        }
        if let Some(host) = &node.host {
            check_named_host(site, node, host, &mut seen, found, problems);
        }
        if let Some(hosting) = &node.hosting {
            let host = &hosting.value;
            let source = problems.source;
            let place = |span: Span| Problems::place_in(source, span);
            let prefix = format!("nodes[{}].hosting.", node.index);
            let inherits = host.driver() == DriverKind::Proxmox;
            let at = HostAt { host, place: &place, prefix, inherits };
            references::check_described(site, &at, &mut problems.found, problems.looks);
        }
    }
}

fn written<'a>(
    problems: &Problems<'_>,
    node: &ManifestNode,
    key: &str,
    span: Span,
    name: &'a str,
) -> Written<'a> {
    Written { place: problems.place(span), path: format!("nodes[{}].{key}", node.index), name }
}

fn check_named_host<'m>(
    site: &Site,
    node: &'m ManifestNode,
    host: &'m Located<String>,
    seen: &mut BTreeSet<(FileKind, &'m str)>,
    found: &mut Diagnostics,
    problems: &mut Problems<'_>,
) {
    let name = host.value.as_str();
    let entry = match (site.instances.get(name), site.hosts.get(name)) {
        (Some(entry), _) => Some((FileKind::Instance, entry)),
        (None, Some(entry)) => Some((FileKind::Host, entry)),
        (None, None) => None,
    };
    match entry {
        Some((kind, entry)) if seen.insert((kind, name)) => {
            found.0.extend(entry.diagnostics.0.clone());
            references::check_host(site, kind, name, entry, found, problems.looks);
        }
        Some(_) => {}
        None if name == "local" => {}
        None => {
            let written = written(problems, node, "host", host.span, name);
            let problem = written.no_file(FileKind::Host, references::host_names(site), problems.looks);
            problems.push(problem);
        }
    }
}

/// Finds out what is known of each node, and tells what its driver cannot do.
fn check_nodes(
    site: &Site,
    manifest: &Manifest,
    forest: &Forest,
    wanted: ForHost<'_>,
    checked: &mut Checked,
    problems: &mut Problems<'_>,
) {
    let mut makers: Vec<Maker<'_>> = vec![Maker::default(); forest.nodes.len()];
    let named: std::collections::BTreeMap<&str, ChosenHost> = manifest
        .nodes
        .iter()
        .filter_map(|node| node.host.as_ref())
        .filter_map(|host| Some((host.value.as_str(), find_host(site, &host.value).ok()?)))
        .collect();
    let mut told = BTreeSet::new();
    for &index in forest.order() {
        let node = &forest.nodes[index];
        let written = &manifest.nodes[node.written];
        let maker = match (node.parent, &written.host) {
            (None, Some(host)) => Maker::of(named.get(host.value.as_str()).map(|chosen| &chosen.host)),
            (None, None) => Maker::of(wanted.host.map(|chosen| &chosen.host)),
            (Some(parent), _) => {
                let hosting = manifest.nodes[forest.nodes[parent].written].hosting.as_ref();
                let host = hosting.map(|hosting| &hosting.value);
                let own = host.filter(|host| host.names_driver()).map(Host::driver);
                Maker { driver: own.or(makers[parent].driver), host }
            }
        };
        makers[index] = maker;
        // Nodes of one entry that have the same problem have it told once.
        let first = problems.found.0.len();
        check_driver(site, forest, index, written, maker, problems);
        check_delegation(manifest, is_hosting(node, written), written, wanted.mode, problems);
        let new = problems.found.0.split_off(first);
        problems.found.0.extend(new.into_iter().filter(|problem| told.insert((node.written, problem.code))));
    }
    let mut digests = Digests::new(site);
    checked.nodes = forest
        .nodes
        .iter()
        .zip(&makers)
        .map(|(node, maker)| {
            let written = &manifest.nodes[node.written];
            CheckedNode {
                modes: modes(wanted.mode, manifest, &written.execution),
                driver: maker.driver,
                spec_digest: written.spec.as_ref().and_then(|spec| digests.of(&spec.value, &node.name)),
                is_hosting: is_hosting(node, written),
            }
        })
        .collect();
}

/// What makes a node.
#[derive(Clone, Copy, Debug, Default)]
struct Maker<'s> {
    driver: Option<DriverKind>,
    host: Option<&'s Host>,
}

impl<'s> Maker<'s> {
    fn of(host: Option<&'s Host>) -> Self {
        Self { driver: host.map(Host::driver), host }
    }
}

fn check_driver(
    site: &Site,
    forest: &Forest,
    index: usize,
    written: &ManifestNode,
    maker: Maker<'_>,
    problems: &mut Problems<'_>,
) {
    let (Some(driver), Some(Located { value: kind, span })) = (maker.driver, &written.kind) else { return };
    let (kind, span) = (*kind, *span);
    let name = &written.name.value;
    if driver == DriverKind::None {
        let message = format!("`{name}` cannot be made: its host has the driver `none`");
        let problem = problems.error("node/not-hostable", written, "name", written.name.span, message);
        problems.push(problem.help("choose another host, or give this one a `driver`"));
        return;
    }
    let types = drivers::types(driver);
    if !types.contains(&kind) {
        let known: Vec<String> = types.iter().map(|kind| kind.word().to_owned()).collect();
        let message = format!("the driver `{}` makes no `{}`", driver.word(), kind.word());
        let problem = problems.error("node/type-unsupported", written, "type", span, message);
        problems.push(problem.help(format!("it makes {}", known.join(", "))).candidates(known));
    } else if let Some(key) = drivers::missing_image(
        driver,
        maker.host,
        kind,
        written,
        site.settings.value.defaults.image.as_deref(),
    ) {
        let message = format!("`{name}` needs `{key}`: the driver `{}` boots one", driver.word());
        problems.push(problems.error("node/missing-image", written, key, written.name.span, message));
    }
    if forest.nodes[index].children.is_empty() {
        return;
    }
    let hosting = written.hosting.as_ref().map(|hosting| &hosting.value);
    let makes_nothing = hosting.is_some_and(|host| host.driver == Some(DriverKind::None));
    if makes_nothing || !drivers::hosts(driver, kind) {
        let message = format!(
            "`{name}` has children, but a `{}` of the driver `{}` makes no machines",
            kind.word(),
            driver.word()
        );
        problems.push(problems.error("node/not-hostable", written, "type", span, message));
        return;
    }
    let below = host_below(driver, hosting).driver();
    if below == DriverKind::Proxmox {
        let message = format!(
            "`{name}` has children, but makes none by the driver `{}`: tokens of its API stay where they are",
            below.word()
        );
        let span = written.hosting.as_ref().map_or(written.name.span, |hosting| hosting.span);
        let problem = problems.error("node/not-hostable", written, "hosting", span, message);
        let others = ["sandbox", "oci", "qemu", "cloud-hypervisor"].map(str::to_owned);
        let help = "say what it makes them with, such as `hosting: {driver: qemu}`";
        problems.push(problem.help(help).candidates(others.to_vec()));
    }
}

/// Whether a node is to make machines.
fn is_hosting(node: &ForestNode, written: &ManifestNode) -> bool {
    !node.children.is_empty() || written.kind.as_ref().is_some_and(|kind| kind.value == NodeType::Pve)
}

/// A hosting node without an agent cannot be told by a job.
fn check_delegation(
    manifest: &Manifest,
    is_hosting: bool,
    written: &ManifestNode,
    flag: Option<Mode>,
    problems: &mut Problems<'_>,
) {
    if manifest.settings.delegation != Delegation::Job || !is_hosting {
        return;
    }
    let is_push = modes(flag, manifest, &written.execution).config == Mode::Push;
    let (key, why, help) = match (is_push, &written.spec) {
        (true, _) => ("execution", "has the mode push", "give it the mode pull or hybrid"),
        (false, None) => ("spec", "has no spec, and so no agent", "give it a spec"),
        (false, Some(_)) => return,
    };
    let message =
        format!("`{}` makes machines and {why}, but `delegation: job` needs its agent", written.name.value);
    let problem = problems.error("node/conflict", written, key, written.name.span, message);
    problems.push(problem.help(format!("{help}, or use `delegation: ssh`")));
}

fn warn_of_hostnames<'s>(
    site: &'s Site,
    manifest: &Manifest,
    forest: &Forest,
    told: &mut BTreeSet<&'s SiteKey>,
    checked: &mut Checked,
) {
    for node in &forest.nodes {
        let Some(spec) = &manifest.nodes[node.written].spec else { continue };
        let Some((name, entry)) = site.specs.get_key_value(&spec.value) else { continue };
        let Some(hostname) = &entry.value.hostname else { continue };
        if hostname.value != node.name.as_str() && told.insert(name) {
            let message = format!("`{}` is called by its own name, not `{}`", node.name, hostname.value);
            checked.diagnostics.push(
                Diagnostic::warning("node/conflict", entry.place(hostname.span), message)
                    .path("identity.hostname")
                    .help("leave `hostname` out"),
            );
        }
    }
}

//! Manifests of a site as VMs: the evaluator that needs no Nix.
//!
//! Each root node of the manifests that `fleet.yaml` matches is a VM; its preset is its size, its spec is a blob that every
//! instance is configured from, and `vms` of `fleet.yaml` adds where it may run. What only makes sense for `stead create`
//! (nodes in nodes, links, hosts) is refused with its place.

use std::collections::BTreeMap;

use stead_model::diagnostic::{Place, Severity, Source};
use stead_model::fleet::fleet_file::FleetFile;
use stead_model::fleet::vm::{
    Disk, DiskFormat, DiskSource, Driver, Frame, Resources, Runtime, Scheduling, read_specs,
};
use stead_model::fleet::{Artifact, VmSpec};
use stead_model::plan::Digest;
use stead_model::site::address::NodeAddress;
use stead_model::site::manifest::{ManifestNode, NodeType};
use stead_model::site::{Entry, FileKind, Manifest, Site, resolve};
use stead_model::{Diagnostic, Diagnostics, GroupName, NodeName, VmId, canonical_json};

use crate::nodes::drivers;

#[cfg(test)]
mod tests;

/// What is evaluated.
#[derive(Clone, Copy, Debug)]
pub struct Repository<'a> {
    /// The site.
    pub site: &'a Site,
    /// Manifests that are elsewhere than those of the site, by their paths: those that [`is_manifest`].
    pub elsewhere: &'a BTreeMap<String, Entry<Manifest>>,
    /// What `fleet.yaml` says.
    pub fleet: &'a FleetFile,
    /// The text of `fleet.yaml`, if there is one.
    pub source: Option<&'a Source>,
    /// The sizes of images, by the name manifests use.
    pub image_sizes: &'a BTreeMap<String, u64>,
}

/// What comes of it.
#[derive(Clone, Debug, Default)]
pub struct Evaluated {
    /// The VMs, sorted by id.
    pub vms: Vec<VmSpec>,
    /// What has to be put where blobs are, by hash.
    pub blobs: BTreeMap<Digest, Vec<u8>>,
    /// Everything that is wrong.
    pub diagnostics: Diagnostics,
    /// The first node that something is wrong with.
    pub failed: Option<NodeName>,
}

/// Returns the VMs of a repository.
pub fn evaluate(repository: &Repository<'_>) -> Evaluated {
    let mut found = Evaluated::default();
    let mut first: BTreeMap<NodeName, Place> = BTreeMap::new();
    let own = repository.site.manifests.iter();
    let own = own.map(|(key, manifest)| (FileKind::Manifest.path_of(key.as_str()), manifest));
    let elsewhere = repository.elsewhere.iter().map(|(path, manifest)| (path.clone(), manifest));
    let manifests: BTreeMap<String, &Entry<Manifest>> = own.chain(elsewhere).collect();
    for glob in &repository.fleet.manifests {
        if !manifests.keys().any(|path| matches(&glob.value, path)) {
            let message = format!("no manifest is called `{}`", glob.value);
            let help = "commit one, or take it out; `*` stands for anything but `/`";
            let place = fleet_place(repository, glob.span);
            found.diagnostics.push(Diagnostic::error("fleet/unknown-manifest", place, message).help(help));
        }
    }
    let mut is_all_read = true;
    for (path, manifest) in manifests {
        if !is_matched(repository.fleet, &path) {
            continue;
        }
        is_all_read &= !manifest.diagnostics.has_errors();
        found.diagnostics.0.extend(manifest.diagnostics.0.clone());
        for node in &manifest.value.nodes {
            let place = manifest.place(node.name.span);
            let known = found.diagnostics.0.len();
            if let Some(other) = first.get(&node.name.value) {
                let message = format!("the node `{}` is in two manifests", node.name.value);
                let problem = Diagnostic::error("fleet/duplicate-id", place, message);
                found.diagnostics.push(problem.related(other.clone(), "it is also here"));
            } else {
                first.insert(node.name.value.clone(), place);
                if !refuse_unsupported(manifest, node, &mut found.diagnostics) {
                    let vm = evaluate_node(repository, manifest, node, &mut found);
                    found.vms.extend(vm);
                }
            }
            if found.failed.is_none() && found.diagnostics.0.len() > known {
                found.failed = Some(node.name.value.clone());
            }
        }
    }
    for (name, entry) in &repository.fleet.vms {
        // What cannot be read may have it: one slip is told once, where it is.
        if is_all_read && !first.contains_key(name) {
            let message = format!("no manifest has a node `{name}`");
            let help = stead_model::diagnostic::suggest(name.as_str(), first.keys().map(NodeName::as_str));
            let place = fleet_place(repository, entry.span);
            found.diagnostics.push(Diagnostic::error("fleet/unknown-node", place, message).help(help));
        }
    }
    found.vms.sort_by(|a, b| a.id.cmp(&b.id));
    found.diagnostics = std::mem::take(&mut found.diagnostics).sorted();
    found
}

fn fleet_place(repository: &Repository<'_>, span: stead_model::diagnostic::Span) -> Place {
    match repository.source {
        Some(source) => Place::Text { source: source.clone(), span },
        None => Place::Named("fleet.yaml".to_owned()),
    }
}

/// Whether a file is one of the manifests that are VMs, and nothing else that a site or a fleet has.
pub fn is_manifest(fleet: &FleetFile, path: &str) -> bool {
    let is_other = match FileKind::of_path(path) {
        Some((FileKind::Manifest, _)) => false,
        Some(_) => true,
        None => path == "fleet.yaml",
    };
    !is_other && is_matched(fleet, path)
}

/// Whether a path is one of the manifests that are VMs; `*` stands for anything but `/`.
fn is_matched(fleet: &FleetFile, path: &str) -> bool {
    if fleet.manifests.is_empty() {
        return matches(FleetFile::MANIFESTS, path);
    }
    fleet.manifests.iter().any(|glob| matches(&glob.value, path))
}

fn matches(glob: &str, path: &str) -> bool {
    let (mut rest, mut is_first) = (path, true);
    let mut pieces = glob.split('*').peekable();
    while let Some(piece) = pieces.next() {
        let is_last = pieces.peek().is_none();
        let at = match (is_first, is_last) {
            (true, true) => return rest == piece,
            (true, false) => rest.starts_with(piece).then_some(0),
            (false, true) => rest.len().checked_sub(piece.len()).filter(|at| rest.get(*at..) == Some(piece)),
            (false, false) => rest.find(piece),
        };
        let Some(at) = at else { return false };
        let is_crossed = !is_first && rest.get(..at).is_some_and(|skipped| skipped.contains('/'));
        if is_crossed {
            return false;
        }
        rest = rest.get(at + piece.len()..).unwrap_or_default();
        is_first = false;
    }
    true
}

/// Reports what only `stead create` does, and returns whether there was some.
fn refuse_unsupported(
    manifest: &Entry<Manifest>,
    node: &ManifestNode,
    diagnostics: &mut Diagnostics,
) -> bool {
    let mut refused = Vec::new();
    refused.extend(node.parent.as_ref().map(|parent| ("parent", parent.span)));
    refused.extend(node.peers.first().map(|peer| ("peers", peer.span)));
    refused.extend(node.depends_on.first().map(|other| ("depends_on", other.span)));
    refused.extend(node.host.as_ref().map(|host| ("host", host.span)));
    refused.extend(node.vmid.as_ref().map(|vmid| ("vmid", vmid.span)));
    if matches!(node.ip, Some(NodeAddress::Static(_))) && node.count.unwrap_or(1) > 1 {
        refused.push(("ip", node.name.span));
    }
    for (field, span) in &refused {
        let message = format!("a fleet has no use for `{field}` of node `{}`", node.name.value);
        diagnostics.push(
            Diagnostic::error("fleet/unsupported-field", manifest.place(*span), message)
                .path(format!("nodes[{}].{field}", node.index))
                .help("`stead create` does it; leave it out here"),
        );
    }
    !refused.is_empty()
}

fn evaluate_node(
    repository: &Repository<'_>,
    manifest: &Entry<Manifest>,
    node: &ManifestNode,
    found: &mut Evaluated,
) -> Option<VmSpec> {
    let name = &node.name.value;
    let nothing = Scheduling::default();
    let scheduling = repository.fleet.vms.get(name).map_or(&nothing, |entry| &entry.value);
    let driver = scheduling.driver.or(repository.fleet.defaults.driver).unwrap_or(Driver::Sandbox);
    let mut refuse = |code: &'static str, span, message: String, help: &str| {
        found.diagnostics.push(Diagnostic::error(code, manifest.place(span), message).help(help));
    };
    let kind = node.kind.as_ref()?;
    if !drivers::types(driver.kind()).contains(&kind.value) {
        let message = format!("the driver `{}` makes no `{}`", driver.word(), kind.value.word());
        refuse("fleet/conflict", kind.span, message, "set `vms.NODE.driver` in fleet.yaml");
        return None;
    }
    let resources = match scheduling.resources {
        Some(resources) => Some(resources),
        None => match &node.preset {
            None => {
                let message = format!("nothing says how large `{name}` is");
                refuse("fleet/missing-field", node.name.span, message, "give it a `preset`");
                None
            }
            Some(preset) => match repository.site.presets.get(&preset.value) {
                Some(entry) if !entry.is_broken() => Some(Resources {
                    cpu_milli: u64::from(entry.value.cores) * 1000,
                    mem_mib: u64::from(entry.value.memory),
                    disk_mib: u64::from(node.disk.unwrap_or(entry.value.disk)) * 1024,
                }),
                Some(_) | None => {
                    let message = format!("there is no usable preset `{}`", preset.value);
                    refuse("fleet/unknown-preset", preset.span, message, "add presets/NAME.yaml");
                    None
                }
            },
        },
    };
    let runtime = runtime_of(repository, manifest, node, driver, found);
    let frame = Frame {
        id: VmId::parse(name.as_str()).ok()?,
        group: GroupName::default_group(),
        replicas: node.count.unwrap_or(1),
        resources: resources?,
        runtime: runtime?,
    };
    let spec = scheduling.to_spec(frame, &repository.fleet.defaults);
    check(manifest, node, &spec, &mut found.diagnostics).then_some(spec)
}

/// Whether a VM keeps every rule that one keeps which somebody wrote as such; reports what it does not.
fn check(
    manifest: &Entry<Manifest>,
    node: &ManifestNode,
    spec: &VmSpec,
    diagnostics: &mut Diagnostics,
) -> bool {
    let mut problems = Diagnostics::default();
    let text = format!("[{}]", spec.to_canonical());
    read_specs(&Source { name: "VM".into(), text: text.into() }, &mut problems);
    for problem in problems.iter().filter(|problem| problem.severity == Severity::Error) {
        let field = problem.path.trim_start_matches("[0]").trim_start_matches('.');
        let field = if field == "replicas" { "count" } else { field };
        let message = format!("`{field}` of `{}`: {}", node.name.value, problem.message);
        diagnostics.push(
            Diagnostic::error(problem.code, manifest.place(node.name.span), message)
                .path(format!("nodes[{}].{field}", node.index))
                .help(problem.help.clone()),
        );
    }
    !problems.has_errors()
}

/// Returns what runs: the image the driver boots, and what instances are configured from.
fn runtime_of(
    repository: &Repository<'_>,
    manifest: &Entry<Manifest>,
    node: &ManifestNode,
    driver: Driver,
    found: &mut Evaluated,
) -> Option<Runtime> {
    let mut runtime = Runtime::new(driver);
    let defaults = &repository.site.settings.value.defaults;
    let named = match node.kind.as_ref()?.value {
        NodeType::Ct => node.template.clone().or_else(|| node.image.clone()),
        NodeType::Vm | NodeType::Pve => node.image.clone().or_else(|| defaults.image.clone()),
    };
    let mut image = |name: &str| {
        let artifact = repository.fleet.images.get(name).map(|image| Artifact::Blob {
            sha256: image.value.sha256,
            size: repository.image_sizes.get(name).copied().unwrap_or_default(),
            name: name.to_owned(),
        });
        if artifact.is_none() {
            let place = manifest.place(node.name.span);
            let message = format!("fleet.yaml has no image `{name}`");
            let known = repository.fleet.images.keys().map(String::as_str);
            let help = stead_model::diagnostic::suggest(name, known);
            found.diagnostics.push(Diagnostic::error("fleet/unknown-image", place, message).help(help));
        }
        artifact
    };
    match driver {
        Driver::Sandbox => {}
        Driver::Oci => runtime.rootfs = Some(image(named.as_deref().unwrap_or("rootfs"))?),
        Driver::CloudHypervisor | Driver::Qemu => {
            if repository.fleet.images.contains_key("kernel") {
                runtime.kernel = image("kernel");
                runtime.initrd =
                    repository.fleet.images.contains_key("initrd").then(|| image("initrd")).flatten();
            } else {
                runtime.firmware = Some(image("firmware")?);
            }
            let disk = image(named.as_deref().unwrap_or("disk"))?;
            runtime.disks.push(Disk {
                source: DiskSource::Image(disk),
                read_only: false,
                format: DiskFormat::Raw,
            });
        }
    }
    if let Some(spec) = &node.spec {
        let blob = match resolve(repository.site, &spec.value, &node.name.value) {
            Ok(resolved) => serde_json::to_value(&resolved).unwrap_or_default(),
            Err(error) => {
                let place = manifest.place(spec.span);
                found.diagnostics.push(Diagnostic::error("fleet/unresolved-spec", place, error.to_string()));
                return None;
            }
        };
        let text = config_text(blob);
        let sha256 = Digest::of(text.as_bytes());
        let size = text.len() as u64;
        found.blobs.insert(sha256, text.into_bytes());
        runtime.config = Some(Artifact::Blob { sha256, size, name: format!("{}.json", spec.value) });
    }
    Some(runtime)
}

/// Returns a resolved spec without what is particular to one node: the worker fills that in.
fn config_text(mut resolved: serde_json::Value) -> String {
    if let Some(fields) = resolved.as_object_mut() {
        fields.remove("node");
        if let Some(identity) = fields.get_mut("identity").and_then(serde_json::Value::as_object_mut) {
            identity.remove("hostname");
        }
    }
    canonical_json::to_string(&resolved)
}

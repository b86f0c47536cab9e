//! `stead validate`: whether a manifest, or a whole site, can be built as it is written. Touches nothing.

mod show;

use std::io::ErrorKind;

use serde_json::{Value, json};
use stead_drivers::site::{Manifests, read_bounded};
use stead_engine::nodes::{
    Added, Checked, Choice, ChosenHost, FindHostError, ForHost, SelectError, Verb, check_manifest,
    check_site_for, find_host, select,
};
use stead_model::diagnostic::Place;
use stead_model::fleet::FleetFile;
use stead_model::site::Manifest;
use stead_model::yaml::{self, Codes};
use stead_model::{Diagnostic, Diagnostics, ExitCode};

use crate::args::ValidateArgs;
use crate::commands::manifest::{self, has_own};
use crate::commands::nodes::only_looks;
use crate::commands::site::{self, SiteDir};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::settings::Settings;

pub(super) use show::row;
use show::{print, with_document};

pub(super) fn run(
    args: &ValidateArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    match only_looks::check(&args.act, settings, output).and_then(|()| validate(args, settings)) {
        Ok(result) => Ok(print(args, settings, output, &result)),
        Err(failure) => Err(with_document(failure)),
    }
}

/// What was found.
struct Validated {
    site: SiteDir,
    manifest: Option<String>,
    host: Option<ChosenHost>,
    checked: Checked,
    nodes: Vec<Value>,
    notes: Vec<String>,
}

fn validate(args: &ValidateArgs, settings: &Settings) -> Result<Validated, Failure> {
    let selects = args.select.mode.is_some() || args.select.depth.is_some() || !args.select.only.is_empty();
    if selects && args.manifest.manifest.is_none() && !has_own(&args.manifest) {
        let message = "--mode, --only and --depth are about the nodes of one manifest";
        return Err(Failure::new(FailureKind::Usage, message).hint("name it with -M NAME"));
    }
    let directory = site::find(&args.site, settings)?;
    let manifests = match (&args.manifest.manifest, has_own(&args.manifest)) {
        (Some(name), _) => Manifests::One(name),
        (None, true) => Manifests::None,
        (None, false) => Manifests::All,
    };
    let loaded = site::load(&directory, manifests)?;
    let site = &loaded.site;
    let mut broken = Diagnostics::default();
    let mut unknown = None;
    let host = match args.host.as_deref().map(|host| find_host(site, host)) {
        None => None,
        Some(Ok(host)) => Some(host),
        Some(Err(FindHostError::Unknown(problem))) => {
            unknown = Some(*problem);
            None
        }
        Some(Err(FindHostError::Broken(found))) => {
            broken = found;
            None
        }
    };
    let entry = manifest::find(&args.manifest, site, &loaded.manifest_names, settings)?;
    let Some(entry) = entry else {
        // What is wrong with the host's own files is among what is wrong with the site.
        let diagnostics = check_site_for(site, host.as_ref());
        let mut checked = Checked { diagnostics, ..Checked::default() };
        checked.diagnostics.0.extend(loaded.warnings.0);
        checked.diagnostics.0.extend(check_fleet_file(&directory).0);
        refuse_host(unknown, &checked.diagnostics)?;
        return Ok(Validated {
            site: directory,
            manifest: None,
            host,
            checked,
            nodes: Vec::new(),
            notes: Vec::new(),
        });
    };
    let wanted = ForHost { mode: args.select.mode.map(Into::into), host: host.as_ref() };
    let mut checked = check_manifest(site, &entry, wanted);
    checked.diagnostics.0.append(&mut broken.0);
    checked.diagnostics.0.extend(loaded.warnings.0);
    refuse_host(unknown, &checked.diagnostics)?;
    let mut notes = Vec::new();
    let nodes = list_nodes(args, &entry.value, &checked, &mut notes)?;
    let manifest = entry.value.name.map(|name| name.to_string());
    Ok(Validated { site: directory, manifest, host, checked, nodes, notes })
}

/// Returns what is wrong with the `fleet.yaml` of a site that a fleet is made of.
fn check_fleet_file(directory: &SiteDir) -> Diagnostics {
    let name = directory.shown.join("fleet.yaml").display().to_string();
    let bytes = match read_bounded(&directory.path.join("fleet.yaml")) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Diagnostics::default(),
        Err(error) => {
            let message = format!("it cannot be read: {error}");
            return Diagnostics(vec![Diagnostic::error(Codes::FLEET.bad_value, Place::Named(name), message)]);
        }
    };
    let mut problems = Diagnostics::default();
    match yaml::source(&name, bytes, Codes::FLEET) {
        Ok(source) => drop(FleetFile::read(&source, &mut problems)),
        Err(found) => problems = found,
    }
    problems
}

/// Fails if there is no such host; what else is wrong is told with it.
fn refuse_host(unknown: Option<Diagnostic>, others: &Diagnostics) -> Result<(), Failure> {
    let Some(problem) = unknown else { return Ok(()) };
    let all = std::iter::once(problem).chain(others.iter().cloned());
    Err(Failure::invalid(Diagnostics(all.collect())))
}

/// Returns the problem that nothing is selected.
pub(super) fn no_selection(error: &SelectError) -> Diagnostic {
    let candidates = match error {
        SelectError::NoMatch { candidates, .. } | SelectError::Unknown { candidates, .. } => {
            candidates.clone()
        }
        SelectError::Deeper { .. } | SelectError::BadGlob { .. } => Vec::new(),
    };
    let place = Place::Named("--only".to_owned());
    Diagnostic::error("node/not-found", place, error.to_string()).candidates(candidates)
}

/// Returns a row for every selected node, in the order they are made.
fn list_nodes(
    args: &ValidateArgs,
    manifest: &Manifest,
    checked: &Checked,
    notes: &mut Vec<String>,
) -> Result<Vec<Value>, Failure> {
    let Some(forest) = &checked.forest else { return Ok(Vec::new()) };
    let choice = Choice { depth: args.select.depth, only: args.select.only.clone() };
    let selection = match select(forest, &choice, Verb::Make, &|_| false) {
        Ok(selection) => selection,
        // What is wrong with the manifest matters more than what was to be picked of it.
        Err(_) if checked.diagnostics.has_errors() => return Ok(Vec::new()),
        Err(error) => return Err(Failure::invalid(Diagnostics(vec![no_selection(&error)]))),
    };
    for (index, added) in &selection.added {
        let name = &forest.nodes[*index].name;
        notes.push(match added {
            Added::Ancestor => format!("{name} is added: a selected node is made in it"),
            Added::Descendant => format!("{name} is added: it is in a selected node"),
        });
    }
    let name = |index: usize| forest.nodes[index].name.as_str();
    let rows = forest.order().iter().filter(|index| selection.selected[**index]).map(|&index| {
        let (node, known) = (&forest.nodes[index], &checked.nodes[index]);
        let written = &manifest.nodes[node.written];
        json!({
            "name": node.name, "type": written.kind.as_ref().map(|kind| kind.value.word()), "mode": known.modes.config.word(),
            "depth": node.depth, "parent": node.parent.map(name),
            "peers": node.peers.iter().map(|peer| name(*peer)).collect::<Vec<_>>(),
            "spec": written.spec.as_ref().map(|spec| &spec.value), "spec_digest": known.spec_digest,
            "preset": written.preset.as_ref().map(|preset| &preset.value), "hosting": known.is_hosting,
        })
    });
    Ok(rows.collect())
}

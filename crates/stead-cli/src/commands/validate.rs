//! `stead validate`: whether a manifest, or a whole site, can be built as it is written. Touches nothing.

use std::path::Path;

use serde_json::{Value, json};
use stead_drivers::site::{Manifests, read_bounded};
use stead_engine::nodes::{
    Added, Checked, Choice, ChosenHost, FindHostError, ForHost, SelectError, Verb, check_manifest,
    check_site_for, find_host, select,
};
use stead_model::diagnostic::{Place, suggest};
use stead_model::site::manifest::Origin;
use stead_model::site::{Entry, FileKind, Manifest};
use stead_model::{Diagnostic, Diagnostics, ExitCode, Severity, Site};

use crate::args::{ManifestArgs, ValidateArgs};
use crate::commands::site::{self, SiteDir};
use crate::failure::{Failure, FailureKind};
use crate::output::{Output, Paint};
use crate::render::json as render_json;
use crate::settings::Settings;

pub(super) fn run(
    args: &ValidateArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    match validate(args, settings) {
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
    let entry = find_manifest(&args.manifest, site, &loaded.manifest_names, settings)?;
    let Some(entry) = entry else {
        // What is wrong with the host's own files is among what is wrong with the site.
        let diagnostics = check_site_for(site, host.as_ref());
        let mut checked = Checked { diagnostics, ..Checked::default() };
        checked.diagnostics.0.extend(loaded.warnings.0);
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

pub(super) fn has_own(args: &ManifestArgs) -> bool {
    args.manifest_file.is_some() || args.manifest_json.is_some()
}

/// Fails if there is no such host; what else is wrong is told with it.
fn refuse_host(unknown: Option<Diagnostic>, others: &Diagnostics) -> Result<(), Failure> {
    let Some(problem) = unknown else { return Ok(()) };
    let all = std::iter::once(problem).chain(others.iter().cloned());
    Err(Failure::invalid(Diagnostics(all.collect())))
}

/// Returns the manifest that was asked for; none: the whole site.
pub(super) fn find_manifest(
    args: &ManifestArgs,
    site: &Site,
    names: &[String],
    settings: &Settings,
) -> Result<Option<Entry<Manifest>>, Failure> {
    if let Some(name) = &args.manifest {
        return match site.manifests.get(name.as_str()) {
            Some(entry) => Ok(Some(entry.clone())),
            // A file that has no usable name has said so.
            None if names.contains(name) && !site.strays.0.is_empty() => {
                Err(Failure::invalid(site.strays.clone()))
            }
            None => {
                let known = || names.iter().map(String::as_str);
                let message = format!("there is no {}", FileKind::Manifest.path_of(name));
                let problem =
                    Diagnostic::error("node/unknown-fk", Place::Named(format!("-M {name}")), message);
                let problem = problem.help(suggest(name, known())).candidates(names.to_vec());
                Err(Failure::invalid(Diagnostics(vec![problem])))
            }
        };
    }
    if let Some(path) = &args.manifest_file {
        if path == Path::new("-") {
            return Ok(Some(Site::read_manifest("-", site::read_stdin()?, Origin::Elsewhere)));
        }
        let bytes = read_bounded(&settings.current_dir.join(path)).map_err(|error| {
            Failure::new(FailureKind::Invalid, format!("cannot read {}: {error}", path.display()))
        })?;
        return Ok(Some(Site::read_manifest(&path.display().to_string(), bytes, Origin::Elsewhere)));
    }
    let Some(text) = &args.manifest_json else { return Ok(None) };
    let bytes = if text == "-" { site::read_stdin()? } else { text.clone().into_bytes() };
    Ok(Some(Site::read_manifest("--manifest-json", bytes, Origin::Given)))
}

/// Returns the problem that nothing is selected.
fn no_selection(error: &SelectError) -> Diagnostic {
    let candidates = match error {
        SelectError::NoMatch { candidates, .. } => candidates.clone(),
        SelectError::BadGlob { .. } => Vec::new(),
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

fn print(args: &ValidateArgs, settings: &Settings, output: &mut Output, result: &Validated) -> ExitCode {
    let diagnostics = &result.checked.diagnostics;
    let is_valid = !diagnostics.has_errors();
    if args.json {
        output.out.print(&render_json::document(&document(result, is_valid)));
    } else {
        output.err.print(&diagnostics.render(settings.stderr_paint == Paint::Ansi));
        output.out.print(&to_text(result, is_valid));
    }
    if is_valid { ExitCode::Success } else { ExitCode::Failed }
}

fn document(result: &Validated, is_valid: bool) -> Value {
    let diagnostics = &result.checked.diagnostics;
    let of = |severity: Severity| -> Vec<Value> {
        diagnostics.iter().filter(|problem| problem.severity == severity).map(row).collect()
    };
    let mut document = json!({
        "valid": is_valid, "site": result.site.path.display().to_string(), "manifest": result.manifest,
        "host": result.host.as_ref().map(|host| &host.name),
        "pattern": result.checked.pattern.map(|pattern| pattern.word()), "nodes": result.nodes,
        "errors": of(Severity::Error), "warnings": of(Severity::Warning),
    });
    if !is_valid {
        document["error"] = json!({"code": "node/invalid", "message": diagnostics.summary()});
        document["diagnostics"] = diagnostics.iter().map(row).collect();
    }
    document
}

/// Returns a problem with all the keys it may have.
pub(super) fn row(problem: &Diagnostic) -> Value {
    let mut row = problem.to_json();
    row["candidates"] = json!(problem.candidates);
    row
}

/// Returns a failure whose document says that nothing is valid.
fn with_document(failure: Failure) -> Failure {
    site::with_document(failure, "stead validate").knowing("valid", json!(false))
}

fn to_text(result: &Validated, is_valid: bool) -> String {
    let verdict = if is_valid { "valid" } else { "not valid" };
    let Some(manifest) = &result.manifest else {
        return format!("{}: {verdict}\n", result.site.path.display());
    };
    let pattern = result.checked.pattern.map_or_else(String::new, |pattern| {
        let inferred = if result.checked.is_inferred { " (inferred)" } else { "" };
        format!(", {}{inferred}", pattern.word())
    });
    let mut text = format!("{manifest}: {verdict}{pattern}, {} nodes\n", result.nodes.len());
    for node in &result.nodes {
        let field = |key: &str| node[key].as_str().unwrap_or("-").to_owned();
        let level = node["depth"].as_u64().unwrap_or_default() + 1;
        let mut line = format!("  {} {} {} level {level}", field("name"), field("type"), field("mode"));
        if let Some(parent) = node["parent"].as_str() {
            line.push_str(&format!(" in {parent}"));
        }
        if let Some(spec) = node["spec"].as_str() {
            line.push_str(&format!(" spec {spec}"));
        }
        text.push_str(&line);
        text.push('\n');
    }
    result.notes.iter().for_each(|note| text.push_str(&format!("  note: {note}\n")));
    text
}

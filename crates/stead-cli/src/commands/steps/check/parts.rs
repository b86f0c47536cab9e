//! Checks of one catalogue: steps, layers, values, inputs, orphans, golden files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use similar::TextDiff;
use stead_engine::compile::steps::golden_lines;
use stead_engine::values::{self, Inputs, LayerInput, LayerState, Values};
use stead_model::catalogue::{Catalogue, LayerOrigin, StepAction};
use stead_model::steps::lines::CheckLevel;
use stead_model::{Diagnostic, Diagnostics, StepId, StepMode, argv};

use super::Checks;
use crate::commands::steps::files::StepFiles;
use crate::commands::steps::find::Listed;
use crate::commands::steps::load::{self, Given};
use crate::commands::steps::target;
use crate::failure::Failure;
use crate::settings::Settings;

/// How many files below a scanned directory are looked at.
const MOST_FILES: usize = 100_000;

/// Checks one catalogue.
pub(super) fn check(
    listed: &Listed,
    catalogue: &Catalogue,
    given: &Given,
    settings: &Settings,
    checks: &mut Checks,
) -> Result<(), Failure> {
    let mut problems = Diagnostics::default();
    let values = load::values_of(catalogue, given, settings, &mut problems)?;
    target::find(catalogue, &values, settings, &mut problems);
    let selected: BTreeSet<StepId> = [StepMode::Apply, StepMode::Delete]
        .into_iter()
        .flat_map(|mode| catalogue.listed(mode))
        .filter(|(_, step)| step.gate.as_ref().is_none_or(|gate| values.judge(gate).holds))
        .map(|(_, step)| step.id.clone())
        .collect();
    values::require(catalogue, &values, &selected, &mut problems);
    values::inputs(catalogue, &values, &selected, &mut problems);

    let mut by_key: BTreeMap<String, Vec<Diagnostic>> = BTreeMap::new();
    for problem in problems.0 {
        by_key.entry(key_of(catalogue, given, &problem)).or_default().push(problem);
    }
    let mut tell = |key: String, fine: String, checks: &mut Checks| match by_key.remove(&key) {
        Some(found) => found.iter().for_each(|problem| checks.problem(key.clone(), problem)),
        None => checks.ok(key, fine),
    };
    let count = catalogue.steps.len();
    tell("catalogue".to_owned(), format!("{} ({}): {count} steps", catalogue.name, listed.shown), checks);
    steps(catalogue, checks);
    layers(catalogue, given, checks, &mut tell);
    for name in catalogue.vars.keys().chain(catalogue.controls.keys()) {
        let fine = match values.get(name) {
            Some(effective) => format!("from {}", effective.source),
            None => "has no value".to_owned(),
        };
        tell(format!("var.{name}"), fine, checks);
    }
    for (name, inputs) in &catalogue.inputs {
        tell(format!("inputs.{name}"), format!("{} keys", inputs.keys.len()), checks);
    }
    for (key, found) in by_key {
        found.iter().for_each(|problem| checks.problem(key.clone(), problem));
    }
    orphans(catalogue, checks);
    for mode in [StepMode::Apply, StepMode::Delete] {
        golden(catalogue, mode, checks);
    }
    Ok(())
}

/// Returns the key that a problem belongs to.
fn key_of(catalogue: &Catalogue, given: &Given, problem: &Diagnostic) -> String {
    let mut path = problem.path.split('.');
    match (path.next(), path.next()) {
        (Some("vars"), Some(name)) => return format!("var.{name}"),
        (Some("inputs"), Some(name)) => return format!("inputs.{name}"),
        (Some(_) | None, _) => {}
    }
    let (file, _) = problem.place.location();
    let is_layer = catalogue.layers.iter().any(|layer| layer_name(layer, given) == file);
    if is_layer { format!("layer.{file}") } else { "catalogue".to_owned() }
}

fn layer_name<'a>(layer: &'a stead_model::catalogue::Layer, given: &'a Given) -> &'a str {
    match &layer.origin {
        LayerOrigin::File(file) => &file.value,
        LayerOrigin::Flag(_) => given.profile.as_ref().map_or("", |profile| &profile.typed),
    }
}

fn steps(catalogue: &Catalogue, checks: &mut Checks) {
    let is_listed = |id: &StepId| {
        [StepMode::Apply, StepMode::Delete]
            .into_iter()
            .any(|mode| catalogue.listed(mode).any(|(_, step)| step.id == *id))
    };
    let mut step_files = StepFiles::below(&catalogue.root);
    for step in catalogue.steps.values() {
        let key = format!("step.{}", step.id);
        if let StepAction::Run(path) = &step.action
            && let Some((_, message, help)) = step_files.inspect(&path.value).problem(&path.value)
        {
            checks.add(CheckLevel::Bad, key.clone(), format!("{message} ({help})")).place(&path.place);
            if help.starts_with("chmod ") {
                let file = catalogue.root.join(&path.value).display().to_string();
                checks.suggest(argv::quote_text(["chmod", "+x", &file]));
            }
        } else if !is_listed(&step.id) {
            checks.add(CheckLevel::Warn, key, "no list has it").place(&step.place);
        } else {
            checks.ok(key, step.path());
        }
    }
}

fn layers(
    catalogue: &Catalogue,
    given: &Given,
    checks: &mut Checks,
    tell: &mut dyn FnMut(String, String, &mut Checks),
) {
    for layer in &catalogue.layers {
        let name = layer_name(layer, given);
        let path = match (&layer.origin, &given.profile) {
            (LayerOrigin::File(file), _) => catalogue.root.join(&file.value),
            (LayerOrigin::Flag(_), Some(profile)) => profile.path.clone(),
            (LayerOrigin::Flag(_), None) => continue,
        };
        let key = format!("layer.{name}");
        let mode = fs::metadata(&path).map(|found| found.permissions().mode());
        tell(key.clone(), if mode.is_ok() { "parses" } else { "is not there" }.to_owned(), checks);
        if layer.secret && mode.is_ok_and(|mode| mode & 0o077 != 0) {
            checks.add(CheckLevel::Warn, key, "holds secrets and others can read it").place(&layer.place);
            checks.suggest(argv::quote_text(["chmod", "600", &path.display().to_string()]));
        }
    }
}

/// Executables below scanned directories that no step names.
fn orphans(catalogue: &Catalogue, checks: &mut Checks) {
    let named: BTreeSet<&str> = catalogue.steps.values().map(|step| step.path()).collect();
    for directory in &catalogue.check.scan {
        let mut found = Vec::new();
        executables(&catalogue.root.join(&directory.value), &catalogue.root, &mut found);
        found.sort();
        for path in found.iter().filter(|path| !named.contains(path.as_str())) {
            checks.add(CheckLevel::Warn, format!("orphan.{path}"), "an executable that no step names");
        }
    }
}

/// Collects the executables below a directory, relative to the root. Links are not followed.
fn executables(directory: &Path, root: &Path, found: &mut Vec<String>) {
    let mut open = vec![directory.to_owned()];
    let mut looked_at = 0;
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            looked_at += 1;
            if looked_at > MOST_FILES {
                return;
            }
            let (path, Ok(metadata)) = (entry.path(), entry.metadata()) else { continue };
            if metadata.is_dir() {
                open.push(path);
            } else if metadata.is_file() && metadata.permissions().mode() & 0o111 != 0 {
                let inside = path.strip_prefix(root).unwrap_or(&path);
                found.push(inside.display().to_string());
            }
        }
    }
}

/// Compares the plan at the catalogue's defaults with its golden file.
fn golden(catalogue: &Catalogue, mode: StepMode, checks: &mut Checks) {
    let Some(golden) = catalogue.check.golden.get(mode) else { return };
    let key = format!("golden.{mode}");
    let lines = golden_lines(catalogue, mode, &defaults(catalogue));
    let wanted: String = lines.iter().map(|line| format!("{line}\n")).collect();
    match fs::read_to_string(catalogue.root.join(&golden.value)) {
        Ok(found) if same_lines(&found, &wanted) => checks.ok(key, format!("{} steps", lines.len())),
        Ok(found) => {
            let diff = TextDiff::from_lines(&found, &wanted);
            let diff = diff.unified_diff().header(&golden.value, "the plan").to_string();
            let message = format!("{} is not the plan\n{diff}", golden.value);
            checks.add(CheckLevel::Bad, key, message).file = Some(golden.value.clone());
        }
        Err(error) => {
            checks
                .add(CheckLevel::Bad, key, format!("cannot read {}: {error}", golden.value))
                .place(&golden.place);
        }
    }
}

/// A missing final newline is no difference.
fn same_lines(one: &str, other: &str) -> bool {
    one.lines().eq(other.lines())
}

/// Returns the values of a catalogue to which nobody has given any.
fn defaults(catalogue: &Catalogue) -> Values {
    let none = |layer: &stead_model::catalogue::Layer| LayerInput {
        name: String::new(),
        state: LayerState::NotGiven,
        secret: layer.secret,
    };
    let layers: Vec<LayerInput> = catalogue.layers.iter().map(none).collect();
    let inputs = Inputs { catalogue, layers: &layers, environment: &BTreeMap::new(), set: &[] };
    values::resolve(&inputs, &mut Diagnostics::default())
}

//! Checks of one catalogue: steps, layers, values, inputs, orphans, golden files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use similar::TextDiff;
use stead_engine::compile::steps::golden_lines;
use stead_engine::values::{self, Inputs, LayerInput, LayerState, Values};
use stead_model::catalogue::{Catalogue, LayerOrigin, Step, StepAction};
use stead_model::diagnostic::Place;
use stead_model::steps::SelectionRow;
use stead_model::steps::lines::CheckLevel;
use stead_model::{Diagnostic, Diagnostics, StepId, StepMode, argv};

use super::Checks;
use crate::commands::steps::files::StepFiles;
use crate::commands::steps::load::{self, Configured, Given};
use crate::commands::steps::plan::{self, Wish};
use crate::failure::{Failure, Source};

/// How many files below a scanned directory are looked at.
const MOST_FILES: usize = 100_000;

/// Problems by the keys they belong to.
type ByKey = BTreeMap<String, Vec<Diagnostic>>;

/// Checks one catalogue, in which `problems` were found when it was configured.
pub(super) fn check(configured: &Configured, mut problems: Diagnostics, checks: &mut Checks) {
    let Configured { listed, catalogue, values, given, .. } = configured;
    problems.0.extend(planned(configured));
    let mut told = BTreeSet::new();
    let mut by_key = ByKey::new();
    // What is wrong in both lists is told once.
    for problem in problems.0.into_iter().filter(|problem| told.insert(problem.to_string())) {
        by_key.entry(key_of(catalogue, given, &problem)).or_default().push(problem);
    }
    let count = catalogue.steps.len();
    let fine = format!("{} ({}): {count} steps", catalogue.name, listed.shown);
    tell(&mut by_key, "catalogue".to_owned(), fine, checks);
    steps(configured, &mut by_key, checks);
    layers(catalogue, given, &mut by_key, checks);
    for name in catalogue.vars.keys().chain(catalogue.controls.keys()) {
        let fine = match values.get(name) {
            Some(effective) => format!("from {}", effective.source),
            None => "has no value".to_owned(),
        };
        tell(&mut by_key, format!("var.{name}"), fine, checks);
    }
    for (name, inputs) in &catalogue.inputs {
        tell(&mut by_key, format!("inputs.{name}"), format!("{} keys", inputs.keys.len()), checks);
    }
    for (key, found) in by_key {
        found.iter().for_each(|problem| checks.problem(key.clone(), problem));
    }
    orphans(catalogue, checks);
    for mode in [StepMode::Apply, StepMode::Delete] {
        golden(catalogue, mode, checks);
    }
}

/// Adds what is wrong under `key`, or that it is fine.
fn tell(by_key: &mut ByKey, key: String, fine: String, checks: &mut Checks) {
    match by_key.remove(&key) {
        Some(found) => found.iter().for_each(|problem| checks.problem(key.clone(), problem)),
        None => checks.ok(key, fine),
    }
}

/// Returns what would keep the steps of both lists from running, their files apart: those are checked for every step.
fn planned(configured: &Configured) -> impl Iterator<Item = Diagnostic> {
    let Configured { catalogue, values, .. } = configured;
    let mut problems = Diagnostics::default();
    let mut open: BTreeSet<StepId> = BTreeSet::new();
    for mode in [StepMode::Apply, StepMode::Delete] {
        let is_open = |step: &Step| step.gate.as_ref().is_none_or(|gate| values.judge(gate).holds);
        let listed = catalogue.listed(mode).map(|(_, step)| step).filter(|step| is_open(step));
        let listed: Vec<StepId> = listed.map(|step| step.id.clone()).collect();
        if listed.is_empty() {
            continue;
        }
        open.extend(listed);
        let wish = Wish { mode, selection: SelectionRow::default(), only_from: "--only" };
        match plan::plan(configured, &wish) {
            Ok(planned) => problems.0.extend(planned.problems.0),
            Err(Failure { source: Source::Diagnostics(found), .. }) => problems.0.extend(found.0),
            Err(Failure { source: Source::Message(_) | Source::Error(_), .. }) => {}
        }
    }
    // One that is required whatever runs is required here too.
    values::require(catalogue, values, &open, &mut problems);
    let is_of_file = |problem: &Diagnostic| {
        ["steps/missing", "steps/not-executable", "steps/not-runnable"].contains(&problem.code)
    };
    problems.0.into_iter().filter(move |problem| !is_of_file(problem))
}

/// Returns the key that a problem belongs to.
fn key_of(catalogue: &Catalogue, given: &Given, problem: &Diagnostic) -> String {
    if let Some(layer) = problem.path.strip_prefix("layers.") {
        return format!("layer.{layer}");
    }
    let mut path = problem.path.split('.');
    match (path.next(), path.next()) {
        (Some("vars"), Some(name)) => return format!("var.{name}"),
        (Some("inputs"), Some(name)) => return format!("inputs.{name}"),
        (Some("steps"), Some(id)) => return format!("step.{id}"),
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

fn steps(configured: &Configured, by_key: &mut ByKey, checks: &mut Checks) {
    let catalogue = &configured.catalogue;
    let listed: BTreeSet<&StepId> = [StepMode::Apply, StepMode::Delete]
        .into_iter()
        .flat_map(|mode| catalogue.listed(mode))
        .map(|(_, step)| &step.id)
        .collect();
    let mut step_files = StepFiles::below(&catalogue.root);
    for step in catalogue.steps.values() {
        let key = format!("step.{}", step.id);
        let before = checks.rows.len();
        if let StepAction::Run(path) = &step.action
            && let Some((_, message, help)) = step_files.inspect(&path.value).problem(&path.value)
        {
            checks.add(CheckLevel::Bad, key.clone(), format!("{message} ({help})")).place(&path.place);
            if help.starts_with("chmod ") {
                let file = catalogue.root.join(&path.value).display().to_string();
                checks.suggest(argv::quote_text(["chmod", "+x", &file]));
            }
        }
        for problem in by_key.remove(&key).unwrap_or_default() {
            checks.problem(key.clone(), &problem);
        }
        if checks.rows.len() > before {
            continue;
        }
        if !listed.contains(&step.id) {
            checks.add(CheckLevel::Warn, key, "no list has it").place(&step.place);
        } else if let Some(cwd) = missing_cwd(configured, step) {
            let message =
                format!("its `cwd`, `{}`, is no directory now: a step before it has to make it", cwd.1);
            checks.add(CheckLevel::Warn, key, message).place(cwd.0);
        } else {
            checks.ok(key, step.path());
        }
    }
}

/// Returns where a step runs, if there is no such directory.
fn missing_cwd<'a>(configured: &Configured, step: &'a Step) -> Option<(&'a Place, String)> {
    let text = step.cwd.as_ref()?;
    let cwd = configured.values.expand_path(text).ok()?.text;
    (!configured.catalogue.root.join(&cwd).is_dir()).then_some((&text.place, cwd))
}

fn layers(catalogue: &Catalogue, given: &Given, by_key: &mut ByKey, checks: &mut Checks) {
    for layer in &catalogue.layers {
        let name = layer_name(layer, given);
        let path = match (&layer.origin, &given.profile) {
            (LayerOrigin::File(file), _) => catalogue.root.join(&file.value),
            (LayerOrigin::Flag(_), Some(profile)) => profile.path.clone(),
            (LayerOrigin::Flag(_), None) => continue,
        };
        let key = format!("layer.{name}");
        let mode = fs::metadata(&path).map(|found| found.permissions().mode());
        let fine = if mode.is_ok() { "parses" } else { "is not there" };
        tell(by_key, key.clone(), fine.to_owned(), checks);
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
        let path = catalogue.root.join(&directory.value);
        if let Err(error) = fs::read_dir(&path) {
            let message = format!("`check.scan` names it, and it cannot be read as a directory: {error}");
            let key = format!("orphan.{}", directory.value);
            checks.add(CheckLevel::Bad, key, message).place(&directory.place);
            continue;
        }
        executables(&path, &catalogue.root, &mut found);
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
    let found = load::read_regular(&catalogue.root.join(&golden.value));
    match found.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()) {
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

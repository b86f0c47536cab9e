//! Two bundles compared without looking into captures: outcomes, durations, programs, files and numbers.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stead_model::time::Timestamp;

use super::lines::{TextChange, compare_text};
use super::metrics::{Metric, compare_documents};
use super::sides::{RoleSide, Side};

/// What two bundles differ in beyond their captures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Generic {
    /// The run as a whole.
    pub run: RunChange,
    /// Each role of either side.
    pub roles: BTreeMap<String, RoleChange>,
    /// Artifacts that only the new bundle has, such as `client/out.json`.
    pub files_added: Vec<String>,
    /// Artifacts that only the baseline has.
    pub files_removed: Vec<String>,
    /// Artifacts whose content differs.
    pub files_changed: Vec<String>,
    /// Numbers of JSON artifacts that both have, by `<role>/<file>#<JSON pointer>`.
    pub metrics: BTreeMap<String, Metric>,
    /// Text files that differ.
    pub text: Vec<TextChange>,
}

/// A value on both sides; null where it is not there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// In the baseline.
    pub baseline: Value,
    /// In what is compared.
    pub compare: Value,
    /// Whether they differ.
    pub changed: bool,
}

/// What two runs differ in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunChange {
    /// How they ended.
    pub status: Change,
    /// What they exited with.
    pub exit_code: Change,
    /// How long they took, in seconds.
    pub duration_s: Metric,
    /// What made them, where it differs.
    pub versions: BTreeMap<String, Change>,
}

/// What a role differs in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoleChange {
    /// How it ended.
    pub status: Change,
    /// What it exited with.
    pub exit_code: Change,
    /// The signal that ended it.
    pub signal: Change,
    /// How long it took, in seconds.
    pub duration_s: Metric,
    /// Its command.
    pub argv: Change,
    /// Its program and agent, where they differ.
    pub versions: BTreeMap<String, Change>,
}

impl Generic {
    /// Returns what differs between two bundles; lines of text that match one of `ignored` do not count.
    pub(crate) fn of(baseline: &Side, compare: &Side, ignored: &[Regex]) -> Self {
        let names: BTreeSet<&String> = baseline.roles.keys().chain(compare.roles.keys()).collect();
        let none = RoleSide::default();
        let mut generic = Self {
            run: run_change(baseline, compare),
            roles: BTreeMap::new(),
            files_added: Vec::new(),
            files_removed: Vec::new(),
            files_changed: Vec::new(),
            metrics: BTreeMap::new(),
            text: Vec::new(),
        };
        for name in names {
            let old = baseline.roles.get(name).unwrap_or(&none);
            let new = compare.roles.get(name).unwrap_or(&none);
            let versions = |side: &Side| side.versions.as_ref()?.get("roles")?.get(name).cloned();
            let versions = differing_fields(versions(baseline).as_ref(), versions(compare).as_ref());
            generic.roles.insert(name.clone(), role_change(old, new, versions));
            generic.compare_files(name, old, new, ignored);
        }
        generic
    }

    /// Returns how many roles ended with another exit code or signal.
    pub(crate) fn exit_codes_changed(&self) -> u64 {
        let changed = self.roles.values().filter(|role| role.exit_code.changed || role.signal.changed);
        changed.count() as u64
    }

    fn compare_files(&mut self, role: &str, old: &RoleSide, new: &RoleSide, ignored: &[Regex]) {
        let shown = |file: &str| format!("{role}/{file}");
        for (file, hash) in &new.artifacts {
            match old.artifacts.get(file) {
                None => self.files_added.push(shown(file)),
                Some(before) if before != hash => self.files_changed.push(shown(file)),
                Some(_) => {}
            }
        }
        let removed = old.artifacts.keys().filter(|file| !new.artifacts.contains_key(*file));
        self.files_removed.extend(removed.map(|file| shown(file)));
        for (file, numbers) in &new.numbers {
            if let Some(before) = old.numbers.get(file) {
                compare_documents(&shown(file), before, numbers, &mut self.metrics);
            }
        }
        for (file, text) in &new.text {
            let before = old.text.get(file);
            self.text.extend(before.and_then(|before| compare_text(&shown(file), before, text, ignored)));
        }
    }
}

fn run_change(baseline: &Side, compare: &Side) -> RunChange {
    let (old, new) = (baseline.run_meta.as_ref(), compare.run_meta.as_ref());
    let duration = |meta: Option<&Value>| meta?.get("duration_seconds")?.as_f64();
    let without_roles = |side: &Side| {
        let mut versions = side.versions.clone()?;
        versions.as_object_mut()?.remove("roles");
        Some(versions)
    };
    RunChange {
        status: change(old, new, "status"),
        exit_code: change(old, new, "exit_code"),
        duration_s: Metric::of_floats(duration(old), duration(new)),
        versions: differing_fields(without_roles(baseline).as_ref(), without_roles(compare).as_ref()),
    }
}

fn role_change(old: &RoleSide, new: &RoleSide, versions: BTreeMap<String, Change>) -> RoleChange {
    let (old, new) = (old.role_meta.as_ref(), new.role_meta.as_ref());
    RoleChange {
        status: change(old, new, "status"),
        exit_code: change(old, new, "exit_code"),
        signal: change(old, new, "signal"),
        duration_s: Metric::of_floats(role_seconds(old), role_seconds(new)),
        argv: changed(command_of(old), command_of(new)),
        versions,
    }
}

fn role_seconds(meta: Option<&Value>) -> Option<f64> {
    let time = |key: &str| Timestamp::parse(meta?.get(key)?.as_str()?);
    let micros = time("finished_at")?.as_micros().checked_sub(time("started_at")?.as_micros())?;
    Some(micros as f64 / 1e6)
}

fn change(old: Option<&Value>, new: Option<&Value>, key: &str) -> Change {
    let value = |meta: Option<&Value>| meta.and_then(|meta| meta.get(key)).cloned().unwrap_or(Value::Null);
    changed(value(old), value(new))
}

fn changed(baseline: Value, compare: Value) -> Change {
    Change { changed: baseline != compare, baseline, compare }
}

/// Returns the command of a role. What its run's directory is called is always another name, and left out.
fn command_of(meta: Option<&Value>) -> Value {
    let Some(argv) = meta.and_then(|meta| meta.get("argv")) else { return Value::Null };
    let workdir = meta.and_then(|meta| meta.get("workdir")).and_then(Value::as_str).unwrap_or_default();
    let own = workdir.split('/').rev().nth(1).filter(|name| name.starts_with("run-"));
    let (Some(words), Some(own)) = (argv.as_array(), own) else { return argv.clone() };
    let word =
        |word: &Value| word.as_str().map_or_else(|| word.clone(), |text| text.replace(own, "run-…").into());
    words.iter().map(word).collect()
}

/// Returns the fields of two objects that differ. The offset between two clocks always does and is left out.
fn differing_fields(old: Option<&Value>, new: Option<&Value>) -> BTreeMap<String, Change> {
    let keys = |value: Option<&Value>| -> BTreeSet<String> {
        value.and_then(Value::as_object).into_iter().flat_map(|fields| fields.keys().cloned()).collect()
    };
    let all = &keys(old) | &keys(new);
    let changes = all.into_iter().filter(|key| key != "clock_offset_ms").map(|key| {
        let change = change(old, new, &key);
        (key, change)
    });
    changes.filter(|(_, change)| change.changed).collect()
}

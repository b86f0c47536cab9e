//! Checks of the files that intents edit, and the undoing of a switch that a crash left half done.

use stead_drivers::intent;
use stead_engine::compile::intents::{is_allowed, possible_values};
use stead_model::catalogue::{Catalogue, Edit, Intent};
use stead_model::diagnostic::{Place, Source};
use stead_model::intent::FileEdit;
use stead_model::steps::lines::CheckLevel;
use stead_model::yaml::edit::{Found, Spot, Wanted};
use stead_model::{Diagnostic, ErrorClass};

use super::Checks;
use crate::commands::intent::recover::words;
use crate::settings::Settings;

/// Undoes what a dead intent left half done, and says so.
pub(super) fn recover(catalogue: &Catalogue, settings: &Settings, checks: &mut Checks) {
    let state_dir = settings.state_dir.from(&catalogue.root).path;
    match intent::recover(&state_dir, &catalogue.root) {
        Ok(None) => {}
        Ok(Some(recovered)) => {
            checks.add(CheckLevel::Warn, format!("intent.{}", recovered.intent), words(&recovered));
        }
        Err(error) if error.class == ErrorClass::Locked => {
            checks.add(CheckLevel::Warn, "intent", error.message);
        }
        Err(error) => {
            checks.add(
                CheckLevel::Bad,
                "intent",
                format!("a switch that is half done could not be undone: {error}"),
            );
        }
    }
}

/// Checks every file that intents of a catalogue edit.
pub(super) fn check(catalogue: &Catalogue, checks: &mut Checks) {
    for (name, intent) in &catalogue.intents {
        for edit in &intent.edits {
            check_edit(catalogue, intent, edit, &format!("intent.{name}.{}", edit.file.value), checks);
        }
    }
}

fn check_edit(catalogue: &Catalogue, intent: &Intent, edit: &Edit, key: &str, checks: &mut Checks) {
    let spot = edit.spot();
    let found = match intent::current(&catalogue.root, &edit.file.value, &spot) {
        Ok(found) => found,
        Err(problems) => {
            problems.iter().for_each(|problem| checks.problem(key, problem));
            return;
        }
    };
    if !is_allowed(intent, edit, &found.value) {
        let message = format!("`{}` is {}, which the intent never sets", edit.path.value, found.value);
        checks.add(CheckLevel::Bad, key, message).place(&place_of(edit, &found));
        return;
    }
    let missing = missing(catalogue, intent, edit, &spot);
    missing.iter().for_each(|problem| checks.problem(key, problem));
    if missing.is_empty() {
        checks.ok(key, format!("`{}` is {}", edit.path.value, found.value));
    }
}

/// Returns which values that the intent may set are no existing paths, if they must be.
fn missing(catalogue: &Catalogue, intent: &Intent, edit: &Edit, spot: &Spot) -> Vec<Diagnostic> {
    let of_value = |value: Wanted| FileEdit {
        file: edit.file.value.clone(),
        select: spot.select.clone(),
        path: spot.path.clone(),
        value,
        must_exist: edit.must_exist,
    };
    let values = possible_values(intent, edit).into_iter();
    values.filter_map(|value| intent::missing_path(&catalogue.root, &of_value(value))).collect()
}

fn place_of(edit: &Edit, found: &Found) -> Place {
    let source = Source { name: edit.file.value.as_str().into(), text: "".into() };
    Place::Text { source, span: found.span }
}

//! Checks of the files that intents edit, and the undoing of a switch that a crash left half done.

use stead_drivers::intent;
use stead_engine::compile::intents::is_allowed;
use stead_model::catalogue::{Catalogue, Edit, Intent};
use stead_model::diagnostic::{Place, Source};
use stead_model::intent::FileEdit;
use stead_model::steps::lines::CheckLevel;
use stead_model::yaml::edit::{Found, Spot, Wanted};

use super::Checks;
use crate::commands::intent::recover::words;
use crate::settings::Settings;

/// Undoes what a dead intent left half done, and says so.
pub(super) fn recover(catalogue: &Catalogue, settings: &Settings, checks: &mut Checks) {
    let state_dir = settings.state_dir.from(&catalogue.root).path;
    match intent::recover(&state_dir) {
        Ok(None) => {}
        Ok(Some(recovered)) => {
            checks.add(CheckLevel::Warn, format!("intent.{}", recovered.intent), words(&recovered));
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
    } else if let Some(problem) = missing(catalogue, edit, spot, &found) {
        checks.problem(key, &problem);
    } else {
        checks.ok(key, format!("`{}` is {}", edit.path.value, found.value));
    }
}

/// Returns that the value is no existing path, if it must be one.
fn missing(catalogue: &Catalogue, edit: &Edit, spot: Spot, found: &Found) -> Option<stead_model::Diagnostic> {
    let text = found.value.as_str()?;
    let edit = FileEdit {
        file: edit.file.value.clone(),
        select: spot.select,
        path: spot.path,
        value: Wanted::Text(text.to_owned()),
        must_exist: edit.must_exist,
    };
    intent::missing_path(&catalogue.root, &edit)
}

fn place_of(edit: &Edit, found: &Found) -> Place {
    let source = Source { name: edit.file.value.as_str().into(), text: "".into() };
    Place::Text { source, span: found.span }
}

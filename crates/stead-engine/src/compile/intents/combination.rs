//! Which choice of parameters the files of an intent show.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use stead_model::catalogue::{Edit, EditValue, Intent};
use stead_model::layer::{Piece, Text};
use stead_model::yaml::edit::Wanted;

use super::{Choice, wanted};

/// A template of more combinations is not taken apart.
const MOST_COMBINATIONS: usize = 10_000;

/// What the files of an intent show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Current {
    /// They are as this choice makes them. Parameters that no file shows are not in it.
    Choice(Choice),
    /// Each has a value of the intent, but not of one choice.
    Mixed,
    /// One of them has a value that the intent never sets, or none.
    Unknown,
}

/// Returns which choice makes the values that were found, one for each edit in order; none: it could not be read.
pub fn current(intent: &Intent, found: &[Option<Value>]) -> Current {
    let mut fitting = vec![Choice::new()];
    let mut is_mixed = false;
    for (edit, found) in intent.edits.iter().zip(found) {
        let making = found.as_ref().map(|found| choices_making(intent, edit, found)).unwrap_or_default();
        if making.is_empty() {
            return Current::Unknown;
        }
        fitting = fitting.iter().flat_map(|known| making.iter().filter_map(|new| join(known, new))).collect();
        is_mixed |= fitting.is_empty();
    }
    let Some((first, others)) = fitting.split_first().filter(|_| !is_mixed) else { return Current::Mixed };
    let agreed =
        first.iter().filter(|(key, value)| others.iter().all(|other| other.get(*key) == Some(*value)));
    Current::Choice(agreed.map(|(key, value)| (key.clone(), value.clone())).collect())
}

/// Whether some choice makes `edit` write `found`.
pub fn is_allowed(intent: &Intent, edit: &Edit, found: &Value) -> bool {
    !choices_making(intent, edit, found).is_empty()
}

/// Returns every value that `edit` may write, each once.
pub fn possible_values(intent: &Intent, edit: &Edit) -> BTreeSet<Wanted> {
    choices(intent, edit).iter().filter_map(|choice| wanted(edit, choice).ok()).collect()
}

fn join(known: &Choice, new: &Choice) -> Option<Choice> {
    let agree = new.iter().all(|(key, value)| known.get(key).is_none_or(|known| known == value));
    agree.then(|| known.iter().chain(new).map(|(key, value)| (key.clone(), value.clone())).collect())
}

/// Returns the choices of the edit's own parameters that make it write `found`.
fn choices_making(intent: &Intent, edit: &Edit, found: &Value) -> Vec<Choice> {
    let mut choices = choices(intent, edit);
    choices.retain(|choice| wanted(edit, choice).is_ok_and(|wanted| wanted.to_json() == *found));
    choices
}

/// Returns all choices of the edit's own parameters; none if there are too many.
fn choices(intent: &Intent, edit: &Edit) -> Vec<Choice> {
    let mut names = BTreeSet::new();
    match &edit.value {
        EditValue::Template(text) => references(&text.value, &mut names),
        EditValue::By { param, .. } => drop(names.insert(param.value.as_str())),
    }
    let mut choices = vec![BTreeMap::new()];
    for name in names {
        let Some(param) = intent.params.get(name) else { continue };
        if choices.len().saturating_mul(param.allowed.len()) > MOST_COMBINATIONS {
            return Vec::new();
        }
        let with = |choice: &Choice, value: &String| {
            let mut choice = choice.clone();
            choice.insert(name.to_owned(), value.clone());
            choice
        };
        choices = choices
            .iter()
            .flat_map(|choice| param.allowed.iter().map(move |value| with(choice, value)))
            .collect();
    }
    choices
}

fn references<'t>(text: &'t Text, names: &mut BTreeSet<&'t str>) {
    for piece in &text.0 {
        match piece {
            Piece::Literal(_) => {}
            Piece::Reference { name, default, .. } => {
                names.insert(name);
                if let Some(default) = default {
                    references(default, names);
                }
            }
        }
    }
}

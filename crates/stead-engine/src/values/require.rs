//! Requirements: which values must not be empty for the steps of a run.

use std::collections::BTreeSet;

use stead_model::StepId;
use stead_model::catalogue::{Catalogue, LayerOrigin, Var};
use stead_model::diagnostic::{Diagnostic, Diagnostics};

use super::Values;

/// Diagnostic code: a value that must be there is not.
pub(super) const REQUIRED: &str = "value/required";

/// Reports every required variable without a value: its `when` holds, and one of its steps is `selected`.
pub fn require(
    catalogue: &Catalogue,
    values: &Values,
    selected: &BTreeSet<StepId>,
    diagnostics: &mut Diagnostics,
) {
    for (name, var) in catalogue.vars.iter().filter(|(_, var)| var.required) {
        if values.is_broken(name) || values.get(name).is_some_and(|effective| !effective.value.is_empty()) {
            continue;
        }
        let Some(why) = why(values, var, selected) else { continue };
        let message = format!("`{name}` has no value, and {why}");
        diagnostics.push(
            Diagnostic::error(REQUIRED, var.place.clone(), message)
                .path(format!("vars.{name}"))
                .help(where_to_set(catalogue, name)),
        );
    }
}

/// Returns why the variable is required, if it is.
fn why(values: &Values, var: &Var, selected: &BTreeSet<StepId>) -> Option<String> {
    let mut why = "it is required".to_owned();
    if !var.for_steps.is_empty() {
        let step = var.for_steps.iter().find(|step| selected.contains(&step.value))?;
        why.push_str(&format!(" for the step `{}`", step.value));
    }
    if let Some(gate) = &var.when {
        let verdict = values.judge(gate);
        if !verdict.holds {
            return None;
        }
        why.push_str(&format!(" while {}", verdict.reason(gate)));
    }
    Some(why)
}

/// Returns what to do to give `name` a value.
pub(super) fn where_to_set(catalogue: &Catalogue, name: &str) -> String {
    let is_secret = catalogue.is_secret(name);
    let file = |secret: bool| {
        catalogue.layers.iter().rev().filter(|layer| layer.secret == secret).find_map(|layer| {
            match &layer.origin {
                LayerOrigin::File(path) => Some(path.value.as_str()),
                LayerOrigin::Flag(_) => None,
            }
        })
    };
    let layer = file(is_secret).or_else(|| file(!is_secret));
    let mut ways: Vec<String> = layer.into_iter().map(|file| format!("`{name}=…` in {file}")).collect();
    if catalogue.vars.get(name).is_some_and(|var| var.env) {
        ways.push("the environment".to_owned());
    }
    if !is_secret || ways.is_empty() {
        ways.push(format!("`--set {name}=…`"));
    }
    format!("set it: {}", ways.join(", or "))
}

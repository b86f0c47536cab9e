//! The values of inputs: which value each key of a document gets.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use stead_model::StepId;
use stead_model::catalogue::{Catalogue, InputKey, Inputs, StepAction};
use stead_model::diagnostic::{Diagnostic, Diagnostics};

use super::require::{REQUIRED, where_to_set};
use super::rules::{no_fit, wrong_length};
use super::{STARS, Values};

/// The value of one key of a document. It is secret.
#[derive(Clone, PartialEq, Eq)]
pub struct InputValue {
    /// The value; empty if it has none.
    pub value: String,
    /// The key whose value it is, if it is another's.
    pub fallback: Option<String>,
}

impl fmt::Debug for InputValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InputValue").field("value", &STARS).field("fallback", &self.fallback).finish()
    }
}

/// Returns the values of every document that a `selected` step hands over, by the document's name, and reports what is
/// wrong with them. Every key is there, empty if it has no value.
pub fn inputs(
    catalogue: &Catalogue,
    values: &Values,
    selected: &BTreeSet<StepId>,
    diagnostics: &mut Diagnostics,
) -> BTreeMap<String, BTreeMap<String, InputValue>> {
    let names: BTreeSet<&str> = selected
        .iter()
        .filter_map(|id| match &catalogue.steps.get(id)?.action {
            StepAction::Inputs { inputs, .. } => Some(inputs.value.as_str()),
            StepAction::Run(_) => None,
        })
        .collect();
    let mut documents = BTreeMap::new();
    for name in names {
        if let Some(declared) = catalogue.inputs.get(name) {
            let mut document = Document { catalogue, values, name, declared, diagnostics };
            documents.insert(name.to_owned(), document.keys());
        }
    }
    documents
}

struct Document<'a> {
    catalogue: &'a Catalogue,
    values: &'a Values,
    name: &'a str,
    declared: &'a Inputs,
    diagnostics: &'a mut Diagnostics,
}

impl Document<'_> {
    fn keys(&mut self) -> BTreeMap<String, InputValue> {
        let declared = self.declared;
        declared.keys.iter().map(|(name, key)| (name.clone(), self.key(name, key))).collect()
    }

    fn key(&mut self, name: &str, key: &InputKey) -> InputValue {
        let input = self.value(name, key);
        if !is_active(self.values, key) || self.values.is_broken(&key.variable.value) {
            return input;
        }
        if let Some(fallback) = &input.fallback {
            let message =
                format!("the input `{name}` has no value; that of `{fallback}` is handed over in its place");
            let place = key.place.clone();
            let help = key.warn.clone().unwrap_or_else(|| where_to_set(self.catalogue, &key.variable.value));
            self.report(name, Diagnostic::warning("value/fallback", place, message).help(help));
        }
        if input.value.is_empty() {
            if key.required {
                let because = match &key.when {
                    Some(gate) => format!(" while {}", self.values.judge(gate).reason(gate)),
                    None => String::new(),
                };
                let message = format!("the input `{name}` has no value, and it is required{because}");
                let help = where_to_set(self.catalogue, &key.variable.value);
                self.report(name, Diagnostic::error(REQUIRED, key.place.clone(), message).help(help));
            }
            return input;
        }
        let broken = [wrong_length(&key.length, &input.value), no_fit(key.pattern.as_ref(), &input.value)];
        for rule in broken.into_iter().flatten() {
            let source = match self.values.get(&key.variable.value) {
                Some(effective) if input.fallback.is_none() => format!(", from {}", effective.source),
                Some(_) | None => String::new(),
            };
            let message = format!("the input `{name}` ({} bytes{source}) must {rule}", input.value.len());
            self.report(name, Diagnostic::error("value/rule", key.place.clone(), message));
        }
        input
    }

    fn report(&mut self, key: &str, problem: Diagnostic) {
        self.diagnostics.push(problem.path(format!("inputs.{}.keys.{key}", self.name)));
    }

    /// Returns the key's own value, or that of the first key with one along its fallbacks. A key's fallback acts only
    /// while its `when` holds.
    fn value(&self, name: &str, key: &InputKey) -> InputValue {
        let mut seen = BTreeSet::from([name]);
        let (mut at, mut current) = (name, key);
        loop {
            let value = self.values.get(&current.variable.value).map_or("", |effective| &effective.value);
            if !value.is_empty() {
                let fallback = (at != name).then(|| at.to_owned());
                return InputValue { value: value.to_owned(), fallback };
            }
            let next = current.fallback.as_ref().filter(|_| is_active(self.values, current));
            let next = next.and_then(|next| self.declared.keys.get_key_value(next.value.as_str()));
            match next.filter(|(next, _)| seen.insert(next)) {
                Some((next, key)) => (at, current) = (next, key),
                None => return InputValue { value: String::new(), fallback: None },
            }
        }
    }
}

fn is_active(values: &Values, key: &InputKey) -> bool {
    key.when.as_ref().is_none_or(|gate| values.judge(gate).holds)
}

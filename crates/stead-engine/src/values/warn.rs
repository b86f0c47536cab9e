//! Warnings where somebody set a variable of the environment and it has no effect.

use stead_model::diagnostic::{Diagnostic, Diagnostics, Place};

use super::expand::refers_to;
use super::merge::Entry;
use super::{ENVIRONMENT, Inputs, ValueSource, Values};

const CODE: &str = "value/environment";

/// Controls that other catalogues read: whoever sets one expects something.
const EXPECTED: [(&str, &str); 4] = [
    ("ONLY", "use `--only`, or list it in `controls`"),
    ("DRY_RUN", "use `--dry-run`, or list it in `controls`"),
    ("PROFILE_EXCLUSIVE", "declare it in `controls`"),
    ("PROFILE_FILE", "use the flag of the catalogue's flag layer"),
];

/// Warns of every name for which the environment holds another value than the one that counts.
pub(super) fn warn(values: &Values, inputs: &Inputs<'_>, diagnostics: &mut Diagnostics) {
    for (name, entry) in &values.entries {
        let Some(held) = values.environment(name) else { continue };
        if is_ignored(name, entry, held) {
            let instead = match &entry.effective {
                Some(effective) => format!("the value from {} counts", effective.source),
                None => "it has no value".to_owned(),
            };
            let message = format!("the environment's `{name}` is not read: {instead}");
            diagnostics.push(
                Diagnostic::warning(CODE, Place::Named(ENVIRONMENT.to_owned()), message)
                    .help(format!("declare it with `env: true`, or use `--set {name}=…`")),
            );
        }
    }
    for (name, help) in EXPECTED {
        let is_set = inputs.environment.get(name).is_some_and(|value| !value.is_empty());
        if is_set && !values.entries.contains_key(name) {
            let message = format!(
                "the environment's `{name}` is not read by the catalogue `{}`",
                inputs.catalogue.name
            );
            diagnostics
                .push(Diagnostic::warning(CODE, Place::Named(ENVIRONMENT.to_owned()), message).help(help));
        }
    }
}

fn is_ignored(name: &str, entry: &Entry, held: &str) -> bool {
    let is_concerned = entry.is_declared || !entry.candidates.is_empty();
    if entry.reads_environment || entry.is_broken || !is_concerned {
        return false;
    }
    match (&entry.effective, entry.candidates.last()) {
        (Some(effective), Some(winner)) => {
            effective.value != held && effective.source != ValueSource::Set && !refers_to(winner, name)
        }
        (Some(_) | None, _) => true,
    }
}

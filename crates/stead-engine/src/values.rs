//! The values of a catalogue's names: defaults, layer files, environment and `--set` merged, then expanded.
//!
//! [`resolve`] merges (`values/merge.rs`), expands references after merging (`values/expand.rs`), checks the rules
//! (`values/rules.rs`) and warns where the environment is not obeyed (`values/warn.rs`). [`Values`] then answers what
//! a name's value is and where it came from, judges gates, checks requirements and makes the values of inputs.
//!
//! It reads nothing: files and environment come in as values. A secret value never gets into a message or `Debug`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use stead_model::catalogue::{At, Catalogue};
use stead_model::diagnostic::{Diagnostic, Diagnostics, Place, Source, nearest, suggest};
use stead_model::layer::{LayerFile, Text};

mod expand;
mod explain;
mod gate;
mod inputs;
mod merge;
mod require;
mod rules;
mod warn;

pub use explain::{Explanation, LayerRow, RowState};
pub use gate::{Deciding, Verdict};
pub use inputs::{InputValue, inputs};
pub use merge::refuse_reserved;
pub use require::require;

use merge::{Candidate, Entry};

/// What is shown in place of a secret.
pub const STARS: &str = "***";

/// The place of problems with values from the environment, and how that source is called.
const ENVIRONMENT: &str = "environment";
/// The flag that sets values, and how that source is called.
const SET: &str = "--set";

/// Everything that values are made from.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// The catalogue.
    pub catalogue: &'a Catalogue,
    /// Its layers, one for each and in its order.
    pub layers: &'a [LayerInput],
    /// The process environment. Empty values count as absent.
    pub environment: &'a BTreeMap<String, String>,
    /// The `--set` flags in order: the last of a name wins.
    pub set: &'a [(String, String)],
}

impl fmt::Debug for Inputs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inputs({}, {} layers)", self.catalogue.name, self.layers.len())
    }
}

/// One layer as it was found.
#[derive(Clone, Debug)]
pub struct LayerInput {
    /// How it is called in output: its path as written, the flag's path as typed, or the flag itself if it is not given.
    pub name: String,
    /// What is known of it.
    pub state: LayerState,
    /// Whether its values are secret.
    pub secret: bool,
}

/// What is known of a layer.
#[derive(Clone, Debug)]
pub enum LayerState {
    /// It was read.
    Read(LayerFile),
    /// There is no such file; whoever looked for it says whether that is a problem.
    Missing,
    /// Its `unless` holds: it was not read.
    Skipped,
    /// Its flag was not given.
    NotGiven,
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueSource {
    /// The catalogue.
    Default,
    /// A line of a layer.
    File {
        /// The layer's name.
        name: Arc<str>,
        /// The line of the key.
        line: u32,
    },
    /// The process environment.
    Environment,
    /// A `--set` flag.
    Set,
}

impl fmt::Display for ValueSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { name, line } => write!(f, "{name}:{line}"),
            Self::Environment => f.write_str(ENVIRONMENT),
            Self::Set => f.write_str(SET),
        }
    }
}

impl Serialize for ValueSource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The value a name has.
#[derive(Clone, PartialEq, Eq)]
pub struct Effective {
    /// The value, expanded; may be empty.
    pub value: String,
    /// Whether it must never be shown.
    pub secret: bool,
    /// Where it comes from.
    pub source: ValueSource,
}

impl Effective {
    /// Returns the value as it may be shown.
    pub fn shown(&self) -> &str {
        if self.secret { STARS } else { &self.value }
    }
}

impl fmt::Debug for Effective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} from {}", self.shown(), self.source)
    }
}

/// A text after expansion.
#[derive(Clone, PartialEq, Eq)]
pub struct Expanded {
    /// The text.
    pub text: String,
    /// Whether a secret is in it.
    pub secret: bool,
}

impl fmt::Debug for Expanded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", if self.secret { STARS } else { &self.text })
    }
}

/// One row of the effective configuration, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConfigRow {
    /// The name.
    pub key: String,
    /// Its value; stars if it is secret.
    pub value: String,
    /// Whether it is.
    pub secret: bool,
    /// Where the value comes from.
    pub source: ValueSource,
}

/// The values of all names of a catalogue.
pub struct Values {
    /// Every name that is declared or set.
    entries: BTreeMap<String, Entry>,
    layers: Vec<merge::LayerView>,
    environment: BTreeMap<String, String>,
}

/// Returns the values that `inputs` give, every problem added to `diagnostics`.
///
/// Names whose value could not be made have none; what refers to them is not reported again.
pub fn resolve(inputs: &Inputs<'_>, diagnostics: &mut Diagnostics) -> Values {
    let mut values = merge::merge(inputs, diagnostics);
    expand::expand_all(&mut values, diagnostics);
    rules::check(&values, inputs.catalogue, diagnostics);
    warn::warn(&values, inputs, diagnostics);
    values
}

/// Returns for each layer of `catalogue` whether it is read at all: its `unless` does not hold.
///
/// What `unless` may name cannot be set by layers, so this is known before any is read. Bad values are not reported
/// here: [`resolve`] does.
pub fn layers_to_read(
    catalogue: &Catalogue,
    environment: &BTreeMap<String, String>,
    set: &[(String, String)],
) -> Vec<bool> {
    let inputs = Inputs { catalogue, layers: &[], environment, set };
    let mut unread = Diagnostics::default();
    let mut values = merge::merge(&inputs, &mut unread);
    expand::expand_all(&mut values, &mut unread);
    let is_read = |gate| !values.judge(gate).holds;
    catalogue.layers.iter().map(|layer| layer.unless.as_ref().is_none_or(is_read)).collect()
}

impl Values {
    /// Returns the value of `name`; nothing if it is not set, or not known to catalogue, layers and `--set`.
    pub fn get(&self, name: &str) -> Option<&Effective> {
        self.entries.get(name)?.effective.as_ref()
    }

    /// Returns every name that has a value, sorted.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Effective)> {
        self.entries.iter().filter_map(|(name, entry)| Some((name.as_str(), entry.effective.as_ref()?)))
    }

    /// Returns the effective configuration as it is shown, sorted by name.
    pub fn config(&self) -> Vec<ConfigRow> {
        self.iter()
            .map(|(name, effective)| ConfigRow {
                key: name.to_owned(),
                value: effective.shown().to_owned(),
                secret: effective.secret,
                source: effective.source.clone(),
            })
            .collect()
    }

    /// Returns `text` with its references replaced by their values, or which of them have none.
    pub fn expand(&self, text: &At<Text>) -> Result<Expanded, Box<Diagnostic>> {
        expand::expand_text(self, text)
    }

    /// Returns the path that `text` is. It is absolute only if the text says so: by a slash of its own at the front, or
    /// by a value there that is absolute. A value that is empty makes no root of what follows it.
    pub fn expand_path(&self, text: &At<Text>) -> Result<Expanded, Box<Diagnostic>> {
        let expanded = self.expand(text)?;
        if expanded.text.starts_with('/') && !expand::is_absolute(self, &text.value) {
            let message =
                format!("`{}` becomes an absolute path: a value in it is empty", text.value.written());
            let problem = Diagnostic::error("steps/catalogue", text.place.clone(), message);
            return Err(Box::new(problem.help("give the value, or write `${NAME:-.}`")));
        }
        Ok(expanded)
    }

    /// Returns that no name `key` is known here, with the nearest that is.
    pub fn unknown_key(&self, key: &str) -> Diagnostic {
        let known = || self.entries.keys().map(String::as_str);
        let message = format!("no variable, control or layer is called `{key}`");
        Diagnostic::error("steps/unknown-key", Place::Named(key.to_owned()), message)
            .help(suggest(key, known()))
            .candidates(nearest(key, known()).map(str::to_owned).into_iter().collect())
    }

    /// Returns the layer's text that may be shown if what it says is secret or not.
    fn layer_source(&self, layer: usize, secret: bool) -> Option<&Source> {
        let view = self.layers.get(layer)?;
        if secret { view.concealed.as_ref() } else { view.open.as_ref() }
    }

    fn candidates(&self, name: &str) -> &[Candidate] {
        self.entries.get(name).map_or(&[], |entry| &entry.candidates)
    }

    /// Whether `name` has no value because something is wrong, which has been reported.
    fn is_broken(&self, name: &str) -> bool {
        self.entries.get(name).is_some_and(|entry| entry.is_broken)
    }

    /// Returns what the environment holds for `name`, if that is not empty.
    fn environment(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests;

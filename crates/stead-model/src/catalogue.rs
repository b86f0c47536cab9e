//! The catalogue: the steps there are, the two orders in which they run, what configures them, the inputs handed over
//! as a secret document and the intents that edit files.
//!
//! A [`Catalogue`] is what one file says, defaults filled in and every name in it checked. Which steps a run takes,
//! and with which values, `stead-engine` decides.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::diagnostic::{Diagnostics, Place, Source, Span};
use crate::id::{PlanName, StepId};
use crate::layer::Text;

mod gate;
mod inputs;
mod intent;
pub mod keys;
mod pattern;
mod read;
pub mod reserved;
mod step;
#[cfg(test)]
pub(crate) mod tests;
mod value;

pub use gate::{Condition, Gate};
pub use inputs::{Document, InputKey, Inputs, Sink, SinkFormat};
pub use intent::{Edit, EditValue, Intent, IntentParam, KeyPath, PathPart, ScalarKind, Then};
pub use pattern::Pattern;
pub use step::{Granted, Group, Step, StepAction};
pub use value::{Control, ControlKind, Rules, Var, VarKind};

/// A value with the place it was written at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// Where it is written.
    pub place: Place,
}

/// What the steps of a run do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepMode {
    /// They bring something about.
    Apply,
    /// They take it away.
    Delete,
}

impl StepMode {
    /// Every mode with its word.
    pub const WORDS: [(&'static str, Self); 2] = [("apply", Self::Apply), ("delete", Self::Delete)];

    /// Returns the word used in files and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "apply",
            Self::Delete => "delete",
        }
    }
}

impl fmt::Display for StepMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One value for each mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerMode<T> {
    /// For apply.
    pub apply: T,
    /// For delete.
    pub delete: T,
}

impl<T> PerMode<T> {
    /// Returns the value for `mode`.
    pub fn get(&self, mode: StepMode) -> &T {
        match mode {
            StepMode::Apply => &self.apply,
            StepMode::Delete => &self.delete,
        }
    }

    /// Returns the value for `mode`, to be changed.
    pub fn get_mut(&mut self, mode: StepMode) -> &mut T {
        match mode {
            StepMode::Apply => &mut self.apply,
            StepMode::Delete => &mut self.delete,
        }
    }
}

/// What one catalogue file says.
#[derive(Clone, Debug, PartialEq)]
pub struct Catalogue {
    /// The file.
    pub source: Source,
    /// Its name: `[a-z][a-z0-9-]*`.
    pub name: PlanName,
    /// What it is for.
    pub doc: Option<String>,
    /// Absolute; every relative path in the catalogue starts here.
    pub root: PathBuf,
    /// What its runs act on; none: `<name>@<root>`.
    pub target: Option<Target>,
    /// What happens to keys of layers that are not declared.
    pub undeclared: Undeclared,
    /// What configures the steps, low to high.
    pub layers: Vec<Layer>,
    /// Switches of the front door, by name.
    pub controls: BTreeMap<String, Control>,
    /// Variables of the steps, by name. No name is a control as well.
    pub vars: BTreeMap<String, Var>,
    /// The steps.
    pub steps: BTreeMap<StepId, Step>,
    /// The order of apply.
    pub apply: Vec<Group>,
    /// The order of delete, written on its own; none: there is no delete.
    pub delete: Option<Vec<Group>>,
    /// What makes steps wait, by mode.
    pub order: PerMode<Order>,
    /// Key `limits.parallel`: steps at once under `order: needs`.
    pub parallel: u32,
    /// Documents of secret values, by name.
    pub inputs: BTreeMap<String, Inputs>,
    /// Edits of files, by name.
    pub intents: BTreeMap<String, Intent>,
    /// What `steps check` looks at besides the rest.
    pub check: CheckSpec,
}

impl Catalogue {
    /// Steps at once under `order: needs`, unless `limits.parallel` says otherwise.
    pub const PARALLEL: u32 = 8;

    /// Returns the catalogue `source` holds, or every problem in it. `file` is its absolute path, by which its root is
    /// known.
    pub fn read(source: &Source, file: &Path) -> Result<Self, Diagnostics> {
        read::catalogue(source, file)
    }

    /// Returns the list of `mode`, none if the catalogue has no delete.
    pub fn list(&self, mode: StepMode) -> Option<&[Group]> {
        match mode {
            StepMode::Apply => Some(&self.apply),
            StepMode::Delete => self.delete.as_deref(),
        }
    }

    /// Returns the steps of `mode` in listed order, each with its group.
    pub fn listed(&self, mode: StepMode) -> impl Iterator<Item = (&Group, &Step)> {
        let groups = self.list(mode).unwrap_or_default();
        groups.iter().flat_map(move |group| {
            group.steps.iter().filter_map(move |id| Some((group, self.steps.get(&id.value)?)))
        })
    }

    /// Whether every value of `name` is secret: it is declared so, or a key of inputs takes it.
    pub fn is_secret(&self, name: &str) -> bool {
        self.vars.get(name).is_some_and(|var| var.secret)
            || self
                .inputs
                .values()
                .flat_map(|inputs| inputs.keys.values())
                .any(|key| key.variable.value == name)
    }

    /// Returns the text of the file with the defaults of secret variables masked: what may be kept and shown.
    pub fn shown_text(&self) -> String {
        let secret = self.vars.iter().filter(|(name, _)| self.is_secret(name));
        let mut spans: Vec<Span> = secret
            .filter_map(|(_, var)| match &var.default.as_ref()?.place {
                Place::Text { span, .. } => Some(*span),
                Place::Call { .. } | Place::Named(_) => None,
            })
            .collect();
        spans.sort_unstable_by_key(|span| std::cmp::Reverse(span.start));
        let mut text = self.source.text.to_string();
        for span in spans {
            text.replace_range(span.start..span.end, "'***'");
        }
        text
    }

    /// Returns the names of all declared controls and variables, sorted.
    pub fn declared(&self) -> impl Iterator<Item = &str> {
        let mut names: Vec<&str> = self.controls.keys().chain(self.vars.keys()).map(String::as_str).collect();
        names.sort_unstable();
        names.into_iter()
    }
}

/// Where the name of what is acted on comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The current context of the kubeconfig.
    Kubeconfig {
        /// Used if there is none; none: `unknown`.
        default: Option<At<Text>>,
    },
    /// This machine's name.
    Hostname,
    /// This text.
    Value(At<Text>),
}

/// What happens to keys of layers that neither `vars` nor `controls` declares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Undeclared {
    /// Nothing.
    Allow,
    /// One warning each.
    #[default]
    Warn,
    /// An error.
    Error,
}

impl Undeclared {
    /// Every choice with its word.
    pub const WORDS: [(&'static str, Self); 3] =
        [("allow", Self::Allow), ("warn", Self::Warn), ("error", Self::Error)];
}

/// One layer of values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Where it is.
    pub origin: LayerOrigin,
    /// It is not read while this holds. Names `in_layers: false` controls only.
    pub unless: Option<Gate>,
    /// Whether every value from it is secret, unless declared bool, int or enum.
    pub secret: bool,
    /// Whether a missing file is skipped. Says nothing of a flag's file.
    pub optional: bool,
    /// Where the layer is written.
    pub place: Place,
}

/// Where a layer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerOrigin {
    /// In this file, relative to the root.
    File(At<String>),
    /// In the file the flag names.
    Flag(ProfileFlag),
}

/// The flag that names a layer's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileFlag {
    /// `--profile`.
    Profile,
    /// `--host-env`, or `--profile`.
    HostEnv,
}

impl ProfileFlag {
    /// Every flag with its word, which is the flag without dashes.
    pub const WORDS: [(&'static str, Self); 2] = [("profile", Self::Profile), ("host-env", Self::HostEnv)];
}

/// What makes a step wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The step before it in the list.
    #[default]
    Listed,
    /// Its needs only.
    Needs,
}

impl Order {
    /// Every order with its word.
    pub const WORDS: [(&'static str, Self); 2] = [("listed", Self::Listed), ("needs", Self::Needs)];
}

/// What `steps check` looks at besides the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckSpec {
    /// Directories in which every executable should be a step's, relative to the root.
    pub scan: Vec<At<String>>,
    /// Files that hold the lines of the plan, relative to the root.
    pub golden: PerMode<Option<At<String>>>,
}

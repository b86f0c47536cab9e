//! Intents: edits of files in Git by enumerated parameters.

use std::collections::BTreeMap;

use super::At;
use crate::diagnostic::Place;
use crate::layer::Text;
use crate::yaml::edit::Spot;

pub use crate::yaml::edit::{KeyPath, PathPart};

/// One intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// Its parameters.
    pub params: BTreeMap<String, IntentParam>,
    /// What it edits, in written order.
    pub edits: Vec<Edit>,
    /// The apply that follows.
    pub then: Option<Then>,
    /// What it is for.
    pub doc: Option<String>,
    /// Where its name is written.
    pub place: Place,
}

/// A parameter of an intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntentParam {
    /// Key `enum`: its values, at least one.
    pub allowed: Vec<String>,
    /// Its value if it is not given, one of `allowed`; none: it must be given.
    pub default: Option<String>,
    /// What it is for.
    pub doc: Option<String>,
    /// Where its name is written.
    pub place: Place,
}

/// One value in one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The file, relative to the root.
    pub file: At<String>,
    /// Which document of it: the one that has all these values; empty: the file holds exactly one.
    pub select: Vec<(At<KeyPath>, String)>,
    /// Where in the document.
    pub path: At<KeyPath>,
    /// What is written.
    pub value: EditValue,
    /// Key `type`: what it is read as.
    pub kind: ScalarKind,
    /// Whether the value must be an existing path under the root.
    pub must_exist: bool,
    /// Where the edit is written.
    pub place: Place,
}

impl Edit {
    /// Returns which value of the file is meant.
    pub fn spot(&self) -> Spot {
        let select = self.select.iter().map(|(path, text)| (path.value.clone(), text.clone()));
        Spot { select: select.collect(), path: self.path.value.clone() }
    }
}

/// What an edit writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EditValue {
    /// A text whose references are parameters.
    Template(At<Text>),
    /// The text that belongs to the value of a parameter.
    By {
        /// The parameter.
        param: At<String>,
        /// A text for each of its values.
        values: BTreeMap<String, String>,
    },
}

/// What kind of scalar an edit writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScalarKind {
    /// A text.
    #[default]
    String,
    /// A whole number.
    Int,
    /// `true` or `false`.
    Bool,
}

impl ScalarKind {
    /// Every kind with its word.
    pub const WORDS: [(&'static str, Self); 3] =
        [("string", Self::String), ("int", Self::Int), ("bool", Self::Bool)];
}

/// The apply that follows an intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Then {
    /// Tokens as `--only` takes them.
    pub only: Vec<At<String>>,
}

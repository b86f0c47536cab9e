//! Declared names: controls, which are switches of the front door, and variables.

use super::{At, Gate, Pattern};
use crate::diagnostic::Place;
use crate::id::StepId;
use crate::layer::Text;

/// A switch, always readable from the process environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Control {
    /// What values it takes.
    pub kind: ControlKind,
    /// Its value if nothing sets it.
    pub default: Option<At<Text>>,
    /// Whether layers may set it. Never for the built-in ones.
    pub in_layers: bool,
    /// What it is for.
    pub doc: Option<String>,
    /// Where its name is written.
    pub place: Place,
}

/// What values a control takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlKind {
    /// `ONLY`: what `--only` takes.
    Only,
    /// `DRY_RUN`: what `--dry-run` switches.
    DryRun,
    /// `true` or `false`.
    Bool,
    /// One of these.
    Enum(Vec<String>),
}

/// A variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Var {
    /// What values it takes.
    pub kind: VarKind,
    /// Its value if nothing sets it.
    pub default: Option<At<Text>>,
    /// Whether the process environment beats the layers.
    pub env: bool,
    /// Whether its value is secret. Keys of inputs make variables secret as well: ask [`super::Catalogue::is_secret`].
    pub secret: bool,
    /// What holds for every value that is not empty.
    pub rules: Rules,
    /// Whether it must have a value, if `when` holds and a step of `for_steps` is selected.
    pub required: bool,
    /// See `required`.
    pub when: Option<Gate>,
    /// Key `for`: see `required`; empty: always.
    pub for_steps: Vec<At<StepId>>,
    /// What it is for.
    pub doc: Option<String>,
    /// Where its name is written.
    pub place: Place,
}

/// What kind of value a variable takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VarKind {
    /// Any text.
    #[default]
    String,
    /// `true` or `false`.
    Bool,
    /// A whole number.
    Int,
}

impl VarKind {
    /// Every kind with its word.
    pub const WORDS: [(&'static str, Self); 3] =
        [("string", Self::String), ("bool", Self::Bool), ("int", Self::Int)];

    /// Returns the word used in files and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Bool => "bool",
            Self::Int => "int",
        }
    }
}

/// What holds for every value that is not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Key `enum`: it is one of these; empty: anything.
    pub allowed: Vec<String>,
    /// It has one of these lengths in bytes; empty: any.
    pub length: Vec<usize>,
    /// It has at least so many bytes.
    pub min_length: Option<usize>,
    /// It has at most so many bytes.
    pub max_length: Option<usize>,
    /// It fits as a whole.
    pub pattern: Option<Pattern>,
    /// It is not less.
    pub min: Option<i64>,
    /// It is not more.
    pub max: Option<i64>,
}

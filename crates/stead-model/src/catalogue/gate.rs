//! Gates: conditions over declared names.

use super::At;
use crate::diagnostic::Place;

mod parse;

pub(super) use parse::parse;

/// A condition over declared controls and variables, with the text it was written as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gate {
    pub(super) text: String,
    pub(super) condition: Condition,
    pub(super) place: Place,
}

/// What a gate asks. Its depth is bounded by the reader, so that everything may recurse over it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The bool of this name is `true`.
    Name(At<String>),
    /// It does not hold.
    Not(Box<Condition>),
    /// All hold.
    And(Vec<Condition>),
    /// At least one holds.
    Or(Vec<Condition>),
    /// The value of this name is this word; unset compares as empty.
    Equals(At<String>, String),
    /// The value of this name is not this word.
    Differs(At<String>, String),
}

impl Gate {
    /// Returns the gate as it is written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns what it asks.
    pub fn condition(&self) -> &Condition {
        &self.condition
    }

    /// Returns where it is written.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Returns every name in it with its place, in written order, repeats included.
    pub fn names(&self) -> Vec<&At<String>> {
        let mut names = Vec::new();
        self.condition.collect_names(&mut names);
        names
    }
}

impl Condition {
    fn collect_names<'a>(&'a self, names: &mut Vec<&'a At<String>>) {
        match self {
            Self::Name(name) | Self::Equals(name, _) | Self::Differs(name, _) => names.push(name),
            Self::Not(inner) => inner.collect_names(names),
            Self::And(parts) | Self::Or(parts) => {
                for part in parts {
                    part.collect_names(names);
                }
            }
        }
    }
}

//! A step: a script or one built-in action, and the groups that list steps.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{At, Gate, PerMode, StepMode};
use crate::diagnostic::Place;
use crate::id::StepId;
use crate::layer::Text;
use crate::plan::Retry;

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Its name.
    pub id: StepId,
    /// What it does.
    pub action: StepAction,
    /// What it is for.
    pub doc: Option<String>,
    /// The number it goes by: as given, or the digits before the first `_` of its basename.
    pub number: Option<u64>,
    /// Modes in which it may be listed.
    pub modes: BTreeSet<StepMode>,
    /// Modes in which it destroys.
    pub destructive: BTreeSet<StepMode>,
    /// Its arguments.
    pub args: PerMode<Vec<At<Text>>>,
    /// False leaves it out of the plan.
    pub gate: Option<Gate>,
    /// What must be finished before it.
    pub needs: PerMode<Vec<At<StepId>>>,
    /// Variables it gets besides the values.
    pub env: BTreeMap<String, At<Text>>,
    /// The secret variables it may see.
    pub secrets: Granted,
    /// Where it runs; none: the root.
    pub cwd: Option<At<Text>>,
    /// Limit of one attempt.
    pub timeout: Option<Duration>,
    /// How often it is tried again. Class `check` is added to the default classes when it is compiled.
    pub retry: Retry,
    /// Whether an interrupted attempt may simply be made again.
    pub idempotent: bool,
    /// Where its id is written.
    pub place: Place,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepAction {
    /// Runs a script, by its path relative to the root.
    Run(At<String>),
    /// Hands the inputs of this name over.
    Inputs {
        /// Which.
        inputs: At<String>,
        /// Key `as`: the path it goes by; none: the id.
        goes_by: Option<At<String>>,
    },
}

/// The secret variables a step may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Granted {
    /// `["*"]`: all.
    All,
    /// These; none by default.
    Names(Vec<At<String>>),
}

impl Step {
    /// Returns the path it goes by in selection and plan text, relative to the root.
    pub fn path(&self) -> &str {
        match &self.action {
            StepAction::Run(path) => &path.value,
            StepAction::Inputs { goes_by: Some(path), .. } => &path.value,
            StepAction::Inputs { goes_by: None, .. } => self.id.as_str(),
        }
    }

    /// Returns the last part of its path.
    pub fn basename(&self) -> &str {
        let path = self.path();
        path.rsplit_once('/').map_or(path, |(_, name)| name)
    }
}

/// Steps of one list that stand under one heading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The heading.
    pub phase: Option<String>,
    /// The steps in order.
    pub steps: Vec<At<StepId>>,
}

impl Step {
    /// Whether `token` names it: its id, its number by value, a trailing part of its path, or its basename without
    /// extension.
    pub fn answers_to(&self, token: &str) -> bool {
        let by_number = Self::number_in(token).is_some_and(|number| self.number == Some(number));
        by_number || self.texts().any(|text| text == token)
    }

    /// Returns the tokens other than its number that name it, some perhaps twice.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let path = self.path();
        let tails = path.match_indices('/').map(|(at, _)| &path[at + 1..]).chain([path]);
        tails.chain([self.id.as_str(), self.stem()]).filter(|text| !text.is_empty())
    }

    /// Returns the number that `token` is, by which steps may be named.
    pub fn number_in(token: &str) -> Option<u64> {
        number(token)
    }

    /// Whether `token` can only name steps by their number, which several may share.
    pub fn is_number(token: &str) -> bool {
        number(token).is_some()
    }

    /// Returns the basename without its last extension.
    pub fn stem(&self) -> &str {
        let name = self.basename();
        name.rsplit_once('.').map_or(name, |(stem, _)| if stem.is_empty() { name } else { stem })
    }
}

/// Returns the number in front of the first `_` of a basename.
pub(super) fn number_of(basename: &str) -> Option<u64> {
    basename.split_once('_').and_then(|(digits, _)| number(digits))
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

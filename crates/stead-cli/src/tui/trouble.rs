//! Why something cannot be shown, and what to do about it.

use crate::failure::Failure;
use crate::render::visible;

/// Why something cannot be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// What went wrong, line by line.
    pub(crate) lines: Vec<String>,
    /// What to do.
    pub(crate) hints: Vec<String>,
}

impl Trouble {
    /// Returns what a command line would say.
    pub(crate) fn of(failure: &Failure) -> Self {
        let lines = |text: &str| text.lines().map(visible).collect::<Vec<_>>();
        Self {
            lines: lines(&failure.message()),
            hints: failure.hints.iter().flat_map(|hint| lines(hint)).collect(),
        }
    }

    /// Adds what to do.
    pub(crate) fn hint(mut self, hint: &str) -> Self {
        self.hints.push(hint.to_owned());
        self
    }
}

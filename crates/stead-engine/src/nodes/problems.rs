//! Problems of one manifest, each at its place and with its path.

use stead_model::diagnostic::{Place, Source, Span, nearest, suggest};
use stead_model::site::manifest::ManifestNode;
use stead_model::site::{Entry, Manifest};
use stead_model::{Diagnostic, Diagnostics};

/// For how many unknown names the nearest known one is looked for: each look costs as much as there are names.
const LOOKS: usize = 50;

/// Collects the problems of a manifest.
pub(super) struct Problems<'m> {
    source: Option<&'m Source>,
    looks: usize,
    pub(super) found: Diagnostics,
}

impl<'m> Problems<'m> {
    pub(super) fn new(entry: &'m Entry<Manifest>) -> Self {
        Self { source: entry.source.as_ref(), looks: 0, found: Diagnostics::default() }
    }

    pub(super) fn place(&self, span: Span) -> Place {
        match self.source {
            Some(source) => Place::Text { source: source.clone(), span },
            None => Place::Named("the manifest".to_owned()),
        }
    }

    /// Returns an error at `span`, which is at `path` below `node`.
    pub(super) fn error(
        &self,
        code: &'static str,
        node: &ManifestNode,
        path: &str,
        span: Span,
        message: impl Into<String>,
    ) -> Diagnostic {
        Diagnostic::error(code, self.place(span), message).path(format!("nodes[{}].{path}", node.index))
    }

    pub(super) fn push(&mut self, problem: Diagnostic) {
        self.found.push(problem);
    }

    /// Adds `problem` with those of `known` that could have been meant instead of `word`.
    pub(super) fn push_unknown<'a>(
        &mut self,
        problem: Diagnostic,
        word: &str,
        known: impl Iterator<Item = &'a str> + Clone,
    ) {
        self.looks += 1;
        if self.looks > LOOKS {
            self.push(problem);
            return;
        }
        let candidates = candidates(word, known.clone());
        self.push(problem.help(suggest(word, known)).candidates(candidates));
    }
}

/// Returns what could have been meant: the nearest, else all if they are few.
pub(super) fn candidates<'a>(word: &str, known: impl Iterator<Item = &'a str> + Clone) -> Vec<String> {
    match nearest(word, known.clone()) {
        Some(near) => vec![near.to_owned()],
        None => known.take(20).map(str::to_owned).collect(),
    }
}

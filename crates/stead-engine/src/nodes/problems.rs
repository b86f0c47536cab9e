//! Problems of one manifest, each at its place and with its path.

use std::collections::BTreeMap;

use stead_model::diagnostic::{Place, Source, Span, nearest, suggest};
use stead_model::site::manifest::ManifestNode;
use stead_model::site::{Entry, Manifest};
use stead_model::{Diagnostic, Diagnostics};

/// For how many unknown names the nearest known one is looked for: each look costs as much as there are names.
const LOOKS: usize = 50;
/// So many names are told where none is near.
const MOST: usize = 20;

/// What could have been meant instead of unknown names, looked for a bounded number of times.
#[derive(Debug, Default)]
pub(super) struct Looks {
    // By list and word: advice and candidates. Invariant: at most `LOOKS` of them.
    known: BTreeMap<(&'static str, String), (String, Vec<String>)>,
}

impl Looks {
    /// Returns `problem` with those of `known`, the names of `list`, that could have been meant instead of `word`.
    pub(super) fn advise<'a>(
        &mut self,
        problem: Diagnostic,
        list: &'static str,
        word: &str,
        known: impl Iterator<Item = &'a str> + Clone,
    ) -> Diagnostic {
        let key = (list, word.to_owned());
        if !self.known.contains_key(&key) && self.known.len() >= LOOKS {
            return problem.candidates(known.take(MOST).map(str::to_owned).collect());
        }
        let (help, candidates) =
            self.known.entry(key).or_insert_with(|| (suggest(word, known.clone()), candidates(word, known)));
        problem.help(help.clone()).candidates(candidates.clone())
    }
}

/// Collects the problems of a manifest.
pub(super) struct Problems<'m> {
    pub(super) source: Option<&'m Source>,
    pub(super) looks: &'m mut Looks,
    pub(super) found: Diagnostics,
}

impl<'m> Problems<'m> {
    pub(super) fn new(entry: &'m Entry<Manifest>, looks: &'m mut Looks) -> Self {
        Self { source: entry.source.as_ref(), looks, found: Diagnostics::default() }
    }

    pub(super) fn place(&self, span: Span) -> Place {
        Self::place_in(self.source, span)
    }

    /// Returns the place of `span` in a manifest.
    pub(super) fn place_in(source: Option<&Source>, span: Span) -> Place {
        match source {
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

    /// Adds `problem` with those of `known`, the names of `list`, that could have been meant instead of `word`.
    pub(super) fn push_unknown<'a>(
        &mut self,
        problem: Diagnostic,
        list: &'static str,
        word: &str,
        known: impl Iterator<Item = &'a str> + Clone,
    ) {
        let problem = self.looks.advise(problem, list, word, known);
        self.push(problem);
    }
}

/// Returns what could have been meant: the nearest, else all if they are few.
pub(super) fn candidates<'a>(word: &str, known: impl Iterator<Item = &'a str> + Clone) -> Vec<String> {
    match nearest(word, known.clone()) {
        Some(near) => vec![near.to_owned()],
        None => known.take(MOST).map(str::to_owned).collect(),
    }
}

//! Problems in what a user wrote: all at once, each with its place and what to do.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

mod masking;
mod render;

/// Whether a problem stops the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// It does.
    Error,
    /// It does not.
    Warning,
}

/// A text a user wrote, with the name to call it by in messages.
#[derive(Clone, PartialEq, Eq)]
pub struct Source {
    /// The file's name as the user gave it.
    pub name: Arc<str>,
    /// Its text.
    pub text: Arc<str>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({}, {} bytes)", self.name, self.text.len())
    }
}

/// A range of bytes in a source, with the line and column (from 1, in characters) of its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
    /// Line of the first byte, from 1.
    pub line: u32,
    /// Column of the first byte in characters, from 1.
    pub column: u32,
}

/// Where a problem is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a text.
    Text {
        /// The text.
        source: Source,
        /// The range.
        span: Span,
    },
    /// In a program: the call that made it.
    Call {
        /// File of the program.
        file: &'static str,
        /// Line.
        line: u32,
        /// Column.
        column: u32,
    },
    /// Nowhere in particular: a flag, a whole file.
    Named(String),
}

impl Place {
    /// Returns file, line and column, the last two if there are any.
    pub fn location(&self) -> (&str, Option<(u32, u32)>) {
        match self {
            Self::Text { source, span } => (&source.name, Some((span.line, span.column))),
            Self::Call { file, line, column } => (file, Some((*line, *column))),
            Self::Named(name) => (name, None),
        }
    }
}

impl Place {
    fn bounded(self) -> Self {
        match self {
            Self::Named(name) => Self::Named(bounded(name)),
            Self::Text { .. } | Self::Call { .. } => self,
        }
    }
}

/// The longest text of a problem in bytes, and how much of a longer one is kept at its end. Problems repeat what a user
/// wrote, which may be as long as a file.
const LONGEST: usize = 4096;
const TAIL: usize = 1024;

/// Returns `text`, the middle of a long one left out: its beginning says what is wrong, its end mostly why.
fn bounded(text: String) -> String {
    if text.len() <= LONGEST {
        return text;
    }
    let (head, tail) = text.split_at(text.floor_char_boundary(LONGEST - TAIL));
    let (middle, tail) = tail.split_at(tail.ceil_char_boundary(tail.len() - TAIL));
    format!("{head} … {} bytes left out … {tail}", middle.len())
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.location() {
            (name, Some((line, column))) => write!(f, "{name}:{line}:{column}"),
            (name, None) => f.write_str(name),
        }
    }
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Its stable code, such as `plan/unknown-key`.
    pub code: &'static str,
    /// Whether it stops the work.
    pub severity: Severity,
    /// Where it is.
    pub place: Place,
    /// Where it is in the document's structure, such as `tasks[2].retry.times`; may be empty.
    pub path: String,
    /// What is wrong, in one sentence.
    pub message: String,
    /// What to do about it; may be empty.
    pub help: String,
    /// Other places that belong to it, with what they are.
    pub related: Vec<(Place, String)>,
    /// What could have been meant, for programs; people read it in the advice.
    pub candidates: Vec<String>,
}

impl Diagnostic {
    /// Returns an error at `place`.
    pub fn error(code: &'static str, place: Place, message: impl Into<String>) -> Self {
        Self {
            code,
            severity: Severity::Error,
            place: place.bounded(),
            path: String::new(),
            message: bounded(message.into()),
            help: String::new(),
            related: Vec::new(),
            candidates: Vec::new(),
        }
    }

    /// Returns a warning at `place`.
    pub fn warning(code: &'static str, place: Place, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(code, place, message) }
    }

    /// Returns this problem with advice.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = bounded(help.into());
        self
    }

    /// Returns this problem with its path in the document.
    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.path = bounded(path.into());
        self
    }

    /// Returns this problem with another place that belongs to it.
    pub fn related(mut self, place: Place, label: impl Into<String>) -> Self {
        self.related.push((place.bounded(), bounded(label.into())));
        self
    }

    /// Returns this problem with what could have been meant.
    pub fn candidates(mut self, candidates: Vec<String>) -> Self {
        self.candidates = candidates.into_iter().map(bounded).collect();
        self
    }

    /// Returns the JSON form used by `--json`.
    pub fn to_json(&self) -> serde_json::Value {
        let (file, at) = self.place.location();
        let mut json = serde_json::json!({
            "code": self.code, "severity": self.severity, "file": file,
            "line": at.map(|(line, _)| line), "column": at.map(|(_, column)| column),
            "path": self.path, "message": self.message, "help": self.help,
        });
        if !self.candidates.is_empty() {
            json["candidates"] = self.candidates.clone().into();
        }
        json
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = if self.severity == Severity::Error { "error" } else { "warning" };
        write!(f, "{severity}[{}]: {}: {}", self.code, self.place, self.message)?;
        if self.help.is_empty() { Ok(()) } else { write!(f, " (help: {})", self.help) }
    }
}

/// All problems of what a user wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl Diagnostics {
    /// Adds a problem.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        self.0.push(diagnostic);
    }

    /// Whether one of them stops the work.
    pub fn has_errors(&self) -> bool {
        self.0.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }

    /// Returns the problems in the order of their places.
    pub fn sorted(mut self) -> Self {
        self.0.sort_by(|a, b| a.place.location().cmp(&b.place.location()));
        self
    }

    /// Returns the problems in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.0.iter()
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, diagnostic) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{diagnostic}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

/// Longer words are compared with none: that takes time and memory as both lengths together, and nobody mistypes them.
const COMPARED: usize = 512;

/// Returns the candidate nearest to `word`, if one is near enough to be meant.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let is_comparable = |text: &str| text.len() <= COMPARED;
    candidates
        .into_iter()
        .filter(|candidate| is_comparable(word) && is_comparable(candidate))
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len().max(word.len()) / 3).max(1))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Returns how many slips make one of the other. Writing all of it in the wrong case is one.
fn distance(word: &str, candidate: &str) -> usize {
    let exact = strsim::damerau_levenshtein(word, candidate);
    let folded = strsim::damerau_levenshtein(&word.to_ascii_lowercase(), &candidate.to_ascii_lowercase()) + 1;
    exact.min(folded)
}

/// Returns `did you mean `x`?` or the list of candidates (at most 20), for advice.
pub fn suggest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    let candidates: Vec<&str> = candidates.into_iter().collect();
    if let Some(near) = nearest(word, candidates.iter().copied()) {
        return format!("did you mean `{near}`?");
    }
    match candidates.len() {
        0 => "there is none to choose from".to_owned(),
        count => {
            let shown: Vec<&str> = candidates.into_iter().take(20).collect();
            let more = if count > 20 { format!(" and {} more", count - 20) } else { String::new() };
            format!("known: {}{more}", shown.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_problem_repeats_is_bounded() {
        let long = "ü".repeat(1 << 20);
        let problem =
            Diagnostic::error("a/b", Place::Named(long.clone()), format!("`{long}` is too long, write less"))
                .help(suggest(&long, ["name", &long]))
                .path(long.clone())
                .related(Place::Named(long.clone()), long.clone())
                .candidates(vec![long.clone()]);
        assert!(
            problem.message.starts_with("`üü") && problem.message.ends_with("ü` is too long, write less")
        );
        assert!(problem.message.contains(" bytes left out "), "{}", problem.message);
        let rendered = Diagnostics(vec![problem.clone()]).render(false);
        assert!(rendered.len() < 6 * LONGEST, "{} bytes", rendered.len());
        assert!(problem.to_json().to_string().len() < 6 * LONGEST);
        let fits = "x".repeat(LONGEST);
        assert_eq!(Diagnostic::error("a/b", Place::Named(String::new()), fits.clone()).message, fits);
    }

    #[test]
    fn the_wrong_case_is_one_slip() {
        let known = ["BASE_DOMAIN", "access", "number"];
        assert_eq!(nearest("base_domain", known), Some("BASE_DOMAIN"));
        assert_eq!(nearest("ACCES", known), Some("access"));
        assert_eq!(nearest("nothing", known), None);
    }
}

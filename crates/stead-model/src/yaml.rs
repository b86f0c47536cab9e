//! The one YAML reader of every file format.
//!
//! [`read`] turns a text into a [`Tree`] whose every key and value knows its place; typed readers
//! walk it with a [`Walk`], which collects every problem instead of stopping at the first. It reads
//! YAML 1.2 with the core schema and refuses what makes a file mean something else than it seems to:
//! duplicate keys, merge keys, tags, keys that are not text, several documents, alias bombs. [`edit`] is for the files
//! of others, which are changed in one place and otherwise left as they are.

pub mod edit;
mod load;
mod scalar;
mod tree;
mod walk;
mod write;

use std::sync::Arc;

use crate::diagnostic::{Diagnostic, Diagnostics, Place, Source, Span};

pub use load::read;
pub use tree::{Entries, Items, Node, NodeId, Tree, Value};
pub use walk::{Fields, Key, Keys, Walk};
pub use write::{Ordered, to_yaml};

/// The largest file that is read in any format.
pub const MAX_BYTES: usize = 64 * 1024 * 1024;

/// The deepest nesting that is read in any format. Everything that walks a tree may recurse this far.
pub const MAX_DEPTH: usize = 128;

/// What is particular to one file format: its diagnostic codes and bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codes {
    /// The text is not YAML as it is read here.
    pub syntax: &'static str,
    /// A key the format does not know.
    pub unknown_key: &'static str,
    /// A value of the wrong kind.
    pub bad_value: &'static str,
    /// A key that must be there and is not.
    pub missing_key: &'static str,
    /// A word that is not one of the values.
    pub bad_word: &'static str,
    /// A number outside its range.
    pub out_of_range: &'static str,
    /// A text that is no identifier of the wanted kind.
    pub bad_name: &'static str,
    /// The largest file that is read.
    pub max_bytes: usize,
    /// The deepest nesting that is read.
    pub max_depth: usize,
    /// In files of secrets: the only words of the file that a problem may repeat.
    pub shown: Option<&'static [&'static str]>,
}

impl Codes {
    /// Codes of plan files.
    pub const PLAN: Self = Self::new("plan/syntax", "plan/unknown-key", "plan/bad-value");
    /// Codes of inventories.
    pub const REACH: Self = Self::new("reach/syntax", "reach/unknown-key", "reach/bad-value");
    /// Codes of catalogues of steps.
    pub const STEPS: Self = Self::new("steps/catalogue", "steps/catalogue", "steps/catalogue");
    /// Codes of run manifests and kits.
    pub const RUN: Self = Self::new("run/syntax", "run/unknown-key", "run/bad-value");
    /// Codes of files that intents edit.
    pub const INTENT: Self = Self::new("intent/file", "intent/path", "intent/path");
    /// Codes of the files of a site.
    pub const NODE: Self = Self {
        missing_key: "node/missing-field",
        bad_word: "node/bad-enum",
        out_of_range: "node/out-of-range",
        bad_name: "node/bad-name",
        max_bytes: 16 * 1024 * 1024,
        max_depth: 64,
        ..Self::new("node/bad-yaml", "node/unknown-key", "node/bad-type")
    };

    /// Codes of the files of a fleet and of its VMs.
    pub const FLEET: Self = Self {
        missing_key: "fleet/missing-field",
        bad_word: "fleet/bad-enum",
        out_of_range: "fleet/out-of-range",
        bad_name: "fleet/bad-name",
        max_depth: 64,
        ..Self::new("fleet/bad-yaml", "fleet/unknown-key", "fleet/bad-type")
    };

    /// Returns the codes of a format that has one for every kind of bad value.
    const fn new(syntax: &'static str, unknown_key: &'static str, bad_value: &'static str) -> Self {
        Self {
            syntax,
            unknown_key,
            bad_value,
            missing_key: bad_value,
            bad_word: bad_value,
            out_of_range: bad_value,
            bad_name: bad_value,
            max_bytes: MAX_BYTES,
            max_depth: MAX_DEPTH,
            shown: None,
        }
    }

    /// Returns these codes for a file of secrets, of which only `words` may be shown.
    pub const fn secret(self, words: &'static [&'static str]) -> Self {
        Self { shown: Some(words), ..self }
    }

    /// Returns `text` of the file, or stars if it must not be seen.
    fn show(self, text: &str) -> &str {
        if self.shown.is_none_or(|words| words.contains(&text)) { text } else { "***" }
    }

    /// Returns what `error` says of a text, or `instead` if the text must not be seen.
    fn show_error(self, error: impl std::fmt::Display, instead: &str) -> String {
        if self.shown.is_none() { error.to_string() } else { instead.to_owned() }
    }
}

/// Returns the source that `bytes` hold, or why they are no text.
pub fn source(name: &str, bytes: Vec<u8>, codes: Codes) -> Result<Source, Diagnostics> {
    let name: Arc<str> = name.into();
    if bytes.len() > codes.max_bytes {
        return Err(Diagnostics(vec![too_large(&name, bytes.len(), codes)]));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Source { name, text: text.into() }),
        Err(error) => {
            let start = error.utf8_error().valid_up_to();
            let bytes = error.into_bytes();
            let text: Arc<str> = String::from_utf8_lossy(&bytes).into();
            let source = Source { name, text };
            let place = Place::Text { span: span_at(&source.text, start, start), source };
            Err(Diagnostics(vec![
                Diagnostic::error(codes.syntax, place, "this byte is not UTF-8")
                    .help("save the file as UTF-8"),
            ]))
        }
    }
}

fn too_large(name: &Arc<str>, bytes: usize, codes: Codes) -> Diagnostic {
    Diagnostic::error(
        codes.syntax,
        Place::Named(name.to_string()),
        format!(
            "the file has {bytes} bytes; at most {} ({} MiB) are read",
            codes.max_bytes,
            codes.max_bytes >> 20
        ),
    )
}

/// Returns the span of `start..end`, moved inside `text` and onto character boundaries. Costs as much
/// as the text before it is long: for problems only.
pub(crate) fn span_at(text: &str, start: usize, end: usize) -> Span {
    let start = text.floor_char_boundary(start.min(text.len()));
    let end = text.floor_char_boundary(end.min(text.len())).max(start);
    let before = text.get(..start).unwrap_or_default();
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    let column = before.get(line_start..).unwrap_or_default().chars().count() + 1;
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Span { start, end, line: number(line), column: number(column) }
}

#[cfg(test)]
mod tests;

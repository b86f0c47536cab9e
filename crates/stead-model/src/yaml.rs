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

/// The largest file that is read.
pub const MAX_BYTES: usize = 64 * 1024 * 1024;

/// The deepest nesting that is read. Everything that walks a tree may recurse this far.
pub const MAX_DEPTH: usize = 128;

/// The diagnostic codes of one file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codes {
    /// The text is not YAML as it is read here.
    pub syntax: &'static str,
    /// A key the format does not know.
    pub unknown_key: &'static str,
    /// A value of the wrong kind or out of range.
    pub bad_value: &'static str,
}

impl Codes {
    /// Codes of plan files.
    pub const PLAN: Self =
        Self { syntax: "plan/syntax", unknown_key: "plan/unknown-key", bad_value: "plan/bad-value" };
    /// Codes of inventories.
    pub const REACH: Self =
        Self { syntax: "reach/syntax", unknown_key: "reach/unknown-key", bad_value: "reach/bad-value" };
    /// Codes of catalogues of steps.
    pub const STEPS: Self =
        Self { syntax: "steps/catalogue", unknown_key: "steps/catalogue", bad_value: "steps/catalogue" };
    /// Codes of run manifests and kits.
    pub const RUN: Self =
        Self { syntax: "run/syntax", unknown_key: "run/unknown-key", bad_value: "run/bad-value" };
    /// Codes of files that intents edit.
    pub const INTENT: Self =
        Self { syntax: "intent/file", unknown_key: "intent/path", bad_value: "intent/path" };
}

/// Returns the source that `bytes` hold, or why they are no text.
pub fn source(name: &str, bytes: Vec<u8>, codes: Codes) -> Result<Source, Diagnostics> {
    let name: Arc<str> = name.into();
    if bytes.len() > MAX_BYTES {
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
        format!("the file has {bytes} bytes; at most {MAX_BYTES} (64 MiB) are read"),
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

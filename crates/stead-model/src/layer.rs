//! Layer files: lines of `KEY=value` that are parsed, never executed, and the texts whose references are expanded.
//!
//! What the grammar accepts means the same to a shell that sources the file, apart from when references are expanded:
//! here they stay references until all layers are merged, which `stead-engine` does. What a shell would do besides
//! (run commands, split words, match files) is refused with its place.
//!
//! Any layer may hold a secret, and only the catalogue says which values are. So the problems reported here are placed
//! in a copy of the file that shows keys and references only; nothing here repeats a value, not even in `Debug`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::diagnostic::{Diagnostic, Diagnostics, Place, Source, Span};
use crate::yaml::{MAX_BYTES, span_at};

mod cursor;
mod dollar;
mod read;
mod text;

pub use text::{Piece, Text};

/// Diagnostic code: a layer file that is not written as it must be.
pub const SYNTAX: &str = "layer/syntax";
/// Diagnostic code: something a shell would substitute and a layer file does not.
pub const SUBSTITUTION: &str = "layer/substitution";
/// Diagnostic code: a key that a file sets twice. A warning.
pub const DUPLICATE: &str = "layer/duplicate";

/// What one layer file says.
#[derive(Clone, PartialEq, Eq)]
pub struct LayerFile {
    /// The file.
    pub source: Source,
    /// The file as it may always be shown: stars in place of everything but keys and references.
    pub concealed: Source,
    /// What it sets, in written order, repeats included.
    pub assignments: Vec<Assignment>,
}

/// One `KEY=value` of a layer file.
#[derive(Clone, PartialEq, Eq)]
pub struct Assignment {
    /// The key.
    pub key: String,
    /// Where the key is.
    pub span: Span,
    /// The value as it is written.
    pub raw: String,
    /// The value; none if something is wrong with it, which has been reported.
    pub value: Option<Text>,
}

impl LayerFile {
    /// Returns what the file says. Every problem is added to `diagnostics`; what is wrong is left out, except that
    /// keys of bad values are kept.
    pub fn read(source: &Source, diagnostics: &mut Diagnostics) -> Self {
        let found = read::statements(&source.text);
        let file = Self {
            source: source.clone(),
            concealed: Source { name: source.name.clone(), text: conceal(&source.text, &found.shown).into() },
            assignments: found.assignments,
        };
        for problem in found.problems {
            let place = file.concealed_place(problem.span);
            diagnostics.push(Diagnostic::error(problem.code, place, problem.message).help(problem.help));
        }
        file.warn_of_repeats(diagnostics);
        file
    }

    /// Returns what `bytes` say as a file called `name`, as [`LayerFile::read`] does. Bytes that are no text are
    /// reported, and the rest of the file is read all the same.
    pub fn from_bytes(name: &str, bytes: &[u8], diagnostics: &mut Diagnostics) -> Self {
        let name: Arc<str> = name.into();
        if bytes.len() > MAX_BYTES {
            let message =
                format!("the file has {} bytes; at most {MAX_BYTES} (64 MiB) are read", bytes.len());
            diagnostics.push(Diagnostic::error(SYNTAX, Place::Named(name.to_string()), message));
            return Self::read(&Source { name, text: "".into() }, diagnostics);
        }
        if let Err(error) = str::from_utf8(bytes) {
            let text = String::from_utf8_lossy(bytes);
            let span = span_at(&text, error.valid_up_to(), error.valid_up_to());
            let source = Source { name: name.clone(), text: conceal(&text, &[]).into() };
            let place = Place::Text { source, span };
            diagnostics.push(
                Diagnostic::error(SYNTAX, place, "this byte is not UTF-8").help("save the file as UTF-8"),
            );
        }
        Self::read(&Source { name, text: String::from_utf8_lossy(bytes).into() }, diagnostics)
    }

    /// Returns the place of `span` in the file as it may always be shown: keys and references only.
    pub fn concealed_place(&self, span: Span) -> Place {
        Place::Text { source: self.concealed.clone(), span }
    }

    fn warn_of_repeats(&self, diagnostics: &mut Diagnostics) {
        let mut seen: BTreeMap<&str, Span> = BTreeMap::new();
        for Assignment { key, span, .. } in &self.assignments {
            if let Some(first) = seen.insert(key, *span) {
                let message = format!(
                    "`{key}` is set in line {} and again in line {}; the last one wins",
                    first.line, span.line
                );
                let problem = Diagnostic::warning(DUPLICATE, self.concealed_place(*span), message);
                diagnostics.push(
                    problem.related(self.concealed_place(first), "first here").help("remove one of them"),
                );
            }
        }
    }
}

impl fmt::Debug for LayerFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerFile")
            .field("source", &self.source)
            .field("assignments", &self.assignments)
            .finish()
    }
}

impl fmt::Debug for Assignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={:?} at line {}", self.key, self.value, self.span.line)
    }
}

/// Returns `text` with a star for every byte outside `shown`, lines as they are. `shown` is in ascending order.
fn conceal(text: &str, shown: &[std::ops::Range<usize>]) -> String {
    let mut concealed = String::with_capacity(text.len());
    let mut at = 0;
    let hide = |concealed: &mut String, hidden: &str| {
        concealed.extend(hidden.bytes().map(|byte| if byte == b'\n' { '\n' } else { '*' }));
    };
    for range in shown {
        let start = range.start.max(at);
        if range.end <= start {
            continue;
        }
        hide(&mut concealed, text.get(at..start).unwrap_or_default());
        concealed.push_str(text.get(start..range.end).unwrap_or_default());
        at = range.end;
    }
    hide(&mut concealed, text.get(at..).unwrap_or_default());
    concealed
}

#[cfg(test)]
mod tests;

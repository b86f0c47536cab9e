//! A text with references to values.

use std::fmt;

use super::cursor::{Cursor, Problem};
use super::dollar::{self, Inside};
use crate::diagnostic::{Diagnostic, Diagnostics, Place, Span};

/// A value with references, as pieces in written order. Its depth is bounded, so that everything may recurse over it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Text(pub Vec<Piece>);

/// One piece of a [`Text`].
#[derive(Clone, PartialEq, Eq)]
pub enum Piece {
    /// Text as it is.
    Literal(String),
    /// The value of a name.
    Reference {
        /// Which.
        name: String,
        /// What stands for it while it is unset or empty.
        default: Option<Text>,
        /// Where it is; in a text of a catalogue, where that text is.
        span: Span,
    },
}

impl Text {
    /// Returns the text that says `literal` and refers to nothing.
    pub fn literal(literal: impl Into<String>) -> Self {
        let literal = literal.into();
        if literal.is_empty() { Self::default() } else { Self(vec![Piece::Literal(literal)]) }
    }

    /// Returns the text that `text`, a string of a catalogue, is. `$B`, `${B}` and `${B:-text}` refer, `\$` is a dollar,
    /// every other backslash and every backtick is itself. The first problem is reported at `place`; then the text is
    /// empty.
    pub fn parse(text: &str, place: &Place, diagnostics: &mut Diagnostics) -> Self {
        let mut cursor = Cursor::new(text);
        let mut pieces = Pieces::default();
        loop {
            let outcome = match cursor.peek() {
                None => break,
                Some('$') => dollar::reference(&mut cursor, Inside::Catalogue, &mut pieces),
                Some('\\') if cursor.is_at("\\$") => {
                    cursor.advance();
                    cursor.advance();
                    pieces.push('$');
                    Ok(())
                }
                Some(_) => {
                    let start = cursor.mark();
                    cursor.advance();
                    pieces.push_str(cursor.text_from(start));
                    Ok(())
                }
            };
            if let Err(Problem { code, message, help, .. }) = outcome {
                diagnostics.push(Diagnostic::error(code, place.clone(), message).help(help));
                return Self::default();
            }
        }
        let mut text = pieces.into_text();
        let span = match place {
            Place::Text { span, .. } => *span,
            Place::Call { line, column, .. } => Span { line: *line, column: *column, ..Span::default() },
            Place::Named(_) => Span::default(),
        };
        text.put_at(span);
        text
    }

    fn put_at(&mut self, place: Span) {
        for piece in &mut self.0 {
            match piece {
                Piece::Literal(_) => {}
                Piece::Reference { default, span, .. } => {
                    *span = place;
                    if let Some(default) = default {
                        default.put_at(place);
                    }
                }
            }
        }
    }

    /// Returns the string of a catalogue that [`Text::parse`] reads as this text.
    pub fn written(&self) -> String {
        self.write("\\$")
    }

    fn write(&self, dollar: &str) -> String {
        let piece = |piece: &Piece| match piece {
            Piece::Literal(literal) => literal.replace('$', dollar),
            Piece::Reference { name, default: None, .. } => format!("${{{name}}}"),
            // There a backslash has no place: a dollar in it is one already.
            Piece::Reference { name, default: Some(default), .. } => {
                format!("${{{name}:-{}}}", default.write("$"))
            }
        };
        self.0.iter().map(piece).collect()
    }

    /// Returns the names it refers to, with the places of the references, in written order, repeats and names in
    /// `${…:-…}` included.
    pub fn references(&self) -> Vec<(&str, Span)> {
        let mut found = Vec::new();
        self.collect_references(&mut found);
        found
    }

    fn collect_references<'t>(&'t self, found: &mut Vec<(&'t str, Span)>) {
        for piece in &self.0 {
            match piece {
                Piece::Literal(_) => {}
                Piece::Reference { name, default, span } => {
                    found.push((name, *span));
                    if let Some(default) = default {
                        default.collect_references(found);
                    }
                }
            }
        }
    }
}

/// Shows what the text refers to and hides what it says: that may be a secret.
impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for piece in &self.0 {
            write!(f, "{piece:?}")?;
        }
        f.write_str("\"")
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Literal(_) => f.write_str("***"),
            Self::Reference { name, default: None, .. } => write!(f, "${{{name}}}"),
            Self::Reference { name, default: Some(_), .. } => write!(f, "${{{name}:-***}}"),
        }
    }
}

/// The pieces of a text that is being read.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    done: Vec<Piece>,
    literal: String,
}

impl Pieces {
    pub(super) fn push(&mut self, c: char) {
        self.literal.push(c);
    }

    pub(super) fn push_str(&mut self, text: &str) {
        self.literal.push_str(text);
    }

    pub(super) fn refer(&mut self, name: &str, default: Option<Text>, span: Span) {
        self.end_literal();
        self.done.push(Piece::Reference { name: name.to_owned(), default, span });
    }

    fn end_literal(&mut self) {
        if !self.literal.is_empty() {
            self.done.push(Piece::Literal(std::mem::take(&mut self.literal)));
        }
    }

    pub(super) fn into_text(mut self) -> Text {
        self.end_literal();
        Text(self.done)
    }
}

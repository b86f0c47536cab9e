//! Reading a text character by character, with its place.

use std::ops::Range;

use crate::diagnostic::Span;

/// A place in a text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    /// Bytes before it.
    pub(super) offset: usize,
    line: u32,
    column: u32,
}

/// What is wrong at one place.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) code: &'static str,
    /// Never covers more than keys, references and the characters that are wrong: it will be shown.
    pub(super) span: Span,
    pub(super) message: String,
    pub(super) help: String,
}

/// A reader that hides what a shell drops before it looks at the text: the CR of a CRLF always, and backslash-newline
/// where [`Cursor::join_lines`] is called.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'t> {
    text: &'t str,
    at: Mark,
}

impl<'t> Cursor<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, at: Mark { offset: 0, line: 1, column: 1 } }
    }

    fn rest(&self) -> &'t str {
        self.text.get(self.at.offset..).unwrap_or_default()
    }

    pub(super) fn mark(&self) -> Mark {
        self.at
    }

    /// Goes back, or forth, to where the cursor was.
    pub(super) fn go_to(&mut self, mark: Mark) {
        self.at = mark;
    }

    /// Returns the next character if it stands for itself alone, as most do, and is no newline.
    fn plain(&self) -> Option<u8> {
        let next = self.text.as_bytes().get(self.at.offset).copied()?;
        (next.is_ascii() && !matches!(next, b'\r' | b'\n')).then_some(next)
    }

    /// Returns the next character; a newline for CRLF.
    pub(super) fn peek(&self) -> Option<char> {
        if let Some(next) = self.plain() {
            return Some(char::from(next));
        }
        let rest = self.rest();
        if rest.starts_with("\r\n") { Some('\n') } else { rest.chars().next() }
    }

    /// Whether the text goes on with `text`, as it is written.
    pub(super) fn is_at(&self, text: &str) -> bool {
        self.rest().starts_with(text)
    }

    /// Moves past the next character.
    pub(super) fn advance(&mut self) {
        if self.plain().is_some() {
            self.at.offset += 1;
            self.at.column += 1;
            return;
        }
        let rest = self.rest();
        let Some(next) = rest.chars().next() else { return };
        if rest.starts_with("\r\n") || next == '\n' {
            self.at.offset += if next == '\n' { 1 } else { 2 };
            self.at.line += 1;
            self.at.column = 1;
        } else {
            self.at.offset += next.len_utf8();
            self.at.column += 1;
        }
    }

    /// Moves past the next character if it is `wanted`.
    pub(super) fn take(&mut self, wanted: char) -> bool {
        let is_next = self.peek() == Some(wanted);
        if is_next {
            self.advance();
        }
        is_next
    }

    /// Moves past every backslash-newline.
    pub(super) fn join_lines(&mut self) {
        while self.plain() == Some(b'\\') && (self.is_at("\\\n") || self.is_at("\\\r\n")) {
            self.advance();
            self.advance();
        }
    }

    /// Moves past blanks and joined lines; whether there was a blank.
    pub(super) fn skip_blanks(&mut self) -> bool {
        let mut was_blank = false;
        loop {
            self.join_lines();
            match self.peek() {
                Some(' ' | '\t') => {
                    was_blank = true;
                    self.advance();
                }
                Some(_) | None => return was_blank,
            }
        }
    }

    /// Moves to the end of the line, as it is written.
    pub(super) fn skip_line(&mut self) {
        while !matches!(self.peek(), None | Some('\n')) {
            self.advance();
        }
    }

    /// Returns the range from `start` to here.
    pub(super) fn range_from(&self, start: Mark) -> Range<usize> {
        start.offset..self.at.offset
    }

    /// Returns the text from `start` to here.
    pub(super) fn text_from(&self, start: Mark) -> &'t str {
        self.text.get(self.range_from(start)).unwrap_or_default()
    }

    /// Returns the span from `start` to here.
    pub(super) fn span_from(&self, start: Mark) -> Span {
        Span { start: start.offset, end: self.at.offset, line: start.line, column: start.column }
    }

    /// Returns the span of the character that begins at `start`.
    pub(super) fn span_at(&self, start: Mark) -> Span {
        let width =
            self.text.get(start.offset..).and_then(|rest| rest.chars().next()).map_or(0, char::len_utf8);
        Span { start: start.offset, end: start.offset + width, line: start.line, column: start.column }
    }

    /// Returns the range from the start of `span` to the end of `name` in it, if it is written in one piece.
    pub(super) fn name_in(&self, span: Span, name: &str) -> Option<Range<usize>> {
        let end = self.text.get(span.start..span.end)?.find(name)? + name.len();
        Some(span.start..span.start + end)
    }
}

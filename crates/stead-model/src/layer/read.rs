//! The grammar of layer files.

use std::ops::Range;

use super::cursor::{Cursor, Mark, Problem};
use super::dollar::{self, Inside, backtick, is_name_part, is_name_start, problem, tilde};
use super::text::{Pieces, Text};
use super::{Assignment, SYNTAX};
use crate::diagnostic::Span;

/// What a file holds.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) assignments: Vec<Assignment>,
    /// At most one of each statement, in order.
    pub(super) problems: Vec<Problem>,
    /// The parts of the text that are no values: keys, references, and what is wrong. In ascending order.
    pub(super) shown: Vec<Range<usize>>,
}

/// Returns what is in `text`.
pub(super) fn statements(text: &str) -> Found {
    let mut reader = Reader { cursor: Cursor::new(text), found: Found::default() };
    reader.cursor.take('\u{feff}');
    while reader.cursor.peek().is_some() {
        reader.line();
    }
    let Reader { mut found, .. } = reader;
    if text.contains('\0') {
        find_nul(text, &mut found.problems);
    }
    found.shown.extend(found.problems.iter().map(|problem| problem.span.start..problem.span.end));
    found.shown.sort_by_key(|range| range.start);
    found
}

/// Reports every line with a NUL, comments included: no shell would read on as written.
fn find_nul(text: &str, problems: &mut Vec<Problem>) {
    let mut cursor = Cursor::new(text);
    while let Some(next) = cursor.peek() {
        let start = cursor.mark();
        cursor.advance();
        if next == '\0' {
            problems.push(problem(&cursor, start, SYNTAX, "a NUL byte", "remove it: values are text"));
            cursor.skip_line();
        }
    }
    problems.sort_by_key(|problem| problem.span.start);
}

struct Reader<'t> {
    cursor: Cursor<'t>,
    found: Found,
}

/// The key of an assignment.
struct Key {
    name: String,
    start: Mark,
    is_exported: bool,
}

impl Reader<'_> {
    /// Reads one statement, comment or blank line, and the newline that ends it.
    fn line(&mut self) {
        self.cursor.skip_blanks();
        match self.cursor.peek() {
            None | Some('\n') => {}
            Some('#') => self.cursor.skip_line(),
            Some(_) => self.statement(),
        }
        self.cursor.take('\n');
    }

    fn statement(&mut self) {
        let start = self.cursor.mark();
        let key = match self.key() {
            Ok(key) => key,
            Err(problem) => return self.give_up(start, problem),
        };
        let value_start = self.cursor.mark();
        self.found.shown.push(start.offset..value_start.offset);
        let span = self.key_span(&key);
        let outcome = self.value(&key).and_then(|text| {
            let raw = self.cursor.text_from(value_start).to_owned();
            self.end_of_statement(&key, value_start)?;
            Ok((text, raw))
        });
        let (value, raw) = match outcome {
            Ok((text, raw)) => {
                for (name, span) in text.references() {
                    self.found.shown.extend(self.cursor.name_in(span, name));
                }
                (Some(text), raw)
            }
            Err(problem) => {
                self.give_up(value_start, problem);
                (None, self.cursor.text_from(value_start).to_owned())
            }
        };
        self.found.assignments.push(Assignment { key: key.name, span, raw, value });
    }

    fn key_span(&self, key: &Key) -> Span {
        let mut span = self.cursor.span_from(key.start);
        span.end -= 1; // The `=`.
        span
    }

    /// Reads `KEY=` or `export KEY=`.
    fn key(&mut self) -> Result<Key, Problem> {
        let mut start = self.cursor.mark();
        let mut name = self.word();
        let mut is_exported = false;
        if name == "export" && self.cursor.skip_blanks() {
            start = self.cursor.mark();
            name = self.word();
            is_exported = true;
        }
        if name.is_empty() {
            return Err(self.no_assignment(start));
        }
        if self.cursor.peek() == Some('=') {
            if !name.starts_with(is_name_start) || name == "_" {
                let message = format!("`{name}` cannot be a key");
                let help = "a key is a letter or `_`, then letters, digits and `_`, and not `_` alone";
                return Err(problem(&self.cursor, start, SYNTAX, message, help));
            }
            self.cursor.advance();
            return Ok(Key { name, start, is_exported });
        }
        Err(self.bad_key(start, &name, is_exported))
    }

    /// Returns what is wrong after `name`, where there is no `=`.
    fn bad_key(&mut self, start: Mark, name: &str, is_exported: bool) -> Problem {
        if self.cursor.is_at("+=") {
            let help = format!("write `{name}=\"${{{name}}}…\"`");
            return problem(&self.cursor, start, SYNTAX, "a value cannot be appended with `+=`", help);
        }
        let end = self.cursor.clone();
        let was_blank = self.cursor.skip_blanks();
        if was_blank && self.cursor.peek() == Some('=') {
            let help = format!("write `{name}=value` without blanks");
            return problem(&end, start, SYNTAX, "there is a blank before the `=`", help);
        }
        if is_exported
            && (matches!(self.cursor.peek(), None | Some('\n'))
                || (was_blank && self.cursor.peek() == Some('#')))
        {
            let help = format!("write `export {name}=value`, or remove the line");
            return problem(&end, start, SYNTAX, "`export` without a value", help);
        }
        self.no_assignment(start)
    }

    fn no_assignment(&self, start: Mark) -> Problem {
        // What the line says is not shown: it may be the rest of a secret that was to be quoted.
        let span = Span { end: start.offset, ..self.cursor.span_at(start) };
        Problem {
            code: SYNTAX,
            span,
            message: "this is no assignment".to_owned(),
            help: "write `KEY=value`, one to a line; nothing in a layer file is executed".to_owned(),
        }
    }

    fn word(&mut self) -> String {
        let mut word = String::new();
        loop {
            self.cursor.join_lines();
            match self.cursor.peek().filter(|next| is_name_part(*next)) {
                Some(next) => word.push(next),
                None => return word,
            }
            self.cursor.advance();
        }
    }

    /// Reads a value up to the blank or newline that ends it.
    fn value(&mut self, key: &Key) -> Result<Text, Problem> {
        let mut pieces = Pieces::default();
        let mut brace = None;
        // A shell takes an unquoted `~` for the home directory here and after every `:`.
        let mut is_tilde_special = true;
        loop {
            self.cursor.join_lines();
            let at = self.cursor.mark();
            match self.cursor.peek() {
                None | Some('\n' | ' ' | '\t') => break,
                Some('\'') => self.single_quoted(&mut pieces)?,
                Some('"') => self.double_quoted(&mut pieces)?,
                Some('\\') => self.escaped(&mut pieces)?,
                Some('$') => dollar::reference(&mut self.cursor, Inside::Unquoted, &mut pieces)?,
                Some('`') => return Err(backtick(&mut self.cursor)),
                Some(';' | '&' | '|' | '<' | '>' | '(' | ')') => return Err(self.operator()),
                Some('~') if is_tilde_special => return Err(tilde(&mut self.cursor)),
                Some(next) => {
                    if next == '{' {
                        brace.get_or_insert(at);
                    }
                    pieces.push(next);
                    self.cursor.advance();
                }
            }
            is_tilde_special = self.cursor.text_from(at) == ":";
        }
        if let Some(brace) = brace.filter(|_| key.is_exported) {
            self.check_braces(brace)?;
        }
        Ok(pieces.into_text())
    }

    /// A shell makes several words of `export A={x,y}`, but one of `A={x,y}`.
    fn check_braces(&self, brace: Mark) -> Result<(), Problem> {
        let rest = self.cursor.text_from(brace);
        if !rest.contains(',') && !rest.contains("..") {
            return Ok(());
        }
        let help = "put the value in quotes, or leave `export` out: every value is exported";
        let span = self.cursor.span_at(brace);
        Err(Problem {
            code: SYNTAX,
            span,
            message: "after `export` a shell would expand these braces".to_owned(),
            help: help.to_owned(),
        })
    }

    fn operator(&mut self) -> Problem {
        let start = self.cursor.mark();
        let operator = self.cursor.peek().unwrap_or_default();
        self.cursor.advance();
        let message = format!("`{operator}` outside quotes is an operator of the shell");
        let help = "put the value in quotes; write one assignment to a line";
        problem(&self.cursor, start, SYNTAX, message, help)
    }

    fn escaped(&mut self, pieces: &mut Pieces) -> Result<(), Problem> {
        let start = self.cursor.mark();
        self.cursor.advance();
        let Some(next) = self.cursor.peek() else {
            let message = "a backslash at the end of the file";
            return Err(problem(
                &self.cursor,
                start,
                SYNTAX,
                message,
                "for a literal backslash write `\\\\`",
            ));
        };
        pieces.push(next);
        self.cursor.advance();
        Ok(())
    }

    fn single_quoted(&mut self, pieces: &mut Pieces) -> Result<(), Problem> {
        let start = self.cursor.mark();
        self.cursor.advance();
        let opened = self.cursor.clone();
        loop {
            match self.cursor.peek() {
                None => return Err(unclosed_quote(&opened, start)),
                Some('\'') => {
                    self.cursor.advance();
                    return Ok(());
                }
                Some(next) => {
                    pieces.push(next);
                    self.cursor.advance();
                }
            }
        }
    }

    fn double_quoted(&mut self, pieces: &mut Pieces) -> Result<(), Problem> {
        let start = self.cursor.mark();
        self.cursor.advance();
        let opened = self.cursor.clone();
        loop {
            self.cursor.join_lines();
            match self.cursor.peek() {
                None => return Err(unclosed_quote(&opened, start)),
                Some('"') => {
                    self.cursor.advance();
                    return Ok(());
                }
                Some('$') => dollar::reference(&mut self.cursor, Inside::Quoted, pieces)?,
                Some('`') => return Err(backtick(&mut self.cursor)),
                Some('\\') => {
                    self.cursor.advance();
                    match self.cursor.peek().filter(|next| matches!(next, '"' | '$' | '`' | '\\')) {
                        Some(next) => {
                            pieces.push(next);
                            self.cursor.advance();
                        }
                        None => pieces.push('\\'),
                    }
                }
                Some(next) => {
                    pieces.push(next);
                    self.cursor.advance();
                }
            }
        }
    }

    /// Reads what may follow a value: blanks and a comment.
    fn end_of_statement(&mut self, key: &Key, value_start: Mark) -> Result<(), Problem> {
        let is_empty = self.cursor.mark().offset == value_start.offset;
        let blank = self.cursor.mark();
        self.cursor.skip_blanks();
        match self.cursor.peek() {
            None | Some('\n') => Ok(()),
            // A blank came before it: otherwise it would be part of the value.
            Some('#') => {
                self.cursor.skip_line();
                Ok(())
            }
            Some(';' | '&' | '|' | '<' | '>' | '(' | ')') => Err(self.operator()),
            Some(_) => {
                let name = &key.name;
                let (message, help) = if is_empty {
                    ("there is a blank after the `=`", format!("write `{name}=value` without blanks"))
                } else {
                    (
                        "the value ends at this blank, and more follows",
                        format!("put the value in quotes: `{name}=\"…\"`"),
                    )
                };
                Err(Problem {
                    code: SYNTAX,
                    span: self.cursor.span_at(blank),
                    message: message.to_owned(),
                    help,
                })
            }
        }
    }

    /// Reports a problem and moves to the end of the statement that begins at `start`: the first newline outside
    /// quotes, or the end of the line in which a quote is opened that is never closed.
    fn give_up(&mut self, start: Mark, problem: Problem) {
        self.found.problems.push(problem);
        self.cursor.go_to(start);
        let mut was_blank = false;
        loop {
            let next = self.cursor.peek();
            match next {
                None | Some('\n') => return,
                Some('#') if was_blank => return self.cursor.skip_line(),
                Some(quote @ ('\'' | '"')) => {
                    let line = self.cursor.clone();
                    self.cursor.advance();
                    while self.cursor.peek().is_some_and(|next| next != quote) {
                        if quote == '"' {
                            self.cursor.take('\\');
                        }
                        self.cursor.advance();
                    }
                    if self.cursor.peek().is_none() {
                        self.cursor = line;
                        return self.cursor.skip_line();
                    }
                }
                Some('\\') => self.cursor.advance(),
                Some(_) => {}
            }
            was_blank = matches!(next, Some(' ' | '\t'));
            self.cursor.advance();
        }
    }
}

fn unclosed_quote(opened: &Cursor<'_>, start: Mark) -> Problem {
    problem(opened, start, SYNTAX, "this quote is never closed", "close it, or write a backslash before it")
}

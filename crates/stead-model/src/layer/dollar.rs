//! What a `$` begins: a reference, a literal dollar, or something that is refused.

use super::cursor::{Cursor, Mark, Problem};
use super::text::{Pieces, Text};
use super::{SUBSTITUTION, SYNTAX};

/// The deepest nesting of `${A:-${B:-…}}`.
const MAX_DEPTH: usize = 32;

/// What can be written instead of a substitution.
const FORMS: &str = "only `$NAME`, `${NAME}` and `${NAME:-text}` are expanded; nothing is executed";

/// What a `$` stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inside {
    /// A layer file, outside quotes.
    Unquoted,
    /// A layer file, in double quotes.
    Quoted,
    /// A string of a catalogue.
    Catalogue,
}

impl Inside {
    /// Returns how a `$` that is meant literally is written here.
    fn literal_dollar(self) -> &'static str {
        match self {
            Self::Unquoted | Self::Quoted => {
                "for a literal dollar write `\\$`, or put the value in single quotes"
            }
            Self::Catalogue => "for a literal dollar write `\\$`",
        }
    }
}

/// Reads what the `$` at the cursor begins.
pub(super) fn reference(cursor: &mut Cursor<'_>, inside: Inside, pieces: &mut Pieces) -> Result<(), Problem> {
    // A shell joins lines before it looks at the `$`, so that `$\` and a newline may hide what it begins.
    Dollar { inside, joins: inside != Inside::Catalogue, depth: 0 }.read(cursor, pieces)
}

/// How a `$` is read.
#[derive(Clone, Copy)]
struct Dollar {
    inside: Inside,
    joins: bool,
    depth: usize,
}

impl Dollar {
    fn read(self, cursor: &mut Cursor<'_>, pieces: &mut Pieces) -> Result<(), Problem> {
        let start = cursor.mark();
        cursor.advance();
        match self.peek(cursor) {
            Some(first) if is_name_start(first) => {
                let name = self.name(cursor);
                self.check_name(cursor, start, &name)?;
                pieces.refer(&name, None, cursor.span_from(start));
                Ok(())
            }
            Some('{') => self.braced(cursor, start, pieces),
            Some('(') => Err(self.refused(cursor, start, "`$(…)` is not substituted in a value")),
            Some('[') => Err(self.refused(cursor, start, "`$[…]` is not calculated in a value")),
            Some('0'..='9' | '?' | '#' | '@' | '*' | '-' | '$' | '!') => {
                Err(self.refused(cursor, start, "special parameters of a shell have no value here"))
            }
            Some('\'' | '"') if self.inside == Inside::Unquoted => Err(self.refused(
                cursor,
                start,
                "a `$` before a quote means different things to different shells",
            )),
            Some(_) | None => {
                pieces.push('$');
                Ok(())
            }
        }
    }

    fn peek(self, cursor: &mut Cursor<'_>) -> Option<char> {
        if self.joins {
            cursor.join_lines();
        }
        cursor.peek()
    }

    /// Moves past a name and returns it; it may be empty, and may begin with a digit.
    fn name(self, cursor: &mut Cursor<'_>) -> String {
        let mut name = String::new();
        while let Some(next) = self.peek(cursor).filter(|next| is_name_part(*next)) {
            name.push(next);
            cursor.advance();
        }
        name
    }

    fn check_name(self, cursor: &Cursor<'_>, start: Mark, name: &str) -> Result<(), Problem> {
        if name == "_" {
            return Err(problem(
                cursor,
                start,
                SUBSTITUTION,
                "special parameters of a shell have no value here",
                format!("{FORMS}; {}", self.inside.literal_dollar()),
            ));
        }
        Ok(())
    }

    /// Reads `{NAME}` or `{NAME:-text}` after a `$`.
    fn braced(self, cursor: &mut Cursor<'_>, start: Mark, pieces: &mut Pieces) -> Result<(), Problem> {
        cursor.advance();
        let opened = cursor.clone();
        let inner = Self { joins: false, ..self };
        let name = inner.name(cursor);
        let is_name = name.starts_with(is_name_start);
        if is_name && cursor.take('}') {
            self.check_name(cursor, start, &name)?;
            pieces.refer(&name, None, cursor.span_from(start));
            return Ok(());
        }
        if matches!(cursor.peek(), None | Some('\n')) {
            return Err(unclosed(&opened, start));
        }
        if !is_name || !cursor.is_at(":-") {
            let message = "this form of `${…}` is not expanded";
            let help = format!("{FORMS}; {}", self.inside.literal_dollar());
            return Err(problem(&opened, start, SUBSTITUTION, message, help));
        }
        self.check_name(cursor, start, &name)?;
        cursor.advance();
        cursor.advance();
        let default = inner.default(cursor, &opened, start)?;
        pieces.refer(&name, Some(default), cursor.span_from(start));
        Ok(())
    }

    /// Reads the text after `:-` and the brace that ends it.
    fn default(mut self, cursor: &mut Cursor<'_>, opened: &Cursor<'_>, start: Mark) -> Result<Text, Problem> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let message = format!("`${{…}}` is nested more than {MAX_DEPTH} deep");
            return Err(problem(opened, start, SYNTAX, message, "use another variable for the inner part"));
        }
        let mut pieces = Pieces::default();
        // A shell takes a `~` for the home directory here, and outside double quotes after a `:` as well.
        let mut is_tilde_special = true;
        loop {
            let at = cursor.mark();
            match cursor.peek() {
                None | Some('\n') => return Err(unclosed(opened, start)),
                Some('}') => {
                    cursor.advance();
                    return Ok(pieces.into_text());
                }
                Some('$') => self.read(cursor, &mut pieces)?,
                Some('`') if self.inside != Inside::Catalogue => return Err(backtick(cursor)),
                Some('\'' | '"' | '\\') => {
                    cursor.advance();
                    let message = "quotes and backslashes are not allowed after `:-`";
                    let help = "set another variable to that text and refer to it: `${A:-${B}}`";
                    return Err(problem(cursor, at, SYNTAX, message, help));
                }
                Some('~') if is_tilde_special => return Err(tilde(cursor)),
                // Bash takes it for the start of a command in double quotes, too.
                Some('<' | '>') if self.inside != Inside::Catalogue && is_process(cursor) => {
                    cursor.advance();
                    return Err(self.refused(cursor, at, "`<(…)` and `>(…)` are not substituted in a value"));
                }
                Some(next) => {
                    pieces.push(next);
                    cursor.advance();
                }
            }
            is_tilde_special = self.inside == Inside::Unquoted && cursor.text_from(at) == ":";
        }
    }

    /// Returns the problem of something that a `$` begins, up to the character the cursor is at.
    fn refused(self, cursor: &mut Cursor<'_>, start: Mark, message: &str) -> Problem {
        cursor.advance();
        let help = format!("{FORMS}; {}", self.inside.literal_dollar());
        problem(cursor, start, SUBSTITUTION, message, help)
    }
}

/// Returns the problem of a backtick at the cursor.
pub(super) fn backtick(cursor: &mut Cursor<'_>) -> Problem {
    let start = cursor.mark();
    cursor.advance();
    let message = "commands in backticks are not executed";
    problem(
        cursor,
        start,
        SUBSTITUTION,
        message,
        format!("{FORMS}; for a literal backtick use single quotes"),
    )
}

/// Returns the problem of a `~` at the cursor that a shell would expand.
pub(super) fn tilde(cursor: &mut Cursor<'_>) -> Problem {
    let start = cursor.mark();
    cursor.advance();
    problem(cursor, start, SYNTAX, "`~` is not expanded here", "write `${HOME}`, or put it in quotes")
}

fn unclosed(opened: &Cursor<'_>, start: Mark) -> Problem {
    problem(opened, start, SYNTAX, "this `${` is not closed in its line", "end it with `}`")
}

/// Returns a problem from `start` to the cursor.
pub(super) fn problem(
    cursor: &Cursor<'_>,
    start: Mark,
    code: &'static str,
    message: impl Into<String>,
    help: impl Into<String>,
) -> Problem {
    Problem { code, span: cursor.span_from(start), message: message.into(), help: help.into() }
}

fn is_process(cursor: &Cursor<'_>) -> bool {
    cursor.is_at("<(") || cursor.is_at(">(")
}

pub(super) fn is_name_start(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
}

pub(super) fn is_name_part(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

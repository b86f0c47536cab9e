//! The grammar of gates: `NAME`, `!x`, `x && y`, `x || y`, `( )`, `NAME == word`, `NAME != word`.

use std::ops::Range;

use super::Condition;
use crate::catalogue::At;
use crate::diagnostic::Place;
use crate::plan_file::keys::is_env_name;

/// The deepest nesting of `!` and parentheses. Everything that walks a condition may recurse this far.
const MAX_DEPTH: usize = 32;

/// Why a text is no gate, and which bytes of it say so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::catalogue) struct GateError {
    pub(in crate::catalogue) message: String,
    pub(in crate::catalogue) range: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'t> {
    Word(&'t str),
    Not,
    And,
    Or,
    Open,
    Close,
    Equals,
    Differs,
}

/// Returns the condition `text` is; `place` gives the place of bytes of it.
pub(in crate::catalogue) fn parse(
    text: &str,
    place: &dyn Fn(Range<usize>) -> Place,
) -> Result<Condition, GateError> {
    let mut parser = Parser { tokens: tokens(text)?, at: 0, end: text.len(), place };
    let condition = parser.either(0)?;
    match parser.peek() {
        None => Ok(condition),
        Some((token, range)) => Err(parser.unexpected(token, range)),
    }
}

fn tokens(text: &str) -> Result<Vec<(Token<'_>, Range<usize>)>, GateError> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = text.get(at..).and_then(|rest| rest.chars().next()) {
        let rest = &text[at..];
        let (token, len) = match first {
            ' ' | '\t' | '\n' | '\r' => {
                at += 1;
                continue;
            }
            '(' => (Token::Open, 1),
            ')' => (Token::Close, 1),
            '!' if rest.starts_with("!=") => (Token::Differs, 2),
            '!' => (Token::Not, 1),
            '&' if rest.starts_with("&&") => (Token::And, 2),
            '|' if rest.starts_with("||") => (Token::Or, 2),
            '=' if rest.starts_with("==") => (Token::Equals, 2),
            _ => {
                let len = rest.bytes().take_while(|byte| is_word_byte(*byte)).count();
                if len == 0 {
                    let message = format!("`{first}` has no meaning in a gate");
                    return Err(GateError { message, range: at..at + first.len_utf8() });
                }
                (Token::Word(&rest[..len]), len)
            }
        };
        tokens.push((token, at..at + len));
        at += len;
    }
    Ok(tokens)
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-.,:/@%+".contains(&byte)
}

struct Parser<'t, 'p> {
    tokens: Vec<(Token<'t>, Range<usize>)>,
    at: usize,
    end: usize,
    place: &'p dyn Fn(Range<usize>) -> Place,
}

impl<'t> Parser<'t, '_> {
    fn peek(&self) -> Option<(Token<'t>, Range<usize>)> {
        self.tokens.get(self.at).cloned()
    }

    fn take(&mut self, wanted: Token<'_>) -> bool {
        let found = self.peek().is_some_and(|(token, _)| token == wanted);
        self.at += usize::from(found);
        found
    }

    fn either(&mut self, depth: usize) -> Result<Condition, GateError> {
        let mut parts = vec![self.both(depth)?];
        while self.take(Token::Or) {
            parts.push(self.both(depth)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Condition::Or(parts) })
    }

    fn both(&mut self, depth: usize) -> Result<Condition, GateError> {
        let mut parts = vec![self.one(depth)?];
        while self.take(Token::And) {
            parts.push(self.one(depth)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Condition::And(parts) })
    }

    fn one(&mut self, depth: usize) -> Result<Condition, GateError> {
        let Some((token, range)) = self.peek() else {
            return Err(self.missing("a name"));
        };
        if depth > MAX_DEPTH {
            return Err(GateError { message: format!("nested deeper than {MAX_DEPTH}"), range });
        }
        self.at += 1;
        match token {
            Token::Not => Ok(Condition::Not(Box::new(self.one(depth + 1)?))),
            Token::Open => {
                let inner = self.either(depth + 1)?;
                if self.take(Token::Close) {
                    return Ok(inner);
                }
                match self.peek() {
                    Some((token, range)) => Err(self.unexpected(token, range)),
                    None => Err(self.missing("`)`")),
                }
            }
            Token::Word(name) => self.comparison(name, range),
            Token::And | Token::Or | Token::Close | Token::Equals | Token::Differs => {
                Err(self.unexpected(token, range))
            }
        }
    }

    fn comparison(&mut self, name: &str, range: Range<usize>) -> Result<Condition, GateError> {
        if !is_env_name(name) {
            return Err(GateError { message: format!("`{name}` cannot name a control or variable"), range });
        }
        let name = At { value: name.to_owned(), place: (self.place)(range) };
        if self.take(Token::Equals) {
            Ok(Condition::Equals(name, self.word()?))
        } else if self.take(Token::Differs) {
            Ok(Condition::Differs(name, self.word()?))
        } else {
            Ok(Condition::Name(name))
        }
    }

    fn word(&mut self) -> Result<String, GateError> {
        match self.peek() {
            Some((Token::Word(word), _)) => {
                self.at += 1;
                Ok(word.to_owned())
            }
            Some((token, range)) => Err(self.unexpected(token, range)),
            None => Err(self.missing("a word")),
        }
    }

    fn missing(&self, what: &str) -> GateError {
        GateError { message: format!("the gate ends where {what} should follow"), range: self.end..self.end }
    }

    fn unexpected(&self, token: Token<'_>, range: Range<usize>) -> GateError {
        let token = match token {
            Token::Word(word) => word,
            Token::Not => "!",
            Token::And => "&&",
            Token::Or => "||",
            Token::Open => "(",
            Token::Close => ")",
            Token::Equals => "==",
            Token::Differs => "!=",
        };
        GateError { message: format!("`{token}` cannot stand here in a gate"), range }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shape(condition: &Condition) -> String {
        let list = |parts: &[Condition], word: &str| {
            format!("({})", parts.iter().map(shape).collect::<Vec<_>>().join(word))
        };
        match condition {
            Condition::Name(name) => name.value.clone(),
            Condition::Not(inner) => format!("!{}", shape(inner)),
            Condition::And(parts) => list(parts, "&"),
            Condition::Or(parts) => list(parts, "|"),
            Condition::Equals(name, word) => format!("{}={word}", name.value),
            Condition::Differs(name, word) => format!("{}~{word}", name.value),
        }
    }

    fn read(text: &str) -> Result<String, GateError> {
        parse(text, &|range| Place::Named(format!("{range:?}"))).map(|condition| shape(&condition))
    }

    #[test]
    fn and_binds_closer_than_or_and_not_closest() {
        assert_eq!(read("A").unwrap(), "A");
        assert_eq!(read("A || B && !C").unwrap(), "(A|(B&!C))");
        assert_eq!(read("(A||B)&&C").unwrap(), "((A|B)&C)");
        assert_eq!(read("!(A && B && C)").unwrap(), "!(A&B&C)");
        assert_eq!(read(" INGRESS == nginx&&B!=x.y ").unwrap(), "(INGRESS=nginx&B~x.y)");
    }

    #[test]
    fn what_is_no_gate_says_where() {
        for (text, message, range) in [
            ("", "the gate ends where a name should follow", 0..0),
            ("A &&", "the gate ends where a name should follow", 4..4),
            ("A B", "`B` cannot stand here in a gate", 2..3),
            ("(A", "the gate ends where `)` should follow", 2..2),
            ("A)", "`)` cannot stand here in a gate", 1..2),
            ("A & B", "`&` has no meaning in a gate", 2..3),
            ("A == ", "the gate ends where a word should follow", 5..5),
            ("A = b", "`=` has no meaning in a gate", 2..3),
            ("1A", "`1A` cannot name a control or variable", 0..2),
            ("$A", "`$` has no meaning in a gate", 0..1),
        ] {
            let error = read(text).unwrap_err();
            assert_eq!((error.message.as_str(), error.range), (message, range), "{text:?}");
        }
        assert!(read(&"!".repeat(10_000)).is_err());
        assert!(read(&"(".repeat(10_000)).is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[A-B!&|()= 1é-]{0,40}") {
            if let Err(error) = read(&text) {
                prop_assert!(text.get(error.range).is_some());
            }
        }
    }
}

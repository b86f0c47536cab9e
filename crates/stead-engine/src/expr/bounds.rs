//! What keeps an expression from using up the machine: bounds on its length, its values and its output.

use std::io;

use minijinja::machinery::{self, Token};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value as Inner, ValueKind};
use serde::Serialize;
use serde_json::{Map, Number, Value};

use super::{ExprError, ends_expression, explain};

/// Bytes a rendered text or a value may hold.
pub const MAX_OUTPUT: usize = 64 << 20;
/// Elements a value may hold in all, and a list that is given to a filter.
pub const MAX_ELEMENTS: usize = 1_000_000;
/// Tokens of one expression. Chains (`a.b.c`, `1 + 1 + 1`) are nested in the syntax tree, which is walked recursively.
pub const MAX_TOKENS: usize = 1_000;

/// Lists deeper than this do not come from JSON.
const MAX_DEPTH: usize = 128;

/// Refuses an expression of too many tokens.
pub(super) fn check_expression(text: &str) -> Result<(), ExprError> {
    check_tokens(text, true, SyntaxConfig::default())
}

/// Refuses a template with an expression of too many tokens.
pub(super) fn check_template(text: &str, syntax: &SyntaxConfig) -> Result<(), ExprError> {
    check_tokens(text, false, syntax.clone())
}

fn check_tokens(text: &str, in_expression: bool, syntax: SyntaxConfig) -> Result<(), ExprError> {
    let (mut length, mut branches) = (0, 0);
    for token in machinery::tokenize(text, in_expression, syntax) {
        let (token, _) = token.map_err(|error| locate(explain(error), text))?;
        // Each `elif` nests the rest of its chain.
        if matches!(token, Token::Ident("elif")) {
            branches += 1;
        }
        length = if ends_expression(&token) { 0 } else { length + 1 };
        if length > MAX_TOKENS || branches > MAX_TOKENS {
            return Err(ExprError::too_large(format!(
                "the expression is longer than {MAX_TOKENS} words and signs"
            )));
        }
    }
    Ok(())
}

/// Keeps an offset inside the text and on a character boundary, whatever the tokenizer said.
fn locate(error: ExprError, text: &str) -> ExprError {
    if let ExprError::Syntax { message, offset, line } = error {
        let offset = offset.filter(|offset| text.is_char_boundary(*offset));
        return ExprError::Syntax { message, offset, line };
    }
    error
}

/// A writer that stops at [`MAX_OUTPUT`].
#[derive(Debug, Default)]
pub(super) struct Bounded {
    bytes: Vec<u8>,
    full: bool,
}

impl Bounded {
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    pub(super) fn into_text(self) -> Result<String, ExprError> {
        String::from_utf8(self.bytes)
            .map_err(|_| ExprError::Failed { message: "the text is not UTF-8".to_owned(), line: None })
    }
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_OUTPUT {
            self.full = true;
            return Err(io::Error::other("too large"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns `value` as minijinja's.
pub(super) fn to_inner<T: Serialize>(value: T) -> Inner {
    Inner::from(Serde(value))
}

/// Returns `value` as JSON, or why it has no such form.
pub(super) fn to_json(value: &Inner) -> Result<Value, ExprError> {
    Budget { bytes: MAX_OUTPUT, elements: MAX_ELEMENTS }.convert(value, 0)
}

struct Budget {
    bytes: usize,
    elements: usize,
}

impl Budget {
    #[expect(clippy::wildcard_enum_match_arm, reason = "minijinja may add kinds; they have no JSON form")]
    fn convert(&mut self, value: &Inner, depth: usize) -> Result<Value, ExprError> {
        if depth > MAX_DEPTH {
            return Err(ExprError::too_large(format!("the value is nested more than {MAX_DEPTH} deep")));
        }
        self.elements = self.elements.checked_sub(1).ok_or_else(|| {
            ExprError::too_large(format!("the value has more than {MAX_ELEMENTS} elements"))
        })?;
        match value.kind() {
            ValueKind::Undefined => Err(failed("a part of the value is undefined")),
            ValueKind::None => Ok(Value::Null),
            ValueKind::Bool => Ok(Value::Bool(value.is_true())),
            ValueKind::Number => number(value),
            ValueKind::String => self.text(value.as_str().unwrap_or_default()).map(Value::String),
            ValueKind::Bytes => {
                let text = value.as_bytes().and_then(|bytes| std::str::from_utf8(bytes).ok());
                self.text(text.ok_or_else(|| failed("the value holds bytes that are not UTF-8"))?)
                    .map(Value::String)
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let mut items = Vec::new();
                for item in value.try_iter().map_err(explain)? {
                    items.push(self.convert(&item, depth + 1)?);
                }
                Ok(Value::Array(items))
            }
            ValueKind::Map => {
                let mut items = Map::new();
                for key in value.try_iter().map_err(explain)? {
                    let item = value.get_item(&key).map_err(explain)?;
                    let key = match key.as_str() {
                        Some(key) => self.text(key)?,
                        None => self.text(&key.to_string())?,
                    };
                    items.insert(key, self.convert(&item, depth + 1)?);
                }
                Ok(Value::Object(items))
            }
            ValueKind::Plain => Err(failed("a function is not a value; call it with `()`")),
            kind => Err(failed(&format!("a value of kind {kind} has no JSON form"))),
        }
    }

    fn text(&mut self, text: &str) -> Result<String, ExprError> {
        self.bytes = self
            .bytes
            .checked_sub(text.len())
            .ok_or_else(|| ExprError::too_large(format!("the value is larger than {MAX_OUTPUT} bytes")))?;
        Ok(text.to_owned())
    }
}

fn number(value: &Inner) -> Result<Value, ExprError> {
    if value.is_integer() {
        if let Some(number) = value.as_i64() {
            return Ok(number.into());
        }
        return u64::try_from(value.clone()).map(Value::from).map_err(|_| failed("the number is too large"));
    }
    let number = f64::try_from(value.clone()).map_err(explain)?;
    Number::from_f64(number).map(Value::Number).ok_or_else(|| failed("the number is not finite"))
}

fn failed(message: &str) -> ExprError {
    ExprError::Failed { message: message.to_owned(), line: None }
}

//! What a user's text may hold before it becomes a line of a file, or the name of one.

use std::net::IpAddr;

use serde_json::Value;
use stead_model::operation::judge_texts;
use stead_runner::operation::{OpError, Params};

/// Returns the text of parameter `name` if it fits on one line of a file.
pub(crate) fn line<'a>(params: &'a Params, name: &str) -> Result<Option<&'a str>, OpError> {
    params.text(name).map(|text| on_one_line(name, text)).transpose()
}

/// Returns the texts of parameter `name`, each fit for one line of a file and not empty.
pub(crate) fn lines(params: &Params, name: &str) -> Result<Vec<String>, OpError> {
    let texts = params.texts(name);
    for text in &texts {
        on_one_line(name, text)?;
        if text.trim().is_empty() {
            return Err(OpError::invalid(format!("`{name}` holds an empty text")));
        }
    }
    Ok(texts)
}

/// Returns `text` if it has no line end or other control character: it would become another line.
pub(crate) fn on_one_line<'a>(name: &str, text: &'a str) -> Result<&'a str, OpError> {
    match text.chars().find(|c| c.is_control() && *c != '\t') {
        Some(found) => Err(OpError::invalid(format!(
            "`{name}` holds {found:?}; a line end or control character cannot be put there"
        ))),
        None => Ok(text),
    }
}

/// Returns `text` if it is one word of a file whose fields are separated by white space.
pub(crate) fn word<'a>(name: &str, text: &'a str) -> Result<&'a str, OpError> {
    if text.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(OpError::invalid(format!(
            "`{name}`, `{}`: expected one word, without white space",
            text.escape_debug()
        )));
    }
    Ok(text)
}

/// Returns the text of parameter `name` if it can name a file in a directory and nothing else, made of letters,
/// digits, `-`, `_` and the characters of `also`.
pub(crate) fn file_name<'a>(params: &'a Params, name: &str, also: &str) -> Result<&'a str, OpError> {
    as_file_name(name, params.required(name)?, also)
}

/// Returns why the text of `name` cannot name a file that programs with strict rules read.
pub(crate) fn judge_plain_name(value: &Value) -> Option<String> {
    judge_texts(value, |text| problem(as_file_name("name", text, "")))
}

/// Returns what was wrong.
pub(crate) fn problem<T>(judged: Result<T, OpError>) -> Option<String> {
    judged.err().map(|error| error.message)
}

fn as_file_name<'a>(name: &str, text: &'a str, also: &str) -> Result<&'a str, OpError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || also.contains(c);
    if text.is_empty() || text.len() > 200 || text.starts_with(['-', '.']) || !text.chars().all(fits) {
        let also: String = also.chars().map(|c| format!(" `{c}`")).collect();
        return Err(OpError::invalid(format!(
            "`{name}`, `{}`: expected a file name of letters, digits, `-` `_`{also}, not starting with `-` or `.`",
            text.escape_debug()
        )));
    }
    Ok(text)
}

/// Returns the address `text` is.
pub(crate) fn address(name: &str, text: &str) -> Result<IpAddr, OpError> {
    text.parse().map_err(|_| {
        OpError::invalid(format!("`{name}`, `{}`: expected an IPv4 or IPv6 address", text.escape_debug()))
    })
}

/// Returns `text` if it is a host name: labels of letters, digits and `-`, separated by dots.
pub(crate) fn host_name<'a>(name: &str, text: &'a str) -> Result<&'a str, OpError> {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
    };
    if text.len() <= 253 && text.split('.').all(label) {
        return Ok(text);
    }
    Err(OpError::invalid(format!(
        "`{name}`, `{}`: expected a host name: labels of letters, digits and `-`, separated by dots",
        text.escape_debug()
    )))
}

/// Whether `state` is `absent`.
pub(crate) fn is_absent(params: &Params) -> bool {
    params.text("state") == Some("absent")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn named(name: &str) -> Params {
        let serde_json::Value::Object(values) = json!({"name": name}) else { panic!("a map") };
        Params::new(values)
    }

    #[test]
    fn names_cannot_leave_their_directory() {
        for name in ["", "..", ".", ".hidden", "a/b", "../x", "-rf", "a\nb", "a b", "ü", "a\0b"] {
            assert!(file_name(&named(name), "name", "").is_err(), "{name:?}");
            assert!(file_name(&named(name), "name", ".").is_err(), "{name:?}");
        }
        assert!(file_name(&named("web-1_x"), "name", "").is_ok());
        assert!(file_name(&named("a.b"), "name", "").is_err());
        assert!(file_name(&named("a.b"), "name", ".").is_ok());
    }

    #[test]
    fn lines_and_words_stay_what_they_are() {
        assert!(on_one_line("x", "a\nb").is_err() && on_one_line("x", "a\rb").is_err());
        assert!(on_one_line("x", "a b\tc").is_ok());
        assert!(word("x", "a b").is_err() && word("x", "").is_err() && word("x", "a\u{a0}b").is_err());
        for bad in ["", ".", "a..b", "-a", "a-", "a b", "a\nb", "ä"] {
            assert!(host_name("x", bad).is_err(), "{bad:?}");
        }
        assert!(host_name("x", "db-1.example.org").is_ok());
    }
}

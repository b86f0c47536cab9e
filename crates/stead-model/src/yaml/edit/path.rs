//! Where in a document a value is: `spec.containers[name=web].image`.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One step down a document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathPart {
    /// The value of a map's key: `spec`, `["a.b"]`.
    Key(String),
    /// An element of a list, from 0: `[0]`.
    Index(usize),
    /// The one map of a list that has this text at this key: `[name=web]`.
    Matching {
        /// The key.
        key: String,
        /// Its text.
        value: String,
    },
}

/// The way from the top of a document to a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyPath(pub Vec<PathPart>);

/// What is wrong with the text of a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct PathError {
    /// The byte at which it is wrong.
    pub at: usize,
    /// What is wrong, and how to write it.
    pub message: String,
}

impl KeyPath {
    /// Returns the path that `text` says.
    ///
    /// # Errors
    /// The first thing that is no path, with its place.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        Scan { text, at: 0 }.path()
    }

    /// Returns its steps, from the top.
    pub fn parts(&self) -> &[PathPart] {
        &self.0
    }

    /// Returns the path of its first `count` steps, as text.
    pub(super) fn prefix(&self, count: usize) -> String {
        join(&self.0[..count.min(self.0.len())])
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&join(&self.0))
    }
}

impl Serialize for KeyPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for KeyPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// Returns steps as the text of a path.
pub(super) fn join(parts: &[PathPart]) -> String {
    let mut text = String::new();
    for part in parts {
        match part {
            PathPart::Key(key) if !key.is_empty() && key.chars().all(is_bare) => {
                if !text.is_empty() {
                    text.push('.');
                }
                text.push_str(key);
            }
            PathPart::Key(key) => text.push_str(&format!("[{}]", quoted(key))),
            PathPart::Index(index) => text.push_str(&format!("[{index}]")),
            PathPart::Matching { key, value } => {
                let value = if value.chars().all(|c| c != ']' && c != '"') && !value.is_empty() {
                    value.clone()
                } else {
                    quoted(value)
                };
                text.push_str(&format!("[{key}={value}]"));
            }
        }
    }
    text
}

/// Whether a key may hold this character without quotes.
fn is_bare(c: char) -> bool {
    !matches!(c, '.' | '[' | ']' | '"' | '=') && !c.is_whitespace() && !c.is_control()
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

struct Scan<'t> {
    text: &'t str,
    at: usize,
}

impl Scan<'_> {
    fn path(mut self) -> Result<KeyPath, PathError> {
        let mut parts = Vec::new();
        if self.peek() != Some('[') {
            parts.push(PathPart::Key(self.bare("a path begins with a key: `spec.path`")?));
        }
        while let Some(next) = self.peek() {
            match next {
                '.' => {
                    self.at += 1;
                    parts.push(PathPart::Key(self.bare(
                        "a key comes after `.`; one in quotes is written `[\"a.b\"]`, without `.` before",
                    )?));
                }
                '[' => parts.push(self.bracket()?),
                _ => {
                    return Err(self
                        .wrong("`.` or `[` comes here; a key with other characters is written `[\"a b\"]`"));
                }
            }
        }
        Ok(KeyPath(parts))
    }

    fn peek(&self) -> Option<char> {
        self.text.get(self.at..).and_then(|rest| rest.chars().next())
    }

    fn wrong(&self, message: impl Into<String>) -> PathError {
        PathError { at: self.at, message: message.into() }
    }

    fn bare(&mut self, missing: &str) -> Result<String, PathError> {
        let start = self.at;
        while let Some(c) = self.peek().filter(|c| is_bare(*c)) {
            self.at += c.len_utf8();
        }
        let key = self.text.get(start..self.at).unwrap_or_default();
        if key.is_empty() { Err(self.wrong(missing)) } else { Ok(key.to_owned()) }
    }

    fn bracket(&mut self) -> Result<PathPart, PathError> {
        self.at += 1;
        let part = if self.peek() == Some('"') {
            PathPart::Key(self.quoted()?)
        } else {
            let start = self.at;
            let key = self.bare("`[0]`, `[name=web]` or `[\"a.b\"]` is written here")?;
            if self.peek() == Some('=') {
                self.at += 1;
                let value = if self.peek() == Some('"') { self.quoted()? } else { self.until_bracket()? };
                PathPart::Matching { key, value }
            } else if key.bytes().all(|byte| byte.is_ascii_digit()) {
                PathPart::Index(
                    key.parse()
                        .map_err(|_| PathError { at: start, message: format!("`{key}` is too large") })?,
                )
            } else {
                let message =
                    format!("a list is entered by number or by a key's value: `[0]`, `[{key}=web]`");
                return Err(PathError { at: start, message });
            }
        };
        if self.peek() != Some(']') {
            return Err(self.wrong("`]` is missing here"));
        }
        self.at += 1;
        Ok(part)
    }

    fn until_bracket(&mut self) -> Result<String, PathError> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let length = rest.find(']').ok_or_else(|| self.wrong("`]` is missing at the end"))?;
        let value = rest[..length].to_owned();
        if value.is_empty() || value.contains('"') {
            return Err(
                self.wrong("a value comes here; one that is empty or has quotes is written `[name=\"…\"]`")
            );
        }
        self.at += length;
        Ok(value)
    }

    fn quoted(&mut self) -> Result<String, PathError> {
        self.at += 1;
        let mut text = String::new();
        while let Some(c) = self.peek() {
            self.at += c.len_utf8();
            match c {
                '"' => return Ok(text),
                '\\' => match self.peek() {
                    Some(escaped @ ('"' | '\\')) => {
                        self.at += 1;
                        text.push(escaped);
                    }
                    Some(_) | None => return Err(self.wrong("only `\\\"` and `\\\\` are escapes here")),
                },
                other => text.push(other),
            }
        }
        Err(self.wrong("the closing `\"` is missing"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_path_reads_and_writes_the_same() {
        for text in [
            "spec.path",
            "a[0].b",
            "spec.containers[name=web].image",
            "metadata.annotations[\"app.example.com/a b\"]",
            "[\"a.b\"].c",
            "[0][1]",
            "a[name=\"x]y\"]",
            "a[\"say \\\"hi\\\" \\\\\"]",
            "größe.x-y_z/0",
        ] {
            assert_eq!(KeyPath::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_path_is_refused_at_its_place() {
        for (text, at) in [
            ("", 0),
            (".a", 0),
            ("a.", 2),
            ("a..b", 2),
            ("a b", 1),
            ("a[", 2),
            ("a[]", 2),
            ("a[x]", 2),
            ("a[0", 3),
            ("a[0]b", 4),
            ("a[name=]", 7),
            ("a[name=web", 7),
            ("a[\"b]", 5),
            ("a.[\"b\"]", 2),
            ("a[99999999999999999999999]", 2),
            ("a[\"\\n\"]", 4),
        ] {
            assert_eq!(KeyPath::parse(text).map_err(|error| error.at), Err(at), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_read_is_written_back(text in "[a-c.\\[\\]\"\\\\=0-9 é]{0,12}") {
            if let Ok(path) = KeyPath::parse(&text) {
                prop_assert_eq!(KeyPath::parse(&path.to_string()), Ok(path));
            }
        }
    }
}

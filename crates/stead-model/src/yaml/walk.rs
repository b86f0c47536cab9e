//! Reading a tree as typed values: each method returns the value or reports why there is none.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use super::tree::{Node, Value};
use crate::diagnostic::{Diagnostic, Diagnostics, nearest};
use crate::duration;

/// One key a map may have. The JSON Schema of a format is made from the same table as its reader.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Whether it must be there.
    pub required: bool,
    /// What it is for, with its default.
    pub doc: &'static str,
    /// The JSON Schema of its value.
    pub schema: fn() -> serde_json::Value,
}

impl Key {
    /// Returns a key that may be left out.
    pub const fn new(name: &'static str, schema: fn() -> serde_json::Value, doc: &'static str) -> Self {
        Self { name, required: false, doc, schema }
    }

    /// Returns this key as one that must be there.
    pub const fn required(mut self) -> Self {
        self.required = true;
        self
    }
}

/// The keys a map may have.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    /// What the map is, for messages: `a task`.
    pub what: &'static str,
    /// Its keys.
    pub keys: &'static [Key],
    /// What people write instead of a key, with the key.
    pub hints: &'static [(&'static str, &'static str)],
}

impl Keys {
    /// Returns the names of the keys.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.keys.iter().map(|key| key.name)
    }

    fn names_with<'m>(&self, more: &[&'m str]) -> Vec<&'m str> {
        let mut names: Vec<&str> = self.keys.iter().map(|key| key.name).collect();
        names.extend(more);
        names
    }

    fn advice(&self, word: &str, more: &[&str]) -> String {
        if let Some((_, key)) = self.hints.iter().find(|(wrong, _)| *wrong == word) {
            return format!("use `{key}`");
        }
        let names = self.names_with(more);
        match nearest(word, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("keys of {}: {}", self.what, names.join(", ")),
        }
    }
}

/// A map whose keys have been checked.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'t> {
    node: Node<'t>,
}

impl<'t> Fields<'t> {
    /// Returns the map itself.
    pub fn node(self) -> Node<'t> {
        self.node
    }

    /// Returns the value of `key`, if it is there.
    pub fn get(self, key: &str) -> Option<Node<'t>> {
        self.node.get(key)
    }
}

/// A reader of a tree that collects every problem.
#[derive(Debug)]
pub struct Walk<'d> {
    diagnostics: &'d mut Diagnostics,
}

impl<'d> Walk<'d> {
    /// Returns a reader that adds problems to `diagnostics`.
    pub fn new(diagnostics: &'d mut Diagnostics) -> Self {
        Self { diagnostics }
    }

    /// Adds a problem.
    pub fn report(&mut self, diagnostic: Diagnostic) {
        self.diagnostics.push(diagnostic);
    }

    fn expected<T>(&mut self, node: Node<'_>, what: &str) -> Option<T> {
        self.report(node.bad(format!("expected {what}, found {}", node.describe())));
        None
    }

    /// Returns the map, its unknown and missing keys reported; nothing if it is no map.
    pub fn map<'t>(&mut self, node: Node<'t>, keys: &Keys) -> Option<Fields<'t>> {
        self.map_with(node, keys, &[])
    }

    /// Returns the map as [`map`](Self::map) does; it may also have the keys in `more`.
    pub fn map_with<'t>(&mut self, node: Node<'t>, keys: &Keys, more: &[&str]) -> Option<Fields<'t>> {
        let Some(entries) = node.as_map() else {
            return self.expected(node, &format!("{} (a map)", keys.what));
        };
        for (key, _) in entries {
            let name = key.as_text().unwrap_or_default();
            if !keys.names().any(|known| known == name) && !more.contains(&name) {
                let message = format!("{} has no key `{}`", keys.what, node.tree().codes().show(name));
                let near = nearest(name, keys.names_with(more)).map(str::to_owned);
                let problem =
                    key.error(node.tree().codes().unknown_key, message).help(keys.advice(name, more));
                self.report(problem.candidates(near.into_iter().collect()));
            }
        }
        for key in keys.keys.iter().filter(|key| key.required) {
            if node.get(key.name).is_none() {
                let message = format!("{} needs the key `{}`", keys.what, key.name);
                let problem = node.error(node.tree().codes().missing_key, message).help(key.doc);
                let path = match problem.path.as_str() {
                    "" => key.name.to_owned(),
                    parent => format!("{parent}.{}", key.name),
                };
                self.report(problem.path(path));
            }
        }
        Some(Fields { node })
    }

    /// Returns the elements of a list.
    pub fn list<'t>(&mut self, node: Node<'t>, what: &str) -> Option<super::Items<'t>> {
        match node.as_list() {
            Some(items) => Some(items),
            None => self.expected(node, &format!("a list of {what}")),
        }
    }

    /// Returns the elements of a list, or the one value that stands for a list of one.
    pub fn one_or_many<'t>(&mut self, node: Node<'t>) -> Vec<Node<'t>> {
        match node.as_list() {
            Some(items) => items.collect(),
            None => vec![node],
        }
    }

    /// Returns a text.
    pub fn text<'t>(&mut self, node: Node<'t>) -> Option<&'t str> {
        match node.value() {
            Value::Text(text) => Some(text),
            Value::Bool(_) | Value::Number(_) => {
                let problem = node.bad(format!("expected a text, found {}", node.describe()));
                let raw = node.tree().codes().show(node.raw());
                self.report(problem.help(format!("put it in quotes: \"{raw}\"")));
                None
            }
            Value::Null | Value::List(_) | Value::Map(_) => self.expected(node, "a text"),
        }
    }

    /// Returns a text that is not empty.
    pub fn full_text<'t>(&mut self, node: Node<'t>) -> Option<&'t str> {
        let text = self.text(node)?;
        if text.trim().is_empty() {
            self.report(node.bad("must not be empty"));
            return None;
        }
        Some(text)
    }

    /// Returns a text; numbers and booleans as they are written.
    pub fn text_of_scalar<'t>(&mut self, node: Node<'t>) -> Option<&'t str> {
        match node.value() {
            Value::Text(text) => Some(text),
            Value::Bool(_) | Value::Number(_) => Some(node.raw()),
            Value::Null | Value::List(_) | Value::Map(_) => self.expected(node, "a text"),
        }
    }

    /// Returns a boolean.
    pub fn boolean(&mut self, node: Node<'_>) -> Option<bool> {
        if let Value::Bool(value) = node.value() {
            return Some(value);
        }
        let problem = node.bad(format!("expected true or false, found {}", node.describe()));
        let help = match node.as_text().map(str::to_ascii_lowercase).as_deref() {
            Some("true" | "false") if !node.is_plain_text() => "write it without quotes",
            Some("yes" | "on" | "y" | "true") => "write `true`: only `true` and `false` are booleans",
            Some("no" | "off" | "n" | "false") => "write `false`: only `true` and `false` are booleans",
            Some(_) | None => "",
        };
        self.report(problem.help(help));
        None
    }

    /// Returns a whole number in `range`.
    pub fn integer(&mut self, node: Node<'_>, range: RangeInclusive<i64>) -> Option<i64> {
        let what = format!("a whole number from {} to {}", range.start(), range.end());
        match node.value() {
            Value::Number(number) if number.as_i64().is_some_and(|number| range.contains(&number)) => {
                number.as_i64()
            }
            Value::Number(number) if number.is_i64() || number.is_u64() => {
                let message = format!("expected {what}, found {}", node.describe());
                self.report(node.error(node.tree().codes().out_of_range, message));
                None
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Text(_)
            | Value::List(_)
            | Value::Map(_) => self.expected(node, &what),
        }
    }

    /// Returns a duration such as `1h30m`.
    pub fn duration(&mut self, node: Node<'_>) -> Option<Duration> {
        let text = match node.value() {
            Value::Text(text) => text,
            Value::Number(_) => node.raw(),
            Value::Null | Value::Bool(_) | Value::List(_) | Value::Map(_) => {
                return self.expected(node, "a duration such as 30s");
            }
        };
        self.parsed(node, duration::parse(text))
    }

    /// Returns one of the values that words stand for.
    pub fn choice<T: Copy>(&mut self, node: Node<'_>, words: &[(&str, T)]) -> Option<T> {
        let known = words.iter().map(|(word, _)| *word);
        let codes = node.tree().codes();
        let problem = match node.value() {
            Value::Text(text) => match words.iter().find(|(word, _)| *word == text) {
                Some((_, value)) => return Some(*value),
                None => {
                    let message = format!("`{}` is not one of its values", codes.show(text));
                    let near = nearest(text, known.clone())
                        .map_or_else(String::new, |near| format!("did you mean `{near}`? "));
                    node.error(codes.bad_word, message)
                        .help(format!("{near}values: {}", known.collect::<Vec<_>>().join(", ")))
                }
            },
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::List(_) | Value::Map(_) => {
                node.bad(format!(
                    "expected one of {}, found {}",
                    known.collect::<Vec<_>>().join(", "),
                    node.describe()
                ))
            }
        };
        self.report(problem.candidates(words.iter().map(|(word, _)| (*word).to_owned()).collect()));
        None
    }

    /// Returns an identifier.
    pub fn id<T: FromStr<Err: Display>>(&mut self, node: Node<'_>) -> Option<T> {
        let text = self.text(node)?;
        match text.parse() {
            Ok(id) => Some(id),
            Err(error) => {
                let codes = node.tree().codes();
                self.report(node.error(codes.bad_name, codes.show_error(error, "this is not such a name")));
                None
            }
        }
    }

    /// Returns what was parsed, or reports at `node` why it was not.
    pub fn parsed<T, E: Display>(&mut self, node: Node<'_>, outcome: Result<T, E>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(error) => {
                self.report(node.bad(node.tree().codes().show_error(error, "this cannot be used here")));
                None
            }
        }
    }
}

//! Structural edits: one scalar of a YAML file gets another value, and no other byte changes.
//!
//! A parser finds the value's range of bytes; the result is parsed again and has to say the same as before everywhere
//! else, comments included. What would reach further than it seems to (aliases, anchors, merge keys) is refused. Pure:
//! text in, text out.

mod documents;
mod find;
mod path;
mod quote;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_saphyr::granit_parser::{Event, ScalarStyle};

use self::documents::{Documents, Kind};
use super::scalar::{self, Scalar};
use crate::diagnostic::{Diagnostics, Source, Span};

pub use path::{KeyPath, PathError, PathPart};

pub(super) use quote::is_plain_text;

/// Which value of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spot {
    /// Texts that the document has at these paths; none: the file holds one document.
    pub select: BTreeMap<KeyPath, String>,
    /// Where the value is in it.
    pub path: KeyPath,
}

/// What a value should be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Wanted {
    /// A text.
    Text(String),
    /// A whole number.
    Int(i64),
    /// `true` or `false`.
    Bool(bool),
}

impl Wanted {
    /// Returns the value as JSON.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Text(text) => text.as_str().into(),
            Self::Int(number) => (*number).into(),
            Self::Bool(value) => (*value).into(),
        }
    }
}

/// A value as it is found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// What it is, by the core schema of YAML 1.2.
    pub value: Value,
    /// Where it is.
    pub span: Span,
    /// Which node of the file it is: the same after other values have changed.
    pub node: usize,
}

/// What an edit comes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Edited {
    /// The value before.
    pub before: Found,
    /// The whole new text; none: the value is as it should be.
    pub text: Option<String>,
}

/// Returns the value at `spot`.
///
/// # Errors
/// `intent/file` if the text cannot be read, `intent/path` if there is no such value that could be edited.
pub fn find(source: &Source, spot: &Spot) -> Result<Found, Diagnostics> {
    let documents = documents::read(source)?;
    let node = find::scalar(&documents, spot)?;
    Ok(found(&documents, node))
}

/// Returns `source` with another value at `spot`.
///
/// # Errors
/// Those of [`find`]; and `intent/path` if the value cannot be written there without changing something else.
pub fn set(source: &Source, spot: &Spot, wanted: &Wanted) -> Result<Edited, Diagnostics> {
    let documents = documents::read(source)?;
    let node = find::scalar(&documents, spot)?;
    let before = found(&documents, node);
    if before.value == wanted.to_json() {
        return Ok(Edited { before, text: None });
    }
    let Kind::Scalar { style, value } = &documents.nodes[node].kind else {
        return Err(cannot_write(&documents, node, spot));
    };
    let (old, span, in_flow) = (&source.text, documents.nodes[node].span, documents.nodes[node].in_flow);
    let style = quote::chosen_style(value, &old[span.start..span.end], *style, in_flow);
    for spelling in quote::spellings(wanted, style, in_flow) {
        let text = [&old[..span.start], &spelling, &old[span.end..]].concat();
        if differs_only_at(&documents, node, &text, wanted) {
            return Ok(Edited { before, text: Some(text) });
        }
    }
    Err(cannot_write(&documents, node, spot))
}

fn found(documents: &Documents<'_>, node: usize) -> Found {
    let value = match &documents.nodes[node].kind {
        Kind::Scalar { value, style } => meaning(value, *style),
        Kind::List(_) | Kind::Map(_) | Kind::Alias => Value::Null,
    };
    Found { value, span: documents.nodes[node].span, node }
}

/// Returns what a scalar is. A number that cannot be kept exactly is its text.
fn meaning(value: &str, style: ScalarStyle) -> Value {
    if style != ScalarStyle::Plain {
        return value.into();
    }
    match scalar::classify(value) {
        Scalar::Null => Value::Null,
        Scalar::Bool(value) => value.into(),
        Scalar::Number(number) => number.into(),
        Scalar::Unusable(_) | Scalar::Text => value.into(),
    }
}

fn cannot_write(documents: &Documents<'_>, node: usize, spot: &Spot) -> Diagnostics {
    let message = format!("`{}` cannot be given this value without changing something else", spot.path);
    let problem = documents.problem(node, super::Codes::INTENT.bad_value, message);
    Diagnostics(vec![problem.path(spot.path.to_string()).help("edit it by hand")])
}

/// Whether `text` reads as the documents do, but for `node`, which is `wanted` there.
fn differs_only_at(documents: &Documents<'_>, node: usize, text: &str, wanted: &Wanted) -> bool {
    let source = Source { name: documents.source.name.clone(), text: text.into() };
    let Ok(after) = documents::read(&source) else { return false };
    let at = documents.nodes[node].event;
    after.events.len() == documents.events.len()
        && documents.events.iter().zip(&after.events).enumerate().all(|(index, (old, new))| {
            if index == at { is_wanted(new, wanted) } else { says_the_same(old, new) }
        })
}

fn is_wanted(event: &Event<'_>, wanted: &Wanted) -> bool {
    matches!(event, Event::Scalar(value, style, 0, None) if meaning(value, *style) == wanted.to_json())
}

fn says_the_same(old: &Event<'_>, new: &Event<'_>) -> bool {
    match (old, new) {
        // Where the parser thinks a comment belongs is a guess.
        (Event::Comment(old, _), Event::Comment(new, _)) => old == new,
        (old, new) => old == new,
    }
}

#[cfg(test)]
mod tests;

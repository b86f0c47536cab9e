//! Answers to the page.

use bytes::Bytes;
use hyper::StatusCode;
use serde_json::{Value, json};

use crate::follow::Follow;

/// What is shown.
#[derive(Debug)]
pub enum Shown {
    /// All of it at once.
    Whole(Whole),
    /// A run's events, as they come.
    Events(Box<Follow>),
}

/// An answer that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// Whether it is what was asked for.
    pub status: StatusCode,
    /// What it is.
    pub kind: &'static str,
    /// What else is to be said of it, by name.
    pub extra: Vec<(&'static str, u64)>,
    /// The bytes.
    pub body: Bytes,
}

impl Shown {
    /// Returns a document.
    pub fn json(document: &Value) -> Self {
        Self::text_of("application/json", document.to_string())
    }

    /// Returns text of a kind.
    pub fn text_of(kind: &'static str, text: String) -> Self {
        Self::Whole(Whole { status: StatusCode::OK, kind, extra: Vec::new(), body: text.into() })
    }

    /// Returns that something is not there, or cannot be shown, and why.
    pub fn trouble(status: StatusCode, why: &str) -> Self {
        Self::refused(status, &json!(why))
    }

    /// Returns that something cannot be shown; `error` says why in its `message`, and in its `help` what to do.
    pub fn refused(status: StatusCode, error: &Value) -> Self {
        let body = json!({"error": error}).to_string().into();
        Self::Whole(Whole { status, kind: "application/json", extra: Vec::new(), body })
    }

    /// Returns that there is no such thing.
    pub fn nothing() -> Self {
        Self::trouble(StatusCode::NOT_FOUND, "there is no such thing here")
    }
}

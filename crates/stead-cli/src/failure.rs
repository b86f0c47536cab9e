//! How a command fails: one type, one exit code per kind, one way to say it.

use std::borrow::Cow;
use std::error::Error;
use std::{fmt, io};

use serde_json::json;
use stead_engine::target::TargetError;
use stead_model::{Diagnostic, Diagnostics, ExitCode, Severity, Value};

use crate::output::{Paint, Style};
use crate::render::json;

/// Why a command did not do its work.
#[derive(Debug)]
pub struct Failure {
    /// Whose fault, and so which exit code.
    pub kind: FailureKind,
    /// What happened.
    pub source: Source,
    /// Its own code, where it has a better one than that of its kind.
    pub code: Option<Cow<'static, str>>,
    /// What to try.
    pub hints: Vec<String>,
    /// What else is known, for the JSON document of problems: key and value.
    pub known: Vec<(&'static str, Value)>,
    /// The JSON document of problems where the command has one of its own.
    pub document: Option<Box<Value>>,
}

/// Codes whose advice is right wherever they are said.
const ADVISED: [&str; 3] = ["input/unreadable", "reach/unknown-host", "E300"];

/// Returns what `stead explain` advises for a code.
fn advice(code: &str) -> Option<&'static str> {
    stead_model::explain::find(code).first().map(|found| found.advice)
}

/// Whose fault a failure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The work itself failed.
    Work,
    /// Output could not be written.
    Output,
    /// A bad flag or argument.
    Usage,
    /// Invalid input.
    Invalid,
    /// Verification failed.
    Verification,
    /// Another run holds a target.
    Locked,
    /// Somebody has to say yes.
    Confirmation,
    /// Something cannot be reached.
    Unreachable,
    /// Timed out.
    TimedOut,
    /// A signal.
    Cancelled,
}

impl FailureKind {
    /// Returns the kind whose exit code is `code`, for errors of libraries that know their code.
    pub const fn of(code: ExitCode) -> Self {
        match code {
            ExitCode::Success | ExitCode::Failed | ExitCode::Converging | ExitCode::Degraded => Self::Work,
            ExitCode::Usage => Self::Usage,
            ExitCode::Invalid => Self::Invalid,
            ExitCode::Verification => Self::Verification,
            ExitCode::Locked => Self::Locked,
            ExitCode::Confirmation => Self::Confirmation,
            ExitCode::Unreachable => Self::Unreachable,
            ExitCode::TimedOut => Self::TimedOut,
            ExitCode::Cancelled => Self::Cancelled,
        }
    }

    /// Returns the code of a failure that has none of its own; `stead explain` knows it.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Work => "work/failed",
            Self::Output => "work/output",
            Self::Usage => "usage/argument",
            Self::Invalid => "input/invalid",
            Self::Verification => "verify/failed",
            Self::Locked => "lock/held",
            Self::Confirmation => "confirm/needed",
            Self::Unreachable => "reach/unreachable",
            Self::TimedOut => "work/timed-out",
            Self::Cancelled => "work/cancelled",
        }
    }

    /// Returns the exit code. The only place that maps one to the other.
    pub const fn exit_code(self) -> ExitCode {
        match self {
            Self::Work | Self::Output => ExitCode::Failed,
            Self::Usage => ExitCode::Usage,
            Self::Invalid => ExitCode::Invalid,
            Self::Verification => ExitCode::Verification,
            Self::Locked => ExitCode::Locked,
            Self::Confirmation => ExitCode::Confirmation,
            Self::Unreachable => ExitCode::Unreachable,
            Self::TimedOut => ExitCode::TimedOut,
            Self::Cancelled => ExitCode::Cancelled,
        }
    }
}

/// What happened.
#[derive(Debug)]
pub enum Source {
    /// A sentence of ours.
    Message(String),
    /// An error with its chain.
    Error(Box<dyn Error + Send + Sync>),
    /// Problems in what a user wrote.
    Diagnostics(Diagnostics),
}

impl Failure {
    /// Returns a failure with a message of ours.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self::with_source(kind, Source::Message(message.into()))
    }

    /// Returns a failure caused by `error`.
    pub fn caused_by(kind: FailureKind, error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::with_source(kind, Source::Error(error.into()))
    }

    /// Returns the failure of input that has problems: exit code 3.
    pub fn invalid(diagnostics: Diagnostics) -> Self {
        Self::of(FailureKind::Invalid, diagnostics)
    }

    /// Returns the failure of problems that are of `kind`.
    pub fn of(kind: FailureKind, diagnostics: Diagnostics) -> Self {
        Self::with_source(kind, Source::Diagnostics(diagnostics))
    }

    const fn with_source(kind: FailureKind, source: Source) -> Self {
        Self { kind, source, code: None, hints: Vec::new(), known: Vec::new(), document: None }
    }

    /// Returns the failure of a name that was typed and does not exist.
    pub fn unknown_name(kind: FailureKind, message: impl Into<String>) -> Self {
        Self::new(kind, message).code("usage/unknown-name")
    }

    /// Returns the failure of a file that cannot be read: exit code 3.
    pub fn unreadable(path: impl fmt::Display, error: &io::Error) -> Self {
        Self::new(FailureKind::Invalid, format!("cannot read {path}: {error}")).code("input/unreadable")
    }

    /// Returns the failure of targets that mean nothing, or no host: exit code 3.
    pub fn target(errors: Vec<TargetError>) -> Self {
        let code = errors.first().map_or("reach/bad-target", TargetError::code);
        let text = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        Self::new(FailureKind::Invalid, text).code(code)
    }

    /// Returns this failure with a code of its own.
    pub fn code(mut self, code: impl Into<Cow<'static, str>>) -> Self {
        self.code = Some(code.into());
        self
    }

    /// Returns this failure with something to try.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Returns this failure with something else that is known, for its JSON document.
    pub fn knowing(mut self, key: &'static str, value: Value) -> Self {
        self.known.push((key, value));
        self
    }

    /// Returns this failure with a document of the command's own.
    pub fn shown_as(mut self, document: Value) -> Self {
        self.document = Some(Box::new(document));
        self
    }

    /// Returns the exit code.
    pub const fn exit_code(&self) -> ExitCode {
        self.kind.exit_code()
    }

    /// Returns the problem that stands for all others.
    fn first(&self) -> Option<&Diagnostic> {
        let Source::Diagnostics(diagnostics) = &self.source else { return None };
        let error = diagnostics.iter().find(|problem| problem.severity == Severity::Error);
        error.or_else(|| diagnostics.0.first())
    }

    /// Returns the code that `stead explain` knows it by.
    pub fn stable_code(&self) -> Cow<'static, str> {
        let own = || self.first().map_or(self.kind.code(), |problem| problem.code);
        self.code.clone().unwrap_or_else(|| own().into())
    }

    /// Returns the message with its chain of causes on one line.
    pub fn message(&self) -> String {
        match &self.source {
            Source::Message(_) | Source::Error(_) => self.causes().join(": "),
            Source::Diagnostics(diagnostics) => diagnostics.to_string(),
        }
    }

    /// Returns the message and its causes, without the code that libraries write beside their messages.
    fn causes(&self) -> Vec<String> {
        let mut causes = match &self.source {
            Source::Message(message) => vec![message.clone()],
            Source::Error(error) => chain(error.as_ref()),
            Source::Diagnostics(_) => Vec::new(),
        };
        if let (Some(code), Some(first)) = (&self.code, causes.first_mut()) {
            let word = code.rsplit('/').next().unwrap_or_default();
            let bare = first.strip_prefix(&format!("{code}: ")).unwrap_or(first);
            *first = bare.strip_suffix(&format!(" ({word})")).unwrap_or(bare).to_owned();
        }
        causes
    }

    /// Returns what a person reads on standard error, newline included.
    pub fn to_text(&self, paint: Paint) -> String {
        let mut text = String::new();
        if let Source::Diagnostics(diagnostics) = &self.source {
            text.push_str(&diagnostics.render(paint == Paint::Ansi));
        }
        for (i, cause) in self.causes().iter().enumerate() {
            if i == 0 {
                let error = paint.apply(Style::Bad, &format!("error[{}]:", self.stable_code()));
                text.push_str(&format!("{error} {cause}\n"));
            } else {
                text.push_str(&format!("  caused by: {cause}\n"));
            }
        }
        for hint in self.hints() {
            let help = paint.apply(Style::Strong, "help:");
            text.push_str(&format!("  = {help} {}\n", hint.replace('\n', "\n          ")));
        }
        text
    }

    /// Returns what to try; there is always something to do about a lock, and about what a code is always about.
    fn hints(&self) -> impl Iterator<Item = &str> {
        let otherwise = if !self.hints.is_empty() {
            None
        } else if self.kind == FailureKind::Locked {
            Some("wait until it has ended, and try again")
        } else {
            self.code.as_deref().filter(|code| ADVISED.contains(code)).and_then(advice)
        };
        self.hints.iter().map(String::as_str).chain(otherwise)
    }

    /// Returns the key `error` of documents: code, message and what to do.
    pub fn to_error(&self) -> Value {
        let hints = self.hints().collect::<Vec<_>>().join("\n");
        let (message, help) = match self.first() {
            Some(problem) if problem.help.is_empty() => (problem.message.clone(), hints),
            Some(problem) => (problem.message.clone(), problem.help.clone()),
            None => (self.message(), hints),
        };
        json!({"code": self.stable_code(), "message": message, "help": help})
    }

    /// Returns the key `diagnostics` of documents: every problem; one that has no place says so.
    fn problems(&self) -> Vec<Value> {
        if let Source::Diagnostics(diagnostics) = &self.source {
            return diagnostics.iter().map(Diagnostic::to_json).collect();
        }
        let mut problem = self.to_error();
        problem["severity"] = json!(Severity::Error);
        problem["path"] = json!("");
        for nowhere in ["file", "line", "column"] {
            problem[nowhere] = Value::Null;
        }
        vec![problem]
    }

    /// Returns the document that `--json` prints instead of a report, newline included.
    pub fn to_json(&self) -> String {
        if let Some(document) = &self.document {
            return json::document(document);
        }
        json::failure(self.exit_code(), self.to_error(), self.problems(), &self.known)
    }
}

/// Returns an error's message and those of its sources, leaving out a source that its error repeats.
fn chain(error: &(dyn Error + 'static)) -> Vec<String> {
    let mut messages = vec![error.to_string()];
    let mut next = error.source();
    while let Some(cause) = next {
        let message = cause.to_string();
        if messages.last().is_none_or(|last| !last.ends_with(&message)) {
            messages.push(message);
        }
        next = cause.source();
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Libraries write their code beside the message; it is said once.
    #[test]
    fn a_code_is_said_once() {
        for (message, code) in [("E200: there is none", "E200"), ("there is none (unknown)", "fleet/unknown")]
        {
            let failure = Failure::new(FailureKind::Work, message).code(code);
            assert_eq!(failure.to_text(Paint::None), format!("error[{code}]: there is none\n"));
            assert_eq!(failure.message(), "there is none");
        }
    }

    /// What `stead explain` would say need not be asked for.
    #[test]
    fn some_codes_always_come_with_their_advice() {
        for code in ADVISED {
            let failure = Failure::new(FailureKind::Invalid, "no").code(code);
            let help = advice(code).filter(|advice| !advice.is_empty()).unwrap();
            assert_eq!(failure.to_text(Paint::None), format!("error[{code}]: no\n  = help: {help}\n"));
            let better = failure.hint("do this");
            assert_eq!(better.to_text(Paint::None), format!("error[{code}]: no\n  = help: do this\n"));
        }
    }

    /// Every kind has a code that can be looked up.
    #[test]
    fn codes_of_kinds_are_explained() {
        for exit_code in ExitCode::ALL {
            let code = FailureKind::of(exit_code).code();
            assert_eq!(stead_model::explain::find(code).len(), 1, "{code}");
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read the plan")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn the_chain_and_the_hints_are_printed() {
        let cause = std::io::Error::other("disk on fire");
        let failure = Failure::caused_by(FailureKind::Invalid, Outer(cause)).hint("buy a new disk");
        assert_eq!(
            failure.to_text(Paint::None),
            "error[input/invalid]: cannot read the plan\n  caused by: disk on fire\n  = help: buy a new disk\n"
        );
        let document: serde_json::Value = serde_json::from_str(&failure.to_json()).unwrap();
        assert_eq!(document["exit_code"], 3);
        assert_eq!(document["error"]["message"], "cannot read the plan: disk on fire");
        assert_eq!(document["error"]["help"], "buy a new disk");
        assert_eq!(document["error"]["code"], "input/invalid");
        assert_eq!(document["diagnostics"][0]["message"], document["error"]["message"]);
        assert_eq!(document["diagnostics"][0]["line"], Value::Null);
    }
}

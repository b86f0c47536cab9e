//! How a command fails: one type, one exit code per kind, one way to say it.

use std::error::Error;
use std::fmt::Write as _;

use stead_model::{Diagnostics, ExitCode, Value};

use crate::output::{Paint, Style};
use crate::render::json;

/// Why a command did not do its work.
#[derive(Debug)]
pub struct Failure {
    /// Whose fault, and so which exit code.
    pub kind: FailureKind,
    /// What happened.
    pub source: Source,
    /// What to try.
    pub hints: Vec<String>,
    /// What else is known, for the JSON document of problems: key and value.
    pub known: Vec<(&'static str, Value)>,
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
        Self { kind, source: Source::Message(message.into()), hints: Vec::new(), known: Vec::new() }
    }

    /// Returns a failure caused by `error`.
    pub fn caused_by(kind: FailureKind, error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { kind, source: Source::Error(error.into()), hints: Vec::new(), known: Vec::new() }
    }

    /// Returns the failure of input that has problems: exit code 3.
    pub fn invalid(diagnostics: Diagnostics) -> Self {
        Self::of(FailureKind::Invalid, diagnostics)
    }

    /// Returns the failure of problems that are of `kind`.
    pub fn of(kind: FailureKind, diagnostics: Diagnostics) -> Self {
        Self { kind, source: Source::Diagnostics(diagnostics), hints: Vec::new(), known: Vec::new() }
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

    /// Returns the exit code.
    pub const fn exit_code(&self) -> ExitCode {
        self.kind.exit_code()
    }

    /// Returns the message with its chain of causes on one line.
    pub fn message(&self) -> String {
        match &self.source {
            Source::Message(message) => message.clone(),
            Source::Error(error) => chain(error.as_ref()).join(": "),
            Source::Diagnostics(diagnostics) => diagnostics.to_string(),
        }
    }

    /// Returns what a person reads on standard error, newline included.
    pub fn to_text(&self, paint: Paint) -> String {
        let mut text = String::new();
        let error = paint.apply(Style::Bad, "error:");
        let written = match &self.source {
            Source::Message(message) => writeln!(text, "{error} {message}"),
            Source::Error(source) => chain(source.as_ref()).iter().enumerate().try_for_each(|(i, cause)| {
                if i == 0 {
                    writeln!(text, "{error} {cause}")
                } else {
                    writeln!(text, "  caused by: {cause}")
                }
            }),
            Source::Diagnostics(diagnostics) => {
                write!(text, "{}", diagnostics.render(paint == Paint::Ansi))
            }
        };
        debug_assert!(written.is_ok(), "writing to memory does not fail");
        for hint in &self.hints {
            text.push_str(&format!("{} {hint}\n", paint.apply(Style::Strong, "hint:")));
        }
        text
    }

    /// Returns the document that `--json` prints instead of a report, newline included.
    pub fn to_json(&self) -> String {
        match &self.source {
            Source::Diagnostics(diagnostics) => {
                json::input_errors(self.exit_code(), diagnostics, &self.known)
            }
            Source::Message(_) | Source::Error(_) => {
                json::error(self.exit_code(), &self.message(), &self.hints.join("\n"))
            }
        }
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

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read the plan")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn the_chain_and_the_hints_are_printed() {
        let cause = std::io::Error::other("disk on fire");
        let failure = Failure::caused_by(FailureKind::Invalid, Outer(cause)).hint("buy a new disk");
        assert_eq!(
            failure.to_text(Paint::None),
            "error: cannot read the plan\n  caused by: disk on fire\nhint: buy a new disk\n"
        );
        let document: serde_json::Value = serde_json::from_str(&failure.to_json()).unwrap();
        assert_eq!(document["exit_code"], 3);
        assert_eq!(document["error"]["message"], "cannot read the plan: disk on fire");
        assert_eq!(document["error"]["help"], "buy a new disk");
    }
}

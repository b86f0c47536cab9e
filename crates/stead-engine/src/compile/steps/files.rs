//! Whether the scripts of a plan can run, judged by facts about their files.

use std::collections::BTreeMap;

use stead_model::Diagnostic;
use stead_model::catalogue::{Step, StepAction};

/// What is known of a script's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepFile {
    /// It can run: a regular file inside the root, with an execute bit, that starts with `#!` and an interpreter that is
    /// there, or is ELF.
    Fine,
    /// There is none.
    Missing,
    /// It is something else than a file.
    NotRegular,
    /// It has no execute bit.
    NotExecutable,
    /// It cannot be read, in the system's words.
    Unreadable(String),
    /// It starts neither with `#!` nor as ELF.
    NotRunnable,
    /// This program, which its `#!` names, is not there; none if it names none that the kernel would find.
    NoInterpreter(Option<String>),
    /// A symbolic link leads out of the root.
    Outside,
}

impl StepFile {
    /// Returns the problem of the script at `path`, as code, words and advice; none if it can run.
    pub fn problem(&self, path: &str) -> Option<(&'static str, String, String)> {
        let not_runnable = |what: &str, help: &str| ("steps/not-runnable", what.to_owned(), help.to_owned());
        let (code, what, help) = match self {
            Self::Fine => return None,
            Self::Missing => {
                ("steps/missing", "does not exist".to_owned(), "write it, or correct the path".to_owned())
            }
            Self::NotRegular => {
                not_runnable("is not a regular file", "put a script there, or correct the path")
            }
            Self::NotExecutable => {
                ("steps/not-executable", "is not executable".to_owned(), format!("chmod +x {path}"))
            }
            Self::Unreadable(why) => {
                let what = format!("cannot be read ({why}), and an interpreter has to read it");
                not_runnable(&what, &format!("chmod +r {path}"))
            }
            Self::NotRunnable => {
                not_runnable("starts neither with `#!` nor as an ELF program", "begin it with `#!/bin/sh`")
            }
            Self::NoInterpreter(None) => {
                not_runnable("names no program after its `#!`", "begin it with `#!/bin/sh`")
            }
            Self::NoInterpreter(Some(interpreter)) => {
                let what = format!("begins with `#!{}`, which is not there", interpreter.escape_debug());
                let help = match interpreter.ends_with('\r') {
                    true => "its lines end in CR LF: let them end in LF",
                    false => "install that program, or name one that is there, such as `#!/bin/sh`",
                };
                not_runnable(&what, help)
            }
            Self::Outside => not_runnable(
                "leads out of the root of the catalogue",
                "put the script itself inside the root",
            ),
        };
        Some((code, format!("the script `{path}` {what}"), help))
    }
}

/// Returns what keeps the script of `step` from running.
pub(super) fn problem(step: &Step, files: &BTreeMap<&str, StepFile>) -> Option<Diagnostic> {
    let StepAction::Run(path) = &step.action else { return None };
    let file = files.get(path.value.as_str()).unwrap_or(&StepFile::Missing);
    let (code, message, help) = file.problem(&path.value)?;
    Some(
        Diagnostic::error(code, path.place.clone(), message)
            .help(help)
            .path(format!("steps.{}.run", step.id)),
    )
}

//! Whether the scripts of a plan can run, judged by facts about their files.

use std::collections::BTreeMap;

use stead_model::Diagnostic;
use stead_model::catalogue::{Step, StepAction};

/// What is known of a script's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepFile {
    /// It can run: a regular file inside the root, with an execute bit, that starts with `#!` or is ELF.
    Fine,
    /// There is none.
    Missing,
    /// It is something else than a file.
    NotRegular,
    /// It has no execute bit.
    NotExecutable,
    /// It starts neither with `#!` nor as ELF.
    NotRunnable,
    /// A symbolic link leads out of the root.
    Outside,
}

impl StepFile {
    /// Returns the problem of the script at `path`, as code, words and advice; none if it can run.
    pub fn problem(self, path: &str) -> Option<(&'static str, String, String)> {
        let (code, what, help) = match self {
            Self::Fine => return None,
            Self::Missing => ("steps/missing", "does not exist", "write it, or correct the path".to_owned()),
            Self::NotRegular => (
                "steps/not-runnable",
                "is not a regular file",
                "put a script there, or correct the path".to_owned(),
            ),
            Self::NotExecutable => ("steps/not-executable", "is not executable", format!("chmod +x {path}")),
            Self::NotRunnable => (
                "steps/not-runnable",
                "starts neither with `#!` nor as an ELF program",
                "begin it with `#!/bin/sh`".to_owned(),
            ),
            Self::Outside => (
                "steps/not-runnable",
                "leads out of the root of the catalogue",
                "put the script itself inside the root".to_owned(),
            ),
        };
        Some((code, format!("the script `{path}` {what}"), help))
    }
}

/// Returns what keeps the script of `step` from running.
pub(super) fn problem(step: &Step, files: &BTreeMap<String, StepFile>) -> Option<Diagnostic> {
    let StepAction::Run(path) = &step.action else { return None };
    let file = files.get(&path.value).copied().unwrap_or(StepFile::Missing);
    let (code, message, help) = file.problem(&path.value)?;
    Some(
        Diagnostic::error(code, path.place.clone(), message)
            .help(help)
            .path(format!("steps.{}.run", step.id)),
    )
}

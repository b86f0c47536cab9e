//! Confirmation: who destroys something names what it is done to.

use std::io::BufRead as _;

use stead_model::diagnostic::Place;
use stead_model::{Diagnostic, Diagnostics};

use super::load::Configured;
use super::plan::Planned;
use super::report::refused;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::one_line;
use crate::settings::Settings;

/// Whether a person may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asking {
    /// On a terminal.
    Allowed,
    /// Standard output is for a program.
    Forbidden,
}

/// Returns if the plan is confirmed, or needs no confirmation. An empty name counts as none.
pub(crate) fn confirm(
    given: Option<&str>,
    asking: Asking,
    configured: &Configured,
    planned: &Planned,
    settings: &Settings,
    output: &Output,
) -> Result<(), Failure> {
    let target = planned.plan.target.as_str();
    let no = |code, message: String, help: String| {
        let problem = Diagnostic::error(code, Place::Named("--confirm".to_owned()), message).help(help);
        Err(refused(FailureKind::Confirmation, Diagnostics(vec![problem]), configured, planned))
    };
    let mismatch = |given: &str| {
        let message =
            format!("`{}` is not what this is done to: that is `{}`", one_line(given), one_line(target));
        no(
            "steps/confirm-mismatch",
            message,
            "nothing was run; look at the plan, and at which target is current".to_owned(),
        )
    };
    let needed = || {
        let message = format!("this destroys something on `{}` and needs a confirmation", one_line(target));
        let help = format!("confirm with --confirm {}", stead_model::argv::quote_text([target]));
        no("steps/confirm-needed", message, help)
    };
    match given.filter(|given| !given.is_empty()) {
        Some(given) if given == target => Ok(()),
        Some(given) => mismatch(given),
        None if !planned.plan.needs_confirmation() => Ok(()),
        None if asking == Asking::Allowed && settings.terminals.stdin && settings.terminals.stderr => {
            output
                .err
                .print(&format!("This destroys. Type the target's name ({}) to go on: ", one_line(target)));
            let mut line = String::new();
            std::io::stdin()
                .lock()
                .read_line(&mut line)
                .map_err(|error| Failure::caused_by(FailureKind::Confirmation, error))?;
            match line.trim_end_matches(['\n', '\r']) {
                typed if typed == target => Ok(()),
                "" => needed(),
                typed => mismatch(typed),
            }
        }
        None => needed(),
    }
}

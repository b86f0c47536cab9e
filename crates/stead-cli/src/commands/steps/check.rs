//! `stead steps check`: whether catalogues and all they name fit together, without running anything.

mod intents;
mod parts;

use serde::Serialize;
use stead_model::diagnostic::Place;
use stead_model::steps::CheckCounts;
use stead_model::steps::lines::CheckLevel;
use stead_model::{Diagnostic, Diagnostics, ExitCode, Severity};

use super::find;
use super::load::{self, Given};
use crate::args::StepsCheckArgs;
use crate::failure::{Failure, Source};
use crate::output::Output;
use crate::render::{json, one_line};
use crate::settings::Settings;

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Row {
    pub(super) level: CheckLevel,
    pub(super) key: String,
    pub(super) message: String,
    /// Of which catalogue: several may have the same keys.
    pub(super) catalogue: String,
    pub(super) file: Option<String>,
    pub(super) line: Option<u32>,
}

/// What was checked so far.
#[derive(Debug, Default)]
pub(super) struct Checks {
    rows: Vec<Row>,
    /// The name of the catalogue that is being checked.
    catalogue: String,
    suggestions: Vec<String>,
}

#[derive(Serialize)]
struct Document {
    schema: u32,
    checks: Vec<Row>,
    summary: CheckCounts,
    suggestions: Vec<String>,
    exit_code: ExitCode,
}

impl Checks {
    fn add(&mut self, level: CheckLevel, key: impl Into<String>, message: impl Into<String>) -> &mut Row {
        let (key, message, catalogue) = (key.into(), message.into(), self.catalogue.clone());
        let row = Row { level, key, message, catalogue, file: None, line: None };
        self.rows.push(row);
        let last = self.rows.len() - 1;
        &mut self.rows[last]
    }

    fn ok(&mut self, key: impl Into<String>, message: impl Into<String>) {
        self.add(CheckLevel::Ok, key, message);
    }

    /// Adds a problem under `key`, with its place.
    fn problem(&mut self, key: impl Into<String>, problem: &Diagnostic) {
        let level = match problem.severity {
            Severity::Error => CheckLevel::Bad,
            Severity::Warning => CheckLevel::Warn,
        };
        let help = if problem.help.is_empty() { String::new() } else { format!(" ({})", problem.help) };
        let row = self.add(level, key, format!("{}{help}", problem.message));
        row.place(&problem.place);
    }

    /// Adds a remedy, once.
    fn suggest(&mut self, remedy: String) {
        if !self.suggestions.contains(&remedy) {
            self.suggestions.push(remedy);
        }
    }

    fn counts(&self) -> CheckCounts {
        let mut counts = CheckCounts::default();
        self.rows.iter().for_each(|row| counts.add(row.level));
        counts
    }
}

impl Row {
    fn place(&mut self, place: &Place) {
        let (file, at) = place.location();
        self.file = Some(file.to_owned());
        self.line = at.map(|(line, _)| line);
    }
}

pub(crate) fn run(
    args: &StepsCheckArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let listed = find::one_or_all(args.catalogue.as_deref(), settings)?;
    let mut problems = Diagnostics::default();
    let mut catalogues = Vec::new();
    for listed in listed {
        match find::load(&listed) {
            Ok(catalogue) => catalogues.push((listed, catalogue)),
            Err(Failure { source: Source::Diagnostics(found), .. }) => problems.0.extend(found.0),
            Err(failure) => return Err(failure),
        }
    }
    if problems.has_errors() {
        return Err(Failure::invalid(problems));
    }
    let given = Given::new(&args.values, settings);
    // A profile that no catalogue takes was named in vain.
    let fits = catalogues.iter().map(|(_, catalogue)| load::fits(catalogue, &given));
    if let Some(Err(failure)) = fits.reduce(Result::or) {
        return Err(failure);
    }
    let mut checks = Checks::default();
    for (listed, catalogue) in catalogues {
        checks.catalogue = catalogue.name.to_string();
        intents::recover(&catalogue, settings, &mut checks);
        let given = given.clone().fitting(&catalogue);
        let mut problems = Diagnostics::default();
        let configured = load::configure_anyway(listed, catalogue, given, settings, &mut problems)?;
        if let Some(failure) = load::refused_flags(&problems, &configured.given) {
            return Err(failure);
        }
        parts::check(&configured, problems, &mut checks);
        intents::check(&configured.catalogue, &mut checks);
    }
    let summary = checks.counts();
    let exit_code = if summary.bad > 0 { ExitCode::Verification } else { ExitCode::Success };
    match args.json {
        true => {
            let Checks { rows, suggestions, .. } = checks;
            let document = Document { schema: 1, checks: rows, summary, suggestions, exit_code };
            output.out.print(&json::document(&document));
        }
        false => output.out.print(&to_text(&checks, summary)),
    }
    Ok(exit_code)
}

fn to_text(checks: &Checks, summary: CheckCounts) -> String {
    let mut text = String::new();
    for row in &checks.rows {
        let place = match (&row.file, row.line) {
            (Some(file), Some(line)) => format!(" [{file}:{line}]"),
            (Some(file), None) => format!(" [{file}]"),
            (None, _) => String::new(),
        };
        // A difference has lines of its own.
        let (first, rest) = row.message.split_once('\n').unwrap_or((&row.message, ""));
        text.push_str(&format!("{:<4} {} {}{place}\n", row.level, row.key, one_line(first)));
        rest.lines().for_each(|line| text.push_str(&format!("     {}\n", crate::render::visible(line))));
    }
    if !checks.suggestions.is_empty() {
        text.push_str("Suggested:\n");
        checks.suggestions.iter().for_each(|remedy| text.push_str(&format!("  {}\n", one_line(remedy))));
    }
    text.push_str(&format!("{} ok, {} bad, {} warn\n", summary.ok, summary.bad, summary.warn));
    text
}

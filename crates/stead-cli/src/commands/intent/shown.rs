//! What a person and a program are told of an intent.

use serde::Serialize;
use serde_json::Value;
use stead_drivers::intent::{Prepared, PreparedFile};
use stead_engine::compile::intents::{COMMIT, Choice, EDIT};
use stead_model::report::TaskRow;
use stead_model::{Diagnostic, ExitCode, Report, Status, argv};
use stead_runner::operation::OpError;

use super::Intended;
use crate::render::text::counted;
use crate::render::{json, one_line};
use crate::settings::Settings;

/// What an intent reaches.
pub(super) const SCOPE: &str = "local";

/// Returns the diff of all files, which of them hold their value already, and in a dry run how many would change.
pub(super) fn changes(prepared: &Prepared, dry_run: bool) -> String {
    let mut text = prepared.diff();
    for file in prepared.files.iter().filter(|file| !file.changes()) {
        for value in &file.values {
            text.push_str(&format!("already set: {} {}: {}\n", file.name, value.path, value.new));
        }
    }
    if dry_run {
        text.push_str(&format!("Would edit {}.\n", counted(prepared.changed().count() as u64, "local file")));
    }
    text
}

/// How an intent ended.
pub(super) struct Outcome<'a> {
    intended: &'a Intended,
    report: &'a Report,
    pub(super) dry_run: bool,
    commit: Commit,
    /// What went wrong beside the run.
    problems: Vec<String>,
    /// Whether the edit is there: it was made and not put back.
    stays: bool,
}

/// What became of the commit.
#[derive(Clone, PartialEq, Eq)]
enum Commit {
    NotAsked,
    NotMade,
    /// Its id, as far as it is known.
    Made(Option<String>),
}

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    intent: &'a str,
    params: &'a Choice,
    scope: &'static str,
    dry_run: bool,
    files: Vec<FileRow<'a>>,
    diff: String,
    committed: bool,
    commit: Option<&'a str>,
    then: Option<&'a Report>,
    run_id: Option<String>,
    bundle: Option<&'a str>,
    exit_code: ExitCode,
    errors: Vec<&'a str>,
    diagnostics: Vec<Value>,
}

#[derive(Serialize)]
struct FileRow<'a> {
    file: &'a str,
    path: &'a str,
    line: u32,
    old: &'a Value,
    new: &'a Value,
    changed: bool,
}

impl<'a> Outcome<'a> {
    pub(super) fn new(intended: &'a Intended, report: &'a Report, dry_run: bool, commit: bool) -> Self {
        let row = |name: &str| report.tasks.iter().find(|task| task.name.as_str() == name);
        let ended = |row: &TaskRow| row.status == Status::Changed && !dry_run;
        let edited = row(EDIT).is_some_and(ended);
        let made = row(COMMIT).filter(|row| ended(row)).map(|row| {
            let id = row.data.as_ref().and_then(|data| data["commit"].as_str());
            Commit::Made(id.map(str::to_owned))
        });
        let commit = if commit { made.unwrap_or(Commit::NotMade) } else { Commit::NotAsked };
        let stays = edited && commit != Commit::NotMade;
        Self { intended, report, dry_run, commit, problems: Vec::new(), stays }
    }

    /// Notes that an edit whose commit never came is put back.
    pub(super) fn put_back(&mut self, files: Vec<String>) {
        if !files.is_empty() {
            self.problems.push(format!("the commit never came: {} put back", files.join(", ")));
        }
    }

    /// Notes that this failed.
    pub(super) fn stuck(&mut self, error: &OpError) {
        self.problems.push(format!("the commit never came, and putting the edit back failed: {error}"));
    }

    /// Returns what the process exits with.
    pub(super) fn exit_code(&self) -> ExitCode {
        let is_well = self.report.exit_code == ExitCode::Success;
        if is_well && !self.problems.is_empty() { ExitCode::Failed } else { self.report.exit_code }
    }

    fn changed(&self) -> Vec<&PreparedFile> {
        self.intended.prepared.changed().collect()
    }

    /// Returns the summary.
    pub(super) fn text(&self, settings: &Settings) -> String {
        let mut lines: Vec<String> = self.problems.iter().map(|problem| one_line(problem)).collect();
        let files = self.changed();
        let count = counted(files.len() as u64, "local file");
        if files.is_empty() {
            lines.push("No local file was edited: all is set already.".to_owned());
        } else if self.stays {
            let stay = match self.report.exit_code {
                ExitCode::Success => "",
                ExitCode::Cancelled => " The edit stays, although the run was cancelled.",
                ExitCode::Failed
                | ExitCode::Usage
                | ExitCode::Invalid
                | ExitCode::Verification
                | ExitCode::Locked
                | ExitCode::Confirmation
                | ExitCode::Unreachable
                | ExitCode::TimedOut
                | ExitCode::Converging
                | ExitCode::Degraded => " The edit stays, although a step failed.",
            };
            match &self.commit {
                Commit::Made(id) => {
                    let id = id.as_deref().map(|id| format!(" as {}", id.get(..12).unwrap_or(id)));
                    lines.push(format!("Committed {count}{}.{stay}", id.unwrap_or_default()));
                    lines.push("Nothing is applied until the commit is pushed.".to_owned());
                    lines.push(format!("Next: {}", self.git(settings, &["push"], &[])));
                }
                Commit::NotAsked | Commit::NotMade => {
                    lines.push(format!("Edited {count}.{stay}"));
                    let they = if files.len() == 1 { "it is" } else { "they are" };
                    lines.push(format!("Nothing is applied until {they} committed and pushed."));
                    let message = self.intended.asked(false).message();
                    lines.push(format!(
                        "Next: {}",
                        self.git(settings, &["commit", "-m", &message, "--"], &files)
                    ));
                }
            }
        } else {
            lines.push("No local file is edited: all are as they were.".to_owned());
        }
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    /// Returns a git command for the catalogue's root, as it is typed where the caller is.
    fn git(&self, settings: &Settings, args: &[&str], files: &[&PreparedFile]) -> String {
        let root = self.intended.catalogue.root.display().to_string();
        let here = self.intended.catalogue.root == settings.current_dir;
        let place: &[&str] = if here { &[] } else { &["-C", &root] };
        // Git commits a link as a link: what was written is what it leads to.
        let real_root = self.intended.catalogue.root.canonicalize().unwrap_or_default();
        let name = |file: &&PreparedFile| {
            file.real.strip_prefix(&real_root).unwrap_or(&file.real).display().to_string()
        };
        let words = ["git"].into_iter().chain(place.iter().copied()).chain(args.iter().copied());
        argv::quote_text(words.map(str::to_owned).chain(files.iter().map(name)))
    }

    /// Returns the one document of `--json`.
    pub(super) fn document<'d>(&self, warnings: impl Iterator<Item = &'d Diagnostic>) -> String {
        let files = self.intended.prepared.files.iter().flat_map(|file| {
            file.values.iter().map(|value| FileRow {
                file: &file.name,
                path: &value.path,
                line: value.line,
                old: &value.old,
                new: &value.new,
                changed: value.changes() && (self.stays || self.dry_run),
            })
        });
        let id = match &self.commit {
            Commit::Made(id) => id.as_deref(),
            Commit::NotAsked | Commit::NotMade => None,
        };
        let errors = self.report.errors.iter().map(|error| error.message.as_str());
        json::document(&Document {
            schema: 1,
            intent: &self.intended.name,
            params: &self.intended.choice,
            scope: SCOPE,
            dry_run: self.dry_run,
            files: files.collect(),
            diff: self.intended.prepared.diff(),
            committed: matches!(self.commit, Commit::Made(_)),
            commit: id,
            then: self.report.steps.is_some().then_some(self.report),
            run_id: self.report.run_id.as_ref().map(ToString::to_string),
            bundle: self.report.bundle.as_deref(),
            exit_code: self.exit_code(),
            errors: errors.chain(self.problems.iter().map(String::as_str)).collect(),
            diagnostics: warnings.map(Diagnostic::to_json).collect(),
        })
    }
}

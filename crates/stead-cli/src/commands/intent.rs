//! `stead intent …`: values of files in Git, edited, committed and followed by steps.
//!
//! ```text
//!  catalogues ──▶ intent, parameters ──▶ files (prepared) ──▶ plan: edit, commit, steps ──▶ run, dry run
//! ```

mod act;
mod list;
pub(super) mod recover;
mod shown;

use stead_drivers::intent::{self, Prepared};
use stead_engine::compile::intents::{self, Asked, Choice};
use stead_model::catalogue::{Catalogue, ControlKind, Intent};
use stead_model::diagnostic::Place;
use stead_model::intent::FileEdit;
use stead_model::steps::SelectionRow;
use stead_model::{Diagnostic, Diagnostics, ExitCode, StepMode};

use crate::args::IntentArgs;
use crate::commands::steps::find::{self, Listed};
use crate::commands::steps::load::{self, Configured, Given};
use crate::commands::steps::plan::{self, Planned, Wish};
use crate::commands::steps::tell_warnings;
use crate::failure::{Failure, FailureKind, Source};
use crate::output::Output;
use crate::settings::Settings;

use act::{Acting, Following};

/// An intent with its parameters, and what it comes to.
struct Intended {
    listed: Listed,
    catalogue: Catalogue,
    name: String,
    choice: Choice,
    edits: Vec<FileEdit>,
    prepared: Prepared,
}

pub(super) fn run(args: &IntentArgs, settings: &Settings, output: &mut Output) -> Result<ExitCode, Failure> {
    if args.name == IntentArgs::LIST {
        return list::run(args, settings, output);
    }
    let catalogues = catalogues(settings)?;
    let all: Vec<&Catalogue> = catalogues.iter().map(|(_, catalogue)| catalogue).collect();
    let usage = |problems| Failure::of(FailureKind::Usage, problems);
    let (index, intent) = intents::find(&all, &args.name).map_err(usage)?;
    let choice = intents::choose(&args.name, intent, &args.params).map_err(usage)?;
    let edits = intents::edits(intent, &choice).map_err(Failure::invalid)?;
    let (listed, catalogue) = catalogues[index].clone();

    let mut warnings = Vec::new();
    let (configured, dry_run) = match &intent.then {
        Some(_) => {
            let configured =
                load::configure_loaded(listed.clone(), catalogue.clone(), Given::default(), settings)?;
            let wanted = configured.wants_dry_run();
            (Some(configured), wanted)
        }
        None => (None, wants_dry_run(&catalogue, settings, &mut warnings)?),
    };
    let dry_run = args.dry_run || dry_run;
    let state_dir = settings.state_dir.from(&catalogue.root).path;
    // Said at once: what follows may yet be refused.
    let recovered: Vec<Diagnostic> =
        recover::recover(&state_dir, &catalogue.root, dry_run)?.into_iter().collect();
    tell_warnings(&recovered, settings, output);

    let following = configured.map(|configured| follow(configured, intent)).transpose()?;
    let prepared = prepare(args, &catalogue, &edits, following.as_ref())?;
    warnings.extend(unlisted(intent, &prepared));
    let name = args.name.clone();
    let intended = Intended { listed, catalogue, name, choice, edits, prepared };
    Acting { args, intended, following, recovered, warnings, state_dir, settings, output }.act(dry_run)
}

/// Returns the catalogues there are. Every one is read: an intent's name means one of them.
fn catalogues(settings: &Settings) -> Result<Vec<(Listed, Catalogue)>, Failure> {
    let mut problems = Diagnostics::default();
    let mut catalogues = Vec::new();
    for listed in find::one_or_all(None, settings)? {
        match find::load(&listed) {
            Ok(catalogue) => catalogues.push((listed, catalogue)),
            Err(Failure { source: Source::Diagnostics(found), .. }) => problems.0.extend(found.0),
            Err(failure) => return Err(failure),
        }
    }
    let all: Vec<&Catalogue> = catalogues.iter().map(|(_, catalogue)| catalogue).collect();
    problems.0.extend(intents::repeated(&all).0);
    if problems.has_errors() { Err(Failure::invalid(problems)) } else { Ok(catalogues) }
}

/// Returns whether `DRY_RUN` asks for a dry run, where nothing else of the configuration is read.
fn wants_dry_run(
    catalogue: &Catalogue,
    settings: &Settings,
    warnings: &mut Vec<Diagnostic>,
) -> Result<bool, Failure> {
    const NAME: &str = "DRY_RUN";
    let given = settings.environment.get(NAME).map(|value| value.to_string_lossy().into_owned());
    let Some(value) = given.filter(|value| !value.is_empty()) else { return Ok(false) };
    let place = || Place::Named("environment".to_owned());
    let is_read = catalogue.controls.get(NAME).is_some_and(|control| control.kind == ControlKind::DryRun);
    match value.as_str() {
        _ if !is_read => {
            let message = format!("`{NAME}` is in the environment, and the catalogue does not read it");
            warnings.push(Diagnostic::warning("value/undefined", place(), message).help("use --dry-run"));
            Ok(false)
        }
        "true" => Ok(true),
        "false" => Ok(false),
        _ => {
            let message = format!("`{NAME}` is `{value}`, from environment");
            let problem = Diagnostic::error("value/rule", place(), message).help("write `true` or `false`");
            Err(Failure::invalid(Diagnostics(vec![problem])))
        }
    }
}

/// Returns the steps that follow the edit.
fn follow(mut configured: Configured, intent: &Intent) -> Result<Following, Failure> {
    let only = intent.then.iter().flat_map(|then| &then.only).map(|token| token.value.clone()).collect();
    if let Some(only) = configured.wants_only() {
        let message = format!("`ONLY` is `{only}`, and is ignored: the steps after an intent are fixed");
        let place = Place::Named("environment".to_owned());
        configured.warnings.push(Diagnostic::warning("steps/only-ignored", place, message));
    }
    let selection = SelectionRow { only, ..SelectionRow::default() };
    let wish = Wish { mode: StepMode::Apply, selection, only_from: "then" };
    let planned = plan::plan(&configured, &wish)?;
    Ok(Following { configured, planned })
}

/// Returns what the edits come to, or everything that keeps the intent from being done.
fn prepare(
    args: &IntentArgs,
    catalogue: &Catalogue,
    edits: &[FileEdit],
    following: Option<&Following>,
) -> Result<Prepared, Failure> {
    let prepared = intent::prepare(&catalogue.root, edits).and_then(|prepared| {
        if args.commit {
            intent::ready_to_commit(&catalogue.root, &prepared.files)?;
        }
        Ok(prepared)
    });
    prepared.map_err(|mut problems| {
        let of_steps = following.map(|following| &following.planned);
        problems.0.extend(of_steps.into_iter().flat_map(|planned: &Planned| planned.problems.0.clone()));
        Failure::invalid(problems)
    })
}

/// Returns a warning for each value that the intent never sets.
fn unlisted(intent: &Intent, prepared: &Prepared) -> Vec<Diagnostic> {
    let mut warnings = Vec::new();
    for file in &prepared.files {
        for value in &file.values {
            let edit = intent.edits.get(value.edit);
            if edit.is_some_and(|edit| !intents::is_allowed(intent, edit, &value.old)) {
                let message = format!(
                    "`{}` is {} in line {}, which the intent never sets",
                    value.path, value.old, value.line
                );
                let place = Place::Named(file.name.clone());
                warnings.push(Diagnostic::warning("intent/path", place, message).path(&value.path));
            }
        }
    }
    warnings
}

impl Intended {
    fn asked(&self, commit: bool) -> Asked<'_> {
        Asked { name: &self.name, choice: &self.choice, edits: &self.edits, commit, then: None }
    }

    /// Returns the command that does it again.
    fn command(&self, commit: bool) -> String {
        let params = self.choice.iter().map(|(key, value)| format!("{key}={value}"));
        let words = ["stead", "intent", &self.name].map(str::to_owned).into_iter().chain(params);
        stead_model::argv::quote_text(words.chain(commit.then(|| "--commit".to_owned())))
    }
}

//! `stead steps run`.
//!
//! Checks come in this order, each group telling all its problems: arguments, catalogue, layers and values, selection,
//! required values with inputs and step files, confirmation, lock. From required values on the plan is shown first.

use stead_engine::compile::steps::tokens;
use stead_engine::values::refuse_reserved;
use stead_model::diagnostic::Place;
use stead_model::steps::{NeedsChoice, SelectionRow};
use stead_model::{Catalogue, Diagnostic, Diagnostics, ExitCode, StepMode};

use super::act::Acting;
use super::confirm::{self, Asking};
use super::find;
use super::load::{self, Configured, Given};
use super::plan::{self, Planned, Wish};
use super::resume;
use super::target::TargetOrigin;
use crate::args::{OutputArgs, Progress, StepsRunArgs};
use crate::failure::{Failure, FailureKind, Source};
use crate::output::Output;
use crate::settings::Settings;

pub(crate) fn run(
    args: &StepsRunArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    if let Some(run) = &args.resume {
        return resume::named(run, args, settings, output);
    }
    let mut problems = Diagnostics::default();
    let flags = arguments(args, &mut problems);
    let given = Given::new(&args.values, settings);
    let loaded = find::one(args.catalogue.as_deref(), settings)
        .and_then(|listed| find::load(&listed).map(|catalogue| (listed, catalogue)));
    let (listed, catalogue) = match loaded {
        Ok(loaded) => loaded,
        Err(failure) if problems.has_errors() => return Err(with_usage(problems, failure)),
        Err(failure) => return Err(failure),
    };
    let mode = mode(args, &catalogue, &mut problems);
    problems.0.extend(load::misfit(&catalogue, &given));
    if problems.has_errors() {
        return Err(Failure::of(FailureKind::Usage, problems));
    }
    let configured = load::configure_loaded(listed, catalogue, given, settings)?;
    let wish = wish(mode, flags, &configured)?;
    let dry_run = args.dry_run || configured.wants_dry_run();
    let mut planned = plan::plan(&configured, &wish)?;
    refuse_unknown_target(&configured, &mut planned);
    let shown = shown(args);
    let wait_lock = args.wait_lock;
    let mut acting = Acting { configured, planned, settings, output, shown, wait_lock, intent: None };
    acting.show_plan();
    acting.settle()?;
    if dry_run {
        return acting.predict(Default::default());
    }
    let asking = if acting.is_for_programs() { Asking::Forbidden } else { Asking::Allowed };
    confirm::confirm(args.confirm.as_deref(), asking, &acting.configured, &acting.planned, settings, output)?;
    acting.run()
}

/// Returns the output flags of `steps run`, as all runs have them.
pub(super) fn shown(args: &StepsRunArgs) -> OutputArgs {
    OutputArgs {
        json: args.json,
        events: args.events.clone(),
        progress: Progress::Plain,
        ..OutputArgs::default()
    }
}

/// Returns the failure of arguments that are wrong whatever the catalogue says, with that of finding it if it is of the
/// same group.
fn with_usage(mut problems: Diagnostics, failure: Failure) -> Failure {
    match failure.source {
        Source::Diagnostics(more) if failure.kind == FailureKind::Usage => problems.0.extend(more.0),
        Source::Diagnostics(_) | Source::Message(_) | Source::Error(_) => {}
    }
    Failure::of(FailureKind::Usage, problems)
}

/// Returns what flags select. Everything that is wrong with the arguments whatever the catalogue says is reported.
fn arguments(args: &StepsRunArgs, problems: &mut Diagnostics) -> SelectionRow {
    refuse_reserved(&args.values.set, problems);
    let mut list = |flag: &str, typed: &[String]| {
        let tokens = tokens(typed);
        if tokens.is_empty() && !typed.is_empty() {
            problems.push(names_nothing(flag));
        }
        tokens
    };
    let (only, skip) = (list("--only", &args.only), list("--skip", &args.skip));
    for (flag, step) in [("--from", &args.from), ("--until", &args.until)] {
        if step.as_deref().is_some_and(|step| step.trim().is_empty()) {
            problems.push(names_nothing(flag));
        }
    }
    let needs = match (args.with_needs, args.skip_needs) {
        (true, _) => Some(NeedsChoice::With),
        (false, true) => Some(NeedsChoice::Skip),
        (false, false) => None,
    };
    SelectionRow { only, skip, from: args.from.clone(), until: args.until.clone(), needs }
}

fn names_nothing(flag: &str) -> Diagnostic {
    let message = format!("{flag} is given and names no step");
    Diagnostic::error("steps/empty", Place::Named(flag.to_owned()), message)
        .help("name steps, or leave it out for all of them")
}

/// Returns which order runs. One that the catalogue does not have is reported.
fn mode(args: &StepsRunArgs, catalogue: &Catalogue, problems: &mut Diagnostics) -> StepMode {
    if !args.delete {
        return StepMode::Apply;
    }
    if catalogue.delete.is_none() {
        let message = format!("the catalogue `{}` has no delete order", catalogue.name);
        let problem = Diagnostic::error("steps/unknown-flag", Place::Named("--delete".to_owned()), message);
        problems.push(problem.help("write a `delete` list: it is never the reverse of apply"));
    }
    StepMode::Delete
}

/// Returns what is to be planned: flags first, then the control `ONLY`.
fn wish(mode: StepMode, mut selection: SelectionRow, configured: &Configured) -> Result<Wish, Failure> {
    let mut only_from = "--only";
    if selection.only.is_empty()
        && let Some(only) = configured.wants_only()
    {
        only_from = "ONLY";
        selection.only = tokens(&[only.to_owned()]);
        if selection.only.is_empty() {
            return Err(Failure::of(FailureKind::Usage, Diagnostics(vec![names_nothing(only_from)])));
        }
    }
    Ok(Wish { mode, selection, only_from })
}

/// What nothing names cannot be deleted: no confirmation would mean anything.
pub(super) fn refuse_unknown_target(configured: &Configured, planned: &mut Planned) {
    if planned.plan.mode == StepMode::Delete && configured.target.origin == TargetOrigin::Unknown {
        let message = "there is no current context in a kubeconfig, so nothing says what would be deleted";
        let place = Place::Named(configured.listed.shown.clone());
        let problem = Diagnostic::error("value/required", place, message);
        planned.problems.push(problem.help("choose a context, or give the catalogue a `target.default`"));
    }
}

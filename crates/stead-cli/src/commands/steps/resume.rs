//! Taking a run of steps up again: `stead resume RUN` and `stead steps run --resume RUN`.
//!
//! Catalogue, mode, selection, profile and values of `--set` come from the record; layers are read afresh.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use stead_drivers::steps::MarkKey;
use stead_model::bundle::RunMeta;
use stead_model::catalogue::ProfileFlag;
use stead_model::diagnostic::Place;
use stead_model::event::RunKind;
use stead_model::plan::TaskIndex;
use stead_model::steps::StepsMeta;
use stead_model::{Catalogue, Diagnostic, Diagnostics, EventKind, ExitCode, Status, TaskName};
use stead_runner::{ResumeError, ResumeOptions};

use super::act::Acting;
use super::confirm::{self, Asking};
use super::find::{self, Listed};
use super::load::{self, Given, Profile};
use super::plan::{self, Wish};
use super::report;
use super::run::{refuse_unknown_target, shown};
use crate::args::{OutputArgs, ResumeArgs, StepValueArgs, StepsRunArgs};
use crate::commands::bundle::{run_directories, unreadable, unresolved};
use crate::commands::resume::{names, refuse_flags};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::settings::Settings;

/// What a person said about a run that is taken up again.
struct Said<'a> {
    values: &'a StepValueArgs,
    confirm: Option<&'a str>,
    rerun: &'a [String],
    assume_done: &'a [String],
    force: bool,
    dry_run: bool,
    wait_lock: Option<Duration>,
    shown: OutputArgs,
}

/// `stead steps run --resume RUN`: the run is looked for where the catalogue's runs are.
pub(super) fn named(
    run: &str,
    args: &StepsRunArgs,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode, Failure> {
    let listed = args.catalogue.as_deref().map(|typed| find::one(Some(typed), settings)).transpose()?;
    let start = match &listed {
        Some(listed) => find::load(listed)?.root,
        None => find::all(settings)?.directory.unwrap_or_else(|| settings.current_dir.clone()),
    };
    let mut directories = vec![settings.state_dir.from(&start).runs()];
    directories.extend(run_directories(settings));
    let bundle =
        stead_bundle::resolve(run, &directories).map_err(|error| unresolved(error, FailureKind::Usage))?;
    let meta = stead_bundle::load_meta(&bundle).map_err(unreadable)?;
    if let (Some(listed), Some(steps)) = (&listed, &meta.steps)
        && Path::new(&steps.file) != listed.file
    {
        let message = format!("{} is a run of {}, not of {}", meta.run_id, steps.file, listed.shown);
        return Err(
            Failure::new(FailureKind::Usage, message).hint("leave the catalogue out: the run knows its own")
        );
    }
    let said = Said {
        values: &args.values,
        confirm: args.confirm.as_deref(),
        rerun: &[],
        assume_done: &[],
        force: false,
        dry_run: args.dry_run,
        wait_lock: args.wait_lock,
        shown: shown(args),
    };
    go_on(bundle, &meta, said, settings, output)
}

/// `stead resume RUN` of a run of steps.
pub(crate) fn recorded(
    bundle: PathBuf,
    meta: &RunMeta,
    args: &ResumeArgs,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode, Failure> {
    let flags = [
        ("--yes", args.yes),
        ("--inventory", !args.inventory.inventory.is_empty()),
        ("--agents", !args.inventory.agents.is_empty()),
        ("--limit", args.inventory.limit.is_some()),
    ];
    refuse_flags(&flags, "runs of plans", "a run of steps")?;
    let said = Said {
        values: &args.values,
        confirm: args.confirm.as_deref(),
        rerun: &args.rerun,
        assume_done: &args.assume_done,
        force: args.force,
        dry_run: false,
        wait_lock: args.wait_lock,
        shown: args.output.clone(),
    };
    go_on(bundle, meta, said, settings, output)
}

fn go_on(
    bundle: PathBuf,
    meta: &RunMeta,
    said: Said<'_>,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode, Failure> {
    let steps = match (&meta.kind, &meta.steps) {
        (RunKind::Steps, Some(steps)) => match &steps.intent {
            None => steps,
            Some(command) => {
                let message = format!("{} is the run of an intent, which is not resumed", meta.run_id);
                return Err(Failure::new(FailureKind::Invalid, message)
                    .hint(format!("do it again, what is done stays done: {command}")));
            }
        },
        (
            RunKind::Run | RunKind::Plan | RunKind::Steps | RunKind::Nodes | RunKind::Fleet | RunKind::Test,
            _,
        ) => {
            let message = format!("{} is not a run of steps", meta.run_id);
            return Err(
                Failure::new(FailureKind::Invalid, message).hint("`stead resume` goes on with other runs")
            );
        }
    };
    let listed = Listed::new(PathBuf::from(&steps.file), settings);
    let catalogue = find::load(&listed)?;
    let given = given(steps, said.values, &catalogue, settings)?;
    let mut configured = load::configure_loaded(listed, catalogue, given, settings)?;
    note_changes(steps, &mut configured, settings);
    let wish = Wish { mode: steps.mode, selection: steps.selection.clone(), only_from: "--only" };
    let mut planned = plan::plan(&configured, &wish)?;
    refuse_unknown_target(&configured, &mut planned);
    let options = ResumeOptions {
        rerun: names(said.rerun, &planned.plan.compiled.plan)?,
        assume_done: names(said.assume_done, &planned.plan.compiled.plan)?,
        force: said.force,
    };
    let dry_run = said.dry_run || configured.wants_dry_run();
    let mut acting = Acting {
        configured,
        planned,
        settings,
        output,
        shown: said.shown,
        wait_lock: said.wait_lock,
        intent: None,
    };
    acting.show_plan();
    acting.settle()?;
    if acting.planned.plan.compiled.hash != meta.plan_hash && !options.force {
        let recorded = stead_bundle::load_plan(&bundle, meta).map_err(unreadable)?;
        return Err(changed(&recorded, steps, &acting));
    }
    if dry_run {
        let done = done_tasks(&bundle, &acting)?;
        acting.talk().0.print(&left_to_do(&acting, &done));
        return acting.predict(done);
    }
    let asking = if acting.is_for_programs() { Asking::Forbidden } else { Asking::Allowed };
    confirm::confirm(said.confirm, asking, &acting.configured, &acting.planned, settings, output)?;
    acting.resume(bundle, meta.plan.clone(), options)?.map_err(refused)
}

/// Returns what the run was given, with what is given anew over it. A secret has to be given again.
fn given(
    steps: &StepsMeta,
    values: &StepValueArgs,
    catalogue: &Catalogue,
    settings: &Settings,
) -> Result<Given, Failure> {
    let anew = Given::new(values, settings);
    let has = |name: &str| anew.set.iter().any(|(given, _)| given == name);
    let mut problems = Diagnostics::default();
    for name in steps.secret_set.iter().filter(|name| !has(name)) {
        let message = format!("`{name}` was set with --set; its value is secret and was not recorded");
        let problem = Diagnostic::error("value/required", Place::Named("--set".to_owned()), message);
        problems.push(problem.help(format!("give it again: --set {name}=…")));
    }
    if problems.has_errors() {
        return Err(Failure::invalid(problems));
    }
    let kept = steps.set.iter().filter(|(name, _)| !has(name));
    let set = kept.map(|(name, value)| (name.clone(), value.clone())).chain(anew.set.clone()).collect();
    let profile = match (anew.profile, &steps.profile) {
        (Some(anew), _) => Some(anew),
        (None, Some(path)) => {
            // The record has the file, whichever flag named it.
            let flag = load::flag_of(catalogue).unwrap_or(ProfileFlag::Profile);
            Some(Profile { typed: path.clone(), path: PathBuf::from(path), flag })
        }
        (None, None) => None,
    };
    Ok(Given { profile, set })
}

/// Says which values are not those the run began with.
fn note_changes(steps: &StepsMeta, configured: &mut load::Configured, settings: &Settings) {
    let mut changed: BTreeSet<String> =
        steps.changed_names(&configured.recorded_config()).into_iter().collect();
    let key = settings.user_state_dir.as_ref().and_then(|state| MarkKey::find(state).ok());
    if let (Some(key), Some(marked)) = (key, &steps.secret_marks) {
        changed.extend(key.changed(marked, configured.secrets()).into_iter().map(str::to_owned));
    }
    for name in changed {
        let place = Place::Named(configured.listed.shown.clone());
        let message = format!("`{name}` is not what it was when the run began");
        configured.warnings.push(Diagnostic::warning("steps/value-changed", place, message));
    }
}

/// Returns the failure of a plan that is not the recorded one, with what differs.
fn changed(recorded: &[u8], steps: &StepsMeta, acting: &Acting<'_>) -> Failure {
    let now = &acting.planned.plan;
    let difference = match serde_json::from_slice(recorded) {
        Ok(recorded) if now.target == steps.target => {
            let changes = stead_runner::plan_changes(&recorded, &now.compiled.plan);
            ResumeError::PlanChanged { changes }.to_string()
        }
        Ok(_) => {
            format!("the run began on target `{}`, and the target is `{}` now", steps.target, now.target)
        }
        Err(_) => "the recorded plan cannot be read".to_owned(),
    };
    let place = Place::Named(acting.configured.listed.shown.clone());
    let problem = Diagnostic::error("steps/plan-changed", place, difference)
        .help("`stead resume RUN --force` goes on with the plan as it is now, keeping what is the same");
    let problems = Diagnostics(vec![problem]);
    report::refused(FailureKind::Verification, problems, &acting.configured, &acting.planned)
}

/// Returns the steps that the run has done, from its journal.
fn done_tasks(bundle: &Path, acting: &Acting<'_>) -> Result<BTreeSet<TaskIndex>, Failure> {
    let journal = bundle.join(stead_bundle::EVENTS);
    let read = stead_runner::journal::read(&journal)
        .map_err(|error| Failure::caused_by(FailureKind::Verification, error))?;
    let mut ended: BTreeMap<&TaskName, Status> = BTreeMap::new();
    for event in &read.events {
        if let EventKind::TaskFinished { task, result } = &event.kind {
            ended.insert(task, result.status);
        }
    }
    let is_done = |name: &TaskName| matches!(ended.get(name), Some(Status::Changed | Status::Unchanged));
    let plan = &acting.planned.plan.compiled.plan;
    Ok(plan.indexed().filter(|(_, task)| is_done(&task.name)).map(|(index, _)| index).collect())
}

/// Returns the line that names the steps a resumed run would run.
fn left_to_do(acting: &Acting<'_>, done: &BTreeSet<TaskIndex>) -> String {
    let plan = &acting.planned.plan;
    let tasks = plan.compiled.plan.indexed().zip(&plan.steps);
    let left: Vec<&str> = tasks
        .filter(|((index, _), _)| !done.contains(index))
        .map(|(_, step)| step.basename.as_str())
        .collect();
    format!("Left to do: {}\n", if left.is_empty() { "nothing".to_owned() } else { left.join(", ") })
}

fn refused(error: ResumeError) -> Failure {
    Failure::caused_by(FailureKind::of(error.exit_code()), error)
}

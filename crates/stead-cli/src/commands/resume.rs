//! `stead resume RUN`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stead_engine::compile::{self, CompiledPlan, VarFlag, VarValue};
use stead_engine::graph::Graph;
use stead_model::bundle::{PlanMeta, RunMeta};
use stead_model::event::RunKind;
use stead_model::{ExitCode, Plan, TaskName};
use stead_runner::{CheckedPlan, Provenance, ResumeError, ResumeOptions, Runner};

use crate::args::{InventoryArgs, PairArgs, PlanSource, ResumeArgs, SiteArgs};
use crate::commands::bundle::{run_directories, unreadable, unresolved};
use crate::commands::nodes;
use crate::commands::plan::drive::{self, Person};
use crate::commands::plan::present::{self, Recorded, Shown};
use crate::commands::plan::source::{self, Given};
use crate::commands::run::resume as run_of_roles;
use crate::commands::steps;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::reach;
use crate::render::Differences;
use crate::settings::Settings;

pub(super) fn run(args: &ResumeArgs, settings: &Settings, output: &mut Output) -> Result<ExitCode, Failure> {
    refuse_archive(Path::new(&args.run))?;
    let bundle = stead_bundle::resolve(&args.run, &run_directories(settings))
        .map_err(|error| unresolved(error, FailureKind::Usage))?;
    refuse_archive(&bundle)?;
    let meta = stead_bundle::load_meta(&bundle).map_err(unreadable)?;
    match meta.kind {
        RunKind::Plan => {}
        RunKind::Steps => return steps::resume::recorded(bundle, &meta, args, settings, output),
        RunKind::Run => return run_of_roles::recorded(bundle, &meta, args, settings, output),
        RunKind::Nodes => return nodes::resume::recorded(bundle, &meta, args, settings, output),
        RunKind::Fleet | RunKind::Test => {
            return Err(Failure::new(
                FailureKind::Invalid,
                format!("{} is not a run of a plan", meta.run_id),
            ));
        }
    }
    refuse_step_flags(args)?;
    let stored = stored_plan(&bundle, &meta)?;
    let Current { compiled, base_dir, bytes, warning } = current_plan(&meta, stored, settings)?;
    let left_out = compile::select(&compiled, &meta.plan.only)
        .map_err(|error| Failure::caused_by(FailureKind::Verification, error))?;
    let options = ResumeOptions {
        rerun: names(&args.rerun, &compiled.plan)?,
        assume_done: names(&args.assume_done, &compiled.plan)?,
        force: args.force,
    };
    let recorded = recorded_hosts(&meta.plan, args);
    let given = &args.inventory;
    let is_given = !given.inventory.is_empty() || !given.agents.is_empty();
    let is_given = is_given || given.nodes.manifest.is_some() || given.nodes.host.is_some();
    let hosts = if is_given { given } else { &recorded };
    let inventory = source::inventory(hosts, &base_dir, settings)?.inventory;
    let limit = source::limit(hosts, &inventory)?;
    let state_dir = bundle.parent().and_then(Path::parent).unwrap_or(&settings.state_dir.path);
    let mut runner = Runner::new(stead_drivers::Drivers::standard())
        .record_in(state_dir)
        .inventory(inventory)
        .limit(limit.exprs)
        .environment(settings.environment.to_map())
        .leave_out(left_out.clone())
        .provenance(Provenance {
            meta: meta.plan.clone(),
            sources: bytes.into_iter().map(|bytes| ("plan.yaml".to_owned(), bytes)).collect(),
            steps: None,
        });
    runner = reach::connect(runner, settings)?;
    if let Some(wait) = args.wait_lock {
        runner = runner.wait_lock(wait);
    }
    runner = runner.parent_runs(settings.parent_runs.clone());
    if let Some(warning) = warning {
        runner = runner.warn("plan/source-gone", warning);
    }
    for warning in limit.warnings {
        runner = runner.warn(warning.code, warning.text);
    }
    let shown =
        Shown::new(&args.output, Differences::Hidden, Recorded::In(bundle.clone()), settings, output)?;
    let selected = compiled.plan.indexed().filter(|(index, _)| !left_out.contains(index));
    let questions = drive::questions(selected.map(|(_, task)| task));
    let person = Person::find(args.yes, settings);
    let plan = CheckedPlan::from(compiled).with_base_dir(base_dir);
    let ended = drive::drive(runner, shown, &questions, person, move |runner| async move {
        runner.resume_at(&bundle, plan, options).await
    })?;
    let report = ended.map_err(refused)?;
    Ok(present::finish(&report, &args.output, settings, output))
}

/// Returns how the hosts of the run were named.
fn recorded_hosts(meta: &PlanMeta, args: &ResumeArgs) -> InventoryArgs {
    let nodes = meta.nodes.as_ref();
    InventoryArgs {
        inventory: meta.inventory.iter().map(PathBuf::from).collect(),
        agents: Vec::new(),
        limit: args.inventory.limit.clone(),
        nodes: PairArgs {
            manifest: nodes.and_then(|nodes| nodes.manifest.clone()),
            host: nodes.and_then(|nodes| nodes.host.clone()),
            site: SiteArgs { site: nodes.map(|nodes| PathBuf::from(&nodes.site)) },
        },
    }
}

/// Only bundles of runs that ended become archives: there is nothing to go on with.
fn refuse_archive(bundle: &Path) -> Result<(), Failure> {
    if !bundle.is_file() || stead_bundle::ArchiveFormat::of_name(bundle).is_none() {
        return Ok(());
    }
    let message =
        format!("{} is an archive: its run has ended, there is nothing to resume", bundle.display());
    let hint = format!("`stead bundle report {}` tells how it ended", bundle.display());
    Err(Failure::new(FailureKind::Invalid, message).hint(hint))
}

/// What says something about steps means nothing to a plan.
fn refuse_step_flags(args: &ResumeArgs) -> Result<(), Failure> {
    let flags = [
        ("--confirm", args.confirm.is_some()),
        ("--profile", args.values.profile.is_some()),
        ("--host-env", args.values.host_env.is_some()),
        ("--set", !args.values.set.is_empty()),
    ];
    refuse_flags(&flags, "runs of steps", "a run of a plan")
}

/// Refuses flags that are given and mean nothing to the run.
pub(super) fn refuse_flags(flags: &[(&str, bool)], of: &str, this: &str) -> Result<(), Failure> {
    let given: Vec<&str> = flags.iter().filter(|(_, given)| *given).map(|(flag, _)| *flag).collect();
    if given.is_empty() {
        return Ok(());
    }
    let (names, is) = (given.join(", "), if given.len() == 1 { "is" } else { "are" });
    let message = format!("{names} {is} for {of}, and this is {this}");
    Err(Failure::new(FailureKind::Usage, message).hint(format!("leave {names} out")))
}

/// Returns the recorded plan. Checked against its hash first: a changed one is never run, not even by force.
pub(super) fn stored_plan(bundle: &Path, meta: &RunMeta) -> Result<CompiledPlan, Failure> {
    let bytes = stead_bundle::load_plan(bundle, meta).map_err(unreadable)?;
    let plan: Plan = serde_json::from_slice(&bytes).map_err(|error| {
        Failure::caused_by(FailureKind::Verification, error).hint("plan.json is not a plan")
    })?;
    let graph = Graph::build(&plan.tasks).map_err(|_| {
        Failure::new(FailureKind::Verification, "the recorded plan is not a graph that can run")
    })?;
    Ok(CompiledPlan {
        plan: Arc::new(plan),
        graph: Arc::new(graph),
        hash: meta.plan_hash,
        warnings: Vec::new(),
    })
}

/// The plan to go on with.
struct Current {
    compiled: CompiledPlan,
    base_dir: PathBuf,
    bytes: Option<Vec<u8>>,
    warning: Option<String>,
}

/// Returns what the recorded source gives now, or the recorded plan if there is no source any more.
fn current_plan(meta: &RunMeta, stored: CompiledPlan, settings: &Settings) -> Result<Current, Failure> {
    let path = meta.plan.source.as_ref().map(PathBuf::from);
    let Some(path) = path.filter(|path| path.is_file()) else {
        let beside = meta.plan.source.as_ref().and_then(|path| Path::new(path).parent());
        let warning =
            meta.plan.source.as_ref().map(|path| format!("{path} is gone; the recorded plan goes on"));
        let base_dir = beside.unwrap_or(&settings.current_dir).to_owned();
        return Ok(Current { compiled: stored, base_dir, bytes: None, warning });
    };
    let vars = meta.plan.vars.iter();
    let given = Given {
        vars_files: Vec::new(),
        vars: vars
            .map(|(name, value)| VarFlag { name: name.clone(), value: VarValue::Json(value.clone()) })
            .collect(),
        // The environment the run began with, so that going on from elsewhere is no other plan.
        env: stored.plan.env.clone(),
    };
    let loaded = source::load(&PlanSource::File(path), &given, None, settings)?;
    Ok(Current {
        compiled: loaded.compiled,
        base_dir: loaded.base_dir,
        bytes: Some(loaded.bytes),
        warning: None,
    })
}

/// Returns tasks that were named on the command line, or all names that are of no task.
pub(super) fn names(typed: &[String], plan: &Plan) -> Result<Vec<TaskName>, Failure> {
    let known = || plan.tasks.iter().map(|task| task.name.as_str());
    let find = |name: &String| {
        plan.tasks.iter().find(|task| task.name.as_str() == name).map(|task| task.name.clone())
    };
    let mut failure = None;
    let mut found = Vec::new();
    for name in typed {
        match find(name) {
            Some(task) => found.push(task),
            None => {
                let first = failure.unwrap_or_else(|| {
                    Failure::unknown_name(FailureKind::Usage, format!("no task is called `{name}`"))
                });
                failure = Some(
                    first.hint(format!("`{name}`: {}", stead_model::diagnostic::suggest(name, known()))),
                );
            }
        }
    }
    failure.map_or(Ok(found), Err)
}

pub(super) fn refused(error: ResumeError) -> Failure {
    let changed = matches!(error, ResumeError::PlanChanged { .. });
    let failure = Failure::caused_by(FailureKind::of(error.exit_code()), error);
    if changed {
        failure.hint("--force goes on with the plan as it is now, keeping what is the same")
    } else {
        failure
    }
}

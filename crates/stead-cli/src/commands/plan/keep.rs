//! `stead plan keep`: the process of one run of a submitted plan; started by the server.

use std::io;
use std::path::Path;
use std::time::Duration;

use stead_engine::compile::CompiledPlan;
use stead_engine::graph::Graph;
use stead_model::bundle::PlanMeta;
use stead_model::{EventKind, ExitCode, Report};
use stead_runner::{CheckedPlan, Provenance, ResumeOptions, Runner, journal};
use stead_server::{PlanEnd, TakenPlan};
use tokio::sync::watch;

use crate::args::{InventoryArgs, OutputArgs, Progress};
use crate::commands::plan::drive::{self, Person};
use crate::commands::plan::present::{Recorded, Shown};
use crate::commands::plan::source;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::reach;
use crate::render::Differences;
use crate::settings::Settings;
use crate::signals::Signals;

pub(crate) fn run(submission: &Path, settings: &Settings, output: &mut Output) -> Result<ExitCode, Failure> {
    let internal = |error: io::Error| Failure::caused_by(FailureKind::Work, error);
    // Before anybody can know who works on the run: a signal that comes now stops the run, not this process.
    let signals = drive::listen()?;
    let taken = TakenPlan::take(submission).map_err(internal)?;
    // Another process works on it, or it has ended.
    let Some(taken) = taken else { return Ok(ExitCode::Success) };
    let bundle = settings.state_dir.runs().join(taken.head.run_id.as_str());
    if let Some(end) = ended_before(&taken, &bundle, settings) {
        taken.end(&end, None).map_err(internal)?;
        return Ok(ExitCode::from_code(end.exit_code).unwrap_or(ExitCode::Failed));
    }
    let is_cancelled = taken.is_cancelled().map_err(internal)?;
    if is_cancelled && !bundle.is_dir() {
        taken.end(&PlanEnd::before_it_began(), None).map_err(internal)?;
        return Ok(ExitCode::Cancelled);
    }
    let ended = work(&taken, &bundle, is_cancelled, signals, settings, output);
    let end = match &ended {
        Ok(report) => PlanEnd { exit_code: report.exit_code.code(), error: why(report) },
        Err(failure) => PlanEnd { exit_code: failure.exit_code().code(), error: Some(failure.message()) },
    };
    // A run that could not begin has no bundle that its report could be in.
    let unrecorded = ended.as_ref().ok().filter(|_| !bundle.join(stead_bundle::REPORT).exists());
    taken.end(&end, unrecorded).map_err(internal)?;
    ended.map(|report| report.exit_code)
}

/// Returns why a run as a whole did not go well, beside what its tasks say.
fn why(report: &Report) -> Option<String> {
    let of_no_task = report.errors.iter().filter(|error| error.task.is_none());
    let messages: Vec<&str> = of_no_task.map(|error| error.message.as_str()).collect();
    (!messages.is_empty()).then(|| messages.join("; "))
}

/// Returns how the run ended, if a process before this one came to its end and died before it could say so: what failed
/// then is not tried again by itself.
fn ended_before(taken: &TakenPlan, bundle: &Path, settings: &Settings) -> Option<PlanEnd> {
    let mut end = None;
    let read = journal::read_with(&bundle.join(stead_bundle::EVENTS), |event| {
        end = if let EventKind::RunFinished(finished) = event.kind { Some(finished) } else { None };
    });
    read.ok()?;
    let finished = end?;
    let runner = Runner::new(stead_drivers::Drivers::standard()).record_in(&settings.state_dir.path);
    let completed = compiled(taken).ok().and_then(|plan| runner.complete_at(bundle, &plan.into()).ok());
    Some(match completed.flatten() {
        Some(report) => PlanEnd { exit_code: report.exit_code.code(), error: why(&report) },
        // How it ended is known, whatever keeps its report from being written.
        None => PlanEnd { exit_code: finished.exit_code.code(), error: finished.error },
    })
}

fn compiled(taken: &TakenPlan) -> Result<CompiledPlan, Failure> {
    let graph = Graph::build(&taken.plan.tasks)
        .map_err(|_| Failure::new(FailureKind::Verification, "the plan is not a graph that can run"))?;
    Ok(CompiledPlan {
        plan: taken.plan.clone().into(),
        graph: graph.into(),
        hash: taken.head.plan_hash,
        warnings: Vec::new(),
    })
}

fn work(
    taken: &TakenPlan,
    bundle: &Path,
    is_cancelled: bool,
    signals: watch::Receiver<Signals>,
    settings: &Settings,
    output: &Output,
) -> Result<Report, Failure> {
    let head = &taken.head;
    let compiled = compiled(taken)?;
    let base_dir = settings.current_dir.clone();
    let hosts = source::inventory(&InventoryArgs::default(), &base_dir, settings)?;
    let meta = hosts.recorded_in(PlanMeta {
        plan: head.plan.to_string(),
        vars: head.vars.clone(),
        trigger: head.trigger.clone(),
        segments: 1,
        ..PlanMeta::default()
    });
    let sources = taken.source.iter().map(|bytes| ("plan.yaml".to_owned(), bytes.clone())).collect();
    let mut runner = Runner::new(stead_drivers::Drivers::standard())
        .inventory(hosts.inventory.clone())
        .environment(settings.environment.to_map())
        .record_in(&settings.state_dir.path)
        // Nobody is there to try again: runs that meet at a host wait for each other.
        .wait_lock(Duration::MAX)
        .provenance(Provenance { meta, sources, steps: None });
    runner = reach::connect(runner, settings)?;
    let is_begun = bundle.is_dir();
    if !is_begun {
        runner = runner.run_id(head.run_id.clone());
    }
    if is_cancelled {
        runner.canceller().signal(1);
    }
    let recorded =
        if is_begun { Recorded::In(bundle.to_owned()) } else { Recorded::Below(settings.state_dir.runs()) };
    let silent = OutputArgs { progress: Progress::None, ..OutputArgs::default() };
    let shown = Shown::new(&silent, Differences::Hidden, recorded, settings, output)?;
    let questions = drive::questions(compiled.plan.tasks.iter());
    let person = if head.yes { Person::SaidYes } else { Person::Absent };
    let plan = CheckedPlan::from(compiled).with_base_dir(base_dir);
    if !is_begun {
        let act = move |runner: Runner| async move { runner.run(plan).await };
        return drive::drive_hearing(signals, runner, shown, &questions, person, act);
    }
    let options = ResumeOptions::default();
    let act = move |runner: Runner| async move { runner.resume_at(bundle, plan, options).await };
    drive::drive_hearing(signals, runner, shown, &questions, person, act)?
        .map_err(crate::commands::resume::refused)
}

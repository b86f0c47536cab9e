//! `stead plan run FILE`.

use stead_engine::compile;
use stead_model::bundle::PlanMeta;
use stead_model::{ExitCode, Report};
use stead_runner::{CheckedPlan, Provenance, Runner};

use crate::args::{Durability, PlanRunArgs};
use crate::commands::plan::drive::{self, Person};
use crate::commands::plan::present::{self, Recorded, Shown};
use crate::commands::plan::source::{self, Loaded};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::reach;
use crate::render::Differences;
use crate::settings::Settings;

pub(crate) fn run(args: &PlanRunArgs, settings: &Settings, output: &mut Output) -> Result<ExitCode, Failure> {
    let hosts = source::inventory(&args.inventory, &source::base_dir(&args.file, settings), settings)?;
    let loaded = source::load(&args.file, &(&args.vars).into(), Some(&hosts.inventory), settings)?;
    let limit = source::limit(&args.inventory, &hosts.inventory)?;
    let left_out = compile::select(&loaded.compiled, &args.only)
        .map_err(|error| Failure::caused_by(FailureKind::Usage, error))?;

    let recorded = if args.no_journal || args.dry_run {
        Recorded::No
    } else {
        Recorded::Below(settings.state_dir.runs())
    };
    let diff = if args.diff { Differences::Shown } else { Differences::Hidden };
    let mut runner = Runner::new(stead_drivers::Drivers::standard())
        .inventory(hosts.inventory.clone())
        .limit(limit.exprs)
        .environment(settings.environment.to_map())
        .durability(durability(args.durability))
        .leave_out(left_out.clone());
    runner = reach::connect(runner, settings)?;
    if matches!(recorded, Recorded::Below(_)) {
        runner = runner.record_in(&settings.state_dir.path);
    }
    if let Some(wait) = args.wait_lock {
        runner = runner.wait_lock(wait);
    }
    runner = runner.parent_runs(settings.parent_runs.clone());
    if let Some(run_id) = &args.run_id {
        runner = runner.run_id(run_id.clone());
    }
    if let Some(parallel) = args.parallel {
        runner = runner.parallel(parallel);
    }
    if let Some(timeout) = args.timeout {
        runner = runner.timeout(timeout);
    }
    for warning in &loaded.compiled.warnings {
        runner = runner.warn(warning.code, format!("{}: {}", warning.place, warning.message));
    }
    for warning in limit.warnings {
        runner = runner.warn(warning.code, warning.text);
    }
    let meta = hosts.recorded_in(PlanMeta {
        plan: loaded.compiled.plan.name.to_string(),
        source: loaded.path.as_ref().map(|path| path.display().to_string()),
        argv: settings.argv.clone(),
        vars: loaded.given.clone(),
        only: args.only.clone(),
        segments: 1,
        ..PlanMeta::default()
    });
    let Loaded { compiled, bytes, base_dir, .. } = loaded;
    runner =
        runner.provenance(Provenance { meta, sources: vec![("plan.yaml".to_owned(), bytes)], steps: None });

    let shown = Shown::new(&args.output, diff, recorded, settings, output)?;
    let questions = if args.dry_run {
        Vec::new()
    } else {
        let selected = compiled.plan.indexed().filter(|(index, _)| !left_out.contains(index));
        drive::questions(selected.map(|(_, task)| task))
    };
    let person = Person::find(args.yes, settings);
    let plan = CheckedPlan::from(compiled).with_base_dir(base_dir);
    let dry_run = args.dry_run;
    let mut report = drive::drive(runner, shown, &questions, person, move |runner| async move {
        if dry_run { runner.dry_run(plan).await } else { runner.run(plan).await }
    })?;
    if args.fail_on_change {
        fail_on_change(&mut report);
    }
    Ok(present::finish(&report, &args.output, settings, output))
}

/// Something that would change, or might, is drift: exit 4. A failed row has the worse code already.
fn fail_on_change(report: &mut Report) {
    if report.exit_code == ExitCode::Success && report.counts.changed + report.counts.unknown > 0 {
        report.exit_code = ExitCode::Verification;
    }
}

fn durability(wanted: Durability) -> stead_runner::Durability {
    match wanted {
        Durability::Process => stead_runner::Durability::Process,
        Durability::Power => stead_runner::Durability::Power,
    }
}

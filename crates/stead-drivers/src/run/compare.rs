//! `analyze` and `diff`: what captures hold, and what is different from another run.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use stead_bundle::Style;
use stead_bundle::analysis::{AnalysisOptions, analyze_bundle};
use stead_bundle::diff::{
    DiffOptions, DiffRequest, Diffed, RoleChoice, Target, TargetKind, Threshold, diff_runs, render_diff,
};
use stead_model::report::Warning;
use stead_model::run_plan::{Analyze, DiffPlan};
use stead_model::{ErrorClass, RunStatus};
use stead_runner::clock;
use stead_runner::operation::{OpError, Outcome};

use super::{Here, RunSurroundings};

const SUMMARY: &str = "analysis/summary.json";
/// Why a phase that was asked for has nothing to do: the run was stopped.
pub(super) const STOPPED: &str = "the run was stopped";

impl RunSurroundings {
    /// Analyses captures, if that is wanted and there are some.
    pub(super) async fn analyze(&self, here: &Here, status: &RunStatus) -> Result<Outcome, OpError> {
        let captured = self.state.look(|state| {
            state.roles.values().any(|role| role.artifacts.iter().any(|artifact| artifact.is_capture()))
        });
        match self.run.analyze {
            Analyze::No => return Err(not_now("not asked for")),
            Analyze::Auto if !captured => return Err(not_now("no capture was collected")),
            _ if *status == RunStatus::Cancelled => return Err(not_now(STOPPED)),
            Analyze::Auto | Analyze::Yes => {}
        }
        let (bundle, options) = (here.bundle.clone(), self.analysis_options());
        blocking(move || {
            let jobs = std::thread::available_parallelism().map_or(1, usize::from);
            let summary = analyze_bundle(&bundle, &options, jobs).map_err(|errors| {
                let errors: Vec<String> = errors.iter().map(|error| told(error).message).collect();
                OpError::operation(errors.join("; "))
            })?;
            stead_bundle::replace_json(&bundle, SUMMARY, &summary).map_err(|error| told(&error))
        })
        .await?;
        Ok(Outcome { changed: true, ..Outcome::default() })
    }

    /// Leaves the agents after the last phase that was asked for and may fail, which `ended` so: now it is known whether
    /// places stay that are kept only after a failure.
    pub(super) async fn leave_after(
        &self,
        here: &Here,
        status: &RunStatus,
        ended: Result<Outcome, OpError>,
    ) -> Result<Outcome, OpError> {
        let went_wrong = ended.as_ref().is_err_and(|error| !error.unsupported);
        let left = self.leave_places(here, went_wrong || *status != RunStatus::Success).await;
        if let Err(error) = left {
            let text = format!("workdirs could not be removed: {}", error.message);
            self.announcer.warn(Warning::new("run/workdir-kept", text)).await;
        }
        ended
    }

    /// Compares the run with its baseline, if it has one.
    pub(super) async fn diff(&self, here: &Here, status: &RunStatus) -> Result<Outcome, OpError> {
        let Some(plan) = &self.run.diff else { return Err(not_now("not asked for")) };
        if *status == RunStatus::Cancelled {
            return Err(not_now(STOPPED));
        }
        let (bundle, options, plan) = (here.bundle.clone(), self.analysis_options(), plan.clone());
        let (name, so_far) = (here.run_id.to_string(), self.meta_so_far(here, *status)?);
        let Diffed { diff, warnings } =
            blocking(move || diff_with(&plan, bundle, &name, options, so_far)).await?;
        for warning in warnings {
            self.announcer.warn(Warning::new("run/diff", warning)).await;
        }
        let crossed: Vec<&str> = diff
            .thresholds()
            .iter()
            .filter(|result| result.failed)
            .map(|result| result.expr.as_str())
            .collect();
        if !crossed.is_empty() {
            let message = format!("compared with the baseline: {} is true", crossed.join(", "));
            return Err(OpError::new(ErrorClass::Check, message));
        }
        Ok(Outcome { changed: true, ..Outcome::default() })
    }

    /// Returns what will be recorded of the run, as far as that is known before it has ended.
    fn meta_so_far(&self, here: &Here, status: RunStatus) -> Result<Value, OpError> {
        let now = clock::now();
        let mut meta = here.meta()?;
        let lasted = match self.afterwards {
            true => Duration::from_millis(now.millis_since(meta.started_at)),
            false => self.began.elapsed(),
        };
        (meta.status, meta.exit_code) = (status, Some(status.exit_code(None)));
        (meta.finished_at, meta.duration_seconds) = (Some(now), lasted.as_secs_f64());
        meta.ended_by = self.ending().ended_by;
        serde_json::to_value(meta).map_err(|error| told(&error))
    }

    fn analysis_options(&self) -> AnalysisOptions {
        let mut options = AnalysisOptions::default();
        options.ports.extend(&self.run.ports);
        options
    }
}

fn diff_with(
    plan: &DiffPlan,
    bundle: PathBuf,
    name: &str,
    analysis: AnalysisOptions,
    so_far: Value,
) -> Result<Diffed, OpError> {
    let thresholds: Result<Vec<Threshold>, _> =
        plan.fail_on.iter().map(|expr| Threshold::parse(expr)).collect();
    let thresholds = thresholds.map_err(|error| told(&error))?;
    let request = DiffRequest {
        role: RoleChoice::DefaultOrAll,
        text: Default::default(),
        analysis,
        options: DiffOptions { thresholds, ..DiffOptions::default() },
        so_far: Some(so_far),
    };
    let side = |path: PathBuf, name: &str| Target { path, name: name.to_owned(), kind: TargetKind::Bundle };
    let (old, new) = (side(plan.from.clone(), &plan.baseline), side(bundle.clone(), name));
    let diffed = diff_runs(&old, &new, &request).map_err(|error| told(&error))?;
    stead_bundle::replace_json(&bundle, "analysis/diff.json", &diffed.diff).map_err(|error| told(&error))?;
    let text = render_diff(&diffed.diff, Style::Text);
    stead_bundle::replace_file(&bundle, "analysis/diff.txt", &|out| out.write_all(text.as_bytes()))
        .map_err(|error| told(&error))?;
    Ok(diffed)
}

/// Returns that a phase has nothing to do, which is no failure.
fn not_now(why: &str) -> OpError {
    OpError::unsupported(why)
}

fn told(error: &dyn std::error::Error) -> OpError {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    OpError::operation(text)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, OpError> + Send + 'static,
) -> Result<T, OpError> {
    let worked = tokio::task::spawn_blocking(work).await;
    worked.unwrap_or_else(|_| Err(OpError::operation("it was cut off")))
}

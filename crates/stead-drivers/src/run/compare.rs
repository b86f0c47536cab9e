//! `analyze` and `diff`: what captures hold, and what is different from another run.

use std::path::PathBuf;

use stead_bundle::Style;
use stead_bundle::analysis::{AnalysisOptions, analyze_bundle};
use stead_bundle::diff::{
    DiffOptions, DiffRequest, Diffed, RoleChoice, Target, TargetKind, Threshold, diff_runs, render_diff,
};
use stead_model::report::Warning;
use stead_model::run_plan::{Analyze, DiffPlan};
use stead_model::{ErrorClass, RunStatus};
use stead_runner::operation::{OpError, Outcome};

use super::{Here, RunSurroundings};

const SUMMARY: &str = "analysis/summary.json";

impl RunSurroundings {
    /// Analyses captures, if that is wanted and there are some.
    pub(super) async fn analyze(&self, here: &Here, status: &RunStatus) -> Result<Outcome, OpError> {
        let captured = self.state.look(|state| {
            state.roles.values().any(|role| role.artifacts.iter().any(|artifact| artifact.is_capture()))
        });
        match self.run.analyze {
            _ if *status == RunStatus::Cancelled => return Err(not_now("the run was stopped")),
            Analyze::No => return Err(not_now("not asked for")),
            Analyze::Auto if !captured => return Err(not_now("no capture was collected")),
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

    /// Compares the run with its baseline, if it has one.
    pub(super) async fn diff(&self, here: &Here, status: &RunStatus) -> Result<Outcome, OpError> {
        let Some(plan) = &self.run.diff else { return Err(not_now("not asked for")) };
        if *status == RunStatus::Cancelled {
            return Err(not_now("the run was stopped"));
        }
        let (bundle, options, plan) = (here.bundle.clone(), self.analysis_options(), plan.clone());
        let name = here.run_id.to_string();
        let Diffed { diff, warnings } = blocking(move || diff_with(&plan, bundle, &name, options)).await?;
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
) -> Result<Diffed, OpError> {
    let thresholds: Result<Vec<Threshold>, _> =
        plan.fail_on.iter().map(|expr| Threshold::parse(expr)).collect();
    let thresholds = thresholds.map_err(|error| told(&error))?;
    let request = DiffRequest {
        role: RoleChoice::Default,
        text: Default::default(),
        analysis,
        options: DiffOptions { thresholds, ..DiffOptions::default() },
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

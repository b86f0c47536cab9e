//! The phases as operations.

use std::sync::Arc;

use stead_model::Descriptor;
use stead_model::run_plan::phases;
use stead_runner::operation::{Action, OpContext, OpError, Outcome, Params, Registry, Stop};

use super::{Here, RunSurroundings};

/// A phase of a run.
struct Phase {
    descriptor: &'static Descriptor,
    run: Arc<RunSurroundings>,
}

/// Adds every phase.
pub(super) fn add_to(registry: &mut Registry, run: &Arc<RunSurroundings>) {
    for descriptor in &phases::OPERATIONS {
        registry.add_action(Phase { descriptor, run: Arc::clone(run) });
    }
}

#[async_trait::async_trait]
impl Action for Phase {
    fn descriptor(&self) -> &'static Descriptor {
        self.descriptor
    }

    async fn check(&self, _: &OpContext, _: &Params) -> Result<Outcome, OpError> {
        Err(OpError::permanent("a run of roles is planned without asking its agents"))
    }

    async fn run(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        let here = Here::of(cx)?;
        let run = &self.run;
        match self.descriptor.name {
            phases::RUN_INIT => stoppable(cx, run.init(&here)).await?,
            phases::RUN_STAGE => stoppable(cx, run.stage(&here)).await?,
            phases::RUN_START => stoppable(cx, run.start(&here, params.required("role")?)).await?,
            phases::RUN_READY => stoppable(cx, run.ready(params.required("role")?)).await?,
            phases::RUN_DONE => stoppable(cx, run.done(params.required("role")?)).await?,
            phases::RUN_UNTIL => stoppable(cx, run.until()).await?,
            phases::RUN_STOP => run.stop(&status_of(cx)?, params.required("role")?).await?,
            phases::RUN_COLLECT => run.collect(&here, &status_of(cx)?).await?,
            phases::RUN_BUNDLE => run.bundle(&here).await?,
            phases::RUN_ANALYZE => return run.analyze(&here, &status_of(cx)?).await,
            phases::RUN_DIFF => return run.diff(&here, &status_of(cx)?).await,
            other => return Err(OpError::invalid(format!("there is no phase `{other}`"))),
        }
        Ok(Outcome { changed: true, ..Outcome::default() })
    }
}

/// Does `work` unless the run is stopped first.
async fn stoppable(cx: &OpContext, work: impl Future<Output = Result<(), OpError>>) -> Result<(), OpError> {
    tokio::select! {
        biased;
        done = work => done,
        () = cx.cancel.at_least(Stop::Ask) => Err(OpError::operation("stopped")),
    }
}

/// Returns how the run has ended so far, for phases that run after every outcome.
fn status_of(cx: &OpContext) -> Result<stead_model::RunStatus, OpError> {
    serde_json::from_value(cx.scope.evaluate("run.status")?)
        .map_err(|_| OpError::permanent("the run has no status yet"))
}

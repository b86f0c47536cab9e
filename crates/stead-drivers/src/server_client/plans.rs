//! What operators ask a server about plans.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use stead_model::RunId;
use stead_model::node::wire::{ErrorBody, LONGEST_WAIT_SECONDS};
use stead_model::plan::{PlanRun, PlanSubmission, SubmittedRun};

use super::{ClientError, PATIENCE, ServerClient, to_body};

#[derive(Deserialize)]
struct Plans {
    plans: Vec<PlanRun>,
}

#[derive(Deserialize)]
struct Problems {
    diagnostics: Vec<Value>,
}

/// What became of a submission.
#[derive(Clone, Debug, PartialEq)]
pub enum Submitted {
    /// It is a run.
    Run(SubmittedRun),
    /// It is invalid; what is wrong with it.
    Invalid(Vec<Value>),
}

impl ServerClient {
    /// Submits a plan. Sent again with the same key it is the same run.
    pub async fn submit_plan(&self, submission: &PlanSubmission) -> Result<Submitted, ClientError> {
        let answer = self.send("POST", "/v1/plans", None, Some(to_body(submission)?), PATIENCE).await?;
        if answer.status == 422 {
            if let Ok(problems) = serde_json::from_slice::<Problems>(&answer.body) {
                return Ok(Submitted::Invalid(problems.diagnostics));
            }
            if let Some(error) = ErrorBody::parse(&answer.body) {
                let problem = json!({"code": error.code, "severity": "error", "message": error.message});
                return Ok(Submitted::Invalid(vec![problem]));
            }
        }
        self.read(&self.accepted(answer)?.body).map(Submitted::Run)
    }

    /// Returns the runs of submitted plans, oldest first, without their reports.
    pub async fn plans(&self) -> Result<Vec<PlanRun>, ClientError> {
        let answer = self.call("GET", "/v1/plans", None).await?;
        self.read::<Plans>(&answer.body).map(|known| known.plans)
    }

    /// Returns a run of a submitted plan.
    pub async fn plan_run(&self, run: &RunId) -> Result<PlanRun, ClientError> {
        let answer = self.call("GET", &format!("/v1/plans/{run}"), None).await?;
        self.read(&answer.body)
    }

    /// Stops a run of a submitted plan.
    pub async fn cancel_plan(&self, run: &RunId) -> Result<(), ClientError> {
        self.call("DELETE", &format!("/v1/plans/{run}"), None).await.map(drop)
    }

    /// Returns events of a run after the number `after`, a line each; if there are none it waits for one.
    pub async fn plan_events(&self, run: &RunId, after: u64, wait: Duration) -> Result<Vec<u8>, ClientError> {
        let seconds = wait.as_secs().min(LONGEST_WAIT_SECONDS);
        let path = format!("/v1/plans/{run}/events?after={after}&wait={seconds}");
        let patience = PATIENCE + Duration::from_secs(seconds);
        let answer = self.accepted(self.send("GET", &path, None, None, patience).await?)?;
        Ok(answer.body.to_vec())
    }
}

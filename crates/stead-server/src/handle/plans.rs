//! What operators ask about plans, and hooks that start them.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::body::Body as _;
use hyper::header::{self, HeaderName};
use serde_json::{Value, json};
use stead_model::node::wire::{WireCode, WireError};
use stead_model::plan::{PlanSubmission, SUBMISSION_BYTES, SubmittedRun};
use stead_model::{Diagnostics, RunId};

use super::{Asked, Refused};
use crate::answer::{self, Answer};
use crate::plans::{Events, Fired, NotTaken};

/// Headers that tell one delivery of a hook from another.
const DELIVERY: [HeaderName; 2] =
    [HeaderName::from_static("idempotency-key"), HeaderName::from_static("x-github-delivery")];
/// The header of a body that was signed with the hook's secret.
const SIGNATURE: HeaderName = HeaderName::from_static("x-hub-signature-256");
/// The most characters of a delivery's id.
const LONGEST_DELIVERY: usize = 128;

impl Asked<'_> {
    pub(super) async fn submit_plan(&mut self) -> Result<Answer, Refused> {
        let by = self.operator()?;
        let most = self.body_bytes(SUBMISSION_BYTES);
        let submission = match PlanSubmission::parse(&self.read_body(most).await?) {
            Ok(submission) => submission,
            Err(error) => return Ok(unfit(&error)),
        };
        let (plan, hash) = (submission.plan.name.clone(), submission.plan_hash);
        match self.server.plans.submit(submission, &by).await {
            Ok(run) => {
                let known = json!({"run": run, "plan": plan, "plan_hash": hash});
                self.server.audit.note(&by, "plan", known).await?;
                Ok(answer::json(StatusCode::ACCEPTED, &SubmittedRun::new(run)))
            }
            Err(NotTaken::Invalid(problems)) => Ok(invalid(&problems)),
            Err(NotTaken::Refused(error)) if error.code == WireCode::E400 => Ok(unfit(&error)),
            Err(NotTaken::Refused(error)) => Err(error.into()),
        }
    }

    pub(super) fn plans(&mut self) -> Result<Answer, Refused> {
        self.operator()?;
        Ok(answer::json(StatusCode::OK, &json!({"plans": self.server.plans.runs()})))
    }

    pub(super) fn plan_run(&mut self, run: &RunId) -> Result<Answer, Refused> {
        self.operator()?;
        Ok(answer::json(StatusCode::OK, &self.server.plans.run(run)?))
    }

    pub(super) async fn cancel_plan(&mut self, run: &RunId) -> Result<Answer, Refused> {
        let by = self.operator()?;
        self.server.plans.cancel(run).await?;
        self.server.audit.note(&by, "cancel", json!({"run": run})).await?;
        Ok(answer::json(StatusCode::ACCEPTED, &self.server.plans.run(run)?))
    }

    pub(super) async fn plan_events(
        &mut self,
        run: &RunId,
        after: u64,
        wait: u64,
    ) -> Result<Answer, Refused> {
        self.operator()?;
        let wait = Duration::from_secs(wait);
        match self.server.plans.events(run, after, wait, self.server.stopping()).await? {
            Events::Lines(lines) => Ok(answer::bytes(StatusCode::OK, "application/x-ndjson", lines.into())),
            Events::Stopping => Ok(answer::empty(StatusCode::NO_CONTENT)),
        }
    }

    /// Fires a trigger for who knows its secret. Who does not is not listened to further than it takes to know that.
    pub(super) async fn hook(&mut self, path: &str) -> Result<Answer, Refused> {
        let hook = self.server.plans.hook_at(path).await?;
        let delivery = self.delivery()?;
        let unknown = || WireError::new(WireCode::E301, "this is not the secret of this hook");
        let bearer = self.one_header(&header::AUTHORIZATION);
        let bearer = bearer.as_deref().and_then(|text| text.strip_prefix("Bearer "));
        let most = self.limits().body_bytes;
        let body = if bearer.is_some_and(|bearer| hook.is_opened_by(bearer)) {
            self.read_body(most).await?
        } else {
            let signature = self.one_header(&SIGNATURE).ok_or_else(|| self.failed(unknown()))?;
            let server = Arc::clone(self.server);
            let _room = server.plans.room_for(self.body.size_hint().upper().unwrap_or(most).min(most))?;
            let body = self.read_body(most).await?;
            if !hook.has_signed(&signature, &body) {
                return Err(self.failed(unknown()));
            }
            body
        };
        match self.server.plans.knock(&hook, delivery.as_deref(), &body).await? {
            Fired::Run(run) => Ok(answer::json(StatusCode::ACCEPTED, &SubmittedRun::new(run))),
            Fired::Dropped(why) => Ok(answer::json(StatusCode::OK, &json!({"dropped": why}))),
        }
    }

    /// Returns what tells this delivery from others, if its sender says so.
    fn delivery(&self) -> Result<Option<String>, WireError> {
        let Some(name) = DELIVERY.into_iter().find(|name| self.headers.contains_key(name)) else {
            return Ok(None);
        };
        let delivery = self.one_header(&name).filter(|delivery| {
            (1..=LONGEST_DELIVERY).contains(&delivery.len())
                && delivery.bytes().all(|byte| byte.is_ascii_graphic())
        });
        // One that is not understood would be new each time it comes.
        let message = format!("`{name}` is there once, with at most {LONGEST_DELIVERY} visible characters");
        delivery.map(Some).ok_or_else(|| WireError::new(WireCode::E100, message))
    }
}

/// Returns the answer to a submission that is none: the only problem, in the shape of those of a plan.
fn unfit(error: &WireError) -> Answer {
    let row = json!({
        "code": error.code, "severity": "error", "path": "", "message": error.message, "help": "",
    });
    answer::json(StatusCode::UNPROCESSABLE_ENTITY, &json!({"error": error, "diagnostics": [row]}))
}

/// Returns the answer to a plan with problems: all of them.
fn invalid(problems: &Diagnostics) -> Answer {
    let rows: Vec<Value> = problems
        .iter()
        .map(|problem| {
            json!({
                "code": problem.code, "severity": problem.severity, "path": problem.path,
                "message": problem.message, "help": problem.help,
            })
        })
        .collect();
    let message = format!("the plan has {} problems", rows.len());
    let error = WireError::new(WireCode::E400, message);
    answer::json(StatusCode::UNPROCESSABLE_ENTITY, &json!({"error": error, "diagnostics": rows}))
}

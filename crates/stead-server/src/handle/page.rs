//! `GET /ui`: what operators see in a browser, and what that page asks for. Nothing can be changed here.

use hyper::Response;
use hyper::header;
use serde_json::{Value, json};
use stead_model::node::wire::{Job, WireCode, WireError};
use stead_model::plan::{PlanRun, PlanRunState};
use stead_model::token::{Endpoint, bearer};
use stead_web::{Asked as Question, Body, Shown};

use super::{Asked, Refused};
use crate::answer::{Answer, AnswerBody};

/// Where the page asks, from where it is.
const ROOT: &str = "ui/data/";

impl Asked<'_> {
    /// The page.
    pub(super) fn page(&mut self) -> Result<Answer, Refused> {
        self.authorize_reader()?;
        Ok(self.web_answer(stead_web::of_page(ROOT)))
    }

    /// What the page asks for.
    pub(super) async fn shown(&mut self, question: Question) -> Result<Answer, Refused> {
        self.authorize_reader()?;
        let shown = match question {
            Question::About => {
                let site = &self.snapshot.site.settings.value.name;
                Shown::json(&json!({"title": site, "views": ["nodes", "jobs", "runs"]}))
            }
            Question::Nodes => Shown::json(&json!({"nodes": self.server.store.statuses(None).items})),
            Question::Jobs => {
                let jobs = self.server.store.jobs(None).items;
                let rows: Vec<Value> = jobs.iter().rev().map(job_row).collect();
                Shown::json(&json!({"jobs": rows}))
            }
            Question::Runs
            | Question::Run(_)
            | Question::Events { .. }
            | Question::Log { .. }
            | Question::Verify(_)
            | Question::Diff { .. } => {
                let header = self.one_header(&header::HeaderName::from_static("last-event-id"));
                let question = question.behind(header.as_deref());
                let server = std::sync::Arc::clone(self.server);
                let answered = tokio::task::spawn_blocking(move || {
                    if question == Question::Runs {
                        server.desk.runs(&waiting(&server.plans.runs()))
                    } else {
                        server.desk.answer(&question)
                    }
                });
                answered.await.map_err(|_| WireError::new(WireCode::E500, "the record cannot be read"))?
            }
            Question::Fleet => Shown::nothing(),
        };
        Ok(self.web_answer(stead_web::of_shown_until(shown, self.server.stops())))
    }

    /// A browser asks for a password if it is told that one is wanted: that is the operator's token.
    fn authorize_reader(&mut self) -> Result<(), Refused> {
        if self.is_local() {
            return Ok(());
        }
        let token = match self.basic_token() {
            Some(token) => Ok(token),
            None => {
                let header = self.one_header(&header::AUTHORIZATION);
                bearer(header.as_deref()).map(str::to_owned).map_err(WireError::from)
            }
        };
        self.authorize_token(token, Endpoint::Operator, None).map_err(|refused| {
            // Another token may do; where none can be checked, asking for one would lead in a circle.
            let wants_basic = !matches!(refused.error.code, WireCode::E105 | WireCode::E500);
            Refused { wants_basic, ..refused }
        })?;
        Ok(())
    }

    fn web_answer(&self, response: Response<Body>) -> Answer {
        response.map(|body| match body {
            Body::Whole(bytes) => AnswerBody::Whole(bytes),
            Body::Live(pieces) => AnswerBody::Live(pieces),
        })
    }
}

/// Returns a job as the page shows it. Only its program: arguments may hold secrets.
fn job_row(job: &Job) -> Value {
    json!({
        "id": job.id, "node": job.node, "state": job.state, "program": job.argv.first(), "rc": job.rc,
        "error": job.error.is_some(), "by": job.by, "created_at": job.created_at,
    })
}

/// Returns the rows of runs that have no record yet.
fn waiting(runs: &[PlanRun]) -> Vec<Value> {
    let queued = runs.iter().rev().filter(|run| run.state == PlanRunState::Queued);
    let row = |run: &PlanRun| {
        json!({
            "key": run.run_id, "run_id": run.run_id, "plan": run.plan, "kind": "plan", "status": "queued",
            "started_at": null, "duration_seconds": null, "sealed": false,
        })
    };
    queued.map(row).collect()
}

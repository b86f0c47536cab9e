//! Triggers that fire: each has one run, ever.

use std::io;
use std::sync::{Arc, PoisonError};

use serde_json::{Map, Value, json};
use stead_engine::compile::CompiledPlan;
use stead_engine::triggers::{Admission, admit};
use stead_model::node::wire::{WireCode, WireError};
use stead_model::plan::PlanSubmission;
use stead_model::time::Timestamp;
use stead_model::{PlanName, RunId};

use super::{NotTaken, ONCE, PlanHead, Plans, armed, cut_off, key_line, unkept};
use crate::log::Log;

/// What became of a trigger.
pub(crate) enum Fired {
    /// It has a run.
    Run(RunId),
    /// It has none, and why.
    Dropped(&'static str),
}

/// What is to be done about a trigger.
enum Standing {
    /// Nothing: this is what became of it.
    Fired(Fired),
    /// It is to be dropped.
    Drop,
    /// It is to have a run of this plan.
    Open { submission: Arc<PlanSubmission>, by: String, waits: bool },
}

/// A plan that was compiled for a trigger, and variables it was given.
type ForTrigger = (CompiledPlan, std::collections::BTreeMap<String, Value>);

impl Plans {
    /// Starts the run of a trigger that fired, if it has none yet.
    pub(super) async fn fire(
        &self,
        plan: &PlanName,
        name: &str,
        trigger: &Value,
        now: Timestamp,
    ) -> Result<Fired, NotTaken> {
        let id = trigger["id"].as_str().unwrap_or_default();
        let mut compiled: Option<(Arc<PlanSubmission>, ForTrigger)> = None;
        loop {
            let submission = {
                let _one_at_a_time = self.submitting.lock().await;
                let (submission, by, waits) = match self.standing(plan, name, id, now)? {
                    Standing::Fired(fired) => return Ok(fired),
                    Standing::Drop => {
                        self.spend(id).map_err(unkept)?;
                        return Ok(Fired::Dropped("the last run goes on, or was begun too short a time ago"));
                    }
                    Standing::Open { submission, by, waits } => (submission, by, waits),
                };
                match compiled.take() {
                    Some((of, (compiled, vars))) if Arc::ptr_eq(&of, &submission) => {
                        let head = PlanHead {
                            run_id: stead_runner::clock::new_run_id(now),
                            plan: plan.clone(),
                            plan_hash: compiled.hash,
                            by,
                            created_at: now,
                            trigger: Some(trigger.clone()),
                            key: None,
                            waits,
                            yes: submission.yes,
                            vars,
                        };
                        let run = head.run_id.clone();
                        self.begin(head, &compiled.plan, submission.source.as_deref())?;
                        if let Some(armed) = self.lock().armed.get(plan) {
                            // The run says it too.
                            armed.save_marks(&self.armed_below).ok();
                        }
                        return Ok(Fired::Run(run));
                    }
                    Some(_) | None => submission,
                }
            };
            // While nobody waits for it: it may take seconds.
            compiled = Some((Arc::clone(&submission), self.compile(submission, plan, name, trigger).await?));
        }
    }

    fn standing(&self, plan: &PlanName, name: &str, id: &str, now: Timestamp) -> Result<Standing, WireError> {
        let inner = self.lock();
        if let Some(run) = inner.fired.get(id) {
            return Ok(Standing::Fired(Fired::Run(run.clone())));
        }
        if inner.spent.contains(id) {
            return Ok(Standing::Fired(Fired::Dropped("this trigger has fired before")));
        }
        let gone = || WireError::new(WireCode::E200, "the plan is not armed any more");
        let armed = inner.armed.get(plan).ok_or_else(gone)?;
        let settings = armed.trigger(name).ok_or_else(gone)?;
        let going_on = inner.runs.values().filter(|run| run.is_unfinished_of(plan)).count();
        let open = |waits| Standing::Open {
            submission: Arc::clone(&armed.submission),
            by: armed.by().to_owned(),
            waits,
        };
        Ok(match admit(settings.overlap, going_on, settings.min_interval, armed.since(name, now)) {
            Admission::Start => open(false),
            Admission::Wait => open(true),
            Admission::Drop => Standing::Drop,
        })
    }

    async fn compile(
        &self,
        submission: Arc<PlanSubmission>,
        plan: &PlanName,
        name: &str,
        trigger: &Value,
    ) -> Result<ForTrigger, WireError> {
        let given = {
            let inner = self.lock();
            let settings = inner.armed.get(plan).and_then(|armed| armed.trigger(name));
            settings.map(|settings| settings.vars.clone()).unwrap_or_default()
        };
        let (catalogue, trigger) = (Arc::clone(&self.catalogue), trigger.clone());
        let compiling = move || armed::plan_for(&submission, &given, &trigger, &catalogue);
        let compiled = tokio::task::spawn_blocking(compiling).await.map_err(cut_off)?;
        compiled.map_err(|why| WireError::new(WireCode::E400, why))
    }

    /// Fires a trigger that nobody waits for, and says what became of it. Returns whether it is done with; else it is to be
    /// tried again.
    pub(super) async fn fire_and_tell(
        &self,
        log: &Log,
        plan: &PlanName,
        name: &str,
        trigger: &Value,
        now: Timestamp,
    ) -> bool {
        let (became, is_done) = match self.fire(plan, name, trigger, now).await {
            Ok(Fired::Run(run)) => (("run", json!(run)), true),
            Ok(Fired::Dropped(why)) => (("dropped", json!(why)), true),
            Err(NotTaken::Invalid(problems)) => (("problem", json!(problems.to_string())), true),
            Err(NotTaken::Refused(error)) => (
                ("problem", json!(error.to_string())),
                !matches!(error.code, WireCode::E105 | WireCode::E500),
            ),
        };
        let known = [("plan", json!(plan)), ("trigger", trigger["id"].clone()), became];
        let known: Map<String, Value> =
            known.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        log.say("trigger", known);
        self.wake.notify_one();
        is_done
    }

    /// Remembers the id of a trigger for good that has no run on the disk. One that the server made up never comes again.
    pub(super) fn spend(&self, id: &str) -> io::Result<()> {
        if id.starts_with(ONCE) {
            return Ok(());
        }
        self.ledgers.lock().unwrap_or_else(PoisonError::into_inner).spent.add(id)?;
        self.lock().spent.insert(id.to_owned());
        Ok(())
    }

    /// Remembers for good what must not happen twice of a run that is not kept any more.
    pub(super) fn spend_run(&self, head: &PlanHead) -> io::Result<()> {
        if let Some(id) = head.trigger_id() {
            self.spend(id)?;
        }
        if let Some(key) = &head.key {
            let line = key_line(key, head.plan_hash, &head.run_id);
            self.ledgers.lock().unwrap_or_else(PoisonError::into_inner).keys.add(&line)?;
        }
        Ok(())
    }
}

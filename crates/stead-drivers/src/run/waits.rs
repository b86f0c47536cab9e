//! `R_ready`, `R_done` and `until`: phases that wait. When something went wrong the phase that has to tell it fails, and
//! the run's end stops the others.

use stead_model::ErrorClass;
use stead_model::bundle::{EndedBy, RoleStatus};
use stead_model::role::StopReason;
use stead_model::run_plan::{RoleKind, Until};
use stead_runner::operation::OpError;

use super::RunSurroundings;
use super::state::{Inner, RunFailure, Stage, with_stderr};

impl RunSurroundings {
    /// Waits until a service is ready, or is not in time, or ends.
    pub(super) async fn ready(&self, name: &str) -> Result<(), OpError> {
        let role = self.role(name)?;
        let waited = self
            .state
            .wait_for(name, |state| {
                let own = state.role(name);
                if own.ready.is_some() {
                    return Some(Ok(()));
                }
                if let Some(message) = own.not_ready.clone() {
                    let class = ErrorClass::Operation;
                    return Some(Err(RunFailure { role: name.to_owned(), class, message }));
                }
                if own.stage == Stage::Ended && own.lost.is_none() {
                    let message = match &own.exit {
                        Some(exit) => {
                            let gist = format!("{name} ended before it was ready: {}", exit.in_words());
                            with_stderr(gist, exit)
                        }
                        None => format!("{name} was not started"),
                    };
                    return Some(Err(RunFailure { role: name.to_owned(), class: ErrorClass::Exit, message }));
                }
                state.failure_of(&self.run, name).map(Err)
            })
            .await;
        let Err(failure) = waited else { return Ok(()) };
        if role.allow_failure && failure.role == name && failure.class != ErrorClass::Unreachable {
            self.excuse(&failure).await;
            return Ok(());
        }
        self.state.change_of(name, |state| {
            if failure.role == name {
                state.role(name).status.get_or_insert(RoleStatus::Failed);
            }
            state.failure.get_or_insert(failure.clone());
        });
        Err(failure.into_error())
    }

    /// Waits for the end of a task.
    pub(super) async fn done(&self, name: &str) -> Result<(), OpError> {
        let role = self.role(name)?;
        loop {
            let waited = self
                .state
                .wait_for(name, |state| {
                    let over = state.ended_by.is_some();
                    // A task that tells of a service tells it also if it has ended well since.
                    let tells = state.teller.as_deref() == Some(name);
                    let own = state.role(name);
                    let well = own.status == Some(RoleStatus::Success) || role.allow_failure;
                    match own.stage {
                        Stage::Ended if well && !tells => Some(Ok(true)),
                        Stage::Waiting if over => Some(Ok(true)),
                        // The run has ended in order: what still runs is stopped, and that is well.
                        Stage::Running if over && own.asked.is_none() => Some(Ok(false)),
                        Stage::Waiting | Stage::Starting | Stage::Running | Stage::Ended => {
                            state.failure_of(&self.run, name).map(Err)
                        }
                    }
                })
                .await;
            match waited {
                Ok(true) => return Ok(()),
                Ok(false) => self.ask_to_stop(name, StopReason::Done),
                Err(failure) => return Err(failure.into_error()),
            }
        }
    }

    /// Holds the run: for as long as its services shall run, or until a signal.
    pub(super) async fn until(&self) -> Result<(), OpError> {
        self.state.change(|state| state.until_began = true);
        let waited = self
            .state
            .wait(|state| match self.run.until {
                // The hold has no role of its own: it is stopped with the others where a task tells.
                _ if state.failure.is_some() => state.failure_of(&self.run, "").map(Err),
                Until::Signal => state.ended_by.is_some().then_some(Ok(())),
                Until::Duration if self.durations_are_over(state) => {
                    state.ended_by.get_or_insert(EndedBy::Duration);
                    Some(Ok(()))
                }
                Until::Duration => None,
                Until::Tasks => Some(Ok(())),
            })
            .await;
        // Tasks that wait for the run's end hear of it.
        self.state.change(|_| ());
        waited.map_err(RunFailure::into_error)
    }

    fn durations_are_over(&self, state: &Inner) -> bool {
        self.run.in_start_order().all(|(name, role)| {
            let over = state
                .roles
                .get(name)
                .is_some_and(|own| own.stage == Stage::Ended || own.asked == Some(StopReason::Duration));
            role.kind == RoleKind::Task || role.duration_seconds.is_none() || over
        })
    }
}

//! `R_stop`: services are stopped in reverse order, what is left of tasks before them.

use stead_model::role::StopReason;
use stead_model::run_plan::RoleKind;
use stead_model::{ErrorClass, RunStatus};
use stead_runner::operation::OpError;

use super::RunSurroundings;
use super::state::Stage;

impl RunSurroundings {
    /// Stops a service, tasks that still run first.
    pub(super) async fn stop(&self, status: &RunStatus, name: &str) -> Result<(), OpError> {
        self.stop_tasks(status).await;
        self.stop_role(name, reason_of(status)).await;
        // A failure that no other phase has seen is told here.
        let (lost, failure) = self.state.look(|state| {
            let lost = state.roles.get(name).and_then(|role| role.lost.clone());
            (lost, state.failure.clone())
        });
        match (lost, failure) {
            (Some(why), _) => {
                let class = self.role(name).map_or(ErrorClass::Operation, |role| self.class_of_loss(role));
                Err(OpError::new(class, format!("{name} was lost: {why}")))
            }
            (None, Some(failure)) if failure.role == name && *status == RunStatus::Success => {
                Err(failure.into_error())
            }
            (None, Some(_) | None) => Ok(()),
        }
    }

    /// Stops every task that still runs, the last started first.
    pub(super) async fn stop_tasks(&self, status: &RunStatus) {
        let tasks = self.run.in_start_order().rev().filter(|(_, role)| role.kind == RoleKind::Task);
        for (name, _) in tasks {
            self.stop_role(name, reason_of(status)).await;
        }
    }

    /// Stops every role that still runs, the last started first.
    pub(super) async fn stop_all(&self, status: &RunStatus) {
        self.stop_tasks(status).await;
        for (name, _) in self.run.in_start_order().rev() {
            self.stop_role(name, reason_of(status)).await;
        }
    }

    /// Stops a role and waits for its end. Nothing happens to one that does not run.
    async fn stop_role(&self, name: &str, reason: StopReason) {
        self.state.wait_for(name, |state| (state.stage(name) != Stage::Starting).then_some(())).await;
        self.ask_to_stop(name, reason);
        tokio::select! {
            biased;
            () = self.has_ended(name) => {}
            () = self.is_killing() => {
                let stopper = self.state.look(|state| state.roles.get(name).and_then(|role| role.stopper.clone()));
                if let Some(stopper) = stopper {
                    stopper.stop(reason, true);
                }
                self.has_ended(name).await;
            }
        }
    }

    /// Resolves when roles are to be killed.
    async fn is_killing(&self) {
        let mut kill = self.kill.subscribe();
        if kill.wait_for(|kill| *kill).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    async fn has_ended(&self, name: &str) {
        self.state
            .wait_for(name, |state| matches!(state.stage(name), Stage::Waiting | Stage::Ended).then_some(()))
            .await;
    }
}

/// Returns why roles are stopped when the run has come to `status`.
fn reason_of(status: &RunStatus) -> StopReason {
    match status {
        RunStatus::Running | RunStatus::Success => StopReason::Done,
        RunStatus::Failed => StopReason::Failure,
        RunStatus::Timeout => StopReason::Timeout,
        RunStatus::Cancelled => StopReason::Cancelled,
    }
}

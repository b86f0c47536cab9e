//! What the phases of a run know together: where each role stands, and what went wrong first.
//!
//! Watchers of roles and of connections write here, phases read and wait. A change wakes who waits for the role it is
//! about, and everybody if it is about the run as a whole. Nothing here talks to an agent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stead_model::ErrorClass;
use stead_model::bundle::{ArtifactMeta, EndedBy, ReadyMeta, RoleStatus, StopMeta};
use stead_model::report::Warning;
use stead_model::role::{Program, RoleExit, StopReason};
use stead_model::run_plan::{ArtifactPlan, RoleKind, RolePlan, RunPlan};
use stead_model::time::Timestamp;
use stead_runner::agent::StopRole;
use stead_runner::operation::OpError;
use tokio::sync::watch;

/// Where a role stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// Not started, and perhaps never.
    #[default]
    Waiting,
    /// Its agent was asked to start it.
    Starting,
    /// It runs.
    Running,
    /// It has ended, or could not be started.
    Ended,
}

/// What is known of one role.
#[derive(Clone, Debug, Default)]
pub(super) struct RoleState {
    pub(super) stage: Stage,
    pub(super) argv: Option<Vec<String>>,
    pub(super) workdir: Option<String>,
    pub(super) program: Option<Program>,
    pub(super) artifacts_wanted: Option<Vec<ArtifactPlan>>,
    pub(super) pid: Option<u32>,
    pub(super) started_at: Option<Timestamp>,
    pub(super) ready: Option<ReadyMeta>,
    /// Why it did not become ready in time.
    pub(super) not_ready: Option<String>,
    /// Why it was asked to stop.
    pub(super) asked: Option<StopReason>,
    pub(super) stop: Option<StopMeta>,
    pub(super) stopper: Option<Arc<dyn StopRole>>,
    pub(super) exit: Option<RoleExit>,
    /// Why it was lost.
    pub(super) lost: Option<String>,
    /// What became of it; none while it is not known.
    pub(super) status: Option<RoleStatus>,
    /// What was brought, sorted by path.
    pub(super) artifacts: Vec<ArtifactMeta>,
    /// Whether what it left has been brought, all that can be.
    pub(super) collected: bool,
    /// Whether it was told that it failed and may.
    pub(super) excused: bool,
}

impl RoleState {
    /// Takes down an artifact that was brought; one of that path before it is replaced.
    pub(super) fn keep(&mut self, artifact: ArtifactMeta) {
        match self.artifacts.binary_search_by(|known| known.path.cmp(&artifact.path)) {
            Ok(place) => self.artifacts[place] = artifact,
            Err(place) => self.artifacts.insert(place, artifact),
        }
    }

    /// Whether it has run, also if nobody knows since when.
    pub(super) fn has_run(&self) -> bool {
        self.started_at.is_some() || self.status == Some(RoleStatus::Lost)
    }
}

/// Why the main part of a run cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RunFailure {
    pub(super) role: String,
    pub(super) class: ErrorClass,
    /// What happened, its first line the gist.
    pub(super) message: String,
}

impl RunFailure {
    /// Returns it as the failure of a phase.
    pub(super) fn into_error(self) -> OpError {
        OpError::new(self.class, self.message)
    }

    /// Returns the warning that it is, of a role that may fail.
    pub(super) fn allowed(&self) -> Warning {
        let gist = self.message.lines().next().unwrap_or_default();
        Warning::new("run/role-failed-allowed", format!("{gist} (allow_failure)")).of_role(&self.role)
    }
}

/// Everything that may change while a run goes on.
#[derive(Debug, Default)]
pub(super) struct Inner {
    pub(super) roles: BTreeMap<String, RoleState>,
    /// What went wrong first.
    pub(super) failure: Option<RunFailure>,
    /// Whether the run is held by the phase `until`.
    pub(super) until_began: bool,
    /// What ended the run in order before its tasks did.
    pub(super) ended_by: Option<EndedBy>,
    /// The task whose phase tells the failure of a service.
    pub(super) teller: Option<String>,
    /// How many instances of a role are started or run.
    busy: BTreeMap<String, u32>,
}

impl Inner {
    /// Takes down that `name`, an instance of `role`, is in `stage` now.
    pub(super) fn enter(&mut self, name: &str, role: &RolePlan, stage: Stage) {
        let is_busy = |stage| u32::from(matches!(stage, Stage::Starting | Stage::Running));
        let before = std::mem::replace(&mut self.role(name).stage, stage);
        let busy = self.busy.entry(role.role.clone()).or_default();
        *busy = (*busy + is_busy(stage)).saturating_sub(is_busy(before));
    }

    /// Returns what is known of `role`.
    pub(super) fn role(&mut self, role: &str) -> &mut RoleState {
        self.roles.entry(role.to_owned()).or_default()
    }

    /// Returns where `role` stands.
    pub(super) fn stage(&self, role: &str) -> Stage {
        self.roles.get(role).map_or(Stage::Waiting, |state| state.stage)
    }

    /// Whether every role is where it should be: services are ready, tasks run or have ended.
    pub(super) fn is_under_way(&self, run: &RunPlan) -> bool {
        let is_there = |(name, role): (&str, &RolePlan)| match role.kind {
            RoleKind::Service => {
                self.roles.get(name).is_some_and(|own| own.ready.is_some() || role.allow_failure)
            }
            RoleKind::Task => self.stage(name) >= Stage::Running,
        };
        self.until_began || run.in_start_order().all(is_there)
    }

    /// Whether the main part still needs its services: it holds, or a task of it has not ended.
    pub(super) fn needs_services(&self, run: &RunPlan) -> bool {
        if self.ended_by.is_some() {
            return false;
        }
        let is_open =
            |(name, role): (&str, &RolePlan)| role.kind == RoleKind::Task && self.stage(name) != Stage::Ended;
        self.until_began || run.in_start_order().any(is_open)
    }

    /// Whether one more instance of `role` may run beside those that do.
    pub(super) fn has_room(&self, role: &RolePlan) -> bool {
        let busy = self.busy.get(&role.role).copied().unwrap_or_default();
        role.kind == RoleKind::Service || role.concurrency == 0 || busy < role.concurrency
    }

    /// Returns the failure that a phase of `name` has to tell. That of a task, or of a service that is not ready, is told by
    /// its own phase, that of a service that was by the first task that runs; the phases of all others are stopped, so that
    /// the record blames whom it should.
    pub(super) fn failure_of(&mut self, run: &RunPlan, name: &str) -> Option<RunFailure> {
        let failure = self.failure.clone()?;
        let own = self.roles.get(name).and_then(|own| own.status);
        let went_wrong = matches!(own, Some(RoleStatus::Failed | RoleStatus::Timeout | RoleStatus::Lost));
        if went_wrong || failure.role == name {
            return Some(failure);
        }
        let is_task = run.roles.get(&failure.role).is_some_and(|role| role.kind == RoleKind::Task);
        if is_task || self.roles.get(&failure.role).is_none_or(|failed| failed.ready.is_none()) {
            return None;
        }
        if self.teller.is_none() {
            let running = |(name, role): &(&str, &RolePlan)| {
                role.kind == RoleKind::Task && self.stage(name) == Stage::Running
            };
            self.teller = run.in_start_order().find(running).map(|(name, _)| name.to_owned());
        }
        self.teller.as_ref().is_none_or(|teller| teller == name).then_some(failure)
    }

    /// Returns what concerns the run as a whole.
    fn whole(&self) -> (bool, bool, bool) {
        (self.failure.is_some(), self.ended_by.is_some(), self.until_began)
    }
}

/// The shared state of a run.
#[derive(Debug)]
pub(super) struct RunState {
    inner: Mutex<Inner>,
    /// Wakes who waits for one role.
    of_roles: Mutex<BTreeMap<String, watch::Sender<()>>>,
    /// Wakes who waits for some role when it is about the run as a whole.
    of_whole: watch::Sender<()>,
    /// Wakes who waits for anything.
    of_all: watch::Sender<()>,
}

impl Default for RunState {
    fn default() -> Self {
        let wakes = || watch::Sender::new(());
        Self { inner: Mutex::default(), of_roles: Mutex::default(), of_whole: wakes(), of_all: wakes() }
    }
}

impl RunState {
    /// Looks at the state.
    pub(super) fn look<T>(&self, look: impl FnOnce(&Inner) -> T) -> T {
        look(&self.lock())
    }

    /// Changes the state of the run as a whole and wakes who waits.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let result = change(&mut self.lock());
        self.of_whole.send_replace(());
        self.of_all.send_replace(());
        result
    }

    /// Changes the state of `role` and wakes who waits for it; everybody if the change went further.
    pub(super) fn change_of<T>(&self, role: &str, change: impl FnOnce(&mut Inner) -> T) -> T {
        let (result, went_further) = {
            let mut inner = self.lock();
            let before = inner.whole();
            let result = change(&mut inner);
            (result, inner.whole() != before)
        };
        self.with_wakes_of(role, |wakes| wakes.send_replace(()));
        if went_further {
            self.of_whole.send_replace(());
        }
        self.of_all.send_replace(());
        result
    }

    /// Returns what `seek` finds, as soon as it finds something. Cancel safe.
    pub(super) async fn wait<T>(&self, mut seek: impl FnMut(&mut Inner) -> Option<T>) -> T {
        let mut all = self.of_all.subscribe();
        loop {
            if let Some(found) = seek(&mut self.lock()) {
                return found;
            }
            woken(&mut all).await;
        }
    }

    /// Returns what `seek` finds of `role`, as soon as it finds something: it looks again when the role changed, or the run
    /// as a whole. Cancel safe.
    pub(super) async fn wait_for<T>(&self, role: &str, mut seek: impl FnMut(&mut Inner) -> Option<T>) -> T {
        let mut own = self.with_wakes_of(role, |wakes| wakes.subscribe());
        let mut whole = self.of_whole.subscribe();
        loop {
            if let Some(found) = seek(&mut self.lock()) {
                return found;
            }
            tokio::select! {
                () = woken(&mut own) => {}
                () = woken(&mut whole) => {}
            }
        }
    }

    fn with_wakes_of<T>(&self, role: &str, with: impl FnOnce(&watch::Sender<()>) -> T) -> T {
        let mut all = self.of_roles.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.contains_key(role) {
            all.insert(role.to_owned(), watch::Sender::new(()));
        }
        with(&all[role])
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for a change. The state outlives who waits for it.
async fn woken(changes: &mut watch::Receiver<()>) {
    if changes.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// What the end of a role means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) status: RoleStatus,
    /// What went wrong, if something did.
    pub(super) failure: Option<RunFailure>,
}

/// Returns what the end of `name` means: it was `asked` to stop or not, and services are `needed` or not.
pub(super) fn judge(
    name: &str,
    role: &RolePlan,
    asked: Option<StopReason>,
    exit: &RoleExit,
    needed: bool,
) -> Verdict {
    let well = |status| Verdict { status, failure: None };
    let bad = |class, message| Verdict {
        status: RoleStatus::Failed,
        failure: Some(RunFailure { role: name.to_owned(), class, message }),
    };
    match (asked, role.kind) {
        (Some(StopReason::Done | StopReason::Duration), _)
        | (Some(StopReason::Failure), RoleKind::Service) => well(RoleStatus::Success),
        (Some(StopReason::Timeout), _) => well(RoleStatus::Timeout),
        (Some(StopReason::Failure), RoleKind::Task) | (Some(StopReason::Cancelled), _) => {
            well(RoleStatus::Cancelled)
        }
        (Some(StopReason::DriverLost), _) => well(RoleStatus::Lost),
        (None, RoleKind::Task) => match exit.exit_code {
            Some(code) if role.expect_exit.contains(&code) => well(RoleStatus::Success),
            Some(_) | None => {
                bad(ErrorClass::Exit, with_stderr(format!("{name} ended with {}", exit.in_words()), exit))
            }
        },
        (None, RoleKind::Service) if role.may_exit || !needed => well(RoleStatus::Success),
        (None, RoleKind::Service) => {
            let gist = format!("service {name} ended by itself while it was needed: {}", exit.in_words());
            bad(ErrorClass::Exit, with_stderr(gist, exit))
        }
    }
}

/// Returns a message with the last lines of a role's standard error below it.
pub(super) fn with_stderr(message: String, exit: &RoleExit) -> String {
    with_lines(message, &exit.last_stderr)
}

/// Returns a message with `lines` below it.
pub(super) fn with_lines(mut message: String, lines: &[String]) -> String {
    for line in lines {
        message.push_str("\n  ");
        message.push_str(line);
    }
    message
}

/// Returns `seconds` as a time.
pub(super) fn seconds(seconds: u32) -> Duration {
    Duration::from_secs(seconds.into())
}

#[cfg(test)]
mod tests {
    use stead_model::role::StopRule;

    use super::*;

    fn role(kind: RoleKind) -> RolePlan {
        serde_json::from_value(serde_json::json!({
            "role": "r", "kind": kind, "agent_id": "local", "transport": "local", "argv": ["x"], "env_names": [],
            "stop": StopRule::default(), "expect_exit": [0, 3], "may_exit": false, "allow_failure": false,
            "artifacts": [], "index": 1, "concurrency": 1,
        }))
        .unwrap()
    }

    fn exit(code: i32) -> RoleExit {
        RoleExit {
            exit_code: Some(code),
            last_stderr: vec!["no such thing".to_owned()],
            ..RoleExit::default()
        }
    }

    #[test]
    fn a_task_ends_well_with_an_exit_it_may_have_or_after_a_requested_stop() {
        let task = role(RoleKind::Task);
        assert_eq!(judge("r", &task, None, &exit(3), true).status, RoleStatus::Success);
        assert_eq!(judge("r", &task, Some(StopReason::Duration), &exit(9), true).status, RoleStatus::Success);
        let verdict = judge("r", &task, None, &exit(42), true);
        assert_eq!(verdict.status, RoleStatus::Failed);
        assert_eq!(verdict.failure.unwrap().message, "r ended with exit code 42\n  no such thing");
        assert_eq!(
            judge("r", &task, Some(StopReason::Cancelled), &exit(0), true).status,
            RoleStatus::Cancelled
        );
        assert_eq!(judge("r", &task, Some(StopReason::Timeout), &exit(0), true).status, RoleStatus::Timeout);
    }

    #[test]
    fn a_service_that_ends_by_itself_fails_only_while_it_is_needed() {
        let service = role(RoleKind::Service);
        let failure = judge("r", &service, None, &exit(0), true).failure.unwrap();
        assert!(failure.message.starts_with("service r ended by itself while it was needed: exit code 0"));
        assert_eq!(judge("r", &service, None, &exit(0), false).status, RoleStatus::Success);
        let may = RolePlan { may_exit: true, ..role(RoleKind::Service) };
        assert_eq!(judge("r", &may, None, &exit(1), true).failure, None);
    }
}

//! The watcher of a role: what its supervisor tells becomes events of the run and the state that phases wait for.

use std::path::PathBuf;
use std::sync::Arc;

use stead_model::bundle::{ReadyMeta, RoleStatus, StopMeta};
use stead_model::event::{EventKind, RoleExited, RoleReady, RoleStop, Stream};
use stead_model::report::Warning;
use stead_model::role::{RoleEvent, RoleExit, StopReason};
use stead_model::run_plan::RolePlan;
use stead_model::{ErrorClass, HostName, TaskName};
use stead_runner::agent::{Link, RunningRole};
use tokio::time::Instant;

use super::state::{RunFailure, Stage, judge, seconds, with_lines};
use super::{Here, RunSurroundings};

impl RunSurroundings {
    /// Follows a role to its end.
    pub(super) async fn watch_role(self: &Arc<Self>, here: &Here, name: &str, mut running: RunningRole) {
        let Ok(role) = self.role(name) else { return };
        let began = Instant::now();
        let mut duration = role.duration_seconds.map(|after| began + seconds(after));
        let mut timeout = role.timeout_seconds.map(|after| began + seconds(after));
        let mut logs = Logs::new(here, name, role.agent_id.clone());
        loop {
            tokio::select! {
                biased;
                event = running.next_event() => match event {
                    Some(RoleEvent::Exited(exit)) => {
                        self.tell_logs(&mut logs).await;
                        return self.exited(name, role, exit).await;
                    }
                    Some(event) => self.heard(here, name, role, event, &mut logs).await,
                    None => {
                        self.tell_logs(&mut logs).await;
                        return self.lost(here, name, role);
                    }
                },
                () = at(duration) => {
                    duration = None;
                    self.ask_to_stop(name, StopReason::Duration);
                }
                () = at(timeout) => {
                    timeout = None;
                    self.took_too_long(here, name, role).await;
                }
            }
        }
    }

    async fn heard(&self, here: &Here, name: &str, role: &RolePlan, event: RoleEvent, logs: &mut Logs) {
        match event {
            RoleEvent::Ready { by, after_ms, values } => {
                let ready =
                    RoleReady { role: name.to_owned(), by: by.clone(), values: values.clone(), after_ms };
                self.announcer.say(EventKind::RoleReady(Box::new(ready))).await;
                self.state.change_of(name, |state| {
                    state.role(name).ready = Some(ReadyMeta { by, after_ms, values })
                });
            }
            RoleEvent::NotReady { reason, last_stderr } => {
                // Who looks from the driver has not seen what the role wrote.
                let lines = if last_stderr.is_empty() { here.last_stderr(name) } else { last_stderr };
                let message = with_lines(format!("{name} is not ready: {reason}"), &lines);
                self.state.change_of(name, |state| state.role(name).not_ready = Some(message));
            }
            RoleEvent::Warning { code, text } => {
                self.announcer.warn(Warning::new(code, text).of_role(name)).await;
            }
            RoleEvent::Logged { .. } => self.tell_logs(logs).await,
            RoleEvent::Stopping { signal, reason } => {
                let reason = reason.as_str().to_owned();
                let stop = RoleStop { role: name.to_owned(), signal: signal.clone(), reason: reason.clone() };
                self.announcer.say(EventKind::RoleStop(Box::new(stop))).await;
                self.state.change_of(name, |state| {
                    // The first is why it stops; a later one only hurries it.
                    state.role(name).stop.get_or_insert(StopMeta { signal, reason, killed: false });
                });
            }
            RoleEvent::Started { .. } | RoleEvent::NotStarted { .. } | RoleEvent::Exited(_) => {
                let text =
                    format!("the supervisor of {name} on agent `{}` told its start twice", role.agent_id);
                self.announcer.warn(Warning::new("run/supervisor", text).of_role(name)).await;
            }
        }
    }

    async fn exited(&self, name: &str, role: &RolePlan, exit: RoleExit) {
        let exited = RoleExited {
            role: name.to_owned(),
            exit_code: exit.exit_code,
            signal: exit.signal.clone(),
            duration_ms: exit.duration_ms,
        };
        self.announcer.say(EventKind::RoleExited(Box::new(exited))).await;
        let (asked, needed) = self.state.look(|state| {
            let role = state.roles.get(name);
            (role.and_then(|role| role.asked), state.needs_services(&self.run))
        });
        let verdict = judge(name, role, asked, &exit, needed);
        if let Some(failure) = verdict.failure.as_ref().filter(|_| role.allow_failure) {
            self.excuse(failure).await;
        }
        self.state.change_of(name, |state| {
            state.enter(name, role, Stage::Ended);
            let own = state.role(name);
            if let Some(stop) = &mut own.stop {
                stop.killed = exit.killed;
            }
            own.exit = Some(exit);
            own.status.get_or_insert(verdict.status);
            if let Some(failure) = verdict.failure.filter(|_| !role.allow_failure) {
                state.failure.get_or_insert(failure);
            }
        });
    }

    /// Tells once that a role failed that may.
    pub(super) async fn excuse(&self, failure: &RunFailure) {
        let role = &failure.role;
        let was_told =
            self.state.change_of(role, |state| std::mem::replace(&mut state.role(role).excused, true));
        if !was_told {
            self.announcer.warn(failure.allowed()).await;
        }
    }

    /// A role whose supervisor says nothing any more is lost, with its agent or alone.
    fn lost(&self, here: &Here, name: &str, role: &RolePlan) {
        let class = self.class_of_loss(role);
        let why = match self.agent(&role.agent_id).map(|agent| agent.link().borrow().clone()) {
            Some(Link::Gone(why) | Link::Lost(why)) => format!("agent `{}` was lost: {why}", role.agent_id),
            Some(Link::Up) | None => "its supervisor was ended".to_owned(),
        };
        let message = with_lines(format!("{name} was lost: {why}"), &here.last_stderr(name));
        self.state.change_of(name, |state| {
            state.enter(name, role, Stage::Ended);
            let own = state.role(name);
            (own.lost, own.status) = (Some(why), Some(RoleStatus::Lost));
            state.failure.get_or_insert(RunFailure { role: name.to_owned(), class, message });
        });
    }

    /// Returns the class of the failure that a role of `role`'s agent was lost.
    pub(super) fn class_of_loss(&self, role: &RolePlan) -> ErrorClass {
        match self.agent(&role.agent_id).map(|agent| agent.link().borrow().clone()) {
            Some(Link::Gone(_) | Link::Lost(_)) => ErrorClass::Unreachable,
            Some(Link::Up) | None => ErrorClass::Operation,
        }
    }

    async fn took_too_long(&self, here: &Here, name: &str, role: &RolePlan) {
        let after = role.timeout_seconds.unwrap_or_default();
        let gist = format!("{name} still ran after its timeout of {after} s");
        let message = with_lines(gist, &here.last_stderr(name));
        let failure = RunFailure { role: name.to_owned(), class: ErrorClass::Timeout, message };
        if role.allow_failure {
            self.excuse(&failure).await;
        }
        self.state.change_of(name, |state| {
            state.role(name).status = Some(RoleStatus::Timeout);
            if !role.allow_failure {
                state.failure.get_or_insert(failure);
            }
        });
        self.ask_to_stop(name, StopReason::Timeout);
    }

    /// Asks a role that runs to stop, unless it was asked already.
    pub(super) fn ask_to_stop(&self, name: &str, reason: StopReason) {
        let kill = *self.kill.borrow();
        let stopper = self.state.change_of(name, |state| {
            let role = state.role(name);
            match (role.stage, role.asked) {
                (Stage::Running, None) => {
                    role.asked = Some(reason);
                    role.stopper.clone()
                }
                (Stage::Waiting | Stage::Starting | Stage::Running | Stage::Ended, _) => None,
            }
        });
        if let Some(stopper) = stopper {
            stopper.stop(reason, kill);
        }
    }

    async fn tell_logs(&self, logs: &mut Logs) {
        for event in logs.grown() {
            self.announcer.log(event, None).await;
        }
    }
}

/// How much of a role's logs the journal points to.
struct Logs {
    role: Option<TaskName>,
    agent: HostName,
    streams: [(Stream, PathBuf, String, u64); 2],
}

impl Logs {
    fn new(here: &Here, role: &str, agent: HostName) -> Self {
        let stream = |stream: Stream| {
            let file = format!("{}.log", stream.as_str());
            (stream, here.role(role).join(&file), format!("roles/{role}/{file}"), 0)
        };
        // Role names are task names by their grammar.
        let role = TaskName::parse(role).ok();
        Self { role, agent, streams: [stream(Stream::Stdout), stream(Stream::Stderr)] }
    }

    /// Returns the events that point to what was written since.
    fn grown(&mut self) -> Vec<EventKind> {
        let Some(role) = &self.role else { return Vec::new() };
        let mut events = Vec::new();
        for (stream, path, file, told) in &mut self.streams {
            let len = path.metadata().map_or(0, |found| found.len());
            if len > *told {
                events.push(EventKind::Log {
                    task: role.clone(),
                    host: Some(self.agent.clone()),
                    attempt: 1,
                    stream: *stream,
                    file: file.clone(),
                    offset: *told,
                    len: len - *told,
                });
                *told = len;
            }
        }
        events
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

//! What a journal says of roles, for the driver that comes after a lost one.

use stead_engine::compile::runs::{render_role, render_workdir};
use stead_model::bundle::{ArtifactMeta, ReadyMeta, RoleStatus, StopMeta};
use stead_model::event::{Event, EventKind};
use stead_model::role::{Program, RoleExit, StopReason};
use stead_model::run_plan::RunPlan;

use super::state::{Inner, RoleState, Stage, judge};
use super::{Here, RunSurroundings};

impl RunSurroundings {
    /// Takes in an event that an earlier driver recorded: what it started has ended, or is lost.
    pub fn recall(&self, event: &Event) {
        self.state.change(|state| {
            if let Some(role) = recall(state, event) {
                settle(state, &self.run, role);
            }
        });
    }

    /// Fills in where roles ran and what is wanted of them, as far as their agents and the journal tell.
    pub(super) fn fill_in_recalled(&self, here: &Here) {
        for (name, role) in self.run.in_start_order() {
            let known = self.state.look(|state| state.roles.get(name).cloned()).unwrap_or_default();
            let (true, Ok(names)) = (known.has_run(), self.names_of(here, role, String::new())) else {
                continue;
            };
            let workdir = match known.workdir {
                Some(workdir) => Some(workdir),
                None => render_workdir(&self.plan, name, &names).ok().flatten(),
            };
            let names = stead_engine::compile::runs::RunNames {
                workdir: workdir.clone().unwrap_or_default(),
                ..names
            };
            let wanted = render_role(&self.plan, name, &names).ok().map(|rendered| rendered.artifacts);
            self.state.change_of(name, |state| {
                let own = state.role(name);
                (own.workdir, own.artifacts_wanted) = (workdir, wanted);
            });
        }
    }
}

/// Takes an event in; returns the role that it was about.
fn recall<'a>(state: &mut Inner, event: &'a Event) -> Option<&'a str> {
    if let EventKind::RoleStarted(started) = &event.kind {
        *state.role(&started.role) = RoleState {
            stage: Stage::Ended,
            argv: Some(started.argv.clone()),
            workdir: started.workdir.clone(),
            program: started
                .program
                .clone()
                .map(|path| Program { path, sha256: started.program_sha256.clone() }),
            pid: Some(started.pid),
            started_at: Some(event.t),
            ..RoleState::default()
        };
        Some(&started.role)
    } else if let EventKind::RoleReady(ready) = &event.kind {
        state.role(&ready.role).ready =
            Some(ReadyMeta { by: ready.by.clone(), after_ms: ready.after_ms, values: ready.values.clone() });
        Some(&ready.role)
    } else if let EventKind::RoleStop(stop) = &event.kind {
        let meta = StopMeta { signal: stop.signal.clone(), reason: stop.reason.clone(), killed: false };
        let own = state.role(&stop.role);
        own.asked = own.asked.or(reason_of(&stop.reason));
        own.stop.get_or_insert(meta);
        Some(&stop.role)
    } else if let EventKind::RoleExited(exited) = &event.kind {
        state.role(&exited.role).exit = Some(RoleExit {
            exit_code: exited.exit_code,
            signal: exited.signal.clone(),
            at: event.t,
            duration_ms: exited.duration_ms,
            ..RoleExit::default()
        });
        Some(&exited.role)
    } else if let EventKind::Artifact(artifact) = &event.kind {
        let meta =
            ArtifactMeta { path: artifact.path.clone(), bytes: artifact.bytes, sha256: artifact.sha256 };
        state.role(&artifact.role).keep(meta);
        Some(&artifact.role)
    } else {
        None
    }
}

/// Decides what became of `name`, if it was started.
fn settle(state: &mut Inner, run: &RunPlan, name: &str) {
    let own = state.roles.get_mut(name).filter(|own| own.started_at.is_some());
    let (Some(own), Some(role)) = (own, run.roles.get(name)) else { return };
    own.status = Some(match &own.exit {
        Some(exit) => judge(name, role, own.asked, exit, true).status,
        None => RoleStatus::Lost,
    });
}

fn reason_of(word: &str) -> Option<StopReason> {
    serde_json::from_value(word.into()).ok()
}

//! `R_start`: a role is filled in, started and watched from then on.

use std::sync::Arc;

use stead_engine::compile::runs::{RenderedRole, render_role};
use stead_model::event::{EventKind, RoleStarted};
use stead_model::report::Warning;
use stead_model::role::{ProbeFrom, ProgramQuestion, RoleEvent, RoleOrder};
use stead_model::run_plan::RolePlan;
use stead_runner::agent::{RunningRole, look_before_start};
use stead_runner::operation::OpError;
use tokio::sync::oneshot;

use super::state::{Inner, Stage};
use super::{Here, RunSurroundings, make_directory};

impl RunSurroundings {
    /// Starts a role once it is its turn.
    pub(super) async fn start(self: &Arc<Self>, here: &Here, name: &str) -> Result<(), OpError> {
        if self.afterwards {
            return Err(OpError::permanent("roles of a run whose driver was lost are not started again"));
        }
        let role = self.role(name)?;
        if !self.turn_of(name, role).await? {
            return Ok(());
        }
        self.state.change_of(name, |_| ());
        // Whatever becomes of this phase, what was started is watched and stopped.
        let (tell, told) = oneshot::channel();
        let (this, here, name) = (Arc::clone(self), here.clone(), name.to_owned());
        self.spawn(async move {
            let began = this.begin(&here, &name).await;
            if began.is_err() {
                this.ended(&name);
            }
            let (began, running) = match began {
                Ok(running) => (Ok(()), Some(running)),
                Err(error) => (Err(error), None),
            };
            // A phase that was stopped does not listen any more.
            drop(tell.send(began));
            if let Some(running) = running {
                this.watch_role(&here, &name, running).await;
            }
        });
        told.await.unwrap_or_else(|_| Err(OpError::operation("the start was cut off")))
    }

    /// Waits until it is the turn of `name`: those of its role before it run or ran, and few enough of them run. Returns
    /// false if the run has ended in order meanwhile.
    async fn turn_of(&self, name: &str, role: &RolePlan) -> Result<bool, OpError> {
        if let Some(earlier) = self.earlier.get(name) {
            let is_out_of_the_way = |state: &mut Inner| {
                let stopped = self.stopped_before(state, name);
                stopped.or_else(|| (state.stage(earlier) > Stage::Starting).then_some(Ok(true)))
            };
            if !self.state.wait_for(earlier, is_out_of_the_way).await? {
                return Ok(false);
            }
        }
        // Only one of each role comes this far at a time.
        let takes_its_place = |state: &mut Inner| {
            if let Some(stopped) = self.stopped_before(state, name) {
                return Some(stopped);
            }
            // In the same breath: nobody else gets the place.
            state.has_room(role).then(|| {
                state.enter(name, role, Stage::Starting);
                Ok(true)
            })
        };
        self.state.wait(takes_its_place).await
    }

    /// Returns why `name` is not started any more, if that is so.
    fn stopped_before(&self, state: &mut Inner, name: &str) -> Option<Result<bool, OpError>> {
        match state.failure_of(&self.run, name) {
            Some(failure) => Some(Err(failure.into_error())),
            None => state.ended_by.is_some().then_some(Ok(false)),
        }
    }

    /// Takes down that a role has ended that could not be started.
    fn ended(&self, name: &str) {
        if let Ok(role) = self.role(name) {
            self.state.change_of(name, |state| state.enter(name, role, Stage::Ended));
        }
    }

    async fn begin(&self, here: &Here, name: &str) -> Result<RunningRole, OpError> {
        let role = self.role(name)?;
        let agent = self.agent_of(role)?;
        let workdir = self.workdir_of(name)?;
        let names = self.names_of(here, role, workdir.clone())?;
        let rendered =
            render_role(&self.plan, name, &names).map_err(|error| OpError::invalid(error.to_string()))?;
        let RenderedRole { argv, env, ready, artifacts } = rendered;
        let question = ProgramQuestion {
            name: argv.first().cloned().unwrap_or_default(),
            path: env.get("PATH").cloned(),
            workdir: workdir.clone(),
        };
        let program = agent.find_program(&question).await;
        let program =
            program.map_err(|error| error.within(format_args!("{name} on agent `{}`", role.agent_id)))?;
        self.state.change_of(name, |state| {
            let role = state.role(name);
            (role.argv, role.artifacts_wanted) = (Some(argv.clone()), Some(artifacts));
            role.program = Some(program.clone());
        });
        let mut ready = ready;
        let mut driver = None;
        if let Some(ready) = ready.as_mut().filter(|ready| ready.from == ProbeFrom::Driver) {
            let looks = self.driver_agent(here).await?;
            let warning = look_before_start(&*looks, ready).await.map_err(|error| error.within(name))?;
            if let Some(warning) = warning {
                self.announcer.warn(warning.of_role(name)).await;
            }
            driver = Some(looks);
        }
        let logs = here.role(name);
        make_directory(&logs)?;
        let order = RoleOrder {
            run: here.run_id.clone(),
            role: name.to_owned(),
            kind: role.kind,
            argv,
            program: program.path,
            env,
            hidden_env: self.run.hidden_env.clone(),
            workdir: workdir.clone(),
            secrets: self.secrets.values().cloned().collect(),
            ready: ready.clone(),
            stop: role.stop,
        };
        let mut running =
            agent.start(order, &here.work()?, &logs).await.map_err(|error| error.within(name))?;
        if let (Some(driver), Some(ready)) = (driver, &ready) {
            running = running.looked_at_from(driver, ready, &workdir);
        }
        self.hear_of_start(name, role, running).await
    }

    /// Waits for the first word of a role: it runs, or it does not.
    async fn hear_of_start(
        &self,
        name: &str,
        role: &RolePlan,
        mut running: RunningRole,
    ) -> Result<RunningRole, OpError> {
        loop {
            match running.next_event().await {
                Some(RoleEvent::Started { pid, at }) => {
                    let own = self.state.look(|state| state.roles.get(name).cloned()).unwrap_or_default();
                    let (program, program_sha256) =
                        own.program.map(|program| (program.path, program.sha256)).unzip();
                    let started = RoleStarted {
                        role: name.to_owned(),
                        agent: role.agent_id.to_string(),
                        pid,
                        argv: own.argv.unwrap_or_default(),
                        workdir: own.workdir,
                        program,
                        program_sha256: program_sha256.flatten(),
                    };
                    self.announcer.say(EventKind::RoleStarted(Box::new(started))).await;
                    self.state.change_of(name, |state| {
                        state.enter(name, role, Stage::Running);
                        let own = state.role(name);
                        (own.pid, own.started_at) = (Some(pid), Some(at));
                        own.stopper = Some(Arc::clone(&running.stop));
                    });
                    return Ok(running);
                }
                Some(RoleEvent::NotStarted { reason }) => {
                    return Err(OpError::operation(format!("{name} could not be started: {reason}")));
                }
                Some(RoleEvent::Warning { code, text }) => {
                    self.announcer.warn(Warning::new(code, text).of_role(name)).await;
                }
                Some(
                    RoleEvent::Ready { .. }
                    | RoleEvent::NotReady { .. }
                    | RoleEvent::Logged { .. }
                    | RoleEvent::Stopping { .. }
                    | RoleEvent::Exited(_),
                ) => {
                    return Err(OpError::operation(format!("{name} spoke before it was started")));
                }
                None => {
                    let message = format!("{name} was lost before it was started");
                    return Err(OpError::new(self.class_of_loss(role), message));
                }
            }
        }
    }
}

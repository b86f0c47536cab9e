//! `stage`: what roles need is brought to their agents, and what they count on there is checked. Nothing is started.

use std::collections::BTreeMap;
use std::sync::Arc;

use stead_engine::compile::runs::{AgentNames, RoleNames, RunNames, render_program, render_workdir};
use stead_model::plan::Digest;
use stead_model::role::{FoundKind, ProgramQuestion, RunWork};
use stead_model::run_plan::{Distribution, PROFILE_FILE, ProfilePlan, RolePlan};
use stead_model::transport::TransportSpec;
use stead_runner::agent::Agent;
use stead_runner::operation::OpError;
use stead_runner::transport::Source;

use crate::together::all_of;

use super::{Here, RunSurroundings, in_one};

impl RunSurroundings {
    /// Stages every role at once; all problems are told.
    pub(super) async fn stage(&self, here: &Here) -> Result<(), OpError> {
        let work = here.work()?;
        let problems: Vec<OpError> =
            all_of(self.run.in_start_order().map(|(name, role)| self.make_place(here, &work, name, role)))
                .await
                .into_iter()
                .filter_map(Result::err)
                .collect();
        in_one(problems)?;
        let problems: Vec<OpError> =
            all_of(self.run.in_start_order().map(|(name, role)| self.stage_role(here, name, role)))
                .await
                .into_iter()
                .filter_map(Result::err)
                .collect();
        in_one(problems)?;
        if let Err(error) = self.write_versions(here) {
            self.say_incomplete(&error).await;
        }
        self.fetch_preinstalled_profile(here).await
    }

    /// Gives a role its workdir.
    async fn make_place(
        &self,
        here: &Here,
        work: &RunWork,
        name: &str,
        role: &RolePlan,
    ) -> Result<(), OpError> {
        let agent = self.agent_of(role)?;
        let names = self.names_of(here, role, String::new())?;
        let given =
            render_workdir(&self.plan, name, &names).map_err(|error| OpError::invalid(error.to_string()))?;
        let made = match given {
            Some(path) => agent.ensure_directory(&path).await.map(|()| path),
            None => agent.make_workdir(work, name).await,
        };
        let workdir = made.map_err(|error| error.within(format_args!("the workdir of {name}")))?;
        self.state.change_of(name, |state| state.role(name).workdir = Some(workdir));
        Ok(())
    }

    async fn stage_role(&self, here: &Here, name: &str, role: &RolePlan) -> Result<(), OpError> {
        let agent = self.agent_of(role)?;
        let workdir = self.workdir_of(name)?;
        if let Some(profile) = &self.run.profile {
            stage_profile(&*agent, profile, &workdir).await.map_err(|error| error.within(name))?;
        }
        for file in &role.files {
            let to = format!("{workdir}/{}", file.to);
            let put = agent.put(Source::File(file.source.clone()), &to, Some(file.mode)).await;
            let arrived = put.map_err(|error| error.within(format_args!("{name}: file {}", file.from)))?;
            if arrived != file.sha256 {
                return Err(OpError::operation(format!(
                    "{name}: file {} has changed since the run was planned: planned {}, staged {arrived}",
                    file.from, file.sha256
                )));
            }
        }
        if let Some(address) = role.bind_ip
            && !agent.has_address(address).await.map_err(|error| error.within(name))?
        {
            let message = format!("{name}: {address} is no address of agent `{}`", role.agent_id);
            return Err(OpError::operation(message));
        }
        self.find_program(here, name, role, &*agent, workdir).await
    }

    /// Looks for the program of a role, unless its name is known only when it starts.
    async fn find_program(
        &self,
        here: &Here,
        name: &str,
        role: &RolePlan,
        agent: &dyn Agent,
        workdir: String,
    ) -> Result<(), OpError> {
        let names = self.names_of(here, role, workdir.clone())?;
        // What a needed role says of itself is not known yet; if the program hangs on it, the start tells.
        let Ok((program, path)) = render_program(&self.plan, name, &names) else { return Ok(()) };
        let found = agent.find_program(&ProgramQuestion { name: program, path, workdir }).await;
        let found =
            found.map_err(|error| error.within(format_args!("{name} on agent `{}`", role.agent_id)))?;
        self.state.change_of(name, |state| state.role(name).program = Some(found));
        Ok(())
    }

    /// Reads the profile that agents have already from the first of them into the bundle.
    async fn fetch_preinstalled_profile(&self, here: &Here) -> Result<(), OpError> {
        let Some(profile) = self.run.profile.as_ref() else { return Ok(()) };
        let first = self.run.in_start_order().next();
        let (Distribution::Preinstalled, Some((_, role))) = (profile.distribution, first) else {
            return Ok(());
        };
        let agent = self.agent_of(role)?;
        agent.fetch(&profile.path, &here.bundle.join(PROFILE_FILE)).await?;
        Ok(())
    }

    /// Returns where a staged role runs.
    pub(super) fn workdir_of(&self, name: &str) -> Result<String, OpError> {
        let workdir = self.state.look(|state| state.roles.get(name).and_then(|role| role.workdir.clone()));
        workdir.ok_or_else(|| OpError::operation(format!("{name} has no workdir")))
    }

    /// Returns what is known now to fill in a role that runs in `workdir`.
    pub(super) fn names_of(
        &self,
        here: &Here,
        role: &RolePlan,
        workdir: String,
    ) -> Result<RunNames, OpError> {
        let about = self.agent_of(role)?;
        let about = about.about();
        let roles: BTreeMap<String, RoleNames> = self.state.look(|state| {
            let known = self.run.in_start_order().filter_map(|(name, plan)| {
                let role = state.roles.get(name)?;
                let names = RoleNames {
                    host: self.host_of(plan),
                    workdir: role.workdir.clone()?,
                    ready: role.ready.as_ref().map(|ready| ready.values.clone()),
                };
                Some((name.to_owned(), names))
            });
            known.collect()
        });
        let profile_path = self.run.profile.as_ref().map(|profile| match profile.distribution {
            Distribution::Preinstalled => profile.path.clone(),
            Distribution::Inline | Distribution::Push => format!("{workdir}/{PROFILE_FILE}"),
        });
        Ok(RunNames {
            run_id: here.run_id.clone(),
            agent: AgentNames { host: self.host_of(role), os: about.os.clone() },
            workdir,
            profile_path,
            roles,
            secrets: self.secrets.clone(),
        })
    }

    /// Returns the machine of a role as others reach it.
    fn host_of(&self, role: &RolePlan) -> String {
        match self.run.agents.get(&role.agent_id).map(|agent| &agent.host.transport) {
            Some(TransportSpec::Ssh(ssh)) => ssh.host.clone(),
            Some(TransportSpec::Local) | None => "127.0.0.1".to_owned(),
        }
    }
}

async fn stage_profile(agent: &dyn Agent, profile: &ProfilePlan, workdir: &str) -> Result<(), OpError> {
    if profile.distribution == Distribution::Preinstalled {
        let found = agent.stat(&profile.path, true).await?;
        let file = found.filter(|found| found.kind == FoundKind::File);
        let file = file.ok_or_else(|| {
            OpError::operation(format!("profile {} is not there and should be preinstalled", profile.path))
        })?;
        let actual = file.sha256.as_deref().and_then(Digest::parse);
        if let Some(expected) = profile.checksum
            && actual != Some(expected)
        {
            let actual = file.sha256.as_deref().unwrap_or("unknown");
            let message =
                format!("profile {}: expected sha256:{expected}, actual sha256:{actual}", profile.path);
            return Err(OpError::operation(message));
        }
        return Ok(());
    }
    let content = profile.content.as_ref().ok_or_else(|| OpError::operation("the profile was not read"))?;
    let to = format!("{workdir}/{PROFILE_FILE}");
    let arrived = agent.put(Source::Bytes(Arc::clone(content)), &to, None).await?;
    match arrived == Digest::of(content) {
        true => Ok(()),
        false => Err(OpError::operation("the profile did not arrive as it was sent")),
    }
}

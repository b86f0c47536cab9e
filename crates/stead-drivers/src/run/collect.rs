//! `collect`: what roles left is brought into the bundle, the same bytes as on their agents; then their places go.

use std::path::{Component, Path};
use std::sync::Arc;
use std::time::Duration;

use stead_model::bundle::ArtifactMeta;
use stead_model::event::{Artifact, EventKind};
use stead_model::plan::Digest;
use stead_model::report::Warning;
use stead_model::role::{ArtifactQuestion, Found, FoundKind, LeftRole};
use stead_model::run_plan::{KeepWorkdir, RolePlan};
use stead_model::{ErrorClass, RunStatus};
use stead_runner::agent::{Agent, Link};
use stead_runner::operation::OpError;

use super::{Here, RunSurroundings, futures_of};

/// How long collecting may take after an abnormal end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Names in a role's directory that are no artifact's.
const RESERVED: [&str; 3] = ["stdout.log", "stderr.log", "role_meta.json"];

impl RunSurroundings {
    /// Collects what every role left, and removes workdirs.
    pub(super) async fn collect(self: &Arc<Self>, here: &Here, status: &RunStatus) -> Result<(), OpError> {
        if self.afterwards {
            self.find_leftovers(here).await?;
        }
        self.stop_all(status).await;
        let collecting = self.collect_all(here);
        let collected = if *status == RunStatus::Success {
            collecting.await
        } else {
            match tokio::time::timeout(PATIENCE, collecting).await {
                Ok(collected) => collected,
                Err(_) => {
                    let text = format!("what roles left was not collected within {} s", PATIENCE.as_secs());
                    self.announcer.warn(Warning::new("run/collect-incomplete", text)).await;
                    Ok(())
                }
            }
        };
        let failed = *status != RunStatus::Success || collected.is_err();
        let removed = self.remove_places(here, failed).await;
        self.ask_programs().await;
        self.close().await;
        collected.and(removed)
    }

    /// Finds out which `stead` supervised where: hashing a program takes a moment that no phase should wait for.
    async fn ask_programs(&self) {
        let agents = self.agents.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let asking = agents.into_iter().map(|(id, agent)| async move {
            if !matches!(link_of(&*agent), Link::Gone(_)) {
                self.remember_program(&id, agent.stead_sha256().await.ok());
            }
        });
        futures_of(asking).await;
    }

    async fn collect_all(&self, here: &Here) -> Result<(), OpError> {
        let collecting = self.run.in_start_order().map(|(name, role)| self.collect_role(here, name, role));
        let problems: Vec<OpError> =
            futures_of(collecting).await.into_iter().filter_map(Result::err).collect();
        let Some(first) = problems.first() else { return Ok(()) };
        let messages: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
        Err(OpError::new(first.class, messages.join("; ")))
    }

    async fn collect_role(&self, here: &Here, name: &str, role: &RolePlan) -> Result<(), OpError> {
        let known = self.state.look(|state| state.roles.get(name).cloned()).unwrap_or_default();
        // One that was never started left nothing.
        let (Some(started_at), Some(workdir)) = (known.started_at, known.workdir) else { return Ok(()) };
        let agent = self.agent_of(role)?;
        if let Link::Gone(why) = link_of(&*agent) {
            // That the agent is gone was told already.
            let text =
                format!("what {name} left cannot be collected: agent `{}` was lost: {why}", role.agent_id);
            self.announcer.warn(Warning::new("run/collect-incomplete", text).of_role(name)).await;
            return Ok(());
        }
        let wanted = known.artifacts_wanted.unwrap_or_else(|| role.artifacts.clone());
        let question = ArtifactQuestion {
            workdir: workdir.clone(),
            globs: wanted.iter().map(|artifact| artifact.path.clone()).collect(),
            newer_than: role.workdir.is_some().then_some(started_at),
        };
        let found = agent.artifacts(&question).await;
        let found = found.map_err(|error| error.within(format_args!("the artifacts of {name}")))?;
        let mut room = self.run.max_bytes;
        let mut arrived = vec![false; wanted.len()];
        for found in found {
            if self.collect_file(here, name, &*agent, &workdir, &found, &mut room).await? {
                for glob in &found.globs {
                    arrived.get_mut(*glob).into_iter().for_each(|hit| *hit = true);
                }
            }
        }
        let missing = wanted.iter().zip(&arrived).filter(|(artifact, hit)| artifact.required && !**hit);
        let missing: Vec<&str> = missing.map(|(artifact, _)| artifact.path.as_str()).collect();
        match missing.is_empty() {
            true => Ok(()),
            false => Err(OpError::operation(format!(
                "{name} left no required artifact `{}`",
                missing.join("`, `")
            ))),
        }
    }

    /// Brings one file into the bundle, unless it has no place there; returns whether it is there.
    async fn collect_file(
        &self,
        here: &Here,
        name: &str,
        agent: &dyn Agent,
        workdir: &str,
        found: &Found,
        room: &mut u64,
    ) -> Result<bool, OpError> {
        let path = &found.path;
        let left_out = match found.kind {
            FoundKind::Directory => return Ok(false),
            FoundKind::File if RESERVED.contains(&path.as_str()) => {
                Some(("run/artifact-skipped", "its name is taken by the bundle itself".to_owned()))
            }
            FoundKind::File if !is_inside(path) => {
                Some(("run/artifact-skipped", "it leads out of the role's directory".to_owned()))
            }
            FoundKind::File if found.bytes > *room => Some((
                "run/artifact-too-big",
                format!("its {} bytes are beyond the limit of {} per role", found.bytes, self.run.max_bytes),
            )),
            FoundKind::File => None,
            FoundKind::Stale => Some(("run/stale-artifact", "it is older than the role's start".to_owned())),
            FoundKind::Symlink => Some(("run/artifact-skipped", "it is a symbolic link".to_owned())),
            FoundKind::Special => Some(("run/artifact-skipped", "it is no regular file".to_owned())),
            FoundKind::BadName => Some(("run/artifact-skipped", "its name is not text".to_owned())),
            FoundKind::Unreadable => Some(("run/artifact-skipped", "it cannot be read".to_owned())),
        };
        if let Some((code, why)) = left_out {
            let text = format!("{path} of {name} was not collected: {why}");
            self.announcer.warn(Warning::new(code, text).of_role(name)).await;
            return Ok(false);
        }
        let to = here.role(name).join(path);
        if let Some(parent) = to.parent() {
            std::fs::create_dir_all(parent)
                .map_err(|error| OpError::io(format_args!("making {}", parent.display()), &error))?;
        }
        let fetched = agent.fetch(&format!("{workdir}/{path}"), &to).await;
        let digest = fetched.map_err(|error| error.within(format_args!("collecting {path} of {name}")))?;
        if Digest::parse(&found.sha256) != Some(digest) {
            return Err(OpError::operation(format!(
                "{path} of {name} did not arrive as it is on its agent: {} there, {digest} here",
                found.sha256
            )));
        }
        *room -= found.bytes.min(*room);
        let artifact = ArtifactMeta { path: path.clone(), bytes: found.bytes, sha256: digest };
        let event =
            Artifact { role: name.to_owned(), path: path.clone(), bytes: found.bytes, sha256: digest };
        self.announcer.say(EventKind::Artifact(Box::new(event))).await;
        self.state.change(|state| {
            let artifacts = &mut state.role(name).artifacts;
            artifacts.retain(|known| known.path != artifact.path);
            artifacts.push(artifact);
            artifacts.sort();
        });
        Ok(true)
    }

    /// Removes what the run has on its agents, unless it is to stay.
    async fn remove_places(&self, here: &Here, failed: bool) -> Result<(), OpError> {
        let keep = match self.run.keep_workdir {
            KeepWorkdir::Never => false,
            KeepWorkdir::OnFailure => failed,
            KeepWorkdir::Always => true,
        };
        if keep {
            return Ok(());
        }
        let work = here.work()?;
        let agents = self.agents.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let removing = agents.into_iter().map(|(id, agent)| {
            let work = &work;
            async move {
                if matches!(link_of(&*agent), Link::Gone(_)) {
                    return Ok(());
                }
                agent.remove_work(work).await.map_err(|error| error.within(format_args!("agent `{id}`")))
            }
        });
        let mut result = Ok(());
        for removed in futures_of(removing).await {
            match removed {
                Err(error) if error.class == ErrorClass::Unreachable => {}
                other => result = result.and(other),
            }
        }
        result
    }

    /// Takes up what an earlier driver of the run left on its agents: logs, ends and workdirs of its roles.
    async fn find_leftovers(self: &Arc<Self>, here: &Here) -> Result<(), OpError> {
        let work = here.work()?;
        for (id, error) in self.connect_all(here).await {
            let text = format!("what agent `{id}` still holds cannot be collected: {}", error.message);
            self.announcer.warn(Warning::new("run/collect-incomplete", text)).await;
        }
        let agents = self.agents.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        for (id, agent) in agents {
            let left = match agent.leftovers(&work).await {
                Ok(left) => left,
                Err(error) => {
                    let text = format!("what agent `{id}` still holds is not known: {}", error.message);
                    self.announcer.warn(Warning::new("run/collect-incomplete", text)).await;
                    continue;
                }
            };
            for role in left.roles {
                self.take_up(here, &*agent, role).await;
            }
        }
        self.fill_in_recalled(here);
        Ok(())
    }

    async fn take_up(&self, here: &Here, agent: &dyn Agent, left: LeftRole) {
        let LeftRole { role: name, workdir, stdout, stderr, exit } = left;
        if !self.run.roles.contains_key(&name) {
            return;
        }
        for (from, file) in [(stdout, "stdout.log"), (stderr, "stderr.log")] {
            let Some(from) = from else { continue };
            if let Err(error) = agent.fetch(&from, &here.role(&name).join(file)).await {
                let text = format!("{file} of {name} cannot be collected: {}", error.message);
                self.announcer.warn(Warning::new("run/collect-incomplete", text).of_role(&name)).await;
            }
        }
        self.state.change(|state| {
            let own = state.role(&name);
            own.workdir = workdir.or_else(|| own.workdir.take());
            own.exit = own.exit.take().or(exit);
        });
    }
}

fn link_of(agent: &dyn Agent) -> Link {
    agent.link().borrow().clone()
}

fn is_inside(path: &str) -> bool {
    Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

//! `collect`: what roles left is brought into the bundle, the same bytes as on their agents.

use std::path::{Component, Path};
use std::sync::Arc;
use std::time::Duration;

use stead_model::bundle::{ArtifactMeta, ROLE_FILES, RoleStatus};
use stead_model::event::{Artifact, EventKind};
use stead_model::plan::Digest;
use stead_model::report::Warning;
use stead_model::role::{ArtifactQuestion, Found, FoundKind, LeftRole};
use stead_model::run_plan::{Analyze, KeepWorkdir, RolePlan};
use stead_model::{ErrorClass, RunStatus};
use stead_runner::agent::{Agent, Link};
use stead_runner::operation::OpError;

use crate::together::all_of;

use super::state::{Stage, with_lines};
use super::{Here, RunSurroundings, in_one, make_directory};

/// How long collecting may take after an abnormal end.
const PATIENCE: Duration = Duration::from_secs(60);

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
        self.ask_programs().await;
        // Agents are asked no more, not even by a driver that comes later.
        if let Err(error) = self.write_versions(here) {
            self.say_incomplete(&error).await;
        }
        let failed = *status != RunStatus::Success || collected.is_err();
        // Whether a run that went well so far fails is known after its last phase.
        let may_fail = self.run.analyze != Analyze::No || self.run.diff.is_some();
        if self.run.keep_workdir == KeepWorkdir::OnFailure && !failed && may_fail {
            return Ok(());
        }
        let left = self.leave_places(here, failed).await;
        collected.and(left)
    }

    /// Finds out which `stead` supervised where: hashing a program takes a moment that no phase should wait for.
    async fn ask_programs(&self) {
        let agents = self.agents.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let asking = agents.into_iter().map(|(id, agent)| async move {
            if !matches!(link_of(&*agent), Link::Gone(_)) {
                self.remember_program(&id, agent.stead_sha256().await.ok());
            }
        });
        all_of(asking).await;
    }

    async fn collect_all(&self, here: &Here) -> Result<(), OpError> {
        let collecting = self.run.in_start_order().map(|(name, role)| self.collect_role(here, name, role));
        in_one(all_of(collecting).await.into_iter().filter_map(Result::err).collect())
    }

    async fn collect_role(&self, here: &Here, name: &str, role: &RolePlan) -> Result<(), OpError> {
        let known = self.state.look(|state| state.roles.get(name).cloned()).unwrap_or_default();
        // One that was never started left nothing.
        let (true, Some(workdir)) = (known.has_run(), known.workdir) else { return Ok(()) };
        let agent = self.agent_of(role)?;
        if let Link::Gone(why) = link_of(&*agent) {
            // That the agent is gone was told already.
            let text =
                format!("what {name} left cannot be collected: agent `{}` was lost: {why}", role.agent_id);
            self.announcer.warn(Warning::new("run/collect-incomplete", text).of_role(name)).await;
            return Ok(());
        }
        let newer_than = match (&role.workdir, known.started_at) {
            (None, _) => None,
            (Some(_), Some(started_at)) => Some(started_at),
            (Some(_), None) => Some(here.started_at()?),
        };
        let wanted = known.artifacts_wanted.unwrap_or_else(|| role.artifacts.clone());
        let question = ArtifactQuestion {
            workdir: workdir.clone(),
            globs: wanted.iter().map(|artifact| artifact.path.clone()).collect(),
            newer_than,
            max_bytes: self.run.max_bytes,
        };
        let found = agent.artifacts(&question).await;
        let found = found.map_err(|error| error.within(format_args!("the artifacts of {name}")))?;
        let mut room = self.run.max_bytes;
        let (mut arrived, mut left_out) = (vec![false; wanted.len()], vec![false; wanted.len()]);
        let mut problems = Vec::new();
        for found in found {
            let brought = self.collect_file(here, name, &*agent, &workdir, &found, &mut room).await;
            // One that could not be brought is told by its own error.
            let hits = if matches!(brought, Ok(false)) { &mut left_out } else { &mut arrived };
            for glob in &found.globs {
                hits.get_mut(*glob).into_iter().for_each(|hit| *hit = true);
            }
            let is_gone = brought.as_ref().is_err_and(|error| error.class == ErrorClass::Unreachable);
            problems.extend(brought.err());
            if is_gone {
                break;
            }
        }
        self.state.change_of(name, |state| state.role(name).collected = problems.is_empty());
        let missing = |was_left_out: bool| {
            let missing = wanted.iter().zip(arrived.iter().zip(&left_out));
            let missing =
                missing.filter(|(artifact, (hit, out))| artifact.required && !**hit && **out == was_left_out);
            missing.map(|(artifact, _)| artifact.path.as_str()).collect::<Vec<_>>().join("`, `")
        };
        let (not_there, not_taken) = (missing(false), missing(true));
        if !not_there.is_empty() {
            let gist = format!("{name} left no required artifact `{not_there}`");
            problems.push(OpError::operation(with_lines(gist, &here.last_stderr(name))));
        }
        if !not_taken.is_empty() {
            let gist =
                format!("what {name} left as `{not_taken}` is required and was left out, as was warned of");
            problems.push(OpError::operation(gist));
        }
        in_one(problems)
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
            FoundKind::File if is_reserved(path) => {
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
            make_directory(parent)?;
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
        self.state.change_of(name, |state| state.role(name).keep(artifact));
        Ok(true)
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
        let logged = here.role(&name).join("stdout.log").exists();
        self.state.change_of(&name, |state| {
            let own = state.role(&name);
            own.workdir = workdir.or_else(|| own.workdir.take());
            // Its supervisor knows better than the journal, which heard of it later and by another clock.
            if let Some(exit) = exit {
                own.started_at = Some(exit.started_at());
                own.exit = Some(exit);
            }
            // One of which the driver was lost before it could record the start ran all the same.
            if own.stage == Stage::Waiting && (own.started_at.is_some() || logged) {
                (own.stage, own.status) = (Stage::Ended, Some(RoleStatus::Lost));
            }
        });
    }
}

/// Whether a path in a role's directory is the bundle's own, or below what is.
fn is_reserved(path: &str) -> bool {
    path.split('/').next().is_some_and(|first| ROLE_FILES.contains(&first))
}

pub(super) fn link_of(agent: &dyn Agent) -> Link {
    agent.link().borrow().clone()
}

fn is_inside(path: &str) -> bool {
    Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

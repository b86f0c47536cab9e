//! The places where roles worked: removed when all they left is in the bundle, unless they are to stay.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use stead_model::report::Warning;
use stead_model::run_plan::KeepWorkdir;
use stead_model::{ErrorClass, HostName};
use stead_runner::agent::{Agent, Link};
use stead_runner::operation::OpError;

use crate::together::all_of;

use super::collect::link_of;
use super::{Here, RunSurroundings};

impl RunSurroundings {
    /// Leaves the agents: what the run has there is removed, or stays if that is wanted of a run that `failed` or not.
    /// Nothing happens the second time.
    pub(super) async fn leave_places(&self, here: &Here, failed: bool) -> Result<(), OpError> {
        let keep = match self.run.keep_workdir {
            KeepWorkdir::Never => false,
            KeepWorkdir::OnFailure => failed,
            KeepWorkdir::Always => true,
        };
        let work = here.work()?;
        let agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut open = self.not_collected();
        let is_there = |id: &HostName| agents.get(id).is_some_and(|agent| !is_gone(&**agent));
        open.retain(|id, _| !keep && is_there(id));
        for (role, workdir) in open.values().flatten() {
            let text =
                format!("what {role} left stays for a day in {workdir}: not all of it could be collected");
            self.announcer.warn(Warning::new("run/workdir-kept", text).of_role(role)).await;
        }
        let leaving = agents.into_iter().map(|(id, agent)| {
            let (work, stays) = (&work, open.contains_key(&id));
            async move {
                if stays || is_gone(&*agent) {
                    return Ok(());
                }
                let left = if keep { agent.keep_work(work).await } else { agent.remove_work(work).await };
                left.map_err(|error| error.within(format_args!("agent `{id}`")))
            }
        });
        let mut result = Ok(());
        for left in all_of(leaving).await {
            match left {
                Err(error) if error.class == ErrorClass::Unreachable => {}
                other => result = result.and(other),
            }
        }
        self.close().await;
        result
    }

    /// Returns the roles of which something is missing in the bundle that is in a workdir of the run, with the workdir, by
    /// agent.
    fn not_collected(&self) -> BTreeMap<HostName, Vec<(String, String)>> {
        let mut open: BTreeMap<HostName, Vec<(String, String)>> = BTreeMap::new();
        self.state.look(|state| {
            for (name, role) in self.run.in_start_order().filter(|(_, role)| role.workdir.is_none()) {
                let Some(own) = state.roles.get(name).filter(|own| own.has_run() && !own.collected) else {
                    continue;
                };
                if let Some(workdir) = &own.workdir {
                    open.entry(role.agent_id.clone()).or_default().push((name.to_owned(), workdir.clone()));
                }
            }
        });
        open
    }
}

fn is_gone(agent: &dyn Agent) -> bool {
    matches!(link_of(agent), Link::Gone(_))
}

//! The agents of a run: connected at once, watched until the end.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use stead_model::HostName;
use stead_model::event::{AgentBack, AgentConnected, AgentLost, EventKind};
use stead_model::inventory::Host;
use stead_model::role::RunWork;
use stead_model::run_plan::AgentPlan;
use stead_model::transport::TransportSpec;
use stead_runner::agent::{Agent, Link};
use stead_runner::operation::OpError;

use crate::together::all_of;

use super::record::AgentFacts;
use super::state::seconds;
use super::{Here, RunSurroundings, in_one};

/// Which agent is to be opened.
#[derive(Clone, Debug)]
pub struct AgentWish {
    /// Its id.
    pub id: HostName,
    /// How it is reached and where it works.
    pub plan: AgentPlan,
    /// What the run is called there.
    pub work: RunWork,
    /// How long roles there go on without hearing of their driver.
    pub lease: Duration,
}

/// An agent on its way.
pub type Opening = Pin<Box<dyn Future<Output = Result<Arc<dyn Agent>, OpError>> + Send>>;

/// Opens agents.
#[derive(Clone)]
pub struct AgentOpener(Arc<dyn Fn(AgentWish) -> Opening + Send + Sync>);

impl AgentOpener {
    /// Returns what opens agents with `open`.
    pub fn new(open: impl Fn(AgentWish) -> Opening + Send + Sync + 'static) -> Self {
        Self(Arc::new(open))
    }
}

impl fmt::Debug for AgentOpener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AgentOpener")
    }
}

impl RunSurroundings {
    /// Connects to every agent at once; those that cannot be reached are all named.
    pub(super) async fn init(self: &Arc<Self>, here: &Here) -> Result<(), OpError> {
        in_one(self.connect_all(here).await.into_iter().map(|(_, error)| error).collect())
    }

    /// Connects to every agent at once; returns those to which it could not, by id, and why.
    pub(super) async fn connect_all(self: &Arc<Self>, here: &Here) -> Vec<(HostName, OpError)> {
        let connecting = self.run.agents.iter().map(|(id, plan)| async move {
            let connected = self.connect(id, plan, here).await;
            connected.err().map(|error| (id.clone(), error))
        });
        all_of(connecting).await.into_iter().flatten().collect()
    }

    async fn connect(self: &Arc<Self>, id: &HostName, plan: &AgentPlan, here: &Here) -> Result<(), OpError> {
        let wish = AgentWish {
            id: id.clone(),
            plan: plan.clone(),
            work: here.work()?,
            lease: seconds(self.run.lease_seconds),
        };
        let opened = (self.opener.0)(wish).await;
        let agent =
            opened.map_err(|error| error.within(format_args!("agent `{id}` ({})", plan.transport)))?;
        let about = agent.about();
        let connected = AgentConnected {
            agent: id.to_string(),
            os: about.os.clone(),
            arch: about.arch.clone(),
            latency_ms: about.latency_ms,
            clock_offset_ms: about.clock_offset_ms,
            uploaded: about.uploaded,
        };
        let (link, warnings) = (agent.link(), about.warnings.clone());
        self.remember_agent(
            id.clone(),
            AgentFacts {
                host: about.host.clone(),
                os: about.os.clone(),
                arch: about.arch.clone(),
                clock_offset_ms: about.clock_offset_ms,
                stead_sha256: None,
            },
        );
        self.agents.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), agent);
        self.announcer.say(EventKind::AgentConnected(Box::new(connected))).await;
        for warning in warnings {
            self.announcer.warn(warning).await;
        }
        let (this, id) = (Arc::clone(self), id.clone());
        if let Some(agent) = self.agent(&id) {
            // Hashing begins now, and is asked for when roles have ended.
            self.spawn(async move { drop(agent.stead_sha256().await) });
        }
        self.spawn(async move { this.watch_link(&id, link).await });
        Ok(())
    }

    /// Tells when the connection to an agent is lost and when it is back. What becomes of its roles, their watchers tell.
    async fn watch_link(&self, id: &HostName, mut link: tokio::sync::watch::Receiver<Link>) {
        let mut is_lost = false;
        while link.changed().await.is_ok() {
            let now = link.borrow_and_update().clone();
            match (now, is_lost) {
                (Link::Lost(error) | Link::Gone(error), false) => {
                    is_lost = true;
                    let lost = AgentLost { agent: id.to_string(), error: Some(error) };
                    self.announcer.say(EventKind::AgentLost(Box::new(lost))).await;
                }
                (Link::Up, true) => {
                    is_lost = false;
                    let back = AgentBack { agent: id.to_string() };
                    self.announcer.say(EventKind::AgentBack(Box::new(back))).await;
                }
                (Link::Lost(_) | Link::Gone(_), true) | (Link::Up, false) => {}
            }
        }
    }

    /// Returns the agent of this machine, for looks from the driver.
    pub(super) async fn driver_agent(&self, here: &Here) -> Result<Arc<dyn Agent>, OpError> {
        let of_roles = self.run.agents.iter().find(|(_, plan)| plan.host.transport == TransportSpec::Local);
        if let Some(agent) = of_roles.and_then(|(id, _)| self.agent(id)) {
            return Ok(agent);
        }
        let work = here.work()?;
        let opened = self.driver.get_or_try_init(|| {
            let plan = AgentPlan { transport: "local".to_owned(), workdir: None, host: Host::default() };
            let lease = seconds(self.run.lease_seconds);
            (self.opener.0)(AgentWish { id: HostName::local(), plan, work, lease })
        });
        opened.await.map(Arc::clone)
    }
}

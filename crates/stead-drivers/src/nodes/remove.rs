//! `node.remove`: a machine is gone, with everything of it.

use stead_model::NodeName;
use stead_model::machine::{Machine, MachineId};
use stead_model::report::Warning;
use stead_model::time::Timestamp;
use stead_runner::machine::{Changed, MachineDriver, MachineError};
use stead_runner::operation::{OpContext, OpError, Outcome};
use tokio::time::timeout;

use super::NodesSurroundings;
use super::make::refused;

impl NodesSurroundings {
    /// Removes the machine of a node, and all that is remembered of it and of the nodes in it.
    ///
    /// With `made_here` only what this run made: the rest was there before. With `terminate` the node stops itself
    /// first.
    pub(super) async fn remove(
        &self,
        cx: &OpContext,
        name: &NodeName,
        made_here: bool,
        terminate: bool,
    ) -> Result<Outcome, OpError> {
        let entry = self.entry(name);
        let node = self.node(name.as_str()).ok();
        let driver = self.driver(&self.host_of(node.as_ref(), entry.as_ref()))?;
        let found = self
            .find_machine(&*driver, name, entry.as_ref().and_then(|entry| entry.machine_id.as_ref()))
            .await?;
        let made_here = made_here || self.parts.wishes.only_new;
        if made_here && found.as_ref().is_some_and(|machine| is_older(cx, machine)) {
            return Ok(Outcome::default());
        }
        if terminate
            && found.as_ref().is_some_and(|machine| machine.state.is_live())
            && let Err(error) = self.terminate(name).await
        {
            let text = format!("{name} was not asked to stop: {}", error.message);
            self.parts.announcer.warn(Warning::new("node/no-answer", text)).await;
        }
        let jti = entry.as_ref().and_then(|entry| entry.jti.clone());
        let may_have_tokens = match &entry {
            Some(entry) => self.may_have_tokens(cx, entry),
            // Nobody remembers what it was told.
            None => found.is_some(),
        };
        if (jti.is_some() || (may_have_tokens && self.has_tokens()))
            && let Err(error) = self.revoke_tokens(name, jti, None).await
        {
            // A site whose secrets cannot be read mints nothing either, and its nodes can go all the same.
            let text = format!("the tokens of {name} are not revoked: {}", error.message);
            self.parts.announcer.warn(Warning::new("node/not-revoked", text)).await;
        }
        let mut changed = false;
        if let Some(machine) = found {
            let limit = self.limit(name.as_str(), |limits| limits.destroy);
            let gone = timeout(limit, driver.destroy(&machine.id)).await.unwrap_or_else(|_| {
                let within = stead_model::duration::to_exact(limit);
                Err(MachineError::Timeout(format!("{name} was not removed within {within}")))
            });
            changed = gone.map_err(refused)? == Changed::Yes;
        }
        for inner in self.nodes_in(name) {
            self.forget(&inner, changed).await?;
        }
        self.unclaim(name);
        self.forget(name, changed).await?;
        Ok(Outcome { changed, ..Outcome::default() })
    }

    /// Returns the machine of a node, however much of it is there: the one that is remembered, else by its label.
    ///
    /// One that is remembered and carries another label is somebody else's: an error.
    pub(super) async fn find_machine(
        &self,
        driver: &dyn MachineDriver,
        name: &NodeName,
        known: Option<&MachineId>,
    ) -> Result<Option<Machine>, OpError> {
        if let Some(id) = known
            && let Some(machine) = self.remembered_machine(driver, name, id).await?
        {
            return Ok(Some(machine));
        }
        let machines = driver.list(&self.owner_scope()).await.map_err(refused)?;
        Ok(machines.into_iter().find(|machine| machine.owner.name() == name.as_str()))
    }

    /// Returns the machine that is remembered to be that of a node, if it is there.
    ///
    /// One that carries another label is somebody else's, or of this site under another name: an error.
    pub(super) async fn remembered_machine(
        &self,
        driver: &dyn MachineDriver,
        name: &NodeName,
        id: &MachineId,
    ) -> Result<Option<Machine>, OpError> {
        let Some(machine) = driver.inspect(id).await.map_err(refused)? else { return Ok(None) };
        let own = self.owner(name.as_str())?;
        if machine.owner == own {
            return Ok(Some(machine));
        }
        let what = format!("machine {id}, which is {},", machine.owner);
        Err(refused(MachineError::Foreign { what, owner: own.to_string() }))
    }

    /// Returns the nodes that are remembered to be in `name`, however deep, innermost first.
    pub(super) fn nodes_in(&self, name: &NodeName) -> Vec<NodeName> {
        self.parts.memory.look(|state| {
            let mut found = vec![name.clone()];
            let mut next = 0;
            while let Some(parent) = found.get(next).cloned() {
                let inner = state.nodes.iter().filter(|(_, entry)| entry.parent.as_ref() == Some(&parent));
                let inner: Vec<NodeName> = inner.map(|(name, _)| name.clone()).collect();
                // A damaged file may say that nodes are in each other.
                found.extend(inner.into_iter().filter(|name| !found.contains(name)).collect::<Vec<_>>());
                next += 1;
            }
            found.into_iter().skip(1).rev().collect()
        })
    }
}

/// Whether a machine was there before the run of `cx` began.
pub(super) fn is_older(cx: &OpContext, machine: &Machine) -> bool {
    began(cx).is_some_and(|began| machine.created_at < began)
}

/// Returns when the run of `cx` began.
pub(super) fn began(cx: &OpContext) -> Option<Timestamp> {
    let meta = stead_bundle::load_meta(cx.bundle.as_ref()?).ok()?;
    Some(meta.started_at)
}

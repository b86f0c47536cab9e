//! Which agents are there, and whose coming has still to start runs.
//!
//! Who has come is written down with the time before it counts: what it starts is named by that time, so that a server that
//! was killed in between starts it, and starts it once.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use stead_model::time::Timestamp;
use stead_model::{NodeName, PlanName};

use super::kept;

const ONLINE: &str = "online.json";

/// Agents that are there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Agents {
    online: BTreeSet<NodeName>,
    /// Triggers that have still to fire.
    arrived: Vec<Arrival>,
    /// Nobody has looked at agents for a while: who is there when somebody does was there before.
    #[serde(skip)]
    has_looked_away: bool,
}

/// An agent that came online, and a trigger that this fires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Arrival {
    /// The plan.
    pub(super) plan: PlanName,
    /// The name of its trigger.
    pub(super) trigger: String,
    /// The agent.
    pub(super) node: NodeName,
    /// When it was noticed.
    pub(super) time: Timestamp,
}

impl Agents {
    /// Returns the agents that a server before this one knew, and what is wrong with the file. Where nothing is known, who is
    /// there was there before.
    pub(super) fn open(directory: &Path) -> (Self, Option<io::Error>) {
        let read = fs::read(directory.join(ONLINE));
        let away = || Self { has_looked_away: true, ..Self::default() };
        match read.and_then(|bytes| Ok(serde_json::from_slice(&bytes)?)) {
            Ok(known) => (known, None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (away(), None),
            Err(error) => (away(), Some(error)),
        }
    }

    /// Writes down who is there.
    pub(super) fn save(&self, directory: &Path) -> io::Result<()> {
        kept::replace(directory, ONLINE, &serde_json::to_vec(self)?)
    }

    /// Notes that nobody looks.
    pub(super) const fn look_away(&mut self) {
        self.has_looked_away = true;
    }

    /// Returns what is so when these are `connected`; `welcomes` says what an agent fires that has come. While `is_early`,
    /// those that were there before may still come back without being new.
    pub(super) fn with(
        &self,
        connected: BTreeSet<NodeName>,
        is_early: bool,
        now: Timestamp,
        welcomes: impl Fn(&NodeName) -> Vec<(PlanName, String)>,
    ) -> Self {
        let known = if self.has_looked_away { &connected } else { &self.online };
        let mut arrived = self.arrived.clone();
        for node in connected.difference(known) {
            let fired = welcomes(node).into_iter();
            arrived.extend(fired.map(|(plan, trigger)| Arrival {
                plan,
                trigger,
                node: node.clone(),
                time: now,
            }));
        }
        let stay_on = if is_early { known.clone() } else { BTreeSet::new() };
        Self { online: connected.into_iter().chain(stay_on).collect(), arrived, has_looked_away: false }
    }

    /// Returns what has still to fire.
    pub(super) fn arrived(&self) -> Vec<Arrival> {
        self.arrived.clone()
    }

    /// Notes what has fired.
    pub(super) fn settle(&mut self, arrival: &Arrival) {
        self.arrived.retain(|other| other != arrival);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(names: &str) -> BTreeSet<NodeName> {
        names.split_whitespace().map(|name| NodeName::parse(name).unwrap()).collect()
    }

    fn seen(agents: &Agents, connected: &str, is_early: bool) -> Agents {
        let plan = PlanName::parse("p").unwrap();
        let now = Timestamp::from_micros(7);
        agents.with(nodes(connected), is_early, now, |_| vec![(plan.clone(), "t".to_owned())])
    }

    fn arrived(agents: &Agents) -> Vec<&str> {
        agents.arrived.iter().map(|arrival| arrival.node.as_str()).collect()
    }

    #[test]
    fn who_was_there_when_nobody_looked_is_not_new() {
        let dir = tempfile::tempdir().unwrap();
        let (mut agents, problem) = Agents::open(dir.path());
        assert!(problem.is_none());
        agents = seen(&agents, "a b", true);
        assert!(arrived(&agents).is_empty());
        agents.save(dir.path()).unwrap();
        let (again, _) = Agents::open(dir.path());
        assert!(arrived(&seen(&again, "a b", true)).is_empty(), "nor after a restart");
        assert_eq!(arrived(&seen(&again, "a b c", true)), ["c"]);

        agents.look_away();
        agents = seen(&agents, "b c", false);
        assert!(arrived(&agents).is_empty());
        assert_eq!(arrived(&seen(&agents, "a b c", false)), ["a"]);
    }

    #[test]
    fn who_comes_back_early_is_not_new_and_who_comes_back_later_is() {
        let dir = tempfile::tempdir().unwrap();
        Agents { online: nodes("a"), ..Agents::default() }.save(dir.path()).unwrap();
        let early = seen(&Agents::open(dir.path()).0, "", true);
        assert!(arrived(&seen(&early, "a", true)).is_empty());
        let late = seen(&early, "", false);
        assert_eq!(arrived(&seen(&late, "a", false)), ["a"]);
    }

    /// What has still to fire outlives a server, with the time that names it.
    #[test]
    fn an_arrival_is_kept_until_it_is_settled() {
        let dir = tempfile::tempdir().unwrap();
        let agents = seen(&Agents::default(), "a", false);
        agents.save(dir.path()).unwrap();
        let (mut again, _) = Agents::open(dir.path());
        assert_eq!((again.arrived(), again.arrived()[0].time), (agents.arrived(), Timestamp::from_micros(7)));
        again.settle(&agents.arrived()[0]);
        assert!(again.arrived().is_empty());
    }

    #[test]
    fn a_file_that_cannot_be_read_makes_nobody_new() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(ONLINE), "{").unwrap();
        let (agents, problem) = Agents::open(dir.path());
        assert!(problem.is_some() && arrived(&seen(&agents, "a", false)).is_empty());
    }
}

//! The Agent view's state: this machine, and the agents of the registry with what checks of them said.

#![expect(clippy::wildcard_enum_match_arm, reason = "most keys mean nothing in most places")]

use stead_drivers::agent::{AgentCheck, AgentStatus};

use super::key::Key;
use super::scroll::Scroll;

/// An agent of the registry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Registered {
    /// Its name.
    pub(crate) name: String,
    /// How it is reached, secrets masked.
    pub(crate) transport: String,
    /// What it is.
    pub(crate) description: Option<String>,
    /// What is known of it.
    pub(crate) state: CheckState,
}

/// What is known of an agent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CheckState {
    /// Nobody asked.
    Unchecked,
    /// It is being asked.
    Checking,
    /// It answered, or did not.
    Checked(Box<AgentCheck>),
    /// It could not be asked.
    Failed(String),
}

/// The agents of the registry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Registry {
    /// It is being read.
    Reading,
    /// It was read.
    Agents(Vec<Registered>),
    /// It cannot be read.
    Problem(String),
}

/// The Agent view.
#[derive(Debug)]
pub(crate) struct Agents {
    /// This machine, once it was looked at.
    pub(crate) local: Option<AgentStatus>,
    /// Which part of it is on the screen.
    pub(crate) scroll: Scroll,
    /// The registry.
    pub(crate) registry: Registry,
    /// Which part of the registry is on the screen.
    pub(crate) registry_scroll: Scroll,
    /// Whether that part follows the cursor.
    pub(crate) follows: bool,
    at: usize,
}

impl Default for Agents {
    fn default() -> Self {
        Self {
            local: None,
            scroll: Scroll::default(),
            registry: Registry::Reading,
            registry_scroll: Scroll::default(),
            follows: true,
            at: 0,
        }
    }
}

impl Agents {
    /// Returns the agents of the registry.
    pub(crate) fn listed(&self) -> &[Registered] {
        match &self.registry {
            Registry::Agents(agents) => agents,
            Registry::Reading | Registry::Problem(_) => &[],
        }
    }

    /// Returns the place of the agent at the cursor.
    pub(crate) fn at(&self) -> usize {
        self.at.min(self.listed().len().saturating_sub(1))
    }

    /// Takes the registry as it was read; what checks said of agents that are still in it is kept.
    pub(crate) fn take(&mut self, read: Result<Vec<Registered>, String>) {
        let before = self.listed().to_vec();
        self.registry = match read {
            Ok(mut agents) => {
                for agent in &mut agents {
                    let same = |old: &&Registered| old.name == agent.name && old.transport == agent.transport;
                    if let Some(old) = before.iter().find(same) {
                        agent.state = old.state.clone();
                    }
                }
                Registry::Agents(agents)
            }
            Err(problem) => Registry::Problem(problem),
        };
    }

    /// Takes what a check of an agent said.
    pub(crate) fn checked(&mut self, name: &str, state: CheckState) {
        if let Registry::Agents(agents) = &mut self.registry
            && let Some(agent) = agents.iter_mut().find(|agent| agent.name == name)
        {
            agent.state = state;
        }
    }

    /// Takes a key; returns the names of agents to check.
    pub(crate) fn press(&mut self, key: Key) -> Vec<String> {
        self.follows = self.follows || matches!(key, Key::Up | Key::Down | Key::Char('j' | 'k' | 'c' | 'C'));
        match key {
            Key::Up | Key::Char('k') => self.at = self.at().saturating_sub(1),
            Key::Down | Key::Char('j') => {
                self.at = (self.at() + 1).min(self.listed().len().saturating_sub(1))
            }
            Key::Char('c') => return self.begin(self.at()..self.at() + 1),
            Key::Char('C') => return self.begin(0..usize::MAX),
            Key::Left => self.scroll.by(-1),
            Key::Right => self.scroll.by(1),
            other => {
                let paged = self.registry_scroll.page(other);
                self.follows = self.follows && !paged;
            }
        }
        Vec::new()
    }

    /// One that is being checked is not checked a second time.
    fn begin(&mut self, places: std::ops::Range<usize>) -> Vec<String> {
        let Registry::Agents(agents) = &mut self.registry else { return Vec::new() };
        let wanted = agents.iter_mut().enumerate().filter(|(place, _)| places.contains(place));
        let idle = wanted.filter(|(_, agent)| agent.state != CheckState::Checking);
        idle.map(|(_, agent)| {
            agent.state = CheckState::Checking;
            agent.name.clone()
        })
        .collect()
    }

    /// Whether one is being checked.
    pub(crate) fn is_checking(&self) -> bool {
        self.listed().iter().any(|agent| agent.state == CheckState::Checking)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registered(name: &str) -> Registered {
        let transport = format!("ssh://lab@{name}");
        Registered { name: name.to_owned(), transport, description: None, state: CheckState::Unchecked }
    }

    #[test]
    fn one_or_all_are_checked_and_none_twice() {
        let mut agents = Agents::default();
        assert!(agents.press(Key::Char('C')).is_empty());
        agents.take(Ok(["a", "b", "c"].map(registered).to_vec()));
        agents.press(Key::Down);
        assert_eq!(agents.press(Key::Char('c')), ["b"]);
        assert!(agents.is_checking());
        assert_eq!(agents.press(Key::Char('C')), ["a", "c"]);
        agents.checked("b", CheckState::Failed("no route".to_owned()));
        assert_eq!(agents.press(Key::Char('c')), ["b"]);
        agents.checked("c", CheckState::Failed("no route".to_owned()));
        agents.take(Ok(["b", "c"].map(registered).to_vec()));
        assert_eq!(agents.listed()[1].state, CheckState::Failed("no route".to_owned()));
    }
}

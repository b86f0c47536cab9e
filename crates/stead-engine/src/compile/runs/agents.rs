//! Which agent a role runs on.

use std::collections::BTreeSet;

use stead_model::diagnostic::{Place, suggest};
use stead_model::inventory::Host;
use stead_model::yaml::Node;
use stead_model::{Diagnostic, Diagnostics, HostName, TransportSpec};

use super::{RunInputs, UNKNOWN_AGENT};

/// How the place of a problem with a flag begins.
pub const AGENT_FLAG: &str = "--agent ";

/// One `--agent` flag. `Debug` shows no passwords.
#[derive(Clone, PartialEq, Eq)]
pub struct AgentFlag {
    /// A role or an agent's id.
    pub name: String,
    /// Where it runs: a transport, or the id of another agent.
    pub spec: String,
}

/// The transport may hold a password.
impl std::fmt::Debug for AgentFlag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentFlag").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Why an `--agent` argument cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write NAME=TRANSPORT: a role or an agent's id, and `local`, `ssh://user@host` or `user@host`")]
pub struct InvalidAgentFlag;

impl AgentFlag {
    /// Returns the flag that `text` is: `NAME=TRANSPORT`.
    pub fn parse(text: &str) -> Result<Self, InvalidAgentFlag> {
        match text.split_once('=') {
            // A transport without a name in front may hold `=` as well.
            Some((name, spec)) if !name.is_empty() && !spec.is_empty() && !name.contains([':', '@', '?']) => {
                Ok(Self { name: name.to_owned(), spec: spec.to_owned() })
            }
            Some(_) | None => Err(InvalidAgentFlag),
        }
    }

    fn place(&self) -> Place {
        Place::Named(format!("{AGENT_FLAG}{}", self.name))
    }
}

/// Finds agents by the words that name them.
pub(super) struct Agents<'a> {
    inputs: &'a RunInputs<'a>,
    /// Ids that roles and the manifest use.
    words: BTreeSet<&'a str>,
}

/// An agent with its id.
pub(super) type Found = (HostName, Host);

impl<'a> Agents<'a> {
    /// Returns the agents there are; problems of flags are added to `problems`.
    pub(super) fn new(inputs: &'a RunInputs<'a>, problems: &mut Diagnostics) -> Self {
        let mut words = inputs.manifest.agent_words();
        words.extend(inputs.manifest.agents.keys().map(HostName::as_str));
        let agents = Self { inputs, words };
        agents.check_flags(problems);
        agents
    }

    fn check_flags(&self, problems: &mut Diagnostics) {
        let mut seen = BTreeSet::new();
        for flag in self.inputs.agents {
            if !seen.insert(&flag.name) {
                let message = format!("`{}` is given twice", flag.name);
                problems.push(Diagnostic::error(UNKNOWN_AGENT, flag.place(), message).help("give it once"));
                continue;
            }
            let roles = self.inputs.manifest.roles.iter().map(|role| role.name.as_str());
            let known: BTreeSet<&str> = roles.chain(self.words.iter().copied()).collect();
            if !known.contains(flag.name.as_str()) {
                let message = format!("`{}` is neither a role nor an agent of the manifest", flag.name);
                let help = format!("known: {}", known.into_iter().collect::<Vec<_>>().join(", "));
                problems.push(Diagnostic::error(UNKNOWN_AGENT, flag.place(), message).help(help));
            }
            if let Err(problem) = self.of_flag(flag, None) {
                problems.push(*problem);
            }
        }
    }

    /// Returns the agent of `role`, which `node` names; problems are added to `problems`.
    pub(super) fn find(
        &self,
        role: &str,
        node: Option<Node<'_>>,
        problems: &mut Diagnostics,
    ) -> Option<Found> {
        let flag = |name: &str| self.inputs.agents.iter().find(|flag| flag.name == name);
        if let Some(flag) = flag(role) {
            // What is wrong with it has been said.
            return self.of_flag(flag, None).ok();
        }
        let word = node.and_then(Node::as_text).unwrap_or("local");
        if let Some(flag) = flag(word).filter(|_| self.words.contains(word)) {
            return self.of_flag(flag, HostName::parse(word).ok()).ok();
        }
        let place = |message: String, help: String| {
            let problem = match node {
                Some(node) => node.error(UNKNOWN_AGENT, message),
                None => Diagnostic::error(UNKNOWN_AGENT, self.inputs.manifest.place(), message),
            };
            problem.help(help)
        };
        match self.named(word) {
            Some(found) => Some(found),
            None => match literal(word) {
                Some(Ok(found)) => Some(found),
                Some(Err((message, help))) => {
                    problems.push(place(message, help));
                    None
                }
                None => {
                    let help = format!("{}; or give `--agent {word}=TRANSPORT`", self.advice(word));
                    problems.push(place(format!("there is no agent `{word}`"), help));
                    None
                }
            },
        }
    }

    /// Returns the agent with the id `word`, of the manifest, of the registry, or this machine.
    fn named(&self, word: &str) -> Option<Found> {
        let id = HostName::parse(word).ok()?;
        let own = self.inputs.manifest.agents.get(&id);
        let host = own.or_else(|| self.inputs.registry.hosts.get(&id)).cloned();
        host.or_else(|| (word == "local").then(Host::local)).map(|host| (id, host))
    }

    /// Returns the agent that a flag names; it keeps the id it stands for.
    fn of_flag(&self, flag: &AgentFlag, id: Option<HostName>) -> Result<Found, Box<Diagnostic>> {
        let refused = |message: String, help: String| {
            Box::new(Diagnostic::error(UNKNOWN_AGENT, flag.place(), message).help(help))
        };
        let (own, host) = match self.named(&flag.spec) {
            Some(found) => found,
            None => match literal(&flag.spec) {
                Some(found) => found.map_err(|(message, help)| refused(message, help))?,
                None => {
                    let message =
                        format!("`{}` is no transport, and there is no agent of this name", flag.spec);
                    return Err(refused(message, self.advice(&flag.spec)));
                }
            },
        };
        Ok((id.unwrap_or(own), host))
    }

    fn advice(&self, word: &str) -> String {
        let ids = self.inputs.manifest.agents.keys().chain(self.inputs.registry.hosts.keys());
        let known: BTreeSet<&str> = ids.map(HostName::as_str).chain(["local"]).collect();
        let listed = known.iter().copied().collect::<Vec<_>>().join(", ");
        let near = suggest(word, known.iter().copied());
        let near = if near.starts_with("did you mean") { format!("{near} ") } else { String::new() };
        format!("{near}known agents: {listed}; a transport is written `ssh://user@host` or `user@host`")
    }
}

/// Returns the agent that a transport written out is; nothing if `word` is none.
fn literal(word: &str) -> Option<Result<Found, (String, String)>> {
    if word != "local" && word != "local://" && !word.contains("://") && !word.contains('@') {
        return None;
    }
    let found = match TransportSpec::parse(word) {
        Ok(spec) => match HostName::parse(&spec.address()) {
            Ok(id) => Ok((id, Host::reached_by(spec))),
            Err(error) => Err((error.to_string(), String::new())),
        },
        Err(error) => {
            let message = format!("{}, at character {} of the transport", error.fault, error.position);
            Err((message, error.help()))
        }
    };
    Some(found)
}

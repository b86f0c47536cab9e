//! What of the nodes is not as their specs want it any more, at every level.
//!
//! Who pulls is asked by a job: a node of this level by this level's server, a deeper one by the level it is of, which
//! is asked in turn. All others are asked over SSH.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stead_engine::nodes::drift::drift;
use stead_model::NodeName;
use stead_model::node::{Drift, ErrandNote, ErrandVerb};
use stead_model::site::manifest::Mode;
use stead_runner::operation::OpError;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::NodesSurroundings;
use super::delegate::Deputy;
use super::line::Line;
use crate::errand::COMMAND;

/// So many nodes are asked at once: each is a connection and a process here.
const AT_ONCE: usize = 16;
/// How long a node may take to be reached; who waits for it to boot is not asking what it is.
const PATIENCE: Duration = Duration::from_secs(20);

/// As much is handed on of a level's events: it has none when it only looks.
const MOST_BYTES: &str = "131072";

/// Something of a node that is not as its spec wants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDrift {
    /// The node.
    pub node: NodeName,
    /// What is different.
    #[serde(flatten)]
    pub drift: Drift,
}

/// What is asked to learn what has drifted.
enum Question {
    /// A node what it is.
    Own(NodeName),
    /// Who makes nodes elsewhere what these are.
    Below(Whom, Vec<NodeName>),
}

/// Who makes nodes elsewhere.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Whom {
    Node(NodeName),
    Host(String),
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drifted {
    /// Everything that is different, by node and path.
    pub drift: Vec<NodeDrift>,
    /// Nodes that could not be asked.
    pub unreachable: Vec<NodeName>,
    /// Why, for people.
    #[serde(skip)]
    pub reasons: Vec<(NodeName, String)>,
}

impl Drifted {
    /// Adds what was found elsewhere.
    pub fn take_in(&mut self, other: Self) {
        self.drift.extend(other.drift);
        self.unreachable.extend(other.unreachable);
        self.reasons.extend(other.reasons);
    }
}

impl NodesSurroundings {
    /// Asks all selected nodes that have a spec what they are, and compares.
    pub async fn drifted(self: &Arc<Self>) -> Drifted {
        let order = self.parts.forest.order().iter();
        let names: Vec<NodeName> = order
            .filter(|index| self.parts.selection.selected.get(**index) == Some(&true))
            .map(|index| self.parts.forest.nodes[*index].name.clone())
            .collect();
        let slots = Arc::new(Semaphore::new(AT_ONCE));
        let mut asked = JoinSet::new();
        for question in self.questions(names) {
            let (nodes, slots) = (Arc::clone(self), Arc::clone(&slots));
            asked.spawn(async move {
                let _slot = slots.acquire().await;
                let answer = match &question {
                    Question::Own(name) => nodes.drift_of(name).await,
                    Question::Below(whom, names) => nodes.drift_below(whom, names).await,
                };
                (question, answer)
            });
        }
        let mut all = Drifted::default();
        while let Some(ended) = asked.join_next().await {
            let Ok((question, answer)) = ended else { continue };
            match answer {
                Ok(found) => all.take_in(found),
                Err(error) => {
                    let names = match question {
                        Question::Own(name) => vec![name],
                        Question::Below(_, names) => names,
                    };
                    all.reasons.extend(names.iter().map(|name| (name.clone(), error.message.clone())));
                    all.unreachable.extend(names);
                }
            }
        }
        all.drift.sort_by(|a, b| (&a.node, &a.drift.path).cmp(&(&b.node, &b.drift.path)));
        all.unreachable.sort();
        all.reasons.sort();
        all
    }

    /// Returns what is asked to learn of `names`: of those that pull elsewhere, all at once there.
    fn questions(&self, names: Vec<NodeName>) -> Vec<Question> {
        let mut below: BTreeMap<Whom, Vec<NodeName>> = BTreeMap::new();
        let mut questions = Vec::new();
        for name in names {
            let node = self.node(name.as_str()).ok().filter(|_| self.runs_by_job(&name));
            match node.and_then(|node| self.deputy_of(node.index)) {
                Some(Deputy::Node(root)) => {
                    below.entry(Whom::Node(root.node.name.clone())).or_default().push(name);
                }
                Some(Deputy::Host(host)) => {
                    below.entry(Whom::Host(host.name.clone())).or_default().push(name);
                }
                None => questions.push(Question::Own(name)),
            }
        }
        questions.extend(below.into_iter().map(|(whom, names)| Question::Below(whom, names)));
        questions
    }

    /// Whether a node runs what it is asked as a job of its agent.
    fn runs_by_job(&self, name: &NodeName) -> bool {
        let Some(entry) = self.entry(name).filter(|entry| entry.jti.is_some()) else { return false };
        let mode = match self.node(name.as_str()) {
            Ok(node) => node.known.modes.run,
            // Levels below have no manifest between runs: what the agent was told counts.
            Err(_) => entry.told.map_or(entry.mode, |told| told.mode),
        };
        mode == Mode::Pull
    }

    /// Opens the line over which a node of this level is asked what it is.
    pub(super) async fn question_line(&self, name: &NodeName) -> Result<Line, OpError> {
        if self.runs_by_job(name) {
            return self.job_line(self.running_server().await?, name, PATIENCE).await;
        }
        let late = |_| OpError::operation(format!("{name} did not answer within 20s"));
        timeout(PATIENCE, self.connect(name)).await.map_err(late)?.map(Line::Ssh)
    }

    async fn drift_of(&self, name: &NodeName) -> Result<Drifted, OpError> {
        let node = self.node(name.as_str())?;
        let Some(spec) = self.spec_of(&node)? else { return Ok(Drifted::default()) };
        let line = self.question_line(name).await?;
        let seen = self.observe(&line, name, Some(&spec), []).await?;
        let found = drift(&spec, &seen.state).into_iter();
        let found = found.map(|drift| NodeDrift { node: name.clone(), drift });
        Ok(Drifted { drift: found.collect(), ..Drifted::default() })
    }

    /// Asks who makes them what of `names` has drifted.
    async fn drift_below(&self, whom: &Whom, names: &[NodeName]) -> Result<Drifted, OpError> {
        let (deputy, line) = match whom {
            Whom::Node(root) => (self.node_deputy(root)?, self.question_line(root).await?),
            Whom::Host(host) => {
                let deputy = self.host_deputy(host)?;
                let late = |_| OpError::operation(format!("{host} did not answer within 20s"));
                let line = timeout(PATIENCE, self.line_to(&deputy)).await.map_err(late)??;
                (deputy, line)
            }
        };
        let run = stead_runner::clock::new_run_id(stead_runner::clock::now());
        let context = self.context_of(&deputy, run.as_str());
        let errand = self.parcelled(&deputy, ErrandVerb::Drift, run, context, Some(names)).await?;
        self.begin(&line, &deputy, &errand).await?;
        let root = match whom {
            Whom::Node(root) => Some(root),
            Whom::Host(_) => None,
        };
        let argv = [COMMAND, "follow", "--run", errand.run.as_str(), "--most", MOST_BYTES];
        let said = self.ask(&line, root, &argv, Vec::new()).await?;
        let text = String::from_utf8_lossy(&said.stdout);
        let end = text.lines().rev().find_map(|line| match serde_json::from_str(line) {
            Ok(ErrandNote::End(end)) => Some(end),
            Ok(ErrandNote::Waiting {}) | Err(_) => None,
        });
        let silent = || OpError::operation(format!("{deputy} did not answer: {}", said.complaint()));
        let end = end.ok_or_else(silent)?;
        let found = end.document.and_then(|document| serde_json::from_value::<Drifted>(document).ok());
        let mut found =
            found.ok_or_else(|| OpError::operation(format!("{deputy} did not answer: {}", end.complaint)))?;
        let why = if end.complaint.is_empty() { "it was not reached from its level" } else { &end.complaint };
        found.reasons = found.unreachable.iter().map(|name| (name.clone(), why.to_owned())).collect();
        Ok(found)
    }
}

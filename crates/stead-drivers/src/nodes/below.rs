//! What the machines of nodes do that this level does not make: only who makes them knows, the node they are in or the
//! other machine.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stead_model::NodeName;
use stead_model::node::NodeEntry;
use stead_model::node::wire::AgentState;
use stead_runner::operation::OpError;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::NodesSurroundings;
use super::line::Line;
use crate::errand::COMMAND;

/// How long who makes nodes may take to answer, all levels below included.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the machine of a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MachineSeen {
    /// It runs.
    Running,
    /// It is there and does not run.
    Stopped,
    /// It is not there.
    Absent,
    /// There is one that is somebody else's.
    Foreign,
    /// Nobody could be asked.
    Unknown,
}

impl fmt::Display for MachineSeen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Absent => "absent",
            Self::Foreign => "foreign",
            Self::Unknown => "unknown",
        })
    }
}

/// What is seen of a node where it is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct NodeSeen {
    /// The node.
    pub name: NodeName,
    /// What its machine does.
    pub machine: MachineSeen,
    /// Where its agent is.
    pub agent: AgentState,
}

/// What one who makes nodes says of them, at every depth.
pub type Told = BTreeMap<NodeName, NodeSeen>;

/// What those say that answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenBelow {
    /// Nodes of this level, of those in them.
    pub nodes: BTreeMap<NodeName, Told>,
    /// Hosts that are other machines, of those made there.
    pub hosts: BTreeMap<String, Told>,
}

/// The part of a status that is of use above.
#[derive(Debug, Deserialize)]
struct Answer {
    nodes: Vec<NodeSeen>,
}

impl NodesSurroundings {
    /// Asks those hosting nodes of this level that may run, and every other machine, what the nodes they make do.
    pub async fn seen_below(self: &Arc<Self>, may_run: impl Fn(&NodeName) -> bool) -> SeenBelow {
        let (mut nodes, mut hosts) = (JoinSet::new(), JoinSet::new());
        for name in self.hosting_roots().into_iter().filter(may_run) {
            let level = Arc::clone(self);
            nodes.spawn(async move {
                let answer = timeout(PATIENCE, level.ask_node(&name)).await;
                Some((name, answer.ok()?.ok()?))
            });
        }
        for name in self.used_elsewhere() {
            let level = Arc::clone(self);
            hosts.spawn(async move {
                let answer = timeout(PATIENCE, level.ask_host(&name)).await;
                Some((name, answer.ok()?.ok()?))
            });
        }
        SeenBelow { nodes: answers(nodes).await, hosts: answers(hosts).await }
    }

    /// Returns the nodes that this level has made and that others are remembered to be in.
    fn hosting_roots(&self) -> BTreeSet<NodeName> {
        self.parts.memory.look(|state| {
            let parents = state.nodes.values().filter_map(|entry| entry.parent.clone());
            let is_own = |name: &NodeName| {
                let own = state.nodes.get(name).filter(|entry| entry.parent.is_none());
                own.is_some_and(|entry| !self.parts.elsewhere.contains_key(self.made_on(entry)))
            };
            parents.filter(is_own).collect()
        })
    }

    /// Returns the other machines on which nodes are remembered to be.
    fn used_elsewhere(&self) -> BTreeSet<String> {
        self.parts.memory.look(|state| {
            let roots = state.nodes.values().filter(|entry| entry.parent.is_none());
            let hosts = roots.map(|entry| self.made_on(entry));
            hosts.filter(|host| self.parts.elsewhere.contains_key(*host)).map(str::to_owned).collect()
        })
    }

    /// Returns the host that a root was made on.
    pub(super) fn made_on<'a>(&'a self, entry: &'a NodeEntry) -> &'a str {
        entry.host.as_deref().unwrap_or(&self.parts.host.name)
    }

    async fn ask_node(&self, name: &NodeName) -> Result<Told, OpError> {
        let line = self.question_line(name).await?;
        self.ask_status(&line, Some(name), name.as_str()).await
    }

    async fn ask_host(&self, name: &str) -> Result<Told, OpError> {
        let line = self.line_to(&self.host_deputy(name)?).await?;
        self.ask_status(&line, None, name).await
    }

    /// Asks at the other end of `line`, which calls itself `host`.
    async fn ask_status(&self, line: &Line, node: Option<&NodeName>, host: &str) -> Result<Told, OpError> {
        let (site, manifest) = (self.parts.site.settings.value.name.as_str(), self.parts.name.as_str());
        let argv = [COMMAND, "status", "--of-site", site, "--manifest", manifest, "--host", host];
        let said = self.ask(line, node, &argv, Vec::new()).await?;
        let answer: Answer = serde_json::from_slice(&said.stdout)
            .map_err(|_| OpError::operation(format!("{host} did not answer: {}", said.complaint())))?;
        Ok(answer.nodes.into_iter().map(|seen| (seen.name.clone(), seen)).collect())
    }
}

/// Returns the answers of those that were asked, by who gave them.
async fn answers<K: Ord + 'static>(mut asked: JoinSet<Option<(K, Told)>>) -> BTreeMap<K, Told> {
    let mut found = BTreeMap::new();
    while let Some(ended) = asked.join_next().await {
        found.extend(ended.ok().flatten());
    }
    found
}

//! `node.delegate`: a hosting node does something with the nodes in it.
//!
//! The node gets an errand: the manifest and the site of its subtree, cut from this level's. Its own stead runs it,
//! whoever listens; what happens there comes here line by line and stands in this run's journal as it happened.

mod listen;
mod recall;

use std::time::Duration;

use sha2::{Digest as _, Sha256};
use stead_engine::nodes::{Above, context_below, sub_manifest, sub_site};
use stead_model::event::EventKind;
use stead_model::node::operations::delegated;
use stead_model::node::{Errand, ErrandBegun, ErrandEnd, ErrandVerb, NodeStatus};
use stead_model::report::Warning;
use stead_model::token::LiveRing;
use stead_model::{ErrorClass, NodeName, RunId, Value};
use stead_runner::operation::{OpContext, OpError, Outcome};
use stead_runner::transport::Transport;
use tokio::time::timeout;

use super::{NodeView, NodesSurroundings};
use crate::errand::COMMAND;
use listen::Listening;
use recall::Recalled;

/// How long a hosting node is tried whose nodes are to go: they go with it in any case.
const LAST_TRY: Duration = Duration::from_secs(15);

/// What is said of a node that a level below never came to.
const NOT_STARTED: &str = "not started";

impl NodesSurroundings {
    /// Has the stead on `name` do `verb` with the nodes in it.
    pub(super) async fn delegate(
        &self,
        cx: &OpContext,
        name: &NodeName,
        verb: &str,
    ) -> Result<Outcome, OpError> {
        let node = self.node(name.as_str())?;
        let (verb, only) = self.wanted(cx, &node, verb)?;
        let is_there = self.entry(name).is_some_and(|entry| entry.machine_id.is_some());
        if only.as_ref().is_some_and(Vec::is_empty) || (verb == ErrandVerb::Destroy && !is_there) {
            return self.forget_below(name, false).await;
        }
        let connected = match verb {
            ErrandVerb::Destroy if !self.is_running(&node).await => {
                Err(OpError::new(ErrorClass::Unreachable, format!("the machine of {name} does not run")))
            }
            ErrandVerb::Destroy => timeout(LAST_TRY, self.connect(name)).await.unwrap_or_else(|_| {
                Err(OpError::new(ErrorClass::Unreachable, format!("{name} does not answer over SSH")))
            }),
            ErrandVerb::Create | ErrandVerb::Verify => self.connect(name).await,
        };
        let mut transport = match connected {
            Err(error) if verb == ErrandVerb::Destroy && error.class == ErrorClass::Unreachable => {
                let text = format!("{}; the nodes in it are destroyed with it", error.message);
                self.parts.announcer.warn(Warning::new("node/unreachable", text)).await;
                return self.forget_below(name, true).await;
            }
            connected => connected?,
        };
        let mut recalled = Recalled::of(cx, name)?;
        let mut listening = loop {
            let errand = self.errand(cx, &node, verb, only.as_deref(), recalled.ended).await?;
            match self.begin(&*transport, &errand).await {
                Ok(begun) if begun.lost => recalled = recalled.next(),
                Ok(begun) => break Listening::new(name, errand.run, begun.sha256, recalled.heard),
                // Whether it was begun is not known, and beginning again does no harm.
                Err(error) if error.class == ErrorClass::Unreachable => {
                    transport = self.connect(name).await?
                }
                Err(error) => return Err(error),
            }
        };
        let end = self.listen(cx, &mut listening, transport).await;
        let end = end.map_err(|error| OpError { changed: true, ..error })?;
        self.conclude(&node, &listening, &end).await
    }

    /// Returns what the level below is to do, and with which nodes; none: all of them.
    fn wanted(
        &self,
        cx: &OpContext,
        node: &NodeView<'_>,
        verb: &str,
    ) -> Result<(ErrandVerb, Option<Vec<NodeName>>), OpError> {
        let below: Vec<usize> = self.below(node);
        let names = |chosen: &dyn Fn(usize) -> bool| -> Vec<NodeName> {
            let found = below.iter().filter(|index| chosen(**index));
            found.map(|index| self.parts.forest.nodes[*index].name.clone()).collect()
        };
        let is_selected = |index: usize| self.parts.selection.selected.get(index).copied().unwrap_or(false);
        let only = (!below.iter().all(|index| is_selected(*index))).then(|| names(&is_selected));
        match verb {
            delegated::CREATE => Ok((ErrandVerb::Create, only)),
            delegated::VERIFY => Ok((ErrandVerb::Verify, only)),
            delegated::DESTROY => Ok((ErrandVerb::Destroy, only)),
            delegated::ROLLBACK => {
                let began = super::remove::began(cx);
                let is_new = |index: usize| {
                    let entry = self.entry(&self.parts.forest.nodes[index].name);
                    entry.and_then(|entry| entry.created_at).is_some_and(|at| Some(at) >= began)
                };
                Ok((ErrandVerb::Destroy, Some(names(&is_new))))
            }
            other => Err(OpError::invalid(format!("a level below cannot `{other}`"))),
        }
    }

    /// Returns the nodes in `node`, at any depth.
    fn below(&self, node: &NodeView<'_>) -> Vec<usize> {
        let below = self.parts.forest.below(node.index);
        below.iter().enumerate().filter(|(_, below)| **below).map(|(index, _)| index).collect()
    }

    /// Whether the machine of a node runs, as far as its driver knows: who cannot say may be wrong.
    async fn is_running(&self, node: &NodeView<'_>) -> bool {
        let entry = self.entry(&node.node.name);
        let Ok(driver) = self.driver(&self.host_of(Some(node), entry.as_ref())) else { return true };
        let Some(id) = entry.and_then(|entry| entry.machine_id) else { return false };
        match driver.inspect(&id).await {
            Ok(machine) => machine.is_some_and(|machine| machine.state.is_live()),
            Err(_) => true,
        }
    }

    /// Has the hosting node begin.
    async fn begin(&self, transport: &dyn Transport, errand: &Errand) -> Result<ErrandBegun, OpError> {
        let said = self.on_node(transport, &[COMMAND, "begin"], errand.to_bytes()).await?;
        let begun = serde_json::from_slice(&said.stdout).ok().filter(|_| said.code == Some(0));
        begun.ok_or_else(|| {
            OpError::operation(format!("{} did not begin with its nodes: {}", errand.node, said.complaint()))
        })
    }

    /// Returns what the hosting node is given; `number` counts what it was given before by this task.
    async fn errand(
        &self,
        cx: &OpContext,
        node: &NodeView<'_>,
        verb: ErrandVerb,
        only: Option<&[NodeName]>,
        number: u32,
    ) -> Result<Errand, OpError> {
        let parts = &self.parts;
        let name = &node.node.name;
        let own = cx.run_id.as_ref().map_or("run", RunId::as_str);
        let context = context_below(&parts.manifest, own, &parts.host.name, name);
        let run = run_below(&context.run, &[own, cx.task.as_str(), &number.to_string()])?;
        let manifest = sub_manifest(&parts.manifest, &parts.forest, node.index, context);
        let ring = LiveRing::of(&parts.site, stead_runner::clock::now().as_micros() / 1_000_000).ok();
        let above = Above {
            site: &parts.site,
            ring: ring.as_ref(),
            driver: node.known.driver.unwrap_or_else(|| parts.host.host.driver()),
            authorized_keys: &self.planted_keys().await?,
        };
        let hosting = node.written.hosting.as_ref().map(|hosting| &hosting.value);
        let parcel = sub_site(&above, &manifest, name, hosting);
        let mut arguments = vec!["--run-id".to_owned(), run.to_string()];
        let mut add = |flag: &str, value: Option<&str>| {
            arguments.extend(value.into_iter().flat_map(|value| [flag.to_owned(), value.to_owned()]));
        };
        let wishes = &parts.wishes;
        let entry = self.entry(name);
        add("--self-addr", entry.as_ref().and_then(|entry| entry.ip.as_deref()));
        add("--mode", wishes.mode.map(|mode| mode.word()));
        add("--on-error", wishes.on_error.map(|wish| wish.word()));
        for only in only.into_iter().flatten() {
            add("--only", Some(only.as_str()));
        }
        if wishes.skip_preflight {
            arguments.push("--skip-preflight".to_owned());
        }
        arguments.push("--yes".to_owned());
        Ok(Errand { run, verb, node: name.clone(), parcel, manifest: manifest.to_json(), arguments })
    }

    /// Forgets the nodes in `name`, which are gone.
    async fn forget_below(&self, name: &NodeName, changed: bool) -> Result<Outcome, OpError> {
        for inner in self.nodes_in(name) {
            self.forget(&inner, changed).await?;
        }
        Ok(Outcome { changed, ..Outcome::default() })
    }

    /// Returns what the end of an errand means here. Nodes keep what was reported of them.
    async fn conclude(
        &self,
        node: &NodeView<'_>,
        listening: &Listening,
        end: &ErrandEnd,
    ) -> Result<Outcome, OpError> {
        let changed = listening.changed;
        if end.code == Some(0) {
            return Ok(Outcome { changed, data: end.document.clone(), ..Outcome::default() });
        }
        let reason = reason(&node.node.name, end);
        for index in self.below(node) {
            let inner = &self.parts.forest.nodes[index].name;
            let is_selected = self.parts.selection.selected.get(index).copied().unwrap_or(false);
            if is_selected && listening.never_started(inner) {
                let error = format!("{NOT_STARTED}: {reason}");
                self.update(inner, false, |entry| {
                    if entry.machine_id.is_none() {
                        (entry.status, entry.error) = (NodeStatus::Skipped, Some(error));
                    }
                })
                .await?;
            }
        }
        let class = match end.code {
            Some(7) => ErrorClass::Unreachable,
            Some(8) => ErrorClass::Timeout,
            Some(3) => ErrorClass::Permanent,
            Some(_) | None => ErrorClass::Operation,
        };
        Err(OpError { changed, ..OpError::new(class, reason) })
    }

    /// Puts an event of a level below into this run's journal, and takes over what it says of a node.
    async fn hand_up(&self, cx: &OpContext, listening: &mut Listening, event: Value) -> Result<(), OpError> {
        let (origin, event) = listen::origin(&listening.node, event);
        let change = listen::node_change(&origin, &event);
        let said = EventKind::Delegated { task: cx.task.clone(), origin, event: Box::new(event) };
        self.parts.announcer.say(said).await;
        let Some(change) = change else { return Ok(()) };
        listening.note(&change);
        self.take_over(change).await
    }
}

/// Returns the id of a run below: made of the first run's, and the same whenever the same is asked for again.
fn run_below(first: &str, asked: &[&str]) -> Result<RunId, OpError> {
    let mut hash = Sha256::new();
    for part in asked {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let digest = stead_model::plan::Digest(hash.finalize().into()).to_string();
    let id = format!("{first}-{}", digest.get(..8).unwrap_or_default());
    RunId::parse(&id).map_err(|error| OpError::invalid(error.to_string()))
}

/// Returns why a run below did not go well, in its own words.
fn reason(name: &NodeName, end: &ErrandEnd) -> String {
    let document = end.document.as_ref();
    let of_node = |row: &Value| {
        let error = row["error"].as_str().filter(|_| row["status"] == "failed")?;
        Some(format!("{}: {error}", row["name"].as_str().unwrap_or_default()))
    };
    let failed = document.and_then(|document| document["nodes"].as_array()?.iter().find_map(of_node));
    let told = document.and_then(|document| document["error"]["message"].as_str()).map(str::to_owned);
    let complaint = (!end.complaint.is_empty()).then(|| end.complaint.clone());
    let why = failed.or(told).or(complaint).unwrap_or_else(|| match end.code {
        Some(code) => format!("it ended with exit code {code}"),
        None => "it was killed".to_owned(),
    });
    format!("the run on {name} failed: {why}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_run_below_has_the_first_ones_name_at_any_depth() {
        let first = run_below("20260101-r", &["20260101-r", "quay.children.create", "1"]).unwrap();
        assert_eq!(first, run_below("20260101-r", &["20260101-r", "quay.children.create", "1"]).unwrap());
        let second = run_below("20260101-r", &[first.as_str(), "crane.children.create", "1"]).unwrap();
        assert_ne!(first, second);
        assert_eq!((first.as_str().len(), second.as_str().len()), (19, 19));
        assert_ne!(first, run_below("20260101-r", &["20260101-r", "quay.children.create", "2"]).unwrap());
    }

    #[test]
    fn the_reason_of_a_failure_is_the_levels_own() {
        let name = NodeName::parse("quay").unwrap();
        let said = |code, document: Value, complaint: &str| {
            let document = Some(document).filter(|document| !document.is_null());
            reason(&name, &ErrandEnd { code, document, complaint: complaint.to_owned() })
        };
        let failed = json!({"nodes": [{"name": "a", "status": "completed"}, {"name": "b", "status": "failed", "error": "no boot"}], "error": {"message": "1 failed"}});
        assert_eq!(said(Some(1), failed, ""), "the run on quay failed: b: no boot");
        let locked = json!({"error": {"message": "locked by 7"}});
        assert_eq!(said(Some(5), locked, "x"), "the run on quay failed: locked by 7");
        assert_eq!(said(Some(2), Value::Null, "bad flag"), "the run on quay failed: bad flag");
        assert_eq!(said(None, Value::Null, ""), "the run on quay failed: it was killed");
    }
}

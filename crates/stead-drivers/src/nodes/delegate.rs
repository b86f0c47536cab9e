//! `node.delegate`: a hosting node does something with the nodes in it.
//!
//! The node gets an errand: the manifest and the site of its subtree, cut from this level's. Its own stead runs it,
//! whoever listens; what happens there comes here line by line and stands in this run's journal as it happened.

mod deputy;
mod images;
mod listen;
mod offer;
mod overhear;
mod pack;
mod recall;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use stead_engine::nodes::{Above, peers_outside, sub_site};
use stead_model::event::EventKind;
use stead_model::node::operations::delegated;
use stead_model::node::{Errand, ErrandBegun, ErrandEnd, ErrandVerb, NodeChange, NodeEntry, NodeStatus};
use stead_model::report::Warning;
use stead_model::site::Manifest;
use stead_model::site::manifest::Context;
use stead_model::token::LiveRing;
use stead_model::{ErrorClass, NodeName, RunId, SiteKey, Value};
use stead_runner::operation::{OpContext, OpError, Outcome, Stop};
use tokio::time::{Instant, sleep, timeout};

use super::act::CANCELLED;
use super::line::Line;
use super::{NodeView, NodesSurroundings, make};
use crate::errand::COMMAND;
pub(super) use deputy::Deputy;
use listen::Listening;
pub use offer::offers;
use recall::Recalled;

/// How long a hosting node is tried whose nodes are to go: they go with it in any case.
const LAST_TRY: Duration = Duration::from_secs(15);

/// How often an errand is begun again because nobody knows whether it was.
const MOST_TRIES: u32 = 20;

/// Between two tries to begin an errand, times as many as there were.
const TRY_PAUSE: Duration = Duration::from_millis(50);

/// Between two looks whether a run of before has ended.
const WAY_PAUSE: Duration = Duration::from_millis(250);

/// What is said of a node that a level below never came to.
const NOT_STARTED: &str = "not started";

/// What the level below is to do.
struct Wanted {
    verb: ErrandVerb,
    /// With which nodes; none: all of them.
    only: Option<Vec<NodeName>>,
    /// Whether this run removes the hosting node too.
    host_goes: bool,
}

impl NodesSurroundings {
    /// Has the stead of `deputy` do `verb` with its nodes.
    pub(super) async fn delegate(
        &self,
        cx: &OpContext,
        deputy: &Deputy<'_>,
        verb: &str,
    ) -> Result<Outcome, OpError> {
        let wanted = self.wanted(deputy, verb)?;
        if wanted.only.as_ref().is_some_and(Vec::is_empty) {
            return Ok(Outcome::default());
        }
        if wanted.verb == ErrandVerb::Create {
            self.refuse_moved(deputy).await?;
        }
        match (deputy, wanted.verb) {
            (Deputy::Node(node), ErrandVerb::Destroy) => self.destroy_below(cx, deputy, node, &wanted).await,
            (Deputy::Node(_) | Deputy::Host(_), _) => {
                let line = self.line_to(deputy).await?;
                self.run_below(cx, deputy, &wanted, line).await
            }
        }
    }

    /// Refuses to have nodes made that are there already, but not in the node that they are to be in: who would make them
    /// does not know of the machines they have.
    async fn refuse_moved(&self, deputy: &Deputy<'_>) -> Result<(), OpError> {
        let mut first = None;
        for index in self.below(deputy) {
            let node = self.node(self.parts.forest.nodes[index].name.as_str())?;
            let is_selected = self.parts.selection.selected.get(index) == Some(&true);
            let Some(before) = self.entry(&node.node.name).filter(|_| is_selected) else { continue };
            let Some(moved) = self.moved(&node, &before) else { continue };
            let message = moved.message.clone();
            let fail = |entry: &mut NodeEntry| {
                (entry.status, entry.error) = (NodeStatus::Failed, Some(message));
            };
            self.update(&node.node.name, false, fail).await?;
            first.get_or_insert(moved);
        }
        first.map_or(Ok(()), Err)
    }

    /// Has a hosting node remove nodes in it. Of one that goes as well they go with it, whatever it says to that.
    async fn destroy_below(
        &self,
        cx: &OpContext,
        deputy: &Deputy<'_>,
        node: &NodeView<'_>,
        wanted: &Wanted,
    ) -> Result<Outcome, OpError> {
        let name = &node.node.name;
        let done = match self.line_to_machine(node).await {
            Ok(Some(line)) => self.run_below(cx, deputy, wanted, line).await,
            // Nothing is left of the nodes in a machine that is not there.
            Ok(None) => return self.forget_below(name, wanted.only.as_deref()).await,
            Err(error) => Err(error),
        };
        match done {
            Err(error) if wanted.host_goes && cx.cancel.now() == Stop::No => {
                let text = format!("{}; the nodes in it are destroyed with it", error.message);
                let is_unreachable = error.class == ErrorClass::Unreachable;
                let code = if is_unreachable { "node/unreachable" } else { "node/not-removed-first" };
                self.parts.announcer.warn(Warning::new(code, text)).await;
                Ok(Outcome { changed: error.changed, ..Outcome::default() })
            }
            done => done,
        }
    }

    /// Opens a line to a hosting node whose nodes are to go; none: its machine is not there any more.
    async fn line_to_machine(&self, node: &NodeView<'_>) -> Result<Option<Line>, OpError> {
        let name = &node.node.name;
        let entry = self.entry(name);
        let known = entry.as_ref().and_then(|entry| entry.machine_id.as_ref());
        let driver = self.driver(&self.host_of(Some(node), entry.as_ref()))?;
        let unreachable = |text| OpError::new(ErrorClass::Unreachable, text);
        match self.find_machine(&*driver, name, known).await {
            Ok(None) => return Ok(None),
            Ok(Some(machine)) if !machine.state.is_live() => {
                return Err(unreachable(format!("the machine of {name} does not run")));
            }
            Ok(Some(machine)) => {
                if let Some(door) = machine.ssh.as_ref().filter(|_| known.is_none()) {
                    self.update(name, false, |entry| {
                        make::note_machine(entry, &machine, door);
                        entry.status = NodeStatus::Running;
                    })
                    .await?;
                }
            }
            // A driver that cannot say what is there may do so later; what is known of the machine is tried.
            Err(error) if known.is_some() && error.class != ErrorClass::Permanent => {}
            Err(error) => return Err(error),
        }
        let line = timeout(LAST_TRY, self.hosting_line(name)).await;
        line.unwrap_or_else(|_| Err(unreachable(format!("{name} does not answer")))).map(Some)
    }

    /// Has a deputy do what is wanted, and listens until that has ended.
    async fn run_below(
        &self,
        cx: &OpContext,
        deputy: &Deputy<'_>,
        wanted: &Wanted,
        line: Line,
    ) -> Result<Outcome, OpError> {
        let (line, mut listening) = self.begin_below(cx, deputy, wanted, line).await?;
        let end = self.listen(cx, deputy, &mut listening, line).await;
        let end = end.map_err(|error| OpError { changed: true, ..error })?;
        self.conclude(deputy, wanted.verb, &listening, &end).await
    }

    /// Has a deputy begin with what is wanted, once a run of before has ended there.
    async fn begin_below(
        &self,
        cx: &OpContext,
        deputy: &Deputy<'_>,
        wanted: &Wanted,
        mut line: Line,
    ) -> Result<(Line, Listening), OpError> {
        let mut repositories = None;
        if wanted.verb == ErrandVerb::Create {
            self.bring_images(deputy, wanted, &line).await?;
            repositories = self.bring_repositories(deputy, &line).await?;
        }
        let mut recalled = Recalled::of(cx, deputy.node())?;
        let mut tries = 0;
        let mut waits: Option<Instant> = None;
        loop {
            let errand = self.errand(cx, deputy, wanted, recalled.ended).await?;
            let errand = Errand { repositories: repositories.clone(), ..errand };
            match self.begin(&line, deputy, &errand).await {
                Ok(ErrandBegun { busy: Some(other), .. }) => {
                    let since = match waits {
                        Some(since) => since,
                        None => self.make_way(&line, deputy, wanted.verb, &other).await,
                    };
                    waits = Some(since);
                    // Who makes something may wait as long as the task.
                    let most = self.limit_of(deputy, |limits| limits.destroy);
                    if wanted.verb == ErrandVerb::Destroy && since.elapsed() > most {
                        let message = format!("the run {other} on {deputy} did not end");
                        return Err(OpError::new(ErrorClass::Timeout, message));
                    }
                    rest(cx, WAY_PAUSE).await?;
                }
                Ok(ErrandBegun { lost: true, .. }) => recalled.begin_next(),
                Ok(begun) => {
                    let mut listening = Listening::new(deputy, errand.run, begun.sha256, recalled.heard);
                    self.recall(deputy, &mut listening, recalled).await?;
                    return Ok((line, listening));
                }
                // Whether it was begun is not known, and beginning again does no harm.
                Err(error) if error.class == ErrorClass::Unreachable && tries < MOST_TRIES => {
                    tries += 1;
                    rest(cx, TRY_PAUSE * tries).await?;
                    line = self.line_to(deputy).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes over what the driver of before has heard of nodes: it may have been killed before it did.
    async fn recall(
        &self,
        deputy: &Deputy<'_>,
        listening: &mut Listening,
        recalled: Recalled,
    ) -> Result<(), OpError> {
        let said = recalled.said.iter();
        let changes = said.filter_map(|(origin, event)| self.change_of(deputy, origin, event));
        let mut last = BTreeMap::new();
        for change in changes {
            listening.note(&change);
            last.insert(change.name.clone(), change);
        }
        for change in last.into_values() {
            self.take_over(change).await?;
        }
        Ok(())
    }

    /// Returns what an event of a run below says of a node.
    fn change_of(&self, deputy: &Deputy<'_>, origin: &[NodeName], event: &Value) -> Option<NodeChange> {
        let mut change = listen::node_change(origin, event)?;
        if let (Deputy::Host(host), true) = (deputy, origin.is_empty()) {
            change.entry.host = (host.name != self.parts.host.name).then(|| host.name.clone());
        }
        Some(change)
    }

    /// Deals with a run of before that still works on the nodes of a deputy. Its driver is gone: it had the lock of this
    /// run. What is to be removed is not made any further, everything else waits until it has ended. Returns from when
    /// on is waited.
    async fn make_way(&self, line: &Line, deputy: &Deputy<'_>, verb: ErrandVerb, other: &RunId) -> Instant {
        let done = match (deputy, verb) {
            (Deputy::Node(_), ErrandVerb::Destroy) => {
                // Should that not be heard, it is waited for all the same.
                let argv = [COMMAND, "stop", "--run", other.as_str()];
                drop(self.ask(line, deputy.node(), &argv, Vec::new()).await);
                "stopped"
            }
            // Other drivers may use a host, and have locks of their own.
            (Deputy::Node(_) | Deputy::Host(_), _) => "waited for",
        };
        let text = format!("the run {other} works on the nodes of {deputy} already: it is {done}");
        self.parts.announcer.warn(Warning::new("node/busy", text)).await;
        Instant::now()
    }

    /// Returns what the level below is to do.
    fn wanted(&self, deputy: &Deputy<'_>, verb: &str) -> Result<Wanted, OpError> {
        let below: Vec<usize> = self.below(deputy);
        let names = |chosen: &dyn Fn(usize) -> bool| -> Vec<NodeName> {
            let found = below.iter().filter(|index| chosen(**index));
            found.map(|index| self.parts.forest.nodes[*index].name.clone()).collect()
        };
        let is_selected = |index: usize| self.parts.selection.selected.get(index).copied().unwrap_or(false);
        let run = self.first_run();
        let is_new = |index: usize| {
            let entry = self.entry(&self.parts.forest.nodes[index].name);
            entry.is_some_and(|entry| entry.is_made_by(run.as_ref()))
        };
        let orphans = self.parts.wishes.orphans.iter().filter(|name| self.is_run_by(deputy, name));
        let orphans: Vec<NodeName> = orphans.cloned().collect();
        let is_whole = orphans.is_empty() && below.iter().all(|index| is_selected(*index));
        let selected = (!is_whole).then(|| [names(&is_selected), orphans].concat());
        let own = match deputy {
            Deputy::Node(node) => Some(node.index).filter(|index| is_selected(*index)),
            Deputy::Host(_) => None,
        };
        let makes = |verb| Wanted { verb, only: selected.clone(), host_goes: false };
        match verb {
            delegated::CREATE => Ok(makes(ErrandVerb::Create)),
            delegated::VERIFY => Ok(makes(ErrandVerb::Verify)),
            delegated::DESTROY if !self.parts.wishes.only_new => {
                Ok(Wanted { host_goes: own.is_some(), ..makes(ErrandVerb::Destroy) })
            }
            // What was there before stays.
            delegated::DESTROY | delegated::ROLLBACK => Ok(Wanted {
                verb: ErrandVerb::Destroy,
                only: Some(names(&|index| is_selected(index) && is_new(index))),
                host_goes: own.is_some_and(is_new),
            }),
            other => Err(OpError::invalid(format!("a level below cannot `{other}`"))),
        }
    }

    /// Returns the nodes of a deputy, at any depth.
    fn below(&self, deputy: &Deputy<'_>) -> Vec<usize> {
        let below = self.part_of(deputy);
        below.iter().enumerate().filter(|(_, below)| **below).map(|(index, _)| index).collect()
    }

    /// Has a deputy begin.
    pub(super) async fn begin(
        &self,
        line: &Line,
        deputy: &Deputy<'_>,
        errand: &Errand,
    ) -> Result<ErrandBegun, OpError> {
        let said = self.ask(line, deputy.node(), &[COMMAND, "begin"], errand.to_bytes()).await?;
        let begun = serde_json::from_slice(&said.stdout).ok().filter(|_| said.code == Some(0));
        begun.ok_or_else(|| {
            OpError::operation(format!("{deputy} did not begin with its nodes: {}", said.complaint()))
        })
    }

    /// Returns what a deputy is given; `number` counts what it was given before by this task.
    async fn errand(
        &self,
        cx: &OpContext,
        deputy: &Deputy<'_>,
        wanted: &Wanted,
        number: u32,
    ) -> Result<Errand, OpError> {
        let own = cx.run_id.as_ref().map_or("run", RunId::as_str);
        let context = self.context_of(deputy, own);
        let run = run_below(&context.run, &[own, cx.task.as_str(), &number.to_string()])?;
        let mut errand = self.parcelled(deputy, wanted.verb, run, context, wanted.only.as_deref()).await?;
        let arguments = &mut errand.arguments;
        arguments.extend(["--run-id".to_owned(), errand.run.to_string()]);
        let mut add = |flag: &str, value: Option<&str>| {
            arguments.extend(value.into_iter().flat_map(|value| [flag.to_owned(), value.to_owned()]));
        };
        let wishes = &self.parts.wishes;
        add("--self-addr", self.address_of(deputy).as_deref());
        add("--mode", wishes.mode.map(|mode| mode.word()));
        add("--on-error", wishes.on_error.map(|wish| wish.word()));
        if wishes.skip_preflight {
            arguments.push("--skip-preflight".to_owned());
        }
        arguments.push("--yes".to_owned());
        Ok(errand)
    }

    /// Returns an errand with the site and the manifest of a deputy's part, and only these of its nodes.
    pub(super) async fn parcelled(
        &self,
        deputy: &Deputy<'_>,
        verb: ErrandVerb,
        run: RunId,
        context: Context,
        only: Option<&[NodeName]>,
    ) -> Result<Errand, OpError> {
        let parts = &self.parts;
        let place = |name: &NodeName| {
            let entry = self.entry(name)?;
            Some((entry.ip?.parse().ok()?, entry.ssh_port?))
        };
        let peers = peers_outside(&parts.manifest, &parts.forest, &self.part_of(deputy), &place);
        let manifest = self.manifest_of(deputy, Context { peers, ..context });
        let undescribed = || Manifest { name: SiteKey::parse(&parts.name).ok(), ..Manifest::default() };
        let ring = LiveRing::of(&parts.site, stead_runner::clock::now().as_micros() / 1_000_000).ok();
        let (driver, hosting) = self.hosting_of(deputy);
        let above = Above {
            site: &parts.site,
            ring: ring.as_ref(),
            driver,
            authorized_keys: &self.planted_keys().await?,
        };
        let described = manifest.clone().unwrap_or_else(undescribed);
        let parcel = sub_site(&above, &described, deputy, hosting.as_ref());
        let only = only.into_iter().flatten().flat_map(|name| ["--only".to_owned(), name.to_string()]);
        let arguments = only.collect();
        let manifest = manifest.map_or(Value::Null, |manifest| manifest.to_json());
        let host = deputy::host_key(deputy)?;
        Ok(Errand { run, verb, host, parcel, manifest, arguments, repositories: None })
    }

    /// Forgets nodes in `name`, which are gone; without a list all of them.
    async fn forget_below(&self, name: &NodeName, only: Option<&[NodeName]>) -> Result<Outcome, OpError> {
        let gone = only.map_or_else(|| self.nodes_in(name), <[NodeName]>::to_vec);
        for inner in gone {
            self.forget(&inner, false).await?;
        }
        Ok(Outcome::default())
    }

    /// Returns what the end of an errand means here. Nodes keep what was reported of them.
    async fn conclude(
        &self,
        deputy: &Deputy<'_>,
        verb: ErrandVerb,
        listening: &Listening,
        end: &ErrandEnd,
    ) -> Result<Outcome, OpError> {
        let changed = listening.changed;
        if end.code == Some(0) {
            return Ok(Outcome { changed, data: end.document.clone(), ..Outcome::default() });
        }
        let reason = reason(deputy, end);
        for index in self.below(deputy) {
            let inner = &self.parts.forest.nodes[index].name;
            let is_selected = self.parts.selection.selected.get(index).copied().unwrap_or(false);
            if verb == ErrandVerb::Create && is_selected && listening.never_started(inner) {
                let error = format!("{NOT_STARTED}: {reason}");
                self.update(inner, false, |entry| {
                    if entry.machine_id.is_none() {
                        (entry.status, entry.error) = (NodeStatus::Skipped, Some(error));
                    }
                })
                .await?;
            }
        }
        Err(OpError { changed, ..OpError::new(class_of(end.code), reason) })
    }

    /// Puts an event of a level below into this run's journal, and takes over what it says of a node.
    async fn hand_up(
        &self,
        cx: &OpContext,
        deputy: &Deputy<'_>,
        listening: &mut Listening,
        event: Value,
    ) -> Result<(), OpError> {
        let (origin, event) = listen::origin(deputy.node(), event);
        let change = self.change_of(deputy, &origin, &event);
        // Those of deeper levels are warnings of the run right below as well.
        let is_own = origin.iter().eq(deputy.node());
        let warning = is_own.then(|| listen::warning(&event)).flatten();
        let said = EventKind::Delegated { task: cx.task.clone(), origin, event: Box::new(event) };
        self.parts.announcer.say(said).await;
        if let Some(warning) = warning {
            self.parts.announcer.warn(warning).await;
        }
        let Some(change) = change else { return Ok(()) };
        listening.note(&change);
        self.take_over(change).await
    }
}

/// Waits, unless the run is to stop.
async fn rest(cx: &OpContext, pause: Duration) -> Result<(), OpError> {
    tokio::select! {
        () = sleep(pause) => Ok(()),
        () = cx.cancel.at_least(Stop::Ask) => Err(OpError::operation(CANCELLED)),
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

/// Returns what the exit code of a run below that did not go well means for the task. Locks are a level's own business.
fn class_of(code: Option<i32>) -> ErrorClass {
    match code {
        Some(3) => ErrorClass::Permanent,
        Some(7) => ErrorClass::Unreachable,
        Some(8) => ErrorClass::Timeout,
        Some(_) | None => ErrorClass::Operation,
    }
}

/// Returns why a run below did not go well, in its own words.
fn reason(name: &impl fmt::Display, end: &ErrandEnd) -> String {
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
    fn how_a_run_below_ended_is_how_its_task_ends() {
        for (code, class) in [
            (Some(1), ErrorClass::Operation),
            (Some(3), ErrorClass::Permanent),
            (Some(5), ErrorClass::Operation),
            (Some(7), ErrorClass::Unreachable),
            (Some(8), ErrorClass::Timeout),
            (Some(130), ErrorClass::Operation),
            (None, ErrorClass::Operation),
        ] {
            assert_eq!(class_of(code), class, "{code:?}");
        }
    }

    #[test]
    fn the_reason_of_a_failure_is_the_levels_own() {
        let name = "quay";
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

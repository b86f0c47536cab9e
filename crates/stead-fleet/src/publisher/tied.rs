//! Groups of a commit between which VMs move: each is evaluated and built on its own, and they are given to the master at
//! once. Where one of them fails the others are not given: a VM that goes to a group that failed runs on where it is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Deserialize;
use stead_engine::fleet::cluster::MOVES_TOGETHER;
use stead_engine::fleet::ties::ties;
use stead_model::fleet::VmSpec;
use stead_model::fleet::state::{Outcome, Problem, Publication, Verdict};
use stead_model::{GroupName, VmId};
use tokio::sync::watch;

use super::failure::{Failure, Stage};
use crate::api::{CallError, Master};

/// How far the groups of a commit are.
pub(super) struct Tied {
    rows: watch::Sender<BTreeMap<GroupName, Row>>,
}

#[derive(Clone, Debug, Default)]
struct Row {
    /// The VMs, once they are known; none of them if the group could not be evaluated so far.
    vms: Option<Option<Arc<BTreeSet<VmId>>>>,
    /// What waits for the other groups.
    ready: Option<Publication>,
    /// What the master said.
    answer: Option<Result<Verdict, CallError>>,
    /// How it ended.
    end: Option<Result<(), Failure>>,
}

/// What a group that waits for others does next.
enum Turn {
    Wait,
    Submit(Vec<Publication>),
    Answered(Result<Verdict, CallError>),
    Failed(GroupName, Failure),
}

/// The part of a snapshot that says who has what.
#[derive(Deserialize)]
struct Standing {
    #[serde(default)]
    groups: Vec<StandingGroup>,
}

#[derive(Deserialize)]
struct StandingGroup {
    group: GroupName,
    specs: Vec<StandingVm>,
}

#[derive(Deserialize)]
struct StandingVm {
    id: VmId,
}

impl Tied {
    /// Begins with the groups that have VMs.
    pub(super) fn new(groups: impl Iterator<Item = GroupName>) -> Self {
        Self { rows: watch::Sender::new(groups.map(|group| (group, Row::default())).collect()) }
    }

    /// Says which VMs a group has.
    pub(super) fn evaluated(&self, group: &GroupName, specs: &[VmSpec]) {
        let vms = Arc::new(specs.iter().map(|spec| spec.id.clone()).collect());
        self.change(group, |row| row.vms = Some(Some(vms)));
    }

    /// Says that a group failed and may be tried again: others wait for it no longer, unless its VMs are known.
    pub(super) fn failed(&self, group: &GroupName) {
        self.change(group, |row| row.vms = row.vms.take().or(Some(None)));
    }

    /// Says how a group ended.
    pub(super) fn ended(&self, group: &GroupName, end: Result<(), Failure>) {
        self.change(group, |row| row.end = Some(end));
    }

    fn change(&self, group: &GroupName, change: impl FnOnce(&mut Row)) {
        self.rows.send_if_modified(|rows| rows.get_mut(group).map(change).is_some());
    }

    /// Gives a group to the master, with those that VMs come from or go to.
    pub(super) async fn publish(
        &self,
        publication: Publication,
        master: &dyn Master,
        publisher: &str,
    ) -> Result<Verdict, Failure> {
        let list = self.partners(&publication, master).await?;
        let verdict = self.publish_with(&list, publication.clone(), master, publisher).await?;
        let is_taken = |problem: &Problem| ["duplicate-id", MOVES_TOGETHER].contains(&problem.code.as_str());
        if verdict.outcome != Outcome::Invalid || !verdict.problems.iter().all(is_taken) {
            return Ok(verdict);
        }
        // What waited may have become active since the master was asked who has what.
        let now = self.partners(&publication, master).await?;
        if now == list {
            return Ok(verdict);
        }
        self.publish_with(&now, publication, master, publisher).await
    }

    /// Gives a group to the master together with others, of which whoever is ready last gives all.
    async fn publish_with(
        &self,
        list: &BTreeSet<GroupName>,
        publication: Publication,
        master: &dyn Master,
        publisher: &str,
    ) -> Result<Verdict, Failure> {
        if list.len() < 2 {
            let answer = master.publish(publication, publisher).await;
            return answer.map_err(|error| Failure::call(&error));
        }
        let group = publication.group.clone();
        self.change(&group, |row| (row.ready, row.answer) = (Some(publication), None));
        let mut changes = self.rows.subscribe();
        loop {
            match self.turn(&group, list) {
                Turn::Wait => {}
                Turn::Answered(answer) => return answer.map_err(|error| Failure::call(&error)),
                Turn::Failed(other, failure) => {
                    let first = failure.error.lines().next().unwrap_or_default();
                    let error = format!(
                        "VMs move between it and group `{other}`, which failed and keeps them here: {first}"
                    );
                    return Err(Failure { stage: Stage::Submitted, vm: None, error, ..failure });
                }
                Turn::Submit(publications) => {
                    let groups: Vec<GroupName> = publications.iter().map(|one| one.group.clone()).collect();
                    let found = master.publish_together(publications, publisher).await;
                    self.rows.send_modify(|rows| answer(rows, &groups, found));
                    continue;
                }
            }
            // The sender lives as long as this.
            changes.changed().await.unwrap_or(());
        }
    }

    /// Returns the groups that are given to the master at once with this one.
    async fn partners(
        &self,
        publication: &Publication,
        master: &dyn Master,
    ) -> Result<BTreeSet<GroupName>, Failure> {
        let group = &publication.group;
        let alone = BTreeSet::from([group.clone()]);
        if self.rows.borrow().len() < 2 {
            return Ok(alone);
        }
        let active = standing(master).await.map_err(|error| Failure::call(&error))?;
        let mine: BTreeSet<&VmId> = publication.specs.iter().map(|spec| &spec.id).collect();
        let is_moved = |(id, owner): (&VmId, &GroupName)| (owner == group) != mine.contains(id);
        if !active.iter().any(is_moved) {
            return Ok(alone);
        }
        let is_known =
            |(name, row): (&GroupName, &Row)| name == group || row.vms.is_some() || row.end.is_some();
        let mut changes = self.rows.subscribe();
        let Ok(rows) = changes.wait_for(|rows| rows.iter().all(is_known)).await else { return Ok(alone) };
        let next = rows.iter().filter_map(|(name, row)| {
            let vms = row.vms.as_ref()?.as_ref()?;
            Some((name.clone(), BTreeSet::clone(vms)))
        });
        Ok(ties(&active, &next.collect()).into_iter().find(|list| list.contains(group)).unwrap_or(alone))
    }

    /// Returns what a group that waits does next; whoever comes last takes all of them.
    fn turn(&self, group: &GroupName, list: &BTreeSet<GroupName>) -> Turn {
        let mut turn = Turn::Wait;
        self.rows.send_if_modified(|rows| {
            if let Some(answer) = rows.get_mut(group).and_then(|row| row.answer.take()) {
                turn = Turn::Answered(answer);
                return false;
            }
            let others = list.iter().filter_map(|name| Some((name, rows.get(name)?)));
            let failed = others.clone().find_map(|(name, row)| match &row.end {
                Some(Err(failure)) => Some((name.clone(), failure.clone())),
                Some(Ok(())) | None => None,
            });
            if let Some((name, failure)) = failed {
                if let Some(row) = rows.get_mut(group) {
                    row.ready = None;
                }
                turn = Turn::Failed(name, failure);
                return false;
            }
            // One that ended well went before.
            if others.clone().all(|(_, row)| row.ready.is_some() || row.end.is_some()) {
                let ready = list.iter().filter_map(|name| rows.get_mut(name)?.ready.take());
                turn = Turn::Submit(ready.collect());
            }
            false
        });
        turn
    }
}

/// Hands out what the master said.
fn answer(rows: &mut BTreeMap<GroupName, Row>, groups: &[GroupName], found: Result<Vec<Verdict>, CallError>) {
    for (at, group) in groups.iter().enumerate() {
        let Some(row) = rows.get_mut(group) else { continue };
        let missing = || CallError::Away("the master's answer lacks a group".to_owned());
        row.answer = Some(match &found {
            Ok(verdicts) => verdicts.get(at).cloned().ok_or_else(missing),
            Err(error) => Err(error.clone()),
        });
    }
}

/// Returns which group has which VM now.
async fn standing(master: &dyn Master) -> Result<BTreeMap<VmId, GroupName>, CallError> {
    let text = master.snapshot().await?.0;
    let standing: Standing = serde_json::from_str(&text)
        .map_err(|error| CallError::Away(format!("the master's snapshot cannot be read: {error}")))?;
    let groups = standing.groups.into_iter();
    Ok(groups.flat_map(|one| one.specs.into_iter().map(move |vm| (vm.id, one.group.clone()))).collect())
}

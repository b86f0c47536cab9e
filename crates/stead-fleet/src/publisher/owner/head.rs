//! What is seen of the branch, and what follows: a head is inspected, accepted, or refused.

use std::sync::Arc;
use std::time::Duration;

use stead_engine::fleet::watch::{self as branch, Action, Seen};
use stead_model::fleet::CommitId;
use tokio::time::Instant;

use super::{ASK_AGAIN, Owner};
use crate::api::CallError;
use crate::events::{Ev, Fields};
use crate::publisher::Ending;
use crate::publisher::failure::SUPERSEDED;
use crate::publisher::git::{GitError, Remote};
use crate::publisher::kept::Rejection;
use crate::publisher::look::{Anchor, Found, Inspected, ask, describe, inspect, wall_clock};

impl Owner {
    pub(super) fn seen_remote(&mut self, found: Result<Remote, GitError>) {
        if found.is_ok() {
            // Of one that does not answer the age grows.
            self.watcher.last_poll = wall_clock();
            self.settings.metrics.polled();
        }
        let seen = match found {
            Ok(Remote::Head(head)) => {
                let head = self.settings.commit.clone().unwrap_or(head);
                if self.head.replace(head.clone()).as_ref() != Some(&head) {
                    self.note(Ev::HeadSeen, Fields { commit: Some(head.clone()), ..Fields::default() });
                }
                self.watcher.head = Some(head.clone());
                Seen::Head(head)
            }
            Ok(Remote::Missing) => Seen::Missing,
            Err(error) => return self.away(&error),
        };
        self.decide(seen);
    }

    fn away(&mut self, error: &GitError) {
        self.watch_state("unreachable", Some(error.to_string()));
        self.ending = Ending::Away;
        self.decide(Seen::Error);
    }

    fn watch_state(&mut self, state: &str, error: Option<String>) {
        if let (Some(events), Some(error)) =
            (&self.settings.events, error.as_ref().filter(|_| self.watcher.error != error))
        {
            events.say(&format!("{state}: {error}"));
        }
        self.watcher.state = state.to_owned();
        self.watcher.error = error;
    }

    pub(super) fn inspected(&mut self, found: Result<Inspected, GitError>) {
        let found = match found {
            Ok(found) => found,
            Err(error) => return self.away(&error),
        };
        if !found.is_contained {
            let why = format!("{} does not contain commit {}", self.file.reference, found.head);
            self.watch_state("rewrite-rejected", Some(why));
            self.ending = Ending::Rejected;
            return;
        }
        self.contains = found.contains;
        let Inspected { head, is_descendant, signature, .. } = found;
        self.decide(Seen::Inspected { head, is_descendant, signature });
    }

    pub(super) fn anchored(&mut self, found: Result<Anchor, CallError>) {
        let anchor = match found {
            Ok(anchor) => anchor,
            Err(error) => {
                self.watch_state("waiting-for-master", Some(error.to_string()));
                self.ending = match error {
                    CallError::Away(_) | CallError::NotLeader { .. } => Ending::Away,
                    CallError::Refused { .. } => Ending::Failed,
                };
                self.next_look = Instant::now() + ASK_AGAIN.min(self.file.poll);
                return;
            }
        };
        let newest = anchor.groups.iter().max_by_key(|group| group.generation);
        let commit = newest.map(|group| group.commit.clone());
        self.kept.groups.extend(anchor.groups.iter().map(|group| group.group.clone()));
        self.kept.accepted.clone_from(&commit);
        self.decide(Seen::Anchor(commit.clone()));
        self.save();
        let Some(head) = self.head.clone() else { return };
        if self.is_lost && commit.as_ref() == Some(&head) {
            // Which of its groups the master does not have yet, nobody remembers: it does, and takes none twice.
            self.is_lost = false;
            self.looks.spawn(inspect(self.git.clone(), head, commit));
            return;
        }
        self.decide(Seen::Head(head));
    }

    /// Does what the engine decides about what was seen.
    fn decide(&mut self, seen: Seen) {
        let was_head = matches!(seen, Seen::Head(_));
        let (policy, now) = (self.policy(), self.now());
        let waiting = self.branch.pending.as_ref().map(|(head, _)| head.clone());
        let action = branch::decide(&mut self.branch, seen, policy, now);
        if let (Some(old), Some((new, _))) = (&waiting, &self.branch.pending) {
            self.note_superseded(old, new);
        } else if let (Some(old), Action::Evaluate(new)) = (&waiting, &action) {
            self.note_superseded(old, new);
        }
        match action {
            Action::None if was_head => self.unchanged(),
            Action::None => {}
            Action::Inspect(head) => {
                let accepted = self.branch.accepted.clone();
                self.looks.spawn(inspect(self.git.clone(), head, accepted));
            }
            Action::Evaluate(head) => self.accept(head),
            Action::WaitUntil(at) => {
                self.watch_state("ok", None);
                let at = self.started + Duration::from_millis(at);
                self.next_look = self.next_look.min(at);
            }
            Action::RejectRewrite { old, new } => {
                let why = format!(
                    "{} was rewritten: {new} does not contain {old}, which was accepted; push a commit that does, or set `rewrites: allow`",
                    self.file.reference
                );
                self.reject(new, "rewrite-rejected", why);
            }
            Action::RejectSignature(bad) => {
                let head = self.branch.rejected.clone().unwrap_or_else(|| bad.commit.clone());
                self.reject(head, "signature-rejected", describe(&bad));
            }
            Action::RefMissing => {
                let why = format!("the repository has no {}; what runs stays", self.file.reference);
                self.watch_state("ref-missing", Some(why));
                self.ending = Ending::Away;
            }
            Action::Backoff { until } => {
                self.next_look = self.started + Duration::from_millis(until);
            }
            Action::AskMaster => {
                let master = Arc::clone(&self.master);
                self.looks.spawn(async move { Found::Anchor(ask(master.as_ref()).await) });
            }
        }
    }

    /// Writes down that a head had not stayed for long enough when another came.
    fn note_superseded(&self, old: &CommitId, new: &CommitId) {
        if old != new {
            let (stage, reason) = (SUPERSEDED.to_owned(), format!("by {new}"));
            self.note(Ev::Pipeline, Fields { commit: Some(old.clone()), stage, reason, ..Fields::default() });
        }
    }

    /// The head is what was accepted or refused last.
    fn unchanged(&mut self) {
        let rejected = self.kept.rejected.as_ref();
        match rejected.filter(|rejection| Some(&rejection.head) == self.head.as_ref()).cloned() {
            Some(rejection) => {
                self.ending = Ending::Rejected;
                self.watch_state(&rejection.state, Some(rejection.error));
            }
            None => {
                self.watch_state("ok", None);
                self.watcher.rejected = None;
                if self.kept.rejected.take().is_some() {
                    self.save();
                }
            }
        }
    }

    fn reject(&mut self, head: CommitId, state: &str, error: String) {
        self.ending = Ending::Rejected;
        self.watch_state(state, Some(error.clone()));
        self.watcher.rejected = Some(head.clone());
        self.note(
            Ev::HeadRejected,
            Fields {
                commit: Some(head.clone()),
                code: state.to_owned(),
                reason: error.clone(),
                ..Fields::default()
            },
        );
        self.kept.rejected = Some(Rejection { head, state: state.to_owned(), error });
        self.save();
    }

    fn accept(&mut self, head: CommitId) {
        self.watch_state("ok", None);
        self.watcher.rejected = None;
        self.is_lost = false;
        if let Some(work) = self.kept.work.as_ref().filter(|work| !work.is_done) {
            let (commit, generation) = (Some(work.commit.clone()), work.generation);
            let (stage, reason) = (SUPERSEDED.to_owned(), format!("by {head}"));
            self.note(Ev::Pipeline, Fields { commit, generation, stage, reason, ..Fields::default() });
        }
        self.kept.accept(head, std::mem::take(&mut self.contains));
        self.save();
        self.start();
    }
}

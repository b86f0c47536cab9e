//! What a publisher does about what it sees of a branch. A branch is never rewritten, deleted or unsigned into effect.
//!
//! ```text
//! look (git ls-remote) ─▶ Seen::Head ─▶ Inspect ─▶ Seen::Inspected ─▶ Evaluate, after the debounce
//!                         Missing, Error                             RejectRewrite, RejectSignature
//! ```
//!
//! Looking at an unchanged branch starts nothing; a new head is fetched and inspected (its ancestry and signatures)
//! before anything of it is evaluated. Without a known anchor the master is asked for the active commit.

use stead_model::fleet::services::publisher::Rewrites;
use stead_model::fleet::{CommitId, Millis};

#[cfg(test)]
mod tests;

/// The first and the longest wait after an error.
const BACKOFF: (Millis, Millis) = (5_000, 600_000);

/// What is remembered of a branch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The last head that was accepted; none: nothing was yet, or the state was lost.
    pub accepted: Option<CommitId>,
    /// Whether there is surely nothing to compare with: the master has no commit either.
    pub is_first: bool,
    /// The last head that was refused.
    pub rejected: Option<CommitId>,
    /// A head that was found good and has to stay for a while.
    pub pending: Option<(CommitId, Millis)>,
    /// Errors in a row.
    pub failures: u32,
    /// Not before.
    pub wait_until: Millis,
    /// When the branch was last seen.
    pub last_seen: Option<Millis>,
}

/// What was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Time passed; nothing was looked at.
    Nothing,
    /// The head of the branch.
    Head(CommitId),
    /// The head was fetched and looked into.
    Inspected {
        /// The head.
        head: CommitId,
        /// Whether the last accepted head is among its ancestors.
        is_descendant: bool,
        /// What is wrong with a signature that has to be there.
        signature: Option<BadSignature>,
    },
    /// The repository answers and has no such branch.
    Missing,
    /// The repository cannot be read.
    Error,
    /// What the master has active: a commit, or nothing at all.
    Anchor(Option<CommitId>),
}

/// What is wrong with a signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSignature {
    /// The commit, which may be below the head.
    pub commit: CommitId,
    /// What is wrong.
    pub fault: SignatureFault,
}

/// What is wrong with a signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignatureFault {
    /// There is none.
    Unsigned,
    /// Nobody who may sign made it.
    UnknownKey {
        /// The key's fingerprint.
        fingerprint: String,
    },
    /// It does not fit the commit.
    Bad,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    None,
    /// Fetch the head and look into it.
    Inspect(CommitId),
    /// Evaluate it; it is the accepted head from now on. What was under way for an older one is superseded.
    Evaluate(CommitId),
    /// Look again at this moment at the latest.
    WaitUntil(Millis),
    /// Refuse a branch that was rewritten.
    RejectRewrite {
        /// The last accepted head.
        old: CommitId,
        /// The new one.
        new: CommitId,
    },
    /// Refuse a signature.
    RejectSignature(BadSignature),
    /// The branch is gone; what runs stays.
    RefMissing,
    /// The repository is away; what runs stays.
    Backoff {
        /// Not before.
        until: Millis,
    },
    /// Ask the master for the active commit.
    AskMaster,
}

/// How a branch is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchPolicy {
    /// How long a new head has to stay.
    pub debounce: Millis,
    /// What becomes of a rewritten branch.
    pub rewrites: Rewrites,
}

/// Returns what is to be done about what was seen.
pub fn decide(state: &mut State, seen: Seen, policy: WatchPolicy, now: Millis) -> Action {
    match seen {
        Seen::Nothing => ripe(state, policy, now),
        Seen::Missing => {
            state.last_seen = Some(now);
            state.pending = None;
            state.failures = 0;
            Action::RefMissing
        }
        Seen::Error => {
            let doubled = BACKOFF.0.saturating_mul(1 << state.failures.min(16));
            state.failures = state.failures.saturating_add(1);
            state.wait_until = now.saturating_add(doubled.min(BACKOFF.1));
            Action::Backoff { until: state.wait_until }
        }
        Seen::Anchor(commit) => {
            state.is_first = commit.is_none();
            state.accepted = state.accepted.take().or(commit);
            Action::None
        }
        Seen::Head(head) => {
            state.last_seen = Some(now);
            state.failures = 0;
            if state.accepted.is_none() && !state.is_first {
                return Action::AskMaster;
            }
            let is_accepted = state.accepted.as_ref() == Some(&head);
            if is_accepted || state.rejected.as_ref() == Some(&head) {
                // A branch that is back where it was has nothing about it that would be refused.
                state.rejected = state.rejected.take().filter(|_| !is_accepted);
                state.pending = None;
                return Action::None;
            }
            match &state.pending {
                Some((pending, _)) if *pending == head => ripe(state, policy, now),
                Some(_) | None => Action::Inspect(head),
            }
        }
        Seen::Inspected { head, is_descendant, signature } => {
            inspected(state, head, is_descendant, signature, policy, now)
        }
    }
}

fn inspected(
    state: &mut State,
    head: CommitId,
    is_descendant: bool,
    signature: Option<BadSignature>,
    policy: WatchPolicy,
    now: Millis,
) -> Action {
    if let (Some(old), false, Rewrites::Reject) = (&state.accepted, is_descendant, policy.rewrites) {
        let old = old.clone();
        state.rejected = Some(head.clone());
        state.pending = None;
        return Action::RejectRewrite { old, new: head };
    }
    if let Some(bad) = signature {
        state.rejected = Some(head);
        state.pending = None;
        return Action::RejectSignature(bad);
    }
    state.pending = Some((head, now));
    ripe(state, policy, now)
}

/// Returns the pending head once it has stayed for long enough.
fn ripe(state: &mut State, policy: WatchPolicy, now: Millis) -> Action {
    let Some((head, since)) = &state.pending else { return Action::None };
    let due = since.saturating_add(policy.debounce);
    if now < due {
        return Action::WaitUntil(due);
    }
    let head = head.clone();
    state.pending = None;
    state.rejected = None;
    state.accepted = Some(head.clone());
    Action::Evaluate(head)
}

/// What failed on the way from a commit to a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureClass {
    /// It is not tried again until there is a new head.
    Permanent,
    /// Network, cache or master: tried again without end.
    Transient,
    /// Memory or time: tried twice more.
    Resource,
}

/// Returns when a failed pipeline is tried again; none: not at all. `failures` counts those of this stage, this one included.
pub fn retry_at(class: FailureClass, failures: u32, now: Millis) -> Option<Millis> {
    const LONGEST: Millis = 300_000;
    let wait = BACKOFF.0.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST);
    match class {
        FailureClass::Permanent => None,
        FailureClass::Transient => Some(now.saturating_add(wait)),
        FailureClass::Resource => (failures <= 2).then(|| now.saturating_add(wait)),
    }
}

//! Looks at the repository and at the master, and tells the master what was seen. Whoever asked decides.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use stead_engine::fleet::watch::{BadSignature, SignatureFault};
use stead_model::GroupName;
use stead_model::fleet::{CommitId, Millis};
use stead_runner::clock;
use tokio::sync::{Notify, watch};

use super::git::{Git, GitError, Remote};
use crate::api::{CallError, Master, PipelineReport, UNPUBLISHED};

/// How soon a report that did not arrive is sent again.
const TELL_AGAIN: Duration = Duration::from_secs(2);

/// What a look found.
pub(super) enum Found {
    /// What the remote has.
    Remote(Result<Remote, GitError>),
    /// What a head is.
    Inspected(Result<Inspected, GitError>),
    /// What the master has active.
    Anchor(Result<Anchor, CallError>),
}

/// A head that was looked into.
pub(super) struct Inspected {
    /// Which.
    pub(super) head: CommitId,
    /// Whether the ref contains it.
    pub(super) is_contained: bool,
    /// Whether it contains the last accepted one.
    pub(super) is_descendant: bool,
    /// What is wrong with a signature.
    pub(super) signature: Option<BadSignature>,
    /// The commits it contains, newest first.
    pub(super) contains: Vec<CommitId>,
}

/// What the master has.
#[derive(Deserialize)]
pub(super) struct Anchor {
    /// Its groups.
    #[serde(default)]
    pub(super) groups: Vec<AnchorGroup>,
}

/// A group of the master.
#[derive(Deserialize)]
pub(super) struct AnchorGroup {
    /// Its name.
    pub(super) group: GroupName,
    /// What is active of it.
    pub(super) generation: u64,
    /// Of which commit.
    pub(super) commit: CommitId,
}

/// Fetches a head and looks into it.
pub(super) async fn inspect(git: Git, head: CommitId, accepted: Option<CommitId>) -> Found {
    let look = async {
        git.fetch(&head).await?;
        if !git.has(&head).await? || !git.contains(&head).await? {
            let (is_contained, is_descendant) = (false, false);
            let (signature, contains) = (None, Vec::new());
            return Ok(Inspected { head: head.clone(), is_contained, is_descendant, signature, contains });
        }
        let is_descendant = match &accepted {
            Some(accepted) => git.is_ancestor(accepted, &head).await?,
            None => true,
        };
        // Of a branch that was rewritten, too, everything is new that the accepted head does not contain.
        let since = match &accepted {
            Some(accepted) if git.has(accepted).await? => Some(accepted),
            Some(_) | None => None,
        };
        let signature = git.bad_signature(since, &head).await?;
        let contains = git.contained(&head).await?;
        Ok(Inspected { head: head.clone(), is_contained: true, is_descendant, signature, contains })
    };
    Found::Inspected(look.await)
}

/// Asks the master what it has.
pub(super) async fn ask(master: &dyn Master) -> Result<Anchor, CallError> {
    let snapshot = master.snapshot().await?;
    serde_json::from_str(&snapshot.0).map_err(|error| CallError::Refused {
        code: "bad-snapshot".to_owned(),
        message: format!("the master's snapshot cannot be read: {error}"),
    })
}

/// Tells the master what is new, until the owner is gone. A master that lost its state answers that it does not have what
/// was published: then `again` is told.
pub(super) async fn report(
    master: Arc<dyn Master>,
    mut reports: watch::Receiver<PipelineReport>,
    again: Arc<Notify>,
) {
    while reports.changed().await.is_ok() {
        loop {
            let report = reports.borrow_and_update().clone();
            match master.report_pipeline(report).await {
                Err(CallError::Refused { code, .. }) if code == UNPUBLISHED => {
                    again.notify_one();
                    break;
                }
                Ok(()) | Err(CallError::Refused { .. }) => break,
                Err(CallError::Away(_) | CallError::NotLeader { .. }) => tokio::time::sleep(TELL_AGAIN).await,
            }
        }
    }
}

pub(super) fn describe(bad: &BadSignature) -> String {
    let commit = &bad.commit;
    match &bad.fault {
        SignatureFault::Unsigned => format!("commit {commit} is not signed (unsigned)"),
        SignatureFault::UnknownKey { fingerprint } => {
            format!("commit {commit} is signed by {fingerprint}, who may not (unknown-key)")
        }
        SignatureFault::Bad => format!("the signature of commit {commit} does not fit it (bad)"),
    }
}

/// Returns a length of time, a tenth longer or shorter: many publishers do not look at once.
pub(super) fn jittered(poll: Duration) -> Duration {
    let mut byte = [128];
    // Without a source of randomness it is exact, which is as good for one.
    getrandom::fill(&mut byte).unwrap_or(());
    let [byte] = byte;
    poll * (9000 + u32::from(byte) * 2000 / 255) / 10_000
}

pub(super) fn wall_clock() -> Millis {
    Millis::try_from(clock::now().as_micros() / 1000).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 2: polls are a tenth longer or shorter, at random, and never more.
    #[test]
    fn polls_are_a_tenth_longer_or_shorter_at_random() {
        for poll in [Duration::from_secs(1), Duration::from_secs(60), Duration::from_secs(24 * 3600)] {
            let waits: Vec<Duration> = (0..2_000).map(|_| jittered(poll)).collect();
            let (shortest, longest) = (*waits.iter().min().unwrap(), *waits.iter().max().unwrap());
            assert!(shortest >= poll * 9 / 10 && longest <= poll * 11 / 10, "{shortest:?} {longest:?}");
            // Out of 2,000 some are near either end: that none is has a chance of less than one in 10^20.
            assert!(shortest < poll * 91 / 100 && longest > poll * 109 / 100, "{shortest:?} {longest:?}");
            let count = waits.iter().collect::<std::collections::BTreeSet<_>>().len();
            assert!(count > 100, "{count} different ones");
        }
    }
}

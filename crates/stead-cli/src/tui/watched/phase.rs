//! A phase of a run, or a task of one without phases.

use stead_model::Status;
use stead_model::duration::Short;
use stead_model::time::Timestamp;

/// A phase or task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Phase {
    /// Its name.
    pub(crate) name: String,
    /// How it stands.
    pub(crate) state: PhaseState,
    /// Why it ended so.
    pub(crate) note: Option<String>,
}

/// How a phase stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PhaseState {
    /// It has not begun.
    Waiting,
    /// It goes on.
    Running {
        /// Since when.
        since: Timestamp,
    },
    /// It ended, or was decided not to run.
    Ended {
        /// How.
        status: Status,
        /// How long it took.
        millis: u64,
    },
}

impl Phase {
    pub(super) fn waiting(name: &str) -> Self {
        Self { name: name.to_owned(), state: PhaseState::Waiting, note: None }
    }

    /// Returns how it ended, if it has.
    pub(crate) fn status(&self) -> Option<Status> {
        match self.state {
            PhaseState::Ended { status, .. } => Some(status),
            PhaseState::Waiting | PhaseState::Running { .. } => None,
        }
    }

    /// Returns the word for how it stands; a phase of roles is done whatever it changed.
    pub(crate) fn word(&self, is_phase: bool) -> &'static str {
        match self.state {
            PhaseState::Waiting => "waiting",
            PhaseState::Running { .. } => "running",
            PhaseState::Ended { status: Status::Changed | Status::Unchanged, .. } if is_phase => "done",
            PhaseState::Ended { status, .. } => status.as_str(),
        }
    }

    /// Returns how long it has been going on or took; empty if it never began.
    pub(crate) fn time(&self, now: Timestamp) -> String {
        match self.state {
            PhaseState::Waiting
            | PhaseState::Ended { status: Status::Skipped | Status::NotRun | Status::Unknown, .. } => {
                String::new()
            }
            PhaseState::Running { since } => Short::from_millis(now.millis_since(since)).to_string(),
            PhaseState::Ended {
                status: Status::Changed | Status::Unchanged | Status::Failed | Status::Cancelled,
                millis,
            } => Short::from_millis(millis).to_string(),
        }
    }
}

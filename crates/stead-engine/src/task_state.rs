//! How a task, and one host's part of it, change state.
//!
//! [`TaskState::after`] and [`RowState::after`] are the only places where that happens: a live run,
//! crash recovery and the replay of a bundle all feed their events through them.

use stead_model::event::{Event, EventKind};
use stead_model::status::{Cause, Class, Status};

/// How a decided task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// How it ended.
    pub status: Status,
    /// Whether something is different now.
    pub changed: bool,
    /// Why it was skipped.
    pub cause: Option<Cause>,
}

impl Decision {
    /// Returns what the end means to dependents.
    pub fn class(self) -> Class {
        self.status.class(self.cause)
    }
}

/// Where a task stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskState {
    /// Not decided yet whether it runs.
    #[default]
    Waiting,
    /// Rule and guards passed; queued.
    Ready,
    /// It has taken a slot; its rows decide.
    Running,
    /// Decided.
    Done(Decision),
    /// Decided, and being undone.
    Undoing(Decision),
    /// Decided, and undone; the status says how that went.
    Undone(Decision, Status),
}

/// An event that cannot follow the state a task or row is in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event {seq} ({event}) cannot follow state {state} of task `{task}`")]
pub struct IllegalTransition {
    /// The task.
    pub task: String,
    /// Its state, in words.
    pub state: String,
    /// The event's number.
    pub seq: u64,
    /// The event, in words.
    pub event: String,
}

impl IllegalTransition {
    pub(crate) fn new(state: &dyn std::fmt::Debug, event: &Event) -> Self {
        let task = event.kind.task().map(ToString::to_string).unwrap_or_default();
        let mut text = format!("{:?}", event.kind);
        text.truncate(text.find([' ', '(']).unwrap_or(text.len()));
        Self { task, state: format!("{state:?}"), seq: event.seq, event: text }
    }
}

impl TaskState {
    /// Returns the state that follows `event`, which is about this task.
    ///
    /// [`EventKind::RunResumed`] is about a task if it lists it or if the task was not decided.
    pub fn after(&self, event: &Event) -> Result<Self, IllegalTransition> {
        use EventKind as E;
        match (*self, &event.kind) {
            (Self::Waiting, E::TaskReady { .. }) => Ok(Self::Ready),
            (Self::Waiting, E::Confirmed { .. }) => Ok(Self::Waiting),
            (Self::Waiting, E::TaskSkipped { cause, .. }) => {
                Ok(Self::Done(Decision { status: Status::Skipped, changed: false, cause: Some(*cause) }))
            }
            (Self::Ready, E::TaskSkipped { cause: cause @ (Cause::Rule | Cause::NotSelected), .. }) => {
                Ok(Self::Done(Decision { status: Status::Skipped, changed: false, cause: Some(*cause) }))
            }
            (Self::Waiting | Self::Ready, E::TaskNotRun { .. }) => {
                Ok(Self::Done(Decision { status: Status::NotRun, changed: false, cause: None }))
            }
            // A guard that errs, or a target without hosts, fails a task that never started.
            (Self::Waiting | Self::Ready, E::TaskFinished { result, .. })
                if matches!(result.status, Status::Failed | Status::Unknown) =>
            {
                Ok(Self::Done(Decision { status: result.status, changed: false, cause: None }))
            }
            (Self::Ready, E::TaskStarted { .. }) => Ok(Self::Running),
            (
                Self::Running,
                E::AttemptStarted { .. }
                | E::AttemptFailed { .. }
                | E::Log { .. }
                | E::PartFinished { .. }
                | E::HostResult { .. },
            ) => Ok(Self::Running),
            (Self::Running, E::TaskFinished { result, .. }) => Ok(Self::Done(Decision {
                status: result.status,
                changed: result.changed,
                cause: result.cause,
            })),
            (Self::Done(decision), E::UndoStarted { .. }) => Ok(Self::Undoing(decision)),
            (Self::Undoing(decision), E::Log { .. }) => Ok(Self::Undoing(decision)),
            (Self::Undoing(decision), E::UndoFinished { status, .. }) => Ok(Self::Undone(decision, *status)),
            (Self::Undoing(decision), E::RunResumed(_)) => Ok(Self::Done(decision)),
            (Self::Undone(decision, status), E::RunResumed(_)) => Ok(Self::Undone(decision, status)),
            (Self::Waiting | Self::Ready | Self::Running | Self::Done(_), E::RunResumed(_)) => {
                Ok(Self::Waiting)
            }
            (
                Self::Waiting
                | Self::Ready
                | Self::Running
                | Self::Done(_)
                | Self::Undoing(_)
                | Self::Undone(..),
                _,
            ) => Err(IllegalTransition::new(self, event)),
        }
    }

    /// Returns how the task ended, if it is decided.
    pub fn decision(&self) -> Option<Decision> {
        match *self {
            Self::Done(decision) | Self::Undoing(decision) | Self::Undone(decision, _) => Some(decision),
            Self::Waiting | Self::Ready | Self::Running => None,
        }
    }
}

/// Where one host's part of a started task stands (a functional task has one such part without host).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowState {
    /// It waits for its batch or for a slot.
    #[default]
    Pending,
    /// An attempt is under way.
    Running,
    /// An attempt failed; the next one follows after a delay.
    Backoff,
    /// Decided.
    Done,
}

impl RowState {
    /// Returns the state that follows `event`, which is about this row.
    pub fn after(&self, event: &Event) -> Result<Self, IllegalTransition> {
        use EventKind as E;
        match (*self, &event.kind) {
            (Self::Pending | Self::Backoff, E::AttemptStarted { .. }) => Ok(Self::Running),
            (Self::Running, E::AttemptFailed { .. }) => Ok(Self::Backoff),
            (Self::Running, E::PartFinished { .. } | E::Log { .. }) => Ok(Self::Running),
            (
                Self::Pending | Self::Running | Self::Backoff,
                E::HostResult { .. } | E::TaskFinished { .. },
            ) => Ok(Self::Done),
            // A delay begins anew; an attempt without result has not happened.
            (Self::Backoff, E::RunResumed(_)) => Ok(Self::Backoff),
            (Self::Pending | Self::Running, E::RunResumed(_)) => Ok(Self::Pending),
            (Self::Pending | Self::Running | Self::Backoff | Self::Done, _) => {
                Err(IllegalTransition::new(self, event))
            }
        }
    }
}

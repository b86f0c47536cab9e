//! A phase of a run, or a task of one without phases: how it stands, on which hosts, and what runs below it did.

use std::collections::HashMap;

use stead_model::duration::Short;
use stead_model::time::Timestamp;
use stead_model::{EventKind, Status};

use crate::render::one_line;

/// A phase or task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Phase {
    /// Its name; that of a task of a run below has the nodes before it that lead there.
    pub(crate) name: String,
    /// How it stands.
    pub(crate) state: PhaseState,
    /// Why it ended so.
    pub(crate) note: Option<String>,
    /// Its hosts, in the order they were told of.
    pub(crate) hosts: Vec<HostRow>,
    host_places: HashMap<String, usize>,
    /// Tasks of runs below that it has done.
    pub(crate) below: Vec<Phase>,
    below_places: HashMap<String, usize>,
}

/// A task on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostRow {
    /// The host.
    pub(crate) name: String,
    /// How it stands.
    pub(crate) state: PhaseState,
    /// The attempt that was begun last; 0 before the first.
    pub(crate) attempt: u32,
    /// Why it ended so, or has to be tried again.
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

impl PhaseState {
    /// Returns the word for how it stands.
    fn word(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running { .. } => "running",
            Self::Ended { status, .. } => status.as_str(),
        }
    }

    /// Returns how long it has been going on or took; empty if it never began.
    fn time(self, now: Timestamp) -> String {
        match self {
            Self::Waiting
            | Self::Ended { status: Status::Skipped | Status::NotRun | Status::Unknown, .. } => String::new(),
            Self::Running { since } => Short::from_millis(now.millis_since(since)).to_string(),
            Self::Ended {
                status: Status::Changed | Status::Unchanged | Status::Failed | Status::Cancelled,
                millis,
            } => Short::from_millis(millis).to_string(),
        }
    }
}

impl HostRow {
    /// Returns the word for how it stands.
    pub(crate) fn word(&self) -> &'static str {
        if self.state == PhaseState::Waiting && self.attempt > 0 { "retrying" } else { self.state.word() }
    }

    /// Returns how long it has been going on or took; empty if it never began.
    pub(crate) fn time(&self, now: Timestamp) -> String {
        self.state.time(now)
    }
}

impl Phase {
    pub(super) fn waiting(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            state: PhaseState::Waiting,
            note: None,
            hosts: Vec::new(),
            host_places: HashMap::new(),
            below: Vec::new(),
            below_places: HashMap::new(),
        }
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
        let is_done = matches!(self.status(), Some(Status::Changed | Status::Unchanged));
        if is_phase && is_done { "done" } else { self.state.word() }
    }

    /// Returns how long it has been going on or took; empty if it never began.
    pub(crate) fn time(&self, now: Timestamp) -> String {
        self.state.time(now)
    }

    /// Begins again: what was begun has no result.
    pub(super) fn reset(&mut self) {
        self.state = PhaseState::Waiting;
        self.note = None;
    }

    /// Takes in what happened to it; the output of a task is not its own business.
    pub(super) fn take(&mut self, t: Timestamp, kind: &EventKind) {
        match kind {
            EventKind::TaskStarted { hosts, .. } => {
                self.state = PhaseState::Running { since: t };
                for host in hosts {
                    self.host(host.as_str());
                }
            }
            EventKind::AttemptStarted { host: Some(host), attempt, .. } => {
                let row = self.host(host.as_str());
                (row.state, row.attempt, row.note) = (PhaseState::Running { since: t }, *attempt, None);
            }
            EventKind::AttemptFailed { host: Some(host), attempt, error, .. } => {
                let row = self.host(host.as_str());
                (row.state, row.attempt) = (PhaseState::Waiting, *attempt);
                row.note = Some(one_line(error));
            }
            EventKind::HostResult { host, attempt, result, .. } => {
                let row = self.host(host.as_str());
                row.state = PhaseState::Ended { status: result.status, millis: result.duration_ms };
                row.attempt = row.attempt.max(*attempt);
                row.note = result.error.as_deref().or(result.reason.as_deref()).map(one_line);
            }
            EventKind::TaskFinished { result, .. } => {
                self.state = PhaseState::Ended { status: result.status, millis: result.duration_ms };
                self.note = result.error.as_deref().or(result.reason.as_deref()).map(one_line);
            }
            EventKind::TaskSkipped { reason, .. } => {
                self.state = PhaseState::Ended { status: Status::Skipped, millis: 0 };
                self.note = Some(one_line(reason));
            }
            EventKind::TaskNotRun { reason, .. } => {
                self.state = PhaseState::Ended { status: Status::NotRun, millis: 0 };
                self.note = Some(one_line(reason));
            }
            EventKind::UndoStarted { .. } => self.note = Some("it is being undone".to_owned()),
            EventKind::UndoFinished { status, error, .. } => {
                self.note = Some(match (status, error) {
                    (Status::Failed, Some(error)) => format!("it could not be undone: {}", one_line(error)),
                    (Status::Failed, None) => "it could not be undone".to_owned(),
                    (_, _) => "it was undone".to_owned(),
                });
            }
            EventKind::Delegated { origin, event, .. } => {
                // What no version of this program knows is none of the tasks'.
                let Ok(inner) = serde_json::from_value::<EventKind>((**event).clone()) else { return };
                let Some(task) = inner.task().filter(|_| !matches!(inner, EventKind::Delegated { .. }))
                else {
                    return;
                };
                let at = event.get("t").and_then(serde_json::Value::as_str).and_then(Timestamp::parse);
                let name: Vec<&str> =
                    origin.iter().map(|node| node.as_str()).chain([task.as_str()]).collect();
                let name = name.join("/");
                self.below(&name).take(at.unwrap_or(t), &inner);
            }
            EventKind::RunStarted(_)
            | EventKind::RunResumed(_)
            | EventKind::SectionStarted { .. }
            | EventKind::FactsGathered { .. }
            | EventKind::TaskReady { .. }
            | EventKind::AttemptStarted { host: None, .. }
            | EventKind::AttemptFailed { host: None, .. }
            | EventKind::Log { .. }
            | EventKind::PartFinished { .. }
            | EventKind::Confirmed { .. }
            | EventKind::Warning { .. }
            | EventKind::AgentConnected(_)
            | EventKind::AgentLost(_)
            | EventKind::AgentBack(_)
            | EventKind::RoleStarted(_)
            | EventKind::RoleReady(_)
            | EventKind::RoleStop(_)
            | EventKind::RoleExited(_)
            | EventKind::Artifact(_)
            | EventKind::Node(_)
            | EventKind::CancelRequested { .. }
            | EventKind::RunFinished(_) => {}
        }
    }

    fn host(&mut self, name: &str) -> &mut HostRow {
        let place = match self.host_places.get(name) {
            Some(place) => *place,
            None => {
                let (name, state) = (name.to_owned(), PhaseState::Waiting);
                self.host_places.insert(name.clone(), self.hosts.len());
                self.hosts.push(HostRow { name, state, attempt: 0, note: None });
                self.hosts.len() - 1
            }
        };
        &mut self.hosts[place]
    }

    fn below(&mut self, name: &str) -> &mut Phase {
        let place = match self.below_places.get(name) {
            Some(place) => *place,
            None => {
                self.below_places.insert(name.to_owned(), self.below.len());
                self.below.push(Self::waiting(name));
                self.below.len() - 1
            }
        };
        &mut self.below[place]
    }
}

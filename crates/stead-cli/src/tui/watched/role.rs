//! A role of a run and what it wrote; in a run without roles, a task on a host.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Piece, TAIL_BYTES, last_pieces};

/// A role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Role {
    /// Its name.
    pub(crate) name: String,
    /// Where it runs.
    pub(crate) agent: Option<String>,
    /// How it stands.
    pub(crate) state: RoleState,
    /// Whether the connection to its agent is lost.
    pub(crate) lost: bool,
    /// Its newest output. Older pieces than the screen would read are forgotten.
    pieces: VecDeque<Piece>,
    /// How many bytes `pieces` are.
    kept: u64,
    written: u64,
    files: Vec<Arc<str>>,
}

/// How a role stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RoleState {
    /// It has not been started.
    Waiting,
    /// It runs.
    Running,
    /// It runs and is ready.
    Ready,
    /// It is being stopped.
    Stopping {
        /// With which signal.
        signal: String,
    },
    /// It ended.
    Exited {
        /// Its exit code.
        code: Option<i32>,
        /// The signal that ended it.
        signal: Option<String>,
    },
    /// The run ended without it.
    NotStarted,
}

impl Role {
    pub(super) fn waiting(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            agent: None,
            state: RoleState::Waiting,
            lost: false,
            pieces: VecDeque::new(),
            kept: 0,
            written: 0,
            files: Vec::new(),
        }
    }

    /// Returns the words for how it stands.
    pub(crate) fn words(&self) -> String {
        match &self.state {
            RoleState::Running | RoleState::Ready | RoleState::Stopping { .. } if self.lost => {
                "connection lost".to_owned()
            }
            RoleState::Waiting => "waiting".to_owned(),
            RoleState::Running => "running".to_owned(),
            RoleState::Ready => "ready".to_owned(),
            RoleState::Stopping { signal } => format!("stopping ({signal})"),
            RoleState::Exited { code: Some(code), .. } => format!("exited {code}"),
            RoleState::Exited { code: None, signal: Some(signal) } => format!("ended by {signal}"),
            RoleState::Exited { code: None, signal: None } => "ended".to_owned(),
            RoleState::NotStarted => "not started".to_owned(),
        }
    }

    /// Returns how many bytes it wrote.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Returns the files it wrote to, relative to the bundle, each once.
    pub(crate) fn files(&self) -> &[Arc<str>] {
        &self.files
    }

    /// Returns the end of what it wrote.
    pub(super) fn tail(&self) -> Vec<Piece> {
        last_pieces(&self.pieces)
    }

    pub(super) fn wrote(&mut self, piece: Piece) {
        self.written += piece.len;
        self.kept += piece.len;
        if !self.files.contains(&piece.file) {
            self.files.push(Arc::clone(&piece.file));
        }
        match self.pieces.back_mut() {
            Some(last) if last.file == piece.file && last.offset + last.len == piece.offset => {
                last.len += piece.len;
            }
            Some(_) | None => self.pieces.push_back(piece),
        }
        // The oldest may go once the others are enough.
        while let Some(oldest) = self.pieces.front()
            && self.kept - oldest.len >= TAIL_BYTES
        {
            self.kept -= oldest.len;
            self.pieces.pop_front();
        }
    }
}
